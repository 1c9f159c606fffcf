//! The table of a module's ids: the place and the kind of each definition, and the function that it belongs to.

use super::error::ErrorKind;
use super::opcode;

/// One id; all zero while it is not defined.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Id {
    /// Index of the first word of its definition; 0 while there is none.
    pub at: u32,
    /// The id of its type; for a type, its index among the types.
    pub ty: u32,
    /// The function it belongs to, counted from 1; 0 for the whole module.
    pub function: u32,
    /// The instruction that defines it.
    pub opcode: u16,
    /// A merge instruction has named it.
    pub is_merge: bool,
    /// `OpTypeForwardPointer` has announced it as a pointer.
    pub is_announced: bool,
}

/// All ids below the bound.
#[derive(Debug)]
pub(crate) struct Ids(Vec<Id>);

impl Ids {
    /// `bound` undefined ids.
    pub(crate) fn new(bound: u32) -> Self {
        Self(vec![Id::default(); bound as usize])
    }

    /// The id, which may be undefined.
    pub(crate) fn any(&self, id: u32) -> Result<Id, ErrorKind> {
        match self.0.get(id as usize) {
            Some(found) if id != 0 => Ok(*found),
            _ => Err(ErrorKind::IdRange(id)),
        }
    }

    /// The id, defined.
    pub(crate) fn defined(&self, id: u32) -> Result<Id, ErrorKind> {
        let found = self.any(id)?;
        if found.at == 0 { Err(ErrorKind::IdMissing(id)) } else { Ok(found) }
    }

    /// The id, defined for the module or in this function.
    pub(crate) fn visible(&self, id: u32, function: u32) -> Result<Id, ErrorKind> {
        let found = self.defined(id)?;
        if found.function == 0 || found.function == function {
            Ok(found)
        } else {
            Err(ErrorKind::IdMissing(id))
        }
    }

    /// The index of a type.
    pub(crate) fn type_index(&self, id: u32) -> Result<usize, ErrorKind> {
        let found = self.defined(id)?;
        if opcode::is_type(found.opcode) { Ok(found.ty as usize) } else { Err(ErrorKind::IdKind(id, "type")) }
    }

    /// Defines an id.
    pub(crate) fn define(&mut self, id: u32, definition: Id) -> Result<(), ErrorKind> {
        let slot = self.0.get_mut(id as usize).filter(|_| id != 0).ok_or(ErrorKind::IdRange(id))?;
        if slot.at != 0 {
            return Err(ErrorKind::IdTwice(id));
        }
        *slot = Id { is_merge: slot.is_merge, is_announced: slot.is_announced, ..definition };
        Ok(())
    }

    /// Notes that this will be a pointer, from which types may be made before it is declared.
    pub(crate) fn announce(&mut self, id: u32) -> Result<(), ErrorKind> {
        let slot = self.0.get_mut(id as usize).filter(|_| id != 0).ok_or(ErrorKind::IdRange(id))?;
        slot.is_announced = true;
        Ok(())
    }

    /// Notes that a merge instruction names a block that no other names. Returns whether the block is still to come.
    pub(crate) fn name_merge(&mut self, id: u32) -> Result<bool, ErrorKind> {
        let slot = self.0.get_mut(id as usize).filter(|_| id != 0).ok_or(ErrorKind::IdRange(id))?;
        if slot.is_merge {
            return Err(ErrorKind::Order("merge block"));
        }
        slot.is_merge = true;
        Ok(slot.at == 0)
    }
}
