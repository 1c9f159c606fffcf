//! Tests that the daemon, where submissions of several contexts do not end, ends the context that keeps the others from the GPU, and that
//! its log names the limit that was reached.
//!
//! A GPU that does not interrupt one context's kernel for another's is played by waits for events inside of command buffers, which count as
//! running: the events of the context that is held up are set when the other context is gone.

use anyhow::{Context, Result, ensure};
use rustix::process::Pid;
use std::sync::Arc;
use std::time::Duration;
use tests::attacks::endless::Program;
use tests::broker::Broker;
use tests::daemon::{Daemon, eventually, is_alive};
use tests::frontend::{Options, Session};
use tests::guest::{Gpu, PATIENCE};

const CONTENDED: &str = "max_submit_time_contended (1s)";

/// A program and the process that serves it.
fn program(daemon: &Daemon, gpu: &Arc<Gpu>, name: &str, before: &[Pid]) -> Result<(Program, Pid)> {
    let program = Program::start(gpu, name)?;
    let workers = daemon.wait_for_workers(before.len() + 1)?;
    let worker = workers.into_iter().find(|worker| !before.contains(worker)).context("its worker")?;
    Ok((program, worker))
}

#[test]
fn who_was_served_until_an_endless_one_came_survives_it_whoever_began_first() -> Result<()> {
    for is_first in [true, false] {
        let options = ["--max-submit-time", "60min", "--max-submit-time-contended", "1s"];
        let daemon = Daemon::start_with(&options)?;
        let gpu = Arc::new(daemon.guest()?);
        let (mut served, its_worker) = program(&daemon, &gpu, "served", &[])?;
        let (mut endless, worker) = program(&daemon, &gpu, "endless", &[its_worker])?;
        served.compute()?;
        match is_first {
            true => served.stop().and_then(|()| endless.stop())?,
            false => endless.stop().and_then(|()| served.stop())?,
        }
        let gone = eventually(PATIENCE, || !is_alive(worker) || !is_alive(its_worker));
        ensure!(gone, "nobody has to go\n{}", daemon.log());
        ensure!(is_alive(its_worker), "first {is_first}: the wrong one\n{}", daemon.log());
        served.resume().with_context(|| daemon.log())?;
        served.compute().with_context(|| daemon.log())?;
        let lost = daemon.log().lines().filter(|line| line.contains("is lost: ")).count();
        ensure!(lost == 1 && daemon.log().contains(CONTENDED), "{}", daemon.log());
    }
    Ok(())
}

#[test]
fn a_program_that_stops_late_has_to_go_and_not_who_comes_then() -> Result<()> {
    let options = ["--max-submit-time", "60min", "--max-submit-time-contended", "1s"];
    let daemon = Daemon::start_with(&options)?;
    let gpu = Arc::new(daemon.guest()?);
    let (mut late, worker) = program(&daemon, &gpu, "late", &[])?;
    let (mut newcomer, its_worker) = program(&daemon, &gpu, "newcomer", &[worker])?;
    late.compute()?;
    late.stop()?;
    // So that there is no doubt who was there first.
    std::thread::sleep(Duration::from_secs(3));
    ensure!(is_alive(worker), "nobody waits\n{}", daemon.log());
    newcomer.stop()?;
    ensure!(eventually(PATIENCE, || !is_alive(worker)), "{}", daemon.log());
    ensure!(is_alive(its_worker), "{}", daemon.log());
    newcomer.resume().with_context(|| daemon.log())?;
    ensure!(daemon.log().contains(CONTENDED), "{}", daemon.log());
    Ok(())
}

#[test]
fn below_a_scheduler_the_log_names_the_limit_that_applied() -> Result<()> {
    let keys = "max-submit-time = \"60min\"\nmax-submit-time-contended = \"1s\"";
    let broker = Broker::start("", &[("first", keys), ("second", keys)])?;
    let guest =
        |vm| -> Result<_> { Ok(Arc::new(Gpu::new(Session::connect(&broker.path(vm), Options::default())?))) };
    let (first, second) = (guest("first")?, guest("second")?);
    let (mut endless, mut other) = (Program::start(&first, "endless")?, Program::start(&second, "other")?);
    other.compute()?;
    endless.stop()?;
    other.stop()?;
    ensure!(eventually(PATIENCE, || broker.log().contains(CONTENDED)), "{}", broker.log());
    ensure!(!broker.log().contains("max_submit_time (60min)"), "{}", broker.log());
    Ok(())
}
