//! The acceptance run: all that must hold before a change lands, as named stages, until one fails.
//!
//! The gate runs for each change. `--all` adds the tests that are marked `#[ignore = "REASON"]`, which is why they are not in the gate, and the fuzz
//! targets. Everything is compiled by one command (`built`); stages run the programs that this command has made. The machine's speed and its other
//! work do not decide the result: a stage that takes long causes a warning, and only a stage that prints and does nothing is stopped.

mod built;
mod compiled;
mod progress;
mod report;
mod stages;
mod tally;
mod watch;

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::prerequisites;
use crate::program::cargo::LINTED;
use built::Built;
pub use report::Report;
pub use stages::{Extent, Stage, stages};
use stages::{Lane, Work};
pub use tally::Tally;
use watch::{Job, Outcome, watch};

/// A stage that prints nothing and does nothing for this time hangs. No single test needs a quarter of this time on two processors that do nothing
/// else; the limits that tests have for programs are shorter, so that a test that hangs fails by itself and says why.
const SILENCE_MAX: Duration = Duration::from_secs(10 * 60);

/// Compilers leave the processors to tests and emulated machines, if these want them: a guest's driver waits 3.5 s for a worker's sign of life. The value holds for the
/// thread of the lane, and for what it starts.
const COMPILERS_NICE: i32 = 5;

/// Runs stages of an extent until one fails: those that are named, or all if none is. Prints what runs, how long it took, and which
/// tests failed; the report of all stages stays in the target folder.
///
/// Tests wait much of their time. So the stages that mostly compile or emulate run beside them, in lanes of their own, after the common build, and the
/// lanes are about as long as each other. Beside other programs a run with more threads gets more of the processors.
///
/// # Errors
/// A stage could not be started at all, or the report cannot be written.
pub fn run(extent: Extent, names: &[String]) -> Result<Report> {
    let stages = selected(extent, names)?;
    prerequisites::provide(stages.iter().flat_map(|stage| stage.tools).copied().flatten())?;
    let (first, lanes) = lanes(stages);
    let run = Run {
        extent,
        report: Mutex::new(Report::begin(extent)?),
        built: OnceLock::new(),
        is_over: AtomicBool::new(false),
    };
    run.lane(&first)?;
    let begin = |lane: &Vec<Stage>| {
        if lane.first().is_some_and(|stage| stage.lane == Lane::Makes) {
            // Nothing is lost if the system refuses.
            let _ = rustix::process::nice(COMPILERS_NICE);
        }
        run.lane(lane)
    };
    thread::scope(|scope| {
        let lanes: Vec<_> = lanes.iter().map(|lane| scope.spawn(|| begin(lane))).collect();
        // The run waits for all lanes, even if one lane cannot go on.
        let ended: Vec<_> = lanes.into_iter().map(|lane| lane.join().expect("it does not panic")).collect();
        ended.into_iter().collect::<Result<()>>()
    })?;
    let mut report = run.report.into_inner().expect("it does not panic");
    report.end(names.is_empty())?;
    Ok(report)
}

/// A run of stages.
struct Run {
    extent: Extent,
    report: Mutex<Report>,
    built: OnceLock<Built>,
    /// A stage has failed, or could not be started: no lane begins another.
    is_over: AtomicBool,
}

impl Run {
    /// Runs stages one after the other, until one fails here or in another lane.
    fn lane(&self, stages: &[Stage]) -> Result<()> {
        for stage in stages {
            if self.is_over.load(Ordering::Relaxed) {
                break;
            }
            println!("== {}", stage.name);
            let gpu_required = std::env::var_os("REQUIRE_GPU").is_some();
            if stage.needs_gpu && !gpu_required && !prerequisites::has_gpu() {
                println!("== {}: skipped: no GPU", stage.name);
                continue;
            }
            let started = Instant::now();
            let outcomes = stage.run(self).with_context(|| format!("stage {}", stage.name));
            let outcomes = outcomes.inspect_err(|_| self.is_over.store(true, Ordering::Relaxed))?;
            let mut report = self.report();
            report.add(stage, started.elapsed(), &outcomes);
            self.is_over.fetch_or(report.tally().failed > 0, Ordering::Relaxed);
        }
        Ok(())
    }

    fn report(&self) -> MutexGuard<'_, Report> {
        self.report.lock().expect("it does not panic")
    }

    fn built(&self) -> Result<&Built> {
        self.built.get().context("nothing is built")
    }
}

/// The stages up to the one that compiles the programs of other stages, and the lanes after it.
fn lanes(mut stages: Vec<Stage>) -> (Vec<Stage>, [Vec<Stage>; 3]) {
    let built = stages.iter().position(Stage::is_build).map_or(0, |at| at + 1);
    let mut rest = stages.split_off(built);
    let lanes = [Lane::Tests, Lane::Machines, Lane::Makes];
    (stages, lanes.map(|lane| rest.extract_if(.., |stage| stage.lane == lane).collect()))
}

/// The stages that are named, and the stage that compiles their programs; all stages if none is named.
fn selected(extent: Extent, names: &[String]) -> Result<Vec<Stage>> {
    let mut stages = stages(extent);
    for name in names {
        ensure!(stages.iter().any(|stage| stage.name == name), "no stage {name}; --list names them");
    }
    if !names.is_empty() {
        let is_named = |stage: &Stage| names.iter().any(|name| name == stage.name);
        let builds = stages.iter().any(|stage| is_named(stage) && stage.needs_build());
        stages.retain(|stage| is_named(stage) || stage.is_build() && builds);
    }
    Ok(stages)
}

impl Stage {
    fn run(&self, run: &Run) -> Result<Vec<Outcome>> {
        match &self.work {
            Work::Cargo(arguments) => {
                let mut cargo = crate::program::cargo::cargo();
                cargo.args(*arguments).envs(LINTED);
                watch(vec![Job::new(self.name, cargo)], 1, SILENCE_MAX)
            }
            Work::Build => {
                let (made, outcome) = Built::make(SILENCE_MAX)?;
                run.built.set(made).ok().context("it is built once")?;
                Ok(vec![outcome])
            }
            Work::Script(path, argument) => {
                let mut script = Command::new(crate::sources::repository().join(path));
                script.arg(argument);
                watch(vec![Job::new(self.name, script)], 1, SILENCE_MAX)
            }
            Work::Program { name, arguments } => {
                watch(vec![run.built()?.program(name, arguments)?], 1, SILENCE_MAX)
            }
            Work::Tests { are, lanes, threads } => {
                watch(run.built()?.tests(are, run.extent == Extent::All, *threads)?, *lanes, SILENCE_MAX)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_named_runs_with_what_it_needs() {
        let names = |extent, names: &[&str]| {
            let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
            selected(extent, &names).map(|stages| stages.iter().map(|stage| stage.name).collect::<Vec<_>>())
        };
        assert_eq!(names(Extent::Gate, &["vm", "fmt"]).unwrap(), ["fmt", "build", "vm"]);
        assert_eq!(names(Extent::Gate, &["doc"]).unwrap(), ["doc"]);
        let missing = names(Extent::Gate, &["fuzz"]).unwrap_err().to_string();
        assert_eq!(missing, "no stage fuzz; --list names them");
        let (gate, all) = (names(Extent::Gate, &[]).unwrap(), names(Extent::All, &[]).unwrap());
        assert!(gate.len() < all.len() && gate.iter().all(|name| all.contains(name)));
    }

    #[test]
    fn ci_compiles_this_program_as_the_stages_compile_theirs() {
        let run = std::fs::read_to_string(crate::sources::repository().join(".ci/run")).unwrap();
        let variables = LINTED.map(|(name, value)| format!(" {name}={value}")).concat();
        assert!(run.contains(&format!("export{variables}\n")), "{variables}");
    }

    #[test]
    fn what_others_run_is_made_first() {
        let names = |lane: &Vec<Stage>| lane.iter().map(|stage| stage.name).collect::<Vec<_>>();
        let (first, [tests, machines, makes]) = lanes(stages(Extent::All));
        assert_eq!(names(&first), ["fmt", "build"]);
        assert_eq!(names(&machines), ["doc", "vm", "patched"]);
        assert_eq!(names(&makes), ["driver", "package", "instructions"]);
        let all = [first, tests, machines, makes].iter().map(Vec::len).sum::<usize>();
        assert_eq!(all, stages(Extent::All).len());
        let (first, lanes) = lanes(selected(Extent::Gate, &["doc".to_owned()]).unwrap());
        assert_eq!(
            (names(&first), lanes.iter().map(names).collect::<Vec<_>>()),
            (vec![], vec![vec![], vec!["doc"], vec![]])
        );
    }
}
