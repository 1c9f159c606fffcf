//! Builds all fuzz targets and runs each for 6 s, or for `FUZZ_SECONDS`: the stage `fuzz` of `cargo acceptance`.

use anyhow::Result;
use std::process::ExitCode;
use tests::fuzzing;

fn main() -> Result<ExitCode> {
    let (passed, failed) = fuzzing::run()?;
    // The test harness's words, which `cargo acceptance` counts.
    println!("test result: {}. {passed} passed; {failed} failed", if failed == 0 { "ok" } else { "FAILED" });
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
