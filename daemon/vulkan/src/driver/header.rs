//! The beginning of every struct that can be in a chain (Vulkan 3.7.4).

use std::ffi::c_void;

/// The first two members.
#[repr(C)]
pub(crate) struct Header {
    /// `VkStructureType`.
    pub s_type: i32,
    /// The next struct, or null.
    pub p_next: *const c_void,
}
