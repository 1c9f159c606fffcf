//! Walks the operands of one instruction along the grammar: every word belongs to one operand, and every id is passed to the caller.

use super::layout::error::ErrorKind;
use super::layout::grammar::{self, Enumerant, Kind, Operand, row};
use super::layout::ids::Ids;
use super::layout::opcode;
use super::layout::words::{Instruction, text_length};
use super::values::types;

/// The operands of an instruction, by their kinds.
#[derive(Debug, Default)]
pub(super) struct Operands {
    /// The type of its result.
    pub result_type: Option<u32>,
    /// The id it defines.
    pub result: Option<u32>,
    /// The ids it uses, in order.
    pub used: Vec<u32>,
    /// Capabilities for its enumerants: one of each list.
    pub needed: Vec<&'static [u32]>,
}

/// Instructions that `OpSpecConstantOp` may hold in shaders (3.52.11, SPV_KHR_cooperative_matrix), those of kernels left out.
fn is_spec_constant_op(number: u32) -> bool {
    let is_core = matches!(
        number,
        79 | 81 | 82 | 113..=116 | 124 | 126 | 128 | 130 | 132 | 134 | 135 | 137..=139 | 164..=179 | 194..=200
    );
    is_core || number == u32::from(opcode::COOPERATIVE_MATRIX_LENGTH)
}

struct Walk<'o, 'w> {
    into: &'o mut Operands,
    ids: &'o Ids,
    words: &'w [u32],
    all: &'w [u32],
    at: usize,
}

impl Operands {
    /// Reads the operands of `instruction`, one of the module `all`, in place of the earlier contents: first the operands of the first list, then
    /// those of the second.
    pub(super) fn read(
        &mut self,
        instruction: &Instruction<'_>,
        operands: [&'static [Operand]; 2],
        all: &[u32],
        ids: &Ids,
    ) -> Result<(), ErrorKind> {
        (self.result_type, self.result) = (None, None);
        self.used.clear();
        self.needed.clear();
        let mut walk = Walk { into: self, ids, words: instruction.operands, all, at: 0 };
        operands.into_iter().try_for_each(|operands| walk.list(operands))?;
        if walk.at == instruction.operands.len() { Ok(()) } else { Err(ErrorKind::Length) }
    }
}

impl Walk<'_, '_> {
    fn list(&mut self, operands: &'static [Operand]) -> Result<(), ErrorKind> {
        for operand in operands {
            match *operand {
                Operand::One(kind) => self.one(kind)?,
                Operand::Optional(kind) if self.at < self.words.len() => self.one(kind)?,
                Operand::Optional(_) => {}
                Operand::Any(kind) => {
                    while self.at < self.words.len() {
                        self.one(kind)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn word(&mut self) -> Result<u32, ErrorKind> {
        let word = *self.words.get(self.at).ok_or(ErrorKind::Length)?;
        self.at += 1;
        Ok(word)
    }

    fn skip(&mut self, count: usize) -> Result<(), ErrorKind> {
        self.at += count;
        if self.at <= self.words.len() { Ok(()) } else { Err(ErrorKind::Length) }
    }

    fn id(&mut self) -> Result<(), ErrorKind> {
        let id = self.word()?;
        self.ids.any(id)?;
        self.into.used.push(id);
        Ok(())
    }

    /// Words of a number of this type.
    fn number_words(&self, ty: u32) -> Result<usize, ErrorKind> {
        let bits = types::scalar_bits(self.ids, self.all, ty).ok_or(ErrorKind::IdKind(ty, "number type"))?;
        Ok(bits.div_ceil(32) as usize)
    }

    fn one(&mut self, kind: Kind) -> Result<(), ErrorKind> {
        match kind {
            Kind::ResultType => {
                let ty = self.word()?;
                self.ids.type_index(ty)?;
                self.into.result_type = Some(ty);
            }
            Kind::Result => {
                let id = self.word()?;
                self.ids.any(id)?;
                self.into.result = Some(id);
            }
            Kind::Id => self.id()?,
            Kind::Literal => self.skip(1)?,
            Kind::Text => {
                let length = text_length(self.words.get(self.at..).unwrap_or(&[])).ok_or(ErrorKind::Text)?;
                self.skip(length)?;
            }
            Kind::Number => {
                let ty = self.into.result_type.ok_or(ErrorKind::Length)?;
                let words = self.number_words(ty)?;
                self.skip(words)?;
            }
            Kind::Opcode => self.inner()?,
            Kind::NumberAndId => {
                let selector = *self.into.used.first().ok_or(ErrorKind::Length)?;
                let words = self.number_words(self.ids.defined(selector)?.ty)?;
                self.skip(words)?;
                self.id()?;
            }
            Kind::IdAndLiteral => {
                self.id()?;
                self.skip(1)?;
            }
            Kind::IdAndId => {
                self.id()?;
                self.id()?;
            }
            Kind::Value(values) => {
                let value = self.word()?;
                self.enumerant(row(values, value).ok_or(ErrorKind::Unknown("enumerant"))?)?;
            }
            Kind::Mask(bits) => self.mask(bits)?,
        }
        Ok(())
    }

    fn enumerant(
        &mut self,
        (follow, needed): &(&'static [Operand], &'static [u32]),
    ) -> Result<(), ErrorKind> {
        if !needed.is_empty() {
            self.into.needed.push(needed);
        }
        self.list(follow)
    }

    fn mask(&mut self, bits: &'static [Enumerant]) -> Result<(), ErrorKind> {
        let mask = self.word()?;
        let mut left = mask;
        for (bit, found) in bits.iter().filter(|(bit, _)| mask & bit != 0) {
            left &= !bit;
            self.enumerant(found)?;
        }
        if left == 0 { Ok(()) } else { Err(ErrorKind::Unknown("bit")) }
    }

    /// The instruction inside `OpSpecConstantOp`: its type and result are those of the outer one.
    fn inner(&mut self) -> Result<(), ErrorKind> {
        let number = self.word()?;
        if !is_spec_constant_op(number) || number == u32::from(opcode::SPEC_CONSTANT_OP) {
            return Err(ErrorKind::Unknown("operation on constants"));
        }
        let inner =
            grammar::instruction(number as u16).ok_or(ErrorKind::Unknown("operation on constants"))?;
        let outer = |operand: &&Operand| matches!(operand, Operand::One(Kind::ResultType | Kind::Result));
        let skipped = inner.operands.iter().take_while(outer).count();
        self.list(&inner.operands[skipped..])
    }
}
