//! Memory that the driver maps for this process, and that guests map out of the same device node.
//!
//! On drivers that export nothing this is the only way to let a guest write into the GPU's own memory. The descriptor that the driver maps is caught
//! when the driver maps it ([`capture`](crate::backing::capture)): when memory is allocated or, if it is not then, when it is mapped. The mapping of
//! another process keeps nothing alive, so memory that guests see is freed late (`vulkan::disposal::lent`).

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use super::dedicated;
use super::request::{Request, call_driver, clear, lowered};
use crate::backing::capture::{map_of, watching};
use crate::backing::memory::{GRAIN, Made};
use crate::context::allowance::MemoryFile;
use crate::context::error::Fault;
use crate::execution::call::Call;
use crate::logical::device::Device;
use ash::vk::{self, Handle as _};
use protocol::venus::generated as venus;
use std::sync::Arc;

/// Allocates memory for a guest; returns none if the size is not in whole grains, or the driver mapped nothing that could be caught.
pub(super) fn allocate(
    call: &Call<'_>,
    device: &Device,
    info: &venus::MemoryAllocateInfo<'_>,
    request: &Request,
) -> Result<Option<(u64, Made)>, Fault> {
    let size = request.size;
    if size == 0 || !size.is_multiple_of(GRAIN) {
        return Ok(None);
    }
    let piece = call.context.env.allowance.piece(request.heap, size, call.cancel)?;
    let piece = piece.ok_or_else(|| request.out_of_memory())?;
    let dedicated = dedicated::stays_dedicated(call, device, info)?;
    let lowered = lowered(&call.lowering(), info, request, dedicated)?;
    // SAFETY: `lowered` and its chain live in the arena, and import nothing.
    let (raw, caught) = watching(lowered.allocation_size, || unsafe { call_driver(device, lowered) });
    let raw = raw?;
    if !dedicated {
        let none = vk::ExternalMemoryHandleTypeFlags::empty();
        // SAFETY: the driver has just made it, and it is in no use.
        unsafe { clear(device, raw, (lowered.allocation_size, request.type_index), none) }?;
    }
    // SAFETY: as above; it was not mapped by a call, and is of a type that can be.
    let caught = caught.or_else(|| unsafe { map_of(&device.ash, raw, lowered.allocation_size) });
    let Some(file) = caught else {
        log::debug!("the driver maps memory of type {} otherwise than at start-up", request.type_index);
        // SAFETY: as above.
        unsafe { device.ash.free_memory(vk::DeviceMemory::from_raw(raw), None) };
        return Ok(None);
    };
    Ok(Some((raw, Made::DriverMapped(Arc::new(MemoryFile::new(file, piece))))))
}
