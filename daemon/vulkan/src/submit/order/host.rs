//! The host's driver, which is asked for the state of submissions.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use super::waits::Driver;
use crate::logical::device::Device;
use crate::objects::table::Objects;
use protocol::venus::generated::Semaphore;

/// The host's driver, and the object table in which semaphores are looked up.
pub(crate) struct Host<'a> {
    /// The device of the queue.
    pub device: &'a Device,
    /// The object table of the context.
    pub objects: &'a Objects,
}

impl Driver for &Device {
    fn is_signalled(&self, marker: u64) -> bool {
        self.markers.is_signalled(&self.ash, marker)
    }

    fn has_reached(&self, _: Semaphore, _: u64, _: u64) -> bool {
        // Semaphores are looked up by `Host`.
        false
    }
}

impl Driver for Host<'_> {
    fn is_signalled(&self, marker: u64) -> bool {
        self.device.is_signalled(marker)
    }

    fn has_reached(&self, semaphore: Semaphore, raw: u64, value: u64) -> bool {
        // Locked until the driver has answered: another ring may be about to destroy the semaphore.
        let objects = self.objects.read();
        let lives = objects.get(semaphore).is_ok_and(|object| object.raw == raw);
        let Some(function) = self.device.table.get_semaphore_counter_value.filter(|_| lives) else {
            return true;
        };
        let mut reached = 0;
        // SAFETY: device and semaphore are live, and it is a timeline semaphore; the value has room.
        let result = unsafe { function(self.device.raw(), raw, &raw mut reached) };
        result < 0 || reached >= value
    }
}
