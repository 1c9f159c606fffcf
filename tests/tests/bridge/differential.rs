//! Every case of the differential suite has the same result for a guest as natively on the same device. Here the cases run undisturbed; `restart`
//! runs all of them with workers that are replaced or swapped out again and again.

use anyhow::{Result, ensure};
use std::path::Path;
use std::process::Command;
use tests::differential::{self, GAPS};
use tests::packages::{ClientRoot, Suite};
use tests::program::{LIMIT, succeed};

fn every_case(suite: Suite) -> Result<()> {
    let (program, client) = (Path::new(env!("CARGO_BIN_EXE_differential")), ClientRoot::open(suite)?);
    differential::compare(program, &client, differential::natively(program)?, GAPS, &[]).map(drop)
}

fn every_case_of_ubuntu(suite: Suite) -> Result<()> {
    if std::env::var_os("UBUNTU_MIRROR").is_none() {
        println!("skipped: UBUNTU_MIRROR names no archive of Ubuntu's packages");
        return Ok(());
    }
    every_case(suite)
}

#[test]
fn mesa_25_0_computes_what_the_device_computes() -> Result<()> {
    every_case(Suite::Trixie)
}

#[test]
#[ignore = "the oldest and the newest Mesa of Debian are in the gate"]
fn mesa_26_1_computes_what_the_device_computes() -> Result<()> {
    every_case(Suite::Testing)
}

#[test]
#[ignore = "needs UBUNTU_MIRROR, the address of an archive of Ubuntu's packages"]
fn mesa_23_2_computes_what_the_device_computes() -> Result<()> {
    every_case_of_ubuntu(Suite::Jammy)
}

#[test]
#[ignore = "needs UBUNTU_MIRROR, the address of an archive of Ubuntu's packages"]
fn mesa_24_0_computes_what_the_device_computes() -> Result<()> {
    every_case_of_ubuntu(Suite::Noble)
}

#[test]
fn mesa_26_2_computes_what_the_device_computes() -> Result<()> {
    every_case(Suite::Unstable)
}

#[test]
fn the_suite_runs_by_hand_as_its_page_says() -> Result<()> {
    let mut mesa = Command::new(env!("CARGO_BIN_EXE_mesa"));
    mesa.args(["native", env!("CARGO_BIN_EXE_differential"), "features"]);
    let features = succeed(mesa, LIMIT)?;
    ensure!(features.contains("robustBufferAccess"), "{features}");
    Ok(())
}
