//! `cargo instructions`: counts the instructions of commands and compares them with the committed figures: the stage `instructions` of `cargo
//! acceptance`; see `tests::instructions`.

use anyhow::{Result, ensure};
use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;
use tests::instructions::{Beside, Case, Counted, FEW, Figure, Figures, MANY, SCALED, Verdict, compare};
use tests::prerequisites;

#[derive(Debug, Parser)]
#[command(about = "Count the instructions that a worker executes for each command")]
struct Arguments {
    /// Count these only; without names, count all, and check that many objects make no difference
    cases: Vec<String>,
    /// Replace the figures to compare with by those that are found
    #[arg(long)]
    update: bool,
    /// Leave callgrind's files in this folder
    #[arg(long, value_name = "FOLDER")]
    keep: Option<PathBuf>,
}

/// The relative difference that a figure may show when many objects live.
const SCALE_TOLERANCE: f64 = 0.05;

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    prerequisites::provide([&prerequisites::VALGRIND])?;
    let counted = Counted::build(arguments.keep)?;
    let mut cases = counted.cases()?;
    for name in &arguments.cases {
        ensure!(cases.iter().any(|case| case.name() == *name), "no {name}");
    }
    let mut committed = if arguments.update && arguments.cases.is_empty() {
        Figures::default()
    } else {
        Figures::committed()?
    };
    cases.retain(|case| arguments.cases.is_empty() || arguments.cases.contains(&case.name()));
    let (mut passed, mut failed) = (0, 0);
    let mut count = |holds: bool| *if holds { &mut passed } else { &mut failed } += 1;
    println!("{:38} {:>12} {:>12} {:>11}", "per command", "instructions", "committed", "allocations");
    for case in &cases {
        let found = counted.count(case, FEW)?;
        let before = committed.0.get(&case.name()).copied();
        let holds = report(case, found, before) || arguments.update;
        count(holds);
        if arguments.update {
            committed.0.insert(case.name(), found);
        }
        if SCALED.contains(&case.workload.as_str()) && case.beside != Beside::Journal {
            count(scales(&counted, case, found)?);
        }
    }
    if arguments.update {
        committed.commit()?;
    }
    // The test harness's words, which `cargo acceptance` counts.
    println!("test result: {}. {passed} passed; {failed} failed", if failed == 0 { "ok" } else { "FAILED" });
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints a figure, and returns whether the figure passes.
fn report(case: &Case, found: Figure, committed: Option<Figure>) -> bool {
    let verdict = committed.map(|committed| compare(found, committed));
    let remark = match verdict {
        Some(Verdict::Same) => "",
        Some(Verdict::Better) => "better than committed: cargo instructions --update",
        Some(Verdict::Worse) => "WORSE than committed",
        None => "not committed: cargo instructions --update",
    };
    let committed = committed.map_or("-".to_owned(), |figure| format!("{:.0}", figure.instructions));
    let Figure { instructions, allocations } = found;
    println!("{:38} {instructions:12.1} {committed:>12} {allocations:11.2}  {remark}", case.name());
    matches!(verdict, Some(Verdict::Same | Verdict::Better))
}

/// Counts a case while many objects live, prints the figures, and returns whether the case costs the same then.
fn scales(counted: &Counted, case: &Case, few: Figure) -> Result<bool> {
    let many = counted.count(case, MANY)?;
    let holds = (many.instructions / few.instructions - 1.0).abs() <= SCALE_TOLERANCE;
    let remark = if holds { "" } else { "NOT THE SAME" };
    let name = format!("  with {MANY} objects");
    let Figure { instructions, allocations } = many;
    println!("{name:38} {instructions:12.1} {:>12} {allocations:11.2}  {remark}", "");
    Ok(holds)
}
