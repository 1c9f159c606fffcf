//! A VM that does nobody any harm: its program always has work for the GPU.

use crate::broker::Broker;
use crate::frontend::{Options, Session};
use crate::guest::device::{Device, Source};
use crate::guest::ring::ASYNC;
use crate::guest::{Gpu, PATIENCE};
use anyhow::{Context, Result, anyhow};
use protocol::ids::RingIdx;
use protocol::venus::generated as venus;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bytes that each submission fills: some milliseconds of a software driver's time.
const SIZE: u64 = 16 << 20;
/// Submissions that are not complete at any time.
const IN_FLIGHT: usize = 4;

/// The VM's program.
pub struct Neighbour {
    done: Arc<AtomicU64>,
    longest: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<()>>,
}

impl Neighbour {
    /// Starts it. Returns when its first submission is complete.
    ///
    /// # Errors
    /// The device refuses what it makes.
    pub fn start(broker: &Broker, vm: &str) -> Result<Self> {
        let gpu = Arc::new(Gpu::new(Session::connect(&broker.path(vm), Options::default())?));
        let mut device = Device::create(&gpu, vm)?;
        let memory = device.allocate(SIZE, Source::New)?.map_err(|result| anyhow!("{result:?}"))?;
        let buffer = device.bound(memory, SIZE)?;
        submit(&mut device, buffer)?;
        device.gpu().submit_fenced(device.context, RingIdx(1), &[]).wait(PATIENCE)?;
        let (done, longest) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let stop = Arc::new(AtomicBool::new(false));
        let (counted, gap, stopped) = (Arc::clone(&done), Arc::clone(&longest), Arc::clone(&stop));
        let thread = std::thread::spawn(move || compute(device, buffer, &counted, &gap, &stopped));
        Ok(Self { done, longest, stop, thread })
    }

    /// Submissions that are complete.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// The longest time between two submissions' ends, since it was forgotten.
    pub fn longest_gap(&self) -> Duration {
        Duration::from_micros(self.longest.load(Ordering::Relaxed))
    }

    /// Forgets it.
    pub fn forget_gap(&self) {
        self.longest.store(0, Ordering::Relaxed);
    }

    /// Ends it.
    ///
    /// # Errors
    /// Something that it did failed.
    pub fn end(self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().ok().context("the neighbour's thread panicked")?
    }
}

fn submit(device: &mut Device, dst_buffer: venus::Buffer) -> Result<()> {
    device.submit(|command_buffer, w| {
        venus::CmdFillBuffer { command_buffer, dst_buffer, dst_offset: 0, size: SIZE, data: 1 }
            .encode(ASYNC, w);
    })
}

fn compute(
    mut device: Device,
    buffer: venus::Buffer,
    done: &AtomicU64,
    longest: &AtomicU64,
    stop: &AtomicBool,
) -> Result<()> {
    let mut pending = VecDeque::new();
    let mut last = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        while pending.len() < IN_FLIGHT {
            submit(&mut device, buffer)?;
            pending.push_back(device.gpu().submit_fenced(device.context, RingIdx(1), &[]));
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
