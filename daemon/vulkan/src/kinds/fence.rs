//! Fences of a guest.

use crate::context::cancel::Interrupted;
use crate::context::error::Fault;
use crate::context::ranked::{Exclusive, FENCE, Ranked};
use crate::logical::device::Device;
use crate::logical::submitted::Place;
use crate::objects::object::{Kind, State};
use ash::vk;
use parking_lot::{Condvar, Mutex};
use protocol::venus::generated as venus;
use std::time::Duration;

/// A fence of the guest, with the last submission that took it along.
#[derive(Debug)]
pub struct Fence {
    /// The host's handle.
    pub raw: vk::Fence,
    last: Ranked<FENCE, Option<Place>>,
    held: Mutex<Held>,
    released: Condvar,
}

/// The reasons for which the driver must not wait for, reset or destroy a fence.
#[derive(Debug, Default)]
struct Held {
    /// True while the submission that signals the fence waits at the gate: the driver must not wait for the fence.
    at_gate: bool,
    /// The number of threads of ours that wait for the fence: meanwhile it must not be reset or destroyed.
    watchers: u32,
}

impl Fence {
    /// A fence that was never in a submission.
    pub fn new(raw: vk::Fence) -> Self {
        let (last, held) = Default::default();
        Self { raw, last, held, released: Condvar::new() }
    }

    /// Locks the fence for a submission, unless one uses it already.
    pub(crate) fn lock_unused(&self, device: &Device) -> Result<Exclusive<'_, FENCE, Option<Place>>, Fault> {
        let last = self.last.lock();
        match last.is_none_or(|place| device.has_completed(place)) {
            true => Ok(last),
            false => Err(Fault::invalid("a fence that is in use is submitted again")),
        }
    }

    /// Returns whether the driver may still signal the fence.
    pub fn is_pending(&self, device: &Device) -> bool {
        let last = *self.last.lock();
        last.is_some_and(|place| !device.has_completed(place))
    }

    /// Notes in a trace, if one is taken, that the guest has just learned that the fence is signalled.
    pub fn tell_end(&self, device: &Device) {
        if device.is_traced()
            && let Some(place) = *self.last.lock()
        {
            device.tell_end(place);
        }
    }

    /// Notes that the submission that signals the fence begins or ends to wait at the gate.
    pub fn hold(&self, at_gate: bool) {
        self.held.lock().at_gate = at_gate;
        self.released.notify_all();
    }

    /// Returns whether the submission that signals the fence waits at the gate.
    pub fn is_held(&self) -> bool {
        self.held.lock().at_gate
    }

    /// Waits until the submission that signals the fence has left the gate, for no longer than `limit`.
    pub fn wait_released(&self, limit: Duration) {
        let mut held = self.held.lock();
        if held.at_gate {
            self.released.wait_for(&mut held, limit);
        }
    }

    /// Counts a thread of ours that is about to wait for the fence, which marks the end of a pending submission.
    pub fn watch(&self) {
        self.held.lock().watchers += 1;
    }

    /// Stops counting a thread that has seen the fence signalled.
    pub fn watched(&self) {
        self.held.lock().watchers -= 1;
        self.released.notify_all();
    }

    /// Returns whether a thread of ours waits for the fence.
    pub fn is_watched(&self) -> bool {
        self.held.lock().watchers > 0
    }

    /// Calls `reset`, unless a submission is going to signal the fence for which `wait` is false.
    ///
    /// # Errors
    ///
    /// The submission is pending, or `wait` failed.
    pub fn reset(
        &self,
        device: &Device,
        wait: impl FnOnce(Place) -> Result<bool, Interrupted>,
        reset: impl FnOnce() -> i32,
    ) -> Result<i32, Fault> {
        let last = self.last.lock();
        let may = match *last {
            Some(place) if !device.has_completed(place) => wait(place)?,
            _ => true,
        };
        match may {
            true => {
                // The fence is signalled, so a thread that waits for it is about to see this.
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
