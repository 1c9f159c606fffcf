//! Buffers that are made twice until the guest binds them to memory.
//!
//! Vulkan wants a buffer to say at its creation that it may be bound to imported memory, and a driver may then accept less memory for it:
//! NVIDIA's does not accept device memory that the processor can reach. A guest does not know that the memory that it maps is imported. So if both
//! kinds of memory are offered (`vulkan::memory::driver_mapped`), both buffers are made; one is destroyed when the guest binds its buffer. The same
//! is done if memory of the driver's own is given to successors (`vulkan::memory::private`), because a buffer has to declare that, too.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use super::device::{Addressing, Device};
use ash::vk::{self, Handle as _};
use parking_lot::Mutex;
use protocol::venus::generated as venus;
use rustc_hash::FxHashMap;

/// The second buffers of a device, by the buffers that guests' ids stand for.
#[derive(Debug)]
pub struct DualBuffers {
    /// Types of memory that only a buffer for memory of the driver's own may be bound to.
    own: u32,
    /// For each buffer for the driver's own memory, its twin for imported memory.
    for_imports: Mutex<FxHashMap<u64, u64>>,
}

impl DualBuffers {
    /// Creates an empty table; `own` has the types of the driver's own memory, a bit each.
    pub fn new(own: u32) -> Self {
        Self { own, for_imports: Mutex::default() }
    }

    /// Notes a pair of this addressing, and returns the buffer that stands for both. If a guest would see a difference, this is the buffer for
    /// imports, and the other is destroyed.
    ///
    /// # Safety
    ///
    /// Both are fresh buffers of this device.
    pub unsafe fn pair(&self, device: &Device, own: u64, for_imports: u64, addressing: Addressing) -> u64 {
        let [one, other] = [own, for_imports].map(|raw| {
            // SAFETY: the caller's promise.
            let needs = unsafe { device.ash.get_buffer_memory_requirements(vk::Buffer::from_raw(raw)) };
            (needs.size, needs.alignment, needs.memory_type_bits & !self.own)
        });
        if one != other {
            log::debug!(
                "a buffer for imported memory has the requirements {other:?}, its twin for the driver's own memory has {one:?}"
            );
            // SAFETY: as above; no other code knows it.
            unsafe { device.destroy(venus::ObjectType::BUFFER, own) };
            device.export_no_more(addressing);
            return for_imports;
        }
        self.for_imports.lock().insert(own, for_imports);
        own
    }

    /// Removes and returns the second buffer of a buffer that is bound or destroyed now, if it has one.
    pub fn part(&self, own: u64) -> Option<u64> {
        self.for_imports.lock().remove(&own)
    }
}
