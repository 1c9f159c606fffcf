//! Submissions: waits for them, as many as possible, the commands recorded for them, and kernels that take their time.

use super::{Bench, missing};
use crate::kernel::{Commands, Shader, Steps};
use crate::samples::Samples;
use anyhow::{Result, anyhow};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// The contents of one submission of a graph: some 20 us of a GPU's time.
const GRAPH_PART: Steps = Steps { times: 6, push: true };

impl Bench<'_> {
    /// An empty submission, a wait for its fence, and the fence's reset.
    pub(super) fn empty(&self, time: Duration) -> Result<String> {
        let fence = self.gpu.fence()?;
        Ok(Samples::new(time).repeat(|| self.gpu.run(&[], &fence))?.to_json(1))
    }

    /// A submission of one dispatch of one workgroup, a wait for its fence, and the fence's reset.
    pub(super) fn dispatch(&self, time: Duration) -> Result<String> {
        let (pipeline, fence) = (self.small.pipeline(3, 1)?, self.gpu.fence()?);
        let commands = self.small.dispatch(&pipeline)?;
        Ok(Samples::new(time).repeat(|| self.gpu.run(&commands.handles, &fence))?.to_json(1))
    }

    /// A submission of one dispatch of one workgroup that signals a timeline semaphore instead of a fence, and a wait for that semaphore.
    pub(super) fn timeline(&self, time: Duration) -> Result<String> {
        let Some(mut timeline) = self.gpu.timeline()? else { return missing("timeline semaphores") };
        let pipeline = self.small.pipeline(3, 1)?;
        let commands = self.small.dispatch(&pipeline)?;
        Ok(Samples::new(time).repeat(|| timeline.run(&commands.handles))?.to_json(1))
    }

    /// A wait for a timeline semaphore that another thread signals `length` after the wait has begun, on every device.
    pub(super) fn waits(&self, length: Duration, time: Duration) -> Result<String> {
        let Some(timeline) = self.gpu.timeline()? else { return missing("timeline semaphores") };
        std::thread::scope(|scope| {
            // The channel ends with this function, and the other thread with the channel.
            let (begins, begun) = mpsc::channel();
            let timeline = &timeline;
            let signals = scope.spawn(move || {
                begun.into_iter().try_for_each(|value| {
                    std::thread::sleep(length);
                    timeline.signal(value)
                })
            });
            let (mut samples, mut value) = (Samples::new(time), 0);
            while samples.more() {
                value += 1;
                begins.send(value)?;
                samples.time(|| timeline.wait(value))?;
            }
            let said = samples.to_json(1);
            drop(begins);
            signals.join().map_err(|_| anyhow!("a thread panicked"))??;
            Ok(said)
        })
    }

    /// A dispatch of one workgroup and a wait for it, once in each `period`.
    pub(super) fn paced(&self, period: Duration, time: Duration) -> Result<String> {
        let (pipeline, fence) = (self.small.pipeline(3, 1)?, self.gpu.fence()?);
        let commands = self.small.dispatch(&pipeline)?;
        let (mut samples, start, mut due) = (Samples::new(time), Instant::now(), Duration::ZERO);
        while samples.more() {
            if let Some(left) = due.checked_sub(start.elapsed()) {
                std::thread::sleep(left);
            }
            samples.time(|| self.gpu.run(&commands.handles, &fence))?;
            due = (due + period).max(start.elapsed());
        }
        Ok(samples.to_json(1))
    }

    /// Dispatches of one workgroup, `pending` of them pending; measures the time from one submission to the next.
    pub(super) fn submissions(&self, pending: usize, time: Duration) -> Result<String> {
        let pipeline = self.small.pipeline(3, 1)?;
        self.back_to_back(&self.small, &pipeline, pending, time)
    }

    /// Kernels of this size, `pending` of them pending; measures the time from one completion to the next.
    pub(super) fn kernels(&self, words: u32, steps: u32, pending: usize, time: Duration) -> Result<String> {
        let shader = Shader::new(self.gpu, words)?;
        let pipeline = shader.pipeline(3, steps)?;
        self.back_to_back(&shader, &pipeline, pending, time)
    }

    fn back_to_back(
        &self,
        shader: &Shader<'_>,
        pipeline: &crate::kernel::Pipeline<'_>,
        pending: usize,
        time: Duration,
    ) -> Result<String> {
        let slot = |_| Ok((shader.dispatch(pipeline)?, self.gpu.fence()?));
        let slots = (0..pending).map(slot).collect::<Result<Vec<_>>>()?;
        // The one-off work of the first submission is not measured.
        slots.iter().take(1).try_for_each(|(commands, fence)| self.gpu.run(&commands.handles, fence))?;
        slots.iter().try_for_each(|(commands, fence)| self.gpu.submit(&commands.handles, Some(fence)))?;
        let (mut samples, mut last) = (Samples::new(time), Instant::now());
        for (commands, fence) in slots.iter().cycle() {
            if !samples.more() {
                break;
            }
            fence.finish()?;
            self.gpu.submit(&commands.handles, Some(fence))?;
            let now = Instant::now();
            samples.note(now - last);
            last = now;
        }
        let said = samples.to_json(1);
        slots.iter().try_for_each(|(_, fence)| fence.finish())?;
        Ok(said)
    }

    /// Makes `submissions` submissions one after the other, each of a few dispatches with barriers, with a fence on the last and a wait for it, as a
    /// program does that computes a graph. Each is recorded right before it is submitted, or all are recorded once in advance.
    pub(super) fn graph(&self, submissions: usize, records: bool, time: Duration) -> Result<String> {
        let (pipeline, fence) = (self.small.pipeline(3, 1)?, self.gpu.fence()?);
        let parts = (0..submissions).map(|_| Commands::new(self.gpu)).collect::<Result<Vec<_>>>()?;
        let record = |part: &Commands<'_>| self.small.record(part, &pipeline, 1, GRAPH_PART);
        parts.iter().try_for_each(record)?;
        let once = || {
            for (index, part) in parts.iter().enumerate() {
                if records {
                    record(part)?;
                }
                let is_last = index + 1 == parts.len();
                self.gpu.submit(&part.handles, is_last.then_some(&fence))?;
            }
            fence.finish()
        };
        Ok(Samples::new(time).repeat(once)?.to_json(1))
    }

    /// Records one command buffer of `commands` commands, from its beginning to its end, and measures the time for each command. The command buffer
    /// is submitted and waited for in between.
    pub(super) fn recording(&self, commands: u32, time: Duration) -> Result<String> {
        let (pipeline, fence) = (self.small.pipeline(3, 1)?, self.gpu.fence()?);
        let buffer = Commands::new(self.gpu)?;
        let steps = Steps { times: commands / 3, push: true };
        let mut samples = Samples::new(time);
        while samples.more() {
            samples.time(|| self.small.record(&buffer, &pipeline, 1, steps))?;
            self.gpu.run(&buffer.handles, &fence)?;
        }
        Ok(samples.to_json(u64::from(commands / 3 * 3)))
    }

    /// Records, submits and waits for `dispatches` dispatches with barriers.
    pub(super) fn dispatches(&self, dispatches: u32, time: Duration) -> Result<String> {
        let (pipeline, fence) = (self.small.pipeline(3, 1)?, self.gpu.fence()?);
        let buffer = Commands::new(self.gpu)?;
        let steps = Steps { times: dispatches, push: false };
        let once = || {
            self.small.record(&buffer, &pipeline, 1, steps)?;
            self.gpu.run(&buffer.handles, &fence)
        };
        Ok(Samples::new(time).repeat(once)?.to_json(1))
    }
}
