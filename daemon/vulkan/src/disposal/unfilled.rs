//! Memory that a successor has made anew, and that is filled when the successor takes the context over. The old memory stays imported until then.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use crate::logical::device::Device;
use crate::objects::table::Table;
use crate::programs::alias::Part;
use parking_lot::Mutex;
use protocol::venus::generated as venus;
use std::sync::Arc;

/// The memory that is to be filled.
#[derive(Default)]
pub struct Unfilled(Mutex<Vec<Refill>>);

impl Unfilled {
    /// Adds memory that is to be filled.
    pub(crate) fn add(&self, refill: Refill) {
        self.0.lock().push(refill);
    }

    /// Takes all memory that is to be filled.
    pub(crate) fn take(&self) -> Vec<Refill> {
        std::mem::take(&mut *self.0.lock())
    }

    /// Forgets the memory of a device that is about to be destroyed: it need not be filled any more.
    pub fn forget(&self, device: &Arc<Device>) {
        let gone: Vec<_> = self.0.lock().extract_if(.., |one| Arc::ptr_eq(&one.device, device)).collect();
        drop(gone);
    }

    /// Forgets the allocations that are not in the table any more.
    pub(crate) fn forget_gone(&self, table: &Table) {
        let gone: Vec<_> = self.0.lock().extract_if(.., |one| !one.is_there(table)).collect();
        drop(gone);
    }
}

/// An allocation that is to be filled, and its old memory, which stays imported as long as this value lives.
pub(crate) struct Refill {
    /// The allocation, and its place in the order of creation.
    pub memory: (venus::DeviceMemory, u64),
    /// The device of both.
    pub device: Arc<Device>,
    /// The imported memory.
    pub from: Part,
    /// The memory that is to be filled.
    pub to: Part,
}

impl Refill {
    /// Returns whether the allocation was not freed meanwhile.
    fn is_there(&self, table: &Table) -> bool {
        let (memory, serial) = self.memory;
        table.get(memory).is_ok_and(|object| object.usage.serial() == serial)
    }
}

impl Drop for Refill {
    fn drop(&mut self) {
        // SAFETY: the device is live and done with the memory, which no other code knows.
        unsafe { self.device.ash.free_memory(self.from.memory, None) };
    }
}
