//! Memory with an address that only the driver uses: a successor makes it anew at that address. The device then copies the contents out of the old memory,
//! which the successor imports by its descriptor. It frees that while the program goes on. All but the copy can be done while the predecessor still runs.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use crate::backing::memory::Memory;
use crate::context::allowance::MemoryFile;
use crate::context::cause::{DriverError, InheritedError};
use crate::context::error::ContextLost;
use crate::disposal::unfilled::Refill;
use crate::driver::memory_fds::{OPAQUE_FD, import};
use crate::execution::context::Context;
use crate::logical::device::Device;
use crate::objects::object::Object;
use crate::objects::table::Table;
use crate::programs::alias::Part;
use crate::programs::copy::record_copies;
use ash::vk;
use protocol::venus::generated as venus;
use std::sync::Arc;

/// Returns whether a successor can take an allocation that the driver gives away: it is as it was, or can be filled.
pub(crate) fn is_possible(object: &Object, memory: &Memory) -> bool {
    let has_queue = || object.device.as_ref().is_some_and(|device| device.own_queue().is_some());
    !memory.replays || memory.copied_bytes().is_some() && has_queue()
}

/// Forgets the allocations that are gone: what they were before is free.
pub(crate) fn forget_gone(context: &Context) {
    context.unfilled.forget_gone(&context.objects.read());
}

/// Imports what all allocations were before that were made anew, and forgets those that are gone.
///
/// # Errors
///
/// One is not there, or the driver fails.
pub(crate) fn import_all(context: &Context) -> Result<(), ContextLost> {
    forget_gone(context);
    let table = context.objects.read();
    for (id, file) in context.restored.take_refilled() {
        context.unfilled.add(made_anew(&table, id, &file)?);
    }
    Ok(())
}

/// Fills all allocations that were made anew out of what they were before, if they are still there.
///
/// # Errors
///
/// The driver fails, or as those of [`import_all`].
pub(crate) fn refill(context: &Context) -> Result<(), ContextLost> {
    import_all(context)?;
    let refills = context.unfilled.take();
    for of_device in refills.chunk_by(|one, other| Arc::ptr_eq(&one.device, &other.device)) {
        let device = &of_device[0].device;
        let copied = device.own_queue().ok_or(vk::Result::ERROR_FEATURE_NOT_PRESENT).and_then(|queue| {
            let pairs = of_device.iter().map(|refill| (refill.from, refill.to));
            // SAFETY: the queue and all memory are the device's, which is live; the context is built up, so no other code uses the memory, and what
            // is copied from is freed behind this.
            unsafe {
                queue.run(&device.ash, |commands, aliases| {
                    record_copies(&device.ash, commands, pairs, aliases)
                })
            }
        });
        if let Err(why) = copied {
            // The device may still read it. This process ends.
            std::mem::forget(refills);
            return Err(DriverError::fails("the device does not copy memory", why).into());
        }
    }
    context.given_up.free(refills);
    Ok(())
}

/// Returns an allocation that was made anew, after importing what it was before.
fn made_anew(table: &Table, id: u64, file: &MemoryFile) -> Result<Refill, ContextLost> {
    let object = table.get(venus::DeviceMemory(id)).ok();
    let found = object.and_then(|object| {
        let memory = object.get::<venus::DeviceMemory>()?;
        let (bytes, key) = (memory.copied_bytes()?, memory.key?);
        let to = Part::whole(object.raw, bytes, key.type_index, memory.made.kinds());
        Some((object.usage.serial(), Arc::clone(object.device.as_ref()?), to))
    });
    let (serial, device, to) = found.ok_or(InheritedError::Object {
        kind: "memory",
        id,
        is: "does not exist, but a snapshot has its contents",
    })?;
    let memory = imported(&device, &to, file)
        .map_err(|why| DriverError::fails("the driver's memory cannot be imported", why))?;
    let from = Part { memory, kinds: OPAQUE_FD, ..to };
    Ok(Refill { memory: (venus::DeviceMemory(id), serial), device, from, to })
}

/// Imports memory that is like this part.
fn imported(device: &Device, like: &Part, file: &MemoryFile) -> Result<vk::DeviceMemory, vk::Result> {
    let info =
        vk::MemoryAllocateInfo::default().allocation_size(like.size).memory_type_index(like.type_index);
    import(OPAQUE_FD, file, |mut import| {
        // SAFETY: the device is live; `info` and its chain live until the call returns.
        unsafe { device.ash.allocate_memory(&info.push_next(&mut import), None) }
    })
}
