//! A program that does nothing with the GPU is swapped out: no part of the driver is left, and the program computes on when it has work.

use anyhow::{Context, Result, ensure};
use rustix::process::{Signal, kill_process};
use std::fs;
use std::path::Path;
use tests::broker::Broker;
use tests::clients::many_threads;
use tests::daemon::eventually;
use tests::daemon_process::workers;
use tests::guest::PATIENCE;
use tests::program::{LIMIT, Program};

/// A broker with one VM and these options, its guest, a program there that computes until [`ends_well`], and the program's context.
fn computing(options: &str) -> Result<(Broker, impl Sized, Program, u64)> {
    let broker = Broker::start("", &[("a", options)])?;
    let (bridge, socket) = broker.bridge("a")?;
    let executable = Path::new(env!("CARGO_BIN_EXE_many_threads"));
    let mut command = many_threads(executable, &socket, "0")?;
    command.arg("--until").arg(broker.path("end"));
    let program = Program::start(command)?;
    let computes = || broker.vm("a").is_ok_and(|vm| vm["used"]["submissions"].as_u64() > Some(0));
    ensure!(eventually(PATIENCE, computes), "{}", broker.log());
    let number = broker.vm("a")?["contexts"][0]["context"].as_u64().context("no context")?;
    Ok((broker, bridge, program, number))
}

/// Ends the program, which has computed for long enough, and checks that it succeeded.
fn ends_well(broker: &Broker, program: Program) -> Result<()> {
    fs::write(broker.path("end"), "")?;
    let ended = program.wait(LIMIT).context("the program does not end")?;
    ensure!(ended.status.success(), "{ended:?}\n{}", broker.log());
    Ok(())
}

fn is_swapped_out(broker: &Broker) -> bool {
    broker.vm("a").is_ok_and(|vm| vm["contexts"][0]["state"] == "swapped out")
}

/// Returns whether a worker of the VM has loaded the driver.
fn has_driver(broker: &Broker) -> Result<bool> {
    let device = broker.device("a")?.as_raw_nonzero().get().cast_unsigned();
    let loads = |worker: &u32| {
        let maps = fs::read_to_string(format!("/proc/{worker}/maps")).unwrap_or_default();
        maps.contains("libvulkan_lvp")
    };
    Ok(workers(device)?.iter().any(loads))
}

#[test]
fn a_program_that_does_nothing_is_swapped_out_and_computes_on_afterwards() -> Result<()> {
    let (broker, _bridge, program, _) = computing("swap-after = \"300ms\"")?;
    for round in 1..=3 {
        // On a slow machine the program may be idle long enough for a swap between two submissions.
        let has_one = || has_driver(&broker).unwrap_or(false);
        ensure!(eventually(PATIENCE, has_one), "a worker that computes without a driver");
        kill_process(program.pid(), Signal::STOP)?;
        ensure!(eventually(PATIENCE, || is_swapped_out(&broker)), "round {round}: {}", broker.log());
        ensure!(
            eventually(PATIENCE, || has_driver(&broker).is_ok_and(|has| !has)),
            "the driver is still there"
        );
        println!("{}", broker.say(&["status"])?);
        kill_process(program.pid(), Signal::CONT)?;
        ensure!(eventually(PATIENCE, || !is_swapped_out(&broker)), "round {round}: {}", broker.log());
    }
    ends_well(&broker, program)
}

#[test]
fn an_operator_swaps_a_program_out_and_what_needs_a_worker_is_refused_meanwhile() -> Result<()> {
    let (broker, _bridge, program, number) = computing("")?;
    let place = format!("a/{number}");
    kill_process(program.pid(), Signal::STOP)?;
    let refuses = |what: &str| -> Result<bool> {
        let refused = broker.operate(&[what, &place])?;
        let why = String::from_utf8_lossy(&refused.stderr).into_owned();
        Ok(why.contains("it is swapped out") && refused.status.code() == Some(1))
    };
    // Commands that the program had sent before cause another swap-in.
    let mut said = String::new();
    let swapped = eventually(PATIENCE, || {
        said = broker.say(&["swap-out", &place]).unwrap_or(std::mem::take(&mut said));
        is_swapped_out(&broker) && ["restart", "swap-out"].iter().all(|what| refuses(what).unwrap_or(false))
    });
    ensure!(swapped, "{}\n{}", broker.vm("a")?, broker.log());
    ensure!(said.contains("swapped out: its program was paused for "), "{said}");
    kill_process(program.pid(), Signal::CONT)?;
    ends_well(&broker, program)
}

#[test]
fn a_program_that_is_killed_while_it_is_swapped_out_leaves_nothing() -> Result<()> {
    let (broker, _bridge, program, _) = computing("swap-after = \"100ms\"")?;
    kill_process(program.pid(), Signal::STOP)?;
    ensure!(eventually(PATIENCE, || is_swapped_out(&broker)), "{}", broker.log());
    kill_process(program.pid(), Signal::KILL)?;
    let is_over = || broker.vm("a").is_ok_and(|vm| vm["contexts"].as_array().is_some_and(Vec::is_empty));
    ensure!(eventually(PATIENCE, is_over), "{}", broker.log());
    let device = broker.device("a")?.as_raw_nonzero().get().cast_unsigned();
    ensure!(eventually(PATIENCE, || workers(device).is_ok_and(|left| left.is_empty())), "a worker is left");
    Ok(())
}
