//! The broker reads its file again while guests compute: VMs come, go and change, and the others lose nothing.

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::path::Path;
use tests::broker::Broker;
use tests::clients;
use tests::daemon::{eventually, is_alive};
use tests::frontend::{Options, Session};
use tests::guest::{Gpu, PATIENCE};
use tests::program::Background;

const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

/// A program of stock Mesa that computes for ever, checks its results, and prints a line after each round.
fn computes_for_ever(socket: &Path) -> Result<Background> {
    let executable = Path::new(env!("CARGO_BIN_EXE_many_threads"));
    let mut command = clients::computing(executable, socket, "0")?;
    command.arg("--report");
    Background::start(command)
}

/// Times that a program has found its results to be right.
fn rounds(program: &Background) -> usize {
    program.said().lines().count()
}

/// Returns the values that change if the VM's device process, its VMM's session or one of its contexts ends.
fn possessions(broker: &Broker, vm: &str) -> Result<Value> {
    let vm = broker.vm(vm)?;
    let contexts = vm["contexts"].as_array().context("contexts")?;
    let contexts: Vec<_> = contexts.iter().map(|context| &context["context"]).collect();
    Ok(json!([vm["pid"], vm["state"], vm["restarts"], vm["kills"], contexts]))
}

fn submissions(broker: &Broker, vm: &str) -> Result<u64> {
    broker.vm(vm)?["used"]["submissions"].as_u64().context("submissions")
}

fn reports(broker: &Broker, arguments: &[&str]) -> Result<Vec<String>> {
    Ok(broker.say(arguments)?.lines().map(str::to_owned).collect())
}

/// A frontend of a VM, whose connection the broker has seen.
fn connected(broker: &Broker, vm: &str) -> Result<Session> {
    let session = Session::connect(&broker.path(vm), Options::default())?;
    let is_connected = || broker.vm(vm).is_ok_and(|vm| vm["state"] == "connected");
    ensure!(eventually(PATIENCE, is_connected), "{}", broker.log());
    Ok(session)
}

#[test]
fn of_eight_vms_that_compute_seven_lose_nothing_when_one_is_changed() -> Result<()> {
    let broker = Broker::start("", &NAMES.map(|name| (name, "")))?;
    let bridges = NAMES.map(|name| broker.bridge(name)).into_iter().collect::<Result<Vec<_>>>()?;
    let mut programs = bridges.iter().map(|(_, path)| computes_for_ever(path)).collect::<Result<Vec<_>>>()?;
    let all_have = |programs: &[Background], least: &[usize]| {
        eventually(PATIENCE, || programs.iter().zip(least).all(|(program, least)| rounds(program) > *least))
    };
    ensure!(all_have(&programs, &[0; 8]), "not all compute\n{}", broker.log());
    let unchanged: Vec<&str> = NAMES.into_iter().filter(|name| *name != "c").collect();
    let before = unchanged.iter().map(|vm| possessions(&broker, vm)).collect::<Result<Vec<_>>>()?;
    let submitted = unchanged.iter().map(|vm| submissions(&broker, vm)).collect::<Result<Vec<_>>>()?;
    let device = broker.device("c")?;
    broker.rewrite("", &NAMES.map(|name| (name, if name == "c" { "max-contexts = 7" } else { "" })))?;
    assert_eq!(
        reports(&broker, &["reload", "--now"])?,
        ["0 added, 0 removed, 0 changed, 1 restarted, 7 unchanged"],
        "{}",
        broker.log()
    );
    ensure!(eventually(PATIENCE, || broker.listens("c")), "c does not come back\n{}", broker.log());
    ensure!(broker.device("c")? != device && !is_alive(device), "c has its old device process");
    ensure!(eventually(PATIENCE, || !programs[2].is_running()), "c's program does not notice");
    drop(programs.remove(2));
    // The round after the current one began when the file had been read.
    let done: Vec<_> = programs.iter().map(|program| rounds(program) + 1).collect();
    ensure!(all_have(&programs, &done), "not all go on\n{}", broker.log());
    for (program, name) in programs.iter_mut().zip(&unchanged) {
        ensure!(program.is_running() && program.errors().is_empty(), "{name}: {}", program.errors());
    }
    let after = unchanged.iter().map(|vm| possessions(&broker, vm)).collect::<Result<Vec<_>>>()?;
    assert_eq!(after, before);
    for (vm, before) in unchanged.iter().zip(submitted) {
        ensure!(submissions(&broker, vm)? > before, "{vm} submits nothing any more");
    }
    Ok(())
}

#[test]
fn vms_come_go_and_change_their_shares_and_what_an_operator_set_stays() -> Result<()> {
    let mut broker = Broker::start("", &[("a", "weight = 300"), ("b", "")])?;
    let (a, b) = (broker.device("a")?, broker.device("b")?);
    let session = connected(&broker, "a")?;
    broker.say(&["set", "a", "weight=50"])?;
    broker.rewrite("", &[("a", "weight = 300\nclass = \"latency\""), ("new", "ceiling = \"50%\"")])?;
    assert_eq!(reports(&broker, &["reload"])?, ["1 added, 1 removed, 1 changed, 0 restarted, 0 unchanged"]);
    ensure!(eventually(PATIENCE, || broker.listens("new")), "no new VM\n{}", broker.log());
    let gone = || !is_alive(b) && !broker.path("b").exists() && broker.vm("b").is_err();
    ensure!(eventually(PATIENCE, gone), "b is still there\n{}", broker.log());
    let vm = broker.vm("a")?;
    assert_eq!(
        (&vm["weight"], &vm["class"], &vm["state"]),
        (&json!(50), &json!("latency"), &json!("connected"))
    );
    assert_eq!((broker.device("a")?, &broker.vm("new")?["ceiling"]), (a, &json!(0.5)));
    // Another name for the same socket: the new VM waits until the old one has released the socket.
    let socket = format!("ceiling = \"50%\"\nsocket-path = \"{}\"", broker.path("new").display());
    broker.rewrite("", &[("a", "weight = 400\nclass = \"latency\""), ("renamed", &socket)])?;
    assert_eq!(reports(&broker, &["reload"])?, ["1 added, 1 removed, 1 changed, 0 restarted, 0 unchanged"]);
    ensure!(eventually(PATIENCE, || broker.listens("renamed")), "it is not renamed\n{}", broker.log());
    ensure!(!broker.log().contains("another process serves"), "it did not wait\n{}", broker.log());
    let vm = broker.vm("a")?;
    assert_eq!((&vm["weight"], &vm["restarts"]), (&json!(400), &json!(0)));
    let status = broker.status()?;
    let names: Vec<_> = status["vms"].as_array().context("VMs")?.iter().map(|vm| &vm["name"]).collect();
    assert_eq!(names, ["a", "renamed"]);
    let path = broker.vm("renamed")?["socket_path"].as_str().map(Path::new).map(Path::to_owned);
    assert_eq!(path, Some(broker.path("new")));
    drop(session);
    // A new VM can be used, and all of them end with the broker.
    drop(Gpu::new(Session::connect(&broker.path("new"), Options::default())?));
    ensure!(broker.stop()?.success(), "{}", broker.log());
    ensure!(!broker.path("new").exists() && !is_alive(a));
    Ok(())
}

#[test]
fn a_wrong_file_changes_nothing_and_a_right_one_is_read_at_sighup() -> Result<()> {
    let broker = Broker::start("", &[("a", "")])?;
    let device = broker.device("a")?;
    broker.rewrite("", &[("a", "gup = \"x\""), ("b", "")])?;
    let output = broker.operate(&["reload"])?;
    let said = String::from_utf8(output.stderr)?;
    let begin = format!("vhost-user-vulkan: {}: line ", broker.path("config").display());
    let is_told = said.starts_with(&begin) && said.contains(": [vm.a] gup: unknown (did you mean gpu?)");
    ensure!(is_told && said.ends_with("; nothing has changed\n"), "{said}");
    assert_eq!((output.status.code(), said.lines().count(), output.stdout.len()), (Some(1), 1, 0));
    let hang_up = |broker: &Broker| kill_process(broker.pid(), Signal::HUP);
    let logged = |what: &str| eventually(PATIENCE, || broker.log().contains(what));
    hang_up(&broker)?;
    let twice = || broker.log().matches("[vm.a] gup: unknown").count() == 2;
    ensure!(eventually(PATIENCE, twice), "{}", broker.log());
    assert_eq!(broker.device("a")?, device);
    broker.rewrite("policy = \"fair\"", &[("a", "gup = \"x\"")])?;
    let said = String::from_utf8(broker.operate(&["reload"])?.stderr)?;
    let lines: Vec<_> = said.lines().collect();
    ensure!(
        lines.len() == 4 && lines[0].ends_with(": 2 mistakes:") && lines[3] == "nothing has changed",
        "{said}"
    );
    ensure!(
        logged("the configuration file was read again:   line 2: policy: \"fair\" is none of "),
        "{}",
        broker.log()
    );
    broker.rewrite("metrics = \"/tmp/nowhere/metrics\"", &[("a", "max-maps = 7")])?;
    hang_up(&broker)?;
    ensure!(logged(
        "the configuration file was read again: 0 added, 0 removed, 0 changed, 1 restarted, 0 unchanged"
    ));
    ensure!(logged("max-maps changed: the VM gets a new device process"), "{}", broker.log());
    let other = |pid: Pid| pid != device;
    ensure!(eventually(PATIENCE, || broker.listens("a") && broker.device("a").is_ok_and(other)));
    let note = "metrics: what the file says now holds when the broker is started again, which ends the GPUs of all VMs";
    assert_eq!(
        reports(&broker, &["reload"])?,
        ["0 added, 0 removed, 0 changed, 0 restarted, 1 unchanged", note]
    );
    ensure!(logged(note), "{}", broker.log());
    Ok(())
}

#[test]
fn what_ends_the_gpu_of_a_vm_in_use_waits_until_the_vm_is_off() -> Result<()> {
    let broker = Broker::start("", &[("a", ""), ("b", "")])?;
    let (a, session) = (broker.device("a")?, connected(&broker, "a")?);
    broker.rewrite("", &[("a", "max-maps = 7\nwindow-size = \"1GiB\"\nweight = 7"), ("b", "weight = 8")])?;
    let waits = "a: max-maps, window-size take effect when the VM is off; `vhost-user-vulkan reload --now` does so at once and ends its GPU";
    let said = ["0 added, 0 removed, 2 changed, 0 restarted, 0 unchanged, 1 pending", waits];
    assert_eq!(reports(&broker, &["reload", "--dry-run"])?, said);
    assert_eq!((&broker.vm("b")?["weight"], &broker.vm("a")?["pending"]), (&json!(100), &Value::Null));
    assert_eq!(reports(&broker, &["reload"])?, said);
    kill_process(broker.pid(), Signal::HUP)?;
    ensure!(eventually(PATIENCE, || broker.log().matches(waits).count() == 2), "{}", broker.log());
    let vm = broker.vm("a")?;
    assert_eq!((broker.device("a")?, &vm["state"], &vm["weight"]), (a, &json!("connected"), &json!(7)));
    assert_eq!(vm["pending"], json!({"what": "restart", "keys": ["max-maps", "window-size"]}));
    let below = "a: restart pending when the VM is off: max-maps, window-size";
    assert_eq!(reports(&broker, &["status"])?.last().map(String::as_str), Some(below));
    assert_eq!(broker.vm("b")?["weight"], json!(8));
    drop(session);
    let other = || broker.listens("a") && broker.device("a").is_ok_and(|pid| pid != a);
    ensure!(eventually(PATIENCE, other), "the VM has its old device process\n{}", broker.log());
    ensure!(!is_alive(a) && broker.vm("a")?["pending"].is_null(), "{}", broker.log());
    assert_eq!(reports(&broker, &["reload"])?, ["0 added, 0 removed, 0 changed, 0 restarted, 2 unchanged"]);
    Ok(())
}

#[test]
fn a_vm_in_use_that_the_file_does_not_name_any_more_is_removed_when_it_is_off() -> Result<()> {
    let broker = Broker::start("", &[("a", ""), ("b", "")])?;
    let (a, b, session) = (broker.device("a")?, broker.device("b")?, connected(&broker, "a")?);
    broker.rewrite("", &[("b", "")])?;
    let waits = "a: the file does not name it any more, and it is removed when the VM is off; `vhost-user-vulkan reload --now` does so at once and ends its GPU";
    let said = ["0 added, 0 removed, 0 changed, 0 restarted, 1 unchanged, 1 pending", waits];
    assert_eq!(reports(&broker, &["reload"])?, said);
    assert_eq!((broker.device("a")?, &broker.vm("a")?["pending"]), (a, &json!({"what": "removal"})));
    // The file names the VM again, so the VM stays.
    broker.rewrite("", &[("a", ""), ("b", "")])?;
    assert_eq!(reports(&broker, &["reload"])?, ["0 added, 0 removed, 0 changed, 0 restarted, 2 unchanged"]);
    broker.rewrite("", &[("b", "")])?;
    assert_eq!(reports(&broker, &["reload"])?, said);
    drop(session);
    let gone = || !is_alive(a) && broker.vm("a").is_err() && !broker.path("a").exists();
    ensure!(eventually(PATIENCE, gone), "{}", broker.log());
    assert_eq!(broker.device("b")?, b);
    Ok(())
}

#[test]
fn vms_in_use_and_the_last_ones_are_removed_at_once_only_if_that_is_meant() -> Result<()> {
    let broker = Broker::start("", &[("a", ""), ("b", "")])?;
    let (a, b, _session) = (broker.device("a")?, broker.device("b")?, connected(&broker, "a")?);
    let why = "the file names no VM any more, but a, b are served; put them back, or remove them by `vhost-user-vulkan reload --now`; nothing has changed";
    broker.rewrite("", &[])?;
    for arguments in [&["reload"][..], &["reload", "--dry-run"]] {
        let output = broker.operate(arguments)?;
        let said = String::from_utf8(output.stderr)?;
        assert_eq!((output.status.code(), said), (Some(1), format!("vhost-user-vulkan: {why}\n")));
    }
    let logged = || broker.log().matches(&format!("the configuration file was read again: {why}")).count();
    assert_eq!(logged(), 1, "{}", broker.log());
    kill_process(broker.pid(), Signal::HUP)?;
    ensure!(eventually(PATIENCE, || logged() == 2), "{}", broker.log());
    std::fs::write(broker.path("config"), "")?;
    ensure!(broker.say(&["reload"]).is_err(), "an empty file removes all VMs");
    assert_eq!((broker.device("a")?, broker.device("b")?), (a, b));
    broker.rewrite("", &[("b", "")])?;
    let said = ["0 added, 1 removed, 0 changed, 0 restarted, 1 unchanged"];
    assert_eq!(reports(&broker, &["reload", "--dry-run", "--now"])?, said);
    // The option's older name.
    assert_eq!(reports(&broker, &["reload", "--remove"])?, said);
    ensure!(eventually(PATIENCE, || !is_alive(a) && broker.vm("a").is_err()), "{}", broker.log());
    assert_eq!(broker.device("b")?, b);
    // The remaining VM is the last, and has no frontend.
    broker.rewrite("", &[])?;
    ensure!(broker.say(&["reload"]).is_err() && broker.device("b")? == b);
    broker.say(&["reload", "--now"])?;
    ensure!(eventually(PATIENCE, || !is_alive(b)), "{}", broker.log());
    Ok(())
}

#[test]
fn parts_of_what_there_is_for_all_wait_and_the_operator_is_told() -> Result<()> {
    let top = "host-memory = \"4GiB\"";
    let broker = Broker::start(top, &[("a", ""), ("b", "host-memory = \"1GiB\"")])?;
    let devices = [broker.device("a")?, broker.device("b")?];
    broker.rewrite(top, &[("a", ""), ("b", "host-memory = \"1GiB\""), ("c", "")])?;
    let note = "host-memory: the part changes when the device process is started again, for a; write host-memory into the VM's table to have it changed now";
    assert_eq!(
        reports(&broker, &["reload"])?,
        ["1 added, 0 removed, 0 changed, 0 restarted, 2 unchanged", note]
    );
    ensure!(eventually(PATIENCE, || broker.listens("c")), "{}", broker.log());
    assert_eq!([broker.device("a")?, broker.device("b")?], devices);
    Ok(())
}
