//! The device's state is written into a file of the VMM and read from it, by the same daemon or another one: a program of the guest notices nothing.

use anyhow::{Context, Result, ensure};
use protocol::ids::RingIdx;
use protocol::venus::generated as venus;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use tests::daemon::{Daemon, eventually};
use tests::frontend::{Options, Vmm, load_only};
use tests::guest::device::{Device, Source, ensure_filled};
use tests::guest::ring::{Ring, RingOptions};
use tests::guest::{Blob, Gpu, PATIENCE, timeline};
use tests::program::variable;
use tests::random::Random;

/// Bytes of the memory that a program maps: `DEVICE_STATE_BYTES=1073741824` shows how long it takes to save and to load it.
fn size() -> u64 {
    bytes("DEVICE_STATE_BYTES").unwrap_or(256 << 10)
}

/// Bytes of the memory that only the GPU reaches, at least [`size`]: if not said otherwise, more than one thread fills it, and the last slot is not full.
fn hidden_size() -> u64 {
    bytes("DEVICE_STATE_HIDDEN_BYTES").unwrap_or((5 << 20) + 4096).max(size())
}

/// Bytes of a part of that memory which is looked at.
const PART: u64 = 128 << 10;

fn bytes(name: &str) -> Option<u64> {
    variable::number(name).expect("a number of bytes")
}

/// A daemon with the option that VMs should have which are saved.
fn daemon() -> Result<Daemon> {
    Daemon::start_with(&["--movable"])
}

/// What a program of the guest has: memory that it has mapped, memory that only the GPU reaches if there is any, and a ring.
struct Guest {
    gpu: Arc<Gpu>,
    device: Device,
    memory: venus::DeviceMemory,
    blob: Blob,
    hidden: venus::DeviceMemory,
}

impl Guest {
    fn start(daemon: &Daemon, vmm: Vmm) -> Result<Self> {
        let gpu = Arc::new(daemon.guest_with(Options::of(vmm))?);
        let mut device = timeline::device(&gpu, "computes")?;
        let memory = device.allocate(size(), Source::New)?.ok().context("memory")?;
        let blob = device.blob(memory, size())?;
        let ty = device.hidden.unwrap_or(device.visible);
        let hidden = device.allocate_of_type(hidden_size(), ty, Source::New)?.ok().context("memory")?;
        Ok(Self { gpu, device, memory, blob, hidden })
    }

    /// Has the GPU write different words into both memories, and a third one at the end of the memory that only the GPU reaches.
    fn fill(&mut self, word: u32) -> Result<()> {
        self.device.fill(self.memory, size(), word)?;
        self.device.fill(self.hidden, hidden_size(), word + 1)?;
        self.device.fill_at(self.hidden, hidden_size() - PART, PART, word + 2)
    }

    /// Checks that both memories are as [`Self::fill`] has left them, and that the GPU works.
    fn check(&mut self, word: u32) -> Result<()> {
        self.ensure_mapped(word)?;
        let end = hidden_size() - PART;
        for (from, word) in [(0, word + 1), (end - PART, word + 1), (end, word + 2)] {
            self.device.copy_at((self.hidden, from), self.memory, PART)?;
            self.ensure_begins(PART, word)?;
        }
        Ok(())
    }

    /// Checks what the guest sees in the memory that it has mapped.
    fn ensure_mapped(&self, word: u32) -> Result<()> {
        self.ensure_begins(size(), word)
    }

    /// As [`Self::ensure_mapped`], of so many bytes.
    fn ensure_begins(&self, count: u64, word: u32) -> Result<()> {
        ensure_filled(&self.blob.bytes(count)?, word)
    }

    /// A copy of the guest, which goes on with another daemon.
    fn fork(&self, daemon: &Daemon, saved: &tests::frontend::Saved) -> Result<Self> {
        let live = self.gpu.session.window.live();
        let session = self.gpu.session.fork(UnixStream::connect(daemon.socket())?, saved)?;
        let gpu = Arc::new(self.gpu.fork(session));
        ensure!(eventually(PATIENCE, || gpu.session.window.live() == live), "the window is not as it was");
        let (device, mut blob) = (self.device.fork(&gpu)?, self.blob.clone());
        blob.find_again(&gpu)?;
        Ok(Self { gpu, device, memory: self.memory, blob, hidden: self.hidden })
    }

    /// Goes on with another daemon, which loads what was saved.
    fn go_on_with(&mut self, daemon: &Daemon, saved: &tests::frontend::Saved) -> Result<()> {
        let live = self.gpu.session.window.live();
        self.gpu.session.go_on_with(UnixStream::connect(daemon.socket())?, saved)?;
        let is_mapped = || self.gpu.session.window.live() == live;
        ensure!(eventually(PATIENCE, is_mapped), "the window is not as it was");
        self.device.ring.find_again()?;
        self.blob.find_again(&self.gpu)
    }
}

#[test]
fn a_guest_goes_on_with_another_daemon_as_it_was_saved() -> Result<()> {
    for vmm in [Vmm::Crosvm, Vmm::Qemu] {
        let (first, second) = (daemon()?, daemon()?);
        let mut guest = Guest::start(&first, vmm)?;
        guest.fill(7)?;
        // A ring that waits for another ring, and a request that is answered when it goes on.
        let mut other = Ring::create(&guest.gpu, guest.device.context, RingOptions::default())?;
        let semaphore = timeline::wait_on_ring(&mut guest.device)?;
        let later = guest.device.wait_for_ring_on_virtqueue();
        let waits = guest.gpu.submit_fenced(guest.device.context, RingIdx(1), &later);
        let saved = guest.gpu.session.save().with_context(|| first.log())?;
        guest.go_on_with(&second, &saved).with_context(|| second.log())?;
        println!("{vmm:?}: {} bytes\n{}\n{}", saved.state.len(), first.log(), second.log());
        drop(first);
        other.find_again()?;
        guest.ensure_mapped(7)?;
        timeline::signal_by(&mut other, guest.device.device, semaphore)?;
        waits.wait(PATIENCE)?;
        guest.check(7)?;
        guest.fill(30)?;
        guest.check(30)?;
        // What was loaded is saved like anything else.
        let saved = guest.gpu.session.save().with_context(|| second.log())?;
        let third = daemon()?;
        guest.go_on_with(&third, &saved).with_context(|| third.log())?;
        let context = guest.gpu.create_context("another program")?;
        guest.gpu.destroy_context(context)?;
        ensure!(
            guest.gpu.session.window.violations().is_empty(),
            "{:?}",
            guest.gpu.session.window.violations()
        );
        ensure!(!third.log().contains("panicked"), "{}", third.log());
    }
    Ok(())
}

/// crosvm reads requests from the start on, when its processors run, too: what is there already is mapped soonest. QEMU crashes at such a request.
#[test]
fn mappings_are_asked_for_before_the_start_where_the_vmm_allows_it() -> Result<()> {
    for (vmm, more) in [(Vmm::Crosvm, 0), (Vmm::Crosvm, 200), (Vmm::Qemu, 0)] {
        let (first, second) = (daemon()?, daemon()?);
        let mut guest = Guest::start(&first, vmm)?;
        guest.fill(7)?;
        let shmem = |_| guest.gpu.create_shmem(guest.device.context, 4096);
        let many = (0..more).map(shmem).collect::<Result<Vec<_>>>()?;
        let saved = guest.gpu.session.save().with_context(|| first.log())?;
        guest.go_on_with(&second, &saved).with_context(|| second.log())?;
        let (ahead, live) = (guest.gpu.session.window.asked_ahead(), guest.gpu.session.window.live() as u64);
        let expected = if vmm == Vmm::Crosvm { live.min(64) } else { 0 };
        ensure!(ahead == expected, "{vmm:?}: {ahead} of {live} requests were sent ahead");
        let line = format!("the memory of the loaded state is mapped: {live} mappings, ");
        ensure!(eventually(PATIENCE, || second.log().contains(&line)), "{}", second.log());
        guest.check(7)?;
        guest.gpu.destroy_blobs(many);
        let are_unmapped = || guest.gpu.session.window.live() as u64 == live - more;
        ensure!(eventually(PATIENCE, are_unmapped), "mappings of the loaded state cannot be ended");
        let violations = guest.gpu.session.window.violations();
        ensure!(violations.is_empty(), "{violations:?}");
    }
    Ok(())
}

#[test]
fn a_guest_goes_on_with_the_daemon_that_has_saved_it() -> Result<()> {
    for vmm in [Vmm::Crosvm, Vmm::Qemu] {
        let daemon = daemon()?;
        let mut guest = Guest::start(&daemon, vmm)?;
        for word in [7, 9] {
            guest.fill(word)?;
            let saved = guest.gpu.session.save().with_context(|| daemon.log())?;
            guest.gpu.session.go_on(saved.bases)?;
            guest.check(word)?;
        }
        ensure!(daemon.log().contains("the state of the GPU is saved"), "{}", daemon.log());
    }
    Ok(())
}

#[test]
fn a_device_in_use_loads_nothing_and_goes_on() -> Result<()> {
    for vmm in [Vmm::Crosvm, Vmm::Qemu] {
        let daemon = daemon()?;
        let mut guest = Guest::start(&daemon, vmm)?;
        guest.fill(7)?;
        let saved = guest.gpu.session.save().with_context(|| daemon.log())?;
        ensure!(guest.gpu.session.load(&saved).is_err(), "a device in use is replaced");
        let log = daemon.log();
        ensure!(
            log.contains("no state of the GPU is loaded, and the GPU stays as it is: the guest"),
            "{log}"
        );
        guest.gpu.session.go_on(saved.bases)?;
        guest.check(7)?;
    }
    Ok(())
}

/// One state is loaded many times: each copy of the VM goes on in its own way, and so does the VM itself.
#[test]
fn copies_of_a_vm_go_on_differently() -> Result<()> {
    let first = daemon()?;
    let mut guest = Guest::start(&first, Vmm::Crosvm)?;
    guest.fill(7)?;
    // An answer goes to one VM only, so no request may be open when the copies are made.
    let is_idle = || guest.gpu.session.control.in_flight() == 0;
    ensure!(eventually(PATIENCE, is_idle), "requests stay open\n{}", first.log());
    let saved = guest.gpu.session.save().with_context(|| first.log())?;
    let mut copies = Vec::new();
    for number in 1..=8 {
        let daemon = daemon()?;
        let copy = guest.fork(&daemon, &saved).with_context(|| daemon.log())?;
        copies.push((number, daemon, copy));
    }
    guest.gpu.session.go_on(saved.bases)?;
    guest.fill(1000)?;
    for (number, _, copy) in &mut copies {
        copy.ensure_mapped(7)?;
        copy.fill(*number * 10)?;
    }
    for (number, daemon, copy) in &mut copies {
        copy.check(*number * 10).with_context(|| daemon.log())?;
    }
    guest.check(1000)
}

#[test]
fn a_program_that_is_swapped_out_is_saved_as_it_is() -> Result<()> {
    let first = Daemon::start_with(&["--movable", "--swap-after", "300ms"])?;
    let mut guest = Guest::start(&first, Vmm::Crosvm)?;
    guest.fill(7)?;
    let is_swapped_out = || first.log().contains("context 1 is swapped out");
    ensure!(eventually(PATIENCE, is_swapped_out), "{}", first.log());
    let saved = guest.gpu.session.save().with_context(|| first.log())?;
    let second = daemon()?;
    guest.go_on_with(&second, &saved).with_context(|| second.log())?;
    guest.check(7)?;
    guest.fill(9)?;
    guest.check(9)
}

#[test]
fn a_guest_whose_work_waits_for_it_is_not_saved_and_goes_on() -> Result<()> {
    let daemon = daemon()?;
    let mut guest = Guest::start(&daemon, Vmm::Crosvm)?;
    let semaphore = timeline::wait_before_signal(&mut guest.device)?;
    let refused = guest.gpu.session.save();
    ensure!(refused.is_err(), "work that waits for the guest is saved");
    let log = daemon.log();
    ensure!(log.contains("the state of the GPU is not saved, and the VM's programs go on: context"), "{log}");
    guest.gpu.session.go_on(guest.gpu.session.positions()?)?;
    timeline::signal(&mut guest.device, semaphore)?;
    guest.fill(7)?;
    guest.check(7)
}

#[test]
fn what_is_no_state_leaves_the_device_as_after_power_on() -> Result<()> {
    let (first, second) = (daemon()?, daemon()?);
    let guest = Guest::start(&first, Vmm::Crosvm)?;
    let saved = guest.gpu.session.save()?;
    drop(guest);
    let mut random = Random::new(39);
    for round in 0..40 {
        let mut state = saved.state.clone();
        match round % 4 {
            0 => state.truncate(random.below(state.len() as u64) as usize),
            1 => state[random.below(saved.state.len() as u64) as usize] ^= 1 << random.below(8),
            2 => state.splice(12.., std::iter::repeat_n(random.below(256) as u8, 4096)).for_each(drop),
            _ => state[8] = state[8].wrapping_add(1 + random.below(200) as u8),
        }
        let loaded = load_only(&second.socket(), Vmm::Crosvm, &state);
        ensure!(loaded.is_err(), "round {round}: bytes that were changed are loaded");
        ensure!(second.is_running(), "{}", second.log());
    }
    let log = second.log();
    ensure!(log.contains("the state of the GPU is not loaded, and the GPU is as after power-on: "), "{log}");
    second.wait_for_workers(0)?;
    // The state itself is loaded, by a VMM that then goes away, and a guest begins anew behind it.
    load_only(&second.socket(), Vmm::Crosvm, &saved.state).with_context(|| second.log())?;
    let mut other = Guest::start(&second, Vmm::Crosvm)?;
    other.fill(7)?;
    other.check(7)
}
