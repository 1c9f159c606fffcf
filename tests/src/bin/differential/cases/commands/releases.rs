//! Programs reset the objects of a submission, and record again, as soon as they know that the submission has ended, while later submissions wait for
//! a value that the host signals.

use anyhow::Result;
use ash::vk;

use super::synchronization::{semaphore, submit};
use crate::bytes::expect;
use crate::case::Case;
use crate::gpu::{Buffer, Gpu, PATIENCE, skip};

/// The objects that one submission uses; the program destroys them when it knows that the submission is over.
struct Used {
    pool: vk::CommandPool,
    commands: vk::CommandBuffer,
    buffer: vk::Buffer,
    memory: vk::DeviceMemory,
}

impl Used {
    /// A command buffer that fills four bytes of a shared buffer, and a buffer of its own.
    fn new(gpu: &Gpu, to: Buffer, at: u64, value: u32) -> Result<Self> {
        let info = vk::CommandPoolCreateInfo::default().queue_family_index(gpu.family());
        let pool = unsafe { gpu.device.create_command_pool(&info, None) }?;
        let info = vk::CommandBufferAllocateInfo::default().command_pool(pool).command_buffer_count(1);
        // The command buffer is freed with its pool.
        let commands = unsafe { gpu.device.allocate_command_buffers(&info) }?[0];
        let info = vk::BufferCreateInfo::default().size(256).usage(vk::BufferUsageFlags::TRANSFER_DST);
        let buffer = unsafe { gpu.device.create_buffer(&info, None) }?;
        let needs = unsafe { gpu.device.get_buffer_memory_requirements(buffer) };
        let memory_type = needs.memory_type_bits.trailing_zeros();
        let info =
            vk::MemoryAllocateInfo::default().allocation_size(needs.size).memory_type_index(memory_type);
        let memory = unsafe { gpu.device.allocate_memory(&info, None) }?;
        unsafe { gpu.device.bind_buffer_memory(buffer, memory, 0) }?;
        let used = Self { pool, commands, buffer, memory };
        used.record(gpu, to, at, value)?;
        Ok(used)
    }

    fn record(&self, gpu: &Gpu, to: Buffer, at: u64, value: u32) -> Result<()> {
        gpu.record_into(self.commands, vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT, |commands| unsafe {
            gpu.barrier(commands);
            gpu.device.cmd_fill_buffer(commands, self.buffer, 0, 256, value);
            gpu.device.cmd_fill_buffer(commands, to.handle, at, 4, value);
            gpu.barrier(commands);
        })
    }

    /// Resets the command pool, which is not allowed before the end of the submission.
    fn reset(&self, gpu: &Gpu) -> Result<()> {
        Ok(unsafe { gpu.device.reset_command_pool(self.pool, vk::CommandPoolResetFlags::empty()) }?)
    }

    fn destroy(self, gpu: &Gpu) {
        unsafe {
            gpu.device.destroy_command_pool(self.pool, None);
            gpu.device.destroy_buffer(self.buffer, None);
            gpu.device.free_memory(self.memory, None);
        }
    }
}

/// All cases of this module.
pub(crate) fn cases() -> Vec<Case> {
    fn case(name: &str, run: fn(&Gpu) -> Result<Vec<u8>>) -> Case {
        Case::new(format!("synchronization.release.{name}"), move |gpu| {
            gpu.require(&["timelineSemaphore"])?;
            run(gpu)
        })
    }
    fn wait(gpu: &Gpu, semaphore: vk::Semaphore, value: u64) -> Result<()> {
        let (semaphores, values) = ([semaphore], [value]);
        let info = vk::SemaphoreWaitInfo::default().semaphores(&semaphores).values(&values);
        Ok(unsafe { gpu.device.wait_semaphores(&info, PATIENCE) }?)
    }
    fn signal(gpu: &Gpu, semaphore: vk::Semaphore, value: u64) -> Result<()> {
        let info = vk::SemaphoreSignalInfo::default().semaphore(semaphore).value(value);
        Ok(unsafe { gpu.device.signal_semaphore(&info) }?)
    }
    /// Two batches in one call: the second waits for `begin`, and both signal `end`.
    fn submit_pair(
        gpu: &Gpu,
        pair: [&Used; 2],
        begin: (vk::Semaphore, u64),
        end: (vk::Semaphore, [u64; 2]),
    ) -> Result<()> {
        let (stages, begins, ends) = ([vk::PipelineStageFlags::ALL_COMMANDS], [begin.0], [end.0]);
        let commands = pair.map(|used| [used.commands]);
        let [mut first_values, mut second_values] = [&end.1[..1], &end.1[1..]]
            .map(|values| vk::TimelineSemaphoreSubmitInfo::default().signal_semaphore_values(values));
        let waits = [begin.1];
        second_values = second_values.wait_semaphore_values(&waits);
        let first = vk::SubmitInfo::default().command_buffers(&commands[0]).signal_semaphores(&ends);
        let second = vk::SubmitInfo::default().command_buffers(&commands[1]).signal_semaphores(&ends);
        let second = second.wait_semaphores(&begins).wait_dst_stage_mask(&stages);
        let infos = [first.push_next(&mut first_values), second.push_next(&mut second_values)];
        Ok(unsafe { gpu.device.queue_submit(gpu.queue(), &infos, vk::Fence::null()) }?)
    }
    vec![
        case("as_each_ends", |gpu| {
            let to = gpu.buffer(4 * 16)?;
            let (begin, end) = (semaphore(gpu, Some(0))?, semaphore(gpu, Some(0))?);
            let mut flying = std::collections::VecDeque::new();
            let start = |number: u64| -> Result<_> {
                let used = Used::new(gpu, to, 4 * (number - 1), number as u32)?;
                submit(
                    gpu,
                    gpu.queue(),
                    &[(begin, number)],
                    &[used.commands],
                    &[(end, number)],
                    vk::Fence::null(),
                )?;
                Ok(used)
            };
            for number in 1..=4 {
                flying.push_back(start(number)?);
            }
            for number in 1..=16 {
                signal(gpu, begin, number)?;
                wait(gpu, end, number)?;
                if let Some(used) = flying.pop_front() {
                    used.reset(gpu)?;
                    used.destroy(gpu);
                }
                if number + 4 <= 16 {
                    flying.push_back(start(number + 4)?);
                }
            }
            expect(&to.values::<u32>(), &(1..=16).collect::<Vec<_>>())
        }),
        case("of_one_call_with_two_batches", |gpu| {
            let to = gpu.buffer(8)?;
            let (begin, end) = (semaphore(gpu, Some(0))?, semaphore(gpu, Some(0))?);
            let pair = [Used::new(gpu, to, 0, 0)?, Used::new(gpu, to, 4, 0)?];
            for round in 0..8u64 {
                for (at, used) in (0..).zip(&pair) {
                    used.reset(gpu)?;
                    used.record(gpu, to, 4 * at, round as u32 + 1)?;
                }
                submit_pair(gpu, pair.each_ref(), (begin, round + 1), (end, [2 * round + 1, 2 * round + 2]))?;
                wait(gpu, end, 2 * round + 1)?;
                // The second batch still waits for the host.
                pair[0].reset(gpu)?;
                let second = [round as u32 + 1, round as u32];
                expect(&to.values::<u32>(), &second)?;
                signal(gpu, begin, round + 1)?;
                wait(gpu, end, 2 * round + 2)?;
            }
            for used in pair {
                used.destroy(gpu);
            }
            expect(&to.values::<u32>(), &[8, 8])
        }),
        case("behind_one_that_signals_nothing", |gpu| {
            let to = gpu.buffer(12)?;
            let (begin, end) = (semaphore(gpu, Some(0))?, semaphore(gpu, Some(0))?);
            for round in 1..=8u64 {
                let value = round as u32;
                let silent = Used::new(gpu, to, 0, value)?;
                let heard = Used::new(gpu, to, 4, value)?;
                let late = Used::new(gpu, to, 8, value)?;
                submit(gpu, gpu.queue(), &[], &[silent.commands], &[], vk::Fence::null())?;
                submit(gpu, gpu.queue(), &[], &[heard.commands], &[(end, 2 * round)], vk::Fence::null())?;
                submit(
                    gpu,
                    gpu.queue(),
                    &[(begin, round)],
                    &[late.commands],
                    &[(end, 2 * round + 1)],
                    vk::Fence::null(),
                )?;
                wait(gpu, end, 2 * round)?;
                // All work before a signal is over when the signal arrives.
                silent.reset(gpu)?;
                silent.destroy(gpu);
                heard.destroy(gpu);
                signal(gpu, begin, round)?;
                wait(gpu, end, 2 * round + 1)?;
                late.destroy(gpu);
                expect(&to.values::<u32>(), &[value; 3])?;
            }
            Ok(Vec::new())
        }),
        case("by_a_fence_before_one_that_waits", |gpu| {
            let to = gpu.buffer(8)?;
            let (begin, end) = (semaphore(gpu, Some(0))?, semaphore(gpu, Some(0))?);
            let fence = gpu.fence(false)?;
            for round in 1..=8u64 {
                let first = Used::new(gpu, to, 0, round as u32)?;
                let late = Used::new(gpu, to, 4, round as u32)?;
                submit(gpu, gpu.queue(), &[], &[first.commands], &[], fence)?;
                submit(
                    gpu,
                    gpu.queue(),
                    &[(begin, round)],
                    &[late.commands],
                    &[(end, round)],
                    vk::Fence::null(),
                )?;
                gpu.wait(fence)?;
                unsafe { gpu.device.reset_fences(&[fence]) }?;
                first.reset(gpu)?;
                first.destroy(gpu);
                signal(gpu, begin, round)?;
                wait(gpu, end, round)?;
                late.destroy(gpu);
            }
            expect(&to.values::<u32>(), &[8, 8])
        }),
        case("of_what_two_queues_used", |gpu| {
            let other = gpu.queues.iter().skip(1).find(|queue| queue.family == gpu.family());
            let Some(other) = other else { return skip("a second queue of a family") };
            let to = gpu.buffer(8)?;
            let (begin, end) = (semaphore(gpu, Some(0))?, semaphore(gpu, Some(0))?);
            for round in 0..8u64 {
                let both = Used::new(gpu, to, 0, 0)?;
                both.reset(gpu)?;
                gpu.record_into(both.commands, vk::CommandBufferUsageFlags::empty(), |commands| unsafe {
                    gpu.device.cmd_fill_buffer(commands, to.handle, 0, 4, round as u32);
                })?;
                let late = Used::new(gpu, to, 4, round as u32)?;
                let value = 3 * round;
                for (queue, value) in [(gpu.queue(), value + 1), (other.handle, value + 2)] {
                    submit(gpu, queue, &[], &[both.commands], &[(end, value)], vk::Fence::null())?;
                    wait(gpu, end, value)?;
                    if queue == gpu.queue() {
                        let waits = [(begin, round + 1)];
                        submit(gpu, queue, &waits, &[late.commands], &[], vk::Fence::null())?;
                    }
                }
                both.reset(gpu)?;
                both.destroy(gpu);
                signal(gpu, begin, round + 1)?;
                unsafe { gpu.device.queue_wait_idle(gpu.queue()) }?;
                late.destroy(gpu);
            }
            expect(&to.values::<u32>(), &[7, 7])
        }),
        case("by_an_event_before_one_that_waits", |gpu| {
            let (begin, end) = (semaphore(gpu, Some(0))?, semaphore(gpu, Some(0))?);
            let to = gpu.buffer(8)?;
            let event = unsafe { gpu.device.create_event(&vk::EventCreateInfo::default(), None) }?;
            gpu.later(move |device| unsafe { device.destroy_event(event, None) });
            let first = Used::new(gpu, to, 0, 0)?;
            for round in 1..=8u64 {
                first.reset(gpu)?;
                unsafe { gpu.device.reset_event(event) }?;
                gpu.record_into(first.commands, vk::CommandBufferUsageFlags::empty(), |commands| unsafe {
                    gpu.device.cmd_fill_buffer(commands, to.handle, 0, 4, round as u32);
                    gpu.device.cmd_set_event(commands, event, vk::PipelineStageFlags::ALL_COMMANDS);
                })?;
                let late = Used::new(gpu, to, 4, round as u32)?;
                submit(gpu, gpu.queue(), &[], &[first.commands], &[], vk::Fence::null())?;
                let (waits, signals) = ([(begin, round)], [(end, round)]);
                submit(gpu, gpu.queue(), &waits, &[late.commands], &signals, vk::Fence::null())?;
                while !unsafe { gpu.device.get_event_status(event) }? {
                    std::thread::yield_now();
                }
                first.reset(gpu)?;
                signal(gpu, begin, round)?;
                wait(gpu, end, round)?;
                late.destroy(gpu);
            }
            first.destroy(gpu);
            expect(&to.values::<u32>(), &[8, 8])
        }),
    ]
}
