//! The class of each command in a journal, which says what a successor does with it: `inputs/replay.toml`, rows with one reason each.

use std::collections::BTreeSet;

use anyhow::{Result, bail, ensure};
use serde::Deserialize;

use crate::ir::{Command, Level, Protocol, Replay};

/// `inputs/replay.toml`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Classes {
    /// Commands that a successor executes again.
    pub again: Vec<Row>,
    /// Commands that signal semaphores: a successor executes them again.
    pub signals: Vec<Row>,
    /// Commands that a successor submits again without command buffers.
    pub submits: Vec<Row>,
    /// Commands that a successor passes over.
    pub nothing: Vec<Row>,
    /// Commands that no successor can do again.
    pub breaks: Vec<Row>,
}

/// Commands with a common reason.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// The reason for their class; for the reader of the list.
    pub reason: String,
    /// Vulkan names.
    pub commands: Vec<String>,
}

/// Tells each command its class.
///
/// # Errors
/// A row names no selected command or one that needs none, or a command has no row or two.
pub fn apply(classes: &Classes, protocol: &mut Protocol) -> Result<()> {
    let Classes { again, signals, submits, nothing, breaks } = classes;
    let mut classified = BTreeSet::new();
    let of_classes = [
        (again, Replay::Again),
        (signals, Replay::Signals),
        (submits, Replay::Submits),
        (nothing, Replay::Nothing),
        (breaks, Replay::Breaks),
    ];
    for (rows, class) in of_classes {
        for name in rows.iter().flat_map(|row| &row.commands) {
            let Some(command) = protocol.commands.get_mut(name) else {
                bail!("replay.toml: allowlist.toml selects no {name}");
            };
            ensure!(!is_only_recorded(command), "replay.toml: {name} is only recorded, and needs no row");
            ensure!(classified.insert(name), "replay.toml: {name} has two rows");
            command.replay = class;
        }
    }
    for (name, command) in &mut protocol.commands {
        match is_only_recorded(command) {
            true => command.replay = Replay::Again,
            false => ensure!(classified.contains(name), "replay.toml: {name} has no row"),
        }
    }
    Ok(())
}

/// Returns whether a command goes into a recording and does nothing else.
pub fn is_only_recorded(command: &Command) -> bool {
    let is_by_hand = command.execution.by_hand.is_some() && !command.execution.is_recorded;
    command.level == Level::CommandBuffer && !is_by_hand
}
