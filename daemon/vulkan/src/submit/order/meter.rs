//! The measuring of submissions for the gate: when each began and ended, and how much of the GPU's time it took.

use super::batches::Group;
use super::submission::{Dispatched, Ended};
use crate::context::ranked::{MEASURED, Ranked};
use crate::gates::gate::Gate;
use crate::logical::device::Device;
use crate::programs::stamps::{Slot, Stamps};
use ash::vk;
use shm::{Stages, SubmissionId, TraceNote, Work, page_clock};
use std::sync::{Arc, OnceLock};

/// The measuring of one queue's submissions.
pub(super) struct Meter {
    gate: Arc<Gate>,
    family: u32,
    ring_idx: u8,
    stamps: OnceLock<Option<Stamps>>,
    known: Ranked<MEASURED, Known>,
}

/// The times up to which the work of a queue is known, in nanoseconds of the monotonic clock.
#[derive(Debug, Default)]
struct Known {
    /// The time up to which the work is charged.
    charged: u64,
    /// The end of the last submission, as it was measured or noticed.
    seen: u64,
}

impl Meter {
    /// Begins for a queue of a family whose submissions pass `gate`.
    pub(super) fn new(gate: Arc<Gate>, family: u32, ring_idx: u8) -> Self {
        Self { gate, family, ring_idx, stamps: OnceLock::new(), known: Ranked::default() }
    }

    /// Returns the gate.
    pub(super) fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    /// Returns whether short submissions may go without a marker, if they take no longer than `short` nanoseconds where a scheduler shares the GPU out.
    pub(super) fn allows_unmarked(&self, short: u64) -> bool {
        let usual_length = || self.made_stamps().and_then(Stamps::usual_length);
        let is_short = || usual_length().is_some_and(|length| length <= short);
        let gate = &self.gate;
        // In a trace, each submission has times of its own.
        !gate.is_traced() && (!gate.holds() || gate.is_open() && is_short())
    }

    /// Notes the time of a group that is about to be dispatched and was found ready at `ready`. Returns stamps for the group too.
    pub(super) fn note_dispatch(
        &self,
        device: &Device,
        group: &Group,
        ready: u64,
    ) -> (Dispatched, Option<Slot>) {
        let stamps = self.stamps.get_or_init(|| {
            let made = Stamps::new(&device.physical, &device.ash, self.family);
            made.inspect_err(|error| log::debug!("cannot make time stamps: {error}")).ok().flatten()
        });
        let at = page_clock();
        // A group that takes no GPU time tells nothing about the length of others.
        let stamps = stamps.as_ref().filter(|_| !group.is_free);
        let gate = &self.gate;
        // If the GPU is not shared out, the figures are not needed, and no submission should halt a driver for them.
        let stamps = stamps.filter(|stamps| gate.holds() || gate.is_traced() || !stamps.is_software());
        let exactly = !gate.is_open() || gate.is_traced();
        let slot = stamps.and_then(|stamps| stamps.take(exactly, at));
        (Dispatched { at, ready, stamp: slot.map(|slot| slot.index), counts: !group.is_free }, slot)
    }

    /// Returns whether the device has begun a submission, as far as stamps tell: others may run before it. If the GPU is not shared out, the
    /// function behaves as if there were no stamps.
    pub(super) fn has_begun(&self, device: &Device, dispatched: Option<Dispatched>) -> bool {
        let stamps = self.made_stamps().filter(|_| self.gate.holds());
        let stamp = dispatched.and_then(|dispatched| dispatched.stamp);
        stamps.zip(stamp).is_none_or(|(stamps, index)| stamps.has_begun(&device.ash, index))
    }

    /// Tells the gate the cost of a submission that is over, if the driver was ever called with the submission.
    pub(super) fn account(&self, device: &Device, submission: &Ended) {
        let Some(dispatched) = submission.dispatched else { return };
        let now = page_clock();
        let stamps = self.made_stamps();
        let stamped = stamps.zip(dispatched.stamp);
        let stamped = stamped.map(|(stamps, index)| stamps.give_back(&device.ash, index, now));
        // Stamps that were never written mean that the batches had no command buffers.
        let (begin, end) = stamped.map_or((dispatched.at, now), |written| written.unwrap_or((now, now)));
        let mut known = self.known.lock();
        let seen = (begin.max(known.seen).min(end), end);
        known.seen = end;
        let begin = begin.max(known.charged).min(end);
        let mut busy = end - begin;
        if let Some(stamps) = stamps {
            match stamped {
                Some(_) => stamps.sample(busy),
                // With a lease, perhaps no thread has looked for a long time whether the submission is complete. Without a lease, it may have
                // waited for earlier submissions in the driver, or for the thread that learns of its end.
                None => busy = busy.min(stamps.usual_length().unwrap_or(busy)),
            }
        }
        if !dispatched.counts {
            busy = 0;
        }
        // The charge ends here: the end of the next submission may be noticed at the same moment, but its run time is its own.
        known.charged = if stamped.is_some() { end } else { begin + busy }.max(known.charged);
        let family = device.physical.families.get(self.family as usize);
        let computes = vk::QueueFlags::COMPUTE | vk::QueueFlags::GRAPHICS;
        let copy = family.is_some_and(|family| !family.queue_flags.intersects(computes));
        let count = u32::from(dispatched.counts);
        self.gate.completed(&Work { begin, end, busy, count, copy });
        drop(known);
        if let Some(submitted) = submission.traced {
            let id = SubmissionId { queue: self.ring_idx, number: submission.number };
            let traced = Traced { submitted, dispatched, is_measured: stamped.is_some(), copies: copy };
            self.gate.tell_note(|| TraceNote::Complete(stages(id, traced, seen, now)));
        }
    }

    /// Tells the gate that the driver does not get `count` submissions that passed it.
    pub(super) fn uncount(&self, count: usize) {
        let (now, count) = (page_clock(), count as u32);
        self.gate.completed(&Work { begin: now, end: now, busy: 0, count, copy: false });
    }

    /// Destroys the stamps of a queue that is idle.
    pub(super) fn destroy_stamps(&self, device: &Device) {
        self.made_stamps().iter().for_each(|stamps| stamps.destroy(&device.ash));
    }

    fn made_stamps(&self) -> Option<&Stamps> {
        self.stamps.get().and_then(Option::as_ref)
    }
}

/// The facts that a trace has of a submission before the GPU has it, and how its times are obtained.
struct Traced {
    submitted: u64,
    dispatched: Dispatched,
    is_measured: bool,
    copies: bool,
}

/// The stages of a submission, in order: the GPU's clock and the system's may differ by some microseconds.
fn stages(id: SubmissionId, traced: Traced, (begin, end): (u64, u64), noticed: u64) -> Stages {
    let Traced { submitted, dispatched: Dispatched { at, ready, counts, .. }, is_measured, copies } = traced;
    let dispatched = at.clamp(submitted, noticed.max(submitted));
    let noticed = noticed.max(dispatched);
    let begin = begin.clamp(dispatched, noticed);
    Stages {
        id,
        submitted,
        ready: ready.clamp(submitted, dispatched),
        dispatched,
        begin,
        end: end.clamp(begin, noticed),
        noticed,
        is_measured,
        copies,
        is_free: !counts,
    }
}
