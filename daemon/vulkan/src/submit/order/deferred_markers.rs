//! Submissions without a marker, which get one later if their end has to be known.
//!
//! A fence behind each of many short submissions costs a GPU some percent of its time. Programs wait for few of them, and a fence tells the end of
//! everything that was submitted to its queue before (Vulkan 7.3, of vkQueueSubmit's fence). So while no scheduler has to know each end, up to
//! [`MarkerTunables::run`] short submissions in a row go without a marker. A thread that has to know their end puts an empty submission with a marker
//! behind them: when one of their objects is to be destroyed or reset, when the guest's kernel waits for all, when the scheduler wants the GPU back,
//! and when a look at their run time finds them pending.
//!
//! A marker behind a long submission would come too late for the submissions before it. So a submission whose end a program can notice has a
//! marker of its own: one that signals semaphores, has a fence, or names events or queries. Before a submission that a program can hold up for
//! as long as it likes, by a semaphore or an event, the end of all earlier submissions in the driver is marked.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use super::batches::Group;
use super::meter::Meter;
use super::submissions::{LockedSubmissions, Submissions};
use crate::logical::device::Device;
use crate::logical::submitted::Number;
use ash::vk::{self, Handle as _};
use waiting::tunables;
use waiting::tunables::MarkerTunables;

/// Returns whether a group that is about to be submitted at once, without a fence of the guest, can do without a marker.
pub(super) fn spares_marker(submissions: &Submissions, group: &Group, meter: Option<&Meter>) -> bool {
    let MarkerTunables { run, short } = tunables().markers;
    let is_heard = group.is_free || group.signals() || group.is_heard;
    !is_heard && submissions.spares_marker(run) && meter.is_none_or(|meter| meter.allows_unmarked(short))
}

/// Marks the end of all submissions up to a number that the driver has. `handle` is the host's queue, locked.
pub(super) fn mark_up_to(
    device: &Device,
    handle: vk::Queue,
    submissions: &LockedSubmissions,
    number: Number,
) {
    let unmarked = submissions.lock().unmarked(number);
    if let Some(last) = unmarked {
        mark(device, handle, submissions, last);
    }
}

/// Marks a submission that the driver has, by an empty submission behind it, unless it is marked or has ended. `handle` is the host's queue, locked.
pub(super) fn mark(device: &Device, handle: vk::Queue, submissions: &LockedSubmissions, number: Number) {
    if !submissions.lock().begin_marking(number) {
        return;
    }
    let marker = device.markers.take(&device.ash).and_then(|marker| {
        // SAFETY: queue and marker are live, the queue is locked, and no other code knows the marker.
        match unsafe { device.ash.queue_submit(handle, &[], vk::Fence::from_raw(marker)) } {
            // On a lost device, every fence reports the loss, which counts as an end.
            Ok(()) | Err(vk::Result::ERROR_DEVICE_LOST) => Ok(marker),
            Err(error) => {
                device.markers.give(&device.ash, [marker]);
                Err(error)
            }
        }
    });
    let marker = marker.inspect_err(|error| log::debug!("cannot mark a submission: {error}")).ok();
    submissions.lock().mark(number, marker);
}
