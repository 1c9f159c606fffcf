//! The device thread's part of a save.

use crate::ipc::{Channel, Unmovable};
use crate::serve::device_state::format::{Head, PATIENCE, SavedContext, StateError};
use crate::serve::device_state::link::Link;
use crate::serve::device_state::saver::{Rest, Saver};
use crate::serve::device_state::thread::Thread;
use crate::serve::device_state::{SaveStage, Saving, Transferring};
use crate::serve::handover::failure::Failure;
use crate::serve::handover::{AGAIN_AFTER, ASKED_FOR, REST_PATIENCE};
use crate::serve::logging::event::DeviceEvent;
use crate::serve::run::{Server, TOKEN_STATE};
use crate::transport::QUEUES;
use outside::{Quoted, Span};
use protocol::ids::ContextId;
use rustc_hash::FxHashMap;
use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Instant;

/// Times that messages of a worker are taken from its socket, up to 64 each time.
const HEARD_MAX: usize = 64;

impl Server {
    /// Returns whether the device can be saved now, as far as this process knows without asking its workers.
    pub(super) fn may_save(&self) -> Result<(), Failure> {
        if self.world.room.order.is_some() {
            return Err(Failure::for_good("VMs with gpu-memory cannot be saved yet"));
        }
        for ctx_id in self.world.workers.contexts() {
            if let Some(why) = self.unmovable(ctx_id).filter(|why| *why != Unmovable::SwappedOut) {
                return Err(Failure::for_good(format!("{}: {why}", self.in_words(ctx_id))));
            }
        }
        self.is_settled().map_err(Failure::for_now)
    }

    /// Tells all workers to write everything down.
    pub(super) fn begin_save(&mut self, file: File, now: Instant) {
        let mut contexts: Vec<_> = self.world.workers.contexts().collect();
        contexts.sort_unstable_by_key(|ctx_id| ctx_id.0);
        let (mut writes, mut reads) = (FxHashMap::default(), Vec::new());
        for ctx_id in &contexts {
            match Channel::pair() {
                Ok((ours, theirs)) => {
                    reads.push((*ctx_id, theirs));
                    writes.insert(*ctx_id, ours.into_socket());
                }
                Err(error) => return self.save_fails(&error.to_string()),
            }
        }
        let (rest, theirs) = channel();
        let thread = Thread::start((&self.epoll, TOKEN_STATE), file, |file, reports, called_off| {
            let link = |(ctx_id, channel)| Link { ctx_id, channel, called_off: Arc::clone(called_off) };
            let links = reads.into_iter().map(link).collect();
            let saver = Saver { file, links, reports, rest: theirs };
            move || saver.run()
        });
        let thread = match thread {
            Ok(thread) => thread,
            Err(error) => return self.save_fails(&format!("no thread writes the state: {error}")),
        };
        let until = now + self.world.hangs.limit().saturating_add(REST_PATIENCE).max(ASKED_FOR);
        let (again, stage) = (Vec::new(), SaveStage::Rests);
        let saving =
            Saving { thread, rest, contexts: contexts.clone(), writes, again, stage, begun: now, until };
        self.transferring = Transferring::Saves(saving);
        contexts.into_iter().for_each(|ctx_id| self.tell_to_write(ctx_id));
        // Without a context the thread is not waited for.
        self.transfer_reports();
    }

    /// Tells the worker of a context to write everything down, and to rest then.
    fn tell_to_write(&mut self, ctx_id: ContextId) {
        let Transferring::Saves(saving) = &self.transferring else { return };
        let Some(writes) = saving.writes.get(&ctx_id) else { return };
        if let Err(limit) = self.world.workers.save(ctx_id, writes.as_fd()) {
            self.save_fails(&format!("{}: limit {limit} reached", self.in_words(ctx_id)));
        }
    }

    /// Tells workers again that stayed for now, and gives up when contexts do not come to rest.
    pub(super) fn save_due(&mut self, now: Instant) {
        let Transferring::Saves(saving) = &mut self.transferring else { return };
        if now >= saving.until && saving.stage == SaveStage::Rests {
            let late = saving.writes.keys().min_by_key(|ctx_id| ctx_id.0).copied();
            let late = late.map(|ctx_id| self.in_words(ctx_id)).unwrap_or_default();
            return self.save_fails(&format!(
                "its submissions have not completed in time, or its worker does not come to rest: {late}"
            ));
        }
        if now >= saving.until {
            return self.save_fails("limit state-patience reached: a worker does not write everything");
        }
        let due: Vec<_> = saving.again.extract_if(.., |(_, at)| *at <= now).collect();
        due.into_iter().for_each(|(ctx_id, _)| self.tell_to_write(ctx_id));
    }

    /// A worker has answered that it has written everything, and rests. Returns whether that is for a save.
    pub(in crate::serve) fn has_saved(&mut self, ctx_id: ContextId) -> bool {
        let Transferring::Saves(saving) = &mut self.transferring else { return false };
        // Closes this process's end, so that the thread reads the end of the contents.
        saving.writes.remove(&ctx_id);
        self.may_be_saved();
        true
    }

    /// A worker has answered that its context stays, perhaps only for now. Returns whether that is for a save.
    pub(in crate::serve) fn does_not_save(&mut self, ctx_id: ContextId, reason: &str, for_now: bool) -> bool {
        let Transferring::Saves(saving) = &mut self.transferring else { return false };
        let again = Instant::now() + AGAIN_AFTER;
        if for_now && again < saving.begun + ASKED_FOR && saving.stage == SaveStage::Rests {
            saving.again.push((ctx_id, again));
        } else {
            self.save_fails(&format!("{}: {}", self.in_words(ctx_id), Quoted(reason)));
        }
        true
    }

    /// All contexts are at rest: gives the thread the rest of the state.
    pub(super) fn are_at_rest(&mut self) {
        let Transferring::Saves(saving) = &mut self.transferring else { return };
        saving.stage = SaveStage::Writes;
        // From here on the thread's patience with the frontend counts, and the workers' with the thread.
        saving.until = Instant::now() + PATIENCE.saturating_mul(2);
        let contexts = saving.contexts.clone();
        // What the workers said before they wrote: the fences that have passed, above all.
        contexts.iter().for_each(|ctx_id| self.hear_all(*ctx_id));
        self.settle();
        self.device.await_no_start(&mut self.world);
        let rest = self.rest_of_state(&contexts);
        let Transferring::Saves(saving) = &self.transferring else { return };
        match rest {
            // If the thread is gone, its last report says why.
            Ok(rest) => _ = saving.rest.send(rest),
            Err(reason) => self.save_fails(&reason),
        }
    }

    /// Acts upon all messages that a worker has sent so far: a worker at rest sends no more, and a socket holds fewer than are heard here.
    fn hear_all(&mut self, ctx_id: ContextId) {
        for _ in 0..HEARD_MAX {
            let Some(serial) = self.world.workers.has_sent(ctx_id) else { return };
            self.receive_from(serial);
        }
    }

    /// Returns the part of the state that this thread knows.
    fn rest_of_state(&self, contexts: &[ContextId]) -> Result<Rest, String> {
        let session = self.world.session.as_ref().ok_or("the frontend is gone")?;
        if (0..QUEUES).any(|index| session.vring(index).generation() != self.generations[index]) {
            return Err("the driver has just reset the device".into());
        }
        let device = self.device.pass_on(|request| session.pass_on_request(request))?.for_a_file();
        let mut open = [0; QUEUES];
        device.tickets().for_each(|request| open[request.queue()] += 1);
        let answers = (0..QUEUES).map(|index| session.vring(index).held_answers(open[index]));
        let answers = answers.collect::<Option<Vec<_>>>().ok_or("a request is being answered")?;
        let saved = |ctx_id: &ContextId| {
            Some(SavedContext {
                ctx_id: *ctx_id,
                name: self.world.workers.name_of(*ctx_id)?.to_owned(),
                placement: self.world.workers.placement_of(*ctx_id)?.clone(),
            })
        };
        let saved =
            contexts.iter().map(saved).collect::<Option<_>>().ok_or("a context has ended meanwhile")?;
        let (files, descriptors) = self.world.blobs.save().map_err(|error| error.to_string())?;
        let contents_max = contexts.iter().map(|ctx_id| self.device.contents_max(*ctx_id)).collect();
        let head = Head {
            device,
            answers: answers.try_into().map_err(|_| "a queue is missing")?,
            contexts: saved,
            files,
            rings: self.world.rings.pass_on(),
            cache_key: self.world.workers.cache_key(),
        };
        Ok(Rest { head, files: descriptors, contents_max })
    }

    /// The thread is done: the file is complete, or will never be.
    pub(super) fn state_written(&mut self, ended: Result<(), StateError>) {
        let Transferring::Saves(saving) = &mut self.transferring else { return };
        match ended {
            Ok(()) => {
                saving.stage = SaveStage::Written;
                self.may_be_saved();
            }
            Err(error) => self.save_fails(&error.to_string()),
        }
    }

    /// Ends the save if the file is complete and each worker has said that it has written everything.
    fn may_be_saved(&mut self) {
        let Transferring::Saves(saving) = &self.transferring else { return };
        if saving.stage == SaveStage::Written && saving.writes.is_empty() {
            let (count, took) = (saving.contexts.len(), saving.begun.elapsed());
            self.contexts_go_on();
            self.transfer_ends(&Ok(DeviceEvent::StateSaved(count, Span(took))));
        }
    }

    /// Calls the save off, and has all contexts go on.
    pub(super) fn save_fails(&mut self, reason: &str) {
        self.contexts_go_on();
        self.transfer_ends(&Err(DeviceEvent::StateNotSaved(&reason)));
    }

    /// Has the contexts go on whose workers were told to write, whether they have answered or not.
    fn contexts_go_on(&mut self) {
        let Transferring::Saves(saving) = &self.transferring else { return };
        for ctx_id in saving.contexts.clone() {
            let sent = self.world.workers.goes_on(ctx_id);
            self.world.note_overflow(ctx_id, sent);
            // The worker has executed something, so its checkpoint counts no more.
            self.world.checkpoints.is_used(ctx_id, Instant::now());
        }
    }
}
