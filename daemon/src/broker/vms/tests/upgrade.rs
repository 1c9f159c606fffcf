//! Tests that a broker's written state goes on in another broker, and that damaged texts do no harm.

use super::*;
use crate::broker::control::Answer;
use crate::broker::upgrade::passing::Inherited;
use crate::broker::upgrade::rehearsal::Program;
use crate::broker::upgrade::{Stage, Upgrading};
use crate::broker::vms::state::{BrokerState, Predecessor};
use crate::ipc::RoomState;
use config::Amount;
use std::os::fd::IntoRawFd;
use std::os::unix::net::UnixStream;

impl World {
    /// Writes the broker down, with copies of its descriptors.
    fn written(&self) -> Vec<u8> {
        let mut copies = Vec::new();
        let mut pass = |file: BorrowedFd<'_>| {
            let copy = rustix::io::dup(file)?.into_raw_fd();
            copies.push(copy);
            io::Result::Ok(copy)
        };
        self.broker.state(None, self.now, &mut pass).unwrap().to_text(copies).unwrap()
    }

    /// Puts another broker in the place of this one.
    fn follow(&mut self) {
        let (state, descriptors) = BrokerState::of_text(&self.written()).unwrap();
        let before = Predecessor { state, inherited: Inherited::all(descriptors).unwrap() };
        self.broker = Broker::resume(before, no_file()).unwrap();
        self.now = page_clock();
    }
}

fn connected(world: &mut World) {
    for vm in 0..2 {
        world.say(vm, &ready());
        world.say(vm, &ToBroker::Frontend { connected: true });
    }
}

#[test]
fn a_broker_that_follows_grants_and_counts_where_the_one_before_was() {
    let mut world = world();
    connected(&mut world);
    let gate = world.begin(0, 3);
    gate.tell(Counters { ready: 1, dispatched: 0, completed: 0 });
    world.ring(0);
    assert_eq!(gate.granted(), 1);
    gate.tell(Counters { ready: 0, dispatched: 1, completed: 0 });
    world.ring(0);
    world.broker.vms[0].share.weight = 7;
    world.broker.vms[1].past.kills.refused = 9;
    let second = world.begin(1, 5);
    world.follow();
    let status = world.broker.status(world.now);
    let vm = &status.vms[0];
    assert_eq!((vm.state.as_str(), vm.weight, vm.contexts.len()), ("connected", 7, 1));
    assert_eq!(status.vms[1].kills.refused, 9);
    assert!(!vm.replaced.is_empty(), "that the device process is of an older program is said");
    // The worker completes the submissions that were granted before, and gets more grants.
    gate.tell(Counters { ready: 1, dispatched: 1, completed: 1 });
    // The longer the context held the GPU, the later the scheduler grants its next submission; real time has passed meanwhile.
    let until = world.now + 10 * SECOND;
    while gate.granted() < 2 && world.now < until {
        world.now += SECOND / 1000;
        world.ring(0);
    }
    assert_eq!(gate.granted(), 2);
    let usage = world.broker.status(world.now).vms[0].used.submissions;
    assert_eq!(usage, 1);
    gate.tell(Counters { ready: 0, dispatched: 2, completed: 2 });
    world.ring(0);
    world.check_second(&second);
    // Messages from and to device processes pass as before, and no context can begin twice.
    world.broker.tell(0, FromBroker::Kill { ctx_id: ContextId(3) });
    assert_eq!(world.heard(0), [FromBroker::Kill { ctx_id: ContextId(3) }]);
    world.say(0, &ToBroker::ContextEnds { ctx_id: ContextId(3), lost: None, hung: false });
    assert!(world.broker.vms[0].contexts.is_empty() && !world.is_dying(0));
    let new = world.begin(0, 3);
    new.tell(Counters { ready: 1, dispatched: 0, completed: 0 });
    world.ring(0);
    assert!(!world.is_dying(0));
}

#[test]
fn messages_for_a_device_process_that_does_not_read_are_passed_on() {
    let mut world = world();
    connected(&mut world);
    let mut sent = 0;
    let mut kill = || {
        let ctx_id = ContextId(sent);
        sent += 1;
        world.broker.vms[0].process.as_mut().unwrap().send(FromBroker::Kill { ctx_id }).unwrap()
    };
    while !kill() {}
    assert!((0..3).all(|_| kill()), "more of them wait");
    world.follow();
    let mut heard = Vec::new();
    while heard.len() < sent as usize {
        let more = world.heard(0);
        assert!(!more.is_empty() || !world.is_dying(0));
        heard.extend(more);
        world.broker.channel(0, Events::EPOLLOUT, world.now);
    }
    let wanted: Vec<_> = (0..sent).map(|number| FromBroker::Kill { ctx_id: ContextId(number) }).collect();
    assert_eq!(heard, wanted);
}

#[test]
fn a_device_process_of_the_program_before_ends_when_its_vm_is_off() {
    let mut world = world();
    connected(&mut world);
    world.follow();
    assert_eq!((world.broker.vms[0].ending, world.broker.vms[1].ending), (None, None));
    world.say(0, &ToBroker::Frontend { connected: false });
    assert!(world.broker.vms[0].ending.is_some() && world.broker.vms[1].ending.is_none());
}

#[test]
fn a_vm_of_which_something_is_missing_costs_no_other_vm_anything() {
    let mut world = world();
    connected(&mut world);
    let gates = [(0, 3), (1, 5)].map(|(vm, ctx_id)| world.begin(vm, ctx_id));
    let (mut state, descriptors) = BrokerState::of_text(&world.written()).unwrap();
    state.vms[0].contexts[0].places[0].page = -1;
    let before = Predecessor { state, inherited: Inherited::all(descriptors).unwrap() };
    world.broker = Broker::resume(before, no_file()).unwrap();
    assert!(world.is_dying(0));
    world.check_second(&gates[1]);
    world.broker.child_ended(0, world.now);
    assert!(world.broker.vms[0].contexts.is_empty() && world.broker.vms[0].start_at.is_some());
}

#[test]
fn what_would_put_an_upgrade_off_is_refused_while_it_waits() {
    let mut world = world();
    connected(&mut world);
    let (_, peer) = UnixStream::pair().unwrap();
    let peer = world.broker.connections.play(peer, &world.broker.epoll, world.now);
    let stage = Stage::Rests(Program::at("/bin/false".into()).unwrap(), Nanos::MAX);
    world.broker.requests.upgrading = Some(Upgrading { peer, stage, tell_at: Nanos::MAX });
    for request in [r#"{"request":"status"}"#, r#"{"request":"reload"}"#] {
        assert!(world.ask(request).hears_error().contains("ask again in a moment"));
    }
    assert!(world.broker.requests.waiting.is_empty());
    world.broker.vms[0].start_at = Some(0);
    world.broker.start_due(world.now);
    assert_eq!((world.broker.vms[0].start_at, world.broker.vms[0].is_starting), (Some(0), false));
    // This successor was asked for before.
    let (process, _successor) = Process::played().unwrap();
    world.broker.take_successor(0, Ok(process), world.now);
    assert!(is_ended(&world));
}

#[test]
fn a_text_that_was_changed_is_refused_or_means_something_and_panics_never() {
    let mut world = world();
    connected(&mut world);
    let _gate = world.begin(0, 3);
    let state = world.broker.state(None, world.now, &mut |_| Ok(3)).unwrap();
    let text = state.to_text(vec![3]).unwrap();
    assert!(BrokerState::of_text(&text).is_ok());
    let mut refused = 0;
    let mut read = |text: &[u8]| match BrokerState::of_text(text) {
        // None of the state's descriptors exists.
        Ok((state, _)) => {
            let before = Predecessor { state, inherited: Inherited::default() };
            assert!(Broker::resume(before, no_file()).is_err());
        }
        Err(_) => refused += 1,
    };
    (0..text.len()).for_each(|end| read(&text[..end]));
    for at in 0..text.len() {
        for byte in [b'0', b'9', b'-', b'"', b'}', b',', 0, 0xff] {
            let mut changed = text.clone();
            changed[at] = byte;
            read(&changed);
        }
    }
    assert!(refused > text.len());
}

/// Nanoseconds.
const SECOND: Nanos = 1_000_000_000;

/// Returns a world in which the first VM, which is connected, has a device process of an earlier program, and beside it one of this program.
fn with_successor() -> (World, Channel, u32) {
    let mut world = world();
    connected(&mut world);
    world.follow();
    assert!(world.broker.vms[0].renew_at.is_some(), "it is to be followed");
    world.broker.vms[1].renew_at = None;
    let (process, successor) = Process::played().unwrap();
    let pid = process.pid();
    world.broker.take_successor(0, Ok(process), world.now);
    (world, successor, pid)
}

/// Sends a message of the successor, and has the broker handle it.
fn says(world: &mut World, successor: &Channel, message: &ToBroker) {
    successor.send(message, None).unwrap();
    world.broker.hear_successor(0, world.now);
}

/// Has the successor be ready and serve the VM.
fn serves(world: &mut World, successor: &Channel) {
    says(world, successor, &ready());
    says(world, successor, &ToBroker::Frontend { connected: true });
}

/// Checks that the device process at the other end of this channel now serves the first VM: contexts are scheduled as before.
fn is_served_by(world: &mut World, successor: Channel) {
    world.peers[0] = successor;
    world.begin(0, 3);
    assert!(!world.is_dying(0) && world.broker.vms[0].contexts.len() == 1);
}

/// Kills a played device process, as if it died by itself.
fn crash(pid: u32) {
    let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

fn is_ended(world: &World) -> bool {
    world.broker.vms[0].successor.as_ref().is_some_and(|successor| successor.process.dying)
}

#[test]
fn a_successor_that_is_ready_and_whose_predecessor_ends_is_the_vms_device_process() {
    let (mut world, successor, pid) = with_successor();
    says(&mut world, &successor, &ready());
    let (message, old_end) = world.peers[0].receive::<FromBroker>().unwrap();
    let (same, new_end) = successor.receive::<FromBroker>().unwrap();
    assert_eq!((&message, &same), (&FromBroker::HandOn, &FromBroker::HandOn));
    let [old_end, new_end] = [old_end, new_end].map(|end| Channel::from_socket(end.unwrap()));
    old_end.send(&7u32, None).unwrap();
    assert_eq!(new_end.receive::<u32>().unwrap().0, 7);
    let old = world.broker.vms[0].process.as_ref().unwrap().pid();
    assert_ne!(old, pid);
    crash(old);
    world.broker.child_ended(0, world.now);
    let vm = &world.broker.vms[0];
    let process = vm.process.as_ref().unwrap();
    assert_eq!((process.pid(), process.connected, process.ready, process.is_older), (pid, true, true, false));
    assert_eq!((vm.start_at, vm.renew_at, vm.past.restarts), (None, None, 0));
    is_served_by(&mut world, successor);
}

#[test]
fn contexts_stay_with_a_vm_whose_device_process_passes_them_on() {
    let (mut world, successor, _) = with_successor();
    let gate = world.begin(0, 3);
    says(&mut world, &successor, &ready());
    assert!(!is_ended(&world));
    // The old one does not read these orders any more.
    let killed = world.ask(r#"{"request":"kill","vm":"a","context":3}"#).hears();
    assert_eq!(killed, Some(Answer::Done));
    let mut restarts = world.ask(r#"{"request":"restart","vm":"a","context":3}"#);
    restarts.hears();
    // The last message of the old process is handled, however late.
    world.peers[0]
        .send(&ToBroker::ContextEnds { ctx_id: ContextId(4), lost: None, hung: false }, None)
        .unwrap();
    world.peers[0].send(&ToBroker::Frontend { connected: true }, None).unwrap();
    says(&mut world, &successor, &ToBroker::Frontend { connected: true });
    // From now on, orders go to the new process.
    let orders = || {
        let all = std::iter::from_fn(|| successor.try_receive::<FromBroker>().ok().flatten());
        all.map(|(message, _)| message).filter(|message| *message != FromBroker::HandOn).collect::<Vec<_>>()
    };
    assert_eq!(orders(), [FromBroker::Kill { ctx_id: CONTEXT }], "it is repeated");
    assert!(restarts.hears_error().contains("try again"));
    world.broker.tell(0, FromBroker::Report);
    assert_eq!(orders(), [FromBroker::Report]);
    let old = world.broker.vms[0].process.as_ref().unwrap().pid();
    crash(old);
    world.broker.child_ended(0, world.now);
    assert!(matches!(orders()[..], [FromBroker::Place { .. }]), "it may not know where programs are placed");
    assert_eq!((world.broker.vms[0].contexts.len(), world.broker.vms[0].past.restarts), (1, 0));
    gate.tell(Counters { ready: 1, dispatched: 0, completed: 0 });
    world.ring(0);
    assert_eq!(gate.granted(), 1, "its worker is granted what it asks for");
    successor.send(&ToBroker::ContextEnds { ctx_id: CONTEXT, lost: None, hung: false }, None).unwrap();
    world.broker.channel(0, Events::EPOLLIN, world.now);
    assert!(world.broker.vms[0].contexts.is_empty() && !world.is_dying(0));
}

#[test]
fn contexts_stay_also_if_the_end_of_the_older_device_process_is_seen_first() {
    let (mut world, successor, _) = with_successor();
    world.begin(0, 3);
    says(&mut world, &successor, &ready());
    // The old process waits for this message before it ends, but the broker may see its end first.
    successor.send(&ToBroker::Frontend { connected: true }, None).unwrap();
    crash(world.broker.vms[0].process.as_ref().unwrap().pid());
    world.broker.child_ended(0, world.now);
    assert_eq!(world.broker.vms[0].contexts.len(), 1);
}

#[test]
fn contexts_end_with_both_device_processes() {
    let (mut world, successor, _) = with_successor();
    world.begin(0, 3);
    serves(&mut world, &successor);
    world.broker.end_successor(0, "test");
    crash(world.broker.vms[0].process.as_ref().unwrap().pid());
    world.broker.child_ended(0, world.now);
    let vm = &world.broker.vms[0];
    assert!(vm.contexts.is_empty() && vm.process.is_none());
}

#[test]
fn a_successor_with_other_gpus_than_those_that_programs_use_is_ended() {
    let (mut world, successor, _) = with_successor();
    world.begin(0, 3);
    let ToBroker::Ready { mut gpus, limits, in_force } = ready() else { unreachable!() };
    gpus[0].uuid[0] ^= 1;
    says(&mut world, &successor, &ToBroker::Ready { gpus, limits, in_force });
    assert!(is_ended(&world) && world.heard(0).is_empty());
    assert!(world.broker.vms[0].renew_at.is_some(), "these programs may end");
}

/// The context of the first VM.
const CONTEXT: ContextId = ContextId(3);

#[test]
fn where_memory_is_shared_a_vm_may_hold_the_same_with_its_next_device_process() {
    let (mut world, successor, _) = with_successor();
    world.broker.settings.room.gpu_memory = Some(Amount::Part(5000));
    world.broker.room_begins(0);
    world.begin(0, 3);
    world.heard(0);
    // The VM may hold more, but the old device process does not read this order any more.
    let lacks = RoomState { order: 1, lacks: 1 << 30, ..RoomState::default() };
    world.say(0, &ToBroker::Room(lacks));
    let may = world.broker.ledger.allows(0).unwrap();
    assert!(may >= 1 << 30);
    says(&mut world, &successor, &ready());
    assert!(!is_ended(&world));
    says(&mut world, &successor, &ToBroker::Frontend { connected: true });
    crash(world.broker.vms[0].process.as_ref().unwrap().pid());
    world.broker.child_ended(0, world.now);
    let heard = std::iter::from_fn(|| successor.try_receive::<FromBroker>().ok().flatten());
    let orders: Vec<_> = heard
        .filter_map(|(message, _)| match message {
            FromBroker::Room(order) => Some((order.number, order.most)),
            _ => None,
        })
        .collect();
    assert_eq!(orders, [(2, may)]);
    assert_eq!(world.broker.ledger.allows(0), Some(may), "others do not get it meanwhile");
    let holds = RoomState { order: 2, held: 1 << 30, ..RoomState::default() };
    successor.send(&ToBroker::Room(holds), None).unwrap();
    world.broker.channel(0, Events::EPOLLIN, world.now);
    assert!(!world.is_dying(0));
}

#[test]
fn a_successor_that_is_late_or_says_what_it_must_not_costs_the_vm_nothing() {
    for is_late in [true, false] {
        let (mut world, successor, _) = with_successor();
        if is_late {
            world.broker.renew_due(world.broker.next_renewal().unwrap());
        } else {
            says(&mut world, &successor, &ToBroker::Frontend { connected: true });
        }
        assert!(is_ended(&world) && !world.is_dying(0));
        world.broker.successor_ended(0, world.now);
        let next = world.broker.next_renewal();
        assert_eq!(next.is_some_and(|at| at > world.now), is_late, "nonsense would be said again");
        world.begin(0, 3);
        assert!(!world.is_dying(0));
    }
}

#[test]
fn a_successor_that_cannot_be_started_is_tried_again_after_a_pause() {
    let (mut world, _successor, _) = with_successor();
    world.broker.end_successor(0, "test");
    world.broker.successor_ended(0, world.now);
    let vm = &mut world.broker.vms[0];
    vm.renews(world.now);
    world.broker.take_successor(0, Err(io::ErrorKind::OutOfMemory.into()), world.now);
    assert_eq!(world.broker.next_renewal(), Some(world.now + 30 * SECOND));
    // No control group can be made for the next successor.
    let mut groups = serde_json::to_value(&world.broker.groups).unwrap();
    groups["delegated"] = serde_json::json!({ "path": "/nowhere/there", "lacks": [] });
    world.broker.groups = serde_json::from_value(groups).unwrap();
    let later = world.broker.next_renewal().unwrap();
    world.broker.renew_due(later);
    assert_eq!(world.broker.next_renewal(), Some(later + 60 * SECOND));
}

#[test]
fn pauses_between_successors_double() {
    let (mut world, _successor, _) = with_successor();
    let vm = &mut world.broker.vms[0];
    let mut pause = |now| {
        vm.renews(now);
        (vm.renew_at.unwrap() - now) / SECOND
    };
    let pauses: Vec<_> = (0..9).map(|at| pause(at * 10_000 * SECOND)).collect();
    assert_eq!(pauses, [30, 60, 120, 240, 480, 960, 1920, 3600, 3600]);
    vm.awaits_successor = false;
}

#[test]
fn only_one_vm_at_a_time_gets_a_successor() {
    let (mut world, _successor, _) = with_successor();
    world.broker.vms[1].renew_at = Some(world.now);
    let until = world.broker.vms[0].successor.as_ref().unwrap().until;
    assert_eq!(world.broker.next_renewal(), Some(until), "the first one is late then");
    world.broker.end_successor(0, "test");
    assert_eq!(world.broker.next_renewal(), None);
    world.broker.successor_ended(0, world.now);
    assert_eq!(world.broker.next_renewal(), Some(world.now));
}

#[test]
fn a_device_process_that_does_not_end_though_its_successor_serves_is_killed() {
    let (mut world, successor, pid) = with_successor();
    serves(&mut world, &successor);
    world.broker.renew_due(world.now + 10 * SECOND);
    assert!(!world.is_dying(0));
    let late = world.broker.next_renewal().unwrap();
    world.broker.renew_due(late);
    assert!(world.is_dying(0) && !is_ended(&world));
    assert_eq!(world.broker.next_renewal(), None, "its end is heard of");
    world.broker.child_ended(0, late);
    let vm = &world.broker.vms[0];
    assert_eq!(vm.process.as_ref().map(|process| (process.pid(), process.dying)), Some((pid, false)));
    is_served_by(&mut world, successor);
}

#[test]
fn a_vm_whose_successor_serves_and_ends_gets_another_device_process() {
    let (mut world, successor, pid) = with_successor();
    serves(&mut world, &successor);
    crash(pid);
    world.broker.successor_ended(0, world.now);
    assert!(world.is_dying(0), "it has passed the VM on");
    world.broker.child_ended(0, world.now);
    assert!(world.broker.vms[0].start_at.is_some());
}

#[test]
fn a_successor_that_was_killed_is_not_heard_any_more() {
    for is_ended_with_its_vm in [true, false] {
        let (mut world, successor, _) = with_successor();
        match is_ended_with_its_vm {
            true => world.broker.vms[0].end_process(world.now + SECOND),
            false => world.broker.end_successor(0, "test"),
        }
        drop(successor);
        world.broker.hear_successor(0, world.now);
        let channel = world.broker.vms[0].successor.as_ref().unwrap().process.channel();
        assert!(unwatch(&world.broker.epoll, channel).is_err(), "it is watched still");
    }
}

#[test]
fn a_vm_that_leaves_is_forgotten_when_its_successor_is_gone_too() {
    let (mut world, _successor, _) = with_successor();
    let vm = &mut world.broker.vms[0];
    vm.is_leaving = true;
    vm.end_process(world.now + SECOND);
    assert_eq!(world.broker.next_renewal(), None, "nothing is to be done for what was killed");
    assert!(is_ended(&world));
    world.broker.disown(0, "test");
    world.broker.child_ended(0, world.now);
    assert!(world.broker.vms.get(0).is_some(), "its successor is not reaped");
    world.broker.successor_ended(0, world.now);
    assert!(world.broker.vms.get(0).is_none());
}
