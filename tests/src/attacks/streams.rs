//! Random commands of a hostile Venus driver.

use crate::guest::ring::{ASYNC, REPLY, encode};
use crate::random::Random;
use protocol::venus::generated::{
    Command, CommandStreamDescriptionMESA, CreateRingMESA, DestroyRingMESA, EnumerateInstanceVersion,
    ExecuteCommandStreamsMESA, NotifyRingMESA, RingCreateInfoMESA, SetReplyCommandStreamMESA,
    SubmitVirtqueueSeqnoMESA, WaitRingSeqnoMESA, WaitVirtqueueSeqnoMESA,
};

/// Numbers of all commands.
pub fn known_numbers() -> Vec<i32> {
    (0..400).filter(|&number| Command::name(number).is_some()).collect()
}

/// A command with a real number and arguments that are sometimes plausible.
pub fn random_command(random: &mut Random, numbers: &[i32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let number = if random.once_in(50) { random.nasty() as i32 } else { random.pick(numbers) };
    let flags = u32::from(random.once_in(3));
    bytes.extend(number.to_le_bytes());
    bytes.extend(flags.to_le_bytes());
    for _ in 0..random.below(24) {
        match random.below(6) {
            // Presence of a pointer, a small count, an object id, a structure type.
            0 | 1 => bytes.extend(random.below(2).to_le_bytes()),
            2 => bytes.extend(random.below(40).to_le_bytes()),
            3 => bytes.extend((random.below(56) as u32).to_le_bytes()),
            4 => bytes.extend(random.nasty().to_le_bytes()),
            _ => bytes.extend((random.nasty() as u32).to_le_bytes()),
        }
    }
    bytes
}

/// Transport commands about rings and resources that exist, or nearly.
pub fn transport_command(random: &mut Random, ring: u64, resource_id: u32) -> Vec<u8> {
    let ring = if random.once_in(4) { random.nasty() } else { ring };
    let seqno = random.nasty();
    let stream = CommandStreamDescriptionMESA {
        resource_id: if random.once_in(4) { random.nasty() as u32 } else { resource_id },
        offset: if random.once_in(2) { random.nasty() } else { random.below(64) * 4 },
        size: if random.once_in(2) { random.nasty() } else { random.below(64) * 4 },
    };
    let mut part = || if random.once_in(3) { random.nasty() } else { random.below(64) * 64 };
    let info = RingCreateInfoMESA {
        resource_id: stream.resource_id,
        offset: part(),
        size: part(),
        idle_timeout: part(),
        head_offset: part(),
        tail_offset: part(),
        status_offset: part(),
        buffer_offset: part(),
        buffer_size: part(),
        extra_offset: part(),
        extra_size: part(),
        ..RingCreateInfoMESA::default()
    };
    let streams = [stream; 3];
    let stream_count = random.below(4) as u32;
    let p_streams = Some(&streams[..stream_count as usize]);
    let choice = random.below(9);
    encode(|w| match choice {
        0 => SetReplyCommandStreamMESA { p_stream: Some(&stream) }.encode(ASYNC, w),
        1 => ExecuteCommandStreamsMESA { stream_count, p_streams, ..Default::default() }.encode(ASYNC, w),
        2 => CreateRingMESA { ring, p_create_info: Some(&info) }.encode(ASYNC, w),
        3 => DestroyRingMESA { ring }.encode(ASYNC, w),
        4 => NotifyRingMESA { ring, seqno: seqno as u32, ..Default::default() }.encode(ASYNC, w),
        5 => SubmitVirtqueueSeqnoMESA { ring, seqno }.encode(ASYNC, w),
        6 => WaitRingSeqnoMESA { ring, seqno: seqno % 64 }.encode(ASYNC, w),
        7 => WaitVirtqueueSeqnoMESA { seqno: seqno % 64 }.encode(ASYNC, w),
        _ => EnumerateInstanceVersion { p_api_version: Some(&0) }.encode(REPLY, w),
    })
}
