//! Tests of [`super::save`]: descriptors are written into sets again, and then written down again as they were.

use super::*;
use crate::snapshot::world_for_tests::{DEVICE, World};
use protocol::cursor::{Arena, Reader};
use protocol::venus::generated::Command;
use protocol::venus::stream;

const LAYOUT: venus::DescriptorSetLayout = venus::DescriptorSetLayout(50);
const POOL: venus::DescriptorPool = venus::DescriptorPool(51);
const SETS: [venus::DescriptorSet; 2] = [venus::DescriptorSet(52), venus::DescriptorSet(53)];
const BUFFERS: [venus::Buffer; 4] =
    [venus::Buffer(60), venus::Buffer(61), venus::Buffer(62), venus::Buffer(63)];
const SAMPLERS: [venus::Sampler; 2] = [venus::Sampler(70), venus::Sampler(71)];
const STORAGE: DescriptorType = DescriptorType::STORAGE_BUFFER;
const BLOCK: DescriptorType = DescriptorType::INLINE_UNIFORM_BLOCK;
/// Two bindings of buffers that follow each other, samplers, a block, and one for buffers and samplers.
const BINDINGS: [(u32, DescriptorType, u32); 5] = [
    (0, STORAGE, 2),
    (1, STORAGE, 3000),
    (4, DescriptorType::SAMPLER, 2),
    (7, BLOCK, 64),
    (9, DescriptorType::MUTABLE_EXT, 4),
];

fn create(world: &World) {
    BUFFERS.into_iter().for_each(|buffer| world.create_buffer(buffer));
    for sampler in SAMPLERS {
        let info = venus::SamplerCreateInfo::default();
        let (p_create_info, p_sampler) = (Some(&info), Some(&sampler));
        world.run(&[Command::CreateSampler(venus::CreateSampler {
            device: DEVICE,
            p_create_info,
            p_sampler,
        })]);
    }
    let bindings = BINDINGS.map(|(binding, descriptor_type, descriptor_count)| {
        venus::DescriptorSetLayoutBinding { binding, descriptor_type, descriptor_count, ..Default::default() }
    });
    let layout = venus::DescriptorSetLayoutCreateInfo {
        binding_count: bindings.len() as u32,
        p_bindings: Some(&bindings),
        ..Default::default()
    };
    let pool = venus::DescriptorPoolCreateInfo { max_sets: 2, ..Default::default() };
    let sets = venus::DescriptorSetAllocateInfo {
        descriptor_pool: POOL,
        descriptor_set_count: 2,
        p_set_layouts: Some(&[LAYOUT; 2]),
        ..Default::default()
    };
    world.run(&[
        Command::CreateDescriptorSetLayout(venus::CreateDescriptorSetLayout {
            device: DEVICE,
            p_create_info: Some(&layout),
            p_set_layout: Some(&LAYOUT),
        }),
        Command::CreateDescriptorPool(venus::CreateDescriptorPool {
            device: DEVICE,
            p_create_info: Some(&pool),
            p_descriptor_pool: Some(&POOL),
        }),
        Command::AllocateDescriptorSets(venus::AllocateDescriptorSets {
            device: DEVICE,
            p_allocate_info: Some(&sets),
            p_descriptor_sets: Some(&SETS),
        }),
    ]);
}

fn saved(world: &World) -> Vec<Step> {
    let mut steps = Vec::new();
    save(world.context(), &mut steps).unwrap();
    steps
}

/// Saves, replays the steps in another context and saves it: both are the same. Returns the writes: set, binding, element, type, and values.
fn moved(one: &World, other: &World) -> Vec<(u64, u32, u32, i32, Vec<u64>)> {
    let steps = saved(one);
    other.replay(&steps);
    assert_eq!(saved(other), steps);
    let (arena, mut all) = (Arena::new(1 << 20), Vec::new());
    for step in steps {
        let Step::Commands(commands) = step else { panic!("{step:?}") };
        let mut reader = Reader::new(&commands, &arena);
        while let Some((header, command)) = stream::next(&mut reader).unwrap() {
            let Command::UpdateDescriptorSets(update) = command else { panic!("{command:?}") };
            assert!(!header.wants_reply() && update.device == DEVICE && update.descriptor_copy_count == 0);
            all.extend(update.p_descriptor_writes.unwrap().iter().map(read));
        }
    }
    all
}

fn read(write: &WriteDescriptorSet<'_>) -> (u64, u32, u32, i32, Vec<u64>) {
    let images = write.p_image_info.unwrap_or(&[]).iter().map(|info| info.sampler.0);
    let buffers = write.p_buffer_info.unwrap_or(&[]).iter().map(|info| info.buffer.0);
    let block = write.p_next.iter().flat_map(|next| match next {
        ChainStruct::WriteDescriptorSetInlineUniformBlock(block) => block.p_data.unwrap(),
        _ => &[],
    });
    let values: Vec<_> = images.chain(buffers).chain(block.map(|byte| u64::from(*byte))).collect();
    assert_eq!(values.len(), write.descriptor_count as usize);
    (write.dst_set.0, write.dst_binding, write.dst_array_element, write.descriptor_type.0, values)
}

fn update(world: &World, writes: &[WriteDescriptorSet<'_>], copies: &[venus::CopyDescriptorSet<'_>]) {
    world.run(&[Command::UpdateDescriptorSets(venus::UpdateDescriptorSets {
        device: DEVICE,
        descriptor_write_count: writes.len() as u32,
        p_descriptor_writes: Some(writes),
        descriptor_copy_count: copies.len() as u32,
        p_descriptor_copies: Some(copies),
    })]);
}

/// Writes buffers.
fn write(world: &World, set: venus::DescriptorSet, binding: u32, element: u32, buffers: &[venus::Buffer]) {
    let info = |buffer: &_| venus::DescriptorBufferInfo { buffer: *buffer, offset: 0, range: 64 };
    let infos: Vec<_> = buffers.iter().map(info).collect();
    let write = WriteDescriptorSet {
        dst_set: set,
        dst_binding: binding,
        dst_array_element: element,
        descriptor_count: infos.len() as u32,
        descriptor_type: STORAGE,
        p_buffer_info: Some(&infos),
        ..Default::default()
    };
    update(world, &[write], &[]);
}

fn write_samplers(world: &World, binding: u32, samplers: &[venus::Sampler]) {
    let info = |sampler: &_| venus::DescriptorImageInfo { sampler: *sampler, ..Default::default() };
    let infos: Vec<_> = samplers.iter().map(info).collect();
    let write = WriteDescriptorSet {
        dst_set: SETS[0],
        dst_binding: binding,
        descriptor_count: infos.len() as u32,
        descriptor_type: DescriptorType::SAMPLER,
        p_image_info: Some(&infos),
        ..Default::default()
    };
    update(world, &[write], &[]);
}

fn copy(
    world: &World,
    from: (venus::DescriptorSet, u32, u32),
    to: (venus::DescriptorSet, u32, u32),
    count: u32,
) {
    let copy = venus::CopyDescriptorSet {
        src_set: from.0,
        src_binding: from.1,
        src_array_element: from.2,
        dst_set: to.0,
        dst_binding: to.1,
        dst_array_element: to.2,
        descriptor_count: count,
        ..Default::default()
    };
    update(world, &[], &[copy]);
}

#[test]
fn what_was_written_last_is_written_again() {
    let (_exclusive, one, other) = World::two();
    create(&one);
    create(&other);
    assert!(saved(&one).is_empty());
    let [a, b, c, d] = BUFFERS;
    // Writes over the end of the first binding, and then a part of this range again.
    write(&one, SETS[0], 0, 1, &[a, b, c]);
    write(&one, SETS[0], 1, 1, &[d]);
    write_samplers(&one, 4, &SAMPLERS);
    // Two sets by one command, and one of them twice.
    let info = [venus::DescriptorBufferInfo { buffer: d, offset: 0, range: 64 }];
    let into = |dst_set, dst_array_element| WriteDescriptorSet {
        dst_set,
        dst_array_element,
        descriptor_count: 1,
        descriptor_type: STORAGE,
        p_buffer_info: Some(&info),
        ..Default::default()
    };
    update(&one, &[into(SETS[1], 0), into(SETS[0], 0), into(SETS[1], 1)], &[]);
    let (sampler, buffer) = (DescriptorType::SAMPLER.0, STORAGE.0);
    let [first, second] = SETS.map(|set| set.0);
    let expected = [
        (first, 0, 0, buffer, vec![d.0, a.0]),
        (first, 1, 0, buffer, vec![b.0, d.0]),
        (first, 4, 0, sampler, vec![SAMPLERS[0].0, SAMPLERS[1].0]),
        (second, 0, 0, buffer, vec![d.0, d.0]),
    ];
    assert_eq!(moved(&one, &other), expected);
}

#[test]
fn a_refused_update_changes_nothing() {
    let (_exclusive, one, other) = World::two();
    create(&one);
    create(&other);
    write(&one, SETS[0], 0, 0, &[BUFFERS[0]]);
    write(&one, SETS[0], 1, 2999, &[BUFFERS[1]; 2]);
    write_samplers(&one, 0, &SAMPLERS);
    copy(&one, (SETS[0], 0, 0), (SETS[0], 4, 0), 1);
    assert_eq!(moved(&one, &other), [(SETS[0].0, 0, 0, STORAGE.0, vec![BUFFERS[0].0])]);
}

#[test]
fn copies_are_what_they_copied() {
    let (_exclusive, one, other) = World::two();
    create(&one);
    create(&other);
    let [a, b, c, d] = BUFFERS;
    write(&one, SETS[0], 0, 0, &[a, b, c]);
    copy(&one, (SETS[0], 0, 1), (SETS[1], 0, 0), 3);
    copy(&one, (SETS[0], 0, 0), (SETS[0], 9, 1), 2);
    write(&one, SETS[0], 0, 0, &[d]);
    write_samplers(&one, 9, &SAMPLERS[..1]);
    let [first, second] = SETS.map(|set| set.0);
    let expected = [
        (first, 0, 0, STORAGE.0, vec![d.0, b.0]),
        (first, 1, 0, STORAGE.0, vec![c.0]),
        (first, 9, 0, DescriptorType::SAMPLER.0, vec![SAMPLERS[0].0]),
        (first, 9, 1, STORAGE.0, vec![a.0, b.0]),
        (second, 0, 0, STORAGE.0, vec![b.0, c.0]),
    ];
    assert_eq!(moved(&one, &other), expected);
}

#[test]
fn inline_uniform_blocks_and_large_bindings_are_written_in_pieces() {
    let (_exclusive, one, other) = World::two();
    create(&one);
    create(&other);
    let data = [1, 2, 3, 4, 5, 6, 7, 8];
    let block =
        venus::WriteDescriptorSetInlineUniformBlock { p_next: &[], data_size: 8, p_data: Some(&data) };
    let chain = [ChainStruct::WriteDescriptorSetInlineUniformBlock(&block)];
    let inline = WriteDescriptorSet {
        p_next: &chain,
        dst_set: SETS[1],
        dst_binding: 7,
        dst_array_element: 4,
        descriptor_count: 8,
        descriptor_type: BLOCK,
        ..Default::default()
    };
    update(&one, &[inline], &[]);
    for at in 0..300 {
        write(&one, SETS[1], 1, 10 * at, &[BUFFERS[0]; 10]);
    }
    let all = moved(&one, &other);
    let counts: Vec<_> =
        all.iter().map(|(_, binding, element, _, values)| (*binding, *element, values.len())).collect();
    assert_eq!(counts, [(1, 0, 1024), (1, 1024, 1024), (1, 2048, 952), (7, 0, 12)]);
    assert_eq!(all[3].4, [0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
}

#[test]
fn what_names_an_object_that_is_gone_is_left_out_and_so_are_sets_that_are_gone() {
    let (_exclusive, one, other) = World::two();
    create(&one);
    create(&other);
    let [a, b, c, _] = BUFFERS;
    write(&one, SETS[0], 1, 0, &[a, b, c]);
    write(&one, SETS[1], 1, 0, &[c]);
    one.destroy_buffer(b);
    // The id is used again for another object, which a hostile guest may do.
    let info = venus::SamplerCreateInfo::default();
    let p_sampler = Some(&venus::Sampler(b.0));
    one.run(&[Command::CreateSampler(venus::CreateSampler {
        device: DEVICE,
        p_create_info: Some(&info),
        p_sampler,
    })]);
    let free = |sets: &[venus::DescriptorSet]| {
        one.run(&[Command::FreeDescriptorSets(venus::FreeDescriptorSets {
            device: DEVICE,
            descriptor_pool: POOL,
            descriptor_set_count: sets.len() as u32,
            p_descriptor_sets: Some(sets),
        })]);
    };
    free(&SETS[1..]);
    let expected = [(SETS[0].0, 1, 0, STORAGE.0, vec![a.0]), (SETS[0].0, 1, 2, STORAGE.0, vec![c.0])];
    assert_eq!(moved(&one, &other), expected);
    let flags = venus::DescriptorPoolResetFlags(0);
    let reset = venus::ResetDescriptorPool { device: DEVICE, descriptor_pool: POOL, flags };
    one.run(&[Command::ResetDescriptorPool(reset)]);
    assert!(saved(&one).is_empty());
}
