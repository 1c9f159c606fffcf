//! Recordings: fills, updates and copies of buffers, secondary and nested command buffers, pools, reuse.

use anyhow::Result;
use ash::vk;

use crate::bytes::{bytes_of, expect};
use crate::case::Case;
use crate::elementwise::noise32;
use crate::gpu::{Buffer, Gpu};
use crate::kernel::{Kernel, STORAGE, Slot};

/// All cases of this module.
pub(crate) fn cases() -> Vec<Case> {
    let mut cases = transfers();
    cases.extend(orders());
    cases.extend(secondaries());
    cases.extend(pools());
    cases
}

fn transfers() -> Vec<Case> {
    vec![
        Case::new("recording.fill_parts", |gpu| {
            let to = gpu.buffer(4096)?;
            gpu.run(|commands| unsafe {
                gpu.device.cmd_fill_buffer(commands, to.handle, 0, vk::WHOLE_SIZE, 0x0101_0101);
                gpu.barrier(commands);
                gpu.device.cmd_fill_buffer(commands, to.handle, 4, 8, 0xdead_beef);
                gpu.device.cmd_fill_buffer(commands, to.handle, 4000, vk::WHOLE_SIZE, 7);
            })?;
            let mut expected = vec![0x0101_0101; 1024];
            expected[1..3].fill(0xdead_beef);
            expected[1000..].fill(7);
            expect(&to.values::<u32>(), &expected)
        }),
        Case::new("recording.update_4", |gpu| update(gpu, 4)),
        Case::new("recording.update_65536", |gpu| update(gpu, 65536)),
        Case::new("recording.update_many", |gpu| {
            let to = gpu.buffer(1 << 20)?;
            let words = noise32(70, 1 << 18);
            gpu.run(|commands| {
                for (index, part) in words.chunks(8192).enumerate() {
                    let (at, part) = (index as u64 * 32768, bytes_of(part));
                    unsafe { gpu.device.cmd_update_buffer(commands, to.handle, at, &part) };
                }
            })?;
            expect(&to.values::<u32>(), &words)
        }),
        Case::new("recording.copy_overlapping_regions", |gpu| {
            let words = noise32(71, 1024);
            let (from, to) = (gpu.buffer_of(&words)?, gpu.buffer(4096)?);
            let region = |src_offset, dst_offset, size| vk::BufferCopy { src_offset, dst_offset, size };
            let regions =
                [region(0, 2048, 512), region(256, 1024, 512), region(4, 0, 3), region(4092, 4092, 4)];
            gpu.run(|commands| unsafe {
                gpu.device.cmd_copy_buffer(commands, from.handle, to.handle, &regions)
            })?;
            let from = bytes_of(&words);
            let mut expected = vec![0; 4096];
            for region in regions {
                let (source, target, size) =
                    (region.src_offset as usize, region.dst_offset as usize, region.size as usize);
                expected[target..target + size].copy_from_slice(&from[source..source + size]);
            }
            expect(&to.read(), &expected)
        }),
        Case::new("recording.copy_thousand_regions", |gpu| {
            let words = noise32(72, 1000);
            let (from, to) = (gpu.buffer_of(&words)?, gpu.buffer(4000)?);
            let regions: Vec<_> = (0..1000)
                .map(|i| vk::BufferCopy { src_offset: 4 * i, dst_offset: 4 * (999 - i), size: 4 })
                .collect();
            gpu.run(|commands| unsafe {
                gpu.device.cmd_copy_buffer(commands, from.handle, to.handle, &regions)
            })?;
            expect(&to.values::<u32>(), &words.iter().rev().copied().collect::<Vec<_>>())
        }),
        Case::new("recording.copy_2", |gpu| {
            let words = noise32(73, 64);
            let (from, to) = (gpu.buffer_of(&words)?, gpu.buffer(256)?);
            let regions = [
                vk::BufferCopy2::default().src_offset(128).size(128),
                vk::BufferCopy2::default().dst_offset(128).size(128),
            ];
            let info = vk::CopyBufferInfo2::default()
                .src_buffer(from.handle)
                .dst_buffer(to.handle)
                .regions(&regions);
            gpu.run(|commands| unsafe { gpu.device.cmd_copy_buffer2(commands, &info) })?;
            expect(&to.values::<u32>(), &[&words[32..], &words[..32]].concat())
        }),
        Case::new("recording.copy_large_through_device_memory", |gpu| {
            let words = noise32(74, 4 << 20);
            let (from, to) = (gpu.buffer_of(&words)?, gpu.buffer(16 << 20)?);
            let local = gpu.local_buffer(16 << 20)?;
            let whole = [vk::BufferCopy { src_offset: 0, dst_offset: 0, size: 16 << 20 }];
            gpu.run(|commands| unsafe {
                gpu.device.cmd_copy_buffer(commands, from.handle, local.handle, &whole);
                gpu.barrier(commands);
                gpu.device.cmd_copy_buffer(commands, local.handle, to.handle, &whole);
            })?;
            expect(&to.values::<u32>(), &words)
        }),
    ]
}

fn update(gpu: &Gpu, size: usize) -> Result<Vec<u8>> {
    let (to, words) = (gpu.buffer(65536 + 8)?, noise32(75, size / 4));
    let bytes = bytes_of(&words);
    gpu.run(|commands| unsafe { gpu.device.cmd_update_buffer(commands, to.handle, 4, &bytes) })?;
    let mut expected = vec![0; 65536 + 8];
    expected[4..4 + size].copy_from_slice(&bytes);
    expect(&to.read(), &expected)
}

/// Multiplies a counter and adds to it, so that the order shows.
const STEP: &str = "layout(binding = 0) buffer To { uint to; };
layout(push_constant) uniform Push { uint step; };
void main() { to = to * 3 + step; }";

struct Steps<'a> {
    gpu: &'a Gpu,
    to: Buffer,
    kernel: Kernel,
    set: vk::DescriptorSet,
}

impl<'a> Steps<'a> {
    fn new(gpu: &'a Gpu) -> Result<Self> {
        let to = gpu.buffer(4)?;
        let kernel = gpu.kernel(0).buffers(1).push(4).build()?;
        let set = gpu.set(&kernel, &[STORAGE], &[Slot::Buffer(to.handle)])?;
        Ok(Self { gpu, to, kernel, set })
    }

    fn step(&self, commands: vk::CommandBuffer, step: u32) {
        self.gpu.bind(commands, &self.kernel, self.set);
        self.gpu.push(commands, &self.kernel, &[step]);
        unsafe { self.gpu.device.cmd_dispatch(commands, 1, 1, 1) };
        self.gpu.barrier(commands);
    }

    fn expect(&self, steps: impl Iterator<Item = u32>) -> Result<Vec<u8>> {
        let expected = steps.fold(0u32, |value, step| value.wrapping_mul(3).wrapping_add(step));
        expect(&self.to.values::<u32>(), &[expected])
    }
}

fn orders() -> Vec<Case> {
    let case = |name: &str, run: fn(&Steps) -> Result<Vec<u8>>| {
        Case::new(format!("recording.{name}"), move |gpu| run(&Steps::new(gpu)?)).glsl(STEP)
    };
    vec![
        case("long_chain_of_barriers", |steps| {
            steps.gpu.run(|commands| (0..1000).for_each(|i| steps.step(commands, i)))?;
            steps.expect(0..1000)
        }),
        case("many_command_buffers_in_one_submission", |steps| {
            let all = (0..64)
                .map(|i| steps.gpu.record(|commands| steps.step(commands, i)))
                .collect::<Result<Vec<_>>>()?;
            steps.gpu.submit(&all)?;
            steps.expect(0..64)
        }),
        case("many_batches_in_one_submission", |steps| {
            let all = (0..32)
                .map(|i| steps.gpu.record(|commands| steps.step(commands, i)))
                .collect::<Result<Vec<_>>>()?;
            let batches: Vec<_> =
                all.chunks(4).map(|batch| vk::SubmitInfo::default().command_buffers(batch)).collect();
            let fence = steps.gpu.fence(false)?;
            unsafe { steps.gpu.device.queue_submit(steps.gpu.queue(), &batches, fence) }?;
            steps.gpu.wait(fence)?;
            steps.expect(0..32)
        }),
        case("many_submissions", |steps| {
            for i in 0..100 {
                let commands = [steps.gpu.record(|commands| steps.step(commands, i))?];
                let info = [vk::SubmitInfo::default().command_buffers(&commands)];
                unsafe { steps.gpu.device.queue_submit(steps.gpu.queue(), &info, vk::Fence::null()) }?;
            }
            unsafe { steps.gpu.device.queue_wait_idle(steps.gpu.queue()) }?;
            steps.expect(0..100)
        }),
        case("submitted_again_and_again", |steps| {
            let commands = steps.gpu.record(|commands| steps.step(commands, 5))?;
            for _ in 0..50 {
                steps.gpu.submit(&[commands])?;
            }
            steps.expect(std::iter::repeat_n(5, 50))
        }),
        case("simultaneous_use", |steps| {
            let gpu = steps.gpu;
            let commands = gpu.command_buffer()?;
            let flags = vk::CommandBufferUsageFlags::SIMULTANEOUS_USE;
            gpu.record_into(commands, flags, |commands| steps.step(commands, 2))?;
            let thrice = [commands; 3];
            let info = [vk::SubmitInfo::default().command_buffers(&thrice); 4];
            let fence = gpu.fence(false)?;
            unsafe { gpu.device.queue_submit(gpu.queue(), &info, vk::Fence::null()) }?;
            unsafe { gpu.device.queue_submit(gpu.queue(), &info, fence) }?;
            gpu.wait(fence)?;
            steps.expect(std::iter::repeat_n(2, 24))
        }),
        case("one_time_recorded_again", |steps| {
            let gpu = steps.gpu;
            let commands = gpu.command_buffer()?;
            for i in 0..20 {
                let flags = vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT;
                gpu.record_into(commands, flags, |commands| steps.step(commands, i))?;
                gpu.submit(&[commands])?;
                if i % 2 == 0 {
                    unsafe {
                        gpu.device
                            .reset_command_buffer(commands, vk::CommandBufferResetFlags::RELEASE_RESOURCES)
                    }?;
                }
            }
            steps.expect(0..20)
        }),
        case("large_recording", |steps| {
            steps.gpu.run(|commands| (0..20_000).for_each(|i| steps.step(commands, i)))?;
            steps.expect(0..20_000)
        }),
        case("submit_2", |steps| {
            let gpu = steps.gpu;
            gpu.require(&["synchronization2"])?;
            let all =
                (0..8).map(|i| gpu.record(|commands| steps.step(commands, i))).collect::<Result<Vec<_>>>()?;
            let infos: Vec<_> = all
                .iter()
                .map(|commands| vk::CommandBufferSubmitInfo::default().command_buffer(*commands))
                .collect();
            let batches: Vec<_> =
                infos.chunks(2).map(|batch| vk::SubmitInfo2::default().command_buffer_infos(batch)).collect();
            let fence = gpu.fence(false)?;
            unsafe { gpu.device.queue_submit2(gpu.queue(), &batches, fence) }?;
            gpu.wait(fence)?;
            steps.expect(0..8)
        }),
        case("device_group_of_one", |steps| {
            let gpu = steps.gpu;
            let commands = [gpu.record(|commands| unsafe {
                gpu.device.cmd_set_device_mask(commands, 1);
                steps.step(commands, 77);
            })?];
            let masks = [1];
            let mut group = vk::DeviceGroupSubmitInfo::default().command_buffer_device_masks(&masks);
            let info = [vk::SubmitInfo::default().command_buffers(&commands).push_next(&mut group)];
            let fence = gpu.fence(false)?;
            unsafe { gpu.device.queue_submit(gpu.queue(), &info, fence) }?;
            gpu.wait(fence)?;
            steps.expect(std::iter::once(77))
        }),
    ]
}

fn secondaries() -> Vec<Case> {
    let case = |name: &str, run: fn(&Steps) -> Result<Vec<u8>>| {
        Case::new(format!("recording.secondary.{name}"), move |gpu| run(&Steps::new(gpu)?)).glsl(STEP)
    };
    vec![
        case("executed_in_order", |steps| {
            let gpu = steps.gpu;
            let all = gpu.secondaries(10)?;
            for (i, commands) in (0..).zip(&all) {
                gpu.record_into(*commands, vk::CommandBufferUsageFlags::empty(), |commands| {
                    steps.step(commands, i)
                })?;
            }
            gpu.run(|commands| unsafe {
                gpu.device.cmd_execute_commands(commands, &all[..4]);
                steps.step(commands, 1000);
                gpu.device.cmd_execute_commands(commands, &all[4..]);
            })?;
            steps.expect((0..4).chain([1000]).chain(4..10))
        }),
        case("simultaneous_use", |steps| {
            let gpu = steps.gpu;
            let all = gpu.secondaries(1)?;
            let flags = vk::CommandBufferUsageFlags::SIMULTANEOUS_USE;
            gpu.record_into(all[0], flags, |commands| steps.step(commands, 9))?;
            let primary = |count| {
                gpu.record(|commands| {
                    (0..count).for_each(|_| unsafe { gpu.device.cmd_execute_commands(commands, &all) })
                })
            };
            gpu.submit(&[primary(3)?, primary(2)?])?;
            steps.expect(std::iter::repeat_n(9, 5))
        }),
        case("nested", |steps| {
            let gpu = steps.gpu;
            gpu.require(&["nestedCommandBuffer"])?;
            let all = gpu.secondaries(2)?;
            let none = vk::CommandBufferUsageFlags::empty();
            gpu.record_into(all[0], none, |commands| steps.step(commands, 4))?;
            gpu.record_into(all[1], none, |commands| unsafe {
                steps.step(commands, 1);
                gpu.device.cmd_execute_commands(commands, &all[..1]);
                steps.step(commands, 2);
            })?;
            gpu.run(|commands| unsafe { gpu.device.cmd_execute_commands(commands, &all[1..]) })?;
            steps.expect([1, 4, 2].into_iter())
        }),
    ]
}

fn pools() -> Vec<Case> {
    let case = |name: &str, run: fn(&Steps) -> Result<Vec<u8>>| {
        Case::new(format!("recording.pool.{name}"), move |gpu| run(&Steps::new(gpu)?)).glsl(STEP)
    };
    vec![
        case("reset_and_trimmed", |steps| {
            let gpu = steps.gpu;
            let pool = gpu.command_pool(gpu.family(), vk::CommandPoolCreateFlags::TRANSIENT)?;
            let buffers = gpu.command_buffers(pool, vk::CommandBufferLevel::PRIMARY, 3)?;
            for round in 0..5 {
                for (i, commands) in (0..).zip(&buffers) {
                    let flags = vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT;
                    gpu.record_into(*commands, flags, |commands| steps.step(commands, 3 * round + i))?;
                }
                gpu.submit(&buffers)?;
                let flags = if round % 2 == 0 {
                    vk::CommandPoolResetFlags::RELEASE_RESOURCES
                } else {
                    Default::default()
                };
                unsafe { gpu.device.reset_command_pool(pool, flags) }?;
                unsafe { gpu.device.trim_command_pool(pool, vk::CommandPoolTrimFlags::empty()) };
            }
            steps.expect(0..15)
        }),
        case("many_pools", |steps| {
            let gpu = steps.gpu;
            for i in 0..30 {
                let pool = gpu.command_pool(gpu.family(), vk::CommandPoolCreateFlags::empty())?;
                let buffers = gpu.command_buffers(pool, vk::CommandBufferLevel::PRIMARY, 1)?;
                gpu.record_into(buffers[0], vk::CommandBufferUsageFlags::empty(), |commands| {
                    steps.step(commands, i)
                })?;
                gpu.submit(&buffers)?;
            }
            steps.expect(0..30)
        }),
        case("thousand_buffers", |steps| {
            let gpu = steps.gpu;
            let pool = gpu.command_pool(gpu.family(), vk::CommandPoolCreateFlags::empty())?;
            let buffers = gpu.command_buffers(pool, vk::CommandBufferLevel::PRIMARY, 1000)?;
            for (i, commands) in (0..).zip(&buffers) {
                gpu.record_into(*commands, vk::CommandBufferUsageFlags::empty(), |commands| {
                    steps.step(commands, i)
                })?;
            }
            gpu.submit(&buffers)?;
            steps.expect(0..1000)
        }),
    ]
}
