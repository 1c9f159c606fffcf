//! Submissions that do not end.

use crate::guest::device::{Device, Source};
use crate::guest::ring::{ASYNC, REPLY};
use crate::guest::{Gpu, PATIENCE};
use anyhow::{Result, anyhow};
use protocol::ids::{ContextId, RingIdx};
use protocol::venus::generated as venus;
use std::slice;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SIZE: u64 = 4096;

/// A program with a queue, and an event that ends its last submission.
pub struct Program {
    d: Device,
    buffer: venus::Buffer,
    event: venus::Event,
}

impl Program {
    /// Starts the program.
    pub fn start(gpu: &Arc<Gpu>, name: &str) -> Result<Self> {
        let mut d = Device::create(gpu, name)?;
        let memory = d.allocate(SIZE, Source::New)?.map_err(|result| anyhow!("{result:?}"))?;
        let buffer = d.bound(memory, SIZE)?;
        let (device, event) = (d.device, venus::Event(d.new_id()));
        let p_create_info = Some(&venus::EventCreateInfo::default());
        d.call(|w| venus::CreateEvent { device, p_create_info, p_event: Some(&event) }.encode(REPLY, w))?;
        Ok(Self { d, buffer, event })
    }

    /// The program's context.
    #[must_use]
    pub fn context(&self) -> ContextId {
        self.d.context
    }

    /// Waits until the last submission has ended although its event is not set, because its context is lost.
    #[must_use]
    pub fn is_ended_within(&self, patience: Duration) -> bool {
        self.d.gpu().submit_fenced(self.d.context, RingIdx(1), &[]).arrives_within(patience)
    }

    /// Submits short work again and again, and waits for each, long enough for the scheduler to learn how short it is. Returns the longest time.
    pub fn compute(&mut self) -> Result<Duration> {
        let (began, mut longest) = (Instant::now(), Duration::ZERO);
        while began.elapsed() < Duration::from_secs(1) {
            let submitted = Instant::now();
            let dst_buffer = self.buffer;
            self.d.submit(|command_buffer, w| {
                venus::CmdFillBuffer { command_buffer, dst_buffer, dst_offset: 0, size: SIZE, data: 1 }
                    .encode(ASYNC, w);
            })?;
            self.d.gpu().submit_fenced(self.d.context, RingIdx(1), &[]).wait(PATIENCE)?;
            longest = longest.max(submitted.elapsed());
        }
        Ok(longest)
    }

    /// Submits work that does not end before [`Self::resume`].
    pub fn stop(&mut self) -> Result<()> {
        let event = self.event;
        self.d.submit(|command_buffer, w| {
            let src_stage_mask = venus::PipelineStageFlags::HOST;
            let dst_stage_mask = venus::PipelineStageFlags::ALL_COMMANDS;
            let p_events = Some(slice::from_ref(&event));
            venus::CmdWaitEvents {
                command_buffer,
                event_count: 1,
                p_events,
                src_stage_mask,
                dst_stage_mask,
                ..Default::default()
            }
            .encode(ASYNC, w);
        })
    }

    /// Lets the last submission go on, and waits until it has ended.
    pub fn resume(&mut self) -> Result<()> {
        let (device, event) = (self.d.device, self.event);
        self.d.call(|w| venus::SetEvent { device, event }.encode(REPLY, w))?;
        self.d.gpu().submit_fenced(self.d.context, RingIdx(1), &[]).wait(PATIENCE).map(drop)?;
        Ok(())
    }
}
