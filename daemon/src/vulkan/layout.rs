//! Layouts of descriptor sets and of pipelines.
//!
//! A guest may destroy a layout while sets and recordings go on that were made from it, and drivers differ in what they still look
//! up then. So whatever is made from a layout keeps it, and the host's is destroyed with the last of them.

use super::call::Call;
use super::device::Device;
use super::error::Fault;
use super::objects::State;
use super::validity::layouts::{self, PipelineLayout, SetLayout};
use ash::vk;
use protocol::venus::generated as venus;
use protocol::venus::generated::ObjectType;
use std::sync::Arc;

/// A layout of the host's driver.
#[derive(Debug)]
pub struct HostLayout {
    kind: ObjectType,
    raw: u64,
    device: Arc<Device>,
}

impl HostLayout {
    /// Limits of its device.
    pub fn limits(&self) -> &vk::PhysicalDeviceLimits {
        &self.device.physical.limits
    }
}

impl Drop for HostLayout {
    fn drop(&mut self) {
        // SAFETY: every object made from the layout holds it, and so does the table; this was the last.
        unsafe { self.device.destroy_layout(self.kind, self.raw) }
    }
}

/// `vkCreateDescriptorSetLayout`.
pub fn create_descriptor_set_layout<'a>(
    call: &Call<'a>,
    c: &venus::CreateDescriptorSetLayout<'a>,
) -> Result<venus::CreateDescriptorSetLayoutReply<'a>, Fault> {
    let device = call.device(c.device)?;
    let (facts, info) = {
        let l = call.lowering();
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
            let kind = ObjectType::DESCRIPTOR_SET_LAYOUT;
            State::SetLayout(Arc::new(SetLayout {
                facts,
                host: HostLayout { kind, raw, device: device.clone() },
            }))
        }
        _ => State::Plain,
    };
    call.bind(c.p_set_layout, raw, &device, result, state)?;
    Ok(venus::CreateDescriptorSetLayoutReply {
        result: venus::VkResult(result),
        p_set_layout: c.p_set_layout,
    })
}

/// `vkDestroyDescriptorSetLayout`.
pub fn destroy_descriptor_set_layout(
    call: &Call<'_>,
    c: &venus::DestroyDescriptorSetLayout,
) -> Result<venus::DestroyDescriptorSetLayoutReply, Fault> {
    call.device(c.device)?;
    call.take(c.descriptor_set_layout)?;
    Ok(venus::DestroyDescriptorSetLayoutReply {})
}

/// `vkCreatePipelineLayout`.
pub fn create_pipeline_layout<'a>(
    call: &Call<'a>,
    c: &venus::CreatePipelineLayout<'a>,
) -> Result<venus::CreatePipelineLayoutReply<'a>, Fault> {
    let device = call.device(c.device)?;
    let (sets, info) = {
        let l = call.lowering();
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
            let kind = ObjectType::PIPELINE_LAYOUT;
            let host = HostLayout { kind, raw, device: device.clone() };
            State::PipelineLayout(Arc::new(PipelineLayout { sets, host }))
        }
        _ => State::Plain,
    };
    call.bind(c.p_pipeline_layout, raw, &device, result, state)?;
    Ok(venus::CreatePipelineLayoutReply {
        result: venus::VkResult(result),
        p_pipeline_layout: c.p_pipeline_layout,
    })
}

/// `vkDestroyPipelineLayout`.
pub fn destroy_pipeline_layout(
    call: &Call<'_>,
    c: &venus::DestroyPipelineLayout,
) -> Result<venus::DestroyPipelineLayoutReply, Fault> {
    call.device(c.device)?;
    call.take(c.pipeline_layout)?;
    Ok(venus::DestroyPipelineLayoutReply {})
}
