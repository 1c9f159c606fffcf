//! Functions of one device that import memory of the process (`VK_EXT_external_memory_host`).

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use crate::backing::pages::Pages;
use ash::vk;

/// The functions, with the alignment that the driver demands.
pub struct HostPointers {
    host: ash::ext::external_memory_host::Device,
    /// `minImportedHostPointerAlignment`.
    alignment: u64,
}

impl HostPointers {
    /// Loads the functions.
    pub fn new(instance: &ash::Instance, handle: vk::PhysicalDevice, device: &ash::Device) -> Self {
        let mut host = vk::PhysicalDeviceExternalMemoryHostPropertiesEXT::default();
        let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut host);
        // SAFETY: the handle comes from this live instance, the chain lives until the call returns.
        unsafe { instance.get_physical_device_properties2(handle, &mut properties) };
        let alignment = host.min_imported_host_pointer_alignment;
        Self { host: ash::ext::external_memory_host::Device::new(instance, device), alignment }
    }

    /// Alignment of imported pages in bytes.
    pub fn alignment(&self) -> u64 {
        self.alignment
    }

    /// The host's types into which these pages can be imported.
    pub fn types(&self, pages: &Pages) -> Result<u32, vk::Result> {
        let function = self.host.fp().get_memory_host_pointer_properties_ext;
        let kind = vk::ExternalMemoryHandleTypeFlags::HOST_ALLOCATION_EXT;
        let mut answer = vk::MemoryHostPointerPropertiesEXT::default();
        // SAFETY: the device is live while its functions are used, and the pages are mapped.
        unsafe { function(self.host.device(), kind, pages.address(), &mut answer) }.result()?;
        Ok(answer.memory_type_bits)
    }
}
