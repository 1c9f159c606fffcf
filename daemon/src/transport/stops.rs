//! A stop of the queues, and the evidence that it is a pause or a reset of the device.
//!
//! No message in use announces a reset. For a reset as for a pause, the frontend stops each queue (GET_VRING_BASE) and starts it again
//! (SET_VRING_BASE, SET_VRING_KICK). So the messages in between show the difference:
//!
//! | evidence | verdict | why |
//! | --- | --- | --- |
//! | the base is not 0 | pause | the driver of a reset queue begins at 0 |
//! | the base is 0, the queue stopped elsewhere | reset | after a pause the frontend sets the base that it got |
//! | both are 0, and the config space was read | reset | only a processor of the guest reads it (QEMU and crosvm pass each read on): a driver probes, while a pause has stopped the processors |
//! | both are 0, and the frontend sent other features | reset | drivers negotiate only after a reset |
//! | both are 0, and regions are gone that the frontend had mapped | reset | QEMU drops mappings at a reset, and at no pause |
//! | both are 0, and nothing else | pause | the index wraps after 65 536 requests; a driver that has sent none has left nothing behind |
//!
//! This file knows neither queues nor memory.

use super::QUEUES;
use serde::{Deserialize, Serialize};

/// The verdict on a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The queue was not stopped before.
    New,
    /// Everything goes on.
    Pause,
    /// The driver begins anew; nothing that was taken before may be answered.
    Reset,
}

/// A queue between its stop and its start, and the evidence so far.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Stop {
    /// The index at which the queue stopped.
    at: u16,
    /// The frontend at the time of the stop.
    then: Frontend,
    /// The config space was read since the stop.
    probed: bool,
}

/// The frontend as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Frontend {
    /// The features that SET_FEATURES named last.
    pub features: u64,
    /// The number of regions in the memory table, if the frontend announces its mappings there.
    pub maps: Option<usize>,
}

/// The queues of a device: each runs, or was never started, or is stopped.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Stops([Option<Stop>; QUEUES]);

impl Stops {
    /// GET_VRING_BASE: a queue stopped at this index.
    pub(super) fn stopped(&mut self, queue: usize, at: u16, then: Frontend) {
        self.0[queue] = Some(Stop { at, then, probed: false });
    }

    /// GET_CONFIG: the config space was read.
    pub(super) fn config_read(&mut self) {
        self.0.iter_mut().flatten().for_each(|stop| stop.probed = true);
    }

    /// SET_VRING_BASE: a queue is to go on from this base. Each stop is judged once.
    pub(super) fn judge(&mut self, queue: usize, base: u16, now: Frontend) -> Verdict {
        match self.0[queue].take() {
            None => Verdict::New,
            Some(Stop { at: 1.., .. }) if base == 0 => Verdict::Reset,
            Some(stop) if base == 0 && stop.shows_a_reset(now) => Verdict::Reset,
            Some(_) => Verdict::Pause,
        }
    }

    /// The frontend starts over.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }
}

impl Stop {
    /// Returns whether there is evidence of a reset besides the queue's index.
    fn shows_a_reset(&self, now: Frontend) -> bool {
        let dropped = self.then.maps.zip(now.maps).is_some_and(|(then, now)| now < then);
        self.probed || dropped || self.then.features != now.features
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CROSVM: Frontend = Frontend { features: 0x1_6000_001d, maps: None };
    const QEMU: Frontend = Frontend { features: 0x1_7000_001d, maps: Some(3) };

    /// Stops both queues, lets `between` happen, and starts the first.
    fn verdict(
        at: u16,
        base: u16,
        then: Frontend,
        now: Frontend,
        between: impl FnOnce(&mut Stops),
    ) -> Verdict {
        let mut stops = Stops::default();
        // Reads before the stop are no evidence.
        stops.config_read();
        stops.stopped(0, at, then);
        stops.stopped(1, 0, then);
        between(&mut stops);
        let verdict = stops.judge(0, base, now);
        assert_eq!(stops.judge(0, base, now), Verdict::New, "each stop is judged once");
        verdict
    }

    #[test]
    fn a_queue_that_goes_on_elsewhere_than_at_0_was_paused_and_one_that_begins_at_0_was_reset() {
        for frontend in [CROSVM, QEMU] {
            for at in [1, 77, u16::MAX] {
                assert_eq!(verdict(at, at, frontend, frontend, |_| ()), Verdict::Pause);
                assert_eq!(verdict(at, at, frontend, frontend, Stops::config_read), Verdict::Pause);
                assert_eq!(verdict(at, 0, frontend, frontend, |_| ()), Verdict::Reset);
            }
        }
    }

    #[test]
    fn at_0_whatever_a_pause_cannot_do_is_a_reset() {
        for frontend in [CROSVM, QEMU] {
            assert_eq!(verdict(0, 0, frontend, frontend, |_| ()), Verdict::Pause);
            assert_eq!(verdict(0, 0, frontend, frontend, Stops::config_read), Verdict::Reset);
            let other = Frontend { features: frontend.features ^ 1 << 29, ..frontend };
            assert_eq!(verdict(0, 0, frontend, other, |_| ()), Verdict::Reset);
        }
        let fewer = Frontend { maps: Some(1), ..QEMU };
        assert_eq!(verdict(0, 0, QEMU, fewer, |_| ()), Verdict::Reset);
        let more = Frontend { maps: Some(4), ..QEMU };
        assert_eq!(verdict(0, 0, QEMU, more, |_| ()), Verdict::Pause, "memory was plugged in");
    }

    #[test]
    fn evidence_counts_for_every_queue_of_a_stop_and_not_for_the_next() {
        let mut stops = Stops::default();
        assert_eq!(stops.judge(0, 0, CROSVM), Verdict::New);
        stops.stopped(0, 5, CROSVM);
        stops.stopped(1, 0, CROSVM);
        stops.config_read();
        assert_eq!([0, 1].map(|queue| stops.judge(queue, 0, CROSVM)), [Verdict::Reset; 2]);
        stops.stopped(0, 0, CROSVM);
        stops.stopped(1, 0, CROSVM);
        assert_eq!([0, 1].map(|queue| stops.judge(queue, 0, CROSVM)), [Verdict::Pause; 2]);
        stops.stopped(0, 9, CROSVM);
        stops.forget();
        assert_eq!(stops.judge(0, 0, CROSVM), Verdict::New);
    }
}
