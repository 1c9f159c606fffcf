//! The properties that the device reports: limits, formats, images, sizes. The bytes are the result.

use anyhow::{Result, ensure};
use ash::vk;

use crate::bytes::bytes_of;
use crate::case::Case;
use crate::gpu::Gpu;

/// All cases of this module.
pub(crate) fn cases() -> Vec<Case> {
    vec![
        limits(),
        subgroups(),
        vulkan_1_1(),
        vulkan_1_2(),
        vulkan_1_3(),
        formats(),
        image_formats(),
        memory(),
        robustness(),
    ]
}

/// The bytes of a struct of properties; its padding is zero.
fn raw<T: vk::ExtendsPhysicalDeviceProperties2 + vk::TaggedStructure>(gpu: &Gpu) -> Vec<u8> {
    let mut value = std::mem::MaybeUninit::<T>::zeroed();
    unsafe { value.as_mut_ptr().cast::<vk::StructureType>().write(T::STRUCTURE_TYPE) };
    gpu.properties2(unsafe { value.assume_init_mut() });
    unsafe { std::slice::from_raw_parts(value.as_ptr().cast::<u8>(), size_of::<T>()) }.to_vec()
}

fn limits() -> Case {
    Case::new("properties.limits", |gpu| {
        let limits = gpu.limits();
        let mut words = vec![
            u64::from(limits.max_image_dimension2_d),
            u64::from(limits.max_storage_buffer_range),
            u64::from(limits.max_uniform_buffer_range),
            u64::from(limits.max_push_constants_size),
            u64::from(limits.max_bound_descriptor_sets),
            u64::from(limits.max_per_stage_resources),
            u64::from(limits.max_compute_shared_memory_size),
            u64::from(limits.max_compute_work_group_invocations),
            u64::from(limits.timestamp_period.to_bits()),
            limits.min_memory_map_alignment as u64,
            limits.min_storage_buffer_offset_alignment,
            limits.non_coherent_atom_size,
            limits.optimal_buffer_copy_offset_alignment,
        ];
        words.extend(limits.max_compute_work_group_size.map(u64::from));
        words.extend(limits.max_compute_work_group_count.map(u64::from));
        Ok(bytes_of(&words))
    })
}

fn subgroups() -> Case {
    Case::new("properties.subgroups", |gpu| {
        let mut size = vk::PhysicalDeviceSubgroupSizeControlProperties::default();
        gpu.properties2(&mut size);
        let sizes = [size.min_subgroup_size, size.max_subgroup_size, size.max_compute_workgroup_subgroups];
        Ok(bytes_of(&[&sizes[..], &[size.required_subgroup_size_stages.as_raw()]].concat()))
    })
}

fn vulkan_1_1() -> Case {
    Case::new("properties.vulkan_1_1", |gpu| {
        let mut found = vk::PhysicalDeviceVulkan11Properties::default();
        gpu.properties2(&mut found);
        let words = [
            u64::from(found.subgroup_size),
            u64::from(found.subgroup_supported_stages.as_raw()),
            u64::from(found.subgroup_supported_operations.as_raw()),
            u64::from(found.subgroup_quad_operations_in_all_stages),
            u64::from(found.max_per_set_descriptors),
            found.max_memory_allocation_size,
        ];
        Ok(bytes_of(&words))
    })
}

fn vulkan_1_2() -> Case {
    Case::new("properties.vulkan_1_2", |gpu| {
        // The comparison begins at the float controls, because the members before them name the driver.
        let start = std::mem::offset_of!(vk::PhysicalDeviceVulkan12Properties, denorm_behavior_independence);
        Ok(raw::<vk::PhysicalDeviceVulkan12Properties>(gpu)[start..].to_vec())
    })
}

fn vulkan_1_3() -> Case {
    Case::new("properties.vulkan_1_3", |gpu| {
        let start = std::mem::offset_of!(vk::PhysicalDeviceVulkan13Properties, min_subgroup_size);
        Ok(raw::<vk::PhysicalDeviceVulkan13Properties>(gpu)[start..].to_vec())
    })
}

fn robustness() -> Case {
    Case::new("properties.robustness_2", |gpu| {
        gpu.require(&["robustBufferAccess2"])?;
        let mut found = vk::PhysicalDeviceRobustness2PropertiesEXT::default();
        gpu.properties2(&mut found);
        Ok(bytes_of(&[
            found.robust_storage_buffer_access_size_alignment,
            found.robust_uniform_buffer_access_size_alignment,
        ]))
    })
}

/// Every format of Vulkan 1.0 and some later ones. Those of several planes are left out: Mesa cuts their features to its own list.
fn all_formats() -> impl Iterator<Item = vk::Format> {
    (1..185).chain(1_000_340_000..1_000_340_002).map(vk::Format::from_raw)
}

/// Bits that a guest sees as the host has them. Guests do not see the bits of video, of extensions that are not passed on, and by default those of
/// images that can be drawn to.
pub(crate) const ALWAYS_SHOWN: u64 = 0x3_80ff_fc7f;

fn formats() -> Case {
    Case::new("properties.formats", |gpu| {
        let mut words = Vec::new();
        for format in all_formats() {
            let mut more = vk::FormatProperties3::default();
            let mut found = vk::FormatProperties2::default().push_next(&mut more);
            unsafe { gpu.instance.get_physical_device_format_properties2(gpu.physical, format, &mut found) };
            words.extend(
                [more.linear_tiling_features, more.optimal_tiling_features, more.buffer_features]
                    .map(|flags| flags.as_raw() & ALWAYS_SHOWN),
            );
        }
        ensure!(words.iter().any(|word| *word != 0), "no format has features");
        Ok(bytes_of(&words))
    })
}

fn image_formats() -> Case {
    fn one(
        gpu: &Gpu,
        format: vk::Format,
        ty: vk::ImageType,
        tiling: vk::ImageTiling,
        usage: vk::ImageUsageFlags,
    ) -> Result<[u64; 5]> {
        let info =
            vk::PhysicalDeviceImageFormatInfo2::default().format(format).ty(ty).tiling(tiling).usage(usage);
        let mut found = vk::ImageFormatProperties2::default();
        match unsafe {
            gpu.instance.get_physical_device_image_format_properties2(gpu.physical, &info, &mut found)
        } {
            Ok(()) => {
                let found = found.image_format_properties;
                let extent = u64::from(found.max_extent.width) << 32 | u64::from(found.max_extent.height);
                let counts = u64::from(found.max_mip_levels) << 32 | u64::from(found.max_array_layers);
                let depth = u64::from(found.max_extent.depth);
                Ok([extent, depth, counts, u64::from(found.sample_counts.as_raw()), found.max_resource_size])
            }
            Err(vk::Result::ERROR_FORMAT_NOT_SUPPORTED) => Ok([0; 5]),
            Err(error) => Err(error.into()),
        }
    }
    Case::new("properties.image_formats", |gpu| {
        let usages = [
            vk::ImageUsageFlags::SAMPLED | vk::ImageUsageFlags::TRANSFER_DST,
            vk::ImageUsageFlags::STORAGE,
            vk::ImageUsageFlags::TRANSFER_SRC | vk::ImageUsageFlags::TRANSFER_DST,
        ];
        let mut words = Vec::new();
        for format in
            [9, 16, 37, 43, 44, 50, 64, 70, 76, 83, 91, 97, 98, 100, 103, 109, 122, 123, 126, 131, 145]
                .map(vk::Format::from_raw)
        {
            for ty in [vk::ImageType::TYPE_1D, vk::ImageType::TYPE_2D, vk::ImageType::TYPE_3D] {
                for tiling in [vk::ImageTiling::OPTIMAL, vk::ImageTiling::LINEAR] {
                    for usage in usages {
                        words.extend(one(gpu, format, ty, tiling, usage)?);
                    }
                }
            }
        }
        Ok(bytes_of(&words))
    })
}

fn memory() -> Case {
    Case::new("properties.memory_heaps", |gpu| {
        // Types are chosen for guests; heaps are the host's.
        let heaps = gpu.memory.memory_heaps_as_slice();
        let words: Vec<u64> =
            heaps.iter().flat_map(|heap| [heap.size, u64::from(heap.flags.as_raw())]).collect();
        Ok(bytes_of(&words))
    })
}
