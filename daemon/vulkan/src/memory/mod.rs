//! Device memory: allocated, shown to the guest as a blob, shared between contexts.
//!
//! A VMM can map files only. There are two ways to get such a file, chosen at start-up ([`config::MemoryBackEnd`]): pages of ours imported by the driver
//! (`memfd`), or memory of the driver exported by it (`dma_buf`). A guest sees no difference, except that `memfd` shares buffers only. Beside `memfd`
//! there may be types that the driver maps by itself, out of a device node (`driver_mapped`); memory to be shared with other contexts is never made of
//! these types. Memory that only the driver uses is the driver's own (`private`). Guests know shared memory as dma-bufs
//! (`VK_EXT_external_memory_dma_buf`); it travels as a resource: exported as its blob, imported by `VkImportMemoryResourceInfoMESA`.

pub(crate) mod allocate;
pub(crate) mod dedicated;
mod dma_buf;
mod driver_mapped;
#[cfg(test)]
mod driver_mapped_tests;
pub(crate) mod export;
pub(crate) mod external;
mod memfd;
mod private;
pub(crate) mod refill;
mod request;
mod reusable;
pub(crate) mod spare;
