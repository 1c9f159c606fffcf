//! This file is the entry point for fuzzing the state machine: guests, workers and a failing host act in any order, and a panic means
//! a bug.
//!
//! The fuzzer keeps to the guarantees of `serve`: only running workers send messages, only pending exports are answered. [`world`] checks each
//! effect; this file checks the invariants between events and at the end.

mod event;
mod world;

use super::{Device, DeviceOptions, MapsAtReset};
use arbitrary::Unstructured;
use config::{ContextLimits, DeviceLimits, Heap, MemoryId, PerHeap};
pub(crate) use event::{Event, header};
use event::{Says, Step};
use protocol::ids::{ContextId, FenceId, ResourceId};
use protocol::virtio_gpu::MapCache;
use world::{Ticket, World};

/// Bytes of a page.
const PAGE: u64 = 4096;
/// Bytes of the host-visible region.
pub(crate) const WINDOW: u64 = 6 * PAGE;
/// Pieces of memory that a sequence may have made and still export.
const MEMORIES: u64 = 64;
/// Limits that are so small that a fuzzer reaches each of them.
pub(crate) const LIMITS: DeviceLimits = DeviceLimits {
    contexts: 2,
    resources: 3,
    live_maps: 2,
    live_maps_unannounced: 2,
    backing_entries: 16,
    submit_bytes: 256,
    shmem_blob_bytes: 3 * PAGE,
    shmem_total_bytes: 5 * PAGE,
    worker_backlog: 16,
    worker_backlog_bytes: 4096,
    worker_backlog_files: 16,
    log_lines: 16,
    device_memory: 4 * PAGE,
    host_memory: 6 * PAGE,
    memory_pieces: 3,
    deposits: 3,
    vm_rings: 2,
};

/// Checks that every command is answered exactly once, and that no event causes more effects than there are due answers and objects. Returns the
/// number of events.
pub fn fuzz_device(bytes: &[u8]) -> usize {
    let mut rig = Rig::new();
    let mut count = 0;
    for event in events(bytes) {
        rig.happen(&event);
        rig.check();
        count += 1;
    }
    rig.finish();
    count
}

/// Returns the events for which these bytes stand.
fn events(bytes: &[u8]) -> impl Iterator<Item = Event> {
    let mut bytes = Unstructured::new(bytes);
    std::iter::from_fn(move || if bytes.is_empty() { None } else { bytes.arbitrary().ok() })
}

struct Rig {
    device: Device<Ticket>,
    world: World,
    tickets: u32,
    requests: u32,
}

impl Rig {
    fn new() -> Self {
        let options = DeviceOptions {
            num_scanouts: 2,
            window_size: WINDOW,
            capset: vec![7; 160],
            limits: LIMITS,
            context_limits: ContextLimits::default(),
        };
        Self { device: Device::new(options), world: World::default(), tickets: 0, requests: 0 }
    }

    fn happen(&mut self, event: &Event) {
        self.world.begin();
        match event {
            Event::Request { context, fence, request } => {
                self.tickets += 1;
                let ticket = self.world.promise(self.tickets);
                let header = event::header(*context, fence.as_ref());
                self.device.handle(&header, &request.command(), ticket, &mut self.world);
            }
            Event::Worker { context, says } => {
                let ctx_id = ContextId(context.0);
                if self.world.is_running(ctx_id) {
                    self.worker_says(ctx_id, says);
                }
            }
            Event::HostFails(fails) => {
                self.world.fails = *fails;
                self.bury();
            }
            Event::Reset { maps_kept: true } => self.reset(MapsAtReset::Unmap),
            Event::Reset { maps_kept: false } => self.reset(MapsAtReset::Forget),
        }
    }

    fn worker_says(&mut self, ctx_id: ContextId, says: &Says) {
        // A worker that rests gives back the memory that it was given in answer to older questions.
        let is_heard = |says: &Says| {
            matches!(says, Says::HandsOver(_) | Says::Lost | Says::Returns(_) | Says::GivesCredit { .. })
        };
        if self.world.rests(ctx_id) && !is_heard(says) {
            return;
        }
        match says {
            Says::HandsOver(step) => self.hands_over(ctx_id, *step),
            Says::Started => self.device.worker_started(ctx_id, &mut self.world),
            Says::Signalled { ring_idx, fence } => {
                let (ring_idx, fence_id) = ((*ring_idx).into(), FenceId(fence.0.into()));
                self.device.fence_signalled(ctx_id, ring_idx, fence_id, &mut self.world);
            }
            Says::Exported(resource) => {
                let resource_id = ResourceId::from(*resource);
                if let Some((size, _)) = self.device.pending_export(ctx_id, resource_id) {
                    let mut pieces = (0..=MEMORIES).map(MemoryId);
                    let memory = pieces.rfind(|memory| self.device.held_piece(ctx_id, *memory) >= Some(size));
                    self.world.exported(ctx_id, resource_id, size);
                    let lent = memory.is_some_and(|memory| memory.0 & 1 != 0);
                    self.device.blob_exported(resource_id, MapCache::Cached, memory, lent, &mut self.world);
                }
            }
            Says::Refused(resource) => {
                let resource_id = ResourceId::from(*resource);
                if self.device.pending_export(ctx_id, resource_id).is_some() {
                    self.device.blob_refused(resource_id, &mut self.world);
                }
            }
            Says::Wants(wanted) => {
                self.requests += 1;
                self.world.wants(ctx_id, self.requests);
                self.device.memory_wanted(ctx_id, self.requests, *wanted, &mut self.world);
            }
            Says::WantsBudget => {
                self.requests += 1;
                self.world.wants(ctx_id, self.requests);
                self.device.budget_wanted(ctx_id, self.requests, &mut self.world);
            }
            Says::Returns(id) => {
                if let Some(memory) = self.world.recent_memory(id.0) {
                    self.device.memory_returned(ctx_id, memory, &mut self.world);
                }
            }
            Says::GivesCredit { heap, pages } => {
                self.device.credit_returned(ctx_id, *heap, PAGE * pages, &mut self.world)
            }
            Says::Lost => self.lose(ctx_id),
        }
    }

    fn hands_over(&mut self, ctx_id: ContextId, step: Step) {
        let has_begun = self.world.has_successor(ctx_id);
        match step {
            Step::Begins if !has_begun && self.device.obstacle(ctx_id).is_none() => {
                let number = self.device.successor_number();
                self.world.successor_begins(ctx_id, number);
                self.device.show_to_successor(ctx_id, number, &mut self.world);
            }
            Step::Returns(id) if has_begun => {
                let heap = if id.0 & 1 == 0 { Heap::Device } else { Heap::Host };
                self.device.credit_returned_by_successor(ctx_id, heap, PAGE * u64::from(id.0));
                if let Some(memory) = self.world.recent_memory(id.0) {
                    self.device.returned_by_successor(ctx_id, memory, &mut self.world);
                }
            }
            Step::Takes(id) if has_begun => {
                let memory = self.world.recent_memory(id.0).unwrap_or(MemoryId(MEMORIES));
                self.device.takes_over(ctx_id, &[memory, memory, MemoryId(u64::MAX)]);
                let host = PAGE * u64::from(id.0);
                self.device.takes_credit_over(ctx_id, PerHeap { device: u64::MAX - host, host });
            }
            Step::Rests if has_begun => {
                self.device.context_rests(ctx_id);
                self.world.rests_now(ctx_id);
            }
            Step::Done if self.world.rests(ctx_id) => {
                let before = self.device.memory_used();
                self.world.successor_serves(ctx_id);
                self.device.handed_over(ctx_id, &mut self.world);
                let after = self.device.memory_used();
                // Other contexts that waited may have got the memory of which this one let go.
                let is_less = after.0 <= before.0 && after.1 <= before.1;
                assert!(is_less || !self.world.ending.is_empty(), "{before:?} has become {after:?}");
            }
            Step::CalledOff if has_begun => {
                self.world.successor_gone(ctx_id);
                self.device.hand_over_ends(ctx_id, &mut self.world);
            }
            _ => {}
        }
    }

    fn lose(&mut self, ctx_id: ContextId) {
        self.world.worker_gone(ctx_id);
        self.device.context_lost(ctx_id, &mut self.world);
    }

    /// Ends the processes of workers that were told to end, or ended by themselves.
    fn bury(&mut self) {
        for worker in std::mem::take(&mut self.world.ending) {
            self.device.worker_ended(worker, &mut self.world);
        }
    }

    fn reset(&mut self, maps: MapsAtReset) {
        if maps == MapsAtReset::Forget {
            self.world.forget_maps();
        }
        self.device.reset(maps, &mut self.world);
        self.world.after_reset();
    }

    fn check(&self) {
        self.world.check(LIMITS.contexts);
        assert!(self.device.contexts() <= LIMITS.contexts && self.device.resources() <= LIMITS.resources);
        assert_eq!(self.device.live_maps(), self.world.live_maps());
        assert!(self.device.live_maps() <= LIMITS.live_maps);
        let (device, host) = self.device.memory_used();
        assert!(device <= LIMITS.device_memory && host <= LIMITS.host_memory, "{device} and {host} bytes");
    }

    /// Asserts that when all workers are gone, nothing is owed; after a reset, nothing is held.
    fn finish(&mut self) {
        self.world.fails = false;
        for ctx_id in self.world.running() {
            self.world.begin();
            self.lose(ctx_id);
        }
        assert_eq!(self.world.due(), 0, "commands without an answer");
        self.bury();
        self.world.begin();
        self.reset(MapsAtReset::Unmap);
        assert_eq!((self.device.contexts(), self.device.resources(), self.device.live_maps()), (0, 0, 0));
        assert_eq!(self.device.memory_used(), (0, 0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, path::Path};

    #[test]
    fn committed_sequences_hold() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/device_commands");
        let files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        let mut count = 0;
        for file in files {
            count += fuzz_device(&fs::read(file).unwrap());
        }
        assert!(count > 1000, "seeds make only {count} events");
    }

    #[test]
    fn sequences_of_any_bytes_hold() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        for _ in 0..500 {
            let bytes: Vec<u8> = std::iter::repeat_with(|| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state >> 32) as u8
            })
            .take(4096)
            .collect();
            fuzz_device(&bytes);
        }
    }
}
