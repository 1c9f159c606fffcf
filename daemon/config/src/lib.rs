//! Options of one daemon, and every bound on what a guest can make it allocate or hold.
//!
//! `limits` has the bounds, `amount` the spelling of sizes and times, `fault` the party at fault when a
//! context is lost, `gpu` the choice of GPUs and the rights of guests on them, `memory` the
//! messages about memory between device process and worker, `passage` how submissions reach the driver, and `key` the secret of pipeline caches.

#![forbid(unsafe_code)]

mod amount;
mod fault;
mod gpu;
mod key;
mod limits;
mod memory;
mod passage;

pub use amount::{Amount, size, time};
pub use fault::AtFault;
pub use gpu::{
    DriverMapped, GpuChoice, GpuInfo, GpuKind, GpuNames, Likeness, MemoryBackEnd, MemoryTrial, Protection,
    Queues, Robustness, hexadecimal, meant,
};
pub use key::CacheKey;
pub use limits::{
    ANCHORS_MAX, BROKER_BACKLOG, CHECKPOINT_AFTER, ContextLimits, DeviceLimits, FRONTEND_TIMEOUT, GPUS_MAX,
    HangLimits, LAUNCHER_BACKLOG, MEMORY_REGIONS_MAX, PLUG_AGAIN, SHARE, ShaderLimits, WINDOW_MAX, most,
};
pub use memory::{DepositId, Heap, MemoryCount, MemoryId, MemoryName, PerHeap, Wanted};
pub use passage::Passage;
