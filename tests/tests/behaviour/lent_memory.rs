//! Memory that a driver maps out of a device node, and that no longer exists when the driver frees it or its process ends: then no process has it
//! mapped. The `lender` program plays the worker, with `/dev/zero` for the memory and `/dev/full` for its anchor; the device process, its launcher
//! and the frontend are real.

use anyhow::{Context, Result, ensure};
use protocol::ids::{BlobId, ContextId};
use protocol::virtio_gpu::{BlobFlags, Command, ResponseType};
use rustix::process::{Signal, kill_process};
use std::fs;
use std::os::linux::fs::MetadataExt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tests::broker::say;
use tests::daemon::{self, Daemon, eventually, halt, is_alive};
use tests::daemon_process::{build_example, launcher, patience};
use tests::frontend::{Options, Session, Vmm};
use tests::guest::{Blob, Gpu, GpuError, PATIENCE};
use tests::packages::HostVulkan;
use tests::program::Background;

const SIZE: u64 = 1 << 20;

/// The options with which the daemon takes the lender's memory.
const OPTIONS: [&str; 4] = ["--device-memory", "1GiB", "--window-size", "8GiB"];

/// The program that plays the worker.
fn lender() -> Result<String> {
    let program = HostVulkan::lavapipe()?.command(&build_example("lender")?)?;
    Ok(program.get_program().to_string_lossy().into_owned())
}

fn start() -> Result<Daemon> {
    start_with(&OPTIONS)
}

fn start_with(options: &[&str]) -> Result<Daemon> {
    Daemon::start_with(&[&["--exe", &lender()?], options].concat())
}

fn lent(guest: &Gpu, context: ContextId) -> Result<Blob> {
    guest.create_blob(context, BlobId(7), BlobFlags::MAPPABLE, SIZE)
}

/// Descriptors of one of the memory devices (major number 1) that a process holds. Their names lead nowhere when the worker that opened
/// them has ended.
fn nodes(process: u32, minor: u32) -> usize {
    let device = rustix::fs::makedev(1, minor);
    let fds = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    fds.filter(|fd| fs::metadata(fd.path()).is_ok_and(|file| file.st_rdev() == device)).count()
}

/// Anchors that a process holds.
fn anchors(process: u32) -> usize {
    nodes(process, 7)
}

/// Checks that a process soon holds `count` anchors, and keeps them for a while. While an anchor is sent from one process to another, for a moment
/// neither or both have it.
fn stays(process: u32, count: usize) {
    assert!(eventually(PATIENCE, || anchors(process) == count), "{} instead of {count}", anchors(process));
    let end = Instant::now() + Duration::from_millis(300);
    while Instant::now() < end {
        assert_eq!(anchors(process), count);
    }
}

fn told(daemon: &Daemon) -> usize {
    daemon.log().matches("lender is told that a blob is gone").count()
}

fn refused(result: Result<protocol::virtio_gpu::Response, GpuError>, code: ResponseType) -> bool {
    result == Err(GpuError::Refused(code))
}

#[test]
fn a_worker_hears_that_it_may_free_what_nobody_has_mapped_any_more() -> Result<()> {
    let daemon = start()?;
    let guest = daemon.guest()?;
    let context = guest.create_context("lender")?;
    let (first, second) = (lent(&guest, context)?, lent(&guest, context)?);
    assert_eq!(guest.session.window.live(), 2);
    let launcher = launcher(daemon.id())?;
    assert!(eventually(PATIENCE, || (anchors(daemon.id()), anchors(launcher)) == (2, 2)), "not kept alive");
    // A blob that is detached from its context stays mapped.
    let resource_id = first.resource_id;
    guest.call(&Command::CtxDetachResource { resource_id }, Some(context))?;
    let held = guest.session.window.hold_unmaps();
    let unref = guest.start(&Command::ResourceUnref { resource_id }, None, None);
    assert!(!unref.arrives_within(Duration::from_millis(200)));
    assert_eq!(told(&daemon), 0);
    drop(held);
    unref.wait(PATIENCE)?;
    assert!(eventually(PATIENCE, || told(&daemon) == 1), "{}", daemon.log());
    // The device process holds the worker's anchors as before.
    assert_eq!(anchors(daemon.id()), 2);
    guest.destroy_blob(second)?;
    assert!(eventually(PATIENCE, || told(&daemon) == 2), "{}", daemon.log());
    guest.destroy_context(context)?;
    assert!(eventually(PATIENCE, || anchors(daemon.id()) == 0));
    Ok(())
}

fn dies_while_it_lends(vmm: Vmm) -> Result<()> {
    let daemon = start()?;
    let guest = daemon.guest_with(Options::of(vmm))?;
    let context = guest.create_context("lender")?;
    let worker = daemon.wait_for_workers(1)?[0];
    let other = guest.create_context("other")?;
    let kept = lent(&guest, other)?;
    let blob = lent(&guest, context)?;
    let (offset, _) = blob.mapping.as_ref().context("mapped")?;
    let offset = *offset;
    let held = guest.session.window.hold_unmaps();
    kill_process(worker, Signal::KILL)?;
    daemon.wait_for_workers(1)?;
    // No other process may get the memory before the frontend has answered.
    stays(daemon.id(), 4);
    drop(held);
    assert!(eventually(PATIENCE, || guest.session.window.live() == 1), "the guest was not asked");
    let launcher = launcher(daemon.id())?;
    assert!(eventually(PATIENCE, || (anchors(daemon.id()), anchors(launcher)) == (2, 2)), "kept alive");
    // The guest's kernel does not know of the loss: it can undo its mapping, and a new mapping is refused.
    let resource_id = blob.resource_id;
    let unmap = Command::ResourceUnmapBlob { resource_id };
    guest.call(&unmap, None)?;
    assert!(refused(guest.call(&unmap, None), ResponseType::ERR_INVALID_PARAMETER));
    let map = Command::ResourceMapBlob { resource_id, offset };
    assert!(refused(guest.call(&map, None), ResponseType::ERR_UNSPEC));
    guest.call(&Command::ResourceUnref { resource_id }, None)?;
    guest.destroy_context(context)?;
    guest.destroy_blob(kept)?;
    ensure!(guest.session.window.violations().is_empty(), "{:?}", guest.session.window.violations());
    Ok(())
}

#[test]
fn what_a_dead_worker_lent_is_unmapped_before_its_memory_can_be_given_to_others() -> Result<()> {
    dies_while_it_lends(Vmm::Qemu)
}

/// A guest of QEMU's with a context whose worker lends.
fn of_qemu() -> Result<(Daemon, Gpu, ContextId)> {
    let daemon = start()?;
    let guest = daemon.guest_with(Options::of(Vmm::Qemu))?;
    let context = guest.create_context("lender")?;
    Ok((daemon, guest, context))
}

/// Kills the only worker, and waits until the daemon knows of its death.
fn lose_the_worker(daemon: &Daemon) -> Result<()> {
    kill_process(daemon.wait_for_workers(1)?[0], Signal::KILL)?;
    daemon.wait_for_workers(0)?;
    ensure!(eventually(PATIENCE, || daemon.log().contains("is lost")), "{}", daemon.log());
    Ok(())
}

/// QEMU crashes at a request that it reads while it has stopped the device.
#[test]
fn what_a_worker_lent_that_dies_in_a_pause_is_unmapped_when_the_guest_goes_on() -> Result<()> {
    let (daemon, mut guest, context) = of_qemu()?;
    let blobs = [lent(&guest, context)?, lent(&guest, context)?];
    let bases = guest.session.stop()?;
    lose_the_worker(&daemon)?;
    // The anchors keep its memory alive meanwhile.
    stays(daemon.id(), 2);
    assert_eq!((guest.session.window.live(), guest.session.window.unmaps_asked()), (2, 0));
    guest.session.cont(bases)?;
    ensure!(eventually(PATIENCE, || guest.session.window.live() == 0), "{}", daemon.log());
    ensure!(eventually(PATIENCE, || anchors(daemon.id()) == 0), "kept alive");
    for blob in blobs {
        guest.call(&Command::ResourceUnmapBlob { resource_id: blob.resource_id }, None)?;
    }
    ensure!(guest.session.window.violations().is_empty(), "{:?}", guest.session.window.violations());
    Ok(())
}

/// The frontend drops its mappings when the guest is reset: the daemon does not ask it to unmap them afterwards.
#[test]
fn what_a_worker_lent_that_dies_in_a_pause_is_not_asked_for_after_a_reset() -> Result<()> {
    let (daemon, mut guest, context) = of_qemu()?;
    lent(&guest, context)?;
    let asked = guest.session.window.unmaps_asked();
    guest.session.stop()?;
    lose_the_worker(&daemon)?;
    stays(daemon.id(), 2);
    guest.session.reset()?;
    // The daemon handles a mapping of the new guest after all remaining work for the old guest.
    let context = guest.create_context("lender")?;
    let blob = lent(&guest, context)?;
    assert_eq!((guest.session.window.live(), guest.session.window.unmaps_asked()), (1, asked));
    assert!(eventually(PATIENCE, || anchors(daemon.id()) == 2), "kept alive");
    guest.destroy_blob(blob)?;
    ensure!(guest.session.window.violations().is_empty(), "{:?}", guest.session.window.violations());
    Ok(())
}

/// The device process requests neither a mapping nor an unmapping that it took from the queue before the pause.
#[test]
fn a_mapping_whose_turn_comes_in_a_pause_is_refused() -> Result<()> {
    let daemon = start_with(&[&OPTIONS[..], &["--log-level", "debug"]].concat())?;
    let mut guest = daemon.guest_with(Options::of(Vmm::Qemu))?;
    let window = Arc::clone(&guest.session.window);
    let (victim, other) = (guest.create_context("victim")?, guest.create_context("other")?);
    let (_lent, first, second) = (lent(&guest, victim)?, lent(&guest, other)?, lent(&guest, other)?);
    let (resource_id, (offset, _)) = (second.resource_id, second.mapping.as_ref().context("mapped")?);
    let map = Command::ResourceMapBlob { resource_id, offset: *offset };
    guest.call(&Command::ResourceUnmapBlob { resource_id }, None)?;
    let (asked, unmaps) = (window.asked(), window.unmaps_asked());
    // The device process waits until the first is unmapped, and learns meanwhile that the victim is to end.
    let announcements = window.hold_announcements();
    let unref = guest.start(&Command::ResourceUnref { resource_id: first.resource_id }, None, None);
    let mapped = guest.start(&map, None, None);
    ensure!(eventually(PATIENCE, || window.live() == 1), "{}", daemon.log());
    say(&daemon.control(), &["kill", &format!("socket/{}", victim.0)])?;
    daemon.wait_for_workers(1)?;
    // Before the device process turns to the next request of the queue, it asks to unmap the victim's lent memory. The pause begins then.
    let held = window.hold_unmaps();
    drop(announcements);
    ensure!(eventually(PATIENCE, || window.unmaps_asked() == unmaps + 2), "{}", daemon.log());
    let bases = guest.session.stop()?;
    drop(held);
    let refused = || daemon.log().contains("RESOURCE_MAP_BLOB of context 0 refused");
    ensure!(eventually(PATIENCE, || refused() || window.asked() > asked), "{}", daemon.log());
    assert_eq!(window.asked(), asked, "QEMU would have crashed");
    guest.session.cont(bases)?;
    unref.wait(PATIENCE)?;
    ensure!(mapped.wait(PATIENCE).is_err());
    ensure!(!daemon.log().contains("cannot map a blob"), "{}", daemon.log());
    guest.call(&map, None)?;
    assert_eq!((window.live(), window.asked()), (1, asked + 1));
    ensure!(window.violations().is_empty(), "{:?}", window.violations());
    Ok(())
}

#[test]
fn a_frontend_that_announces_no_mappings_unmaps_as_well() -> Result<()> {
    dies_while_it_lends(Vmm::Crosvm)
}

#[test]
fn a_context_that_ends_with_mapped_memory_is_unmapped_first() -> Result<()> {
    let daemon = start()?;
    let guest = daemon.guest()?;
    let context = guest.create_context("lender")?;
    let blob = lent(&guest, context)?;
    guest.destroy_context(context)?;
    assert_eq!(guest.session.window.live(), 0);
    assert!(eventually(PATIENCE, || told(&daemon) == 1), "{}", daemon.log());
    guest.call(&Command::ResourceUnref { resource_id: blob.resource_id }, None)?;
    assert!(eventually(PATIENCE, || anchors(daemon.id()) == 0));
    Ok(())
}

#[test]
fn other_contexts_cannot_have_lent_memory() -> Result<()> {
    let daemon = start()?;
    let guest = daemon.guest()?;
    let other = guest.create_context("other")?;
    let worker = daemon.wait_for_workers(1)?[0];
    let context = guest.create_context("lender")?;
    let blob = lent(&guest, context)?;
    let resource_id = blob.resource_id;
    guest.call(&Command::CtxAttachResource { resource_id }, Some(other))?;
    assert_eq!((nodes(daemon.id(), 5), nodes(worker.as_raw_nonzero().get() as u32, 5)), (1, 0));
    guest.destroy_blob(blob)?;
    Ok(())
}

#[test]
fn a_frontend_that_goes_without_a_word_is_waited_for() -> Result<()> {
    let daemon = start()?;
    let guest = daemon.guest()?;
    let context = guest.create_context("lender")?;
    let _blob = lent(&guest, context)?;
    let launcher = launcher(daemon.id())?;
    // This process is the frontend, and lives on: the launcher, not the device process, keeps the memory that it may have mapped.
    drop(guest);
    daemon.wait_for_workers(0)?;
    assert!(eventually(PATIENCE, || anchors(daemon.id()) == 0));
    assert_eq!(anchors(launcher), 2);
    Ok(())
}

#[test]
fn the_launcher_keeps_lent_memory_when_the_device_process_is_killed() -> Result<()> {
    let daemon = start()?;
    let guest = daemon.guest()?;
    let context = guest.create_context("lender")?;
    let _blob = lent(&guest, context)?;
    let launcher = launcher(daemon.id())?;
    let workers = daemon.workers();
    assert!(eventually(PATIENCE, || anchors(launcher) == 2), "the launcher has none");
    kill_process(daemon.pid(), Signal::KILL)?;
    assert!(eventually(PATIENCE, || workers.iter().all(|worker| !is_alive(*worker))));
    stays(launcher, 2);
    Ok(())
}

#[test]
fn an_orderly_end_unmaps_first_and_keeps_nothing() -> Result<()> {
    let daemon = start()?;
    let guest = daemon.guest()?;
    let context = guest.create_context("lender")?;
    let _blob = lent(&guest, context)?;
    let launcher = launcher(daemon.id())?;
    daemon.into_process().stop()?;
    assert_eq!(guest.session.window.live(), 0);
    assert!(eventually(PATIENCE, || anchors(launcher) == 0));
    Ok(())
}

/// An orderly end may take five seconds. Only the time in which the process runs counts.
#[test]
fn an_orderly_end_goes_on_when_the_process_was_stopped_meanwhile() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let socket = folder.path().join("socket");
    let mut command = daemon::command()?;
    command.args(OPTIONS).args(patience(&[])).arg("--exe").arg(lender()?).arg("--socket-path").arg(&socket);
    let mut process = Background::start(command)?;
    let guest = Gpu::new(Session::connect(&socket, Options::default())?);
    let context = guest.create_context("lender")?;
    let _blob = lent(&guest, context)?;
    let held = guest.session.window.hold_unmaps();
    kill_process(process.pid(), Signal::TERM)?;
    let ends = || process.errors().contains("ends, as a signal asks");
    ensure!(eventually(PATIENCE, ends), "{}", process.errors());
    halt(process.pid())?;
    std::thread::sleep(Duration::from_secs(6));
    drop(held);
    kill_process(process.pid(), Signal::CONT)?;
    let status = process.wait(PATIENCE)?;
    ensure!(status.success(), "{status}: {}", process.errors());
    Ok(())
}

#[test]
fn device_memory_is_not_offered_when_the_window_is_too_small_or_nobody_wants_it() -> Result<()> {
    for (options, why) in [
        (
            &["--device-memory", "8GiB", "--window-size", "8GiB"][..],
            "remedy: --window-size 16GiB or --device-memory",
        ),
        (&["--device-memory", "1GiB", "--map-device-memory", "never"], "a window of 8192 MiB"),
        (&["--device-memory", "1GiB", "--swap-after", "60min"], "a window of 8192 MiB"),
    ] {
        let daemon = start_with(options)?;
        let guest = daemon.guest()?;
        let context = guest.create_context("lender")?;
        assert!(eventually(PATIENCE, || daemon.log().contains("lender not offered")), "{}", daemon.log());
        ensure!(eventually(PATIENCE, || daemon.log().contains(why)), "{options:?}: {}", daemon.log());
        ensure!(lent(&guest, context).is_err(), "{options:?}");
    }
    Ok(())
}

#[test]
fn by_default_the_window_holds_the_gpus_memory() -> Result<()> {
    let daemon = start_with(&["--device-memory", "1GiB"])?;
    let guest = daemon.guest()?;
    let context = guest.create_context("lender")?;
    guest.destroy_blob(lent(&guest, context)?)?;
    ensure!(daemon.log().contains("a window of 16384 MiB"), "{}", daemon.log());
    Ok(())
}
