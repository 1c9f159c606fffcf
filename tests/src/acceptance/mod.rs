//! The acceptance run: everything that must hold, as named stages, stopping at the first that fails.
//!
//! The machine's speed and what else it does decide nothing: a stage is stopped when nothing comes of it, however long it takes in all.

mod progress;

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::prerequisites;
use progress::Progress;

/// One stage: a cargo command, and how its outcome counts.
pub struct Stage {
    /// The name by which the user selects the stage.
    pub name: &'static str,
    arguments: Vec<String>,
    needs_gpu: bool,
}

/// The numbers of checks that passed and that failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Tests, and stages that are not made of tests, that passed.
    pub passed: usize,
    /// Tests, and stages that are not made of tests, that failed.
    pub failed: usize,
}

/// The cargo feature that turns the tests with virtual machines on; it is given everywhere, so that nothing is compiled twice.
const GUESTS: &str = "--features=tests/guests";

/// The cargo feature that adds the driver that does nothing, so that what runs on that driver is checked, too.
const NULL_DRIVER: &str = "--features=daemon/null-driver";

/// A link in a comment that leads nowhere fails the stage.
const DOC_STRICT: &str = "--config=build.rustdocflags=['-D', 'warnings']";

/// A stage that prints nothing for so long is hanging. No single test needs a quarter of it on two processors that do nothing else; the
/// limits that tests have for programs are shorter, so that a test that hangs fails by itself and says why.
const SILENCE_MAX: Duration = Duration::from_secs(40 * 60);

/// All stages in the order they run. Test programs, which are files or folders, belong to a stage by the first word of their name.
///
/// # Errors
/// The folder with the integration tests cannot be read.
pub fn stages() -> Result<Vec<Stage>> {
    let mut behaviour = Vec::new();
    let (mut bridge, mut patched, mut vm, mut gpu) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut package = Vec::new();
    for name in integration_tests()? {
        match name.split('_').next() {
            Some("bridge") => bridge.push(name),
            Some("patched") => patched.push(name),
            Some("vm") => vm.push(name),
            Some("gpu") => gpu.push(name),
            Some("package") => package.push(name),
            _ => behaviour.push(name),
        }
    }
    let mut stages = vec![
        stage("fmt", &["fmt", "--all", "--check"]),
        stage(
            "clippy",
            &[
                ["clippy", "--workspace", "--all-targets", GUESTS, NULL_DRIVER].as_slice(),
                ["--", "-D", "warnings"].as_slice(),
            ]
            .concat(),
        ),
        stage(
            "doc",
            &["doc", "--workspace", "--no-deps", "--document-private-items", GUESTS, NULL_DRIVER, DOC_STRICT],
        ),
        stage("codegen", &["codegen", "--check"]),
        stage("features", &["features-doc", "--check"]),
        stage("unit", &["test", "--no-fail-fast", "--workspace", "--lib", "--bins", GUESTS]),
        stage(
            "generator",
            &["test", "--no-fail-fast", "--package", "protocol", "--package", "codegen", "--tests"],
        ),
    ];
    let by_name = [
        ("behaviour", behaviour),
        ("package", package),
        ("bridge", bridge),
        ("patched", patched),
        ("vm", vm),
        ("gpu", gpu),
    ];
    for (name, tests) in by_name {
        if !tests.is_empty() {
            let mut stage = stage(name, &["test", "--no-fail-fast", "--package", "tests", GUESTS]);
            stage.arguments.extend(tests.into_iter().flat_map(|test| ["--test".to_owned(), test]));
            stage.needs_gpu = name == "gpu";
            if name == "vm" {
                // An emulated machine has one processor, so two machines keep two busy; more would starve each other, and take memory.
                stage.arguments.extend(["--", "--test-threads=2"].map(str::to_owned));
            }
            stages.push(stage);
        }
    }
    stages.push(stage(
        "instructions",
        &["run", "--quiet", "--package", "tests", GUESTS, "--bin", "instructions"],
    ));
    // Last: it takes longest and finds what nobody expects.
    stages.push(stage("fuzz", &["run", "--quiet", "--package", "tests", GUESTS, "--bin", "fuzz"]));
    Ok(stages)
}

/// Runs `stages` in order until one fails. Prints what runs, how long it took, and which tests failed.
///
/// # Errors
/// A stage could not be started at all.
pub fn run(stages: &[Stage]) -> Result<Tally> {
    let mut total = Tally::default();
    for (index, stage) in stages.iter().enumerate() {
        println!("== {} ({} of {})", stage.name, index + 1, stages.len());
        let gpu_required = std::env::var_os("REQUIRE_GPU").is_some();
        if stage.needs_gpu && !gpu_required && !prerequisites::has_gpu() {
            println!("== {}: skipped: no GPU", stage.name);
            continue;
        }
        let started = Instant::now();
        let tally = stage.run().with_context(|| format!("stage {}", stage.name))?;
        total = Tally { passed: total.passed + tally.passed, failed: total.failed + tally.failed };
        let verdict = if tally.failed == 0 { "passed" } else { "FAILED" };
        let Tally { passed, failed } = tally;
        let took = started.elapsed().as_secs_f32();
        println!("== {}: {verdict} in {took:.1} s: {passed} passed, {failed} failed", stage.name);
        if tally.failed > 0 {
            break;
        }
    }
    Ok(total)
}

impl Stage {
    fn run(&self) -> Result<Tally> {
        let mut command = Command::new(env!("CARGO"));
        command.args(&self.arguments);
        Ok(watch(command, SILENCE_MAX)?.tally())
    }
}

/// The outcome of a command.
struct Outcome {
    progress: Progress,
    /// The command ended by itself and says that all is well.
    succeeded: bool,
}

impl Outcome {
    /// Counts what is not made of tests as one check: formatting, lints, tests that do not build, a stage that hangs.
    fn tally(&self) -> Tally {
        let mut tally = self.progress.tally();
        if !self.succeeded && tally.failed == 0 {
            tally.failed = 1;
        } else if tally == Tally::default() {
            tally.passed = 1;
        }
        tally
    }

    /// The lines at the end of a stage: the tests that were running if it was cut off, and those that failed, with their messages.
    fn summary(&self) -> String {
        let mut text = String::new();
        self.progress.running().iter().for_each(|test| text += &format!("== it was running: {test}\n"));
        for failure in &self.progress.failed {
            text += &format!("== failed: {}\n", failure.test);
            failure.message.iter().for_each(|line| text += &format!("     {line}\n"));
        }
        text
    }
}

/// A piece of what a command prints.
enum Piece {
    Output(Vec<u8>),
    Errors(Vec<u8>),
}

/// Runs a command and passes on what it prints. One that prints nothing for `silence` is ended, and the tests that were running are named.
fn watch(mut command: Command, silence: Duration) -> Result<Outcome> {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().context("cannot run cargo")?;
    let (sender, pieces) = mpsc::channel();
    pass_on(child.stdout.take().context("stdout is piped")?, sender.clone(), Piece::Output);
    pass_on(child.stderr.take().context("stderr is piped")?, sender, Piece::Errors);
    let mut progress = Progress::default();
    let hangs = loop {
        match pieces.recv_timeout(silence) {
            Ok(Piece::Output(bytes)) => {
                let text = String::from_utf8_lossy(&bytes);
                progress.heard(&text);
                print!("{text}");
                std::io::stdout().flush().context("printing")?;
            }
            Ok(Piece::Errors(bytes)) => {
                let text = String::from_utf8_lossy(&bytes);
                progress.heard_of_cargo(&text);
                eprint!("{text}");
            }
            Err(RecvTimeoutError::Timeout) => break true,
            Err(RecvTimeoutError::Disconnected) => break false,
        }
    };
    if hangs {
        stop(&child);
        println!("\n== nothing was printed for {} minutes: stopped", silence.as_secs() / 60);
    }
    let succeeded = child.wait()?.success() && !hangs;
    let outcome = Outcome { progress, succeeded };
    print!("{}", outcome.summary());
    Ok(outcome)
}

/// Sends what comes out of `stream`, as it comes.
fn pass_on(
    mut stream: impl Read + Send + 'static,
    sender: Sender<Piece>,
    piece: impl Fn(Vec<u8>) -> Piece + Send + 'static,
) {
    thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = stream.read(&mut bytes) {
            if sender.send(piece(bytes[..count].to_vec())).is_err() {
                break;
            }
        }
    });
}

fn stage(name: &'static str, arguments: &[&str]) -> Stage {
    Stage { name, arguments: arguments.iter().map(|&word| word.to_owned()).collect(), needs_gpu: false }
}

fn integration_tests() -> Result<Vec<String>> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests");
    let Ok(entries) = std::fs::read_dir(folder) else { return Ok(Vec::new()) };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry?;
        let (name, is_folder) = (entry.file_name(), entry.path().join("main.rs").is_file());
        let name =
            name.to_str().and_then(|name| if is_folder { Some(name) } else { name.strip_suffix(".rs") });
        names.extend(name.map(str::to_owned));
    }
    names.sort();
    Ok(names)
}

/// Ends cargo and the tests it started.
fn stop(child: &Child) {
    let group = rustix::process::Pid::from_child(child);
    rustix::process::kill_process_group(group, rustix::process::Signal::KILL).ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_command_that_says_nothing_is_ended_and_what_it_had_done_is_kept() {
        let script = "echo 'test one ... ok'; printf 'test two ... '; sleep 1000000";
        let outcome = watch(shell(script), Duration::from_secs(20)).unwrap();
        assert!(!outcome.succeeded);
        assert_eq!(
            (outcome.progress.running(), outcome.tally()),
            (vec!["two".to_owned()], Tally { passed: 1, failed: 1 })
        );
    }

    #[test]
    fn the_last_lines_name_what_failed_and_say_why() {
        let script = "echo 'test one ... FAILED'; echo; echo '---- one stdout ----'; echo \"thread 'one' panicked at x.rs:1:2:\"; \
                      echo 'no ring'; echo 'stack backtrace:'; echo '   0: <unknown>'; exit 101";
        let summary = watch(shell(script), SILENCE_MAX).unwrap().summary();
        assert_eq!(summary, "== failed: one\n     thread 'one' panicked at x.rs:1:2:\n     no ring\n");
        let cut_off = watch(shell("printf 'test one ... '; kill -9 $$"), SILENCE_MAX).unwrap();
        assert_eq!((cut_off.summary().as_str(), cut_off.tally().failed), ("== it was running: one\n", 1));
    }

    #[test]
    fn what_is_not_made_of_tests_is_one_check() {
        for (script, tally) in
            [("true", Tally { passed: 1, failed: 0 }), ("echo no; exit 3", Tally { passed: 0, failed: 1 })]
        {
            assert_eq!(watch(shell(script), SILENCE_MAX).unwrap().tally(), tally);
        }
    }
}
