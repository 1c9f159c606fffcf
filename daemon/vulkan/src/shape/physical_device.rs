//! A GPU as a guest sees it: found again by its UUID, with its families, memory types and heaps.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use super::{replay, reshape};
use crate::context::cause::DriverError;
use crate::context::error::Fault;
use crate::driver::families::{self, Families};
use crate::driver::instance::Instance;
use crate::driver::physical_device::{
    Addresses, PhysicalDevice, cache_origin, device_uuid, host_extensions, host_memory,
};
use ash::vk;
use config::{ContextLimits, GpuChoice};
use std::sync::Arc;

/// Finds a chosen GPU again, which the guest sees at `index`.
///
/// # Errors
///
/// The GPU is gone, or its driver does not answer.
pub(crate) fn find(
    instance: &Arc<Instance>,
    index: usize,
    gpu: &GpuChoice,
    limits: &ContextLimits,
) -> Result<PhysicalDevice, Fault> {
    // SAFETY: the instance is live.
    let all = unsafe { instance.ash.enumerate_physical_devices() }?;
    let handle = all
        .into_iter()
        .find(|handle| device_uuid(&instance.ash, *handle) == Some(gpu.uuid))
        .ok_or(DriverError::NoGpu)?;
    describe(instance, handle, index, gpu, limits)
}

fn describe(
    instance: &Arc<Instance>,
    handle: vk::PhysicalDevice,
    index: usize,
    gpu: &GpuChoice,
    limits: &ContextLimits,
) -> Result<PhysicalDevice, Fault> {
    // SAFETY: `handle` comes from this live instance, here and below.
    let families = unsafe { instance.ash.get_physical_device_queue_family_properties(handle) };
    let mut memory = host_memory(&instance.ash, handle);
    reshape::memory_types(&mut memory, &gpu.trial);
    reshape::memory_heaps(&mut memory, gpu, limits);
    let largest_heap = memory.memory_heaps_as_slice().iter().map(|heap| heap.size).max().unwrap_or(0);
    // SAFETY: as above.
    let properties = unsafe { instance.ash.get_physical_device_properties(handle) };
    let movable = gpu.protection.movable;
    let Families { visible: families, hosts, order } = families::visible(families, gpu.queues, movable);
    let is_software = properties.device_type == vk::PhysicalDeviceType::CPU;
    let can_replay = || replay::can_replay(&instance.ash, handle);
    let addresses = if movable { replay::had_again(is_software, can_replay) } else { Addresses::All };
    let mut host_extensions = host_extensions(&instance.ash, handle)?;
    host_extensions.retain(|name, _| !replay::hidden_extensions(addresses).contains(&name.as_str()));
    Ok(PhysicalDevice {
        largest_heap,
        instance: instance.clone(),
        handle,
        index,
        gpu: *gpu,
        host_extensions,
        addresses,
        families,
        host_families: hosts,
        order,
        device_type: properties.device_type,
        limits: properties.limits,
        cache_origin: cache_origin(&properties, gpu),
        memory,
    })
}
