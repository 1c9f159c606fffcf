//! Pass 2: which core versions and extensions provide a name, and which of those the allow-list selects.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail};

use super::aliases::Aliases;
use crate::inputs::AllowList;
use crate::ir::{Extension, Provider};
use crate::registry::{Block, BlockKind, Registry};

/// Providers by canonical name, and the selection.
#[derive(Debug)]
pub(super) struct Providers {
    of: BTreeMap<String, BTreeSet<Provider>>,
    selected_blocks: BTreeSet<String>,
    selected: BTreeSet<Provider>,
    /// The selected extensions, by number.
    pub extensions: Vec<Extension>,
}

impl Providers {
    /// Reads all blocks of the registry and checks the allow-list's names against them.
    pub(super) fn new(registry: &Registry, aliases: &Aliases, allow: &AllowList) -> Result<Self> {
        let mut providers = Self {
            of: BTreeMap::new(),
            selected_blocks: BTreeSet::new(),
            selected: BTreeSet::new(),
            extensions: Vec::new(),
        };
        let mut wanted: BTreeSet<&str> = allow.extension_names().collect();
        for block in &registry.blocks {
            let provider = provider(block);
            for name in block.types.iter().chain(&block.commands) {
                let canonical = aliases.canonical(name).to_owned();
                providers.of.entry(canonical).or_default().insert(provider.clone());
            }
            let is_selected = match provider {
                Provider::Core { major, minor } => allow.core.contains(&format!("{major}.{minor}")),
                Provider::Extension { .. } => wanted.remove(block.name.as_str()),
            };
            if is_selected {
                providers.selected_blocks.insert(block.name.clone());
                providers.selected.insert(provider);
                providers.extensions.extend(extension(block));
            }
        }
        if !wanted.is_empty() {
            bail!("allowlist.toml names extensions that the registry lacks: {wanted:?}");
        }
        providers.extensions.sort();
        Ok(providers)
    }

    /// All providers of a canonical name.
    pub(super) fn of(&self, canonical: &str) -> Vec<Provider> {
        self.of.get(canonical).into_iter().flatten().cloned().collect()
    }

    /// Returns whether a selected block provides this name.
    pub(super) fn is_selected(&self, canonical: &str) -> bool {
        self.of.get(canonical).is_some_and(|of| of.iter().any(|p| self.selected.contains(p)))
    }

    /// Returns whether a value that this block adds to a type is selected; values of the type itself always are.
    pub(super) fn selects_value(&self, block: Option<&str>) -> bool {
        block.is_none_or(|block| self.selected_blocks.contains(block))
    }
}

fn provider(block: &Block) -> Provider {
    match block.kind {
        BlockKind::Core(major, minor) => Provider::Core { major, minor },
        BlockKind::Extension { number, .. } => Provider::Extension { number, name: block.name.clone() },
    }
}

fn extension(block: &Block) -> Option<Extension> {
    let BlockKind::Extension { number, spec_version, promoted_to } = &block.kind else { return None };
    let version = promoted_to.as_deref().and_then(|to| to.strip_prefix("VK_VERSION_"));
    let promoted_to = version.and_then(|v| {
        let (major, minor) = v.split_once('_')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    });
    Some(Extension { number: *number, name: block.name.clone(), spec_version: *spec_version, promoted_to })
}
