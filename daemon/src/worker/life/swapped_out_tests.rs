//! Contexts that are swapped out to a worker without a driver, and in again.

use super::handover::{contents, hand_over, is_taken_over, shared, waiting_for_a_ring};
use super::*;
use crate::worker::life::swapped_out::SwappedOut;
use outside::HostMemory;

/// Starts a worker without a driver, for so many bytes of contents at most.
fn without_driver(contents_max: u64) -> Peer {
    let backend = move |channel: &Arc<Channel>| {
        let host = HostMemory::default();
        SwappedOut::new(Arc::clone(channel), &ContextLimits::default(), contents_max, host)
    };
    Peer::of(Fake::default(), backend, || ())
}

/// Ends a worker without a driver, which has no objects to destroy.
fn ends(Peer { channel, thread, .. }: Peer) {
    drop(channel);
    thread.join().unwrap();
}

#[test]
fn a_context_sleeps_without_a_driver_and_goes_on_at_the_same_byte_with_the_same_contents() {
    for bytes in [0, 4096, (33 << 20) + 8192] {
        let (old, asleep, new) = (Peer::start(), without_driver(bytes as u64), Peer::start());
        *old.fake.contents.lock() = contents(bytes);
        *new.fake.contents.lock() = vec![0; bytes];
        let memory = shared(10, &[&old, &asleep, &new]);
        old.submit_and_wait(&create_ring(1, 10));
        let mut ring = GuestRing { memory, tail: 0 };
        let head = ring.push(&VERSION);
        ring.wait(head);
        hand_over(&old, &asleep, bytes > 0);
        is_taken_over(&asleep);
        let calls = old.calls();
        old.end();
        // The ring is alive and idle, and the worker executes the transport's commands.
        let start = Instant::now();
        ring.word(128).clear_bits(4, SeqCst);
        while ring.word(128).load(SeqCst) & 5 != 5 {
            assert!(start.elapsed() < LONG, "{:#x}", ring.word(128).load(SeqCst));
            std::thread::sleep(Duration::from_millis(1));
        }
        let head = ring.push(&wait_virtqueue(0));
        ring.wait(head);
        let start = Instant::now();
        while asleep.status.activity().look().0 > 0 {
            assert!(start.elapsed() < LONG, "a ring is awake");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(asleep.silent());
        ring.push(&VERSION);
        let head = ring.push(&VERSION);
        assert_eq!(asleep.answer(), ToDevice::Wakes);
        assert!(asleep.silent(), "once");
        hand_over(&asleep, &new, bytes > 0);
        is_taken_over(&new);
        ring.wait(head);
        assert_eq!(new.calls(), calls + 2);
        assert!(*new.fake.contents.lock() == contents(bytes), "{bytes} bytes");
        ends(asleep);
        new.end();
    }
}

#[test]
fn one_that_stays_asleep_can_hand_over_again() {
    let (old, asleep, new) = (Peer::start(), without_driver(1 << 20), Peer::start());
    *old.fake.contents.lock() = contents(1 << 20);
    *new.fake.contents.lock() = vec![0; 1 << 20];
    hand_over(&old, &asleep, true);
    is_taken_over(&asleep);
    old.end();
    // No worker reads at the other end.
    asleep.hands_over_to_nobody();
    asleep.grants();
    assert_eq!(asleep.answer(), ToDevice::MemoryReturned { memory: MemoryId(77) });
    assert!(matches!(asleep.answer(), ToDevice::Stays { for_now: true, .. }));
    hand_over(&asleep, &new, true);
    is_taken_over(&new);
    assert!(*new.fake.contents.lock() == contents(1 << 20));
    ends(asleep);
    new.end();
}

#[test]
fn more_contents_than_a_context_may_have_are_not_kept() {
    let (old, asleep) = (Peer::start(), without_driver((1 << 20) - 1));
    *old.fake.contents.lock() = contents(1 << 20);
    let (from, to) = Channel::pair().unwrap();
    old.channel.send(&ToWorker::HandOver { copies: true, goes_on: false }, Some(from.as_fd())).unwrap();
    old.grants();
    asleep.takes_over_from(&to);
    drop((from, to));
    asleep.expect_lost("more contents");
    ends(asleep);
    old.end();
}

#[test]
fn a_context_that_ends_asleep_leaves_nobody_waiting() {
    let (old, asleep) = (Peer::start(), without_driver(0));
    let memory = shared(10, &[&old, &asleep]);
    old.submit_and_wait(&create_ring(1, 10));
    hand_over(&old, &asleep, false);
    is_taken_over(&asleep);
    old.end();
    let mut ring = GuestRing { memory, tail: 0 };
    ring.push(&VERSION);
    assert_eq!(asleep.answer(), ToDevice::Wakes);
    ends(asleep);
}

#[test]
fn what_was_left_when_a_context_fell_asleep_waits_for_a_driver_and_detached_resources_do_not_join_it() {
    let (old, asleep, new) = (Peer::start(), without_driver(0), Peer::start());
    let _ring = waiting_for_a_ring(&old, shared(10, &[&old, &asleep, &new]));
    hand_over(&old, &asleep, false);
    is_taken_over(&asleep);
    old.end();
    assert_eq!(asleep.answer(), ToDevice::Wakes);
    let detach = ToWorker::DetachResource { resource_id: ResourceId(1) };
    asleep.channel.send(&detach, None).unwrap();
    hand_over(&asleep, &new, false);
    is_taken_over(&new);
    ends(asleep);
    new.fake.set.store(true, SeqCst);
    assert_eq!(new.answer(), ToDevice::FenceSignalled(fence(0, 1)));
    assert!(matches!(new.answer(), ToDevice::BlobExported { .. }));
    new.end();
}

#[test]
fn contents_of_no_bytes_are_refused_as_are_more_than_the_context_may_have() {
    let channel = Arc::new(Channel::pair().unwrap().0);
    let backend = SwappedOut::new(channel, &ContextLimits::default(), 8192, HostMemory::default());
    for (bytes, is_fine) in [(0, false), (1, true), (8192, true), (8193, false)] {
        let contents = Step::Contents(vec![(1, bytes)]);
        assert_eq!(backend.rebuild(&[contents], &[]).is_ok(), is_fine, "{bytes} bytes");
    }
}
