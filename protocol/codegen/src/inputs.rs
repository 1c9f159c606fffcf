//! The hand-written inputs: allow-list, command numbers, the registry's pin.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// `inputs/allowlist.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AllowList {
    /// Core versions (`1.2`).
    pub core: Vec<String>,
    /// Extensions, grouped by the reason for having them.
    pub extensions: Vec<ExtensionRow>,
    /// Output files and their commands.
    pub groups: Vec<GroupRow>,
}

/// Extensions with a common reason.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExtensionRow {
    /// The reason for which the extensions are decodable; for the reader of the list.
    pub reason: String,
    /// Registry names.
    pub names: Vec<String>,
}

/// One output file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupRow {
    /// Module name.
    pub name: String,
    /// First line of the file.
    pub doc: String,
    /// The commands of the group are executed only where the operator offers graphics queues.
    #[serde(default)]
    pub graphics: bool,
    /// Vulkan command names.
    pub commands: Vec<String>,
}

/// `inputs/commands.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Numbers {
    /// Command name to `VkCommandTypeEXT` value.
    pub numbers: BTreeMap<String, i32>,
}

impl AllowList {
    /// All extension names.
    pub fn extension_names(&self) -> impl Iterator<Item = &str> {
        self.extensions.iter().flat_map(|row| row.names.iter().map(String::as_str))
    }
}

/// Parses one input file; `name` is for messages.
pub fn parse<T: DeserializeOwned>(name: &str, text: &str) -> Result<T> {
    toml::from_str(text).with_context(|| format!("parsing inputs/{name}"))
}
