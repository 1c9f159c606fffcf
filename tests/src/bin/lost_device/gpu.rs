//! The device, one object of each kind, and all calls that can report the loss of the device, as an application has them.

#![allow(unsafe_code, clippy::multiple_unsafe_ops_per_block, reason = "an application's calls into Vulkan")]

use anyhow::{Context, Result, ensure};
use ash::vk;

const BYTES: u64 = 256;
const WORD: u32 = 7;

/// Loads the Vulkan loader, which has to outlive the objects that are made with it.
pub(crate) fn loader() -> Result<ash::Entry> {
    // SAFETY: the library is a Vulkan loader.
    unsafe { ash::Entry::load() }.context("there is no Vulkan loader (libvulkan.so.1)")
}

/// An instance with one device and a queue that computes.
pub(crate) struct Gpu {
    instance: ash::Instance,
    physical: vk::PhysicalDevice,
    device: ash::Device,
    queue: vk::Queue,
    family: u32,
}

/// One object of each kind, or two where they are used differently.
pub(crate) struct Objects {
    memory: vk::DeviceMemory,
    mapped: *const u32,
    buffer: vk::Buffer,
    buffer_view: vk::BufferView,
    image: vk::Image,
    image_memory: vk::DeviceMemory,
    image_view: vk::ImageView,
    sampler: vk::Sampler,
    shader: vk::ShaderModule,
    set_layout: vk::DescriptorSetLayout,
    sets: vk::DescriptorPool,
    set: vk::DescriptorSet,
    layout: vk::PipelineLayout,
    cache: vk::PipelineCache,
    pipeline: vk::Pipeline,
    pool: vk::CommandPool,
    commands: vk::CommandBuffer,
    /// Work signals the first fence; the second is never signalled.
    fences: [vk::Fence; 2],
    semaphore: vk::Semaphore,
    timeline: vk::Semaphore,
    event: vk::Event,
    /// Work writes the first query; the second is never written.
    queries: vk::QueryPool,
}

impl Gpu {
    /// Opens the first device.
    pub(crate) fn open(entry: &ash::Entry) -> Result<Self> {
        let application = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_3);
        let info = vk::InstanceCreateInfo::default().application_info(&application);
        let mut features12 = vk::PhysicalDeviceVulkan12Features::default()
            .timeline_semaphore(true)
            .buffer_device_address(true);
        let mut features13 = vk::PhysicalDeviceVulkan13Features::default().maintenance4(true);
        // SAFETY: every info lives until its call returns; handles are of this instance. The device has these features.
        unsafe {
            let instance = entry.create_instance(&info, None).context("vkCreateInstance")?;
            let physical = *instance.enumerate_physical_devices()?.first().context("no device")?;
            let families = instance.get_physical_device_queue_family_properties(physical);
            let computes = |family: &vk::QueueFamilyProperties| {
                family.queue_flags.contains(vk::QueueFlags::COMPUTE) && family.timestamp_valid_bits > 0
            };
            let family = families.iter().position(computes).context("no queue that computes")? as u32;
            let queues =
                [vk::DeviceQueueCreateInfo::default().queue_family_index(family).queue_priorities(&[1.0])];
            let info = vk::DeviceCreateInfo::default()
                .queue_create_infos(&queues)
                .push_next(&mut features12)
                .push_next(&mut features13);
            let device = instance.create_device(physical, &info, None).context("vkCreateDevice")?;
            let queue = device.get_device_queue(family, 0);
            Ok(Self { instance, physical, device, queue, family })
        }
    }

    /// Makes everything that can be destroyed.
    pub(crate) fn make(&self) -> Result<Objects> {
        let code = tests::looping_shader::assemble()?;
        let device = &self.device;
        // SAFETY: the device is live; every info lives until its call returns; handles are new and used as the specification requires.
        unsafe {
            let (buffer, memory) = self.buffer()?;
            let mapped = device.map_memory(memory, 0, vk::WHOLE_SIZE, vk::MemoryMapFlags::empty())?.cast();
            let view = vk::BufferViewCreateInfo::default().buffer(buffer).format(vk::Format::R32_UINT);
            let (image, image_memory) = self.image()?;
            let range = vk::ImageSubresourceRange::default()
                .aspect_mask(vk::ImageAspectFlags::COLOR)
                .level_count(1)
                .layer_count(1);
            let image_view = vk::ImageViewCreateInfo::default()
                .image(image)
                .view_type(vk::ImageViewType::TYPE_2D)
                .format(vk::Format::R32_UINT)
                .subresource_range(range);
            let binding = [vk::DescriptorSetLayoutBinding::default()
                .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                .descriptor_count(1)
                .stage_flags(vk::ShaderStageFlags::COMPUTE)];
            let info = vk::DescriptorSetLayoutCreateInfo::default().bindings(&binding);
            let set_layout = device.create_descriptor_set_layout(&info, None)?;
            let layouts = [set_layout];
            let sizes = [vk::DescriptorPoolSize::default()
                .ty(vk::DescriptorType::STORAGE_BUFFER)
                .descriptor_count(1)];
            let info = vk::DescriptorPoolCreateInfo::default()
                .flags(vk::DescriptorPoolCreateFlags::FREE_DESCRIPTOR_SET)
                .max_sets(1)
                .pool_sizes(&sizes);
            let sets = device.create_descriptor_pool(&info, None)?;
            let info = vk::DescriptorSetAllocateInfo::default().descriptor_pool(sets).set_layouts(&layouts);
            let set = device.allocate_descriptor_sets(&info)?[0];
            let info = vk::PipelineLayoutCreateInfo::default().set_layouts(&layouts);
            let layout = device.create_pipeline_layout(&info, None)?;
            let shader =
                device.create_shader_module(&vk::ShaderModuleCreateInfo::default().code(&code), None)?;
            let stage = vk::PipelineShaderStageCreateInfo::default()
                .stage(vk::ShaderStageFlags::COMPUTE)
                .module(shader)
                .name(c"main");
            let cache = device.create_pipeline_cache(&vk::PipelineCacheCreateInfo::default(), None)?;
            let info = [vk::ComputePipelineCreateInfo::default().stage(stage).layout(layout)];
            let pipelines = device.create_compute_pipelines(cache, &info, None);
            let pipeline = pipelines.map_err(|(_, error)| error).context("vkCreateComputePipelines")?[0];
            let info = vk::CommandPoolCreateInfo::default().queue_family_index(self.family);
            let pool = device.create_command_pool(&info, None)?;
            let info = vk::CommandBufferAllocateInfo::default().command_pool(pool).command_buffer_count(1);
            let commands = device.allocate_command_buffers(&info)?[0];
            let fence = || device.create_fence(&vk::FenceCreateInfo::default(), None);
            let mut kind = vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
            let timeline = vk::SemaphoreCreateInfo::default().push_next(&mut kind);
            let queries =
                vk::QueryPoolCreateInfo::default().query_type(vk::QueryType::TIMESTAMP).query_count(2);
            Ok(Objects {
                memory,
                mapped,
                buffer,
                buffer_view: device.create_buffer_view(&view.range(vk::WHOLE_SIZE), None)?,
                image,
                image_memory,
                image_view: device.create_image_view(&image_view, None)?,
                sampler: device.create_sampler(&vk::SamplerCreateInfo::default(), None)?,
                shader,
                set_layout,
                sets,
                set,
                layout,
                cache,
                pipeline,
                pool,
                commands,
                fences: [fence()?, fence()?],
                semaphore: device.create_semaphore(&vk::SemaphoreCreateInfo::default(), None)?,
                timeline: device.create_semaphore(&timeline, None)?,
                event: device.create_event(&vk::EventCreateInfo::default(), None)?,
                queries: device.create_query_pool(&queries, None)?,
            })
        }
    }

    /// A buffer that has an address, with memory that can be mapped.
    fn buffer(&self) -> Result<(vk::Buffer, vk::DeviceMemory)> {
        let usage = vk::BufferUsageFlags::TRANSFER_DST
            | vk::BufferUsageFlags::UNIFORM_TEXEL_BUFFER
            | vk::BufferUsageFlags::SHADER_DEVICE_ADDRESS;
        let info = vk::BufferCreateInfo::default().size(BYTES).usage(usage);
        let visible = vk::MemoryPropertyFlags::HOST_VISIBLE | vk::MemoryPropertyFlags::HOST_COHERENT;
        // SAFETY: the device is live; every info lives until its call returns; handles are new.
        unsafe {
            let buffer = self.device.create_buffer(&info, None)?;
            let memory = self.allocate(self.device.get_buffer_memory_requirements(buffer), visible)?;
            self.device.bind_buffer_memory(buffer, memory, 0)?;
            Ok((buffer, memory))
        }
    }

    fn image(&self) -> Result<(vk::Image, vk::DeviceMemory)> {
        let info = vk::ImageCreateInfo::default()
            .image_type(vk::ImageType::TYPE_2D)
            .format(vk::Format::R32_UINT)
            .extent(vk::Extent3D { width: 8, height: 8, depth: 1 })
            .mip_levels(1)
            .array_layers(1)
            .samples(vk::SampleCountFlags::TYPE_1)
            .usage(vk::ImageUsageFlags::STORAGE);
        // SAFETY: as above.
        unsafe {
            let image = self.device.create_image(&info, None)?;
            let needs = self.device.get_image_memory_requirements(image);
            let memory = self.allocate(needs, vk::MemoryPropertyFlags::empty())?;
            self.device.bind_image_memory(image, memory, 0)?;
            Ok((image, memory))
        }
    }

    fn allocate(
        &self,
        needs: vk::MemoryRequirements,
        flags: vk::MemoryPropertyFlags,
    ) -> Result<vk::DeviceMemory> {
        // SAFETY: instance and device are live; every info lives until its call returns.
        unsafe {
            let memory = self.instance.get_physical_device_memory_properties(self.physical);
            let mut types = memory.memory_types_as_slice().iter().enumerate();
            let fits = |(at, ty): &(usize, &vk::MemoryType)| {
                needs.memory_type_bits & (1 << at) != 0 && ty.property_flags.contains(flags)
            };
            let (ty, _) = types.find(fits).context("no memory of the kind that is needed")?;
            let mut addressed =
                vk::MemoryAllocateFlagsInfo::default().flags(vk::MemoryAllocateFlags::DEVICE_ADDRESS);
            let info = vk::MemoryAllocateInfo::default()
                .allocation_size(needs.size)
                .memory_type_index(ty as u32)
                .push_next(&mut addressed);
            Ok(self.device.allocate_memory(&info, None)?)
        }
    }

    /// Work that signals the first fence, writes the first query, and brings the timeline to 1.
    pub(crate) fn compute(&self, objects: &Objects) -> Result<()> {
        let device = &self.device;
        let (timelines, values, commands) = ([objects.timeline], [1], [objects.commands]);
        let mut points = vk::TimelineSemaphoreSubmitInfo::default().signal_semaphore_values(&values);
        let work = vk::SubmitInfo::default().command_buffers(&commands).signal_semaphores(&timelines);
        // SAFETY: the objects are of this device and in no use; every info lives until its call returns; 64 words are mapped.
        unsafe {
            device.begin_command_buffer(objects.commands, &vk::CommandBufferBeginInfo::default())?;
            device.cmd_reset_query_pool(objects.commands, objects.queries, 0, 2);
            device.cmd_fill_buffer(objects.commands, objects.buffer, 0, BYTES, WORD);
            let stage = vk::PipelineStageFlags::BOTTOM_OF_PIPE;
            device.cmd_write_timestamp(objects.commands, stage, objects.queries, 0);
            device.end_command_buffer(objects.commands)?;
            device.queue_submit(self.queue, &[work.push_next(&mut points)], objects.fences[0])?;
            device.wait_for_fences(&objects.fences[..1], true, u64::MAX)?;
            let words = std::slice::from_raw_parts(objects.mapped, BYTES as usize / 4);
            ensure!(words.iter().all(|word| *word == WORD), "{words:?}");
            let addresses = self.addresses(objects);
            ensure!(addresses[0] != 0, "{addresses:?}");
        }
        Ok(())
    }

    /// Waits for a fence that is never signalled.
    pub(crate) fn wait_until_lost(&self, objects: &Objects) -> Result<()> {
        // SAFETY: the fence is live.
        lost("a wait", unsafe { self.device.wait_for_fences(&objects.fences[1..], true, u64::MAX) })
    }

    /// Makes all calls that can report a lost device, submissions among them.
    pub(crate) fn ask(&self, objects: &Objects) -> Result<()> {
        let device = &self.device;
        let (timelines, commands) = ([objects.timeline], [objects.commands]);
        let work = [vk::SubmitInfo::default().command_buffers(&commands)];
        let point = vk::SemaphoreWaitInfo::default().semaphores(&timelines).values(&[2]);
        let binary = [objects.semaphore];
        let signal = [vk::SubmitInfo::default().signal_semaphores(&binary)];
        let mut times = [0_u64; 2];
        let waiting = vk::QueryResultFlags::WAIT;
        let at_once = vk::QueryResultFlags::empty();
        // SAFETY: as above; the commands are not pending.
        unsafe {
            lost("vkQueueSubmit", device.queue_submit(self.queue, &work, objects.fences[1]))?;
            lost("vkQueueSubmit of a signal", device.queue_submit(self.queue, &signal, vk::Fence::null()))?;
            lost("vkQueueSubmit of nothing", device.queue_submit(self.queue, &[], vk::Fence::null()))?;
            lost("vkQueueSubmit of a fence", device.queue_submit(self.queue, &[], objects.fences[1]))?;
            lost("vkQueueWaitIdle", device.queue_wait_idle(self.queue))?;
            lost("vkDeviceWaitIdle", device.device_wait_idle())?;
            lost("vkGetFenceStatus", device.get_fence_status(objects.fences[1]))?;
            lost("vkWaitForFences", device.wait_for_fences(&objects.fences, true, u64::MAX))?;
            lost("vkWaitForFences at once", device.wait_for_fences(&objects.fences[1..], false, 0))?;
            let counter = device.get_semaphore_counter_value(objects.timeline);
            lost("vkGetSemaphoreCounterValue", counter)?;
            lost("vkWaitSemaphores", device.wait_semaphores(&point, u64::MAX))?;
            lost("vkWaitSemaphores at once", device.wait_semaphores(&point, 0))?;
            lost("vkGetEventStatus", device.get_event_status(objects.event))?;
            let results = |times: &mut [u64], flags| {
                device.get_query_pool_results(objects.queries, 1, &mut times[1..], flags)
            };
            lost("vkGetQueryPoolResults", results(&mut times, at_once))?;
            lost("vkGetQueryPoolResults that waits", results(&mut times, waiting))?;
        }
        Ok(())
    }

    /// Checks that calls without a result leave no value in their outputs that looks like an answer.
    pub(crate) fn look_at_outputs(&self, objects: &Objects) -> Result<()> {
        let info = vk::BufferCreateInfo::default().size(BYTES).usage(vk::BufferUsageFlags::INDIRECT_BUFFER);
        let info = vk::DeviceBufferMemoryRequirements::default().create_info(&info);
        let unknown =
            vk::MemoryRequirements { size: u64::MAX, alignment: u64::MAX, memory_type_bits: u32::MAX };
        let mut needs = vk::MemoryRequirements2::default().memory_requirements(unknown);
        let unknown = vk::FormatProperties {
            linear_tiling_features: vk::FormatFeatureFlags::from_raw(u32::MAX),
            ..Default::default()
        };
        let mut format = vk::FormatProperties2::default().format_properties(unknown);
        // SAFETY: as above.
        let addresses = unsafe {
            self.device.get_device_buffer_memory_requirements(&info, &mut needs);
            let asked = vk::Format::E5B9G9R9_UFLOAT_PACK32;
            self.instance.get_physical_device_format_properties2(self.physical, asked, &mut format);
            self.addresses(objects)
        };
        ensure!(addresses == [0; 3], "addresses {addresses:x?}");
        let needs = needs.memory_requirements;
        let needs = (needs.size, needs.alignment, needs.memory_type_bits);
        ensure!(needs == (0, 0, 0), "requirements {needs:?}");
        let features = format.format_properties.linear_tiling_features.as_raw();
        ensure!(features == 0, "features of a format {features:x}");
        Ok(())
    }

    /// The address of the buffer, and the opaque capture addresses of it and of its memory.
    fn addresses(&self, objects: &Objects) -> [u64; 3] {
        let buffer = vk::BufferDeviceAddressInfo::default().buffer(objects.buffer);
        let memory = vk::DeviceMemoryOpaqueCaptureAddressInfo::default().memory(objects.memory);
        // SAFETY: both are live, and the feature is enabled.
        unsafe {
            [
                self.device.get_buffer_device_address(&buffer),
                self.device.get_buffer_opaque_capture_address(&buffer),
                self.device.get_device_memory_opaque_capture_address(&memory),
            ]
        }
    }

    /// Destroys everything, as a program does that continues to run.
    pub(crate) fn destroy(self, objects: Objects) {
        let device = &self.device;
        // SAFETY: nothing is pending, whether it was waited for or lost, and nothing is used after this.
        unsafe {
            device.destroy_query_pool(objects.queries, None);
            device.destroy_event(objects.event, None);
            for semaphore in [objects.timeline, objects.semaphore] {
                device.destroy_semaphore(semaphore, None);
            }
            for fence in objects.fences {
                device.destroy_fence(fence, None);
            }
            device.free_command_buffers(objects.pool, &[objects.commands]);
            device.destroy_command_pool(objects.pool, None);
            device.destroy_pipeline(objects.pipeline, None);
            device.destroy_pipeline_cache(objects.cache, None);
            device.destroy_pipeline_layout(objects.layout, None);
            // The call always succeeds, as the specification says.
            let _ = device.free_descriptor_sets(objects.sets, &[objects.set]);
            device.destroy_descriptor_pool(objects.sets, None);
            device.destroy_descriptor_set_layout(objects.set_layout, None);
            device.destroy_shader_module(objects.shader, None);
            device.destroy_sampler(objects.sampler, None);
            device.destroy_image_view(objects.image_view, None);
            device.destroy_image(objects.image, None);
            device.free_memory(objects.image_memory, None);
            device.destroy_buffer_view(objects.buffer_view, None);
            device.destroy_buffer(objects.buffer, None);
            device.unmap_memory(objects.memory);
            device.free_memory(objects.memory, None);
            device.destroy_device(None);
            self.instance.destroy_instance(None);
        }
    }
}

fn lost<T: std::fmt::Debug>(call: &str, result: Result<T, vk::Result>) -> Result<()> {
    ensure!(matches!(result, Err(vk::Result::ERROR_DEVICE_LOST)), "{call}: {result:?}");
    Ok(())
}
