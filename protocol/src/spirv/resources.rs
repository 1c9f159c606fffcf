//! Resources: the variables that stand for descriptors, where they are bound, and which an entry point uses (Vulkan, "Shader Resource
//! Interface").
//!
//! Drivers look up a shader's resources in the pipeline's layout, and do not check whether the layout has them.

use super::layout::error::ErrorKind;
use super::layout::ids::Ids;
use super::layout::opcode as op;
use std::collections::{HashMap, HashSet};

/// The place of a variable: its descriptor set and its binding, as far as it is decorated with them.
type Place = [Option<u32>; 2];

/// The functions of a module, with the resources that they use and the functions that they call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// The places of resources, and the functions that are called, by function; the first is none.
    functions: Vec<(Vec<Place>, Vec<u32>)>,
    /// The functions of the entry points.
    entries: Vec<u32>,
}

impl Resources {
    /// The descriptor sets and bindings of the resources that an entry point uses, by its index.
    ///
    /// # Errors
    ///
    /// There is no such entry point, or one of its resources has no place.
    pub fn used_by(&self, entry_point: usize) -> Result<Vec<(u32, u32)>, ErrorKind> {
        let first = *self.entries.get(entry_point).ok_or(ErrorKind::Missing("entry point"))?;
        let (mut found, mut pending, mut seen) = (Vec::new(), vec![first], HashSet::from([first]));
        while let Some((places, callees)) = pending.pop().and_then(|next| self.functions.get(next as usize)) {
            for place in places {
                let [Some(set), Some(binding)] = *place else {
                    return Err(ErrorKind::Missing("DescriptorSet and Binding of a variable"));
                };
                found.push((set, binding));
            }
            pending.extend(callees.iter().filter(|callee| seen.insert(**callee)));
        }
        Ok(found)
    }
}

/// The resources that are found while a module is read.
#[derive(Debug, Default)]
pub(super) struct Finder {
    places: HashMap<u32, Place>,
    /// Functions, and the resources that they use.
    used: HashSet<(u32, u32)>,
}

impl Finder {
    /// `OpDecorate` with `DescriptorSet` or `Binding`.
    pub(super) fn decorate(&mut self, target: u32, decoration: u32, number: u32) {
        self.places.entry(target).or_default()[usize::from(decoration == op::DECORATION_BINDING)] =
            Some(number);
    }

    /// `OpGroupDecorate`.
    pub(super) fn decorate_as(&mut self, group: u32, targets: &[u32]) {
        if let Some(place) = self.places.get(&group).copied() {
            for target in targets {
                let own = self.places.entry(*target).or_default();
                *own = [place[0].or(own[0]), place[1].or(own[1])];
            }
        }
    }

    /// Notes the resources among the ids that an instruction of a function uses.
    pub(super) fn look(&mut self, ids: &Ids, words: &[u32], function: u32, used: &[u32]) {
        let is_resource = |id: &u32| {
            let found = ids.any(*id).ok().filter(|found| found.function == 0);
            let variable = found.filter(|found| matches!(found.opcode, op::VARIABLE | op::UNTYPED_VARIABLE));
            let class = variable.and_then(|variable| words.get(variable.at as usize + 3));
            class.is_some_and(|class| {
                matches!(*class, op::STORAGE_UNIFORM_CONSTANT | op::STORAGE_UNIFORM | op::STORAGE_BUFFER)
            })
        };
        self.used.extend(used.iter().filter(|id| is_resource(id)).map(|id| (function, *id)));
    }

    /// Returns all that pipelines need, for this number of functions, these calls between them, and these functions of entry points.
    pub(super) fn finish(
        self,
        functions: usize,
        calls: impl Iterator<Item = (u32, u32)>,
        entries: Vec<u32>,
    ) -> Resources {
        let mut all = vec![(Vec::new(), Vec::new()); functions + 1];
        let mut used: Vec<_> = self.used.into_iter().collect();
        used.sort_unstable();
        for (function, variable) in used {
            let place = self.places.get(&variable).copied().unwrap_or_default();
            all[function as usize].0.push(place);
        }
        calls.for_each(|(caller, callee)| all[caller as usize].1.push(callee));
        Resources { functions: all, entries }
    }
}
