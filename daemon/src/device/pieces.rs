//! The pieces of memory and the credit that workers hold, and the requests that wait for either.

use super::quota::Owner;
use super::quotas::Quotas;
use config::{Heap, MemoryId, PerHeap, Wanted};
use protocol::ids::ContextId;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

/// A request that waits for room, or for memory which ending workers hold.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Waiting {
    pub(super) ctx_id: ContextId,
    pub(super) request: u32,
    pub(super) wanted: Wanted,
    /// The worker was told that the request waits for room.
    pub(super) is_told: bool,
}

/// All pieces.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    pub(super) table: FxHashMap<MemoryId, Piece>,
    pub(super) workers: FxHashMap<Owner, Holdings>,
    pub(super) next: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Piece {
    pub(super) owner: Owner,
    pub(super) heap: Heap,
    pub(super) bytes: u64,
    pub(super) holders: u64,
    /// The piece was given to a worker for which it was not made.
    pub(super) shared: bool,
}

/// The pieces that one worker holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Holdings {
    /// Pieces, each with the number of times that it was given.
    pub(super) pieces: FxHashMap<MemoryId, u64>,
    pub(super) credit: PerHeap<u64>,
    /// Rings, each with a thread.
    pub(super) rings: u64,
}

impl Pieces {
    /// Forgets everything except which names were used.
    pub(crate) fn clear(&mut self) -> Vec<MemoryId> {
        self.workers.clear();
        self.table.drain().map(|(memory, _)| memory).collect()
    }

    pub(super) fn add(&mut self, owner: Owner, heap: Heap, bytes: u64) -> MemoryId {
        self.next += 1;
        let memory = MemoryId(self.next);
        self.table.insert(memory, Piece { owner, heap, bytes, holders: 0, shared: false });
        self.given(memory, owner);
        memory
    }

    /// A worker was given a piece, perhaps not for the first time.
    pub(super) fn given(&mut self, memory: MemoryId, worker: Owner) {
        if let Some(piece) = self.table.get_mut(&memory) {
            piece.holders += 1;
            piece.shared |= piece.owner != worker;
            *self.workers.entry(worker).or_default().pieces.entry(memory).or_default() += 1;
        }
    }

    /// The successor of a worker that sees a piece was given the piece. The piece does not count as shared, as the successor replaces the worker.
    pub(super) fn given_to_successor(&mut self, memory: MemoryId, successor: Owner) {
        if let Some(piece) = self.table.get_mut(&memory) {
            piece.holders += 1;
            *self.workers.entry(successor).or_default().pieces.entry(memory).or_default() += 1;
        }
    }

    /// Has a piece count for the owner `to`, if it counts for `from`.
    pub(super) fn count_for(&mut self, memory: MemoryId, from: Owner, to: Owner, quotas: &mut Quotas) {
        if let Some(piece) = self.table.get_mut(&memory).filter(|piece| piece.owner == from) {
            piece.owner = to;
            quotas.memory.of(piece.heap).pass_on(from, to, piece.bytes);
            quotas.memory_pieces.pass_on(from, to, 1);
        }
    }

    /// A blob shows the piece.
    pub(super) fn shown(&mut self, memory: MemoryId) {
        if let Some(piece) = self.table.get_mut(&memory) {
            piece.holders += 1;
        }
    }

    /// A holder let go of a piece, `times` times. Returns true if it was the last holder.
    pub(super) fn let_go(&mut self, memory: MemoryId, times: u64, quotas: &mut Quotas) -> bool {
        let Some(piece) = self.table.get_mut(&memory) else { return false };
        piece.holders = piece.holders.saturating_sub(times);
        if piece.holders > 0 {
            return false;
        }
        let Piece { owner, heap, bytes, .. } = *piece;
        self.table.remove(&memory);
        quotas.memory.of(heap).give_back(owner, bytes);
        quotas.memory_pieces.give_back(owner, 1);
        true
    }

    /// A worker no longer holds a piece that counts for it: from now on the piece counts for another worker that holds it.
    pub(super) fn pass_on(&mut self, memory: MemoryId, from: Owner, quotas: &mut Quotas) {
        let mut holders = self.workers.iter().filter(|(_, holdings)| holdings.pieces.contains_key(&memory));
        if let Some((&to, _)) = holders.next() {
            self.count_for(memory, from, to, quotas);
        }
    }
}
