//! Descriptor pools and their descriptor sets.

use super::call::Call;
use super::command_pool::{bind_children, destroy_pool, take_children};
use super::error::Fault;
use super::objects::State;
use protocol::venus::generated as venus;

/// `vkCreateDescriptorPool`.
pub fn create_descriptor_pool<'a>(
    call: &Call<'a>,
    c: &venus::CreateDescriptorPool<'a>,
) -> Result<venus::CreateDescriptorPoolReply<'a>, Fault> {
    let device = call.device(c.device)?;
    let info = call.lowering().pointer(c.p_create_info)?;
    let Some(function) = device.table.create_descriptor_pool else {
        return Err(Fault::missing("vkCreateDescriptorPool"));
    };
    let mut raw = 0u64;
    // SAFETY: the device is live, `info` and what it points to live in the arena.
    let result = unsafe { function(device.raw(), info, std::ptr::null(), &raw mut raw) };
    call.bind(c.p_descriptor_pool, raw, &device, result, State::Pool(Vec::new()))?;
    Ok(venus::CreateDescriptorPoolReply {
        result: venus::VkResult(result),
        p_descriptor_pool: c.p_descriptor_pool,
    })
}

/// `vkDestroyDescriptorPool`.
pub fn destroy_descriptor_pool(
    call: &Call<'_>,
    c: &venus::DestroyDescriptorPool,
) -> Result<venus::DestroyDescriptorPoolReply, Fault> {
    destroy_pool(call, c.descriptor_pool)?;
    Ok(venus::DestroyDescriptorPoolReply {})
}

/// `vkResetDescriptorPool`.
pub fn reset_descriptor_pool(
    call: &Call<'_>,
    c: &venus::ResetDescriptorPool,
) -> Result<venus::ResetDescriptorPoolReply, Fault> {
    let device = call.device(c.device)?;
    let pool = call.lowering().handle(c.descriptor_pool)?;
    let children = call.renderer.objects.update(c.descriptor_pool, |object| match &mut object.state {
        State::Pool(children) => std::mem::take(children),
        _ => Vec::new(),
    })?;
    call.renderer.objects.forget(children);
    let Some(function) = device.table.reset_descriptor_pool else {
        return Err(Fault::missing("vkResetDescriptorPool"));
    };
    // SAFETY: device and pool are live.
    let result = unsafe { function(device.raw(), pool, c.flags.0) };
    Ok(venus::ResetDescriptorPoolReply { result: venus::VkResult(result) })
}

/// `vkAllocateDescriptorSets`.
pub fn allocate_descriptor_sets<'a>(
    call: &Call<'a>,
    c: &venus::AllocateDescriptorSets<'a>,
) -> Result<venus::AllocateDescriptorSetsReply<'a>, Fault> {
    let device = call.device(c.device)?;
    let (Some(info), Some(ids)) = (c.p_allocate_info, c.p_descriptor_sets) else {
        return Err(Fault::lost("vkAllocateDescriptorSets without ids"));
    };
    let lowered = match call.lowering().pointer(Some(info)) {
        Err(Fault::Failed(result)) => {
            call.none_created(ids, result)?;
            return Ok(c.failed(venus::VkResult(result)));
        }
        lowered => lowered?,
    };
    let raws = call.arena.slice_try_fill(ids.len(), |_| Ok::<_, Fault>(0u64))?;
    let Some(function) = device.table.allocate_descriptor_sets else {
        return Err(Fault::missing("vkAllocateDescriptorSets"));
    };
    // SAFETY: the device is live, `info` lives in the arena, and the decoder checked that there are as many ids as it asks for.
    let result = unsafe { function(device.raw(), lowered, raws.as_mut_ptr()) };
    if result < 0 {
        call.none_created(ids, result)?;
        return Ok(c.failed(venus::VkResult(result)));
    }
    bind_children(call, &device, info.descriptor_pool, ids, raws)?;
    Ok(venus::AllocateDescriptorSetsReply {
        result: venus::VkResult(result),
        p_descriptor_sets: c.p_descriptor_sets,
    })
}

/// `vkFreeDescriptorSets`.
pub fn free_descriptor_sets<'a>(
    call: &Call<'a>,
    c: &venus::FreeDescriptorSets<'a>,
) -> Result<venus::FreeDescriptorSetsReply, Fault> {
    let device = call.device(c.device)?;
    let pool = call.lowering().handle(c.descriptor_pool)?;
    let raws = take_children(call, c.descriptor_pool, c.p_descriptor_sets.unwrap_or(&[]))?;
    let Some(function) = device.table.free_descriptor_sets else {
        return Err(Fault::missing("vkFreeDescriptorSets"));
    };
    let result = match raws.is_empty() {
        true => 0,
        // SAFETY: device, pool and sets are live; the latter were taken out of the table.
        false => unsafe { function(device.raw(), pool, raws.len() as u32, raws.as_ptr()) },
    };
    Ok(venus::FreeDescriptorSetsReply { result: venus::VkResult(result) })
}
