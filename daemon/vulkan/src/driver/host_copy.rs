//! Functions of the host for copies between images and its memory (`VK_EXT_host_image_copy`), for which the wire has no commands.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use ash::vk;
use std::ffi::{CStr, c_void};

/// Host functions that the wire has no commands for.
pub struct HostCopy {
    /// `vkCopyImageToMemory`.
    pub image_to_memory: Option<vk::PFN_vkCopyImageToMemoryEXT>,
    /// `vkCopyMemoryToImage`.
    pub memory_to_image: Option<vk::PFN_vkCopyMemoryToImageEXT>,
}

impl HostCopy {
    /// Asks `load` for each function by its names, newest first; null leaves it out.
    pub fn load(load: impl Fn(&[&CStr]) -> *const c_void) -> Self {
        let image_to_memory = load(&[c"vkCopyImageToMemory", c"vkCopyImageToMemoryEXT"]);
        let memory_to_image = load(&[c"vkCopyMemoryToImage", c"vkCopyMemoryToImageEXT"]);
        Self {
            // SAFETY: the pointer is null or the function of this name, whose type the registry gives.
            image_to_memory: unsafe { std::mem::transmute::<*const c_void, Option<_>>(image_to_memory) },
            // SAFETY: as above.
            memory_to_image: unsafe { std::mem::transmute::<*const c_void, Option<_>>(memory_to_image) },
        }
    }
}
