//! Debian 13's Venus driver with the patches of `guest-driver-patches` has the same results as the device natively.
//!
//! The other tests of the bridge run with stock drivers only: the effects of the patches have tests of their own.

use anyhow::{Result, ensure};
use std::path::Path;
use tests::clients::{Client, Files, LLAMA, NCNN_SINGLE, Packages, Place, Setup};
use tests::differential::{self, GAPS, Gap};
use tests::packages::{ClientRoot, Device};
use tests::program::{LIMIT, Program};

const PROGRAM: &str = env!("CARGO_BIN_EXE_differential");

#[test]
fn patched_mesa_computes_what_the_device_computes() -> Result<()> {
    let program = Path::new(PROGRAM);
    // The driver comes first, because the processor is then free to build it.
    let client = ClientRoot::patched()?;
    let gaps: Vec<Gap> = GAPS.iter().copied().filter(|gap| gap.patched).collect();
    differential::compare(program, &client, differential::natively(program)?, &gaps, &[]).map(drop)
}

/// Clients one after the other: each takes all processors, for minutes, so these are two. The others run with the stock driver only, in
/// `bridge/programs`.
#[test]
fn clients_give_the_same_results_on_the_patched_driver_as_on_the_host() -> Result<()> {
    const CLIENTS: [Client; 2] = [LLAMA, NCNN_SINGLE];
    let packages = Packages::with(ClientRoot::patched()?)?;
    let setup = Setup::start()?;
    let files = Files::write()?;
    for client in CLIENTS {
        let run = |device| {
            let command = client.command(&Place::Packages(&packages, device), &files)?;
            client.result_of(&Program::start(command)?.wait(LIMIT)?)
        };
        let expected = run(Device::Native)?;
        assert_eq!(run(Device::Venus(setup.socket()))?, expected, "{}", client.name);
        setup.settle()?;
    }
    Ok(())
}

#[test]
fn vulkaninfo_is_complete_and_without_an_error_on_the_patched_driver() -> Result<()> {
    let setup = Setup::start()?;
    let mut command = ClientRoot::patched()?.through_vtest("vulkaninfo", setup.socket())?;
    command.arg("--show-formats");
    let output = Program::start(command)?.wait(LIMIT)?;
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success() && !errors.contains("ERROR"), "{}\n{errors}", output.status);
    ensure!(text.contains("Virtio-GPU Venus (llvmpipe") && text.contains("memoryTypes"), "{text}");
    setup.settle()?;
    Ok(())
}
