//! The errors of executing a command, grouped by the party at fault.

use super::cause::{Cause, InheritedError, StreamError};
use config::AtFault;
use protocol::venus::generated::Command;
use std::fmt;

/// The loss of a context, which cannot go on for a [`Cause`]; the other contexts do not notice. Or, if this
/// [is an interruption](Self::is_interruption), a command was not executed for now, and left no trace.
///
/// Every result of a command has room for this type, so it is as small as a pointer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContextLost(Option<Box<Loss>>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Loss {
    /// The number of the command that caused the loss, if a command did.
    command: Option<i32>,
    cause: Cause,
}

impl ContextLost {
    /// The loss by a stream that breaks a rule of the protocol.
    #[cold]
    pub fn rule(rule: &'static str) -> Self {
        StreamError::Rule(rule).into()
    }

    /// The loss by a message that the device process must not send, or a bug.
    #[cold]
    pub fn daemon(what: &'static str) -> Self {
        Cause::Daemon(what).into()
    }

    /// The loss by data that a predecessor has written and that cannot be taken over.
    #[cold]
    pub fn broken(what: &'static str) -> Self {
        InheritedError::Broken(what).into()
    }

    /// The outcome of a command whose wait was interrupted. The context goes on: the command is executed again from its start.
    pub fn interruption() -> Self {
        Self(None)
    }

    /// Returns whether nothing is lost, and the command is to be executed again from its start.
    pub fn is_interruption(&self) -> bool {
        self.0.is_none()
    }

    /// Returns the cause; none for an interruption.
    pub fn cause(&self) -> Option<&Cause> {
        self.0.as_deref().map(|loss| &loss.cause)
    }

    /// Returns the party that is at fault, if one is.
    pub fn at_fault(&self) -> Option<AtFault> {
        self.cause().and_then(Cause::at_fault)
    }

    /// Returns the loss; if it blames the stream, the predecessor that wrote the stream is blamed instead.
    #[must_use]
    pub fn inherited(mut self) -> Self {
        if let Some(loss) = &mut self.0
            && let Cause::Stream(error) = &loss.cause
        {
            loss.cause = InheritedError::Stream(error.clone()).into();
        }
        self
    }

    /// Returns this loss with the number of the command that caused it, unless the loss has a number already.
    #[cold]
    #[must_use]
    pub fn within(mut self, number: i32) -> Self {
        if let Some(loss) = &mut self.0 {
            loss.command.get_or_insert(number);
        }
        self
    }

    /// A transport command where only commands of the host's driver belong.
    #[cold]
    pub fn misplaced(command: &'static str) -> Self {
        StreamError::Misplaced(command).into()
    }
}

impl<C: Into<Cause>> From<C> for ContextLost {
    #[cold]
    fn from(cause: C) -> Self {
        Self(Some(Box::new(Loss { command: None, cause: cause.into() })))
    }
}

impl std::error::Error for ContextLost {}

/// The reason, for the log.
impl fmt::Display for ContextLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(loss) = &self.0 else { return f.write_str("interrupted") };
        if let Some(number) = loss.command {
            write!(f, "{} ({number}): ", Command::name(number).unwrap_or("unknown command"))?;
        }
        loss.cause.fmt(f)
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
    /// The fault of a command for which the host's driver has no function, although only commands with a function were offered.
    #[cold]
    pub fn missing(command: &'static str) -> Self {
        StreamError::NotOffered(command).into()
    }

    /// The fault of a command that breaks valid usage in a way that could corrupt this process: it is not executed, and is answered with an
    /// error if it has an answer. Programs survive such an error, as many do natively.
    #[cold]
    pub fn invalid(rule: &'static str) -> Self {
        Self::Failed(Self::refused(rule))
    }

    /// The result of [`Self::invalid`], for a creation that leaves a tombstone.
    pub fn refused(rule: &'static str) -> i32 {
        log::debug!("refused, for it breaks valid usage: {rule}");
        INVALID
    }

    /// The fault of a stream that breaks a rule of the protocol.
    #[cold]
    pub fn rule(rule: &'static str) -> Self {
        StreamError::Rule(rule).into()
    }

    /// The fault of a command that lacks a required part.
    #[cold]
    pub fn without(what: &'static str) -> Self {
        StreamError::Without(what).into()
    }
}

impl From<ContextLost> for Fault {
    fn from(lost: ContextLost) -> Self {
        Self::Lost(lost)
    }
}

impl<C: Into<Cause>> From<C> for Fault {
    #[cold]
    fn from(cause: C) -> Self {
        Self::Lost(ContextLost::from(cause))
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
    Cause::Daemon("object table is inconsistent").into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::cause::Limit;

    #[test]
    fn a_result_of_a_command_has_no_room_for_words() {
        let sizes = [size_of::<ContextLost>(), size_of::<Fault>(), size_of::<Result<(), Fault>>()];
        assert_eq!(sizes, [8, 16, 16]);
    }

    #[test]
    fn a_loss_names_the_command_and_the_party_at_fault() {
        let lost = ContextLost::from(Limit::Rings(4)).within(188);
        assert_eq!(lost.at_fault(), None, "its words say it all");
        assert_eq!(
            lost.to_string(),
            "vkCreateRingMESA (188): limit max-rings (4) reached; raise it if programs need more"
        );
        assert_eq!(lost.clone().within(1), lost, "it is about the command inside");
        let stream = ContextLost::from(StreamError::NoRing);
        assert_eq!(stream.at_fault(), Some(AtFault::Guest));
        assert_eq!(stream.inherited().at_fault(), Some(AtFault::Predecessor));
    }
}
