//! Device memory. Host-visible memory is made of pages of ours, so that a VMM can map them: a memfd imported through
//! `VK_EXT_external_memory_host`. Everything else is the driver's own.
//!
//! [`Pages`] is what a blob needs of any host-visible memory; a back end that exports dma-bufs joins by making them.

use super::call::Call;
use super::device::Device;
use super::error::Fault;
use super::objects::State;
use crate::shm::{self, Mapping};
use ash::vk;
use protocol::venus::generated as venus;
use protocol::venus::generated::ChainStruct;
use std::ffi::c_void;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Memory of a guest's device.
#[derive(Debug)]
pub struct Memory {
    /// Its pages, if it is host-visible.
    pub pages: Option<Pages>,
}

/// Pages that both a driver and a VMM can map.
#[derive(Debug)]
pub struct Pages {
    fd: OwnedFd,
    /// Unmapped on drop; the driver's import was freed before (see `Device::destroy` and `free_memory`).
    mapping: Mapping,
}

impl Pages {
    /// Zeroed pages for at least `size` bytes, in multiples of `alignment`, which is a power of two.
    pub fn new(size: u64, alignment: u64) -> io::Result<Self> {
        let alignment = alignment.max(rustix::param::page_size() as u64);
        let size = size.max(1).checked_next_multiple_of(alignment).ok_or(io::ErrorKind::OutOfMemory)?;
        let fd = shm::create("vulkan-memory", size)?;
        let mapping = Mapping::new(&fd, size).map_err(io::Error::other)?;
        Ok(Self { fd, mapping })
    }

    /// Where they are mapped in this process.
    pub fn address(&self) -> *mut c_void {
        self.mapping.as_ptr()
    }

    /// Bytes.
    pub fn size(&self) -> u64 {
        self.mapping.len()
    }

    /// A descriptor for the device process.
    pub fn duplicate(&self) -> io::Result<OwnedFd> {
        self.fd.try_clone()
    }
}

/// What a blob of a memory object is made of.
#[derive(Debug)]
pub struct Exported {
    /// Its pages, if it can be mapped.
    pub fd: Option<OwnedFd>,
    /// Ordinary cached memory; otherwise write-combined.
    pub cached: bool,
}

/// `vkAllocateMemory`.
pub fn allocate_memory<'a>(
    call: &Call<'a>,
    c: &venus::AllocateMemory<'a>,
) -> Result<venus::AllocateMemoryReply<'a>, Fault> {
    let device = call.device(c.device)?;
    let Some(info) = c.p_allocate_info else {
        return Err(Fault::lost("vkAllocateMemory without a description"));
    };
    let allocated = allocate(call, &device, info);
    let result = match allocated {
        Ok((raw, memory)) => {
            call.bind(c.p_memory, raw, &device, 0, State::Memory(Arc::new(memory)))?;
            0
        }
        Err(Fault::Failed(result)) => {
            call.not_created(c.p_memory, result)?;
            result
        }
        Err(lost) => return Err(lost),
    };
    Ok(venus::AllocateMemoryReply { result: venus::VkResult(result), p_memory: c.p_memory })
}

fn allocate(
    call: &Call<'_>,
    device: &Arc<Device>,
    info: &venus::MemoryAllocateInfo<'_>,
) -> Result<(u64, Memory), Fault> {
    if info.p_next.iter().any(|next| matches!(next, ChainStruct::ImportMemoryResourceInfoMESA(_))) {
        return Err(vk::Result::ERROR_INVALID_EXTERNAL_HANDLE.into());
    }
    let pages = match host_visible(device, info.memory_type_index)? {
        true => Some(
            Pages::new(info.allocation_size, device.host_pointer_alignment())
                .map_err(|_| vk::Result::ERROR_OUT_OF_HOST_MEMORY)?,
        ),
        false => None,
    };
    let kept: Vec<_> = info.p_next.iter().filter(|next| keeps(next, pages.is_some())).copied().collect();
    let mut stripped = *info;
    stripped.p_next = call.arena.slice_copy(&kept)?;
    let lowered = call.lowering().out_pointer(Some(&stripped))?;
    // SAFETY: `lowered` is a struct of the arena that nothing else refers to.
    let lowered = unsafe { &mut *lowered };
    let import = pages.as_ref().map(|pages| vk::ImportMemoryHostPointerInfoEXT {
        p_next: lowered.p_next,
        handle_type: vk::ExternalMemoryHandleTypeFlags::HOST_ALLOCATION_EXT,
        p_host_pointer: pages.address(),
        ..Default::default()
    });
    if let (Some(import), Some(pages)) = (&import, &pages) {
        lowered.p_next = std::ptr::from_ref(import).cast();
        lowered.allocation_size = pages.size();
    }
    let Some(function) = device.table.allocate_memory else { return Err(Fault::missing("vkAllocateMemory")) };
    let mut raw = 0u64;
    // SAFETY: the device is live; `lowered` and its chain live in the arena or in this function; the pages outlive the memory.
    let result = unsafe { function(device.raw(), lowered, std::ptr::null(), &raw mut raw) };
    if result < 0 { Err(Fault::Failed(result)) } else { Ok((raw, Memory { pages })) }
}

fn host_visible(device: &Device, type_index: u32) -> Result<bool, Fault> {
    let memory = &device.physical.memory;
    let types = &memory.memory_types[..memory.memory_type_count as usize];
    match types.get(type_index as usize) {
        Some(ty) => Ok(ty.property_flags.contains(vk::MemoryPropertyFlags::HOST_VISIBLE)),
        None => Err(Fault::lost("a memory type that does not exist")),
    }
}

/// Which chained structs the host hears of. An import of a host pointer excludes exports, dedicated allocations
/// (VUID-VkMemoryAllocateInfo-pNext-02806) and chosen addresses.
fn keeps(next: &ChainStruct<'_>, imported: bool) -> bool {
    match next {
        ChainStruct::ExportMemoryAllocateInfo(_) | ChainStruct::MemoryOpaqueCaptureAddressAllocateInfo(_) => {
            false
        }
        ChainStruct::MemoryDedicatedAllocateInfo(_) => !imported,
        _ => true,
    }
}

/// `vkFreeMemory`: the driver's memory goes first, the pages with their last owner.
pub fn free_memory(call: &Call<'_>, c: &venus::FreeMemory) -> Result<venus::FreeMemoryReply, Fault> {
    if let Some(object) = call.renderer.objects.remove(c.memory)?
        && let Some(device) = &object.device
    {
        // SAFETY: the memory was taken out of the table; a guest that still uses it breaks its own context.
        unsafe { device.destroy(object.kind, object.raw) };
    }
    Ok(venus::FreeMemoryReply {})
}

/// `vkGetMemoryResourcePropertiesMESA`: no resource can be imported.
pub fn get_memory_resource_properties_mesa<'a>(
    _: &Call<'a>,
    _: &venus::GetMemoryResourcePropertiesMESA<'a>,
) -> Result<venus::GetMemoryResourcePropertiesMESAReply<'a>, Fault> {
    Err(vk::Result::ERROR_INVALID_EXTERNAL_HANDLE.into())
}
