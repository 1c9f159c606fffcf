//! The command line. An error in it is reported in one line.
//!
//! `serve` has the options of a daemon of one VM, those of the VM itself among them (`daemon::options`). `values` has the spelling of values that only the
//! command line has, `recipe` the settings for VMMs. `short_help` names the options that most users need, `mistakes` describes the mistakes on a command line,
//! `version` says which build this is.

mod control;
mod doctor;
pub(crate) mod mistakes;
mod recipe;
mod serve;
mod short_help;
#[cfg(test)]
mod tests;
pub(crate) mod values;
mod version;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};
pub(crate) use control::Control;
use daemon::ipc::DriverFamily;
use daemon::options::{Confinement, log_level, words};
use daemon::trace;
pub(crate) use doctor::Doctor;
use log::LevelFilter;
use recipe::Recipe;
pub(crate) use serve::{Own, Serve};
use std::os::fd::RawFd;
use std::path::PathBuf;
pub(crate) use version::VERSION;

/// A virtio-gpu device for virtual machines over vhost-user, whose 3D capability is Vulkan (Venus)
#[derive(Debug, Parser)]
#[command(
    name = "vhost-user-vulkan", version = VERSION.as_str(), args_conflicts_with_subcommands = true,
    override_usage = USAGE,
    after_help = SHORTER, after_long_help = STATUSES,
    disable_help_flag = true, disable_version_flag = true, mut_args = short_help::shown
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub serve: Serve,
    /// Print this help; --help lists all options
    #[arg(short, long, global = true, action = ArgAction::Help, help_heading = "Information")]
    pub help: Option<bool>,
    /// Print the version
    #[arg(short = 'V', long, action = ArgAction::Version, help_heading = "Information")]
    pub version: Option<bool>,
    /// Serve all VMs named in this file and share GPUs between them
    ///
    /// docs/sharing.md explains the file. The only other option that may be given with it is --log-level
    #[arg(long, help_heading = "Several VMs", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Check the file given with --config, report what is wrong with it, and exit
    #[arg(long, help_heading = "Several VMs", requires = "config")]
    pub check_config: bool,
    /// Take over from a running broker, whose state is on standard input
    #[arg(long, hide = true, requires = "config")]
    pub take_over: bool,
    #[command(subcommand)]
    pub role: Option<Role>,
}

/// The ways to call the program.
const USAGE: &str = "vhost-user-vulkan [OPTIONS] --socket-path <PATH>
       vhost-user-vulkan --config <FILE>
       vhost-user-vulkan <COMMAND> [ARGUMENTS]";
/// The text below the short help.
const SHORTER: &str =
    "Most users need no other options; --help lists all, and `COMMAND --help` those of a command.";
/// The text below the long help.
const STATUSES: &str =
    "Exit status: 0 on success, 1 if something cannot be done, 2 if the command line is wrong.";

/// The role of this process, if it is not the device process: an operator's end of the control socket, or a process that the daemon starts
/// for itself.
#[derive(Debug, Subcommand)]
pub(crate) enum Role {
    /// Show the VMs served by a running daemon, their contexts, and what they use
    Status {
        /// Show this VM only, in full
        ///
        /// The options that are in force for it, its GPU and driver, and what waits until it is off
        #[arg(value_name = "VM")]
        vm: Option<String>,
        /// Repeat once a second
        ///
        /// On a terminal as a view with bars, in which keys sort, unfold and kill contexts; else line by line
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
    /// Give a context of a VM another worker process while its program runs
    ///
    /// The program notices a pause and nothing else (docs/restart.md)
    Restart {
        /// The VM and the context, as `status` prints them
        #[arg(value_name = "VM/CONTEXT")]
        context: String,
        #[command(flatten)]
        control: Control,
    },
    /// Swap a context of a VM out until its program has something to do
    ///
    /// It holds nothing of the GPU and no driver until then (docs/swap.md)
    SwapOut {
        /// The VM and the context, as `status` prints them
        #[arg(value_name = "VM/CONTEXT")]
        context: String,
        #[command(flatten)]
        control: Control,
    },
    /// Have a context of a VM go on on another GPU while its program runs
    ///
    /// The program notices a pause and nothing else (docs/restart.md)
    Move {
        /// The VM and the context, as `status` prints them
        #[arg(value_name = "VM/CONTEXT")]
        context: String,
        /// The GPU to move to: a GPU or spare GPU of the VM
        ///
        /// It is given by its UUID, its PCI address or a unique part of its name
        #[arg(long, value_name = "GPU")]
        gpu: String,
        /// The GPU to leave, if the context is on several
        #[arg(long, value_name = "GPU")]
        from: Option<String>,
        #[command(flatten)]
        control: Control,
    },
    /// Empty a GPU: move programs that are on it, and let none begin there
    ///
    /// Programs begin on other GPUs of their VMs from now on, and those that are on it are moved while they run. It stays drained until `undrain`, or until the broker ends (docs/restart.md)
    Drain {
        /// The GPU, given by its UUID, its PCI address or a unique part of its name
        #[arg(value_name = "GPU")]
        gpu: String,
        /// Print which programs would be moved, and move none
        #[arg(long)]
        dry_run: bool,
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
    /// Record what each submission of a VM waited for and when it ran
    ///
    /// The trace that it writes is for Perfetto (ui.perfetto.dev) and chrome://tracing (docs/trace.md)
    Trace {
        /// The VM's name
        vm: String,
        /// Length of the trace, from 1 to 300
        ///
        /// Ctrl-C ends it early and keeps what was recorded
        #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=300))]
        seconds: u32,
        /// File to write [default: VM-trace.json]
        #[arg(long, value_name = "FILE")]
        output: Option<PathBuf>,
        /// Name the other VMs on the GPU
        ///
        /// Otherwise each is "another VM", so that the trace can be given to the VM's user
        #[arg(long)]
        names: bool,
        /// Number of events to keep; the trace ends early when there are more
        #[arg(long, value_name = "NUMBER", default_value_t = trace::EVENTS_MAX)]
        max_events: usize,
        #[command(flatten)]
        control: Control,
    },
    /// Check this host, or the VM that this is, and say what helps
    ///
    /// Whether the host can serve VMs, or (--vm) whether the VM can use its GPU. Exit status: 0 if there is no fault, 1 if there is one
    Doctor(Doctor),
    /// Have a running broker read its file again
    ///
    /// VMs are added, removed and changed, and the others notice nothing. What would end the GPU of a VM in use waits until the VM is off
    Reload {
        /// Do at once what ends the GPUs of VMs in use
        ///
        /// Such as another device-memory. Takes a file without any VM as well
        #[arg(long, alias = "remove")]
        now: bool,
        /// Print what would happen, and change nothing
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        control: Control,
    },
    /// Have the installed program go on in the place of a running broker's
    ///
    /// VMs that run notice nothing. If the new program cannot take over, the broker goes on as before (docs/upgrade.md)
    Upgrade {
        #[command(flatten)]
        control: Control,
    },
    /// Print what has to be pasted to give a VM its GPU
    #[command(subcommand, arg_required_else_help = false)]
    Recipe(Recipe),
    /// Serve one VM of several, whose options the broker says on standard input
    #[command(hide = true)]
    Device {
        /// The VM's name
        #[arg(long)]
        vm_name: String,
    },
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

impl Cli {
    /// Reads the command line, as [`Parser::try_parse`] does. Of the options of the device process, only the log level may be given beside
    /// `--config`.
    pub(crate) fn read() -> Result<Self, clap::Error> {
        Self::of(&Self::command().try_get_matches()?)
    }

    fn of(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let cli = Self::from_arg_matches(matches)?;
        let beside_config = cli.config.as_ref().and_then(|_| beside_config(matches)).map(|other| {
            format!("--{} cannot stand beside --config: write it in the file", other.replace('_', "-"))
        });
        match beside_config.or_else(|| cli.serve.vm.check().err()) {
            Some(what) => Err(Self::command().error(ErrorKind::ArgumentConflict, what)),
            None => Ok(cli),
        }
    }
}

/// Returns an option on the command line that belongs in the file.
fn beside_config(matches: &ArgMatches) -> Option<&str> {
    let written =
        |id: &&str| matches.value_source(id) == Some(ValueSource::CommandLine) && Serve::ids().contains(*id);
    matches.ids().map(clap::Id::as_str).find(written)
}

/// Options of every child.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Child {
    /// The channel to the parent process, unless that is standard input
    #[arg(long)]
    pub channel_fd: Option<RawFd>,
    #[arg(long, default_value = "warn", value_parser = log_level())]
    pub log_level: LevelFilter,
    #[arg(long, default_value = "any", value_parser = words::<DriverFamily>())]
    pub family: DriverFamily,
    #[command(flatten)]
    pub confinement: Confinement,
}
