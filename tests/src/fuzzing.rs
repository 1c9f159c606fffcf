//! The fuzz targets as a check: all are built, each runs for a while, and a crash, a hang or memory without bound fails the check.
//!
//! The targets are built without a sanitizer, which takes a third less time, unless `FUZZ_SANITIZER` names one (`address`).
//!
//! This module knows how targets are instrumented and the output of libFuzzer, and nothing of the code in the targets. New inputs are discarded:
//! `fuzz/README.md` says how to fuzz for days.

use crate::package::Architecture;
use crate::program::cargo::cargo_of_users;
use crate::program::variable;
use anyhow::{Context, Result, bail, ensure};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

/// The time for which each target runs, in seconds, unless `FUZZ_SECONDS` says otherwise.
const SECONDS: u64 = 6;

/// A single input that takes longer than this hangs, in seconds: they take milliseconds.
const INPUT_MAX: u32 = 120;

/// No target needs more memory than this, in MiB; the sanitizer's own included.
const MEMORY_MAX: u32 = 2048;

/// The compiler's flags by which libFuzzer sees the code that an input reaches and the values that it compares: those of `cargo fuzz`, which would
/// build each crate in one piece, and so only on one processor.
const INSTRUMENTATION: &[&str] = &[
    "--cfg=fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
];

/// Lines of a failed target's output that are shown.
const LINES_SHOWN: usize = 60;

/// Builds all targets and runs each for `FUZZ_SECONDS`, two at a time. Returns how many targets passed and how many failed.
///
/// # Errors
///
/// A target cannot be built or started.
pub fn run() -> Result<(usize, usize)> {
    let seconds = variable::number("FUZZ_SECONDS")?.unwrap_or(SECONDS);
    let place = Place::new()?;
    place.build()?;
    let targets = Mutex::new(place.targets()?.into_iter().collect::<VecDeque<_>>());
    let verdicts = Mutex::new(Vec::new());
    let lanes = thread::available_parallelism().map_or(1, |cores| cores.get().min(2));
    thread::scope(|scope| {
        for _ in 0..lanes {
            scope.spawn(|| {
                loop {
                    let next = targets.lock().pop_front();
                    let Some(target) = next else { return };
                    let verdict = place.fuzz(&target, seconds);
                    match &verdict {
                        Ok(summary) => println!("fuzz: target {target}: {summary}"),
                        Err(error) => println!("fuzz: target {target} FAILED: {error:#}"),
                    }
                    verdicts.lock().push(verdict.is_ok());
                }
            });
        }
    });
    let verdicts = verdicts.into_inner();
    let held = verdicts.iter().filter(|held| **held).count();
    Ok((held, verdicts.len() - held))
}

/// The folders of the targets and of their build.
struct Place {
    /// The crate with the targets.
    folder: PathBuf,
    built: PathBuf,
}

impl Place {
    fn new() -> Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("tests lie in the repository")?;
        let folder = root.join("fuzz");
        let built = match std::env::var_os("CARGO_TARGET_DIR") {
            Some(target) => PathBuf::from(target).join("fuzz"),
            None => folder.join("target"),
        };
        Ok(Self { folder, built })
    }

    fn build(&self) -> Result<()> {
        let sanitizer = std::env::var("FUZZ_SANITIZER").ok();
        let flags = INSTRUMENTATION.iter().map(|flag| (*flag).to_owned());
        let flags: Vec<_> = flags.chain(sanitizer.iter().map(|name| format!("-Zsanitizer={name}"))).collect();
        // If cargo gets the target's name, the flags do not apply to build scripts.
        let target = Architecture::own().context("no fuzz targets are built for this machine")?.triple();
        let status = cargo_of_users()
            .args(["build", "--quiet", "--locked", "--release", "--bins"])
            .args(["--target", target, "--target-dir"])
            .arg(&self.built)
            .current_dir(&self.folder)
            .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"))
            // Lets a stable compiler take the flag for AddressSanitizer.
            .env("RUSTC_BOOTSTRAP", "1")
            .envs(sanitizer.is_none().then_some(("CARGO_PROFILE_RELEASE_DEBUG", "0")))
            .stdout(Stdio::null())
            .status()
            .context("cannot run cargo")?;
        ensure!(status.success(), "the fuzz targets do not build");
        self.check_seeds()
    }

    /// Checks the program that makes the corpora. It contains no fuzzer, so it is not instrumented.
    fn check_seeds(&self) -> Result<()> {
        let mut check = cargo_of_users();
        check.args(["check", "--quiet", "--locked", "--examples", "--target-dir"]).arg(&self.built);
        let status = check.current_dir(&self.folder).stdout(Stdio::null()).status();
        ensure!(status.context("cannot run cargo")?.success(), "the program of the corpora does not compile");
        Ok(())
    }

    /// The names of the targets in `fuzz/fuzz_targets`.
    fn targets(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(self.folder.join("fuzz_targets"))? {
            if let Some(name) = entry?.file_name().to_str().and_then(|name| name.strip_suffix(".rs")) {
                names.push(name.to_owned());
            }
        }
        names.sort();
        ensure!(!names.is_empty(), "there are no fuzz targets");
        Ok(names)
    }

    /// Runs one target and returns its result in words.
    fn fuzz(&self, target: &str, seconds: u64) -> Result<String> {
        let scratch = tempfile::tempdir()?;
        let (found, counts) = (scratch.path().join("found"), scratch.path().join("counts"));
        let artifacts = self.folder.join("artifacts").join(target);
        [&found, &counts, &artifacts].into_iter().try_for_each(fs::create_dir_all)?;
        let output = Command::new("timeout")
            // libFuzzer checks its time limit only between inputs.
            .args(["--kill-after=10".to_owned(), (seconds + 600).to_string()])
            .arg(self.program(target)?)
            .arg(format!("-max_total_time={seconds}"))
            .arg(format!("-timeout={INPUT_MAX}"))
            .arg(format!("-rss_limit_mb={MEMORY_MAX}"))
            .arg(format!("-artifact_prefix={}/", artifacts.display()))
            .args(target.starts_with("venus").then(|| format!("-dict={}/venus.dict", self.folder.display())))
            .args([&found, &self.folder.join("corpus").join(target)])
            .env("FUZZ_COUNTS", &counts)
            .env("ASAN_OPTIONS", "detect_odr_violation=0:detect_leaks=0")
            .stdin(Stdio::null())
            .output()
            .context("cannot be started")?;
        let log = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            let lines: Vec<&str> = log.lines().collect();
            let tail = lines[lines.len().saturating_sub(LINES_SHOWN)..].join("\n");
            bail!("{}, its input is in {}\n{tail}", output.status, artifacts.display());
        }
        let done = log.lines().rev().find(|line| line.contains("DONE")).context("did not finish")?;
        let (_, commands) = counted(&counts)?;
        ensure!(commands > 0, "nothing got through its decoder");
        Ok(format!(
            "{} runs, {commands} commands, cov {} in {seconds} s",
            word_after(done, "#"),
            word_after(done, "cov: ")
        ))
    }

    fn program(&self, target: &str) -> Result<PathBuf> {
        let folders = fs::read_dir(&self.built)?.filter_map(Result::ok).map(|entry| entry.path());
        let program = folders.map(|folder| folder.join("release").join(target)).find(|path| path.is_file());
        program.context("was not built")
    }
}

/// Returns the runs and commands in a folder of count files, which targets write into the folder that `FUZZ_COUNTS` names.
fn counted(folder: &Path) -> Result<(u64, u64)> {
    let mut sum = (0, 0);
    for entry in fs::read_dir(folder)? {
        let text = fs::read_to_string(entry?.path())?;
        let mut numbers = text.split_whitespace().map_while(|word| word.parse::<u64>().ok());
        let (Some(runs), Some(commands)) = (numbers.next(), numbers.next()) else { continue };
        sum = (sum.0 + runs, sum.1 + commands);
    }
    Ok(sum)
}

/// The word behind a mark; `?` if there is none.
fn word_after<'l>(line: &'l str, mark: &str) -> &'l str {
    let rest = line.split_once(mark).map(|(_, rest)| rest);
    rest.and_then(|rest| rest.split_whitespace().next()).unwrap_or("?")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_all_processes_are_added_and_output_is_read() {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in [("a.1", "10 300\n"), ("a.2", "1 2\n"), ("a.3", "")] {
            fs::write(folder.path().join(name), text).unwrap();
        }
        assert_eq!(counted(folder.path()).unwrap(), (11, 302));
        let line = "#1234\tDONE   cov: 77 ft: 99 corp: 5/2Kb";
        assert_eq!((word_after(line, "#"), word_after(line, "cov: ")), ("1234", "77"));
        assert_eq!(word_after("Done", "cov: "), "?");
    }
}
