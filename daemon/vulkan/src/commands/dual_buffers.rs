//! The choice between the two buffers that one guest id can stand for ([`crate::logical::dual_buffers`]), and the memory that such
//! buffers need.

use crate::backing::memory::GRAIN;
use crate::context::error::ContextLost;
use crate::execution::call::Call;
use crate::objects::object::{Object, StateOf};
use crate::validity::buffers::is_computed_on;
use protocol::venus::generated as venus;

/// Before `vkBindBufferMemory`: chooses the buffer that fits the memory.
///
/// # Errors
///
/// A limit is reached.
pub(crate) fn bind_buffer_memory(call: &Call<'_>, c: &venus::BindBufferMemory) -> Result<(), ContextLost> {
    choose(call, c.buffer, c.memory)
}

/// Before `vkBindBufferMemory2`: chooses for each id the buffer that fits its memory.
///
/// # Errors
///
/// A limit is reached.
pub(crate) fn bind_buffer_memory2(
    call: &Call<'_>,
    c: &venus::BindBufferMemory2<'_>,
) -> Result<(), ContextLost> {
    let mut infos = c.p_bind_infos.unwrap_or(&[]).iter();
    infos.try_for_each(|info| choose(call, info.buffer, info.memory))
}

/// Chooses the buffer that fits the memory. An error in the ids is found when they are used.
fn choose(call: &Call<'_>, buffer: venus::Buffer, memory: venus::DeviceMemory) -> Result<(), ContextLost> {
    let objects = &call.context.objects;
    let is_imported = {
        let objects = objects.read();
        let (Ok(buffer), Ok(memory)) = (objects.get(buffer), objects.get(memory)) else { return Ok(()) };
        let is_dual = buffer.device.as_ref().is_some_and(|device| device.dual_buffers.is_some());
        match memory.get::<venus::DeviceMemory>().filter(|_| is_dual) {
            Some(memory) => memory.is_imported(),
            None => return Ok(()),
        }
    };
    let parted = objects.update(buffer, |object| {
        let device = object.device.clone()?;
        let other = device.dual_buffers.as_ref()?.part(object.raw)?;
        let left = if is_imported { std::mem::replace(&mut object.raw, other) } else { other };
        Some((device, left))
    });
    let Ok(Some((device, raw))) = parted else { return Ok(()) };
    // Another ring may have looked up the buffer that was not chosen.
    call.destroy(Object::new::<venus::Buffer>(raw, Some(device), StateOf::none(), call.encoding()))
}

/// After `vkGetBufferMemoryRequirements`: changes the requirements so that a guest can map the memory that is made for the buffer.
///
/// Buffers that are for copies only are left out: Mesa's driver has them for its own use and packs them without asking for requirements.
///
/// # Errors
///
/// A limit is reached.
pub(crate) fn get_buffer_memory_requirements<'a>(
    call: &Call<'a>,
    c: &venus::GetBufferMemoryRequirements<'a>,
    mut reply: venus::GetBufferMemoryRequirementsReply<'a>,
) -> Result<venus::GetBufferMemoryRequirementsReply<'a>, ContextLost> {
    if let Some(needs) = reply.p_memory_requirements.filter(|_| comes_in_grains(call, c.device, c.buffer)) {
        reply.p_memory_requirements = Some(call.arena.value(in_grains(*needs))?);
    }
    Ok(reply)
}

/// After `vkGetBufferMemoryRequirements2`: does what [`get_buffer_memory_requirements`] does.
///
/// # Errors
///
/// A limit is reached.
pub(crate) fn get_buffer_memory_requirements2<'a>(
    call: &Call<'a>,
    c: &venus::GetBufferMemoryRequirements2<'a>,
    mut reply: venus::GetBufferMemoryRequirements2Reply<'a>,
) -> Result<venus::GetBufferMemoryRequirements2Reply<'a>, ContextLost> {
    let grained = c.p_info.is_some_and(|info| comes_in_grains(call, c.device, info.buffer));
    if let Some(needs) = reply.p_memory_requirements.filter(|_| grained) {
        reply.p_memory_requirements = Some(all_in_grains(call, needs)?);
    }
    Ok(reply)
}

/// After `vkGetDeviceBufferMemoryRequirements`: does what [`get_buffer_memory_requirements`] does, for a buffer that is only described.
///
/// # Errors
///
/// A limit is reached.
pub(crate) fn get_device_buffer_memory_requirements<'a>(
    call: &Call<'a>,
    c: &venus::GetDeviceBufferMemoryRequirements<'a>,
    mut reply: venus::GetDeviceBufferMemoryRequirementsReply<'a>,
) -> Result<venus::GetDeviceBufferMemoryRequirementsReply<'a>, ContextLost> {
    let described = c.p_info.and_then(|info| info.p_create_info);
    let grained = maps_by_driver(call, c.device) && described.is_some_and(is_computed_on);
    if let Some(needs) = reply.p_memory_requirements.filter(|_| grained) {
        reply.p_memory_requirements = Some(all_in_grains(call, needs)?);
    }
    Ok(reply)
}

/// Rounds the size up to whole grains, and the alignment too, because guests' drivers compute the size from the alignment (VK_KHR_maintenance4).
fn in_grains(needs: venus::MemoryRequirements) -> venus::MemoryRequirements {
    let size = needs.size.checked_next_multiple_of(GRAIN).unwrap_or(needs.size);
    venus::MemoryRequirements { size, alignment: needs.alignment.max(GRAIN), ..needs }
}

fn all_in_grains<'a>(
    call: &Call<'a>,
    needs: &venus::MemoryRequirements2<'a>,
) -> Result<&'a venus::MemoryRequirements2<'a>, ContextLost> {
    let memory_requirements = in_grains(needs.memory_requirements);
    Ok(call.arena.value(venus::MemoryRequirements2 { memory_requirements, ..*needs })?)
}

fn comes_in_grains(call: &Call<'_>, device: venus::Device, buffer: venus::Buffer) -> bool {
    maps_by_driver(call, device)
        && call.lowering().objects.buffer(buffer).is_ok_and(|facts| facts.is_computed_on)
}

/// Returns whether guests may have memory that the driver maps, which it maps in grains.
fn maps_by_driver(call: &Call<'_>, device: venus::Device) -> bool {
    call.device(device).is_ok_and(|device| device.physical.gpu.trial.driver_mapped.types != 0)
}
