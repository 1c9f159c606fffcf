//! A hostile Venus driver: random and mutated submissions, ring contents, heads and tails. A broken context ends alone, its fences arrive, and the
//! next context works.

use anyhow::{Context, Result, ensure};
use protocol::ids::{ContextId, RingIdx};
use protocol::venus::generated::EnumerateInstanceVersion;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tests::attacks::streams::{known_numbers, random_command, transport_command};
use tests::daemon::{Daemon, Holdings};
use tests::guest::ring::{ASYNC, Ring, RingOptions, encode};
use tests::guest::{Gpu, PATIENCE};
use tests::random::{Random, repetitions};
use vm_memory::{Bytes, VolatileMemory};

/// The time after which a test has shown enough, however slow the machine is; the counts are printed.
const TIME_LIMIT: Duration = Duration::from_secs(90);

fn assert_next_context_works(guest: &Arc<Gpu>) -> Result<()> {
    let context = guest.create_context("next")?;
    let mut ring = Ring::create(guest, context, RingOptions::default())?;
    let seqno = ring.command(|w| EnumerateInstanceVersion { p_api_version: Some(&0) }.encode(ASYNC, w))?;
    ring.wait(seqno, PATIENCE)?;
    ring.abandon();
    Ok(guest.destroy_context(context)?)
}

/// Runs `attack` against fresh contexts until it has made `full` attempts or the time is over.
fn besiege(
    what: &str,
    seed: u64,
    full: u64,
    attack: impl Fn(&Arc<Gpu>, ContextId, &mut Random) -> Result<u64>,
) -> Result<()> {
    let daemon = Daemon::start()?;
    let guest = Arc::new(daemon.guest()?);
    let mut random = Random::new(seed);
    let (started, full) = (Instant::now(), repetitions(full));
    let (mut attempts, mut contexts) = (0, 0_u64);
    while attempts < full && started.elapsed() < TIME_LIMIT {
        let context = guest.create_context(what)?;
        contexts += 1;
        attempts += attack(&guest, context, &mut random).with_context(|| format!("context {contexts}"))?;
        // In any state of the context its fences arrive, and a guest can destroy it.
        for ring_idx in [0, 1] {
            let arrived = guest.submit_fenced(context, RingIdx(ring_idx), &[]).arrives_within(PATIENCE);
            ensure!(arrived, "a fence on ring_idx {ring_idx} of context {contexts} did not arrive");
        }
        guest.destroy_context(context)?;
        ensure!(daemon.is_running(), "the device process ended: {}", daemon.log());
        if contexts % 64 == 0 {
            assert_next_context_works(&guest)?;
        }
    }
    println!("{what}: {attempts} attempts, {contexts} contexts, {:?}", started.elapsed());
    ensure!(attempts > 0, "nothing was attempted");
    assert_next_context_works(&guest)?;
    daemon.wait_for_workers(0)?;
    assert_eq!(guest.session.window.violations(), Vec::<String>::new());
    let holdings = Holdings::of(daemon.pid())?;
    ensure!(holdings.descriptors < 64, "{holdings:?}");
    Ok(())
}

#[test]
fn random_submissions_end_their_context_alone() -> Result<()> {
    let numbers = known_numbers();
    besiege("random submissions", 11, 100_000, |guest, context, random| {
        let count = 1 + random.below(512);
        for i in 0..count {
            let payload = match random.below(4) {
                0 => random.bytes(4 * (1 + i as usize % 32)),
                _ => random_command(random, &numbers),
            };
            drop(guest.submit(context, &payload));
        }
        Ok(count)
    })
}

#[test]
fn transport_commands_with_wild_arguments_end_their_context_alone() -> Result<()> {
    besiege("transport commands", 12, 100_000, |guest, context, random| {
        let ring = Ring::create(guest, context, RingOptions { buffer_size: 4096, ..RingOptions::default() })?;
        let count = 1 + random.below(512);
        for _ in 0..count {
            let mut payload = transport_command(random, ring.id(), ring.resource().resource_id.0);
            if random.once_in(20) {
                random.mutate(&mut payload, ..);
            }
            drop(guest.submit(context, &payload));
        }
        ring.abandon();
        Ok(count)
    })
}

#[test]
fn random_ring_contents_and_positions_end_their_context_alone() -> Result<()> {
    let numbers = known_numbers();
    besiege("ring contents", 13, 50_000, |guest, context, random| {
        let mut ring =
            Ring::create(guest, context, RingOptions { buffer_size: 4096, ..RingOptions::default() })?;
        let question = encode(|w| EnumerateInstanceVersion { p_api_version: Some(&0) }.encode(ASYNC, w));
        // The test overwrites the ring's control words, so a wait may never end by itself.
        ring.patience = Duration::from_millis(20);
        let rounds = 1 + random.below(64);
        for _ in 0..rounds {
            // Good commands first, so that the ring is somewhere in its middle and awake.
            if (0..random.below(8)).any(|_| ring.send(&question).is_err()) {
                break;
            }
            match random.below(6) {
                0 => ring.lie_about_tail(ring.tail().wrapping_add(random.below(8192) as u32)),
                1 => ring.lie_about_tail(random.nasty() as u32),
                2 => {
                    let at = random.below(1020) as usize * 4;
                    ring.scribble(at, &random.bytes(16))?;
                }
                // The control words: head, status and the bytes between them.
                3 => ring.memory.as_volatile_slice().write_slice(&random.bytes(192), 0)?,
                4 => drop(ring.send(&random_command(random, &numbers))),
                _ => drop(ring.send(&transport_command(random, ring.id(), ring.resource().resource_id.0))),
            }
        }
        ring.abandon();
        Ok(rounds)
    })
}

#[test]
fn ring_that_is_rewritten_while_it_is_read_never_hurts_the_device() -> Result<()> {
    besiege("concurrent rewriting", 14, 20_000, |guest, context, random| {
        let mut ring =
            Ring::create(guest, context, RingOptions { buffer_size: 4096, ..RingOptions::default() })?;
        ring.patience = Duration::from_millis(20);
        let question = encode(|w| EnumerateInstanceVersion { p_api_version: Some(&0) }.encode(ASYNC, w));
        let mut attempts = 0;
        while attempts < 500 && ring.send(&question).is_ok() {
            let at = random.below(1023) as usize * 4;
            ring.scribble(at, &(random.nasty() as u32).to_le_bytes())?;
            attempts += 1;
        }
        ring.abandon();
        Ok(attempts)
    })
}
