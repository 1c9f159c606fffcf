//! A guest's request for memory, and the call of the driver that every back end makes of it.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use crate::context::allowance::Lease;
use crate::context::error::Fault;
use crate::context::resources::ResourceMemory;
use crate::driver::generated::sys;
use crate::driver::physical_device::heap;
use crate::execution::call::Call;
use crate::logical::device::Device;
use crate::lowering::handle_types;
use crate::lowering::lower::Lowering;
use ash::vk;
use config::Heap;
use protocol::venus::generated::{self as venus, ChainStruct};
use std::sync::Arc;

/// A guest's request for memory, apart from what goes to the driver as it is.
pub(super) struct Request {
    /// The size in bytes.
    pub size: u64,
    /// The type, as the guest names it.
    pub type_index: u32,
    /// The heap that memory of this type is in.
    pub heap: Heap,
    /// True if the guest sees its type as host-visible, and what it maps is made by the back end.
    pub visible: bool,
    /// True if the guest sees its type as host-visible, and what it maps is the driver's.
    pub driver_mapped: bool,
    /// True if other contexts may import it.
    pub exported: bool,
    /// The resource that it imports, if any.
    pub import: Option<Arc<ResourceMemory>>,
}

impl Request {
    /// Obtains leave to allocate memory that only the driver uses.
    pub(super) fn credit(&self, call: &Call<'_>, bytes: u64) -> Result<Lease, Fault> {
        let credit = call.context.env.allowance.credit(self.heap, bytes, call.cancel);
        credit.ok_or_else(|| self.out_of_memory())
    }

    /// Returns the error that says that a limit is reached.
    pub(super) fn out_of_memory(&self) -> Fault {
        match self.heap {
            Heap::Device => vk::Result::ERROR_OUT_OF_DEVICE_MEMORY,
            Heap::Host => vk::Result::ERROR_OUT_OF_HOST_MEMORY,
        }
        .into()
    }

    /// Reads the guest's description of an allocation.
    ///
    /// # Errors
    ///
    /// The guest names a type or a resource that is not there.
    pub(super) fn new(
        call: &Call<'_>,
        device: &Device,
        info: &venus::MemoryAllocateInfo<'_>,
    ) -> Result<Self, Fault> {
        let types = device.physical.memory.memory_types_as_slice();
        let Some(ty) = types.get(info.memory_type_index as usize) else {
            return Err(Fault::lost("a memory type that does not exist"));
        };
        let driver_mapped = device.physical.gpu.trial.driver_mapped.types & 1 << info.memory_type_index != 0;
        let host_visible = ty.property_flags.contains(vk::MemoryPropertyFlags::HOST_VISIBLE);
        let mut request = Self {
            size: info.allocation_size,
            type_index: info.memory_type_index,
            heap: heap(&device.physical.memory, ty),
            visible: host_visible && !driver_mapped,
            driver_mapped,
            exported: false,
            import: None,
        };
        for next in info.p_next {
            match next {
                ChainStruct::ExportMemoryAllocateInfo(export) => {
                    request.exported = handle_types::is_dma_buf(export.handle_types);
                }
                ChainStruct::ImportMemoryResourceInfoMESA(import) => {
                    request.import = Some(call.resource(import.resource_id)?);
                }
                _ => {}
            }
        }
        match &request.import {
            Some(import) if import.size < request.size => {
                Err(vk::Result::ERROR_INVALID_EXTERNAL_HANDLE.into())
            }
            _ => Ok(request),
        }
    }
}

/// Returns the guest's description in C form, with those chained structs that the host should hear of: where memory comes from and where it
/// may go is decided here, and addresses are not chosen.
pub(super) fn lowered<'l>(
    l: &Lowering<'l>,
    info: &venus::MemoryAllocateInfo<'_>,
    dedicated: bool,
) -> Result<&'l mut sys::MemoryAllocateInfo, Fault> {
    let kept = |next: &&ChainStruct<'_>| match next {
        ChainStruct::MemoryAllocateFlagsInfo(_) => true,
        ChainStruct::MemoryDedicatedAllocateInfo(_) => dedicated,
        _ => false,
    };
    let kept: Vec<_> = info.p_next.iter().filter(kept).copied().collect();
    let mut stripped = *info;
    stripped.p_next = l.arena.slice_copy(&kept)?;
    let lowered = l.out_pointer(Some(&stripped))?;
    // SAFETY: `lowered` is a struct of the arena that nothing else refers to.
    Ok(unsafe { &mut *lowered })
}

/// Calls the driver to allocate memory.
///
/// # Safety
///
/// Every pointer in the chain of `info` is valid, and pages that the chain imports outlive the memory.
pub(super) unsafe fn call_driver(device: &Device, info: &sys::MemoryAllocateInfo) -> Result<u64, Fault> {
    let Some(function) = device.table.allocate_memory else { return Err(Fault::missing("vkAllocateMemory")) };
    let mut raw = 0u64;
    // SAFETY: the device is live; the rest is the caller's promise.
    let result = unsafe { function(device.raw(), info, std::ptr::null(), &raw mut raw) };
    if result < 0 { Err(Fault::Failed(result)) } else { Ok(raw) }
}

/// Returns those of the types with these bits whose visibility to the guest is that of a resource; all of them if there are none.
pub(super) fn alike(device: &Device, bits: u32, mappable: bool) -> u32 {
    let types = device.physical.memory.memory_types_as_slice().iter().enumerate();
    let visible = types
        .filter(|(_, ty)| ty.property_flags.contains(vk::MemoryPropertyFlags::HOST_VISIBLE))
        .fold(0, |bits, (i, _)| bits | 1 << i);
    match bits & if mappable { visible } else { !visible } {
        0 => bits,
        alike => alike,
    }
}
