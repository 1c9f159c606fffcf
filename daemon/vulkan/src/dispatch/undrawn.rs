//! Graphics commands of guests that must not draw (`--queues`): none reaches the driver, and each is answered.
//!
//! A creation fails, and its ids become tombstones. A recorded command spoils its command buffer, which never reaches a queue. The device
//! process logs this once for each VM.

use super::generated;
use crate::context::error::{ContextLost, Fault};
use crate::execution::call::Call;
use crate::objects::object::Handle;
use crate::record::recorder::record_one;
use protocol::cursor::Writer;
use protocol::venus::generated::{self as venus, Command};
use protocol::venus::stream::Recorded;
use std::slice::from_ref;

/// Fails a graphics command.
///
/// # Errors
///
/// The stream is wrong.
#[cold]
pub(super) fn fail<'a>(
    call: &Call<'a>,
    command: &Command<'a>,
    reply: Option<&mut Writer<'_>>,
) -> Result<(), ContextLost> {
    let failed = call.undrawn();
    let result = venus::VkResult(failed);
    match command {
        Command::CreateRenderPass(c) => {
            not_made(call, failed, c.p_render_pass.map(from_ref), reply, |w| c.failed(result).encode(w))
        }
        Command::CreateRenderPass2(c) => {
            not_made(call, failed, c.p_render_pass.map(from_ref), reply, |w| c.failed(result).encode(w))
        }
        Command::CreateFramebuffer(c) => {
            not_made(call, failed, c.p_framebuffer.map(from_ref), reply, |w| c.failed(result).encode(w))
        }
        Command::CreateGraphicsPipelines(c) => {
            not_made(call, failed, c.p_pipelines, reply, |w| c.failed(result).encode(w))
        }
        Command::GetPhysicalDeviceFragmentShadingRatesKHR(c) => {
            reply.into_iter().for_each(|w| c.failed(result).encode(w));
            Ok(())
        }
        // These commands call no driver for objects that were never made.
        Command::DestroyRenderPass(_)
        | Command::DestroyFramebuffer(_)
        | Command::GetRenderAreaGranularity(_) => generated::execute(call, command, reply),
        _ => spoil(call, failed, reply),
    }
}

/// Answers a command that was to make objects with these ids.
fn not_made<H: Handle>(
    call: &Call<'_>,
    failed: i32,
    ids: Option<&[H]>,
    reply: Option<&mut Writer<'_>>,
    answer: impl Fn(&mut Writer<'_>),
) -> Result<(), ContextLost> {
    call.none_created(ids.unwrap_or(&[]), failed)?;
    reply.into_iter().for_each(answer);
    Ok(())
}

/// Fails a command that is recorded. Its reply, which no driver wants, is its number.
fn spoil(call: &Call<'_>, failed: i32, reply: Option<&mut Writer<'_>>) -> Result<(), ContextLost> {
    let Some(Recorded { header, command_buffer }) = Recorded::peek(call.bytes) else { return Ok(()) };
    reply.into_iter().for_each(|w| w.u32(header.number as u32));
    record_one(call, command_buffer, |_| Err(Fault::Failed(failed)))
}
