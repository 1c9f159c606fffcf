//! The messages between a device process and its successor, which runs another program and serves the same frontend from then on. Both are
//! trusted; their programs need not know the same forms.

use serde::{Deserialize, Serialize};

/// The form of the state that is passed on. It rises with each change of these messages and of the content of [`ToSuccessor::State`].
pub const SUCCESSION: u32 = 3;

/// From the device process that serves to its successor. The first two kinds keep their places in all forms, as programs of other forms read them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToSuccessor {
    /// First message: the next messages have this form.
    Begins {
        /// [`SUCCESSION`] of the sender's program.
        form: u32,
    },
    /// At any time before [`Self::Serve`]: nothing is passed on now, for a temporary reason.
    NotNow {
        /// The reason.
        reason: String,
    },
    /// Descriptor: the next descriptor of the state, in their order.
    File,
    /// The next bytes of the state.
    State(Vec<u8>),
    /// The state is complete. Answered by [`FromSuccessor`].
    Ends,
    /// From now on the successor serves, and the sender does nothing any more.
    Serve,
}

/// The answers of the successor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromSuccessor {
    /// The successor has built the state up and touched nothing, and serves as soon as it is told to serve.
    CanServe,
    /// The last message: the successor serves, and its launcher keeps all that the other launcher kept, which can let go.
    Serves,
}
