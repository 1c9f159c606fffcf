//! Workers that die, one after the other and in every way, beside a neighbour that computes and does not notice.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use protocol::ids::RingIdx;
use rustix::process::{Pid, Signal};
use tests::clients::Setup;
use tests::daemon::{Daemon, cpu_time, die_by, eventually};
use tests::guest::{Gpu, PATIENCE};
use tests::packages::{ClientRoot, Device, Suite};
use tests::program::Background;
use tests::random::Random;

/// Workers that are killed, and workers that crash.
const KILLS: usize = 100;
const CRASHES: usize = 100;
/// Workers that die in one block.
const BLOCK: usize = 20;
/// Time from one context to the next, so that both kinds come as often.
const PERIOD: Duration = Duration::from_millis(100);
/// How a driver that crashes ends its process: bad addresses, failed assertions, forbidden system calls.
const CRASH: [Signal; 6] = [Signal::SEGV, Signal::ABORT, Signal::BUS, Signal::SYS, Signal::FPE, Signal::ILL];

/// A program that computes and checks, round after round; its worker, and what it and we have seen so far.
struct Neighbour {
    program: Background,
    worker: Pid,
}

/// What the neighbour did in some time, and what that cost its worker.
#[derive(Clone, Copy, Debug, Default)]
struct Work {
    rounds: usize,
    processor: Duration,
    wall: Duration,
}

impl Neighbour {
    fn start(setup: &Setup) -> Result<Self> {
        let executable = Path::new(env!("CARGO_BIN_EXE_many_threads"));
        let mut command = ClientRoot::open(Suite::Testing)?.own(executable, Device::Venus(setup.socket()))?;
        let arguments = ["--instances", "1", "--devices", "1", "--lanes", "1", "--rounds", "0", "--report"];
        command.args(arguments);
        let program = Background::start(command)?;
        let computes = || program.said().contains("round 3 ");
        ensure!(eventually(4 * PATIENCE, computes), "{}\n{}", program.errors(), setup.daemon().log());
        let worker = setup.daemon().workers().first().copied().context("its worker")?;
        Ok(Self { program, worker })
    }

    /// What it does while something happens.
    fn beside(&self, something: impl FnOnce() -> Result<()>) -> Result<Work> {
        let now = || Ok::<_, anyhow::Error>((self.program.said().lines().count(), cpu_time(self.worker)?));
        let ((rounds, processor), start) = (now()?, Instant::now());
        something()?;
        let (rounds_after, processor_after) = now()?;
        Ok(Work {
            rounds: rounds_after - rounds,
            processor: processor_after - processor,
            wall: start.elapsed(),
        })
    }
}

impl Work {
    /// Rounds per second.
    fn pace(&self) -> f64 {
        self.rounds as f64 / self.wall.as_secs_f64()
    }

    /// Processor time of a round.
    fn cost(&self) -> f64 {
        self.processor.as_secs_f64() / self.rounds as f64
    }
}

/// A context comes and goes, by its destruction or by the death of its worker at some moment; what was asked of it is answered.
fn context(setup: &Setup, random: &mut Random, end: Option<Signal>, neighbour: Pid) -> Result<()> {
    let gpu: &Gpu = setup.guest();
    let context = gpu.create_context("mortal")?;
    let fresh = || setup.daemon().workers().into_iter().find(|worker| *worker != neighbour);
    let blob = gpu.create_shmem(context, 8192)?;
    let executed = gpu.submit_fenced(context, RingIdx(0), &[]);
    // Half of them die before their driver is loaded.
    if random.once_in(2) {
        executed.wait(PATIENCE)?;
    }
    let mut last = None;
    if let Some(signal) = end {
        ensure!(eventually(PATIENCE, || fresh().is_some()), "no worker\n{}", setup.daemon().log());
        last = fresh();
        let worker = last.context("it has ended by itself")?;
        ensure!(die_by(worker, signal), "{signal:?} ends nobody");
        let fence = gpu.submit_fenced(context, RingIdx(1), &[]);
        ensure!(fence.arrives_within(PATIENCE), "a fence of a dead worker\n{}", setup.daemon().log());
    }
    gpu.destroy_blob(blob)?;
    gpu.destroy_context(context)?;
    // The next one is to find its own worker.
    let gone = || last.map_or_else(|| fresh().is_none(), |worker| fresh() != Some(worker));
    ensure!(eventually(PATIENCE, gone), "a worker is left");
    Ok(())
}

#[test]
fn a_neighbour_of_two_hundred_dying_workers_computes_on() -> Result<()> {
    let setup = Setup::on(Daemon::start()?)?;
    let mut random = Random::new(7);
    let mut ends: Vec<Signal> = vec![Signal::KILL; KILLS];
    ends.extend(CRASH.iter().cycle().take(CRASHES));
    // Shuffled, so that every block has some of each.
    for at in (1..ends.len()).rev() {
        ends.swap(at, random.below(at as u64 + 1) as usize);
    }
    drop(Neighbour::start(&setup)?);
    let before = setup.settle()?;
    let mut neighbour = Neighbour::start(&setup)?;
    let worker = neighbour.worker;
    // Contexts that go in order cost the machine as much as others: what differs is how they end.
    let mut growths = Vec::new();
    for (number, block) in ends.chunks(BLOCK).enumerate() {
        let contexts = |dying: bool| {
            let mut random = Random::new(number as u64);
            neighbour.beside(|| {
                block.iter().try_for_each(|signal| {
                    let next = Instant::now() + PERIOD;
                    context(&setup, &mut random, dying.then_some(*signal), worker)?;
                    std::thread::sleep(next.saturating_duration_since(Instant::now()));
                    Ok(())
                })
            })
        };
        // Alternately first, so that what the machine does besides favours neither.
        let first = contexts(number % 2 == 0)?;
        let second = contexts(number % 2 != 0)?;
        let (dying, orderly) = if number % 2 == 0 { (first, second) } else { (second, first) };
        let pace = dying.pace() / orderly.pace();
        println!("{} and {} rounds, {pace:.2} times as many per second", orderly.rounds, dying.rounds);
        ensure!(orderly.rounds > 5 && dying.rounds > 5, "too little to compare");
        growths.push(dying.cost() / orderly.cost());
    }
    ensure!(neighbour.program.is_running(), "the neighbour: {}", neighbour.program.errors());
    growths.sort_unstable_by(f64::total_cmp);
    println!("from block to block {growths:.2?}");
    let growth = f64::midpoint(growths[growths.len() / 2], growths[(growths.len() - 1) / 2]);
    println!("{growth:.3} times the processor time for a round");
    ensure!(growth < 1.1, "a round costs {growth:.3} times as much");
    drop(neighbour);
    setup.check_for_leaks(before).map(drop)
}
