//! Copies and clears of images as compute queues may do them, on the device and, if the device supports this, by the host.

use anyhow::Result;
use ash::vk;

use crate::bytes::{bytes_of, expect};
use crate::case::Case;
use crate::elementwise::{noise_floats, noise32};
use crate::gpu::{Buffer, Gpu};
use crate::images::{Picture, Shape};

const FORMAT: vk::Format = vk::Format::R32_UINT;
const GENERAL: vk::ImageLayout = vk::ImageLayout::GENERAL;
const NONE: vk::ImageUsageFlags = vk::ImageUsageFlags::SAMPLED;

/// All cases of this module.
pub(crate) fn cases() -> Vec<Case> {
    let mut cases = buffers();
    cases.extend(images());
    cases.extend(clears());
    cases.extend(by_the_host());
    cases
}

fn flat(gpu: &Gpu, words: &[u32], width: u32) -> Result<Picture> {
    let picture = Picture::new(gpu, Shape::flat(FORMAT, width, words.len() as u32 / width, NONE))?;
    picture.fill(gpu, &gpu.buffer_of(words)?)?;
    Ok(picture)
}

fn read(gpu: &Gpu, picture: &Picture, words: u64) -> Result<Buffer> {
    let to = gpu.buffer(4 * words)?;
    gpu.run(|commands| picture.read_into(gpu, commands, &to))?;
    Ok(to)
}

fn offset(x: i32, y: i32, z: i32) -> vk::Offset3D {
    vk::Offset3D { x, y, z }
}

fn extent(width: u32, height: u32, depth: u32) -> vk::Extent3D {
    vk::Extent3D { width, height, depth }
}

/// Copies a rectangle of words between two grids.
fn blit(
    from: &[u32],
    from_width: usize,
    from_at: (usize, usize),
    to: &mut [u32],
    to_width: usize,
    to_at: (usize, usize),
    size: (usize, usize),
) {
    for y in 0..size.1 {
        for x in 0..size.0 {
            to[(to_at.1 + y) * to_width + to_at.0 + x] = from[(from_at.1 + y) * from_width + from_at.0 + x];
        }
    }
}

fn buffers() -> Vec<Case> {
    vec![
        Case::new("images.copy.from_buffer_with_pitch", |gpu| {
            let words = noise32(130, 1024);
            let picture = flat(gpu, &[0; 256], 16)?;
            let from = gpu.buffer_of(&words)?;
            let region = [picture
                .region(0)
                .buffer_offset(64)
                .buffer_row_length(20)
                .image_offset(offset(2, 3, 0))
                .image_extent(extent(9, 7, 1))];
            gpu.run(|commands| unsafe {
                gpu.device.cmd_copy_buffer_to_image(commands, from.handle, picture.image, GENERAL, &region);
            })?;
            let mut expected = vec![0; 256];
            blit(&words[16..], 20, (0, 0), &mut expected, 16, (2, 3), (9, 7));
            expect(&read(gpu, &picture, 256)?.values::<u32>(), &expected)
        }),
        Case::new("images.copy.to_buffer_with_pitch", |gpu| {
            let words = noise32(131, 256);
            let (picture, to) = (flat(gpu, &words, 16)?, gpu.buffer(4096)?);
            let region = [picture
                .region(0)
                .buffer_offset(128)
                .buffer_row_length(30)
                .image_offset(offset(4, 5, 0))
                .image_extent(extent(11, 6, 1))];
            gpu.run(|commands| unsafe {
                gpu.device.cmd_copy_image_to_buffer(commands, picture.image, GENERAL, to.handle, &region);
            })?;
            let mut expected = vec![0; 1024];
            blit(&words, 16, (4, 5), &mut expected[32..], 30, (0, 0), (11, 6));
            expect(&to.values::<u32>(), &expected)
        }),
        Case::new("images.copy.hundred_regions", |gpu| {
            let words = noise32(132, 100);
            let (picture, from) = (flat(gpu, &[0; 256], 16)?, gpu.buffer_of(&words)?);
            let regions: Vec<_> = (0..100)
                .map(|i| {
                    picture
                        .region(0)
                        .buffer_offset(4 * i as u64)
                        .image_offset(offset(i % 16, i / 16, 0))
                        .image_extent(extent(1, 1, 1))
                })
                .collect();
            gpu.run(|commands| unsafe {
                gpu.device.cmd_copy_buffer_to_image(commands, from.handle, picture.image, GENERAL, &regions);
            })?;
            expect(&read(gpu, &picture, 256)?.values::<u32>()[..100], &words)
        }),
        Case::new("images.copy.levels_and_layers", |gpu| {
            let shape = Shape {
                view: vk::ImageViewType::TYPE_2D_ARRAY,
                layers: 3,
                levels: 4,
                ..Shape::flat(FORMAT, 8, 8, NONE)
            };
            let picture = Picture::new(gpu, shape)?;
            let words = noise32(133, 3 * (64 + 16 + 4 + 1));
            let (from, to) = (gpu.buffer_of(&words)?, gpu.buffer(4 * words.len() as u64)?);
            let offsets = [0, 3 * 64, 3 * 80, 3 * 84];
            let regions: Vec<_> = (0..4)
                .map(|level| picture.region(level).buffer_offset(4 * offsets[level as usize]))
                .collect();
            gpu.run(|commands| unsafe {
                gpu.device.cmd_copy_buffer_to_image(commands, from.handle, picture.image, GENERAL, &regions);
                gpu.barrier(commands);
                gpu.device.cmd_copy_image_to_buffer(commands, picture.image, GENERAL, to.handle, &regions);
            })?;
            expect(&to.values::<u32>(), &words)
        }),
        Case::new("images.copy.slices_of_3d", |gpu| {
            let shape = Shape {
                view: vk::ImageViewType::TYPE_3D,
                size: [4, 4, 8],
                ..Shape::flat(FORMAT, 4, 4, NONE)
            };
            let picture = Picture::new(gpu, shape)?;
            let words = noise32(134, 128);
            picture.fill(gpu, &gpu.buffer_of(&words)?)?;
            let to = gpu.buffer(4 * 32)?;
            let region = [picture.region(0).image_offset(offset(0, 0, 5)).image_extent(extent(4, 4, 2))];
            gpu.run(|commands| unsafe {
                gpu.device.cmd_copy_image_to_buffer(commands, picture.image, GENERAL, to.handle, &region);
            })?;
            expect(&to.values::<u32>(), &words[80..112])
        }),
        Case::new("images.copy.with_transfer_layouts", |gpu| {
            let words = noise32(135, 256);
            let picture = Picture::new(gpu, Shape::flat(FORMAT, 16, 16, NONE))?;
            let (from, to) = (gpu.buffer_of(&words)?, gpu.buffer(1024)?);
            let (target, source) =
                (vk::ImageLayout::TRANSFER_DST_OPTIMAL, vk::ImageLayout::TRANSFER_SRC_OPTIMAL);
            let regions = [picture.region(0)];
            gpu.run(|commands| unsafe {
                picture.transition(gpu, commands, GENERAL, target);
                gpu.device.cmd_copy_buffer_to_image(commands, from.handle, picture.image, target, &regions);
                picture.transition(gpu, commands, target, source);
                gpu.device.cmd_copy_image_to_buffer(commands, picture.image, source, to.handle, &regions);
            })?;
            expect(&to.values::<u32>(), &words)
        }),
        Case::new("images.copy.by_copy_commands_2", |gpu| {
            let words = noise32(136, 256);
            let picture = Picture::new(gpu, Shape::flat(FORMAT, 16, 16, NONE))?;
            let (from, to) = (gpu.buffer_of(&words)?, gpu.buffer(1024)?);
            let regions = [vk::BufferImageCopy2::default()
                .image_subresource(picture.level(0))
                .image_extent(extent(16, 16, 1))];
            let fill = vk::CopyBufferToImageInfo2::default()
                .src_buffer(from.handle)
                .dst_image(picture.image)
                .dst_image_layout(GENERAL)
                .regions(&regions);
            let read = vk::CopyImageToBufferInfo2::default()
                .src_image(picture.image)
                .src_image_layout(GENERAL)
                .dst_buffer(to.handle)
                .regions(&regions);
            gpu.run(|commands| unsafe {
                gpu.device.cmd_copy_buffer_to_image2(commands, &fill);
                gpu.barrier(commands);
                gpu.device.cmd_copy_image_to_buffer2(commands, &read);
            })?;
            expect(&to.values::<u32>(), &words)
        }),
    ]
}

fn images() -> Vec<Case> {
    fn region(picture: &Picture, from: (i32, i32), to: (i32, i32), size: (u32, u32)) -> vk::ImageCopy {
        vk::ImageCopy::default()
            .src_subresource(picture.level(0))
            .dst_subresource(picture.level(0))
            .src_offset(offset(from.0, from.1, 0))
            .dst_offset(offset(to.0, to.1, 0))
            .extent(extent(size.0, size.1, 1))
    }
    vec![
        Case::new("images.copy.between_images", |gpu| {
            let words = noise32(137, 256);
            let (from, to) = (flat(gpu, &words, 16)?, flat(gpu, &[0; 1024], 32)?);
            let regions = [region(&from, (0, 0), (16, 16), (16, 16)), region(&from, (5, 6), (1, 2), (10, 4))];
            gpu.run(|commands| unsafe {
                gpu.device.cmd_copy_image(commands, from.image, GENERAL, to.image, GENERAL, &regions);
            })?;
            let mut expected = vec![0; 1024];
            blit(&words, 16, (0, 0), &mut expected, 32, (16, 16), (16, 16));
            blit(&words, 16, (5, 6), &mut expected, 32, (1, 2), (10, 4));
            expect(&read(gpu, &to, 1024)?.values::<u32>(), &expected)
        }),
        Case::new("images.copy.between_formats", |gpu| {
            let words = noise32(138, 256);
            let from = flat(gpu, &words, 16)?;
            let to = Picture::new(gpu, Shape::flat(vk::Format::R8G8B8A8_UNORM, 16, 16, NONE))?;
            let regions = [region(&from, (0, 0), (0, 0), (16, 16))];
            gpu.run(|commands| unsafe {
                gpu.device.cmd_copy_image(commands, from.image, GENERAL, to.image, GENERAL, &regions);
            })?;
            expect(&read(gpu, &to, 256)?.values::<u32>(), &words)
        }),
        Case::new("images.copy.layers_into_slices", |gpu| {
            let array = Shape {
                view: vk::ImageViewType::TYPE_2D_ARRAY,
                layers: 4,
                ..Shape::flat(FORMAT, 8, 8, NONE)
            };
            let solid = Shape {
                view: vk::ImageViewType::TYPE_3D,
                size: [8, 8, 4],
                ..Shape::flat(FORMAT, 8, 8, NONE)
            };
            let (from, to) = (Picture::new(gpu, array)?, Picture::new(gpu, solid)?);
            let words = noise32(139, 256);
            from.fill(gpu, &gpu.buffer_of(&words)?)?;
            let regions = [vk::ImageCopy::default()
                .src_subresource(from.level(0))
                .dst_subresource(to.level(0))
                .extent(extent(8, 8, 4))];
            gpu.run(|commands| unsafe {
                gpu.device.cmd_copy_image(commands, from.image, GENERAL, to.image, GENERAL, &regions);
            })?;
            expect(&read(gpu, &to, 256)?.values::<u32>(), &words)
        }),
        Case::new("images.copy.between_images_2", |gpu| {
            let words = noise32(140, 256);
            let (from, to) = (flat(gpu, &words, 16)?, flat(gpu, &[0; 256], 16)?);
            let regions = [vk::ImageCopy2::default()
                .src_subresource(from.level(0))
                .dst_subresource(to.level(0))
                .extent(extent(16, 16, 1))];
            let info = vk::CopyImageInfo2::default()
                .src_image(from.image)
                .src_image_layout(GENERAL)
                .dst_image(to.image)
                .dst_image_layout(GENERAL)
                .regions(&regions);
            gpu.run(|commands| unsafe { gpu.device.cmd_copy_image2(commands, &info) })?;
            expect(&read(gpu, &to, 256)?.values::<u32>(), &words)
        }),
    ]
}

fn clears() -> Vec<Case> {
    let case = |name: &str, format: vk::Format, words: [u32; 4], expected: Vec<u8>| {
        Case::new(format!("images.clear.{name}"), move |gpu| {
            let picture = Picture::new(gpu, Shape::flat(format, 4, 4, NONE))?;
            let to = gpu.buffer(16 * expected.len() as u64)?;
            gpu.run(|commands| {
                picture.clear(gpu, commands, words);
                gpu.barrier(commands);
                picture.read_into(gpu, commands, &to);
            })?;
            expect(&to.read(), &expected.repeat(16))
        })
    };
    let floats = [0.5f32, -2.0, 1.0, 0.25].map(f32::to_bits);
    vec![
        case(
            "unorm",
            vk::Format::R8G8B8A8_UNORM,
            [0.0f32, 1.0, 2.0, 1.0].map(f32::to_bits),
            vec![0, 255, 255, 255],
        ),
        case("float", vk::Format::R32G32B32A32_SFLOAT, floats, bytes_of(&floats)),
        case("uint", vk::Format::R16G16_UINT, [7, 65535, 1, 1], vec![7, 0, 255, 255]),
        case(
            "sint",
            vk::Format::R8G8B8A8_SINT,
            [-1i32, -128, 127, 5].map(|value| value as u32),
            vec![255, 128, 127, 5],
        ),
        Case::new("images.clear.ranges", |gpu| {
            let shape = Shape {
                view: vk::ImageViewType::TYPE_2D_ARRAY,
                layers: 3,
                levels: 2,
                ..Shape::flat(FORMAT, 4, 4, NONE)
            };
            let picture = Picture::new(gpu, shape)?;
            let range =
                |base_mip_level, level_count, base_array_layer, layer_count| vk::ImageSubresourceRange {
                    aspect_mask: vk::ImageAspectFlags::COLOR,
                    base_mip_level,
                    level_count,
                    base_array_layer,
                    layer_count,
                };
            let color = |word| vk::ClearColorValue { uint32: [word; 4] };
            let to = gpu.buffer(4 * 3 * 20)?;
            gpu.run(|commands| unsafe {
                gpu.device.cmd_clear_color_image(
                    commands,
                    picture.image,
                    GENERAL,
                    &color(1),
                    &[picture.whole()],
                );
                gpu.barrier(commands);
                let ranges =
                    [range(0, 1, 1, 1), range(1, vk::REMAINING_MIP_LEVELS, 2, vk::REMAINING_ARRAY_LAYERS)];
                gpu.device.cmd_clear_color_image(commands, picture.image, GENERAL, &color(2), &ranges);
                gpu.barrier(commands);
                let regions = [picture.region(0), picture.region(1).buffer_offset(4 * 48)];
                gpu.device.cmd_copy_image_to_buffer(commands, picture.image, GENERAL, to.handle, &regions);
            })?;
            let expected = [[1u32; 16].to_vec(), vec![2; 16], vec![1; 16], vec![1; 8], vec![2; 4]].concat();
            expect(&to.values::<u32>(), &expected)
        }),
    ]
}

fn by_the_host() -> Vec<Case> {
    const USAGE: vk::ImageUsageFlags = vk::ImageUsageFlags::from_raw(
        vk::ImageUsageFlags::HOST_TRANSFER_EXT.as_raw() | vk::ImageUsageFlags::SAMPLED.as_raw(),
    );
    fn extension(gpu: &Gpu) -> Result<ash::ext::host_image_copy::Device> {
        gpu.require(&["hostImageCopy"])?;
        Ok(ash::ext::host_image_copy::Device::new(&gpu.instance, &gpu.device))
    }
    fn fill(
        gpu: &Gpu,
        picture: &Picture,
        bytes: &[u8],
        row: u32,
        at: vk::Offset3D,
        size: vk::Extent3D,
    ) -> Result<()> {
        let regions = [vk::MemoryToImageCopyEXT::default()
            .host_pointer(bytes.as_ptr().cast())
            .memory_row_length(row)
            .image_subresource(picture.level(0))
            .image_offset(at)
            .image_extent(size)];
        let info = vk::CopyMemoryToImageInfoEXT::default()
            .dst_image(picture.image)
            .dst_image_layout(GENERAL)
            .regions(&regions);
        Ok(unsafe { extension(gpu)?.copy_memory_to_image(&info) }?)
    }
    fn read_back(
        gpu: &Gpu,
        picture: &Picture,
        bytes: &mut [u8],
        row: u32,
        at: vk::Offset3D,
        size: vk::Extent3D,
    ) -> Result<()> {
        let regions = [vk::ImageToMemoryCopyEXT::default()
            .host_pointer(bytes.as_mut_ptr().cast())
            .memory_row_length(row)
            .image_subresource(picture.level(0))
            .image_offset(at)
            .image_extent(size)];
        let info = vk::CopyImageToMemoryInfoEXT::default()
            .src_image(picture.image)
            .src_image_layout(GENERAL)
            .regions(&regions);
        Ok(unsafe { extension(gpu)?.copy_image_to_memory(&info) }?)
    }
    vec![
        Case::new("images.host_copy.in_and_out", |gpu| {
            extension(gpu)?;
            let picture = Picture::new(gpu, Shape::flat(FORMAT, 16, 16, USAGE))?;
            let bytes = bytes_of(&noise32(150, 256));
            fill(gpu, &picture, &bytes, 0, offset(0, 0, 0), extent(16, 16, 1))?;
            let mut found = vec![0; 1024];
            read_back(gpu, &picture, &mut found, 0, offset(0, 0, 0), extent(16, 16, 1))?;
            expect(&found, &bytes)?;
            expect(&read(gpu, &picture, 256)?.read(), &bytes)
        }),
        Case::new("images.host_copy.parts_with_pitch", |gpu| {
            extension(gpu)?;
            let picture = Picture::new(gpu, Shape::flat(FORMAT, 16, 16, USAGE))?;
            let words = noise32(151, 256);
            fill(gpu, &picture, &bytes_of(&[9u32; 256]), 0, offset(0, 0, 0), extent(16, 16, 1))?;
            fill(gpu, &picture, &bytes_of(&words), 20, offset(3, 4, 0), extent(10, 8, 1))?;
            let mut expected = vec![9; 256];
            blit(&words, 20, (0, 0), &mut expected, 16, (3, 4), (10, 8));
            expect(&read(gpu, &picture, 256)?.values::<u32>(), &expected)?;
            let mut found = vec![0u8; 4 * 24 * 6];
            read_back(gpu, &picture, &mut found, 24, offset(2, 5, 0), extent(7, 6, 1))?;
            let mut part = vec![0u32; 24 * 6];
            blit(&expected, 16, (2, 5), &mut part, 24, (0, 0), (7, 6));
            expect(&found, &bytes_of(&part))
        }),
        Case::new("images.host_copy.large", |gpu| {
            extension(gpu)?;
            let picture = Picture::new(gpu, Shape::flat(vk::Format::R32G32B32A32_SFLOAT, 512, 512, USAGE))?;
            let texels: Vec<f32> =
                noise_floats(152, 4 * 512 * 512).into_iter().map(|value| value as f32).collect();
            let bytes = bytes_of(&texels);
            fill(gpu, &picture, &bytes, 0, offset(0, 0, 0), extent(512, 512, 1))?;
            let mut found = vec![0; bytes.len()];
            read_back(gpu, &picture, &mut found, 0, offset(0, 0, 0), extent(512, 512, 1))?;
            expect(&found, &bytes)
        }),
        Case::new("images.host_copy.between_images", |gpu| {
            let extension = extension(gpu)?;
            let (from, to) = (
                Picture::new(gpu, Shape::flat(FORMAT, 16, 16, USAGE))?,
                Picture::new(gpu, Shape::flat(FORMAT, 16, 16, USAGE))?,
            );
            let words = noise32(153, 256);
            fill(gpu, &from, &bytes_of(&words), 0, offset(0, 0, 0), extent(16, 16, 1))?;
            let regions = [vk::ImageCopy2::default()
                .src_subresource(from.level(0))
                .dst_subresource(to.level(0))
                .extent(extent(16, 16, 1))];
            let info = vk::CopyImageToImageInfoEXT::default()
                .src_image(from.image)
                .src_image_layout(GENERAL)
                .dst_image(to.image)
                .dst_image_layout(GENERAL)
                .regions(&regions);
            unsafe { extension.copy_image_to_image(&info) }?;
            expect(&read(gpu, &to, 256)?.values::<u32>(), &words)
        }),
        Case::new("images.host_copy.layout_transition", |gpu| {
            let extension = extension(gpu)?;
            let shape = Shape::flat(FORMAT, 16, 16, USAGE);
            let image = unsafe { gpu.device.create_image(&shape.info(), None) }?;
            gpu.later(move |device| unsafe { device.destroy_image(image, None) });
            let requirements = unsafe { gpu.device.get_image_memory_requirements(image) };
            let memory = gpu.allocate(requirements, vk::MemoryPropertyFlags::empty(), false)?;
            unsafe { gpu.device.bind_image_memory(image, memory, 0) }?;
            let picture = Picture::of(image, memory, &shape);
            let transition = [vk::HostImageLayoutTransitionInfoEXT::default()
                .image(image)
                .old_layout(vk::ImageLayout::UNDEFINED)
                .new_layout(GENERAL)
                .subresource_range(picture.whole())];
            unsafe { extension.transition_image_layout(&transition) }?;
            let words = noise32(154, 256);
            fill(gpu, &picture, &bytes_of(&words), 0, offset(0, 0, 0), extent(16, 16, 1))?;
            expect(&read(gpu, &picture, 256)?.values::<u32>(), &words)
        }),
        Case::new("images.host_copy.properties", |gpu| {
            extension(gpu)?;
            let (mut sources, mut targets) =
                ([vk::ImageLayout::UNDEFINED; 64], [vk::ImageLayout::UNDEFINED; 64]);
            let mut found = vk::PhysicalDeviceHostImageCopyPropertiesEXT::default()
                .copy_src_layouts(&mut sources)
                .copy_dst_layouts(&mut targets);
            gpu.properties2(&mut found);
            let counts = [
                found.copy_src_layout_count,
                found.copy_dst_layout_count,
                found.identical_memory_type_requirements,
            ];
            let mut words = counts.to_vec();
            let layouts = sources[..counts[0] as usize].iter().chain(&targets[..counts[1] as usize]);
            words.extend(layouts.map(|layout| layout.as_raw() as u32));
            Ok(bytes_of(&words))
        }),
    ]
}
