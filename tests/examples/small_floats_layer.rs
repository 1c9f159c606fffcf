//! A Vulkan layer that shows features of small floats, which no software driver has, as far as programs ask for them.
//!
//! The layer's manifest names the extensions, which the loader then adds to the driver's. The layer is made for programs that only ask: a device with
//! these features cannot be made. It follows "LoaderLayerInterface" of the Vulkan loader.

#![allow(
    unsafe_code,
    clippy::multiple_unsafe_ops_per_block,
    reason = "a layer is called by the loader, and calls the driver"
)]

pub mod loader;

use ash::vk;
use loader::Negotiation;
use std::ffi::{CStr, c_char};
use std::mem::transmute;
use std::sync::{Mutex, PoisonError};

/// `VkStructureType` of the structs of `VK_KHR_shader_bfloat16` and `VK_EXT_shader_float8`, and the values of their members.
const SHOWN: [(i32, &[u32]); 2] = [(1_000_141_000, &[1, 0, 1]), (1_000_567_000, &[0, 1])];

/// The way to the driver, and the last instance that was made.
static NEXT: Mutex<Option<(vk::PFN_vkGetInstanceProcAddr, vk::Instance)>> = Mutex::new(None);

/// Tells the loader where the layer's functions are.
///
/// # Safety
/// The loader calls it with a struct that it has filled in.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn vkNegotiateLoaderLayerInterfaceVersion(out: *mut Negotiation) -> vk::Result {
    // SAFETY: the caller's struct is writable.
    unsafe { (*out).get_instance_proc_addr = get_instance_proc_addr };
    vk::Result::SUCCESS
}

unsafe extern "system" fn get_instance_proc_addr(
    instance: vk::Instance,
    name: *const c_char,
) -> vk::PFN_vkVoidFunction {
    // SAFETY: the caller passes a string; it casts each function back to the type that belongs to its name.
    unsafe {
        match CStr::from_ptr(name).to_bytes() {
            b"vkGetInstanceProcAddr" => {
                transmute::<vk::PFN_vkGetInstanceProcAddr, vk::PFN_vkVoidFunction>(get_instance_proc_addr)
            }
            b"vkCreateInstance" => {
                transmute::<vk::PFN_vkCreateInstance, vk::PFN_vkVoidFunction>(create_instance)
            }
            b"vkGetPhysicalDeviceFeatures2" | b"vkGetPhysicalDeviceFeatures2KHR" => {
                transmute::<vk::PFN_vkGetPhysicalDeviceFeatures2, vk::PFN_vkVoidFunction>(get_features)
            }
            _ => next().and_then(|(get, _)| get(instance, name)),
        }
    }
}

fn next() -> Option<(vk::PFN_vkGetInstanceProcAddr, vk::Instance)> {
    *NEXT.lock().unwrap_or_else(PoisonError::into_inner)
}

unsafe extern "system" fn create_instance(
    info: *const vk::InstanceCreateInfo<'_>,
    allocator: *const vk::AllocationCallbacks<'_>,
    instance: *mut vk::Instance,
) -> vk::Result {
    // SAFETY: the loader passes pointers to structs that it has filled in.
    unsafe {
        loader::create_instance(info, allocator, instance, |get| {
            *NEXT.lock().unwrap_or_else(PoisonError::into_inner) = Some((get, *instance));
        })
    }
}

unsafe extern "system" fn get_features(
    device: vk::PhysicalDevice,
    features: *mut vk::PhysicalDeviceFeatures2<'_>,
) {
    let Some((get, instance)) = next() else { return };
    // SAFETY: the caller's chain is writable, and its structs are as long as their types say; the driver has this function.
    unsafe {
        let ask: Option<vk::PFN_vkGetPhysicalDeviceFeatures2> =
            transmute(get(instance, c"vkGetPhysicalDeviceFeatures2".as_ptr()));
        let Some(ask) = ask else { return };
        ask(device, features);
        let mut found = (*features).p_next.cast::<vk::BaseOutStructure<'_>>();
        while !found.is_null() {
            for (_, values) in SHOWN.iter().filter(|(ty, _)| *ty == (*found).s_type.as_raw()) {
                found.add(1).cast::<u32>().copy_from_nonoverlapping(values.as_ptr(), values.len());
            }
            found = (*found).p_next;
        }
    }
}
