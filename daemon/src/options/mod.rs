//! The options of one VM: on the command line of a daemon of one VM, in the table of a VM in the file of several, and on the way from the broker to
//! the VM's device process. Each is defined once, with its help and its spelling.
//!
//! `quotas` bounds the memory and objects of a guest, `hangs` the time of its submissions, `confinement` is the sandbox of the processes, and
//! `values` has the spelling of values. Defaults that depend on the VM's GPUs are in the crate `config`.

mod confinement;
mod hangs;
mod quotas;
#[cfg(test)]
mod tests;
mod values;

use crate::sandbox::GroupLimits;
use clap::{Args, Command, FromArgMatches, ValueEnum};
use config::{CHECKPOINT_AFTER, GPUS_MAX, MemoryBackEnd, Protection, Queues, Robustness, time};
pub use confinement::Confinement;
pub use hangs::Hangs;
use log::LevelFilter;
use outside::Access;
pub use quotas::Quotas;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;
pub use values::{Group, Memory, PATH_BYTES, SocketMode, group, level_name, log_level, words};
use values::{memory, milliseconds, socket_mode, window_size};
use waiting::Heuristic;

/// Options of a VM, in the order of their headings in the help. Those that are hidden are for tests, and no keys of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, clap::Args)]
pub struct VmOptions {
    /// Listen on this Unix socket
    #[arg(long, help_heading = "Socket", value_name = "PATH")]
    pub socket_path: Option<PathBuf>,
    /// Permissions of the socket at --socket-path, in octal as for chmod
    ///
    /// [default: 0600, which admits the daemon's user only; 0660 with --socket-group]
    #[arg(long, help_heading = "Socket", value_name = "MODE", value_parser = socket_mode)]
    pub socket_mode: Option<SocketMode>,
    /// Group of the socket at --socket-path, by name or number
    #[arg(long, help_heading = "Socket", value_name = "GROUP", value_parser = group)]
    pub socket_group: Option<Group>,
    /// GPU to use: a UUID, a PCI address or a unique part of a name
    ///
    /// Repeat the option to give the guest several GPUs (up to 8) [default: the first usable one, real GPUs before software drivers]
    #[arg(long, help_heading = "GPU", value_name = "GPU")]
    pub gpu: Vec<String>,
    /// GPU that the guest does not see, and to which its programs can be moved
    ///
    /// Programs are moved while they run (docs/restart.md). The GPU has to be of the model of one that the guest sees. Repeat the option for several
    #[arg(long, help_heading = "GPU", value_name = "GPU")]
    pub spare_gpu: Vec<String>,
    /// Offer the guest nothing that would keep its programs from another worker or GPU
    ///
    /// For `restart`, `move`, `drain` and `swap-out`. Guests map memory files only, have a queue less of each family with several, and no device addresses that change with the worker (docs/restart.md)
    #[arg(long, help_heading = "GPU")]
    pub movable: bool,
    /// Queues offered to the guest: `compute`, `nominal` or `all`
    ///
    /// `compute` offers compute and copies. `nominal` also claims graphics, for programs that insist on
    /// a graphics queue to compute on (ncnn's tools, taichi, wgpu), but offers nothing to draw upon, and fails graphics commands. `all` allows
    /// drawing, which exposes more of the driver to attacks
    #[arg(long, help_heading = "GPU", value_name = "KIND", default_value = "nominal", value_parser = words::<Queues>(), hide_possible_values = true)]
    pub queues: Queues,
    /// Kind of memory that guests can map
    #[arg(long, help_heading = "GPU", value_name = "BACKEND", default_value = "auto", value_parser = memory())]
    pub memory: Memory,
    /// Number of scanouts, which are always disconnected; guest kernels older than 6.4 need one
    #[arg(long, help_heading = "GPU", value_name = "0|1", default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=1))]
    pub scanouts: u32,
    /// Size of the guest's window onto GPU memory, a power of two; with KiB, MiB or GiB
    ///
    /// [default: 8GiB, and where guests can map the GPU's own memory as much more as --device-memory needs, at most 256GiB]
    #[arg(long, help_heading = "Speed", value_name = "SIZE", value_parser = window_size)]
    pub window_size: Option<u64>,
    /// Let guests map the GPU's own memory where its driver cannot export it
    ///
    /// `auto` does so if --window-size is larger than --device-memory, unless programs shall change their worker (--movable, --swap-after, --swap-every, --restart-every, --spare-gpu), which they cannot with such memory [default: auto; never for VMs of a file with gpu-memory]
    #[arg(long, help_heading = "Speed", value_name = "WHEN", value_parser = words::<MapDeviceMemory>())]
    pub map_device_memory: Option<MapDeviceMemory>,
    /// Folder for data that must survive a restart of the daemon
    ///
    /// The folder holds the key that keeps guests' pipeline caches valid. Each VM needs a folder of its own, which the daemon makes if it does not exist [default: $STATE_DIRECTORY, which systemd sets, or none]
    #[arg(long, help_heading = "Speed", value_name = "PATH")]
    pub state_dir: Option<PathBuf>,
    /// The bounds on the time of submissions.
    #[command(flatten)]
    pub hangs: Hangs,
    /// Longest time the GPU's driver may take to start
    ///
    /// A host that is slow or busy may need more. The daemon does not start without an answer of the driver. A new worker of a program that waits for it, as after a swap-out, has as long and a minute more
    #[arg(long, help_heading = "Time limits", value_name = "TIME", default_value = "2min", value_parser = time)]
    pub driver_timeout: Duration,
    /// Longest time the frontend may take to answer a map or unmap request
    ///
    /// After that its session is ended. The time does not run while the guest is paused
    #[arg(long, help_heading = "Time limits", value_name = "TIME", default_value = "30s", value_parser = time)]
    pub frontend_timeout: Duration,
    /// Time after which a program that does nothing with the GPU is swapped out
    ///
    /// Its worker process ends, and with it the driver and what it holds of the GPU. It goes on when it has something to do (docs/swap.md) [default: never]
    #[arg(long, help_heading = "Time limits", value_name = "TIME", value_parser = time)]
    pub swap_after: Option<Duration>,
    /// The memory and objects that the guest may take.
    #[command(flatten)]
    pub quotas: Quotas,
    /// The confinement of workers.
    #[command(flatten)]
    pub confinement: Confinement,
    /// Clear memory before a guest program gets it
    #[arg(long, help_heading = "Sandbox and protection", value_name = "SWITCH", default_value = "on", value_parser = words::<Switch>())]
    pub zero_memory: Switch,
    /// Clear the workgroup memory of shaders before they start
    #[arg(long, help_heading = "Sandbox and protection", value_name = "SWITCH", default_value = "on", value_parser = words::<Switch>())]
    pub zero_workgroup_memory: Switch,
    /// Keep the buffer accesses of shaders within bounds
    ///
    /// `guest` leaves the choice to guest programs, `auto` does so on real GPUs only
    #[arg(long, help_heading = "Sandbox and protection", value_name = "POLICY", default_value = "auto", value_parser = words::<Robustness>())]
    pub robustness: Robustness,
    /// Least severe level that is logged
    #[arg(long, help_heading = "Information", value_name = "LEVEL", default_value = "info", value_parser = log_level())]
    pub log_level: LevelFilter,
    /// Turn heuristics of waiting off, to measure what each gains (docs/performance.md)
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_enum, hide = true)]
    pub waiting_without: Vec<Heuristic>,
    /// Hand each context over to another worker again and again, after this time on average
    #[arg(long, value_name = "MILLISECONDS", hide = true, value_parser = milliseconds)]
    pub restart_every: Option<Duration>,
    /// Swap each context out again and again, after this time on average
    #[arg(long, value_name = "MILLISECONDS", hide = true, conflicts_with = "restart_every", value_parser = milliseconds)]
    pub swap_every: Option<Duration>,
    /// Write checkpoints of contexts whose workers have executed nothing for this time; none for 0
    #[arg(long, value_name = "MILLISECONDS", hide = true)]
    pub checkpoint_after: Option<u32>,
}

/// The choice whether guests map device memory that is not exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
pub enum MapDeviceMemory {
    /// Guests map the memory if the window holds it and nothing else speaks against it.
    Auto,
    /// Guests do not map the memory.
    Never,
}

/// A protection on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
pub enum Switch {
    /// The protection is on.
    On,
    /// The protection is off.
    Off,
}

/// The first message of a broker to a device process that it has started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Start {
    /// The options of the VM.
    pub options: VmOptions,
    /// Contexts hold no memory of the GPUs before the broker tells the amount that they may hold.
    pub awaits_room: bool,
    /// The control group that the broker made for the VM, if it makes groups.
    pub group: Option<VmGroup>,
    /// Another device process serves the VM's frontend, and this one is its successor.
    pub follows: bool,
}

/// The control group of one VM of several.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VmGroup {
    /// The group's path.
    pub path: PathBuf,
    /// The limits on workers if the VM's options set none: the VM's part of the amounts for all VMs.
    pub part: GroupLimits,
}

impl Default for VmOptions {
    fn default() -> Self {
        Self::of_words(std::iter::empty::<OsString>()).expect("no option is needed")
    }
}

impl VmOptions {
    /// Returns the parser of these options.
    #[must_use]
    pub fn command() -> Command {
        Self::augment_args(Command::new("vhost-user-vulkan").no_binary_name(true))
    }

    /// Reads options in the form of a command line.
    ///
    /// # Errors
    ///
    /// An option does not exist, or has a value that is not allowed.
    pub fn of_words(
        words: impl IntoIterator<Item = impl Into<OsString> + Clone>,
    ) -> Result<Self, clap::Error> {
        Self::from_arg_matches(&Self::command().try_get_matches_from(words)?)
    }

    /// Checks that there are not too many GPUs, and that no option contradicts `--movable`: guests get no memory that binds their programs to a worker.
    ///
    /// # Errors
    ///
    /// The options that cannot stand together.
    pub fn check(&self) -> Result<(), String> {
        let gpus = self.gpu.len().max(1) + self.spare_gpu.len();
        if gpus > GPUS_MAX {
            return Err(format!("{gpus} GPUs for one VM are more than {GPUS_MAX}: name fewer of them"));
        }
        let binds = [
            (self.memory.0 == Some(MemoryBackEnd::DmaBuf), "memory=dma-buf"),
            (self.map_device_memory == Some(MapDeviceMemory::Auto), "map-device-memory=auto"),
        ];
        match binds.into_iter().find(|(binds, _)| *binds && self.movable) {
            None => Ok(()),
            Some((_, option)) => Err(format!(
                "--movable cannot stand beside --{option}, with which programs cannot get another worker: leave one of them out"
            )),
        }
    }

    /// Returns the chosen protections.
    #[must_use]
    pub fn protection(&self) -> Protection {
        Protection {
            zero_memory: self.zero_memory == Switch::On,
            zero_workgroup_memory: self.zero_workgroup_memory == Switch::On,
            robustness: self.robustness,
            movable: self.movable,
        }
    }

    /// Returns whether guests shall map the GPU's own memory. They shall not if programs are to change their worker, which mapping prevents.
    #[must_use]
    pub fn maps_device_memory(&self) -> bool {
        let changes_workers = self.movable
            || !self.spare_gpu.is_empty()
            || self.swap_after.is_some()
            || self.swap_every.is_some()
            || self.restart_every.is_some();
        self.map_device_memory != Some(MapDeviceMemory::Never) && !changes_workers
    }

    /// Returns how long a worker executes nothing before it is asked for a checkpoint; none if it is never asked.
    #[must_use]
    pub fn checkpoint_after(&self) -> Option<Duration> {
        let usual = CHECKPOINT_AFTER;
        let time = self.checkpoint_after.map_or(usual, |ms| Duration::from_millis(ms.into()));
        Some(time).filter(|time| !time.is_zero())
    }

    /// Returns the permissions and the group of the socket, which say who may connect at its path.
    #[must_use]
    pub fn socket_access(&self) -> Access {
        let usual = Access::of_group(self.socket_group.map(|Group(number)| number));
        let mode = self.socket_mode.map_or(usual.mode, |SocketMode(mode)| mode);
        Access { mode, ..usual }
    }
}
