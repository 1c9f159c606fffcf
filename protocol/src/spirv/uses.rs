//! The check that ids are defined where they are used, or later where the specification allows it.

use super::callbacks::Callback;
use super::layout::error::{Error, ErrorKind};
use super::layout::ids::Ids;
use super::layout::opcode as op;
use super::layout::section::Section;
use super::layout::sets::{Set, Sets};
use super::layout::words::Instruction;
use super::operands::Operands;
use super::values::types;

/// The kind that an id must turn out to have when it is defined later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Late {
    Anything,
    Type,
    /// A pointer to a struct.
    Pointer,
    Function,
    Variable,
    /// Anything but a decoration group.
    Target,
}

impl Late {
    /// The word of error messages for such an id.
    fn name(self) -> &'static str {
        match self {
            Self::Anything => "id",
            Self::Type => "type",
            Self::Pointer => "pointer to a structure",
            Self::Function => "function",
            Self::Variable => "variable",
            Self::Target => "target of a decoration group",
        }
    }
}

/// Ids that were named before they are defined: the word, the id, and the kind that it must be.
#[derive(Debug, Default)]
pub(super) struct Uses(Vec<(usize, u32, Late)>);

/// The place of an instruction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scope<'s> {
    /// All ids so far.
    pub ids: &'s Ids,
    /// The imported sets.
    pub sets: &'s Sets,
    /// The part of the module.
    pub section: Section,
    /// The function, counted from 1; 0 outside.
    pub function: u32,
}

impl Uses {
    /// Looks at the ids that an instruction uses.
    pub(super) fn look(
        &mut self,
        instruction: &Instruction<'_>,
        operands: &Operands,
        scope: &Scope<'_>,
    ) -> Result<(), ErrorKind> {
        let (at, opcode, used) = (instruction.at, instruction.opcode, operands.used.as_slice());
        if let Some(callback) = Callback::of(opcode, used) {
            return self.called(at, &callback, scope);
        }
        match opcode {
            op::NAME | op::MEMBER_NAME | op::DECORATION_GROUP => {}
            op::ENTRY_POINT => {
                self.late(at, used.get(..1).unwrap_or(&[]), Late::Function);
                self.late(at, used.get(1..).unwrap_or(&[]), Late::Variable);
            }
            op::GROUP_DECORATE | op::GROUP_MEMBER_DECORATE => {
                let (group, targets) = used.split_first().ok_or(ErrorKind::Length)?;
                if scope.ids.defined(*group)?.opcode != op::DECORATION_GROUP {
                    return Err(ErrorKind::IdKind(*group, "decoration group"));
                }
                self.late(at, targets, Late::Target);
            }
            op::TYPE_FORWARD_POINTER => self.late(at, used, Late::Pointer),
            _ if matches!(scope.section, Section::ExecutionModes | Section::Annotations) => {
                self.late(at, used, Late::Anything);
            }
            op::EXT_INST | op::EXT_INST_WITH_FORWARD_REFS => self.extended(instruction, used, scope)?,
            _ if op::is_type(opcode) => self.made_of(instruction, used, scope.ids)?,
            // `Functions` checks these ids when it knows all blocks, and the called function at the end.
            op::PHI | op::BRANCH | op::SELECTION_MERGE | op::LOOP_MERGE | op::LABEL => {}
            op::BRANCH_CONDITIONAL | op::SWITCH => values(used.get(..1).unwrap_or(&[]), scope)?,
            op::FUNCTION_CALL => values(used.get(1..).unwrap_or(&[]), scope)?,
            _ => {
                for id in used {
                    if scope.ids.visible(*id, scope.function)?.opcode == op::LABEL {
                        return Err(ErrorKind::IdKind(*id, "value"));
                    }
                }
            }
        }
        Ok(())
    }

    fn late(&mut self, at: usize, used: &[u32], what: Late) {
        self.0.extend(used.iter().map(|id| (at, *id, what)));
    }

    /// Checks the ids of an instruction that calls a function for each element: the function may come later.
    fn called(&mut self, at: usize, callback: &Callback<'_>, scope: &Scope<'_>) -> Result<(), ErrorKind> {
        callback.values.into_iter().try_for_each(|used| values(used, scope))?;
        if callback.is_sure {
            // `Functions` checks this function at the end, like the function of a call.
            return Ok(());
        }
        for id in callback.functions {
            let found = scope.ids.any(*id)?;
            if found.at == 0 {
                self.late(at, &[*id], Late::Function);
            } else if found.opcode != op::FUNCTION {
                values(&[*id], scope)?;
            }
        }
        Ok(())
    }

    /// Checks the parts of a type: each is defined, or comes later where that is allowed and is then a pointer or the target of one.
    fn made_of(&mut self, instruction: &Instruction<'_>, used: &[u32], ids: &Ids) -> Result<(), ErrorKind> {
        for id in used {
            let found = ids.any(*id)?;
            let what = match instruction.opcode {
                _ if found.at != 0 || types::is_pointer_to_come(found) => continue,
                op::TYPE_STRUCT => Late::Pointer,
                op::TYPE_POINTER => Late::Type,
                _ => return Err(ErrorKind::IdMissing(*id)),
            };
            self.late(instruction.at, &[*id], what);
        }
        Ok(())
    }

    /// Checks the ids that an extended instruction names. A remark may name functions and, where the specification allows this, ids that are defined
    /// later.
    fn extended(
        &mut self,
        instruction: &Instruction<'_>,
        used: &[u32],
        scope: &Scope<'_>,
    ) -> Result<(), ErrorKind> {
        let used = used.get(1..).unwrap_or(&[]);
        let may_be_late = match scope.sets.of(instruction)? {
            Set::Glsl => return values(used, scope),
            Set::NonSemantic => instruction.opcode == op::EXT_INST_WITH_FORWARD_REFS,
            Set::DebugInfo | Set::OpenClDebugInfo => true,
        };
        for id in used {
            let found = scope.ids.any(*id)?;
            if found.at == 0 && may_be_late {
                self.late(instruction.at, &[*id], Late::Anything);
            } else if found.opcode != op::FUNCTION {
                scope.ids.visible(*id, scope.function)?;
            }
        }
        Ok(())
    }

    /// Checks at the end that all ids that had to be defined later have been defined.
    pub(super) fn finish(&self, ids: &Ids, words: &[u32]) -> Result<(), Error> {
        for (at, id, what) in &self.0 {
            let found = ids.defined(*id).map_err(|kind| kind.at(*at))?;
            let fits = match what {
                Late::Anything => true,
                Late::Type => op::is_type(found.opcode),
                Late::Pointer => match types::pointee(ids, words, *id) {
                    Some((_, contents)) => {
                        ids.any(contents).is_ok_and(|contents| contents.opcode == op::TYPE_STRUCT)
                    }
                    None => found.opcode == op::TYPE_UNTYPED_POINTER,
                },
                Late::Function => found.opcode == op::FUNCTION,
                Late::Variable => matches!(found.opcode, op::VARIABLE | op::UNTYPED_VARIABLE),
                Late::Target => found.opcode != op::DECORATION_GROUP,
            };
            if !fits {
                return Err(ErrorKind::IdKind(*id, what.name()).at(*at));
            }
        }
        Ok(())
    }
}

fn values(used: &[u32], scope: &Scope<'_>) -> Result<(), ErrorKind> {
    for id in used {
        let found = scope.ids.visible(*id, scope.function)?;
        if found.opcode == op::LABEL || op::is_type(found.opcode) {
            return Err(ErrorKind::IdKind(*id, "value"));
        }
    }
    Ok(())
}
