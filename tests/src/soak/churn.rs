//! The actions of the events. An event whose action is impossible has failed.

use super::pace::{Due, Event, VMS};
use super::stage::{GUEST, Stage};
use crate::attacks::endless;
use crate::clients;
use crate::daemon::{eventually, is_alive};
use crate::daemon_process::workers;
use crate::guest::PATIENCE;
use crate::guest::device::{Device, Source};
use crate::program::{LIMIT, Program};
use crate::random::Random;
use anyhow::{Context, Result, anyhow, ensure};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::fs;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::Duration;

/// Bytes that a program computes on.
const SIZE: u64 = 1 << 20;
/// Time between two looks at a program.
const POLL: Duration = Duration::from_millis(20);
/// Time that a program has to end with its VMM.
const GOING: Duration = Duration::from_secs(1);
/// The number of connections that send nothing: more than the broker keeps.
const SILENT: usize = 40;
/// Time for which these connections stay.
const SILENCE: Duration = Duration::from_secs(1);

pub(super) fn perform(stage: &Stage, due: &Due) -> Result<()> {
    let mut random = Random::new(due.seed);
    let vm = due.vm;
    match due.event {
        Event::Program => program(stage, vm),
        Event::Client => client(stage, vm, &mut random),
        Event::Restart => {
            disturbed(stage, vm, || stage.end_vmm(vm));
            stage.machine(vm).map(drop)
        }
        Event::WorkerDies => worker_dies(stage, vm, &mut random),
        Event::DeviceDies => device_dies(stage, vm),
        Event::Hang => hang(stage, vm),
        Event::Kill => kill(stage, vm),
        Event::Set => {
            let weight = 1 + random.below(300);
            stage.broker.say(&["set", vm, &format!("weight={weight}")]).map(drop)
        }
        Event::Status => stage.broker.say(&["status"]).map(drop),
        Event::Scrape => stage.broker.metrics(stage.port).map(drop),
        Event::Silence => silence(stage),
        Event::Reshare | Event::Member | Event::Replace => reload(stage, due.event),
        Event::WrongFile => wrong_file(stage),
        Event::Hangup => {
            let _unchanged = stage.config.lock();
            Ok(kill_process(stage.broker.pid(), Signal::HUP)?)
        }
        Event::Rotate => rotate(stage),
        Event::FullDisk => full_disk(stage, vm),
    }
}

fn disturbed<T>(stage: &Stage, vm: &str, act: impl FnOnce() -> T) -> T {
    stage.disturb(vm);
    let result = act();
    stage.disturb(vm);
    result
}

fn program(stage: &Stage, vm: &str) -> Result<()> {
    let gpu = stage.gpu(vm)?;
    let mut device = Device::create(&gpu, "program")?;
    let computed = device
        .allocate(SIZE, Source::New)
        .and_then(|memory| memory.map_err(|result| anyhow!("{result:?}")))
        .and_then(|memory| device.fill(memory, SIZE, 7));
    gpu.destroy_context(device.context)?;
    computed
}

fn client(stage: &Stage, vm: &str, random: &mut Random) -> Result<()> {
    let bridge = stage.machine(vm)?;
    let mut program = Program::start(clients::computing(&stage.threads, bridge.path(), "2")?)?;
    let doomed = random.once_in(3);
    if doomed {
        sleep(Duration::from_millis(random.below(1500)));
        // The program may have ended before.
        let _ = kill_process_group(program.pid(), Signal::KILL);
    }
    while program.is_running() && !bridge.gpu().session.is_over() {
        sleep(POLL);
    }
    if program.is_running() {
        // A guest ends with its VMM; Mesa would wait for ever for a ring without a device behind it.
        sleep(GOING);
        let _ = kill_process_group(program.pid(), Signal::KILL);
    }
    let output = program.wait(LIMIT)?;
    let killed = doomed && output.status.signal() == Some(Signal::KILL.as_raw());
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(killed || output.status.success(), "{}: {errors}", output.status);
    Ok(())
}

/// Kills one of the VM's workers; the context that is created here makes sure that there is one.
fn worker_dies(stage: &Stage, vm: &str, random: &mut Random) -> Result<()> {
    let gpu = stage.gpu(vm)?;
    let device = Device::create(&gpu, "victim")?;
    stage.disturb(vm);
    let all = workers(stage.broker.device(vm)?.as_raw_nonzero().get().unsigned_abs())?;
    let victim = all[random.below(all.len().max(1) as u64) as usize];
    let victim = Pid::from_raw(victim.cast_signed()).context("a process has a number")?;
    let _ = kill_process(victim, Signal::KILL);
    let ended = eventually(PATIENCE, || !is_alive(victim));
    stage.disturb(vm);
    gpu.destroy_context(device.context)?;
    ensure!(ended, "a worker does not die");
    Ok(())
}

fn device_dies(stage: &Stage, vm: &str) -> Result<()> {
    let device = stage.broker.device(vm)?;
    disturbed(stage, vm, || -> Result<()> {
        kill_process(device, Signal::KILL)?;
        stage.end_vmm(vm);
        let back = || stage.broker.device(vm).is_ok_and(|now| now != device) && stage.serves(vm);
        ensure!(eventually(PATIENCE, back), "it does not come back");
        Ok(())
    })
}

fn hang(stage: &Stage, vm: &str) -> Result<()> {
    let gpu = stage.gpu(vm)?;
    let mut program = endless::Program::start(&gpu, "hang")?;
    program.stop()?;
    // The limit ends the submission and so the wait, whether the context is lost or not.
    let ended = program.is_ended_within(PATIENCE);
    gpu.destroy_context(program.context())?;
    ensure!(ended, "it goes on");
    Ok(())
}

fn kill(stage: &Stage, vm: &str) -> Result<()> {
    let gpu = stage.gpu(vm)?;
    let device = Device::create(&gpu, "killed")?;
    let killed = stage.broker.say(&["kill", &format!("{vm}/{}", device.context.0)]);
    gpu.destroy_context(device.context)?;
    killed.map(drop)
}

fn silence(stage: &Stage) -> Result<()> {
    let control = (0..SILENT).map(|_| UnixStream::connect(stage.broker.path("control")));
    let control = control.collect::<Result<Vec<_>, _>>()?;
    let metrics = (0..SILENT).map(|_| TcpStream::connect(("127.0.0.1", stage.port)));
    let metrics = metrics.collect::<Result<Vec<_>, _>>()?;
    sleep(SILENCE);
    drop((control, metrics));
    Ok(())
}

fn reload(stage: &Stage, event: Event) -> Result<()> {
    let mut config = stage.config.lock();
    let mut new = *config;
    match event {
        Event::Reshare => new.weight = 100 + (config.weight + 7) % 100,
        Event::Member => new.has_guest = !config.has_guest,
        _ => new.contexts = 81 - config.contexts,
    }
    stage.rewrite(new)?;
    *config = new;
    let last = VMS[VMS.len() - 1];
    if event == Event::Replace {
        let device = stage.broker.device(last)?;
        return disturbed(stage, last, || {
            stage.end_vmm(last);
            // The broker may not yet know that no frontend is connected.
            stage.broker.say(&["reload", "--now"])?;
            let back = || stage.broker.device(last).is_ok_and(|now| now != device) && stage.serves(last);
            ensure!(eventually(PATIENCE, back), "{last} does not come back");
            Ok(())
        });
    }
    // The VM that is removed may have a guest.
    stage.broker.say(&["reload", "--now"])?;
    let settled = || match event {
        Event::Member if new.has_guest => stage.broker.listens(GUEST),
        Event::Member => stage.broker.vm(GUEST).is_err(),
        _ => true,
    };
    ensure!(eventually(PATIENCE, settled), "the file does not come to hold");
    Ok(())
}

fn wrong_file(stage: &Stage) -> Result<()> {
    let config = stage.config.lock();
    stage.rewrite_wrong()?;
    let refused = stage.broker.say(&["reload"]);
    stage.rewrite(*config)?;
    ensure!(refused.is_err(), "a wrong file is taken");
    Ok(())
}

/// Copies the log and truncates it, as logrotate does with `copytruncate`: the log is standard error and cannot be opened anew.
fn rotate(stage: &Stage) -> Result<()> {
    let log = stage.broker.path("log");
    let copied = fs::copy(&log, stage.broker.path("log.1"))?;
    fs::OpenOptions::new().write(true).open(&log)?.set_len(0)?;
    stage.rotated.fetch_add(copied, Ordering::Relaxed);
    Ok(())
}

/// Starts the VM's device process while the disk has no room for its key.
fn full_disk(stage: &Stage, vm: &str) -> Result<()> {
    let key = stage.states().join(vm).join("pipeline-cache.key");
    // A VM that was started on a full disk has no key.
    let _ = fs::remove_file(&key);
    let full = stage.fill_states()?;
    let started = device_dies(stage, vm);
    fs::remove_file(full)?;
    started.context("on a full disk")
}
