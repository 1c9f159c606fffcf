//! Counts the instructions that a worker executes for a command, with valgrind's callgrind: figures that are the same in every run, on any machine,
//! under any load. The figures for comparison are committed beside the tests.
//!
//! The program that is counted is the daemon's example `instructions`: the release build of a worker's code, from the bytes in a ring to
//! the calls of a driver that does nothing. Two runs of different length are compared, so that neither the start nor the guest's part
//! counts.

mod callgrind;
mod figures;

use anyhow::{Context, Result, bail, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use crate::package::{Architecture, Crates, flags};
use crate::program::cargo::{build, cargo_of_users};
use callgrind::Profile;
pub use figures::{Figure, Figures, Verdict, compare};

/// A workload whose instructions are counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// The workload's name.
    pub workload: String,
    /// The worker's work beside the commands.
    pub beside: Beside,
}

/// The work of a worker in addition to the commands of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beside {
    /// Nothing.
    Nothing,
    /// Submissions pass a gate with a lease.
    Gate,
    /// The worker keeps a journal.
    Journal,
}

/// Workloads that are counted with a journal as well.
const JOURNALLED: &[&str] =
    &["record_dispatches", "submit", "update_descriptor_sets", "create_destroy_buffer", "fence_status"];

/// The program that is counted.
pub struct Counted {
    program: PathBuf,
    /// The folder in which callgrind's files stay.
    keep: Option<PathBuf>,
}

/// Laps of the shorter run, with the work that only the first laps have to do; the longer run has twice as many.
const LAPS: u32 = 4;

/// Objects that live beside those of a workload, unless said otherwise.
pub const FEW: u32 = 10;

/// The number of objects that must make no difference.
pub const MANY: u32 = 100_000;

/// Workloads that are looked at with many objects alive.
pub const SCALED: &[&str] = &["submit", "create_destroy_buffer", "update_descriptor_sets", "fence_status"];

impl Case {
    /// The name of the case's figure.
    #[must_use]
    pub fn name(&self) -> String {
        let beside = match self.beside {
            Beside::Nothing => "",
            Beside::Gate => "_with_a_lease",
            Beside::Journal => "_with_a_journal",
        };
        format!("{}{beside}", self.workload)
    }
}

impl Counted {
    /// Builds the program. With `keep`, callgrind's files are left in that folder, for `callgrind_annotate`.
    ///
    /// # Errors
    /// It does not build.
    pub fn build(keep: Option<PathBuf>) -> Result<Self> {
        let mut cargo = cargo_of_users();
        cargo.args(["build", "--locked", "--release", "--package", "workloads"]);
        // The target is the package's, so that libraries are compiled once for both.
        let architecture = Architecture::own().context("no package is made for this machine")?;
        cargo.env("CARGO_ENCODED_RUSTFLAGS", flags(&Crates::of_the_daemon(architecture)?)?);
        build(&mut cargo, "the program to be counted")?;
        let own = std::env::current_exe()?;
        let target = own.parent().and_then(Path::parent).context("built by cargo")?;
        let program = target.join("release/workloads");
        ensure!(program.exists(), "{} is missing", program.display());
        Ok(Self { program, keep })
    }

    /// All cases.
    ///
    /// # Errors
    /// The program does not name its workloads.
    pub fn cases(&self) -> Result<Vec<Case>> {
        let names = output(&mut Command::new(&self.program))?;
        let case = |workload: &str, beside| Case { workload: workload.to_owned(), beside };
        let cases = names.lines().flat_map(|name| {
            let leased = name.starts_with("submit").then(|| case(name, Beside::Gate));
            let journalled = JOURNALLED.contains(&name).then(|| case(name, Beside::Journal));
            std::iter::once(case(name, Beside::Nothing)).chain(leased).chain(journalled)
        });
        Ok(cases.collect())
    }

    /// Counts one case, with `live` other objects alive.
    ///
    /// # Errors
    /// valgrind or the program fails.
    pub fn count(&self, case: &Case, live: u32) -> Result<Figure> {
        // Both runs go on at once, because each keeps one processor busy.
        let (short, long) = thread::scope(|scope| {
            let short = scope.spawn(|| self.profile(case, LAPS, live));
            let long = self.profile(case, 2 * LAPS, live);
            (short.join().expect("it does not panic"), long)
        });
        let ((short, commands), (long, more)) = (short?, long?);
        ensure!(more > commands, "a longer run has no more commands");
        let per_command = |less: u64, more_of_it: u64| {
            let difference = more_of_it.checked_sub(less).context("a longer run costs less")?;
            Ok::<_, anyhow::Error>(difference as f64 / (more - commands) as f64)
        };
        Ok(Figure {
            instructions: per_command(short.instructions, long.instructions)?,
            allocations: per_command(short.allocations, long.allocations)?,
        })
    }

    /// Runs a case once and returns its instructions and allocations, and its number of commands.
    fn profile(&self, case: &Case, laps: u32, live: u32) -> Result<(Profile, u64)> {
        let folder = tempfile::TempDir::new()?;
        let kept = self.keep.as_ref().map(|keep| keep.join(format!("{}.{live}.{laps}", case.name())));
        let file = kept.unwrap_or_else(|| folder.path().join("callgrind"));
        let mut valgrind = Command::new("valgrind");
        // A program's environment is on its stack, and its size moves the frames after it.
        valgrind.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        valgrind.args(["--quiet", "--tool=callgrind", "--compress-strings=no", "--compress-pos=no"]);
        valgrind.arg(format!("--callgrind-out-file={}", file.display())).arg(&self.program);
        valgrind.args([&case.workload, &laps.to_string(), &live.to_string()]);
        valgrind.args(match case.beside {
            Beside::Nothing => None,
            Beside::Gate => Some("lease"),
            Beside::Journal => Some("journal"),
        });
        let commands = output(&mut valgrind)?.trim().parse().context("a number of commands")?;
        Ok((Profile::read(&file)?, commands))
    }
}

fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8(output.stdout)?)
}
