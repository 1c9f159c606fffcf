//! Fences and semaphores of a snapshot: submissions of ours set them to the states that they had, and the worker waits for these submissions.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use super::order::waits::Driver as _;
use super::queue::Queue;
use super::sync;
use crate::context::cause::InheritedError;
use crate::context::error::{Fault, inconsistent};
use crate::driver::markers::WAIT_SLICE_NS;
use crate::execution::call::Call;
use crate::kinds::fence::Fence;
use crate::kinds::semaphore::Signal;
use crate::logical::device::Device;
use crate::logical::timeline::Timeline as _;
use crate::objects::object::Object;
use crate::objects::table::Table;
use ash::vk::{self, Handle as _};
use parking_lot::Mutex;
use protocol::venus::generated as venus;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The longest wait for an empty submission.
const PATIENCE: Duration = Duration::from_secs(10);

/// Returns whether a fence is signalled.
pub(crate) fn is_signalled(fence: &Fence, device: &Device) -> bool {
    device.is_signalled_now(fence.raw)
}

/// The state of a semaphore that a snapshot has to bring back.
pub(crate) enum Semaphore {
    /// A timeline at this value; none if the driver does not say.
    Timeline(Option<u64>),
    /// A binary semaphore that is signalled, or is not.
    Binary(bool),
    /// A binary semaphore that a submission is going to signal.
    Pending,
}

/// Returns the state of a semaphore of a device on which no submission is pending.
///
/// A driver may report that a submission is complete a moment before the counters of its timelines have the values that it signals, as lavapipe
/// does. The counters will have them, so this function returns the promised value if it is greater.
pub(crate) fn semaphore(object: &Object, signal: &Mutex<Signal>, device: &Device) -> Semaphore {
    match &*signal.lock() {
        Signal::Timeline { promised } => {
            let counter = super::state_query::counter(device, object.raw);
            Semaphore::Timeline(counter.map(|value| value.max(*promised)))
        }
        Signal::Binary(None) => Semaphore::Binary(false),
        Signal::Binary(Some(by)) if by.is_complete() => Semaphore::Binary(true),
        Signal::Binary(Some(_)) => Semaphore::Pending,
    }
}

impl Device {
    fn is_signalled_now(&self, fence: vk::Fence) -> bool {
        (&self).is_signalled(fence.as_raw())
    }
}

/// Makes a fence signalled, or not signalled.
///
/// # Errors
///
/// There is no such fence, or the driver refuses.
pub(crate) fn set_fence(call: &Call<'_>, id: venus::Fence, signalled: bool) -> Result<(), Fault> {
    let (fence, device) = found(&call.context.objects.read(), id)?;
    if device.is_signalled_now(fence.raw) == signalled {
        return Ok(());
    }
    if !signalled {
        // SAFETY: device and fence are live, and nothing was submitted.
        return Ok(unsafe { device.ash.reset_fences(&[fence.raw]) }?);
    }
    Queue::first_of(call.context, &device)?.order().signal_fence(&device, fence.raw)?;
    let start = Instant::now();
    loop {
        // SAFETY: device and fence are live.
        match unsafe { device.ash.wait_for_fences(&[fence.raw], true, WAIT_SLICE_NS) } {
            Err(vk::Result::TIMEOUT) if start.elapsed() < PATIENCE && !call.cancel.is_cancelled() => {}
            other => return Ok(other?),
        }
    }
}

/// Signals a binary semaphore.
///
/// # Errors
///
/// There is no such semaphore, or the driver refuses.
pub(crate) fn signal(call: &Call<'_>, id: venus::Semaphore) -> Result<(), Fault> {
    let (signal, device) = found(&call.context.objects.read(), id)?;
    if !matches!(*signal.lock(), Signal::Binary(None)) {
        return Err(InheritedError::Broken(
            "a semaphore to be signalled is not binary, or is signalled already",
        )
        .into());
    }
    sync::signal(call, &device, id)?;
    let queue = Queue::first_of(call.context, &device)?;
    let (start, signalled) = (Instant::now(), || match &*signal.lock() {
        Signal::Binary(Some(by)) => by.is_complete(),
        _ => true,
    });
    loop {
        queue.refresh();
        match signalled() {
            true => return Ok(()),
            false if start.elapsed() < PATIENCE && !call.cancel.is_cancelled() => {
                std::thread::sleep(Duration::from_micros(50));
            }
            false => return Err(vk::Result::TIMEOUT.into()),
        }
    }
}

fn found<H: crate::objects::object::Kind>(
    table: &Table,
    id: H,
) -> Result<(Arc<H::State>, Arc<Device>), Fault> {
    let object = table.get(id)?;
    let device = object.device.clone().ok_or_else(inconsistent)?;
    Ok((object.shared::<H>()?, device))
}
