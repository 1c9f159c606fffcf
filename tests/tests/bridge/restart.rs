//! Programs whose workers are replaced again and again, at any moment, or that are swapped out as often, have the same results as undisturbed.
//!
//! The whole differential suite is run as often as `VHOST_USER_VULKAN_HAND_OVERS` needs, and the pauses of its programs are printed:
//! `VHOST_USER_VULKAN_HAND_OVERS=500 cargo test --test bridge -- --ignored --nocapture restart::every_case_of_mesa_25_0`.
//!
//! The other clients are too slow for this on a software renderer, which compiles everything anew in each worker. They can be run by hand:
//! `VHOST_USER_VULKAN_OPTIONS="--restart-every 10000" cargo test --test bridge clients`.

use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::process::Command;
use tests::clients::Setup;
use tests::daemon::Daemon;
use tests::differential::{self, GAPS};
use tests::packages::{ClientRoot, Device, Suite};
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

    /// Demands that a log reports at least `least` hand-overs, and no failed one. Returns their pauses as the log has them.
    fn pauses(&self, log: &str, least: usize) -> Result<Vec<String>> {
        let failing = ["stays with its worker", "is lost"];
        let failed = log.lines().filter(|line| failing.iter().any(|words| line.contains(words)));
        let failed: Vec<_> = failed.collect();
        ensure!(failed.is_empty(), "{}", failed.join("\n"));
        let done = log.lines().filter(|line| line.contains(self.done));
        let pause = |line: &str| Some(line.split_once("paused for ")?.1.split(',').next()?.to_owned());
        let pauses: Vec<_> = done.map(|line| pause(line).unwrap_or_default()).collect();
        let count = pauses.len();
        println!("{}: {count}, paused for {}", self.option, pauses.join(", "));
        ensure!(count >= least, "{}: {count} are too few to show anything\n{log}", self.option);
        Ok(pauses)
    }

    /// Every case of the differential suite, on the driver of `suite`, once, or until there were as many hand-overs as are wanted.
    fn every_case(&self, suite: Suite) -> Result<()> {
        let (program, client) = (Path::new(DIFFERENTIAL), ClientRoot::open(suite)?);
        let native = differential::natively(program)?;
        let wanted = std::env::var("VHOST_USER_VULKAN_HAND_OVERS").map_or(Ok(1), |wanted| wanted.parse())?;
        let mut count: usize = 0;
        loop {
            let log = differential::compare(program, &client, native, GAPS, &self.options("150"))?;
            count += self.pauses(&log, 50)?.len();
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
        self.pauses(&setup.daemon().log(), 2 * suites.len())?;
        setup.settle().map(drop)
    }
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
