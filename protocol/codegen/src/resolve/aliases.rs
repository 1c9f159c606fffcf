//! Pass 1: the names that mean the same entity.

use std::collections::{BTreeMap, BTreeSet};

use crate::registry::{CommandDef, Registry, TypeDef};

/// Canonical names and their aliases, of types and commands.
#[derive(Debug)]
pub(super) struct Aliases {
    canonical: BTreeMap<String, String>,
    others: BTreeMap<String, BTreeSet<String>>,
}

impl Aliases {
    /// Follows every alias of the registry, and counts `FlagBits` as aliases of their `Flags`.
    pub(super) fn new(registry: &Registry) -> Self {
        let mut direct: BTreeMap<&str, &str> = BTreeMap::new();
        for (name, def) in &registry.types {
            match def {
                TypeDef::Alias(target) => direct.insert(name, target),
                TypeDef::Bitmask { bits: Some(bits), .. } => direct.insert(bits, name),
                _ => None,
            };
        }
        for (name, def) in &registry.commands {
            if let CommandDef::Alias(target) = def {
                direct.insert(name, target);
            }
        }
        let mut aliases = Self { canonical: BTreeMap::new(), others: BTreeMap::new() };
        for &name in direct.keys() {
            let mut end = name;
            while let Some(next) = direct.get(end) {
                end = next;
            }
            aliases.canonical.insert(name.to_owned(), end.to_owned());
            aliases.others.entry(end.to_owned()).or_default().insert(name.to_owned());
        }
        aliases
    }

    /// The name that remains when all aliases are followed.
    pub(super) fn canonical<'n>(&'n self, name: &'n str) -> &'n str {
        self.canonical.get(name).map_or(name, String::as_str)
    }

    /// Every other name of a canonical name, sorted.
    pub(super) fn others(&self, canonical: &str) -> Vec<String> {
        self.others.get(canonical).into_iter().flatten().cloned().collect()
    }
}
