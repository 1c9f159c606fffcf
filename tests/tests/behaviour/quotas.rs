//! Limits as a guest meets them: heaps as large as the memory it may have, allocations beyond that become placeholders, the next call that can report
//! an error reports it, and a program that takes all that it can get leaves others their share.

use anyhow::{Context, Result, anyhow, ensure};
use protocol::ids::{BlobId, RingIdx};
use protocol::venus::generated as venus;
use protocol::venus::generated::{ChainStruct, VkResult};
use protocol::virtio_gpu::{BlobFlags, Command};
use rustix::process::Pid;
use std::sync::Arc;
use std::time::Duration;
use tests::attacks::hoards::{large_submission, small_blobs};
use tests::broker::Broker;
use tests::daemon::{Daemon, Holdings, eventually};
use tests::daemon_process::workers;
use tests::frontend::{Options, Session, Vmm};
use tests::guest::device::{Device, Source, ensure_filled};
use tests::guest::ring::{ASYNC, REPLY, Ring, RingOptions};
use tests::guest::{Gpu, PATIENCE, timeline};
use vm_memory::{Bytes, VolatileMemory};

const MIB: u64 = 1 << 20;

fn log_says(daemon: &Daemon, limit: &str) -> Result<()> {
    let line = format!("limit {limit} reached");
    ensure!(eventually(PATIENCE, || daemon.log().contains(&line)), "no line \"{line}\"\n{}", daemon.log());
    Ok(())
}

/// Sizes of the heaps, the largest allocation and the largest buffer as a guest sees them.
fn sizes(vulkan: &mut Device) -> Result<(Vec<u64>, u64, u64)> {
    let physical_device = vulkan.physical;
    let heaps = vulkan.query(
        |w| {
            let p_memory_properties = Some(&venus::PhysicalDeviceMemoryProperties2::default());
            venus::GetPhysicalDeviceMemoryProperties2 { physical_device, p_memory_properties }
                .encode(REPLY, w);
        },
        |reply| {
            let reply = venus::GetPhysicalDeviceMemoryProperties2Reply::decode(reply)?;
            let memory = reply.p_memory_properties.context("memory properties")?.memory_properties;
            let heaps = &memory.memory_heaps[..memory.memory_heap_count as usize];
            Ok(heaps.iter().map(|heap| heap.size).collect::<Vec<_>>())
        },
    )?;
    let allocation = venus::PhysicalDeviceMaintenance3Properties::default();
    let buffer = venus::PhysicalDeviceMaintenance4Properties::default();
    let chain = [
        ChainStruct::PhysicalDeviceMaintenance3Properties(&allocation),
        ChainStruct::PhysicalDeviceMaintenance4Properties(&buffer),
    ];
    let partial = venus::PhysicalDeviceProperties2 { p_next: &chain, ..Default::default() };
    vulkan.query(
        |w| {
            venus::GetPhysicalDeviceProperties2 { physical_device, p_properties: Some(&partial) }
                .encode(REPLY, w);
        },
        |reply| {
            let reply = venus::GetPhysicalDeviceProperties2Reply::decode(reply)?;
            match reply.p_properties.context("properties")?.p_next {
                [
                    ChainStruct::PhysicalDeviceMaintenance3Properties(allocation),
                    ChainStruct::PhysicalDeviceMaintenance4Properties(buffer),
                ] => Ok((heaps.clone(), allocation.max_memory_allocation_size, buffer.max_buffer_size)),
                other => anyhow::bail!("{other:?}"),
            }
        },
    )
}

#[test]
fn heaps_are_as_large_as_the_quota() -> Result<()> {
    let largest = |options: &[&str]| -> Result<(u64, u64, u64)> {
        let daemon = Daemon::start_with(options)?;
        let mut vulkan = Device::create(&Arc::new(daemon.guest()?), "heaps")?;
        let (heaps, allocation, buffer) = sizes(&mut vulkan)?;
        Ok((heaps.into_iter().max().unwrap_or(0), allocation, buffer))
    };
    let (whole, ..) = largest(&[])?;
    ensure!(whole > 512 * MIB, "a machine of {whole} bytes shows nothing");
    // Seven eighths of the VM's memory, since another program has its share.
    let (heap, allocation, buffer) = largest(&["--host-memory", "512MiB", "--device-memory", "512MiB"])?;
    assert_eq!(heap, 448 * MIB);
    assert!(allocation <= 448 * MIB && buffer <= 448 * MIB, "{allocation} {buffer}");
    let (heap, ..) = largest(&["--context-host-memory", "100MiB", "--context-device-memory", "100MiB"])?;
    assert_eq!(heap, 100 * MIB);
    Ok(())
}

#[test]
fn rings_of_a_vm_are_counted_and_one_context_leaves_some_to_others() -> Result<()> {
    let daemon = Daemon::start_with(&["--max-vm-rings", "64"])?;
    let guest = Arc::new(daemon.guest()?);
    let context = guest.create_context("hog")?;
    let mut rings = Vec::new();
    let is_lost =
        |rings: &[Ring]| rings.iter().any(|ring| ring.status().contains(venus::RingStatusFlagsMESA::FATAL));
    while !is_lost(&rings) {
        rings.push(Ring::create(&guest, context, RingOptions::default())?);
        // Either the worker has seen the command, or it has ended.
        ensure!(guest.submit_fenced(context, RingIdx(0), &[]).arrives_within(PATIENCE), "a fence is lost");
        ensure!(rings.len() < 100, "no limit\n{}", daemon.log());
    }
    log_says(&daemon, "max-vm-rings")?;
    // The count is seven eighths of 64, plus the rings that were on their way when the context ended.
    ensure!((57..80).contains(&rings.len()), "{} rings", rings.len());
    rings.into_iter().for_each(Ring::abandon);
    guest.destroy_context(context)?;
    // The next program gets the rings of the first, though the first's process may still exist.
    for _ in 0..4 {
        let next = guest.create_context("next")?;
        let rings: Vec<_> =
            (0..50).map(|_| Ring::create(&guest, next, RingOptions::default())).collect::<Result<_>>()?;
        for _ in 0..2 {
            guest.submit_fenced(next, RingIdx(0), &[]).wait(PATIENCE)?;
        }
        ensure!(!is_lost(&rings), "50 rings are too many\n{}", daemon.log());
        rings.into_iter().for_each(Ring::abandon);
        guest.destroy_context(next)?;
    }
    Ok(())
}

/// Allocates memories of one MiB until an allocation fails.
fn hoard(vulkan: &mut Device) -> Result<(Vec<venus::DeviceMemory>, VkResult)> {
    let mut hoard = Vec::new();
    loop {
        match vulkan.allocate(MIB, Source::New)? {
            Ok(memory) => hoard.push(memory),
            Err(error) => return Ok((hoard, error)),
        }
        ensure!(hoard.len() < 1000, "no limit");
    }
}

#[test]
fn one_context_leaves_memory_to_others_and_gets_back_what_it_frees() -> Result<()> {
    let daemon = Daemon::start_with(&["--host-memory", "64MiB"])?;
    let guest = Arc::new(daemon.guest()?);
    let mut hog = Device::create(&guest, "hog")?;
    let (memories, error) = hoard(&mut hog)?;
    assert_eq!(memories.len(), 56);
    assert!(error.0 == -1 || error.0 == -2, "{error:?}");
    log_says(&daemon, "host-memory")?;
    // A blob holds the pages when the memory is freed.
    let shown = hog.blob(memories[0], MIB)?;
    hog.free(memories[0])?;
    assert!(hog.allocate(MIB, Source::New)?.is_err());
    guest.destroy_blob(shown)?;
    assert!(eventually(PATIENCE, || matches!(hog.allocate(MIB, Source::New), Ok(Ok(_)))));
    let mut next = Device::create(&guest, "next")?;
    let (others, _) = hoard(&mut next)?;
    assert_eq!(others.len(), 7);
    // The memory of a context is free again after its end.
    let context = hog.context;
    drop(hog);
    guest.destroy_context(context)?;
    let mut count = others.len();
    // The memory is free when the context's process has ended.
    let all = eventually(PATIENCE, || {
        count += hoard(&mut next).map_or(0, |(more, _)| more.len());
        count >= 56
    });
    assert!(all && count == 56, "{count}");
    Ok(())
}

#[test]
fn memory_behind_a_resource_counts_as_long_as_anybody_holds_it() -> Result<()> {
    let daemon = Daemon::start_with(&["--host-memory", "64MiB"])?;
    let guest = Arc::new(daemon.guest()?);
    let (mut maker, mut holder) = (Device::create(&guest, "maker")?, Device::create(&guest, "holder")?);
    let Ok(memory) = maker.allocate(32 * MIB, Source::Exportable)? else { anyhow::bail!("no memory") };
    let blob = maker.blob(memory, 32 * MIB)?;
    guest.call(&Command::CtxAttachResource { resource_id: blob.resource_id }, Some(holder.context))?;
    let imported = holder.allocate(32 * MIB, Source::Resource(blob.resource_id.0))?;
    let Ok(imported) = imported else { anyhow::bail!("no import") };
    guest.destroy_blob(blob)?;
    maker.free(memory)?;
    assert!(maker.allocate(40 * MIB, Source::New)?.is_err(), "the holder still has half of it");
    holder.free(imported)?;
    assert!(eventually(PATIENCE, || matches!(maker.allocate(40 * MIB, Source::New), Ok(Ok(_)))));
    Ok(())
}

/// Creates a buffer, binds it, writes a descriptor for it, records and submits a use of it: no step waits for an answer.
#[allow(clippy::too_many_lines, reason = "one program, from a buffer to its use")]
fn use_unheard(vulkan: &mut Device, memory: venus::DeviceMemory, fence: venus::Fence) -> Result<()> {
    let (buffer, commands) = (venus::Buffer(vulkan.new_id()), venus::CommandBuffer(vulkan.new_id()));
    let (layout, pool) =
        (venus::DescriptorSetLayout(vulkan.new_id()), venus::DescriptorPool(vulkan.new_id()));
    let (set, pipelines) = (venus::DescriptorSet(vulkan.new_id()), venus::PipelineLayout(vulkan.new_id()));
    let (device, queue) = (vulkan.device, vulkan.queue);
    let usage = venus::BufferUsageFlags(
        venus::BufferUsageFlags::TRANSFER_DST.0 | venus::BufferUsageFlags::STORAGE_BUFFER.0,
    );
    let info = venus::BufferCreateInfo { size: MIB, usage, ..Default::default() };
    let bind = [venus::BindBufferMemoryInfo { buffer, memory, ..Default::default() }];
    let stage_flags = venus::ShaderStageFlags::COMPUTE;
    let descriptor_type = venus::DescriptorType::STORAGE_BUFFER;
    let bindings = [venus::DescriptorSetLayoutBinding {
        descriptor_type,
        descriptor_count: 1,
        stage_flags,
        ..Default::default()
    }];
    let layout_info = venus::DescriptorSetLayoutCreateInfo {
        binding_count: 1,
        p_bindings: Some(&bindings),
        ..Default::default()
    };
    let sizes = [venus::DescriptorPoolSize { ty: descriptor_type, descriptor_count: 1 }];
    let pool_info = venus::DescriptorPoolCreateInfo {
        max_sets: 1,
        pool_size_count: 1,
        p_pool_sizes: Some(&sizes),
        ..Default::default()
    };
    let layouts = [layout];
    let set_info = venus::DescriptorSetAllocateInfo {
        descriptor_pool: pool,
        descriptor_set_count: 1,
        p_set_layouts: Some(&layouts),
        ..Default::default()
    };
    let range = u64::MAX;
    let buffers = [venus::DescriptorBufferInfo { buffer, offset: 0, range }];
    let writes = [venus::WriteDescriptorSet {
        dst_set: set,
        descriptor_count: 1,
        descriptor_type,
        p_buffer_info: Some(&buffers),
        ..Default::default()
    }];
    let pipeline_info = venus::PipelineLayoutCreateInfo {
        set_layout_count: 1,
        p_set_layouts: Some(&layouts),
        ..Default::default()
    };
    let allocate = venus::CommandBufferAllocateInfo {
        command_pool: vulkan.pool,
        command_buffer_count: 1,
        ..Default::default()
    };
    let submit = [venus::SubmitInfo {
        command_buffer_count: 1,
        p_command_buffers: Some(std::slice::from_ref(&commands)),
        ..Default::default()
    }];
    let seqno = vulkan.ring.command(|w| {
        venus::CreateBuffer { device, p_create_info: Some(&info), p_buffer: Some(&buffer) }.encode(ASYNC, w);
        venus::BindBufferMemory2 { device, bind_info_count: 1, p_bind_infos: Some(&bind) }.encode(ASYNC, w);
        let p_set_layout = Some(&layout);
        venus::CreateDescriptorSetLayout { device, p_create_info: Some(&layout_info), p_set_layout }
            .encode(ASYNC, w);
        let p_descriptor_pool = Some(&pool);
        venus::CreateDescriptorPool { device, p_create_info: Some(&pool_info), p_descriptor_pool }
            .encode(ASYNC, w);
        let p_descriptor_sets = Some(std::slice::from_ref(&set));
        venus::AllocateDescriptorSets { device, p_allocate_info: Some(&set_info), p_descriptor_sets }
            .encode(ASYNC, w);
        venus::UpdateDescriptorSets {
            device,
            descriptor_write_count: 1,
            p_descriptor_writes: Some(&writes),
            descriptor_copy_count: 0,
            p_descriptor_copies: None,
        }
        .encode(ASYNC, w);
        let p_pipeline_layout = Some(&pipelines);
        venus::CreatePipelineLayout { device, p_create_info: Some(&pipeline_info), p_pipeline_layout }
            .encode(ASYNC, w);
        let p_command_buffers = Some(std::slice::from_ref(&commands));
        venus::AllocateCommandBuffers { device, p_allocate_info: Some(&allocate), p_command_buffers }
            .encode(ASYNC, w);
        let p_begin_info = Some(&venus::CommandBufferBeginInfo::default());
        venus::BeginCommandBuffer { command_buffer: commands, p_begin_info }.encode(ASYNC, w);
        venus::CmdBindDescriptorSets {
            command_buffer: commands,
            pipeline_bind_point: venus::PipelineBindPoint::COMPUTE,
            layout: pipelines,
            first_set: 0,
            descriptor_set_count: 1,
            p_descriptor_sets: Some(std::slice::from_ref(&set)),
            dynamic_offset_count: 0,
            p_dynamic_offsets: None,
        }
        .encode(ASYNC, w);
        let size = MIB;
        venus::CmdFillBuffer { command_buffer: commands, dst_buffer: buffer, dst_offset: 0, size, data: 7 }
            .encode(ASYNC, w);
        venus::EndCommandBuffer { command_buffer: commands }.encode(ASYNC, w);
        venus::QueueSubmit { queue, submit_count: 1, p_submits: Some(&submit), fence }.encode(ASYNC, w);
        venus::DestroyBuffer { device, buffer }.encode(ASYNC, w);
    })?;
    vulkan.ring.wait(seqno, PATIENCE)
}

fn fence(vulkan: &mut Device) -> Result<venus::Fence> {
    let (device, fence) = (vulkan.device, venus::Fence(vulkan.new_id()));
    let seqno = vulkan.ring.command(|w| {
        let p_create_info = Some(&venus::FenceCreateInfo::default());
        venus::CreateFence { device, p_create_info, p_fence: Some(&fence) }.encode(ASYNC, w);
    })?;
    vulkan.ring.wait(seqno, PATIENCE)?;
    Ok(fence)
}

fn fence_status(vulkan: &mut Device, fence: venus::Fence) -> Result<VkResult> {
    let device = vulkan.device;
    vulkan.query(
        |w| venus::GetFenceStatus { device, fence }.encode(REPLY, w),
        |reply| Ok(venus::GetFenceStatusReply::decode(reply)?.result),
    )
}

const TIGHT: [&str; 2] = ["--host-memory", "64MiB"];

#[test]
fn the_next_call_that_can_tell_says_that_memory_has_run_out() -> Result<()> {
    let daemon = Daemon::start_with(&TIGHT)?;
    let mut vulkan = Device::create(&Arc::new(daemon.guest()?), "unheard")?;
    let fence = fence(&mut vulkan)?;
    vulkan.allocate_unheard(60 * MIB)?;
    let seqno = vulkan.ring.tail();
    vulkan.ring.wait(seqno, PATIENCE)?;
    assert!(matches!(fence_status(&mut vulkan, fence)?.0, -1 | -2));
    // The error is reported once: the program knows it now.
    assert_eq!(fence_status(&mut vulkan, fence)?, VkResult::NOT_READY);
    // A map also reports the error, whatever memory it maps.
    let Ok(memory) = vulkan.allocate(MIB, Source::New)? else { anyhow::bail!("no memory") };
    let placeholder = vulkan.allocate_unheard(60 * MIB)?;
    let seqno = vulkan.ring.tail();
    vulkan.ring.wait(seqno, PATIENCE)?;
    assert!(vulkan.blob(memory, MIB).is_err());
    assert!(vulkan.blob(placeholder, 60 * MIB).is_err());
    assert!(vulkan.blob(memory, MIB).is_ok());
    vulkan.free(placeholder)?;
    assert_eq!(daemon.wait_for_workers(1)?.len(), 1);
    Ok(())
}

#[test]
fn a_submission_that_cannot_run_loses_the_device_and_not_the_ring() -> Result<()> {
    let daemon = Daemon::start_with(&TIGHT)?;
    let guest = Arc::new(daemon.guest()?);
    let mut vulkan = Device::create(&guest, "lost")?;
    let fence = fence(&mut vulkan)?;
    let Ok(whole) = vulkan.allocate(MIB, Source::New)? else { anyhow::bail!("no memory") };
    let blob = vulkan.blob(whole, MIB)?;
    let placeholder = vulkan.allocate_unheard(60 * MIB)?;
    use_unheard(&mut vulkan, placeholder, fence)?;
    let lost = VkResult(-4);
    assert_eq!(fence_status(&mut vulkan, fence)?, lost);
    assert_eq!(fence_status(&mut vulkan, fence)?, lost);
    // No wait is endless, and no error ends the context.
    guest.submit_fenced(vulkan.context, RingIdx(1), &[]).wait(PATIENCE)?;
    assert!(vulkan.ring.status().0 & 2 == 0, "the ring is FATAL");
    vulkan.free(placeholder)?;
    // The mapped memory stays mapped.
    let memory = blob.mapping.as_ref().context("a mapping")?.1.map()?;
    memory.as_volatile_slice().write_slice(&[7; 64], 0)?;
    // A device of another program is not affected.
    let mut other = Device::create(&guest, "well")?;
    let Ok(memory) = other.allocate(4096, Source::New)? else { anyhow::bail!("no memory") };
    let blob = other.blob(memory, 4096)?;
    other.fill(memory, 4096, 0x0101_0101)?;
    let mut bytes = vec![0; 4096];
    blob.mapping.as_ref().context("a mapping")?.1.map()?.as_volatile_slice().read_slice(&mut bytes, 0)?;
    ensure_filled(&bytes, 0x0101_0101)?;
    assert_eq!(daemon.wait_for_workers(2)?.len(), 2);
    Ok(())
}

#[test]
fn a_fence_that_the_driver_polls_in_memory_tells_of_the_loss() -> Result<()> {
    let daemon = Daemon::start_with(&TIGHT)?;
    let guest = Arc::new(daemon.guest()?);
    let mut vulkan = Device::create(&guest, "polled")?;
    let fence = fence(&mut vulkan)?;
    // Mesa before 26.2 puts a command buffer that stores VK_SUCCESS behind the last one of a submission.
    let Ok(slot) = vulkan.allocate(4096, Source::New)? else { anyhow::bail!("no memory") };
    let blob = vulkan.blob(slot, 4096)?;
    let memory = blob.mapping.as_ref().context("a mapping")?.1.map()?;
    memory.as_volatile_slice().write_slice(&[1; 8], 0)?;
    let (buffer, told) = (venus::Buffer(vulkan.new_id()), venus::CommandBuffer(vulkan.new_id()));
    let spoilt = venus::CommandBuffer(vulkan.new_id());
    let placeholder = vulkan.allocate_unheard(60 * MIB)?;
    let (device, queue) = (vulkan.device, vulkan.queue);
    let broken = venus::Buffer(vulkan.new_id());
    let info = venus::BufferCreateInfo {
        size: 4096,
        usage: venus::BufferUsageFlags::TRANSFER_DST,
        ..Default::default()
    };
    let binds = [
        venus::BindBufferMemoryInfo { buffer, memory: slot, ..Default::default() },
        venus::BindBufferMemoryInfo { buffer: broken, memory: placeholder, ..Default::default() },
    ];
    let both = [told, spoilt];
    let allocate = venus::CommandBufferAllocateInfo {
        command_pool: vulkan.pool,
        command_buffer_count: 2,
        ..Default::default()
    };
    let order = [spoilt, told];
    let submit = [venus::SubmitInfo {
        command_buffer_count: 2,
        p_command_buffers: Some(&order),
        ..Default::default()
    }];
    let seqno = vulkan.ring.command(|w| {
        for (buffer, bind) in [buffer, broken].iter().zip(&binds) {
            venus::CreateBuffer { device, p_create_info: Some(&info), p_buffer: Some(buffer) }
                .encode(ASYNC, w);
            let p_bind_infos = Some(std::slice::from_ref(bind));
            venus::BindBufferMemory2 { device, bind_info_count: 1, p_bind_infos }.encode(ASYNC, w);
        }
        let p_command_buffers = Some(&both[..]);
        venus::AllocateCommandBuffers { device, p_allocate_info: Some(&allocate), p_command_buffers }
            .encode(ASYNC, w);
        for (command_buffer, dst_buffer, data) in [(told, buffer, 0), (spoilt, broken, 7)] {
            let p_begin_info = Some(&venus::CommandBufferBeginInfo::default());
            venus::BeginCommandBuffer { command_buffer, p_begin_info }.encode(ASYNC, w);
            venus::CmdFillBuffer { command_buffer, dst_buffer, dst_offset: 0, size: 4, data }
                .encode(ASYNC, w);
            venus::EndCommandBuffer { command_buffer }.encode(ASYNC, w);
        }
        venus::QueueSubmit { queue, submit_count: 1, p_submits: Some(&submit), fence }.encode(ASYNC, w);
    })?;
    vulkan.ring.wait(seqno, PATIENCE)?;
    let mut status = [0; 8];
    let told = || {
        let _ = memory.as_volatile_slice().read_slice(&mut status, 0);
        i32::from_le_bytes([status[0], status[1], status[2], status[3]]) != 0x0101_0101
    };
    assert!(eventually(PATIENCE, told));
    assert_eq!(i32::from_le_bytes([status[0], status[1], status[2], status[3]]), -4);
    assert_eq!(status[4..], [1; 4]);
    assert_eq!(daemon.wait_for_workers(1)?.len(), 1);
    Ok(())
}

#[test]
fn without_a_fence_that_could_tell_the_context_ends() -> Result<()> {
    let daemon = Daemon::start_with(&TIGHT)?;
    let mut vulkan = Device::create(&Arc::new(daemon.guest()?), "fenceless")?;
    let placeholder = vulkan.allocate_unheard(60 * MIB)?;
    assert!(use_unheard(&mut vulkan, placeholder, venus::Fence(0)).is_err());
    assert!(eventually(PATIENCE, || vulkan.ring.status().0 & 2 != 0), "wrong results would look right");
    Ok(())
}

#[test]
fn objects_and_shaders_beyond_their_limits_are_not_made() -> Result<()> {
    let daemon = Daemon::start_with(&["--max-objects", "500", "--shader-memory", "1MiB"])?;
    let guest = Arc::new(daemon.guest()?);
    let mut vulkan = Device::create(&guest, "objects")?;
    let device = vulkan.device;
    let create = |vulkan: &mut Device| {
        let event = venus::Event(vulkan.new_id());
        let p_create_info = Some(&venus::EventCreateInfo::default());
        let result = vulkan.query(
            |w| venus::CreateEvent { device, p_create_info, p_event: Some(&event) }.encode(REPLY, w),
            |reply| Ok(venus::CreateEventReply::decode(reply)?.result),
        );
        result.map(|result| (event, result))
    };
    let mut made = Vec::new();
    let refused = loop {
        match create(&mut vulkan)? {
            (event, VkResult::SUCCESS) => made.push(event),
            (event, error) => break (event, error),
        }
        ensure!(made.len() < 1000, "no limit");
    };
    assert_eq!(refused.1, VkResult(-1));
    assert!((450..500).contains(&made.len()), "{}", made.len());
    log_says(&daemon, "\"max-objects\"")?;
    // The id of an event that was not made can be destroyed as well.
    for event in [refused.0, made[0]] {
        let seqno = vulkan.ring.command(|w| venus::DestroyEvent { device, event }.encode(ASYNC, w))?;
        vulkan.ring.wait(seqno, PATIENCE)?;
    }
    assert_eq!(create(&mut vulkan)?.1, VkResult::SUCCESS);
    drop(vulkan);
    let mut vulkan = Device::create(&guest, "shaders")?;
    let data = vec![0x5a; 64 << 10];
    let mut made = 0;
    loop {
        let cache = venus::PipelineCache(vulkan.new_id());
        let info = venus::PipelineCacheCreateInfo {
            initial_data_size: data.len() as u64,
            p_initial_data: Some(&data),
            ..Default::default()
        };
        let create =
            venus::CreatePipelineCache { device, p_create_info: Some(&info), p_pipeline_cache: Some(&cache) };
        let result = vulkan.query(
            |w| create.encode(REPLY, w),
            |reply| Ok(venus::CreatePipelineCacheReply::decode(reply)?.result),
        )?;
        if result != VkResult::SUCCESS {
            break;
        }
        made += 1;
        ensure!(made < 100, "no limit");
    }
    assert!((8..=16).contains(&made), "{made}");
    log_says(&daemon, "\"shader-memory\"")?;
    Ok(())
}

#[test]
fn maps_resources_and_contexts_are_shared() -> Result<()> {
    let options = ["--max-maps", "64", "--max-contexts", "16", "--max-resources", "200"];
    let daemon = Daemon::start_with(&options)?;
    let guest = Arc::new(daemon.guest()?);
    let contexts: Vec<_> = (0..20).map_while(|_| guest.create_context("hog").ok()).collect();
    assert_eq!(contexts.len(), 14);
    log_says(&daemon, "max-contexts")?;
    let blobs: Vec<_> = (0..100).map_while(|_| guest.create_shmem(contexts[0], 4096).ok()).collect();
    assert_eq!(blobs.len(), 56);
    log_says(&daemon, "max-maps")?;
    let next = guest.create_context("next")?;
    assert!(guest.create_shmem(next, 4096).is_ok());
    let unmapped = |context| guest.create_blob(context, BlobId(0), BlobFlags::empty(), 4096);
    let more = (0..300).map_while(|_| unmapped(contexts[0]).ok()).count();
    assert_eq!(56 + more, 175);
    log_says(&daemon, "max-resources")?;
    assert!(unmapped(next).is_ok());
    Ok(())
}

/// A queue that is full of requests that wait for a worker takes no request that could end the worker: each task of the VM that uses the GPU would
/// hang.
#[test]
fn a_program_whose_requests_fill_the_queue_is_ended_before_it_is_full() -> Result<()> {
    for vmm in [Vmm::Qemu, Vmm::Crosvm] {
        let daemon = Daemon::start()?;
        let options = Options { control_size: 256, ..Options::of(vmm) };
        let guest = Arc::new(Gpu::new(Session::connect(&daemon.socket(), options)?));
        let mut honest = Device::create(&guest, "honest")?;
        let mut hog = timeline::device(&guest, "hog")?;
        let descriptors = if vmm == Vmm::Qemu { 1 } else { 2 };
        // Its ring waits for a value that is never signalled, and the virtqueue's stream for the ring.
        timeline::wait_on_ring(&mut hog)?;
        let wait = hog.wait_for_ring_on_virtqueue();
        let submit = |_| guest.submit_fenced(hog.context, RingIdx(0), &wait);
        let most = 7 * 256 / 8 / descriptors;
        let open: Vec<_> = (0..most).map(submit).collect();
        honest.allocate(MIB, Source::New)?.map_err(|result| anyhow!("{result:?}"))?;
        ensure!(!open[0].arrives_within(Duration::ZERO), "{}", daemon.log());
        let one_more = submit(0);
        for fence in open {
            fence.wait(PATIENCE).with_context(|| daemon.log())?;
        }
        one_more.wait(PATIENCE).with_context(|| daemon.log())?;
        log_says(&daemon, "open_requests")?;
        honest.allocate(MIB, Source::New)?.map_err(|result| anyhow!("{result:?}"))?;
        guest.destroy_context(hog.context)?;
    }
    Ok(())
}

/// QEMU aborts when a VM has more than 512 memory regions, including those of other devices.
#[test]
fn mappings_leave_room_for_the_memory_regions_of_other_devices() -> Result<()> {
    let daemon = Daemon::start()?;
    let mut guest = daemon.guest()?;
    guest.session.plug(300)?;
    let maps = |guest: &Gpu, name: &str| -> Result<usize> {
        let context = guest.create_context(name)?;
        Ok((0..500).map_while(|_| guest.create_shmem(context, 4096).ok()).count())
    };
    // The first program has seven eighths of 199, the second seven eighths of the rest.
    let (first, second) = (maps(&guest, "first")?, maps(&guest, "second")?);
    ensure!((170..=175).contains(&first) && (20..=22).contains(&second), "{first} and {second}");
    log_says(&daemon, "max-maps")?;
    let says = || daemon.log().contains("memory regions of 500");
    ensure!(eventually(PATIENCE, says), "{}", daemon.log());
    Ok(())
}

/// Each resource of a guest is a file, and so is each of its threads' channels and each region of its memory.
#[test]
fn a_hoarder_of_small_blobs_leaves_files_to_others_and_to_the_session() -> Result<()> {
    let daemon = Daemon::start_with_open_files(4096)?;
    let mut guest = daemon.guest()?;
    let first = small_blobs(&guest, "hoarder")?;
    log_says(&daemon, "max-resources")?;
    // Each program leaves a share to the next.
    let second = small_blobs(&guest, "another")?;
    ensure!((500..4096).contains(&first) && second > 50, "{first} and {second} blobs");
    guest.session.plug(400).with_context(|| daemon.log())?;
    let guest = Arc::new(guest);
    let mut vulkan = Device::create(&guest, "a program")?;
    let memory = vulkan.allocate(1 << 16, Source::New)?.map_err(|result| anyhow!("{result:?}"))?;
    vulkan.blob(memory, 1 << 16).with_context(|| daemon.log())?;
    ensure!(!guest.session.is_over(), "{}", daemon.log());
    Ok(())
}

/// A submission that waits for the scheduler keeps its command. Each of these takes more than a MiB.
#[test]
fn what_submissions_in_the_line_keep_is_counted_for_the_whole_context() -> Result<()> {
    let broker = Broker::start("", &[("a", "")])?;
    let gpu = Arc::new(Gpu::new(Session::connect(&broker.path("a"), Options::default())?));
    let mut vulkan = timeline::device(&gpu, "hoarder")?;
    timeline::wait_before_signal(&mut vulkan)?;
    let device = broker.device("a")?.as_raw_nonzero().get().unsigned_abs();
    let worker =
        workers(device)?.first().and_then(|worker| Pid::from_raw(*worker as i32)).context("no worker")?;
    let payload = large_submission(vulkan.queue);
    let before = Holdings::of(worker)?.anonymous_kib;
    let (mut submitted, mut grown) = (0, 0);
    while submitted < 1000 && !broker.log().contains("arena_bytes") {
        gpu.submit_fenced(vulkan.context, RingIdx(0), &payload).wait(PATIENCE)?;
        submitted += 1;
        grown = Holdings::of(worker).map_or(grown, |now| grown.max(now.anonymous_kib.saturating_sub(before)));
    }
    println!("{submitted} submissions, the worker has grown by {} MiB", grown >> 10);
    ensure!(submitted > 100 && submitted < 1000, "{submitted} submissions\n{}", broker.log());
    ensure!(grown < 600 << 10, "{grown} KiB");
    // The limit was the context's: another program is served.
    Device::create(&gpu, "next").map(drop).with_context(|| broker.log())
}
