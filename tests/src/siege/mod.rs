//! Attacks on a broker from VMs of their own, all at once and for any time, beside VMs that only compute. The findings: processes that end, grow or
//! stand still, and the part of the GPU that the other VMs get.

mod attacks;
mod neighbour;
mod watch;

pub use attacks::{ALL, Attack};

use crate::broker::{Broker, find};
use crate::random::Random;
use anyhow::{Context, Result};
use attacks::Attacker;
use neighbour::Neighbour;
use rustix::process::{Signal, kill_process};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use watch::{Found, Watch, Watched};

/// VMs that only compute.
const NEIGHBOURS: [&str; 2] = ["neighbour-1", "neighbour-2"];

/// The longest time for which a thread may wait for anything other than work.
pub const BLOCKED_MAX: Duration = Duration::from_millis(50);
/// The growth that a process may show at the end, KiB: memory that its allocator keeps.
pub const GROWN_MAX_KIB: u64 = 16 << 10;

/// The findings of a siege.
pub struct Report {
    /// The time for which the attacks went on.
    pub time: Duration,
    /// The rounds of each attack, and how many of them ended with an error of the attacker's.
    pub rounds: Vec<(&'static str, u64, u64)>,
    /// The broker, and the neighbours' device processes.
    pub processes: Vec<Found>,
    /// The submissions of each neighbour that were done.
    pub done: Vec<u64>,
    /// The longest time of each neighbour without the end of a submission.
    pub gaps: Vec<Duration>,
    /// The part of each neighbour in the charges of all VMs for the GPU's time, in relation to an equal part for each VM.
    pub shares: Vec<f64>,
    /// The number of restarts of neighbours' device processes.
    pub restarts: u64,
    /// The faults of the neighbours' programs.
    pub failures: Vec<String>,
}

impl Report {
    /// Returns the faults among the findings.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for Found { process, lives, anonymous_kib: [before, after], blocked, place, .. } in &self.processes {
            if !lives {
                faults.push(format!("{} has ended", process.name));
            }
            if *after > before + GROWN_MAX_KIB {
                faults.push(format!("{} has grown from {before} to {after} KiB", process.name));
            }
            if *blocked > BLOCKED_MAX {
                faults.push(format!("{} stood still for {blocked:?} in {place}", process.name));
            }
        }
        if self.restarts > 0 {
            faults.push(format!("device processes of neighbours were started again {} times", self.restarts));
        }
        faults.extend(self.failures.iter().cloned());
        faults
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:.0} s of attacks", self.time.as_secs_f64())?;
        for (name, rounds, errors) in &self.rounds {
            writeln!(f, "  {name}: {rounds} rounds, {errors} of them ended with an error of the attacker's")?;
        }
        for Found { process, anonymous_kib, descriptors, blocked, .. } in &self.processes {
            let [before, after] = anonymous_kib;
            let [open, left] = descriptors;
            let name = &process.name;
            writeln!(
                f,
                "  {name}: {before} to {after} KiB, {open} to {left} descriptors, stood still {blocked:.1?} at most"
            )?;
        }
        for (at, name) in NEIGHBOURS.iter().enumerate() {
            let (done, gap, share) = (self.done[at], self.gaps[at], self.shares[at]);
            let rate = done as f64 / self.time.as_secs_f64();
            writeln!(
                f,
                "  {name}: {rate:.1} submissions/s, {share:.3} of an equal share, longest gap {gap:.0?}"
            )?;
        }
        Ok(())
    }
}

/// Lets these attacks go on for `time`.
///
/// # Errors
/// The broker does not start, or a neighbour's program does not.
pub fn run(attacks: &[&'static Attack], time: Duration) -> Result<Report> {
    let names = NEIGHBOURS.iter().map(|name| (*name, ""));
    let vms: Vec<_> = names.chain(attacks.iter().map(|attack| (attack.name, attack.keys))).collect();
    let broker = Arc::new(Broker::start("", &vms)?);
    let neighbours = NEIGHBOURS.iter().map(|vm| Neighbour::start(&broker, vm)).collect::<Result<Vec<_>>>()?;
    let mut watched = vec![Watched { name: "broker".into(), pid: broker.pid() }];
    for vm in NEIGHBOURS {
        watched.push(Watched { name: format!("device process of {vm}"), pid: broker.device(vm)? });
    }
    let charged = || -> Result<Vec<f64>> { vms.iter().map(|(vm, _)| charge(&broker, vm)).collect() };
    let (before, watch) = (charged()?, Watch::start(watched)?);
    let done: Vec<u64> = neighbours.iter().map(Neighbour::done).collect();
    neighbours.iter().for_each(Neighbour::forget_gap);
    let begun = Instant::now();
    let rounds = attacks.iter().zip(0..).map(|(attack, seed)| Rounds::begin(&broker, attack, seed));
    let rounds: Vec<_> = rounds.collect();
    std::thread::sleep(time);
    let (time, processes) = (begun.elapsed(), watch.end());
    let rounds = rounds.iter().map(|rounds| rounds.end()).collect();
    let gaps = neighbours.iter().map(Neighbour::longest_gap).collect();
    let done = neighbours.iter().zip(done).map(|(neighbour, before)| neighbour.done() - before).collect();
    let used: Vec<f64> = charged()?.iter().zip(before).map(|(now, before)| now - before).collect();
    let equal = used.iter().sum::<f64>() / used.len() as f64;
    let shares = used.iter().take(NEIGHBOURS.len()).map(|used| used / equal).collect();
    let mut restarts = 0;
    for vm in NEIGHBOURS {
        restarts += broker.vm(vm)?["restarts"].as_u64().context("restarts")?;
    }
    let ends = NEIGHBOURS.iter().zip(neighbours).map(|(vm, neighbour)| (vm, neighbour.end()));
    let failures = ends.filter_map(|(vm, end)| Some(format!("{vm}'s program has failed: {:#}", end.err()?)));
    let failures = failures.collect();
    kill_process(broker.pid(), Signal::TERM)?;
    Ok(Report { time, rounds, processes, done, gaps, shares, restarts, failures })
}

/// Seconds of the GPU that a VM was charged for.
fn charge(broker: &Broker, vm: &str) -> Result<f64> {
    let status = broker.status()?;
    let vm = find(&status["vms"], "name", &vm.into()).context("the VM")?;
    vm["used"]["gpu_seconds"].as_f64().context("GPU seconds")
}

/// The rounds of one attack, on a thread of its own.
struct Rounds {
    name: &'static str,
    begun: AtomicU64,
    failed: AtomicU64,
    over: AtomicBool,
}

impl Rounds {
    /// Begins the rounds. A round may outlast the siege: it may wait for an event that never comes.
    fn begin(broker: &Arc<Broker>, attack: &'static Attack, seed: u64) -> Arc<Self> {
        let (begun, failed, over) = Default::default();
        let rounds = Arc::new(Self { name: attack.name, begun, failed, over });
        let (counted, attacker) =
            (Arc::clone(&rounds), Attacker { broker: Arc::clone(broker), vm: attack.name });
        std::thread::spawn(move || {
            let mut random = Random::new(seed);
            while !counted.over.load(Ordering::Relaxed) {
                counted.begun.fetch_add(1, Ordering::Relaxed);
                if let Err(error) = (attack.round)(&attacker, &mut random) {
                    counted.failed.fetch_add(1, Ordering::Relaxed);
                    log::debug!("{}: {error:#}", attack.name);
                    // The daemon may hold the attacker back, or its device process may be starting again.
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
        });
        rounds
    }

    fn end(&self) -> (&'static str, u64, u64) {
        self.over.store(true, Ordering::Relaxed);
        (self.name, self.begun.load(Ordering::Relaxed), self.failed.load(Ordering::Relaxed))
    }
}
