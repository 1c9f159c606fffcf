//! Hand-overs between workers in this process, over real channels.

use super::*;
use crate::ipc::{HandOver, ReceiveError};
use config::{MemoryName, PerHeap, Wanted};
use rustix::net::{Shutdown, shutdown};

impl Peer {
    /// Has the worker hand over; returns the channel that a successor reads from.
    pub(super) fn hands_over(&self) -> Channel {
        let (ours, theirs) = Channel::pair().unwrap();
        self.channel.send(&ToWorker::HandOver { copies: true, goes_on: true }, Some(theirs.as_fd())).unwrap();
        ours
    }

    /// Has the worker hand over to a successor that is dead.
    pub(super) fn hands_over_to_nobody(&self) {
        let (ours, theirs) = Channel::pair().unwrap();
        // Not closed: a process that another test starts keeps the descriptors of this one open until it executes its program.
        shutdown(&ours, Shutdown::Both).unwrap();
        self.channel.send(&ToWorker::HandOver { copies: true, goes_on: true }, Some(theirs.as_fd())).unwrap();
    }

    /// Has a prelude written, which a successor builds up.
    fn prepares(&self, successor: &Self) {
        let (writes, reads) = Channel::pair().unwrap();
        self.channel
            .send(&ToWorker::WritePrelude { goes_on: false, is_at_home: false }, Some(writes.as_fd()))
            .unwrap();
        successor.channel.send(&ToWorker::BuildPrelude, Some(reads.as_fd())).unwrap();
    }

    pub(super) fn takes_over_from(&self, link: &Channel) {
        self.channel.send(&ToWorker::TakeOver, Some(link.as_fd())).unwrap();
    }

    pub(super) fn goes_on(&self) {
        self.channel.send(&ToWorker::GoOn, None).unwrap();
    }

    /// Waits until the fake's driver is asked to block.
    fn is_blocked(&self) {
        let start = Instant::now();
        while !self.fake.blocked.swap(false, SeqCst) {
            assert!(start.elapsed() < LONG, "nobody is blocked");
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    pub(super) fn calls(&self) -> u32 {
        self.fake.calls.load(SeqCst)
    }

    /// Has everything handed over, and returns the messages.
    fn rests(&self) -> Vec<HandOver> {
        let link = self.hands_over();
        let mut said = Vec::new();
        while said.last() != Some(&HandOver::End) {
            said.push(link.receive::<HandOver>().unwrap().0);
        }
        assert_eq!(self.answer(), ToDevice::HandedOver);
        said
    }

    fn expect_stays(&self, part: &str, is_for_now: bool) {
        match self.answer() {
            ToDevice::Stays { reason, for_now } => {
                assert!(reason.contains(part) && for_now == is_for_now, "{reason}");
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Has one worker hand over to another.
pub(super) fn hand_over(old: &Peer, new: &Peer, has_contents: bool) {
    let (from, to) = Channel::pair().unwrap();
    old.channel.send(&ToWorker::HandOver { copies: true, goes_on: true }, Some(from.as_fd())).unwrap();
    if has_contents {
        old.grants();
    }
    new.takes_over_from(&to);
    drop((from, to));
    if has_contents {
        assert_eq!(old.answer(), ToDevice::MemoryReturned { memory: MemoryId(77) });
    }
    assert_eq!(old.answer(), ToDevice::HandedOver);
}

pub(super) fn is_taken_over(new: &Peer) {
    assert!(matches!(new.answer(), ToDevice::TakenOver { .. }));
    new.goes_on();
}

#[test]
fn a_worker_that_handed_over_rests_alive_and_goes_on_as_if_nothing_had_been() {
    let peer = Peer::start();
    let mut idle = GuestRing::create(&peer, 1, 10);
    let mut blocked = GuestRing::create(&peer, 2, 11);
    let mut waiting = GuestRing::create(&peer, 3, 12);
    let blocked_head = blocked.push(&BLOCK);
    waiting.push(&VERSION);
    let waiting_head = waiting.push(&wait_virtqueue(1));
    peer.is_blocked();
    waiting.wait(16);
    for round in 1..4 {
        let before = peer.calls();
        peer.rests();
        let head = idle.push(&VERSION);
        idle.word(128).store(0, SeqCst);
        assert!(peer.silent());
        assert_eq!((peer.calls(), idle.word(0).load(SeqCst)), (before, head - 16), "executed at rest");
        let start = Instant::now();
        while idle.word(128).load(SeqCst) & 4 == 0 {
            assert!(start.elapsed() < LONG, "a ring at rest is not alive");
            std::thread::sleep(Duration::from_millis(1));
        }
        peer.goes_on();
        idle.wait(head);
        // The blocked command is executed once more, from its start.
        peer.is_blocked();
        assert_eq!(peer.calls(), before + 2, "round {round}");
    }
    peer.submit(&submit_seqno(3, 1), None);
    waiting.wait(waiting_head);
    peer.fake.set.store(true, SeqCst);
    blocked.wait(blocked_head);
    // A hand-over that was called off after it had failed.
    peer.goes_on();
    peer.submit_and_wait(&VERSION);
    peer.end();
}

#[test]
fn commands_of_an_indirect_stream_are_executed_once_and_the_stream_is_answered_once() {
    let peer = Peer::start();
    let (streams, replies) = (peer.shared_memory(20, 4096), peer.shared_memory(21, 4096));
    let mut ring = GuestRing::create(&peer, 1, 10);
    let stream = [&VERSION_WITH_REPLY[..], &VERSION, &BLOCK, &VERSION_WITH_REPLY].concat();
    streams.copy_in(0, &bytes(&stream)).unwrap();
    ring.push(&set_reply(21, 0, 64));
    let mut execute = execute_streams(&[[20, 0, 4 * stream.len() as u32]]);
    execute[1] = 1;
    let head = ring.push(&execute);
    peer.is_blocked();
    for _ in 0..3 {
        peer.rests();
        peer.goes_on();
        peer.is_blocked();
    }
    peer.fake.set.store(true, SeqCst);
    ring.wait(head);
    assert_eq!(peer.calls(), 1 + 1 + 4 + 1);
    let mut said = [0; 48];
    replies.copy_out(0, &mut said).unwrap();
    let version = [137, 0, 1, 0, 0x1234];
    assert_eq!(said.as_slice(), bytes(&[&[180][..], &version, &version, &[0]].concat()));
    peer.end();
}

#[test]
fn a_worker_that_cannot_hand_over_stays_and_goes_on() {
    let peer = Peer::start();
    let mut ring = GuestRing::create(&peer, 1, 10);
    let mut goes_on = || {
        let head = ring.push(&VERSION);
        ring.wait(head);
    };
    *peer.fake.stays.lock() = Some(NotMovable::for_now("busy"));
    let _link = peer.hands_over();
    peer.expect_stays("busy", true);
    goes_on();
    *peer.fake.stays.lock() = None;
    // A successor that is dead.
    peer.hands_over_to_nobody();
    peer.expect_stays("gone", true);
    goes_on();
    peer.channel.send(&ToWorker::HandOver { copies: true, goes_on: true }, None).unwrap();
    peer.expect_stays("without its socket", false);
    goes_on();
    // The resource id of the ring stands for other memory now.
    peer.shared_memory(10, 4096);
    let _link = peer.hands_over();
    peer.expect_stays("ring lies in memory", true);
    goes_on();
    peer.submit(&VERSION, Some(fence(1, 5)));
    peer.submit(&LOSE, None);
    peer.expect_lost("device was lost");
    assert_eq!(peer.answer(), ToDevice::FenceSignalled(fence(1, 5)));
    let _link = peer.hands_over();
    peer.expect_stays("lost", false);
    peer.end();
}

#[test]
fn fences_are_answered_before_a_context_is_handed_over() {
    let peer = Peer::start();
    peer.submit(&VERSION, Some(fence(1, 5)));
    peer.submit_and_wait(&[]);
    let link = peer.hands_over();
    assert!(peer.silent());
    assert!(link.try_receive::<HandOver>().unwrap().is_none());
    (peer.fake.fences.lock().pop().unwrap().1)();
    assert_eq!(peer.answer(), ToDevice::FenceSignalled(fence(1, 5)));
    assert_eq!(peer.answer(), ToDevice::HandedOver);
    peer.goes_on();
    peer.end();
}

/// Attaches the same memory to several workers, and returns it.
pub(super) fn shared(id: u32, peers: &[&Peer]) -> Arc<Mapping> {
    let file = shm::create("test", 4096).unwrap();
    peers.iter().for_each(|peer| peer.attach(id, &file, 4096, ResourceKind::SharedMemory));
    Arc::new(Mapping::new(&file, 4096).unwrap())
}

#[test]
fn a_successor_goes_on_at_the_right_byte_and_replies_in_the_right_place() {
    let (old, new) = (Peer::start(), Peer::start());
    let both = [&old, &new];
    let [streams, replies] = [20, 21].map(|id| shared(id, &both));
    let [mut ring, mut other] = [(1, 10), (2, 11)].map(|(id, resource)| {
        let memory = shared(resource, &both);
        old.submit_and_wait(&create_ring(id, resource));
        GuestRing { memory, tail: 0 }
    });
    let file = |id: u64| {
        let file = shm::create("test", 4096).unwrap();
        Arc::new(MemoryFile::new(file, Piece::new(MemoryId(id), Lease::new(|| ()))))
    };
    let files = [file(3), file(4), file(3)];
    let kind = ResourceKind::DeviceMemory { mappable: true, memory: Some(MemoryId(4)) };
    new.attach(30, &files[1].as_fd().try_clone_to_owned().unwrap(), 4096, kind);
    *old.fake.files.lock() = files.to_vec();
    // The ring wraps around the end of its buffer, and the position of the virtqueue is not sent again.
    for _ in 0..100 {
        let head = ring.push(&VERSION);
        ring.wait(head);
    }
    old.submit_and_wait(&submit_seqno(2, 7));
    let stream = [&VERSION_WITH_REPLY[..], &BLOCK, &VERSION_WITH_REPLY].concat();
    streams.copy_in(0, &bytes(&stream)).unwrap();
    ring.push(&set_reply(21, 100, 64));
    ring.push(&execute_streams(&[[20, 0, 4 * stream.len() as u32]]));
    old.is_blocked();

    hand_over(&old, &new, false);
    let pieces = vec![MemoryId(3), MemoryId(3)];
    assert_eq!(new.answer(), ToDevice::TakenOver { pieces, credit: PerHeap::default() });
    assert_eq!(new.calls(), old.calls());
    let calls = new.calls();
    // Both rest, and the guest goes on.
    let head = ring.push(&VERSION);
    other.push(&wait_virtqueue(7));
    let other_head = other.push(&VERSION);
    other.word(128).set_bits(1, SeqCst);
    assert!(old.silent() && new.silent());
    assert_eq!((old.calls(), new.calls()), (calls, calls));
    assert!(Arc::strong_count(&new.fake.files.lock()[1]) > 1, "a resource is the same piece");
    old.end();

    new.fake.set.store(true, SeqCst);
    new.goes_on();
    ring.wait(head);
    other.wait(other_head);
    assert_eq!(new.calls(), calls + 4);
    let mut said = [0; 48];
    replies.copy_out(100, &mut said).unwrap();
    let version = [137, 0, 1, 0, 0x1234];
    assert_eq!(said.as_slice(), bytes(&[&version[..], &version, &[0, 0]].concat()));
    // The successor is a worker like any other: it can hand over too, and its rings are the old ones.
    new.rests();
    new.goes_on();
    new.submit_and_wait(&wait_ring(1, head));
    new.submit_and_wait(&destroy_ring(1));
    new.submit(&wait_ring(1, head), None);
    new.expect_lost("no such ring");
    assert!(other.is_fatal());
    new.fake.files.lock().clear();
    // The piece of the resource stays with the resource.
    for _ in 0..2 {
        assert_eq!(new.answer(), ToDevice::MemoryReturned { memory: MemoryId(3) });
    }
    assert!(new.silent());
    new.end();
}

#[test]
fn a_successor_builds_the_prelude_up_while_the_worker_goes_on() {
    let (old, new) = (Peer::start(), Peer::start());
    let [memory] = [10].map(|resource| shared(resource, &[&old, &new]));
    old.submit_and_wait(&create_ring(1, 10));
    let mut ring = GuestRing { memory, tail: 0 };
    for preludes in 1..3 {
        old.prepares(&new);
        assert_eq!(new.answer(), ToDevice::PreludeBuilt { is_at_home: true });
        assert_eq!(new.fake.preludes.load(SeqCst), preludes);
        let head = ring.push(&VERSION);
        ring.wait(head);
    }
    // If the prelude cannot be written now, the successor builds nothing.
    *old.fake.stays.lock() = Some(NotMovable::for_now("busy"));
    old.prepares(&new);
    assert_eq!(new.answer(), ToDevice::PreludeBuilt { is_at_home: true });
    assert_eq!(new.fake.preludes.load(SeqCst), 2);
    *old.fake.stays.lock() = None;
    // The successor sees new resources meanwhile, and takes over like any other.
    shared(20, &[&new]);
    let link = old.hands_over();
    new.takes_over_from(&link);
    drop(link);
    assert_eq!(old.answer(), ToDevice::HandedOver);
    assert!(matches!(new.answer(), ToDevice::TakenOver { .. }));
    old.end();
    new.goes_on();
    let head = ring.push(&VERSION);
    ring.wait(head);
    new.end();
}

#[test]
fn memory_of_the_driver_is_given_away_as_credit_and_is_no_piece() {
    for (copies, carry) in [(true, Carry::Copied), (false, Carry::HandedOver)] {
        let (old, new) = (Peer::start(), Peer::start());
        let file = |piece| Arc::new(MemoryFile::new(shm::create("test", 4096).unwrap(), piece));
        let counted = Piece::new(MemoryId(3), Lease::new(|| ()));
        *old.fake.files.lock() = vec![file(Piece::uncounted()), file(counted), file(Piece::uncounted())];
        let (from, to) = Channel::pair().unwrap();
        old.channel.send(&ToWorker::HandOver { copies, goes_on: true }, Some(from.as_fd())).unwrap();
        new.takes_over_from(&to);
        drop((from, to));
        assert_eq!(old.answer(), ToDevice::HandedOver);
        assert_eq!(*old.fake.carried.lock(), Some(carry));
        let (pieces, credit) = (vec![MemoryId(3)], PerHeap::default());
        assert_eq!(new.answer(), ToDevice::TakenOver { pieces, credit });
        let names: Vec<_> = new.fake.files.lock().iter().map(|file| file.piece.memory).collect();
        assert_eq!(names, [None, Some(MemoryId(3)), None]);
        old.end();
        new.goes_on();
        new.fake.files.lock().clear();
        assert_eq!(new.answer(), ToDevice::MemoryReturned { memory: MemoryId(3) });
        assert!(new.silent());
        new.end();
    }
}

#[test]
fn a_prelude_that_nobody_reads_or_writes_holds_nobody_up() {
    let old = Peer::start();
    let (writes, reads) = Channel::pair().unwrap();
    drop(reads);
    old.channel
        .send(&ToWorker::WritePrelude { goes_on: false, is_at_home: false }, Some(writes.as_fd()))
        .unwrap();
    old.channel.send(&ToWorker::WritePrelude { goes_on: false, is_at_home: false }, None).unwrap();
    old.submit_and_wait(&VERSION);
    old.channel.send(&ToWorker::BuildPrelude, None).unwrap();
    old.expect_lost("that has a context");
    old.end();
    let file = shm::create("test", 4096).unwrap();
    let memory = HandOver::File { memory: MemoryName::Piece(MemoryId(1)) };
    for (message, fd, part) in [
        (None, None, "gone"),
        (Some(HandOver::Bytes(vec![99; 100])), None, "version"),
        (Some(memory), Some(file.as_fd()), "ahead of its snapshot"),
        (Some(HandOver::Slots { count: 1, bytes: 4096 }), Some(file.as_fd()), "ahead of their snapshot"),
        (Some(HandOver::Filled), None, "contents ahead"),
    ] {
        let peer = Peer::start();
        let (from, to) = Channel::pair().unwrap();
        peer.channel.send(&ToWorker::BuildPrelude, Some(to.as_fd())).unwrap();
        if let Some(message) = &message {
            from.send(message, fd).unwrap();
            from.send(&HandOver::End, None).unwrap();
        }
        drop((from, to));
        peer.expect_lost(part);
        peer.end();
    }
}

#[test]
fn what_is_no_snapshot_is_not_taken_over() {
    let good = Peer::start();
    let _ring = GuestRing::create(&good, 1, 10);
    let said = good.rests();
    let [HandOver::Bytes(snapshot), HandOver::End] = said.as_slice() else { panic!("{said:?}") };
    let file = shm::create("test", 4096).unwrap();
    let file = Some(file.as_fd());
    let bytes = |bytes: &[u8]| HandOver::Bytes(bytes.to_vec());
    let memory = HandOver::File { memory: MemoryName::Piece(MemoryId(1)) };
    let mut without_ring = snapshot.clone();
    without_ring.truncate(3);
    for (messages, part) in [
        (vec![], "gone"),
        (vec![(HandOver::End, None)], "no snapshot"),
        (vec![(bytes(&snapshot[..snapshot.len() - 1]), None), (HandOver::End, None)], "no snapshot"),
        (vec![(bytes(&[99; 100]), None), (HandOver::End, None)], "version"),
        (vec![(bytes(snapshot), None)], "gone"),
        (vec![(bytes(snapshot), file)], "where no memory is announced"),
        (vec![(memory, None)], "without its file"),
        // The successor does not see the ring's memory.
        (vec![(bytes(snapshot), None), (HandOver::End, None)], "not attached"),
    ] {
        let peer = Peer::start();
        let (from, to) = Channel::pair().unwrap();
        peer.takes_over_from(&to);
        messages.iter().for_each(|(message, file)| from.send(message, *file).unwrap());
        drop((from, to));
        peer.expect_lost(part);
        peer.goes_on();
        assert!(peer.silent());
        peer.end();
    }
    // The old worker is as before.
    good.goes_on();
    good.submit_and_wait(&wait_ring(1, 0));
    good.end();
}

#[test]
fn a_worker_takes_over_first_of_all_or_not_and_a_worker_that_rests_is_told_nothing() {
    let serves = Peer::start();
    serves.submit_and_wait(&VERSION);
    let (_from, to) = Channel::pair().unwrap();
    serves.takes_over_from(&to);
    serves.expect_lost("that has one");
    serves.end();
    let nobody = Peer::start();
    nobody.channel.send(&ToWorker::TakeOver, None).unwrap();
    nobody.expect_lost("without its socket");
    nobody.end();
    let rests = Peer::start();
    rests.rests();
    rests.submit(&VERSION, None);
    rests.expect_lost("rests");
    rests.end();
}

#[test]
fn a_successor_takes_over_whatever_it_was_shown_before_and_sees_no_more() {
    let (old, new) = (Peer::start(), Peer::start());
    shared(20, &[&new]);
    new.channel.send(&ToWorker::DetachResource { resource_id: ResourceId(20) }, None).unwrap();
    shared(21, &[&new]);
    new.channel.send(&ToWorker::BlobGone { memory: MemoryId(1) }, None).unwrap();
    hand_over(&old, &new, false);
    assert!(matches!(new.answer(), ToDevice::TakenOver { .. }));
    old.end();
    new.goes_on();
    new.submit_and_wait(&VERSION);
    new.end();
}

#[test]
fn what_nothing_is_made_of_goes_back_behind_what_says_that_it_was_taken_over() {
    let (old, new) = (Peer::start(), Peer::start());
    let piece = Piece::new(MemoryId(3), Lease::new(|| ()));
    *old.fake.files.lock() = vec![Arc::new(MemoryFile::new(shm::create("test", 4096).unwrap(), piece))];
    new.fake.forgets.store(true, SeqCst);
    let (from, to) = Channel::pair().unwrap();
    old.channel.send(&ToWorker::HandOver { copies: true, goes_on: true }, Some(from.as_fd())).unwrap();
    new.takes_over_from(&to);
    drop((from, to));
    assert!(matches!(new.answer(), ToDevice::TakenOver { pieces, .. } if pieces == [MemoryId(3)]));
    assert_eq!(new.answer(), ToDevice::MemoryReturned { memory: MemoryId(3) });
    old.end();
    new.end();
}

/// Returns contents of so many bytes, no two pages alike.
pub(super) fn contents(bytes: usize) -> Vec<u8> {
    let word = |at: u64| at.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    (0..bytes as u64 / 8).flat_map(word).collect()
}

impl Peer {
    /// Gives the worker the memory that it asks for; returns the number of bytes.
    pub(super) fn grants(&self) -> u64 {
        let ToDevice::MemoryWanted { request, wanted: Wanted::Pages(bytes) } = self.answer() else {
            panic!("something else than pages is wanted")
        };
        let file = shm::create("test", bytes).unwrap();
        let granted = ToWorker::MemoryGranted { request, memory: Some(MemoryId(77)), bytes };
        self.channel.send(&granted, Some(file.as_fd())).unwrap();
        bytes
    }
}

#[test]
fn contents_of_memory_pass_through_a_file_that_goes_back_whatever_their_size() {
    for (bytes, through) in
        [(4096, 4096), (3 << 20, 3 << 20), ((9 << 20) + 4096, 12 << 20), (133 << 20, 16 << 20)]
    {
        let (old, new) = (Peer::start(), Peer::start());
        *old.fake.contents.lock() = contents(bytes);
        *new.fake.contents.lock() = vec![0; bytes];
        let (from, to) = Channel::pair().unwrap();
        old.channel.send(&ToWorker::HandOver { copies: true, goes_on: true }, Some(from.as_fd())).unwrap();
        assert_eq!(old.grants(), through, "{bytes} bytes");
        new.takes_over_from(&to);
        drop((from, to));
        assert_eq!(old.answer(), ToDevice::MemoryReturned { memory: MemoryId(77) });
        assert_eq!(old.answer(), ToDevice::HandedOver);
        assert!(matches!(new.answer(), ToDevice::TakenOver { pieces, .. } if pieces.is_empty()));
        assert!(*new.fake.contents.lock() == *old.fake.contents.lock(), "{bytes} bytes");
        new.goes_on();
        assert!(new.silent());
        old.end();
        new.end();
    }
}

#[test]
fn a_worker_without_memory_for_copies_stays_for_now_and_has_written_nothing() {
    let peer = Peer::start();
    *peer.fake.contents.lock() = contents(8192);
    let link = peer.hands_over();
    let ToDevice::MemoryWanted { request, .. } = peer.answer() else { panic!("nothing is wanted") };
    peer.channel.send(&ToWorker::MemoryRefused { request }, None).unwrap();
    peer.expect_stays("memory for copies", true);
    assert!(matches!(link.receive::<HandOver>(), Err(ReceiveError::Closed)));
    peer.submit_and_wait(&VERSION);
    peer.end();
}

#[test]
fn a_successor_that_does_not_empty_slots_holds_nobody_up() {
    for (said, part) in
        [(None, "gone"), (Some(HandOver::End), "must not"), (Some(HandOver::Filled), "must not")]
    {
        let peer = Peer::start();
        *peer.fake.contents.lock() = contents(133 << 20);
        let link = peer.hands_over();
        peer.grants();
        let filled = || loop {
            match link.receive::<HandOver>().unwrap().0 {
                HandOver::Filled => return,
                HandOver::Bytes(_) | HandOver::Slots { count: 4, .. } | HandOver::End => {}
                other => panic!("{other:?}"),
            }
        };
        (0..4).for_each(|_| filled());
        std::thread::sleep(Duration::from_millis(20));
        assert!(link.try_receive::<HandOver>().unwrap().is_none(), "a slot is filled twice");
        link.send(&HandOver::Emptied, None).unwrap();
        filled();
        said.iter().for_each(|said| link.send(said, None).unwrap());
        drop(link);
        assert_eq!(peer.answer(), ToDevice::MemoryReturned { memory: MemoryId(77) });
        peer.expect_stays(part, true);
        peer.submit_and_wait(&VERSION);
        peer.end();
    }
}

#[test]
fn contents_that_are_not_those_of_the_snapshot_are_not_taken_over() {
    let good = Peer::start();
    let said = good.rests();
    let [HandOver::Bytes(snapshot), HandOver::End] = said.as_slice() else { panic!("{said:?}") };
    let file = shm::create("test", 8192).unwrap();
    let file = Some(file.as_fd());
    let snapshot = (HandOver::Bytes(snapshot.clone()), None);
    let slots = |count, bytes| HandOver::Slots { count, bytes };
    let end = (HandOver::End, None);
    for (size, behind, part) in [
        (0, vec![(slots(2, 4096), file), end.clone()], "belong together"),
        (8192, vec![end.clone()], "belong together"),
        (8192, vec![(slots(2, 4096), None), end.clone()], "without their file"),
        (8192, vec![(slots(1, 4096), file), (slots(1, 4096), file)], "twice"),
        (8192, vec![(slots(0, 4096), file)], "another size"),
        (8192, vec![(slots(5, 4096), file)], "another size"),
        (8192, vec![(slots(1, 0), file)], "another size"),
        (8192, vec![(slots(1, 4097), file)], "another size"),
        (8192, vec![(slots(4, !4095), file)], "another size"),
        (8192, vec![(slots(4, 4096), file), end.clone()], "too small"),
        (8192, vec![(slots(2, 4096), file), end.clone()], "gone"),
        (8192, vec![(HandOver::Filled, None)], "ahead"),
        (8192, vec![(HandOver::Emptied, None)], "ahead"),
        (8192, vec![(slots(2, 4096), file), end.clone(), (HandOver::Filled, None)], "gone"),
        (8192, vec![(slots(2, 4096), file), end.clone(), (HandOver::Filled, file)], "no contents"),
        (8192, vec![(slots(2, 4096), file), end.clone(), (HandOver::Emptied, None)], "no contents"),
    ] {
        let peer = Peer::start();
        *peer.fake.contents.lock() = vec![0; size];
        let (from, to) = Channel::pair().unwrap();
        peer.takes_over_from(&to);
        let messages = [vec![snapshot.clone()], behind].concat();
        messages.iter().for_each(|(message, file)| from.send(message, *file).unwrap());
        drop((from, to));
        peer.expect_lost(part);
        peer.end();
    }
    good.goes_on();
    good.end();
}

#[test]
fn a_worker_ends_with_its_channel_while_it_rests_or_hands_over_or_takes_over() {
    let rests = Peer::start();
    let mut ring = GuestRing::create(&rests, 1, 10);
    ring.push(&BLOCK);
    rests.is_blocked();
    rests.rests();
    rests.end();
    let waits = Peer::start();
    let (_from, to) = Channel::pair().unwrap();
    waits.takes_over_from(&to);
    std::thread::sleep(Duration::from_millis(20));
    waits.end();
    let hands_over = Peer::start();
    // More files than a socket holds, for a peer that does not read.
    let piece = |id| Piece::new(MemoryId(id), Lease::new(|| ()));
    let file = |id| Arc::new(MemoryFile::new(shm::create("test", 4096).unwrap(), piece(id)));
    *hands_over.fake.files.lock() = (0..600).map(file).collect();
    let _link = hands_over.hands_over();
    std::thread::sleep(Duration::from_millis(50));
    hands_over.end();
}

/// Has a worker's virtqueue wait for a ring that is blocked in the driver, with an export of memory behind the wait.
pub(super) fn waiting_for_a_ring(peer: &Peer, memory: Arc<Mapping>) -> GuestRing {
    peer.submit_and_wait(&create_ring(1, 10));
    let mut ring = GuestRing { memory, tail: 0 };
    let head = ring.push(&BLOCK);
    peer.is_blocked();
    let stream = [&VERSION[..], &wait_ring(1, head), &VERSION].concat();
    peer.submit(&stream, Some(fence(0, 1)));
    let (resource_id, blob_id) = (ResourceId(31), BlobId(7));
    let export = ToWorker::ExportBlob { resource_id, blob_id, size: 4096, mappable: true };
    peer.channel.send(&export, None).unwrap();
    ring
}

#[test]
fn a_wait_for_a_ring_is_handed_over_with_what_comes_behind_it() {
    let (old, new) = (Peer::start(), Peer::start());
    let mut ring = waiting_for_a_ring(&old, shared(10, &[&old, &new]));
    hand_over(&old, &new, false);
    assert!(matches!(new.answer(), ToDevice::TakenOver { .. }));
    let calls = new.calls();
    assert!(old.silent() && new.silent());
    old.end();
    new.goes_on();
    new.is_blocked();
    assert!(new.silent(), "the export waits");
    new.fake.set.store(true, SeqCst);
    assert_eq!(new.answer(), ToDevice::FenceSignalled(fence(0, 1)));
    assert!(matches!(new.answer(), ToDevice::BlobExported { resource_id: ResourceId(31), .. }));
    // The blocked command, and the command behind the wait. The predecessor has executed the command ahead of the wait.
    assert_eq!(new.calls(), calls + 2);
    let head = ring.push(&VERSION);
    ring.wait(head);
    new.end();
}

#[test]
fn a_worker_that_stays_goes_on_with_the_wait_and_with_what_comes_behind_it_in_its_order() {
    let peer = Peer::start();
    let _ring = waiting_for_a_ring(&peer, shared(10, &[&peer]));
    for _ in 0..3 {
        peer.hands_over_to_nobody();
        assert!(matches!(peer.answer(), ToDevice::Stays { .. }));
        peer.is_blocked();
        // A hand-over can be called off even when it is done.
        peer.rests();
        peer.goes_on();
        peer.is_blocked();
    }
    // First a resource that no submission names, then a resource that may be named: its id is a word of the wait.
    for (resource_id, why) in [(77, "the other worker is gone"), (1, "may name a resource that is gone")] {
        let resource_id = ResourceId(resource_id);
        peer.channel.send(&ToWorker::DetachResource { resource_id }, None).unwrap();
        peer.hands_over_to_nobody();
        peer.expect_stays(why, true);
    }
    peer.submit(&VERSION, Some(fence(0, 2)));
    let calls = peer.calls();
    assert!(peer.silent());
    peer.fake.set.store(true, SeqCst);
    assert_eq!(peer.answer(), ToDevice::FenceSignalled(fence(0, 1)));
    assert!(matches!(peer.answer(), ToDevice::BlobExported { .. }));
    assert_eq!(peer.answer(), ToDevice::FenceSignalled(fence(0, 2)));
    assert!((calls + 2..=calls + 3).contains(&peer.calls()), "{calls}, {}", peer.calls());
    peer.end();
}

#[test]
fn a_prelude_is_written_and_a_checkpoint_put_off_while_the_virtqueue_waits_for_a_ring() {
    let (old, new) = (Peer::start(), Peer::start());
    let _ring = waiting_for_a_ring(&old, shared(10, &[&old, &new]));
    old.prepares(&new);
    assert_eq!(new.answer(), ToDevice::PreludeBuilt { is_at_home: true });
    let file = shm::create("test", 4096).unwrap();
    old.channel.send(&ToWorker::WriteCheckpoint { number: 1 }, Some(file.as_fd())).unwrap();
    assert!(old.silent());
    let (from, to) = Channel::pair().unwrap();
    old.channel.send(&ToWorker::HandOver { copies: false, goes_on: true }, Some(from.as_fd())).unwrap();
    new.takes_over_from(&to);
    drop((from, to));
    assert!(matches!(old.answer(), ToDevice::NoCheckpoint { for_now: true, .. }));
    assert_eq!(old.answer(), ToDevice::HandedOver);
    assert!(matches!(new.answer(), ToDevice::TakenOver { .. }));
    old.end();
    new.goes_on();
    new.fake.set.store(true, SeqCst);
    assert_eq!(new.answer(), ToDevice::FenceSignalled(fence(0, 1)));
    assert!(matches!(new.answer(), ToDevice::BlobExported { .. }));
    new.end();
}
