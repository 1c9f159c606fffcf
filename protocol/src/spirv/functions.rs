//! Functions: blocks with one terminator each, branches that stay inside, and no recursive calls.

use super::Limits;
use super::callbacks::Callback;
use super::layout::error::{Error, ErrorKind};
use super::layout::ids::{Id, Ids};
use super::layout::opcode as op;
use super::layout::words::Instruction;
use super::typing::{self, View};
use super::values::types;
use std::collections::HashSet;

/// The place of the parser in a function.
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

/// An instruction with the results of its checks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step<'s> {
    /// The instruction.
    pub instruction: &'s Instruction<'s>,
    /// The ids it names, in order.
    pub used: &'s [u32],
    /// True if the instruction takes no part in the program: a line, or an extended instruction for tools.
    pub is_remark: bool,
}

#[derive(Clone, Copy, Debug)]
struct Call {
    at: usize,
    caller: u32,
    callee: u32,
    arguments: u32,
    /// The callee is a function. Otherwise it may be a value that stands in a function's place.
    is_sure: bool,
    /// The callee is called for each element of a matrix, with arguments that the instruction does not name.
    is_callback: bool,
}

#[derive(Clone, Copy, Debug)]
struct Function {
    parameters: u32,
    cost: u64,
}

/// All functions of a module.
#[derive(Debug)]
pub(super) struct Functions {
    place: Place,
    all: Vec<Function>,
    calls: Vec<Call>,
    /// The first label of the current function.
    entry: u32,
    parameters_left: u32,
    blocks: u32,
    open_merges: u32,
    /// The label of the current block.
    block: u32,
    /// Labels that are branched to.
    targets: Vec<u32>,
    /// Labels that merge instructions name.
    merges: Vec<u32>,
    /// The labels among those merge labels that stand before the merge instruction: allowed for blocks that nothing branches to.
    early: HashSet<u32>,
    /// Values and blocks that phis name.
    late: Vec<u32>,
    /// Bytes of variables in functions.
    pub variable_bytes: u64,
}

impl Functions {
    /// Returns the state before the first function.
    pub(super) fn new() -> Self {
        Self {
            place: Place::Outside,
            all: Vec::new(),
            calls: Vec::new(),
            entry: 0,
            parameters_left: 0,
            blocks: 0,
            open_merges: 0,
            block: 0,
            targets: Vec::new(),
            merges: Vec::new(),
            early: HashSet::new(),
            late: Vec::new(),
            variable_bytes: 0,
        }
    }

    /// The function the parser is in, counted from 1; 0 outside.
    pub(super) fn current(&self) -> u32 {
        if self.place == Place::Outside { 0 } else { self.all.len() as u32 }
    }

    /// The number of functions.
    pub(super) fn count(&self) -> usize {
        self.all.len()
    }

    /// Calls, from one function to another.
    pub(super) fn calls(&self, ids: &Ids) -> impl Iterator<Item = (u32, u32)> {
        let callee =
            |call: &Call| ids.defined(call.callee).ok().filter(|callee| callee.opcode == op::FUNCTION);
        self.calls.iter().filter_map(move |call| Some((call.caller, callee(call)?.function)))
    }

    /// Adds the cost of a function's instruction for a compiler; `leaves` are the numbers of its result.
    pub(super) fn charge(&mut self, leaves: u64) {
        if let Some(function) = self.all.last_mut() {
            function.cost = function.cost.saturating_add(leaves.max(1));
        }
    }

    /// Follows one instruction of the functions' part.
    pub(super) fn step(
        &mut self,
        step: &Step<'_>,
        ids: &mut Ids,
        words: &[u32],
        limits: &Limits,
    ) -> Result<(), ErrorKind> {
        let Step { instruction, used, is_remark } = *step;
        let opcode = instruction.opcode;
        // Remarks may stand between functions, between blocks and before phis too; only lines may stand behind a merge instruction.
        if is_remark && (self.place != Place::Merge || matches!(opcode, op::LINE | op::NO_LINE)) {
            return Ok(());
        }
        match (self.place, opcode) {
            (Place::Outside, op::FUNCTION) => self.enter(used, ids, words)?,
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
            (Place::Parameters | Place::Between, _) => return Err(ErrorKind::Order("instruction")),
            (Place::Variables, op::VARIABLE | op::UNTYPED_VARIABLE) => {}
            (_, op::VARIABLE | op::UNTYPED_VARIABLE) => return Err(ErrorKind::Order("variable")),
            (Place::Variables | Place::Block | Place::Merge, op::PHI) => return Err(ErrorKind::Order("phi")),
            (Place::Phis, op::PHI) => self.late.extend(used),
            (Place::Merge, op::BRANCH | op::BRANCH_CONDITIONAL | op::SWITCH) => {
                self.terminate(instruction, used)
            }
            (Place::Merge, _) => return Err(ErrorKind::Order("merge instruction")),
            (_, op::LOOP_MERGE | op::SELECTION_MERGE) => self.merge(instruction, used, ids, limits)?,
            (Place::Variables, op::UNDEF) => {}
            (_, _) if op::is_terminator(opcode) => self.terminate(instruction, used),
            (_, op::FUNCTION_CALL) => {
                self.place = Place::Block;
                let callee = used.first().copied().ok_or(ErrorKind::Length)?;
                let arguments = used.len() as u32 - 1;
                let (at, caller) = (instruction.at, self.current());
                self.calls.push(Call { at, caller, callee, arguments, is_sure: true, is_callback: false });
            }
            (Place::Variables | Place::Phis | Place::Block, _) => {
                self.place = Place::Block;
                self.call_back(instruction, used);
            }
        }
        Ok(())
    }

    /// Notes the functions that an instruction calls for each element.
    fn call_back(&mut self, instruction: &Instruction<'_>, used: &[u32]) {
        let Some(Callback { functions, arguments, is_sure, .. }) = Callback::of(instruction.opcode, used)
        else {
            return;
        };
        let (at, caller) = (instruction.at, self.current());
        self.calls.extend(functions.iter().map(|callee| Call {
            at,
            caller,
            callee: *callee,
            arguments,
            is_sure,
            is_callback: true,
        }));
    }

    fn enter(&mut self, used: &[u32], ids: &Ids, words: &[u32]) -> Result<(), ErrorKind> {
        let id = used.first().copied().ok_or(ErrorKind::Length)?;
        let ty = ids.defined(id)?;
        if ty.opcode != op::TYPE_FUNCTION {
            return Err(ErrorKind::IdKind(id, "function type"));
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
        self.block = id;
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
        let merge = used.first().copied().ok_or(ErrorKind::Length)?;
        if ids.name_merge(merge)? {
            self.open_merges += 1;
        } else if merge == self.block {
            return Err(ErrorKind::Order("merge block"));
        } else {
            self.early.insert(merge);
        }
        if self.open_merges > limits.nesting {
            return Err(ErrorKind::Limit("nested blocks (shader_nesting)"));
        }
        let labels = if instruction.opcode == op::LOOP_MERGE { 2 } else { 1 };
        self.merges.extend(used.iter().take(labels));
        self.place = Place::Merge;
        Ok(())
    }

    fn terminate(&mut self, instruction: &Instruction<'_>, used: &[u32]) {
        let values = match instruction.opcode {
            op::BRANCH => 0,
            op::BRANCH_CONDITIONAL | op::SWITCH => 1,
            _ => used.len(),
        };
        self.targets.extend(used.iter().skip(values));
        self.place = Place::Between;
    }

    fn leave(&mut self, ids: &Ids) -> Result<(), ErrorKind> {
        let current = self.current();
        if self.targets.iter().any(|target| self.early.contains(target)) {
            return Err(ErrorKind::Order("merge block"));
        }
        self.early.clear();
        for target in self.targets.drain(..).chain(self.merges.drain(..)) {
            let id = ids.visible(target, current)?;
            if id.opcode != op::LABEL || target == self.entry {
                return Err(ErrorKind::IdKind(target, "block to branch to"));
            }
        }
        for value in self.late.drain(..) {
            ids.visible(value, current)?;
        }
        self.place = Place::Outside;
        Ok(())
    }

    /// Checks all calls: that they fit their callees, that none recurs, and the cost of the module when every call is inlined.
    pub(super) fn finish(&self, view: &View<'_>, limits: &Limits) -> Result<(), Error> {
        if self.place != Place::Outside {
            return Err(ErrorKind::Order("end").at(0));
        }
        let mut callers = vec![Vec::new(); self.all.len() + 1];
        let mut pending = vec![0u32; self.all.len() + 1];
        for call in &self.calls {
            let callee = view.ids.defined(call.callee).map_err(|kind| kind.at(call.at))?;
            let Id { opcode: op::FUNCTION, function, at, .. } = callee else {
                if call.is_sure {
                    return Err(ErrorKind::IdKind(call.callee, "function").at(call.at));
                }
                continue;
            };
            if self.all[function as usize - 1].parameters != call.arguments {
                return Err(ErrorKind::Mismatch("arguments").at(call.at));
            }
            if !call.is_callback {
                typing::check_call(view, call.at, at as usize).map_err(|kind| kind.at(call.at))?;
            }
            callers[function as usize].push(call.caller);
            pending[call.caller as usize] += 1;
        }
        // Callees before callers; a function that is never ready takes part in a cycle.
        let mut cost: Vec<u64> =
            std::iter::once(0).chain(self.all.iter().map(|function| function.cost)).collect();
        let mut ready: Vec<usize> = (1..=self.all.len()).filter(|function| pending[*function] == 0).collect();
        let mut done = 0;
        while let Some(function) = ready.pop() {
            done += 1;
            if cost[function] > limits.cost {
                return Err(ErrorKind::Limit(
                    "instructions after inlining (shader_cost, raised by --max-shader-cost)",
                )
                .at(0));
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

/// A variable's storage class, which must be that of its pointer's type, and the type of its contents, if the variable must have one.
pub(super) fn variable(
    ids: &Ids,
    words: &[u32],
    instruction: &Instruction<'_>,
) -> Result<(u32, Option<u32>), ErrorKind> {
    let &[ty, _, class, ref rest @ ..] = instruction.operands else { return Err(ErrorKind::Length) };
    let (of_pointer, contents) = match instruction.opcode {
        op::VARIABLE => types::pointee(ids, words, ty).unzip(),
        _ => (types::untyped_class(ids, words, ty), rest.first().copied()),
    };
    if of_pointer != Some(class) {
        return Err(ErrorKind::Mismatch("a variable and its pointer"));
    }
    if contents.is_none() && !op::is_given(class) {
        return Err(ErrorKind::Missing("type of a variable's contents"));
    }
    Ok((class, contents))
}
