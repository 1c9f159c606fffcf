//! Executes command streams: decodes one command after another, executes the transport's own commands and passes all others on.
//!
//! There is one executor per ring and one for the virtqueue. Each has its own reply stream and its own memory for decoded values,
//! reused from command to command, so that the common case allocates nothing. Follows VK_EXT_command_serialization.

use super::at_rest::{AtRest, Begin};
use super::backend::{ARENA_KEPT, Backend};
use super::context::Context;
use super::inbox::Inbox;
use super::journal::{Batches, Notes, Whereabouts};
use super::reply::ReplyStream;
use super::ring::Ring;
use super::transport;
use protocol::cursor::{Arena, Limits, Reader, Writer};
use protocol::venus::generated::{Command, CommandStreamDescriptionMESA};
use protocol::venus::stream::Header;
use shm::Mapping;
use std::sync::Arc;
use vulkan::{Cancel, Cause, ContextLost, InheritedError, Interrupted, Stop};
use waiting::hold::Holds;
use waiting::tunables;

/// The place that the commands of an executor come from. Some commands belong to one of the two only.
pub(super) enum Place {
    /// SUBMIT_3D payloads.
    Virtqueue(Arc<Inbox>),
    /// This ring.
    Ring(Arc<Ring>),
}

/// Executes streams of one place.
pub(super) struct Executor<B> {
    arena: Arena,
    /// Room for indirect streams, empty between commands.
    copied: Vec<u8>,
    /// The notes of executed commands.
    notes: Notes,
    state: StreamState<B>,
}

/// The state that commands change while their values are in the arena.
pub(super) struct StreamState<B> {
    pub context: Arc<Context<B>>,
    pub place: Place,
    pub reply: ReplyStream,
    /// Streams that the current command wants executed.
    pub indirect: Vec<CommandStreamDescriptionMESA>,
    /// The current command is from such a stream itself.
    pub within_indirect: bool,
    /// The executed bytes of the streams of an interrupted command. It was answered already, and is the next command again.
    begun: Option<usize>,
    /// The habits of delayed answers.
    holds: Holds,
}

impl<B: Backend> Executor<B> {
    /// Makes an executor that goes on from `begin`; by default, without a reply stream.
    pub(super) fn new(context: Arc<Context<B>>, place: Place, Begin { reply, begun }: Begin) -> Self {
        let arena = context.backend.arena();
        let holds = Holds::new(tunables().hold);
        let (indirect, within_indirect) = Default::default();
        Self {
            arena,
            copied: Vec::new(),
            notes: Notes::default(),
            state: StreamState { context, place, reply, indirect, within_indirect, begun, holds },
        }
    }

    /// Returns the state that another executor needs to go on here. Call it between two commands.
    pub(super) fn at_rest(&self) -> AtRest {
        let StreamState { context, reply, begun, .. } = &self.state;
        AtRest { reply: reply.place(&context.resources), begun: begun.map(|bytes| bytes as u64) }
    }

    /// Returns the same state, and releases the journal.
    pub(super) fn rest(&mut self) -> AtRest {
        self.notes.rest();
        self.at_rest()
    }

    /// Returns the memory for the commands of the ring whose executor this is.
    pub(super) fn batches(&self) -> Batches<B> {
        self.notes.batches(&self.state.context)
    }

    /// Executes a stream from byte `done` on, and advances `done` behind each command, even if a wait is interrupted.
    pub(super) fn run_from(&mut self, bytes: &[u8], done: &mut usize) -> Result<(), ContextLost> {
        loop {
            let rest = bytes.get(*done..).ok_or(InheritedError::Broken("a stream has become shorter"))?;
            if rest.is_empty() {
                return Ok(());
            }
            match self.state.cancel().stop() {
                None => *done += self.run_some(rest)?,
                Some(Stop::Cancelled) => return Err(Cause::Ended.into()),
                Some(Stop::Interrupted) => return Err(Interrupted.into()),
            }
        }
    }

    /// Executes the first command of `bytes`, or the first few if they are recorded one after the other, and answers their length.
    pub(super) fn run_some(&mut self, bytes: &[u8]) -> Result<usize, ContextLost> {
        let note = self.notes.begins(&self.state.whereabouts(), bytes);
        let executed = self.run_first(bytes);
        let length = match note {
            Some(note) => self.notes.ends(&self.state.whereabouts(), note, bytes, executed)?,
            None => executed?,
        };
        if self.arena.allocated_bytes() > ARENA_KEPT {
            self.arena = self.state.context.backend.arena();
        }
        Ok(length)
    }

    fn run_first(&mut self, bytes: &[u8]) -> Result<usize, ContextLost> {
        let Self { arena, state, .. } = self;
        if let Place::Ring(ring) = &state.place
            && takes_runs()
        {
            let length = state.context.backend.record(bytes, arena, ring.cancel())?;
            if length > 0 {
                return Ok(length);
            }
        }
        arena.reset();
        let length = state.run_first(bytes, arena)?;
        if !self.state.indirect.is_empty() {
            self.run_indirect()?;
        }
        Ok(length)
    }

    /// `vkExecuteCommandStreamsMESA`: copies the streams out, one behind the other, and executes them or their rest.
    fn run_indirect(&mut self) -> Result<(), ContextLost> {
        let mut done = self.state.begun.take().unwrap_or(0);
        self.notes.enters(&self.state.whereabouts(), done);
        let executed = self.run_copied(&mut done);
        self.state.indirect.clear();
        self.state.within_indirect = false;
        match &executed {
            Ok(()) => self.notes.leaves(),
            Err(lost) if lost.is_interruption() => self.state.begun = Some(done),
            Err(_) => {}
        }
        executed
    }

    fn run_copied(&mut self, done: &mut usize) -> Result<(), ContextLost> {
        let (bytes, _counted) = transport::count_streams(&self.state)?;
        if let Some(mut noted) = self.notes.streams(&self.state.context, bytes) {
            return self.run_streams(&mut noted, done);
        }
        let mut copied = std::mem::take(&mut self.copied);
        copied.resize(bytes, 0);
        let executed = self.run_streams(&mut copied, done);
        if copied.capacity() <= COPIED_KEPT {
            self.copied = copied;
        }
        executed
    }

    fn run_streams(&mut self, bytes: &mut [u8], done: &mut usize) -> Result<(), ContextLost> {
        transport::copy_streams(&self.state, bytes)?;
        self.state.indirect.clear();
        self.state.within_indirect = true;
        self.run_from(bytes, done)
    }
}

impl<B: Backend> StreamState<B> {
    /// Returns the state that notes are made of.
    #[inline]
    fn whereabouts(&self) -> Whereabouts<'_, B> {
        let ring = match &self.place {
            Place::Ring(ring) => Some(&**ring),
            Place::Virtqueue(_) => None,
        };
        Whereabouts { context: &self.context, ring, reply: &self.reply, begun: self.begun }
    }

    fn run_first(&mut self, bytes: &[u8], arena: &Arena) -> Result<usize, ContextLost> {
        let mut limits = Limits::default();
        limits.out_budget = limits.out_budget.max(self.reply.room() as u64);
        let mut reader = Reader::with_limits(bytes, arena, limits);
        let header = Header::decode(&mut reader)?;
        let named = |error: ContextLost| error.within(header.number);
        let command = Command::decode(header.number, &mut reader).map_err(|error| named(error.into()))?;
        let (bytes, behind) = bytes.split_at(reader.offset());
        // Logged before the execution: if a driver kills the worker, its last line names the command that the driver was given.
        log::trace!("{} ({} bytes)", Command::name(header.number).unwrap_or_default(), bytes.len());
        #[cfg(feature = "fuzzing")]
        super::fuzzing::record::command(header.number, bytes);
        if header.wants_reply() && behind.is_empty() {
            self.hold(&command);
        }
        self.execute(&command, bytes, arena, header.wants_reply()).map_err(named)?;
        Ok(bytes.len())
    }

    /// Delays the answer of a ring's last command while it is "not yet", if that helps the program that waits for the answer.
    fn hold(&mut self, command: &Command<'_>) {
        let Self { context, place: Place::Ring(ring), within_indirect: false, holds, .. } = self else {
            return;
        };
        if let Some(query) = context.backend.state_query(command) {
            holds.hold(&query, || ring.is_pressed());
        }
    }

    fn execute<'a>(
        &mut self,
        command: &Command<'a>,
        bytes: &'a [u8],
        arena: &'a Arena,
        wants_reply: bool,
    ) -> Result<(), ContextLost> {
        if transport::execute(self, command, bytes)? {
            // These return nothing, so their reply is only their number.
            let wants_reply = wants_reply && self.begun.is_none();
            let number = &bytes[..4];
            let number_alone = |writer: &mut Writer<'_>| {
                writer.raw(number);
                Ok(())
            };
            return if wants_reply { self.reply.deliver(number_alone) } else { Ok(()) };
        }
        let Self { context, place, reply, .. } = self;
        let mut run = |cancel: &Cancel| match wants_reply {
            true => {
                reply.deliver(|writer| context.backend.execute(command, bytes, arena, cancel, Some(writer)))
            }
            false => context.backend.execute(command, bytes, arena, cancel, None),
        };
        match place {
            Place::Ring(ring) => run(ring.cancel()),
            // Drivers send these on rings, so the price of stepping away does not matter.
            Place::Virtqueue(inbox) => inbox.while_away(|| run(&context.cancel)),
        }
    }

    /// Returns the pages of a resource that a command names. The virtqueue's streams never overtake the message that attaches the resource; a ring
    /// can.
    pub(super) fn shared_memory(&self, id: u32) -> Result<Arc<Mapping>, ContextLost> {
        match &self.place {
            Place::Virtqueue(_) => self.context.resources.shared_memory(id),
            Place::Ring(ring) => self.context.resources.wait_shared_memory(id, ring.cancel()),
        }
    }

    fn cancel(&self) -> &Cancel {
        match &self.place {
            Place::Virtqueue(_) => &self.context.cancel,
            Place::Ring(ring) => ring.cancel(),
        }
    }
}

/// Returns whether recorded commands are executed without being looked at one by one here.
#[inline]
fn takes_runs() -> bool {
    #[cfg(feature = "fuzzing")]
    return !super::fuzzing::record::is_wanted();
    #[cfg(not(feature = "fuzzing"))]
    true
}

/// Room for indirect streams that grew beyond this is freed.
const COPIED_KEPT: usize = 1 << 20;
