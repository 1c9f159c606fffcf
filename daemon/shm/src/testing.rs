//! Private mappings, which tests (and Miri) can use in place of a guest's memory.

use crate::Mapping;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use std::sync::Arc;

/// Maps zeroed pages of this process alone.
///
/// # Panics
/// The system has no room for the pages.
#[must_use]
pub fn private(len: usize) -> Arc<Mapping> {
    // SAFETY: without an address hint and MAP_FIXED the kernel picks free addresses.
    let start = unsafe {
        mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
    };
    Arc::new(
        start.map_err(Into::into).and_then(|start| Mapping::of_pages(start, len)).expect("room for pages"),
    )
}
