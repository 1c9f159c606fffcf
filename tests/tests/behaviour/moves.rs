//! `move VM/CONTEXT --gpu GPU`: a program goes on on another GPU while it computes, and is scheduled and accounted for there.
//!
//! The GPUs are lavapipe and a copy of it with another UUID; with `VHOST_USER_VULKAN_GPU` the first two of the machine.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use tests::broker::Broker;
use tests::clients::many_threads;
use tests::daemon::{eventually, two_gpus};
use tests::frontend::{Options, Session};
use tests::guest::device::{Source, ensure_filled};
use tests::guest::{Gpu, PATIENCE, timeline};
use tests::packages::HostVulkan;
use tests::program::variable;
use tests::program::{LIMIT, Program};

fn computing(socket: &Path, rounds: &str) -> Result<Command> {
    many_threads(Path::new(env!("CARGO_BIN_EXE_many_threads")), socket, rounds)
}

/// A broker with one VM that has a spare GPU, and the names of both GPUs as they are shown; `None` on a machine without two GPUs.
fn broker() -> Result<Option<(HostVulkan, Broker, [String; 2])>> {
    let Some((vulkan, [own, spare])) = two_gpus()? else {
        println!("skipped: this machine has no two GPUs");
        return Ok(None);
    };
    let gpus = format!("gpu = {own:?}\nspare-gpu = {spare:?}");
    let broker = Broker::start_on(&vulkan, "", &gpus, &[("a", "")])?;
    Ok(Some((vulkan, broker, [own, spare].map(|uuid| uuid.replace('-', "")))))
}

/// The number of the only context, and the GPUs that it is on.
fn context(broker: &Broker) -> Result<(u64, Value)> {
    let vm = broker.vm("a")?;
    let context = &vm["contexts"][0];
    Ok((context["context"].as_u64().context("no context")?, context["gpus"].clone()))
}

/// Submissions of the VM that were completed on a GPU.
fn submissions(broker: &Broker, uuid: &str) -> Result<u64> {
    let vm = broker.vm("a")?;
    let mut gpus = vm["gpus"].as_array().into_iter().flatten();
    let on = gpus.find(|gpu| gpu["uuid"] == uuid);
    Ok(on.and_then(|on| on["submissions"].as_u64()).unwrap_or(0))
}

#[test]
fn a_program_that_computes_goes_to_another_gpu_and_back() -> Result<()> {
    let Some((_vulkan, broker, [own, spare])) = broker()? else { return Ok(()) };
    let (_bridge, socket) = broker.bridge("a")?;
    let (mut command, end) = (computing(&socket, "0")?, broker.path("end"));
    command.arg("--until").arg(&end);
    let program = Program::start(command)?;
    ensure!(
        eventually(PATIENCE, || submissions(&broker, &own).is_ok_and(|count| count > 0)),
        "{}",
        broker.log()
    );
    let (number, gpus) = context(&broker)?;
    ensure!(gpus == json!([own]), "{gpus}");
    for there in [&spare, &own, &spare] {
        let before = submissions(&broker, there)?;
        let said = broker.say(&["move", &format!("a/{number}"), "--gpu", there])?;
        println!("{said}");
        ensure!(said.contains("moved: its program was paused for "), "{said}");
        ensure!(context(&broker)? == (number, json!([there])), "{}", broker.vm("a")?);
        let computes = || submissions(&broker, there).is_ok_and(|count| count > before);
        ensure!(eventually(PATIENCE, computes), "nothing is computed there: {}", broker.log());
    }
    println!("{}", broker.say(&["status"])?);
    let refused = broker.operate(&["move", &format!("a/{number}"), "--gpu", &spare])?;
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(why.contains("it is on") && why.contains("already"), "{why}");
    std::fs::write(end, "")?;
    let ended = program.wait(LIMIT).context("the program does not end")?;
    ensure!(ended.status.success(), "{ended:?}\n{}", broker.log());
    Ok(())
}

/// Bytes of the memory that only the GPU reaches: `MOVE_BYTES=8589934592` shows how long the program is paused while they are copied.
fn hidden_bytes() -> u64 {
    variable::number("MOVE_BYTES").expect("a number of bytes").unwrap_or(MAPPED_BYTES)
}

const MAPPED_BYTES: u64 = 256 << 10;

#[test]
fn memory_has_its_contents_on_the_other_gpu() -> Result<()> {
    let Some((_vulkan, broker, [own, spare])) = broker()? else { return Ok(()) };
    let gpu = Arc::new(Gpu::new(Session::connect(&broker.path("a"), Options::default())?));
    let mut device = timeline::device(&gpu, "computes")?;
    let mapped = device.allocate(MAPPED_BYTES, Source::New)?.ok().context("memory")?;
    let blob = device.blob(mapped, MAPPED_BYTES)?;
    let ty = device.hidden.unwrap_or(device.visible);
    let hidden = device.allocate_of_type(hidden_bytes(), ty, Source::New)?.ok().context("memory")?;
    device.fill(hidden, hidden_bytes(), 7)?;
    let (number, _) = context(&broker)?;
    for (there, word) in [(&spare, 7), (&own, 8), (&spare, 9)] {
        let said = broker.say(&["move", &format!("a/{number}"), "--gpu", there])?;
        println!("{said}");
        ensure!(said.contains("moved: its program was paused for "), "{said}");
        // Memory that comes and goes between two moves.
        let more = device.allocate_of_type(MAPPED_BYTES, ty, Source::New)?.ok().context("memory")?;
        device.copy(hidden, mapped, MAPPED_BYTES)?;
        ensure_filled(&blob.bytes(MAPPED_BYTES)?, word).with_context(|| broker.log())?;
        device.fill(more, MAPPED_BYTES, 1)?;
        device.free(more)?;
        device.fill(hidden, hidden_bytes(), word + 1)?;
    }
    Ok(())
}

#[test]
fn a_gpu_is_drained_of_programs_that_compute_and_those_that_begin() -> Result<()> {
    let Some((_vulkan, broker, [own, spare])) = broker()? else { return Ok(()) };
    let (_bridge, socket) = broker.bridge("a")?;
    let begins_on = |uuid: &str| -> Result<(u64, Program)> {
        let mut program = Program::start(computing(&socket, "1000000")?)?;
        let is_there = || context(&broker).is_ok_and(|(_, gpus)| gpus == json!([uuid]));
        let computes = || submissions(&broker, uuid).is_ok_and(|count| count > 0);
        ensure!(eventually(PATIENCE, || is_there() && computes()), "{}", broker.log());
        ensure!(program.is_running(), "{}", broker.log());
        Ok((context(&broker)?.0, program))
    };
    let ends = |number: u64, program: Program| -> Result<()> {
        broker.say(&["kill", &format!("a/{number}")])?;
        program.wait(LIMIT).context("the program does not end")?;
        let is_over = || broker.vm("a").is_ok_and(|vm| vm["contexts"] == json!([]));
        ensure!(eventually(PATIENCE, is_over), "{}", broker.log());
        Ok(())
    };
    let (number, program) = begins_on(&own)?;
    let plan = broker.say(&["drain", &own, "--dry-run"])?;
    let (planned, total) = plan.split_once('\n').context("one line")?;
    let is_to_spare =
        planned.starts_with(&format!("a/{number}: would be moved to ")) && planned.contains(&spare);
    ensure!(is_to_spare && total == "1 would be moved, and nothing would be left on the GPU\n", "{plan}");
    ensure!(context(&broker)?.1 == json!([own]), "{}", broker.vm("a")?);
    let said = broker.say(&["drain", &own])?;
    ensure!(said == format!("a/{number}: moved\ndrained: 1 moved, nothing is on it any more\n"), "{said}");
    ensure!(context(&broker)?.1 == json!([spare]), "{}", broker.vm("a")?);
    ensure!(broker.say(&["status"])?.contains("(drained)"), "status does not say so");
    ends(number, program)?;
    let (number, program) = begins_on(&spare)?;
    broker.say(&["undrain", &own])?;
    ends(number, program)?;
    let (number, program) = begins_on(&own)?;
    // The context has no other GPU to move to.
    broker.say(&["drain", &spare])?;
    let plan = broker.operate(&["drain", &own, "--dry-run"])?;
    let why = String::from_utf8_lossy(&plan.stderr).into_owned();
    ensure!(why.contains("0 would be moved, 1 would stay") && plan.status.code() == Some(1), "{why}");
    let left = broker.operate(&["drain", &own])?;
    let (said, why) = (String::from_utf8(left.stdout)?, String::from_utf8(left.stderr)?);
    ensure!(said.starts_with(&format!("a/{number}: stays: its VM has no other GPU")), "{said}");
    ensure!(why.contains("0 programs moved, 1 still on the GPU") && left.status.code() == Some(1), "{why}");
    ends(number, program)
}
