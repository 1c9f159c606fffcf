//! The held queue: what waits at the gate before one of the host's queues, in order.

use super::batches::Group;
use super::submission::{Driver, Submission};
use crate::gates::lane::{Standing, Step};
use crate::kinds::fence::Fence;
use crate::logical::timeline::Done;
use crate::programs::stamps::Slot;
use ash::vk;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// A function that calls the driver with the host's queue, the batches of a group, a fence and stamps to put around them; it returns a
/// `VkResult`.
pub(crate) type Submit<'a> = dyn FnMut(vk::Queue, &Range<usize>, u64, Option<Slot>) -> i32 + 'a;

/// A function like [`Submit`] that is to be called later.
pub(crate) type HeldSubmit = Box<dyn FnMut(vk::Queue, &Range<usize>, u64, Option<Slot>) -> i32 + Send>;

/// The number of submissions at the head of a held queue that are counted as ready; a scheduler grants fewer at a time.
const COUNTED: u32 = 16;

/// The submissions that wait before one of the host's queues.
#[derive(Default)]
pub(crate) struct HeldQueue {
    waiting: VecDeque<Turn>,
    /// True while the first was taken out and is being dispatched.
    busy: bool,
}

/// An entry of the held queue, whose turn comes in order.
pub(crate) enum Turn {
    /// A call that submits something.
    Held(Box<Held>),
    /// A fence of the guest's kernel, which takes no time of the GPU.
    Fence(Done),
}

/// A call that waits, or what is left of it.
pub(crate) struct Held {
    /// The call's groups that are not dispatched yet.
    pub parts: VecDeque<(Group, Arc<Submission>)>,
    /// The guest's fence behind the last.
    pub fence: Option<Arc<Fence>>,
    /// The function that calls the driver.
    pub submit: HeldSubmit,
}

impl HeldQueue {
    /// Returns whether what comes now may pass at once.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && !self.busy
    }

    /// Adds an entry at the end of the held queue.
    pub(crate) fn push(&mut self, turn: Turn) {
        self.waiting.push_back(turn);
    }

    /// Takes the first out, if it is ready and `pass` lets it pass.
    pub(crate) fn take(&mut self, driver: &impl Driver, pass: impl FnOnce() -> bool) -> Result<Turn, Step> {
        let may = match self.waiting.front().filter(|_| !self.busy) {
            None => return Err(Step::Empty),
            Some(Turn::Fence(_)) => true,
            Some(Turn::Held(held)) => held.is_ready(driver) && (held.is_free() || pass()),
        };
        let first = may.then(|| self.waiting.pop_front()).flatten().ok_or(Step::Waits)?;
        self.busy = true;
        Ok(first)
    }

    /// Notes that what was taken out is dispatched; `rest` of it is first again.
    pub(crate) fn taken(&mut self, rest: Option<Box<Held>>) {
        self.busy = false;
        if let Some(rest) = rest {
            self.waiting.push_front(Turn::Held(rest));
        }
    }

    /// Returns how the held queue stands.
    pub(crate) fn standing(&self, driver: &impl Driver) -> Standing {
        let mut standing = Standing::default();
        let held = self.waiting.iter().filter_map(|turn| match turn {
            Turn::Held(held) => Some(held),
            Turn::Fence(_) => None,
        });
        for (group, submission) in held.flat_map(|held| &held.parts) {
            if standing.ready == COUNTED {
                break;
            }
            if !submission.is_ready(driver) {
                standing.unready = true;
                break;
            }
            submission.note_ready();
            if group.is_free {
                standing.free |= standing.ready == 0;
            } else {
                standing.ready += 1;
            }
        }
        standing
    }

    /// Empties the held queue, and returns everything that waited.
    pub(crate) fn clear(&mut self) -> VecDeque<Turn> {
        std::mem::take(&mut self.waiting)
    }
}

impl Held {
    /// Returns whether the call needs no grant.
    fn is_free(&self) -> bool {
        self.parts.front().is_none_or(|(group, _)| group.is_free)
    }

    fn is_ready(&self, driver: &impl Driver) -> bool {
        self.parts.front().is_none_or(|(_, submission)| submission.is_ready(driver))
    }
}
