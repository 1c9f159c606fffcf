//! The prelude: the objects that a successor makes while the old worker still runs. Both sides of it.

use super::hand_over::send_bytes;
use super::link::Link;
use super::snapshot::{BYTES_MAX, PreludeSteps};
use super::take_over::{Received, receive};
use crate::ipc::HandOver;
use crate::worker::backend::Backend;
use crate::worker::context::Context;
use std::time::Instant;
use vulkan::ContextLost;
use vulkan::snapshot::{NotMovable, Prelude};

/// Writes down the objects that a successor can make already beside those that it has made `so_far`, and returns all of them. There are no more than
/// before if the successor has to make all others later.
pub(super) fn write<B: Backend>(context: &Context<B>, so_far: Prelude, link: &Link) -> Prelude {
    let (bytes, prelude) = written(context, &so_far).unwrap_or_else(|why| {
        log::debug!("nothing is made ahead: {why}");
        (Vec::new(), so_far)
    });
    let sent = send_bytes(link, &bytes).and_then(|()| link.send(&HandOver::End, None));
    if let Err(error) = sent {
        // The successor has not got it, and says so.
        log::debug!("the prelude is not sent: {error}");
    }
    prelude
}

/// Returns the bytes of the next part, and the prelude with that part.
fn written<B: Backend>(context: &Context<B>, so_far: &Prelude) -> Result<(Vec<u8>, Prelude), NotMovable> {
    let (steps, prelude) = context.backend.save_prelude(so_far)?;
    let bytes = PreludeSteps::encode(steps).map_err(NotMovable::ever)?;
    Ok((bytes, prelude))
}

/// Makes the objects that the old worker has written down.
///
/// # Errors
///
/// The driver refuses an object, or the other worker gives up. The context is over here.
pub(super) fn build<B: Backend>(context: &Context<B>, link: &Link) -> Result<(), ContextLost> {
    let Received { bytes, incoming: None, .. } = receive(link, (BYTES_MAX, 0))? else {
        return Err(ContextLost::new("contents ahead of their snapshot"));
    };
    if bytes.is_empty() {
        return Ok(());
    }
    let start = Instant::now();
    let steps = PreludeSteps::decode(&bytes).map_err(ContextLost::new)?;
    context.backend.rebuild(&steps, &[])?;
    log::debug!("prelude of {} bytes: built up in {:.1?}", bytes.len(), start.elapsed());
    Ok(())
}
