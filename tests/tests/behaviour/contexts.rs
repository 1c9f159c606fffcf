//! The life of contexts: each has a process of its own, from creation to destruction.

use anyhow::{Context, Result, ensure};
use protocol::ids::{BlobId, CapsetId, ContextId, RingIdx};
use protocol::virtio_gpu::{BlobFlags, BlobMem, Command, ResponseType};
use rustix::process::{Pid, Signal, kill_process};
use std::time::Duration;
use tests::daemon::{Daemon, Holdings, eventually, halt};
use tests::daemon_process::launcher;
use tests::guest::{Gpu, GpuError, PATIENCE};

fn create(guest: &Gpu, context: u32, capset_id: u32) -> Result<(), GpuError> {
    let command = Command::CtxCreate { capset_id: CapsetId(capset_id), debug_name: b"test" };
    guest.call(&command, Some(ContextId(context))).map(drop)
}

#[test]
fn venus_context_is_a_process_and_ends_with_it() -> Result<()> {
    let daemon = Daemon::start()?;
    let guest = daemon.guest()?;
    assert_eq!(daemon.workers(), []);
    let first = guest.create_context("first")?;
    daemon.wait_for_workers(1)?;
    let second = guest.create_context("second")?;
    daemon.wait_for_workers(2)?;
    guest.destroy_context(first)?;
    daemon.wait_for_workers(1)?;
    guest.destroy_context(second)?;
    daemon.wait_for_workers(0)?;
    Ok(())
}

#[test]
fn context_without_capset_is_an_empty_shell() -> Result<()> {
    let daemon = Daemon::start()?;
    let guest = daemon.guest()?;
    let shell = ContextId(1);
    create(&guest, shell.0, 0)?;
    assert_eq!(daemon.workers(), []);
    // An older kernel flushes its console through such a context, which has no worker to execute a submission.
    assert!(guest.submit(shell, &[0; 8]).wait(PATIENCE).is_err());
    assert!(guest.submit_fenced(shell, RingIdx(0), &[]).arrives_within(PATIENCE));
    guest.destroy_context(shell)?;
    Ok(())
}

#[test]
fn context_ids_are_checked() -> Result<()> {
    let daemon = Daemon::start()?;
    let guest = daemon.guest()?;
    create(&guest, 7, 4)?;
    assert!(create(&guest, 7, 4).is_err(), "an id in use");
    assert!(create(&guest, 0, 4).is_err(), "id 0");
    assert!(create(&guest, 8, 2).is_err(), "a capability set of another driver");
    let unknown = Err(GpuError::Refused(ResponseType::ERR_INVALID_CONTEXT_ID));
    assert_eq!(guest.destroy_context(ContextId(8)), unknown);
    assert_eq!(guest.submit(ContextId(9), &[]).wait(PATIENCE).map(drop), unknown);
    guest.destroy_context(ContextId(7))?;
    assert_eq!(guest.destroy_context(ContextId(7)), unknown);
    create(&guest, 7, 4)?;
    Ok(())
}

#[test]
fn too_many_contexts_are_refused_and_the_rest_goes_on() -> Result<()> {
    let daemon = Daemon::start()?;
    let guest = daemon.guest()?;
    let mut created = Vec::new();
    let refused = loop {
        match guest.create_context("one of many") {
            Ok(context) => created.push(context),
            Err(e) => break e,
        }
        assert!(created.len() <= 1000, "no limit");
    };
    assert!(matches!(refused, GpuError::Refused(_)), "{refused}");
    assert!(created.len() >= 64, "only {} contexts", created.len());
    for context in created {
        guest.destroy_context(context)?;
    }
    daemon.wait_for_workers(0)?;
    let context = guest.create_context("after")?;
    guest.destroy_context(context)?;
    Ok(())
}

#[test]
fn contexts_that_come_and_go_leave_nothing_behind() -> Result<()> {
    let daemon = Daemon::start()?;
    let guest = daemon.guest()?;
    let cycle = || -> Result<()> {
        let context = guest.create_context("short")?;
        let blob = guest.create_shmem(context, 128 << 10)?;
        guest.destroy_blob(blob)?;
        guest.destroy_context(context)?;
        Ok(())
    };
    (0..20).try_for_each(|_| cycle())?;
    daemon.wait_for_workers(0)?;
    let before = Holdings::of(daemon.pid())?;
    (0..100).try_for_each(|_| cycle())?;
    daemon.wait_for_workers(0)?;
    let mut after = before;
    let settled = eventually(PATIENCE, || {
        after = Holdings::of(daemon.pid()).unwrap_or(after);
        after.descriptors <= before.descriptors
            && after.threads <= before.threads
            && after.mappings <= before.mappings + 4
            && after.anonymous_kib <= before.anonymous_kib + 1024
    });
    assert!(settled, "{before:?} became {after:?}");
    Ok(())
}

/// Mesa gives its worker a few seconds for each answer once it has its first memory, so the start of a worker comes before that.
#[test]
fn a_guest_hears_that_its_memory_is_mapped_when_the_worker_has_started() -> Result<()> {
    let daemon = Daemon::start()?;
    let guest = daemon.guest()?;
    let (early, late) = (guest.create_context("early")?, guest.new_context_id());
    guest.submit_fenced(early, RingIdx(0), &[]).wait(PATIENCE)?;
    let launcher = Pid::from_raw(launcher(daemon.id())? as i32);
    let launcher = launcher.context("a process")?;
    halt(launcher)?;
    guest.call(&Command::CtxCreate { capset_id: CapsetId::VENUS, debug_name: b"late" }, Some(late))?;
    let (blob_mem, blob_flags, blob_id) = (BlobMem::Host3d, BlobFlags::MAPPABLE, BlobId(0));
    let resource_id = guest.new_resource_id();
    let create =
        Command::ResourceCreateBlob { resource_id, blob_mem, blob_flags, blob_id, size: 4096, entries: &[] };
    guest.call(&create, Some(late))?;
    let map = guest.start(&Command::ResourceMapBlob { resource_id, offset: 1 << 30 }, None, None);
    ensure!(eventually(PATIENCE, || guest.session.window.live() == 1), "the memory is not mapped");
    // The launcher stands still, so no time is too short for the answer to stay away.
    ensure!(
        !map.arrives_within(Duration::from_millis(300)),
        "the guest hears of it before the worker has started"
    );
    // Other programs do not wait.
    guest.create_shmem(early, 4096)?;
    kill_process(launcher, Signal::CONT)?;
    map.wait(PATIENCE)?;
    Ok(())
}
