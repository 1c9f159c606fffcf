//! A queue of a device that no guest knows, for work of ours. Waits of a guest's work cannot hold this queue up.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use crate::driver::physical_device::PhysicalDevice;
use crate::gates::gate::Gate;
use ash::vk;
use parking_lot::Mutex;
use protocol::venus::generated as venus;
use shm::page_clock;
use std::sync::Arc;
use std::time::Duration;
use waiting::processors;
use waiting::spin::{self, Spun};

/// The time that our work may take, in nanoseconds. It is long because other contexts use the device too.
const PATIENCE_NS: u64 = 60_000_000_000;

/// The time for which a thread polls the fence before the driver waits for it. Clearing a megabyte takes less, and a waiting driver may wake its
/// caller a quarter of a millisecond late.
const LOOK: Duration = Duration::from_micros(50);

/// A queue that is not the guest's: family and index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spare {
    /// Family.
    pub family: u32,
    /// Index in the family.
    pub index: u32,
}

/// Adds a queue to those of a device creation, if a family has one left. A family that can only copy is preferred: a compute queue costs a driver
/// more of the GPU's shared resources (NVIDIA's twice as many channels), and copies run beside kernels.
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
    // Queues with flags are numbered apart from those without flags.
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

/// The queue.
#[derive(Debug)]
pub struct OwnQueue {
    tools: Mutex<Tools>,
    /// The gate to which the queue's work is charged, if there is one.
    gate: Option<Arc<Gate>>,
}

impl OwnQueue {
    /// The queue of ours that a device was created with.
    pub fn new(
        physical: &PhysicalDevice,
        device: &ash::Device,
        spare: Spare,
        gate: Option<Arc<Gate>>,
    ) -> Self {
        let family = physical.order.swap(spare.family);
        // SAFETY: the device was just created with this queue.
        let queue = unsafe { device.get_device_queue(family, spare.index) };
        let tools = Tools { queue, family, kits: Vec::new(), is_stuck: false, charged_until: 0 };
        Self { tools: Mutex::new(tools), gate }
    }

    /// Destroys the objects that the queue uses; the device is idle, or is never going to be.
    pub fn destroy(&self, device: &ash::Device) {
        let mut tools = self.tools.lock();
        if !tools.is_stuck {
            tools.kits.drain(..).for_each(|kit| kit.destroy(device));
        }
    }

    /// Has the device execute the commands of `record`, and waits for the end: [`Self::start`] and [`Self::finish`].
    ///
    /// # Errors
    ///
    /// As those of both.
    ///
    /// # Safety
    ///
    /// As for [`Self::start`].
    pub unsafe fn run(
        &self,
        device: &ash::Device,
        record: impl FnOnce(vk::CommandBuffer, &mut Vec<vk::Buffer>) -> Result<(), vk::Result>,
    ) -> Result<(), vk::Result> {
        // SAFETY: the caller's promise.
        let running = unsafe { self.start(device, record) }?;
        self.finish(device, running)
    }

    /// Has the device execute the commands of `record`, behind earlier work on this queue. Buffers that `record` adds are destroyed at the end.
    ///
    /// # Errors
    ///
    /// `record` or the driver fails: nothing runs.
    ///
    /// # Safety
    ///
    /// The device is live and the one of this queue. What is recorded is valid, and what it uses stays for as long as it runs. What is returned
    /// is finished before the device is destroyed.
    pub unsafe fn start(
        &self,
        device: &ash::Device,
        record: impl FnOnce(vk::CommandBuffer, &mut Vec<vk::Buffer>) -> Result<(), vk::Result>,
    ) -> Result<Running, vk::Result> {
        let mut tools = self.tools.lock();
        if tools.is_stuck {
            return Err(vk::Result::ERROR_DEVICE_LOST);
        }
        let (kit, begin) = (tools.kit(device)?, page_clock());
        let mut buffers = Vec::new();
        let once = vk::CommandBufferBeginInfo::default().flags(vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT);
        // SAFETY: the device is live, here and below; each `info` lives until its call returns.
        let recorded = unsafe { device.begin_command_buffer(kit.commands, &once) }
            .and_then(|()| record(kit.commands, &mut buffers))
            // SAFETY: as above.
            .and_then(|()| unsafe { device.end_command_buffer(kit.commands) });
        let submitted = recorded.and_then(|()| {
            let submits = [vk::SubmitInfo::default().command_buffers(std::slice::from_ref(&kit.commands))];
            // SAFETY: everything is live, and the tools are locked with the queue.
            unsafe { device.queue_submit(tools.queue, &submits, kit.fence) }
        });
        match submitted {
            Ok(()) => Ok(Running { kit, buffers, begin }),
            Err(failed) => {
                tools.is_over(device, kit, buffers);
                Err(failed)
            }
        }
    }

    /// Waits for the end of running work, and charges the context for it.
    ///
    /// # Errors
    ///
    /// The driver fails; the device is lost if it takes too long.
    pub fn finish(&self, device: &ash::Device, running: Running) -> Result<(), vk::Result> {
        let Running { kit, buffers, begin } = running;
        // SAFETY: the device and the fence are live, by the promise of the caller that started it.
        let is_over = || unsafe { device.get_fence_status(kit.fence) } == Ok(true);
        // SAFETY: as above.
        let sleep = || unsafe { device.wait_for_fences(&[kit.fence], true, PATIENCE_NS) };
        let done = wait(!processors::are_few(), is_over, sleep);
        let (mut tools, end) = (self.tools.lock(), page_clock());
        // Work that ran behind other work began when the other had ended.
        let begin = begin.max(std::mem::replace(&mut tools.charged_until, end));
        if done == Err(vk::Result::TIMEOUT) {
            // The device still works on the commands, so the objects that they use must stay. A guest sees a lost device and ends.
            tools.is_stuck = true;
            return Err(vk::Result::ERROR_DEVICE_LOST);
        }
        tools.is_over(device, kit, buffers);
        drop(tools);
        self.gate.iter().for_each(|gate| gate.charge(begin, end));
        done
    }
}

/// Work that runs on the queue, and that has to be waited for.
#[derive(Debug)]
#[must_use]
pub struct Running {
    kit: Kit,
    buffers: Vec<vk::Buffer>,
    /// The time at which the work was submitted, in nanoseconds of the pages' clock.
    begin: u64,
}

/// The queue, and the objects that are used again and again, because drivers take longer to make a fence than to clear a megabyte.
#[derive(Debug)]
struct Tools {
    queue: vk::Queue,
    family: u32,
    /// The kits that nothing runs in.
    kits: Vec<Kit>,
    /// True if the device still works on commands that took too long.
    is_stuck: bool,
    /// The time up to which the context has paid for work on this queue, of the same clock.
    charged_until: u64,
}

#[derive(Clone, Copy, Debug)]
struct Kit {
    pool: vk::CommandPool,
    commands: vk::CommandBuffer,
    fence: vk::Fence,
}

impl Tools {
    /// Takes back the kit of work that has ended, and destroys the work's buffers.
    fn is_over(&mut self, device: &ash::Device, kit: Kit, buffers: Vec<vk::Buffer>) {
        for buffer in buffers {
            // SAFETY: the device is done with it.
            unsafe { device.destroy_buffer(buffer, None) };
        }
        self.kits.push(kit);
    }

    /// Takes an unused kit, or makes one if none is left, with nothing recorded and the fence unsignalled.
    fn kit(&mut self, device: &ash::Device) -> Result<Kit, vk::Result> {
        if let Some(kit) = self.kits.pop() {
            let unused = vk::CommandPoolResetFlags::empty();
            // SAFETY: the device is live, here and below, and what ran last is over.
            let reset = unsafe { device.reset_command_pool(kit.pool, unused) };
            // SAFETY: as above.
            let reset = reset.and_then(|()| unsafe { device.reset_fences(&[kit.fence]) });
            if let Err(failed) = reset {
                self.kits.push(kit);
                return Err(failed);
            }
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
            (Ok(fence), Ok(commands)) => Ok(Kit { pool, commands: commands[0], fence }),
            (fence, commands) => {
                let kit = Kit { pool, commands: vk::CommandBuffer::null(), fence: fence.unwrap_or_default() };
                kit.destroy(device);
                fence.and(commands.map(|_| kit))
            }
        }
    }
}

impl Kit {
    /// Destroys the objects of the kit; nothing is pending.
    fn destroy(self, device: &ash::Device) {
        // SAFETY: the device is live, nothing of this is in use, and a null handle is ignored.
        unsafe { device.destroy_fence(self.fence, None) };
        // SAFETY: as above.
        unsafe { device.destroy_command_pool(self.pool, None) };
    }
}

/// Waits for the end of running work: first polls, if there are processors to spare, and then sleeps.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn only_what_is_not_over_soon_is_slept_for() {
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
        assert!(slept.get() && !looked.get(), "where processors are few no thread looks");
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
