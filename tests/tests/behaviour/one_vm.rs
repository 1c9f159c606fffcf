//! The control socket of a daemon that serves one VM, which the command line names: operators see and command as with a broker, and a client that
//! connects delays neither operators nor the guest.

use anyhow::{Context, Result, anyhow, ensure};
use protocol::ids::RingIdx;
use protocol::venus::generated as venus;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::fs::{self, File, Permissions};
use std::io::{ErrorKind, Write};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use tests::broker::{metrics, operate, say, vhost_user_vulkan};
use tests::daemon::{self, Daemon, eventually};
use tests::daemon_process::daemon_executable;
use tests::frontend::{Options, Session};
use tests::guest::device::{Device, Source};
use tests::guest::ring::ASYNC;
use tests::guest::{PATIENCE, timeline};
use tests::port::free_port;
use tests::program::executable;

/// Some milliseconds of a software driver's time.
const SIZE: u64 = 16 << 20;

/// The option for no control socket.
const NONE: &[&str] = &["--control-socket", "none"];

/// The only VM, as the status shows it.
fn vm(daemon: &Daemon) -> Result<Value> {
    let status: Value = serde_json::from_str(&say(&daemon.control(), &["status", "--json"])?)?;
    status["vms"].as_array().and_then(|vms| vms.first()).cloned().context("no VM")
}

fn device(daemon: &Daemon, name: &str) -> Result<Device> {
    timeline::device(&Arc::new(daemon.guest()?), name)
}

/// Submits `count` times, and waits until all submissions are done.
fn compute(device: &mut Device, count: u32) -> Result<()> {
    let memory = device.allocate(SIZE, Source::New)?.map_err(|result| anyhow!("{result:?}"))?;
    let dst_buffer = device.bound(memory, SIZE)?;
    for data in 0..count {
        device.submit(|command_buffer, w| {
            venus::CmdFillBuffer { command_buffer, dst_buffer, dst_offset: 0, size: SIZE, data }
                .encode(ASYNC, w);
        })?;
    }
    let done = device.gpu().submit_fenced(device.context, RingIdx(1), &[]);
    ensure!(done.arrives_within(PATIENCE), "it is never done");
    Ok(())
}

#[test]
fn an_operator_sees_the_vm_and_hears_that_nothing_is_shared_out() -> Result<()> {
    let daemon = Daemon::start()?;
    let control = daemon.control();
    ensure!(eventually(PATIENCE, || vm(&daemon).is_ok_and(|vm| vm["state"] == "waiting")));
    assert_eq!(fs::metadata(&control)?.permissions().mode() & 0o777, 0o600);
    let mut device = device(&daemon, "program")?;
    compute(&mut device, 5)?;
    let counted = || vm(&daemon).is_ok_and(|vm| vm["used"]["submissions"].as_u64() >= Some(5));
    ensure!(eventually(PATIENCE, counted), "{}", vm(&daemon)?);
    let seen = vm(&daemon)?;
    assert_eq!((&seen["name"], &seen["state"]), (&json!("socket"), &json!("connected")));
    assert_eq!(seen["pid"], json!(daemon.id()));
    assert_eq!(seen["socket_path"], json!(daemon.socket()));
    assert_eq!(seen["contexts"][0]["name"], "program");
    ensure!(seen["used"]["gpu_seconds"].as_f64() > Some(0.0), "{seen}");
    ensure!(seen["device_cpu_seconds"].as_f64() > Some(0.0), "{seen}");
    let not_shared = "this daemon serves one VM and shares no GPU out: weight, class and ceiling are for the VMs of one broker; to use them, name the VMs in a file and start vhost-user-vulkan --config FILE";
    for (arguments, error) in [
        (&["set", "socket", "class=background", "ceiling=25%"][..], not_shared),
        (&["set", "web", "weight=1"], "web: no such VM; there are socket"),
        (&["kill", "socket/77"], "socket/77: no such context; socket has [1]"),
        (&["reload"], "this daemon serves one VM and has no file: end it, and start it with other options"),
    ] {
        let output = operate(&control, arguments)?;
        assert_eq!(String::from_utf8(output.stderr)?, format!("vhost-user-vulkan: {error}\n"));
    }
    drop(device);
    daemon.into_process().stop()?;
    ensure!(!control.exists(), "the control socket is left");
    Ok(())
}

#[test]
fn a_part_of_the_gpus_memory_bounds_the_vm() -> Result<()> {
    for (options, part) in [(&["--device-memory", "25%"][..], 4), (&["--device-memory", "100%"], 1)] {
        let daemon = Daemon::start_with(options)?;
        let status = || -> Result<(Option<u64>, Option<u64>)> {
            let status: Value = serde_json::from_str(&say(&daemon.control(), &["status", "--json"])?)?;
            let (bound, all) =
                (&status["vms"][0]["device_memory_limit"], &status["gpus"][0]["device_memory"]);
            Ok((bound.as_u64(), all.as_u64()))
        };
        let told = || status().is_ok_and(|(bound, all)| bound.is_some() && all.is_some());
        ensure!(eventually(PATIENCE, told), "{:?}", status());
        let (bound, all) = status()?;
        assert_eq!(bound, all.map(|all| all / part));
    }
    Ok(())
}

#[test]
fn a_context_that_an_operator_ends_is_the_only_one_that_ends() -> Result<()> {
    let daemon = Daemon::start()?;
    let guest = Arc::new(daemon.guest()?);
    let (victim, mut other) = (timeline::device(&guest, "victim")?, timeline::device(&guest, "other")?);
    let contexts = |count| vm(&daemon).is_ok_and(|vm| vm["contexts"].as_array().map(Vec::len) == Some(count));
    ensure!(eventually(PATIENCE, || contexts(2)), "{}", vm(&daemon)?);
    say(&daemon.control(), &["kill", &format!("socket/{}", victim.context.0)])?;
    ensure!(eventually(PATIENCE, || contexts(1)), "{}", vm(&daemon)?);
    assert_eq!(vm(&daemon)?["contexts"][0]["name"], "other");
    daemon.wait_for_workers(1)?;
    compute(&mut other, 3)?;
    ensure!(daemon.log().contains("an operator ended it"), "the log does not say why");
    Ok(())
}

#[test]
fn metrics_are_served_where_an_option_says() -> Result<()> {
    let port = free_port()?;
    let daemon = Daemon::start_with(&["--metrics", &format!("127.0.0.1:{port}"), "--vm-name", "web"])?;
    let mut device = device(&daemon, "program")?;
    compute(&mut device, 3)?;
    let counted = || -> Result<bool> {
        let text = metrics(port)?;
        let line =
            text.lines().find(|line| line.starts_with("vhost_user_vulkan_submissions_total{vm=\"web\""));
        Ok(line.context("no metric")?.rsplit(' ').next().context("a value")?.parse::<f64>()? >= 3.0)
    };
    ensure!(eventually(PATIENCE, || counted().unwrap_or(false)), "{}", metrics(port)?);
    Ok(())
}

#[test]
fn submissions_can_be_traced() -> Result<()> {
    let daemon = Daemon::start()?;
    let mut device = device(&daemon, "program")?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("trace.json");
    let mut command = vhost_user_vulkan()?;
    command.args(["trace", "socket", "--seconds", "300", "--control-socket"]).arg(daemon.control());
    command.arg("--output").arg(&file).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn()?;
    ensure!(eventually(PATIENCE, || file.exists()), "it does not begin");
    // The worker may not know of the trace yet, so more is submitted until the device process has counted enough.
    for _ in 0..20 {
        compute(&mut device, 1)?;
    }
    ensure!(
        eventually(PATIENCE, || vm(&daemon).is_ok_and(|vm| vm["used"]["submissions"].as_u64() >= Some(20)))
    );
    kill_process(Pid::from_child(&child), Signal::INT)?;
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let trace: Value = serde_json::from_slice(&fs::read(&file)?)?;
    let events = trace["traceEvents"].as_array().context("events")?;
    let traced = events.iter().filter(|event| event["cat"] == "submission").count();
    ensure!(traced > 0, "{trace}");
    Ok(())
}

#[test]
fn who_connects_and_asks_nothing_or_nonsense_holds_up_neither_operators_nor_the_guest() -> Result<()> {
    let port = free_port()?;
    let daemon = Daemon::start_with(&["--metrics", &format!("127.0.0.1:{port}")])?;
    let mut device = device(&daemon, "program")?;
    let mut peers = Vec::new();
    let mut collectors = Vec::new();
    for at in 0..40 {
        let mut peer = UnixStream::connect(daemon.control())?;
        match at % 4 {
            0 => {}
            1 => peer.write_all(b"{\"request\":\"sta")?,
            2 => peer.write_all(&[0xff; 300])?,
            // A client that asks again and again and reads no answer.
            _ => (0..50).try_for_each(|_| match peer.write_all(b"{\"request\":\"status\"}\n") {
                Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error),
                _ => Ok(()),
            })?,
        }
        peers.push(peer);
        let mut collector = TcpStream::connect(("127.0.0.1", port))?;
        collector.write_all(b"GET /metr")?;
        collectors.push(collector);
    }
    for _ in 0..3 {
        compute(&mut device, 3)?;
        vm(&daemon)?;
        metrics(port)?;
    }
    Ok(())
}

/// Starts the daemon, which has to refuse, and returns its message.
fn refused(arguments: &[&str]) -> Result<String> {
    let folder = tempfile::tempdir()?;
    let mut command: Command = daemon::command()?;
    command.arg("--socket-path").arg(folder.path().join("socket")).args(arguments);
    let output = command.output()?;
    ensure!(output.status.code() == Some(1), "{}", output.status);
    Ok(String::from_utf8(output.stderr)?)
}

#[test]
fn a_control_socket_that_is_named_has_to_be_there_and_an_option_wants_none() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("operators");
    let named = path.display().to_string();
    let daemon = Daemon::start_with(&["--control-socket", &named])?;
    ensure!(eventually(PATIENCE, || path.exists()) && !daemon.control().exists());
    say(&path, &["status"])?;
    let said = refused(&["--control-socket", &named])?;
    ensure!(said.contains("another process serves this socket"), "{said}");
    let said = refused(&[NONE, &["--metrics", "127.0.0.1:1"]].concat())?;
    ensure!(said.contains("--metrics needs a control socket"), "{said}");
    let said = refused(&[NONE, &["--control-socket-group", "7"]].concat())?;
    ensure!(said.contains("--control-socket-group needs a control socket"), "{said}");
    let without = Daemon::start_with(NONE)?;
    compute(&mut device(&without, "program")?, 3)?;
    ensure!(!without.control().exists());
    Ok(())
}

#[test]
fn a_daemon_whose_usual_control_socket_cannot_be_made_serves_its_vm_and_says_what_helps() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (socket, log) = (folder.path().join("socket"), folder.path().join("log"));
    fs::create_dir(folder.path().join("socket.control"))?;
    let mut command: Command = daemon::command()?;
    command.arg("--socket-path").arg(&socket).stderr(File::create(&log)?);
    let mut child = command.spawn()?;
    let served = eventually(PATIENCE, || Session::connect(&socket, Options::default()).is_ok());
    kill_process(Pid::from_child(&child), Signal::TERM)?;
    child.wait()?;
    let log = fs::read_to_string(&log)?;
    ensure!(served, "{log}");
    ensure!(log.contains("no control socket") && log.contains("name a path with --control-socket"), "{log}");
    ensure!(folder.path().join("socket.control").is_dir());
    Ok(())
}

/// A group of operators, and a user.
const OPERATORS: u32 = 4242;
const USER: u32 = 4001;

#[test]
fn members_of_the_group_of_operators_may_command_and_others_hear_that_they_may_not() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root runs a program as other users");
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let (folder, control) = (folder.path(), folder.path().join("control"));
    fs::set_permissions(folder, Permissions::from_mode(0o700))?;
    let (path, group) = (control.display().to_string(), OPERATORS.to_string());
    let daemon = Daemon::start_with(&["--control-socket", &path, "--control-socket-group", &group])?;
    let found = || fs::metadata(&control).map(|file| (file.mode() & 0o7777, file.gid()));
    let is_given = || found().is_ok_and(|found| found == (0o660, OPERATORS));
    ensure!(eventually(PATIENCE, is_given), "{:?}", found());
    let warning = format!("its members may not pass {}", folder.display());
    ensure!(eventually(PATIENCE, || daemon.log().contains(&warning)), "{}", daemon.log());
    fs::set_permissions(folder, Permissions::from_mode(0o711))?;
    let program = folder.join("vhost-user-vulkan");
    executable::copy(&daemon_executable()?, &program)?;
    let status_of = |group: u32| -> Result<(Option<i32>, String)> {
        let mut command = Command::new(&program);
        command.args(["status", "--control-socket"]).arg(&control).uid(USER).gid(group);
        let output = command.output()?;
        Ok((output.status.code(), String::from_utf8(output.stderr)?))
    };
    assert_eq!(status_of(OPERATORS)?, (Some(0), String::new()));
    let (status, said) = status_of(USER)?;
    let denied = said.contains("Permission denied") && said.contains("run it with sudo");
    ensure!(status == Some(1) && denied && !said.contains("is vhost-user-vulkan running"), "{said}");
    Ok(())
}
