//! The shaders that a device takes: their limits, and the features that they may use.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use crate::driver::physical_device::PhysicalDevice;
use crate::shape::extensions;
use ash::vk;
use config::ShaderLimits;
use protocol::spirv;
use protocol::spirv::grammar::Enable;
use protocol::venus::chain;
use protocol::venus::generated::{self as venus, ChainStruct};
use std::collections::{BTreeSet, HashMap};

/// The shaders that a device takes: their limits, and the features that they may use.
pub struct Shaders {
    /// Bounds on the shaders that the driver parses.
    pub limits: spirv::Limits,
    /// The newest version of SPIR-V that the device takes.
    pub version: u32,
    /// Capabilities that shaders may declare: those of the features and extensions with which the guest created the device.
    pub capabilities: BTreeSet<u32>,
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
    /// Describes the shaders of a device of `physical` that the guest creates as `info` says, on which
    /// `shaderZeroInitializeWorkgroupMemory` is enabled, or is not.
    pub fn new(
        physical: &PhysicalDevice,
        info: &venus::DeviceCreateInfo<'_>,
        limits: &ShaderLimits,
        zero_workgroup: bool,
    ) -> Self {
        // SAFETY: the handle comes from this live instance.
        let properties = unsafe { physical.instance.ash.get_physical_device_properties(physical.handle) };
        let offered = extensions::offered(&physical.host_extensions, &physical.gpu);
        let has_spirv_1_4 = offered.iter().any(|(name, _)| *name == "VK_KHR_spirv_1_4");
        let minor = vk::api_version_minor(properties.api_version);
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
            version: spirv_version(properties.api_version, has_spirv_1_4),
            capabilities: capabilities(minor, info),
            graphics: physical.gpu.queues.draw(),
            device: properties.limits,
            zero_workgroup,
        }
    }
}

/// The capabilities that a device of Vulkan 1 of this minor version has when it is created like this.
fn capabilities(minor: u32, info: &venus::DeviceCreateInfo<'_>) -> BTreeSet<u32> {
    let mut structs: HashMap<i32, Vec<u8>> = HashMap::new();
    if let Some(features) = info.p_enabled_features {
        let features = venus::PhysicalDeviceFeatures2 { features: *features, ..Default::default() };
        let link = ChainStruct::PhysicalDeviceFeatures2(&features);
        structs.insert(link.s_type(), chain::members(&link));
    }
    structs.extend(info.p_next.iter().map(|link| (link.s_type(), chain::members(link))));
    let extensions = info.pp_enabled_extension_names.unwrap_or(&[]);
    spirv::enabled(|enable| match *enable {
        Enable::Version(version) => version <= minor,
        Enable::Extension(name) => extensions.iter().any(|enabled| enabled.to_bytes() == name.as_bytes()),
        Enable::Feature { s_type, index } => {
            let members = structs.get(&s_type).map_or(&[][..], |members| members.as_chunks::<4>().0);
            members.get(index).is_some_and(|feature| *feature != [0; 4])
        }
        Enable::Property => true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOAT64: u32 = 10;
    const INT8: u32 = 39;
    const BALLOT: u32 = 4423;

    #[test]
    fn a_device_has_the_capabilities_that_it_was_created_with() {
        let has = |minor, info: &venus::DeviceCreateInfo<'_>| {
            let found = capabilities(minor, info);
            [FLOAT64, INT8, BALLOT].map(|number| found.contains(&number))
        };
        let bare = venus::DeviceCreateInfo::default();
        assert_eq!(has(3, &bare), [false; 3]);
        let features = venus::PhysicalDeviceFeatures { shader_float64: 1, ..Default::default() };
        let core = venus::DeviceCreateInfo { p_enabled_features: Some(&features), ..bare };
        assert_eq!(has(3, &core), [true, false, false]);
        let chained = venus::PhysicalDeviceFeatures2 { features, ..Default::default() };
        let int8 = venus::PhysicalDeviceVulkan12Features { shader_int8: 1, ..Default::default() };
        let chain = [
            ChainStruct::PhysicalDeviceFeatures2(&chained),
            ChainStruct::PhysicalDeviceVulkan12Features(&int8),
        ];
        assert_eq!(has(3, &venus::DeviceCreateInfo { p_next: &chain, ..bare }), [true, true, false]);
        // The struct that had the feature before Vulkan's core had it.
        let older = venus::PhysicalDeviceShaderFloat16Int8Features { shader_int8: 1, ..Default::default() };
        let chain = [ChainStruct::PhysicalDeviceShaderFloat16Int8Features(&older)];
        assert_eq!(has(3, &venus::DeviceCreateInfo { p_next: &chain, ..bare }), [false, true, false]);
        let small =
            venus::PhysicalDevice8BitStorageFeatures { storage_buffer8_bit_access: 1, ..Default::default() };
        let chain = [ChainStruct::PhysicalDevice8BitStorageFeatures(&small)];
        let found = capabilities(1, &venus::DeviceCreateInfo { p_next: &chain, ..bare });
        assert_eq!(
            [4433, 4434, 4448, 4449].map(|number| found.contains(&number)),
            [false, false, true, true]
        );
        let names = [c"VK_EXT_shader_subgroup_ballot"];
        let extended = venus::DeviceCreateInfo { pp_enabled_extension_names: Some(&names), ..bare };
        assert_eq!(has(3, &extended), [false, false, true]);
        // A capability of Vulkan 1.1, which a device of 1.0 does not have.
        let device_group = 4437;
        assert!(
            capabilities(1, &bare).contains(&device_group) && !capabilities(0, &bare).contains(&device_group)
        );
    }
}
