//! The shaders that a device takes: their limits, and the features that they may use.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use crate::driver::physical_device::PhysicalDevice;
use crate::shape::extensions;
use ash::vk;
use config::ShaderLimits;
use protocol::spirv;

/// The shaders that a device takes: their limits, and the features that they may use.
pub struct Shaders {
    /// Bounds on what the driver parses.
    pub limits: spirv::Limits,
    /// The newest version of SPIR-V that the device takes.
    pub version: u32,
    /// Extensions that the guest sees.
    pub extensions: Vec<&'static str>,
    /// True if graphics commands are executed.
    pub graphics: bool,
    /// Limits of the host's device.
    pub device: vk::PhysicalDeviceLimits,
    /// True if workgroup memory is made to start as zeros.
    pub zero_workgroup: bool,
}

/// Returns the newest version of SPIR-V for a version of Vulkan.
fn spirv_version(api_version: u32, has_spirv_1_4: bool) -> u32 {
    match (vk::api_version_major(api_version), vk::api_version_minor(api_version)) {
        (1, 0) => 0x1_0000,
        (1, 1) if has_spirv_1_4 => 0x1_0400,
        (1, 1) => 0x1_0300,
        (1, 2) => 0x1_0500,
        _ => 0x1_0600,
    }
}

impl Shaders {
    /// Describes the shaders of a device of `physical` on which `shaderZeroInitializeWorkgroupMemory` is enabled, or is not.
    pub fn new(physical: &PhysicalDevice, limits: &ShaderLimits, zero_workgroup: bool) -> Self {
        // SAFETY: the handle comes from this live instance.
        let properties = unsafe { physical.instance.ash.get_physical_device_properties(physical.handle) };
        let offered = extensions::offered(&physical.host_extensions, &physical.gpu);
        let extensions: Vec<_> = offered.iter().map(|(name, _)| *name).collect();
        Self {
            limits: spirv::Limits {
                words: limits.shader_bytes / size_of::<u32>(),
                ids: limits.shader_ids,
                type_depth: limits.shader_type_depth,
                blocks: limits.shader_blocks,
                nesting: limits.shader_nesting,
                cost: limits.shader_cost,
                variable_bytes: limits.shader_variable_bytes,
            },
            version: spirv_version(properties.api_version, extensions.contains(&"VK_KHR_spirv_1_4")),
            extensions,
            graphics: physical.gpu.queues.draw(),
            device: properties.limits,
            zero_workgroup,
        }
    }
}
