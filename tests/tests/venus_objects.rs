//! Vulkan objects of a guest that need more than forwarding: host image copies and pipeline caches.

use anyhow::{Context, Result, ensure};
use protocol::venus::generated::{
    AllocateMemory, BindImageMemory, ChainStruct, CopyImageToMemoryInfoMESA, CopyImageToMemoryMESA,
    CopyImageToMemoryMESAReply, CopyMemoryToImageInfoMESA, CopyMemoryToImageMESA, CreateImage,
    CreatePipelineCache, DeviceMemory, Extent3D, Format, GetImageMemoryRequirements,
    GetImageMemoryRequirementsReply, GetImageSubresourceLayout2, GetImageSubresourceLayout2Reply,
    GetPipelineCacheData, GetPipelineCacheDataReply, HostImageCopyFlags, HostImageLayoutTransitionInfo,
    Image, ImageAspectFlags, ImageCreateInfo, ImageLayout, ImageSubresource, ImageSubresource2,
    ImageSubresourceLayers, ImageSubresourceRange, ImageType, ImageUsageFlags, MemoryAllocateInfo,
    MemoryRequirements, MemoryToImageCopyMESA, PhysicalDeviceVulkan14Features, PipelineCache,
    PipelineCacheCreateInfo, SampleCountFlags, SubresourceHostMemcpySize, SubresourceLayout2,
    TransitionImageLayout, VkResult,
};
use std::sync::Arc;
use tests::daemon::Daemon;
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

/// None where the host cannot copy: a driver of the machine's own (`VHOST_USER_VULKAN_GPU`) may be older.
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
/// The smallest memory that holds the region, as drivers send it: nothing behind the last texel.
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

/// Texels that are all different, and zeros in the gaps between rows, which a copy leaves alone.
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
    let (device, first) = (vulkan.device, image(&mut vulkan)?);
    let second = image(&mut vulkan)?;
    let subresource = ImageSubresource2 {
        image_subresource: ImageSubresource { aspect_mask: ImageAspectFlags::COLOR, ..Default::default() },
        ..ImageSubresource2::default()
    };
    let size = SubresourceHostMemcpySize::default();
    let chain = [ChainStruct::SubresourceHostMemcpySize(&size)];
    let layout = SubresourceLayout2 { p_next: &chain, ..SubresourceLayout2::default() };
    let layer_bytes = vulkan.query(
        |w| {
            let (p_subresource, p_layout) = (Some(&subresource), Some(&layout));
            GetImageSubresourceLayout2 { device, image: first, p_subresource, p_layout }.encode(REPLY, w);
        },
        |reply| {
            let reply = GetImageSubresourceLayout2Reply::decode(reply)?;
            match reply.p_layout.context("a layout")?.p_next {
                [ChainStruct::SubresourceHostMemcpySize(size)] => Ok(size.size as usize),
                other => anyhow::bail!("{other:?}"),
            }
        },
    )?;
    write(&mut vulkan, first, HostImageCopyFlags(0), &picture())?;
    let opaque = read(&mut vulkan, first, HostImageCopyFlags::MEMCPY, layer_bytes * LAYERS as usize)?;
    write(&mut vulkan, second, HostImageCopyFlags::MEMCPY, &opaque)?;
    assert!(read(&mut vulkan, second, HostImageCopyFlags(0), COPY_BYTES)? == picture());
    Ok(())
}

#[test]
fn copy_with_less_room_than_its_region_needs_breaks_nothing() -> Result<()> {
    let Some(Setup { mut vulkan, daemon }) = setup_for_copies()? else { return Ok(()) };
    let image = image(&mut vulkan)?;
    write(&mut vulkan, image, HostImageCopyFlags(0), &picture())?;
    let worker = daemon.wait_for_workers(1)?;
    for size in [0, 4, COPY_BYTES / 2, COPY_BYTES - 4] {
        for flags in [HostImageCopyFlags(0), HostImageCopyFlags::MEMCPY] {
            assert_eq!(read(&mut vulkan, image, flags, size)?.len(), size);
        }
        assert!(read(&mut vulkan, image, HostImageCopyFlags(0), size)? == picture()[..size]);
    }
    for size in [0, 4, COPY_BYTES / 2] {
        write(&mut vulkan, image, HostImageCopyFlags(0), &picture()[..size])?;
        let back = read(&mut vulkan, image, HostImageCopyFlags(0), COPY_BYTES)?;
        assert!(back[..size] == picture()[..size] && back[size..].iter().all(|&byte| byte == 0), "{size}");
    }
    assert_eq!(daemon.wait_for_workers(1)?, worker);
    Ok(())
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

/// Whether the daemon passed the initial data of the latest cache to the driver.
fn was_authentic(daemon: &Daemon) -> Result<bool> {
    let log = daemon.log();
    let line = log.lines().rev().find(|line| line.contains("pipeline cache with initial data"));
    Ok(line.context("no cache was created with data")?.contains("authentic=true"))
}

#[test]
fn pipeline_cache_comes_back_only_as_it_left() -> Result<()> {
    let Setup { mut vulkan, daemon } = setup_with(&["--log-level", "debug"])?;
    let cache = create_cache(&mut vulkan, &[])?;
    let (size, _) = cache_data(&mut vulkan, cache, None)?;
    let (_, data) = cache_data(&mut vulkan, cache, Some(size as usize))?;
    assert_eq!(data.len() as u64, size);
    create_cache(&mut vulkan, &data)?;
    assert!(was_authentic(&daemon)?);
    for at in [0, data.len() / 2, data.len() - 1] {
        let mut changed = data.clone();
        changed[at] ^= 1;
        create_cache(&mut vulkan, &changed)?;
        assert!(!was_authentic(&daemon)?, "byte {at}");
    }
    create_cache(&mut vulkan, &data[..data.len() - 1])?;
    assert!(!was_authentic(&daemon)?);
    create_cache(&mut vulkan, b"no cache at all")?;
    assert!(!was_authentic(&daemon)?);
    Ok(())
}

#[test]
fn pipeline_cache_with_too_little_room_is_cut_or_empty() -> Result<()> {
    let Setup { mut vulkan, daemon } = setup_with(&["--log-level", "debug"])?;
    let cache = create_cache(&mut vulkan, &[])?;
    let (size, _) = cache_data(&mut vulkan, cache, None)?;
    assert_eq!(cache_data(&mut vulkan, cache, Some(31))?, (0, Vec::new()));
    // What was cut is the driver's data; the tag is whole, and what is there counts.
    let (cut, data) = cache_data(&mut vulkan, cache, Some(size as usize - 1))?;
    assert!(cut < size && data.len() as u64 == cut);
    create_cache(&mut vulkan, &data)?;
    assert!(was_authentic(&daemon)?);
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
        was_authentic(&daemon)
    };
    let kept = ["--log-level", "debug", "--state-dir", state];
    let own = ["--log-level", "debug"];
    let data = data_of(&kept)?;
    assert!(accepts(&kept, &data)?);
    assert!(!accepts(&own, &data)?);
    assert!(!accepts(&kept, &data_of(&own)?)?);
    Ok(())
}
