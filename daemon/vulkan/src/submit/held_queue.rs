//! The held queue: the calls and fences that wait at the gate before one of the host's queues, in order.

use super::order::batches::Group;
use super::order::queue_order::Begun;
use super::order::waits::Driver;
use crate::gates::lane::{Standing, Step};
use crate::kinds::fence::Fence;
use crate::logical::timeline::Done;
use crate::programs::stamps::Slot;
use ash::vk;
use shm::page_clock;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// A function like [`super::order::queue_order::Submit`] that is called later.
pub(crate) type HeldSubmit = Box<dyn FnMut(vk::Queue, &Range<usize>, u64, Option<Slot>) -> i32 + Send>;

/// The number of submissions at the head of a held queue that are counted as ready; a scheduler grants fewer at a time.
const COUNTED: u32 = 16;

/// The submissions that wait before one of the host's queues.
#[derive(Default)]
pub(crate) struct HeldQueue {
    waiting: VecDeque<Entry>,
    /// True while the first entry is taken out and being dispatched.
    busy: bool,
    /// True when the queue's device is destroyed.
    is_closed: bool,
}

/// An entry of the held queue, whose turn comes in order.
pub(crate) enum Entry {
    /// A call with submissions.
    Held(Box<Held>),
    /// A fence of the guest's kernel, which takes no time of the GPU.
    Fence(Done),
}

/// A call that waits, or the parts of it that are not dispatched yet.
pub(crate) struct Held {
    /// The call's groups that are not dispatched yet.
    pub parts: VecDeque<Part>,
    /// The guest's fence behind the last group.
    pub fence: Option<Arc<Fence>>,
    /// The function that calls the driver.
    pub submit: HeldSubmit,
}

/// A group of a call that waits.
pub(crate) struct Part {
    /// The group.
    pub group: Group,
    /// The group's submission.
    pub begun: Begun,
    /// The time at which the group was found ready, in nanoseconds of the monotonic clock; none if it was not found ready yet.
    pub ready: Option<u64>,
}

impl HeldQueue {
    /// Returns whether no entry waits or is being dispatched: the next submission may then pass at once.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && !self.busy
    }

    /// Adds a call at the end of the held queue.
    pub(crate) fn push(&mut self, held: Box<Held>) {
        self.waiting.push_back(Entry::Held(held));
    }

    /// Adds a fence at the end of the held queue. Returns the fence instead if no entry is before it, or the held queue is closed.
    pub(crate) fn push_fence(&mut self, done: Done) -> Option<Done> {
        if self.is_empty() || self.is_closed {
            return Some(done);
        }
        self.waiting.push_back(Entry::Fence(done));
        None
    }

    /// Takes the first entry out, if it is ready and `pass` lets it pass.
    pub(crate) fn take(&mut self, driver: &impl Driver, pass: impl FnOnce() -> bool) -> Result<Entry, Step> {
        let may = match self.waiting.front().filter(|_| !self.busy) {
            None => return Err(Step::Empty),
            Some(Entry::Fence(_)) => true,
            Some(Entry::Held(held)) => held.is_ready(driver) && (held.is_free() || pass()),
        };
        let first = may.then(|| self.waiting.pop_front()).flatten().ok_or(Step::Waits)?;
        self.busy = true;
        Ok(first)
    }

    /// Notes that the entry that was taken out is dispatched. Puts its `rest` back at the head, or returns it if the held queue was closed meanwhile.
    pub(crate) fn finish(&mut self, rest: Option<Box<Held>>) -> Option<Box<Held>> {
        self.busy = false;
        match rest {
            Some(rest) if !self.is_closed => self.waiting.push_front(Entry::Held(rest)),
            rest => return rest,
        }
        None
    }

    /// Returns the state of the held queue.
    pub(crate) fn standing(&mut self, driver: &impl Driver) -> Standing {
        let mut standing = Standing::default();
        let held = self.waiting.iter_mut().filter_map(|entry| match entry {
            Entry::Held(held) => Some(held),
            Entry::Fence(_) => None,
        });
        for part in held.flat_map(|held| &mut held.parts) {
            if standing.ready == COUNTED {
                break;
            }
            if !part.is_ready(driver) {
                standing.unready = true;
                break;
            }
            part.ready.get_or_insert_with(page_clock);
            if part.group.is_free {
                standing.free |= standing.ready == 0;
            } else {
                standing.ready += 1;
            }
        }
        standing
    }

    /// Returns whether nothing may be added any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Closes the held queue, and returns everything that waited.
    pub(crate) fn close(&mut self) -> VecDeque<Entry> {
        self.is_closed = true;
        std::mem::take(&mut self.waiting)
    }
}

impl Held {
    /// Returns whether the call needs no grant.
    fn is_free(&self) -> bool {
        self.parts.front().is_none_or(|part| part.group.is_free)
    }

    fn is_ready(&self, driver: &impl Driver) -> bool {
        self.parts.front().is_none_or(|part| part.is_ready(driver))
    }
}

impl Part {
    fn is_ready(&self, driver: &impl Driver) -> bool {
        self.begun.waits.are_ready(driver)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::venus::generated::Semaphore;

    struct NoDriver;

    impl Driver for NoDriver {
        fn is_signalled(&self, _: u64) -> bool {
            false
        }

        fn has_reached(&self, _: Semaphore, _: u64, _: u64) -> bool {
            false
        }
    }

    fn fence() -> Done {
        Box::new(|| {})
    }

    #[test]
    fn a_fence_waits_for_what_is_dispatched_unless_the_queue_is_closed() {
        let mut queue = HeldQueue::default();
        assert!(queue.push_fence(fence()).is_some(), "nothing is before it");
        queue.push(Box::new(Held { parts: VecDeque::new(), fence: None, submit: Box::new(|_, _, _, _| 0) }));
        assert!(queue.push_fence(fence()).is_none());
        let taken = queue.take(&NoDriver, || true);
        assert!(matches!(taken, Ok(Entry::Held(_))));
        assert_eq!(queue.close().len(), 1);
        assert!(queue.push_fence(fence()).is_some(), "it would never be answered");
        let Ok(Entry::Held(rest)) = taken else { return };
        assert!(queue.finish(Some(rest)).is_some() && queue.is_empty());
    }
}
