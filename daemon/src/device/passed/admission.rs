//! The check of a device that comes from a file: anyone can have written the file, so no number in it is believed before this file has compared it
//! with the others and with the limits.

use super::super::Device;
use super::super::context::ContextState;
use super::super::pieces::Piece;
use super::super::quota::Owner;
use super::{PassedBlobState, PassedDevice};
use config::{Heap, MemoryId, PerHeap};
use protocol::ids::{ContextId, ResourceId, RingIdx};
use rustc_hash::{FxHashMap, FxHashSet};

/// Numbers of owners and pieces, at most: later ones can be counted up from there for ever.
const NUMBERS_MAX: u64 = 1 << 62;

/// A contradiction, or a limit that is lower than it was.
type Checked = Result<(), &'static str>;

impl<T> Device<T> {
    /// Returns whether nothing was done with the device since it was made or reset, and no worker of then is left.
    pub(crate) fn is_as_after_power_on(&self) -> bool {
        self.contexts.is_empty() && self.resources.is_empty() && self.pieces.workers.is_empty()
    }

    /// Checks that [`Self::resume`] can go on with a device.
    ///
    /// # Errors
    ///
    /// The reason why not, in words for operators.
    pub(crate) fn check<R>(&self, passed: &PassedDevice<R>) -> Checked {
        if passed.next_owner > NUMBERS_MAX || passed.next_piece > NUMBERS_MAX {
            return Err("the state is damaged: its numbers are too large");
        }
        if !(passed.waiting.is_empty() && passed.away.is_empty() && passed.dying.is_empty()) {
            return Err("the state is damaged: it names workers that no state has");
        }
        self.check_resources(passed)?;
        self.check_contexts(passed)?;
        self.check_pieces(passed)
    }

    fn check_resources<R>(&self, passed: &PassedDevice<R>) -> Checked {
        let pieces: FxHashMap<MemoryId, &Piece> =
            passed.pieces.iter().map(|(memory, piece)| (*memory, piece)).collect();
        let contexts: FxHashSet<ContextId> = passed.contexts.iter().map(|context| context.id).collect();
        let mut shmem = 0u64;
        for resource in &passed.resources {
            let Some(blob) = &resource.blob else { continue };
            match blob.state {
                PassedBlobState::Shmem => {
                    shmem = shmem.checked_add(resource.size).ok_or(CONTRADICTION)?;
                }
                PassedBlobState::Exported(_, creator) => {
                    if creator.is_some_and(|creator| !contexts.contains(&creator)) {
                        return Err(CONTRADICTION);
                    }
                }
                PassedBlobState::Lent(..) | PassedBlobState::Revoked { .. } => {
                    return Err("the state is damaged: a driver lends memory of it");
                }
            }
            let piece = blob.memory.map(|memory| pieces.get(&memory).ok_or(CONTRADICTION)).transpose()?;
            if piece.is_some_and(|piece| piece.bytes < resource.size) {
                return Err(CONTRADICTION);
            }
        }
        if shmem > self.options.limits.shmem_total_bytes {
            return Err("limit ring-memory is lower than when the state was saved");
        }
        let resources: FxHashSet<ResourceId> = passed.resources.iter().map(|resource| resource.id).collect();
        let attached = passed.contexts.iter().flat_map(|context| &context.attached);
        match attached.chain(passed.shown.iter().flatten()).all(|id| resources.contains(id)) {
            true => Ok(()),
            false => Err(CONTRADICTION),
        }
    }

    fn check_contexts<R>(&self, passed: &PassedDevice<R>) -> Checked {
        if passed.contexts.len() > self.options.limits.contexts {
            return Err("limit max-contexts is lower than when the state was saved");
        }
        let owners: FxHashSet<Owner> = passed.contexts.iter().map(|context| context.owner).collect();
        let timelines = || passed.contexts.iter().flat_map(|context| &context.timelines);
        let is_sound = owners.len() == passed.contexts.len()
            && passed.contexts.iter().all(|context| context.drivers.is_empty())
            && timelines().all(|(ring_idx, _)| ring_idx.0 < RingIdx::COUNT);
        match is_sound {
            true => Ok(()),
            false => Err(CONTRADICTION),
        }
    }

    fn check_pieces<R>(&self, passed: &PassedDevice<R>) -> Checked {
        let limits = &self.options.limits;
        if passed.pieces.len() > limits.memory_pieces {
            return Err("limit memory_pieces is lower than when the state was saved");
        }
        // Only workers hold something, and each that holds something is the worker of one context.
        let alive: FxHashSet<Owner> = passed.alive().map(|(_, number)| Owner(number)).collect();
        let mut held = PerHeap { device: 0u64, host: 0u64 };
        let (mut rings, mut holders) = (0u64, FxHashMap::<MemoryId, u64>::default());
        let mut seen = FxHashSet::default();
        for (owner, holdings) in &passed.holdings {
            if !alive.contains(owner) || !seen.insert(*owner) {
                return Err(CONTRADICTION);
            }
            rings = rings.checked_add(holdings.rings).ok_or(CONTRADICTION)?;
            for heap in [Heap::Device, Heap::Host] {
                let (mut credit, sum) = (holdings.credit, held.of(heap));
                *sum = sum.checked_add(*credit.of(heap)).ok_or(CONTRADICTION)?;
            }
            for (memory, times) in &holdings.pieces {
                let count = holders.entry(*memory).or_default();
                *count = count.checked_add(*times).filter(|_| *times > 0).ok_or(CONTRADICTION)?;
            }
        }
        let blobs = passed.resources.iter().filter_map(|resource| resource.blob.as_ref());
        for memory in blobs.filter_map(|blob| blob.memory) {
            let count = holders.entry(memory).or_default();
            *count = count.checked_add(1).ok_or(CONTRADICTION)?;
        }
        for (memory, piece) in &passed.pieces {
            let is_known = memory.0 <= passed.next_piece && piece.owner.0 < passed.next_owner;
            if !is_known || piece.holders == 0 || holders.remove(memory) != Some(piece.holders) {
                return Err(CONTRADICTION);
            }
            let sum = held.of(piece.heap);
            *sum = sum.checked_add(piece.bytes).ok_or(CONTRADICTION)?;
        }
        if !holders.is_empty() {
            return Err(CONTRADICTION);
        }
        match () {
            () if held.device > limits.device_memory => {
                Err("limit device-memory is lower than when the state was saved")
            }
            () if held.host > limits.host_memory => {
                Err("limit host-memory is lower than when the state was saved")
            }
            () if rings > limits.vm_rings as u64 => {
                Err("limit max-vm-rings is lower than when the state was saved")
            }
            () => Ok(()),
        }
    }

    /// Returns the resources that are mapped in the window, each with offset and bytes.
    pub(crate) fn mapped(&self) -> Vec<(ResourceId, u64, u64)> {
        self.window.ranges().map(|(offset, size, resource_id)| (resource_id, offset, size)).collect()
    }
}

impl<R> PassedDevice<R> {
    /// Leaves out what only concerns processes that exist now.
    pub(crate) fn for_a_file(mut self) -> Self {
        self.contexts.iter_mut().for_each(|context| context.drivers.clear());
        let (waiting, away, dying) = Default::default();
        Self { waiting, away, dying, ..self }
    }

    /// Returns the contexts that have a worker, each with the number of its worker.
    pub(crate) fn alive(&self) -> impl Iterator<Item = (ContextId, u64)> {
        let alive = self.contexts.iter().filter(|context| context.state == ContextState::Alive);
        alive.map(|context| (context.id, context.owner.0))
    }

    /// Checks that memory files fit the device: `files` has the bytes of each, its piece, and the resources whose memory it is.
    ///
    /// # Errors
    ///
    /// The reason why they do not fit, in words for operators.
    pub(crate) fn check_files<'a>(
        &self,
        files: impl Iterator<Item = (u64, Option<MemoryId>, &'a [ResourceId])>,
    ) -> Checked {
        let mut pieces: FxHashMap<MemoryId, u64> =
            self.pieces.iter().map(|(memory, piece)| (*memory, piece.bytes)).collect();
        let blobs = self.resources.iter().filter_map(|it| Some((it.id, (it.size, it.blob.as_ref()?.memory))));
        let mut blobs: FxHashMap<ResourceId, (u64, Option<MemoryId>)> = blobs.collect();
        for (bytes, piece, resources) in files {
            let of_piece = piece.map(|memory| pieces.remove(&memory).ok_or(CONTRADICTION)).transpose()?;
            let mut most = of_piece.unwrap_or(0);
            for resource_id in resources {
                let (size, memory) = blobs.remove(resource_id).ok_or(CONTRADICTION)?;
                if memory != piece || size > bytes {
                    return Err(CONTRADICTION);
                }
                most = most.max(size);
            }
            // Files have whole pages.
            if bytes > most.checked_next_multiple_of(PAGE).ok_or(CONTRADICTION)? {
                return Err(CONTRADICTION);
            }
        }
        Ok(())
    }
}

/// Bytes of a page.
const PAGE: u64 = 4096;

/// The error for a state that no device could have.
const CONTRADICTION: &str = "the state is damaged: its resources contradict each other";

#[cfg(test)]
#[path = "admission_tests.rs"]
mod tests;
