//! The daemon releases the objects of a submission as soon as the program can know, in any way, that the submission has ended, however long later
//! submissions take.

use anyhow::{Context, Result, anyhow, ensure};
use protocol::cursor::{Arena, Reader, Writer};
use protocol::ids::RingIdx;
use protocol::venus::generated as venus;
use protocol::venus::generated::ChainStruct;
use std::slice;
use std::sync::Arc;
use std::time::Duration;
use tests::broker::Broker;
use tests::daemon::{Daemon, eventually};
use tests::frontend::{Options, Session};
use tests::guest::device::{Device, Source};
use tests::guest::ring::{ASYNC, REPLY};
use tests::guest::{Blob, Gpu, PATIENCE};
use vm_memory::{Bytes, VolatileMemory};

const SIZE: u64 = 4096;
/// The daemon's message about a command that waited for longer than a program that keeps to valid usage ever waits.
const OVERDUE: &str = "waited for 1 s for a submission";
/// The number of rounds: a signal met a gap between two looks, when the daemon had one, in one round of two hundred.
const ROUNDS: u64 = 1000;
const ALL: venus::PipelineStageFlags = venus::PipelineStageFlags::ALL_COMMANDS;

/// A device, and memory that its queue writes.
struct Stand {
    d: Device,
    buffer: venus::Buffer,
    blob: Blob,
    words: u32,
    late: u32,
}

/// The most releases that are refused because the daemon, on a machine that stands still, does not learn of an end within its second.
const LATE_MAX: u32 = 3;

/// A command buffer in a pool of its own, and the word that it writes.
struct Work {
    pool: venus::CommandPool,
    commands: venus::CommandBuffer,
    word: u32,
}

/// A batch: semaphores and values that it waits for, its work, semaphores and values that it signals.
type Batch<'a> = (&'a [(venus::Semaphore, u64)], &'a Work, &'a [(venus::Semaphore, u64)]);

impl Stand {
    fn new(gpu: &Arc<Gpu>, name: &str) -> Result<Self> {
        let features =
            venus::PhysicalDeviceTimelineSemaphoreFeatures { timeline_semaphore: 1, ..Default::default() };
        let chain = [ChainStruct::PhysicalDeviceTimelineSemaphoreFeatures(&features)];
        let mut d = Device::create_with(gpu, name, &chain)?;
        let memory = d.allocate(SIZE, Source::New)?.map_err(|result| anyhow!("{result:?}"))?;
        let buffer = d.bound(memory, SIZE)?;
        let blob = d.blob(memory, SIZE)?;
        Ok(Self { d, buffer, blob, words: 0, late: 0 })
    }

    /// A timeline at 0.
    fn timeline(&mut self) -> Result<venus::Semaphore> {
        let ty = venus::SemaphoreTypeCreateInfo {
            semaphore_type: venus::SemaphoreType::TIMELINE,
            ..Default::default()
        };
        self.semaphore(&[ChainStruct::SemaphoreTypeCreateInfo(&ty)])
    }

    fn semaphore(&mut self, chain: &[ChainStruct<'_>]) -> Result<venus::Semaphore> {
        let (device, semaphore) = (self.d.device, venus::Semaphore(self.d.new_id()));
        let info = venus::SemaphoreCreateInfo { p_next: chain, ..Default::default() };
        self.d.call(|w| {
            venus::CreateSemaphore { device, p_create_info: Some(&info), p_semaphore: Some(&semaphore) }
                .encode(REPLY, w);
        })?;
        Ok(semaphore)
    }

    fn event(&mut self) -> Result<venus::Event> {
        let (device, event) = (self.d.device, venus::Event(self.d.new_id()));
        let p_create_info = Some(&venus::EventCreateInfo::default());
        self.d.call(|w| {
            venus::CreateEvent { device, p_create_info, p_event: Some(&event) }.encode(REPLY, w);
        })?;
        Ok(event)
    }

    /// Records the write of a word of its own, between two other parts.
    fn work(
        &mut self,
        before: impl FnOnce(venus::CommandBuffer, &mut Writer<'_>),
        behind: impl FnOnce(venus::CommandBuffer, &mut Writer<'_>),
    ) -> Result<Work> {
        let device = self.d.device;
        let (pool, commands) = (venus::CommandPool(self.d.new_id()), venus::CommandBuffer(self.d.new_id()));
        let allocate = venus::CommandBufferAllocateInfo {
            command_pool: pool,
            command_buffer_count: 1,
            ..Default::default()
        };
        self.words += 1;
        let (word, dst_buffer) = (self.words, self.buffer);
        let seqno = self.d.ring.command(|w| {
            let p_create_info = Some(&venus::CommandPoolCreateInfo::default());
            venus::CreateCommandPool { device, p_create_info, p_command_pool: Some(&pool) }.encode(ASYNC, w);
            let p_command_buffers = Some(slice::from_ref(&commands));
            venus::AllocateCommandBuffers { device, p_allocate_info: Some(&allocate), p_command_buffers }
                .encode(ASYNC, w);
            let p_begin_info = Some(&venus::CommandBufferBeginInfo::default());
            venus::BeginCommandBuffer { command_buffer: commands, p_begin_info }.encode(ASYNC, w);
            before(commands, w);
            let (dst_offset, data) = (u64::from(word) * 4, word);
            venus::CmdFillBuffer { command_buffer: commands, dst_buffer, dst_offset, size: 4, data }
                .encode(ASYNC, w);
            behind(commands, w);
            venus::EndCommandBuffer { command_buffer: commands }.encode(ASYNC, w);
        })?;
        self.d.ring.wait(seqno, PATIENCE)?;
        Ok(Work { pool, commands, word })
    }

    fn plain(&mut self) -> Result<Work> {
        self.work(|_, _| (), |_, _| ())
    }

    /// Submits batches in one call.
    fn submit(&mut self, batches: &[Batch<'_>]) -> Result<()> {
        let unzipped = |semaphores: &[(venus::Semaphore, u64)]| -> (Vec<_>, Vec<_>) {
            semaphores.iter().copied().unzip()
        };
        let semaphores: Vec<_> =
            batches.iter().map(|(waits, _, signals)| (unzipped(waits), unzipped(signals))).collect();
        let stages = [ALL; 8];
        let values: Vec<_> = (semaphores.iter())
            .map(|((_, waits), (_, signals))| venus::TimelineSemaphoreSubmitInfo {
                wait_semaphore_value_count: waits.len() as u32,
                p_wait_semaphore_values: Some(waits),
                signal_semaphore_value_count: signals.len() as u32,
                p_signal_semaphore_values: Some(signals),
                ..Default::default()
            })
            .collect();
        let chains: Vec<_> =
            values.iter().map(|values| [ChainStruct::TimelineSemaphoreSubmitInfo(values)]).collect();
        let submits: Vec<_> = (batches.iter().zip(&semaphores).zip(&chains))
            .map(|(((_, work, _), ((waits, _), (signals, _))), chain)| venus::SubmitInfo {
                p_next: chain,
                wait_semaphore_count: waits.len() as u32,
                p_wait_semaphores: Some(waits),
                p_wait_dst_stage_mask: Some(&stages[..waits.len()]),
                command_buffer_count: 1,
                p_command_buffers: Some(slice::from_ref(&work.commands)),
                signal_semaphore_count: signals.len() as u32,
                p_signal_semaphores: Some(signals),
            })
            .collect();
        let queue = self.d.queue;
        self.d.call(|w| {
            let (submit_count, fence) = (submits.len() as u32, venus::Fence(0));
            venus::QueueSubmit { queue, submit_count, p_submits: Some(&submits), fence }.encode(REPLY, w);
        })
    }

    fn signal(&mut self, semaphore: venus::Semaphore, value: u64) -> Result<()> {
        let device = self.d.device;
        let info = venus::SemaphoreSignalInfo { semaphore, value, ..Default::default() };
        self.d.call(|w| venus::SignalSemaphore { device, p_signal_info: Some(&info) }.encode(REPLY, w))
    }

    /// Calls `vkWaitSemaphores` for one semaphore.
    fn wait(&mut self, semaphore: venus::Semaphore, value: u64) -> Result<()> {
        let (device, timeout) = (self.d.device, PATIENCE.as_nanos() as u64);
        let (p_semaphores, p_values) = (Some(slice::from_ref(&semaphore)), Some(slice::from_ref(&value)));
        let info =
            venus::SemaphoreWaitInfo { semaphore_count: 1, p_semaphores, p_values, ..Default::default() };
        self.d.call(|w| {
            venus::WaitSemaphores { device, p_wait_info: Some(&info), timeout }.encode(REPLY, w);
        })
    }

    /// Polls until a semaphore has a value.
    fn poll(&mut self, semaphore: venus::Semaphore, value: u64) -> Result<()> {
        let (device, arena) = (self.d.device, Arena::new(1 << 16));
        let mut counter = || -> Result<u64> {
            let p_value = Some(&0);
            let ask = |w: &mut Writer<'_>| {
                venus::GetSemaphoreCounterValue { device, semaphore, p_value }.encode(REPLY, w);
            };
            let reply = self.d.ring.query(ask)?;
            let reply = venus::GetSemaphoreCounterValueReply::decode(&mut Reader::new(&reply, &arena))?;
            reply.p_value.copied().context("a value")
        };
        ensure!(eventually(PATIENCE, || counter().is_ok_and(|now| now >= value)), "{:?}", counter());
        Ok(())
    }

    /// Returns whether the word of some work is in memory.
    fn has_written(&self, work: &Work) -> bool {
        let mut found = [0; 4];
        let region = self.blob.mapping.as_ref().and_then(|(_, map)| map.map().ok());
        let read =
            region.map(|region| region.as_volatile_slice().read_slice(&mut found, work.word as usize * 4));
        matches!(read, Some(Ok(()))) && u32::from_le_bytes(found) == work.word
    }

    fn sees(&self, work: &Work) -> Result<()> {
        ensure!(eventually(PATIENCE, || self.has_written(work)), "word {} does not come", work.word);
        Ok(())
    }

    /// Releases work that is over; the daemon knows the end in time unless the machine stands still.
    fn release(&mut self, work: &Work) -> Result<()> {
        while let Err(error) = self.try_release(work) {
            self.late += 1;
            ensure!(self.late <= LATE_MAX, "late for the {}th time: {error:#}", self.late);
        }
        Ok(())
    }

    /// Resets a pool and records its command buffer once more, which the daemon refuses while the work is pending.
    fn try_release(&mut self, work: &Work) -> Result<()> {
        let (device, command_pool, command_buffer) = (self.d.device, work.pool, work.commands);
        self.d.call(|w| {
            let flags = venus::CommandPoolResetFlags::default();
            venus::ResetCommandPool { device, command_pool, flags }.encode(REPLY, w);
        })?;
        self.d.call(|w| {
            let p_begin_info = Some(&venus::CommandBufferBeginInfo::default());
            venus::BeginCommandBuffer { command_buffer, p_begin_info }.encode(REPLY, w);
        })?;
        self.d.call(|w| venus::EndCommandBuffer { command_buffer }.encode(REPLY, w))
    }

    /// Releases work while later work cannot begin before it is signalled; `learn` waits for the end of the first work.
    fn release_before(
        &mut self,
        first: &Work,
        signals: &[(venus::Semaphore, u64)],
        is_one_call: bool,
        learn: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        let (begin, end) = (self.timeline()?, self.timeline()?);
        let later = self.plain()?;
        let batches: [Batch<'_>; 2] = [(&[], first, signals), (&[(begin, 1)], &later, &[(end, 1)])];
        match is_one_call {
            true => self.submit(&batches)?,
            false => batches.iter().try_for_each(|batch| self.submit(slice::from_ref(batch)))?,
        }
        learn(self)?;
        self.release(first).context("it is over")?;
        ensure!(!self.has_written(&later), "it did not wait");
        self.signal(begin, 1)?;
        self.wait(end, 1)?;
        ensure!(self.has_written(&later), "it did not run");
        self.release(&later).context("the later one is over")
    }

    fn by_memory(&mut self) -> Result<()> {
        for _ in 0..3 {
            let first = self.plain()?;
            self.release_before(&first, &[], false, |stand| stand.sees(&first))?;
        }
        Ok(())
    }

    /// Several submissions in a row have no marker, and a later submission cannot begin.
    fn by_memory_of_several(&mut self) -> Result<()> {
        let works = (0..6).map(|_| self.plain()).collect::<Result<Vec<_>>>()?;
        for work in &works {
            self.submit(&[(&[], work, &[])])?;
        }
        let last = self.plain()?;
        self.release_before(&last, &[], false, |stand| stand.sees(&last))?;
        works.iter().try_for_each(|work| self.release(work))
    }

    fn by_a_semaphore_of_the_same_call(&mut self) -> Result<()> {
        for is_waited_for in [true, false] {
            let (first, done) = (self.plain()?, self.timeline()?);
            self.release_before(&first, &[(done, 1)], true, |stand| match is_waited_for {
                true => stand.wait(done, 1),
                false => stand.poll(done, 1),
            })?;
        }
        Ok(())
    }

    /// The second batch signals a binary semaphore that has no waiter: the first batch of a call is over by its timeline.
    fn by_one_of_two_kinds(&mut self) -> Result<()> {
        let (first, done, binary) = (self.plain()?, self.timeline()?, self.semaphore(&[])?);
        self.release_before(&first, &[(binary, 0), (done, 1)], false, |stand| stand.wait(done, 1))?;
        let next = self.plain()?;
        self.release_before(&next, &[], false, |stand| stand.sees(&next))
    }

    fn by_an_event(&mut self) -> Result<()> {
        let event = self.event()?;
        let first = self.work(
            |_, _| (),
            |command_buffer, w| {
                venus::CmdSetEvent { command_buffer, event, stage_mask: ALL }.encode(ASYNC, w)
            },
        )?;
        let device = self.d.device;
        self.release_before(&first, &[], false, |stand| {
            let mut is_set = || stand.status(|w| venus::GetEventStatus { device, event }.encode(REPLY, w));
            ensure!(
                eventually(PATIENCE, || is_set().is_ok_and(|status| status == venus::VkResult::EVENT_SET))
            );
            Ok(())
        })
    }

    fn status(&mut self, command: impl FnOnce(&mut Writer<'_>)) -> Result<venus::VkResult> {
        self.d.query(command, |reply| {
            let _number = reply.u32()?;
            Ok(venus::VkResult(reply.u32()? as i32))
        })
    }

    fn by_the_kernels_fence(&mut self) -> Result<()> {
        let (first, begin, end) = (self.plain()?, self.timeline()?, self.timeline()?);
        let later = self.plain()?;
        self.submit(&[(&[], &first, &[])])?;
        let fence = self.d.gpu().submit_fenced(self.d.context, RingIdx(1), &[]);
        fence.wait(PATIENCE)?;
        self.submit(&[(&[(begin, 1)], &later, &[(end, 1)])])?;
        self.release(&first)?;
        self.signal(begin, 1)?;
        self.wait(end, 1)?;
        self.release(&later)
    }

    /// Releases work while later work waits inside of a command buffer, for an event that the program sets.
    fn before_a_wait_for_an_event(&mut self, is_one_call: bool) -> Result<()> {
        let (event, device) = (self.event()?, self.d.device);
        let (first, done, end) = (self.plain()?, self.timeline()?, self.timeline()?);
        let later = self.work(
            |command_buffer, w| {
                let (src_stage_mask, dst_stage_mask) = (venus::PipelineStageFlags::HOST, ALL);
                venus::CmdWaitEvents {
                    command_buffer,
                    event_count: 1,
                    p_events: Some(slice::from_ref(&event)),
                    src_stage_mask,
                    dst_stage_mask,
                    ..Default::default()
                }
                .encode(ASYNC, w);
            },
            |_, _| (),
        )?;
        if is_one_call {
            self.submit(&[(&[], &first, &[(done, 1)]), (&[], &later, &[(end, 1)])])?;
            self.wait(done, 1)?;
        } else {
            self.submit(&[(&[], &first, &[])])?;
            self.submit(&[(&[], &later, &[(end, 1)])])?;
            self.sees(&first)?;
        }
        self.release(&first)?;
        ensure!(!self.has_written(&later), "it did not wait");
        self.d.call(|w| venus::SetEvent { device, event }.encode(REPLY, w))?;
        self.wait(end, 1)?;
        self.release(&later)
    }

    /// Lets several submissions wait for values that come later, and releases their work one after the other as they end.
    fn several_in_flight(&mut self) -> Result<()> {
        let (begin, end) = (self.timeline()?, self.timeline()?);
        let works = (0..8).map(|_| self.plain()).collect::<Result<Vec<_>>>()?;
        for (value, work) in (1..).zip(&works) {
            self.submit(&[(&[(begin, value)], work, &[(end, value)])])?;
        }
        for (value, work) in (1..).zip(&works) {
            self.signal(begin, value)?;
            self.wait(end, value)?;
            ensure!(self.has_written(work), "{value}");
            self.release(work).with_context(|| format!("{value}"))?;
        }
        Ok(())
    }

    /// A value may come at any moment between two looks of the dispatching thread, which sees each value.
    fn signalled_at_any_moment(&mut self) -> Result<()> {
        let (begin, end) = (self.timeline()?, self.timeline()?);
        let works = [self.plain()?, self.plain()?];
        for (value, work) in (1..=ROUNDS).zip(works.iter().cycle()) {
            self.submit(&[(&[(begin, value)], work, &[(end, value)])])?;
            // The pause lasts up to one and a half periods of looks, in steps that divide no period.
            std::thread::sleep(Duration::from_micros(value * 7 % 750));
            self.signal(begin, value)?;
            self.wait(end, value).with_context(|| format!("round {value}"))?;
        }
        Ok(())
    }

    fn all(&mut self) -> Result<()> {
        self.by_memory().context("by memory")?;
        self.by_memory_of_several().context("by memory of several")?;
        self.by_a_semaphore_of_the_same_call().context("by a semaphore of the same call")?;
        self.by_one_of_two_kinds().context("by one of two kinds")?;
        self.by_an_event().context("by an event")?;
        self.by_the_kernels_fence().context("by the kernel's fence")?;
        self.several_in_flight().context("several in flight")?;
        self.signalled_at_any_moment().context("signalled at any moment")
    }

    fn before_waits_for_events(&mut self) -> Result<()> {
        self.before_a_wait_for_an_event(true).context("before a wait for an event, in one call")?;
        self.before_a_wait_for_an_event(false).context("before a wait for an event")
    }
}

/// Checks that no release had to wait for too long, except the late ones that `stands` stands allow.
fn ensure_in_time(log: &str, stands: usize) -> Result<()> {
    ensure!(log.matches(OVERDUE).count() <= stands * LATE_MAX as usize, "{log}");
    Ok(())
}

#[test]
fn what_a_program_knows_to_be_over_is_released_whatever_waits_behind_it() -> Result<()> {
    let daemon = Daemon::start()?;
    let mut stand = Stand::new(&Arc::new(daemon.guest()?), "alone")?;
    stand.all().with_context(|| daemon.log())?;
    // This part runs without a scheduler, because a software driver that is asked for a time stamp waits until it has no other work.
    stand.before_waits_for_events().with_context(|| daemon.log())?;
    ensure_in_time(&daemon.log(), 1)
}

#[test]
fn the_same_holds_below_a_scheduler_and_beside_another_vm() -> Result<()> {
    let broker = Broker::start("", &[("first", ""), ("second", "")])?;
    let guest =
        |vm| -> Result<_> { Ok(Arc::new(Gpu::new(Session::connect(&broker.path(vm), Options::default())?))) };
    let (first, second) = (guest("first")?, guest("second")?);
    Stand::new(&first, "alone")?.all().with_context(|| broker.log())?;
    std::thread::scope(|scope| {
        let one = scope.spawn(|| Stand::new(&first, "first")?.all());
        Stand::new(&second, "second")?.all()?;
        one.join().map_err(|_| anyhow!("a panic"))?
    })
    .with_context(|| broker.log())?;
    ensure_in_time(&broker.log(), 3)
}

/// A command pool that a pending submission uses is not reset, and the daemon logs this. This test shows that the line whose absence the tests above
/// check does appear.
#[test]
fn what_waits_itself_is_not_released() -> Result<()> {
    let daemon = Daemon::start()?;
    let mut stand = Stand::new(&Arc::new(daemon.guest()?), "early")?;
    let (begin, end, work) = (stand.timeline()?, stand.timeline()?, stand.plain()?);
    stand.submit(&[(&[(begin, 1)], &work, &[(end, 1)])])?;
    ensure!(stand.try_release(&work).is_err(), "a pool is reset that is in use");
    ensure!(eventually(PATIENCE, || daemon.log().contains(OVERDUE)), "{}", daemon.log());
    stand.signal(begin, 1)?;
    stand.wait(end, 1)?;
    stand.release(&work)
}
