//! A guest's request for memory, and the call of the driver that every back end makes of it.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use crate::context::allowance::{Lease, MemoryFile};
use crate::context::cause::InheritedError;
use crate::context::error::Fault;
use crate::context::resources::ResourceMemory;
use crate::context::restored::RestoredMemory;
use crate::driver::generated::sys;
use crate::driver::physical_device::heap;
use crate::execution::call::Call;
use crate::logical::device::Device;
use crate::lowering::handle_types;
use crate::lowering::lower::Lowering;
use crate::programs::alias::Part;
use ash::vk;
use config::Heap;
use protocol::venus::generated::{self as venus, ChainStruct};
use std::cell::Cell;
use std::sync::Arc;

/// A guest's request for memory, without the fields that go to the driver unchanged.
pub(super) struct Request {
    /// The size in bytes.
    pub size: u64,
    /// The type, as the guest names it.
    pub type_index: u32,
    /// The heap that memory of this type is in.
    pub heap: Heap,
    /// True if the guest sees the memory type as host-visible, and the back end makes the memory that the guest maps.
    pub visible: bool,
    /// True if the guest sees the memory type as host-visible, and the driver makes the memory that the guest maps.
    pub driver_mapped: bool,
    /// True if other contexts may import it.
    pub exported: bool,
    /// The resource that the memory imports, if any.
    pub import: Option<Arc<ResourceMemory>>,
    /// True if the memory has an address that can be had again.
    pub replays: bool,
    /// The opaque address that a snapshot brings along for the memory; 0 if the driver chooses.
    pub address: u64,
    /// True if a snapshot has the contents of the memory, so that it need not be cleared.
    pub filled: bool,
    /// True if a successor of this worker is to have the memory; the address of such memory, if it has one, can be had again.
    pub survives: bool,
    /// The descriptor that a snapshot brings along: the memory is made of it, or, if the memory has an address, filled out of it.
    pub predecessor: Option<Arc<MemoryFile>>,
    /// True once a limit of ours has refused the request, so that the driver was not asked.
    pub is_limited: Cell<bool>,
}

/// The parts of a snapshot that are brought along for one allocation.
#[derive(Debug, Default)]
pub(super) struct Brought<'r> {
    /// The pages that the allocation is made of.
    pub restored: Option<&'r RestoredMemory>,
    /// The opaque address of the allocation.
    pub address: Option<u64>,
    /// True if the contents come later.
    pub filled: bool,
    /// The descriptor of the driver's memory that the allocation is made of or filled out of.
    pub predecessor: Option<Arc<MemoryFile>>,
}

impl Brought<'_> {
    /// Returns whether no snapshot brings anything along for the allocation.
    pub(super) fn is_nothing(&self) -> bool {
        self.restored.is_none() && self.address.is_none() && !self.filled && self.predecessor.is_none()
    }
}

impl Request {
    /// Obtains leave to allocate memory that only the driver uses.
    pub(super) fn credit(&self, call: &Call<'_>, bytes: u64) -> Result<Lease, Fault> {
        let credit = call.context.env.allowance.credit(self.heap, bytes, call.cancel)?;
        credit.ok_or_else(|| self.out_of_memory())
    }

    /// Notes that a limit of ours is reached, and returns the error for it.
    pub(super) fn out_of_memory(&self) -> Fault {
        self.is_limited.set(true);
        match self.heap {
            Heap::Device => vk::Result::ERROR_OUT_OF_DEVICE_MEMORY,
            Heap::Host => vk::Result::ERROR_OUT_OF_HOST_MEMORY,
        }
        .into()
    }

    /// Reads the guest's description of an allocation, and the parts that a snapshot brings along for it.
    ///
    /// # Errors
    ///
    /// The guest names a type or a resource that is not there, or a snapshot brings along an address for memory that has none.
    pub(super) fn new(
        call: &Call<'_>,
        device: &Device,
        info: &venus::MemoryAllocateInfo<'_>,
        brought: &Brought<'_>,
    ) -> Result<Self, Fault> {
        let Brought { restored, address, filled, predecessor } = brought;
        let types = device.physical.memory.memory_types_as_slice();
        let Some(ty) = types.get(info.memory_type_index as usize) else {
            return Err(Fault::rule("a memory type that does not exist"));
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
            replays: false,
            address: address.unwrap_or_default(),
            filled: *filled || predecessor.is_some(),
            survives: device.physical.gpu.exported_types() & 1 << info.memory_type_index != 0,
            predecessor: predecessor.clone(),
            is_limited: Cell::new(false),
        };
        for next in info.p_next {
            match next {
                ChainStruct::ExportMemoryAllocateInfo(export) => {
                    request.exported = handle_types::is_dma_buf(export.handle_types);
                }
                ChainStruct::MemoryAllocateFlagsInfo(info) => {
                    request.replays |= device.replays_addresses && has_address(info);
                    request.survives &= device.replays_addresses || !has_address(info);
                }
                ChainStruct::ImportMemoryResourceInfoMESA(import) => {
                    request.import = Some(match restored {
                        // The resource may be gone.
                        Some(RestoredMemory { file, size, .. }) => {
                            Arc::new(ResourceMemory { file: Arc::clone(file), size: *size, mappable: true })
                        }
                        None => call.resource(import.resource_id)?,
                    });
                }
                _ => {}
            }
        }
        if address.is_some() && !request.replays {
            return Err(InheritedError::Broken("a snapshot has an address for memory without one").into());
        }
        if request.predecessor.is_some() && !request.survives {
            return Err(InheritedError::Broken(
                "a snapshot has the driver's memory for an allocation that cannot be made of it",
            )
            .into());
        }
        match &request.import {
            Some(import) if import.size < request.size => {
                Err(vk::Result::ERROR_INVALID_EXTERNAL_HANDLE.into())
            }
            _ => Ok(request),
        }
    }
}

fn has_address(info: &venus::MemoryAllocateFlagsInfo<'_>) -> bool {
    info.flags.contains(venus::MemoryAllocateFlags::DEVICE_ADDRESS)
}

/// Returns the guest's description in C form, with the chained structs that go to the host. The daemon decides where memory comes from and where it
/// may go, and only a snapshot can choose an address.
pub(super) fn lowered<'l>(
    l: &Lowering<'l>,
    info: &venus::MemoryAllocateInfo<'_>,
    request: &Request,
    dedicated: bool,
) -> Result<&'l mut sys::MemoryAllocateInfo, Fault> {
    let mut kept = Vec::new();
    for next in info.p_next {
        match next {
            ChainStruct::MemoryAllocateFlagsInfo(info) => kept.push(flags(l, info, request.replays)?),
            ChainStruct::MemoryDedicatedAllocateInfo(_) if dedicated => kept.push(*next),
            _ => {}
        }
    }
    if request.address != 0 {
        let again = venus::MemoryOpaqueCaptureAddressAllocateInfo {
            p_next: &[],
            opaque_capture_address: request.address,
        };
        kept.push(ChainStruct::MemoryOpaqueCaptureAddressAllocateInfo(l.arena.value(again)?));
    }
    let mut stripped = *info;
    stripped.p_next = l.arena.slice_copy(&kept)?;
    let lowered = l.out_pointer(Some(&stripped))?;
    // SAFETY: `lowered` is a struct of the arena that nothing else refers to.
    Ok(unsafe { &mut *lowered })
}

/// Returns a guest's flags as they go to the host. The flag for addresses that can be had again is set if the memory has an address and the device
/// can replay it, never because the guest sets it.
fn flags<'l>(
    l: &Lowering<'l>,
    info: &venus::MemoryAllocateFlagsInfo<'_>,
    replays: bool,
) -> Result<ChainStruct<'l>, Fault> {
    const FLAG: u32 = venus::MemoryAllocateFlags::DEVICE_ADDRESS_CAPTURE_REPLAY.0;
    let flags = info.flags.0 & !FLAG | if replays && has_address(info) { FLAG } else { 0 };
    let (flags, device_mask) = (venus::MemoryAllocateFlags(flags), info.device_mask);
    let info = venus::MemoryAllocateFlagsInfo { p_next: &[], flags, device_mask };
    Ok(ChainStruct::MemoryAllocateFlagsInfo(l.arena.value(info)?))
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

/// Clears memory that the driver has just made or that was used before, if the device clears any; frees it if that fails.
///
/// # Safety
///
/// `raw` is unmapped memory of the live device, of so many bytes, this type and made for these handle types, and in no use.
pub(super) unsafe fn clear(
    device: &Device,
    raw: u64,
    (size, type_index): (u64, u32),
    kinds: vk::ExternalMemoryHandleTypeFlags,
) -> Result<(), Fault> {
    let Some(cleaner) = &device.cleaner else { return Ok(()) };
    // SAFETY: the caller's promise; the queue is the device's.
    Ok(unsafe { cleaner.clear(&device.ash, device.own_queue(), &Part::whole(raw, size, type_index, kinds)) }?)
}

/// Returns the types among these bits with the same visibility to the guest as a resource; all of `bits` if there are none.
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
