//! Device memory of a guest as a file, for a blob.

use crate::backing::anchors;
use crate::backing::memory::{Made, Memory};
use crate::context::allowance::MemoryFile;
use crate::driver::back_end::BackEnd;
use crate::logical::device::Device;
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
    /// The descriptors that keep lent memory alive: it is gone when the driver frees it, or when the driver's process ends and these are
    /// closed, and cannot be imported. The list is empty if they were returned before; there is none for other memory.
    pub lent: Option<Vec<OwnedFd>>,
}

/// Returns the memory `raw` of `device` as a file for a blob of `size` bytes.
///
/// # Errors
///
/// There is no such file; the string says why, for the log.
pub(crate) fn export(
    memory: &Memory,
    device: &Device,
    raw: u64,
    size: u64,
    mappable: bool,
) -> Result<Exported, String> {
    match (&memory.made, &device.memory) {
        (Made::Pages(pages, _), _) if size <= pages.size() => {
            Ok(Exported { file: Some(pages.file()), cached: true, lent: None })
        }
        (Made::Pages(pages, _), _) => Err(format!("{size} bytes of a memory of {}", pages.size())),
        (Made::Exportable { cached, piece }, BackEnd::DmaBuf(functions)) => {
            let file = functions.export(raw).map_err(|error| format!("no dma-buf: {error}"))?;
            let file = Some(Arc::new(MemoryFile::new(file, piece.clone())));
            Ok(Exported { file, cached: *cached, lent: None })
        }
        (Made::DriverMapped(file), _) if mappable => {
            Ok(Exported { file: Some(Arc::clone(file)), cached: false, lent: Some(new_anchors(device)?) })
        }
        _ if mappable => Err("the memory is not host-visible".into()),
        _ => Ok(Exported { file: None, cached: true, lent: None }),
    }
}

/// Returns the descriptors that keep the driver's memory alive, if they may be new: with the first memory that a device lends.
fn new_anchors(device: &Device) -> Result<Vec<OwnedFd>, String> {
    if device.is_anchored.load(Ordering::Relaxed) {
        return Ok(Vec::new());
    }
    let anchors = anchors::anchors(&device.mapped_devices)?;
    device.is_anchored.store(true, Ordering::Relaxed);
    Ok(anchors)
}
