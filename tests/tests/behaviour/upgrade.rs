//! `upgrade` puts the installed program in the place of a broker whose VMs compute, and leaves the broker as it is if that program cannot take over.

use anyhow::{Context, Result, ensure};
use protocol::ids::RingIdx;
use protocol::virtio_gpu::Command as Request;
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tests::broker::{Broker, vhost_user_vulkan};
use tests::clients;
use tests::daemon::{eventually, is_alive, on_machine};
use tests::frontend::{Options, Session};
use tests::guest::device::{Device, Source, ensure_filled};
use tests::guest::{Gpu, PATIENCE, timeline};
use tests::package::installed::Installed;
use tests::program::Background;
use vm_memory::{Bytes, VolatileMemory};

/// Bytes of memory of a program: a smaller allocation of the GPU's own memory is really the host's memory.
const SIZE: u64 = 1 << 20;

/// A program of stock Mesa that computes for ever, checks its results, and prints a line after each round.
fn computes_for_ever(socket: &Path) -> Result<Background> {
    let executable = Path::new(env!("CARGO_BIN_EXE_many_threads"));
    let mut command = clients::computing(executable, socket, "0")?;
    command.arg("--report");
    Background::start(command)
}

/// Waits until a program has found its results to be right twice more: the second round began after this call.
fn goes_on(program: &Background) -> bool {
    let rounds = || program.said().lines().count();
    let before = rounds();
    eventually(PATIENCE, || rounds() > before + 1)
}

/// Returns the values that change if the VM's VMM's session or one of its contexts ends.
fn possessions(broker: &Broker, vm: &str) -> Result<Vec<Value>> {
    let vm = broker.vm(vm)?;
    let contexts = vm["contexts"].as_array().context("contexts")?;
    let contexts: Vec<_> = contexts.iter().map(|context| context["context"].clone()).collect();
    let kept = ["state", "restarts", "kills", "weight"].map(|key| vm[key].clone());
    Ok(kept.into_iter().chain(contexts).collect())
}

fn used(broker: &Broker, vm: &str) -> Result<(u64, f64)> {
    let used = &broker.vm(vm)?["used"];
    let seconds = used["gpu_seconds"].as_f64().context("seconds")?;
    Ok((used["submissions"].as_u64().context("submissions")?, seconds))
}

#[test]
fn a_new_program_takes_the_brokers_place_while_two_vms_compute() -> Result<()> {
    let mut installed = Installed::start(&[("a", ""), ("b", "weight = 300"), ("off", "")])?;
    let bridges = ["a", "b"].map(|vm| installed.broker.bridge(vm)).into_iter().collect::<Result<Vec<_>>>()?;
    let mut programs = bridges.iter().map(|(_, path)| computes_for_ever(path)).collect::<Result<Vec<_>>>()?;
    ensure!(programs.iter().all(goes_on), "not all compute\n{}", installed.broker.log());
    let broker = &installed.broker;
    broker.say(&["set", "a", "weight=50"])?;
    let before = [possessions(broker, "a")?, possessions(broker, "b")?];
    for _ in 0..3 {
        let (used_before, off) = (used(broker, "a")?, broker.device("off")?);
        let before_it = [broker.device("a")?, broker.device("b")?];
        installed.replace()?;
        ensure!(!installed.is_new(broker.pid())?);
        let said = broker.say(&["upgrade"])?;
        ensure!(said.contains(" contexts were taken over, in "), "{said}");
        ensure!(said.contains("\noff: gets a device process of the new program\n"), "{said}");
        ensure!(
            said.contains(
                "\na: gets a device process of the new program in a moment, and keeps its programs\n"
            ),
            "{said}"
        );
        ensure!(installed.is_new(broker.pid())?, "{}", broker.log());
        ensure!(programs.iter().all(goes_on), "not all go on\n{}", broker.log());
        for (vm, old) in ["a", "b"].into_iter().zip(before_it) {
            let renewed = || broker.device(vm).is_ok_and(|new| new != old) && !is_alive(old);
            ensure!(eventually(PATIENCE, renewed), "{vm} keeps its device process\n{}", broker.log());
            ensure!(installed.is_new(broker.device(vm)?)?, "{}", broker.log());
        }
        ensure!(programs.iter().all(goes_on), "not all go on\n{}", broker.log());
        assert_eq!([possessions(broker, "a")?, possessions(broker, "b")?], before, "{}", broker.log());
        let (submissions, seconds) = used(broker, "a")?;
        ensure!(submissions > used_before.0 && seconds >= used_before.1, "accounts begin anew");
        let renewed = || broker.listens("off") && broker.device("off").is_ok_and(|pid| pid != off);
        ensure!(eventually(PATIENCE, renewed), "{}", broker.log());
        ensure!(!is_alive(off) && installed.is_new(broker.device("off")?)?);
    }
    for program in &mut programs {
        ensure!(program.is_running() && program.errors().is_empty(), "{}", program.errors());
    }
    // Commands of an operator about contexts of the old device process are carried out.
    let context = broker.vm("b")?["contexts"][0]["context"].clone();
    broker.say(&["kill", &format!("b/{context}")])?;
    ensure!(eventually(PATIENCE, || !programs[1].is_running()), "{}", broker.log());
    // The program of the other VM has a worker of the first program, and gets one of the last.
    let context = broker.vm("a")?["contexts"][0]["context"].clone();
    broker.say(&["restart", &format!("a/{context}")])?;
    ensure!(goes_on(&programs[0]), "{}", broker.log());
    drop((programs, bridges));
    ensure!(eventually(PATIENCE, || broker.listens("a")), "{}", broker.log());
    let log = installed.broker.log();
    ensure!(!log.contains("panicked") && installed.broker.stop()?.success(), "{log}");
    ensure!(!installed.broker.path("control").exists(), "its sockets are left");
    Ok(())
}

#[test]
fn a_program_goes_on_with_another_device_process_with_its_memory_its_fences_and_its_worker() -> Result<()> {
    goes_on_with_its_memory("", |device| device.visible, true)
}

/// On a GPU whose driver exports nothing, the driver lends this memory, so only its worker can have it.
#[test]
fn a_program_goes_on_with_memory_of_the_gpus_own_that_the_guest_maps() -> Result<()> {
    let keys = "device-memory = \"1GiB\"\nwindow-size = \"8GiB\"";
    goes_on_with_its_memory(keys, |device| device.local.unwrap_or(device.visible), false)
}

/// An upgrade while a program uses memory of a type that the guest maps. Restarts the program afterwards, if it can be.
fn goes_on_with_its_memory(keys: &str, ty: impl Fn(&Device) -> u32, is_movable: bool) -> Result<()> {
    let mut installed = Installed::start(&[("a", keys)])?;
    let broker = &installed.broker;
    let gpu = Arc::new(Gpu::new(Session::connect(&broker.path("a"), Options::default())?));
    let resource_id = gpu.new_resource_id();
    let create = Request::ResourceCreate2d { resource_id, format: 1, width: 8, height: 8 };
    gpu.call(&create, None)?;
    let mut device = Device::create(&gpu, "computes")?;
    let ty = ty(&device);
    let memory = device.allocate_of_type(SIZE, ty, Source::New)?.ok().context("memory")?;
    let blob = device.blob(memory, SIZE)?;
    let mapped = blob.map()?;
    let is_filled = |word| -> Result<()> {
        let mut bytes = vec![0; SIZE as usize];
        mapped.as_volatile_slice().read_slice(&mut bytes, 0)?;
        ensure_filled(&bytes, word)
    };
    device.fill(memory, SIZE, 7)?;
    let old = broker.device("a")?;
    // This submission waits for a signal after the upgrade.
    let semaphore = timeline::wait_before_signal(&mut device)?;
    let done = gpu.submit_fenced(device.context, RingIdx(1), &[]);
    installed.replace()?;
    let said = broker.say(&["upgrade"])?;
    ensure!(
        said.contains("\na: gets a device process of the new program in a moment, and keeps its programs\n"),
        "{said}"
    );
    let renewed = || broker.device("a").is_ok_and(|device| device != old) && !is_alive(old);
    ensure!(eventually(PATIENCE, renewed), "{}", broker.log());
    let new = broker.device("a")?;
    ensure!(installed.is_new(new)?, "{}", broker.log());
    let is_told = || broker.vm("a").is_ok_and(|vm| vm["state"] == "connected" && vm["replaced"] == json!([]));
    ensure!(eventually(PATIENCE, is_told), "{}", broker.log());
    is_filled(7)?;
    ensure!(!done.arrives_within(Duration::from_millis(100)), "nothing has been signalled yet");
    timeline::signal(&mut device, semaphore)?;
    ensure!(done.arrives_within(PATIENCE), "a fence is forgotten\n{}", broker.log());
    device.fill(memory, SIZE, 9)?;
    is_filled(9)?;
    ensure!(gpu.call(&create, None).is_err(), "the guest's resource is forgotten");
    // Programs that begin now have a worker of the new program, and so does this one once it was restarted.
    if is_movable {
        let context = broker.vm("a")?["contexts"][0]["context"].clone();
        broker.say(&["restart", &format!("a/{context}")])?;
        device.fill(memory, SIZE, 11)?;
        is_filled(11)?;
    }
    gpu.destroy_context(gpu.create_context("afterwards")?)?;
    if on_machine() && !is_movable {
        // Without the worker the memory may belong to another process, so no process has it mapped any more.
        let context = broker.vm("a")?["contexts"][0]["context"].clone();
        let mapped = gpu.session.window.live();
        broker.say(&["kill", &format!("a/{context}")])?;
        let is_unmapped = || gpu.session.window.live() == mapped - 1;
        ensure!(eventually(PATIENCE, is_unmapped), "{}", broker.log());
    }
    gpu.destroy_blob(blob)?;
    ensure!(gpu.session.window.violations().is_empty(), "{:?}", gpu.session.window.violations());
    drop((device, gpu));
    ensure!(eventually(PATIENCE, || broker.listens("a")), "{}", broker.log());
    let again = Gpu::new(Session::connect(&broker.path("a"), Options::default())?);
    again.call(&Request::GetDisplayInfo, None)?;
    ensure!(broker.device("a")? == new, "{}", broker.log());
    drop(again);
    let log = installed.broker.log();
    ensure!(!log.contains("panicked") && installed.broker.stop()?.success(), "{log}");
    ensure!(!installed.broker.path("a").exists(), "its socket is left");
    Ok(())
}

#[test]
fn a_program_that_cannot_take_over_costs_nothing() -> Result<()> {
    let installed = Installed::start(&[("a", "")])?;
    let broker = &installed.broker;
    let gpu = Gpu::new(Session::connect(&broker.path("a"), Options::default())?);
    let context = gpu.create_context("before")?;
    let is_there =
        || broker.vm("a").is_ok_and(|vm| vm["contexts"].as_array().is_some_and(|all| all.len() == 1));
    ensure!(eventually(PATIENCE, is_there), "{}", broker.log());
    let before = possessions(broker, "a")?;
    let refused = |why: &str| -> Result<()> {
        let output = broker.operate(&["upgrade"])?;
        let said = String::from_utf8(output.stderr)?;
        let begin = "vhost-user-vulkan: not upgraded, and the broker goes on as before: ";
        ensure!(output.status.code() == Some(1) && said.starts_with(begin) && said.contains(why), "{said}");
        ensure!(possessions(broker, "a")? == before, "{said}\n{}", broker.log());
        Ok(())
    };
    // The first half of a program either loads and dies, or is no program at all; tests of the rehearsal try other deaths.
    let whole = fs::read(installed.built())?;
    installed.replace_by(&whole[..whole.len() / 2], 0o755)?;
    refused("")?;
    installed.replace_by(b"another", 0o755)?;
    refused("")?;
    installed.replace_by(&whole, 0o644)?;
    refused("ermission denied")?;
    fs::remove_file(installed.program())?;
    refused("o such file")?;
    installed.replace()?;
    broker.rewrite("", &[("a", "gup = \"x\"")])?;
    refused("it cannot take over: ")?;
    broker.rewrite("", &[("a", "")])?;
    gpu.destroy_context(context)?;
    // Earlier refusals do not count against a program that can take over.
    broker.say(&["upgrade"])?;
    ensure!(installed.is_new(broker.pid())?, "{}", broker.log());
    gpu.destroy_context(gpu.create_context("behind")?)?;
    // The broker learns a moment later that the contexts have ended, and another device process follows.
    let is_as_before = || possessions(broker, "a").is_ok_and(|now| now[..] == before[..4]);
    ensure!(eventually(PATIENCE, is_as_before), "{}", broker.log());
    Ok(())
}

#[test]
fn what_is_no_state_of_this_form_is_refused_in_one_line() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("config");
    fs::write(&file, "")?;
    for (state, why) in [
        ("", "not the state of a broker"),
        ("[]", "not the state of a broker"),
        (
            r#"{"form":4000000000,"messages":2}"#,
            "the state has the form 4000000000, and this program knows 2",
        ),
        (r#"{"form":2,"messages":4000000000}"#, "messages of version 4000000000"),
        (r#"{"form":2,"messages":2,"pages":4000000000}"#, "pages of grants of layout 4000000000"),
        (
            r#"{"form":2,"messages":2,"pages":1,"descriptors":[0,1,2,-1],"state":{}}"#,
            "not the state of a broker",
        ),
    ] {
        for only_looks in [true, false] {
            let mut command = vhost_user_vulkan()?;
            command
                .arg("--config")
                .arg(&file)
                .arg("--take-over")
                .args(only_looks.then_some("--check-config"));
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut child = command.spawn()?;
            child.stdin.take().context("standard input")?.write_all(state.as_bytes())?;
            let output = child.wait_with_output()?;
            let said = String::from_utf8(output.stderr)?;
            ensure!(output.status.code() == Some(1) && output.stdout.is_empty(), "{state}: {said}");
            ensure!(said.contains(why) && said.lines().count() == 1, "{state}: {said}");
        }
    }
    Ok(())
}
