//! Device memory of a guest as a file, for a blob.

use crate::backing::anchors::{NoAnchors, anchors};
use crate::backing::memory::{Made, Memory};
use crate::context::allowance::MemoryFile;
use crate::driver::back_end::BackEnd;
use crate::logical::device::Device;
use ash::vk;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The memory that a blob of a memory object is made of.
#[derive(Debug)]
pub struct Exported {
    /// The memory as a file, if others can use it.
    pub file: Option<Arc<MemoryFile>>,
    /// True if the memory is ordinary cached memory; otherwise it is write-combined.
    pub cached: bool,
    /// The descriptors that keep lent memory alive. Lent memory is gone when the driver frees it, or when the driver's process ends and these
    /// descriptors are closed; it cannot be imported. The list is empty if the descriptors were returned before; there is no list for other memory.
    pub lent: Option<Vec<OwnedFd>>,
}

/// The reason why no blob can be made of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotExported {
    /// The blob is larger than the memory.
    #[error("{wanted} bytes of a memory of {has}")]
    TooSmall {
        /// Bytes of the blob.
        wanted: u64,
        /// Bytes of the memory.
        has: u64,
    },
    /// The driver makes no dma-buf.
    #[error("no dma-buf: {0}")]
    Driver(vk::Result),
    /// The memory would end with this process.
    #[error(transparent)]
    Anchors(#[from] NoAnchors),
    /// The blob is to be mapped, which the memory cannot be.
    #[error("the memory is not host-visible")]
    NotHostVisible,
    /// The memory was not allocated, with this `VkResult`.
    #[error("its allocation had failed ({})", vk::Result::from_raw(*.0))]
    Failed(i32),
    /// There is no such memory.
    #[error("memory object {0} does not exist")]
    NoMemory(u64),
    /// The guest has to learn first of an earlier failure, with this `VkResult`.
    #[error("the guest has to hear of a failure before ({})", vk::Result::from_raw(*.0))]
    Unheard(i32),
    /// The context is swapped out, and its memory with it.
    #[error("the context is swapped out")]
    SwappedOut,
    /// The context is lost.
    #[error("context is lost")]
    Ended,
}

/// Returns the memory `raw` of `device` as a file for a blob of `size` bytes.
///
/// # Errors
///
/// There is no such file.
pub(crate) fn export(
    memory: &Memory,
    device: &Device,
    raw: u64,
    size: u64,
    mappable: bool,
) -> Result<Exported, NotExported> {
    match (&memory.made, &device.memory) {
        (Made::Pages(pages, _), _) if size <= pages.size() => {
            Ok(Exported { file: Some(pages.file()), cached: true, lent: None })
        }
        (Made::Pages(pages, _), _) => Err(NotExported::TooSmall { wanted: size, has: pages.size() }),
        (Made::Exportable { cached, piece }, BackEnd::DmaBuf(functions)) => {
            let file = functions.export(raw).map_err(NotExported::Driver)?;
            let file = Some(Arc::new(MemoryFile::new(file, piece.clone())));
            Ok(Exported { file, cached: *cached, lent: None })
        }
        (Made::DriverMapped(file), _) if mappable => {
            Ok(Exported { file: Some(Arc::clone(file)), cached: false, lent: Some(new_anchors(device)?) })
        }
        _ if mappable => Err(NotExported::NotHostVisible),
        _ => Ok(Exported { file: None, cached: true, lent: None }),
    }
}

/// Returns the descriptors that keep the driver's memory alive, for the first memory that a device lends; an empty list for later memory.
fn new_anchors(device: &Device) -> Result<Vec<OwnedFd>, NoAnchors> {
    if device.is_anchored.load(Ordering::Relaxed) {
        return Ok(Vec::new());
    }
    let anchors = anchors(&device.mapped_devices)?;
    device.is_anchored.store(true, Ordering::Relaxed);
    Ok(anchors)
}
