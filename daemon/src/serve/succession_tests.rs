//! Tests run both device processes of a succession in one process, with a played frontend.

use super::blobs::lenders::Lenders;
use super::broker::Broker;
use super::fuzzing::options;
use super::handover::failure::Lasts;
use super::handover::room::Room;
use super::outdated::End;
use super::passing_on::Passed;
use super::restarts_tests::{CONTEXT, OLD, Rig, rig};
use super::run::{Options, Server};
use super::setup::Listen;
use super::succession::{Attempt, Succession, give, take};
use super::window::Table;
use super::workers::Whose;
use crate::device::Lack;
use crate::ipc::{
    Channel, Fence, FromSuccessor, Replaced, RoomOrder, SUCCESSION, ToBroker, ToDevice, ToSuccessor,
    ToWorker, decode, encode,
};
use crate::ipc::{FromLauncher, ReceiveError, ToLauncher};
use crate::sandbox::{Ended, FromChildren, Launcher};
use crate::transport::{PassedFiles, Session};
use config::DriverMapped;
use outside::Access;
use protocol::ids::{FenceId, RingIdx};
use readiness::Reported;
use rustix::event::PollFlags;
use rustix::fs::makedev;
use serde::Serialize;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A value for launchers.
const LAUNCHER: u64 = 1 << 40;
/// The time after which a test counts as hung.
const LONG: Duration = Duration::from_secs(300);
/// Requests of vhost-user.
const SET_FEATURES: u32 = 2;
const SET_PROTOCOL_FEATURES: u32 = 16;
const SET_VRING_BASE: u32 = 10;
const GET_VRING_BASE: u32 = 11;
const GET_QUEUE_NUM: u32 = 17;
/// VIRTIO_F_VERSION_1 and VHOST_USER_F_PROTOCOL_FEATURES; VHOST_USER_PROTOCOL_F_MQ.
const FEATURES: u64 = 1 << 32 | 1 << 30;
const PROTOCOL_FEATURES: u64 = 1;

/// A frontend.
struct Frontend(UnixStream);

impl Frontend {
    fn say(&mut self, request: u32, value: Option<u64>) {
        let size = if value.is_some() { 8u32 } else { 0 };
        let head = [request, 1, size].into_iter().flat_map(u32::to_le_bytes);
        let message: Vec<u8> = head.chain(value.into_iter().flat_map(u64::to_le_bytes)).collect();
        self.0.write_all(&message).unwrap();
    }

    /// Asks a question that is answered only if the features are known.
    fn is_served(&mut self) {
        assert_eq!(self.ask(GET_QUEUE_NUM, None), 2);
    }

    fn ask(&mut self, request: u32, value: Option<u64>) -> u64 {
        self.say(request, value);
        let mut answer = [0; 20];
        self.0.read_exact(&mut answer).unwrap();
        u64::from_le_bytes(*answer.last_chunk().unwrap())
    }

    /// Stops the first queue, which had no request, and starts it again like a driver that has reset the device.
    fn resets(&mut self) {
        assert_eq!(self.ask(GET_VRING_BASE, Some(0)), 0);
        self.say(SET_FEATURES, Some(FEATURES | 1 << 29));
        self.say(SET_VRING_BASE, Some(0));
        self.is_served();
    }
}

/// A device process that serves a frontend, with the objects that keep it alive.
struct Old {
    server: Server,
    frontend: Frontend,
    folder: TempDir,
    _others: (UnixStream, Channel),
}

fn server(listen: Listen) -> (Server, (UnixStream, Channel)) {
    server_of(listen, None)
}

fn server_of(listen: Listen, broker: Option<Broker>) -> (Server, (UnixStream, Channel)) {
    let (ours, signals) = UnixStream::pair().unwrap();
    let (launcher, starter) = Channel::pair().unwrap();
    let options = Options { listen, broker, ..options(Launcher::played(launcher).unwrap()) };
    (Server::new(options, signals.into()).unwrap(), (ours, starter))
}

fn old() -> Old {
    let folder = tempfile::tempdir().unwrap();
    let listen = Listen::at(&folder.path().join("socket"), Access::default()).unwrap();
    let (mut server, others) = server(listen);
    let (ours, theirs) = UnixStream::pair().unwrap();
    server.start_session(theirs).unwrap();
    let mut frontend = Frontend(ours);
    frontend.say(SET_FEATURES, Some(FEATURES));
    frontend.say(SET_PROTOCOL_FEATURES, Some(PROTOCOL_FEATURES));
    frontend.is_served();
    Old { server, frontend, folder, _others: others }
}

impl Old {
    /// The broker wants the device process to hand the VM on, and the device process obeys. Returns whether another process serves.
    fn hand_on(&mut self, channel: Channel) -> bool {
        self.server.world.succession = Succession::Wanted(channel);
        assert!(self.server.succession_due().unwrap().is_none());
        self.rest()
    }

    /// Does the same as [`Self::hand_on`], but gives the attempt up at once if the device process cannot pass everything on.
    fn hand_on_at_once(&mut self, channel: Channel) -> bool {
        let now = Instant::now();
        self.server.world.succession = Succession::Rests(Attempt { channel, until: now }, now);
        assert!(self.server.succession_due().unwrap().is_none());
        self.rest()
    }

    /// Goes on until the succession has ended. Returns whether another process serves.
    fn rest(&mut self) -> bool {
        let (begun, mut events) = (Instant::now(), Reported::default());
        while matches!(self.server.world.succession, Succession::Halts(..) | Succession::Rests(..)) {
            events.fetch(&self.server.epoll, Some(Duration::from_millis(10))).unwrap();
            let tokens: Vec<_> = events.events().iter().map(|event| event.data).collect();
            tokens
                .into_iter()
                .for_each(|token| self.server.dispatch(token, readiness::Events::EPOLLIN).unwrap());
            assert!(self.server.succession_due().unwrap().is_none() && begun.elapsed() < LONG);
        }
        self.server.given.is_some()
    }

    /// Has the device process stop listening to its frontend.
    fn halts(&self) {
        let session = self.server.world.session.as_ref().unwrap();
        session.halt().unwrap();
        await_halt(session);
    }
}

fn await_halt(session: &Session) {
    let begun = Instant::now();
    while !session.is_halted() {
        assert!(begun.elapsed() < LONG);
        std::thread::yield_now();
    }
}

#[test]
fn a_frontend_that_is_to_map_is_listened_to_while_it_is_waited_for() {
    let mut old = old();
    let world = &mut old.server.world;
    for comes_to_rest in [true, false] {
        let (ours, theirs) = Channel::pair().unwrap();
        let (awaited, _peer) = UnixStream::pair().unwrap();
        let session = world.session.as_ref().unwrap();
        session.halt().unwrap();
        await_halt(session);
        if comes_to_rest {
            let attempt = Attempt { channel: ours, until: Instant::now() };
            world.succession = Succession::Halts(attempt, Instant::now() + LONG);
        } else {
            // The broker wants another succession, and that one stays.
            world.succession = Succession::Wanted(ours);
        }
        world.look_around(awaited.as_fd(), PollFlags::IN);
        assert!(!world.session.as_ref().unwrap().is_halted());
        old.frontend.is_served();
        let heard: Option<(ToSuccessor, _)> = theirs.try_receive().unwrap_or_default();
        assert_eq!(matches!(heard, Some((ToSuccessor::NotNow { .. }, _))), comes_to_rest);
        assert_eq!(matches!(world.succession, Succession::None), comes_to_rest);
    }
}

#[test]
fn nothing_is_passed_on_when_the_socket_file_is_lost() {
    let mut old = old();
    old.server.world.replaced(Replaced::Socket("/socket".into()));
    let (ours, theirs) = Channel::pair().unwrap();
    assert!(!old.hand_on_at_once(ours));
    assert!(matches!(theirs.try_receive(), Ok(Some((ToSuccessor::NotNow { .. }, _)))));
    old.frontend.is_served();
}

#[test]
fn what_is_in_the_way_for_a_moment_is_waited_for() {
    let mut old = old();
    let (ours, theirs) = Channel::pair().unwrap();
    old.server.world.backlog.lost.push(CONTEXT);
    old.server.world.succession = Succession::Wanted(ours);
    assert!(old.server.succession_due().unwrap().is_none());
    assert!(matches!(old.server.world.succession, Succession::Rests(..)));
    assert!(matches!(theirs.try_receive::<ToSuccessor>(), Ok(None)), "nothing is refused yet");
    old.server.settle();
    let begun = Instant::now();
    while !matches!(old.server.world.succession, Succession::Halts(..)) {
        assert!(old.server.succession_due().unwrap().is_none() && begun.elapsed() < LONG);
    }
}

#[test]
fn workers_go_on_with_another_device_process_and_their_launcher_with_them() {
    let mut rig = rig();
    assert_eq!(rig.server.world.workers.may_pass_on(), Ok(()));
    let (mut new, _others) = heir(&rig);
    assert_eq!((new.world.workers.inherited(), new.world.workers.name_of(CONTEXT)), (1, Some("app")));
    new.world.workers.send(CONTEXT, ToWorker::GoOn, None).unwrap();
    assert_eq!(rig.hear(OLD), [ToWorker::GoOn]);
    let fence = Fence { ring_idx: RingIdx(1), fence_id: FenceId(7) };
    rig.workers[&OLD].send(&ToDevice::FenceSignalled(fence), None).unwrap();
    assert_eq!(new.world.workers.receive(Whose::Worker(CONTEXT)).len(), 1);
    // The worker's launcher obeys the new device process.
    new.world.workers.kill(CONTEXT);
    rig.turn();
    assert_eq!(rig.killed, [OLD]);
    // The old device process leaves the worker, and the worker does not end.
    let Rig { server, starter, .. } = rig;
    drop(server);
    assert!(!matches!(starter.try_receive::<ToLauncher>(), Err(ReceiveError::Closed)));
    drop(starter);
    // A process that another test starts may hold the launcher's socket for a moment.
    let begun = Instant::now();
    let heard = loop {
        match new.world.workers.heard().unwrap() {
            None if begun.elapsed() < LONG => std::thread::yield_now(),
            heard => break heard,
        }
    };
    assert!(
        matches!(&heard, Some(FromChildren::Ended(Ended { child: OLD, status: Err(_), .. }))),
        "{heard:?}"
    );
    assert!(new.world.workers.reap(OLD, Err("gone".into()), false).is_some());
    assert_eq!(new.world.workers.may_pass_on(), Ok(()));
}

/// Makes a device process that has taken over the worker of a rig. Returns it and the other ends of its files.
fn heir(rig: &Rig) -> (Server, (UnixStream, Channel)) {
    let (mut new, others) = server(Listen::Successor("/nowhere".into()));
    let (passed, files) = rig.server.world.workers.pass_on();
    let passed = decode(&encode(&passed).unwrap()).unwrap();
    let files: Vec<_> = files.into_iter().map(|file| file.try_clone_to_owned().unwrap()).collect();
    let mut files = PassedFiles::from(files);
    let inherited = new.world.workers.inherit(passed, &mut files, LAUNCHER).unwrap();
    assert!(files.is_empty());
    assert_eq!(inherited.pages.len(), 1);
    new.world.workers.adopt(inherited);
    (new, others)
}

#[test]
fn workers_of_another_program_have_time_to_end_as_well() {
    let rig = rig();
    let (new, _others) = heir(&rig);
    let Rig { server, starter, workers, .. } = rig;
    let worker = workers.into_values().next().unwrap();
    drop(server);
    let ends = std::thread::spawn(move || {
        while !matches!(worker.receive::<ToWorker>(), Err(ReceiveError::Closed)) {}
        std::thread::sleep(Duration::from_millis(50));
        let ended = FromLauncher::Ended { child: OLD, status: Ok(0), out_of_memory: false };
        starter.send(&ended, None).expect("its launcher is waited for");
    });
    new.world.workers.end_all();
    ends.join().unwrap();
}

#[test]
fn what_a_vm_may_hold_of_the_gpus_memory_holds_for_the_next_device_process() {
    let mut old = old();
    let now = Instant::now();
    let room = &mut old.server.world.room;
    *room = Room::closed();
    let order = RoomOrder { number: 3, most: 4096, wait_ms: 60_000, ..RoomOrder::default() };
    room.limit(order);
    room.wait(CONTEXT);
    let lack = Lack { ctx_id: CONTEXT, request: None, bytes: 8192 };
    room.waits.look(&[lack], |_| false, now - Duration::from_secs(20));
    old.halts();
    let (passed, of_session, _) = old.server.all_of_it().unwrap();
    let files = || -> PassedFiles {
        let files = of_session.iter().skip(1).map(|file| file.try_clone().unwrap());
        files.collect::<Vec<_>>().into()
    };
    let (mut new, _others) = server(Listen::Successor("/nowhere".into()));
    new.world.room = Room::closed();
    new.resumed(passed.clone(), &mut files()).unwrap();
    let room = &mut new.world.room;
    assert_eq!((room.order, room.is_news, room.waits(CONTEXT)), (Some(order), true, true));
    let begun = room.waits.since(&lack, now);
    assert!(begun < now, "the wait has begun anew");
    // If the file sets gpu-memory differently, only a VM without programs gets another device process.
    let (mut new, _others) = server(Listen::Successor("/nowhere".into()));
    new.resumed(passed, &mut files()).unwrap();
    assert!(new.world.room.order.is_none());
    let rig = rig();
    let (mut new, _others) = server(Listen::Successor("/nowhere".into()));
    new.world.room = Room::closed();
    let (workers, _) = rig.server.world.workers.pass_on();
    let (passed, ..) = old.server.all_of_it().unwrap();
    let passed = Passed { workers, room: None, ..passed };
    let failure = new.resumed(passed, &mut files()).map(|_| ()).unwrap_err();
    assert!(failure.reason.contains("gpu-memory") && failure.lasts == Lasts::ForNow, "{}", failure.reason);
}

#[test]
fn nothing_is_passed_on_while_the_device_thread_has_not_heard_of_a_reset() {
    let mut old = old();
    old.frontend.resets();
    let (ours, theirs) = Channel::pair().unwrap();
    assert!(!old.hand_on_at_once(ours));
    let Ok(Some((ToSuccessor::NotNow { reason }, _))) = theirs.try_receive() else {
        panic!("it is passed on")
    };
    assert_eq!(reason, "the driver has just reset the device");
    old.server.run_queues();
    assert!(old.server.all_of_it().is_ok());
    old.frontend.is_served();
}

/// A message to a successor, and the descriptor that is sent with it.
type Sent = (ToSuccessor, Option<OwnedFd>);

fn send_all(channel: &Channel, messages: &[Sent]) {
    for (message, file) in messages {
        channel.send(message, file.as_ref().map(AsFd::as_fd)).unwrap();
    }
}

/// Returns the messages by which a device process is passed on, without those that have the other process serve.
fn messages(server: &Server) -> Vec<Sent> {
    let (passed, of_session, files) = server.all_of_it().unwrap();
    let files = files.into_iter().map(|file| file.try_clone_to_owned().unwrap());
    let files = of_session.into_iter().chain(files).map(|file| (ToSuccessor::File, Some(file)));
    let state = [ToSuccessor::State(encode(&passed).unwrap()), ToSuccessor::Ends];
    let begins = [(ToSuccessor::Begins { form: SUCCESSION }, None)].into_iter();
    begins.chain(files).chain(state.map(|message| (message, None))).collect()
}

#[test]
fn a_successor_that_hears_nothing_more_is_to_be_tried_again() {
    let mut old = old();
    old.halts();
    let all = messages(&old.server);
    for count in 0..all.len() {
        let (ours, theirs) = Channel::pair().unwrap();
        send_all(&theirs, &all[..count]);
        let taken = take::<Passed>(&ours, Instant::now()).map(|_| ());
        assert!(taken.is_err_and(|failure| failure.lasts == Lasts::ForNow), "after {count} messages");
    }
    old.server.world.session.as_mut().unwrap().go_on();
    old.frontend.is_served();
}

#[test]
fn a_successor_that_is_told_not_now_is_to_be_tried_again_and_tells_the_broker_nothing() {
    let mut old = old();
    old.halts();
    let all = messages(&old.server);
    for count in 0..=all.len() {
        let (broker, heard) = Channel::pair().unwrap();
        let broker = Broker::connect(broker.into_socket());
        let (mut new, others) = server_of(Listen::Successor("/nowhere".into()), Some(broker));
        assert!(matches!(heard.try_receive(), Ok(Some((ToBroker::Ready { .. }, _)))));
        let (ours, theirs) = Channel::pair().unwrap();
        send_all(&ours, &all[..count]);
        ours.send(&ToSuccessor::NotNow { reason: "test".into() }, None).unwrap();
        new.world.succession = Succession::Wanted(theirs);
        assert_eq!(new.succession_due().unwrap(), Some(End::Outdated), "after {count} messages");
        drop(others);
        new.end();
        let said: Option<(ToBroker, _)> = heard.try_receive().unwrap_or_default();
        assert!(said.is_none(), "after {count} messages it says {said:?}");
    }
    old.server.world.session.as_mut().unwrap().go_on();
    old.frontend.is_served();
}

#[test]
fn a_successor_that_the_system_refuses_something_is_to_be_tried_again_and_one_that_lacks_something_is_not() {
    let mut old = old();
    old.halts();
    for is_refused in [true, false] {
        let (mut new, _others) = server(Listen::Successor("/nowhere".into()));
        if is_refused {
            // This file cannot watch anything.
            new.epoll = Arc::new(File::open("/dev/null").unwrap().into());
        }
        let (ours, theirs) = Channel::pair().unwrap();
        for (at, (message, file)) in messages(&old.server).into_iter().enumerate() {
            // The frontend's connection is left out.
            if is_refused || at < 2 || !matches!(message, ToSuccessor::File) {
                ours.send(&message, file.as_ref().map(AsFd::as_fd)).unwrap();
            }
        }
        new.world.succession = Succession::Wanted(theirs);
        let end = new.succession_due();
        match is_refused {
            true => assert_eq!(end.unwrap(), Some(End::Outdated)),
            false => assert!(end.is_err()),
        }
    }
    old.server.world.session.as_mut().unwrap().go_on();
    old.frontend.is_served();
}

#[test]
fn another_device_process_serves_the_frontend_from_now_on() {
    let mut old = old();
    old.server.world.window.table = Table::Stays;
    let (ours, theirs) = Channel::pair().unwrap();
    let path = old.folder.path().join("socket");
    let file = old.server.listen.made_at().unwrap();
    // Where no inotify instance is left, the launcher does not notice that another file replaces this one.
    let other = old.folder.path().join("other");
    std::fs::write(&other, "").unwrap();
    std::fs::rename(other, &path).unwrap();
    let (end, ends) = mpsc::channel::<()>();
    let new = std::thread::spawn(move || {
        let (mut new, _others) = server(Listen::Successor(path.clone()));
        new.world.succession = Succession::Wanted(theirs);
        assert!(new.succession_due().unwrap().is_none());
        let made = new.listen.made_at().unwrap();
        assert_eq!((made.path(), made.identity()), (path.as_path(), file.identity()));
        assert!(!made.is_there(), "it would remove the other file at its end");
        assert_eq!(new.world.window.table, Table::Stays, "its first mapping would be waited for again");
        ends.recv_timeout(LONG).unwrap();
        assert!(new.world.session.as_ref().is_some_and(|session| !session.has_ended()));
    });
    assert!(old.hand_on(ours), "it serves on");
    let Old { server, mut frontend, folder: _folder, _others } = old;
    drop(_others);
    server.end();
    (0..3).for_each(|_| frontend.is_served());
    end.send(()).unwrap();
    new.join().unwrap();
}

/// Returns the sets that a launcher was told to keep, and those of them that it was told to let go of, at once or later.
fn kept(launcher: &Channel) -> (Vec<u64>, Vec<u64>) {
    let (mut keeps, mut lets_go) = (Vec::new(), Vec::new());
    while let Ok(Some((told, _))) = launcher.try_receive() {
        match told {
            ToLauncher::Keep { set } => keeps.push(set),
            ToLauncher::LetGo { set } | ToLauncher::KeepOn { set } => lets_go.push(set),
            _ => {}
        }
    }
    (keeps, lets_go)
}

#[test]
fn a_launcher_lets_go_of_lent_memory_when_that_of_the_successor_keeps_it() {
    for successor_lives in [true, false] {
        let mut old = old();
        let world = &mut old.server.world;
        world.lenders = lenders();
        world.lenders.anchor(CONTEXT, Some(File::open("/dev/full").unwrap().into()), 0).unwrap();
        world.order_keeper();
        let (ours, theirs) = Channel::pair().unwrap();
        let path = old.folder.path().join("socket");
        let new = std::thread::spawn(move || {
            if successor_lives {
                let (mut new, (_signals, launcher)) = server(Listen::Successor(path));
                new.world.lenders = lenders();
                new.world.succession = Succession::Wanted(theirs);
                assert!(new.succession_due().unwrap().is_none());
                assert!(new.world.lenders.is_anchored(CONTEXT));
                assert_eq!(kept(&launcher), (vec![1], vec![]));
            } else {
                take::<Passed>(&theirs, Instant::now() + LONG).unwrap();
                theirs.send(&FromSuccessor::CanServe, None).unwrap();
                theirs.receive::<ToSuccessor>().unwrap();
            }
        });
        assert!(old.hand_on(ours), "it serves on");
        let other = old.server.given.take().unwrap();
        old.server.leave(&other);
        new.join().unwrap();
        let lets_go = if successor_lives { vec![1] } else { vec![] };
        assert_eq!(kept(&old._others.1), (vec![1], lets_go));
    }
}

#[test]
fn a_launcher_keeps_nothing_for_a_successor_that_does_not_serve_after_all() {
    let mut old = old();
    old.server.world.lenders = lenders();
    let anchor = File::open("/dev/full").unwrap();
    old.server.world.lenders.anchor(CONTEXT, Some(anchor.into()), 0).unwrap();
    old.server.world.lenders.mapped(CONTEXT, 0);
    old.server.world.order_keeper();
    old.halts();
    let (ours, theirs) = Channel::pair().unwrap();
    send_all(&ours, &messages(&old.server));
    ours.send(&ToSuccessor::NotNow { reason: "test".into() }, None).unwrap();
    let (mut new, (_signals, launcher)) = server(Listen::Successor("/nowhere".into()));
    new.world.lenders = lenders();
    new.world.succession = Succession::Wanted(theirs);
    assert_eq!(new.succession_due().unwrap(), Some(End::Outdated));
    assert!(
        matches!(ours.try_receive(), Ok(Some((FromSuccessor::CanServe, _)))),
        "it has built all of it up"
    );
    new.end();
    assert_eq!(kept(&launcher), (vec![], vec![]));
}

/// Makes an empty table of lenders, for a GPU whose memory is mapped out of `/dev/zero`.
fn lenders() -> Lenders {
    Lenders::new([DriverMapped { types: 1, device: makedev(1, 5) }])
}

#[test]
fn a_successor_that_ends_or_says_nonsense_costs_the_vm_nothing() {
    let mut old = old();
    for what in ["ends", "says nonsense"] {
        let (ours, theirs) = Channel::pair().unwrap();
        if what == "says nonsense" {
            theirs.send(&7u32, None).unwrap();
        }
        let theirs = Some(theirs).filter(|_| what != "ends");
        assert!(!old.hand_on(ours), "it {what}");
        if let Some(theirs) = theirs {
            let heard = std::iter::from_fn(|| theirs.try_receive::<ToSuccessor>().unwrap_or_default());
            assert!(matches!(heard.last(), Some((ToSuccessor::NotNow { .. }, _))), "it {what}");
        }
        old.frontend.is_served();
    }
}

#[test]
fn nothing_is_passed_on_while_the_frontend_is_in_the_middle_of_a_message() {
    let mut old = old();
    let head = [SET_FEATURES, 1, 8].into_iter().flat_map(u32::to_le_bytes).collect::<Vec<_>>();
    old.frontend.0.write_all(&head).unwrap();
    let (ours, theirs) = Channel::pair().unwrap();
    // The message thread has read the part of the message that has arrived.
    let (session, begun) = (old.server.world.session.as_ref().unwrap(), Instant::now());
    while rustix::io::ioctl_fionread(session.connection()).unwrap() > 0 {
        assert!(begun.elapsed() < LONG);
        std::thread::yield_now();
    }
    session.halt().unwrap();
    let attempt = Attempt { channel: ours, until: Instant::now() };
    old.server.world.succession = Succession::Halts(attempt, Instant::now() + Duration::from_millis(200));
    assert!(!old.rest());
    let heard = std::iter::from_fn(|| theirs.try_receive::<ToSuccessor>().unwrap_or_default());
    assert!(matches!(heard.last(), Some((ToSuccessor::NotNow { .. }, _))));
    old.frontend.0.write_all(&FEATURES.to_le_bytes()).unwrap();
    old.frontend.is_served();
}

/// A sample of the passed state that has each field and kind of entry.
const SAMPLE: &str = r#"{
    "session": {
        "features": 300, "protocol_features": 2, "announces_maps": true, "requests": true,
        "stops": [{ "at": 3, "then": { "features": 4, "maps": 5 }, "probed": true }, null],
        "regions": [
            { "guest_addr": 6, "size": 7, "user_addr": 8, "offset": 9 },
            { "guest_addr": 101, "size": 102, "user_addr": 103, "offset": null }
        ],
        "vrings": [[
            { "size": 10, "places": [11, 12, 13], "next_available": 14, "next_used": 15, "started": true, "enabled": false },
            { "kick": true, "call": false }
        ], [
            { "size": 16, "places": [17, 18, 19], "next_available": 20, "next_used": 21, "started": false, "enabled": true },
            { "kick": false, "call": true }
        ]]
    },
    "device": {
        "window_size": 22, "capset": [23, 24], "shown": [25, null], "next_owner": 30, "next_piece": 39,
        "resources": [
            { "id": 26, "size": 27, "owner": 28, "uuid": [29, 29, 29, 29, 29, 29, 29, 29, 29, 29, 29, 29, 29, 29, 29, 29], "blob": null },
            { "id": 40, "size": 41, "owner": 42, "uuid": null, "blob":
                { "state": { "Exported": ["WriteCombined", 43] }, "mappable": true, "mapped": 44, "memory": 45 } },
            { "id": 104, "size": 105, "owner": 106, "uuid": null, "blob":
                { "state": { "Lent": ["Cached", 107] }, "mappable": true, "mapped": null, "memory": null } }
        ],
        "contexts": [{
            "id": 46, "state": "Alive", "owner": 47, "program": 48, "attached": [49], "drivers": [50],
            "timelines": [[51, [[52, {
                "queue": "Control", "head": 53, "descriptors": 54, "segments": [{ "addr": 55, "len": 56 }],
                "header": { "command": 57, "flags": 58, "fence_id": 59, "ctx_id": 60, "ring_idx": 61 }
            }]]]]
        }],
        "pieces": [[62, { "owner": 63, "heap": "Host", "bytes": 64, "holders": 65, "shared": true }]],
        "holdings": [[66, { "pieces": { "67": 68 }, "credit": { "device": 69, "host": 70 }, "rings": 71 }]],
        "waiting": [{ "ctx_id": 72, "request": 73, "wanted": { "Pages": 74 }, "is_told": false }],
        "away": [75], "dying": [[76, 77]]
    },
    "worker_messages": 78,
    "workers": { "launchers": 79, "next_serial": 80, "gpus": [], "placement": [81], "workers": [{
        "ctx_id": 82, "launcher": 83, "serial": 84, "number": 85, "name": "n", "placement": [86], "has_output": true,
        "gate": { "passage": "ByGrant", "gpus": [87] }, "swapped_out": { "contents_max": 88, "is_forced": true }, "sent": 89
    }] },
    "blobs": { "resources": [[90, 108]], "made": [91] },
    "lenders": [{ "ctx_id": 109, "anchors": 110, "mapped": [111] }],
    "rings": [{ "ctx_id": 92, "ring": 93, "resource_id": 94, "offset": 95 }],
    "deposits": [{ "ctx_id": 96, "owner": 97, "is_incomplete": true, "ids": [98] }],
    "checkpoints": [{ "ctx_id": 99, "number": 100, "has_journal": false }],
    "room": {
        "order": { "number": 112, "most": 113, "forced": true, "total": 114, "wait_ms": 115 }, "waiting": [116],
        "waits": [{ "ctx_id": 117, "request": 118, "has_lasted": { "secs": 119, "nanos": 120 } }], "back_ms": 121
    },
    "strikes": {
        "programs": { "p": { "count": 31, "since": { "secs": 32, "nanos": 33 }, "left": null } },
        "together": { "count": 34, "since": null, "left": { "secs": 35, "nanos": 36 } }
    },
    "cache_key": [
        37, 37, 37, 37, 37, 37, 37, 37, 37, 37, 37, 37, 37, 37, 37, 37, 37, 37, 37, 37, 37, 37, 37, 37, 37, 37, 37, 37, 37, 37, 37, 37
    ],
    "advised": [true, false], "table_follows": false, "socket": [300, 38]
}"#;

/// Programs of one form understand each other as long as this test passes.
#[test]
fn states_and_messages_that_change_have_another_form() {
    fn hex<M: Serialize>(message: &M) -> String {
        encode(message).unwrap().iter().map(|byte| format!("{byte:02x}")).collect()
    }
    let passed: Passed = serde_json::from_str(SAMPLE).unwrap();
    assert_eq!(decode::<Passed>(&encode(&passed).unwrap()).unwrap(), passed);
    let messages = [
        ToSuccessor::Begins { form: 300 },
        ToSuccessor::NotNow { reason: "r".into() },
        ToSuccessor::File,
        ToSuccessor::State(vec![1, 2]),
        ToSuccessor::Ends,
        ToSuccessor::Serve,
    ];
    let [messages, answers] = [hex(&messages), hex(&[FromSuccessor::CanServe, FromSuccessor::Serves])];
    assert_eq!((SUCCESSION, messages.as_str(), answers.as_str()), (3, "00ac0201017202030201020405", "0001"));
    let state = "ac020201010101030401050100020607080109656667000a0b0c0d0e0f01000100101112131415000100011602171802\
         011900031a1b1c011d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d0028292a00010102012b01012c012d68696a000102006b0100\
         00012e012f3001310133013400353601393a3b3c3d0137380132013e3f014041010142014344454647014849004a00014b\
         014c4d1e274e4f500001510152535455016e0156010100015701580159015a016c015b016d6e016f015c5d5e5f01606101\
         0162016364000170710172730174017501767778790101701f012021002200012324252525252525252525252525252525\
         25252525252525252525252525252525250100010001ac0226";
    assert_eq!((SUCCESSION, hex(&passed).as_str()), (3, state));
}

#[test]
fn what_is_no_state_is_an_error_and_costs_the_successor_only() {
    let mut old = old();
    old.halts();
    let (passed, files, others) = old.server.all_of_it().unwrap();
    assert!(others.is_empty(), "no program uses the GPU");
    let state = encode(&passed).unwrap();
    assert_eq!(decode::<Passed>(&state).unwrap(), passed);
    assert!((0..state.len()).all(|end| decode::<Passed>(&state[..end]).is_err()));
    let (mut new, _others) = server(Listen::Successor("/nowhere".into()));
    for at in 0..state.len() {
        for flipped in [1, 0x80, 0xff] {
            let mut state = state.clone();
            state[at] ^= flipped;
            let Ok(changed) = decode::<Passed>(&state) else { continue };
            let files: Vec<_> = files.iter().skip(1).map(|file| file.try_clone().unwrap()).collect();
            // A changed value that is not checked, such as the key, is taken.
            let _ = new.resumed(changed, &mut PassedFiles::from(files));
        }
    }
    assert!(new.resumed(passed, &mut PassedFiles::from(Vec::new())).is_err(), "descriptors are missing");
    let (ours, _theirs) = Channel::pair().unwrap();
    let (passed, files, _) = old.server.all_of_it().unwrap();
    let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
    let error = give(&ours, &passed, &files, Duration::from_millis(200)).unwrap_err();
    assert!(error.starts_with("limit hand-on reached: "), "a successor that says nothing: {error}");
    // None of these attempts touched the frontend's connection.
    old.server.world.session.as_mut().unwrap().go_on();
    old.frontend.is_served();
}
