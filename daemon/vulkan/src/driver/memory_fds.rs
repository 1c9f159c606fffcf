//! Functions of one device that export memory as descriptors, and import it (`VK_KHR_external_memory_fd`): as dma-bufs, which other programs
//! understand, or as descriptors that only the driver understands.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use ash::vk::{self, Handle as _};
use std::os::fd::{AsFd, AsRawFd, FromRawFd as _, IntoRawFd as _, OwnedFd};

/// The handle type of memory that others map.
pub(crate) const DMA_BUF: vk::ExternalMemoryHandleTypeFlags = vk::ExternalMemoryHandleTypeFlags::DMA_BUF_EXT;

/// The handle type of memory that another process of the same driver, on the same GPU, can have.
pub(crate) const OPAQUE_FD: vk::ExternalMemoryHandleTypeFlags = vk::ExternalMemoryHandleTypeFlags::OPAQUE_FD;

/// Has `allocate` make memory of a descriptor of this handle type; `allocate` chains the import's description to its own. The descriptor stays the
/// caller's: the driver gets a copy.
///
/// # Errors
///
/// There is no room for a copy, or `allocate` fails.
pub(crate) fn import<T, E: From<vk::Result>>(
    kind: vk::ExternalMemoryHandleTypeFlags,
    file: impl AsFd,
    allocate: impl FnOnce(vk::ImportMemoryFdInfoKHR<'_>) -> Result<T, E>,
) -> Result<T, E> {
    let copy = file.as_fd().try_clone_to_owned().map_err(|_| vk::Result::ERROR_TOO_MANY_OBJECTS)?;
    let made = allocate(vk::ImportMemoryFdInfoKHR::default().handle_type(kind).fd(copy.as_raw_fd()))?;
    // After success, the driver owns the copy.
    let _ = copy.into_raw_fd();
    Ok(made)
}

/// The functions, for descriptors of one kind.
pub struct MemoryFds {
    fds: ash::khr::external_memory_fd::Device,
    kind: vk::ExternalMemoryHandleTypeFlags,
}

impl MemoryFds {
    /// Loads the functions for descriptors of this handle type.
    pub fn new(
        instance: &ash::Instance,
        device: &ash::Device,
        kind: vk::ExternalMemoryHandleTypeFlags,
    ) -> Self {
        Self { fds: ash::khr::external_memory_fd::Device::new(instance, device), kind }
    }

    /// A descriptor of exportable memory.
    pub fn export(&self, raw: u64) -> Result<OwnedFd, vk::Result> {
        let memory = vk::DeviceMemory::from_raw(raw);
        let info = vk::MemoryGetFdInfoKHR::default().memory(memory).handle_type(self.kind);
        // SAFETY: the memory is live while its entry is, which the caller holds, and was made to be exported.
        let fd = unsafe { self.fds.get_memory_fd(&info) }?;
        // SAFETY: the driver made the descriptor for us.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// The host's types into which a descriptor can be imported; opaque descriptors must not be asked about.
    pub fn types(&self, file: impl AsFd) -> Result<u32, vk::Result> {
        let mut answer = vk::MemoryFdPropertiesKHR::default();
        let file = file.as_fd().as_raw_fd();
        // SAFETY: the device is live while its functions are used; the descriptor stays ours.
        unsafe { self.fds.get_memory_fd_properties(self.kind, file, &mut answer) }?;
        Ok(answer.memory_type_bits)
    }
}
