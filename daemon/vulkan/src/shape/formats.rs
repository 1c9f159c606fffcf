//! Formats as a guest sees them: features and images that the guest cannot use are left out.
//!
//! If queues only say that they draw (`--queues nominal`), no image can be drawn upon. Programs that check this before they draw are told so: for
//! images always, for formats except those of depth with stencil.
//!
//! A guest cannot name bits that the codec does not know: the generated code drops them from answers, and answers "not supported" where
//! a question describes an image with such bits. The rest is about copies by the host (`host_copy`), for which a guest's driver sends the texels.
//! Mesa before 26.2 takes the texels of every plane for as large as the format's smallest, so it sends too few bytes for planes of more than a byte.
//! It also takes texels of formats that its own tables lack for one byte. Programs copy such images by a buffer if they see that the host does not.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use super::planes::Planes;
use super::reshape::for_each;
use crate::driver::generated::sys;
use crate::driver::physical_device::PhysicalDevice;
use ash::vk;
use config::Queues;
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

/// The features of formats that can be drawn upon.
const ATTACHMENTS: u64 = Features::COLOR_ATTACHMENT.0
    | Features::COLOR_ATTACHMENT_BLEND.0
    | Features::DEPTH_STENCIL_ATTACHMENT.0
    | Features::FRAGMENT_SHADING_RATE_ATTACHMENT_KHR.0;

/// The uses of images that are drawn upon.
const DRAWN_UPON: u32 = ImageUsageFlags::COLOR_ATTACHMENT.0
    | ImageUsageFlags::DEPTH_STENCIL_ATTACHMENT.0
    | ImageUsageFlags::TRANSIENT_ATTACHMENT.0
    | ImageUsageFlags::INPUT_ATTACHMENT.0
    | ImageUsageFlags::FRAGMENT_SHADING_RATE_ATTACHMENT_KHR.0;

/// Returns the features that guests do not see of a format.
pub(crate) fn hidden(format: venus::Format, queues: Queues) -> u64 {
    let copies = if is_sent_whole(format) { 0 } else { Features::HOST_IMAGE_TRANSFER.0 };
    let attachments = if queues.only_say_that_they_draw() { ATTACHMENTS & !promised(format) } else { 0 };
    copies | attachments
}

/// Returns the features that Vulkan requires of at least one of these two formats with depth and stencil (section "Required Format Support"). If
/// neither format has them, Dawn aborts even a program that only computes.
fn promised(format: venus::Format) -> u64 {
    match format {
        venus::Format::D24_UNORM_S8_UINT | venus::Format::D32_SFLOAT_S8_UINT => {
            Features::DEPTH_STENCIL_ATTACHMENT.0
        }
        _ => 0,
    }
}

/// Removes features from those of a format, in the struct of Vulkan 1.0, which has room for half of them.
pub(crate) fn without(hidden: u64, properties: &mut sys::FormatProperties) {
    properties.linear_tiling_features &= !(hidden as u32);
    properties.optimal_tiling_features &= !(hidden as u32);
}

/// Removes features from those of a format.
pub(crate) fn without2(hidden: u64, properties: &mut sys::FormatProperties2) {
    let shape = |features: &mut u64| *features &= !hidden;
    without(hidden, &mut properties.format_properties);
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
        vk::StructureType::DRM_FORMAT_MODIFIER_PROPERTIES_LIST_EXT => {
            // SAFETY: as above.
            let list = unsafe { &*at.cast::<sys::DrmFormatModifierPropertiesListEXT>() };
            let (entries, count) =
                (list.p_drm_format_modifier_properties, list.drm_format_modifier_count as usize);
            if !entries.is_null() {
                // SAFETY: as above.
                let entries = unsafe { std::slice::from_raw_parts_mut(entries, count) };
                entries
                    .iter_mut()
                    .for_each(|entry| entry.drm_format_modifier_tiling_features &= !(hidden as u32));
            }
        }
        _ => {}
    });
}

/// An image that a guest asks about, or makes.
pub(crate) struct Asked {
    /// The image's format.
    pub format: venus::Format,
    /// The layout of the image's texels in memory.
    pub tiling: venus::ImageTiling,
    /// The uses of the image, its stencil included.
    pub usage: ImageUsageFlags,
    /// The flags that the image is made with.
    pub flags: ImageCreateFlags,
}

impl Asked {
    /// Describes an image, with the usage that the chain gives for its stencil.
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

    /// Returns whether the image can only be drawn upon, which no guest does although queues say so. Programs that compute make images with every
    /// usage there is: such images can also be copied to and stored to.
    pub(crate) fn is_for_drawing_only(&self, queues: Queues) -> bool {
        let computes = ImageUsageFlags(ImageUsageFlags::STORAGE.0 | ImageUsageFlags::TRANSFER_DST.0);
        queues.only_say_that_they_draw() && self.usage.0 & DRAWN_UPON != 0 && !self.usage.contains(computes)
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
            // Each modifier has features of its own, which the driver checks.
            _ => return true,
        };
        features.as_raw() & Features::HOST_IMAGE_TRANSFER.0 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_with_every_use_are_made_and_those_that_are_only_drawn_upon_are_not() {
        use ImageUsageFlags as U;
        let asked = |usage: &[U]| {
            let usage = U(usage.iter().fold(0, |all, one| all | one.0));
            Asked::new(
                venus::Format::R8G8B8A8_UNORM,
                venus::ImageTiling::OPTIMAL,
                usage,
                ImageCreateFlags(0),
                &[],
            )
        };
        let drawn = asked(&[U::COLOR_ATTACHMENT, U::SAMPLED, U::TRANSFER_SRC, U::TRANSFER_DST]);
        let cleared_by_drawing = asked(&[U::COLOR_ATTACHMENT, U::STORAGE, U::TRANSFER_SRC]);
        for asked in [drawn, cleared_by_drawing] {
            let is_refused = |queues| asked.is_for_drawing_only(queues);
            assert_eq!([Queues::Compute, Queues::Nominal, Queues::All].map(is_refused), [false, true, false]);
        }
        let every = asked(&[U::COLOR_ATTACHMENT, U::SAMPLED, U::STORAGE, U::TRANSFER_SRC, U::TRANSFER_DST]);
        let computed = asked(&[U::SAMPLED, U::STORAGE]);
        assert!([every, computed].iter().all(|asked| !asked.is_for_drawing_only(Queues::Nominal)));
    }

    #[test]
    fn only_formats_of_depth_with_stencil_are_said_to_be_drawn_upon() {
        use venus::Format as F;
        for format in [F::D24_UNORM_S8_UINT, F::D32_SFLOAT_S8_UINT] {
            assert_eq!(hidden(format, Queues::Nominal), ATTACHMENTS & !Features::DEPTH_STENCIL_ATTACHMENT.0);
        }
        for format in [F::R8G8B8A8_UNORM, F::D16_UNORM, F::D32_SFLOAT, F::S8_UINT] {
            assert_eq!(hidden(format, Queues::Nominal), ATTACHMENTS, "{format:?}");
        }
    }

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
