//! Pipelines.

use super::call::Call;
use super::device::Device;
use super::error::Fault;
use super::lower::Lower;
use super::objects::State;
use ash::vk;
use protocol::venus::generated as venus;
use std::sync::Arc;

/// `vkCreateComputePipelines`.
pub fn create_compute_pipelines<'a>(
    call: &Call<'a>,
    c: &venus::CreateComputePipelines<'a>,
) -> Result<venus::CreateComputePipelinesReply<'a>, Fault> {
    let device = call.device(c.device)?;
    let Some(function) = device.table.create_compute_pipelines else {
        return Err(Fault::missing("vkCreateComputePipelines"));
    };
    let result =
        create(call, &device, c.pipeline_cache, c.p_create_infos, c.p_pipelines, |cache, infos, raws| {
            // SAFETY: handles are live, `infos` has `create_info_count` elements in the arena and as many ids were decoded.
            unsafe { function(device.raw(), cache, c.create_info_count, infos, std::ptr::null(), raws) }
        })?;
    Ok(venus::CreateComputePipelinesReply { result, p_pipelines: c.p_pipelines })
}

/// `vkCreateGraphicsPipelines`.
pub fn create_graphics_pipelines<'a>(
    call: &Call<'a>,
    c: &venus::CreateGraphicsPipelines<'a>,
) -> Result<venus::CreateGraphicsPipelinesReply<'a>, Fault> {
    let device = call.device(c.device)?;
    let Some(function) = device.table.create_graphics_pipelines else {
        return Err(Fault::missing("vkCreateGraphicsPipelines"));
    };
    let result =
        create(call, &device, c.pipeline_cache, c.p_create_infos, c.p_pipelines, |cache, infos, raws| {
            // SAFETY: as for compute pipelines.
            unsafe { function(device.raw(), cache, c.create_info_count, infos, std::ptr::null(), raws) }
        })?;
    Ok(venus::CreateGraphicsPipelinesReply { result, p_pipelines: c.p_pipelines })
}

/// Creates pipelines of one kind: each id is bound on its own, since some may fail.
fn create<'a, I: Lower>(
    call: &Call<'a>,
    device: &Arc<Device>,
    cache: venus::PipelineCache,
    infos: Option<&'a [I]>,
    ids: Option<&'a [venus::Pipeline]>,
    invoke: impl FnOnce(u64, *const I::Sys, *mut u64) -> i32,
) -> Result<venus::VkResult, Fault> {
    let Some(ids) = ids else { return Err(Fault::lost("pipelines without ids")) };
    let lowered = {
        let l = call.lowering();
        l.handle(cache).and_then(|cache| Ok((cache, l.array(infos)?)))
    };
    let (cache, infos) = match lowered {
        Err(Fault::Failed(result)) => {
            call.none_created(ids, result)?;
            return Ok(venus::VkResult(result));
        }
        lowered => lowered?,
    };
    let raws = call.arena.slice_try_fill(ids.len(), |_| Ok::<_, Fault>(0u64))?;
    let result = invoke(cache, infos, raws.as_mut_ptr());
    bind_pipelines(call, device, ids, raws, result)?;
    Ok(venus::VkResult(result))
}

fn bind_pipelines(
    call: &Call<'_>,
    device: &Arc<Device>,
    ids: &[venus::Pipeline],
    raws: &[u64],
    result: i32,
) -> Result<(), Fault> {
    let mut bound = Ok(());
    for (id, raw) in ids.iter().zip(raws) {
        if *raw != 0 {
            match call.bind(Some(id), *raw, device, 0, State::Plain) {
                Err(Fault::Failed(result)) => bound = Err(Fault::Failed(result)),
                other => other?,
            }
        } else {
            // VK_PIPELINE_COMPILE_REQUIRED is positive and still leaves no pipeline.
            let failed = if result == 0 { vk::Result::ERROR_UNKNOWN.as_raw() } else { result };
            call.not_created(Some(id), failed)?;
        }
    }
    bound
}
