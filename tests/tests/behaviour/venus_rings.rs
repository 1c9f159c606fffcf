//! Rings, streams and waits of a Venus context, as venus drivers use them and a little beyond.

use anyhow::{Context, Result, ensure};
use protocol::cursor::{Arena, Reader};
use protocol::ids::{ContextId, RingIdx};
use protocol::venus::generated::{
    CommandStreamDescriptionMESA, CreateRingMESA, EnumerateInstanceVersion, EnumerateInstanceVersionReply,
    ExecuteCommandStreamsMESA, NotifyRingMESA, RingStatusFlagsMESA, SeekReplyCommandStreamMESA,
    SetReplyCommandStreamMESA, SubmitVirtqueueSeqnoMESA, VkResult, WaitRingSeqnoMESA, WaitVirtqueueSeqnoMESA,
};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tests::daemon::{Daemon, cpu_time};
use tests::guest::ring::{ASYNC, REPLY, Ring, RingOptions, encode};
use tests::guest::{Gpu, PATIENCE};
use vm_memory::{Bytes, VolatileMemory};

struct Setup {
    daemon: Daemon,
    guest: Arc<Gpu>,
    context: ContextId,
}

fn setup() -> Result<Setup> {
    Setup::of(Daemon::start()?)
}

impl Setup {
    fn of(daemon: Daemon) -> Result<Self> {
        let guest = Arc::new(daemon.guest()?);
        let context = guest.create_context("rings")?;
        Ok(Self { daemon, guest, context })
    }

    fn ring(&self) -> Result<Ring> {
        Ring::create(&self.guest, self.context, RingOptions::default())
    }

    fn small_ring(&self) -> Result<Ring> {
        Ring::create(
            &self.guest,
            self.context,
            RingOptions { buffer_size: 16 << 10, ..RingOptions::default() },
        )
    }

    /// Waits for a fence after all submissions so far: only then do rings know of new resources.
    fn fence(&self) -> Result<()> {
        self.guest.submit_fenced(self.context, RingIdx(0), &[]).wait(PATIENCE)?;
        Ok(())
    }

    /// Waits for the daemon's line with the reason of the loss: the worker writes the line after FATAL, and only until the context is destroyed.
    fn tells(&self, why: &str) -> Result<()> {
        let told = tests::daemon::eventually(PATIENCE, || self.daemon.log().contains(why));
        ensure!(told, "{}", self.daemon.log());
        Ok(())
    }

    /// Checks that the context is lost: FATAL is set, fences still arrive, and another context works.
    fn assert_lost(&self, ring: &Ring) -> Result<()> {
        let fatal = || ring.status().contains(RingStatusFlagsMESA::FATAL);
        // A ring waits 5 s for a resource before it counts the resource as missing.
        assert!(tests::daemon::eventually(PATIENCE, fatal), "no FATAL, {:?}", ring.status());
        assert!(self.guest.submit_fenced(self.context, RingIdx(0), &[]).arrives_within(PATIENCE));
        assert!(self.guest.submit_fenced(self.context, RingIdx(9), &[]).arrives_within(PATIENCE));
        let other = self.guest.create_context("another")?;
        assert!(version(&mut Ring::create(&self.guest, other, RingOptions::default())?)? > 1 << 22);
        assert!(self.guest.destroy_context(self.context).is_ok());
        Ok(())
    }
}

const QUESTION: EnumerateInstanceVersion<'_> = EnumerateInstanceVersion { p_api_version: Some(&0) };

fn version(ring: &mut Ring) -> Result<u32> {
    let reply = ring.query(|w| QUESTION.encode(REPLY, w))?;
    let arena = Arena::new(1 << 20);
    let reply = EnumerateInstanceVersionReply::decode(&mut Reader::new(&reply, &arena))?;
    assert_eq!(reply.result, VkResult::SUCCESS);
    reply.p_api_version.copied().context("a version")
}

#[test]
fn ring_answers_with_the_version_of_vulkan() -> Result<()> {
    let setup = setup()?;
    let mut ring = setup.ring()?;
    assert!(version(&mut ring)? >= 1 << 22 | 1 << 12);
    ring.destroy()
}

#[test]
fn commands_wrap_around_the_end_of_the_buffer() -> Result<()> {
    let setup = setup()?;
    let mut ring = setup.small_ring()?;
    // 28 bytes do not divide 16384: after a while every split inside a command has occurred.
    let seek = encode(|w| SeekReplyCommandStreamMESA { position: 0 }.encode(ASYNC, w));
    let odd = [seek.as_slice(), &encode(|w| QUESTION.encode(ASYNC, w))].concat();
    let stream =
        CommandStreamDescriptionMESA { resource_id: ring.resource().resource_id.0, offset: 0, size: 4 };
    ring.command(|w| SetReplyCommandStreamMESA { p_stream: Some(&stream) }.encode(ASYNC, w))?;
    for _ in 0..20_000 {
        ring.send(&odd)?;
    }
    assert!(version(&mut ring)? > 0);
    Ok(())
}

#[test]
fn idle_ring_costs_no_processor_time() -> Result<()> {
    let setup = setup()?;
    let worker = setup.daemon.wait_for_workers(1)?[0];
    let mut rings = (0..4).map(|_| setup.ring()).collect::<Result<Vec<_>>>()?;
    for ring in &mut rings {
        version(ring)?;
    }
    let idle = || rings.iter().all(|ring| ring.status().contains(RingStatusFlagsMESA::IDLE));
    assert!(tests::daemon::eventually(PATIENCE, idle));
    let before = (cpu_time(worker)?, cpu_time(setup.daemon.pid())?);
    let began = Instant::now();
    std::thread::sleep(Duration::from_secs(2));
    let used = (cpu_time(worker)? - before.0, cpu_time(setup.daemon.pid())? - before.1);
    let passed = began.elapsed();
    println!("in {passed:?} of quiet: worker {:?}, device process {:?}", used.0, used.1);
    // A process that spins would use all the time.
    assert!(
        used.0 <= passed / 10 && used.1 <= passed / 10,
        "worker and device process: {used:?} of {passed:?}"
    );
    Ok(())
}

#[test]
fn idle_ring_wakes_up_every_time() -> Result<()> {
    let setup = setup()?;
    let mut ring = setup.ring()?;
    for round in 0..2000_u64 {
        // The pause is near the idle timeout of 1 ms, so that the ring falls asleep just when the command arrives.
        std::thread::sleep(Duration::from_micros(700 + round * 7 % 900));
        let seqno = ring.command(|w| QUESTION.encode(ASYNC, w))?;
        ring.wait(seqno, PATIENCE)?;
    }
    Ok(())
}

#[test]
fn notification_that_comes_before_the_command_is_not_lost() -> Result<()> {
    let setup = setup()?;
    let mut ring = setup.ring()?;
    for _ in 0..200 {
        std::thread::sleep(Duration::from_millis(2));
        ring.notify();
        let seqno = ring.command(|w| QUESTION.encode(ASYNC, w))?;
        ring.wait(seqno, PATIENCE)?;
    }
    Ok(())
}

#[test]
fn monitored_ring_says_that_it_is_alive_even_while_it_is_blocked() -> Result<()> {
    let setup = setup()?;
    let mut ring = setup.ring()?;
    // The ring's thread waits for the virtqueue; only another thread can set the bit.
    let seqno = ring.command(|w| WaitVirtqueueSeqnoMESA { seqno: 1 }.encode(ASYNC, w))?;
    for _ in 0..3 {
        ring.clear_alive();
        let alive = || ring.status().contains(RingStatusFlagsMESA::ALIVE);
        assert!(tests::daemon::eventually(PATIENCE, alive));
    }
    assert!(ring.head() < seqno);
    let publish = encode(|w| SubmitVirtqueueSeqnoMESA { ring: ring.id(), seqno: 1 }.encode(ASYNC, w));
    setup.guest.submit(setup.context, &publish).wait(PATIENCE)?;
    ring.wait(seqno, PATIENCE)
}

#[test]
fn ring_waits_for_the_virtqueue_and_the_virtqueue_for_the_ring() -> Result<()> {
    let setup = setup()?;
    let mut ring = setup.ring()?;
    for round in 1..=200 {
        let seqno = ring.command(|w| {
            WaitVirtqueueSeqnoMESA { seqno: round }.encode(ASYNC, w);
            QUESTION.encode(ASYNC, w);
        })?;
        // The number is published first: the stream would never reach this command after the wait for the ring.
        let submission = encode(|w| {
            SubmitVirtqueueSeqnoMESA { ring: ring.id(), seqno: round }.encode(ASYNC, w);
            WaitRingSeqnoMESA { ring: ring.id(), seqno: seqno.into() }.encode(ASYNC, w);
        });
        setup.guest.submit_fenced(setup.context, RingIdx(0), &submission).wait(PATIENCE)?;
        assert_eq!(ring.head(), seqno);
    }
    Ok(())
}

/// Neither of the two waits would ever end, and the commands after them would never run.
#[test]
fn ring_and_virtqueue_that_wait_for_each_other_end_their_context() -> Result<()> {
    let setup = setup()?;
    let mut ring = setup.ring()?;
    let seqno = ring.command(|w| WaitVirtqueueSeqnoMESA { seqno: 1 }.encode(ASYNC, w))?;
    let submission = encode(|w| {
        WaitRingSeqnoMESA { ring: ring.id(), seqno: seqno.into() }.encode(ASYNC, w);
        SubmitVirtqueueSeqnoMESA { ring: ring.id(), seqno: 1 }.encode(ASYNC, w);
    });
    setup.guest.submit_fenced(setup.context, RingIdx(0), &submission).wait(PATIENCE)?;
    setup.tells("the guest's program or its driver breaks a rule: ")?;
    setup.tells("a ring waits for the virtqueue, which waits for that ring")?;
    setup.assert_lost(&ring)
}

#[test]
fn virtqueue_wakes_an_idle_ring_before_waiting_for_it() -> Result<()> {
    let setup = setup()?;
    let mut ring = setup.ring()?;
    for _ in 0..50 {
        std::thread::sleep(Duration::from_millis(3));
        let seqno = ring.command(|w| QUESTION.encode(ASYNC, w))?;
        let wait = encode(|w| WaitRingSeqnoMESA { ring: ring.id(), seqno: seqno.into() }.encode(ASYNC, w));
        setup.guest.submit_fenced(setup.context, RingIdx(0), &wait).wait(PATIENCE)?;
        assert_eq!(ring.head(), seqno);
    }
    Ok(())
}

#[test]
fn many_rings_of_one_context_work_at_once() -> Result<()> {
    let setup = setup()?;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..6)
            .map(|_| {
                scope.spawn(|| -> Result<()> {
                    for _ in 0..5 {
                        let mut ring = setup.small_ring()?;
                        for _ in 0..200 {
                            version(&mut ring)?;
                        }
                        ring.destroy()?;
                    }
                    Ok(())
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })
}

#[test]
fn large_commands_come_from_shared_memory() -> Result<()> {
    let setup = setup()?;
    let mut ring = setup.ring()?;
    let upload = setup.guest.create_shmem(setup.context, 1 << 20)?;
    setup.fence()?;
    let memory = upload.mapping.as_ref().context("mapped")?.1.map()?;
    let commands = encode(|w| (0..10_000).for_each(|_| QUESTION.encode(ASYNC, w)));
    memory.as_volatile_slice().write_slice(&commands, 4096)?;
    let half = commands.len() as u64 / 2;
    let resource_id = upload.resource_id.0;
    let streams = [
        CommandStreamDescriptionMESA { resource_id, offset: 4096, size: half },
        CommandStreamDescriptionMESA { resource_id, offset: 4096 + half, size: half },
    ];
    let execute =
        ExecuteCommandStreamsMESA { stream_count: 2, p_streams: Some(&streams), ..Default::default() };
    let seqno = ring.command(|w| execute.encode(ASYNC, w))?;
    ring.wait(seqno, PATIENCE)?;
    assert!(version(&mut ring)? > 0);
    Ok(())
}

#[test]
fn reply_stays_inside_its_window() -> Result<()> {
    let setup = setup()?;
    let mut ring = setup.ring()?;
    let replies = setup.guest.create_shmem(setup.context, 8192)?;
    setup.fence()?;
    let memory = replies.mapping.as_ref().context("mapped")?.1.map()?;
    memory.as_volatile_slice().write_slice(&[0xa5; 8192], 0)?;
    // Number, result, presence, version.
    let stream = CommandStreamDescriptionMESA { resource_id: replies.resource_id.0, offset: 100, size: 20 };
    let seqno = ring.command(|w| {
        SetReplyCommandStreamMESA { p_stream: Some(&stream) }.encode(ASYNC, w);
        QUESTION.encode(REPLY, w);
    })?;
    ring.wait(seqno, PATIENCE)?;
    let mut bytes = vec![0; 8192];
    memory.as_volatile_slice().read_slice(&mut bytes, 0)?;
    assert!(bytes[..100].iter().chain(&bytes[120..]).all(|&byte| byte == 0xa5));
    assert_eq!(bytes[100..104], 137_u32.to_le_bytes());
    // A second reply does not fit behind the first.
    ring.command(|w| QUESTION.encode(REPLY, w))?;
    setup.assert_lost(&ring)?;
    memory.as_volatile_slice().read_slice(&mut bytes, 0)?;
    assert!(bytes[..100].iter().chain(&bytes[120..]).all(|&byte| byte == 0xa5));
    Ok(())
}

#[test]
fn streams_that_are_wrong_end_the_context_and_only_it() -> Result<()> {
    let half = encode(|w| QUESTION.encode(ASYNC, w));
    let outside = CommandStreamDescriptionMESA { resource_id: 2, offset: 1 << 20, size: 4096 };
    let unknown = CommandStreamDescriptionMESA { resource_id: 4711, offset: 0, size: 4096 };
    for (what, bytes) in [
        ("an unknown command", vec![0xff; 16]),
        ("half a command", half[..12].to_vec()),
        ("a reply without a window", encode(|w| QUESTION.encode(REPLY, w))),
        (
            "a window outside its resource",
            encode(|w| SetReplyCommandStreamMESA { p_stream: Some(&outside) }.encode(ASYNC, w)),
        ),
        (
            "a window nowhere",
            encode(|w| SetReplyCommandStreamMESA { p_stream: Some(&unknown) }.encode(ASYNC, w)),
        ),
        ("no streams", encode(|w| ExecuteCommandStreamsMESA::default().encode(ASYNC, w))),
        ("a notification on a ring", encode(|w| NotifyRingMESA::default().encode(ASYNC, w))),
        (
            "a ring on a ring",
            encode(|w| CreateRingMESA { ring: 1, p_create_info: Some(&Default::default()) }.encode(ASYNC, w)),
        ),
    ] {
        println!("{what}");
        let setup = setup()?;
        let mut ring = setup.ring()?;
        ring.send(&bytes)?;
        setup.assert_lost(&ring).with_context(|| what.to_owned())?;
    }
    Ok(())
}

#[test]
fn ring_whose_tail_lies_ends_the_context() -> Result<()> {
    for lie in [u32::MAX, 1 << 31, (128 << 10) + 4] {
        let setup = setup()?;
        let mut ring = setup.ring()?;
        ring.lie_about_tail(lie);
        setup.assert_lost(&ring)?;
    }
    Ok(())
}

#[test]
fn seqno_that_cannot_be_reached_ends_the_context() -> Result<()> {
    let setup = setup()?;
    let ring = setup.ring()?;
    let wait = encode(|w| WaitRingSeqnoMESA { ring: ring.id(), seqno: 4096 }.encode(ASYNC, w));
    assert!(setup.guest.submit_fenced(setup.context, RingIdx(0), &wait).arrives_within(PATIENCE));
    setup.assert_lost(&ring)
}

#[test]
fn ring_that_waits_can_be_destroyed_and_so_can_its_context() -> Result<()> {
    let setup = setup()?;
    let mut ring = setup.ring()?;
    ring.command(|w| WaitVirtqueueSeqnoMESA { seqno: 1 }.encode(ASYNC, w))?;
    std::thread::sleep(Duration::from_millis(20));
    ring.destroy()?;
    let mut ring = setup.ring()?;
    ring.command(|w| WaitVirtqueueSeqnoMESA { seqno: 1 }.encode(ASYNC, w))?;
    setup.fence()?;
    setup.guest.destroy_context(setup.context)?;
    setup.daemon.wait_for_workers(0)?;
    Ok(())
}

#[test]
fn resource_of_another_context_cannot_be_named() -> Result<()> {
    let setup = setup()?;
    let other = setup.guest.create_context("owner")?;
    let secret = setup.guest.create_shmem(other, 4096)?;
    let mut ring = setup.ring()?;
    let stream = CommandStreamDescriptionMESA { resource_id: secret.resource_id.0, offset: 0, size: 4096 };
    ring.command(|w| SetReplyCommandStreamMESA { p_stream: Some(&stream) }.encode(ASYNC, w))?;
    setup.assert_lost(&ring)
}
