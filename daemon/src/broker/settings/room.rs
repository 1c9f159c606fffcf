//! The keys about memory of GPUs where VMs are promised more of it than there is.

use super::options::shown;
use super::problem::Problem;
use config::{Amount, time};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use toml::{Table, Value};

/// Memory of each GPU that VMs may hold together, and for how long they wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomSettings {
    /// The key `gpu-memory`: what VMs may hold of each GPU together. Default: none, and no VM waits for another.
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
    /// What is wrong with one.
    pub(super) fn of_file(file: &Table) -> Result<Self, Problem> {
        let wrong = |key: &str, what: String| Problem::of_key("", key, what);
        let default = Self::default();
        let gpu_memory = file.get("gpu-memory").map(amount).transpose();
        let memory_wait = file.get("memory-wait").map_or(Ok(default.memory_wait), wait);
        Ok(Self {
            gpu_memory: gpu_memory.map_err(|what| wrong("gpu-memory", what))?,
            memory_wait: memory_wait.map_err(|what| wrong("memory-wait", what))?,
        })
    }
}

/// Reads an amount of memory.
///
/// # Errors
///
/// The value is none, and why.
pub(super) fn amount(value: &Value) -> Result<Amount, String> {
    match value {
        Value::Integer(bytes) if *bytes >= 0 => Ok(Amount::Bytes(bytes.unsigned_abs())),
        Value::String(text) => text.parse().map_err(|why| format!("\"{text}\" is no size: {why}")),
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
