//! External memory as the null driver reports it: the types that can be imported, and those that buffers may be bound to.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use super::state::{self, Kind};
use ash::vk;

/// `vkGetMemoryHostPointerPropertiesEXT`.
pub(super) unsafe extern "system" fn host_pointer(
    device: u64,
    _: u32,
    _: usize,
    out: *mut vk::MemoryHostPointerPropertiesEXT<'static>,
) -> i32 {
    state::assert_live(device, Some(Kind::Device as u8));
    // SAFETY: callers pass a struct.
    unsafe { (*out).memory_type_bits = 2 };
    0
}

/// `vkGetPhysicalDeviceExternalBufferProperties`: every buffer may be bound to imported memory, and to memory that is given to others.
pub(super) unsafe extern "system" fn external_buffer(
    _: u64,
    info: *const vk::PhysicalDeviceExternalBufferInfo<'static>,
    out: *mut vk::ExternalBufferProperties<'static>,
) {
    // SAFETY: callers pass a description.
    let handle_type = unsafe { (*info).handle_type };
    let mut features = vk::ExternalMemoryFeatureFlags::IMPORTABLE;
    if handle_type == vk::ExternalMemoryHandleTypeFlags::OPAQUE_FD {
        features |= vk::ExternalMemoryFeatureFlags::EXPORTABLE;
    }
    // SAFETY: callers pass a place for them.
    unsafe { (*out).external_memory_properties.external_memory_features = features };
}
