//! Children: this program again, in another role.

use super::sys;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// The program to execute for a child, and what it is told besides its role.
#[derive(Clone, Debug)]
pub struct Exe {
    path: PathBuf,
    arguments: Vec<String>,
}

impl Exe {
    /// The given program, or this one, with `arguments` after those that every child gets.
    pub fn new(path: Option<PathBuf>, arguments: Vec<String>) -> Self {
        Self { path: path.unwrap_or_else(|| PathBuf::from("/proc/self/exe")), arguments }
    }
}

/// Starts a child in `role` (its first argument) with `channel` as its only descriptor beyond standard input (empty), output
/// and error. It has a process group of its own, inherits the environment, and is killed when the calling thread ends.
pub fn spawn(exe: &Exe, role: &str, channel: &OwnedFd) -> io::Result<Child> {
    let mut command = Command::new(&exe.path);
    command.arg0("vhost-user-vulkan").arg(role).arg("--channel-fd").arg(channel.as_raw_fd().to_string());
    command.args(&exe.arguments).stdin(Stdio::null()).process_group(0);
    sys::keep_only(&mut command, channel);
    command.spawn()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_child_has_only_its_channel_and_the_standard_descriptors() {
        // Descriptors without close-on-exec, as a library may leave them.
        let leaky = tempfile::tempfile().unwrap();
        rustix::io::fcntl_setfd(&leaky, rustix::io::FdFlags::empty()).unwrap();
        let link = |fd: i32| std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap();
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let theirs = OwnedFd::from(theirs);

        let script = tempfile::tempdir().unwrap();
        let path = script.path().join("child");
        std::fs::write(&path, "#!/bin/sh\neval \"(echo $1; readlink /proc/$$/fd/*) >&$3\"\n").unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        let mut child = spawn(&Exe::new(Some(path.clone()), Vec::new()), "worker", &theirs).unwrap();
        let channel = link(theirs.as_raw_fd());
        drop(theirs);

        let mut said = String::new();
        ours.read_to_string(&mut said).unwrap();
        assert!(child.wait().unwrap().success());
        let (role, links) = said.split_once('\n').unwrap();
        assert_eq!(role, "worker");
        // The shell has the script open, too.
        let expected = ["/dev/null".into(), link(1), link(2), channel.clone(), path];
        let links: Vec<PathBuf> = links.lines().map(PathBuf::from).collect();
        assert!(links.contains(&channel), "{links:?}");
        assert!(links.iter().all(|link| expected.contains(link)), "{links:?} of {expected:?}");
    }
}
