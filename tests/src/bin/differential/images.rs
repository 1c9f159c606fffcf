//! Images with memory, in the general layout, and ways to fill and read them, for the cases about images.

use anyhow::Result;
use ash::vk;

use crate::gpu::{Buffer, Gpu, skip};

/// An image bound to memory of its own, in `VK_IMAGE_LAYOUT_GENERAL`.
#[derive(Clone, Copy)]
pub(crate) struct Picture {
    /// The image.
    pub image: vk::Image,
    /// The memory that is bound to the image.
    pub memory: vk::DeviceMemory,
    /// The format with which the image was made.
    pub format: vk::Format,
    /// Texels of its largest level.
    pub extent: vk::Extent3D,
    /// Levels.
    pub levels: u32,
    /// Layers.
    pub layers: u32,
    view_type: vk::ImageViewType,
}

/// The kind of an image.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    /// The view's type, which gives the image's.
    pub view: vk::ImageViewType,
    /// Width, height, depth.
    pub size: [u32; 3],
    /// Layers.
    pub layers: u32,
    /// Levels.
    pub levels: u32,
    /// The texels' format.
    pub format: vk::Format,
    /// Uses besides transfers.
    pub usage: vk::ImageUsageFlags,
    /// Further flags; those that cubes need are added.
    pub flags: vk::ImageCreateFlags,
    /// The tiling, which says how texels lie in memory.
    pub tiling: vk::ImageTiling,
}

impl Shape {
    /// A two-dimensional image of one level.
    pub(crate) fn flat(format: vk::Format, width: u32, height: u32, usage: vk::ImageUsageFlags) -> Self {
        Self {
            view: vk::ImageViewType::TYPE_2D,
            size: [width, height, 1],
            layers: 1,
            levels: 1,
            format,
            usage,
            flags: vk::ImageCreateFlags::empty(),
            tiling: vk::ImageTiling::OPTIMAL,
        }
    }

    /// Returns the create info of such an image.
    pub(crate) fn info(&self) -> vk::ImageCreateInfo<'static> {
        let [width, height, depth] = self.size;
        let cube = [vk::ImageViewType::CUBE, vk::ImageViewType::CUBE_ARRAY].contains(&self.view);
        let flags = if cube { vk::ImageCreateFlags::CUBE_COMPATIBLE } else { vk::ImageCreateFlags::empty() };
        let ty = match self.view {
            vk::ImageViewType::TYPE_1D | vk::ImageViewType::TYPE_1D_ARRAY => vk::ImageType::TYPE_1D,
            vk::ImageViewType::TYPE_3D => vk::ImageType::TYPE_3D,
            _ => vk::ImageType::TYPE_2D,
        };
        vk::ImageCreateInfo::default()
            .flags(flags | self.flags)
            .image_type(ty)
            .format(self.format)
            .extent(vk::Extent3D { width, height, depth })
            .mip_levels(self.levels)
            .array_layers(self.layers)
            .samples(vk::SampleCountFlags::TYPE_1)
            .tiling(self.tiling)
            .usage(self.usage | vk::ImageUsageFlags::TRANSFER_SRC | vk::ImageUsageFlags::TRANSFER_DST)
    }

    /// Returns how large such images may be, if the device has them.
    pub(crate) fn properties(&self, gpu: &Gpu) -> Result<vk::ImageFormatProperties, vk::Result> {
        let info = self.info();
        unsafe {
            gpu.instance.get_physical_device_image_format_properties(
                gpu.physical,
                info.format,
                info.image_type,
                info.tiling,
                info.usage,
                info.flags,
            )
        }
    }
}

impl Picture {
    /// A storage image.
    pub(crate) fn storage(gpu: &Gpu, format: vk::Format, width: u32, height: u32) -> Result<Self> {
        Self::new(gpu, Shape::flat(format, width, height, vk::ImageUsageFlags::STORAGE))
    }

    /// A sampled image that holds these texels.
    pub(crate) fn sampled(
        gpu: &Gpu,
        format: vk::Format,
        width: u32,
        height: u32,
        texels: &Buffer,
    ) -> Result<Self> {
        let picture = Self::new(gpu, Shape::flat(format, width, height, vk::ImageUsageFlags::SAMPLED))?;
        picture.fill(gpu, texels)?;
        Ok(picture)
    }

    /// An image in device memory. Skips the case when the device has no such images.
    pub(crate) fn new(gpu: &Gpu, shape: Shape) -> Result<Self> {
        let info = shape.info();
        match shape.properties(gpu) {
            Err(vk::Result::ERROR_FORMAT_NOT_SUPPORTED) => {
                return skip(format!(
                    "images of format {} used as {:#x}",
                    info.format.as_raw(),
                    info.usage.as_raw()
                ));
            }
            other => drop(other?),
        }
        let image = unsafe { gpu.device.create_image(&info, None) }?;
        gpu.later(move |device| unsafe { device.destroy_image(image, None) });
        let requirements = unsafe { gpu.device.get_image_memory_requirements(image) };
        let flags = if shape.tiling == vk::ImageTiling::LINEAR {
            vk::MemoryPropertyFlags::HOST_VISIBLE | vk::MemoryPropertyFlags::HOST_COHERENT
        } else {
            vk::MemoryPropertyFlags::empty()
        };
        let memory = gpu.allocate(requirements, flags, false)?;
        unsafe { gpu.device.bind_image_memory(image, memory, 0) }?;
        let picture = Self::of(image, memory, &shape);
        gpu.run(|commands| {
            picture.transition(gpu, commands, vk::ImageLayout::UNDEFINED, vk::ImageLayout::GENERAL)
        })?;
        Ok(picture)
    }

    /// An image that exists.
    pub(crate) fn of(image: vk::Image, memory: vk::DeviceMemory, shape: &Shape) -> Self {
        Self {
            image,
            memory,
            format: shape.format,
            extent: shape.info().extent,
            levels: shape.levels,
            layers: shape.layers,
            view_type: shape.view,
        }
    }

    /// Changes the layout of the whole image.
    pub(crate) fn transition(
        &self,
        gpu: &Gpu,
        commands: vk::CommandBuffer,
        from: vk::ImageLayout,
        to: vk::ImageLayout,
    ) {
        let barrier = vk::ImageMemoryBarrier::default()
            .src_access_mask(vk::AccessFlags::MEMORY_WRITE)
            .dst_access_mask(vk::AccessFlags::MEMORY_READ | vk::AccessFlags::MEMORY_WRITE)
            .old_layout(from)
            .new_layout(to)
            .src_queue_family_index(vk::QUEUE_FAMILY_IGNORED)
            .dst_queue_family_index(vk::QUEUE_FAMILY_IGNORED)
            .image(self.image)
            .subresource_range(self.whole());
        let stage = vk::PipelineStageFlags::ALL_COMMANDS;
        unsafe {
            let flags = vk::DependencyFlags::empty();
            gpu.device.cmd_pipeline_barrier(commands, stage, stage, flags, &[], &[], &[barrier]);
        }
    }

    /// All levels and layers.
    pub(crate) fn whole(&self) -> vk::ImageSubresourceRange {
        vk::ImageSubresourceRange {
            aspect_mask: self.aspect(),
            base_mip_level: 0,
            level_count: self.levels,
            base_array_layer: 0,
            layer_count: self.layers,
        }
    }

    fn aspect(&self) -> vk::ImageAspectFlags {
        match self.format {
            vk::Format::D32_SFLOAT | vk::Format::D16_UNORM => vk::ImageAspectFlags::DEPTH,
            _ => vk::ImageAspectFlags::COLOR,
        }
    }

    /// All layers of one level.
    pub(crate) fn level(&self, level: u32) -> vk::ImageSubresourceLayers {
        vk::ImageSubresourceLayers {
            aspect_mask: self.aspect(),
            mip_level: level,
            base_array_layer: 0,
            layer_count: self.layers,
        }
    }

    /// A view of the whole image.
    pub(crate) fn view(&self, gpu: &Gpu) -> Result<vk::ImageView> {
        self.view_as(gpu, &vk::ImageViewCreateInfo::default())
    }

    /// A view as `info` describes it; members that are not set are taken from the image.
    pub(crate) fn view_as(&self, gpu: &Gpu, info: &vk::ImageViewCreateInfo) -> Result<vk::ImageView> {
        let mut info = *info;
        info.image = self.image;
        if info.format == vk::Format::UNDEFINED {
            info.format = self.format;
        }
        if info.view_type == vk::ImageViewType::TYPE_1D && info.subresource_range.layer_count == 0 {
            info.view_type = self.view_type;
        }
        if info.subresource_range.layer_count == 0 {
            info.subresource_range = self.whole();
        }
        let view = unsafe { gpu.device.create_image_view(&info, None) }?;
        gpu.later(move |device| unsafe { device.destroy_image_view(view, None) });
        Ok(view)
    }

    /// Sets every texel. The words are taken as the format takes them: floats as their bits.
    pub(crate) fn clear(&self, gpu: &Gpu, commands: vk::CommandBuffer, words: [u32; 4]) {
        let color = vk::ClearColorValue { uint32: words };
        let layout = vk::ImageLayout::GENERAL;
        unsafe { gpu.device.cmd_clear_color_image(commands, self.image, layout, &color, &[self.whole()]) };
    }

    /// The copy of a whole level to or from the start of a buffer.
    pub(crate) fn region(&self, level: u32) -> vk::BufferImageCopy {
        let smaller = |size: u32| (size >> level).max(1);
        let extent = vk::Extent3D {
            width: smaller(self.extent.width),
            height: smaller(self.extent.height),
            depth: smaller(self.extent.depth),
        };
        vk::BufferImageCopy::default().image_subresource(self.level(level)).image_extent(extent)
    }

    /// Copies the largest level into a buffer.
    pub(crate) fn read_into(&self, gpu: &Gpu, commands: vk::CommandBuffer, buffer: &Buffer) {
        let layout = vk::ImageLayout::GENERAL;
        let regions = [self.region(0)];
        unsafe { gpu.device.cmd_copy_image_to_buffer(commands, self.image, layout, buffer.handle, &regions) };
    }

    /// Copies a buffer into the largest level.
    pub(crate) fn fill_from(&self, gpu: &Gpu, commands: vk::CommandBuffer, buffer: &Buffer) {
        let layout = vk::ImageLayout::GENERAL;
        let regions = [self.region(0)];
        unsafe { gpu.device.cmd_copy_buffer_to_image(commands, buffer.handle, self.image, layout, &regions) };
    }

    /// Copies a buffer into the largest level, now.
    pub(crate) fn fill(&self, gpu: &Gpu, buffer: &Buffer) -> Result<()> {
        gpu.run(|commands| self.fill_from(gpu, commands, buffer))
    }
}

impl Gpu {
    /// A sampler.
    pub(crate) fn sampler(&self, info: &vk::SamplerCreateInfo) -> Result<vk::Sampler> {
        let sampler = unsafe { self.device.create_sampler(info, None) }?;
        self.later(move |device| unsafe { device.destroy_sampler(sampler, None) });
        Ok(sampler)
    }

    /// A texel buffer's view.
    pub(crate) fn buffer_view(
        &self,
        buffer: &Buffer,
        format: vk::Format,
        offset: u64,
        range: u64,
    ) -> Result<vk::BufferView> {
        let info = vk::BufferViewCreateInfo::default()
            .buffer(buffer.handle)
            .format(format)
            .offset(offset)
            .range(range);
        let view = unsafe { self.device.create_buffer_view(&info, None) }?;
        self.later(move |device| unsafe { device.destroy_buffer_view(view, None) });
        Ok(view)
    }

    /// Skips the case unless a format has these features in optimal tiling.
    pub(crate) fn require_format(&self, format: vk::Format, features: vk::FormatFeatureFlags) -> Result<()> {
        let found = unsafe { self.instance.get_physical_device_format_properties(self.physical, format) };
        if found.optimal_tiling_features.contains(features) {
            return Ok(());
        }
        skip(format!("features {:#x} of format {}", features.as_raw(), format.as_raw()))
    }
}
