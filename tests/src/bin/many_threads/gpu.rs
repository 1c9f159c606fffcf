//! Devices and the objects of a lane, as an application makes them.
//!
//! Handles are made and destroyed in this file only. An object outlives what is made from it: a pipeline and a lane hold their
//! `Gpu`, a `Gpu` its instance. One thread at a time uses each object; a lock guards the queues.

#![allow(unsafe_code, clippy::multiple_unsafe_ops_per_block, reason = "an application's calls into Vulkan")]

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use ash::vk;

use tests::looping_shader as shader;

/// One logical device with every queue that can compute.
pub(crate) struct Gpu {
    device: ash::Device,
    queues: Vec<(u32, Mutex<vk::Queue>)>,
    memory_type: u32,
    set_layout: vk::DescriptorSetLayout,
    layout: vk::PipelineLayout,
    shader: vk::ShaderModule,
    cache: vk::PipelineCache,
    _instance: Arc<Instance>,
}

struct Instance {
    functions: ash::Instance,
    _entry: ash::Entry,
}

/// A compiled program.
pub(crate) struct Pipeline {
    handle: vk::Pipeline,
    gpu: Arc<Gpu>,
}

/// The objects that one thread needs to compute: pools, a mapped buffer, and a fence or semaphore to wait for.
pub(crate) struct Lane {
    gpu: Arc<Gpu>,
    queue: usize,
    words: u32,
    buffer: vk::Buffer,
    memory: vk::DeviceMemory,
    mapped: *mut u32,
    descriptors: vk::DescriptorPool,
    set: vk::DescriptorSet,
    commands: vk::CommandPool,
    recording: vk::CommandBuffer,
    fence: vk::Fence,
    timeline: vk::Semaphore,
    submitted: u64,
    polls: bool,
}

impl Gpu {
    /// Makes an instance and `count` devices: of its first physical device, or of all in turn.
    pub(crate) fn open_many(count: u32, all: bool) -> Result<Vec<Arc<Self>>> {
        let application = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_2);
        let info = vk::InstanceCreateInfo::default().application_info(&application);
        // SAFETY: the library is a Vulkan loader; the info lives until the call returns.
        let (entry, functions) = unsafe {
            let entry = ash::Entry::load()?;
            let functions = entry.create_instance(&info, None)?;
            (entry, functions)
        };
        let instance = Arc::new(Instance { functions, _entry: entry });
        (0..count as usize)
            .map(|number| Self::open(&instance, if all { number } else { 0 }).map(Arc::new))
            .collect()
    }

    fn open(instance: &Arc<Instance>, number: usize) -> Result<Self> {
        let functions = &instance.functions;
        // SAFETY: the instance is live, and the physical device belongs to it.
        let (physical, families, memory) = unsafe {
            let physical = functions.enumerate_physical_devices()?;
            let physical = *physical.iter().cycle().nth(number).context("no device")?;
            let families = functions.get_physical_device_queue_family_properties(physical);
            (physical, families, functions.get_physical_device_memory_properties(physical))
        };
        let computing = families
            .iter()
            .enumerate()
            .filter(|(_, family)| family.queue_flags.contains(vk::QueueFlags::COMPUTE));
        let computing: Vec<(u32, u32)> =
            computing.map(|(index, family)| (index as u32, family.queue_count)).collect();
        let priorities =
            vec![1.0; computing.iter().map(|&(_, count)| count as usize).max().unwrap_or_default()];
        let queues: Vec<_> = computing
            .iter()
            .map(|&(family, count)| {
                vk::DeviceQueueCreateInfo::default()
                    .queue_family_index(family)
                    .queue_priorities(&priorities[..count as usize])
            })
            .collect();
        let mut features = vk::PhysicalDeviceVulkan12Features::default().timeline_semaphore(true);
        let info = vk::DeviceCreateInfo::default().queue_create_infos(&queues).push_next(&mut features);
        // SAFETY: the physical device belongs to the instance; all that the info names lives until the call returns.
        let device = unsafe { functions.create_device(physical, &info, None) }?;
        let numbers =
            computing.iter().flat_map(|&(family, count)| (0..count).map(move |number| (family, number)));
        // SAFETY: these queues were just created.
        let queues = numbers
            .map(|(family, number)| (family, Mutex::new(unsafe { device.get_device_queue(family, number) })));
        let queues = queues.collect();
        let visible = vk::MemoryPropertyFlags::HOST_VISIBLE | vk::MemoryPropertyFlags::HOST_COHERENT;
        let memory_type =
            memory.memory_types_as_slice().iter().position(|ty| ty.property_flags.contains(visible));

        let binding = [vk::DescriptorSetLayoutBinding::default()
            .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
            .descriptor_count(1)
            .stage_flags(vk::ShaderStageFlags::COMPUTE)];
        let code = shader::assemble()?;
        // SAFETY: the device is live; every info lives until its call returns; the shader is valid and uses the bindings of the layout.
        let (set_layout, layout, shader, cache) = unsafe {
            let info = vk::DescriptorSetLayoutCreateInfo::default().bindings(&binding);
            let set_layout = device.create_descriptor_set_layout(&info, None)?;
            let layouts = [set_layout];
            let info = vk::PipelineLayoutCreateInfo::default().set_layouts(&layouts);
            let layout = device.create_pipeline_layout(&info, None)?;
            let info = vk::ShaderModuleCreateInfo::default().code(&code);
            let shader = device.create_shader_module(&info, None)?;
            (
                set_layout,
                layout,
                shader,
                device.create_pipeline_cache(&vk::PipelineCacheCreateInfo::default(), None)?,
            )
        };
        let memory_type = memory_type.context("no host-visible memory")? as u32;
        let _instance = Arc::clone(instance);
        Ok(Self { device, queues, memory_type, set_layout, layout, shader, cache, _instance })
    }

    /// The number of queues that the device has.
    pub(crate) fn queues(&self) -> usize {
        self.queues.len()
    }

    /// Compiles the program with these constants.
    pub(crate) fn compile(self: &Arc<Self>, multiplier: u32, steps: u32) -> Result<Pipeline> {
        let data: Vec<u8> = [multiplier, steps].iter().flat_map(|word| word.to_ne_bytes()).collect();
        let entry = |id: u32| vk::SpecializationMapEntry::default().constant_id(id).offset(id * 4).size(4);
        let entries = [entry(shader::MULTIPLIER), entry(shader::STEPS)];
        let constants = vk::SpecializationInfo::default().map_entries(&entries).data(&data);
        let stage = vk::PipelineShaderStageCreateInfo::default()
            .stage(vk::ShaderStageFlags::COMPUTE)
            .module(self.shader)
            .name(c"main")
            .specialization_info(&constants);
        let info = [vk::ComputePipelineCreateInfo::default().stage(stage).layout(self.layout)];
        // SAFETY: the device and all that the info names are live; a pipeline cache may be used by several threads.
        let made = unsafe { self.device.create_compute_pipelines(self.cache, &info, None) };
        let handle = made.map_err(|(_, error)| error).context("compiling")?[0];
        Ok(Pipeline { handle, gpu: Arc::clone(self) })
    }
}

impl Lane {
    /// Makes all that lane `number` needs to compute this many words. Its commands go to the queue of that number, modulo their count.
    pub(crate) fn new(gpu: &Arc<Gpu>, number: u32, words: u32, polls: bool) -> Result<Self> {
        let (device, queue) = (&gpu.device, number as usize % gpu.queues.len());
        let bytes = u64::from(words) * 4;
        let sizes = [vk::DescriptorPoolSize { ty: vk::DescriptorType::STORAGE_BUFFER, descriptor_count: 1 }];
        let layouts = [gpu.set_layout];
        // SAFETY: the device is live; every info lives until its call returns; buffer, memory and set are used here only.
        unsafe {
            let info =
                vk::BufferCreateInfo::default().size(bytes).usage(vk::BufferUsageFlags::STORAGE_BUFFER);
            let buffer = device.create_buffer(&info, None)?;
            let needed = device.get_buffer_memory_requirements(buffer);
            anyhow::ensure!(
                needed.memory_type_bits & (1 << gpu.memory_type) != 0,
                "the buffer cannot be mapped"
            );
            let info = vk::MemoryAllocateInfo::default()
                .allocation_size(needed.size)
                .memory_type_index(gpu.memory_type);
            let memory = device.allocate_memory(&info, None)?;
            device.bind_buffer_memory(buffer, memory, 0)?;
            let mapped: *mut u32 =
                device.map_memory(memory, 0, vk::WHOLE_SIZE, vk::MemoryMapFlags::empty())?.cast();
            let info = vk::DescriptorPoolCreateInfo::default().max_sets(1).pool_sizes(&sizes);
            let descriptors = device.create_descriptor_pool(&info, None)?;
            let info =
                vk::DescriptorSetAllocateInfo::default().descriptor_pool(descriptors).set_layouts(&layouts);
            let set = device.allocate_descriptor_sets(&info)?[0];
            let range = [vk::DescriptorBufferInfo { buffer, offset: 0, range: vk::WHOLE_SIZE }];
            let write = vk::WriteDescriptorSet::default()
                .dst_set(set)
                .descriptor_type(vk::DescriptorType::STORAGE_BUFFER);
            device.update_descriptor_sets(&[write.buffer_info(&range)], &[]);
            let info = vk::CommandPoolCreateInfo::default().queue_family_index(gpu.queues[queue].0);
            let commands = device.create_command_pool(&info, None)?;
            let info =
                vk::CommandBufferAllocateInfo::default().command_pool(commands).command_buffer_count(1);
            let recording = device.allocate_command_buffers(&info)?[0];
            let fence = device.create_fence(&vk::FenceCreateInfo::default(), None)?;
            let mut ty = vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
            let timeline =
                device.create_semaphore(&vk::SemaphoreCreateInfo::default().push_next(&mut ty), None)?;
            let gpu = Arc::clone(gpu);
            Ok(Self {
                gpu,
                queue,
                words,
                buffer,
                memory,
                mapped,
                descriptors,
                set,
                commands,
                recording,
                fence,
                timeline,
                submitted: 0,
                polls,
            })
        }
    }

    /// Runs the program on `words` and returns the result.
    pub(crate) fn run(&mut self, pipeline: &Pipeline, words: &[u32]) -> Result<Vec<u32>> {
        // SAFETY: the mapping has room for `self.words` words, and nothing on the device uses them now.
        unsafe { self.mapped.copy_from_nonoverlapping(words.as_ptr(), words.len().min(self.words as usize)) };
        self.record(pipeline)?;
        self.submit()?;
        self.wait()?;
        // SAFETY: as above; the recorded barrier and the wait make the device's writes visible.
        Ok(unsafe { std::slice::from_raw_parts(self.mapped, self.words as usize) }.to_vec())
    }

    fn record(&self, pipeline: &Pipeline) -> Result<()> {
        let (device, recording) = (&self.gpu.device, self.recording);
        let begin = vk::CommandBufferBeginInfo::default().flags(vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT);
        let barrier = [vk::MemoryBarrier::default()
            .src_access_mask(vk::AccessFlags::SHADER_WRITE)
            .dst_access_mask(vk::AccessFlags::HOST_READ)];
        // SAFETY: the pool is this thread's and nothing of it is pending; pipeline, layout and set fit each other.
        unsafe {
            device.reset_command_pool(self.commands, vk::CommandPoolResetFlags::empty())?;
            device.begin_command_buffer(recording, &begin)?;
            device.cmd_bind_pipeline(recording, vk::PipelineBindPoint::COMPUTE, pipeline.handle);
            device.cmd_bind_descriptor_sets(
                recording,
                vk::PipelineBindPoint::COMPUTE,
                self.gpu.layout,
                0,
                &[self.set],
                &[],
            );
            device.cmd_dispatch(recording, self.words / shader::GROUP, 1, 1);
            let (from, to) = (vk::PipelineStageFlags::COMPUTE_SHADER, vk::PipelineStageFlags::HOST);
            device.cmd_pipeline_barrier(
                recording,
                from,
                to,
                vk::DependencyFlags::empty(),
                &barrier,
                &[],
                &[],
            );
            device.end_command_buffer(recording)?;
        }
        Ok(())
    }

    /// Submits with both a fence and a point of the timeline; every other round waits for the point first.
    fn submit(&mut self) -> Result<()> {
        self.submitted += 1;
        let (commands, signalled, points) = ([self.recording], [self.timeline], [self.submitted]);
        let mut timeline = vk::TimelineSemaphoreSubmitInfo::default().signal_semaphore_values(&points);
        let info = [vk::SubmitInfo::default()
            .command_buffers(&commands)
            .signal_semaphores(&signalled)
            .push_next(&mut timeline)];
        let queue = self.gpu.queues[self.queue].1.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the queue is locked; the commands are recorded and not pending, the fence is not signalled.
        unsafe { self.gpu.device.queue_submit(*queue, &info, self.fence) }.context("submitting")
    }

    fn wait(&self) -> Result<()> {
        let (device, semaphores, points, fences) =
            (&self.gpu.device, [self.timeline], [self.submitted], [self.fence]);
        // SAFETY: fence and semaphore are live; once the fence is signalled nothing of this lane is pending.
        unsafe {
            if self.submitted.is_multiple_of(2) {
                let info = vk::SemaphoreWaitInfo::default().semaphores(&semaphores).values(&points);
                device.wait_semaphores(&info, u64::MAX).context("waiting for the timeline")?;
            }
            match self.polls {
                true => self.poll()?,
                false => device.wait_for_fences(&fences, true, u64::MAX).context("waiting for the fence")?,
            }
            device.reset_fences(&fences)?;
        }
        Ok(())
    }

    /// Waits by calls of `vkGetFenceStatus` alone, as llama.cpp does for the last of its work.
    fn poll(&self) -> Result<()> {
        // SAFETY: the fence is live.
        while !unsafe { self.gpu.device.get_fence_status(self.fence) }.inspect_err(|error| {
            // The error is printed at once, because the driver may end this process before its orderly end.
            println!("the fence says: {error}");
        })? {
            std::hint::spin_loop();
        }
        Ok(())
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        let device = &self.gpu.device;
        let queue = self.gpu.queues[self.queue].1.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the queue is locked. A round that failed may have left work; after this every handle is this thread's alone.
        unsafe {
            device.queue_wait_idle(*queue).ok();
            device.destroy_semaphore(self.timeline, None);
            device.destroy_fence(self.fence, None);
            device.destroy_command_pool(self.commands, None);
            device.destroy_descriptor_pool(self.descriptors, None);
            device.destroy_buffer(self.buffer, None);
            device.free_memory(self.memory, None);
        }
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        // SAFETY: the handle is live, and the submissions that used it have been waited for.
        unsafe { self.gpu.device.destroy_pipeline(self.handle, None) };
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // SAFETY: pipelines and lanes hold the device, so they are gone; the handles are live and used nowhere else.
        unsafe {
            self.device.destroy_pipeline_cache(self.cache, None);
            self.device.destroy_shader_module(self.shader, None);
            self.device.destroy_pipeline_layout(self.layout, None);
            self.device.destroy_descriptor_set_layout(self.set_layout, None);
            self.device.destroy_device(None);
        }
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // SAFETY: devices hold the instance, so they are gone.
        unsafe { self.functions.destroy_instance(None) };
    }
}
