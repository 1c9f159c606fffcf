//! This file asks the frontend to map into the window and to unmap there, and decides when that is done.
//!
//! QEMU (11.1) behaves in two ways that the specification allows or leaves open:
//!
//! - QEMU acknowledges a request *before* it carries it out. A guest that hears of a mapping at once reaches nothing there yet: its first writes are
//!   lost, and its first reads give zero. Memory that is acknowledged as unmapped can be reached for milliseconds. QEMU changes the memory table
//!   after the acknowledgement, and tells the back end. So where mappings are announced in the table, a request is done when the table has changed.
//! - QEMU crashes when it reads a request while it has stopped the device, and a request that was sent cannot be taken back. So this module keeps
//!   requests to unmap until the device goes on.

use super::effects::World;
use super::logging::event::DeviceEvent;
use super::patience::Patience;
use super::window::{Table, Window};
use crate::device::Effects;
use crate::transport::{Session, SessionError};
use rustix::event::PollFlags;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

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
        let session = self.frontend()?;
        let before = session.announced(offset, size);
        let asked = session.map_blob(file, offset, size)?;
        self.answered(asked)?;
        if self.session.as_ref().is_some_and(|session| session.is_stopped()) {
            self.window.late.push((offset, size));
        }
        self.changed(offset, size, |now| now > before);
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

    /// Has the frontend map what the guest had mapped when its state was saved.
    pub(super) fn map_loaded(&mut self) {
        let loaded = std::mem::take(&mut self.window.loaded);
        let count = loaded.len();
        let failed = loaded.into_iter().filter(|(resource_id, offset, size)| {
            Effects::map_blob(self, *resource_id, *offset, *size).is_err()
        });
        match failed.count() {
            0 => {}
            failed => log::error!(
                "{failed} of {count} mappings of the loaded state are missing: programs of the guest that use them hang"
            ),
        }
    }

    /// The frontend has dropped by itself the mappings that it made before it stopped the device for a reset; the later ones are unmapped.
    pub(super) fn window_was_reset(&mut self) {
        let Window { late, owed, loaded, .. } = &mut self.window;
        owed.clear();
        loaded.clear();
        for (offset, size) in std::mem::take(late) {
            // The frontend may have dropped this mapping nevertheless.
            if let Err(error) = self.unmap(offset, size) {
                log::debug!("a late mapping stays: {error}");
            }
        }
    }
}
