//! Host image copies (Vulkan 1.4, VK_EXT_host_image_copy): texels travel in the command or in its reply.
//!
//! The guest's driver turns `vkCopyImageToMemory` and `vkCopyMemoryToImage` into commands of VK_MESA_venus_protocol that carry the
//! bytes instead of a pointer. How much memory the host's driver touches follows from the region and the image's format, not from the
//! size the guest sent, so it is computed here and the driver gets at least that much.

use super::call::Call;
use super::device::Device;
use super::error::Fault;
use super::generated::sys;
use ash::vk::{self, Handle as _};
use protocol::cursor::Reader;
use protocol::venus::generated as venus;
use protocol::venus::generated::{FormatBlock, format_block};
use protocol::venus::stream::Header;
use std::ffi::{CStr, c_void};

/// Host functions that the wire has no commands for.
pub struct HostCopy {
    image_to_memory: Option<vk::PFN_vkCopyImageToMemoryEXT>,
    memory_to_image: Option<vk::PFN_vkCopyMemoryToImageEXT>,
}

impl HostCopy {
    /// Asks `load` for each function by its names, newest first; null leaves it out.
    pub fn load(load: impl Fn(&[&CStr]) -> *const c_void) -> Self {
        let image_to_memory = load(&[c"vkCopyImageToMemory", c"vkCopyImageToMemoryEXT"]);
        let memory_to_image = load(&[c"vkCopyMemoryToImage", c"vkCopyMemoryToImageEXT"]);
        Self {
            // SAFETY: the pointer is null or the function of this name, whose type the registry gives.
            image_to_memory: unsafe { std::mem::transmute::<*const c_void, Option<_>>(image_to_memory) },
            // SAFETY: as above.
            memory_to_image: unsafe { std::mem::transmute::<*const c_void, Option<_>>(memory_to_image) },
        }
    }
}

/// One region of a copy, whichever way it goes.
#[derive(Clone, Copy)]
pub struct Region {
    /// Whether texels are taken as they lie in the image.
    pub flags: venus::HostImageCopyFlags,
    /// Texels from row to row, or 0.
    pub row_length: u32,
    /// Rows from layer to layer, or 0.
    pub image_height: u32,
    /// Level and layers of the image.
    pub subresource: venus::ImageSubresourceLayers,
    /// Texels.
    pub extent: venus::Extent3D,
}

/// The image of a copy.
struct Image {
    raw: u64,
    block: FormatBlock,
    array_layers: u32,
}

impl Image {
    /// Looks an image up, and what it is in the command that created it.
    fn find(call: &Call<'_>, id: venus::Image) -> Result<Self, Fault> {
        let l = call.lowering();
        let object = l.objects.get(id)?;
        let mut reader = Reader::new(&object.created_by, call.arena);
        let header = Header::decode(&mut reader)?;
        let venus::Command::CreateImage(create) = venus::Command::decode(header.number, &mut reader)? else {
            return Err(super::call::inconsistent());
        };
        let info = create.p_create_info.ok_or_else(super::call::inconsistent)?;
        let block = format_block(info.format).ok_or_else(|| Fault::lost("an image of an unknown format"))?;
        Ok(Self { raw: object.raw, block, array_layers: info.array_layers })
    }

    /// Bytes of memory from the first to behind the last texel of a region.
    fn bytes(&self, device: &Device, region: &Region) -> Result<u64, Fault> {
        let bytes = if region.flags.contains(venus::HostImageCopyFlags::MEMCPY) {
            self.opaque_bytes(device, region)?
        } else {
            region_bytes(self.block, region, self.layers(region))
        };
        bytes.ok_or_else(|| Fault::lost("a host image copy of more bytes than there can be"))
    }

    /// Layers of a region; `VK_REMAINING_ARRAY_LAYERS` is the largest number.
    fn layers(&self, region: &Region) -> u64 {
        let rest = self.array_layers.saturating_sub(region.subresource.base_array_layer);
        region.subresource.layer_count.min(rest).into()
    }

    /// `VK_HOST_IMAGE_COPY_MEMCPY`: the driver's own layout, layer behind layer.
    fn opaque_bytes(&self, device: &Device, region: &Region) -> Result<Option<u64>, Fault> {
        let Some(function) = device.table.get_image_subresource_layout2 else {
            return Err(Fault::missing("vkGetImageSubresourceLayout2"));
        };
        let subresource = sys::ImageSubresource2 {
            s_type: vk::StructureType::IMAGE_SUBRESOURCE_2_KHR.as_raw(),
            p_next: std::ptr::null(),
            image_subresource: sys::ImageSubresource {
                aspect_mask: region.subresource.aspect_mask.0,
                mip_level: region.subresource.mip_level,
                array_layer: region.subresource.base_array_layer,
            },
        };
        let mut size = vk::SubresourceHostMemcpySizeEXT::default();
        let mut layout = vk::SubresourceLayout2KHR::default().push_next(&mut size);
        // SAFETY: device and image are live, both structs live until the call returns and have the layout of ash's.
        unsafe { function(device.raw(), self.raw, &raw const subresource, (&raw mut layout).cast()) };
        Ok(size.size.checked_mul(self.layers(region)))
    }
}

/// Bytes of memory that a region of texels spans (Vulkan, "Copying Data Between Buffers and Images"); none if they cannot be
/// counted. For formats of several planes or aspects this is that of all, which is no less than that of one.
pub fn region_bytes(block: FormatBlock, region: &Region, layers: u64) -> Option<u64> {
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

/// `vkCopyImageToMemoryMESA`.
pub fn copy_image_to_memory_mesa<'a>(
    call: &Call<'a>,
    c: &venus::CopyImageToMemoryMESA<'a>,
) -> Result<venus::CopyImageToMemoryMESAReply<'a>, Fault> {
    let device = call.device(c.device)?;
    let Some(function) = device.host_copy.image_to_memory else {
        return Err(Fault::missing("vkCopyImageToMemory"));
    };
    let Some(info) = c.p_copy_image_to_memory_info else {
        return Err(Fault::lost("vkCopyImageToMemoryMESA without a description"));
    };
    let image = Image::find(call, info.src_image)?;
    let region = Region {
        flags: info.flags,
        row_length: info.memory_row_length,
        image_height: info.memory_image_height,
        subresource: info.image_subresource,
        extent: info.image_extent,
    };
    let wanted = c.p_data.unwrap_or(&[]);
    let memory = padded(call, wanted, image.bytes(&device, &region)?)?;
    let copy = [vk::ImageToMemoryCopyEXT {
        p_host_pointer: memory.as_mut_ptr().cast(),
        memory_row_length: info.memory_row_length,
        memory_image_height: info.memory_image_height,
        image_subresource: subresource_layers(&info.image_subresource),
        image_offset: offset(info.image_offset),
        image_extent: extent(info.image_extent),
        ..Default::default()
    }];
    let host = vk::CopyImageToMemoryInfoEXT::default()
        .flags(vk::HostImageCopyFlagsEXT::from_raw(info.flags.0))
        .src_image(vk::Image::from_raw(image.raw))
        .src_image_layout(vk::ImageLayout::from_raw(info.src_image_layout.0))
        .regions(&copy);
    // SAFETY: device and image are live, `host` lives until the call returns and the memory has room for the region.
    let result = unsafe { function(device.ash.handle(), &raw const host) };
    let data = &memory[..wanted.len()];
    Ok(venus::CopyImageToMemoryMESAReply {
        result: venus::VkResult(result.as_raw()),
        p_data: c.p_data.map(|_| data),
    })
}

/// `vkCopyMemoryToImageMESA`.
pub fn copy_memory_to_image_mesa<'a>(
    call: &Call<'a>,
    c: &venus::CopyMemoryToImageMESA<'a>,
) -> Result<venus::CopyMemoryToImageMESAReply, Fault> {
    let device = call.device(c.device)?;
    let Some(function) = device.host_copy.memory_to_image else {
        return Err(Fault::missing("vkCopyMemoryToImage"));
    };
    let Some(info) = c.p_copy_memory_to_image_info else {
        return Err(Fault::lost("vkCopyMemoryToImageMESA without a description"));
    };
    let image = Image::find(call, info.dst_image)?;
    let regions = info.p_regions.unwrap_or(&[]);
    let copies = regions.iter().map(|region| source(call, &device, &image, info.flags, region));
    let copies = copies.collect::<Result<Vec<_>, _>>()?;
    let host = vk::CopyMemoryToImageInfoEXT::default()
        .flags(vk::HostImageCopyFlagsEXT::from_raw(info.flags.0))
        .dst_image(vk::Image::from_raw(image.raw))
        .dst_image_layout(vk::ImageLayout::from_raw(info.dst_image_layout.0))
        .regions(&copies);
    // SAFETY: device and image are live, `host` lives until the call returns and each memory is as large as its region.
    let result = unsafe { function(device.ash.handle(), &raw const host) };
    Ok(venus::CopyMemoryToImageMESAReply { result: venus::VkResult(result.as_raw()) })
}

/// One region whose texels came with the command; used where they lie unless the driver would read behind them.
fn source<'a>(
    call: &Call<'a>,
    device: &Device,
    image: &Image,
    flags: venus::HostImageCopyFlags,
    region: &venus::MemoryToImageCopyMESA<'a>,
) -> Result<vk::MemoryToImageCopyEXT<'a>, Fault> {
    let shape = Region {
        flags,
        row_length: region.memory_row_length,
        image_height: region.memory_image_height,
        subresource: region.image_subresource,
        extent: region.image_extent,
    };
    let sent = region.p_data.unwrap_or(&[]);
    let read = image.bytes(device, &shape)?;
    let memory = if sent.len() as u64 >= read { sent } else { padded(call, sent, read)? };
    Ok(vk::MemoryToImageCopyEXT {
        p_host_pointer: memory.as_ptr().cast(),
        memory_row_length: region.memory_row_length,
        memory_image_height: region.memory_image_height,
        image_subresource: subresource_layers(&region.image_subresource),
        image_offset: offset(region.image_offset),
        image_extent: extent(region.image_extent),
        ..Default::default()
    })
}

/// A copy of `bytes` with zeros behind them up to `size`.
fn padded<'a>(call: &Call<'a>, bytes: &[u8], size: u64) -> Result<&'a mut [u8], Fault> {
    let size = usize::try_from(size).map_err(|_| Fault::lost("a host image copy larger than memory"))?;
    if size <= bytes.len() {
        return Ok(call.arena.slice_copy(bytes)?);
    }
    let all = call.arena.slice_fill(size, 0)?;
    all[..bytes.len()].copy_from_slice(bytes);
    Ok(all)
}

fn subresource_layers(layers: &venus::ImageSubresourceLayers) -> vk::ImageSubresourceLayers {
    vk::ImageSubresourceLayers {
        aspect_mask: vk::ImageAspectFlags::from_raw(layers.aspect_mask.0),
        mip_level: layers.mip_level,
        base_array_layer: layers.base_array_layer,
        layer_count: layers.layer_count,
    }
}

fn offset(venus::Offset3D { x, y, z }: venus::Offset3D) -> vk::Offset3D {
    vk::Offset3D { x, y, z }
}

fn extent(venus::Extent3D { width, height, depth }: venus::Extent3D) -> vk::Extent3D {
    vk::Extent3D { width, height, depth }
}

#[cfg(test)]
mod tests {
    use super::*;

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
