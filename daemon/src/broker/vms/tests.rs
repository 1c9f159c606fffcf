//! Tests with played device processes: the messages that they may send, and that a process which sends others ends alone.

mod moves;
mod reload;
mod restarts;
mod upgrade;

use super::*;
use crate::broker::control::Request;
use crate::broker::settings::share::{Change, Policy};
use crate::broker::settings::{Settings, VmSettings, VmsFile};
use crate::ipc::{Channel, HeldMemory, InForce, SharedGpu};
use crate::options::VmOptions;
use crate::service::Manager;
use config::Amount;
use readiness::{self, Event, Reported};
use sched::{Class, Share};
use shm::{Counters, Doorbell, GateSide, Work, grant_page, page_clock};
use std::os::fd::{AsFd, BorrowedFd};

/// Two VMs whose device processes are played.
struct World {
    broker: Broker,
    peers: Vec<Channel>,
    /// The broker's time, which stands still unless a test moves it: however long a test takes, nothing becomes due.
    now: Nanos,
    _folder: tempfile::TempDir,
}

/// A file that cannot be read.
fn no_file() -> VmsFile {
    VmsFile::new("/nowhere".into(), log::LevelFilter::Info)
}

/// The options that every VM of a test has.
const WRITTEN: &[&str] = &["max-contexts=2", "max-submit-time-contended=10s"];

/// Writes further options of a VM into its file.
fn write(vm: &mut VmSettings, options: &[&str]) {
    vm.written = WRITTEN.iter().chain(options).map(|option| (*option).to_owned()).collect();
    *vm = vm.clone().read_anew();
}

/// Returns the further options with which the device process of a VM is started.
fn written(vm: &VmSettings) -> &[String] {
    assert_eq!(&vm.clone().read_anew(), vm, "it has other options than are written");
    &vm.written[WRITTEN.len()..]
}

const GPU: [u8; 16] = [7; 16];
const OTHER: [u8; 16] = [8; 16];

fn world() -> World {
    let folder = tempfile::tempdir().unwrap();
    let vm = |name: &str| {
        let mut vm = VmSettings {
            name: name.into(),
            share: Share::default(),
            options: VmOptions::default(),
            written: Vec::new(),
            parts: Vec::new(),
            own_paths: Vec::new(),
            reserved_memory: 0,
        };
        write(&mut vm, &[]);
        vm
    };
    let settings = Settings {
        policy: Policy::Fixed,
        anticipation: None,
        hardware_slices: Default::default(),
        control_socket: folder.path().join("control"),
        control_socket_group: None,
        metrics: None,
        cgroup: Default::default(),
        log_grants: None,
        room: Default::default(),
        vms: vec![vm("a"), vm("b")],
    };
    let mut broker = Broker::new(settings, no_file()).unwrap();
    let mut peers = Vec::new();
    for index in 0..2 {
        let (process, peer) = Process::played().unwrap();
        broker.watch_process(index, &process).unwrap();
        broker.vms[index].process = Some(process);
        broker.vms[index].start_at = None;
        peers.push(peer);
    }
    World { broker, peers, now: page_clock(), _folder: folder }
}

impl World {
    fn say(&mut self, vm: usize, message: &ToBroker) {
        self.peers[vm].send(message, None).unwrap();
        self.broker.channel(vm, Events::EPOLLIN, self.now);
    }

    /// Gives a VM whose device process has ended another one.
    fn start_anew(&mut self, vm: usize) {
        let (process, peer) = Process::played().unwrap();
        self.broker.watch_process(vm, &process).unwrap();
        self.broker.vms[vm].process = Some(process);
        self.peers[vm] = peer;
    }

    fn begin(&mut self, vm: usize, ctx_id: u32) -> GateSide {
        self.begin_on(vm, ctx_id, 0)
    }

    fn begin_on(&mut self, vm: usize, ctx_id: u32, gpu: u8) -> GateSide {
        let page = grant_page().unwrap();
        self.begin_with(vm, ctx_id, gpu, page.as_fd());
        GateSide::open(&page).unwrap()
    }

    /// Has a context come to a GPU, whether it has begun or not.
    fn come(&mut self, vm: usize, ctx_id: u32, gpu: u8) -> GateSide {
        let page = grant_page().unwrap();
        self.pass(vm, &comes(ctx_id, gpu), page.as_fd());
        GateSide::open(&page).unwrap()
    }

    /// Has a context come to a GPU. A new context begins first.
    fn begin_with(&mut self, vm: usize, ctx_id: u32, gpu: u8, page: BorrowedFd<'_>) {
        let known = self.broker.vms.get(vm).is_some_and(|vm| vm.contexts.contains_key(&ContextId(ctx_id)));
        if !known {
            self.begin_ringing(vm, ctx_id, OwnedFd::from(Doorbell::new().unwrap()).as_fd());
        }
        self.pass(vm, &comes(ctx_id, gpu), page);
    }

    /// Has a context begin, on no GPU yet, whose worker rings this doorbell.
    fn begin_ringing(&mut self, vm: usize, ctx_id: u32, doorbell: BorrowedFd<'_>) {
        self.pass(vm, &begins(ctx_id), doorbell);
    }

    fn pass(&mut self, vm: usize, message: &ToBroker, file: BorrowedFd<'_>) {
        self.peers[vm].send(message, Some(file)).unwrap();
        self.broker.channel(vm, Events::EPOLLIN, self.now);
    }

    /// Has the broker do its work for the events that woke it.
    fn wake(&mut self) -> usize {
        let mut reported = Reported::default();
        reported.fetch(&self.broker.epoll, Some(Duration::ZERO)).unwrap();
        self.broker.turn(reported.events(), self.now);
        reported.events().len()
    }

    /// Has a worker of the VM ring.
    fn ring(&mut self, vm: usize) {
        self.broker.turn(&[Event::new(Events::EPOLLIN, Source::Doorbell.token(vm))], self.now);
    }

    /// Checks that the first VM has not harmed the second, whose context is granted its ready submission.
    #[track_caller]
    fn check_second(&mut self, gate: &GateSide) {
        gate.tell(Counters { ready: 1, dispatched: 0, completed: 0 });
        self.ring(1);
        assert_eq!((gate.granted(), self.is_dying(1)), (1, false));
    }

    fn is_dying(&self, vm: usize) -> bool {
        self.broker.vms[vm].process.as_ref().is_none_or(|process| process.dying)
    }

    fn heard(&self, vm: usize) -> Vec<FromBroker> {
        std::iter::from_fn(|| self.peers[vm].try_receive().ok().flatten())
            .map(|(message, _)| message)
            .collect()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let both = |vm: &mut Vm| [vm.process.take(), vm.successor.take().map(|successor| successor.process)];
        for mut process in self.broker.vms.iter_mut().flat_map(both).flatten() {
            process.kill();
            let _ = process.reap();
        }
    }
}

fn ready() -> ToBroker {
    ready_on(&[GPU])
}

fn ready_on(gpus: &[[u8; 16]]) -> ToBroker {
    ToBroker::Ready {
        gpus: gpus
            .iter()
            .map(|uuid| SharedGpu {
                uuid: *uuid,
                name: "GPU".into(),
                memory: 8 << 30,
                ..SharedGpu::default()
            })
            .collect(),
        limits: HeldMemory { device: 1 << 30, host: u64::MAX },
        in_force: InForce { window_size: 1 << 30, queues: "all".into(), ..InForce::default() },
    }
}

/// Returns the same message, but guests see only the first `seen` GPUs.
fn with_spares(ready: ToBroker, seen: usize) -> ToBroker {
    let ToBroker::Ready { mut gpus, limits, in_force } = ready else { unreachable!() };
    gpus[seen..].iter_mut().for_each(|gpu| gpu.spare = true);
    ToBroker::Ready { gpus, limits, in_force }
}

fn begins(ctx_id: u32) -> ToBroker {
    ToBroker::ContextBegins { ctx_id: ContextId(ctx_id), debug_name: "demo".into() }
}

fn comes(ctx_id: u32, gpu: u8) -> ToBroker {
    ToBroker::ContextComes { ctx_id: ContextId(ctx_id), gpu }
}

#[test]
fn what_is_ready_is_granted_at_the_doorbell() {
    let mut world = world();
    world.say(0, &ready());
    let gate = world.begin(0, 3);
    gate.tell(Counters { ready: 1, dispatched: 0, completed: 0 });
    world.ring(0);
    assert_eq!(gate.granted(), 1);
}

#[test]
fn a_worker_is_heard_by_its_own_doorbell_whatever_another_does_to_its_own() {
    let mut world = world();
    world.say(0, &ready());
    let (bad, good) = (Doorbell::new().unwrap(), Doorbell::new().unwrap());
    world.begin_ringing(0, 1, bad.as_fd());
    world.begin_ringing(0, 2, good.as_fd());
    let (_, gate) = (world.begin(0, 1), world.begin(0, 2));
    while world.wake() > 0 {}
    // From now on, reading from this descriptor would wait, and writing too.
    rustix::fs::fcntl_setfl(&bad, rustix::fs::OFlags::empty()).unwrap();
    rustix::io::write(&bad, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    assert_eq!(world.wake(), 1);
    rustix::io::read(&bad, &mut [0; 8]).unwrap();
    gate.tell(READY);
    good.ring();
    assert!(world.wake() > 0);
    assert_eq!(gate.granted(), 1);
    world.say(0, &ends(2));
    good.ring();
    world.wake();
    assert_eq!(world.wake(), 0, "a context that has ended is heard no more");
}

#[test]
fn a_device_process_that_says_what_it_must_not_ends_alone() {
    let early = |world: &mut World| drop(world.begin(0, 1));
    let twice = |world: &mut World| {
        world.say(0, &ready());
        drop((world.begin(0, 1), world.begin(0, 1)));
    };
    let ready_twice = |world: &mut World| (0..2).for_each(|_| world.say(0, &ready()));
    let no_page = |world: &mut World| {
        world.say(0, &ready());
        drop(world.begin(0, 1));
        world.say(0, &comes(1, 0));
    };
    let wrong_page = |world: &mut World| {
        world.say(0, &ready());
        world.begin_with(0, 1, 0, tempfile::tempfile().unwrap().as_fd());
    };
    let no_gpu = |world: &mut World| world.say(0, &ready_on(&[]));
    let many_gpus =
        |world: &mut World| world.say(0, &ready_on(&[0, 1, 2, 3, 4, 5, 6, 7, 8].map(|id| [id; 16])));
    let gpu_twice = |world: &mut World| world.say(0, &ready_on(&[GPU, OTHER, GPU]));
    let on_two = |world: &mut World, gpus: &[u8]| {
        world.say(0, &ready_on(&[GPU, OTHER]));
        gpus.iter().for_each(|gpu| drop(world.begin_on(0, 1, *gpu)));
    };
    let no_such_gpu = |world: &mut World| on_two(world, &[0, 1, 2]);
    let no_such_gpu_first = |world: &mut World| on_two(world, &[255]);
    let twice_on_the_second = |world: &mut World| on_two(world, &[0, 1, 1]);
    let twice_on_the_first = |world: &mut World| on_two(world, &[0, 0]);
    let only_spare = |world: &mut World| world.say(0, &with_spares(ready(), 0));
    let spare_first = |world: &mut World| {
        let ToBroker::Ready { mut gpus, limits, in_force } = ready_on(&[GPU, OTHER]) else { unreachable!() };
        gpus[0].spare = true;
        world.say(0, &ToBroker::Ready { gpus, limits, in_force });
    };
    let garbage = |world: &mut World| {
        rustix::net::send(&world.peers[0], &[0xff; 64], rustix::net::SendFlags::empty()).unwrap();
        world.broker.channel(0, Events::EPOLLIN, world.now);
    };
    let doorbells = |world: &mut World, files: &[OwnedFd]| {
        world.say(0, &ready());
        files.iter().for_each(|file| world.begin_ringing(0, 1, file.as_fd()));
    };
    let two_doorbells = |world: &mut World| {
        doorbells(world, &[Doorbell::new().unwrap().into(), Doorbell::new().unwrap().into()]);
    };
    let without_doorbell = |world: &mut World| {
        world.say(0, &ready());
        world.say(0, &begins(1));
    };
    let no_doorbell = |world: &mut World| doorbells(world, &[rustix::pipe::pipe().unwrap().0]);
    // When it looks for events at an epoll instance, the kernel takes a lock, which other processes may hold.
    let waits = |world: &mut World| doorbells(world, &[readiness::instance().unwrap()]);
    type Misbehave<'a> = &'a dyn Fn(&mut World);
    let cases: [(&str, Misbehave<'_>); 19] = [
        ("two doorbells", &two_doorbells),
        ("no doorbell", &without_doorbell),
        ("a pipe for a doorbell", &no_doorbell),
        ("an epoll instance for a doorbell", &waits),
        ("no GPU", &no_gpu),
        ("too many GPUs", &many_gpus),
        ("a GPU twice", &gpu_twice),
        ("a context on a GPU that the VM does not have", &no_such_gpu),
        ("a context that begins with such a GPU", &no_such_gpu_first),
        ("a context twice on its second GPU", &twice_on_the_second),
        ("a context twice on its first GPU", &twice_on_the_first),
        ("a spare GPU only", &only_spare),
        ("a spare GPU before others", &spare_first),
        ("a context before it is ready", &early),
        ("a context twice", &twice),
        ("ready twice", &ready_twice),
        ("no page", &no_page),
        ("a page that can shrink", &wrong_page),
        ("garbage", &garbage),
    ];
    for (what, misbehave) in cases {
        let mut world = world();
        world.say(1, &ready());
        let gate = world.begin(1, 1);
        misbehave(&mut world);
        assert!(world.is_dying(0), "{what}");
        assert!(world.broker.vms[1].contexts.len() == 1, "{what}");
        world.check_second(&gate);
    }
}

#[test]
fn one_that_does_not_read_is_ended_and_nobody_waits_for_it() {
    let mut world = world();
    for _ in 0..100_000 {
        world.broker.tell(0, FromBroker::Report);
    }
    assert!(world.is_dying(0));
}

#[test]
fn more_contexts_than_allowed_are_refused() {
    let mut world = world();
    world.say(0, &ready());
    let _gates: Vec<_> = (1..=3).map(|ctx_id| world.begin(0, ctx_id)).collect();
    assert_eq!(world.heard(0), [FromBroker::Kill { ctx_id: ContextId(3) }]);
    world.say(0, &ToBroker::ContextEnds { ctx_id: ContextId(3), lost: Some("killed".into()), hung: false });
    assert_eq!((world.broker.vms[0].contexts.len(), world.broker.vms[0].past.kills.refused), (2, 1));
    assert!(!world.is_dying(0));
}

#[test]
fn one_that_ends_leaves_no_context_and_is_started_again() {
    let mut world = world();
    world.say(0, &ready());
    let _gate = world.begin(0, 1);
    world.broker.vms[0].process.as_mut().unwrap().kill();
    world.broker.child_ended(0, world.now);
    let vm = &world.broker.vms[0];
    assert!(vm.process.is_none() && vm.contexts.is_empty() && !vm.gpus.is_empty());
    assert!(vm.start_at.is_some_and(|at| at > world.now) && vm.past.restarts == 1);
}

#[test]
fn fixed_parts_are_of_all_that_may_be_on_the_gpu() {
    let mut world = world();
    world.say(0, &ready());
    assert_eq!(world.broker.weights_on(0), 200, "where the other will be is not known");
    world.say(1, &ready_on(&[OTHER]));
    assert_eq!((world.broker.weights_on(0), world.broker.weights_on(1)), (100, 100));
    let mut world = super::tests::world();
    world.say(0, &ready_on(&[GPU, OTHER]));
    world.say(1, &ready_on(&[OTHER]));
    assert_eq!((world.broker.weights_on(0), world.broker.weights_on(1)), (100, 200));
}

#[test]
fn names_are_short_and_cannot_move_the_cursor() {
    assert_eq!(printable("llama\u{1b}[2J\n"), "llama?[2J?");
    assert_eq!(printable(&"ä".repeat(100)).len(), NAME_BYTES);
}

const READY: Counters = Counters { ready: 1, dispatched: 0, completed: 0 };
const DONE: Counters = Counters { ready: 0, dispatched: 1, completed: 1 };

fn ends(ctx_id: u32) -> ToBroker {
    ToBroker::ContextEnds { ctx_id: ContextId(ctx_id), lost: Some("gone".into()), hung: false }
}

#[test]
fn a_vm_is_a_tenant_on_each_of_its_gpus_and_what_it_uses_is_the_sum() {
    let mut world = world();
    world.say(0, &ready_on(&[OTHER, GPU]));
    world.say(1, &ready());
    let gates = [world.begin_on(0, 3, 0), world.begin_on(0, 3, 1)];
    gates[1].tell(READY);
    world.ring(0);
    assert_eq!((gates[0].granted(), gates[1].granted()), (0, 1), "each GPU has a scheduler of its own");
    gates[0].tell(READY);
    world.ring(0);
    assert_eq!((gates[0].granted(), gates[1].granted()), (1, 1));
    world.now += 5_000_000;
    for (gate, busy) in gates.iter().zip([2_000_000, 3_000_000]) {
        let end = world.now;
        assert!(gate.tell_work(&Work { begin: end - busy, end, busy, count: 1, copy: false }));
        gate.tell(DONE);
    }
    gates[0].tell_cpu(Duration::from_millis(5));
    world.ring(0);
    world.say(
        0,
        &ToBroker::Memory {
            contexts: vec![(ContextId(3), held(9))],
            vm: held(9),
            unmovable: vec![],
            recoverable: vec![],
        },
    );
    let status = world.broker.status(world.now);
    let (vm, uuids) = (&status.vms[0], [OTHER, GPU].map(|uuid| format!("{:02x}", uuid[0]).repeat(16)));
    assert_eq!(vm.gpus.iter().map(|on| &on.uuid).collect::<Vec<_>>(), uuids.iter().collect::<Vec<_>>());
    assert_eq!(vm.gpus.iter().map(|on| on.submissions).collect::<Vec<_>>(), [1, 1]);
    assert!((vm.used.gpu_seconds - vm.gpus.iter().map(|on| on.gpu_seconds).sum::<f64>()).abs() < 1e-9);
    assert!(vm.gpus.iter().all(|on| on.gpu_seconds > 0.0), "{vm:?}");
    // The VM is alone on one GPU, and beside the other VM on the second GPU, where it gets no more than its part of the weights.
    assert_eq!(vm.gpus.iter().map(|on| on.ceiling).collect::<Vec<_>>(), [Some(1.0), Some(0.5)]);
    assert_eq!(vm.ceiling, Some(0.5));
    let context = &vm.contexts[0];
    assert_eq!((vm.contexts.len(), context.used.submissions, context.used.device_memory), (1, 2, 9));
    assert_eq!((context.used.cpu_seconds, vm.used.cpu_seconds), (0.005, 0.005));
    world.say(0, &ends(3));
    let status = world.broker.status(world.now);
    assert_eq!((status.vms[0].contexts.len(), status.vms[0].used.submissions), (0, 2));
    assert_eq!((status.vms[0].kills.lost, status.vms[0].used.cpu_seconds), (1, 0.005));
    assert!(world.broker.gpus.iter_mut().all(|gpu| gpu.context(ContextKey(1)).is_none()));
    assert!(world.broker.gpus.iter_mut().all(|gpu| gpu.context(ContextKey(2)).is_none()));
}

#[test]
fn of_each_gpu_it_is_told_what_is_promised_and_what_is_free() {
    let mut world = world();
    let told = |world: &mut World| -> Vec<_> {
        let status = world.broker.status(world.now);
        status
            .gpus
            .iter()
            .map(|gpu| (gpu.device_memory_promised, gpu.device_memory_free, gpu.weights))
            .collect()
    };
    let states = |world: &mut World| -> Vec<_> {
        let status = world.broker.status(world.now);
        status.gpus.iter().map(|gpu| (gpu.vms.starting, gpu.vms.waiting, gpu.vms.connected)).collect()
    };
    let bound = |world: &mut World, vm: usize, gib: Option<u64>| {
        let quotas = &mut world.broker.vms[vm].settings.options.quotas;
        quotas.device_memory = gib.map(|gib| Amount::Bytes(gib << 30));
    };
    bound(&mut world, 0, Some(6));
    bound(&mut world, 1, Some(1));
    world.say(0, &ready_on(&[GPU]));
    // The GPU of the other VM is not known yet.
    assert_eq!(told(&mut world), [(7 << 30, 1 << 30, 200)]);
    assert_eq!(states(&mut world), [(1, 1, 0)]);
    world.say(1, &ready_on(&[OTHER]));
    world.say(1, &ToBroker::Frontend { connected: true });
    assert_eq!(told(&mut world), [(6 << 30, 2 << 30, 100), (1 << 30, 7 << 30, 100)]);
    assert_eq!(states(&mut world), [(0, 1, 0), (0, 0, 1)]);
    // A VM without a bound may take all memory of the GPU.
    bound(&mut world, 1, None);
    assert_eq!(told(&mut world), [(6 << 30, 2 << 30, 100), (8 << 30, 0, 100)]);
}

fn held(bytes: u64) -> HeldMemory {
    HeldMemory { device: bytes, host: 0 }
}

#[test]
fn a_share_is_set_on_all_gpus_and_a_context_is_killed_once() {
    let mut world = world();
    world.say(0, &ready_on(&[GPU, OTHER]));
    let _gates = [world.begin_on(0, 3, 0), world.begin_on(0, 3, 1)];
    let change = Change { class: Some("background".into()), ..Change::default() };
    world.broker.obey(Request::Set { vm: "a".into(), change }, world.now).unwrap();
    let tenant = world.broker.vms[0].tenant;
    assert!(world.broker.gpus.iter().all(|gpu| gpu.share(tenant).unwrap().class == Class::Background));
    world.broker.obey(Request::Kill { vm: "a".into(), context: 3 }, world.now).unwrap();
    assert_eq!(world.heard(0), [FromBroker::Kill { ctx_id: ContextId(3) }]);
    world.say(0, &ends(3));
    let kills = world.broker.vms[0].past.kills;
    assert_eq!((kills.operator, kills.sum()), (1, 1));
}

#[test]
fn a_device_process_that_does_not_end_what_an_operator_ends_is_ended() {
    let mut world = world();
    for vm in [0, 1] {
        world.say(vm, &ready_on(&[GPU]));
    }
    let _gates = [world.begin(0, 3), world.begin(0, 4), world.begin(1, 3)];
    let now = world.now;
    for context in [3, 4] {
        world.broker.obey(Request::Kill { vm: "a".into(), context }, now).unwrap();
    }
    world.say(0, &ends(3));
    let deadline = world.broker.vms[0].kill_deadline().unwrap();
    assert!(deadline > now);
    world.broker.end_deaf(deadline - 1);
    assert!(!world.is_dying(0));
    // A repeated request gives the device process no more time.
    world.broker.obey(Request::Kill { vm: "a".into(), context: 4 }, deadline - 1).unwrap();
    world.broker.end_deaf(deadline);
    assert!(world.is_dying(0) && !world.is_dying(1));
    assert_eq!(world.broker.vms[0].kill_deadline(), None, "it is ended once");
}

#[test]
fn a_context_that_is_refused_begins_on_no_gpu_and_is_refused_once() {
    let mut world = world();
    world.say(0, &ready_on(&[GPU, OTHER]));
    for ctx_id in 1..=3 {
        drop((world.begin_on(0, ctx_id, 0), world.come(0, ctx_id, 1)));
    }
    assert_eq!(world.heard(0), [FromBroker::Kill { ctx_id: ContextId(3) }]);
    assert!(!world.is_dying(0));
    assert_eq!((world.broker.vms[0].contexts.len(), world.broker.vms[0].past.kills.refused), (2, 1));
}

#[test]
fn a_context_that_begins_on_some_gpus_only_or_ends_before_is_its_vms_loss() {
    let mut world = world();
    world.say(0, &ready_on(&[GPU, OTHER]));
    world.say(1, &ready_on(&[OTHER]));
    let second = world.begin(1, 1);
    let first = world.begin_on(0, 1, 0);
    first.tell(READY);
    world.ring(0);
    assert_eq!(first.granted(), 1, "it is served where it has begun");
    world.say(0, &ends(1));
    let late = world.come(0, 1, 1);
    late.tell(READY);
    world.ring(0);
    assert_eq!((late.granted(), world.broker.vms[0].contexts.len()), (0, 0), "it has ended");
    // The number of a context that has ended can be taken again.
    let again = [world.begin_on(0, 1, 0), world.begin_on(0, 1, 1)];
    again[1].tell(READY);
    world.ring(0);
    assert_eq!((again[1].granted(), world.is_dying(0)), (1, false));
    world.check_second(&second);
}

#[test]
fn a_page_that_is_given_twice_harms_nobody_else() {
    let mut world = world();
    world.say(0, &ready_on(&[GPU, OTHER]));
    world.say(1, &ready_on(&[OTHER]));
    let second = world.begin(1, 1);
    let page = grant_page().unwrap();
    for (ctx_id, gpu) in [(1, 0), (1, 1), (2, 0), (2, 1)] {
        world.begin_with(0, ctx_id, gpu, page.as_fd());
    }
    let gate = GateSide::open(&page).unwrap();
    for round in 1..100u32 {
        gate.tell(Counters { ready: round % 3, dispatched: round, completed: round - 1 });
        world.now += 1000;
        let end = world.now;
        gate.tell_work(&Work { begin: end - 1000, end, busy: 1000, count: 1, copy: false });
        world.ring(0);
    }
    world.say(0, &ends(1));
    world.say(0, &ends(2));
    world.check_second(&second);
    let used: f64 = world.broker.status(world.now).vms[0].gpus.iter().map(|on| on.gpu_seconds).sum();
    assert!(used < 1.0, "{used}");
}

#[test]
fn a_vm_whose_gpus_are_others_than_before_is_a_tenant_there_only() {
    let mut world = world();
    world.say(0, &ready_on(&[GPU, OTHER]));
    let gates = [world.begin_on(0, 1, 0), world.begin_on(0, 1, 1)];
    for gate in &gates {
        gate.tell(READY);
        world.ring(0);
        gate.tell(DONE);
        world.ring(0);
    }
    world.broker.vms[0].process.as_mut().unwrap().kill();
    world.broker.child_ended(0, world.now);
    world.start_anew(0);
    world.say(0, &ready_on(&[[9; 16], OTHER]));
    let tenant = world.broker.vms[0].tenant;
    let is_on: Vec<_> = world.broker.gpus.iter().map(|gpu| gpu.share(tenant).is_some()).collect();
    assert_eq!(is_on, [false, true, true]);
    assert_eq!(world.broker.vms[0].gpus.iter().map(|on| on.gpu).collect::<Vec<_>>(), [2, 1]);
    let status = world.broker.status(world.now);
    let vm = &status.vms[0];
    assert_eq!(vm.gpus.iter().map(|on| on.submissions).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(vm.used.submissions, 2, "the VM's total falls with the GPU that it left");
}

/// Returns a world whose broker has a service manager, and a function that returns the messages to this manager.
fn managed() -> (World, impl FnMut() -> Vec<String>) {
    let mut world = world();
    let (manager, theirs) = Manager::played();
    world.broker.manager = manager;
    let next = move || {
        let mut bytes = [0; 4096];
        theirs.recv(&mut bytes).ok().map(|count| String::from_utf8_lossy(&bytes[..count]).into_owned())
    };
    (world, move || std::iter::from_fn(&next).collect())
}

#[test]
fn a_broker_is_ready_when_each_vm_was_started_whatever_came_of_it() {
    let (mut world, mut told) = managed();
    world.say(0, &ready());
    world.broker.tell_manager(world.now);
    assert!(!told().concat().contains("READY=1"), "the second VM is not known yet");
    world.broker.vms[1].process.as_mut().unwrap().kill();
    world.broker.child_ended(1, world.now);
    world.broker.tell_manager(world.now);
    assert_eq!(told()[0], "READY=1\nSTATUS=2 VMs: 1 waiting, 1 ended (see log)\n");
    world.broker.tell_manager(world.now);
    assert!(!told().concat().contains("READY=1"), "once is enough");
}

#[test]
fn a_vm_that_starts_for_ever_does_not_keep_the_broker_from_being_ready() {
    let (mut world, mut told) = managed();
    world.say(0, &ready());
    let late = world.broker.ready_by();
    world.broker.tell_manager(late - 1);
    assert!(!told().concat().contains("READY=1"));
    world.broker.tell_manager(late);
    assert_eq!(told()[0], "READY=1\nSTATUS=2 VMs: 1 waiting, 1 starting\n");
}

#[test]
fn what_is_in_force_for_a_vm_and_what_was_replaced_below_it_is_told() {
    let mut world = world();
    write(&mut world.broker.vms[0].settings, &["queues=all", "socket-path=/a"]);
    world.say(0, &ready());
    let program = || Replaced::Program("/usr/bin/pro\u{1b}gram".into());
    for what in
        [program(), Replaced::Driver("/usr/lib/driver".into()), program(), Replaced::Driver("/x".into())]
    {
        world.say(0, &ToBroker::Replaced { what });
    }
    assert_eq!(
        world.broker.vms[0].process.as_ref().unwrap().replaced,
        [Replaced::Program("/usr/bin/pro?gram".into()), Replaced::Driver("/usr/lib/driver".into())],
        "each kind once, as a terminal may get it"
    );
    let status = world.broker.status(world.now);
    assert_eq!((status.form, status.version.is_empty()), (1, false));
    assert_eq!(status.upgrade.as_deref(), Some("the program was replaced (/usr/bin/pro?gram)"));
    let [a, b] = status.vms.as_slice() else { panic!("{:?}", status.vms) };
    assert_eq!(a.options, [WRITTEN, &["queues=all"]].concat());
    assert_eq!(a.replaced, ["the GPU's driver was replaced (/usr/lib/driver)"]);
    assert_eq!(a.in_force.as_ref().map(|device| device.queues.as_str()), Some("all"));
    assert!(b.in_force.is_none() && b.replaced.is_empty());
}
