//! Tests of what a guest can do to the decoder: every limit, and the error that the guest gets.

use protocol::cursor::{Arena, Limits, Reader, Writer};
use protocol::error::{DecodeError, DecodeErrorKind as Kind, Overflow};
use protocol::venus::generated::*;

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn decode(number: i32, wire: &[u8], limits: Limits, arena: usize) -> Result<(), DecodeError> {
    let arena = Arena::new(arena);
    Command::decode(number, &mut Reader::with_limits(wire, &arena, limits)).map(drop)
}

fn error(number: i32, wire: &[u32]) -> (&'static str, Kind) {
    let error = decode(number, &words(wire), Limits::default(), 1 << 20).expect_err("malformed");
    (error.what, error.kind)
}

#[test]
fn unknown_commands_are_errors() {
    for number in [-1, 195, 285, 100_000, i32::MIN] {
        assert_eq!(error(number, &[0; 64]), ("Command", Kind::Command(number)));
    }
}

#[test]
fn counts_must_match_their_length_member() {
    // vkCmdExecuteCommands: commandBufferCount 2, array of 3.
    let wire = [1, 0, 2, 3, 0, 1, 0, 2, 0, 3, 0];
    assert_eq!(
        error(136, &wire),
        ("CmdExecuteCommands.pCommandBuffers", Kind::Count { found: 3, expected: 2 })
    );
    // Null is no way out for a required array.
    let wire = [1, 0, 2, 0, 0];
    assert_eq!(
        error(136, &wire),
        ("CmdExecuteCommands.pCommandBuffers", Kind::Count { found: 0, expected: 2 })
    );
}

#[test]
fn huge_counts_fail_before_anything_is_allocated() {
    let wire = [1, 0, u32::MAX, u32::MAX, 0, 1, 0];
    assert_eq!(error(136, &wire), ("CmdExecuteCommands.pCommandBuffers", Kind::Truncated));
}

#[test]
fn sizes_near_the_end_of_the_address_space_do_not_wrap() {
    // vkCmdUpdateBuffer: dataSize and blob length of nearly 2^64.
    let wire = [1, 0, 2, 0, 0, 0, u32::MAX - 1, u32::MAX, u32::MAX - 1, u32::MAX, 0];
    assert_eq!(error(117, &wire), ("CmdUpdateBuffer.pData", Kind::Truncated));
}

#[test]
fn required_pointers_may_not_be_null_and_presence_is_boolean() {
    assert_eq!(error(178, &[0, 0]), ("SetReplyCommandStreamMESA.pStream", Kind::Null));
    assert_eq!(error(178, &[2, 0]), ("SetReplyCommandStreamMESA.pStream", Kind::Presence(2)));
}

#[test]
fn allocation_callbacks_must_be_null() {
    assert_eq!(error(51, &[3, 0, 9, 0, 1, 0]), ("DestroyBuffer.pAllocator", Kind::NotNull));
}

#[test]
fn stypes_must_fit() {
    // vkCreateFence with the sType of a semaphore.
    let wire = [3, 0, 1, 0, 9, 0, 0, 0];
    assert_eq!(error(35, &wire), ("FenceCreateInfo", Kind::StructureType { found: 9, expected: 8 }));
    // VkExportSemaphoreCreateInfo is known, but no extension of a fence.
    let wire = [3, 0, 1, 0, 8, 1, 0, 1_000_077_000, 0, 0];
    assert_eq!(error(35, &wire), ("FenceCreateInfo", Kind::ChainStructure(1_000_077_000)));
}

#[test]
fn endless_chains_are_cut_off() {
    let mut wire = vec![3, 0, 1, 0, 8];
    wire.extend([1, 0, 1_000_113_000].repeat(1000));
    assert_eq!(error(35, &wire), ("FenceCreateInfo", Kind::ChainLength));
}

#[test]
fn text_needs_exactly_one_terminator_at_its_end() {
    for text in [u32::from_le_bytes(*b"abcd"), u32::from_le_bytes(*b"a\0c\0")] {
        let wire = [2, 0, 4, 0, text, 1, 0, 0, 0, 0];
        let expected = ("EnumerateDeviceExtensionProperties.pLayerName", Kind::String { size: 4 });
        assert_eq!(error(14, &wire), expected);
    }
}

#[test]
fn union_tags_must_name_a_member() {
    assert_eq!(error(119, &[1, 0, 2, 0, 1, 1, 0, 3]), ("CmdClearColorImage.pColor", Kind::UnionTag(3)));
}

#[test]
fn out_elements_without_request_bytes_are_capped() {
    // vkEnumerateDeviceExtensionProperties: VkExtensionProperties takes no bytes in the request.
    let wire = |count: u32| words(&[2, 0, 0, 0, 1, 0, count, count, 0]);
    let limits = Limits { max_out_elements: 100, ..Limits::default() };
    assert_eq!(decode(14, &wire(100), limits, 1 << 20), Ok(()));
    let error = decode(14, &wire(101), limits, 1 << 20).expect_err("too many");
    assert_eq!(error.kind, Kind::OutBudget);
}

#[test]
fn out_bytes_are_capped() {
    // vkGetQueryPoolResults: dataSize bytes of results.
    let wire = |size: u32| words(&[3, 0, 4, 0, 0, 1, size, 0, size, 0, 8, 0, 0]);
    let limits = Limits { out_budget: 4096, ..Limits::default() };
    assert_eq!(decode(49, &wire(4096), limits, 1 << 20), Ok(()));
    let error = decode(49, &wire(4097), limits, 1 << 20).expect_err("too much");
    assert_eq!((error.what, error.kind), ("GetQueryPoolResults.pData", Kind::OutBudget));
}

#[test]
fn the_arena_is_bounded_and_reusable() {
    let mut wire = vec![1, 0, 4000, 4000, 0];
    wire.extend([1, 0].repeat(4000));
    let error = decode(136, &words(&wire), Limits::default(), 8000).expect_err("32000 bytes do not fit");
    assert_eq!(error.kind, Kind::ArenaFull);

    let wire = words(&wire);
    let mut arena = Arena::new(80_000);
    for _ in 0..100 {
        assert!(Command::decode(136, &mut Reader::new(&wire, &arena)).is_ok());
        arena.reset();
    }
    assert!(arena.allocated_bytes() <= 80_000);
}

#[test]
fn replies_never_leave_their_window() {
    let reply = EnumerateInstanceVersionReply { result: VkResult::SUCCESS, p_api_version: Some(&1) };
    for room in 0..20 {
        let mut memory = [0xaa; 24];
        let mut writer = Writer::window(&mut memory[..room]);
        reply.encode(&mut writer);
        assert_eq!(writer.finish(), Err(Overflow { room }));
        assert!(memory[room..].iter().all(|byte| *byte == 0xaa));
    }
}
