//! A whole worker in this process: real channel, real threads and shared memory, with a fake in place of the host's driver.
//!
//! Commands are written as words, so that these tests do not depend on the encoder.

use super::*;
use crate::worker::backend::Contents;
use config::{
    CacheKey, ContextLimits, DepositId, DriverMapped, GpuChoice, MemoryBackEnd, MemoryId, MemoryTrial,
    Protection, Queues,
};
use parking_lot::Mutex;
use protocol::cursor::{Arena, Writer};
use protocol::ids::{ContextId, FenceId};
use protocol::venus::generated::Command;
use shm::{self, Mapping};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::Instant;
use vulkan::snapshot::step::{CacheData, Step};
use vulkan::snapshot::{Saved, SavedFile};
use vulkan::{
    Cancel, Cause, DriverError, Exported, Interrupted, Lease, Look, NotExported, Piece, StateQuery, Stop,
    WatchdogWake,
};

/// Answers vkEnumerateInstanceVersion and vkDestroyEvent; vkSetEvent blocks until it is set, cancelled or interrupted; vkResetEvent makes the context lost.
#[derive(Clone, Default)]
struct Fake {
    calls: Arc<AtomicU32>,
    blocked: Arc<AtomicBool>,
    fences: Arc<Mutex<Vec<(u8, Done)>>>,
    /// True when the blocked command is to go on.
    set: Arc<AtomicBool>,
    coming_up: Arc<AtomicBool>,
    destroyed: Arc<AtomicBool>,
    /// True if memory is lent; and the pieces that came back.
    lending: Arc<AtomicBool>,
    gone: Arc<Mutex<Vec<MemoryId>>>,
    /// The data of pipeline caches, if there are new ones.
    caches: Arc<Mutex<Option<Vec<CacheData>>>>,
    /// The steps that have brought such data.
    brought: Arc<Mutex<Vec<Step>>>,
    /// The reason why it cannot be handed over.
    stays: Arc<Mutex<Option<NotMovable>>>,
    /// The number of preludes that it has built up.
    preludes: Arc<AtomicU32>,
    /// The way in which its driver's memory was to get to a successor.
    carried: Arc<Mutex<Option<Carry>>>,
    /// The files of memory that it has.
    files: Arc<Mutex<Vec<Arc<MemoryFile>>>>,
    /// The contents of memory that only the driver uses.
    contents: Arc<Mutex<Vec<u8>>>,
    /// Nothing is made of the files that it is given.
    forgets: Arc<AtomicBool>,
    /// The commands of a journal that it has executed again.
    replayed: Arc<Mutex<Vec<Vec<u8>>>>,
    /// The number of looks for complete submissions.
    collected: Arc<AtomicU32>,
    /// The time for which a submission has run, as a look finds it.
    ran: Arc<Mutex<Option<Duration>>>,
    watchdog_wake: WatchdogWake,
}

/// The steps of a prelude.
const PRELUDE: [Step; 1] = [Step::Failures { owed: 0, lost: false, host_fences: false }];

/// A memory object whose pages are gone when the driver frees it.
const LENT: u64 = 9;

type Done = Box<dyn FnOnce() + Send>;

impl Backend for Fake {
    fn arena(&self) -> Arena {
        Arena::new(1 << 20)
    }

    fn execute<'a>(
        &self,
        command: &Command<'a>,
        bytes: &'a [u8],
        _: &'a Arena,
        cancel: &Cancel,
        reply: Option<&mut Writer<'_>>,
    ) -> Result<(), ContextLost> {
        self.calls.fetch_add(1, SeqCst);
        match command {
            Command::EnumerateInstanceVersion(_) => {
                assert_eq!(bytes.len(), 16);
                if let Some(writer) = reply {
                    [137, 0, 1, 0, 0x1234].into_iter().for_each(|word| writer.u32(word));
                }
                Ok(())
            }
            Command::DestroyEvent(_) => Ok(()),
            Command::SetEvent(_) | Command::SignalSemaphore(_) => {
                self.blocked.store(true, SeqCst);
                loop {
                    match cancel.stop() {
                        _ if self.set.load(SeqCst) => return Ok(()),
                        None => std::thread::sleep(Duration::from_millis(1)),
                        Some(Stop::Cancelled) => return Err(Cause::Ended.into()),
                        Some(Stop::Interrupted) => return Err(Interrupted.into()),
                    }
                }
            }
            _ => Err(DriverError::DeviceLost.into()),
        }
    }

    fn state_query(&self, _: &Command<'_>) -> Option<StateQuery<'_>> {
        None
    }

    fn record(&self, _: &[u8], _: &mut Arena, _: &Cancel) -> Result<usize, ContextLost> {
        Ok(0)
    }

    fn export(&self, memory: u64, size: u64, mappable: bool) -> Result<Exported, NotExported> {
        match memory {
            7 => Ok(Exported {
                file: mappable.then(|| {
                    Arc::new(MemoryFile::new(shm::create("test", size).unwrap(), Piece::uncounted()))
                }),
                cached: true,
                lent: None,
            }),
            LENT => {
                self.lending.store(true, SeqCst);
                let piece = Piece::new(MemoryId(LENT), Lease::new(|| ()));
                let anchors = (0..3).map(|_| shm::create("anchor", 4096).unwrap()).collect();
                let file = Some(Arc::new(MemoryFile::new(shm::create("test", size).unwrap(), piece)));
                Ok(Exported { file, cached: false, lent: Some(anchors) })
            }
            _ => Err(NotExported::NoMemory(memory)),
        }
    }

    fn blob_gone(&self, memory: MemoryId) {
        self.gone.lock().push(memory);
        self.lending.store(false, SeqCst);
    }

    fn is_lending(&self) -> bool {
        self.lending.load(SeqCst)
    }

    fn is_coming_up(&self) -> bool {
        self.coming_up.load(SeqCst)
    }

    fn queue_fence(&self, ring_idx: u8, done: Done) {
        self.fences.lock().push((ring_idx, done));
    }

    fn look(&self, restart: bool) -> Look {
        let mut ran = self.ran.lock();
        *ran = ran.map(|ran| if restart { Duration::ZERO } else { ran });
        Look { pending: ran.is_some(), running: *ran, ..Look::default() }
    }

    fn watchdog_wake(&self) -> &WatchdogWake {
        &self.watchdog_wake
    }

    fn has_driver(&self) -> bool {
        true
    }

    fn want_driver(&self) {}

    fn drain(&self, _: Duration) -> Result<(), NotMovable> {
        match &*self.stays.lock() {
            None => Ok(()),
            Some(stays) => Err(stays.clone()),
        }
    }

    fn save_prelude(&self, _: &Prelude, memory: Option<Carry>) -> Result<(Saved, Prelude), NotMovable> {
        *self.carried.lock() = memory;
        match &*self.stays.lock() {
            None => {
                Ok((Saved::new(PRELUDE.to_vec(), Vec::new(), memory.unwrap_or_default()), Prelude::default()))
            }
            Some(stays) => Err(stays.clone()),
        }
    }

    fn deposit_all(&self) {}

    fn save_cache_data(&self) -> Option<Vec<CacheData>> {
        self.caches.lock().clone()
    }

    fn save(&self, _: &Prelude, carry: Carry) -> Result<Saved, NotMovable> {
        *self.carried.lock() = Some(carry);
        let mut steps = vec![Step::Commands(self.calls.load(SeqCst).to_le_bytes().to_vec())];
        let bytes = self.contents.lock().len() as u64;
        steps.extend((bytes > 0).then(|| Step::Contents(vec![(1, bytes - 4096), (2, 4096)])));
        let file = |(id, file): (u64, &Arc<MemoryFile>)| match (carry, file.piece.memory) {
            (Carry::Deposited, None) => SavedFile::Deposited(DepositId(id)),
            _ => SavedFile::Here(Arc::clone(file)),
        };
        Ok(Saved::new(steps, (0..).zip(&*self.files.lock()).map(file).collect(), carry))
    }

    fn rebuild_ahead(&self, steps: &[Step], files: &[Arc<MemoryFile>]) -> Result<(), ContextLost> {
        self.rebuild(steps, files)
    }

    fn rebuild(&self, steps: &[Step], files: &[Arc<MemoryFile>]) -> Result<(), ContextLost> {
        if steps == PRELUDE {
            self.preludes.fetch_add(1, SeqCst);
            return Ok(());
        }
        let is_data = |step: &&Step| matches!(step, Step::CacheData(_));
        let (brought, steps) = steps.split_at(steps.iter().take_while(is_data).count());
        self.brought.lock().extend_from_slice(brought);
        let ([Step::Commands(calls)] | [Step::Commands(calls), Step::Contents(_)]) = steps else {
            return Err(ContextLost::rule("not these steps"));
        };
        let calls = calls.as_slice().try_into().map_err(|_| ContextLost::rule("no number"))?;
        self.calls.store(u32::from_le_bytes(calls), SeqCst);
        if !self.forgets.load(SeqCst) {
            *self.files.lock() = files.to_vec();
        }
        Ok(())
    }

    fn collect(&self) {
        self.collected.fetch_add(1, SeqCst);
    }

    fn replay(&self, entries: &[&[u8]]) -> Result<(), ContextLost> {
        self.replayed.lock().extend(entries.iter().map(|entry| entry.to_vec()));
        Ok(())
    }

    fn is_at_home(&self) -> bool {
        self.preludes.load(SeqCst) > 0
    }

    fn contents(&self, _: &[Step]) -> Result<Option<Box<dyn Contents>>, ContextLost> {
        let (contents, written) = (Arc::clone(&self.contents), VecDeque::new());
        let contents = FakeContents { contents, staging: None, written };
        Ok((contents.bytes() > 0).then(|| Box::new(contents) as _))
    }

    fn destroy_objects(&self) {
        self.destroyed.store(true, SeqCst);
    }
}

struct FakeContents {
    contents: Arc<Mutex<Vec<u8>>>,
    staging: Option<Mapping>,
    /// The parts that are still to be written.
    written: VecDeque<(Range<u64>, u64)>,
}

impl Contents for FakeContents {
    fn bytes(&self) -> u64 {
        self.contents.lock().len() as u64
    }

    fn stage(&mut self, file: &Arc<MemoryFile>, bytes: u64) -> Result<(), ContextLost> {
        let mapping = Mapping::new(file.as_ref(), bytes);
        self.staging = Some(mapping.map_err(|_| ContextLost::rule("too small a file"))?);
        Ok(())
    }

    fn read(&mut self, bytes: Range<u64>, staged_at: u64) -> Result<(), ContextLost> {
        let part = &self.contents.lock()[bytes.start as usize..bytes.end as usize];
        self.staging.as_ref().unwrap().copy_in(staged_at, part).unwrap();
        Ok(())
    }

    fn write(&mut self, bytes: Range<u64>, staged_at: u64) -> Result<(), ContextLost> {
        self.written.push_back((bytes, staged_at));
        assert!(self.written.len() <= 2, "few at a time");
        Ok(())
    }

    fn finish(&mut self) -> Result<(), ContextLost> {
        // Copies as late as a device may: the slot must be unchanged until now.
        if let Some((bytes, staged_at)) = self.written.pop_front() {
            let part = &mut self.contents.lock()[bytes.start as usize..bytes.end as usize];
            self.staging.as_ref().unwrap().copy_out(staged_at, part).unwrap();
        }
        Ok(())
    }
}

/// The device process' end of a worker.
struct Peer {
    channel: Channel,
    fake: Fake,
    thread: JoinHandle<()>,
    status: StatusPage,
}

impl Peer {
    fn start() -> Self {
        Self::killed_by(|| ())
    }

    fn killed_by(kill: fn()) -> Self {
        let fake = Fake::default();
        let backend = fake.clone();
        Self::of(fake, move |_| backend, kill)
    }

    /// Starts a worker with the back end that `backend` makes.
    fn of<B: Backend>(
        fake: Fake,
        backend: impl FnOnce(&Arc<Channel>) -> B + Send + 'static,
        kill: fn(),
    ) -> Self {
        let (channel, ours) = Channel::pair().unwrap();
        let setup = WorkerSetup {
            ctx_id: ContextId(1),
            debug_name: "test".into(),
            gpus: vec![GpuChoice {
                uuid: [0; 16],
                memory: MemoryBackEnd::Memfd,
                trial: MemoryTrial {
                    mappable_types: 0,
                    shareable: false,
                    driver_mapped: DriverMapped::default(),
                    exportable_types: 0,
                },
                queues: Queues::Compute,
                protection: Protection::default(),
            }],
            limits: ContextLimits { rings: 4, command_bytes: 1 << 20, ..ContextLimits::default() },
            cache_key: CacheKey([0; 32]),
            passage: None,
            waiting_off: Vec::new(),
            swapped_out: None,
        };
        let (status, file) = StatusPage::create().unwrap();
        status.set_limit(LIMIT);
        let page = StatusPage::open(&file).unwrap();
        let thread = std::thread::spawn(move || {
            let end = End { begins: || (), kill };
            let ours = Arc::new(ours);
            let driver = (backend(&ours), Vec::new());
            serve(&setup, page, Arc::clone(&ours), Arc::default(), Allowances::new(ours), driver, end);
        });
        let peer = Self { channel, fake, thread, status };
        assert_eq!(peer.answer(), ToDevice::Ready);
        peer
    }

    /// Returns the next message that is not about rings.
    fn answer(&self) -> ToDevice {
        let start = Instant::now();
        loop {
            match self.channel.try_receive().unwrap() {
                Some((ToDevice::RingBegins { .. } | ToDevice::RingEnds { .. }, _)) => continue,
                Some((answer, _)) => return answer,
                None => {}
            }
            assert!(start.elapsed() < LONG, "no answer");
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    fn expect_lost(&self, part: &str) {
        match self.answer() {
            ToDevice::Lost { reason, .. } => assert!(reason.contains(part), "{reason}"),
            other => panic!("{other:?}"),
        }
    }

    fn silent(&self) -> bool {
        std::thread::sleep(Duration::from_millis(30));
        self.channel.try_receive::<ToDevice>().unwrap().is_none()
    }

    fn shared_memory(&self, id: u32, size: u64) -> Arc<Mapping> {
        let file = shm::create("test", size).unwrap();
        self.attach(id, &file, size, ResourceKind::SharedMemory);
        Arc::new(Mapping::new(&file, size).unwrap())
    }

    fn attach(&self, id: u32, file: &OwnedFd, size: u64, kind: ResourceKind) {
        let message = ToWorker::AttachResource { resource_id: ResourceId(id), size, kind };
        self.channel.send(&message, Some(file.as_fd())).unwrap();
    }

    fn submit_bytes(&self, inline: Vec<u8>, fence: Option<Fence>) {
        self.channel.send(&ToWorker::Submit { size: inline.len() as u32, inline, fence }, None).unwrap();
    }

    fn submit(&self, words: &[u32], fence: Option<Fence>) {
        self.submit_bytes(bytes(words), fence);
    }

    /// Submits these words, and waits until they are executed.
    fn submit_and_wait(&self, words: &[u32]) {
        self.submit(words, Some(fence(0, 999)));
        assert_eq!(self.answer(), ToDevice::FenceSignalled(fence(0, 999)));
    }

    fn end(self) {
        drop(self.channel);
        let start = Instant::now();
        while !self.thread.is_finished() {
            assert!(start.elapsed() < LONG, "worker does not end");
            std::thread::sleep(Duration::from_millis(1));
        }
        self.thread.join().unwrap();
        assert!(self.fake.destroyed.load(SeqCst));
    }
}

/// The driver's side of a ring: buffer of 1024 bytes at 192 in its own resource.
struct GuestRing {
    memory: Arc<Mapping>,
    tail: u32,
}

impl GuestRing {
    fn create(peer: &Peer, id: u32, resource: u32) -> Self {
        let memory = peer.shared_memory(resource, 4096);
        peer.submit_and_wait(&create_ring(id, resource));
        Self { memory, tail: 0 }
    }

    fn push(&mut self, words: &[u32]) -> u32 {
        for word in words {
            let at = 192 + u64::from(self.tail % 1024);
            self.memory.copy_in(at, &word.to_le_bytes()).unwrap();
            self.tail = self.tail.wrapping_add(4);
        }
        self.word(64).store(self.tail, SeqCst);
        self.tail
    }

    fn word(&self, at: u64) -> shm::Word {
        self.memory.word(at).unwrap()
    }

    fn wait(&self, head: u32) {
        let start = Instant::now();
        while self.word(0).load(SeqCst) != head {
            assert!(start.elapsed() < LONG, "head stays at {}", self.word(0).load(SeqCst));
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    fn is_fatal(&self) -> bool {
        self.word(128).load(SeqCst) & 2 != 0
    }
}

/// The time for which a submission may run.
const LIMIT: Duration = Duration::from_secs(1);
/// The longest time that a test waits; a worker that takes longer hangs.
const LONG: Duration = Duration::from_secs(300);
const VERSION: [u32; 4] = [137, 0, 1, 0];
const VERSION_WITH_REPLY: [u32; 4] = [137, 1, 1, 0];
const DESTROY: [u32; 8] = [43, 0, 1, 0, 2, 0, 0, 0];
const BLOCK: [u32; 6] = [45, 0, 1, 0, 2, 0];
/// vkSignalSemaphore, which blocks as well.
const SIGNAL: [u32; 13] = [174, 0, 1, 0, 1, 0, 1_000_207_005, 0, 0, 2, 0, 7, 0];
const LOSE: [u32; 6] = [46, 0, 1, 0, 2, 0];

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn fence(ring_idx: u8, fence_id: u64) -> Fence {
    Fence { ring_idx: RingIdx(ring_idx), fence_id: FenceId(fence_id) }
}

/// Returns vkCreateRingMESA with a monitor of 30 ms and an idle timeout of 1 ms.
fn create_ring(id: u32, resource: u32) -> Vec<u32> {
    let info = [1_000_384_000, 1, 0, 1_000_384_006, 0, 0, 30_000, 0, resource];
    let sizes = [0u64, 4096, 1_000_000, 0, 64, 128, 192, 1024, 192 + 1024, 4];
    let sizes = sizes.iter().flat_map(|size| [*size as u32, 0]);
    [188, 0, id, 0, 1, 0].into_iter().chain(info).chain(sizes).collect()
}

fn destroy_ring(id: u32) -> [u32; 4] {
    [189, 0, id, 0]
}

fn set_reply(resource: u32, offset: u32, size: u32) -> [u32; 9] {
    [178, 0, 1, 0, resource, offset, 0, size, 0]
}

fn execute_streams(streams: &[[u32; 3]]) -> Vec<u32> {
    let count = streams.len() as u32;
    let streams = streams.iter().flat_map(|[resource, offset, size]| [*resource, *offset, 0, *size, 0]);
    [180, 0, count, count, 0].into_iter().chain(streams).chain([0, 0, 0, 0, 0, 0]).collect()
}

fn submit_seqno(ring: u32, seqno: u32) -> [u32; 6] {
    [251, 0, ring, 0, seqno, 0]
}

fn wait_virtqueue(seqno: u32) -> [u32; 4] {
    [252, 0, seqno, 0]
}

fn wait_ring(ring: u32, seqno: u32) -> [u32; 6] {
    [253, 0, ring, 0, seqno, 0]
}

#[test]
fn a_command_on_a_ring_leaves_its_reply_in_the_window_before_the_head_moves() {
    let peer = Peer::start();
    let replies = peer.shared_memory(20, 4096);
    let mut ring = GuestRing::create(&peer, 5, 10);
    for round in 1..=200u32 {
        let offset = 4 * round;
        ring.push(&set_reply(20, offset, 20));
        let head = ring.push(&VERSION_WITH_REPLY);
        ring.wait(head);
        let mut reply = [0; 20];
        replies.copy_out(offset.into(), &mut reply).unwrap();
        assert_eq!(reply.as_slice(), bytes(&[137, 0, 1, 0, 0x1234]));
        replies.copy_in(offset.into(), &[0; 20]).unwrap();
    }
    assert_eq!(peer.fake.calls.load(SeqCst), 200);
    let status = ring.word(128);
    status.clear_bits(4, SeqCst);
    let start = Instant::now();
    while status.load(SeqCst) & 4 == 0 {
        assert!(start.elapsed() < LONG, "ring is not reported alive");
        std::thread::sleep(Duration::from_millis(1));
    }
    peer.end();
}

#[test]
fn a_ring_that_waits_in_the_driver_is_alive() {
    let peer = Peer::start();
    let mut ring = GuestRing::create(&peer, 5, 1);
    ring.push(&BLOCK);
    let start = Instant::now();
    while !peer.fake.blocked.load(SeqCst) {
        assert!(start.elapsed() < LONG, "the driver is not asked");
        std::thread::sleep(Duration::from_millis(1));
    }
    // Mesa clears the bit and looks whether it is set again.
    for _ in 0..3 {
        ring.word(128).store(0, SeqCst);
        let start = Instant::now();
        while ring.word(128).load(SeqCst) & 4 == 0 {
            assert!(start.elapsed() < LONG, "nobody is there");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    assert!(peer.silent());
    assert!(peer.fake.blocked.load(SeqCst));
    peer.end();
}

#[test]
fn a_driver_that_refuses_loses_the_context_with_its_reason() {
    let peer = Peer::start();
    let mut ring = GuestRing::create(&peer, 5, 1);
    ring.push(&LOSE);
    peer.expect_lost("device was lost");
    assert!(ring.is_fatal());
    peer.end();
}

#[test]
fn a_worker_whose_driver_comes_up_is_killed_at_its_end() {
    static KILLED: AtomicBool = AtomicBool::new(false);
    for coming_up in [false, true] {
        let peer = Peer::killed_by(|| KILLED.store(true, SeqCst));
        peer.fake.coming_up.store(coming_up, SeqCst);
        peer.end();
        assert_eq!(KILLED.load(SeqCst), coming_up);
    }
}

#[test]
fn fences_are_answered_after_execution_and_in_order_per_timeline() {
    let peer = Peer::start();
    peer.submit(&[], Some(fence(0, 1)));
    assert_eq!(peer.answer(), ToDevice::FenceSignalled(fence(0, 1)));
    peer.submit(&VERSION, Some(fence(3, 2)));
    peer.submit(&[], Some(fence(3, 3)));
    peer.submit_and_wait(&[]);
    let mut queued = std::mem::take(&mut *peer.fake.fences.lock());
    assert_eq!(queued.iter().map(|(ring_idx, _)| *ring_idx).collect::<Vec<_>>(), [3, 3]);
    (queued.pop().unwrap().1)();
    assert!(peer.silent());
    (queued.pop().unwrap().1)();
    assert_eq!(peer.answer(), ToDevice::FenceSignalled(fence(3, 2)));
    assert_eq!(peer.answer(), ToDevice::FenceSignalled(fence(3, 3)));
    peer.submit(&VERSION, None);
    assert!(peer.silent(), "an answer to a submission without a fence");
    peer.end();
}

#[test]
fn a_large_submission_comes_in_a_file() {
    let peer = Peer::start();
    let stream: Vec<u8> = VERSION.repeat(10_000).iter().flat_map(|word| word.to_le_bytes()).collect();
    let file = shm::create("test", stream.len() as u64).unwrap();
    File::from(file.try_clone().unwrap()).write_all_at(&stream, 0).unwrap();
    let message =
        ToWorker::Submit { size: stream.len() as u32, inline: Vec::new(), fence: Some(fence(0, 1)) };
    peer.channel.send(&message, Some(file.as_fd())).unwrap();
    assert_eq!(peer.answer(), ToDevice::FenceSignalled(fence(0, 1)));
    assert_eq!(peer.fake.calls.load(SeqCst), 10_000);
    peer.end();
}

#[test]
fn a_broken_ring_loses_the_context_and_every_fence_is_answered() {
    for broken in [&[0xdead_beef, 0][..], &LOSE, &VERSION[..3], &create_ring(9, 10)] {
        let peer = Peer::start();
        let mut first = GuestRing::create(&peer, 1, 10);
        let second = GuestRing::create(&peer, 2, 11);
        peer.submit(&VERSION, Some(fence(1, 7)));
        while peer.fake.calls.load(SeqCst) == 0 {
            std::thread::yield_now();
        }
        first.push(broken);
        peer.expect_lost("");
        assert_eq!(peer.answer(), ToDevice::FenceSignalled(fence(1, 7)));
        assert!(first.is_fatal() && second.is_fatal());
        peer.submit(&VERSION, Some(fence(2, 8)));
        assert_eq!(peer.answer(), ToDevice::FenceSignalled(fence(2, 8)));
        let export = ToWorker::ExportBlob {
            resource_id: ResourceId(3),
            blob_id: BlobId(7),
            size: 4096,
            mappable: true,
        };
        peer.channel.send(&export, None).unwrap();
        assert!(matches!(peer.answer(), ToDevice::BlobRefused { .. }));
        for (_, done) in std::mem::take(&mut *peer.fake.fences.lock()) {
            done();
        }
        assert!(peer.silent(), "a fence was answered twice");
        peer.end();
    }
}

#[test]
fn virtqueue_and_ring_wait_for_each_other() {
    let peer = Peer::start();
    let mut ring = GuestRing::create(&peer, 1, 10);
    for seqno in 1..=100 {
        ring.push(&wait_virtqueue(seqno));
        let before = peer.fake.calls.load(SeqCst);
        let head = ring.push(&VERSION);
        if seqno % 10 == 1 {
            std::thread::sleep(Duration::from_millis(3));
            assert_eq!(peer.fake.calls.load(SeqCst), before, "ring did not wait");
        }
        peer.submit(&submit_seqno(1, seqno), None);
        peer.submit(&wait_ring(1, head), Some(fence(0, seqno.into())));
        assert_eq!(peer.answer(), ToDevice::FenceSignalled(fence(0, seqno.into())));
        assert_eq!(peer.fake.calls.load(SeqCst), before + 1, "virtqueue did not wait");
    }
    peer.end();
}

#[test]
fn a_ring_blocked_in_the_driver_can_be_destroyed_and_made_again() {
    let peer = Peer::start();
    for round in 0..3 {
        let mut ring = GuestRing::create(&peer, 1, 10);
        let head = ring.push(&VERSION);
        ring.wait(head);
        let blocking = if round == 2 { wait_virtqueue(1_000).to_vec() } else { BLOCK.to_vec() };
        ring.push(&blocking);
        while round != 2 && !peer.fake.blocked.swap(false, SeqCst) {
            std::thread::yield_now();
        }
        peer.submit_and_wait(&destroy_ring(1));
        ring.word(128).store(0, SeqCst);
        std::thread::sleep(Duration::from_millis(60));
        assert_eq!(ring.word(128).load(SeqCst), 0, "memory of a destroyed ring was touched");
        assert!(!ring.is_fatal());
    }
    peer.end();
}

#[test]
fn commands_out_of_place_lose_the_context() {
    for (words, part) in [
        (wait_virtqueue(1).to_vec(), "no place"),
        (wait_ring(1, 4).to_vec(), "a seqno"),
        (wait_ring(2, 0).to_vec(), "no such ring"),
        (destroy_ring(2).to_vec(), "no such ring"),
        (create_ring(1, 11), "exists"),
        (create_ring(2, 10), "not 0"),
        (create_ring(0, 11), "without an id"),
        (create_ring(2, 12), "not attached"),
        (vec![190, 0, 2, 0, 0, 0], "no such ring"),
        (vec![191, 0, 1, 0, 4, 0, 1], "extra"),
        (set_reply(10, 4095, 2).to_vec(), "reply stream"),
        (vec![179, 0, 1, 0], "reply stream"),
        (VERSION_WITH_REPLY.to_vec(), "reply"),
        ([&set_reply(10, 2048, 16)[..], &VERSION_WITH_REPLY].concat(), "reply"),
        (execute_streams(&[]), "without streams"),
        (execute_streams(&[[10, 4092, 8]]), "command stream"),
        (execute_streams(&[[10, 2048, 6]]), "command stream"),
        (execute_streams(&[[10, 0, 0xffff_fffc]]), "command stream"),
        (execute_streams(&[[10, 2048, 2048]; 513]), "command_bytes"),
    ] {
        let peer = Peer::start();
        let ring = GuestRing::create(&peer, 1, 10);
        peer.shared_memory(11, 4096);
        peer.submit(&words, Some(fence(0, 1)));
        peer.expect_lost(part);
        assert_eq!(peer.answer(), ToDevice::FenceSignalled(fence(0, 1)));
        assert!(ring.is_fatal());
        let mut beyond = [0; 64];
        ring.memory.copy_out(2048, &mut beyond).unwrap();
        assert_eq!(beyond, [0; 64], "a reply was written where none fits");
        peer.end();
    }
}

#[test]
fn too_many_rings_lose_the_context() {
    let peer = Peer::start();
    let _rings: Vec<_> = (1..=4).map(|id| GuestRing::create(&peer, id, 10 + id)).collect();
    peer.shared_memory(15, 4096);
    peer.submit(&create_ring(5, 15), None);
    peer.expect_lost("rings (4)");
    peer.end();
}

#[test]
fn indirect_streams_are_executed_one_behind_the_other() {
    let peer = Peer::start();
    let (a, b) = (peer.shared_memory(20, 4096), peer.shared_memory(21, 4096));
    let mut ring = GuestRing::create(&peer, 1, 10);
    let commands = bytes(&VERSION.repeat(3));
    a.copy_in(100, &commands[..20]).unwrap();
    b.copy_in(0, &commands[20..]).unwrap();
    ring.push(&execute_streams(&[[20, 100, 20], [21, 0, 28]]));
    let head = ring.push(&VERSION);
    ring.wait(head);
    assert_eq!(peer.fake.calls.load(SeqCst), 4);
    a.copy_in(0, &bytes(&execute_streams(&[[21, 0, 4]]))).unwrap();
    ring.push(&execute_streams(&[[20, 0, 64]]));
    peer.expect_lost("nested");
    peer.end();
}

#[test]
fn a_ring_may_overtake_the_message_about_a_resource_it_names() {
    let peer = Peer::start();
    let mut ring = GuestRing::create(&peer, 1, 10);
    ring.push(&set_reply(20, 0, 20));
    let head = ring.push(&VERSION_WITH_REPLY);
    peer.submit(&wait_ring(1, head), Some(fence(0, 1)));
    std::thread::sleep(Duration::from_millis(20));
    let replies = peer.shared_memory(20, 4096);
    assert_eq!(peer.answer(), ToDevice::FenceSignalled(fence(0, 1)));
    assert_eq!(replies.word(16).unwrap().load(SeqCst), 0x1234);
    peer.channel.send(&ToWorker::DetachResource { resource_id: ResourceId(20) }, None).unwrap();
    peer.submit(&set_reply(20, 0, 20), None);
    peer.expect_lost("not attached");
    peer.end();
}

#[test]
fn blobs_are_exported_and_refused_but_carry_no_streams() {
    let peer = Peer::start();
    let export = |resource_id, blob_id, mappable| {
        let (resource_id, blob_id) = (ResourceId(resource_id), BlobId(blob_id));
        peer.channel
            .send(&ToWorker::ExportBlob { resource_id, blob_id, size: 8192, mappable }, None)
            .unwrap();
        peer.channel.receive::<ToDevice>().unwrap()
    };
    let (answer, fd) = export(30, 7, true);
    assert_eq!(
        answer,
        ToDevice::BlobExported { resource_id: ResourceId(30), map_info: MapInfo::Cached, memory: None }
    );
    assert_eq!(Mapping::new(fd.unwrap(), 8192).unwrap().len(), 8192);
    assert!(export(31, 7, false).1.is_none());
    assert!(matches!(export(32, 8, true), (ToDevice::BlobRefused { .. }, None)));
    peer.submit(&set_reply(30, 0, 16), None);
    peer.expect_lost("not shared memory");
    peer.end();
}

impl Peer {
    /// Has a blob made of memory that the worker lends.
    fn borrow(&self) {
        let (resource_id, blob_id) = (ResourceId(30), BlobId(LENT));
        let export = ToWorker::ExportBlob { resource_id, blob_id, size: 8192, mappable: true };
        self.channel.send(&export, None).unwrap();
        for left in [2, 1, 0] {
            let (message, fd) = self.channel.receive::<ToDevice>().unwrap();
            assert!(message == ToDevice::Anchor { left } && fd.is_some(), "{message:?}");
        }
        let memory = Some(MemoryId(LENT));
        let exported = ToDevice::BlobExported { resource_id, map_info: MapInfo::WriteCombined, memory };
        assert_eq!(self.answer(), exported);
    }
}

#[test]
fn what_keeps_lent_memory_alive_goes_ahead_of_it_and_it_comes_back_at_once() {
    let peer = Peer::start();
    peer.borrow();
    // Memory goes back ahead of a stream that waits.
    let blocked = GuestRing::create(&peer, 1, 10);
    peer.submit(&wait_ring(1, 100), None);
    peer.channel.send(&ToWorker::BlobGone { memory: MemoryId(LENT) }, None).unwrap();
    let start = Instant::now();
    while peer.fake.gone.lock().is_empty() {
        assert!(start.elapsed() < LONG, "nobody is told");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(*peer.fake.gone.lock(), [MemoryId(LENT)]);
    drop(blocked);
    peer.end();
}

#[test]
fn a_worker_that_lends_frees_nothing_at_its_end() {
    let peer = Peer::start();
    peer.borrow();
    let Peer { channel, fake, thread, .. } = peer;
    drop(channel);
    thread.join().unwrap();
    assert!(!fake.destroyed.load(SeqCst));
}

#[test]
fn the_end_of_the_channel_ends_everything_that_waits() {
    for on_virtqueue in [&[][..], &[(253, 1)], &[(253, 2)]] {
        let peer = Peer::start();
        let mut blocked = GuestRing::create(&peer, 1, 10);
        let mut waiting = GuestRing::create(&peer, 2, 11);
        let blocked_head = blocked.push(&BLOCK);
        let waiting_head = waiting.push(&wait_virtqueue(1));
        while !peer.fake.blocked.load(SeqCst) {
            std::thread::yield_now();
        }
        for (_, ring) in on_virtqueue {
            let head = if *ring == 1 { blocked_head } else { waiting_head };
            peer.submit(&wait_ring(*ring, head), Some(fence(0, 1)));
        }
        std::thread::sleep(Duration::from_millis(20));
        peer.end();
    }
}

#[test]
fn random_submissions_never_panic_and_always_answer_their_fences() {
    let mut seed = 0x2545_f491_4f6c_dd1du64;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let templates: Vec<Vec<u32>> = vec![
        create_ring(1, 10),
        execute_streams(&[[10, 1024, 64]]),
        set_reply(10, 2048, 64).to_vec(),
        VERSION_WITH_REPLY.to_vec(),
        wait_ring(1, 0).to_vec(),
        submit_seqno(1, 1).to_vec(),
        destroy_ring(1).to_vec(),
        vec![190, 0, 1, 0, 0, 0],
    ];
    for _ in 0..150 {
        let peer = Peer::start();
        let memory = peer.shared_memory(10, 4096);
        for id in 0..8 {
            let mut words = templates[random() as usize % templates.len()].clone();
            if random() % 3 == 0 {
                let at = random() as usize % words.len();
                words[at] = random() as u32 >> (random() % 32);
            }
            let word = (random() as u32).to_le_bytes();
            memory.copy_in(random() % 1024 * 4, &word).unwrap();
            let mut bytes = bytes(&words);
            if random() % 8 == 0 {
                bytes.truncate(random() as usize % bytes.len());
            }
            peer.submit_bytes(bytes, Some(fence(0, id)));
        }
        for id in 0..8 {
            let answer = match peer.answer() {
                ToDevice::Lost { .. } => peer.answer(),
                other => other,
            };
            assert_eq!(answer, ToDevice::FenceSignalled(fence(0, id)));
        }
        peer.end();
    }
}

#[test]
fn a_submission_that_runs_too_long_ends_the_context_and_what_it_did_is_told() {
    let peer = Peer::start();
    let ring = GuestRing::create(&peer, 1, 1);
    peer.submit(&VERSION, Some(fence(1, 5)));
    *peer.fake.ran.lock() = Some(LIMIT);
    peer.fake.watchdog_wake.wake();
    assert_eq!(peer.answer(), ToDevice::Hung { limit: LIMIT });
    assert!(peer.status.running() >= Some(LIMIT));
    peer.expect_lost("has ended");
    assert_eq!(peer.answer(), ToDevice::FenceSignalled(fence(1, 5)));
    assert!(ring.is_fatal());
    peer.end();
}

#[test]
fn a_submission_whose_time_begins_anew_is_left_alone_and_a_shorter_limit_holds_at_once() {
    let peer = Peer::start();
    *peer.fake.ran.lock() = Some(LIMIT / 2);
    peer.fake.watchdog_wake.wake();
    let told = |running| {
        let start = Instant::now();
        while peer.status.running() != Some(running) {
            assert!(start.elapsed() < LONG, "told {:?}", peer.status.running());
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    told(LIMIT / 2);
    peer.status.restart();
    told(Duration::ZERO);
    assert!(peer.silent());
    *peer.fake.ran.lock() = Some(LIMIT / 2);
    peer.status.set_limit(Duration::from_millis(100));
    assert_eq!(peer.answer(), ToDevice::Hung { limit: Duration::from_millis(100) });
    peer.end();
}

#[path = "checkpoint_tests.rs"]
mod checkpoint;
#[path = "handover_tests.rs"]
mod handover;
#[path = "swapped_out_tests.rs"]
mod swapped_out;
