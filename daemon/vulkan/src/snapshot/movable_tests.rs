//! Tests of the devices that guests of a movable VM are offered, on the null driver: a context can be written down, however it uses them.

use super::{Carry, Prelude};
use crate::Renderer;
use crate::context::allowance::{MemoryFile, Piece};
use crate::fuzzing::comparable;
use crate::null;
use crate::null::world_for_tests::{DEVICE, PRIVATE, SIZE, World};
use protocol::venus::generated::{self as venus, ChainStruct, Command};
use std::sync::Arc;

const OTHER_DEVICE: venus::Device = venus::Device(90);
/// The queues of each family of the null driver.
const ALL_QUEUES: [u32; 2] = [4, 1];

fn has_device(world: &World, device: venus::Device) -> bool {
    world.renderer.context().objects.read().get(device).is_ok()
}

/// Makes the world's device anew, with so many queues of each family, and allocates memory of the GPU.
fn with_queues(world: &World, queues: &[u32]) {
    world.execute(&Command::DestroyDevice(venus::DestroyDevice { device: DEVICE }));
    world.create_device_of(DEVICE, &[], queues);
    drop(world.allocate_of(10, &[], SIZE, PRIVATE));
}

/// Copies the contents of memory 10 into a context that is built up from the same steps.
fn hand_over(world: &World, to: &Renderer) {
    let saved = world.renderer.save(&Prelude::default(), Carry::Copied).unwrap();
    to.rebuild(&comparable(&saved.steps), &saved.files_here()).unwrap();
    let mut contents = to.contents(&saved.steps).unwrap().unwrap();
    let file = Arc::new(MemoryFile::new(shm::create("test", SIZE).unwrap(), Piece::uncounted()));
    contents.stage(&file, SIZE).unwrap();
    contents.write(0..SIZE, 0).unwrap();
    contents.finish().unwrap();
}

#[test]
fn a_program_that_takes_all_queues_leaves_one_for_copies() {
    let world = World::reliable();
    with_queues(&world, &ALL_QUEUES);
    let refused = world.renderer.save(&Prelude::default(), Carry::Copied).unwrap_err();
    assert!(refused.reason.contains("no spare queue"), "{}", refused.reason);
    drop(world);
    let world = World::movable(true);
    with_queues(&world, &[3, 1]);
    hand_over(&world, &null::renderer_that_is_movable(null::LIMITS));
    world.create_device_of(OTHER_DEVICE, &[], &ALL_QUEUES);
    assert!(!has_device(&world, OTHER_DEVICE), "a guest has the queue that is kept");
}

#[test]
fn memory_is_for_one_buffer_alone_only_if_the_driver_insists() {
    let save = |world: &World| {
        world.buffer(20);
        let dedicated =
            venus::MemoryDedicatedAllocateInfo { buffer: venus::Buffer(20), ..Default::default() };
        drop(world.allocate_of(10, &[ChainStruct::MemoryDedicatedAllocateInfo(&dedicated)], SIZE, PRIVATE));
        world.renderer.save(&Prelude::default(), Carry::Copied).map(drop)
    };
    let refused = save(&World::reliable()).unwrap_err();
    assert!(refused.reason.contains("dedicated to one image or buffer"), "{}", refused.reason);
    save(&World::movable(true)).unwrap();
}

#[test]
fn addresses_are_offered_where_another_worker_has_the_same() {
    let of_vulkan =
        venus::PhysicalDeviceBufferDeviceAddressFeatures { buffer_device_address: 1, ..Default::default() };
    let of_1_2 = venus::PhysicalDeviceVulkan12Features { buffer_device_address: 1, ..Default::default() };
    let of_ext = venus::PhysicalDeviceBufferDeviceAddressFeaturesEXT {
        buffer_device_address: 1,
        ..Default::default()
    };
    let features = [
        ChainStruct::PhysicalDeviceBufferDeviceAddressFeatures(&of_vulkan),
        ChainStruct::PhysicalDeviceVulkan12Features(&of_1_2),
        ChainStruct::PhysicalDeviceBufferDeviceAddressFeaturesEXT(&of_ext),
    ];
    let extensions = ["VK_KHR_buffer_device_address", "VK_EXT_buffer_device_address"];
    for (world, offered, extended) in [
        (World::reliable as fn() -> World, [true, true, true], [true, true]),
        (|| World::movable(true), [true, true, false], [true, false]),
        (|| World::movable(false), [false, false, false], [false, false]),
    ] {
        let world = world();
        let made = features.map(|features| {
            world.create_device_with(OTHER_DEVICE, &[features]);
            let made = has_device(&world, OTHER_DEVICE);
            world.execute(&Command::DestroyDevice(venus::DestroyDevice { device: OTHER_DEVICE }));
            made
        });
        assert_eq!(made, offered);
        let objects = world.renderer.context().objects.read();
        let physical = objects.get(venus::PhysicalDevice(2)).unwrap().get::<venus::PhysicalDevice>().unwrap();
        assert_eq!(extensions.map(|name| physical.host_extensions.contains_key(name)), extended);
    }
}
