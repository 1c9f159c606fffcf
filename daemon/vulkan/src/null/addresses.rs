//! Device addresses of the null driver, which can be captured and replayed: the driver chooses a new address each time, and gives a captured one
//! again. It panics if replay is asked of a device that has not enabled it or for an object without an address, and if replay is missing for an
//! object with one.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use super::state::{self, Kind};
use ash::vk;
use std::ffi::c_void;
use std::sync::atomic::Ordering;

/// The distance of chosen addresses, which are all multiples of it.
const STEP: u64 = 1 << 20;

/// The first address that the driver chooses.
const FIRST: u64 = 1 << 40;

/// Visits a chain.
///
/// # Safety
///
/// Every struct in the chain begins with its type and the next, and lives until the call returns.
pub(super) unsafe fn for_each(
    mut next: *const c_void,
    mut visit: impl FnMut(vk::StructureType, *const c_void),
) {
    while !next.is_null() {
        // SAFETY: the caller's promise.
        let header = unsafe { &*next.cast::<vk::BaseInStructure<'_>>() };
        visit(header.s_type, next);
        next = header.p_next.cast();
    }
}

/// `vkGetPhysicalDeviceFeatures2`: answers only the features for addresses.
pub(super) unsafe extern "system" fn features2(
    gpu: u64,
    features: *mut vk::PhysicalDeviceFeatures2<'static>,
) {
    state::assert_live(gpu, Some(Kind::PhysicalDevice as u8));
    let replays = state::REPLAYS.load(Ordering::Relaxed).into();
    // SAFETY: callers pass a chain that may be written to, and types say which structs are in it.
    unsafe {
        for_each((*features).p_next, |s_type, at| match s_type {
            vk::StructureType::PHYSICAL_DEVICE_VULKAN_1_2_FEATURES => {
                let features = at.cast_mut().cast::<vk::PhysicalDeviceVulkan12Features<'_>>();
                ((*features).buffer_device_address, (*features).buffer_device_address_capture_replay) =
                    (1, replays);
            }
            vk::StructureType::PHYSICAL_DEVICE_BUFFER_DEVICE_ADDRESS_FEATURES => {
                let features = at.cast_mut().cast::<vk::PhysicalDeviceBufferDeviceAddressFeatures<'_>>();
                ((*features).buffer_device_address, (*features).buffer_device_address_capture_replay) =
                    (1, replays);
            }
            _ => {}
        });
    }
}

/// Notes whether a new device gives addresses again: such a device has an entry in the table of addresses itself.
///
/// # Safety
///
/// `info` is a description of a device.
pub(super) unsafe fn device_made(device: u64, info: &vk::DeviceCreateInfo<'_>) {
    let mut replays = false;
    // SAFETY: the caller's promise, and types say which structs are in the chain.
    unsafe {
        for_each(info.p_next, |s_type, at| {
            replays |= match s_type {
                vk::StructureType::PHYSICAL_DEVICE_VULKAN_1_2_FEATURES => {
                    let features = &*at.cast::<vk::PhysicalDeviceVulkan12Features<'_>>();
                    features.buffer_device_address_capture_replay != 0
                }
                vk::StructureType::PHYSICAL_DEVICE_BUFFER_DEVICE_ADDRESS_FEATURES => {
                    let features = &*at.cast::<vk::PhysicalDeviceBufferDeviceAddressFeatures<'_>>();
                    features.buffer_device_address_capture_replay != 0
                }
                _ => false,
            };
        });
    }
    if replays {
        state::set_address(device, FIRST);
    }
}

/// Returns the address that a buffer is to have, 0 for none.
///
/// # Errors
///
/// The requested address cannot be had.
///
/// # Safety
///
/// `info` is a description of a buffer.
pub(super) unsafe fn of_buffer(device: u64, info: &vk::BufferCreateInfo<'_>) -> Result<u64, i32> {
    // A buffer may be made twice, for one of two memories, so another buffer may have the same address.
    // SAFETY: the caller's promise.
    let (replays, asked) = unsafe { asked_for_buffer(device, info) };
    chosen(replays, asked)
}

/// Returns whether a buffer has an address that can be had again, and the requested address.
///
/// # Safety
///
/// `info` is a description of a buffer.
unsafe fn asked_for_buffer(device: u64, info: &vk::BufferCreateInfo<'_>) -> (bool, u64) {
    let (mut asked, mut usage) = (0, None);
    // SAFETY: the caller's promise, and types say which structs are in the chain.
    unsafe {
        for_each(info.p_next, |s_type, at| match s_type {
            vk::StructureType::BUFFER_OPAQUE_CAPTURE_ADDRESS_CREATE_INFO => {
                asked = (*at.cast::<vk::BufferOpaqueCaptureAddressCreateInfo<'_>>()).opaque_capture_address;
            }
            vk::StructureType::BUFFER_USAGE_FLAGS_2_CREATE_INFO_KHR => {
                // A guest may chain this struct twice.
                usage.get_or_insert((*at.cast::<vk::BufferUsageFlags2CreateInfoKHR<'_>>()).usage.as_raw());
            }
            _ => {}
        });
    }
    let replays = info.flags.contains(vk::BufferCreateFlags::DEVICE_ADDRESS_CAPTURE_REPLAY);
    let usage = usage.unwrap_or(u64::from(info.usage.as_raw()));
    let has_address = usage & u64::from(vk::BufferUsageFlags::SHADER_DEVICE_ADDRESS.as_raw()) != 0;
    assert_eq!(replays, has_address && state::address(device) != 0, "of a buffer with usage {usage:#x}");
    (replays, asked)
}

/// `vkGetDeviceBufferMemoryRequirements`: checks that such a buffer can be made.
pub(super) unsafe extern "system" fn buffer_requirements(
    device: u64,
    info: *const vk::DeviceBufferMemoryRequirements<'static>,
) {
    state::assert_live(device, Some(Kind::Device as u8));
    if !state::is_trusting() {
        // SAFETY: callers pass a description, with one of a buffer in it.
        unsafe { asked_for_buffer(device, &*(*info).p_create_info) };
    }
}

/// Returns the address that memory is to have, 0 for none.
///
/// # Errors
///
/// The requested address cannot be had.
///
/// # Safety
///
/// `info` is a description of an allocation.
pub(super) unsafe fn of_memory(device: u64, info: &vk::MemoryAllocateInfo<'_>) -> Result<u64, i32> {
    let (mut asked, mut flags) = (0, vk::MemoryAllocateFlags::empty());
    // SAFETY: the caller's promise, and types say which structs are in the chain.
    unsafe {
        for_each(info.p_next, |s_type, at| match s_type {
            vk::StructureType::MEMORY_OPAQUE_CAPTURE_ADDRESS_ALLOCATE_INFO => {
                asked = (*at.cast::<vk::MemoryOpaqueCaptureAddressAllocateInfo<'_>>()).opaque_capture_address;
            }
            vk::StructureType::MEMORY_ALLOCATE_FLAGS_INFO => {
                flags |= (*at.cast::<vk::MemoryAllocateFlagsInfo<'_>>()).flags;
            }
            _ => {}
        });
    }
    let replays = flags.contains(vk::MemoryAllocateFlags::DEVICE_ADDRESS_CAPTURE_REPLAY);
    let has_address = flags.contains(vk::MemoryAllocateFlags::DEVICE_ADDRESS);
    assert_eq!(
        replays,
        has_address && state::address(device) != 0,
        "of memory with flags {:#x}",
        flags.as_raw()
    );
    if asked != 0 && state::has_address(device, Kind::Memory, asked) {
        return Err(vk::Result::ERROR_INVALID_OPAQUE_CAPTURE_ADDRESS.as_raw());
    }
    chosen(replays, asked)
}

fn chosen(replays: bool, asked: u64) -> Result<u64, i32> {
    assert!(replays || asked == 0, "an address that cannot be had again is asked for");
    match (replays, asked) {
        (false, _) => Ok(0),
        (true, 0) => Ok(FIRST + STEP * state::next_address()),
        (true, asked) if asked.is_multiple_of(STEP) => Ok(asked),
        (true, _) => Err(vk::Result::ERROR_INVALID_OPAQUE_CAPTURE_ADDRESS.as_raw()),
    }
}

/// `vkGetBufferDeviceAddress` and `vkGetBufferOpaqueCaptureAddress`.
pub(super) unsafe extern "system" fn buffer_address(
    device: u64,
    info: *const vk::BufferDeviceAddressInfo<'static>,
) -> u64 {
    // SAFETY: callers pass a description, or nothing.
    let buffer = unsafe { info.as_ref() }.map_or(0, |info| vk::Handle::as_raw(info.buffer));
    state::assert_of(device, buffer, Kind::Buffer);
    state::address(buffer)
}

/// `vkGetDeviceMemoryOpaqueCaptureAddress`.
pub(super) unsafe extern "system" fn memory_address(
    device: u64,
    info: *const vk::DeviceMemoryOpaqueCaptureAddressInfo<'static>,
) -> u64 {
    // SAFETY: callers pass a description, or nothing.
    let memory = unsafe { info.as_ref() }.map_or(0, |info| vk::Handle::as_raw(info.memory));
    state::assert_of(device, memory, Kind::Memory);
    state::address(memory)
}
