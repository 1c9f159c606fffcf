//! The option that bounds the time in which the GPU's driver has to start. `doctor` has it, too.

use config::time;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The bound on the time of the GPU's driver.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, clap::Args)]
#[command(next_help_heading = "Time limits")]
pub struct Starting {
    /// Longest time the GPU's driver may take to start, in a process that tries the GPUs or in a program's new worker
    ///
    /// A host that is slow or busy may need more. After that the daemon does not start, and the new worker is given up
    #[arg(long, value_name = "TIME", default_value = "2min", value_parser = time)]
    pub driver_timeout: Duration,
}
