//! This file records where the rings of each context have their status words, and writes these for a worker that has died by itself.
//!
//! Drivers look for FATAL whenever they submit and while they wait. A worker sets ALIVE and drivers clear it; without FATAL they would wait until
//! ALIVE was missing for ten seconds. Workers are not believed: only a resource that the context sees is written to, and only a word that drivers
//! take bits away from.

use super::Blobs;
use protocol::ids::{ContextId, ResourceId};
use protocol::venus::generated::RingStatusFlagsMESA;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

/// The table of rings.
#[derive(Debug)]
pub(in crate::serve) struct Rings {
    per_context: usize,
    contexts: FxHashMap<ContextId, FxHashMap<u64, Status>>,
}

/// A ring as it is written down for another process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(in crate::serve) struct PassedRing {
    ctx_id: ContextId,
    ring: u64,
    resource_id: ResourceId,
    offset: u64,
}

/// A status word: byte offset in the memory of a resource.
#[derive(Clone, Copy, Debug)]
struct Status {
    resource_id: ResourceId,
    offset: u64,
}

impl PassedRing {
    /// Returns the ring's context.
    pub(in crate::serve) fn ctx_id(&self) -> ContextId {
        self.ctx_id
    }
}

impl Rings {
    /// Makes a table without rings, which keeps at most `per_context` of each context, as many as a worker allows.
    pub(in crate::serve) fn new(per_context: usize) -> Self {
        Self { per_context, contexts: FxHashMap::default() }
    }

    /// A worker says that a ring begins. A ring beyond the limit, or with a status that no driver could read, is left out.
    pub(in crate::serve) fn begins(
        &mut self,
        ctx_id: ContextId,
        ring: u64,
        resource_id: ResourceId,
        offset: u64,
    ) {
        let rings = self.contexts.entry(ctx_id).or_default();
        if rings.len() < self.per_context && offset.is_multiple_of(4) {
            rings.insert(ring, Status { resource_id, offset });
        }
    }

    /// A worker says that a ring has ended.
    pub(in crate::serve) fn ends(&mut self, ctx_id: ContextId, ring: u64) {
        if let Some(rings) = self.contexts.get_mut(&ctx_id) {
            rings.remove(&ring);
        }
    }

    /// Writes all rings down for another process.
    pub(in crate::serve) fn pass_on(&self) -> Vec<PassedRing> {
        let of = |(ctx_id, rings): (&ContextId, &FxHashMap<u64, Status>)| {
            let ctx_id = *ctx_id;
            let passed = |(ring, status): (&u64, &Status)| PassedRing {
                ctx_id,
                ring: *ring,
                resource_id: status.resource_id,
                offset: status.offset,
            };
            rings.iter().map(passed).collect::<Vec<_>>()
        };
        self.contexts.iter().flat_map(of).collect()
    }

    /// Goes on with the rings of another process.
    pub(in crate::serve) fn resume(&mut self, passed: Vec<PassedRing>) {
        for PassedRing { ctx_id, ring, resource_id, offset } in passed {
            self.begins(ctx_id, ring, resource_id, offset);
        }
    }

    /// The context is gone.
    pub(in crate::serve) fn forget(&mut self, ctx_id: ContextId) {
        self.contexts.remove(&ctx_id);
    }

    /// Marks all rings of a context ALIVE, while its worker is dead and its successor does not serve them yet. The write clears IDLE, which does no
    /// harm: the successor looks at the tail of each ring before it sleeps.
    pub(in crate::serve) fn keep_alive(
        &self,
        ctx_id: ContextId,
        blobs: &Blobs,
        sees: impl Fn(ResourceId) -> bool,
    ) {
        let all = self.contexts.get(&ctx_id).into_iter().flat_map(FxHashMap::values);
        all.for_each(|status| status.write(ctx_id, RingStatusFlagsMESA::ALIVE, blobs, &sees));
    }

    /// Marks all rings of a context FATAL, in those resources which the context sees.
    pub(in crate::serve) fn fail(
        &mut self,
        ctx_id: ContextId,
        blobs: &Blobs,
        sees: impl Fn(ResourceId) -> bool,
    ) {
        let all = self.contexts.remove(&ctx_id).into_iter().flat_map(FxHashMap::into_values);
        all.for_each(|status| status.write(ctx_id, RingStatusFlagsMESA::FATAL, blobs, &sees));
    }
}

impl Status {
    /// Writes the word, if the context sees the memory that it is in.
    fn write(
        self,
        ctx_id: ContextId,
        flags: RingStatusFlagsMESA,
        blobs: &Blobs,
        sees: &impl Fn(ResourceId) -> bool,
    ) {
        let memory = blobs.get(self.resource_id).filter(|_| sees(self.resource_id));
        // The worker is dead, and the driver only takes bits away. Nothing is written beyond the end: the file cannot grow.
        let written = memory.map(|memory| rustix::io::pwrite(memory, &flags.0.to_le_bytes(), self.offset));
        if !matches!(written, Some(Ok(_))) {
            log::debug!(context = ctx_id.0; "status of a ring of context {ctx_id} not written: {written:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::MemoryBackEnd;

    const CONTEXT: ContextId = ContextId(3);

    fn words(blobs: &Blobs, id: ResourceId) -> [u8; 16] {
        let mut bytes = [0; 16];
        rustix::io::pread(blobs.get(id).unwrap(), &mut bytes[..], 0).unwrap();
        bytes
    }

    #[test]
    fn only_live_rings_in_visible_memory_are_marked() {
        let (seen, hidden) = (ResourceId(1), ResourceId(2));
        let mut blobs = Blobs::new(MemoryBackEnd::Memfd);
        blobs.create(seen, 4096).unwrap();
        blobs.create(hidden, 4096).unwrap();
        let mut rings = Rings::new(6);
        rings.begins(CONTEXT, 1, seen, 4);
        rings.begins(CONTEXT, 2, seen, 8);
        rings.begins(CONTEXT, 3, hidden, 0);
        rings.begins(CONTEXT, 4, seen, 4096);
        rings.begins(CONTEXT, 5, seen, u64::MAX - 3);
        rings.begins(CONTEXT, 6, ResourceId(7), 0);
        rings.begins(CONTEXT, 7, seen, 12);
        rings.begins(ContextId(4), 1, seen, 12);
        rings.ends(CONTEXT, 2);
        rings.begins(CONTEXT, 8, seen, 13);
        rings.fail(CONTEXT, &blobs, |id| id == seen);
        assert_eq!(words(&blobs, seen), [0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(words(&blobs, hidden), [0; 16]);
    }
}
