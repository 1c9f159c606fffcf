//! A checkpoint: the context as it is at a moment, written into a memory file that the device process keeps. Should this process die by itself, a
//! successor builds the context up from there and from the journal (`worker::journal`), which has the commands executed since.
//!
//! A checkpoint has the same bytes as a handed-over context. The context goes on at once.

use super::hand_over::{come_to_rest, written};
use super::snapshot::CacheParts;
use crate::worker::allowance::Allowances;
use crate::worker::backend::Backend;
use crate::worker::context::Context;
use crate::worker::stream::Executor;
use config::MemoryName;
use shm::Mapping;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use vulkan::snapshot::step::Step;
use vulkan::snapshot::{Carry, NotMovable, Prelude};

/// Time that rings have to stop between two commands. A ring that needs longer executes a long command, and the other rings do not wait for that.
const STOP_MAX: Duration = Duration::from_millis(200);

/// Time that submissions of a busy context have to complete, and fences to pass. No commands are executed meanwhile.
const DRAIN_MAX: Duration = Duration::from_millis(20);

/// A checkpoint that is written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Written {
    /// The size of the checkpoint, in bytes.
    pub bytes: u64,
    /// The time from when the worker stopped the rings to when the checkpoint was written.
    pub took: Duration,
}

/// Writes a checkpoint into a file. The caller is between two commands of the virtqueue's stream, whose executor is `virtqueue`, and tells all rings to go
/// on later.
///
/// # Errors
///
/// The context is busy, or cannot be built up from files.
pub(super) fn write<B: Backend>(
    context: &Context<B>,
    virtqueue: &mut Executor<B>,
    allowances: &Allowances,
    caches: &mut CacheDataKept,
    file: Option<OwnedFd>,
) -> Result<Written, NotMovable> {
    let file = file.ok_or_else(|| NotMovable::ever("a checkpoint without a file"))?;
    // It takes some 0.1 ms for each new allocation, during which nothing has to rest.
    context.backend.deposit_all();
    caches.keep(context);
    let start = Instant::now();
    come_to_rest(context, STOP_MAX, DRAIN_MAX, DRAIN_MAX)?;
    virtqueue.rest();
    if let Some(mark) = &context.checkpoint {
        mark.begins();
    }
    let rested = start.elapsed();
    let saved = context.backend.save(&Prelude::default(), Carry::Deposited)?;
    if Step::contents_bytes(&saved.steps).is_some() {
        return Err(NotMovable::ever(
            "it has memory of the GPU that its driver does not give away, which would be gone with its worker",
        ));
    }
    if saved.files.iter().any(|file| file.name() == MemoryName::Unnamed) {
        return Err(NotMovable::ever("memory that the device process does not count"));
    }
    let (bytes, _) = written(context, (virtqueue, Vec::new()), allowances, saved)?;
    let size = bytes.len() as u64;
    if rustix::fs::fstat(&file).map_or(0, |stat| stat.st_size as u64) < size {
        return Err(NotMovable::ever("limit checkpoint_bytes reached"));
    }
    let failed = |error: String| NotMovable::for_now(format!("the checkpoint cannot be written: {error}"));
    let mapping = Mapping::new(&file, size).map_err(|error| failed(error.to_string()))?;
    mapping.copy_in(0, &bytes).map_err(|error| failed(error.to_string()))?;
    log::debug!(
        "a checkpoint is written: {size} bytes, at rest after {rested:.1?}, written after {:.1?}",
        start.elapsed()
    );
    Ok(Written { bytes: size, took: start.elapsed() })
}

/// The worker keeps the data of pipeline caches beside the journal.
#[derive(Debug, Default)]
pub(super) struct CacheDataKept {
    /// The time before which the worker does not look for new data.
    next: Option<Instant>,
}

/// After a look the worker pauses for so many times as long as the look took.
const CACHE_PAUSE: u32 = 100;

impl CacheDataKept {
    /// Keeps the data of pipeline caches, if there are new ones and a journal. Commands go on meanwhile.
    fn keep<B: Backend>(&mut self, context: &Context<B>) {
        let start = Instant::now();
        let Some(journal) = context.journal.get().filter(|_| self.next.is_none_or(|next| start >= next))
        else {
            return;
        };
        let Some(all) = context.backend.save_cache_data() else { return };
        match CacheParts::encode(all) {
            Ok(bytes) => journal.keep_cache_data(&bytes),
            Err(why) => log::debug!("the data of pipeline caches are not kept: {why}"),
        }
        self.next = Some(Instant::now() + start.elapsed() * CACHE_PAUSE);
    }
}
