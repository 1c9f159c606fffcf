//! A context with a device of the null driver, for tests of its memory.

use super::NoResources;
use crate::backing::memory::Memory;
use crate::gates::gate::Gate;
use crate::memory::export::Exported;
use crate::{Cancel, ContextLost, Journal, Renderer, null};
use config::{ContextLimits, MemoryId};
use protocol::cursor::{Arena, Writer};
use protocol::venus::generated as venus;
use std::fs::File;
use std::sync::Arc;
use venus::{ChainStruct, Command};

pub(crate) const INSTANCE: venus::Instance = venus::Instance(1);
const GPU: venus::PhysicalDevice = venus::PhysicalDevice(2);
/// The device.
pub(crate) const DEVICE: venus::Device = venus::Device(3);
/// Bytes of an allocation.
pub(crate) const SIZE: u64 = 0x10_000;
/// A type that cannot be mapped.
pub(crate) const PRIVATE: u32 = 0;
/// A type that is made of pages.
pub(crate) const PAGES: u32 = 1;
/// A type that the driver maps.
pub(crate) const MAPPED: u32 = 2;

/// The node has the highest number of those of `/dev/zero`'s driver that are open in this process, so that tests may open others.
const CONTROL_NODE: &str = "/dev/urandom";

/// A context with a device of the null driver.
pub(crate) struct World {
    /// The renderer that executes its commands.
    pub renderer: Renderer,
    /// The node that stands for the descriptor that keeps the null driver's memory alive, which is lent out of `/dev/zero`.
    _control_node: File,
    _exclusive: null::Exclusive,
}

impl World {
    /// A world in which creations succeed at first.
    pub(crate) fn new() -> Self {
        Self::with_luck(0x9e37_79b9_7f4a_7c15)
    }

    /// A world with a seed that is chosen so that the first creations succeed.
    pub(crate) fn with_luck(seed: u64) -> Self {
        Self::on(null::begin(seed), null::renderer(Arc::new(NoResources)))
    }

    /// A world in which creations always succeed.
    pub(crate) fn reliable() -> Self {
        Self::on(null::begin_reliable(), null::renderer(Arc::new(NoResources)))
    }

    /// A world in which creations always succeed, whose submissions pass these gates, one for each GPU.
    pub(crate) fn gated(gates: Vec<Arc<Gate>>) -> Self {
        Self::on(null::begin_reliable(), null::renderer(Arc::new(NoResources)).gated(gates))
    }

    /// A world in which creations always succeed within these limits.
    pub(crate) fn limited(limits: ContextLimits) -> Self {
        Self::on(null::begin_reliable(), null::renderer_that_clears(limits))
    }

    /// A world in which creations always succeed, with a journal.
    pub(crate) fn journalled(journal: Arc<dyn Journal>) -> Self {
        let exclusive = null::begin_reliable();
        Self::on(exclusive, null::renderer(Arc::new(NoResources)).journalled(journal))
    }

    /// A world in which creations always succeed, whose devices have a queue of ours.
    pub(crate) fn with_own_queue() -> Self {
        Self::on(null::begin_reliable(), null::renderer_that_clears(null::LIMITS))
    }

    /// A world like that of [`Self::with_own_queue`], whose driver gives private memory to others.
    pub(crate) fn that_exports() -> Self {
        Self::on(null::begin_reliable(), null::renderer_that_exports(null::LIMITS))
    }

    /// A world of a VM whose programs can get another worker, in which creations always succeed; the driver `replays` addresses or does not.
    pub(crate) fn movable(replays: bool) -> Self {
        let exclusive = null::begin_reliable();
        if !replays {
            null::refuse_replays();
        }
        Self::on(exclusive, null::renderer_that_is_movable(null::LIMITS))
    }

    fn on(exclusive: null::Exclusive, renderer: Renderer) -> Self {
        let world =
            Self { renderer, _control_node: File::open(CONTROL_NODE).unwrap(), _exclusive: exclusive };
        let info = venus::InstanceCreateInfo::default();
        let create = venus::CreateInstance { p_create_info: Some(&info), p_instance: Some(&INSTANCE) };
        world.execute(&Command::CreateInstance(create));
        world.execute(&Command::EnumeratePhysicalDevices(venus::EnumeratePhysicalDevices {
            instance: INSTANCE,
            p_physical_device_count: Some(&1),
            p_physical_devices: Some(&[GPU]),
        }));
        world.create_device(DEVICE);
        world
    }

    /// Creates a device with a queue.
    pub(crate) fn create_device(&self, device: venus::Device) {
        self.create_device_with(device, &[]);
    }

    /// Creates a device with a queue and features.
    pub(crate) fn create_device_with(&self, device: venus::Device, features: &[ChainStruct<'_>]) {
        self.create_device_of(device, features, &[1]);
    }

    /// Creates a device with features and so many queues of each family.
    pub(crate) fn create_device_of(
        &self,
        device: venus::Device,
        features: &[ChainStruct<'_>],
        queues: &[u32],
    ) {
        let queues =
            queues.iter().zip(0..).map(|(queue_count, queue_family_index)| venus::DeviceQueueCreateInfo {
                queue_family_index,
                queue_count: *queue_count,
                p_queue_priorities: Some(&[1.0; 4][..*queue_count as usize]),
                ..Default::default()
            });
        let queues: Vec<_> = queues.collect();
        let info = venus::DeviceCreateInfo {
            p_next: features,
            queue_create_info_count: queues.len() as u32,
            p_queue_create_infos: Some(&queues),
            ..Default::default()
        };
        let (p_create_info, p_device) = (Some(&info), Some(&device));
        self.execute(&Command::CreateDevice(venus::CreateDevice {
            physical_device: GPU,
            p_create_info,
            p_device,
        }));
    }

    /// Executes a command, which must not end the context.
    pub(crate) fn execute(&self, command: &Command<'_>) {
        self.try_execute(command, &Cancel::default()).unwrap();
    }

    /// Executes a command whose waits end as `cancel` says.
    pub(crate) fn try_execute(&self, command: &Command<'_>, cancel: &Cancel) -> Result<(), ContextLost> {
        let (arena, mut reply) = (Arena::new(1 << 16), vec![0; 4096]);
        let mut bytes = vec![0; 4096];
        let mut writer = Writer::window(&mut bytes);
        command.encode(venus::CommandFlagsEXT(0), &mut writer);
        let length = writer.finish().unwrap();
        let mut writer = Writer::window(&mut reply);
        let done = self.renderer.execute(command, &bytes[..length], &arena, cancel, Some(&mut writer));
        let said = writer.finish().unwrap();
        assert!(done.is_ok() || said == 0, "a reply of a command that was not executed");
        done
    }

    /// Allocates memory that the driver maps.
    pub(crate) fn allocate(&self, id: u64, chain: &[ChainStruct<'_>]) -> Arc<Memory> {
        self.allocate_of(id, chain, SIZE, MAPPED)
    }

    /// Allocates memory of any size and type.
    pub(crate) fn allocate_of(
        &self,
        id: u64,
        p_next: &[ChainStruct<'_>],
        allocation_size: u64,
        ty: u32,
    ) -> Arc<Memory> {
        let memory = venus::DeviceMemory(id);
        let info = venus::MemoryAllocateInfo { p_next, allocation_size, memory_type_index: ty };
        let (p_allocate_info, p_memory) = (Some(&info), Some(&memory));
        let allocate = venus::AllocateMemory { device: DEVICE, p_allocate_info, p_memory };
        self.execute(&Command::AllocateMemory(allocate));
        self.renderer.context().objects.shared(memory).unwrap()
    }

    /// Creates an image of two dimensions.
    pub(crate) fn image(&self, id: u64, format: venus::Format, flags: venus::ImageCreateFlags) {
        let info = venus::ImageCreateInfo {
            flags,
            image_type: venus::ImageType::TYPE_2D,
            format,
            extent: venus::Extent3D { width: 16, height: 16, depth: 1 },
            mip_levels: 1,
            array_layers: 1,
            samples: venus::SampleCountFlags::TYPE_1,
            usage: venus::ImageUsageFlags::TRANSFER_DST,
            ..Default::default()
        };
        let (p_create_info, p_image) = (Some(&info), Some(&venus::Image(id)));
        self.execute(&Command::CreateImage(venus::CreateImage { device: DEVICE, p_create_info, p_image }));
    }

    /// Creates a buffer; returns the driver's handle.
    pub(crate) fn buffer(&self, id: u64) -> u64 {
        let buffer = venus::Buffer(id);
        let usage = venus::BufferUsageFlags::STORAGE_BUFFER;
        let info = venus::BufferCreateInfo { size: 4096, usage, ..Default::default() };
        let (p_create_info, p_buffer) = (Some(&info), Some(&buffer));
        self.execute(&Command::CreateBuffer(venus::CreateBuffer { device: DEVICE, p_create_info, p_buffer }));
        self.raw(id)
    }

    /// The driver's handle of a buffer.
    pub(crate) fn raw(&self, id: u64) -> u64 {
        self.renderer.context().objects.read().get(venus::Buffer(id)).unwrap().raw
    }

    /// Binds a buffer at the beginning of a memory; returns the driver's handle.
    pub(crate) fn bind(&self, id: u64, memory: u64) -> u64 {
        let (buffer, memory) = (venus::Buffer(id), venus::DeviceMemory(memory));
        let bind = venus::BindBufferMemory { device: DEVICE, buffer, memory, memory_offset: 0 };
        self.execute(&Command::BindBufferMemory(bind));
        self.raw(id)
    }

    /// Frees a memory.
    pub(crate) fn free(&self, id: u64) {
        let memory = venus::DeviceMemory(id);
        self.execute(&Command::FreeMemory(venus::FreeMemory { device: DEVICE, memory }));
    }

    /// Makes a blob of a memory; returns it and the memory's number.
    pub(crate) fn lend(&self, id: u64) -> (Exported, MemoryId) {
        let exported = self.renderer.export(id, SIZE, true).unwrap();
        let memory = exported.file.as_ref().and_then(|file| file.piece.memory).unwrap();
        (exported, memory)
    }
}
