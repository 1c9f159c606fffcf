//! What GPUs there are and whether guests can use them. Runs in a process of its own, because it loads every driver.

use super::instance::Instance;
use super::memory::Pages;
use super::physical_device::{device_uuid, host_extensions};
use crate::config::{GpuChoice, GpuInfo};
use ash::vk;
use std::sync::Arc;

/// Memory imported for the test, in bytes.
const TEST_BYTES: u64 = 64 * 1024;

/// Asks every driver.
///
/// # Errors
///
/// No Vulkan loader or no driver at all, in words.
pub fn probe() -> Result<Vec<GpuInfo>, String> {
    let instance = Arc::new(Instance::new().map_err(|fault| match fault {
        super::error::Fault::Lost(lost) => lost.reason,
        super::error::Fault::Failed(result) => {
            format!("no Vulkan driver answers: {:?}", vk::Result::from_raw(result))
        }
    })?);
    // SAFETY: the instance is live.
    let handles = unsafe { instance.ash.enumerate_physical_devices() }
        .map_err(|error| format!("the Vulkan drivers report no device: {error}"))?;
    Ok(handles.into_iter().map(|handle| describe(&instance.ash, handle)).collect())
}

fn describe(instance: &ash::Instance, handle: vk::PhysicalDevice) -> GpuInfo {
    // SAFETY: `handle` comes from this live instance, here and below.
    let properties = unsafe { instance.get_physical_device_properties(handle) };
    let name = properties.device_name_as_c_str().unwrap_or(c"unnamed").to_string_lossy().into_owned();
    let mut gpu = GpuInfo {
        choice: GpuChoice { uuid: device_uuid(instance, handle).unwrap_or_default(), importable_types: 0 },
        name,
        pci_address: None,
        driver: String::new(),
        api_version: properties.api_version,
        software: properties.device_type == vk::PhysicalDeviceType::CPU,
        unusable: None,
    };
    if properties.api_version < vk::API_VERSION_1_1 {
        gpu.unusable = Some("its driver offers Vulkan 1.0, 1.1 is needed".into());
        return gpu;
    }
    match host_extensions(instance, handle) {
        Err(error) => gpu.unusable = Some(format!("its driver lists no extensions: {error}")),
        Ok(extensions) => {
            let has = |name: &std::ffi::CStr| name.to_str().is_ok_and(|n| extensions.contains_key(n));
            (gpu.driver, gpu.pci_address) = identity(instance, handle, has(ash::ext::pci_bus_info::NAME));
            if !has(ash::ext::external_memory_host::NAME) {
                gpu.unusable = Some("its driver lacks VK_EXT_external_memory_host".into());
                return gpu;
            }
            match importable_types(instance, handle) {
                Ok(types) => gpu.choice.importable_types = types,
                Err(reason) => gpu.unusable = Some(reason),
            }
        }
    }
    gpu
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

/// Imports pages into each type that takes them and finds one that is host-visible and coherent.
fn importable_types(instance: &ash::Instance, handle: vk::PhysicalDevice) -> Result<u32, String> {
    let priorities = [1.0];
    let queues = [vk::DeviceQueueCreateInfo::default().queue_family_index(0).queue_priorities(&priorities)];
    let extensions = [ash::ext::external_memory_host::NAME.as_ptr()];
    let info =
        vk::DeviceCreateInfo::default().queue_create_infos(&queues).enabled_extension_names(&extensions);
    // SAFETY: the handle is live, `info` and what it points to live until the call returns.
    let device = unsafe { instance.create_device(handle, &info, None) }
        .map_err(|error| format!("its driver makes no device: {error}"))?;
    let types = test_imports(instance, handle, &device);
    // SAFETY: everything made of it was destroyed.
    unsafe { device.destroy_device(None) };
    types
}

fn test_imports(
    instance: &ash::Instance,
    handle: vk::PhysicalDevice,
    device: &ash::Device,
) -> Result<u32, String> {
    let alignment = host_pointer_alignment(instance, handle);
    let pages = Pages::new(TEST_BYTES, alignment).map_err(|error| format!("no memfd: {error}"))?;
    let import = ash::ext::external_memory_host::Device::new(instance, device);
    let kind = vk::ExternalMemoryHandleTypeFlags::HOST_ALLOCATION_EXT;
    let mut answer = vk::MemoryHostPointerPropertiesEXT::default();
    // SAFETY: the device is live and the pages are mapped.
    unsafe {
        (import.fp().get_memory_host_pointer_properties_ext)(
            device.handle(),
            kind,
            pages.address(),
            &mut answer,
        )
    }
    .result()
    .map_err(|error| format!("its driver imports no memfd pages: {error}"))?;
    // SAFETY: the handle is live.
    let memory = unsafe { instance.get_physical_device_memory_properties(handle) };
    let wanted = vk::MemoryPropertyFlags::HOST_VISIBLE | vk::MemoryPropertyFlags::HOST_COHERENT;
    let types: u32 = (0..memory.memory_type_count)
        .filter(|i| answer.memory_type_bits & (1 << i) != 0)
        .filter(|i| memory.memory_types[*i as usize].property_flags.contains(wanted))
        .filter(|i| import_works(device, &pages, *i))
        .fold(0, |bits, i| bits | (1 << i));
    if types == 0 {
        return Err("its driver imports memfd pages into no coherent memory type".into());
    }
    Ok(types)
}

fn import_works(device: &ash::Device, pages: &Pages, type_index: u32) -> bool {
    let mut import = vk::ImportMemoryHostPointerInfoEXT {
        handle_type: vk::ExternalMemoryHandleTypeFlags::HOST_ALLOCATION_EXT,
        p_host_pointer: pages.address(),
        ..Default::default()
    };
    let info = vk::MemoryAllocateInfo::default()
        .allocation_size(pages.size())
        .memory_type_index(type_index)
        .push_next(&mut import);
    // SAFETY: the device is live, the pages are mapped and outlive the import, which is freed at once.
    match unsafe { device.allocate_memory(&info, None) } {
        Ok(memory) => {
            // SAFETY: just allocated and in no use.
            unsafe { device.free_memory(memory, None) };
            true
        }
        Err(_) => false,
    }
}

/// `minImportedHostPointerAlignment`.
pub fn host_pointer_alignment(instance: &ash::Instance, handle: vk::PhysicalDevice) -> u64 {
    let mut host = vk::PhysicalDeviceExternalMemoryHostPropertiesEXT::default();
    let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut host);
    // SAFETY: the handle comes from this live instance, the chain lives until the call returns.
    unsafe { instance.get_physical_device_properties2(handle, &mut properties) };
    host.min_imported_host_pointer_alignment
}
