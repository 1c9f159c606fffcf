//! Buffers, created for the memory they may be bound to.
//!
//! Mappable memory is imported or exported by the back end of `memory`, and Vulkan wants every buffer bound to such memory to say so
//! when it is created (VUID-VkBindBufferMemoryInfo-memory-02985 and -02726). A guest does not know of the back end, so this file adds the
//! statement to every buffer for which the driver allows it.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use crate::context::cause::InheritedError;
use crate::context::error::{Fault, demand};
use crate::context::restored;
use crate::execution::call::Call;
use crate::logical::device::{Addressing, Device};
use crate::lowering::handle_types::{MAPPABLE_MEMORY, OWN_MEMORY};
use crate::lowering::lower::raise_pointer;
use crate::memory::external;
use crate::objects::object::Handle as _;
use crate::validity::buffers;
use protocol::venus::generated::{self as venus, ChainStruct, ExternalMemoryHandleTypeFlags as HandleTypes};

/// The description of a buffer with its address settled, and whether a successor can have the same address. This function sets the flag for
/// that, and the address comes from a snapshot: guests can choose neither.
fn addressed<'a>(
    call: &Call<'a>,
    device: &Device,
    info: &'a venus::BufferCreateInfo<'a>,
    address: Option<u64>,
) -> Result<(&'a venus::BufferCreateInfo<'a>, bool), Fault> {
    const FLAG: u32 = venus::BufferCreateFlags::DEVICE_ADDRESS_CAPTURE_REPLAY.0;
    let replays = device.replays_addresses && buffers::has_address(info);
    if address.is_some() && !replays {
        return Err(
            InheritedError::Broken("a snapshot gives an address to a buffer that can have none").into()
        );
    }
    let chosen = |next: &ChainStruct<'_>| {
        let old = matches!(next, ChainStruct::BufferDeviceAddressCreateInfoEXT(_));
        old || matches!(next, ChainStruct::BufferOpaqueCaptureAddressCreateInfo(_))
    };
    let flags = info.flags.0 & !FLAG | if replays { FLAG } else { 0 };
    if flags == info.flags.0 && address.is_none() && !info.p_next.iter().any(chosen) {
        return Ok((info, replays));
    }
    let again = address.filter(|address| *address != 0).map(|opaque_capture_address| {
        let again = venus::BufferOpaqueCaptureAddressCreateInfo { p_next: &[], opaque_capture_address };
        Ok::<_, Fault>(ChainStruct::BufferOpaqueCaptureAddressCreateInfo(call.arena.value(again)?))
    });
    let p_next = call.chain_with(info.p_next, chosen, again.transpose()?)?;
    let flags = venus::BufferCreateFlags(flags);
    Ok((call.arena.value(venus::BufferCreateInfo { p_next, flags, ..*info })?, replays))
}

/// The description of a buffer that names the memory it may be bound to; none if the driver does not allow it, or the guest has named such memory.
fn described<'a>(
    call: &Call<'a>,
    device: &Device,
    info: &venus::BufferCreateInfo<'a>,
    handle_types: HandleTypes,
) -> Result<Option<venus::BufferCreateInfo<'a>>, Fault> {
    let says = |next: &ChainStruct<'_>| matches!(next, ChainStruct::ExternalMemoryBufferCreateInfo(_));
    let has_said = handle_types == MAPPABLE_MEMORY && info.p_next.iter().any(says);
    if has_said || !external::takes_buffer(call, device, info, handle_types)? {
        return Ok(None);
    }
    let external = venus::ExternalMemoryBufferCreateInfo { p_next: &[], handle_types };
    let external = ChainStruct::ExternalMemoryBufferCreateInfo(call.arena.value(external)?);
    let p_next = call.chain_with(info.p_next, says, Some(external))?;
    Ok(Some(venus::BufferCreateInfo { p_next, ..*info }))
}

/// The description of the buffer beside that for pages; none if one buffer is enough. It names the driver's own memory if that is given to
/// successors. A buffer whose address a successor cannot have is never in such memory.
fn second<'a>(
    call: &Call<'a>,
    device: &Device,
    info: &venus::BufferCreateInfo<'a>,
    (replays, is_for_imports): (bool, bool),
) -> Result<Option<venus::BufferCreateInfo<'a>>, Fault> {
    if device.exports.is_none() {
        return Ok(is_for_imports.then_some(*info));
    }
    if buffers::has_address(info) && !replays {
        return Ok(None);
    }
    let own = described(call, device, info, OWN_MEMORY)?;
    if own.is_none() {
        device.export_no_more(Addressing::of(replays));
    }
    Ok(own)
}

/// Demands that a guest names none of the handle types that are only ours.
fn demand_known(info: &venus::BufferCreateInfo<'_>) -> Result<(), Fault> {
    let is_ours = |next: &ChainStruct<'_>| match next {
        ChainStruct::ExternalMemoryBufferCreateInfo(external) => external.handle_types == OWN_MEMORY,
        _ => false,
    };
    demand(!info.p_next.iter().any(is_ours), "a buffer for memory of an unknown kind")
}

/// Has the driver make a buffer; answers a `VkResult` and the buffer.
fn make(call: &Call<'_>, device: &Device, info: &venus::BufferCreateInfo<'_>) -> Result<(i32, u64), Fault> {
    let lowered = call.lowering().pointer(Some(info))?;
    let Some(function) = device.table.create_buffer else { return Err(Fault::missing("vkCreateBuffer")) };
    let mut raw = 0u64;
    // SAFETY: the device is live, `lowered` and its chain live in the arena.
    let result = unsafe { function(device.raw(), lowered, std::ptr::null(), &raw mut raw) };
    Ok((result, raw))
}

/// `vkCreateBuffer`.
pub(crate) fn create_buffer<'a>(
    call: &Call<'a>,
    c: &venus::CreateBuffer<'a>,
) -> Result<venus::CreateBufferReply<'a>, Fault> {
    let device = call.device(c.device)?;
    let Some(info) = c.p_create_info else {
        return Err(Fault::without("a description"));
    };
    let address = c.p_buffer.and_then(|id| call.context.restored.take_address(id.id()));
    let (info, replays) = addressed(call, &device, info, address)?;
    let state = buffers::of_buffer(info, replays)?;
    demand_known(info)?;
    let for_imports = described(call, &device, info, MAPPABLE_MEMORY)?;
    let (result, mut raw) = make(call, &device, for_imports.as_ref().unwrap_or(info))?;
    restored::demand_given(address, result)?;
    if let (Some(dual), Some(second), 0..) =
        (&device.dual_buffers, second(call, &device, info, (replays, for_imports.is_some()))?, result)
    {
        let (result, own) = make(call, &device, &second)?;
        restored::demand_given(address, result)?;
        if result >= 0 {
            // SAFETY: both were made just now.
            raw = unsafe { dual.pair(&device, own, raw, Addressing::of(replays)) };
        }
    }
    call.bind(c.p_buffer, raw, &device, result, state)?;
    Ok(venus::CreateBufferReply { result: venus::VkResult(result), p_buffer: c.p_buffer })
}

/// `vkGetDeviceBufferMemoryRequirements`: of the buffer as `vkCreateBuffer` makes it.
pub(crate) fn get_device_buffer_memory_requirements<'a>(
    call: &Call<'a>,
    c: &venus::GetDeviceBufferMemoryRequirements<'a>,
) -> Result<venus::GetDeviceBufferMemoryRequirementsReply<'a>, Fault> {
    let device = call.device(c.device)?;
    let (Some(info), Some(buffer)) = (c.p_info, c.p_info.and_then(|info| info.p_create_info)) else {
        return Err(Fault::without("a description"));
    };
    let (buffer, _) = addressed(call, &device, buffer, None)?;
    // If the driver maps memory for guests, this describes that buffer of the two which may be bound to more memory.
    let driver_maps = device.physical.gpu.trial.driver_mapped.types != 0;
    let for_imports = if driver_maps { None } else { described(call, &device, buffer, MAPPABLE_MEMORY)? };
    let buffer = for_imports.as_ref().unwrap_or(buffer);
    let info = venus::DeviceBufferMemoryRequirements { p_create_info: Some(buffer), ..*info };
    let (info, out) = {
        let l = call.lowering();
        (l.pointer(Some(&info))?, l.out_pointer(c.p_memory_requirements)?)
    };
    let Some(function) = device.table.get_device_buffer_memory_requirements else {
        return Err(Fault::missing("vkGetDeviceBufferMemoryRequirements"));
    };
    // SAFETY: the device is live, both structs and their chains are memory of the arena.
    unsafe { function(device.raw(), info, out) };
    Ok(venus::GetDeviceBufferMemoryRequirementsReply {
        p_memory_requirements: raise_pointer(c.p_memory_requirements, out, call.arena)?,
    })
}
