//! Checkpoints that a worker writes while its context does nothing, and successors that go on from there.

use super::handover::shared;
use super::*;
use crate::ipc::HandOver;

impl Peer {
    /// Has the worker write a checkpoint into a file of so many bytes; returns its answer, and the file. A ring that has not come to rest in time is
    /// not what a test is about.
    fn writes_checkpoint(&self, bytes: u64) -> (ToDevice, OwnedFd) {
        let start = Instant::now();
        loop {
            let file = shm::create("test", bytes).unwrap();
            self.channel.send(&ToWorker::WriteCheckpoint, Some(file.as_fd())).unwrap();
            match self.answer() {
                ToDevice::NoCheckpoint { reason, for_now: true }
                    if reason.contains("busy") && start.elapsed() < LONG => {}
                answer => return (answer, file),
            }
        }
    }

    fn is_current(&self) -> bool {
        self.status.checkpoint().is_current()
    }

    /// Waits until the mark says so. It is set behind the answer.
    fn becomes_current(&self, is_current: bool) {
        let start = Instant::now();
        while self.is_current() != is_current {
            assert!(start.elapsed() < LONG, "the mark says that it is {}", !is_current);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn expect_no_checkpoint(&self, bytes: u64, part: &str) {
        match self.writes_checkpoint(bytes).0 {
            ToDevice::NoCheckpoint { reason, .. } => assert!(reason.contains(part), "{reason}"),
            other => panic!("{other:?}"),
        }
        assert!(!self.is_current());
    }
}

#[test]
fn a_successor_goes_on_from_a_checkpoint_as_from_a_worker() {
    let (old, new) = (Peer::start(), Peer::start());
    let memory = shared(10, &[&old, &new]);
    old.submit_and_wait(&create_ring(1, 10));
    let mut ring = GuestRing { memory, tail: 0 };
    let head = ring.push(&VERSION);
    ring.wait(head);
    let (answer, file) = old.writes_checkpoint(1 << 20);
    let ToDevice::CheckpointWritten { bytes, .. } = answer else { panic!("{answer:?}") };
    old.becomes_current(true);
    let calls = old.calls();
    // Its worker is dead: it does nothing any more.
    ring.word(128).store(0, SeqCst);
    old.end();
    let mut checkpoint = vec![0; bytes as usize];
    Mapping::new(&file, bytes).unwrap().copy_out(0, &mut checkpoint).unwrap();
    let (writes, reads) = Channel::pair().unwrap();
    new.takes_over_from(&reads);
    // A piece that the context held, and that nothing is made of, goes back.
    let spare = shm::create("test", 4096).unwrap();
    writes.send(&HandOver::File { memory: Some(MemoryId(9)) }, Some(spare.as_fd())).unwrap();
    writes.send(&HandOver::Bytes(checkpoint), None).unwrap();
    writes.send(&HandOver::End, None).unwrap();
    assert!(matches!(new.answer(), ToDevice::TakenOver { pieces, .. } if pieces == [MemoryId(9)]));
    assert_eq!(new.answer(), ToDevice::MemoryReturned { memory: MemoryId(9) });
    let head = ring.push(&VERSION);
    new.goes_on();
    ring.wait(head);
    assert_eq!(new.calls(), calls + 1);
    new.end();
}

#[test]
fn whatever_is_executed_takes_the_mark_away() {
    let peer = Peer::start();
    let mut ring = GuestRing::create(&peer, 1, 10);
    peer.shared_memory(20, 4096);
    let executes: [&dyn Fn(&mut GuestRing); 5] = [
        &|ring| {
            let head = ring.push(&VERSION);
            ring.wait(head);
        },
        &|_| peer.submit_and_wait(&VERSION),
        &|_| peer.channel.send(&ToWorker::BlobGone { memory: MemoryId(1) }, None).unwrap(),
        &|_| {
            let export = ToWorker::ExportBlob {
                resource_id: ResourceId(40),
                blob_id: BlobId(7),
                size: 4096,
                mappable: true,
            };
            peer.channel.send(&export, None).unwrap();
            assert!(matches!(peer.answer(), ToDevice::BlobExported { .. }));
        },
        // A ring or a reply stream may lie there.
        &|_| {
            peer.channel.send(&ToWorker::DetachResource { resource_id: ResourceId(20) }, None).unwrap();
        },
    ];
    for executes in executes {
        assert!(matches!(peer.writes_checkpoint(1 << 20).0, ToDevice::CheckpointWritten { .. }));
        peer.becomes_current(true);
        executes(&mut ring);
        peer.becomes_current(false);
    }
    assert!(matches!(peer.writes_checkpoint(1 << 20).0, ToDevice::CheckpointWritten { .. }));
    peer.becomes_current(true);
    // What a context sees is shown to its successor as well.
    peer.shared_memory(21, 4096);
    assert!(peer.silent() && peer.is_current());
    peer.end();
}

#[test]
fn a_checkpoint_does_not_wait_for_fences() {
    let peer = Peer::start();
    let fence = fence(1, 5);
    peer.submit(&VERSION, Some(fence));
    peer.submit_and_wait(&[]);
    let reason = "a fence is not passed".to_owned();
    assert_eq!(peer.writes_checkpoint(1 << 20).0, ToDevice::NoCheckpoint { reason, for_now: true });
    (peer.fake.fences.lock().pop().unwrap().1)();
    assert_eq!(peer.answer(), ToDevice::FenceSignalled(fence));
    assert!(matches!(peer.writes_checkpoint(1 << 20).0, ToDevice::CheckpointWritten { .. }));
    peer.end();
}

#[test]
fn a_context_that_cannot_be_built_up_from_files_has_no_checkpoint_and_goes_on() {
    let peer = Peer::start();
    let mut ring = GuestRing::create(&peer, 1, 10);
    *peer.fake.stays.lock() = Some(NotMovable::for_now("a submission does not end"));
    peer.expect_no_checkpoint(1 << 20, "does not end");
    *peer.fake.stays.lock() = None;
    *peer.fake.contents.lock() = vec![1; 8192];
    peer.expect_no_checkpoint(1 << 20, "memory of the GPU");
    peer.fake.contents.lock().clear();
    peer.expect_no_checkpoint(1, "limit checkpoint_bytes");
    peer.channel.send(&ToWorker::WriteCheckpoint, None).unwrap();
    assert!(matches!(peer.answer(), ToDevice::NoCheckpoint { .. }));
    let head = ring.push(&VERSION);
    ring.wait(head);
    peer.end();
}
