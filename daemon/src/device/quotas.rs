//! This file counts the amounts that contexts hold of shared limits.

use super::error::GuestError;
use super::model::DeviceOptions;
use super::quota::{Owner, Quota};
use config::PerHeap;

/// The quotas that contexts share. Resources and their memory count for the context that made them, even when it is gone.
#[derive(Debug)]
pub(super) struct Quotas {
    /// The contexts, counted by the name of the guest's program.
    pub(super) contexts: Quota,
    pub(super) resources: Quota,
    pub(super) shmem_bytes: Quota,
    pub(super) live_maps: Quota,
    /// Bytes of the host-visible region.
    pub(super) window: Quota,
    /// Bytes of memory that drivers allocate.
    pub(super) memory: PerHeap<Quota>,
    pub(super) memory_pieces: Quota,
    pub(super) rings: Quota,
}

impl Quotas {
    pub(super) fn new(options: &DeviceOptions) -> Self {
        let limits = &options.limits;
        Self {
            contexts: Quota::new("max-contexts", limits.contexts as u64),
            resources: Quota::new("max-resources", limits.resources as u64),
            shmem_bytes: Quota::new("ring-memory", limits.shmem_total_bytes),
            live_maps: Quota::new("max-maps", limits.live_maps as u64),
            window: Quota::new("window-size", options.window_size),
            memory: PerHeap {
                device: Quota::new("device-memory", limits.device_memory)
                    .with_each("context-device-memory", options.context_limits.device_memory),
                host: Quota::new("host-memory", limits.host_memory)
                    .with_each("context-host-memory", options.context_limits.host_memory),
            },
            memory_pieces: Quota::new("memory_pieces", limits.memory_pieces as u64),
            rings: Quota::new("max-vm-rings", limits.vm_rings as u64),
        }
    }

    pub(super) fn take_map(&mut self, owner: Owner, size: u64) -> Result<(), GuestError> {
        self.live_maps.take(owner, 1).map_err(GuestError::Limit)?;
        self.window.take(owner, size).map_err(|name| {
            self.live_maps.give_back(owner, 1);
            GuestError::Limit(name)
        })
    }

    pub(super) fn give_back_map(&mut self, owner: Owner, size: u64) {
        self.live_maps.give_back(owner, 1);
        self.window.give_back(owner, size);
    }
}
