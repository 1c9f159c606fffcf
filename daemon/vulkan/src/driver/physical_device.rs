//! `VkPhysicalDevice`: one of the GPUs of a context, and the properties that are queried once.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use super::families::FamilyOrder;
use super::instance::Instance;
use ash::vk::{self, Handle as _};
use config::{GpuChoice, Heap, Robustness};
use protocol::venus::generated as venus;
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::sync::Arc;

/// One of the GPUs of this context.
pub struct PhysicalDevice {
    /// The instance that it belongs to.
    pub instance: Arc<Instance>,
    /// The host's handle.
    pub handle: vk::PhysicalDevice,
    /// The index of the GPU among those of the context, from 0.
    pub index: usize,
    /// The way in which the GPU is used.
    pub gpu: GpuChoice,
    /// Extensions of the host's device and their versions, except for the extensions of addresses that guests do not see.
    pub host_extensions: BTreeMap<String, u32>,
    /// The features by which guests have addresses of buffers.
    pub addresses: Addresses,
    /// Queue families a guest sees.
    pub families: Vec<vk::QueueFamilyProperties>,
    /// The host's families in that order, each with its queues and their abilities.
    pub host_families: Vec<vk::QueueFamilyProperties>,
    /// The order that says which of the host's families they are.
    pub order: FamilyOrder,
    /// The kind of the device.
    pub device_type: vk::PhysicalDeviceType,
    /// Limits of the host's device.
    pub limits: vk::PhysicalDeviceLimits,
    /// The device and the version of its driver, to which data of pipeline caches is bound: another driver may read the data differently.
    pub cache_origin: CacheOrigin,
    /// Memory types and heaps as a guest sees them.
    pub memory: vk::PhysicalDeviceMemoryProperties,
    /// Bytes of the largest heap: nothing can be larger.
    pub largest_heap: u64,
}

/// The UUIDs, the vendor, the device, and the version of the driver that data of pipeline caches comes from.
pub(crate) type CacheOrigin = [u8; 44];

impl std::fmt::Debug for PhysicalDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PhysicalDevice").finish_non_exhaustive()
    }
}

impl PhysicalDevice {
    /// Returns whether shaders are kept inside the buffers bound to them, whatever the guest asks for.
    pub fn is_robust(&self) -> bool {
        match self.gpu.protection.robustness {
            Robustness::On => true,
            Robustness::Guest => false,
            Robustness::Auto => !has_own_address_space(self.device_type),
        }
    }

    /// Returns the abilities of the host's queues of a guest's family; no ability if there is no such family.
    pub fn queue_flags(&self, family: u32) -> venus::QueueFlags {
        venus::QueueFlags(
            self.host_families.get(family as usize).map_or(0, |family| family.queue_flags.as_raw()),
        )
    }

    /// Returns the bytes of a memory heap that the driver would still give this process now; none if the driver does not report them.
    pub fn free_memory(&self, heap: u32) -> Option<u64> {
        let is_told = has_extension(&self.host_extensions, ash::ext::memory_budget::NAME);
        let function = self.instance.table.get_physical_device_memory_properties2.filter(|_| is_told)?;
        let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
        let mut memory = vk::PhysicalDeviceMemoryProperties2::default().push_next(&mut budget);
        // SAFETY: the handle is live; the chain is memory of the right types, and lives until the call returns.
        unsafe { function(self.raw(), (&raw mut memory).cast()) };
        let most = budget.heap_budget.get(heap as usize)?;
        Some(most.saturating_sub(*budget.heap_usage.get(heap as usize)?))
    }

    /// The handle as a number.
    pub fn raw(&self) -> u64 {
        self.handle.as_raw()
    }
}

/// The features and extensions of the host by which guests have addresses of buffers, fewest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Addresses {
    /// None.
    None,
    /// Features and extensions of Vulkan itself, without `VK_EXT_buffer_device_address`.
    OfVulkan,
    /// All that the host has.
    All,
}

/// Returns whether shaders on such a device see only that memory of their process which the driver maps for the GPU.
fn has_own_address_space(device_type: vk::PhysicalDeviceType) -> bool {
    matches!(device_type, vk::PhysicalDeviceType::DISCRETE_GPU | vk::PhysicalDeviceType::INTEGRATED_GPU)
}

/// Returns the origin to which data of pipeline caches of this device and driver is bound.
pub(crate) fn cache_origin(host: &vk::PhysicalDeviceProperties, gpu: &GpuChoice) -> CacheOrigin {
    let mut origin = [0; 44];
    origin[..16].copy_from_slice(&host.pipeline_cache_uuid);
    origin[16..32].copy_from_slice(&gpu.uuid);
    let versions = [host.vendor_id, host.device_id, host.driver_version].map(u32::to_le_bytes);
    origin[32..].copy_from_slice(versions.as_flattened());
    origin
}

/// The UUID of a device, if its driver is recent enough to tell.
pub(crate) fn device_uuid(instance: &ash::Instance, handle: vk::PhysicalDevice) -> Option<[u8; 16]> {
    // SAFETY: `handle` comes from this live instance, here and below.
    let plain = unsafe { instance.get_physical_device_properties(handle) };
    if plain.api_version < vk::API_VERSION_1_1 {
        return None;
    }
    let mut id = vk::PhysicalDeviceIDProperties::default();
    let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut id);
    // SAFETY: as above; the chain lives until the call returns.
    unsafe { instance.get_physical_device_properties2(handle, &mut properties) };
    Some(id.device_uuid)
}

/// Memory types and heaps of the host's device.
pub(crate) fn host_memory(
    instance: &ash::Instance,
    handle: vk::PhysicalDevice,
) -> vk::PhysicalDeviceMemoryProperties {
    // SAFETY: `handle` comes from this live instance.
    unsafe { instance.get_physical_device_memory_properties(handle) }
}

/// Extensions of a device with their versions.
pub(crate) fn host_extensions(
    instance: &ash::Instance,
    handle: vk::PhysicalDevice,
) -> Result<BTreeMap<String, u32>, vk::Result> {
    // SAFETY: `handle` comes from this live instance.
    let list = unsafe { instance.enumerate_device_extension_properties(handle) }?;
    Ok(list
        .iter()
        .filter_map(|e| Some((e.extension_name_as_c_str().ok()?.to_str().ok()?.to_owned(), e.spec_version)))
        .collect())
}

/// Returns whether an extension is among those of a device.
pub(crate) fn has_extension(extensions: &BTreeMap<String, u32>, name: &CStr) -> bool {
    name.to_str().is_ok_and(|name| extensions.contains_key(name))
}

/// The heap that memory of a type is in.
pub(crate) fn heap(memory: &vk::PhysicalDeviceMemoryProperties, ty: &vk::MemoryType) -> Heap {
    heap_kind(&memory.memory_heaps[ty.heap_index as usize])
}

/// The kind of a heap.
pub(crate) fn heap_kind(heap: &vk::MemoryHeap) -> Heap {
    match heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL) {
        true => Heap::Device,
        false => Heap::Host,
    }
}
