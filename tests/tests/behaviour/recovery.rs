//! A worker that dies by itself while the driver has no work of its program only costs the program time; a worker that dies with work in the driver
//! loses its context.

use crate::restart;
use anyhow::{Context, Result, anyhow, ensure};
use protocol::ids::RingIdx;
use protocol::venus::generated::{self as venus, ChainStruct};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tests::attacks::endless;
use tests::broker::{Broker, vhost_user_vulkan};
use tests::clients::many_threads;
use tests::daemon::{die_by, eventually, on_machine};
use tests::daemon_process::workers;
use tests::frontend::{Options, Session};
use tests::guest::device::{Device, Source, ensure_filled};
use tests::guest::{Gpu, PATIENCE};
use tests::packages::{ClientRoot, Device as Used, Suite};
use tests::program::{Background, LIMIT, Program};
use tests::random::Random;
use vm_memory::{Bytes, VolatileMemory};

const SIZE: u64 = 4096;
/// The time after which a status is new: the broker asks device processes again after a quarter of a second.
const OLD: Duration = Duration::from_millis(600);

/// The time in which a submission of a few milliseconds has ended, and the worker has noticed.
const DRAINED: Duration = Duration::from_millis(250);

/// A program without Mesa.
fn guest(broker: &Broker, vm: &str) -> Result<Arc<Gpu>> {
    Ok(Arc::new(Gpu::new(Session::connect(&broker.path(vm), Options::default())?)))
}

/// The worker of the only context of a VM.
fn worker(broker: &Broker, vm: &str) -> Result<Pid> {
    let device = broker.device(vm)?.as_raw_nonzero().get().cast_unsigned();
    let one = || workers(device).is_ok_and(|workers| workers.len() == 1);
    ensure!(eventually(PATIENCE, one), "{:?}", workers(device));
    let pid = workers(device)?.first().copied().context("no worker")?;
    Pid::from_raw(i32::try_from(pid)?).context("no process")
}

/// Waits until the only context of a VM would survive.
fn would_survive(broker: &Broker, vm: &str) -> Result<()> {
    let says_so = || broker.vm(vm).is_ok_and(|vm| vm["contexts"][0]["recoverable"] == true);
    let survives = || {
        says_so() && {
            // The last report to the broker may be old.
            std::thread::sleep(OLD);
            says_so()
        }
    };
    ensure!(eventually(PATIENCE, survives), "no checkpoint: {}\n{}", broker.vm(vm)?, broker.log());
    Ok(())
}

/// Waits until the only context of a VM would survive, and has its worker die by a signal.
fn dies_idle(broker: &Broker, vm: &str, signal: Signal) -> Result<()> {
    would_survive(broker, vm)?;
    ensure!(die_by(worker(broker, vm)?, signal), "it does not die");
    Ok(())
}

/// Waits until `count` contexts of a VM were recovered.
fn recovered(broker: &Broker, vm: &str, count: u64) -> Result<()> {
    let counted = || broker.vm(vm).is_ok_and(|vm| vm["context_recoveries"] == count);
    ensure!(eventually(PATIENCE, counted), "{}\n{}", broker.vm(vm)?, broker.log());
    Ok(())
}

#[test]
fn a_mesa_program_whose_idle_worker_is_killed_computes_on() -> Result<()> {
    let broker = Broker::start("", &[("a", "")])?;
    let (_bridge, socket) = broker.bridge("a")?;
    let mut command = many_threads(Path::new(env!("CARGO_BIN_EXE_many_threads")), &socket, "0")?;
    command.arg("--until").arg(broker.path("end"));
    let program = Program::start(command)?;
    let submissions = || broker.vm("a").ok().and_then(|vm| vm["used"]["submissions"].as_u64()).unwrap_or(0);
    for round in 1..=2 {
        let before = submissions();
        ensure!(eventually(PATIENCE, || submissions() > before), "round {round}: {}", broker.log());
        kill_process(program.pid(), Signal::STOP)?;
        dies_idle(&broker, "a", Signal::KILL)?;
        recovered(&broker, "a", round)?;
        ensure!(broker.log().contains("(SIGKILL)); its program was paused for "), "{}", broker.log());
        kill_process(program.pid(), Signal::CONT)?;
    }
    let before = submissions();
    ensure!(eventually(PATIENCE, || submissions() > before), "{}", broker.log());
    fs::write(broker.path("end"), "")?;
    let ended = program.wait(LIMIT).context("the program does not end")?;
    ensure!(ended.status.success(), "{ended:?}\n{}", broker.log());
    Ok(())
}

/// A program that compiles, records, submits, waits and checks until there is a file, and is never idle for the time after which an idle worker
/// makes a checkpoint. The driver compiles within a submission.
fn busy(broker: &Broker, socket: &Path, until: &Path) -> Result<Background> {
    let executable = Path::new(env!("CARGO_BIN_EXE_many_threads"));
    let mut command = ClientRoot::open(Suite::Testing)?.own(executable, Used::Venus(socket))?;
    command.args(["--instances", "1", "--devices", "1", "--lanes", "1", "--words", "256", "--steps", "10"]);
    command.args(["--rounds", "0", "--report", "--pause", "100", "--until"]).arg(until);
    Background::start(command).with_context(|| broker.log())
}

/// The rounds that a busy program has computed and reported.
fn rounds(program: &Background) -> usize {
    program.said().matches("round ").count()
}

#[test]
fn a_busy_mesa_program_whose_worker_is_killed_between_two_submissions_computes_on() -> Result<()> {
    let broker = Broker::start("", &[("a", "")])?;
    let (_bridge, socket) = broker.bridge("a")?;
    let end = broker.path("end");
    for _ in 0..2 {
        let mut program = busy(&broker, &socket, &end)?;
        let recoveries = || broker.vm("a").ok().and_then(|vm| vm["context_recoveries"].as_u64());
        for _ in 0..2 {
            let says_so = || broker.vm("a").is_ok_and(|vm| vm["contexts"][0]["recoverable"] == true);
            ensure!(eventually(PATIENCE, says_so), "a busy program has no checkpoint\n{}", broker.log());
            let (before, done) = (recoveries().context("no count")?, rounds(&program));
            ensure!(eventually(PATIENCE, || rounds(&program) > done), "{}", broker.log());
            // The program's submissions end, and the program is idle for less time than an idle worker is given.
            kill_process(program.pid(), Signal::STOP)?;
            std::thread::sleep(DRAINED);
            ensure!(die_by(worker(&broker, "a")?, Signal::KILL), "it does not die");
            recovered(&broker, "a", before + 1)?;
            kill_process(program.pid(), Signal::CONT)?;
            let done = rounds(&program);
            ensure!(eventually(PATIENCE, || rounds(&program) > done + 3), "{}", broker.log());
        }
        fs::write(&end, "")?;
        ensure!(program.wait(LIMIT)?.success(), "{}\n{}", program.errors(), broker.log());
        fs::remove_file(&end)?;
    }
    Ok(())
}

#[test]
fn what_is_in_memory_survives_and_a_context_whose_workers_die_again_and_again_is_given_up() -> Result<()> {
    let broker = Broker::start("", &[("a", ""), ("b", "")])?;
    let mut neighbour = endless::Program::start(&guest(&broker, "b")?, "neighbour")?;
    let gpu = guest(&broker, "a")?;
    let mut device = Device::create(&gpu, "victim")?;
    let allocate =
        |device: &mut Device| device.allocate(SIZE, Source::New)?.map_err(|result| anyhow!("{result:?}"));
    let (from, to) = (allocate(&mut device)?, allocate(&mut device)?);
    device.fill(from, SIZE, 0x1234_5678)?;
    let blob = device.blob(to, SIZE)?;
    for (round, signal) in [(1, Signal::SEGV), (2, Signal::KILL)] {
        dies_idle(&broker, "a", signal)?;
        recovered(&broker, "a", round)?;
    }
    device.copy(from, to, SIZE)?;
    let mut bytes = vec![0; SIZE as usize];
    blob.mapping.as_ref().context("mapped")?.1.map()?.as_volatile_slice().read_slice(&mut bytes, 0)?;
    ensure_filled(&bytes, 0x1234_5678)?;
    dies_idle(&broker, "a", Signal::KILL)?;
    ensure!(gpu.submit_fenced(device.context, RingIdx(1), &[]).arrives_within(PATIENCE), "nobody is told");
    let given_up = || broker.log().contains("gets no other worker: limit crashes reached: 3 of its workers");
    ensure!(eventually(PATIENCE, given_up), "{}", broker.log());
    let lost = || broker.log().contains("is lost: its worker ended (signal: 9 (SIGKILL))");
    ensure!(eventually(PATIENCE, lost), "{}", broker.log());
    neighbour.compute().map(drop)
}

/// Memory that only the driver uses, the word that fills it, and if the memory has an address, a buffer with its address.
type Hidden = (venus::DeviceMemory, u32, Option<(venus::Buffer, u64)>);

fn hidden(device: &mut Device, source: Source, size: u64, word: u32) -> Result<Hidden> {
    let ty = device.hidden.context("no memory that cannot be mapped")?;
    let memory = device.allocate_of_type(size, ty, source)?.ok().context("memory")?;
    device.fill(memory, size, word)?;
    let is_addressed = matches!(source, Source::Addressed);
    let buffer = is_addressed.then(|| device.addressed(memory, size)).transpose()?;
    Ok((memory, word, buffer))
}

/// The sizes of a program's allocations: there are many only on a GPU of the machine.
fn sizes() -> Vec<u64> {
    let few = vec![restart::SIZE; 6];
    if on_machine() { [few, vec![1 << 30; 16], vec![1 << 20; 1000]].concat() } else { few }
}

#[test]
fn memory_that_only_the_driver_uses_survives_its_workers() -> Result<()> {
    let (_vulkan, broker) = restart::with_hidden_memory()?;
    let gpu = guest(&broker, "a")?;
    // Addresses of software drivers are those of memory that the processor maps.
    let sources = if on_machine() { vec![Source::New, Source::Addressed] } else { vec![Source::New] };
    let features =
        venus::PhysicalDeviceBufferDeviceAddressFeatures { buffer_device_address: 1, ..Default::default() };
    let features = [ChainStruct::PhysicalDeviceBufferDeviceAddressFeatures(&features)];
    let mut device = Device::create_with(&gpu, "victim", if on_machine() { &features } else { &[] })?;
    let (seen, mut all) = (restart::Seen::new(&mut device)?, Vec::new());
    for ((word, source), size) in (1..).zip(sources.iter().cycle()).zip(sizes()) {
        all.push(hidden(&mut device, *source, size, word)?);
    }
    for round in 1..=3 {
        // In the last round the context is handed over.
        if round < 3 {
            dies_idle(&broker, "a", Signal::KILL)?;
            recovered(&broker, "a", round.into())?;
        } else {
            println!("{}", broker.say(&["restart", &format!("a/{}", device.context.0)])?);
        }
        for (memory, word, buffer) in &mut all {
            ensure_filled(&seen.contents(&mut device, *memory)?, *word).context("with another worker")?;
            *word = *word * 100 + round;
            device.fill(*memory, restart::SIZE, *word)?;
            if let Some((buffer, address)) = buffer {
                ensure!(device.address(*buffer)? == *address, "another address than {address:#x}");
            }
        }
        device.free(all.remove(0).0)?;
        all.push(hidden(&mut device, sources[0], restart::SIZE, round)?);
    }
    for (memory, word, _) in all {
        ensure_filled(&seen.contents(&mut device, memory)?, word)?;
    }
    Ok(())
}

#[test]
fn memory_whose_deposit_is_taken_back_can_be_allocated_again_at_once() -> Result<()> {
    let (_vulkan, broker) = restart::with_hidden_memory()?;
    let gpu = guest(&broker, "a")?;
    let mut device = Device::create(&gpu, "allocator")?;
    let ty = device.hidden.context("no memory that cannot be mapped")?;
    // The heap has no room for two copies of this memory.
    let size = if on_machine() { device.hidden_heap / 8 * 5 } else { restart::SIZE };
    for _ in 0..3 {
        let memory = device.allocate_of_type(size, ty, Source::New)?;
        let memory = memory.map_err(|result| anyhow!("{result:?}: the memory of before is held still"))?;
        would_survive(&broker, "a")?;
        device.free(memory)?;
    }
    Ok(())
}

#[test]
fn a_worker_that_dies_with_work_in_the_driver_loses_its_context_and_no_other() -> Result<()> {
    let broker = Broker::start("", &[("a", ""), ("b", "")])?;
    let (busy, other) = (guest(&broker, "a")?, guest(&broker, "b")?);
    let mut busy = endless::Program::start(&busy, "busy")?;
    let mut other = endless::Program::start(&other, "other")?;
    busy.compute()?;
    busy.stop()?;
    ensure!(die_by(worker(&broker, "a")?, Signal::KILL), "it does not die");
    ensure!(busy.is_ended_within(PATIENCE), "nobody is told\n{}", broker.log());
    // A GPU may compute on for longer than the device process waits for the end of a worker.
    let late = on_machine().then_some("closed its channel, did not end, and was killed");
    let ways = [Some("ended (signal: 9 (SIGKILL))"), late];
    let is_said = |way: &str| broker.log().contains(&format!("is lost: its worker {way}"));
    let lost = || ways.into_iter().flatten().any(is_said);
    ensure!(eventually(PATIENCE, lost), "{}", broker.log());
    ensure!(broker.vm("a")?["context_recoveries"] == 0, "{}", broker.log());
    other.compute().map(drop)
}

/// A broker whose log also has the lines for developers.
fn talkative(vms: &[(&str, &str)]) -> Result<Broker> {
    let mut command = vhost_user_vulkan()?;
    command.args(["--log-level", "debug"]);
    Broker::start_command(command, "", vms)
}

/// The words of the log for a context that is lost.
const LOST: &str = "gets no other worker: ";
/// The words after these if the context is lost because a submission had not completed.
const IN_DRIVER: &str = "work of its program was in the driver";

/// The contexts whose workers were killed at random moments.
#[derive(Debug, Default)]
struct Killed {
    recovered: usize,
    /// Lost with work in the driver, and for other reasons.
    in_driver: usize,
    lost: usize,
}

impl Killed {
    /// Kills the worker of a program of a VM. Returns whether the program goes on.
    fn kill(&mut self, broker: &Broker, vm: &str, program: &mut Background) -> Result<bool> {
        let recoveries = || broker.vm(vm).ok().and_then(|vm| vm["context_recoveries"].as_u64());
        let before = recoveries().context("no count")?;
        let lines = |log: &str| -> Vec<String> {
            let of_vm = |line: &&str| line.contains(LOST) && line.contains(&format!("vm={vm}"));
            log.lines().filter(of_vm).map(str::to_owned).collect()
        };
        let told = lines(&broker.log()).len();
        ensure!(die_by(worker(broker, vm)?, Signal::KILL), "it does not die");
        let is_lost = || lines(&broker.log()).len() > told;
        let is_recovered = || recoveries().is_some_and(|count| count > before);
        let is_either = eventually(PATIENCE, || is_lost() || is_recovered() || !program.is_running());
        ensure!(is_either, "{}", broker.log());
        if is_recovered() {
            self.recovered += 1;
            return Ok(true);
        }
        match lines(&broker.log()).last().filter(|_| is_lost()) {
            Some(line) if line.contains(IN_DRIVER) => self.in_driver += 1,
            line => {
                println!("lost: {line:?}");
                self.lost += 1;
            }
        }
        ensure!(eventually(PATIENCE, || !program.is_running()), "the program is not told\n{}", broker.log());
        Ok(false)
    }
}

/// Kills the workers of busy programs of a VM at random moments, until `count` of them were replaced. All programs that are not lost compute to their
/// ends.
fn kill_at_random(broker: &Broker, vm: &str, seed: u64, count: usize) -> Result<Killed> {
    let (_bridge, socket) = broker.bridge(vm)?;
    let end = broker.path(&format!("end-{vm}"));
    let (mut random, mut killed) = (Random::new(seed), Killed::default());
    while killed.recovered < count {
        let mut program = busy(broker, &socket, &end)?;
        // Until the program computes it allocates memory, which the journal behind a checkpoint cannot have.
        ensure!(eventually(PATIENCE, || rounds(&program) > 3), "{}\n{}", program.errors(), broker.log());
        // A third death within a minute is one too many.
        let mut goes_on = true;
        for _ in 0..2 {
            let says_so = || broker.vm(vm).is_ok_and(|vm| vm["contexts"][0]["recoverable"] == true);
            ensure!(eventually(PATIENCE, says_so), "{}\n{}", program.errors(), broker.log());
            std::thread::sleep(Duration::from_millis(random.below(2000)));
            goes_on = killed.kill(broker, vm, &mut program)?;
            ensure!(
                killed.lost == 0 && killed.in_driver <= count + killed.recovered,
                "{killed:?}\n{}",
                broker.log()
            );
            if !goes_on {
                break;
            }
            let before = rounds(&program);
            let computes = eventually(PATIENCE, || rounds(&program) > before + 3);
            ensure!(computes, "{}\n{}", program.errors(), broker.log());
        }
        if goes_on {
            fs::write(&end, "")?;
            ensure!(program.wait(LIMIT)?.success(), "{}\n{}", program.errors(), broker.log());
            fs::remove_file(&end)?;
        }
        println!("{vm}: {killed:?}");
    }
    Ok(killed)
}

#[test]
#[ignore = "takes a quarter of an hour: workers of busy programs die at random moments, until 200 were replaced"]
fn workers_that_die_at_random_under_load_lose_only_contexts_with_work_in_the_driver() -> Result<()> {
    const VMS: [(&str, u64); 2] = [("a", 37), ("b", 41)];
    let broker = talkative(&VMS.map(|(vm, _)| (vm, "")))?;
    let all = std::thread::scope(|scope| {
        let threads = VMS.map(|(vm, seed)| {
            let broker = &broker;
            scope.spawn(move || kill_at_random(broker, vm, seed, 100))
        });
        threads.map(|thread| thread.join().expect("it does not panic"))
    });
    for killed in all {
        println!("{:?}", killed?);
    }
    Ok(())
}
