//! A rest: the VMMs have ended, no program is left, and the holdings of our processes are counted.

use super::flat::{Line, Tolerance};
use super::pace::VMS;
use super::stage::{Stage, entries};
use crate::daemon::{Holdings, eventually};
use crate::daemon_process::{children, launcher};
use anyhow::{Context, Result, bail};
use rustix::process::Pid;
use std::fmt;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// The time in which all processes of guests must end: workers have a few seconds to end.
const PATIENCE: Duration = Duration::from_secs(120);
/// Processes that are watched from the beginning to the end.
const WATCHED: [&str; 3] = ["broker", "device process of a", "launcher of a"];

/// The file in the state folder of each VM whose device process was not started on a full disk.
const KEY: &str = "pipeline-cache.key";
/// The log, and the beginning of the names of rotated logs.
const LOG: &str = "log";
/// Descriptors of a broker for each VM.
const OF_A_VM: usize = 2;

/// The measures of a process.
#[derive(Clone, Copy, Debug)]
struct Process {
    holdings: Holdings,
    pss_kib: u64,
}

/// The holdings that are left at a rest.
#[derive(Clone, Debug)]
pub(super) struct Rest {
    processes: Vec<Process>,
    /// VMs that come and go, and exist at this rest.
    guests: usize,
    /// Processes beyond a device process and a launcher for each VM.
    surplus: usize,
    sockets: usize,
    states: usize,
    groups: usize,
    /// Bytes that were logged so far.
    pub(super) log_bytes: u64,
    /// Events that were done so far.
    events: u64,
}

impl Rest {
    /// Ends the VMMs, waits until no process of theirs is left, and counts.
    pub(super) fn take(stage: &Stage, events: u64) -> Result<Self> {
        VMS.iter().for_each(|vm| stage.end_vmm(vm));
        let broker = &stage.broker;
        let vms = VMS.len() + usize::from(stage.config.lock().has_guest);
        let mut left = Vec::new();
        let gone = eventually(PATIENCE, || {
            left = descendants(broker.pid().as_raw_nonzero().get().unsigned_abs());
            left.len() <= 2 * vms && VMS.iter().all(|vm| broker.listens(vm))
        });
        if !gone {
            let names: Vec<_> = left.iter().map(|pid| command_line(*pid)).collect();
            bail!("something is left after {PATIENCE:?}: {names:?}\n{}", broker.say(&["status"])?);
        }
        let device = broker.device(VMS[0])?;
        let launcher = launcher(device.as_raw_nonzero().get().unsigned_abs())?;
        let launcher = Pid::from_raw(launcher.cast_signed()).context("a process has a number")?;
        let processes =
            [broker.pid(), device, launcher].into_iter().map(Process::of).collect::<Result<_>>()?;
        let beside_key = |names: Vec<String>| names.iter().filter(|name| *name != KEY).count();
        let states = VMS.iter().map(|vm| entries(&stage.states().join(vm)).map_or(0, beside_key)).sum();
        Ok(Self {
            processes,
            guests: vms - VMS.len(),
            surplus: left.len().saturating_sub(2 * vms),
            // The configuration and the logs lie there as well; the guest's socket comes and goes.
            sockets: entries(&broker.path(""))?.iter().filter(|name| !name.starts_with(LOG)).count()
                + VMS.len()
                - vms,
            states,
            groups: (stage.unit.as_ref().map_or(0, |unit| folders(&unit.path(""))) + VMS.len())
                .saturating_sub(vms),
            log_bytes: stage.logged()?,
            events,
        })
    }
}

impl Process {
    fn of(pid: Pid) -> Result<Self> {
        let rollup = fs::read_to_string(format!("/proc/{}/smaps_rollup", pid.as_raw_nonzero()))?;
        let line = rollup.lines().find(|line| line.starts_with("Pss:")).context("Pss")?;
        let pss_kib = line.split_whitespace().nth(1).context("Pss")?.parse()?;
        Ok(Self { holdings: Holdings::of(pid)?, pss_kib })
    }
}

impl fmt::Display for Rest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, process) in WATCHED.iter().zip(&self.processes) {
            let Holdings { descriptors, threads, anonymous_kib, mappings } = process.holdings;
            write!(
                f,
                "{name}: {descriptors} fds, {threads} threads, {mappings} maps, {anonymous_kib} KiB; "
            )?;
        }
        let (sockets, states, groups, log) = (self.sockets, self.states, self.groups, self.log_bytes >> 10);
        write!(f, "{sockets} files, {states} states, {groups} groups, {log} KiB logged")
    }
}

/// Returns the measures of all rests, each as one line.
pub(super) fn lines(rests: &[Rest]) -> Vec<Line> {
    let line = |name: String, tolerance, value: &dyn Fn(&Rest) -> f64| {
        Line::new(name, rests.iter().map(value).collect(), tolerance)
    };
    let mut lines = Vec::new();
    for (at, process) in WATCHED.iter().enumerate() {
        let of = |rest: &Rest| rest.processes[at];
        // The broker holds a channel and a pidfd for the VM that comes and goes.
        let own = |rest: &Rest| if at == 0 { OF_A_VM * rest.guests } else { 0 };
        let name = |what| format!("{process}: {what}");
        lines.push(line(name("descriptors"), Tolerance::By(0.5), &|rest| {
            (of(rest).holdings.descriptors - own(rest)) as f64
        }));
        lines.push(line(name("threads"), Tolerance::By(0.5), &|rest| of(rest).holdings.threads as f64));
        lines.push(line(name("mappings"), Tolerance::By(4.0), &|rest| of(rest).holdings.mappings as f64));
        // The number of pages that an allocator keeps varies a little.
        lines.push(line(name("memory of its own, KiB"), Tolerance::By(512.0), &|rest| {
            of(rest).holdings.anonymous_kib as f64
        }));
        // A page counts more if fewer processes share it, and other programs of the machine share the libraries' pages.
        lines.push(line(name("PSS, KiB"), Tolerance::Figure, &|rest| of(rest).pss_kib as f64));
    }
    lines.push(line("surplus processes".into(), Tolerance::By(0.5), &|rest| rest.surplus as f64));
    lines.push(line("files in the runtime folder".into(), Tolerance::By(0.5), &|rest| rest.sockets as f64));
    lines.push(line("files in the state folders".into(), Tolerance::By(0.5), &|rest| rest.states as f64));
    lines.push(line("control groups".into(), Tolerance::By(0.5), &|rest| rest.groups as f64));
    let rates = rests.windows(2).filter(|pair| pair[1].events > pair[0].events).map(|pair| {
        (pair[1].log_bytes - pair[0].log_bytes) as f64 / (pair[1].events - pair[0].events) as f64
    });
    // A daemon on a busy machine logs that it is late.
    lines.push(Line::new("bytes logged for each event".into(), rates.collect(), Tolerance::Figure));
    lines
}

/// All processes below one.
fn descendants(pid: u32) -> Vec<u32> {
    let mut all = children(pid).unwrap_or_default();
    let mut at = 0;
    while let Some(pid) = all.get(at) {
        all.extend(children(*pid).unwrap_or_default());
        at += 1;
    }
    all
}

fn command_line(pid: u32) -> String {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).replace('\0', " ")
}

/// Folders below a folder.
fn folders(path: &Path) -> usize {
    let entries = fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|path| path.is_dir()).map(|path| 1 + folders(&path)).sum()
}
