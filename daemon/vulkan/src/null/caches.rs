//! Pipeline caches of the null driver. Each has the data that it began with, and the data that was merged into it.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use super::state::{self, Kind};
use ash::vk;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::sync::LazyLock;

/// The data of a cache that began without any.
pub(crate) const EMPTY: &[u8] = &[0x5a; 64];

/// Bytes of data after a merge, at most.
const MERGED_MAX: usize = 1 << 16;

/// The data with which no cache begins.
pub(crate) const REFUSED: &[u8] = b"refused";

static DATA: LazyLock<Mutex<FxHashMap<u64, Vec<u8>>>> = LazyLock::new(Mutex::default);

/// The cache that pipelines were last made with; 0 for none.
#[cfg(test)]
static USED: Mutex<u64> = Mutex::new(0);

/// Forgets everything: handles are given out anew.
pub(super) fn forget() {
    DATA.lock().clear();
}

/// Returns the data of a cache.
pub(crate) fn data_of(cache: u64) -> Vec<u8> {
    DATA.lock().get(&cache).cloned().unwrap_or_else(|| EMPTY.to_vec())
}

/// Notes that pipelines are made with this cache.
pub(super) fn uses(device: u64, cache: u64) {
    if cache != 0 {
        state::assert_of(device, cache, Kind::PipelineCache);
    }
    #[cfg(test)]
    {
        *USED.lock() = cache;
    }
}

/// Returns the cache that pipelines were last made with; 0 for none.
#[cfg(test)]
pub(crate) fn used() -> u64 {
    *USED.lock()
}

pub(super) unsafe extern "system" fn create(
    device: u64,
    info: *const vk::PipelineCacheCreateInfo<'static>,
    _: usize,
    out: *mut u64,
) -> i32 {
    state::assert_live(device, Some(Kind::Device as u8));
    if let Some(failure) = state::failure() {
        return failure;
    }
    // SAFETY: callers pass a description.
    let vk::PipelineCacheCreateInfo { initial_data_size, p_initial_data, .. } = unsafe { *info };
    let mut began = None;
    if initial_data_size > 0 && !state::is_trusting() {
        // SAFETY: as above, with as many bytes as it says.
        let data = unsafe { std::slice::from_raw_parts(p_initial_data.cast::<u8>(), initial_data_size) };
        if data == REFUSED {
            return vk::Result::ERROR_UNKNOWN.as_raw();
        }
        began = Some(data.to_vec());
    }
    let cache = state::add(Kind::PipelineCache as u8, device);
    DATA.lock().extend(began.map(|data| (cache, data)));
    // SAFETY: callers pass a place for the handle.
    unsafe { *out = cache };
    0
}

pub(super) unsafe extern "system" fn data(device: u64, cache: u64, size: *mut usize, out: *mut u8) -> i32 {
    state::assert_live(device, Some(Kind::Device as u8));
    state::assert_of(device, cache, Kind::PipelineCache);
    let data = data_of(cache);
    if out.is_null() {
        // SAFETY: callers pass a size.
        unsafe { *size = data.len() };
        return 0;
    }
    // SAFETY: as above.
    let filled = unsafe { *size }.min(data.len());
    // SAFETY: callers pass room for as many bytes as they say.
    unsafe { out.copy_from_nonoverlapping(data.as_ptr(), filled) };
    // SAFETY: as above.
    unsafe { *size = filled };
    if filled < data.len() { vk::Result::INCOMPLETE.as_raw() } else { 0 }
}

pub(super) unsafe extern "system" fn merge(device: u64, into: u64, count: u32, from: *const u64) -> i32 {
    state::assert_live(device, Some(Kind::Device as u8));
    // SAFETY: callers pass as many caches as they say.
    let from = if count > 0 { unsafe { std::slice::from_raw_parts(from, count as usize) } } else { &[] };
    for cache in from.iter().chain([&into]) {
        state::assert_of(device, *cache, Kind::PipelineCache);
    }
    let merged: Vec<u8> = [into].iter().chain(from).flat_map(|cache| data_of(*cache)).collect();
    if merged.len() > MERGED_MAX {
        return vk::Result::ERROR_OUT_OF_HOST_MEMORY.as_raw();
    }
    DATA.lock().insert(into, merged);
    0
}
