//! Checks of image regions that are copied: between images, and from and to buffers.

use crate::context::error::{Fault, demand};
use crate::kinds::buffer::BufferFacts;
use crate::kinds::command_buffer::RecordingState;
use crate::kinds::image::ImageFacts;
use crate::logical::device::Device;
use crate::lowering::lower::Lowering;
use protocol::venus::generated::{self as venus, FormatBlock, ImageAspectFlags};
use std::sync::Arc;

const OUTSIDE: &str = "a region outside of its image, or an image without memory";

const REMAINING: u32 = u32::MAX;

/// Returns the extent of the region's level in texels, and the blocks of one aspect in memory.
fn aspect(image: &ImageFacts, layers: &venus::ImageSubresourceLayers) -> ([u32; 3], FormatBlock) {
    let (extent, block) = (image.level_extent(layers.mip_level), image.block);
    let bytes = |bytes| FormatBlock { bytes, extent: [1, 1, 1] };
    let Some(planes) = image.planes else {
        return match layers.aspect_mask {
            // Depth of 24 bits is copied in words of 32.
            ImageAspectFlags::DEPTH => {
                (extent, bytes(if block.bytes <= 3 && block.bytes != 0 { 2 } else { 4 }))
            }
            ImageAspectFlags::STENCIL => (extent, bytes(1)),
            _ => (extent, block),
        };
    };
    match layers.aspect_mask {
        ImageAspectFlags::PLANE_1 | ImageAspectFlags::PLANE_2 => {
            let both = if planes.interleaved { 2 } else { 1 };
            let extent = std::array::from_fn(|at| extent[at].div_ceil(planes.shared[at]));
            (extent, bytes(planes.component * both))
        }
        _ => (extent, bytes(planes.component)),
    }
}

/// Demands that the texels from `from` to `to` lie in a level, and that level and layers exist.
fn demand_inside(
    image: &ImageFacts,
    layers: &venus::ImageSubresourceLayers,
    (from, to): ([i64; 3], [i64; 3]),
) -> Result<(), Fault> {
    let last = u64::from(layers.base_array_layer) + u64::from(layers.layer_count);
    let all = layers.layer_count == REMAINING && layers.base_array_layer < image.layers;
    let there = all || layers.layer_count > 0 && last <= image.layers.into();
    demand(image.has_memory() && layers.mip_level < image.levels && there, OUTSIDE)?;
    // Drivers look up the layout of texels by the aspect, and assume that the image has this aspect.
    let mask = layers.aspect_mask.0;
    demand(mask != 0 && mask & !image.aspects.0 == 0, "a region of an aspect that the image does not have")?;
    let (extent, block) = aspect(image, layers);
    let inside = |at: usize| {
        // The last block of a compressed level reaches over its edge.
        let most = i64::from(extent[at].next_multiple_of(block.extent[at].max(1)));
        // In a copy between an image with layers and a volume, layers stand for depth.
        let most = if at == 2 && !image.volume { most.max(layers.layer_count.into()) } else { most };
        (0..=most).contains(&from[at]) && (0..=most).contains(&to[at])
    };
    demand((0..3).all(inside) && (image.volume || from[2].min(to[2]) == 0), OUTSIDE)
}

fn corner(offset: venus::Offset3D) -> [i64; 3] {
    [offset.x.into(), offset.y.into(), offset.z.into()]
}

fn box_at(offset: venus::Offset3D, extent: venus::Extent3D) -> ([i64; 3], [i64; 3]) {
    let (from, size) = (corner(offset), [extent.width, extent.height, extent.depth]);
    (from, std::array::from_fn(|at| from[at] + i64::from(size[at])))
}

/// One region between an image and a buffer.
struct InBuffer {
    offset: u64,
    row_length: u32,
    image_height: u32,
    layers: venus::ImageSubresourceLayers,
    image_offset: venus::Offset3D,
    extent: venus::Extent3D,
}

macro_rules! in_buffer {
    ($region:expr) => {
        InBuffer {
            offset: $region.buffer_offset,
            row_length: $region.buffer_row_length,
            image_height: $region.buffer_image_height,
            layers: $region.image_subresource,
            image_offset: $region.image_offset,
            extent: $region.image_extent,
        }
    };
}

/// Demands that a copy between memory and an image lies in the image; returns how many bytes of memory it spans.
fn demand_in_memory(image: &ImageFacts, region: &Region, offset: venus::Offset3D) -> Result<u64, Fault> {
    let layers = &region.subresource;
    demand(image.volume || region.extent.depth == 1, OUTSIDE)?;
    demand_inside(image, layers, box_at(offset, region.extent))?;
    demand(layers.aspect_mask.0.is_power_of_two(), "a region of several aspects at once")?;
    let (_, block) = aspect(image, layers);
    let bytes = region_bytes(block, region, image.layers_of(layers));
    bytes.ok_or_else(|| Fault::invalid("a region has more bytes than there can be"))
}

/// Demands that a copy by the host between memory and an image lies in the image, which was made for such copies; returns how many bytes of
/// memory it spans.
pub(crate) fn demand_host_copy(
    image: &ImageFacts,
    region: &Region,
    offset: venus::Offset3D,
) -> Result<u64, Fault> {
    demand(image.is_copied_by_the_host, "an image that was not made to be copied by the host")?;
    demand_in_memory(image, region, offset)
}

fn demand_in_buffer(
    l: &Lowering<'_>,
    (image, buffer): (venus::Image, venus::Buffer),
    regions: impl Iterator<Item = InBuffer>,
) -> Result<(), Fault> {
    let image: &ImageFacts = l.objects.image(image)?;
    let buffer: &BufferFacts = l.objects.buffer(buffer)?;
    for region in regions {
        let shape = Region {
            flags: venus::HostImageCopyFlags(0),
            row_length: region.row_length,
            image_height: region.image_height,
            subresource: region.layers,
            extent: region.extent,
        };
        let bytes = demand_in_memory(image, &shape, region.image_offset)?;
        buffer.demand(region.offset, bytes, "a region outside of its buffer")?;
    }
    Ok(())
}

/// Demands that regions between two images, as boxes in both, lie in the images.
fn demand_in_images(
    l: &Lowering<'_>,
    (source, target): (venus::Image, venus::Image),
    regions: impl Iterator<Item = [(venus::ImageSubresourceLayers, ([i64; 3], [i64; 3])); 2]>,
) -> Result<(), Fault> {
    let (source, target) = (l.objects.image(source)?, l.objects.image(target)?);
    for [from, to] in regions {
        demand_inside(source, &from.0, from.1)?;
        demand_inside(target, &to.0, to.1)?;
    }
    Ok(())
}

macro_rules! copied {
    ($region:expr) => {
        [
            ($region.src_subresource, box_at($region.src_offset, $region.extent)),
            ($region.dst_subresource, box_at($region.dst_offset, $region.extent)),
        ]
    };
}

macro_rules! scaled {
    ($region:expr) => {
        [
            ($region.src_subresource, (corner($region.src_offsets[0]), corner($region.src_offsets[1]))),
            ($region.dst_subresource, (corner($region.dst_offsets[0]), corner($region.dst_offsets[1]))),
        ]
    };
}

/// `vkCopyImageToImage`.
pub(crate) fn copy_image_to_image(
    l: &Lowering<'_>,
    _: &Arc<Device>,
    c: &venus::CopyImageToImage<'_>,
) -> Result<(), Fault> {
    let info = c.p_copy_image_to_image_info.ok_or_else(|| Fault::invalid("a copy without a description"))?;
    for id in [info.src_image, info.dst_image] {
        let copied = l.objects.image(id)?.is_copied_by_the_host;
        demand(copied, "an image that was not made to be copied by the host")?;
    }
    let regions = info.p_regions.unwrap_or(&[]).iter().map(|region| copied!(region));
    demand_in_images(l, (info.src_image, info.dst_image), regions)
}

/// Checks of one command and of its successor, which takes a struct.
macro_rules! checks {
    ($($plain:ident($command:ident) $second:ident($command2:ident.$info:ident) => |$l:ident, $it:ident| $check:expr;)*) => {$(
        #[doc = concat!("`vk", stringify!($command), "`.")]
        pub(crate) fn $plain($l: &Lowering<'_>, _: &mut RecordingState, $it: &venus::$command<'_>) -> Result<(), Fault> {
            $check
        }

        #[doc = concat!("`vk", stringify!($command2), "`.")]
        pub(crate) fn $second($l: &Lowering<'_>, _: &mut RecordingState, c: &venus::$command2<'_>) -> Result<(), Fault> {
            let $it = c.$info.ok_or_else(|| Fault::invalid("a copy without a description"))?;
            $check
        }
    )*};
}

checks! {
    cmd_copy_image(CmdCopyImage) cmd_copy_image2(CmdCopyImage2.p_copy_image_info) => |l, c| {
        let regions = c.p_regions.unwrap_or(&[]).iter().map(|region| copied!(region));
        demand_in_images(l, (c.src_image, c.dst_image), regions)
    };
    cmd_blit_image(CmdBlitImage) cmd_blit_image2(CmdBlitImage2.p_blit_image_info) => |l, c| {
        let regions = c.p_regions.unwrap_or(&[]).iter().map(|region| scaled!(region));
        demand_in_images(l, (c.src_image, c.dst_image), regions)
    };
    cmd_resolve_image(CmdResolveImage) cmd_resolve_image2(CmdResolveImage2.p_resolve_image_info) => |l, c| {
        let regions = c.p_regions.unwrap_or(&[]).iter().map(|region| copied!(region));
        demand_in_images(l, (c.src_image, c.dst_image), regions)
    };
    cmd_copy_buffer_to_image(CmdCopyBufferToImage)
    cmd_copy_buffer_to_image2(CmdCopyBufferToImage2.p_copy_buffer_to_image_info) => |l, c| {
        let regions = c.p_regions.unwrap_or(&[]).iter().map(|region| in_buffer!(region));
        demand_in_buffer(l, (c.dst_image, c.src_buffer), regions)
    };
    cmd_copy_image_to_buffer(CmdCopyImageToBuffer)
    cmd_copy_image_to_buffer2(CmdCopyImageToBuffer2.p_copy_image_to_buffer_info) => |l, c| {
        let regions = c.p_regions.unwrap_or(&[]).iter().map(|region| in_buffer!(region));
        demand_in_buffer(l, (c.src_image, c.dst_buffer), regions)
    };
}

/// One region of a copy, in either direction.
#[derive(Clone, Copy)]
pub(crate) struct Region {
    /// Flags that say whether texels are copied in the layout of the image.
    pub flags: venus::HostImageCopyFlags,
    /// Texels from row to row, or 0.
    pub row_length: u32,
    /// Rows from layer to layer, or 0.
    pub image_height: u32,
    /// Aspect, level and layers of the image.
    pub subresource: venus::ImageSubresourceLayers,
    /// The extent in texels.
    pub extent: venus::Extent3D,
}

/// Returns the bytes of memory that a region of texels spans (Vulkan, "Copying Data Between Buffers and Images"); none if they cannot be
/// counted. `block` is that of the aspect that is copied.
pub(crate) fn region_bytes(block: FormatBlock, region: &Region, layers: u64) -> Option<u64> {
    let venus::Extent3D { width, height, depth } = region.extent;
    let blocks = |texels: u32, at: usize| u64::from(texels.div_ceil(block.extent[at].max(1)));
    let slices = layers.checked_mul(blocks(depth, 2))?;
    if width == 0 || height == 0 || slices == 0 {
        return Some(0);
    }
    let bytes = u64::from(block.bytes);
    let row = blocks(region.row_length.max(width), 0).checked_mul(bytes)?;
    let slice = blocks(region.image_height.max(height), 1).checked_mul(row)?;
    let last_slice = slice.checked_mul(slices - 1)?;
    let last_row = row.checked_mul(blocks(height, 1) - 1)?;
    last_slice.checked_add(last_row)?.checked_add(blocks(width, 0) * bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    use protocol::venus::generated::format_block;

    const RGBA8: FormatBlock = FormatBlock { bytes: 4, extent: [1, 1, 1] };

    fn region(row_length: u32, image_height: u32, [width, height, depth]: [u32; 3]) -> Region {
        Region {
            flags: venus::HostImageCopyFlags(0),
            row_length,
            image_height,
            subresource: venus::ImageSubresourceLayers::default(),
            extent: venus::Extent3D { width, height, depth },
        }
    }

    #[test]
    fn bytes_reach_to_the_last_texel_and_no_further() {
        assert_eq!(region_bytes(RGBA8, &region(0, 0, [8, 4, 1]), 1), Some(8 * 4 * 4));
        assert_eq!(region_bytes(RGBA8, &region(16, 0, [8, 4, 1]), 1), Some((16 * 3 + 8) * 4));
        assert_eq!(region_bytes(RGBA8, &region(16, 8, [8, 4, 1]), 3), Some((16 * 8 * 2 + 16 * 3 + 8) * 4));
        assert_eq!(region_bytes(RGBA8, &region(0, 0, [8, 4, 5]), 1), Some(8 * 4 * 5 * 4));
        let bc1 = format_block(venus::Format::BC1_RGB_UNORM_BLOCK).expect("a format of the registry");
        assert_eq!(region_bytes(bc1, &region(0, 0, [9, 5, 1]), 1), Some(3 * 2 * 8));
    }

    #[test]
    fn sizes_a_hostile_guest_chooses_do_not_overflow() {
        let huge = region(u32::MAX, u32::MAX, [u32::MAX; 3]);
        assert_eq!(region_bytes(RGBA8, &huge, u64::from(u32::MAX)), None);
        assert_eq!(region_bytes(RGBA8, &region(u32::MAX, u32::MAX, [0, 1, 1]), 1), Some(0));
        assert_eq!(region_bytes(RGBA8, &region(1, 1, [1, 1, 1]), 0), Some(0));
    }
}
