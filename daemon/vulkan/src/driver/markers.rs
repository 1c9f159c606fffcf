//! Fences of ours that mark the ends of submissions, used again and again.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use ash::vk::{self, Handle as _};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Longest single wait inside the driver, in nanoseconds; longer waits consist of such slices, so that they can be cancelled.
pub(crate) const WAIT_SLICE_NS: u64 = 100_000_000;

/// The markers of a device that are in no use.
#[derive(Debug, Default)]
pub struct Markers {
    free: Mutex<Vec<vk::Fence>>,
    /// The driver has answered that the device is lost.
    is_lost: AtomicBool,
    /// True if the driver has given another answer than that a submission is complete, or is not complete yet.
    has_failed: AtomicBool,
}

impl Markers {
    /// An unsignalled fence.
    pub fn take(&self, device: &ash::Device) -> Result<u64, vk::Result> {
        if let Some(marker) = self.free.lock().pop() {
            return Ok(marker.as_raw());
        }
        // SAFETY: the device is live.
        unsafe { device.create_fence(&vk::FenceCreateInfo::default(), None) }.map(vk::Fence::as_raw)
    }

    /// Takes back fences that came from [`Self::take`] and that no queue uses any more.
    pub fn give(&self, device: &ash::Device, markers: impl IntoIterator<Item = u64>) {
        let markers: SmallVec<[_; 4]> = markers.into_iter().map(vk::Fence::from_raw).collect();
        if markers.is_empty() {
            return;
        }
        // SAFETY: device and fences are live, and no submission is left that uses them.
        let reset = unsafe { device.reset_fences(&markers) };
        let mut free = self.free.lock();
        for marker in markers {
            if reset.is_ok() && free.len() < KEPT {
                free.push(marker);
            } else {
                // SAFETY: as above.
                unsafe { device.destroy_fence(marker, None) };
            }
        }
    }

    /// Waits until a marker that a queue uses is signalled.
    pub fn wait(&self, device: &ash::Device, marker: u64) {
        while !self.wait_for(device, marker, Duration::from_nanos(WAIT_SLICE_NS)) {}
    }

    /// Waits like [`Self::wait`], but for no longer than `limit`; returns whether the wait is over. A lost device completes nothing any
    /// more: any answer but a time-out ends the wait.
    pub fn wait_for(&self, device: &ash::Device, marker: u64, limit: Duration) -> bool {
        let (fences, limit) = ([vk::Fence::from_raw(marker)], limit.as_nanos() as u64);
        // SAFETY: the device is live, and so is the fence, which is taken back only when the wait is over.
        let waited = unsafe { device.wait_for_fences(&fences, true, limit) };
        self.hear(waited.err());
        waited != Err(vk::Result::TIMEOUT)
    }

    /// Returns whether the driver has signalled a marker. A lost device completes nothing any more: any answer but "not yet" counts as an
    /// end.
    pub fn is_signalled(&self, device: &ash::Device, marker: u64) -> bool {
        // SAFETY: device and fence are live; a marker is given away only after it was found here.
        let status = unsafe { device.get_fence_status(vk::Fence::from_raw(marker)) };
        self.hear(status.err());
        status != Ok(false)
    }

    /// Returns whether the driver has failed to say whether a submission is complete: work that counts as complete may be unfinished.
    pub fn have_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }

    /// Logs the first answer by which the driver reports a lost device. The guest may never submit again, and then only this log line tells
    /// the operator.
    fn hear(&self, error: Option<vk::Result>) {
        let Some(error) = error.filter(|error| *error != vk::Result::TIMEOUT) else { return };
        self.has_failed.store(true, Ordering::Relaxed);
        if error == vk::Result::ERROR_DEVICE_LOST && !self.is_lost.swap(true, Ordering::Relaxed) {
            log::warn!(
                "the host's driver has lost a device of this context (VK_ERROR_DEVICE_LOST): the work that it ran is not complete"
            );
        }
    }

    /// Destroys the markers that are in no use, with the device.
    pub fn destroy(&self, device: &ash::Device) {
        for marker in self.free.lock().drain(..) {
            // SAFETY: the device is live and the fence in no use.
            unsafe { device.destroy_fence(marker, None) };
        }
    }
}

/// The most markers that are kept for the next submissions.
const KEPT: usize = 64;
