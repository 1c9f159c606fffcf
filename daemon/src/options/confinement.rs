//! The options of the sandbox, which a device process hands down to its children.

use super::values::words;
use crate::sandbox::{self, SandboxMode, SeccompMode};
use serde::{Deserialize, Serialize};

/// The confinement of processes that a guest may take over.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, clap::Args)]
pub struct Confinement {
    /// Sandbox of the workers
    ///
    /// `strict` refuses to serve if a part of it is missing, `degraded` does without the parts that this system lacks, `none` confines nothing
    #[arg(long, help_heading = "Sandbox and protection", value_name = "MODE", default_value = "strict", value_parser = words::<SandboxMode>())]
    pub sandbox: SandboxMode,
    /// Action that is taken when a worker makes a system call that is not on its list
    ///
    /// `log` logs the call and allows it
    #[arg(long, help_heading = "Sandbox and protection", value_name = "ACTION", default_value = "kill", value_parser = words::<SeccompMode>())]
    pub seccomp: SeccompMode,
}

impl From<Confinement> for sandbox::Options {
    fn from(Confinement { sandbox, seccomp }: Confinement) -> Self {
        Self { sandbox, seccomp }
    }
}
