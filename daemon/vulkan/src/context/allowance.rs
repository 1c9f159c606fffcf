//! Memory that the device process lets this context have, and its return when it is not used any more.

use super::cancel::{Cancel, Interrupted};
use config::{DepositId, Heap, MemoryId, PerHeap};
use std::fmt::Display;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// An answer to a request for memory: none means that a limit is reached, or that the device process is gone; the reason is logged. It is an
/// error if the wait was interrupted: memory that is granted later is returned.
pub type Asked<T> = Result<Option<T>, Interrupted>;

/// Grants memory before the driver allocates it.
pub trait Allowance: Send + Sync {
    /// A memory file of `size` bytes, zeroed.
    fn pages(&self, size: u64, cancel: &Cancel) -> Asked<MemoryFile>;

    /// Permission to allocate memory that can be exported.
    fn piece(&self, heap: Heap, bytes: u64, cancel: &Cancel) -> Asked<Piece>;

    /// Permission to allocate memory that only this context will see.
    fn credit(&self, heap: Heap, bytes: u64, cancel: &Cancel) -> Asked<Lease>;

    /// Deposits a descriptor of memory that only the driver uses with the device process, for a successor in case this process dies; none if the
    /// device process is gone.
    fn deposit(&self, file: BorrowedFd<'_>) -> Option<Deposit>;

    /// Waits until the device process has closed the memory that it was about to close: of deposits that were taken back, or that a worker left.
    fn closed(&self, cancel: &Cancel) -> Asked<()>;

    /// Returns how much memory the context has, and how much it could have now.
    fn budget(&self, cancel: &Cancel) -> Asked<PerHeap<HeapBudget>>;

    /// Waits until all memory that the guest has freed is unmapped.
    fn caught_up(&self, cancel: &Cancel) -> Asked<()>;

    /// Reports that a limit of `config::ContextLimits` is reached, for the first time perhaps.
    fn reached(&self, limit: &'static str);

    /// Reports, for the log, that a shader, or a pipeline of one, is refused.
    fn shader_refused(&self, reason: &dyn Display);

    /// Reports, for the log, that the guest asks for graphics, which `--queues` denies.
    fn undrawn(&self);

    /// Reports that `command` has waited for long for the completion of a submission that uses its object. The command is refused if the
    /// submission `is_blocked`, which means that the submission itself waits.
    fn overdue(&self, command: &'static str, is_blocked: bool);
}

/// The memory of one kind of heap, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeapBudget {
    /// The bytes that the context has.
    pub used: u64,
    /// The bytes that it could have now, including those that it has.
    pub most: u64,
}

impl HeapBudget {
    /// Returns the budget of a context that has `unused` bytes without a use for them.
    pub(crate) fn without(self, unused: u64) -> Self {
        Self { used: self.used.saturating_sub(unused), ..self }
    }

    /// Returns this budget, bounded by another from which the same memory is taken.
    pub(crate) fn bounded_by(self, other: Self) -> Self {
        let room = |budget: Self| budget.most.saturating_sub(budget.used);
        Self { most: self.used.saturating_add(room(self).min(room(other))), ..self }
    }
}

/// A granted permission, which is returned when this value is dropped.
pub struct Lease(Option<Box<dyn FnOnce() + Send + Sync>>);

impl Lease {
    /// Runs `give_back` once.
    pub fn new(give_back: impl FnOnce() + Send + Sync + 'static) -> Self {
        Self(Some(Box::new(give_back)))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(give_back) = self.0.take() {
            give_back();
        }
    }
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Lease")
    }
}

/// Memory that other contexts may come to see, with the number by which the device process knows it.
#[derive(Clone, Debug)]
pub struct Piece {
    /// The number by which the device process knows the memory; none in a trial, whose memory is not counted.
    pub memory: Option<MemoryId>,
    lease: Option<Arc<Lease>>,
}

impl Piece {
    /// A piece that is held until its last clone is dropped.
    pub fn new(memory: MemoryId, lease: Lease) -> Self {
        Self { memory: Some(memory), lease: Some(Arc::new(lease)) }
    }

    /// Returns whether the piece has no clone.
    pub fn is_sole(&self) -> bool {
        self.lease.as_ref().is_none_or(|lease| Arc::strong_count(lease) == 1)
    }

    /// Memory that is not counted.
    pub fn uncounted() -> Self {
        Self { memory: None, lease: None }
    }
}

/// A descriptor of memory that only the driver uses, which the device process has until this value is dropped.
#[derive(Debug)]
pub struct Deposit {
    /// The number by which the device process knows the deposit.
    pub id: DepositId,
    _lease: Lease,
}

impl Deposit {
    /// A deposit that is taken back by `lease`.
    pub fn new(id: DepositId, lease: Lease) -> Self {
        Self { id, _lease: lease }
    }
}

/// A descriptor of a [`Piece`] of memory.
#[derive(Debug)]
pub struct MemoryFile {
    // The fields are in the order in which they have to be dropped.
    file: OwnedFd,
    /// The piece of memory that the descriptor is of.
    pub piece: Piece,
}

impl MemoryFile {
    /// The descriptor of a piece.
    pub fn new(file: OwnedFd, piece: Piece) -> Self {
        Self { file, piece }
    }
}

impl AsFd for MemoryFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
