//! The options of a device process, which serves one VM. Most of them are keys of the VMs' file as well, by the same names.

use super::confinement::Confinement;
use super::hangs::Hangs;
use super::quotas::Quotas;
use super::values::{
    ControlSocket, Group, Memory, SocketMode, control_socket, group, log_level, memory, socket_mode,
    window_size, words,
};
use clap::{Args, Command, ValueEnum};
use config::{GpuInfo, Protection, Queues, Robustness, time};
use daemon::broker::MetricsAddress;
use daemon::sandbox::CgroupMode;
use daemon::serve::{self, NoGpu, Selected};
use log::LevelFilter;
use outside::Access;
use std::collections::BTreeSet;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::time::Duration;
use waiting::Heuristic;

/// Options of the device process, in the order of their headings.
#[derive(Debug, clap::Args)]
pub(crate) struct Serve {
    /// Listen on this Unix socket
    #[arg(long, value_name = "PATH", conflicts_with = "fd")]
    pub socket_path: Option<PathBuf>,
    /// Permissions of the socket at --socket-path, in octal as for chmod
    ///
    /// [default: 0600, which admits the daemon's user only; 0660 with --socket-group]
    #[arg(long, value_name = "MODE", value_parser = socket_mode)]
    pub socket_mode: Option<SocketMode>,
    /// Group of the socket at --socket-path, by name or number
    #[arg(long, value_name = "GROUP", value_parser = group)]
    pub socket_group: Option<Group>,
    /// Use this inherited socket, which may be listening or connected
    ///
    /// [default without --socket-path: the socket that systemd passes (socket activation)]
    #[arg(long, value_name = "FDNUM")]
    pub fd: Option<RawFd>,
    /// Listen there for `status`, `trace`, `kill` and the other subcommands of operators
    ///
    /// `auto` is the path of the VM's socket with `.control` behind it, or nowhere if no socket can be made there; `none` is nowhere, and nothing measures the GPU's time. Only the daemon's user may use the control socket, unless --control-socket-group is given. If the option is given several times, the last one counts
    #[arg(long, value_name = "PATH|auto|none", default_value = "auto", value_parser = control_socket, overrides_with = "control_socket")]
    pub control_socket: ControlSocket,
    /// Group of operators, by name or number, whose members may use the control socket
    ///
    /// They may do all that root may do there: see all VMs, end, restart, move and trace programs (docs/sharing.md). The socket then has mode 0660 [default: the daemon's user only]
    #[arg(long, value_name = "GROUP", value_parser = group)]
    pub control_socket_group: Option<Group>,
    /// Serve metrics for Prometheus to this machine
    ///
    /// At 127.0.0.1:PORT, `[::1]:PORT` or a Unix socket's path [default: nowhere]
    #[arg(long, value_name = "ADDRESS", value_parser = str::parse::<MetricsAddress>)]
    pub metrics: Option<MetricsAddress>,
    /// Exit when the frontend disconnects
    #[arg(long)]
    pub exit_on_disconnect: bool,
    /// GPU to use: a UUID, a PCI address or a unique part of a name
    ///
    /// Repeat the option to give the guest several GPUs (up to 8) [default: the first usable one, real GPUs before software drivers]
    #[arg(long, value_name = "GPU")]
    pub gpu: Vec<String>,
    /// GPU that the guest does not see, and to which its programs can be moved
    ///
    /// Programs are moved while they run (docs/restart.md). The GPU has to be of the model of one that the guest sees. Repeat the option for several
    #[arg(long, value_name = "GPU")]
    pub spare_gpu: Vec<String>,
    /// Offer the guest nothing that would keep its programs from another worker or GPU
    ///
    /// For `restart`, `move`, `drain` and `swap-out`. Guests map memory files only, have a queue less of each family with several, and no device addresses that change with the worker (docs/restart.md)
    #[arg(long)]
    pub movable: bool,
    /// Queues offered to the guest: `compute`, `nominal` or `all`
    ///
    /// `compute` offers compute and copies. `nominal` also claims graphics, for programs that insist on
    /// a graphics queue to compute on (ncnn's tools, taichi, wgpu), but offers nothing to draw upon, and fails graphics commands. `all` allows
    /// drawing, which exposes more of the driver to attacks
    #[arg(long, value_name = "KIND", default_value = "nominal", value_parser = words::<Queues>(), hide_possible_values = true)]
    pub queues: Queues,
    /// Kind of memory that guests can map
    #[arg(long, value_name = "BACKEND", default_value = "auto", value_parser = memory())]
    pub memory: Memory,
    /// Number of scanouts, which are always disconnected; guest kernels older than 6.4 need one
    #[arg(long, value_name = "0|1", default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=1))]
    pub scanouts: u32,
    /// Size of the guest's window onto GPU memory, a power of two; with KiB, MiB or GiB
    ///
    /// [default: 8GiB, and where guests can map the GPU's own memory as much more as --device-memory needs, at most 256GiB]
    #[arg(long, value_name = "SIZE", value_parser = window_size)]
    pub window_size: Option<u64>,
    /// Let guests map the GPU's own memory where its driver cannot export it
    ///
    /// `auto` does so if --window-size is larger than --device-memory, unless programs shall change their worker (--movable, --swap-after, --swap-every, --restart-every, --spare-gpu), which they cannot with such memory
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub map_device_memory: MapDeviceMemory,
    /// Folder for data that must survive a restart of the daemon
    ///
    /// The folder holds the key that keeps guests' pipeline caches valid. Each VM needs a folder of its own, which the daemon makes if it does not exist [default: $STATE_DIRECTORY, which systemd sets, or none]
    #[arg(long, value_name = "PATH")]
    pub state_dir: Option<PathBuf>,
    #[command(flatten)]
    pub hangs: Hangs,
    /// Longest time the frontend may take to answer a map or unmap request
    ///
    /// After that its session is ended. The time does not run while the guest is paused
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time)]
    pub frontend_timeout: Duration,
    /// Time after which a program that does nothing with the GPU is swapped out
    ///
    /// Its worker process ends, and with it the driver and what it holds of the GPU. It goes on when it has something to do (docs/swap.md) [default: never]
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub swap_after: Option<Duration>,
    #[command(flatten)]
    pub quotas: Quotas,
    #[command(flatten)]
    pub confinement: Confinement,
    /// Create control groups for the workers below the daemon's own
    ///
    /// `auto` does so if the system has delegated that group (Delegate=yes in a systemd unit)
    #[arg(long, value_name = "WHEN", default_value = "auto", value_parser = words::<CgroupMode>())]
    pub cgroup: CgroupMode,
    /// Clear memory before a guest program gets it
    #[arg(long, value_name = "SWITCH", default_value = "on")]
    pub zero_memory: Switch,
    /// Clear the workgroup memory of shaders before they start
    #[arg(long, value_name = "SWITCH", default_value = "on")]
    pub zero_workgroup_memory: Switch,
    /// Keep the buffer accesses of shaders within bounds
    ///
    /// `guest` leaves the choice to guest programs, `auto` does so on real GPUs only
    #[arg(long, value_name = "POLICY", default_value = "auto", value_parser = words::<Robustness>())]
    pub robustness: Robustness,
    /// List the GPUs and exit
    ///
    /// With --log-level debug it also shows what their drivers print
    #[arg(long)]
    pub list_gpus: bool,
    /// Print the capabilities of this back end as JSON and exit
    ///
    /// As QEMU's conventions define them
    #[arg(long)]
    pub print_capabilities: bool,
    /// Print the system calls that each kind of process may make, and exit
    #[arg(long)]
    pub print_seccomp: bool,
    /// Least severe level that is logged
    #[arg(long, value_name = "LEVEL", default_value = "info", value_parser = log_level())]
    pub log_level: LevelFilter,
    /// Name of the VM in the log
    ///
    /// The name stands in messages about the VM's workers, and as the field VM of the journal's records
    #[arg(long, value_name = "NAME")]
    pub vm_name: Option<String>,
    /// Talk to the broker that started this process, over standard input
    #[arg(long, hide = true)]
    pub under_broker: bool,
    /// Hold no memory of the GPUs before the broker says how much
    #[arg(long, hide = true, requires = "under_broker")]
    pub await_room: bool,
    /// The control group that the broker made for this VM
    #[arg(long, value_name = "PATH", hide = true)]
    pub vm_cgroup: Option<PathBuf>,
    /// The program to start workers from
    #[arg(long, value_name = "PATH", hide = true)]
    pub exe: Option<PathBuf>,
    /// Turn heuristics of waiting off, to measure what each gains (docs/performance.md)
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_enum, hide = true)]
    pub waiting_without: Vec<Heuristic>,
    /// Hand each context over to another worker again and again, after this time on average
    #[arg(long, value_name = "MILLISECONDS", hide = true, value_parser = clap::value_parser!(u32).range(1..))]
    pub restart_every: Option<u32>,
    /// Swap each context out again and again, after this time on average
    #[arg(
        long, value_name = "MILLISECONDS", hide = true, conflicts_with = "restart_every",
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub swap_every: Option<u32>,
    /// Write checkpoints of contexts whose workers have executed nothing for this time; none for 0
    #[arg(long, value_name = "MILLISECONDS", hide = true)]
    pub checkpoint_after: Option<u32>,
}

/// The choice whether guests map device memory that is not exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MapDeviceMemory {
    Auto,
    Never,
}

/// A protection on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    On,
    Off,
}

impl Serve {
    /// The command line of one VM.
    pub(crate) fn command() -> Command {
        Self::augment_args(Command::new("vhost-user-vulkan").no_binary_name(false))
    }

    /// The ids of its options but the log level, which may stand beside a file.
    pub(super) fn command_ids() -> BTreeSet<String> {
        let command = Self::command();
        let ids = command.get_arguments().map(|argument| argument.get_id().to_string());
        ids.filter(|id| id != "log_level").collect()
    }

    /// The protections chosen.
    pub(crate) fn protection(&self) -> Protection {
        Protection {
            zero_memory: self.zero_memory == Switch::On,
            zero_workgroup_memory: self.zero_workgroup_memory == Switch::On,
            robustness: self.robustness,
            movable: self.movable,
        }
    }

    /// Chooses the GPUs of the VM among all.
    ///
    /// # Errors
    ///
    /// A selection fits no GPU, or one that cannot serve the VM.
    pub(crate) fn select(&self, gpus: &[GpuInfo]) -> Result<Selected, NoGpu> {
        serve::select(gpus, &self.gpu, &self.spare_gpu, self.memory.0, self.movable)
    }

    /// Returns whether guests shall map the GPU's own memory: not if programs shall change their worker, which they cannot once they have.
    pub(crate) fn maps_device_memory(&self) -> bool {
        let changes_workers = self.movable
            || !self.spare_gpu.is_empty()
            || self.swap_after.is_some()
            || self.swap_every.is_some()
            || self.restart_every.is_some();
        self.map_device_memory == MapDeviceMemory::Auto && !changes_workers
    }

    /// Returns the time for which a worker executes nothing before it writes a checkpoint; none if there are to be no checkpoints.
    pub(crate) fn checkpoint_after(&self) -> Option<Duration> {
        let usual = serve::CHECKPOINT_AFTER;
        let time = self.checkpoint_after.map_or(usual, |ms| Duration::from_millis(ms.into()));
        Some(time).filter(|time| !time.is_zero())
    }

    /// Returns who may connect at the socket's path, as the permissions and the group of the socket.
    pub(crate) fn socket_access(&self) -> Access {
        let usual = Access::of_group(self.socket_group.map(|Group(number)| number));
        let mode = self.socket_mode.map_or(usual.mode, |SocketMode(mode)| mode);
        Access { mode, ..usual }
    }

    /// Returns who may connect at the control socket.
    pub(crate) fn operators_access(&self) -> Access {
        Access::of_group(self.control_socket_group.map(|Group(number)| number))
    }
}
