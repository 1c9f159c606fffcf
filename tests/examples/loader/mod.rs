//! The structs by which the Vulkan loader and a layer find each other, as far as layers of tests need them.
//!
//! It follows "LoaderLayerInterface" of the Vulkan loader.

use ash::vk;
use std::ffi::c_void;
use std::mem::transmute;

/// `VkNegotiateLayerInterface`, up to the last member that a layer writes.
#[repr(C)]
pub struct Negotiation {
    s_type: i32,
    p_next: *mut c_void,
    version: u32,
    /// The layer's function.
    pub get_instance_proc_addr: vk::PFN_vkGetInstanceProcAddr,
    /// The layer's function, for one that has functions of devices.
    pub get_device_proc_addr: vk::PFN_vkGetDeviceProcAddr,
}

/// `VkLayerInstanceCreateInfo` and `VkLayerDeviceCreateInfo`.
#[repr(C)]
struct LayerInfo {
    s_type: vk::StructureType,
    p_next: *mut LayerInfo,
    function: u32,
    link: *mut Link,
}

/// `VkLayerInstanceLink` and `VkLayerDeviceLink`; only the latter has the last member.
#[repr(C)]
pub struct Link {
    next: *mut Link,
    /// The function of the next layer, or of the driver.
    pub get_instance_proc_addr: vk::PFN_vkGetInstanceProcAddr,
    /// The function of the next layer, or of the driver.
    pub get_device_proc_addr: vk::PFN_vkGetDeviceProcAddr,
}

/// Returns the link to the next layer, and moves the chain on to that behind it.
///
/// # Safety
/// The loader has chained it, with function 0, and it is writable.
pub unsafe fn link(first: *const c_void, s_type: vk::StructureType) -> *mut Link {
    // SAFETY: the caller's promise.
    unsafe {
        let mut found = first.cast::<LayerInfo>().cast_mut();
        while (*found).s_type != s_type || (*found).function != 0 {
            found = (*found).p_next;
        }
        let link = (*found).link;
        (*found).link = (*link).next;
        link
    }
}

/// Has the next layer create an instance, and `keep` its way to functions.
///
/// # Safety
/// The loader calls `vkCreateInstance` of the layer with these parameters.
pub unsafe fn create_instance(
    info: *const vk::InstanceCreateInfo<'_>,
    allocator: *const vk::AllocationCallbacks<'_>,
    instance: *mut vk::Instance,
    keep: impl FnOnce(vk::PFN_vkGetInstanceProcAddr),
) -> vk::Result {
    // SAFETY: the loader chains the link, and the driver has this function.
    unsafe {
        let link = link((*info).p_next, vk::StructureType::LOADER_INSTANCE_CREATE_INFO);
        let get = (*link).get_instance_proc_addr;
        let create: Option<vk::PFN_vkCreateInstance> =
            transmute(get(vk::Instance::null(), c"vkCreateInstance".as_ptr()));
        let Some(create) = create else { return vk::Result::ERROR_INITIALIZATION_FAILED };
        let result = create(info, allocator, instance);
        if result == vk::Result::SUCCESS {
            keep(get);
        }
        result
    }
}
