//! The machine's own GPU in a guest: it has the same name there, a program computes on it, and a guest maps its memory.
//!
//! A test that cannot run on this machine is skipped and says so; with `REQUIRE_GPU=1` it fails instead, so that a GPU runner cannot skip silently.

use anyhow::{Context, Result, ensure};
use protocol::venus::generated::DeviceMemory;
use rustix::process::{Signal, kill_process};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tests::clients::Setup;
use tests::completion;
use tests::daemon::{Daemon, WITHOUT_CHECKPOINTS, eventually};
use tests::guest::device::{Device, Source};
use tests::guest::{Blob, PATIENCE};
use tests::packages::{ClientRoot, Suite};
use tests::prerequisites::has_gpu;
use tests::program::{LIMIT, succeed};
use vm_memory::{Bytes, MmapRegion, VolatileMemory};

/// Ends a test that cannot go on here: it passes only if no GPU is required.
fn skip(why: &str) -> Result<()> {
    ensure!(std::env::var_os("REQUIRE_GPU").is_none(), "REQUIRE_GPU is set: {why}");
    println!("skipped: {why}");
    Ok(())
}

#[test]
fn the_gpu_of_this_machine_computes_for_a_guest() -> Result<()> {
    if !has_gpu() {
        return skip("no GPU");
    }
    let setup = Setup::on(Daemon::start_on_machine(&[])?)?;
    let folder = tempfile::tempdir()?;
    let client = ClientRoot::open(Suite::Testing)?;

    let mut vulkaninfo = client.through_vtest("vulkaninfo", setup.socket())?;
    vulkaninfo.arg("--summary");
    let summary = succeed(vulkaninfo, LIMIT)?;
    ensure!(summary.contains("Virtio-GPU Venus (") && !summary.contains("llvmpipe"), "{summary}");

    let model = folder.path().join("model.gguf");
    std::fs::write(&model, completion::model())?;
    let words = || -> Result<Vec<String>> {
        let mut llama = client.through_vtest("llama-completion", setup.socket())?;
        llama.args(completion::arguments(&model, 24 + completion::SPARE_WORDS));
        Ok(succeed(llama, LIMIT)?.split_whitespace().take(24).map(str::to_owned).collect())
    };
    let first = words()?;
    assert_eq!((first.len(), words()?), (24, first));
    Ok(())
}

const SIZE: u64 = 4 << 20;
/// The word that the neighbour writes into all memory that it gets.
const FOREIGN: u32 = 0x5a5a_a5a5;

/// Memory of the GPU's own in a guest, as its user space sees it.
fn mapped(device: &mut Device, local: u32) -> Result<(DeviceMemory, Blob, MmapRegion)> {
    let memory = device.allocate_of_type(SIZE, local, Source::New)?.ok().context("memory of the GPU")?;
    let blob = device.blob(memory, SIZE)?;
    let mapping = blob.mapping.as_ref().context("mapped")?.1.map()?;
    Ok((memory, blob, mapping))
}

/// The first and the last word, and one between them.
fn words(mapping: &MmapRegion) -> Result<[u32; 3]> {
    let word = |at: u64| mapping.as_volatile_slice().load(at as usize, Ordering::Relaxed);
    Ok([word(0)?, word(SIZE / 2)?, word(SIZE - 4)?])
}

/// Another VM takes memory and fills it.
fn take_and_fill(device: &mut Device) -> Result<()> {
    let local = device.local.context("the same memory in the other VM")?;
    for _ in 0..64 {
        let memory =
            device.allocate_of_type(SIZE, local, Source::New)?.ok().context("a neighbour's memory")?;
        device.fill(memory, SIZE, FOREIGN)?;
    }
    Ok(())
}

#[test]
fn a_guest_maps_memory_of_the_gpu_and_never_sees_a_neighbours_in_its_place() -> Result<()> {
    if !has_gpu() {
        return skip("no GPU");
    }
    let options = [&["--device-memory", "4GiB", "--window-size", "8GiB"], &WITHOUT_CHECKPOINTS[..]].concat();
    let (daemon, other) = (Daemon::start_on_machine(&options)?, Daemon::start_on_machine(&options)?);
    let (gpu, neighbour) = (Arc::new(daemon.guest()?), Arc::new(other.guest()?));
    let mut first = Device::create(&gpu, "first")?;
    let Some(local) = first.local else { return skip("guests can map no memory of this GPU") };
    let worker = daemon.wait_for_workers(1)?[0];
    let mut second = Device::create(&neighbour, "second")?;
    let (memory, blob, mapping) = mapped(&mut first, local)?;
    assert_eq!(words(&mapping)?, [0; 3], "fresh memory");
    first.fill(memory, SIZE, 0x1234_5678)?;
    assert_eq!(words(&mapping)?, [0x1234_5678; 3], "written by the GPU");
    mapping.as_volatile_slice().store(0x8765_4321_u32, SIZE as usize - 4, Ordering::Relaxed)?;
    let (copy, copied, seen) = mapped(&mut first, local)?;
    first.copy(memory, copy, SIZE)?;
    assert_eq!(words(&seen)?, [0x1234_5678, 0x1234_5678, 0x8765_4321], "written by the processor");
    drop(seen);
    gpu.destroy_blob(copied)?;

    // The guest frees memory that it has mapped.
    first.free(memory)?;
    take_and_fill(&mut second)?;
    assert_eq!(words(&mapping)?, [0x1234_5678, 0x1234_5678, 0x8765_4321], "freed and still mapped");
    drop(mapping);
    gpu.destroy_blob(blob)?;

    // The worker dies, and the frontend is slow to unmap.
    let live = gpu.session.window.live();
    let (memory, _blob, mapping) = mapped(&mut first, local)?;
    first.fill(memory, SIZE, 0x1234_5678)?;
    let held = gpu.session.window.hold_unmaps();
    kill_process(worker, Signal::KILL)?;
    daemon.wait_for_workers(0)?;
    take_and_fill(&mut second)?;
    assert_eq!(words(&mapping)?, [0x1234_5678; 3], "its worker is dead and it is still mapped");
    drop(mapping);
    drop(held);
    ensure!(eventually(PATIENCE, || gpu.session.window.live() == live), "still mapped");
    Ok(())
}
