//! The option that names the daemon which a subcommand of operators asks.

use daemon::broker::{self, Ambiguous};
use std::path::PathBuf;

/// The options that tell which daemon is meant.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Control {
    /// Path of the daemon's control socket
    ///
    /// [default: vhost-user-vulkan.sock in $XDG_RUNTIME_DIR, or in /run for root; if that does not exist, /run/vhost-user-vulkan/control.sock, which is the system service's; if that does not exist either, the control socket of the only daemon of one VM]
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
