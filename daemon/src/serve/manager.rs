//! This file tells the service manager the state of the device process, and that its loop turns.

use super::effects::World;
use crate::service::Manager;
use std::time::Instant;

/// The service manager, and the last message to it.
#[derive(Debug, Default)]
pub(super) struct Told {
    manager: Manager,
    /// The place where frontends connect.
    place: String,
    /// The number of the frontend's contexts, if a frontend is connected; none before the first message.
    contexts: Option<Option<usize>>,
}

impl Told {
    pub(super) fn new(manager: Manager, place: String) -> Self {
        Self { manager, place, contexts: None }
    }

    /// The device process listens.
    pub(super) fn ready(&mut self) {
        self.manager.ready(status(&self.place, None));
    }

    /// The device process ends.
    pub(super) fn stopping(&mut self) {
        self.manager.stopping();
    }

    /// Returns whether a manager has started this process.
    pub(super) fn is_managed(&self) -> bool {
        self.manager.is_there()
    }

    /// Returns when the manager wants to hear that the device thread turns.
    pub(super) fn next_turn(&self) -> Option<Instant> {
        self.manager.next_turn()
    }

    /// The device thread turns, and a frontend with so many contexts is connected, or none.
    fn turns(&mut self, now: Instant, contexts: Option<usize>) {
        if self.contexts != Some(contexts) {
            self.contexts = Some(contexts);
            self.manager.status_changed();
        }
        self.manager.turns(now, || status(&self.place, contexts));
    }
}

/// Returns the state of a device process, in words.
fn status(place: &str, contexts: Option<usize>) -> String {
    match contexts {
        None => format!("waiting for a frontend on {place}"),
        Some(1) => "connected, 1 context".to_owned(),
        Some(contexts) => format!("connected, {contexts} contexts"),
    }
}

impl World {
    /// The device thread turns, or waits for a slow frontend, for example while its guest is paused.
    pub(super) fn turns(&mut self, now: Instant) {
        let contexts = self.session.as_ref().map(|_| self.workers.count());
        self.told.turns(now, contexts);
    }
}
