//! Several VMs from one configuration file: programs of each compute, operators see and command, and a fault in one VM does not affect another.

use anyhow::{Context, Result, ensure};
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use tests::broker::{Broker, find, refused};
use tests::clients;
use tests::daemon::{cpu_time, eventually, halt, is_alive};
use tests::daemon_process::children;
use tests::guest::PATIENCE;
use tests::port::free_port;
use tests::program::{Background, LIMIT, Program, succeed};

fn computing(socket: &Path, rounds: &str) -> Result<Command> {
    clients::computing(Path::new(env!("CARGO_BIN_EXE_many_threads")), socket, rounds)
}

/// The value of a metric whose labels include these.
fn metric(text: &str, name: &str, labels: &[&str]) -> Option<f64> {
    let of = |line: &&str| {
        line.starts_with(&format!("{name}{{")) && labels.iter().all(|label| line.contains(label))
    };
    text.lines().find(of)?.rsplit(' ').next()?.parse().ok()
}

#[test]
fn who_connects_and_says_nothing_keeps_no_operator_and_no_collector_out() -> Result<()> {
    let port = free_port()?;
    let broker = Broker::start(&format!("metrics = \"127.0.0.1:{port}\""), &[("a", "")])?;
    let mut silent = Vec::new();
    let mut half = Vec::new();
    for _ in 0..40 {
        silent.push(UnixStream::connect(broker.path("control"))?);
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.write_all(b"GET /metr")?;
        half.push(stream);
    }
    for _ in 0..3 {
        broker.vm("a")?;
        broker.metrics(port)?;
    }
    Ok(())
}

/// The system may take any time to make a process: 1.7 s were seen while attackers kept all processors busy.
#[test]
fn the_thread_that_serves_all_vms_starts_no_process() -> Result<()> {
    let broker = Broker::start("", &[("a", ""), ("b", "")])?;
    let devices = [broker.device("a")?, broker.device("b")?].map(|device| device.as_raw_nonzero().get());
    let main = broker.pid().as_raw_nonzero().get();
    let the_first_thread_started_none = || -> Result<()> {
        let started = fs::read_to_string(format!("/proc/{main}/task/{main}/children"))?;
        ensure!(started.trim().is_empty(), "the broker's first thread has started {started}");
        Ok(())
    };
    the_first_thread_started_none()?;
    let all = children(main.try_into()?)?;
    for device in devices {
        ensure!(all.contains(&device.try_into()?), "{device} is not among {all:?}");
    }
    // A device process that is started again is no child of the first thread either.
    kill_process(broker.device("a")?, Signal::KILL)?;
    ensure!(eventually(PATIENCE, || broker
        .device("a")
        .is_ok_and(|device| device.as_raw_nonzero().get() != devices[0])));
    the_first_thread_started_none()
}

fn first_context(broker: &Broker, vm: &str) -> Result<Value> {
    let vm = broker.vm(vm)?;
    vm["contexts"].as_array().and_then(|contexts| contexts.first()).cloned().context("no context")
}

#[test]
fn programs_of_two_vms_compute_and_are_accounted_for() -> Result<()> {
    let port = free_port()?;
    let folder = tempfile::tempdir()?;
    let grants = folder.path().join("grants");
    let top = format!("metrics = \"127.0.0.1:{port}\"\nlog-grants = \"{}\"", grants.display());
    let mut broker =
        Broker::start(&top, &[("a", "weight = 300"), ("b", "class = \"latency\"\nceiling = \"90%\"")])?;
    let (_first, a) = broker.bridge("a")?;
    let (_second, b) = broker.bridge("b")?;
    let both = [Program::start(computing(&a, "15")?)?, Program::start(computing(&b, "15")?)?];
    for vm in ["a", "b"] {
        // On a machine that stands still, the program may have ended already.
        let submits = || broker.vm(vm).is_ok_and(|vm| vm["used"]["submissions"].as_u64() > Some(0));
        let shown = || first_context(&broker, vm).is_ok() || submits();
        ensure!(eventually(PATIENCE, shown), "no context of {vm} is shown");
    }
    println!("{}", broker.say(&["status"])?);
    for program in both {
        let output = program.wait(LIMIT)?;
        ensure!(output.status.success(), "{output:?}\n{}", broker.log());
    }
    for vm in ["a", "b"] {
        let over = || broker.vm(vm).is_ok_and(|vm| vm["contexts"] == json!([]));
        ensure!(eventually(PATIENCE, over), "contexts are left: {}", broker.vm(vm)?);
    }
    let status = broker.status()?;
    let text = broker.metrics(port)?;
    println!("{}\n{text}", broker.say(&["status"])?);
    for (vm, weight, class) in [("a", 300, "normal"), ("b", 100, "latency")] {
        let shown = find(&status["vms"], "name", &vm.into()).context("a VM")?;
        assert_eq!((&shown["weight"], &shown["class"]), (&json!(weight), &json!(class)));
        assert_eq!((&shown["state"], &shown["restarts"]), (&json!("connected"), &json!(0)));
        let seconds = shown["used"]["gpu_seconds"].as_f64().context("GPU seconds")?;
        let submissions = shown["used"]["submissions"].as_f64().context("submissions")?;
        ensure!(seconds > 0.0 && submissions > 0.0, "{shown}");
        ensure!(shown["used"]["cpu_seconds"].as_f64() > Some(0.0), "{shown}");
        let vm_label = format!("vm=\"{vm}\"");
        let counted = metric(&text, "vhost_user_vulkan_gpu_seconds_total", &[&vm_label, "queue=\"compute\""])
            .context("GPU seconds that are exported")?;
        // The broker counts in nanoseconds; a JSON parser may return the number next to the one that was written.
        ensure!((counted - seconds).abs() < 1e-9, "{counted} s are exported, {seconds} s shown");
        let counted = metric(&text, "vhost_user_vulkan_submissions_total", &[&vm_label]);
        assert_eq!(counted, Some(submissions));
        assert_eq!(metric(&text, "vhost_user_vulkan_weight", &[&vm_label]), Some(f64::from(weight)));
    }
    ensure!(broker.stop()?.success(), "{}", broker.log());
    check_log(&std::fs::read_to_string(&grants)?, &status)
}

/// Checks that the charges in the log's lines add up to the counters.
fn check_log(log: &str, status: &Value) -> Result<()> {
    for vm in status["vms"].as_array().context("VMs")? {
        let name = vm["name"].as_str().context("a name")?;
        let lines =
            log.lines().map(|line| line.split(' ').collect::<Vec<_>>()).filter(|line| line[1] == name);
        let (mut submissions, mut nanoseconds) = (0.0, 0.0);
        for line in lines {
            submissions += line[3].parse::<f64>()?;
            nanoseconds += line[4].parse::<f64>()?;
        }
        let counted = vm["used"]["gpu_seconds"].as_f64().context("GPU seconds")?;
        println!(
            "{name}: {submissions} submissions, {:.6} s logged, {counted:.6} s counted",
            nanoseconds / 1e9
        );
        assert_eq!(vm["used"]["submissions"].as_f64(), Some(submissions));
        ensure!((nanoseconds / 1e9 - counted).abs() < 1e-9, "{name}");
    }
    Ok(())
}

#[test]
fn an_operator_changes_a_share_and_is_told_what_is_allowed() -> Result<()> {
    let broker = Broker::start("", &[("a", "")])?;
    broker.say(&["set", "a", "weight=250", "class=background", "ceiling=25%"])?;
    let vm = broker.vm("a")?;
    assert_eq!(
        (&vm["weight"], &vm["class"], &vm["ceiling"]),
        (&json!(250), &json!("background"), &json!(0.25))
    );
    broker.say(&["set", "a", "ceiling=none"])?;
    assert_eq!(broker.vm("a")?["ceiling"], Value::Null);
    for (arguments, error) in [
        (&["set", "a", "weight=0"][..], "weight: 0 is not a whole number from 1 to 10000"),
        (&["set", "a", "class=fast"], "class: \"fast\" is none of \"normal\", \"latency\", \"background\""),
        (&["set", "c", "weight=1"], "c: no such VM; there are a"),
        (&["kill", "a/7"], "a/7: no such context; a has []"),
    ] {
        let output = broker.operate(arguments)?;
        assert_eq!(String::from_utf8(output.stderr)?, format!("vhost-user-vulkan: {error}\n"));
        assert_eq!(output.status.code(), Some(1));
    }
    Ok(())
}

#[test]
fn a_context_that_an_operator_ends_is_the_only_one_that_ends() -> Result<()> {
    let broker = Broker::start("", &[("a", ""), ("b", "")])?;
    let (_first, a) = broker.bridge("a")?;
    let (_second, b) = broker.bridge("b")?;
    let victim = Program::start(computing(&a, "100000000")?)?;
    ensure!(eventually(PATIENCE, || first_context(&broker, "a").is_ok()), "no context\n{}", broker.log());
    let number = first_context(&broker, "a")?["context"].clone();
    let mut bystander = Program::start(computing(&a, "15")?)?;
    let elsewhere = Program::start(computing(&b, "15")?)?;
    let both =
        || broker.vm("a").is_ok_and(|vm| vm["contexts"].as_array().is_some_and(|list| list.len() == 2));
    let begun = eventually(PATIENCE, || both() || !bystander.is_running());
    ensure!(begun, "no second context: {}", broker.vm("a")?);
    broker.say(&["kill", &format!("a/{number}")])?;
    let output = victim.wait(LIMIT).context("the victim noticed nothing")?;
    ensure!(!output.status.success());
    for program in [bystander, elsewhere] {
        let output = program.wait(LIMIT)?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let vm = broker.vm("a")?;
    assert_eq!((&vm["kills"]["operator"], &vm["restarts"]), (&json!(1), &json!(0)), "{vm}");
    Ok(())
}

#[test]
fn a_device_process_that_dies_is_started_again_and_no_other_vm_notices() -> Result<()> {
    let broker = Broker::start("", &[("a", ""), ("b", "")])?;
    let (first, _) = broker.bridge("a")?;
    let (_second, b) = broker.bridge("b")?;
    let bystander = Background::start(computing(&b, "100000000")?)?;
    ensure!(eventually(PATIENCE, || first_context(&broker, "b").is_ok()), "no context\n{}", broker.log());
    let (died, other) = (broker.device("a")?, broker.device("b")?);
    kill_process(died, Signal::KILL)?;
    drop(first);
    ensure!(eventually(PATIENCE, || broker.listens("a")), "it does not come back\n{}", broker.log());
    ensure!(broker.device("a")? != died && !is_alive(died));
    assert_eq!((broker.vm("a")?["restarts"].clone(), broker.device("b")?), (json!(1), other));
    let (_again, a) = broker.bridge("a")?;
    succeed(computing(&a, "2")?, LIMIT)?;
    let before = first_context(&broker, "b")?["used"]["submissions"].as_u64();
    let goes_on =
        || first_context(&broker, "b").is_ok_and(|now| now["used"]["submissions"].as_u64() > before);
    ensure!(eventually(PATIENCE, goes_on), "the other VM's program stands still");
    drop(bystander);
    Ok(())
}

#[test]
fn device_processes_end_with_their_broker() -> Result<()> {
    let mut broker = Broker::start("", &[("a", ""), ("b", "")])?;
    let devices = [broker.device("a")?, broker.device("b")?];
    ensure!(broker.stop()?.success(), "{}", broker.log());
    ensure!(devices.iter().all(|device| !is_alive(*device)));
    ensure!(!broker.path("control").exists() && !broker.path("a").exists());
    let broker = Broker::start("", &[("a", "")])?;
    let device = broker.device("a")?;
    kill_process(broker.pid(), Signal::KILL)?;
    ensure!(eventually(PATIENCE, || !is_alive(device)), "a device process has lost its broker and lives on");
    Ok(())
}

#[test]
fn who_connects_and_says_nothing_holds_up_nobody() -> Result<()> {
    let port = free_port()?;
    let broker = Broker::start(&format!("metrics = \"127.0.0.1:{port}\""), &[("a", "")])?;
    let silent: Vec<_> =
        (0..7).map(|_| UnixStream::connect(broker.path("control"))).collect::<Result<_, _>>()?;
    let slow: Vec<_> =
        (0..7).map(|_| std::net::TcpStream::connect(("127.0.0.1", port))).collect::<Result<_, _>>()?;
    ensure!(broker.status().is_ok() && broker.metrics(port).is_ok());
    // While these clients are connected, the broker is not busy with them.
    let (before, began) = (cpu_time(broker.pid())?, Instant::now());
    std::thread::sleep(Duration::from_secs(1));
    let used = cpu_time(broker.pid())? - before;
    let passed = began.elapsed();
    // A busy process would use all the time that passes.
    ensure!(used < passed / 4, "{used:?} of {passed:?}");
    drop((silent, slow));
    Ok(())
}

#[test]
fn an_operator_who_waits_for_an_answer_does_not_lose_his_place_to_those_who_say_nothing() -> Result<()> {
    let broker = Broker::start("", &[("a", "")])?;
    // The broker asks the device process for its memory, which takes until the broker's patience ends.
    let device = broker.device("a")?;
    halt(device)?;
    let mut operator = UnixStream::connect(broker.path("control"))?;
    operator.write_all(b"{\"request\":\"status\"}\n")?;
    // The broker accepts each of these connections behind the operator's, and reads from it before the next.
    let connect = || UnixStream::connect(broker.path("control"));
    let silent = (0..100).map(|_| connect()).collect::<Result<Vec<_>, _>>()?;
    operator.set_read_timeout(Some(PATIENCE))?;
    let answered = std::io::Read::read_exact(&mut operator, &mut [0; 1]);
    kill_process(device, Signal::CONT)?;
    answered.context("the connection was closed without an answer")?;
    drop(silent);
    Ok(())
}

#[test]
fn the_control_socket_is_for_the_group_that_the_file_names_also_when_it_is_made_again() -> Result<()> {
    let group = rustix::process::getegid().as_raw();
    let broker = Broker::start(&format!("control-socket-group = \"{group}\""), &[("a", "")])?;
    let control = broker.path("control");
    let found = || fs::metadata(&control).map(|file| (file.mode() & 0o7777, file.gid()));
    assert_eq!(found()?, (0o660, group));
    fs::remove_file(&control)?;
    kill_process(broker.pid(), Signal::HUP)?;
    let is_given = || found().is_ok_and(|found| found == (0o660, group));
    ensure!(eventually(PATIENCE, is_given), "{:?}", found());
    Ok(())
}

#[test]
fn a_wrong_file_is_refused_in_one_line_and_nothing_starts() -> Result<()> {
    let file = tempfile::NamedTempFile::new()?;
    let path = file.path().display().to_string();
    let socket = tempfile::tempdir()?;
    let vm = format!("[vm.web]\nsocket-path = \"{}\"\n", socket.path().join("gpu").display());
    std::fs::write(file.path(), format!("{vm}gup = \"NVIDIA\"\n"))?;
    for arguments in [&[][..], &["--check-config"]] {
        let said = refused(arguments, file.path())?;
        ensure!(
            said.starts_with(&format!(
                "vhost-user-vulkan: {path}: line 3: [vm.web] gup: unknown (did you mean gpu?)"
            )),
            "{said}"
        );
        assert_eq!(said.lines().count(), 1);
    }
    std::fs::write(file.path(), &vm)?;
    let beside = tests::broker::vhost_user_vulkan()?.args(["--config", &path, "--gpu", "x"]).output()?;
    let said = "vhost-user-vulkan: --gpu cannot stand beside --config: write it in the file\n";
    assert_eq!((beside.status.code(), String::from_utf8(beside.stderr)?.as_str()), (Some(2), said));
    let checked = tests::broker::vhost_user_vulkan()?.args(["--check-config", "--config", &path]).output()?;
    ensure!(checked.status.success() && checked.stderr.is_empty());
    assert_eq!(String::from_utf8(checked.stdout)?, "1 VM, valid\n");
    ensure!(!socket.path().join("gpu").exists());
    Ok(())
}

#[test]
fn all_that_is_wrong_with_a_file_is_told_with_its_lines() -> Result<()> {
    let file = tempfile::NamedTempFile::new()?;
    let path = file.path().display().to_string();
    let vms = "[vm.\"Web_01.x\"]\nsocket-path = \"/nowhere/a\"\n[vm.b]\nsocket-path = \"/nowhere/b\"\n";
    std::fs::write(file.path(), vms.replace("socket-path = \"/nowhere/b\"", "weight = 0"))?;
    for arguments in [&[][..], &["--check-config"]] {
        let said = refused(arguments, file.path())?;
        let heading = format!("vhost-user-vulkan: {path}: 2 mistakes:");
        let lines = [
            heading.as_str(),
            "  line 3: [vm.b] socket-path: is needed",
            "  line 4: [vm.b] weight: 0 is not a whole number from 1 to 10000",
        ];
        assert_eq!(said.lines().collect::<Vec<_>>(), lines);
    }
    std::fs::write(file.path(), vms)?;
    let checked = tests::broker::vhost_user_vulkan()?.args(["--check-config", "--config", &path]).output()?;
    assert_eq!(
        (checked.status.code(), String::from_utf8(checked.stdout)?),
        (Some(0), "2 VMs, valid\n".to_owned())
    );
    Ok(())
}
