//! The paths of control sockets: where a daemon listens if its command line names none, and where an operator who names none finds a daemon.

use crate::service::runtime_folder;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The folder of the services that packages install.
const SERVICE_FOLDER: &str = "/run/vhost-user-vulkan";
/// The name of the control socket in a service's own folder.
const SERVICE_NAME: &str = "control.sock";
/// The end of the name of a control socket that lies beside the socket of its only VM.
const SUFFIX: &str = ".control";
/// The time for which each daemon may keep an operator waiting who has named none.
pub(in crate::broker) const LOOK: Duration = Duration::from_secs(1);

/// The error that several daemons run, and the operator has not said which is meant.
#[derive(Debug, thiserror::Error)]
#[error("several daemons run here; say which one is meant with one of {}", .0.iter().map(|path| format!("--control-socket {}", path.display())).collect::<Vec<_>>().join(", "))]
pub struct Ambiguous(pub(in crate::broker) Vec<PathBuf>);

/// Returns the path at which the daemon of one VM listens for operators by default: beside the VM's socket, and absolute, so that operators find it
/// in the kernel's list.
///
/// # Errors
///
/// The VM's socket has no path, or a relative one in a folder that is gone.
pub fn control_socket_beside(socket: Option<PathBuf>) -> io::Result<PathBuf> {
    let socket = socket.ok_or_else(|| io::Error::other("the VM's socket has no path"))?;
    let mut path = OsString::from(std::path::absolute(socket)?);
    path.push(SUFFIX);
    Ok(path.into())
}

/// Returns where a broker listens whose settings name no control socket: in the folder that the service manager has made for it
/// (`RUNTIME_DIRECTORY`), else in the user's own ([`user_control_socket`]).
pub(super) fn default_control_socket() -> PathBuf {
    runtime_folder().map_or_else(user_control_socket, |folder| folder.join(SERVICE_NAME))
}

/// Returns where an operator who names no control socket finds a broker: the first socket that exists among that in the folder of this service, that
/// of this user's broker, and that of the system's service. If none exists, returns the path for this user's broker.
#[must_use]
pub fn brokers_control_socket() -> PathBuf {
    broker().or_else(hidden_broker).unwrap_or_else(user_control_socket)
}

/// Returns where an operator who names no control socket finds a daemon: a broker, as [`brokers_control_socket`], or else the only daemon of one VM
/// that lets this user in. If none lets this user in, returns the socket of a daemon that refuses, so that the operator gets the refusal.
///
/// # Errors
///
/// There are several daemons of one VM, and no broker.
pub fn operators_control_socket() -> Result<PathBuf, Ambiguous> {
    broker().map_or_else(|| the_only(daemons_of_one_vm()), Ok)
}

/// Returns the control sockets of the running daemons: of a broker, and of all daemons of one VM that let this user in.
#[must_use]
pub fn control_sockets() -> Vec<PathBuf> {
    broker().into_iter().chain(daemons_of_one_vm().open).collect()
}

/// The sockets at which daemons may listen that an operator can mean.
#[derive(Debug, Default)]
pub(in crate::broker) struct Places {
    /// The socket of a broker, if it exists.
    pub broker: Option<PathBuf>,
    /// The sockets of daemons of one VM, whether they let this user in or not.
    pub of_one_vm: Vec<PathBuf>,
}

impl Places {
    /// Returns the number of places.
    pub(in crate::broker) fn count(&self) -> usize {
        self.of_one_vm.len() + usize::from(self.broker.is_some())
    }
}

/// Returns the places where a daemon may listen, without asking any.
pub(in crate::broker) fn places() -> Places {
    Places { broker: broker(), of_one_vm: beside_vms() }
}

fn broker() -> Option<PathBuf> {
    places_of_brokers().into_iter().find(|path| path.exists())
}

/// Returns the socket of a broker in a folder that this user may not read.
fn hidden_broker() -> Option<PathBuf> {
    places_of_brokers().into_iter().find(|path| path.try_exists().is_err())
}

fn places_of_brokers() -> [PathBuf; 3] {
    [default_control_socket(), user_control_socket(), Path::new(SERVICE_FOLDER).join(SERVICE_NAME)]
}

/// The daemons that were found.
#[derive(Debug, Default)]
struct Found {
    /// The sockets that let this user in.
    open: Vec<PathBuf>,
    /// The sockets that refuse this user.
    closed: Vec<PathBuf>,
}

fn the_only(Found { mut open, closed }: Found) -> Result<PathBuf, Ambiguous> {
    match open.len() {
        0 => Ok(closed.into_iter().next().unwrap_or_else(user_control_socket)),
        1 => Ok(open.remove(0)),
        _ => Err(Ambiguous(open)),
    }
}

/// The control socket of a broker that no service manager has started: in the user's own folder (`XDG_RUNTIME_DIR`), or in the system's
/// (`/run`) for root and for a user without a folder.
fn user_control_socket() -> PathBuf {
    const NAME: &str = "vhost-user-vulkan.sock";
    let own = std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| !folder.is_empty());
    match own {
        Some(folder) if !rustix::process::geteuid().is_root() => Path::new(&folder).join(NAME),
        _ => Path::new("/run").join(NAME),
    }
}

/// Looks for the control sockets of daemons of one VM, and of a broker in a folder that this user may not read.
fn daemons_of_one_vm() -> Found {
    let mut found = tried(beside_vms());
    found.closed.extend(hidden_broker());
    found
}

/// Returns the control sockets that lie beside VMs' sockets: the sockets of this network namespace that this user or root has made, and those of
/// services, which have namespaces of their own.
fn beside_vms() -> Vec<PathBuf> {
    let mut paths = listed(&fs::read("/proc/net/unix").unwrap_or_default());
    paths.retain(|path| is_of_this_user_or_root(path));
    let folder = fs::read_dir(SERVICE_FOLDER).into_iter().flatten();
    paths.extend(folder.filter_map(|file| Some(file.ok()?.path())));
    paths.sort_unstable();
    paths.dedup();
    paths.retain(|path| is_beside_another(path));
    paths
}

/// Tries which of the daemons at these paths let this user in.
fn tried(paths: Vec<PathBuf>) -> Found {
    let mut found = Found::default();
    for path in paths {
        match outside::connect(&path, LOOK) {
            Ok(_) => found.open.push(path),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => found.closed.push(path),
            Err(_) => {}
        }
    }
    found
}

/// Returns whether this user or root owns the file, so that this user may connect to it: any user can give a socket such a name.
fn is_of_this_user_or_root(path: &Path) -> bool {
    let trusted = [0, rustix::process::geteuid().as_raw()];
    path.symlink_metadata().is_ok_and(|file| trusted.contains(&file.uid()))
}

/// Returns the paths in the kernel's list of sockets: a path ends its line.
fn listed(sockets: &[u8]) -> Vec<PathBuf> {
    let path = |line: &[u8]| {
        let start = line.windows(2).position(|pair| pair == b" /")? + 1;
        Some(OsString::from_vec(line[start..].to_vec()).into())
    };
    sockets.split(|byte| *byte == b'\n').filter_map(path).collect()
}

/// Returns whether this is a control socket by its name, and the socket of a VM lies beside it.
fn is_beside_another(path: &Path) -> bool {
    let name = path.as_os_str().as_bytes().strip_suffix(SUFFIX.as_bytes());
    name.is_some_and(|socket| Path::new(std::ffi::OsStr::from_bytes(socket)).exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_control_socket_of_one_vm_is_found_beside_its_socket() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("a b.sock");
        let control = control_socket_beside(Some(socket.clone())).unwrap();
        assert_eq!(control, folder.path().join("a b.sock.control"));
        assert!(control_socket_beside(Some("relative.sock".into())).unwrap().is_absolute());
        assert!(control_socket_beside(None).is_err());
        assert!(!is_beside_another(&control), "there is no VM's socket");
        fs::write(&socket, "").unwrap();
        assert!(is_beside_another(&control));
        assert!(!is_beside_another(&socket));
        let lines = format!(
            "Num RefCount Protocol Flags Type St Inode Path\n0: 2 0 10000 1 1 7 {}\n0: 3 0 0 1 3 9\n0: 2 0 1 1 1 8 @/x",
            control.display()
        );
        assert_eq!(listed(lines.as_bytes()), [control]);
    }

    #[test]
    fn a_socket_of_another_user_is_no_daemon() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(is_of_this_user_or_root(file.path()));
        // Only root can give a file away.
        if std::os::unix::fs::chown(file.path(), Some(1), None).is_ok() {
            assert!(!is_of_this_user_or_root(file.path()));
        }
    }

    #[test]
    fn which_of_several_daemons_is_meant_has_to_be_said() {
        let found = |open: &[&str], closed: &[&str]| {
            let [open, closed] = [open, closed].map(|paths| paths.iter().map(PathBuf::from).collect());
            the_only(Found { open, closed })
        };
        assert_eq!(found(&["/run/a.control"], &["/b.control"]).unwrap(), Path::new("/run/a.control"));
        assert_eq!(found(&[], &["/b.control", "/c.control"]).unwrap(), Path::new("/b.control"));
        assert_eq!(found(&[], &[]).unwrap(), user_control_socket());
        assert_eq!(
            found(&["/a.control", "/b.control"], &[]).unwrap_err().to_string(),
            "several daemons run here; say which one is meant with one of --control-socket /a.control, --control-socket /b.control"
        );
    }
}
