//! This file declares the actions that the device asks of its surroundings.

use super::error::{EffectFailed, GuestError};
use config::{MemoryCount, MemoryId, PerHeap};
use protocol::ids::{BlobId, ContextId, FenceId, ResourceId, RingIdx};
use protocol::virtio_gpu::{Header, Response};

/// The view of a resource that a context's worker is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    /// Shared memory made by [`Effects::create_shmem`].
    SharedMemory,
    /// Device memory that a worker exported.
    DeviceMemory {
        /// The guest can map it.
        mappable: bool,
        /// The counted memory behind the resource, if it can be passed on.
        memory: Option<MemoryId>,
    },
    /// Device memory whose export is pending: the resource is shown again, or hidden, when the worker has answered.
    Expected,
}

impl Shown {
    /// Returns the counted memory that is passed on with the resource.
    pub(crate) fn memory(self) -> Option<MemoryId> {
        match self {
            Self::DeviceMemory { memory, .. } => memory,
            Self::SharedMemory | Self::Expected => None,
        }
    }
}

/// Performs the decisions of the device. Calls take effect in their order; none may wait for a worker.
pub(crate) trait Effects {
    /// Identifies a command whose answer is due.
    type Ticket;

    /// Answers a command.
    fn respond(&mut self, ticket: Self::Ticket, response: Response);

    /// Notes for the operator that a command is about to be answered with an error.
    fn refused(&mut self, header: &Header, error: &GuestError);

    /// Starts the worker of a new context. The guest chooses `debug_name`, which can be any bytes; `worker` is for
    /// [`super::Device::worker_ended`], once the process has ended.
    fn start_worker(&mut self, ctx_id: ContextId, debug_name: &[u8], worker: u64)
    -> Result<(), EffectFailed>;

    /// Ends a context's worker; the device gets no more messages from it.
    fn end_worker(&mut self, ctx_id: ContextId);

    /// Executes a stream in the context's worker. The fence is reported by [`super::Device::fence_signalled`].
    fn submit(
        &mut self,
        ctx_id: ContextId,
        data: &[u8],
        fence: Option<(RingIdx, FenceId)>,
    ) -> Result<(), EffectFailed>;

    /// Makes a zeroed memory file, and gives it to the worker that asked for it with this request.
    fn make_memory(
        &mut self,
        ctx_id: ContextId,
        request: u32,
        memory: MemoryId,
        size: u64,
    ) -> Result<(), EffectFailed>;

    /// Tells a worker that its driver may allocate so many bytes, as a piece of this name if the worker asked for a piece.
    fn grant_memory(&mut self, ctx_id: ContextId, request: u32, memory: Option<MemoryId>, bytes: u64);

    /// Tells a worker how much memory its context has and could have.
    fn tell_budget(&mut self, ctx_id: ContextId, request: u32, memory: PerHeap<MemoryCount>);

    /// Tells a worker that its request waits until other VMs give memory up.
    fn memory_waits(&mut self, ctx_id: ContextId, request: u32);

    /// Refuses a worker memory, because of this limit; without a limit, the worker has withdrawn the request.
    fn refuse_memory(&mut self, ctx_id: ContextId, request: u32, limit: Option<&'static str>);

    /// Forgets a piece that no worker and no resource holds any more.
    fn forget_memory(&mut self, memory: MemoryId);

    /// Makes zeroed shared memory and keeps it under `resource_id`.
    fn create_shmem(&mut self, resource_id: ResourceId, size: u64) -> Result<(), EffectFailed>;

    /// Asks the context's worker to export a memory object; answered by [`super::Device::blob_exported`] or
    /// [`super::Device::blob_refused`].
    fn export_blob(
        &mut self,
        ctx_id: ContextId,
        resource_id: ResourceId,
        blob_id: BlobId,
        size: u64,
        mappable: bool,
    ) -> Result<(), EffectFailed>;

    /// Tells the worker of a context that a blob of its memory is gone, and mapped nowhere. The worker lends that memory, or it was given
    /// to no other worker.
    fn blob_gone(&mut self, ctx_id: ContextId, memory: MemoryId);

    /// Lets go of the memory kept under `resource_id`, which is not mapped, and remembers that there was memory.
    fn revoke_blob(&mut self, resource_id: ResourceId);

    /// Lets go of the memory kept under `resource_id`, if it is still there.
    fn drop_blob(&mut self, resource_id: ResourceId);

    /// Shows the memory kept under `resource_id` to a context's worker, and to the worker's successor if it was shown the context's resources.
    fn attach(&mut self, ctx_id: ContextId, resource_id: ResourceId, size: u64, shown: Shown);

    /// Shows the memory kept under `resource_id` only to the successor of a context's worker.
    fn attach_to_successor(&mut self, ctx_id: ContextId, resource_id: ResourceId, size: u64, shown: Shown);

    /// Hides a resource again, from worker and successor.
    fn detach(&mut self, ctx_id: ContextId, resource_id: ResourceId);

    /// Maps the memory kept under `resource_id` into the host-visible region, and returns when that is done.
    fn map_blob(&mut self, resource_id: ResourceId, offset: u64, size: u64) -> Result<(), EffectFailed>;

    /// Unmaps that memory, and returns when that is done.
    fn unmap_blob(&mut self, resource_id: ResourceId, offset: u64, size: u64) -> Result<(), EffectFailed>;

    /// Returns sixteen random bytes.
    fn random(&mut self) -> Result<[u8; 16], EffectFailed>;
}
