//! The messages themselves. Order matters: a worker handles [`ToWorker`] messages strictly one after another.
//!
//! To add a message: add a variant here, behind the others, and raise [`WORKER_MESSAGES`]; add its bytes to `message_tests`; handle it in
//! `worker::life::run` or in `Server::worker_says`; and write the fuzz targets' first inputs anew (`fuzz/README.md`). The messages of broker and
//! device process are in [`super::broker`], with a version of their own.

use config::{
    AtFault, CacheKey, ContextLimits, DepositId, GpuChoice, GpuInfo, Heap, MemoryCount, MemoryId, MemoryName,
    Passage, PerHeap, Wanted,
};
use protocol::ids::{BlobId, ContextId, FenceId, ResourceId, RingIdx};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use waiting::Heuristic;

/// The version of the messages between a device process and its workers, and of the pages and files that they share. It rises with each change of
/// these: a device process of another program goes on only with workers of the same version.
pub const WORKER_MESSAGES: u32 = 3;

/// The largest SUBMIT_3D payload in bytes that is sent inside a packet; a larger payload is sent in a sealed memfd beside the packet.
pub const INLINE_SUBMIT_MAX: usize = 64 * 1024;

/// The settings that a worker needs to know before it loads a driver; its first message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerSetup {
    /// The context that this worker serves.
    pub ctx_id: ContextId,
    /// `debug_name` of the context, shown in logs and process lists; already printable.
    pub debug_name: String,
    /// The GPUs as chosen at start-up ([`GpuInfo::choice`]), at least one, in the order in which guests see them. All have the same
    /// back end of mappable memory, and the same capabilities of queues.
    pub gpus: Vec<GpuChoice>,
    /// Bounds on what the guest may make this worker allocate.
    pub limits: ContextLimits,
    /// The key that pipeline caches are authenticated with.
    pub cache_key: CacheKey,
    /// The way in which submissions pass the gates, if there are gates: then [`ToWorker::Grants`] for each GPU and [`ToWorker::Doorbell`] follow.
    pub passage: Option<Passage>,
    /// The heuristics of waiting that are turned off.
    pub waiting_off: Vec<Heuristic>,
    /// The worker loads no driver: it takes over a context that is swapped out, with at most so many bytes of contents, and keeps the context until
    /// the program goes on.
    pub swapped_out: Option<u64>,
}

/// A virtio-gpu fence on one timeline of the context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fence {
    /// The timeline.
    pub ring_idx: RingIdx,
    /// The fence.
    pub fence_id: FenceId,
}

/// The way in which a guest must map a blob (`VIRTIO_GPU_MAP_CACHE_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MapInfo {
    /// Ordinary write-back memory (1).
    Cached,
    /// Write-combined (3).
    WriteCombined,
}

/// The kind of a resource, as the contexts that see it need to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ResourceKind {
    /// Shared memory, for rings and streams.
    SharedMemory,
    /// Device memory, to be imported.
    DeviceMemory {
        /// The guest can map it.
        mappable: bool,
        /// The piece, if there is a descriptor: answered by [`ToDevice::MemoryReturned`] when the worker does not use it any more.
        memory: Option<MemoryId>,
    },
    /// Device memory that is still being exported: the resource is attached again when the memory is there, or detached if the export fails.
    Expected,
}

/// Device process to worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToWorker {
    /// First message, exactly once. Descriptor: the page that both sides share.
    Setup(Box<WorkerSetup>),
    /// A resource became visible to the context, or its expected memory is there. Descriptor: the resource's memory, of a size that
    /// cannot change, if there is memory that the context can use.
    AttachResource {
        /// The resource's id.
        resource_id: ResourceId,
        /// Bytes that may be accessed.
        size: u64,
        /// The resource's kind.
        kind: ResourceKind,
    },
    /// The context no longer sees the resource.
    DetachResource {
        /// The resource's id.
        resource_id: ResourceId,
    },
    /// A virtqueue stream to execute (SUBMIT_3D). Descriptor: the payload if `inline` is empty and `size` is not 0.
    Submit {
        /// Payload bytes.
        size: u32,
        /// The payload if it is small.
        #[serde(with = "serde_bytes_vec")]
        inline: Vec<u8>,
        /// The fence that is signalled once the timeline passes this point; the worker always answers it, even after an error.
        fence: Option<Fence>,
    },
    /// Export the memory object `blob_id` as a resource; answered by [`ToDevice::BlobExported`] or [`ToDevice::BlobRefused`].
    /// The resource counts as attached to this context from then on.
    ExportBlob {
        /// The new resource.
        resource_id: ResourceId,
        /// The memory object, never 0.
        blob_id: BlobId,
        /// Bytes that the guest will map, a multiple of 4096.
        size: u64,
        /// The guest wants to map it.
        mappable: bool,
    },
    /// Answer to [`ToDevice::MemoryWanted`]. Descriptor: the file, if one was wanted. Handled ahead of earlier messages.
    MemoryGranted {
        /// The number of the request, as in [`ToDevice::MemoryWanted`].
        request: u32,
        /// The name of the piece, if one was wanted.
        memory: Option<MemoryId>,
        /// Bytes that may be allocated.
        bytes: u64,
    },
    /// Answer to [`ToDevice::MemoryWanted`]: a limit is reached, which is logged already.
    MemoryRefused {
        /// The number of the request, as in [`ToDevice::MemoryWanted`].
        request: u32,
    },
    /// Answer to [`ToDevice::BudgetWanted`]. Handled ahead of earlier messages.
    Budget {
        /// The number of the request, as in [`ToDevice::BudgetWanted`].
        request: u32,
        /// The memory of the context.
        memory: PerHeap<MemoryCount>,
    },
    /// A blob of this piece that the worker exported is gone, and no process has it mapped. Sent once for each blob whose memory the driver
    /// maps out of a device node and must not free before this message. Also sent for each blob of other memory that the worker holds and
    /// that no other worker was given: the worker must not reuse that memory before.
    BlobGone {
        /// The piece.
        memory: MemoryId,
    },
    /// The page of grants, sent after the set-up for each GPU in order, if submissions pass gates. Descriptor: the page.
    Grants,
    /// The doorbell, sent after [`Self::Grants`]. Descriptor: the eventfd to ring when the page has news for the scheduler.
    Doorbell,
    /// Write down the objects that a successor can make before this worker rests, and go on. Handled ahead of messages that wait for a ring.
    /// Descriptor: the socket that the successor reads from, which takes [`HandOver::Bytes`] and [`HandOver::End`]. The next [`Self::HandOver`]
    /// writes down the rest, unless [`Self::GoOn`] comes before.
    WritePrelude {
        /// The successor has made the objects of the earlier parts: only objects that were made or destroyed since are to be written.
        goes_on: bool,
        /// The successor can take over memory of this worker's driver: memory that only the driver uses is written down too, and its descriptors
        /// are sent as [`HandOver::File`]. Otherwise that memory is written down without its contents. The first part has no such memory, as the
        /// successor does not know yet.
        is_at_home: bool,
    },
    /// Make the objects that a worker writes down while it goes on. Sent after the set-up, ahead of [`Self::TakeOver`], and once for each
    /// part of the prelude. Descriptor: the socket to read from. Answered by [`ToDevice::PreludeBuilt`], or by [`ToDevice::Lost`].
    BuildPrelude,
    /// Come to rest, and write everything down for a successor. Handled ahead of messages that wait for a ring, and of those after them: such
    /// submissions and exports are written down too. Descriptor: the socket that the successor reads from, which takes [`HandOver`] messages.
    /// Answered by [`ToDevice::HandedOver`], or by [`ToDevice::Stays`] when the worker has gone on. Between this message and
    /// [`Self::GoOn`] the device process sends only answers to the worker's requests. The worker writes nothing before all is at rest and no
    /// obstacle is possible any more, because the successor begins to read with the first byte. A worker that stays for now is told again,
    /// with the same socket.
    HandOver {
        /// The contents of memory that only the driver uses are to be copied: the successor cannot have the memory itself.
        copies: bool,
        /// The successor has made the objects of the prelude: only objects that were made or destroyed since are to be written.
        goes_on: bool,
    },
    /// Take over from the context's worker. Sent after the set-up and the resources that the context sees, as soon as there are bytes to
    /// read. Descriptor: the socket that delivers [`HandOver`] messages; its end without [`HandOver::End`] means that the
    /// predecessor gives up. Answered by [`ToDevice::TakenOver`], or by [`ToDevice::Lost`].
    TakeOver,
    /// A worker that has handed over stays the context's worker and goes on. A worker that has taken over is the context's worker, and begins. Any
    /// other ignores this: a hand-over may be called off before the worker has answered [`Self::HandOver`], and this message then comes first.
    GoOn,
    /// Answer to [`ToDevice::CatchUpWanted`] and [`ToDevice::ClosingWanted`]. Handled ahead of earlier messages.
    CaughtUp {
        /// The number of the question.
        request: u32,
    },
    /// The answer to [`ToDevice::MemoryWanted`] may take long: until other VMs have given memory up, or the broker has the wait end.
    /// Handled ahead of earlier messages.
    MemoryWaits {
        /// The number of the request, as in [`ToDevice::MemoryWanted`].
        request: u32,
    },
    /// Come to rest, write a checkpoint, and go on. Descriptor: the memory file for the checkpoint, whose size cannot
    /// change. Answered by [`ToDevice::CheckpointWritten`] or [`ToDevice::NoCheckpoint`].
    WriteCheckpoint {
        /// The number of the checkpoint in the mark, from 1.
        number: u32,
    },
    /// Note in a journal from now on all that is executed after a checkpoint. Sent once, ahead of the first [`Self::WriteCheckpoint`].
    /// Descriptor: the file (`shm::journal`).
    KeepJournal,
}

impl ToWorker {
    /// Returns whether the message answers a request of a worker.
    pub fn is_answer(&self) -> bool {
        matches!(
            self,
            Self::MemoryGranted { .. }
                | Self::MemoryRefused { .. }
                | Self::MemoryWaits { .. }
                | Self::Budget { .. }
                | Self::CaughtUp { .. }
        )
    }
}

/// Worker to its successor, on a separate socket, and [`Self::Emptied`] back. Neither trusts the other more than the guest whose context
/// is handed over.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum HandOver {
    /// The next memory file, or the driver's export of memory that only the driver uses. Descriptor: the file or the export.
    File {
        /// The name of the memory.
        memory: MemoryName,
    },
    /// The next bytes of the snapshot, at most [`INLINE_SUBMIT_MAX`].
    Bytes(#[serde(with = "serde_bytes_vec")] Vec<u8>),
    /// Ahead of [`Self::End`]: contents of memory that only the driver uses follow the snapshot. Descriptor: the memory file through which they
    /// pass, in consecutive slots.
    Slots {
        /// The number of slots.
        count: u32,
        /// Bytes of each slot: whole pages.
        bytes: u64,
    },
    /// Ahead of [`Self::End`], from the device process: the commands executed after the snapshot. Descriptor: the journal.
    Journal {
        /// The number of the checkpoint that the snapshot is.
        number: u32,
    },
    /// The snapshot is complete.
    End,
    /// The next bytes of contents are in the next slot; after the last slot follows the first again.
    Filled,
    /// From the successor: of the filled slots that it has, it does not need the one that was filled first any more.
    Emptied,
}

/// Worker to device process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToDevice {
    /// Vulkan's loader is loaded, and the worker serves; sent once after [`ToWorker::Setup`]. The driver is loaded with the guest's instance.
    Ready,
    /// Answer to [`ToWorker::ExportBlob`]. Descriptor: the pages, mappable from offset 0; none if not mappable.
    BlobExported {
        /// The resource, as in [`ToWorker::ExportBlob`].
        resource_id: ResourceId,
        /// The way in which the guest must map it.
        map_info: MapInfo,
        /// The piece that is exported; none without a descriptor.
        memory: Option<MemoryId>,
    },
    /// An anchor, sent ahead of blobs whose memory the driver maps out of a device node. Descriptor: the anchor, which keeps that memory alive
    /// when the worker is gone. New anchors replace earlier ones, once none are left to come.
    Anchor {
        /// The number of anchors that follow.
        left: u32,
    },
    /// Answer to [`ToWorker::ExportBlob`]: there is no such memory, or it cannot be shared.
    BlobRefused {
        /// The resource, as in [`ToWorker::ExportBlob`].
        resource_id: ResourceId,
        /// For the log.
        reason: String,
    },
    /// A fence of [`ToWorker::Submit`] is passed. Per timeline in submission order.
    FenceSignalled(Fence),
    /// A ring begins: should the worker die, the device process marks it FATAL.
    RingBegins {
        /// The driver's id of the ring.
        ring: u64,
        /// The shared memory in which the ring lies.
        resource_id: ResourceId,
        /// Byte offset of its status word there, a multiple of 4.
        status: u64,
    },
    /// A ring has ended: the guest's driver may use its memory for another purpose.
    RingEnds {
        /// The driver's id of the ring.
        ring: u64,
    },
    /// The driver is about to allocate memory; answered by [`ToWorker::MemoryGranted`] or [`ToWorker::MemoryRefused`].
    MemoryWanted {
        /// A number for the answer.
        request: u32,
        /// The memory that is needed.
        wanted: Wanted,
    },
    /// The worker withdraws a [`Self::MemoryWanted`], which is answered nevertheless.
    MemoryWantedNoMore {
        /// The number of the request.
        request: u32,
    },
    /// The guest asks how much memory it has and could have; answered by [`ToWorker::Budget`].
    BudgetWanted {
        /// A number for the answer, of those of [`Self::MemoryWanted`].
        request: u32,
    },
    /// The worker returns a piece that it was given; it returns a piece twice that it was given twice.
    MemoryReturned {
        /// The piece's name.
        memory: MemoryId,
    },
    /// A descriptor of memory that only the driver uses, for a successor that takes over from a checkpoint. Descriptor: the driver's export.
    /// Deposits beyond the limit `deposits` are not kept, and the next checkpoint then does not count.
    Deposits {
        /// The number of the deposit, which is new.
        id: DepositId,
    },
    /// The driver has freed the memory of a deposit.
    TakesBack {
        /// The number of the deposit.
        id: DepositId,
    },
    /// The driver has freed memory.
    CreditReturned {
        /// The heap that the memory was in.
        heap: Heap,
        /// Bytes.
        bytes: u64,
    },
    /// A limit that the worker itself checks is reached; for the log.
    LimitReached {
        /// The limit's name in `config::ContextLimits`.
        limit: String,
    },
    /// A shader, or a pipeline of one, was refused.
    ShaderRefused {
        /// For the log, in words of ours.
        reason: String,
    },
    /// The guest asks for queues that `--queues` denies; for the log.
    Undrawn,
    /// A command has waited for a second for a submission that uses the command's object; for the log.
    Overdue {
        /// The command's name.
        command: String,
        /// The submission cannot even begin, so the command is refused.
        is_blocked: bool,
    },
    /// From a worker that keeps a context which is swapped out ([`WorkerSetup::swapped_out`]): a ring has a command for the driver, or
    /// messages are left.
    Wakes,
    /// Answer to [`ToWorker::BuildPrelude`]: all objects of this part are made.
    PreludeBuilt {
        /// The GPUs and drivers here are those of the context's worker: this successor can take over memory of that worker's driver.
        is_at_home: bool,
    },
    /// Answer to [`ToWorker::HandOver`]: the successor has been sent everything, and this worker rests until it is told to go on.
    HandedOver,
    /// Answer to [`ToWorker::HandOver`]: this worker has gone on, as the context cannot be handed over.
    Stays {
        /// For the operator, in words of ours.
        reason: String,
        /// The worker may hand over in a moment, and nothing was written to the successor.
        for_now: bool,
    },
    /// Ahead of [`Self::TakenOver`]: some of the pieces, if that message has no room for all.
    TakesOver {
        /// The pieces, as in [`Self::TakenOver`].
        pieces: Vec<MemoryId>,
    },
    /// Answer to [`ToWorker::TakeOver`]: the context is as it was, and rests.
    TakenOver {
        /// The pieces that this worker holds from its predecessor, each as often as it will return it. Those of resources that it was shown
        /// are not among them, nor those of [`Self::TakesOver`]. Rings that were taken over do not begin again.
        pieces: Vec<MemoryId>,
        /// Bytes that the predecessor was granted for memory that only the driver uses, as far as this worker knows. The bytes that it has
        /// returned are not subtracted.
        credit: PerHeap<u64>,
    },
    /// The context cannot go on (undecodable stream, lost device): its rings are FATAL and every fence is answered at once.
    Lost {
        /// The party at fault; none if the reason already names it.
        at_fault: Option<AtFault>,
        /// For the log, in words of ours.
        reason: String,
    },
    /// A submission runs longer than it may: the context is lost, and this process is to be killed.
    Hung {
        /// The time for which the submission was allowed to run; in milliseconds on the wire, so that each value is written in one way
        /// only.
        #[serde(with = "milliseconds")]
        limit: Duration,
    },
    /// Answered by [`ToWorker::CaughtUp`] when the requests are done that the guest sent before: memory that the guest freed is then unmapped.
    CatchUpWanted {
        /// A number for the answer, of those of [`Self::MemoryWanted`].
        request: u32,
    },
    /// Answered by [`ToWorker::CaughtUp`] when the device process has closed the descriptors that it was about to close, those of returned deposits
    /// among them: the driver then has that memory again.
    ClosingWanted {
        /// A number for the answer, of those of [`Self::MemoryWanted`].
        request: u32,
    },
    /// Answer to [`ToWorker::WriteCheckpoint`]: the checkpoint is written. From then on the mark in the page that both sides share says whether the
    /// checkpoint has all that was executed.
    CheckpointWritten {
        /// Bytes.
        bytes: u64,
        /// The time for which commands had to wait. Time before the worker read the message does not count.
        took: Duration,
    },
    /// Answer to [`ToWorker::WriteCheckpoint`]: there is no checkpoint.
    NoCheckpoint {
        /// For the log, in words of ours.
        reason: String,
        /// There may be a checkpoint as soon as the context does nothing once more.
        for_now: bool,
    },
    /// The journal fills, or is full: another checkpoint would empty it. Sent once or twice for each checkpoint.
    JournalFills,
}

/// The answer of the probe process: the GPUs in the driver's order, or the reason why no driver could be asked.
pub type ProbeReport = Result<Vec<GpuInfo>, String>;

/// The form of byte vectors on the wire: one length and the bytes.
mod serde_bytes_vec {
    use serde::de::{Error, SeqAccess, Visitor};
    use serde::{Deserializer, Serializer};
    use std::fmt;

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], s: S) -> Result<S::Ok, S::Error> {
        s.serialize_bytes(bytes)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<u8>, D::Error> {
        struct Bytes;
        impl<'de> Visitor<'de> for Bytes {
            type Value = Vec<u8>;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("bytes")
            }
            fn visit_bytes<E: Error>(self, v: &[u8]) -> Result<Vec<u8>, E> {
                Ok(v.to_vec())
            }
            fn visit_seq<A: SeqAccess<'de>>(self, _: A) -> Result<Vec<u8>, A::Error> {
                Err(A::Error::custom("a sequence where bytes belong"))
            }
        }
        d.deserialize_bytes(Bytes)
    }
}

/// The form of durations on the wire: 32-bit numbers of milliseconds, the unit of the status page.
mod milliseconds {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::time::Duration;

    pub(super) fn serialize<S: Serializer>(duration: &Duration, s: S) -> Result<S::Ok, S::Error> {
        u32::try_from(duration.as_millis()).unwrap_or(u32::MAX).serialize(s)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Duration, D::Error> {
        Ok(Duration::from_millis(u32::deserialize(d)?.into()))
    }
}
