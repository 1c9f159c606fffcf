//! Command buffers: their life cycle (Vulkan 6.1), and one recorder at a time for each pool.
//!
//! Drivers record into memory of the pool without a lock, so whoever records, resets or frees holds the pool's lock while the driver
//! is called. A command buffer that names an object whose creation failed is *spoilt*: the rest of its recording is skipped and it
//! never reaches a queue. Beginning or resetting it heals it.

use super::call::{Call, inconsistent};
use super::device::Device;
use super::error::Fault;
use super::loss::Success;
use super::recorder::Recorder;
use super::submitted::{Place, Submitted};
use super::usage::{Usage, Uses};
use super::validity::binding::Bound;
use super::validity::buffers;
use super::validity::query::ActiveQueries;
use crate::shm::Told;
use parking_lot::{Mutex, MutexGuard};
use protocol::venus::generated as venus;
use slab::Slab;
use std::sync::Arc;

/// A command pool.
#[derive(Debug)]
pub struct CommandPool {
    /// The host's handle.
    pub raw: u64,
    recordings: Mutex<Recordings>,
}

/// Everything allocated from one pool.
#[derive(Debug, Default)]
pub struct Recordings {
    live: Slab<Recording>,
    /// The submissions of those that were freed while they were pending: the driver still has them.
    left: Submitted,
    destroyed: bool,
}

/// A command buffer.
#[derive(Debug)]
pub struct CommandBuffer {
    /// The host's handle.
    pub raw: u64,
    /// Its device.
    pub device: Arc<Device>,
    /// Where it was allocated.
    pub pool: Arc<CommandPool>,
    /// Its place among what is allocated there.
    pub place: usize,
}

/// How a recording stands.
#[derive(Debug)]
pub struct Recording {
    /// The host's handle.
    raw: u64,
    /// The guest's id.
    pub id: u64,
    /// What it names.
    pub uses: Uses,
    /// Whether it is pending itself.
    pub usage: Arc<Usage>,
    /// What its commands may rely on.
    pub state: RecordingState,
}

/// What was recorded so far, as far as later commands depend on it.
#[derive(Debug, Default)]
pub struct RecordingState {
    /// `VK_COMMAND_BUFFER_LEVEL_SECONDARY`.
    pub secondary: bool,
    /// Most groups of a dispatch.
    pub most_groups: [u32; 3],
    /// Where it is in its life cycle.
    pub stage: Stage,
    /// It named a tombstone with this `VkResult`.
    pub spoilt: Option<i32>,
    /// It stores `VK_SUCCESS` where the guest may look for the result of a fence.
    pub telling: Option<Success>,
    /// The device process knows where that is.
    told: Option<Told>,
    /// Pipelines and descriptor sets.
    pub bound: Bound,
    /// Queries that were begun.
    pub queries: ActiveQueries,
}

/// Life cycle of a command buffer. Pending is told by its usage, invalid by those of what it names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    /// Nothing is recorded.
    #[default]
    Initial,
    /// Between begin and end.
    Recording,
    /// Ended.
    Executable,
}

impl CommandPool {
    /// A pool without command buffers.
    pub fn new(raw: u64) -> Self {
        Self { raw, recordings: Mutex::default() }
    }

    /// Locks the pool and all that is allocated from it. Held while the driver records, never while it waits.
    pub fn lock(&self) -> MutexGuard<'_, Recordings> {
        self.recordings.lock()
    }

    /// Locks a pool that is to be used itself: another ring may have destroyed it since it was looked up.
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

    /// Adds a command buffer.
    pub fn add(&mut self, raw: u64, id: u64, usage: Arc<Usage>, secondary: bool, most_groups: [u32; 3]) {
        let state = RecordingState { secondary, most_groups, ..RecordingState::default() };
        self.live.insert(Recording { raw, id, uses: Uses::default(), usage, state });
    }

    /// The recording of a command buffer, whatever its state.
    pub fn find(&mut self, command_buffer: &CommandBuffer) -> Result<&mut Recording, Fault> {
        // Once it is freed its place may be another's.
        let found = self.live.get_mut(command_buffer.place).filter(|found| found.raw == command_buffer.raw);
        found.ok_or_else(|| Fault::invalid("a command buffer is used while it is freed"))
    }

    /// The recording of a command buffer that commands can be recorded into; one that is spoilt is skipped.
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

    /// All of them.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Recording> {
        self.live.iter_mut().map(|(_, recording)| recording)
    }

    /// The pool is destroyed: takes all out.
    pub fn close(&mut self) -> impl Iterator<Item = Recording> {
        self.destroyed = true;
        self.live.drain()
    }

    /// The submissions that any of them is in.
    pub fn submitted(&self) -> Submitted {
        let live = self.live.iter();
        live.fold(self.left.clone(), |all, (_, recording)| all.and(&recording.usage.submitted()))
    }

    /// One was freed that the driver still has, as it is pending.
    pub fn leave(&mut self, submitted: &Submitted) {
        self.left = std::mem::take(&mut self.left).and(submitted);
    }
}

impl Recording {
    /// Back to the initial state; spoilt no more. Recordings that execute a secondary as it was can no longer be submitted.
    pub fn restart(&mut self, call: &Call<'_>) -> Result<(), Fault> {
        self.uses.clear();
        let RecordingState { secondary, most_groups, .. } = self.state;
        self.state = RecordingState { secondary, most_groups, ..RecordingState::default() };
        if secondary {
            let fresh = Arc::new(Usage::default());
            self.usage.end();
            self.usage = Arc::clone(&fresh);
            call.renderer.objects.update(venus::CommandBuffer(self.id), |object| object.usage = fresh)?;
        }
        Ok(())
    }
}

/// `vkBeginCommandBuffer`.
pub fn begin_command_buffer<'a>(
    call: &Call<'a>,
    c: &venus::BeginCommandBuffer<'a>,
) -> Result<venus::BeginCommandBufferReply, Fault> {
    let command_buffer = call.command_buffer(c.command_buffer)?;
    let Some(info) = c.p_begin_info else {
        return Err(Fault::lost("vkBeginCommandBuffer without a description"));
    };
    let mut recordings = command_buffer.pool.lock();
    let recording = recordings.find(&command_buffer)?;
    if recording.state.secondary && info.p_inheritance_info.is_none() {
        return Err(Fault::invalid("a secondary command buffer begins without inheritance"));
    }
    call.await_submitted(&command_buffer.device, &recording.usage.submitted(), "vkBeginCommandBuffer")?;
    recording.restart(call)?;
    let info = match recording.state.secondary {
        true => *info,
        // Ignored by Vulkan, and so better not shown.
        false => venus::CommandBufferBeginInfo { p_inheritance_info: None, ..*info },
    };
    let info = call.recording(&recording.uses).pointer(Some(&info))?;
    let Some(function) = command_buffer.device.table.begin_command_buffer else {
        return Err(Fault::missing("vkBeginCommandBuffer"));
    };
    // SAFETY: the command buffer is live and its pool is locked, `info` and what it points to live in the arena.
    let result = unsafe { function(command_buffer.raw, info) };
    if result == 0 {
        recording.state.stage = Stage::Recording;
    }
    Ok(venus::BeginCommandBufferReply { result: venus::VkResult(result) })
}

/// `vkEndCommandBuffer`.
pub fn end_command_buffer(
    call: &Call<'_>,
    c: &venus::EndCommandBuffer,
) -> Result<venus::EndCommandBufferReply, Fault> {
    let command_buffer = call.command_buffer(c.command_buffer)?;
    let mut recordings = command_buffer.pool.lock();
    let recording = recordings.open(&command_buffer)?;
    let Some(function) = command_buffer.device.table.end_command_buffer else {
        return Err(Fault::missing("vkEndCommandBuffer"));
    };
    // SAFETY: the command buffer is live and its pool is locked.
    let result = unsafe { function(command_buffer.raw) };
    if result == 0 {
        recording.state.stage = Stage::Executable;
    }
    Ok(venus::EndCommandBufferReply { result: venus::VkResult(result) })
}

/// `vkResetCommandBuffer`.
pub fn reset_command_buffer(
    call: &Call<'_>,
    c: &venus::ResetCommandBuffer,
) -> Result<venus::ResetCommandBufferReply, Fault> {
    let command_buffer = call.command_buffer(c.command_buffer)?;
    let mut recordings = command_buffer.pool.lock();
    let recording = recordings.find(&command_buffer)?;
    call.await_submitted(&command_buffer.device, &recording.usage.submitted(), "vkResetCommandBuffer")?;
    recording.restart(call)?;
    let Some(function) = command_buffer.device.table.reset_command_buffer else {
        return Err(Fault::missing("vkResetCommandBuffer"));
    };
    // SAFETY: the command buffer is live, not pending, and its pool is locked.
    let result = unsafe { function(command_buffer.raw, c.flags.0) };
    Ok(venus::ResetCommandBufferReply { result: venus::VkResult(result) })
}

/// Marks a command buffer and all that it names as part of a submission.
///
/// One that is spoilt or not ended must not run: its work is lost, and with it the device as the guest sees it.
pub fn submit(call: &Call<'_>, id: venus::CommandBuffer, place: Place) -> Result<(), Fault> {
    let command_buffer = call.command_buffer(id)?;
    let mut recordings = command_buffer.pool.lock();
    let recording = recordings.find(&command_buffer)?;
    if let Some(result) = recording.state.spoilt {
        return Err(Fault::lost(format!(
            "a submitted command buffer uses an object whose creation failed ({result})"
        )));
    }
    if recording.state.stage != Stage::Executable || recording.state.secondary {
        return Err(Fault::lost("a submitted command buffer is not executable"));
    }
    recording.usage.submit(place);
    if !recording.uses.submit(place) {
        return Err(Fault::lost("a submitted command buffer uses an object that was destroyed"));
    }
    Ok(())
}

/// Those of one pool among the locked ones.
fn recordings_of<'l>(
    locked: &'l mut [(*const CommandPool, MutexGuard<'_, Recordings>)],
    pool: &Arc<CommandPool>,
) -> Result<&'l mut Recordings, Fault> {
    let found = locked.iter_mut().find(|(of, _)| *of == Arc::as_ptr(pool));
    found.map(|(_, recordings)| &mut **recordings).ok_or_else(inconsistent)
}

/// `vkCmdFillBuffer`: noted if it may be what Mesa before 26.2 makes for each fence.
pub fn cmd_fill_buffer(r: &mut Recorder<'_>, c: &venus::CmdFillBuffer) -> Result<(), Fault> {
    let (CommandBuffer { raw, device, .. }, renderer) = (r.command_buffer, r.renderer);
    let Some(function) = device.table.cmd_fill_buffer else {
        return Err(Fault::missing("vkCmdFillBuffer"));
    };
    let (l, state) = r.lowering();
    buffers::cmd_fill_buffer(&l, c)?;
    let (buffer, word) = (l.handle(c.dst_buffer)?, l.objects.buffer(c.dst_buffer)?.place(c.dst_offset));
    // SAFETY: command buffer and buffer are live, the pool is locked.
    unsafe { function(*raw, buffer, c.dst_offset, c.size, c.data) };
    if (c.size, c.data) == (4, 0) {
        state.telling = Some((buffer, c.dst_offset));
        state.told = word.and_then(|(memory, offset)| renderer.results.as_ref()?.tell((memory.0, offset)));
    }
    Ok(())
}

/// What of a command buffer can run on a device that is lost for the guest: the host's handle, and whom it tells of success.
pub fn runs(call: &Call<'_>, id: venus::CommandBuffer) -> Result<Option<(u64, Option<Success>)>, Fault> {
    let command_buffer = match call.command_buffer(id) {
        Err(Fault::Failed(_)) => return Ok(None),
        found => found?,
    };
    let mut recordings = command_buffer.pool.lock();
    let Ok(recording) = recordings.find(&command_buffer) else { return Ok(None) };
    let state = &recording.state;
    let sound = state.spoilt.is_none() && state.stage == Stage::Executable && recording.uses.is_alive();
    Ok(sound.then_some((command_buffer.raw, state.telling)))
}

/// A command buffer that names a tombstone must not run: its work is lost, and with it the device as the guest sees it. Of another
/// answers whether programs hear of its progress ([`Uses::set_heard`]).
pub fn refuse_spoilt(call: &Call<'_>, id: venus::CommandBuffer) -> Result<bool, Fault> {
    let command_buffer = call.command_buffer(id)?;
    let mut recordings = command_buffer.pool.lock();
    let recording = recordings.find(&command_buffer)?;
    match recording.state.spoilt {
        Some(result) => Err(Fault::Failed(result)),
        None => Ok(recording.uses.is_heard()),
    }
}

/// `vkCmdExecuteCommands`: with the pools of all that take part locked, in one order for everybody.
pub fn cmd_execute_commands<'a>(
    call: &Call<'a>,
    c: &venus::CmdExecuteCommands<'a>,
) -> Result<venus::CmdExecuteCommandsReply, Fault> {
    let primary = call.command_buffer(c.command_buffer)?;
    let ids = c.p_command_buffers.unwrap_or(&[]).iter();
    let secondaries = ids.map(|id| call.command_buffer(*id)).collect::<Result<Vec<_>, _>>()?;
    if secondaries.iter().any(|secondary| !Arc::ptr_eq(&secondary.device, &primary.device)) {
        return Err(Fault::invalid("an object of another device"));
    }
    let mut pools: Vec<_> = secondaries.iter().chain([&primary]).map(|buffer| &buffer.pool).collect();
    pools.sort_by_key(|pool| Arc::as_ptr(pool));
    pools.dedup_by_key(|pool| Arc::as_ptr(pool));
    let mut locked: Vec<_> = pools.iter().map(|pool| (Arc::as_ptr(pool), pool.lock())).collect();
    let named = Uses::default();
    for secondary in &secondaries {
        let recording = recordings_of(&mut locked, &secondary.pool)?.find(secondary)?;
        match (recording.state.stage, recording.state.spoilt, recording.state.secondary) {
            (_, Some(result), _) => return Err(Fault::Failed(result)),
            (Stage::Executable, None, true) => named.add_all(&recording.uses),
            _ => return Err(Fault::invalid("vkCmdExecuteCommands with what is no executable secondary")),
        }
        named.add(&recording.usage);
    }
    let recording = recordings_of(&mut locked, &primary.pool)?.open(&primary)?;
    recording.uses.add_all(&named);
    // What is bound is undefined behind it.
    recording.state.bound = Bound::default();
    let raws: Vec<u64> = secondaries.iter().map(|secondary| secondary.raw).collect();
    let Some(function) = primary.device.table.cmd_execute_commands else {
        return Err(Fault::missing("vkCmdExecuteCommands"));
    };
    // SAFETY: all command buffers are live, their pools are locked, and `raws` lives until the call returns.
    unsafe { function(primary.raw, raws.len() as u32, raws.as_ptr()) };
    Ok(venus::CmdExecuteCommandsReply {})
}
