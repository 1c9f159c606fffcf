//! The command line. An error in it is reported in one line.
//!
//! `quotas` has the options that bound what a guest takes, `hangs` those that bound how long it may take, `values` the spelling of values, `recipe` what VMMs have to be told.

mod doctor;
mod hangs;
mod quotas;
mod recipe;
#[cfg(test)]
mod tests;
mod values;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use config::{Protection, Queues, Robustness};
use daemon::broker::{self, Ambiguous, MetricsAddress};
use daemon::ipc::DriverFamily;
use daemon::sandbox::{self, CgroupMode, SandboxMode, SeccompMode};
use daemon::trace;
pub(crate) use doctor::Doctor;
use hangs::Hangs;
use log::LevelFilter;
use outside::Access;
use quotas::Quotas;
use recipe::Recipe;
use std::collections::BTreeSet;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::time::Duration;
pub(crate) use values::ControlSocket;
use values::{
    Group, Memory, SocketMode, control_socket, group, log_level, memory, socket_mode, time, window_size,
    words,
};
use waiting::Heuristic;

/// A virtio-gpu device for virtual machines over vhost-user, whose 3D capability is Vulkan (Venus).
#[derive(Debug, Parser)]
#[command(name = "vhost-user-vulkan", version, args_conflicts_with_subcommands = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub serve: Serve,
    /// Serve all VMs named in this file and share GPUs between them (docs/sharing.md). The only other option that may be given with it is --log-level
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Check the file given with --config, report what is wrong with it, and exit
    #[arg(long, requires = "config")]
    pub check_config: bool,
    #[command(subcommand)]
    pub role: Option<Role>,
}

/// Options of the device process.
#[derive(Debug, clap::Args)]
pub(crate) struct Serve {
    /// Listen on this Unix socket
    #[arg(long, value_name = "PATH", conflicts_with = "fd")]
    pub socket_path: Option<PathBuf>,
    /// Permissions of the socket at --socket-path, in octal as for chmod [default: 0600, which admits the daemon's user only; 0660 with --socket-group]
    #[arg(long, value_name = "MODE", value_parser = socket_mode)]
    pub socket_mode: Option<SocketMode>,
    /// Group of the socket at --socket-path, by name or number
    #[arg(long, value_name = "GROUP", value_parser = group)]
    pub socket_group: Option<Group>,
    /// Use this inherited socket, which may be listening or connected [default without --socket-path: the socket that systemd passes (socket activation)]
    #[arg(long, value_name = "FDNUM")]
    pub fd: Option<RawFd>,
    /// Listen there for `status`, `trace`, `kill` and the other subcommands of operators, for the daemon's user only. `auto` is the path of the VM's socket with `.control` behind it, or nowhere if no socket can be made there; `none` is nowhere, and nothing measures the GPU's time. The last of several counts
    #[arg(long, value_name = "PATH|auto|none", default_value = "auto", value_parser = control_socket, overrides_with = "control_socket")]
    pub control_socket: ControlSocket,
    /// Serve metrics for Prometheus to this machine, at 127.0.0.1:PORT, `[::1]:PORT` or a Unix socket's path [default: nowhere]
    #[arg(long, value_name = "ADDRESS", value_parser = str::parse::<MetricsAddress>)]
    pub metrics: Option<MetricsAddress>,
    /// GPU to use, given by its UUID, its PCI address or a unique part of its name. Repeat the option to give the guest several GPUs (up to 8) [default: the first usable one, real GPUs before software drivers]
    #[arg(long, value_name = "GPU")]
    pub gpu: Vec<String>,
    /// GPU that the guest does not see, and to which its programs can be moved while they run (docs/restart.md). It has to be of the model of one that the guest sees. Repeat the option for several
    #[arg(long, value_name = "GPU")]
    pub spare_gpu: Vec<String>,
    /// Queue capabilities offered to the guest. `compute` offers compute and copies. `nominal` also claims graphics, for programs that insist on
    /// a graphics queue to compute on (ncnn's tools, taichi, wgpu), but offers nothing to draw upon, and fails graphics commands. `all` allows
    /// drawing, which exposes more of the driver to attacks
    #[arg(long, value_name = "KIND", default_value = "nominal", value_parser = words::<Queues>())]
    pub queues: Queues,
    /// Size of the guest's window onto GPU memory, a power of two; with KiB, MiB or GiB [default: 8GiB, and where guests can map the GPU's own memory as much as holds --device-memory besides, at most 256GiB]
    #[arg(long, value_name = "SIZE", value_parser = window_size)]
    pub window_size: Option<u64>,
    /// Kind of memory that guests can map
    #[arg(long, value_name = "BACKEND", default_value = "auto", value_parser = memory())]
    pub memory: Memory,
    /// Let guests map the GPU's own memory where its driver cannot export it. `auto` does so if --window-size is larger than --device-memory, unless programs shall change their worker (--swap-after, --swap-every, --restart-every, --spare-gpu), which they cannot with such memory
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub map_device_memory: MapDeviceMemory,
    #[command(flatten)]
    pub hangs: Hangs,
    /// Time after which a program that does nothing with the GPU is swapped out: its worker process ends, and with it the driver and what it holds of the GPU. It goes on when it has something to do (docs/swap.md) [default: never]
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub swap_after: Option<Duration>,
    /// Longest time the frontend may take to answer a map or unmap request; after that its session is ended. The time does not run while
    /// the guest is paused
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time)]
    pub frontend_timeout: Duration,
    /// Clear memory before a guest program gets it
    #[arg(long, value_name = "SWITCH", default_value = "on")]
    pub zero_memory: Switch,
    /// Clear the workgroup memory of shaders before they start
    #[arg(long, value_name = "SWITCH", default_value = "on")]
    pub zero_workgroup_memory: Switch,
    /// Keep the buffer accesses of shaders within bounds. `guest` leaves the choice to guest programs, `auto` does so on real GPUs only
    #[arg(long, value_name = "POLICY", default_value = "auto", value_parser = words::<Robustness>())]
    pub robustness: Robustness,
    #[command(flatten)]
    pub quotas: Quotas,
    /// Number of scanouts, which are always disconnected; guest kernels older than 6.4 need one
    #[arg(long, value_name = "0|1", default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=1))]
    pub scanouts: u32,
    /// Folder for data that must survive a restart of the daemon, such as the key that keeps guests' pipeline caches valid. Each VM needs its own. It is made if it does not exist [default: $STATE_DIRECTORY, which systemd sets, or none]
    #[arg(long, value_name = "PATH")]
    pub state_dir: Option<PathBuf>,
    /// Least severe level that is logged
    #[arg(long, value_name = "LEVEL", default_value = "info", value_parser = log_level())]
    pub log_level: LevelFilter,
    /// Exit when the frontend disconnects
    #[arg(long)]
    pub exit_on_disconnect: bool,
    /// List the GPUs and exit
    #[arg(long)]
    pub list_gpus: bool,
    /// Print the capabilities of this back end as JSON, as QEMU's conventions define them, and exit
    #[arg(long)]
    pub print_capabilities: bool,
    #[command(flatten)]
    pub confinement: Confinement,
    /// Create control groups for the workers below the daemon's own. `auto` does so if the system has delegated that group (Delegate=yes in a systemd unit)
    #[arg(long, value_name = "WHEN", default_value = "auto", value_parser = words::<CgroupMode>())]
    pub cgroup: CgroupMode,
    /// Print the system calls that each kind of process may make, and exit
    #[arg(long)]
    pub print_seccomp: bool,
    /// Talk to the broker that started this process, over standard input
    #[arg(long, hide = true)]
    pub under_broker: bool,
    /// The control group that the broker made for this VM
    #[arg(long, value_name = "PATH", hide = true)]
    pub vm_cgroup: Option<PathBuf>,
    /// Name of the VM in the log: in messages about its workers, and as the field VM of the journal's records
    #[arg(long, value_name = "NAME")]
    pub vm_name: Option<String>,
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
}

/// The role of this process, if it is not the device process: an operator's end of the control socket, or a process that the daemon starts
/// for itself.
#[derive(Debug, Subcommand)]
pub(crate) enum Role {
    /// Show the VMs served by a running daemon, their contexts, and what they use
    Status {
        /// Show this VM only, in full: the options that are in force for it, its GPU and driver, and what waits until it is off
        #[arg(value_name = "VM")]
        vm: Option<String>,
        /// Repeat once a second: on a terminal as a view with bars, in which keys sort, unfold and kill contexts; else line by line
        #[arg(long)]
        watch: bool,
        /// Print one line of JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        control: Control,
    },
    /// Change the GPU share of a running VM
    Set {
        /// The VM's name
        vm: String,
        /// weight=1..10000, class=normal|latency|background, ceiling=1%..100%|none
        #[arg(required = true, value_name = "KEY=VALUE")]
        words: Vec<String>,
        #[command(flatten)]
        control: Control,
    },
    /// Kill a context of a VM
    Kill {
        /// The VM and the context, as `status` prints them
        #[arg(value_name = "VM/CONTEXT")]
        context: String,
        #[command(flatten)]
        control: Control,
    },
    /// Give a context of a VM another worker process while its program runs, which notices a pause and nothing else (docs/restart.md)
    Restart {
        /// The VM and the context, as `status` prints them
        #[arg(value_name = "VM/CONTEXT")]
        context: String,
        #[command(flatten)]
        control: Control,
    },
    /// Swap a context of a VM out: it holds nothing of the GPU and no driver until its program has something to do (docs/swap.md)
    SwapOut {
        /// The VM and the context, as `status` prints them
        #[arg(value_name = "VM/CONTEXT")]
        context: String,
        #[command(flatten)]
        control: Control,
    },
    /// Have a context of a VM go on on another GPU of the host while its program runs, which notices a pause and nothing else (docs/restart.md)
    Move {
        /// The VM and the context, as `status` prints them
        #[arg(value_name = "VM/CONTEXT")]
        context: String,
        /// The GPU to move to, given by its UUID, its PCI address or a unique part of its name: a GPU or spare GPU of the VM
        #[arg(long, value_name = "GPU")]
        gpu: String,
        /// The GPU to leave, if the context is on several
        #[arg(long, value_name = "GPU")]
        from: Option<String>,
        #[command(flatten)]
        control: Control,
    },
    /// Empty a GPU: programs begin on other GPUs of their VMs from now on, and those that are on it are moved while they run. It stays drained until `undrain`, or until the broker ends (docs/restart.md)
    Drain {
        /// The GPU, given by its UUID, its PCI address or a unique part of its name
        #[arg(value_name = "GPU")]
        gpu: String,
        #[command(flatten)]
        control: Control,
    },
    /// Let programs begin again on a GPU that was drained
    Undrain {
        /// The GPU, given by its UUID, its PCI address or a unique part of its name
        #[arg(value_name = "GPU")]
        gpu: String,
        #[command(flatten)]
        control: Control,
    },
    /// Record for each submission of a VM what it waited for and when it ran, and write a trace that Perfetto (ui.perfetto.dev) and
    /// chrome://tracing open (docs/trace.md).
    Trace {
        /// The VM's name
        vm: String,
        /// Length of the trace, from 1 to 300. Ctrl-C ends it early and keeps what was recorded
        #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=300))]
        seconds: u32,
        /// File to write [default: VM-trace.json]
        #[arg(long, value_name = "FILE")]
        output: Option<PathBuf>,
        /// Name the other VMs on the GPU; otherwise each is "another VM", so that the trace can be given to the VM's user
        #[arg(long)]
        names: bool,
        /// Number of events to keep; the trace ends early when there are more
        #[arg(long, value_name = "NUMBER", default_value_t = trace::EVENTS_MAX)]
        max_events: usize,
        #[command(flatten)]
        control: Control,
    },
    /// Check whether this host can serve VMs, or whether this VM can use its GPU, and say what helps if not
    Doctor(Doctor),
    /// Have a running broker read its file again: VMs are added, removed and changed, and the others notice nothing. What would end the GPU of a VM in use waits until the VM is off
    Reload {
        /// Do at once what ends the GPUs of VMs in use, such as another --device-memory, and take a file without any VM
        #[arg(long, alias = "remove")]
        now: bool,
        /// Print what would happen, and change nothing
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        control: Control,
    },
    /// Print what has to be pasted to give a VM its GPU
    #[command(subcommand)]
    Recipe(Recipe),
    /// Serve one context
    #[command(hide = true)]
    Worker {
        #[command(flatten)]
        child: Child,
    },
    /// Start workers and probes
    #[command(hide = true)]
    Launcher {
        #[command(flatten)]
        child: Child,
        #[arg(long)]
        exe: Option<PathBuf>,
        /// The control group of the processes that it starts
        #[arg(long)]
        cgroup: Option<PathBuf>,
        /// The VM's name
        #[arg(long)]
        vm_name: Option<String>,
        /// The bytes of private memory that a process may have that it starts
        #[arg(long)]
        max_worker_data: Option<u64>,
    },
    /// Look for GPUs
    #[command(hide = true)]
    Probe {
        #[command(flatten)]
        child: Child,
    },
}

/// The options that tell which daemon is meant.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Control {
    /// Path of the daemon's control socket [default: vhost-user-vulkan.sock in $XDG_RUNTIME_DIR, or in /run for root; if that does not exist, /run/vhost-user-vulkan/control.sock, which is the system service's; if that does not exist either, the control socket of the only daemon of one VM]
    #[arg(long, value_name = "PATH")]
    pub control_socket: Option<PathBuf>,
}

impl Control {
    /// Returns the path at which the daemon listens.
    ///
    /// # Errors
    ///
    /// None is named, and there are several daemons.
    pub(crate) fn path(self) -> Result<PathBuf, Ambiguous> {
        self.control_socket.map_or_else(broker::operators_control_socket, Ok)
    }

    /// Returns the path at which a broker of several VMs listens.
    pub(crate) fn path_of_broker(self) -> PathBuf {
        self.control_socket.unwrap_or_else(broker::brokers_control_socket)
    }
}

impl Cli {
    /// Reads the command line, as [`Parser::try_parse`] does. Of the options of the device process only the log level may stand beside
    /// `--config`.
    pub(crate) fn read() -> Result<Self, clap::Error> {
        let matches = Self::command().try_get_matches()?;
        let cli = Self::from_arg_matches(&matches)?;
        if cli.config.is_some()
            && let Some(other) = beside_config(&matches)
        {
            let what =
                format!("--{} cannot stand beside --config: write it in the file", other.replace('_', "-"));
            return Err(Self::command().error(ErrorKind::ArgumentConflict, what));
        }
        Ok(cli)
    }
}

/// An option on the command line that belongs into the file.
fn beside_config(matches: &ArgMatches) -> Option<&str> {
    let written = |id: &&str| {
        matches.value_source(id) == Some(ValueSource::CommandLine) && Serve::command_ids().contains(*id)
    };
    matches.ids().map(clap::Id::as_str).find(written)
}

impl Serve {
    /// The command line of one VM.
    pub(crate) fn command() -> Command {
        Self::augment_args(Command::new("vhost-user-vulkan").no_binary_name(false))
    }

    fn command_ids() -> BTreeSet<String> {
        let command = Self::command();
        let ids = command.get_arguments().map(|argument| argument.get_id().to_string());
        ids.filter(|id| id != "log_level").collect()
    }
}

/// Options of every child.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Child {
    /// The channel to whoever started it, unless that is standard input
    #[arg(long)]
    pub channel_fd: Option<RawFd>,
    #[arg(long, default_value = "warn", value_parser = log_level())]
    pub log_level: LevelFilter,
    #[arg(long, default_value = "any", value_parser = words::<DriverFamily>())]
    pub family: DriverFamily,
    #[command(flatten)]
    pub confinement: Confinement,
}

/// The confinement of processes that a guest may take over.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Confinement {
    /// Sandbox of the workers. `strict` refuses to serve if a part of it is missing, `degraded` does without the parts that this system lacks, `none` confines nothing
    #[arg(long, value_name = "MODE", default_value = "strict", value_parser = words::<SandboxMode>())]
    pub sandbox: SandboxMode,
    /// Action that is taken when a worker makes a system call that is not on its list. `log` logs the call and allows it
    #[arg(long, value_name = "ACTION", default_value = "kill", value_parser = words::<SeccompMode>())]
    pub seccomp: SeccompMode,
}

impl From<Confinement> for sandbox::Options {
    fn from(Confinement { sandbox, seccomp }: Confinement) -> Self {
        Self { sandbox, seccomp }
    }
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
    /// The protections chosen.
    pub(crate) fn protection(&self) -> Protection {
        Protection {
            zero_memory: self.zero_memory == Switch::On,
            zero_workgroup_memory: self.zero_workgroup_memory == Switch::On,
            robustness: self.robustness,
        }
    }
}

impl Serve {
    /// Returns whether guests shall map the GPU's own memory: not if programs shall change their worker, which they cannot once they have.
    pub(crate) fn maps_device_memory(&self) -> bool {
        let changes_workers = !self.spare_gpu.is_empty()
            || self.swap_after.is_some()
            || self.swap_every.is_some()
            || self.restart_every.is_some();
        self.map_device_memory == MapDeviceMemory::Auto && !changes_workers
    }
}

impl Serve {
    /// Returns who may connect at the socket's path, as the permissions and the group of the socket.
    pub(crate) fn socket_access(&self) -> Access {
        let usual = if self.socket_group.is_some() { 0o660 } else { Access::default().mode };
        let mode = self.socket_mode.map_or(usual, |SocketMode(mode)| mode);
        Access { mode, group: self.socket_group.map(|Group(number)| number) }
    }
}
