//! The lines that the reader of a trace gets: one JSON object on a line for each event. Times are nanoseconds of the host's monotonic clock.
//!
//! A worker's claims come here as numbers only, after the checks of [`checked`]. Names are as `status` shows them.

use sched::Nanos;
use serde::{Deserialize, Serialize};
use shm::{Stages, SubmissionId, TraceNote, Work};

/// A line of a trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum TraceEvent {
    /// A GPU of the VM. This line comes before any other that refers to it.
    Gpu {
        /// The GPU's number in the trace.
        gpu: usize,
        /// The GPU's name.
        name: String,
    },
    /// A context of the VM on one of its GPUs. This line comes before any other that refers to it.
    Context {
        /// The number of this context on this GPU, which is unique in the trace.
        key: u64,
        /// The context's number in the VM.
        context: u32,
        /// The GPU.
        gpu: usize,
        /// The context's name.
        name: String,
    },
    /// A submission of the VM is complete.
    Submission(Submission),
    /// The guest was told that a submission is complete.
    Told {
        /// The context.
        key: u64,
        /// The queue, by its `ring_idx`.
        queue: u8,
        /// The submission's number in the queue.
        number: u64,
        /// The time.
        at: u64,
    },
    /// A GPU was busy for a holder: for another VM, or for this VM without a submission of it (its memory was cleared).
    Busy {
        /// The GPU.
        gpu: usize,
        /// The VM that the GPU was busy for.
        holder: Holder,
        /// The begin.
        begin: u64,
        /// The end.
        end: u64,
    },
    /// Work of a VM was in the driver when the trace ended.
    Unfinished {
        /// The GPU.
        gpu: usize,
        /// The VM.
        holder: Holder,
        /// The earliest time at which the work can have begun.
        since: u64,
    },
    /// The memory that the VM holds.
    Memory {
        /// The time at which the device process reported the memory.
        at: u64,
        /// Bytes of the GPU's memory.
        device: u64,
        /// Bytes of the host's memory.
        host: u64,
    },
    /// The trace is over. This is its last line.
    End {
        /// The time.
        at: u64,
        /// Submissions and answers that are missing, because they came faster than the broker read them. The number is the workers' claim.
        lost: u64,
        /// Claims of workers that are impossible.
        refused: u64,
        /// Pieces of work on the GPU that are missing, because there were too many.
        dropped: u64,
    },
}

/// The stages of a submission, in the order of their times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Submission {
    /// The context.
    pub key: u64,
    /// The queue, by its `ring_idx`.
    pub queue: u8,
    /// The submission's number in the queue, from 1.
    pub number: u64,
    /// The worker had decoded the submission.
    pub submitted: u64,
    /// The submission had nothing to wait for any more.
    pub ready: u64,
    /// The submission passed the gate to the driver.
    pub dispatched: u64,
    /// The GPU began the submission.
    pub begin: u64,
    /// The GPU ended the submission.
    pub end: u64,
    /// The worker noticed the end.
    pub noticed: u64,
    /// `begin` and `end` come from the GPU's time stamps.
    pub measured: bool,
    /// The submission is on a queue that only copies.
    pub copies: bool,
    /// The submission takes no time of the GPU.
    pub free: bool,
}

/// The VM that a GPU is busy for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Holder {
    /// The VM of the trace.
    Own,
    /// Another VM, with its name if the operator wanted names.
    Other(Option<String>),
}

/// Queues of a context, by `ring_idx`.
const QUEUES: u8 = 64;

/// Returns a worker's claim as an event, if the claim is possible. The trace of the context began at `begin`, and the claim was read at `now`.
pub(super) fn checked(key: u64, note: TraceNote, begin: Nanos, now: Nanos) -> Option<TraceEvent> {
    let may_be = |SubmissionId { queue, number }: SubmissionId, times: &[u64]| {
        queue < QUEUES && number > 0 && times.is_sorted() && times.iter().all(|at| (begin..=now).contains(at))
    };
    match note {
        TraceNote::Complete(stages) => {
            let Stages { id, submitted, ready, dispatched, begin, end, noticed, .. } = stages;
            may_be(id, &[submitted, ready, dispatched, begin, end, noticed]).then_some(
                TraceEvent::Submission(Submission {
                    key,
                    queue: id.queue,
                    number: id.number,
                    submitted,
                    ready,
                    dispatched,
                    begin,
                    end,
                    noticed,
                    measured: stages.is_measured,
                    copies: stages.copies,
                    free: stages.is_free,
                }),
            )
        }
        TraceNote::Told { of, at } => {
            may_be(of, &[at]).then_some(TraceEvent::Told { key, queue: of.queue, number: of.number, at })
        }
    }
}

/// Returns a piece of work as an event, if the work is possible and did not end before `begin`.
pub(in crate::broker) fn busy(
    gpu: usize,
    holder: Holder,
    work: &Work,
    begin: Nanos,
    now: Nanos,
) -> Option<TraceEvent> {
    let may_be = work.begin <= work.end && (begin..=now).contains(&work.end);
    // If several submissions were reported together, the GPU was not busy with them for some of that time.
    let since = work.end - work.busy.min(work.end.checked_sub(work.begin)?);
    let since = if work.count <= 1 { since } else { work.begin };
    may_be.then(|| TraceEvent::Busy { gpu, holder, begin: since.max(begin), end: work.end })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: Stages = Stages {
        id: SubmissionId { queue: 1, number: 1 },
        submitted: 100,
        ready: 100,
        dispatched: 120,
        begin: 130,
        end: 150,
        noticed: 160,
        is_measured: true,
        copies: false,
        is_free: false,
    };

    #[test]
    fn what_cannot_be_is_refused() {
        let accepted = |stages| checked(7, TraceNote::Complete(stages), 100, 200).is_some();
        assert!(accepted(GOOD));
        for bad in [
            Stages { submitted: 99, ..GOOD },
            Stages { submitted: 0, ..GOOD },
            Stages { ready: 121, ..GOOD },
            Stages { begin: 0, ..GOOD },
            Stages { end: u64::MAX, ..GOOD },
            Stages { noticed: 201, ..GOOD },
            Stages { id: SubmissionId { queue: 64, number: 1 }, ..GOOD },
            Stages { id: SubmissionId { queue: 1, number: 0 }, ..GOOD },
        ] {
            assert!(!accepted(bad), "{bad:?}");
        }
        let told = |at| checked(7, TraceNote::Told { of: GOOD.id, at }, 100, 200).is_some();
        assert_eq!([99, 100, 200, 201].map(told), [false, true, true, false]);
    }

    #[test]
    fn work_is_cut_to_the_trace_and_what_cannot_be_is_refused() {
        let work = |begin, end, busy| Work { begin, end, busy, count: 1, copy: false };
        let busy = |work| match busy(0, Holder::Other(None), &work, 100, 200)? {
            TraceEvent::Busy { begin, end, .. } => Some((begin, end)),
            _ => None,
        };
        assert_eq!(busy(work(110, 150, 40)), Some((110, 150)));
        assert_eq!(busy(work(20, 150, 130)), Some((100, 150)));
        assert_eq!(busy(work(110, 150, u64::MAX)), Some((110, 150)));
        assert_eq!(busy(work(20, 99, 9)), None);
        assert_eq!(busy(work(150, 110, 9)), None);
        assert_eq!(busy(work(150, u64::MAX, 9)), None);
    }

    #[test]
    fn events_are_lines_that_come_back_as_they_were() {
        let name = "a\nb\"\u{1b}".to_owned();
        for event in [
            TraceEvent::Gpu { gpu: 0, name: name.clone() },
            TraceEvent::Context { key: 1, context: 2, gpu: 0, name: name.clone() },
            TraceEvent::Submission(Submission { key: 1, number: u64::MAX, ..Submission::default() }),
            TraceEvent::Told { key: 1, queue: 2, number: 3, at: 4 },
            TraceEvent::Busy { gpu: 0, holder: Holder::Other(Some(name)), begin: 1, end: 2 },
            TraceEvent::Unfinished { gpu: 0, holder: Holder::Own, since: 1 },
            TraceEvent::Unfinished { gpu: 0, holder: Holder::Other(None), since: 1 },
            TraceEvent::Memory { at: 1, device: 2, host: 3 },
            TraceEvent::End { at: 1, lost: 2, refused: 3, dropped: 4 },
        ] {
            let line = serde_json::to_string(&event).unwrap();
            assert!(!line.contains('\n'));
            assert_eq!(serde_json::from_str::<TraceEvent>(&line).unwrap(), event);
        }
    }
}
