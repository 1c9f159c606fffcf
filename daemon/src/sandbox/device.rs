//! Starting the device process of one VM among several. It confines itself, as it does when it is started alone.

use super::sys;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// Starts this program again with `arguments`, and `--broker-fd` with `channel` as the only descriptor beyond standard input (empty),
/// output and error. It gets a process group of its own: a terminal's signals reach it through whoever started it.
///
/// # Errors
///
/// The system refuses.
pub fn start_device_process(arguments: &[OsString], channel: OwnedFd) -> io::Result<Child> {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("vhost-user-vulkan").args(arguments);
    command.arg("--broker-fd").arg(channel.as_raw_fd().to_string());
    command.stdin(Stdio::null()).process_group(0);
    sys::keep_only(&mut command, &channel);
    command.spawn()
}
