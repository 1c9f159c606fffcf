//! A Vulkan layer that gives a software driver memory that no processor can map, as only GPUs have. Such memory has a type of its own, behind the
//! driver's, and in truth is memory of the driver's first type.
//!
//! It follows "LoaderLayerInterface" of the Vulkan loader.

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
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

/// The ways to the driver's functions: those of instances, and those of devices after the first device was made.
#[derive(Clone, Copy)]
struct Next {
    instance: vk::Instance,
    of_instances: vk::PFN_vkGetInstanceProcAddr,
    of_devices: Option<vk::PFN_vkGetDeviceProcAddr>,
}

static NEXT: Mutex<Option<Next>> = Mutex::new(None);

/// The index of the hidden type, which is the number of the driver's types. No memory of it is used before a program has asked for the types.
static HIDDEN: AtomicU32 = AtomicU32::new(u32::MAX);

/// Tells the loader where the layer's functions are.
///
/// # Safety
/// The loader calls it with a struct that it has filled in.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn vkNegotiateLoaderLayerInterfaceVersion(out: *mut Negotiation) -> vk::Result {
    // SAFETY: the caller's struct is writable.
    unsafe {
        (*out).get_instance_proc_addr = get_instance_proc_addr;
        (*out).get_device_proc_addr = get_device_proc_addr;
    }
    vk::Result::SUCCESS
}

fn next() -> Option<Next> {
    *NEXT.lock().unwrap_or_else(PoisonError::into_inner)
}

macro_rules! function {
    ($function:ident: $kind:ident) => {
        // SAFETY: the caller casts each function back to the type that its name has.
        unsafe { transmute::<vk::$kind, vk::PFN_vkVoidFunction>($function) }
    };
}

/// Returns the layer's function of a name, if it has one for devices.
fn of_devices(name: &[u8]) -> Option<vk::PFN_vkVoidFunction> {
    Some(match name {
        b"vkGetDeviceProcAddr" => function!(get_device_proc_addr: PFN_vkGetDeviceProcAddr),
        b"vkAllocateMemory" => function!(allocate_memory: PFN_vkAllocateMemory),
        b"vkGetBufferMemoryRequirements" => function!(buffer: PFN_vkGetBufferMemoryRequirements),
        b"vkGetImageMemoryRequirements" => function!(image: PFN_vkGetImageMemoryRequirements),
        b"vkGetBufferMemoryRequirements2" => function!(buffer2: PFN_vkGetBufferMemoryRequirements2),
        b"vkGetImageMemoryRequirements2" => function!(image2: PFN_vkGetImageMemoryRequirements2),
        b"vkGetDeviceBufferMemoryRequirements" => {
            function!(described_buffer: PFN_vkGetDeviceBufferMemoryRequirements)
        }
        b"vkGetDeviceImageMemoryRequirements" => {
            function!(described_image: PFN_vkGetDeviceImageMemoryRequirements)
        }
        _ => return None,
    })
}

unsafe extern "system" fn get_instance_proc_addr(
    instance: vk::Instance,
    name: *const c_char,
) -> vk::PFN_vkVoidFunction {
    // SAFETY: the caller passes a string.
    let of_name = unsafe { CStr::from_ptr(name) }.to_bytes();
    match of_name {
        b"vkGetInstanceProcAddr" => function!(get_instance_proc_addr: PFN_vkGetInstanceProcAddr),
        b"vkCreateInstance" => function!(create_instance: PFN_vkCreateInstance),
        b"vkCreateDevice" => function!(create_device: PFN_vkCreateDevice),
        b"vkGetPhysicalDeviceMemoryProperties" => {
            function!(properties: PFN_vkGetPhysicalDeviceMemoryProperties)
        }
        b"vkGetPhysicalDeviceMemoryProperties2" => {
            function!(properties2: PFN_vkGetPhysicalDeviceMemoryProperties2)
        }
        _ => of_devices(of_name).unwrap_or_else(|| {
            let next = next()?;
            // SAFETY: as above; the instance is live, or null.
            unsafe { (next.of_instances)(instance, name) }
        }),
    }
}

unsafe extern "system" fn get_device_proc_addr(
    device: vk::Device,
    name: *const c_char,
) -> vk::PFN_vkVoidFunction {
    // SAFETY: the caller passes a string and a live device.
    unsafe {
        let own = of_devices(CStr::from_ptr(name).to_bytes());
        own.unwrap_or_else(|| (next()?.of_devices?)(device, name))
    }
}

unsafe extern "system" fn create_instance(
    info: *const vk::InstanceCreateInfo<'_>,
    allocator: *const vk::AllocationCallbacks<'_>,
    instance: *mut vk::Instance,
) -> vk::Result {
    // SAFETY: the loader passes pointers to structs that it has filled in.
    unsafe {
        loader::create_instance(info, allocator, instance, |of_instances| {
            let next = Next { instance: *instance, of_instances, of_devices: None };
            *NEXT.lock().unwrap_or_else(PoisonError::into_inner) = Some(next);
        })
    }
}

unsafe extern "system" fn create_device(
    gpu: vk::PhysicalDevice,
    info: *const vk::DeviceCreateInfo<'_>,
    allocator: *const vk::AllocationCallbacks<'_>,
    device: *mut vk::Device,
) -> vk::Result {
    // SAFETY: the loader chains the link, and the driver has this function.
    unsafe {
        let link = loader::link((*info).p_next, vk::StructureType::LOADER_DEVICE_CREATE_INFO);
        let Some(next) = NEXT.lock().unwrap_or_else(PoisonError::into_inner).as_mut().map(|next| {
            next.of_devices = Some((*link).get_device_proc_addr);
            *next
        }) else {
            return vk::Result::ERROR_INITIALIZATION_FAILED;
        };
        let create: Option<vk::PFN_vkCreateDevice> =
            transmute((next.of_instances)(next.instance, c"vkCreateDevice".as_ptr()));
        create.map_or(vk::Result::ERROR_INITIALIZATION_FAILED, |create| create(gpu, info, allocator, device))
    }
}

/// Adds the type.
fn add_type(memory: &mut vk::PhysicalDeviceMemoryProperties) {
    let count = memory.memory_type_count;
    HIDDEN.store(count, Ordering::Relaxed);
    memory.memory_types[count as usize] =
        vk::MemoryType { property_flags: vk::MemoryPropertyFlags::DEVICE_LOCAL, heap_index: 0 };
    memory.memory_type_count += 1;
}

unsafe extern "system" fn properties(gpu: vk::PhysicalDevice, out: *mut vk::PhysicalDeviceMemoryProperties) {
    let Some(next) = next() else { return };
    // SAFETY: the caller's struct is writable, and the driver has this function.
    unsafe {
        let ask: Option<vk::PFN_vkGetPhysicalDeviceMemoryProperties> =
            transmute((next.of_instances)(next.instance, c"vkGetPhysicalDeviceMemoryProperties".as_ptr()));
        let Some(ask) = ask else { return };
        ask(gpu, out);
        add_type(&mut *out);
    }
}

unsafe extern "system" fn properties2(
    gpu: vk::PhysicalDevice,
    out: *mut vk::PhysicalDeviceMemoryProperties2<'_>,
) {
    let Some(next) = next() else { return };
    // SAFETY: the caller's struct is writable, and the driver has this function.
    unsafe {
        let ask: Option<vk::PFN_vkGetPhysicalDeviceMemoryProperties2> =
            transmute((next.of_instances)(next.instance, c"vkGetPhysicalDeviceMemoryProperties2".as_ptr()));
        let Some(ask) = ask else { return };
        ask(gpu, out);
        add_type(&mut (*out).memory_properties);
    }
}

/// Returns the driver's function of a device.
///
/// # Safety
/// The device is live.
unsafe fn driver(device: vk::Device, name: &CStr) -> vk::PFN_vkVoidFunction {
    // SAFETY: the caller's promise.
    unsafe { (next()?.of_devices?)(device, name.as_ptr()) }
}

unsafe extern "system" fn allocate_memory(
    device: vk::Device,
    info: *const vk::MemoryAllocateInfo<'_>,
    allocator: *const vk::AllocationCallbacks<'_>,
    memory: *mut vk::DeviceMemory,
) -> vk::Result {
    // SAFETY: the caller's struct is valid, and the driver has this function.
    unsafe {
        let mut info = *info;
        if info.memory_type_index == HIDDEN.load(Ordering::Relaxed) {
            info.memory_type_index = 0;
        }
        let allocate: Option<vk::PFN_vkAllocateMemory> = transmute(driver(device, c"vkAllocateMemory"));
        allocate.map_or(vk::Result::ERROR_INITIALIZATION_FAILED, |allocate| {
            allocate(device, &raw const info, allocator, memory)
        })
    }
}

/// Lets each object that can be in memory of the first type be in memory of the hidden type.
fn add_bit(needs: &mut vk::MemoryRequirements) {
    let bit = 1u32.checked_shl(HIDDEN.load(Ordering::Relaxed)).unwrap_or(0);
    needs.memory_type_bits |= if needs.memory_type_bits & 1 != 0 { bit } else { 0 };
}

macro_rules! requirements {
    ($($function:ident($object:ty, $out:ty, $kind:ident, $name:literal) $(. $member:ident)?;)*) => {$(
        unsafe extern "system" fn $function(device: vk::Device, object: $object, out: *mut $out) {
            // SAFETY: the caller's structs are valid, and the driver has this function.
            unsafe {
                let ask: Option<vk::$kind> = transmute(driver(device, $name));
                let Some(ask) = ask else { return };
                ask(device, object, out);
                add_bit(&mut (*out)$(.$member)?);
            }
        }
    )*};
}

requirements! {
    buffer(vk::Buffer, vk::MemoryRequirements, PFN_vkGetBufferMemoryRequirements, c"vkGetBufferMemoryRequirements");
    image(vk::Image, vk::MemoryRequirements, PFN_vkGetImageMemoryRequirements, c"vkGetImageMemoryRequirements");
    buffer2(
        *const vk::BufferMemoryRequirementsInfo2<'_>, vk::MemoryRequirements2<'_>,
        PFN_vkGetBufferMemoryRequirements2, c"vkGetBufferMemoryRequirements2"
    ).memory_requirements;
    image2(
        *const vk::ImageMemoryRequirementsInfo2<'_>, vk::MemoryRequirements2<'_>,
        PFN_vkGetImageMemoryRequirements2, c"vkGetImageMemoryRequirements2"
    ).memory_requirements;
    described_buffer(
        *const vk::DeviceBufferMemoryRequirements<'_>, vk::MemoryRequirements2<'_>,
        PFN_vkGetDeviceBufferMemoryRequirements, c"vkGetDeviceBufferMemoryRequirements"
    ).memory_requirements;
    described_image(
        *const vk::DeviceImageMemoryRequirements<'_>, vk::MemoryRequirements2<'_>,
        PFN_vkGetDeviceImageMemoryRequirements, c"vkGetDeviceImageMemoryRequirements"
    ).memory_requirements;
}
