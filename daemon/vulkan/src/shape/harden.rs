//! Features that a guest's device gets, asked for or not, because they protect other contexts from the guest's shaders.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use super::reshape::for_each;
use crate::context::error::Fault;
use crate::driver::generated::sys;
use crate::driver::physical_device::PhysicalDevice;
use ash::vk;
use protocol::cursor::Arena;
use protocol::venus::generated::{self as venus, ChainStruct};

/// Returns whether the host can initialise workgroup memory without an extension.
pub(crate) fn can_zero_workgroup(physical: &PhysicalDevice) -> bool {
    // SAFETY: the handle comes from this live instance, here and below.
    let properties = unsafe { physical.instance.ash.get_physical_device_properties(physical.handle) };
    if properties.api_version.min(physical.instance.loader_version()) < vk::API_VERSION_1_3 {
        return false;
    }
    let mut zero = vk::PhysicalDeviceZeroInitializeWorkgroupMemoryFeatures::default();
    let mut features = vk::PhysicalDeviceFeatures2::default().push_next(&mut zero);
    // SAFETY: as above; the chain lives until the call returns.
    unsafe { physical.instance.ash.get_physical_device_features2(physical.handle, &mut features) };
    zero.shader_zero_initialize_workgroup_memory != 0
}

/// Enables `robustBufferAccess`, which every driver has.
pub(crate) fn enable_robustness(arena: &Arena, info: &mut sys::DeviceCreateInfo) -> Result<(), Fault> {
    let mut in_chain = false;
    for_each(info.p_next, |s_type, at| {
        if s_type == vk::StructureType::PHYSICAL_DEVICE_FEATURES_2 {
            // SAFETY: `s_type` says what `at` points to; the chain is memory of the arena that nothing else refers to.
            unsafe { (*at.cast::<sys::PhysicalDeviceFeatures2>()).features.robust_buffer_access = 1 };
            in_chain = true;
        }
    });
    if in_chain {
        return Ok(());
    }
    let mut features = match info.p_enabled_features.is_null() {
        // SAFETY: all members are numbers, for which zero is a value: no feature.
        true => unsafe { std::mem::zeroed() },
        // SAFETY: not null, hence lowered into the arena.
        false => unsafe { *info.p_enabled_features },
    };
    features.robust_buffer_access = 1;
    info.p_enabled_features = std::ptr::from_ref(arena.value(features)?);
    Ok(())
}

/// Enables `shaderZeroInitializeWorkgroupMemory`; the caller has checked [`can_zero_workgroup`].
pub(crate) fn enable_zero_workgroup(arena: &Arena, info: &mut sys::DeviceCreateInfo) -> Result<(), Fault> {
    let mut in_chain = false;
    for_each(info.p_next, |s_type, at| match s_type {
        vk::StructureType::PHYSICAL_DEVICE_VULKAN_1_3_FEATURES => {
            let features = at.cast::<sys::PhysicalDeviceVulkan13Features>();
            // SAFETY: `s_type` says what `at` points to; the chain is memory of the arena that nothing else refers to.
            unsafe { (*features).shader_zero_initialize_workgroup_memory = 1 };
            in_chain = true;
        }
        vk::StructureType::PHYSICAL_DEVICE_ZERO_INITIALIZE_WORKGROUP_MEMORY_FEATURES => {
            let features = at.cast::<sys::PhysicalDeviceZeroInitializeWorkgroupMemoryFeatures>();
            // SAFETY: as above.
            unsafe { (*features).shader_zero_initialize_workgroup_memory = 1 };
            in_chain = true;
        }
        _ => {}
    });
    if !in_chain {
        let features = sys::PhysicalDeviceZeroInitializeWorkgroupMemoryFeatures {
            s_type: vk::StructureType::PHYSICAL_DEVICE_ZERO_INITIALIZE_WORKGROUP_MEMORY_FEATURES.as_raw(),
            p_next: info.p_next,
            shader_zero_initialize_workgroup_memory: 1,
        };
        info.p_next = std::ptr::from_ref(arena.value(features)?).cast();
    }
    Ok(())
}

/// Returns the chain of a pipeline or stage, in which no robustness is switched off.
pub(crate) fn robust_chain<'a>(
    arena: &'a Arena,
    chain: &'a [ChainStruct<'a>],
) -> Result<&'a [ChainStruct<'a>], Fault> {
    let buffers = |behaviour| match behaviour {
        venus::PipelineRobustnessBufferBehavior::DISABLED => {
            venus::PipelineRobustnessBufferBehavior::DEVICE_DEFAULT
        }
        other => other,
    };
    let robust = arena.slice_try_fill(chain.len(), |i| match chain[i] {
        ChainStruct::PipelineRobustnessCreateInfo(info) => {
            let info = venus::PipelineRobustnessCreateInfo {
                storage_buffers: buffers(info.storage_buffers),
                uniform_buffers: buffers(info.uniform_buffers),
                vertex_inputs: buffers(info.vertex_inputs),
                ..*info
            };
            Ok(ChainStruct::PipelineRobustnessCreateInfo(arena.value(info)?))
        }
        other => Ok::<_, Fault>(other),
    })?;
    Ok(robust)
}
