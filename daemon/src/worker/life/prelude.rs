//! The prelude: the objects that a successor makes while the old worker still runs. This file has both sides.

use super::hand_over::{send_bytes, send_files};
use super::link::Link;
use super::snapshot::{BYTES_MAX, FILES_MAX, PreludePart};
use super::take_over::{Received, receive};
use crate::ipc::HandOver;
use crate::worker::allowance::Allowances;
use crate::worker::backend::Backend;
use crate::worker::context::Context;
use config::{MemoryName, PerHeap};
use std::sync::Arc;
use std::time::Instant;
use vulkan::snapshot::{Carry, NotMovable, Prelude, SavedFile};
use vulkan::{ContextLost, MemoryFile, Piece};

/// Writes down the objects that a successor can already make, beside those that it has made `so_far`, and returns all of them. If the successor has
/// to make all others later, none are added. The objects include memory if its way is known; `allowances` tell the credit that this worker was
/// granted for such memory.
pub(super) fn write<B: Backend>(
    context: &Context<B>,
    so_far: Prelude,
    (memory, allowances): (Option<Carry>, &Allowances),
    link: &Link,
) -> Prelude {
    let (bytes, files, prelude) = written(context, &so_far, memory, allowances).unwrap_or_else(|why| {
        log::debug!("the successor creates no more objects before the pause: {why}");
        (Vec::new(), Vec::new(), so_far)
    });
    let sent = send_files(link, &files).and_then(|()| send_bytes(link, &bytes));
    let sent = sent.and_then(|()| link.send(&HandOver::End, None));
    if let Err(error) = sent {
        // The successor has not received this part, and reports that.
        log::debug!("the prelude is not sent: {error}");
    }
    prelude
}

/// Returns the bytes of the next part, its files, and the prelude with that part.
fn written<B: Backend>(
    context: &Context<B>,
    so_far: &Prelude,
    memory: Option<Carry>,
    allowances: &Allowances,
) -> Result<(Vec<u8>, Vec<SavedFile>, Prelude), NotMovable> {
    let mut before = allowances.credit_granted();
    let (saved, prelude) = context.backend.save_prelude(so_far, memory)?;
    let mut after = allowances.credit_granted();
    // The program may have allocated and freed meanwhile.
    let credit = PerHeap::each(|heap| *before.of(heap).max(after.of(heap)));
    if saved.files.len() > FILES_MAX {
        return Err(NotMovable::for_now("the context has too many pieces of memory"));
    }
    let bytes = PreludePart::encode(saved.steps, credit)?;
    Ok((bytes, saved.files, prelude))
}

/// Makes the objects that the old worker has written down. Memory among them counts for the old worker until this one takes over that credit.
///
/// # Errors
///
/// The driver refuses an object, or the other worker gives up. The context has then ended here.
pub(super) fn build<B: Backend>(
    context: &Context<B>,
    allowances: &Allowances,
    link: &Link,
) -> Result<(), ContextLost> {
    let Received { files, bytes, incoming: None, journal: None } = receive(link, (BYTES_MAX, FILES_MAX))?
    else {
        return Err(ContextLost::broken("contents or a journal ahead of their snapshot"));
    };
    if files.iter().any(|(memory, _)| *memory != MemoryName::Unnamed) {
        return Err(ContextLost::broken("memory that does not count as credit, ahead of its snapshot"));
    }
    if bytes.is_empty() {
        return Ok(());
    }
    let start = Instant::now();
    let PreludePart { steps, credit, .. } = PreludePart::decode(&bytes)?;
    allowances.borrow_credit(credit);
    let files = files.into_iter().map(|(_, file)| Arc::new(MemoryFile::new(file, Piece::uncounted())));
    let files: Vec<_> = files.collect();
    context.backend.rebuild_ahead(&steps, &files)?;
    log::debug!(
        "prelude of {} bytes and {} allocations: built up in {:.1?}",
        bytes.len(),
        files.len(),
        start.elapsed()
    );
    Ok(())
}
