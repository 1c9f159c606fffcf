//! The status that an operator gets: every GPU, VM and context, and their usage.

use crate::ipc::InForce;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The number of the form that a status has. The number rises when an existing value gets another name, meaning or unit, or goes away, but not for a
/// new value.
pub(in crate::broker) const FORM: u32 = 1;

/// The status at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The number of the form of this status, 1; 0 if the broker is an older one.
    #[serde(default)]
    pub form: u32,
    /// The version of the daemon that answers; empty if it is an older one.
    #[serde(default)]
    pub version: String,
    /// The program's file was replaced since the daemon started, in words: this version goes on until the daemon is started anew.
    #[serde(default)]
    pub upgrade: Option<String>,
    /// GPUs in use, by the first VM on them.
    pub gpus: Vec<GpuStatus>,
    /// VMs, by name.
    pub vms: Vec<VmStatus>,
    /// The policy by which VMs share a GPU: `best-effort`, `equal` or `fixed`; empty if the broker is an older one.
    #[serde(default)]
    pub policy: String,
    /// Processor time of the broker itself, in seconds.
    pub broker_cpu_seconds: f64,
}

impl Status {
    /// Returns the VM of this name.
    ///
    /// # Errors
    ///
    /// No VM has this name; the error names all VMs.
    pub(in crate::broker) fn vm(&self, name: &str) -> Result<&VmStatus, String> {
        let names = || self.vms.iter().map(|vm| vm.name.as_str()).collect::<Vec<_>>().join(", ");
        let found = self.vms.iter().find(|vm| vm.name == name);
        found.ok_or_else(|| format!("{name}: no such VM; there are {}", names()))
    }

    /// Returns the same status with one of its VMs only, and that VM's GPUs.
    pub(in crate::broker) fn only(&self, vm: &VmStatus) -> Self {
        let gpus = self.gpus.iter().filter(|gpu| vm.is_on(gpu)).cloned().collect();
        Self { vms: vec![vm.clone()], gpus, ..self.clone() }
    }

    /// Returns the bytes of a GPU's memory that VMs hold. Returns none if one of these VMs is on other GPUs too: memory is counted for a process, not
    /// for each of its GPUs.
    #[must_use]
    pub fn held_on(&self, gpu: &GpuStatus) -> Option<u64> {
        let mut on_it = self.vms.iter().filter(|vm| vm.is_on(gpu));
        on_it.try_fold(0_u64, |sum, vm| {
            (vm.gpus.len() == 1).then(|| sum.saturating_add(vm.used.device_memory))
        })
    }
}

/// A GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuStatus {
    /// `VkPhysicalDeviceIDProperties::deviceUUID` in hexadecimal.
    pub uuid: String,
    /// The GPU's name.
    pub name: String,
    /// The name and the version of its driver; empty if the broker is an older one.
    #[serde(default)]
    pub driver: String,
    /// The part of the last second in which the GPU computed for VMs, from 0.
    pub utilisation: f64,
    /// Bytes of the GPU's own memory.
    pub device_memory: u64,
    /// Bytes of this memory that the GPU's VMs may hold together, used or not: the sum of their bounds. A VM without a bound has all of it.
    pub device_memory_promised: u64,
    /// Bytes of this memory that are promised to no VM.
    pub device_memory_free: u64,
    /// The sum of the weights of the GPU's VMs.
    pub weights: u64,
    /// An operator has drained the GPU: a context begins on it only if its VM has no other GPU.
    #[serde(default)]
    pub drained: bool,
    /// The numbers of the GPU's VMs by state. A VM whose GPU is not known yet counts on every GPU, here and in the sums.
    pub vms: VmCounts,
}

/// Numbers of VMs by [`VmStatus::state`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmCounts {
    /// VMs whose device process starts.
    pub starting: u64,
    /// VMs to which no VMM is connected: slots that are free.
    pub waiting: u64,
    /// VMs to which a VMM is connected.
    pub connected: u64,
    /// VMs whose device process was told to end.
    pub ending: u64,
    /// VMs whose device process has ended.
    pub ended: u64,
}

impl VmCounts {
    /// Counts a VM in this state.
    pub(in crate::broker) fn count(&mut self, state: &str) {
        let count = match state {
            "starting" => &mut self.starting,
            "waiting" => &mut self.waiting,
            "connected" => &mut self.connected,
            "ending" => &mut self.ending,
            _ => &mut self.ended,
        };
        *count += 1;
    }
}

/// A VM.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VmStatus {
    /// The VM's name.
    pub name: String,
    /// `starting`, `waiting` (for its VMM), `connected`, `ending` (as its file demands), or `ended` (and started again soon).
    pub state: String,
    /// The socket at which its VMM connects.
    pub socket_path: String,
    /// The device process, if there is one.
    pub pid: Option<u32>,
    /// The VM's GPUs in its order, once they are known.
    pub gpus: Vec<VmGpuStatus>,
    /// From 1 to 10 000.
    pub weight: u32,
    /// `normal`, `latency` or `background`.
    pub class: String,
    /// The most of a GPU that the VM gets, from 0 to 1, if it has a bound; the least bound if its GPUs have different ones.
    pub ceiling: Option<f64>,
    /// The part of the last second that the VM used of its GPUs: more than 1 if it used several.
    pub share: f64,
    /// The resources that the VM has used, on all of its GPUs.
    pub used: Used,
    /// The most of the GPU's memory that the VM may hold, in bytes, if it has a bound other than the GPU's memory and the bound is known yet.
    #[serde(default)]
    pub device_memory_limit: Option<u64>,
    /// Bytes of the GPU's memory that the VM may hold now, if `gpu-memory` is set and the device process is ready.
    #[serde(default)]
    pub device_memory_allowed: Option<u64>,
    /// Bytes of the GPU's memory that the VM waits for, because VMs are promised more memory than the GPU has.
    #[serde(default)]
    pub device_memory_awaited: u64,
    /// The most of the host's memory that the VM may share with GPUs, in bytes, if it has a bound and the bound is known yet.
    #[serde(default)]
    pub host_memory_limit: Option<u64>,
    /// Submissions that could run now and are held back.
    #[serde(default)]
    pub queued: u32,
    /// Processor time of its device processes, in seconds.
    pub device_cpu_seconds: f64,
    /// The number of times that its device process was started again.
    pub restarts: u64,
    /// The part of the file that takes effect for the VM when its VMM has disconnected, if there is one.
    #[serde(default)]
    pub pending: Option<PendingStatus>,
    /// The options that the VM's tables or command line set, as `KEY=VALUE`; the other options have their defaults.
    #[serde(default)]
    pub options: Vec<String>,
    /// The settings that the device process reported at its start, if the VM has a device process that is ready.
    #[serde(default)]
    pub in_force: Option<InForce>,
    /// The replaced files that the device process depends on, in words: its GPU's driver, its socket. The process has to be started anew to use the
    /// new files.
    #[serde(default)]
    pub replaced: Vec<String>,
    /// Contexts that were ended.
    pub kills: KillCounts,
    /// Contexts that were given another worker.
    #[serde(default)]
    pub context_restarts: RestartCounts,
    /// Contexts whose workers died by themselves, and which went on with other workers.
    #[serde(default)]
    pub context_recoveries: u64,
    /// The VM's contexts, by number.
    pub contexts: Vec<ContextStatus>,
}

impl VmStatus {
    /// Returns whether this GPU is one of the VM's.
    #[must_use]
    pub fn is_on(&self, gpu: &GpuStatus) -> bool {
        self.gpus.iter().any(|on| on.uuid == gpu.uuid)
    }
}

/// The change of a VM that is made when its VMM has disconnected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "kebab-case")]
pub enum PendingStatus {
    /// The VM gets a new device process.
    Restart {
        /// The keys that have changed for the VM in the file.
        keys: Vec<String>,
    },
    /// The VM is removed, as the file does not name it any more.
    Removal,
}

impl fmt::Display for PendingStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Restart { keys } => write!(f, "restart pending when the VM is off: {}", keys.join(", ")),
            Self::Removal => f.write_str("removal pending when the VM is off"),
        }
    }
}

/// A VM on one of its GPUs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VmGpuStatus {
    /// The GPU's UUID, as in [`GpuStatus::uuid`].
    pub uuid: String,
    /// The most of the GPU that the VM gets, from 0 to 1, if the VM has a bound.
    pub ceiling: Option<f64>,
    /// The part of the last second that the VM used of the GPU.
    pub share: f64,
    /// Seconds for which the GPU computed for the VM.
    pub gpu_seconds: f64,
    /// Seconds for which the GPU's copy queues worked for the VM.
    pub copy_seconds: f64,
    /// Seconds in which the VM had work for the GPU and none of this work was in the driver.
    pub waiting_seconds: f64,
    /// Submissions that are complete.
    pub submissions: u64,
}

/// A context of a VM.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ContextStatus {
    /// The context's number, which `kill` takes.
    pub context: u32,
    /// The guest's program.
    pub name: String,
    /// `idle`, `waiting` (held back), `running`, `alone` (runs without asking), `swapped out`, or `awaits memory` (to come back).
    pub state: String,
    /// The part of the last second that the context used of the GPUs: more than 1 if it used several.
    pub share: f64,
    /// The resources that the context has used, on all of the GPUs.
    pub used: Used,
    /// Submissions that could run now and are held back.
    #[serde(default)]
    pub queued: u32,
    /// `yes` if `restart` can give it another worker, or the reason why not; empty if that is not known yet.
    #[serde(default)]
    pub movable: String,
    /// The context would now survive the death of its worker.
    #[serde(default)]
    pub recoverable: bool,
    /// The GPUs that it is on, as in [`GpuStatus::uuid`].
    #[serde(default)]
    pub gpus: Vec<String>,
}

/// The resources that a VM or a context has used since it began, and the memory that it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Used {
    /// Seconds for which the GPU computed.
    pub gpu_seconds: f64,
    /// Seconds for which the GPU's copy queues worked.
    pub copy_seconds: f64,
    /// Seconds in which the VM or context had work and none of it was on the GPU.
    pub waiting_seconds: f64,
    /// Processor time of its workers, in seconds.
    pub cpu_seconds: f64,
    /// Submissions that are complete.
    pub submissions: u64,
    /// Bytes of the GPU's memory.
    pub device_memory: u64,
    /// Bytes of the host's memory.
    pub host_memory: u64,
}

/// Contexts that were ended, by the reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KillCounts {
    /// Contexts that an operator ended.
    pub operator: u64,
    /// Contexts with a submission that ran for too long.
    pub hung: u64,
    /// Contexts that were lost in another way.
    pub lost: u64,
    /// Contexts that were refused, as there were too many.
    pub refused: u64,
}

/// Restarts of contexts that operators asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RestartCounts {
    /// Contexts that were given another worker.
    pub done: u64,
    /// Contexts that stayed with their worker, or ended.
    pub failed: u64,
    /// Seconds for which the last restarted context was paused, if one was restarted.
    pub last_pause_seconds: Option<f64>,
}

impl KillCounts {
    /// Returns the number of all ended contexts.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.operator + self.hung + self.lost + self.refused
    }
}
