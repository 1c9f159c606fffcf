//! Memory made of pages of ours: a memory file, mapped, and imported by the driver through `VK_EXT_external_memory_host`.
//!
//! This works without any device node, and the memory cannot hold data of another owner. All memory that the guest may map or share is made in this
//! way. To share memory is to import the same pages once more.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use super::request::{Request, alike, call_driver, lowered};
use super::{driver_mapped, private};
use crate::backing::memory::Made;
use crate::backing::pages::{Pages, rounded};
use crate::context::allowance::MemoryFile;
use crate::context::error::Fault;
use crate::context::resources::ResourceMemory;
use crate::context::restored::RestoredMemory;
use crate::driver::host_pointers::HostPointers;
use crate::execution::call::Call;
use crate::logical::device::Device;
use ash::vk;
use config::Heap;
use protocol::venus::generated as venus;
use shm::MapError;
use std::sync::Arc;

/// Makes zeroed pages for a guest, or takes the pages that a snapshot brings along.
fn granted(
    call: &Call<'_>,
    request: &Request,
    alignment: u64,
    restored: Option<&RestoredMemory>,
) -> Result<Pages, Fault> {
    let size = rounded(request.size, alignment).ok_or_else(|| request.out_of_memory())?;
    if let Some(restored) = restored {
        return mapped(&restored.file, size, alignment, Some(restored))
            .map_err(|_| vk::Result::ERROR_OUT_OF_HOST_MEMORY.into());
    }
    let file = call.context.env.allowance.pages(size, call.cancel)?;
    let file = Arc::new(file.ok_or_else(|| request.out_of_memory())?);
    Pages::of_file(&file, size, alignment).map_err(|_| vk::Result::ERROR_OUT_OF_HOST_MEMORY.into())
}

/// Maps the pages of a file, with their contents. If a snapshot brings the pages along, they are mapped at the address of the snapshot.
fn mapped(
    file: &Arc<MemoryFile>,
    size: u64,
    alignment: u64,
    restored: Option<&RestoredMemory>,
) -> Result<Pages, MapError> {
    match restored.map(|restored| restored.address).filter(|address| *address != 0) {
        Some(address) => Pages::of_file_at(file, size, alignment, address),
        None => Pages::of_file(file, size, alignment),
    }
}

/// Allocates memory for a guest, of the pages that a snapshot brings along, if it does.
pub(super) fn allocate(
    functions: &HostPointers,
    call: &Call<'_>,
    device: &Device,
    info: &venus::MemoryAllocateInfo<'_>,
    request: &Request,
    restored: Option<&RestoredMemory>,
) -> Result<(u64, Made), Fault> {
    let for_this_context = !request.exported && request.import.is_none();
    if request.driver_mapped
        && for_this_context
        && restored.is_none()
        && let Some(allocated) = driver_mapped::allocate(call, device, info, request)?
    {
        return Ok(allocated);
    }
    let pages = match &request.import {
        Some(import) => mapped(&import.file, import.size, functions.alignment(), restored)
            .map_err(|_| vk::Result::ERROR_INVALID_EXTERNAL_HANDLE)?,
        None if request.visible || request.driver_mapped || request.exported => {
            granted(call, request, functions.alignment(), restored)?
        }
        None => return private::allocate(call, device, info, request),
    };
    // Imported memory counts already, for the context that made it. Pages are memory of the host; if the GPU's memory is the host's, they are both.
    let counts = request.import.is_none() && request.heap == Heap::Device && request.visible;
    let credit = counts.then(|| request.credit(call, request.size)).transpose()?;
    let lowered = lowered(&call.lowering(), info, request, false)?;
    let mut import = pages.import();
    import.p_next = lowered.p_next;
    lowered.p_next = std::ptr::from_ref(&import).cast();
    lowered.allocation_size = pages.size();
    lowered.memory_type_index = type_for_pages(device, request);
    // SAFETY: `lowered` and its chain live in the arena or in this function; the pages go into the memory's entry, which is
    // dropped after the memory was freed.
    let raw = unsafe { call_driver(device, lowered) }?;
    Ok((raw, Made::Pages(pages, credit)))
}

/// Returns a memory type that takes pages. A guest that shares memory it cannot map, or that the driver maps, has asked for another type.
fn type_for_pages(device: &Device, request: &Request) -> u32 {
    match request.visible {
        true => request.type_index,
        false => device.physical.gpu.trial.mappable_types.trailing_zeros(),
    }
}

/// Returns the memory types that a guest may name to import a resource.
pub(super) fn types_of(
    functions: &HostPointers,
    device: &Device,
    resource: &ResourceMemory,
) -> Result<u32, Fault> {
    let pages = Pages::of_file(&resource.file, resource.size, functions.alignment())
        .map_err(|_| vk::Result::ERROR_INVALID_EXTERNAL_HANDLE)?;
    let importable = functions.types(&pages)? & device.physical.gpu.trial.mappable_types;
    let all = (1u64 << device.physical.memory.memory_type_count) - 1;
    let bits = if resource.mappable { importable } else { all as u32 };
    Ok(alike(device, bits, resource.mappable))
}
