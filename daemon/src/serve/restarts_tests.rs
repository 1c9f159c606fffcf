//! Tests of hand-overs, with workers that the tests play.

use super::broker::Broker;
use super::fuzzing::options;
use super::handover::{AGAIN_AFTER, Asker, PREPARE_PATIENCE, SHORT_PART, START_PATIENCE, Stage};
use super::run::{Options, Server};
use crate::device::fuzzing::LIMITS;
use crate::ipc::{
    Channel, Fence, FromBroker, GpuChange, HandOver, Placement, ToBroker, ToDevice, ToLauncher, ToWorker,
};
use crate::sandbox::Launcher;
use crate::transport::Vring;
use crate::transport::fuzzing::{pending, unused_vring};
use config::{AtFault, GpuChoice, Heap, MemoryId, Passage, PerHeap, Wanted};
use protocol::ids::{BlobId, CapsetId, ContextId, FenceId, ResourceId, RingIdx};
use protocol::virtio_gpu::{BlobFlags, BlobMem, Command, CommandType, Header, HeaderFlags};
use readiness::{Events, Reported};
use shm::StatusPage;
use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(super) const CONTEXT: ContextId = ContextId(1);

/// A time that is longer than any test takes.
const LONG: Duration = Duration::from_secs(600);

/// A device process with one context, whose workers are played.
pub(super) struct Rig {
    pub(super) server: Server,
    pub(super) starter: Channel,
    vring: Arc<Vring>,
    _signals: UnixStream,
    /// The ends of the workers that were started, by their serial numbers.
    pub(super) workers: BTreeMap<u32, Channel>,
    pub(super) killed: Vec<u32>,
    /// The time of all turns, unless a test gives another: however long a test takes, nothing becomes due.
    pub(super) now: Instant,
}

pub(super) const OLD: u32 = 0;
pub(super) const NEW: u32 = 1;

pub(super) fn rig() -> Rig {
    rig_with(|_| {})
}

/// A device process whose options are changed first.
pub(super) fn rig_with(change: impl FnOnce(&mut Options)) -> Rig {
    let (ours, signals) = UnixStream::pair().unwrap();
    let (launcher, starter) = Channel::pair().unwrap();
    let mut options = options(Launcher::played(launcher).unwrap());
    options.checkpoint_after = None;
    change(&mut options);
    let is_scheduled = options.broker.is_some();
    let mut server = Server::new(options, signals.into()).unwrap();
    server.world.handovers.asked_for = LONG;
    let ((workers, killed), now) = (Default::default(), Instant::now());
    let mut rig = Rig { server, starter, vring: unused_vring(), _signals: ours, workers, killed, now };
    rig.command(&Command::CtxCreate { capset_id: CapsetId::VENUS, debug_name: b"app" }, None);
    rig.command(&blob(5), None);
    rig.turn();
    let heard = rig.hear(OLD);
    let gate = if is_scheduled { &[ToWorker::Grants, ToWorker::Doorbell][..] } else { &[] };
    assert!(matches!(heard[0], ToWorker::Setup(_)) && heard[1..].starts_with(gate), "{heard:?}");
    assert!(matches!(heard[1 + gate.len()..], [ToWorker::AttachResource { .. }]), "{heard:?}");
    rig
}

/// A device process with a spare GPU and a broker, and the broker's end of the channel between them.
pub(super) fn rig_with_spare() -> (Rig, Channel) {
    let (ours, theirs) = Channel::pair().unwrap();
    let rig = rig_with(|options| {
        options.gpus.push(GpuChoice { uuid: SPARE, ..options.gpus[0] });
        options.broker = Some(Broker::connect(ours.into_socket()));
    });
    assert!(matches!(heard(&theirs)[..], [ToBroker::Ready { .. }, ToBroker::ContextBegins { .. }, COMES_0]));
    (rig, theirs)
}

const SPARE: [u8; 16] = [9; 16];
const COMES_0: ToBroker = ToBroker::ContextComes { ctx_id: CONTEXT, gpu: 0 };
const COMES_1: ToBroker = ToBroker::ContextComes { ctx_id: CONTEXT, gpu: 1 };
const LEAVES_0: ToBroker = ToBroker::ContextLeaves { ctx_id: CONTEXT, gpu: 0 };
const LEAVES_1: ToBroker = ToBroker::ContextLeaves { ctx_id: CONTEXT, gpu: 1 };

/// The messages that the broker gets.
pub(super) fn heard(broker: &Channel) -> Vec<ToBroker> {
    std::iter::from_fn(|| broker.try_receive().ok().flatten().map(|(message, _)| message)).collect()
}

pub(super) fn blob(resource_id: u32) -> Command<'static> {
    Command::ResourceCreateBlob {
        resource_id: ResourceId(resource_id),
        blob_mem: BlobMem::Host3d,
        blob_flags: BlobFlags::MAPPABLE,
        blob_id: BlobId(0),
        size: 4096,
        entries: &[],
    }
}

pub(super) fn submitted(messages: &[ToWorker]) -> Vec<u8> {
    let inline = |message: &ToWorker| match message {
        ToWorker::Submit { inline, .. } => inline.first().copied(),
        _ => None,
    };
    messages.iter().filter_map(inline).collect()
}

impl Rig {
    pub(super) fn command(&mut self, command: &Command<'_>, fence: Option<u64>) {
        let mut flags = HeaderFlags::empty();
        flags.set(HeaderFlags::FENCE, fence.is_some());
        let fence_id = FenceId(fence.unwrap_or(0));
        let (command_type, ring_idx) = (CommandType(0), RingIdx::CONTEXT);
        let header = Header { command: command_type, flags, fence_id, ctx_id: CONTEXT.0, ring_idx };
        let ticket = pending(&self.vring, header);
        self.server.device.handle(&header, command, ticket, &mut self.server.world);
    }

    pub(super) fn submit(&mut self, byte: u8, fence: Option<u64>) {
        self.command(&Command::Submit3d { data: &[byte] }, fence);
    }

    /// The device thread does all that there is to do.
    pub(super) fn turn(&mut self) {
        self.turn_at(self.now);
    }

    pub(super) fn turn_at(&mut self, now: Instant) {
        let mut reported = Reported::default();
        while reported.fetch(&self.server.epoll, Some(Duration::ZERO)).unwrap() {
            for event in reported.events().to_vec() {
                self.server.dispatch(event.data, Events::from_bits_retain(event.events)).unwrap();
            }
            reported.clear();
        }
        self.server.hand_overs_due(now);
        while let Ok(Some((message, fd))) = self.starter.try_receive::<ToLauncher>() {
            match message {
                ToLauncher::Start { child, .. } => {
                    self.workers.insert(child, Channel::from_socket(fd.unwrap()));
                }
                ToLauncher::Kill { child } => self.killed.push(child),
                _ => {}
            }
        }
    }

    pub(super) fn hear(&self, worker: u32) -> Vec<ToWorker> {
        std::iter::from_fn(|| self.workers[&worker].try_receive().ok().flatten().map(|(message, _)| message))
            .collect()
    }

    /// The next message of a worker with its descriptor, which is of a certain kind.
    pub(super) fn hear_one(&self, worker: u32, wanted: &ToWorker) -> Channel {
        Channel::from_socket(self.hear_with_fd(worker, wanted))
    }

    /// The next message of a worker, which is of a certain kind; returns its descriptor.
    pub(super) fn hear_with_fd(&self, worker: u32, wanted: &ToWorker) -> OwnedFd {
        let (message, fd): (ToWorker, Option<OwnedFd>) =
            self.workers[&worker].try_receive().unwrap().expect("a message");
        assert_eq!(&message, wanted);
        fd.expect("a descriptor")
    }

    pub(super) fn say(&mut self, worker: u32, message: &ToDevice) {
        self.say_all(worker, std::slice::from_ref(message));
    }

    /// A worker says something, and gives a descriptor.
    pub(super) fn say_with_fd(&mut self, worker: u32, message: &ToDevice, fd: OwnedFd) {
        self.workers[&worker].send(message, Some(fd.as_fd())).unwrap();
        self.turn();
    }

    /// A worker says several things before the device thread has its turn.
    pub(super) fn say_all(&mut self, worker: u32, messages: &[ToDevice]) {
        messages.iter().for_each(|message| self.workers[&worker].send(message, None).unwrap());
        self.turn();
    }

    /// Begins a restart, up to where the old worker is told to hand over. Returns the socket that the old worker is given.
    pub(super) fn begin(&mut self, new: u32) -> Channel {
        self.server.restart(CONTEXT, None, Asker::Test);
        self.turn();
        assert!(matches!(self.hear(new)[..], [ToWorker::Setup(_)]));
        assert_eq!(self.stage(), Some(Stage::Starts));
        self.say(new, &ToDevice::Ready);
        let shown = self.hear(new);
        assert!(
            matches!(
                shown[..],
                [ToWorker::AttachResource { resource_id: ResourceId(5), .. }, ToWorker::BuildPrelude]
            ),
            "{shown:?}"
        );
        self.prelude_built(new)
    }

    /// The successor builds up what the old worker has written down meanwhile. Returns the socket that the old worker is then given.
    fn prelude_built(&mut self, new: u32) -> Channel {
        self.hear_one(OLD, &ToWorker::WritePrelude { goes_on: false, is_at_home: false });
        assert!(matches!(self.stage(), Some(Stage::Prepares { .. })));
        self.say(new, &ToDevice::PreludeBuilt { is_at_home: false });
        // If this part took long, more parts follow.
        while let Some(Stage::Prepares { .. }) = self.stage() {
            self.hear_one(OLD, &ToWorker::WritePrelude { goes_on: true, is_at_home: false });
            self.hear(new);
            self.say(new, &ToDevice::PreludeBuilt { is_at_home: false });
        }
        self.hear_one(OLD, &ToWorker::HandOver { copies: true, goes_on: true })
    }

    /// A worker ends, and the device thread notices it: a process that another test starts may hold the worker's socket for a moment.
    pub(super) fn dies(&mut self, worker: u32, is_noticed: impl Fn(&Self) -> bool) {
        self.workers.remove(&worker);
        let start = Instant::now();
        while !is_noticed(self) && start.elapsed() < LONG {
            self.turn();
        }
    }

    pub(super) fn stage(&self) -> Option<Stage> {
        self.server.world.handovers.get(CONTEXT).map(|hand_over| hand_over.stage)
    }

    /// Commands whose answer is due.
    pub(super) fn open(&self) -> usize {
        Arc::strong_count(&self.vring) - 1
    }

    pub(super) fn counts(&self) -> (u64, u64) {
        (self.server.world.handovers.done, self.server.world.handovers.failed)
    }

    pub(super) fn is_running(&self) -> bool {
        self.server.world.workers.is_running(CONTEXT)
    }
}

pub(super) fn signalled(fence: u64) -> ToDevice {
    ToDevice::FenceSignalled(Fence { ring_idx: RingIdx::CONTEXT, fence_id: FenceId(fence) })
}

pub(super) fn taken_over() -> ToDevice {
    ToDevice::TakenOver { pieces: Vec::new(), credit: PerHeap::default() }
}

/// A restart whose successor has come to life, and has been told to make what it can.
fn preparing() -> Rig {
    let mut rig = rig();
    rig.server.restart(CONTEXT, None, Asker::Test);
    rig.turn();
    rig.say(NEW, &ToDevice::Ready);
    rig
}

#[test]
fn a_successor_gets_the_context_with_what_came_meanwhile_and_nobody_misses_a_fence() {
    let mut rig = rig();
    rig.submit(1, Some(7));
    assert_eq!(submitted(&rig.hear(OLD)), [1]);
    let writes = rig.begin(NEW);
    rig.submit(2, Some(8));
    rig.command(&blob(6), None);
    rig.turn();
    assert!(rig.hear(OLD).is_empty() && rig.hear(NEW).is_empty(), "everything is held back");
    assert_eq!(rig.stage(), Some(Stage::Rests));
    rig.say(OLD, &signalled(7));
    assert_eq!(rig.open(), 1, "it is obeyed until it has handed over");
    writes.send(&HandOver::End, None).unwrap();
    rig.turn();
    let reads = rig.hear_one(NEW, &ToWorker::TakeOver);
    assert_eq!(reads.receive::<HandOver>().unwrap().0, HandOver::End);
    rig.say(OLD, &ToDevice::HandedOver);
    drop(writes);
    assert!(reads.receive::<HandOver>().is_err(), "nobody else can write");
    rig.say(OLD, &signalled(8));
    assert_eq!(rig.open(), 1, "it is obeyed afterwards");
    rig.say(NEW, &taken_over());
    assert_eq!((rig.counts(), &rig.killed[..], rig.stage()), ((1, 0), &[OLD][..], None));
    let messages = rig.hear(NEW);
    assert!(
        matches!(messages[..], [ToWorker::GoOn, ToWorker::Submit { .. }, ToWorker::AttachResource { .. }]),
        "{messages:?}"
    );
    rig.say(NEW, &signalled(8));
    assert_eq!(rig.open(), 0);
    // The end of the old worker's process does not end the context.
    rig.workers.remove(&OLD);
    rig.turn();
    assert!(rig.is_running());
    rig.submit(3, None);
    assert_eq!(submitted(&rig.hear(NEW)), [3]);
}

#[test]
fn a_context_goes_on_while_its_successor_prepares() {
    let mut rig = preparing();
    let writes = rig.hear_one(OLD, &ToWorker::WritePrelude { goes_on: false, is_at_home: false });
    rig.hear(NEW);
    rig.submit(1, Some(7));
    rig.command(&blob(6), None);
    assert!(matches!(rig.hear(OLD)[..], [ToWorker::Submit { .. }, ToWorker::AttachResource { .. }]));
    assert!(matches!(rig.hear(NEW)[..], [ToWorker::AttachResource { .. }]), "it sees what the context sees");
    rig.say(OLD, &signalled(7));
    assert_eq!(rig.open(), 0);
    // The end of the prelude does not end the preparations.
    drop(writes);
    rig.turn();
    assert!(matches!(rig.stage(), Some(Stage::Prepares { part: 1, .. })));
    let messages = |rig: &Rig| rig.hear(OLD).pop();
    rig.say(NEW, &ToDevice::PreludeBuilt { is_at_home: false });
    while messages(&rig) == Some(ToWorker::WritePrelude { goes_on: true, is_at_home: false }) {
        rig.say(NEW, &ToDevice::PreludeBuilt { is_at_home: false });
    }
    assert_eq!(rig.stage(), Some(Stage::Rests));
    // The successor says it once more, which is a mistake.
    rig.say(NEW, &ToDevice::PreludeBuilt { is_at_home: false });
    assert_eq!((rig.counts(), &rig.killed[..]), ((0, 1), &[NEW][..]));
    assert!(rig.is_running());
}

#[test]
fn a_program_that_finds_no_memory_is_answered_when_a_successor_with_memory_of_its_own_has_ended() {
    for stage in ["prepares", "rests", "waits"] {
        let mut rig = preparing();
        rig.hear_one(OLD, &ToWorker::WritePrelude { goes_on: false, is_at_home: false });
        rig.say(NEW, &ToDevice::PreludeBuilt { is_at_home: true });
        rig.hear_one(OLD, &ToWorker::WritePrelude { goes_on: true, is_at_home: true });
        if stage != "prepares" {
            rig.say(NEW, &ToDevice::PreludeBuilt { is_at_home: true });
            rig.hear_one(OLD, &ToWorker::HandOver { copies: false, goes_on: true });
        }
        if stage == "waits" {
            rig.say(OLD, &ToDevice::Stays { reason: "test".into(), for_now: true });
        }
        let number = rig.server.world.workers.successor_number(CONTEXT).unwrap();
        // Two rings of the context ask at once.
        [5, 6].into_iter().for_each(|request| rig.say(OLD, &ToDevice::ClosingWanted { request }));
        assert_eq!((rig.counts(), &rig.killed[..], rig.stage()), ((0, 1), &[NEW][..], None), "{stage}");
        let is_answer = |told: &ToWorker| matches!(told, ToWorker::CaughtUp { .. });
        assert!(!rig.hear(OLD).iter().any(is_answer), "its memory is there still: {stage}");
        rig.server.worker_has_ended(number);
        rig.server.closing_due(Instant::now());
        let answers: Vec<_> = rig.hear(OLD).into_iter().filter(is_answer).collect();
        assert_eq!(answers, [5, 6].map(|request| ToWorker::CaughtUp { request }), "{stage}");
        assert!(rig.is_running());
    }
}

#[test]
fn what_has_come_while_a_long_part_of_the_prelude_was_made_is_made_before_anybody_rests() {
    let mut rig = preparing();
    rig.hear_one(OLD, &ToWorker::WritePrelude { goes_on: false, is_at_home: false });
    std::thread::sleep(SHORT_PART);
    rig.say(NEW, &ToDevice::PreludeBuilt { is_at_home: false });
    assert!(matches!(rig.stage(), Some(Stage::Prepares { part: 2, .. })));
    rig.hear_one(OLD, &ToWorker::WritePrelude { goes_on: true, is_at_home: false });
    let messages = rig.hear(NEW);
    assert!(messages.ends_with(&[ToWorker::BuildPrelude, ToWorker::BuildPrelude]), "{messages:?}");
}

#[test]
fn a_successor_that_prepares_for_too_long_costs_the_context_nothing() {
    let mut rig = preparing();
    rig.turn_at(Instant::now() + PREPARE_PATIENCE);
    assert_eq!((rig.counts(), &rig.killed[..], rig.stage()), ((0, 1), &[NEW][..], None));
    rig.hear(OLD);
    rig.submit(1, None);
    assert_eq!(submitted(&rig.hear(OLD)), [1]);
}

#[test]
fn one_that_stays_for_now_goes_on_meanwhile_and_the_successor_sees_what_it_sees() {
    let mut rig = rig();
    let _writes = rig.begin(NEW);
    rig.submit(1, None);
    rig.command(&blob(7), None);
    let stays = |for_now| ToDevice::Stays { reason: "it waits".into(), for_now };
    rig.say(OLD, &stays(true));
    let messages = rig.hear(OLD);
    assert!(
        matches!(messages[..], [ToWorker::Submit { .. }, ToWorker::AttachResource { .. }]),
        "{messages:?}"
    );
    let messages = rig.hear(NEW);
    assert!(
        matches!(messages[..], [ToWorker::AttachResource { resource_id: ResourceId(7), .. }]),
        "{messages:?}"
    );
    rig.command(&blob(6), None);
    rig.command(&Command::ResourceUnref { resource_id: ResourceId(5) }, None);
    for worker in [OLD, NEW] {
        let messages = rig.hear(worker);
        let shown = [ToWorker::DetachResource { resource_id: ResourceId(5) }];
        assert!(matches!(messages[0], ToWorker::AttachResource { resource_id: ResourceId(6), .. }));
        assert_eq!(messages[1..], shown);
    }
    rig.turn_at(Instant::now() + AGAIN_AFTER);
    rig.hear_one(OLD, &ToWorker::HandOver { copies: true, goes_on: true });
    rig.say(OLD, &stays(false));
    assert_eq!((rig.counts(), &rig.killed[..], rig.stage()), ((0, 1), &[NEW][..], None));
    rig.submit(2, None);
    let messages = rig.hear(OLD);
    assert_eq!((submitted(&messages), messages.len()), (vec![2], 1), "it has gone on by itself");
    assert!(rig.is_running());
}

#[test]
fn without_its_successor_a_worker_goes_on_whenever_it_hears_of_that() {
    for has_handed_over in [false, true] {
        let mut rig = rig();
        let writes = rig.begin(NEW);
        rig.submit(1, None);
        if has_handed_over {
            writes.send(&HandOver::End, None).unwrap();
            rig.say(OLD, &ToDevice::HandedOver);
            assert!(matches!(rig.stage(), Some(Stage::Moves { handed_over: true, .. })));
        }
        rig.dies(NEW, |rig| rig.stage().is_none());
        let messages = rig.hear(OLD);
        assert!(matches!(messages[..], [ToWorker::GoOn, ToWorker::Submit { .. }]), "{messages:?}");
        assert_eq!(rig.counts(), (0, 1));
        if !has_handed_over {
            rig.server.restart(CONTEXT, None, Asker::Test);
            assert_eq!(rig.counts(), (0, 2), "it has an answer to give first");
            rig.say(OLD, &ToDevice::HandedOver);
        }
        assert!(rig.is_running());
        rig.begin(NEW + 1);
        rig.say(OLD, &ToDevice::Stays { reason: String::new(), for_now: true });
        assert!(rig.is_running());
        // The worker was not asked again.
        rig.say(OLD, &ToDevice::HandedOver);
        assert!(!rig.is_running());
    }
}

#[test]
fn a_successor_may_submit_before_it_has_the_context() {
    let mut rig = rig();
    rig.server.restart(CONTEXT, None, Asker::Test);
    rig.turn();
    let (message, page): (ToWorker, _) = rig.workers[&NEW].try_receive().unwrap().expect("a message");
    assert!(matches!(message, ToWorker::Setup(_)));
    let page = StatusPage::open(page.expect("its page")).unwrap();
    assert_eq!(page.limit(), rig.server.world.hangs.limit());
    assert!(page.limit() > Duration::ZERO);
}

#[test]
fn what_is_held_back_has_its_bound_and_the_context_survives_it() {
    let mut rig = rig();
    let _writes = rig.begin(NEW);
    let count = LIMITS.worker_backlog as u8 + 4;
    (0..count).for_each(|byte| rig.submit(byte, None));
    rig.turn();
    let messages = rig.hear(OLD);
    assert_eq!(messages[0], ToWorker::GoOn);
    assert_eq!(submitted(&messages), (0..count).collect::<Vec<_>>());
    assert_eq!((rig.counts(), &rig.killed[..], rig.is_running()), ((0, 1), &[NEW][..], true));
    rig.say(OLD, &ToDevice::HandedOver);
    assert!(rig.is_running());
}

#[test]
fn a_worker_may_have_written_and_answered_before_either_is_heard_of() {
    let mut rig = rig();
    let writes = rig.begin(NEW);
    writes.send(&HandOver::End, None).unwrap();
    rig.workers[&OLD].send(&ToDevice::HandedOver, None).unwrap();
    rig.turn();
    assert_eq!(rig.stage(), Some(Stage::Moves { handed_over: true, taken_over: false }));
    // The kernel had reported both before the answer was read.
    rig.server.worker_writes(CONTEXT);
    assert_eq!((rig.counts(), &rig.killed[..]), ((0, 0), &[][..]));
    rig.say(NEW, &taken_over());
    assert_eq!(rig.counts(), (1, 0));
}

#[test]
fn a_worker_that_writes_and_stays_costs_the_context_nothing() {
    let mut rig = rig();
    let writes = rig.begin(NEW);
    rig.say(OLD, &ToDevice::Stays { reason: "it waits".into(), for_now: true });
    writes.send(&HandOver::End, None).unwrap();
    rig.turn();
    assert_eq!((rig.counts(), &rig.killed[..], rig.is_running()), ((0, 1), &[NEW][..], true));
}

#[test]
fn whoever_ends_a_context_ends_its_successor() {
    let mut rig = rig();
    rig.begin(NEW);
    rig.submit(1, Some(7));
    rig.command(&Command::CtxDestroy, None);
    rig.turn();
    assert_eq!((rig.counts(), &rig.killed[..], rig.is_running()), ((0, 1), &[NEW][..], false));
    assert_eq!((rig.stage(), rig.open()), (None, 0));
    // The context's worker dies.
    let mut rig = self::rig();
    let writes = rig.begin(NEW);
    writes.send(&HandOver::End, None).unwrap();
    rig.say(OLD, &ToDevice::HandedOver);
    rig.submit(1, Some(7));
    rig.dies(OLD, |rig| !rig.is_running());
    assert_eq!((rig.counts(), &rig.killed[..], rig.is_running()), ((0, 1), &[NEW][..], false));
    assert_eq!(rig.open(), 0);
}

#[test]
fn a_successor_that_says_what_it_must_not_costs_the_context_nothing() {
    let wrong = [
        ToDevice::Ready,
        ToDevice::HandedOver,
        taken_over(),
        signalled(7),
        ToDevice::BudgetWanted { request: 1 },
        ToDevice::MemoryWantedNoMore { request: 1 },
        ToDevice::CatchUpWanted { request: 1 },
        ToDevice::Lost { at_fault: Some(AtFault::Predecessor), reason: "cannot".into() },
    ];
    for message in wrong {
        let mut rig = rig();
        rig.begin(NEW);
        rig.submit(1, Some(7));
        rig.say(NEW, &message);
        assert_eq!(
            (rig.counts(), &rig.killed[..], rig.is_running()),
            ((0, 1), &[NEW][..], true),
            "{message:?}"
        );
        assert_eq!((submitted(&rig.hear(OLD)), rig.open()), (vec![1], 1));
    }
}

#[test]
fn one_that_does_not_come_to_life_is_ended() {
    let mut rig = rig();
    rig.server.restart(CONTEXT, None, Asker::Test);
    rig.turn_at(Instant::now() + START_PATIENCE + Duration::from_secs(1));
    rig.turn();
    assert_eq!((rig.counts(), &rig.killed[..], rig.is_running()), ((0, 1), &[NEW][..], true));
    assert!(rig.hear(OLD).is_empty());
}

#[test]
fn what_cannot_be_restarted_is_refused() {
    let mut rig = rig();
    rig.server.restart(ContextId(9), None, Asker::Test);
    assert_eq!(rig.counts(), (0, 1));
    rig.server.restart(CONTEXT, None, Asker::Test);
    rig.server.restart(CONTEXT, None, Asker::Test);
    assert_eq!(rig.counts(), (0, 2), "it is being restarted already");
    rig.turn();
    rig.say(OLD, &ToDevice::Lost { at_fault: Some(AtFault::Guest), reason: "test".into() });
    rig.server.restart(CONTEXT, None, Asker::Test);
    assert_eq!((rig.counts(), rig.is_running()), ((0, 4), false));
}

/// Asks for a piece of memory and for credit.
fn ask(rig: &mut Rig, request: u32) {
    for wanted in [Wanted::Pages(4096), Wanted::Credit { heap: Heap::Device, least: 100, bytes: 100 }] {
        rig.say(OLD, &ToDevice::MemoryWanted { request, wanted });
    }
}

/// A context that has a piece of memory and credit, and has asked for one more of each; its worker gets the answers at rest.
fn asked_late() -> (Rig, Channel, [MemoryId; 2]) {
    let mut rig = rig();
    ask(&mut rig, 1);
    rig.hear(OLD);
    let writes = rig.begin(NEW);
    ask(&mut rig, 2);
    writes.send(&HandOver::End, None).unwrap();
    rig.say(OLD, &ToDevice::HandedOver);
    assert!(matches!(rig.hear(OLD)[..], [ToWorker::MemoryGranted { .. }, ToWorker::MemoryGranted { .. }]));
    assert_eq!(rig.server.device.memory_used(), (200, 2 * 4096));
    (rig, writes, [MemoryId(1), MemoryId(2)])
}

const CREDIT: ToDevice = ToDevice::CreditReturned { heap: Heap::Device, bytes: 100 };

fn returned(memory: MemoryId) -> ToDevice {
    ToDevice::MemoryReturned { memory }
}

fn takes(pieces: &[MemoryId]) -> ToDevice {
    ToDevice::TakenOver { pieces: pieces.to_vec(), credit: PerHeap { device: 100, host: 0 } }
}

#[test]
fn what_a_worker_gives_back_at_rest_is_given_back_whatever_comes_of_it() {
    for succeeds in [true, false] {
        let (mut rig, _writes, [kept, late]) = asked_late();
        rig.say(OLD, &CREDIT);
        rig.say(OLD, &returned(late));
        assert_eq!(rig.server.device.memory_used(), (100, 4096));
        match succeeds {
            true => rig.say(NEW, &takes(&[kept])),
            false => rig.say(NEW, &signalled(7)),
        }
        assert_eq!((rig.counts().0 == 1, rig.server.device.memory_used()), (succeeds, (100, 4096)));
        let worker = if succeeds { NEW } else { OLD };
        rig.say(worker, &CREDIT);
        rig.say(worker, &returned(kept));
        assert_eq!(rig.server.device.memory_used(), (0, 0));
    }
}

#[test]
fn what_a_worker_could_not_give_back_any_more_is_nobodys() {
    let (mut rig, _writes, [kept, _]) = asked_late();
    rig.say(NEW, &takes(&[kept]));
    assert_eq!((rig.counts(), rig.server.device.memory_used()), ((1, 0), (100, 4096)));
}

#[test]
fn what_a_successor_gives_back_is_given_back_only_if_it_succeeds() {
    for succeeds in [true, false] {
        let mut rig = rig();
        ask(&mut rig, 1);
        rig.hear(OLD);
        let writes = rig.begin(NEW);
        writes.send(&HandOver::End, None).unwrap();
        rig.turn();
        rig.say(NEW, &CREDIT);
        rig.say(NEW, &returned(MemoryId(1)));
        rig.say(NEW, &takes(&[MemoryId(1)]));
        rig.say(NEW, &returned(MemoryId(1)));
        assert_eq!((rig.counts(), rig.server.device.memory_used()), ((0, 0), (100, 4096)));
        match succeeds {
            true => rig.say(OLD, &ToDevice::HandedOver),
            false => rig.say(NEW, &signalled(7)),
        }
        let left = if succeeds { (0, 0) } else { (100, 4096) };
        assert_eq!((rig.counts().0 == 1, rig.server.device.memory_used()), (succeeds, left));
    }
}

#[test]
fn a_context_that_moves_comes_to_the_other_gpu_first_and_leaves_one_of_both_at_the_end() {
    let (mut rig, broker) = rig_with_spare();
    let change = |from, to| FromBroker::Restart { ctx_id: CONTEXT, change: Some(GpuChange { from, to }) };
    let asked = |rig: &mut Rig, message: FromBroker| {
        broker.send(&message, None).unwrap();
        rig.turn();
        heard(&broker)
    };
    // The successor dies.
    assert!(matches!(asked(&mut rig, change(0, 1))[..], [COMES_1, ToBroker::Restarting { .. }]));
    rig.dies(NEW, |rig| rig.stage().is_none());
    assert!(matches!(heard(&broker)[..], [LEAVES_1, ToBroker::Restarted { outcome: Err(_), .. }]));
    // The next successor does not die.
    let new = NEW + 1;
    assert!(matches!(asked(&mut rig, change(0, 1))[..], [COMES_1, ToBroker::Restarting { .. }]));
    let messages = rig.hear(new);
    let [ToWorker::Setup(setup), ToWorker::Grants, ToWorker::Doorbell] = &messages[..] else {
        panic!("{messages:?}")
    };
    assert_eq!(setup.gpus.iter().map(|gpu| gpu.uuid).collect::<Vec<_>>(), [SPARE]);
    rig.say(new, &ToDevice::Ready);
    let writes = rig.prelude_built(new);
    writes.send(&HandOver::End, None).unwrap();
    rig.say(OLD, &ToDevice::HandedOver);
    rig.say(new, &taken_over());
    let messages = heard(&broker);
    assert!(messages.contains(&LEAVES_0) && !messages.contains(&LEAVES_1), "{messages:?}");
    assert!(matches!(messages.last(), Some(ToBroker::Restarted { outcome: Ok(_), .. })), "{messages:?}");
    // A restart keeps the context on its GPU, and a context cannot be moved from a GPU on which it is not.
    let again = FromBroker::Restart { ctx_id: CONTEXT, change: None };
    assert!(matches!(asked(&mut rig, again)[..], [ToBroker::Restarting { .. }]));
    let messages = rig.hear(new + 1);
    let Some(ToWorker::Setup(setup)) = messages.first() else { panic!("{messages:?}") };
    assert_eq!(setup.gpus[0].uuid, SPARE);
    rig.dies(new + 1, |rig| rig.stage().is_none());
    heard(&broker);
    for (from, to) in [(0, 1), (1, 1), (1, 2)] {
        let messages = asked(&mut rig, change(from, to));
        assert!(matches!(messages[..], [ToBroker::Restarted { outcome: Err(_), .. }]), "{messages:?}");
    }
    assert!(rig.is_running());
}

#[test]
fn contexts_begin_where_the_broker_places_them() {
    let (mut rig, broker) = rig_with_spare();
    for wrong in [vec![], vec![2], vec![0, 1]] {
        broker.send(&FromBroker::Place { placement: Placement(wrong) }, None).unwrap();
        rig.turn();
    }
    let begin_anew = |rig: &mut Rig| {
        rig.command(&Command::CtxDestroy, None);
        rig.command(&Command::CtxCreate { capset_id: CapsetId::VENUS, debug_name: b"app" }, None);
        rig.turn();
        heard(&broker)
    };
    let messages = begin_anew(&mut rig);
    assert!(messages.contains(&COMES_0) && !messages.contains(&COMES_1), "{messages:?}");
    broker.send(&FromBroker::Place { placement: Placement(vec![1]) }, None).unwrap();
    rig.turn();
    let messages = begin_anew(&mut rig);
    assert!(messages.contains(&COMES_1) && !messages.contains(&COMES_0), "{messages:?}");
}

#[test]
fn a_vm_goes_on_without_the_thread_that_counts_for_its_operators() {
    let (ours, theirs) = Channel::pair().unwrap();
    let mut rig = rig_with(|options| options.broker = Some(Broker::of_thread(ours.into_socket())));
    let begin_anew = |rig: &mut Rig, worker| {
        rig.command(&Command::CtxDestroy, None);
        rig.command(&Command::CtxCreate { capset_id: CapsetId::VENUS, debug_name: b"app" }, None);
        rig.turn();
        rig.hear(worker)
    };
    let messages = begin_anew(&mut rig, NEW);
    let [ToWorker::Setup(setup), ToWorker::Grants, ToWorker::Doorbell] = &messages[..] else {
        panic!("{messages:?}")
    };
    assert_eq!(setup.passage, Some(Passage::Counted));
    drop(theirs);
    let begun = Instant::now();
    // A process that another test starts may still hold the channel for a moment.
    while rig.server.world.broker.is_some() && begun.elapsed() < LONG {
        rig.turn();
        std::thread::yield_now();
    }
    assert!(rig.is_running());
    let messages = begin_anew(&mut rig, NEW + 1);
    let [ToWorker::Setup(setup)] = &messages[..] else { panic!("{messages:?}") };
    assert_eq!(setup.passage, None);
}
