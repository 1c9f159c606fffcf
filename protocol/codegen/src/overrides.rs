//! Hand exceptions to the registry: `inputs/overrides.toml`, one row and one reason each.
//!
//! No other file of the generator compares names of single structs or members.

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use std::collections::BTreeMap;

use crate::ir::{Condition, Protocol, Type};

/// `inputs/overrides.toml`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Overrides {
    /// Pointers that Vulkan ignores unless a sibling says otherwise.
    #[serde(default)]
    pub conditions: Vec<ConditionRow>,
    /// Chain structs that are left out although a selected extension provides them.
    #[serde(default)]
    pub excluded: Vec<ExcludedRow>,
    /// Capabilities of SPIR-V that modules may declare although the registry only allows others.
    #[serde(default)]
    pub capabilities: Vec<CapabilityRow>,
}

/// One capability that comes with another one.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CapabilityRow {
    /// Name of the capability.
    pub capability: String,
    /// Name of the other capability: a part of a device that enables it also enables this capability.
    pub with: String,
    /// The reason for which devices take both.
    pub reason: String,
}

/// One struct that is not decodable.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExcludedRow {
    /// Vulkan struct name.
    #[serde(rename = "struct")]
    pub name: String,
    /// The reason for which it is left out, and for which no guest misses it.
    pub reason: String,
}

/// One conditional pointer.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConditionRow {
    /// Vulkan struct name.
    #[serde(rename = "struct")]
    pub in_struct: String,
    /// Vulkan member name.
    pub member: String,
    /// The condition.
    pub only_if: OnlyIf,
    /// The reason for which the registry's own markup does not suffice.
    pub reason: String,
}

/// A condition on a sibling member; exactly one of `equals` and `clear` is given.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OnlyIf {
    /// Vulkan name of the sibling.
    pub member: String,
    /// The enumerant it must equal.
    pub equals: Option<String>,
    /// The flag that must be clear.
    pub clear: Option<String>,
}

impl Overrides {
    /// Returns whether a chain struct is left out.
    pub fn excludes(&self, name: &str) -> bool {
        self.excluded.iter().any(|row| row.name == name)
    }

    /// Capabilities, each with another one that it comes with.
    pub fn capabilities_with(&self) -> BTreeMap<String, String> {
        self.capabilities.iter().map(|row| (row.capability.clone(), row.with.clone())).collect()
    }
}

/// Applies every condition; a row whose struct is not selected is skipped, any other mismatch is an error.
pub fn apply(overrides: &Overrides, protocol: &mut Protocol) -> Result<()> {
    for row in &overrides.conditions {
        let Some(found) = protocol.structs.get(&row.in_struct) else { continue };
        let place = || format!("overrides.toml: {}.{}", row.in_struct, row.member);
        let sibling = found.members.iter().find(|m| m.vk == row.only_if.member).with_context(place)?;
        let condition = condition(protocol, &sibling.ty, &sibling.rust, &row.only_if).with_context(place)?;
        let members = &mut protocol.structs.get_mut(&row.in_struct).with_context(place)?.members;
        let member = members.iter_mut().find(|m| m.vk == row.member).with_context(place)?;
        member.condition = Some(condition);
        member.optional = true;
    }
    Ok(())
}

fn condition(protocol: &Protocol, ty: &Type, sibling: &str, only_if: &OnlyIf) -> Result<Condition> {
    let (values, vk) = match (ty, &only_if.equals, &only_if.clear) {
        (Type::Enum(name), Some(vk), None) => (&protocol.enums[name].values, vk),
        (Type::Flags(name), None, Some(vk)) => (&protocol.flags[name].values, vk),
        _ => bail!("an enumeration takes `equals`, a flag type `clear`"),
    };
    let value = values.iter().find(|v| v.vk == *vk).with_context(|| format!("no value {vk}"))?;
    let (member, constant) = (sibling.to_owned(), value.rust.clone());
    Ok(match ty {
        Type::Enum(_) => Condition::Equals { member, constant },
        _ => Condition::FlagClear { member, constant },
    })
}
