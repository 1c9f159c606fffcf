//! The device thread's part of a load.

use crate::device::MapsAtReset;
use crate::ipc::Channel;
use crate::serve::blobs::SavedFile;
use crate::serve::device_state::format::{Head, SavedContext, StateError};
use crate::serve::device_state::link::Link;
use crate::serve::device_state::loader::{LoadedFile, Loader, Memory};
use crate::serve::device_state::thread::Thread;
use crate::serve::device_state::{Loading, Transferring};
use crate::serve::handover::failure::Failure;
use crate::serve::handover::{Asker, HAND_OVERS_MAX, Purpose};
use crate::serve::logging::event::DeviceEvent;
use crate::serve::run::{Server, TOKEN_STATE};
use crate::transport::QUEUES;
use outside::Span;
use protocol::ids::ContextId;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// The time that a started worker may wait until the loader reaches its context.
const TURN_PATIENCE: Duration = Duration::from_secs(600);

impl Server {
    /// Returns whether a state can be loaded now.
    pub(super) fn may_load(&self) -> Result<(), Failure> {
        if self.world.room.order.is_some() {
            return Err(Failure::for_good("VMs with gpu-memory cannot be loaded yet"));
        }
        if self.world.workers.are_ending() {
            return Err(Failure::for_now("workers of a VM that used the device before do not end"));
        }
        match self.device.is_as_after_power_on() {
            true => Ok(()),
            false => Err(Failure::for_good("the guest has used the device already")),
        }
    }

    /// Begins to load the state that a file holds.
    pub(super) fn begin_load(&mut self, file: File) {
        let (memory, memories) = channel();
        let (links, theirs) = channel();
        let thread = Thread::start((&self.epoll, TOKEN_STATE), file, |file, reports, _| {
            let loader = Loader { file, reports, memory: memories, links: theirs };
            move || loader.run()
        });
        let thread = match thread {
            Ok(thread) => thread,
            Err(error) => return self.load_fails(&format!("no thread reads the state: {error}")),
        };
        let (to_start, to_read, ready, left) = Default::default();
        let (waits, is_read, contexts, begun) = (false, false, 0, Instant::now());
        self.transferring = Transferring::Loads(Loading {
            thread,
            memory,
            links,
            to_start,
            to_read,
            ready,
            left,
            waits,
            is_read,
            contexts,
            begun,
        });
    }

    /// The head was read: builds the device up, and starts workers.
    pub(super) fn load_head(&mut self, head: Head) {
        let contexts: VecDeque<_> = head.contexts.iter().map(|context| context.ctx_id).collect();
        let built = self.build(head);
        let Transferring::Loads(loading) = &mut self.transferring else { return };
        match built {
            Ok(files) => {
                loading.contexts = contexts.len();
                loading.left = contexts.iter().copied().collect();
                (loading.to_start, loading.to_read) = (contexts.clone(), contexts);
                // If the thread is gone, its last report says why.
                let _ = loading.memory.send(files);
                self.start_loaded();
            }
            Err(reason) => self.load_fails(&reason),
        }
    }

    /// Builds the device up as it was, without workers. Returns the memory that is to be filled.
    ///
    /// # Errors
    ///
    /// The reason why this process does not go on with the state: the device is touched only if there is none, or the host lacks something.
    fn build(&mut self, head: Head) -> Result<Memory, String> {
        let Head { device, answers, contexts, files, rings, cache_key } = head;
        self.device.check(&device)?;
        let alive: FxHashMap<_, _> = device.alive().collect();
        let named: FxHashSet<_> = contexts.iter().map(|context| context.ctx_id).collect();
        let are_alive = named.iter().all(|ctx_id| alive.contains_key(ctx_id));
        if !are_alive || named.len() != alive.len() || named.len() != contexts.len() {
            return Err("the state is damaged: its contexts contradict each other".into());
        }
        device.check_files(files.iter().map(|file| (file.bytes, file.piece, &file.resources[..])))?;
        contexts.iter().try_for_each(|context| self.world.workers.admit(&context.placement))?;
        let session = self.world.session.as_ref().ok_or("the frontend is gone")?;
        let mut open = answers.each_ref().map(Vec::len);
        device.tickets().for_each(|request| open[request.queue()] += 1);
        if (0..QUEUES).any(|index| open[index] > session.vring(index).size_max()) {
            return Err("the state is damaged: more requests than a queue holds".into());
        }
        let loaded =
            self.world.blobs.load(&files).map_err(|error| format!("memory for the state: {error}"))?;
        self.device.resume(device, |request| session.resume_request(request))?;
        for (index, answers) in answers.into_iter().enumerate() {
            session.vring(index).answers_later(answers);
        }
        self.world
            .rings
            .resume(rings.into_iter().filter(|ring| alive.contains_key(&ring.ctx_id())).collect());
        self.world.workers.keep_key(cache_key);
        for SavedContext { ctx_id, name, placement } in contexts {
            let number = *alive.get(&ctx_id).ok_or("a context without an owner")?;
            let noted = self.world.begin_context(ctx_id, &name, &placement, |workers, page, gate| {
                workers.is_loaded(ctx_id, (name.clone(), number), page, (placement.clone(), gate))
            });
            noted.map_err(|error| format!("a context cannot be noted: {error}"))?;
        }
        let file =
            |(file, saved): (_, &SavedFile)| LoadedFile { file, bytes: saved.bytes, piece: saved.piece };
        Ok(Memory(loaded.into_iter().zip(&files).map(file).collect()))
    }

    /// Starts the workers of the contexts that are next.
    fn start_loaded(&mut self) {
        while let Transferring::Loads(loading) = &mut self.transferring {
            let starting = loading.left.len() - loading.to_start.len();
            let Some(ctx_id) = loading.to_start.front().copied().filter(|_| starting < HAND_OVERS_MAX) else {
                break;
            };
            loading.to_start.pop_front();
            let wanted = (Asker::Itself, Purpose::Load);
            if let Err(failure) = self.begin_hand_over(ctx_id, None, wanted) {
                return self.load_fails(&format!("{}: {}", self.in_words(ctx_id), failure.reason));
            }
            self.world.workers.follows_nothing(ctx_id);
            self.device.context_rests(ctx_id);
            self.show_successor(ctx_id);
        }
        self.is_loaded();
    }

    /// The worker of a loaded context has started: it takes the context over when its turn comes.
    pub(in crate::serve) fn loaded_is_ready(&mut self, ctx_id: ContextId) {
        let Transferring::Loads(loading) = &mut self.transferring else { return };
        loading.ready.insert(ctx_id);
        self.world.handovers.waits_for_turn(ctx_id, Instant::now() + TURN_PATIENCE);
        self.hand_loaded();
    }

    /// The thread waits for the next context's worker.
    pub(super) fn load_next(&mut self) {
        let Transferring::Loads(loading) = &mut self.transferring else { return };
        loading.waits = true;
        self.hand_loaded();
    }

    /// Has the worker of the next context take it over, if it has started and the thread waits for it.
    fn hand_loaded(&mut self) {
        let Transferring::Loads(loading) = &mut self.transferring else { return };
        let next = loading.to_read.front().copied();
        let Some(ctx_id) = next.filter(|next| loading.waits && loading.ready.contains(next)) else { return };
        match Channel::pair() {
            Ok((channel, reads)) => {
                loading.to_read.pop_front();
                loading.waits = false;
                let called_off = Arc::clone(&loading.thread.called_off);
                let _ = loading.links.send(Link { ctx_id, channel, called_off });
                let reads = reads.into_socket();
                self.world.workers.take_over_checkpoint(ctx_id, reads.as_fd());
                self.world.handovers.recovers(ctx_id, Instant::now());
            }
            Err(error) => self.load_fails(&error.to_string()),
        }
    }

    /// A worker has taken its loaded context over.
    pub(in crate::serve) fn loaded(&mut self, ctx_id: ContextId) {
        let Transferring::Loads(loading) = &mut self.transferring else { return };
        loading.left.remove(&ctx_id);
        self.start_loaded();
    }

    /// The thread is done: the file was read to its end, or will never be.
    pub(super) fn state_read(&mut self, ended: Result<(), StateError>) {
        let Transferring::Loads(loading) = &mut self.transferring else { return };
        match ended {
            Ok(()) => {
                loading.is_read = true;
                self.is_loaded();
            }
            Err(error) => self.load_fails(&error.to_string()),
        }
    }

    /// Ends the load if each context has its worker.
    fn is_loaded(&mut self) {
        let Transferring::Loads(loading) = &self.transferring else { return };
        if loading.is_read && loading.left.is_empty() {
            let (count, took) = (loading.contexts, loading.begun.elapsed());
            self.world.note_loaded(self.device.mapped());
            self.transfer_ends(&Ok(DeviceEvent::StateLoaded(count, Span(took))));
        }
    }

    /// Calls a load off that has begun: the device is as after power-on.
    pub(in crate::serve) fn load_fails(&mut self, reason: &str) {
        self.transfer_ends(&Err(DeviceEvent::StateNotLoaded(&reason)));
        if let Some(session) = &self.world.session {
            session.forget_requests();
            self.generations = std::array::from_fn(|index| session.vring(index).generation());
        }
        self.device.reset(MapsAtReset::Forget, &mut self.world);
        self.world.blobs.forget_all();
    }
}
