//! The spelling of values that only the command line has.

use std::path::PathBuf;

/// The place of a control socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ControlSocket {
    /// No control socket is made.
    None,
    /// Beside the VM's socket.
    Auto,
    /// At this path.
    At(PathBuf),
}

/// Reads the path of a control socket, `auto`, or `none`.
pub(super) fn control_socket(text: &str) -> Result<ControlSocket, String> {
    match text {
        "" => Err("an empty path".into()),
        "none" => Ok(ControlSocket::None),
        "auto" => Ok(ControlSocket::Auto),
        path => Ok(ControlSocket::At(path.into())),
    }
}
