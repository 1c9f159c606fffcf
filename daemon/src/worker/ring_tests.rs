//! The ring against a driver in this process: every test plays both sides over real shared words.
//!
//! The commands of these tests are 4, 8 or 12 bytes: a word with the number of words that follow, then those words.

use super::*;
use shm::StatusPage;
use shm::testing::private;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

const SIZE: u32 = 256;

fn layout() -> RingLayout {
    RingLayout { head: 0, tail: 64, status: 128, buffer: 192..192 + SIZE as usize, extra: 448..452 }
}

fn ring(idle_timeout: Duration) -> Arc<Ring> {
    Arc::new(Ring::new(private(4096), layout(), idle_timeout).unwrap())
}

/// The driver's side.
struct Driver<'r> {
    ring: &'r Ring,
    tail: u32,
    notifications: u32,
}

impl<'r> Driver<'r> {
    fn new(ring: &'r Ring) -> Self {
        Self { ring, tail: 0, notifications: 0 }
    }

    /// Writes words once there is room, publishes them, and notifies if the ring says it is idle.
    fn submit(&mut self, words: &[u32]) {
        if self.publish(words) {
            self.notify();
        }
    }

    fn notify(&mut self) {
        self.notifications += 1;
        self.ring.notify();
    }

    /// Writes words once there is room, and publishes them. Returns whether the ring then says that it is idle.
    fn publish(&mut self, words: &[u32]) -> bool {
        let bytes = 4 * words.len() as u32;
        while self.tail.wrapping_add(bytes).wrapping_sub(self.head()) > SIZE {
            std::thread::yield_now();
        }
        for word in words {
            let at = 192 + u64::from(self.tail & (SIZE - 1));
            self.ring.mapping.copy_in(at, &word.to_le_bytes()).unwrap();
            self.tail = self.tail.wrapping_add(4);
        }
        self.ring.tail.store(self.tail, SeqCst);
        self.ring.status.load(SeqCst) & RingStatusFlagsMESA::IDLE.0 != 0
    }

    fn head(&self) -> u32 {
        self.ring.head.load(Acquire)
    }

    fn wait_idle_bit(&self) {
        let start = Instant::now();
        while self.ring.status.load(SeqCst) & RingStatusFlagsMESA::IDLE.0 == 0 {
            assert!(start.elapsed() < LONG, "the ring never went idle");
            std::thread::yield_now();
        }
    }

    fn wait_consumed(&self) {
        let start = Instant::now();
        while self.head() != self.tail {
            assert!(start.elapsed() < LONG, "stuck at {} of {}", self.head(), self.tail);
            std::thread::yield_now();
        }
    }
}

/// The longest time that a test waits; a thread that takes longer hangs.
const LONG: Duration = Duration::from_secs(300);

/// Returns the length of the command at the start of `bytes`.
fn length(bytes: &[u8]) -> usize {
    4 + 4 * u32::from_le_bytes(bytes[..4].try_into().unwrap()) as usize
}

/// Runs the ring with `execute` while `driver` plays the guest, then ends it.
fn play<R>(
    ring: &Arc<Ring>,
    execute: impl FnMut(&[u8]) -> Result<usize, ContextLost> + Send,
    driver: impl FnOnce(&mut Driver<'_>) -> R,
) -> (R, Result<(), ContextLost>) {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| ring.serve(&mut Vec::new(), execute));
        let result = driver(&mut Driver::new(ring));
        ring.end();
        (result, thread.join().unwrap())
    })
}

#[test]
fn commands_arrive_whole_in_order_and_across_the_end_of_the_buffer() {
    let ring = ring(Duration::from_millis(1));
    let mut expected = 0u32;
    let execute = |bytes: &[u8]| {
        let length = length(bytes);
        for word in bytes[4..length].chunks_exact(4) {
            assert_eq!(u32::from_le_bytes(word.try_into().unwrap()), expected);
            expected += 1;
        }
        Ok(length)
    };
    let ((), end) = play(&ring, execute, |driver| {
        let mut next = 0;
        for i in 0..20_000u32 {
            match i % 3 {
                0 => driver.submit(&[0]),
                1 => driver.submit(&[1, next]),
                _ => driver.submit(&[2, next, next + 1]),
            }
            next += i % 3;
        }
        driver.wait_consumed();
    });
    assert_eq!(end, Ok(()));
    assert_eq!(expected, 20_000 - 1);
}

#[test]
fn the_head_moves_after_each_command_not_before_and_not_per_batch() {
    let ring = ring(Duration::from_millis(1));
    let mut executed = 0;
    let execute = |bytes: &[u8]| {
        assert_eq!(ring.head.load(Acquire), executed, "head stored early or late");
        executed += length(bytes) as u32;
        Ok(length(bytes))
    };
    let ((), end) = play(&ring, execute, |driver| {
        driver.submit(&[0, 1, 7, 0, 2, 7, 7, 0]);
        driver.wait_consumed();
    });
    assert_eq!(end, Ok(()));
}

#[test]
fn no_command_is_missed_when_it_comes_just_as_the_ring_falls_idle() {
    let ring = ring(Duration::ZERO);
    let (driver, end) = play(
        &ring,
        |bytes| Ok(length(bytes)),
        |driver| {
            for i in 0..3_000u32 {
                driver.submit(&[0]);
                let start = Instant::now();
                while driver.head() != driver.tail {
                    assert!(start.elapsed() < LONG, "missed command {i}");
                }
                if i % 64 == 0 {
                    driver.wait_idle_bit();
                }
                let pause = Duration::from_micros(u64::from(i % 64));
                let start = Instant::now();
                while start.elapsed() < pause {
                    std::hint::spin_loop();
                }
            }
            driver.notifications
        },
    );
    assert_eq!(end, Ok(()));
    assert!(driver > 0, "the ring was never seen idle");
}

#[test]
fn an_idle_ring_is_notified_and_not_idle_while_it_executes() {
    let ring = ring(Duration::from_millis(1));
    let execute = |bytes: &[u8]| {
        assert_eq!(ring.status.load(SeqCst) & RingStatusFlagsMESA::IDLE.0, 0);
        Ok(length(bytes))
    };
    let ((), end) = play(&ring, execute, |driver| {
        for _ in 0..20 {
            driver.wait_idle_bit();
            // Its thread, which looks at the tail now and then, cannot wake meanwhile.
            let sleeps = ring.gate.lock();
            assert!(driver.publish(&[0]));
            drop(sleeps);
            driver.notify();
            driver.wait_consumed();
        }
    });
    assert_eq!(end, Ok(()));
}

#[test]
fn a_driver_that_fails_to_notify_is_noticed_all_the_same() {
    let ring = ring(Duration::from_millis(1));
    let ((), end) = play(
        &ring,
        |bytes| Ok(length(bytes)),
        |driver| {
            driver.wait_idle_bit();
            std::thread::sleep(Duration::from_millis(30));
            ring.mapping.copy_in(192, &[0; 4]).unwrap();
            ring.tail.store(4, Release);
            driver.tail = 4;
            driver.wait_consumed();
        },
    );
    assert_eq!(end, Ok(()));
}

#[test]
fn an_idle_ring_that_is_looked_after_does_not_wake_by_itself() {
    let ring = ring(Duration::ZERO);
    ring.is_looked_after();
    let ((), end) = play(
        &ring,
        |bytes| Ok(length(bytes)),
        |driver| {
            let past_slices = 2 * IDLE_SLICES.iter().sum::<Duration>();
            // A thread that got no processor for a while may still look at the tail by itself.
            let sleeps_on = [1, 10, 100].iter().any(|patience| {
                driver.wait_idle_bit();
                std::thread::sleep(past_slices * *patience);
                driver.publish(&[0]);
                std::thread::sleep(IDLE_LAST + past_slices);
                let sleeps_on = driver.head() != driver.tail;
                if !sleeps_on {
                    driver.wait_consumed();
                }
                sleeps_on
            });
            assert!(sleeps_on, "nobody woke it");
            let start = Instant::now();
            while driver.head() != driver.tail {
                assert!(start.elapsed() < LONG, "it sleeps on");
                ring.look_after();
                std::thread::sleep(Duration::from_millis(1));
            }
            // A notification wakes it, and nothing else would.
            driver.wait_idle_bit();
            std::thread::sleep(past_slices);
            driver.submit(&[0]);
            driver.wait_consumed();
        },
    );
    assert_eq!(end, Ok(()));
}

#[test]
fn an_idle_ring_uses_next_to_no_processor_time() {
    let ring = ring(Duration::from_millis(1));
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            ring.serve(&mut Vec::new(), |bytes| Ok(length(bytes))).unwrap();
            rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime)
        });
        Driver::new(&ring).wait_idle_bit();
        std::thread::sleep(Duration::from_millis(500));
        ring.end();
        let used = thread.join().unwrap();
        assert!(used.tv_sec == 0 && used.tv_nsec < 100_000_000, "{used:?}");
    });
}

#[test]
fn impossible_tails_end_the_ring() {
    for tail in [SIZE + 4, u32::MAX, u32::MAX - 3, 1 << 31] {
        let ring = ring(Duration::from_millis(1));
        ring.tail.store(tail, Release);
        let lost = ring.serve(&mut Vec::new(), |bytes| Ok(length(bytes))).unwrap_err();
        let why = if tail > 1 << 31 { "the tail went back by " } else { "pending" };
        assert!(lost.to_string().contains(why), "{lost}");
    }
}

#[test]
fn a_command_longer_than_what_was_published_ends_the_ring() {
    let ring = ring(Duration::from_millis(1));
    ring.mapping.copy_in(192, &5u32.to_le_bytes()).unwrap();
    ring.tail.store(8, Release);
    assert!(ring.serve(&mut Vec::new(), |bytes| Ok(length(bytes))).is_err());
    assert_eq!(ring.head.load(Acquire), 0);
}

#[test]
fn random_words_tails_and_heads_never_panic() {
    let mut seed = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    for _ in 0..2_000 {
        let ring = ring(Duration::ZERO);
        let bytes: Vec<u8> = (0..SIZE).map(|_| random() as u8).collect();
        ring.mapping.copy_in(192, &bytes).unwrap();
        ring.tail.store(if random() % 2 == 0 { random() as u32 } else { random() as u32 % SIZE }, Release);
        ring.head.store(random() as u32, Relaxed);
        let mut left = random() % 8;
        let execute = |bytes: &[u8]| {
            if left == 0 {
                return Err(ContextLost::rule("enough"));
            }
            left -= 1;
            ring.tail.store(random() as u32, Release);
            Ok(4 * (random() as usize % 4) % (bytes.len() + 8))
        };
        if ring.tail.load(Acquire) != 0 {
            assert!(ring.serve(&mut Vec::new(), execute).is_err());
        }
    }
}

#[test]
fn a_wait_for_the_head_ends_when_it_is_reached() {
    for round in 0..300 {
        let ring = ring(Duration::from_micros(round % 3));
        let reached = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                ring.serve(&mut Vec::new(), |bytes| {
                    if round % 7 == 0 {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    reached.store(true, SeqCst);
                    Ok(length(bytes))
                })
            });
            // Published without notifying: the wait has to wake the ring.
            ring.tail.store(4, SeqCst);
            if !ring.poll_head(4).unwrap() {
                ring.wait_head(4, &Cancel::default()).unwrap();
            }
            assert!(reached.load(SeqCst));
            ring.end();
            thread.join().unwrap().unwrap();
        });
    }
}

#[test]
fn a_thread_that_takes_its_time_learns_what_else_it_is_needed_for() {
    let ring = ring(Duration::from_millis(1));
    let mut commands = 0;
    ring.tail.store(4, SeqCst);
    ring.serve(&mut Vec::new(), |bytes| {
        assert!(!ring.is_pressed());
        commands += 1;
        match commands {
            1 => {
                ring.tail.store(8, SeqCst);
                assert!(ring.is_pressed());
            }
            2 => std::thread::scope(|scope| {
                scope.spawn(|| {
                    assert!(ring.poll_head(8).is_ok() && ring.wait_head(8, &Cancel::default()).is_err())
                });
                while !ring.is_pressed() {
                    std::thread::yield_now();
                }
                ring.end();
                assert!(ring.is_pressed());
            }),
            _ => panic!("it has ended"),
        }
        Ok(length(bytes))
    })
    .unwrap();
}

/// Serves a ring as its thread does, until it ends; answers how often it has rested.
fn serve(ring: &Ring, mut execute: impl FnMut(&[u8]) -> Result<usize, ContextLost>) -> u32 {
    let mut rests = 0;
    loop {
        ring.serve(&mut Vec::new(), &mut execute).unwrap();
        if !ring.rest() {
            return rests;
        }
        rests += 1;
    }
}

#[test]
fn a_ring_rests_while_it_is_idle_and_between_commands_and_goes_on_where_it_was() {
    let ring = ring(Duration::ZERO);
    let executed = AtomicU32::new(0);
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            serve(&ring, |bytes| {
                executed.fetch_add(1, SeqCst);
                std::thread::sleep(Duration::from_micros(100));
                Ok(length(bytes))
            })
        });
        let mut driver = Driver::new(&ring);
        for round in 1..=100u32 {
            if round % 2 == 0 {
                driver.wait_idle_bit();
            }
            ring.interrupt();
            assert!(ring.wait_rested(Instant::now() + LONG));
            let (before, head) = (executed.load(SeqCst), driver.head());
            assert_eq!(ring.status.load(SeqCst) & RingStatusFlagsMESA::IDLE.0, 0);
            driver.submit(&[0, 1, 7]);
            std::thread::yield_now();
            assert_eq!((executed.load(SeqCst), driver.head()), (before, head), "executed at rest");
            ring.go_on();
        }
        driver.wait_consumed();
        ring.end();
        assert!(thread.join().unwrap() > 0);
    });
    assert_eq!(executed.load(SeqCst), 200);
}

#[test]
fn a_ring_that_only_rests_does_nothing_as_far_as_its_context_is_watched() {
    let (page, _) = StatusPage::create().unwrap();
    let activity = page.activity();
    let ring = Ring::new(private(4096), layout(), Duration::ZERO).unwrap().telling(activity);
    let sleeps = || {
        while activity.look().0 != 0 {
            std::thread::yield_now();
        }
        activity.look()
    };
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| serve(&ring, |bytes| Ok(length(bytes))));
        let mut driver = Driver::new(&ring);
        driver.wait_idle_bit();
        let before = sleeps();
        for _ in 0..10 {
            ring.interrupt();
            assert!(ring.wait_rested(Instant::now() + LONG));
            ring.go_on();
            driver.wait_idle_bit();
            assert_eq!(activity.look(), before);
        }
        ring.interrupt();
        assert!(ring.wait_rested(Instant::now() + LONG));
        driver.submit(&[0, 1, 7]);
        ring.go_on();
        driver.wait_consumed();
        assert_eq!(sleeps(), (0, before.1.wrapping_add(1)), "what it executes is seen");
        ring.end();
        thread.join().unwrap();
    });
    drop(ring);
    assert_eq!(activity.look().0, 0, "a ring that is gone is not awake");
}

#[test]
fn a_command_that_was_interrupted_is_executed_again_and_no_other() {
    let ring = ring(Duration::ZERO);
    let mut executed = Vec::new();
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            serve(&ring, |bytes| {
                executed.push(u32::from_le_bytes(bytes[4..8].try_into().unwrap()));
                if executed.last() == Some(&2) {
                    ring.wait_virtqueue_seqno(9).map_err(|_| ContextLost::interruption())?;
                }
                Ok(length(bytes))
            })
        });
        let mut driver = Driver::new(&ring);
        driver.submit(&[1, 1, 1, 2, 1, 3]);
        while driver.head() != 8 {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(5));
        ring.interrupt();
        assert!(ring.wait_rested(Instant::now() + LONG));
        assert_eq!((ring.head(), ring.virtqueue_seqno()), (8, 0));
        ring.publish_virtqueue_seqno(9);
        ring.go_on();
        driver.wait_consumed();
        ring.end();
        thread.join().unwrap();
    });
    assert!(executed == [1, 2, 2, 3] || executed == [1, 2, 3], "{executed:?}");
}

#[test]
fn a_ring_that_another_process_left_at_rest_begins_at_its_head_when_it_is_told_to() {
    let ring = Arc::new(Ring::new(private(4096), layout(), Duration::ZERO).unwrap().resting(u32::MAX - 3, 5));
    assert_eq!(ring.wait_virtqueue_seqno(5), Ok(()));
    assert_eq!(ring.wait_virtqueue_seqno(6), Err(VirtqueueWait::Stopped(Stop::Interrupted)));
    // To the driver the ring looks idle, and the tail has moved.
    ring.status.set_bits(RingStatusFlagsMESA::IDLE.0, SeqCst);
    ring.tail.store(4, SeqCst);
    let begins = AtomicU32::new(0);
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            serve(&ring, |bytes| {
                assert_eq!(ring.status.load(SeqCst) & RingStatusFlagsMESA::IDLE.0, 0);
                begins.fetch_add(1, SeqCst);
                Ok(bytes.len())
            })
        });
        assert!(ring.wait_rested(Instant::now() + LONG));
        assert!(!ring.wait_rested(Instant::now()) || begins.load(SeqCst) == 0);
        ring.go_on();
        let driver = Driver { ring: &ring, tail: 4, notifications: 0 };
        driver.wait_consumed();
        ring.end();
        thread.join().unwrap();
    });
    assert_eq!(begins.load(SeqCst), 1);
}

#[test]
fn a_ring_that_ends_at_rest_leaves_the_status_to_its_successor() {
    let ring = ring(Duration::ZERO);
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| serve(&ring, |bytes| Ok(bytes.len())));
        ring.interrupt();
        assert!(ring.wait_rested(Instant::now() + LONG));
        // The successor has nothing to do, and says so.
        ring.status.set_bits(RingStatusFlagsMESA::IDLE.0, SeqCst);
        ring.end();
        thread.join().unwrap();
    });
    assert_eq!(ring.status.load(SeqCst), RingStatusFlagsMESA::IDLE.0);
}

#[test]
fn a_ring_whose_thread_is_busy_or_gone_does_not_rest() {
    let ring = ring(Duration::ZERO);
    ring.interrupt();
    assert!(!ring.wait_rested(Instant::now() + Duration::from_millis(20)));
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| ring.wait_rested(Instant::now() + LONG));
        std::thread::sleep(Duration::from_millis(20));
        ring.end();
        assert!(!waits.join().unwrap());
    });
    assert!(!ring.rest());
}

#[test]
fn a_position_the_driver_has_not_written_to_cannot_be_waited_for() {
    let ring = ring(Duration::ZERO);
    ring.tail.store(8, Release);
    assert_eq!(ring.poll_head(12), Err(HeadWait::Unreachable));
    assert_eq!(ring.poll_head(0), Ok(true));
    assert_eq!(ring.poll_head(u32::MAX), Ok(true));
}

#[test]
fn ending_a_ring_ends_every_wait() {
    let (ring, other) = (ring(Duration::ZERO), ring(Duration::ZERO));
    ring.tail.store(4, Release);
    std::thread::scope(|scope| {
        let head = scope.spawn(|| ring.wait_head(4, &Cancel::default()));
        let seqno = scope.spawn(|| other.wait_virtqueue_seqno(1));
        let idle = scope.spawn(|| {
            let idle = Ring::new(private(4096), layout(), Duration::ZERO).unwrap();
            std::thread::scope(|scope| {
                let thread = scope.spawn(|| idle.serve(&mut Vec::new(), |bytes| Ok(length(bytes))));
                Driver::new(&idle).wait_idle_bit();
                idle.end();
                thread.join().unwrap()
            })
        });
        std::thread::sleep(Duration::from_millis(50));
        ring.end();
        other.end();
        assert_eq!(head.join().unwrap(), Err(HeadWait::Cancelled));
        assert_eq!(seqno.join().unwrap(), Err(VirtqueueWait::Stopped(Stop::Cancelled)));
        assert_eq!(idle.join().unwrap(), Ok(()));
    });
}

/// Either may begin to wait last.
#[test]
fn a_ring_and_a_virtqueue_that_wait_for_each_other_are_not_waited_for() {
    let ring = ring(Duration::ZERO);
    ring.tail.store(8, Release);
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| ring.wait_virtqueue_seqno(1));
        while ring.gate.lock().awaited_seqno.is_none() {
            std::thread::yield_now();
        }
        assert_eq!(ring.wait_head(8, &Cancel::default()), Err(HeadWait::Circle));
        ring.publish_virtqueue_seqno(1);
        assert_eq!(thread.join().unwrap(), Ok(()));
        let virtqueue = scope.spawn(|| ring.wait_head(4, &Cancel::default()));
        while ring.gate.lock().awaited_head.is_none() {
            std::thread::yield_now();
        }
        assert_eq!(ring.wait_virtqueue_seqno(2), Err(VirtqueueWait::Circle));
        ring.advance(4);
        assert_eq!(virtqueue.join().unwrap(), Ok(()));
        // A ring whose seqno has come, but which has not woken up yet.
        ring.gate.lock().awaited_seqno = Some(1);
        let virtqueue = scope.spawn(|| ring.wait_head(8, &Cancel::default()));
        while ring.gate.lock().awaited_head.is_none() && !virtqueue.is_finished() {
            std::thread::yield_now();
        }
        ring.advance(8);
        assert_eq!(virtqueue.join().unwrap(), Ok(()));
    });
}

#[test]
fn a_ring_waits_for_the_virtqueue() {
    let ring = ring(Duration::ZERO);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| ring.wait_virtqueue_seqno(5));
        ring.publish_virtqueue_seqno(4);
        std::thread::sleep(Duration::from_millis(20));
        assert!(!waiter.is_finished());
        ring.publish_virtqueue_seqno(5);
        assert_eq!(waiter.join().unwrap(), Ok(()));
    });
    assert_eq!(ring.wait_virtqueue_seqno(3), Ok(()));
}

#[test]
fn the_extra_region_takes_words_and_nothing_outside() {
    let ring = ring(Duration::ZERO);
    ring.write_extra(0, 0xfeed).unwrap();
    assert_eq!(ring.mapping.word(448).unwrap().load(Acquire), 0xfeed);
    for offset in [1, 4, 8, u64::MAX, u64::MAX - 3] {
        assert!(ring.write_extra(offset, 1).is_err());
    }
}
