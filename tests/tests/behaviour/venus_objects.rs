//! Vulkan objects of a guest that need more than forwarding: host image copies and pipeline caches.

use anyhow::{Context, Result, ensure};
use protocol::venus::generated::{
    AllocateMemory, BindImageMemory, ChainStruct, CopyImageToMemoryInfoMESA, CopyImageToMemoryMESA,
    CopyImageToMemoryMESAReply, CopyMemoryToImageInfoMESA, CopyMemoryToImageMESA, CreateImage,
    CreateImageReply, CreatePipelineCache, DeviceMemory, Extent3D, Format, FormatFeatureFlags2,
    FormatProperties2, FormatProperties3, GetImageMemoryRequirements, GetImageMemoryRequirementsReply,
    GetImageSubresourceLayout2, GetImageSubresourceLayout2Reply, GetPhysicalDeviceFormatProperties2,
    GetPhysicalDeviceFormatProperties2Reply, GetPhysicalDeviceImageFormatProperties,
    GetPhysicalDeviceImageFormatProperties2, GetPhysicalDeviceImageFormatProperties2Reply,
    GetPhysicalDeviceImageFormatPropertiesReply, GetPipelineCacheData, GetPipelineCacheDataReply,
    HostImageCopyFlags, HostImageLayoutTransitionInfo, Image, ImageAspectFlags, ImageCreateInfo,
    ImageFormatProperties, ImageFormatProperties2, ImageLayout, ImageSubresource, ImageSubresource2,
    ImageSubresourceLayers, ImageSubresourceRange, ImageType, ImageUsageFlags, MemoryAllocateInfo,
    MemoryRequirements, MemoryToImageCopyMESA, PhysicalDeviceImageFormatInfo2,
    PhysicalDeviceVulkan14Features, PipelineCache, PipelineCacheCreateInfo, SampleCountFlags,
    SubresourceHostMemcpySize, SubresourceLayout2, TransitionImageLayout, VkResult,
};
use std::sync::Arc;
use tests::daemon::{Daemon, eventually};
use tests::guest::PATIENCE;
use tests::guest::device::Device;
use tests::guest::ring::{ASYNC, REPLY};

struct Setup {
    // In the order in which they end.
    vulkan: Device,
    daemon: Daemon,
}

fn setup() -> Result<Setup> {
    setup_with(&[])
}

/// Returns `None` if the host cannot copy: a driver of the machine's own (`VHOST_USER_VULKAN_GPU`) may be older.
fn setup_for_copies() -> Result<Option<Setup>> {
    let mut setup = setup()?;
    let can_copy = setup.vulkan.extensions()?.iter().any(|name| name == "VK_EXT_host_image_copy");
    if !can_copy {
        ensure!(std::env::var_os("VHOST_USER_VULKAN_GPU").is_some(), "lavapipe copies images");
        println!("skipped: the host's driver copies no images");
    }
    Ok(can_copy.then_some(setup))
}

fn setup_with(options: &[&str]) -> Result<Setup> {
    let daemon = Daemon::start_with(options)?;
    let guest = Arc::new(daemon.guest()?);
    let features = PhysicalDeviceVulkan14Features { host_image_copy: 1, ..Default::default() };
    let chain = [ChainStruct::PhysicalDeviceVulkan14Features(&features)];
    Ok(Setup { vulkan: Device::create_with(&guest, "objects", &chain)?, daemon })
}

const EXTENT: Extent3D = Extent3D { width: 13, height: 7, depth: 1 };
const LAYERS: u32 = 3;
/// Texels from row to row and rows from layer to layer of the guest's memory.
const PITCH: (u32, u32) = (16, 9);
/// The smallest memory that holds the region, as drivers send it: no bytes after the last texel.
const COPY_BYTES: usize =
    (((LAYERS - 1) * PITCH.1 + EXTENT.height - 1) * PITCH.0 + EXTENT.width) as usize * 4;
const COLOR: ImageSubresourceLayers = ImageSubresourceLayers {
    aspect_mask: ImageAspectFlags::COLOR,
    mip_level: 0,
    base_array_layer: 0,
    layer_count: LAYERS,
};

/// An image in GENERAL layout that hosts copy from and to.
fn image(vulkan: &mut Device) -> Result<Image> {
    let device = vulkan.device;
    let (image, memory) = (Image(vulkan.new_id()), DeviceMemory(vulkan.new_id()));
    let info = ImageCreateInfo {
        image_type: ImageType::TYPE_2D,
        format: Format::R8G8B8A8_UNORM,
        extent: EXTENT,
        mip_levels: 1,
        array_layers: LAYERS,
        samples: SampleCountFlags::TYPE_1,
        usage: ImageUsageFlags(ImageUsageFlags::HOST_TRANSFER.0 | ImageUsageFlags::SAMPLED.0),
        ..ImageCreateInfo::default()
    };
    vulkan.call(|w| {
        CreateImage { device, p_create_info: Some(&info), p_image: Some(&image) }.encode(REPLY, w)
    })?;
    let none = MemoryRequirements::default();
    let needed = vulkan.query(
        |w| GetImageMemoryRequirements { device, image, p_memory_requirements: Some(&none) }.encode(REPLY, w),
        |reply| {
            let reply = GetImageMemoryRequirementsReply::decode(reply)?;
            reply.p_memory_requirements.copied().context("requirements")
        },
    )?;
    let info = MemoryAllocateInfo {
        allocation_size: needed.size,
        memory_type_index: needed.memory_type_bits.trailing_zeros(),
        ..MemoryAllocateInfo::default()
    };
    vulkan.call(|w| {
        AllocateMemory { device, p_allocate_info: Some(&info), p_memory: Some(&memory) }.encode(REPLY, w)
    })?;
    vulkan.call(|w| BindImageMemory { device, image, memory, memory_offset: 0 }.encode(REPLY, w))?;
    let transitions = [HostImageLayoutTransitionInfo {
        image,
        new_layout: ImageLayout::GENERAL,
        subresource_range: ImageSubresourceRange {
            aspect_mask: ImageAspectFlags::COLOR,
            level_count: 1,
            layer_count: LAYERS,
            ..ImageSubresourceRange::default()
        },
        ..HostImageLayoutTransitionInfo::default()
    }];
    vulkan.call(|w| {
        TransitionImageLayout { device, transition_count: 1, p_transitions: Some(&transitions) }
            .encode(REPLY, w)
    })?;
    Ok(image)
}

/// Writes `data` as the whole image; without a reply, as drivers do.
fn write(vulkan: &mut Device, image: Image, flags: HostImageCopyFlags, data: &[u8]) -> Result<()> {
    let (row, height) = if flags == HostImageCopyFlags::MEMCPY { (0, 0) } else { PITCH };
    let regions = [MemoryToImageCopyMESA {
        data_size: data.len() as u64,
        p_data: Some(data),
        memory_row_length: row,
        memory_image_height: height,
        image_subresource: COLOR,
        image_extent: EXTENT,
        ..MemoryToImageCopyMESA::default()
    }];
    let info = CopyMemoryToImageInfoMESA {
        flags,
        dst_image: image,
        dst_image_layout: ImageLayout::GENERAL,
        region_count: 1,
        p_regions: Some(&regions),
        ..CopyMemoryToImageInfoMESA::default()
    };
    let copy = CopyMemoryToImageMESA { device: vulkan.device, p_copy_memory_to_image_info: Some(&info) };
    vulkan.ring.command(|w| copy.encode(ASYNC, w)).map(drop)
}

/// Reads the whole image into `size` bytes.
fn read(vulkan: &mut Device, image: Image, flags: HostImageCopyFlags, size: usize) -> Result<Vec<u8>> {
    let (row, height) = if flags == HostImageCopyFlags::MEMCPY { (0, 0) } else { PITCH };
    let info = CopyImageToMemoryInfoMESA {
        flags,
        src_image: image,
        src_image_layout: ImageLayout::GENERAL,
        memory_row_length: row,
        memory_image_height: height,
        image_subresource: COLOR,
        image_extent: EXTENT,
        ..CopyImageToMemoryInfoMESA::default()
    };
    let room = vec![0; size];
    let copy = CopyImageToMemoryMESA {
        device: vulkan.device,
        p_copy_image_to_memory_info: Some(&info),
        data_size: size as u64,
        p_data: Some(&room),
    };
    vulkan.query(
        |w| copy.encode(REPLY, w),
        |reply| {
            let reply = CopyImageToMemoryMESAReply::decode(reply)?;
            ensure!(reply.result == VkResult::SUCCESS, "{:?}", reply.result);
            Ok(reply.p_data.unwrap_or(&[]).to_vec())
        },
    )
}

/// Texels that are all different, and zeros in the gaps between rows, which a copy does not change.
fn picture() -> Vec<u8> {
    let mut bytes = vec![0; COPY_BYTES];
    for layer in 0..LAYERS {
        for row in 0..EXTENT.height {
            for column in 0..EXTENT.width {
                let at = (((layer * PITCH.1 + row) * PITCH.0 + column) * 4) as usize;
                let texel = (layer << 16 | row << 8 | column | 0x5a00_0000).to_le_bytes();
                bytes[at..at + 4].copy_from_slice(&texel);
            }
        }
    }
    bytes
}

#[test]
fn texels_travel_to_an_image_and_back_without_a_queue() -> Result<()> {
    let Some(Setup { mut vulkan, daemon: _daemon }) = setup_for_copies()? else { return Ok(()) };
    let image = image(&mut vulkan)?;
    write(&mut vulkan, image, HostImageCopyFlags(0), &picture())?;
    let back = read(&mut vulkan, image, HostImageCopyFlags(0), COPY_BYTES)?;
    assert!(back == picture());
    Ok(())
}

#[test]
fn opaque_copy_moves_an_image_as_it_lies_in_memory() -> Result<()> {
    let Some(Setup { mut vulkan, daemon: _daemon }) = setup_for_copies()? else { return Ok(()) };
    let (first, second) = (image(&mut vulkan)?, image(&mut vulkan)?);
    write(&mut vulkan, first, HostImageCopyFlags(0), &picture())?;
    let bytes = opaque_bytes(&mut vulkan, first)?;
    let opaque = read(&mut vulkan, first, HostImageCopyFlags::MEMCPY, bytes)?;
    write(&mut vulkan, second, HostImageCopyFlags::MEMCPY, &opaque)?;
    assert!(read(&mut vulkan, second, HostImageCopyFlags(0), COPY_BYTES)? == picture());
    Ok(())
}

/// Returns the bytes of the whole image as it lies in memory.
fn opaque_bytes(vulkan: &mut Device, image: Image) -> Result<usize> {
    let device = vulkan.device;
    let subresource = ImageSubresource2 {
        image_subresource: ImageSubresource { aspect_mask: ImageAspectFlags::COLOR, ..Default::default() },
        ..ImageSubresource2::default()
    };
    let size = SubresourceHostMemcpySize::default();
    let chain = [ChainStruct::SubresourceHostMemcpySize(&size)];
    let layout = SubresourceLayout2 { p_next: &chain, ..SubresourceLayout2::default() };
    vulkan.query(
        |w| {
            let (p_subresource, p_layout) = (Some(&subresource), Some(&layout));
            GetImageSubresourceLayout2 { device, image, p_subresource, p_layout }.encode(REPLY, w);
        },
        |reply| {
            let reply = GetImageSubresourceLayout2Reply::decode(reply)?;
            match reply.p_layout.context("a layout")?.p_next {
                [ChainStruct::SubresourceHostMemcpySize(size)] => Ok(size.size as usize * LAYERS as usize),
                other => anyhow::bail!("{other:?}"),
            }
        },
    )
}

/// Returns the reason for which reading into `size` bytes fails.
fn refusal(vulkan: &mut Device, image: Image, flags: HostImageCopyFlags, size: usize) -> Result<String> {
    match read(vulkan, image, flags, size) {
        Ok(_) => anyhow::bail!("{size} bytes were enough"),
        Err(error) => Ok(error.to_string()),
    }
}

#[test]
fn copy_that_is_cut_short_fails_and_makes_nothing_up() -> Result<()> {
    let Some(Setup { mut vulkan, daemon }) = setup_for_copies()? else { return Ok(()) };
    let image = image(&mut vulkan)?;
    write(&mut vulkan, image, HostImageCopyFlags(0), &picture())?;
    let worker = daemon.wait_for_workers(1)?;
    let failed = format!("{:?}", VkResult::ERROR_INITIALIZATION_FAILED);
    let opaque = opaque_bytes(&mut vulkan, image)?;
    for (flags, bytes) in [(HostImageCopyFlags(0), COPY_BYTES), (HostImageCopyFlags::MEMCPY, opaque)] {
        for size in [0, 4, bytes / 2, bytes - 4] {
            ensure!(refusal(&mut vulkan, image, flags, size)? == failed, "{size} bytes, {flags:?}");
        }
    }
    for size in [0, 4, COPY_BYTES / 2, COPY_BYTES - 1] {
        write(&mut vulkan, image, HostImageCopyFlags(0), &vec![0; size])?;
        // The write does not ask for its result, so the next call reports it.
        ensure!(refusal(&mut vulkan, image, HostImageCopyFlags(0), COPY_BYTES)? == failed, "{size} bytes");
        assert!(read(&mut vulkan, image, HostImageCopyFlags(0), COPY_BYTES)? == picture(), "{size} bytes");
    }
    assert_eq!(daemon.wait_for_workers(1)?, worker);
    // The worker logs the refusal, and the device process passes on the output of workers when it has time.
    let said = || daemon.log().matches("is refused: the guest's driver has").count();
    ensure!(eventually(PATIENCE, || said() > 0), "not said\n{}", daemon.log());
    ensure!(said() == 1, "said {} times\n{}", said(), daemon.log());
    Ok(())
}

/// The result of `vkCreateImage`.
fn creation(vulkan: &mut Device, format: Format, usage: ImageUsageFlags) -> Result<VkResult> {
    let info = ImageCreateInfo {
        image_type: ImageType::TYPE_2D,
        format,
        extent: Extent3D { width: 64, height: 64, depth: 1 },
        mip_levels: 1,
        array_layers: 1,
        samples: SampleCountFlags::TYPE_1,
        usage,
        ..ImageCreateInfo::default()
    };
    let (device, image) = (vulkan.device, Image(vulkan.new_id()));
    vulkan.query(
        |w| CreateImage { device, p_create_info: Some(&info), p_image: Some(&image) }.encode(REPLY, w),
        |reply| Ok(CreateImageReply::decode(reply)?.result),
    )
}

#[test]
fn host_copies_a_guest_cannot_rely_on_are_not_offered() -> Result<()> {
    let Some(Setup { mut vulkan, daemon }) = setup_for_copies()? else { return Ok(()) };
    let sampled = ImageUsageFlags::SAMPLED;
    let copied = ImageUsageFlags(ImageUsageFlags::HOST_TRANSFER.0 | sampled.0);
    let coded = ImageUsageFlags(0x400 | sampled.0);
    let cut = [
        Format::G8_B8R8_2PLANE_422_UNORM,
        Format::G16_B16_R16_3PLANE_420_UNORM,
        Format::G10X6_B10X6R10X6_2PLANE_444_UNORM_3PACK16,
        // lavapipe accepts the usage for such formats, and copies more bytes than their images have.
        Format::D32_SFLOAT_S8_UINT,
        Format::D24_UNORM_S8_UINT,
    ];
    for format in cut {
        for wrong in [copied, coded] {
            let answer = image_support(&mut vulkan, format, wrong)?;
            ensure!(answer == VkResult::ERROR_FORMAT_NOT_SUPPORTED, "{format:?} {wrong:?}: {answer:?}");
            let made = creation(&mut vulkan, format, wrong)?;
            ensure!(made == VkResult::ERROR_VALIDATION_FAILED, "{format:?} {wrong:?}: {made:?}");
        }
        let answer = image_support(&mut vulkan, format, sampled)?;
        ensure!(answer == VkResult::SUCCESS, "{format:?}: {answer:?}");
        ensure!(
            features(&mut vulkan, format)? & FormatFeatureFlags2::HOST_IMAGE_TRANSFER.0 == 0,
            "{format:?}"
        );
    }
    for whole in [Format::R8G8B8A8_UNORM, Format::G8_B8_R8_3PLANE_420_UNORM] {
        ensure!(image_support(&mut vulkan, whole, copied)? == VkResult::SUCCESS, "{whole:?}");
        ensure!(features(&mut vulkan, whole)? & FormatFeatureFlags2::HOST_IMAGE_TRANSFER.0 != 0, "{whole:?}");
        ensure!(creation(&mut vulkan, whole, copied)? == VkResult::SUCCESS, "{whole:?}");
    }
    daemon.wait_for_workers(1)?;
    Ok(())
}

/// The result of `vkGetPhysicalDeviceImageFormatProperties2`, which is the same as that of its predecessor.
fn image_support(vulkan: &mut Device, format: Format, usage: ImageUsageFlags) -> Result<VkResult> {
    let (physical_device, ty) = (vulkan.physical, ImageType::TYPE_2D);
    let info = PhysicalDeviceImageFormatInfo2 { format, ty, usage, ..Default::default() };
    let (none, none2) = (ImageFormatProperties::default(), ImageFormatProperties2::default());
    let (tiling, flags) = (info.tiling, info.flags);
    let second = vulkan.query(
        |w| {
            let (p_image_format_info, p_image_format_properties) = (Some(&info), Some(&none2));
            GetPhysicalDeviceImageFormatProperties2 {
                physical_device,
                p_image_format_info,
                p_image_format_properties,
            }
            .encode(REPLY, w);
        },
        |reply| Ok(GetPhysicalDeviceImageFormatProperties2Reply::decode(reply)?.result),
    )?;
    let first = vulkan.query(
        |w| {
            let p_image_format_properties = Some(&none);
            GetPhysicalDeviceImageFormatProperties {
                physical_device,
                format,
                ty,
                tiling,
                usage,
                flags,
                p_image_format_properties,
            }
            .encode(REPLY, w);
        },
        |reply| Ok(GetPhysicalDeviceImageFormatPropertiesReply::decode(reply)?.result),
    )?;
    ensure!(first == second, "{format:?} {usage:?}: {first:?}, then {second:?}");
    Ok(first)
}

/// Features of a format's images with any tiling.
fn features(vulkan: &mut Device, format: Format) -> Result<u64> {
    let found = FormatProperties3::default();
    let chain = [ChainStruct::FormatProperties3(&found)];
    let (physical_device, properties) =
        (vulkan.physical, FormatProperties2 { p_next: &chain, ..Default::default() });
    vulkan.query(
        |w| {
            let p_format_properties = Some(&properties);
            GetPhysicalDeviceFormatProperties2 { physical_device, format, p_format_properties }
                .encode(REPLY, w);
        },
        |reply| {
            let reply = GetPhysicalDeviceFormatProperties2Reply::decode(reply)?;
            match reply.p_format_properties.context("properties")?.p_next {
                [ChainStruct::FormatProperties3(found)] => {
                    Ok(found.linear_tiling_features.0 | found.optimal_tiling_features.0)
                }
                other => anyhow::bail!("{other:?}"),
            }
        },
    )
}

fn create_cache(vulkan: &mut Device, data: &[u8]) -> Result<PipelineCache> {
    let (device, cache) = (vulkan.device, PipelineCache(vulkan.new_id()));
    let info = PipelineCacheCreateInfo {
        initial_data_size: data.len() as u64,
        p_initial_data: Some(data).filter(|data| !data.is_empty()),
        ..PipelineCacheCreateInfo::default()
    };
    vulkan.call(|w| {
        CreatePipelineCache { device, p_create_info: Some(&info), p_pipeline_cache: Some(&cache) }
            .encode(REPLY, w)
    })?;
    Ok(cache)
}

/// The cache's data with room for `room` bytes, or only its size.
fn cache_data(vulkan: &mut Device, cache: PipelineCache, room: Option<usize>) -> Result<(u64, Vec<u8>)> {
    let (device, room_bytes) = (vulkan.device, vec![0; room.unwrap_or(0)]);
    let size = room.unwrap_or(0) as u64;
    let get = GetPipelineCacheData {
        device,
        pipeline_cache: cache,
        p_data_size: Some(&size),
        p_data: room.map(|_| &room_bytes[..]),
    };
    vulkan.query(
        |w| get.encode(REPLY, w),
        |reply| {
            let reply = GetPipelineCacheDataReply::decode(reply)?;
            ensure!(reply.result.0 >= 0, "{:?}", reply.result);
            Ok((*reply.p_data_size.context("a size")?, reply.p_data.unwrap_or(&[]).to_vec()))
        },
    )
}

/// Returns whether the daemon passed the initial data of a cache to the driver; `nth` of those with data, from 0.
fn was_authentic(daemon: &Daemon, nth: usize) -> Result<bool> {
    let said = || {
        let log = daemon.log();
        let line = log.lines().filter(|line| line.contains("pipeline cache with initial data")).nth(nth);
        line.map(|line| line.contains("authentic=true"))
    };
    // The output of workers reaches the log by way of the device process.
    eventually(PATIENCE, || said().is_some());
    said().context("no cache was created with data")
}

#[test]
fn pipeline_cache_comes_back_only_as_it_left() -> Result<()> {
    let Setup { mut vulkan, daemon } = setup_with(&["--log-level", "debug"])?;
    let cache = create_cache(&mut vulkan, &[])?;
    let (size, _) = cache_data(&mut vulkan, cache, None)?;
    let (_, data) = cache_data(&mut vulkan, cache, Some(size as usize))?;
    assert_eq!(data.len() as u64, size);
    create_cache(&mut vulkan, &data)?;
    assert!(was_authentic(&daemon, 0)?);
    for (nth, at) in (1..).zip([0, data.len() / 2, data.len() - 1]) {
        let mut changed = data.clone();
        changed[at] ^= 1;
        create_cache(&mut vulkan, &changed)?;
        assert!(!was_authentic(&daemon, nth)?, "byte {at}");
    }
    create_cache(&mut vulkan, &data[..data.len() - 1])?;
    assert!(!was_authentic(&daemon, 4)?);
    create_cache(&mut vulkan, b"no cache at all")?;
    assert!(!was_authentic(&daemon, 5)?);
    Ok(())
}

#[test]
fn pipeline_cache_with_too_little_room_is_cut_or_empty() -> Result<()> {
    let Setup { mut vulkan, daemon } = setup_with(&["--log-level", "debug"])?;
    let cache = create_cache(&mut vulkan, &[])?;
    let (size, _) = cache_data(&mut vulkan, cache, None)?;
    assert_eq!(cache_data(&mut vulkan, cache, Some(31))?, (0, Vec::new()));
    // The driver's data was cut; the tag is whole and is that of the remaining bytes.
    let (cut, data) = cache_data(&mut vulkan, cache, Some(size as usize - 1))?;
    assert!(cut < size && data.len() as u64 == cut);
    create_cache(&mut vulkan, &data)?;
    assert!(was_authentic(&daemon, 0)?);
    Ok(())
}

#[test]
fn pipeline_cache_outlives_the_daemon_in_a_state_folder_only() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let state = folder.path().to_str().context("a printable path")?;
    let data_of = |options: &[&str]| -> Result<Vec<u8>> {
        let Setup { mut vulkan, daemon: _daemon } = setup_with(options)?;
        let cache = create_cache(&mut vulkan, &[])?;
        let (size, _) = cache_data(&mut vulkan, cache, None)?;
        Ok(cache_data(&mut vulkan, cache, Some(size as usize))?.1)
    };
    let accepts = |options: &[&str], data: &[u8]| -> Result<bool> {
        let Setup { mut vulkan, daemon } = setup_with(options)?;
        create_cache(&mut vulkan, data)?;
        was_authentic(&daemon, 0)
    };
    let kept = ["--log-level", "debug", "--state-dir", state];
    let own = ["--log-level", "debug"];
    let data = data_of(&kept)?;
    assert!(accepts(&kept, &data)?);
    assert!(!accepts(&own, &data)?);
    assert!(!accepts(&kept, &data_of(&own)?)?);
    Ok(())
}
