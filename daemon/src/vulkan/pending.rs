//! Whether submissions are pending: what they use is not reset, freed or destroyed before they have completed.
//!
//! A guest sees the completion of its work in memory that the work itself writes, so nobody tells; the markers of submissions are
//! looked at when somebody has to know. Lock order: a queue's handle, a fence, pools, the table of objects; submissions last.

use super::cancel::Cancel;
use super::device::Device;
use super::error::Fault;
use super::submission::Submitted;
use ash::vk;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// How long a command waits for a submission that uses its object. Programs may learn of a completion some microseconds before the
/// host's fence is signalled; whoever waits for longer has broken valid usage.
const PATIENCE: Duration = Duration::from_secs(1);

/// A fence of the guest, with the last submission that it was given to.
#[derive(Debug)]
pub struct Fence {
    /// The host's handle.
    pub raw: vk::Fence,
    last: Mutex<Submitted>,
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
    pub fn lock_unused(&self, device: &Device) -> Result<MutexGuard<'_, Submitted>, Fault> {
        let last = self.last.lock();
        match device.completed(*last) {
            true => Ok(last),
            false => Err(Fault::invalid("a fence is submitted that is in use")),
        }
    }

    /// Whether the driver may still signal it.
    pub fn is_pending(&self, device: &Device) -> bool {
        let last = *self.last.lock();
        !device.completed(last)
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
    pub fn reset(&self, device: &Device, cancel: &Cancel, reset: impl FnOnce() -> i32) -> Result<i32, Fault> {
        let last = self.last.lock();
        match device.wait_for(*last, cancel) {
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
    pub fn completed(&self, submitted: Submitted) -> bool {
        let Submitted { number, queues } = submitted;
        queues == 0
            || (self.queues.lock().iter())
                .filter(|queue| queue.bit() & queues != 0)
                .all(|queue| queue.has_completed(self, number))
    }

    /// Waits a moment until [`Self::completed`]; answers whether it is.
    pub fn wait_for(&self, submitted: Submitted, cancel: &Cancel) -> bool {
        let start = Instant::now();
        loop {
            if self.completed(submitted) {
                return true;
            }
            if cancel.is_cancelled() || start.elapsed() > PATIENCE {
                return false;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}
