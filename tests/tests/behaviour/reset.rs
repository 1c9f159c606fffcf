//! A guest's reset, told apart from a pause, for both ways in which VMMs treat the window.

use anyhow::{Context, Result};
use protocol::ids::{ContextId, ResourceId, RingIdx};
use protocol::virtio_gpu::Command;
use std::time::Duration;
use tests::daemon::{Daemon, eventually};
use tests::frontend::{Options, Vmm};
use tests::guest::{Gpu, PATIENCE};
use vm_memory::{Bytes, VolatileMemory};

const VMMS: [Vmm; 2] = [Vmm::Qemu, Vmm::Crosvm];

fn guest(daemon: &Daemon, vmm: Vmm) -> Result<Gpu> {
    daemon.guest_with(Options::of(vmm))
}

#[test]
fn reset_ends_contexts_and_frees_their_ids_and_blobs() -> Result<()> {
    for vmm in VMMS {
        let daemon = Daemon::start()?;
        let mut first = guest(&daemon, vmm)?;
        for _ in 0..3 {
            let context = first.create_context("before the reset")?;
            for _ in 0..12 {
                first.create_shmem(context, 64 << 10)?;
            }
        }
        daemon.wait_for_workers(3)?;
        first.session.reset()?;
        let empty = eventually(PATIENCE, || first.session.window.live() == 0);
        assert!(empty, "{vmm:?}: {} maps after the reset", first.session.window.live());
        daemon.wait_for_workers(0)?;
        // The guest's driver counts from the beginning again.
        let mut second = Gpu::new(first.session);
        assert_eq!(second.create_context("after the reset")?, ContextId(1));
        let blob = second.create_shmem(ContextId(1), 64 << 10)?;
        assert_eq!(
            (blob.resource_id, blob.mapping.as_ref().map(|(offset, _)| *offset)),
            (ResourceId(1), Some(0))
        );
        second.session.reset()?;
        assert_eq!(second.session.window.violations(), Vec::<String>::new(), "{vmm:?}");
    }
    Ok(())
}

#[test]
fn reset_with_requests_in_flight_is_survived() -> Result<()> {
    VMMS.iter().try_for_each(|vmm| reset_in_flight(*vmm))
}

fn reset_in_flight(vmm: Vmm) -> Result<()> {
    let daemon = Daemon::start()?;
    let mut gpu = guest(&daemon, vmm)?;
    for round in 0..20 {
        let context = gpu.create_context("busy")?;
        gpu.create_shmem(context, 4096)?;
        let (resource_id, offset) = (gpu.new_resource_id(), 1 << 20);
        let late: Vec<_> = (0..round * 10).map(|_| gpu.submit_fenced(context, RingIdx(0), &[])).collect();
        let map = gpu.start(&Command::ResourceMapBlob { resource_id, offset }, None, None);
        gpu.session.reset()?;
        drop((late, map));
        gpu = Gpu::new(gpu.session);
    }
    assert_eq!(gpu.session.window.violations(), Vec::<String>::new());
    daemon.wait_for_workers(0)?;
    Ok(())
}

#[test]
fn pause_keeps_contexts_maps_and_contents() -> Result<()> {
    VMMS.iter().try_for_each(|vmm| pause_keeps_all(*vmm))
}

fn pause_keeps_all(vmm: Vmm) -> Result<()> {
    let daemon = Daemon::start()?;
    let mut gpu = guest(&daemon, vmm)?;
    let context = gpu.create_context("paused")?;
    let blobs: Vec<_> = (0..12).map(|_| gpu.create_shmem(context, 64 << 10)).collect::<Result<_>>()?;
    let memory = blobs[5].mapping.as_ref().context("mapped")?.1.map()?;
    memory.as_volatile_slice().write_obj(0x1234_5678_u32, 0x1000)?;
    let workers = daemon.wait_for_workers(1)?;
    for _ in 0..5 {
        let bases = gpu.session.stop()?;
        // The device finds a request that the guest puts onto the ring during the pause when the pause is over.
        let during = gpu.submit_fenced(context, RingIdx(0), &[]);
        assert!(!during.arrives_within(Duration::from_millis(50)));
        gpu.session.cont(bases)?;
        assert!(during.arrives_within(PATIENCE));
    }
    assert_eq!(daemon.workers(), workers);
    assert_eq!(gpu.session.window.live(), 12);
    assert_eq!(memory.as_volatile_slice().read_obj::<u32>(0x1000)?, 0x1234_5678);
    for blob in blobs {
        gpu.destroy_blob(blob)?;
    }
    assert_eq!(gpu.session.window.violations(), Vec::<String>::new());
    Ok(())
}

#[test]
fn fences_that_were_pending_at_a_pause_arrive_after_it() -> Result<()> {
    VMMS.iter().try_for_each(|vmm| fences_outlive_a_pause(*vmm))
}

fn fences_outlive_a_pause(vmm: Vmm) -> Result<()> {
    let daemon = Daemon::start()?;
    let mut gpu = guest(&daemon, vmm)?;
    let context = gpu.create_context("paused")?;
    for _ in 0..20 {
        let fences: Vec<_> = (0..200).map(|_| gpu.submit_fenced(context, RingIdx(0), &[])).collect();
        let bases = gpu.session.stop()?;
        gpu.session.cont(bases)?;
        for fence in fences {
            fence.wait(PATIENCE)?;
        }
    }
    Ok(())
}

#[test]
fn pause_and_reset_are_told_apart_where_the_index_has_wrapped_to_0() -> Result<()> {
    VMMS.iter().try_for_each(|vmm| told_apart_at_0(*vmm))
}

fn told_apart_at_0(vmm: Vmm) -> Result<()> {
    let daemon = Daemon::start()?;
    let mut gpu = guest(&daemon, vmm)?;
    // The test has one context without and one with a mapping, because QEMU's memory table shows only mappings.
    gpu.create_context("paused")?;
    let context = gpu.create_context("paused")?;
    gpu.create_shmem(context, 64 << 10)?;
    let workers = daemon.wait_for_workers(2)?;
    for _ in 0..2 {
        wrap(&mut gpu)?;
        gpu.session.cont([0, 0])?;
        // The old context answers, and there is neither a new worker nor a new mapping.
        gpu.submit_fenced(context, RingIdx(0), &[]).wait(PATIENCE)?;
        assert_eq!((daemon.workers(), gpu.session.window.live()), (workers.clone(), 1), "{vmm:?}");
    }
    wrap(&mut gpu)?;
    gpu.session.cont([0, 0])?;
    wrap(&mut gpu)?;
    gpu.session.reset()?;
    daemon.wait_for_workers(0)?;
    assert!(eventually(PATIENCE, || gpu.session.window.live() == 0), "{vmm:?}");
    let gpu = Gpu::new(gpu.session);
    assert_eq!(gpu.create_context("after the reset")?, ContextId(1));
    gpu.create_shmem(ContextId(1), 64 << 10)?;
    assert_eq!(gpu.session.window.violations(), Vec::<String>::new(), "{vmm:?}");
    Ok(())
}

/// Sends requests until the control queue's index is 0 again, and stops the queues there.
fn wrap(gpu: &mut Gpu) -> Result<()> {
    let [base, cursor] = gpu.session.stop()?;
    gpu.session.cont([base, cursor])?;
    let mut left = (1 << 16) - u32::from(base);
    while left > 0 {
        let batch = left.min(256);
        let answers: Vec<_> =
            (0..batch).map(|_| gpu.start(&Command::GetCapsetInfo { capset_index: 0 }, None, None)).collect();
        answers.iter().try_for_each(|answer| answer.wait(PATIENCE).map(drop))?;
        left -= batch;
    }
    assert_eq!(gpu.session.stop()?, [0, 0]);
    Ok(())
}
