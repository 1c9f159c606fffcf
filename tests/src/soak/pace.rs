//! An operator's pace: the kinds of events, and how often each happens. A seed makes an order of them.

use crate::random::Random;
use std::time::Duration;

/// The VMs that are always there. No event ends the device process of the first, which therefore has the whole time to grow.
pub const VMS: [&str; 4] = ["a", "b", "c", "d"];

/// A kind of event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A program makes a device, computes, and ends.
    Program,
    /// A program of stock Mesa computes, and is killed now and then.
    Client,
    /// A VMM ends, and starts again.
    Restart,
    /// A worker dies.
    WorkerDies,
    /// A device process dies.
    DeviceDies,
    /// A submission never ends.
    Hang,
    /// An operator kills a context.
    Kill,
    /// An operator changes a share.
    Set,
    /// An operator asks for the status.
    Status,
    /// Metrics are collected.
    Scrape,
    /// A client connects to the control socket and sends nothing.
    Silence,
    /// The file gives a VM another weight.
    Reshare,
    /// A VM joins the file or leaves it.
    Member,
    /// The file changes a setting that a VM's device process takes at its start.
    Replace,
    /// The file is wrong.
    WrongFile,
    /// The broker gets SIGHUP, and the file has not changed.
    Hangup,
    /// The log is copied and truncated.
    Rotate,
    /// A VM's device process is started while there is no room for its state.
    FullDisk,
}

/// The VM, or VMs, that an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum On {
    /// Each VM has its own.
    Each,
    /// Each VM but the first.
    Others,
    /// The last VM.
    Last,
    /// The broker.
    Broker,
}

/// One row: the event, its target, and the seconds from one to the next.
type Row = (Event, On, f64);

const MINUTE: f64 = 60.0;
const HOUR: f64 = 3600.0;

/// An operator's pace.
const PACE: &[Row] = &[
    (Event::Program, On::Each, MINUTE),
    (Event::Client, On::Each, 5.0 * MINUTE),
    (Event::Restart, On::Each, 30.0 * MINUTE),
    (Event::WorkerDies, On::Each, 20.0 * MINUTE),
    (Event::DeviceDies, On::Others, 2.0 * HOUR),
    (Event::Hang, On::Each, HOUR),
    (Event::Kill, On::Each, 20.0 * MINUTE),
    (Event::Set, On::Each, 10.0 * MINUTE),
    (Event::Status, On::Broker, MINUTE),
    (Event::Scrape, On::Broker, 15.0),
    (Event::Silence, On::Broker, 10.0 * MINUTE),
    (Event::Reshare, On::Broker, HOUR),
    (Event::Member, On::Broker, HOUR),
    (Event::Replace, On::Last, 2.0 * HOUR),
    (Event::WrongFile, On::Broker, 4.0 * HOUR),
    (Event::Hangup, On::Broker, 2.0 * HOUR),
    (Event::Rotate, On::Broker, 4.0 * HOUR),
    (Event::FullDisk, On::Last, 4.0 * HOUR),
];

/// An event that is due.
#[derive(Clone, Debug)]
pub struct Due {
    /// The operator's time from the beginning.
    pub at: Duration,
    /// The event.
    pub event: Event,
    /// The VM that it is about, or the broker.
    pub vm: &'static str,
    /// The seed that decides the open choices of the event.
    pub seed: u64,
}

/// The name of the broker, where an event is about no VM.
pub const BROKER: &str = "broker";

impl Event {
    /// Returns the event's name for people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Program => "programs",
            Self::Client => "clients of Mesa",
            Self::Restart => "VMMs that end and come back",
            Self::WorkerDies => "workers killed",
            Self::DeviceDies => "device processes killed",
            Self::Hang => "hung submissions",
            Self::Kill => "contexts killed by an operator",
            Self::Set => "shares set",
            Self::Status => "status",
            Self::Scrape => "metrics scraped",
            Self::Silence => "silent control clients",
            Self::Reshare => "reloads with another weight",
            Self::Member => "reloads with another VM",
            Self::Replace => "reloads with another device process",
            Self::WrongFile => "reloads of a wrong file",
            Self::Hangup => "SIGHUP",
            Self::Rotate => "log rotations",
            Self::FullDisk => "starts on a full disk",
        }
    }
}

/// Returns the events of `hours` hours that `can` admits, in the order of their times. Each event happens at least once.
#[must_use]
pub fn schedule(hours: f64, seed: u64, can: &dyn Fn(Event) -> bool) -> Vec<Due> {
    let mut random = Random::new(seed);
    let mut all = Vec::new();
    for (event, on, every) in PACE.iter().filter(|(event, ..)| can(*event)) {
        let vms: &[&str] = match on {
            On::Each => &VMS,
            On::Others => &VMS[1..],
            On::Last => &VMS[3..],
            On::Broker => &[BROKER],
        };
        for vm in vms {
            let count = (hours * HOUR / every).round().max(1.0);
            let every = hours * HOUR / count;
            for number in 0..count as u64 {
                let within = random.below(1000) as f64 / 1000.0;
                let at = Duration::from_secs_f64((number as f64 + within) * every);
                all.push(Due { at, event: *event, vm, seed: random.word() });
            }
        }
    }
    all.sort_by_key(|due| due.at);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_decides_and_the_pace_is_kept() {
        let order = |seed| -> Vec<_> {
            schedule(72.0, seed, &|_| true).iter().map(|due| (due.at, due.event.name())).collect()
        };
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
        let count =
            |hours, event| schedule(hours, 1, &|_| true).iter().filter(|due| due.event == event).count();
        assert_eq!(count(72.0, Event::Program), 4 * 72 * 60);
        assert_eq!(count(72.0, Event::DeviceDies), 3 * 36);
        assert_eq!(count(0.1, Event::FullDisk), 1);
    }
}
