//! Command pools and their command buffers.
//!
//! A command buffer that names an object whose creation failed is *spoilt*: the rest of its recording is skipped and it never
//! reaches a queue. Beginning or resetting it heals it.

use super::call::Call;
use super::error::Fault;
use super::loss::Told;
use super::objects::{Handle, Object, State};
use ash::vk;
use protocol::venus::generated as venus;

/// How the recording of a command buffer stands, or the writing of a descriptor set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recording {
    /// Everything recorded so far reached the driver.
    Sound,
    /// As before, and it stores `VK_SUCCESS` where the guest may look for the result of a fence.
    Telling(Told),
    /// A command named a tombstone with this `VkResult`.
    Spoilt(i32),
}

/// `vkCreateCommandPool`.
pub fn create_command_pool<'a>(
    call: &Call<'a>,
    c: &venus::CreateCommandPool<'a>,
) -> Result<venus::CreateCommandPoolReply<'a>, Fault> {
    let device = call.device(c.device)?;
    let info = call.lowering().pointer(c.p_create_info)?;
    let Some(function) = device.table.create_command_pool else {
        return Err(Fault::missing("vkCreateCommandPool"));
    };
    let mut raw = 0u64;
    // SAFETY: the device is live, `info` and its chain live in the arena.
    let result = unsafe { function(device.raw(), info, std::ptr::null(), &raw mut raw) };
    call.bind(c.p_command_pool, raw, &device, result, State::Pool(Vec::new()))?;
    Ok(venus::CreateCommandPoolReply { result: venus::VkResult(result), p_command_pool: c.p_command_pool })
}

/// `vkDestroyCommandPool`.
pub fn destroy_command_pool(
    call: &Call<'_>,
    c: &venus::DestroyCommandPool,
) -> Result<venus::DestroyCommandPoolReply, Fault> {
    destroy_pool(call, c.command_pool)?;
    Ok(venus::DestroyCommandPoolReply {})
}

/// Destroys a pool and forgets what was allocated from it.
pub fn destroy_pool<H: Handle>(call: &Call<'_>, pool: H) -> Result<(), Fault> {
    if let Some(Object { kind, raw, device: Some(device), state: State::Pool(children), .. }) =
        call.renderer.objects.remove(pool)?
    {
        call.renderer.objects.forget(children);
        // SAFETY: the pool was taken out of the table; a guest that still uses it breaks its own context.
        unsafe { device.destroy(kind, raw) };
    }
    Ok(())
}

/// Binds ids to what was allocated from a pool.
pub fn bind_children<H: Handle>(
    call: &Call<'_>,
    device: &std::sync::Arc<super::device::Device>,
    pool: impl Handle,
    ids: &[H],
    raws: &[u64],
) -> Result<(), Fault> {
    let mut bound = Ok(());
    for (id, raw) in ids.iter().zip(raws) {
        match call.bind(Some(id), *raw, device, 0, State::Pooled(Recording::Sound)) {
            Err(Fault::Failed(result)) => bound = Err(Fault::Failed(result)),
            other => other?,
        }
    }
    call.renderer.objects.update(pool, |object| {
        if let State::Pool(children) = &mut object.state {
            children.extend(ids.iter().map(|id| id.id()));
        }
    })?;
    bound
}

/// Takes ids out of a pool and the table; 0 and tombstones are skipped. Returns the host's handles.
pub fn take_children<H: Handle>(call: &Call<'_>, pool: impl Handle, ids: &[H]) -> Result<Vec<u64>, Fault> {
    let mut raws = Vec::new();
    for id in ids {
        raws.extend(call.take(*id)?);
    }
    let gone: rustc_hash::FxHashSet<u64> = ids.iter().map(|id| id.id()).collect();
    call.renderer.objects.update(pool, |object| {
        if let State::Pool(children) = &mut object.state {
            children.retain(|child| !gone.contains(child));
        }
    })?;
    Ok(raws)
}

/// `vkAllocateCommandBuffers`.
pub fn allocate_command_buffers<'a>(
    call: &Call<'a>,
    c: &venus::AllocateCommandBuffers<'a>,
) -> Result<venus::AllocateCommandBuffersReply<'a>, Fault> {
    let device = call.device(c.device)?;
    let (Some(info), Some(ids)) = (c.p_allocate_info, c.p_command_buffers) else {
        return Err(Fault::lost("vkAllocateCommandBuffers without ids"));
    };
    let lowered = match call.lowering().pointer(Some(info)) {
        Err(Fault::Failed(result)) => {
            call.none_created(ids, result)?;
            return Ok(c.failed(venus::VkResult(result)));
        }
        lowered => lowered?,
    };
    let raws = call.arena.slice_try_fill(ids.len(), |_| Ok::<_, Fault>(0u64))?;
    let Some(function) = device.table.allocate_command_buffers else {
        return Err(Fault::missing("vkAllocateCommandBuffers"));
    };
    // SAFETY: the device is live, `info` lives in the arena, and the decoder checked that there are as many ids as it asks for.
    let result = unsafe { function(device.raw(), lowered, raws.as_mut_ptr()) };
    if result < 0 {
        call.none_created(ids, result)?;
        return Ok(c.failed(venus::VkResult(result)));
    }
    bind_children(call, &device, info.command_pool, ids, raws)?;
    Ok(venus::AllocateCommandBuffersReply {
        result: venus::VkResult(result),
        p_command_buffers: c.p_command_buffers,
    })
}

/// `vkFreeCommandBuffers`.
pub fn free_command_buffers<'a>(
    call: &Call<'a>,
    c: &venus::FreeCommandBuffers<'a>,
) -> Result<venus::FreeCommandBuffersReply, Fault> {
    let device = call.device(c.device)?;
    let pool = call.lowering().handle(c.command_pool)?;
    let raws = take_children(call, c.command_pool, c.p_command_buffers.unwrap_or(&[]))?;
    let Some(function) = device.table.free_command_buffers else {
        return Err(Fault::missing("vkFreeCommandBuffers"));
    };
    if !raws.is_empty() {
        // SAFETY: device, pool and command buffers are live; the latter were taken out of the table.
        unsafe { function(device.raw(), pool, raws.len() as u32, raws.as_ptr()) };
    }
    Ok(venus::FreeCommandBuffersReply {})
}

/// `vkResetCommandPool`.
pub fn reset_command_pool(
    call: &Call<'_>,
    c: &venus::ResetCommandPool,
) -> Result<venus::ResetCommandPoolReply, Fault> {
    let device = call.device(c.device)?;
    let pool = call.lowering().handle(c.command_pool)?;
    let children = call.renderer.objects.update(c.command_pool, |object| match &object.state {
        State::Pool(children) => children.clone(),
        _ => Vec::new(),
    })?;
    for child in children {
        heal(call, venus::CommandBuffer(child))?;
    }
    let Some(function) = device.table.reset_command_pool else {
        return Err(Fault::missing("vkResetCommandPool"));
    };
    // SAFETY: device and pool are live.
    let result = unsafe { function(device.raw(), pool, c.flags.0) };
    Ok(venus::ResetCommandPoolReply { result: venus::VkResult(result) })
}

/// `vkBeginCommandBuffer`.
pub fn begin_command_buffer<'a>(
    call: &Call<'a>,
    c: &venus::BeginCommandBuffer<'a>,
) -> Result<venus::BeginCommandBufferReply, Fault> {
    heal(call, c.command_buffer)?;
    let (raw, device) = call.command_buffer(c.command_buffer)?;
    let info = call.lowering().pointer(c.p_begin_info)?;
    let Some(function) = device.table.begin_command_buffer else {
        return Err(Fault::missing("vkBeginCommandBuffer"));
    };
    // SAFETY: the command buffer is live, `info` and what it points to live in the arena.
    let result = unsafe { function(raw, info) };
    Ok(venus::BeginCommandBufferReply { result: venus::VkResult(result) })
}

/// `vkResetCommandBuffer`.
pub fn reset_command_buffer(
    call: &Call<'_>,
    c: &venus::ResetCommandBuffer,
) -> Result<venus::ResetCommandBufferReply, Fault> {
    heal(call, c.command_buffer)?;
    let (raw, device) = call.command_buffer(c.command_buffer)?;
    let Some(function) = device.table.reset_command_buffer else {
        return Err(Fault::missing("vkResetCommandBuffer"));
    };
    // SAFETY: the command buffer is live.
    let result = unsafe { function(raw, c.flags.0) };
    Ok(venus::ResetCommandBufferReply { result: venus::VkResult(result) })
}

/// `vkCmdFillBuffer`: noted if it may be what Mesa before 26.2 makes for each fence.
pub fn cmd_fill_buffer(
    call: &Call<'_>,
    c: &venus::CmdFillBuffer,
) -> Result<venus::CmdFillBufferReply, Fault> {
    let (raw, device) = call.command_buffer(c.command_buffer)?;
    let buffer = call.lowering().handle(c.dst_buffer)?;
    let Some(function) = device.table.cmd_fill_buffer else { return Err(Fault::missing("vkCmdFillBuffer")) };
    // SAFETY: command buffer and buffer are live.
    unsafe { function(raw, buffer, c.dst_offset, c.size, c.data) };
    if (c.size, c.data) == (4, vk::Result::SUCCESS.as_raw() as u32) {
        call.renderer.objects.update(c.command_buffer, |object| {
            if let State::Pooled(recording) = &mut object.state {
                *recording = Recording::Telling((buffer, c.dst_offset));
            }
        })?;
    }
    Ok(venus::CmdFillBufferReply {})
}

fn heal(call: &Call<'_>, command_buffer: venus::CommandBuffer) -> Result<(), Fault> {
    call.renderer.objects.update(command_buffer, |object| {
        if let State::Pooled(recording) = &mut object.state {
            *recording = Recording::Sound;
        }
    })
}
