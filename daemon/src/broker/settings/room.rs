//! The keys about memory of GPUs of which VMs are promised more than exists.

use super::VmSettings;
use super::options::shown;
use super::problem::Problem;
use crate::options::VmOptions;
use config::{Amount, time};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use toml::{Table, Value};

/// The memory of each GPU that VMs may hold together, and the time for which they wait for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomSettings {
    /// The key `gpu-memory`: the memory of each GPU that VMs may hold together. Default: none, and no VM waits for another.
    pub gpu_memory: Option<Amount>,
    /// The key `memory-wait`: the time for which a VM waits for memory. Default 2 min, at most 10 min.
    pub memory_wait: Duration,
}

/// The most of `memory-wait`: workers wait for an answer a little longer.
const WAIT_MAX: Duration = Duration::from_secs(600);

impl Default for RoomSettings {
    fn default() -> Self {
        Self { gpu_memory: None, memory_wait: Duration::from_secs(120) }
    }
}

impl RoomSettings {
    /// Reads the keys of a file.
    ///
    /// # Errors
    ///
    /// A value is not allowed; the error says why.
    pub(super) fn of_file(file: &Table) -> Result<Self, Problem> {
        let wrong = |key: &str, what: String| Problem::of_key("", key, what);
        let default = Self::default();
        let gpu_memory = file.get("gpu-memory").map(|value| amount(value, str::parse)).transpose();
        let memory_wait = file.get("memory-wait").map_or(Ok(default.memory_wait), wait);
        Ok(Self {
            gpu_memory: gpu_memory.map_err(|what| wrong("gpu-memory", what))?,
            memory_wait: memory_wait.map_err(|what| wrong("memory-wait", what))?,
        })
    }

    /// Returns whether programs of a VM may map none of the GPU's own memory, because programs that do cannot be swapped out. This holds with
    /// `gpu-memory`, unless the VM's options say otherwise.
    pub(super) fn forbids_maps(&self, options: &VmOptions) -> bool {
        self.gpu_memory.is_some() && options.map_device_memory.is_none()
    }

    /// Checks that each VM can have the memory that is reserved for it. VMs may be on different GPUs, so each VM is checked alone. The sum for a GPU
    /// is known only when its VMs use it.
    pub(super) fn check(&self, vms: &[VmSettings]) -> Vec<Problem> {
        let bytes = |amount: Option<Amount>| match amount {
            Some(Amount::Bytes(bytes)) => bytes,
            _ => u64::MAX,
        };
        let nothing = matches!(self.gpu_memory, Some(Amount::Bytes(0) | Amount::Part(0)));
        let nothing = nothing.then(|| {
            Problem::of_key(
                "",
                "gpu-memory",
                "no VM could hold GPU memory: write more than 0, or leave the key out",
            )
        });
        let wrong = vms.iter().filter(|vm| vm.reserved_memory > 0).filter_map(|vm| {
            let what = match vm.reserved_memory {
                _ if self.gpu_memory.is_none() => {
                    "has no effect without gpu-memory: write gpu-memory before the tables"
                }
                reserved if reserved > bytes(self.gpu_memory) => "is more than gpu-memory",
                reserved if reserved > bytes(vm.options.quotas.device_memory) => {
                    "is more than device-memory of the VM"
                }
                _ => return None,
            };
            Some(Problem::of_vm(&vm.name, "reserved-memory", what))
        });
        nothing.into_iter().chain(wrong).collect()
    }
}

/// Reads an amount of memory. `read` reads an amount that is given as text.
///
/// # Errors
///
/// The value is not an amount; the error says why.
pub(super) fn amount(
    value: &Value,
    read: impl FnOnce(&str) -> Result<Amount, String>,
) -> Result<Amount, String> {
    match value {
        Value::Integer(bytes) if *bytes >= 0 => Ok(Amount::Bytes(bytes.unsigned_abs())),
        Value::String(text) => read(text).map_err(|why| format!("\"{text}\" is no size: {why}")),
        other => Err(format!(
            "{} is no size: write a whole number of bytes, or a string with KiB, MiB or GiB",
            shown(other)
        )),
    }
}

fn wait(value: &Value) -> Result<Duration, String> {
    let Value::String(text) = value else { return Err(format!("{} is not a string", shown(value))) };
    let wait = time(text).map_err(|why| format!("\"{text}\" is not allowed: {why}"))?;
    if wait <= WAIT_MAX { Ok(wait) } else { Err(format!("\"{text}\" is more than 10min")) }
}
