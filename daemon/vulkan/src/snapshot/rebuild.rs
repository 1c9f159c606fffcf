//! The steps of a snapshot, done one after the other in a new context.
//!
//! A snapshot is no more trusted than a guest: its commands pass the same checks, and its other steps can do nothing that a guest's commands
//! cannot.

use super::step::Step;
use super::{addresses, contents, likeness, queries, recordings};
use crate::commands::pipeline_cache::brought;
use crate::context::allowance::MemoryFile;
use crate::context::cancel::Cancel;
use crate::context::cause::InheritedError;
use crate::context::error::{ContextLost, Fault};
use crate::context::restored::RestoredMemory;
use crate::dispatch::execute;
use crate::execution::call::Call;
use crate::execution::context::Context;
use crate::memory::refill;
use crate::submit::restore;
use protocol::cursor::{Arena, Reader};
use protocol::venus::generated::{self as venus, Command, ObjectType};
use protocol::venus::stream::Header;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes of the arena that commands are decoded into. Commands that need more use the arena bytes that all share.
const ARENA_BYTES: usize = 64 << 10;

/// The time beyond which a command is named in the log, because the command makes the program's pause longer.
const SLOW: Duration = Duration::from_millis(5);

/// Builds up in a new context the context that [`save`](super::save) has written down.
///
/// # Errors
///
/// A step makes no sense, or a command fails now that did not fail before. The context is over.
pub(crate) fn rebuild(
    context: &Context,
    steps: &[Step],
    files: &[Arc<MemoryFile>],
) -> Result<(), ContextLost> {
    take_all(context, steps, files)?;
    refill::refill(context)?;
    context.pool.keep_nothing(false);
    forget_gone(context);
    all_is_used(context.restored.clear())
}

/// Builds up in a new context what a [prelude](super::prelude::save) has written down of a context that goes on. The contents of its memory are not
/// copied yet: they come with the snapshot.
///
/// # Errors
///
/// As those of [`rebuild`]; memory can also be missing because the driver has none left.
pub(crate) fn rebuild_ahead(
    context: &Context,
    steps: &[Step],
    files: &[Arc<MemoryFile>],
) -> Result<(), ContextLost> {
    take_all(context, steps, files)?;
    let table = context.objects.read();
    let is_missing = |id: u64| table.get(venus::DeviceMemory(id)).is_err();
    if steps.iter().filter_map(Step::private).any(is_missing) {
        return Err(
            InheritedError::Lacking("there is no memory for a second copy of the program's memory").into()
        );
    }
    drop(table);
    refill::import_all(context)?;
    forget_gone(context);
    all_is_used(context.restored.clear_ahead())
}

fn take_all(context: &Context, steps: &[Step], files: &[Arc<MemoryFile>]) -> Result<(), ContextLost> {
    context.pool.keep_nothing(true);
    let (cancel, mut arena) = (Cancel::default(), context.arena(ARENA_BYTES));
    let mut has_freed = false;
    for step in steps {
        if step.private().is_some() && !std::mem::replace(&mut has_freed, true) {
            // Steps that destroy objects come first. Their memory is free before other memory takes its place.
            refill::forget_gone(context);
        }
        take(context, step, files, &cancel, &mut arena)?;
        arena.reset();
    }
    Ok(())
}

/// Forgets memory that was made ahead, and that the program has freed since.
fn forget_gone(context: &Context) {
    let table = context.objects.read();
    context.restored.forget_gone(|id| table.get(venus::DeviceMemory(id)).is_ok_and(contents::is_private));
}

fn all_is_used(is_used: bool) -> Result<(), ContextLost> {
    match is_used {
        true => Ok(()),
        false => Err(ContextLost::broken(
            "a snapshot has memory or addresses for objects that it does not make, or memory without contents",
        )),
    }
}

fn take(
    context: &Context,
    step: &Step,
    files: &[Arc<MemoryFile>],
    cancel: &Cancel,
    arena: &mut Arena,
) -> Result<(), ContextLost> {
    match step {
        Step::Commands(bytes) => execute_all(context, bytes, arena, cancel),
        Step::Memory { id, file, size, address, shown } => {
            let file = files
                .get(*file as usize)
                .ok_or_else(|| ContextLost::broken("a snapshot names a file that it does not have"))?;
            let memory =
                RestoredMemory { file: Arc::clone(file), size: *size, address: *address, shown: *shown };
            let added = context.restored.add(*id, memory, context.env.limits.objects);
            added.then_some(()).ok_or_else(|| ContextLost::broken("a snapshot has too much memory"))
        }
        Step::Replayed { id, address } => {
            let added = context.restored.add_address(*id, *address, context.env.limits.objects);
            added.then_some(()).ok_or_else(|| ContextLost::broken("a snapshot has too many addresses"))
        }
        Step::Filled { id } => {
            let added = context.restored.add_filled(*id, context.env.limits.objects);
            added.then_some(()).ok_or_else(|| ContextLost::broken("a snapshot has too much memory"))
        }
        Step::Exported { .. } if !context.restored.is_at_home() => Err(InheritedError::Lacking(
            "the driver is another one than before, and cannot take over its memory: try again",
        )
        .into()),
        Step::Exported { id, file } => {
            let file = files
                .get(*file as usize)
                .ok_or_else(|| ContextLost::broken("a snapshot names a file that it does not have"))?;
            let added = context.restored.add_exported(*id, Arc::clone(file), context.env.limits.objects);
            added.then_some(()).ok_or_else(|| ContextLost::broken("a snapshot has too much memory"))
        }
        Step::CacheData(data) => brought::take(context, data)
            .then_some(())
            .ok_or_else(|| ContextLost::broken("a snapshot has too many caches")),
        Step::Failed { result: 0, .. } | Step::Unusable { result: 0, .. } => {
            Err(ContextLost::broken("a snapshot names a success as the result of a failure"))
        }
        Step::Failed { id, kind, result } => context.objects.insert_failed(*id, ObjectType(*kind), *result),
        Step::Unusable { id, kind, result } => {
            let there = context.objects.fail_as(*id, ObjectType(*kind), *result);
            there
                .then_some(())
                .ok_or_else(|| ContextLost::broken("a snapshot names an object that is not there"))
        }
        Step::Fence { id, signalled } => {
            settled(context, arena, cancel, |call| restore::set_fence(call, venus::Fence(*id), *signalled))
        }
        Step::Signalled { id } => {
            settled(context, arena, cancel, |call| restore::signal(call, venus::Semaphore(*id)))
        }
        Step::Queries { pool, first, results } => queries::restore(context, *pool, *first, results),
        Step::Spoilt { id, result } => recordings::spoil(context, *id, *result),
        Step::Failures { owed, lost, host_fences } => {
            context.failures.restore((*owed, *lost, *host_fences));
            Ok(())
        }
        Step::Objects(all) => compare(context, all),
        Step::Addresses(all) => addresses::compare(context, all),
        Step::Contents(all) => contents::compare(context, all),
        Step::Gpus(all) => likeness::compare(context, all),
    }
}

/// Runs `does` with a call for which there is no command; a failure ends the context.
fn settled(
    context: &Context,
    arena: &Arena,
    cancel: &Cancel,
    does: impl FnOnce(&Call<'_>) -> Result<(), Fault>,
) -> Result<(), ContextLost> {
    does(&Call::new(context, arena, &[], cancel, false)).map_err(|fault| match fault {
        Fault::Failed(result) => ContextLost::from(InheritedError::Fails {
            what: "an object cannot be brought into the state that it had",
            result,
        }),
        Fault::Lost(lost) => lost,
    })
}

/// Executes commands whose replies are not needed.
fn execute_all(
    context: &Context,
    mut bytes: &[u8],
    arena: &mut Arena,
    cancel: &Cancel,
) -> Result<(), ContextLost> {
    while !bytes.is_empty() {
        arena.reset();
        let mut reader = Reader::new(bytes, arena);
        let header = Header::decode(&mut reader)?;
        let command = Command::decode(header.number, &mut reader)?;
        let (own, rest) = bytes.split_at(reader.offset());
        let start = Instant::now();
        execute::execute(context, &command, own, arena, cancel, None)
            .map_err(|lost| lost.within(header.number))?;
        if start.elapsed() > SLOW {
            let name = Command::name(header.number).unwrap_or("a command");
            log::debug!("building up: {name} took {:.1?}", start.elapsed());
        }
        bytes = rest;
    }
    Ok(())
}

/// Demands that the context has these objects and no others.
fn compare(context: &Context, all: &[(u64, i32)]) -> Result<(), ContextLost> {
    let table = context.objects.read();
    if let Some((id, kind)) = all.iter().find(|(id, kind)| !table.has(*id, ObjectType(*kind))) {
        return Err(InheritedError::NotMade { id: *id, kind: ObjectType(*kind) }.into());
    }
    match table.count() == all.len() {
        true => Ok(()),
        false => Err(ContextLost::broken("the rebuilt context has objects that the snapshot does not list")),
    }
}
