//! A whole worker under a device process that sends any messages: the worker goes on or loses its context, and ends with its channel.

use super::words::{self, Place};
use super::{MEMORY, RESOURCES, channels, memory_file, setup};
use crate::ipc::{Channel, Fence, ResourceKind, ToDevice, ToWorker};
use crate::worker::allowance::Allowances;
use crate::worker::life::run::{End, serve};
use crate::worker::resources::Resources;
use arbitrary::{Result, Unstructured};
use config::MemoryId;
use protocol::ids::{BlobId, FenceId, ResourceId, RingIdx};
use rustix::fs::{CWD, MemfdFlags, Mode, OFlags, ftruncate, memfd_create, openat};
use shm::StatusPage;
use shm::journal::Journal;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};
use vulkan::null;

const MESSAGES_MAX: usize = 64;

/// The time in which a worker has to end once its channel has ended. It does not measure speed: a faulty worker would wait for ever.
const END_MAX: Duration = Duration::from_secs(100);

/// Checks that a worker answers all opened fences, and ends with its channel.
pub fn fuzz_messages(bytes: &[u8]) -> usize {
    let mut bytes = Unstructured::new(bytes);
    let _exclusive = null::begin(bytes.len() as u64);
    let (ours, peer) = channels();
    let resources = Arc::<Resources>::default();
    let context = Arc::downgrade(&resources);
    let backend = null::renderer(Arc::clone(&resources) as _);
    let worker = std::thread::spawn(move || {
        let (page, _) = StatusPage::create().expect("a memory file");
        page.set_limit(END_MAX);
        let ours = Arc::new(ours);
        let allowances = Allowances::new(Arc::clone(&ours));
        let end = End { begins: || (), kill: || () };
        serve(&setup(), page, ours, resources, allowances, (backend, Vec::new()), end);
    });
    let (mut sent, mut fences) = (0, Fences::default());
    while sent < MESSAGES_MAX && !bytes.is_empty() {
        let Ok((message, fd)) = message(&mut bytes, sent) else { break };
        let opened = match &message {
            ToWorker::Submit { fence, .. } => *fence,
            _ => None,
        };
        if peer.try_send(&message, fd.as_ref().map(AsFd::as_fd)).is_ok() {
            sent += 1;
            fences.open += usize::from(opened.is_some());
        }
        fences.listen(&peer);
    }
    fences.listen(&peer);
    drop(peer);
    let start = Instant::now();
    while !worker.is_finished() {
        assert!(start.elapsed() < END_MAX, "the worker does not end");
        std::thread::yield_now();
    }
    worker.join().expect("the worker does not panic");
    // The thread that started the driver may be the last to release the context and the driver, which the next run uses then.
    while context.strong_count() > 0 {
        assert!(start.elapsed() < END_MAX, "the context does not end");
        std::thread::yield_now();
    }
    sent
}

#[derive(Default)]
struct Fences {
    open: usize,
    answered: usize,
}

impl Fences {
    /// Takes the worker's messages.
    fn listen(&mut self, peer: &Channel) {
        while let Ok(Some((message, _))) = peer.try_receive::<ToDevice>() {
            if let ToDevice::FenceSignalled(_) = message {
                self.answered += 1;
                assert!(self.answered <= self.open, "more fences answered than were opened");
            }
        }
    }
}

/// Descriptors of the wrong kind.
static ODD_FILES: LazyLock<[OwnedFd; 4]> = LazyLock::new(|| {
    let unsealed = memfd_create("fuzz", MemfdFlags::CLOEXEC).expect("a memory file");
    ftruncate(&unsealed, MEMORY).expect("it has a size");
    let open = |path: &str| openat(CWD, path, OFlags::RDONLY, Mode::empty()).expect("it is there");
    let (pipe, _) = rustix::pipe::pipe().expect("a pipe");
    [unsealed, open("/"), open("/dev/null"), pipe]
});

fn message(u: &mut Unstructured<'_>, number: usize) -> Result<(ToWorker, Option<OwnedFd>)> {
    let resource_id = ResourceId(u.int_in_range(0..=*RESOURCES.end() + 1)?);
    let fd = |u: &mut Unstructured<'_>| -> Result<Option<OwnedFd>> {
        Ok(match u.int_in_range(0..=15u8)? {
            0 => None,
            odd @ 1..=4 => ODD_FILES[usize::from(odd) - 1].try_clone().ok(),
            _ => Some(memory_file()),
        })
    };
    Ok(match u.int_in_range(0..=15u8)? {
        // Resources first, or nothing can be named.
        choice if choice < 3 || number < 2 => {
            let kind = match u.int_in_range(0..=7u8)? {
                0 => ResourceKind::Expected,
                1 => ResourceKind::DeviceMemory { mappable: u.arbitrary()?, memory: Some(MemoryId(1)) },
                _ => ResourceKind::SharedMemory,
            };
            let size = if u.ratio(1, 16)? { u.arbitrary()? } else { MEMORY };
            (ToWorker::AttachResource { resource_id, size, kind }, fd(u)?)
        }
        3 => (ToWorker::DetachResource { resource_id }, None),
        4 => {
            let size = if u.ratio(1, 8)? { u.arbitrary()? } else { MEMORY };
            let blob_id = BlobId(u.int_in_range(1..=8)?);
            (ToWorker::ExportBlob { resource_id, blob_id, size, mappable: u.arbitrary()? }, None)
        }
        5 if u.ratio(1, 8)? => (ToWorker::Setup(Box::new(setup())), None),
        5 => match u.int_in_range(0..=7u8)? {
            0 => (ToWorker::HandOver { copies: u.arbitrary()?, goes_on: u.arbitrary()? }, fd(u)?),
            1 => (
                ToWorker::HandOver { copies: u.arbitrary()?, goes_on: u.arbitrary()? },
                Some(channels().0.into_socket()),
            ),
            2 => (ToWorker::TakeOver, fd(u)?),
            3 => (
                ToWorker::WritePrelude { goes_on: u.arbitrary()?, is_at_home: u.arbitrary()? },
                Some(channels().0.into_socket()),
            ),
            4 => (ToWorker::BuildPrelude, fd(u)?),
            5 => (ToWorker::WriteCheckpoint { number: u.int_in_range(1..=3)? }, fd(u)?),
            6 => (ToWorker::KeepJournal, if u.arbitrary()? { Journal::create().ok() } else { fd(u)? }),
            _ => (ToWorker::GoOn, None),
        },
        6 => {
            let size = if u.ratio(1, 4)? { u.arbitrary()? } else { u.int_in_range(0..=256)? };
            (ToWorker::Submit { size, inline: Vec::new(), fence: fence(u)? }, fd(u)?)
        }
        _ => {
            let mut inline = Vec::new();
            for _ in 0..u.int_in_range(0..=4u8)? {
                inline.extend(words::command(u, Place::Virtqueue)?);
            }
            inline.truncate(4096);
            (ToWorker::Submit { size: inline.len() as u32, inline, fence: fence(u)? }, None)
        }
    })
}

fn fence(u: &mut Unstructured<'_>) -> Result<Option<Fence>> {
    let number = |u: &mut Unstructured<'_>| u.int_in_range(0..=5u8);
    Ok(match u.arbitrary()? {
        true => Some(Fence { ring_idx: RingIdx(number(u)?), fence_id: FenceId(number(u)?.into()) }),
        false => None,
    })
}
