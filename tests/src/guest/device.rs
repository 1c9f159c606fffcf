//! A Vulkan device of a context, driven command by command: memory that contexts share, and work that touches it.
//!
//! Sends the commands of Mesa's Venus driver, or commands that Mesa would never send. Replies are wanted where a test looks at results.

use super::blob::Blob;
use super::gpu::{Gpu, PATIENCE};
use super::ring::{ASYNC, REPLY, Ring, RingOptions, encode};
use anyhow::{Context, Result, ensure};
use protocol::cursor::{Arena, Reader, Writer};
use protocol::ids::{BlobId, ContextId, RingIdx};
use protocol::venus::generated as venus;
use protocol::venus::generated::{ChainStruct, ExternalMemoryHandleTypeFlags, VkResult};
use protocol::virtio_gpu::BlobFlags;
use std::ffi::CStr;
use std::sync::Arc;

/// A device with one queue on timeline 1.
pub struct Device {
    /// The device's context.
    pub context: ContextId,
    /// The ring that carries the device's commands.
    pub ring: Ring,
    gpu: Arc<Gpu>,
    /// The physical device that the device was made from.
    pub physical: venus::PhysicalDevice,
    /// The device's id.
    pub device: venus::Device,
    /// The device's queue, on timeline 1.
    pub queue: venus::Queue,
    /// The device's command pool.
    pub pool: venus::CommandPool,
    /// The first memory type that can be mapped.
    pub visible: u32,
    /// The first type that cannot be mapped, if any; preferably one of the device's own memory.
    pub hidden: Option<u32>,
    /// Bytes of the heap that memory of that type is in; 0 if there is none.
    pub hidden_heap: u64,
    /// The first type, if any, that can be mapped and is the device's own memory.
    pub local: Option<u32>,
    next_id: u64,
}

/// The source of the memory of [`Device::allocate`].
#[derive(Clone, Copy, Debug)]
pub enum Source {
    /// The memory is new, and belongs to this context alone.
    New,
    /// The memory is new, and has an address.
    Addressed,
    /// The memory is new, and may be exported.
    Exportable,
    /// A resource.
    Resource(u32),
    /// A descriptor of the process that serves the context, which Mesa never asks for.
    Descriptor(i32),
}

impl Device {
    /// A device in a context of its own.
    pub fn create(gpu: &Arc<Gpu>, name: &str) -> Result<Self> {
        Self::create_with(gpu, name, &[])
    }

    /// A device in a context of its own, with `features` in the chain of its creation.
    pub fn create_with(gpu: &Arc<Gpu>, name: &str, features: &[ChainStruct<'_>]) -> Result<Self> {
        Self::create_on(gpu, name, 0, features)
    }

    /// Creates a device with all features of Vulkan itself that the physical device has.
    pub fn create_with_all_features(gpu: &Arc<Gpu>, name: &str) -> Result<Self> {
        let mut asking = Self::create(gpu, name)?;
        let (first, second, third) = Default::default();
        let chain = [
            ChainStruct::PhysicalDeviceVulkan11Features(&first),
            ChainStruct::PhysicalDeviceVulkan12Features(&second),
            ChainStruct::PhysicalDeviceVulkan13Features(&third),
        ];
        let wanted = venus::PhysicalDeviceFeatures2 { p_next: &chain, ..Default::default() };
        let physical_device = asking.physical;
        let reply = asking.ring.query(|w| {
            venus::GetPhysicalDeviceFeatures2 { physical_device, p_features: Some(&wanted) }.encode(REPLY, w);
        })?;
        asking.gpu.destroy_context(asking.context)?;
        let arena = Arena::new(1 << 16);
        let reply = venus::GetPhysicalDeviceFeatures2Reply::decode(&mut Reader::new(&reply, &arena))?;
        let found = reply.p_features.context("features")?;
        let core = venus::PhysicalDeviceFeatures2 { features: found.features, ..Default::default() };
        let all = [&[ChainStruct::PhysicalDeviceFeatures2(&core)], found.p_next].concat();
        Self::create_with(gpu, name, &all)
    }

    /// Creates a device like [`Self::create_with`], of the physical device that is enumerated at `index`.
    pub fn create_on(gpu: &Arc<Gpu>, name: &str, index: usize, features: &[ChainStruct<'_>]) -> Result<Self> {
        let context = gpu.create_context(name)?;
        let mut ring = Ring::create(gpu, context, RingOptions::default())?;
        let instance = venus::Instance(1);
        let enumerated: Vec<_> = (0..=index as u64).map(|at| venus::PhysicalDevice(2 + 1000 * at)).collect();
        let physical = enumerated[index];
        let (device, queue, pool) = (venus::Device(3), venus::Queue(4), venus::CommandPool(5));
        let priorities = [1.0];
        let queues = [venus::DeviceQueueCreateInfo {
            queue_count: 1,
            p_queue_priorities: Some(&priorities),
            ..Default::default()
        }];
        let info = venus::DeviceCreateInfo {
            p_next: features,
            queue_create_info_count: 1,
            p_queue_create_infos: Some(&queues),
            ..Default::default()
        };
        let timeline = venus::DeviceQueueTimelineInfoMESA { ring_idx: 1, ..Default::default() };
        let chain = [ChainStruct::DeviceQueueTimelineInfoMESA(&timeline)];
        let queue_info = venus::DeviceQueueInfo2 { p_next: &chain, ..Default::default() };
        let seqno = ring.command(|w| {
            let p_create_info = Some(&venus::InstanceCreateInfo::default());
            venus::CreateInstance { p_create_info, p_instance: Some(&instance) }.encode(ASYNC, w);
            venus::EnumeratePhysicalDevices {
                instance,
                p_physical_device_count: Some(&(enumerated.len() as u32)),
                p_physical_devices: Some(&enumerated),
            }
            .encode(ASYNC, w);
            venus::CreateDevice {
                physical_device: physical,
                p_create_info: Some(&info),
                p_device: Some(&device),
            }
            .encode(ASYNC, w);
            venus::GetDeviceQueue2 { device, p_queue_info: Some(&queue_info), p_queue: Some(&queue) }
                .encode(ASYNC, w);
            let p_create_info = Some(&venus::CommandPoolCreateInfo::default());
            venus::CreateCommandPool { device, p_create_info, p_command_pool: Some(&pool) }.encode(ASYNC, w);
        })?;
        ring.wait(seqno, PATIENCE)?;
        let MemoryTypes { visible, hidden, hidden_heap, local } = memory_types(&mut ring, physical)?;
        let gpu = Arc::clone(gpu);
        let next_id = 100;
        Ok(Self {
            context,
            ring,
            gpu,
            physical,
            device,
            queue,
            pool,
            visible,
            hidden,
            hidden_heap,
            local,
            next_id,
        })
    }

    /// The same device in a copy of its VM, in which this driver runs.
    ///
    /// # Errors
    /// The memory of its ring is not mapped there.
    pub fn fork(&self, gpu: &Arc<Gpu>) -> Result<Self> {
        Ok(Self { ring: self.ring.fork(gpu)?, gpu: Arc::clone(gpu), ..*self })
    }

    /// The virtio-gpu driver that the device is used with.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Sends a command that answers with a `VkResult` and demands success.
    pub fn call(&mut self, command: impl FnOnce(&mut Writer<'_>)) -> Result<()> {
        let result = self.query(command, |reply| {
            let _number = reply.u32()?;
            Ok(VkResult(reply.u32()? as i32))
        })?;
        ensure!(result == VkResult::SUCCESS, "{result:?}");
        Ok(())
    }

    /// Sends a command and gives its reply to `decode`.
    pub fn query<T>(
        &mut self,
        command: impl FnOnce(&mut Writer<'_>),
        decode: impl FnOnce(&mut Reader<'_>) -> Result<T>,
    ) -> Result<T> {
        let reply = self.ring.query(command)?;
        let arena = Arena::new(1 << 24);
        decode(&mut Reader::new(&reply, &arena))
    }

    /// An object id that was never used.
    pub fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Names of the extensions the device offers.
    pub fn extensions(&mut self) -> Result<Vec<String>> {
        let room = [venus::ExtensionProperties::default(); 512];
        let physical_device = self.physical;
        let reply = self.ring.query(|w| {
            venus::EnumerateDeviceExtensionProperties {
                physical_device,
                p_layer_name: None,
                p_property_count: Some(&(room.len() as u32)),
                p_properties: Some(&room),
            }
            .encode(REPLY, w);
        })?;
        let arena = Arena::new(1 << 24);
        let reply = venus::EnumerateDeviceExtensionPropertiesReply::decode(&mut Reader::new(&reply, &arena))?;
        let list = reply.p_properties.context("a list of extensions")?;
        let name = |properties: &venus::ExtensionProperties| {
            let name = CStr::from_bytes_until_nul(&properties.extension_name);
            name.unwrap_or_default().to_string_lossy().into_owned()
        };
        Ok(list.iter().map(name).collect())
    }

    /// The external memory features of buffers of a handle type (`VkExternalMemoryFeatureFlags`).
    pub fn external_buffer_features(&mut self, handle_type: ExternalMemoryHandleTypeFlags) -> Result<u32> {
        let physical_device = self.physical;
        let usage = venus::BufferUsageFlags::TRANSFER_DST;
        let info = venus::PhysicalDeviceExternalBufferInfo { usage, handle_type, ..Default::default() };
        let reply = self.ring.query(|w| {
            venus::GetPhysicalDeviceExternalBufferProperties {
                physical_device,
                p_external_buffer_info: Some(&info),
                p_external_buffer_properties: Some(&venus::ExternalBufferProperties::default()),
            }
            .encode(REPLY, w);
        })?;
        let arena = Arena::new(1 << 16);
        let reply =
            venus::GetPhysicalDeviceExternalBufferPropertiesReply::decode(&mut Reader::new(&reply, &arena))?;
        let properties = reply.p_external_buffer_properties.context("properties")?;
        Ok(properties.external_memory_properties.external_memory_features.0)
    }

    /// Allocates memory that can be mapped.
    pub fn allocate(&mut self, size: u64, source: Source) -> Result<Result<venus::DeviceMemory, VkResult>> {
        self.allocate_of_type(size, self.visible, source)
    }

    /// Allocates memory of any type.
    pub fn allocate_of_type(
        &mut self,
        size: u64,
        memory_type_index: u32,
        source: Source,
    ) -> Result<Result<venus::DeviceMemory, VkResult>> {
        let memory = venus::DeviceMemory(self.new_id());
        let handle_types = ExternalMemoryHandleTypeFlags::DMA_BUF_EXT;
        let export = venus::ExportMemoryAllocateInfo { handle_types, ..Default::default() };
        let resource_id = if let Source::Resource(id) = source { id } else { 0 };
        let import = venus::ImportMemoryResourceInfoMESA { resource_id, ..Default::default() };
        let fd = if let Source::Descriptor(fd) = source { fd } else { -1 };
        let handle_type = ExternalMemoryHandleTypeFlags::OPAQUE_FD;
        let descriptor = venus::ImportMemoryFdInfoKHR { handle_type, fd, ..Default::default() };
        let flags = venus::MemoryAllocateFlags::DEVICE_ADDRESS;
        let addressed = venus::MemoryAllocateFlagsInfo { flags, ..Default::default() };
        let chain = match source {
            Source::Addressed => Some(ChainStruct::MemoryAllocateFlagsInfo(&addressed)),
            Source::Descriptor(_) => Some(ChainStruct::ImportMemoryFdInfoKHR(&descriptor)),
            Source::New => None,
            Source::Exportable => Some(ChainStruct::ExportMemoryAllocateInfo(&export)),
            Source::Resource(_) => Some(ChainStruct::ImportMemoryResourceInfoMESA(&import)),
        };
        let info =
            venus::MemoryAllocateInfo { p_next: chain.as_slice(), allocation_size: size, memory_type_index };
        let device = self.device;
        let reply = self.ring.query(|w| {
            venus::AllocateMemory { device, p_allocate_info: Some(&info), p_memory: Some(&memory) }
                .encode(REPLY, w);
        })?;
        let arena = Arena::new(1 << 16);
        let reply = venus::AllocateMemoryReply::decode(&mut Reader::new(&reply, &arena))?;
        Ok(if reply.result.0 == 0 { Ok(memory) } else { Err(reply.result) })
    }

    /// `vkFreeMemory`.
    pub fn free(&mut self, memory: venus::DeviceMemory) -> Result<()> {
        let device = self.device;
        let seqno = self.ring.command(|w| venus::FreeMemory { device, memory }.encode(ASYNC, w))?;
        self.ring.wait(seqno, PATIENCE)
    }

    /// Makes a blob of memory, as vkMapMemory and vkGetMemoryFdKHR do.
    pub fn blob(&self, memory: venus::DeviceMemory, size: u64) -> Result<Blob> {
        let flags = BlobFlags::MAPPABLE | BlobFlags::SHAREABLE;
        self.gpu.create_blob(self.context, BlobId(memory.0), flags, size)
    }

    /// Types and size of a resource (`vkGetMemoryResourcePropertiesMESA`).
    pub fn resource_properties(&mut self, resource_id: u32) -> Result<Result<(u32, u64), VkResult>> {
        let device = self.device;
        let size = venus::MemoryResourceAllocationSizePropertiesMESA::default();
        let chain = [ChainStruct::MemoryResourceAllocationSizePropertiesMESA(&size)];
        let partial = venus::MemoryResourcePropertiesMESA { p_next: &chain, ..Default::default() };
        let reply = self.ring.query(|w| {
            let p_memory_resource_properties = Some(&partial);
            venus::GetMemoryResourcePropertiesMESA { device, resource_id, p_memory_resource_properties }
                .encode(REPLY, w);
        })?;
        let arena = Arena::new(1 << 16);
        let reply = venus::GetMemoryResourcePropertiesMESAReply::decode(&mut Reader::new(&reply, &arena))?;
        if reply.result.0 != 0 {
            return Ok(Err(reply.result));
        }
        let properties = reply.p_memory_resource_properties.context("properties")?;
        match properties.p_next {
            [ChainStruct::MemoryResourceAllocationSizePropertiesMESA(size)] => {
                Ok(Ok((properties.memory_type_bits, size.allocation_size)))
            }
            _ => anyhow::bail!("the chain came back as {:?}", properties.p_next),
        }
    }

    /// Lets the device fill `size` bytes of memory with a word, through a buffer bound to it; waits for the end.
    pub fn fill(&mut self, memory: venus::DeviceMemory, size: u64, data: u32) -> Result<()> {
        self.fill_at(memory, 0, size, data)
    }

    /// As [`Self::fill`], from an offset on.
    pub fn fill_at(
        &mut self,
        memory: venus::DeviceMemory,
        dst_offset: u64,
        size: u64,
        data: u32,
    ) -> Result<()> {
        let buffer = self.bound(memory, dst_offset + size)?;
        self.run(|command_buffer, w| {
            venus::CmdFillBuffer { command_buffer, dst_buffer: buffer, dst_offset, size, data }
                .encode(ASYNC, w);
        })?;
        self.destroy(buffer)
    }

    /// Lets the device copy `size` bytes from one memory to another; waits for the end.
    pub fn copy(&mut self, from: venus::DeviceMemory, to: venus::DeviceMemory, size: u64) -> Result<()> {
        self.copy_at((from, 0), to, size)
    }

    /// As [`Self::copy`], from an offset on.
    pub fn copy_at(
        &mut self,
        (from, src_offset): (venus::DeviceMemory, u64),
        to: venus::DeviceMemory,
        size: u64,
    ) -> Result<()> {
        let (src_buffer, dst_buffer) = (self.bound(from, src_offset + size)?, self.bound(to, size)?);
        let regions = [venus::BufferCopy { src_offset, dst_offset: 0, size }];
        self.run(|command_buffer, w| {
            let (region_count, p_regions) = (1, Some(&regions[..]));
            venus::CmdCopyBuffer { command_buffer, src_buffer, dst_buffer, region_count, p_regions }
                .encode(ASYNC, w);
        })?;
        self.destroy(src_buffer)?;
        self.destroy(dst_buffer)
    }

    /// A buffer bound to memory.
    pub fn bound(&mut self, memory: venus::DeviceMemory, size: u64) -> Result<venus::Buffer> {
        let (device, buffer) = (self.device, venus::Buffer(self.new_id()));
        let handle_types = ExternalMemoryHandleTypeFlags::DMA_BUF_EXT;
        let external = venus::ExternalMemoryBufferCreateInfo { handle_types, ..Default::default() };
        let chain = [ChainStruct::ExternalMemoryBufferCreateInfo(&external)];
        let (to, from) = (venus::BufferUsageFlags::TRANSFER_DST, venus::BufferUsageFlags::TRANSFER_SRC);
        let usage = venus::BufferUsageFlags(to.0 | from.0);
        let info = venus::BufferCreateInfo { p_next: &chain, size, usage, ..Default::default() };
        let bind = [venus::BindBufferMemoryInfo { buffer, memory, ..Default::default() }];
        self.ring.command(|w| {
            venus::CreateBuffer { device, p_create_info: Some(&info), p_buffer: Some(&buffer) }
                .encode(ASYNC, w);
            venus::BindBufferMemory2 { device, bind_info_count: 1, p_bind_infos: Some(&bind) }
                .encode(ASYNC, w);
        })?;
        Ok(buffer)
    }

    /// Makes a buffer that is bound to memory with an address, and returns it with its own address.
    pub fn addressed(&mut self, memory: venus::DeviceMemory, size: u64) -> Result<(venus::Buffer, u64)> {
        let (device, buffer) = (self.device, venus::Buffer(self.new_id()));
        let usage = venus::BufferUsageFlags::SHADER_DEVICE_ADDRESS;
        let info = venus::BufferCreateInfo { size, usage, ..Default::default() };
        self.ring.command(|w| {
            venus::CreateBuffer { device, p_create_info: Some(&info), p_buffer: Some(&buffer) }
                .encode(ASYNC, w);
            venus::BindBufferMemory { device, buffer, memory, memory_offset: 0 }.encode(ASYNC, w);
        })?;
        Ok((buffer, self.address(buffer)?))
    }

    /// The address of a buffer.
    pub fn address(&mut self, buffer: venus::Buffer) -> Result<u64> {
        let (device, info) = (self.device, venus::BufferDeviceAddressInfo { buffer, ..Default::default() });
        let ask = venus::GetBufferDeviceAddress { device, p_info: Some(&info) };
        self.query(
            |w| ask.encode(REPLY, w),
            |reply| Ok(venus::GetBufferDeviceAddressReply::decode(reply)?.ret),
        )
    }

    fn destroy(&mut self, buffer: venus::Buffer) -> Result<()> {
        let device = self.device;
        let seqno = self.ring.command(|w| venus::DestroyBuffer { device, buffer }.encode(ASYNC, w))?;
        self.ring.wait(seqno, PATIENCE)
    }

    /// Records commands and submits them; waits until they are done.
    fn run(&mut self, record: impl FnOnce(venus::CommandBuffer, &mut Writer<'_>)) -> Result<()> {
        self.submit(record)?;
        self.gpu.submit_fenced(self.context, RingIdx(1), &[]).wait(PATIENCE).map(drop)?;
        Ok(())
    }

    /// Records commands and submits them, without a fence or semaphore for their end.
    pub fn submit(&mut self, record: impl FnOnce(venus::CommandBuffer, &mut Writer<'_>)) -> Result<()> {
        let (device, queue) = (self.device, self.queue);
        let commands = venus::CommandBuffer(self.new_id());
        let allocate = venus::CommandBufferAllocateInfo {
            command_pool: self.pool,
            command_buffer_count: 1,
            ..Default::default()
        };
        let submit = [venus::SubmitInfo {
            command_buffer_count: 1,
            p_command_buffers: Some(std::slice::from_ref(&commands)),
            ..Default::default()
        }];
        let seqno = self.ring.command(|w| {
            let p_command_buffers = Some(std::slice::from_ref(&commands));
            venus::AllocateCommandBuffers { device, p_allocate_info: Some(&allocate), p_command_buffers }
                .encode(ASYNC, w);
            let p_begin_info = Some(&venus::CommandBufferBeginInfo::default());
            venus::BeginCommandBuffer { command_buffer: commands, p_begin_info }.encode(ASYNC, w);
            record(commands, w);
            venus::EndCommandBuffer { command_buffer: commands }.encode(ASYNC, w);
            venus::QueueSubmit { queue, submit_count: 1, p_submits: Some(&submit), fence: venus::Fence(0) }
                .encode(ASYNC, w);
        })?;
        self.ring.wait(seqno, PATIENCE)
    }

    /// Sends an allocation without asking for its result, as Mesa does; returns the memory's id.
    pub fn allocate_unheard(&mut self, size: u64) -> Result<venus::DeviceMemory> {
        let memory = venus::DeviceMemory(self.new_id());
        let memory_type_index = self.visible;
        let info =
            venus::MemoryAllocateInfo { allocation_size: size, memory_type_index, ..Default::default() };
        let device = self.device;
        let sent = self.ring.command(|w| {
            venus::AllocateMemory { device, p_allocate_info: Some(&info), p_memory: Some(&memory) }
                .encode(ASYNC, w);
        });
        sent.map(|_| memory)
    }

    /// Puts a wait for an export behind all commands sent so far, as Mesa does before it makes a blob.
    pub fn wait_for_ring_on_virtqueue(&self) -> Vec<u8> {
        let (ring, seqno) = (self.ring.id(), u64::from(self.ring.tail()));
        encode(|w| venus::WaitRingSeqnoMESA { ring, seqno }.encode(ASYNC, w))
    }
}

/// Memory types: those of [`Device`].
struct MemoryTypes {
    visible: u32,
    hidden: Option<u32>,
    hidden_heap: u64,
    local: Option<u32>,
}

fn memory_types(ring: &mut Ring, physical_device: venus::PhysicalDevice) -> Result<MemoryTypes> {
    let reply = ring.query(|w| {
        let p_memory_properties = Some(&venus::PhysicalDeviceMemoryProperties2::default());
        venus::GetPhysicalDeviceMemoryProperties2 { physical_device, p_memory_properties }.encode(REPLY, w);
    })?;
    let arena = Arena::new(1 << 16);
    let reply = venus::GetPhysicalDeviceMemoryProperties2Reply::decode(&mut Reader::new(&reply, &arena))?;
    let properties = reply.p_memory_properties.context("memory properties")?.memory_properties;
    let types = &properties.memory_types[..properties.memory_type_count as usize];
    let visible = venus::MemoryPropertyFlags::HOST_VISIBLE.0;
    let coherent = visible | venus::MemoryPropertyFlags::HOST_COHERENT.0;
    let first = types.iter().position(|ty| ty.property_flags.0 & coherent == coherent);
    let is_hidden = |ty: &venus::MemoryType| ty.property_flags.0 & visible == 0;
    let is_own =
        |ty: &venus::MemoryType| ty.property_flags.contains(venus::MemoryPropertyFlags::DEVICE_LOCAL);
    let own = types.iter().position(|ty| is_hidden(ty) && is_own(ty));
    let hidden = own.or(types.iter().position(is_hidden));
    let local = coherent | venus::MemoryPropertyFlags::DEVICE_LOCAL.0;
    let local = types.iter().position(|ty| ty.property_flags.0 & local == local);
    let heap = |ty: usize| properties.memory_heaps[types[ty].heap_index as usize].size;
    let index = |index| index as u32;
    Ok(MemoryTypes {
        visible: index(first.context("no memory that can be mapped")?),
        hidden: hidden.map(index),
        hidden_heap: hidden.map_or(0, heap),
        local: local.map(index),
    })
}

/// Demands that the first and the last words of some shared bytes are these.
pub fn ensure_filled(bytes: &[u8], word: u32) -> Result<()> {
    let wrong = bytes.chunks_exact(4).position(|found| found != word.to_le_bytes());
    ensure!(wrong.is_none(), "word {wrong:?} is not {word:#x}");
    Ok(())
}
