//! The descriptors that contexts have deposited, as a device process would keep them.

use crate::context::allowance::{Deposit, Lease};
#[cfg(test)]
use crate::context::allowance::{MemoryFile, Piece};
#[cfg(test)]
use crate::snapshot::{Saved, SavedFile};
use config::DepositId;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::os::fd::{BorrowedFd, OwnedFd};
#[cfg(test)]
use std::sync::Arc;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

static KEPT: LazyLock<Mutex<FxHashMap<DepositId, OwnedFd>>> = LazyLock::new(Mutex::default);

/// Keeps a copy of a descriptor until the deposit is dropped.
pub(super) fn make(file: BorrowedFd<'_>) -> Option<Deposit> {
    static NUMBERS: AtomicU64 = AtomicU64::new(1);
    let id = DepositId(NUMBERS.fetch_add(1, Ordering::Relaxed));
    KEPT.lock().insert(id, file.try_clone_to_owned().ok()?);
    Some(Deposit::new(id, Lease::new(move || drop(KEPT.lock().remove(&id)))))
}

#[cfg(test)]
static CLOSINGS: AtomicU64 = AtomicU64::new(0);

/// Counts a wait until all returned descriptors are closed; here they are closed already.
#[cfg(test)]
pub(super) fn close() {
    CLOSINGS.fetch_add(1, Ordering::Relaxed);
}

/// The number of waits until all returned descriptors were closed.
#[cfg(test)]
pub(crate) fn closings() -> u64 {
    CLOSINGS.load(Ordering::Relaxed)
}

/// The number of deposits.
#[cfg(test)]
pub(crate) fn count() -> usize {
    KEPT.lock().len()
}

/// Returns the descriptors of a snapshot, the deposited ones among them.
#[cfg(test)]
pub(crate) fn files_of(saved: &Saved) -> Vec<Arc<MemoryFile>> {
    let kept = KEPT.lock();
    let file = |file: &SavedFile| match file {
        SavedFile::Here(file) => Arc::clone(file),
        SavedFile::Deposited(id) => {
            Arc::new(MemoryFile::new(kept[id].try_clone().unwrap(), Piece::uncounted()))
        }
    };
    saved.files.iter().map(file).collect()
}
