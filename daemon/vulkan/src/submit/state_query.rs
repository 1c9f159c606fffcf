//! State queries of a guest, whose answer may change at any moment: whether a fence is signalled, which value a semaphore's counter has.
//!
//! Other modules decide whether and for how long an answer is kept back.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use super::order::waits::Driver as _;
use crate::disposal::retired::InFlight;
use crate::driver::generated::sys;
use crate::execution::context::Context;
use crate::kinds::fence::Fence;
use crate::kinds::semaphore::Signal;
use crate::logical::device::Device;
use ash::vk::{self, Handle as _};
use parking_lot::Mutex;
use protocol::venus::generated as venus;
use std::sync::Arc;
use std::time::Duration;
use waiting::hold::{About, Query};

/// A state query of a guest about an object. The object is not destroyed while this value exists.
pub struct StateQuery<'r> {
    device: Arc<Device>,
    asked: Asked,
    about: About,
    // Dropped last: objects may be looked up only while it exists.
    _in_flight: InFlight<'r>,
}

enum Asked {
    /// The query asks whether a fence is signalled.
    Fence(Arc<Fence>),
    /// The query asks for the value after `was` on a timeline semaphore, which pending submissions may signal.
    Counter { raw: u64, was: u64, signal: Arc<Mutex<Signal>> },
}

impl Query for StateQuery<'_> {
    fn about(&self) -> About {
        self.about
    }

    fn told(&self) -> About {
        match &self.asked {
            Asked::Fence(fence) => {
                if self.device.is_traced() && self.is_answered() {
                    fence.tell_end(&self.device);
                }
                self.about
            }
            Asked::Counter { raw, .. } => About { counter: counter(&self.device, *raw), ..self.about },
        }
    }

    fn is_answered(&self) -> bool {
        match &self.asked {
            Asked::Fence(fence) => (&*self.device).is_signalled(fence.raw.as_raw()),
            Asked::Counter { raw, was, .. } => counter(&self.device, *raw) != Some(*was),
        }
    }

    fn is_open(&self) -> bool {
        let is_pending = match &self.asked {
            Asked::Fence(fence) => fence.is_pending(&self.device),
            Asked::Counter { was, signal, .. } => {
                was.checked_add(1).is_some_and(|next| signal.lock().promises(next))
            }
        };
        is_pending && !self.is_answered()
    }

    fn wait(&self, limit: Duration) {
        let nanoseconds = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        match &self.asked {
            Asked::Fence(fence) if fence.is_held() => fence.wait_released(limit),
            Asked::Fence(fence) => {
                // SAFETY: device and fence are live. Whatever the driver returns, the caller looks again.
                let _ = unsafe { self.device.ash.wait_for_fences(&[fence.raw], true, nanoseconds) };
            }
            Asked::Counter { raw, was, .. } => {
                let (Some(function), Some(next)) = (self.device.table.wait_semaphores, was.checked_add(1))
                else {
                    return std::thread::sleep(limit);
                };
                let info = sys::SemaphoreWaitInfo {
                    s_type: vk::StructureType::SEMAPHORE_WAIT_INFO.as_raw(),
                    p_next: std::ptr::null(),
                    flags: 0,
                    semaphore_count: 1,
                    p_semaphores: raw,
                    p_values: &raw const next,
                };
                // SAFETY: device and semaphore are live, and it is a timeline; `info` and what it points to live until the return.
                let _ = unsafe { function(self.device.raw(), &raw const info, nanoseconds) };
            }
        }
    }
}

/// Returns the value that a timeline semaphore has reached; none if the driver does not report it.
pub(super) fn counter(device: &Device, semaphore: u64) -> Option<u64> {
    let function = device.table.get_semaphore_counter_value?;
    let mut value = 0;
    // SAFETY: device and semaphore are live, and it is a timeline; the value has room.
    let result = unsafe { function(device.raw(), semaphore, &raw mut value) };
    (result >= 0).then_some(value)
}

/// Returns the state query that a command makes, if the answer may change without the guest's doing.
pub(crate) fn state_query<'c>(context: &'c Context, command: &venus::Command<'_>) -> Option<StateQuery<'c>> {
    match command {
        venus::Command::GetFenceStatus(c) => about_fence(context, c.fence),
        venus::Command::GetSemaphoreCounterValue(c) => about_counter(context, c.semaphore),
        _ => None,
    }
    .filter(|_| !context.failures.are_owed())
}

fn about_fence(context: &Context, id: venus::Fence) -> Option<StateQuery<'_>> {
    let in_flight = context.retired.enter();
    let (device, fence) = {
        let objects = context.objects.read();
        let object = objects.get(id).ok()?;
        (object.device.clone()?, object.get_shared::<venus::Fence>()?)
    };
    let about = About { id: id.0, counter: None };
    Some(StateQuery { device, asked: Asked::Fence(fence), about, _in_flight: in_flight })
}

fn about_counter(context: &Context, id: venus::Semaphore) -> Option<StateQuery<'_>> {
    let in_flight = context.retired.enter();
    let (device, raw, signal) = {
        let objects = context.objects.read();
        let object = objects.get(id).ok()?;
        let signal = object.get_shared::<venus::Semaphore>()?;
        if !matches!(*signal.lock(), Signal::Timeline { .. }) {
            return None;
        }
        (object.device.clone()?, object.raw, signal)
    };
    let was = counter(&device, raw)?;
    let (about, asked) = (About { id: id.0, counter: Some(was) }, Asked::Counter { raw, was, signal });
    Some(StateQuery { device, asked, about, _in_flight: in_flight })
}
