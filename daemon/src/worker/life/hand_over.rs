//! The old worker's side of a hand-over: it comes to rest and writes everything down.

use super::contents::Outgoing;
use super::link::{Link, LinkError};
use super::snapshot::{FILES_MAX, Snapshot};
use crate::ipc::{HandOver, INLINE_SUBMIT_MAX};
use crate::worker::allowance::Allowances;
use crate::worker::at_rest::{AtRest, Left};
use crate::worker::backend::Backend;
use crate::worker::context::Context;
use crate::worker::inbox::Letter;
use crate::worker::patience::patience;
use crate::worker::reply::UNREAD_MAX;
use crate::worker::stream::Executor;
use config::MemoryName;
use std::collections::VecDeque;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};
use vulkan::snapshot::{Carry, NotMovable, Prelude, Saved, SavedFile};

/// The time in which rings have to come to rest. Only the driver keeps a ring busy for longer, for example with a pipeline to compile.
const REST_MAX: Duration = patience(10);

/// The time in which the fences of completed submissions have to pass.
const FENCES_MAX: Duration = patience(10);

/// Bytes of one message.
const CHUNK: usize = INLINE_SUBMIT_MAX;

/// Hands a context over to a successor that has built up the `prelude`, with the messages to this worker that are `left`. Waits up to `drain_max` for
/// submissions. The caller is between two commands of the virtqueue's stream, whose executor is `virtqueue`. If this worker stays, the caller has to
/// tell all rings to go on later ([`Context::go_on`]), whether the hand-over has failed or not.
///
/// # Errors
///
/// The context stays with this worker.
pub(super) fn hand_over<B: Backend>(
    context: &Context<B>,
    (virtqueue, left): (&Executor<B>, &VecDeque<Letter>),
    (prelude, carry): (&Prelude, Carry),
    allowances: &Allowances,
    drain_max: Duration,
    link: &Link,
) -> Result<(), NotMovable> {
    let start = Instant::now();
    let left = Left::of(left, context.limits.command_bytes)?;
    come_to_rest(context, REST_MAX, drain_max, FENCES_MAX)?;
    let drained = start.elapsed();
    let saved = context.backend.save(prelude, carry)?;
    let contents =
        context.backend.contents(&saved.steps).map_err(|lost| NotMovable::ever(lost.to_string()))?;
    let outgoing =
        contents.map(|contents| Outgoing::new(contents, allowances, &context.cancel)).transpose()?;
    let (bytes, files) = written(context, (virtqueue, left), allowances, saved)?;
    let written = start.elapsed();
    send(link, &files, &bytes, outgoing)?;
    let stay = files.iter().filter(|file| file.name() == MemoryName::Unnamed).count();
    log::debug!(
        "handed over: at rest and drained after {drained:.1?}, written after {written:.1?}, copied after {:.1?}: {} bytes, {} memory files, {stay} allocations that stay in the GPU",
        start.elapsed(),
        bytes.len(),
        files.len() - stay
    );
    Ok(())
}

/// Brings all rings to rest, and waits until everything has completed and all fences are passed. Each of the three waits has its own bound.
///
/// # Errors
///
/// The context is busy, or lost.
pub(super) fn come_to_rest<B: Backend>(
    context: &Context<B>,
    rest_max: Duration,
    drain_max: Duration,
    fences_max: Duration,
) -> Result<(), NotMovable> {
    if context.has_ended() {
        return Err(NotMovable::ever("the context is lost"));
    }
    if !context.come_to_rest(rest_max) {
        return Err(NotMovable::for_now("the driver is busy with a command"));
    }
    context.backend.drain(drain_max)?;
    fences_have_passed(context, fences_max)
}

/// Writes down a context at rest, whose renderer is saved. Returns the bytes, and the descriptors beside them.
///
/// # Errors
///
/// A successor could not go on with its rings or streams, or there would be too many bytes.
pub(super) fn written<B: Backend>(
    context: &Context<B>,
    (virtqueue, left): (&Executor<B>, Vec<Left>),
    allowances: &Allowances,
    saved: Saved,
) -> Result<(Vec<u8>, Vec<SavedFile>), NotMovable> {
    let rings = context.rings_at_rest()?;
    let virtqueue = virtqueue.at_rest();
    if rings.iter().map(|ring| &ring.executor).chain([&virtqueue]).any(is_lost) {
        return Err(NotMovable::for_now(
            "a reply stream lies in memory that the context does not see any more",
        ));
    }
    let Saved { steps, files, .. } = saved;
    let memories = files.iter().map(SavedFile::name).collect();
    let bytes =
        Snapshot::new(steps, memories, (virtqueue, rings), allowances.credit_granted(), left).encode();
    Ok((bytes?, files))
}

/// Returns whether a reply stream has lost its resource, and is too large to be replaced by private memory.
fn is_lost(executor: &AtRest) -> bool {
    executor.reply.is_some_and(|place| place.resource.is_none() && place.size > UNREAD_MAX)
}

/// Waits until all fences of the guest's kernel have passed. They pass soon, as all submissions have completed.
fn fences_have_passed<B: Backend>(context: &Context<B>, max: Duration) -> Result<(), NotMovable> {
    let start = Instant::now();
    while !context.fences.have_passed() {
        if start.elapsed() >= max || context.has_ended() {
            return Err(NotMovable::for_now("a fence is not passed"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Sends descriptors, each with the name of its memory.
pub(super) fn send_files(link: &Link, files: &[SavedFile]) -> Result<(), LinkError> {
    files.iter().try_for_each(|file| {
        link.send(&HandOver::File { memory: file.name() }, file.file().map(|file| file.as_fd()))
    })
}

/// Sends bytes, as many in each message as it can carry.
pub(super) fn send_bytes(link: &Link, bytes: &[u8]) -> Result<(), LinkError> {
    bytes.chunks(CHUNK).try_for_each(|chunk| link.send(&HandOver::Bytes(chunk.to_vec()), None))
}

fn send(
    link: &Link,
    files: &[SavedFile],
    bytes: &[u8],
    outgoing: Option<Outgoing>,
) -> Result<(), NotMovable> {
    let not_sent = |error: LinkError| NotMovable::for_now(error.to_string());
    if files.len() > FILES_MAX {
        return Err(NotMovable::for_now("the context has too many memory files"));
    }
    send_files(link, files).map_err(not_sent)?;
    send_bytes(link, bytes).map_err(not_sent)?;
    if let Some(outgoing) = &outgoing {
        outgoing.announce(link).map_err(not_sent)?;
    }
    link.send(&HandOver::End, None).map_err(not_sent)?;
    outgoing.map_or(Ok(()), |outgoing| outgoing.send(link))
}
