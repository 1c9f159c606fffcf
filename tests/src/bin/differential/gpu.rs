//! The first Vulkan device with everything it offers switched on, and short ways to buffers, memory, submissions.
//!
//! The objects that a case makes are destroyed when the case is over, in reverse order: see [`Gpu::later`]. This module knows no case.

use std::cell::RefCell;
use std::ffi::CStr;

use anyhow::{Context, Result, bail, ensure};
use ash::vk;

use crate::bytes::{Plain, bytes_of, from_bytes};
use crate::features::Features;

/// Nanoseconds after which a wait counts as a hang: longer than any case may take on the slowest machine.
pub(crate) const PATIENCE: u64 = 480_000_000_000;

/// The features that are off unless a case asks for them: they change what memory accesses out of bounds mean.
pub(crate) const ROBUSTNESS: &[&str] = &[
    "robustBufferAccess",
    "robustImageAccess",
    "robustBufferAccess2",
    "robustImageAccess2",
    "nullDescriptor",
];

/// A case needs a feature that the device does not have.
#[derive(Debug)]
pub(crate) struct Skipped(pub String);

impl std::fmt::Display for Skipped {
    fn fmt(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for Skipped {}

/// Returns the error `Skipped`, which names the missing feature.
pub(crate) fn skip<T>(what: impl Into<String>) -> Result<T> {
    Err(Skipped(what.into()).into())
}

/// One queue of the device.
#[derive(Clone, Copy)]
pub(crate) struct Queue {
    /// The index of its queue family.
    pub family: u32,
    /// The capabilities of the family.
    pub flags: vk::QueueFlags,
    /// The number of valid bits in a timestamp of the family.
    pub timestamp_bits: u32,
    /// The queue.
    pub handle: vk::Queue,
}

type Garbage = Box<dyn FnOnce(&ash::Device)>;

/// A device, its queues, and the objects that the current case has made.
pub(crate) struct Gpu {
    /// The instance.
    pub instance: ash::Instance,
    /// The physical device.
    pub physical: vk::PhysicalDevice,
    /// The device.
    pub device: ash::Device,
    /// The extensions and features of the physical device.
    pub features: Features,
    /// The physical device's properties of Vulkan 1.0.
    pub properties: vk::PhysicalDeviceProperties,
    /// The types of its memory.
    pub memory: vk::PhysicalDeviceMemoryProperties,
    /// All queues that were made: up to two of each family that computes or copies. The first one computes.
    pub queues: Vec<Queue>,
    pool: vk::CommandPool,
    garbage: RefCell<Vec<Garbage>>,
    spirv: RefCell<Vec<Vec<u32>>>,
}

/// A buffer with memory of its own, mapped when the host can see it.
#[derive(Clone, Copy)]
pub(crate) struct Buffer {
    /// The buffer.
    pub handle: vk::Buffer,
    /// The memory that is bound to the buffer.
    pub memory: vk::DeviceMemory,
    /// Bytes that were asked for.
    pub size: u64,
    at: *mut u8,
}

impl Buffer {
    /// Returns the bytes of the buffer.
    pub(crate) fn read(&self) -> Vec<u8> {
        assert!(!self.at.is_null(), "the buffer is not mapped");
        unsafe { std::slice::from_raw_parts(self.at, self.size as usize) }.to_vec()
    }

    /// Returns the content of the buffer as numbers.
    pub(crate) fn values<T: Plain>(&self) -> Vec<T> {
        from_bytes(&self.read())
    }

    /// Writes numbers from its start on.
    pub(crate) fn write<T: Plain>(&self, values: &[T]) {
        let bytes = bytes_of(values);
        assert!(!self.at.is_null() && bytes.len() as u64 <= self.size, "the bytes do not fit");
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at, bytes.len()) };
    }

    /// Returns the address of the buffer's mapping.
    pub(crate) fn pointer<T: Plain>(&self) -> *mut T {
        self.at.cast()
    }
}

/// An entry point of the loader.
pub(crate) fn entry() -> Result<ash::Entry> {
    unsafe { ash::Entry::load() }.context("no Vulkan loader")
}

/// An instance of the highest version there is, without layers and extensions.
pub(crate) fn instance(entry: &ash::Entry) -> Result<ash::Instance> {
    let version = unsafe { entry.try_enumerate_instance_version() }?.unwrap_or(vk::API_VERSION_1_0);
    let application = vk::ApplicationInfo::default().application_name(c"differential").api_version(version);
    let info = vk::InstanceCreateInfo::default().application_info(&application);
    Ok(unsafe { entry.create_instance(&info, None) }?)
}

impl Gpu {
    /// Opens the first device with all features but `off`.
    pub(crate) fn open(off: &[&str]) -> Result<Self> {
        let entry = entry()?;
        let instance = instance(&entry)?;
        // The loader stays loaded as long as the process lives.
        std::mem::forget(entry);
        let physical = *unsafe { instance.enumerate_physical_devices() }?.first().context("no device")?;
        Self::open_physical(instance, physical, off)
    }

    fn open_physical(instance: ash::Instance, physical: vk::PhysicalDevice, off: &[&str]) -> Result<Self> {
        let properties = unsafe { instance.get_physical_device_properties(physical) };
        ensure!(properties.api_version >= vk::API_VERSION_1_3, "the device has no Vulkan 1.3");
        let memory = unsafe { instance.get_physical_device_memory_properties(physical) };
        let features = Features::of(&instance, physical)?;
        let families = unsafe { instance.get_physical_device_queue_family_properties(physical) };
        let wanted = vk::QueueFlags::COMPUTE | vk::QueueFlags::TRANSFER;
        let useful = |family: &vk::QueueFamilyProperties| family.queue_flags.intersects(wanted);
        let infos: Vec<_> = (0u32..)
            .zip(&families)
            .filter(|(_, family)| useful(family))
            .map(|(index, family)| {
                let count = family.queue_count.min(2) as usize;
                vk::DeviceQueueCreateInfo::default()
                    .queue_family_index(index)
                    .queue_priorities(&[1.0, 1.0][..count])
            })
            .collect();
        let enabled = features.enable(off);
        let names: Vec<_> = enabled.names.iter().map(|name| name.as_ptr()).collect();
        let core = features.core(off);
        let mut info = vk::DeviceCreateInfo::default()
            .queue_create_infos(&infos)
            .enabled_extension_names(&names)
            .enabled_features(&core);
        info.p_next = enabled.head;
        let device =
            unsafe { instance.create_device(physical, &info, None) }.context("creating the device")?;
        let mut queues = Vec::new();
        for info in &infos {
            for index in 0..info.queue_count {
                let family = families[info.queue_family_index as usize];
                queues.push(Queue {
                    family: info.queue_family_index,
                    flags: family.queue_flags,
                    timestamp_bits: family.timestamp_valid_bits,
                    handle: unsafe { device.get_device_queue(info.queue_family_index, index) },
                });
            }
        }
        queues.sort_by_key(|queue| !queue.flags.contains(vk::QueueFlags::COMPUTE));
        let family = queues.first().context("no queue")?.family;
        let info = vk::CommandPoolCreateInfo::default()
            .queue_family_index(family)
            .flags(vk::CommandPoolCreateFlags::RESET_COMMAND_BUFFER);
        let pool = unsafe { device.create_command_pool(&info, None) }?;
        let (garbage, spirv) = (RefCell::default(), RefCell::default());
        Ok(Self { instance, physical, device, features, properties, memory, queues, pool, garbage, spirv })
    }

    /// The queue that cases use when they need only one. It computes.
    pub(crate) fn queue(&self) -> vk::Queue {
        self.queues[0].handle
    }

    /// The index of that queue's family.
    pub(crate) fn family(&self) -> u32 {
        self.queues[0].family
    }

    /// The limits of Vulkan 1.0.
    pub(crate) fn limits(&self) -> &vk::PhysicalDeviceLimits {
        &self.properties.limits
    }

    /// Skips the case when one of the features is missing.
    pub(crate) fn require(&self, features: &[&str]) -> Result<()> {
        match features.iter().find(|feature| !self.features.has(feature)) {
            Some(missing) => skip(*missing),
            None => Ok(()),
        }
    }

    /// Skips the case when an extension is missing.
    pub(crate) fn require_extension(&self, name: &CStr) -> Result<()> {
        if self.features.has_extension(name) { Ok(()) } else { skip(name.to_string_lossy()) }
    }

    /// An entry point that ash has no function for.
    ///
    /// # Safety
    /// `T` is the command's type.
    pub(crate) unsafe fn command<T: Copy>(&self, name: &CStr) -> Result<T> {
        let found = unsafe { self.instance.get_device_proc_addr(self.device.handle(), name.as_ptr()) };
        let found = found.with_context(|| format!("no {}", name.to_string_lossy()))?;
        assert_eq!(size_of::<T>(), size_of_val(&found));
        Ok(unsafe { std::mem::transmute_copy(&found) })
    }

    /// Fills a struct of properties.
    pub(crate) fn properties2<T: vk::ExtendsPhysicalDeviceProperties2>(&self, properties: &mut T) {
        let mut all = vk::PhysicalDeviceProperties2::default().push_next(properties);
        unsafe { self.instance.get_physical_device_properties2(self.physical, &mut all) };
    }

    /// Runs `destroy` when the case is over.
    pub(crate) fn later(&self, destroy: impl FnOnce(&ash::Device) + 'static) {
        self.garbage.borrow_mut().push(Box::new(destroy));
    }

    /// Hands the current case its shaders.
    pub(crate) fn begin_case(&self, spirv: Vec<Vec<u32>>) {
        self.spirv.replace(spirv);
    }

    /// Destroys the objects that the case has made.
    pub(crate) fn end_case(&self) {
        unsafe { self.device.device_wait_idle() }.ok();
        for destroy in self.garbage.take().into_iter().rev() {
            destroy(&self.device);
        }
    }

    /// The case's shader of this number.
    pub(crate) fn spirv(&self, number: usize) -> Vec<u32> {
        self.spirv.borrow()[number].clone()
    }

    /// A type of memory allowed by `bits` that has all `flags`.
    pub(crate) fn memory_type(&self, bits: u32, flags: vk::MemoryPropertyFlags) -> Option<u32> {
        let types = self.memory.memory_types_as_slice();
        (0u32..)
            .zip(types)
            .find(|(index, ty)| bits & (1 << index) != 0 && ty.property_flags.contains(flags))
            .map(|(index, _)| index)
    }

    /// Memory for `requirements`.
    pub(crate) fn allocate(
        &self,
        requirements: vk::MemoryRequirements,
        flags: vk::MemoryPropertyFlags,
        device_address: bool,
    ) -> Result<vk::DeviceMemory> {
        let Some(ty) = self.memory_type(requirements.memory_type_bits, flags) else {
            bail!("no memory is {:#x} among {:#x}", flags.as_raw(), requirements.memory_type_bits)
        };
        let mut address =
            vk::MemoryAllocateFlagsInfo::default().flags(vk::MemoryAllocateFlags::DEVICE_ADDRESS);
        let mut info =
            vk::MemoryAllocateInfo::default().allocation_size(requirements.size).memory_type_index(ty);
        if device_address {
            info = info.push_next(&mut address);
        }
        let memory = unsafe { self.device.allocate_memory(&info, None) }?;
        self.later(move |device| unsafe { device.free_memory(memory, None) });
        Ok(memory)
    }

    /// A buffer for every use, of zeros, that the host sees.
    pub(crate) fn buffer(&self, size: u64) -> Result<Buffer> {
        let visible = vk::MemoryPropertyFlags::HOST_VISIBLE | vk::MemoryPropertyFlags::HOST_COHERENT;
        let mut buffer = self.buffer_in(size, self.every_use(), visible)?;
        let at =
            unsafe { self.device.map_memory(buffer.memory, 0, vk::WHOLE_SIZE, vk::MemoryMapFlags::empty()) }?;
        buffer.at = at.cast();
        unsafe { buffer.at.write_bytes(0, size as usize) };
        Ok(buffer)
    }

    /// A buffer that holds these numbers.
    pub(crate) fn buffer_of<T: Plain>(&self, values: &[T]) -> Result<Buffer> {
        let buffer = self.buffer(size_of_val(values) as u64)?;
        buffer.write(values);
        Ok(buffer)
    }

    /// A buffer in the device's own memory; not mapped, of unknown content.
    pub(crate) fn local_buffer(&self, size: u64) -> Result<Buffer> {
        self.buffer_in(size, self.every_use(), vk::MemoryPropertyFlags::DEVICE_LOCAL)
    }

    /// A buffer that is bound to new memory and not mapped.
    pub(crate) fn buffer_in(
        &self,
        size: u64,
        usage: vk::BufferUsageFlags,
        flags: vk::MemoryPropertyFlags,
    ) -> Result<Buffer> {
        let info = vk::BufferCreateInfo::default().size(size).usage(usage);
        let handle = unsafe { self.device.create_buffer(&info, None) }?;
        self.later(move |device| unsafe { device.destroy_buffer(handle, None) });
        let requirements = unsafe { self.device.get_buffer_memory_requirements(handle) };
        let address = usage.contains(vk::BufferUsageFlags::SHADER_DEVICE_ADDRESS);
        let memory = self.allocate(requirements, flags, address)?;
        unsafe { self.device.bind_buffer_memory(handle, memory, 0) }?;
        Ok(Buffer { handle, memory, size, at: std::ptr::null_mut() })
    }

    /// Every use of a buffer that needs no extension.
    pub(crate) fn every_use(&self) -> vk::BufferUsageFlags {
        let mut usage = vk::BufferUsageFlags::TRANSFER_SRC
            | vk::BufferUsageFlags::TRANSFER_DST
            | vk::BufferUsageFlags::UNIFORM_BUFFER
            | vk::BufferUsageFlags::STORAGE_BUFFER
            | vk::BufferUsageFlags::UNIFORM_TEXEL_BUFFER
            | vk::BufferUsageFlags::STORAGE_TEXEL_BUFFER
            | vk::BufferUsageFlags::INDIRECT_BUFFER;
        if self.features.has("bufferDeviceAddress") {
            usage |= vk::BufferUsageFlags::SHADER_DEVICE_ADDRESS;
        }
        usage
    }

    /// Returns the device address of a buffer, by which shaders access it.
    pub(crate) fn address(&self, buffer: &Buffer) -> u64 {
        let info = vk::BufferDeviceAddressInfo::default().buffer(buffer.handle);
        unsafe { self.device.get_buffer_device_address(&info) }
    }

    /// A primary command buffer of the usual pool.
    pub(crate) fn command_buffer(&self) -> Result<vk::CommandBuffer> {
        Ok(self.command_buffers(self.pool, vk::CommandBufferLevel::PRIMARY, 1)?[0])
    }

    /// Command buffers of any pool.
    pub(crate) fn command_buffers(
        &self,
        pool: vk::CommandPool,
        level: vk::CommandBufferLevel,
        count: u32,
    ) -> Result<Vec<vk::CommandBuffer>> {
        let info = vk::CommandBufferAllocateInfo::default()
            .command_pool(pool)
            .level(level)
            .command_buffer_count(count);
        let buffers = unsafe { self.device.allocate_command_buffers(&info) }?;
        let freed = buffers.clone();
        self.later(move |device| unsafe { device.free_command_buffers(pool, &freed) });
        Ok(buffers)
    }

    /// Secondary command buffers of the usual pool.
    pub(crate) fn secondaries(&self, count: u32) -> Result<Vec<vk::CommandBuffer>> {
        self.command_buffers(self.pool, vk::CommandBufferLevel::SECONDARY, count)
    }

    /// A command pool of a family.
    pub(crate) fn command_pool(
        &self,
        family: u32,
        flags: vk::CommandPoolCreateFlags,
    ) -> Result<vk::CommandPool> {
        let info = vk::CommandPoolCreateInfo::default().queue_family_index(family).flags(flags);
        let pool = unsafe { self.device.create_command_pool(&info, None) }?;
        self.later(move |device| unsafe { device.destroy_command_pool(pool, None) });
        Ok(pool)
    }

    /// Records a command buffer of the usual pool.
    pub(crate) fn record(&self, commands: impl FnOnce(vk::CommandBuffer)) -> Result<vk::CommandBuffer> {
        let buffer = self.command_buffer()?;
        self.record_into(buffer, vk::CommandBufferUsageFlags::empty(), commands)?;
        Ok(buffer)
    }

    /// Records `commands`, and a barrier by which the host sees their writes.
    pub(crate) fn record_into(
        &self,
        buffer: vk::CommandBuffer,
        flags: vk::CommandBufferUsageFlags,
        commands: impl FnOnce(vk::CommandBuffer),
    ) -> Result<()> {
        let inheritance = vk::CommandBufferInheritanceInfo::default();
        let info = vk::CommandBufferBeginInfo::default().flags(flags).inheritance_info(&inheritance);
        unsafe { self.device.begin_command_buffer(buffer, &info) }?;
        commands(buffer);
        self.barrier(buffer);
        Ok(unsafe { self.device.end_command_buffer(buffer) }?)
    }

    /// Records a barrier: all earlier commands happen before all later commands, on the device and for the host.
    pub(crate) fn barrier(&self, buffer: vk::CommandBuffer) {
        let barrier =
            vk::MemoryBarrier::default().src_access_mask(vk::AccessFlags::MEMORY_WRITE).dst_access_mask(
                vk::AccessFlags::MEMORY_READ | vk::AccessFlags::MEMORY_WRITE | vk::AccessFlags::HOST_READ,
            );
        unsafe {
            self.device.cmd_pipeline_barrier(
                buffer,
                vk::PipelineStageFlags::ALL_COMMANDS,
                vk::PipelineStageFlags::ALL_COMMANDS | vk::PipelineStageFlags::HOST,
                vk::DependencyFlags::empty(),
                &[barrier],
                &[],
                &[],
            );
        }
    }

    /// Records, submits and waits.
    pub(crate) fn run(&self, commands: impl FnOnce(vk::CommandBuffer)) -> Result<()> {
        let buffer = self.record(commands)?;
        self.submit(&[buffer])
    }

    /// Submits to the usual queue and waits.
    pub(crate) fn submit(&self, buffers: &[vk::CommandBuffer]) -> Result<()> {
        let fence = self.fence(false)?;
        let info = vk::SubmitInfo::default().command_buffers(buffers);
        unsafe { self.device.queue_submit(self.queue(), &[info], fence) }.context("submitting")?;
        self.wait(fence)
    }

    /// A fence.
    pub(crate) fn fence(&self, signalled: bool) -> Result<vk::Fence> {
        let flags = if signalled { vk::FenceCreateFlags::SIGNALED } else { vk::FenceCreateFlags::empty() };
        let info = vk::FenceCreateInfo::default().flags(flags);
        let fence = unsafe { self.device.create_fence(&info, None) }?;
        self.later(move |device| unsafe { device.destroy_fence(fence, None) });
        Ok(fence)
    }

    /// Waits for a fence, for at most `PATIENCE`.
    pub(crate) fn wait(&self, fence: vk::Fence) -> Result<()> {
        unsafe { self.device.wait_for_fences(&[fence], true, PATIENCE) }.context("waiting for a fence")
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        self.end_case();
        unsafe { self.device.destroy_command_pool(self.pool, None) };
        unsafe { self.device.destroy_device(None) };
        unsafe { self.instance.destroy_instance(None) };
    }
}
