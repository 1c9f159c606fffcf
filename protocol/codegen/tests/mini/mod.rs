//! The invented registry, for all tests of the generator.

use codegen::Inputs;

/// Inputs of the mini registry; tests damage the copy they get.
pub(crate) fn inputs() -> Inputs {
    Inputs {
        registries: vec![include_str!("registry.xml").to_owned()],
        allowlist: include_str!("allowlist.toml").to_owned(),
        commands: include_str!("commands.toml").to_owned(),
        overrides: include_str!("overrides.toml").to_owned(),
        execution: String::new(),
        replay: include_str!("replay.toml").to_owned(),
        sha256: "0".repeat(64),
    }
}
