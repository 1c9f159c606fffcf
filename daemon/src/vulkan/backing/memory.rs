//! What device memory of a guest is made of.

use super::likeness::Likeness;
use super::pages::Pages;
use crate::config::MemoryId;
use crate::vulkan::context::allowance::{Lease, MemoryFile, Piece};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Memory of a guest's device.
#[derive(Debug)]
pub struct Memory {
    /// Bytes that the guest asked for, at most as many as were made; said anew when the memory is used again.
    size: AtomicU64,
    /// What it is made of.
    pub made: Made,
    /// What it can be used again for, once its guest has freed it, if for anything.
    pub like: Option<Likeness>,
}

/// What memory is made of.
#[derive(Debug)]
pub enum Made {
    /// Nobody but the driver can use it.
    Private(Option<Lease>),
    /// Pages of ours, and where they are the GPU's own memory, what they count for there.
    Pages(Pages, Option<Lease>),
    /// The driver exports it.
    Exportable {
        /// Reads of the processor go through its caches.
        cached: bool,
        /// What it is counted as.
        piece: Piece,
    },
    /// What another made, imported.
    Imported(Piece),
    /// The driver maps it, and others can, for as long as it is there.
    DriverMapped(Arc<MemoryFile>),
}

impl Memory {
    /// Memory of so many bytes, which can be used again for what it is like.
    pub fn new(size: u64, made: Made, like: Option<Likeness>) -> Self {
        Self { size: AtomicU64::new(size), made, like }
    }

    /// Memory that is not used again.
    #[cfg(test)]
    pub fn once(made: Made) -> Self {
        Self::new(4096, made, None)
    }

    /// Bytes that the guest asked for.
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    /// The guest has asked for so many bytes this time.
    pub fn set_size(&self, size: u64) {
        self.size.store(size, Ordering::Relaxed);
    }

    /// What the device process knows it by, if others can see it.
    pub fn piece(&self) -> Option<MemoryId> {
        match &self.made {
            Made::Private(_) => None,
            Made::Pages(pages, _) => pages.file().piece.memory,
            Made::Exportable { piece, .. } | Made::Imported(piece) => piece.memory,
            Made::DriverMapped(file) => file.piece.memory,
        }
    }

    /// The driver did not make it: what is bound to it has to say so when it is made.
    pub fn is_imported(&self) -> bool {
        matches!(self.made, Made::Pages(..) | Made::Imported(_))
    }

    /// What the device process knows it by, if others may have it mapped when the driver frees it.
    pub fn lent(&self) -> Option<MemoryId> {
        match &self.made {
            Made::DriverMapped(file) => file.piece.memory,
            _ => None,
        }
    }

    /// No resource of this process and no other memory is the same.
    pub fn is_sole(&self) -> bool {
        match &self.made {
            Made::Private(_) => true,
            Made::Pages(pages, _) => pages.is_sole(),
            Made::Exportable { piece, .. } => piece.is_sole(),
            Made::Imported(_) => false,
            Made::DriverMapped(file) => Arc::strong_count(file) == 1 && file.piece.is_sole(),
        }
    }
}

/// Drivers map whole pieces of this size, and what they map can only be mapped as a whole. So memory of another size is made of pages;
/// guests are told to align what is bound to such memory (`vulkan::logical::dual_buffers`).
pub const GRAIN: u64 = 64 * 1024;
