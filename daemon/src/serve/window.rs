//! The state of the window in the frontend.

use crate::transport::Asked;
use protocol::ids::ResourceId;
use std::collections::VecDeque;

/// The window, apart from the device's record of it.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// Offset and bytes of mappings that the frontend made after it had stopped the queues: if it stopped them for a reset, it has
    /// dropped all other mappings and kept these.
    pub late: Vec<(u64, u64)>,
    /// Offset and bytes of mappings that the frontend is to remove as soon as it starts the device again.
    pub owed: Vec<(u64, u64)>,
    /// The mappings that the frontend has not made yet, from the end of a load until the device is started.
    pub loaded: Option<VecDeque<LoadedMap>>,
    pub table: Table,
}

/// A mapping of a loaded state.
#[derive(Debug)]
pub(super) struct LoadedMap {
    pub resource_id: ResourceId,
    /// Offset in the window, bytes.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
    /// The request, if it was sent ahead.
    pub asked: Option<Asked>,
}

/// The frontend's memory table, as far as it is known to follow the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Table {
    /// This process has waited for no mapping yet.
    #[default]
    Unknown,
    /// The frontend has changed the table for a mapping, so it will change the table for each, however late.
    Follows,
    /// The frontend has changed the table for no mapping, though it announces some there: this process does not wait for it.
    Stays,
}

impl From<Option<bool>> for Table {
    /// Returns the state for this knowledge of whether the table follows.
    fn from(follows: Option<bool>) -> Self {
        match follows {
            None => Self::Unknown,
            Some(true) => Self::Follows,
            Some(false) => Self::Stays,
        }
    }
}

impl Table {
    /// Returns whether the table follows, if that is known.
    pub(super) fn follows(self) -> Option<bool> {
        (self != Self::Unknown).then_some(self == Self::Follows)
    }

    /// Returns the state after a wait for the table, which has changed or not.
    pub(super) fn after(self, has_changed: bool) -> Self {
        match self {
            _ if has_changed => Self::Follows,
            Self::Unknown => Self::Stays,
            known => known,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frontend_that_is_late_once_is_waited_for_as_before_and_one_that_announces_nothing_is_not() {
        let follows = Table::default().after(true);
        assert_eq!((follows, follows.after(false)), (Table::Follows, Table::Follows));
        assert_eq!(Table::default().after(false), Table::Stays);
    }
}
