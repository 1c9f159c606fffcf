//! The notes that executors make in the journal of their context (`shm::journal`), from which a successor goes on if the worker dies.
//!
//! Commands of rings are copied into the journal ([`Batches`]) in place of other private memory, and executed from there. After each command its
//! executor notes its position ([`Notes`]), before the guest can know that the command is executed. A command that cannot be repeated from its bytes
//! removes the checkpoint's mark before it is executed, and no note is made until the next checkpoint. Virtqueue streams are not copied again: only
//! their commands that change nothing, and those that tell a ring the position of the stream, are executed without such a break.

use super::backend::Backend;
use super::context::Context;
use super::reply::{ReplyPlace, ReplyStream};
use super::ring::{CommandMemory, Ring};
use protocol::venus::generated::{
    NotifyRingMESA, SubmitVirtqueueSeqnoMESA, WaitRingSeqnoMESA, WriteRingExtraMESA,
};
use shm::journal::{self, CommandBytes, Journal, Log, Stream};
use shm::{CheckpointMark, Progress, StatusPage};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};
use vulkan::{ContextLost, Replay};

/// The number of the virtqueue's executor; no ring has it.
pub(super) const VIRTQUEUE: u64 = 0;

/// Bytes of a journal that a ring takes at a time, unless it needs more.
const REGION: usize = 64 << 10;

/// Time between two looks at submissions by a ring that has nothing else to do. The first look marks the end of submissions that have no marker yet.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// The notes of one executor.
#[derive(Debug, Default)]
pub(super) struct Notes {
    open: Option<Open>,
    /// The number of the checkpoint that the last block followed, and the number of blocks since.
    number: u32,
    blocks: u32,
    /// The current command is noted.
    is_noting: bool,
    /// The end of the ring's noted commands: the memory behind that is free.
    end: Arc<AtomicU32>,
}

/// A block of the log in which there is room.
#[derive(Debug)]
struct Open {
    journal: Arc<Journal>,
    log: Log,
    place: shm::journal::Place,
    /// The number of times that the reply stream was set.
    streams: u32,
}

/// The parts of an executor from which notes are made.
pub(super) struct Whereabouts<'e, B> {
    /// The executor's context.
    pub context: &'e Context<B>,
    /// The executor's ring; none if it executes the virtqueue's stream.
    pub ring: Option<&'e Ring>,
    /// The executor's reply stream.
    pub reply: &'e ReplyStream,
    /// Bytes that are executed of the streams which the next command names, if it was interrupted.
    pub begun: Option<usize>,
}

impl<B: Backend> Whereabouts<'_, B> {
    /// Returns the position of the executor, at the head of its ring.
    fn place(&self, head: u32) -> journal::Place {
        let stream = |place: ReplyPlace| Stream {
            resource: place.resource.map(|id| id.0),
            offset: place.offset,
            size: place.size,
        };
        let (position, begun) = (self.reply.position(), self.begun.map(|bytes| bytes as u32));
        let stream = self.reply.place(&self.context.resources).map(stream);
        journal::Place { head, begun, position, stream }
    }
}

/// The note that is made after one command or several.
#[derive(Clone, Copy, Debug)]
pub(super) struct Note {
    keeps: Keeps,
    ticket: u32,
    /// The command counts as a submission that is not complete: it submits, or submissions may wait for it.
    submits: bool,
}

/// The commands that a successor has to execute again.
#[derive(Clone, Copy, Debug)]
enum Keeps {
    Nothing,
    /// The commands at this place of the journal.
    There(u32),
    /// The commands, which are still to be copied.
    Copied,
}

/// The memory that a ring's commands are copied into: the journal, or other private memory.
pub(super) struct Batches<B> {
    context: Arc<Context<B>>,
    number: u32,
    region: Option<CommandBytes>,
    /// The byte of the region at which there is room.
    from: usize,
    end: Arc<AtomicU32>,
    private: Vec<u8>,
    /// The time of the last look at the submissions.
    looked: Option<Instant>,
}

/// The renderer's words about a journal, written into the page that the device process reads.
pub(super) struct Told {
    mark: Arc<CheckpointMark>,
    progress: Arc<Progress>,
}

impl Told {
    /// Has the renderer's words written into this page.
    pub(super) fn of(page: &StatusPage) -> Arc<Self> {
        Arc::new(Self { mark: Arc::clone(page.checkpoint()), progress: Arc::clone(page.progress()) })
    }
}

impl vulkan::Journal for Told {
    fn breaks(&self, why: &'static str) {
        if self.mark.number().is_some() {
            log::debug!("the journal cannot be used until the next checkpoint: {why}");
        }
        self.mark.changes();
    }

    fn submits(&self) {
        self.progress.submits();
    }

    fn completed(&self, count: u32) {
        self.progress.completed(count);
    }
}

impl Notes {
    /// Returns the memory for the commands of the ring that notes are made of.
    pub(super) fn batches<B: Backend>(&self, context: &Arc<Context<B>>) -> Batches<B> {
        let (context, end) = (Arc::clone(context), Arc::clone(&self.end));
        Batches { context, number: 0, region: None, from: 0, end, private: Vec::new(), looked: None }
    }

    /// Lets go of the journal, which may begin anew.
    pub(super) fn rest(&mut self) {
        self.open = None;
    }

    /// Prepares for the execution of the first command of `bytes`, or the first few. Returns the note to be made afterwards, if any.
    #[inline]
    pub(super) fn begins<B: Backend>(&mut self, state: &Whereabouts<'_, B>, bytes: &[u8]) -> Option<Note> {
        self.is_noting = false;
        let number = state.context.checkpoint.as_ref()?.executes()?;
        let Some(ring) = state.ring else { return self.begins_virtqueue(state, number, bytes) };
        let class = Replay::of(command_number(bytes));
        if class == Replay::Breaks {
            state.context.changes();
            return None;
        }
        if !self.has_room(number) && !self.opens(state, number, (ring.id(), ring.head())) {
            return None;
        }
        self.is_noting = true;
        if class == Replay::Nothing {
            return Some(Note { keeps: Keeps::Nothing, ticket: 0, submits: false });
        }
        let journal = &self.open.as_ref()?.journal;
        let Some(at) = journal.place_of(bytes) else {
            state.context.changes();
            return None;
        };
        let (ticket, submits) = (journal.ticket(), matches!(class, Replay::Submits | Replay::Signals));
        if submits {
            // Counts until the note is made: the driver may be done earlier, and a successor would not know of the submission.
            state.context.progress.iter().for_each(|progress| progress.submits());
        }
        Some(Note { keeps: Keeps::There(at), ticket, submits })
    }

    /// Notes that the begun command, or the first few, are executed, and their length.
    ///
    /// # Errors
    ///
    /// The errors of the command.
    #[inline]
    pub(super) fn ends<B: Backend>(
        &mut self,
        state: &Whereabouts<'_, B>,
        note: Note,
        bytes: &[u8],
        executed: Result<usize, ContextLost>,
    ) -> Result<usize, ContextLost> {
        if let (Ok(length), Some(open)) = (&executed, &mut self.open) {
            match note.keeps {
                Keeps::There(at) => {
                    open.log.adds(at, *length as u32, note.ticket);
                    if open.place.begun.is_none() {
                        self.end.store(at + *length as u32, Relaxed);
                    }
                }
                Keeps::Nothing => {}
                Keeps::Copied => open.copies(state, bytes.get(..*length).unwrap_or_default(), note.ticket),
            }
            open.commits(state.reply, *length as u32);
        }
        if note.submits {
            state.context.progress.iter().for_each(|progress| progress.completed(1));
        }
        executed
    }

    /// Notes that the executor begins with the streams that a command names. It has executed `begun` bytes of them, and has answered the command if
    /// the guest wants an answer.
    pub(super) fn enters<B: Backend>(&mut self, state: &Whereabouts<'_, B>, begun: usize) {
        if let Some(open) = self.open.as_mut().filter(|_| self.is_noting) {
            open.place.begun = Some(begun as u32);
            open.log.enters(open.place.head);
            open.commits(state.reply, 0);
        }
    }

    /// Notes that the streams are executed completely.
    pub(super) fn leaves(&mut self) {
        if let Some(open) = &mut self.open {
            open.place.begun = None;
        }
    }

    /// Returns memory in the journal for so many bytes of streams that a command names, if they are noted.
    pub(super) fn streams<B: Backend>(&self, context: &Context<B>, bytes: usize) -> Option<CommandBytes> {
        let open = self.open.as_ref().filter(|_| self.is_noting)?;
        let memory = open.journal.bytes(bytes);
        context.looks_at_journal(&open.journal, memory.is_none());
        memory
    }

    /// Returns whether the open block is of the journal behind this checkpoint and has room.
    #[inline]
    fn has_room(&self, number: u32) -> bool {
        self.number == number && self.open.as_ref().is_some_and(|open| !open.log.is_full())
    }

    /// Begins a block of the log. Returns whether it did; otherwise nothing is noted until the next checkpoint.
    #[cold]
    fn opens<B: Backend>(&mut self, state: &Whereabouts<'_, B>, number: u32, (of, head): (u64, u32)) -> bool {
        let context = state.context;
        let Some(journal) = context.journal_behind(number) else {
            context.changes();
            return false;
        };
        if self.number != number {
            (self.number, self.blocks, self.open) = (number, 0, None);
        }
        let place = match self.open.take() {
            Some(open) => open.place,
            None => state.place(head),
        };
        let log = journal.log(of, self.blocks, &place);
        context.looks_at_journal(&journal, log.is_none());
        let Some(log) = log else { return false };
        self.blocks += 1;
        self.open = Some(Open { journal, log, place, streams: state.reply.changes() });
        true
    }

    /// Returns the note for a command of the virtqueue's stream, whose bytes are in no journal.
    fn begins_virtqueue<B: Backend>(
        &mut self,
        state: &Whereabouts<'_, B>,
        number: u32,
        bytes: &[u8],
    ) -> Option<Note> {
        match command_number(bytes) {
            // These commands leave no state that a successor would lack.
            NotifyRingMESA::NUMBER | WaitRingSeqnoMESA::NUMBER | WriteRingExtraMESA::NUMBER => return None,
            SubmitVirtqueueSeqnoMESA::NUMBER => {}
            _ => {
                state.context.changes();
                return None;
            }
        }
        if !self.has_room(number) && !self.opens(state, number, (VIRTQUEUE, 0)) {
            return None;
        }
        let ticket = self.open.as_ref()?.journal.ticket();
        Some(Note { keeps: Keeps::Copied, ticket, submits: false })
    }
}

impl Open {
    /// Notes the executor's position with the entries just added to the log: it has executed `length` bytes more.
    #[inline]
    fn commits(&mut self, reply: &ReplyStream, length: u32) {
        let position = reply.position();
        if position != self.place.position {
            self.place.position = position;
            self.log.moves(position);
        }
        if reply.changes() != self.streams {
            self.streams = reply.changes();
            self.log.streams(reply.stream());
        }
        match &mut self.place.begun {
            None => {
                self.place.head = self.place.head.wrapping_add(length);
                self.log.commits(self.place.head);
            }
            Some(begun) => {
                *begun = begun.wrapping_add(length);
                self.log.begins(*begun);
            }
        }
    }

    /// Copies commands into the journal.
    fn copies<B: Backend>(&mut self, state: &Whereabouts<'_, B>, bytes: &[u8], ticket: u32) {
        let memory = self.journal.bytes(bytes.len());
        state.context.looks_at_journal(&self.journal, memory.is_none());
        if let Some(mut memory) = memory {
            memory.copy_from_slice(bytes);
            self.log.adds(memory.place(), bytes.len() as u32, ticket);
        }
    }
}

impl<B: Backend> Batches<B> {
    /// Returns whether there is room in the region for so many bytes, or in another.
    fn has_room(&mut self, number: u32, bytes: usize) -> bool {
        if let Some(region) = self.region.as_ref().filter(|_| self.number == number) {
            // Perhaps no command in this region is noted yet.
            let end = self.end.load(Relaxed).wrapping_sub(region.place()) as usize;
            self.from = if end <= region.len() { end } else { 0 };
            if region.len() - self.from >= bytes {
                return true;
            }
        }
        self.takes_region(number, bytes)
    }

    #[cold]
    fn takes_region(&mut self, number: u32, bytes: usize) -> bool {
        self.region = None;
        let Some(journal) = self.context.journal_behind(number) else { return false };
        let region = journal.bytes(bytes.max(REGION));
        self.context.looks_at_journal(&journal, region.is_none());
        (self.number, self.from, self.region) = (number, 0, region);
        self.region.is_some()
    }
}

impl<B: Backend> CommandMemory for Batches<B> {
    fn room(&mut self, bytes: usize) -> &mut [u8] {
        let number = self.context.checkpoint.as_ref().and_then(|mark| mark.number());
        if !number.is_some_and(|number| self.has_room(number, bytes)) {
            self.region = None;
        }
        match &mut self.region {
            Some(region) => &mut region[self.from..self.from + bytes],
            None => self.private.room(bytes),
        }
    }

    /// Looks whether the submissions are complete. The program knows soon; until the device process knows it too, the death of this process costs
    /// the context.
    fn waits(&mut self) {
        let Context { checkpoint, progress, backend, .. } = &*self.context;
        let is_noted = checkpoint.as_ref().is_some_and(|mark| mark.number().is_some());
        if !is_noted || progress.as_ref().is_none_or(|progress| progress.is_idle()) {
            return;
        }
        let now = Instant::now();
        if self.looked.is_none_or(|looked| now.saturating_duration_since(looked) >= LOOK_EVERY) {
            self.looked = Some(now);
            backend.collect();
        }
    }
}

fn command_number(bytes: &[u8]) -> i32 {
    bytes.first_chunk().map_or(-1, |number| i32::from_le_bytes(*number))
}
