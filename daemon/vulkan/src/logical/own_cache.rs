//! The worker keeps a pipeline cache of its own for each device, which the guest does not see. It passes that cache to the driver when the guest creates
//! a pipeline without a cache.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use ash::vk;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The most bytes of cache data of a context that a successor gets. A cache of ours that has more is not filled further.
pub(crate) const CACHE_DATA_MAX: usize = 60 << 20;

/// The number of commands that make pipelines between two looks at the size of our cache.
const LOOK_EVERY: u32 = 128;

/// The pipeline cache of the daemon's own, of one device.
#[derive(Debug, Default)]
pub(crate) struct OwnCache {
    /// The cache, which is made for the first pipeline; null if the driver makes no cache.
    cache: OnceLock<vk::PipelineCache>,
    /// The cache is so large that no pipeline is made with it any more.
    is_full: AtomicBool,
    /// The number of commands that have made pipelines.
    made: AtomicU32,
}

impl OwnCache {
    /// Begins the cache of a device that was made just now with this data, which the same driver has made.
    pub(super) fn begin(&self, device: &ash::Device, data: &[u8]) {
        let _ = self.cache.set(create(device, data).or_else(|| create(device, &[])).unwrap_or_default());
    }

    /// Returns the daemon's cache, which pipelines without a cache of the guest's are made with; null if the driver made none, or it is full.
    pub(crate) fn cache(&self, device: &ash::Device) -> vk::PipelineCache {
        match self.is_full.load(Ordering::Relaxed) {
            true => vk::PipelineCache::null(),
            false => *self.cache.get_or_init(|| create(device, &[]).unwrap_or_default()),
        }
    }

    /// Notes that pipelines were made with a cache of the device. Now and then this checks whether our cache is full.
    pub(super) fn note_made(&self, device: &ash::Device) {
        let made = self.made.fetch_add(1, Ordering::Relaxed);
        if made % LOOK_EVERY == LOOK_EVERY - 1
            && let Some(cache) = self.ours()
            // SAFETY: the device is live, and with it our cache.
            && unsafe { size_of(device, cache) }.is_none_or(|size| size > CACHE_DATA_MAX)
            && !self.is_full.swap(true, Ordering::Relaxed)
        {
            log::debug!(
                "limit cache_data_bytes ({CACHE_DATA_MAX}) reached: from now on the driver compiles pipelines without the worker's own cache"
            );
        }
    }

    /// Returns the data of our cache, if there is some and it is no more than `room`.
    pub(crate) fn data(&self, device: &ash::Device, room: usize) -> Option<Vec<u8>> {
        // SAFETY: the device is live, and with it our cache. Others are merged into it while the context is built up only, when this is not called.
        unsafe { data_of(device, self.ours()?, room) }
    }

    fn ours(&self) -> Option<vk::PipelineCache> {
        self.cache.get().copied().filter(|cache| *cache != vk::PipelineCache::null())
    }

    /// Destroys the cache.
    ///
    /// # Safety
    ///
    /// No other thread uses the device, which is live, or this.
    pub(crate) unsafe fn destroy(&mut self, device: &ash::Device) {
        if let Some(cache) = self.cache.take() {
            // SAFETY: the caller's promise. Null is nothing to destroy.
            unsafe { device.destroy_pipeline_cache(cache, None) };
        }
    }
}

/// Creates a cache; none if the driver does not.
pub(super) fn create(device: &ash::Device, data: &[u8]) -> Option<vk::PipelineCache> {
    let info = vk::PipelineCacheCreateInfo::default().initial_data(data);
    // SAFETY: the device is live, and `info` lives until the call returns.
    let created = unsafe { device.create_pipeline_cache(&info, None) };
    created.inspect_err(|why| log::debug!("no pipeline cache of our own: {why}")).ok()
}

/// Returns the size of the data of a cache in bytes; none if the driver does not tell it.
///
/// # Safety
///
/// It is a live cache of this live device that nothing is merged into.
unsafe fn size_of(device: &ash::Device, cache: vk::PipelineCache) -> Option<usize> {
    let (function, mut size) = (device.fp_v1_0().get_pipeline_cache_data, 0);
    // SAFETY: the caller's promise.
    let result = unsafe { function(device.handle(), cache, &raw mut size, std::ptr::null_mut()) };
    (result == vk::Result::SUCCESS).then_some(size)
}

/// Returns the data of a cache, if it is no more than `room`, and there is memory.
///
/// # Safety
///
/// As for [`size_of`].
pub(super) unsafe fn data_of(device: &ash::Device, cache: vk::PipelineCache, room: usize) -> Option<Vec<u8>> {
    // SAFETY: the caller's promise.
    let mut size = unsafe { size_of(device, cache) }.filter(|size| *size <= room)?;
    let mut data = Vec::new();
    data.try_reserve_exact(size).ok()?;
    data.resize(size, 0);
    let function = device.fp_v1_0().get_pipeline_cache_data;
    // SAFETY: the caller's promise, and there is room for `size` bytes.
    let result = unsafe { function(device.handle(), cache, &raw mut size, data.as_mut_ptr().cast()) };
    // The cache may have more data by now; the data that fits can be used.
    data.truncate(size);
    matches!(result, vk::Result::SUCCESS | vk::Result::INCOMPLETE).then_some(data)
}
