//! Tests of the pool: which memory is used again by the device that freed it, and when memory goes after all.

use crate::null;
use crate::null::world_for_tests::{DEVICE, MAPPED, PAGES, PRIVATE, SIZE, World};
use protocol::venus::generated as venus;
use std::sync::Arc;
use std::time::{Duration, Instant};
use venus::{ChainStruct, Command};

/// The longest time that a test may take: one that takes longer hangs.
const LONG: Duration = Duration::from_secs(600);

/// The driver's handle of a memory.
fn handle(world: &World, id: u64) -> u64 {
    world.renderer.context().objects.read().get(venus::DeviceMemory(id)).unwrap().raw
}

/// The driver's handles of two memories, the second made after the first was freed.
fn one_after_the_other(world: &World, ids: [u64; 2], make: impl Fn(u64)) -> (u64, u64) {
    make(ids[0]);
    let first = handle(world, ids[0]);
    world.free(ids[0]);
    make(ids[1]);
    (first, handle(world, ids[1]))
}

#[test]
fn what_is_freed_is_the_next_of_its_kind() {
    let world = World::reliable();
    for (at, ty) in [PRIVATE, PAGES, MAPPED].into_iter().enumerate() {
        let ids = [10 + 10 * at as u64, 11 + 10 * at as u64];
        let (first, second) =
            one_after_the_other(&world, ids, |id| drop(world.allocate_of(id, &[], SIZE, ty)));
        assert_eq!(first, second, "type {ty}");
        // It is in use.
        assert_ne!(handle_of_new(&world, ids[1] + 1, ty), second, "type {ty}");
    }
}

fn handle_of_new(world: &World, id: u64, ty: u32) -> u64 {
    drop(world.allocate_of(id, &[], SIZE, ty));
    handle(world, id)
}

#[test]
fn what_differs_is_new() {
    let world = World::reliable();
    drop(world.allocate_of(10, &[], SIZE, PAGES));
    let kept = handle(&world, 10);
    world.free(10);
    drop(world.allocate_of(11, &[], 2 * SIZE, PAGES));
    drop(world.allocate_of(12, &[], SIZE, PRIVATE));
    let flags = venus::MemoryAllocateFlags::DEVICE_ADDRESS;
    let flags = venus::MemoryAllocateFlagsInfo { flags, ..Default::default() };
    drop(world.allocate_of(13, &[ChainStruct::MemoryAllocateFlagsInfo(&flags)], SIZE, PAGES));
    for id in 11..=13 {
        assert_ne!(handle(&world, id), kept, "memory {id}");
    }
    assert_eq!(handle_of_new(&world, 14, PAGES), kept);
    // Memory that others may have is not used again, nor is dedicated memory.
    let handle_types = venus::ExternalMemoryHandleTypeFlags::DMA_BUF_EXT;
    let export = venus::ExportMemoryAllocateInfo { handle_types, ..Default::default() };
    let buffer = venus::Buffer(40);
    world.buffer(40);
    let dedicated = venus::MemoryDedicatedAllocateInfo { buffer, ..Default::default() };
    let export = [ChainStruct::ExportMemoryAllocateInfo(&export)];
    let dedicated = [ChainStruct::MemoryDedicatedAllocateInfo(&dedicated)];
    for (ids, chain, ty) in [([20, 21], &export, PAGES), ([22, 23], &dedicated, PRIVATE)] {
        let (first, second) =
            one_after_the_other(&world, ids, |id| drop(world.allocate_of(id, chain, SIZE, ty)));
        assert_ne!(first, second, "memory {ids:?}");
    }
}

#[test]
fn a_device_gets_its_own_memory_only_and_takes_it_along() {
    let world = World::reliable();
    let other = venus::Device(4);
    world.create_device(other);
    drop(world.allocate_of(10, &[], SIZE, PRIVATE));
    drop(world.allocate_of(11, &[], SIZE, PRIVATE));
    let kept = handle(&world, 10);
    world.free(10);
    let (memory, info) = (
        venus::DeviceMemory(12),
        venus::MemoryAllocateInfo { allocation_size: SIZE, memory_type_index: PRIVATE, ..Default::default() },
    );
    let (p_allocate_info, p_memory) = (Some(&info), Some(&memory));
    world.execute(&Command::AllocateMemory(venus::AllocateMemory {
        device: other,
        p_allocate_info,
        p_memory,
    }));
    assert_ne!(handle(&world, 12), kept);
    let alive = null::live();
    // The device's memories, one of which was freed before, and the device itself are gone.
    world.execute(&Command::DestroyDevice(venus::DestroyDevice { device: DEVICE }));
    assert_eq!(null::live(), alive - 3);
}

#[test]
fn memory_with_a_blob_waits_until_it_is_gone() {
    let world = World::reliable();
    drop(world.allocate(10, &[]));
    let lent = handle(&world, 10);
    let (exported, memory) = world.lend(10);
    drop(exported);
    world.free(10);
    assert_ne!(handle_of_new(&world, 11, MAPPED), lent);
    world.renderer.blob_gone(memory);
    assert_eq!(handle_of_new(&world, 12, MAPPED), lent);
    // The same memory is lent anew.
    let (exported, again) = world.lend(12);
    assert_eq!(again, memory);
    drop(exported);
    world.free(12);
    assert_ne!(handle_of_new(&world, 13, MAPPED), lent);
}

#[test]
fn pages_that_something_else_is_made_of_are_not_used_again() {
    let world = World::reliable();
    drop(world.allocate_of(10, &[], SIZE, PAGES));
    let shown = handle(&world, 10);
    let file = world.renderer.export(10, SIZE, true).unwrap().file.unwrap();
    world.free(10);
    assert_ne!(handle_of_new(&world, 11, PAGES), shown);
    drop(file);
    assert_eq!(handle_of_new(&world, 12, PAGES), shown);
}

#[test]
fn what_is_kept_is_room_unless_somebody_else_has_it() {
    let world = World::reliable();
    let room = || {
        let pool = &world.renderer.context().pool;
        [PRIVATE, PAGES, MAPPED].map(|ty| pool.room(|_, _, key| key.type_index == ty) / SIZE)
    };
    for (id, ty) in [(10, PRIVATE), (11, PAGES), (12, PAGES), (13, MAPPED)] {
        drop(world.allocate_of(id, &[], SIZE, ty));
    }
    let file = world.renderer.export(12, SIZE, true).unwrap().file.unwrap();
    let (lent, memory) = world.lend(13);
    drop(lent);
    assert_eq!(room(), [0, 0, 0]);
    (10..=13).for_each(|id| world.free(id));
    assert_eq!(room(), [1, 1, 0]);
    drop(file);
    assert_eq!(room(), [1, 2, 0]);
    world.renderer.blob_gone(memory);
    assert_eq!(room(), [1, 2, 1]);
    drop(world.allocate_of(14, &[], SIZE, PRIVATE));
    assert_eq!(room(), [0, 2, 1]);
    assert!(world.renderer.context().pool.flush());
    assert_eq!(room(), [0, 0, 0]);
}

#[test]
fn what_nobody_wants_goes_by_itself() {
    let world = World::reliable();
    let alive = null::live();
    drop(world.allocate_of(10, &[], SIZE, PRIVATE));
    let (start, age) = (Instant::now(), Duration::from_millis(200));
    let freed = world.renderer.context().freed.so_far();
    world.free(10);
    assert_eq!(null::live(), alive + 1);
    world.renderer.context().pool.set_age(age);
    while null::live() > alive {
        assert!(start.elapsed() < LONG, "it stays");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(start.elapsed() >= age);
    // A request that has found no memory meanwhile finds nothing kept, and still learns that memory was freed.
    assert!(!world.renderer.context().pool.flush());
    assert_eq!(world.renderer.context().freed.so_far(), freed + 1);
}

#[test]
fn a_context_that_ends_leaves_nothing() {
    let world = World::reliable();
    drop(world.allocate_of(10, &[], SIZE, PAGES));
    world.free(10);
    assert!(Arc::strong_count(&world.renderer.context().pool) > 0 && null::live() > 0);
    world.renderer.destroy_objects();
    assert_eq!(null::live(), 0);
}
