//! A device as it may be written down, for tests and fuzzers.

use super::super::context::{Context, ContextState};
use super::super::quota::Owner;
use super::super::resource::{HostBlob, HostBlobState, Kind, Resource};
use super::super::{Device, DeviceOptions};
use super::PassedDevice;
use config::{ContextLimits, DeviceLimits, Heap};
use protocol::ids::{ContextId, FenceId, ResourceId, RingIdx};
use protocol::virtio_gpu::MapCache;

pub(crate) const WORKER: u64 = 1;
pub(crate) const CONTEXT: ContextId = ContextId(5);
pub(crate) const EXPORTED: ResourceId = ResourceId(3);
pub(crate) const SHMEM: ResourceId = ResourceId(4);
/// Bytes of each resource.
pub(crate) const SIZE: u64 = 8192;

/// A device within these limits as it is after power-on.
pub(crate) fn new<T>(limits: DeviceLimits) -> Device<T> {
    let context_limits = ContextLimits::default();
    Device::new(DeviceOptions {
        num_scanouts: 1,
        window_size: 1 << 20,
        capset: vec![7],
        limits,
        context_limits,
    })
}

/// A device with a context that has exported memory and shares a ring, waits for a fence, and holds credit.
pub(crate) fn saved<R: Clone>(request: &R) -> PassedDevice<R> {
    let (worker, mut old) = (Owner(WORKER), new(DeviceLimits::default()));
    old.next_owner = 2;
    old.quotas.contexts.hold(Owner(77), 1);
    let mut context = Context::new(ContextState::Alive, worker, Owner(77));
    context.attach(EXPORTED);
    context.await_fence(RingIdx(1), FenceId(7), ());
    old.contexts.insert(CONTEXT, context);
    old.quotas.memory.host.hold(worker, SIZE);
    old.quotas.memory_pieces.hold(worker, 1);
    let memory = old.pieces.add(worker, Heap::Host, SIZE);
    old.pieces.shown(memory);
    let holdings = old.pieces.workers.entry(worker).or_default();
    (*holdings.credit.of(Heap::Device), holdings.rings) = (4096, 1);
    for (id, state, memory, mapped) in [
        (EXPORTED, HostBlobState::Exported(MapCache::Cached, Some(CONTEXT)), Some(memory), Some(4096)),
        (SHMEM, HostBlobState::Shmem, None, None),
    ] {
        let blob = HostBlob { state, mappable: true, mapped, memory };
        old.resources.insert(id, Resource::new(SIZE, Kind::HostBlob(blob), worker));
    }
    old.pass_on(|()| Some(request.clone())).expect("nothing is under way").for_a_file()
}
