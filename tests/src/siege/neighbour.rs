//! A VM that only computes: its program always has work for the GPU.

use crate::broker::Broker;
use crate::frontend::{Options, Session};
use crate::guest::device::{Device, Source};
use crate::guest::ring::ASYNC;
use crate::guest::{Answer, Gpu, PATIENCE};
use anyhow::{Context, Result, anyhow};
use protocol::ids::RingIdx;
use protocol::venus::generated as venus;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bytes that are filled at a time.
pub(super) const SIZE: u64 = 16 << 20;
/// The least time of a submission, which has as many fills as this time needs, so that the GPU is never without work.
const SUBMISSION_MIN: Duration = Duration::from_millis(2);
const FILLS_MAX: u32 = 4096;
/// Submissions that are not complete at any time.
const IN_FLIGHT: usize = 4;

/// The VM's program.
pub(super) struct Neighbour {
    done: Arc<AtomicU64>,
    longest: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<()>>,
}

impl Neighbour {
    /// Starts the program. Returns when its first submission is complete.
    ///
    /// # Errors
    /// The device refuses an object of the program's.
    pub(super) fn start(broker: &Broker, vm: &str) -> Result<Self> {
        let gpu = Arc::new(Gpu::new(Session::connect(&broker.path(vm), Options::default())?));
        let mut device = Device::create(&gpu, vm)?;
        let memory = device.allocate(SIZE, Source::New)?.map_err(|result| anyhow!("{result:?}"))?;
        let work = Work::of_some_time(&mut device, memory)?;
        let (done, longest) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let stop = Arc::new(AtomicBool::new(false));
        let (counted, gap, stopped) = (Arc::clone(&done), Arc::clone(&longest), Arc::clone(&stop));
        let thread = std::thread::spawn(move || compute(device, &work, &counted, &gap, &stopped));
        Ok(Self { done, longest, stop, thread })
    }

    /// Submissions that are complete.
    pub(super) fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// The longest time between two submissions' ends, since [`Self::forget_gap`].
    pub(super) fn longest_gap(&self) -> Duration {
        Duration::from_micros(self.longest.load(Ordering::Relaxed))
    }

    /// Forgets the longest gap.
    pub(super) fn forget_gap(&self) {
        self.longest.store(0, Ordering::Relaxed);
    }

    /// Ends the program.
    ///
    /// # Errors
    /// A step of the program failed.
    pub(super) fn end(self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().ok().context("the neighbour's thread panicked")?
    }
}

/// The work that each submission executes.
pub(super) struct Work {
    commands: venus::CommandBuffer,
}

impl Work {
    /// Records as many fills as a submission needs to take some time.
    fn of_some_time(device: &mut Device, memory: venus::DeviceMemory) -> Result<Self> {
        let buffer = device.bound(memory, SIZE)?;
        let mut fills = 1;
        loop {
            let work = Self::record(device, buffer, fills)?;
            let start = Instant::now();
            work.submit(device)?.wait(PATIENCE)?;
            if start.elapsed() >= SUBMISSION_MIN || fills >= FILLS_MAX {
                return Ok(work);
            }
            fills *= 2;
        }
    }

    /// Records `fills` fills.
    ///
    /// # Errors
    /// The device refuses them.
    pub(super) fn record(device: &mut Device, dst_buffer: venus::Buffer, fills: u32) -> Result<Self> {
        let commands = venus::CommandBuffer(device.new_id());
        let allocate = venus::CommandBufferAllocateInfo {
            command_pool: device.pool,
            command_buffer_count: 1,
            ..Default::default()
        };
        let begin = venus::CommandBufferBeginInfo {
            flags: venus::CommandBufferUsageFlags::SIMULTANEOUS_USE,
            ..Default::default()
        };
        let of = device.device;
        let seqno = device.ring.command(|w| {
            let p_command_buffers = Some(std::slice::from_ref(&commands));
            venus::AllocateCommandBuffers { device: of, p_allocate_info: Some(&allocate), p_command_buffers }
                .encode(ASYNC, w);
            venus::BeginCommandBuffer { command_buffer: commands, p_begin_info: Some(&begin) }
                .encode(ASYNC, w);
            for _ in 0..fills {
                let (command_buffer, dst_offset) = (commands, 0);
                venus::CmdFillBuffer { command_buffer, dst_buffer, dst_offset, size: SIZE, data: 1 }
                    .encode(ASYNC, w);
            }
            venus::EndCommandBuffer { command_buffer: commands }.encode(ASYNC, w);
        })?;
        device.ring.wait(seqno, PATIENCE)?;
        Ok(Self { commands })
    }

    /// Submits the work; the answer comes when it is complete.
    ///
    /// # Errors
    /// The device does not answer.
    pub(super) fn submit(&self, device: &mut Device) -> Result<Answer> {
        let submit = [venus::SubmitInfo {
            command_buffer_count: 1,
            p_command_buffers: Some(std::slice::from_ref(&self.commands)),
            ..Default::default()
        }];
        let queue = device.queue;
        let seqno = device.ring.command(|w| {
            venus::QueueSubmit { queue, submit_count: 1, p_submits: Some(&submit), fence: venus::Fence(0) }
                .encode(ASYNC, w);
        })?;
        device.ring.wait(seqno, PATIENCE)?;
        Ok(device.gpu().submit_fenced(device.context, RingIdx(1), &[]))
    }
}

fn compute(
    mut device: Device,
    work: &Work,
    done: &AtomicU64,
    longest: &AtomicU64,
    stop: &AtomicBool,
) -> Result<()> {
    let mut pending = VecDeque::new();
    let mut last = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        while pending.len() < IN_FLIGHT {
            pending.push_back(work.submit(&mut device)?);
        }
        if let Some(first) = pending.pop_front() {
            first.wait(PATIENCE)?;
        }
        longest.fetch_max(last.elapsed().as_micros() as u64, Ordering::Relaxed);
        last = Instant::now();
        done.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}
