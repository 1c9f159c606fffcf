//! Functions of one device that export and import dma-bufs (`VK_KHR_external_memory_fd`, `VK_EXT_external_memory_dma_buf`).

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use ash::vk::{self, Handle as _};
use std::os::fd::{AsFd, AsRawFd, FromRawFd as _, OwnedFd};

/// The handle type of everything here.
pub(crate) const DMA_BUF: vk::ExternalMemoryHandleTypeFlags = vk::ExternalMemoryHandleTypeFlags::DMA_BUF_EXT;

/// The functions.
pub struct DmaBufs {
    fds: ash::khr::external_memory_fd::Device,
}

impl DmaBufs {
    /// Loads the functions.
    pub fn new(instance: &ash::Instance, device: &ash::Device) -> Self {
        Self { fds: ash::khr::external_memory_fd::Device::new(instance, device) }
    }

    /// A descriptor of exportable memory.
    pub fn export(&self, raw: u64) -> Result<OwnedFd, vk::Result> {
        let info =
            vk::MemoryGetFdInfoKHR::default().memory(vk::DeviceMemory::from_raw(raw)).handle_type(DMA_BUF);
        // SAFETY: the memory is live while its entry is, which the caller holds, and was made to be exported.
        let fd = unsafe { self.fds.get_memory_fd(&info) }?;
        // SAFETY: the driver made the descriptor for us.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// The host's types into which a dma-buf can be imported.
    pub fn types(&self, file: impl AsFd) -> Result<u32, vk::Result> {
        let mut answer = vk::MemoryFdPropertiesKHR::default();
        // SAFETY: the device is live while its functions are used; the descriptor stays ours.
        unsafe { self.fds.get_memory_fd_properties(DMA_BUF, file.as_fd().as_raw_fd(), &mut answer) }?;
        Ok(answer.memory_type_bits)
    }
}
