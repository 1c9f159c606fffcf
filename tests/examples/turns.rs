//! `cargo turns`: measures what two VMs compute that take turns for a GPU's memory, as a part of what they compute where there is memory for both.

use anyhow::{Result, ensure};
use std::path::Path;
use std::time::{Duration, Instant};
use tests::broker::Broker;
use tests::clients::turns::{SMALL, computing, end_well, submissions, two};
use tests::daemon::eventually;
use tests::guest::PATIENCE;
use tests::program::cargo::sibling;

/// The length of a measurement, in which the programs of both VMs submit.
const LENGTH: Duration = Duration::from_secs(40);

fn of_both(broker: &Broker) -> u64 {
    submissions(broker, "a") + submissions(broker, "b")
}

/// Returns the submissions per second of two VMs below a broker with these settings.
fn rate(threads: &Path, top: &str) -> Result<f64> {
    let broker = two(top)?;
    let (_first, one) = computing(threads, &broker, "a")?;
    let (_second, other) = computing(threads, &broker, "b")?;
    let have_begun = || ["a", "b"].iter().all(|vm| submissions(&broker, vm) > 0);
    ensure!(eventually(PATIENCE, have_begun), "not both have begun\n{}", broker.log());
    let (begun, before) = (Instant::now(), of_both(&broker));
    std::thread::sleep(LENGTH);
    let rate = (of_both(&broker) - before) as f64 / begun.elapsed().as_secs_f64();
    end_well(&broker, [one, other])?;
    Ok(rate)
}

fn main() -> Result<()> {
    let threads = sibling("many_threads")?;
    let (alone, by_turns) = (rate(&threads, "")?, rate(&threads, SMALL)?);
    println!(
        "submissions per second: {alone:.1} with memory for both, {by_turns:.1} in turns, {:.3} of it",
        by_turns / alone
    );
    Ok(())
}
