//! Workgroup memory that starts as zeros: every variable of storage class Workgroup gets a null constant as its initialiser.
//!
//! Needs `shaderZeroInitializeWorkgroupMemory` of the device.

use super::layout::opcode as op;
use super::layout::words::{HEADER, Instruction};
use std::collections::BTreeMap;

/// The word of the header that holds the bound of ids.
const BOUND: usize = 3;
/// Words of `OpConstantNull`.
const NULL_WORDS: usize = 3;

/// Rewrites a module, checked before, so that its workgroup variables are initialised. Returns none if it has no uninitialised one.
pub fn workgroup(words: &[u32]) -> Option<Vec<u32>> {
    let mut pointees = BTreeMap::new();
    let mut variables = Vec::new();
    let mut at = HEADER;
    while at < words.len() {
        let instruction = Instruction::read(words, at).ok()?;
        match (instruction.opcode, instruction.operands) {
            (op::TYPE_POINTER, [id, op::STORAGE_WORKGROUP, contents]) => {
                pointees.insert(*id, *contents);
            }
            (op::VARIABLE, [ty, _, op::STORAGE_WORKGROUP]) => variables.push((at, *pointees.get(ty)?)),
            (op::UNTYPED_VARIABLE, [_, _, op::STORAGE_WORKGROUP, contents]) => {
                variables.push((at, *contents))
            }
            // Global variables come before all functions.
            (op::FUNCTION, _) => break,
            _ => {}
        }
        at = instruction.end();
    }
    if variables.is_empty() {
        return None;
    }
    let mut rewritten = Vec::with_capacity(words.len() + variables.len() * (NULL_WORDS + 1));
    let mut nulls: BTreeMap<u32, u32> = BTreeMap::new();
    let mut bound = words[BOUND];
    let mut copied = 0;
    for (at, contents) in variables {
        rewritten.extend_from_slice(&words[copied..at]);
        // A null that the module has already may stand behind the variable; an added one never does.
        let null = *nulls.entry(contents).or_insert_with(|| {
            let id = bound;
            bound += 1;
            rewritten.extend([(NULL_WORDS as u32) << 16 | u32::from(op::CONSTANT_NULL), contents, id]);
            id
        });
        copied = at + (words[at] >> 16) as usize;
        rewritten.push(words[at] + (1 << 16));
        rewritten.extend_from_slice(&words[at + 1..copied]);
        rewritten.push(null);
    }
    rewritten.extend_from_slice(&words[copied..]);
    rewritten[BOUND] = bound;
    Some(rewritten)
}
