//! A Venus ring from the guest's side, and the virtqueue stream beside it.
//!
//! Acts as Mesa does and, if a test wants it, as Mesa never does: tests can write to all parts of the ring. Knows the transport commands only; tests
//! choose the commands on the ring.

use super::blob::Blob;
use super::gpu::{Gpu, PATIENCE};
use anyhow::{Context, Result, bail, ensure};
use protocol::cursor::Writer;
use protocol::ids::{ContextId, RingIdx};
use protocol::venus::generated::{
    ChainStruct, CommandFlagsEXT, CommandStreamDescriptionMESA, CreateRingMESA, DestroyRingMESA,
    NotifyRingMESA, RingCreateInfoMESA, RingMonitorInfoMESA, RingStatusFlagsMESA, SetReplyCommandStreamMESA,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use vm_memory::{Bytes, MmapRegion, VolatileMemory};

/// The wish for a reply.
pub const REPLY: CommandFlagsEXT = CommandFlagsEXT::GENERATE_REPLY;
/// No reply, as for most commands.
pub const ASYNC: CommandFlagsEXT = CommandFlagsEXT(0);

const REPLY_BYTES: u64 = 1 << 20;
const HEAD: usize = 0;
const TAIL: usize = 64;
const STATUS: usize = 128;
const BUFFER: usize = 192;

/// The properties of a ring that is to be made.
#[derive(Clone, Copy, Debug)]
pub struct RingOptions {
    /// Bytes of the command buffer, a power of two.
    pub buffer_size: usize,
    /// The quiet time after which the device may stop polling.
    pub idle_timeout: Duration,
    /// The device sets ALIVE at least once in this time.
    pub monitor: Option<Duration>,
}

impl Default for RingOptions {
    /// Mesa's instance ring.
    fn default() -> Self {
        let (idle_timeout, monitor) = (Duration::from_millis(1), Some(Duration::from_secs(3)));
        Self { buffer_size: 128 << 10, idle_timeout, monitor }
    }
}

/// A ring of a context.
pub struct Ring {
    gpu: Arc<Gpu>,
    context: ContextId,
    id: u64,
    blob: Blob,
    /// The whole shared resource.
    pub memory: MmapRegion,
    buffer_size: usize,
    reply_blob: Blob,
    reply_memory: MmapRegion,
    tail: u32,
    last_notify: Option<Instant>,
    /// The time to wait for room or an answer.
    pub patience: Duration,
}

impl Ring {
    /// Creates the ring's memory and the ring, as Mesa does.
    pub fn create(gpu: &Arc<Gpu>, context: ContextId, options: RingOptions) -> Result<Self> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0x7000_0000_1000);
        let size = (BUFFER + options.buffer_size + 4) as u64;
        let (blob, memory) = shared_memory(gpu, context, size)?;
        let (reply_blob, reply_memory) = shared_memory(gpu, context, REPLY_BYTES)?;
        let id = NEXT_ID.fetch_add(16, Ordering::Relaxed);
        let monitor = RingMonitorInfoMESA {
            max_reporting_period_microseconds: options.monitor.unwrap_or_default().as_micros() as u32,
            ..RingMonitorInfoMESA::default()
        };
        let chain = [ChainStruct::RingMonitorInfoMESA(&monitor)];
        let info = RingCreateInfoMESA {
            p_next: if options.monitor.is_some() { &chain } else { &[] },
            resource_id: blob.resource_id.0,
            size,
            idle_timeout: options.idle_timeout.as_nanos() as u64,
            head_offset: HEAD as u64,
            tail_offset: TAIL as u64,
            status_offset: STATUS as u64,
            buffer_offset: BUFFER as u64,
            buffer_size: options.buffer_size as u64,
            extra_offset: (BUFFER + options.buffer_size) as u64,
            extra_size: 4,
            ..RingCreateInfoMESA::default()
        };
        let create = encode(|w| CreateRingMESA { ring: id, p_create_info: Some(&info) }.encode(ASYNC, w));
        gpu.submit(context, &create).wait(PATIENCE)?;
        let (gpu, buffer_size) = (Arc::clone(gpu), options.buffer_size);
        Ok(Self {
            gpu,
            context,
            id,
            blob,
            memory,
            buffer_size,
            reply_blob,
            reply_memory,
            tail: 0,
            last_notify: None,
            patience: PATIENCE,
        })
    }

    /// Finds the ring's memory in the window: another daemon has made it anew.
    ///
    /// # Errors
    /// It is not mapped there.
    pub fn find_again(&mut self) -> Result<()> {
        for (blob, memory) in
            [(&mut self.blob, &mut self.memory), (&mut self.reply_blob, &mut self.reply_memory)]
        {
            blob.find_again(&self.gpu)?;
            *memory = blob.mapping.as_ref().context("shared memory is mapped")?.1.map()?;
        }
        Ok(())
    }

    /// The same ring in a copy of its VM, in which this driver runs.
    ///
    /// # Errors
    /// Its memory is not mapped there.
    pub fn fork(&self, gpu: &Arc<Gpu>) -> Result<Self> {
        let (mut blob, mut reply_blob) = (self.blob.clone(), self.reply_blob.clone());
        let map = |blob: &mut Blob| -> Result<MmapRegion> {
            blob.find_again(gpu)?;
            blob.mapping.as_ref().context("shared memory is mapped")?.1.map()
        };
        let (memory, reply_memory) = (map(&mut blob)?, map(&mut reply_blob)?);
        Ok(Self {
            gpu: Arc::clone(gpu),
            context: self.context,
            id: self.id,
            blob,
            memory,
            buffer_size: self.buffer_size,
            reply_blob,
            reply_memory,
            tail: self.tail,
            last_notify: None,
            patience: self.patience,
        })
    }

    /// The ring's id on the wire.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The resource the ring lies in.
    pub fn resource(&self) -> &Blob {
        &self.blob
    }

    /// Puts commands on the ring and returns the position behind them. Waits for room; notifies an idle ring.
    pub fn send(&mut self, commands: &[u8]) -> Result<u32> {
        ensure!(
            commands.len() <= self.buffer_size && commands.len().is_multiple_of(4),
            "commands that fit the ring"
        );
        let deadline = Instant::now() + self.patience;
        while self.tail.wrapping_sub(self.head()) as usize + commands.len() > self.buffer_size {
            self.check(deadline)?;
        }
        let at = self.tail as usize & (self.buffer_size - 1);
        let (first, second) = commands.split_at(commands.len().min(self.buffer_size - at));
        self.memory.as_volatile_slice().write_slice(first, BUFFER + at)?;
        self.memory.as_volatile_slice().write_slice(second, BUFFER)?;
        self.tail = self.tail.wrapping_add(commands.len() as u32);
        self.word(TAIL).store(self.tail, Ordering::SeqCst);
        if self.status().contains(RingStatusFlagsMESA::IDLE) {
            self.notify();
        }
        Ok(self.tail)
    }

    /// Encodes and sends one or more commands.
    pub fn command(&mut self, commands: impl FnOnce(&mut Writer<'_>)) -> Result<u32> {
        self.send(&encode(commands))
    }

    /// Sends a command that wants a reply and returns the reply window.
    pub fn query(&mut self, command: impl FnOnce(&mut Writer<'_>)) -> Result<Vec<u8>> {
        let seqno = self.ask(command)?;
        self.wait(seqno, self.patience)?;
        self.reply(REPLY_BYTES as usize)
    }

    /// Sends a command that wants a reply, without waiting for it; returns the position behind the command.
    pub fn ask(&mut self, command: impl FnOnce(&mut Writer<'_>)) -> Result<u32> {
        let (resource_id, size) = (self.reply_blob.resource_id.0, REPLY_BYTES);
        let stream = CommandStreamDescriptionMESA { resource_id, offset: 0, size };
        self.command(|w| {
            SetReplyCommandStreamMESA { p_stream: Some(&stream) }.encode(ASYNC, w);
            command(w);
        })
    }

    /// Returns the first `size` bytes of the reply window.
    pub fn reply(&self, size: usize) -> Result<Vec<u8>> {
        let mut reply = vec![0; size];
        self.reply_memory.as_volatile_slice().read_slice(&mut reply, 0)?;
        Ok(reply)
    }

    /// Waits until the ring has executed everything up to a position.
    pub fn wait(&mut self, seqno: u32, timeout: Duration) -> Result<()> {
        let deadline = Instant::now() + timeout;
        while self.head().wrapping_sub(seqno) >= 1 << 31 {
            // Like Mesa, `notify` sends at most one notification in a millisecond, so the first may have been too early.
            if self.status().contains(RingStatusFlagsMESA::IDLE) {
                self.notify();
            }
            self.check(deadline)?;
        }
        Ok(())
    }

    /// The position up to which the device has executed.
    pub fn head(&self) -> u32 {
        self.word(HEAD).load(Ordering::Acquire)
    }

    /// The position up to which the driver has written.
    pub fn tail(&self) -> u32 {
        self.tail
    }

    /// The status word.
    pub fn status(&self) -> RingStatusFlagsMESA {
        RingStatusFlagsMESA(self.word(STATUS).load(Ordering::SeqCst))
    }

    /// Clears ALIVE, as a waiting driver does.
    pub fn clear_alive(&self) {
        self.word(STATUS).fetch_and(!RingStatusFlagsMESA::ALIVE.0, Ordering::SeqCst);
    }

    /// Writes any position as the tail, true or not.
    pub fn lie_about_tail(&mut self, tail: u32) {
        self.word(TAIL).store(tail, Ordering::SeqCst);
        self.last_notify = None;
        self.notify();
    }

    /// Overwrites the command buffer without moving the tail.
    pub fn scribble(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        Ok(self.memory.as_volatile_slice().write_slice(bytes, BUFFER + offset)?)
    }

    /// vkNotifyRingMESA, at most once in a millisecond.
    pub fn notify(&mut self) {
        if self.last_notify.is_none_or(|last| last.elapsed() >= Duration::from_millis(1)) {
            self.last_notify = Some(Instant::now());
            let notify = encode(|w| {
                NotifyRingMESA { ring: self.id, seqno: self.tail, ..NotifyRingMESA::default() }
                    .encode(ASYNC, w);
            });
            drop(self.gpu.submit(self.context, &notify));
        }
    }

    /// vkDestroyRingMESA with a fence, then its memory.
    pub fn destroy(self) -> Result<()> {
        let destroy = encode(|w| DestroyRingMESA { ring: self.id }.encode(ASYNC, w));
        self.gpu.submit_fenced(self.context, RingIdx(0), &destroy).wait(PATIENCE)?;
        self.gpu.destroy_blob(self.blob)?;
        self.gpu.destroy_blob(self.reply_blob)?;
        Ok(())
    }

    /// Frees the ring's memory without notice to the ring.
    pub fn abandon(self) {
        self.gpu.destroy_blobs(vec![self.blob, self.reply_blob]);
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        self.memory.get_atomic_ref(offset).expect("the control words lie at the start of the mapping")
    }

    fn check(&self, deadline: Instant) -> Result<()> {
        if self.status().contains(RingStatusFlagsMESA::FATAL) {
            bail!("the ring is fatal at {} of {}", self.head(), self.tail);
        }
        ensure!(!self.gpu.session.is_over(), "the session ended while the ring stood at {}", self.head());
        ensure!(
            Instant::now() < deadline,
            "the ring stands at {} of {}, status {:?}",
            self.head(),
            self.tail,
            self.status()
        );
        std::thread::yield_now();
        Ok(())
    }
}

/// The bytes of commands.
pub fn encode(commands: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
    let mut writer = Writer::growing();
    commands(&mut writer);
    writer.into_bytes()
}

fn shared_memory(gpu: &Gpu, context: ContextId, size: u64) -> Result<(Blob, MmapRegion)> {
    let blob = gpu.create_shmem(context, size)?;
    let memory = blob.mapping.as_ref().context("shared memory is mapped")?.1.map()?;
    Ok((blob, memory))
}
