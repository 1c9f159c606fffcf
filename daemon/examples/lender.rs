//! Plays a worker on a GPU whose driver exports nothing: the memory that it exports can be mapped out of a device node, and is lost with the worker.
//! The node is `/dev/zero`, and other nodes of its driver stand for the anchors that keep the memory alive; `tests/tests/behaviour/lent_memory.rs`
//! starts this program with `--exe`. The program repeats the messages that it gets on standard error.

use anyhow::{Context, Result, bail};
use config::{DriverMapped, Heap, MemoryId, Wanted};
use daemon::ipc::{Channel, DriverFamily, MapInfo, ProbeReport, ToDevice, ToWorker};
use daemon::sandbox::{Options, SandboxMode, SeccompMode, inherited, seal_child};
use protocol::ids::ResourceId;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;

/// A blob for which the worker has asked for memory, and the resource that it becomes.
struct Export {
    resource_id: ResourceId,
    size: u64,
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let at = arguments.iter().position(|argument| argument == "--channel-fd").context("no channel")?;
    let channel = arguments.get(at + 1).context("no channel")?.parse()?;
    let channel = Channel::from_socket(inherited(channel)?);
    seal_child(
        &Options { sandbox: SandboxMode::Strict, seccomp: SeccompMode::Kill },
        DriverFamily::Software,
    )?;
    if arguments.get(1).is_some_and(|role| role == "probe") {
        return Ok(channel.send(&probe(), None)?);
    }
    let mut asked = Vec::new();
    while let Ok((message, _)) = channel.receive::<ToWorker>() {
        obey(&channel, message, &mut asked)?;
    }
    say("ends")
}

/// Returns the machine's GPUs, each with a type of memory that its driver maps out of `/dev/zero`.
fn probe() -> ProbeReport {
    let device = rustix::fs::fstat(File::open("/dev/zero").map_err(|error| error.to_string())?);
    let device = device.map_err(|error| error.to_string())?.st_rdev;
    let mut gpus = vulkan::probe().map_err(|error| error.to_string())?;
    for trial in gpus.iter_mut().filter_map(|gpu| gpu.memfd.as_mut().ok()) {
        trial.driver_mapped = DriverMapped { types: 1, device };
    }
    Ok(gpus)
}

fn obey(channel: &Channel, message: ToWorker, asked: &mut Vec<Export>) -> Result<()> {
    match message {
        ToWorker::Setup(setup) if setup.gpus[0].trial.driver_mapped.types == 0 => say("not offered")?,
        ToWorker::ExportBlob { resource_id, size, .. } => {
            let request = asked.len() as u32;
            asked.push(Export { resource_id, size });
            let wanted = Wanted::Piece { heap: Heap::Device, bytes: size };
            channel.send(&ToDevice::MemoryWanted { request, wanted }, None)?;
        }
        ToWorker::MemoryGranted { request, memory: Some(memory), .. } => {
            let export = asked.get(request as usize).context("an answer to no question")?;
            lend(channel, export, memory, request == 0)?;
        }
        ToWorker::BlobGone { memory } => {
            say("is told that a blob is gone")?;
            channel.send(&ToDevice::MemoryReturned { memory }, None)?;
        }
        ToWorker::MemoryRefused { .. } => bail!("no memory"),
        _ => {}
    }
    Ok(())
}

fn lend(channel: &Channel, export: &Export, memory: MemoryId, first: bool) -> Result<()> {
    if first {
        for left in [1, 0] {
            channel.send(&ToDevice::Anchor { left }, Some(File::open("/dev/full")?.as_fd()))?;
        }
    }
    let node = File::options().read(true).write(true).open("/dev/zero")?;
    let Export { resource_id, size } = *export;
    let exported =
        ToDevice::BlobExported { resource_id, map_info: MapInfo::WriteCombined, memory: Some(memory) };
    say(&format!("lends {size} bytes"))?;
    Ok(channel.send(&exported, Some(node.as_fd()))?)
}

fn say(what: &str) -> Result<()> {
    Ok(std::io::stderr().write_all(format!("lender {what}\n").as_bytes())?)
}
