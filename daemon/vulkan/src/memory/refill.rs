//! Memory with an address that only the driver uses: a successor makes it anew at that address. The device then copies the contents out of the old memory,
//! which the successor imports by its descriptor, and later frees while the program goes on. Only the copy needs the predecessor at rest.

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

/// The reason why a device cannot copy the contents of memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NotCopied {
    /// The memory is dedicated to an object of the guest.
    Dedicated,
    /// The device has no queue of ours.
    NoQueue,
}

/// Returns the bytes of memory whose contents the device can copy.
///
/// # Errors
///
/// The device cannot copy them.
pub(crate) fn copied_bytes(object: &Object, memory: &Memory) -> Result<u64, NotCopied> {
    let bytes = memory.copied_bytes().ok_or(NotCopied::Dedicated)?;
    let queue = object.device.as_ref().and_then(|device| device.own_queue());
    queue.map(|_| bytes).ok_or(NotCopied::NoQueue)
}

/// Returns whether a successor can take an allocation that the driver gives away, as it is or by filling a new one.
pub(crate) fn is_possible(object: &Object, memory: &Memory) -> bool {
    !memory.replays || copied_bytes(object, memory).is_ok()
}

/// Forgets the allocations that are gone, and frees their old memory.
pub(crate) fn forget_gone(context: &Context) {
    context.unfilled.forget_gone(&context.objects.read());
}

/// Imports the old memory of all allocations that were made anew, and forgets the allocations that are gone.
///
/// # Errors
///
/// An allocation is missing, or the driver fails.
pub(crate) fn import_all(context: &Context) -> Result<(), ContextLost> {
    forget_gone(context);
    let table = context.objects.read();
    for (id, file) in context.restored.take_refilled() {
        context.unfilled.add(made_anew(&table, id, &file)?);
    }
    Ok(())
}

/// Fills all allocations that were made anew out of their old memory, if these allocations still exist.
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
            // The device may still read the old memory. This process ends.
            std::mem::forget(refills);
            return Err(DriverError::fails("the device does not copy memory", why).into());
        }
    }
    context.given_up.free(refills);
    Ok(())
}

/// Imports the old memory of an allocation that was made anew, and returns both.
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
