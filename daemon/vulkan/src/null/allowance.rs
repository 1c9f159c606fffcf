//! The memory that contexts on the null driver may have, and the resources that they see.

use super::deposits;
use crate::{
    Allowance, Asked, Cancel, Deposit, HeapBudget, Interrupted, Lease, MemoryFile, Piece, ResourceMemory,
    ResourceTable,
};
use config::{Heap, MemoryId, PerHeap};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Grants each request for memory, except a very large one, or one while waits are interrupted.
pub(crate) struct Allowed;

fn uninterrupted(cancel: &Cancel) -> Result<(), Interrupted> {
    if cancel.is_interrupted() { Err(Interrupted) } else { Ok(()) }
}

const ALLOWED_MAX: u64 = 1 << 30;

impl Allowance for Allowed {
    fn pages(&self, size: u64, cancel: &Cancel) -> Asked<MemoryFile> {
        uninterrupted(cancel)?;
        let size = Some(size).filter(|size| *size <= ALLOWED_MAX);
        let file = size.and_then(|size| shm::create("fuzz", size).ok());
        Ok(file.map(|file| MemoryFile::new(file, Piece::uncounted())))
    }

    fn piece(&self, _: Heap, bytes: u64, cancel: &Cancel) -> Asked<Piece> {
        uninterrupted(cancel)?;
        static PIECES: AtomicU64 = AtomicU64::new(1);
        let piece = || Piece::new(MemoryId(PIECES.fetch_add(1, Ordering::Relaxed)), Lease::new(|| ()));
        Ok((bytes <= ALLOWED_MAX).then(piece))
    }

    fn credit(&self, _: Heap, bytes: u64, cancel: &Cancel) -> Asked<Lease> {
        uninterrupted(cancel)?;
        Ok((bytes <= ALLOWED_MAX).then(|| Lease::new(|| ())))
    }

    fn deposit(&self, file: BorrowedFd<'_>) -> Option<Deposit> {
        deposits::make(file)
    }

    fn closed(&self, cancel: &Cancel) -> Asked<()> {
        uninterrupted(cancel)?;
        #[cfg(test)]
        deposits::close();
        Ok(Some(()))
    }

    fn budget(&self, cancel: &Cancel) -> Asked<PerHeap<HeapBudget>> {
        uninterrupted(cancel)?;
        Ok(Some(PerHeap::each(|_| HeapBudget { used: 0, most: ALLOWED_MAX })))
    }

    fn caught_up(&self, cancel: &Cancel) -> Asked<()> {
        uninterrupted(cancel)?;
        Ok(Some(()))
    }

    fn reached(&self, _: &'static str) {}

    fn shader_refused(&self, _: &dyn std::fmt::Display) {}

    fn undrawn(&self) {}

    fn overdue(&self, _: &'static str, _: bool) {}
}

/// The resources of a context with which no other context shares anything.
pub struct NoResources;

impl ResourceTable for NoResources {
    fn device_memory(&self, _: u32, cancel: &Cancel) -> Result<Option<Arc<ResourceMemory>>, Interrupted> {
        uninterrupted(cancel).map(|()| None)
    }
}
