//! A trace of workers that a guest has taken over. The workers write arbitrary notes, and the broker keeps, checks and sends a bounded number of them.
//! The reader of the trace gets lines with possible times, a bounded number at a time, and the number of missing notes.

use super::{
    Holder, LINES_PER_LOOK, LOOK, NOTES_KEPT, NOTES_PER_CONTEXT, Trace, TraceEvent, WORK_KEPT, Wanted, busy,
};
use arbitrary::{Result, Unstructured};
use sched::{ContextKey, Nanos, TenantId};
use shm::{Stages, SubmissionId, TakenNotes, TraceNote, Work};

const EVENTS_MAX: usize = 512;
/// The numbers of the VM's contexts and GPUs.
const CONTEXTS: u64 = 3;
const GPUS: usize = 2;

/// Returns the lines of a trace that began at `begin`, and the number of steps that its workers took. The bytes hold the workers' notes.
pub fn traced(u: &mut Unstructured<'_>, begin: Nanos) -> (Vec<TraceEvent>, usize) {
    let wanted = Wanted { index: 0, seconds: 300, names: true };
    let trace = Trace::new((), TenantId(0), wanted, begin);
    let mut world = World { trace, now: begin, told: 0, came: 0, lines: Vec::new() };
    let mut happened = usize::from(world.names(u).is_ok());
    while happened < EVENTS_MAX && !u.is_empty() && world.happen(u).is_ok() {
        happened += 1;
        assert!(world.trace.notes.len() <= NOTES_KEPT && world.trace.work.len() <= WORK_KEPT);
    }
    (world.end(), happened)
}

/// The broker's half of a trace, and the lines that the reader got.
struct World {
    trace: Trace<()>,
    now: Nanos,
    /// The number of notes from workers, including lost and invalid ones, and the number of lines made from notes.
    told: u64,
    came: u64,
    lines: Vec<TraceEvent>,
}

impl World {
    /// Sends the names that the broker sends before any line with a number; `status` shows the same names.
    fn names(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        for gpu in 0..GPUS {
            self.lines.push(TraceEvent::Gpu { gpu, name: format!("GPU {gpu}") });
        }
        for key in 1..=CONTEXTS {
            let (context, gpu) = (u.int_in_range(1..=2)?, u.int_in_range(0..=GPUS - 1)?);
            self.lines.push(TraceEvent::Context { key, context, gpu, name: u.arbitrary()? });
        }
        Ok(())
    }

    fn happen(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        match u.int_in_range(0..=15u8)? {
            0..=8 => self.note(u)?,
            9..=10 => {
                let holder = match u.int_in_range(0..=2u8)? {
                    0 => Holder::Own,
                    1 => Holder::Other(None),
                    _ => Holder::Other(Some(u.arbitrary()?)),
                };
                let (gpu, work) = (u.int_in_range(0..=GPUS - 1)?, self.work(u)?);
                if let Some(event) = busy(gpu, holder, &work, self.trace.begin, self.now) {
                    self.trace.keep_work(event);
                }
            }
            11 => {
                let (at, device, host) = (self.now, u.arbitrary()?, u.arbitrary()?);
                self.lines.push(TraceEvent::Memory { at, device, host });
            }
            12..=13 => self.look(),
            _ => self.now += if u.ratio(1, 8)? { LOOK * 100 } else { u.int_in_range(0..=LOOK)? },
        }
        Ok(())
    }

    /// Adds notes of a context, as the broker takes them out of the context's page.
    fn note(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let key = ContextKey(u.int_in_range(1..=CONTEXTS)?);
        let id = SubmissionId {
            queue: if u.ratio(1, 32)? { u.arbitrary()? } else { u.int_in_range(0..=2)? },
            number: if u.ratio(1, 32)? { u.arbitrary()? } else { u.int_in_range(1..=16)? },
        };
        let note = if u.ratio(1, 4)? {
            TraceNote::Told { of: id, at: self.time(u)? }
        } else {
            let mut times = [0; 6];
            for time in &mut times {
                *time = self.time(u)?;
            }
            // Mostly in a valid order.
            if !u.ratio(1, 16)? {
                times.sort_unstable();
            }
            let [submitted, ready, dispatched, begin, end, noticed] = times;
            let [is_measured, copies, is_free] = u.arbitrary()?;
            TraceNote::Complete(Stages {
                id,
                submitted,
                ready,
                dispatched,
                begin,
                end,
                noticed,
                is_measured,
                copies,
                is_free,
            })
        };
        let count = if u.ratio(1, 32)? { u.int_in_range(1..=NOTES_PER_CONTEXT)? } else { 1 };
        let (lost, nonsense) = if u.ratio(1, 32)? { u.arbitrary()? } else { (0, 0) };
        self.told += count as u64 + u64::from(lost) + u64::from(nonsense);
        self.trace.keep(key, &TakenNotes { notes: vec![note; count], lost, nonsense });
        Ok(())
    }

    /// Returns a time that mostly lies within the trace.
    fn time(&self, u: &mut Unstructured<'_>) -> Result<Nanos> {
        Ok(match u.int_in_range(0..=63u8)? {
            0 => u.arbitrary()?,
            1 => self.now + 1,
            2 => self.trace.begin.saturating_sub(1),
            // These times are near to each other, so that the drawn intervals may overlap.
            3..=15 => self.now - u.int_in_range(0..=15)?.min(self.now - self.trace.begin),
            _ => self.now - u.int_in_range(0..=LOOK)?.min(self.now - self.trace.begin),
        })
    }

    fn work(&self, u: &mut Unstructured<'_>) -> Result<Work> {
        let mut times = [self.time(u)?, self.time(u)?];
        if !u.ratio(1, 16)? {
            times.sort_unstable();
        }
        let [begin, end] = times;
        let busy = if u.ratio(1, 16)? { u.arbitrary()? } else { end.saturating_sub(begin) };
        Ok(Work { begin, end, busy, count: u.int_in_range(0..=2)?, copy: u.arbitrary()? })
    }

    /// Sends the lines that may be sent after one look.
    fn look(&mut self) {
        let (begin, now) = (self.trace.begin, self.now);
        let events = self.trace.take(now);
        assert!(events.len() <= LINES_PER_LOOK, "{} lines at once", events.len());
        for event in &events {
            let times = match event {
                TraceEvent::Submission(submission) => {
                    self.came += 1;
                    let super::Submission { submitted, ready, dispatched, begin, end, noticed, .. } =
                        *submission;
                    vec![submitted, ready, dispatched, begin, end, noticed]
                }
                TraceEvent::Told { at, .. } => {
                    self.came += 1;
                    vec![*at]
                }
                TraceEvent::Busy { begin, end, .. } => vec![*begin, *end],
                other => panic!("no worker can have the broker say {other:?}"),
            };
            let can_be = times.is_sorted() && times.iter().all(|at| (begin..=now).contains(at));
            assert!(can_be, "{event:?} in a trace from {begin} to {now}");
        }
        self.lines.extend(events);
    }

    /// Returns all lines, including those that were kept for later and the last one.
    fn end(mut self) -> Vec<TraceEvent> {
        while !(self.trace.notes.is_empty() && self.trace.work.is_empty()) {
            self.look();
        }
        let Trace { lost, refused, dropped, .. } = self.trace;
        assert_eq!(self.told, self.came + lost + refused, "notes that are in no count");
        let since = self.trace.begin;
        self.lines.push(TraceEvent::Unfinished { gpu: 0, holder: Holder::Own, since });
        self.lines.push(TraceEvent::End { at: self.now, lost, refused, dropped });
        self.lines
    }
}
