//! The part of a trace that is kept, as it was read.

use crate::broker::{Holder, Submission, TraceEvent};
use rustc_hash::FxHashMap;

/// A trace as it was read. Times are nanoseconds of the host's monotonic clock.
#[derive(Debug)]
pub(super) struct Collected {
    pub(super) vm: String,
    pub(super) begin: u64,
    /// The VM's GPUs, by their numbers.
    pub(super) gpus: Vec<(usize, String)>,
    /// The contexts by their keys.
    pub(super) contexts: FxHashMap<u64, Context>,
    pub(super) submissions: Vec<Submission>,
    /// The times at which the guest was first told of the end of a submission, by context, queue and number.
    pub(super) told: FxHashMap<(u64, u8, u64), u64>,
    pub(super) busy: Vec<Busy>,
    pub(super) memory: Vec<Memory>,
    /// The most `submissions`, `told` and `busy` together that are kept.
    events_max: usize,
    events: usize,
    is_full: bool,
    /// Lines about contexts or GPUs that were never named.
    strange: u64,
    end: Option<End>,
    last: u64,
}

/// A context of the VM on a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Context {
    pub(super) number: u32,
    pub(super) gpu: usize,
    pub(super) name: String,
}

/// A time in which a GPU was busy with work other than a submission of the VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Busy {
    pub(super) gpu: usize,
    pub(super) holder: Holder,
    pub(super) begin: u64,
    /// None if the work was not over when the trace ended.
    pub(super) end: Option<u64>,
}

/// The memory that the VM holds at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Memory {
    pub(super) at: u64,
    pub(super) device: u64,
    pub(super) host: u64,
}

#[derive(Clone, Copy, Debug)]
struct End {
    at: u64,
    lost: u64,
    refused: u64,
    dropped: u64,
}

/// The fate of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    /// The line is kept, or need not be.
    Yes,
    /// The line is the first one without room.
    NoRoom,
}

impl Collected {
    pub(super) fn new(vm: &str, begin: u64, events_max: usize) -> Self {
        Self {
            vm: vm.to_owned(),
            begin,
            gpus: Vec::new(),
            contexts: FxHashMap::default(),
            submissions: Vec::new(),
            told: FxHashMap::default(),
            busy: Vec::new(),
            memory: Vec::new(),
            events_max,
            events: 0,
            is_full: false,
            strange: 0,
            end: None,
            last: begin,
        }
    }

    /// Keeps the event of a line.
    pub(super) fn keep(&mut self, event: TraceEvent) -> Kept {
        match event {
            TraceEvent::Gpu { gpu, name } => self.gpus.push((gpu, name)),
            TraceEvent::Context { key, context: number, gpu, name } => {
                self.contexts.insert(key, Context { number, gpu, name });
            }
            TraceEvent::Memory { at, device, host } => self.memory.push(Memory { at, device, host }),
            TraceEvent::End { at, lost, refused, dropped } => {
                self.end = Some(End { at: at.max(self.last), lost, refused, dropped });
            }
            TraceEvent::Submission(_) | TraceEvent::Told { .. } | TraceEvent::Busy { .. }
                if self.events >= self.events_max =>
            {
                return if std::mem::replace(&mut self.is_full, true) { Kept::Yes } else { Kept::NoRoom };
            }
            TraceEvent::Submission(submission) => {
                self.events += 1;
                let Submission { key, submitted, ready, dispatched, begin, end, noticed, .. } = submission;
                let times = [self.begin, submitted, ready, dispatched, begin, end, noticed];
                if !self.contexts.contains_key(&key) || !times.is_sorted() {
                    self.strange += 1;
                    return Kept::Yes;
                }
                self.last = self.last.max(noticed);
                self.submissions.push(submission);
            }
            TraceEvent::Told { key, queue, number, at } => {
                self.events += 1;
                let first = self.told.entry((key, queue, number)).or_insert(at);
                *first = at.min(*first);
                self.last = self.last.max(at);
            }
            TraceEvent::Busy { gpu, holder, begin, end } => {
                self.events += 1;
                self.last = self.last.max(end);
                self.busy.push(Busy { gpu, holder, begin, end: Some(end) });
            }
            TraceEvent::Unfinished { gpu, holder, since } => {
                self.busy.push(Busy { gpu, holder, begin: since, end: None });
            }
        }
        Kept::Yes
    }

    /// Returns whether the last line has come.
    pub(super) fn is_over(&self) -> bool {
        self.end.is_some()
    }

    /// Returns when the trace ended.
    pub(super) fn end(&self) -> u64 {
        self.end.map_or(self.last, |end| end.at)
    }

    /// Returns the parts that are missing in the trace, in words.
    pub(super) fn lacks(&self) -> Vec<String> {
        let End { lost, refused, dropped, .. } =
            self.end.unwrap_or(End { at: 0, lost: 0, refused: 0, dropped: 0 });
        let refused = refused.saturating_add(self.strange);
        let full = format!(
            "the trace has ended early, as {} events are kept; --max-events keeps more, --seconds takes fewer",
            self.events_max
        );
        [
            (self.is_full, full),
            (lost > 0, format!("{lost} submissions or answers are missing: there were more than are read at a time")),
            (dropped > 0, format!("{dropped} pieces of work on the GPU are missing: there were too many")),
            (
                refused > 0,
                format!("{refused} reports of workers are left out: they cannot be true"),
            ),
            (
                self.submissions.is_empty(),
                "no submission has ended: the VM's programs did nothing on the GPU, or wait for others (see the GPU's track)".into(),
            ),
        ]
        .into_iter()
        .filter_map(|(is_so, text)| is_so.then_some(text))
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_room_ends_the_trace_once_and_is_told() {
        let mut collected = Collected::new("web", 10, 2);
        let told = |number| TraceEvent::Told { key: 1, queue: 1, number, at: 20 };
        let kept: Vec<_> = (1..=4).map(|number| collected.keep(told(number))).collect();
        assert_eq!(kept, [Kept::Yes, Kept::Yes, Kept::NoRoom, Kept::Yes]);
        collected.keep(TraceEvent::End { at: 30, lost: 5, refused: 0, dropped: 0 });
        assert!(collected.is_over());
        let lacks = collected.lacks();
        assert!(lacks[0].contains("2 events are kept") && lacks[1].starts_with("5 submissions"), "{lacks:?}");
    }

    #[test]
    fn submissions_of_contexts_that_nobody_named_are_left_out() {
        let mut collected = Collected::new("web", 10, 9);
        let submission = Submission { key: 1, ..Submission::default() };
        collected.keep(TraceEvent::Submission(submission));
        assert!(collected.submissions.is_empty() && collected.lacks()[0].starts_with("1 reports"));
        collected.keep(TraceEvent::End { at: 30, lost: 0, refused: u64::MAX, dropped: 0 });
        assert!(collected.lacks()[0].starts_with(&u64::MAX.to_string()), "there are no more to count");
    }
}
