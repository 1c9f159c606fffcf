//! Tests that the specification's promises about submissions hold while they wait for the scheduler: other programs go on, later commands are
//! executed, fences and semaphores report the true state, and the destruction of their objects does no harm.

use anyhow::{Context, Result, anyhow, ensure};
use protocol::cursor::{Arena, Reader};
use protocol::ids::RingIdx;
use protocol::venus::generated as venus;
use protocol::venus::generated::ChainStruct;
use rustix::process::{Pid, Signal, kill_process};
use std::sync::Arc;
use std::time::Duration;
use tests::broker::Broker;
use tests::daemon::eventually;
use tests::frontend::{Options, Session};
use tests::guest::device::{Device, Source, ensure_filled};
use tests::guest::ring::{ASYNC, REPLY};
use tests::guest::{Gpu, PATIENCE};
use vm_memory::{Bytes, VolatileMemory};

const SIZE: u64 = 4096;

/// A broker with two VMs.
struct Stand {
    // In the order in which they end.
    first: Arc<Gpu>,
    second: Arc<Gpu>,
    broker: Broker,
}

impl Stand {
    fn start() -> Result<Self> {
        let broker = Broker::start("", &[("first", ""), ("second", "")])?;
        let guest = |vm| {
            Session::connect(&broker.path(vm), Options::default()).map(|session| Arc::new(Gpu::new(session)))
        };
        Ok(Self { first: guest("first")?, second: guest("second")?, broker })
    }
}

fn device(gpu: &Arc<Gpu>, name: &str) -> Result<Device> {
    let features =
        venus::PhysicalDeviceTimelineSemaphoreFeatures { timeline_semaphore: 1, ..Default::default() };
    Device::create_with(gpu, name, &[ChainStruct::PhysicalDeviceTimelineSemaphoreFeatures(&features)])
}

fn memory(device: &mut Device) -> Result<venus::DeviceMemory> {
    device.allocate(SIZE, Source::New)?.map_err(|result| anyhow!("{result:?}"))
}

/// Checks that a device computes: it fills memory with a word that can be read.
fn works(device: &mut Device, word: u32) -> Result<()> {
    let memory = memory(device)?;
    device.fill(memory, SIZE, word)?;
    ensure_filled(&bytes(device, memory)?, word)
}

/// Returns the contents of exported memory.
fn bytes(device: &Device, memory: venus::DeviceMemory) -> Result<Vec<u8>> {
    let blob = device.blob(memory, SIZE)?;
    let (_, map) = blob.mapping.as_ref().context("a mapping")?;
    let region = map.map()?;
    let mut bytes = vec![0; SIZE as usize];
    region.as_volatile_slice().read_slice(&mut bytes, 0)?;
    Ok(bytes)
}

/// A submission that waits for a value of a timeline, with a fence and work.
struct Waiting {
    semaphore: venus::Semaphore,
    fence: venus::Fence,
    buffer: venus::Buffer,
    memory: venus::DeviceMemory,
    commands: venus::CommandBuffer,
}

const WORD: u32 = 0x5eed_5eed;

impl Waiting {
    fn submit(d: &mut Device) -> Result<Self> {
        let memory = memory(d)?;
        let mut id = || d.new_id();
        let (semaphore, fence) = (venus::Semaphore(id()), venus::Fence(id()));
        let (buffer, commands) = (venus::Buffer(id()), venus::CommandBuffer(id()));
        let (device, queue, pool) = (d.device, d.queue, d.pool);
        let ty = venus::SemaphoreTypeCreateInfo {
            semaphore_type: venus::SemaphoreType::TIMELINE,
            ..Default::default()
        };
        let chain = [ChainStruct::SemaphoreTypeCreateInfo(&ty)];
        let semaphore_info = venus::SemaphoreCreateInfo { p_next: &chain, ..Default::default() };
        let usage = venus::BufferUsageFlags::TRANSFER_DST;
        let buffer_info = venus::BufferCreateInfo { size: SIZE, usage, ..Default::default() };
        let bind = [venus::BindBufferMemoryInfo { buffer, memory, ..Default::default() }];
        let allocate = venus::CommandBufferAllocateInfo {
            command_pool: pool,
            command_buffer_count: 1,
            ..Default::default()
        };
        let values = venus::TimelineSemaphoreSubmitInfo {
            wait_semaphore_value_count: 1,
            p_wait_semaphore_values: Some(&[1]),
            ..Default::default()
        };
        let chain = [ChainStruct::TimelineSemaphoreSubmitInfo(&values)];
        let submit = [venus::SubmitInfo {
            p_next: &chain,
            wait_semaphore_count: 1,
            p_wait_semaphores: Some(std::slice::from_ref(&semaphore)),
            p_wait_dst_stage_mask: Some(&[venus::PipelineStageFlags::ALL_COMMANDS]),
            command_buffer_count: 1,
            p_command_buffers: Some(std::slice::from_ref(&commands)),
            ..Default::default()
        }];
        let seqno = d.ring.command(|w| {
            venus::CreateSemaphore {
                device,
                p_create_info: Some(&semaphore_info),
                p_semaphore: Some(&semaphore),
            }
            .encode(ASYNC, w);
            let p_create_info = Some(&venus::FenceCreateInfo::default());
            venus::CreateFence { device, p_create_info, p_fence: Some(&fence) }.encode(ASYNC, w);
            venus::CreateBuffer { device, p_create_info: Some(&buffer_info), p_buffer: Some(&buffer) }
                .encode(ASYNC, w);
            venus::BindBufferMemory2 { device, bind_info_count: 1, p_bind_infos: Some(&bind) }
                .encode(ASYNC, w);
            let p_command_buffers = Some(std::slice::from_ref(&commands));
            venus::AllocateCommandBuffers { device, p_allocate_info: Some(&allocate), p_command_buffers }
                .encode(ASYNC, w);
            let p_begin_info = Some(&venus::CommandBufferBeginInfo::default());
            venus::BeginCommandBuffer { command_buffer: commands, p_begin_info }.encode(ASYNC, w);
            let (dst_buffer, size) = (buffer, SIZE);
            venus::CmdFillBuffer { command_buffer: commands, dst_buffer, dst_offset: 0, size, data: WORD }
                .encode(ASYNC, w);
            venus::EndCommandBuffer { command_buffer: commands }.encode(ASYNC, w);
            venus::QueueSubmit { queue, submit_count: 1, p_submits: Some(&submit), fence }.encode(ASYNC, w);
        })?;
        d.ring.wait(seqno, PATIENCE)?;
        Ok(Self { semaphore, fence, buffer, memory, commands })
    }

    fn signal(&self, d: &mut Device) -> Result<()> {
        let (device, semaphore) = (d.device, self.semaphore);
        let info = venus::SemaphoreSignalInfo { semaphore, value: 1, ..Default::default() };
        d.call(|w| venus::SignalSemaphore { device, p_signal_info: Some(&info) }.encode(REPLY, w))
    }

    /// Returns the fence's status, and the result of a wait of a tenth of a second for it.
    fn fence_says(&self, d: &mut Device) -> Result<(venus::VkResult, venus::VkResult)> {
        let (device, fence, arena) = (d.device, self.fence, Arena::new(1 << 16));
        let reply = d.ring.query(|w| venus::GetFenceStatus { device, fence }.encode(REPLY, w))?;
        let status = venus::GetFenceStatusReply::decode(&mut Reader::new(&reply, &arena))?.result;
        let reply = d.ring.query(|w| {
            let (fences, timeout) = ([fence], 100_000_000);
            venus::WaitForFences { device, fence_count: 1, p_fences: Some(&fences), wait_all: 1, timeout }
                .encode(REPLY, w);
        })?;
        Ok((status, venus::WaitForFencesReply::decode(&mut Reader::new(&reply, &arena))?.result))
    }

    fn word(&self, d: &Device) -> Result<u32> {
        let bytes = bytes(d, self.memory)?;
        Ok(u32::from_le_bytes(*bytes.first_chunk().context("four bytes")?))
    }
}

#[test]
fn who_waits_for_what_comes_later_holds_nobody_up_and_is_served_then() -> Result<()> {
    let stand = Stand::start()?;
    let mut one = device(&stand.first, "waits")?;
    let waiting = Waiting::submit(&mut one)?;
    let fenced = one.gpu().submit_fenced(one.context, RingIdx(1), &[]);
    // Commands of the same ring go on, and so do all other programs.
    let says = waiting.fence_says(&mut one)?;
    ensure!(says == (venus::VkResult::NOT_READY, venus::VkResult::TIMEOUT), "{says:?}");
    works(&mut device(&stand.first, "same VM")?, 7)?;
    works(&mut device(&stand.second, "other VM")?, 8)?;
    ensure!(!fenced.arrives_within(Duration::from_millis(500)), "it did not wait\n{}", stand.broker.log());
    waiting.signal(&mut one)?;
    ensure!(fenced.arrives_within(PATIENCE), "it is never dispatched\n{}", stand.broker.log());
    let says = waiting.fence_says(&mut one)?;
    ensure!(says == (venus::VkResult::SUCCESS, venus::VkResult::SUCCESS), "{says:?}");
    ensure!(waiting.word(&one)? == WORD, "{:#x}", waiting.word(&one)?);
    works(&mut one, 9)
}

#[test]
fn a_queue_does_not_wait_for_what_waits_on_another() -> Result<()> {
    let stand = Stand::start()?;
    let mut one = device(&stand.first, "two queues")?;
    let waiting = Waiting::submit(&mut one)?;
    // The host has one queue; this is the same queue with another id and another timeline.
    let (device, pool, other) = (one.device, one.pool, venus::Queue(one.new_id()));
    let timeline = venus::DeviceQueueTimelineInfoMESA { ring_idx: 2, ..Default::default() };
    let chain = [ChainStruct::DeviceQueueTimelineInfoMESA(&timeline)];
    let queue_info = venus::DeviceQueueInfo2 { p_next: &chain, ..Default::default() };
    let (fence, commands) = (venus::Fence(one.new_id()), venus::CommandBuffer(one.new_id()));
    let allocate = venus::CommandBufferAllocateInfo {
        command_pool: pool,
        command_buffer_count: 1,
        ..Default::default()
    };
    let buffers = Some(std::slice::from_ref(&commands));
    let submit =
        [venus::SubmitInfo { command_buffer_count: 1, p_command_buffers: buffers, ..Default::default() }];
    one.ring.command(|w| {
        venus::GetDeviceQueue2 { device, p_queue_info: Some(&queue_info), p_queue: Some(&other) }
            .encode(ASYNC, w);
        let p_create_info = Some(&venus::FenceCreateInfo::default());
        venus::CreateFence { device, p_create_info, p_fence: Some(&fence) }.encode(ASYNC, w);
        let p_allocate_info = Some(&allocate);
        venus::AllocateCommandBuffers { device, p_allocate_info, p_command_buffers: buffers }
            .encode(ASYNC, w);
        let p_begin_info = Some(&venus::CommandBufferBeginInfo::default());
        venus::BeginCommandBuffer { command_buffer: commands, p_begin_info }.encode(ASYNC, w);
        venus::EndCommandBuffer { command_buffer: commands }.encode(ASYNC, w);
        venus::QueueSubmit { queue: other, submit_count: 1, p_submits: Some(&submit), fence }
            .encode(ASYNC, w);
    })?;
    let (fences, timeout) = ([fence], u64::MAX);
    one.call(|w| {
        venus::WaitForFences { device, fence_count: 1, p_fences: Some(&fences), wait_all: 1, timeout }
            .encode(REPLY, w);
    })?;
    // The earlier submission, to the other queue, still waits.
    one.call(|w| venus::ResetFences { device, fence_count: 1, p_fences: Some(&fences) }.encode(REPLY, w))?;
    waiting.signal(&mut one)?;
    one.gpu().submit_fenced(one.context, RingIdx(1), &[]).wait(PATIENCE)?;
    ensure!(waiting.word(&one)? == WORD, "its work is lost");
    works(&mut one, 9)
}

#[test]
fn what_a_waiting_submission_uses_is_destroyed_behind_it() -> Result<()> {
    let stand = Stand::start()?;
    let mut one = device(&stand.first, "destroys")?;
    let waiting = Waiting::submit(&mut one)?;
    let (device, buffer, pool) = (one.device, waiting.buffer, one.pool);
    let seqno = one.ring.command(|w| {
        venus::DestroyBuffer { device, buffer }.encode(ASYNC, w);
        let (command_pool, commands) = (pool, [waiting.commands]);
        let p_command_buffers = Some(&commands[..]);
        venus::FreeCommandBuffers { device, command_pool, command_buffer_count: 1, p_command_buffers }
            .encode(ASYNC, w);
    })?;
    one.ring.wait(seqno, PATIENCE)?;
    waiting.signal(&mut one)?;
    one.gpu().submit_fenced(one.context, RingIdx(1), &[]).wait(PATIENCE)?;
    ensure!(waiting.word(&one)? == WORD, "its work is lost");
    works(&mut one, 9)
}

#[test]
fn contexts_end_with_submissions_that_wait() -> Result<()> {
    let stand = Stand::start()?;
    for kill in [false, true] {
        let mut one = device(&stand.first, "ends")?;
        Waiting::submit(&mut one)?;
        let fenced = one.gpu().submit_fenced(one.context, RingIdx(1), &[]);
        if kill {
            let context =
                stand.broker.vm("first")?["contexts"][0]["context"].as_u64().context("its context")?;
            stand.broker.say(&["kill", &format!("first/{context}")])?;
        } else {
            stand.first.destroy_context(one.context)?;
        }
        ensure!(fenced.arrives_within(PATIENCE), "a fence is not answered\n{}", stand.broker.log());
        let gone =
            || stand.broker.vm("first").is_ok_and(|vm| vm["contexts"].as_array().is_some_and(Vec::is_empty));
        ensure!(eventually(PATIENCE, gone), "{}", stand.broker.status()?);
        if kill {
            stand.first.destroy_context(one.context)?;
        }
        works(&mut device(&stand.second, "other")?, 3)?;
    }
    Ok(())
}

#[test]
fn a_device_process_that_dies_takes_its_contexts_along_and_leaves_others_their_gpu() -> Result<()> {
    let stand = Stand::start()?;
    let mut one = device(&stand.first, "dies")?;
    Waiting::submit(&mut one)?;
    let mut other = device(&stand.second, "lives")?;
    let pid: Pid = stand.broker.device("first")?;
    kill_process(pid, Signal::KILL)?;
    works(&mut other, 11)?;
    ensure!(eventually(PATIENCE, || stand.broker.listens("first")), "{}", stand.broker.log());
    works(&mut other, 12)
}
