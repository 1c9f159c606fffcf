//! The numbers of the heuristics of waiting, and the means to turn a heuristic off.
//!
//! If processors are few, programs and a software driver need them: a thread that looks instead of sleeping takes a processor from a program that
//! computes.

use super::processors::few;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A heuristic that can be turned off, to measure its gain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum Heuristic {
    /// No thread looks for an event without sleeping.
    Spin,
    /// The threads of queues and the worker's main thread sleep at once.
    Look,
    /// A ring's thread does not learn the time to spin and to stay awake.
    Pace,
    /// No answer is kept back.
    Hold,
    /// The device thread sleeps at once, and always asks for kicks.
    Attention,
    /// The driver is called for each answer.
    Calls,
    /// Each submission has a marker of its own.
    Markers,
}

/// The numbers of all heuristics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunables {
    /// The numbers of [`super::spin`].
    pub spin: SpinTunables,
    /// The numbers of [`super::look`].
    pub look: LookTunables,
    /// The numbers of [`super::pace`].
    pub pace: PaceTunables,
    /// The numbers of [`super::hold`].
    pub hold: HoldTunables,
    /// The numbers of [`super::attention`].
    pub attention: AttentionTunables,
    /// The numbers of [`super::calls`].
    pub calls: CallsTunables,
    /// The numbers of the submissions that go without a marker (`vulkan::submit::order::deferred_markers`).
    pub markers: MarkerTunables,
}

/// The numbers of spinning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpinTunables {
    /// Threads that may spin at once: a quarter of the processors, one of two or three, none if there is only one.
    pub threads: usize,
    /// The longest time that an unknown wait may spin: about the cost of a sleep and a wake-up on a busy machine.
    pub moment: Duration,
    /// The interval at which a spinning thread offers the processor to other threads.
    pub offer_every: Duration,
    /// The time after which a thread that offered the processor has seen another use it.
    pub taken: Duration,
}

/// The numbers of looking before sleeping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LookTunables {
    /// The longest time for which a thread looks for the end of a submission: three more threads are between it and the program that waits.
    pub queue_max: Duration,
    /// The longest time for which a thread looks for the next message for a worker.
    pub inbox_max: Duration,
    /// The longest expected wait that is not worth a sleep at first: timers are late by up to 50 us, and a wake-up takes time.
    pub worth_sleeping: Duration,
    /// The margin by which an event may in any case take longer than expected.
    pub margin: Duration,
}

/// The numbers of a ring's pace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PaceTunables {
    /// The longest time for which a ring stays awake without work because its driver asks for that.
    pub asked_max: Duration,
    /// The longest time for which a ring stays awake because that was worth it.
    pub awake_max: Duration,
    /// The time for which a ring stays awake if that was not worth it, unless the driver asked for less. If processors are few, this is enough for
    /// the commands of one submission, because each look takes a processor from a program that computes.
    pub awake_min: Duration,
    /// The time for which a ring stays awake, as a multiple of the pause before a notification, because the next pause may be longer.
    pub longer: u32,
    /// The part of the pause so far for which the ring sleeps until the next look. Work that comes meanwhile is late by a few percent of the pause;
    /// looks take a few percent of a processor, which is too much if processors are few.
    pub step_part: u32,
    /// The shortest time between two looks at the tail while the ring is awake.
    pub step_min: Duration,
    /// The longest time between two looks.
    pub step_max: Duration,
    /// The shortest time to spin: about the cost of a sleep and a wake-up.
    pub spin_min: Duration,
    /// The longest time to spin: the gaps between the submissions of busy programs.
    pub spin_max: Duration,
}

/// The numbers of holding answers back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldTunables {
    /// The time for which an answer is held: less than the time for which Mesa looks for it without sleeping.
    pub hold: Duration,
    /// The time between two looks, for an answer or for other work, of a thread that sleeps in between.
    pub slice: Duration,
    /// The time within which a guest that waits asks again. If processors are few, the guest first has to get one.
    pub at_once: Duration,
    /// The time after which constant looks are no longer worth a processor.
    pub closely_max: Duration,
    /// The number of looks, or a few more, that Mesa takes before it sleeps.
    pub looks_before_sleep: u32,
    /// The shortest time that Mesa sleeps.
    pub slept_min: Duration,
    /// The longest time that Mesa sleeps, unless it has waited for longer already. Meanwhile a hold delays no program: an answer to the next query
    /// can come a little later.
    pub slept_max: Duration,
    /// After that, an answer is held for this part of the time that Mesa has waited. Mesa also sleeps while it waits for the answer, but always as
    /// short as the first time. It checks its time-out only between two queries, so the time-out is late by at most that time.
    pub waited_part: u32,
    /// The shortest of those times.
    pub long_min: Duration,
    /// The longest of those times.
    pub long_max: Duration,
    /// The thread that holds an answer looks all the time; otherwise the driver waits.
    pub looks: bool,
}

/// The longest waits for which the device thread looks: it does not look for an event that takes longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionTunables {
    /// For the second request, which is right behind the first.
    pub follow_up_max: Duration,
    /// For answers, which come when the GPU is done: the thread sleeps through half of a longer wait.
    pub answer_max: Duration,
    /// For requests: a program submits again when it has heard of its last submission.
    pub request_max: Duration,
    /// The time for which the second request may stay unseen, if no other event happens.
    pub doze: Duration,
}

/// The numbers of calls that are put off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallsTunables {
    /// The number of answers that wait to be told along with another: few, because the driver may need their descriptors.
    pub quiet_max: u32,
    /// The time for which these answers wait, if another answer will come: the guest may keep memory for them.
    pub quiet_for: Duration,
    /// An answer that comes so soon after an awaited one belongs to a program that submits again.
    pub behind: Duration,
}

/// The numbers of markers that are put off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkerTunables {
    /// The most submissions in a row without a marker. They share one measure of their run time.
    pub run: usize,
    /// The longest time, in nanoseconds, that a submission without a marker lasts by its stamps if there is a scheduler. A longer submission is
    /// marked: its end is told sooner, and the cost of the fence is negligible.
    pub short: u64,
}

impl Tunables {
    /// Returns the numbers for a process that may use so many processors.
    #[must_use]
    pub fn among(processors: usize) -> Self {
        let few = few(processors);
        let unless_few = |time| if few { Duration::ZERO } else { time };
        Self {
            spin: SpinTunables {
                threads: (processors + 2) / 4,
                moment: micros(40),
                offer_every: micros(20),
                taken: micros(10),
            },
            look: LookTunables {
                queue_max: unless_few(millis(3)),
                inbox_max: unless_few(micros(100)),
                worth_sleeping: micros(300),
                margin: micros(10),
            },
            pace: PaceTunables {
                asked_max: millis(100),
                awake_max: millis(20),
                awake_min: if few { micros(200) } else { Duration::MAX },
                longer: 4,
                step_part: if few { 4 } else { 16 },
                step_min: micros(10),
                step_max: if few { millis(1) } else { micros(100) },
                spin_min: micros(20),
                spin_max: micros(if few { 40 } else { 320 }),
            },
            hold: HoldTunables {
                hold: micros(50),
                slice: micros(50),
                at_once: micros(if few { 100 } else { 30 }),
                closely_max: millis(3),
                looks_before_sleep: 12,
                slept_min: micros(140),
                slept_max: millis(1),
                waited_part: 8,
                long_min: micros(500),
                long_max: millis(10),
                looks: !few,
            },
            attention: AttentionTunables {
                follow_up_max: unless_few(micros(50)),
                answer_max: unless_few(millis(3)),
                request_max: unless_few(micros(100)),
                doze: millis(1),
            },
            calls: CallsTunables { quiet_max: 8, quiet_for: millis(10), behind: millis(5) },
            markers: MarkerTunables { run: 3, short: 250_000 },
        }
    }

    /// Returns these numbers with one heuristic turned off.
    #[must_use]
    pub fn without(mut self, off: Heuristic) -> Self {
        let zero = Duration::ZERO;
        match off {
            Heuristic::Spin => self.spin.threads = 0,
            Heuristic::Look => (self.look.queue_max, self.look.inbox_max) = (zero, zero),
            Heuristic::Pace => {
                (self.pace.spin_min, self.pace.spin_max) = (zero, zero);
                (self.pace.awake_max, self.pace.awake_min) = (zero, Duration::MAX);
            }
            Heuristic::Hold => (self.hold.hold, self.hold.long_min, self.hold.long_max) = (zero, zero, zero),
            Heuristic::Attention => {
                let (follow_up_max, answer_max, request_max, doze) = (zero, zero, zero, zero);
                self.attention = AttentionTunables { follow_up_max, answer_max, request_max, doze };
            }
            Heuristic::Calls => self.calls.quiet_max = 0,
            Heuristic::Markers => self.markers.run = 0,
        }
        self
    }
}

const fn micros(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}
