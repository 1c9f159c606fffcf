//! `cargo turns`: measures what two VMs compute that take turns for a GPU's memory, as a part of what they compute where there is memory for both.

use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::time::{Duration, Instant};
use tests::broker::Broker;
use tests::clients::many_threads;
use tests::program::cargo::sibling;
use tests::program::{LIMIT, Program};

/// A program of each VM needs more than half of this: it has two lanes with 16 KiB each.
const SMALL: &str = "gpu-memory = \"48KiB\"";

/// The time for which both VMs compute.
const LENGTH: Duration = Duration::from_secs(40);

fn submissions(broker: &Broker) -> Result<u64> {
    let of = |vm| broker.vm(vm)?["used"]["submissions"].as_u64().context("no number of submissions");
    Ok(of("a")? + of("b")?)
}

/// Returns the submissions per second of two VMs below a broker with this setting.
fn rate(threads: &Path, top: &str) -> Result<f64> {
    let broker = Broker::start(top, &[("a", ""), ("b", "")])?;
    let start = |vm| {
        let (bridge, socket) = broker.bridge(vm)?;
        let mut command = many_threads(threads, &socket, "0")?;
        command.arg("--until").arg(broker.path("end"));
        Ok::<_, anyhow::Error>((bridge, Program::start(command)?))
    };
    let programs = [start("a")?, start("b")?];
    let (begun, before) = (Instant::now(), submissions(&broker)?);
    std::thread::sleep(LENGTH);
    let rate = (submissions(&broker)? - before) as f64 / begun.elapsed().as_secs_f64();
    std::fs::write(broker.path("end"), "")?;
    for (_bridge, program) in programs {
        let ended = program.wait(LIMIT).context("a program does not end")?;
        ensure!(ended.status.success(), "{ended:?}\n{}", broker.log());
    }
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
