//! The fences that the device process waits for. The worker answers each exactly once, and per timeline in the order of submission.

use crate::ipc::{Channel, Fence, ToDevice};
use parking_lot::Mutex;
use protocol::ids::{FenceId, RingIdx};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::Arc;

/// The open fences of one context.
#[derive(Debug)]
pub(super) struct Fences {
    channel: Arc<Channel>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    timelines: FxHashMap<RingIdx, VecDeque<(FenceId, Passed)>>,
    released: bool,
}

type Passed = bool;

impl Fences {
    /// Makes a set without open fences; answers will go into `channel`.
    pub(super) fn new(channel: Arc<Channel>) -> Self {
        Self { channel, state: Mutex::default() }
    }

    /// Takes a fence on; it is open until [`Fences::pass`]. After [`Fences::release`] it is answered at once.
    pub(super) fn open(&self, fence: Fence) {
        let mut state = self.state.lock();
        if state.released {
            self.answer(fence);
        } else {
            state.timelines.entry(fence.ring_idx).or_default().push_back((fence.fence_id, false));
        }
    }

    /// Takes back that a fence was opened. Returns whether it is open still.
    pub(super) fn take_back(&self, fence: Fence) -> bool {
        let mut state = self.state.lock();
        let Some(timeline) = state.timelines.get_mut(&fence.ring_idx) else { return false };
        let place = timeline.iter().rposition(|(id, _)| *id == fence.fence_id);
        place.and_then(|place| timeline.remove(place)).is_some()
    }

    /// Passes a fence, since the work before it is done. The fence is answered once all earlier fences of its timeline have passed.
    pub(super) fn pass(&self, fence: Fence) {
        let mut state = self.state.lock();
        let Some(timeline) = state.timelines.get_mut(&fence.ring_idx) else { return };
        if let Some((_, passed)) = timeline.iter_mut().find(|(id, _)| *id == fence.fence_id) {
            *passed = true;
        }
        while let Some((fence_id, true)) = timeline.front().copied() {
            timeline.pop_front();
            self.answer(Fence { ring_idx: fence.ring_idx, fence_id });
        }
    }

    /// Returns whether no fence is open.
    pub(super) fn have_passed(&self) -> bool {
        self.state.lock().timelines.values().all(VecDeque::is_empty)
    }

    /// Answers every open fence now and every later fence when it comes, as the context is lost.
    pub(super) fn release(&self) {
        let mut state = self.state.lock();
        state.released = true;
        for (ring_idx, timeline) in std::mem::take(&mut state.timelines) {
            for (fence_id, _) in timeline {
                self.answer(Fence { ring_idx, fence_id });
            }
        }
    }

    /// Sends the answer under the lock, which keeps the order. If the peer is gone, no process waits for the answer.
    fn answer(&self, fence: Fence) {
        let _ = self.channel.send(&ToDevice::FenceSignalled(fence), None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fence(ring_idx: u8, fence_id: u64) -> Fence {
        Fence { ring_idx: RingIdx(ring_idx), fence_id: FenceId(fence_id) }
    }

    fn answered(peer: &Channel) -> Vec<Fence> {
        std::iter::from_fn(|| peer.try_receive().unwrap())
            .map(|(message, _)| match message {
                ToDevice::FenceSignalled(fence) => fence,
                other => panic!("{other:?}"),
            })
            .collect()
    }

    #[test]
    fn a_timeline_keeps_its_order_and_does_not_wait_for_others() {
        let (ours, peer) = Channel::pair().unwrap();
        let fences = Fences::new(Arc::new(ours));
        for open in [fence(1, 10), fence(2, 11), fence(1, 12)] {
            fences.open(open);
        }
        fences.pass(fence(1, 12));
        assert_eq!(answered(&peer), []);
        fences.pass(fence(2, 11));
        assert_eq!(answered(&peer), [fence(2, 11)]);
        fences.pass(fence(1, 10));
        assert_eq!(answered(&peer), [fence(1, 10), fence(1, 12)]);
    }

    #[test]
    fn a_fence_that_was_taken_back_is_answered_when_it_was_opened_again() {
        let (ours, peer) = Channel::pair().unwrap();
        let fences = Fences::new(Arc::new(ours));
        [fence(1, 1), fence(1, 2)].into_iter().for_each(|fence| fences.open(fence));
        assert!(fences.take_back(fence(1, 2)) && !fences.take_back(fence(1, 2)));
        fences.pass(fence(1, 1));
        assert_eq!((answered(&peer), fences.have_passed()), (vec![fence(1, 1)], true));
        fences.open(fence(1, 2));
        fences.pass(fence(1, 2));
        assert_eq!(answered(&peer), [fence(1, 2)]);
        fences.open(fence(1, 3));
        fences.release();
        assert!(!fences.take_back(fence(1, 3)), "it is answered");
    }

    #[test]
    fn after_a_release_everything_is_answered_once() {
        let (ours, peer) = Channel::pair().unwrap();
        let fences = Fences::new(Arc::new(ours));
        fences.open(fence(1, 1));
        fences.open(fence(1, 2));
        fences.release();
        assert_eq!(answered(&peer), [fence(1, 1), fence(1, 2)]);
        fences.pass(fence(1, 1));
        assert_eq!(answered(&peer), []);
        fences.open(fence(1, 3));
        fences.pass(fence(1, 3));
        assert_eq!(answered(&peer), [fence(1, 3)]);
    }
}
