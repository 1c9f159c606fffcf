//! Pipelines.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use super::shader;
use crate::context::error::Fault;
use crate::execution::call::Call;
use crate::logical::device::Device;
use crate::lowering::lower::{Lower, Lowering};
use crate::objects::object::StateOf;
use crate::objects::origin::Names;
use crate::shape::harden;
use crate::validity::pipelines;
use ash::vk::{self, Handle as _};
use protocol::venus::chain::Chain;
use protocol::venus::generated::{self as venus, ChainStruct};
use std::sync::Arc;

/// `vkCreateComputePipelines`.
pub(crate) fn create_compute_pipelines<'a>(
    call: &Call<'a>,
    c: &venus::CreateComputePipelines<'a>,
) -> Result<venus::CreateComputePipelinesReply<'a>, Fault> {
    let device = call.device(c.device)?;
    let Some(function) = device.table.create_compute_pipelines else {
        return Err(Fault::missing("vkCreateComputePipelines"));
    };
    let check = |l: &Lowering<'_>| {
        let infos = c.p_create_infos.unwrap_or(&[]);
        pipelines::check_compute(infos)?;
        infos.iter().map(|info| pipelines::facts(l, venus::PipelineBindPoint::COMPUTE, info.layout)).collect()
    };
    let stages = |info: &venus::ComputePipelineCreateInfo<'a>| {
        breaks_if_it_relies_on_cache(call, info.flags, info.p_next);
        Ok(venus::ComputePipelineCreateInfo {
            p_next: chain(call, &device, info.p_next)?,
            stage: stage(call, &device, &info.stage, info.layout)?,
            ..*info
        })
    };
    let infos = prepared(call, c.p_create_infos, stages);
    let cache = Cache::of(c.pipeline_cache, c.p_create_infos, |info| info.p_next);
    let result = create(call, &device, cache, infos, c.p_pipelines, check, |cache, infos, raws| {
        // SAFETY: handles are live, `infos` has `create_info_count` elements in the arena and as many ids were decoded.
        unsafe { function(device.raw(), cache, c.create_info_count, infos, std::ptr::null(), raws) }
    })?;
    Ok(venus::CreateComputePipelinesReply { result, p_pipelines: c.p_pipelines })
}

/// `vkCreateGraphicsPipelines`.
pub(crate) fn create_graphics_pipelines<'a>(
    call: &Call<'a>,
    c: &venus::CreateGraphicsPipelines<'a>,
) -> Result<venus::CreateGraphicsPipelinesReply<'a>, Fault> {
    let device = call.device(c.device)?;
    let Some(function) = device.table.create_graphics_pipelines else {
        return Err(Fault::missing("vkCreateGraphicsPipelines"));
    };
    let check = |l: &Lowering<'_>| {
        let infos = c.p_create_infos.unwrap_or(&[]);
        let facts = |layout| pipelines::facts(l, venus::PipelineBindPoint::GRAPHICS, layout);
        pipelines::check_graphics(infos)?;
        infos.iter().map(|info| facts(info.layout)).collect()
    };
    let stages = |info: &venus::GraphicsPipelineCreateInfo<'a>| {
        breaks_if_it_relies_on_cache(call, info.flags, info.p_next);
        let given = info.p_stages.unwrap_or(&[]);
        let p_stages: &[_] =
            call.arena.slice_try_fill(given.len(), |i| stage(call, &device, &given[i], info.layout))?;
        let p_stages = info.p_stages.map(|_| p_stages);
        Ok(venus::GraphicsPipelineCreateInfo {
            p_next: chain(call, &device, info.p_next)?,
            p_stages,
            ..*info
        })
    };
    let infos = prepared(call, c.p_create_infos, stages);
    let cache = Cache::of(c.pipeline_cache, c.p_create_infos, |info| info.p_next);
    let result = create(call, &device, cache, infos, c.p_pipelines, check, |cache, infos, raws| {
        // SAFETY: as for compute pipelines.
        unsafe { function(device.raw(), cache, c.create_info_count, infos, std::ptr::null(), raws) }
    })?;
    Ok(venus::CreateGraphicsPipelinesReply { result, p_pipelines: c.p_pipelines })
}

/// Breaks the journal before a pipeline that is made only if it needs no compilation: another process, with its own cache, may fail to make it again.
fn breaks_if_it_relies_on_cache(call: &Call<'_>, flags: venus::PipelineCreateFlags, chain: Chain<'_>) {
    let fails = venus::PipelineCreateFlags2::FAIL_ON_PIPELINE_COMPILE_REQUIRED;
    let relies = flags.contains(venus::PipelineCreateFlags::FAIL_ON_PIPELINE_COMPILE_REQUIRED)
        || chain.iter().any(|next| match next {
            ChainStruct::PipelineCreateFlags2CreateInfo(info) => info.flags.contains(fails),
            _ => false,
        });
    if relies {
        call.context.journal.breaks("a pipeline is made only if it needs no compilation");
    }
}

/// The cache that pipelines are made with.
#[derive(Clone, Copy)]
enum Cache {
    /// The guest's.
    Guests(venus::PipelineCache),
    /// The daemon's own, as the guest names none.
    Ours,
    /// No cache: the guest names none, and asks which of the pipelines its cache had.
    None,
}

impl Cache {
    fn of<'a, I>(
        named: venus::PipelineCache,
        infos: Option<&'a [I]>,
        chain: impl Fn(&'a I) -> Chain<'a>,
    ) -> Self {
        let tells =
            |next: &ChainStruct<'_>| matches!(next, ChainStruct::PipelineCreationFeedbackCreateInfo(_));
        let is_told = || infos.is_some_and(|infos| infos.iter().any(|info| chain(info).iter().any(tells)));
        match named {
            venus::PipelineCache(0) if is_told() => Self::None,
            venus::PipelineCache(0) => Self::Ours,
            named => Self::Guests(named),
        }
    }

    /// Returns the host's handle of the cache, 0 for no cache, unless the cache is ours.
    fn lowered(self, l: &Lowering<'_>) -> Result<Option<u64>, Fault> {
        match self {
            Self::Guests(cache) => l.handle(cache).map(Some),
            Self::Ours => Ok(None),
            Self::None => Ok(Some(0)),
        }
    }
}

/// Returns the descriptions with their shaders checked.
fn prepared<'a, I: Copy>(
    call: &Call<'a>,
    infos: Option<&'a [I]>,
    prepare: impl Fn(&I) -> Result<I, Fault>,
) -> Result<Option<&'a [I]>, Fault> {
    let Some(infos) = infos else { return Ok(None) };
    Ok(Some(call.arena.slice_try_fill(infos.len(), |i| prepare(&infos[i]))?))
}

fn stage<'a>(
    call: &Call<'a>,
    device: &Device,
    stage: &venus::PipelineShaderStageCreateInfo<'a>,
    layout: venus::PipelineLayout,
) -> Result<venus::PipelineShaderStageCreateInfo<'a>, Fault> {
    let prepared = shader::stage(&device.shaders, call, stage, layout)?;
    Ok(venus::PipelineShaderStageCreateInfo { p_next: chain(call, device, prepared.p_next)?, ..prepared })
}

fn chain<'a>(call: &Call<'a>, device: &Device, chain: Chain<'a>) -> Result<Chain<'a>, Fault> {
    if device.physical.is_robust() { harden::robust_chain(call.arena, chain) } else { Ok(chain) }
}

/// Creates pipelines of one kind with this cache: each id is bound on its own, since some may fail.
fn create<'a, I: Lower>(
    call: &Call<'a>,
    device: &Arc<Device>,
    cache: Cache,
    infos: Result<Option<&'a [I]>, Fault>,
    ids: Option<&'a [venus::Pipeline]>,
    check: impl FnOnce(&Lowering<'_>) -> Result<Vec<StateOf<venus::Pipeline>>, Fault>,
    invoke: impl FnOnce(u64, *const I::Sys, *mut u64) -> i32,
) -> Result<venus::VkResult, Fault> {
    let Some(ids) = ids else { return Err(Fault::without("ids")) };
    let names = Names::default();
    let lowered = {
        let l = call.creating(&names);
        let states = infos.and_then(|infos| Ok((infos, check(&l)?)));
        states.and_then(|(infos, states)| Ok((states, cache.lowered(&l)?, l.array(infos)?)))
    };
    let (states, cache, infos) = match lowered {
        Err(Fault::Failed(result)) => {
            call.none_created(ids, result)?;
            return Ok(venus::VkResult(result));
        }
        lowered => lowered?,
    };
    let raws = call.arena.slice_fill(ids.len(), 0u64)?;
    let cache = cache.unwrap_or_else(|| device.pipeline_caches.ours.cache(&device.ash).as_raw());
    let compilation = call.context.compilations.begin();
    call.context.watchdog_wake.wake();
    let result = invoke(cache, infos, raws.as_mut_ptr());
    drop(compilation);
    device.pipeline_caches.note_made(&device.ash);
    bind_pipelines(call, device, ids, raws.iter().zip(states), names, result)?;
    Ok(venus::VkResult(result))
}

fn bind_pipelines<'r>(
    call: &Call<'_>,
    device: &Arc<Device>,
    ids: &[venus::Pipeline],
    made: impl Iterator<Item = (&'r u64, StateOf<venus::Pipeline>)>,
    names: Names,
    result: i32,
) -> Result<(), Fault> {
    let mut origin = call.origins(ids.len(), names);
    let mut bound = Ok(());
    for (id, (raw, state)) in ids.iter().zip(made) {
        if *raw != 0 {
            match call.bind_one(Some(id), *raw, device, 0, state, &mut origin) {
                Err(Fault::Failed(result)) => bound = Err(Fault::Failed(result)),
                other => drop(other?),
            }
        } else {
            // VK_PIPELINE_COMPILE_REQUIRED is positive and still leaves no pipeline.
            let failed = if result == 0 { vk::Result::ERROR_UNKNOWN.as_raw() } else { result };
            call.not_created(Some(id), failed)?;
        }
    }
    bound
}
