//! A hostile driver on the control queue: each request is answered once, and the device goes on.

use anyhow::{Result, ensure};
use parking_lot::{Condvar, Mutex};
use protocol::ids::{CapsetId, ContextId};
use protocol::virtio_gpu::{Command, Header};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tests::attacks::requests::request;
use tests::daemon::Daemon;
use tests::frontend::ram::GuestRam;
use tests::frontend::virtqueue::Completion;
use tests::guest::{Gpu, PATIENCE};
use tests::random::{Random, repetitions};
use virtio_queue::desc::split::Descriptor;
use vm_memory::{Bytes, GuestAddress};

const BATCH: u64 = 256;

/// Counts answers, so that a lost one is noticed.
#[derive(Default)]
struct Answers {
    state: Mutex<(u64, u64)>,
    changed: Condvar,
}

impl Answers {
    /// A completion that checks the form of the answer and counts it.
    fn expect(self: &Arc<Self>) -> Completion {
        self.state.lock().0 += 1;
        let answers = Arc::clone(self);
        Box::new(move |response| {
            // The device returns malformed chains without a response.
            if let Some(bytes) = response.filter(|bytes| !bytes.is_empty()) {
                let header = Header::decode(&bytes).expect("a response has a header");
                assert!(
                    matches!(header.command.0, 0x1100..=0x1106 | 0x1200..=0x1205),
                    "{:#x}",
                    header.command.0
                );
            }
            answers.state.lock().1 += 1;
            answers.changed.notify_all();
        })
    }

    fn wait(&self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let mut state = self.state.lock();
        while state.1 < state.0 {
            let timed_out = self.changed.wait_until(&mut state, deadline).timed_out();
            ensure!(!timed_out, "{} of {} requests were never answered", state.0 - state.1, state.0);
        }
        Ok(())
    }
}

fn assert_unharmed(daemon: &Daemon, guest: &Gpu) -> Result<()> {
    ensure!(daemon.is_running(), "the device process ended: {}", daemon.log());
    assert_eq!(guest.session.window.violations(), Vec::<String>::new());
    assert_eq!(guest.capset()?.len(), protocol::venus::capset::SIZE);
    let context = guest.call(
        &Command::CtxCreate { capset_id: CapsetId::VENUS, debug_name: b"after" },
        Some(ContextId(0x7fff_fff0)),
    );
    assert!(context.is_ok(), "{context:?}");
    Ok(())
}

#[test]
fn random_commands_are_answered_and_the_device_goes_on() -> Result<()> {
    let daemon = Daemon::start()?;
    let guest = daemon.guest()?;
    let answers = Arc::new(Answers::default());
    let mut random = Random::new(1);
    let started = Instant::now();
    let count = repetitions(700_000);
    for _ in 0..count / BATCH {
        guest.send_bytes((0..BATCH).map(|_| (request(&mut random), answers.expect())).collect());
        if random.once_in(16) {
            answers.wait()?;
        }
    }
    answers.wait()?;
    println!("{count} commands in {:?}", started.elapsed());
    drop(guest);
    daemon.wait_for_workers(0)?;
    let guest = daemon.guest()?;
    assert_unharmed(&daemon, &guest)
}

fn descriptor(random: &mut Random, length: u64) -> Descriptor {
    let address = match random.below(4) {
        0 => random.nasty(),
        _ => GuestRam::BASE + random.below(60 << 20),
    };
    let len = if random.once_in(4) { random.nasty() } else { random.below(4096) } as u32;
    // NEXT, WRITE, INDIRECT.
    let flags = if random.once_in(8) { random.word() as u16 } else { random.pick(&[0, 1, 1, 1, 2, 2, 3, 4]) };
    let next = if random.once_in(8) { random.word() as u16 } else { random.below(length) as u16 };
    Descriptor::new(address, len, flags, next)
}

#[test]
fn malformed_chains_come_back_and_the_device_goes_on() -> Result<()> {
    let daemon = Daemon::start()?;
    let guest = daemon.guest()?;
    let answers = Arc::new(Answers::default());
    let mut random = Random::new(2);
    // Chains that reach the rings would overwrite them, which would be the test's mistake, not the device's.
    let rings = guest.session.control.addresses().used + 16384 - GuestRam::BASE;
    for _ in 0..repetitions(60_000) {
        let length = 1 + random.below(6);
        let chain: Vec<Descriptor> = (0..length)
            .map(|_| {
                loop {
                    let descriptor = descriptor(&mut random, length);
                    let start = descriptor.addr().0;
                    if start >= GuestRam::BASE + rings
                        || start.saturating_add(descriptor.len().into()) < GuestRam::BASE
                    {
                        return descriptor;
                    }
                }
            })
            .collect();
        guest.session.control.submit_raw(&chain, !random.once_in(3), answers.expect())?;
    }
    answers.wait()?;
    assert_unharmed(&daemon, &guest)
}

#[test]
fn queue_whose_indices_lie_harms_nobody_but_itself() -> Result<()> {
    let daemon = Daemon::start()?;
    let mut random = Random::new(3);
    for _ in 0..repetitions(20) {
        let guest = daemon.guest()?;
        guest.create_context("live")?;
        let ring = guest.session.control.addresses();
        let memory = guest.session.ram.memory();
        for _ in 0..50 {
            // Available ring: flags, index, heads. Then the descriptor table.
            memory.write_slice(&random.bytes(4 + 2048), GuestAddress(ring.avail))?;
            if random.once_in(2) {
                memory.write_slice(&random.bytes(16384), GuestAddress(ring.descriptors))?;
            }
            guest.session.control.kick.write(1)?;
            std::thread::sleep(Duration::from_micros(200));
        }
        ensure!(daemon.is_running(), "the device process ended: {}", daemon.log());
    }
    daemon.wait_for_workers(0)?;
    let guest = daemon.guest()?;
    assert_unharmed(&daemon, &guest)
}
