//! The look of a GPU for programs, without its identity: UUIDs, place, and the version of its driver.
//!
//! A program asks once and relies on the answers from then on. So a context goes on only on a GPU that would have given the same answers.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use super::step::Identity;
use crate::context::cause::InheritedError;
use crate::context::error::ContextLost;
use crate::driver::generated::sys;
use crate::driver::physical_device::{host_extensions, host_memory};
use crate::execution::context::Context;
use crate::lowering::lower::Raise;
use crate::objects::object::Object;
use ash::vk;
use config::Likeness;
use protocol::cursor::{Arena, Writer};
use protocol::venus::generated::{self as venus, EXTENSIONS};
use protocol::venus::wire::Encode;
use std::ptr;

/// Bytes of the arena for structs as guests see them. None of these structs points to another.
const ARENA_BYTES: usize = 4096;

/// Returns the likeness and the identity of the GPU of a `VkPhysicalDevice`.
pub(super) fn like(object: &Object) -> Option<(Likeness, Identity)> {
    let physical = object.get::<venus::PhysicalDevice>()?;
    let (instance, handle) = (&physical.instance.ash, physical.handle);
    Some((likeness(instance, handle), identity(instance, handle)))
}

/// Returns the identity of a GPU and of its driver.
fn identity(instance: &ash::Instance, handle: vk::PhysicalDevice) -> Identity {
    let mut ids = vk::PhysicalDeviceIDProperties::default();
    let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut ids);
    // SAFETY: the handle comes from this live instance, and the chain lives until the call returns.
    unsafe { instance.get_physical_device_properties2(handle, &mut properties) };
    Identity { device: ids.device_uuid, driver: ids.driver_uuid }
}

/// Demands that GPUs are as they were.
///
/// # Errors
///
/// A GPU is not as it was, or is missing.
pub(super) fn compare(context: &Context, all: &[(u64, Likeness, Identity)]) -> Result<(), ContextLost> {
    let table = context.objects.read();
    for (id, before, identity) in all {
        let now = table.get(venus::PhysicalDevice(*id)).ok().and_then(like);
        let now = now.ok_or(InheritedError::Object { kind: "GPU", id: *id, is: "is not there" })?;
        let (now, is) = now;
        context.restored.see_gpu(is == *identity);
        if let Some(what) = now.difference(before) {
            return Err(InheritedError::OtherGpu(what).into());
        }
    }
    Ok(())
}

/// Returns the likeness of a GPU.
pub(crate) fn likeness(instance: &ash::Instance, handle: vk::PhysicalDevice) -> Likeness {
    // SAFETY: `handle` comes from this live instance, here and below.
    let properties = unsafe { instance.get_physical_device_properties(handle) };
    let model = [properties.vendor_id, properties.device_id, properties.device_type.as_raw().cast_unsigned()];
    let mut limits = Writer::growing();
    let host_limits = ptr::from_ref(&properties.limits).cast::<sys::PhysicalDeviceLimits>();
    // SAFETY: both are what Vulkan's header says (`layout_tests`), and the driver has filled it.
    encode::<venus::PhysicalDeviceLimits>(unsafe { &*host_limits }, &Arena::new(ARENA_BYTES), &mut limits);
    let mut extensions: Vec<_> = host_extensions(instance, handle).unwrap_or_default().into_keys().collect();
    extensions.retain(|name| EXTENSIONS.iter().any(|(_, known, _)| known == name));
    Likeness {
        parts: [
            number_of(model),
            number(&limits.into_bytes()),
            features(instance, handle, properties.api_version),
            memory(instance, handle),
            families(instance, handle),
            number(extensions.join(" ").as_bytes()),
        ],
    }
}

/// Returns a number for the memory types and heaps. The size of each heap may differ.
fn memory(instance: &ash::Instance, handle: vk::PhysicalDevice) -> u64 {
    let memory = host_memory(instance, handle);
    let types = memory.memory_types_as_slice().iter();
    let types = types.flat_map(|ty| [ty.property_flags.as_raw(), ty.heap_index]);
    number_of(types.chain(memory.memory_heaps_as_slice().iter().map(|heap| heap.flags.as_raw())))
}

/// Returns a number for the queue families.
fn families(instance: &ash::Instance, handle: vk::PhysicalDevice) -> u64 {
    // SAFETY: the handle is live.
    let families = unsafe { instance.get_physical_device_queue_family_properties(handle) };
    number_of(families.iter().flat_map(|family| {
        let vk::Extent3D { width, height, depth } = family.min_image_transfer_granularity;
        let (flags, count) = (family.queue_flags.as_raw(), family.queue_count);
        [flags, count, family.timestamp_valid_bits, width, height, depth]
    }))
}

/// Returns a number for the features of Vulkan itself.
fn features(instance: &ash::Instance, handle: vk::PhysicalDevice, version: u32) -> u64 {
    let mut of_1_1 = vk::PhysicalDeviceVulkan11Features::default();
    let mut of_1_2 = vk::PhysicalDeviceVulkan12Features::default();
    let mut of_1_3 = vk::PhysicalDeviceVulkan13Features::default();
    let mut all = vk::PhysicalDeviceFeatures2::default();
    if version >= vk::API_VERSION_1_2 {
        all = all.push_next(&mut of_1_1).push_next(&mut of_1_2);
    }
    if version >= vk::API_VERSION_1_3 {
        all = all.push_next(&mut of_1_3);
    }
    if version >= vk::API_VERSION_1_1 {
        // SAFETY: the handle is live, and the chain lives until the call returns.
        unsafe { instance.get_physical_device_features2(handle, &mut all) };
    }
    let plain = ptr::from_ref(&all.features).cast::<sys::PhysicalDeviceFeatures>();
    let arena = Arena::new(ARENA_BYTES);
    let mut to = Writer::growing();
    // SAFETY: each of both is what Vulkan's header says (`layout_tests`), and the driver, or `default`, has filled it.
    let of_1_0 = unsafe { &*plain };
    // SAFETY: as above.
    let of_1_1 = unsafe { &*ptr::from_ref(&of_1_1).cast() };
    // SAFETY: as above.
    let of_1_2 = unsafe { &*ptr::from_ref(&of_1_2).cast() };
    // SAFETY: as above.
    let of_1_3 = unsafe { &*ptr::from_ref(&of_1_3).cast() };
    encode::<venus::PhysicalDeviceFeatures>(of_1_0, &arena, &mut to);
    encode::<venus::PhysicalDeviceVulkan11Features<'_>>(of_1_1, &arena, &mut to);
    encode::<venus::PhysicalDeviceVulkan12Features<'_>>(of_1_2, &arena, &mut to);
    encode::<venus::PhysicalDeviceVulkan13Features<'_>>(of_1_3, &arena, &mut to);
    number(&to.into_bytes())
}

/// Appends a struct of the host as it goes to guests, without the structs chained to it. Unlike the bytes of a C struct, this encoding has no gaps.
fn encode<'a, T: Raise<'a> + Default + Encode>(host: &T::Sys, arena: &'a Arena, to: &mut Writer<'_>) {
    if let Ok(value) = T::default().raise(host, arena) {
        value.encode(to);
    }
}

/// Returns a number that differs if the bytes differ.
fn number(bytes: &[u8]) -> u64 {
    let hash = blake3::hash(bytes);
    let (first, _) = hash.as_bytes().split_first_chunk().expect("a hash is longer than a number");
    u64::from_le_bytes(*first)
}

/// Returns a number for some words.
fn number_of(words: impl IntoIterator<Item = u32>) -> u64 {
    number(&words.into_iter().flat_map(u32::to_le_bytes).collect::<Vec<_>>())
}
