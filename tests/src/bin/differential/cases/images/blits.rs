//! Blits, which need a queue that draws: scaled copies, levels made of one another, and conversions of formats.

use anyhow::Result;
use ash::vk;

use crate::bytes::{bytes_of, expect, expect_near};
use crate::case::Case;
use crate::elementwise::noise32;
use crate::gpu::{Gpu, skip};
use crate::images::{Picture, Shape};

const WORDS: vk::Format = vk::Format::R32_UINT;
const COLORS: vk::Format = vk::Format::R8G8B8A8_UNORM;
const GENERAL: vk::ImageLayout = vk::ImageLayout::GENERAL;
const NONE: vk::ImageUsageFlags = vk::ImageUsageFlags::SAMPLED;
/// The number of texels in each direction of the largest level of pictures with levels.
const LARGEST: u32 = 64;
/// The number of levels, down to a level of one texel.
const LEVELS: u32 = LARGEST.ilog2() + 1;

/// All cases of this module.
pub(crate) fn cases() -> Vec<Case> {
    let mut cases = scaled();
    cases.extend(levels());
    cases.extend(conversions());
    cases
}

/// Skips the case unless the device blits images of this format in this way on the queue of the cases.
fn require(gpu: &Gpu, format: vk::Format, filter: vk::Filter) -> Result<()> {
    if !gpu.queues[0].flags.contains(vk::QueueFlags::GRAPHICS) {
        return skip("a queue that draws");
    }
    let both = vk::FormatFeatureFlags::BLIT_SRC | vk::FormatFeatureFlags::BLIT_DST;
    let linear = vk::FormatFeatureFlags::SAMPLED_IMAGE_FILTER_LINEAR;
    let features = if filter == vk::Filter::LINEAR { both | linear } else { both };
    gpu.require_format(format, features)
}

/// A box of an image: two of its corners.
type Corners = [[i32; 3]; 2];

fn region(
    (from, from_level, source): (&Picture, u32, Corners),
    (to, to_level, target): (&Picture, u32, Corners),
) -> vk::ImageBlit {
    let offsets = |corners: Corners| corners.map(|[x, y, z]| vk::Offset3D { x, y, z });
    vk::ImageBlit::default()
        .src_subresource(from.level(from_level))
        .src_offsets(offsets(source))
        .dst_subresource(to.level(to_level))
        .dst_offsets(offsets(target))
}

/// Records one blit.
fn blit(
    gpu: &Gpu,
    commands: vk::CommandBuffer,
    (from, to): (&Picture, &Picture),
    region: vk::ImageBlit,
    filter: vk::Filter,
) {
    unsafe {
        let (from, to) = (from.image, to.image);
        gpu.device.cmd_blit_image(commands, from, GENERAL, to, GENERAL, &[region], filter);
    }
}

/// Returns the contents of an image of words after a blit out of another one, which holds `words`.
fn blitted(
    gpu: &Gpu,
    words: &[u32],
    shapes: [Shape; 2],
    source: Corners,
    target: Corners,
) -> Result<Vec<u32>> {
    require(gpu, WORDS, vk::Filter::NEAREST)?;
    let [from, to] = shapes.map(|shape| Picture::new(gpu, shape));
    let (from, to) = (from?, to?);
    from.fill(gpu, &gpu.buffer_of(words)?)?;
    let found = gpu.buffer(4 * shapes[1].size.iter().map(|size| u64::from(*size)).product::<u64>())?;
    gpu.run(|commands| {
        to.clear(gpu, commands, [0; 4]);
        gpu.barrier(commands);
        blit(gpu, commands, (&from, &to), region((&from, 0, source), (&to, 0, target)), vk::Filter::NEAREST);
        gpu.barrier(commands);
        to.read_into(gpu, commands, &found);
    })?;
    Ok(found.values())
}

fn scaled() -> Vec<Case> {
    let flat = |size| Shape::flat(WORDS, size, size, NONE);
    let solid = |size| Shape {
        view: vk::ImageViewType::TYPE_3D,
        size: [size; 3],
        ..Shape::flat(WORDS, size, size, NONE)
    };
    vec![
        Case::new("images.blit.twice_as_large", move |gpu| {
            let words = noise32(161, 64);
            let found =
                blitted(gpu, &words, [flat(8), flat(16)], [[0, 0, 0], [8, 8, 1]], [[0, 0, 0], [16, 16, 1]])?;
            let expected: Vec<u32> = (0..256).map(|i| words[i / 32 * 8 + i % 16 / 2]).collect();
            expect(&found, &expected)
        }),
        Case::new("images.blit.mirrored", move |gpu| {
            let words = noise32(162, 64);
            let found =
                blitted(gpu, &words, [flat(8), flat(8)], [[8, 0, 0], [0, 8, 1]], [[0, 0, 0], [8, 8, 1]])?;
            let expected: Vec<u32> = (0..64).map(|i| words[i / 8 * 8 + 7 - i % 8]).collect();
            expect(&found, &expected)
        }),
        Case::new("images.blit.part_into_part", move |gpu| {
            let words = noise32(163, 64);
            let found =
                blitted(gpu, &words, [flat(8), flat(8)], [[4, 4, 0], [8, 8, 1]], [[0, 2, 0], [4, 6, 1]])?;
            let inside = |i: usize| i % 8 < 4 && (2..6).contains(&(i / 8));
            let expected: Vec<u32> =
                (0..64).map(|i| if inside(i) { words[(i / 8 + 2) * 8 + i % 8 + 4] } else { 0 }).collect();
            expect(&found, &expected)
        }),
        Case::new("images.blit.solid", move |gpu| {
            let words = noise32(164, 64);
            let found = blitted(gpu, &words, [solid(4), solid(8)], [[0; 3], [4; 3]], [[0; 3], [8; 3]])?;
            let expected: Vec<u32> =
                (0..512).map(|i| words[i / 128 * 16 + i / 16 % 4 * 4 + i % 8 / 2]).collect();
            expect(&found, &expected)
        }),
    ]
}

/// Makes each level of the level above it, as programs make mipmaps, and returns the bytes of all levels.
fn mipmaps(gpu: &Gpu, format: vk::Format, layers: u32, texels: &[u32]) -> Result<Vec<u32>> {
    require(gpu, format, vk::Filter::LINEAR)?;
    let view = if layers == 1 { vk::ImageViewType::TYPE_2D } else { vk::ImageViewType::TYPE_2D_ARRAY };
    let shape = Shape { view, layers, levels: LEVELS, ..Shape::flat(format, LARGEST, LARGEST, NONE) };
    let picture = Picture::new(gpu, shape)?;
    picture.fill(gpu, &gpu.buffer_of(texels)?)?;
    let size = |level: u32| LARGEST >> level;
    let corners = |level| [[0, 0, 0], [size(level) as i32, size(level) as i32, 1]];
    let ends = (0..LEVELS).scan(0u64, |end, level| {
        let begin = *end;
        *end += u64::from(layers * size(level).pow(2)) * 4;
        Some((begin, *end))
    });
    let ends: Vec<(u64, u64)> = ends.collect();
    let found = gpu.buffer(ends.last().map_or(0, |last| last.1))?;
    gpu.run(|commands| {
        for level in 1..LEVELS {
            let region = region((&picture, level - 1, corners(level - 1)), (&picture, level, corners(level)));
            blit(gpu, commands, (&picture, &picture), region, vk::Filter::LINEAR);
            gpu.barrier(commands);
        }
        let region = |level: u32| picture.region(level).buffer_offset(ends[level as usize].0);
        let regions: Vec<_> = (0..LEVELS).map(region).collect();
        unsafe {
            gpu.device.cmd_copy_image_to_buffer(commands, picture.image, GENERAL, found.handle, &regions);
        }
    })?;
    Ok(found.values())
}

fn levels() -> Vec<Case> {
    let count = (LARGEST * LARGEST) as usize;
    vec![
        Case::new("images.blit.levels_of_one_color", move |gpu| {
            let found = mipmaps(gpu, COLORS, 1, &vec![0x40ff_8000; count])?;
            expect(&found, &vec![0x40ff_8000; found.len()])
        }),
        Case::new("images.blit.levels", move |gpu| {
            Ok(bytes_of(&mipmaps(gpu, COLORS, 1, &noise32(165, count))?))
        }),
        Case::new("images.blit.levels_of_layers", move |gpu| {
            Ok(bytes_of(&mipmaps(gpu, vk::Format::R8G8B8A8_SRGB, 3, &noise32(166, 3 * count))?))
        }),
    ]
}

fn conversions() -> Vec<Case> {
    const FLOATS: vk::Format = vk::Format::R32G32B32A32_SFLOAT;
    vec![Case::new("images.blit.colors_into_floats", |gpu| {
        require(gpu, COLORS, vk::Filter::NEAREST)?;
        require(gpu, FLOATS, vk::Filter::NEAREST)?;
        let words = noise32(167, 64);
        let from = Picture::new(gpu, Shape::flat(COLORS, 8, 8, NONE))?;
        let to = Picture::new(gpu, Shape::flat(FLOATS, 8, 8, NONE))?;
        from.fill(gpu, &gpu.buffer_of(&words)?)?;
        let found = gpu.buffer(16 * 64)?;
        let whole = [vk::Offset3D::default(), vk::Offset3D { x: 8, y: 8, z: 1 }];
        let regions = [vk::ImageBlit2::default()
            .src_subresource(from.level(0))
            .src_offsets(whole)
            .dst_subresource(to.level(0))
            .dst_offsets(whole)];
        let info = vk::BlitImageInfo2::default()
            .src_image(from.image)
            .src_image_layout(GENERAL)
            .dst_image(to.image)
            .dst_image_layout(GENERAL)
            .regions(&regions)
            .filter(vk::Filter::NEAREST);
        gpu.run(|commands| {
            unsafe { gpu.device.cmd_blit_image2(commands, &info) };
            gpu.barrier(commands);
            to.read_into(gpu, commands, &found);
        })?;
        let floats: Vec<f64> = found.values::<f32>().into_iter().map(f64::from).collect();
        let expected: Vec<f64> =
            words.iter().flat_map(|word| word.to_le_bytes()).map(|byte| f64::from(byte) / 255.0).collect();
        expect_near(&floats, &expected, 1e-6)?;
        Ok(found.read())
    })]
}
