//! Formats: the uses of their images, uploads of planes as programs for video do them, and copies by the host in every format.

use anyhow::{Context, Result, ensure};
use ash::vk;
use protocol::venus::generated::{FormatBlock, format_block};

use super::super::device::properties::ALWAYS_SHOWN;
use crate::bytes::{bytes_of, expect};
use crate::case::Case;
use crate::elementwise::noise32;
use crate::gpu::{Gpu, skip};
use crate::images::Shape;

const GENERAL: vk::ImageLayout = vk::ImageLayout::GENERAL;
const PAGE: usize = 4096;

/// Formats of which Mesa's driver for guests shows fewer features than the device has.
const CURTAILED: [vk::Format; 4] = [
    vk::Format::G8_B8R8_2PLANE_420_UNORM,
    vk::Format::G10X6_B10X6R10X6_2PLANE_420_UNORM_3PACK16,
    vk::Format::G12X4_B12X4R12X4_2PLANE_420_UNORM_3PACK16,
    vk::Format::R10X6G10X6B10X6A10X6_UNORM_4PACK16,
];

/// All cases of this module.
pub(crate) fn cases() -> Vec<Case> {
    let mut cases = vec![
        Case::new("images.formats.features", features),
        Case::new("images.formats.support", support),
        Case::new("images.host_copy.every_format", every_format),
    ];
    let planar = every().filter(|format| !planes(*format).is_empty());
    cases.extend(planar.map(|format| {
        Case::new(format!("images.upload.planes_{}", format.as_raw()), move |gpu| upload(gpu, format))
    }));
    cases
}

/// Every format that the registry names, but those of single vendors.
fn every() -> impl Iterator<Item = vk::Format> {
    let core = 1..=184;
    let planar = (1_000_156_000..=1_000_156_033).chain(1_000_330_000..=1_000_330_003);
    let others = [1_000_340_000, 1_000_340_001, 1_000_470_000, 1_000_470_001];
    core.chain(planar).chain(1_000_066_000..=1_000_066_013).chain(others).map(vk::Format::from_raw)
}

fn tiling_features(gpu: &Gpu, format: vk::Format) -> vk::FormatProperties3<'static> {
    let mut found = vk::FormatProperties3::default();
    let mut properties = vk::FormatProperties2::default().push_next(&mut found);
    unsafe { gpu.instance.get_physical_device_format_properties2(gpu.physical, format, &mut properties) };
    vk::FormatProperties3 { p_next: std::ptr::null_mut(), ..found }
}

fn is_copied_by_the_host(gpu: &Gpu, format: vk::Format) -> bool {
    let transfer = vk::FormatFeatureFlags2::HOST_IMAGE_TRANSFER_EXT;
    gpu.features.has("hostImageCopy")
        && tiling_features(gpu, format).optimal_tiling_features.contains(transfer)
}

/// Features of every format except those for drawing, as of Vulkan 1.3: further ones belong to extensions that guests may not have.
fn features(gpu: &Gpu) -> Result<Vec<u8>> {
    let mut words = Vec::new();
    for format in every().filter(|format| !CURTAILED.contains(format)) {
        let found = tiling_features(gpu, format);
        let all = [found.linear_tiling_features, found.optimal_tiling_features, found.buffer_features];
        words.extend(all.map(|features| features.as_raw() & ALWAYS_SHOWN));
    }
    Ok(bytes_of(&words))
}

/// Lists the supported images, for each type, tiling, use and flag of Vulkan 1.1 that needs no optional feature, without images that can only be
/// drawn to.
fn support(gpu: &Gpu) -> Result<Vec<u8>> {
    let uses = (0..4).map(|bit| 1 << bit).chain([0x7, 0xb, 0xf, 0x1a, 0x2a, 0x9a, 0x9f]);
    let kinds: Vec<(u32, u32)> = uses
        .flat_map(|usage| [0, 8, 0x10, 0x20, 0x80, 0x100, 0x200, 0x400].map(move |flags| (usage, flags)))
        .collect();
    let mut words = Vec::new();
    for format in every() {
        for (tiling, ty) in [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)] {
            for &(usage, flags) in &kinds {
                let found = unsafe {
                    gpu.instance.get_physical_device_image_format_properties(
                        gpu.physical,
                        format,
                        vk::ImageType::from_raw(ty),
                        vk::ImageTiling::from_raw(tiling),
                        vk::ImageUsageFlags::from_raw(usage),
                        vk::ImageCreateFlags::from_raw(flags),
                    )
                };
                let curtailed = CURTAILED.contains(&format);
                words.push(match found {
                    Ok(found) if !curtailed => {
                        let extent = found.max_extent;
                        let sizes = [extent.width, extent.height, extent.depth, found.max_mip_levels];
                        let sizes = sizes.into_iter().chain([found.max_array_layers]);
                        let samples = found.sample_counts.as_raw();
                        sizes.fold(samples, |sum, size| sum.wrapping_mul(31).wrapping_add(size))
                    }
                    Ok(_) => 1,
                    Err(vk::Result::ERROR_FORMAT_NOT_SUPPORTED) => 0,
                    Err(other) => return Err(other.into()),
                });
            }
        }
    }
    Ok(bytes_of(&words))
}

/// A part of a format that is copied on its own: aspect, block, and texels of the image for one of it.
#[derive(Clone, Copy)]
struct Part {
    aspect: vk::ImageAspectFlags,
    block: FormatBlock,
    shared: [u32; 2],
}

impl Part {
    fn new(aspect: vk::ImageAspectFlags, bytes: u32, shared: [u32; 2]) -> Self {
        Self { aspect, block: FormatBlock { bytes, extent: [1, 1, 1] }, shared }
    }
}

/// The planes of a format that has some ("Plane Format Compatibility Table").
fn planes(format: vk::Format) -> Vec<Part> {
    use vk::Format as F;
    let width = |first: F| (format.as_raw() - first.as_raw()).try_into().ok().filter(|at: &usize| *at < 5);
    let found = width(F::G8_B8_R8_3PLANE_420_UNORM)
        .map(|at| (at, 1))
        .or_else(|| width(F::G10X6_B10X6_R10X6_3PLANE_420_UNORM_3PACK16).map(|at| (at, 2)))
        .or_else(|| width(F::G12X4_B12X4_R12X4_3PLANE_420_UNORM_3PACK16).map(|at| (at, 2)))
        .or_else(|| width(F::G16_B16_R16_3PLANE_420_UNORM).map(|at| (at, 2)))
        .or(match format {
            F::G8_B8R8_2PLANE_444_UNORM => Some((5, 1)),
            F::G10X6_B10X6R10X6_2PLANE_444_UNORM_3PACK16
            | F::G12X4_B12X4R12X4_2PLANE_444_UNORM_3PACK16
            | F::G16_B16R16_2PLANE_444_UNORM => Some((5, 2)),
            _ => None,
        });
    let Some((layout, bytes)) = found else { return Vec::new() };
    let shared = [[2, 2], [2, 2], [2, 1], [2, 1], [1, 1], [1, 1]][layout];
    let first = Part::new(vk::ImageAspectFlags::PLANE_0, bytes, [1, 1]);
    let second = vk::ImageAspectFlags::PLANE_1;
    if [1, 3, 5].contains(&layout) {
        return vec![first, Part::new(second, 2 * bytes, shared)];
    }
    let third = Part::new(vk::ImageAspectFlags::PLANE_2, bytes, shared);
    vec![first, Part::new(second, bytes, shared), third]
}

/// The parts of a format that are copied (for depth and stencil, see the "Depth/Stencil Aspect Copy Table").
fn parts(format: vk::Format) -> Vec<Part> {
    use vk::Format as F;
    let depth = |bytes| Part::new(vk::ImageAspectFlags::DEPTH, bytes, [1, 1]);
    let stencil = Part::new(vk::ImageAspectFlags::STENCIL, 1, [1, 1]);
    match format {
        F::D16_UNORM => vec![depth(2)],
        F::X8_D24_UNORM_PACK32 | F::D32_SFLOAT => vec![depth(4)],
        F::S8_UINT => vec![stencil],
        F::D16_UNORM_S8_UINT => vec![depth(2), stencil],
        F::D24_UNORM_S8_UINT | F::D32_SFLOAT_S8_UINT => vec![depth(4), stencil],
        _ => {
            let planes = planes(format);
            let block = format_block(protocol::venus::generated::Format(format.as_raw()));
            match block {
                Some(block) if planes.is_empty() => {
                    let aspect = vk::ImageAspectFlags::COLOR;
                    vec![Part { aspect, block, shared: [1, 1] }]
                }
                _ => planes,
            }
        }
    }
}

/// Memory that is followed by memory that may not be accessed.
struct Guarded {
    start: *mut u8,
    pages: usize,
    size: usize,
}

impl Guarded {
    fn new(size: usize) -> Result<Self> {
        let pages = size.div_ceil(PAGE);
        let (no, yes) = (libc::PROT_NONE, libc::PROT_READ | libc::PROT_WRITE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let start = unsafe { libc::mmap(std::ptr::null_mut(), (pages + 1) * PAGE, no, flags, -1, 0) };
        ensure!(start != libc::MAP_FAILED, "no memory");
        ensure!(unsafe { libc::mprotect(start, pages * PAGE, yes) } == 0, "no memory");
        Ok(Self { start: start.cast(), pages, size })
    }

    fn at(&self) -> *mut u8 {
        unsafe { self.start.add(self.pages * PAGE - self.size) }
    }

    fn bytes(&self) -> &[u8] {
        unsafe { std::slice::from_raw_parts(self.at(), self.size) }
    }

    fn of(bytes: &[u8]) -> Result<Self> {
        let guarded = Self::new(bytes.len())?;
        unsafe { guarded.at().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(guarded)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        unsafe { libc::munmap(self.start.cast(), (self.pages + 1) * PAGE) };
    }
}

/// An image with memory, in the general layout.
fn image(gpu: &Gpu, shape: &Shape, aspect: vk::ImageAspectFlags) -> Result<vk::Image> {
    let image = unsafe { gpu.device.create_image(&shape.info(), None) }?;
    gpu.later(move |device| unsafe { device.destroy_image(image, None) });
    let requirements = unsafe { gpu.device.get_image_memory_requirements(image) };
    let memory = gpu.allocate(requirements, vk::MemoryPropertyFlags::empty(), false)?;
    unsafe { gpu.device.bind_image_memory(image, memory, 0) }?;
    let range = vk::ImageSubresourceRange {
        aspect_mask: aspect,
        base_mip_level: 0,
        level_count: shape.levels,
        base_array_layer: 0,
        layer_count: shape.layers,
    };
    let barrier = [vk::ImageMemoryBarrier::default()
        .dst_access_mask(vk::AccessFlags::MEMORY_READ | vk::AccessFlags::MEMORY_WRITE)
        .new_layout(GENERAL)
        .src_queue_family_index(vk::QUEUE_FAMILY_IGNORED)
        .dst_queue_family_index(vk::QUEUE_FAMILY_IGNORED)
        .image(image)
        .subresource_range(range)];
    let stage = vk::PipelineStageFlags::ALL_COMMANDS;
    gpu.run(|commands| unsafe {
        let flags = vk::DependencyFlags::empty();
        gpu.device.cmd_pipeline_barrier(commands, stage, stage, flags, &[], &[], &barrier);
    })?;
    Ok(image)
}

/// Returns whether the device has such images.
fn is_supported(gpu: &Gpu, shape: &Shape) -> bool {
    shape
        .properties(gpu)
        .is_ok_and(|found| found.max_mip_levels >= shape.levels && found.max_array_layers >= shape.layers)
}

fn subresource(part: Part, (level, first, count): (u32, u32, u32)) -> vk::ImageSubresourceLayers {
    vk::ImageSubresourceLayers {
        aspect_mask: part.aspect,
        mip_level: level,
        base_array_layer: first,
        layer_count: count,
    }
}

/// Bytes that every format keeps as they are: no bit of them is unused, and none of their floats is a NaN.
fn texels(seed: u64, count: usize) -> Vec<u8> {
    let words = noise32(seed, count.div_ceil(4));
    bytes_of(&words.iter().map(|word| word & 0x3f3f_3f3f).collect::<Vec<_>>())[..count].to_vec()
}

/// Fills each plane by the host if the device supports this, otherwise from a buffer, and reads it through a buffer.
fn upload(gpu: &Gpu, format: vk::Format) -> Result<Vec<u8>> {
    gpu.require(&["samplerYcbcrConversion"])?;
    let transfers = vk::FormatFeatureFlags::TRANSFER_SRC | vk::FormatFeatureFlags::TRANSFER_DST;
    gpu.require_format(format, vk::FormatFeatureFlags::SAMPLED_IMAGE | transfers)?;
    let by_the_host = is_copied_by_the_host(gpu, format);
    let usage = vk::ImageUsageFlags::SAMPLED;
    let usage = if by_the_host { usage | vk::ImageUsageFlags::HOST_TRANSFER_EXT } else { usage };
    let shape = Shape::flat(format, 24, 12, usage);
    ensure!(is_supported(gpu, &shape), "an image that its format's features promise");
    let image = image(gpu, &shape, vk::ImageAspectFlags::COLOR)?;
    let mut found = Vec::new();
    for (seed, part) in (170..).zip(planes(format)) {
        let extent = vk::Extent3D { width: 24 / part.shared[0], height: 12 / part.shared[1], depth: 1 };
        let bytes = texels(seed, (extent.width * extent.height * part.block.bytes) as usize);
        let subresource = subresource(part, (0, 0, 1));
        let regions = [vk::BufferImageCopy::default().image_subresource(subresource).image_extent(extent)];
        if by_the_host {
            let memory = Guarded::of(&bytes)?;
            let regions = [vk::MemoryToImageCopyEXT::default()
                .host_pointer(memory.at().cast())
                .image_subresource(subresource)
                .image_extent(extent)];
            let info = vk::CopyMemoryToImageInfoEXT::default()
                .dst_image(image)
                .dst_image_layout(GENERAL)
                .regions(&regions);
            let extension = ash::ext::host_image_copy::Device::new(&gpu.instance, &gpu.device);
            unsafe { extension.copy_memory_to_image(&info) }?;
        } else {
            let from = gpu.buffer_of(&bytes)?;
            gpu.run(|commands| unsafe {
                gpu.device.cmd_copy_buffer_to_image(commands, from.handle, image, GENERAL, &regions);
            })?;
        }
        let to = gpu.buffer(bytes.len() as u64)?;
        gpu.run(|commands| unsafe {
            gpu.device.cmd_copy_image_to_buffer(commands, image, GENERAL, to.handle, &regions);
        })?;
        found.extend(
            expect(&to.read(), &bytes).with_context(|| format!("aspect {:#x}", part.aspect.as_raw()))?,
        );
    }
    Ok(found)
}

/// Copies each aspect of every format that the host copies, in and out, with more texels in a row and rows in a layer than are
/// copied. It copies between memory that ends with the copied bytes and the second level of the last two layers.
fn every_format(gpu: &Gpu) -> Result<Vec<u8>> {
    gpu.require(&["hostImageCopy", "samplerYcbcrConversion"])?;
    let usage = vk::ImageUsageFlags::HOST_TRANSFER_EXT | vk::ImageUsageFlags::SAMPLED;
    let mut copied = 0u32;
    // Guests are offered fewer formats with planes, which the uploads are about.
    let formats = every().filter(|format| !CURTAILED.contains(format) && planes(*format).is_empty());
    let mut words = Vec::new();
    for format in formats.filter(|format| is_copied_by_the_host(gpu, *format)) {
        let parts = parts(format);
        let mut shape = Shape::flat(format, 48, 32, usage);
        // Formats that share colours among texels have one level, and one layer, unless the device has a feature for more.
        let is_shared = parts.iter().any(|part| part.block.extent == [2, 1, 1]);
        let place = if is_shared { (0, 0, 1) } else { (1, 1, 2) };
        if !is_shared {
            shape = Shape { view: vk::ImageViewType::TYPE_2D_ARRAY, layers: 3, levels: 2, ..shape };
        }
        if !is_supported(gpu, &shape) || parts.is_empty() {
            continue;
        }
        let all = parts.iter().fold(vk::ImageAspectFlags::empty(), |all, part| all | part.aspect);
        let image = image(gpu, &shape, all)?;
        for part in parts {
            in_and_out(gpu, image, part, place).with_context(|| format!("format {}", format.as_raw()))?;
        }
        copied += 1;
        words.push(format.as_raw() as u32);
    }
    if copied == 0 { skip("a format that the host copies") } else { Ok(bytes_of(&words)) }
}

fn in_and_out(gpu: &Gpu, image: vk::Image, part: Part, place: (u32, u32, u32)) -> Result<()> {
    let block = part.block;
    let [across, down] = [block.extent[0], block.extent[1]];
    // Blocks that are copied, and those from row to row and from layer to layer.
    let (columns, rows) = ((24 / across).min(5), (16 / down).min(3));
    let (pitch, height) = (columns + 2, rows + 1);
    let at = |layer: u32, row: u32| (((layer * height + row) * pitch) * block.bytes) as usize;
    let layers = place.2;
    let size = at(layers - 1, rows - 1) + (columns * block.bytes) as usize;
    let mut bytes = vec![0; size];
    for (layer, row) in (0..layers).flat_map(|layer| (0..rows).map(move |row| (layer, row))) {
        let texels = texels((180 + layer * rows + row).into(), (columns * block.bytes) as usize);
        bytes[at(layer, row)..][..texels.len()].copy_from_slice(&texels);
    }
    if part.aspect == vk::ImageAspectFlags::DEPTH && block.bytes == 4 {
        // A depth of 24 bits does not change the rest of a word.
        bytes.chunks_exact_mut(4).for_each(|word| word[3] = 0);
    }
    let subresource = subresource(part, place);
    let extent = vk::Extent3D { width: columns * across, height: rows * down, depth: 1 };
    let (row_length, image_height) = (pitch * across, height * down);
    let extension = ash::ext::host_image_copy::Device::new(&gpu.instance, &gpu.device);
    let memory = Guarded::of(&bytes)?;
    let regions = [vk::MemoryToImageCopyEXT::default()
        .host_pointer(memory.at().cast())
        .memory_row_length(row_length)
        .memory_image_height(image_height)
        .image_subresource(subresource)
        .image_extent(extent)];
    let info =
        vk::CopyMemoryToImageInfoEXT::default().dst_image(image).dst_image_layout(GENERAL).regions(&regions);
    unsafe { extension.copy_memory_to_image(&info) }?;
    let memory = Guarded::new(size)?;
    let regions = [vk::ImageToMemoryCopyEXT::default()
        .host_pointer(memory.at().cast())
        .memory_row_length(row_length)
        .memory_image_height(image_height)
        .image_subresource(subresource)
        .image_extent(extent)];
    let info =
        vk::CopyImageToMemoryInfoEXT::default().src_image(image).src_image_layout(GENERAL).regions(&regions);
    unsafe { extension.copy_image_to_memory(&info) }?;
    expect(memory.bytes(), &bytes).map(drop)
}
