//! Submissions that never end cost their own context and nobody else's, soon; submissions that wait for long cost nothing.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use protocol::cursor::Writer;
use protocol::ids::RingIdx;
use protocol::venus::generated as venus;
use protocol::venus::generated::ChainStruct;
use rustix::process::{Pid, Signal, kill_process};
use tests::clients::Setup;
use tests::daemon::{Daemon, Holdings, cpu_time, eventually, is_alive, waiting_time};
use tests::guest::PATIENCE;
use tests::guest::device::Device as Guest;
use tests::guest::ring::{ASYNC, REPLY, encode};
use tests::packages::{ClientRoot, Device, Suite};
use tests::program::{Background, succeed};

/// No client takes this long.
const LIMIT: Duration = Duration::from_secs(240);
/// What the device process may need beyond a limit.
const MARGIN: Duration = Duration::from_millis(100);

fn computing(setup: &Setup, arguments: &[&str]) -> Result<Command> {
    let executable = Path::new(env!("CARGO_BIN_EXE_many_threads"));
    let mut command = ClientRoot::open(Suite::Testing)?.own(executable, Device::Venus(setup.socket()))?;
    command.args(["--instances", "1", "--devices", "1", "--lanes", "1"]).args(arguments);
    Ok(command)
}

/// A program whose only submission takes hours. Dropping it ends it.
struct Endless {
    worker: Pid,
    submitted: Instant,
    /// What those who end it had waited for a processor by then.
    waited: Duration,
    program: Background,
}

/// For how long the threads that end a submission have waited for a processor: what a busy machine adds.
fn waited(worker: Pid, daemon: &Daemon) -> Result<Duration> {
    let mut waited = waiting_time(&[daemon.pid()])?;
    for task in std::fs::read_dir(format!("/proc/{}/task", worker.as_raw_nonzero()))? {
        let task = task?.path();
        if std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == "watchdog") {
            let schedstat = std::fs::read_to_string(task.join("schedstat"))?;
            let nanoseconds = schedstat.split_whitespace().nth(1).context("schedstat")?.parse()?;
            waited += Duration::from_nanos(nanoseconds);
        }
    }
    Ok(waited)
}

impl Endless {
    /// Returns as soon as it submits.
    fn start(setup: &Setup) -> Result<Self> {
        Self::start_with(setup, &[])
    }

    fn start_with(setup: &Setup, more: &[&str]) -> Result<Self> {
        let before = setup.daemon().workers();
        let arguments = ["--announce", "--rounds", "1", "--words", "1048576", "--steps", "4294967295"];
        let program = Background::start(computing(setup, &[&arguments, more].concat())?)?;
        let submits = || program.said().contains("submitting");
        ensure!(eventually(LIMIT, submits), "it does not submit\n{}", setup.daemon().log());
        let submitted = Instant::now();
        let worker = setup.daemon().workers().into_iter().find(|worker| !before.contains(worker));
        let worker = worker.context("its worker")?;
        Ok(Self { worker, submitted, waited: waited(worker, setup.daemon())?, program })
    }

    /// For how long its submission ran, once its worker is gone, and how much of that those who end it waited for a processor.
    fn ran(&self, daemon: &Daemon) -> Result<(Duration, Duration)> {
        let mut last = self.waited;
        let gone = eventually(LIMIT, || {
            last = waited(self.worker, daemon).unwrap_or_default().max(last);
            !is_alive(self.worker)
        });
        ensure!(gone, "it still runs\n{}", daemon.log());
        Ok((self.submitted.elapsed(), last - self.waited))
    }

    fn lives(&self) -> bool {
        is_alive(self.worker)
    }
}

fn lost(setup: &Setup, why: &str) -> usize {
    setup.daemon().log().lines().filter(|line| line.contains("is lost: ") && line.contains(why)).count()
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
        let (ran, waited) = thread::scope(|scope| -> Result<_> {
            let beside = scope.spawn(neighbour);
            let ran = endless.ran(setup.daemon())?;
            ensure!(beside.join().expect("no panic")? == expected, "the neighbour");
            Ok(ran)
        })?;
        println!("round {round}: ran {ran:?}, of which threads waited {waited:?}");
        // It says so a moment before it submits.
        ensure!(ran >= Duration::from_secs(2), "ended after {ran:?}\n{}", setup.daemon().log());
        ensure!(ran <= Duration::from_secs(2) + MARGIN + waited, "ended after {ran:?} (waited {waited:?})");
        ensure!(neighbour()? == expected, "another one after");
    }
    let told = lost(&setup, "a submission ran longer than max_submit_time (2s)");
    ensure!(told == 3, "{told} of 3\n{}", setup.daemon().log());
    setup.check_for_leaks(before).map(drop)
}

/// Such a program looks at nothing but a word in its memory, which nobody writes any more.
#[test]
fn a_program_that_polls_its_fence_learns_of_the_death_of_its_worker() -> Result<()> {
    let setup = Setup::on(Daemon::start_with(&["--max-submit-time", "60min"])?)?;
    for round in 0..5 {
        let mut endless = Endless::start_with(&setup, &["--poll"])?;
        let busy = || cpu_time(endless.worker).is_ok_and(|used| used > Duration::from_millis(300));
        ensure!(eventually(LIMIT, busy), "it does not compute");
        kill_process(endless.worker, Signal::KILL)?;
        let killed = Instant::now();
        let told = eventually(PATIENCE, || endless.program.said().contains("the fence says: "));
        println!("round {round}: told after {:?}", killed.elapsed());
        let said = endless.program.said();
        ensure!(told && said.contains("device has been lost"), "{said}\n{}", setup.daemon().log());
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
    ensure!(first.lives(), "nobody waits\n{}", setup.daemon().log());
    let second = Endless::start(&setup)?;
    first.ran(setup.daemon())?;
    thread::sleep(Duration::from_secs(3));
    ensure!(second.lives(), "it waited for the first, and nobody waits for it\n{}", setup.daemon().log());
    ensure!(lost(&setup, "max_submit_time_contended (1s)") == 1, "{}", setup.daemon().log());
    Ok(())
}

#[test]
fn a_vm_whose_contexts_hang_again_and_again_is_held_back_and_another_is_not() -> Result<()> {
    let options = ["--max-submit-time", "200ms", "--strikes", "2", "--strike-hold", "20s"];
    let setup = Setup::on(Daemon::start_with(&options)?)?;
    let other = Setup::start()?;
    for _ in 0..2 {
        let guest = setup.guest();
        guest.destroy_context(guest.create_context("not held")?)?;
        Endless::start(&setup)?.ran(setup.daemon())?;
    }
    let held = Instant::now();
    let refused = setup.guest().create_context("held");
    ensure!(refused.is_err(), "nothing holds it back\n{}", setup.daemon().log());
    ensure!(setup.daemon().log().contains("limit reached: strikes"), "{}", setup.daemon().log());
    succeed(computing(&other, &["--rounds", "1"])?, LIMIT).context("another VM")?;
    let served = || setup.guest().create_context("served again").is_ok();
    ensure!(eventually(LIMIT, served), "it is held back for ever");
    ensure!(held.elapsed() > Duration::from_secs(15), "held back for {:?}", held.elapsed());
    Ok(())
}

/// A timeline semaphore that is 0, and a submission that waits until it is 1.
fn wait_before_signal(guest: &mut Guest) -> Result<venus::Semaphore> {
    let (device, queue, semaphore) = (guest.device, guest.queue, venus::Semaphore(guest.new_id()));
    let ty = venus::SemaphoreTypeCreateInfo {
        semaphore_type: venus::SemaphoreType::TIMELINE,
        ..Default::default()
    };
    let chain = [ChainStruct::SemaphoreTypeCreateInfo(&ty)];
    let info = venus::SemaphoreCreateInfo { p_next: &chain, ..Default::default() };
    guest.call(|w| {
        venus::CreateSemaphore { device, p_create_info: Some(&info), p_semaphore: Some(&semaphore) }
            .encode(REPLY, w);
    })?;
    let values = venus::TimelineSemaphoreSubmitInfo {
        wait_semaphore_value_count: 1,
        p_wait_semaphore_values: Some(&[1]),
        ..Default::default()
    };
    let chain = [ChainStruct::TimelineSemaphoreSubmitInfo(&values)];
    let submit = venus::SubmitInfo {
        p_next: &chain,
        wait_semaphore_count: 1,
        p_wait_semaphores: Some(&[semaphore]),
        p_wait_dst_stage_mask: Some(&[venus::PipelineStageFlags::ALL_COMMANDS]),
        ..Default::default()
    };
    guest.call(|w| {
        let p_submits = Some(std::slice::from_ref(&submit));
        venus::QueueSubmit { queue, submit_count: 1, p_submits, fence: venus::Fence(0) }.encode(REPLY, w);
    })?;
    Ok(semaphore)
}

fn timelines(daemon: &Daemon) -> Result<Guest> {
    let gpu = Arc::new(daemon.guest()?);
    let features =
        venus::PhysicalDeviceTimelineSemaphoreFeatures { timeline_semaphore: 1, ..Default::default() };
    Guest::create_with(&gpu, "waits", &[ChainStruct::PhysicalDeviceTimelineSemaphoreFeatures(&features)])
}

#[test]
fn a_submission_that_waits_for_what_comes_late_is_left_alone() -> Result<()> {
    let daemon = Daemon::start_with(&["--max-submit-time", "500ms"])?;
    let mut guest = timelines(&daemon)?;
    let worker = daemon.wait_for_workers(1)?[0];
    let semaphore = wait_before_signal(&mut guest)?;
    let done = guest.gpu().submit_fenced(guest.context, RingIdx(1), &[]);
    ensure!(!done.arrives_within(Duration::from_secs(5)), "it did not wait");
    ensure!(is_alive(worker), "{}", daemon.log());
    let device = guest.device;
    let info = venus::SemaphoreSignalInfo { semaphore, value: 1, ..Default::default() };
    guest.call(|w| venus::SignalSemaphore { device, p_signal_info: Some(&info) }.encode(REPLY, w))?;
    ensure!(done.arrives_within(PATIENCE), "it was not signalled\n{}", daemon.log());
    thread::sleep(Duration::from_secs(2));
    ensure!(is_alive(worker), "idle, and ended\n{}", daemon.log());
    Ok(())
}

/// A ring whose thread waits in the driver for what never comes: its monitor says that it lives, others are served, and it ends when
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
    wait_before_signal(&mut guest)?;
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
