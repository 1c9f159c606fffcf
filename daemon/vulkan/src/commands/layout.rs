//! Commands of layouts.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use crate::context::error::Fault;
use crate::execution::call::Call;
use crate::kinds::layout::{HostLayout, PipelineLayout, SetLayout};
use crate::objects::object::StateOf;
use crate::objects::origin::Names;
use crate::validity::layouts;
use protocol::venus::generated::{self as venus, ObjectType};

/// `vkCreateDescriptorSetLayout`.
pub(crate) fn create_descriptor_set_layout<'a>(
    call: &Call<'a>,
    c: &venus::CreateDescriptorSetLayout<'a>,
) -> Result<venus::CreateDescriptorSetLayoutReply<'a>, Fault> {
    let device = call.device(c.device)?;
    let names = Names::default();
    let (facts, info) = {
        let l = call.creating(&names);
        (layouts::of_bindings(&l, c.p_create_info)?, l.pointer(c.p_create_info)?)
    };
    let Some(function) = device.table.create_descriptor_set_layout else {
        return Err(Fault::missing("vkCreateDescriptorSetLayout"));
    };
    let mut raw = 0u64;
    // SAFETY: the device is live, `info` and what it points to live in the arena.
    let result = unsafe { function(device.raw(), info, std::ptr::null(), &raw mut raw) };
    let state = match result {
        0.. => {
            let host = HostLayout::new(ObjectType::DESCRIPTOR_SET_LAYOUT, raw, device.clone());
            StateOf::of(SetLayout { facts, host })
        }
        _ => StateOf::none(),
    };
    call.bind_made_of(c.p_set_layout, raw, &device, result, state, names)?;
    Ok(venus::CreateDescriptorSetLayoutReply {
        result: venus::VkResult(result),
        p_set_layout: c.p_set_layout,
    })
}

/// `vkDestroyDescriptorSetLayout`.
pub(crate) fn destroy_descriptor_set_layout(
    call: &Call<'_>,
    c: &venus::DestroyDescriptorSetLayout,
) -> Result<venus::DestroyDescriptorSetLayoutReply, Fault> {
    call.device(c.device)?;
    call.take(c.descriptor_set_layout)?;
    Ok(venus::DestroyDescriptorSetLayoutReply {})
}

/// `vkCreatePipelineLayout`.
pub(crate) fn create_pipeline_layout<'a>(
    call: &Call<'a>,
    c: &venus::CreatePipelineLayout<'a>,
) -> Result<venus::CreatePipelineLayoutReply<'a>, Fault> {
    let device = call.device(c.device)?;
    let names = Names::default();
    let (sets, info) = {
        let l = call.creating(&names);
        (layouts::of_pipelines(&l, &device, c.p_create_info)?, l.pointer(c.p_create_info)?)
    };
    let Some(function) = device.table.create_pipeline_layout else {
        return Err(Fault::missing("vkCreatePipelineLayout"));
    };
    let mut raw = 0u64;
    // SAFETY: the device and all layouts are live, `info` and what it points to live in the arena.
    let result = unsafe { function(device.raw(), info, std::ptr::null(), &raw mut raw) };
    let state = match result {
        0.. => {
            let host = HostLayout::new(ObjectType::PIPELINE_LAYOUT, raw, device.clone());
            StateOf::of(PipelineLayout { sets, host })
        }
        _ => StateOf::none(),
    };
    call.bind_made_of(c.p_pipeline_layout, raw, &device, result, state, names)?;
    Ok(venus::CreatePipelineLayoutReply {
        result: venus::VkResult(result),
        p_pipeline_layout: c.p_pipeline_layout,
    })
}

/// `vkDestroyPipelineLayout`.
pub(crate) fn destroy_pipeline_layout(
    call: &Call<'_>,
    c: &venus::DestroyPipelineLayout,
) -> Result<venus::DestroyPipelineLayoutReply, Fault> {
    call.device(c.device)?;
    call.take(c.pipeline_layout)?;
    Ok(venus::DestroyPipelineLayoutReply {})
}
