//! Tests of addresses that a successor has again, on the null driver, which chooses another address each time.

use super::step::Step;
use super::tests::hand_over;
use super::{Carry, Prelude};
use crate::ContextLost;
use crate::fuzzing::comparable;
use crate::null::world_for_tests::{DEVICE, MAPPED, PAGES, SIZE, World};
use crate::null::{self, NoResources};
use protocol::venus::generated::{self as venus, ChainStruct, Command};
use std::sync::Arc;

const FEATURES: venus::PhysicalDeviceBufferDeviceAddressFeatures<'_> =
    venus::PhysicalDeviceBufferDeviceAddressFeatures {
        p_next: &[],
        buffer_device_address: 1,
        buffer_device_address_capture_replay: 0,
        buffer_device_address_multi_device: 0,
    };

const ADDRESS: u32 = venus::MemoryAllocateFlags::DEVICE_ADDRESS.0;
const CAPTURE_REPLAY: u32 = venus::MemoryAllocateFlags::DEVICE_ADDRESS_CAPTURE_REPLAY.0;

/// A world with a device of these features.
fn world_with(features: &[ChainStruct<'_>]) -> World {
    let world = World::reliable();
    world.execute(&Command::DestroyDevice(venus::DestroyDevice { device: DEVICE }));
    world.create_device_with(DEVICE, features);
    world
}

fn world() -> World {
    world_with(&[ChainStruct::PhysicalDeviceBufferDeviceAddressFeatures(&FEATURES)])
}

fn allocate(world: &World, id: u64, flags: u32, ty: u32) {
    let chosen = venus::MemoryOpaqueCaptureAddressAllocateInfo {
        p_next: &[],
        opaque_capture_address: if flags & CAPTURE_REPLAY != 0 { 1 << 50 } else { 0 },
    };
    let flags = venus::MemoryAllocateFlags(flags);
    let flags = venus::MemoryAllocateFlagsInfo { flags, ..Default::default() };
    let chain = [
        ChainStruct::MemoryAllocateFlagsInfo(&flags),
        ChainStruct::MemoryOpaqueCaptureAddressAllocateInfo(&chosen),
    ];
    drop(world.allocate_of(id, &chain, SIZE, ty));
}

/// Creates a buffer, with the guest's own flag and address if it `chooses`; returns the address that the driver gave it.
fn buffer(world: &World, id: u64, usage: venus::BufferUsageFlags, chooses: bool) -> u64 {
    let chosen = venus::BufferOpaqueCaptureAddressCreateInfo { p_next: &[], opaque_capture_address: 1 << 50 };
    let chain = [ChainStruct::BufferOpaqueCaptureAddressCreateInfo(&chosen)];
    let flag = venus::BufferCreateFlags::DEVICE_ADDRESS_CAPTURE_REPLAY;
    let info = venus::BufferCreateInfo {
        p_next: if chooses { &chain } else { &[] },
        flags: if chooses { flag } else { venus::BufferCreateFlags(0) },
        size: 4096,
        usage,
        ..Default::default()
    };
    let (p_create_info, p_buffer) = (Some(&info), Some(&venus::Buffer(id)));
    world.execute(&Command::CreateBuffer(venus::CreateBuffer { device: DEVICE, p_create_info, p_buffer }));
    null::address(world.raw(id))
}

fn addressed(world: &World, id: u64) -> u64 {
    buffer(world, id, venus::BufferUsageFlags::SHADER_DEVICE_ADDRESS, false)
}

fn destroy_buffer(world: &World, id: u64) {
    let buffer = venus::Buffer(id);
    world.execute(&Command::DestroyBuffer(venus::DestroyBuffer { device: DEVICE, buffer }));
}

/// Has the guest ask for the address of a buffer.
fn ask(world: &World, id: u64) {
    let info = venus::BufferDeviceAddressInfo { p_next: &[], buffer: venus::Buffer(id) };
    let ask = venus::GetBufferDeviceAddress { device: DEVICE, p_info: Some(&info) };
    world.execute(&Command::GetBufferDeviceAddress(ask));
}

fn replayed(steps: &[Step]) -> Vec<(u64, u64)> {
    let all = steps.iter().filter_map(|step| match step {
        Step::Replayed { id, address } => Some((*id, *address)),
        _ => None,
    });
    all.collect()
}

/// Makes memory 10, and buffer 20 bound to it, whose address the guest knows; a buffer was made and destroyed before.
fn make_addressed(world: &World) {
    addressed(world, 19);
    destroy_buffer(world, 19);
    allocate(world, 10, ADDRESS, PAGES);
    addressed(world, 20);
    world.bind(20, 10);
    ask(world, 20);
}

#[test]
fn a_buffer_and_its_memory_have_the_addresses_that_the_guest_knows() {
    let core = venus::PhysicalDeviceVulkan12Features { buffer_device_address: 1, ..Default::default() };
    for features in [
        ChainStruct::PhysicalDeviceBufferDeviceAddressFeatures(&FEATURES),
        ChainStruct::PhysicalDeviceVulkan12Features(&core),
    ] {
        let world = world_with(&[features]);
        make_addressed(&world);
        // A buffer without memory has no address that a guest could know.
        addressed(&world, 21);
        let (saved, second) = hand_over(&world);
        let replays = replayed(&saved.steps);
        let addresses = saved.steps.iter().find_map(|step| match step {
            Step::Addresses(all) => Some(&all[..]),
            _ => None,
        });
        assert_eq!(replays.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [10, 20]);
        assert_ne!(replays[0].1, replays[1].1);
        assert_eq!(addresses, Some(&replays[1..]));
        second.destroy_objects();
        let mut steps = comparable(&saved.steps);
        steps.retain(|step| !matches!(step, Step::Replayed { .. }));
        let third = null::renderer(Arc::new(NoResources));
        let lost = third.rebuild(&steps, &saved.files_here()).unwrap_err();
        assert!(lost.to_string().contains("another address"), "{lost}");
    }
}

#[test]
fn memory_that_is_used_again_keeps_its_address() {
    let world = world();
    allocate(&world, 10, ADDRESS, PAGES);
    let before = replayed(&world.renderer.save(&Prelude::default(), Carry::Copied).unwrap().steps);
    allocate(&world, 11, ADDRESS, PAGES);
    let raw = |id| world.renderer.context().objects.read().get(venus::DeviceMemory(id)).unwrap().raw;
    let (first, address) = (raw(11), null::address(raw(11)));
    world.free(11);
    allocate(&world, 12, ADDRESS, PAGES);
    assert_eq!(raw(12), first);
    let (saved, _) = hand_over(&world);
    assert_eq!(replayed(&saved.steps), [before, vec![(12, address)]].concat());
}

#[test]
fn what_the_driver_maps_and_buffers_for_it_replay_addresses_too() {
    let world = world();
    allocate(&world, 10, ADDRESS, MAPPED);
    let buffer = addressed(&world, 20);
    world.bind(20, 10);
    let objects = world.renderer.context().objects.read();
    let memory = objects.get(venus::DeviceMemory(10)).unwrap().raw;
    assert!(null::address(memory) != 0 && buffer != 0);
}

#[test]
fn only_what_has_an_address_on_a_device_with_addresses_has_it_again() {
    let without = venus::PhysicalDeviceBufferDeviceAddressFeatures { buffer_device_address: 0, ..FEATURES };
    let without = [ChainStruct::PhysicalDeviceBufferDeviceAddressFeatures(&without)];
    for features in [&[][..], &without] {
        // The driver would panic if it got flags or addresses.
        let world = world_with(features);
        make_addressed(&world);
        allocate(&world, 11, ADDRESS | CAPTURE_REPLAY, PAGES);
        let with_address = venus::BufferUsageFlags::SHADER_DEVICE_ADDRESS;
        assert_eq!(buffer(&world, 21, with_address, true), 0);
        world.bind(21, 11);
        let (saved, _) = hand_over(&world);
        assert_eq!(replayed(&saved.steps), []);
    }
    let world = world();
    allocate(&world, 10, 0, PAGES);
    allocate(&world, 11, CAPTURE_REPLAY, PAGES);
    for (id, chooses) in [(20, false), (21, true)] {
        assert_eq!(buffer(&world, id, venus::BufferUsageFlags::STORAGE_BUFFER, chooses), 0);
        world.bind(id, id - 10);
    }
    let (saved, _) = hand_over(&world);
    assert_eq!(replayed(&saved.steps), []);
    // The guest cannot choose an address, although the device could replay it.
    allocate(&world, 12, ADDRESS | CAPTURE_REPLAY, PAGES);
    let address = buffer(&world, 22, venus::BufferUsageFlags::SHADER_DEVICE_ADDRESS, true);
    assert!(address != 0 && address != 1 << 50);
    world.bind(22, 12);
    let (saved, _) = hand_over(&world);
    let replays = replayed(&saved.steps);
    assert!(replays.len() == 2 && replays.iter().all(|(_, address)| *address != 1 << 50), "{replays:x?}");
}

#[test]
fn requirements_are_those_of_the_buffer_as_it_is_made() {
    for world in [world, World::reliable] {
        let world = world();
        let buffer = venus::BufferCreateInfo {
            flags: venus::BufferCreateFlags::DEVICE_ADDRESS_CAPTURE_REPLAY,
            size: 4096,
            usage: venus::BufferUsageFlags::SHADER_DEVICE_ADDRESS,
            ..Default::default()
        };
        let info = venus::DeviceBufferMemoryRequirements { p_next: &[], p_create_info: Some(&buffer) };
        let (p_info, needs) = (Some(&info), venus::MemoryRequirements2::default());
        let p_memory_requirements = Some(&needs);
        world.execute(&Command::GetDeviceBufferMemoryRequirements(
            venus::GetDeviceBufferMemoryRequirements { device: DEVICE, p_info, p_memory_requirements },
        ));
    }
}

/// Rebuilds a context with other addresses: first those of `early`, then the saved ones as `change` leaves them.
fn changed(world: &World, early: &[(u64, u64)], change: impl Fn(&mut u64)) -> Result<(), ContextLost> {
    let saved = world.renderer.save(&Prelude::default(), Carry::Copied).unwrap();
    let mut steps: Vec<_> =
        early.iter().map(|(id, address)| Step::Replayed { id: *id, address: *address }).collect();
    steps.extend(comparable(&saved.steps));
    for step in &mut steps {
        if let Step::Replayed { address, .. } = step {
            change(address);
        }
    }
    let second = null::renderer(Arc::new(NoResources));
    let rebuilt = second.rebuild(&steps, &saved.files_here());
    second.destroy_objects();
    rebuilt
}

#[test]
fn an_address_of_what_has_none_or_that_the_driver_refuses_ends_the_context() {
    let world = world();
    make_addressed(&world);
    allocate(&world, 11, ADDRESS, PAGES);
    addressed(&world, 21);
    world.bind(21, 11);
    world.buffer(30);
    allocate(&world, 31, 0, PAGES);
    let same = |_: &mut u64| ();
    assert_eq!(changed(&world, &[], same), Ok(()));
    let reason =
        |early: &[_], change: &dyn Fn(&mut u64)| changed(&world, early, change).unwrap_err().to_string();
    assert!(reason(&[(30, 1 << 40)], &same).contains("a buffer that can have none"));
    assert!(reason(&[(30, 0)], &same).contains("a buffer that can have none"));
    assert!(reason(&[(31, 1 << 40)], &same).contains("memory without one"));
    assert!(reason(&[(99, 1 << 40)], &same).contains("that it does not make"));
    assert!(reason(&[(20, 1 << 40)], &same).contains("too many addresses"));
    assert!(reason(&[], &|address| *address += 1).contains("does not give an object the address"));
    // Both allocations cannot have the same address.
    assert!(reason(&[], &|address| *address = 1 << 50).contains("does not give an object the address"));
    // The driver chooses.
    assert!(reason(&[], &|address| *address = 0).contains("another address"));
    let many: Vec<_> = (1000..=1000 + u64::from(null::LIMITS.objects as u32)).map(|id| (id, 0)).collect();
    assert!(reason(&many, &same).contains("too many addresses"));
    drop(world);
    let plain = world_with(&[]);
    make_addressed(&plain);
    assert!(changed(&plain, &[(20, 1 << 40)], same).is_err());
}
