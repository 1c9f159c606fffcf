//! A guest is as fast as the host where the software driver allows to see it, and a program that keeps submitting does not leave its VM.
//!
//! Renderer, driver and program share this machine's processors, and others use them at the same time; `docs/performance.md` has what a GPU shows.
//! Host and guest are measured by turns, and as nothing makes a ratio better than it is, each may be tried a few times.

use anyhow::{Context, Result, bail, ensure};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tests::bench::{Line, Sides, Timing, plan, run, to_table};
use tests::daemon_process::build_daemon;
use tests::packages::Suite;
use tests::stand::{Drivers, Place, default_name};

/// How often a measure is tried.
const TRIES: u32 = 4;

/// What a guest's kernels must reach of the host's: daemon, driver and program need the processors that the renderer runs on, too.
const REACHED: f64 = 0.9;
/// And of those of a program on the host that waits as Mesa does: what is lacking there is the daemon's.
const REACHED_OF_LOOKING: f64 = 0.93;

/// One at a time: they need the whole machine.
static MACHINE: Mutex<()> = Mutex::new(());

/// Takes a measure until the guest is as `check` demands.
fn holds(
    sides: &mut Sides,
    measure: &str,
    timing: Timing,
    check: impl Fn(&[Line]) -> Result<()>,
) -> Result<()> {
    let probes = plan(&[measure.to_owned()], &[50_000], false);
    let [probe] = &probes[..] else { bail!("{} probes have {measure}", probes.len()) };
    let mut last = Ok(());
    for _ in 0..TRIES {
        let lines = run(sides, probe, timing, None)?;
        println!("{}", to_table(&lines));
        last = check(&lines);
        if last.is_ok() {
            return Ok(());
        }
        if let Err(error) = &last {
            println!("{error:#}");
        }
    }
    last
}

/// The row of this name.
fn row<'l>(lines: &'l [Line], name: &str) -> Result<&'l Line> {
    lines.iter().find(|line| line.row.name == name).with_context(|| format!("{name} is measured"))
}

fn sides(mesa: Suite) -> Result<Sides> {
    // Optimised, as what is measured is the daemon as it is used.
    let daemon = Some(build_daemon(true)?);
    let drivers = Drivers::Packages { daemon, mesas: vec![(default_name(mesa), mesa)] };
    Sides::start(Place { program: env!("CARGO_BIN_EXE_gauge").into(), drivers, settings: Vec::new() })
}

#[test]
fn kernels_of_50_ms_take_as_long_as_on_the_host() -> Result<()> {
    let _machine = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let timing = Timing { rounds: 7, time: Duration::from_millis(500), counted: 0 };
    let mut sides = sides(Suite::Testing)?;
    sides.add_looking()?;
    for measure in ["kernel-50ms-one", "kernel-50ms-four"] {
        holds(&mut sides, measure, timing, |lines| {
            let line = row(lines, measure)?;
            let [guest, looking] = line.guests() else { bail!("a guest and one that looks") };
            let ratio = line.ratio(guest).context("both were measured")?.median;
            let of_looking = line.ratio_to(looking, guest).context("both were measured")?.median;
            ensure!(ratio >= REACHED, "{ratio:.3} of what the host gets done");
            ensure!(of_looking >= REACHED_OF_LOOKING, "{of_looking:.3} of what a host that looks gets done");
            Ok(())
        })?;
    }
    Ok(())
}

#[test]
fn who_keeps_submitting_needs_no_kicks_and_no_calls() -> Result<()> {
    let _machine = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let timing = Timing { rounds: 1, time: Duration::from_millis(500), counted: 1000 };
    let mut sides = sides(Suite::Testing)?;
    let bridge =
        sides.all[1].stand.as_ref().and_then(|stand| stand.bridge(0)).context("the guest's bridge")?;
    let begun = bridge.gpu().session.control.traffic();
    ensure!(begun.kicks > 0 && begun.calls > 0, "nothing is counted, though the program began: {begun:?}");
    signals_at_most(&mut sides, &["kicks", "calls"], 1.0, timing)
}

/// Mesa 26.2 waits through the guest's kernel, with two requests for each submission: one kick and one call for both. Counted by the requests,
/// as nothing says how many submissions there were in just that time.
#[test]
fn who_waits_through_the_kernel_kicks_once_and_is_called_once() -> Result<()> {
    let _machine = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let timing = Timing { rounds: 1, time: Duration::from_millis(500), counted: 1000 };
    let mut sides = sides(Suite::Unstable)?;
    for pace in ["flat", "1000Hz", "200Hz"] {
        holds(&mut sides, &format!("kicks-{pace}"), timing, |lines| {
            let fences = counted(lines, "requests", pace)? / 2.0;
            ensure!(fences > 100.0, "{fences:.1} fences for 1000 submissions");
            for signal in ["kicks", "calls"] {
                let signals = counted(lines, signal, pace)?;
                ensure!(signals <= fences * 1.05, "{signals:.1} {signal} for {fences:.1} fences");
            }
            Ok(())
        })?;
    }
    Ok(())
}

fn counted(lines: &[Line], what: &str, pace: &str) -> Result<f64> {
    let counted = row(lines, &format!("{what}-{pace}"))?.guests()[0].median();
    counted.context("the guest was counted")
}

#[test]
fn an_idle_context_holds_little_beside_what_its_driver_holds() -> Result<()> {
    let _machine = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let timing = Timing { rounds: 1, time: Duration::from_millis(500), counted: 0 };
    holds(&mut sides(Suite::Testing)?, "memory-context", timing, |lines| {
        let line = row(lines, "memory-context")?;
        let reached = line.is_reached(&line.guests()[0]).context("both were measured")?;
        ensure!(reached, "more than 16 MiB");
        Ok(())
    })
}

/// Signals across the virtqueue for a thousand submissions, at every pace.
fn signals_at_most(sides: &mut Sides, signals: &[&str], most: f64, timing: Timing) -> Result<()> {
    for pace in ["flat", "1000Hz", "200Hz"] {
        holds(sides, &format!("kicks-{pace}"), timing, |lines| {
            for signal in signals {
                let counted = counted(lines, signal, pace)?;
                ensure!(counted <= most, "{counted:.1} {signal} for 1000 submissions");
            }
            Ok(())
        })?;
    }
    Ok(())
}
