//! Memory made of pages of ours: a memory file, mapped, and imported by the driver through `VK_EXT_external_memory_host`.
//!
//! Works without any device node, and nothing of another owner can be left in it. Whatever the guest may map or share is made so.
//! Sharing is importing the same pages once more.

use super::allowance::{MemoryFile, Piece};
use super::{Made, Request, ResourceMemory, alike, call_driver, driver_mapped, lowered};
use crate::config::Heap;
use crate::shm::{self, MapError, Mapping};
use crate::vulkan::call::Call;
use crate::vulkan::device::Device;
use crate::vulkan::error::Fault;
use crate::vulkan::zero;
use ash::vk;
use protocol::venus::generated as venus;
use std::ffi::c_void;
use std::io;
use std::sync::Arc;

static ZEROS: [u8; 1 << 16] = [0; 1 << 16];

/// Pages that both a driver and a VMM can map.
#[derive(Debug)]
pub struct Pages {
    file: Arc<MemoryFile>,
    /// Unmapped on drop; the driver's import was freed before (see `Device::destroy` and `free_memory`).
    mapping: Mapping,
}

impl Pages {
    /// Zeroed pages for a trial, at least `size` bytes, in multiples of `alignment`, which is a power of two.
    pub fn new(size: u64, alignment: u64) -> io::Result<Self> {
        let size = rounded(size, alignment).ok_or(io::ErrorKind::OutOfMemory)?;
        let file = MemoryFile::new(shm::create("vulkan-memory", size)?, Piece::uncounted());
        Self::of_file(&Arc::new(file), size, alignment).map_err(io::Error::other)
    }

    /// Zeroed pages for a guest.
    fn granted(call: &Call<'_>, request: &Request, alignment: u64) -> Result<Self, Fault> {
        let size = rounded(request.size, alignment).ok_or_else(|| request.out_of_memory())?;
        let file = call.renderer.allowance.pages(size, call.cancel);
        let file = Arc::new(file.ok_or_else(|| request.out_of_memory())?);
        Self::of_file(&file, size, alignment).map_err(|_| vk::Result::ERROR_OUT_OF_HOST_MEMORY.into())
    }

    /// The first pages of a file, at least `size` bytes.
    pub fn of_file(file: &Arc<MemoryFile>, size: u64, alignment: u64) -> Result<Self, MapError> {
        let mapping = Mapping::new(file.as_ref(), rounded(size, alignment).unwrap_or(u64::MAX))?;
        Ok(Self { file: Arc::clone(file), mapping })
    }

    /// Makes them zero again; nobody uses them.
    pub fn clear(&self) {
        for start in (0..self.size()).step_by(ZEROS.len()) {
            let zeros = &ZEROS[..ZEROS.len().min((self.size() - start) as usize)];
            // All of it is inside.
            let _ = self.mapping.copy_in(start, zeros);
        }
    }

    /// Where they are mapped in this process.
    pub fn address(&self) -> *mut c_void {
        self.mapping.as_ptr()
    }

    /// Bytes.
    pub fn size(&self) -> u64 {
        self.mapping.len()
    }

    /// The file they belong to.
    pub fn file(&self) -> Arc<MemoryFile> {
        Arc::clone(&self.file)
    }

    /// Nothing else of this process is made of them, or may be.
    pub fn is_sole(&self) -> bool {
        Arc::strong_count(&self.file) == 1 && self.file.piece.is_sole()
    }

    /// The struct that lets `vkAllocateMemory` import them.
    pub fn import(&self) -> vk::ImportMemoryHostPointerInfoEXT<'static> {
        vk::ImportMemoryHostPointerInfoEXT {
            handle_type: vk::ExternalMemoryHandleTypeFlags::HOST_ALLOCATION_EXT,
            p_host_pointer: self.address(),
            ..Default::default()
        }
    }
}

/// Bytes in whole pages, of which there is one at least; none if there is no such number.
pub(super) fn rounded(size: u64, alignment: u64) -> Option<u64> {
    size.max(1).checked_next_multiple_of(alignment.max(rustix::param::page_size() as u64))
}

/// What of a device is needed.
pub struct Functions {
    host: ash::ext::external_memory_host::Device,
    /// `minImportedHostPointerAlignment`.
    alignment: u64,
}

impl Functions {
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

    /// Allocates for a guest.
    pub(super) fn allocate(
        &self,
        call: &Call<'_>,
        device: &Device,
        info: &venus::MemoryAllocateInfo<'_>,
        request: &Request,
    ) -> Result<(u64, Made), Fault> {
        let for_this_context = !request.exported && request.import.is_none();
        if request.driver_mapped
            && for_this_context
            && let Some(allocated) = driver_mapped::allocate(call, device, info, request)?
        {
            return Ok(allocated);
        }
        let pages = match &request.import {
            Some(import) => Some(
                Pages::of_file(&import.file, import.size, self.alignment)
                    .map_err(|_| vk::Result::ERROR_INVALID_EXTERNAL_HANDLE)?,
            ),
            None if request.visible || request.driver_mapped || request.exported => {
                Some(Pages::granted(call, request, self.alignment)?)
            }
            None => None,
        };
        // What another made counts for it already. Pages are the host's, and where the GPU's memory is the host's they are both.
        let credit = match (&request.import, &pages) {
            (Some(_), _) => None,
            (None, Some(_)) if request.heap == Heap::Host || !request.visible => None,
            (None, _) => Some(request.credit(call, request.size)?),
        };
        let dedicated = pages.is_none() && zero::stays_dedicated(call, device, info)?;
        let lowered = lowered(&call.lowering(), info, dedicated)?;
        let import = pages.as_ref().map(|pages| {
            let mut import = pages.import();
            import.p_next = lowered.p_next;
            import
        });
        if let (Some(import), Some(pages)) = (&import, &pages) {
            lowered.p_next = std::ptr::from_ref(import).cast();
            lowered.allocation_size = pages.size();
            lowered.memory_type_index = self.type_for_pages(device, request);
        }
        if pages.is_none() && !dedicated {
            // What is cleared is whole words. Dedicated allocations are as large as what they are for demands.
            lowered.allocation_size =
                rounded(request.size, 1).ok_or(vk::Result::ERROR_OUT_OF_DEVICE_MEMORY)?;
        }
        // SAFETY: `lowered` and its chain live in the arena or in this function; the pages go into the memory's entry, which is
        // dropped after the memory was freed.
        let raw = unsafe { call_driver(device, lowered) }?;
        if let (Some(cleaner), None, false) = (&device.cleaner, &pages, dedicated) {
            // SAFETY: the driver has just made it, and nobody else knows it.
            unsafe { cleaner.clear(device, raw, lowered.allocation_size, request.type_index) }?;
        }
        Ok((
            raw,
            match pages {
                Some(pages) => Made::Pages(pages, credit),
                None => Made::Private(credit),
            },
        ))
    }

    /// Pages go into a type that takes them. A guest that shares memory it cannot map, or that the driver maps, has asked for another
    /// type.
    fn type_for_pages(&self, device: &Device, request: &Request) -> u32 {
        match request.visible {
            true => request.type_index,
            false => device.physical.gpu.trial.mappable_types.trailing_zeros(),
        }
    }

    /// The types that a guest may name to import a resource.
    pub fn types_of(&self, device: &Device, resource: &ResourceMemory) -> Result<u32, Fault> {
        let pages = Pages::of_file(&resource.file, resource.size, self.alignment)
            .map_err(|_| vk::Result::ERROR_INVALID_EXTERNAL_HANDLE)?;
        let importable = self.types(&pages)? & device.physical.gpu.trial.mappable_types;
        let all = (1u64 << device.physical.memory.memory_type_count) - 1;
        let bits = if resource.mappable { importable } else { all as u32 };
        Ok(alike(device, bits, resource.mappable))
    }
}
