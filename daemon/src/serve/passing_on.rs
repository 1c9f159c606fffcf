//! The parts of a succession (`serve::succession`) that both device processes play: the one that serves comes to rest and leaves, and the other builds
//! up what that one has written down.

use super::effects::World;
use super::handover::failure::{Failure, Lasts};
use super::outdated::End;
use super::run::Server;
use super::setup::Listen;
use super::succession::{HALT_PATIENCE, PATIENCE, Passed, Succession, await_turn, give, refuse, take};
use super::window::Window;
use crate::ipc::Channel;
use crate::transport::QUEUES;
use outside::SocketFile;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::time::Instant;

impl Server {
    /// Goes on with a succession. Returns how this process ends, if it does: one that cannot follow another for now is started again later.
    ///
    /// # Errors
    ///
    /// This process was to follow another, and never can.
    pub(super) fn succession_due(&mut self) -> io::Result<Option<End>> {
        match (std::mem::take(&mut self.world.succession), &self.listen) {
            (Succession::None, _) => {}
            (Succession::Wanted(channel) | Succession::Halts(channel, _), Listen::Successor(_)) => {
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
            (Succession::Wanted(channel), _) => self.come_to_rest(channel),
            (Succession::Halts(channel, until), _) if Instant::now() < until => {
                self.world.succession = Succession::Halts(channel, until);
            }
            (Succession::Halts(channel, _), _) => {
                self.world.session.iter().for_each(|session| session.unhalt());
                refuse(&channel, "the frontend is in the middle of a message");
            }
        }
        Ok(None)
    }

    /// The successor is there: the frontend is not listened to any more, if nothing else is in the way.
    fn come_to_rest(&mut self, channel: Channel) {
        let may_pass_on = self.world.may_pass_on().and_then(|()| self.device.may_pass_on());
        match (may_pass_on, &self.world.session) {
            (Ok(()), Some(session)) => match session.halt() {
                Ok(()) => self.world.succession = Succession::Halts(channel, Instant::now() + HALT_PATIENCE),
                Err(error) => refuse(&channel, &error.to_string()),
            },
            (Ok(_), None) => refuse(&channel, "no frontend is connected"),
            (Err(reason), _) => refuse(&channel, reason),
        }
    }

    /// The frontend is not listened to any more. Returns whether another process serves it from now on.
    pub(super) fn halted(&mut self) -> bool {
        if let Some(channel) = self.world.succession.take_halts() {
            self.world.signal();
            // The other process is waited for, not the frontend.
            self.world.progress.waits();
            let given =
                self.all_of_it().and_then(|(passed, files)| give(&channel, &passed, &files, PATIENCE));
            self.world.progress.begins();
            match given {
                Ok(()) => {
                    log::info!("a device process of another program serves the frontend from now on");
                    self.is_given = true;
                    return true;
                }
                Err(reason) => {
                    log::info!("this device process goes on serving the frontend: {reason}");
                    refuse(&channel, &reason);
                }
            }
        }
        if let Some(session) = &mut self.world.session {
            session.go_on();
        }
        false
    }

    /// Writes everything down, with its descriptors.
    pub(super) fn all_of_it(&self) -> Result<(Passed, Vec<OwnedFd>), String> {
        self.world.may_pass_on()?;
        let (device, session) =
            (self.device.pass_on()?, self.world.session.as_ref().ok_or("the frontend is gone")?);
        let Listen::Socket { listener, file } = &self.listen else {
            return Err("this device process listens at no socket".into());
        };
        if (0..QUEUES).any(|index| session.vring(index).generation() != self.generations[index]) {
            return Err("the driver has just reset the device".into());
        }
        let (session, mut files) = session.pass_on()?;
        files.insert(0, listener.try_clone().map_err(|error| error.to_string())?.into());
        let (strikes, cache_key) =
            (self.world.strikes.pass_on(Instant::now()), self.world.workers.cache_key());
        let (advised, table_follows) =
            ((self.world.advised, self.world.advised_on_queues), self.world.window.table.follows());
        let socket = file.as_ref().map(SocketFile::identity);
        Ok((Passed { session, device, strikes, cache_key, advised, table_follows, socket }, files))
    }

    /// Takes over from the device process at the other end.
    ///
    /// # Errors
    ///
    /// Nothing is taken over: for now, as the other serves on or the system has not enough of something, or ever.
    fn follow(&mut self, channel: &Channel) -> Result<(), Failure> {
        self.world.progress.waits();
        let until = Instant::now() + HALT_PATIENCE + PATIENCE;
        let (passed, files) = take(channel, until)?;
        let mut files = files.into_iter();
        let listener =
            UnixListener::from(files.next().ok_or_else(|| Failure::for_good("no socket to listen at"))?);
        // Another file may lie at the path by now: the launcher compares.
        let file = passed.socket.zip(self.listen.path());
        let file = file.map(|(identity, path)| SocketFile::known(path, identity));
        let session = self.resumed(passed, &mut files)?;
        let told = self.tell_launcher_of(session.connection());
        told.map_err(|error| Failure::for_now(error.to_string()))?;
        await_turn(channel)?;
        self.listen = Listen::Socket { listener, file };
        self.serves_on(session);
        self.world.progress.begins();
        Ok(())
    }
}

impl World {
    /// Returns whether nothing is there that no other process can take over, apart from the session and the device.
    ///
    /// # Errors
    ///
    /// Names what is in the way.
    fn may_pass_on(&self) -> Result<(), &'static str> {
        let Self { workers, lenders, closer, outdated, window: Window { late, owed, .. }, .. } = self;
        if outdated.has_lost_socket {
            return Err("its socket file was removed or replaced");
        }
        if !workers.are_all_gone() {
            return Err("workers of programs that have ended are still there");
        }
        if !(late.is_empty() && owed.is_empty() && lenders.is_empty() && closer.is_done()) {
            return Err("memory that the guest has given up is still mapped, or being freed");
        }
        Ok(())
    }

    /// The frontend is needed: it is listened to again, and no other process follows now.
    pub(super) fn call_halt_off(&mut self) {
        let halts = self.succession.take_halts();
        let Some(session) = &mut self.session else { return };
        if let Some(channel) = halts {
            session.unhalt();
            refuse(&channel, "the frontend maps or unmaps");
        }
        if session.is_halted() {
            session.go_on();
        }
    }
}
