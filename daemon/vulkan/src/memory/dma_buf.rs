//! Memory made by the driver and exported as dma-bufs (`VK_KHR_external_memory_fd`, `VK_EXT_external_memory_dma_buf`).
//!
//! For drivers that refuse the pages of files, such as amdgpu's. The descriptor is made when a blob is asked for, so memory that is
//! never mapped costs none. No `DMA_BUF_IOCTL_SYNC` is issued: guests see coherent types only, and the processors and devices on which the daemon
//! runs keep such memory coherent by themselves.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use super::request::{Request, alike, call_driver, clear, lowered};
use crate::backing::memory::Made;
use crate::context::error::Fault;
use crate::context::resources::ResourceMemory;
use crate::driver::generated::sys;
use crate::driver::memory_fds::{DMA_BUF, MemoryFds, import};
use crate::execution::call::Call;
use crate::logical::device::Device;
use ash::vk::{self, Handle as _};
use protocol::venus::generated::{self as venus, ChainStruct};

/// Allocates memory for a guest.
pub(super) fn allocate(
    call: &Call<'_>,
    device: &Device,
    info: &venus::MemoryAllocateInfo<'_>,
    request: &Request,
) -> Result<(u64, Made), Fault> {
    let lowered = lowered(&call.lowering(), info, request, true)?;
    let dedicated = info.p_next.iter().any(|n| matches!(n, ChainStruct::MemoryDedicatedAllocateInfo(_)));
    if request.import.is_none() && !dedicated {
        // A blob covers whole pages. A dedicated allocation is as large as its buffer or image demands.
        lowered.allocation_size = page_multiple(request.size)?;
    }
    let exportable = request.visible || request.exported;
    let size = lowered.allocation_size;
    // Imported memory counts already, for the context that made it.
    let (piece, credit) = match (&request.import, exportable) {
        (Some(_), _) => (None, None),
        (None, true) => {
            let piece = call.context.env.allowance.piece(request.heap, size, call.cancel)?;
            (Some(piece.ok_or_else(|| request.out_of_memory())?), None)
        }
        (None, false) => (None, Some(request.credit(call, size)?)),
    };
    let export =
        vk::ExportMemoryAllocateInfo { p_next: lowered.p_next, handle_types: DMA_BUF, ..Default::default() };
    if exportable {
        lowered.p_next = std::ptr::from_ref(&export).cast();
    }
    // SAFETY: `lowered` and its chain live in the arena or in this function, and so does the descriptor.
    let call_driver = |lowered: &sys::MemoryAllocateInfo| unsafe { call_driver(device, lowered) };
    let raw = match &request.import {
        None => call_driver(lowered),
        Some(resource) => import(DMA_BUF, &*resource.file, |mut import| {
            import.p_next = lowered.p_next;
            lowered.p_next = std::ptr::from_ref(&import).cast();
            call_driver(lowered)
        }),
    }?;
    if request.visible && request.import.is_none() {
        // SAFETY: the driver has just made it, of a type that can be mapped, and no other code knows it.
        unsafe { clear_mapped(&device.ash, raw, lowered.allocation_size) }?;
    } else if request.import.is_none() && !dedicated {
        let none = vk::ExternalMemoryHandleTypeFlags::empty();
        // SAFETY: the driver has just made it, and it is in no use.
        unsafe { clear(device, raw, (lowered.allocation_size, request.type_index), none) }?;
    }
    let piece = match request.import.as_ref().map(|import| import.file.piece.clone()).or(piece) {
        Some(piece) if exportable => piece,
        Some(piece) => return Ok((raw, Made::Imported(piece))),
        None => return Ok((raw, Made::private(credit, None))),
    };
    let ty = device.physical.memory.memory_types[request.type_index as usize];
    let cached = ty.property_flags.contains(vk::MemoryPropertyFlags::HOST_CACHED);
    Ok((raw, Made::Exportable { cached, piece }))
}

/// Returns the memory types that a guest may name to import a resource.
pub(super) fn types_of(
    functions: &MemoryFds,
    device: &Device,
    resource: &ResourceMemory,
) -> Result<u32, Fault> {
    Ok(alike(device, functions.types(&*resource.file)?, resource.mappable))
}

fn page_multiple(size: u64) -> Result<u64, vk::Result> {
    let page = rustix::param::page_size() as u64;
    size.checked_next_multiple_of(page).ok_or(vk::Result::ERROR_OUT_OF_DEVICE_MEMORY)
}

/// Clears fresh memory, which may hold data of another owner; frees the memory if that fails.
///
/// # Safety
///
/// `raw` is unmapped memory of this live device, of `size` bytes and a coherent, host-visible type, in no use.
unsafe fn clear_mapped(device: &ash::Device, raw: u64, size: u64) -> Result<(), vk::Result> {
    let memory = vk::DeviceMemory::from_raw(raw);
    let flags = vk::MemoryMapFlags::empty();
    // SAFETY: the caller's promise.
    match unsafe { device.map_memory(memory, 0, vk::WHOLE_SIZE, flags) } {
        Ok(start) => {
            // SAFETY: the mapping is at least `size` bytes and no other code uses it.
            unsafe { start.cast::<u8>().write_bytes(0, size as usize) };
            // SAFETY: mapped above.
            unsafe { device.unmap_memory(memory) };
            Ok(())
        }
        Err(error) => {
            // SAFETY: the caller's promise: it is in no use.
            unsafe { device.free_memory(memory, None) };
            Err(error)
        }
    }
}
