//! VMs that are promised more memory than a GPU has take turns, wait for memory no longer than they may, and compute the same results as alone.

use anyhow::{Context, Result, anyhow, ensure};
use protocol::ids::BlobId;
use protocol::virtio_gpu::{BlobFlags, BlobMem, Command};
use rustix::process::{Signal, kill_process};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tests::bridge::Bridge;
use tests::broker::Broker;
use tests::clients::turns::{self, SMALL, end_well, submissions, two};
use tests::daemon::eventually;
use tests::frontend::{Options, Session};
use tests::guest::device::{Device, Source, ensure_filled};
use tests::guest::ring::{Ring, RingOptions};
use tests::guest::{Gpu, PATIENCE, timeline};
use tests::package::installed::Installed;
use tests::program::{LIMIT, Program};
use vm_memory::{Bytes as _, VolatileMemory as _};

/// Starts a program of a VM that computes until `end_well`.
fn computing(broker: &Broker, vm: &str) -> Result<(Bridge, Program)> {
    turns::computing(Path::new(env!("CARGO_BIN_EXE_many_threads")), broker, vm)
}

fn state(broker: &Broker, vm: &str) -> String {
    let vm = broker.vm(vm).unwrap_or_default();
    vm["contexts"][0]["state"].as_str().unwrap_or_default().to_owned()
}

/// Waits until a VM has completed more work.
fn goes_on(broker: &Broker, vm: &str) -> Result<()> {
    let before = submissions(broker, vm);
    let done = eventually(PATIENCE, || submissions(broker, vm) > before);
    ensure!(done, "{vm} does not go on: {}\n{}", broker.status()?, broker.log());
    Ok(())
}

#[test]
fn two_vms_that_are_promised_all_of_a_gpu_take_turns_and_compute_the_same() -> Result<()> {
    let broker = two(SMALL)?;
    let (_first, one) = computing(&broker, "a")?;
    goes_on(&broker, "a")?;
    let (_second, other) = computing(&broker, "b")?;
    for vm in ["b", "a", "b"] {
        goes_on(&broker, vm)?;
    }
    println!("{}", broker.say(&["status"])?);
    ensure!(broker.log().contains("is swapped out: "), "no VM has given anything up");
    end_well(&broker, [one, other])
}

#[test]
fn vms_that_take_turns_go_on_with_other_device_processes() -> Result<()> {
    let installed = Installed::start_with(SMALL, &[("a", ""), ("b", "")])?;
    let broker = &installed.broker;
    let (_first, one) = computing(broker, "a")?;
    goes_on(broker, "a")?;
    let (_second, other) = computing(broker, "b")?;
    goes_on(broker, "b")?;
    installed.replace()?;
    println!("{}", broker.say(&["upgrade"])?);
    for vm in ["a", "b"] {
        let is_new = || broker.device(vm).is_ok_and(|device| installed.is_new(device).unwrap_or_default());
        ensure!(eventually(PATIENCE, is_new), "{vm} keeps its device process\n{}", broker.log());
    }
    let before = broker.log().matches("is swapped out: ").count();
    for vm in ["a", "b", "a", "b"] {
        goes_on(broker, vm)?;
    }
    let turns = || broker.log().matches("is swapped out: ").count();
    ensure!(turns() > before, "no VM gives anything up any more\n{}", broker.log());
    end_well(broker, [one, other])
}

#[test]
fn one_that_comes_back_waits_for_the_memory_of_another_that_is_idle_then() -> Result<()> {
    let broker = two(SMALL)?;
    let (_first, one) = computing(&broker, "a")?;
    goes_on(&broker, "a")?;
    kill_process(one.pid(), Signal::STOP)?;
    let (_second, other) = computing(&broker, "b")?;
    goes_on(&broker, "b")?;
    ensure!(eventually(PATIENCE, || state(&broker, "a") == "swapped out"), "{}", broker.log());
    kill_process(other.pid(), Signal::STOP)?;
    kill_process(one.pid(), Signal::CONT)?;
    goes_on(&broker, "a")?;
    kill_process(other.pid(), Signal::CONT)?;
    end_well(&broker, [one, other])
}

#[test]
fn a_wait_for_memory_that_is_not_given_up_has_an_end() -> Result<()> {
    let broker = Broker::start(
        &format!("{SMALL}\nmemory-wait = \"2s\""),
        &[("a", "reserved-memory = \"48KiB\""), ("b", "")],
    )?;
    let (_first, one) = computing(&broker, "a")?;
    goes_on(&broker, "a")?;
    let (_second, other) = computing(&broker, "b")?;
    let ended = other.wait(LIMIT).context("the program does not end")?;
    ensure!(!ended.status.success(), "{ended:?}");
    let log = broker.log();
    ensure!(log.contains("limit memory-wait (2 s) reached") && log.contains("promise VMs less"), "{log}");
    ensure!(!log.contains("is swapped out"), "reserved memory was given up");
    end_well(&broker, [one])
}

#[test]
fn nothing_is_swapped_out_where_there_is_memory_for_all() -> Result<()> {
    let broker = two("gpu-memory = \"1GiB\"")?;
    let (_first, one) = computing(&broker, "a")?;
    let (_second, other) = computing(&broker, "b")?;
    for vm in ["a", "b", "a", "b"] {
        goes_on(&broker, vm)?;
    }
    ensure!(!broker.log().contains("swapped out"), "{}", broker.log());
    end_well(&broker, [one, other])
}

/// A program of a VM, with timelines.
fn program(broker: &Broker, vm: &str) -> Result<(Arc<Gpu>, Device)> {
    let gpu = Arc::new(Gpu::new(Session::connect(&broker.path(vm), Options::default())?));
    let program = timeline::device(&gpu, vm)?;
    Ok((gpu, program))
}

#[test]
fn a_program_that_is_about_to_map_what_it_waits_for_gives_up_what_it_has() -> Result<()> {
    const WORD: u32 = 0x5eed;
    const HAD: u64 = 8 << 10;
    const WANTED: u64 = 48 << 10;
    let broker = two("gpu-memory = \"96KiB\"")?;
    let ((gpu, mut waits), (_other, mut holds)) = (program(&broker, "a")?, program(&broker, "b")?);
    let memory = waits.allocate(HAD, Source::New)?.map_err(|result| anyhow!("{result:?}"))?;
    let had = waits.blob(memory, HAD)?.mapping.context("it is mapped")?.1.map()?;
    had.as_volatile_slice().write_slice(&WORD.to_le_bytes().repeat(HAD as usize / 4), 0)?;
    holds.allocate(48 << 10, Source::New)?.map_err(|result| anyhow!("{result:?}"))?;
    // The virtqueue waits for an allocation before it makes a blob of it, as Mesa's driver asks.
    let mut second = Ring::create(&gpu, waits.context, RingOptions::default())?;
    let semaphore = timeline::wait_on_ring(&mut waits)?;
    let blob_id = BlobId(waits.allocate_unheard(WANTED)?.0);
    gpu.submit(waits.context, &waits.wait_for_ring_on_virtqueue());
    let (resource_id, blob_mem, blob_flags) = (gpu.new_resource_id(), BlobMem::Host3d, BlobFlags::MAPPABLE);
    let create = Command::ResourceCreateBlob {
        resource_id,
        blob_mem,
        blob_flags,
        blob_id,
        size: WANTED,
        entries: &[],
    };
    let created = gpu.start(&create, Some(waits.context), None);
    gpu.capset()?;
    let more = holds.allocate(40 << 10, Source::New)?;
    more.map_err(|result| anyhow!("{result:?}: {}", broker.log()))?;
    ensure!(!created.arrives_within(Duration::ZERO), "nothing is allocated yet");
    timeline::signal_by(&mut second, waits.device, semaphore)?;
    created.wait(PATIENCE).with_context(|| broker.log())?;
    let mut bytes = vec![0; HAD as usize];
    had.as_volatile_slice().read_slice(&mut bytes, 0)?;
    ensure_filled(&bytes, WORD)
}
