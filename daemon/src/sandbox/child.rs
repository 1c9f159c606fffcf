//! The start of one child process by the launcher: the steps between fork and exec.

use super::cgroup::{self, WorkerGroup};
use super::isolation::{Isolation, PARTS};
use super::options::{Options, SandboxMode, SeccompMode, name_of};
use super::policy::{Policy, View};
use super::{limits, seccomp, sys};
use crate::ipc::{ChildRole, DriverFamily};
use crate::service::JOURNAL_STREAM;
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, set_parent_process_death_signal, waitid};
use rustix::thread::UnshareFlags;
use std::ffi::{CString, OsString};
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// The program of all children, their arguments, and their isolation.
#[derive(Debug)]
pub struct Program {
    file: OwnedFd,
    options: Options,
    log_level: String,
    isolation: Isolation,
    lacks: Vec<String>,
    families: Vec<(DriverFamily, Surroundings)>,
    /// The bytes of private memory that a child may have, if they are bounded.
    data: Option<u64>,
    /// The control group that limits all children together, if there is one.
    pub group: Option<WorkerGroup>,
}

/// The surroundings of children of one family of drivers.
#[derive(Debug)]
struct Surroundings {
    view: View,
    environment: Vec<CString>,
}

const FAMILIES: &[DriverFamily] =
    &[DriverFamily::Any, DriverFamily::Software, DriverFamily::Mesa, DriverFamily::Nvidia];

impl Program {
    /// Sets up this program, or the one at `path`, for children in this group, each with at most so many bytes of private memory. Tries out which
    /// parts of the isolation work here.
    pub fn new(
        path: Option<PathBuf>,
        options: Options,
        log_level: String,
        group: Option<&Path>,
        data: Option<u64>,
    ) -> io::Result<Self> {
        let path = path.as_deref().unwrap_or(Path::new("/proc/self/exe"));
        let file = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        let confined = options.sandbox != SandboxMode::None;
        let families = FAMILIES.iter().map(|&family| Ok((family, Surroundings::new(family, confined)?)));
        let families = families.collect::<io::Result<Vec<_>>>()?;
        if rustix::process::geteuid().is_root() && confined {
            families[0].1.view.private().for_each(|path| {
                log::warn!(
                    "not every user may read {}: workers, which run as the user nobody, go without it; `chmod o+r` lets them read it",
                    path.display()
                );
            });
        }
        let mut lacks = Vec::new();
        let isolation = if confined {
            rustix::thread::set_no_new_privs(true)?;
            find_isolation(&families[0].1.view, &mut lacks)
        } else {
            Isolation::none()
        };
        if confined
            && options.seccomp != SeccompMode::Off
            && let Err(error) = try_out(Isolation::none(), &View::default(), true)
        {
            lacks.push(format!("filter of system calls ({error})"));
        }
        let group = group.map(WorkerGroup::open).transpose()?;
        Ok(Self { file, options, log_level, isolation, lacks, families, data, group })
    }

    /// Returns the parts of the sandbox that this system lacks, one entry for each.
    pub fn lacks(&self) -> Vec<String> {
        self.lacks.clone()
    }

    fn surroundings(&self, family: DriverFamily) -> &Surroundings {
        let found = self.families.iter().find(|(known, _)| *known == family);
        found.map_or(&self.families[0].1, |(_, surroundings)| surroundings)
    }

    fn arguments(
        &self,
        role: ChildRole,
        family: DriverFamily,
        channel: &OwnedFd,
    ) -> io::Result<Vec<CString>> {
        let role = match role {
            ChildRole::Worker => "worker",
            ChildRole::Probe => "probe",
        };
        let family = name_of(family);
        let channel = channel.as_raw_fd().to_string();
        let level = &self.log_level;
        let fixed =
            ["vhost-user-vulkan", role, "--channel-fd", &channel, "--log-level", level, "--family", &family];
        let all = fixed.into_iter().map(str::to_owned).chain(self.options.arguments());
        Ok(all.map(CString::new).collect::<Result<_, _>>()?)
    }
}

impl Surroundings {
    fn new(family: DriverFamily, confined: bool) -> io::Result<Self> {
        let policy = Policy::of(family).map_err(io::Error::other)?;
        // A child's standard error does not go to the journal: only the device process writes there.
        let all = || std::env::vars_os().filter(|(name, _)| name != JOURNAL_STREAM);
        let kept = if confined { policy.environment() } else { all().collect() };
        let pair = |(mut name, value): (OsString, OsString)| {
            name.push("=");
            name.push(value);
            CString::new(name.into_vec())
        };
        let environment = kept.into_iter().map(pair).collect::<Result<_, _>>()?;
        Ok(Self { view: if confined { policy.view() } else { View::default() }, environment })
    }
}

/// Returns the whole isolation, or the parts that this system allows; names missing parts with the reason.
fn find_isolation(view: &View, lacks: &mut Vec<String>) -> Isolation {
    let none = Isolation::none();
    let all = PARTS.iter().fold(none, |isolation, (_, part)| isolation.with(*part));
    if try_out(all, view, false).is_ok() {
        return all;
    }
    PARTS.iter().fold(none, |isolation, (name, part)| match try_out(isolation.with(*part), view, false) {
        Ok(()) => isolation.with(*part),
        Err(error) => {
            lacks.push(format!("{name} ({error})"));
            isolation
        }
    })
}

/// Tries the isolation out on a copy of this process.
fn try_out(isolation: Isolation, view: &View, filter: bool) -> io::Result<()> {
    let (mut reader, writer) = io::pipe()?;
    let pid = match sys::fork(isolation.at_birth())? {
        sys::Fork::Parent(pid) => pid,
        sys::Fork::Child => {
            let confine = || match filter {
                true => seccomp::confine(
                    &Policy::of_init().map_err(io::Error::other)?.syscalls,
                    SeccompMode::Kill,
                ),
                false => isolation.enter(view),
            };
            if let Err(error) = confine() {
                report(writer, FAILED, error.to_string().as_bytes());
            }
            sys::end_at_once(0)
        }
    };
    drop(writer);
    let mut said = Vec::new();
    reader.read_to_end(&mut said)?;
    let status = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED)?;
    match (reported(&said), status.and_then(|status| status.exit_status())) {
        (Some(Err(reason)), _) => Err(io::Error::other(reason)),
        (_, Some(0)) => Ok(()),
        _ => Err(io::Error::other("the process that tried out the sandbox died")),
    }
}

/// Starts a child in a process group of its own, with a channel, and with a socket for its output; the child is killed when the launcher ends. The
/// returned reader has, at its end, the report of the start ([`reported`]).
pub(super) fn start(
    program: &Program,
    role: ChildRole,
    family: DriverFamily,
    [channel, output]: [&OwnedFd; 2],
) -> io::Result<(Pid, PipeReader)> {
    let arguments = program.arguments(role, family, channel)?;
    let (reader, writer) = io::pipe()?;
    match sys::fork(program.isolation.at_birth()).map_err(no_process)? {
        sys::Fork::Parent(pid) => Ok((pid, reader)),
        sys::Fork::Child => {
            let error =
                become_child(program, program.surroundings(family), &arguments, [channel, output], &writer);
            report(writer, FAILED, error.to_string().as_bytes());
            sys::end_at_once(1)
        }
    }
}

/// Goes through all steps; returns only if a step fails.
fn become_child(
    program: &Program,
    surroundings: &Surroundings,
    arguments: &[CString],
    [channel, output]: [&OwnedFd; 2],
    writer: &PipeWriter,
) -> io::Error {
    let Program { file, isolation, options, data, group, .. } = program;
    let prepare = || {
        // The standard streams here are the daemon's. No process of a guest may have them, not even for a moment in a namespace with the program.
        sys::print_to(output.as_fd())?;
        // Done before the new root hides the file systems that these steps need.
        if let Some(group) = group {
            group.enter().map_err(|error| io::Error::other(format!("its control group: {error}")))?;
        }
        match cgroup::go_first() {
            Err(error) if options.sandbox == SandboxMode::Strict => return Err(error),
            Ok(()) | Err(_) => {}
        }
        if options.sandbox != SandboxMode::None {
            isolation.enter(&surroundings.view)?;
        }
        // Set after the user has changed, because that change clears the setting.
        set_parent_process_death_signal(Some(Signal::KILL))?;
        if isolation.namespaces.contains(UnshareFlags::NEWPID)
            && let sys::Fork::Parent(pid) = sys::fork(UnshareFlags::empty()).map_err(no_process)?
        {
            represent(pid, writer, options);
        }
        set_parent_process_death_signal(Some(Signal::KILL))?;
        rustix::process::setpgid(None, None)?;
        if options.sandbox != SandboxMode::None {
            limits::set(isolation.namespaces.contains(UnshareFlags::NEWUSER), *data)?;
        }
        Ok(())
    };
    match prepare() {
        Ok(()) => sys::exec(file.as_fd(), arguments, &surroundings.environment, channel.as_raw_fd()),
        Err(error) => error,
    }
}

/// Names the bounds on processes.
fn no_process(error: io::Error) -> io::Error {
    io::Error::other(format!(
        "no process can be started ({error}): see --max-tasks, and TasksMax= of the unit"
    ))
}

/// Lives as the first process of a namespace. Signals do not end such a process as they end others, so the program runs in a second process. When the
/// first process ends, the kernel kills all others in the namespace.
fn represent(program: Pid, writer: &PipeWriter, options: &Options) -> ! {
    sys::close_all_but(writer.as_fd());
    if options.seccomp == SeccompMode::Kill
        && let Ok(Policy { syscalls, .. }) = Policy::of_init()
    {
        // The launcher names a missing filter when it begins.
        let _ = seccomp::confine(&syscalls, SeccompMode::Kill);
    }
    loop {
        match waitid(WaitId::Pid(program), WaitIdOptions::EXITED) {
            Err(rustix::io::Errno::INTR) => {}
            Ok(Some(status)) => {
                let _ = rustix::io::write(
                    writer,
                    &[[ENDED].as_slice(), &wait_status(&status).to_le_bytes()].concat(),
                );
                sys::end_at_once(0)
            }
            _ => sys::end_at_once(1),
        }
    }
}

/// Returns a status in the form of `wait`.
pub(super) fn wait_status(status: &rustix::process::WaitIdStatus) -> i32 {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => (code & 0xff) << 8,
        (None, Some(signal)) => signal & 0x7f,
        (None, None) => 0xff << 8,
    }
}

/// First byte of a report: the program was not started, with the reason; it has ended, with the status.
const FAILED: u8 = b'f';
const ENDED: u8 = b'e';

fn report(mut writer: PipeWriter, kind: u8, what: &[u8]) {
    // A zero ends the report, because the first process of a namespace reports after the program. A report that is not read is not needed.
    let _ = writer.write_all(&[&[kind], what, &[0]].concat());
}

/// Reads a child's report: how the program ended, or the reason why it was not started. The report is empty if the child became the program.
pub(super) fn reported(report: &[u8]) -> Option<Result<i32, String>> {
    match report.split_first()? {
        (&FAILED, rest) => {
            let reason = rest.split(|byte| *byte == 0).next().unwrap_or_default();
            Some(Err(String::from_utf8_lossy(reason).into_owned()))
        }
        (&ENDED, status) => Some(Ok(i32::from_le_bytes(status.try_into().ok()?))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_ends_before_the_report_that_follows_it() {
        let (mut reader, writer) = io::pipe().unwrap();
        let mut other = writer.try_clone().unwrap();
        report(writer, FAILED, b"no such file");
        other.write_all(&[ENDED, 0, 1, 0, 0]).unwrap();
        drop(other);
        let mut said = Vec::new();
        reader.read_to_end(&mut said).unwrap();
        assert_eq!(reported(&said), Some(Err("no such file".into())));
        assert_eq!(reported(&said[14..]), Some(Ok(256)));
        assert_eq!(reported(&[]), None);
    }
}
