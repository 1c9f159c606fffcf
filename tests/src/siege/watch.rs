//! Watches processes that must not stand still: their holdings, whether they live, and the time for which one of their threads waits in the kernel for
//! anything other than work.

use crate::daemon::{Holdings, is_alive};
use anyhow::Result;
use rustix::process::Pid;
use std::collections::HashMap;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Calls in which a thread waits for work (x86-64): poll, nanosleep, epoll_wait, clock_nanosleep, ppoll, epoll_pwait, epoll_pwait2.
const WAITS_FOR_WORK: [u32; 7] = [7, 35, 232, 230, 271, 281, 441];
/// Calls in which threads beside the first wait for work, too: futex, accept, recvfrom and recvmsg (the frontend's next message), wait4,
/// waitid, accept4.
const HELPER_WAITS: [u32; 7] = [202, 43, 45, 47, 61, 247, 288];

/// The broker's thread that makes processes. The system may take any time to make a process, and no other thread waits for this thread.
const STARTER: &str = "starter";

/// A process that must not stand still.
#[derive(Clone, Debug)]
pub struct Watched {
    /// The name, for the reader of the figures.
    pub name: String,
    /// The process id.
    pub pid: Pid,
}

/// The findings about one process.
#[derive(Clone, Debug)]
pub struct Found {
    /// The process that was watched.
    pub process: Watched,
    /// The process lives at the end.
    pub lives: bool,
    /// Memory of its own, KiB, at the beginning and at the end.
    pub anonymous_kib: [u64; 2],
    /// Open descriptors, at the beginning and at the end.
    pub descriptors: [usize; 2],
    /// The longest time in which one thread did not run and waited in the kernel for anything other than work.
    pub blocked: Duration,
    /// The thread's place then, as `/proc/PID/task/TID/syscall` shows it.
    pub place: String,
}

/// The thread that looks.
pub(super) struct Watch {
    begun: Vec<(Watched, Holdings)>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<HashMap<i32, (Duration, String)>>,
}

impl Watch {
    /// Begins to watch these processes.
    ///
    /// # Errors
    /// One of the processes is not there.
    pub(super) fn start(processes: Vec<Watched>) -> Result<Self> {
        let begun = processes.iter().map(|process| Ok((process.clone(), Holdings::of(process.pid)?)));
        let begun = begun.collect::<Result<Vec<_>>>()?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut looks = Looks::default();
            while !stopped.load(Ordering::Relaxed) {
                processes.iter().for_each(|process| looks.look(process.pid.as_raw_nonzero().get()));
                std::thread::sleep(LOOK_EVERY);
            }
            looks.longest
        });
        Ok(Self { begun, stop, thread })
    }

    /// Ends the watch, and returns the findings.
    pub(super) fn end(self) -> Vec<Found> {
        self.stop.store(true, Ordering::Relaxed);
        let mut longest = self.thread.join().unwrap_or_default();
        let found = self.begun.into_iter().map(|(process, before)| {
            let (lives, after) = (is_alive(process.pid), Holdings::of(process.pid).unwrap_or(before));
            let pid = process.pid.as_raw_nonzero().get();
            let (blocked, place) = longest.remove(&pid).unwrap_or_default();
            let anonymous_kib = [before.anonymous_kib, after.anonymous_kib];
            let descriptors = [before.descriptors, after.descriptors];
            Found { process, lives, anonymous_kib, descriptors, blocked, place }
        });
        found.collect()
    }
}

/// The places where threads were seen, and the times since which they have not run.
#[derive(Default)]
struct Looks {
    seen: HashMap<i32, (String, Instant)>,
    longest: HashMap<i32, (Duration, String)>,
}

impl Looks {
    fn look(&mut self, pid: i32) {
        let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return };
        for thread in threads.flatten() {
            let Some(tid) = thread.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
                continue;
            };
            let read = |name| fs::read_to_string(thread.path().join(name)).unwrap_or_default();
            // The number of times that the thread got a processor is part of the place: a thread that comes back to the same call has run.
            let place = format!("{} {}", read("syscall").trim(), read("schedstat").trim());
            if waits_for_work(&place, pid == tid) || read("comm").trim() == STARTER {
                self.seen.remove(&tid);
                continue;
            }
            let now = Instant::now();
            let (seen, since) = self.seen.entry(tid).or_insert_with(|| (place.clone(), now));
            if *seen != place {
                (*seen, *since) = (place, now);
            } else if since.elapsed() > self.longest.get(&pid).map_or(Duration::ZERO, |longest| longest.0) {
                self.longest.insert(pid, (since.elapsed(), place));
            }
        }
    }
}

/// Returns whether a thread of a process, its first or another, runs or waits for work.
fn waits_for_work(place: &str, is_first: bool) -> bool {
    match place.split(' ').next().unwrap_or_default() {
        "" | "running" => true,
        number => number.parse().is_ok_and(|number| {
            WAITS_FOR_WORK.contains(&number) || (!is_first && HELPER_WAITS.contains(&number))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::eventually;
    use crate::program::LIMIT;
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_that_waits_for_somebody_is_seen() -> Result<()> {
        let mut reader = Command::new("cat").stdin(Stdio::piped()).spawn()?;
        let process = Watched { name: "cat".into(), pid: Pid::from_child(&reader) };
        let mut found = Vec::new();
        // The process has to reach its call first.
        let is_seen = eventually(LIMIT, || {
            let Ok(watch) = Watch::start(vec![process.clone()]) else { return false };
            std::thread::sleep(Duration::from_millis(100));
            found = watch.end();
            // read(2)
            found[0].lives && found[0].place.starts_with("0 ")
        });
        drop(reader.stdin.take());
        reader.wait()?;
        anyhow::ensure!(is_seen, "{found:?}");
        Ok(())
    }
}
