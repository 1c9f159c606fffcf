//! The class of each command in a journal: what a successor does with a command that was executed after the last checkpoint.
//!
//! `protocol/codegen/inputs/replay.toml` has the classes, with their reasons.

use super::generated::{CLASSES, private_class};

/// The class of a command in a journal: it says what a successor does with the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Replay {
    /// The successor executes it again, in the order of all.
    Again,
    /// The successor executes it again, in the order of all. Submissions may wait for it, and complete before the journal notes it.
    Signals,
    /// The successor submits it again without command buffers: the whole submission has completed.
    Submits,
    /// The successor passes it over.
    Nothing,
    /// The successor cannot do it again: the journal ends before it.
    Breaks,
}

impl Replay {
    /// Returns the class of the command of a number; [`Self::Breaks`] for a number that is no command.
    #[inline]
    pub fn of(number: i32) -> Self {
        match CLASSES.get(number as u32 as usize) {
            Some(class) => *class,
            None => private_class(number),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::venus::generated as venus;

    /// A number that is not upstream's.
    const PRIVATE: i32 = venus::GetPhysicalDeviceCooperativeMatrixFlexibleDimensionsPropertiesNV::NUMBER;

    #[test]
    fn commands_have_the_classes_of_the_table() {
        assert_eq!(Replay::of(venus::CreateBuffer::NUMBER), Replay::Again);
        assert_eq!(Replay::of(venus::CmdDispatch::NUMBER), Replay::Again);
        assert_eq!(Replay::of(venus::SignalSemaphore::NUMBER), Replay::Signals);
        assert_eq!(Replay::of(venus::QueueSubmit2::NUMBER), Replay::Submits);
        assert_eq!(Replay::of(venus::WaitForFences::NUMBER), Replay::Nothing);
        assert_eq!(Replay::of(venus::AllocateMemory::NUMBER), Replay::Breaks);
        assert!(PRIVATE > CLASSES.len() as i32 && Replay::of(PRIVATE) == Replay::Nothing);
    }

    #[test]
    fn numbers_of_no_command_break_a_journal() {
        for number in [i32::MIN, -1, CLASSES.len() as i32, PRIVATE + 1, i32::MAX] {
            assert_eq!(Replay::of(number), Replay::Breaks, "{number}");
        }
        let unknown = (0..CLASSES.len() as i32).filter(|number| !venus::Command::NUMBERS.contains(number));
        assert!(unknown.clone().count() > 0);
        unknown.for_each(|number| assert_eq!(Replay::of(number), Replay::Breaks, "{number}"));
    }
}
