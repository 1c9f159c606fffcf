//! Guests that wait by asking on a ring: the answer is held until there is something to tell, or something else to do.

use anyhow::{Context, Result, ensure};
use protocol::cursor::{Arena, Reader};
use protocol::venus::generated as venus;
use protocol::venus::generated::{ChainStruct, VkResult};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tests::daemon::{Daemon, waiting_time};
use tests::guest::device::Device;
use tests::guest::ring::{ASYNC, REPLY, Ring, RingOptions};
use tests::guest::{Gpu, PATIENCE};

/// How long Mesa sleeps at least between two questions, once it does.
const SLEEP: Duration = Duration::from_micros(200);
/// Questions that Mesa asks before it sleeps.
const LOOKS: u32 = 16;
/// How long an answer is held of which this says that it is held for long.
const LONG: Duration = Duration::from_millis(5);
/// How often something is tried that only works while nobody else needs the processors.
const TRIES: u32 = 20;

/// One at a time: who asks at once has to be quick.
static MACHINE: Mutex<()> = Mutex::new(());

struct Setup {
    // In the order in which they end.
    device: Device,
    gpu: Arc<Gpu>,
    daemon: Daemon,
    _machine: MutexGuard<'static, ()>,
}

/// A submission that waits for a value of a timeline, with a fence.
struct Waiting {
    semaphore: venus::Semaphore,
    fence: venus::Fence,
}

fn setup() -> Result<Setup> {
    let _machine = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let daemon = Daemon::start()?;
    let gpu = Arc::new(daemon.guest()?);
    let features =
        venus::PhysicalDeviceTimelineSemaphoreFeatures { timeline_semaphore: 1, ..Default::default() };
    let chain = [ChainStruct::PhysicalDeviceTimelineSemaphoreFeatures(&features)];
    let device = Device::create_with(&gpu, "polls", &chain)?;
    Ok(Setup { device, gpu, daemon, _machine })
}

impl Setup {
    fn submit(&mut self) -> Result<Waiting> {
        let d = &mut self.device;
        let (semaphore, fence) = (venus::Semaphore(d.new_id()), venus::Fence(d.new_id()));
        let (device, queue) = (d.device, d.queue);
        let ty = venus::SemaphoreTypeCreateInfo {
            semaphore_type: venus::SemaphoreType::TIMELINE,
            ..Default::default()
        };
        let chain = [ChainStruct::SemaphoreTypeCreateInfo(&ty)];
        let semaphore_info = venus::SemaphoreCreateInfo { p_next: &chain, ..Default::default() };
        let values = venus::TimelineSemaphoreSubmitInfo {
            wait_semaphore_value_count: 1,
            p_wait_semaphore_values: Some(&[1]),
            signal_semaphore_value_count: 1,
            p_signal_semaphore_values: Some(&[2]),
            ..Default::default()
        };
        let chain = [ChainStruct::TimelineSemaphoreSubmitInfo(&values)];
        let submit = [venus::SubmitInfo {
            p_next: &chain,
            wait_semaphore_count: 1,
            p_wait_semaphores: Some(std::slice::from_ref(&semaphore)),
            p_wait_dst_stage_mask: Some(&[venus::PipelineStageFlags::ALL_COMMANDS]),
            signal_semaphore_count: 1,
            p_signal_semaphores: Some(std::slice::from_ref(&semaphore)),
            ..Default::default()
        }];
        let seqno = d.ring.command(|w| {
            let p_create_info = Some(&semaphore_info);
            venus::CreateSemaphore { device, p_create_info, p_semaphore: Some(&semaphore) }.encode(ASYNC, w);
            let p_create_info = Some(&venus::FenceCreateInfo::default());
            venus::CreateFence { device, p_create_info, p_fence: Some(&fence) }.encode(ASYNC, w);
            venus::QueueSubmit { queue, submit_count: 1, p_submits: Some(&submit), fence }.encode(ASYNC, w);
        })?;
        d.ring.wait(seqno, PATIENCE)?;
        Ok(Waiting { semaphore, fence })
    }

    /// Lets what was submitted go on, by another ring.
    fn signal(&self, ring: &mut Ring, waiting: &Waiting) -> Result<()> {
        let (device, semaphore) = (self.device.device, waiting.semaphore);
        let info = venus::SemaphoreSignalInfo { semaphore, value: 1, ..Default::default() };
        ring.command(|w| venus::SignalSemaphore { device, p_signal_info: Some(&info) }.encode(ASYNC, w))?;
        Ok(())
    }

    /// Asks for the state of a fence; the position behind the question.
    fn ask(&mut self, waiting: &Waiting) -> Result<u32> {
        let (device, fence) = (self.device.device, waiting.fence);
        self.device.ring.ask(|w| venus::GetFenceStatus { device, fence }.encode(REPLY, w))
    }

    /// What was answered.
    fn hear(&mut self, question: u32) -> Result<VkResult> {
        self.device.ring.wait(question, PATIENCE)?;
        let (reply, arena) = (self.device.ring.reply(8)?, Arena::new(1 << 10));
        Ok(venus::GetFenceStatusReply::decode(&mut Reader::new(&reply, &arena))?.result)
    }

    /// What the counter of a semaphore is.
    fn counter(&mut self, waiting: &Waiting) -> Result<u64> {
        let (device, semaphore) = (self.device.device, waiting.semaphore);
        let question = self.device.ring.ask(|w| {
            venus::GetSemaphoreCounterValue { device, semaphore, p_value: Some(&0) }.encode(REPLY, w);
        })?;
        self.device.ring.wait(question, PATIENCE)?;
        let (reply, arena) = (self.device.ring.reply(32)?, Arena::new(1 << 10));
        let reply = venus::GetSemaphoreCounterValueReply::decode(&mut Reader::new(&reply, &arena))?;
        reply.p_value.copied().context("a value")
    }

    /// Time that the worker and this thread waited for a processor.
    fn waited(&self) -> Result<Duration> {
        waiting_time(&self.daemon.wait_for_workers(1)?)
    }

    /// Whether a question that was asked a millisecond ago is still held, and not only because others had the processors.
    fn is_held(&self, question: u32, waited: Duration) -> Result<bool> {
        let waited = self.waited()?.saturating_sub(waited);
        let open = self.device.ring.head().wrapping_sub(question) >= 1 << 31;
        Ok(open && waited < Duration::from_micros(500))
    }

    /// Waits as Mesa does, until answers are held for long: true. False where that cannot be seen, because others had the processors.
    fn wait_until_held(&mut self, waiting: &Waiting) -> Result<bool> {
        let (began, before) = (Instant::now(), self.waited()?);
        while began.elapsed() < Duration::from_secs(10) {
            for _ in 0..LOOKS {
                let question = self.ask(waiting)?;
                ensure!(self.hear(question)? == VkResult::NOT_READY, "signalled by nobody");
            }
            let mut held = SLEEP;
            // Who was disturbed is not held, and begins again.
            while held >= SLEEP && held < LONG {
                let waited = self.waited()?;
                sleep(SLEEP);
                let (asked, question) = (Instant::now(), self.ask(waiting)?);
                self.hear(question)?;
                held = asked.elapsed().saturating_sub(self.waited()?.saturating_sub(waited));
            }
            if held >= LONG {
                return Ok(true);
            }
        }
        self.is_busy(began, before).context("no answer is held for long")?;
        Ok(false)
    }

    /// An error unless others had the processors most of the time since `began`.
    fn is_busy(&self, began: Instant, before: Duration) -> Result<()> {
        let waited = self.waited()?.saturating_sub(before);
        ensure!(waited > began.elapsed() / 10, "though the processors were free");
        println!("skipped: others need the processors ({waited:?} of {:?})", began.elapsed());
        Ok(())
    }
}

#[test]
fn who_asks_on_and_on_is_held_for_a_moment_each_time() -> Result<()> {
    let mut setup = setup()?;
    let waiting = setup.submit()?;
    let (began, mut asked) = (Instant::now(), 0);
    while began.elapsed() < Duration::from_millis(200) {
        let question = setup.ask(&waiting)?;
        ensure!(setup.hear(question)? == VkResult::NOT_READY, "signalled by nobody");
        asked += 1;
    }
    let each = began.elapsed() / asked;
    println!("{asked} questions, {each:?} each");
    // Who asks within 30 us after one answer waits for 50 for the next.
    ensure!(each >= Duration::from_micros(30), "{each:?} for each answer");
    Ok(())
}

#[test]
fn a_question_asked_before_is_answered_when_the_fence_is_signalled() -> Result<()> {
    let mut setup = setup()?;
    let mut other = Ring::create(&setup.gpu, setup.device.context, RingOptions::default())?;
    let (began, before) = (Instant::now(), setup.waited()?);
    for _ in 0..TRIES {
        let waiting = setup.submit()?;
        if !setup.wait_until_held(&waiting)? {
            return Ok(());
        }
        let waited = setup.waited()?;
        sleep(SLEEP);
        let (asked, question) = (Instant::now(), setup.ask(&waiting)?);
        sleep(Duration::from_millis(1));
        let open = setup.is_held(question, waited)?;
        setup.signal(&mut other, &waiting)?;
        let said = setup.hear(question)?;
        println!("open {open}, {said:?} after {:?}", asked.elapsed());
        if open && said == VkResult::SUCCESS {
            return Ok(());
        }
    }
    setup.is_busy(began, before).context("no answer came with the signal")
}

#[test]
fn what_comes_behind_a_question_is_not_held_up() -> Result<()> {
    let mut setup = setup()?;
    let waiting = setup.submit()?;
    let mut shortest = Duration::MAX;
    let (began, before) = (Instant::now(), setup.waited()?);
    for _ in 0..TRIES {
        if !setup.wait_until_held(&waiting)? {
            return Ok(());
        }
        let waited = setup.waited()?;
        sleep(SLEEP);
        let question = setup.ask(&waiting)?;
        sleep(Duration::from_millis(1));
        let open = setup.is_held(question, waited)?;
        let (pressed, next) = (Instant::now(), setup.ask(&waiting)?);
        ensure!(setup.hear(question)? == VkResult::NOT_READY, "signalled by nobody");
        let took = pressed.elapsed();
        setup.hear(next)?;
        println!("open {open}: {took:?}");
        if open {
            shortest = shortest.min(took);
        }
        if shortest < LONG / 4 {
            return Ok(());
        }
    }
    setup
        .is_busy(began, before)
        .with_context(|| format!("what comes behind a question waits for {shortest:?}"))
}

#[test]
fn semaphores_and_fences_say_the_truth_to_who_asks_on_and_on() -> Result<()> {
    let mut setup = setup()?;
    let mut other = Ring::create(&setup.gpu, setup.device.context, RingOptions::default())?;
    for round in 0..100 {
        let waiting = setup.submit()?;
        for _ in 0..round % 20 {
            ensure!(setup.counter(&waiting)? == 0, "signalled by nobody");
        }
        setup.signal(&mut other, &waiting)?;
        let (began, mut last) = (Instant::now(), 0);
        while last < 2 {
            let counter = setup.counter(&waiting)?;
            ensure!((last..=2).contains(&counter), "{counter} after {last}");
            ensure!(began.elapsed() < PATIENCE, "the counter stays {counter}");
            last = counter;
        }
        while {
            let question = setup.ask(&waiting)?;
            setup.hear(question)? != VkResult::SUCCESS
        } {
            ensure!(began.elapsed() < PATIENCE, "the fence is not signalled");
        }
    }
    Ok(())
}

#[test]
fn contexts_end_while_an_answer_is_held() -> Result<()> {
    let mut setup = setup()?;
    let waiting = setup.submit()?;
    setup.wait_until_held(&waiting)?;
    sleep(SLEEP);
    setup.ask(&waiting)?;
    setup.gpu.destroy_context(setup.device.context)?;
    setup.daemon.wait_for_workers(0)?;
    Ok(())
}
