//! Fences, semaphores, events and barriers, on one queue and on several.

use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use ash::vk;

use crate::bytes::expect;
use crate::case::Case;
use crate::gpu::{Buffer, Gpu, PATIENCE, skip};

/// All cases of this module.
pub(crate) fn cases() -> Vec<Case> {
    let mut cases = fences();
    cases.extend(binary());
    cases.extend(timeline());
    cases.extend(events());
    cases.extend(barriers());
    cases.extend(queues());
    cases
}

/// A semaphore; a timeline that begins with this value, or a binary one.
pub(crate) fn semaphore(gpu: &Gpu, timeline: Option<u64>) -> Result<vk::Semaphore> {
    let mut ty = vk::SemaphoreTypeCreateInfo::default()
        .semaphore_type(vk::SemaphoreType::TIMELINE)
        .initial_value(timeline.unwrap_or_default());
    let mut info = vk::SemaphoreCreateInfo::default();
    if timeline.is_some() {
        info = info.push_next(&mut ty);
    }
    let semaphore = unsafe { gpu.device.create_semaphore(&info, None) }?;
    gpu.later(move |device| unsafe { device.destroy_semaphore(semaphore, None) });
    Ok(semaphore)
}

/// A command buffer of a queue's family that fills four bytes.
fn fill(gpu: &Gpu, family: u32, to: Buffer, at: u64, value: u32) -> Result<vk::CommandBuffer> {
    let pool = gpu.command_pool(family, vk::CommandPoolCreateFlags::empty())?;
    let commands = gpu.command_buffers(pool, vk::CommandBufferLevel::PRIMARY, 1)?[0];
    gpu.record_into(commands, vk::CommandBufferUsageFlags::SIMULTANEOUS_USE, |commands| unsafe {
        gpu.barrier(commands);
        gpu.device.cmd_fill_buffer(commands, to.handle, at, 4, value);
    })?;
    Ok(commands)
}

/// A command buffer that copies four bytes.
fn copy(gpu: &Gpu, family: u32, buffer: Buffer, from: u64, to: u64) -> Result<vk::CommandBuffer> {
    let pool = gpu.command_pool(family, vk::CommandPoolCreateFlags::empty())?;
    let commands = gpu.command_buffers(pool, vk::CommandBufferLevel::PRIMARY, 1)?[0];
    let region = [vk::BufferCopy { src_offset: from, dst_offset: to, size: 4 }];
    gpu.record_into(commands, vk::CommandBufferUsageFlags::SIMULTANEOUS_USE, |commands| unsafe {
        gpu.barrier(commands);
        gpu.device.cmd_copy_buffer(commands, buffer.handle, buffer.handle, &region);
    })?;
    Ok(commands)
}

/// Submits with binary or timeline semaphores: each with a value, which binary semaphores ignore.
pub(crate) fn submit(
    gpu: &Gpu,
    queue: vk::Queue,
    waits: &[(vk::Semaphore, u64)],
    commands: &[vk::CommandBuffer],
    signals: &[(vk::Semaphore, u64)],
    fence: vk::Fence,
) -> Result<()> {
    let (wait, wait_values): (Vec<_>, Vec<_>) = waits.iter().copied().unzip();
    let (signal, signal_values): (Vec<_>, Vec<_>) = signals.iter().copied().unzip();
    let stages = vec![vk::PipelineStageFlags::ALL_COMMANDS; wait.len()];
    let mut values = vk::TimelineSemaphoreSubmitInfo::default()
        .wait_semaphore_values(&wait_values)
        .signal_semaphore_values(&signal_values);
    let info = vk::SubmitInfo::default()
        .wait_semaphores(&wait)
        .wait_dst_stage_mask(&stages)
        .command_buffers(commands)
        .signal_semaphores(&signal)
        .push_next(&mut values);
    Ok(unsafe { gpu.device.queue_submit(queue, &[info], fence) }?)
}

fn fences() -> Vec<Case> {
    vec![
        Case::new("synchronization.fence.status", |gpu| {
            let fence = gpu.fence(true)?;
            ensure!(unsafe { gpu.device.get_fence_status(fence) }?, "created signalled");
            unsafe { gpu.device.reset_fences(&[fence]) }?;
            ensure!(!unsafe { gpu.device.get_fence_status(fence) }?, "after its reset");
            let waited = unsafe { gpu.device.wait_for_fences(&[fence], true, 1_000_000) };
            ensure!(waited == Err(vk::Result::TIMEOUT), "waiting for nothing: {waited:?}");
            unsafe { gpu.device.queue_submit(gpu.queue(), &[], fence) }?;
            gpu.wait(fence)?;
            ensure!(unsafe { gpu.device.get_fence_status(fence) }?, "after the wait");
            Ok(Vec::new())
        }),
        Case::new("synchronization.fence.any_and_all", |gpu| {
            let fences = (0..5).map(|_| gpu.fence(false)).collect::<Result<Vec<_>>>()?;
            unsafe { gpu.device.queue_submit(gpu.queue(), &[], fences[3]) }?;
            unsafe { gpu.device.wait_for_fences(&fences, false, PATIENCE) }?;
            let all = unsafe { gpu.device.wait_for_fences(&fences, true, 1_000_000) };
            ensure!(all == Err(vk::Result::TIMEOUT), "all of five: {all:?}");
            for fence in [0, 1, 2, 4] {
                unsafe { gpu.device.queue_submit(gpu.queue(), &[], fences[fence]) }?;
            }
            unsafe { gpu.device.wait_for_fences(&fences, true, PATIENCE) }?;
            Ok(Vec::new())
        }),
        Case::new("synchronization.fence.polled", |gpu| {
            let to = gpu.buffer(4)?;
            for round in 1..=50 {
                let fence = gpu.fence(false)?;
                let commands = fill(gpu, gpu.family(), to, 0, round)?;
                submit(gpu, gpu.queue(), &[], &[commands], &[], fence)?;
                while !unsafe { gpu.device.get_fence_status(fence) }? {
                    thread::yield_now();
                }
                expect(&to.values::<u32>(), &[round])?;
            }
            Ok(Vec::new())
        }),
        Case::new("synchronization.fence.used_again", |gpu| {
            let (to, fence) = (gpu.buffer(4)?, gpu.fence(false)?);
            for round in 1..=50 {
                let commands = fill(gpu, gpu.family(), to, 0, round)?;
                submit(gpu, gpu.queue(), &[], &[commands], &[], fence)?;
                gpu.wait(fence)?;
                expect(&to.values::<u32>(), &[round])?;
                unsafe { gpu.device.reset_fences(&[fence]) }?;
            }
            Ok(Vec::new())
        }),
        Case::new("synchronization.fence.hundred_in_flight", |gpu| {
            let to = gpu.buffer(400)?;
            let fences = (0..100).map(|_| gpu.fence(false)).collect::<Result<Vec<_>>>()?;
            for (i, fence) in (0u32..).zip(&fences) {
                let commands = fill(gpu, gpu.family(), to, 4 * u64::from(i), i)?;
                submit(gpu, gpu.queue(), &[], &[commands], &[], *fence)?;
            }
            unsafe { gpu.device.wait_for_fences(&fences, true, PATIENCE) }?;
            expect(&to.values::<u32>(), &(0..100).collect::<Vec<_>>())
        }),
    ]
}

fn binary() -> Vec<Case> {
    vec![
        Case::new("synchronization.binary.chain", |gpu| {
            let to = gpu.buffer(8)?;
            let semaphores = (0..20).map(|_| semaphore(gpu, None)).collect::<Result<Vec<_>>>()?;
            for (i, pair) in semaphores.windows(2).enumerate() {
                let waits: &[_] = if i == 0 { &[] } else { &[(pair[0], 0)] };
                let commands = fill(gpu, gpu.family(), to, 0, i as u32)?;
                submit(gpu, gpu.queue(), waits, &[commands], &[(pair[1], 0)], vk::Fence::null())?;
            }
            let fence = gpu.fence(false)?;
            let last = copy(gpu, gpu.family(), to, 0, 4)?;
            submit(gpu, gpu.queue(), &[(semaphores[19], 0)], &[last], &[], fence)?;
            gpu.wait(fence)?;
            expect(&to.values::<u32>(), &[18, 18])
        }),
        Case::new("synchronization.binary.values_do_not_apply", |gpu| {
            gpu.require(&["timelineSemaphore"])?;
            let (to, again) = (gpu.buffer(8)?, semaphore(gpu, None)?);
            let values: &[u64] = &[7, 8, 9];
            for (waits, signals) in [(&values[..0], values), (values, &values[..2]), (values, &values[..0])] {
                let (semaphores, stages) = ([again], [vk::PipelineStageFlags::ALL_COMMANDS]);
                let commands = [[fill(gpu, gpu.family(), to, 0, 5)?], [copy(gpu, gpu.family(), to, 0, 4)?]];
                let [mut first, mut second] = [(); 2].map(|()| {
                    vk::TimelineSemaphoreSubmitInfo::default()
                        .wait_semaphore_values(waits)
                        .signal_semaphore_values(signals)
                });
                let signal =
                    vk::SubmitInfo::default().command_buffers(&commands[0]).signal_semaphores(&semaphores);
                let wait =
                    vk::SubmitInfo::default().command_buffers(&commands[1]).wait_semaphores(&semaphores);
                let wait = wait.wait_dst_stage_mask(&stages);
                let infos = [signal.push_next(&mut first), wait.push_next(&mut second)];
                let fence = gpu.fence(false)?;
                unsafe { gpu.device.queue_submit(gpu.queue(), &infos, fence) }?;
                gpu.wait(fence)?;
            }
            expect(&to.values::<u32>(), &[5, 5])
        }),
        Case::new("synchronization.binary.used_again", |gpu| {
            let (to, again) = (gpu.buffer(8)?, semaphore(gpu, None)?);
            for round in 0..20 {
                let first = fill(gpu, gpu.family(), to, 0, round)?;
                let second = copy(gpu, gpu.family(), to, 0, 4)?;
                let fence = gpu.fence(false)?;
                submit(gpu, gpu.queue(), &[], &[first], &[(again, 0)], vk::Fence::null())?;
                submit(gpu, gpu.queue(), &[(again, 0)], &[second], &[], fence)?;
                gpu.wait(fence)?;
                expect(&to.values::<u32>(), &[round; 2])?;
            }
            Ok(Vec::new())
        }),
        Case::new("synchronization.binary.fan_in", |gpu| {
            let to = gpu.buffer(64)?;
            let semaphores = (0..8).map(|_| semaphore(gpu, None)).collect::<Result<Vec<_>>>()?;
            for (i, semaphore) in (0u32..).zip(&semaphores) {
                let commands = fill(gpu, gpu.family(), to, 4 * u64::from(i), 100 + i)?;
                submit(gpu, gpu.queue(), &[], &[commands], &[(*semaphore, 0)], vk::Fence::null())?;
            }
            let waits: Vec<_> = semaphores.iter().map(|semaphore| (*semaphore, 0)).collect();
            let commands =
                (0..8).map(|i| copy(gpu, gpu.family(), to, 4 * i, 32 + 4 * i)).collect::<Result<Vec<_>>>()?;
            let fence = gpu.fence(false)?;
            submit(gpu, gpu.queue(), &waits, &commands, &[], fence)?;
            gpu.wait(fence)?;
            expect(&to.values::<u32>(), &(0..16).map(|i| 100 + i % 8).collect::<Vec<_>>())
        }),
    ]
}

fn timeline() -> Vec<Case> {
    fn case(name: &str, run: fn(&Gpu) -> Result<Vec<u8>>) -> Case {
        Case::new(format!("synchronization.timeline.{name}"), move |gpu| {
            gpu.require(&["timelineSemaphore"])?;
            run(gpu)
        })
    }
    fn wait(
        gpu: &Gpu,
        semaphores: &[vk::Semaphore],
        values: &[u64],
        flags: vk::SemaphoreWaitFlags,
        timeout: u64,
    ) -> ash::prelude::VkResult<()> {
        let info = vk::SemaphoreWaitInfo::default().semaphores(semaphores).values(values).flags(flags);
        unsafe { gpu.device.wait_semaphores(&info, timeout) }
    }
    const ALL: vk::SemaphoreWaitFlags = vk::SemaphoreWaitFlags::empty();
    vec![
        case("host_signal_and_wait", |gpu| {
            let semaphore = semaphore(gpu, Some(5))?;
            let value = || unsafe { gpu.device.get_semaphore_counter_value(semaphore) };
            expect(&[value()?], &[5])?;
            ensure!(
                wait(gpu, &[semaphore], &[6], ALL, 1_000_000) == Err(vk::Result::TIMEOUT),
                "6 before it was there"
            );
            let info = vk::SemaphoreSignalInfo::default().semaphore(semaphore).value(1 << 40);
            unsafe { gpu.device.signal_semaphore(&info) }?;
            wait(gpu, &[semaphore], &[6], ALL, PATIENCE)?;
            expect(&[value()?], &[1 << 40])
        }),
        case("device_signal", |gpu| {
            let (to, semaphore) = (gpu.buffer(4)?, semaphore(gpu, Some(0))?);
            for round in 1..=30 {
                let commands = fill(gpu, gpu.family(), to, 0, round)?;
                submit(
                    gpu,
                    gpu.queue(),
                    &[],
                    &[commands],
                    &[(semaphore, u64::from(round) * 10)],
                    vk::Fence::null(),
                )?;
                wait(gpu, &[semaphore], &[u64::from(round) * 10], ALL, PATIENCE)?;
                expect(&to.values::<u32>(), &[round])?;
            }
            expect(&[unsafe { gpu.device.get_semaphore_counter_value(semaphore) }?], &[300])
        }),
        case("polled", |gpu| {
            let (to, semaphore) = (gpu.buffer(4)?, semaphore(gpu, Some(0))?);
            for round in 1..=30 {
                let commands = fill(gpu, gpu.family(), to, 0, round)?;
                submit(
                    gpu,
                    gpu.queue(),
                    &[],
                    &[commands],
                    &[(semaphore, u64::from(round))],
                    vk::Fence::null(),
                )?;
                while unsafe { gpu.device.get_semaphore_counter_value(semaphore) }? < u64::from(round) {
                    thread::yield_now();
                }
                expect(&to.values::<u32>(), &[round])?;
            }
            Ok(Vec::new())
        }),
        case("wait_before_host_signal", |gpu| {
            let (to, gate, done) = (gpu.buffer(4)?, semaphore(gpu, Some(0))?, semaphore(gpu, Some(0))?);
            let commands = fill(gpu, gpu.family(), to, 0, 3)?;
            submit(gpu, gpu.queue(), &[(gate, 7)], &[commands], &[(done, 1)], vk::Fence::null())?;
            thread::sleep(Duration::from_millis(50));
            let before = to.values::<u32>();
            ensure!(
                wait(gpu, &[done], &[1], ALL, 1_000_000) == Err(vk::Result::TIMEOUT),
                "done before it may start"
            );
            let info = vk::SemaphoreSignalInfo::default().semaphore(gate).value(7);
            unsafe { gpu.device.signal_semaphore(&info) }?;
            wait(gpu, &[done], &[1], ALL, PATIENCE)?;
            expect(&[before, to.values()].concat(), &[0, 3])
        }),
        case("wait_any", |gpu| {
            let all = [semaphore(gpu, Some(0))?, semaphore(gpu, Some(0))?, semaphore(gpu, Some(0))?];
            ensure!(
                wait(gpu, &all, &[1; 3], vk::SemaphoreWaitFlags::ANY, 1_000_000) == Err(vk::Result::TIMEOUT),
                "any of none"
            );
            submit(gpu, gpu.queue(), &[], &[], &[(all[1], 1)], vk::Fence::null())?;
            wait(gpu, &all, &[1; 3], vk::SemaphoreWaitFlags::ANY, PATIENCE)?;
            ensure!(wait(gpu, &all, &[1; 3], ALL, 1_000_000) == Err(vk::Result::TIMEOUT), "all of one");
            submit(gpu, gpu.queue(), &[], &[], &[(all[0], 2), (all[2], 9)], vk::Fence::null())?;
            wait(gpu, &all, &[1; 3], ALL, PATIENCE)?;
            Ok(Vec::new())
        }),
        case("wait_in_another_thread", |gpu| {
            let semaphore = semaphore(gpu, Some(0))?;
            thread::scope(|scope| {
                let device = gpu.device.clone();
                let waiter = scope.spawn(move || {
                    let (semaphores, values) = ([semaphore], [4]);
                    let info = vk::SemaphoreWaitInfo::default().semaphores(&semaphores).values(&values);
                    unsafe { device.wait_semaphores(&info, PATIENCE) }
                });
                for value in 1..=4 {
                    thread::sleep(Duration::from_millis(10));
                    let info = vk::SemaphoreSignalInfo::default().semaphore(semaphore).value(value);
                    unsafe { gpu.device.signal_semaphore(&info) }?;
                }
                waiter.join().expect("waiting does not panic")
            })?;
            expect(&[unsafe { gpu.device.get_semaphore_counter_value(semaphore) }?], &[4])
        }),
        case("with_binary_and_submit_2", |gpu| {
            gpu.require(&["synchronization2"])?;
            let (to, line, once) = (gpu.buffer(8)?, semaphore(gpu, Some(1))?, semaphore(gpu, None)?);
            let stage = vk::PipelineStageFlags2::ALL_COMMANDS;
            let info = |semaphore, value| {
                vk::SemaphoreSubmitInfo::default().semaphore(semaphore).value(value).stage_mask(stage)
            };
            let first =
                [vk::CommandBufferSubmitInfo::default().command_buffer(fill(gpu, gpu.family(), to, 0, 8)?)];
            let second =
                [vk::CommandBufferSubmitInfo::default().command_buffer(copy(gpu, gpu.family(), to, 0, 4)?)];
            let (before, between, after) = ([info(line, 1)], [info(once, 0), info(line, 2)], [info(line, 3)]);
            let batches = [
                vk::SubmitInfo2::default()
                    .wait_semaphore_infos(&before)
                    .command_buffer_infos(&first)
                    .signal_semaphore_infos(&between),
                vk::SubmitInfo2::default()
                    .wait_semaphore_infos(&between)
                    .command_buffer_infos(&second)
                    .signal_semaphore_infos(&after),
            ];
            unsafe { gpu.device.queue_submit2(gpu.queue(), &batches, vk::Fence::null()) }?;
            wait(gpu, &[line], &[3], ALL, PATIENCE)?;
            expect(&to.values::<u32>(), &[8, 8])
        }),
    ]
}

fn event(gpu: &Gpu, flags: vk::EventCreateFlags) -> Result<vk::Event> {
    let event = unsafe { gpu.device.create_event(&vk::EventCreateInfo::default().flags(flags), None) }?;
    gpu.later(move |device| unsafe { device.destroy_event(event, None) });
    Ok(event)
}

fn events() -> Vec<Case> {
    vec![
        Case::new("synchronization.event.host", |gpu| {
            let event = event(gpu, vk::EventCreateFlags::empty())?;
            let status = || unsafe { gpu.device.get_event_status(event) };
            ensure!(!status()?, "a new event");
            unsafe { gpu.device.set_event(event) }?;
            ensure!(status()?, "a set event");
            unsafe { gpu.device.reset_event(event) }?;
            ensure!(!status()?, "a reset event");
            Ok(Vec::new())
        }),
        Case::new("synchronization.event.device_sets_and_resets", |gpu| {
            let event = event(gpu, vk::EventCreateFlags::empty())?;
            let stage = vk::PipelineStageFlags::ALL_COMMANDS;
            let status = || unsafe { gpu.device.get_event_status(event) };
            gpu.run(|commands| unsafe { gpu.device.cmd_set_event(commands, event, stage) })?;
            ensure!(status()?, "set by the device");
            gpu.run(|commands| unsafe { gpu.device.cmd_reset_event(commands, event, stage) })?;
            ensure!(!status()?, "reset by the device");
            Ok(Vec::new())
        }),
        Case::new("synchronization.event.waited_for", |gpu| {
            let (to, event) = (gpu.buffer(8)?, event(gpu, vk::EventCreateFlags::empty())?);
            let region = [vk::BufferCopy { src_offset: 0, dst_offset: 4, size: 4 }];
            let stage = vk::PipelineStageFlags::TRANSFER;
            let barrier = [vk::MemoryBarrier::default()
                .src_access_mask(vk::AccessFlags::TRANSFER_WRITE)
                .dst_access_mask(vk::AccessFlags::TRANSFER_READ)];
            gpu.run(|commands| unsafe {
                gpu.device.cmd_fill_buffer(commands, to.handle, 0, 4, 55);
                gpu.device.cmd_set_event(commands, event, stage);
                gpu.device.cmd_wait_events(commands, &[event], stage, stage, &barrier, &[], &[]);
                gpu.device.cmd_copy_buffer(commands, to.handle, to.handle, &region);
            })?;
            expect(&to.values::<u32>(), &[55, 55])
        }),
        Case::new("synchronization.event.host_lets_device_go_on", |gpu| {
            let (to, event) = (gpu.buffer(4)?, event(gpu, vk::EventCreateFlags::empty())?);
            let commands = gpu.record(|commands| unsafe {
                let stage = vk::PipelineStageFlags::TRANSFER;
                gpu.device.cmd_wait_events(
                    commands,
                    &[event],
                    vk::PipelineStageFlags::HOST,
                    stage,
                    &[],
                    &[],
                    &[],
                );
                gpu.device.cmd_fill_buffer(commands, to.handle, 0, 4, 66);
            })?;
            // The event is set before the submission: Vulkan does not promise that a wait ends if the host sets the event later.
            unsafe { gpu.device.set_event(event) }?;
            gpu.submit(&[commands])?;
            expect(&to.values::<u32>(), &[66])
        }),
        Case::new("synchronization.event.synchronization_2", |gpu| {
            gpu.require(&["synchronization2"])?;
            let (to, event) = (gpu.buffer(8)?, event(gpu, vk::EventCreateFlags::DEVICE_ONLY)?);
            let region = [vk::BufferCopy { src_offset: 0, dst_offset: 4, size: 4 }];
            let barrier = [vk::MemoryBarrier2::default()
                .src_stage_mask(vk::PipelineStageFlags2::CLEAR)
                .src_access_mask(vk::AccessFlags2::TRANSFER_WRITE)
                .dst_stage_mask(vk::PipelineStageFlags2::COPY)
                .dst_access_mask(vk::AccessFlags2::TRANSFER_READ)];
            let dependency = vk::DependencyInfo::default().memory_barriers(&barrier);
            gpu.run(|commands| unsafe {
                gpu.device.cmd_fill_buffer(commands, to.handle, 0, 4, 77);
                gpu.device.cmd_set_event2(commands, event, &dependency);
                gpu.device.cmd_wait_events2(commands, &[event], &[dependency]);
                gpu.device.cmd_copy_buffer(commands, to.handle, to.handle, &region);
                gpu.device.cmd_reset_event2(commands, event, vk::PipelineStageFlags2::ALL_COMMANDS);
            })?;
            expect(&to.values::<u32>(), &[77, 77])
        }),
    ]
}

fn barriers() -> Vec<Case> {
    vec![
        Case::new("synchronization.barrier.of_buffer_parts", |gpu| {
            let to = gpu.buffer(1024)?;
            let stage = vk::PipelineStageFlags::TRANSFER;
            gpu.run(|commands| {
                for i in 0..100u64 {
                    let (from, at) = (4 * i, 4 * (i + 1));
                    let barrier = [vk::BufferMemoryBarrier::default()
                        .src_access_mask(vk::AccessFlags::TRANSFER_WRITE)
                        .dst_access_mask(vk::AccessFlags::TRANSFER_READ)
                        .src_queue_family_index(vk::QUEUE_FAMILY_IGNORED)
                        .dst_queue_family_index(vk::QUEUE_FAMILY_IGNORED)
                        .buffer(to.handle)
                        .offset(from)
                        .size(4)];
                    let region = [vk::BufferCopy { src_offset: from, dst_offset: at, size: 4 }];
                    unsafe {
                        if i == 0 {
                            gpu.device.cmd_fill_buffer(commands, to.handle, 0, 4, 99);
                        }
                        gpu.device.cmd_pipeline_barrier(
                            commands,
                            stage,
                            stage,
                            vk::DependencyFlags::BY_REGION,
                            &[],
                            &barrier,
                            &[],
                        );
                        gpu.device.cmd_copy_buffer(commands, to.handle, to.handle, &region);
                    }
                }
            })?;
            expect(&to.values::<u32>()[..101], &[99; 101])
        }),
        Case::new("synchronization.barrier.synchronization_2", |gpu| {
            gpu.require(&["synchronization2"])?;
            let to = gpu.buffer(1024)?;
            let memory = [vk::MemoryBarrier2::default()
                .src_stage_mask(vk::PipelineStageFlags2::ALL_TRANSFER)
                .src_access_mask(vk::AccessFlags2::TRANSFER_WRITE)
                .dst_stage_mask(vk::PipelineStageFlags2::COPY)
                .dst_access_mask(vk::AccessFlags2::TRANSFER_READ)];
            let buffer = [vk::BufferMemoryBarrier2::default()
                .src_stage_mask(vk::PipelineStageFlags2::COPY)
                .src_access_mask(vk::AccessFlags2::TRANSFER_WRITE)
                .dst_stage_mask(vk::PipelineStageFlags2::HOST)
                .dst_access_mask(vk::AccessFlags2::HOST_READ)
                .buffer(to.handle)
                .size(vk::WHOLE_SIZE)];
            let region = [vk::BufferCopy { src_offset: 0, dst_offset: 512, size: 512 }];
            gpu.run(|commands| unsafe {
                gpu.device.cmd_fill_buffer(commands, to.handle, 0, 512, 123);
                gpu.device
                    .cmd_pipeline_barrier2(commands, &vk::DependencyInfo::default().memory_barriers(&memory));
                gpu.device.cmd_copy_buffer(commands, to.handle, to.handle, &region);
                gpu.device.cmd_pipeline_barrier2(
                    commands,
                    &vk::DependencyInfo::default().buffer_memory_barriers(&buffer),
                );
            })?;
            expect(&to.values::<u32>(), &[123; 256])
        }),
    ]
}

fn queues() -> Vec<Case> {
    fn two(gpu: &Gpu) -> Result<[crate::gpu::Queue; 2]> {
        match gpu.queues[..] {
            [first, .., last] => Ok([first, last]),
            _ => skip("a second queue"),
        }
    }
    vec![
        Case::new("synchronization.queues.ping_pong", |gpu| {
            gpu.require(&["timelineSemaphore"])?;
            let [first, second] = two(gpu)?;
            let (to, line) = (gpu.buffer(8)?, semaphore(gpu, Some(0))?);
            for round in 0..20u64 {
                let one = fill(gpu, first.family, to, 0, round as u32)?;
                let other = copy(gpu, second.family, to, 0, 4)?;
                submit(
                    gpu,
                    second.handle,
                    &[(line, 2 * round + 1)],
                    &[other],
                    &[(line, 2 * round + 2)],
                    vk::Fence::null(),
                )?;
                submit(
                    gpu,
                    first.handle,
                    &[(line, 2 * round)],
                    &[one],
                    &[(line, 2 * round + 1)],
                    vk::Fence::null(),
                )?;
            }
            unsafe { gpu.device.device_wait_idle() }?;
            expect(&to.values::<u32>(), &[19, 19])
        }),
        Case::new("synchronization.queues.wait_before_signal_across", |gpu| {
            gpu.require(&["timelineSemaphore"])?;
            let [first, second] = two(gpu)?;
            let (to, gate) = (gpu.buffer(8)?, semaphore(gpu, Some(0))?);
            let fence = gpu.fence(false)?;
            let other = copy(gpu, second.family, to, 0, 4)?;
            submit(gpu, second.handle, &[(gate, 1)], &[other], &[], fence)?;
            thread::sleep(Duration::from_millis(20));
            let one = fill(gpu, first.family, to, 0, 31)?;
            submit(gpu, first.handle, &[], &[one], &[(gate, 1)], vk::Fence::null())?;
            gpu.wait(fence)?;
            expect(&to.values::<u32>(), &[31, 31])
        }),
        Case::new("synchronization.queues.all_at_once", |gpu| {
            let to = gpu.buffer(256)?;
            let fences = gpu.queues.iter().map(|_| gpu.fence(false)).collect::<Result<Vec<_>>>()?;
            for (i, (queue, fence)) in (0u32..).zip(gpu.queues.iter().zip(&fences)) {
                let commands = fill(gpu, queue.family, to, 4 * u64::from(i), i + 1)?;
                submit(gpu, queue.handle, &[], &[commands], &[], *fence)?;
            }
            unsafe { gpu.device.wait_for_fences(&fences, true, PATIENCE) }?;
            let count = gpu.queues.len();
            let expected: Vec<u32> = (0..64).map(|i| if i < count { i as u32 + 1 } else { 0 }).collect();
            expect(&to.values::<u32>(), &expected)
        }),
        Case::new("synchronization.queues.wait_idle", |gpu| {
            let to = gpu.buffer(4)?;
            for round in 1..=20 {
                let commands = fill(gpu, gpu.family(), to, 0, round)?;
                submit(gpu, gpu.queue(), &[], &[commands], &[], vk::Fence::null())?;
                if round % 2 == 0 {
                    unsafe { gpu.device.queue_wait_idle(gpu.queue()) }?;
                } else {
                    unsafe { gpu.device.device_wait_idle() }?;
                }
                expect(&to.values::<u32>(), &[round])?;
            }
            Ok(Vec::new())
        }),
    ]
}
