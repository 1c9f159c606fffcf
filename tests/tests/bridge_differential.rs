//! Every case of the differential suite gives a guest what the same device gives natively, for each Mesa.

use anyhow::{Result, anyhow, ensure};
use std::path::Path;
use std::sync::LazyLock;
use tests::clients::Setup;
use tests::daemon::Daemon;
use tests::differential::{GAPS, Outcomes, differences, run, shaders, stale, tally};
use tests::packages::{ClientRoot, Device, Suite};

const PROGRAM: &str = env!("CARGO_BIN_EXE_differential");

/// The outcomes on the host's driver, for the guests of all suites.
fn native() -> Result<&'static Outcomes> {
    static OUTCOMES: LazyLock<Result<Outcomes>> = LazyLock::new(|| {
        let client = ClientRoot::open(Suite::Testing)?;
        run(|| client.own(Path::new(PROGRAM), Device::Native), &shaders(Path::new(PROGRAM))?, &[])
    });
    OUTCOMES.as_ref().map_err(|error| anyhow!("natively: {error:#}"))
}

fn compare(suite: Suite) -> Result<()> {
    let shaders = shaders(Path::new(PROGRAM))?;
    let expected = native()?;
    // Guests see heaps of the size of their quota, by default less than the machine has.
    let setup = Setup::on(Daemon::start_with(&["--host-memory", "1024GiB"])?)?;
    let client = ClientRoot::open(suite)?;
    let found = run(|| client.own(Path::new(PROGRAM), Device::Venus(setup.socket())), &shaders, &[])?;
    println!("natively {:?} (ok, skipped, other), in the guest {:?}", tally(expected), tally(&found));
    let differing = differences(expected, &found, suite, GAPS);
    ensure!(differing.is_empty(), "{suite:?}:\n{}", differing.join("\n"));
    // Whoever releases something that is in use, as far as the daemon can tell, has broken valid usage, which none of the cases does.
    ensure!(
        !setup.daemon().log().contains("waited for 1 s for a submission"),
        "{suite:?}:\n{}",
        setup.daemon().log()
    );
    let stale = stale(&found, suite, GAPS);
    ensure!(stale.is_empty(), "not missing any more: {stale:?}");
    Ok(())
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
