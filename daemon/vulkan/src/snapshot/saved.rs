//! A snapshot, or the reason why there is none.

use super::step::Step;
use crate::backing::memory::{Made, Memory};
use crate::context::allowance::MemoryFile;
use config::{DepositId, MemoryName};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// A snapshot.
#[derive(Debug, Default)]
pub struct Saved {
    /// The steps that a successor does, in this order.
    pub steps: Vec<Step>,
    /// The memory files that [`Step::Memory`] names by their index, each once, and the descriptors that [`Step::Exported`] names.
    pub files: Vec<SavedFile>,
    /// The way in which memory gets to the successor.
    pub carry: Carry,
    /// Descriptors of the driver's memory that were made already, by the places of the allocations in the order of creation.
    pub(super) descriptors: FxHashMap<u64, Arc<MemoryFile>>,
}

/// A descriptor that a successor gets.
#[derive(Clone, Debug)]
pub enum SavedFile {
    /// The descriptor is here.
    Here(Arc<MemoryFile>),
    /// The device process has the descriptor.
    Deposited(DepositId),
}

impl SavedFile {
    /// Returns the name by which the successor finds this descriptor.
    pub fn name(&self) -> MemoryName {
        match self {
            Self::Here(file) => file.piece.memory.map_or(MemoryName::Unnamed, MemoryName::Piece),
            Self::Deposited(id) => MemoryName::Deposit(*id),
        }
    }

    /// Returns the descriptor if it is here.
    pub fn file(&self) -> Option<&Arc<MemoryFile>> {
        match self {
            Self::Here(file) => Some(file),
            Self::Deposited(_) => None,
        }
    }
}

impl Saved {
    /// A snapshot of these steps and files.
    pub fn new(steps: Vec<Step>, files: Vec<SavedFile>, carry: Carry) -> Self {
        Self { steps, files, carry, descriptors: FxHashMap::default() }
    }

    /// Returns the descriptors that are here, which are all if none are deposited.
    pub fn files_here(&self) -> Vec<Arc<MemoryFile>> {
        self.files.iter().filter_map(SavedFile::file).cloned().collect()
    }
}

/// The way in which memory that only the driver uses gets to a successor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Carry {
    /// The contents are copied, and the successor makes the memory anew.
    #[default]
    Copied,
    /// The successor has the same GPU and the same driver: it gets the memory itself if the driver gives this memory away.
    HandedOver,
    /// The successor gets the memory itself, but the device process keeps the descriptors, as this worker may be dead by then.
    Deposited,
}

impl Carry {
    /// Returns whether a successor gets this memory itself.
    pub(super) fn hands_over(self, memory: &Memory) -> bool {
        self != Self::Copied && matches!(memory.made, Made::Private { exported: Some(_), .. })
    }
}

/// The reason why a context cannot be taken apart and built up elsewhere, for operators.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct NotMovable {
    /// In words of ours: "the driver holds memory that cannot be passed on".
    pub reason: String,
    /// True if the reason may be gone in a moment, because it depends on the program alone.
    pub for_now: bool,
}

impl NotMovable {
    /// A reason that lasts.
    pub fn ever(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), for_now: false }
    }

    /// A reason that may be gone in a moment.
    pub fn for_now(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), for_now: true }
    }
}
