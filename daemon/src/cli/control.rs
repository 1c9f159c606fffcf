//! The option that names the daemon which a subcommand of operators asks, and the choice of the daemon without this option.

use daemon::broker::{self, Ambiguous, ClientError};
use std::path::PathBuf;

/// The options that tell which daemon is meant.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Control {
    /// Path of the daemon's control socket
    ///
    /// [default: of the daemons that let this user in, that of the one which has the VM, or else of the broker, or of the only daemon of one VM; `status` without a VM asks all. The broker's is vhost-user-vulkan.sock in $XDG_RUNTIME_DIR, or in /run for root; if that does not exist, /run/vhost-user-vulkan/control.sock, which is the system service's]
    #[arg(long, value_name = "PATH")]
    pub control_socket: Option<PathBuf>,
}

impl Control {
    /// Returns the path at which a broker listens, or else the only daemon of one VM.
    ///
    /// # Errors
    ///
    /// No path is given, and several daemons run.
    pub(crate) fn path(self) -> Result<PathBuf, Ambiguous> {
        self.control_socket.map_or_else(broker::operators_control_socket, Ok)
    }

    /// Returns the path at which a broker of several VMs listens.
    pub(crate) fn path_of_broker(self) -> PathBuf {
        self.control_socket.unwrap_or_else(broker::brokers_control_socket)
    }

    /// Returns the path at which the daemon listens that has a VM.
    ///
    /// # Errors
    ///
    /// No path is given, and none or several of the daemons that answer have the VM.
    pub(crate) fn path_of_vm(self, vm: &str) -> Result<PathBuf, ClientError> {
        self.control_socket.map_or_else(|| broker::daemon_of(vm), Ok)
    }

    /// Returns the path at which the daemon listens that has a context, which is named as `VM/CONTEXT`.
    ///
    /// # Errors
    ///
    /// As [`Self::path_of_vm`], or the name has another form.
    pub(crate) fn path_of_context(self, context: &str) -> Result<PathBuf, ClientError> {
        self.path_of_vm(broker::vm_of(context)?)
    }
}
