//! Requests at their edges: which bytes are free, which ids may be 0, limits, and types that are not known (VIRTIO 1.3, 5.7.6).

use super::*;
use std::ops::Range;

/// The bytes behind the header that a command has no use for: padding, the position of a cursor, the bytes behind a name.
fn free_bytes(command: &Command<'_>) -> [Range<usize>; 2] {
    const NONE: Range<usize> = 0..0;
    match command {
        Command::ResourceUnref { .. }
        | Command::ResourceDetachBacking { .. }
        | Command::ResourceAssignUuid { .. }
        | Command::CtxAttachResource { .. }
        | Command::CtxDetachResource { .. }
        | Command::ResourceUnmapBlob { .. }
        | Command::ResourceMapBlob { .. }
        | Command::GetCapsetInfo { .. }
        | Command::GetEdid { .. }
        | Command::Submit3d { .. } => [4..8, NONE],
        Command::ResourceFlush { .. } => [20..24, NONE],
        Command::TransferToHost2d { .. } => [28..32, NONE],
        Command::SetScanoutBlob { .. } => [36..40, NONE],
        Command::CtxCreate { debug_name, .. } => [5..8, 8 + debug_name.len()..72],
        Command::UpdateCursor { .. } => [4..16, 20..32],
        Command::MoveCursor { .. } => [4..32, NONE],
        _ => [NONE, NONE],
    }
}

#[test]
fn each_byte_of_a_command_counts_unless_it_is_padding() {
    for (command, bytes) in golden() {
        let free = free_bytes(&command);
        for at in 0..bytes.len() - HEADER_BYTES {
            let is_free = free.iter().any(|range| range.contains(&at));
            for bit in [0x01, 0x80] {
                let mut changed = bytes.clone();
                changed[HEADER_BYTES + at] ^= bit;
                assert_eq!(decode(&changed) == Ok(command), is_free, "{command:?}, byte {at} of its body");
            }
        }
    }
}

#[test]
fn what_follows_a_command_is_not_looked_at() {
    for (command, bytes) in golden() {
        assert_eq!(decode(&[&bytes[..], &[0xff; 40]].concat()), Ok(command));
    }
}

#[test]
fn a_resource_is_0_only_where_none_may_be_named() {
    let mut named = 0;
    for (command, mut bytes) in golden() {
        let Some(at) = bytes.windows(4).position(|id| id == RESOURCE.0.to_le_bytes()) else { continue };
        named += 1;
        bytes[at..at + 4].fill(0);
        match decode(&bytes) {
            Ok(Command::SetScanoutBlob { resource_id, .. } | Command::UpdateCursor { resource_id, .. }) => {
                assert_eq!(resource_id, None);
            }
            found => assert_eq!(found, Err(CommandError::NoResource), "{command:?}"),
        }
    }
    assert_eq!(named, 14);
    let shown = request("03010000", &format!("{RECT_BYTES} 00000000 {}", "34120000"));
    let expected = Command::SetScanout { r: RECT, scanout_id: ScanoutId(0), resource_id: Some(RESOURCE) };
    assert_eq!(decode(&shown), Ok(expected));
}

#[test]
fn a_2d_resource_has_a_width_and_a_height() {
    let of = |size: &str| decode(&request("01010000", &format!("34120000 02000000 {size}"))).map(|_| ());
    let empty = Err(CommandError::Invalid("size of a 2D resource"));
    assert_eq!(of("01000000 01000000"), Ok(()));
    assert_eq!(of("ffffffff ffffffff"), Ok(()));
    assert_eq!(of("00000000 01000000"), empty);
    assert_eq!(of("01000000 00000000"), empty);
}

#[test]
fn lists_and_payloads_are_as_long_as_the_limit_and_no_longer() {
    let entries = |count: u32, present: usize| {
        let attach =
            [&RESOURCE.0.to_le_bytes()[..], &count.to_le_bytes(), &vec![0x11; 16 * present]].concat();
        let blob = [RESOURCE.0, 1, 0, count, 0, 0, 4096, 0].map(u32::to_le_bytes).concat();
        let blob = [blob, vec![0x11; 16 * present]].concat();
        [("06010000", attach), ("0c010000", blob)].map(|(number, body)| {
            let bytes = [request(number, ""), body].concat();
            decode(&bytes).map(|command| match command {
                Command::ResourceAttachBacking { entries, .. }
                | Command::ResourceCreateBlob { entries, .. } => entries.len(),
                other => panic!("{other:?}"),
            })
        })
    };
    let most = LIMITS.backing_entries;
    assert_eq!(entries(0, 0), [Ok(0); 2]);
    assert_eq!(entries(1, 2), [Ok(1); 2]);
    assert_eq!(entries(most, 4), [Ok(4); 2]);
    assert_eq!(entries(most + 1, 5), [Err(CommandError::OverLimit("backing_entries")); 2]);
    assert_eq!(entries(u32::MAX, 5), [Err(CommandError::OverLimit("backing_entries")); 2]);
    assert_eq!(entries(most, 3), [Err(CommandError::TooShort); 2]);

    let submit = |size: u32, present: usize| {
        let bytes = [request("07020000", ""), size.to_le_bytes().to_vec(), vec![0; 4 + present]].concat();
        decode(&bytes)
            .map(|command| matches!(command, Command::Submit3d { data } if data.len() == size as usize))
    };
    let most = LIMITS.submit_bytes;
    assert_eq!(submit(most, 64), Ok(true));
    assert_eq!(submit(most - 1, 64), Ok(true));
    assert_eq!(submit(most + 1, 65), Err(CommandError::OverLimit("submit_bytes")));
    assert_eq!(submit(u32::MAX, 65), Err(CommandError::OverLimit("submit_bytes")));
    assert_eq!(submit(most, 63), Err(CommandError::TooShort));
}

#[test]
fn a_context_has_a_name_and_a_capability_set() {
    let created = |nlen: u32, context_init: u32| {
        let name = [b'n'; 64];
        let body = [&nlen.to_le_bytes()[..], &context_init.to_le_bytes(), &name].concat();
        let bytes = [request("00020000", ""), body].concat();
        decode(&bytes).map(|command| match command {
            Command::CtxCreate { capset_id, debug_name } => (capset_id.0, debug_name.len()),
            other => panic!("{other:?}"),
        })
    };
    for nlen in [0, 1, 63, 64] {
        assert_eq!(created(nlen, 4), Ok((4, nlen as usize)));
    }
    for nlen in [65, 1 << 16, u32::MAX] {
        assert_eq!(created(nlen, 4), Err(CommandError::Invalid("nlen")));
    }
    // The capability set is the lowest byte.
    for (context_init, capset) in [(0, 0), (0xff, 0xff), (0x104, 4), (0xffff_ff00, 0)] {
        assert_eq!(created(0, context_init), Ok((capset, 0)));
    }
}

#[test]
fn a_blob_has_a_place_known_uses_and_whole_pages() {
    let blob = |memory: u32, flags: u32, size: u64| {
        let head = [RESOURCE.0, memory, flags, 0, 7, 0].map(u32::to_le_bytes).concat();
        let bytes = [request("0c010000", ""), head, size.to_le_bytes().to_vec()].concat();
        decode(&bytes).map(|command| match command {
            Command::ResourceCreateBlob { blob_mem, blob_flags, size, .. } => {
                (blob_mem, blob_flags.bits(), size)
            }
            other => panic!("{other:?}"),
        })
    };
    let places = [(1, BlobMem::Guest), (2, BlobMem::Host3d), (3, BlobMem::Host3dGuest)];
    for (memory, place) in places {
        assert_eq!(blob(memory, 0, 4096), Ok((place, 0, 4096)));
    }
    for memory in [0, 4, 1 << 8, u32::MAX] {
        assert_eq!(blob(memory, 0, 4096), Err(CommandError::Invalid("blob_mem")));
    }
    for flags in 0..8 {
        assert_eq!(blob(1, flags, 4096), Ok((BlobMem::Guest, flags, 4096)));
    }
    for bit in 3..32 {
        assert_eq!(blob(1, 1 << bit, 4096), Err(CommandError::Invalid("blob_flags")), "bit {bit}");
    }
    let most = u64::MAX - 4095;
    for size in [4096, 8192, 1 << 32, most] {
        assert_eq!(blob(1, 0, size), Ok((BlobMem::Guest, 0, size)));
    }
    for size in [0, 1, 4095, 4097, 1 << 11, most + 1, u64::MAX] {
        assert_eq!(blob(1, 0, size), Err(CommandError::Invalid("blob size")), "{size}");
    }
}

#[test]
fn types_that_are_not_served_are_unknown() {
    let served: Vec<u32> =
        golden().iter().map(|(_, bytes)| u32::from_le_bytes(bytes[..4].try_into().unwrap())).collect();
    let others = [0, 0x1000, 0x1100, 0x1200, 0x0100_0000, u32::MAX];
    for number in (0xf0..0x320).chain(others) {
        let bytes = [&number.to_le_bytes()[..], &[1; 20], &[1; 80]].concat();
        let is_unknown = decode(&bytes) == Err(CommandError::Unknown(CommandType(number)));
        assert_eq!(is_unknown, !served.contains(&number), "{number:#x}");
    }
    assert_eq!(CommandError::Unknown(CommandType(0x204)).to_string(), "unknown command 0x204");
}

#[test]
fn errors_have_the_responses_of_the_specification() {
    let responses = [
        (CommandError::TooShort, 0x1200),
        (CommandError::Unknown(CommandType(7)), 0x1200),
        (CommandError::OverLimit("submit_bytes"), 0x1201),
        (CommandError::NoResource, 0x1203),
        (CommandError::Invalid("nlen"), 0x1205),
    ];
    for (error, number) in responses {
        assert_eq!(error.response(), ResponseType(number), "{error}");
    }
}

#[test]
fn headers_keep_what_they_know() {
    let header = |flags: u32, context: u32| {
        let bytes =
            [0x207, flags, 0x5566_7788, 0x1122_3344, context, 0xffff_ff3f].map(u32::to_le_bytes).concat();
        Header::decode(&bytes).unwrap()
    };
    let found = header(0xffff_ffff, 9);
    assert_eq!(found.flags, HeaderFlags::FENCE | HeaderFlags::INFO_RING_IDX);
    assert_eq!((found.command, found.fence_id), (CommandType::SUBMIT_3D, FenceId(0x1122_3344_5566_7788)));
    assert_eq!((found.ctx_id, found.ring_idx, found.context()), (9, RingIdx(63), Some(ContextId(9))));
    // A ring without a fence is no fence, and context 0 is none.
    assert_eq!((header(2, 0).fence(), header(2, 0).context()), (None, None));
    assert_eq!(header(0xffff_fffc, 1).flags, HeaderFlags::empty());
    for len in 0..HEADER_BYTES {
        assert_eq!(Header::decode(&vec![0; len]), None, "{len} bytes");
    }
}

#[test]
fn features_have_the_bits_of_the_specification() {
    let bits = [
        (Features::VIRGL, 0),
        (Features::EDID, 1),
        (Features::RESOURCE_UUID, 2),
        (Features::RESOURCE_BLOB, 3),
        (Features::CONTEXT_INIT, 4),
    ];
    for (feature, bit) in bits {
        assert_eq!(feature.bits(), 1 << bit);
    }
    assert_eq!((HOST_VISIBLE_SHMID, MAX_SCANOUTS, CapsetId::VENUS, RingIdx::COUNT), (1, 16, CapsetId(4), 64));
}

#[test]
fn commands_are_logged_with_numbers_only() {
    let blob = Command::ResourceCreateBlob {
        resource_id: RESOURCE,
        blob_mem: BlobMem::Host3d,
        blob_flags: BlobFlags::MAPPABLE,
        blob_id: BlobId(5),
        size: 8192,
        entries: &ENTRIES,
    };
    assert_eq!(blob.to_string(), "ResourceCreateBlob 4660: Host3d, blob id 5, 8192 bytes");
    let attach = Command::ResourceAttachBacking { resource_id: RESOURCE, entries: &ENTRIES };
    assert_eq!(attach.to_string(), "ResourceAttachBacking of resource 4660, 2 entries");
    assert_eq!(Command::GetCapsetInfo { capset_index: 1 }.to_string(), "GetCapsetInfo { capset_index: 1 }");
}
