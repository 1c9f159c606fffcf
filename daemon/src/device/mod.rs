//! The virtio-gpu device as a state machine (VIRTIO 1.3, 5.7): commands and worker events in, effects out.
//!
//! Knows no socket, process, thread, clock or Vulkan. What happens outside is asked for through [`Effects`] and reported back
//! by [`Device::blob_exported`] and its neighbours. A command's answer is due through the command's ticket: a value the
//! device only keeps and hands back with the answer, exactly once.

mod blob;
mod command;
mod context;
mod effects;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
#[cfg_attr(not(feature = "fuzzing"), allow(unreachable_pub, reason = "fuzz targets name its items"))]
pub mod fuzzing;
mod memory;
mod quota;
mod resource;
mod scanout;
#[cfg(test)]
mod tests;
mod window;

pub(crate) use effects::{Effects, Shown};
pub(crate) use error::{EffectFailed, GuestError};

use crate::config::{ContextLimits, DeviceLimits, PerHeap};
use context::Context;
use memory::{Pieces, Waiting};
use protocol::ids::{ContextId, ResourceId};
pub(crate) use quota::{Owner, Quota};
use resource::Resource;
use rustc_hash::FxHashMap;
use scanout::Scanouts;
use window::Window;

/// What a device offers; fixed for its life.
#[derive(Clone, Debug)]
pub(crate) struct DeviceOptions {
    /// Scanouts, 0 to 16; all of them disconnected.
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

/// What happens to live mappings when the driver resets the device.
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
    options: DeviceOptions,
    contexts: FxHashMap<ContextId, Context<T>>,
    resources: FxHashMap<ResourceId, Resource<T>>,
    window: Window,
    scanouts: Scanouts,
    quotas: Quotas,
    pieces: Pieces,
    waiting: Vec<Waiting>,
    next_owner: u64,
}

/// What contexts share. Resources and what they hold count for the context that made them, even when it is gone.
#[derive(Debug)]
struct Quotas {
    /// By the name of the guest's program.
    contexts: Quota,
    resources: Quota,
    shmem_bytes: Quota,
    live_maps: Quota,
    /// Bytes of the host-visible region.
    window: Quota,
    /// Bytes of memory that drivers allocate.
    memory: PerHeap<Quota>,
    memory_pieces: Quota,
    rings: Quota,
}

impl Quotas {
    fn new(options: &DeviceOptions) -> Self {
        let limits = &options.limits;
        Self {
            contexts: Quota::new("contexts", limits.contexts as u64),
            resources: Quota::new("resources", limits.resources as u64),
            shmem_bytes: Quota::new("shmem_total_bytes", limits.shmem_total_bytes),
            live_maps: Quota::new("live_maps", limits.live_maps as u64),
            window: Quota::new("window_size", options.window_size),
            memory: PerHeap {
                device: Quota::new("device_memory", limits.device_memory)
                    .with_each("context_device_memory", options.context_limits.device_memory),
                host: Quota::new("host_memory", limits.host_memory)
                    .with_each("context_host_memory", options.context_limits.host_memory),
            },
            memory_pieces: Quota::new("memory_pieces", limits.memory_pieces as u64),
            rings: Quota::new("vm_rings", limits.vm_rings as u64),
        }
    }

    fn take_map(&mut self, owner: Owner, size: u64) -> Result<(), GuestError> {
        self.live_maps.take(owner, 1).map_err(GuestError::Limit)?;
        self.window.take(owner, size).map_err(|name| {
            self.live_maps.give_back(owner, 1);
            GuestError::Limit(name)
        })
    }

    fn give_back_map(&mut self, owner: Owner, size: u64) {
        self.live_maps.give_back(owner, 1);
        self.window.give_back(owner, size);
    }
}

impl<T> Device<T> {
    /// A device as it is after power-on.
    pub(crate) fn new(options: DeviceOptions) -> Self {
        Self {
            contexts: FxHashMap::default(),
            resources: FxHashMap::default(),
            window: Window::new(options.window_size),
            scanouts: Scanouts::new(options.num_scanouts),
            quotas: Quotas::new(&options),
            pieces: Pieces::default(),
            waiting: Vec::new(),
            next_owner: 1,
            options,
        }
    }

    /// Returns to the state after power-on. Tickets of commands that were not answered yet are dropped.
    pub(crate) fn reset<E: Effects<Ticket = T>>(&mut self, maps: MapsAtReset, effects: &mut E) {
        for (offset, size, resource_id) in self.window.take_all() {
            if maps == MapsAtReset::Unmap && effects.unmap_blob(resource_id, offset, size).is_err() {
                log::error!(resource_id = resource_id.0, offset; "cannot unmap a blob at reset");
            }
        }
        for (ctx_id, context) in self.contexts.drain() {
            if context.has_worker() {
                effects.end_worker(ctx_id);
            }
        }
        self.waiting.clear();
        for (resource_id, resource) in self.resources.drain() {
            if resource.holds_blob() {
                effects.drop_blob(resource_id);
            }
        }
        self.scanouts = Scanouts::new(self.options.num_scanouts);
        self.quotas = Quotas::new(&self.options);
        // What workers that are about to end still hold is not counted: the VM begins anew.
        self.pieces.clear().into_iter().for_each(|memory| effects.forget_memory(memory));
    }

    /// Bounds the blobs that are mapped at a time from now on, as the frontend can hold them.
    pub(crate) fn limit_maps(&mut self, most: usize) {
        self.quotas.live_maps.limit(most as u64);
    }
}

/// Counts that only tests compare.
#[cfg(any(test, feature = "fuzzing"))]
impl<T> Device<T> {
    /// Contexts alive, lost ones included.
    pub(crate) fn contexts(&self) -> usize {
        self.contexts.len()
    }

    /// Resources alive.
    pub(crate) fn resources(&self) -> usize {
        self.resources.len()
    }

    /// Blobs mapped, as the quota counts them.
    pub(crate) fn live_maps(&self) -> usize {
        self.quotas.live_maps.used() as usize
    }
}
