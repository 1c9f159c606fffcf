//! Formats as a guest sees them, without features and images that the guest cannot use.
//!
//! A guest cannot name bits that the codec does not know: the generated code drops them from answers, and answers "not supported" if
//! a question describes an image with such bits. The rest is about copies by the host (`host_copy`), for which a guest's driver sends the
//! texels. Mesa before 26.2 takes the texels of every plane to be as large as the format's smallest, so it sends too few bytes for planes
//! with texels of more than a byte. It takes the texels of formats that its own tables lack to be one byte. Programs that see that the host
//! does not copy such images copy them by a buffer.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use crate::context::error::Fault;
use crate::execution::call::Call;
use crate::lowering::lower::{known, raise_pointer};
use crate::memory::external::demand_usable;
use crate::shape::formats::{Asked, hidden, without, without2};
use ash::vk;
use protocol::venus::generated as venus;

/// `vkGetPhysicalDeviceFormatProperties`. Mesa never sends it.
pub(crate) fn get_physical_device_format_properties<'a>(
    call: &Call<'a>,
    c: &venus::GetPhysicalDeviceFormatProperties<'a>,
) -> Result<venus::GetPhysicalDeviceFormatPropertiesReply<'a>, Fault> {
    let physical = call.physical_device(c.physical_device)?;
    let Some(function) = physical.instance.table.get_physical_device_format_properties else {
        return Err(Fault::missing("vkGetPhysicalDeviceFormatProperties"));
    };
    let (format, out) = (known(c.format)?, call.lowering().out_pointer(c.p_format_properties)?);
    // SAFETY: the handle is live, `out` is memory of the arena or null.
    unsafe { function(physical.raw(), format, out) };
    if !out.is_null() {
        // SAFETY: as above, and not null; nothing else refers to it.
        without(hidden(c.format, physical.gpu.queues), unsafe { &mut *out });
    }
    Ok(venus::GetPhysicalDeviceFormatPropertiesReply {
        p_format_properties: raise_pointer(c.p_format_properties, out, call.arena)?,
    })
}

/// `vkGetPhysicalDeviceFormatProperties2`.
pub(crate) fn get_physical_device_format_properties2<'a>(
    call: &Call<'a>,
    c: &venus::GetPhysicalDeviceFormatProperties2<'a>,
) -> Result<venus::GetPhysicalDeviceFormatProperties2Reply<'a>, Fault> {
    let physical = call.physical_device(c.physical_device)?;
    let Some(function) = physical.instance.table.get_physical_device_format_properties2 else {
        return Err(Fault::missing("vkGetPhysicalDeviceFormatProperties2"));
    };
    let (format, out) = (known(c.format)?, call.lowering().out_pointer(c.p_format_properties)?);
    // SAFETY: the handle is live, `out` and its chain are memory of the arena or null.
    unsafe { function(physical.raw(), format, out) };
    let hidden = hidden(c.format, physical.gpu.queues);
    if hidden != 0 && !out.is_null() {
        // SAFETY: as above, and not null; nothing else refers to it.
        without2(hidden, unsafe { &mut *out });
    }
    Ok(venus::GetPhysicalDeviceFormatProperties2Reply {
        p_format_properties: raise_pointer(c.p_format_properties, out, call.arena)?,
    })
}

/// `vkGetPhysicalDeviceImageFormatProperties`.
pub(crate) fn get_physical_device_image_format_properties<'a>(
    call: &Call<'a>,
    c: &venus::GetPhysicalDeviceImageFormatProperties<'a>,
) -> Result<venus::GetPhysicalDeviceImageFormatPropertiesReply<'a>, Fault> {
    let physical = call.physical_device(c.physical_device)?;
    let Some(function) = physical.instance.table.get_physical_device_image_format_properties else {
        return Err(Fault::missing("vkGetPhysicalDeviceImageFormatProperties"));
    };
    let unsupported = || Fault::from(vk::Result::ERROR_FORMAT_NOT_SUPPORTED);
    demand_usable(call, &physical, &Asked::new(c.format, c.tiling, c.usage, c.flags, &[]))?;
    // Programs ask for formats that are newer than this code.
    let number = |known: Result<i32, Fault>| known.map_err(|_| unsupported());
    let (format, ty) = (number(known(c.format))?, number(known(c.ty))?);
    let tiling = number(known(c.tiling))?;
    let out = call.lowering().out_pointer(c.p_image_format_properties)?;
    // SAFETY: the handle is live, `out` is memory of the arena or null.
    let result = unsafe { function(physical.raw(), format, ty, tiling, c.usage.0, c.flags.0, out) };
    Ok(venus::GetPhysicalDeviceImageFormatPropertiesReply {
        result: venus::VkResult(result),
        p_image_format_properties: raise_pointer(c.p_image_format_properties, out, call.arena)?,
    })
}
