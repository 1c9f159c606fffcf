//! This file is the entry point for fuzzing the device process behind its queues. The fuzzer plays guests, and workers that were taken over and
//! send any message with any descriptor.
//!
//! Everything is real except for the frontend, which is gone, and the workers: the fuzzer holds the other ends of their channels, and speaks for
//! them.

pub use super::device_state::fuzzing::{device_states, fuzz_device_state};
use super::handover::{Asker, Purpose};
use super::run::{Options, Server};
use super::setup::Listen;
use crate::device::fuzzing::{self as guest, Event, LIMITS, WINDOW};
use crate::ipc::{Channel, DriverFamily, Fence, MapInfo, ToDevice, ToLauncher};
use crate::options::VmOptions;
use crate::sandbox::Launcher;
use crate::service::Manager;
use crate::transport::Vring;
use crate::transport::fuzzing::pending;
use arbitrary::{Result, Unstructured};
use config::{
    AtFault, CacheKey, ContextLimits, DepositId, DriverMapped, GpuChoice, HangLimits, Heap, MemoryBackEnd,
    MemoryId, MemoryTrial, PerHeap, Protection, Queues, Wanted,
};
use outside::HostMemory;
use protocol::ids::{ContextId, FenceId, ResourceId, RingIdx};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{CWD, MemfdFlags, Mode, OFlags, ftruncate, makedev, memfd_create, openat};
use shm::StatusPage;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

const EVENTS_MAX: usize = 256;

/// Checks that no message of a worker leaves a command unanswered, leaks a descriptor or ends the process. Returns the number of
/// messages and commands.
pub fn fuzz_workers(bytes: &[u8]) -> usize {
    let mut bytes = Unstructured::new(bytes);
    let before = descriptors();
    let happened = run(&mut bytes);
    assert_eq!(descriptors(), before, "descriptors are left behind");
    happened
}

fn run(bytes: &mut Unstructured<'_>) -> usize {
    let (_ours, signals) = UnixStream::pair().expect("sockets");
    let (launcher, starter) = Channel::pair().expect("sockets");
    let launcher = Launcher::played(launcher).expect("a process");
    let mut server = Server::new(options(launcher), signals.into()).expect("an epoll instance");
    let vring = crate::transport::fuzzing::unused_vring();
    let (mut happened, mut workers) = (0, Vec::new());
    while happened < EVENTS_MAX && !bytes.is_empty() {
        if happen(&mut server, &vring, bytes).is_err() {
            break;
        }
        happened += 1;
        // These workers do not read.
        while let Ok(Some((message, channel))) = starter.try_receive::<ToLauncher>() {
            log::trace!("{message:?}");
            workers.push(channel);
        }
    }
    for ctx_id in (0..=4).map(ContextId) {
        server.lose(ctx_id, "the input ends");
    }
    assert_eq!(vring.unanswered(), 0, "commands were dropped without an answer");
    assert_eq!(Arc::strong_count(&vring), 1, "commands without an answer");
    drop(starter);
    server.end();
    happened
}

fn happen(server: &mut Server, vring: &Arc<Vring>, bytes: &mut Unstructured<'_>) -> Result<()> {
    if bytes.ratio(1, 16)? {
        return hand_over(server, bytes);
    }
    if bytes.ratio(1, 2)? {
        if let Event::Request { context, fence, request } = bytes.arbitrary()? {
            let header = guest::header(context, fence.as_ref());
            let ticket = pending(vring, header);
            server.device.handle(&header, &request.command(), ticket, &mut server.world);
            server.swap_in_awaited();
        }
        return Ok(());
    }
    let ctx_id = ContextId(bytes.int_in_range(1..=3)?);
    let (message, fd) = (message(bytes)?, descriptor(bytes)?);
    if server.world.workers.is_running(ctx_id) {
        server.worker_says(ctx_id, message, fd);
    }
    Ok(())
}

/// Moves a hand-over on: one begins, for any purpose, its successor sends a message, its worker has written something, or time passes.
fn hand_over(server: &mut Server, bytes: &mut Unstructured<'_>) -> Result<()> {
    let ctx_id = ContextId(bytes.int_in_range(1..=3)?);
    match bytes.int_in_range(0..=17u8)? {
        16 if server.world.workers.is_running(ctx_id) => {
            let written = bytes.arbitrary::<bool>()?.then_some(bytes.arbitrary::<u16>()?.into());
            server.checkpoint_answered(ctx_id, written.map(|bytes| (bytes, Duration::ZERO)).ok_or(true));
            // A worker that writes a checkpoint marks its page like this.
            if let Some(mark) = server.world.hangs.page(ctx_id).map(StatusPage::checkpoint) {
                mark.begins();
                mark.ends(bytes.int_in_range(1..=3)?);
            }
        }
        17 => server.lose_unexplained(ctx_id),
        0..=2 => server.restart(ctx_id, None, Asker::Test),
        3..=4 => {
            server.hand_over(ctx_id, None, (Asker::Test, Purpose::SwapOut));
        }
        5 => server.hand_overs_due(Instant::now() + Duration::from_millis(bytes.arbitrary::<u16>()?.into())),
        6..=7 if server.world.workers.has_successor(ctx_id) => server.worker_writes(ctx_id),
        8..=10 if server.world.workers.is_running(ctx_id) => {
            server.worker_says(
                ctx_id,
                match bytes.int_in_range(0..=4u8)? {
                    0 => ToDevice::Wakes,
                    1..=2 => ToDevice::HandedOver,
                    _ => ToDevice::Stays { reason: bytes.arbitrary()?, for_now: bytes.arbitrary()? },
                },
                None,
            );
        }
        _ if server.world.workers.has_successor(ctx_id) => {
            let pieces = vec![MemoryId(bytes.int_in_range(0..=4)?); bytes.int_in_range(0..=2)?];
            let message = match bytes.int_in_range(0..=7u8)? {
                0..=1 => ToDevice::Ready,
                kind @ 2..=3 => ToDevice::PreludeBuilt { is_at_home: kind == 2 },
                4..=5 => {
                    let credit = PerHeap { device: bytes.arbitrary()?, host: bytes.arbitrary()? };
                    ToDevice::TakenOver { pieces, credit }
                }
                6 => ToDevice::TakesOver { pieces },
                _ => message(bytes)?,
            };
            server.successor_says(ctx_id, message);
        }
        _ => {}
    }
    Ok(())
}

pub(super) fn options(launcher: Launcher) -> Options {
    Options {
        vm: VmOptions::default(),
        listen: Listen::Connected(None),
        window_size: WINDOW,
        exit_on_disconnect: true,
        gpus: vec![GpuChoice {
            uuid: [0; 16],
            memory: MemoryBackEnd::Memfd,
            trial: MemoryTrial {
                mappable_types: 1,
                shareable: true,
                driver_mapped: DriverMapped { types: 2, device: makedev(1, 3) },
                exportable_types: 0,
            },
            queues: Queues::Compute,
            protection: Protection::default(),
        }],
        gpus_seen: 1,
        capset: vec![7; 160],
        signals: None,
        launcher,
        family: DriverFamily::Software,
        limits: LIMITS,
        hangs: HangLimits::default(),
        context_limits: ContextLimits { rings: 4, ..ContextLimits::default() },
        awaits_room: false,
        checkpoint_after: Some(Duration::ZERO),
        broker: None,
        manager: Manager::default(),
        shared_gpus: Vec::new(),
        cache_key: CacheKey([0; 32]),
        host_memory: HostMemory::default(),
    }
}

fn at_fault(u: &mut Unstructured<'_>) -> Result<Option<AtFault>> {
    let all = [AtFault::Guest, AtFault::Driver, AtFault::Host, AtFault::Predecessor, AtFault::Daemon];
    u.choose(&[None].into_iter().chain(all.map(Some)).collect::<Vec<_>>()).copied()
}

fn message(u: &mut Unstructured<'_>) -> Result<ToDevice> {
    let resource_id = ResourceId(u.int_in_range(0..=5)?);
    let number =
        |u: &mut Unstructured<'_>| if u.ratio(1, 8)? { u.arbitrary() } else { u.int_in_range(0..=4) };
    Ok(match u.int_in_range(0..=31u8)? {
        30 => ToDevice::Undrawn,
        0 => ToDevice::Lost { at_fault: at_fault(u)?, reason: u.arbitrary()? },
        1 if u.arbitrary()? => ToDevice::Hung { limit: Duration::from_millis(u.arbitrary::<u32>()?.into()) },
        1 => ToDevice::Ready,
        2 => ToDevice::ShaderRefused { reason: u.arbitrary()? },
        3..=4 => ToDevice::BlobRefused { resource_id, reason: u.arbitrary()? },
        5..=14 => {
            let map_info = if u.arbitrary()? { MapInfo::Cached } else { MapInfo::WriteCombined };
            ToDevice::BlobExported { resource_id, map_info, memory: Some(MemoryId(number(u)?)) }
        }
        20 => ToDevice::Anchor { left: number(u)? as u32 },
        15..=19 => ToDevice::RingBegins { ring: number(u)?, resource_id, status: number(u)?.wrapping_mul(4) },
        24 if u.arbitrary()? => ToDevice::MemoryReturned { memory: MemoryId(number(u)?) },
        24 if u.arbitrary()? => ToDevice::Deposits { id: DepositId(number(u)?) },
        24 => ToDevice::TakesBack { id: DepositId(number(u)?) },
        25 => ToDevice::CreditReturned { heap: Heap::Device, bytes: number(u)?.wrapping_mul(4096) },
        26 => {
            let (least, bytes) = (number(u)?.wrapping_mul(4096), number(u)?.wrapping_mul(4096));
            ToDevice::MemoryWanted { request: 0, wanted: Wanted::Credit { heap: Heap::Device, least, bytes } }
        }
        27 => ToDevice::MemoryWanted { request: 1, wanted: Wanted::Pages(number(u)?.wrapping_mul(4096)) },
        28 => {
            let bytes = number(u)?.wrapping_mul(4096);
            ToDevice::MemoryWanted { request: 2, wanted: Wanted::Piece { heap: Heap::Device, bytes } }
        }
        29 if u.arbitrary()? => ToDevice::CatchUpWanted { request: 4 },
        29 if u.arbitrary()? => ToDevice::ClosingWanted { request: 5 },
        29 if u.arbitrary()? => ToDevice::MemoryWantedNoMore { request: number(u)? as u32 },
        29 => ToDevice::BudgetWanted { request: 3 },
        21..=23 => ToDevice::RingEnds { ring: number(u)? },
        _ => ToDevice::FenceSignalled(Fence {
            ring_idx: RingIdx(number(u)? as u8),
            fence_id: FenceId(number(u)?),
        }),
    })
}

/// Returns a descriptor of any kind, mostly of an agreed one. Memory may be lent out of `/dev/null`; its anchor is then `/dev/full`.
fn descriptor(u: &mut Unstructured<'_>) -> Result<Option<OwnedFd>> {
    let open = |path: &str| openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok();
    let memory = |size: u64| {
        let file = memfd_create("fuzz", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).ok()?;
        ftruncate(&file, size).ok()?;
        Some(file)
    };
    Ok(match u.int_in_range(0..=15u8)? {
        0 => None,
        1 => memory(0x4000),
        2 => shm::create("fuzz", 100).ok(),
        3 => open("/"),
        4 => open("/dev/null"),
        5 => open("/proc/self/maps"),
        6 => rustix::pipe::pipe().ok().map(|(read, _)| read),
        7 => UnixStream::pair().ok().map(|(one, _)| one.into()),
        8 => eventfd(0, EventfdFlags::CLOEXEC).ok(),
        9 => readiness::instance().ok(),
        10 => open("/dev/full"),
        _ => shm::create("fuzz", 0x4000).ok(),
    })
}

/// Returns the number of descriptors that are open in this process.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("there is /proc").count()
}

#[cfg(test)]
mod tests {
    use arbitrary::Unstructured;
    use std::{fs, path::Path};

    #[test]
    fn committed_messages_of_workers_hold() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/device_process");
        let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let events: usize =
            files.map(|file| super::run(&mut Unstructured::new(&fs::read(file).unwrap()))).sum();
        assert!(events > 1000, "only {events} events");
    }

    #[test]
    fn messages_of_any_bytes_hold() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        for _ in 0..50 {
            let bytes: Vec<u8> = std::iter::repeat_with(|| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state >> 32) as u8
            })
            .take(4096)
            .collect();
            super::run(&mut Unstructured::new(&bytes));
        }
    }
}
