//! Addresses of buffers that the guest knows (`VK_KHR_buffer_device_address`). The guest may have written them into memory, so a successor needs the
//! same addresses, and takes nothing over if its driver gives others.
//!
//! If the driver can capture and replay addresses, the successor's driver gets those of all buffers and memory that have one; each address comes
//! before the command that makes its object. Otherwise addresses are the same if memory is mapped at the same place.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use super::step::Step;
use crate::context::cause::InheritedError;
use crate::context::error::ContextLost;
use crate::driver::generated::sys;
use crate::execution::context::Context;
use crate::kinds::buffer::BufferFacts;
use crate::logical::device::Device;
use crate::objects::object::Object;
use crate::objects::table::Table;
use ash::vk;
use protocol::venus::generated as venus;

/// Adds the step that compares addresses, behind those that bind buffers, if the guest knows any.
pub(super) fn save(context: &Context, steps: &mut Vec<Step>) {
    let table = context.objects.read();
    let known = |object: &Object| {
        let buffer = object.get::<venus::Buffer>().filter(|buffer| buffer.is_addressed())?;
        buffer.bound().filter(|bound| bound.is_to_live(&table))?;
        address(object, buffer)
    };
    let all = table.objects().filter(|(.., result)| result.is_none());
    let mut all: Vec<_> = all.filter_map(|(id, object, _)| Some((id, known(object)?))).collect();
    if !all.is_empty() {
        all.sort_unstable();
        steps.push(Step::Addresses(all));
    }
}

/// Returns the step before the command that makes a buffer or memory: its opaque address, if it has one that can be had again.
///
/// Some drivers look for a buffer's address in its memory, so a buffer without memory has no address.
pub(super) fn replayed(table: &Table, id: u64, object: &Object) -> Option<Step> {
    let device = object.device.as_deref()?;
    let memory = object.get::<venus::DeviceMemory>().filter(|memory| memory.replays);
    let buffer = object.get::<venus::Buffer>().filter(|buffer| buffer.replays);
    let bound = buffer.and_then(|buffer| buffer.bound()).filter(|_| !table.is_only_destroyed(id));
    let address = if memory.is_some() {
        let function = device.table.get_device_memory_opaque_capture_address?;
        let info = sys::DeviceMemoryOpaqueCaptureAddressInfo {
            s_type: vk::StructureType::DEVICE_MEMORY_OPAQUE_CAPTURE_ADDRESS_INFO.as_raw(),
            p_next: std::ptr::null(),
            memory: object.raw,
        };
        // SAFETY: device and memory are live, and `info` lives until the call returns.
        unsafe { function(device.raw(), &raw const info) }
    } else if bound.is_some_and(|bound| bound.is_to_live(table)) {
        asked(device.table.get_buffer_opaque_capture_address?, device, object)
    } else {
        0
    };
    (address != 0).then_some(Step::Replayed { id, address })
}

/// Demands that buffers have these addresses.
///
/// # Errors
///
/// A buffer has another address, or is missing.
pub(super) fn compare(context: &Context, all: &[(u64, u64)]) -> Result<(), ContextLost> {
    let table = context.objects.read();
    for (id, wanted) in all {
        let object = table.get(venus::Buffer(*id)).ok();
        let buffer = object.and_then(|object| Some((object, object.get::<venus::Buffer>()?)));
        let Some((_, buffer)) = buffer.filter(|(object, buffer)| address(object, buffer) == Some(*wanted))
        else {
            return Err(InheritedError::OtherAddress(*id).into());
        };
        buffer.note_address();
    }
    Ok(())
}

/// Returns the address of a buffer that has memory.
fn address(object: &Object, buffer: &BufferFacts) -> Option<u64> {
    let device = object.device.as_deref()?;
    let function = device.table.get_buffer_device_address.filter(|_| buffer.has_memory())?;
    Some(asked(function, device, object))
}

/// A question about a buffer whose answer is an address.
type Question = unsafe extern "system" fn(u64, *const sys::BufferDeviceAddressInfo) -> u64;

/// Returns the answer of a driver's function about a buffer that has memory.
fn asked(function: Question, device: &Device, object: &Object) -> u64 {
    let info = sys::BufferDeviceAddressInfo {
        s_type: vk::StructureType::BUFFER_DEVICE_ADDRESS_INFO.as_raw(),
        p_next: std::ptr::null(),
        buffer: object.raw,
    };
    // SAFETY: device and buffer are live, and `info` lives until the call returns.
    unsafe { function(device.raw(), &raw const info) }
}
