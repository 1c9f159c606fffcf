//! External memory as guests see it: guests know dma-bufs, and the host knows the handle types of its back end.
//!
//! Buffers can be shared by either back end. Images can be shared only as dma-bufs of the host: some drivers place no image with optimal tiling in
//! pages of ours.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use crate::context::error::Fault;
use crate::driver::buffers_told::Look;
use crate::driver::physical_device::PhysicalDevice;
use crate::execution::call::Call;
use crate::logical::device::Device;
use crate::lowering::handle_types::{OWN_MEMORY, host_types, is_dma_buf};
use crate::lowering::lower::raise_pointer;
use crate::shape::formats::Asked;
use ash::vk;
use config::MemoryBackEnd;
use protocol::venus::generated::{
    self as venus, ChainStruct, ExternalMemoryFeatureFlags as Features,
    ExternalMemoryHandleTypeFlags as HandleTypes,
};

/// Returns whether the driver lets a buffer declare that it may be bound to such memory. The driver is asked once for many buffers that are alike.
pub(crate) fn takes_buffer(
    call: &Call<'_>,
    device: &Device,
    info: &venus::BufferCreateInfo<'_>,
    which: HandleTypes,
) -> Result<bool, Fault> {
    let usage = info.p_next.iter().find(|next| matches!(next, ChainStruct::BufferUsageFlags2CreateInfo(_)));
    let more = match usage {
        Some(ChainStruct::BufferUsageFlags2CreateInfo(usage)) => Some(usage.usage.0),
        _ => None,
    };
    let look = Look { flags: info.flags.0, usage: info.usage.0, more, which: which.0 };
    device.buffers_told.of(look, || ask_of_buffer(call, &device.physical, info, usage, which))
}

/// Asks the driver about a buffer whose chain has this description of its usage, if it has one.
fn ask_of_buffer(
    call: &Call<'_>,
    physical: &PhysicalDevice,
    info: &venus::BufferCreateInfo<'_>,
    usage: Option<&ChainStruct<'_>>,
    which: HandleTypes,
) -> Result<bool, Fault> {
    let Some(function) = physical.instance.table.get_physical_device_external_buffer_properties else {
        return Ok(false);
    };
    let asked = venus::PhysicalDeviceExternalBufferInfo {
        p_next: usage.map_or(&[][..], std::slice::from_ref),
        flags: info.flags,
        usage: info.usage,
        handle_type: host_types(which, physical.gpu.memory),
    };
    let partial = venus::ExternalBufferProperties::default();
    let (asked, out) = {
        let l = call.lowering();
        (l.pointer(Some(&asked))?, l.out_pointer(Some(&partial))?)
    };
    // SAFETY: the handle is live, both structs are memory of the arena.
    unsafe { function(physical.raw(), asked, out) };
    let Some(answer) = raise_pointer(Some(&partial), out, call.arena)? else { return Ok(false) };
    Ok(can_say(&answer.external_memory_properties, physical.gpu.memory, which))
}

/// Returns whether a resource that may be bound to memory with these properties may declare so without having an allocation of its own.
fn can_say(properties: &venus::ExternalMemoryProperties, memory: MemoryBackEnd, which: HandleTypes) -> bool {
    let features = properties.external_memory_features.0;
    let needed = match memory {
        _ if which == OWN_MEMORY => Features::IMPORTABLE.0 | Features::EXPORTABLE.0,
        MemoryBackEnd::Memfd => Features::IMPORTABLE.0,
        MemoryBackEnd::DmaBuf => Features::EXPORTABLE.0,
    };
    features & needed == needed && features & Features::DEDICATED_ONLY.0 == 0
}

/// Returns whether the driver lets an image declare that it may be bound to such memory.
pub(crate) fn takes_image(
    call: &Call<'_>,
    physical: &PhysicalDevice,
    info: &venus::ImageCreateInfo<'_>,
    which: HandleTypes,
) -> Result<bool, Fault> {
    let Some(function) = physical.instance.table.get_physical_device_image_format_properties2 else {
        return Ok(false);
    };
    let external = venus::PhysicalDeviceExternalImageFormatInfo { p_next: &[], handle_type: which };
    let external = [ChainStruct::PhysicalDeviceExternalImageFormatInfo(&external)];
    let asked_too = |next: &&ChainStruct<'_>| {
        matches!(
            next,
            ChainStruct::ImageFormatListCreateInfo(_) | ChainStruct::ImageStencilUsageCreateInfo(_)
        )
    };
    let chain: Vec<_> = info.p_next.iter().filter(asked_too).chain(&external).copied().collect();
    let asked = venus::PhysicalDeviceImageFormatInfo2 {
        p_next: &chain,
        format: info.format,
        ty: info.image_type,
        tiling: info.tiling,
        usage: info.usage,
        flags: info.flags,
    };
    let partial = venus::ExternalImageFormatProperties::default();
    let partial = [ChainStruct::ExternalImageFormatProperties(&partial)];
    let partial = venus::ImageFormatProperties2 { p_next: &partial, ..Default::default() };
    let (asked, out) = {
        let l = call.lowering();
        (l.pointer(Some(&asked))?, l.out_pointer(Some(&partial))?)
    };
    // SAFETY: the handle is live, both structs and their chains are memory of the arena.
    let result = unsafe { function(physical.raw(), asked, out) };
    let answer = if result < 0 { None } else { raise_pointer(Some(&partial), out, call.arena)? };
    let Some(answer) = answer else { return Ok(false) };
    let says = answer.p_next.iter().any(|next| match next {
        ChainStruct::ExternalImageFormatProperties(properties) => {
            can_say(&properties.external_memory_properties, physical.gpu.memory, which)
        }
        _ => false,
    });
    let (limits, extent) = (&answer.image_format_properties, &info.extent);
    let most = &limits.max_extent;
    let fits = extent.width <= most.width && extent.height <= most.height && extent.depth <= most.depth;
    let fits =
        fits && info.mip_levels <= limits.max_mip_levels && info.array_layers <= limits.max_array_layers;
    Ok(says && fits && limits.sample_counts.contains(info.samples))
}

/// `vkGetPhysicalDeviceExternalBufferProperties`.
pub(crate) fn get_physical_device_external_buffer_properties<'a>(
    call: &Call<'a>,
    c: &venus::GetPhysicalDeviceExternalBufferProperties<'a>,
) -> Result<venus::GetPhysicalDeviceExternalBufferPropertiesReply<'a>, Fault> {
    let physical = call.physical_device(c.physical_device)?;
    let (Some(info), Some(partial)) = (c.p_external_buffer_info, c.p_external_buffer_properties) else {
        return Err(Fault::without("a question"));
    };
    let mut answer = *partial;
    answer.external_memory_properties = none_of(info.handle_type);
    let host = host_types(info.handle_type, physical.gpu.memory);
    if physical.gpu.trial.shareable && is_dma_buf(info.handle_type) {
        let mut asked = *info;
        asked.handle_type = host;
        let (asked, out) = {
            let l = call.lowering();
            (l.pointer(Some(&asked))?, l.out_pointer(Some(partial))?)
        };
        let Some(function) = physical.instance.table.get_physical_device_external_buffer_properties else {
            return Err(Fault::missing("vkGetPhysicalDeviceExternalBufferProperties"));
        };
        // SAFETY: the handle is live, both structs are memory of the arena.
        unsafe { function(physical.raw(), asked, out) };
        if let Some(raised) = raise_pointer(Some(partial), out, call.arena)? {
            let host = raised.external_memory_properties;
            answer.external_memory_properties = told(&host, info.handle_type, physical.gpu.memory);
        }
    }
    Ok(venus::GetPhysicalDeviceExternalBufferPropertiesReply {
        p_external_buffer_properties: Some(call.arena.value(answer)?),
    })
}

/// Demands that guests can and may use the image that is asked about.
///
/// # Errors
///
/// `VK_ERROR_FORMAT_NOT_SUPPORTED`.
pub(crate) fn demand_usable(call: &Call<'_>, physical: &PhysicalDevice, asked: &Asked) -> Result<(), Fault> {
    let drawn_upon = asked.is_for_drawing_only(physical.gpu.queues);
    if drawn_upon {
        call.undrawn();
    }
    match drawn_upon || asked.is_unusable(physical) {
        true => Err(vk::Result::ERROR_FORMAT_NOT_SUPPORTED.into()),
        false => Ok(()),
    }
}

/// `vkGetPhysicalDeviceImageFormatProperties2`.
pub(crate) fn get_physical_device_image_format_properties2<'a>(
    call: &Call<'a>,
    c: &venus::GetPhysicalDeviceImageFormatProperties2<'a>,
) -> Result<venus::GetPhysicalDeviceImageFormatProperties2Reply<'a>, Fault> {
    let physical = call.physical_device(c.physical_device)?;
    let chain = c.p_image_format_info.map_or(&[][..], |info| info.p_next);
    let asked = c.p_image_format_info;
    let asked = asked.map(|info| Asked::new(info.format, info.tiling, info.usage, info.flags, chain));
    asked.map_or(Ok(()), |asked| demand_usable(call, &physical, &asked))?;
    let shared = chain.iter().find_map(|next| match next {
        ChainStruct::PhysicalDeviceExternalImageFormatInfo(info) => Some(info.handle_type),
        _ => None,
    });
    let shared = shared.filter(|types| types.0 != 0);
    let shares = physical.gpu.trial.shareable && physical.gpu.memory == MemoryBackEnd::DmaBuf;
    if shared.is_some_and(|types| !shares || !is_dma_buf(types)) {
        return Err(vk::Result::ERROR_FORMAT_NOT_SUPPORTED.into());
    }
    let Some(function) = physical.instance.table.get_physical_device_image_format_properties2 else {
        return Err(Fault::missing("vkGetPhysicalDeviceImageFormatProperties2"));
    };
    let (info, out) = {
        let l = call.lowering();
        // Programs ask for formats that are newer than this.
        let info = l.pointer(c.p_image_format_info).map_err(|fault| match fault {
            Fault::Failed(_) => vk::Result::ERROR_FORMAT_NOT_SUPPORTED.into(),
            lost @ Fault::Lost(_) => lost,
        })?;
        (info, l.out_pointer(c.p_image_format_properties)?)
    };
    // SAFETY: the handle is live, both structs and their chains are memory of the arena or null.
    let result = unsafe { function(physical.raw(), info, out) };
    Ok(venus::GetPhysicalDeviceImageFormatProperties2Reply {
        result: venus::VkResult(result),
        p_image_format_properties: raise_pointer(c.p_image_format_properties, out, call.arena)?,
    })
}

fn none_of(handle_type: HandleTypes) -> venus::ExternalMemoryProperties {
    venus::ExternalMemoryProperties { compatible_handle_types: handle_type, ..Default::default() }
}

/// Translates the host's answer for the guest. Pages that can be imported can be exported, because the pages are ours.
fn told(
    host: &venus::ExternalMemoryProperties,
    handle_type: HandleTypes,
    memory: MemoryBackEnd,
) -> venus::ExternalMemoryProperties {
    let features = match memory {
        MemoryBackEnd::Memfd if host.external_memory_features.0 & Features::IMPORTABLE.0 == 0 => 0,
        MemoryBackEnd::Memfd => Features::IMPORTABLE.0 | Features::EXPORTABLE.0,
        MemoryBackEnd::DmaBuf => host.external_memory_features.0,
    };
    if features == 0 {
        return none_of(handle_type);
    }
    let again = features & Features::EXPORTABLE.0 != 0 && features & Features::IMPORTABLE.0 != 0;
    venus::ExternalMemoryProperties {
        external_memory_features: Features(features),
        export_from_imported_handle_types: if again { HandleTypes::DMA_BUF_EXT } else { HandleTypes(0) },
        compatible_handle_types: HandleTypes::DMA_BUF_EXT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lowering::handle_types::HOST_ALLOCATION;

    fn properties(features: u32, types: HandleTypes) -> venus::ExternalMemoryProperties {
        venus::ExternalMemoryProperties {
            external_memory_features: Features(features),
            compatible_handle_types: types,
            ..Default::default()
        }
    }

    #[test]
    fn a_guest_hears_of_dma_bufs_only_and_the_host_of_what_it_knows() {
        let asked = HandleTypes(HandleTypes::DMA_BUF_EXT.0 | HandleTypes::OPAQUE_FD.0);
        assert_eq!(host_types(asked, MemoryBackEnd::Memfd), HOST_ALLOCATION);
        assert_eq!(host_types(asked, MemoryBackEnd::DmaBuf), HandleTypes::DMA_BUF_EXT);
        assert_eq!(host_types(HandleTypes::OPAQUE_FD, MemoryBackEnd::DmaBuf), HandleTypes(0));
        assert_eq!(host_types(HOST_ALLOCATION, MemoryBackEnd::Memfd), HandleTypes(0));
        let dma_buf = HandleTypes::DMA_BUF_EXT;
        let importable = properties(Features::IMPORTABLE.0, HOST_ALLOCATION);
        let told_of = told(&importable, dma_buf, MemoryBackEnd::Memfd);
        assert_eq!(told_of.external_memory_features.0, Features::IMPORTABLE.0 | Features::EXPORTABLE.0);
        assert_eq!(told_of.compatible_handle_types, dma_buf);
        assert_eq!(told_of.export_from_imported_handle_types, dma_buf);
        let nothing = told(&properties(0, HandleTypes(0)), dma_buf, MemoryBackEnd::Memfd);
        assert_eq!(nothing.external_memory_features.0, 0);
        let dedicated = Features::DEDICATED_ONLY.0 | Features::EXPORTABLE.0;
        let told_of = told(&properties(dedicated, dma_buf), dma_buf, MemoryBackEnd::DmaBuf);
        assert_eq!(told_of.external_memory_features.0, dedicated);
        assert_eq!(told_of.export_from_imported_handle_types.0, 0);
    }
}
