//! Compute pipelines and pipeline caches.

use super::call::Call;
use super::device::Device;
use super::error::Fault;
use super::objects::State;
use ash::vk;
use protocol::venus::generated as venus;
use std::sync::Arc;

/// `vkCreateComputePipelines`: each id is bound on its own, since some may fail.
pub fn create_compute_pipelines<'a>(
    call: &Call<'a>,
    c: &venus::CreateComputePipelines<'a>,
) -> Result<venus::CreateComputePipelinesReply<'a>, Fault> {
    let device = call.device(c.device)?;
    let Some(ids) = c.p_pipelines else { return Err(Fault::lost("vkCreateComputePipelines without ids")) };
    let lowered = {
        let l = call.lowering();
        l.handle(c.pipeline_cache).and_then(|cache| Ok((cache, l.array(c.p_create_infos)?)))
    };
    let (cache, infos) = match lowered {
        Err(Fault::Failed(result)) => {
            call.none_created(ids, result)?;
            return Ok(c.failed(venus::VkResult(result)));
        }
        lowered => lowered?,
    };
    let raws = call.arena.slice_try_fill(ids.len(), |_| Ok::<_, Fault>(0u64))?;
    let Some(function) = device.table.create_compute_pipelines else {
        return Err(Fault::missing("vkCreateComputePipelines"));
    };
    // SAFETY: handles are live, `infos` has `create_info_count` elements in the arena and as many ids were decoded.
    let result = unsafe {
        function(device.raw(), cache, c.create_info_count, infos, std::ptr::null(), raws.as_mut_ptr())
    };
    bind_pipelines(call, &device, ids, raws, result)?;
    Ok(venus::CreateComputePipelinesReply { result: venus::VkResult(result), p_pipelines: c.p_pipelines })
}

fn bind_pipelines(
    call: &Call<'_>,
    device: &Arc<Device>,
    ids: &[venus::Pipeline],
    raws: &[u64],
    result: i32,
) -> Result<(), Fault> {
    for (id, raw) in ids.iter().zip(raws) {
        if *raw != 0 {
            call.bind(Some(id), *raw, device, 0, State::Plain)?;
        } else {
            // VK_PIPELINE_COMPILE_REQUIRED is positive and still leaves no pipeline.
            let failed = if result == 0 { vk::Result::ERROR_UNKNOWN.as_raw() } else { result };
            call.not_created(Some(id), failed)?;
        }
    }
    Ok(())
}

/// `vkCreatePipelineCache`: without initial data. What a guest sends was in its files, and the host's parser trusts it.
pub fn create_pipeline_cache<'a>(
    call: &Call<'a>,
    c: &venus::CreatePipelineCache<'a>,
) -> Result<venus::CreatePipelineCacheReply<'a>, Fault> {
    let device = call.device(c.device)?;
    let Some(info) = c.p_create_info else {
        return Err(Fault::lost("vkCreatePipelineCache without a description"));
    };
    let mut empty = *info;
    empty.initial_data_size = 0;
    empty.p_initial_data = None;
    let lowered = call.lowering().pointer(Some(&empty))?;
    let Some(function) = device.table.create_pipeline_cache else {
        return Err(Fault::missing("vkCreatePipelineCache"));
    };
    let mut raw = 0u64;
    // SAFETY: the device is live, `lowered` lives in the arena.
    let result = unsafe { function(device.raw(), lowered, std::ptr::null(), &raw mut raw) };
    call.created(c.p_pipeline_cache, raw, &device, result)?;
    Ok(venus::CreatePipelineCacheReply {
        result: venus::VkResult(result),
        p_pipeline_cache: c.p_pipeline_cache,
    })
}
