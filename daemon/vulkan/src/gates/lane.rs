//! The submissions that stand in held queues before a gate, as the gate sees them.

use super::gate::Gate;

/// The submissions of one queue, which pass a gate in order.
pub trait Lane: Send + Sync {
    /// Dispatches the first submission that waits, if it is ready and the gate lets it pass.
    fn advance(&self, gate: &Gate) -> Step;
    /// Returns how the held queue stands: how many submissions wait that are ready.
    fn standing(&self) -> Standing;
    /// Has the driver watched, since the end of something of this queue has to be known at once.
    fn watch_driver(&self);
}

/// The outcome of a try to dispatch the first of a held queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The held queue has nothing to dispatch.
    Empty,
    /// The first has passed.
    Done,
    /// The first is not ready, or may not pass.
    Waits,
}

/// The state of a held queue.
#[derive(Clone, Copy, Debug, Default)]
pub struct Standing {
    /// The number of submissions that want a grant and are ready, as far as they are counted.
    pub ready: u32,
    /// The next submission behind them is not ready.
    pub unready: bool,
    /// The first submission is ready and needs no grant.
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
