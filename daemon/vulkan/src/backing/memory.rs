//! Device memory of a guest, and the backing of each allocation.

use super::pages::{Pages, rounded};
use super::reuse_key::ReuseKey;
use crate::context::allowance::{Deposit, Lease, MemoryFile, Piece};
use ash::vk;
use config::{Heap, MemoryId};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Memory of a guest's device.
#[derive(Debug)]
pub struct Memory {
    /// Bytes that the guest asked for, at most as many as were allocated; set anew when the memory is used again.
    size: AtomicU64,
    /// The backing of the memory.
    pub made: Made,
    /// The properties of the allocations that the memory can be used again for, once its guest has freed it; none if it is not used again.
    pub key: Option<ReuseKey>,
    /// True if a successor can have the memory at the same address.
    pub replays: bool,
}

/// The backing of device memory.
#[derive(Debug)]
pub enum Made {
    /// Memory that only the driver can use.
    Private {
        // The fields are in the order in which they are dropped: the deposit is taken back before the credit can be granted anew.
        /// The deposit by which a successor can have the memory if this worker dies, once there is a deposit.
        deposit: Mutex<Option<Deposit>>,
        /// The lease under which the memory counts, if it counts.
        credit: Option<Lease>,
        /// The way in which a successor of this worker can have the memory, if there is a way.
        exported: Option<Exported>,
    },
    /// Pages of ours; if they are the GPU's own memory, also the lease under which they count there.
    Pages(Pages, Option<Lease>),
    /// Memory that the driver exports.
    Exportable {
        /// True if reads of the processor go through its caches.
        cached: bool,
        /// The piece as which the memory is counted.
        piece: Piece,
    },
    /// Imported memory, which another context has made.
    Imported(Piece),
    /// Memory that the driver maps, and that others can map, for as long as the memory exists.
    DriverMapped(Arc<MemoryFile>),
}

/// The origin of the descriptor of memory that only the driver uses.
#[derive(Debug)]
pub enum Exported {
    /// The driver makes a descriptor when it is asked.
    ByDriver,
    /// The memory was made of this descriptor. Drivers need not export memory that they have imported.
    Imported(Arc<MemoryFile>),
}

impl Made {
    /// Memory that only the driver can use, which counts under `credit`.
    pub fn private(credit: Option<Lease>, exported: Option<Exported>) -> Self {
        Self::Private { credit, exported, deposit: Mutex::default() }
    }

    /// The handle types that memory which only the driver uses was made for.
    pub fn kinds(&self) -> vk::ExternalMemoryHandleTypeFlags {
        match self {
            Self::Private { exported: Some(_), .. } => vk::ExternalMemoryHandleTypeFlags::OPAQUE_FD,
            _ => vk::ExternalMemoryHandleTypeFlags::empty(),
        }
    }
}

impl Memory {
    /// Memory of `size` bytes, which can be used again for an allocation that agrees with `key`, and which a successor can have at the same
    /// address if it `replays`.
    pub fn new(size: u64, made: Made, key: Option<ReuseKey>, replays: bool) -> Self {
        Self { size: AtomicU64::new(size), made, key, replays }
    }

    /// Memory that is not used again.
    #[cfg(test)]
    pub fn once(made: Made) -> Self {
        Self::new(4096, made, None, false)
    }

    /// Bytes that the guest asked for.
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    /// Returns the bytes that a buffer of ours can alias, in whole pages; none if the memory is dedicated to an object of the guest.
    pub fn copied_bytes(&self) -> Option<u64> {
        self.key.and(rounded(self.size(), 1))
    }

    /// Notes how many bytes the guest has asked for this time.
    pub fn set_size(&self, size: u64) {
        self.size.store(size, Ordering::Relaxed);
    }

    /// The number by which the device process knows the memory, if others can see it.
    pub fn piece(&self) -> Option<MemoryId> {
        match &self.made {
            Made::Private { .. } => None,
            Made::Pages(pages, _) => pages.file().piece.memory,
            Made::Exportable { piece, .. } | Made::Imported(piece) => piece.memory,
            Made::DriverMapped(file) => file.piece.memory,
        }
    }

    /// Returns whether memory with this key counts for a heap of this kind. Pages are the host's, and may be the GPU's too.
    pub fn counts_for(&self, key: &ReuseKey, heap: Heap) -> bool {
        key.heap == heap || heap == Heap::Device && matches!(self.made, Made::Pages(_, Some(_)))
    }

    /// Returns whether the driver did not make the memory itself: a buffer or image that is bound to it has to say so when it is created.
    pub fn is_imported(&self) -> bool {
        matches!(self.made, Made::Pages(..) | Made::Imported(_))
    }

    /// The number by which the device process knows the memory, if others may have it mapped when the driver frees it.
    pub fn lent(&self) -> Option<MemoryId> {
        match &self.made {
            Made::DriverMapped(file) => file.piece.memory,
            _ => None,
        }
    }

    /// Returns whether no resource of this process and no other memory object refers to the same memory.
    pub fn is_sole(&self) -> bool {
        match &self.made {
            Made::Private { .. } => true,
            Made::Pages(pages, _) => pages.is_sole(),
            Made::Exportable { piece, .. } => piece.is_sole(),
            Made::Imported(_) => false,
            Made::DriverMapped(file) => Arc::strong_count(file) == 1 && file.piece.is_sole(),
        }
    }
}

/// The size of a grain: drivers map memory in whole grains, and such memory can be mapped only as a whole. So memory of another size is made of
/// pages; guests are told to align buffers that are bound to such memory (`vulkan::logical::dual_buffers`).
pub(crate) const GRAIN: u64 = 64 * 1024;
