//! Identifiers of the virtio-gpu device (VIRTIO 1.3, 5.7.6), one type each so that they cannot be mixed up.
//!
//! Knows nothing of Venus object ids: those are generated, one type per Vulkan handle.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($int:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub struct $name(pub $int);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id! {
    /// A rendering context, chosen by the driver, never 0 (`ctx_id` of `VIRTIO_GPU_CMD_CTX_CREATE`).
    ContextId(u32)
}
id! {
    /// A resource, chosen by the driver, never 0 (`resource_id`).
    ResourceId(u32)
}
id! {
    /// A fence, from one increasing counter per VM (`fence_id`).
    FenceId(u64)
}
id! {
    /// A fence timeline of a context (`ring_idx`): 0 is the context's own, 1 to 63 belong to Vulkan queues.
    RingIdx(u8)
}
id! {
    /// The source of a host blob (`blob_id`): 0 is fresh shared memory, any other number a Venus memory object.
    BlobId(u64)
}
id! {
    /// A scanout (`scanout_id`), below the device's `num_scanouts`.
    ScanoutId(u32)
}
id! {
    /// A capability set (`capset_id`).
    CapsetId(u32)
}

impl CapsetId {
    /// Venus, the only capability set of this device (`VIRTIO_GPU_CAPSET_VENUS`).
    pub const VENUS: Self = Self(4);
}

impl RingIdx {
    /// The context's own timeline: a fence on it is passed once the virtqueue stream reached it.
    pub const CONTEXT: Self = Self(0);
    /// Timelines a Venus driver may use: 0 to 63.
    pub const COUNT: u8 = 64;
}
