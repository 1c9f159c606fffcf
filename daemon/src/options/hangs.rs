//! The options that bound the time of submissions, and the penalty for a submission that runs longer. Their defaults depend on the VM's GPUs.

use config::HangLimits;
use config::time;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The bounds on the time of submissions, as far as they are given.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, clap::Args)]
#[command(next_help_heading = "Time limits")]
pub struct Hangs {
    /// Longest time a submission may run, with ms, s or min
    ///
    /// After that its context is killed [default: 30s; 30min if all GPUs of the VM are software drivers]
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub max_submit_time: Option<Duration>,
    /// Longest time a submission may run while it keeps another context of the VM from the GPU
    ///
    /// Submissions that run at the same time are assumed to share the GPU evenly [default: 10s; no limit of its own if all GPUs of the VM are software drivers]
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub max_submit_time_contended: Option<Duration>,
    /// Number of contexts that one program loses to hung submissions before it is barred from creating more
    ///
    /// Programs of the guest are told apart by their names; four times as many strikes of several programs bar the VM [default: 3; none is ever barred if all GPUs of the VM are software drivers]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub strikes: Option<u32>,
    /// Time for which a program is barred from creating contexts after it has lost --strikes of them
    ///
    /// The time doubles with each further context that the program loses [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub strike_hold: Option<Duration>,
}

impl Hangs {
    /// Returns the limits of a VM. With `software`, all of its GPUs are software drivers.
    #[must_use]
    pub fn limits(&self, software: bool) -> HangLimits {
        let usual = HangLimits::of(software);
        let max_submit_time = self.max_submit_time.unwrap_or(usual.max_submit_time);
        let contended = match software {
            true => self.max_submit_time_contended.unwrap_or(max_submit_time),
            false => self.max_submit_time_contended.unwrap_or(usual.max_submit_time_contended),
        };
        HangLimits {
            max_submit_time,
            max_submit_time_contended: contended.min(max_submit_time),
            strikes: self.strikes.or(usual.strikes),
            strike_hold: self.strike_hold.unwrap_or(usual.strike_hold),
            ..usual
        }
    }
}
