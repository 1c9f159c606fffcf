//! Memory that other contexts made and this one sees.

use super::allowance::MemoryFile;
use super::cancel::{Cancel, Interrupted};
use std::sync::Arc;

/// Device memory behind a resource.
#[derive(Debug)]
pub struct ResourceMemory {
    /// The memory.
    pub file: Arc<MemoryFile>,
    /// Bytes that may be used.
    pub size: u64,
    /// The guest can map the memory.
    pub mappable: bool,
}

/// The resources that the context sees.
pub trait ResourceTable: Send + Sync {
    /// Returns the device memory behind a resource, and waits for it if it is on its way; none if the context sees no such resource.
    ///
    /// # Errors
    ///
    /// The wait was interrupted.
    fn device_memory(
        &self,
        resource_id: u32,
        cancel: &Cancel,
    ) -> Result<Option<Arc<ResourceMemory>>, Interrupted>;
}
