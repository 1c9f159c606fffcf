//! This file asks the frontend to map into the window and to unmap there, and decides when that is done.
//!
//! QEMU (11.1) behaves in two ways that the specification allows or leaves open:
//!
//! - QEMU acknowledges a request *before* it carries it out. A guest that hears of a mapping at once reaches nothing there yet: its first writes are
//!   lost, and its first reads give zero. Memory that is acknowledged as unmapped can be reached for milliseconds. QEMU changes the memory table
//!   after the acknowledgement, and tells the back end. So where mappings are announced in the table, a request is done when the table has changed.
//! - QEMU crashes when it reads a request while it has stopped the device, and a request that was sent cannot be taken back. So this module keeps
//!   requests to unmap until the device goes on.
//!
//! crosvm reads requests once it has started the device, and starts its processors at the same moment. So the requests for the mappings of a loaded
//! state are sent ahead, while the device is stopped; their answers come before those of all other requests.

use super::effects::World;
use super::logging::event::DeviceEvent;
use super::patience::Patience;
use super::window::{LoadedMap, Table, Window};
use crate::device::Effects;
use crate::transport::{Asked, Session, SessionError};
use outside::Span;
use protocol::ids::ResourceId;
use rustix::event::PollFlags;
use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// Requests for the mappings of a loaded state that are sent before the first is answered, at most. The descriptors that a user's processes have sent
/// and others have not received yet count against that user's limit.
const AHEAD_MAX: usize = 64;

/// The longest wait for a change of the memory table. Such a change comes sooner, unless the system stands still.
const CHANGE_MAX: Duration = Duration::from_secs(5);

impl World {
    /// Returns the session, if its frontend can be sent requests.
    ///
    /// # Errors
    ///
    /// There is no session, or the frontend has stopped the device and crashes at requests meanwhile.
    fn frontend(&self) -> Result<&Session, SessionError> {
        let session = self.session.as_ref().ok_or(SessionError::Gone)?;
        match session.announces_maps() && session.is_stopped() && !session.has_ended() {
            true => Err(SessionError::Stopped),
            false => Ok(session),
        }
    }

    /// Has the frontend map a file, and waits until guests reach it.
    ///
    /// # Errors
    ///
    /// The frontend has not mapped it.
    pub(super) fn map(&mut self, file: OwnedFd, offset: u64, size: u64) -> Result<(), SessionError> {
        self.map_loaded_first();
        let session = self.frontend()?;
        let before = session.announced(offset, size);
        let asked = session.map_blob(file, offset, size)?;
        self.mapped(asked, (offset, size))?;
        self.changed(offset, size, |now| now > before);
        Ok(())
    }

    /// Waits until the frontend has met a request to map.
    ///
    /// # Errors
    ///
    /// The frontend has not met it.
    fn mapped(&mut self, asked: Asked, place: (u64, u64)) -> Result<(), SessionError> {
        self.answered(asked)?;
        if self.session.as_ref().is_some_and(|session| session.is_stopped()) {
            self.window.late.push(place);
        }
        Ok(())
    }

    /// Has the frontend unmap a range, and waits until guests do not reach it any more.
    ///
    /// # Errors
    ///
    /// The frontend has not unmapped it. If the reason is that it has stopped the device, it will be asked again.
    pub(super) fn unmap(&mut self, offset: u64, size: u64) -> Result<(), SessionError> {
        if matches!(self.frontend(), Err(SessionError::Stopped)) {
            self.window.owed.push((offset, size));
            return Err(SessionError::Stopped);
        }
        self.map_loaded_first();
        self.window.late.retain(|map| *map != (offset, size));
        let session = self.frontend()?;
        let before = session.announced(offset, size);
        let asked = session.unmap_blob(offset, size)?;
        self.answered(asked)?;
        if before > 0 {
            self.changed(offset, size, |now| now < before);
        }
        self.lenders.unmapped(offset);
        Ok(())
    }

    /// Waits until the number of regions at this offset of the window is the expected one, if the frontend announces regions.
    fn changed(&mut self, offset: u64, size: u64, is_as_it_should: impl Fn(usize) -> bool) {
        let mut patience = Patience::new(CHANGE_MAX, Instant::now());
        while self.window.table != Table::Stays {
            let announces = |session: &&Session| session.announces_maps() && !session.has_ended();
            let Some(session) = self.session.as_ref().filter(announces) else { return };
            let change = session.table_change();
            let has_changed = is_as_it_should(session.announced(offset, size));
            if has_changed || patience.is_over(Instant::now(), true) {
                self.window.table = self.window.table.after(has_changed);
                if !has_changed {
                    self.log(DeviceEvent::TableUnchanged(CHANGE_MAX));
                }
                return;
            }
            self.look_around(change.as_fd(), PollFlags::IN);
        }
    }

    /// Returns whether the frontend can be asked to remove the mappings that are still to go, unless the driver has reset the device.
    pub(super) fn can_unmap_owed(&self) -> bool {
        !self.window.owed.is_empty() && self.session.as_ref().is_some_and(|session| !session.is_stopped())
    }

    /// Has the frontend remove the mappings that it could not remove while it had stopped the device.
    pub(super) fn unmap_owed(&mut self) {
        for (offset, size) in std::mem::take(&mut self.window.owed) {
            match self.unmap(offset, size) {
                Ok(()) | Err(SessionError::Stopped) => {}
                Err(error) => log::error!(
                    "cannot unmap memory after the frontend has started the device again: {error}"
                ),
            }
        }
    }

    /// A state was loaded: the frontend is to map what the guest had mapped when its state was saved, given as resource, offset and bytes.
    pub(super) fn note_loaded(&mut self, mapped: Vec<(ResourceId, u64, u64)>) {
        let map = |(resource_id, offset, size)| LoadedMap { resource_id, offset, size, asked: None };
        let mut loaded = mapped.into_iter().map(map).collect();
        self.ask_ahead(&mut loaded);
        self.window.loaded = Some(loaded);
    }

    /// Sends the next requests for the mappings of a loaded state, up to [`AHEAD_MAX`] and as many as the channel takes now, to a frontend that leaves
    /// them in the channel while it has stopped the device.
    fn ask_ahead(&self, loaded: &mut VecDeque<LoadedMap>) {
        if self.session.as_ref().is_none_or(Session::announces_maps) {
            return;
        }
        // The last request that was begun may not be sent to its end.
        let next = loaded.partition_point(|map| map.asked.is_some()).saturating_sub(1);
        let ahead = loaded.iter_mut().take(AHEAD_MAX).skip(next);
        for LoadedMap { resource_id, offset, size, asked } in ahead {
            if asked.is_none() {
                let Some((file, None)) = self.blobs.for_frontend(*resource_id) else { break };
                let file = file.try_clone_to_owned().map_err(SessionError::Io);
                let session = self.frontend();
                let begun = file.and_then(|file| session?.map_blob(file, *offset, *size));
                *asked = begun.ok();
            }
            let Some(request) = asked else { break };
            match request.send() {
                Ok(true) => {}
                Ok(false) => break,
                // The request is begun again after the start. If that fails, too, that error is logged.
                Err(_) => {
                    *asked = None;
                    break;
                }
            }
        }
    }

    /// Has the mappings of a loaded state made before others: the answers to requests that were sent ahead come before all others, and the guest may
    /// have sent a request before this thread has heard of the start.
    fn map_loaded_first(&mut self) {
        let Some(loaded) = &self.window.loaded else { return };
        let is_asked = loaded.front().is_some_and(|map| map.asked.is_some());
        if is_asked || self.session.as_ref().is_some_and(|session| !session.is_stopped()) {
            self.map_loaded();
        }
    }

    /// Has the frontend make the mappings of a loaded state, and waits until guests reach them.
    pub(super) fn map_loaded(&mut self) {
        let Some(mut loaded) = self.window.loaded.take() else { return };
        let (count, begun, mut missing) = (loaded.len(), Instant::now(), 0);
        loop {
            self.ask_ahead(&mut loaded);
            let Some(LoadedMap { resource_id, offset, size, asked }) = loaded.pop_front() else { break };
            let mapped = match asked {
                Some(asked) => {
                    // The frontend announced no mappings when it was asked: no number of regions from before would tell a change.
                    let mapped = self.mapped(asked, (offset, size));
                    self.answered_with("cannot map a blob", mapped)
                }
                None => Effects::map_blob(self, resource_id, offset, size),
            };
            missing += usize::from(mapped.is_err());
        }
        self.log(match missing {
            0 => DeviceEvent::LoadedMapped(count, Span(begun.elapsed())),
            missing => DeviceEvent::LoadedMissing { missing, count },
        });
    }

    /// The frontend has dropped by itself the mappings that it made before it stopped the device for a reset; the later ones are unmapped.
    pub(super) fn window_was_reset(&mut self) {
        let Window { late, owed, loaded, .. } = &mut self.window;
        owed.clear();
        // Requests were sent ahead to no frontend that drops mappings at a reset; or its session is over.
        *loaded = None;
        for (offset, size) in std::mem::take(late) {
            // The frontend may have dropped this mapping nevertheless.
            if let Err(error) = self.unmap(offset, size) {
                log::debug!(
                    "cannot unmap a mapping that was made after the frontend had stopped the device: {error}"
                );
            }
        }
    }
}
