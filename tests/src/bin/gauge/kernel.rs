//! Kernels of any length, and the commands that are recorded with them.

#![allow(unsafe_code, clippy::multiple_unsafe_ops_per_block, reason = "an application's calls into Vulkan")]

use crate::gpu::Gpu;
use crate::memory::{Buffer, Kind};
use anyhow::{Context, Result, ensure};
use ash::vk;
use tests::looping_shader as shader;

/// The parts that pipelines are made of, and a buffer that they compute on.
pub(crate) struct Shader<'g> {
    gpu: &'g Gpu,
    _buffer: Buffer<'g>,
    words: u32,
    module: vk::ShaderModule,
    set_layout: vk::DescriptorSetLayout,
    layout: vk::PipelineLayout,
    descriptors: vk::DescriptorPool,
    set: vk::DescriptorSet,
}

/// A pipeline, which ends with this value.
pub(crate) struct Pipeline<'g> {
    gpu: &'g Gpu,
    handle: vk::Pipeline,
}

/// A command buffer, which ends with this value.
pub(crate) struct Commands<'g> {
    gpu: &'g Gpu,
    /// The handle, in an array of length one, as a submission takes it.
    pub handles: [vk::CommandBuffer; 1],
}

/// The number of times that a push of constants, a dispatch and a barrier are recorded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Steps {
    /// The number of repetitions.
    pub times: u32,
    /// Constants are pushed, too.
    pub push: bool,
}

impl<'g> Shader<'g> {
    /// Makes a shader that computes on `words` words.
    pub(crate) fn new(gpu: &'g Gpu, words: u32) -> Result<Self> {
        ensure!(words > 0 && words.is_multiple_of(shader::GROUP), "whole workgroups only");
        let buffer = gpu.buffer(Kind::Device, u64::from(words) * 4)?;
        let ty = vk::DescriptorType::STORAGE_BUFFER;
        let binding = [vk::DescriptorSetLayoutBinding::default()
            .descriptor_type(ty)
            .descriptor_count(1)
            .stage_flags(vk::ShaderStageFlags::COMPUTE)];
        let sizes = [vk::DescriptorPoolSize { ty, descriptor_count: 1 }];
        let push = [vk::PushConstantRange { stage_flags: vk::ShaderStageFlags::COMPUTE, offset: 0, size: 4 }];
        let code = shader::assemble()?;
        // SAFETY: the device is live; every info lives until its call returns.
        unsafe {
            let device = &gpu.device;
            let info = vk::DescriptorSetLayoutCreateInfo::default().bindings(&binding);
            let layouts = [device.create_descriptor_set_layout(&info, None)?];
            let info =
                vk::PipelineLayoutCreateInfo::default().set_layouts(&layouts).push_constant_ranges(&push);
            let layout = device.create_pipeline_layout(&info, None)?;
            let info = vk::DescriptorPoolCreateInfo::default().max_sets(1).pool_sizes(&sizes);
            let descriptors = device.create_descriptor_pool(&info, None)?;
            let info =
                vk::DescriptorSetAllocateInfo::default().descriptor_pool(descriptors).set_layouts(&layouts);
            let set = device.allocate_descriptor_sets(&info)?[0];
            let range =
                [vk::DescriptorBufferInfo { buffer: buffer.handle, offset: 0, range: vk::WHOLE_SIZE }];
            let write =
                vk::WriteDescriptorSet::default().dst_set(set).descriptor_type(ty).buffer_info(&range);
            device.update_descriptor_sets(&[write], &[]);
            let info = vk::ShaderModuleCreateInfo::default().code(&code);
            let module = device.create_shader_module(&info, None)?;
            Ok(Self { gpu, _buffer: buffer, words, module, set_layout: layouts[0], layout, descriptors, set })
        }
    }

    /// Compiles the shader with these constants; any thread may.
    pub(crate) fn pipeline(&self, multiplier: u32, steps: u32) -> Result<Pipeline<'g>> {
        let data: Vec<u8> = [multiplier, steps].iter().flat_map(|word| word.to_ne_bytes()).collect();
        let entry = |id: u32| vk::SpecializationMapEntry::default().constant_id(id).offset(id * 4).size(4);
        let entries = [entry(shader::MULTIPLIER), entry(shader::STEPS)];
        let constants = vk::SpecializationInfo::default().map_entries(&entries).data(&data);
        let stage = vk::PipelineShaderStageCreateInfo::default()
            .stage(vk::ShaderStageFlags::COMPUTE)
            .module(self.module)
            .name(c"main")
            .specialization_info(&constants);
        let info = [vk::ComputePipelineCreateInfo::default().stage(stage).layout(self.layout)];
        // SAFETY: module and layout are live and fit each other; infos live until the call returns.
        let made =
            unsafe { self.gpu.device.create_compute_pipelines(vk::PipelineCache::null(), &info, None) };
        let handle = made.map_err(|(_, error)| error).context("compiling")?[0];
        Ok(Pipeline { gpu: self.gpu, handle })
    }

    /// Records a dispatch of all words.
    pub(crate) fn dispatch(&self, pipeline: &Pipeline<'_>) -> Result<Commands<'g>> {
        let commands = Commands::new(self.gpu)?;
        self.record(&commands, pipeline, self.words / shader::GROUP, Steps { times: 1, push: false })?;
        Ok(commands)
    }

    /// Records steps of this number of workgroups, from the beginning to the end of a command buffer that is not pending.
    pub(crate) fn record(
        &self,
        commands: &Commands<'_>,
        pipeline: &Pipeline<'_>,
        groups: u32,
        steps: Steps,
    ) -> Result<()> {
        let (device, point) = (&self.gpu.device, vk::PipelineBindPoint::COMPUTE);
        let begin = vk::CommandBufferBeginInfo::default();
        let access = vk::AccessFlags::SHADER_READ | vk::AccessFlags::SHADER_WRITE;
        let barrier = [vk::MemoryBarrier::default().src_access_mask(access).dst_access_mask(access)];
        let stage = vk::PipelineStageFlags::COMPUTE_SHADER;
        let handle = commands.handles[0];
        // SAFETY: this thread alone uses the command buffer; pipeline, layout and set fit each other.
        unsafe {
            device.begin_command_buffer(handle, &begin).context("vkBeginCommandBuffer")?;
            device.cmd_bind_pipeline(handle, point, pipeline.handle);
            device.cmd_bind_descriptor_sets(handle, point, self.layout, 0, &[self.set], &[]);
            for time in 0..steps.times {
                if steps.push {
                    let flags = vk::ShaderStageFlags::COMPUTE;
                    device.cmd_push_constants(handle, self.layout, flags, 0, &time.to_ne_bytes());
                }
                device.cmd_dispatch(handle, groups, 1, 1);
                let flags = vk::DependencyFlags::empty();
                device.cmd_pipeline_barrier(handle, stage, stage, flags, &barrier, &[], &[]);
            }
            device.end_command_buffer(handle).context("vkEndCommandBuffer")
        }
    }
}

impl<'g> Commands<'g> {
    /// Allocates a command buffer in which nothing is recorded.
    pub(crate) fn new(gpu: &'g Gpu) -> Result<Self> {
        let info = vk::CommandBufferAllocateInfo::default().command_pool(gpu.pool).command_buffer_count(1);
        // SAFETY: the pool is live and used by this thread alone.
        let made = unsafe { gpu.device.allocate_command_buffers(&info) }?;
        Ok(Self { gpu, handles: [made[0]] })
    }

    /// Records a copy of `bytes` bytes from the beginning of one buffer to that of another.
    pub(crate) fn copy(gpu: &'g Gpu, from: &Buffer<'_>, to: &Buffer<'_>, bytes: u64) -> Result<Self> {
        Self::copy_part(gpu, (from, 0), (to, 0), bytes)
    }

    /// Records a copy of `bytes` bytes from a place in one buffer to a place in another.
    pub(crate) fn copy_part(
        gpu: &'g Gpu,
        (from, from_at): (&Buffer<'_>, u64),
        (to, to_at): (&Buffer<'_>, u64),
        bytes: u64,
    ) -> Result<Self> {
        let commands = Self::new(gpu)?;
        let region = [vk::BufferCopy { src_offset: from_at, dst_offset: to_at, size: bytes }];
        let handle = commands.handles[0];
        // SAFETY: as in `record`; both buffers have so many bytes from there.
        unsafe {
            gpu.device.begin_command_buffer(handle, &vk::CommandBufferBeginInfo::default())?;
            gpu.device.cmd_copy_buffer(handle, from.handle, to.handle, &region);
            gpu.device.end_command_buffer(handle)?;
        }
        Ok(commands)
    }
}

impl Drop for Commands<'_> {
    fn drop(&mut self) {
        // SAFETY: submissions of it were waited for.
        unsafe { self.gpu.device.free_command_buffers(self.gpu.pool, &self.handles) };
    }
}

impl Drop for Pipeline<'_> {
    fn drop(&mut self) {
        // SAFETY: submissions that use it were waited for.
        unsafe { self.gpu.device.destroy_pipeline(self.handle, None) };
    }
}

impl Drop for Shader<'_> {
    fn drop(&mut self) {
        // SAFETY: submissions that use them were waited for.
        unsafe {
            self.gpu.device.destroy_shader_module(self.module, None);
            self.gpu.device.destroy_descriptor_pool(self.descriptors, None);
            self.gpu.device.destroy_pipeline_layout(self.layout, None);
            self.gpu.device.destroy_descriptor_set_layout(self.set_layout, None);
        }
    }
}
