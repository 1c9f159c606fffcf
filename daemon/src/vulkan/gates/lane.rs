//! What stands in line before a gate, as the gate sees it.

use super::gate::Gate;

/// What passes a gate: the submissions of one queue, in order.
pub trait Lane: Send + Sync {
    /// Dispatches the first that waits, if it is ready and the gate lets it pass.
    fn advance(&self, gate: &Gate) -> Step;
    /// How many wait.
    fn standing(&self) -> Standing;
    /// Somebody has to know at once when the driver completes something of it.
    fn watch_driver(&self);
}

/// How it went with the first of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// There is none.
    Empty,
    /// It has passed.
    Done,
    /// It is not ready, or may not pass.
    Waits,
}

/// How a line stands.
#[derive(Clone, Copy, Debug, Default)]
pub struct Standing {
    /// How many want a grant and are ready, as far as they are counted.
    pub ready: u32,
    /// The next behind them is not ready.
    pub unready: bool,
    /// The first is ready and needs no grant.
    pub free: bool,
}

impl Standing {
    /// How two lines stand.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let (ready, unready) = (self.ready.saturating_add(other.ready), self.unready || other.unready);
        Self { ready, unready, free: self.free || other.free }
    }
}
