//! Starting this program once more, as a process of another kind: the launcher of a device process, or the device process of one VM
//! among several. The started process confines itself.

use crate::service;
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command};

/// The file of this program, wherever it is now.
pub(super) const OWN: &str = "/proc/self/exe";

/// Returns the command for this program with `channel` as its standard input ([`only_standard_input`](super::only_standard_input)), in a process
/// group of its own: a terminal's signals reach it through the process that started it. The standard library must be able to start the command
/// without a copy of this process' memory. Such a copy takes arbitrarily long, and no thread can change its mappings meanwhile. The command does not
/// inherit the variables of a service manager, which are for this process only.
pub(super) fn this_program(channel: OwnedFd) -> Command {
    let mut command = Command::new(OWN);
    command.arg0("vhost-user-vulkan").stdin(channel).process_group(0);
    service::VARIABLES.iter().for_each(|name| _ = command.env_remove(name));
    command
}

/// Returns the path of this program when it was started. Another program may have this path now.
///
/// # Errors
///
/// The system does not tell the path.
pub fn program_path() -> io::Result<PathBuf> {
    let place = std::fs::read_link(OWN)?.into_os_string();
    let place = place.as_bytes().strip_suffix(b" (deleted)").unwrap_or(place.as_bytes());
    Ok(OsStr::from_bytes(place).into())
}

/// The exit status of a device process that wants to be started again, although it is not at fault; `EX_TEMPFAIL` of sysexits.h.
pub const START_AGAIN: u8 = 75;

/// Starts this program as the device process of the VM of this name, which has a broker at the other end of `channel`.
///
/// # Errors
///
/// The system refuses.
pub fn start_device_process(vm: &str, channel: OwnedFd) -> io::Result<Child> {
    this_program(channel).args(["device", "--vm-name", vm]).spawn()
}
