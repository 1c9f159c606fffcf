//! Tests of commands that bind several buffers or images to memory: all of them are bound, or none.

use crate::null::world_for_tests::{DEVICE, PAGES, SIZE, World};
use protocol::venus::generated as venus;
use venus::{ChainStruct, Command};

const MEMORY: venus::DeviceMemory = venus::DeviceMemory(10);
/// Memory of another device.
const FOREIGN: venus::DeviceMemory = venus::DeviceMemory(11);
const OTHER: venus::Device = venus::Device(4);

/// A world with memory, and memory of another device.
fn world() -> World {
    let world = World::reliable();
    drop(world.allocate_of(MEMORY.0, &[], SIZE, PAGES));
    world.create_device(OTHER);
    let info = venus::MemoryAllocateInfo { allocation_size: SIZE, memory_type_index: PAGES, p_next: &[] };
    world.execute(&Command::AllocateMemory(venus::AllocateMemory {
        device: OTHER,
        p_allocate_info: Some(&info),
        p_memory: Some(&FOREIGN),
    }));
    world
}

fn bind_buffers(world: &World, all: &[(u64, venus::DeviceMemory, u64)]) {
    let info = |(id, memory, memory_offset): &(u64, _, _)| venus::BindBufferMemoryInfo {
        buffer: venus::Buffer(*id),
        memory: *memory,
        memory_offset: *memory_offset,
        p_next: &[],
    };
    let infos: Vec<_> = all.iter().map(info).collect();
    let (bind_info_count, p_bind_infos) = (infos.len() as u32, Some(&infos[..]));
    world.execute(&Command::BindBufferMemory2(venus::BindBufferMemory2 {
        device: DEVICE,
        bind_info_count,
        p_bind_infos,
    }));
}

/// Binds images; those with an aspect are bound by a plane.
fn bind_images(world: &World, all: &[(u64, venus::DeviceMemory, u64, venus::ImageAspectFlags)]) {
    let planes: Vec<_> = all
        .iter()
        .map(|(.., aspect)| venus::BindImagePlaneMemoryInfo { p_next: &[], plane_aspect: *aspect })
        .collect();
    let chains: Vec<_> = planes.iter().map(|plane| [ChainStruct::BindImagePlaneMemoryInfo(plane)]).collect();
    let infos: Vec<_> = all
        .iter()
        .zip(&chains)
        .map(|((id, memory, memory_offset, aspect), chain)| venus::BindImageMemoryInfo {
            image: venus::Image(*id),
            memory: *memory,
            memory_offset: *memory_offset,
            p_next: if aspect.0 == 0 { &[] } else { &chain[..] },
        })
        .collect();
    let (bind_info_count, p_bind_infos) = (infos.len() as u32, Some(&infos[..]));
    world.execute(&Command::BindImageMemory2(venus::BindImageMemory2 {
        device: DEVICE,
        bind_info_count,
        p_bind_infos,
    }));
}

fn has_buffer_memory(world: &World, id: u64) -> bool {
    let objects = world.renderer.context().objects.read();
    objects.get(venus::Buffer(id)).unwrap().state::<venus::Buffer>().unwrap().has_memory()
}

/// Returns for each plane of an image whether it is marked as bound to memory.
fn image_memory(world: &World, id: u64) -> [bool; 3] {
    let objects = world.renderer.context().objects.read();
    let image = objects.get(venus::Image(id)).unwrap().state::<venus::Image>().unwrap();
    let marked = image.memory.each_ref().map(|plane| plane.load(std::sync::atomic::Ordering::Relaxed));
    assert_eq!(marked, image.bound.lock().map(|bound| bound.is_some()));
    marked
}

#[test]
fn of_buffers_that_are_bound_together_none_is_if_one_is_refused() {
    let world = world();
    (20..25).for_each(|id| _ = world.buffer(id));
    world.bind(24, MEMORY.0);
    for refused in [
        (21, MEMORY, SIZE),
        (21, MEMORY, 1 << 40),
        (21, FOREIGN, 0),
        (21, venus::DeviceMemory(0), 0),
        (20, MEMORY, 0),
        (24, MEMORY, 0),
        (0, MEMORY, 0),
    ] {
        bind_buffers(&world, &[(20, MEMORY, 0), (22, MEMORY, 0), refused]);
        assert!((20..24).all(|id| !has_buffer_memory(&world, id)), "{refused:?}");
    }
    let bind = venus::BindBufferMemory {
        device: DEVICE,
        buffer: venus::Buffer(20),
        memory: FOREIGN,
        memory_offset: 0,
    };
    world.execute(&Command::BindBufferMemory(bind));
    assert!(!has_buffer_memory(&world, 20) && has_buffer_memory(&world, 24));
    bind_buffers(&world, &[(20, MEMORY, 0), (22, MEMORY, 0), (21, MEMORY, 0)]);
    assert!((20..23).all(|id| has_buffer_memory(&world, id)));
}

#[test]
fn of_images_that_are_bound_together_none_is_if_one_is_refused() {
    let world = world();
    let whole = venus::ImageAspectFlags(0);
    let (of_one_plane, of_three) = (venus::Format::R8_UNORM, venus::Format::G8_B8_R8_3PLANE_420_UNORM);
    for id in [20, 22, 24] {
        world.image(id, of_one_plane, venus::ImageCreateFlags(0));
    }
    world.image(21, of_three, venus::ImageCreateFlags::DISJOINT);
    bind_images(&world, &[(24, MEMORY, 0, whole)]);
    let (first, second) = (venus::ImageAspectFlags::PLANE_0, venus::ImageAspectFlags::PLANE_1);
    for refused in [
        (22, MEMORY, 1 << 40, whole),
        (22, FOREIGN, 0, whole),
        (22, venus::DeviceMemory(0), 0, whole),
        (20, MEMORY, 0, whole),
        (24, MEMORY, 0, whole),
        (0, MEMORY, 0, whole),
        (21, MEMORY, 0, second),
    ] {
        bind_images(&world, &[(20, MEMORY, 0, whole), (21, MEMORY, 0, second), refused]);
        assert_eq!([20, 21, 22].map(|id| image_memory(&world, id)), [[false; 3]; 3], "{refused:?}");
    }
    assert_eq!(image_memory(&world, 24), [true, false, false]);
    bind_images(&world, &[(20, MEMORY, 0, whole), (21, MEMORY, 0, second), (21, MEMORY, 0, first)]);
    assert_eq!(image_memory(&world, 20), [true, false, false]);
    assert_eq!(image_memory(&world, 21), [true, true, false]);
}
