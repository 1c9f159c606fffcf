//! Clearing of device memory before a context gets it. The device itself clears it, on a queue that no guest knows.
//!
//! A driver may hand out memory with data of another process, and a software driver memory with old data of the worker's heap. The kernel makes
//! memory files zero, so they are not cleared. If a device has no queue left for us, the processor clears its memory, provided that the memory can be
//! mapped.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use super::alias::{Part, alias};
use super::own_queue::OwnQueue;
use crate::driver::physical_device::{PhysicalDevice, host_memory};
use ash::vk;

/// Bytes cleared by one command; drivers have limits for the size of a buffer.
const PIECE: u64 = 1 << 30;

/// Clears memory of one device.
#[derive(Debug)]
pub struct Cleaner {
    /// The host's types that can be mapped, a bit each, whatever the guest sees of them.
    mappable: u32,
}

impl Cleaner {
    /// Creates the cleaner of a device.
    pub fn new(physical: &PhysicalDevice) -> Self {
        let memory = host_memory(&physical.instance.ash, physical.handle);
        let wanted = vk::MemoryPropertyFlags::HOST_VISIBLE | vk::MemoryPropertyFlags::HOST_COHERENT;
        let types = memory.memory_types_as_slice().iter().enumerate();
        let mappable =
            types.filter(|(_, ty)| ty.property_flags.contains(wanted)).fold(0, |bits, (i, _)| bits | 1 << i);
        Self { mappable }
    }

    /// Clears all of fresh memory, on the queue of ours if the device has one; frees the memory if that fails.
    ///
    /// # Safety
    ///
    /// `whole` is unmapped memory of this live device, of this size and type, and no other code knows it. The queue is the device's.
    pub(crate) unsafe fn clear(
        &self,
        device: &ash::Device,
        queue: Option<&OwnQueue>,
        whole: &Part,
    ) -> Result<(), vk::Result> {
        let Part { memory, size, type_index: ty, .. } = *whole;
        let cleared = match queue {
            Some(queue) => {
                let fill = |commands, buffers: &mut _| record(device, commands, whole, buffers);
                // SAFETY: the caller's promise.
                unsafe { queue.run(device, fill) }
            }
            // SAFETY: the caller's promise; the type can be mapped.
            None if self.mappable & 1 << ty != 0 => unsafe { by_processor(device, memory, size) },
            None => Err(vk::Result::ERROR_FEATURE_NOT_PRESENT),
        };
        match cleared {
            Err(vk::Result::ERROR_FEATURE_NOT_PRESENT) => {
                log::debug!("memory of type {ty} cannot be cleared");
                Ok(())
            }
            Err(error) => {
                // SAFETY: the caller's promise: it is in no use.
                unsafe { device.free_memory(memory, None) };
                Err(error)
            }
            Ok(()) => Ok(()),
        }
    }
}

/// # Safety
///
/// As for [`Cleaner::clear`]; the type can be mapped and is coherent.
unsafe fn by_processor(device: &ash::Device, memory: vk::DeviceMemory, size: u64) -> Result<(), vk::Result> {
    // SAFETY: the caller's promise.
    let start = unsafe { device.map_memory(memory, 0, vk::WHOLE_SIZE, vk::MemoryMapFlags::empty()) }?;
    // SAFETY: the mapping is at least `size` bytes and no other code uses it.
    unsafe { start.cast::<u8>().write_bytes(0, size as usize) };
    // SAFETY: mapped above.
    unsafe { device.unmap_memory(memory) };
    Ok(())
}

/// Records fills of all of the memory, through buffers that are kept until the fills are done.
fn record(
    device: &ash::Device,
    commands: vk::CommandBuffer,
    whole: &Part,
    buffers: &mut Vec<vk::Buffer>,
) -> Result<(), vk::Result> {
    for start in (0..whole.size).step_by(PIECE as usize) {
        let room = whole.size - start;
        let part = Part { start, size: PIECE.min(room), room, ..*whole };
        let buffer = alias(device, &part, vk::BufferUsageFlags::TRANSFER_DST, buffers)?;
        // SAFETY: the device is live, and the command buffer is being recorded.
        unsafe { device.cmd_fill_buffer(commands, buffer, 0, vk::WHOLE_SIZE, 0) };
    }
    Ok(())
}
