//! The kernel's figures about a process, or about one of its threads: its file `stat`, proc_pid_stat(5).

use std::fs;
use std::path::Path;
use std::str::FromStr;

/// The line, and the place behind the name, which is field 2 and can hold spaces and parentheses.
#[derive(Debug)]
pub(crate) struct Stat(String, usize);

impl Stat {
    /// Reads the figures of a process; none if the process does not exist.
    pub(crate) fn of(process: u32) -> Option<Self> {
        Self::in_folder(Path::new(&format!("/proc/{process}")))
    }

    /// Reads the figures of the process or thread whose folder this is.
    pub(crate) fn in_folder(folder: &Path) -> Option<Self> {
        Self::parse(fs::read_to_string(folder.join("stat")).ok()?)
    }

    fn parse(line: String) -> Option<Self> {
        let behind = line.rfind(')')? + 1;
        Some(Self(line, behind))
    }

    /// Returns the field with this number, as the manual counts them from 1.
    fn field<T: FromStr>(&self, number: usize) -> Option<T> {
        self.0[self.1..].split_whitespace().nth(number - 3)?.parse().ok()
    }

    /// The letter of its state: `Z` and `X` have ended, a signal has stopped `T`.
    pub(crate) fn state(&self) -> Option<char> {
        self.field(3)
    }

    pub(crate) fn parent(&self) -> Option<u32> {
        self.field(4)
    }

    /// Clock ticks of processors that it has used.
    pub(crate) fn ticks(&self) -> Option<u64> {
        Some(self.field::<u64>(14)? + self.field::<u64>(15)?)
    }

    /// Clock ticks of processors that its children have used, of those that have ended and been waited for.
    pub(crate) fn ticks_of_children(&self) -> Option<u64> {
        Some(self.field::<u64>(16)? + self.field::<u64>(17)?)
    }

    /// Clock ticks between the start of the system and that of the process.
    pub(crate) fn started(&self) -> Option<u64> {
        self.field(22)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_programs_may_have_spaces_and_parentheses() {
        let line = "7 (a) 9 (b) S 5 7 7 0 -1 4194560 100 200 0 0 11 12 13 14 20 0 1 0 99";
        let stat = Stat::parse(line.into()).unwrap();
        assert_eq!((stat.state(), stat.parent()), (Some('S'), Some(5)));
        assert_eq!((stat.ticks(), stat.ticks_of_children(), stat.started()), (Some(23), Some(27), Some(99)));
    }

    #[test]
    fn what_is_not_there_is_not_told() {
        assert!(Stat::parse("7".into()).is_none());
        assert_eq!(Stat::parse("7 (a) S".into()).unwrap().ticks(), None);
        assert!(Stat::of(u32::MAX).is_none());
    }
}
