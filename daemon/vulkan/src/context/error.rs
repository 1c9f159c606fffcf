//! The errors of executing a command, told apart by whose fault they are.

use protocol::error::DecodeError;
use protocol::venus::generated::Command;

/// The context cannot go on: its stream is wrong or its renderer is gone. The other contexts do not notice. Or, if it
/// [is an interruption](Self::is_interruption), a command was not executed for now, and left no trace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.reason())]
pub struct ContextLost {
    /// Words of ours; none for an interruption. Every result of a command has room for it, so it is no larger than the words.
    reason: Option<String>,
}

impl ContextLost {
    /// A reason in words.
    pub fn new(reason: impl Into<String>) -> Self {
        Self { reason: Some(reason.into()) }
    }

    /// The outcome of a command whose wait was interrupted. The context goes on: the command is executed again from its start.
    pub fn interruption() -> Self {
        Self { reason: None }
    }

    /// Returns whether nothing is lost, and the command is to be executed again from its start.
    pub fn is_interruption(&self) -> bool {
        self.reason.is_none()
    }

    /// The reason, for the log.
    pub fn reason(&self) -> &str {
        self.reason.as_deref().unwrap_or("interrupted")
    }

    /// Returns the same reason, with the name of the command that it is about.
    #[cold]
    #[must_use]
    pub fn within(self, number: i32) -> Self {
        if self.is_interruption() {
            return self;
        }
        let name = Command::name(number).unwrap_or("unknown command");
        Self::new(format!("{name} ({number}): {self}"))
    }

    /// A transport command where only commands of the host's driver belong.
    pub fn misplaced(command: &str) -> Self {
        Self::new(format!("{command} has no place here"))
    }
}

/// `VK_ERROR_VALIDATION_FAILED`.
pub(crate) const INVALID: i32 = ash::vk::Result::ERROR_VALIDATION_FAILED_EXT.as_raw();

/// The reason for which one command was not executed.
#[derive(Clone, Debug)]
pub enum Fault {
    /// The command names an object whose creation failed with this `VkResult`, or was refused: that is legal, and answered with the result.
    Failed(i32),
    /// The stream is wrong, or the command was interrupted.
    Lost(ContextLost),
}

impl Fault {
    /// The fault of a command for which the host's driver has no function, although only what it has was offered.
    #[cold]
    pub fn missing(command: &str) -> Self {
        Self::lost(format!("{command} is not offered by this device"))
    }

    /// The fault of a command that breaks valid usage in a way that could corrupt this process: it is not executed, and is answered with an
    /// error if it has an answer. Programs live on with that, as many do natively.
    #[cold]
    pub fn invalid(rule: &'static str) -> Self {
        Self::Failed(Self::refused(rule))
    }

    /// The result of [`Self::invalid`], for a creation that leaves a tombstone.
    pub fn refused(rule: &'static str) -> i32 {
        log::debug!("refused, for it breaks valid usage: {rule}");
        INVALID
    }

    /// The fault of a stream that is wrong, with the reason in words.
    #[cold]
    pub fn lost(reason: impl Into<String>) -> Self {
        Self::Lost(ContextLost::new(reason))
    }
}

impl From<ContextLost> for Fault {
    fn from(lost: ContextLost) -> Self {
        Self::Lost(lost)
    }
}

impl From<DecodeError> for Fault {
    fn from(error: DecodeError) -> Self {
        Self::Lost(error.into())
    }
}

impl From<DecodeError> for ContextLost {
    fn from(error: DecodeError) -> Self {
        Self::new(error.to_string())
    }
}

/// A `VkResult` of ash as the failure it means.
impl From<ash::vk::Result> for Fault {
    fn from(result: ash::vk::Result) -> Self {
        Self::Failed(result.as_raw())
    }
}

/// Demands that a rule of valid usage is kept.
#[inline]
pub(crate) fn demand(kept: bool, rule: &'static str) -> Result<(), Fault> {
    if kept { Ok(()) } else { Err(Fault::invalid(rule)) }
}

/// The fault of an entry whose kind and state disagree: a bug of ours, which ends the context rather than panics.
#[cold]
pub(crate) fn inconsistent() -> Fault {
    Fault::lost("object table is inconsistent")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_no_larger_than_their_words() {
        let sizes = [size_of::<ContextLost>(), size_of::<Fault>(), size_of::<Result<(), Fault>>()];
        assert_eq!(sizes, [size_of::<String>(); 3]);
    }
}
