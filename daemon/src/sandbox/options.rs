//! The confinement that an operator can choose.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// `--sandbox`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
pub enum SandboxMode {
    /// Every part of the sandbox is in force, or the daemon does not start.
    #[default]
    Strict,
    /// Workers get the parts that the system offers; the daemon warns once of the missing parts.
    Degraded,
    /// Workers are not confined.
    None,
}

/// `--seccomp`: the fate of a process that makes a system call outside of its list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
pub enum SeccompMode {
    /// The process is killed.
    #[default]
    Kill,
    /// The call is named in the log and goes on, to learn the needs of a new driver. This protects nothing.
    Log,
    /// There is no list.
    Off,
}

/// The whole choice, passed down from process to process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Namespaces, root, rights.
    pub sandbox: SandboxMode,
    /// System calls.
    pub seccomp: SeccompMode,
}

impl Options {
    /// Returns the command line from which these options are parsed.
    pub fn arguments(&self) -> Vec<String> {
        let (sandbox, seccomp) = (name_of(self.sandbox), name_of(self.seccomp));
        vec![format!("--sandbox={sandbox}"), format!("--seccomp={seccomp}")]
    }
}

/// Returns how the command line spells a value.
pub(super) fn name_of(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}
