//! Submissions that have no fence: all waits that depend on their end see the end.

use anyhow::{Context, Result, anyhow, ensure};
use protocol::cursor::Writer;
use protocol::ids::RingIdx;
use protocol::venus::generated as venus;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tests::broker::Broker;
use tests::daemon::{Daemon, eventually};
use tests::frontend::{Options, Session};
use tests::guest::device::{Device, Source};
use tests::guest::ring::{ASYNC, REPLY};
use tests::guest::{Gpu, PATIENCE};
use vm_memory::{Bytes, VolatileMemory};

const SIZE: u64 = 4096;

/// A device, and memory that its queue writes.
struct Stand {
    device: Device,
    memory: venus::DeviceMemory,
    buffer: venus::Buffer,
    words: u64,
}

impl Stand {
    fn new(gpu: &Arc<Gpu>, name: &str) -> Result<Self> {
        let mut device = Device::create(gpu, name)?;
        let memory = device.allocate(SIZE, Source::New)?.map_err(|result| anyhow!("{result:?}"))?;
        let buffer = device.bound(memory, SIZE)?;
        Ok(Self { device, memory, buffer, words: 0 })
    }

    /// Submits `count` writes; each writes the next word.
    fn write(&mut self, count: u64) -> Result<()> {
        for _ in 0..count {
            let (dst_buffer, at) = (self.buffer, self.words % (SIZE / 4));
            let (dst_offset, data) = (at * 4, self.words as u32);
            self.device.submit(|command_buffer, w| {
                venus::CmdFillBuffer { command_buffer, dst_buffer, dst_offset, size: 4, data }
                    .encode(ASYNC, w);
            })?;
            self.words += 1;
        }
        Ok(())
    }

    /// Checks that the last words that were submitted are in memory.
    fn ensure_written(&self) -> Result<()> {
        let blob = self.device.blob(self.memory, SIZE)?;
        let (_, map) = blob.mapping.as_ref().context("a mapping")?;
        let region = map.map()?;
        for word in self.words.saturating_sub(SIZE / 4)..self.words {
            let mut found = [0; 4];
            let at = (word % (SIZE / 4)) as usize * 4;
            region.as_volatile_slice().read_slice(&mut found, at)?;
            ensure!(u32::from_le_bytes(found) == word as u32, "word {word}: {found:?}");
        }
        Ok(())
    }

    /// A fence of the guest's kernel arrives, and everything that was submitted before it is complete.
    fn kernel_fence(&mut self) -> Result<()> {
        self.device.gpu().submit_fenced(self.device.context, RingIdx(1), &[]).wait(PATIENCE)?;
        self.ensure_written()
    }

    /// A fence that is submitted alone signals the end of everything before it, and can be used again.
    fn lone_fence(&mut self) -> Result<()> {
        let (device, queue, fence) =
            (self.device.device, self.device.queue, venus::Fence(self.device.new_id()));
        let p_create_info = Some(&venus::FenceCreateInfo::default());
        self.device.ring.command(|w| {
            venus::CreateFence { device, p_create_info, p_fence: Some(&fence) }.encode(ASYNC, w);
        })?;
        for _ in 0..2 {
            self.write(2)?;
            let (fences, timeout) = ([fence], u64::MAX);
            self.device.call(|w| {
                venus::QueueSubmit { queue, submit_count: 0, p_submits: None, fence }.encode(REPLY, w);
            })?;
            self.device.call(|w| {
                venus::WaitForFences {
                    device,
                    fence_count: 1,
                    p_fences: Some(&fences),
                    wait_all: 1,
                    timeout,
                }
                .encode(REPLY, w);
            })?;
            self.ensure_written()?;
            self.device.call(|w| {
                venus::ResetFences { device, fence_count: 1, p_fences: Some(&fences) }.encode(REPLY, w);
            })?;
        }
        Ok(())
    }

    /// Resets a pool as soon as its commands have ended. The daemon waits for the end, and refuses the reset on a machine that takes too long.
    fn pool(&mut self) -> Result<()> {
        let (device, command_pool) = (self.device.device, self.device.pool);
        self.write(3)?;
        let flags = venus::CommandPoolResetFlags::RELEASE_RESOURCES;
        let reset = |w: &mut Writer<'_>| {
            venus::ResetCommandPool { device, command_pool, flags }.encode(REPLY, w);
        };
        ensure!(eventually(PATIENCE, || self.device.call(reset).is_ok()), "the pool stays in use");
        self.ensure_written()
    }

    /// Destroys a buffer right behind the submission that still uses it.
    fn destroyed(&mut self) -> Result<()> {
        self.write(2)?;
        let (device, buffer) = (self.device.device, self.buffer);
        self.device.ring.command(|w| venus::DestroyBuffer { device, buffer }.encode(ASYNC, w))?;
        self.kernel_fence()?;
        self.buffer = self.device.bound(self.memory, SIZE)?;
        Ok(())
    }

    fn all(&mut self) -> Result<()> {
        // The loop is long enough for a scheduler to learn how short the submissions are.
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(300) {
            self.write(10)?;
        }
        for count in 1..=9 {
            self.write(count)?;
            self.kernel_fence().with_context(|| format!("a kernel's fence behind {count}"))?;
        }
        self.lone_fence().context("a fence alone")?;
        self.pool().context("a pool")?;
        self.destroyed().context("a buffer")?;
        // The device is destroyed with some submissions whose end was not asked for.
        self.write(3)?;
        let device = self.device.device;
        let seqno = self.device.ring.command(|w| venus::DestroyDevice { device }.encode(ASYNC, w))?;
        self.device.ring.wait(seqno, PATIENCE)
    }
}

#[test]
fn who_has_to_know_that_they_are_complete_learns_of_it() -> Result<()> {
    let daemon = Daemon::start()?;
    Stand::new(&Arc::new(daemon.guest()?), "alone")?.all()
}

#[test]
fn the_same_holds_below_a_scheduler_that_takes_the_gpu_back_now_and_then() -> Result<()> {
    let broker = Broker::start("", &[("first", ""), ("second", "")])?;
    let guest =
        |vm| -> Result<_> { Ok(Arc::new(Gpu::new(Session::connect(&broker.path(vm), Options::default())?))) };
    let (first, second) = (guest("first")?, guest("second")?);
    std::thread::scope(|scope| {
        let one = scope.spawn(|| Stand::new(&first, "first")?.all());
        Stand::new(&second, "second")?.all()?;
        one.join().map_err(|_| anyhow!("a panic"))?
    })
    .with_context(|| broker.log())?;
    Stand::new(&first, "alone")?.all().with_context(|| broker.log())
}
