//! The facts that only the daemon's own parts know: they decide whether the daemon can serve.

use std::path::PathBuf;

/// The facts.
#[derive(Clone, Debug, PartialEq)]
pub struct Given {
    /// The sandbox of workers.
    pub sandbox: Sandbox,
    /// The latest version of Landlock that both the kernel has and the daemon uses; 0 without Landlock.
    pub landlock: u32,
    /// The GPUs, or the reason why the probe could not list them.
    pub gpus: Result<Vec<Gpu>, String>,
    /// The limit of open files, and the number of resources that it leaves for a guest.
    pub descriptors: Descriptors,
    /// The file of several VMs, if there is one.
    pub configuration: Option<Configuration>,
    /// The existing control socket, and the number of VMs of the broker there, or the reason why the broker does not answer.
    pub broker: Option<(PathBuf, Result<usize, String>)>,
}

/// The sandbox, as the launcher has tried it out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sandbox {
    /// The launcher has tried the sandbox out: the missing parts, and whether the daemon does not start without them.
    Tried {
        /// The missing parts, each with the system's reason.
        lacks: Vec<String>,
        /// `--sandbox=strict` is in force.
        strict: bool,
    },
    /// The launcher does not start.
    NoLauncher(String),
}

/// A GPU, as the probe has found it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// The names of the GPU and its driver.
    pub name: String,
    /// The GPU is a processor.
    pub software: bool,
    /// The way in which guests map memory, or the reason why the GPU cannot be used.
    pub usable: Result<String, String>,
}

/// The limit of open files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptors {
    /// The hard limit.
    pub limit: u64,
    /// Resources that a guest may have by default.
    pub wanted: usize,
    /// Resources that the limit leaves for a guest.
    pub left: usize,
}

/// The file of several VMs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// The path of the file.
    pub path: PathBuf,
    /// The VMs, or the error in the file.
    pub vms: Result<Vec<Vm>, String>,
}

/// A VM of that file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vm {
    /// The name.
    pub name: String,
    /// The socket of its VMM.
    pub socket: Option<PathBuf>,
    /// The folder of its state.
    pub state: Option<PathBuf>,
    /// The reason why the VM cannot have the GPUs that it names, if any.
    pub gpus: Result<(), String>,
    /// The window of its guest; unknown if the GPUs are unknown.
    pub window: Option<Window>,
}

/// The window of a guest onto memory, as the daemon will decide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// Guests can map the GPUs' own memory.
    pub maps_device_memory: bool,
    /// If the window does not hold the GPUs' own memory: the cost, and the setting to change.
    pub small: Option<Small>,
}

/// A window that does not hold the memory that a guest could map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Small {
    /// Both sizes, and the cost.
    pub what: String,
    /// Options with sizes that are enough.
    pub remedy: String,
}
