//! Tests that the daemon, where submissions of several contexts do not end, ends the context that keeps the others from the GPU, and that
//! its log names the limit that was reached.
//!
//! Waits for events inside of command buffers, which count as running, play the part of a GPU that does not interrupt one context's kernel for
//! another's: the test sets the events of the waiting context when the other context has ended.

use anyhow::{Context, Result, ensure};
use protocol::ids::BlobId;
use protocol::virtio_gpu::BlobFlags;
use rustix::process::Pid;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tests::attacks::endless::Program;
use tests::broker::Broker;
use tests::daemon::{Daemon, eventually, is_alive};
use tests::frontend::{Options, Session};
use tests::guest::{Gpu, PATIENCE};
use tests::packages::HostVulkan;

const CONTENDED: &str = "max-submit-time-contended (1 s)";

/// The options that [`CONTENDED`] is of.
const SHORT: [&str; 4] = ["--max-submit-time", "60min", "--max-submit-time-contended", "1s"];

/// The time after which a submission is late for the daemon, and by which a submission must have begun earlier than another to count as the cause of
/// the other's wait. If the machine stands still at the wrong moment, the test proves nothing and begins again.
const LATE: Duration = Duration::from_millis(250);

/// Repeats a scene as long as it reports that it was too slow.
fn in_time(mut scene: impl FnMut() -> Result<bool>) -> Result<()> {
    let begin = Instant::now();
    while !scene()? {
        ensure!(begin.elapsed() < PATIENCE, "this machine is too slow each time");
    }
    Ok(())
}

/// Waits until the log says that the shorter limit was reached.
fn tells_contended(daemon: &Daemon) -> Result<()> {
    ensure!(eventually(PATIENCE, || daemon.log().contains(CONTENDED)), "{}", daemon.log());
    Ok(())
}

/// A program and the process that serves it.
fn program(daemon: &Daemon, gpu: &Arc<Gpu>, name: &str, before: &[Pid]) -> Result<(Program, Pid)> {
    let program = Program::start(gpu, name)?;
    let workers = daemon.wait_for_workers(before.len() + 1)?;
    let worker = workers.into_iter().find(|worker| !before.contains(worker)).context("its worker")?;
    Ok((program, worker))
}

#[test]
fn who_was_served_until_an_endless_one_came_survives_it_whoever_began_first() -> Result<()> {
    [true, false].into_iter().try_for_each(|is_first| in_time(|| endless_one_goes(is_first)))
}

/// Lets an endless program and one that was served until now stop, in this order or the other; returns whether both did at the same time.
fn endless_one_goes(is_first: bool) -> Result<bool> {
    let daemon = Daemon::start_with(&SHORT)?;
    let gpu = Arc::new(daemon.guest()?);
    let (mut served, its_worker) = program(&daemon, &gpu, "served", &[])?;
    let (mut endless, worker) = program(&daemon, &gpu, "endless", &[its_worker])?;
    served.compute()?;
    let stops = Instant::now();
    let stopped = match is_first {
        true => served.stop().and_then(|()| endless.stop()),
        false => endless.stop().and_then(|()| served.stop()),
    };
    if stops.elapsed() >= LATE {
        return Ok(false);
    }
    stopped?;
    let gone = eventually(PATIENCE, || !is_alive(worker) || !is_alive(its_worker));
    ensure!(gone, "no context is ended\n{}", daemon.log());
    ensure!(is_alive(its_worker), "first {is_first}: the wrong one\n{}", daemon.log());
    served.resume().with_context(|| daemon.log())?;
    served.compute().with_context(|| daemon.log())?;
    tells_contended(&daemon)?;
    let lost = daemon.log().lines().filter(|line| line.contains("is lost: ")).count();
    ensure!(lost == 1, "{}", daemon.log());
    Ok(true)
}

#[test]
fn a_program_that_stops_late_has_to_go_and_not_who_comes_then() -> Result<()> {
    let daemon = Daemon::start_with(&SHORT)?;
    let gpu = Arc::new(daemon.guest()?);
    let (mut late, worker) = program(&daemon, &gpu, "late", &[])?;
    let (mut newcomer, its_worker) = program(&daemon, &gpu, "newcomer", &[worker])?;
    late.compute()?;
    late.stop()?;
    // After this time it is certain which program was first.
    std::thread::sleep(Duration::from_secs(3));
    ensure!(is_alive(worker), "no other program waits\n{}", daemon.log());
    newcomer.stop()?;
    ensure!(eventually(PATIENCE, || !is_alive(worker)), "{}", daemon.log());
    ensure!(is_alive(its_worker), "{}", daemon.log());
    newcomer.resume().with_context(|| daemon.log())?;
    tells_contended(&daemon)
}

/// Two programs compute for long, as inference does: the short submissions of one program end while the other already computes.
#[test]
fn neighbours_that_both_compute_for_long_both_end_well() -> Result<()> {
    in_time(both_end_well)
}

/// Returns whether the short submissions of one program were short beside the long one of the other.
fn both_end_well() -> Result<bool> {
    let daemon = Daemon::start_with(&SHORT)?;
    let gpu = Arc::new(daemon.guest()?);
    let (mut first, worker) = program(&daemon, &gpu, "first", &[])?;
    let (mut second, its_worker) = program(&daemon, &gpu, "second", &[worker])?;
    first.compute()?;
    first.stop()?;
    if second.compute()? >= LATE {
        return Ok(false);
    }
    second.stop()?;
    let is_gone = eventually(Duration::from_secs(4), || !is_alive(worker) || !is_alive(its_worker));
    ensure!(!is_gone, "neither keeps the other from the GPU\n{}", daemon.log());
    for program in [&mut second, &mut first] {
        program.resume().with_context(|| daemon.log())?;
        program.compute().with_context(|| daemon.log())?;
    }
    Ok(true)
}

/// Starts a program and lets it run into the limit on time.
fn lose(daemon: &Daemon, gpu: &Arc<Gpu>, name: &str) -> Result<Program> {
    let mut program = Program::start(gpu, name)?;
    program.stop()?;
    ensure!(program.is_ended_within(PATIENCE), "it is not ended\n{}", daemon.log());
    Ok(program)
}

/// The kernel of a guest ignores the answers, and continues to ask.
#[test]
fn a_program_that_hangs_is_held_back_and_no_other_and_the_log_has_one_line_of_each_loss() -> Result<()> {
    let options = ["--max-submit-time", "2s", "--strikes", "1", "--strike-hold", "60min"];
    let daemon = Daemon::start_with(&options)?;
    let gpu = Arc::new(daemon.guest()?);
    let bad = lose(&daemon, &gpu, "bad")?;
    let lines = |what: &str| daemon.log().lines().filter(|line| line.contains(what)).count();
    for _ in 0..8 {
        let more = gpu.create_blob(bad.context(), BlobId(7), BlobFlags::MAPPABLE, 4096);
        ensure!(more.is_err(), "memory of a lost context");
    }
    let is_refused = || gpu.create_context("bad").is_err();
    ensure!(eventually(PATIENCE, is_refused), "nothing holds it back\n{}", daemon.log());
    // On a machine that stands still its submissions run into the limit, too: then a program of another name is tried.
    let mut number = 0;
    let computes = || {
        number += 1;
        Program::start(&gpu, &format!("good {number}")).and_then(|mut program| program.compute()).is_ok()
    };
    ensure!(eventually(PATIENCE, computes), "{}", daemon.log());
    let of_bad = |what: &str| {
        let log = daemon.log();
        log.lines().filter(|line| line.contains(" program=bad context ") && line.contains(what)).count()
    };
    let told = " is lost: a submission ran longer than max-submit-time (2 s): raise that option";
    ensure!(eventually(PATIENCE, || of_bad(told) > 0), "{}", daemon.log());
    ensure!(of_bad(told) == 1, "{}", daemon.log());
    ensure!(of_bad(" is refused: limit strikes (1) reached") == 1, "{}", daemon.log());
    let again =
        ["CTX_CREATE", "RESOURCE_CREATE_BLOB", "CTX_ATTACH_RESOURCE", "RESOURCE_MAP_BLOB", "RESOURCE_UNREF"];
    ensure!(again.iter().all(|command| lines(command) == 0), "{}", daemon.log());
    Ok(())
}

/// The host's kernel takes the processors from each program in turn.
#[test]
fn on_a_software_driver_no_program_is_held_back_unless_an_option_says_so() -> Result<()> {
    let daemon = Daemon::start_on(&HostVulkan::lavapipe()?, &["--max-submit-time", "500ms"])?;
    let gpu = Arc::new(daemon.guest()?);
    for _ in 0..4 {
        gpu.destroy_context(lose(&daemon, &gpu, "slow")?.context())?;
    }
    gpu.create_context("slow").with_context(|| daemon.log())?;
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
    ensure!(!broker.log().contains("max-submit-time (60 min)"), "{}", broker.log());
    Ok(())
}
