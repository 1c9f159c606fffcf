//! Tests that one tenant does not find another's data: memory of every kind, after the other tenant has ended or was killed.

use anyhow::{Context, Result, ensure};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;
use tests::bridge::Bridge;
use tests::daemon::Daemon;
use tests::packages::{ClientRoot, Device, Suite};
use tests::program::variable;
use tests::program::{LIMIT, succeed};

/// Rounds of all programs, each with two workers of its own; `RESIDUE_ROUNDS` asks for another number. Without zeroing, each of the first three finds
/// data (see below).
const ROUNDS: u32 = 40;

/// Programs that share the rounds, at the same time.
const PROGRAMS: u32 = 2;

/// Options with which shaders stay inside their buffers; by default the guest decides that on a GPU.
fn robust() -> &'static [&'static str] {
    if on_gpu() { &["--robustness", "on"] } else { &[] }
}

fn on_gpu() -> bool {
    std::env::var_os("VHOST_USER_VULKAN_GPU").is_some()
}

struct Setup {
    // In the order in which they end.
    bridge: Bridge,
    socket: PathBuf,
    _folder: TempDir,
    daemon: Daemon,
    client: ClientRoot,
}

impl Setup {
    fn new(options: &[&str]) -> Result<Self> {
        let daemon = Daemon::start_poisoned(options)?;
        let folder = tempfile::tempdir()?;
        let socket = folder.path().join("vtest.sock");
        let bridge = Bridge::listen(&socket, daemon.guest()?)?;
        Ok(Self { bridge, socket, _folder: folder, daemon, client: ClientRoot::open(Suite::Testing)? })
    }

    fn residue(&self, arguments: &[&str]) -> Result<Command> {
        let executable = Path::new(env!("CARGO_BIN_EXE_residue"));
        let mut command = self.client.own(executable, Device::Venus(&self.socket))?;
        command.args(arguments);
        Ok(command)
    }
}

/// Bytes found in memory, in workgroup memory, in workgroup memory of the tenant's own, and behind the end of a buffer.
fn found(output: &str) -> Result<[u64; 4]> {
    let line = output.lines().find(|line| line.starts_with("residue: ")).context("no line of results")?;
    let numbers = line.split([' ', ',']).filter_map(|word| word.parse().ok());
    <[u64; 4]>::try_from(numbers.collect::<Vec<_>>()).ok().with_context(|| line.to_owned())
}

#[test]
#[ignore = "repeats what few tenants show: many rounds of them"]
fn in_many_rounds_no_tenant_finds_anything_of_another() -> Result<()> {
    let setup = Setup::new(robust())?;
    let rounds: u32 = variable::number("RESIDUE_ROUNDS")?.unwrap_or(ROUNDS);
    let each = rounds.div_ceil(PROGRAMS).to_string();
    let search = || succeed(setup.residue(&["--rounds", &each, "--mebibytes", "4"])?, LIMIT);
    std::thread::scope(|scope| {
        let searches: Vec<_> = (0..PROGRAMS).map(|_| scope.spawn(search)).collect();
        searches.into_iter().try_for_each(|search| {
            let output = search.join().expect("no panic")?;
            ensure!(found(&output)? == [0; 4], "{output}");
            Ok(())
        })
    })?;
    setup.daemon.wait_for_workers(0)?;
    drop(setup.bridge);
    Ok(())
}

#[test]
fn tenants_find_nothing_of_those_that_were_killed() -> Result<()> {
    let setup = Setup::new(robust())?;
    for _ in 0..10 {
        let mut first = setup.residue(&["--fill", "--mebibytes", "4"])?.stdout(Stdio::piped()).spawn()?;
        let said = BufReader::new(first.stdout.take().context("stdout is piped")?).lines().next();
        ensure!(said.transpose()?.as_deref() == Some("filled"));
        first.kill()?;
        first.wait()?;
        let output = succeed(setup.residue(&["--look", "--rounds", "1", "--mebibytes", "4"])?, LIMIT)?;
        ensure!(found(&output)? == [0; 4], "{output}");
    }
    Ok(())
}

/// The `residue` program of the tests above finds data if the daemon does not zero memory. On a GPU it may find none.
#[test]
fn without_zeroing_there_is_something_to_find() -> Result<()> {
    let setup = Setup::new(&["--zero-workgroup-memory", "off", "--robustness", "guest"])?;
    let output = succeed(setup.residue(&["--rounds", "3", "--mebibytes", "4"])?, LIMIT)?;
    let [memory, workgroup, own, outside] = found(&output)?;
    ensure!(memory == 0 && (on_gpu() || (workgroup > 0 && own > 0 && outside > 0)), "{output}");
    Ok(())
}
