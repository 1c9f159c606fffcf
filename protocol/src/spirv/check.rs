//! The pass over a module.

use super::constants::Constants;
use super::error::{Error, ErrorKind};
use super::functions::{self, Functions};
use super::generated::tables;
use super::grammar::Offer;
use super::ids::{Id, Ids};
use super::opcode as op;
use super::operands::Operands;
use super::section::{Progress, Section};
use super::types::Types;
use super::words::{HEADER, Header, Instruction, text};
use super::{Device, Limits, Module};

/// Checks a module and tells what is in it.
///
/// # Errors
///
/// Why no driver should see it.
pub fn check(words: &[u32], device: &Device<'_>, limits: &Limits) -> Result<Module, Error> {
    if words.len() > limits.words {
        return Err(ErrorKind::Limit("words (shader_bytes)").at(0));
    }
    let header = Header::read(words, device.version)?;
    if header.bound > limits.ids {
        return Err(ErrorKind::Limit("ids (shader_ids)").at(0));
    }
    let mut checker = Checker {
        words,
        device,
        limits,
        ids: Ids::new(header.bound),
        types: Types::default(),
        constants: Constants::new(device.specialisation.clone()),
        functions: Functions::new(),
        module: Module::default(),
        late: Vec::new(),
        glsl: 0,
        constant_leaves: 0,
        private_bytes: 0,
        workgroup_bytes: 0,
    };
    let mut progress = Progress::new();
    let mut operands = Operands::default();
    let mut at = HEADER;
    while at < words.len() {
        let instruction = Instruction::read(words, at)?;
        at = instruction.end();
        checker
            .instruction(&instruction, &mut operands, &mut progress)
            .map_err(|kind| instruction.wrong(kind))?;
    }
    progress.finish().map_err(|kind| kind.at(0))?;
    checker.finish()
}

struct Checker<'c> {
    words: &'c [u32],
    device: &'c Device<'c>,
    limits: &'c Limits,
    ids: Ids,
    types: Types,
    constants: Constants,
    functions: Functions,
    module: Module,
    /// Ids that were named before they are defined, and what they must turn out to be.
    late: Vec<(usize, u32, Late)>,
    /// The id of `GLSL.std.450`.
    glsl: u32,
    constant_leaves: u64,
    private_bytes: u64,
    workgroup_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Late {
    Anything,
    Pointer,
    Function,
    Variable,
    NoGroup,
}

impl Checker<'_> {
    fn instruction(
        &mut self,
        instruction: &Instruction<'_>,
        operands: &mut Operands,
        progress: &mut Progress,
    ) -> Result<(), ErrorKind> {
        let opcode = instruction.opcode;
        let grammar = tables::instruction(opcode).ok_or(ErrorKind::Unknown("instruction"))?;
        let offered = |number: &u32| self.is_offered(*number);
        if !grammar.capabilities.is_empty() && !grammar.capabilities.iter().any(offered) {
            return Err(ErrorKind::NotOffered("an instruction"));
        }
        let section = progress.advance(opcode)?;
        operands.read(instruction, grammar.operands, self.words, &self.ids)?;
        if section == Section::Functions {
            self.functions.step(instruction, &operands.used, &mut self.ids, self.words, self.limits)?;
        }
        self.uses(instruction, operands, section)?;
        let ty = match operands.result_type {
            Some(ty) => ty,
            None if op::is_type(opcode) => self.types.count(),
            None => 0,
        };
        if let Some(result) = operands.result {
            let function =
                if opcode == op::FUNCTION { self.functions.current() } else { self.function_of(section) };
            let at = instruction.at as u32;
            self.ids.define(result, Id { at, ty, function, opcode, is_merge: false })?;
        }
        self.meaning(instruction, operands, section)
    }

    /// The function that an id of this part belongs to.
    fn function_of(&self, section: Section) -> u32 {
        if section == Section::Functions { self.functions.current() } else { 0 }
    }

    fn is_offered(&self, capability: u32) -> bool {
        match tables::offer(capability) {
            Some(Offer::Device) => true,
            Some(Offer::Extensions(names)) => names.iter().any(|name| (self.device.has_extension)(name)),
            None => false,
        }
    }

    /// That ids are defined where they are used.
    fn uses(
        &mut self,
        instruction: &Instruction<'_>,
        operands: &Operands,
        section: Section,
    ) -> Result<(), ErrorKind> {
        let (at, opcode) = (instruction.at, instruction.opcode);
        let mut late = |used: &[u32], what| self.late.extend(used.iter().map(|id| (at, *id, what)));
        match opcode {
            op::NAME | op::MEMBER_NAME | op::DECORATION_GROUP => {}
            op::ENTRY_POINT => {
                late(operands.used.get(..1).unwrap_or(&[]), Late::Function);
                late(operands.used.get(1..).unwrap_or(&[]), Late::Variable);
            }
            op::GROUP_DECORATE | op::GROUP_MEMBER_DECORATE => {
                let (group, targets) = operands.used.split_first().ok_or(ErrorKind::Length)?;
                if self.ids.defined(*group)?.opcode != op::DECORATION_GROUP {
                    return Err(ErrorKind::IdKind("decoration group"));
                }
                late(targets, Late::NoGroup);
            }
            op::TYPE_FORWARD_POINTER => late(&operands.used, Late::Pointer),
            op::EXT_INST_WITH_FORWARD_REFS => late(&operands.used, Late::Anything),
            _ if matches!(section, Section::ExecutionModes | Section::Annotations) => {
                late(&operands.used, Late::Anything);
            }
            op::TYPE_STRUCT | op::TYPE_POINTER => {
                for id in &operands.used {
                    if self.ids.any(*id)?.at == 0 {
                        // Announced by OpTypeForwardPointer; drivers know such an id as a pointer.
                        let what = if opcode == op::TYPE_STRUCT { Late::Pointer } else { Late::Anything };
                        self.late.push((at, *id, what));
                    }
                }
            }
            // `Functions` looks at these when it knows all blocks, and at the function called in the end.
            op::PHI | op::BRANCH | op::SELECTION_MERGE | op::LOOP_MERGE | op::LABEL => {}
            op::BRANCH_CONDITIONAL | op::SWITCH => self.values(operands.used.get(..1).unwrap_or(&[]))?,
            op::FUNCTION_CALL => self.values(operands.used.get(1..).unwrap_or(&[]))?,
            _ => {
                let function = self.functions.current();
                for id in &operands.used {
                    if self.ids.visible(*id, function)?.opcode == op::LABEL {
                        return Err(ErrorKind::IdKind("value"));
                    }
                }
            }
        }
        Ok(())
    }

    fn values(&self, used: &[u32]) -> Result<(), ErrorKind> {
        for id in used {
            let found = self.ids.visible(*id, self.functions.current())?;
            if found.opcode == op::LABEL || op::is_type(found.opcode) {
                return Err(ErrorKind::IdKind("value"));
            }
        }
        Ok(())
    }

    /// What single instructions say.
    fn meaning(
        &mut self,
        instruction: &Instruction<'_>,
        operands: &Operands,
        section: Section,
    ) -> Result<(), ErrorKind> {
        let words = instruction.operands;
        let word = |index| instruction.word(index).map_err(|error| error.kind);
        let opcode = instruction.opcode;
        match opcode {
            op::CAPABILITY if !self.is_offered(word(0)?) => {
                return Err(ErrorKind::NotOffered("a capability"));
            }
            op::EXT_INST_IMPORT => {
                let (name, _) = text(&words[1..]).ok_or(ErrorKind::Text)?;
                match name.as_slice() {
                    b"GLSL.std.450" => self.glsl = word(0)?,
                    name if name.starts_with(b"NonSemantic.") => {}
                    _ => return Err(ErrorKind::Unknown("instruction set")),
                }
            }
            op::EXT_INST | op::EXT_INST_WITH_FORWARD_REFS => {
                if self.ids.defined(word(2)?)?.opcode != op::EXT_INST_IMPORT {
                    return Err(ErrorKind::IdKind("instruction set"));
                }
                if word(2)? == self.glsl {
                    if section != Section::Functions {
                        return Err(ErrorKind::Order("instruction"));
                    }
                    let count =
                        tables::glsl_std_450(word(3)?).ok_or(ErrorKind::Unknown("extended instruction"))?;
                    if words.len() != 4 + count {
                        return Err(ErrorKind::Length);
                    }
                }
            }
            op::ENTRY_POINT => self.entry_point(words)?,
            op::EXECUTION_MODE if word(1)? == op::MODE_LOCAL_SIZE => {
                self.workgroup_size([word(2)?, word(3)?, word(4)?].map(u64::from))?;
            }
            op::DECORATE if word(1)? == op::DECORATION_SPEC_ID => self.constants.name(word(0)?, word(2)?),
            op::DECORATE
                if word(1)? == op::DECORATION_DESCRIPTOR_SET && word(2)? >= self.device.descriptor_sets =>
            {
                return Err(ErrorKind::Range("descriptor set"));
            }
            op::VARIABLE => self.variable(instruction, section)?,
            _ if op::is_type(opcode) => {
                let depth = self.limits.type_depth;
                self.types.add(&self.ids, &self.constants, instruction, depth)?;
            }
            _ if op::is_constant(opcode) && section == Section::Declarations => {
                self.constant(instruction, operands)?;
            }
            _ => {}
        }
        if section == Section::Functions {
            let leaves = match operands.result_type {
                Some(ty) => self.types.of(&self.ids, ty)?.leaves,
                None => 1,
            };
            self.functions.charge(leaves);
        }
        Ok(())
    }

    fn entry_point(&mut self, words: &[u32]) -> Result<(), ErrorKind> {
        let model = *words.first().ok_or(ErrorKind::Length)?;
        if model != op::GL_COMPUTE && !self.device.graphics {
            return Err(ErrorKind::NotOffered("a stage"));
        }
        let (name, _) = words.get(2..).and_then(text).ok_or(ErrorKind::Text)?;
        let entry = (model, name);
        if self.module.entry_points.contains(&entry) {
            return Err(ErrorKind::IdTwice);
        }
        if self.module.entry_points.len() >= ENTRY_POINTS_MAX {
            return Err(ErrorKind::Limit("entry points"));
        }
        self.module.entry_points.push(entry);
        Ok(())
    }

    fn workgroup_size(&self, size: [u64; 3]) -> Result<(), ErrorKind> {
        let fits = size
            .iter()
            .zip(self.device.workgroup_size)
            .all(|(size, max)| (1..=u64::from(max)).contains(size));
        let invocations = size.iter().fold(1u64, |product, size| product.saturating_mul(*size));
        if fits && invocations <= u64::from(self.device.workgroup_invocations) {
            Ok(())
        } else {
            Err(ErrorKind::Range("workgroup size"))
        }
    }

    fn constant(&mut self, instruction: &Instruction<'_>, operands: &Operands) -> Result<(), ErrorKind> {
        let ty = operands.result_type.ok_or(ErrorKind::Length)?;
        let leaves = self.types.of(&self.ids, ty)?.leaves;
        self.constant_leaves = self.constant_leaves.saturating_add(leaves);
        if self.constant_leaves > self.limits.cost {
            return Err(ErrorKind::Limit("numbers in constants (shader_cost)"));
        }
        let is_composite = matches!(instruction.opcode, op::CONSTANT_COMPOSITE | op::SPEC_CONSTANT_COMPOSITE);
        if is_composite && self.parts(ty).is_some_and(|parts| parts != operands.used.len() as u64) {
            return Err(ErrorKind::Mismatch("a constant and its parts"));
        }
        self.constants.add(&self.ids, self.words, instruction)
    }

    /// How many parts a value of this type is made of, for the usual types.
    fn parts(&self, ty: u32) -> Option<u64> {
        let id = self.ids.defined(ty).ok()?;
        let declared = Instruction::read(self.words, id.at as usize).ok()?;
        match id.opcode {
            op::TYPE_VECTOR | op::TYPE_MATRIX => declared.operands.get(2).map(|count| u64::from(*count)),
            op::TYPE_ARRAY => self.constants.length(*declared.operands.get(2)?).map(|length| length.value),
            op::TYPE_STRUCT => Some(declared.operands.len() as u64 - 1),
            _ => None,
        }
    }

    fn variable(&mut self, instruction: &Instruction<'_>, section: Section) -> Result<(), ErrorKind> {
        let (class, contents) = functions::variable(&self.ids, self.words, instruction)?;
        if (class == op::STORAGE_FUNCTION) != (section == Section::Functions) {
            return Err(ErrorKind::Mismatch("a variable and its place"));
        }
        let contents = self.types.of(&self.ids, contents)?;
        let total = match class {
            op::STORAGE_FUNCTION => &mut self.functions.variable_bytes,
            op::STORAGE_PRIVATE => &mut self.private_bytes,
            op::STORAGE_WORKGROUP => &mut self.workgroup_bytes,
            _ => return Ok(()),
        };
        self.module.sizes_vary |= contents.is_specialised;
        *total = total.saturating_add(contents.bytes);
        let limit = match class {
            // Blocks may lie over each other; then the largest counts, which a driver checks as well.
            op::STORAGE_WORKGROUP => {
                u64::from(self.device.workgroup_bytes).saturating_mul(WORKGROUP_BLOCKS_MAX)
            }
            _ => self.limits.variable_bytes,
        };
        if *total > limit {
            return Err(ErrorKind::Limit("bytes of variables (shader_variable_bytes)"));
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Module, Error> {
        self.functions.finish(&self.ids, self.limits)?;
        for (at, id, what) in &self.late {
            let found = self.ids.defined(*id).map_err(|kind| kind.at(*at))?;
            let fits = match what {
                Late::Anything => true,
                Late::Pointer => matches!(found.opcode, op::TYPE_POINTER | op::TYPE_UNTYPED_POINTER),
                Late::Function => found.opcode == op::FUNCTION,
                Late::Variable => matches!(found.opcode, op::VARIABLE | op::UNTYPED_VARIABLE),
                Late::NoGroup => found.opcode != op::DECORATION_GROUP,
            };
            if !fits {
                return Err(ErrorKind::IdKind("what it was announced as").at(*at));
            }
        }
        self.sized_by_constants()?;
        self.module.specialisable = self.constants.into_specialisable();
        Ok(self.module)
    }

    /// Workgroup sizes that constants give: `LocalSizeId` and the built-in `WorkgroupSize`.
    fn sized_by_constants(&mut self) -> Result<(), Error> {
        let mut at = HEADER;
        while at < self.words.len() {
            let instruction = Instruction::read(self.words, at)?;
            at = instruction.end();
            let sizes = match (instruction.opcode, instruction.operands) {
                (op::EXECUTION_MODE_ID, [_, op::MODE_LOCAL_SIZE_ID, sizes @ ..]) => sizes,
                (op::DECORATE, [target, op::DECORATION_BUILT_IN, op::BUILT_IN_WORKGROUP_SIZE]) => {
                    let constant = self.ids.defined(*target).map_err(|kind| instruction.wrong(kind))?;
                    match Instruction::read(self.words, constant.at as usize)?.operands {
                        [_, _, sizes @ ..] if op::is_constant(constant.opcode) => sizes,
                        _ => &[],
                    }
                }
                (op::TYPE_VOID, _) => break,
                _ => continue,
            };
            let length = |id: &u32| self.constants.length(*id);
            let sizes: Option<Vec<_>> = sizes.iter().map(length).collect();
            let Some(Ok(sizes)) = sizes.map(<[_; 3]>::try_from) else { continue };
            self.module.sizes_vary |= sizes.iter().any(|size| size.is_specialised);
            self.workgroup_size(sizes.map(|size| size.value)).map_err(|kind| instruction.wrong(kind))?;
        }
        Ok(())
    }
}

/// More entry points of one module than anybody has.
const ENTRY_POINTS_MAX: usize = 256;
/// Workgroup blocks that lie over each other.
const WORKGROUP_BLOCKS_MAX: u64 = 16;
