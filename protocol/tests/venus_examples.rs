//! Byte-exact examples of commands and replies, as a Mesa driver sends and expects them.

use protocol::cursor::{Arena, Reader, Writer};
use protocol::error::DecodeErrorKind;
use protocol::venus::generated::*;
use protocol::venus::stream::{self, Header};

/// Little-endian words: `w` is 4 bytes, `q` is 8.
enum Piece {
    W(u32),
    Q(u64),
}
use Piece::{Q, W};

fn bytes(pieces: &[Piece]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for piece in pieces {
        match piece {
            W(word) => bytes.extend(word.to_le_bytes()),
            Q(word) => bytes.extend(word.to_le_bytes()),
        }
    }
    bytes
}

fn encoded(command: &Command<'_>, flags: CommandFlagsEXT) -> Vec<u8> {
    let mut writer = Writer::growing();
    command.encode(flags, &mut writer);
    writer.into_bytes()
}

/// Decodes to exactly this command, and encodes to exactly these bytes.
fn check(wire: &[u8], flags: CommandFlagsEXT, command: &Command<'_>) {
    let arena = Arena::new(1 << 20);
    let mut reader = Reader::new(wire, &arena);
    let (header, decoded) = stream::next(&mut reader).expect("decodes").expect("is a command");
    assert_eq!((header, &decoded), (Header { number: command.number(), flags }, command));
    assert_eq!(reader.remaining(), 0);
    assert_eq!(encoded(command, flags), wire);
}

const REPLY: CommandFlagsEXT = CommandFlagsEXT::GENERATE_REPLY;
const ASYNC: CommandFlagsEXT = CommandFlagsEXT::empty();

#[test]
fn enumerate_instance_version() {
    let wire = bytes(&[W(137), W(1), Q(1)]);
    assert_eq!(wire.len(), 16);
    let command = EnumerateInstanceVersion { p_api_version: Some(&0) };
    check(&wire, REPLY, &Command::EnumerateInstanceVersion(command));

    let mut window = [0; 64];
    let mut writer = Writer::window(&mut window);
    let version = 0x40_4000;
    EnumerateInstanceVersionReply { result: VkResult::SUCCESS, p_api_version: Some(&version) }
        .encode(&mut writer);
    assert_eq!(writer.finish(), Ok(20));
    assert_eq!(window[..20], bytes(&[W(137), W(0), Q(1), W(version)]));
}

#[test]
fn enumerate_physical_devices_asks_for_the_count_first() {
    let wire = bytes(&[W(2), W(1), Q(7), Q(1), W(0), Q(0)]);
    assert_eq!(wire.len(), 36);
    let command = EnumeratePhysicalDevices {
        instance: Instance(7),
        p_physical_device_count: Some(&0),
        p_physical_devices: None,
    };
    check(&wire, REPLY, &Command::EnumeratePhysicalDevices(command));

    let mut writer = Writer::growing();
    let reply = EnumeratePhysicalDevicesReply { p_physical_device_count: Some(&1), ..Default::default() };
    reply.encode(&mut writer);
    assert_eq!(writer.into_bytes(), bytes(&[W(2), W(0), Q(1), W(1), Q(0)]));
}

#[test]
fn set_reply_command_stream() {
    let wire = bytes(&[W(178), W(0), Q(1), W(5), Q(4096), Q(64)]);
    assert_eq!(wire.len(), 36);
    let stream = CommandStreamDescriptionMESA { resource_id: 5, offset: 4096, size: 64 };
    let command = SetReplyCommandStreamMESA { p_stream: Some(&stream) };
    check(&wire, ASYNC, &Command::SetReplyCommandStreamMESA(command));
}

#[test]
fn sequence_number_commands() {
    let ring = 0x7fff_1234_5678;
    let wait = WaitRingSeqnoMESA { ring, seqno: 96 };
    check(&bytes(&[W(253), W(0), Q(ring), Q(96)]), ASYNC, &Command::WaitRingSeqnoMESA(wait));
    let submit = SubmitVirtqueueSeqnoMESA { ring, seqno: 3 };
    check(&bytes(&[W(251), W(0), Q(ring), Q(3)]), ASYNC, &Command::SubmitVirtqueueSeqnoMESA(submit));
    let wait = WaitVirtqueueSeqnoMESA { seqno: 3 };
    check(&bytes(&[W(252), W(0), Q(3)]), ASYNC, &Command::WaitVirtqueueSeqnoMESA(wait));
    let notify = NotifyRingMESA { ring, seqno: 8, flags: RingNotifyFlagsMESA::empty() };
    check(&bytes(&[W(190), W(0), Q(ring), W(8), W(0)]), ASYNC, &Command::NotifyRingMESA(notify));
    let destroy = DestroyRingMESA { ring };
    check(&bytes(&[W(189), W(0), Q(ring)]), ASYNC, &Command::DestroyRingMESA(destroy));
}

#[test]
fn create_ring_with_a_monitor() {
    let head = [W(188), W(0), Q(9), Q(1), W(1_000_384_000), Q(1), W(1_000_384_006), Q(0), W(3_000_000)];
    let members = [
        W(0),
        W(4),
        Q(0),
        Q(131_268),
        Q(1_000_000),
        Q(0),
        Q(64),
        Q(128),
        Q(192),
        Q(131_072),
        Q(131_264),
        Q(4),
    ];
    let wire = [bytes(&head), bytes(&members)].concat();
    assert_eq!(wire.len(), 140);
    let monitor = RingMonitorInfoMESA { max_reporting_period_microseconds: 3_000_000, ..Default::default() };
    let info = RingCreateInfoMESA {
        p_next: &[ChainStruct::RingMonitorInfoMESA(&monitor)],
        flags: RingCreateFlagsMESA::empty(),
        resource_id: 4,
        offset: 0,
        size: 131_268,
        idle_timeout: 1_000_000,
        head_offset: 0,
        tail_offset: 64,
        status_offset: 128,
        buffer_offset: 192,
        buffer_size: 131_072,
        extra_offset: 131_264,
        extra_size: 4,
    };
    check(&wire, ASYNC, &Command::CreateRingMESA(CreateRingMESA { ring: 9, p_create_info: Some(&info) }));
}

#[test]
fn chains_carry_all_stypes_before_any_member_and_members_in_reverse() {
    let wire = bytes(&[
        W(21),
        W(0),
        Q(3),
        Q(1), // vkAllocateMemory, device 3, info present
        W(5),
        Q(1),
        W(1_000_127_001),
        Q(1),
        W(1_000_384_002),
        Q(0),  // dedicated, then import, end
        W(77), // import: resourceId
        Q(0),
        Q(12), // dedicated: image, buffer
        Q(4096),
        W(2), // allocationSize, memoryTypeIndex
        Q(0),
        Q(1),
        Q(13), // allocator, memory
    ]);
    let import = ImportMemoryResourceInfoMESA { resource_id: 77, ..Default::default() };
    let dedicated = MemoryDedicatedAllocateInfo { buffer: Buffer(12), ..Default::default() };
    let info = MemoryAllocateInfo {
        p_next: &[
            ChainStruct::MemoryDedicatedAllocateInfo(&dedicated),
            ChainStruct::ImportMemoryResourceInfoMESA(&import),
        ],
        allocation_size: 4096,
        memory_type_index: 2,
    };
    let command =
        AllocateMemory { device: Device(3), p_allocate_info: Some(&info), p_memory: Some(&DeviceMemory(13)) };
    check(&wire, ASYNC, &Command::AllocateMemory(command));
}

#[test]
fn partial_properties_carry_what_sizes_the_reply() {
    let arena = Arena::new(1 << 20);
    // VkPhysicalDeviceMemoryProperties: both arrays at full length, nothing else.
    let wire = bytes(&[W(8), W(1), Q(2), Q(1), Q(32), Q(16)]);
    let decoded = stream::next(&mut Reader::new(&wire, &arena)).expect("decodes");
    let Some((_, Command::GetPhysicalDeviceMemoryProperties(_))) = decoded else { panic!("{decoded:?}") };
    // VkPhysicalDeviceVulkan14Properties: counts of both layout arrays; VkPhysicalDeviceProperties: nothing.
    let wire =
        bytes(&[W(148), W(1), Q(2), Q(1), W(1_000_059_001), Q(1), W(56), Q(0), W(64), Q(64), W(0), Q(0)]);
    let (_, command) = stream::next(&mut Reader::new(&wire, &arena)).expect("decodes").expect("is a command");
    let Command::GetPhysicalDeviceProperties2(command) = command else { panic!("{command:?}") };
    let chain = command.p_properties.expect("present").p_next;
    let [ChainStruct::PhysicalDeviceVulkan14Properties(found)] = chain else { panic!("{chain:?}") };
    assert_eq!((found.copy_src_layout_count, found.p_copy_src_layouts.map(<[_]>::len)), (64, Some(64)));
    assert_eq!((found.copy_dst_layout_count, found.p_copy_dst_layouts), (0, None));
}

#[test]
fn bytes_are_padded_and_text_is_counted_with_its_terminator() {
    let wire =
        [bytes(&[W(132), W(0), Q(1), Q(2), W(0x20), W(8), W(6), Q(6)]), b"abcdef\0\0".to_vec()].concat();
    let command = CmdPushConstants {
        command_buffer: CommandBuffer(1),
        layout: PipelineLayout(2),
        stage_flags: ShaderStageFlags::COMPUTE,
        offset: 8,
        size: 6,
        p_values: Some(b"abcdef"),
    };
    check(&wire, ASYNC, &Command::CmdPushConstants(command));

    let wire =
        [bytes(&[W(14), W(1), Q(2), Q(5)]), b"name\0\0\0\0".to_vec(), bytes(&[Q(1), W(0), Q(0)])].concat();
    let command = EnumerateDeviceExtensionProperties {
        physical_device: PhysicalDevice(2),
        p_layer_name: Some(c"name"),
        p_property_count: Some(&0),
        p_properties: None,
    };
    check(&wire, REPLY, &Command::EnumerateDeviceExtensionProperties(command));
}

#[test]
fn clear_colours_are_tagged() {
    let values = [Q(1), W(2), Q(4), W(1), W(2), W(3), W(4)];
    let wire = [bytes(&[W(119), W(0), Q(1), Q(2), W(1)]), bytes(&values), bytes(&[W(0), Q(0)])].concat();
    let colour = ClearColorValue::Uint32([1, 2, 3, 4]);
    let command = CmdClearColorImage {
        command_buffer: CommandBuffer(1),
        image: Image(2),
        image_layout: ImageLayout::GENERAL,
        p_color: Some(&colour),
        range_count: 0,
        p_ranges: None,
    };
    check(&wire, ASYNC, &Command::CmdClearColorImage(command));
}

#[test]
fn shader_code_is_counted_in_words_and_must_divide() {
    let module = |size: u64, count: u64| {
        bytes(&[
            W(59),
            W(0),
            Q(3),
            Q(1),
            W(16),
            Q(0),
            W(0),
            Q(size),
            Q(count),
            W(0x0723_0203),
            W(0),
            Q(0),
            Q(1),
            Q(4),
        ])
    };
    let arena = Arena::new(1 << 20);
    let wire = module(8, 2);
    let decoded = stream::next(&mut Reader::new(&wire, &arena)).expect("decodes");
    let Some((_, Command::CreateShaderModule(command))) = decoded else { panic!("{decoded:?}") };
    assert_eq!(command.p_create_info.and_then(|i| i.p_code), Some(&[0x0723_0203, 0][..]));
    let error = stream::next(&mut Reader::new(&module(7, 1), &arena)).expect_err("7 is no multiple of 4");
    assert_eq!((error.what, error.kind), ("ShaderModuleCreateInfo.pCode", DecodeErrorKind::Length(7)));
}

#[test]
fn ignored_queue_families_may_be_left_out() {
    for (families, present) in [(vec![Q(0)], false), (vec![Q(2), W(0), W(1)], true)] {
        let head = bytes(&[W(50), W(0), Q(3), Q(1), W(12), Q(0), W(0), Q(64), W(0x20), W(0), W(2)]);
        let wire = [head, bytes(&families), bytes(&[Q(0), Q(1), Q(9)])].concat();
        let arena = Arena::new(1 << 20);
        let decoded = stream::next(&mut Reader::new(&wire, &arena)).expect("decodes");
        let Some((_, Command::CreateBuffer(command))) = decoded else { panic!("{decoded:?}") };
        assert_eq!(command.p_create_info.is_some_and(|i| i.p_queue_family_indices.is_some()), present);
    }
}

#[test]
fn failed_replies_echo_the_ids_of_the_request() {
    let command = CreateBuffer { device: Device(3), p_create_info: None, p_buffer: Some(&Buffer(9)) };
    let mut writer = Writer::growing();
    command.failed(VkResult::ERROR_OUT_OF_DEVICE_MEMORY).encode(&mut writer);
    assert_eq!(writer.into_bytes(), bytes(&[W(50), W(u32::MAX - 1), Q(1), Q(9)]));
}

#[test]
fn names_are_known_for_undecodable_commands_too() {
    assert_eq!(Command::name(285), Some("vkMapMemory2"));
    assert_eq!(Command::name(195), None);
    assert!(!Command::NUMBERS.contains(&285));
}

#[test]
fn commands_fit_into_two_cache_lines() {
    assert!(size_of::<Command<'_>>() <= 128, "{}", size_of::<Command<'_>>());
}
