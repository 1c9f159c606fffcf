//! Registry and inputs to IR, in named passes.
//!
//! 1. `aliases`: names that mean the same.
//! 2. `providers`: core versions and extensions behind a name.
//! 3. `members`: declarations to typed members.
//! 4. `select`: what the allow-listed commands reach.
//! 5. `values`: enumerants.
//! 6. `usage`: directions, chains, partial encoding, lifetimes.
//! 7. `layout`: wire order, output files, final checks.
//!
//! It knows the Venus wire rules and no Rust syntax beyond the spelling of names (`names`).

mod aliases;
mod layout;
mod lengths;
mod members;
mod names;
mod providers;
mod select;
mod usage;
mod values;

use std::collections::BTreeMap;

use anyhow::Result;

use crate::execution::{self, Execution};
use crate::inputs::{AllowList, Numbers};
use crate::ir::{Protocol, Source, Value};
use crate::overrides::{self, Overrides};
use crate::registry::Registry;
use crate::replay::{self, Classes};

/// The state that the passes share.
struct Resolver<'r> {
    registry: &'r Registry,
    allow: &'r AllowList,
    numbers: &'r Numbers,
    overrides: &'r Overrides,
    aliases: aliases::Aliases,
    providers: providers::Providers,
    structure_types: Vec<Value>,
}

/// Runs all passes. `sha256` is recorded in the result.
pub fn resolve(
    registry: &Registry,
    allow: &AllowList,
    numbers: &Numbers,
    overrides: &Overrides,
    execution: &Execution,
    classes: &Classes,
    sha256: &str,
) -> Result<Protocol> {
    let aliases = aliases::Aliases::new(registry);
    let providers = providers::Providers::new(registry, &aliases, allow)?;
    let mut resolver =
        Resolver { registry, allow, numbers, overrides, aliases, providers, structure_types: Vec::new() };
    resolver.structure_types = resolver.values("VkStructureType")?;
    let mut protocol = Protocol {
        source: Source { header_version: registry.header_version, sha256: sha256.to_owned() },
        groups: Vec::new(),
        extensions: resolver.providers.extensions.clone(),
        enums: BTreeMap::new(),
        flags: BTreeMap::new(),
        handles: BTreeMap::new(),
        unions: BTreeMap::new(),
        structs: BTreeMap::new(),
        commands: BTreeMap::new(),
        formats: BTreeMap::new(),
        command_numbers: numbers.numbers.iter().map(|(name, &number)| (number, name.clone())).collect(),
        capabilities_with: overrides.capabilities_with(),
    };
    protocol.command_numbers.sort();
    resolver.add_commands(&mut protocol)?;
    resolver.add_types(&mut protocol)?;
    resolver.add_formats(&mut protocol);
    usage::directions(&mut protocol);
    usage::chains(&mut protocol);
    usage::uses(&mut protocol);
    usage::partials(&mut protocol)?;
    usage::lifetimes(&mut protocol);
    overrides::apply(overrides, &mut protocol)?;
    execution::apply(execution, &mut protocol)?;
    replay::apply(classes, &mut protocol)?;
    layout::order(&mut protocol);
    layout::modules(&mut protocol);
    layout::check(&protocol)?;
    Ok(protocol)
}
