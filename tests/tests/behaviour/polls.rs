//! Guests that wait by asking on a ring: the worker holds the answer until the state changes, or another command comes.
//!
//! The unit tests of `waiting::hold` say how long the worker holds it; these tests check that a guest notices only that it asks less often.

use anyhow::{Context, Result, ensure};
use protocol::cursor::{Arena, Reader};
use protocol::venus::generated as venus;
use protocol::venus::generated::{ChainStruct, VkResult};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};
use tests::daemon::{Daemon, eventually};
use tests::guest::device::Device;
use tests::guest::ring::{ASYNC, REPLY, Ring, RingOptions};
use tests::guest::{Gpu, PATIENCE};

/// The least time that Mesa sleeps between two questions, once it sleeps at all.
const SLEEP: Duration = Duration::from_micros(200);
/// Questions that Mesa asks before it sleeps.
const LOOKS: u32 = 16;

struct Setup {
    // In the order in which they end.
    device: Device,
    gpu: Arc<Gpu>,
    daemon: Daemon,
}

/// A submission that waits for a value of a timeline, with a fence.
struct Waiting {
    semaphore: venus::Semaphore,
    fence: venus::Fence,
}

fn setup() -> Result<Setup> {
    let daemon = Daemon::start()?;
    let gpu = Arc::new(daemon.guest()?);
    let features =
        venus::PhysicalDeviceTimelineSemaphoreFeatures { timeline_semaphore: 1, ..Default::default() };
    let chain = [ChainStruct::PhysicalDeviceTimelineSemaphoreFeatures(&features)];
    let device = Device::create_with(&gpu, "polls", &chain)?;
    Ok(Setup { device, gpu, daemon })
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

    /// Lets the submission go on, by a command on another ring.
    fn signal(&self, ring: &mut Ring, waiting: &Waiting) -> Result<()> {
        let (device, semaphore) = (self.device.device, waiting.semaphore);
        let info = venus::SemaphoreSignalInfo { semaphore, value: 1, ..Default::default() };
        ring.command(|w| venus::SignalSemaphore { device, p_signal_info: Some(&info) }.encode(ASYNC, w))?;
        Ok(())
    }

    /// Asks for the state of a fence; returns the position behind the question.
    fn ask(&mut self, waiting: &Waiting) -> Result<u32> {
        let (device, fence) = (self.device.device, waiting.fence);
        self.device.ring.ask(|w| venus::GetFenceStatus { device, fence }.encode(REPLY, w))
    }

    /// Returns the answer to a question.
    fn hear(&mut self, question: u32) -> Result<VkResult> {
        self.device.ring.wait(question, PATIENCE)?;
        let (reply, arena) = (self.device.ring.reply(8)?, Arena::new(1 << 10));
        Ok(venus::GetFenceStatusReply::decode(&mut Reader::new(&reply, &arena))?.result)
    }

    /// Returns the value of a semaphore's counter.
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

    /// Waits as Mesa does for a while: asks at once, and then after pauses. The longer Mesa asks, the longer the worker holds answers.
    fn wait_for_a_while(&mut self, waiting: &Waiting) -> Result<()> {
        for look in 0..4 * LOOKS {
            if look >= LOOKS {
                sleep(SLEEP);
            }
            let question = self.ask(waiting)?;
            ensure!(self.hear(question)? == VkResult::NOT_READY, "signalled without a signal");
        }
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
        ensure!(setup.hear(question)? == VkResult::NOT_READY, "signalled without a signal");
        asked += 1;
    }
    let each = began.elapsed() / asked;
    println!("{asked} questions, {each:?} each");
    // A program that asks within 30 us after one answer waits 50 us for the next answer.
    ensure!(each >= Duration::from_micros(30), "{each:?} for each answer");
    Ok(())
}

#[test]
fn a_question_and_what_comes_behind_it_are_answered_and_so_is_who_signals() -> Result<()> {
    let mut setup = setup()?;
    let mut other = Ring::create(&setup.gpu, setup.device.context, RingOptions::default())?;
    for _ in 0..20 {
        let waiting = setup.submit()?;
        setup.wait_for_a_while(&waiting)?;
        sleep(SLEEP);
        // Whether the answer is held or not, the fence is not signalled, and the next question has the same answer.
        let (question, next) = (setup.ask(&waiting)?, setup.ask(&waiting)?);
        ensure!(setup.hear(question)? == VkResult::NOT_READY, "signalled without a signal");
        setup.hear(next)?;
        let question = setup.ask(&waiting)?;
        setup.signal(&mut other, &waiting)?;
        setup.hear(question)?;
        let mut said = VkResult::NOT_READY;
        let signalled = eventually(PATIENCE, || {
            said = setup.ask(&waiting).and_then(|question| setup.hear(question)).unwrap_or(said);
            said == VkResult::SUCCESS
        });
        ensure!(signalled, "{said:?}");
    }
    Ok(())
}

#[test]
fn semaphores_and_fences_say_the_truth_to_who_asks_on_and_on() -> Result<()> {
    let mut setup = setup()?;
    let mut other = Ring::create(&setup.gpu, setup.device.context, RingOptions::default())?;
    for round in 0..100 {
        let waiting = setup.submit()?;
        for _ in 0..round % 20 {
            ensure!(setup.counter(&waiting)? == 0, "signalled without a signal");
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
    setup.wait_for_a_while(&waiting)?;
    sleep(SLEEP);
    setup.ask(&waiting)?;
    setup.gpu.destroy_context(setup.device.context)?;
    setup.daemon.wait_for_workers(0)?;
    Ok(())
}
