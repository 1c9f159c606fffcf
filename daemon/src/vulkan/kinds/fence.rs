//! Fences of a guest.

use crate::vulkan::context::error::Fault;
use crate::vulkan::logical::device::Device;
use crate::vulkan::logical::submitted::Place;
use crate::vulkan::objects::object::{Kind, State};
use ash::vk;
use parking_lot::{Condvar, Mutex, MutexGuard};
use protocol::venus::generated as venus;
use std::time::Duration;

/// A fence of the guest, with the last submission that it was given to.
#[derive(Debug)]
pub struct Fence {
    /// The host's handle.
    pub raw: vk::Fence,
    last: Mutex<Option<Place>>,
    held: Mutex<Held>,
    released: Condvar,
}

/// Why the driver must not be asked for something.
#[derive(Debug, Default)]
struct Held {
    /// What signals it waits at the gate: it is not to be waited for.
    at_gate: bool,
    /// Threads of ours that wait for it: it is not to be reset or destroyed.
    watchers: u32,
}

impl Fence {
    /// One that was given to no submission.
    pub fn new(raw: vk::Fence) -> Self {
        let (last, held) = Default::default();
        Self { raw, last, held, released: Condvar::new() }
    }

    /// Locks the fence for a submission, unless one uses it already.
    pub fn lock_unused(&self, device: &Device) -> Result<MutexGuard<'_, Option<Place>>, Fault> {
        let last = self.last.lock();
        match last.is_none_or(|place| device.has_completed(place)) {
            true => Ok(last),
            false => Err(Fault::invalid("a fence is submitted that is in use")),
        }
    }

    /// Whether the driver may still signal it.
    pub fn is_pending(&self, device: &Device) -> bool {
        let last = *self.last.lock();
        last.is_some_and(|place| !device.has_completed(place))
    }

    /// What signals it begins or ends to wait at the gate.
    pub fn hold(&self, at_gate: bool) {
        self.held.lock().at_gate = at_gate;
        self.released.notify_all();
    }

    /// Whether it waits there.
    pub fn is_held(&self) -> bool {
        self.held.lock().at_gate
    }

    /// Waits for some time until it does not.
    pub fn wait_released(&self, limit: Duration) {
        let mut held = self.held.lock();
        if held.at_gate {
            self.released.wait_for(&mut held, limit);
        }
    }

    /// A thread of ours is about to wait for it: it marks the end of a pending submission.
    pub fn watch(&self) {
        self.held.lock().watchers += 1;
    }

    /// That thread has seen it signalled.
    pub fn watched(&self) {
        self.held.lock().watchers -= 1;
        self.released.notify_all();
    }

    /// Whether a thread of ours waits for it.
    pub fn is_watched(&self) -> bool {
        self.held.lock().watchers > 0
    }

    /// Calls `reset`, unless a submission is going to signal the fence for which `wait` is false.
    ///
    /// # Errors
    ///
    /// The submission is pending.
    pub fn reset(
        &self,
        device: &Device,
        wait: impl FnOnce(Place) -> bool,
        reset: impl FnOnce() -> i32,
    ) -> Result<i32, Fault> {
        let last = self.last.lock();
        match last.is_none_or(|place| device.has_completed(place) || wait(place)) {
            true => {
                // It is signalled, so whoever waits for it is about to see that.
                let mut held = self.held.lock();
                while held.watchers > 0 {
                    self.released.wait(&mut held);
                }
                drop(held);
                Ok(reset())
            }
            false => Err(Fault::invalid("a fence of a pending submission is reset")),
        }
    }
}

impl State for Fence {
    fn is_watched(&self) -> bool {
        Self::is_watched(self)
    }
}

impl Kind for venus::Fence {
    type State = Fence;
}
