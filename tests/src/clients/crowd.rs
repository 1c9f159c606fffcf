//! Many clients, several at a time; some are killed at random moments.
//!
//! The device must outlive all clients, keep no resources of theirs, and give the surviving clients the same results as alone. The seed decides which
//! clients are killed and by which signal; the exact moment is up to the machine.

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use parking_lot::Mutex;
use rustix::process::{Signal, kill_process_group};

use super::{Client, Files, LLAMA, NCNN, NCNN_SINGLE, Packages, Place, Setup, WHISPER};
use crate::daemon::{Daemon, Holdings};
use crate::packages::{ClientRoot, Device, Suite};
use crate::program::{LIMIT, Program as Running};
use crate::random::Random;

/// The clients that a crowd consists of.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Clients in all.
    pub clients: usize,
    /// Clients at any time.
    pub at_once: usize,
    /// Decides kinds and kills.
    pub seed: u64,
    /// The independent programs among them.
    pub programs: &'static [Client],
}

/// Programs that take a software driver seconds, most of them to compile shaders.
pub const SHORT: &[Client] = &[LLAMA, NCNN_SINGLE];
/// The programs that the long form runs.
pub const ALL: &[Client] = &[LLAMA, NCNN, WHISPER];

/// The outcome of a crowd: numbers of clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Clients that ended by themselves, with the right result.
    pub survived: usize,
    /// Clients that a signal of ours ended.
    pub killed: usize,
}

/// One in this many clients is to be killed.
const KILL_ONE_IN: u64 = 2;
/// The number of ended clients between two lines of progress.
const STEP: usize = 50;

/// One kind of client: its command, its expected result, and the time that it took alone.
struct Kind<'a> {
    name: String,
    command: MakeCommand<'a>,
    result: ResultOf<'a>,
    expected: String,
    duration: Duration,
}

/// Runs `plan` with a daemon of its own. `threads` is the client program of this crate with that name.
///
/// # Errors
/// The daemon ends, a client hangs or has a wrong result, or something leaks.
pub fn run(plan: Plan, threads: PathBuf) -> Result<Tally> {
    let material = Material::gather(threads)?;
    let setup = &material.setup;
    let kinds = material.kinds(plan.programs)?;
    let before = setup.settle()?;
    println!("before: {before:?}");
    let started = Instant::now();
    let tally = Crowd { plan, setup, kinds: &kinds, started, before }.run()?;
    let after = setup.check_for_leaks(before)?;
    println!("after: {after:?}");
    println!(
        "{} survived, {} killed, in {:.0} s",
        tally.survived,
        tally.killed,
        started.elapsed().as_secs_f32()
    );
    Ok(tally)
}

struct Crowd<'a> {
    plan: Plan,
    setup: &'a Setup,
    kinds: &'a [Kind<'a>],
    started: Instant,
    before: Holdings,
}

impl Crowd<'_> {
    fn run(&self) -> Result<Tally> {
        let next = AtomicUsize::new(0);
        let failed = AtomicBool::new(false);
        let tally = Mutex::new(Tally::default());
        let lane = || -> Result<()> {
            while !failed.load(Ordering::Relaxed) {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= self.plan.clients {
                    break;
                }
                let outcome = self.client(number).with_context(|| format!("client {number}"));
                failed.fetch_or(outcome.is_err(), Ordering::Relaxed);
                self.count(&mut tally.lock(), outcome?);
            }
            Ok(())
        };
        thread::scope(|scope| {
            let lanes: Vec<_> = (0..self.plan.at_once).map(|_| scope.spawn(lane)).collect();
            let ends = lanes.into_iter().map(|lane| lane.join().expect("a lane does not panic"));
            ends.collect::<Vec<_>>().into_iter().collect::<Result<()>>()
        })?;
        Ok(tally.into_inner())
    }

    /// Runs one client; true if it lived to its end.
    fn client(&self, number: usize) -> Result<bool> {
        let mut random = Random::new(self.plan.seed ^ (number as u64) << 32);
        let kind = &self.kinds[random.below(self.kinds.len() as u64) as usize];
        let doomed = random.once_in(KILL_ONE_IN);
        let signal = random.pick(&[Signal::KILL, Signal::TERM]);
        // A client takes longer beside other clients than alone.
        let moment = kind.duration * u32::try_from(random.below(3000))? / 1000;
        let started = Instant::now();
        let program = Running::start((kind.command)()?)?;
        if doomed {
            thread::sleep(moment);
            // The client may have ended before.
            let _ = kill_process_group(program.pid(), signal);
        }
        let output = program.wait(LIMIT).with_context(|| format!("{} hangs", kind.name))?;
        self.setup.check_alive()?;
        if doomed && output.status.signal() == Some(signal.as_raw()) {
            return Ok(false);
        }
        let ended =
            || format!("{} ended after {:?}\n{}", kind.name, started.elapsed(), self.setup.daemon().log());
        kind.check(&(kind.result)(&output).with_context(ended)?)?;
        Ok(true)
    }

    fn count(&self, tally: &mut Tally, survived: bool) {
        if survived {
            tally.survived += 1;
        } else {
            tally.killed += 1;
        }
        let ended = tally.survived + tally.killed;
        if ended.is_multiple_of(STEP) {
            let holdings = Holdings::of(self.setup.daemon().pid()).unwrap_or(self.before);
            println!(
                "{ended} of {}: {} survived, {} killed, {:.0} s; {holdings:?}",
                self.plan.clients,
                tally.survived,
                tally.killed,
                self.started.elapsed().as_secs_f32(),
            );
        }
    }
}

/// The parts that clients are made of.
struct Material {
    setup: Setup,
    files: Files,
    suites: [ClientRoot; 3],
    packages: Packages,
    threads: PathBuf,
}

impl Material {
    fn gather(threads: PathBuf) -> Result<Self> {
        let [trixie, testing, unstable] = Suite::ALL.map(ClientRoot::open);
        Ok(Self {
            setup: Setup::on(Daemon::start()?)?,
            files: Files::write()?,
            suites: [trixie?, testing?, unstable?],
            packages: Packages::open(Suite::Testing)?,
            threads,
        })
    }

    /// Every kind of client, each after it ran once alone.
    fn kinds(&self, programs: &[Client]) -> Result<Vec<Kind<'_>>> {
        let mut kinds = Vec::new();
        for root in &self.suites {
            kinds.push(self.vulkaninfo(root)?);
            kinds.push(self.many_threads(root)?);
        }
        for client in programs {
            kinds.push(self.independent(*client)?);
        }
        Ok(kinds)
    }

    /// A kind of client that queries all properties and computes nothing. Each client must get the same answers as the first.
    fn vulkaninfo<'a>(&'a self, root: &'a ClientRoot) -> Result<Kind<'a>> {
        let name = format!("vulkaninfo of {}", root.suite().name());
        let command = || root.through_vtest("vulkaninfo", self.setup.socket());
        let result = |output: &Output| {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            ensure!(
                output.status.success() && text.contains("Virtio-GPU Venus"),
                "{}\n{text}",
                output.status
            );
            Ok(text)
        };
        Kind::measure(name, Box::new(command), Box::new(result), None)
    }

    /// A kind of client that compiles, records and submits in several threads, and checks its own results.
    fn many_threads<'a>(&'a self, root: &'a ClientRoot) -> Result<Kind<'a>> {
        let name = format!("many_threads of {}", root.suite().name());
        let command = || {
            let mut command = root.own(&self.threads, Device::Venus(self.setup.socket()))?;
            command.args(["--instances", "1", "--devices", "1", "--lanes", "2", "--rounds", "5"]);
            Ok(command)
        };
        let result = |output: &Output| {
            let errors = String::from_utf8_lossy(&output.stderr);
            ensure!(output.status.success(), "{}\n{errors}", output.status);
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        };
        Kind::measure(name, Box::new(command), Box::new(result), None)
    }

    /// One of the independent programs; its result must be the host's.
    fn independent(&self, client: Client) -> Result<Kind<'_>> {
        let expected = client.run(&Place::Packages(&self.packages, Device::Native), &self.files, LIMIT)?;
        let place = Place::Packages(&self.packages, Device::Venus(self.setup.socket()));
        let command = move || client.command(&place, &self.files);
        let result = move |output: &Output| client.result_of(output);
        Kind::measure(client.name.to_owned(), Box::new(command), Box::new(result), Some(expected))
    }
}

type MakeCommand<'a> = Box<dyn Fn() -> Result<Command> + Sync + 'a>;
type ResultOf<'a> = Box<dyn Fn(&Output) -> Result<String> + Sync + 'a>;

impl<'a> Kind<'a> {
    /// Runs one client of a kind alone. Its result is the expected one, unless `expected` has another.
    fn measure(
        name: String,
        command: MakeCommand<'a>,
        result: ResultOf<'a>,
        expected: Option<String>,
    ) -> Result<Self> {
        let started = Instant::now();
        let found = Running::start(command()?)?.wait(LIMIT).and_then(|output| result(&output));
        let found = found.with_context(|| format!("{name}, alone"))?;
        let duration = started.elapsed();
        let kind =
            Self { expected: expected.unwrap_or_else(|| found.clone()), name, command, result, duration };
        kind.check(&found)?;
        println!("{} takes {:.1} s alone", kind.name, kind.duration.as_secs_f32());
        Ok(kind)
    }

    fn check(&self, found: &str) -> Result<()> {
        ensure!(found == self.expected, "{} says\n{found}\ninstead of\n{}", self.name, self.expected);
        Ok(())
    }
}
