//! Device memory shared between the contexts of one guest: exported as a blob, attached, imported; and every way to reach memory that was not shared.

use anyhow::{Context, Result, ensure};
use protocol::ids::{BlobId, ContextId, ResourceId, RingIdx};
use protocol::venus::generated::{DeviceMemory, ExternalMemoryHandleTypeFlags, VkResult};
use protocol::virtio_gpu::{BlobFlags, BlobMem, Command};
use rustix::process::{Signal, kill_process};
use std::sync::Arc;
use tests::daemon::{Daemon, Holdings, WITHOUT_CHECKPOINTS, eventually, on_machine};
use tests::guest::device::{Device, Source, ensure_filled};
use tests::guest::{Blob, Gpu, PATIENCE};
use vm_memory::{Bytes, MmapRegion, VolatileMemory};

const SIZE: u64 = 256 * 1024;
const DMA_BUF: ExternalMemoryHandleTypeFlags = ExternalMemoryHandleTypeFlags::DMA_BUF_EXT;

fn attach(gpu: &Gpu, resource_id: ResourceId, context: ContextId) -> Result<()> {
    gpu.call(&Command::CtxAttachResource { resource_id }, Some(context)).map(drop)?;
    Ok(())
}

fn detach(gpu: &Gpu, resource_id: ResourceId, context: ContextId) -> Result<()> {
    gpu.call(&Command::CtxDetachResource { resource_id }, Some(context)).map(drop)?;
    Ok(())
}

fn exported(device: &mut Device) -> Result<(DeviceMemory, Blob, MmapRegion)> {
    let memory = device.allocate(SIZE, Source::Exportable)?.ok().context("exportable memory")?;
    let blob = device.blob(memory, SIZE)?;
    let mapped = blob.map()?;
    Ok((memory, blob, mapped))
}

fn bytes(mapped: &MmapRegion) -> Result<Vec<u8>> {
    let mut bytes = vec![0; SIZE as usize];
    mapped.as_volatile_slice().read_slice(&mut bytes, 0)?;
    Ok(bytes)
}

fn refused(result: Result<DeviceMemory, VkResult>) -> bool {
    result == Err(VkResult::ERROR_INVALID_EXTERNAL_HANDLE)
}

#[test]
fn two_contexts_write_the_same_memory() -> Result<()> {
    let daemon = Daemon::start()?;
    let gpu = Arc::new(daemon.guest()?);
    let (mut first, mut second) = (Device::create(&gpu, "first")?, Device::create(&gpu, "second")?);
    let extensions = first.extensions()?;
    for wanted in ["VK_KHR_external_memory_fd", "VK_EXT_external_memory_dma_buf"] {
        ensure!(extensions.iter().any(|name| name == wanted), "{wanted} is not offered");
    }
    // Export and import.
    assert_eq!(first.external_buffer_features(DMA_BUF)? & 6, 6);
    assert_eq!(first.external_buffer_features(ExternalMemoryHandleTypeFlags::OPAQUE_FD)?, 0);

    let (memory, blob, mapped) = exported(&mut first)?;
    ensure_filled(&bytes(&mapped)?, 0).context("fresh memory")?;
    first.fill(memory, SIZE, 0x1111_2222)?;
    ensure_filled(&bytes(&mapped)?, 0x1111_2222).context("written by the exporter")?;

    attach(&gpu, blob.resource_id, second.context)?;
    let (types, size) = second.resource_properties(blob.resource_id.0)?.ok().context("properties")?;
    ensure!(types & (1 << second.visible) != 0 && size == SIZE, "types {types:#x}, {size} bytes");
    let imported = second.allocate(SIZE, Source::Resource(blob.resource_id.0))?.ok().context("imported")?;
    ensure_filled(&bytes(&mapped)?, 0x1111_2222).context("an import changes nothing")?;
    second.fill(imported, SIZE, 0x3333_4444)?;
    ensure_filled(&bytes(&mapped)?, 0x3333_4444).context("written by the importer")?;
    first.fill(memory, SIZE, 0x5555_6666)?;
    ensure_filled(&bytes(&mapped)?, 0x5555_6666).context("written by the exporter again")?;

    // An import can be exported again, and its context can import its own.
    let again = second.blob(imported, SIZE)?;
    attach(&gpu, again.resource_id, first.context)?;
    let twice = first.allocate(SIZE, Source::Resource(again.resource_id.0))?.ok().context("twice")?;
    first.fill(twice, SIZE, 0x7777_8888)?;
    ensure_filled(&bytes(&mapped)?, 0x7777_8888).context("written through an import of an import")?;
    let own = first.allocate(SIZE, Source::Resource(blob.resource_id.0))?.ok().context("own")?;
    first.fill(own, SIZE, 0x9999_aaaa)?;
    ensure_filled(&bytes(&mapped)?, 0x9999_aaaa).context("written through an own import")?;
    Ok(())
}

/// Memory of a type that cannot be mapped is also shared, if a device has such a type.
#[test]
fn hidden_memory_is_shared_too() -> Result<()> {
    let daemon = Daemon::start()?;
    let gpu = Arc::new(daemon.guest()?);
    let (mut first, mut second) = (Device::create(&gpu, "first")?, Device::create(&gpu, "second")?);
    let Some(hidden) = first.hidden else {
        println!("skipped: all memory of this device can be mapped");
        return Ok(());
    };
    let memory = first.allocate_of_type(SIZE, hidden, Source::Exportable)?.ok().context("exportable")?;
    let blob = gpu.create_blob(first.context, BlobId(memory.0), BlobFlags::SHAREABLE, SIZE)?;
    attach(&gpu, blob.resource_id, second.context)?;
    let (types, _) = second.resource_properties(blob.resource_id.0)?.ok().context("properties")?;
    ensure!(types & (1 << hidden) != 0 && types & (1 << second.visible) == 0, "types {types:#x}");
    let source = Source::Resource(blob.resource_id.0);
    let imported = second.allocate_of_type(SIZE, hidden, source)?.ok().context("imported")?;
    second.fill(imported, SIZE, 0x1357_9bdf)?;
    first.fill(memory, SIZE, 0x2468_ace0)?;
    second.fill(imported, SIZE, 0x0bad_cafe)?;
    // A driver may still map the memory, since it is memory of the host.
    if let Ok(shown) = first.blob(memory, SIZE) {
        let mapped = shown.mapping.as_ref().context("mapped")?.1.map()?;
        ensure_filled(&bytes(&mapped)?, 0x0bad_cafe)?;
    }
    Ok(())
}

#[test]
fn imported_memory_outlives_its_exporter() -> Result<()> {
    let daemon = Daemon::start_with(&WITHOUT_CHECKPOINTS)?;
    let gpu = Arc::new(daemon.guest()?);
    let (mut first, mut second) = (Device::create(&gpu, "first")?, Device::create(&gpu, "second")?);
    // The exporter frees its memory.
    let (memory, blob, mapped) = exported(&mut first)?;
    attach(&gpu, blob.resource_id, second.context)?;
    let imported = second.allocate(SIZE, Source::Resource(blob.resource_id.0))?.ok().context("import")?;
    first.free(memory)?;
    second.fill(imported, SIZE, 1)?;
    ensure_filled(&bytes(&mapped)?, 1)?;
    // The resource is destroyed: the import and the other uses of the memory stay.
    gpu.destroy_blob(blob)?;
    second.fill(imported, SIZE, 2)?;
    ensure_filled(&bytes(&mapped)?, 2)?;
    // The exporter's worker dies while the importer works.
    let (_, blob, mapped) = exported(&mut first)?;
    attach(&gpu, blob.resource_id, second.context)?;
    let imported = second.allocate(SIZE, Source::Resource(blob.resource_id.0))?.ok().context("import")?;
    let workers = daemon.wait_for_workers(2)?;
    let oldest = workers.iter().min_by_key(|pid| pid.as_raw_nonzero()).context("workers")?;
    kill_process(*oldest, Signal::KILL)?;
    for word in 0..20 {
        second.fill(imported, SIZE, word)?;
        ensure_filled(&bytes(&mapped)?, word)?;
    }
    daemon.wait_for_workers(1)?;
    // And it can still be imported: the device process holds it.
    let late = second.allocate(SIZE, Source::Resource(blob.resource_id.0))?.ok().context("late")?;
    second.fill(late, SIZE, 99)?;
    ensure_filled(&bytes(&mapped)?, 99)?;
    gpu.destroy_context(first.context)?;
    second.fill(imported, SIZE, 100)?;
    ensure_filled(&bytes(&mapped)?, 100)
}

#[test]
fn only_memory_that_is_attached_can_be_imported() -> Result<()> {
    let daemon = Daemon::start()?;
    let gpu = Arc::new(daemon.guest()?);
    let (mut first, mut second) = (Device::create(&gpu, "first")?, Device::create(&gpu, "second")?);
    let (_, blob, mapped) = exported(&mut first)?;
    let id = blob.resource_id.0;
    ensure!(refused(second.allocate(SIZE, Source::Resource(id))?), "not attached");
    ensure!(second.resource_properties(id)?.is_err(), "not attached");
    attach(&gpu, blob.resource_id, second.context)?;
    ensure!(refused(second.allocate(SIZE + 1, Source::Resource(id))?), "larger than the resource");
    ensure!(refused(second.allocate(u64::MAX, Source::Resource(id))?), "larger than anything");
    ensure!(second.allocate(4096, Source::Resource(id))?.is_ok(), "a part of it");
    detach(&gpu, blob.resource_id, second.context)?;
    // The worker learns of the detachment from the device process, which has answered meanwhile.
    let is_refused = eventually(PATIENCE, || second.allocate(SIZE, Source::Resource(id)).is_ok_and(refused));
    ensure!(is_refused, "attached no longer");
    // Shared memory is no device memory, not even in its own context.
    let shared = gpu.create_shmem(second.context, SIZE)?;
    ensure!(refused(second.allocate(SIZE, Source::Resource(shared.resource_id.0))?), "shared memory");
    ensure!(second.resource_properties(shared.resource_id.0)?.is_err(), "shared memory");
    // A resource of guest memory is refused as well.
    let resource_id = gpu.new_resource_id();
    let (blob_mem, blob_flags, blob_id) = (BlobMem::Guest, BlobFlags::empty(), BlobId(0));
    let create =
        Command::ResourceCreateBlob { resource_id, blob_mem, blob_flags, blob_id, size: 4096, entries: &[] };
    gpu.call(&create, Some(second.context))?;
    attach(&gpu, resource_id, second.context)?;
    ensure!(refused(second.allocate(4096, Source::Resource(resource_id.0))?), "guest memory");
    // All these requests were legal, so the contexts go on.
    let memory = second.allocate(SIZE, Source::New)?.ok().context("plain memory")?;
    second.fill(memory, SIZE, 7)?;
    ensure_filled(&bytes(&mapped)?, 0)?;
    daemon.wait_for_workers(2)?;
    Ok(())
}

#[test]
fn no_descriptor_of_the_worker_can_be_imported() -> Result<()> {
    let daemon = Daemon::start()?;
    let gpu = Arc::new(daemon.guest()?);
    let mut device = Device::create(&gpu, "curious")?;
    let (_, _, own) = exported(&mut device)?;
    let worker = daemon.wait_for_workers(1)?[0];
    // The worker has closed the descriptors that it sent away before the fence arrives.
    gpu.submit_fenced(device.context, RingIdx(0), &[]).wait(PATIENCE)?;
    let before = Holdings::of(worker)?.descriptors;
    for fd in 0..40 {
        // The worker ignores the descriptor, and allocates fresh memory.
        let memory = device.allocate(SIZE, Source::Descriptor(fd))?.ok().context("memory")?;
        device.fill(memory, SIZE, 0xffff_ffff)?;
        ensure_filled(&bytes(&own)?, 0).with_context(|| format!("descriptor {fd}"))?;
        device.free(memory)?;
    }
    // Memory is kept for a moment after it was freed, with its descriptor. A GPU's driver may open its device again when it needs more memory.
    let as_before = if on_machine() { 0..=before + 4 } else { before..=before };
    let has_no_more = || Holdings::of(worker).is_ok_and(|holdings| as_before.contains(&holdings.descriptors));
    ensure!(eventually(PATIENCE, has_no_more), "the worker has kept descriptors");
    Ok(())
}

#[test]
fn an_import_sent_right_behind_the_attachment_of_a_pending_export_finds_it() -> Result<()> {
    let daemon = Daemon::start()?;
    let gpu = Arc::new(daemon.guest()?);
    let (mut first, mut second) = (Device::create(&gpu, "first")?, Device::create(&gpu, "second")?);
    for round in 0..30_u32 {
        // The importer does not wait for the exporter, whose worker may not even have seen the allocation.
        let memory = first.allocate_unheard(SIZE)?;
        let resource_id = gpu.new_resource_id();
        let wait = first.wait_for_ring_on_virtqueue();
        let create = Command::ResourceCreateBlob {
            resource_id,
            blob_mem: BlobMem::Host3d,
            blob_flags: BlobFlags::MAPPABLE | BlobFlags::SHAREABLE,
            blob_id: BlobId(memory.0),
            size: SIZE,
            entries: &[],
        };
        let answers = gpu.start_all(&[
            (Command::Submit3d { data: &wait }, Some(first.context)),
            (create, Some(first.context)),
            (Command::CtxAttachResource { resource_id }, Some(second.context)),
        ]);
        let imported = second.allocate(SIZE, Source::Resource(resource_id.0))?;
        let imported = imported.map_err(|error| anyhow::anyhow!("round {round}: {error:?}"))?;
        for answer in answers {
            answer.wait(PATIENCE)?;
        }
        second.fill(imported, SIZE, round)?;
        second.free(imported)?;
        first.free(memory)?;
        gpu.call(&Command::ResourceUnref { resource_id }, None)?;
    }
    Ok(())
}

#[test]
fn an_import_of_an_export_that_fails_fails_too() -> Result<()> {
    let daemon = Daemon::start()?;
    let gpu = Arc::new(daemon.guest()?);
    let (first, mut second) = (Device::create(&gpu, "first")?, Device::create(&gpu, "second")?);
    let resource_id = gpu.new_resource_id();
    let create = Command::ResourceCreateBlob {
        resource_id,
        blob_mem: BlobMem::Host3d,
        blob_flags: BlobFlags::MAPPABLE | BlobFlags::SHAREABLE,
        blob_id: BlobId(4711),
        size: SIZE,
        entries: &[],
    };
    let answers = gpu.start_all(&[
        (create, Some(first.context)),
        (Command::CtxAttachResource { resource_id }, Some(second.context)),
    ]);
    ensure!(refused(second.allocate(SIZE, Source::Resource(resource_id.0))?), "there is no such memory");
    ensure!(answers[0].wait(PATIENCE).is_err(), "there is no such memory");
    // The resource is attached or, if the refusal was faster, unknown; the device answers in both cases.
    let _ = answers[1].wait_with_header(PATIENCE)?;
    Ok(())
}
