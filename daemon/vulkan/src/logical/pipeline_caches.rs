//! The pipeline caches of a device: the guest's, and one of the daemon's own.
//!
//! A successor of this worker gets the data of each, and begins its own caches with it. So its driver does not compile pipelines again.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use super::own_cache::{OwnCache, create, data_of};
use ash::vk;
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) use super::own_cache::CACHE_DATA_MAX;

/// The data of one pipeline cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheData {
    /// The `VkPipelineCache`, or the `VkDevice` of the daemon's own.
    pub id: u64,
    /// The driver's data, with a tag.
    pub sealed: Vec<u8>,
}

/// The pipeline caches of a device: ours, and the state that all caches share.
#[derive(Debug, Default)]
pub(crate) struct PipelineCaches {
    /// The cache of the daemon's own.
    pub ours: OwnCache,
    /// True if a cache has grown since its data was last read.
    has_more: AtomicBool,
    /// Locked for writing while data is merged into a cache of the guest's, which no other thread may use then; for reading while its data is read.
    merges: RwLock<()>,
}

impl PipelineCaches {
    /// Begins our cache of a device that was made just now with this data, which the same driver has made.
    pub(crate) fn begin_ours(&self, device: &ash::Device, data: &[u8]) {
        self.ours.begin(device, data);
        self.note_more();
    }

    /// Notes that a cache has more data than before, or is new.
    pub(crate) fn note_more(&self) {
        self.has_more.store(true, Ordering::Relaxed);
    }

    /// Notes that pipelines were made, with our cache or one of the guest's.
    pub(crate) fn note_made(&self, device: &ash::Device) {
        self.note_more();
        self.ours.note_made(device);
    }

    /// Returns whether a cache has grown since the last call.
    pub(crate) fn take_more(&self) -> bool {
        self.has_more.load(Ordering::Relaxed) && self.has_more.swap(false, Ordering::Relaxed)
    }

    /// Adds data to a cache, which the same driver has made.
    ///
    /// # Safety
    ///
    /// It is a cache of this live device, and no command is in flight.
    pub(crate) unsafe fn add(&self, device: &ash::Device, into: vk::PipelineCache, data: &[u8]) {
        let Some(more) = create(device, data) else { return };
        let function = device.fp_v1_0().merge_pipeline_caches;
        // SAFETY: the caller's promise; the other cache was created just now, and no other code knows it.
        let merged = self.merge(|| unsafe { function(device.handle(), into, 1, &raw const more).as_raw() });
        log::debug!(merged; "a pipeline cache gets {} bytes of data", data.len());
        // SAFETY: as above.
        unsafe { device.destroy_pipeline_cache(more, None) };
        self.note_more();
    }

    /// Calls `merge`, which merges data into a cache.
    pub(crate) fn merge(&self, merge: impl FnOnce() -> i32) -> i32 {
        let _alone = self.merges.write();
        merge()
    }

    /// Returns the data of a cache of the guest's, if it is no more than `room`.
    ///
    /// # Safety
    ///
    /// It is a cache of this live device, and stays so until this returns.
    pub(crate) unsafe fn data_of_guests(
        &self,
        device: &ash::Device,
        cache: vk::PipelineCache,
        room: usize,
    ) -> Option<Vec<u8>> {
        let _no_merge = self.merges.read();
        // SAFETY: the caller's promise; nothing is merged into it meanwhile.
        unsafe { data_of(device, cache, room) }
    }
}
