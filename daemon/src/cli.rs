//! The command line. What is wrong with it is said in one line.

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use daemon::broker;
use daemon::config::{self, ContextLimits, DeviceLimits, MemoryBackEnd, Protection, Queues};
use daemon::ipc::DriverFamily;
use daemon::sandbox::{self, CgroupMode, GroupLimits, SandboxMode, SeccompMode};
use daemon::serve::Access;
use std::collections::BTreeSet;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::time::Duration;

/// A virtio-gpu device for virtual machines over vhost-user, whose 3D capability is Vulkan (Venus).
#[derive(Debug, Parser)]
#[command(name = "vhost-user-vulkan", version, args_conflicts_with_subcommands = true)]
pub struct Cli {
    #[command(flatten)]
    pub serve: Serve,
    /// Serve all VMs named in this file and share GPUs between them (docs/sharing.md). Of the other options only --log-level may be given with it
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
pub struct Serve {
    /// Listen on this Unix socket
    #[arg(long, value_name = "PATH", conflicts_with = "fd")]
    pub socket_path: Option<PathBuf>,
    /// Permissions of the socket at --socket-path, in octal as for chmod [default: 0600, which admits the daemon's user only; 0660 with --socket-group]
    #[arg(long, value_name = "MODE", value_parser = socket_mode)]
    pub socket_mode: Option<SocketMode>,
    /// Group of the socket at --socket-path, by name or number
    #[arg(long, value_name = "GROUP", value_parser = group)]
    pub socket_group: Option<Group>,
    /// Use this inherited socket, which may be listening or connected
    #[arg(long, value_name = "FDNUM")]
    pub fd: Option<RawFd>,
    /// GPU to use, given by its UUID, its PCI address or a unique part of its name. Repeat the option to give the guest several GPUs (up to 8) [default: the first usable one, real GPUs before software drivers]
    #[arg(long, value_name = "GPU")]
    pub gpu: Vec<String>,
    /// Queue capabilities offered to the guest. `compute` offers compute and copies. `nominal` also claims graphics, for programs that insist on
    /// a graphics queue to compute on (ncnn, taichi, wgpu), but ends a context that draws. `all` allows drawing, which exposes more of the
    /// driver to attacks
    #[arg(long, value_name = "KIND", default_value = "compute")]
    pub queues: QueueKind,
    /// Size of the guest's window onto GPU memory, a power of two; with KiB, MiB or GiB
    #[arg(long, value_name = "SIZE", default_value = "8GiB", value_parser = window_size)]
    pub window_size: u64,
    /// Kind of memory that guests can map
    #[arg(long, value_name = "BACKEND", default_value = "auto")]
    pub memory: Memory,
    /// Let guests map the GPU's own memory where its driver cannot export it. `auto` does so if --window-size is larger than --device-memory
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub map_device_memory: MapDeviceMemory,
    /// Longest time a submission may run; after that its context is killed. With ms, s or min
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time)]
    pub max_submit_time: Duration,
    /// The same while another context of the VM waits for the GPU. Submissions that run at the same time are assumed to share the GPU evenly
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = time)]
    pub max_submit_time_contended: Duration,
    /// Number of contexts lost to hung submissions before the VM is barred from creating more
    #[arg(long, value_name = "NUMBER", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub strikes: u32,
    /// How long the VM is barred after --strikes lost contexts; the time doubles with each further one
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = time)]
    pub strike_hold: Duration,
    /// How long the frontend may take to answer a map or unmap request before its session is ended. The time does not run while the guest is paused
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time)]
    pub frontend_timeout: Duration,
    /// Clear memory before a guest program gets it
    #[arg(long, value_name = "SWITCH", default_value = "on")]
    pub zero_memory: Switch,
    /// Clear the workgroup memory of shaders before they start
    #[arg(long, value_name = "SWITCH", default_value = "on")]
    pub zero_workgroup_memory: Switch,
    /// Keep the buffer accesses of shaders within bounds. `guest` leaves the choice to guest programs, `auto` does so on real GPUs only
    #[arg(long, value_name = "POLICY", default_value = "auto")]
    pub robustness: Robustness,
    #[command(flatten)]
    pub quotas: Quotas,
    /// Number of scanouts, which are always disconnected; guest kernels older than 6.4 need one
    #[arg(long, value_name = "0|1", default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=1))]
    pub scanouts: u32,
    /// Folder for data that must survive a restart of the daemon, such as the key that keeps guests' pipeline caches valid. Each VM needs its own
    #[arg(long, value_name = "PATH")]
    pub state_dir: Option<PathBuf>,
    /// Least severe level that is logged
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub log_level: LogLevel,
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
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub cgroup: Cgroup,
    /// Print the system calls that each kind of process may make, and exit
    #[arg(long)]
    pub print_seccomp: bool,
    /// A broker started this process beside others, and is at the other end of standard input
    #[arg(long, hide = true)]
    pub under_broker: bool,
    /// The control group that the broker made for this VM
    #[arg(long, value_name = "PATH", hide = true)]
    pub vm_cgroup: Option<PathBuf>,
    /// The VM's name among those of the broker
    #[arg(long, value_name = "NAME", hide = true)]
    pub vm_name: Option<String>,
    /// The program to start workers from
    #[arg(long, value_name = "PATH", hide = true)]
    pub exe: Option<PathBuf>,
}

/// What the guest may take; each program of it gets at most seven eighths, so that another finds something left.
#[derive(Clone, Copy, Debug, clap::Args)]
#[command(next_help_heading = "Quotas")]
pub struct Quotas {
    /// GPU memory of the VM, with KiB, MiB or GiB; the guest sees a GPU with this much memory [default: all of the GPU's]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub device_memory: Option<u64>,
    /// GPU memory of one context, that is, one guest program [default: no limit beyond the VM's]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub context_device_memory: Option<u64>,
    /// Host memory that the VM's programs share with the GPU [default: three quarters of the machine's, but at most seven eighths of --worker-memory]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub host_memory: Option<u64>,
    /// Host memory that one context shares with the GPU [default: no limit beyond the VM's]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub context_host_memory: Option<u64>,
    /// Host memory for the VM's command rings and replies [default: 8GiB]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub ring_memory: Option<u64>,
    /// Host memory for the shaders of one context [default: 512MiB]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub shader_memory: Option<u64>,
    /// Number of contexts of the VM, each of which is a process [default: 256]
    #[arg(long, value_name = "COUNT")]
    pub max_contexts: Option<usize>,
    /// Number of command rings of one context, each of which is a thread [default: 256]
    #[arg(long, value_name = "COUNT")]
    pub max_rings: Option<usize>,
    /// Number of command rings of the VM [default: 2048]
    #[arg(long, value_name = "COUNT")]
    pub max_vm_rings: Option<usize>,
    /// Number of Vulkan objects of one context [default: 1048576]
    #[arg(long, value_name = "COUNT")]
    pub max_objects: Option<usize>,
    /// Number of virtio-gpu resources of the VM, such as shared buffers [default: 65536]
    #[arg(long, value_name = "COUNT")]
    pub max_resources: Option<usize>,
    /// Memory of all worker processes of the VM, including memory shared with the GPU; needs a control group (--cgroup) [default: seven eighths of the machine's, but at most the VM's part of MemoryMax=]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub worker_memory: Option<u64>,
    /// Number of the VM's worker processes and their threads; needs a control group (--cgroup) [default: 16384, but at most the VM's part of TasksMax=]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_tasks: Option<u32>,
    /// Number of mappings in the guest's window; QEMU supports about 500 [default: 400, or 16384 with frontends like crosvm, which do not announce mappings as guest memory]
    #[arg(long, value_name = "COUNT")]
    pub max_maps: Option<usize>,
    /// Number of lines per minute that are logged of what workers and their drivers print [default: 600]
    #[arg(long, value_name = "COUNT")]
    pub max_log_lines: Option<u32>,
}

impl Quotas {
    /// The limits of the VM and of each context.
    pub fn limits(&self) -> (DeviceLimits, ContextLimits) {
        let (vm, context) = (DeviceLimits::default(), ContextLimits::default());
        let device = DeviceLimits {
            contexts: self.max_contexts.unwrap_or(vm.contexts),
            resources: self.max_resources.unwrap_or(vm.resources),
            live_maps: self.max_maps.unwrap_or(vm.live_maps),
            live_maps_unannounced: self.max_maps.unwrap_or(vm.live_maps_unannounced),
            vm_rings: self.max_vm_rings.unwrap_or(vm.vm_rings),
            log_lines: self.max_log_lines.unwrap_or(vm.log_lines),
            device_memory: self.device_memory.unwrap_or(vm.device_memory),
            host_memory: self.host_memory.unwrap_or_else(three_quarters_of_memory),
            shmem_total_bytes: self.ring_memory.unwrap_or(vm.shmem_total_bytes),
            ..vm
        };
        let context = ContextLimits {
            device_memory: self.context_device_memory.unwrap_or(context.device_memory),
            host_memory: self.context_host_memory.unwrap_or(context.host_memory),
            objects: self.max_objects.unwrap_or(context.objects),
            shader_bytes: self.shader_memory.unwrap_or(context.shader_bytes),
            rings: self.max_rings.unwrap_or(context.rings),
            ..context
        };
        (device, context)
    }
}

impl Quotas {
    /// Limits on the workers' control group.
    pub fn group_limits(&self) -> GroupLimits {
        GroupLimits { memory: self.worker_memory, tasks: self.max_tasks.map(u64::from) }
    }
}

fn three_quarters_of_memory() -> u64 {
    let machine = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = machine
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:")?.strip_suffix("kB")?.trim().parse().ok());
    total.map_or(u64::MAX, |kib: u64| kib.saturating_mul(1024) / 4 * 3)
}

/// What this process is, if not the device process: an operator's end of the control socket, or something for its own use.
#[derive(Debug, Subcommand)]
pub enum Role {
    /// Show the VMs served by a running broker, their contexts, and what they use
    Status {
        /// Repeat once a second
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
    /// Serves one context.
    #[command(hide = true)]
    Worker {
        #[command(flatten)]
        child: Child,
    },
    /// Starts workers and probes.
    #[command(hide = true)]
    Launcher {
        #[command(flatten)]
        child: Child,
        #[arg(long)]
        exe: Option<PathBuf>,
        /// The control group for what it starts.
        #[arg(long)]
        cgroup: Option<PathBuf>,
    },
    /// Looks for GPUs.
    #[command(hide = true)]
    Probe {
        #[command(flatten)]
        child: Child,
    },
}

/// Which broker.
#[derive(Clone, Debug, clap::Args)]
pub struct Control {
    /// Path of the broker's control socket [default: the broker's own default]
    #[arg(long, value_name = "PATH")]
    pub control_socket: Option<PathBuf>,
}

impl Control {
    /// Where it listens.
    pub fn path(self) -> PathBuf {
        self.control_socket.unwrap_or_else(broker::default_control_socket)
    }
}

impl Cli {
    /// As [`Parser::try_parse`]; nothing but the log level stands beside `--config`.
    pub fn read() -> Result<Self, clap::Error> {
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
    pub fn command() -> Command {
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
pub struct Child {
    /// The channel to whoever started it, unless that is standard input
    #[arg(long)]
    pub channel_fd: Option<RawFd>,
    #[arg(long, default_value = "warn")]
    pub log_level: LogLevel,
    #[arg(long, default_value = "any")]
    pub family: Family,
    #[command(flatten)]
    pub confinement: Confinement,
}

/// [`DriverFamily`] on the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Family {
    Any,
    Software,
    Mesa,
    Nvidia,
}

impl From<Family> for DriverFamily {
    fn from(family: Family) -> Self {
        match family {
            Family::Any => Self::Any,
            Family::Software => Self::Software,
            Family::Mesa => Self::Mesa,
            Family::Nvidia => Self::Nvidia,
        }
    }
}

/// How processes that a guest may take over are confined.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Confinement {
    /// Sandbox of the workers. `strict` refuses to serve if a part of it is missing, `degraded` does without the parts that this system lacks, `none` confines nothing
    #[arg(long, value_name = "MODE", default_value = "strict")]
    pub sandbox: Sandbox,
    /// What happens when a worker makes a system call that is not on its list. `log` logs the call and allows it
    #[arg(long, value_name = "ACTION", default_value = "kill")]
    pub seccomp: Seccomp,
}

impl From<Confinement> for sandbox::Options {
    fn from(Confinement { sandbox, seccomp }: Confinement) -> Self {
        let sandbox = match sandbox {
            Sandbox::Strict => SandboxMode::Strict,
            Sandbox::Degraded => SandboxMode::Degraded,
            Sandbox::None => SandboxMode::None,
        };
        let seccomp = match seccomp {
            Seccomp::Kill => SeccompMode::Kill,
            Seccomp::Log => SeccompMode::Log,
            Seccomp::Off => SeccompMode::Off,
        };
        Self { sandbox, seccomp }
    }
}

/// [`SandboxMode`] on the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Sandbox {
    Strict,
    Degraded,
    None,
}

/// [`SeccompMode`] on the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Seccomp {
    Kill,
    Log,
    Off,
}

/// [`CgroupMode`] on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Cgroup {
    Auto,
    On,
    Off,
}

impl From<Cgroup> for CgroupMode {
    fn from(cgroup: Cgroup) -> Self {
        match cgroup {
            Cgroup::Auto => Self::Auto,
            Cgroup::On => Self::On,
            Cgroup::Off => Self::Off,
        }
    }
}

/// What memory that guests map is made of.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Memory {
    /// The first of the others that works on the GPU
    Auto,
    /// Memory files, which the driver imports
    Memfd,
    /// Memory of the driver, which it exports
    DmaBuf,
}

impl From<Memory> for Option<MemoryBackEnd> {
    fn from(memory: Memory) -> Self {
        match memory {
            Memory::Auto => None,
            Memory::Memfd => Some(MemoryBackEnd::Memfd),
            Memory::DmaBuf => Some(MemoryBackEnd::DmaBuf),
        }
    }
}

/// Whether guests map device memory that is not exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MapDeviceMemory {
    Auto,
    Never,
}

/// [`Queues`] on the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum QueueKind {
    Compute,
    Nominal,
    All,
}

impl From<QueueKind> for Queues {
    fn from(kind: QueueKind) -> Self {
        match kind {
            QueueKind::Compute => Self::Compute,
            QueueKind::Nominal => Self::Nominal,
            QueueKind::All => Self::All,
        }
    }
}

/// A protection on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    On,
    Off,
}

/// [`config::Robustness`] on the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Robustness {
    Auto,
    On,
    Guest,
}

impl From<Robustness> for config::Robustness {
    fn from(robustness: Robustness) -> Self {
        match robustness {
            Robustness::Auto => Self::Auto,
            Robustness::On => Self::On,
            Robustness::Guest => Self::Guest,
        }
    }
}

impl Serve {
    /// The protections chosen.
    pub fn protection(&self) -> Protection {
        Protection {
            zero_memory: self.zero_memory == Switch::On,
            zero_workgroup_memory: self.zero_workgroup_memory == Switch::On,
            robustness: self.robustness.into(),
        }
    }
}

/// Log levels, most important first.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum LogLevel {
    Off,
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl From<LogLevel> for log::LevelFilter {
    fn from(level: LogLevel) -> Self {
        match level {
            LogLevel::Off => Self::Off,
            LogLevel::Error => Self::Error,
            LogLevel::Warn => Self::Warn,
            LogLevel::Info => Self::Info,
            LogLevel::Debug => Self::Debug,
            LogLevel::Trace => Self::Trace,
        }
    }
}

/// Permissions of a socket file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketMode(u32);

fn socket_mode(text: &str) -> Result<SocketMode, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.map(SocketMode).ok_or_else(|| "not octal permissions from 0000 to 0777".into())
}

/// A group's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group(u32);

fn group(text: &str) -> Result<Group, String> {
    if let Ok(number) = text.parse() {
        return Ok(Group(number));
    }
    let groups = std::fs::read_to_string("/etc/group").unwrap_or_default();
    let number = |line: &str| {
        let mut fields = line.split(':');
        (fields.next()? == text).then(|| fields.nth(1)?.parse().ok())?
    };
    groups.lines().find_map(number).map(Group).ok_or_else(|| "no group of /etc/group, and no number".into())
}

impl Serve {
    /// Who may connect at the socket's path.
    pub fn socket_access(&self) -> Access {
        let usual = if self.socket_group.is_some() { 0o660 } else { Access::default().mode };
        let mode = self.socket_mode.map_or(usual, |SocketMode(mode)| mode);
        Access { mode, group: self.socket_group.map(|Group(number)| number) }
    }
}

/// Smallest and largest region: guests place it as a PCI BAR, and firmware places none above 256 GiB.
const WINDOW_SIZES: std::ops::RangeInclusive<u64> = 1 << 20..=256 << 30;

fn window_size(text: &str) -> Result<u64, String> {
    let size = size(text)?;
    if !WINDOW_SIZES.contains(&size) || !size.is_power_of_two() {
        return Err("not a power of two from 1MiB to 256GiB".into());
    }
    Ok(size)
}

/// Digits, and what follows them.
fn split_unit(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

fn size(text: &str) -> Result<u64, String> {
    let (number, unit) = split_unit(text);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        _ => return Err(format!("unknown unit \"{unit}\" (use KiB, MiB or GiB)")),
    };
    let number: u64 = number.parse().map_err(|_| "not a size".to_owned())?;
    number.checked_mul(1 << shift).ok_or_else(|| "too large".to_owned())
}

/// Shortest and longest time: below, what counts is how late threads run; above, nobody waits.
const TIMES: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(3600);

fn time(text: &str) -> Result<Duration, String> {
    let (number, unit) = split_unit(text);
    let number: u32 = number.parse().map_err(|_| "not a time".to_owned())?;
    let unit = match unit {
        "ms" => Duration::from_millis(1),
        "" | "s" => Duration::from_secs(1),
        "min" => Duration::from_secs(60),
        _ => return Err(format!("unknown unit \"{unit}\" (use ms, s or min)")),
    };
    let time = unit.saturating_mul(number);
    if TIMES.contains(&time) { Ok(time) } else { Err("not from 100ms to 60min".into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use daemon::broker::Settings;

    /// What `--config` makes of a file.
    fn settings(text: &str) -> Result<Settings, String> {
        use std::io::Write;
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        Settings::read(file.path(), &Serve::command(), "warn").map_err(|error| {
            error.to_string().trim_start_matches(&file.path().display().to_string()).to_owned()
        })
    }

    #[test]
    fn what_one_vm_can_have_can_be_written_in_a_file() {
        let vm = "[vm.a]\nsocket-path = \"/run/a\"\n";
        let all = r#"
            gpu = ["01:00.0", "NVIDIA H200"]
            queues = "all"
            socket-mode = "0666"
            socket-group = "0"
            window-size = "16GiB"
            memory = "memfd"
            map-device-memory = "never"
            max-submit-time = "20s"
            max-submit-time-contended = 5
            strikes = 2
            strike-hold = "1min"
            frontend-timeout = "20s"
            zero-memory = "off"
            zero-workgroup-memory = "on"
            robustness = "guest"
            device-memory = "4GiB"
            context-device-memory = 1073741824
            host-memory = "1GiB"
            context-host-memory = "1GiB"
            ring-memory = "1GiB"
            shader-memory = "1GiB"
            max-contexts = 7
            max-rings = 7
            max-vm-rings = 7
            worker-memory = "1GiB"
            max-tasks = 7
            max-objects = 7
            max-resources = 7
            max-maps = 7
            max-log-lines = 7
            scanouts = 0
            state-dir = "/tmp"
            log-level = "debug"
            sandbox = "degraded"
            seccomp = "log"
        "#;
        let settings = settings(&format!("{vm}{all}")).unwrap();
        let vm = &settings.vms[0];
        assert_eq!((vm.contexts, vm.max_submit_time_contended), (7, Duration::from_secs(5)));
        let cli = Serve::command().no_binary_name(true).get_matches_from(&vm.arguments);
        let serve = Serve::from_arg_matches(&cli).unwrap();
        assert_eq!((serve.quotas.device_memory, serve.strikes), (Some(4 << 30), 2));
        assert_eq!(serve.gpu, ["01:00.0", "NVIDIA H200"]);
        // What is new on the command line is a key at once; whoever adds it decides here whether it makes sense.
        let keys = all.lines().filter(|line| line.contains('=')).count();
        assert_eq!(vm.arguments.len(), keys + 2, "{:?}", vm.arguments);
        let unknown = super::tests::settings(&format!("{}\nnone = 1", "[vm.a]")).unwrap_err();
        assert_eq!(unknown.matches(", ").count(), keys + 3, "{unknown}");
    }

    #[test]
    fn values_in_a_file_have_the_bounds_of_the_command_line() {
        for (line, error) in [
            ("strikes = 0", ": [vm.a] strikes: \"0\" is not allowed: 0 is not in 1.."),
            (
                "max-submit-time = \"2h\"",
                ": [vm.a] max-submit-time: \"2h\" is not allowed: unknown unit \"h\"",
            ),
            ("queues = \"some\"", ": [vm.a] queues: \"some\" is none of \"compute\", \"nominal\", \"all\""),
            ("window-size = \"3GiB\"", ": [vm.a] window-size: \"3GiB\" is not allowed: not a power of two"),
            ("exit-on-disconnect = true", ": [vm.a] exit-on-disconnect: unknown"),
            ("list-gpus = true", ": [vm.a] list-gpus: unknown"),
            ("config = \"x\"", ": [vm.a] config: unknown"),
            ("under-broker = true", ": [vm.a] under-broker: unknown"),
        ] {
            let said = settings(&format!("[vm.a]\nsocket-path = \"/run/a\"\n{line}")).unwrap_err();
            assert!(said.starts_with(error), "{said}");
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn sockets_are_for_one_user_unless_it_is_said_otherwise() {
        let access = |words: &[&str]| {
            let matches = Serve::command().no_binary_name(true).try_get_matches_from(words)?;
            Ok::<_, clap::Error>(Serve::from_arg_matches(&matches)?.socket_access())
        };
        assert_eq!(access(&[]).unwrap(), Access { mode: 0o600, group: None });
        assert_eq!(access(&["--socket-group=root"]).unwrap(), Access { mode: 0o660, group: Some(0) });
        let both = access(&["--socket-group=7", "--socket-mode=620"]).unwrap();
        assert_eq!(both, Access { mode: 0o620, group: Some(7) });
        for wrong in ["--socket-mode=8", "--socket-mode=1777", "--socket-mode=-1", "--socket-group=no one"] {
            assert!(access(&[wrong]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_have_units_and_bounds() {
        assert_eq!(time("30"), Ok(Duration::from_secs(30)));
        assert_eq!(time("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(time("5min"), Ok(Duration::from_secs(300)));
        for wrong in ["", "s", "-1s", "1.5s", "99ms", "61min", "5h", "4294967296s"] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_have_units_and_bounds() {
        assert_eq!(size("0"), Ok(0));
        assert_eq!(size("3GiB"), Ok(3 << 30));
        assert_eq!(window_size("8GiB"), Ok(8 << 30));
        assert_eq!(window_size("512m"), Ok(512 << 20));
        assert_eq!(window_size("1048576"), Ok(1 << 20));
        for wrong in [
            "",
            "GiB",
            "-1",
            "1.5GiB",
            "3GiB",
            "512KiB",
            "512GiB",
            "8GB",
            "99999999999999999999",
            "18446744073709551615g",
        ] {
            assert!(window_size(wrong).is_err(), "{wrong}");
        }
    }
}
