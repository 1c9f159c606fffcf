//! Buffers of ours that alias a part of device memory, whatever a guest has bound to this memory.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use ash::vk::{self, Handle as _};

/// A part of an allocation.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    /// The allocation, which is dedicated to nothing.
    pub memory: vk::DeviceMemory,
    /// The host's type of the memory.
    pub type_index: u32,
    /// The part's first byte in the allocation: whole pages.
    pub start: u64,
    /// Bytes: whole words.
    pub size: u64,
    /// Bytes of the allocation from `start` on that a buffer may take if a driver wants more for the buffer: `size` or more.
    pub room: u64,
    /// The handle types that the memory was made for, which a buffer on it has to name.
    pub kinds: vk::ExternalMemoryHandleTypeFlags,
}

impl Part {
    /// All of an allocation, of so many bytes.
    pub(crate) fn whole(
        raw: u64,
        size: u64,
        type_index: u32,
        kinds: vk::ExternalMemoryHandleTypeFlags,
    ) -> Self {
        Self { memory: vk::DeviceMemory::from_raw(raw), type_index, start: 0, size, room: size, kinds }
    }
}

/// Creates a buffer that aliases a part, and adds it to `buffers`.
///
/// # Errors
///
/// `ERROR_FEATURE_NOT_PRESENT` if a buffer cannot be bound to such a part; what the driver answers otherwise.
pub(super) fn alias(
    device: &ash::Device,
    part: &Part,
    usage: vk::BufferUsageFlags,
    buffers: &mut Vec<vk::Buffer>,
) -> Result<vk::Buffer, vk::Result> {
    let mut external = vk::ExternalMemoryBufferCreateInfo::default().handle_types(part.kinds);
    let info = vk::BufferCreateInfo::default().size(part.size).usage(usage);
    let info = if part.kinds.is_empty() { info } else { info.push_next(&mut external) };
    // SAFETY: the device is live, here and below; `info` lives until the call returns.
    let buffer = unsafe { device.create_buffer(&info, None) }?;
    buffers.push(buffer);
    // SAFETY: as above.
    let needs = unsafe { device.get_buffer_memory_requirements(buffer) };
    let fits = needs.memory_type_bits & 1 << part.type_index != 0
        && needs.size <= part.room
        && part.start.is_multiple_of(needs.alignment.max(1));
    if !fits {
        return Err(vk::Result::ERROR_FEATURE_NOT_PRESENT);
    }
    // SAFETY: buffer and memory are live and fit each other.
    unsafe { device.bind_buffer_memory(buffer, part.memory, part.start) }?;
    Ok(buffer)
}
