//! Several instances and devices in a process, device groups of one, many threads, and requests that devices refuse.

use std::sync::Mutex;
use std::thread;

use anyhow::{Result, ensure};
use ash::vk;

use crate::bytes::{bytes_of, expect};
use crate::case::Case;
use crate::gpu::{Gpu, PATIENCE, ROBUSTNESS, entry, instance};
use crate::kernel::{STORAGE, Slot};

/// All cases of this module.
pub(crate) fn cases() -> Vec<Case> {
    let mut cases = several();
    cases.extend(groups());
    cases.extend(threads());
    cases.extend(small());
    cases
}

const SQUARE: &str = "layout(local_size_x = 64) in;
layout(binding = 0) buffer To { uint to[]; };
void main() { uint i = gl_GlobalInvocationID.x; to[i] = to[i] * to[i] + 1; }";

fn square(gpu: &Gpu, from: u32) -> Result<Vec<u8>> {
    let to = gpu.buffer_of(&(from..from + 64).collect::<Vec<_>>())?;
    gpu.compute(0, &[&to], 1)?;
    expect(&to.values::<u32>(), &(from..from + 64).map(|i| i * i + 1).collect::<Vec<_>>())
}

fn several() -> Vec<Case> {
    vec![
        Case::new("devices.three_at_once", |gpu| {
            let others = (0..2).map(|_| Gpu::open(ROBUSTNESS)).collect::<Result<Vec<_>>>()?;
            for round in 0..3 {
                for other in &others {
                    other.begin_case(vec![gpu.spirv(0)]);
                    square(other, round * 10)?;
                    other.end_case();
                }
                square(gpu, round * 20)?;
            }
            Ok(Vec::new())
        })
        .glsl(SQUARE),
        Case::new("devices.one_after_another", |gpu| {
            for round in 0..8 {
                let other = Gpu::open(ROBUSTNESS)?;
                other.begin_case(vec![gpu.spirv(0)]);
                square(&other, round)?;
            }
            Ok(Vec::new())
        })
        .glsl(SQUARE),
        Case::new("devices.two_of_one_instance", |gpu| {
            let queue = [vk::DeviceQueueCreateInfo::default()
                .queue_family_index(gpu.family())
                .queue_priorities(&[0.5])];
            let info = vk::DeviceCreateInfo::default().queue_create_infos(&queue);
            let device = unsafe { gpu.instance.create_device(gpu.physical, &info, None) }?;
            let found = square(gpu, 3);
            let pool = vk::CommandPoolCreateInfo::default().queue_family_index(gpu.family());
            let pool = unsafe { device.create_command_pool(&pool, None) }?;
            let ready = unsafe { device.create_fence(&vk::FenceCreateInfo::default(), None) }?;
            let queue = unsafe { device.get_device_queue(gpu.family(), 0) };
            unsafe { device.queue_submit(queue, &[], ready) }?;
            unsafe { device.wait_for_fences(&[ready], true, PATIENCE) }?;
            unsafe { device.destroy_fence(ready, None) };
            unsafe { device.destroy_command_pool(pool, None) };
            unsafe { device.destroy_device(None) };
            found
        })
        .glsl(SQUARE),
        Case::new("devices.twenty_instances", |_| {
            let entry = entry()?;
            let all = (0..20).map(|_| instance(&entry)).collect::<Result<Vec<_>>>()?;
            for instance in &all {
                ensure!(
                    !unsafe { instance.enumerate_physical_devices() }?.is_empty(),
                    "an instance without devices"
                );
            }
            for instance in all {
                unsafe { instance.destroy_instance(None) };
            }
            Ok(Vec::new())
        }),
        Case::new("devices.unknown_extension", |gpu| {
            let queue = [vk::DeviceQueueCreateInfo::default()
                .queue_family_index(gpu.family())
                .queue_priorities(&[1.0])];
            let names = [c"VK_KHR_there_is_no_such_extension".as_ptr()];
            let info =
                vk::DeviceCreateInfo::default().queue_create_infos(&queue).enabled_extension_names(&names);
            let made = unsafe { gpu.instance.create_device(gpu.physical, &info, None) };
            let refused = made.map(|device| unsafe { device.destroy_device(None) });
            ensure!(refused == Err(vk::Result::ERROR_EXTENSION_NOT_PRESENT), "{refused:?}");
            Ok(Vec::new())
        }),
        Case::new("devices.missing_feature", |gpu| {
            let has = unsafe { gpu.instance.get_physical_device_features(gpu.physical) };
            let mut features = vk::PhysicalDeviceFeatures::default();
            if has.texture_compression_astc_ldr == 0 {
                features.texture_compression_astc_ldr = 1;
            } else if has.texture_compression_etc2 == 0 {
                features.texture_compression_etc2 = 1;
            } else {
                return crate::gpu::skip("a missing feature");
            }
            let queue = [vk::DeviceQueueCreateInfo::default()
                .queue_family_index(gpu.family())
                .queue_priorities(&[1.0])];
            let info = vk::DeviceCreateInfo::default().queue_create_infos(&queue).enabled_features(&features);
            let made = unsafe { gpu.instance.create_device(gpu.physical, &info, None) };
            let refused = made.map(|device| unsafe { device.destroy_device(None) });
            ensure!(refused == Err(vk::Result::ERROR_FEATURE_NOT_PRESENT), "{refused:?}");
            Ok(Vec::new())
        }),
    ]
}

fn groups() -> Vec<Case> {
    vec![
        Case::new("devices.group.of_one", |gpu| {
            let count = unsafe { gpu.instance.enumerate_physical_device_groups_len() }?;
            let mut groups = vec![vk::PhysicalDeviceGroupProperties::default(); count];
            unsafe { gpu.instance.enumerate_physical_device_groups(&mut groups) }?;
            let counts: Vec<u32> = groups.iter().map(|group| group.physical_device_count).collect();
            ensure!(groups[0].physical_devices[0] == gpu.physical, "another device");
            let physical = [gpu.physical];
            let mut group = vk::DeviceGroupDeviceCreateInfo::default().physical_devices(&physical);
            let queue = [vk::DeviceQueueCreateInfo::default()
                .queue_family_index(gpu.family())
                .queue_priorities(&[1.0])];
            let info = vk::DeviceCreateInfo::default().queue_create_infos(&queue).push_next(&mut group);
            let device = unsafe { gpu.instance.create_device(gpu.physical, &info, None) }?;
            unsafe { device.device_wait_idle() }?;
            unsafe { device.destroy_device(None) };
            expect(&counts, &vec![1; counts.len()])
        }),
        Case::new("devices.group.memory_and_binding", |gpu| {
            let info = vk::BufferCreateInfo::default().size(256).usage(gpu.every_use());
            let buffer = unsafe { gpu.device.create_buffer(&info, None) }?;
            gpu.later(move |device| unsafe { device.destroy_buffer(buffer, None) });
            let requirements = unsafe { gpu.device.get_buffer_memory_requirements(buffer) };
            let mut flags = vk::MemoryAllocateFlagsInfo::default()
                .flags(vk::MemoryAllocateFlags::DEVICE_MASK | vk::MemoryAllocateFlags::DEVICE_ADDRESS)
                .device_mask(1);
            let info = vk::MemoryAllocateInfo::default()
                .allocation_size(requirements.size)
                .memory_type_index(requirements.memory_type_bits.trailing_zeros())
                .push_next(&mut flags);
            let memory = unsafe { gpu.device.allocate_memory(&info, None) }?;
            gpu.later(move |device| unsafe { device.free_memory(memory, None) });
            let indices = [0];
            let mut group = vk::BindBufferMemoryDeviceGroupInfo::default().device_indices(&indices);
            let bind =
                [vk::BindBufferMemoryInfo::default().buffer(buffer).memory(memory).push_next(&mut group)];
            unsafe { gpu.device.bind_buffer_memory2(&bind) }?;
            let to = gpu.buffer(4)?;
            let region = [vk::BufferCopy { src_offset: 252, dst_offset: 0, size: 4 }];
            gpu.run(|commands| {
                unsafe { gpu.device.cmd_fill_buffer(commands, buffer, 0, 256, 12) };
                gpu.barrier(commands);
                unsafe { gpu.device.cmd_copy_buffer(commands, buffer, to.handle, &region) };
            })?;
            expect(&to.values::<u32>(), &[12])
        }),
    ]
}

/// Creates the objects that a thread needs to compute by itself, and computes; queues are shared under a lock.
fn compute(
    device: &ash::Device,
    family: u32,
    queue: &Mutex<vk::Queue>,
    kernel: crate::kernel::Kernel,
    set: vk::DescriptorSet,
) -> ash::prelude::VkResult<()> {
    let pool = vk::CommandPoolCreateInfo::default().queue_family_index(family);
    let pool = unsafe { device.create_command_pool(&pool, None) }?;
    let info = vk::CommandBufferAllocateInfo::default().command_pool(pool).command_buffer_count(1);
    let commands = unsafe { device.allocate_command_buffers(&info) }?;
    let fence = unsafe { device.create_fence(&vk::FenceCreateInfo::default(), None) }?;
    let point = vk::PipelineBindPoint::COMPUTE;
    unsafe {
        device.begin_command_buffer(commands[0], &vk::CommandBufferBeginInfo::default())?;
        device.cmd_bind_pipeline(commands[0], point, kernel.pipeline);
        device.cmd_bind_descriptor_sets(commands[0], point, kernel.layout, 0, &[set], &[]);
        device.cmd_dispatch(commands[0], 1, 1, 1);
        let barrier = [vk::MemoryBarrier::default()
            .src_access_mask(vk::AccessFlags::SHADER_WRITE)
            .dst_access_mask(vk::AccessFlags::HOST_READ)];
        let (from, to) = (vk::PipelineStageFlags::COMPUTE_SHADER, vk::PipelineStageFlags::HOST);
        device.cmd_pipeline_barrier(commands[0], from, to, vk::DependencyFlags::empty(), &barrier, &[], &[]);
        device.end_command_buffer(commands[0])?;
    }
    let info = [vk::SubmitInfo::default().command_buffers(&commands)];
    {
        let queue = queue.lock().expect("no thread panics while it submits");
        unsafe { device.queue_submit(*queue, &info, fence) }?;
    }
    unsafe {
        device.wait_for_fences(&[fence], true, PATIENCE)?;
        device.destroy_fence(fence, None);
        device.destroy_command_pool(pool, None);
    }
    Ok(())
}

fn threads() -> Vec<Case> {
    vec![
        Case::new("devices.threads.record_and_submit", |gpu| {
            let kernel = gpu.kernel(0).buffers(1).build()?;
            let buffers = (0..8u32).map(|i| gpu.buffer_of(&[i; 64])).collect::<Result<Vec<_>>>()?;
            let sets = (buffers.iter())
                .map(|buffer| gpu.set(&kernel, &[STORAGE], &[Slot::Buffer(buffer.handle)]))
                .collect::<Result<Vec<_>>>()?;
            let queue = Mutex::new(gpu.queue());
            thread::scope(|scope| {
                let start = |set: &vk::DescriptorSet| {
                    let (device, set, queue, family) = (gpu.device.clone(), *set, &queue, gpu.family());
                    scope
                        .spawn(move || (0..10).try_for_each(|_| compute(&device, family, queue, kernel, set)))
                };
                let running: Vec<_> = sets.iter().map(start).collect();
                running.into_iter().try_for_each(|thread| thread.join().expect("computing does not panic"))
            })?;
            let result = |i: u32| (0..10).fold(i, |value, _| value.wrapping_mul(value).wrapping_add(1));
            for (i, buffer) in (0..).zip(&buffers) {
                expect(&buffer.values::<u32>(), &[result(i); 64])?;
            }
            Ok(Vec::new())
        })
        .glsl(SQUARE),
        Case::new("devices.threads.compile", |gpu| {
            let layout = gpu.set_layout(&[(STORAGE, 1)], vk::DescriptorSetLayoutCreateFlags::empty())?;
            let pipeline_layout = gpu.pipeline_layout(&[layout], 0)?;
            let module = gpu.module(0)?;
            let compile = |device: &ash::Device, value: u32| {
                let entry = [vk::SpecializationMapEntry { constant_id: 0, offset: 0, size: 4 }];
                let data = value.to_ne_bytes();
                let constants = vk::SpecializationInfo::default().map_entries(&entry).data(&data);
                let stage = vk::PipelineShaderStageCreateInfo::default()
                    .stage(vk::ShaderStageFlags::COMPUTE)
                    .module(module)
                    .name(c"main")
                    .specialization_info(&constants);
                let info = [vk::ComputePipelineCreateInfo::default().stage(stage).layout(pipeline_layout)];
                let made = unsafe { device.create_compute_pipelines(vk::PipelineCache::null(), &info, None) };
                made.map(|pipelines| pipelines[0]).map_err(|(_, error)| error)
            };
            let pipelines: Vec<_> = thread::scope(|scope| {
                let start = |thread: u32| {
                    let device = gpu.device.clone();
                    scope.spawn(move || (0..6).map(|i| compile(&device, 10 * thread + i)).collect::<Vec<_>>())
                };
                let running: Vec<_> = (0..6).map(start).collect();
                running
                    .into_iter()
                    .flat_map(|thread| thread.join().expect("compiling does not panic"))
                    .collect()
            });
            let mut found = Vec::new();
            for pipeline in pipelines {
                let pipeline = pipeline?;
                gpu.later(move |device| unsafe { device.destroy_pipeline(pipeline, None) });
                let kernel = crate::kernel::Kernel { pipeline, layout: pipeline_layout, set_layout: layout };
                let to = gpu.buffer(4)?;
                let set = gpu.set(&kernel, &[STORAGE], &[Slot::Buffer(to.handle)])?;
                gpu.run(|commands| {
                    gpu.bind(commands, &kernel, set);
                    unsafe { gpu.device.cmd_dispatch(commands, 1, 1, 1) };
                })?;
                found.extend(to.values::<u32>());
            }
            let expected: Vec<u32> = (0..36).map(|i| 10 * (i / 6) + i % 6 + 500).collect();
            expect(&found, &expected)
        })
        .glsl(
            "layout(constant_id = 0) const uint VALUE = 0;
layout(binding = 0) writeonly buffer To { uint to; };
void main() { to = VALUE + 500; }",
        ),
        Case::new("devices.threads.create_and_destroy", |gpu| {
            thread::scope(|scope| {
                let work = |device: ash::Device| -> ash::prelude::VkResult<()> {
                    for size in 1..100 {
                        let info = vk::BufferCreateInfo::default()
                            .size(size * 16)
                            .usage(vk::BufferUsageFlags::STORAGE_BUFFER);
                        let buffer = unsafe { device.create_buffer(&info, None) }?;
                        let requirements = unsafe { device.get_buffer_memory_requirements(buffer) };
                        let info = vk::MemoryAllocateInfo::default()
                            .allocation_size(requirements.size)
                            .memory_type_index(requirements.memory_type_bits.trailing_zeros());
                        let memory = unsafe { device.allocate_memory(&info, None) }?;
                        unsafe { device.bind_buffer_memory(buffer, memory, 0) }?;
                        unsafe { device.destroy_buffer(buffer, None) };
                        unsafe { device.free_memory(memory, None) };
                    }
                    Ok(())
                };
                let running: Vec<_> = (0..6)
                    .map(|_| {
                        let device = gpu.device.clone();
                        scope.spawn(move || work(device))
                    })
                    .collect();
                running.into_iter().try_for_each(|thread| thread.join().expect("creating does not panic"))
            })?;
            Ok(Vec::new())
        }),
    ]
}

fn small() -> Vec<Case> {
    vec![
        Case::new("devices.private_data", |gpu| {
            gpu.require(&["privateData"])?;
            let slot = unsafe {
                gpu.device.create_private_data_slot(&vk::PrivateDataSlotCreateInfo::default(), None)
            }?;
            gpu.later(move |device| unsafe { device.destroy_private_data_slot(slot, None) });
            let fences = [gpu.fence(false)?, gpu.fence(false)?];
            unsafe { gpu.device.set_private_data(fences[0], slot, 0x1234_5678_9abc) }?;
            let found = fences.map(|fence| unsafe { gpu.device.get_private_data(fence, slot) });
            expect(&found, &[0x1234_5678_9abc, 0])
        }),
        Case::new("devices.queue_2", |gpu| {
            let info = vk::DeviceQueueInfo2::default().queue_family_index(gpu.family());
            let queue = unsafe { gpu.device.get_device_queue2(&info) };
            ensure!(queue != vk::Queue::null(), "no queue");
            unsafe { gpu.device.queue_wait_idle(queue) }?;
            Ok(Vec::new())
        }),
        Case::new("devices.global_priority", |gpu| {
            gpu.require(&["globalPriorityQuery"])?;
            let count =
                unsafe { gpu.instance.get_physical_device_queue_family_properties2_len(gpu.physical) };
            let mut priorities = vec![vk::QueueFamilyGlobalPriorityPropertiesKHR::default(); count];
            let mut families: Vec<_> = priorities
                .iter_mut()
                .map(|priority| vk::QueueFamilyProperties2::default().push_next(priority))
                .collect();
            unsafe { gpu.instance.get_physical_device_queue_family_properties2(gpu.physical, &mut families) };
            drop(families);
            let words = |family: &vk::QueueFamilyGlobalPriorityPropertiesKHR| {
                family.priorities[..family.priority_count as usize]
                    .iter()
                    .map(|priority| priority.as_raw() as u32)
                    .collect::<Vec<_>>()
            };
            Ok(bytes_of(&words(&priorities[0])))
        }),
        Case::new("devices.wait_idle_many_times", |gpu| {
            for _ in 0..200 {
                unsafe { gpu.device.device_wait_idle() }?;
            }
            Ok(Vec::new())
        }),
    ]
}
