//! Golden bytes of requests and responses, and bytes that are refused.

mod requests;
mod responses;

use super::*;
use crate::ids::{BlobId, CapsetId, ContextId, FenceId, ResourceId, RingIdx, ScanoutId};
use zerocopy::byteorder::little_endian::{U32, U64};

const LIMITS: CommandLimits = CommandLimits { backing_entries: 4, submit_bytes: 64 };

/// Bytes from groups of hexadecimal digits.
fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> =
        text.chars().filter(|c| !c.is_whitespace()).map(|c| c.to_digit(16).unwrap()).collect();
    digits.chunks(2).map(|pair| (pair[0] * 16 + pair[1]) as u8).collect()
}

fn decode(bytes: &[u8]) -> Result<Command<'_>, CommandError> {
    Command::decode(&Header::decode(bytes).unwrap(), bytes, &LIMITS)
}

/// A header for command `number`, followed by `body`.
fn request(number: &str, body: &str) -> Vec<u8> {
    hex(&format!("{number} 00000000 0000000000000000 05000000 00000000 {body}"))
}

fn response(header: &str, body: &str) -> Vec<u8> {
    hex(&format!("{header} {body}"))
}

const RECT: Rect = Rect { x: 1, y: 2, width: 3, height: 4 };
const RECT_BYTES: &str = "01000000 02000000 03000000 04000000";
const RESOURCE: ResourceId = ResourceId(0x1234);
const RESOURCE_BYTES: &str = "34120000 00000000";

static ENTRIES: [MemEntry; 2] = [entry(0x1000, 0x2000), entry(0x9000, 0x1000)];

const fn entry(addr: u64, length: u32) -> MemEntry {
    MemEntry { addr: U64::new(addr), length: U32::new(length), padding: U32::new(0) }
}

fn golden() -> Vec<(Command<'static>, Vec<u8>)> {
    let name = format!("04000000 04000000 76756c6b {}", "00".repeat(60));
    vec![
        (Command::GetDisplayInfo, request("00010000", "")),
        (
            Command::ResourceCreate2d { resource_id: RESOURCE, format: 2, width: 640, height: 480 },
            request("01010000", "34120000 02000000 80020000 e0010000"),
        ),
        (Command::ResourceUnref { resource_id: RESOURCE }, request("02010000", RESOURCE_BYTES)),
        (
            Command::SetScanout { r: RECT, scanout_id: ScanoutId(7), resource_id: None },
            request("03010000", &format!("{RECT_BYTES} 07000000 00000000")),
        ),
        (
            Command::ResourceFlush { r: RECT, resource_id: RESOURCE },
            request("04010000", &format!("{RECT_BYTES} {RESOURCE_BYTES}")),
        ),
        (
            Command::TransferToHost2d { r: RECT, offset: 0x1_0000_0002, resource_id: RESOURCE },
            request("05010000", &format!("{RECT_BYTES} 0200000001000000 {RESOURCE_BYTES}")),
        ),
        (
            Command::ResourceAttachBacking { resource_id: RESOURCE, entries: &ENTRIES },
            request(
                "06010000",
                "34120000 02000000 0010000000000000 00200000 00000000 0090000000000000 00100000 00000000",
            ),
        ),
        (Command::ResourceDetachBacking { resource_id: RESOURCE }, request("07010000", RESOURCE_BYTES)),
        (Command::GetCapsetInfo { capset_index: 9 }, request("08010000", "09000000 00000000")),
        (
            Command::GetCapset { capset_id: CapsetId::VENUS, capset_version: 1 },
            request("09010000", "04000000 01000000"),
        ),
        (Command::GetEdid { scanout: ScanoutId(3) }, request("0a010000", "03000000 00000000")),
        (Command::ResourceAssignUuid { resource_id: RESOURCE }, request("0b010000", RESOURCE_BYTES)),
        (
            Command::ResourceCreateBlob {
                resource_id: RESOURCE,
                blob_mem: BlobMem::Host3d,
                blob_flags: BlobFlags::MAPPABLE | BlobFlags::SHAREABLE,
                blob_id: BlobId(0x55),
                size: 0x21000,
                entries: &[],
            },
            request("0c010000", "34120000 02000000 03000000 00000000 5500000000000000 0010020000000000"),
        ),
        (
            Command::SetScanoutBlob {
                r: RECT,
                scanout_id: ScanoutId(0),
                resource_id: Some(RESOURCE),
                width: 5,
                height: 6,
                format: 7,
                strides: [8, 0, 0, 0],
                offsets: [9, 0, 0, 0],
            },
            request(
                "0d010000",
                &format!(
                    "{RECT_BYTES} 00000000 34120000 05000000 06000000 07000000 00000000
                     08000000 00000000 00000000 00000000 09000000 00000000 00000000 00000000"
                ),
            ),
        ),
        (Command::CtxCreate { capset_id: CapsetId::VENUS, debug_name: b"vulk" }, request("00020000", &name)),
        (Command::CtxDestroy, request("01020000", "")),
        (Command::CtxAttachResource { resource_id: RESOURCE }, request("02020000", RESOURCE_BYTES)),
        (Command::CtxDetachResource { resource_id: RESOURCE }, request("03020000", RESOURCE_BYTES)),
        (Command::Submit3d { data: b"\xaa\xbb\xcc" }, request("07020000", "03000000 00000000 aabbcc")),
        (Command::Submit3d { data: b"" }, request("07020000", "00000000 00000000")),
        (
            Command::ResourceMapBlob { resource_id: RESOURCE, offset: 0x40_0000_0000 },
            request("08020000", &format!("{RESOURCE_BYTES} 0000000040000000")),
        ),
        (Command::ResourceUnmapBlob { resource_id: RESOURCE }, request("09020000", RESOURCE_BYTES)),
        (
            Command::UpdateCursor { scanout_id: ScanoutId(1), resource_id: Some(RESOURCE) },
            request("00030000", &format!("01000000 {} 34120000 {}", "00".repeat(12), "00".repeat(12))),
        ),
        (
            Command::MoveCursor { scanout_id: ScanoutId(1) },
            request("01030000", &format!("01000000 {}", "00".repeat(28))),
        ),
    ]
}

#[test]
fn every_command_is_decoded_from_its_golden_bytes() {
    for (command, bytes) in golden() {
        assert_eq!(decode(&bytes), Ok(command));
    }
}

#[test]
fn every_command_cut_short_is_refused() {
    for (command, bytes) in golden() {
        let len = bytes.len();
        for cut in HEADER_BYTES..len {
            let found = decode(&bytes[..cut]);
            assert_eq!(found, Err(CommandError::TooShort), "{command:?} cut to {cut} of {len} bytes");
        }
        assert_eq!(Header::decode(&bytes[..23]), None);
    }
}

#[cfg(feature = "driver")]
#[test]
fn every_command_is_encoded_to_its_golden_bytes() {
    for (command, bytes) in golden() {
        let mut out = Vec::new();
        command.encode(Some(ContextId(5)), None, &mut out);
        assert_eq!(out, bytes, "{command:?}");
    }
}

#[test]
fn a_fence_names_its_timeline_only_with_the_ring_flag() {
    let ring = hex("07020000 03000000 8877665544332211 05000000 3f000000");
    let header = Header::decode(&ring).unwrap();
    let fence_id = FenceId(0x1122_3344_5566_7788);
    assert_eq!(header.fence(), Some(Fence { timeline: FenceTimeline::Ring(RingIdx(63)), fence_id }));
    assert_eq!(header.context(), Some(ContextId(5)));

    let global = hex("04010000 01000000 8877665544332211 00000000 3f000000");
    let header = Header::decode(&global).unwrap();
    assert_eq!(header.fence(), Some(Fence { timeline: FenceTimeline::Global, fence_id }));
    assert_eq!(header.context(), None);

    let none = hex("04010000 02000000 8877665544332211 00000000 3f000000");
    assert_eq!(Header::decode(&none).unwrap().fence(), None);
}

#[test]
fn what_a_command_may_not_say_is_refused_with_its_error() {
    let cases = [
        ("a resource id of 0", request("02010000", "00000000 00000000"), CommandError::NoResource),
        (
            "an empty blob",
            request("0c010000", "01000000 02000000 00000000 00000000 0000000000000000 0000000000000000"),
            CommandError::Invalid("blob size"),
        ),
        (
            "a blob that is no whole number of pages",
            request("0c010000", "01000000 02000000 00000000 00000000 0000000000000000 0110000000000000"),
            CommandError::Invalid("blob size"),
        ),
        (
            "an unknown kind of blob",
            request("0c010000", "01000000 04000000 00000000 00000000 0000000000000000 0010000000000000"),
            CommandError::Invalid("blob_mem"),
        ),
        (
            "an unknown blob flag",
            request("0c010000", "01000000 02000000 08000000 00000000 0000000000000000 0010000000000000"),
            CommandError::Invalid("blob_flags"),
        ),
        (
            "a name longer than its field",
            request("00020000", &format!("41000000 04000000 {}", "61".repeat(64))),
            CommandError::Invalid("nlen"),
        ),
        (
            "more entries than the limit",
            request("06010000", "01000000 05000000"),
            CommandError::OverLimit("backing_entries"),
        ),
        (
            "more entries than bytes",
            request("06010000", "01000000 04000000 0010000000000000 00200000 00000000"),
            CommandError::TooShort,
        ),
        (
            "a payload over the limit",
            request("07020000", "41000000 00000000"),
            CommandError::OverLimit("submit_bytes"),
        ),
        (
            "a payload longer than the request",
            request("07020000", "04000000 00000000 aabbcc"),
            CommandError::TooShort,
        ),
        (
            "a virgl command",
            request("04020000", &"00".repeat(48)),
            CommandError::Unknown(CommandType::RESOURCE_CREATE_3D),
        ),
    ];
    for (what, bytes, error) in cases {
        assert_eq!(decode(&bytes), Err(error), "{what}");
        assert!((0x1200..=0x1205).contains(&error.response().0), "{what}");
    }
}

fn golden_responses() -> Vec<(Response, Vec<u8>)> {
    let echo = |number: &str| format!("{number} 03000000 0900000000000000 05000000 02000000");
    let mode = DisplayMode { r: RECT, enabled: true };
    let rest = "00".repeat(24 * 15);
    let modes: Vec<_> = std::iter::once(mode)
        .chain((1..16).map(|_| DisplayMode { r: Rect { x: 0, y: 0, width: 0, height: 0 }, enabled: false }))
        .collect();
    vec![
        (Response::OkNodata, response(&echo("00110000"), "")),
        (
            Response::OkDisplayInfo(modes),
            response(&echo("01110000"), &format!("{RECT_BYTES} 01000000 00000000 {rest}")),
        ),
        (
            Response::OkCapsetInfo {
                capset_id: CapsetId::VENUS,
                capset_max_version: 0,
                capset_max_size: 160,
            },
            response(&echo("02110000"), "04000000 00000000 a0000000 00000000"),
        ),
        (Response::OkCapset(vec![1, 2, 3, 4]), response(&echo("03110000"), "01020304")),
        (
            Response::OkResourceUuid(*b"0123456789abcdef"),
            response(&echo("05110000"), "30313233343536373839616263646566"),
        ),
        (Response::OkMapInfo(MapCache::Cached), response(&echo("06110000"), "01000000 00000000")),
        (Response::OkMapInfo(MapCache::WriteCombined), response(&echo("06110000"), "03000000 00000000")),
        (Response::Err(ResponseType::ERR_INVALID_RESOURCE_ID), response(&echo("03120000"), "")),
    ]
}

#[test]
fn every_response_is_encoded_to_its_golden_bytes() {
    let request = hex("07020000 03000000 0900000000000000 05000000 02000000");
    let header = Header::decode(&request).unwrap();
    for (response, bytes) in golden_responses() {
        let mut out = Vec::new();
        response.encode(&header, &mut out);
        assert_eq!(out, bytes, "{response:?}");
        assert!(out.len() <= RESPONSE_BYTES_MAX);
    }
}

#[cfg(feature = "driver")]
#[test]
fn every_response_is_decoded_from_its_golden_bytes() {
    for (response, bytes) in golden_responses() {
        let (header, decoded) = Response::decode(&bytes).unwrap();
        assert_eq!(decoded, response);
        assert_eq!(header.fence_id, FenceId(9));
        assert_eq!(Response::decode(&bytes[..23]), None);
    }
}

#[test]
fn the_configuration_space_has_sixteen_bytes() {
    use zerocopy::IntoBytes;
    assert_eq!(Config::new(1, 2).as_bytes(), hex("00000000 00000000 01000000 02000000"));
}

#[test]
fn what_a_guest_chose_freely_is_not_in_the_log() {
    let submit = Command::Submit3d { data: b"secret" }.to_string();
    assert_eq!(submit, "Submit3d of 6 bytes");
    let create = Command::CtxCreate { capset_id: CapsetId::VENUS, debug_name: b"\x1b[2J" }.to_string();
    assert_eq!(create, "CtxCreate with capset 4, name of 4 bytes");
}
