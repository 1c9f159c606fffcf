//! Compute pipelines with one descriptor set: the usual way from a case's shader to a result. Cases about pipelines or descriptors
//! themselves call Vulkan instead.

use anyhow::Result;
use ash::vk;

use crate::bytes::{Plain, bytes_of};
use crate::gpu::{Buffer, Gpu};

/// A pipeline that is being described.
pub(crate) struct Builder<'a> {
    gpu: &'a Gpu,
    shader: usize,
    bindings: Vec<(vk::DescriptorType, u32)>,
    push: u32,
    constants: Vec<(u32, Vec<u8>)>,
    stage_flags: vk::PipelineShaderStageCreateFlags,
    subgroup_size: Option<u32>,
}

/// A compute pipeline.
#[derive(Clone, Copy)]
pub(crate) struct Kernel {
    /// The pipeline.
    pub pipeline: vk::Pipeline,
    /// The layout of the pipeline: one set, and push constants if any.
    pub layout: vk::PipelineLayout,
    /// The set's layout.
    pub set_layout: vk::DescriptorSetLayout,
}

/// The resource with which a binding is filled.
#[derive(Clone, Copy)]
pub(crate) enum Slot {
    /// A whole buffer.
    Buffer(vk::Buffer),
    /// A part of a buffer: offset, bytes.
    Range(vk::Buffer, u64, u64),
    /// A texel buffer.
    View(vk::BufferView),
    /// A storage or sampled image with its layout.
    Image(vk::ImageView, vk::ImageLayout),
    /// A sampler of its own.
    Sampler(vk::Sampler),
    /// A sampled image with its sampler.
    Sampled(vk::ImageView, vk::Sampler),
}

/// The descriptor type of most bindings, for short.
pub(crate) const STORAGE: vk::DescriptorType = vk::DescriptorType::STORAGE_BUFFER;

impl Gpu {
    /// Starts to describe a pipeline of the case's shader of this number.
    pub(crate) fn kernel(&self, shader: usize) -> Builder<'_> {
        Builder {
            gpu: self,
            shader,
            bindings: Vec::new(),
            push: 0,
            constants: Vec::new(),
            stage_flags: vk::PipelineShaderStageCreateFlags::empty(),
            subgroup_size: None,
        }
    }

    /// Runs the case's shader of this number on storage buffers: binding 0, 1, ...
    pub(crate) fn compute(&self, shader: usize, buffers: &[&Buffer], groups: u32) -> Result<()> {
        self.compute_with(shader, buffers, &[0u8; 0], groups)
    }

    /// Runs a shader as [`Gpu::compute`] does, with push constants.
    pub(crate) fn compute_with<T: Plain>(
        &self,
        shader: usize,
        buffers: &[&Buffer],
        push: &[T],
        groups: u32,
    ) -> Result<()> {
        let push = bytes_of(push);
        let kernel = self.kernel(shader).buffers(buffers.len()).push(push.len() as u32).build()?;
        let slots: Vec<Slot> = buffers.iter().map(|buffer| Slot::Buffer(buffer.handle)).collect();
        let set = self.set(&kernel, &vec![STORAGE; buffers.len()], &slots)?;
        self.run(|commands| {
            self.bind(commands, &kernel, set);
            self.push(commands, &kernel, &push);
            unsafe { self.device.cmd_dispatch(commands, groups, 1, 1) };
        })
    }

    /// A shader module.
    pub(crate) fn module(&self, shader: usize) -> Result<vk::ShaderModule> {
        let code = self.spirv(shader);
        let info = vk::ShaderModuleCreateInfo::default().code(&code);
        let module = unsafe { self.device.create_shader_module(&info, None) }?;
        self.later(move |device| unsafe { device.destroy_shader_module(module, None) });
        Ok(module)
    }

    /// A layout of bindings 0, 1, ... of these types and counts.
    pub(crate) fn set_layout(
        &self,
        bindings: &[(vk::DescriptorType, u32)],
        flags: vk::DescriptorSetLayoutCreateFlags,
    ) -> Result<vk::DescriptorSetLayout> {
        let bindings: Vec<_> = (0u32..)
            .zip(bindings)
            .map(|(binding, (ty, count))| {
                vk::DescriptorSetLayoutBinding::default()
                    .binding(binding)
                    .descriptor_type(*ty)
                    .descriptor_count(*count)
                    .stage_flags(vk::ShaderStageFlags::COMPUTE)
            })
            .collect();
        let info = vk::DescriptorSetLayoutCreateInfo::default().bindings(&bindings).flags(flags);
        self.set_layout_of(&info)
    }

    /// A layout of a set.
    pub(crate) fn set_layout_of(
        &self,
        info: &vk::DescriptorSetLayoutCreateInfo,
    ) -> Result<vk::DescriptorSetLayout> {
        let layout = unsafe { self.device.create_descriptor_set_layout(info, None) }?;
        self.later(move |device| unsafe { device.destroy_descriptor_set_layout(layout, None) });
        Ok(layout)
    }

    /// A pipeline layout with `push` bytes of push constants.
    pub(crate) fn pipeline_layout(
        &self,
        sets: &[vk::DescriptorSetLayout],
        push: u32,
    ) -> Result<vk::PipelineLayout> {
        let range = [vk::PushConstantRange::default().stage_flags(vk::ShaderStageFlags::COMPUTE).size(push)];
        let ranges = if push > 0 { &range[..] } else { &[] };
        let info = vk::PipelineLayoutCreateInfo::default().set_layouts(sets).push_constant_ranges(ranges);
        let layout = unsafe { self.device.create_pipeline_layout(&info, None) }?;
        self.later(move |device| unsafe { device.destroy_pipeline_layout(layout, None) });
        Ok(layout)
    }

    /// A pool for one set each of `sizes`, times `sets`.
    pub(crate) fn descriptor_pool(
        &self,
        sizes: &[(vk::DescriptorType, u32)],
        sets: u32,
        flags: vk::DescriptorPoolCreateFlags,
    ) -> Result<vk::DescriptorPool> {
        let sizes: Vec<_> = sizes
            .iter()
            .map(|(ty, count)| vk::DescriptorPoolSize { ty: *ty, descriptor_count: count * sets })
            .collect();
        let info = vk::DescriptorPoolCreateInfo::default().pool_sizes(&sizes).max_sets(sets).flags(flags);
        let pool = unsafe { self.device.create_descriptor_pool(&info, None) }?;
        self.later(move |device| unsafe { device.destroy_descriptor_pool(pool, None) });
        Ok(pool)
    }

    /// A set of a kernel's layout, from a pool of its own, with its bindings filled.
    pub(crate) fn set(
        &self,
        kernel: &Kernel,
        types: &[vk::DescriptorType],
        slots: &[Slot],
    ) -> Result<vk::DescriptorSet> {
        let sizes: Vec<_> = types.iter().map(|ty| (*ty, 1)).collect();
        let set = self.empty_set(kernel.set_layout, &sizes, vk::DescriptorPoolCreateFlags::empty())?;
        for (binding, (ty, slot)) in types.iter().zip(slots).enumerate() {
            self.fill(set, binding as u32, 0, *ty, &[*slot]);
        }
        Ok(set)
    }

    /// A set from a pool of its own.
    pub(crate) fn empty_set(
        &self,
        layout: vk::DescriptorSetLayout,
        sizes: &[(vk::DescriptorType, u32)],
        flags: vk::DescriptorPoolCreateFlags,
    ) -> Result<vk::DescriptorSet> {
        // A pool cannot be empty.
        let sizes = if sizes.is_empty() { &[(STORAGE, 1)] } else { sizes };
        let pool = self.descriptor_pool(sizes, 1, flags)?;
        let layouts = [layout];
        let info = vk::DescriptorSetAllocateInfo::default().descriptor_pool(pool).set_layouts(&layouts);
        Ok(unsafe { self.device.allocate_descriptor_sets(&info) }?[0])
    }

    /// Fills elements of one binding.
    pub(crate) fn fill(
        &self,
        set: vk::DescriptorSet,
        binding: u32,
        element: u32,
        ty: vk::DescriptorType,
        slots: &[Slot],
    ) {
        for (slot, element) in slots.iter().zip(element..) {
            let mut write = vk::WriteDescriptorSet::default()
                .dst_set(set)
                .dst_binding(binding)
                .dst_array_element(element)
                .descriptor_type(ty);
            let (buffer, view, image) = slot.infos();
            write.descriptor_count = 1;
            (write.p_buffer_info, write.p_texel_buffer_view, write.p_image_info) = (&buffer, &view, &image);
            unsafe { self.device.update_descriptor_sets(&[write], &[]) };
        }
    }

    /// Binds a kernel with its set.
    pub(crate) fn bind(&self, commands: vk::CommandBuffer, kernel: &Kernel, set: vk::DescriptorSet) {
        let point = vk::PipelineBindPoint::COMPUTE;
        unsafe {
            self.device.cmd_bind_pipeline(commands, point, kernel.pipeline);
            self.device.cmd_bind_descriptor_sets(commands, point, kernel.layout, 0, &[set], &[]);
        }
    }

    /// Sets push constants, if there are any.
    pub(crate) fn push<T: Plain>(&self, commands: vk::CommandBuffer, kernel: &Kernel, values: &[T]) {
        let bytes = bytes_of(values);
        if !bytes.is_empty() {
            let stage = vk::ShaderStageFlags::COMPUTE;
            unsafe { self.device.cmd_push_constants(commands, kernel.layout, stage, 0, &bytes) };
        }
    }
}

impl Slot {
    /// The three kinds of information; Vulkan reads the one of the descriptor's type.
    pub(crate) fn infos(&self) -> (vk::DescriptorBufferInfo, vk::BufferView, vk::DescriptorImageInfo) {
        let mut buffer = vk::DescriptorBufferInfo::default().range(vk::WHOLE_SIZE);
        let (mut texels, mut image) = (vk::BufferView::null(), vk::DescriptorImageInfo::default());
        match *self {
            Self::Buffer(handle) => buffer.buffer = handle,
            Self::Range(handle, offset, range) => {
                buffer = vk::DescriptorBufferInfo { buffer: handle, offset, range };
            }
            Self::View(view) => texels = view,
            Self::Image(view, layout) => image = image.image_view(view).image_layout(layout),
            Self::Sampler(sampler) => image.sampler = sampler,
            Self::Sampled(view, sampler) => {
                let layout = vk::ImageLayout::GENERAL;
                image = image.image_view(view).image_layout(layout).sampler(sampler);
            }
        }
        (buffer, texels, image)
    }
}

impl Builder<'_> {
    /// Sets the bindings: this many storage buffers.
    pub(crate) fn buffers(self, count: usize) -> Self {
        self.bindings(&vec![STORAGE; count])
    }

    /// Bindings of one element each.
    pub(crate) fn bindings(mut self, types: &[vk::DescriptorType]) -> Self {
        self.bindings = types.iter().map(|ty| (*ty, 1)).collect();
        self
    }

    /// Bytes of push constants.
    pub(crate) fn push(mut self, bytes: u32) -> Self {
        self.push = bytes;
        self
    }

    /// A specialisation constant.
    pub(crate) fn constant<T: Plain>(mut self, id: u32, value: T) -> Self {
        self.constants.push((id, bytes_of(&[value])));
        self
    }

    /// Flags of the stage.
    pub(crate) fn stage_flags(mut self, flags: vk::PipelineShaderStageCreateFlags) -> Self {
        self.stage_flags = flags;
        self
    }

    /// Demands a size of subgroups.
    pub(crate) fn subgroup_size(mut self, size: u32) -> Self {
        self.subgroup_size = Some(size);
        self
    }

    /// Makes the pipeline.
    pub(crate) fn build(self) -> Result<Kernel> {
        self.build_with(&mut vk::ComputePipelineCreateInfo::default(), vk::PipelineCache::null())
    }

    /// Makes the pipeline from a description that may hold flags, a chain or a base already.
    pub(crate) fn build_with(
        self,
        info: &mut vk::ComputePipelineCreateInfo,
        cache: vk::PipelineCache,
    ) -> Result<Kernel> {
        let gpu = self.gpu;
        let set_layout = gpu.set_layout(&self.bindings, vk::DescriptorSetLayoutCreateFlags::empty())?;
        let layout = gpu.pipeline_layout(&[set_layout], self.push)?;
        let module = gpu.module(self.shader)?;
        let (mut entries, mut data) = (Vec::new(), Vec::new());
        for (id, value) in &self.constants {
            entries.push(vk::SpecializationMapEntry {
                constant_id: *id,
                offset: data.len() as u32,
                size: value.len(),
            });
            data.extend(value);
        }
        let specialization = vk::SpecializationInfo::default().map_entries(&entries).data(&data);
        let mut required = vk::PipelineShaderStageRequiredSubgroupSizeCreateInfo::default();
        let mut stage = vk::PipelineShaderStageCreateInfo::default()
            .stage(vk::ShaderStageFlags::COMPUTE)
            .flags(self.stage_flags)
            .module(module)
            .name(c"main");
        if !entries.is_empty() {
            stage = stage.specialization_info(&specialization);
        }
        if let Some(size) = self.subgroup_size {
            required.required_subgroup_size = size;
            stage = stage.push_next(&mut required);
        }
        (info.stage.s_type, info.layout) = (stage.s_type, layout);
        let info = vk::ComputePipelineCreateInfo { stage, ..*info };
        let made = unsafe { gpu.device.create_compute_pipelines(cache, &[info], None) };
        let pipeline = made.map_err(|(_, error)| error)?[0];
        gpu.later(move |device| unsafe { device.destroy_pipeline(pipeline, None) });
        Ok(Kernel { pipeline, layout, set_layout })
    }
}
