//! Images, created for the memory they may be bound to.
//!
//! As with buffers, memory that guests map is imported or exported by the back end of `memory`, and an image that is bound to such
//! memory has to say so when it is created (VUID-VkBindImageMemoryInfo-memory-02989 and -02728). It is said here for every image
//! whose requirements stay as they are: a driver may keep what can lie in memory of others out of the GPU's own.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use crate::context::error::Fault;
use crate::execution::call::Call;
use crate::logical::device::Device;
use crate::lowering::handle_types;
use crate::lowering::lower::raise_pointer;
use crate::memory::external;
use crate::shape::formats::Asked;
use crate::validity::images;
use protocol::venus::generated::{self as venus, ChainStruct, ImageAspectFlags, ImageCreateFlags};

/// The description of an image with the memory it may be bound to; none if it says something already, or must not.
fn described<'a>(
    call: &Call<'a>,
    device: &Device,
    info: &venus::ImageCreateInfo<'a>,
) -> Result<Option<venus::ImageCreateInfo<'a>>, Fault> {
    let says = |next: &ChainStruct<'_>| matches!(next, ChainStruct::ExternalMemoryImageCreateInfo(_));
    // Memory of others holds no image that was initialised before (VUID-VkImageCreateInfo-pNext-01443).
    let fresh = info.initial_layout == venus::ImageLayout::UNDEFINED;
    let modified = info.tiling == venus::ImageTiling::DRM_FORMAT_MODIFIER_EXT;
    if info.p_next.iter().any(says) || !fresh || modified {
        return Ok(None);
    }
    let Some(alone) = requirements(call, device, info)? else { return Ok(None) };
    if alone.memory_type_bits & device.physical.gpu.trial.mappable_types == 0
        || !external::takes_image(call, &device.physical, info)?
    {
        return Ok(None);
    }
    let handle_types = handle_types::MAPPABLE_MEMORY;
    let external = venus::ExternalMemoryImageCreateInfo { p_next: &[], handle_types };
    let external = ChainStruct::ExternalMemoryImageCreateInfo(call.arena.value(external)?);
    let chain = [info.p_next, &[external]].concat();
    let described = venus::ImageCreateInfo { p_next: call.arena.slice_copy(&chain)?, ..*info };
    let same = requirements(call, device, &described)? == Some(alone);
    Ok(same.then_some(described))
}

/// The memory that an image made of this description would need, its first plane where planes have memory of their own; none where the
/// driver is too old to tell.
fn requirements(
    call: &Call<'_>,
    device: &Device,
    info: &venus::ImageCreateInfo<'_>,
) -> Result<Option<venus::MemoryRequirements>, Fault> {
    let Some(function) = device.table.get_device_image_memory_requirements else { return Ok(None) };
    let disjoint = info.flags.contains(ImageCreateFlags::DISJOINT);
    let asked = venus::DeviceImageMemoryRequirements {
        p_next: &[],
        p_create_info: Some(info),
        plane_aspect: if disjoint { ImageAspectFlags::PLANE_0 } else { ImageAspectFlags(0) },
    };
    let partial = venus::MemoryRequirements2::default();
    let (asked, out) = {
        let l = call.lowering();
        (l.pointer(Some(&asked))?, l.out_pointer(Some(&partial))?)
    };
    // SAFETY: the device is live, both structs and their chains are memory of the arena.
    unsafe { function(device.raw(), asked, out) };
    Ok(raise_pointer(Some(&partial), out, call.arena)?.map(|answer| answer.memory_requirements))
}

/// `vkCreateImage`.
pub(crate) fn create_image<'a>(
    call: &Call<'a>,
    c: &venus::CreateImage<'a>,
) -> Result<venus::CreateImageReply<'a>, Fault> {
    let device = call.device(c.device)?;
    let Some(info) = c.p_create_info else {
        return Err(Fault::lost("vkCreateImage without a description"));
    };
    let asked = Asked::new(info.format, info.tiling, info.usage, info.flags, info.p_next);
    if asked.is_for_drawing_only(device.physical.gpu.queues) {
        return Err(Fault::Failed(call.undrawn()));
    }
    let state = images::of_image(&device, info)?;
    let for_imports = described(call, &device, info)?;
    let lowered = call.lowering().pointer(Some(for_imports.as_ref().unwrap_or(info)))?;
    let Some(function) = device.table.create_image else { return Err(Fault::missing("vkCreateImage")) };
    let mut raw = 0u64;
    // SAFETY: the device is live, `lowered` and its chain live in the arena.
    let result = unsafe { function(device.raw(), lowered, std::ptr::null(), &raw mut raw) };
    call.bind(c.p_image, raw, &device, result, state)?;
    Ok(venus::CreateImageReply { result: venus::VkResult(result), p_image: c.p_image })
}
