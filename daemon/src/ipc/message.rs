//! The messages themselves. Order matters: a worker handles [`ToWorker`] messages strictly one after another.

use config::{
    AtFault, CacheKey, ContextLimits, DepositId, GpuChoice, GpuInfo, Heap, MemoryCount, MemoryId, MemoryName,
    Passage, PerHeap, Wanted,
};
use protocol::ids::{BlobId, ContextId, FenceId, ResourceId, RingIdx};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use waiting::Heuristic;

/// The version of the messages between a device process and its workers, and of the pages and files that they share. It rises with each change of these: a
/// device process of another program goes on with workers of the same version only.
pub const WORKER_MESSAGES: u32 = 3;

/// Largest SUBMIT_3D payload in bytes that travels inside a packet; a larger one comes in a sealed memfd beside it.
pub const INLINE_SUBMIT_MAX: usize = 64 * 1024;

/// The settings that a worker needs to know before it loads a driver; its first message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerSetup {
    /// The context this worker serves.
    pub ctx_id: ContextId,
    /// `debug_name` of the context, shown in logs and process lists; already printable.
    pub debug_name: String,
    /// The GPUs as chosen at start-up ([`GpuInfo::choice`]), in the order in which guests see them. At least one; what their mappable
    /// memory is made of and what their queues are for is the same.
    pub gpus: Vec<GpuChoice>,
    /// Bounds on what the guest may make this worker allocate.
    pub limits: ContextLimits,
    /// The key that pipeline caches are authenticated with.
    pub cache_key: CacheKey,
    /// The way in which submissions pass the gates, if there are some: then [`ToWorker::Grants`] for each GPU and [`ToWorker::Doorbell`] follow.
    pub passage: Option<Passage>,
    /// The heuristics of waiting that are turned off.
    pub waiting_off: Vec<Heuristic>,
    /// The worker loads no driver: it takes a context over that is swapped out, with so many bytes of contents at most, and keeps it until the
    /// program goes on.
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
        /// The piece it is, if there is a descriptor: answered by [`ToDevice::MemoryReturned`] when it is not used any more.
        memory: Option<MemoryId>,
    },
    /// Device memory that is still being exported: attached again when it is there, detached when it will not be.
    Expected,
}

/// Device process to worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToWorker {
    /// First message, exactly once. Descriptor: the page that both sides share.
    Setup(Box<WorkerSetup>),
    /// A resource became visible to the context, or what was expected is there. Descriptor: its memory, of a size that cannot
    /// change, if there is any that the context can use.
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
        /// Signalled once the timeline passes this point; always answered, also after an error.
        fence: Option<Fence>,
    },
    /// Export the memory object `blob_id` as a resource; answered by [`ToDevice::BlobExported`] or [`ToDevice::BlobRefused`].
    /// The resource counts as attached to this context from then on.
    ExportBlob {
        /// The new resource.
        resource_id: ResourceId,
        /// The memory object, never 0.
        blob_id: BlobId,
        /// Bytes the guest will map, a multiple of 4096.
        size: u64,
        /// The guest wants to map it.
        mappable: bool,
    },
    /// Answer to [`ToDevice::MemoryWanted`]. Descriptor: the file, if one was wanted. Handled ahead of what came before.
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
    /// Answer to [`ToDevice::BudgetWanted`]. Handled ahead of what came before.
    Budget {
        /// The number of the request, as in [`ToDevice::BudgetWanted`].
        request: u32,
        /// The memory of the context.
        memory: PerHeap<MemoryCount>,
    },
    /// A blob of this piece that the worker exported is gone, and nobody has it mapped: sent once for each blob whose memory the driver
    /// maps out of a device node, and must not free before; and for each of other memory that the worker holds and no other was given,
    /// which it must not use for something else before.
    BlobGone {
        /// The piece.
        memory: MemoryId,
    },
    /// The page of grants, sent behind the set-up for each GPU in order, if submissions pass gates. Descriptor: the page.
    Grants,
    /// The doorbell, sent behind [`Self::Grants`]. Descriptor: what to ring when the scheduler has something to look at.
    Doorbell,
    /// Write down what a successor can make before this worker rests, and go on. Handled ahead of what waits for a ring. Descriptor: the socket that it reads from, which takes
    /// [`HandOver::Bytes`] and [`HandOver::End`]. The next [`Self::HandOver`] writes down the rest, unless [`Self::GoOn`] comes before.
    WritePrelude {
        /// The successor has made what was written down before: only what has come since, and what has gone, is to be written.
        goes_on: bool,
        /// The successor can have memory of this worker's driver: memory that only the driver uses is written down as well, and its descriptors go along
        /// as [`HandOver::File`]. False for the first part, as the successor does not know yet.
        is_at_home: bool,
    },
    /// Make what a worker writes down that goes on: comes behind the set-up, ahead of [`Self::TakeOver`], and once for each part of the
    /// prelude. Descriptor: the socket to read from.
    /// Answered by [`ToDevice::PreludeBuilt`], or by [`ToDevice::Lost`].
    BuildPrelude,
    /// Come to rest, and write everything down for a successor. Handled ahead of what waits for a ring, and of what came behind that: such submissions and
    /// exports are written down as well. Descriptor: the socket that it reads from, which takes [`HandOver`] messages.
    /// Answered by [`ToDevice::HandedOver`], or by [`ToDevice::Stays`] when the worker has gone on. Between this message and
    /// [`Self::GoOn`] nothing else is sent but answers to what the worker asks for. Nothing is written before all is at rest and nothing can
    /// be in the way any more: with the first byte the successor begins to read. A worker that stays for now is told again, with the same
    /// socket.
    HandOver {
        /// The contents of memory that only the driver uses are to be copied: the successor cannot have the memory itself.
        copies: bool,
        /// The successor has made what was written down as the prelude: only what has come since, and what has gone, is to be written.
        goes_on: bool,
    },
    /// Take over from a worker whose context this is: comes behind the set-up and the resources that the context sees, and when there is
    /// something to read. Descriptor: the socket that [`HandOver`] messages come from; its end without [`HandOver::End`] means that the
    /// predecessor gives up. Answered by [`ToDevice::TakenOver`], or by [`ToDevice::Lost`].
    TakeOver,
    /// To one that has handed over: it stays the context's worker and goes on. To one that has taken over: it is, and begins. One that does
    /// neither ignores it: a hand-over may be called off before the worker has answered [`Self::HandOver`], and this comes first then.
    GoOn,
    /// Answer to [`ToDevice::CatchUpWanted`] and [`ToDevice::ClosingWanted`]. Handled ahead of what came before.
    CaughtUp {
        /// The number of the question.
        request: u32,
    },
    /// The answer to [`ToDevice::MemoryWanted`] comes when other VMs have given memory up, or when the broker has the wait end: it may take long.
    /// Handled ahead of what came before.
    MemoryWaits {
        /// The number of the request, as in [`ToDevice::MemoryWanted`].
        request: u32,
    },
    /// Come to rest, write a checkpoint, and go on. Descriptor: the memory file that it is written into, whose size cannot
    /// change. Answered by [`ToDevice::CheckpointWritten`] or [`ToDevice::NoCheckpoint`].
    WriteCheckpoint {
        /// The number of the checkpoint in the mark, from 1.
        number: u32,
    },
    /// Note in a journal from now on what is executed behind a checkpoint. Once, ahead of the first [`Self::WriteCheckpoint`]. Descriptor: the file
    /// (`shm::journal`).
    KeepJournal,
}

impl ToWorker {
    /// Returns whether the message answers what a worker has asked for.
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

/// Worker to its successor, on a socket of their own, and [`Self::Emptied`] back. Neither trusts the other more than the guest whose context
/// it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum HandOver {
    /// The next memory file, or the driver's name of memory that only it uses. Descriptor: the file.
    File {
        /// The memory that it is.
        memory: MemoryName,
    },
    /// The next bytes of the snapshot, at most [`INLINE_SUBMIT_MAX`].
    Bytes(#[serde(with = "serde_bytes_vec")] Vec<u8>),
    /// Ahead of [`Self::End`]: contents of memory that only the driver uses follow the snapshot. Descriptor: the memory file that they pass
    /// through, in slots one behind the other.
    Slots {
        /// The number of slots.
        count: u32,
        /// Bytes of each: whole pages.
        bytes: u64,
    },
    /// Ahead of [`Self::End`], from the device process: what was executed behind the snapshot. Descriptor: the journal.
    Journal {
        /// The number of the checkpoint that the snapshot is.
        number: u32,
    },
    /// The snapshot is complete.
    End,
    /// The next bytes of contents are in the next slot; behind the last slot comes the first again.
    Filled,
    /// From the successor: it does not need the contents of the slot any more that was filled first of those that it has.
    Emptied,
}

/// Worker to device process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToDevice {
    /// The loader is there, and the worker serves; sent once after [`ToWorker::Setup`]. The driver comes up with the guest's instance.
    Ready,
    /// Answer to [`ToWorker::ExportBlob`]. Descriptor: the pages, mappable from offset 0; none if not mappable.
    BlobExported {
        /// The resource, as in [`ToWorker::ExportBlob`].
        resource_id: ResourceId,
        /// The way in which the guest must map it.
        map_info: MapInfo,
        /// The piece it is; none without a descriptor.
        memory: Option<MemoryId>,
    },
    /// An anchor, sent ahead of blobs whose memory the driver maps out of a device node. Descriptor: something that keeps that memory alive
    /// when the worker is gone. Anchors replace those that came before, once none are left to come.
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
        /// The shared memory it lies in.
        resource_id: ResourceId,
        /// Byte offset of its status word there, a multiple of 4.
        status: u64,
    },
    /// A ring has ended: the driver uses its memory for something else.
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
    /// The worker withdraws a [`Self::MemoryWanted`]. It is answered all the same.
    MemoryWantedNoMore {
        /// The number of the request.
        request: u32,
    },
    /// The guest asks how much memory it has and could have; answered by [`ToWorker::Budget`].
    BudgetWanted {
        /// A number for the answer, of those of [`Self::MemoryWanted`].
        request: u32,
    },
    /// The worker does not hold a piece any more that it was given, once; one given twice is returned twice.
    MemoryReturned {
        /// The piece's name.
        memory: MemoryId,
    },
    /// A descriptor of memory that only the driver uses, for a successor that takes over from a checkpoint. Descriptor: what the driver exports.
    /// More than the limit `deposits` allows are not kept, and the next checkpoint is none.
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
    /// A limit of the worker's own is reached; for the log.
    LimitReached {
        /// The limit's name in `config::ContextLimits`.
        limit: String,
    },
    /// A shader, or a pipeline of one, was refused.
    ShaderRefused {
        /// For the log, in words of ours.
        reason: String,
    },
    /// The guest asks for what `--queues` denies; for the log.
    Undrawn,
    /// A command has waited for a second until a submission completes that uses what it is about; for the log.
    Overdue {
        /// The command's name.
        command: String,
        /// The submission cannot even begin: the command is refused.
        is_blocked: bool,
    },
    /// From a worker that keeps a context which is swapped out ([`WorkerSetup::swapped_out`]): a ring has a command for the driver, or
    /// messages are left.
    Wakes,
    /// Answer to [`ToWorker::BuildPrelude`]: all of it is made.
    PreludeBuilt {
        /// The GPUs of the context and their drivers are those of its worker: memory of its driver can be had here.
        is_at_home: bool,
    },
    /// Answer to [`ToWorker::HandOver`]: the successor has it all, and this worker rests until it is told to go on.
    HandedOver,
    /// Answer to [`ToWorker::HandOver`]: this worker has gone on, as the context cannot be handed over.
    Stays {
        /// For the operator, in words of ours.
        reason: String,
        /// The worker may hand over in a moment, and nothing was written to the successor.
        for_now: bool,
    },
    /// Ahead of [`Self::TakenOver`]: some of the pieces, if they do not fit there.
    TakesOver {
        /// The pieces, as in [`Self::TakenOver`].
        pieces: Vec<MemoryId>,
    },
    /// Answer to [`ToWorker::TakeOver`]: the context is as it was, and rests.
    TakenOver {
        /// The pieces that this worker holds from its predecessor, each as often as it will return it. Those of resources that it was shown
        /// are not among them, nor those of [`Self::TakesOver`]. Rings that were taken over do not begin again.
        pieces: Vec<MemoryId>,
        /// Bytes that its predecessor was granted for what only the driver uses, as far as this worker knows of them. What it has returned
        /// of them is not taken off.
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
    /// Answered by [`ToWorker::CaughtUp`] when the requests are done that the guest has sent before: what it has freed is unmapped then.
    CatchUpWanted {
        /// A number for the answer, of those of [`Self::MemoryWanted`].
        request: u32,
    },
    /// Answered by [`ToWorker::CaughtUp`] when the descriptors are closed that the device process was about to close, those of deposits that were taken
    /// back among them: the driver has that memory again.
    ClosingWanted {
        /// A number for the answer, of those of [`Self::MemoryWanted`].
        request: u32,
    },
    /// Answer to [`ToWorker::WriteCheckpoint`]: it is written. From then on the mark in the page that both sides share says whether it has all that
    /// was executed.
    CheckpointWritten {
        /// Bytes.
        bytes: u64,
        /// Time for which commands had to wait. That in which the message lay unread does not count.
        took: Duration,
    },
    /// Answer to [`ToWorker::WriteCheckpoint`]: there is none.
    NoCheckpoint {
        /// For the log, in words of ours.
        reason: String,
        /// There may be one as soon as the context does nothing once more.
        for_now: bool,
    },
    /// The journal fills, or is full: another checkpoint would empty it. Once for each checkpoint, or twice.
    JournalFills,
}

/// The answer of the probe process: the GPUs in the driver's order, or why no driver could be asked.
pub type ProbeReport = Result<Vec<GpuInfo>, String>;

/// Byte vectors as one length and the bytes.
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

/// Durations as 32-bit numbers of milliseconds, the unit of the status page.
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
