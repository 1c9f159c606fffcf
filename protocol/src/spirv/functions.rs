//! Functions: blocks with one terminator each, branches that stay inside, calls that never come back to their caller.

use super::error::{Error, ErrorKind};
use super::ids::{Id, Ids};
use super::opcode as op;
use super::words::Instruction;
use super::{Limits, types};

/// Where the parser is in a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Between functions.
    Outside,
    /// Before the first label.
    Parameters,
    /// In the first block, where variables may be.
    Variables,
    /// At the start of a block, where phis may be.
    Phis,
    /// In a block.
    Block,
    /// Behind a merge instruction.
    Merge,
    /// Behind a terminator.
    Between,
}

#[derive(Clone, Copy, Debug)]
struct Call {
    at: usize,
    caller: u32,
    callee: u32,
    arguments: u32,
}

#[derive(Clone, Copy, Debug)]
struct Function {
    parameters: u32,
    cost: u64,
}

/// All functions of a module.
#[derive(Debug)]
pub struct Functions {
    place: Place,
    all: Vec<Function>,
    calls: Vec<Call>,
    /// The first label of the current function.
    entry: u32,
    parameters_left: u32,
    blocks: u32,
    open_merges: u32,
    /// Labels that are branched to, with the word.
    targets: Vec<(usize, u32)>,
    /// Values and blocks that phis name.
    late: Vec<(usize, u32)>,
    /// Bytes of variables in functions.
    pub variable_bytes: u64,
}

impl Functions {
    /// None yet.
    pub fn new() -> Self {
        Self {
            place: Place::Outside,
            all: Vec::new(),
            calls: Vec::new(),
            entry: 0,
            parameters_left: 0,
            blocks: 0,
            open_merges: 0,
            targets: Vec::new(),
            late: Vec::new(),
            variable_bytes: 0,
        }
    }

    /// The function the parser is in, counted from 1; 0 outside.
    pub fn current(&self) -> u32 {
        if self.place == Place::Outside { 0 } else { self.all.len() as u32 }
    }

    /// What a function's instruction costs a compiler; `leaves` are the numbers of its result.
    pub fn charge(&mut self, leaves: u64) {
        if let Some(function) = self.all.last_mut() {
            function.cost = function.cost.saturating_add(leaves.max(1));
        }
    }

    /// Follows one instruction of the functions' part. `used` are the ids it names, in order.
    pub fn step(
        &mut self,
        instruction: &Instruction<'_>,
        used: &[u32],
        ids: &mut Ids,
        words: &[u32],
        limits: &Limits,
    ) -> Result<(), ErrorKind> {
        let opcode = instruction.opcode;
        if matches!(opcode, op::LINE | op::NO_LINE) {
            return Ok(());
        }
        match (self.place, opcode) {
            (Place::Outside, op::FUNCTION) => self.enter(used, ids, words)?,
            (Place::Outside, op::EXT_INST | op::EXT_INST_WITH_FORWARD_REFS) => {}
            (Place::Outside, _) => return Err(ErrorKind::Order("instruction")),
            (_, op::FUNCTION) => return Err(ErrorKind::Order("function")),
            (Place::Parameters, op::FUNCTION_PARAMETER) => {
                self.parameters_left =
                    self.parameters_left.checked_sub(1).ok_or(ErrorKind::Mismatch("parameters"))?;
            }
            (Place::Parameters | Place::Between, op::LABEL) => self.label(instruction, ids, limits)?,
            (Place::Between, op::FUNCTION_END) => self.leave(ids)?,
            (_, op::LABEL | op::FUNCTION_END | op::FUNCTION_PARAMETER) => {
                return Err(ErrorKind::Order("instruction"));
            }
            // What non-semantic instructions say may stand between blocks as well.
            (Place::Parameters | Place::Between, op::EXT_INST | op::EXT_INST_WITH_FORWARD_REFS) => {}
            (Place::Parameters | Place::Between, _) => return Err(ErrorKind::Order("instruction")),
            (Place::Variables, op::VARIABLE | op::UNTYPED_VARIABLE) => {}
            (_, op::VARIABLE | op::UNTYPED_VARIABLE) => return Err(ErrorKind::Order("variable")),
            (Place::Variables | Place::Block | Place::Merge, op::PHI) => return Err(ErrorKind::Order("phi")),
            (Place::Phis, op::PHI) => self.late.extend(used.iter().map(|id| (instruction.at, *id))),
            (Place::Merge, op::BRANCH | op::BRANCH_CONDITIONAL | op::SWITCH) => {
                self.terminate(instruction, used)
            }
            (Place::Merge, _) => return Err(ErrorKind::Order("merge instruction")),
            (_, op::LOOP_MERGE | op::SELECTION_MERGE) => self.merge(instruction, used, ids, limits)?,
            // Variables may follow what is said about them.
            (Place::Variables, op::EXT_INST | op::EXT_INST_WITH_FORWARD_REFS | op::UNDEF) => {}
            (_, _) if op::is_terminator(opcode) => self.terminate(instruction, used),
            (_, op::FUNCTION_CALL) => {
                self.place = Place::Block;
                let callee = used.first().copied().ok_or(ErrorKind::Length)?;
                let arguments = used.len() as u32 - 1;
                self.calls.push(Call { at: instruction.at, caller: self.current(), callee, arguments });
            }
            (Place::Variables | Place::Phis | Place::Block, _) => self.place = Place::Block,
        }
        Ok(())
    }

    fn enter(&mut self, used: &[u32], ids: &Ids, words: &[u32]) -> Result<(), ErrorKind> {
        let ty = ids.defined(used.first().copied().ok_or(ErrorKind::Length)?)?;
        if ty.opcode != op::TYPE_FUNCTION {
            return Err(ErrorKind::IdKind("function type"));
        }
        let length = words.get(ty.at as usize).map_or(0, |first| first >> 16);
        self.parameters_left = length.saturating_sub(3);
        self.all.push(Function { parameters: self.parameters_left, cost: 0 });
        (self.place, self.entry, self.blocks, self.open_merges) = (Place::Parameters, 0, 0, 0);
        Ok(())
    }

    fn label(&mut self, instruction: &Instruction<'_>, ids: &Ids, limits: &Limits) -> Result<(), ErrorKind> {
        let id = instruction.word(0).map_err(|error| error.kind)?;
        self.blocks += 1;
        if self.blocks > limits.blocks {
            return Err(ErrorKind::Limit("blocks in a function (shader_blocks)"));
        }
        if self.blocks == 1 {
            if self.parameters_left != 0 {
                return Err(ErrorKind::Mismatch("parameters"));
            }
            self.entry = id;
        }
        if ids.any(id)?.is_merge {
            self.open_merges = self.open_merges.saturating_sub(1);
        }
        self.place = if self.blocks == 1 { Place::Variables } else { Place::Phis };
        Ok(())
    }

    fn merge(
        &mut self,
        instruction: &Instruction<'_>,
        used: &[u32],
        ids: &mut Ids,
        limits: &Limits,
    ) -> Result<(), ErrorKind> {
        ids.name_merge(used.first().copied().ok_or(ErrorKind::Length)?)?;
        self.open_merges += 1;
        if self.open_merges > limits.nesting {
            return Err(ErrorKind::Limit("nested blocks (shader_nesting)"));
        }
        let labels = if instruction.opcode == op::LOOP_MERGE { 2 } else { 1 };
        self.targets.extend(used.iter().take(labels).map(|id| (instruction.at, *id)));
        self.place = Place::Merge;
        Ok(())
    }

    fn terminate(&mut self, instruction: &Instruction<'_>, used: &[u32]) {
        let values = match instruction.opcode {
            op::BRANCH => 0,
            op::BRANCH_CONDITIONAL | op::SWITCH => 1,
            _ => used.len(),
        };
        self.targets.extend(used.iter().skip(values).map(|id| (instruction.at, *id)));
        self.place = Place::Between;
    }

    fn leave(&mut self, ids: &Ids) -> Result<(), ErrorKind> {
        let current = self.current();
        for (_, target) in self.targets.drain(..) {
            let id = ids.visible(target, current)?;
            if id.opcode != op::LABEL || target == self.entry {
                return Err(ErrorKind::IdKind("block to branch to"));
            }
        }
        for (_, value) in self.late.drain(..) {
            ids.visible(value, current)?;
        }
        self.place = Place::Outside;
        Ok(())
    }

    /// Looks at all calls: that they fit what they call, that none recurs, and what all costs when every call is inlined.
    pub fn finish(&self, ids: &Ids, limits: &Limits) -> Result<(), Error> {
        if self.place != Place::Outside {
            return Err(ErrorKind::Order("end").at(0));
        }
        let mut callers = vec![Vec::new(); self.all.len() + 1];
        let mut pending = vec![0u32; self.all.len() + 1];
        for call in &self.calls {
            let Id { opcode: op::FUNCTION, function, .. } =
                ids.defined(call.callee).map_err(|kind| kind.at(call.at))?
            else {
                return Err(ErrorKind::IdKind("function").at(call.at));
            };
            if self.all[function as usize - 1].parameters != call.arguments {
                return Err(ErrorKind::Mismatch("arguments").at(call.at));
            }
            callers[function as usize].push(call.caller);
            pending[call.caller as usize] += 1;
        }
        // Callees before callers; what is never ready takes part in a cycle.
        let mut cost: Vec<u64> =
            std::iter::once(0).chain(self.all.iter().map(|function| function.cost)).collect();
        let mut ready: Vec<usize> = (1..=self.all.len()).filter(|function| pending[*function] == 0).collect();
        let mut done = 0;
        while let Some(function) = ready.pop() {
            done += 1;
            if cost[function] > limits.cost {
                return Err(ErrorKind::Limit("instructions after inlining (shader_cost)").at(0));
            }
            for caller in &callers[function] {
                let caller = *caller as usize;
                cost[caller] = cost[caller].saturating_add(cost[function]);
                pending[caller] -= 1;
                if pending[caller] == 0 {
                    ready.push(caller);
                }
            }
        }
        if done == self.all.len() { Ok(()) } else { Err(ErrorKind::Recursion.at(0)) }
    }
}

/// The type of a variable's contents with its storage class, which the pointer must agree on.
pub fn variable(ids: &Ids, words: &[u32], instruction: &Instruction<'_>) -> Result<(u32, u32), ErrorKind> {
    let (ty, class) = match instruction.operands {
        [ty, _, class, ..] => (*ty, *class),
        _ => return Err(ErrorKind::Length),
    };
    match types::pointee(ids, words, ty) {
        Some((of_pointer, contents)) if of_pointer == class => Ok((class, contents)),
        _ => Err(ErrorKind::Mismatch("a variable and its pointer")),
    }
}
