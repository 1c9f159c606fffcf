//! Every case of the differential suite gives a guest what the same device gives natively. Here undisturbed, with Mesa 26.1; `restart` runs all cases
//! with Mesa 25.0 and 26.2.

use anyhow::Result;
use std::path::Path;
use tests::differential::{self, GAPS};
use tests::packages::{ClientRoot, Suite};

#[test]
fn mesa_26_1_computes_what_the_device_computes() -> Result<()> {
    let (program, client) =
        (Path::new(env!("CARGO_BIN_EXE_differential")), ClientRoot::open(Suite::Testing)?);
    differential::compare(program, &client, &differential::natively(program)?, GAPS, &[]).map(drop)
}
