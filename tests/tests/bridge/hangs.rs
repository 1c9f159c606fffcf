//! Endless submissions soon cost their own context, and no other; submissions that wait for long cost nothing.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use protocol::cursor::Writer;
use protocol::ids::RingIdx;
use protocol::venus::generated as venus;
use rustix::process::{Pid, Signal, kill_process};
use tests::broker::Broker;
use tests::clients::Setup;
use tests::daemon::{Daemon, Holdings, cpu_time, eventually, is_alive};
use tests::guest::device::Device as Guest;
use tests::guest::ring::{ASYNC, REPLY, encode};
use tests::guest::{PATIENCE, timeline};
use tests::packages::{ClientRoot, Device, Suite};
use tests::program::{Background, LIMIT, succeed};

fn computing(setup: &Setup, arguments: &[&str]) -> Result<Command> {
    computing_at(setup.socket(), arguments)
}

fn computing_at(socket: &Path, arguments: &[&str]) -> Result<Command> {
    let executable = Path::new(env!("CARGO_BIN_EXE_many_threads"));
    let mut command = ClientRoot::open(Suite::Testing)?.own(executable, Device::Venus(socket))?;
    command.args(["--instances", "1", "--devices", "1", "--lanes", "1"]).args(arguments);
    Ok(command)
}

/// One submission that takes hours.
const ENDLESS: [&str; 7] = ["--announce", "--rounds", "1", "--words", "1048576", "--steps", "4294967295"];

/// Submissions of half a second or more each. Short submissions may end beside an endless one, because the processors switch between both: the
/// endless one then keeps no program from the GPU, and goes on.
const HELD_UP: [&str; 7] = ["--rounds", "0", "--report", "--words", "64", "--steps", "8388608"];

/// A program whose only submission takes hours. Dropping it ends the program.
struct Endless {
    /// The worker of the program; `None` if it had ended already when the program was seen to submit.
    worker: Option<Pid>,
    program: Background,
}

impl Endless {
    /// Starts the program and returns as soon as it submits.
    fn start(setup: &Setup) -> Result<Self> {
        Self::start_with(setup, &[])
    }

    fn start_with(setup: &Setup, more: &[&str]) -> Result<Self> {
        let before = setup.daemon().workers();
        let program = Background::start(computing(setup, &[&ENDLESS, more].concat())?)?;
        let mut worker = None;
        let submits = || {
            let workers = setup.daemon().workers();
            worker = worker.or_else(|| workers.into_iter().find(|worker| !before.contains(worker)));
            program.said().contains("submitting")
        };
        ensure!(eventually(LIMIT, submits), "it does not submit\n{}", setup.daemon().log());
        Ok(Self { worker, program })
    }

    /// Waits until its worker has ended.
    fn ends(&self, daemon: &Daemon) -> Result<()> {
        ensure!(eventually(LIMIT, || !self.lives()), "it still runs\n{}", daemon.log());
        Ok(())
    }

    fn lives(&self) -> bool {
        self.worker.is_some_and(is_alive)
    }
}

/// Demands that the daemon reports `count` contexts lost for this reason. The daemon reports a loss when it has learned of the worker's end.
fn lost(setup: &Setup, why: &str, count: usize) -> Result<()> {
    let is_told = |line: &&str| line.contains("is lost: ") && line.contains(why);
    let told = || setup.daemon().log().lines().filter(is_told).count();
    ensure!(eventually(LIMIT, || told() == count), "{} of {count}\n{}", told(), setup.daemon().log());
    Ok(())
}

#[test]
fn an_endless_submission_ends_at_the_limit_and_its_neighbour_computes_on() -> Result<()> {
    let options = ["--max-submit-time", "2s", "--max-submit-time-contended", "2s", "--strikes", "100"];
    let setup = Setup::on(Daemon::start_with(&options)?)?;
    let neighbour = || succeed(computing(&setup, &["--rounds", "5"])?, LIMIT);
    let expected = neighbour()?;
    setup.settle()?;
    let before = Holdings::of(setup.daemon().pid())?;
    for round in 0..3 {
        let endless = Endless::start(&setup)?;
        thread::scope(|scope| -> Result<_> {
            let beside = scope.spawn(neighbour);
            endless.ends(setup.daemon())?;
            ensure!(beside.join().expect("no panic")? == expected, "the neighbour");
            Ok(())
        })
        .with_context(|| format!("round {round}"))?;
        ensure!(neighbour()? == expected, "another one after");
    }
    lost(&setup, "a submission ran longer than max-submit-time (2 s)", 3)?;
    setup.check_for_leaks(before).map(drop)
}

/// Such a program only reads a word in its memory, which the dead worker does not write any more.
#[test]
fn a_program_that_polls_its_fence_learns_of_the_death_of_its_worker() -> Result<()> {
    let setup = Setup::on(Daemon::start_with(&["--max-submit-time", "60min"])?)?;
    for round in 0..5 {
        let mut endless = Endless::start_with(&setup, &["--poll"])?;
        let worker = endless.worker.context("its worker")?;
        let busy = || cpu_time(worker).is_ok_and(|used| used > Duration::from_millis(300));
        ensure!(eventually(LIMIT, busy), "it does not compute");
        kill_process(worker, Signal::KILL)?;
        let told = eventually(PATIENCE, || endless.program.said().contains("the fence says: "));
        let said = endless.program.said();
        ensure!(
            told && said.contains("device has been lost"),
            "round {round}: {said}\n{}",
            setup.daemon().log()
        );
        ensure!(eventually(LIMIT, || !endless.program.is_running()), "it goes on");
    }
    Ok(())
}

#[test]
fn an_endless_submission_makes_room_sooner_for_one_that_waits_and_who_waited_is_left_alone() -> Result<()> {
    let options = ["--max-submit-time", "60min", "--max-submit-time-contended", "1s"];
    let setup = Setup::on(Daemon::start_with(&options)?)?;
    let first = Endless::start(&setup)?;
    thread::sleep(Duration::from_secs(3));
    ensure!(first.lives(), "no other program waits\n{}", setup.daemon().log());
    let second = Endless::start(&setup)?;
    first.ends(setup.daemon())?;
    thread::sleep(Duration::from_secs(3));
    ensure!(second.lives(), "it waited for the first, and no program waits for it\n{}", setup.daemon().log());
    lost(&setup, "max-submit-time-contended (1 s)", 1)
}

/// A VM whose program has hung as often as is allowed, and is held back for the time `hold`.
fn struck(hold: &str) -> Result<Setup> {
    let options = ["--max-submit-time", "1s", "--strikes", "2", "--strike-hold", hold];
    let setup = Setup::on(Daemon::start_with(&options)?)?;
    for _ in 0..2 {
        Endless::start(&setup)?.ends(setup.daemon())?;
    }
    Ok(setup)
}

#[test]
fn a_program_that_hangs_again_and_again_is_held_back_and_no_other() -> Result<()> {
    let (setup, other) = (struck("60min")?, Setup::start()?);
    // The hold begins when the daemon has learned of the end of the program's last worker.
    let is_held = || setup.guest().create_context("many_threads").is_err();
    ensure!(eventually(LIMIT, is_held), "nothing holds it back\n{}", setup.daemon().log());
    setup.guest().create_context("another").with_context(|| setup.daemon().log())?;
    let is_told = || setup.daemon().log().contains("limit strikes (2) reached");
    ensure!(eventually(LIMIT, is_told), "{}", setup.daemon().log());
    succeed(computing(&other, &["--rounds", "1"])?, LIMIT).context("another VM").map(drop)
}

#[test]
fn a_program_that_is_held_back_is_served_again_after_that_time() -> Result<()> {
    let setup = struck("2s")?;
    let is_served = || setup.guest().create_context("many_threads").is_ok();
    ensure!(eventually(LIMIT, is_served), "it is held back for ever\n{}", setup.daemon().log());
    Ok(())
}

fn timelines(daemon: &Daemon) -> Result<Guest> {
    timeline::device(&Arc::new(daemon.guest()?), "waits")
}

#[test]
fn a_submission_that_waits_for_what_comes_late_is_left_alone() -> Result<()> {
    let daemon = Daemon::start_with(&["--max-submit-time", "500ms"])?;
    let mut guest = timelines(&daemon)?;
    let worker = daemon.wait_for_workers(1)?[0];
    let semaphore = timeline::wait_before_signal(&mut guest)?;
    let done = guest.gpu().submit_fenced(guest.context, RingIdx(1), &[]);
    ensure!(!done.arrives_within(Duration::from_secs(5)), "it did not wait");
    ensure!(is_alive(worker), "{}", daemon.log());
    timeline::signal(&mut guest, semaphore)?;
    ensure!(done.arrives_within(PATIENCE), "it was not signalled\n{}", daemon.log());
    thread::sleep(Duration::from_secs(2));
    ensure!(is_alive(worker), "idle, and ended\n{}", daemon.log());
    Ok(())
}

#[test]
fn an_endless_submission_of_another_vm_is_ended_for_one_that_waits() -> Result<()> {
    let broker = Broker::start("", &[("hog", "max-submit-time-contended = \"1s\""), ("neighbour", "")])?;
    let ((_first, hog), (_second, neighbour)) = (broker.bridge("hog")?, broker.bridge("neighbour")?);
    let mut endless = Background::start(computing_at(&hog, &ENDLESS)?)?;
    ensure!(eventually(LIMIT, || endless.said().contains("submitting")), "it does not submit");
    // On a host that is overloaded for seconds Mesa gives up, and ends its program.
    let start = || Background::start(computing_at(&neighbour, &HELD_UP)?);
    let (mut beside, mut failed) = (start()?, String::new());
    let is_over = eventually(LIMIT, || {
        if !beside.is_running() {
            failed += &beside.errors();
            start().into_iter().for_each(|again| beside = again);
        }
        !endless.is_running()
    });
    ensure!(is_over, "it still runs; the neighbour: {failed}\n{}", broker.log());
    ensure!(broker.vm("neighbour")?["kills"]["hung"] == 0, "{}", broker.log());
    let rounds = || beside.said().lines().count();
    let now = rounds();
    ensure!(
        eventually(LIMIT, || rounds() > now),
        "the neighbour stands still: {}\n{}",
        beside.errors(),
        broker.log()
    );
    let is_counted = || broker.vm("hog").is_ok_and(|vm| vm["kills"]["hung"] == 1);
    ensure!(eventually(LIMIT, is_counted), "{}", broker.vm("hog")?);
    Ok(())
}

/// A ring whose thread waits in the driver for a signal that never comes: its monitor says that it lives, other contexts are served, and it ends when
/// it is destroyed.
fn ring_blocks_and_ends(
    daemon: &Daemon,
    guest: &mut Guest,
    wait: impl FnOnce(&mut Writer<'_>),
) -> Result<()> {
    let seqno = guest.ring.command(wait)?;
    let other = guest.gpu().create_context("other")?;
    guest.gpu().submit_fenced(other, RingIdx(0), &[]).wait(PATIENCE)?;
    thread::sleep(Duration::from_millis(500));
    guest.ring.clear_alive();
    let alive = || guest.ring.status().contains(venus::RingStatusFlagsMESA::ALIVE);
    ensure!(eventually(PATIENCE, alive), "the monitor is blocked, too\n{}", daemon.log());
    ensure!(guest.ring.head() != seqno, "it does not wait at all\n{}", daemon.log());
    let destroy = encode(|w| venus::DestroyRingMESA { ring: guest.ring.id() }.encode(ASYNC, w));
    let destroyed = guest.gpu().submit_fenced(guest.context, RingIdx(0), &destroy);
    ensure!(destroyed.arrives_within(PATIENCE), "the wait cannot be ended\n{}", daemon.log());
    ensure!(!daemon.log().contains("is lost"), "{}", daemon.log());
    guest.gpu().destroy_context(guest.context)?;
    daemon.wait_for_workers(1).map(drop)
}

#[test]
fn a_device_destroyed_below_a_submission_that_waits_for_ever_blocks_nobody_else() -> Result<()> {
    let daemon = Daemon::start()?;
    let mut guest = timelines(&daemon)?;
    timeline::wait_before_signal(&mut guest)?;
    let device = guest.device;
    ring_blocks_and_ends(&daemon, &mut guest, |w| venus::DestroyDevice { device }.encode(ASYNC, w))
}

#[test]
fn a_wait_for_a_query_that_nobody_ends_blocks_nobody_else() -> Result<()> {
    let daemon = Daemon::start()?;
    let mut guest = timelines(&daemon)?;
    let (device, query_pool) = (guest.device, venus::QueryPool(guest.new_id()));
    let info = venus::QueryPoolCreateInfo {
        query_type: venus::QueryType::TIMESTAMP,
        query_count: 1,
        ..Default::default()
    };
    guest.call(|w| {
        venus::CreateQueryPool { device, p_create_info: Some(&info), p_query_pool: Some(&query_pool) }
            .encode(REPLY, w);
    })?;
    ring_blocks_and_ends(&daemon, &mut guest, |w| {
        let (flags, data) = (venus::QueryResultFlags::WAIT, [0; 8]);
        let (first_query, query_count, data_size, stride) = (0, 1, 8, 8);
        let p_data = Some(&data[..]);
        venus::GetQueryPoolResults {
            device,
            query_pool,
            first_query,
            query_count,
            data_size,
            p_data,
            stride,
            flags,
        }
        .encode(ASYNC, w);
    })
}
