//! This file declares what the worker needs of the host's Vulkan driver; tests put a fake in its place.

use config::MemoryId;
use protocol::cursor::{Arena, Writer};
use protocol::venus::generated::Command;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use vulkan::snapshot::step::{CacheData, Step};
use vulkan::snapshot::{Carry, NotMovable, Prelude, Saved};
use vulkan::{
    Cancel, ContextLost, Exported, Look, MemoryFile, NotExported, Renderer, StateQuery, WatchdogWake,
};

/// An arena that grew beyond this for one command is freed.
pub(super) const ARENA_KEPT: usize = 1 << 20;

/// Executes commands of one context. Shared by the threads of all its rings.
pub(super) trait Backend: Send + Sync + 'static {
    /// Executes one command that is not a transport command. `bytes` is the command's own encoding; `reply` is given if and only
    /// if the driver wants one.
    fn execute<'a>(
        &self,
        command: &Command<'a>,
        bytes: &'a [u8],
        arena: &'a Arena,
        cancel: &Cancel,
        reply: Option<&mut Writer<'_>>,
    ) -> Result<(), ContextLost>;

    /// Returns memory for the decoded values of one executor, with [`ARENA_KEPT`] bytes of its own.
    fn arena(&self) -> Arena;

    /// Returns the state query that a command makes, if its answer may change in a moment without an action of the guest.
    fn state_query(&self, command: &Command<'_>) -> Option<StateQuery<'_>>;

    /// Executes the recorded commands that a stream begins with; answers their bytes, 0 if the first command is to be executed by
    /// [`Self::execute`]. See [`Renderer::record`].
    fn record(&self, bytes: &[u8], arena: &mut Arena, cancel: &Cancel) -> Result<usize, ContextLost>;

    /// Makes the pages of a memory object available to others.
    fn export(&self, memory: u64, size: u64, mappable: bool) -> Result<Exported, NotExported>;

    /// Tells that no blob is left of memory that is lent ([`Exported::lent`]), or of memory that no other process holds.
    fn blob_gone(&self, memory: MemoryId);

    /// Returns whether memory is lent. Whatever happens, the driver must not free it before this process has ended.
    fn is_lending(&self) -> bool;

    /// Returns whether the driver is starting, which nothing stops; see [`Renderer::is_coming_up`].
    fn is_coming_up(&self) -> bool;

    /// Calls `done`, on any thread, when all work submitted so far to the queue of this timeline is complete; at once if there is
    /// no such queue or it is lost.
    fn queue_fence(&self, ring_idx: u8, done: Box<dyn FnOnce() + Send>);

    /// Looks at the submissions that run on all queues; see [`Renderer::look`].
    fn look(&self, restart: bool) -> Look;

    /// Looks which submissions are complete; see [`Renderer::collect`].
    fn collect(&self) {}

    /// Returns the signal that there are submissions to look at.
    fn watchdog_wake(&self) -> &WatchdogWake;

    /// Returns whether commands can be executed here. If not, a worker with a driver has to take the context over first.
    fn has_driver(&self) -> bool;

    /// Asks for a worker with a driver, unless this context has already asked.
    fn want_driver(&self);

    /// Waits until everything that was submitted has completed; see [`Renderer::drain`].
    fn drain(&self, patience: Duration) -> Result<(), NotMovable>;

    /// Writes down the objects that a successor can make before this context rests; see [`Renderer::save_prelude`].
    fn save_prelude(&self, so_far: &Prelude, memory: Option<Carry>) -> Result<(Saved, Prelude), NotMovable>;

    /// Deposits the memory that a checkpoint needs, as far as that is possible ahead; see [`Renderer::deposit_all`].
    fn deposit_all(&self);

    /// Returns the data of pipeline caches, if there are new ones; see [`Renderer::save_cache_data`].
    fn save_cache_data(&self) -> Option<Vec<CacheData>>;

    /// Writes down the guest's objects that are not in the prelude; see [`Renderer::save`].
    fn save(&self, prelude: &Prelude, carry: Carry) -> Result<Saved, NotMovable>;

    /// Makes the objects that [`Self::save_prelude`] of another process, which still runs, has written down; see [`Renderer::rebuild_ahead`].
    fn rebuild_ahead(&self, steps: &[Step], files: &[Arc<MemoryFile>]) -> Result<(), ContextLost>;

    /// Makes the objects that [`Self::save`] of another process has written down; see [`Renderer::rebuild`].
    fn rebuild(&self, steps: &[Step], files: &[Arc<MemoryFile>]) -> Result<(), ContextLost>;

    /// Executes again, in order, the commands that another process has executed since; see [`Renderer::replay`].
    fn replay(&self, entries: &[&[u8]]) -> Result<(), ContextLost>;

    /// Returns whether the driver's memory of the predecessor's process is available here; see [`Renderer::is_at_home`].
    fn is_at_home(&self) -> bool;

    /// Returns the contents of memory that a snapshot does not have; see [`Renderer::contents`].
    fn contents(&self, steps: &[Step]) -> Result<Option<Box<dyn Contents>>, ContextLost>;

    /// Destroys everything the guest made, after waiting for the GPU. May take for ever on a lost device. Nothing is lent.
    fn destroy_objects(&self);
}

/// The contents of memory that only the driver uses: one sequence of bytes, whose parts pass through a memory file; see
/// [`vulkan::snapshot::Contents`].
pub(super) trait Contents {
    /// Returns the number of bytes: whole pages.
    fn bytes(&self) -> u64;

    /// Has contents pass through the first `bytes` of a file from now on.
    fn stage(&mut self, file: &Arc<MemoryFile>, bytes: u64) -> Result<(), ContextLost>;

    /// Begins to copy these bytes of the contents to `staged_at` in the file.
    fn read(&mut self, bytes: Range<u64>, staged_at: u64) -> Result<(), ContextLost>;

    /// Begins to fill these bytes of the contents from `staged_at` in the file.
    fn write(&mut self, bytes: Range<u64>, staged_at: u64) -> Result<(), ContextLost>;

    /// Waits until the oldest copy that was not waited for has ended.
    fn finish(&mut self) -> Result<(), ContextLost>;
}

impl Contents for vulkan::snapshot::Contents {
    fn bytes(&self) -> u64 {
        self.bytes()
    }

    fn stage(&mut self, file: &Arc<MemoryFile>, bytes: u64) -> Result<(), ContextLost> {
        self.stage(file, bytes)
    }

    fn read(&mut self, bytes: Range<u64>, staged_at: u64) -> Result<(), ContextLost> {
        self.read(bytes, staged_at)
    }

    fn write(&mut self, bytes: Range<u64>, staged_at: u64) -> Result<(), ContextLost> {
        self.write(bytes, staged_at)
    }

    fn finish(&mut self) -> Result<(), ContextLost> {
        self.finish()
    }
}

impl Backend for Renderer {
    fn execute<'a>(
        &self,
        command: &Command<'a>,
        bytes: &'a [u8],
        arena: &'a Arena,
        cancel: &Cancel,
        reply: Option<&mut Writer<'_>>,
    ) -> Result<(), ContextLost> {
        Renderer::execute(self, command, bytes, arena, cancel, reply)
    }

    fn arena(&self) -> Arena {
        Renderer::arena(self, ARENA_KEPT)
    }

    fn state_query(&self, command: &Command<'_>) -> Option<StateQuery<'_>> {
        Renderer::state_query(self, command)
    }

    fn record(&self, bytes: &[u8], arena: &mut Arena, cancel: &Cancel) -> Result<usize, ContextLost> {
        Renderer::record(self, bytes, arena, cancel)
    }

    fn export(&self, memory: u64, size: u64, mappable: bool) -> Result<Exported, NotExported> {
        Renderer::export(self, memory, size, mappable)
    }

    fn blob_gone(&self, memory: MemoryId) {
        Renderer::blob_gone(self, memory);
    }

    fn is_lending(&self) -> bool {
        Renderer::is_lending(self)
    }

    fn is_coming_up(&self) -> bool {
        Renderer::is_coming_up(self)
    }

    fn queue_fence(&self, ring_idx: u8, done: Box<dyn FnOnce() + Send>) {
        Renderer::queue_fence(self, ring_idx, done);
    }

    fn look(&self, restart: bool) -> Look {
        Renderer::look(self, restart)
    }

    fn collect(&self) {
        Renderer::collect(self);
    }

    fn watchdog_wake(&self) -> &WatchdogWake {
        Renderer::watchdog_wake(self)
    }

    fn has_driver(&self) -> bool {
        true
    }

    fn want_driver(&self) {}

    fn drain(&self, patience: Duration) -> Result<(), NotMovable> {
        Renderer::drain(self, patience)
    }

    fn save_prelude(&self, so_far: &Prelude, memory: Option<Carry>) -> Result<(Saved, Prelude), NotMovable> {
        Renderer::save_prelude(self, so_far, memory)
    }

    fn deposit_all(&self) {
        Renderer::deposit_all(self);
    }

    fn save_cache_data(&self) -> Option<Vec<CacheData>> {
        Renderer::save_cache_data(self)
    }

    fn save(&self, prelude: &Prelude, carry: Carry) -> Result<Saved, NotMovable> {
        Renderer::save(self, prelude, carry)
    }

    fn rebuild_ahead(&self, steps: &[Step], files: &[Arc<MemoryFile>]) -> Result<(), ContextLost> {
        Renderer::rebuild_ahead(self, steps, files)
    }

    fn rebuild(&self, steps: &[Step], files: &[Arc<MemoryFile>]) -> Result<(), ContextLost> {
        Renderer::rebuild(self, steps, files)
    }

    fn replay(&self, entries: &[&[u8]]) -> Result<(), ContextLost> {
        Renderer::replay(self, entries)
    }

    fn is_at_home(&self) -> bool {
        Renderer::is_at_home(self)
    }

    fn contents(&self, steps: &[Step]) -> Result<Option<Box<dyn Contents>>, ContextLost> {
        let contents = Renderer::contents(self, steps)?;
        Ok(contents.map(|contents| Box::new(contents) as _))
    }

    fn destroy_objects(&self) {
        Renderer::destroy_objects(self);
    }
}
