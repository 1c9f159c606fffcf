//! Whether submissions are pending: what they use is not reset, freed or destroyed before they have completed.
//!
//! A guest sees the completion of its work in memory that the work itself writes, so nobody tells; the markers of submissions are
//! looked at when somebody has to know. Lock order: a queue's handle, a fence, pools, the table of objects; submissions last.

use super::call::Call;
use super::cancel::Cancel;
use super::device::Device;
use super::error::Fault;
use super::objects::Objects;
use super::renderer::Renderer;
use super::submitted::{Place, Submitted};
use ash::vk;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// How long a command waits for a submission that uses its object and that has not begun. Programs may learn of a completion some
/// microseconds before the host's fence is signalled; whoever waits for longer has broken valid usage, or we have lost sight of an end.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time between two looks, and between two later on.
const LOOK_EVERY: Duration = Duration::from_micros(50);
const LOOK_SELDOM: Duration = Duration::from_millis(1);

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

    /// Calls `reset`, unless a pending submission is going to signal the fence.
    pub fn reset(&self, call: &Call<'_>, device: &Device, reset: impl FnOnce() -> i32) -> Result<i32, Fault> {
        let last = self.last.lock();
        let wait = |place: Place| device.wait_for(call.renderer, &place.into(), call.cancel, "vkResetFences");
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

impl Device {
    /// Whether submissions have completed. Queues that they are not on may have older work, which has nothing to do with them.
    pub fn completed(&self, submitted: &Submitted) -> bool {
        submitted.is_empty() || submitted.places().all(|place| self.has_completed(place))
    }

    /// Whether a submission has completed.
    fn has_completed(&self, place: Place) -> bool {
        let queues = self.queues.lock();
        let queue = queues.iter().find(|queue| queue.ring_idx == place.ring_idx);
        queue.is_none_or(|queue| queue.has_completed(self, place.number))
    }

    /// Waits until submissions have completed that use what `command` is about; answers whether they have. Not for long if they cannot
    /// even have begun: then the program has broken valid usage. Whatever runs may be over for the program already.
    pub fn wait_for(
        &self,
        renderer: &Renderer,
        submitted: &Submitted,
        cancel: &Cancel,
        command: &'static str,
    ) -> bool {
        let (start, mut is_told) = (Instant::now(), false);
        loop {
            if self.completed(submitted) {
                return true;
            }
            if cancel.is_cancelled() {
                return false;
            }
            if start.elapsed() <= PATIENCE {
                std::thread::sleep(LOOK_EVERY);
                continue;
            }
            let is_blocked = self.is_blocked(&renderer.objects, submitted);
            if is_blocked || !is_told {
                renderer.allowance.overdue(command, is_blocked);
                is_told = true;
            }
            if is_blocked {
                return false;
            }
            std::thread::sleep(LOOK_SELDOM);
        }
    }

    /// Whether one of these submissions cannot have begun.
    fn is_blocked(&self, objects: &Objects, submitted: &Submitted) -> bool {
        let queues = self.queues.lock().clone();
        // They wait for each other.
        queues.iter().for_each(|queue| queue.refresh());
        submitted.places().any(|place| {
            let queue = queues.iter().find(|queue| queue.ring_idx == place.ring_idx);
            queue.is_some_and(|queue| queue.is_blocked(self, objects, place.number))
        })
    }
}
