//! Device addresses of the null driver, which can be captured and replayed: each that it chooses is another, and one that was captured is
//! given again. It panics where this is asked of a device that has not enabled it or of what has no address, and where it is not asked of
//! what has one.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use super::state::{self, Kind};
use ash::vk;
use std::ffi::c_void;
use std::sync::atomic::Ordering;

/// The distance of addresses that are chosen, of which all are multiples.
const STEP: u64 = 1 << 20;

/// The address that is chosen first.
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

/// `vkGetPhysicalDeviceFeatures2`: of features only those for addresses.
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

/// Takes note of whether a device that was made just now gives addresses again: then it has an address itself.
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
/// The one that is asked for cannot be had.
///
/// # Safety
///
/// `info` is a description of a buffer.
pub(super) unsafe fn of_buffer(device: u64, info: &vk::BufferCreateInfo<'_>) -> Result<u64, i32> {
    // A buffer may be made twice, for one of two memories, so others may have the address as well.
    // SAFETY: the caller's promise.
    let (replays, asked) = unsafe { asked_for_buffer(device, info) };
    chosen(replays, asked)
}

/// Returns whether a buffer has an address that can be had again, and the one that is asked for.
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
                // A guest may say it twice.
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

/// `vkGetDeviceBufferMemoryRequirements`: of buffers as they can be made.
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
/// The one that is asked for cannot be had.
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
