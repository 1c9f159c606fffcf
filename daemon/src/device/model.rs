//! The state of the device, and the functions that make and reset it.

use super::context::Context;
use super::effects::Effects;
use super::pieces::{Pieces, Waiting};
use super::quota::Owner;
use super::quotas::Quotas;
use super::resource::Resource;
use super::scanout::Scanouts;
use super::starts::Starts;
use super::window::Window;
use config::{ContextLimits, DeviceLimits, MEMORY_REGIONS_MAX};
use protocol::ids::{ContextId, ResourceId};
use rustc_hash::{FxHashMap, FxHashSet};

/// The offer of a device, which is fixed for its life.
#[derive(Clone, Debug)]
pub(crate) struct DeviceOptions {
    /// The number of scanouts, 0 to 16; all of them are disconnected.
    pub num_scanouts: u32,
    /// Bytes of the host-visible region.
    pub window_size: u64,
    /// The Venus capability set.
    pub capset: Vec<u8>,
    /// Bounds on what the guest may hold.
    pub limits: DeviceLimits,
    /// Bounds on what one context may hold.
    pub context_limits: ContextLimits,
}

/// The fate of live mappings when the driver resets the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MapsAtReset {
    /// The frontend dropped them, or is gone.
    Forget,
    /// The frontend keeps them: each has to be unmapped.
    Unmap,
}

/// The device. `T` is the ticket of a command.
#[derive(Debug)]
pub(crate) struct Device<T> {
    pub(super) options: DeviceOptions,
    pub(super) contexts: FxHashMap<ContextId, Context<T>>,
    pub(super) resources: FxHashMap<ResourceId, Resource<T>>,
    pub(super) window: Window,
    pub(super) scanouts: Scanouts,
    pub(super) quotas: Quotas,
    pub(super) pieces: Pieces,
    pub(super) waiting: Vec<Waiting>,
    pub(super) starts: Starts<T>,
    /// Bytes of GPU memory that contexts which are not swapped out may hold.
    pub(super) room: u64,
    /// The owners without memory on a GPU, though memory counts for them: contexts that are swapped out, until their workers have ended.
    pub(super) away: FxHashSet<Owner>,
    /// Bytes of GPU memory that the quotas no longer count, although processes that were told to end still hold them: workers of a device that was
    /// reset, and processes with a driver of contexts whose workers had no driver.
    pub(super) dying: FxHashMap<Owner, u64>,
    pub(super) next_owner: u64,
}

impl<T> Device<T> {
    /// Makes a device as it is after power-on.
    pub(crate) fn new(options: DeviceOptions) -> Self {
        Self {
            contexts: FxHashMap::default(),
            resources: FxHashMap::default(),
            window: Window::new(options.window_size),
            scanouts: Scanouts::new(options.num_scanouts),
            quotas: Quotas::new(&options),
            pieces: Pieces::default(),
            waiting: Vec::new(),
            starts: Starts::default(),
            room: u64::MAX,
            away: FxHashSet::default(),
            dying: FxHashMap::default(),
            next_owner: 1,
            options,
        }
    }

    /// Returns to the state after power-on. Tickets of commands that were not answered yet are dropped.
    pub(crate) fn reset<E: Effects<Ticket = T>>(&mut self, maps: MapsAtReset, effects: &mut E) {
        for (offset, size, resource_id) in self.window.take_all() {
            if maps == MapsAtReset::Unmap && effects.unmap_blob(resource_id, offset, size).is_err() {
                log::error!(
                    "cannot unmap the blob of resource {resource_id} at {offset:#x} of the window as the device is reset"
                );
            }
        }
        for (ctx_id, context) in std::mem::take(&mut self.contexts) {
            if context.has_worker() {
                effects.end_worker(ctx_id);
            }
            self.drivers_end(context.owner, context.drivers);
        }
        self.waiting.clear();
        self.starts = Starts::default();
        for (resource_id, resource) in self.resources.drain() {
            if resource.holds_blob() {
                effects.drop_blob(resource_id);
            }
        }
        self.scanouts = Scanouts::new(self.options.num_scanouts);
        for owner in self.pieces.workers.keys().filter(|owner| !self.away.contains(owner)) {
            // The memory that a process with a driver holds for a context counts for the context's owner, and so is in the map already.
            self.dying.entry(*owner).or_insert_with(|| self.quotas.memory.device.held(*owner));
        }
        self.away.clear();
        self.quotas = Quotas::new(&self.options);
        // Memory that workers which are about to end still hold counts for no quota: the VM begins anew.
        self.pieces.clear().into_iter().for_each(|memory| effects.forget_memory(memory));
    }

    /// Sets how many blobs may be mapped at a time from now on, which depends on the frontend. If the frontend announces each mapping as a region of
    /// guest memory, it has `announced` regions, those of other devices among them.
    pub(crate) fn limit_maps(&mut self, announced: Option<usize>) {
        let limits = &self.options.limits;
        let most = announced.map_or(limits.live_maps_unannounced, |regions| {
            let others = regions.saturating_sub(self.quotas.live_maps.used() as usize);
            limits.live_maps.min(MEMORY_REGIONS_MAX.saturating_sub(others))
        });
        self.quotas.live_maps.limit(most as u64);
    }
}

/// Counts that only tests compare.
#[cfg(any(test, feature = "fuzzing"))]
impl<T> Device<T> {
    /// Returns the number of contexts, lost ones included.
    pub(crate) fn contexts(&self) -> usize {
        self.contexts.len()
    }

    /// Returns the number of resources.
    pub(crate) fn resources(&self) -> usize {
        self.resources.len()
    }

    /// Returns the number of mapped blobs, as the quota counts them.
    pub(crate) fn live_maps(&self) -> usize {
        self.quotas.live_maps.used() as usize
    }
}
