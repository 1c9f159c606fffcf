//! The submissions that wait in held queues before a gate, as the gate sees them.

use super::gate::Gate;

/// The submissions of one queue, which pass a gate in order.
pub trait Lane: Send + Sync {
    /// Dispatches the first submission that waits, if it is ready and the gate lets it pass.
    fn advance(&self, gate: &Gate) -> Step;
    /// Returns the state of the held queue: how many ready submissions wait.
    fn standing(&self) -> Standing;
    /// Has the driver watched, since the end of a submission of this queue has to be known at once.
    fn watch_driver(&self);
}

/// The outcome of an attempt to dispatch the first entry of a held queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The held queue has nothing to dispatch.
    Empty,
    /// The first entry has passed.
    Done,
    /// The first entry is not ready, or may not pass.
    Waits,
}

/// The state of a held queue.
#[derive(Clone, Copy, Debug, Default)]
pub struct Standing {
    /// The number of submissions that want a grant and are ready, as far as they are counted.
    pub ready: u32,
    /// True if the next submission after these is not ready.
    pub unready: bool,
    /// True if the first submission is ready and needs no grant.
    pub free: bool,
}

impl Standing {
    /// The state of two held queues together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let (ready, unready) = (self.ready.saturating_add(other.ready), self.unready || other.unready);
        Self { ready, unready, free: self.free || other.free }
    }
}
