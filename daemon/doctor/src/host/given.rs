//! The facts that only the daemon's own parts can tell: they decide whether it can serve.

use std::path::PathBuf;

/// The facts.
#[derive(Clone, Debug, PartialEq)]
pub struct Given {
    /// The sandbox of workers.
    pub sandbox: Sandbox,
    /// The latest version of Landlock that both the kernel has and the daemon uses; 0 if there is none.
    pub landlock: u32,
    /// The GPUs, or why the probe could not tell.
    pub gpus: Result<Vec<Gpu>, String>,
    /// The limit of open files, and the number that it leaves a guest.
    pub descriptors: Descriptors,
    /// The file of several VMs, if there is one.
    pub configuration: Option<Configuration>,
    /// The control socket that exists, and how many VMs the broker there has, or why it does not answer.
    pub broker: Option<(PathBuf, Result<usize, String>)>,
}

/// The sandbox, as the launcher has tried it out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sandbox {
    /// The launcher has tried it out: the missing parts, and whether they are a reason not to start.
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
    /// Resources that the limit leaves it.
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
    /// The reason why the GPUs that it names cannot be had, if so.
    pub gpus: Result<(), String>,
    /// The window of its guest; unknown where the GPUs are.
    pub window: Option<Window>,
}

/// The window of a guest onto memory, as the daemon will decide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// Guests can map the GPUs' own memory.
    pub maps_device_memory: bool,
    /// The cost of a window that does not hold the GPUs' own memory, if so, and the setting to change.
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
