//! A rehearsal: the new program is started as a child, reads the state that it would take over, says whether it understands this state, and ends. It
//! changes nothing, so a program that is broken, hangs, or does not know the form costs only an error message.

use crossbeam_channel::{Receiver, bounded};
use readiness::within;
use rustix::event::PollFlags;
use rustix::fs::{MemfdFlags, Mode, OFlags, memfd_create, open};
use serde::{Deserialize, Serialize};
use shm::{Doorbell, Listener};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The answer of a program that can take over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::broker) struct Rehearsed {
    /// The version of the program.
    pub(in crate::broker) takes_over: String,
}

/// A program: the path at which it was found, and its file, which stays the same if another file takes the path.
#[derive(Clone, Debug)]
pub(in crate::broker) struct Program {
    pub(in crate::broker) path: PathBuf,
    file: Arc<OwnedFd>,
}

impl Program {
    /// Opens the program that is at this path now. The owner of the path decides how long this takes.
    ///
    /// # Errors
    ///
    /// No program is there.
    pub(in crate::broker) fn at(path: PathBuf) -> io::Result<Self> {
        let named =
            |error| io::Error::new(io::Error::from(error).kind(), format!("{}: {error}", path.display()));
        let file = open(&path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(named)?;
        Ok(Self { file: Arc::new(file), path })
    }

    /// Returns a command that executes this very file, without a look at its path.
    pub(in crate::broker) fn command(&self) -> Command {
        let mut command = Command::new(format!("/proc/self/fd/{}", self.file.as_raw_fd()));
        command.arg0(&self.path);
        command
    }
}

/// The result of a rehearsal: the program and its answer, or the reason why it cannot take over.
pub(in crate::broker) type Outcome = Result<(Program, Rehearsed), String>;

/// A rehearsal that is under way.
#[derive(Debug)]
pub(in crate::broker) struct Rehearsal {
    result: Receiver<Outcome>,
    /// Reports to the broker's epoll instance that the rehearsal is over.
    _listener: Listener,
}

/// Time that a program has to understand the state.
const PATIENCE: Duration = Duration::from_secs(20);
/// Bytes of an answer, and of a program's messages on standard error.
const ANSWER_BYTES: usize = 4096;
/// The thread's name.
const THREAD: &str = "rehearsal";

impl Rehearsal {
    /// Starts a rehearsal, on its own thread, since file system and program start may take long. `epoll` reports its end under `token`.
    ///
    /// # Errors
    ///
    /// The system has no thread or no descriptor left.
    pub(in crate::broker) fn start(
        path: PathBuf,
        arguments: Vec<OsString>,
        state: Vec<u8>,
        (epoll, token): (&Arc<OwnedFd>, u64),
    ) -> io::Result<Self> {
        let bell = Doorbell::new()?;
        let listener = bell.listen(epoll, token)?;
        let (done, result) = bounded(1);
        std::thread::Builder::new().name(THREAD.into()).spawn(move || {
            let program = Program::at(path).map_err(|error| error.to_string());
            let outcome = program.and_then(|program| {
                let rehearsed = rehearse(&program, &arguments, &state, PATIENCE)?;
                Ok((program, rehearsed))
            });
            // The broker may end meanwhile.
            let _ = done.send(outcome);
            bell.ring();
        })?;
        Ok(Self { result, _listener: listener })
    }

    /// Returns the result, if the rehearsal is over.
    pub(in crate::broker) fn result(&self) -> Option<Outcome> {
        self.result.try_recv().ok()
    }
}

/// Returns a file that holds the state, from its beginning.
///
/// # Errors
///
/// The system refuses.
pub(in crate::broker) fn file_of(state: &[u8]) -> io::Result<File> {
    let mut file = File::from(memfd_create("broker-state", MemfdFlags::CLOEXEC)?);
    file.write_all(state)?;
    file.rewind()?;
    Ok(file)
}

fn rehearse(
    program: &Program,
    arguments: &[OsString],
    state: &[u8],
    patience: Duration,
) -> Result<Rehearsed, String> {
    let named = |what: &dyn std::fmt::Display| format!("{}: {what}", program.path.display());
    let mut command = program.command();
    crate::service::VARIABLES.iter().for_each(|name| _ = command.env_remove(name));
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.stdin(file_of(state).map_err(|error| named(&error))?);
    let mut child = command.spawn().map_err(|error| named(&error))?;
    let said = hear(&mut child, Instant::now() + patience);
    // A program that has not ended by itself is killed now.
    let _ = child.kill();
    let _ = child.wait();
    said.map_err(|error| named(&error))
}

/// Returns the program's answer.
fn hear(child: &mut Child, until: Instant) -> Result<Rehearsed, String> {
    let answer = child.stdout.take().map(|pipe| read(pipe, until)).transpose();
    let answer = answer.map_err(|error| error.to_string())?.unwrap_or_default();
    serde_json::from_slice(&answer).map_err(|_| {
        let errors = child.stderr.take().and_then(|pipe| read(pipe, until).ok()).unwrap_or_default();
        let said = String::from_utf8_lossy(&errors);
        let said: String = said.trim().chars().map(outside::visible).collect();
        match said.is_empty() {
            true => "it does not say that it can take over".to_owned(),
            false => format!("it cannot take over: {said}"),
        }
    })
}

/// Reads until the end, or up to the length limit of an answer.
fn read(mut pipe: impl Read + AsFd, until: Instant) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; ANSWER_BYTES];
    let mut count = 0;
    while count < bytes.len() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || within(&pipe, PollFlags::IN, left)?.is_empty() {
            let patience = PATIENCE.as_secs();
            return Err(io::Error::other(format!("it does not answer within {patience} s")));
        }
        match pipe.read(&mut bytes[count..])? {
            0 => break,
            more => count += more,
        }
    }
    bytes.truncate(count);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The time after which a test counts as hung.
    const LONG: Duration = Duration::from_secs(300);

    fn shell(script: &str, patience: Duration) -> Result<Rehearsed, String> {
        let program = Program::at("/bin/sh".into()).unwrap();
        rehearse(&program, &["-c".into(), script.into()], b"the state", patience)
    }

    #[test]
    fn a_program_that_reads_the_state_and_says_so_can_take_over() {
        let said = shell(r#"[ "$(cat)" = "the state" ] && echo '{"takes_over":"7.0"}'"#, LONG);
        assert_eq!(said, Ok(Rehearsed { takes_over: "7.0".into() }));
    }

    #[test]
    fn one_that_says_nothing_or_something_else_or_dies_cannot() {
        for script in ["", "echo yes", "false", "head -c 3 >&2 && kill -9 $$", "yes"] {
            let error = shell(script, LONG).unwrap_err();
            assert!(error.starts_with("/bin/sh: it "), "{script}: {error}");
        }
        let error = shell("printf 'the form\\n7' >&2", LONG).unwrap_err();
        assert!(error.contains("it cannot take over: the form"), "{error}");
        let nowhere = Program::at("/nowhere/program".into()).unwrap_err().to_string();
        assert!(nowhere.starts_with("/nowhere/program: "), "{nowhere}");
    }

    #[test]
    fn a_file_that_takes_the_path_of_a_program_is_not_executed_in_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        std::os::unix::fs::symlink("/bin/true", &path).unwrap();
        let program = Program::at(path.clone()).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/bin/false", &path).unwrap();
        assert!(program.command().status().unwrap().success());
    }

    #[test]
    fn one_that_hangs_is_ended() {
        let error = shell("exec sleep 1000", Duration::from_millis(200)).unwrap_err();
        assert!(error.contains("it does not answer within"), "{error}");
    }
}
