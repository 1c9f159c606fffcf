//! Host blobs in the window: made, mapped, shared between contexts, unmapped, refused.

use anyhow::{Context, Result, anyhow, ensure};
use protocol::ids::{BlobId, ContextId, ResourceId, RingIdx};
use protocol::venus::generated as venus;
use protocol::virtio_gpu::{BlobFlags, BlobMem, Command, Response, ResponseType};
use std::sync::Arc;
use std::time::Duration;
use tests::daemon::{Daemon, Holdings, WITHOUT_CHECKPOINTS, eventually};
use tests::frontend::{Options, Vmm};
use tests::guest::device::Source;
use tests::guest::ring::{REPLY, Ring, RingOptions};
use tests::guest::{Gpu, GpuError, PATIENCE, is_refusal, timeline};
use vm_memory::{Bytes, VolatileMemory};

fn create(guest: &Gpu, context: ContextId, size: u64) -> Result<ResourceId, GpuError> {
    let resource_id = guest.new_resource_id();
    let (blob_mem, blob_flags, blob_id) = (BlobMem::Host3d, BlobFlags::MAPPABLE, BlobId(0));
    let command =
        Command::ResourceCreateBlob { resource_id, blob_mem, blob_flags, blob_id, size, entries: &[] };
    guest.call(&command, Some(context)).map(|_| resource_id)
}

fn map(guest: &Gpu, resource_id: ResourceId, offset: u64) -> Result<Response, GpuError> {
    guest.call(&Command::ResourceMapBlob { resource_id, offset }, None)
}

fn unmap(guest: &Gpu, resource_id: ResourceId) -> Result<Response, GpuError> {
    guest.call(&Command::ResourceUnmapBlob { resource_id }, None)
}

fn unref(guest: &Gpu, resource_id: ResourceId) -> Result<Response, GpuError> {
    guest.call(&Command::ResourceUnref { resource_id }, None)
}

#[test]
fn shared_memory_is_zero_writable_and_of_fixed_size() -> Result<()> {
    let daemon = Daemon::start()?;
    let guest = daemon.guest()?;
    let context = guest.create_context("shmem")?;
    let blob = guest.create_shmem(context, 131_268)?;
    assert_eq!(blob.size, 135_168);
    let (_, mapping) = blob.mapping.as_ref().context("a mappable blob is mapped")?;
    assert!(mapping.writable);
    assert_eq!(mapping.fd_offset, 0);
    assert_eq!(mapping.len, blob.size);
    let memory = mapping.map()?;
    let mut bytes = vec![1; blob.size as usize];
    memory.as_volatile_slice().read_slice(&mut bytes, 0)?;
    assert!(bytes.iter().all(|&byte| byte == 0));
    memory.as_volatile_slice().write_slice(b"written", 4096)?;
    // If a guest could shrink the file, the daemon's accesses would fault.
    assert!(mapping.file.set_len(4096).is_err());
    assert!(mapping.file.set_len(1 << 20).is_err());
    guest.destroy_blob(blob)?;
    assert_eq!(guest.session.window.live(), 0);
    Ok(())
}

#[test]
fn a_guest_hears_of_a_mapping_when_it_is_announced_as_a_memory_region() -> Result<()> {
    // QEMU acknowledges a map before guests reach the mapping, and an unmap while they may still reach it.
    let daemon = Daemon::start()?;
    let guest = daemon.guest_with(Options { vmm: Vmm::Qemu, ..Options::default() })?;
    let context = guest.create_context("announced")?;
    let resource_id = create(&guest, context, 4096)?;
    for request in
        [Command::ResourceMapBlob { resource_id, offset: 0 }, Command::ResourceUnmapBlob { resource_id }]
    {
        let held = guest.session.window.hold_announcements();
        let answer = guest.start(&request, None, None);
        ensure!(!answer.arrives_within(Duration::from_millis(200)), "{request:?} is answered early");
        drop(held);
        answer.wait(PATIENCE)?;
    }
    let blobs: Vec<_> = (0..50).map(|_| guest.create_shmem(context, 4096)).collect::<Result<_>>()?;
    for blob in blobs {
        guest.destroy_blob(blob)?;
    }
    assert_eq!(guest.session.window.violations(), Vec::<String>::new());
    Ok(())
}

/// QEMU crashes when a guest resets the device while blobs are mapped, as a guest does that restarts right after a program's end.
#[test]
fn a_program_hears_of_its_end_when_all_that_it_freed_is_unmapped() -> Result<()> {
    let daemon = Daemon::start()?;
    let guest = Arc::new(daemon.guest_with(Options { vmm: Vmm::Qemu, ..Options::default() })?);
    let context = guest.create_context("ends")?;
    // The ring never sleeps: otherwise a notification would follow the requests by itself.
    let options = RingOptions { idle_timeout: Duration::from_secs(3600), ..RingOptions::default() };
    let mut ring = Ring::create(&guest, context, options)?;
    let instance = venus::Instance(1);
    let (p_create_info, p_instance) = (Some(&venus::InstanceCreateInfo::default()), Some(&instance));
    ring.query(|w| venus::CreateInstance { p_create_info, p_instance }.encode(REPLY, w))?;
    let kept = guest.session.window.live();
    let blobs: Vec<_> = (0..100).map(|_| guest.create_shmem(context, 4096)).collect::<Result<_>>()?;

    let held = guest.session.window.hold_unmaps();
    guest.destroy_blobs(blobs);
    let end = ring.ask(|w| venus::DestroyInstance { instance }.encode(REPLY, w))?;
    ensure!(ring.wait(end, Duration::from_millis(300)).is_err(), "it ends while everything is mapped");
    drop(held);
    ring.wait(end, PATIENCE)?;
    assert_eq!(guest.session.window.live(), kept);
    Ok(())
}

/// The device process answers a program's request within a time, however many mappings of other programs end before.
#[test]
fn a_program_gets_memory_while_a_slow_frontend_ends_many_mappings() -> Result<()> {
    const BLOBS: usize = 200;
    let daemon = Daemon::start()?;
    let guest = Arc::new(daemon.guest_with(Options::of(Vmm::Crosvm))?);
    let mut program = timeline::device(&guest, "allocates")?;
    let other = guest.create_context("frees")?;
    let blobs: Vec<_> = (0..BLOBS).map(|_| guest.create_shmem(other, 4096)).collect::<Result<_>>()?;
    let window = &guest.session.window;
    let before = window.unmaps_asked();
    window.slow_unmaps(Duration::from_millis(500));
    guest.destroy_blobs(blobs);
    program.allocate(4096, Source::New)?.map_err(|result| anyhow!("{result:?}\n{}", daemon.log()))?;
    let ended = window.unmaps_asked() - before;
    ensure!(ended < BLOBS as u64 / 2, "it had to wait for {ended} of {BLOBS}");
    Ok(())
}

#[test]
fn live_maps_are_capped_below_what_qemu_survives() -> Result<()> {
    let daemon = Daemon::start()?;
    let guest = daemon.guest()?;
    let context = guest.create_context("many")?;
    let mut mapped = Vec::new();
    let mut refused = 0;
    for _ in 0..1000 {
        match guest.create_shmem(context, 4096) {
            Ok(blob) => mapped.push(blob),
            Err(e) => {
                assert!(is_refusal(&e, ResponseType::ERR_OUT_OF_MEMORY), "{e:#}");
                refused += 1;
            }
        }
    }
    assert!((300..=480).contains(&mapped.len()), "{} live maps", mapped.len());
    assert_eq!(mapped.len() + refused, 1000);
    let log = daemon.log();
    assert_eq!(log.matches("guests' programs cannot map more memory: raise --max-maps").count(), 1, "{log}");
    assert_eq!(guest.session.window.live(), mapped.len());
    guest.destroy_blob(mapped.remove(0))?;
    mapped.push(guest.create_shmem(context, 4096)?);
    for blob in mapped {
        guest.destroy_blob(blob)?;
    }
    assert_eq!(guest.session.window.live(), 0);
    assert_eq!(guest.session.window.violations(), Vec::<String>::new());
    Ok(())
}

#[test]
fn a_frontend_that_does_not_announce_mappings_holds_more_than_qemu_survives() -> Result<()> {
    let daemon = Daemon::start()?;
    let guest = daemon.guest_with(Options::of(Vmm::Crosvm))?;
    let context = guest.create_context("many")?;
    let mapped = (0..2000).map(|_| guest.create_shmem(context, 4096)).collect::<Result<Vec<_>>>()?;
    assert_eq!(guest.session.window.live(), 2000);
    guest.destroy_blobs(mapped);
    assert!(eventually(PATIENCE, || guest.session.window.live() == 0));
    assert_eq!(guest.session.window.violations(), Vec::<String>::new());
    // A context that reaches this limit is told by the same name.
    let bounded = Daemon::start_with(&["--max-maps", "8"])?;
    let guest = bounded.guest_with(Options::of(Vmm::Crosvm))?;
    let context = guest.create_context("bounded")?;
    assert!((0..9).any(|_| guest.create_shmem(context, 4096).is_err()));
    assert!(bounded.log().contains("limit max-maps reached"), "{}", bounded.log());
    Ok(())
}

#[test]
fn maps_a_frontend_would_punish_are_refused_by_the_daemon() -> Result<()> {
    let daemon = Daemon::start_with(&["--window-size", "16MiB"])?;
    let guest = daemon.guest()?;
    let context = guest.create_context("wrong maps")?;
    let (first, second) = (create(&guest, context, 8192)?, create(&guest, context, 8192)?);
    map(&guest, first, 0x10000)?;
    for offset in [0x10000, 0xf000, 0x11000, 1, 0x800, 0xff_f000, 1 << 24, u64::MAX - 4095, u64::MAX] {
        assert!(map(&guest, second, offset).is_err(), "offset {offset:#x}");
    }
    assert!(map(&guest, first, 0x20000).is_err(), "mapped twice");
    assert!(map(&guest, ResourceId(4711), 0x20000).is_err(), "no such resource");
    assert!(unmap(&guest, second).is_err(), "not mapped");
    map(&guest, second, 0xff_e000)?;
    map(&guest, create(&guest, context, 4096)?, 0xf000)?;
    assert_eq!(guest.session.window.violations(), Vec::<String>::new());
    Ok(())
}

#[test]
fn a_larger_window_costs_no_memory() -> Result<()> {
    // A bit for each page of the blob would take 2 MiB.
    let held = |size: &str, bytes: u64| -> Result<u64> {
        let daemon = Daemon::start_with(&["--window-size", size])?;
        let guest = daemon.guest()?;
        let context = guest.create_context("window")?;
        for offset in [0, bytes / 2, bytes - 8192] {
            map(&guest, create(&guest, context, 8192)?, offset)?;
        }
        let processes: Vec<_> = daemon.wait_for_workers(1)?.into_iter().chain([daemon.pid()]).collect();
        let now =
            || processes.iter().map(|process| Ok(Holdings::of(*process)?.anonymous_kib)).sum::<Result<u64>>();
        // The fence arrives when the worker has loaded its driver.
        guest.submit_fenced(context, RingIdx(0), &[]).wait(PATIENCE)?;
        let mut last = now()?;
        let settled = eventually(PATIENCE, || {
            std::thread::sleep(Duration::from_millis(300));
            now().is_ok_and(|now| std::mem::replace(&mut last, now) == now)
        });
        ensure!(settled, "the processes hold more and more, {last} KiB by now");
        Ok(last)
    };
    let (small, large) = (held("64MiB", 64 << 20)?, held("64GiB", 64 << 30)?);
    assert!(small > 100 && large < small + 1024, "{small} KiB with 64 MiB, {large} KiB with 64 GiB");
    Ok(())
}

#[test]
fn blob_sizes_are_checked() -> Result<()> {
    let daemon = Daemon::start()?;
    let guest = daemon.guest()?;
    let context = guest.create_context("wrong sizes")?;
    for size in [0, 1, 4095, 4097, 1 << 62, u64::MAX, u64::MAX - 4095] {
        assert!(create(&guest, context, size).is_err(), "size {size:#x}");
    }
    let used = create(&guest, context, 4096)?;
    let (blob_mem, blob_flags, blob_id) = (BlobMem::Host3d, BlobFlags::MAPPABLE, BlobId(0));
    for (resource_id, blob_mem) in
        [(used, blob_mem), (ResourceId(0), blob_mem), (ResourceId(900), BlobMem::Host3dGuest)]
    {
        let command = Command::ResourceCreateBlob {
            resource_id,
            blob_mem,
            blob_flags,
            blob_id,
            size: 4096,
            entries: &[],
        };
        assert!(guest.call(&command, Some(context)).is_err(), "{command:?}");
    }
    Ok(())
}

#[test]
fn unref_unmaps_first() -> Result<()> {
    let daemon = Daemon::start()?;
    let guest = daemon.guest()?;
    let context = guest.create_context("unref")?;
    let resource_id = create(&guest, context, 4096)?;
    map(&guest, resource_id, 0)?;
    unref(&guest, resource_id)?;
    // The range must certainly be free when UNREF was answered.
    assert_eq!(guest.session.window.live(), 0);
    map(&guest, create(&guest, context, 4096)?, 0)?;
    assert!(unref(&guest, resource_id).is_err(), "released twice");
    assert_eq!(guest.session.window.violations(), Vec::<String>::new());
    Ok(())
}

#[test]
fn blob_outlives_its_context_until_it_is_released() -> Result<()> {
    let daemon = Daemon::start()?;
    let guest = daemon.guest()?;
    let context = guest.create_context("maker")?;
    let blob = guest.create_shmem(context, 4096)?;
    let memory = blob.mapping.as_ref().context("mapped")?.1.map()?;
    memory.as_volatile_slice().write_obj(0x55aa_u32, 0)?;
    guest.destroy_context(context)?;
    daemon.wait_for_workers(0)?;
    assert_eq!(guest.session.window.live(), 1);
    assert_eq!(memory.as_volatile_slice().read_obj::<u32>(0)?, 0x55aa);
    unmap(&guest, blob.resource_id)?;
    unref(&guest, blob.resource_id)?;
    assert_eq!(guest.session.window.live(), 0);
    Ok(())
}

#[test]
fn attaching_needs_a_context_and_a_resource() -> Result<()> {
    let daemon = Daemon::start()?;
    let guest = daemon.guest()?;
    let (first, second) = (guest.create_context("first")?, guest.create_context("second")?);
    let blob = guest.create_shmem(first, 4096)?;
    let resource_id = blob.resource_id;
    let attach =
        |resource_id, context| guest.call(&Command::CtxAttachResource { resource_id }, Some(context));
    attach(resource_id, second)?;
    assert!(attach(ResourceId(999), second).is_err());
    assert!(attach(resource_id, ContextId(999)).is_err());
    guest.call(&Command::CtxDetachResource { resource_id }, Some(second))?;
    guest.destroy_blob(blob)?;
    Ok(())
}

#[test]
fn memory_object_that_does_not_exist_makes_no_blob() -> Result<()> {
    let daemon = Daemon::start()?;
    let guest = daemon.guest()?;
    let context = guest.create_context("no memory")?;
    assert!(guest.create_blob(context, BlobId(0x1234), BlobFlags::MAPPABLE, 4096).is_err());
    // The worker answered the request, and goes on.
    guest.create_shmem(context, 4096)?;
    daemon.wait_for_workers(1)?;
    Ok(())
}

#[test]
fn thousands_of_blobs_leave_no_descriptor_behind() -> Result<()> {
    // The daemon makes no checkpoints here: each is a file, which is made when the context has been idle for a while.
    let daemon = Daemon::start_with(&WITHOUT_CHECKPOINTS)?;
    let guest = daemon.guest()?;
    let context = guest.create_context("churn")?;
    let worker = daemon.wait_for_workers(1)?[0];
    let churn = |count: usize| -> Result<()> {
        for _ in 0..count {
            let blobs: Vec<_> = (0..20).map(|_| guest.create_shmem(context, 8192)).collect::<Result<_>>()?;
            blobs.into_iter().try_for_each(|blob| guest.destroy_blob(blob))?;
        }
        // The worker has seen all earlier requests when this fence arrives.
        guest.submit_fenced(context, RingIdx(0), &[]).wait(PATIENCE)?;
        Ok(())
    };
    churn(10)?;
    let before = (Holdings::of(daemon.pid())?, Holdings::of(worker)?);
    churn(100)?;
    let mut after = before;
    let no_more = |before: Holdings, after: Holdings| {
        after.descriptors <= before.descriptors && after.mappings <= before.mappings + 2
    };
    // The device process's other threads may still be busy with the last blob.
    let settled = eventually(PATIENCE, || {
        let now = || Ok::<_, anyhow::Error>((Holdings::of(daemon.pid())?, Holdings::of(worker)?));
        after = now().unwrap_or(after);
        no_more(before.0, after.0) && no_more(before.1, after.1)
    });
    assert!(settled, "{before:?} became {after:?}");
    Ok(())
}
