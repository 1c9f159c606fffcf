//! This file decides how the device thread waits for the next event: whether it looks before it sleeps, and when it asks the driver for kicks.
//!
//! Each kick costs an exit of the guest, and a thread that sleeps wakes late. The next event mostly comes soon: the second request of a submission
//! right behind the first, the worker's answer when the GPU is done, the next submission when the program has heard of the answer. So the thread
//! looks for a moment for an event that it expects soon, if processors are not few, and needs no kick while it looks. No thread of the guest waits
//! for the second request alone, so this request never needs a kick.
//!
//! This file knows no queue, no worker and no epoll instance; its caller reports the events.

use super::look::{Habit, Plan};
use super::tunables::{AttentionTunables, Tunables};
use protocol::ids::ContextId;
use protocol::virtio_gpu::{CommandType, Header};
use std::time::Duration;

/// The event for which the thread waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// The second request of a submission, which says that the context's stream has got there (Mesa from 26.2 on).
    FollowUp,
    /// A worker's answer to a request that was taken.
    Answer,
    /// A request.
    Request,
}

/// The steps of a wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Patience {
    /// The time for which to look, without asking for kicks.
    pub look: Duration,
    /// The time for which to sleep then, without a kick for the next request, but with a kick for the request after that.
    pub doze: Duration,
    /// The plan for the wait after that, with kicks; the thread then waits until an event happens.
    pub then: Plan,
}

/// The habits of the guest and the workers, as far as they were learned.
#[derive(Debug)]
pub struct Attention {
    follow_ups: Habit,
    answers: Habit,
    requests: Habit,
    /// The time for which a second request may stay unseen.
    doze: Duration,
    /// The context whose fence was submitted last, while no request has followed it.
    fenced: Option<ContextId>,
    /// A request of the same context followed the last fence.
    in_pairs: bool,
}

impl Attention {
    /// Makes an instance that has not learned yet.
    #[must_use]
    pub fn new(tunables: &Tunables) -> Self {
        let AttentionTunables { follow_up_max, answer_max, request_max, doze } = tunables.attention;
        let habit = |longest| Habit::new(longest, tunables.look);
        Self {
            follow_ups: habit(follow_up_max),
            answers: habit(answer_max),
            requests: habit(request_max),
            doze,
            fenced: None,
            in_pairs: false,
        }
    }

    /// Learns from a request that was taken.
    pub fn took(&mut self, header: &Header) {
        let is_stream = header.command == CommandType::SUBMIT_3D;
        let has_fence = header.fence().is_some();
        if let Some(before) = self.fenced.take() {
            self.in_pairs = is_stream && !has_fence && header.context() == Some(before);
        }
        self.fenced = header.context().filter(|_| is_stream && has_fence);
    }

    /// Returns the awaited event, given whether a worker `owes` an answer.
    pub fn awaited(&self, owes: bool) -> Awaited {
        match (self.fenced, owes) {
            (Some(_), _) if self.in_pairs => Awaited::FollowUp,
            (_, true) => Awaited::Answer,
            (_, false) => Awaited::Request,
        }
    }

    /// Returns the steps of a wait for this event.
    pub fn patience(&self, awaited: Awaited) -> Patience {
        let doze = if awaited == Awaited::FollowUp { self.doze } else { Duration::ZERO };
        let plan = self.habit(awaited).plan();
        match plan.sleep.is_zero() {
            true => Patience { look: plan.look, doze, then: Plan::default() },
            false => Patience { look: Duration::ZERO, doze, then: plan },
        }
    }

    /// Learns the time that it took until the event happened.
    pub fn waited(&mut self, awaited: Awaited, time: Duration) {
        match awaited {
            Awaited::FollowUp => self.follow_ups.took(time),
            Awaited::Answer => self.answers.took(time),
            Awaited::Request => self.requests.took(time),
        }
    }

    /// Notes that the second request did not come while the thread waited for it without kicks.
    pub fn no_follow_up(&mut self) {
        self.fenced = None;
    }

    fn habit(&self, awaited: Awaited) -> &Habit {
        match awaited {
            Awaited::FollowUp => &self.follow_ups,
            Awaited::Answer => &self.answers,
            Awaited::Request => &self.requests,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::ids::{FenceId, RingIdx};
    use protocol::virtio_gpu::HeaderFlags;

    const US: Duration = Duration::from_micros(1);

    fn header(ctx_id: u32, fence: bool) -> Header {
        let flags = if fence { HeaderFlags::FENCE } else { HeaderFlags::empty() };
        Header { command: CommandType::SUBMIT_3D, flags, fence_id: FenceId(1), ctx_id, ring_idx: RingIdx(1) }
    }

    /// The numbers of enough processors, and of too few.
    const PROCESSORS: [usize; 2] = [4, 3];

    fn of_pairs() -> Attention {
        pairs_among(PROCESSORS[0])
    }

    fn pairs_among(processors: usize) -> Attention {
        let mut attention = Attention::new(&Tunables::among(processors));
        attention.took(&header(1, true));
        assert_eq!(attention.awaited(true), Awaited::Answer, "nothing is known yet");
        attention.took(&header(1, false));
        attention
    }

    #[test]
    fn a_second_request_is_awaited_behind_a_fence_of_who_sends_them_in_pairs() {
        let mut attention = of_pairs();
        assert_eq!(attention.awaited(true), Awaited::Answer);
        assert_eq!(attention.awaited(false), Awaited::Request);
        attention.took(&header(2, true));
        assert_eq!(attention.awaited(true), Awaited::FollowUp);
        attention.took(&header(2, false));
        assert_eq!(attention.awaited(true), Awaited::Answer);
    }

    #[test]
    fn who_sends_no_pairs_is_not_kept_without_kicks() {
        for other in [header(1, true), header(2, false)] {
            let mut attention = of_pairs();
            attention.took(&header(1, true));
            attention.took(&other);
            attention.took(&header(1, true));
            assert_eq!(attention.awaited(true), Awaited::Answer);
        }
        let mut attention = of_pairs();
        attention.took(&header(1, true));
        attention.no_follow_up();
        assert_eq!(attention.awaited(true), Awaited::Answer, "it is waited for once");
    }

    #[test]
    fn without_kicks_is_waited_for_no_longer_than_for_a_moment() {
        for processors in PROCESSORS {
            let mut attention = pairs_among(processors);
            for awaited in [Awaited::FollowUp, Awaited::Answer, Awaited::Request] {
                let mut looked = 0;
                for time in [5 * US, 50 * US, 500 * US, 2000 * US, 4000 * US] {
                    attention.waited(awaited, time);
                    let Patience { look, doze, then } = attention.patience(awaited);
                    assert!(look <= 500 * US, "{awaited:?} after {time:?}");
                    assert_eq!(doze.is_zero(), awaited != Awaited::FollowUp);
                    looked += usize::from(!look.is_zero() || !then.look.is_zero());
                }
                let expected = match awaited {
                    _ if processors == PROCESSORS[1] => 0,
                    Awaited::Answer => 4,
                    Awaited::FollowUp | Awaited::Request => 2,
                };
                assert_eq!(looked, expected, "{awaited:?} with {processors} processors");
                assert_eq!(attention.patience(awaited).then, Plan::default(), "after too long a wait");
            }
        }
    }

    #[test]
    fn an_answer_that_takes_its_time_is_slept_for_at_first() {
        let mut attention = of_pairs();
        attention.waited(Awaited::Answer, 2000 * US);
        let Patience { look, then, .. } = attention.patience(Awaited::Answer);
        assert!(look.is_zero() && then.sleep < 2000 * US && then.sleep + then.look > 2000 * US, "{then:?}");
    }
}
