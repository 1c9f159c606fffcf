//! Handle types of shared memory: guests know dma-bufs, and the host knows the handle types of its back end.

use super::lower::Lowering;
use crate::context::error::Fault;
use ash::vk;
use config::MemoryBackEnd;
use protocol::venus::generated::{self as venus, ChainStruct, ExternalMemoryHandleTypeFlags as HandleTypes};
use std::ffi::c_void;

/// The handle type of the host for memory files. This type is never on the wire: guests see shared memory as dma-bufs.
pub(crate) const HOST_ALLOCATION: HandleTypes =
    HandleTypes(vk::ExternalMemoryHandleTypeFlags::HOST_ALLOCATION_EXT.as_raw());

/// Returns whether dma-bufs are among these types.
pub(crate) fn is_dma_buf(types: HandleTypes) -> bool {
    types.0 & HandleTypes::DMA_BUF_EXT.0 != 0
}

/// Returns the host's handle types for those of a guest.
pub(crate) fn host_types(types: HandleTypes, memory: MemoryBackEnd) -> HandleTypes {
    match memory {
        _ if types == OWN_MEMORY => HandleTypes::OPAQUE_FD,
        _ if !is_dma_buf(types) => HandleTypes(0),
        MemoryBackEnd::Memfd => HOST_ALLOCATION,
        MemoryBackEnd::DmaBuf => HandleTypes::DMA_BUF_EXT,
    }
}

/// The handle type by which a guest would name memory that any buffer or image may be bound to; [`link`] translates it to the host's.
pub(crate) const MAPPABLE_MEMORY: HandleTypes = HandleTypes::DMA_BUF_EXT;

/// The handle type of memory that only the driver uses, and that it can give to another process. Vulkan has no such type, so that no guest names it
/// by chance; buffers and images that name it are refused at their creation.
pub(crate) const OWN_MEMORY: HandleTypes = HandleTypes(1 << 31);

/// Lowers a chained struct that names handle types; none if `next` is another struct.
pub(crate) fn link(
    next: &ChainStruct<'_>,
    rest: *const c_void,
    l: &Lowering<'_>,
) -> Option<Result<*const c_void, Fault>> {
    let host = |types| host_types(types, l.memory);
    Some(match next {
        ChainStruct::ExternalMemoryBufferCreateInfo(info) => {
            let handle_types = host(info.handle_types);
            l.linked(&venus::ExternalMemoryBufferCreateInfo { handle_types, ..**info }, rest)
        }
        ChainStruct::ExternalMemoryImageCreateInfo(info) => {
            let handle_types = host(info.handle_types);
            l.linked(&venus::ExternalMemoryImageCreateInfo { handle_types, ..**info }, rest)
        }
        ChainStruct::PhysicalDeviceExternalImageFormatInfo(info) => {
            let handle_type = host(info.handle_type);
            l.linked(&venus::PhysicalDeviceExternalImageFormatInfo { handle_type, ..**info }, rest)
        }
        _ => return None,
    })
}
