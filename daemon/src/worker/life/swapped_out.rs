//! The back end of a worker without a driver: it keeps a context that is swapped out, as another worker has written it down, until the
//! guest's program goes on.
//!
//! Otherwise such a worker is like any other: its rings are alive. As soon as a ring has a command for the driver, messages are left, or the device
//! process sends one that is not about resources, the context moves to a worker with a driver. The command waits meanwhile, and is executed there.

use super::store::{Store, StoredContents};
use crate::ipc::{Channel, ToDevice};
use crate::worker::backend::{ARENA_KEPT, Backend, Contents};
use config::{ContextLimits, MemoryId};
use outside::HostMemory;
use parking_lot::Mutex;
use protocol::cursor::{Arena, Writer};
use protocol::venus::generated::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use vulkan::snapshot::step::{CacheData, Step};
use vulkan::snapshot::{Carry, NotMovable, Prelude, Saved, SavedFile};
use vulkan::{
    Budget, Cancel, Cause, ContextLost, Exported, Interrupted, Limit, Look, MemoryFile, NotExported,
    StateQuery, Stop, WatchdogWake,
};

/// The time between two looks of a waiting command whether it is to stop: at first, and at most.
const LOOK_FIRST: Duration = Duration::from_micros(50);
const LOOK_LAST: Duration = Duration::from_millis(10);

/// A context that is swapped out.
pub(super) struct SwappedOut {
    channel: Arc<Channel>,
    /// The device process was told that the program goes on.
    has_told: AtomicBool,
    /// Bytes of contents that the context may have, at most.
    contents_max: u64,
    /// Memory for decoded commands, as a driver's worker has it.
    decoded: Budget,
    parts: Mutex<Parts>,
    watchdog_wake: WatchdogWake,
}

/// The parts of a snapshot.
struct Parts {
    steps: Vec<Step>,
    files: Vec<Arc<MemoryFile>>,
    contents: Arc<Mutex<Store>>,
}

impl SwappedOut {
    /// Makes a back end that keeps nothing yet, and later at most `contents_max` bytes beside a snapshot and no more than `host` has room for. It
    /// reports through `channel` that the program goes on.
    pub(super) fn new(
        channel: Arc<Channel>,
        limits: &ContextLimits,
        contents_max: u64,
        host: HostMemory,
    ) -> Self {
        let (has_told, watchdog_wake) = Default::default();
        let contents = Arc::new(Mutex::new(Store::within(host)));
        let parts = Mutex::new(Parts { steps: Vec::new(), files: Vec::new(), contents });
        let decoded = Budget::new(Limit::ArenaBytes, limits.arena_bytes);
        Self { channel, has_told, contents_max, decoded, parts, watchdog_wake }
    }

    /// Asks for a worker with a driver, which executes the commands that cannot be executed here, and waits for the hand-over.
    fn wait_for_driver(&self, cancel: &Cancel) -> ContextLost {
        self.want_driver();
        let mut pause = LOOK_FIRST;
        loop {
            match cancel.stop() {
                None => std::thread::sleep(pause),
                Some(Stop::Interrupted) => return Interrupted.into(),
                Some(Stop::Cancelled) => return ContextLost::from(Cause::Ended),
            }
            pause = (2 * pause).min(LOOK_LAST);
        }
    }
}

impl Backend for SwappedOut {
    fn execute<'a>(
        &self,
        _: &Command<'a>,
        _: &'a [u8],
        _: &'a Arena,
        cancel: &Cancel,
        _: Option<&mut Writer<'_>>,
    ) -> Result<(), ContextLost> {
        Err(self.wait_for_driver(cancel))
    }

    fn arena(&self) -> Arena {
        Arena::within(ARENA_KEPT, self.decoded.count())
    }

    fn state_query(&self, _: &Command<'_>) -> Option<StateQuery<'_>> {
        None
    }

    fn record(&self, _: &[u8], _: &mut Arena, _: &Cancel) -> Result<usize, ContextLost> {
        Ok(0)
    }

    fn export(&self, _: u64, _: u64, _: bool) -> Result<Exported, NotExported> {
        Err(NotExported::SwappedOut)
    }

    fn blob_gone(&self, _: MemoryId) {}

    fn is_lending(&self) -> bool {
        false
    }

    fn is_coming_up(&self) -> bool {
        false
    }

    fn queue_fence(&self, _: u8, done: Box<dyn FnOnce() + Send>) {
        // All submissions had completed before the context was swapped out.
        done();
    }

    fn look(&self, _: bool) -> Look {
        Look::default()
    }

    fn watchdog_wake(&self) -> &WatchdogWake {
        &self.watchdog_wake
    }

    fn has_driver(&self) -> bool {
        false
    }

    fn want_driver(&self) {
        if !self.has_told.swap(true, Ordering::SeqCst) {
            // If the device process is gone, this process ends.
            let _ = self.channel.send(&ToDevice::Wakes, None);
        }
    }

    fn drain(&self, _: Duration) -> Result<(), NotMovable> {
        Ok(())
    }

    fn save_prelude(&self, _: &Prelude, _: Option<Carry>) -> Result<(Saved, Prelude), NotMovable> {
        // The GPU does not work for this context meanwhile, so a prelude would save no time.
        Err(NotMovable::for_now("the context is swapped out"))
    }

    fn deposit_all(&self) {}

    fn save_cache_data(&self) -> Option<Vec<CacheData>> {
        None
    }

    fn save(&self, _: &Prelude, _: Carry) -> Result<Saved, NotMovable> {
        let parts = self.parts.lock();
        let files = parts.files.iter().cloned().map(SavedFile::Here).collect();
        Ok(Saved::new(parts.steps.clone(), files, Carry::Copied))
    }

    fn replay(&self, _entries: &[&[u8]]) -> Result<(), ContextLost> {
        Err(ContextLost::broken("a journal without a driver"))
    }

    fn rebuild_ahead(&self, steps: &[Step], files: &[Arc<MemoryFile>]) -> Result<(), ContextLost> {
        self.rebuild(steps, files)
    }

    fn rebuild(&self, steps: &[Step], files: &[Arc<MemoryFile>]) -> Result<(), ContextLost> {
        match Step::contents_bytes(steps) {
            Some(0) => return Err(ContextLost::broken("contents of no bytes")),
            Some(bytes) if bytes > self.contents_max => {
                return Err(ContextLost::broken("more contents than the context may have"));
            }
            _ => {}
        }
        let mut parts = self.parts.lock();
        (parts.steps, parts.files) = (steps.to_vec(), files.to_vec());
        Ok(())
    }

    fn is_at_home(&self) -> bool {
        false
    }

    fn contents(&self, steps: &[Step]) -> Result<Option<Box<dyn Contents>>, ContextLost> {
        let Some(bytes) = Step::contents_bytes(steps) else { return Ok(None) };
        let store = Arc::clone(&self.parts.lock().contents);
        Ok(Some(Box::new(StoredContents::new(bytes, store))))
    }

    fn destroy_objects(&self) {}
}
