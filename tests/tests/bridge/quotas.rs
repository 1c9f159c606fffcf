//! Unmodified Mesa at its limits: a program that takes all it can get, of each kind, ends by itself; and a program in the next context computes what it
//! should, llama.cpp among them.

use anyhow::{Context, Result, ensure};
use protocol::ids::BlobId;
use protocol::virtio_gpu::BlobFlags;
use std::io::{BufRead, BufReader};
use std::ops::RangeInclusive;
use std::path::Path;
use std::process::{Child, Stdio};
use tests::clients::{Files, LLAMA, Packages, Place, Setup, computing};
use tests::daemon::{Daemon, eventually};
use tests::guest::ring::{Ring, RingOptions};
use tests::packages::{ClientRoot, Device, Suite};
use tests::program::{LIMIT, Program, succeed};

/// The number that a program asks for, which is more than any limit allows.
const MANY: u32 = 4000;

/// The number that a program without a limit asks for beyond its count with one: all of [`MANY`] would take minutes.
const MORE: u32 = 64;

/// A program that has taken all it can get, and keeps it.
struct Hog {
    process: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Hog {
    fn start(client: &ClientRoot, socket: &Path, kind: &str, asked: u32) -> Result<Self> {
        let mut command = client.own(Path::new(env!("CARGO_BIN_EXE_hog")), Device::Venus(socket))?;
        command.args([kind, &asked.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn()?;
        let output = BufReader::new(process.stdout.take().context("stdout is piped")?);
        Ok(Self { process, output })
    }

    /// Returns the program's count, and the error that ended it.
    fn got(&mut self) -> Result<(u32, String)> {
        let mut line = String::new();
        while self.output.read_line(&mut line)? > 0 {
            if let Some(words) = line.trim().strip_prefix("got ") {
                let (count, ending) = words.split_once(" of ").context("a count and a kind")?;
                return Ok((count.parse()?, ending.to_owned()));
            }
            line.clear();
        }
        anyhow::bail!("it ended without a word: {}", self.process.wait()?)
    }

    /// Lets the program end, which it must do by itself.
    fn end(mut self) -> Result<()> {
        drop(self.process.stdin.take());
        let status = self.process.wait()?;
        ensure!(status.success(), "{status}");
        Ok(())
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Checks that a program computes what it should.
fn computes(setup: &Setup) -> Result<()> {
    succeed(computing(Path::new(env!("CARGO_BIN_EXE_many_threads")), setup.socket(), "3")?, LIMIT).map(drop)
}

/// Runs a hog that asks for `asked` of one kind. While it keeps them, `beside` is called with the error that ended it. Returns the hog's count.
fn hog(setup: &Setup, kind: &str, asked: u32, beside: impl FnOnce(&str) -> Result<()>) -> Result<u32> {
    let mut hog = Hog::start(&ClientRoot::open(Suite::Testing)?, setup.socket(), kind, asked)?;
    let (got, ending) = hog.got().with_context(|| kind.to_owned())?;
    println!("{kind}: {got}, {ending}");
    beside(&ending)?;
    hog.end()?;
    Ok(got)
}

/// Demands a line of the daemon's log, which may come after the event.
fn says(setup: &Setup, line: &str) -> Result<()> {
    let is_there = || setup.daemon().log().contains(line);
    ensure!(eventually(LIMIT, is_there), "no line \"{line}\"\n{}", setup.daemon().log());
    Ok(())
}

/// Runs a hog with limits small enough to be reached soon, and large enough for the program `beside` to find its share.
fn limited(
    kind: &str,
    limits: [&str; 2],
    limit: &str,
    range: RangeInclusive<u32>,
    beside: impl FnOnce(&Setup) -> Result<()>,
) -> Result<()> {
    let setup = Setup::on(Daemon::start_with(&limits)?)?;
    let got = hog(&setup, kind, MANY, |ending| {
        ensure!(!ending.contains("no limit"), "{kind} has no limit");
        beside(&setup).with_context(|| format!("beside {kind}"))
    })?;
    ensure!(range.contains(&got), "{got} of {kind}");
    says(&setup, limit)?;
    setup.settle()?;
    // Without the limit the program gets more.
    let free = Setup::on(Daemon::start_with(&["--max-maps", "500"])?)?;
    let more = hog(&free, kind, got + MORE, |_| Ok(()))?;
    ensure!(more > got, "{more} of {kind} without the limit, {got} with it");
    free.settle()?;
    Ok(())
}

#[test]
fn maps_run_out_for_one_program_only() -> Result<()> {
    limited("maps", ["--max-maps", "200"], "limit max-maps reached", 100..=175, computes)
}

#[test]
fn objects_run_out_for_one_program_only() -> Result<()> {
    limited("objects", ["--max-objects", "3000"], "limit \"max-objects\" reached", 2000..=3000, computes)
}

#[test]
fn shaders_run_out_for_one_program_only() -> Result<()> {
    limited("shaders", ["--shader-memory", "32MiB"], "limit \"shader-memory\" reached", 100..=128, computes)
}

#[test]
fn memory_runs_out_for_one_program_only() -> Result<()> {
    let (files, packages) = (Files::write()?, Packages::open(Suite::Testing)?);
    let run = |device: Device<'_>| LLAMA.run(&Place::Packages(&packages, device), &files, LIMIT);
    limited("work", ["--host-memory", "1GiB"], "limit host-memory reached", 800..=896, |setup| {
        ensure!(run(Device::Venus(setup.socket()))? == run(Device::Native)?, "llama.cpp has another output");
        Ok(())
    })
}

/// Programs that may not have memory get an error of Vulkan, from each Mesa, and never a signal.
#[test]
fn a_program_out_of_memory_hears_of_it_and_ends_by_itself() -> Result<()> {
    let setup = Setup::on(Daemon::start_with(&["--host-memory", "512MiB"])?)?;
    for suite in [Suite::Trixie, Suite::Testing] {
        let client = ClientRoot::open(suite)?;
        for (kind, errors) in [
            (
                "memory",
                &["ERROR_OUT_OF_DEVICE_MEMORY", "ERROR_OUT_OF_HOST_MEMORY", "ERROR_MEMORY_MAP_FAILED"][..],
            ),
            ("work", &["ERROR_DEVICE_LOST", "ERROR_OUT_OF_DEVICE_MEMORY", "ERROR_OUT_OF_HOST_MEMORY"]),
        ] {
            let mut hog = Hog::start(&client, setup.socket(), kind, MANY)?;
            let (got, ending) = hog.got().with_context(|| format!("{suite:?} {kind}"))?;
            ensure!(errors.iter().any(|error| ending.contains(error)), "{suite:?} {kind}: {ending}");
            ensure!((200..=448).contains(&got), "{suite:?}: {got} of {kind}");
            hog.end()?;
        }
    }
    setup.settle()?;
    Ok(())
}

/// llama.cpp names the error and ends by itself, with any amount of memory that is too small.
#[test]
fn llama_without_enough_memory_ends_by_itself() -> Result<()> {
    let (files, packages) = (Files::write()?, Packages::open(Suite::Testing)?);
    for memory in ["1MiB", "4MiB", "8MiB"] {
        let setup = Setup::on(Daemon::start_with(&["--host-memory", memory])?)?;
        let guest = Place::Packages(&packages, Device::Venus(setup.socket()));
        let output = Program::start(LLAMA.command(&guest, &files)?)?.wait(LIMIT)?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.code().is_some(), "{memory}: {}\n{said}", output.status);
        ensure!(!output.status.success(), "{memory} is enough\n{said}");
        let told = ["OutOfDeviceMemory", "OutOfHostMemory", "DeviceLost", "allocat"];
        ensure!(told.iter().any(|word| said.contains(word)), "{memory}: {said}");
        setup.settle()?;
    }
    Ok(())
}

/// The bridge's own guest takes the objects of which no program on Mesa takes many.
#[test]
fn contexts_resources_and_rings_run_out_for_one_program_only() -> Result<()> {
    let options =
        ["--max-contexts", "32", "--max-resources", "2000", "--ring-memory", "2GiB", "--max-rings", "64"];
    let setup = Setup::on(Daemon::start_with(&options)?)?;
    let gpu = setup.guest();
    let contexts: Vec<_> = (0..40).map_while(|_| gpu.create_context("hog").ok()).collect();
    ensure!(contexts.len() == 28, "{} contexts", contexts.len());
    let hidden = |context, size| gpu.create_blob(context, BlobId(0), BlobFlags::empty(), size).ok();
    let large = (0..400).map_while(|_| hidden(contexts[0], 8 << 20)).count();
    ensure!(large == 224, "{large} times 8 MiB for rings");
    let many = (0..2500).map_while(|_| hidden(contexts[1], 4096)).count();
    ensure!((1500..1600).contains(&many), "{many} resources");
    let ringed = contexts[2];
    let rings = (0..80).map_while(|_| Ring::create(gpu, ringed, RingOptions::default()).ok());
    let rings: Vec<_> = rings.collect();
    says(&setup, "limit max-rings (64) reached").with_context(|| format!("{} rings", rings.len()))?;
    computes(&setup)?;
    for limit in ["max-contexts", "max-resources", "ring-memory"] {
        says(&setup, &format!("limit {limit} reached"))?;
    }
    Ok(())
}

/// Mesa 26.2 keeps fences in the guest, and a fence there cannot report an error: work that cannot run ends the program, and never looks complete.
#[test]
fn nobody_takes_work_that_was_not_done_for_done() -> Result<()> {
    let setup = Setup::on(Daemon::start_with(&["--host-memory", "512MiB"])?)?;
    let client = ClientRoot::open(Suite::Unstable)?;
    let mut hog = Hog::start(&client, setup.socket(), "memory", MANY)?;
    ensure!(hog.got()?.1.contains("ERROR_"), "a map says nothing");
    hog.end()?;
    let mut hog = Hog::start(&client, setup.socket(), "work", MANY)?;
    match hog.got() {
        Ok((got, ending)) => ensure!(ending.contains("ERROR_") && got < 64, "{got}, {ending}"),
        Err(ended) => println!("{ended}"),
    }
    drop(hog);
    setup.settle()?;
    Ok(())
}
