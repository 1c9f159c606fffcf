//! Every case of the differential suite gives a guest what the same device gives natively, for each Mesa.

use anyhow::{Result, anyhow};
use std::path::Path;
use std::sync::LazyLock;
use tests::differential::{self, GAPS, Outcomes};
use tests::packages::{ClientRoot, Suite};

const PROGRAM: &str = env!("CARGO_BIN_EXE_differential");

/// The outcomes on the host's driver, for the guests of all suites.
fn native() -> Result<&'static Outcomes> {
    static OUTCOMES: LazyLock<Result<Outcomes>> =
        LazyLock::new(|| differential::natively(Path::new(PROGRAM)));
    OUTCOMES.as_ref().map_err(|error| anyhow!("natively: {error:#}"))
}

fn compare(suite: Suite) -> Result<()> {
    differential::compare(Path::new(PROGRAM), &ClientRoot::open(suite)?, native()?, GAPS)
}

#[test]
fn mesa_26_1_computes_what_the_device_computes() -> Result<()> {
    compare(Suite::Testing)
}

#[test]
fn mesa_25_0_computes_what_the_device_computes() -> Result<()> {
    compare(Suite::Trixie)
}

#[test]
fn mesa_26_2_computes_what_the_device_computes() -> Result<()> {
    compare(Suite::Unstable)
}
