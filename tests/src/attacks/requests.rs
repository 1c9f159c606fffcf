//! Random requests of a hostile driver on the control queue.

use crate::random::Random;
use protocol::ids::{BlobId, CapsetId, ContextId, FenceId, ResourceId, RingIdx, ScanoutId};
use protocol::virtio_gpu::{BlobFlags, BlobMem, Command, Fence, FenceTimeline, MemEntry, Rect};

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
    // A context with a process costs milliseconds, so few commands create one.
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

/// A request of any kind, well formed or not, about ids that may exist.
pub fn request(random: &mut Random) -> Vec<u8> {
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
