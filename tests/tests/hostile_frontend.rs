//! Frontends that are as hostile as their guest: what they do not answer, or give and take away, costs them their session, and nobody else
//! anything.

use anyhow::{Context, Result, ensure};
use protocol::ids::{BlobId, ContextId, ResourceId};
use protocol::virtio_gpu::{BlobFlags, BlobMem, Command};
use serde_json::json;
use std::time::Duration;
use tests::broker::Broker;
use tests::daemon::{Daemon, eventually};
use tests::frontend::ram::GuestRam;
use tests::frontend::{Options, Session, Vmm};
use tests::guest::{Gpu, PATIENCE};
use virtio_bindings::virtio_ring::{VRING_DESC_F_NEXT, VRING_DESC_F_WRITE};
use virtio_queue::desc::split::Descriptor;
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EventFd};

const VMMS: [Vmm; 2] = [Vmm::Qemu, Vmm::Crosvm];

/// Asks for a blob that is mapped, and waits for nothing.
fn begin_map(guest: &Gpu, context: ContextId) -> ResourceId {
    let (resource_id, blob_mem, blob_flags) = (guest.new_resource_id(), BlobMem::Host3d, BlobFlags::MAPPABLE);
    let (blob_id, size, entries) = (BlobId(0), 4096, &[][..]);
    let create = Command::ResourceCreateBlob { resource_id, blob_mem, blob_flags, blob_id, size, entries };
    drop(guest.start(&create, Some(context), None));
    drop(guest.start(&Command::ResourceMapBlob { resource_id, offset: 0 }, None, None));
    resource_id
}

/// Whoever comes next is served.
fn serves_the_next(daemon: &Daemon) -> Result<()> {
    let next = daemon.guest()?;
    let context = next.create_context("next")?;
    next.create_shmem(context, 4096)?;
    assert!(daemon.is_running());
    Ok(())
}

#[test]
fn an_operator_ends_a_context_while_its_vmm_does_not_acknowledge_a_map() -> Result<()> {
    let broker = Broker::start("", &[("a", "frontend-timeout = \"10min\""), ("b", "")])?;
    let guest = |vm| -> Result<Gpu> { Ok(Gpu::new(Session::connect(&broker.path(vm), Options::default())?)) };
    let (first, second) = (guest("a")?, guest("b")?);
    let context = first.create_context("killed")?;
    let neighbour = second.create_context("neighbour")?;
    let kept = second.create_shmem(neighbour, 4096)?;
    let shown = |vm, count| {
        let contexts = || broker.vm(vm).ok()?["contexts"].as_array().map(Vec::len);
        eventually(PATIENCE, || contexts() == Some(count))
    };
    ensure!(shown("a", 1) && shown("b", 1), "{}", broker.status()?);
    let device = broker.device("a")?;
    let held = first.session.window.hold_maps();
    begin_map(&first, context);
    let behind = first.start(&Command::GetCapsetInfo { capset_index: 0 }, None, None);
    ensure!(eventually(PATIENCE, || first.session.window.asked() == 1), "no map is asked for");
    broker.say(&["kill", &format!("a/{}", context.0)])?;
    ensure!(shown("a", 0), "{}", broker.status()?);
    assert_eq!(broker.vm("a")?["kills"]["operator"], json!(1));
    assert!(!behind.arrives_within(Duration::ZERO), "the map is still not acknowledged");
    second.destroy_blob(kept)?;
    // The frontend was slow, not broken: its VM goes on.
    drop(held);
    assert!(behind.arrives_within(PATIENCE));
    let context = first.create_context("after")?;
    ensure!(shown("a", 1) && shown("b", 1), "{}", broker.status()?);
    first.destroy_context(context)?;
    assert_eq!((broker.device("a")?, &broker.vm("a")?["restarts"]), (device, &json!(0)));
    Ok(())
}

#[test]
fn a_frontend_that_never_acknowledges_loses_its_session() -> Result<()> {
    VMMS.iter().try_for_each(|vmm| never_acknowledges(*vmm))
}

fn never_acknowledges(vmm: Vmm) -> Result<()> {
    let daemon = Daemon::start_with(&["--frontend-timeout", "1s"])?;
    let guest = daemon.guest_with(Options::of(vmm))?;
    let context = guest.create_context("waits")?;
    let held = guest.session.window.hold_maps();
    begin_map(&guest, context);
    assert!(guest.session.wait_until_over(PATIENCE), "{vmm:?}");
    drop(held);
    drop(guest);
    let log = daemon.log();
    assert!(log.contains("limit frontend_timeout (1s) reached: the frontend does not answer"), "{log}");
    serves_the_next(&daemon)
}

#[test]
fn a_call_descriptor_that_is_full_holds_nobody_up() -> Result<()> {
    let daemon = Daemon::start()?;
    let mut guest = daemon.guest()?;
    // Without EFD_NONBLOCK, and without room: whoever writes waits until somebody reads.
    let full = EventFd::new(EFD_CLOEXEC)?;
    full.write(u64::MAX - 1)?;
    guest.session.set_call(&full)?;
    for _ in 0..10 {
        let answer = guest.start(&Command::GetCapsetInfo { capset_index: 0 }, None, None);
        let answered = eventually(PATIENCE, || {
            let _ = guest.session.control.reap();
            answer.arrives_within(Duration::from_millis(5))
        });
        assert!(answered, "it is in the used ring");
    }
    drop(guest);
    serves_the_next(&daemon)
}

#[test]
fn a_frontend_that_takes_guest_memory_away_loses_its_session() -> Result<()> {
    VMMS.iter().try_for_each(|vmm| takes_memory_away(*vmm))
}

fn takes_memory_away(vmm: Vmm) -> Result<()> {
    let daemon = Daemon::start()?;
    let options = Options::of(vmm);
    let guest = daemon.guest_with(options)?;
    guest.create_context("shrunk")?;
    daemon.wait_for_workers(1)?;
    let (kept, gone) = (8 << 20, GuestRam::BASE + options.ram_size / 2);
    guest.session.ram.shrink(kept)?;
    let (next, write) = (VRING_DESC_F_NEXT as u16, VRING_DESC_F_WRITE as u16);
    let chain = [Descriptor::new(gone, 64, next, 1), Descriptor::new(gone + 0x1000, 64, write, 0)];
    guest.session.control.submit_raw(&chain, false, Box::new(|_| ()))?;
    assert!(guest.session.wait_until_over(PATIENCE), "{vmm:?}");
    drop(guest);
    daemon.wait_for_workers(0)?;
    let log = daemon.log();
    assert!(log.contains("the frontend has shrunk guest memory"), "{log}");
    serves_the_next(&daemon).with_context(|| format!("{vmm:?}"))
}
