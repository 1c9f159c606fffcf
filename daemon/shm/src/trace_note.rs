//! The notes that a worker writes of each submission while a trace of its VM is taken: records in the page of grants.
//!
//! A record is a claim of the worker. It has no text and no length of its own; its reader checks the order of its times.

/// Bytes of a record in the page.
pub(super) const NOTE_BYTES: u64 = 64;

/// A report of a worker for a trace. Times are nanoseconds of the system's monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceNote {
    /// A submission is complete.
    Complete(Stages),
    /// The guest was told that a submission is complete: by the answer to a wait or a query, or by a fence of its kernel.
    Told {
        /// The submission.
        of: SubmissionId,
        /// The time.
        at: u64,
    },
}

/// A submission, among those of one context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SubmissionId {
    /// The queue, by the index of its fence timeline (`ring_idx`).
    pub queue: u8,
    /// The submission's number in its queue, from 1.
    pub number: u64,
}

/// The times at which a submission went from one stage to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stages {
    /// The submission.
    pub id: SubmissionId,
    /// The worker had decoded it.
    pub submitted: u64,
    /// All that the submission waited for had happened.
    pub ready: u64,
    /// The submission passed the gate to the driver.
    pub dispatched: u64,
    /// The GPU began it.
    pub begin: u64,
    /// The GPU ended it.
    pub end: u64,
    /// The worker noticed the end.
    pub noticed: u64,
    /// The GPU's own time stamps give both the begin and the end; otherwise both times are concluded from those of the dispatch and of the noticed
    /// end.
    pub is_measured: bool,
    /// The submission is on a queue that only copies.
    pub copies: bool,
    /// The submission takes no time of the GPU: it only signals or waits.
    pub is_free: bool,
}

impl TraceNote {
    pub(super) fn to_bytes(self) -> [u8; NOTE_BYTES as usize] {
        let (kind, id, flags, times) = match self {
            Self::Complete(stages) => {
                let Stages { id, submitted, ready, dispatched, begin, end, noticed, .. } = stages;
                let flags = [stages.is_measured, stages.copies, stages.is_free];
                (0, id, flags, [submitted, ready, dispatched, begin, end, noticed])
            }
            Self::Told { of, at } => (1, of, [false; 3], [at, 0, 0, 0, 0, 0]),
        };
        let mut bytes = [0; NOTE_BYTES as usize];
        (bytes[0], bytes[1]) = (kind, id.queue);
        bytes[2..5].copy_from_slice(&flags.map(u8::from));
        let (words, _) = bytes[8..].as_chunks_mut::<8>();
        let values = std::iter::once(id.number).chain(times);
        words.iter_mut().zip(values).for_each(|(word, value)| *word = value.to_le_bytes());
        bytes
    }

    /// Returns the record in these bytes; none if its kind is unknown.
    pub(super) fn of_bytes(bytes: &[u8; NOTE_BYTES as usize]) -> Option<Self> {
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[8 + 8 * at + byte]));
        let id = SubmissionId { queue: bytes[1], number: long(0) };
        match bytes[0] {
            0 => Some(Self::Complete(Stages {
                id,
                submitted: long(1),
                ready: long(2),
                dispatched: long(3),
                begin: long(4),
                end: long(5),
                noticed: long(6),
                is_measured: bytes[2] != 0,
                copies: bytes[3] != 0,
                is_free: bytes[4] != 0,
            })),
            1 => Some(Self::Told { of: id, at: long(1) }),
            _ => None,
        }
    }
}

/// The notes that were taken out of a page at once.
#[derive(Debug, Default)]
pub struct TakenNotes {
    /// The notes, in order.
    pub notes: Vec<TraceNote>,
    /// Notes for which the worker claims to have had no room, since the last time.
    pub lost: u32,
    /// The number of invalid records.
    pub nonsense: u32,
}
