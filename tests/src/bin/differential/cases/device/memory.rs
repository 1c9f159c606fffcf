//! Device memory: mappings, every type, dedicated and shared allocations, many small ones and a large one.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ash::vk;

use crate::bytes::{bytes_of, expect};
use crate::case::Case;
use crate::elementwise::noise32;
use crate::gpu::{Buffer, Gpu, skip};
use crate::images::{Picture, Shape};

/// The time after which a wait counts as a hang.
const LIMIT: Duration = Duration::from_secs(600);

/// All cases of this module.
pub(crate) fn cases() -> Vec<Case> {
    let mut cases = mappings();
    cases.extend(allocations());
    cases.extend(bindings());
    cases
}

const VISIBLE: vk::MemoryPropertyFlags = vk::MemoryPropertyFlags::HOST_VISIBLE;

fn map(gpu: &Gpu, memory: vk::DeviceMemory, offset: u64, size: u64) -> Result<*mut u32> {
    Ok(unsafe { gpu.device.map_memory(memory, offset, size, vk::MemoryMapFlags::empty()) }?.cast())
}

/// A buffer that is not mapped, and its memory host-visible.
fn unmapped(gpu: &Gpu, size: u64) -> Result<Buffer> {
    gpu.buffer_in(size, gpu.every_use(), VISIBLE | vk::MemoryPropertyFlags::HOST_COHERENT)
}

fn mappings() -> Vec<Case> {
    vec![
        Case::new("memory.map.again_and_again", |gpu| {
            let buffer = unmapped(gpu, 4096)?;
            gpu.run(|commands| unsafe { gpu.device.cmd_fill_buffer(commands, buffer.handle, 0, 4096, 0) })?;
            for round in 0..50u32 {
                let at = map(gpu, buffer.memory, 0, vk::WHOLE_SIZE)?;
                ensure!(unsafe { at.read_volatile() } == round, "round {round}");
                unsafe { at.write_volatile(round + 1) };
                unsafe { gpu.device.unmap_memory(buffer.memory) };
            }
            Ok(Vec::new())
        }),
        Case::new("memory.map.device_writes_while_unmapped", |gpu| {
            let buffer = unmapped(gpu, 4096)?;
            let mut found = Vec::new();
            for round in 1..=5 {
                gpu.run(|commands| unsafe {
                    gpu.device.cmd_fill_buffer(commands, buffer.handle, 0, 4096, round)
                })?;
                let at = map(gpu, buffer.memory, 0, vk::WHOLE_SIZE)?;
                found.push(unsafe { at.add(1023).read_volatile() });
                unsafe { gpu.device.unmap_memory(buffer.memory) };
            }
            expect(&found, &[1, 2, 3, 4, 5])
        }),
        Case::new("memory.map.part", |gpu| {
            let buffer = unmapped(gpu, 1 << 20)?;
            let at = map(gpu, buffer.memory, 0x8_0000, 0x1000)?;
            unsafe { at.add(1).write_volatile(77) };
            unsafe { gpu.device.unmap_memory(buffer.memory) };
            let to = gpu.buffer(4)?;
            let region = [vk::BufferCopy { src_offset: 0x8_0004, dst_offset: 0, size: 4 }];
            gpu.run(|commands| unsafe {
                gpu.device.cmd_copy_buffer(commands, buffer.handle, to.handle, &region)
            })?;
            expect(&to.values::<u32>(), &[77])
        }),
        Case::new("memory.map.persistent_between_submissions", |gpu| {
            let (from, to) = (gpu.buffer(4096)?, gpu.buffer(4096)?);
            let whole = [vk::BufferCopy { src_offset: 0, dst_offset: 0, size: 4096 }];
            let commands = gpu.record(|commands| unsafe {
                gpu.device.cmd_copy_buffer(commands, from.handle, to.handle, &whole);
            })?;
            for round in 0..50 {
                from.write(&[round; 1024]);
                gpu.submit(&[commands])?;
                expect(&to.values::<u32>(), &[round; 1024])?;
            }
            Ok(to.read())
        }),
        Case::new("memory.map.seen_while_the_device_works", |gpu| {
            let flags = gpu.buffer(4)?;
            let big = gpu.buffer(1 << 20)?;
            let fence = gpu.fence(false)?;
            let commands = [gpu.record(|commands| {
                for _ in 0..20 {
                    unsafe { gpu.device.cmd_fill_buffer(commands, big.handle, 0, vk::WHOLE_SIZE, 3) };
                    gpu.barrier(commands);
                }
                unsafe { gpu.device.cmd_fill_buffer(commands, flags.handle, 0, 4, 1) };
                gpu.barrier(commands);
            })?];
            let info = [vk::SubmitInfo::default().command_buffers(&commands)];
            unsafe { gpu.device.queue_submit(gpu.queue(), &info, fence) }?;
            // The host sees the number without waiting for the fence.
            let started = std::time::Instant::now();
            while unsafe { flags.pointer::<u32>().read_volatile() } == 0 {
                ensure!(started.elapsed() < LIMIT, "nothing is seen");
                thread::yield_now();
            }
            gpu.wait(fence)?;
            expect(&big.values::<u32>()[..4], &[3; 4])
        }),
        Case::new("memory.map.flushed_and_invalidated", |gpu| {
            let size = 1 << 16;
            let incoherent = (0u32..).zip(gpu.memory.memory_types_as_slice()).find(|(_, ty)| {
                ty.property_flags.contains(VISIBLE)
                    && !ty.property_flags.contains(vk::MemoryPropertyFlags::HOST_COHERENT)
            });
            // Flushing coherent memory is allowed and does nothing.
            let buffer = match incoherent {
                Some((_, ty)) => gpu.buffer_in(size, gpu.every_use(), ty.property_flags)?,
                None => unmapped(gpu, size)?,
            };
            let at = map(gpu, buffer.memory, 0, vk::WHOLE_SIZE)?;
            let range = [vk::MappedMemoryRange::default().memory(buffer.memory).size(vk::WHOLE_SIZE)];
            let to = gpu.buffer(4)?;
            unsafe { at.add(100).write_volatile(5) };
            unsafe { gpu.device.flush_mapped_memory_ranges(&range) }?;
            let out = [vk::BufferCopy { src_offset: 400, dst_offset: 0, size: 4 }];
            gpu.run(|commands| unsafe {
                gpu.device.cmd_copy_buffer(commands, buffer.handle, to.handle, &out);
                gpu.device.cmd_fill_buffer(commands, buffer.handle, 0, 4, 6);
            })?;
            unsafe { gpu.device.invalidate_mapped_memory_ranges(&range) }?;
            expect(&[to.values::<u32>()[0], unsafe { at.read_volatile() }], &[5, 6])
        }),
        Case::new("memory.map.by_map_memory_2", |gpu| {
            gpu.require_extension(c"VK_KHR_map_memory2")?;
            let buffer = unmapped(gpu, 256)?;
            let map: vk::PFN_vkMapMemory2KHR = unsafe { gpu.command(c"vkMapMemory2KHR") }?;
            let unmap: vk::PFN_vkUnmapMemory2KHR = unsafe { gpu.command(c"vkUnmapMemory2KHR") }?;
            gpu.run(|commands| unsafe { gpu.device.cmd_fill_buffer(commands, buffer.handle, 0, 256, 8) })?;
            let info = vk::MemoryMapInfoKHR::default().memory(buffer.memory).size(vk::WHOLE_SIZE);
            let mut at = std::ptr::null_mut();
            unsafe { map(gpu.device.handle(), &info, &mut at) }.result()?;
            let found = unsafe { at.cast::<u32>().add(63).read_volatile() };
            let info = vk::MemoryUnmapInfoKHR::default().memory(buffer.memory);
            unsafe { unmap(gpu.device.handle(), &info) }.result()?;
            expect(&[found], &[8])
        }),
        Case::new("memory.map.hundred_at_once", |gpu| {
            let buffers = (0..100).map(|_| gpu.buffer(4096)).collect::<Result<Vec<_>>>()?;
            for (i, buffer) in (0u32..).zip(&buffers) {
                buffer.write(&[i; 1024]);
            }
            for (i, buffer) in (0u32..).zip(&buffers) {
                expect(&buffer.values::<u32>(), &[i; 1024])?;
            }
            Ok(Vec::new())
        }),
    ]
}

fn allocations() -> Vec<Case> {
    vec![
        Case::new("memory.every_type", |gpu| {
            let info = vk::BufferCreateInfo::default().size(65536).usage(gpu.every_use());
            let to = gpu.buffer(4)?;
            let mut used = 0u32;
            for (index, ty) in (0u32..).zip(gpu.memory.memory_types_as_slice()) {
                let refused = vk::MemoryPropertyFlags::PROTECTED | vk::MemoryPropertyFlags::LAZILY_ALLOCATED;
                let buffer = unsafe { gpu.device.create_buffer(&info, None) }?;
                gpu.later(move |device| unsafe { device.destroy_buffer(buffer, None) });
                let requirements = unsafe { gpu.device.get_buffer_memory_requirements(buffer) };
                if ty.property_flags.intersects(refused) || requirements.memory_type_bits & (1 << index) == 0
                {
                    continue;
                }
                let only = vk::MemoryRequirements { memory_type_bits: 1 << index, ..requirements };
                let memory = gpu.allocate(only, vk::MemoryPropertyFlags::empty(), true)?;
                unsafe { gpu.device.bind_buffer_memory(buffer, memory, 0) }?;
                let region = [vk::BufferCopy { src_offset: 65532, dst_offset: 0, size: 4 }];
                gpu.run(|commands| {
                    unsafe { gpu.device.cmd_fill_buffer(commands, buffer, 0, vk::WHOLE_SIZE, 40 + index) };
                    gpu.barrier(commands);
                    unsafe { gpu.device.cmd_copy_buffer(commands, buffer, to.handle, &region) };
                })?;
                expect(&to.values::<u32>(), &[40 + index])?;
                used += 1;
            }
            ensure!(used > 0, "no type holds buffers");
            Ok(Vec::new())
        }),
        Case::new("memory.two_thousand_small_ones", |gpu| {
            let requirements =
                vk::MemoryRequirements { size: 4096, alignment: 1, memory_type_bits: u32::MAX };
            let flags = VISIBLE | vk::MemoryPropertyFlags::HOST_COHERENT;
            for _ in 0..2000 {
                gpu.allocate(requirements, flags, false)?;
            }
            Ok(Vec::new())
        }),
        Case::new("memory.one_gibibyte", |gpu| {
            let size = 1 << 30;
            let heap =
                gpu.memory.memory_heaps_as_slice().iter().map(|heap| heap.size).max().unwrap_or_default();
            if heap < 4 * size {
                return skip("a heap of 4 GiB");
            }
            let (big, to) = (gpu.local_buffer(size)?, gpu.buffer(12)?);
            let at = [0, size / 2 + 4, size - 4];
            gpu.run(|commands| {
                for (value, at) in (1..).zip(at) {
                    unsafe { gpu.device.cmd_fill_buffer(commands, big.handle, at, 4, value) };
                }
                gpu.barrier(commands);
                let regions: Vec<_> = (0..)
                    .zip(at)
                    .map(|(i, at)| vk::BufferCopy { src_offset: at, dst_offset: 4 * i, size: 4 })
                    .collect();
                unsafe { gpu.device.cmd_copy_buffer(commands, big.handle, to.handle, &regions) };
            })?;
            expect(&to.values::<u32>(), &[1, 2, 3])
        }),
        Case::new("memory.one_gibibyte_mapped", |gpu| {
            let size: u64 = 1 << 30;
            let heap =
                gpu.memory.memory_heaps_as_slice().iter().map(|heap| heap.size).max().unwrap_or_default();
            if heap < 4 * size {
                return skip("a heap of 4 GiB");
            }
            let big = unmapped(gpu, size)?;
            let at = map(gpu, big.memory, 0, vk::WHOLE_SIZE)?;
            unsafe { at.add((size / 4 - 1) as usize).write_volatile(99) };
            let to = gpu.buffer(4)?;
            let region = [vk::BufferCopy { src_offset: size - 4, dst_offset: 0, size: 4 }];
            gpu.run(|commands| unsafe {
                gpu.device.cmd_copy_buffer(commands, big.handle, to.handle, &region)
            })?;
            expect(&to.values::<u32>(), &[99])
        }),
        Case::new("memory.more_than_there_is", |gpu| {
            let heaps = gpu.memory.memory_heaps_as_slice();
            let ty = gpu.memory_type(u32::MAX, VISIBLE).context("no host-visible type")?;
            let heap = heaps[gpu.memory.memory_types[ty as usize].heap_index as usize].size;
            let info = vk::MemoryAllocateInfo::default()
                .allocation_size(heap.saturating_mul(2))
                .memory_type_index(ty);
            let refused = [vk::Result::ERROR_OUT_OF_DEVICE_MEMORY, vk::Result::ERROR_OUT_OF_HOST_MEMORY];
            match unsafe { gpu.device.allocate_memory(&info, None) } {
                Err(error) => ensure!(refused.contains(&error), "{error}"),
                // A driver may promise more memory than the machine has.
                Ok(memory) => unsafe { gpu.device.free_memory(memory, None) },
            }
            let small = gpu.buffer_of(&[4u32])?;
            expect(&small.values::<u32>(), &[4])
        }),
        Case::new("memory.freed_and_allocated", |gpu| {
            let flags = VISIBLE | vk::MemoryPropertyFlags::HOST_COHERENT;
            let ty = gpu.memory_type(u32::MAX, flags).context("no host-visible type")?;
            for round in 0..200u64 {
                let info = vk::MemoryAllocateInfo::default()
                    .allocation_size(4096 * (1 + round % 17))
                    .memory_type_index(ty);
                let memory = unsafe { gpu.device.allocate_memory(&info, None) }?;
                let at = map(gpu, memory, 0, vk::WHOLE_SIZE)?;
                unsafe { at.write_volatile(round as u32) };
                ensure!(unsafe { at.read_volatile() } == round as u32, "round {round}");
                // Freeing unmaps.
                unsafe { gpu.device.free_memory(memory, None) };
            }
            Ok(Vec::new())
        }),
        Case::new("memory.dedicated_buffer", |gpu| {
            let info = vk::BufferCreateInfo::default().size(10_000).usage(gpu.every_use());
            let buffer = unsafe { gpu.device.create_buffer(&info, None) }?;
            gpu.later(move |device| unsafe { device.destroy_buffer(buffer, None) });
            let requirements = unsafe { gpu.device.get_buffer_memory_requirements(buffer) };
            let flags = VISIBLE | vk::MemoryPropertyFlags::HOST_COHERENT;
            let ty = gpu.memory_type(requirements.memory_type_bits, flags).context("no host-visible type")?;
            let mut dedicated = vk::MemoryDedicatedAllocateInfo::default().buffer(buffer);
            let mut address =
                vk::MemoryAllocateFlagsInfo::default().flags(vk::MemoryAllocateFlags::DEVICE_ADDRESS);
            let info = vk::MemoryAllocateInfo::default()
                .allocation_size(requirements.size)
                .memory_type_index(ty)
                .push_next(&mut dedicated)
                .push_next(&mut address);
            let memory = unsafe { gpu.device.allocate_memory(&info, None) }?;
            gpu.later(move |device| unsafe { device.free_memory(memory, None) });
            unsafe { gpu.device.bind_buffer_memory(buffer, memory, 0) }?;
            gpu.run(|commands| unsafe {
                gpu.device.cmd_fill_buffer(commands, buffer, 0, vk::WHOLE_SIZE, 21)
            })?;
            let at = map(gpu, memory, 0, vk::WHOLE_SIZE)?;
            expect(&[unsafe { at.add(2499).read_volatile() }], &[21])
        }),
        Case::new("memory.dedicated_image", |gpu| {
            let words = noise32(120, 64 * 64);
            let shape = Shape::flat(vk::Format::R32_UINT, 64, 64, vk::ImageUsageFlags::STORAGE);
            let image = unsafe { gpu.device.create_image(&shape.info(), None) }?;
            gpu.later(move |device| unsafe { device.destroy_image(image, None) });
            let mut wish = vk::MemoryDedicatedRequirements::default();
            let mut requirements = vk::MemoryRequirements2::default().push_next(&mut wish);
            let info = vk::ImageMemoryRequirementsInfo2::default().image(image);
            unsafe { gpu.device.get_image_memory_requirements2(&info, &mut requirements) };
            let requirements = requirements.memory_requirements;
            let mut dedicated = vk::MemoryDedicatedAllocateInfo::default().image(image);
            let info = vk::MemoryAllocateInfo::default()
                .allocation_size(requirements.size)
                .memory_type_index(requirements.memory_type_bits.trailing_zeros())
                .push_next(&mut dedicated);
            let memory = unsafe { gpu.device.allocate_memory(&info, None) }?;
            gpu.later(move |device| unsafe { device.free_memory(memory, None) });
            let bind = [vk::BindImageMemoryInfo::default().image(image).memory(memory)];
            unsafe { gpu.device.bind_image_memory2(&bind) }?;
            let picture = Picture::of(image, memory, &shape);
            let (from, to) = (gpu.buffer_of(&words)?, gpu.buffer(64 * 64 * 4)?);
            gpu.run(|commands| {
                picture.transition(gpu, commands, vk::ImageLayout::UNDEFINED, vk::ImageLayout::GENERAL);
                picture.fill_from(gpu, commands, &from);
                gpu.barrier(commands);
                picture.read_into(gpu, commands, &to);
            })?;
            expect(&to.values::<u32>(), &words)
        }),
    ]
}

fn bindings() -> Vec<Case> {
    fn create(gpu: &Gpu, size: u64) -> Result<(vk::Buffer, vk::MemoryRequirements)> {
        let info = vk::BufferCreateInfo::default().size(size).usage(gpu.every_use());
        let buffer = unsafe { gpu.device.create_buffer(&info, None) }?;
        gpu.later(move |device| unsafe { device.destroy_buffer(buffer, None) });
        Ok((buffer, unsafe { gpu.device.get_buffer_memory_requirements(buffer) }))
    }
    vec![
        Case::new("memory.shared_by_many_buffers", |gpu| {
            let buffers = (0..50).map(|_| create(gpu, 1000)).collect::<Result<Vec<_>>>()?;
            let one = buffers[0].1;
            let step = one.size.next_multiple_of(one.alignment);
            let flags = VISIBLE | vk::MemoryPropertyFlags::HOST_COHERENT;
            let memory = gpu.allocate(vk::MemoryRequirements { size: 50 * step, ..one }, flags, true)?;
            let binds: Vec<_> = (0..)
                .zip(&buffers)
                .map(|(i, (buffer, _))| {
                    vk::BindBufferMemoryInfo::default().buffer(*buffer).memory(memory).memory_offset(i * step)
                })
                .collect();
            unsafe { gpu.device.bind_buffer_memory2(&binds) }?;
            gpu.run(|commands| {
                for (value, (buffer, _)) in (1..).zip(&buffers) {
                    unsafe { gpu.device.cmd_fill_buffer(commands, *buffer, 0, 1000, value) };
                }
            })?;
            let at = map(gpu, memory, 0, vk::WHOLE_SIZE)?.cast::<u8>();
            let word = |i: u64| unsafe { at.add((i * step + 996) as usize).cast::<u32>().read_volatile() };
            expect(&(0..50).map(word).collect::<Vec<_>>(), &(1..=50).collect::<Vec<_>>())
        }),
        Case::new("memory.aliased_by_two_buffers", |gpu| {
            let ((first, requirements), (second, _)) = (create(gpu, 4096)?, create(gpu, 4096)?);
            let flags = VISIBLE | vk::MemoryPropertyFlags::HOST_COHERENT;
            let memory = gpu.allocate(requirements, flags, true)?;
            unsafe { gpu.device.bind_buffer_memory(first, memory, 0) }?;
            unsafe { gpu.device.bind_buffer_memory(second, memory, 0) }?;
            let to = gpu.buffer(4)?;
            let region = [vk::BufferCopy { src_offset: 2000, dst_offset: 0, size: 4 }];
            gpu.run(|commands| {
                unsafe { gpu.device.cmd_fill_buffer(commands, first, 0, 4096, 64) };
                gpu.barrier(commands);
                unsafe { gpu.device.cmd_copy_buffer(commands, second, to.handle, &region) };
            })?;
            expect(&to.values::<u32>(), &[64])
        }),
        Case::new("memory.freed_under_a_buffer", |gpu| {
            // The buffer is not used any more; only its destruction follows.
            let (buffer, requirements) = create(gpu, 4096)?;
            let ty = requirements.memory_type_bits.trailing_zeros();
            let mut address =
                vk::MemoryAllocateFlagsInfo::default().flags(vk::MemoryAllocateFlags::DEVICE_ADDRESS);
            let info = vk::MemoryAllocateInfo::default()
                .allocation_size(requirements.size)
                .memory_type_index(ty)
                .push_next(&mut address);
            let memory = unsafe { gpu.device.allocate_memory(&info, None) }?;
            unsafe { gpu.device.bind_buffer_memory(buffer, memory, 0) }?;
            gpu.run(|commands| unsafe { gpu.device.cmd_fill_buffer(commands, buffer, 0, 4096, 1) })?;
            unsafe { gpu.device.free_memory(memory, None) };
            Ok(Vec::new())
        }),
        Case::new("memory.requirements_of_buffers", |gpu| {
            let mut found = Vec::new();
            for size in [1, 100, 4096, 65537, 1 << 30] {
                for usage in [
                    vk::BufferUsageFlags::UNIFORM_BUFFER,
                    vk::BufferUsageFlags::STORAGE_BUFFER,
                    gpu.every_use(),
                ] {
                    let info = vk::BufferCreateInfo::default().size(size).usage(usage);
                    let buffer = unsafe { gpu.device.create_buffer(&info, None) }?;
                    let made = unsafe { gpu.device.get_buffer_memory_requirements(buffer) };
                    unsafe { gpu.device.destroy_buffer(buffer, None) };
                    let info = vk::DeviceBufferMemoryRequirements::default().create_info(&info);
                    let mut asked = vk::MemoryRequirements2::default();
                    unsafe { gpu.device.get_device_buffer_memory_requirements(&info, &mut asked) };
                    let asked = asked.memory_requirements;
                    ensure!(
                        made.size == asked.size && made.alignment == asked.alignment,
                        "{size}: made and asked differ"
                    );
                    // Mesa keeps requirements and answers sizes in whole alignments.
                    found.extend([made.size.next_multiple_of(made.alignment), made.alignment]);
                }
            }
            Ok(bytes_of(&found))
        }),
        Case::new("memory.requirements_of_images", |gpu| {
            let mut found = Vec::new();
            for format in [vk::Format::R8_UNORM, vk::Format::R8G8B8A8_UNORM, vk::Format::R32G32B32A32_SFLOAT]
            {
                for (width, height) in [(1, 1), (33, 17), (1024, 512)] {
                    let info = Shape::flat(format, width, height, vk::ImageUsageFlags::SAMPLED).info();
                    let image = unsafe { gpu.device.create_image(&info, None) }?;
                    let made = unsafe { gpu.device.get_image_memory_requirements(image) };
                    unsafe { gpu.device.destroy_image(image, None) };
                    let info = vk::DeviceImageMemoryRequirements::default().create_info(&info);
                    let mut asked = vk::MemoryRequirements2::default();
                    unsafe { gpu.device.get_device_image_memory_requirements(&info, &mut asked) };
                    let asked = asked.memory_requirements;
                    ensure!(
                        made.size == asked.size && made.alignment == asked.alignment,
                        "made and asked differ"
                    );
                    found.extend([made.size, made.alignment]);
                }
            }
            Ok(bytes_of(&found))
        }),
    ]
}
