//! Checks of images: levels and layers exist, regions lie in their image, and images lie in their memory.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use super::buffers;
use crate::context::error::{Fault, demand};
use crate::kinds::bound::Bound;
use crate::kinds::command_buffer::RecordingState;
use crate::kinds::image::{ImageFacts, REMAINING};
use crate::logical::device::Device;
use crate::lowering::lower::Lowering;
use crate::objects::object::StateOf;
use crate::shape::formats::Asked;
use crate::shape::planes::Planes;
use ash::vk::{self, Handle as _};
use parking_lot::Mutex;
use protocol::venus::generated::{
    self as venus, ChainStruct, ImageAspectFlags, ImageCreateFlags, ImageType, format_block,
};
use smallvec::SmallVec;
use std::sync::Arc;

/// `vkCreateImage`.
pub(crate) fn of_image(device: &Device, info: &venus::ImageCreateInfo<'_>) -> Result<ImageFacts, Fault> {
    let venus::Extent3D { width, height, depth } = info.extent;
    let extent = [width, height, depth];
    let limits = limits_of(device, info);
    let most = [limits.max_extent.width, limits.max_extent.height, limits.max_extent.depth];
    let sized = extent.iter().zip(most).all(|(texels, most)| (1..=most).contains(texels));
    demand(sized, "an image of no or too large an extent")?;
    let flat = match info.image_type {
        ImageType::TYPE_1D => height == 1 && depth == 1,
        ImageType::TYPE_2D => depth == 1,
        _ => info.array_layers == 1,
    };
    demand(flat, "an image of more dimensions than its type")?;
    let full = width.max(height).max(depth).ilog2() + 1;
    let levels = (1..=full.min(limits.max_mip_levels)).contains(&info.mip_levels);
    demand(levels, "an image of no or too many mip levels")?;
    demand((1..=limits.max_array_layers).contains(&info.array_layers), "an image of no or too many layers")?;
    let samples = info.samples.0.is_power_of_two() && limits.sample_counts.as_raw() & info.samples.0 != 0;
    demand(samples, "an image of a number of samples that the device does not take")?;
    let asked = Asked::new(info.format, info.tiling, info.usage, info.flags, info.p_next);
    demand(!asked.is_unusable(&device.physical), "an image of a kind that is not offered")?;
    let cube = !info.flags.contains(ImageCreateFlags::CUBE_COMPATIBLE)
        || info.image_type == ImageType::TYPE_2D && width == height && info.array_layers >= 6;
    demand(cube, "a cube of other than six squares")?;
    let block = format_block(info.format).ok_or_else(|| Fault::invalid("an image of an unknown format"))?;
    Ok(ImageFacts {
        extent,
        levels: info.mip_levels,
        layers: info.array_layers,
        block,
        planes: Planes::of(info.format),
        aspects: aspects(info.format),
        survives: false,
        is_copied_by_the_host: asked.usage.contains(venus::ImageUsageFlags::HOST_TRANSFER),
        volume: info.image_type == ImageType::TYPE_3D,
        memory: Default::default(),
        bound: Mutex::default(),
    })
}

/// Returns the aspects of images of a format that a command can name. The colour aspect also stands for all planes.
fn aspects(format: venus::Format) -> ImageAspectFlags {
    use ImageAspectFlags as A;
    use venus::Format as F;
    match (format, Planes::of(format)) {
        (F::D16_UNORM | F::X8_D24_UNORM_PACK32 | F::D32_SFLOAT, _) => A::DEPTH,
        (F::S8_UINT, _) => A::STENCIL,
        (F::D16_UNORM_S8_UINT | F::D24_UNORM_S8_UINT | F::D32_SFLOAT_S8_UINT, _) => {
            A(A::DEPTH.0 | A::STENCIL.0)
        }
        (_, None) => A::COLOR,
        (_, Some(planes)) if planes.are_two() => A(A::COLOR.0 | A::PLANE_0.0 | A::PLANE_1.0),
        (_, Some(_)) => A(A::COLOR.0 | A::PLANE_0.0 | A::PLANE_1.0 | A::PLANE_2.0),
    }
}

/// Returns the driver's limits for images of this kind, or those for any image if the driver does not tell them.
fn limits_of(device: &Device, info: &venus::ImageCreateInfo<'_>) -> vk::ImageFormatProperties {
    let physical = &device.physical;
    let modifiers = venus::ImageTiling::DRM_FORMAT_MODIFIER_EXT;
    let plain = info.tiling != modifiers && !info.p_next.iter().any(changes_limits);
    // SAFETY: the physical device is live.
    let asked = plain.then(|| unsafe {
        physical.instance.ash.get_physical_device_image_format_properties(
            physical.handle,
            vk::Format::from_raw(info.format.0),
            vk::ImageType::from_raw(info.image_type.0),
            vk::ImageTiling::from_raw(info.tiling.0),
            vk::ImageUsageFlags::from_raw(info.usage.0),
            vk::ImageCreateFlags::from_raw(info.flags.0),
        )
    });
    let limits = &physical.limits;
    let texels = match info.image_type {
        ImageType::TYPE_1D => limits.max_image_dimension1_d,
        ImageType::TYPE_2D => limits.max_image_dimension2_d,
        _ => limits.max_image_dimension3_d,
    };
    match asked {
        Some(Ok(properties)) => properties,
        _ => vk::ImageFormatProperties {
            max_extent: vk::Extent3D { width: texels, height: texels, depth: texels },
            max_mip_levels: 32,
            max_array_layers: limits.max_image_array_layers,
            sample_counts: vk::SampleCountFlags::from_raw(0x7f),
            ..Default::default()
        },
    }
}

fn changes_limits(next: &ChainStruct<'_>) -> bool {
    matches!(
        next,
        ChainStruct::ExternalMemoryImageCreateInfo(_) | ChainStruct::ImageStencilUsageCreateInfo(_)
    )
}

/// `vkCreateImageView`.
pub(crate) fn create_image_view(
    l: &Lowering<'_>,
    _: &Arc<Device>,
    c: &venus::CreateImageView<'_>,
) -> Result<StateOf<venus::ImageView>, Fault> {
    let info = c.p_create_info.ok_or_else(|| Fault::invalid("an image view without a description"))?;
    let image = l.objects.image(info.image)?;
    demand(image.has_memory(), "a view of an image without memory")?;
    let range = &info.subresource_range;
    let flat_view = image.volume && info.view_type != venus::ImageViewType::TYPE_3D;
    let layers = match flat_view {
        true => image.level_extent(range.base_mip_level)[2],
        false => image.layers,
    };
    image.demand_range(range, layers)?;
    let cubes = match info.view_type {
        venus::ImageViewType::CUBE => range.layer_count == 6,
        venus::ImageViewType::CUBE_ARRAY => range.layer_count.is_multiple_of(6),
        _ => true,
    };
    demand(cubes || range.layer_count == REMAINING, "a view of a part of a cube")?;
    Ok(StateOf::none())
}

/// Marks images, or planes of them, as bound: all of them or none.
fn bind(l: &Lowering<'_>, device: &Device, infos: &[venus::BindImageMemoryInfo<'_>]) -> Result<(), Fault> {
    let mut all = SmallVec::<[_; 4]>::new();
    for info in infos {
        let image = l.objects.image(info.image)?;
        let plane = info.p_next.iter().find_map(|next| match next {
            ChainStruct::BindImagePlaneMemoryInfo(plane) => Some(plane.plane_aspect),
            _ => None,
        });
        let raw = vk::Image::from_raw(l.handle(info.image)?);
        let needs = match plane {
            // SAFETY: device and image are live.
            None => unsafe { device.ash.get_image_memory_requirements(raw) },
            // The size of a plane is not checked: drivers tell it in a call of its own.
            Some(_) => vk::MemoryRequirements::default(),
        };
        buffers::demand_in_memory(l, info.memory, info.memory_offset, (needs.size, needs.alignment))?;
        let plane = plane.unwrap_or_default();
        let at = match plane {
            ImageAspectFlags::PLANE_1 => 1,
            ImageAspectFlags::PLANE_2 => 2,
            _ => 0,
        };
        all.push((image, plane, at));
    }
    demand(
        buffers::mark_all(&all, |(image, _, at)| image.bind(*at), |(image, _, at)| image.unbind(*at)),
        "an image is bound twice",
    )?;
    for (info, (image, plane, at)) in infos.iter().zip(all) {
        let whole = Bound::whole(l.objects.table(), info.memory, info.memory_offset);
        image.bound.lock()[at] = Some(Bound { plane, ..whole });
    }
    Ok(())
}

/// `vkBindImageMemory`.
pub(crate) fn bind_image_memory(
    l: &Lowering<'_>,
    device: &Arc<Device>,
    c: &venus::BindImageMemory,
) -> Result<(), Fault> {
    let (image, memory, memory_offset) = (c.image, c.memory, c.memory_offset);
    bind(l, device, &[venus::BindImageMemoryInfo { p_next: &[], image, memory, memory_offset }])
}

/// `vkBindImageMemory2`.
pub(crate) fn bind_image_memory2(
    l: &Lowering<'_>,
    device: &Arc<Device>,
    c: &venus::BindImageMemory2<'_>,
) -> Result<(), Fault> {
    bind(l, device, c.p_bind_infos.unwrap_or(&[]))
}

fn demand_clear(
    l: &Lowering<'_>,
    image: venus::Image,
    ranges: Option<&[venus::ImageSubresourceRange]>,
) -> Result<(), Fault> {
    let image = l.objects.image(image)?;
    demand(image.has_memory(), "an image without memory is cleared")?;
    ranges.unwrap_or(&[]).iter().try_for_each(|range| image.demand_range(range, image.layers))
}

/// `vkCmdClearColorImage`.
pub(crate) fn cmd_clear_color_image(
    l: &Lowering<'_>,
    _: &mut RecordingState,
    c: &venus::CmdClearColorImage<'_>,
) -> Result<(), Fault> {
    demand(c.p_color.is_some(), "an image is cleared with no colour")?;
    demand_clear(l, c.image, c.p_ranges)
}

/// `vkCmdClearDepthStencilImage`.
pub(crate) fn cmd_clear_depth_stencil_image(
    l: &Lowering<'_>,
    _: &mut RecordingState,
    c: &venus::CmdClearDepthStencilImage<'_>,
) -> Result<(), Fault> {
    demand_clear(l, c.image, c.p_ranges)
}
