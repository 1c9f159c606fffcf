//! The memory that a buffer or image is bound to, as a snapshot binds it again.

use crate::objects::table::Table;
use protocol::venus::generated as venus;

/// A binding to memory.
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    /// The memory, whose id may be that of another object by now.
    pub memory: venus::DeviceMemory,
    /// The first byte in the memory.
    pub offset: u64,
    /// The place of the binding in the order of all that a snapshot repeats.
    pub serial: u64,
    /// The plane that is bound; none stands for the whole.
    pub plane: venus::ImageAspectFlags,
}

impl Bound {
    /// Describes a binding of the whole that is made now, while the table is locked.
    pub fn whole(table: &Table, memory: venus::DeviceMemory, offset: u64) -> Self {
        Self { memory, offset, serial: table.next_serial(), plane: venus::ImageAspectFlags(0) }
    }

    /// Returns whether the memory still exists.
    pub fn is_to_live(&self, table: &Table) -> bool {
        // A younger object with this id is other memory.
        table.get(self.memory).is_ok_and(|memory| memory.usage.serial() < self.serial)
    }
}
