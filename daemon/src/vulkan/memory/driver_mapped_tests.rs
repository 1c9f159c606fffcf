//! Memory that the null driver maps: lent as a blob, freed by the guest meanwhile.

use crate::config::MemoryId;
use crate::vulkan::Cancel;
use crate::vulkan::Renderer;
use crate::vulkan::fuzzing::{self, NoResources};
use crate::vulkan::memory::{Exported, Memory};
use crate::vulkan::objects::State;
use protocol::cursor::{Arena, Writer};
use protocol::venus::generated as venus;
use rustix::fs::makedev;
use std::fs::File;
use std::sync::Arc;
use venus::{ChainStruct, Command};

const INSTANCE: venus::Instance = venus::Instance(1);
const GPU: venus::PhysicalDevice = venus::PhysicalDevice(2);
const DEVICE: venus::Device = venus::Device(3);
const SIZE: u64 = 0x10_000;
/// The type that the driver maps.
const MAPPED: u32 = 2;

/// A context with a device of the null driver.
struct World {
    renderer: Renderer,
    _exclusive: fuzzing::Exclusive,
}

impl World {
    fn new() -> Self {
        Self::with_luck(0x9e37_79b9_7f4a_7c15)
    }

    /// With seeds that are chosen so the first creations succeed.
    fn with_luck(seed: u64) -> Self {
        let exclusive = fuzzing::begin(seed);
        let world = Self { renderer: fuzzing::renderer(Arc::new(NoResources)), _exclusive: exclusive };
        let create = venus::CreateInstance { p_create_info: None, p_instance: Some(&INSTANCE) };
        world.execute(&Command::CreateInstance(create));
        world.execute(&Command::EnumeratePhysicalDevices(venus::EnumeratePhysicalDevices {
            instance: INSTANCE,
            p_physical_device_count: Some(&1),
            p_physical_devices: Some(&[GPU]),
        }));
        let queue = venus::DeviceQueueCreateInfo {
            queue_count: 1,
            p_queue_priorities: Some(&[1.0]),
            ..Default::default()
        };
        let info = venus::DeviceCreateInfo {
            queue_create_info_count: 1,
            p_queue_create_infos: Some(std::slice::from_ref(&queue)),
            ..Default::default()
        };
        let (p_create_info, p_device) = (Some(&info), Some(&DEVICE));
        world.execute(&Command::CreateDevice(venus::CreateDevice {
            physical_device: GPU,
            p_create_info,
            p_device,
        }));
        world
    }

    fn execute(&self, command: &Command<'_>) {
        let (arena, cancel, mut reply) = (Arena::new(1 << 16), Cancel::default(), vec![0; 4096]);
        let mut bytes = vec![0; 4096];
        let mut writer = Writer::window(&mut bytes);
        command.encode(venus::CommandFlagsEXT(0), &mut writer);
        let length = writer.finish().unwrap();
        let mut writer = Writer::window(&mut reply);
        self.renderer.execute(command, &bytes[..length], &arena, &cancel, Some(&mut writer)).unwrap();
    }

    fn allocate(&self, id: u64, chain: &[ChainStruct<'_>]) -> Arc<Memory> {
        let memory = venus::DeviceMemory(id);
        let info =
            venus::MemoryAllocateInfo { p_next: chain, allocation_size: SIZE, memory_type_index: MAPPED };
        let (p_allocate_info, p_memory) = (Some(&info), Some(&memory));
        let allocate = venus::AllocateMemory { device: DEVICE, p_allocate_info, p_memory };
        self.execute(&Command::AllocateMemory(allocate));
        match &self.renderer.objects.read().get(memory).unwrap().state {
            State::Memory(memory) => Arc::clone(memory),
            _ => panic!("it is another object"),
        }
    }

    fn buffer(&self, id: u64) -> u64 {
        let buffer = venus::Buffer(id);
        let usage = venus::BufferUsageFlags::STORAGE_BUFFER;
        let info = venus::BufferCreateInfo { size: 4096, usage, ..Default::default() };
        let (p_create_info, p_buffer) = (Some(&info), Some(&buffer));
        self.execute(&Command::CreateBuffer(venus::CreateBuffer { device: DEVICE, p_create_info, p_buffer }));
        self.raw(id)
    }

    fn raw(&self, id: u64) -> u64 {
        self.renderer.objects.read().get(venus::Buffer(id)).unwrap().raw
    }

    fn bind(&self, id: u64, memory: u64) -> u64 {
        let (buffer, memory) = (venus::Buffer(id), venus::DeviceMemory(memory));
        let bind = venus::BindBufferMemory { device: DEVICE, buffer, memory, memory_offset: 0 };
        self.execute(&Command::BindBufferMemory(bind));
        self.raw(id)
    }

    fn free(&self, id: u64) {
        let memory = venus::DeviceMemory(id);
        self.execute(&Command::FreeMemory(venus::FreeMemory { device: DEVICE, memory }));
    }

    /// A blob of memory.
    fn lend(&self, id: u64) -> (Exported, MemoryId) {
        let exported = self.renderer.export(id, SIZE, true).unwrap();
        let memory = exported.file.as_ref().and_then(|file| file.piece.memory).unwrap();
        (exported, memory)
    }
}

#[test]
fn what_the_driver_maps_is_lent_with_what_keeps_it_alive() {
    let _control = File::open("/dev/urandom").unwrap();
    let world = World::new();
    assert!(matches!(*world.allocate(10, &[]), Memory::DriverMapped(_)));
    let (exported, memory) = world.lend(10);
    let device = crate::shm::device_node(exported.file.as_deref().unwrap());
    assert_eq!((device, exported.cached), (Some(makedev(1, 5)), false));
    assert!(!exported.lent.unwrap().is_empty());
    // They are handed out once for each device.
    let (again, same) = world.lend(10);
    assert!(again.lent.unwrap().is_empty() && same == memory);
    // Who cannot map it needs nothing of it.
    let opaque = world.renderer.export(10, SIZE, false).unwrap();
    assert!(opaque.file.is_none() && opaque.lent.is_none());
}

#[test]
fn lent_memory_and_its_device_stay_until_the_last_blob_is_gone() {
    let _control = File::open("/dev/urandom").unwrap();
    let world = World::new();
    drop(world.allocate(10, &[]));
    let (first, memory) = world.lend(10);
    let (second, _) = world.lend(10);
    drop((first, second));
    let alive = fuzzing::live();
    world.free(10);
    world.execute(&Command::DestroyDevice(venus::DestroyDevice { device: DEVICE }));
    assert!(world.renderer.is_lending());
    assert_eq!(fuzzing::live(), alive, "memory or device is gone");
    world.renderer.blob_gone(memory);
    assert_eq!(fuzzing::live(), alive);
    world.renderer.blob_gone(memory);
    assert!(!world.renderer.is_lending());
    assert_eq!(fuzzing::live(), alive - 2);
}

#[test]
fn memory_that_was_given_back_is_freed_when_the_guest_says_so() {
    let _control = File::open("/dev/urandom").unwrap();
    let world = World::new();
    drop(world.allocate(10, &[]));
    let (_, memory) = world.lend(10);
    world.renderer.blob_gone(memory);
    let alive = fuzzing::live();
    world.free(10);
    assert_eq!(fuzzing::live(), alive - 1);
}

#[test]
fn what_others_may_import_is_made_of_pages() {
    let world = World::new();
    let handle_types = venus::ExternalMemoryHandleTypeFlags::DMA_BUF_EXT;
    let export = venus::ExportMemoryAllocateInfo { handle_types, ..Default::default() };
    let memory = world.allocate(10, &[ChainStruct::ExportMemoryAllocateInfo(&export)]);
    assert!(matches!(*memory, Memory::Pages(..)));
    assert!(world.renderer.export(10, SIZE, true).unwrap().lent.is_none());
}

#[test]
fn of_two_buffers_the_one_stays_that_fits_its_memory() {
    let _control = File::open("/dev/urandom").unwrap();
    let world = World::with_luck(8);
    let handle_types = venus::ExternalMemoryHandleTypeFlags::DMA_BUF_EXT;
    let export = venus::ExportMemoryAllocateInfo { handle_types, ..Default::default() };
    drop((world.allocate(10, &[]), world.allocate(11, &[ChainStruct::ExportMemoryAllocateInfo(&export)])));
    let alive = fuzzing::live();
    let (own, imported) = (world.buffer(20), world.buffer(21));
    assert_eq!(fuzzing::live(), alive + 4);
    assert_eq!(world.bind(20, 10), own, "the driver's own memory");
    assert_ne!(world.bind(21, 11), imported, "pages");
    assert_eq!(fuzzing::live(), alive + 2);
    // One that was never bound goes with its twin.
    world.buffer(22);
    for id in [20, 21, 22] {
        let destroy = venus::DestroyBuffer { device: DEVICE, buffer: venus::Buffer(id) };
        world.execute(&Command::DestroyBuffer(destroy));
    }
    assert_eq!(fuzzing::live(), alive);
}
