//! Device processes that are played: what they may say, and that one which says more ends alone.

use super::*;
use crate::broker::settings::{Settings, VmSettings};
use crate::broker::share::Policy;
use crate::ipc::Channel;
use crate::sched::Share;
use crate::shm::{Counters, GateSide, grant_page};
use std::os::fd::AsFd;
use std::time::Instant;

/// Two VMs whose device processes are played.
struct World {
    broker: Broker,
    peers: Vec<Channel>,
    _folder: tempfile::TempDir,
}

const GPU: [u8; 16] = [7; 16];

fn world() -> World {
    let folder = tempfile::tempdir().unwrap();
    let vm = |name: &str| VmSettings {
        name: name.into(),
        share: Share::default(),
        arguments: Vec::new(),
        contexts: 2,
        max_submit_time_contended: Duration::from_secs(10),
    };
    let settings = Settings {
        policy: Policy::Fixed,
        anticipation: 0.0,
        control_socket: folder.path().join("control"),
        metrics: None,
        log_grants: None,
        vms: vec![vm("a"), vm("b")],
    };
    let mut broker = Broker::new(settings).unwrap();
    let mut peers = Vec::new();
    for index in 0..2 {
        let (process, peer) = Process::played().unwrap();
        broker.watch_process(index, &process).unwrap();
        broker.vms[index].process = Some(process);
        broker.vms[index].start_at = None;
        peers.push(peer);
    }
    World { broker, peers, _folder: folder }
}

impl World {
    fn say(&mut self, vm: usize, message: &ToBroker) {
        self.peers[vm].send(message, None).unwrap();
        self.broker.channel(vm, EventFlags::IN, clock());
    }

    fn begin(&mut self, vm: usize, ctx_id: u32) -> GateSide {
        let page = grant_page().unwrap();
        let begins = ToBroker::ContextBegins { ctx_id: ContextId(ctx_id), debug_name: "demo".into() };
        self.peers[vm].send(&begins, Some(page.as_fd())).unwrap();
        self.broker.channel(vm, EventFlags::IN, clock());
        GateSide::open(&page).unwrap()
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
        for process in self.broker.vms.iter_mut().filter_map(|vm| vm.process.as_mut()) {
            process.kill();
            let _ = process.reap();
        }
    }
}

fn ready() -> ToBroker {
    ToBroker::Ready { gpu: GPU, name: "GPU".into() }
}

#[test]
fn what_is_ready_is_granted_at_the_doorbell() {
    let mut world = world();
    world.say(0, &ready());
    let gate = world.begin(0, 3);
    gate.tell(Counters { ready: 1, dispatched: 0, completed: 0 });
    let event = rustix::event::epoll::Event {
        flags: EventFlags::IN,
        data: epoll::EventData::new_u64(Source::Doorbell.token(0)),
    };
    let before = Instant::now();
    world.broker.turn(&[event]);
    println!("granted after {:?}", before.elapsed());
    assert_eq!(gate.granted(), 1);
}

#[test]
fn a_device_process_that_says_what_it_must_not_ends_alone() {
    let begins = ToBroker::ContextBegins { ctx_id: ContextId(1), debug_name: "demo".into() };
    let early = |world: &mut World| drop(world.begin(0, 1));
    let twice = |world: &mut World| {
        world.say(0, &ready());
        drop((world.begin(0, 1), world.begin(0, 1)));
    };
    let ready_twice = |world: &mut World| (0..2).for_each(|_| world.say(0, &ready()));
    let no_page = |world: &mut World| {
        world.say(0, &ready());
        world.say(0, &begins);
    };
    let wrong_page = |world: &mut World| {
        world.say(0, &ready());
        world.peers[0].send(&begins, Some(tempfile::tempfile().unwrap().as_fd())).unwrap();
        world.broker.channel(0, EventFlags::IN, clock());
    };
    let garbage = |world: &mut World| {
        rustix::net::send(&world.peers[0], &[0xff; 64], rustix::net::SendFlags::empty()).unwrap();
        world.broker.channel(0, EventFlags::IN, clock());
    };
    type Misbehave<'a> = &'a dyn Fn(&mut World);
    let cases: [(&str, Misbehave<'_>); 6] = [
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
        let _gate = world.begin(1, 1);
        misbehave(&mut world);
        assert!(world.is_dying(0), "{what}");
        assert!(!world.is_dying(1) && world.broker.vms[1].contexts.len() == 1, "{what}");
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
    world.broker.child_ended(0, clock());
    let vm = &world.broker.vms[0];
    assert!(vm.process.is_none() && vm.contexts.is_empty() && vm.gpu.is_some());
    assert!(vm.start_at.is_some_and(|at| at > clock()) && vm.past.restarts == 1);
}

#[test]
fn fixed_parts_are_of_all_that_may_be_on_the_gpu() {
    let mut world = world();
    world.say(0, &ready());
    assert_eq!(world.broker.weights_on(0), 200, "where the other will be is not known");
    world.say(1, &ToBroker::Ready { gpu: [8; 16], name: "other".into() });
    assert_eq!((world.broker.weights_on(0), world.broker.weights_on(1)), (100, 100));
}

#[test]
fn names_are_short_and_cannot_move_the_cursor() {
    assert_eq!(printable("llama\u{1b}[2J\n"), "llama?[2J?");
    assert_eq!(printable(&"ä".repeat(100)).len(), NAME_BYTES);
}
