//! The replay of a journal: its commands are done again one after the other in a context that was built up from a checkpoint.
//!
//! A journal is no more trusted than a guest: its commands pass the same checks. The number of a command says what the successor does with it
//! ([`Replay`]).

use crate::context::cancel::Cancel;
use crate::context::cause::InheritedError;
use crate::context::error::{ContextLost, Fault};
use crate::dispatch::replay::Replay;
use crate::dispatch::{execute, generated};
use crate::execution::call::Call;
use crate::execution::context::Context;
use crate::logical::timeline::Standing;
use crate::record::recorder;
use crate::submit::again;
use protocol::cursor::{Arena, Limits, Reader};
use protocol::venus::generated::Command;
use protocol::venus::stream::Header;

/// Bytes of the arena that commands are decoded into, as many as an executor's arena has. Commands that need more use the arena bytes that all share.
const ARENA_BYTES: usize = 1 << 20;

/// Executes the entries of a journal again; each holds whole commands.
///
/// # Errors
///
/// The bytes are no commands or break a journal, or a command fails that did not fail before. The context is over.
pub(crate) fn replay(context: &Context, entries: &[&[u8]]) -> Result<(), ContextLost> {
    let (cancel, mut arena) = (Cancel::default(), context.arena(ARENA_BYTES));
    context.journal.take_break();
    for mut bytes in entries.iter().copied() {
        while !bytes.is_empty() {
            arena.reset();
            let length = match recorder::record_run(context, bytes, &mut arena, &cancel, generated::record)? {
                0 => one(context, bytes, &mut arena, &cancel)?,
                recorded => recorded,
            };
            if let Some(why) = context.journal.take_break() {
                return Err(InheritedError::Unrepeatable(why).into());
            }
            bytes = &bytes[length..];
        }
    }
    match again::complete(context) {
        true => Ok(()),
        false => Err(ContextLost::broken("a submission that had completed does not complete again")),
    }
}

/// Does the first command again; returns its length.
fn one(context: &Context, bytes: &[u8], arena: &mut Arena, cancel: &Cancel) -> Result<usize, ContextLost> {
    arena.reset();
    // An executor decodes results for which both its reply stream and its arena have room.
    let out_budget = context.env.limits.arena_bytes.saturating_add(ARENA_BYTES) as u64;
    let limits = Limits { out_budget, ..Limits::default() };
    let mut reader = Reader::with_limits(bytes, arena, limits);
    let header = Header::decode(&mut reader)?;
    let within = |lost: ContextLost| lost.within(header.number);
    let command = Command::decode(header.number, &mut reader).map_err(|error| within(error.into()))?;
    let own = &bytes[..reader.offset()];
    let call = || Call::new(context, arena, own, cancel, false);
    match Replay::of(header.number) {
        Replay::Again | Replay::Signals => {
            if let Command::SignalSemaphore(c) = &command {
                done(again::await_counter(&call(), c)).map_err(within)?;
            }
            execute::execute(context, &command, own, arena, cancel, None).map_err(within)?;
        }
        Replay::Submits => submit(&call(), &command).map_err(within)?,
        Replay::Nothing => {}
        Replay::Breaks => return Err(within(ContextLost::broken("a command that breaks a journal"))),
    }
    Ok(own.len())
}

/// Submits again, and waits until no submission makes progress any more: the next command may rely on completed work.
fn submit(call: &Call<'_>, command: &Command<'_>) -> Result<(), ContextLost> {
    let _in_flight = call.context.retired.enter();
    done(match command {
        Command::QueueSubmit(c) => again::queue_submit(call, c),
        Command::QueueSubmit2(c) => again::queue_submit2(call, c),
        _ => Err(Fault::Lost(ContextLost::broken("a command that submits nothing"))),
    })?;
    match again::settle(call.context) {
        Standing::Going => Err(ContextLost::broken("a submission that had completed does not end")),
        Standing::Idle | Standing::Waits => Ok(()),
    }
}

/// Demands success.
fn done(outcome: Result<(), Fault>) -> Result<(), ContextLost> {
    outcome.map_err(|fault| match fault {
        Fault::Failed(result) => ContextLost::from(InheritedError::Fails {
            what: "a command that had succeeded fails now",
            result,
        }),
        Fault::Lost(lost) => lost,
    })
}

#[cfg(test)]
#[path = "journal_tests.rs"]
mod tests;
