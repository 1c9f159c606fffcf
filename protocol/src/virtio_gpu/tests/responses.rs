//! Responses at their edges: the header they echo, their lengths, and numbers that are not known (VIRTIO 1.3, 5.7.6.7 and 5.7.6.8).

use super::*;

/// A request's header, whose flags and padding hold more than is known.
fn odd_request() -> Header {
    let bytes = hex("07020000 fdffffff 0900000000000000 05000000 07aaaaaa");
    Header::decode(&bytes).unwrap()
}

fn encoded(response: &Response) -> Vec<u8> {
    let mut out = Vec::new();
    response.encode(&odd_request(), &mut out);
    out
}

#[test]
fn a_response_echoes_what_the_device_knows_of_the_header() {
    let echoed = encoded(&Response::OkNodata);
    // The fence, its id, the context and the ring's number, which counts only with the ring's flag; no padding.
    assert_eq!(echoed, hex("00110000 01000000 0900000000000000 05000000 07000000"));
    // An answer is appended to the bytes that the vector already has.
    let mut out = vec![1, 2, 3];
    Response::Err(ResponseType::ERR_UNSPEC).encode(&odd_request(), &mut out);
    assert_eq!((out.len(), &out[..7]), (3 + HEADER_BYTES, &[1, 2, 3, 0, 0x12, 0, 0][..]));
}

#[test]
fn errors_have_the_numbers_of_the_specification() {
    let numbers = [
        (ResponseType::ERR_UNSPEC, 0x1200),
        (ResponseType::ERR_OUT_OF_MEMORY, 0x1201),
        (ResponseType::ERR_INVALID_SCANOUT_ID, 0x1202),
        (ResponseType::ERR_INVALID_RESOURCE_ID, 0x1203),
        (ResponseType::ERR_INVALID_CONTEXT_ID, 0x1204),
        (ResponseType::ERR_INVALID_PARAMETER, 0x1205),
    ];
    for (error, number) in numbers {
        assert_eq!(encoded(&Response::Err(error))[..4], u32::to_le_bytes(number));
    }
}

fn mode(x: u32, enabled: bool) -> DisplayMode {
    DisplayMode { r: Rect { x, y: 0, width: 1, height: 1 }, enabled }
}

#[test]
fn display_information_is_about_sixteen_scanouts() {
    for count in [0, 1, 15, 16, 17, 40] {
        let modes: Vec<_> = (0..count).map(|x| mode(x + 1, x % 2 == 0)).collect();
        let bytes = encoded(&Response::OkDisplayInfo(modes));
        assert_eq!(bytes.len(), RESPONSE_BYTES_MAX, "{count} modes");
        for (at, one) in (0..).zip(bytes[HEADER_BYTES..].chunks(24)) {
            let word = |index: usize| u32::from_le_bytes(one[index * 4..index * 4 + 4].try_into().unwrap());
            let is_there = at < count;
            assert_eq!(word(0), if is_there { at + 1 } else { 0 }, "scanout {at} of {count}");
            assert_eq!(word(4), u32::from(is_there && at % 2 == 0), "scanout {at} of {count}");
        }
    }
}

#[cfg(feature = "driver")]
#[test]
fn a_response_cut_short_is_none() {
    for (response, bytes) in golden_responses() {
        // A capability set has the length of its own bytes.
        let shortest = if matches!(response, Response::OkCapset(_)) { HEADER_BYTES } else { bytes.len() };
        for end in 0..bytes.len() {
            assert_eq!(
                Response::decode(&bytes[..end]).is_some(),
                end >= shortest,
                "{response:?}, {end} bytes"
            );
        }
    }
    let capset = encoded(&Response::OkCapset(vec![1, 2, 3]));
    let short = Response::decode(&capset[..HEADER_BYTES + 2]).map(|(_, response)| response);
    assert_eq!(short, Some(Response::OkCapset(vec![1, 2])));
}

#[cfg(feature = "driver")]
#[test]
fn responses_of_unknown_types_and_values_are_none() {
    let of_type = |number: u32| {
        let bytes = [&number.to_le_bytes()[..], &[0; 20], &1u32.to_le_bytes(), &[0; 400]].concat();
        Response::decode(&bytes).map(|(_, response)| response)
    };
    for number in [0x1100, 0x1101, 0x1102, 0x1103, 0x1105, 0x1106] {
        assert!(of_type(number).is_some_and(|response| response.response_type().0 == number), "{number:#x}");
    }
    // EDID is not served, and errors may be ones that are not known.
    for number in [0, 0x100, 0x10ff, 0x1104, 0x1107, 0x11ff, 0x1300, u32::MAX] {
        assert_eq!(of_type(number), None, "{number:#x}");
    }
    for number in [0x1200, 0x1205, 0x1206, 0x12ff] {
        assert_eq!(of_type(number), Some(Response::Err(ResponseType(number))));
    }
    let caches = [(1, MapCache::Cached), (2, MapCache::Uncached), (3, MapCache::WriteCombined)];
    for (number, cache) in caches {
        let bytes = encoded(&Response::OkMapInfo(cache));
        assert_eq!(bytes[HEADER_BYTES..], [number, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Response::decode(&bytes).map(|(_, response)| response), Some(Response::OkMapInfo(cache)));
    }
    for number in [0, 4, 0xff] {
        let mut bytes = encoded(&Response::OkMapInfo(MapCache::Cached));
        bytes[HEADER_BYTES] = number;
        assert_eq!(Response::decode(&bytes), None, "caching {number}");
    }
}

#[cfg(feature = "driver")]
#[test]
fn requests_carry_their_fence_and_their_context() {
    let fence_id = FenceId(0x0102_0304_0506_0708);
    let with = |context, timeline: Option<FenceTimeline>| {
        let mut out = Vec::new();
        let fence = timeline.map(|timeline| Fence { timeline, fence_id });
        Command::CtxDestroy.encode(context, fence, &mut out);
        out
    };
    let cases = [
        (None, None, "01020000 00000000 0000000000000000 00000000 00000000"),
        (Some(ContextId(9)), None, "01020000 00000000 0000000000000000 09000000 00000000"),
        (None, Some(FenceTimeline::Global), "01020000 01000000 0807060504030201 00000000 00000000"),
        (
            Some(ContextId(9)),
            Some(FenceTimeline::Ring(RingIdx(5))),
            "01020000 03000000 0807060504030201 09000000 05000000",
        ),
    ];
    for (context, timeline, bytes) in cases {
        assert_eq!(with(context, timeline), hex(bytes), "{context:?} {timeline:?}");
    }
}

#[cfg(feature = "driver")]
#[test]
fn a_name_that_does_not_fit_is_cut() {
    for len in [63, 64, 65, 200] {
        let name = vec![b'n'; len];
        let mut out = Vec::new();
        Command::CtxCreate { capset_id: CapsetId::VENUS, debug_name: &name }.encode(None, None, &mut out);
        let kept = &name[..len.min(64)];
        assert_eq!(decode(&out), Ok(Command::CtxCreate { capset_id: CapsetId::VENUS, debug_name: kept }));
    }
}
