//! The options of `doctor`.

use super::control::Control;
use daemon::options::Confinement;
use std::path::PathBuf;
use std::time::Duration;

/// The options of `doctor`: the checks beside those of the host itself.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Doctor {
    /// Check a VM, from inside it
    #[arg(long, conflicts_with_all = ["config", "socket_path", "vmm_user", "qemu", "control_socket"])]
    pub vm: bool,
    /// Print one line of JSON (docs/doctor.md)
    #[arg(long)]
    pub json: bool,
    /// Write the facts for a bug report to this new file, or with `-` to standard output: versions, the findings, settings, the status of daemons and the end of their log, without names of this host and its users, addresses and UUIDs (docs/reporting.md)
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    pub report: Option<PathBuf>,
    /// Check this file of several VMs as well [default: /etc/vhost-user-vulkan/vms.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Check whether the VMM can connect to this socket, at which a daemon listens
    #[arg(long, value_name = "PATH")]
    pub socket_path: Option<PathBuf>,
    /// The user that the VMM runs as [default: libvirt's, if it exists]
    #[arg(long, value_name = "USER")]
    pub vmm_user: Option<String>,
    /// The QEMU to check [default: the one in the search path]
    #[arg(long, value_name = "PATH")]
    pub qemu: Option<PathBuf>,
    #[command(flatten)]
    pub control: Control,
    /// Longest time the GPU's driver may take to start [default: the longest of the VMs in the file, or 2min]
    #[arg(long, value_name = "TIME", value_parser = config::time)]
    pub driver_timeout: Option<Duration>,
    #[command(flatten)]
    pub confinement: Confinement,
    /// Take the files of the system from below this folder
    #[arg(long, value_name = "PATH", default_value = "/", hide = true)]
    pub root: PathBuf,
}
