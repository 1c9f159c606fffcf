//! Capture and replay of buffers' device addresses: a guest's device has this feature for a successor worker, if the host has it. The guest does not
//! see the feature.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use super::reshape::for_each;
use crate::driver::generated::sys;
use crate::driver::physical_device::{Addresses, PhysicalDevice};
use ash::vk;
use std::mem::offset_of;

/// Enables `bufferDeviceAddressCaptureReplay` beside each `bufferDeviceAddress` that the guest enables, if the host has it. Returns whether the
/// feature is enabled.
///
/// The features of `VK_EXT_buffer_device_address`, which knows no opaque addresses of memory, stay as they are.
pub(crate) fn enable_replay(physical: &PhysicalDevice, info: &mut sys::DeviceCreateInfo) -> bool {
    let (mut host, mut enabled) = (None, false);
    for_each(info.p_next, |s_type, at| {
        let Some([address, replay]) = members(s_type) else { return };
        let members = [address, replay].map(|offset| at.wrapping_add(offset).cast::<vk::Bool32>());
        // SAFETY: `s_type` says which struct `at` points to, and the offsets are those of `VkBool32`s in it; the chain is memory of the
        // arena that nothing else refers to.
        let [address, replay] = members.map(|member| unsafe { &mut *member });
        if *address != 0 && *host.get_or_insert_with(|| can_replay(&physical.instance.ash, physical.handle)) {
            *replay = 1;
            enabled = true;
        }
    });
    enabled
}

/// Returns the offsets of `bufferDeviceAddress` and `bufferDeviceAddressCaptureReplay`, if the struct has them.
fn members(s_type: vk::StructureType) -> Option<[usize; 2]> {
    Some(match s_type {
        vk::StructureType::PHYSICAL_DEVICE_VULKAN_1_2_FEATURES => [
            offset_of!(sys::PhysicalDeviceVulkan12Features, buffer_device_address),
            offset_of!(sys::PhysicalDeviceVulkan12Features, buffer_device_address_capture_replay),
        ],
        vk::StructureType::PHYSICAL_DEVICE_BUFFER_DEVICE_ADDRESS_FEATURES => [
            offset_of!(sys::PhysicalDeviceBufferDeviceAddressFeatures, buffer_device_address),
            offset_of!(sys::PhysicalDeviceBufferDeviceAddressFeatures, buffer_device_address_capture_replay),
        ],
        _ => return None,
    })
}

/// Returns whether the host can capture and replay addresses. The host knows the struct of these features if a guest can enable such addresses.
pub(super) fn can_replay(instance: &ash::Instance, handle: vk::PhysicalDevice) -> bool {
    let mut addresses = vk::PhysicalDeviceBufferDeviceAddressFeatures::default();
    let mut features = vk::PhysicalDeviceFeatures2::default().push_next(&mut addresses);
    // SAFETY: the handle comes from this live instance; the chain lives until the call returns.
    unsafe { instance.get_physical_device_features2(handle, &mut features) };
    addresses.buffer_device_address_capture_replay != 0
}

/// Returns the addresses that a successor's driver gives again. A software driver's addresses are those of mappings, which a successor makes at the
/// same place; another driver has to replay addresses.
pub(super) fn had_again(is_software: bool, can_replay: impl FnOnce() -> bool) -> Addresses {
    match is_software {
        true => Addresses::All,
        false if can_replay() => Addresses::OfVulkan,
        false => Addresses::None,
    }
}

/// Returns the extensions of addresses that guests do not see.
pub(super) fn hidden_extensions(seen: Addresses) -> &'static [&'static str] {
    match seen {
        Addresses::All => &[],
        Addresses::OfVulkan => &["VK_EXT_buffer_device_address"],
        Addresses::None => &["VK_EXT_buffer_device_address", "VK_KHR_buffer_device_address"],
    }
}
