//! What the device process lets this context have, and what happens to it when it is not used any more.

use super::cancel::Cancel;
use crate::config::{Heap, MemoryId};
use std::fmt::Display;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Grants memory before the driver allocates it. None means that a limit is reached, or that nobody answers any more; why is logged.
pub trait Allowance: Send + Sync {
    /// A memory file of `size` bytes, zeroed.
    fn pages(&self, size: u64, cancel: &Cancel) -> Option<MemoryFile>;

    /// Leave to allocate memory that can be exported.
    fn piece(&self, heap: Heap, bytes: u64, cancel: &Cancel) -> Option<Piece>;

    /// Leave to allocate memory that nobody else will see.
    fn credit(&self, heap: Heap, bytes: u64, cancel: &Cancel) -> Option<Lease>;

    /// A limit of `config::ContextLimits` is reached, for the first time perhaps.
    fn reached(&self, limit: &'static str);

    /// A shader, or a pipeline of one, is refused; for the log.
    fn shader_refused(&self, reason: &dyn Display);

    /// A command waits for long until a submission has completed that uses what it is about. It is refused if that `is_blocked`: it waits
    /// itself.
    fn overdue(&self, command: &'static str, is_blocked: bool);
}

/// Something granted; it is given back when this is dropped.
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

/// Memory that others may come to see, under the name that the device process knows it by.
#[derive(Clone, Debug)]
pub struct Piece {
    /// Its name; none in a trial, which nobody counts.
    pub memory: Option<MemoryId>,
    lease: Option<Arc<Lease>>,
}

impl Piece {
    /// A piece that is held until its last clone is dropped.
    pub fn new(memory: MemoryId, lease: Lease) -> Self {
        Self { memory: Some(memory), lease: Some(Arc::new(lease)) }
    }

    /// There is no clone of it.
    pub fn is_sole(&self) -> bool {
        self.lease.as_ref().is_none_or(|lease| Arc::strong_count(lease) == 1)
    }

    /// Memory that nobody counts.
    pub fn uncounted() -> Self {
        Self { memory: None, lease: None }
    }
}

/// A descriptor of such memory.
#[derive(Debug)]
pub struct MemoryFile {
    // In the order in which they are let go.
    file: OwnedFd,
    /// What it is.
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
