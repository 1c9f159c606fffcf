//! Memory that only the driver uses.
//!
//! If the driver can give such memory to another process, it is made exportable, so that a successor of this worker can have it: the process that has the
//! descriptor keeps the memory and its contents, even if this process dies. A driver gives imported memory another address, so a successor makes memory
//! with an address anew, at the same address, and has the device copy the contents (`memory::refill`).

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use super::dedicated;
use super::request::{Request, call_driver, clear, lowered};
use crate::backing::memory::{Exported, Made};
use crate::backing::pages::rounded;
use crate::context::error::Fault;
use crate::driver::generated::sys;
use crate::driver::memory_fds::{OPAQUE_FD, import};
use crate::execution::call::Call;
use crate::logical::device::{Addressing, Device};
use ash::vk;
use protocol::venus::generated::{self as venus, ChainStruct};

/// Allocates memory for a guest, of the memory that a snapshot brings along, if it does.
pub(super) fn allocate(
    call: &Call<'_>,
    device: &Device,
    info: &venus::MemoryAllocateInfo<'_>,
    request: &Request,
) -> Result<(u64, Made), Fault> {
    let credit = Some(request.credit(call, request.size)?);
    let dedicated = dedicated::stays_dedicated(call, device, info)?;
    let lowered = lowered(&call.lowering(), info, request, dedicated)?;
    if !dedicated {
        // Clearing works on whole words. A dedicated allocation is as large as its buffer or image demands.
        lowered.allocation_size = rounded(request.size, 1).ok_or(vk::Result::ERROR_OUT_OF_DEVICE_MEMORY)?;
    }
    let exported = exported(call, device, info, request, dedicated);
    // SAFETY: `lowered` and its chain live in the arena or in this function, and so does the descriptor.
    let call_driver = |lowered: &sys::MemoryAllocateInfo| unsafe { call_driver(device, lowered) };
    let raw = match &exported {
        None => call_driver(lowered),
        Some(Exported::ByDriver) => {
            let export = vk::ExportMemoryAllocateInfo::default().handle_types(OPAQUE_FD);
            let export = vk::ExportMemoryAllocateInfo { p_next: lowered.p_next, ..export };
            lowered.p_next = std::ptr::from_ref(&export).cast();
            call_driver(lowered)
        }
        Some(Exported::Imported(file)) => import(OPAQUE_FD, file, |mut import| {
            import.p_next = lowered.p_next;
            lowered.p_next = std::ptr::from_ref(&import).cast();
            call_driver(lowered)
        }),
    }?;
    let made = Made::private(credit, exported);
    if !dedicated && !request.filled {
        // SAFETY: the driver has just made it, and it is in no use.
        unsafe { clear(device, raw, (lowered.allocation_size, request.type_index), made.kinds()) }?;
    }
    Ok((raw, made))
}

/// Returns the way in which a successor can have the memory, if there is one.
fn exported(
    call: &Call<'_>,
    device: &Device,
    info: &venus::MemoryAllocateInfo<'_>,
    request: &Request,
    dedicated: bool,
) -> Option<Exported> {
    if let Some(file) = request.predecessor.as_ref().filter(|_| !request.replays) {
        return Some(Exported::Imported(file.clone()));
    }
    let exports = device.exports_memory(Addressing::of(request.replays));
    let survives = request.survives && exports && (!dedicated || is_for_image(call, info));
    survives.then_some(Exported::ByDriver)
}

/// Returns whether memory is dedicated to an image that may be bound to exportable memory.
fn is_for_image(call: &Call<'_>, info: &venus::MemoryAllocateInfo<'_>) -> bool {
    info.p_next.iter().any(|next| match next {
        ChainStruct::MemoryDedicatedAllocateInfo(dedicated) => {
            call.lowering().objects.image(dedicated.image).is_ok_and(|image| image.survives)
        }
        _ => false,
    })
}
