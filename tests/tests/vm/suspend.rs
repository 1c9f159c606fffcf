//! Programs in a guest that are stopped for a while go on afterwards, and killed programs leave nothing behind.
//!
//! With `LONG_PAUSES` every pause, here and in `vm/life`, is longer than two minutes.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tests::daemon::{Holdings, eventually};
use tests::daemon_process::{DaemonProcess, workers};
use tests::packages::{HostVulkan, Suite};
use tests::program::LIMIT;
use tests::vm::{Guest, Options, Outcome, Script, Vm, pause};

/// Stops the program three times in the middle of its work, and lets it finish.
#[test]
#[ignore = "boots machines for minutes"]
fn a_stopped_program_continues_its_computation() -> Result<()> {
    let (guest, daemon) = start()?;
    let pause = pause(STOPPED).as_secs();
    let script = format!(
        "{PREPARE}
         /many_threads --rounds {ROUNDS} --instances 2 --devices 1 --lanes 2 --report >/tmp/out 2>/tmp/log &
         for part in 1 2 3; do
             wanted=$((part * {ROUNDS}))
             while [ $(grep -c round /tmp/out) -lt $wanted ]; do kill -0 $! || {{ cat /tmp/log; exit 1; }}; sleep 0.1; done
             kill -STOP $!
             sleep 1
             before=$(grep -c round /tmp/out)
             sleep {pause}
             [ $(grep -c round /tmp/out) = $before ] || exit 2
             kill -CONT $!
             echo \"stopped for {pause} s after $before rounds\"
         done
         wait $! || {{ cat /tmp/log; exit 3; }}
         tail -n 1 /tmp/out"
    );
    let outcome = run(&guest, &daemon, &script)?;
    println!("{}", outcome.output);
    ensure!(outcome.output.contains(&format!("checked {} words", 4 * ROUNDS * 4096)), "{}", outcome.output);
    daemon.stop()?;
    Ok(())
}

#[test]
#[ignore = "boots machines for minutes"]
fn programs_killed_at_any_moment_leave_nothing_behind() -> Result<()> {
    let (guest, daemon) = start()?;
    let script = format!(
        "{PREPARE}
         /many_threads --instances 1 --devices 1 --lanes 1 --rounds 1 || exit 1
         echo ready
         read -r word
         for tenths in $(seq 0 19); do
             /many_threads --rounds 0 --instances 1 --lanes 2 >/dev/null 2>&1 &
             sleep $((tenths / 10)).$((tenths % 10))
             kill -9 $!
             wait $! 2>/dev/null
         done
         /many_threads --instances 1 --devices 1 --lanes 1 --rounds 1 || exit 2
         echo done
         read -r word"
    );
    let mut vm = Vm::boot(&guest, &with_program(&script)?, &options(&daemon))?;
    let ready = vm.wait_for("ready", 0, LIMIT).map_err(|error| error.context(daemon.log()))?;
    let before = at_rest(&daemon)?;
    vm.send_line("go")?;
    vm.wait_for("done", ready, LIMIT).map_err(|error| error.context(daemon.log()))?;
    let mut after = at_rest(&daemon)?;
    let nothing_more = eventually(LIMIT, || {
        after = at_rest(&daemon).unwrap_or(after);
        after.descriptors <= before.descriptors && after.threads <= before.threads
    });
    ensure!(nothing_more, "{before:?} became {after:?}");
    vm.send_line("go")?;
    ensure!(vm.wait()?.status == 0);
    daemon.stop()?;
    Ok(())
}

const PREPARE: &str = "chmod +x /many_threads";
/// The time for which the program is stopped each time, unless `LONG_PAUSES` makes it longer.
const STOPPED: Duration = Duration::from_secs(5);
/// Rounds of each of four lanes.
const ROUNDS: u32 = 20;

/// Returns the holdings of the device process when no guest program runs.
fn at_rest(daemon: &DaemonProcess) -> Result<Holdings> {
    let pid =
        rustix::process::Pid::from_raw(i32::try_from(daemon.id())?).context("a process has a number")?;
    let alone = || workers(daemon.id()).is_ok_and(|workers| workers.is_empty());
    ensure!(eventually(LIMIT, alone), "a worker is left\n{}", daemon.log());
    // The device process closes descriptors a moment after the worker's end.
    thread::sleep(Duration::from_secs(1));
    Holdings::of(pid)
}

fn run(guest: &Guest, daemon: &DaemonProcess, script: &str) -> Result<Outcome> {
    let outcome = Vm::run(guest, &with_program(script)?, &options(daemon));
    let outcome = outcome.map_err(|error| error.context(daemon.log()))?;
    ensure!(outcome.status == 0, "status {}\n{}\n{}", outcome.status, outcome.output, daemon.log());
    Ok(outcome)
}

fn with_program(script: &str) -> Result<Script> {
    let program = std::fs::read(env!("CARGO_BIN_EXE_many_threads")).context("reading the guest program")?;
    Ok(Script::new(script).with_file("many_threads", program))
}

fn options(daemon: &DaemonProcess) -> Options {
    let limit = Options::default().limit + 4 * pause(STOPPED);
    Options { gpus: vec![daemon.socket()], limit, ..Options::default() }
}

fn start() -> Result<(Arc<Guest>, DaemonProcess)> {
    let guest = Guest::build(Suite::Testing)?;
    let daemon = DaemonProcess::start(&HostVulkan::lavapipe()?, &[]).context("starting the daemon")?;
    Ok((guest, daemon))
}
