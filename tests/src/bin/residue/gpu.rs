//! A tenant: an instance with one device, which takes memory and reads it. All objects end with the tenant.

#![allow(unsafe_code, clippy::multiple_unsafe_ops_per_block, reason = "an application's calls into Vulkan")]

use anyhow::{Context, Result, ensure};
use ash::vk;

use crate::shader;

/// Bytes that are brought to the processor at a time.
const WINDOW: u64 = 1 << 20;

/// An instance, a device and a buffer that can be mapped.
pub(crate) struct Tenant {
    _entry: ash::Entry,
    instance: ash::Instance,
    device: ash::Device,
    queue: vk::Queue,
    family: u32,
    types: Vec<vk::MemoryType>,
    window: vk::Buffer,
    window_memory: vk::DeviceMemory,
    mapped: *mut u32,
    taken: Vec<(vk::Buffer, vk::DeviceMemory)>,
}

impl Tenant {
    /// Opens the first device.
    pub(crate) fn open() -> Result<Self> {
        let application = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_2);
        let info = vk::InstanceCreateInfo::default().application_info(&application);
        // SAFETY: the library is a Vulkan loader; every info lives until its call returns; handles are of this instance.
        unsafe {
            let entry = ash::Entry::load()?;
            let instance = entry.create_instance(&info, None)?;
            let physical = *instance.enumerate_physical_devices()?.first().context("no device")?;
            let families = instance.get_physical_device_queue_family_properties(physical);
            let computes =
                |family: &vk::QueueFamilyProperties| family.queue_flags.contains(vk::QueueFlags::COMPUTE);
            let family = families.iter().position(computes).context("no queue that computes")? as u32;
            let queues =
                [vk::DeviceQueueCreateInfo::default().queue_family_index(family).queue_priorities(&[1.0])];
            let info = vk::DeviceCreateInfo::default().queue_create_infos(&queues);
            let device = instance.create_device(physical, &info, None)?;
            let queue = device.get_device_queue(family, 0);
            let types = instance.get_physical_device_memory_properties(physical);
            let mut tenant = Self {
                _entry: entry,
                instance,
                device,
                queue,
                family,
                types: types.memory_types_as_slice().to_vec(),
                window: vk::Buffer::null(),
                window_memory: vk::DeviceMemory::null(),
                mapped: std::ptr::null_mut(),
                taken: Vec::new(),
            };
            let visible = vk::MemoryPropertyFlags::HOST_VISIBLE | vk::MemoryPropertyFlags::HOST_COHERENT;
            let visible = tenant.types.iter().position(|ty| ty.property_flags.contains(visible));
            let visible = visible.context("no memory that can be mapped")? as u32;
            let made = tenant.take(WINDOW, visible)?.context("no buffer that can be mapped")?;
            (tenant.window, tenant.window_memory) = made;
            let flags = vk::MemoryMapFlags::empty();
            tenant.mapped = tenant.device.map_memory(tenant.window_memory, 0, vk::WHOLE_SIZE, flags)?.cast();
            Ok(tenant)
        }
    }

    /// A buffer with memory of its own of a type, if buffers can have it.
    fn take(&mut self, bytes: u64, ty: u32) -> Result<Option<(vk::Buffer, vk::DeviceMemory)>> {
        let usage = vk::BufferUsageFlags::TRANSFER_SRC
            | vk::BufferUsageFlags::TRANSFER_DST
            | vk::BufferUsageFlags::STORAGE_BUFFER;
        let info = vk::BufferCreateInfo::default().size(bytes).usage(usage);
        // SAFETY: the device is live, every info lives until its call returns, buffer and memory are new.
        unsafe {
            let buffer = self.device.create_buffer(&info, None)?;
            let needs = self.device.get_buffer_memory_requirements(buffer);
            if needs.memory_type_bits & (1 << ty) == 0 {
                self.device.destroy_buffer(buffer, None);
                return Ok(None);
            }
            let info = vk::MemoryAllocateInfo::default().allocation_size(needs.size).memory_type_index(ty);
            let memory = self.device.allocate_memory(&info, None)?;
            self.device.bind_buffer_memory(buffer, memory, 0)?;
            self.taken.push((buffer, memory));
            Ok(Some((buffer, memory)))
        }
    }

    /// Runs the commands that `record` records.
    fn run(&self, record: impl FnOnce(&ash::Device, vk::CommandBuffer)) -> Result<()> {
        let device = &self.device;
        let info = vk::CommandPoolCreateInfo::default().queue_family_index(self.family);
        let begin = vk::CommandBufferBeginInfo::default().flags(vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT);
        let barrier = [vk::MemoryBarrier::default()
            .src_access_mask(vk::AccessFlags::MEMORY_WRITE)
            .dst_access_mask(vk::AccessFlags::MEMORY_READ | vk::AccessFlags::HOST_READ)];
        let (from, to) = (vk::PipelineStageFlags::ALL_COMMANDS, vk::PipelineStageFlags::HOST);
        // SAFETY: the device is live and its queue used by this thread alone; everything recorded lives until the wait is over.
        unsafe {
            let pool = device.create_command_pool(&info, None)?;
            let info = vk::CommandBufferAllocateInfo::default().command_pool(pool).command_buffer_count(1);
            let commands = device.allocate_command_buffers(&info)?;
            device.begin_command_buffer(commands[0], &begin)?;
            record(device, commands[0]);
            let none = vk::DependencyFlags::empty();
            device.cmd_pipeline_barrier(commands[0], from, to, none, &barrier, &[], &[]);
            device.end_command_buffer(commands[0])?;
            let fence = device.create_fence(&vk::FenceCreateInfo::default(), None)?;
            let submit = [vk::SubmitInfo::default().command_buffers(&commands)];
            device.queue_submit(self.queue, &submit, fence)?;
            device.wait_for_fences(&[fence], true, u64::MAX)?;
            device.destroy_fence(fence, None);
            device.destroy_command_pool(pool, None);
        }
        Ok(())
    }

    /// Takes `bytes` bytes of memory of every type and fills them.
    pub(crate) fn fill_memory(&mut self, bytes: u64, pattern: u32) -> Result<()> {
        let mut filled = 0;
        for ty in 0..self.types.len() as u32 {
            let Some((buffer, _)) = self.take(bytes, ty)? else { continue };
            // SAFETY: the buffer is live until the commands are done.
            self.run(|device, commands| unsafe {
                device.cmd_fill_buffer(commands, buffer, 0, vk::WHOLE_SIZE, pattern);
            })?;
            filled += 1;
        }
        ensure!(filled > 0, "no type of memory takes a buffer");
        Ok(())
    }

    /// Takes `bytes` bytes of memory of every type and counts those that are not zero.
    pub(crate) fn count_memory(&mut self, bytes: u64) -> Result<u64> {
        let mut found = 0;
        for ty in 0..self.types.len() as u32 {
            let Some((buffer, _)) = self.take(bytes, ty)? else { continue };
            for start in (0..bytes).step_by(WINDOW as usize) {
                let part =
                    [vk::BufferCopy { src_offset: start, dst_offset: 0, size: WINDOW.min(bytes - start) }];
                // SAFETY: both buffers are live until the commands are done and as large as this.
                self.run(|device, commands| unsafe {
                    device.cmd_copy_buffer(commands, buffer, self.window, &part);
                })?;
                found += self.nonzero(part[0].size);
            }
        }
        Ok(found)
    }

    /// Bytes of the window's start that are not zero.
    fn nonzero(&self, bytes: u64) -> u64 {
        // SAFETY: the window is mapped and as large; nothing on the device uses it now.
        let words = unsafe { std::slice::from_raw_parts(self.mapped, bytes as usize / 4) };
        words.iter().flat_map(|word| word.to_ne_bytes()).filter(|byte| *byte != 0).count() as u64
    }

    /// Looks at workgroup memory, after filling it if there is a pattern, and counts the bytes that are not zero.
    pub(crate) fn workgroup(&mut self, pattern: Option<u32>) -> Result<u64> {
        // Each of the GPU's processors must run a workgroup that fills.
        let groups = if pattern.is_some() { 256 } else { 1 };
        self.dispatch(&shader::assemble(pattern)?, &[(0, vk::WHOLE_SIZE)], groups)?;
        Ok(self.nonzero(u64::from(shader::WORDS) * 4))
    }

    /// Reads the part of a buffer after the end of its binding, and counts the bytes that are not zero.
    pub(crate) fn outside(&mut self, pattern: u32) -> Result<u64> {
        // SAFETY: the window is mapped, and nothing on the device uses it now.
        let words = unsafe { std::slice::from_raw_parts_mut(self.mapped, WINDOW as usize / 4) };
        let (answers, bound) = words.split_at_mut(WINDOW as usize / 8);
        answers.fill(0);
        bound.fill(pattern);
        let bound = u64::from(shader::BOUND) * 4;
        self.dispatch(&shader::assemble_outside()?, &[(0, WINDOW / 2), (WINDOW / 2, bound)], 1)?;
        Ok(self.nonzero(u64::from(shader::GROUP) * 4))
    }

    /// Runs `groups` workgroups of a shader with these parts of the window as its storage buffers.
    fn dispatch(&self, code: &[u32], parts: &[(u64, u64)], groups: u32) -> Result<()> {
        let device = &self.device;
        let binding = |number: usize| {
            vk::DescriptorSetLayoutBinding::default()
                .binding(number as u32)
                .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                .descriptor_count(1)
                .stage_flags(vk::ShaderStageFlags::COMPUTE)
        };
        let binding: Vec<_> = (0..parts.len()).map(binding).collect();
        let descriptor_count = parts.len() as u32;
        let sizes = [vk::DescriptorPoolSize { ty: vk::DescriptorType::STORAGE_BUFFER, descriptor_count }];
        let ranges: Vec<_> = parts
            .iter()
            .map(|&(offset, range)| [vk::DescriptorBufferInfo { buffer: self.window, offset, range }])
            .collect();
        // SAFETY: the device is live; every info lives until its call returns; the shader uses the bindings of the layout.
        unsafe {
            let info = vk::DescriptorSetLayoutCreateInfo::default().bindings(&binding);
            let set_layouts = [device.create_descriptor_set_layout(&info, None)?];
            let info = vk::PipelineLayoutCreateInfo::default().set_layouts(&set_layouts);
            let layout = device.create_pipeline_layout(&info, None)?;
            let module =
                device.create_shader_module(&vk::ShaderModuleCreateInfo::default().code(code), None)?;
            let stage = vk::PipelineShaderStageCreateInfo::default()
                .stage(vk::ShaderStageFlags::COMPUTE)
                .module(module)
                .name(c"main");
            let info = [vk::ComputePipelineCreateInfo::default().stage(stage).layout(layout)];
            let made = device.create_compute_pipelines(vk::PipelineCache::null(), &info, None);
            let pipeline = made.map_err(|(_, error)| error)?[0];
            let info = vk::DescriptorPoolCreateInfo::default().max_sets(1).pool_sizes(&sizes);
            let pool = device.create_descriptor_pool(&info, None)?;
            let info =
                vk::DescriptorSetAllocateInfo::default().descriptor_pool(pool).set_layouts(&set_layouts);
            let sets = device.allocate_descriptor_sets(&info)?;
            let write = |(number, range)| {
                vk::WriteDescriptorSet::default()
                    .dst_set(sets[0])
                    .dst_binding(number as u32)
                    .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                    .buffer_info(range)
            };
            let writes: Vec<_> = ranges.iter().map(|range| &range[..]).enumerate().map(write).collect();
            device.update_descriptor_sets(&writes, &[]);
            self.run(|device, commands| {
                let compute = vk::PipelineBindPoint::COMPUTE;
                device.cmd_bind_pipeline(commands, compute, pipeline);
                device.cmd_bind_descriptor_sets(commands, compute, layout, 0, &sets, &[]);
                device.cmd_dispatch(commands, groups, 1, 1);
            })?;
            device.destroy_descriptor_pool(pool, None);
            device.destroy_pipeline(pipeline, None);
            device.destroy_shader_module(module, None);
            device.destroy_pipeline_layout(layout, None);
            device.destroy_descriptor_set_layout(set_layouts[0], None);
        }
        Ok(())
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        // SAFETY: nothing is pending, and no other code uses these handles.
        unsafe {
            for (buffer, memory) in self.taken.drain(..) {
                self.device.destroy_buffer(buffer, None);
                self.device.free_memory(memory, None);
            }
            self.device.destroy_device(None);
            self.instance.destroy_instance(None);
        }
    }
}
