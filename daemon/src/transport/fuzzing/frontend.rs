//! A hostile frontend and driver: vhost-user messages of any kind and order with descriptors of any kind, while guest memory changes.

use crate::transport::handler::Handler;
use crate::transport::session::Messages;
use crate::transport::shared::Shared;
use crate::transport::{DeviceConfig, NoRequest, QUEUES, Tokens};
use arbitrary::{Arbitrary, Unstructured};
use protocol::virtio_gpu::Response;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{CWD, MemfdFlags, Mode, OFlags, ftruncate, makedev, memfd_create, openat};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, sendmsg, shutdown};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, LazyLock};

/// Bytes of each file of guest memory.
const MEMORY: u64 = 0x1_0000;
const PAGE: u64 = 0x1000;
/// The address of guest memory in the frontend's own address space, as the frontend states it.
const USER: u64 = 0x7000_0000;
/// Messages of one input; more would fill the socket with answers.
const MESSAGES_MAX: usize = 24;
const LIMIT: usize = 0x800;

/// Asserts that the session goes on or ends after any messages of a frontend. Returns how many messages were taken.
pub fn fuzz_frontend(bytes: &[u8]) -> usize {
    let mut bytes = Unstructured::new(bytes);
    let Ok((ours, theirs)) = UnixStream::pair() else { return 0 };
    if !bytes.ratio(1, 8).unwrap_or(true) {
        greeting().iter().for_each(|said| said.send(&ours));
    }
    for _ in 0..MESSAGES_MAX {
        let Ok(said) = bytes.arbitrary::<Said>() else { break };
        said.send(&ours);
        if bytes.is_empty() {
            break;
        }
    }
    shutdown(&ours, Shutdown::Write).expect("connected");
    let Ok(epoll) = readiness::instance() else { return 0 };
    let config =
        DeviceConfig { space: vec![5; 16], window_size: 16 * PAGE, lent_devices: vec![makedev(1, 3)] };
    let Ok(shared) = Shared::new(config, Arc::new(epoll), Tokens { kick: 0, doorbell: 1 }) else { return 0 };
    let handler = Handler::new(Arc::clone(&shared));
    let Ok(mut messages) = Messages::new(theirs, handler, Arc::clone(&shared)) else { return 0 };
    let mut taken = 0;
    let mut device = Device { generations: [0; QUEUES], request: Vec::new() };
    while messages.handle_next().is_ok() {
        taken += 1;
        device.run(&shared);
        poke(&mut bytes);
        device.run(&shared);
    }
    drop(messages);
    shared.vrings.iter().for_each(|vring| vring.abandon());
    assert!(shared.vrings.iter().all(|vring| vring.unanswered() == 0));
    taken
}

/// The device thread's half.
struct Device {
    generations: [u32; QUEUES],
    request: Vec<u8>,
}

impl Device {
    fn run(&mut self, shared: &Shared) {
        for (vring, generation) in shared.vrings.iter().zip(&mut self.generations) {
            vring.release_held();
            for _ in 0..8 {
                match vring.pop(*generation, LIMIT, &mut self.request) {
                    Err(NoRequest::Empty | NoRequest::Broken) => {
                        vring.arm();
                        break;
                    }
                    Err(NoRequest::Reset(new)) => *generation = new,
                    Ok(pending) => {
                        assert!(self.request.len() <= LIMIT);
                        pending.respond(&Response::OkNodata);
                    }
                }
            }
            vring.signal();
        }
    }
}

/// The driver writes into its memory.
fn poke(bytes: &mut Unstructured<'_>) {
    let Ok((at, words)) = bytes.arbitrary::<(u8, [u16; 4])>() else { return };
    let content: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    // Queues lie at the start of pages.
    let at = u64::from(at >> 5) * PAGE / 2 + u64::from(at & 31) * 8;
    let _ = rustix::io::pwrite(&FILES[0], &content, at);
}

/// A message of the frontend.
#[derive(Debug)]
struct Said {
    request: u32,
    flags: u32,
    body: Vec<u8>,
    files: Vec<u8>,
}

/// Kinds of descriptors: a file of the right size first, then everything else.
static FILES: LazyLock<[OwnedFd; 7]> = LazyLock::new(|| {
    let memory = |size| {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC).expect("a memory file");
        ftruncate(&file, size).expect("it has a size");
        file
    };
    let open = |path: &str| openat(CWD, path, OFlags::RDONLY, Mode::empty()).expect("it is there");
    let event = eventfd(0, EventfdFlags::NONBLOCK).expect("an eventfd");
    let (socket, _) = UnixStream::pair().expect("sockets");
    socket.set_nonblocking(true).expect("a socket");
    let (pipe, _) = rustix::pipe::pipe().expect("a pipe");
    [memory(MEMORY), event, memory(100), open("/dev/null"), open("/"), pipe, socket.into()]
});

impl Said {
    fn send(&self, socket: &UnixStream) {
        let files: Vec<BorrowedFd<'_>> =
            self.files.iter().map(|kind| FILES[usize::from(*kind) % FILES.len()].as_fd()).collect();
        let head = [self.request, self.flags, self.body.len() as u32].map(u32::to_le_bytes).concat();
        let message = [head, self.body.clone()].concat();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(9))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(&files));
        }
        // If the socket is full, the rest is not sent.
        let _ = sendmsg(
            socket,
            &[IoSlice::new(&message)],
            &mut ancillary,
            SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
        );
    }
}

/// Makes the messages that every frontend sends first, until the control queue runs.
fn greeting() -> Vec<Said> {
    let said = |request, body: &[u64], files: &[u8]| Said {
        request,
        flags: 1,
        body: words(body),
        files: files.to_vec(),
    };
    vec![
        said(2, &[0x1_7000_0005], &[]),
        said(16, &[0x9429], &[]),
        said(5, &[1, 0, MEMORY, USER, 0], &[0]),
        said(8, &[16 << 32], &[]),
        said(9, &[0, USER, USER + 2 * PAGE, USER + 4 * PAGE, 0], &[]),
        said(10, &[0], &[]),
        said(13, &[0], &[1]),
        said(12, &[0], &[1]),
        said(18, &[1 << 32], &[]),
    ]
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Makes mostly sensible values, with the numbers of the vhost-user specification.
impl Arbitrary<'_> for Said {
    fn arbitrary(u: &mut Unstructured<'_>) -> arbitrary::Result<Self> {
        let index = match u.int_in_range(0..=31u8)? {
            0 => 2,
            number => u64::from(number % 2),
        };
        let small = u64::from(u.arbitrary::<u8>()?);
        let choice = u.int_in_range(0..=27u8)?;
        let (request, body, mut files) = match choice {
            0 => (2, words(&[if small == 0 { u.arbitrary()? } else { 0x1_7000_0005 }]), vec![]),
            1 => (16, words(&[if small == 0 { u.arbitrary()? } else { u64::MAX }]), vec![]),
            2..=4 => memory_table(u)?,
            5..=6 => {
                let region = region(u)?;
                (if choice == 5 { 37 } else { 38 }, [words(&[0]), region].concat(), vec![0])
            }
            7..=8 => (8, words(&[index | (1 << (small % 17)) << 32]), vec![]),
            9..=12 => (9, addresses(index, u)?, vec![]),
            13..=14 => (10, words(&[index | (small % 4) << 32]), vec![]),
            15 => (11, words(&[index]), vec![]),
            16..=18 => (12, words(&[index]), vec![1]),
            19 => (13, words(&[index]), vec![1]),
            20..=22 => (18, words(&[index | (u64::from(small != 0)) << 32]), vec![]),
            23 => (24, [words(&[(small % 20) | 16 << 32]), vec![0; 4 + 16]].concat(), vec![]),
            24 => (21, vec![], vec![6]),
            25 => (if small % 2 == 0 { 34 } else { 4 }, vec![], vec![]),
            26 => ([1, 15, 17, 36, 44][small as usize % 5], vec![], vec![]),
            _ => (u32::from(u.arbitrary::<u8>()? % 50), u.arbitrary()?, u.arbitrary()?),
        };
        // Now and then the message carries other descriptors than it should.
        if u.ratio(1, 16)? {
            files = u.arbitrary()?;
        }
        files.truncate(9);
        let mut body = body;
        body.truncate(0x1000);
        // The flags have version 1, and whether an answer is wanted.
        let flags = if u.ratio(1, 32)? { u.arbitrary()? } else { 1 | u32::from(u.arbitrary::<bool>()?) << 3 };
        Ok(Self { request, flags, body, files })
    }
}

/// Returns the bytes of a region: guest address, size, address in the frontend, offset in the file.
fn region(u: &mut Unstructured<'_>) -> arbitrary::Result<Vec<u8>> {
    let [guest, pages, user, offset]: [u8; 4] = u.arbitrary()?;
    let wild = u.ratio(1, 16)?;
    let size = if wild { u.arbitrary()? } else { (u64::from(pages % 16) + 1) * PAGE };
    Ok(words(&[
        u64::from(guest % 4) * MEMORY / 4,
        size,
        USER + u64::from(user % 4) * MEMORY,
        u64::from(offset % 4) * PAGE,
    ]))
}

fn memory_table(u: &mut Unstructured<'_>) -> arbitrary::Result<(u32, Vec<u8>, Vec<u8>)> {
    if u.ratio(3, 4)? {
        return Ok((5, words(&[1, 0, MEMORY, USER, 0]), vec![0]));
    }
    let count = u.int_in_range(0..=8u8)?;
    let mut body = words(&[count.into()]);
    for _ in 0..count {
        body.extend(region(u)?);
    }
    Ok((5, body, vec![0; count.into()]))
}

/// Returns the bytes of a queue's addresses: index and flags, descriptor table, used ring, available ring, log.
fn addresses(index: u64, u: &mut Unstructured<'_>) -> arbitrary::Result<Vec<u8>> {
    let mut place = |page: u64| -> arbitrary::Result<u64> {
        Ok(match u.int_in_range(0..=63u8)? {
            0 => u.arbitrary()?,
            1 | 2 => USER + u64::from(u.arbitrary::<u16>()?),
            _ => USER + page * PAGE,
        })
    };
    Ok(words(&[index, place(index)?, place(index + 2)?, place(index + 4)?, 0]))
}
