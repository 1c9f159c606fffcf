//! Programs whose workers are replaced again and again, at any moment, or that are swapped out as often, have the same results as undisturbed.
//!
//! The whole differential suite is run as often as `VHOST_USER_VULKAN_HAND_OVERS` needs, and the pauses of its programs are printed:
//! `VHOST_USER_VULKAN_HAND_OVERS=500 cargo test --test bridge -- --ignored --nocapture restart::every_case_of_mesa_25_0`.
//!
//! The other clients are too slow for this on a software renderer, which compiles everything anew in each worker. They can be run by hand:
//! `VHOST_USER_VULKAN_OPTIONS="--restart-every 10000" cargo test --test bridge clients`.

use anyhow::{Context, Result, bail, ensure};
use std::path::Path;
use std::process::Command;
use tests::clients::Setup;
use tests::daemon::Daemon;
use tests::differential::{self, GAPS};
use tests::packages::{ClientRoot, Device, Suite};
use tests::program::variable;
use tests::program::{LIMIT, succeed};

const DIFFERENTIAL: &str = env!("CARGO_BIN_EXE_differential");
const THREADS: &str = env!("CARGO_BIN_EXE_many_threads");

/// A hand-over that contexts suffer again and again: the daemon's option for it, and the daemon's line when it is done.
struct Disturbance {
    option: &'static str,
    done: &'static str,
}

const RESTARTS: Disturbance = Disturbance { option: "--restart-every", done: "has a new worker" };
const SWAPS: Disturbance = Disturbance { option: "--swap-every", done: "is swapped out" };

impl Disturbance {
    /// Returns the daemon's options for one every `milliseconds` on average.
    fn options(&self, milliseconds: &'static str) -> [&'static str; 4] {
        [self.option, milliseconds, "--max-log-lines", "100000"]
    }

    /// Demands that a log reports at least `least` hand-overs, and no failed one, and prints how long programs were paused. Returns the number of
    /// hand-overs.
    fn count(&self, log: &str, least: usize) -> Result<usize> {
        let failing = ["stays with its worker", "is lost"];
        let failed = log.lines().filter(|line| failing.iter().any(|words| line.contains(words)));
        let failed: Vec<_> = failed.collect();
        ensure!(failed.is_empty(), "{}", failed.join("\n"));
        let done = log.lines().filter(|line| line.contains(self.done));
        let mut pauses = done.map(pause).collect::<Result<Vec<_>>>()?;
        pauses.sort_by(f64::total_cmp);
        let count = pauses.len();
        ensure!(count >= least, "{}: {count} are too few to show anything\n{log}", self.option);
        let [middle, most] = [count / 2, count - 1].map(|at| pauses[at]);
        println!("{}: {count}, paused for {middle} ms (median) and at most {most} ms", self.option);
        Ok(count)
    }

    /// Every case of the differential suite, on the driver of `suite`, once, or until there were as many hand-overs as are wanted.
    fn every_case(&self, suite: Suite) -> Result<()> {
        let (program, client) = (Path::new(DIFFERENTIAL), ClientRoot::open(suite)?);
        let native = differential::natively(program)?;
        let wanted = variable::number("VHOST_USER_VULKAN_HAND_OVERS")?.unwrap_or(1);
        let mut count: usize = 0;
        loop {
            let log = differential::compare(program, &client, native, GAPS, &self.options("150"))?;
            count += self.count(&log, 50)?;
            if count >= wanted {
                return Ok(());
            }
        }
    }

    /// Several contexts, each with several rings, of these Mesas, with and without feedback of fences in memory.
    fn many_threads(&self, suites: &[Suite]) -> Result<()> {
        let setup = Setup::on(Daemon::start_with(&self.options("100"))?)?;
        for suite in suites.iter().copied() {
            for feedback in [true, false] {
                let arguments = ["--instances", "2", "--devices", "2", "--lanes", "3", "--rounds", "20"];
                let client = ClientRoot::open(suite)?;
                let mut command: Command = client.own(Path::new(THREADS), Device::Venus(setup.socket()))?;
                command.args(arguments);
                if !feedback {
                    command.env("VN_PERF", "no_fence_feedback,no_semaphore_feedback");
                }
                let said = succeed(command, LIMIT)
                    .with_context(|| format!("{suite:?}\n{}", setup.daemon().log()))?;
                let words = 2 * 2 * 3 * 20 * 4096;
                ensure!(said.contains(&format!("checked {words} words")), "{suite:?}: {said}");
            }
        }
        // One for each program: how many more there are depends on the machine's speed.
        self.count(&setup.daemon().log(), 2 * suites.len())?;
        setup.settle().map(drop)
    }
}

/// Returns the pause of a program, in milliseconds, from a line of the daemon's log.
fn pause(line: &str) -> Result<f64> {
    let (_, text) = line.split_once("paused for ").with_context(|| line.to_owned())?;
    let (number, unit) = text.split_once(' ').with_context(|| line.to_owned())?;
    let milliseconds = match unit.split(',').next() {
        Some("ms") => 1.0,
        Some("s") => 1000.0,
        _ => bail!("no time: {line}"),
    };
    Ok(number.parse::<f64>()? * milliseconds)
}

#[test]
#[ignore = "the whole differential suite once more, which takes minutes"]
fn every_case_of_mesa_25_0_computes_the_same_with_worker_after_worker() -> Result<()> {
    RESTARTS.every_case(Suite::Trixie)
}

#[test]
#[ignore = "the whole differential suite once more, which takes minutes"]
fn every_case_of_mesa_26_2_computes_the_same_swapped_out_again_and_again() -> Result<()> {
    SWAPS.every_case(Suite::Unstable)
}

#[test]
fn programs_of_many_threads_compute_the_same_with_worker_after_worker() -> Result<()> {
    RESTARTS.many_threads(&Suite::ALL)
}

#[test]
fn programs_of_many_threads_compute_the_same_swapped_out_again_and_again() -> Result<()> {
    SWAPS.many_threads(&[Suite::Testing])
}
