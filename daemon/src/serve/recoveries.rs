//! This file recovers contexts whose workers die by themselves: it asks workers for checkpoints, from which, with the journals, successors go on.
//!
//! The device process reads nothing of a checkpoint or a journal. A separate thread passes both on to the successor with the memory files that the
//! context holds, as a worker that hands over would; the end of the successor ends that thread.

use super::blobs::deposits::Refused;
use super::checkpoints::{Asked, CHECKPOINT_BYTES, Given, Seen, Wanted};
use super::effects::World;
use super::handover::failure::Failure;
use super::handover::{Asker, MOVE_PATIENCE, Purpose, Took};
use super::logging::event::ContextEvent;
use super::run::Server;
use crate::ipc::{Channel, HandOver, INLINE_SUBMIT_MAX, RestartStage, SendError, ToBroker};
use config::{DepositId, MemoryId, MemoryName};
use protocol::ids::{ContextId, FenceId, RingIdx};
use rustix::event::PollFlags;
use shm::StatusPage;
use shm::journal::Journal;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time between two looks at rings whose worker is dead: drivers wait for three times as long.
const ALIVE_EVERY: Duration = Duration::from_secs(1);

/// A checkpoint and its journal, and the descriptors of the memory of its context.
struct Written {
    given: Given,
    memories: Vec<(MemoryName, Arc<OwnedFd>)>,
}

impl Server {
    /// Forgets the workers that had ended before their contexts were given up.
    pub(super) fn forget_ended(&mut self) {
        self.world.workers.take_ended().into_iter().for_each(|number| {
            self.worker_has_ended(number);
        });
    }

    /// Asks workers for checkpoints if their programs do nothing, or do what no journal has.
    pub(super) fn checkpoints_due(&mut self, now: Instant) {
        for ctx_id in self.world.checkpoints.due(now) {
            let seen = self.looks_at(ctx_id);
            if seen.is_some_and(|seen| self.world.checkpoints.sees(ctx_id, seen, now)) {
                self.world.ask_for_checkpoint(ctx_id, now);
            }
        }
    }

    /// Looks at a context. Returns none if this process knows why it can have no checkpoint.
    fn looks_at(&self, ctx_id: ContextId) -> Option<Seen> {
        let World { workers, hangs, .. } = &self.world;
        let page = hangs.page(ctx_id).filter(|_| workers.is_running(ctx_id))?;
        // The worker may remove the mark when it executes a message that it has been sent.
        let is_current = || page.checkpoint().current().is_some();
        match self.unmovable(ctx_id) {
            None if workers.has_successor(ctx_id) || self.device.is_exporting(ctx_id) => Some(Seen::Busy),
            None if is_current() && !workers.keeps(ctx_id) => Some(Seen::Unnoted),
            None if is_current() && !workers.has_executed_all(ctx_id) => Some(Seen::Noted),
            None => Some(look(page)),
            Some(_) => None,
        }
    }

    /// A worker has answered that its checkpoint has so many bytes and took so long, or that there is no checkpoint, perhaps only for now.
    pub(super) fn checkpoint_answered(&mut self, ctx_id: ContextId, written: Result<(u64, Duration), bool>) {
        // A checkpoint that names a deposit which was not kept does not count.
        let written = if self.world.deposits.are_complete(ctx_id) { written } else { Err(false) };
        match self.world.checkpoints.answered(ctx_id, written, Instant::now()) {
            Ok(()) => {}
            Err(reason) => self.lose(ctx_id, reason),
        }
    }

    /// A worker deposits a descriptor of memory.
    pub(super) fn deposits(&mut self, ctx_id: ContextId, id: DepositId, file: Option<OwnedFd>) {
        let World { workers, deposits, closer, .. } = &mut self.world;
        let Some(file) = file else { return self.lose(ctx_id, "a deposit without a descriptor") };
        let Some(owner) = workers.owner_of(ctx_id) else { return closer.close([file]) };
        let kept = deposits.keep((ctx_id, owner), id, file, closer.left());
        let Err((refused, file)) = kept else { return };
        closer.close([file]);
        match refused {
            Refused::Mistake(what) => self.lose(ctx_id, what),
            Refused::Limit(limit) => {
                self.world.log_of(ctx_id, ContextEvent::NotKept(limit));
            }
            Refused::LimitAgain => {}
        }
    }

    /// A context's worker has died without a word. Returns whether the context waits for a successor; otherwise it is lost.
    pub(super) fn recovers(&mut self, ctx_id: ContextId) -> bool {
        match self.recover(ctx_id) {
            Ok(()) => true,
            Err(why) => {
                log::debug!(context = ctx_id.0; "context {ctx_id} gets no other worker: {why}");
                false
            }
        }
    }

    /// Returns the number of a context's checkpoint, if the context would get another worker should its own die now. This function does not look at
    /// how many workers have died (`Checkpoints::crashed` does).
    ///
    /// # Errors
    ///
    /// The reason why the context would get no other worker.
    pub(super) fn may_recover(&self, ctx_id: ContextId) -> Result<u32, String> {
        let number = self.world.hangs.page(ctx_id).and_then(|page| page.checkpoint().current());
        let number = number.filter(|number| self.world.checkpoints.has(ctx_id, *number));
        let number = number
            .ok_or("its program did something that neither a checkpoint nor a journal has, or it has none")?;
        self.world.workers.may_be_followed(ctx_id)?;
        if self.world.workers.has_successor(ctx_id) || self.transferring.is_under_way() {
            return Err("it was being handed over, saved or loaded".into());
        }
        if let Some(why) = self.unmovable(ctx_id) {
            return Err(why.to_string());
        }
        let program = self.world.workers.name_of(ctx_id).unwrap_or_default();
        self.world.may_start(ctx_id, program).map_err(|(_, why)| why)?;
        self.world.handovers.admit(ctx_id, Purpose::Recover)?;
        Ok(number)
    }

    fn recover(&mut self, ctx_id: ContextId) -> Result<(), String> {
        let number = self.may_recover(ctx_id)?;
        let wanted = (Asker::Itself, Purpose::Recover);
        let now = Instant::now();
        self.world.checkpoints.crashed(ctx_id, now).inspect_err(|why| {
            self.world.log_of(ctx_id, ContextEvent::NotRecovered(why));
        })?;
        self.begin_hand_over(ctx_id, None, wanted).map_err(|failure| failure.reason)?;
        self.pass_executed_fences(ctx_id);
        self.world.workers.is_recovered(ctx_id);
        self.world.checkpoints.is_for_successor(ctx_id, number);
        self.world.handovers.pauses(ctx_id, now);
        self.device.context_rests(ctx_id);
        self.show_successor(ctx_id);
        Ok(())
    }

    /// A context's worker is dead, and nothing was in the driver: answers the fences whose messages the worker has executed but not reported.
    fn pass_executed_fences(&mut self, ctx_id: ContextId) {
        let kept = self.world.workers.kept_fences(ctx_id);
        let is_kept = |(ring_idx, fence_id): &(RingIdx, FenceId)| {
            kept.iter().any(|fence| (fence.ring_idx, fence.fence_id) == (*ring_idx, *fence_id))
        };
        let executed = self.device.open_fences(ctx_id).into_iter().filter(|fence| !is_kept(fence));
        for (ring_idx, fence_id) in executed.collect::<Vec<_>>() {
            self.device.fence_signalled(ctx_id, ring_idx, fence_id, &mut self.world);
        }
    }

    /// The successor of a dead worker has started: gives it the checkpoint.
    pub(super) fn hand_checkpoint(&mut self, ctx_id: ContextId) {
        let given = self.written(ctx_id).and_then(|written| {
            let (writes, reads) = Channel::pair()?;
            let reads = reads.into_socket();
            self.world.workers.take_over_checkpoint(ctx_id, reads.as_fd());
            written.pass_on(writes)
        });
        match given {
            Ok(()) => {
                self.world.handovers.recovers(ctx_id, Instant::now());
                self.tell_stage(ctx_id, RestartStage::Moves);
            }
            Err(error) => {
                self.fail(
                    ctx_id,
                    Failure::until_mended(format!("its checkpoint cannot be passed on: {error}")),
                );
            }
        }
    }

    /// Returns the checkpoint of a context, and the descriptors of its memory.
    fn written(&mut self, ctx_id: ContextId) -> io::Result<Written> {
        let given = self.world.checkpoints.take(ctx_id).ok_or(io::ErrorKind::NotFound)?;
        let copy =
            |memory: MemoryId| Some((MemoryName::Piece(memory), Arc::clone(self.world.blobs.made(memory)?)));
        let pieces = self.device.held_pieces(ctx_id).into_iter().filter_map(copy);
        let deposits = self.world.deposits.of(ctx_id);
        let memories = pieces.chain(deposits.map(|(id, file)| (MemoryName::Deposit(id), file))).collect();
        Ok(Written { given, memories })
    }

    /// Keeps the rings of dead workers alive.
    pub(super) fn keep_rings_alive(&mut self, now: Instant) {
        let Self { device, world: World { handovers, rings, blobs, alive_at, .. }, .. } = self;
        if alive_at.is_some_and(|at| now < at) {
            return;
        }
        *alive_at = None;
        for ctx_id in handovers.recovering() {
            *alive_at = Some(now + ALIVE_EVERY);
            rings.keep_alive(ctx_id, blobs, |resource_id| device.sees(ctx_id, resource_id));
        }
    }
}

impl World {
    /// Asks a worker for a checkpoint.
    fn ask_for_checkpoint(&mut self, ctx_id: ContextId, now: Instant) {
        let Some(progress) = self.hangs.page(ctx_id).map(StatusPage::progress).cloned() else { return };
        let make = |wanted| match wanted {
            Wanted::Checkpoint => shm::create("checkpoint", CHECKPOINT_BYTES),
            Wanted::Journal => Journal::create(),
        };
        let sent = match self.checkpoints.asks(ctx_id, make, now) {
            Ok(Asked { number, file, journal }) => {
                self.workers.ask_for_checkpoint(ctx_id, progress, (number, file, journal))
            }
            Err(error) => return log::debug!(context = ctx_id.0; "no file for a checkpoint: {error}"),
        };
        self.note_overflow(ctx_id, sent);
    }

    /// Logs that a context was recovered, and tells the broker; `how` says how its worker ended.
    pub(super) fn recovered(&mut self, ctx_id: ContextId, how: &str, Took { pause, .. }: Took) {
        self.log_of(ctx_id, ContextEvent::Recovered { how, pause });
        if let Some(broker) = &self.broker {
            broker.tell(&ToBroker::Recovered { ctx_id }, None);
        }
    }
}

impl Written {
    /// Passes everything on as a worker that hands over does, on a separate thread.
    fn pass_on(self, to: Channel) -> io::Result<()> {
        let thread = std::thread::Builder::new().name("checkpoint".into());
        let passed = thread.spawn(move || {
            if let Err(error) = self.send(&to) {
                log::debug!("a checkpoint is not passed on: {error}");
            }
        });
        passed.map(drop)
    }

    fn send(&self, to: &Channel) -> io::Result<()> {
        let deadline = Instant::now() + MOVE_PATIENCE;
        let Given { number, file, bytes, journal } = &self.given;
        for (memory, file) in &self.memories {
            send(to, &HandOver::File { memory: *memory }, Some(file.as_fd()), deadline)?;
        }
        // The file is read, not mapped: parts that the worker has left out take no memory of this process.
        let mut at = 0;
        while at < *bytes {
            let mut some = vec![0; (*bytes - at).min(INLINE_SUBMIT_MAX as u64) as usize];
            let read = rustix::io::pread(file, &mut some, at)?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            some.truncate(read);
            at += read as u64;
            send(to, &HandOver::Bytes(some), None, deadline)?;
        }
        if let Some(journal) = journal {
            send(to, &HandOver::Journal { number: *number }, Some(journal.as_fd()), deadline)?;
        }
        send(to, &HandOver::End, None, deadline)
    }
}

/// Looks whether a worker has something to write down.
fn look(page: &StatusPage) -> Seen {
    let mark = page.checkpoint();
    // A message wakes a ring that sleeps; a ring that is awake may do something without a message. If a ring is awake and nothing was executed since
    // the last look, the ring executes a command that waits, for memory for example, and must not be interrupted.
    let sleeps = || page.activity().look().0 == 0;
    if mark.current().is_some() {
        return if sleeps() { Seen::Covered } else { Seen::Noted };
    }
    match mark.was_quiet() {
        true if page.running().is_none() && sleeps() => Seen::Idle,
        true => Seen::Busy,
        false => Seen::Unnoted,
    }
}

/// Sends a message, waiting for room.
fn send(to: &Channel, message: &HandOver, fd: Option<BorrowedFd<'_>>, deadline: Instant) -> io::Result<()> {
    loop {
        match to.try_send(message, fd) {
            Err(SendError::Full) => {}
            sent => return sent.map_err(io::Error::other),
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        readiness::within(to, PollFlags::OUT, left)?;
    }
}
