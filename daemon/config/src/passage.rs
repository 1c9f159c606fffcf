//! The passage of a context's submissions from its worker to the driver. The device process tells the worker which one applies.

use serde::{Deserialize, Serialize};

/// The way in which submissions pass the gate before a GPU, if it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Passage {
    /// A scheduler shares the GPU out among several VMs: each submission needs a grant, unless its context has a lease.
    ByGrant,
    /// Each submission passes at once, as if there were no gate: the worker only counts and measures it, for the operators of the only VM.
    Counted,
}
