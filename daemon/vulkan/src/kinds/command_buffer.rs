//! Command buffers: their life cycle (Vulkan 6.1), and one recorder at a time for each pool.
//!
//! Drivers record into memory of the pool without a lock, so a thread that records, resets or frees holds the pool's lock while the driver
//! is called. A command buffer that names an object whose creation failed is *spoilt*: the rest of its recording is skipped and it
//! never reaches a queue. Beginning or resetting it heals it.

use super::query::{ActiveQueries, Touched};
use super::recorded::RecordedCommands;
use crate::context::budget::Counted;
use crate::context::error::{Fault, inconsistent};
use crate::logical::device::Device;
use crate::logical::submitted::Submitted;
use crate::objects::object::{Kind, State};
use crate::objects::usage::{Usage, Uses};
use crate::programs::notices::Success;
use parking_lot::{Mutex, MutexGuard};
use protocol::venus::generated as venus;
use shm::Told;
use slab::Slab;
use std::sync::Arc;

/// A command pool.
#[derive(Debug)]
pub struct CommandPool {
    /// The host's handle.
    pub raw: u64,
    /// The abilities of the host's queues of the pool's family.
    pub queue_flags: venus::QueueFlags,
    recordings: Mutex<Recordings>,
}

/// Everything allocated from one pool.
#[derive(Debug, Default)]
pub struct Recordings {
    live: Slab<Recording>,
    /// The submissions of command buffers that were freed while they were pending: the driver still has them.
    left: Submitted,
    destroyed: bool,
}

/// A command buffer.
#[derive(Debug)]
pub struct CommandBuffer {
    /// The host's handle.
    pub raw: u64,
    /// The device of the command buffer.
    pub device: Arc<Device>,
    /// The pool that it was allocated from.
    pub pool: Arc<CommandPool>,
    /// The place of its recording among those of its pool.
    pub place: usize,
}

/// The current recording of a command buffer.
#[derive(Debug)]
pub struct Recording {
    /// The host's handle.
    pub raw: u64,
    /// The guest's id.
    pub id: u64,
    /// The usages of the objects that the recording names.
    pub uses: Uses,
    /// The usage of the command buffer itself, which tells whether it is pending.
    pub usage: Arc<Usage>,
    /// The state that its commands may rely on.
    pub state: RecordingState,
    /// The commands of the recording, from the one that begins it.
    pub commands: RecordedCommands,
}

/// The state after the commands recorded so far, as far as later commands depend on it.
#[derive(Debug, Default)]
pub struct RecordingState {
    /// `VK_COMMAND_BUFFER_LEVEL_SECONDARY`.
    pub secondary: bool,
    /// Most groups of a dispatch.
    pub most_groups: [u32; 3],
    /// The stage of the life cycle that the command buffer is in.
    pub stage: Stage,
    /// `VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT`.
    pub one_time: bool,
    /// True if the recording was submitted since it was begun.
    pub was_submitted: bool,
    /// The `VkResult` of a tombstone that the recording named.
    pub spoilt: Option<i32>,
    /// The place where the recording stores `VK_SUCCESS`, if the guest may look for the result of a fence there.
    pub telling: Option<Success>,
    /// The entry by which the device process knows this place.
    pub told: Option<Told>,
    /// Pipelines and descriptor sets.
    pub bound: Bound,
    /// Queries that were begun.
    pub queries: ActiveQueries,
    /// Queries whose results change when the recording is executed.
    pub touched: Touched,
    /// Bytes of results that the recording writes in place of copies.
    pub written: usize,
}

/// The life cycle of a command buffer. Its usage tells whether it is pending, and the usages of the objects it names tell whether it is invalid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    /// Nothing is recorded.
    #[default]
    Initial,
    /// Recording was begun and is not ended.
    Recording,
    /// Recording was ended.
    Executable,
}

impl CommandPool {
    /// A pool without command buffers, for queues with these abilities.
    pub fn new(raw: u64, queue_flags: venus::QueueFlags) -> Self {
        Self { raw, queue_flags, recordings: Mutex::default() }
    }

    /// Locks the pool and all that is allocated from it. The lock is held while the driver records, never while it waits.
    pub fn lock(&self) -> MutexGuard<'_, Recordings> {
        self.recordings.lock()
    }

    /// Locks a pool that is to be used itself, unless another ring has destroyed it since it was looked up.
    pub fn lock_alive(&self) -> Result<MutexGuard<'_, Recordings>, Fault> {
        let recordings = self.lock();
        match recordings.destroyed {
            false => Ok(recordings),
            true => Err(Fault::invalid("a command pool is used while it is destroyed")),
        }
    }
}

impl Recordings {
    /// The place of the command buffer that is added next.
    pub fn next_place(&self) -> usize {
        self.live.vacant_key()
    }

    /// Adds a command buffer; `kept` counts the room for its commands.
    pub fn add(
        &mut self,
        raw: u64,
        id: u64,
        usage: Arc<Usage>,
        secondary: bool,
        most_groups: [u32; 3],
        kept: Counted,
    ) {
        let state = RecordingState { secondary, most_groups, ..RecordingState::default() };
        let commands = RecordedCommands::new(kept);
        self.live.insert(Recording { raw, id, uses: Uses::default(), usage, state, commands });
    }

    /// The recording of a command buffer, whatever its state.
    pub fn find(&mut self, command_buffer: &CommandBuffer) -> Result<&mut Recording, Fault> {
        // After the command buffer is freed, its place may belong to another.
        let found = self.live.get_mut(command_buffer.place).filter(|found| found.raw == command_buffer.raw);
        found.ok_or_else(|| Fault::invalid("a command buffer is used while it is freed"))
    }

    /// Returns the recording of a command buffer for further commands; fails if it is spoilt, so that they are skipped.
    pub fn open(&mut self, command_buffer: &CommandBuffer) -> Result<&mut Recording, Fault> {
        let recording = self.find(command_buffer)?;
        match (recording.state.stage, recording.state.spoilt) {
            (_, Some(result)) => Err(Fault::Failed(result)),
            (Stage::Recording, None) => Ok(recording),
            _ => Err(Fault::invalid("a command is recorded outside of begin and end")),
        }
    }

    /// Takes a command buffer out.
    pub fn remove(&mut self, command_buffer: &CommandBuffer) {
        if self.find(command_buffer).is_ok() {
            self.live.remove(command_buffer.place);
        }
    }

    /// All recordings of the pool.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Recording> {
        self.live.iter_mut().map(|(_, recording)| recording)
    }

    /// Marks the pool as destroyed, and takes all recordings out.
    pub fn close(&mut self) -> impl Iterator<Item = Recording> {
        self.destroyed = true;
        self.live.drain()
    }

    /// The submissions that any command buffer of the pool is in.
    pub fn submitted(&self) -> Submitted {
        let live = self.live.iter();
        live.fold(self.left.clone(), |all, (_, recording)| all.and(&recording.usage.submitted()))
    }

    /// Keeps the submissions of a freed command buffer that is still pending in the driver.
    pub fn leave(&mut self, submitted: &Submitted) {
        self.left = std::mem::take(&mut self.left).and(submitted);
    }
}

/// The recordings of one pool among the locked ones.
pub(crate) fn recordings_of<'l>(
    locked: &'l mut [(*const CommandPool, MutexGuard<'_, Recordings>)],
    pool: &Arc<CommandPool>,
) -> Result<&'l mut Recordings, Fault> {
    let found = locked.iter_mut().find(|(of, _)| *of == Arc::as_ptr(pool));
    found.map(|(_, recordings)| &mut **recordings).ok_or_else(inconsistent)
}

/// The kinds of pipelines that a recording has bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bound {
    /// A compute pipeline.
    pub compute: bool,
    /// A graphics pipeline.
    pub graphics: bool,
}

impl State for CommandPool {
    fn close(&self) {
        drop(self.lock().close());
    }
}

impl Kind for venus::CommandPool {
    type State = CommandPool;
}

impl State for CommandBuffer {}

impl Kind for venus::CommandBuffer {
    type State = CommandBuffer;
}
