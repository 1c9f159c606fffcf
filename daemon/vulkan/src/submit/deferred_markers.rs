//! Submissions without a marker, which get one later if their end has to be known.
//!
//! A fence behind each of many short submissions costs a GPU some percent of its time. Programs wait for few of them, and a fence tells the
//! end of everything that was submitted to its queue before (Vulkan 7.3, of vkQueueSubmit's fence). So while no scheduler has to know each
//! end, what is short goes without one, up to [`MarkerTunables::run`] in a row. A thread that has to know more has an empty submission with a marker put behind
//! them: when an object of theirs is to be destroyed or reset, when the guest's kernel waits for all, when the scheduler wants the GPU
//! back, and when a look at how long they run finds them pending.
//!
//! A marker behind what takes long would come too late for what is before it. So what a program can hear of has a marker of its own: it
//! signals semaphores, has a fence, or names events or queries. And before what can be held up for as long as a program likes, by a
//! semaphore or an event, the end of all that the driver has is marked.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use super::batches::Group;
use super::queue::{Queue, Scheduled};
use super::submission::{Submission, Submissions};
use crate::logical::device::Device;
use crate::logical::submitted::Number;
use crate::programs::stamps::Stamps;
use ash::vk::{self, Handle as _};
use std::sync::Weak;
use waiting::tunables;
use waiting::tunables::MarkerTunables;

impl Queue {
    /// Returns whether a group that is about to be submitted at once, without a fence of the guest, can do without a marker.
    pub(super) fn spares_marker(&self, submissions: &Submissions, group: &Group) -> bool {
        let MarkerTunables { run, short } = tunables().markers;
        let is_short = |scheduled: &Scheduled| {
            let stamps = scheduled.stamps.get().and_then(Option::as_ref);
            stamps.and_then(Stamps::usual_length).is_some_and(|length| length <= short)
        };
        // In a trace each has times of its own.
        let may = |scheduled: &Scheduled| {
            let gate = &scheduled.gate;
            !gate.is_traced() && (!gate.holds() || gate.is_open() && is_short(scheduled))
        };
        let is_heard = group.is_free || group.signals() || group.is_heard;
        !is_heard && submissions.spares_marker(run) && self.scheduled.as_ref().is_none_or(may)
    }

    /// Has the end marked of all that the driver has up to a number, unless another thread submits just now: the caller has to ask again then.
    /// Waits for no lock of a queue, as others may be held.
    pub(super) fn mark_up_to(&self, device: &Device, number: Number) {
        if let Some(handle) = self.handle.try_lock() {
            self.mark_unmarked(device, *handle, number);
        }
    }

    /// Has the end marked of all that the driver has. `handle` is the host's queue, locked.
    pub(super) fn mark_last(&self, device: &Device, handle: vk::Queue) {
        self.mark_unmarked(device, handle, Number::MAX);
    }

    fn mark_unmarked(&self, device: &Device, handle: vk::Queue, number: Number) {
        let unmarked = self.submissions.lock().unmarked(number);
        if let Some(last) = unmarked {
            self.mark(device, handle, &last);
        }
    }

    /// Marks a pending submission, by an empty one, unless it is marked. `handle` is the host's queue, locked.
    fn mark(&self, device: &Device, handle: vk::Queue, submission: &Submission) {
        let begun = {
            let _stays = self.submissions.lock();
            submission.begin_marking()
        };
        if !begun {
            return;
        }
        let marker = device.markers.take(&device.ash).and_then(|marker| {
            // SAFETY: queue and marker are live, the queue is locked, and no other code knows the marker.
            match unsafe { device.ash.queue_submit(handle, &[], vk::Fence::from_raw(marker)) } {
                // A lost device says so of any fence, which is an end.
                Ok(()) | Err(vk::Result::ERROR_DEVICE_LOST) => Ok(marker),
                Err(error) => {
                    device.markers.give(&device.ash, [marker]);
                    Err(error)
                }
            }
        });
        submission.marked(marker.inspect_err(|error| log::debug!("no marker: {error}")).ok());
    }

    /// Waits until a submission that the caller awaits has ended, as far as the driver tells.
    pub(super) fn wait_for(queue: &Weak<Self>, device: &Device, submission: &Submission) {
        if let Some(marker) = Self::marker_of(queue, device, submission) {
            device.markers.wait(&device.ash, marker);
        }
    }

    /// Returns the marker that tells the end of a submission that the caller awaits, if the driver can tell it.
    pub(super) fn marker_of(queue: &Weak<Self>, device: &Device, submission: &Submission) -> Option<u64> {
        if submission.marker().is_none()
            && let Some(queue) = queue.upgrade()
        {
            let handle = queue.handle.lock();
            queue.mark(device, *handle, submission);
        }
        submission.marker()
    }
}
