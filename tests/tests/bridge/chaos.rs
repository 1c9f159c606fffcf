//! Workers that die, one after the other and of every signal, beside a neighbour that computes and does not notice.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use protocol::ids::RingIdx;
use rustix::process::{Pid, Signal};
use tests::clients::Setup;
use tests::daemon::{Daemon, die_by, eventually};
use tests::guest::{Gpu, PATIENCE};
use tests::packages::{ClientRoot, Device, Suite};
use tests::program::Background;
use tests::random::Random;

/// Workers that are killed, and workers that crash.
const KILLS: usize = 100;
const CRASHES: usize = 100;
/// The number of workers that die between two checks of the neighbour.
const BLOCK: usize = 20;
/// The signals by which a crash in a driver ends its process: bad addresses, failed assertions, forbidden system calls.
const CRASH: [Signal; 6] = [Signal::SEGV, Signal::ABORT, Signal::BUS, Signal::SYS, Signal::FPE, Signal::ILL];

/// A program that computes and checks, round after round, and its worker.
struct Neighbour {
    program: Background,
    worker: Pid,
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

    /// Returns whether the neighbour continues to compute: it completes more rounds than now.
    fn goes_on(&self) -> bool {
        let rounds = || self.program.said().lines().count();
        let now = rounds();
        eventually(PATIENCE, || rounds() > now)
    }
}

/// Makes a context, which ends by the death of its worker at some moment; all its requests are answered.
fn context(setup: &Setup, random: &mut Random, end: Signal, neighbour: Pid) -> Result<()> {
    let gpu: &Gpu = setup.guest();
    let context = gpu.create_context("mortal")?;
    let fresh = || setup.daemon().workers().into_iter().find(|worker| *worker != neighbour);
    let blob = gpu.create_shmem(context, 8192)?;
    let executed = gpu.submit_fenced(context, RingIdx(0), &[]);
    // Half of them die before their driver is loaded.
    if random.once_in(2) {
        executed.wait(PATIENCE)?;
    }
    ensure!(eventually(PATIENCE, || fresh().is_some()), "no worker\n{}", setup.daemon().log());
    let worker = fresh().context("it has ended by itself")?;
    ensure!(die_by(worker, end), "{end:?} does not end the worker");
    let fence = gpu.submit_fenced(context, RingIdx(1), &[]);
    ensure!(fence.arrives_within(PATIENCE), "a fence of a dead worker\n{}", setup.daemon().log());
    gpu.destroy_blob(blob)?;
    gpu.destroy_context(context)?;
    // The next call must not find this worker.
    ensure!(eventually(PATIENCE, || fresh() != Some(worker)), "a worker is left");
    Ok(())
}

#[test]
#[ignore = "takes minutes: 200 workers die beside a neighbour"]
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
    for block in ends.chunks(BLOCK) {
        block.iter().try_for_each(|signal| context(&setup, &mut random, *signal, worker))?;
        ensure!(neighbour.goes_on(), "the neighbour: {}", neighbour.program.errors());
    }
    // The neighbour ends with the first wrong word.
    ensure!(neighbour.program.is_running(), "the neighbour: {}", neighbour.program.errors());
    drop(neighbour);
    setup.check_for_leaks(before).map(drop)
}
