//! Clients that do many things at once: processes, instances, devices, queues, and threads that compile and record.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;
use tests::bridge::Bridge;
use tests::daemon::{Daemon, eventually};
use tests::packages::{ClientRoot, Device, Suite};
use tests::program::{Program, succeed};

const LIMIT: Duration = Duration::from_secs(240);

struct Setup {
    // In the order in which they end.
    bridge: Bridge,
    socket: PathBuf,
    _folder: TempDir,
    daemon: Daemon,
}

impl Setup {
    fn new() -> Result<Self> {
        let daemon = Daemon::start()?;
        let folder = tempfile::tempdir()?;
        let socket = folder.path().join("vtest.sock");
        let bridge = Bridge::listen(&socket, daemon.guest()?)?;
        Ok(Self { bridge, socket, _folder: folder, daemon })
    }

    fn many_threads(&self, client: &ClientRoot, arguments: &[&str]) -> Result<Command> {
        let executable = Path::new(env!("CARGO_BIN_EXE_many_threads"));
        let mut command = client.own(executable, Device::Venus(&self.socket))?;
        command.args(arguments);
        Ok(command)
    }

    /// Every client, worker and map is gone.
    fn settle(&self) -> Result<()> {
        self.daemon.wait_for_workers(0)?;
        let window = &self.bridge.gpu().session.window;
        let gone = || self.bridge.live_clients() == 0 && window.live() == 0;
        ensure!(eventually(LIMIT, gone), "{} maps are left", window.live());
        ensure!(window.violations().is_empty(), "{:?}", window.violations());
        Ok(())
    }
}

fn every_word_was_right(output: &str, words: u32) -> Result<()> {
    ensure!(output.contains(&format!("checked {words} words")), "{output}");
    Ok(())
}

#[test]
fn many_threads_of_many_devices_compile_record_and_submit_at_once() -> Result<()> {
    let setup = Setup::new()?;
    for suite in Suite::ALL {
        let client = ClientRoot::open(suite)?;
        let arguments = ["--instances", "2", "--devices", "2", "--lanes", "3", "--rounds", "10"];
        let output = succeed(setup.many_threads(&client, &arguments)?, LIMIT);
        let output = output.with_context(|| format!("{suite:?}"))?;
        every_word_was_right(&output, 2 * 2 * 3 * 10 * 4096).with_context(|| format!("{suite:?}"))?;
    }
    setup.settle()
}

#[test]
fn many_processes_with_threads_do_not_disturb_each_other() -> Result<()> {
    let setup = Setup::new()?;
    let clients = [
        ClientRoot::open(Suite::Trixie)?,
        ClientRoot::open(Suite::Testing)?,
        ClientRoot::open(Suite::Unstable)?,
    ];
    let arguments = ["--instances", "1", "--devices", "2", "--lanes", "2", "--rounds", "5"];
    let start = |number: usize| Program::start(setup.many_threads(&clients[number % 3], &arguments)?);
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
    setup.settle()
}
