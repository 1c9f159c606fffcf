//! The workgroup sizes of each entry point, however the module gives them: numbers, constants, or a constant that is `WorkgroupSize`.

use super::Device;
use super::layout::error::{Error, ErrorKind};
use super::layout::opcode as op;
use super::layout::words::Instruction;
use super::values::constants::{Constants, Integer};
use std::collections::{BTreeMap, HashMap};

#[derive(Clone, Copy, Debug)]
enum Size {
    Numbers([u32; 3]),
    /// `LocalSizeId`.
    Constants([u32; 3]),
    /// A vector that is decorated with `WorkgroupSize`.
    Vector(u32),
}

/// The workgroup sizes that a module declares.
#[derive(Debug, Default)]
pub(super) struct Workgroups {
    /// The words and the sizes, by function of an entry point.
    modes: HashMap<u32, Vec<(usize, Size)>>,
    /// The word of the decoration, by constant that is `WorkgroupSize`, which takes precedence for the whole module.
    built_in: BTreeMap<u32, usize>,
    /// The word of the decoration, by decoration group that carries `WorkgroupSize`.
    groups: HashMap<u32, usize>,
}

impl Workgroups {
    /// `OpExecutionMode` and `OpExecutionModeId`.
    pub(super) fn mode(&mut self, instruction: &Instruction<'_>) {
        let (function, size) = match (instruction.opcode, instruction.operands) {
            (op::EXECUTION_MODE, &[function, op::MODE_LOCAL_SIZE, x, y, z]) => {
                (function, Size::Numbers([x, y, z]))
            }
            (op::EXECUTION_MODE_ID, &[function, op::MODE_LOCAL_SIZE_ID, x, y, z]) => {
                (function, Size::Constants([x, y, z]))
            }
            _ => return,
        };
        self.modes.entry(function).or_default().push((instruction.at, size));
    }

    /// `OpDecorate` with `BuiltIn WorkgroupSize`.
    pub(super) fn decorate(&mut self, target: u32, at: usize) {
        self.built_in.insert(target, at);
    }

    /// `OpDecorationGroup`, behind the instructions that decorate it.
    pub(super) fn group(&mut self, id: u32) {
        if let Some(at) = self.built_in.remove(&id) {
            self.groups.insert(id, at);
        }
    }

    /// `OpGroupDecorate`.
    pub(super) fn decorate_as(&mut self, group: u32, targets: &[u32]) {
        if let Some(at) = self.groups.get(&group).copied() {
            self.built_in.extend(targets.iter().map(|target| (*target, at)));
        }
    }

    /// Checks whether the device takes each of these entry points, given by execution model and function.
    pub(super) fn judge(
        &self,
        constants: &Constants,
        device: &Device<'_>,
        entry_points: &[(u32, u32)],
    ) -> Vec<Result<(), Error>> {
        let judge = |sizes: &mut dyn Iterator<Item = (usize, Size)>| {
            let mut judged =
                sizes.map(|(at, size)| fits(size, constants, device).map_err(|kind| kind.at(at)));
            judged.find(Result::is_err).unwrap_or(Ok(()))
        };
        let built_in = judge(&mut self.built_in.iter().map(|(id, at)| (*at, Size::Vector(*id))));
        let modes: HashMap<u32, Result<(), Error>> = self
            .modes
            .iter()
            .map(|(function, sizes)| (*function, judge(&mut sizes.iter().copied())))
            .collect();
        let missing = Err(ErrorKind::Missing("workgroup size").at(0));
        let of = |(model, function): &(u32, u32)| match *model {
            model if !op::has_workgroups(model) => Ok(()),
            _ if !self.built_in.is_empty() => built_in,
            _ => modes.get(function).copied().unwrap_or(missing),
        };
        entry_points.iter().map(of).collect()
    }

    /// Returns whether a size depends on specialisation.
    pub(super) fn vary(&self, constants: &Constants) -> bool {
        let modes = self.modes.values().flatten().map(|(_, size)| *size);
        let mut sizes = modes.chain(self.built_in.keys().map(|id| Size::Vector(*id)));
        // A value that is no size now is no size with other specialisations either.
        sizes.any(|size| integers(size, constants).is_ok_and(|size| size.iter().any(|n| n.is_specialised)))
    }
}

fn integers(size: Size, constants: &Constants) -> Result<[Integer; 3], ErrorKind> {
    let number = |n: u32| Integer { value: Some(n.into()), is_specialised: false };
    match size {
        Size::Numbers(numbers) => Ok(numbers.map(number)),
        Size::Constants([x, y, z]) => {
            Ok([constants.integer(x)?, constants.integer(y)?, constants.integer(z)?])
        }
        Size::Vector(id) => {
            constants.size(id).ok_or(ErrorKind::IdKind(id, "constant vector of three integers"))
        }
    }
}

fn fits(size: Size, constants: &Constants, device: &Device<'_>) -> Result<(), ErrorKind> {
    let mut invocations = 1u64;
    for (size, max) in integers(size, constants)?.iter().zip(device.workgroup_size) {
        let size = size.value.filter(|size| (1..=u64::from(max)).contains(size));
        let size = size.ok_or(ErrorKind::Range("workgroup size"))?;
        invocations = invocations.saturating_mul(size);
    }
    if invocations <= u64::from(device.workgroup_invocations) {
        Ok(())
    } else {
        Err(ErrorKind::Range("number of invocations of a workgroup"))
    }
}
