//! A worker that an attacker has taken over misuses the descriptors that it shares with other processes, and none of these processes stands still.
//! The tests take copies of a real worker's descriptors, as the attacker would have them.

use anyhow::{Context, Result, ensure};
use protocol::ids::RingIdx;
use rustix::process::Pid;
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use tests::attacks::descriptors::{counters, printing_end, ring_and_take_back};
use tests::attacks::hoards::unread_submissions;
use tests::broker::Broker;
use tests::clients;
use tests::daemon::{Daemon, Holdings, eventually, halt};
use tests::daemon_process::workers;
use tests::guest::PATIENCE;
use tests::program::Program;

const LIMIT: Duration = Duration::from_secs(240);

fn computing(socket: &Path, rounds: &str) -> Result<Command> {
    clients::computing(Path::new(env!("CARGO_BIN_EXE_many_threads")), socket, rounds)
}

fn contexts(broker: &Broker, vm: &str) -> Result<Vec<Value>> {
    Ok(broker.vm(vm)?["contexts"].as_array().cloned().unwrap_or_default())
}

#[test]
fn a_worker_that_plays_with_its_doorbell_stops_neither_the_broker_nor_its_neighbours() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root may take the descriptors of a sealed process");
        return Ok(());
    }
    let broker = Broker::start("", &[("a", ""), ("b", "")])?;
    let (_first, a) = broker.bridge("a")?;
    let (_second, b) = broker.bridge("b")?;
    let taken_over = Program::start(computing(&a, "100000000")?)?;
    let submits = || {
        let first = contexts(&broker, "a").ok().and_then(|contexts| contexts.first().cloned());
        first.is_some_and(|context| context["used"]["submissions"].as_u64() > Some(0))
    };
    ensure!(eventually(PATIENCE, submits), "the worker to take over does nothing\n{}", broker.log());
    let worker = workers(broker.device("a")?.as_raw_nonzero().get().unsigned_abs())?;
    let worker = worker.first().and_then(|pid| Pid::from_raw(*pid as i32)).context("a worker")?;
    let doorbells = counters(worker)?;
    ensure!(!doorbells.is_empty(), "the worker has no doorbell");
    let neighbours = [Program::start(computing(&a, "20")?)?, Program::start(computing(&b, "20")?)?];
    for _ in 0..20_000 {
        ring_and_take_back(&doorbells);
    }
    // In the end the doorbells stay full, and a write to one waits.
    for doorbell in &doorbells {
        let _ = rustix::io::write(doorbell, &(u64::MAX - 1).to_ne_bytes());
    }
    for program in neighbours {
        let output = program.wait(LIMIT).context("a neighbour stands still")?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let number = &contexts(&broker, "a")?[0]["context"];
    broker.say(&["kill", &format!("a/{number}")])?;
    ensure!(!taken_over.wait(LIMIT)?.status.success());
    let vm = broker.vm("a")?;
    assert_eq!((&vm["kills"]["operator"], &vm["restarts"]), (&json!(1), &json!(0)), "{vm}");
    Ok(())
}

#[test]
fn a_worker_can_neither_forge_nor_cut_nor_flood_the_log() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root may take the descriptors of a sealed process");
        return Ok(());
    }
    let daemon = Daemon::start_with(&["--max-log-lines", "100"])?;
    let guest = daemon.guest()?;
    let context = guest.create_context("noisy")?;
    let worker = daemon.wait_for_workers(1)?[0];
    guest.submit_fenced(context, RingIdx(0), &[]).wait(PATIENCE)?;
    let before = daemon.log();
    ensure!(!before.is_empty(), "the daemon has not logged anything that could be cut");
    let end = printing_end(worker)?;
    ensure!(rustix::fs::ftruncate(&end, 0).is_err(), "a worker truncates the file that it prints to");
    let forged = "[2026-11-22T00:00:00Z ERROR daemon] all is lost";
    rustix::io::write(&end, format!("\r\u{1b}[2K{forged}\n{forged}\n").as_bytes())?;
    let shown = || daemon.log().lines().filter(|line| line.contains(forged)).count() == 2;
    ensure!(eventually(PATIENCE, shown), "{}", daemon.log());
    let log = daemon.log();
    ensure!(log.starts_with(&before), "the log was cut");
    for line in log.lines().filter(|line| line.contains(forged)) {
        ensure!(line.contains(&format!("the worker of context {context} prints: ")), "forged: {line}");
    }
    ensure!(!log.contains('\u{1b}') && !log.contains('\r'), "control characters");
    let (line, begin) = ([[b'x'; 4000].as_slice(), b"\n"].concat(), Instant::now());
    for _ in 0..2000 {
        rustix::io::write(&end, &line)?;
    }
    let told = || daemon.log().contains("limit max-log-lines reached");
    ensure!(eventually(PATIENCE, told), "{}", daemon.log().len());
    // Other contexts of the VM are served, and the log is bounded: the lines of a minute, and those of each minute that has begun since.
    guest.submit_fenced(guest.create_context("other")?, RingIdx(0), &[]).wait(PATIENCE)?;
    let flood = daemon.log().len() - log.len();
    let minutes = begin.elapsed().as_secs() as usize / 60 + 2;
    ensure!(flood < minutes * 100 * 1200, "{flood} bytes in {minutes} minutes");
    rustix::net::shutdown(&end, rustix::net::Shutdown::Both)?;
    guest.submit_fenced(context, RingIdx(0), &[]).wait(PATIENCE)?;
    guest.destroy_context(context)?;
    daemon.wait_for_workers(1)?;
    ensure!(daemon.is_running());
    Ok(())
}

#[test]
fn what_waits_for_workers_that_do_not_read_is_bounded_for_the_whole_vm() -> Result<()> {
    let daemon = Daemon::start()?;
    let guest = daemon.guest()?;
    let deaf = (0..4).map(|at| guest.create_context(&format!("deaf {at}"))).collect::<Result<Vec<_>, _>>()?;
    for worker in daemon.wait_for_workers(4)? {
        halt(worker)?;
    }
    let before = Holdings::of(daemon.pid())?.anonymous_kib;
    // The submissions take 160 MiB in all. If each context were counted alone, each could have its full part waiting.
    unread_submissions(&guest, &deaf, 5000);
    guest.submit_fenced(guest.create_context("other")?, RingIdx(0), &[]).wait(PATIENCE)?;
    let told = || daemon.log().contains("limit worker_backlog_bytes reached");
    ensure!(eventually(PATIENCE, told), "{}", daemon.log());
    let grown = Holdings::of(daemon.pid())?.anonymous_kib.saturating_sub(before);
    println!("the device process has grown by {grown} KiB");
    ensure!(grown < 100 << 10, "{grown} KiB");
    Ok(())
}
