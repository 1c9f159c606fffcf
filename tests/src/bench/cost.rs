//! The cost of submissions to the host: processor time, sleeps, and signals across the virtqueue.
//!
//! The client submits steadily, and a window of that time is measured, so the client's start does not count. The frontend in this process counts
//! signals; the kernel counts processor time and sleeps. The measure uses no counter of the daemon.

use super::figures::Reading;
use super::measures::Pace;
use super::sides::Side;
use super::taken::{Taken, Timing};
use crate::daemon::cpu_time;
use crate::frontend::Traffic;
use anyhow::{Context, Result};
use rustix::process::Pid;
use std::fs;
use std::time::{Duration, Instant};

/// The time for which the client submits before the measured window, and the least time for which it goes on afterwards.
const LEAD: Duration = Duration::from_millis(400);
/// The length of the window if the number of submissions is not known in advance.
const WINDOW: Duration = Duration::from_secs(1);

/// The resources that were used until now.
#[derive(Clone, Copy, Debug, Default)]
struct Used {
    client: Duration,
    host: Duration,
    /// The number of times that threads of the host's processes went to sleep, if the kernel counts them.
    sleeps: Option<u64>,
    traffic: Traffic,
}

/// Measures, for each thousand submissions or, without submissions, for each second: milliseconds of processor time of all processes and of the
/// host's alone, sleeps of the host's processes, kicks, calls and requests. A native program has only the first of these.
pub(super) fn take(side: &mut Side, pace: Pace, timing: Timing) -> Result<Taken> {
    let window = match pace {
        Pace::Every(period) => period * timing.counted,
        Pace::Flat | Pace::Idle => WINDOW,
    };
    let milliseconds = (window + 2 * LEAD).as_millis();
    match pace {
        Pace::Flat => side.gauge.say(&format!("dispatch {milliseconds}"))?,
        Pace::Every(period) => side.gauge.say(&format!("paced {} {milliseconds}", period.as_micros()))?,
        Pace::Idle => {}
    }
    std::thread::sleep(LEAD);
    let (start, before) = (Instant::now(), used(side)?);
    std::thread::sleep(window);
    let (seconds, after) = (start.elapsed().as_secs_f64(), used(side)?);
    let units = match pace {
        Pace::Idle => seconds,
        _ => {
            let said = side.answer()?;
            let number = |key: &str| said[key].as_f64().with_context(|| format!("no {key} in {said}"));
            number("count")? / number("seconds")? * seconds / 1000.0
        }
    };
    let milliseconds = |of: fn(&Used) -> Duration| of(&after).saturating_sub(of(&before)).as_secs_f64() * 1e3;
    let count = |of: fn(&Used) -> Option<u64>| Some(of(&after)?.saturating_sub(of(&before)?) as f64);
    let all = milliseconds(|used| used.client) + milliseconds(|used| used.host);
    let of_host = [
        Some(milliseconds(|used| used.host)),
        count(|used| used.sleeps),
        count(|used| Some(used.traffic.kicks)),
        count(|used| Some(used.traffic.calls)),
        count(|used| Some(used.traffic.requests)),
    ];
    let reading = |number: f64| Reading::of(number / units);
    let mut readings = vec![Some(reading(all))];
    readings.extend(of_host.map(|number| number.filter(|_| side.stand.is_some()).map(reading)));
    Ok(Taken::Readings(readings, None))
}

fn used(side: &Side) -> Result<Used> {
    let mut used = Used { client: running_time(side.gauge.pid())?, ..Used::default() };
    if let Some(stand) = &side.stand {
        for process in stand.processes()? {
            used.host += running_time(process)?;
            used.sleeps = used.sleeps.into_iter().chain(sleeps(process)).reduce(|all, more| all + more);
        }
        used.traffic =
            stand.bridge(0).map(|bridge| bridge.gpu().session.control.traffic()).unwrap_or_default();
    }
    Ok(used)
}

/// Processor time of the threads that a process has now; it is coarser if the kernel keeps no exact account.
fn running_time(process: Pid) -> Result<Duration> {
    let of_thread = |stat: String| stat.split_whitespace().next().and_then(|ran| ran.parse::<u64>().ok());
    let ran: Vec<u64> = of_threads(process, "schedstat").into_iter().filter_map(of_thread).collect();
    if ran.is_empty() { cpu_time(process) } else { Ok(Duration::from_nanos(ran.iter().sum())) }
}

/// Returns how often the threads that a process has now went to sleep by themselves.
fn sleeps(process: Pid) -> Option<u64> {
    let of_thread = |status: String| {
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        line.trim().parse::<u64>().ok()
    };
    of_threads(process, "status").into_iter().filter_map(of_thread).reduce(|all, more| all + more)
}

fn of_threads(process: Pid, file: &str) -> Vec<String> {
    let threads = fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero()));
    let threads = threads.into_iter().flatten().flatten();
    threads.filter_map(|thread| fs::read_to_string(thread.path().join(file)).ok()).collect()
}
