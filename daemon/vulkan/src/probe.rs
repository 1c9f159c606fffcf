//! The probe lists the GPUs and finds out whether guests can use them. It runs in a process of its own, because it loads every driver.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use super::context::cause::DriverError;
use super::driver::instance::{Instance, load_entry};
use super::driver::physical_device::{device_uuid, has_extension, host_extensions, host_memory};
use super::programs::trial::{Unusable, try_out};
use super::snapshot::likeness::likeness;
use ash::vk;
use config::{GpuInfo, GpuKind};
use std::sync::Arc;

/// Asks every driver for its GPUs.
///
/// # Errors
///
/// No Vulkan loader or no driver at all.
pub fn probe() -> Result<Vec<GpuInfo>, DriverError> {
    let made = Instance::new(load_entry()?, vk::ApplicationInfo::default());
    let instance = Arc::new(made.map_err(DriverError::NoAnswer)?);
    // SAFETY: the instance is live.
    let handles = unsafe { instance.ash.enumerate_physical_devices() }.map_err(DriverError::NoList)?;
    Ok(handles.into_iter().map(|handle| describe(&instance.ash, handle)).collect())
}

fn describe(instance: &ash::Instance, handle: vk::PhysicalDevice) -> GpuInfo {
    // SAFETY: `handle` comes from this live instance, here and below.
    let properties = unsafe { instance.get_physical_device_properties(handle) };
    let name = properties.device_name_as_c_str().unwrap_or(c"unnamed").to_string_lossy().into_owned();
    let mut gpu = GpuInfo {
        name,
        uuid: device_uuid(instance, handle).unwrap_or_default(),
        pci_address: None,
        driver: String::new(),
        api_version: properties.api_version,
        kind: kind(properties.device_type),
        device_memory: device_memory(&host_memory(instance, handle)),
        likeness: likeness(instance, handle),
        memfd: Err(String::new()),
        dma_buf: Err(String::new()),
    };
    let tried = if properties.api_version < vk::API_VERSION_1_1 {
        Err(Unusable::Old)
    } else {
        host_extensions(instance, handle).map_err(Unusable::Extensions)
    };
    (gpu.memfd, gpu.dma_buf) = match tried {
        Err(why) => (Err(why.to_string()), Err(why.to_string())),
        Ok(extensions) => {
            let has_pci = has_extension(&extensions, ash::ext::pci_bus_info::NAME);
            (gpu.driver, gpu.pci_address) = identity(instance, handle, has_pci);
            let (memfd, dma_buf) = try_out(instance, handle, &extensions);
            (memfd.map_err(|why| why.to_string()), dma_buf.map_err(|why| why.to_string()))
        }
    };
    gpu
}

fn kind(device_type: vk::PhysicalDeviceType) -> GpuKind {
    match device_type {
        vk::PhysicalDeviceType::DISCRETE_GPU => GpuKind::Discrete,
        vk::PhysicalDeviceType::INTEGRATED_GPU => GpuKind::Integrated,
        vk::PhysicalDeviceType::VIRTUAL_GPU => GpuKind::Virtual,
        vk::PhysicalDeviceType::CPU => GpuKind::Software,
        _ => GpuKind::Other,
    }
}

/// The bytes of the largest heap that is local to the device. A smaller heap may be the part of it that processors see.
fn device_memory(memory: &vk::PhysicalDeviceMemoryProperties) -> u64 {
    let heaps = memory.memory_heaps_as_slice().iter();
    let local = heaps.filter(|heap| heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL));
    local.map(|heap| heap.size).max().unwrap_or(0)
}

fn identity(instance: &ash::Instance, handle: vk::PhysicalDevice, has_pci: bool) -> (String, Option<String>) {
    let mut driver = vk::PhysicalDeviceDriverProperties::default();
    let mut pci = vk::PhysicalDevicePCIBusInfoPropertiesEXT::default();
    let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut driver);
    if has_pci {
        properties = properties.push_next(&mut pci);
    }
    // SAFETY: the handle is live and the chain lives until the call returns. A driver that does not know a struct skips it.
    unsafe { instance.get_physical_device_properties2(handle, &mut properties) };
    let text = |c: Result<&std::ffi::CStr, _>| c.unwrap_or_default().to_string_lossy().into_owned();
    let words = [text(driver.driver_name_as_c_str()), text(driver.driver_info_as_c_str())];
    let address = has_pci.then(|| {
        format!("{:04x}:{:02x}:{:02x}.{:x}", pci.pci_domain, pci.pci_bus, pci.pci_device, pci.pci_function)
    });
    (words.join(" ").trim().to_owned(), address)
}
