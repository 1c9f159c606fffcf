//! Formats as a guest sees them: features and images that it cannot use are not there.
//!
//! A guest cannot name bits that the codec does not know: the generated code drops them from answers, and answers "not supported" where
//! a question describes an image with such bits. The rest is about copies by the host (`host_copy`): a guest's driver sends the
//! texels. Mesa before 26.2 takes those of every plane for as large as the format's smallest, so it sends too few for planes of more
//! than a byte; and it takes those of formats that its own tables lack for a byte. Programs copy such images by a buffer where they see
//! that the host does not.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use super::planes::Planes;
use super::reshape::for_each;
use crate::driver::generated::sys;
use crate::driver::physical_device::PhysicalDevice;
use ash::vk;
use protocol::venus::generated::{
    self as venus, ChainStruct, FormatFeatureFlags2 as Features, ImageCreateFlags, ImageUsageFlags,
};

/// The creation flags of images that need features which are not offered.
const NOT_OFFERED: u32 = ImageCreateFlags::SPARSE_BINDING.0
    | ImageCreateFlags::SPARSE_RESIDENCY.0
    | ImageCreateFlags::SPARSE_ALIASED.0
    | ImageCreateFlags::PROTECTED.0;

/// Returns whether every guest's driver sends as many bytes as a copy by the host takes.
pub(crate) fn is_sent_whole(format: venus::Format) -> bool {
    Planes::of(format).is_none_or(Planes::are_of_bytes) && !is_taken_for_bytes(format)
}

/// Returns whether a format has no planes, is missing in the tables of some drivers of guests, and has texels that are larger than a byte.
fn is_taken_for_bytes(format: venus::Format) -> bool {
    use venus::Format as F;
    let wide = [
        F::R10X6G10X6B10X6A10X6_UNORM_4PACK16,
        F::R12X4G12X4B12X4A12X4_UNORM_4PACK16,
        F::G10X6B10X6G10X6R10X6_422_UNORM_4PACK16,
        F::B10X6G10X6R10X6G10X6_422_UNORM_4PACK16,
        F::G12X4B12X4G12X4R12X4_422_UNORM_4PACK16,
        F::B12X4G12X4R12X4G12X4_422_UNORM_4PACK16,
        F::G16B16G16R16_422_UNORM,
        F::B16G16R16G16_422_UNORM,
    ];
    let astc = F::ASTC_4X4_SFLOAT_BLOCK.0..=F::ASTC_12X12_SFLOAT_BLOCK.0;
    wide.contains(&format) || astc.contains(&format.0)
}

/// Removes copies by the host.
fn shape(features: &mut u64) {
    *features &= !Features::HOST_IMAGE_TRANSFER.0;
}

/// Removes copies by the host from a format's features. The first struct has no room for them.
pub(crate) fn without_host_copies(properties: &sys::FormatProperties2) {
    for_each(properties.p_next, |s_type, at| match s_type {
        vk::StructureType::FORMAT_PROPERTIES_3 => {
            // SAFETY: `s_type` says what `at` points to; the chain is memory of the arena that nothing else refers to.
            let features = unsafe { &mut *at.cast::<sys::FormatProperties3>() };
            shape(&mut features.linear_tiling_features);
            shape(&mut features.optimal_tiling_features);
        }
        vk::StructureType::DRM_FORMAT_MODIFIER_PROPERTIES_LIST_2_EXT => {
            // SAFETY: as above.
            let list = unsafe { &*at.cast::<sys::DrmFormatModifierPropertiesList2EXT>() };
            let (entries, count) =
                (list.p_drm_format_modifier_properties, list.drm_format_modifier_count as usize);
            if !entries.is_null() {
                // SAFETY: the driver has written so many entries of the array that the arena holds.
                let entries = unsafe { std::slice::from_raw_parts_mut(entries, count) };
                entries.iter_mut().for_each(|entry| shape(&mut entry.drm_format_modifier_tiling_features));
            }
        }
        _ => {}
    });
}

/// An image that a guest asks about, or makes.
pub(crate) struct Asked {
    /// The image's format.
    pub format: venus::Format,
    /// The way in which its texels lie in memory.
    pub tiling: venus::ImageTiling,
    /// The uses of the image, its stencil included.
    pub usage: ImageUsageFlags,
    /// The flags that it is made with.
    pub flags: ImageCreateFlags,
}

impl Asked {
    /// Describes an image, with what the chain says of its stencil.
    pub(crate) fn new(
        format: venus::Format,
        tiling: venus::ImageTiling,
        usage: ImageUsageFlags,
        flags: ImageCreateFlags,
        chain: &[ChainStruct<'_>],
    ) -> Self {
        let stencil = chain.iter().find_map(|next| match next {
            ChainStruct::ImageStencilUsageCreateInfo(stencil) => Some(stencil.stencil_usage.0),
            _ => None,
        });
        Self { format, tiling, usage: ImageUsageFlags(usage.0 | stencil.unwrap_or(0)), flags }
    }

    /// Returns whether no guest can use such an image, whatever the driver says of it.
    pub(crate) fn is_unusable(&self, physical: &PhysicalDevice) -> bool {
        let unknown = self.usage != self.usage.known() || self.flags != self.flags.known();
        let copied = self.usage.contains(ImageUsageFlags::HOST_TRANSFER);
        unknown || self.flags.0 & NOT_OFFERED != 0 || copied && !self.is_copied_by_the_host(physical)
    }

    /// Returns whether the host copies texels of the format. Some drivers accept the usage for any image.
    fn is_copied_by_the_host(&self, physical: &PhysicalDevice) -> bool {
        if !is_sent_whole(self.format) {
            return false;
        }
        let mut found = vk::FormatProperties3::default();
        let mut properties = vk::FormatProperties2::default().push_next(&mut found);
        let instance = &physical.instance.ash;
        let format = vk::Format::from_raw(self.format.0);
        // SAFETY: the physical device is live, the chain lives until the call returns.
        unsafe { instance.get_physical_device_format_properties2(physical.handle, format, &mut properties) };
        let features = match self.tiling {
            venus::ImageTiling::OPTIMAL => found.optimal_tiling_features,
            venus::ImageTiling::LINEAR => found.linear_tiling_features,
            // Each modifier has features of its own; the driver looks at them.
            _ => return true,
        };
        features.as_raw() & Features::HOST_IMAGE_TRANSFER.0 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_some_drivers_of_guests_cut_is_not_copied_by_the_host() {
        use venus::Format as F;
        for whole in [
            F::R8G8B8A8_UNORM,
            F::G8_B8_R8_3PLANE_420_UNORM,
            F::G8_B8_R8_3PLANE_444_UNORM,
            F::D32_SFLOAT_S8_UINT,
            F::G8B8G8R8_422_UNORM,
            F::R12X4G12X4_UNORM_2PACK16,
            F::ASTC_12X12_SRGB_BLOCK,
        ] {
            assert!(is_sent_whole(whole), "{whole:?}");
        }
        for cut in [
            F::G8_B8R8_2PLANE_420_UNORM,
            F::G8_B8R8_2PLANE_444_UNORM,
            F::G10X6_B10X6_R10X6_3PLANE_420_UNORM_3PACK16,
            F::G12X4_B12X4R12X4_2PLANE_444_UNORM_3PACK16,
            F::G16_B16_R16_3PLANE_420_UNORM,
            F::G16B16G16R16_422_UNORM,
            F::R12X4G12X4B12X4A12X4_UNORM_4PACK16,
            F::ASTC_4X4_SFLOAT_BLOCK,
            F::ASTC_12X12_SFLOAT_BLOCK,
        ] {
            assert!(!is_sent_whole(cut), "{cut:?}");
        }
    }
}
