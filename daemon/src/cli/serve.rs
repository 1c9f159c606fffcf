//! The options of a daemon that serves one VM: those of the VM, and those that a VM of several cannot have.

use super::values::{ControlSocket, control_socket};
use clap::{Args, Command};
use daemon::broker::MetricsAddress;
use daemon::options::{Group, VmOptions, group, words};
use daemon::sandbox::CgroupMode;
use outside::Access;
use std::collections::BTreeSet;
use std::os::fd::RawFd;
use std::path::PathBuf;

/// The options, in the order of their headings.
#[derive(Debug, clap::Args)]
pub(crate) struct Serve {
    #[command(flatten)]
    pub vm: VmOptions,
    #[command(flatten)]
    pub own: Own,
}

/// The options of the daemon's own.
#[derive(Debug, clap::Args)]
pub(crate) struct Own {
    /// Use this inherited socket, which may be listening or connected
    ///
    /// [default without --socket-path: the socket that systemd passes (socket activation)]
    #[arg(long, help_heading = "Socket", value_name = "FDNUM", conflicts_with = "socket_path")]
    pub fd: Option<RawFd>,
    /// Listen there for `status`, `trace`, `kill` and the other subcommands of operators
    ///
    /// `auto` is the path of the VM's socket with `.control` behind it, or nowhere if no socket can be made there; `none` is nowhere, and nothing measures the GPU's time. Only the daemon's user may use the control socket, unless --control-socket-group is given. If the option is given several times, the last one counts
    #[arg(long, help_heading = "Socket", value_name = "PATH|auto|none", default_value = "auto", value_parser = control_socket, overrides_with = "control_socket")]
    pub control_socket: ControlSocket,
    /// Group of operators, by name or number, whose members may use the control socket
    ///
    /// They may do all that root may do there: see all VMs, end, restart, move and trace programs (docs/sharing.md). The socket then has mode 0660 [default: the daemon's user only]
    #[arg(long, help_heading = "Socket", value_name = "GROUP", value_parser = group)]
    pub control_socket_group: Option<Group>,
    /// Serve metrics for Prometheus to this machine
    ///
    /// At 127.0.0.1:PORT, `[::1]:PORT` or a Unix socket's path [default: nowhere]
    #[arg(long, help_heading = "Socket", value_name = "ADDRESS", value_parser = str::parse::<MetricsAddress>)]
    pub metrics: Option<MetricsAddress>,
    /// Exit when the frontend disconnects
    #[arg(long, help_heading = "Socket")]
    pub exit_on_disconnect: bool,
    /// Create control groups for the workers below the daemon's own
    ///
    /// `auto` does so if the system has delegated that group (Delegate=yes in a systemd unit)
    #[arg(long, help_heading = "Sandbox and protection", value_name = "WHEN", default_value = "auto", value_parser = words::<CgroupMode>())]
    pub cgroup: CgroupMode,
    /// List the GPUs and exit
    ///
    /// With --log-level debug it also shows what their drivers print
    #[arg(long, help_heading = "Information")]
    pub list_gpus: bool,
    /// Print the capabilities of this back end as JSON and exit
    ///
    /// As QEMU's conventions define them
    #[arg(long, help_heading = "Information")]
    pub print_capabilities: bool,
    /// Print the system calls that each kind of process may make, and exit
    #[arg(long, help_heading = "Information")]
    pub print_seccomp: bool,
    /// Name of the VM in the log
    ///
    /// The name stands in messages about the VM's workers, and as the field VM of the journal's records
    #[arg(long, help_heading = "Information", value_name = "NAME")]
    pub vm_name: Option<String>,
    /// The program to start workers from
    #[arg(long, value_name = "PATH", hide = true)]
    pub exe: Option<PathBuf>,
}

impl Serve {
    /// Returns the ids of all options but the log level, which may be given beside a file.
    pub(super) fn ids() -> BTreeSet<String> {
        let command = Self::augment_args(Command::new("ids"));
        let ids = command.get_arguments().map(|argument| argument.get_id().to_string());
        ids.filter(|id| id != "log_level").collect()
    }
}

impl Own {
    /// Returns who may connect at the control socket.
    pub(crate) fn operators_access(&self) -> Access {
        Access::of_group(self.control_socket_group.map(|Group(number)| number))
    }
}
