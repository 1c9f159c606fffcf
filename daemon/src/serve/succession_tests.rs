//! Two device processes in one, of which the one follows the other, with a frontend that is played.

use super::fuzzing::options;
use super::run::{Options, Server};
use super::setup::Listen;
use super::succession::{Passed, Succession, give};
use crate::ipc::{Channel, ToSuccessor, decode, encode};
use crate::sandbox::Launcher;
use outside::Access;
use readiness::Reported;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The time after which a test counts as hung.
const LONG: Duration = Duration::from_secs(300);
/// Requests of vhost-user.
const SET_FEATURES: u32 = 2;
const SET_PROTOCOL_FEATURES: u32 = 16;
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

    /// A question that is answered only if the features are known.
    fn is_served(&mut self) {
        self.say(GET_QUEUE_NUM, None);
        let mut answer = [0; 20];
        self.0.read_exact(&mut answer).unwrap();
        assert_eq!(answer[12..], 2u64.to_le_bytes());
    }
}

/// A device process that serves a frontend, and what keeps it alive.
struct Old {
    server: Server,
    frontend: Frontend,
    folder: TempDir,
    _others: (UnixStream, Channel),
}

fn server(listen: Listen) -> (Server, (UnixStream, Channel)) {
    let (ours, signals) = UnixStream::pair().unwrap();
    let (launcher, starter) = Channel::pair().unwrap();
    let options = Options { listen, ..options(Launcher::played(launcher).unwrap()) };
    (Server::new(options, &signals).unwrap(), (ours, starter))
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
    /// The broker wants it to hand over, and it does what follows from that. Returns whether another serves.
    fn hand_on(&mut self, channel: Channel) -> bool {
        self.server.world.succession = Succession::Wanted(channel);
        assert!(self.server.succession_due().unwrap().is_none());
        self.rest()
    }

    /// Goes on until it has come to rest, or does not any more. Returns whether another serves.
    fn rest(&mut self) -> bool {
        let (begun, mut events) = (Instant::now(), Reported::default());
        while matches!(self.server.world.succession, Succession::Halts(..)) {
            events.fetch(&self.server.epoll, Some(Duration::from_millis(10))).unwrap();
            let tokens: Vec<_> = events.events().iter().map(|event| event.data).collect();
            tokens
                .into_iter()
                .for_each(|token| self.server.dispatch(token, readiness::Events::EPOLLIN).unwrap());
            assert!(self.server.succession_due().unwrap().is_none() && begun.elapsed() < LONG);
        }
        self.server.is_given
    }
}

#[test]
fn another_device_process_serves_the_frontend_from_now_on() {
    let mut old = old();
    let (ours, theirs) = Channel::pair().unwrap();
    let path = old.folder.path().join("socket");
    let (end, ends) = mpsc::channel::<()>();
    let new = std::thread::spawn(move || {
        let (mut new, _others) = server(Listen::Successor(path.clone()));
        new.world.succession = Succession::Wanted(theirs);
        assert!(new.succession_due().unwrap().is_none());
        assert_eq!(new.listen.made_at(), Some(path));
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
    // The message thread has taken the part of the message up, or stops ahead of it: then this is what it hears.
    theirs.send(&7u32, None).unwrap();
    old.server.world.session.as_ref().unwrap().halt();
    old.server.world.succession = Succession::Halts(ours, Instant::now() + Duration::from_millis(200));
    assert!(!old.rest());
    let heard = std::iter::from_fn(|| theirs.try_receive::<ToSuccessor>().unwrap_or_default());
    assert!(matches!(heard.last(), Some((ToSuccessor::NotNow { .. }, _))));
    old.frontend.0.write_all(&FEATURES.to_le_bytes()).unwrap();
    old.frontend.is_served();
}

#[test]
fn what_is_no_state_is_an_error_and_costs_the_successor_only() {
    let mut old = old();
    let session = old.server.world.session.as_ref().unwrap();
    session.halt();
    let begun = Instant::now();
    let messages = loop {
        match session.take_halted() {
            Some(messages) => break messages,
            None => assert!(begun.elapsed() < LONG),
        }
        std::thread::yield_now();
    };
    let (passed, files) = old.server.all_of_it(&messages).unwrap();
    let state = encode(&passed).unwrap();
    assert_eq!(decode::<Passed>(&state).unwrap(), passed);
    assert!((0..state.len()).all(|end| decode::<Passed>(&state[..end]).is_err()));
    let (mut new, _others) = server(Listen::Successor("/nowhere".into()));
    for at in 0..state.len() {
        for flipped in [1, 0x80, 0xff] {
            let mut state = state.clone();
            state[at] ^= flipped;
            let Ok(changed) = decode::<Passed>(&state) else { continue };
            let mut files = files.iter().skip(1).map(|file| file.try_clone().unwrap());
            // What differs in what nobody checks, such as the key, is as good as what was there.
            let _ = new.resumed(changed, &mut files);
        }
    }
    assert!(new.resumed(passed, &mut std::iter::empty()).is_err(), "descriptors are missing");
    let (ours, _theirs) = Channel::pair().unwrap();
    let (passed, files) = old.server.all_of_it(&messages).unwrap();
    let error = give(&ours, &passed, &files, Duration::from_millis(200)).unwrap_err();
    assert!(error.starts_with("limit reached"), "a successor that says nothing: {error}");
    // None of these touched the frontend's connection.
    old.server.world.session.as_mut().unwrap().go_on(messages);
    old.frontend.is_served();
}
