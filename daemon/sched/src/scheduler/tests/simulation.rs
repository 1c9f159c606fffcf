//! A simulated GPU, driver and workers for tests of a scheduler, event by event.

use super::super::*;
use crate::Class;
use crate::time::{MICROSECOND, MILLISECOND, SECOND};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// The way in which the GPU shares itself among contexts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Gpu {
    /// The work that came first runs to its end.
    Serial,
    /// Contexts that have work run in turn, for a slice each.
    Sliced,
}

/// The properties of a simulated world.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setting {
    pub(super) gpu: Gpu,
    /// The time from a decision to the start on the GPU.
    pub(super) start: Nanos,
    /// The time to switch contexts.
    pub(super) switch: Nanos,
    /// The time at which the clock begins.
    pub(super) epoch: Nanos,
}

pub(super) const SERIAL: Setting =
    Setting { gpu: Gpu::Serial, start: 60 * MICROSECOND, switch: 30 * MICROSECOND, epoch: SECOND };
pub(super) const SERIAL_FAR: Setting = Setting { start: 200 * MICROSECOND, ..SERIAL };
pub(super) const SLICED: Setting = Setting { gpu: Gpu::Sliced, ..SERIAL };
pub(super) const SETTINGS: [Setting; 3] = [SERIAL, SERIAL_FAR, SLICED];
/// The measured properties of an NVIDIA data-centre GPU.
pub(super) const MEASURED: Setting = Setting { start: 100 * MICROSECOND, switch: 65 * MICROSECOND, ..SLICED };

/// The ways in which a worker reports the truth or lies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Honesty {
    Honest,
    /// The worker's spans never come.
    NoSpans,
    /// The worker's spans are shorter than its work was.
    ShortSpans,
    /// The worker's spans are short, and come before the completions.
    EarlySpans,
    /// The worker's spans are short, and come behind the completions.
    LateSpans,
    /// The worker's spans say that the GPU was hardly busy meanwhile.
    IdleSpans,
    /// The worker's spans begin long before the submission, when others had the GPU.
    OldSpans,
    /// The worker's spans say that it was a copy engine.
    Copies,
    /// The worker reports completions when this time has passed, or never.
    Holds(Option<Nanos>),
    /// The worker's spans begin and end in the future.
    FutureSpans,
    /// The worker says it dispatched three more than it was granted, and completed them.
    Overclaims,
}

/// A context and the program behind it.
#[derive(Clone, Debug)]
pub(super) struct Guest {
    pub(super) tenant: u32,
    pub(super) share: Share,
    /// Mean length of its submissions; each is up to a tenth shorter or longer.
    pub(super) length: Nanos,
    /// The mean length that applies after so many submissions.
    pub(super) later: Option<(usize, Nanos)>,
    /// Submissions that it has outstanding, unless it has a period.
    pub(super) outstanding: u32,
    /// The time from a completion until the program has submitted again; up to a fifth shorter or longer.
    pub(super) think: Nanos,
    /// The times from a completion to the next submission, by turns; if there are any, they replace `think`.
    pub(super) thinks: Vec<Nanos>,
    /// The program submits so many one after the other, at this distance, and waits for all of them.
    pub(super) stream: Option<(u32, Nanos)>,
    /// The number of these submissions that are not complete.
    pub(super) left: u32,
    /// The time that one of its workgroups runs, for which a GPU that switches to another context has to wait.
    pub(super) workgroup: Nanos,
    /// The program submits one at the beginning of each period.
    pub(super) period: Option<Nanos>,
    pub(super) honesty: Honesty,
    pub(super) queue: VecDeque<(Nanos, Nanos)>,
    pub(super) driver: VecDeque<(Nanos, Nanos)>,
    pub(super) dispatched: u32,
    pub(super) completed: u32,
    pub(super) allowed: u32,
    pub(super) leased: bool,
    /// The true GPU time, and its value at the end of each second.
    pub(super) busy: Nanos,
    pub(super) seconds: Vec<Nanos>,
    pub(super) latencies: Vec<Nanos>,
    pub(super) leases: (u32, u32),
}

impl Guest {
    pub(super) fn new(tenant: u32, weight: u32, length: Nanos) -> Self {
        Self {
            tenant,
            share: Share { weight, ..Share::default() },
            length,
            later: None,
            outstanding: 4,
            think: 0,
            thinks: Vec::new(),
            stream: None,
            left: 0,
            workgroup: 0,
            period: None,
            honesty: Honesty::Honest,
            queue: VecDeque::new(),
            driver: VecDeque::new(),
            dispatched: 0,
            completed: 0,
            allowed: 0,
            leased: false,
            busy: 0,
            seconds: Vec::new(),
            latencies: Vec::new(),
            leases: (0, 0),
        }
    }

    /// Returns a guest of the latency class that submits once every `period`, for `length`.
    pub(super) fn periodic(tenant: u32, weight: u32, length: Nanos, period: Nanos) -> Self {
        let share = Share { weight, class: Class::Latency, ceiling: None };
        Self { share, period: Some(period), ..Self::new(tenant, weight, length) }
    }

    /// Returns the length of the next submission. `jitter`, from 0 to 2000, says how much shorter or longer it is than others.
    fn next_length(&self, jitter: Nanos) -> Nanos {
        let later = self.later.filter(|(count, _)| self.latencies.len() >= *count);
        let length = later.map_or(self.length, |(_, length)| length);
        if length < 10_000 { length } else { (length / 10_000).saturating_mul(9000 + jitter).max(1) }
    }

    fn seen(&self) -> Seen {
        let more = if self.honesty == Honesty::Overclaims { 3 } else { 0 };
        let ready = u32::try_from(self.queue.len()).unwrap();
        Seen {
            ready,
            dispatched: self.dispatched.wrapping_add(more),
            completed: self.completed.wrapping_add(more),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrives(usize),
    AtDevice(usize, Nanos, Nanos),
    Told(usize),
    Switched(u64),
    Look(Nanos),
}

/// The running work: its guest, and the begin and the end of the slice.
#[derive(Clone, Copy, Debug)]
struct Running {
    guest: usize,
    begin: Nanos,
    until: Nanos,
    /// True if the slice is over, and the guest's running workgroups have to end.
    drains: bool,
}

/// The work of a guest that has reached the GPU: when it was submitted, how much is left, when it began.
type AtDevice = VecDeque<(usize, Nanos, Nanos, Option<Nanos>)>;

pub(super) struct World {
    pub(super) scheduler: Scheduler,
    pub(super) guests: Vec<Guest>,
    pub(super) now: Nanos,
    setting: Setting,
    events: BinaryHeap<Reverse<(Nanos, u64, Event)>>,
    sequence: u64,
    device: AtDevice,
    running: Option<Running>,
    turn: u64,
    last: Option<usize>,
    looks: Nanos,
    random: u64,
}

/// Runs guests for a time.
pub(super) fn simulate(setting: Setting, guests: Vec<Guest>, time: Nanos) -> World {
    let mut world = World::new(setting, Tuning::default(), guests);
    world.run(time);
    world
}

impl World {
    pub(super) fn new(setting: Setting, tuning: Tuning, guests: Vec<Guest>) -> Self {
        let mut world = Self {
            scheduler: Scheduler::new(tuning),
            guests: Vec::new(),
            now: setting.epoch,
            setting,
            events: BinaryHeap::new(),
            sequence: 0,
            device: VecDeque::new(),
            running: None,
            turn: 0,
            last: None,
            looks: Nanos::MAX,
            random: 0x9e37_79b9_7f4a_7c15,
        };
        guests.into_iter().for_each(|guest| world.join(guest));
        world
    }

    /// Adds a guest.
    pub(super) fn join(&mut self, guest: Guest) {
        let index = self.guests.len();
        self.scheduler.set_tenant(TenantId(guest.tenant), guest.share, self.now);
        self.scheduler.begin(ContextKey(index as u64), TenantId(guest.tenant), self.now);
        let first = if guest.period.is_some() { 1 } else { guest.outstanding };
        let spread = guest.period.unwrap_or(10 * MICROSECOND);
        let stream = guest.stream;
        self.guests.push(guest);
        if stream.is_some() {
            self.streams(index, 0);
            return;
        }
        for _ in 0..first {
            let at = self.now + self.below(spread);
            self.push(at, Event::Arrives(index));
        }
    }

    /// Lets a guest submit its next work, after this time.
    fn streams(&mut self, index: usize, think: Nanos) {
        let Some((count, each)) = self.guests[index].stream else { return };
        self.guests[index].left = count;
        for at in 0..count {
            self.push(self.now + think + u64::from(at) * each, Event::Arrives(index));
        }
    }

    /// Lets a guest submit nothing more.
    pub(super) fn quiet(&mut self, index: usize) {
        self.guests[index].outstanding = 0;
        self.guests[index].period = None;
    }

    pub(super) fn set_share(&mut self, index: usize, share: Share) {
        self.guests[index].share = share;
        self.scheduler.set_tenant(TenantId(self.guests[index].tenant), share, self.now);
        self.decide();
    }

    pub(super) fn run(&mut self, time: Nanos) {
        let end = self.now + time;
        let mut second = self.now + SECOND;
        while let Some(Reverse((at, _, _))) = self.events.peek().copied()
            && at <= end
        {
            while at >= second {
                self.guests.iter_mut().for_each(|guest| guest.seconds.push(guest.busy));
                second += SECOND;
            }
            let Some(Reverse((at, _, event))) = self.events.pop() else { break };
            self.now = at;
            self.happens(event);
        }
        self.now = end;
        while second <= end {
            self.guests.iter_mut().for_each(|guest| guest.seconds.push(guest.busy));
            second += SECOND;
        }
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Arrives(index) => self.arrives(index),
            Event::AtDevice(index, arrived, length) => {
                self.device.push_back((index, arrived, length, None));
                self.start();
            }
            Event::Told(index) => {
                self.guests[index].completed = self.guests[index].completed.wrapping_add(1);
                self.report(index, &[]);
            }
            Event::Switched(turn) if turn == self.turn => self.slice_ends(),
            Event::Switched(_) => {}
            Event::Look(at) => {
                if self.looks == at {
                    self.looks = Nanos::MAX;
                    self.decide();
                }
            }
        }
    }

    fn arrives(&mut self, index: usize) {
        let jitter = self.below(2000);
        let guest = &mut self.guests[index];
        if guest.outstanding == 0 {
            return;
        }
        let length = guest.next_length(jitter);
        guest.queue.push_back((self.now, length));
        if let Some(period) = guest.period {
            self.push(self.now + period, Event::Arrives(index));
        }
        self.dispatch(index);
        self.report(index, &[]);
    }

    /// Lets a worker dispatch the submissions that it was granted.
    fn dispatch(&mut self, index: usize) {
        loop {
            let guest = &mut self.guests[index];
            let in_driver: Nanos = guest.driver.iter().map(|(_, length)| *length).sum();
            let room = guest.driver.is_empty() || in_driver < 4 * MILLISECOND;
            let granted = guest.allowed.wrapping_sub(guest.dispatched).wrapping_sub(1) < u32::MAX / 2;
            if guest.queue.is_empty() || !(granted || (guest.leased && room)) {
                return;
            }
            let (arrived, length) = guest.queue.pop_front().unwrap();
            guest.driver.push_back((arrived, length));
            guest.dispatched = guest.dispatched.wrapping_add(1);
            self.push(self.now + self.setting.start, Event::AtDevice(index, arrived, length));
        }
    }

    fn report(&mut self, index: usize, spans: &[Span]) {
        let seen = self.guests[index].seen();
        self.scheduler.see(ContextKey(index as u64), seen, spans, self.now);
        self.decide();
    }

    fn decide(&mut self) {
        for order in self.scheduler.decide(self.now) {
            match order {
                Order::Grant { context, total } => {
                    let index = usize::try_from(context.0).unwrap();
                    self.guests[index].allowed = total;
                    self.dispatch(index);
                }
                Order::Lease(context) => {
                    let index = usize::try_from(context.0).unwrap();
                    self.guests[index].leased = true;
                    self.guests[index].leases.0 += 1;
                    self.dispatch(index);
                }
                Order::Revoke(context) => {
                    let guest = &mut self.guests[usize::try_from(context.0).unwrap()];
                    guest.leased = false;
                    guest.leases.1 += 1;
                }
            }
        }
        if let Some(at) = self.scheduler.next_look()
            && at != self.looks
        {
            assert!(at > self.now, "a look in the past");
            self.looks = at;
            self.push(at, Event::Look(at));
        }
    }

    /// Lets the GPU take the next work, if it does nothing.
    fn start(&mut self) {
        if self.running.is_some() {
            return;
        }
        let Some((guest, _, left, begun)) = self.device.front_mut() else { return };
        let switch = if self.last == Some(*guest) { 0 } else { self.setting.switch };
        let begin = self.now + switch;
        begun.get_or_insert(begin);
        let slice = match self.setting.gpu {
            Gpu::Serial => *left,
            Gpu::Sliced => (*left).min(MILLISECOND),
        };
        let until = begin.saturating_add(slice);
        let guest = *guest;
        self.last = Some(guest);
        self.runs(Running { guest, begin, until, drains: false });
    }

    fn runs(&mut self, running: Running) {
        self.running = Some(running);
        self.turn += 1;
        self.push(running.until, Event::Switched(self.turn));
    }

    /// Returns whether the GPU has to wait for workgroups of the running work, since another context has work; they use less than the whole GPU.
    fn has_to_drain(&mut self, ran: Nanos, running: Running) -> bool {
        let Running { guest: index, until: now, drains, .. } = running;
        let others = self.device.iter().any(|(other, ..)| *other != index);
        let workgroup = self.guests[index].workgroup;
        let Some((_, _, left, _)) = self.device.front_mut() else { return false };
        if drains || !others || workgroup == 0 || *left <= ran {
            return false;
        }
        *left -= ran;
        let until = now + (*left).min(workgroup) * DRAIN.1 / DRAIN.0;
        self.runs(Running { guest: index, begin: now, until, drains: true });
        true
    }

    fn slice_ends(&mut self) {
        let Some(running) = self.running.take() else { return };
        let Running { guest: index, begin, until, drains } = running;
        let ran = if drains { (until - begin) * DRAIN.0 / DRAIN.1 + 1 } else { until - begin };
        self.guests[index].busy += ran;
        if self.has_to_drain(ran, running) {
            return;
        }
        let (_, arrived, left, begun) = self.device.pop_front().unwrap();
        if left > ran {
            // Later work of the same context waits for this work.
            let behind: Vec<_> = self.device.iter().filter(|work| work.0 == index).copied().collect();
            self.device.retain(|work| work.0 != index);
            self.device.push_back((index, arrived, left - ran, begun));
            self.device.extend(behind);
            self.start();
            return;
        }
        self.start();
        self.completes(index, arrived, begun.unwrap());
    }

    fn completes(&mut self, index: usize, arrived: Nanos, begin: Nanos) {
        let guest = &self.guests[index];
        let turn = guest.latencies.len().checked_rem(guest.thinks.len());
        let think = turn.map_or(guest.think, |turn| guest.thinks[turn]);
        let think = think * 8 / 10 + self.below(1 + think * 4 / 10);
        let guest = &mut self.guests[index];
        guest.driver.pop_front();
        guest.latencies.push(self.now - arrived);
        let end = self.now;
        let span = Span { begin, end, busy: end - begin, count: 1, copy: false };
        let short = Span { begin: end - MICROSECOND, busy: MICROSECOND, ..span };
        let honesty = guest.honesty;
        match honesty {
            Honesty::Holds(Some(time)) => self.push(end + time, Event::Told(index)),
            Honesty::Holds(None) => {}
            _ => {
                if honesty == Honesty::EarlySpans {
                    self.report(index, &[short]);
                }
                self.guests[index].completed = self.guests[index].completed.wrapping_add(1);
                if honesty == Honesty::LateSpans {
                    self.report(index, &[]);
                }
            }
        }
        let guest = &mut self.guests[index];
        let spans = match honesty {
            Honesty::NoSpans | Honesty::EarlySpans | Honesty::Holds(_) => vec![],
            Honesty::ShortSpans | Honesty::LateSpans => vec![short],
            Honesty::IdleSpans => vec![Span { busy: 1, ..span }],
            Honesty::OldSpans => vec![Span { begin: self.setting.epoch, busy: Nanos::MAX, ..span }],
            Honesty::Copies => vec![Span { copy: true, ..span }],
            Honesty::FutureSpans => vec![Span { begin: end + SECOND, end: end + 2 * SECOND, ..span }],
            Honesty::Honest | Honesty::Overclaims => vec![span],
        };
        if guest.stream.is_some() {
            guest.left -= 1;
            if guest.left == 0 {
                self.streams(index, think);
            }
            self.dispatch(index);
            self.report(index, &spans);
            return;
        }
        let asynchronous = guest.period.is_none();
        if asynchronous && think > 0 {
            self.push(self.now + think, Event::Arrives(index));
        } else if asynchronous {
            let jitter = self.below(2000);
            let guest = &mut self.guests[index];
            if guest.outstanding > 0 {
                let length = guest.next_length(jitter);
                guest.queue.push_back((self.now, length));
            }
        }
        self.dispatch(index);
        self.report(index, &spans);
    }

    fn push(&mut self, at: Nanos, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((at, self.sequence, event)));
    }

    fn below(&mut self, limit: u64) -> u64 {
        xorshift(&mut self.random) % limit.max(1)
    }

    /// Returns the part of all GPU time that each guest had.
    pub(super) fn shares(&self) -> Vec<f64> {
        shares(&self.guests.iter().map(|guest| guest.busy).collect::<Vec<_>>())
    }

    /// Returns the part of the GPU time that each guest had, by second.
    pub(super) fn shares_by_second(&self) -> Vec<Vec<f64>> {
        let seconds = self.guests.iter().map(|guest| guest.seconds.len()).min().unwrap_or(0);
        let busy = |second: usize| self.guests.iter().map(move |guest| guest.seconds[second]);
        let between = (1..seconds).map(|second| {
            let used: Vec<_> = busy(second).zip(busy(second - 1)).map(|(now, before)| now - before).collect();
            shares(&used)
        });
        between.collect()
    }

    /// Returns the part of all time in which a guest had the GPU.
    pub(super) fn part(&self, index: usize) -> f64 {
        self.guests[index].busy as f64 / (self.now - self.setting.epoch) as f64
    }

    /// Returns the part of the time in which the GPU was busy.
    pub(super) fn utilisation(&self) -> f64 {
        let busy: Nanos = self.guests.iter().map(|guest| guest.busy).sum();
        busy as f64 / (self.now - self.setting.epoch) as f64
    }

    /// Returns the latency, in milliseconds, within which this part of a guest's submissions complete.
    pub(super) fn percentile(&self, index: usize, part: f64) -> f64 {
        let mut latencies = self.guests[index].latencies.clone();
        latencies.sort_unstable();
        let at = (latencies.len() as f64 * part) as usize;
        latencies
            .get(at.min(latencies.len().saturating_sub(1)))
            .map_or(f64::NAN, |latency| *latency as f64 / 1e6)
    }

    /// Returns figures to print when an assertion fails.
    pub(super) fn figures(&self) -> String {
        let shares: Vec<_> = self.shares().iter().take(8).map(|share| format!("{share:.4}")).collect();
        format!("{:?}: shares [{}], utilisation {:.4}", self.setting, shares.join(" "), self.utilisation())
    }
}

fn shares(used: &[Nanos]) -> Vec<f64> {
    let sum = used.iter().sum::<Nanos>().max(1) as f64;
    used.iter().map(|used| *used as f64 / sum).collect()
}

/// The work that a GPU does while the last workgroups of a slice end, and the time that this work takes.
const DRAIN: (Nanos, Nanos) = (9, 10);

pub(super) fn xorshift(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}
