//! The requests for memory that a worker sends to the device process before its driver allocates any, and the names of the memory that it gets.

use serde::{Deserialize, Serialize};

/// The number of a piece of memory that may be shown to other contexts; never used again for another piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MemoryId(pub u64);

/// The number under which a worker deposits a descriptor of memory with the device process. A worker uses each number once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DepositId(pub u64);

/// The memory behind a descriptor beside a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum MemoryName {
    /// A piece.
    Piece(MemoryId),
    /// Memory that only a driver uses, which has no name: it comes in its turn.
    Unnamed,
    /// Memory that only a driver uses, by its deposit.
    Deposit(DepositId),
}

/// The kind of place where memory is, which decides the limit to which it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Heap {
    /// The GPU's own ([`super::limits::DeviceLimits::device_memory`]).
    Device,
    /// The host's ([`super::limits::DeviceLimits::host_memory`]).
    Host,
}

/// The memory that a worker asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Wanted {
    /// A memory file of so many bytes, made by the device process: counts as host memory until no process holds it any more.
    Pages(u64),
    /// Memory of the driver that may be exported: counts until no process holds it any more.
    Piece {
        /// The heap that the memory is in.
        heap: Heap,
        /// Bytes.
        bytes: u64,
    },
    /// Memory that only the driver uses, some of it in advance.
    Credit {
        /// The heap that the memory is in.
        heap: Heap,
        /// Bytes that are needed now.
        least: u64,
        /// Bytes that save the next request, `least` or more.
        bytes: u64,
    },
}

impl Wanted {
    /// Returns the bytes of the GPU's own memory that the request needs at least; none if it is for other memory.
    #[must_use]
    pub fn least_of_gpu(self) -> Option<u64> {
        match self {
            Self::Piece { heap: Heap::Device, bytes } => Some(bytes),
            Self::Credit { heap: Heap::Device, least, .. } => Some(least),
            _ => None,
        }
    }
}

/// The memory of one kind that counts for a context, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryCount {
    /// The bytes that the context holds, granted in advance or used.
    pub held: u64,
    /// The further bytes that it could be granted now.
    pub room: u64,
}

/// A value for each heap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PerHeap<T> {
    /// For [`Heap::Device`].
    pub device: T,
    /// For [`Heap::Host`].
    pub host: T,
}

impl<T> PerHeap<T> {
    /// Makes the value for each heap.
    pub fn each(mut make: impl FnMut(Heap) -> T) -> Self {
        Self { device: make(Heap::Device), host: make(Heap::Host) }
    }

    /// Returns the value for this heap.
    pub fn of(&mut self, heap: Heap) -> &mut T {
        match heap {
            Heap::Device => &mut self.device,
            Heap::Host => &mut self.host,
        }
    }
}
