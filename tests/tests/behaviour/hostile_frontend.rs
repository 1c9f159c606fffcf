//! Frontends that are as hostile as their guest: if they withhold answers, or give and remove descriptors or memory, they lose their session, and
//! other parties lose nothing.

use anyhow::{Context, Result, ensure};
use protocol::virtio_gpu::Command;
use serde_json::json;
use std::time::Duration;
use tests::attacks::frontends::{begin_map, fill_call, take_memory_away};
use tests::broker::Broker;
use tests::daemon::{Daemon, eventually};
use tests::frontend::{Options, Session, Vmm};
use tests::guest::{Gpu, PATIENCE};

const VMMS: [Vmm; 2] = [Vmm::Qemu, Vmm::Crosvm];

/// Checks that the daemon serves the next frontend; a machine that is too slow gets more attempts.
fn serves_the_next(daemon: &Daemon) -> Result<()> {
    let serves = || -> Result<()> {
        let next = daemon.guest()?;
        let context = next.create_context("next")?;
        next.create_shmem(context, 4096).map(drop)
    };
    let mut served = Ok(());
    eventually(PATIENCE, || {
        served = serves();
        served.is_ok()
    });
    assert!(daemon.is_running());
    served
}

/// Checks that the daemon logs why it has ended a session.
fn tells(daemon: &Daemon, why: &str) {
    assert!(eventually(PATIENCE, || daemon.log().contains(why)), "{}", daemon.log());
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
    tells(&daemon, "limit frontend-timeout (1 s) reached: the frontend does not answer");
    serves_the_next(&daemon)
}

#[test]
fn a_call_descriptor_that_is_full_holds_nobody_up() -> Result<()> {
    let daemon = Daemon::start()?;
    let mut guest = daemon.guest()?;
    let _full = fill_call(&mut guest)?;
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
    take_memory_away(&guest, options.ram_size)?;
    assert!(guest.session.wait_until_over(PATIENCE), "{vmm:?}");
    drop(guest);
    daemon.wait_for_workers(0)?;
    tells(&daemon, "the frontend has shrunk guest memory");
    serves_the_next(&daemon).with_context(|| format!("{vmm:?}"))
}
