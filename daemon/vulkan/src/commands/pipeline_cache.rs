//! Pipeline caches. Their data leaves only with a seal (`seal`): a guest whose data has no seal gets an empty cache, as it would from a driver that
//! was updated.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

pub(crate) mod brought;
pub(crate) mod collect;
pub(crate) mod seal;

use crate::context::error::{Fault, demand};
use crate::execution::call::Call;
use ash::vk;
use protocol::venus::generated as venus;
use seal::{TAG_BYTES, opened, tag};

/// `vkCreatePipelineCache`: initial data is passed if it is authentic. A cache that a predecessor of this worker had begins with its data from there.
///
/// `VK_PIPELINE_CACHE_CREATE_EXTERNALLY_SYNCHRONIZED_BIT` is dropped: it is the guest's promise, and a broken one would let two
/// rings into the driver's cache at once.
pub(crate) fn create_pipeline_cache<'a>(
    call: &Call<'a>,
    c: &venus::CreatePipelineCache<'a>,
) -> Result<venus::CreatePipelineCacheReply<'a>, Fault> {
    let device = call.device(c.device)?;
    let Some(info) = c.p_create_info else {
        return Err(Fault::without("a description"));
    };
    let Some(function) = device.table.create_pipeline_cache else {
        return Err(Fault::missing("vkCreatePipelineCache"));
    };
    let restored = c.p_pipeline_cache.and_then(|id| call.context.restored.take_cache_data(id.0));
    let open = |data| opened(&call.context.env.cache_key, &device.physical.cache_origin, data);
    let restored = restored.as_deref().and_then(open);
    let sent = info.p_initial_data.unwrap_or(&[]);
    let data = match sent {
        _ if restored.is_some() => restored,
        [] => None,
        sent => open(sent),
    };
    if !sent.is_empty() {
        log::debug!(bytes = sent.len(), authentic = data.is_some(); "pipeline cache with initial data");
    }
    let mut checked = *info;
    checked.flags.0 &= !venus::PipelineCacheCreateFlags::EXTERNALLY_SYNCHRONIZED.0;
    checked.initial_data_size = data.map_or(0, <[u8]>::len) as u64;
    checked.p_initial_data = data;
    let lowered = call.lowering().pointer(Some(&checked))?;
    let mut raw = 0u64;
    // SAFETY: the device is live, `lowered` lives in the arena and its data in the command.
    let result = unsafe { function(device.raw(), lowered, std::ptr::null(), &raw mut raw) };
    call.created(c.p_pipeline_cache, raw, &device, result)?;
    device.pipeline_caches.note_more();
    Ok(venus::CreatePipelineCacheReply {
        result: venus::VkResult(result),
        p_pipeline_cache: c.p_pipeline_cache,
    })
}

/// `vkMergePipelineCaches`: drivers lock the target, then each source.
pub(crate) fn merge_pipeline_caches(
    call: &Call<'_>,
    c: &venus::MergePipelineCaches<'_>,
) -> Result<venus::MergePipelineCachesReply, Fault> {
    let device = call.device(c.device)?;
    let Some(function) = device.table.merge_pipeline_caches else {
        return Err(Fault::missing("vkMergePipelineCaches"));
    };
    let sources = c.p_src_caches.unwrap_or(&[]);
    demand(c.dst_cache.0 != 0 && sources.iter().all(|cache| cache.0 != 0), "a pipeline cache is missing")?;
    demand(!sources.contains(&c.dst_cache), "a pipeline cache is merged into itself")?;
    let (into, from) = {
        let l = call.lowering();
        (l.handle(c.dst_cache)?, l.handles(c.p_src_caches)?)
    };
    let merge = || {
        // SAFETY: device and caches are live, and `from` has as many as were decoded.
        unsafe { function(device.raw(), into, sources.len() as u32, from) }
    };
    let result = device.pipeline_caches.merge(merge);
    device.pipeline_caches.note_more();
    Ok(venus::MergePipelineCachesReply { result: venus::VkResult(result) })
}

/// `vkGetPipelineCacheData`: the driver's data, or as much of the data as fits, and its tag.
pub(crate) fn get_pipeline_cache_data<'a>(
    call: &Call<'a>,
    c: &venus::GetPipelineCacheData<'a>,
) -> Result<venus::GetPipelineCacheDataReply<'a>, Fault> {
    let device = call.device(c.device)?;
    let Some(function) = device.table.get_pipeline_cache_data else {
        return Err(Fault::missing("vkGetPipelineCacheData"));
    };
    let cache = call.lowering().handle(c.pipeline_cache)?;
    let room = c.p_data.map_or(0, <[u8]>::len);
    let data = call.arena.slice_copy(c.p_data.unwrap_or(&[]))?;
    let reply = |result, size: usize, data| {
        let p_data_size = match c.p_data_size {
            Some(_) => Some(&*call.arena.value(size as u64)?),
            None => None,
        };
        Ok(venus::GetPipelineCacheDataReply { result: venus::VkResult(result), p_data_size, p_data: data })
    };
    if c.p_data.is_some() && room < TAG_BYTES {
        return reply(vk::Result::INCOMPLETE.as_raw(), 0, Some(&[]));
    }
    let mut size = room.saturating_sub(TAG_BYTES);
    let into = if c.p_data.is_some() { data.as_mut_ptr() } else { std::ptr::null_mut() };
    // SAFETY: device and cache are live; `into` is null or has room for `size` bytes.
    let result = unsafe { function(device.raw(), cache, &raw mut size, into) };
    if c.p_data.is_none() || result < 0 {
        return reply(result, size.saturating_add(TAG_BYTES), c.p_data.map(|_| &[][..]));
    }
    let size = size.min(room - TAG_BYTES);
    let tag = tag(&call.context.env.cache_key, &device.physical.cache_origin, &data[..size]);
    data[size..size + TAG_BYTES].copy_from_slice(tag.as_bytes());
    reply(result, size + TAG_BYTES, Some(&data[..size + TAG_BYTES]))
}
