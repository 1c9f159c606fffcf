//! The passage of a context's submissions from its worker to the driver. The device process tells the worker which one applies.

use serde::{Deserialize, Serialize};

/// The way in which submissions pass the gate before a GPU, where there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Passage {
    /// A scheduler shares the GPU out among several VMs: each submission needs a grant, unless its context has a lease.
    ByGrant,
    /// Each submission passes at once, as if there were no gate: it is only counted and measured, for the operators of the only VM.
    Counted,
}
