//! The commands of a recording as the guest encoded them, so that a successor can record them again. They are appended while the pool's lock
//! is held, many at once if many arrive at once.

use crate::context::budget::Counted;
use protocol::cursor::Room as _;
use protocol::venus::generated::CommandFlagsEXT;

/// The commands of one recording. Commands that were left out as invalid are included, and will be left out again.
#[derive(Debug)]
pub struct RecordedCommands {
    bytes: Vec<u8>,
    /// The capacity of `bytes`, counted in the budget that all recordings of the context share.
    room: Counted,
    /// True if there was no room for all commands: none are kept until the recording begins anew.
    is_dropped: bool,
}

/// The room that a recording begins with.
const ROOM_MIN: usize = 1 << 10;

/// The room that a recording keeps in any case when it begins anew. It keeps more if it has used a good part of its room.
const ROOM_KEPT: usize = 64 << 10;

impl RecordedCommands {
    /// Returns a recording without commands, with the count of the room that it will take.
    pub fn new(room: Counted) -> Self {
        Self { bytes: Vec::new(), room, is_dropped: false }
    }

    /// Appends commands that want no reply.
    #[inline]
    pub fn append(&mut self, commands: &[u8]) {
        if self.bytes.capacity() - self.bytes.len() >= commands.len() || self.grow(commands.len()) {
            self.bytes.extend_from_slice(commands);
        }
    }

    /// Appends one command, as if it wanted no reply.
    pub fn append_one(&mut self, command: &[u8]) {
        let start = self.bytes.len();
        self.append(command);
        // Number, then flags.
        if let Some(flags) = self.bytes.get_mut(start..).and_then(|command| command.get_mut(4..8)) {
            for (byte, cleared) in flags.iter_mut().zip(CommandFlagsEXT::GENERATE_REPLY.0.to_le_bytes()) {
                *byte &= !cleared;
            }
        }
    }

    /// Forgets all commands. Room is kept for as many, because most programs record about the same again.
    pub fn restart(&mut self) {
        let (used, room) = (self.bytes.len(), self.bytes.capacity());
        self.bytes.clear();
        self.is_dropped = false;
        if room > ROOM_KEPT && used < room / 4 {
            self.give_back();
        }
    }

    /// Returns the commands, in their order; none if there was no room for all of them.
    pub fn bytes(&self) -> Option<&[u8]> {
        (!self.is_dropped).then_some(&self.bytes)
    }

    /// Makes room for `more` bytes; if there is none, drops all commands. Returns whether there is room.
    #[cold]
    fn grow(&mut self, more: usize) -> bool {
        if self.is_dropped {
            return false;
        }
        let (used, room) = (self.bytes.len(), self.bytes.capacity());
        let needed = used.saturating_add(more);
        let wanted = needed.max(room.saturating_mul(2)).max(ROOM_MIN);
        let counted = [wanted, needed].into_iter().find(|wanted| self.room.more(wanted - room));
        let grown = counted.is_some_and(|room| self.bytes.try_reserve_exact(room - used).is_ok());
        if !grown {
            self.is_dropped = true;
            self.give_back();
        }
        grown
    }

    fn give_back(&mut self) {
        self.bytes = Vec::new();
        self.room.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::budget::Budget;
    use crate::context::cause::Limit;

    const LIMIT: usize = 1 << 20;

    fn budget() -> Budget {
        Budget::new(Limit::RecordingBytes, LIMIT)
    }

    /// Returns whether exactly so many bytes are left.
    fn has_left(budget: &Budget, bytes: usize) -> bool {
        let more = budget.count().more(bytes + 1);
        !more && budget.count().more(bytes)
    }

    #[test]
    fn commands_are_kept_in_their_order_and_want_no_reply() {
        let budget = budget();
        let mut commands = RecordedCommands::new(budget.count());
        assert_eq!(commands.bytes(), Some(&[][..]));
        commands.append_one(&[7, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 1]);
        commands.append(&[8, 0, 0, 0, 0, 0, 0, 0]);
        commands.append_one(&[9, 0]);
        let kept = [7, 0, 0, 0, 0xfe, 0xff, 0xff, 0xff, 1, 8, 0, 0, 0, 0, 0, 0, 0, 9, 0];
        assert_eq!(commands.bytes(), Some(&kept[..]));
        commands.restart();
        assert_eq!(commands.bytes(), Some(&[][..]));
    }

    #[test]
    fn what_has_no_room_is_dropped_until_the_recording_begins_anew() {
        let budget = budget();
        let mut commands = RecordedCommands::new(budget.count());
        let mut other = RecordedCommands::new(budget.count());
        other.append(&[0; ROOM_MIN]);
        for _ in 0..LIMIT / 4096 {
            commands.append(&[1; 4096]);
        }
        assert_eq!(commands.bytes(), None);
        assert!(has_left(&budget, LIMIT - ROOM_MIN));
        commands.append(&[1]);
        assert_eq!(commands.bytes(), None);
        commands.restart();
        commands.append(&[2; 8]);
        assert_eq!((commands.bytes(), other.bytes()), (Some(&[2; 8][..]), Some(&[0; ROOM_MIN][..])));
        drop((commands, other));
        assert!(has_left(&budget, LIMIT));
    }

    #[test]
    fn all_of_the_limit_can_be_used() {
        let budget = budget();
        let mut commands = RecordedCommands::new(budget.count());
        commands.append(&[0; LIMIT / 2 + 1]);
        commands.append(&[0; LIMIT / 2 - 1]);
        assert_eq!(commands.bytes().map(<[u8]>::len), Some(LIMIT));
    }

    #[test]
    fn room_is_kept_for_as_many_commands_and_not_for_many_more() {
        let budget = budget();
        let mut commands = RecordedCommands::new(budget.count());
        commands.append(&[0; 4 * ROOM_KEPT]);
        commands.restart();
        assert!(has_left(&budget, LIMIT - 4 * ROOM_KEPT));
        commands.append(&[0; ROOM_KEPT]);
        commands.restart();
        assert!(has_left(&budget, LIMIT - 4 * ROOM_KEPT));
        commands.append(&[0; ROOM_KEPT - 1]);
        commands.restart();
        assert!(has_left(&budget, LIMIT));
        commands.append(&[0; ROOM_KEPT]);
        commands.restart();
        commands.restart();
        assert!(has_left(&budget, LIMIT - ROOM_KEPT));
    }
}
