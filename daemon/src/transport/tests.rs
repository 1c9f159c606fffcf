//! Tests of queues over real guest memory, with the driver's side written by hand.

use super::PendingResponse;
use super::memory::Memory;
use super::regions::{Region, Regions};
use super::vring::{NoRequest, Vring};
use protocol::virtio_gpu::{CommandType, Header, Response};
use std::fs::File;
use std::io::Read;
use std::sync::Arc;
use std::time::Instant;
use virtio_bindings::virtio_ring::{VRING_DESC_F_INDIRECT, VRING_DESC_F_NEXT, VRING_DESC_F_WRITE};
use virtio_queue::desc::split::Descriptor;
use vm_memory::{Bytes, GuestAddress, GuestMemoryAtomic, GuestRegionMmap, MmapRegion};

const QUEUE_SIZE: u16 = 16;
const LIMIT: usize = 4096;
/// The place of requests and answers; the queue lies at the start of memory.
const REQUEST: u64 = 0x1_0000;
const ANSWER: u64 = 0x2_0000;
const TABLE: u64 = 0x3_0000;
const NOWHERE: u64 = 0x100_0000;

const NEXT: u16 = VRING_DESC_F_NEXT as u16;
const WRITE: u16 = VRING_DESC_F_WRITE as u16;
const INDIRECT: u16 = VRING_DESC_F_INDIRECT as u16;

/// A request of 32 bytes: CTX_DESTROY for context 5 with fence 9 on ring 2, and eight more.
fn request() -> Vec<u8> {
    let mut bytes = vec![0; 32];
    bytes[..4].copy_from_slice(&0x201u32.to_le_bytes());
    bytes[4] = 3;
    bytes[8] = 9;
    bytes[16] = 5;
    bytes[20] = 2;
    bytes[24..].fill(0xaa);
    bytes
}

struct Rig {
    memory: Regions,
    /// Descriptor table, available ring and used ring.
    queue: [GuestAddress; 3],
    vring: Arc<Vring>,
    call: File,
}

impl Rig {
    /// A running queue with EVENT_IDX as given.
    fn new(event_idx: bool) -> Self {
        let pages = MmapRegion::new(0x10_0000).unwrap();
        let region = GuestRegionMmap::new(pages, GuestAddress(0)).unwrap();
        let region = Arc::new(Region::new(region).unwrap());
        let memory = Regions::default().with(region).unwrap();
        let shared: Memory = GuestMemoryAtomic::new(memory.clone());
        let vring = Arc::new(Vring::new(shared));
        assert!(vring.set_size(u32::from(QUEUE_SIZE)));
        let call = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
        let call = File::from(call);
        vring.set_event_idx(event_idx);
        // The places are chosen by hand, because the rings of virtio-queue's mock overlap.
        let queue = [0, 0x1000, 0x2000].map(GuestAddress);
        let rig = Self { memory, queue, vring, call };
        assert!(rig.vring.set_addresses(queue[0].0, queue[1].0, queue[2].0));
        rig.vring.set_base(0, false);
        rig.run();
        rig.memory.write_slice(&request(), GuestAddress(REQUEST)).unwrap();
        rig
    }

    fn run(&self) {
        self.vring.set_call(Some(self.call.try_clone().unwrap()));
        self.vring.start();
        self.vring.set_enabled(true);
    }

    /// Makes chains available, each ended by a descriptor without `NEXT`, from descriptor 0 on.
    fn offer(&self, descriptors: &[(u64, u32, u16)]) {
        let [table, available, _] = self.queue;
        let (mut heads, mut at_head) = (0, true);
        for (at, (addr, len, flags)) in (0..).zip(descriptors) {
            let descriptor = Descriptor::new(*addr, *len, *flags, at + 1);
            self.memory.write_obj(descriptor, GuestAddress(table.0 + 16 * u64::from(at))).unwrap();
            if at_head {
                self.memory.write_obj(at.to_le(), GuestAddress(available.0 + 4 + 2 * heads)).unwrap();
                heads += 1;
            }
            at_head = flags & NEXT == 0;
        }
        self.set_available(heads as u16);
    }

    fn set_available(&self, index: u16) {
        self.memory.write_obj(index.to_le(), GuestAddress(self.queue[1].0 + 2)).unwrap();
    }

    fn pop(&self, generation: u32) -> (Result<PendingResponse, NoRequest>, Vec<u8>) {
        let mut bytes = vec![1, 2, 3];
        (self.vring.pop(generation, LIMIT, &mut bytes), bytes)
    }

    /// Returns the used ring's index, and head and length of its first entry.
    fn used(&self) -> (u16, u32, u32) {
        let [.., used] = self.queue;
        let word = |offset| self.memory.read_obj::<u32>(GuestAddress(used.0 + offset)).unwrap();
        ((word(0) >> 16) as u16, word(4), word(8))
    }

    fn answer(&self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read_slice(&mut bytes, GuestAddress(ANSWER)).unwrap();
        bytes
    }

    fn calls(&mut self) -> u64 {
        let mut counter = [0; 8];
        self.call.read_exact(&mut counter).map_or(0, |()| u64::from_ne_bytes(counter))
    }
}

const SIMPLE: [(u64, u32, u16); 2] = [(REQUEST, 32, NEXT), (ANSWER, 24, WRITE)];

fn taken((popped, bytes): (Result<PendingResponse, NoRequest>, Vec<u8>)) -> (PendingResponse, Vec<u8>) {
    match popped {
        Ok(pending) => (pending, bytes),
        other => panic!("no request but {other:?}"),
    }
}

#[test]
fn a_request_is_read_and_its_answer_echoes_the_header() {
    let mut rig = Rig::new(false);
    rig.offer(&SIMPLE);
    let (pending, bytes) = taken(rig.pop(0));
    assert_eq!(bytes, request());
    let header = pending.header().unwrap();
    assert_eq!((header.command, header.ctx_id), (CommandType::CTX_DESTROY, 5));
    assert!(matches!(rig.pop(0).0, Err(NoRequest::Empty)));
    assert_eq!(rig.used().0, 0);
    pending.respond(&Response::OkNodata);
    let mut expected = request();
    expected[..4].copy_from_slice(&0x1100u32.to_le_bytes());
    assert_eq!(rig.answer(24), expected[..24]);
    assert_eq!(rig.used(), (1, 0, 24));
    assert_eq!(rig.calls(), 0, "the driver is told once for all");
    rig.vring.signal();
    rig.vring.signal();
    assert_eq!(rig.calls(), 1);
    assert_eq!(rig.vring.unanswered(), 0);
}

#[test]
fn pieces_and_indirect_tables_make_one_request() {
    let rig = Rig::new(false);
    rig.offer(&[
        (REQUEST, 5, NEXT),
        (REQUEST + 5, 27, NEXT),
        (ANSWER, 7, WRITE | NEXT),
        (ANSWER + 7, 50, WRITE),
    ]);
    let (pending, bytes) = taken(rig.pop(0));
    assert_eq!(bytes, request());
    pending.respond(&Response::OkNodata);
    assert_eq!(rig.used(), (1, 0, 24));
    assert_eq!(rig.answer(24)[..4], 0x1100u32.to_le_bytes());

    let rig = Rig::new(false);
    for (at, (addr, len, flags)) in SIMPLE.iter().enumerate() {
        let descriptor = Descriptor::new(*addr, *len, *flags, 1);
        rig.memory.write_obj(descriptor, GuestAddress(TABLE + 16 * at as u64)).unwrap();
    }
    rig.offer(&[(TABLE, 32, INDIRECT)]);
    let (pending, bytes) = taken(rig.pop(0));
    assert_eq!(bytes, request());
    pending.respond(&Response::OkNodata);
    assert_eq!(rig.used(), (1, 0, 24));
}

/// A queue of 16 descriptors: the requests of one context may hold 14 of them.
#[test]
fn a_queue_is_crowded_when_open_requests_hold_nearly_all_descriptors() {
    let rig = Rig::new(false);
    rig.offer(&SIMPLE.repeat(8));
    let mut open: Vec<_> = (0..7).map(|_| taken(rig.pop(0)).0).collect();
    assert!(!rig.vring.is_crowded());
    open.push(taken(rig.pop(0)).0);
    assert!(rig.vring.is_crowded());
    open.remove(0).respond(&Response::OkNodata);
    assert!(!rig.vring.is_crowded());

    // An indirect table of the driver takes one descriptor of the queue's table.
    let rig = Rig::new(false);
    rig.vring.set_indirect(true);
    for (at, (addr, len, flags)) in SIMPLE.iter().enumerate() {
        let descriptor = Descriptor::new(*addr, *len, *flags, 1);
        rig.memory.write_obj(descriptor, GuestAddress(TABLE + 16 * at as u64)).unwrap();
    }
    rig.offer(&[(TABLE, 32, INDIRECT); 15]);
    let mut open: Vec<_> = (0..14).map(|_| taken(rig.pop(0)).0).collect();
    assert!(!rig.vring.is_crowded());
    open.push(taken(rig.pop(0)).0);
    assert!(rig.vring.is_crowded());
    rig.vring.set_base(0, true);
    assert!(!rig.vring.is_crowded(), "a reset takes them back");
}

#[test]
fn a_cursor_request_has_no_room_for_an_answer_and_is_just_returned() {
    let rig = Rig::new(false);
    rig.offer(&[(REQUEST, 32, 0)]);
    let (pending, _) = taken(rig.pop(0));
    pending.respond(&Response::OkNodata);
    assert_eq!(rig.used(), (1, 0, 0));
}

#[test]
fn too_much_is_not_copied_and_what_is_not_there_ends_the_request() {
    let rig = Rig::new(false);
    rig.offer(&[(REQUEST, 0x8000, NEXT), (REQUEST, 0x8000, NEXT), (ANSWER, 24, WRITE)]);
    let (pending, bytes) = taken(rig.pop(0));
    assert_eq!(bytes.len(), LIMIT);
    pending.respond(&Response::OkNodata);

    let rig = Rig::new(false);
    rig.offer(&[(REQUEST, 32, NEXT), (NOWHERE, 32, NEXT), (REQUEST, 32, NEXT), (ANSWER, 24, WRITE)]);
    let (pending, bytes) = taken(rig.pop(0));
    assert_eq!(bytes, request());
    pending.respond(&Response::OkNodata);
    assert_eq!(rig.used(), (1, 0, 24));

    let rig = Rig::new(false);
    rig.offer(&[(REQUEST, 32, NEXT), (NOWHERE, 24, WRITE)]);
    taken(rig.pop(0)).0.respond(&Response::OkNodata);
    assert_eq!(rig.used(), (1, 0, 0), "an answer without a place is lost, the chain is not");

    let rig = Rig::new(false);
    rig.offer(&[(REQUEST, 23, NEXT), (ANSWER, 24, WRITE)]);
    let (pending, _) = taken(rig.pop(0));
    assert_eq!(pending.header(), None::<Header>);
    pending.respond(&Response::OkNodata);
    assert_eq!(rig.used(), (1, 0, 0));
}

/// A logger that keeps the errors of each thread.
struct ErrorLog;

thread_local! {
    static ERRORS: std::cell::RefCell<Vec<String>> = const { std::cell::RefCell::new(Vec::new()) };
}

impl log::Log for ErrorLog {
    fn enabled(&self, _: &log::Metadata) -> bool {
        true
    }

    fn log(&self, record: &log::Record) {
        ERRORS.with_borrow_mut(|errors| errors.push(record.args().to_string()));
    }

    fn flush(&self) {}
}

#[test]
fn a_dropped_request_is_answered_and_counted_and_the_first_is_logged() {
    log::set_logger(&ErrorLog).expect("no other test takes the log");
    log::set_max_level(log::LevelFilter::Error);
    let rig = Rig::new(false);
    rig.offer(&[SIMPLE, SIMPLE].concat());
    for dropped in 1..=2 {
        drop(taken(rig.pop(0)));
        assert_eq!(rig.used().0, dropped);
        assert_eq!(rig.answer(24)[..4], 0x1200u32.to_le_bytes());
        assert_eq!(rig.vring.unanswered(), u64::from(dropped));
        assert_eq!(ERRORS.with_borrow(Vec::len), 1);
    }
    assert!(ERRORS.with_borrow(|errors| errors[0].contains("dropped unanswered")));
}

#[test]
fn an_index_that_jumps_breaks_the_queue_until_it_is_reset() {
    let rig = Rig::new(false);
    rig.set_available(QUEUE_SIZE + 1);
    assert!(matches!(rig.pop(0).0, Err(NoRequest::Broken)));
    assert!(matches!(rig.pop(0).0, Err(NoRequest::Broken)));
    rig.set_available(0);
    assert!(matches!(rig.pop(0).0, Err(NoRequest::Empty)));
}

#[test]
fn endless_chains_end() {
    let rig = Rig::new(false);
    rig.offer(&[(REQUEST, 32, NEXT)]);
    rig.memory.write_obj(Descriptor::new(REQUEST, 32, NEXT, 0), rig.queue[0]).unwrap();
    let (pending, bytes) = taken(rig.pop(0));
    assert_eq!(bytes.len(), 32 * usize::from(QUEUE_SIZE));
    pending.respond(&Response::OkNodata);
    assert_eq!(rig.used(), (1, 0, 0));
}

#[test]
fn after_a_pause_what_was_taken_is_answered() {
    let mut rig = Rig::new(false);
    rig.offer(&SIMPLE);
    let (pending, _) = taken(rig.pop(0));
    assert_eq!(rig.vring.stop(), 1);
    pending.respond(&Response::OkNodata);
    rig.vring.signal();
    assert_eq!((rig.used().0, rig.calls()), (0, 0), "a stopped queue is not touched");
    assert!(matches!(rig.pop(0).0, Err(NoRequest::Empty)));
    rig.vring.set_base(1, false);
    rig.run();
    rig.vring.release_held();
    rig.vring.signal();
    assert_eq!(rig.used(), (1, 0, 24));
    assert_eq!(rig.calls(), 1);
}

#[test]
fn what_was_answered_before_a_pause_is_told_after_it() {
    let mut rig = Rig::new(false);
    rig.offer(&[(REQUEST, 32, NEXT), (ANSWER, 64, WRITE)]);
    let (request, _) = taken(rig.pop(0));
    request.respond(&Response::OkNodata);
    let at = rig.vring.stop();
    // The device thread comes too late to tell the driver.
    rig.vring.signal();
    assert_eq!(rig.calls(), 0);
    rig.vring.set_base(at, false);
    rig.run();
    rig.vring.signal();
    assert_eq!(rig.calls(), 1);
}

#[test]
fn an_answer_that_nobody_waits_for_is_told_with_the_next() {
    let mut rig = Rig::new(false);
    rig.offer(&[SIMPLE[0], SIMPLE[1], SIMPLE[0], SIMPLE[1]]);
    let mut stream = request();
    stream[..4].copy_from_slice(&CommandType::SUBMIT_3D.0.to_le_bytes());
    stream[4..8].fill(0);
    rig.memory.write_slice(&stream, GuestAddress(REQUEST)).unwrap();
    let (quiet, _) = taken(rig.pop(0));
    stream[4..8].copy_from_slice(&1u32.to_le_bytes());
    rig.memory.write_slice(&stream, GuestAddress(REQUEST)).unwrap();
    let (fenced, _) = taken(rig.pop(0));
    quiet.respond(&Response::OkNodata);
    assert_eq!(rig.used().0, 1);
    let due = rig.vring.deadline().unwrap();
    rig.vring.signal();
    assert!(rig.calls() == 0 || due <= Instant::now(), "told at once");
    fenced.respond(&Response::OkNodata);
    rig.vring.signal();
    assert_eq!((rig.used().0, rig.calls(), rig.vring.deadline()), (2, 1, None));
}

#[test]
fn after_a_reset_nothing_that_was_taken_is_answered() {
    for answered_while_stopped in [false, true] {
        let rig = Rig::new(false);
        rig.offer(&SIMPLE);
        let (pending, _) = taken(rig.pop(0));
        rig.vring.stop();
        let late = if answered_while_stopped {
            pending.respond(&Response::OkNodata);
            None
        } else {
            Some(pending)
        };
        rig.vring.set_base(0, true);
        rig.run();
        rig.vring.release_held();
        drop(late);
        assert_eq!((rig.used().0, rig.vring.unanswered()), (0, 0));
        assert!(matches!(rig.pop(0).0, Err(NoRequest::Reset(1))));
        // The driver's ring still holds the request, which now counts as a new one.
        taken(rig.pop(1)).0.respond(&Response::OkNodata);
        assert_eq!(rig.used(), (1, 0, 24));
    }
}

#[test]
fn a_disabled_queue_gives_nothing_out() {
    let rig = Rig::new(false);
    rig.offer(&SIMPLE);
    rig.vring.set_enabled(false);
    assert!(matches!(rig.pop(0).0, Err(NoRequest::Empty)));
    rig.vring.set_enabled(true);
    assert!(rig.pop(0).0.is_ok());
}

#[test]
fn with_event_idx_the_driver_is_told_only_when_it_asked() {
    let mut rig = Rig::new(true);
    // `used_event` lies after the available ring.
    let used_event = GuestAddress(rig.queue[1].0 + 4 + 2 * u64::from(QUEUE_SIZE));
    rig.memory.write_obj(u16::to_le(1), used_event).unwrap();
    rig.offer(&[SIMPLE[0], SIMPLE[1], SIMPLE[0], SIMPLE[1]]);
    taken(rig.pop(0)).0.respond(&Response::OkNodata);
    rig.vring.signal();
    assert_eq!(rig.calls(), 0);
    taken(rig.pop(0)).0.respond(&Response::OkNodata);
    rig.vring.signal();
    assert_eq!(rig.calls(), 1);
    assert!(!rig.vring.arm());
    rig.set_available(3);
    assert!(rig.vring.arm(), "a request that came just before arming is not missed");
}

#[test]
fn the_driver_is_asked_to_kick_for_the_next_request_or_for_that_behind_it() {
    let rig = Rig::new(true);
    // `avail_event` lies after the used ring.
    let avail_event = GuestAddress(rig.queue[2].0 + 4 + 8 * u64::from(QUEUE_SIZE));
    let asked = || u16::from_le(rig.memory.read_obj::<u16>(avail_event).unwrap());
    rig.offer(&SIMPLE);
    assert!(rig.vring.has_requests());
    taken(rig.pop(0)).0.respond(&Response::OkNodata);
    assert!(!rig.vring.has_requests());
    assert_eq!((rig.vring.arm(), asked()), (false, 1));
    assert_eq!((rig.vring.arm_behind_next(), asked()), (false, 2));
    rig.set_available(2);
    assert!(rig.vring.arm_behind_next(), "a request that came just before is not missed");
    taken(rig.pop(0));
    assert!(matches!(rig.pop(0).0, Err(NoRequest::Empty)), "asking takes no request");
}

#[test]
fn from_a_queue_that_cannot_be_there_are_no_requests() {
    let rig = Rig::new(true);
    rig.set_available(QUEUE_SIZE + 1);
    assert!(!rig.vring.has_requests() && !rig.vring.arm() && !rig.vring.arm_behind_next());
    assert!(matches!(rig.pop(0).0, Err(NoRequest::Broken)));
    rig.set_available(QUEUE_SIZE);
    assert!(rig.vring.has_requests());
    rig.vring.set_enabled(false);
    assert!(!rig.vring.has_requests());
}

#[test]
fn a_queue_with_more_open_requests_than_its_size_is_broken_until_some_are_answered() {
    let rig = Rig::new(false);
    rig.offer(&SIMPLE);
    let mut open = Vec::new();
    for index in 1..=QUEUE_SIZE {
        rig.set_available(index);
        open.push(taken(rig.pop(0)).0);
    }
    // The driver gives descriptors away that it does not have.
    rig.set_available(QUEUE_SIZE + 1);
    assert!(matches!(rig.pop(0).0, Err(NoRequest::Broken)));
    open.pop().unwrap().respond(&Response::OkNodata);
    open.push(taken(rig.pop(0)).0);
    assert_eq!(open.len(), usize::from(QUEUE_SIZE));
}

#[test]
fn only_sizes_that_queues_can_have_are_accepted() {
    let rig = Rig::new(false);
    assert!([1, 256, 1024, 32768].iter().all(|size| rig.vring.set_size(*size)));
    assert!([0, 3, 1000, 65536, u32::MAX].iter().all(|size| !rig.vring.set_size(*size)));
}

#[test]
fn a_request_that_two_processes_have_is_answered_once_by_the_one_that_serves() {
    for successor_serves in [true, false] {
        let mut rig = Rig::new(false);
        rig.offer(&SIMPLE);
        let (pending, _) = taken(rig.pop(0));
        let passed = pending.pass_on(&[Arc::clone(&rig.vring), Arc::clone(&rig.vring)]).unwrap();
        let (of_queue, call) = rig.vring.pass_on(1).unwrap().unwrap();
        assert!(rig.vring.pass_on(0).unwrap().is_none(), "one would be lost");
        let successor = Arc::new(Vring::new(GuestMemoryAtomic::new(rig.memory.clone())));
        assert!(successor.resume(&of_queue));
        successor.set_call(call.map(File::from));
        let resumed = PendingResponse::resume(&successor, passed);
        // The other process leaves the frontend.
        let (serves, answers, leaves, forgets) = match successor_serves {
            true => (&successor, resumed, &rig.vring, pending),
            false => (&rig.vring, pending, &successor, resumed),
        };
        leaves.abandon();
        drop(forgets);
        assert_eq!((rig.used().0, leaves.unanswered()), (0, 0), "{successor_serves}");
        answers.respond(&Response::OkNodata);
        serves.signal();
        assert_eq!(rig.used(), (1, 0, 24), "{successor_serves}");
        assert_eq!(rig.answer(24)[..4], 0x1100u32.to_le_bytes());
        assert_eq!(rig.calls(), 1);
    }
}
