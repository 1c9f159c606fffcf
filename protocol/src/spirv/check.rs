//! The pass over a module.

use super::capabilities::Declared;
use super::functions::{self, Functions, Step};
use super::layout::error::{Error, ErrorKind};
use super::layout::grammar;
use super::layout::ids::{Id, Ids};
use super::layout::opcode as op;
use super::layout::section::{Progress, Section};
use super::layout::sets::Sets;
use super::layout::words::{HEADER, Header, Instruction, text};
use super::operands::Operands;
use super::resources::Finder;
use super::typing::{self, Operation, Results, View};
use super::uses::{Scope, Uses};
use super::values::constants::Constants;
use super::values::types::{self, Types};
use super::workgroups::Workgroups;
use super::{Device, EntryPoint, Limits, Module};
use std::collections::HashSet;

/// Checks a module and returns its description.
///
/// # Errors
///
/// The reason why no driver should see it.
pub fn check(words: &[u32], device: &Device<'_>, limits: &Limits) -> Result<Module, Error> {
    pass(words, device, limits).map_err(|error| error.within(words))
}

fn pass(words: &[u32], device: &Device<'_>, limits: &Limits) -> Result<Module, Error> {
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
        declared: Declared::default(),
        ids: Ids::new(header.bound),
        types: Types::default(),
        constants: Constants::new(device.specialisation.clone()),
        functions: Functions::new(),
        results: Results::default(),
        resources: Finder::default(),
        module: Module::default(),
        uses: Uses::default(),
        sets: Sets::default(),
        workgroups: Workgroups::default(),
        entry_points: Vec::new(),
        names: HashSet::new(),
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
    declared: Declared,
    ids: Ids,
    types: Types,
    constants: Constants,
    functions: Functions,
    results: Results,
    resources: Finder,
    module: Module,
    uses: Uses,
    sets: Sets,
    workgroups: Workgroups,
    /// Execution models and functions of the entry points.
    entry_points: Vec<(u32, u32)>,
    /// Execution models and names of the entry points.
    names: HashSet<(u32, Vec<u8>)>,
    constant_leaves: u64,
    private_bytes: u64,
    workgroup_bytes: u64,
}

impl Checker<'_> {
    fn instruction(
        &mut self,
        instruction: &Instruction<'_>,
        operands: &mut Operands,
        progress: &mut Progress,
    ) -> Result<(), ErrorKind> {
        let opcode = instruction.opcode;
        let grammar = grammar::instruction(opcode).ok_or(ErrorKind::Unknown("instruction"))?;
        if opcode == op::CAPABILITY {
            let number = instruction.operands.first().copied().ok_or(ErrorKind::Length)?;
            if !(self.device.has_capability)(number) {
                return Err(ErrorKind::Capability(number));
            }
            self.declared.add(number);
        }
        self.declared.demand(grammar.capabilities)?;
        let section = progress.advance(opcode)?;
        let lists = self.sets.operands(instruction, grammar.operands, section)?;
        operands.read(instruction, lists, self.words, &self.ids)?;
        operands.needed.iter().try_for_each(|needed| self.declared.demand(needed))?;
        self.declared.demand_width(instruction)?;
        if section == Section::Functions {
            let step =
                Step { instruction, used: &operands.used, is_remark: self.sets.is_remark(instruction) };
            self.functions.step(&step, &mut self.ids, self.words, self.limits)?;
        }
        let function = self.functions.current();
        let scope = Scope { ids: &self.ids, sets: &self.sets, section, function };
        self.uses.look(instruction, operands, &scope)?;
        let ty = match operands.result_type {
            Some(ty) => ty,
            None if op::is_type(opcode) => self.types.count(),
            None => 0,
        };
        if let Some(result) = operands.result {
            let function =
                if opcode == op::FUNCTION { self.functions.current() } else { self.function_of(section) };
            let at = instruction.at as u32;
            self.ids.define(result, Id { at, ty, function, opcode, ..Id::default() })?;
        }
        self.meaning(instruction, operands, section)
    }

    /// The function that an id of this part belongs to.
    fn function_of(&self, section: Section) -> u32 {
        if section == Section::Functions { self.functions.current() } else { 0 }
    }

    /// Checks the rules of single instructions.
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
            op::EXT_INST_IMPORT => {
                let (name, _) = text(&words[1..]).ok_or(ErrorKind::Text)?;
                self.sets.import(word(0)?, &name)?;
            }
            op::ENTRY_POINT => self.entry_point(words)?,
            op::EXECUTION_MODE | op::EXECUTION_MODE_ID => self.workgroups.mode(instruction),
            op::DECORATE => self.decorate(instruction)?,
            op::DECORATION_GROUP => self.workgroups.group(word(0)?),
            op::GROUP_DECORATE => {
                let (group, targets) = operands.used.split_first().ok_or(ErrorKind::Length)?;
                self.constants.name_as(*group, targets);
                self.workgroups.decorate_as(*group, targets);
                self.resources.decorate_as(*group, targets);
            }
            op::TYPE_FORWARD_POINTER => self.ids.announce(word(0)?)?,
            op::VARIABLE | op::UNTYPED_VARIABLE => self.variable(instruction, section)?,
            _ if op::is_type(opcode) => {
                let depth = self.limits.type_depth;
                let new = self.types.add(&self.ids, &self.constants, instruction, depth)?;
                self.module.sizes_vary |= new.is_specialised;
            }
            _ if op::is_constant(opcode) && section == Section::Declarations => {
                self.constant(instruction, operands)?;
            }
            _ => {}
        }
        self.typing(instruction, operands, section)?;
        if section == Section::Functions {
            self.resources.look(&self.ids, self.words, self.functions.current(), &operands.used);
            let ty = match opcode {
                op::STORE => Some(self.ids.defined(word(1)?)?.ty),
                op::COPY_MEMORY => {
                    let pointer = self.ids.defined(word(0)?)?.ty;
                    types::pointee(&self.ids, self.words, pointer).map(|(_, contents)| contents)
                }
                _ => operands.result_type,
            };
            let leaves = ty.map_or(Ok(1), |ty| self.types.of(&self.ids, ty).map(|ty| ty.leaves))?;
            self.functions.charge(leaves);
        }
        Ok(())
    }

    /// Checks the types of computed values.
    fn typing(
        &mut self,
        instruction: &Instruction<'_>,
        operands: &Operands,
        section: Section,
    ) -> Result<(), ErrorKind> {
        if section != Section::Functions && instruction.opcode != op::SPEC_CONSTANT_OP {
            return Ok(());
        }
        let (ids, types, constants) = (&self.ids, &self.types, &self.constants);
        let view = View { ids, types, constants, sets: &self.sets, words: self.words };
        let operation = Operation::of(instruction, operands.result_type, &operands.used);
        self.results.follow(&operation, &view)?;
        typing::check(&operation, &view)
    }

    fn decorate(&mut self, instruction: &Instruction<'_>) -> Result<(), ErrorKind> {
        if let [target, decoration @ (op::DECORATION_DESCRIPTOR_SET | op::DECORATION_BINDING), number] =
            *instruction.operands
        {
            self.resources.decorate(target, decoration, number);
        }
        match *instruction.operands {
            [target, op::DECORATION_SPEC_ID, id] => self.constants.name(target, id),
            [target, op::DECORATION_BUILT_IN, op::BUILT_IN_WORKGROUP_SIZE] => {
                self.workgroups.decorate(target, instruction.at);
            }
            [_, op::DECORATION_DESCRIPTOR_SET, set] if set >= self.device.descriptor_sets => {
                return Err(ErrorKind::NotOffered("a descriptor set (maxBoundDescriptorSets)"));
            }
            _ => {}
        }
        Ok(())
    }

    fn entry_point(&mut self, words: &[u32]) -> Result<(), ErrorKind> {
        let model = *words.first().ok_or(ErrorKind::Length)?;
        if model != op::GL_COMPUTE && !self.device.graphics {
            return Err(ErrorKind::NotOffered("a stage"));
        }
        let (name, _) = words.get(2..).and_then(text).ok_or(ErrorKind::Text)?;
        if !self.names.insert((model, name.clone())) {
            return Err(ErrorKind::EntryPointTwice);
        }
        self.entry_points.push((model, *words.get(1).ok_or(ErrorKind::Length)?));
        self.module.entry_points.push(EntryPoint { model, name, launch: Ok(()) });
        Ok(())
    }

    fn constant(&mut self, instruction: &Instruction<'_>, operands: &Operands) -> Result<(), ErrorKind> {
        let ty = operands.result_type.ok_or(ErrorKind::Length)?;
        let leaves = self.types.of(&self.ids, ty)?.leaves;
        self.constant_leaves = self.constant_leaves.saturating_add(leaves);
        if self.constant_leaves > self.limits.cost {
            return Err(ErrorKind::Limit("numbers in constants (shader_cost, raised by --max-shader-cost)"));
        }
        let is_composite = matches!(instruction.opcode, op::CONSTANT_COMPOSITE | op::SPEC_CONSTANT_COMPOSITE);
        if is_composite && self.parts(ty).is_some_and(|parts| parts != operands.used.len() as u64) {
            return Err(ErrorKind::Mismatch("a constant and its parts"));
        }
        self.constants.add(&self.ids, self.words, instruction)
    }

    /// Returns the number of parts of a value of this type, for the usual types; `None` before that is known.
    fn parts(&self, ty: u32) -> Option<u64> {
        let id = self.ids.defined(ty).ok()?;
        let declared = Instruction::read(self.words, id.at as usize).ok()?;
        match id.opcode {
            op::TYPE_VECTOR | op::TYPE_MATRIX => declared.operands.get(2).map(|count| u64::from(*count)),
            op::TYPE_ARRAY => {
                let length = self.constants.integer(*declared.operands.get(2)?).ok()?;
                length.value.filter(|_| !length.is_specialised || self.constants.is_specialised())
            }
            op::TYPE_STRUCT => Some(declared.operands.len() as u64 - 1),
            _ => None,
        }
    }

    fn variable(&mut self, instruction: &Instruction<'_>, section: Section) -> Result<(), ErrorKind> {
        let (class, contents) = functions::variable(&self.ids, self.words, instruction)?;
        if (class == op::STORAGE_FUNCTION) != (section == Section::Functions) {
            return Err(ErrorKind::Mismatch("a variable and its place"));
        }
        let Some(contents) = contents else { return Ok(()) };
        let contents = self.types.of(&self.ids, contents)?;
        let total = match class {
            op::STORAGE_FUNCTION => &mut self.functions.variable_bytes,
            op::STORAGE_PRIVATE => &mut self.private_bytes,
            op::STORAGE_WORKGROUP => &mut self.workgroup_bytes,
            _ if !op::is_given(class) && contents.bytes.max(contents.leaves) > BYTES_MAX => {
                return Err(ErrorKind::Range("size of a variable"));
            }
            _ => return Ok(()),
        };
        *total = total.saturating_add(contents.bytes);
        let limit = match class {
            // Blocks may overlap; then the largest counts. A driver checks the largest, too.
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
        let (ids, types, constants) = (&self.ids, &self.types, &self.constants);
        let view = View { ids, types, constants, sets: &self.sets, words: self.words };
        self.functions.finish(&view, self.limits)?;
        self.uses.finish(&self.ids, self.words)?;
        self.module.sizes_vary |= self.workgroups.vary(&self.constants);
        let launches = self.workgroups.judge(&self.constants, self.device, &self.entry_points);
        for (entry_point, launch) in self.module.entry_points.iter_mut().zip(launches) {
            entry_point.launch = launch.map_err(|error| error.within(self.words));
        }
        let function = |(_, id): &(u32, u32)| self.ids.any(*id).map_or(0, |entry| entry.function);
        let entries = self.entry_points.iter().map(function).collect();
        let calls = self.functions.calls(&self.ids);
        self.module.resources = self.resources.finish(self.functions.count(), calls, entries);
        self.module.specialisable = self.constants.into_specialisable();
        Ok(self.module)
    }
}

/// The size of the largest variable that a driver lays out itself: drivers count bytes in 32 bits.
const BYTES_MAX: u64 = u32::MAX as u64;
/// Workgroup blocks that overlap.
const WORKGROUP_BLOCKS_MAX: u64 = 16;
