//! A device, a kernel and a number of submissions of it, as an application makes them. Handles end with the process.

#![allow(unsafe_code, clippy::multiple_unsafe_ops_per_block, reason = "an application's calls into Vulkan")]

use anyhow::{Context, Result, ensure};
use ash::vk;
use tests::looping_shader as shader;

/// Submissions of one kernel, each with a fence.
pub(crate) struct Lane {
    device: ash::Device,
    queue: vk::Queue,
    slots: Vec<(Option<vk::CommandBuffer>, vk::Fence)>,
    _instance: ash::Instance,
    _entry: ash::Entry,
}

impl Lane {
    /// Prepares `slots` submissions on the first queue that computes.
    pub(crate) fn open(words: u32, steps: u32, slots: u32, empty: bool, dispatches: u32) -> Result<Self> {
        let application = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_1);
        let info = vk::InstanceCreateInfo::default().application_info(&application);
        // SAFETY: the library is a Vulkan loader; infos live until their calls return, here and below.
        let (entry, instance) = unsafe {
            let entry = ash::Entry::load()?;
            let instance = entry.create_instance(&info, None)?;
            (entry, instance)
        };
        // SAFETY: the instance is live, and the physical device belongs to it.
        let (physical, families, memory) = unsafe {
            let physical = *instance.enumerate_physical_devices()?.first().context("no device")?;
            let families = instance.get_physical_device_queue_family_properties(physical);
            (physical, families, instance.get_physical_device_memory_properties(physical))
        };
        let computes =
            |family: &vk::QueueFamilyProperties| family.queue_flags.contains(vk::QueueFlags::COMPUTE);
        let family = families.iter().position(computes).context("no queue that computes")? as u32;
        let queues =
            [vk::DeviceQueueCreateInfo::default().queue_family_index(family).queue_priorities(&[1.0])];
        let info = vk::DeviceCreateInfo::default().queue_create_infos(&queues);
        // SAFETY: the physical device is live and has this queue.
        let (device, queue) = unsafe {
            let device = instance.create_device(physical, &info, None)?;
            let queue = device.get_device_queue(family, 0);
            (device, queue)
        };
        let kernel = Kernel::new(&device, &memory, words, steps)?;
        // SAFETY: the device is live.
        let pool = unsafe {
            device
                .create_command_pool(&vk::CommandPoolCreateInfo::default().queue_family_index(family), None)?
        };
        let slot = |_| -> Result<_> {
            let commands = (!empty).then(|| kernel.record(&device, pool, dispatches)).transpose()?;
            // SAFETY: the device is live.
            Ok((commands, unsafe { device.create_fence(&vk::FenceCreateInfo::default(), None) }?))
        };
        let slots = (0..slots).map(slot).collect::<Result<_>>()?;
        Ok(Self { device, queue, slots, _instance: instance, _entry: entry })
    }

    /// Submits the work of a slot, whose last submission must be complete.
    pub(crate) fn submit(&self, slot: u32) -> Result<()> {
        let (commands, fence) = self.slots[slot as usize];
        let info = [vk::SubmitInfo::default().command_buffers(commands.as_slice())];
        // SAFETY: queue and fence are used by this thread alone; the commands are recorded and not pending.
        unsafe { self.device.queue_submit(self.queue, &info, fence) }.context("submitting")
    }

    /// Waits for the last submission of a slot, and resets its fence.
    pub(crate) fn wait(&self, slot: u32) -> Result<()> {
        let fences = [self.slots[slot as usize].1];
        // SAFETY: the fence is live, and reset when nothing is pending that signals it.
        unsafe {
            self.device.wait_for_fences(&fences, true, u64::MAX).context("waiting")?;
            self.device.reset_fences(&fences).context("resetting")
        }
    }
}

struct Kernel {
    pipeline: vk::Pipeline,
    layout: vk::PipelineLayout,
    set: vk::DescriptorSet,
    groups: u32,
}

impl Kernel {
    fn new(
        device: &ash::Device,
        memory: &vk::PhysicalDeviceMemoryProperties,
        words: u32,
        steps: u32,
    ) -> Result<Self> {
        let size = u64::from(words) * 4;
        let binding = [vk::DescriptorSetLayoutBinding::default()
            .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
            .descriptor_count(1)
            .stage_flags(vk::ShaderStageFlags::COMPUTE)];
        let sizes = [vk::DescriptorPoolSize { ty: vk::DescriptorType::STORAGE_BUFFER, descriptor_count: 1 }];
        let code = shader::assemble()?;
        let data: Vec<u8> = [3u32, steps].iter().flat_map(|word| word.to_ne_bytes()).collect();
        let entry = |id: u32| vk::SpecializationMapEntry::default().constant_id(id).offset(id * 4).size(4);
        let entries = [entry(shader::MULTIPLIER), entry(shader::STEPS)];
        let constants = vk::SpecializationInfo::default().map_entries(&entries).data(&data);
        // SAFETY: the device is live; every info lives until its call returns; the shader uses the bindings of the layout.
        unsafe {
            let usage = vk::BufferUsageFlags::STORAGE_BUFFER;
            let buffer =
                device.create_buffer(&vk::BufferCreateInfo::default().size(size).usage(usage), None)?;
            let needs = device.get_buffer_memory_requirements(buffer);
            let fits = |index: &usize| needs.memory_type_bits & (1 << index) != 0;
            let local = |index: &usize| {
                memory.memory_types[*index].property_flags.contains(vk::MemoryPropertyFlags::DEVICE_LOCAL)
            };
            let types = || (0..memory.memory_type_count as usize).filter(fits);
            let ty = types().find(local).or_else(|| types().next()).context("no memory")? as u32;
            let info = vk::MemoryAllocateInfo::default().allocation_size(needs.size).memory_type_index(ty);
            device.bind_buffer_memory(buffer, device.allocate_memory(&info, None)?, 0)?;
            let info = vk::DescriptorSetLayoutCreateInfo::default().bindings(&binding);
            let layouts = [device.create_descriptor_set_layout(&info, None)?];
            let info = vk::PipelineLayoutCreateInfo::default().set_layouts(&layouts);
            let layout = device.create_pipeline_layout(&info, None)?;
            let info = vk::DescriptorPoolCreateInfo::default().max_sets(1).pool_sizes(&sizes);
            let pool = device.create_descriptor_pool(&info, None)?;
            let info = vk::DescriptorSetAllocateInfo::default().descriptor_pool(pool).set_layouts(&layouts);
            let set = device.allocate_descriptor_sets(&info)?[0];
            let range = [vk::DescriptorBufferInfo { buffer, offset: 0, range: vk::WHOLE_SIZE }];
            let write = vk::WriteDescriptorSet::default()
                .dst_set(set)
                .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                .buffer_info(&range);
            device.update_descriptor_sets(&[write], &[]);
            let module =
                device.create_shader_module(&vk::ShaderModuleCreateInfo::default().code(&code), None)?;
            let stage = vk::PipelineShaderStageCreateInfo::default()
                .stage(vk::ShaderStageFlags::COMPUTE)
                .module(module)
                .name(c"main")
                .specialization_info(&constants);
            let info = [vk::ComputePipelineCreateInfo::default().stage(stage).layout(layout)];
            let made = device.create_compute_pipelines(vk::PipelineCache::null(), &info, None);
            let pipeline = made.map_err(|(_, error)| error).context("compiling")?[0];
            ensure!(words.is_multiple_of(shader::GROUP), "whole workgroups only");
            Ok(Self { pipeline, layout, set, groups: words / shader::GROUP })
        }
    }

    fn record(
        &self,
        device: &ash::Device,
        pool: vk::CommandPool,
        dispatches: u32,
    ) -> Result<vk::CommandBuffer> {
        let info = vk::CommandBufferAllocateInfo::default().command_pool(pool).command_buffer_count(1);
        // SAFETY: device and pool are live and used by this thread alone; pipeline, layout and set fit each other.
        unsafe {
            let commands = device.allocate_command_buffers(&info)?[0];
            device.begin_command_buffer(commands, &vk::CommandBufferBeginInfo::default())?;
            device.cmd_bind_pipeline(commands, vk::PipelineBindPoint::COMPUTE, self.pipeline);
            let point = vk::PipelineBindPoint::COMPUTE;
            device.cmd_bind_descriptor_sets(commands, point, self.layout, 0, &[self.set], &[]);
            for _ in 0..dispatches {
                device.cmd_dispatch(commands, self.groups, 1, 1);
            }
            device.end_command_buffer(commands)?;
            Ok(commands)
        }
    }
}
