//! Generator of the Venus codec: Vulkan registry and `inputs/` in, Rust under `generated/` out.
//!
//! Three stages, each of which knows only its neighbour: `registry` (XML to a typed model, nothing of Venus), `resolve` (model and `inputs` to `ir`,
//! all rules of the wire), `emit` (`ir` to Rust, no rules). `target` compares or writes the files.

#![forbid(unsafe_code)]

pub mod emit;
pub mod execution;
pub mod inputs;
pub mod ir;
pub mod overrides;
pub mod registry;
pub mod replay;
pub mod resolve;
pub mod target;

use anyhow::{Context, Result};

/// Texts of all inputs, so that tests can bring their own.
#[derive(Debug)]
pub struct Inputs {
    /// Registry files, merged in this order.
    pub registries: Vec<String>,
    /// `allowlist.toml`.
    pub allowlist: String,
    /// `commands.toml`.
    pub commands: String,
    /// `overrides.toml`.
    pub overrides: String,
    /// `execution.toml`.
    pub execution: String,
    /// `replay.toml`.
    pub replay: String,
    /// Digest of the first registry file.
    pub sha256: String,
}

impl Inputs {
    /// All stages but the last: inputs to IR.
    pub fn resolve(&self) -> Result<ir::Protocol> {
        let mut registry = registry::Registry::default();
        for (index, xml) in self.registries.iter().enumerate() {
            registry.add(xml).with_context(|| format!("registry file {index}"))?;
        }
        resolve::resolve(
            &registry,
            &inputs::parse("allowlist.toml", &self.allowlist)?,
            &inputs::parse("commands.toml", &self.commands)?,
            &inputs::parse("overrides.toml", &self.overrides)?,
            &inputs::parse("execution.toml", &self.execution)?,
            &inputs::parse("replay.toml", &self.replay)?,
            &self.sha256,
        )
    }
}
