//! A year in short: a broker of four VMs with all actions of operators and guests, and the check that nothing of these remains.
//!
//! | file | is |
//! | --- | --- |
//! | `pace` | the events of an operator's pace, how often each happens, and their order by a seed |
//! | `stage` | the broker, its VMs, and where their files are |
//! | `churn` | the action of each event |
//! | `rest` | the holdings that are left at a rest |
//! | `flat` | whether numbers taken one after another grow |
//!
//! Several lanes do the events as they become due. At each rest the lanes stop, the VMMs end, and the holdings of the processes are counted: then no
//! guest accounts for a descriptor. An event that another one disturbs may fail; any other failure is a fault.

mod churn;
pub mod flat;
pub mod pace;
mod rest;
mod stage;

use anyhow::{Context, Result};
use churn::perform;
use flat::Line;
use pace::{Due, VMS, schedule};
use parking_lot::{Mutex, RwLock};
use rest::{Rest, lines};
use stage::Stage;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The events of a soak, and the time they are given.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Hours at an operator's pace.
    pub hours: f64,
    /// Operator's seconds in a second.
    pub speed: f64,
    /// The seed that decides the times of the events, and their targets.
    pub seed: u64,
    /// Time between two rests.
    pub rest_every: Duration,
}

/// Events that are done at the same time.
const LANES: usize = 6;
/// The part of the rests at the beginning that counts as warm-up.
const WARM_UP: f64 = 0.2;
/// Time that events have to come to their end at a rest, before their VMMs end.
const TO_THE_END: Duration = Duration::from_secs(30);
/// Faults that are kept with their text.
const FAULTS_MAX: usize = 20;

/// The findings of a soak.
pub struct Report {
    plan: Plan,
    took: Duration,
    /// Events by name: their number, and the number of those that other events disturbed.
    events: BTreeMap<&'static str, (u64, u64)>,
    /// The measures, as they were taken at each rest.
    pub lines: Vec<Line>,
    log_bytes: u64,
    faults: Vec<String>,
}

impl Report {
    /// Returns the faults: events that failed by themselves, and measures that are not flat.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let grows = self.lines.iter().filter(|line| !line.is_flat());
        self.faults.iter().cloned().chain(grows.map(|line| format!("not flat: {line}"))).collect()
    }

    /// Events that were done.
    #[must_use]
    pub fn done(&self, name: &str) -> u64 {
        self.events.get(name).map_or(0, |(done, _)| *done)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Plan { hours, seed, .. } = self.plan;
        let minutes = self.took.as_secs_f64() / 60.0;
        let speed = hours * 60.0 / minutes;
        writeln!(
            f,
            "{hours} h at an operator's pace in {minutes:.1} min, {speed:.1} times as fast, seed {seed}"
        )?;
        for (name, (done, disturbed)) in &self.events {
            writeln!(f, "  {name}: {done}, {disturbed} of them disturbed by others")?;
        }
        let per_hour = self.log_bytes as f64 / hours / 1024.0;
        writeln!(f, "  the log grew by {per_hour:.1} KiB for each hour at an operator's pace")?;
        self.lines.iter().try_for_each(|line| writeln!(f, "  {line}"))
    }
}

/// Counts the events that were done.
#[derive(Default)]
struct Tally {
    events: BTreeMap<&'static str, (u64, u64)>,
    faults: Vec<String>,
}

impl Tally {
    fn done(&self) -> u64 {
        self.events.values().map(|(done, _)| done).sum()
    }
}

/// Carries out the plan. `threads` is the program of this crate with the name `many_threads`.
///
/// # Errors
/// The broker does not start, or does not come to rest.
pub fn run(plan: Plan, threads: PathBuf) -> Result<Report> {
    let stage = Stage::set(threads)?;
    let due = schedule(plan.hours, plan.seed, &stage.can());
    println!("{} events in {:.1} min", due.len(), plan.hours * 60.0 / plan.speed);
    let (queue, tally) = (Mutex::new(due.into_iter()), Mutex::new(Tally::default()));
    // Held for reading by a lane that does an event, for writing at a rest.
    let (calm, failed) = (RwLock::new(()), AtomicBool::new(false));
    let begun = Instant::now();
    let lane = || {
        while let Some(due) = next(&queue).filter(|_| !failed.load(Ordering::Relaxed)) {
            let at = begun + due.at.div_f64(plan.speed);
            thread::sleep(at.saturating_duration_since(Instant::now()));
            let _busy = calm.read();
            do_one(&stage, &due, &tally);
        }
    };
    let (rests, end) = thread::scope(|scope| {
        let lanes: Vec<_> = (0..LANES).map(|_| scope.spawn(lane)).collect();
        let mut rests: Vec<Rest> = Vec::new();
        let mut over = false;
        let end = loop {
            let until = Instant::now() + plan.rest_every;
            while !over && Instant::now() < until {
                thread::sleep(Duration::from_millis(100));
                over = lanes.iter().all(thread::ScopedJoinHandle::is_finished);
            }
            let _all = calm.try_write_for(TO_THE_END).unwrap_or_else(|| {
                // A program may wait for a worker that died before it had reported a ring.
                VMS.iter().for_each(|vm| stage.release(vm));
                calm.write()
            });
            match Rest::take(&stage, tally.lock().done()) {
                Ok(rest) => rests.push(rest),
                Err(error) => {
                    failed.store(true, Ordering::Relaxed);
                    break Err(error.context("at a rest"));
                }
            }
            tell(begun, &rests, &tally.lock());
            if over {
                break Ok(());
            }
        };
        (rests, end)
    });
    end.with_context(|| stage.broker.log())?;
    let Tally { events, faults } = tally.into_inner();
    let warm = (rests.len() as f64 * WARM_UP).ceil() as usize;
    let log_bytes = rests.last().map_or(0, |rest| rest.log_bytes);
    let lines = lines(&rests[warm.min(rests.len())..]);
    Ok(Report { plan, took: begun.elapsed(), events, lines, log_bytes, faults })
}

fn next(queue: &Mutex<impl Iterator<Item = Due>>) -> Option<Due> {
    queue.lock().next()
}

/// Does an event, and counts it. A failure counts as a fault if no other event has disturbed the event's VM.
fn do_one(stage: &Stage, due: &Due, tally: &Mutex<Tally>) {
    let before = stage.disturbances(due.vm);
    let done = perform(stage, due);
    // An odd number means that another event was already disturbing the VM.
    let disturbed = done.is_err() && (before % 2 == 1 || stage.disturbances(due.vm) != before);
    let mut tally = tally.lock();
    let (count, failed) = tally.events.entry(due.event.name()).or_default();
    *count += 1;
    *failed += u64::from(disturbed);
    if let Err(error) =
        done.as_ref().map_err(|error| format!("{} of {}: {error:#}", due.event.name(), due.vm))
        && !disturbed
        && tally.faults.len() < FAULTS_MAX
    {
        println!("FAULT: {error}");
        tally.faults.push(error.clone());
    }
}

/// A line of progress.
fn tell(begun: Instant, rests: &[Rest], tally: &Tally) {
    let Some(rest) = rests.last() else { return };
    let (minutes, done) = (begun.elapsed().as_secs_f64() / 60.0, tally.done());
    println!("{minutes:6.1} min, {done:5} events, {} faults; {rest}", tally.faults.len());
}
