//! The back end that makes the memory which guests map, with the driver's functions that it needs.

use super::host_pointers::HostPointers;
use super::memory_fds::{DMA_BUF, MemoryFds};
use super::physical_device::PhysicalDevice;
use config::MemoryBackEnd;

/// Functions of the driver behind one back end, of one device.
pub enum BackEnd {
    /// `VK_EXT_external_memory_host`.
    Memfd(HostPointers),
    /// `VK_KHR_external_memory_fd`.
    DmaBuf(MemoryFds),
}

impl BackEnd {
    /// Loads the functions.
    pub fn new(physical: &PhysicalDevice, device: &ash::Device) -> Self {
        let instance = &physical.instance.ash;
        match physical.gpu.memory {
            MemoryBackEnd::Memfd => Self::Memfd(HostPointers::new(instance, physical.handle, device)),
            MemoryBackEnd::DmaBuf => Self::DmaBuf(MemoryFds::new(instance, device, DMA_BUF)),
        }
    }
}
