//! Commands that run side by side, and how each ended. Their output is passed on; if all are silent for too long (`program::silence`), they hang.

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

use super::progress::Progress;
use super::tally::Tally;
use crate::program::silence::{Silence, ticks_of};

/// A command to run.
pub(super) struct Job {
    name: String,
    command: Command,
    /// The output is kept instead of passed on.
    is_quiet: bool,
}

/// The outcome of a command.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub progress: Progress,
    /// The command ended by itself, with a status of success.
    pub succeeded: bool,
    /// The output of a quiet command.
    pub told: String,
}

/// A command that runs.
struct Running {
    at: usize,
    child: Child,
    is_quiet: bool,
    /// Streams of it that are open.
    open: usize,
    outcome: Outcome,
}

/// A piece of a command's output.
enum Piece {
    Output(Vec<u8>),
    Errors(Vec<u8>),
    /// The stream has ended.
    End,
}

impl Job {
    pub(super) fn new(name: &str, command: Command) -> Self {
        Self { name: name.to_owned(), command, is_quiet: false }
    }

    /// A command whose output is kept and not shown; its errors are shown.
    pub(super) fn quiet(name: &str, command: Command) -> Self {
        Self { is_quiet: true, ..Self::new(name, command) }
    }

    fn start(mut self, at: usize, pieces: &Sender<(usize, Piece)>) -> Result<Running> {
        self.command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = self.command.spawn().with_context(|| format!("cannot run {}", self.name))?;
        let output = child.stdout.take().context("stdout is piped")?;
        let errors = child.stderr.take().context("stderr is piped")?;
        pass_on(output, at, pieces.clone(), Piece::Output);
        pass_on(errors, at, pieces.clone(), Piece::Errors);
        let outcome = Outcome { progress: Progress::of(&self.name), ..Outcome::default() };
        Ok(Running { at, child, is_quiet: self.is_quiet, open: 2, outcome })
    }
}

impl Outcome {
    /// Counts a stage without tests as one check: formatting, lints, tests that do not build, a stage that hangs.
    pub(super) fn tally(&self) -> Tally {
        let mut tally = self.progress.tally();
        if !self.succeeded && tally.failed == 0 {
            tally.failed = 1;
        } else if tally == Tally::default() && self.progress.ignored == 0 {
            tally.passed = 1;
        }
        tally
    }

    /// The lines at the end of a stage: if the stage was cut off, the tests that were running; and the tests that failed, with their messages.
    pub(super) fn summary(&self) -> String {
        let mut text = String::new();
        if !self.succeeded {
            self.progress.running().iter().for_each(|test| text += &format!("== it was running: {test}\n"));
        }
        for failure in &self.progress.failed {
            text += &format!("== failed: {}\n", failure.test);
            failure.message.iter().for_each(|line| text += &format!("     {line}\n"));
        }
        text
    }
}

impl Running {
    /// Takes a piece of the output, and passes it on.
    fn hear(&mut self, piece: Piece) -> Result<()> {
        match piece {
            Piece::Output(bytes) if self.is_quiet => self.outcome.told += &String::from_utf8_lossy(&bytes),
            Piece::Output(bytes) => {
                print!("{}", self.outcome.progress.heard(&String::from_utf8_lossy(&bytes)));
                std::io::stdout().flush().context("printing")?;
            }
            Piece::Errors(bytes) => eprint!("{}", String::from_utf8_lossy(&bytes)),
            Piece::End => self.open -= 1,
        }
        Ok(())
    }

    fn end(mut self, hangs: bool) -> Result<(usize, Outcome)> {
        self.outcome.succeeded = self.child.wait()?.success() && !hangs;
        Ok((self.at, self.outcome))
    }
}

/// Runs commands, `lanes` at a time, and passes on their output. After a silence that is too long it ends the running commands, starts no other, and
/// names the tests that were running. `silence_max` is the longest silence of idle commands.
pub(super) fn watch(jobs: Vec<Job>, lanes: usize, silence_max: Duration) -> Result<Vec<Outcome>> {
    let (sender, pieces) = mpsc::channel();
    let mut waiting = jobs.into_iter().enumerate();
    let mut running: Vec<Running> = Vec::new();
    let mut ended = Vec::new();
    let mut silence = Silence::new(silence_max);
    loop {
        while running.len() < lanes.max(1) {
            let Some((at, job)) = waiting.next() else { break };
            running.push(job.start(at, &sender)?);
        }
        if running.is_empty() {
            break;
        }
        match pieces.recv_timeout(silence.pause()) {
            Ok((at, piece)) => {
                silence.heard();
                let Some(place) = running.iter().position(|job| job.at == at) else { continue };
                running[place].hear(piece)?;
                if running[place].open == 0 {
                    ended.push(running.swap_remove(place).end(false)?);
                }
            }
            Err(RecvTimeoutError::Timeout) => {
                let used = ticks_of(running.iter().map(|job| job.child.id()));
                let Some(too_long) = silence.look(used) else { continue };
                println!("\n== {too_long}: stopped");
                for job in running {
                    stop(&job.child);
                    ended.push(job.end(true)?);
                }
                break;
            }
            Err(RecvTimeoutError::Disconnected) => unreachable!("this function holds a sender"),
        }
    }
    ended.sort_by_key(|(at, _)| *at);
    let outcomes: Vec<_> = ended.into_iter().map(|(_, outcome)| outcome).collect();
    outcomes.iter().for_each(|outcome| print!("{}", outcome.summary()));
    Ok(outcomes)
}

/// Sends the output of `stream` piece by piece.
fn pass_on(
    mut stream: impl Read + Send + 'static,
    at: usize,
    sender: Sender<(usize, Piece)>,
    piece: impl Fn(Vec<u8>) -> Piece + Send + 'static,
) {
    thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = stream.read(&mut bytes) {
            if sender.send((at, piece(bytes[..count].to_vec()))).is_err() {
                return;
            }
        }
        // The receiver no longer exists if the run was stopped.
        let _ = sender.send((at, Piece::End));
    });
}

/// Ends a command and the processes that it started.
fn stop(child: &Child) {
    let group = rustix::process::Pid::from_child(child);
    rustix::process::kill_process_group(group, rustix::process::Signal::KILL).ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A silence that no test here reaches.
    const LONG: Duration = Duration::from_secs(600);

    fn shell(script: &str) -> Job {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Job::new("sh", command)
    }

    fn one(script: &str, silence: Duration) -> Outcome {
        watch(vec![shell(script)], 1, silence).unwrap().remove(0)
    }

    #[test]
    fn a_command_that_says_nothing_is_ended_and_what_it_had_done_is_kept() {
        let script = "echo 'test one ... ok'; printf 'test two ... '; sleep 1000000";
        // A command that gets no processor for the whole silence is ended before its first output.
        let mut outcomes = [2, 20, 200].into_iter().map(|seconds| one(script, Duration::from_secs(seconds)));
        let outcome = outcomes.find(|outcome| !outcome.progress.running().is_empty()).unwrap();
        assert!(!outcome.succeeded);
        assert_eq!(
            (outcome.progress.running(), outcome.tally()),
            (vec!["sh: two".to_owned()], Tally { passed: 1, failed: 1 })
        );
    }

    #[test]
    fn the_last_lines_name_what_failed_and_say_why() {
        let script = "echo 'test one ... FAILED'; echo; echo '---- one stdout ----'; echo \"thread 'one' panicked at x.rs:1:2:\"; \
                      echo 'no ring'; echo 'stack backtrace:'; echo '   0: <unknown>'; exit 101";
        let summary = one(script, LONG).summary();
        assert_eq!(summary, "== failed: sh: one\n     thread 'one' panicked at x.rs:1:2:\n     no ring\n");
        let cut_off = one("printf 'test one ... '; kill -9 $$", LONG);
        assert_eq!((cut_off.summary().as_str(), cut_off.tally().failed), ("== it was running: sh: one\n", 1));
    }

    #[test]
    fn what_is_not_made_of_tests_is_one_check() {
        for (script, tally) in
            [("true", Tally { passed: 1, failed: 0 }), ("echo no; exit 3", Tally { passed: 0, failed: 1 })]
        {
            assert_eq!(one(script, LONG).tally(), tally);
        }
    }

    #[test]
    fn commands_run_side_by_side_and_their_outcomes_stay_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name).display().to_string();
        // Each command waits for the file that the other one makes.
        let meet = |mine: &str, other: &str| {
            shell(&format!(
                "touch {}; until [ -e {} ]; do sleep 0.05; done; echo 'test {mine} ... ok'",
                file(mine),
                file(other)
            ))
        };
        let jobs = vec![meet("a", "b"), meet("b", "a"), shell("exit 1")];
        let outcomes = watch(jobs, 2, LONG).unwrap();
        assert_eq!(outcomes.iter().map(|outcome| outcome.succeeded).collect::<Vec<_>>(), [true, true, false]);
    }

    #[test]
    fn a_quiet_command_tells_what_it_printed() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo one; echo two >&2"]);
        let outcome = watch(vec![Job::quiet("sh", command)], 1, LONG).unwrap().remove(0);
        assert_eq!((outcome.told.as_str(), outcome.succeeded), ("one\n", true));
    }
}
