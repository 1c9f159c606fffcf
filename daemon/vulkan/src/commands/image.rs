//! Images, created for the memory they may be bound to.
//!
//! As with buffers, memory that guests map is imported or exported by the back end of `memory`, and an image that is bound to such
//! memory has to say so when it is created (VUID-VkBindImageMemoryInfo-memory-02989 and -02728). This file adds the statement to every image
//! whose requirements the statement does not change: a driver may keep images that can lie in external memory out of the GPU's own memory.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use crate::context::error::{Fault, demand};
use crate::execution::call::Call;
use crate::logical::device::{Addressing, Device};
use crate::lowering::handle_types::{MAPPABLE_MEMORY, OWN_MEMORY};
use crate::lowering::lower::raise_pointer;
use crate::memory::external;
use crate::objects::object::StateOf;
use crate::shape::formats::Asked;
use crate::validity::images;
use protocol::venus::generated::{
    self as venus, ChainStruct, ExternalMemoryHandleTypeFlags as HandleTypes, ImageAspectFlags,
    ImageCreateFlags,
};

/// The description of an image that names the memory it may be bound to; none if the guest has named such memory, or the image must not name it.
fn described<'a>(
    call: &Call<'a>,
    device: &Device,
    info: &venus::ImageCreateInfo<'a>,
    handle_types: HandleTypes,
) -> Result<Option<venus::ImageCreateInfo<'a>>, Fault> {
    let says = |next: &ChainStruct<'_>| matches!(next, ChainStruct::ExternalMemoryImageCreateInfo(_));
    // External memory holds no image that was initialised before (VUID-VkImageCreateInfo-pNext-01443).
    let fresh = info.initial_layout == venus::ImageLayout::UNDEFINED;
    let modified = info.tiling == venus::ImageTiling::DRM_FORMAT_MODIFIER_EXT;
    if info.p_next.iter().any(says) || !fresh || modified {
        return Ok(None);
    }
    let Some(alone) = requirements(call, device, info)? else { return Ok(None) };
    let gpu = &device.physical.gpu;
    let types = if handle_types == OWN_MEMORY { gpu.exported_types() } else { gpu.trial.mappable_types };
    if alone.memory_type_bits & types == 0
        || !external::takes_image(call, &device.physical, info, handle_types)?
    {
        return Ok(None);
    }
    let external = venus::ExternalMemoryImageCreateInfo { p_next: &[], handle_types };
    let external = ChainStruct::ExternalMemoryImageCreateInfo(call.arena.value(external)?);
    let p_next = call.chain_with(info.p_next, says, Some(external))?;
    let described = venus::ImageCreateInfo { p_next, ..*info };
    let same = requirements(call, device, &described)? == Some(alone);
    Ok(same.then_some(described))
}

/// The memory that an image of this description would need, or that its first plane would need if planes have memory of their own; none if
/// the driver is too old to tell.
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

/// Demands that a guest names none of the handle types that are only ours.
fn demand_known(info: &venus::ImageCreateInfo<'_>) -> Result<(), Fault> {
    let is_ours = |next: &ChainStruct<'_>| match next {
        ChainStruct::ExternalMemoryImageCreateInfo(external) => external.handle_types == OWN_MEMORY,
        _ => false,
    };
    demand(!info.p_next.iter().any(is_ours), "an image for memory of an unknown kind")
}

/// `vkCreateImage`.
pub(crate) fn create_image<'a>(
    call: &Call<'a>,
    c: &venus::CreateImage<'a>,
) -> Result<venus::CreateImageReply<'a>, Fault> {
    let device = call.device(c.device)?;
    let Some(info) = c.p_create_info else {
        return Err(Fault::without("a description"));
    };
    let asked = Asked::new(info.format, info.tiling, info.usage, info.flags, info.p_next);
    if asked.is_for_drawing_only(device.physical.gpu.queues) {
        return Err(Fault::Failed(call.undrawn()));
    }
    let mut facts = images::of_image(&device, info)?;
    demand_known(info)?;
    let mut external = described(call, &device, info, MAPPABLE_MEMORY)?;
    if device.exports.is_some() {
        if external.is_none() {
            external = described(call, &device, info, OWN_MEMORY)?;
            facts.survives = external.is_some();
        }
        if !facts.survives {
            device.export_no_more(Addressing::None);
        }
    }
    let lowered = call.lowering().pointer(Some(external.as_ref().unwrap_or(info)))?;
    let Some(function) = device.table.create_image else { return Err(Fault::missing("vkCreateImage")) };
    let mut raw = 0u64;
    // SAFETY: the device is live, `lowered` and its chain live in the arena.
    let result = unsafe { function(device.raw(), lowered, std::ptr::null(), &raw mut raw) };
    call.bind(c.p_image, raw, &device, result, StateOf::of(facts))?;
    Ok(venus::CreateImageReply { result: venus::VkResult(result), p_image: c.p_image })
}
