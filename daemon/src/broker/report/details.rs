//! One VM in full, for people: its lines of the table, its settings in force, and the changes that wait until it is off.

use super::status::{Status, VmStatus};
use super::table;
use outside::{Bytes, lines_for_terminal};
use std::fmt::Write;

/// Returns the lines of a VM. `status` has the VM's GPUs and the daemon's version.
#[must_use]
pub(in crate::broker) fn details(status: &Status, vm: &VmStatus) -> String {
    let mut text = String::from("\n");
    for (what, value) in facts(status, vm) {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{what:<14} {value}");
    }
    table::of_vm(status, vm) + &lines_for_terminal(&text)
}

/// Returns the facts about a VM, each with a heading.
fn facts(status: &Status, vm: &VmStatus) -> Vec<(&'static str, String)> {
    let process = vm.pid.map(|pid| format!(", device process {pid}")).unwrap_or_default();
    let mut facts = vec![("state", format!("{}{process}", vm.state)), ("socket", vm.socket_path.clone())];
    facts.extend(vm.pending.as_ref().map(|pending| ("pending", pending.to_string())));
    for gpu in status.gpus.iter().filter(|gpu| vm.is_on(gpu)) {
        facts.push(("GPU", format!("{}, driver {}, UUID {}", gpu.name, or_unknown(&gpu.driver), gpu.uuid)));
        facts.push(("GPU memory", table::memory(status, gpu)));
    }
    if let Some(in_force) = &vm.in_force {
        let maps = if in_force.maps_device_memory { "map" } else { "cannot map" };
        let window = Bytes(in_force.window_size);
        facts
            .push(("window", format!("{window} of {}; guests {maps} the GPU's own memory", in_force.memory)));
        facts.push(("queues", in_force.queues.clone()));
    }
    facts.push(("device memory", held(vm.used.device_memory, vm.device_memory_limit)));
    facts.push(("host memory", held(vm.used.host_memory, vm.host_memory_limit)));
    facts.push(("options", vm.options.join(" ")));
    facts.push(("restarts", format!("{} of its device process", vm.restarts)));
    facts.extend(vm.replaced.iter().map(|what| ("restart", format!("pending, as {what}"))));
    facts.push(("daemon", format!("version {}", or_unknown(&status.version))));
    facts.extend(status.upgrade.as_ref().map(|what| ("upgrade", format!("pending, as {what}"))));
    facts
}

fn held(held: u64, limit: Option<u64>) -> String {
    let limit = limit.map_or_else(|| "without a bound".to_owned(), |limit| format!("of {}", Bytes(limit)));
    format!("{} held, {limit}", Bytes(held))
}

fn or_unknown(text: &str) -> &str {
    if text.is_empty() { "unknown" } else { text }
}

#[cfg(test)]
mod tests {
    use super::super::status::{ContextStatus, GpuStatus, PendingStatus, VmGpuStatus};
    use super::*;
    use crate::ipc::InForce;

    fn status() -> Status {
        let gpu = GpuStatus {
            uuid: "ff".into(),
            name: "GPU".into(),
            driver: "Driver 1.2".into(),
            device_memory: 8 << 30,
            ..GpuStatus::default()
        };
        let in_force = InForce {
            window_size: 16 << 30,
            memory: "memfd".into(),
            maps_device_memory: true,
            queues: "nominal".into(),
        };
        let context = ContextStatus { context: 3, name: "llama".into(), ..ContextStatus::default() };
        let vm = VmStatus {
            name: "web".into(),
            state: "connected".into(),
            socket_path: "/run/web".into(),
            pid: Some(7),
            gpus: vec![VmGpuStatus { uuid: "ff".into(), ..VmGpuStatus::default() }],
            device_memory_limit: Some(6 << 30),
            pending: Some(PendingStatus::Restart { keys: vec!["queues".into()] }),
            options: vec!["gpu=GPU".into(), "device-memory=6GiB".into()],
            in_force: Some(in_force),
            replaced: vec!["the GPU's driver was replaced (/usr/lib/x)".into()],
            contexts: vec![context],
            ..VmStatus::default()
        };
        let other = VmStatus { name: "other".into(), ..VmStatus::default() };
        let upgrade = Some("the program was replaced (/usr/bin/x)".into());
        Status { version: "1.0".into(), upgrade, gpus: vec![gpu], vms: vec![other, vm], ..Status::default() }
    }

    #[test]
    fn a_vm_is_told_with_what_is_in_force_and_what_waits() {
        let status = status();
        let text = details(&status, status.vm("web").unwrap());
        let facts = [
            "state          connected, device process 7",
            "socket         /run/web",
            "pending        restart pending when the VM is off: queues",
            "GPU            GPU, driver Driver 1.2, UUID ff",
            "GPU memory     VMs hold 0B of 8.0GiB of memory, 8.0GiB are free, 0B promised to no VM",
            "window         16.0GiB of memfd; guests map the GPU's own memory",
            "queues         nominal",
            "device memory  0B held, of 6.0GiB",
            "host memory    0B held, without a bound",
            "options        gpu=GPU device-memory=6GiB",
            "restarts       0 of its device process",
            "restart        pending, as the GPU's driver was replaced (/usr/lib/x)",
            "daemon         version 1.0",
            "upgrade        pending, as the program was replaced (/usr/bin/x)",
        ];
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[1].starts_with("web ") && lines[2].starts_with("  web/3 llama"), "{text}");
        assert_eq!(lines[4..], facts, "{text}");
    }

    #[test]
    fn one_vm_as_data_has_its_own_gpus_and_an_unknown_one_is_answered_with_the_names() {
        let status = status();
        let none = status.only(status.vm("other").unwrap());
        assert_eq!((none.vms.len(), none.gpus.len(), none.version.as_str()), (1, 0, "1.0"));
        assert_eq!(status.only(status.vm("web").unwrap()).gpus.len(), 1);
        assert_eq!(status.vm("wbe").unwrap_err(), "wbe: no such VM; there are other, web");
    }
}
