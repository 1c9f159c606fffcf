//! Device memory is zero when a context gets it: cleared by the device itself, on a queue that no guest knows.
//!
//! A driver may hand out what another process left in the device's memory, and a software driver what lies about in the worker's heap.
//! Memory files are zero by the kernel and are not cleared. A queue of our own cannot be held up by what a guest waits for; a device
//! that has none left is cleared by the processor where its memory can be mapped.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use crate::driver::physical_device::{PhysicalDevice, host_memory};
use crate::gates::gate::Gate;
use ash::vk::{self, Handle as _};
use parking_lot::Mutex;
use protocol::venus::generated as venus;
use std::sync::Arc;
use std::time::Duration;
use waiting::processors;
use waiting::spin::{self, Spun};

/// The time that a clear may take, in nanoseconds: other contexts use the device as well.
const PATIENCE_NS: u64 = 60_000_000_000;

/// The time for which the fence of a clear is looked at before the driver is asked to wait for it. A megabyte is cleared in less, and a
/// driver may wake its caller a quarter of a millisecond later.
const LOOK: Duration = Duration::from_micros(50);

/// Bytes cleared by one command; drivers have limits for the size of a buffer.
const PIECE: u64 = 1 << 30;

/// A queue that is not the guest's: family and index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spare {
    /// Family.
    pub family: u32,
    /// Index in the family.
    pub index: u32,
}

/// Adds a queue to those of a device creation, if there is a family with one left: rather one that can only copy. Drivers pay for queues
/// that compute with more of what all contexts share (NVIDIA's with twice as many of the GPU's channels), and copies run beside kernels.
pub(crate) fn spare(
    families: &[vk::QueueFamilyProperties],
    queues: &mut Vec<venus::DeviceQueueCreateInfo<'_>>,
) -> Option<(Spare, usize)> {
    let taken = |family: u32, queues: &[venus::DeviceQueueCreateInfo<'_>]| -> u32 {
        queues.iter().filter(|q| q.queue_family_index == family).map(|q| q.queue_count).sum()
    };
    let computes = |family: &u32| {
        let flags = families[*family as usize].queue_flags;
        flags.intersects(vk::QueueFlags::COMPUTE | vk::QueueFlags::GRAPHICS)
    };
    let family = (0..families.len() as u32)
        .filter(|family| taken(*family, queues) < families[*family as usize].queue_count)
        .min_by_key(computes)?;
    // Flagged queues are numbered apart from those without flags.
    let plain = |q: &&mut venus::DeviceQueueCreateInfo<'_>| q.queue_family_index == family && q.flags.0 == 0;
    let index = queues.iter_mut().find(plain).map_or(0, |q| q.queue_count);
    let position = queues.iter().position(|q| q.queue_family_index == family && q.flags.0 == 0);
    let position = position.unwrap_or_else(|| {
        queues.push(venus::DeviceQueueCreateInfo {
            queue_family_index: family,
            p_queue_priorities: Some(&[]),
            ..Default::default()
        });
        queues.len() - 1
    });
    Some((Spare { family, index }, position))
}

/// Clears memory of one device.
#[derive(Debug)]
pub struct Cleaner {
    queue: Option<Mutex<Tools>>,
    /// The gate that is told what clearing costs, if there is one.
    gate: Option<Arc<Gate>>,
    /// The host's types that can be mapped, a bit each, whatever the guest sees of them.
    mappable: u32,
}

impl Cleaner {
    /// Creates the cleaner of a device that was created with this queue of ours, if with any.
    pub fn new(
        physical: &PhysicalDevice,
        device: &ash::Device,
        spare: Option<Spare>,
        gate: Option<Arc<Gate>>,
    ) -> Self {
        let queue = spare.map(|spare| {
            let family = physical.order.swap(spare.family);
            // SAFETY: the device was just created with this queue.
            let queue = unsafe { device.get_device_queue(family, spare.index) };
            Mutex::new(Tools { queue, family, kit: None, is_stuck: false })
        });
        let memory = host_memory(&physical.instance.ash, physical.handle);
        let wanted = vk::MemoryPropertyFlags::HOST_VISIBLE | vk::MemoryPropertyFlags::HOST_COHERENT;
        let types = memory.memory_types_as_slice().iter().enumerate();
        let mappable =
            types.filter(|(_, ty)| ty.property_flags.contains(wanted)).fold(0, |bits, (i, _)| bits | 1 << i);
        Self { queue, gate, mappable }
    }

    /// Destroys what the cleaner uses; the device is idle, or is never going to be.
    pub fn destroy(&self, device: &ash::Device) {
        let tools = self.queue.as_ref().map(Mutex::lock);
        if let Some(mut tools) = tools.filter(|tools| !tools.is_stuck)
            && let Some(kit) = tools.kit.take()
        {
            kit.destroy(device);
        }
    }

    /// Clears `size` bytes of fresh memory; frees the memory if that fails.
    ///
    /// # Safety
    ///
    /// `raw` is unmapped memory of this live device, of this size and type, and nobody else knows it.
    pub unsafe fn clear(&self, device: &ash::Device, raw: u64, size: u64, ty: u32) -> Result<(), vk::Result> {
        let memory = vk::DeviceMemory::from_raw(raw);
        let cleared = match &self.queue {
            Some(tools) => {
                // SAFETY: the caller's promise.
                let clear = || unsafe { by_device(device, &mut tools.lock(), memory, size, ty) };
                match &self.gate {
                    Some(gate) => gate.charge(clear),
                    None => clear(),
                }
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
    // SAFETY: the mapping is at least `size` bytes and nobody else uses it.
    unsafe { start.cast::<u8>().write_bytes(0, size as usize) };
    // SAFETY: mapped above.
    unsafe { device.unmap_memory(memory) };
    Ok(())
}

/// The queue, and what is used again and again: drivers take longer to make a fence than to clear a megabyte.
#[derive(Debug)]
struct Tools {
    queue: vk::Queue,
    family: u32,
    kit: Option<Kit>,
    /// True if the device still works on a clear that took too long.
    is_stuck: bool,
}

#[derive(Clone, Copy, Debug)]
struct Kit {
    pool: vk::CommandPool,
    commands: vk::CommandBuffer,
    fence: vk::Fence,
}

impl Tools {
    /// Returns the kit, made when it is first needed, with nothing recorded and the fence unsignalled.
    fn kit(&mut self, device: &ash::Device) -> Result<Kit, vk::Result> {
        if let Some(kit) = self.kit {
            let unused = vk::CommandPoolResetFlags::empty();
            // SAFETY: the device is live, here and below, and the last clear is over.
            unsafe { device.reset_command_pool(kit.pool, unused) }?;
            // SAFETY: as above.
            unsafe { device.reset_fences(&[kit.fence]) }?;
            return Ok(kit);
        }
        let info = vk::CommandPoolCreateInfo::default().queue_family_index(self.family);
        // SAFETY: each `info` lives until its call returns, here and below.
        let pool = unsafe { device.create_command_pool(&info, None) }?;
        // SAFETY: as above.
        let fence = unsafe { device.create_fence(&vk::FenceCreateInfo::default(), None) };
        let info = vk::CommandBufferAllocateInfo::default().command_pool(pool).command_buffer_count(1);
        // SAFETY: as above.
        let commands = unsafe { device.allocate_command_buffers(&info) };
        match (fence, commands) {
            (Ok(fence), Ok(commands)) => Ok(*self.kit.insert(Kit { pool, commands: commands[0], fence })),
            (fence, commands) => {
                let kit = Kit { pool, commands: vk::CommandBuffer::null(), fence: fence.unwrap_or_default() };
                kit.destroy(device);
                fence.and(commands.map(|_| kit))
            }
        }
    }
}

impl Kit {
    /// Destroys all of it; nothing is pending.
    fn destroy(self, device: &ash::Device) {
        // SAFETY: the device is live, nothing of this is in use, and a null handle is ignored.
        unsafe { device.destroy_fence(self.fence, None) };
        // SAFETY: as above.
        unsafe { device.destroy_command_pool(self.pool, None) };
    }
}

/// # Safety
///
/// As for [`Cleaner::clear`]; the tools are the device's.
unsafe fn by_device(
    device: &ash::Device,
    tools: &mut Tools,
    memory: vk::DeviceMemory,
    size: u64,
    ty: u32,
) -> Result<(), vk::Result> {
    if tools.is_stuck {
        return Err(vk::Result::ERROR_DEVICE_LOST);
    }
    let kit = tools.kit(device)?;
    let mut buffers = Vec::new();
    let recorded = record(device, kit.commands, memory, size, ty, &mut buffers);
    let done = recorded.and_then(|()| {
        let submits = [vk::SubmitInfo::default().command_buffers(std::slice::from_ref(&kit.commands))];
        // SAFETY: everything is live, and the tools are locked with the queue.
        unsafe { device.queue_submit(tools.queue, &submits, kit.fence) }?;
        // SAFETY: as above.
        let is_over = || unsafe { device.get_fence_status(kit.fence) } == Ok(true);
        // SAFETY: as above.
        let sleep = || unsafe { device.wait_for_fences(&[kit.fence], true, PATIENCE_NS) };
        wait(!processors::are_few(), is_over, sleep)
    });
    if done == Err(vk::Result::TIMEOUT) {
        // The device still works on it: what it uses must stay. A guest sees a lost device and goes.
        tools.is_stuck = true;
        return Err(vk::Result::ERROR_DEVICE_LOST);
    }
    for buffer in buffers {
        // SAFETY: the device is done with it.
        unsafe { device.destroy_buffer(buffer, None) };
    }
    done
}

/// Waits for the end of a clear: looks for it first, if there are processors for that, and sleeps then.
fn wait(
    looks: bool,
    is_over: impl Fn() -> bool,
    sleep: impl FnOnce() -> Result<(), vk::Result>,
) -> Result<(), vk::Result> {
    match looks && spin::within(LOOK, is_over) == Spun::Seen {
        true => Ok(()),
        false => sleep(),
    }
}

/// Records fills of all of the memory, through buffers that are kept until they are done.
fn record(
    device: &ash::Device,
    commands: vk::CommandBuffer,
    memory: vk::DeviceMemory,
    size: u64,
    ty: u32,
    buffers: &mut Vec<vk::Buffer>,
) -> Result<(), vk::Result> {
    let once = vk::CommandBufferBeginInfo::default().flags(vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT);
    // SAFETY: the device is live, here and below; each `info` lives until its call returns.
    unsafe { device.begin_command_buffer(commands, &once) }?;
    for start in (0..size).step_by(PIECE as usize) {
        let length = PIECE.min(size - start);
        let info = vk::BufferCreateInfo::default().size(length).usage(vk::BufferUsageFlags::TRANSFER_DST);
        // SAFETY: as above.
        let buffer = unsafe { device.create_buffer(&info, None) }?;
        buffers.push(buffer);
        // SAFETY: as above.
        let needs = unsafe { device.get_buffer_memory_requirements(buffer) };
        if needs.memory_type_bits & 1 << ty == 0 || needs.size > size - start {
            return Err(vk::Result::ERROR_FEATURE_NOT_PRESENT);
        }
        // SAFETY: buffer and memory are live and fit each other.
        unsafe { device.bind_buffer_memory(buffer, memory, start) }?;
        // SAFETY: as above; the command buffer is being recorded.
        unsafe { device.cmd_fill_buffer(commands, buffer, 0, vk::WHOLE_SIZE, 0) };
    }
    // SAFETY: as above.
    unsafe { device.end_command_buffer(commands) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn only_a_clear_that_is_not_over_soon_is_slept_for() {
        let slept = Cell::new(false);
        let sleep = || {
            slept.set(true);
            Err(vk::Result::TIMEOUT)
        };
        assert_eq!(wait(true, || true, sleep), Ok(()));
        assert!(!slept.get());
        assert_eq!(wait(true, || false, sleep), Err(vk::Result::TIMEOUT), "how it ended is not known before");
        assert!(slept.replace(false));
        let looked = Cell::new(false);
        let is_over = || {
            looked.set(true);
            true
        };
        assert_eq!(wait(false, is_over, sleep), Err(vk::Result::TIMEOUT));
        assert!(slept.get() && !looked.get(), "where processors are few nobody looks");
    }

    #[test]
    fn a_queue_of_our_own_is_one_that_the_guest_did_not_ask_for() {
        let compute = vk::QueueFlags::COMPUTE | vk::QueueFlags::TRANSFER;
        let family = |(queue_count, queue_flags)| vk::QueueFamilyProperties {
            queue_count,
            queue_flags,
            ..Default::default()
        };
        let families = [(1, compute), (16, compute), (2, compute)].map(family);
        let with_copies = [(1, compute), (2, vk::QueueFlags::TRANSFER)].map(family);
        let ask_of = |families: &[vk::QueueFamilyProperties], wanted: &[(u32, u32)]| {
            let mut queues: Vec<_> = wanted
                .iter()
                .map(|&(queue_family_index, queue_count)| venus::DeviceQueueCreateInfo {
                    queue_family_index,
                    queue_count,
                    ..Default::default()
                })
                .collect();
            spare(families, &mut queues).map(|(spare, position)| (spare.family, spare.index, position))
        };
        let ask = |wanted: &[(u32, u32)]| ask_of(&families, wanted);
        assert_eq!(ask(&[(1, 3)]), Some((0, 0, 1)));
        assert_eq!(ask(&[(0, 1)]), Some((1, 0, 1)));
        assert_eq!(ask(&[(0, 1), (1, 3)]), Some((1, 3, 1)));
        assert_eq!(ask(&[(0, 1), (1, 16)]), Some((2, 0, 2)));
        assert_eq!(ask(&[(0, 1), (1, 16), (2, 2)]), None);
        assert_eq!(ask_of(&with_copies, &[]), Some((1, 0, 0)), "one that only copies is preferred");
        assert_eq!(ask_of(&with_copies, &[(1, 2)]), Some((0, 0, 1)));
    }
}
