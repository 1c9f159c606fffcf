//! Host image copies (Vulkan 1.4, VK_EXT_host_image_copy): texels travel in the command or in its reply.
//!
//! The guest's driver turns `vkCopyImageToMemory` and `vkCopyMemoryToImage` into commands of VK_MESA_venus_protocol that carry the
//! bytes instead of a pointer. The size of the memory that the host's driver touches follows from the region and the image, not from the size
//! that the guest sent, so this file computes it. A guest that sent less gets an error: it would take made-up texels for its own.
//!
//! An opaque copy (`VK_HOST_IMAGE_COPY_MEMCPY`) of several layers reaches the driver as one region for each layer: NVIDIA's driver (580) copies all
//! layers of a region to the same bytes, one over the other.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use crate::context::error::Fault;
use crate::driver::generated::sys;
use crate::execution::call::Call;
use crate::logical::device::Device;
use crate::validity::region::{Region, demand_host_copy};
use ash::vk::{self, Handle as _};
use protocol::venus::generated as venus;
use std::sync::Once;

/// The host's image of a copy, and the bytes of memory that the copy touches.
struct Needs {
    /// The host's image.
    image: u64,
    /// The parts of the copy, one behind the other in memory, that the driver copies as a region each: layers, or everything.
    parts: u32,
    /// Bytes of a part, from the first byte that the copy touches to the end of the last. `part_bytes * parts` fits a `usize`.
    part_bytes: usize,
}

impl Needs {
    /// Looks the image up, and demands that the region lies in it.
    fn of(
        call: &Call<'_>,
        device: &Device,
        id: venus::Image,
        region: &Region,
        offset: venus::Offset3D,
    ) -> Result<Self, Fault> {
        let l = call.lowering();
        let (image, facts) = (l.handle(id)?, l.objects.image(id)?);
        let bytes = demand_host_copy(facts, region, offset)?;
        let (each, parts) = match region.flags.contains(venus::HostImageCopyFlags::MEMCPY) {
            // A layer has a byte at least, so that there are no more parts than bytes.
            true => (layer_bytes(device, image, region)?.max(1), facts.layers_of(&region.subresource)),
            false => (bytes, 1),
        };
        let (Ok(part_bytes), Ok(parts), Some(_)) =
            (usize::try_from(each), u32::try_from(parts), each.checked_mul(parts))
        else {
            return Err(Fault::invalid("a host image copy takes more bytes than there can be"));
        };
        Ok(Self { image, parts, part_bytes })
    }

    /// Bytes of memory that the copy touches.
    fn bytes(&self) -> usize {
        self.part_bytes * self.parts as usize
    }

    /// Returns the regions of the driver's for a region of the guest's: the layers of each, and the offset of its bytes.
    fn regions(&self, of: &Region) -> impl Iterator<Item = (vk::ImageSubresourceLayers, usize)> + use<> {
        let all = subresource_layers(&of.subresource);
        let Self { parts, part_bytes, .. } = *self;
        (0..parts).map(move |part| {
            let one = vk::ImageSubresourceLayers {
                base_array_layer: all.base_array_layer + part,
                layer_count: 1,
                ..all
            };
            (if parts == 1 { all } else { one }, part as usize * part_bytes)
        })
    }
}

/// Returns the bytes of one layer in the driver's own layout.
fn layer_bytes(device: &Device, image: u64, region: &Region) -> Result<u64, Fault> {
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
    unsafe { function(device.raw(), image, &raw const subresource, (&raw mut layout).cast()) };
    Ok(size.size)
}

/// Refuses a copy because the guest's driver has sent fewer bytes than the copy takes, or has too little room for them.
fn cut(call: &Call<'_>, there: usize, needed: usize) -> Fault {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        log::warn!(
            "a copy between memory and an image is refused: the guest's driver has {there} of its {needed} bytes; \
             Mesa before 26.2 sends too few for some formats"
        );
    });
    let result = vk::Result::ERROR_INITIALIZATION_FAILED;
    call.note_failure(result.as_raw());
    result.into()
}

/// `vkCopyImageToMemoryMESA`.
pub(crate) fn copy_image_to_memory_mesa<'a>(
    call: &Call<'a>,
    c: &venus::CopyImageToMemoryMESA<'a>,
) -> Result<venus::CopyImageToMemoryMESAReply<'a>, Fault> {
    let device = call.device(c.device)?;
    let Some(function) = device.host_copy.image_to_memory else {
        return Err(Fault::missing("vkCopyImageToMemory"));
    };
    let Some(info) = c.p_copy_image_to_memory_info else {
        return Err(Fault::without("a description"));
    };
    let region = Region {
        flags: info.flags,
        row_length: info.memory_row_length,
        image_height: info.memory_image_height,
        subresource: info.image_subresource,
        extent: info.image_extent,
    };
    let needs = Needs::of(call, &device, info.src_image, &region, info.image_offset)?;
    let room = c.p_data.unwrap_or(&[]);
    if room.len() < needs.bytes() {
        return Err(cut(call, room.len(), needs.bytes()));
    }
    let memory = call.arena.slice_copy(room)?;
    let copy = |(image_subresource, at)| vk::ImageToMemoryCopyEXT {
        p_host_pointer: memory.as_mut_ptr().wrapping_add(at).cast(),
        memory_row_length: info.memory_row_length,
        memory_image_height: info.memory_image_height,
        image_subresource,
        image_offset: offset(info.image_offset),
        image_extent: extent(info.image_extent),
        ..Default::default()
    };
    let copies: Vec<_> = needs.regions(&region).map(copy).collect();
    let host = vk::CopyImageToMemoryInfoEXT::default()
        .flags(vk::HostImageCopyFlagsEXT::from_raw(info.flags.0))
        .src_image(vk::Image::from_raw(needs.image))
        .src_image_layout(vk::ImageLayout::from_raw(info.src_image_layout.0))
        .regions(&copies);
    // SAFETY: device and image are live, `host` lives until the call returns and the memory has room for the regions.
    let result = unsafe { function(device.ash.handle(), &raw const host) };
    Ok(venus::CopyImageToMemoryMESAReply {
        result: venus::VkResult(result.as_raw()),
        p_data: c.p_data.map(|_| &*memory),
    })
}

/// `vkCopyMemoryToImageMESA`.
pub(crate) fn copy_memory_to_image_mesa<'a>(
    call: &Call<'a>,
    c: &venus::CopyMemoryToImageMESA<'a>,
) -> Result<venus::CopyMemoryToImageMESAReply, Fault> {
    let device = call.device(c.device)?;
    let Some(function) = device.host_copy.memory_to_image else {
        return Err(Fault::missing("vkCopyMemoryToImage"));
    };
    let Some(info) = c.p_copy_memory_to_image_info else {
        return Err(Fault::without("a description"));
    };
    let raw = call.lowering().handle(info.dst_image)?;
    let regions = info.p_regions.unwrap_or(&[]);
    let mut copies = Vec::with_capacity(regions.len());
    for region in regions {
        copies.extend(sources(call, &device, info, region)?);
    }
    let host = vk::CopyMemoryToImageInfoEXT::default()
        .flags(vk::HostImageCopyFlagsEXT::from_raw(info.flags.0))
        .dst_image(vk::Image::from_raw(raw))
        .dst_image_layout(vk::ImageLayout::from_raw(info.dst_image_layout.0))
        .regions(&copies);
    // SAFETY: device and image are live, `host` lives until the call returns and each memory is as large as its region.
    let result = unsafe { function(device.ash.handle(), &raw const host) }.as_raw();
    if result < 0 {
        call.note_failure(result);
    }
    Ok(venus::CopyMemoryToImageMESAReply { result: venus::VkResult(result) })
}

/// The driver's regions for one region whose texels came with the command, used where they lie.
fn sources<'a>(
    call: &Call<'a>,
    device: &Device,
    info: &venus::CopyMemoryToImageInfoMESA<'a>,
    region: &venus::MemoryToImageCopyMESA<'a>,
) -> Result<impl Iterator<Item = vk::MemoryToImageCopyEXT<'a>>, Fault> {
    let shape = Region {
        flags: info.flags,
        row_length: region.memory_row_length,
        image_height: region.memory_image_height,
        subresource: region.image_subresource,
        extent: region.image_extent,
    };
    let needs = Needs::of(call, device, info.dst_image, &shape, region.image_offset)?;
    let sent = region.p_data.unwrap_or(&[]);
    if sent.len() < needs.bytes() {
        return Err(cut(call, sent.len(), needs.bytes()));
    }
    let copy = move |(image_subresource, at)| vk::MemoryToImageCopyEXT {
        p_host_pointer: sent.as_ptr().wrapping_add(at).cast(),
        memory_row_length: region.memory_row_length,
        memory_image_height: region.memory_image_height,
        image_subresource,
        image_offset: offset(region.image_offset),
        image_extent: extent(region.image_extent),
        ..Default::default()
    };
    Ok(needs.regions(&shape).map(copy))
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
