//! A VM that takes too much memory or too many threads loses its own workers, and no neighbour in the same unit loses anything. Each test
//! makes its attack without the protection, too, which shows that the attack is real.
//!
//! Needs control groups of version 2 with their controllers. If a machine lacks these, `vm/cgroups` runs the same tests in a virtual machine that has
//! them.

use anyhow::{Context, Result, ensure};
use protocol::ids::RingIdx;
use protocol::venus::generated::{CreateRingMESA, RingCreateInfoMESA};
use rustix::process::Pid;
use std::sync::Arc;
use tests::broker::{Broker, vhost_user_vulkan};
use tests::cgroup::Unit;
use tests::daemon::{self, eventually};
use tests::daemon_process::{DaemonProcess, launcher, workers};
use tests::frontend::{Options, Session};
use tests::guest::device::{Device, Source};
use tests::guest::ring::{ASYNC, encode};
use tests::guest::{Gpu, PATIENCE};

const MIB: u64 = 1 << 20;
const GROUPED: &str = "cgroup = \"on\"";
const MEMORY_LIMIT: &str = "have no memory left (--worker-memory)";

/// A broker in a unit, with these lines before its tables, and VMs `a` and `b`.
fn broker(unit: &Unit, top: &str, a: &str) -> Result<Broker> {
    // Quotas would stop a hog sooner.
    let more = |keys: &str| format!("host-memory = \"4GiB\"\n{keys}");
    Broker::start_command(unit.command(&vhost_user_vulkan()?), top, &[("a", &more(a)), ("b", &more(""))])
}

fn guest(broker: &Broker, vm: &str) -> Result<Arc<Gpu>> {
    Ok(Arc::new(Gpu::new(Session::connect(&broker.path(vm), Options::default())?)))
}

/// Workers of a VM.
fn workers_of(broker: &Broker, vm: &str) -> Result<Vec<u32>> {
    workers(broker.device(vm)?.as_raw_nonzero().get().unsigned_abs())
}

/// A program that has `size` bytes of memory and uses all of them.
fn fills(guest: &Arc<Gpu>, name: &str, size: u64) -> Result<Device> {
    let mut program = Device::create(guest, name)?;
    let memory = program.allocate(size, Source::New)?.map_err(|error| anyhow::anyhow!("{error:?}"))?;
    program.fill(memory, size, 7)?;
    Ok(program)
}

/// A VM of moderate size beside one whose programs take more than the unit has. Returns whether the moderate one still computes.
fn one_takes_all_memory(top: &str) -> Result<Option<(bool, String)>> {
    let Some(unit) = Unit::with(&["memory"])? else { return Ok(None) };
    unit.set("memory.max", &(900 * MIB).to_string())?;
    let _ = unit.set("memory.swap.max", "0");
    let broker = broker(&unit, top, "")?;
    let (hostile, moderate) = (guest(&broker, "a")?, guest(&broker, "b")?);
    // The victim is the largest process of the unit, and so the first that the kernel would end.
    let mut victim = fills(&moderate, "victim", 240 * MIB)?;
    let devices = [broker.device("a")?, broker.device("b")?];
    let workers = workers_of(&broker, "b")?;
    // A worker without memory may be too slow to end by itself, and is killed then.
    let lost = || broker.log().contains(" is lost: its worker ");
    let mut programs = Vec::new();
    while programs.len() < 24 && !lost() {
        match fills(&hostile, "hog", 64 * MIB) {
            Ok(program) => programs.push(program),
            Err(_) => break,
        }
    }
    println!("{} hostile programs of 64 MiB", programs.len());
    ensure!(eventually(PATIENCE, lost), "nothing was ended\n{}", broker.log());
    ensure!(broker.is_running(), "the broker is gone\n{}", broker.log());
    // The line comes with the first loss of a context.
    eventually(PATIENCE, || broker.log().contains(MEMORY_LIMIT) || top != GROUPED);
    let computes = workers_of(&broker, "b")? == workers
        && victim.allocate(MIB, Source::New)?.is_ok_and(|memory| victim.fill(memory, MIB, 1).is_ok());
    if computes {
        ensure!(devices == [broker.device("a")?, broker.device("b")?], "a device process was ended");
    }
    Ok(Some((computes, broker.log())))
}

#[test]
fn memory_of_one_vm_ends_no_worker_of_another() -> Result<()> {
    let Some((computes, log)) = one_takes_all_memory(GROUPED)? else { return Ok(()) };
    ensure!(computes, "a neighbour's worker was ended\n{log}");
    ensure!(log.contains(MEMORY_LIMIT), "the limit is not named\n{log}");
    Ok(())
}

#[test]
fn without_groups_it_would() -> Result<()> {
    let Some((computes, log)) = one_takes_all_memory("cgroup = \"off\"")? else { return Ok(()) };
    ensure!(!computes, "the attack has no effect\n{log}");
    Ok(())
}

/// Starts as many rings as one context may have; each ring is a thread.
fn hoard_threads(guest: &Arc<Gpu>) -> Result<()> {
    const STRIDE: u64 = 4096;
    let context = guest.create_context("threads")?;
    let blob = guest.create_shmem(context, 256 * STRIDE)?;
    for ring in 0..256 {
        let info = RingCreateInfoMESA {
            resource_id: blob.resource_id.0,
            offset: ring * STRIDE,
            size: STRIDE,
            head_offset: 0,
            tail_offset: 64,
            status_offset: 128,
            buffer_offset: 256,
            buffer_size: 1024,
            extra_offset: 2048,
            extra_size: 4,
            ..RingCreateInfoMESA::default()
        };
        let create =
            encode(|w| CreateRingMESA { ring: ring + 1, p_create_info: Some(&info) }.encode(ASYNC, w));
        guest.submit_fenced(context, RingIdx(0), &create).wait(PATIENCE)?;
    }
    Ok(())
}

/// Checks that both device processes are the same as before, and unharmed.
fn ensure_unharmed(broker: &Broker, devices: [Pid; 2]) -> Result<()> {
    ensure!(broker.is_running(), "the broker is gone");
    ensure!(
        devices == [broker.device("a")?, broker.device("b")?],
        "a device process was ended\n{}",
        broker.log()
    );
    Ok(())
}

#[test]
fn threads_of_one_vm_keep_no_frontend_of_another_out() -> Result<()> {
    let Some(unit) = Unit::with(&["pids"])? else { return Ok(()) };
    unit.set("pids.max", "400")?;
    let broker = broker(&unit, "cgroup = \"on\"", "max-tasks = 150")?;
    let devices = [broker.device("a")?, broker.device("b")?];
    let hostile = guest(&broker, "a")?;
    // The loop ends when the VM gets no more threads, which costs a context.
    for _ in 0..3 {
        let _ = hoard_threads(&hostile);
    }
    let told = || broker.log().contains("no thread for a ring");
    ensure!(eventually(PATIENCE, told), "there is no limit\n{}", broker.log());
    let next = guest(&broker, "b").with_context(|| broker.log())?;
    let context = next.create_context("next")?;
    next.submit_fenced(context, RingIdx(0), &[]).wait(PATIENCE).with_context(|| broker.log())?;
    ensure!(unit.read("vm-a/workers/pids.max")? == "150");
    ensure_unharmed(&broker, devices)
}

#[test]
fn a_frontend_without_a_thread_is_refused_and_served_when_there_is_one() -> Result<()> {
    let Some(unit) = Unit::with(&["pids"])? else { return Ok(()) };
    let broker = broker(&unit, "cgroup = \"off\"", "")?;
    let devices = [broker.device("a")?, broker.device("b")?];
    let hostile = guest(&broker, "a")?;
    hoard_threads(&hostile)?;
    // The unit may have its present tasks, and not one more.
    unit.set("pids.max", &unit.read("pids.current")?)?;
    ensure!(guest(&broker, "b").is_err(), "the attack has no effect\n{}", broker.log());
    let told = || broker.log().contains("a frontend is refused: ");
    ensure!(eventually(PATIENCE, told), "{}", broker.log());
    ensure_unharmed(&broker, devices)?;
    drop(hostile);
    ensure!(eventually(PATIENCE, || guest(&broker, "b").is_ok_and(|guest| guest.capset().is_ok())));
    ensure_unharmed(&broker, devices)
}

#[test]
fn every_vm_has_a_group_with_its_part_and_its_weight() -> Result<()> {
    let Some(unit) = Unit::with(&["memory", "pids", "cpu"])? else { return Ok(()) };
    unit.set("memory.max", &(1600 * MIB).to_string())?;
    unit.set("pids.max", "1000")?;
    let mut broker = broker(&unit, "cgroup = \"on\"", "weight = 300\nworker-memory = \"500MiB\"")?;
    let guest = guest(&broker, "a")?;
    fills(&guest, "one", MIB)?;
    let device = broker.device("a")?.as_raw_nonzero().get();
    let mut serves = unit.processes("vm-a/device")?;
    serves.sort_unstable();
    assert_eq!(serves, [device, launcher(device.unsigned_abs())? as i32]);
    let own = workers_of(&broker, "a")?;
    let grouped = unit.processes("vm-a/workers")?;
    // The group also holds the first process of the worker's namespace.
    assert!(
        own.len() == 1 && grouped.len() == 2 && grouped.contains(&(own[0] as i32)),
        "{own:?} {grouped:?}"
    );
    assert_eq!(unit.processes("broker")?, [broker.pid().as_raw_nonzero().get()]);
    assert_eq!(unit.read("vm-a/workers/memory.max")?, (500 * MIB).to_string());
    assert_eq!(unit.read("vm-b/workers/memory.max")?, (1000 * MIB).to_string());
    // Of the 1000 tasks, three times sixteen are for the processes that serve the VMs.
    assert_eq!(unit.read("vm-b/workers/pids.max")?, "476");
    assert_eq!((unit.read("vm-a/cpu.weight")?, unit.read("vm-b/cpu.weight")?), ("300".into(), "100".into()));
    broker.say(&["set", "a", "weight=7"])?;
    assert_eq!(unit.read("vm-a/cpu.weight")?, "7");
    drop(guest);
    ensure!(broker.stop()?.success(), "{}", broker.log());
    unit.ensure_gone("vm-a")?;
    unit.ensure_gone("vm-b")
}

#[test]
fn groups_come_and_go_with_the_vms_of_the_file_and_others_keep_theirs() -> Result<()> {
    let Some(unit) = Unit::with(&["memory", "pids", "cpu"])? else { return Ok(()) };
    unit.set("memory.max", &(1600 * MIB).to_string())?;
    unit.set("pids.max", "1000")?;
    let (top, a) = ("cgroup = \"on\"", "host-memory = \"4GiB\"\nworker-memory = \"500MiB\"");
    let broker = broker(&unit, top, "worker-memory = \"500MiB\"")?;
    broker.rewrite(top, &[("a", a), ("c", "weight = 7")])?;
    assert_eq!(
        broker.say(&["reload"])?,
        "1 added, 1 removed, 0 changed, 0 restarted, 1 unchanged\n",
        "{}",
        broker.log()
    );
    ensure!(eventually(PATIENCE, || broker.listens("c")), "{}", broker.log());
    unit.ensure_gone("vm-b")?;
    assert_eq!(unit.read("vm-c/workers/memory.max")?, (1000 * MIB).to_string());
    assert_eq!(unit.read("vm-c/cpu.weight")?, "7");
    // After one more VM, the others get less from their next start.
    broker.rewrite(top, &[("a", a), ("c", "weight = 8"), ("d", "")])?;
    let said = broker.say(&["reload"])?;
    let later = |key: &str, vms: &str| {
        let when = "the part changes when the device process is started again";
        format!("{key}: {when}, for {vms}; write {key} into the VM's table to have it changed now")
    };
    let lines = [
        "1 added, 0 removed, 1 changed, 0 restarted, 1 unchanged".to_owned(),
        later("max-tasks", "a, c"),
        later("worker-memory", "c"),
    ];
    assert_eq!(said.lines().collect::<Vec<_>>(), lines);
    ensure!(eventually(PATIENCE, || broker.listens("d")), "{}", broker.log());
    assert_eq!(unit.read("vm-d/workers/memory.max")?, (500 * MIB).to_string());
    // Of the 1000 tasks, four times sixteen are for the processes that serve the VMs.
    assert_eq!(unit.read("vm-d/workers/pids.max")?, "312");
    assert_eq!(unit.read("vm-c/workers/memory.max")?, (1000 * MIB).to_string());
    assert_eq!(
        (unit.read("vm-c/workers/pids.max")?, unit.read("vm-c/cpu.weight")?),
        ("476".into(), "8".into())
    );
    Ok(())
}

#[test]
fn a_daemon_of_one_vm_limits_its_workers_as_well() -> Result<()> {
    let Some(unit) = Unit::with(&["memory", "pids"])? else { return Ok(()) };
    let options = ["--cgroup=on", "--worker-memory=300MiB", "--max-tasks=200", "--host-memory=4GiB"];
    let daemon = DaemonProcess::start_command(unit.command(&daemon::command()?), &options)?;
    let guest = Arc::new(Gpu::new(Session::connect(&daemon.socket(), Options::default())?));
    fills(&guest, "one", MIB)?;
    let worker = workers(daemon.id())?;
    ensure!(unit.processes("workers")?.contains(&(worker[0] as i32)), "{}", daemon.log());
    ensure!(unit.processes("device")?.contains(&(daemon.id() as i32)), "{}", daemon.log());
    assert_eq!(unit.read("workers/memory.max")?, (300 * MIB).to_string());
    assert_eq!(unit.read("workers/pids.max")?, "200");
    let over = fills(&guest, "too much", 400 * MIB);
    ensure!(over.is_err(), "there is no limit\n{}", daemon.log());
    let told = || daemon.log().contains(MEMORY_LIMIT);
    ensure!(eventually(PATIENCE, told), "{}", daemon.log());
    // The device process continues to serve.
    fills(&guest, "next", MIB)?;
    daemon.stop()?;
    Ok(())
}

#[test]
fn without_delegation_it_is_said_once_and_on_demand_it_is_an_error() -> Result<()> {
    let daemon = DaemonProcess::start_command(daemon::command()?, &[])?;
    let lines = daemon.log().lines().filter(|line| line.contains("Delegate=yes")).count();
    ensure!(lines <= 1, "{}", daemon.log());
    // The daemon does not divide a group with another process in it.
    let Some(unit) = Unit::with(&[])? else { return Ok(()) };
    let mut other = unit.command(std::process::Command::new("sleep").arg("1000")).spawn()?;
    ensure!(eventually(PATIENCE, || unit.processes(".").is_ok_and(|found| !found.is_empty())));
    let options = ["--cgroup=on", "--socket-path", "/nowhere/socket"];
    let refused = unit.command(daemon::command()?.args(options)).output()?;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    other.kill()?;
    other.wait()?;
    ensure!(!refused.status.success() && said.contains("--cgroup=on: process "), "{said}");
    Ok(())
}
