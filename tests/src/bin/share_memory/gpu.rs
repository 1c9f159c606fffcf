//! A device and shared memory, as an application uses them.
//!
//! Handles are made and used in this file only and live until the process ends, which keeps the example short.

#![allow(unsafe_code, clippy::multiple_unsafe_ops_per_block, reason = "an application's calls into Vulkan")]

use anyhow::{Context, Result, ensure};
use ash::vk;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};

const DMA_BUF: vk::ExternalMemoryHandleTypeFlags = vk::ExternalMemoryHandleTypeFlags::DMA_BUF_EXT;

/// A device that can share memory.
pub(crate) struct Gpu {
    device: ash::Device,
    fds: ash::khr::external_memory_fd::Device,
    memory: vk::PhysicalDeviceMemoryProperties,
    queue: vk::Queue,
    commands: vk::CommandBuffer,
    _instance: ash::Instance,
    _entry: ash::Entry,
}

/// A buffer with memory of its own that is mapped.
pub(crate) struct Memory {
    buffer: vk::Buffer,
    memory: vk::DeviceMemory,
    mapped: *mut u32,
    words: u32,
}

impl Gpu {
    /// The first device; `None` if it shares no buffers as dma-bufs.
    pub(crate) fn open() -> Result<Option<Self>> {
        let application = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_1);
        let info = vk::InstanceCreateInfo::default().application_info(&application);
        let names = [ash::khr::external_memory_fd::NAME, ash::ext::external_memory_dma_buf::NAME];
        // SAFETY: the library is a Vulkan loader; every info lives until its call returns; handles belong together.
        unsafe {
            let entry = ash::Entry::load()?;
            let instance = entry.create_instance(&info, None)?;
            let physical = *instance.enumerate_physical_devices()?.first().context("no device")?;
            let offered = instance.enumerate_device_extension_properties(physical)?;
            let has = |name| offered.iter().any(|e| e.extension_name_as_c_str() == Ok(name));
            if !names.iter().all(|name| has(name)) {
                return Ok(None);
            }
            let asked = vk::PhysicalDeviceExternalBufferInfo::default().usage(USAGE).handle_type(DMA_BUF);
            let mut answer = vk::ExternalBufferProperties::default();
            instance.get_physical_device_external_buffer_properties(physical, &asked, &mut answer);
            let features = answer.external_memory_properties.external_memory_features;
            let both =
                vk::ExternalMemoryFeatureFlags::EXPORTABLE | vk::ExternalMemoryFeatureFlags::IMPORTABLE;
            if !features.contains(both) {
                return Ok(None);
            }
            let queues = [vk::DeviceQueueCreateInfo::default().queue_priorities(&[1.0])];
            let names = names.map(std::ffi::CStr::as_ptr);
            let info =
                vk::DeviceCreateInfo::default().queue_create_infos(&queues).enabled_extension_names(&names);
            let device = instance.create_device(physical, &info, None)?;
            let fds = ash::khr::external_memory_fd::Device::new(&instance, &device);
            let memory = instance.get_physical_device_memory_properties(physical);
            let flags = vk::CommandPoolCreateFlags::RESET_COMMAND_BUFFER;
            let info = vk::CommandPoolCreateInfo::default().flags(flags);
            let pool = device.create_command_pool(&info, None)?;
            let info = vk::CommandBufferAllocateInfo::default().command_pool(pool).command_buffer_count(1);
            let commands = device.allocate_command_buffers(&info)?[0];
            let queue = device.get_device_queue(0, 0);
            Ok(Some(Self { device, fds, memory, queue, commands, _instance: instance, _entry: entry }))
        }
    }

    /// Memory of this process alone.
    pub(crate) fn private(&self, words: u32) -> Result<Memory> {
        let info = vk::BufferCreateInfo::default().size(u64::from(words) * 4).usage(USAGE);
        // SAFETY: the device is live.
        let buffer = unsafe { self.device.create_buffer(&info, None) }?;
        self.bind(buffer, words, u32::MAX, &mut (), |info, ()| info)
    }

    /// Memory that can be exported.
    pub(crate) fn exportable(&self, words: u32) -> Result<Memory> {
        let mut export = vk::ExportMemoryAllocateInfo::default().handle_types(DMA_BUF);
        let buffer = self.external_buffer(words)?;
        self.bind(buffer, words, u32::MAX, &mut export, |info, export| info.push_next(export))
    }

    /// Memory of another process.
    pub(crate) fn import(&self, file: OwnedFd, words: u32) -> Result<Memory> {
        let mut properties = vk::MemoryFdPropertiesKHR::default();
        // SAFETY: the device is live; the descriptor stays ours.
        unsafe { self.fds.get_memory_fd_properties(DMA_BUF, file.as_raw_fd(), &mut properties) }?;
        // With success the descriptor is the driver's; without, this process ends.
        let fd = file.into_raw_fd();
        let mut import = vk::ImportMemoryFdInfoKHR::default().handle_type(DMA_BUF).fd(fd);
        let buffer = self.external_buffer(words)?;
        let types = properties.memory_type_bits;
        self.bind(buffer, words, types, &mut import, |info, import| info.push_next(import))
    }

    /// A descriptor of exportable memory.
    pub(crate) fn export(&self, memory: &Memory) -> Result<OwnedFd> {
        let info = vk::MemoryGetFdInfoKHR::default().memory(memory.memory).handle_type(DMA_BUF);
        // SAFETY: the memory is live and exportable, and the descriptor made for us.
        unsafe { Ok(OwnedFd::from_raw_fd(self.fds.get_memory_fd(&info)?)) }
    }

    fn external_buffer(&self, words: u32) -> Result<vk::Buffer> {
        let mut external = vk::ExternalMemoryBufferCreateInfo::default().handle_types(DMA_BUF);
        let info =
            vk::BufferCreateInfo::default().size(u64::from(words) * 4).usage(USAGE).push_next(&mut external);
        // SAFETY: the device is live; `info` lives until the call returns.
        Ok(unsafe { self.device.create_buffer(&info, None) }?)
    }

    /// Allocates, binds and maps memory of one of the types with these bits; `chain` adds `more` to the allocation.
    fn bind<'m, M>(
        &self,
        buffer: vk::Buffer,
        words: u32,
        types: u32,
        more: &'m mut M,
        chain: impl FnOnce(vk::MemoryAllocateInfo<'m>, &'m mut M) -> vk::MemoryAllocateInfo<'m>,
    ) -> Result<Memory> {
        let visible = vk::MemoryPropertyFlags::HOST_VISIBLE | vk::MemoryPropertyFlags::HOST_COHERENT;
        // SAFETY: device and buffer are live; the info lives until its call returns; the memory is new and large enough.
        unsafe {
            let needed = self.device.get_buffer_memory_requirements(buffer);
            let types = types & needed.memory_type_bits;
            let mut fitting = self.memory.memory_types_as_slice().iter().enumerate();
            let fitting = fitting
                .find(|(index, ty)| types & (1 << index) != 0 && ty.property_flags.contains(visible))
                .with_context(|| format!("no visible type among {types:#x}"))?;
            let info = vk::MemoryAllocateInfo::default()
                .allocation_size(needed.size)
                .memory_type_index(fitting.0 as u32);
            let memory = self.device.allocate_memory(&chain(info, more), None).context("allocating")?;
            self.device.bind_buffer_memory(buffer, memory, 0)?;
            let mapped = self.device.map_memory(memory, 0, vk::WHOLE_SIZE, vk::MemoryMapFlags::empty());
            let mapped = mapped.context("mapping")?.cast::<u32>();
            Ok(Memory { buffer, memory, mapped, words })
        }
    }

    /// Lets the device write a word all over.
    pub(crate) fn fill(&self, memory: &Memory, word: u32) -> Result<()> {
        // SAFETY: the command buffer is being recorded, the buffer is live.
        self.run(|commands| unsafe {
            self.device.cmd_fill_buffer(commands, memory.buffer, 0, vk::WHOLE_SIZE, word);
        })
    }

    /// Lets the device copy.
    pub(crate) fn copy(&self, from: &Memory, to: &Memory) -> Result<()> {
        ensure!(from.words == to.words);
        let region = [vk::BufferCopy::default().size(u64::from(from.words) * 4)];
        // SAFETY: the command buffer is being recorded, the buffers are live and as large as the region.
        self.run(|commands| unsafe {
            self.device.cmd_copy_buffer(commands, from.buffer, to.buffer, &region);
        })
    }

    /// Returns the words that the processor sees.
    pub(crate) fn read(&self, memory: &Memory) -> Result<Vec<u32>> {
        // SAFETY: the mapping has so many words.
        Ok((0..memory.words as usize)
            .map(|word| unsafe { memory.mapped.add(word).read_volatile() })
            .collect())
    }

    /// Lets the processor write.
    pub(crate) fn write_first_word(&self, memory: &Memory, word: u32) -> Result<()> {
        // SAFETY: the mapping has at least one word.
        unsafe { memory.mapped.write_volatile(word) };
        Ok(())
    }

    fn run(&self, record: impl FnOnce(vk::CommandBuffer)) -> Result<()> {
        let barrier = [vk::MemoryBarrier::default()
            .src_access_mask(vk::AccessFlags::MEMORY_WRITE)
            .dst_access_mask(vk::AccessFlags::MEMORY_READ | vk::AccessFlags::HOST_READ)];
        let (from, to) = (vk::PipelineStageFlags::TRANSFER, vk::PipelineStageFlags::HOST);
        // SAFETY: the device is live and the command buffer in no use: each run is waited for.
        unsafe {
            self.device.begin_command_buffer(self.commands, &vk::CommandBufferBeginInfo::default())?;
            record(self.commands);
            let flags = vk::DependencyFlags::empty();
            self.device.cmd_pipeline_barrier(self.commands, from, to, flags, &barrier, &[], &[]);
            self.device.end_command_buffer(self.commands)?;
            let commands = [self.commands];
            let submit = [vk::SubmitInfo::default().command_buffers(&commands)];
            self.device.queue_submit(self.queue, &submit, vk::Fence::null())?;
            self.device.queue_wait_idle(self.queue)?;
        }
        Ok(())
    }
}

const USAGE: vk::BufferUsageFlags = vk::BufferUsageFlags::from_raw(
    vk::BufferUsageFlags::TRANSFER_SRC.as_raw() | vk::BufferUsageFlags::TRANSFER_DST.as_raw(),
);
