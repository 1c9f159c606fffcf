//! The parties that can be at fault when a context is lost.

use serde::{Deserialize, Serialize};

/// The party whose fault it is that a context cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AtFault {
    /// The guest's program, or its driver.
    Guest,
    /// The host's driver, or its GPU.
    Driver,
    /// The host, which lacks threads, files or memory.
    Host,
    /// The worker that had the context before, and that may be under its guest's control.
    Predecessor,
    /// This program.
    Daemon,
}

impl AtFault {
    /// Returns the words that a line of the log puts ahead of the cause.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Guest => "the guest's program or its driver breaks a rule",
            Self::Driver => "the host's driver reports a failure",
            Self::Host => "the host fails",
            Self::Predecessor => "the worker that had it before has left a state that cannot be taken over",
            Self::Daemon => "a fault of vhost-user-vulkan, please report it",
        }
    }
}
