//! The object table while it is locked for reading, in which the objects that commands name are looked up.
//!
//! A command names an object to be checked, and again to be lowered; commands that follow each other name the same ones. A thread that holds the lock
//! for several look-ups remembers the objects that it found last ([`Recent`]): nothing in the table changes before the thread unlocks it.

#![allow(unsafe_code, reason = "objects are found again by their address")]

use super::object::{Handle, Kind, Object};
use super::table::{Table, TableGuard};
use crate::context::error::{Fault, inconsistent};
use std::cell::Cell;
use std::ptr;

/// The object table, locked for reading.
pub(crate) enum Reading<'l> {
    /// A lock of its own, which is released with this value.
    Own(TableGuard<'l>),
    /// A lock that is held elsewhere, for the look-up of more than one object.
    Shared(&'l Recent<'l>),
}

/// Objects that were looked up lately, by the lowest bits of their ids, which guests count up.
pub(crate) struct Recent<'t> {
    table: &'t Table,
    /// Ids and their objects in `table`; an empty slot has an id whose place is another slot.
    found: [Cell<(u64, *const Object)>; SLOTS],
}

/// The number of slots: few enough to empty quickly, and more than the objects that most commands name.
const SLOTS: usize = 8;

impl Reading<'_> {
    /// Returns the object that an id names.
    ///
    /// # Errors
    ///
    /// Those of [`Table::get`].
    #[inline]
    pub(crate) fn get<H: Handle>(&self, handle: H) -> Result<&Object, Fault> {
        match self {
            Self::Own(table) => table.get(handle),
            Self::Shared(recent) => recent.get(handle),
        }
    }

    /// The table.
    pub(crate) fn table(&self) -> &Table {
        match self {
            Self::Own(table) => table,
            Self::Shared(recent) => recent.table,
        }
    }
}

impl Reading<'_> {
    /// Returns the state of the object that an id names.
    ///
    /// # Errors
    ///
    /// Those of [`Table::get`].
    #[inline]
    pub(crate) fn state<H: Kind>(&self, handle: H) -> Result<&H::State, Fault> {
        // SAFETY: what is found is of the kind that is looked for.
        unsafe { self.get(handle)?.get_unchecked::<H>() }.ok_or_else(inconsistent)
    }
}

impl<'t> Recent<'t> {
    /// Creates the value for a locked table, with nothing looked up yet.
    #[inline]
    pub(crate) fn of(table: &'t Table) -> Self {
        let found = [const { Cell::new((0, ptr::null())) }; SLOTS];
        found[0].set((1, ptr::null()));
        Self { table, found }
    }

    #[inline]
    fn get<H: Handle>(&self, handle: H) -> Result<&'t Object, Fault> {
        let id = handle.id();
        let (known, found) = self.found[id as usize % SLOTS].get();
        if known == id {
            // SAFETY: the id has its place here, so `look_up` has put it there with what `table` has, which is borrowed for at least
            // `'t`: it is there, and no thread changes it.
            let object = unsafe { &*found };
            if object.kind() == H::KIND {
                return Ok(object);
            }
        }
        self.look_up(handle)
    }

    #[inline(never)]
    fn look_up<H: Handle>(&self, handle: H) -> Result<&'t Object, Fault> {
        let (id, object) = (handle.id(), self.table.get(handle)?);
        self.found[id as usize % SLOTS].set((id, ptr::from_ref(object)));
        Ok(object)
    }
}
