//! Programs of two VMs that take turns with a GPU's memory, because the GPU has not enough memory for both.

use super::many_threads;
use crate::bridge::Bridge;
use crate::broker::Broker;
use crate::program::{LIMIT, Program};
use anyhow::{Context as _, Result, ensure};
use std::fs;
use std::path::Path;

/// The GPU memory in the configuration. A program of each VM needs more than half of it: the program has two lanes with 16 KiB each.
pub const SMALL: &str = "gpu-memory = \"48KiB\"";

/// Starts a broker with these settings and two VMs, `a` and `b`. Each may have all memory of the GPU.
///
/// # Errors
/// The broker does not start.
pub fn two(top: &str) -> Result<Broker> {
    Broker::start(top, &[("a", ""), ("b", "")])
}

/// Starts a program of a VM, which computes until [`end_well`]. Its executable is the program `many_threads` of this crate.
///
/// # Errors
/// The packages that it needs cannot be had.
pub fn computing(executable: &Path, broker: &Broker, vm: &str) -> Result<(Bridge, Program)> {
    let (bridge, socket) = broker.bridge(vm)?;
    let mut command = many_threads(executable, &socket, "0")?;
    command.arg("--until").arg(broker.path("end"));
    Ok((bridge, Program::start(command)?))
}

/// Returns the number of submissions that a VM has made.
#[must_use]
pub fn submissions(broker: &Broker, vm: &str) -> u64 {
    broker.vm(vm).ok().and_then(|vm| vm["used"]["submissions"].as_u64()).unwrap_or(0)
}

/// Has the programs end. All results that they computed were right.
///
/// # Errors
/// A program fails, or does not end.
pub fn end_well(broker: &Broker, programs: impl IntoIterator<Item = Program>) -> Result<()> {
    fs::write(broker.path("end"), "")?;
    for program in programs {
        let ended = program.wait(LIMIT).context("the program does not end")?;
        ensure!(ended.status.success(), "{ended:?}\n{}", broker.log());
    }
    Ok(())
}
