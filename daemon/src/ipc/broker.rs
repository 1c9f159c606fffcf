//! Messages between the broker, which serves several VMs, and the device process of one of them.

use protocol::ids::ContextId;
use serde::{Deserialize, Serialize};

/// Broker to device process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum FromBroker {
    /// An operator wants this context ended.
    Kill {
        /// The context.
        ctx_id: ContextId,
    },
    /// A submission of this context runs for too long while others wait: it is lost, and the VM gets a strike.
    Hung {
        /// The context.
        ctx_id: ContextId,
    },
    /// The broker wants a [`ToBroker::Memory`].
    Report,
}

/// Device process to broker. Whoever took over a device process can say what it likes: it speaks for its own VM only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToBroker {
    /// The device process waits for a frontend from now on.
    Ready {
        /// The GPUs of the device process.
        gpus: Vec<SharedGpu>,
        /// The most memory that the VM may hold; `u64::MAX` of what has no bound.
        limits: HeldMemory,
    },
    /// A frontend has come or gone.
    Frontend {
        /// The frontend has come, and not gone.
        connected: bool,
    },
    /// A context begins; said for each GPU in order. Descriptor: the page of grants that its worker has too.
    ContextBegins {
        /// The context.
        ctx_id: ContextId,
        /// The index of the GPU among those of [`Self::Ready`], from 0.
        gpu: u8,
        /// The context's `debug_name`, printable.
        debug_name: String,
    },
    /// Said behind [`Self::ContextBegins`] for the last of the GPUs. Descriptor: the doorbell that the context's worker rings.
    Doorbell {
        /// The context.
        ctx_id: ContextId,
    },
    /// A context has ended, and its worker with it or soon.
    ContextEnds {
        /// The context.
        ctx_id: ContextId,
        /// The reason why the context was lost, if it was.
        lost: Option<String>,
        /// The context was killed for a submission that ran too long.
        hung: bool,
    },
    /// Memory that the VM holds; answer to [`FromBroker::Report`].
    Memory {
        /// The memory that each context of the VM holds, with the guest's id of the context.
        contexts: Vec<(ContextId, HeldMemory)>,
        /// The memory that the VM holds, contexts that have ended included.
        vm: HeldMemory,
    },
}

/// A GPU that VMs may share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SharedGpu {
    /// `VkPhysicalDeviceIDProperties::deviceUUID`.
    pub uuid: [u8; 16],
    /// The GPU's name.
    pub name: String,
    /// A software device such as lavapipe.
    pub software: bool,
    /// Bytes of its own memory.
    pub memory: u64,
}

/// Memory by where it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldMemory {
    /// Bytes of the GPU's memory.
    pub device: u64,
    /// Bytes of the host's memory, all of it pinned while a GPU can reach it.
    pub host: u64,
}
