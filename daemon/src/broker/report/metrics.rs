//! The status as metrics, in the OpenMetrics text format that Prometheus reads.

use super::status::{GpuStatus, KillCounts, RestartCounts, Status, VmCounts, VmStatus};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use std::fmt;

/// Returns all metrics of the moment of `status`.
pub(in crate::broker) fn text(status: &Status) -> String {
    let mut registry = Registry::with_prefix("vhost_user_vulkan");
    registry.register_collector(Box::new(Moment(status.clone())));
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, &registry) {
        Ok(()) => text,
        // Writing to a string does not fail.
        Err(fmt::Error) => String::from("# EOF\n"),
    }
}

#[derive(Debug)]
struct Moment(Status);

/// A metric: its name without prefix and unit, its help, its type, its unit.
struct Family(&'static str, &'static str, MetricType, Option<Unit>);

const GPU_SECONDS: Family =
    Family("gpu", "Time of the GPU that was charged, by queue", MetricType::Counter, Some(Unit::Seconds));
const SUBMISSIONS: Family = Family("submissions", "Submissions that are complete", MetricType::Counter, None);
const WAITING: Family = Family(
    "waiting",
    "Time in which contexts had work and none of it on the GPU",
    MetricType::Counter,
    Some(Unit::Seconds),
);
const CPU: Family =
    Family("cpu", "Processor time, by kind of process", MetricType::Counter, Some(Unit::Seconds));
const KILLS: Family = Family("kills", "Contexts that were ended, by reason", MetricType::Counter, None);
const RESTARTS: Family = Family("restarts", "Device processes started again", MetricType::Counter, None);
const CONTEXT_RESTARTS: Family =
    Family("context_restarts", "Restarts of contexts, by result", MetricType::Counter, None);
const CONTEXT_RECOVERIES: Family = Family(
    "context_recoveries",
    "Contexts that survived the death of their workers",
    MetricType::Counter,
    None,
);
const CONTEXT_PAUSE: Family = Family(
    "context_restart_pause",
    "Time for which the last context that was restarted was paused",
    MetricType::Gauge,
    Some(Unit::Seconds),
);
const CONTEXTS: Family = Family("contexts", "Contexts alive", MetricType::Gauge, None);
const MEMORY: Family = Family("memory", "Memory held, by kind", MetricType::Gauge, Some(Unit::Bytes));
const MEMORY_LIMIT: Family =
    Family("memory_limit", "The most memory that may be held, by kind", MetricType::Gauge, Some(Unit::Bytes));
const QUEUED: Family =
    Family("queued", "Submissions that could run now and are held back", MetricType::Gauge, None);
const WEIGHT: Family = Family("weight", "Weight of the VM's share", MetricType::Gauge, None);
const MEMORY_ALLOWED: Family = Family(
    "memory_allowed",
    "GPU memory that may be held now, where there is gpu-memory",
    MetricType::Gauge,
    Some(Unit::Bytes),
);
const MEMORY_AWAITED: Family = Family(
    "memory_awaited",
    "GPU memory that is waited for, where there is gpu-memory",
    MetricType::Gauge,
    Some(Unit::Bytes),
);
const GPU_MEMORY: Family = Family("gpu_memory", "The GPU's own memory", MetricType::Gauge, Some(Unit::Bytes));
const GPU_MEMORY_PROMISED: Family = Family(
    "gpu_memory_promised",
    "GPU memory that VMs may hold together, one without a bound all of it",
    MetricType::Gauge,
    Some(Unit::Bytes),
);
const GPU_MEMORY_FREE: Family =
    Family("gpu_memory_free", "GPU memory that is promised to no VM", MetricType::Gauge, Some(Unit::Bytes));
const GPU_WEIGHT: Family =
    Family("gpu_weight", "Sum of the weights of the VMs on the GPU", MetricType::Gauge, None);
const GPU_VMS: Family = Family("gpu_vms", "VMs on the GPU, by state", MetricType::Gauge, None);
const UTILISATION: Family = Family(
    "utilisation_ratio",
    "Part of the last second in which the GPU computed for VMs",
    MetricType::Gauge,
    None,
);
const GPU_INFO: Family = Family("gpu_info", "The name of the GPU; always 1", MetricType::Gauge, None);

impl Collector for Moment {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let status = &self.0;
        let all = &mut encoder;
        write(all, &GPU_SECONDS, |to| {
            of_vms(status, |vm| {
                vm.gpus.iter().try_for_each(|on| {
                    let labels = |queue| [("vm", &*vm.name), ("gpu", &*on.uuid), ("queue", queue)];
                    counter(to, &labels("compute"), on.gpu_seconds)?;
                    counter(to, &labels("copy"), on.copy_seconds)
                })
            })
        })?;
        write(all, &SUBMISSIONS, |to| {
            of_vms(status, |vm| counter(to, &[("vm", &vm.name)], vm.used.submissions))
        })?;
        write(all, &WAITING, |to| {
            of_vms(status, |vm| counter(to, &[("vm", &vm.name)], vm.used.waiting_seconds))
        })?;
        write(all, &CPU, |to| {
            of_vms(status, |vm| {
                counter(to, &[("vm", &vm.name), ("process", "worker")], vm.used.cpu_seconds)?;
                counter(to, &[("vm", &vm.name), ("process", "device")], vm.device_cpu_seconds)
            })?;
            counter(to, &[("vm", ""), ("process", "broker")], status.broker_cpu_seconds)
        })?;
        write(all, &KILLS, |to| of_vms(status, |vm| kills(to, vm)))?;
        write(all, &RESTARTS, |to| of_vms(status, |vm| counter(to, &[("vm", &vm.name)], vm.restarts)))?;
        write(all, &CONTEXT_RESTARTS, |to| of_vms(status, |vm| context_restarts(to, vm)))?;
        write(all, &CONTEXT_RECOVERIES, |to| {
            of_vms(status, |vm| counter(to, &[("vm", &vm.name)], vm.context_recoveries))
        })?;
        write(all, &CONTEXT_PAUSE, |to| {
            let pause = |vm: &VmStatus| vm.context_restarts.last_pause_seconds;
            of_vms(status, |vm| pause(vm).map_or(Ok(()), |pause| gauge(to, &[("vm", &vm.name)], pause)))
        })?;
        write(all, &CONTEXTS, |to| {
            of_vms(status, |vm| gauge(to, &[("vm", &vm.name)], vm.contexts.len() as f64))
        })?;
        write(all, &MEMORY, |to| {
            of_vms(status, |vm| {
                gauge(to, &[("vm", &vm.name), ("kind", "device")], vm.used.device_memory as f64)?;
                gauge(to, &[("vm", &vm.name), ("kind", "host")], vm.used.host_memory as f64)
            })
        })?;
        write(all, &MEMORY_LIMIT, |to| of_vms(status, |vm| memory_limits(to, vm)))?;
        write(all, &MEMORY_ALLOWED, |to| {
            of_vms(status, |vm| memory_allowed(to, vm, vm.device_memory_allowed))
        })?;
        write(all, &MEMORY_AWAITED, |to| {
            let awaited = |vm: &VmStatus| vm.device_memory_allowed.map(|_| vm.device_memory_awaited);
            of_vms(status, |vm| memory_allowed(to, vm, awaited(vm)))
        })?;
        write(all, &QUEUED, |to| of_vms(status, |vm| gauge(to, &[("vm", &vm.name)], vm.queued.into())))?;
        write(all, &WEIGHT, |to| of_vms(status, |vm| gauge(to, &[("vm", &vm.name)], vm.weight.into())))?;
        let of_gpus = [
            (&GPU_MEMORY, (|gpu| gpu.device_memory) as fn(&GpuStatus) -> u64),
            (&GPU_MEMORY_PROMISED, |gpu| gpu.device_memory_promised),
            (&GPU_MEMORY_FREE, |gpu| gpu.device_memory_free),
            (&GPU_WEIGHT, |gpu| gpu.weights),
        ];
        for (family, value) in of_gpus {
            write(all, family, |to| {
                status.gpus.iter().try_for_each(|gpu| gauge(to, &[("gpu", &gpu.uuid)], value(gpu) as f64))
            })?;
        }
        write(all, &GPU_VMS, |to| status.gpus.iter().try_for_each(|gpu| vms_on(to, gpu)))?;
        write(all, &UTILISATION, |to| {
            status.gpus.iter().try_for_each(|gpu| gauge(to, &[("gpu", &gpu.uuid)], gpu.utilisation))
        })?;
        write(all, &GPU_INFO, |to| {
            let mut gpus = status.gpus.iter();
            gpus.try_for_each(|gpu| gauge(to, &[("gpu", &gpu.uuid), ("name", &gpu.name)], 1.0))
        })
    }
}

fn of_vms(status: &Status, write: impl FnMut(&VmStatus) -> fmt::Result) -> fmt::Result {
    status.vms.iter().try_for_each(write)
}

/// Writes a number of bytes that VMs have with `gpu-memory`.
fn memory_allowed(to: &mut MetricEncoder<'_>, vm: &VmStatus, bytes: Option<u64>) -> fmt::Result {
    bytes.map_or(Ok(()), |bytes| gauge(to, &[("vm", &vm.name)], bytes as f64))
}

fn memory_limits(to: &mut MetricEncoder<'_>, vm: &VmStatus) -> fmt::Result {
    let limits = [("device", vm.device_memory_limit), ("host", vm.host_memory_limit)];
    limits
        .into_iter()
        .filter_map(|(kind, limit)| Some((kind, limit?)))
        .try_for_each(|(kind, bytes)| gauge(to, &[("vm", &vm.name), ("kind", kind)], bytes as f64))
}

fn kills(to: &mut MetricEncoder<'_>, vm: &VmStatus) -> fmt::Result {
    let KillCounts { operator, hung, lost, refused } = vm.kills;
    let by_reason = [("operator", operator), ("hung", hung), ("lost", lost), ("refused", refused)];
    by_reason.into_iter().try_for_each(|(why, count)| counter(to, &[("vm", &vm.name), ("why", why)], count))
}

fn context_restarts(to: &mut MetricEncoder<'_>, vm: &VmStatus) -> fmt::Result {
    let RestartCounts { done, failed, .. } = vm.context_restarts;
    let by_result = [("done", done), ("failed", failed)];
    by_result
        .into_iter()
        .try_for_each(|(result, count)| counter(to, &[("vm", &vm.name), ("result", result)], count))
}

fn vms_on(to: &mut MetricEncoder<'_>, gpu: &GpuStatus) -> fmt::Result {
    let VmCounts { starting, waiting, connected, ending, ended } = gpu.vms;
    let by_state = [
        ("starting", starting),
        ("waiting", waiting),
        ("connected", connected),
        ("ending", ending),
        ("ended", ended),
    ];
    by_state
        .into_iter()
        .try_for_each(|(state, count)| gauge(to, &[("gpu", &gpu.uuid), ("state", state)], count as f64))
}

fn write(
    encoder: &mut DescriptorEncoder<'_>,
    Family(name, help, kind, unit): &Family,
    values: impl FnOnce(&mut MetricEncoder<'_>) -> fmt::Result,
) -> fmt::Result {
    values(&mut encoder.encode_descriptor(name, help, unit.as_ref(), *kind)?)
}

fn counter<N>(to: &mut MetricEncoder<'_>, labels: &[(&str, &str)], value: N) -> fmt::Result
where
    ConstCounter<N>: EncodeMetric,
{
    ConstCounter::new(value).encode(to.encode_family(&labels)?)
}

fn gauge(to: &mut MetricEncoder<'_>, labels: &[(&str, &str)], value: f64) -> fmt::Result {
    ConstGauge::new(value).encode(to.encode_family(&labels)?)
}

#[cfg(test)]
mod tests {
    use super::super::status::{Used, VmGpuStatus};
    use super::*;

    #[test]
    fn every_metric_has_its_name_and_its_labels() {
        let used = Used { submissions: 7, host_memory: 4096, ..Used::default() };
        let on = |uuid: &str, gpu_seconds| VmGpuStatus {
            uuid: uuid.into(),
            gpu_seconds,
            ..VmGpuStatus::default()
        };
        let kills = KillCounts { operator: 2, ..KillCounts::default() };
        let context_restarts = RestartCounts { done: 4, failed: 1, last_pause_seconds: Some(0.25) };
        let vm = VmStatus {
            name: "web".into(),
            gpus: vec![on("00ff", 1.5), on("00fe", 0.25)],
            weight: 300,
            used,
            device_memory_limit: Some(8192),
            device_memory_allowed: Some(4096),
            device_memory_awaited: 1024,
            queued: 3,
            kills,
            context_restarts,
            context_recoveries: 3,
            ..VmStatus::default()
        };
        let gpu = GpuStatus {
            uuid: "00ff".into(),
            name: "A \"GPU\"".into(),
            driver: String::new(),
            utilisation: 0.25,
            device_memory: 8 << 10,
            device_memory_promised: 6 << 10,
            device_memory_free: 2 << 10,
            weights: 300,
            drained: false,
            vms: VmCounts { waiting: 1, ..VmCounts::default() },
        };
        let status = Status { gpus: vec![gpu], vms: vec![vm], broker_cpu_seconds: 0.5, ..Status::default() };
        let text = text(&status);
        for line in [
            "# TYPE vhost_user_vulkan_gpu_seconds counter",
            "vhost_user_vulkan_gpu_seconds_total{vm=\"web\",gpu=\"00ff\",queue=\"compute\"} 1.5",
            "vhost_user_vulkan_gpu_seconds_total{vm=\"web\",gpu=\"00ff\",queue=\"copy\"} 0.0",
            "vhost_user_vulkan_gpu_seconds_total{vm=\"web\",gpu=\"00fe\",queue=\"compute\"} 0.25",
            "vhost_user_vulkan_submissions_total{vm=\"web\"} 7",
            "vhost_user_vulkan_waiting_seconds_total{vm=\"web\"} 0.0",
            "vhost_user_vulkan_cpu_seconds_total{vm=\"\",process=\"broker\"} 0.5",
            "vhost_user_vulkan_kills_total{vm=\"web\",why=\"operator\"} 2",
            "vhost_user_vulkan_context_restarts_total{vm=\"web\",result=\"done\"} 4",
            "vhost_user_vulkan_context_restarts_total{vm=\"web\",result=\"failed\"} 1",
            "vhost_user_vulkan_context_recoveries_total{vm=\"web\"} 3",
            "vhost_user_vulkan_context_restart_pause_seconds{vm=\"web\"} 0.25",
            "vhost_user_vulkan_contexts{vm=\"web\"} 0.0",
            "vhost_user_vulkan_memory_bytes{vm=\"web\",kind=\"host\"} 4096.0",
            "vhost_user_vulkan_memory_limit_bytes{vm=\"web\",kind=\"device\"} 8192.0",
            "vhost_user_vulkan_memory_allowed_bytes{vm=\"web\"} 4096.0",
            "vhost_user_vulkan_memory_awaited_bytes{vm=\"web\"} 1024.0",
            "vhost_user_vulkan_queued{vm=\"web\"} 3.0",
            "vhost_user_vulkan_gpu_info{gpu=\"00ff\",name=\"A \\\"GPU\\\"\"} 1.0",
            "vhost_user_vulkan_weight{vm=\"web\"} 300.0",
            "# TYPE vhost_user_vulkan_gpu_memory_bytes gauge",
            "vhost_user_vulkan_gpu_memory_bytes{gpu=\"00ff\"} 8192.0",
            "vhost_user_vulkan_gpu_memory_promised_bytes{gpu=\"00ff\"} 6144.0",
            "vhost_user_vulkan_gpu_memory_free_bytes{gpu=\"00ff\"} 2048.0",
            "vhost_user_vulkan_gpu_weight{gpu=\"00ff\"} 300.0",
            "vhost_user_vulkan_gpu_vms{gpu=\"00ff\",state=\"waiting\"} 1.0",
            "vhost_user_vulkan_gpu_vms{gpu=\"00ff\",state=\"connected\"} 0.0",
            "vhost_user_vulkan_utilisation_ratio{gpu=\"00ff\"} 0.25",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        assert!(
            !text.contains("memory_limit_bytes{vm=\"web\",kind=\"host\"}"),
            "a limit that there is not\n{text}"
        );
        assert!(text.ends_with("# EOF\n"));
    }
}
