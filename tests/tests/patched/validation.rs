//! Tests that the calls that the patched driver and the worker make for a valid client's commands are valid Vulkan, where the patches change them.

use anyhow::{Result, ensure};
use std::path::Path;
use tests::packages::{ClientRoot, Device};
use tests::validation::{findings, findings_in_differential};

/// Small allocations are bound at other offsets than the program's.
#[test]
fn small_memory_is_bound_where_it_may_be() -> Result<()> {
    let program = Path::new(env!("CARGO_BIN_EXE_small_memory"));
    let client = ClientRoot::patched()?;
    let found = findings(|socket| {
        let mut command = client.own(program, Device::Venus(socket))?;
        command.arg("1000");
        Ok(command)
    })?;
    ensure!(found.is_empty(), "{found:#?}");
    Ok(())
}

#[test]
#[ignore = "the whole differential suite once more, which takes minutes"]
fn differential_suite_is_valid_on_the_patched_driver() -> Result<()> {
    let program = Path::new(env!("CARGO_BIN_EXE_differential"));
    let found = findings_in_differential(program, &ClientRoot::patched()?)?;
    ensure!(found.is_empty(), "{found:#?}");
    Ok(())
}
