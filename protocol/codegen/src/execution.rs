//! The list of commands whose execution is written by hand, wholly or in part: `inputs/execution.toml`, one row and one reason each.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::ir::Protocol;

/// Module to command to reason.
type Rows = BTreeMap<String, BTreeMap<String, String>>;

/// `inputs/execution.toml`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Execution {
    /// Commands that a hand-written function executes.
    pub by_hand: Rows,
    /// Commands that a hand-written function checks before their parameters are lowered.
    pub checked: Rows,
    /// Commands before which a hand-written function runs.
    pub before: Rows,
    /// Commands after which a hand-written function runs; it gets their answer and returns the final answer.
    pub after: Rows,
    /// Commands after which a hand-written function runs if they fail.
    pub failed: Rows,
    /// Commands that a hand-written function executes and records.
    pub recorded: Rows,
}

/// Tells each command its rows.
///
/// # Errors
/// A row names no selected command.
pub fn apply(execution: &Execution, protocol: &mut Protocol) -> Result<()> {
    let Execution { by_hand, checked, before, after, failed, recorded } = execution;
    let mut commands = |rows: &Rows, tell: fn(&mut crate::ir::Execution, String)| -> Result<()> {
        for (module, commands) in rows {
            for command in commands.keys() {
                let found = protocol.commands.get_mut(command);
                let found =
                    found.with_context(|| format!("execution.toml: allowlist.toml selects no {command}"))?;
                tell(&mut found.execution, module.clone());
            }
        }
        Ok(())
    };
    commands(by_hand, |execution, module| execution.by_hand = Some(module))?;
    commands(checked, |execution, module| execution.checked = Some(module))?;
    commands(before, |execution, module| execution.before = Some(module))?;
    commands(after, |execution, module| execution.after = Some(module))?;
    commands(failed, |execution, module| execution.failed = Some(module))?;
    commands(recorded, |execution, module| {
        (execution.by_hand, execution.is_recorded) = (Some(module), true);
    })
}
