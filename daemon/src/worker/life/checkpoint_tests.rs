//! Checkpoints that a worker writes while its context does nothing, and successors that go on from there.

use super::handover::shared;
use super::*;
use crate::ipc::HandOver;
use config::{DepositId, MemoryName};
use shm::journal::Journal;
use std::fs::File;

/// The number of the next checkpoint.
static NUMBERS: AtomicU32 = AtomicU32::new(1);

/// The bytes of a checkpoint, and its number.
type Written = (u32, Vec<u8>);

impl Peer {
    /// Has the worker write a checkpoint into a file of so many bytes; returns its answer, and the file. Repeats the request while a ring does not
    /// come to rest in time: no test is about that.
    fn writes_checkpoint(&self, bytes: u64) -> (ToDevice, OwnedFd) {
        let (_, answer, file) = self.writes_numbered(bytes);
        (answer, file)
    }

    /// Has the worker write a checkpoint like [`Self::writes_checkpoint`]; returns its number as well.
    fn writes_numbered(&self, bytes: u64) -> (u32, ToDevice, OwnedFd) {
        let start = Instant::now();
        loop {
            let file = shm::create("test", bytes).unwrap();
            let number = NUMBERS.fetch_add(1, SeqCst);
            self.channel.send(&ToWorker::WriteCheckpoint { number }, Some(file.as_fd())).unwrap();
            match self.answer() {
                ToDevice::NoCheckpoint { reason, for_now: true }
                    if reason.contains("busy") && start.elapsed() < LONG => {}
                answer => return (number, answer, file),
            }
        }
    }

    fn is_current(&self) -> bool {
        self.status.checkpoint().current().is_some()
    }

    /// Waits until the mark has this value. The worker sets the mark after its answer.
    fn becomes_current(&self, is_current: bool) {
        let start = Instant::now();
        while self.is_current() != is_current {
            assert!(start.elapsed() < LONG, "the mark says that it is {}", !is_current);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Gives the worker a journal, and returns it.
    fn keeps_journal(&self) -> OwnedFd {
        let journal = Journal::create().unwrap();
        self.channel.send(&ToWorker::KeepJournal, Some(journal.as_fd())).unwrap();
        journal
    }

    /// Has the worker write a checkpoint, and returns it.
    fn checkpoint(&self) -> Written {
        let (number, answer, file) = self.writes_numbered(1 << 20);
        let ToDevice::CheckpointWritten { bytes, .. } = answer else { panic!("{answer:?}") };
        // Not any number: the mark may still have the number of the checkpoint before.
        let start = Instant::now();
        while self.status.checkpoint().current() != Some(number) {
            assert!(start.elapsed() < LONG, "the mark does not have its number");
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut checkpoint = vec![0; bytes as usize];
        Mapping::new(&file, bytes).unwrap().copy_out(0, &mut checkpoint).unwrap();
        (number, checkpoint)
    }

    /// Takes over from a worker that is dead, which has left a checkpoint and a journal.
    fn follows(&self, (number, checkpoint): Written, journal: &OwnedFd) {
        let (writes, reads) = Channel::pair().unwrap();
        self.takes_over_from(&reads);
        writes.send(&HandOver::Bytes(checkpoint), None).unwrap();
        writes.send(&HandOver::Journal { number }, Some(journal.as_fd())).unwrap();
        writes.send(&HandOver::End, None).unwrap();
    }

    /// Waits until the driver executes a command that blocks.
    fn blocks(&self) {
        let start = Instant::now();
        while !self.fake.blocked.load(SeqCst) {
            assert!(start.elapsed() < LONG, "the driver is not asked");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn has_taken_over(&self) {
        assert!(matches!(self.answer(), ToDevice::TakenOver { .. }));
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
    // The worker is dead, so the ring does nothing any more.
    ring.word(128).store(0, SeqCst);
    old.end();
    let mut checkpoint = vec![0; bytes as usize];
    Mapping::new(&file, bytes).unwrap().copy_out(0, &mut checkpoint).unwrap();
    let (writes, reads) = Channel::pair().unwrap();
    new.takes_over_from(&reads);
    // A piece that the context held, and that the successor does not use, goes back.
    let spare = shm::create("test", 4096).unwrap();
    writes.send(&HandOver::File { memory: MemoryName::Piece(MemoryId(9)) }, Some(spare.as_fd())).unwrap();
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
fn a_successor_gets_the_drivers_memory_by_its_deposits() {
    let (old, new) = (Peer::start(), Peer::start());
    let file = || Arc::new(MemoryFile::new(shm::create("test", 4096).unwrap(), Piece::uncounted()));
    *old.fake.files.lock() = vec![file(), file()];
    let (number, checkpoint) = old.checkpoint();
    assert_eq!(*old.fake.carried.lock(), Some(Carry::Deposited));
    old.end();
    let (writes, reads) = Channel::pair().unwrap();
    new.takes_over_from(&reads);
    let sizes = [8192, 12288];
    // They may come in any order.
    for at in [1, 0] {
        let kept = shm::create("test", sizes[at]).unwrap();
        let memory = MemoryName::Deposit(DepositId(at as u64));
        writes.send(&HandOver::File { memory }, Some(kept.as_fd())).unwrap();
    }
    writes.send(&HandOver::Bytes(checkpoint), None).unwrap();
    writes.send(&HandOver::End, None).unwrap();
    assert!(matches!(new.answer(), ToDevice::TakenOver { pieces, .. } if pieces.is_empty()), "{number}");
    let came = new
        .fake
        .files
        .lock()
        .iter()
        .map(|file| rustix::fs::fstat(file.as_fd()).unwrap().st_size as u64)
        .collect::<Vec<_>>();
    assert_eq!(came, sizes);
    new.end();
}

#[test]
fn a_successor_is_brought_the_data_of_pipeline_caches() {
    let data = |byte: u8| CacheData { id: byte.into(), sealed: vec![byte; 3 << 20] };
    for kept in [vec![data(1), data(2)], Vec::new()] {
        let (old, new) = (Peer::start(), Peer::start());
        let journal = old.keeps_journal();
        *old.fake.caches.lock() = Some(kept.clone());
        old.checkpoint();
        // Data that have not changed since are kept.
        *old.fake.caches.lock() = None;
        let checkpoint = old.checkpoint();
        old.end();
        new.follows(checkpoint, &journal);
        new.has_taken_over();
        assert_eq!(*new.fake.brought.lock(), kept.into_iter().map(Step::CacheData).collect::<Vec<_>>());
        new.end();
    }
}

#[test]
fn a_successor_goes_on_without_data_of_pipeline_caches_that_make_no_sense() {
    for (length, bytes) in [(5, &b"bytes"[..]), (u64::MAX, b"")] {
        let (old, new) = (Peer::start(), Peer::start());
        let journal = old.keeps_journal();
        let checkpoint = old.checkpoint();
        old.end();
        let left = [&u64::to_le_bytes(length), bytes].concat();
        let file = File::from(journal.try_clone().unwrap());
        file.write_all_at(&left, shm::journal::JOURNAL_BYTES).unwrap();
        new.follows(checkpoint, &journal);
        new.has_taken_over();
        assert!(new.fake.brought.lock().is_empty());
        new.end();
    }
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
        // A ring or a reply stream may lie in the detached resource.
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
    // The device process shows the resources of a context to its successor as well.
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
    peer.channel.send(&ToWorker::WriteCheckpoint { number: 1 }, None).unwrap();
    assert!(matches!(peer.answer(), ToDevice::NoCheckpoint { .. }));
    let head = ring.push(&VERSION);
    ring.wait(head);
    peer.end();
}

/// A ring of a worker that keeps a journal, whose checkpoint is written, and the resources that its successor sees as well.
struct Journalled {
    old: Peer,
    new: Peer,
    ring: GuestRing,
    streams: Arc<Mapping>,
    replies: Arc<Mapping>,
    checkpoint: Written,
    journal: OwnedFd,
}

fn journalled() -> Journalled {
    let (old, new) = (Peer::start(), Peer::start());
    let [memory, streams, replies] = [10, 20, 21].map(|id| shared(id, &[&old, &new]));
    old.submit_and_wait(&create_ring(1, 10));
    let journal = old.keeps_journal();
    let checkpoint = old.checkpoint();
    old.fake.set.store(true, SeqCst);
    Journalled { ring: GuestRing { memory, tail: 0 }, old, new, streams, replies, checkpoint, journal }
}

/// Returns the bytes of the commands that a worker has executed again.
fn replayed(peer: &Peer) -> Vec<Vec<u8>> {
    peer.fake.replayed.lock().clone()
}

#[test]
fn a_successor_executes_again_what_the_journal_has_and_goes_on_behind_it() {
    let Journalled { old, new, mut ring, replies, checkpoint, journal, .. } = journalled();
    ring.push(&set_reply(21, 100, 60));
    ring.push(&DESTROY);
    ring.push(&VERSION_WITH_REPLY);
    let head = ring.push(&BLOCK);
    ring.wait(head);
    assert!(old.is_current(), "the journal has everything");
    // Commands that change nothing, and one that tells a ring a position.
    old.submit_and_wait(&wait_ring(1, head));
    old.submit_and_wait(&submit_seqno(1, 7));
    assert!(old.is_current());
    old.end();
    // The worker may have died before the guest could know which commands it had executed.
    ring.word(0).store(0, SeqCst);
    ring.word(128).store(0, SeqCst);
    new.follows(checkpoint, &journal);
    new.has_taken_over();
    assert_eq!(replayed(&new), [bytes(&DESTROY), bytes(&BLOCK)]);
    new.goes_on();
    ring.wait(head);
    ring.push(&wait_virtqueue(7));
    let head = ring.push(&VERSION_WITH_REPLY);
    ring.wait(head);
    let mut reply = [0; 20];
    replies.copy_out(120, &mut reply).unwrap();
    assert_eq!(reply.as_slice(), bytes(&[137, 0, 1, 0, 0x1234]), "it goes behind the last");
    new.end();
}

#[test]
fn a_successor_executes_the_rest_of_streams_that_a_command_names() {
    let Journalled { old, new, mut ring, streams, replies, checkpoint, journal } = journalled();
    old.fake.set.store(false, SeqCst);
    ring.push(&set_reply(21, 0, 60));
    let stream = [&VERSION_WITH_REPLY[..], &DESTROY, &BLOCK, &VERSION_WITH_REPLY].concat();
    streams.copy_in(0, &bytes(&stream)).unwrap();
    let head = ring.push(&execute_streams(&[[20, 0, 4 * stream.len() as u32]]));
    old.blocks();
    assert!(old.is_current());
    // The copy is taken as if the worker died now: the successor does not see later notes.
    let left = Journal::create().unwrap();
    let mut pages = vec![0; shm::journal::JOURNAL_BYTES as usize];
    File::from(journal).read_exact_at(&mut pages, 0).unwrap();
    File::from(left.try_clone().unwrap()).write_all_at(&pages, 0).unwrap();
    old.end();
    ring.word(128).store(0, SeqCst);
    new.follows(checkpoint, &left);
    new.has_taken_over();
    assert_eq!(replayed(&new), [bytes(&DESTROY)]);
    new.fake.set.store(true, SeqCst);
    let calls = new.calls();
    new.goes_on();
    ring.wait(head);
    assert_eq!(new.calls(), calls + 2, "the first two are executed");
    let mut answers = [0; 60];
    replies.copy_out(0, &mut answers).unwrap();
    let answer = bytes(&[137, 0, 1, 0, 0x1234]);
    assert_eq!(answers.as_slice(), [answer.clone(), answer, vec![0; 20]].concat());
    new.end();
}

#[test]
fn what_submissions_may_wait_for_counts_as_one_until_it_is_noted() {
    let Journalled { old, new, mut ring, .. } = journalled();
    for (command, counts) in [(&BLOCK[..], false), (&SIGNAL[..], true)] {
        old.fake.set.store(false, SeqCst);
        old.fake.blocked.store(false, SeqCst);
        let head = ring.push(command);
        old.blocks();
        assert_eq!(old.status.progress().is_idle(), !counts);
        old.fake.set.store(true, SeqCst);
        ring.wait(head);
        assert!(old.status.progress().is_idle() && old.is_current());
    }
    old.end();
    new.end();
}

#[test]
fn what_cannot_be_executed_again_ends_the_journal_until_the_next_checkpoint() {
    let Journalled { old, new, mut ring, checkpoint, journal, .. } = journalled();
    // vkEnumerateInstanceVersion on the virtqueue, a resource that goes, a memory object that is shown.
    let breaks: [&dyn Fn(); 2] = [&|| old.submit_and_wait(&VERSION), &|| {
        old.channel.send(&ToWorker::DetachResource { resource_id: ResourceId(20) }, None).unwrap();
    }];
    for breaks in breaks {
        assert!(old.is_current());
        breaks();
        old.becomes_current(false);
        let head = ring.push(&DESTROY);
        ring.wait(head);
        assert!(!old.is_current());
        assert_ne!(old.checkpoint().1, checkpoint.1);
    }
    let (checkpoint, head) = (old.checkpoint(), ring.push(&DESTROY));
    ring.wait(head);
    old.end();
    ring.word(128).store(0, SeqCst);
    new.follows(checkpoint, &journal);
    new.has_taken_over();
    assert_eq!(replayed(&new), [bytes(&DESTROY)], "those before are in the checkpoint");
    new.end();
}

#[test]
fn a_worker_asks_for_another_checkpoint_when_its_journal_fills_and_ends_it_when_it_is_full() {
    let Journalled { old, new, mut ring, .. } = journalled();
    let stream = bytes(&DESTROY.repeat(16_384));
    let memory = old.shared_memory(22, stream.len() as u64);
    memory.copy_in(0, &stream).unwrap();
    let commands = execute_streams(&[[22, 0, stream.len() as u32]]);
    let mut told = false;
    while old.is_current() {
        let head = ring.push(&commands);
        ring.wait(head);
        while let Some((message, _)) = old.channel.try_receive::<ToDevice>().unwrap() {
            assert_eq!(message, ToDevice::JournalFills);
            assert!(told || old.is_current(), "it is told before");
            told = true;
        }
    }
    assert!(told);
    old.checkpoint();
    let head = ring.push(&commands);
    ring.wait(head);
    assert!(old.is_current(), "there is room again");
    old.end();
    new.end();
}

#[test]
fn a_ring_that_waits_looks_whether_submissions_are_complete() {
    let Journalled { old, new, mut ring, .. } = journalled();
    let collected = || old.fake.collected.load(SeqCst);
    let head = ring.push(&DESTROY);
    ring.wait(head);
    assert_eq!(collected(), 0, "nothing is pending");
    old.status.progress().submits();
    ring.push(&DESTROY);
    let start = Instant::now();
    while collected() < 2 {
        assert!(start.elapsed() < LONG, "it looked {} times", collected());
        std::thread::sleep(Duration::from_millis(1));
    }
    old.end();
    new.end();
}

#[test]
fn a_journal_that_makes_no_sense_is_refused() {
    // A log of more entries than there is room for, and a log of a ring that does not exist.
    for (at, word) in [(16, u64::MAX), (8, 99)] {
        let Journalled { old, new, mut ring, checkpoint, journal, .. } = journalled();
        let head = ring.push(&DESTROY);
        ring.wait(head);
        old.end();
        let file = File::from(journal.try_clone().unwrap());
        file.write_all_at(&word.to_le_bytes(), at).unwrap();
        new.follows(checkpoint, &journal);
        new.expect_lost("journal");
        new.end();
    }
}
