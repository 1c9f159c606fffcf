//! The death of a worker ends its context and no other, unless the context has a checkpoint (`recovery`).

use anyhow::{Context, Result, ensure};
use protocol::ids::{BlobId, RingIdx};
use protocol::venus::generated::{DestroyRingMESA, RingStatusFlagsMESA};
use protocol::virtio_gpu::{BlobFlags, Command};
use rustix::process::{Signal, kill_process};
use std::sync::Arc;
use std::time::Duration;
use tests::daemon::{Daemon, Holdings, WITHOUT_CHECKPOINTS, die_by, eventually, halt};
use tests::guest::PATIENCE;
use tests::guest::ring::{ASYNC, Ring, RingOptions, encode};
use vm_memory::{Bytes, VolatileMemory};

#[test]
fn fences_of_a_killed_worker_complete_and_others_do_not_notice() -> Result<()> {
    let daemon = Daemon::start_with(&WITHOUT_CHECKPOINTS)?;
    let guest = daemon.guest()?;
    let victim = guest.create_context("victim")?;
    let worker = daemon.wait_for_workers(1)?[0];
    let other = guest.create_context("other")?;
    daemon.wait_for_workers(2)?;
    halt(worker)?;
    let pending: Vec<_> = (0..100).map(|i| guest.submit_fenced(victim, RingIdx(i % 4), &[])).collect();
    let blob_id = BlobId(77);
    let (blob_mem, blob_flags) = (protocol::virtio_gpu::BlobMem::Host3d, BlobFlags::MAPPABLE);
    let resource_id = guest.new_resource_id();
    let create =
        Command::ResourceCreateBlob { resource_id, blob_mem, blob_flags, blob_id, size: 4096, entries: &[] };
    let export = guest.start(&create, Some(victim), None);
    let map = guest.start(&Command::ResourceMapBlob { resource_id, offset: 1 << 30 }, None, None);
    // A worker that does not answer delays no other context.
    guest.submit_fenced(other, RingIdx(0), &[]).wait(PATIENCE)?;
    guest.create_shmem(other, 4096)?;
    assert!(!pending[0].arrives_within(Duration::from_millis(100)));
    kill_process(worker, Signal::KILL)?;
    for (i, fence) in pending.iter().enumerate().skip(1) {
        assert!(fence.arrives_within(PATIENCE), "fence {i}");
    }
    assert!(export.wait(PATIENCE).is_err());
    assert!(map.wait(PATIENCE).is_err());
    guest.submit_fenced(other, RingIdx(0), &[]).wait(PATIENCE)?;
    daemon.wait_for_workers(1)?;
    Ok(())
}

#[test]
fn rings_of_a_killed_worker_are_fatal_and_ended_ones_are_left_alone() -> Result<()> {
    let daemon = Daemon::start_with(&WITHOUT_CHECKPOINTS)?;
    let guest = Arc::new(daemon.guest()?);
    let context = guest.create_context("victim")?;
    let worker = daemon.wait_for_workers(1)?[0];
    let rings = (0..3).map(|_| Ring::create(&guest, context, RingOptions::default()));
    let mut rings = rings.collect::<Result<Vec<_>>>()?;
    let ended = rings.remove(1);
    let destroy = encode(|w| DestroyRingMESA { ring: ended.id() }.encode(ASYNC, w));
    guest.submit_fenced(context, RingIdx(0), &destroy).wait(PATIENCE)?;
    kill_process(worker, Signal::KILL)?;
    let fatal = |ring: &Ring| ring.status().contains(RingStatusFlagsMESA::FATAL);
    assert!(eventually(PATIENCE, || rings.iter().all(fatal)), "the driver is not told");
    assert!(!fatal(&ended), "memory of a ring that has ended was written to");
    Ok(())
}

#[test]
fn lost_context_is_answered_until_it_is_destroyed() -> Result<()> {
    let daemon = Daemon::start_with(&WITHOUT_CHECKPOINTS)?;
    let guest = daemon.guest()?;
    let victim = guest.create_context("victim")?;
    let blob = guest.create_shmem(victim, 8192)?;
    let memory = blob.mapping.as_ref().context("mapped")?.1.map()?;
    memory.as_volatile_slice().write_obj(7_u32, 0)?;
    kill_process(daemon.wait_for_workers(1)?[0], Signal::KILL)?;
    daemon.wait_for_workers(0)?;
    for ring_idx in 0..64 {
        assert!(
            guest.submit_fenced(victim, RingIdx(ring_idx), &[0; 16]).arrives_within(PATIENCE),
            "ring_idx {ring_idx}"
        );
    }
    // The mapping stays, because the guest's process may still read it.
    assert_eq!(memory.as_volatile_slice().read_obj::<u32>(0)?, 7);
    assert_eq!(guest.session.window.live(), 1);
    guest.destroy_blob(blob)?;
    guest.destroy_context(victim)?;
    let next = guest.create_context("next")?;
    guest.create_shmem(next, 4096)?;
    daemon.wait_for_workers(1)?;
    assert_eq!(guest.session.window.violations(), Vec::<String>::new());
    Ok(())
}

#[test]
fn worker_killed_while_contexts_come_and_go_never_hurts_the_device() -> Result<()> {
    let daemon = Daemon::start_with(&WITHOUT_CHECKPOINTS)?;
    let guest = daemon.guest()?;
    for _ in 0..30 {
        let context = guest.create_context("short-lived")?;
        let _ = guest.create_shmem(context, 4096);
        if let Some(&worker) = daemon.workers().first() {
            let _ = kill_process(worker, Signal::KILL);
        }
        let fence = guest.submit_fenced(context, RingIdx(1), &[]);
        assert!(fence.arrives_within(PATIENCE));
        guest.destroy_context(context)?;
    }
    daemon.wait_for_workers(0)?;
    assert!(daemon.is_running());
    Ok(())
}

#[test]
fn worker_that_ignores_its_end_is_killed() -> Result<()> {
    let daemon = Daemon::start_with(&WITHOUT_CHECKPOINTS)?;
    let guest = daemon.guest()?;
    let context = guest.create_context("stubborn")?;
    halt(daemon.wait_for_workers(1)?[0])?;
    let pending = guest.submit_fenced(context, RingIdx(0), &[]);
    let destroyed = guest.start(&Command::CtxDestroy, Some(context), None);
    assert!(pending.arrives_within(PATIENCE), "a fence of a destroyed context");
    assert!(destroyed.arrives_within(PATIENCE));
    daemon.wait_for_workers(0)?;
    Ok(())
}

#[test]
fn worker_that_does_not_read_is_ended_before_its_backlog_is_endless() -> Result<()> {
    let daemon = Daemon::start_with(&WITHOUT_CHECKPOINTS)?;
    let guest = daemon.guest()?;
    let context = guest.create_context("deaf")?;
    let deaf = daemon.wait_for_workers(1)?[0];
    let other = guest.create_context("other")?;
    halt(deaf)?;
    let payload = [0u8; 1024];
    for _ in 0..200_000 {
        guest.send(&Command::Submit3d { data: &payload }, Some(context), None, Box::new(|_| ()));
    }
    guest.submit_fenced(other, RingIdx(0), &[]).wait(PATIENCE)?;
    daemon.wait_for_workers(1)?;
    assert!(guest.submit_fenced(context, RingIdx(0), &[]).arrives_within(PATIENCE));
    Ok(())
}

#[test]
fn how_a_worker_died_is_told_once() -> Result<()> {
    let daemon = Daemon::start_with(&WITHOUT_CHECKPOINTS)?;
    let guest = daemon.guest()?;
    guest.capset()?;
    let before = Holdings::of(daemon.pid())?;
    let deaths = [
        (Signal::SEGV, "signal: 11 (SIGSEGV)"),
        (Signal::ABORT, "signal: 6 (SIGABRT)"),
        (Signal::SYS, "signal: 31 (SIGSYS)"),
        (Signal::KILL, "signal: 9 (SIGKILL)"),
    ];
    for (signal, told) in deaths {
        let context = guest.create_context("victim")?;
        let worker = daemon.wait_for_workers(1)?[0];
        guest.submit_fenced(context, RingIdx(0), &[]).wait(PATIENCE)?;
        ensure!(die_by(worker, signal), "{signal:?} does not end the worker");
        let lost = format!(" program=victim context {context} is lost: ");
        let lines = || daemon.log().lines().filter(|line| line.contains(&lost)).count();
        ensure!(eventually(PATIENCE, || lines() > 0), "nothing is told of {signal:?}\n{}", daemon.log());
        ensure!(daemon.log().contains(&format!("{lost}its worker ended ({told}")), "{}", daemon.log());
        guest.destroy_context(context)?;
        ensure!(lines() == 1, "told twice\n{}", daemon.log());
    }
    daemon.wait_for_workers(0)?;
    let kept = || Holdings::of(daemon.pid()).is_ok_and(|now| now.descriptors <= before.descriptors);
    ensure!(eventually(PATIENCE, kept), "{before:?} became {:?}", Holdings::of(daemon.pid()));
    Ok(())
}
