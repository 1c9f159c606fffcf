//! One command of a guest, executed in its context.

use super::{generated, undrawn};
use crate::context::cancel::Cancel;
use crate::context::error::ContextLost;
use crate::execution::call::Call;
use crate::execution::context::Context;
use protocol::cursor::{Arena, Writer};
use protocol::venus::generated as venus;

/// Executes one command that is not a transport command. `bytes` is its encoding, `reply` the place for its reply if it wants one;
/// `cancel` ends its waits.
///
/// # Errors
///
/// The stream is wrong or the device is lost; the context is over.
#[inline]
pub(crate) fn execute<'a>(
    context: &'a Context,
    command: &venus::Command<'a>,
    bytes: &'a [u8],
    arena: &'a Arena,
    cancel: &'a Cancel,
    reply: Option<&mut Writer<'_>>,
) -> Result<(), ContextLost> {
    let in_flight = context.retired.enter();
    let call = Call::new(context, arena, bytes, cancel, reply.is_some());
    let undrawn = !context.env.gpus[0].queues.draw() && generated::is_graphics(command);
    let done = match undrawn {
        false => generated::execute(&call, command, reply),
        true => undrawn::fail(&call, command, reply),
    };
    if call.records.get() {
        in_flight.only_records();
    }
    done
}
