//! What a guest sees of the host's device: queue families, memory types, properties and features, with the reason for each
//! difference. Extensions have a table of their own.

use super::generated::sys;
use super::lower::Header;
use crate::config::Queues;
use ash::vk;
use std::ffi::c_void;
use std::mem::offset_of;

/// Queues a guest can bind: `ring_idx` 1 to 63.
const BINDABLE_QUEUES: u32 = 63;

/// The families a guest sees: those in front of the first that can neither compute nor copy, so that indices stay the host's.
///
/// GRAPHICS goes unless graphics commands are served; SPARSE_BINDING and PROTECTED because neither is; video and optical flow
/// because they are not compute.
pub fn queue_families(
    host: Vec<vk::QueueFamilyProperties>,
    queues: Queues,
) -> Vec<vk::QueueFamilyProperties> {
    let mut kept = vk::QueueFlags::COMPUTE | vk::QueueFlags::TRANSFER;
    if queues == Queues::All {
        kept |= vk::QueueFlags::GRAPHICS;
    }
    let mut left = BINDABLE_QUEUES;
    host.into_iter()
        .map(|mut family| {
            // Graphics and compute families can copy whether they say so or not.
            if family.queue_flags.intersects(vk::QueueFlags::COMPUTE | vk::QueueFlags::GRAPHICS) {
                family.queue_flags |= vk::QueueFlags::TRANSFER;
            }
            family.queue_flags &= kept;
            family.queue_count = family.queue_count.min(left);
            left -= family.queue_count;
            family
        })
        .take_while(|family| !family.queue_flags.is_empty() && family.queue_count > 0)
        .collect()
}

/// Types that a guest could not map lose HOST_VISIBLE. Indices and heaps stay.
pub fn memory_types(memory: &mut vk::PhysicalDeviceMemoryProperties, mappable: u32) {
    let host = vk::MemoryPropertyFlags::HOST_VISIBLE
        | vk::MemoryPropertyFlags::HOST_COHERENT
        | vk::MemoryPropertyFlags::HOST_CACHED;
    for (i, ty) in memory.memory_types.iter_mut().enumerate() {
        if mappable & (1 << i) == 0 {
            ty.property_flags &= !host;
        }
        // Protected and lazily allocated memory belong to things that are not served.
        ty.property_flags &= !vk::MemoryPropertyFlags::PROTECTED;
    }
}

/// `VkPhysicalDeviceProperties`: the version, and nothing sparse.
pub fn properties(p: &mut sys::PhysicalDeviceProperties, api_version: u32) {
    p.api_version = p.api_version.min(api_version);
    p.limits.sparse_address_space_size = 0;
    p.sparse_properties = sys::PhysicalDeviceSparseProperties {
        residency_standard2_d_block_shape: 0,
        residency_standard2_d_multisample_block_shape: 0,
        residency_standard3_d_block_shape: 0,
        residency_aligned_mip_size: 0,
        residency_non_resident_strict: 0,
    };
}

/// `VkPhysicalDeviceProperties2` with its chain.
pub fn properties2(p: &mut sys::PhysicalDeviceProperties2, api_version: u32) {
    properties(&mut p.properties, api_version);
    for_each(p.p_next, |s_type, at| {
        if s_type == vk::StructureType::PHYSICAL_DEVICE_PROTECTED_MEMORY_PROPERTIES {
            // SAFETY: `s_type` says what `at` points to; the chain is memory of the arena that nothing else refers to.
            unsafe { (*at.cast::<sys::PhysicalDeviceProtectedMemoryProperties>()).protected_no_fault = 0 };
        }
    });
}

/// A feature of a chained struct that is withheld: its struct, its offset in it, its reason.
type Withheld = (vk::StructureType, usize, &'static str);

const NO_PROTECTED: &str = "protectedMemory: no protected queue is offered";
const NO_REPLAY: &str = "bufferDeviceAddressCaptureReplay: addresses cannot be chosen for imported pages";

/// Features of chained structs that a guest sees as absent although the host has them.
const WITHHELD: &[Withheld] = &[
    (
        vk::StructureType::PHYSICAL_DEVICE_VULKAN_1_1_FEATURES,
        offset_of!(sys::PhysicalDeviceVulkan11Features, protected_memory),
        NO_PROTECTED,
    ),
    (
        vk::StructureType::PHYSICAL_DEVICE_PROTECTED_MEMORY_FEATURES,
        offset_of!(sys::PhysicalDeviceProtectedMemoryFeatures, protected_memory),
        NO_PROTECTED,
    ),
    (
        vk::StructureType::PHYSICAL_DEVICE_VULKAN_1_2_FEATURES,
        offset_of!(sys::PhysicalDeviceVulkan12Features, buffer_device_address_capture_replay),
        NO_REPLAY,
    ),
    (
        vk::StructureType::PHYSICAL_DEVICE_BUFFER_DEVICE_ADDRESS_FEATURES,
        offset_of!(sys::PhysicalDeviceBufferDeviceAddressFeatures, buffer_device_address_capture_replay),
        NO_REPLAY,
    ),
    (
        vk::StructureType::PHYSICAL_DEVICE_BUFFER_DEVICE_ADDRESS_FEATURES_EXT,
        offset_of!(sys::PhysicalDeviceBufferDeviceAddressFeaturesEXT, buffer_device_address_capture_replay),
        NO_REPLAY,
    ),
];

/// `VkPhysicalDeviceFeatures`: nothing sparse.
pub fn features(f: &mut sys::PhysicalDeviceFeatures) {
    for feature in [
        &mut f.sparse_binding,
        &mut f.sparse_residency_buffer,
        &mut f.sparse_residency_image2_d,
        &mut f.sparse_residency_image3_d,
        &mut f.sparse_residency2_samples,
        &mut f.sparse_residency4_samples,
        &mut f.sparse_residency8_samples,
        &mut f.sparse_residency16_samples,
        &mut f.sparse_residency_aliased,
    ] {
        *feature = 0;
    }
}

/// `VkPhysicalDeviceFeatures2` with its chain.
pub fn features2(f: &mut sys::PhysicalDeviceFeatures2) {
    features(&mut f.features);
    for_each_withheld(f.p_next, |feature, _| *feature = 0);
}

/// The withheld feature that a device creation asks for, if any: the guest was told it is absent.
pub fn withheld_feature(chain: *const c_void) -> Option<&'static str> {
    let mut found = None;
    for_each_withheld(chain, |feature, reason| {
        if *feature != 0 {
            found = Some(reason);
        }
    });
    found
}

fn for_each_withheld(chain: *const c_void, mut visit: impl FnMut(&mut vk::Bool32, &'static str)) {
    for_each(chain, |s_type, at| {
        for (_, offset, reason) in WITHHELD.iter().filter(|(withheld, ..)| *withheld == s_type) {
            let feature = at.wrapping_add(*offset).cast::<vk::Bool32>();
            // SAFETY: `s_type` says which struct `at` points to, and `offset` is that of a `VkBool32` in it; the chain is memory
            // of the arena that nothing else refers to.
            visit(unsafe { &mut *feature }, reason);
        }
    });
}

/// Visits a chain that this process lowered.
fn for_each(first: *const c_void, mut visit: impl FnMut(vk::StructureType, *mut u8)) {
    let mut at = first;
    while !at.is_null() {
        // SAFETY: chains are written by `Lowering::linked`; every struct in one starts with a header.
        let header = unsafe { &*at.cast::<Header>() };
        visit(vk::StructureType::from_raw(header.s_type), at.cast_mut().cast());
        at = header.p_next;
    }
}
