//! One VM after another: sessions begin and end, and none leaves anything to the next.

use anyhow::{Result, ensure};
use rustix::process::{Signal, kill_process};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::time::{Duration, Instant};
use tests::daemon::{self, Daemon, Holdings, eventually, is_alive};
use tests::daemon_process::{DaemonProcess, prepared};
use tests::frontend::{Options, Session};
use tests::guest::{Gpu, PATIENCE};

fn fill(guest: &Gpu) -> Result<()> {
    for _ in 0..2 {
        let context = guest.create_context("live")?;
        for _ in 0..12 {
            guest.create_shmem(context, 64 << 10)?;
        }
    }
    Ok(())
}

#[test]
fn end_of_a_session_frees_everything_and_the_next_one_is_served() -> Result<()> {
    let daemon = Daemon::start()?;
    let run = || -> Result<()> {
        let guest = daemon.guest()?;
        fill(&guest)?;
        daemon.wait_for_workers(2)?;
        drop(guest);
        daemon.wait_for_workers(0)?;
        Ok(())
    };
    (0..3).try_for_each(|_| run())?;
    // The daemon may be accepting a session right now, so the test waits for the state between two sessions.
    let settled = || Holdings::of(daemon.pid()).map_or(usize::MAX, |holdings| holdings.descriptors);
    let mut lowest = usize::MAX;
    eventually(Duration::from_millis(500), || {
        lowest = lowest.min(settled());
        false
    });
    (0..10).try_for_each(|_| run())?;
    assert!(eventually(PATIENCE, || settled() <= lowest), "{lowest} descriptors became {}", settled());
    Ok(())
}

#[test]
fn frontend_that_dies_in_the_middle_of_negotiation_is_survived() -> Result<()> {
    let daemon = Daemon::start()?;
    for cut in 0..10 {
        let stream = UnixStream::connect(daemon.socket())?;
        // SET_OWNER, then a piece of the next header.
        let bytes = [3u32, 1, 0, 1, 1].map(u32::to_le_bytes).concat();
        std::io::Write::write_all(&mut &stream, &bytes[..2 * cut])?;
        drop(stream);
    }
    assert!(daemon.is_running());
    assert_eq!(daemon.guest()?.capset()?.len(), protocol::venus::capset::SIZE);
    Ok(())
}

#[test]
fn second_frontend_waits_for_the_first_to_go() -> Result<()> {
    let daemon = Daemon::start()?;
    let first = daemon.guest()?;
    let socket = daemon.socket();
    let second = std::thread::spawn(move || Session::connect(&socket, Options::default()).map(Gpu::new));
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(first.capset()?.len(), protocol::venus::capset::SIZE, "the first session is not disturbed");
    drop(first);
    // The second frontend is refused, or served when the first has ended: both are fine, as long as the daemon serves the frontend that comes after.
    let _ = second.join().expect("connecting does not panic");
    assert_eq!(daemon.guest()?.capset()?.len(), protocol::venus::capset::SIZE);
    Ok(())
}

/// Checks that there are few lines with this text: some may come at once, and then one every ten seconds.
fn ensure_few(daemon: &Daemon, text: &str, begin: Instant) -> Result<()> {
    let lines = daemon.log().lines().filter(|line| line.contains(text)).count() as u64;
    let allowed = 5 + begin.elapsed().as_secs() / 10 + 1;
    ensure!((1..=allowed).contains(&lines), "{lines} lines \"{text}\", {allowed} are enough");
    Ok(())
}

#[test]
fn who_connects_or_resets_again_and_again_does_not_fill_the_log() -> Result<()> {
    let daemon = Daemon::start()?;
    let begin = Instant::now();
    for _ in 0..100 {
        let stream = UnixStream::connect(daemon.socket())?;
        // The read returns when the connection has been accepted and dropped.
        stream.shutdown(Shutdown::Write)?;
        std::io::Read::read_to_end(&mut &stream, &mut Vec::new())?;
    }
    let mut guest = daemon.guest()?;
    for _ in 0..100 {
        // A queue that was not used has the same state as after a reset.
        assert_eq!(guest.capset()?.len(), protocol::venus::capset::SIZE);
        guest.session.reset()?;
        guest = Gpu::new(guest.session);
    }
    assert_eq!(guest.capset()?.len(), protocol::venus::capset::SIZE);
    for text in
        ["a frontend has connected", "the frontend has disconnected", "the driver has reset the device"]
    {
        ensure_few(&daemon, text, begin)?;
    }
    Ok(())
}

#[test]
fn a_socket_is_for_those_who_were_named_whatever_the_umask_is() -> Result<()> {
    for (umask, options, mode) in [
        ("000", &[][..], 0o600),
        ("777", &[], 0o600),
        ("077", &["--socket-mode=0666"], 0o666),
        ("077", &["--socket-group=7"], 0o660),
    ] {
        let command = prepared(&format!("umask {umask}"), &daemon::command()?);
        if options == ["--socket-group=7"] && !rustix::process::geteuid().is_root() {
            println!("skipped: only root gives a file to any group");
            continue;
        }
        let daemon = DaemonProcess::start_command(command, options)?;
        let found = || std::fs::metadata(daemon.socket()).map(|file| (file.mode() & 0o7777, file.gid()));
        let group = if options == ["--socket-group=7"] { 7 } else { found()?.1 };
        // The file appears without access for other users, and its mode is widened then.
        let reached = eventually(PATIENCE, || found().is_ok_and(|found| found == (mode, group)));
        ensure!(reached, "{umask} {options:?}: {:?}", found()?);
    }
    Ok(())
}

#[test]
fn exit_on_disconnect_ends_the_daemon() -> Result<()> {
    let daemon = Daemon::start_with(&["--exit-on-disconnect"])?;
    let guest = daemon.guest()?;
    fill(&guest)?;
    let workers = daemon.wait_for_workers(2)?;
    drop(guest);
    assert!(eventually(PATIENCE, || !daemon.is_running()), "{}", daemon.log());
    assert!(eventually(PATIENCE, || workers.iter().all(|&worker| !is_alive(worker))));
    assert!(eventually(PATIENCE, || !daemon.socket().exists()), "the socket file is left");
    Ok(())
}

#[test]
fn sigterm_ends_everything_cleanly() -> Result<()> {
    for with_guest in [false, true] {
        let daemon = Daemon::start()?;
        let guest = with_guest.then(|| daemon.guest()).transpose()?;
        let workers = match &guest {
            Some(guest) => {
                fill(guest)?;
                daemon.wait_for_workers(2)?
            }
            None => Vec::new(),
        };
        let socket = daemon.socket();
        daemon.into_process().stop()?;
        assert!(eventually(PATIENCE, || !socket.exists()), "the socket file is left");
        assert!(eventually(PATIENCE, || workers.iter().all(|&worker| !is_alive(worker))));
        if let Some(guest) = guest {
            assert!(guest.session.wait_until_over(PATIENCE));
        }
    }
    Ok(())
}

#[test]
fn workers_do_not_outlive_a_killed_daemon() -> Result<()> {
    let daemon = Daemon::start()?;
    let guest = daemon.guest()?;
    fill(&guest)?;
    let workers = daemon.wait_for_workers(2)?;
    kill_process(daemon.pid(), Signal::KILL)?;
    assert!(eventually(PATIENCE, || workers.iter().all(|&worker| !is_alive(worker))));
    Ok(())
}

#[test]
fn stale_socket_is_replaced_and_a_live_one_is_respected() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("gpu.sock");
    drop(std::os::unix::net::UnixListener::bind(&path)?);
    let start = || {
        daemon::command()?
            .arg("--socket-path")
            .arg(&path)
            .stderr(Stdio::piped())
            .spawn()
            .map_err(anyhow::Error::from)
    };
    let mut first = start()?;
    let connected = eventually(PATIENCE, || UnixStream::connect(&path).is_ok());
    let second = start()?.wait_with_output()?;
    let still_there = UnixStream::connect(&path).is_ok();
    first.kill()?;
    first.wait()?;
    assert!(connected && still_there);
    assert!(!second.status.success());
    // The log may have lines about the machine before the error.
    let said = String::from_utf8_lossy(&second.stderr);
    assert_eq!(said.lines().filter(|line| !is_of_the_machine(line)).count(), 1, "{said}");
    Ok(())
}

/// Returns whether a line of the log is no error: such a line reports the daemon's findings about the machine.
fn is_of_the_machine(line: &str) -> bool {
    ["Z INFO  ", "Z WARN  "].iter().any(|level| line.contains(level))
}

#[test]
fn bad_options_are_one_clear_line_each() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let socket = folder.path().join("gpu.sock").to_string_lossy().into_owned();
    let no_folder = "/nonexistent/folder/gpu.sock: there is no folder /nonexistent/folder; make it (`mkdir -p /nonexistent/folder`), or name another path";
    // 2 if the command line is wrong, 1 if it cannot be followed.
    for (options, word, status) in [
        (vec!["--socket-path", &socket, "--gpu", "no such gpu"], "no such gpu", 1),
        (vec!["--socket-path", "/nonexistent/folder/gpu.sock"], no_folder, 1),
        (vec!["--socket-path", &socket, "--window-size", "many"], "window-size", 2),
        (vec!["--socket-path", &socket, "--window-size", "4097"], "window-size", 2),
        (vec!["--socket-path", &socket, "--windowsize", "4096"], "; did you mean --window-size?", 2),
        (vec!["--socket-path", &socket, "--scanouts", "9"], "scanouts", 2),
        (vec!["--config", "/nonexistent/vms.toml"], "/nonexistent/vms.toml", 1),
        (vec!["recipe"], "vhost-user-vulkan: recipe: one of qemu, libvirt, crosvm\n", 2),
        (vec!["stauts"], "; did you mean status?", 2),
        (vec!["--fd", "1000"], "1000", 1),
    ] {
        let output = daemon::bare_command()?.args(&options).output()?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{options:?}: {stderr}");
        assert!(stderr.contains(word), "{options:?}: {stderr}");
        // The log may also have lines about the machine.
        let lines = stderr.lines().filter(|line| !is_of_the_machine(line)).count();
        assert!(lines <= 4, "{options:?}: {stderr}");
    }
    Ok(())
}

#[test]
fn session_on_an_inherited_descriptor_works() -> Result<()> {
    let (ours, theirs) = UnixStream::pair()?;
    // The descriptor is not inheritable in this process, because other tests start programs in it at the same time.
    let mut command = prepared("exec 3<&0 0</dev/null", daemon::command()?.args(["--fd", "3"]));
    let mut child = command.stdin(Stdio::from(OwnedFd::from(theirs))).spawn()?;
    // The command would keep this process's end open.
    drop(command);
    let guest = Gpu::new(Session::start(ours, Options::default())?);
    let context = guest.create_context("on a pair")?;
    guest.create_shmem(context, 4096)?;
    drop(guest);
    // No other frontend can come on a pair of sockets.
    assert!(eventually(PATIENCE, || matches!(child.try_wait(), Ok(Some(_)))));
    Ok(())
}

#[test]
fn questions_without_a_socket_are_answered() -> Result<()> {
    let ask = |option: &str| -> Result<String> {
        let output = daemon::command()?.arg(option).output()?;
        let errors = String::from_utf8_lossy(&output.stderr);
        anyhow::ensure!(output.status.success() && errors.is_empty(), "{option}: {errors}");
        Ok(String::from_utf8(output.stdout)?)
    };
    assert!(ask("--version")?.starts_with("vhost-user-vulkan "));
    assert!(ask("--print-capabilities")?.contains("\"type\": \"gpu\""));
    let list = ask("--list-gpus")?;
    let head = ["NAME", "KIND", "MEMORY", "DRIVER", "VULKAN", "PCI", "ADDRESS", "UUID"];
    let (first, gpus) = list.split_once('\n').unwrap_or_default();
    assert_eq!(first.split_whitespace().collect::<Vec<_>>(), head, "{list}");
    assert!(gpus.lines().count() > 0 && gpus.lines().all(|gpu| gpu.contains("GiB  ")), "{list}");
    Ok(())
}
