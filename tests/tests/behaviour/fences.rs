//! Fences of submissions: each arrives, on its own timeline, in order.

use anyhow::Result;
use protocol::ids::{FenceId, RingIdx};
use protocol::virtio_gpu::{Command, Fence, FenceTimeline, HeaderFlags};
use std::sync::Arc;
use std::sync::mpsc::channel;
use tests::daemon::Daemon;
use tests::guest::PATIENCE;

#[test]
fn fences_of_one_timeline_arrive_in_order() -> Result<()> {
    let daemon = Daemon::start()?;
    let guest = daemon.guest()?;
    let context = guest.create_context("ordered")?;
    let (sender, receiver) = channel();
    const COUNT: u64 = 20_000;
    for i in 0..COUNT {
        let sender = sender.clone();
        let fence = guest.fence(RingIdx(0));
        guest.send(
            &Command::Submit3d { data: &[] },
            Some(context),
            Some(fence),
            Box::new(move |_| sender.send(i).unwrap_or_default()),
        );
    }
    for i in 0..COUNT {
        assert_eq!(receiver.recv_timeout(PATIENCE)?, i);
    }
    Ok(())
}

#[test]
fn answer_echoes_fence_context_and_ring() -> Result<()> {
    let daemon = Daemon::start()?;
    let guest = daemon.guest()?;
    let context = guest.create_context("echo")?;
    let fence = Fence { timeline: FenceTimeline::Ring(RingIdx(0)), fence_id: FenceId(0xfeed_0000_0001) };
    let answer = guest.start(&Command::Submit3d { data: &[] }, Some(context), Some(fence));
    let (header, _) = answer.wait_with_header(PATIENCE)?;
    assert_eq!(header.flags, HeaderFlags::FENCE | HeaderFlags::INFO_RING_IDX);
    assert_eq!((header.fence_id, header.ctx_id), (fence.fence_id, context.0));
    Ok(())
}

#[test]
fn fence_without_a_ring_arrives_after_execution() -> Result<()> {
    let daemon = Daemon::start()?;
    let guest = daemon.guest()?;
    let context = guest.create_context("global")?;
    let fence = Fence { timeline: FenceTimeline::Global, fence_id: FenceId(3) };
    let answer = guest.start(&Command::Submit3d { data: &[] }, Some(context), Some(fence));
    assert_eq!(answer.wait_with_header(PATIENCE)?.0.fence(), Some(fence));
    Ok(())
}

#[test]
fn fence_on_a_ring_that_no_queue_is_bound_to_arrives() -> Result<()> {
    let daemon = Daemon::start()?;
    let guest = daemon.guest()?;
    let context = guest.create_context("unbound")?;
    for ring_idx in [1, 2, 63, 64, 255] {
        assert!(
            guest.submit_fenced(context, RingIdx(ring_idx), &[]).arrives_within(PATIENCE),
            "ring_idx {ring_idx}"
        );
    }
    Ok(())
}

#[test]
fn fences_of_a_destroyed_context_arrive() -> Result<()> {
    let daemon = Daemon::start()?;
    let guest = daemon.guest()?;
    for _ in 0..10 {
        let context = guest.create_context("short")?;
        let fences: Vec<_> =
            (0..500).map(|i| guest.submit_fenced(context, RingIdx(i as u8 % 3), &[])).collect();
        let destroyed = guest.start(&Command::CtxDestroy, Some(context), None);
        let late = guest.submit_fenced(context, RingIdx(0), &[]);
        assert!(fences.iter().all(|fence| fence.arrives_within(PATIENCE)));
        destroyed.wait(PATIENCE)?;
        assert!(late.arrives_within(PATIENCE));
    }
    daemon.wait_for_workers(0)?;
    Ok(())
}

#[test]
fn contexts_submit_at_once_without_waiting_for_each_other() -> Result<()> {
    let daemon = Daemon::start()?;
    let guest = Arc::new(daemon.guest()?);
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let guest = Arc::clone(&guest);
            std::thread::spawn(move || -> Result<()> {
                let context = guest.create_context("parallel")?;
                for _ in 0..500 {
                    guest.submit_fenced(context, RingIdx(0), &[]).wait(PATIENCE)?;
                }
                Ok(guest.destroy_context(context)?)
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("no panic")?;
    }
    Ok(())
}
