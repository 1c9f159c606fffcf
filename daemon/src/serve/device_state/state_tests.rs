//! A state that is written and read by the two threads, with workers that the tests play.

use super::format::{Head, StateError};
use super::link::Link;
use super::loader::{LoadedFile, Loader, Memory};
use super::saver::{Rest, Saver};
use super::thread::{Report, Thread};
use crate::device::{Device, DeviceOptions};
use crate::ipc::{Channel, HandOver, Placement};
use crate::serve::blobs::SavedFile;
use crate::serve::device_state::format::SavedContext;
use config::{CacheKey, MemoryId, MemoryName};
use protocol::ids::{ContextId, ResourceId};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

const PAGE: u64 = 4096;
/// Bytes of a slot: more than a block, which a thread reads, and not whole blocks.
const SLOT: u64 = (1 << 20) + PAGE;
const PIECE: MemoryId = MemoryId(7);
const CONTEXT: ContextId = ContextId(3);

fn head() -> Head {
    let files = vec![
        SavedFile { bytes: 2 * PAGE, piece: Some(PIECE), resources: Vec::new() },
        SavedFile { bytes: PAGE, piece: None, resources: vec![ResourceId(9)] },
    ];
    let context = SavedContext { ctx_id: CONTEXT, name: "demo".into(), placement: Placement(vec![0]) };
    let (limits, context_limits) = Default::default();
    let options =
        DeviceOptions { num_scanouts: 1, window_size: PAGE, capset: vec![7], limits, context_limits };
    let device = Device::<()>::new(options).pass_on(|()| None).unwrap();
    Head {
        device,
        answers: Default::default(),
        contexts: vec![context],
        files,
        rings: Vec::new(),
        cache_key: CacheKey([7; 32]),
    }
}

fn filled(bytes: u64, with: u8) -> OwnedFd {
    let file = shm::create("test", bytes).unwrap();
    let written = rustix::io::pwrite(&file, &vec![with; bytes as usize], 0).unwrap();
    assert_eq!(written as u64, bytes);
    file
}

fn contents(file: impl AsFd, bytes: u64) -> Vec<u8> {
    let mut all = vec![0; bytes as usize];
    assert_eq!(rustix::io::pread(file, &mut all, 0).unwrap() as u64, bytes);
    all
}

/// Waits for the next report of a thread.
fn report(thread: &Thread) -> Report {
    let deadline = Instant::now() + Duration::from_secs(100);
    loop {
        match thread.report() {
            Some(report) => return report,
            None if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(1)),
            None => panic!("no report"),
        }
    }
}

/// Saves a context whose worker writes with `worker`, which gets its end of the socket, and may have `contents_max` bytes of contents.
fn save(contents_max: u64, worker: impl FnOnce(Channel) + Send) -> (File, Result<(), StateError>) {
    let (epoll, file) = (Arc::new(readiness::instance().unwrap()), tempfile::tempfile().unwrap());
    let (ours, theirs) = Channel::pair().unwrap();
    let (rest, rest_of_state) = channel();
    let thread = Thread::start((&epoll, 6), file.try_clone().unwrap(), |file, reports, called_off| {
        let link = Link { ctx_id: CONTEXT, channel: ours, called_off: Arc::clone(called_off) };
        let saver = Saver { file, links: vec![link], reports, rest: rest_of_state };
        move || saver.run()
    })
    .unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || worker(theirs));
        assert!(matches!(report(&thread), Report::AreAtRest));
        let files = vec![filled(2 * PAGE, 1), filled(PAGE, 2)];
        rest.send(Rest { head: head(), files, contents_max: vec![contents_max] }).unwrap();
        match report(&thread) {
            Report::Ended(ended) => (file, ended),
            other => panic!("{other:?}"),
        }
    })
}

/// Sends contents through two slots, as many parts as `fill` has bytes, each full of one of them.
fn send_contents(to: &Channel, slots: &OwnedFd, fill: &[u8]) {
    let await_emptied = || assert_eq!(to.receive::<HandOver>().unwrap().0, HandOver::Emptied);
    for (at, byte) in fill.iter().enumerate() {
        if at >= 2 {
            await_emptied();
        }
        let offset = at as u64 % 2 * SLOT;
        rustix::io::pwrite(slots, &vec![*byte; SLOT as usize], offset).unwrap();
        to.send(&HandOver::Filled, None).unwrap();
    }
    (0..fill.len().min(2)).for_each(|_| await_emptied());
}

/// Writes what an honest worker writes, with contents of so many slots.
fn writes(to: Channel, fill: &[u8]) {
    let file = shm::create("piece", PAGE).unwrap();
    to.send(&HandOver::File { memory: MemoryName::Piece(PIECE) }, Some(file.as_fd())).unwrap();
    to.send(&HandOver::Bytes(b"snap".to_vec()), None).unwrap();
    to.send(&HandOver::Bytes(b"shot".to_vec()), None).unwrap();
    let slots = shm::create("slots", 2 * SLOT).unwrap();
    if !fill.is_empty() {
        to.send(&HandOver::Slots { count: 2, bytes: SLOT }, Some(slots.as_fd())).unwrap();
    }
    to.send(&HandOver::End, None).unwrap();
    send_contents(&to, &slots, fill);
}

/// What a new worker is sent.
#[derive(Debug, Default, PartialEq)]
struct Taken {
    piece: Vec<u8>,
    snapshot: Vec<u8>,
    /// The first byte of the contents of each slot.
    slots: Vec<u8>,
}

/// Reads as a new worker does, with contents of so many slots.
fn takes(from: &Channel, count: usize) -> Taken {
    let mut taken = Taken::default();
    let mut slots = None;
    loop {
        match from.receive().unwrap() {
            (HandOver::File { memory: MemoryName::Piece(PIECE) }, Some(file)) => {
                taken.piece = contents(file, 2 * PAGE);
            }
            (HandOver::Bytes(bytes), None) => taken.snapshot.extend(bytes),
            (HandOver::Slots { count: 2, bytes: SLOT }, Some(file)) => slots = Some(file),
            (HandOver::End, None) => break,
            other => panic!("{other:?}"),
        }
    }
    for at in 0..count {
        assert_eq!(from.receive::<HandOver>().unwrap().0, HandOver::Filled);
        let slot = &contents(slots.as_ref().unwrap(), 2 * SLOT)[at % 2 * SLOT as usize..][..SLOT as usize];
        assert!(slot.iter().all(|byte| *byte == slot[0]));
        taken.slots.push(slot[0]);
        from.send(&HandOver::Emptied, None).unwrap();
    }
    taken
}

/// Loads a state, with a worker that takes contents of so many slots.
fn load(file: File, count: usize) -> (Head, [Vec<u8>; 2], Taken) {
    rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0)).unwrap();
    let epoll = Arc::new(readiness::instance().unwrap());
    let ((memory, memories), (links, theirs)) = (channel(), channel());
    let thread = Thread::start((&epoll, 6), file, |file, reports, _| {
        let loader = Loader { file, reports, memory: memories, links: theirs };
        move || loader.run()
    })
    .unwrap();
    let Report::Head(head) = report(&thread) else { panic!("no head") };
    let made = [2 * PAGE, PAGE].map(|bytes| shm::create("made", bytes).unwrap());
    let loaded = made.iter().zip(&head.files).map(|(file, saved)| LoadedFile {
        file: file.try_clone().unwrap(),
        bytes: saved.bytes,
        piece: saved.piece,
    });
    memory.send(Memory(loaded.collect())).unwrap();
    assert!(matches!(report(&thread), Report::Next));
    let (channel, worker) = Channel::pair().unwrap();
    links.send(Link { ctx_id: CONTEXT, channel, called_off: Arc::clone(&thread.called_off) }).unwrap();
    let taken = takes(&worker, count);
    match report(&thread) {
        Report::Ended(ended) => ended.unwrap(),
        other => panic!("{other:?}"),
    }
    let [first, second] = &made;
    (*head, [contents(first, 2 * PAGE), contents(second, PAGE)], taken)
}

#[test]
fn a_state_is_loaded_as_it_was_saved() {
    for fill in [&[][..], &[5], &[5, 6, 7, 8, 9]] {
        let (file, saved) = save(fill.len() as u64 * SLOT, |worker| writes(worker, fill));
        saved.unwrap();
        let (loaded, memory, taken) = load(file, fill.len());
        assert_eq!(loaded, head());
        assert_eq!(memory, [vec![1; 2 * PAGE as usize], vec![2; PAGE as usize]]);
        let piece = vec![1; 2 * PAGE as usize];
        assert_eq!(taken, Taken { piece, snapshot: b"snapshot".to_vec(), slots: fill.to_vec() });
    }
}

#[test]
fn a_worker_that_writes_something_else_spoils_its_own_state_only() {
    let foreign = shm::create("foreign", PAGE).unwrap();
    let send = |to: &Channel, message: HandOver| drop(to.send(&message, Some(foreign.as_fd())));
    let wrong: [&(dyn Fn(&Channel) + Sync); 6] = [
        &|to| send(to, HandOver::File { memory: MemoryName::Unnamed }),
        &|to| send(to, HandOver::Journal { number: 1 }),
        &|to| send(to, HandOver::Slots { count: 2, bytes: PAGE }),
        &|to| send(to, HandOver::Slots { count: 5, bytes: 16 }),
        &|to| drop(to.send(&HandOver::Filled, None)),
        &|to| drop(to.send(&HandOver::Bytes(vec![0; 100]), None)),
    ];
    for (at, wrong) in wrong.iter().enumerate() {
        let (_, saved) = save(0, |worker| wrong(&worker));
        assert!(matches!(saved, Err(StateError::Worker(CONTEXT, _))), "{at}: {saved:?}");
    }
    let (_, saved) = save(3 * PAGE, |worker| {
        let slots = shm::create("slots", 2 * PAGE).unwrap();
        worker.send(&HandOver::Slots { count: 2, bytes: PAGE }, Some(slots.as_fd())).unwrap();
        worker.send(&HandOver::End, None).unwrap();
        while worker.send(&HandOver::Filled, None).is_ok() {}
    });
    let why = saved.unwrap_err().to_string();
    assert_eq!(why, "context 3: its worker has more contents than it was granted memory");
}

#[test]
fn a_transfer_that_is_called_off_ends_its_thread() {
    let epoll = Arc::new(readiness::instance().unwrap());
    let (reads, writes) = rustix::pipe::pipe().unwrap();
    let (ended, has_ended) = channel();
    let thread = Thread::start((&epoll, 6), reads.into(), |file, reports, _| {
        let loader = Loader { file, reports, memory: channel().1, links: channel().1 };
        move || {
            loader.run();
            ended.send(()).unwrap();
        }
    });
    drop(thread);
    has_ended.recv_timeout(Duration::from_secs(100)).unwrap();
    drop(writes);
}
