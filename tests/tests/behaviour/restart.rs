//! `restart VM/CONTEXT` gives a program another worker while it runs, or refuses with a reason.

use anyhow::{Context, Result, ensure};
use protocol::venus::generated as venus;
use serde_json::json;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use tests::broker::{Broker, vhost_user_vulkan};
use tests::daemon::on_machine;
use tests::daemon_process::build_example;
use tests::frontend::{Options, Session};
use tests::guest::device::{Device, Source, ensure_filled};
use tests::guest::{Blob, Gpu};
use tests::packages::HostVulkan;

/// The error of a command that fails.
fn refusal(broker: &Broker, arguments: &[&str]) -> Result<String> {
    let output = broker.operate(arguments)?;
    ensure!(output.status.code() == Some(1), "{arguments:?}: {}", output.status);
    ensure!(output.stdout.is_empty(), "{arguments:?} says {:?}", String::from_utf8_lossy(&output.stdout));
    Ok(String::from_utf8(output.stderr)?)
}

#[test]
fn what_is_not_there_is_not_restarted() -> Result<()> {
    let broker = Broker::start("", &[("a", ""), ("b", "")])?;
    for (context, why) in [
        ("c/1", "c: no such VM; there are a, b"),
        ("a/1", "a/1: no such context; a has []"),
        ("a", "a: not VM/CONTEXT, as status shows it"),
        ("a/x", "a/x: not VM/CONTEXT, as status shows it"),
    ] {
        let error = refusal(&broker, &["restart", context])?;
        ensure!(error.contains(why), "{context}: {error}");
    }
    let vm = broker.vm("a")?;
    let none = json!({ "done": 0, "failed": 0, "last_pause_seconds": null });
    ensure!(vm["context_restarts"] == none, "a refused request was counted: {vm}");
    Ok(())
}

#[test]
fn a_request_that_is_refused_leaves_its_connection_for_the_next() -> Result<()> {
    let broker = Broker::start("", &[("a", "")])?;
    let mut stream = UnixStream::connect(broker.path("control"))?;
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    for request in [r#"{"request":"restart","vm":"a","context":7}"#, r#"{"request":"restart","vm":"a"}"#] {
        writeln!(stream, "{request}")?;
        let answer = lines.next().transpose()?.unwrap_or_default();
        ensure!(answer.starts_with(r#"{"answer":"error","#), "{request}: {answer}");
    }
    Ok(())
}

/// Bytes of an allocation.
pub(crate) const SIZE: u64 = 256 * 1024;

/// A broker with a VM whose GPU has memory that no processor can map, and the driver, which must be kept as long as the broker. It is a software driver's,
/// unless the tests run on the machine's own.
pub(crate) fn with_hidden_memory() -> Result<(HostVulkan, Broker)> {
    if on_machine() {
        let mut command = vhost_user_vulkan()?;
        // At this level the log lists the parts of a pause.
        command.args(["--log-level", "debug"]);
        return Ok((HostVulkan::System, Broker::start_command(command, "", &[("a", "movable = true")])?));
    }
    let layer = build_example("hidden_memory_layer")?.with_file_name("libhidden_memory_layer.so");
    let vulkan = HostVulkan::hidden_memory(&layer)?;
    let broker = Broker::start_on(&vulkan, "", "", &[("a", "")])?;
    Ok((vulkan, broker))
}

/// Memory that can be mapped, into which the device copies memory that cannot be mapped.
pub(crate) struct Seen {
    memory: venus::DeviceMemory,
    blob: Blob,
}

impl Seen {
    pub(crate) fn new(device: &mut Device) -> Result<Self> {
        let memory = device.allocate(SIZE, Source::New)?.ok().context("memory")?;
        Ok(Self { memory, blob: device.blob(memory, SIZE)? })
    }

    /// Returns the contents of memory that cannot be mapped.
    pub(crate) fn contents(&self, device: &mut Device, memory: venus::DeviceMemory) -> Result<Vec<u8>> {
        device.copy(memory, self.memory, SIZE)?;
        self.blob.bytes(SIZE)
    }
}

#[test]
fn memory_that_only_the_driver_uses_outlives_worker_after_worker() -> Result<()> {
    let (_vulkan, broker) = with_hidden_memory()?;
    let gpu = Arc::new(Gpu::new(Session::connect(&broker.path("a"), Options::default())?));
    let mut device = Device::create(&gpu, "keeper")?;
    let hidden = device.hidden.context("the layer adds no memory type")?;
    let (seen, mut all) = (Seen::new(&mut device)?, Vec::new());
    for word in 1..5 {
        let memory = device.allocate_of_type(SIZE, hidden, Source::New)?.ok().context("memory")?;
        device.fill(memory, SIZE, word)?;
        all.push((memory, word));
    }
    let context = format!("a/{}", device.context.0);
    for round in 1..4 {
        let said = broker.say(&["restart", &context])?;
        ensure!(said.contains("restarted: its program was paused for "), "{said}");
        for (memory, word) in &mut all {
            ensure_filled(&seen.contents(&mut device, *memory)?, *word).context("behind a restart")?;
            *word = *word * 100 + round;
            device.fill(*memory, SIZE, *word)?;
        }
        // Freed memory is not kept, and new memory is kept, too.
        device.free(all.remove(0).0)?;
        let memory = device.allocate_of_type(SIZE, hidden, Source::New)?.ok().context("memory")?;
        device.fill(memory, SIZE, round)?;
        all.push((memory, round));
    }
    if on_machine() {
        return Ok(());
    }
    // A swap-out would have to copy this memory, and there is no queue for the copy.
    let swapped = broker.operate(&["swap-out", &context])?;
    let error = String::from_utf8_lossy(&swapped.stderr);
    ensure!(
        swapped.status.code() == Some(1)
            && error.contains("no spare queue on which its memory could be copied"),
        "{error}"
    );
    for (memory, word) in all {
        ensure_filled(&seen.contents(&mut device, memory)?, word)?;
    }
    Ok(())
}
