//! Clients that do many tasks at once: processes, instances, devices, queues, and threads that compile and record.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use tests::clients::Setup;
use tests::packages::{ClientRoot, Device, Suite};
use tests::program::{LIMIT, Program, succeed};

fn many_threads(setup: &Setup, client: &ClientRoot, arguments: &[&str]) -> Result<Command> {
    let executable = Path::new(env!("CARGO_BIN_EXE_many_threads"));
    let mut command = client.own(executable, Device::Venus(setup.socket()))?;
    command.args(arguments);
    Ok(command)
}

fn every_word_was_right(output: &str, words: u32) -> Result<()> {
    ensure!(output.contains(&format!("checked {words} words")), "{output}");
    Ok(())
}

#[test]
fn many_threads_of_many_devices_compile_record_and_submit_at_once() -> Result<()> {
    let setup = Setup::start()?;
    for suite in Suite::ALL {
        let client = ClientRoot::open(suite)?;
        let arguments = ["--instances", "2", "--devices", "2", "--lanes", "3", "--rounds", "10"];
        let output = succeed(many_threads(&setup, &client, &arguments)?, LIMIT);
        let output = output.with_context(|| format!("{suite:?}"))?;
        every_word_was_right(&output, 2 * 2 * 3 * 10 * 4096).with_context(|| format!("{suite:?}"))?;
    }
    setup.settle().map(drop)
}

/// Without feedback Mesa queries fences and semaphores, instead of having the device write their states.
#[test]
fn guests_without_feedback_compute_the_same() -> Result<()> {
    let setup = Setup::start()?;
    for suite in Suite::ALL {
        let client = ClientRoot::open(suite)?;
        let arguments = ["--instances", "1", "--devices", "2", "--lanes", "2", "--rounds", "10"];
        let mut command = many_threads(&setup, &client, &arguments)?;
        command.env("VN_PERF", "no_fence_feedback,no_semaphore_feedback");
        let output = succeed(command, LIMIT).with_context(|| format!("{suite:?}"))?;
        every_word_was_right(&output, 2 * 2 * 10 * 4096).with_context(|| format!("{suite:?}"))?;
    }
    setup.settle().map(drop)
}

#[test]
fn many_processes_with_threads_do_not_disturb_each_other() -> Result<()> {
    let setup = Setup::start()?;
    let clients = [
        ClientRoot::open(Suite::Trixie)?,
        ClientRoot::open(Suite::Testing)?,
        ClientRoot::open(Suite::Unstable)?,
    ];
    let arguments = ["--instances", "1", "--devices", "2", "--lanes", "2", "--rounds", "5"];
    let start = |number: usize| Program::start(many_threads(&setup, &clients[number % 3], &arguments)?);
    let running: Vec<Program> = (0..9).map(start).collect::<Result<_>>()?;
    for program in running {
        let output = program.wait(LIMIT)?;
        let said = String::from_utf8_lossy(&output.stdout);
        ensure!(
            output.status.success(),
            "{}\n{said}{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        every_word_was_right(&said, 2 * 2 * 5 * 4096)?;
    }
    setup.settle().map(drop)
}
