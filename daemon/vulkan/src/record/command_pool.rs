//! Command pools: command buffers live no longer than the pool that they are allocated from.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use super::command_buffer::restart;
use crate::context::error::Fault;
use crate::execution::call::Call;
use crate::kinds::command_buffer::{CommandBuffer, CommandPool};
use crate::objects::object::StateOf;
use crate::objects::origin::Names;
use protocol::venus::generated as venus;
use std::sync::Arc;

/// `vkCreateCommandPool`.
pub(crate) fn create_command_pool<'a>(
    call: &Call<'a>,
    c: &venus::CreateCommandPool<'a>,
) -> Result<venus::CreateCommandPoolReply<'a>, Fault> {
    let device = call.device(c.device)?;
    let Some(info) = c.p_create_info else {
        return Err(Fault::without("a description"));
    };
    if !device.has_family(info.queue_family_index) {
        return Err(Fault::invalid("a command pool for a queue family of which the device has no queue"));
    }
    let queue_flags = device.physical.queue_flags(info.queue_family_index);
    let info = call.lowering().pointer(c.p_create_info)?;
    let Some(function) = device.table.create_command_pool else {
        return Err(Fault::missing("vkCreateCommandPool"));
    };
    let mut raw = 0u64;
    // SAFETY: the device is live, `info` and its chain live in the arena.
    let result = unsafe { function(device.raw(), info, std::ptr::null(), &raw mut raw) };
    let state = StateOf::of(CommandPool::new(raw, queue_flags));
    call.bind(c.p_command_pool, raw, &device, result, state)?;
    Ok(venus::CreateCommandPoolReply { result: venus::VkResult(result), p_command_pool: c.p_command_pool })
}

/// `vkDestroyCommandPool`.
pub(crate) fn destroy_command_pool(
    call: &Call<'_>,
    c: &venus::DestroyCommandPool,
) -> Result<venus::DestroyCommandPoolReply, Fault> {
    let Some(object) = call.context.objects.remove(c.command_pool)? else {
        return Ok(venus::DestroyCommandPoolReply {});
    };
    if let Some(pool) = object.get::<venus::CommandPool>() {
        let mut recordings = pool.lock();
        object.usage.submit_all(&recordings.submitted());
        call.context.objects.forget(recordings.close().map(|recording| recording.id));
    }
    call.destroy(object)?;
    Ok(venus::DestroyCommandPoolReply {})
}

/// `vkAllocateCommandBuffers`.
pub(crate) fn allocate_command_buffers<'a>(
    call: &Call<'a>,
    c: &venus::AllocateCommandBuffers<'a>,
) -> Result<venus::AllocateCommandBuffersReply<'a>, Fault> {
    let device = call.device(c.device)?;
    let (Some(info), Some(ids)) = (c.p_allocate_info, c.p_command_buffers) else {
        return Err(Fault::without("ids"));
    };
    let found = call
        .state_of_owner(info.command_pool)
        .and_then(|pool| Ok((pool, call.lowering().pointer(Some(info))?)));
    let (pool, lowered) = match found {
        Err(Fault::Failed(result)) => {
            call.none_created(ids, result)?;
            return Ok(c.failed(venus::VkResult(result)));
        }
        found => found?,
    };
    let raws = call.arena.slice_fill(ids.len(), 0u64)?;
    let Some(function) = device.table.allocate_command_buffers else {
        return Err(Fault::missing("vkAllocateCommandBuffers"));
    };
    let mut recordings = pool.lock_alive()?;
    // SAFETY: device and pool are live, the pool is locked, `lowered` lives in the arena, and the decoder checked that there are as
    // many ids as it asks for.
    let result = unsafe { function(device.raw(), lowered, raws.as_mut_ptr()) };
    if result < 0 {
        call.none_created(ids, result)?;
        return Ok(c.failed(venus::VkResult(result)));
    }
    let mut origin = call.origins(ids.len(), Names::default());
    let secondary = info.level == venus::CommandBufferLevel::SECONDARY;
    let mut bound = Ok(());
    for (id, raw) in ids.iter().zip(&*raws) {
        let (device_of, pool, place) = (device.clone(), pool.clone(), recordings.next_place());
        let state = StateOf::of(CommandBuffer { raw: *raw, device: device_of, pool, place });
        let usage = match call.bind_one(Some(id), *raw, &device, 0, state, &mut origin) {
            Err(Fault::Failed(result)) => {
                bound = Err(Fault::Failed(result));
                continue;
            }
            usage => usage?,
        };
        let most_groups = device.physical.limits.max_compute_work_group_count;
        recordings.add(*raw, id.0, usage, secondary, most_groups, call.context.recorded.count());
    }
    bound?;
    Ok(venus::AllocateCommandBuffersReply {
        result: venus::VkResult(result),
        p_command_buffers: c.p_command_buffers,
    })
}

/// `vkFreeCommandBuffers`: 0, tombstones, and command buffers of another pool are skipped.
pub(crate) fn free_command_buffers<'a>(
    call: &Call<'a>,
    c: &venus::FreeCommandBuffers<'a>,
) -> Result<venus::FreeCommandBuffersReply, Fault> {
    let device = call.device(c.device)?;
    let Some(function) = device.table.free_command_buffers else {
        return Err(Fault::missing("vkFreeCommandBuffers"));
    };
    let pool = call.state_of_owner(c.command_pool)?;
    let mut recordings = pool.lock_alive()?;
    let ids = c.p_command_buffers.unwrap_or(&[]);
    let of_pool = |command_buffer: &CommandBuffer| Arc::ptr_eq(&command_buffer.pool, &pool);
    // The command buffers are still the guest's: if this wait is interrupted, they stay.
    call.have_ended(&device, ids, of_pool, "vkFreeCommandBuffers")?;
    for id in ids {
        let Some(object) = call.context.objects.remove(*id)? else { continue };
        let command_buffer = object.state::<venus::CommandBuffer>()?;
        if !Arc::ptr_eq(&command_buffer.pool, &pool) {
            // The command buffer ends with its own pool.
            log::debug!("a command buffer is freed from another pool than its own");
            continue;
        }
        recordings.remove(command_buffer);
        let submitted = object.usage.submitted();
        // A command buffer that stays pending ends with the pool.
        if device.completed(&submitted) {
            // SAFETY: device, pool and command buffer are live, the pool is locked, and no command can name the command buffer any more.
            unsafe { function(device.raw(), pool.raw, 1, &raw const object.raw) };
        } else {
            recordings.leave(&submitted);
        }
    }
    Ok(venus::FreeCommandBuffersReply {})
}

/// `vkResetCommandPool`.
pub(crate) fn reset_command_pool(
    call: &Call<'_>,
    c: &venus::ResetCommandPool,
) -> Result<venus::ResetCommandPoolReply, Fault> {
    let device = call.device(c.device)?;
    let pool = call.state_of_owner(c.command_pool)?;
    let mut recordings = pool.lock_alive()?;
    call.await_submitted(&device, &recordings.submitted(), "vkResetCommandPool")?;
    for recording in recordings.iter_mut() {
        restart(call, recording)?;
    }
    let Some(function) = device.table.reset_command_pool else {
        return Err(Fault::missing("vkResetCommandPool"));
    };
    // SAFETY: device and pool are live, nothing of the pool is pending, and it is locked.
    let result = unsafe { function(device.raw(), pool.raw, c.flags.0) };
    Ok(venus::ResetCommandPoolReply { result: venus::VkResult(result) })
}

/// `vkTrimCommandPool`.
pub(crate) fn trim_command_pool(
    call: &Call<'_>,
    c: &venus::TrimCommandPool,
) -> Result<venus::TrimCommandPoolReply, Fault> {
    let device = call.device(c.device)?;
    let pool = call.state_of_owner(c.command_pool)?;
    let _recordings = pool.lock_alive()?;
    let Some(function) = device.table.trim_command_pool else {
        return Err(Fault::missing("vkTrimCommandPool"));
    };
    // SAFETY: device and pool are live, and the pool is locked.
    unsafe { function(device.raw(), pool.raw, c.flags.0) };
    Ok(venus::TrimCommandPoolReply {})
}
