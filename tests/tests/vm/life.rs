//! Tests that events in the life of virtual machines do no harm to the daemon: restarts, pauses, driver changes, sudden death.

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tests::completion;
use tests::daemon::{WITHOUT_CHECKPOINTS, eventually};
use tests::daemon_process::{DaemonProcess, workers};
use tests::packages::{ClientRoot, HostVulkan, Suite};
use tests::program::LIMIT;
use tests::sources::repository;
use tests::vm::{Guest, Options, Script, Vm, pause};

const VULKANINFO: &str = "vulkaninfo --summary 2>&1 | grep deviceName";

/// Programs end before the reset, as in an orderly restart: QEMU 11.1 does not survive a reset while they hold mappings (`tests/README.md`).
#[test]
#[ignore = "boots a machine three times, which takes minutes"]
fn a_guest_that_restarts_finds_a_working_gpu() -> Result<()> {
    let (guest, daemon) = start()?;
    // The first boot restarts by itself, the second is reset, the third is told to end.
    let script = format!(
        "echo ready\n{COMPUTE}\necho {BUSY}\nread -r word\n[ $word = restart ] && reboot -f\n{VULKANINFO}\n"
    );
    let script = with_model(&script);
    let options = Options { gpus: vec![daemon.socket()], may_reboot: true, ..Options::default() };
    let mut vm = Vm::boot(&guest, &script, &options)?;
    // A program's resources are released after it has ended.
    let nothing_mapped = || live_blobs(&daemon).is_ok_and(|blobs| blobs == 0);
    let first = vm.wait_for("ready", 0, LIMIT)?;
    vm.wait_for(BUSY, first, LIMIT)?;
    ensure!(eventually(LIMIT, nothing_mapped), "{} blobs are left", live_blobs(&daemon)?);
    vm.send_line("restart")?;
    let second = vm.wait_for("ready", first, LIMIT).map_err(|error| error.context(daemon.log()))?;
    vm.wait_for(BUSY, second, LIMIT).map_err(|error| error.context(daemon.log()))?;
    ensure!(eventually(LIMIT, nothing_mapped), "{} blobs are left", live_blobs(&daemon)?);
    vm.qmp("system_reset")?;
    let third = vm.wait_for("ready", second, LIMIT).map_err(|error| error.context(daemon.log()))?;
    vm.wait_for(BUSY, third, LIMIT).map_err(|error| error.context(daemon.log()))?;
    vm.send_line("go")?;
    vm.wait_for("Virtio-GPU Venus", third, LIMIT).map_err(|error| error.context(daemon.log()))?;
    ensure!(vm.wait()?.status == 0);
    daemon.stop()?;
    Ok(())
}

/// The program maps nothing while it is paused: QEMU 11.1 crashes when a map or unmap request is on its way as it stops the device (seen with an
/// unmap), and the daemon cannot withdraw a request.
#[test]
fn a_paused_guest_continues_its_computation() -> Result<()> {
    const WORDS: u32 = 200;
    let expected = completion::native(&ClientRoot::open(Suite::Testing)?, WORDS)?;
    let (guest, daemon) = start()?;
    let script = format!(
        "$GENERATE -n {} </dev/null >/tmp/words 2>/tmp/log &
         while kill -0 $! 2>/dev/null; do
             [ $(wc -w </tmp/words) -gt ${{said:-4}} ] && said=$(wc -w </tmp/words) && echo {BUSY}
             sleep 0.2
         done
         wait $! || {{ cat /tmp/log; exit 1; }}
         echo '{MARK}'
         cat /tmp/words",
        WORDS + completion::SPARE_WORDS
    );
    let pause = pause(Duration::from_secs(1));
    let limit = Options::default().limit + 3 * pause;
    let options = Options { gpus: vec![daemon.socket()], limit, ..Options::default() };
    let mut vm = Vm::boot(&guest, &with_model(&script), &options)?;
    let mut seen = vm.wait_for(BUSY, 0, LIMIT)?;
    let blobs = live_blobs(&daemon)?;
    ensure!(blobs >= 12, "only {blobs} blobs are live");
    for _ in 0..3 {
        vm.qmp("stop").map_err(|error| error.context(daemon.log()))?;
        thread::sleep(pause);
        vm.qmp("cont").map_err(|error| error.context(daemon.log()))?;
        // Two more lines, since one may have been on its way.
        for _ in 0..2 {
            seen = vm.wait_for(BUSY, seen, LIMIT).map_err(|error| error.context(daemon.log()))?;
        }
    }
    let outcome = vm.wait().map_err(|error| error.context(daemon.log()))?;
    ensure!(outcome.status == 0, "{}\n{}", outcome.output, daemon.log());
    let words = outcome.output.rsplit_once(MARK).map(|(_, text)| completion::first_words(text, WORDS));
    ensure!(words.as_ref() == Some(&expected), "the paused program said {words:?}, the host {expected:?}");
    daemon.stop()?;
    Ok(())
}

/// Executes the commands that the page for operators has, without which the guest's GPU stays dead, and a reset aborts QEMU.
#[test]
fn a_gpu_whose_daemon_was_killed_comes_back_when_it_is_plugged_again() -> Result<()> {
    let (guest, daemon) = start()?;
    let program = std::fs::read(env!("CARGO_BIN_EXE_many_threads")).context("reading the guest program")?;
    let script = format!(
        "chmod +x /many_threads
         {VULKANINFO} || exit 1
         /many_threads --rounds 0 --instances 1 --lanes 2 --report >/tmp/out 2>&1 &
         until [ $(grep -c round /tmp/out) -ge 10 ]; do kill -0 $! || {{ cat /tmp/out; exit 1; }}; sleep 0.1; done
         echo computes
         read -r word
         vulkaninfo >/dev/null 2>&1 &
         sleep 1
         echo stuck
         read -r word
         until {VULKANINFO}; do sleep 0.2; done"
    );
    let script = Script::new(&script).with_file("many_threads", program);
    let options = Options { gpus: vec![daemon.socket()], may_reboot: true, ..Options::default() };
    let mut vm = Vm::boot(&guest, &script, &options)?;
    let mut seen = vm.wait_for("computes", 0, LIMIT).map_err(|error| error.context(daemon.log()))?;
    drop(daemon);
    vm.send_line("go")?;
    seen = vm.wait_for("stuck", seen, LIMIT)?;

    let daemon = DaemonProcess::start(&HostVulkan::lavapipe()?, &[]).context("starting the next daemon")?;
    for command in plugging(&daemon.socket())? {
        vm.qmp_line(&command).map_err(|error| error.context(daemon.log()))?;
        if command.contains("device_del") {
            vm.qmp_event("DEVICE_DELETED")?;
        }
    }
    vm.send_line("go")?;
    vm.wait_for("Virtio-GPU Venus", seen, LIMIT).map_err(|error| error.context(daemon.log()))?;
    drop(vm);
    daemon.stop()?;
    Ok(())
}

/// The commands by which a VM's device is plugged again, of the page for operators, with this socket.
fn plugging(socket: &Path) -> Result<Vec<String>> {
    let page = std::fs::read_to_string(repository().join("docs/operations.md"))?;
    let commands = page.lines().map(str::trim).filter(|line| line.starts_with("{\"execute\":"));
    let socket = socket.display().to_string();
    let commands: Vec<_> =
        commands.map(|line| line.replace("/run/vhost-user-vulkan/web.sock", &socket)).collect();
    ensure!(commands.len() == 4, "the page has the commands {commands:?}");
    Ok(commands)
}

#[test]
fn the_guest_driver_can_be_unbound_and_bound_again() -> Result<()> {
    let (guest, daemon) = start()?;
    let script = format!(
        "{VULKANINFO} || exit 1
         cd /sys/bus/virtio/drivers/virtio_gpu
         device=$(echo virtio*)
         for turn in 1 2 3; do echo $device >unbind; echo $device >bind; done
         cd /
         {VULKANINFO} || exit 2"
    );
    let options = Options { gpus: vec![daemon.socket()], ..Options::default() };
    let outcome =
        Vm::run(&guest, &Script::new(&script), &options).map_err(|error| error.context(daemon.log()))?;
    ensure!(outcome.status == 0, "status {}\n{}\n{}", outcome.status, outcome.output, outcome.console);
    daemon.stop()?;
    Ok(())
}

/// QEMU 11.1 does not survive the return of the driver (`tests/README.md`); the daemon does.
#[test]
fn a_driver_unbound_from_a_program_that_computes_harms_no_later_guest() -> Result<()> {
    let (guest, daemon) = start()?;
    let at_rest = workers(daemon.id())?.len();
    let program = std::fs::read(env!("CARGO_BIN_EXE_many_threads")).context("reading the guest program")?;
    let script = "chmod +x /many_threads
         cd /sys/bus/virtio/drivers/virtio_gpu
         device=$(echo virtio*)
         /many_threads --rounds 0 --instances 1 --lanes 2 --report >/tmp/out 2>&1 &
         until [ $(grep -c round /tmp/out) -ge 10 ]; do kill -0 $! || { cat /tmp/out; exit 1; }; sleep 0.1; done
         echo $device >unbind
         echo unbound
         echo $device >bind
         echo bound
         read -r word";
    let script = Script::new(script).with_file("many_threads", program);
    let options = Options { gpus: vec![daemon.socket()], ..Options::default() };
    let vm = Vm::boot(&guest, &script, &options)?;
    let unbound = vm.wait_for("unbound", 0, LIMIT).map_err(|error| error.context(daemon.log()))?;
    println!("the driver came back: {}", vm.wait_for("bound", unbound, Duration::from_secs(3)).is_ok());
    drop(vm);
    let gone = || workers(daemon.id()).is_ok_and(|workers| workers.len() <= at_rest);
    ensure!(eventually(LIMIT, gone), "a worker outlives its guest\n{}", daemon.log());
    let outcome = Vm::run(&guest, &Script::new(VULKANINFO), &options);
    let outcome = outcome.map_err(|error| error.context(daemon.log()))?;
    ensure!(outcome.status == 0, "{}\n{}", outcome.output, daemon.log());
    daemon.stop()?;
    Ok(())
}

#[test]
fn a_program_that_maps_a_thousand_blobs_meets_a_limit_and_harms_nothing() -> Result<()> {
    maps_a_thousand(&[], 0)
}

/// Only the bound on the regions of the whole machine keeps QEMU alive.
#[test]
#[ignore = "boots machines for minutes"]
fn a_machine_with_many_memory_devices_survives_a_program_that_maps_a_thousand_blobs() -> Result<()> {
    maps_a_thousand(&["--max-maps", "5000"], 150)
}

fn maps_a_thousand(arguments: &[&str], memory_devices: u32) -> Result<()> {
    let guest = Guest::build(Suite::Testing)?;
    let daemon = DaemonProcess::start(&HostVulkan::lavapipe()?, arguments)?;
    let program = std::fs::read(env!("CARGO_BIN_EXE_many_blobs")).context("reading the guest program")?;
    let script =
        format!("chmod +x /many_blobs; /many_blobs 1000 || exit 1; {VULKANINFO} || exit 2; /many_blobs 1000");
    let script = Script::new(&script).with_file("many_blobs", program);
    let options = Options { gpus: vec![daemon.socket()], memory_devices, ..Options::default() };
    let outcome = Vm::run(&guest, &script, &options).map_err(|error| error.context(daemon.log()))?;
    ensure!(outcome.status == 0, "status {}\n{}\n{}", outcome.status, outcome.output, daemon.log());
    println!("{}", outcome.output);
    daemon.stop()?;
    Ok(())
}

#[test]
#[ignore = "boots two machines for minutes"]
fn a_killed_machine_leaves_nothing_and_the_next_one_works() -> Result<()> {
    let (guest, daemon) = start()?;
    let options = Options { gpus: vec![daemon.socket()], ..Options::default() };
    let at_rest = workers(daemon.id())?.len();
    let vm = Vm::boot(&guest, &with_model(&format!("while {COMPUTE}; do echo {BUSY}; done\n")), &options)?;
    vm.wait_for(BUSY, 0, LIMIT).map_err(|error| error.context(daemon.log()))?;
    // Between two programs the daemon has no worker.
    let serves = || workers(daemon.id()).is_ok_and(|workers| workers.len() > at_rest);
    ensure!(eventually(LIMIT, serves), "no worker serves the guest");
    vm.kill()?;
    let gone = || workers(daemon.id()).is_ok_and(|workers| workers.len() <= at_rest);
    ensure!(eventually(LIMIT, gone), "a worker outlives its guest\n{}", daemon.log());
    let outcome = Vm::run(&guest, &completion::script(VULKANINFO, 8), &options);
    let outcome = outcome.map_err(|error| error.context(daemon.log()))?;
    ensure!(outcome.status == 0, "{}\n{}", outcome.output, daemon.log());
    daemon.stop()?;
    Ok(())
}

#[test]
fn a_killed_worker_ends_its_own_program_only() -> Result<()> {
    const WORDS: u32 = 200;
    let expected = completion::native(&ClientRoot::open(Suite::Testing)?, WORDS)?;
    // With checkpoints, the program would get another worker between two words.
    let (guest, daemon) = start_with(&WITHOUT_CHECKPOINTS)?;
    let generate = completion::arguments("/model.gguf".as_ref(), WORDS + completion::SPARE_WORDS).join(" ");
    let script = format!(
        "generate() {{
             llama-completion {generate} </dev/null >/tmp/words$1 2>/tmp/log$1
             status=$?
             [ $status = 0 ] && cp /tmp/words$1 /tmp/survivor
             echo ended with $status
         }}
         said() {{ cat /tmp/words$1 2>/dev/null | wc -w; }}
         generate 1 &
         generate 2 &
         while [ $(said 1) -lt 5 ] || [ $(said 2) -lt 5 ]; do sleep 0.1; done
         echo both speak
         wait
         {VULKANINFO} || exit 1
         echo '{MARK}'
         cat /tmp/survivor"
    );
    let script = Script::new(&script).with_file("model.gguf", completion::model());
    let vm = Vm::boot(&guest, &script, &Options { gpus: vec![daemon.socket()], ..Options::default() })?;
    let spoke = vm.wait_for("both speak", 0, LIMIT).map_err(|error| error.context(daemon.log()))?;
    let workers = workers(daemon.id())?;
    ensure!(workers.len() >= 2, "two programs, but workers {workers:?}");
    let victim = Pid::from_raw(i32::try_from(workers[0])?).context("a worker has a number")?;
    kill_process(victim, Signal::KILL)?;
    vm.wait_for("ended with", spoke, LIMIT).map_err(|error| error.context(daemon.log()))?;
    let outcome = vm.wait().map_err(|error| error.context(daemon.log()))?;
    let (output, log) = (&outcome.output, daemon.log());
    ensure!(outcome.status == 0, "a new context does not work\n{output}\n{log}");
    ensure!(output.matches("ended with 0").count() == 1, "one program should have failed\n{output}\n{log}");
    let words = output.rsplit_once(MARK).map(|(_, text)| completion::first_words(text, WORDS));
    ensure!(words.as_ref() == Some(&expected), "the other program said {words:?}, the host {expected:?}");
    daemon.stop()?;
    Ok(())
}

/// The mark that a program's output follows.
const MARK: &str = "--- said:";
/// A computation in the background that reports every round.
const COMPUTE: &str = "$GENERATE >/tmp/words 2>/tmp/log || { cat /tmp/log; exit 1; }";
const BUSY: &str = "round";

fn with_model(text: &str) -> Script {
    let generate = completion::arguments("/model.gguf".as_ref(), 8).join(" ");
    let text = format!("GENERATE='llama-completion {generate}'\n{text}");
    Script::new(&text).with_file("model.gguf", completion::model())
}

/// Blobs the guest has: the device process holds a memory file of each blob, and also of the guest's own memory.
fn live_blobs(daemon: &DaemonProcess) -> Result<usize> {
    let links = std::fs::read_dir(format!("/proc/{}/fd", daemon.id()))?.flatten();
    let targets = links.filter_map(|link| std::fs::read_link(link.path()).ok());
    let blob = |name: &str| {
        ["/memfd:virtio-gpu blob", "/memfd:vulkan-memory"].iter().any(|blob| name.starts_with(blob))
    };
    Ok(targets.filter(|target| blob(&target.to_string_lossy())).count())
}

fn start() -> Result<(Arc<Guest>, DaemonProcess)> {
    start_with(&[])
}

fn start_with(options: &[&str]) -> Result<(Arc<Guest>, DaemonProcess)> {
    let guest = Guest::build(Suite::Testing)?;
    let daemon = DaemonProcess::start(&HostVulkan::lavapipe()?, options).context("starting the daemon")?;
    Ok((guest, daemon))
}
