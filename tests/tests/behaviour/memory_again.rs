//! Memory that a program freed and gets again, but that no other program gets. A word in the memory identifies it if the memory is not cleared.

use anyhow::{Context, Result, ensure};
use protocol::ids::RingIdx;
use protocol::venus::generated::DeviceMemory;
use protocol::virtio_gpu::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tests::daemon::{Daemon, eventually};
use tests::guest::device::{Device, Source};
use tests::guest::{Blob, Gpu, PATIENCE};
use vm_memory::{Bytes, VolatileMemory};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 256 * 1024;
const LEFT: u32 = 0x5a5a_1234;
const UNCLEARED: &[&str] = &["--zero-memory", "off"];

fn first_word(blob: &Blob) -> Result<u32> {
    Ok(u32::from_le_bytes(blob.bytes(4)?.as_slice().try_into()?))
}

/// Memory and a blob of it.
fn shown(device: &mut Device, source: Source) -> Result<(DeviceMemory, Blob)> {
    let memory = device.allocate(SIZE, source)?.ok().context("memory")?;
    let blob = device.blob(memory, SIZE)?;
    Ok((memory, blob))
}

/// Memory and a blob of it, with a word written to it.
fn written(device: &mut Device, source: Source) -> Result<(DeviceMemory, Blob)> {
    let (memory, blob) = shown(device, source)?;
    let mapped = blob.map()?;
    mapped.as_volatile_slice().write_slice(&LEFT.to_le_bytes(), 0)?;
    Ok((memory, blob))
}

/// Waits until the worker has executed all commands so far.
fn settle(gpu: &Gpu, device: &Device) -> Result<()> {
    gpu.submit_fenced(device.context, RingIdx(0), &[]).wait(PATIENCE)?;
    Ok(())
}

/// Returns the first word of new memory of a program, which keeps the memory.
fn found(device: &mut Device) -> Result<u32> {
    let (_, blob) = shown(device, Source::New)?;
    first_word(&blob)
}

/// A worker keeps freed memory for at least this time: a worker that has been idle for a second frees it, because it writes a checkpoint.
const KEPT: Duration = Duration::from_secs(1);

/// Checks that a program gets the memory that `give_back` frees again, with `left` in it. If the worker may have freed the memory meanwhile, because
/// the test took long, the test tries again.
fn gets_again(
    device: &mut Device,
    left: u32,
    mut give_back: impl FnMut(&mut Device) -> Result<()>,
) -> Result<()> {
    let begin = Instant::now();
    loop {
        let given = Instant::now();
        give_back(device)?;
        let found = found(device)?;
        if found == left {
            return Ok(());
        }
        ensure!(given.elapsed() >= KEPT && begin.elapsed() < PATIENCE, "{found:#x} instead of {left:#x}");
    }
}

#[test]
fn a_program_gets_again_what_it_gave_back_and_another_does_not() -> Result<()> {
    let daemon = Daemon::start_with(UNCLEARED)?;
    let gpu = Arc::new(daemon.guest()?);
    let (mut first, mut second) = (Device::create(&gpu, "first")?, Device::create(&gpu, "second")?);
    gets_again(&mut first, LEFT, |first| {
        let (memory, blob) = written(first, Source::New)?;
        first.free(memory)?;
        gpu.destroy_blob(blob)?;
        settle(&gpu, first)?;
        for _ in 0..8 {
            assert_eq!(found(&mut second)?, 0, "the word of another program");
        }
        Ok(())
    })?;
    assert_eq!(found(&mut first)?, 0, "the same once more");
    // The memory may also be freed after its blob.
    gets_again(&mut first, LEFT, |first| {
        let (memory, blob) = written(first, Source::New)?;
        gpu.destroy_blob(blob)?;
        settle(&gpu, first)?;
        first.free(memory)
    })?;
    // A program that ends leaves no memory to the next.
    let (memory, blob) = written(&mut first, Source::New)?;
    gpu.destroy_blob(blob)?;
    first.free(memory)?;
    gpu.destroy_context(first.context)?;
    let mut third = Device::create(&gpu, "third")?;
    for device in [&mut second, &mut third] {
        assert_eq!(found(device)?, 0);
    }
    Ok(())
}

#[test]
fn memory_that_can_still_be_seen_is_not_used_again() -> Result<()> {
    let daemon = Daemon::start_with(UNCLEARED)?;
    let gpu = Arc::new(daemon.guest()?);
    let (mut first, mut second) = (Device::create(&gpu, "first")?, Device::create(&gpu, "second")?);
    // The guest still has it mapped.
    gets_again(&mut first, LEFT, |first| {
        let (memory, blob) = written(first, Source::New)?;
        first.free(memory)?;
        settle(&gpu, first)?;
        assert_eq!(found(first)?, 0);
        assert_eq!(first_word(&blob)?, LEFT);
        gpu.destroy_blob(blob)?;
        settle(&gpu, first)
    })?;
    // Another program has imported it, without asking the first.
    let (memory, blob) = written(&mut first, Source::New)?;
    let resource_id = blob.resource_id;
    gpu.call(&Command::CtxAttachResource { resource_id }, Some(second.context))?;
    let imported = second.allocate(SIZE, Source::Resource(resource_id.0))?.ok().context("imported")?;
    gpu.destroy_blob(blob)?;
    first.free(memory)?;
    settle(&gpu, &first)?;
    assert_eq!(found(&mut first)?, 0);
    second.free(imported)?;
    // This program has imported the memory, and so has it twice.
    let (memory, blob) = written(&mut first, Source::New)?;
    let own = first.allocate(SIZE, Source::Resource(blob.resource_id.0))?.ok().context("imported")?;
    gpu.destroy_blob(blob)?;
    first.free(memory)?;
    settle(&gpu, &first)?;
    assert_eq!(found(&mut first)?, 0);
    first.free(own)?;
    // The memory was made to be shared.
    let (memory, blob) = written(&mut first, Source::Exportable)?;
    gpu.destroy_blob(blob)?;
    first.free(memory)?;
    settle(&gpu, &first)?;
    assert_eq!(shown(&mut first, Source::Exportable).and_then(|(_, blob)| first_word(&blob))?, 0);
    Ok(())
}

#[test]
fn what_nobody_wants_again_is_given_back_after_a_while() -> Result<()> {
    let daemon = Daemon::start_with(&[UNCLEARED, &["--host-memory", "64MiB"]].concat())?;
    let gpu = Arc::new(daemon.guest()?);
    let (mut first, mut second) = (Device::create(&gpu, "first")?, Device::create(&gpu, "second")?);
    let memory = first.allocate(7 * MIB, Source::New)?.ok().context("memory")?;
    let freed = Instant::now();
    first.free(memory)?;
    // Of 64 MiB one program may have 56 if no other has any.
    let mut whole = || Ok::<_, anyhow::Error>(second.allocate(56 * MIB, Source::New)?.is_ok());
    let early = whole()?;
    ensure!(!early || freed.elapsed() > KEPT, "kept memory is not counted");
    ensure!(early || eventually(PATIENCE, || whole().is_ok_and(|made| made)), "it is never given back");
    Ok(())
}

#[test]
fn what_is_kept_makes_room_for_what_is_wanted() -> Result<()> {
    let daemon = Daemon::start_with(&[UNCLEARED, &["--host-memory", "64MiB"]].concat())?;
    let gpu = Arc::new(daemon.guest()?);
    let mut vulkan = Device::create(&gpu, "greedy")?;
    let mut memories = Vec::new();
    for _ in 0..56 {
        memories.push(vulkan.allocate(MIB, Source::New)?.ok().context("one of 56")?);
    }
    ensure!(vulkan.allocate(MIB, Source::New)?.is_err(), "more than there is");
    for memory in memories.drain(..7) {
        vulkan.free(memory)?;
    }
    ensure!(vulkan.allocate(7 * MIB, Source::New)?.is_ok(), "kept memory is not freed for a new allocation");
    ensure!(vulkan.allocate(MIB, Source::New)?.is_err(), "more than there is");
    Ok(())
}

/// Mesa reads the words that report the end of queries, and expects zero in new memory.
#[test]
fn what_a_program_gets_again_is_zero() -> Result<()> {
    for (options, left) in [(UNCLEARED, LEFT), (&[], 0)] {
        let daemon = Daemon::start_with(options)?;
        let gpu = Arc::new(daemon.guest()?);
        let mut device = Device::create(&gpu, "one")?;
        gets_again(&mut device, left, |device| {
            let (memory, blob) = written(device, Source::New)?;
            gpu.destroy_blob(blob)?;
            settle(&gpu, device)?;
            device.free(memory)
        })?;
    }
    Ok(())
}
