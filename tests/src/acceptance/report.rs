//! The report of a run: lines at its end, and `acceptance.json` in the target folder.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::compiled::{Compiled, GOALS, began};
use super::stages::{Extent, Stage};
use super::tally::Tally;
use super::watch::Outcome;
use crate::program::cargo::target_folder;
use crate::sources::{PACKAGES, repository};

/// The slowest tests that are named.
const SLOWEST: usize = 15;

/// The report of a run.
#[derive(Debug)]
pub struct Report {
    extent: Extent,
    /// The commit, and whether the tree had no other changes when the run began.
    commit: String,
    is_clean: bool,
    started: Instant,
    stages: Vec<StageReport>,
    times: Vec<(String, Duration)>,
    skipped: Vec<String>,
    ignored: usize,
    /// All stages of the extent have run.
    is_complete: bool,
}

/// The outcome of one stage.
#[derive(Debug)]
struct StageReport {
    name: &'static str,
    took: Duration,
    budget: Duration,
    tally: Tally,
}

impl Report {
    /// Begins a report of this tree.
    ///
    /// # Errors
    /// git cannot be run.
    pub(super) fn begin(extent: Extent) -> Result<Self> {
        Ok(Self {
            extent,
            commit: git(&["rev-parse", "HEAD"])?,
            is_clean: git(&["status", "--porcelain"])?.is_empty(),
            started: Instant::now(),
            stages: Vec::new(),
            times: Vec::new(),
            skipped: Vec::new(),
            ignored: 0,
            is_complete: false,
        })
    }

    /// Adds a stage and prints how it ended.
    pub(super) fn add(&mut self, stage: &Stage, took: Duration, outcomes: &[Outcome]) {
        let tally = outcomes.iter().map(Outcome::tally).fold(Tally::default(), |sum, tally| sum + tally);
        for outcome in outcomes {
            self.times.extend(outcome.progress.times.iter().cloned());
            self.skipped.extend(outcome.progress.skipped.iter().cloned());
            self.ignored += outcome.progress.ignored;
        }
        let verdict = if tally.failed == 0 { "passed" } else { "FAILED" };
        let Tally { passed, failed } = tally;
        println!(
            "== {}: {verdict} in {:.1} s: {passed} passed, {failed} failed",
            stage.name,
            took.as_secs_f32()
        );
        let budget = stage.budget;
        if self.extent == Extent::Gate && took > budget {
            println!(
                "== {}: more than its budget of {} s (two processors that do nothing else)",
                stage.name,
                budget.as_secs()
            );
        }
        self.stages.push(StageReport { name: stage.name, took, budget, tally });
    }

    /// Prints the last lines of a run. The report of a run of all stages stays in the target folder.
    pub(super) fn end(&mut self, has_all: bool) -> Result<()> {
        self.is_complete = has_all && self.tally().failed == 0;
        self.times.sort_by_key(|(_, took)| std::cmp::Reverse(*took));
        self.times.truncate(SLOWEST);
        let compiled = Compiled::since(began(), &target_folder());
        print!("{}", self.text(&compiled));
        if !has_all {
            return Ok(());
        }
        let folder = target_folder();
        let (file, draft) = (folder.join("acceptance.json"), folder.join("acceptance.json.new"));
        let text = serde_json::to_string_pretty(&self.json(&compiled))? + "\n";
        std::fs::write(&draft, text).with_context(|| format!("writing {}", draft.display()))?;
        std::fs::rename(&draft, &file).with_context(|| format!("writing {}", file.display()))
    }

    /// Checks that passed and failed.
    #[must_use]
    pub fn tally(&self) -> Tally {
        self.stages.iter().fold(Tally::default(), |sum, stage| sum + stage.tally)
    }

    fn text(&self, compiled: &Compiled) -> String {
        let mut text = "== stages, seconds:".to_owned();
        for stage in &self.stages {
            text += &format!(" {} {:.0}", stage.name, stage.took.as_secs_f32());
        }
        text += &format!("; {:.0} in all\n", self.started.elapsed().as_secs_f32());
        for (test, took) in &self.times {
            text += &format!("== slow: {:.1} s {test}\n", took.as_secs_f32());
        }
        text += &self.compilations(compiled);
        self.skipped.iter().for_each(|skipped| text += &format!("== skipped: {skipped}\n"));
        if self.ignored > 0 {
            text += &format!(
                "== {} tests are left to --all: tests/README.md names them and the reasons\n",
                self.ignored
            );
        }
        text
    }

    /// The packages that were compiled most often, and whether their compilations exceed a gate's goal.
    fn compilations(&self, compiled: &Compiled) -> String {
        let mut text = String::new();
        for (what, is_ours, goal) in [("ours", true, GOALS.ours), ("others", false, GOALS.others)] {
            let (most, packages) = compiled.most(|name| ours(name) == is_ours);
            text +=
                &format!("== compiled: a package of {what} up to {most} times ({})", shortened(&packages));
            if self.extent == Extent::Gate && most > goal {
                text += &format!(": more than {goal}, of which tests/README.md tells the reasons");
            }
            text.push('\n');
        }
        text
    }

    fn json(&self, compiled: &Compiled) -> Value {
        let Tally { passed, failed } = self.tally();
        let result = if self.is_complete { "passed" } else { "failed" };
        let stages = self.stages.iter().map(|stage| {
            json!({
                "name": stage.name,
                "seconds": rounded(stage.took),
                "budget_seconds": stage.budget.as_secs(),
                "passed": stage.tally.passed,
                "failed": stage.tally.failed,
            })
        });
        json!({
            "commit": self.commit,
            "clean": self.is_clean,
            "extent": match self.extent { Extent::Gate => "gate", Extent::All => "all" },
            "result": result,
            "passed": passed,
            "failed": failed,
            "left_to_all": self.ignored,
            "seconds": rounded(self.started.elapsed()),
            "stages": stages.collect::<Vec<_>>(),
            "slowest": self.times.iter().map(|(test, took)| json!({"test": test, "seconds": rounded(*took)})).collect::<Vec<_>>(),
            "skipped": self.skipped,
            "compiled": compiled.counts(),
        })
    }
}

/// Returns whether a package of this name is one of the repository.
fn ours(name: &str) -> bool {
    PACKAGES.iter().any(|package| package.rsplit('/').next() == Some(name))
}

/// Names, and how many there are beyond the first few.
fn shortened(names: &[&str]) -> String {
    let (first, rest) = names.split_at(names.len().min(6));
    let more = if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) };
    first.join(", ") + &more
}

fn rounded(time: Duration) -> f64 {
    (time.as_secs_f64() * 10.0).round() / 10.0
}

fn git(arguments: &[&str]) -> Result<String> {
    let output =
        Command::new("git").args(arguments).current_dir(repository()).output().context("cannot run git")?;
    ensure!(
        output.status.success(),
        "git {}: {}",
        arguments.join(" "),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        Report::begin(Extent::Gate).unwrap()
    }

    #[test]
    fn a_run_passes_when_it_is_complete() {
        let stage = |failed| StageReport {
            name: "unit",
            took: Duration::from_millis(61_260),
            budget: Duration::from_secs(60),
            tally: Tally { passed: 3, failed },
        };
        let mut report = report();
        report.stages.push(stage(0));
        assert_eq!(report.json(&Compiled::default())["result"], "failed");
        report.is_complete = true;
        let json = report.json(&Compiled::default());
        assert_eq!((&json["result"], &json["stages"][0]["seconds"]), (&json!("passed"), &json!(61.3)));
        assert_eq!(json["commit"].as_str().unwrap().len(), 40);
        report.stages.push(stage(1));
        assert_eq!(report.tally(), Tally { passed: 6, failed: 1 });
    }

    #[test]
    fn the_last_lines_say_what_took_long_and_what_was_left_out() {
        let mut report = report();
        report.times.push(("vm: boots".into(), Duration::from_secs(70)));
        report.skipped.push("moves: two: no two GPUs".into());
        report.ignored = 4;
        let text = report.text(&Compiled::default());
        for line in [
            "== slow: 70.0 s vm: boots",
            "== skipped: moves: two: no two GPUs",
            "== 4 tests are left to --all",
        ] {
            assert!(text.contains(line), "{text}");
        }
        let compiled =
            Compiled([("serde".to_owned(), GOALS.others), ("daemon".to_owned(), GOALS.ours + 1)].into());
        let text = report.text(&compiled);
        assert!(text.contains("a package of others up to 2 times (serde)\n"), "{text}");
        assert!(text.contains("a package of ours up to 4 times (daemon): more than 3"), "{text}");
        assert_eq!(shortened(&["a"; 8]), "a, a, a, a, a, a and 2 more");
    }
}
