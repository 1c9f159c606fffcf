//! The host's device as a guest sees it: memory types, properties and features, with the reason for each difference, also of queue
//! families. Extensions have a table of their own.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use crate::driver::generated::sys;
use crate::driver::header::Header;
use crate::driver::physical_device::{Addresses, heap};
use ash::vk;
use config::{ContextLimits, GpuChoice, Heap, MemoryBackEnd, MemoryTrial};
use protocol::venus::generated as venus;
use std::ffi::c_void;
use std::mem::offset_of;

/// Takes HOST_VISIBLE from types that a guest could not map, and HOST_CACHED from types that the driver maps for the guest. Indices and heaps stay.
pub(crate) fn memory_types(memory: &mut vk::PhysicalDeviceMemoryProperties, trial: &MemoryTrial) {
    let host = vk::MemoryPropertyFlags::HOST_VISIBLE
        | vk::MemoryPropertyFlags::HOST_COHERENT
        | vk::MemoryPropertyFlags::HOST_CACHED;
    for (i, ty) in memory.memory_types.iter_mut().enumerate() {
        if trial.driver_mapped.types & (1 << i) != 0 {
            ty.property_flags &= !vk::MemoryPropertyFlags::HOST_CACHED;
        } else if trial.mappable_types & (1 << i) == 0 {
            ty.property_flags &= !host;
        }
        // Protected and lazily allocated memory belong to features that are not served.
        ty.property_flags &= !vk::MemoryPropertyFlags::PROTECTED;
    }
}

/// Makes heaps no larger than the memory that the context may have of them, because a guest learns of a failed allocation too late.
pub(crate) fn memory_heaps(
    memory: &mut vk::PhysicalDeviceMemoryProperties,
    gpu: &GpuChoice,
    limits: &ContextLimits,
) {
    for index in 0..memory.memory_heap_count {
        let most = |(i, ty): (usize, &vk::MemoryType)| {
            let heap = heap(memory, ty);
            let of_heap = match heap {
                Heap::Device => limits.device_memory,
                Heap::Host => limits.host_memory,
            };
            // Pages are memory of the host, whatever heap the driver counts them in.
            let pages = gpu.memory == MemoryBackEnd::Memfd
                && ty.property_flags.contains(vk::MemoryPropertyFlags::HOST_VISIBLE)
                && gpu.trial.driver_mapped.types & (1 << i) == 0;
            if pages { of_heap.min(limits.host_memory) } else { of_heap }
        };
        let types = memory.memory_types_as_slice().iter().enumerate();
        let types = types.filter(|(_, ty)| ty.heap_index == index);
        if let Some(most) = types.map(most).max() {
            let size = &mut memory.memory_heaps[index as usize].size;
            *size = (*size).min(most);
        }
    }
}

/// A property that a guest sees differently, its value for the guest, and the reason.
pub(crate) type Reshaped = (&'static str, &'static str, &'static str);

/// The changes that this file and the queries of `physical_device` make to properties and limits.
pub(crate) const RESHAPED: &[Reshaped] = &[
    (
        "apiVersion",
        "no more than the registry the codec was generated from",
        "newer structs are not decodable",
    ),
    (
        "queueFlags",
        "COMPUTE and TRANSFER, and GRAPHICS unless with `--queues compute`",
        "sparse binding, protected memory and video are not served",
    ),
    (
        "queue families",
        "those up to the first that can neither compute nor copy; where none says that it draws, the first that computes changes places \
         with the first that computes and does not draw, if that comes later",
        "indices stay the host's as far as they can; queues that draw compute more slowly, and programs avoid them where they see it",
    ),
    (
        "queueCount",
        "63 in all; with `--movable` one less of each family that has several",
        "each queue has a fence timeline of the context, and there are 63; one copies memory when a program gets another worker",
    ),
    (
        "memoryTypes",
        "HOST_VISIBLE, HOST_COHERENT and HOST_CACHED only where a guest can map the memory (device memory that drivers do not \
         export: with `--map-device-memory`, never HOST_CACHED); never PROTECTED",
        "a guest maps pages that both the driver and the VMM can map",
    ),
    (
        "memory requirements of buffers",
        "those for more than copies are aligned to 64 KiB where guests map the GPU's own memory",
        "what a driver maps others map only as a whole",
    ),
    (
        "memoryHeaps",
        "no larger than what the context may allocate (`--device-memory` and its neighbours); what VK_EXT_memory_budget says is \
         counted for the context",
        "drivers of guests do not wait for an allocation's result",
    ),
    ("maxMemoryAllocationSize, maxBufferSize", "no more than the largest heap", "as for heaps"),
    (
        "features of formats",
        "those of Vulkan and of extensions that guests have; `HOST_IMAGE_TRANSFER` of formats with planes only where a texel of each \
         plane is a byte, and not of `4PACK16` formats, `422` formats of 16 bits and `ASTC` formats of floats; with `--queues nominal` \
         (the default) no attachments but `DEPTH_STENCIL_ATTACHMENT` of `D24_UNORM_S8_UINT` and `D32_SFLOAT_S8_UINT`",
        "Mesa before 26.2 sends too few bytes of these, and programs copy them by a buffer where the host does not; programs that draw \
         look for attachments before they do; Vulkan promises one of those two, and Dawn aborts programs where neither is",
    ),
    (
        "images of a format",
        "not supported with uses and flags of extensions that guests lack, sparse, protected, or for copies by the host where \
         features lack them; with `--queues nominal` not as attachments, unless shaders can store to them and commands copy to them",
        "no guest could make them; programs that compute make images with every usage there is, and use few",
    ),
    ("sparseAddressSpaceSize", "0", SPARSE),
    (
        "residencyStandard2DBlockShape, residencyStandard2DMultisampleBlockShape, residencyStandard3DBlockShape, \
         residencyAlignedMipSize, residencyNonResidentStrict",
        "false",
        SPARSE,
    ),
    ("protectedNoFault", "false", PROTECTED),
    (
        "external memory handle types",
        "DMA_BUF and OPAQUE_FD of the guest's kernel, or none where contexts cannot share memory",
        "handles of the host mean nothing in a guest",
    ),
    ("external fence handle types", "none", "handles of the host mean nothing in a guest"),
    (
        "external semaphore handle types",
        "SYNC_FD, of the guest's kernel",
        "emulated: Mesa before 26.2 needs it for Vulkan 1.3",
    ),
    (
        "pipeline cache data",
        "32 bytes more than the host's",
        "a tag, without which data from a guest's file is dropped",
    ),
];

/// `VkPhysicalDeviceProperties`: the version, and nothing sparse.
pub(crate) fn properties(p: &mut sys::PhysicalDeviceProperties, api_version: u32) {
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
pub(crate) fn properties2(p: &mut sys::PhysicalDeviceProperties2, api_version: u32, largest_heap: u64) {
    properties(&mut p.properties, api_version);
    for_each(p.p_next, |s_type, at| {
        let largest = largest_member(s_type).map(|offset| at.wrapping_add(offset).cast::<u64>());
        if let Some(largest) = largest {
            // SAFETY: `s_type` says which struct `at` points to, and the offset is that of a `VkDeviceSize` in it; the chain is memory
            // of the arena that nothing else refers to.
            let largest = unsafe { &mut *largest };
            *largest = largest_heap.min(*largest);
        }
        if s_type == vk::StructureType::PHYSICAL_DEVICE_PROTECTED_MEMORY_PROPERTIES {
            // SAFETY: `s_type` says what `at` points to; the chain is memory of the arena that nothing else refers to.
            unsafe { (*at.cast::<sys::PhysicalDeviceProtectedMemoryProperties>()).protected_no_fault = 0 };
        }
    });
}

/// Returns the offset of the member that says how large an allocation or a buffer may be, if the struct has one.
fn largest_member(s_type: vk::StructureType) -> Option<usize> {
    Some(match s_type {
        vk::StructureType::PHYSICAL_DEVICE_VULKAN_1_1_PROPERTIES => {
            offset_of!(sys::PhysicalDeviceVulkan11Properties, max_memory_allocation_size)
        }
        vk::StructureType::PHYSICAL_DEVICE_MAINTENANCE_3_PROPERTIES => {
            offset_of!(sys::PhysicalDeviceMaintenance3Properties, max_memory_allocation_size)
        }
        vk::StructureType::PHYSICAL_DEVICE_VULKAN_1_3_PROPERTIES => {
            offset_of!(sys::PhysicalDeviceVulkan13Properties, max_buffer_size)
        }
        vk::StructureType::PHYSICAL_DEVICE_MAINTENANCE_4_PROPERTIES => {
            offset_of!(sys::PhysicalDeviceMaintenance4Properties, max_buffer_size)
        }
        _ => return None,
    })
}

/// A feature that a guest sees as absent although the host may have it.
pub(crate) struct Withheld {
    /// The feature's name in the registry.
    pub name: &'static str,
    /// The reason why the feature is absent.
    pub reason: &'static str,
    /// The feature is absent for guests that see these addresses or fewer.
    most: Addresses,
    /// A struct that holds the feature.
    s_type: vk::StructureType,
    /// The offset of the feature in that struct.
    offset: usize,
}

const SPARSE: &str = "sparse resources: the queue command that binds their memory is not served";

const PROTECTED: &str = "protected memory: no protected queue is offered";

/// The reason that applies if guests see no addresses.
const ADDRESSES: &str = "with `--movable` only, where the host lacks `bufferDeviceAddressCaptureReplay` and is no software driver: another worker \
                         could not have the same addresses; `VK_KHR_buffer_device_address` is absent as well";

/// The reason that applies if guests do not see all addresses.
const EXT_ADDRESSES: &str = "that of `VK_EXT_buffer_device_address`, which is absent as well, with `--movable` only, unless the host is a software \
                             driver: its addresses are not captured";

const REPLAY: &str = "capture and replay: addresses cannot be chosen for imported pages";

/// Rows of [`WITHHELD`] for one struct: its type, its C struct, the reason, and the addresses of `most` if guests that see all of them see the
/// features.
macro_rules! withheld {
    ($s_type:expr, $struct:ident, $reason:expr, $($name:literal: $($member:ident).+),* $(,)?) => {
        withheld!($s_type, $struct, $reason, Addresses::All, $($name: $($member).+),*)
    };
    ($s_type:expr, $struct:ident, $reason:expr, $most:expr, $($name:literal: $($member:ident).+),* $(,)?) => {
        [$(Withheld {
            name: $name,
            reason: $reason,
            most: $most,
            s_type: $s_type,
            offset: offset_of!(sys::$struct, $($member).+),
        }),*]
    };
}

/// Withheld features, once for each struct that holds them.
pub(crate) const WITHHELD: &[&[Withheld]] = &[
    &withheld!(
        vk::StructureType::PHYSICAL_DEVICE_FEATURES_2, PhysicalDeviceFeatures2, SPARSE,
        "sparseBinding": features.sparse_binding,
        "sparseResidencyBuffer": features.sparse_residency_buffer,
        "sparseResidencyImage2D": features.sparse_residency_image2_d,
        "sparseResidencyImage3D": features.sparse_residency_image3_d,
        "sparseResidency2Samples": features.sparse_residency2_samples,
        "sparseResidency4Samples": features.sparse_residency4_samples,
        "sparseResidency8Samples": features.sparse_residency8_samples,
        "sparseResidency16Samples": features.sparse_residency16_samples,
        "sparseResidencyAliased": features.sparse_residency_aliased,
    ),
    &withheld!(
        vk::StructureType::PHYSICAL_DEVICE_VULKAN_1_1_FEATURES, PhysicalDeviceVulkan11Features, PROTECTED,
        "protectedMemory": protected_memory,
    ),
    &withheld!(
        vk::StructureType::PHYSICAL_DEVICE_PROTECTED_MEMORY_FEATURES,
        PhysicalDeviceProtectedMemoryFeatures, PROTECTED,
        "protectedMemory": protected_memory,
    ),
    &withheld!(
        // ash follows an older registry.
        vk::StructureType::from_raw(venus::StructureType::PHYSICAL_DEVICE_VULKAN_1_4_FEATURES.0),
        PhysicalDeviceVulkan14Features, PROTECTED,
        "pipelineProtectedAccess": pipeline_protected_access,
    ),
    &withheld!(
        vk::StructureType::PHYSICAL_DEVICE_PIPELINE_PROTECTED_ACCESS_FEATURES_EXT,
        PhysicalDevicePipelineProtectedAccessFeatures, PROTECTED,
        "pipelineProtectedAccess": pipeline_protected_access,
    ),
    &withheld!(
        vk::StructureType::PHYSICAL_DEVICE_VULKAN_1_2_FEATURES, PhysicalDeviceVulkan12Features, REPLAY,
        "bufferDeviceAddressCaptureReplay": buffer_device_address_capture_replay,
    ),
    &withheld!(
        vk::StructureType::PHYSICAL_DEVICE_BUFFER_DEVICE_ADDRESS_FEATURES,
        PhysicalDeviceBufferDeviceAddressFeatures, REPLAY,
        "bufferDeviceAddressCaptureReplay": buffer_device_address_capture_replay,
    ),
    &withheld!(
        vk::StructureType::PHYSICAL_DEVICE_BUFFER_DEVICE_ADDRESS_FEATURES_EXT,
        PhysicalDeviceBufferDeviceAddressFeaturesEXT, REPLAY,
        "bufferDeviceAddressCaptureReplay": buffer_device_address_capture_replay,
    ),
    &withheld!(
        vk::StructureType::PHYSICAL_DEVICE_VULKAN_1_2_FEATURES, PhysicalDeviceVulkan12Features, ADDRESSES, Addresses::None,
        "bufferDeviceAddress": buffer_device_address,
        "bufferDeviceAddressMultiDevice": buffer_device_address_multi_device,
    ),
    &withheld!(
        vk::StructureType::PHYSICAL_DEVICE_BUFFER_DEVICE_ADDRESS_FEATURES,
        PhysicalDeviceBufferDeviceAddressFeatures, ADDRESSES, Addresses::None,
        "bufferDeviceAddress": buffer_device_address,
        "bufferDeviceAddressMultiDevice": buffer_device_address_multi_device,
    ),
    &withheld!(
        vk::StructureType::PHYSICAL_DEVICE_BUFFER_DEVICE_ADDRESS_FEATURES_EXT,
        PhysicalDeviceBufferDeviceAddressFeaturesEXT, EXT_ADDRESSES, Addresses::OfVulkan,
        "bufferDeviceAddress": buffer_device_address,
        "bufferDeviceAddressMultiDevice": buffer_device_address_multi_device,
    ),
];

impl Withheld {
    /// Returns whether guests that see these addresses do not see the feature.
    fn counts(&self, seen: Addresses) -> bool {
        seen <= self.most
    }
}

/// `VkPhysicalDeviceFeatures` as a guest sees them, among which there is none of addresses.
pub(crate) fn features(f: &mut sys::PhysicalDeviceFeatures) {
    let mut whole = sys::PhysicalDeviceFeatures2 {
        s_type: vk::StructureType::PHYSICAL_DEVICE_FEATURES_2.as_raw(),
        p_next: std::ptr::null(),
        features: *f,
    };
    features2(&mut whole, Addresses::All);
    *f = whole.features;
}

/// `VkPhysicalDeviceFeatures2` with its chain, for a guest that sees these addresses.
pub(crate) fn features2(f: &mut sys::PhysicalDeviceFeatures2, seen: Addresses) {
    for_each_withheld(std::ptr::from_mut(f).cast(), seen, |feature, _| *feature = 0);
}

/// Returns the withheld feature that a device creation asks for, if any: the guest was told it is absent.
pub(crate) fn withheld_feature(info: &sys::DeviceCreateInfo, seen: Addresses) -> Option<&'static str> {
    let mut found = None;
    let mut look = |feature: &mut vk::Bool32, withheld: &Withheld| {
        if *feature != 0 {
            found = Some(withheld.name);
        }
    };
    for_each_withheld(info.p_next, seen, &mut look);
    if !info.p_enabled_features.is_null() {
        let whole = sys::PhysicalDeviceFeatures2 {
            s_type: vk::StructureType::PHYSICAL_DEVICE_FEATURES_2.as_raw(),
            p_next: std::ptr::null(),
            // SAFETY: not null, hence lowered into the arena.
            features: unsafe { *info.p_enabled_features },
        };
        for_each_withheld((&raw const whole).cast(), seen, &mut look);
    }
    found
}

fn for_each_withheld(
    first: *const c_void,
    seen: Addresses,
    mut visit: impl FnMut(&mut vk::Bool32, &'static Withheld),
) {
    for_each(first, |s_type, at| {
        let of_struct = |withheld: &&Withheld| withheld.s_type == s_type && withheld.counts(seen);
        for withheld in WITHHELD.iter().copied().flatten().filter(of_struct) {
            let feature = at.wrapping_add(withheld.offset).cast::<vk::Bool32>();
            // SAFETY: `s_type` says which struct `at` points to, and `offset` is that of a `VkBool32` in it; the chain is memory
            // of the arena or of the caller that nothing else refers to.
            visit(unsafe { &mut *feature }, withheld);
        }
    });
}

/// Visits a chain that this process lowered.
pub(crate) fn for_each(first: *const c_void, mut visit: impl FnMut(vk::StructureType, *mut u8)) {
    let mut at = first;
    while !at.is_null() {
        // SAFETY: chains are written by `Lowering::linked`; every struct in one starts with a header.
        let header = unsafe { &*at.cast::<Header>() };
        visit(vk::StructureType::from_raw(header.s_type), at.cast_mut().cast());
        at = header.p_next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::{DriverMapped, Protection, Queues};

    const LOCAL: vk::MemoryHeapFlags = vk::MemoryHeapFlags::DEVICE_LOCAL;
    const NONE: vk::MemoryHeapFlags = vk::MemoryHeapFlags::empty();

    /// Sizes of heaps of 100 bytes each as shown, for `types` of flags and heap.
    fn sizes(
        memory_back_end: MemoryBackEnd,
        driver_mapped: u32,
        heaps: &[vk::MemoryHeapFlags],
        types: &[(bool, u32)],
    ) -> Vec<u64> {
        let mut memory = vk::PhysicalDeviceMemoryProperties {
            memory_heap_count: heaps.len() as u32,
            memory_type_count: types.len() as u32,
            ..Default::default()
        };
        for (heap, flags) in memory.memory_heaps.iter_mut().zip(heaps) {
            *heap = vk::MemoryHeap { size: 100, flags: *flags };
        }
        for (ty, (visible, heap_index)) in memory.memory_types.iter_mut().zip(types) {
            let flags = if *visible { vk::MemoryPropertyFlags::HOST_VISIBLE } else { Default::default() };
            *ty = vk::MemoryType { property_flags: flags, heap_index: *heap_index };
        }
        let limits = ContextLimits { device_memory: 50, host_memory: 20, ..ContextLimits::default() };
        let driver_mapped = DriverMapped { types: driver_mapped, device: 1 };
        let gpu = GpuChoice {
            uuid: [0; 16],
            memory: memory_back_end,
            trial: MemoryTrial { mappable_types: 1, shareable: true, driver_mapped, exportable_types: 0 },
            queues: Queues::Compute,
            protection: Protection::default(),
        };
        memory_heaps(&mut memory, &gpu, &limits);
        memory.memory_heaps_as_slice().iter().map(|heap| heap.size).collect()
    }

    #[test]
    fn a_guest_maps_what_the_back_end_or_the_driver_can_and_nothing_else() {
        use vk::MemoryPropertyFlags as Flags;
        let host = Flags::HOST_VISIBLE | Flags::HOST_COHERENT | Flags::HOST_CACHED;
        let mut memory = vk::PhysicalDeviceMemoryProperties { memory_type_count: 3, ..Default::default() };
        memory.memory_types[..3].fill(vk::MemoryType { property_flags: host, heap_index: 0 });
        let driver_mapped = DriverMapped { types: 0b10, device: 1 };
        memory_types(
            &mut memory,
            &MemoryTrial { mappable_types: 1, shareable: true, driver_mapped, exportable_types: 0 },
        );
        let seen = memory.memory_types_as_slice().iter().map(|ty| ty.property_flags).collect::<Vec<_>>();
        assert!(seen == [host, Flags::HOST_VISIBLE | Flags::HOST_COHERENT, Flags::empty()]);
    }

    #[test]
    fn heaps_are_as_large_as_what_may_be_had_of_them() {
        let (memfd, dma_buf) = (MemoryBackEnd::Memfd, MemoryBackEnd::DmaBuf);
        // A card of its own, as its types are after shaping: only memory of the host can be mapped.
        assert_eq!(sizes(memfd, 0, &[LOCAL, NONE], &[(false, 0), (false, 1), (true, 1)]), [50, 20]);
        // Memory that the driver maps is no page of ours.
        assert_eq!(sizes(memfd, 0b100, &[LOCAL, NONE], &[(true, 1), (true, 0), (true, 0)]), [50, 20]);
        assert_eq!(sizes(memfd, 0, &[LOCAL, NONE], &[(true, 1), (true, 0), (true, 0)]), [20, 20]);
        // One memory for all.
        assert_eq!(sizes(memfd, 0, &[LOCAL], &[(true, 0)]), [20]);
        assert_eq!(sizes(memfd, 0, &[LOCAL], &[(false, 0), (true, 0)]), [50]);
        assert_eq!(sizes(dma_buf, 0, &[LOCAL, NONE], &[(true, 0), (true, 1)]), [50, 20]);
        // Nothing can be allocated from a heap without types.
        assert_eq!(sizes(memfd, 0, &[LOCAL, NONE], &[(true, 0)]), [20, 100]);
    }
}
