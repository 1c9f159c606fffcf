//! The parts of a succession (`serve::succession`) that the two device processes play: the process that serves comes to rest and leaves, and the
//! other builds up the state that the first has written down.

use super::blobs::PassedBlobs;
use super::blobs::deposits::PassedDeposits;
use super::blobs::lenders::PassedLender;
use super::blobs::rings::PassedRing;
use super::checkpoints::PassedCheckpoint;
use super::effects::World;
use super::handover::failure::{Failure, Lasts};
use super::handover::room::PassedRoom;
use super::hangs::strikes::PassedStrikes;
use super::logging::event_log::Advised;
use super::outdated::End;
use super::run::{Server, TOKEN_LAUNCHER, TOKENS};
use super::setup::Listen;
use super::succession::{
    Attempt, HALT_PATIENCE, PATIENCE, REST_PATIENCE, Succession, await_turn, give, refuse, take,
};
use super::window::Window;
use super::workers::{Inherited, PassedWorkers};
use crate::device::PassedDevice;
use crate::ipc::{Channel, FromSuccessor, WORKER_MESSAGES};
use crate::transport::{PassedFiles, PassedRequest, PassedSession, QUEUES, Session};
use config::CacheKey;
use outside::SocketFile;
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::Instant;

/// Everything that is passed on, except for descriptors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Passed {
    pub(super) session: PassedSession,
    pub(super) device: PassedDevice<PassedRequest>,
    /// The version of the messages of workers, and of what they share with the device process.
    pub(super) worker_messages: u32,
    pub(super) workers: PassedWorkers,
    pub(super) blobs: PassedBlobs,
    pub(super) lenders: Vec<PassedLender>,
    pub(super) rings: Vec<PassedRing>,
    pub(super) deposits: Vec<PassedDeposits>,
    pub(super) checkpoints: Vec<PassedCheckpoint>,
    pub(super) room: Option<PassedRoom>,
    pub(super) strikes: PassedStrikes,
    pub(super) cache_key: CacheKey,
    /// The advice on maps, and that on queues, was logged for the VM already.
    pub(super) advised: (bool, bool),
    /// The frontend's memory table follows the window; none if that is not known.
    pub(super) table_follows: Option<bool>,
    /// Device and inode of the socket file, if a device process has made it.
    pub(super) socket: Option<(u64, u64)>,
}

/// The reason why another process does not serve the frontend.
enum NotGiven {
    /// This process cannot pass everything on now, but perhaps in a moment.
    InTheWay(String),
    /// The other process does not take everything over.
    Refused(String),
}

impl Server {
    /// Goes on with a succession. Returns how this process ends, if it does: a process that cannot follow for now is started again later.
    ///
    /// # Errors
    ///
    /// This process was to follow another, and never can.
    pub(super) fn succession_due(&mut self) -> io::Result<Option<End>> {
        let now = Instant::now();
        match (std::mem::take(&mut self.world.succession), &self.listen) {
            (Succession::None, _) => {}
            (Succession::Wanted(channel), Listen::Successor(_)) => {
                return match self.follow(&channel) {
                    Ok(()) => Ok(None),
                    Err(Failure { reason, lasts: Lasts::ForNow }) => {
                        log::info!("the VM goes on with the old program for now: {reason}");
                        Ok(Some(End::Outdated))
                    }
                    Err(Failure { reason, .. }) => {
                        Err(io::Error::other(format!("cannot take the VM over: {reason}")))
                    }
                };
            }
            (Succession::Wanted(channel), _) => {
                self.come_to_rest(Attempt { channel, until: now + REST_PATIENCE }, now);
            }
            (Succession::Rests(attempt, at), _) if at <= now => self.come_to_rest(attempt, now),
            (Succession::Halts(Attempt { channel, .. }, until), _) if until <= now => {
                self.world.session.iter().for_each(|session| session.unhalt());
                refuse(&channel, "the frontend is in the middle of a message");
            }
            (waits, _) => self.world.succession = waits,
        }
        Ok(None)
    }

    /// The successor is ready: stops listening to the frontend, if nothing prevents the succession now.
    fn come_to_rest(&mut self, attempt: Attempt, now: Instant) {
        let may_pass_on = self.may_pass_on();
        match (may_pass_on, &self.world.session) {
            (Ok(()), Some(session)) => match session.halt() {
                Ok(()) => self.world.succession = Succession::Halts(attempt, now + HALT_PATIENCE),
                Err(error) => refuse(&attempt.channel, &error.to_string()),
            },
            (Ok(()), None) => refuse(&attempt.channel, "no frontend is connected"),
            (Err(reason), _) => self.world.succession.try_again(attempt, reason, now),
        }
    }

    /// Returns whether another process can take everything over now, apart from the session.
    ///
    /// # Errors
    ///
    /// The reason why another process cannot take everything over now.
    fn may_pass_on(&self) -> Result<(), &'static str> {
        if self.transferring.is_under_way() {
            return Err("the device's state is being saved or loaded");
        }
        if self.world.window.loaded.is_some() {
            return Err("a state was loaded, and the frontend has not started the device yet");
        }
        self.is_settled()
    }

    /// Returns whether everything can be written down now, apart from the session.
    ///
    /// # Errors
    ///
    /// The reason why something cannot be written down now.
    pub(super) fn is_settled(&self) -> Result<(), &'static str> {
        self.device.may_pass_on()?;
        self.world.may_pass_on()?;
        if !self.is_caught_up() {
            return Err("a program waits until the guest's requests are done");
        }
        match self.closing.is_empty() {
            true => Ok(()),
            false => Err("memory is being freed"),
        }
    }

    /// This process has stopped listening to the frontend. Returns whether another process serves the frontend from now on.
    pub(super) fn halted(&mut self) -> bool {
        if let Some(attempt) = self.world.succession.take_halts() {
            self.settle();
            self.device.await_no_start(&mut self.world);
            self.world.signal();
            // This thread waits for the other process, not for the frontend.
            self.world.progress.waits();
            let given = self.give(&attempt);
            self.world.progress.begins();
            match given {
                Ok(()) => {
                    log::info!("a device process of another program serves the frontend from now on");
                    self.given = Some(attempt.channel);
                    return true;
                }
                Err(NotGiven::InTheWay(reason)) => {
                    self.world.succession.try_again(attempt, &reason, Instant::now());
                }
                Err(NotGiven::Refused(reason)) => {
                    log::info!("this device process goes on serving the frontend: {reason}");
                    refuse(&attempt.channel, &reason);
                }
            }
        }
        if let Some(session) = &mut self.world.session {
            session.go_on();
        }
        false
    }

    /// Passes everything on to the other process, and has it serve.
    fn give(&self, attempt: &Attempt) -> Result<(), NotGiven> {
        let (passed, of_session, files) = self.all_of_it().map_err(NotGiven::InTheWay)?;
        let files: Vec<_> = of_session.iter().map(AsFd::as_fd).chain(files).collect();
        give(&attempt.channel, &passed, &files, PATIENCE).map_err(NotGiven::Refused)
    }

    /// Writes everything down, with the descriptors of the session, and the others.
    ///
    /// # Errors
    ///
    /// The reason why another process cannot take everything over now.
    pub(super) fn all_of_it(&self) -> Result<(Passed, Vec<OwnedFd>, Vec<BorrowedFd<'_>>), String> {
        self.may_pass_on()?;
        let World { workers, blobs, lenders, deposits, checkpoints, strikes, .. } = &self.world;
        let session = self.world.session.as_ref().ok_or("the frontend is gone")?;
        let Listen::Socket { listener, file } = &self.listen else {
            return Err("this device process listens at no socket".into());
        };
        if (0..QUEUES).any(|index| session.vring(index).generation() != self.generations[index]) {
            return Err("the driver has just reset the device".into());
        }
        let now = Instant::now();
        let device = self.device.pass_on(|request| session.pass_on_request(request))?;
        let mut open = [0; QUEUES];
        device.tickets().for_each(|request| open[request.queue()] += 1);
        let (session, mut of_session) = session.pass_on(open)?;
        of_session.insert(0, listener.try_clone().map_err(|error| error.to_string())?.into());
        let (passed_workers, mut files) = workers.pass_on();
        let (blobs, of_blobs) = blobs.pass_on();
        let (lenders, anchors) = lenders.pass_on();
        let (deposits, of_deposits) = deposits.pass_on();
        let (checkpoints, journals) = checkpoints.pass_on();
        files.extend(of_blobs.into_iter().chain(anchors).chain(of_deposits).chain(journals));
        let advised = self.world.events.advised;
        let passed = Passed {
            session,
            device,
            worker_messages: WORKER_MESSAGES,
            workers: passed_workers,
            blobs,
            lenders,
            rings: self.world.rings.pass_on(),
            deposits,
            checkpoints,
            room: self.world.room.pass_on(now),
            strikes: strikes.pass_on(now),
            cache_key: workers.cache_key(),
            advised: (advised.on_maps, advised.on_queues),
            table_follows: self.world.window.table.follows(),
            socket: file.as_ref().map(SocketFile::identity),
        };
        Ok((passed, of_session, files))
    }

    /// Takes over from the device process at the other end.
    ///
    /// # Errors
    ///
    /// This process takes nothing over: for now, as the other serves on or the system lacks a resource, or for good.
    fn follow(&mut self, channel: &Channel) -> Result<(), Failure> {
        self.world.progress.waits();
        let until = Instant::now() + REST_PATIENCE + HALT_PATIENCE + PATIENCE;
        let (passed, files): (Passed, _) = take(channel, until)?;
        let mut files = PassedFiles::from(files);
        let listener = files.take().map_err(|_| Failure::for_good("no socket to listen at"))?;
        let listener = UnixListener::from(listener);
        // Another file may lie at the path by now: the launcher compares the identities.
        let file = passed.socket.zip(self.listen.path());
        let file = file.map(|(identity, path)| SocketFile::known(path, identity));
        let (session, inherited) = self.resumed(passed, &mut files)?;
        let told = self.tell_launcher_of(session.connection());
        told.map_err(|error| Failure::for_now(error.to_string()))?;
        await_turn(channel)?;
        self.listen = Listen::Socket { listener, file };
        // The launcher gets all anchors before anything else is done: if this process ends, the anchors keep alive what the frontend has mapped.
        let is_kept = self.world.order_keeper();
        self.serves_on(session, inherited);
        if is_kept {
            // The other process may be gone by now.
            let _ = channel.try_send(&FromSuccessor::Serves, None);
        }
        self.world.progress.begins();
        Ok(())
    }

    /// Builds up what another device process has written down, and touches nothing of the VM.
    ///
    /// # Errors
    ///
    /// The passed state does not fit this process, or the system lacks a resource for now.
    pub(super) fn resumed(
        &mut self,
        passed: Passed,
        files: &mut PassedFiles,
    ) -> Result<(Session, Inherited), Failure> {
        if !passed.workers.is_empty() && passed.worker_messages != WORKER_MESSAGES {
            let why = "workers of its program speak otherwise than this program: it waits for the end of their programs";
            return Err(Failure::for_now(why));
        }
        if !passed.workers.is_empty() && passed.room.is_some() != self.world.room.order.is_some() {
            let why = "programs of the guest began with or without gpu-memory, which has changed: it waits for their end";
            return Err(Failure::for_now(why));
        }
        let (config, epoll, now) = (self.config.clone(), Arc::clone(&self.epoll), Instant::now());
        let session = Session::resume(passed.session, files, config, epoll, TOKENS).map_err(|error| {
            let lasts = if error.is_of_system() { Lasts::ForNow } else { Lasts::ForGood };
            Failure { reason: error.to_string(), lasts }
        })?;
        let resumed = self.device.resume(passed.device, |request| session.resume_request(request));
        resumed.map_err(Failure::for_good)?;
        let World { workers, blobs, lenders, deposits, checkpoints, strikes, rings, room, window, .. } =
            &mut self.world;
        let inherited = workers.inherit(passed.workers, files, TOKEN_LAUNCHER);
        let of_system = |error: io::Error| Failure::for_now(error.to_string());
        let inherited = inherited.map_err(of_system)?;
        blobs.resume(passed.blobs, files).map_err(of_system)?;
        lenders.resume(passed.lenders, files).map_err(of_system)?;
        deposits.resume(passed.deposits, files).map_err(of_system)?;
        checkpoints.resume(passed.checkpoints, files, now).map_err(of_system)?;
        if !files.is_empty() {
            return Err(Failure::for_good("it passes on more descriptors than its state names"));
        }
        if let Some(passed) = passed.room.filter(|_| room.order.is_some()) {
            room.resume(passed, now);
        }
        rings.resume(passed.rings);
        strikes.resume(passed.strikes, now);
        workers.keep_key(passed.cache_key);
        window.table = passed.table_follows.into();
        let (on_maps, on_queues) = passed.advised;
        self.world.events.advised = Advised { on_maps, on_queues };
        Ok((session, inherited))
    }

    /// Serves a frontend that another device process has served until now.
    pub(super) fn serves_on(&mut self, session: Session, mut inherited: Inherited) {
        for (ctx_id, page) in std::mem::take(&mut inherited.pages) {
            self.world.hangs.begins(ctx_id, page);
        }
        self.world.workers.adopt(inherited);
        self.world.backlog.reports = true;
        // The files were those of the other process until now.
        let launcher = self.world.workers.launcher();
        let socket = self.listen.made_at();
        let watched = launcher.remove_at_end(socket, Vec::new()).and_then(|()| launcher.watch(self.family));
        if let Err(error) = watched {
            log::error!(
                "replaced driver files will not be noticed, and the socket file will not be removed: {error}"
            );
        }
        self.world.session.insert(session).go_on();
        self.tell_frontend(true);
        log::info!("this device process now serves the frontend; one of another program did before");
    }
}

impl World {
    /// Returns whether another process can take over everything here, apart from the session and the device.
    ///
    /// # Errors
    ///
    /// The reason why another process cannot take everything over now.
    fn may_pass_on(&self) -> Result<(), &'static str> {
        let Self { workers, lenders, closer, outdated, window: Window { late, owed, .. }, .. } = self;
        if outdated.has_lost_socket {
            return Err("its socket file was removed or replaced");
        }
        workers.may_pass_on()?;
        if self.backlog.has_contexts() {
            return Err("a context is being restarted, or has just been lost");
        }
        if self.checkpoints.is_one_awaited() {
            return Err("a worker writes a checkpoint");
        }
        if !(late.is_empty() && owed.is_empty() && lenders.may_pass_on() && closer.is_done()) {
            return Err("memory that the guest has given up is still mapped, or being freed");
        }
        Ok(())
    }

    /// The frontend is needed: listens to it again, and lets no other process follow now.
    pub(super) fn call_halt_off(&mut self) {
        let halts = self.succession.take_halts();
        let Some(session) = &mut self.session else { return };
        if let Some(attempt) = halts {
            session.unhalt();
            self.succession.try_again(attempt, "the frontend maps or unmaps", Instant::now());
        }
        if session.is_halted() {
            session.go_on();
        }
    }
}
