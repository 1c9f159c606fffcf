//! A hostile driver on the control queue: whatever it sends is answered once, and the device goes on.

use anyhow::{Result, ensure};
use parking_lot::{Condvar, Mutex};
use protocol::ids::{BlobId, CapsetId, ContextId, FenceId, ResourceId, RingIdx, ScanoutId};
use protocol::virtio_gpu::{BlobFlags, BlobMem, Command, Fence, FenceTimeline, Header, MemEntry, Rect};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tests::daemon::Daemon;
use tests::frontend::ram::GuestRam;
use tests::frontend::virtqueue::Completion;
use tests::guest::{Gpu, PATIENCE};
use tests::random::{Random, repetitions};
use virtio_queue::desc::split::Descriptor;
use vm_memory::{Bytes, GuestAddress};

const BATCH: u64 = 256;

/// Counts answers, so that a lost one is noticed.
#[derive(Default)]
struct Answers {
    state: Mutex<(u64, u64)>,
    changed: Condvar,
}

impl Answers {
    /// A completion that checks the form of the answer and counts it.
    fn expect(self: &Arc<Self>) -> Completion {
        self.state.lock().0 += 1;
        let answers = Arc::clone(self);
        Box::new(move |response| {
            // Malformed chains come back without a response.
            if let Some(bytes) = response.filter(|bytes| !bytes.is_empty()) {
                let header = Header::decode(&bytes).expect("a response has a header");
                assert!(
                    matches!(header.command.0, 0x1100..=0x1106 | 0x1200..=0x1205),
                    "{:#x}",
                    header.command.0
                );
            }
            answers.state.lock().1 += 1;
            answers.changed.notify_all();
        })
    }

    fn wait(&self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let mut state = self.state.lock();
        while state.1 < state.0 {
            let timed_out = self.changed.wait_until(&mut state, deadline).timed_out();
            ensure!(!timed_out, "{} of {} requests were never answered", state.0 - state.1, state.0);
        }
        Ok(())
    }
}

fn number(random: &mut Random, few: u64) -> u64 {
    if random.once_in(8) { random.nasty() } else { random.below(few) }
}

fn rect(random: &mut Random) -> Rect {
    let mut side = || number(random, 64) as u32;
    Rect { x: side(), y: side(), width: side(), height: side() }
}

/// A command that is well formed, about ids that may exist.
fn command<'a>(random: &mut Random, entries: &'a [MemEntry], data: &'a [u8]) -> Command<'a> {
    let resource_id = ResourceId(number(random, 40) as u32);
    let maybe = (!random.once_in(4)).then_some(resource_id);
    let scanout_id = ScanoutId(number(random, 2) as u32);
    // A context with a process costs milliseconds; one command in thousands is enough of them.
    let capset_id = CapsetId(if random.once_in(16) { 4 } else { number(random, 4) as u32 & !4 });
    let offset = number(random, 64) << 12;
    let size = 4096 * (1 + number(random, 16) % (1 << 20));
    match random.below(24) {
        0 => Command::GetDisplayInfo,
        1 => {
            Command::ResourceCreate2d { resource_id, format: 2, width: number(random, 99) as u32, height: 9 }
        }
        2 | 3 => Command::ResourceUnref { resource_id },
        4 => Command::SetScanout { r: rect(random), scanout_id, resource_id: maybe },
        5 => Command::ResourceFlush { r: rect(random), resource_id },
        6 => Command::TransferToHost2d { r: rect(random), offset, resource_id },
        7 => Command::ResourceAttachBacking { resource_id, entries },
        8 => Command::ResourceDetachBacking { resource_id },
        9 => Command::GetCapsetInfo { capset_index: number(random, 3) as u32 },
        10 => Command::GetCapset { capset_id: CapsetId(number(random, 6) as u32), capset_version: 0 },
        11 => Command::ResourceAssignUuid { resource_id },
        12 | 13 => {
            let blob_mem =
                random.pick(&[BlobMem::Host3d, BlobMem::Host3d, BlobMem::Guest, BlobMem::Host3dGuest]);
            let blob_flags = BlobFlags::from_bits_truncate(random.word() as u32);
            let blob_id = BlobId(if random.once_in(4) { random.nasty() } else { 0 });
            Command::ResourceCreateBlob { resource_id, blob_mem, blob_flags, blob_id, size, entries: &[] }
        }
        14 if random.once_in(16) => Command::CtxCreate { capset_id, debug_name: data },
        15 if random.once_in(8) => Command::CtxDestroy,
        14..=16 => Command::CtxAttachResource { resource_id },
        17 => Command::CtxDetachResource { resource_id },
        18 | 19 => Command::Submit3d { data },
        20 => Command::ResourceMapBlob { resource_id, offset },
        21 => Command::ResourceUnmapBlob { resource_id },
        22 => Command::GetEdid { scanout: scanout_id },
        _ => Command::UpdateCursor { scanout_id, resource_id: maybe },
    }
}

fn request(random: &mut Random) -> Vec<u8> {
    let entries: Vec<MemEntry> = (0..random.below(4))
        .map(|_| MemEntry {
            addr: number(random, 1 << 30).into(),
            length: (number(random, 1 << 20) as u32).into(),
            padding: 0.into(),
        })
        .collect();
    let len = random.below(9) as usize * 4;
    let data = random.bytes(len);
    let command = command(random, &entries, &data);
    let context = (!random.once_in(4)).then(|| ContextId(number(random, 6) as u32));
    let timeline = if random.once_in(2) {
        FenceTimeline::Global
    } else {
        FenceTimeline::Ring(RingIdx(number(random, 4) as u8))
    };
    let fence = random.once_in(3).then(|| Fence { timeline, fence_id: FenceId(random.word()) });
    let mut bytes = Vec::new();
    command.encode(context, fence, &mut bytes);
    match random.below(8) {
        // Everything but the command's number.
        0 => random.mutate(&mut bytes, 4..),
        1 => random.mutate(&mut bytes, ..),
        2 if random.once_in(4) => bytes = random.bytes(24 + len),
        _ => {}
    }
    if bytes.is_empty() { vec![0] } else { bytes }
}

fn assert_unharmed(daemon: &Daemon, guest: &Gpu) -> Result<()> {
    ensure!(daemon.is_running(), "the device process ended: {}", daemon.log());
    assert_eq!(guest.session.window.violations(), Vec::<String>::new());
    assert_eq!(guest.capset()?.len(), 160);
    let context = guest.call(
        &Command::CtxCreate { capset_id: CapsetId::VENUS, debug_name: b"after" },
        Some(ContextId(0x7fff_fff0)),
    );
    assert!(context.is_ok(), "{context:?}");
    Ok(())
}

#[test]
fn random_commands_are_answered_and_the_device_goes_on() -> Result<()> {
    let daemon = Daemon::start()?;
    let guest = daemon.guest()?;
    let answers = Arc::new(Answers::default());
    let mut random = Random::new(1);
    let started = Instant::now();
    let count = repetitions(700_000);
    for _ in 0..count / BATCH {
        guest.send_bytes((0..BATCH).map(|_| (request(&mut random), answers.expect())).collect());
        if random.once_in(16) {
            answers.wait()?;
        }
    }
    answers.wait()?;
    println!("{count} commands in {:?}", started.elapsed());
    drop(guest);
    daemon.wait_for_workers(0)?;
    let guest = daemon.guest()?;
    assert_unharmed(&daemon, &guest)
}

fn descriptor(random: &mut Random, length: u64) -> Descriptor {
    let address = match random.below(4) {
        0 => random.nasty(),
        _ => GuestRam::BASE + random.below(60 << 20),
    };
    let len = if random.once_in(4) { random.nasty() } else { random.below(4096) } as u32;
    // NEXT, WRITE, INDIRECT.
    let flags = if random.once_in(8) { random.word() as u16 } else { random.pick(&[0, 1, 1, 1, 2, 2, 3, 4]) };
    let next = if random.once_in(8) { random.word() as u16 } else { random.below(length) as u16 };
    Descriptor::new(address, len, flags, next)
}

#[test]
fn malformed_chains_come_back_and_the_device_goes_on() -> Result<()> {
    let daemon = Daemon::start()?;
    let guest = daemon.guest()?;
    let answers = Arc::new(Answers::default());
    let mut random = Random::new(2);
    // Chains that reach the rings would overwrite them: the test's own mistake, not the device's.
    let rings = guest.session.control.addresses().used + 16384 - GuestRam::BASE;
    for _ in 0..repetitions(60_000) {
        let length = 1 + random.below(6);
        let chain: Vec<Descriptor> = (0..length)
            .map(|_| {
                loop {
                    let descriptor = descriptor(&mut random, length);
                    let start = descriptor.addr().0;
                    if start >= GuestRam::BASE + rings
                        || start.saturating_add(descriptor.len().into()) < GuestRam::BASE
                    {
                        return descriptor;
                    }
                }
            })
            .collect();
        guest.session.control.submit_raw(&chain, !random.once_in(3), answers.expect())?;
    }
    answers.wait()?;
    assert_unharmed(&daemon, &guest)
}

#[test]
fn queue_whose_indices_lie_harms_nobody_but_itself() -> Result<()> {
    let daemon = Daemon::start()?;
    let mut random = Random::new(3);
    for _ in 0..repetitions(20) {
        let guest = daemon.guest()?;
        guest.create_context("live")?;
        let ring = guest.session.control.addresses();
        let memory = guest.session.ram.memory();
        for _ in 0..50 {
            // Available ring: flags, index, heads. Then the descriptor table.
            memory.write_slice(&random.bytes(4 + 2048), GuestAddress(ring.avail))?;
            if random.once_in(2) {
                memory.write_slice(&random.bytes(16384), GuestAddress(ring.descriptors))?;
            }
            guest.session.control.kick.write(1)?;
            std::thread::sleep(Duration::from_micros(200));
        }
        ensure!(daemon.is_running(), "the device process ended: {}", daemon.log());
    }
    daemon.wait_for_workers(0)?;
    let guest = daemon.guest()?;
    assert_unharmed(&daemon, &guest)
}
