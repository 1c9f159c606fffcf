//! `VkPhysicalDevice`: the queries a guest makes before it creates a device, answered by the host and then shaped.
//!
//! `shape` decides which properties and features are withheld, and says why; this file only asks the host and passes the answers to `shape`.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use crate::context::allowance::HeapBudget;
use crate::context::cancel::Interrupted;
use crate::context::error::Fault;
use crate::driver::generated::sys;
use crate::driver::physical_device::{PhysicalDevice, heap_kind};
use crate::execution::call::Call;
use crate::lowering::lower::{Lower as _, Raise as _, raise_pointer};
use crate::shape::{extensions, reshape};
use ash::vk;
use config::PerHeap;
use protocol::venus::generated::{self as venus, ChainStruct};

/// `vkEnumerateDeviceExtensionProperties`.
pub(crate) fn enumerate_device_extension_properties<'a>(
    call: &Call<'a>,
    c: &venus::EnumerateDeviceExtensionProperties<'a>,
) -> Result<venus::EnumerateDeviceExtensionPropertiesReply<'a>, Fault> {
    let physical = call.physical_device(c.physical_device)?;
    let offered = extensions::offered(&physical.host_extensions, &physical.gpu);
    let room = c.p_properties.map_or(usize::MAX, <[_]>::len);
    let shown = offered.len().min(room);
    let properties = match c.p_properties {
        None => None,
        Some(_) => {
            Some(&*call.arena.slice_try_fill(shown, |i| Ok::<_, Fault>(extension_properties(&offered[i])))?)
        }
    };
    let result = if shown < offered.len() { venus::VkResult::INCOMPLETE } else { venus::VkResult::SUCCESS };
    Ok(venus::EnumerateDeviceExtensionPropertiesReply {
        result,
        p_property_count: Some(call.arena.value(shown as u32)?),
        p_properties: properties,
    })
}

fn extension_properties((name, spec_version): &(&str, u32)) -> venus::ExtensionProperties {
    let mut extension_name = [0; 256];
    extension_name[..name.len()].copy_from_slice(name.as_bytes());
    venus::ExtensionProperties { extension_name, spec_version: *spec_version }
}

/// `vkGetPhysicalDeviceProperties`.
pub(crate) fn get_physical_device_properties<'a>(
    call: &Call<'a>,
    c: &venus::GetPhysicalDeviceProperties<'a>,
) -> Result<venus::GetPhysicalDevicePropertiesReply<'a>, Fault> {
    let physical = call.physical_device(c.physical_device)?;
    let properties = call.lowering().out_pointer(c.p_properties)?;
    let Some(function) = physical.instance.table.get_physical_device_properties else {
        return Err(Fault::missing("vkGetPhysicalDeviceProperties"));
    };
    if !properties.is_null() {
        // SAFETY: the handle is live, `properties` is memory of the arena of the right type.
        unsafe { function(physical.raw(), properties) };
        // SAFETY: as above; nothing else refers to it.
        reshape::properties(unsafe { &mut *properties }, call.context.env.api_version);
    }
    Ok(venus::GetPhysicalDevicePropertiesReply {
        p_properties: raise_pointer(c.p_properties, properties, call.arena)?,
    })
}

/// `vkGetPhysicalDeviceProperties2`.
pub(crate) fn get_physical_device_properties2<'a>(
    call: &Call<'a>,
    c: &venus::GetPhysicalDeviceProperties2<'a>,
) -> Result<venus::GetPhysicalDeviceProperties2Reply<'a>, Fault> {
    let physical = call.physical_device(c.physical_device)?;
    let properties = call.lowering().out_pointer(c.p_properties)?;
    let Some(function) = physical.instance.table.get_physical_device_properties2 else {
        return Err(Fault::missing("vkGetPhysicalDeviceProperties2"));
    };
    if !properties.is_null() {
        // SAFETY: the handle is live, `properties` and its chain are memory of the arena of the right types.
        unsafe { function(physical.raw(), properties) };
        // SAFETY: as above; nothing else refers to it.
        reshape::properties2(
            unsafe { &mut *properties },
            call.context.env.api_version,
            physical.largest_heap,
        );
    }
    Ok(venus::GetPhysicalDeviceProperties2Reply {
        p_properties: raise_pointer(c.p_properties, properties, call.arena)?,
    })
}

/// `vkGetPhysicalDeviceFeatures`.
pub(crate) fn get_physical_device_features<'a>(
    call: &Call<'a>,
    c: &venus::GetPhysicalDeviceFeatures<'a>,
) -> Result<venus::GetPhysicalDeviceFeaturesReply<'a>, Fault> {
    let physical = call.physical_device(c.physical_device)?;
    let features = call.lowering().out_pointer(c.p_features)?;
    let Some(function) = physical.instance.table.get_physical_device_features else {
        return Err(Fault::missing("vkGetPhysicalDeviceFeatures"));
    };
    if !features.is_null() {
        // SAFETY: the handle is live, `features` is memory of the arena of the right type.
        unsafe { function(physical.raw(), features) };
        // SAFETY: as above; nothing else refers to it.
        reshape::features(unsafe { &mut *features });
    }
    Ok(venus::GetPhysicalDeviceFeaturesReply {
        p_features: raise_pointer(c.p_features, features, call.arena)?,
    })
}

/// `vkGetPhysicalDeviceFeatures2`.
pub(crate) fn get_physical_device_features2<'a>(
    call: &Call<'a>,
    c: &venus::GetPhysicalDeviceFeatures2<'a>,
) -> Result<venus::GetPhysicalDeviceFeatures2Reply<'a>, Fault> {
    let physical = call.physical_device(c.physical_device)?;
    let features = call.lowering().out_pointer(c.p_features)?;
    let Some(function) = physical.instance.table.get_physical_device_features2 else {
        return Err(Fault::missing("vkGetPhysicalDeviceFeatures2"));
    };
    if !features.is_null() {
        // SAFETY: the handle is live, `features` and its chain are memory of the arena of the right types.
        unsafe { function(physical.raw(), features) };
        // SAFETY: as above; nothing else refers to it.
        reshape::features2(unsafe { &mut *features }, physical.addresses);
    }
    Ok(venus::GetPhysicalDeviceFeatures2Reply {
        p_features: raise_pointer(c.p_features, features, call.arena)?,
    })
}

/// `vkGetPhysicalDeviceQueueFamilyProperties`.
pub(crate) fn get_physical_device_queue_family_properties<'a>(
    call: &Call<'a>,
    c: &venus::GetPhysicalDeviceQueueFamilyProperties<'a>,
) -> Result<venus::GetPhysicalDeviceQueueFamilyPropertiesReply<'a>, Fault> {
    let physical = call.physical_device(c.physical_device)?;
    tell_of_compute(call, &physical);
    let families = &physical.families;
    let count = families.len().min(c.p_queue_family_properties.map_or(usize::MAX, <[_]>::len));
    let properties = match c.p_queue_family_properties {
        None => None,
        Some(_) => Some(&*call.arena.slice_try_fill(count, |i| Ok::<_, Fault>(family(&families[i])))?),
    };
    Ok(venus::GetPhysicalDeviceQueueFamilyPropertiesReply {
        p_queue_family_property_count: Some(call.arena.value(count as u32)?),
        p_queue_family_properties: properties,
    })
}

/// Reports a question about queues that do not say that they draw. A program that needs a drawing queue asks nothing else: it ends, or crashes.
fn tell_of_compute(call: &Call<'_>, physical: &PhysicalDevice) {
    if !physical.gpu.queues.say_that_they_draw() {
        call.context.env.allowance.undrawn();
    }
}

fn family(f: &vk::QueueFamilyProperties) -> venus::QueueFamilyProperties {
    let granularity = f.min_image_transfer_granularity;
    venus::QueueFamilyProperties {
        queue_flags: venus::QueueFlags(f.queue_flags.as_raw()),
        queue_count: f.queue_count,
        timestamp_valid_bits: f.timestamp_valid_bits,
        min_image_transfer_granularity: venus::Extent3D {
            width: granularity.width,
            height: granularity.height,
            depth: granularity.depth,
        },
    }
}

/// `vkGetPhysicalDeviceQueueFamilyProperties2`.
pub(crate) fn get_physical_device_queue_family_properties2<'a>(
    call: &Call<'a>,
    c: &venus::GetPhysicalDeviceQueueFamilyProperties2<'a>,
) -> Result<venus::GetPhysicalDeviceQueueFamilyProperties2Reply<'a>, Fault> {
    let physical = call.physical_device(c.physical_device)?;
    tell_of_compute(call, &physical);
    let visible = physical.families.len();
    let wanted = c.p_queue_family_properties.map(|p| &p[..p.len().min(visible)]);
    let count = wanted.map_or(visible, <[_]>::len);
    let properties = match wanted {
        None => None,
        Some(wanted) => Some(&*call.arena.slice_try_fill(count, |guests| {
            let mut found = chained_properties(call, &physical, &wanted[guests], guests as u32)?;
            let visible = &physical.families[guests];
            found.queue_family_properties.queue_flags = visible.queue_flags.as_raw();
            found.queue_family_properties.queue_count = visible.queue_count;
            wanted[guests].raise(&found, call.arena)
        })?),
    };
    Ok(venus::GetPhysicalDeviceQueueFamilyProperties2Reply {
        p_queue_family_property_count: Some(call.arena.value(count as u32)?),
        p_queue_family_properties: properties,
    })
}

/// The properties that the driver reports of one of a guest's families, with the chain that the guest has for it.
fn chained_properties<'a>(
    call: &Call<'a>,
    physical: &PhysicalDevice,
    wanted: &venus::QueueFamilyProperties2<'a>,
    guests: u32,
) -> Result<sys::QueueFamilyProperties2, Fault> {
    let Some(function) = physical.instance.table.get_physical_device_queue_family_properties2 else {
        return Err(Fault::missing("vkGetPhysicalDeviceQueueFamilyProperties2"));
    };
    let lowered = |with: &venus::QueueFamilyProperties2<'a>| with.lower(&call.lowering());
    let hosts = physical.order.swap(guests) as usize;
    // The driver reports the families before this one, too.
    let plain = venus::QueueFamilyProperties2 { p_next: &[], ..*wanted };
    let raw =
        call.arena.slice_try_fill(hosts + 1, |at| lowered(if at == hosts { wanted } else { &plain }))?;
    let mut count = raw.len() as u32;
    // SAFETY: the handle is live, `raw` has `count` elements with their chains, all memory of the arena.
    unsafe { function(physical.raw(), &raw mut count, raw.as_mut_ptr()) };
    Ok(raw[hosts])
}

/// `vkGetPhysicalDeviceMemoryProperties`.
pub(crate) fn get_physical_device_memory_properties<'a>(
    call: &Call<'a>,
    c: &venus::GetPhysicalDeviceMemoryProperties<'a>,
) -> Result<venus::GetPhysicalDeviceMemoryPropertiesReply<'a>, Fault> {
    let physical = call.physical_device(c.physical_device)?;
    let p_memory_properties = match c.p_memory_properties {
        None => None,
        Some(_) => Some(call.arena.value(memory(&physical.memory))?),
    };
    Ok(venus::GetPhysicalDeviceMemoryPropertiesReply {
        p_memory_properties: p_memory_properties.map(|m| &*m),
    })
}

/// The memory types and heaps within the counts, and no more: drivers leave the rest of the arrays as they find it.
fn memory(m: &vk::PhysicalDeviceMemoryProperties) -> venus::PhysicalDeviceMemoryProperties {
    let mut out = venus::PhysicalDeviceMemoryProperties {
        memory_type_count: m.memory_type_count,
        memory_heap_count: m.memory_heap_count,
        ..Default::default()
    };
    for (out, ty) in out.memory_types.iter_mut().zip(m.memory_types_as_slice()) {
        out.property_flags = venus::MemoryPropertyFlags(ty.property_flags.as_raw());
        out.heap_index = ty.heap_index;
    }
    for (out, heap) in out.memory_heaps.iter_mut().zip(m.memory_heaps_as_slice()) {
        out.size = heap.size;
        out.flags = venus::MemoryHeapFlags(heap.flags.as_raw());
    }
    out
}

/// Turns the driver's budget into that of this context. The device process counts the memory that the context has: a driver may count that of
/// other processes too. The memory that the context could have is bounded by its quotas, by the heap's shown size, and by the memory that the driver
/// reports as free. Memory that is kept to be used again makes room for the next allocation: it is free.
///
/// # Errors
///
/// The question to the device process was interrupted.
fn budget_of_context<'a>(
    call: &Call<'_>,
    physical: &PhysicalDevice,
    of_driver: venus::PhysicalDeviceMemoryBudgetPropertiesEXT<'a>,
) -> Result<venus::PhysicalDeviceMemoryBudgetPropertiesEXT<'a>, Interrupted> {
    let (allowance, pool) = (&call.context.env.allowance, &call.context.pool);
    let unknown = HeapBudget { used: 0, most: u64::MAX };
    let mut counted = allowance.budget(call.cancel)?.unwrap_or(PerHeap::each(|_| unknown));
    let mut counted = PerHeap::each(|heap| {
        let kept = pool.room(|_, memory, key| memory.counts_for(key, heap));
        counted.of(heap).without(kept)
    });
    let heaps = physical.memory.memory_heaps_as_slice();
    let types = physical.memory.memory_types_as_slice();
    let mut budget = of_driver;
    let figures = budget.heap_budget.iter_mut().zip(&mut budget.heap_usage);
    for (((most, used), heap), index) in figures.zip(heaps).zip(0..) {
        let of_context = match (*counted.of(heap_kind(heap)), heaps) {
            // A driver with one heap takes the memory that guests map out of that heap, and such memory counts as the host's too.
            (of_context, [_]) => of_context.bounded_by(counted.host),
            (of_context, _) => of_context,
        };
        let kept = pool.room(|device, _, key| {
            let of_type = types.get(key.type_index as usize);
            std::ptr::eq(&*device.physical, physical) && of_type.is_some_and(|ty| ty.heap_index == index)
        });
        let free = most.saturating_sub(*used).saturating_add(kept);
        // Heaps of one kind are counted together, so one may seem to hold more than its size.
        *used = of_context.used.min(heap.size);
        *most = of_context.most.min(used.saturating_add(free)).clamp(*used, heap.size);
    }
    Ok(budget)
}

/// `vkGetPhysicalDeviceMemoryProperties2`.
pub(crate) fn get_physical_device_memory_properties2<'a>(
    call: &Call<'a>,
    c: &venus::GetPhysicalDeviceMemoryProperties2<'a>,
) -> Result<venus::GetPhysicalDeviceMemoryProperties2Reply<'a>, Fault> {
    let physical = call.physical_device(c.physical_device)?;
    let out = call.lowering().out_pointer(c.p_memory_properties)?;
    let Some(function) = physical.instance.table.get_physical_device_memory_properties2 else {
        return Err(Fault::missing("vkGetPhysicalDeviceMemoryProperties2"));
    };
    if !out.is_null() {
        // SAFETY: the handle is live, `out` and its chain are memory of the arena of the right types.
        unsafe { function(physical.raw(), out) };
    }
    let p_memory_properties = match raise_pointer(c.p_memory_properties, out, call.arena)? {
        None => None,
        Some(raised) => {
            let mut shaped = *raised;
            shaped.memory_properties = memory(&physical.memory);
            shaped.p_next = call.arena.slice_try_fill(raised.p_next.len(), |i| {
                Ok::<_, Fault>(match raised.p_next[i] {
                    ChainStruct::PhysicalDeviceMemoryBudgetPropertiesEXT(budget) => {
                        let budget = budget_of_context(call, &physical, *budget)?;
                        ChainStruct::PhysicalDeviceMemoryBudgetPropertiesEXT(call.arena.value(budget)?)
                    }
                    other => other,
                })
            })?;
            Some(&*call.arena.value(shaped)?)
        }
    };
    Ok(venus::GetPhysicalDeviceMemoryProperties2Reply { p_memory_properties })
}

/// `vkGetPhysicalDeviceExternalSemaphoreProperties`: SYNC_FD is emulated, nothing else exists.
pub(crate) fn get_physical_device_external_semaphore_properties<'a>(
    call: &Call<'a>,
    c: &venus::GetPhysicalDeviceExternalSemaphoreProperties<'a>,
) -> Result<venus::GetPhysicalDeviceExternalSemaphorePropertiesReply<'a>, Fault> {
    let sync_fd = venus::ExternalSemaphoreHandleTypeFlags::SYNC_FD;
    let asked = c.p_external_semaphore_info.is_some_and(|info| info.handle_type == sync_fd);
    let p_external_semaphore_properties = match c.p_external_semaphore_properties {
        None => None,
        Some(partial) => {
            let mut properties = *partial;
            if asked {
                properties.export_from_imported_handle_types = sync_fd;
                properties.compatible_handle_types = sync_fd;
                properties.external_semaphore_features = venus::ExternalSemaphoreFeatureFlags(
                    venus::ExternalSemaphoreFeatureFlags::EXPORTABLE.0
                        | venus::ExternalSemaphoreFeatureFlags::IMPORTABLE.0,
                );
            }
            Some(&*call.arena.value(properties)?)
        }
    };
    Ok(venus::GetPhysicalDeviceExternalSemaphorePropertiesReply { p_external_semaphore_properties })
}

/// `vkGetPhysicalDeviceExternalFenceProperties`: no handle type exists.
pub(crate) fn get_physical_device_external_fence_properties<'a>(
    _: &Call<'a>,
    c: &venus::GetPhysicalDeviceExternalFenceProperties<'a>,
) -> Result<venus::GetPhysicalDeviceExternalFencePropertiesReply<'a>, Fault> {
    Ok(venus::GetPhysicalDeviceExternalFencePropertiesReply {
        p_external_fence_properties: c.p_external_fence_properties,
    })
}

/// `vkGetPhysicalDeviceSparseImageFormatProperties`: sparse binding is not offered.
pub(crate) fn get_physical_device_sparse_image_format_properties<'a>(
    call: &Call<'a>,
    c: &venus::GetPhysicalDeviceSparseImageFormatProperties<'a>,
) -> Result<venus::GetPhysicalDeviceSparseImageFormatPropertiesReply<'a>, Fault> {
    Ok(venus::GetPhysicalDeviceSparseImageFormatPropertiesReply {
        p_property_count: Some(call.arena.value(0)?),
        p_properties: c.p_properties.map(|_| &[][..]),
    })
}

/// `vkGetPhysicalDeviceSparseImageFormatProperties2`: sparse binding is not offered.
pub(crate) fn get_physical_device_sparse_image_format_properties2<'a>(
    call: &Call<'a>,
    c: &venus::GetPhysicalDeviceSparseImageFormatProperties2<'a>,
) -> Result<venus::GetPhysicalDeviceSparseImageFormatProperties2Reply<'a>, Fault> {
    Ok(venus::GetPhysicalDeviceSparseImageFormatProperties2Reply {
        p_property_count: Some(call.arena.value(0)?),
        p_properties: c.p_properties.map(|_| &[][..]),
    })
}
