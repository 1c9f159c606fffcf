//! The acceptance run: everything that must hold, as named stages, stopping at the first that fails.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::prerequisites;

/// One stage: a cargo command, and how its outcome counts.
pub struct Stage {
    /// What the user calls it.
    pub name: &'static str,
    arguments: Vec<String>,
    needs_gpu: bool,
}

/// How many checks held and how many did not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Tests, and stages that are not made of tests, that passed.
    pub passed: usize,
    /// The same that failed.
    pub failed: usize,
}

/// Turns the tests with virtual machines on; everywhere, so that nothing is compiled twice.
const GUESTS: &str = "--features=tests/guests";

/// What runs on the driver that does nothing is checked, too.
const NULL_DRIVER: &str = "--features=daemon/null-driver";

/// No stage takes this long; whatever does is hanging.
const STAGE_LIMIT: Duration = Duration::from_secs(25 * 60);

/// All stages in the order they run. Test files belong to a stage by the first word of their name.
///
/// # Errors
/// The folder with the integration tests cannot be read.
pub fn stages() -> Result<Vec<Stage>> {
    let mut behaviour = Vec::new();
    let (mut bridge, mut vm, mut gpu) = (Vec::new(), Vec::new(), Vec::new());
    for name in integration_tests()? {
        match name.split('_').next() {
            Some("bridge") => bridge.push(name),
            Some("vm") => vm.push(name),
            Some("gpu") => gpu.push(name),
            _ => behaviour.push(name),
        }
    }
    let mut stages = vec![
        stage("fmt", &["fmt", "--all", "--check"]),
        stage(
            "clippy",
            &[
                ["clippy", "--quiet", "--workspace", "--all-targets", GUESTS, NULL_DRIVER].as_slice(),
                ["--", "-D", "warnings"].as_slice(),
            ]
            .concat(),
        ),
        stage("codegen", &["codegen", "--check"]),
        stage("features", &["features-doc", "--check"]),
        stage("unit", &["test", "--quiet", "--workspace", "--lib", "--bins", GUESTS]),
        stage("generator", &["test", "--quiet", "--package", "protocol", "--package", "codegen", "--tests"]),
    ];
    for (name, tests) in [("behaviour", behaviour), ("bridge", bridge), ("vm", vm), ("gpu", gpu)] {
        if !tests.is_empty() {
            let mut stage = stage(name, &["test", "--quiet", "--package", "tests", GUESTS]);
            stage.arguments.extend(tests.into_iter().flat_map(|test| ["--test".to_owned(), test]));
            stage.needs_gpu = name == "gpu";
            if name == "vm" {
                // Emulated machines side by side only starve each other.
                stage.arguments.extend(["--", "--test-threads=1"].map(str::to_owned));
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

/// Runs `stages` in order until one fails. Prints what runs and how long it took.
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
        println!("== {}: {verdict} in {:.1} s", stage.name, started.elapsed().as_secs_f32());
        if tally.failed > 0 {
            break;
        }
    }
    Ok(total)
}

impl Stage {
    fn run(&self) -> Result<Tally> {
        let mut child = Command::new(env!("CARGO"))
            .args(&self.arguments)
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .context("cannot run cargo")?;
        let stdout = child.stdout.take().context("stdout is piped")?;
        let (sender, receiver) = mpsc::channel();
        let reader = thread::spawn(move || {
            let mut tally = Tally::default();
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                println!("{line}");
                tally.add_result_line(&line);
            }
            sender.send(tally).ok();
        });
        let tally = receiver.recv_timeout(STAGE_LIMIT);
        if tally.is_err() {
            stop(&child);
        }
        reader.join().expect("the reader does not panic");
        let status = child.wait()?;
        let Ok(mut tally) = tally else {
            bail!("still running after {} minutes", STAGE_LIMIT.as_secs() / 60)
        };
        // Formatting, lints and tests that do not build are one check of their own.
        if !status.success() && tally.failed == 0 {
            tally.failed = 1;
        } else if tally == Tally::default() {
            tally.passed = 1;
        }
        Ok(tally)
    }
}

impl Tally {
    /// Counts a line as the test harness prints it: `test result: ok. 3 passed; 1 failed; …`.
    fn add_result_line(&mut self, line: &str) {
        let Some(result) = line.strip_prefix("test result: ") else { return };
        for part in result.split([';', '.']) {
            let mut words = part.split_whitespace();
            if let (Some(Ok(count)), Some(kind)) = (words.next().map(str::parse::<usize>), words.next()) {
                match kind {
                    "passed" => self.passed += count,
                    "failed" => self.failed += count,
                    _ => {}
                }
            }
        }
    }
}

fn stage(name: &'static str, arguments: &[&str]) -> Stage {
    Stage { name, arguments: arguments.iter().map(|&word| word.to_owned()).collect(), needs_gpu: false }
}

fn integration_tests() -> Result<Vec<String>> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests");
    let Ok(entries) = std::fs::read_dir(folder) else { return Ok(Vec::new()) };
    let mut names = Vec::new();
    for entry in entries {
        if let Some(name) = entry?.file_name().to_str().and_then(|name| name.strip_suffix(".rs")) {
            names.push(name.to_owned());
        }
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

    #[test]
    fn result_lines_of_the_test_harness_are_counted() {
        let mut tally = Tally::default();
        tally.add_result_line("test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out");
        tally.add_result_line("test result: FAILED. 3 passed; 2 failed; 0 ignored");
        tally.add_result_line("5 passed; 5 failed");
        assert_eq!(tally, Tally { passed: 15, failed: 2 });
    }
}
