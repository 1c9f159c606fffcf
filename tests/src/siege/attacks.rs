//! The attacks, each in rounds of some seconds from a VM of its own.

use super::neighbour::{SIZE, Work};
use crate::attacks::descriptors::{counters, printing_end, ring_and_take_back};
use crate::attacks::endless::Program;
use crate::attacks::frontends::{begin_map, fill_call, take_memory_away};
use crate::attacks::hoards::{large_submission, small_blobs, unread_submissions};
use crate::attacks::requests::request;
use crate::attacks::streams::{known_numbers, random_command, transport_command};
use crate::broker::Broker;
use crate::daemon::eventually;
use crate::daemon_process::workers;
use crate::frontend::{Options, Session};
use crate::guest::device::{Device, Source};
use crate::guest::ring::{Ring, RingOptions};
use crate::guest::{Gpu, PATIENCE, timeline};
use crate::random::Random;
use anyhow::{Context, Result, anyhow};
use protocol::ids::RingIdx;
use protocol::virtio_gpu::Command;
use rustix::process::{Pid, Signal, kill_process};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The time for which an attack waits for its effect.
const ROUND: Duration = Duration::from_secs(3);

/// Bounds of an attacker's VM that end its submissions soon.
const STRICT: &str = "max-submit-time = \"5s\"\nmax-submit-time-contended = \"1s\"\nstrike-hold = \"1s\"\nfrontend-timeout = \"2s\"";

/// Programs of a surge, and the fills that each submits at once: on two processors they take a second.
const SURGE: usize = 40;
const SURGE_FILLS: u32 = 1024;

/// A kind of attack.
pub struct Attack {
    /// The attack's name, which is its VM's.
    pub name: &'static str,
    /// Keys of that VM.
    pub keys: &'static str,
    /// The function for one round. The errors that the attacker gets are counted.
    pub round: fn(&Attacker, &mut Random) -> Result<()>,
}

/// All kinds of attacks.
pub const ALL: &[Attack] = &[
    strict("doorbell", doorbell),
    strict("output", output),
    strict("deaf", deaf),
    strict("blobs", blobs),
    strict("line", line),
    strict("endless", endless),
    strict("flood", flood),
    strict("maps", maps),
    strict("calls", calls),
    strict("shrink", shrink),
    strict("connections", connections),
    strict("resets", resets),
    strict("requests", requests),
    strict("streams", streams),
    strict("rings", rings),
    strict("deaths", deaths),
    // No limit ends the submissions, so the scheduler alone has to share out the GPU.
    Attack { name: "surge", keys: "", round: surge },
];

const fn strict(name: &'static str, round: fn(&Attacker, &mut Random) -> Result<()>) -> Attack {
    Attack { name, keys: STRICT, round }
}

/// A VM that attacks its broker.
pub struct Attacker {
    /// The broker that is attacked.
    pub broker: Arc<Broker>,
    /// The attacker's VM.
    pub vm: &'static str,
}

impl Attacker {
    fn guest(&self) -> Result<Gpu> {
        Ok(Gpu::new(Session::connect(&self.broker.path(self.vm), Options::default())?))
    }

    fn workers(&self) -> Result<Vec<Pid>> {
        let device = self.broker.device(self.vm)?.as_raw_nonzero().get().unsigned_abs();
        Ok(workers(device)?.into_iter().filter_map(|worker| Pid::from_raw(worker as i32)).collect())
    }

    /// Sends a signal to the attacker's workers, as far as they have not ended.
    fn signal_workers(&self, signal: Signal) -> Result<()> {
        for worker in self.workers()? {
            let _ = kill_process(worker, signal);
        }
        Ok(())
    }
}

/// A worker under an attacker's control rings its doorbell, resets it, makes reads of it wait, and fills it.
fn doorbell(attacker: &Attacker, _: &mut Random) -> Result<()> {
    let gpu = Arc::new(attacker.guest()?);
    let mut device = Device::create(&gpu, "doorbell")?;
    device.submit(|_, _| ())?;
    let worker = *attacker.workers()?.first().context("no worker")?;
    let doorbells = counters(worker)?;
    (0..5000).for_each(|_| ring_and_take_back(&doorbells));
    for doorbell in &doorbells {
        let _ = rustix::io::write(doorbell, &(u64::MAX - 1).to_ne_bytes());
    }
    std::thread::sleep(ROUND / 4);
    Ok(())
}

/// A worker under an attacker's control floods, forges and cuts the log.
fn output(attacker: &Attacker, _: &mut Random) -> Result<()> {
    let guest = attacker.guest()?;
    guest.create_context("output")?;
    eventually(ROUND, || attacker.workers().is_ok_and(|workers| !workers.is_empty()));
    let end = printing_end(*attacker.workers()?.first().context("no worker")?)?;
    let _ = rustix::fs::ftruncate(&end, 0);
    let line = [[b'x'; 4000].as_slice(), b"\n"].concat();
    for _ in 0..2000 {
        rustix::io::write(&end, &line)?;
    }
    Ok(rustix::net::shutdown(&end, rustix::net::Shutdown::Both)?)
}

/// Workers that do not read their messages, and a driver that continues to submit.
fn deaf(attacker: &Attacker, _: &mut Random) -> Result<()> {
    let guest = attacker.guest()?;
    let contexts = (0..4).map(|_| guest.create_context("deaf")).collect::<Result<Vec<_>, _>>()?;
    eventually(ROUND, || attacker.workers().is_ok_and(|workers| workers.len() == contexts.len()));
    attacker.signal_workers(Signal::STOP)?;
    unread_submissions(&guest, &contexts, 5000);
    std::thread::sleep(ROUND / 2);
    Ok(())
}

fn blobs(attacker: &Attacker, _: &mut Random) -> Result<()> {
    let guest = attacker.guest()?;
    small_blobs(&guest, "blobs")?;
    small_blobs(&guest, "more blobs")?;
    Ok(())
}

/// Large submissions that wait for a value that is never signalled.
fn line(attacker: &Attacker, _: &mut Random) -> Result<()> {
    let gpu = Arc::new(attacker.guest()?);
    let mut device = timeline::device(&gpu, "line")?;
    timeline::wait_before_signal(&mut device)?;
    let payload = large_submission(device.queue);
    for _ in 0..200 {
        gpu.submit_fenced(device.context, RingIdx(0), &payload).wait(ROUND)?;
    }
    Ok(())
}

fn endless(attacker: &Attacker, _: &mut Random) -> Result<()> {
    let gpu = Arc::new(attacker.guest()?);
    let mut program = Program::start(&gpu, "endless")?;
    program.stop()?;
    std::thread::sleep(ROUND);
    Ok(())
}

/// Empty submissions, as many as the device takes.
fn flood(attacker: &Attacker, _: &mut Random) -> Result<()> {
    let gpu = Arc::new(attacker.guest()?);
    let mut device = Device::create(&gpu, "flood")?;
    let begun = Instant::now();
    while begun.elapsed() < ROUND {
        device.submit(|_, _| ())?;
    }
    Ok(())
}

/// A frontend that does not acknowledge.
fn maps(attacker: &Attacker, _: &mut Random) -> Result<()> {
    let guest = attacker.guest()?;
    let context = guest.create_context("maps")?;
    let _held = guest.session.window.hold_maps();
    begin_map(&guest, context);
    guest.session.wait_until_over(ROUND);
    Ok(())
}

fn calls(attacker: &Attacker, _: &mut Random) -> Result<()> {
    let mut guest = attacker.guest()?;
    let _full = fill_call(&mut guest)?;
    for _ in 0..1000 {
        drop(guest.start(&Command::GetCapsetInfo { capset_index: 0 }, None, None));
    }
    std::thread::sleep(ROUND / 4);
    Ok(())
}

fn shrink(attacker: &Attacker, _: &mut Random) -> Result<()> {
    let guest = attacker.guest()?;
    guest.create_context("shrink")?;
    take_memory_away(&guest, Options::default().ram_size)?;
    guest.session.wait_until_over(ROUND);
    Ok(())
}

/// Connects 100 times and sends nothing.
fn connections(attacker: &Attacker, _: &mut Random) -> Result<()> {
    let _silent: Vec<_> = (0..100).map(|_| UnixStream::connect(attacker.broker.path(attacker.vm))).collect();
    std::thread::sleep(ROUND / 4);
    Ok(())
}

fn resets(attacker: &Attacker, _: &mut Random) -> Result<()> {
    let mut guest = attacker.guest()?;
    for _ in 0..50 {
        guest.create_context("resets")?;
        guest.session.reset()?;
    }
    Ok(())
}

fn requests(attacker: &Attacker, random: &mut Random) -> Result<()> {
    let guest = attacker.guest()?;
    for _ in 0..100 {
        guest.send_bytes((0..256).map(|_| (request(random), Box::new(|_| ()) as _)).collect());
    }
    guest.capset().map(drop)
}

/// Random commands by way of the control queue.
fn streams(attacker: &Attacker, random: &mut Random) -> Result<()> {
    let (guest, numbers) = (attacker.guest()?, known_numbers());
    for _ in 0..20 {
        let context = guest.create_context("streams")?;
        for _ in 0..random.below(512) {
            drop(guest.submit(context, &random_command(random, &numbers)));
        }
        guest.destroy_context(context)?;
    }
    Ok(())
}

/// Random commands, positions and control words in rings.
fn rings(attacker: &Attacker, random: &mut Random) -> Result<()> {
    let (guest, numbers) = (Arc::new(attacker.guest()?), known_numbers());
    for _ in 0..20 {
        let context = guest.create_context("rings")?;
        let options = RingOptions { buffer_size: 4096, ..RingOptions::default() };
        let mut ring = Ring::create(&guest, context, options)?;
        ring.patience = Duration::from_millis(20);
        for _ in 0..random.below(64) {
            match random.below(4) {
                0 => ring.lie_about_tail(random.nasty() as u32),
                1 => ring.scribble(random.below(1020) as usize * 4, &random.bytes(16))?,
                2 => drop(ring.send(&random_command(random, &numbers))),
                _ => drop(ring.send(&transport_command(random, ring.id(), ring.resource().resource_id.0))),
            }
        }
        ring.abandon();
        guest.destroy_context(context)?;
    }
    Ok(())
}

/// Workers that end, as if by a crash of their driver.
fn deaths(attacker: &Attacker, _: &mut Random) -> Result<()> {
    let gpu = Arc::new(attacker.guest()?);
    for _ in 0..5 {
        let mut device = Device::create(&gpu, "deaths")?;
        device.submit(|_, _| ())?;
        attacker.signal_workers(Signal::KILL)?;
    }
    Ok(())
}

/// Many programs that first submit little work, so that the scheduler expects little, and then submit much work, all at once.
fn surge(attacker: &Attacker, _: &mut Random) -> Result<()> {
    let gpu = Arc::new(attacker.guest()?);
    let mut programs = (0..SURGE).map(|_| Surging::start(&gpu)).collect::<Result<Vec<_>>>()?;
    let answers = programs.iter_mut().map(|program| program.much.submit(&mut program.device));
    let answers = answers.collect::<Result<Vec<_>>>()?;
    answers.into_iter().try_for_each(|answer| answer.wait(PATIENCE).map(drop))?;
    Ok(())
}

/// A program of a surge.
struct Surging {
    device: Device,
    much: Work,
}

impl Surging {
    fn start(gpu: &Arc<Gpu>) -> Result<Self> {
        let mut device = Device::create(gpu, "surge")?;
        let memory = device.allocate(SIZE, Source::New)?.map_err(|result| anyhow!("{result:?}"))?;
        let buffer = device.bound(memory, SIZE)?;
        let little = Work::record(&mut device, buffer, 1)?;
        for _ in 0..3 {
            little.submit(&mut device)?.wait(PATIENCE)?;
        }
        let much = Work::record(&mut device, buffer, SURGE_FILLS)?;
        Ok(Self { device, much })
    }
}
