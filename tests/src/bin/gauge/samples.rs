//! The time that each of many repetitions took, and the figures that are reported of it. This module knows nothing of Vulkan.

use anyhow::Result;
use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

/// Measurements that are taken until their time is over.
pub(crate) struct Samples {
    start: Instant,
    limit: Duration,
    least: usize,
    nanoseconds: Vec<u64>,
    processor: Duration,
    sleeps: Option<u64>,
}

/// The least number of samples, however long they take, unless stated otherwise.
const LEAST: usize = 3;

impl Samples {
    /// Begins measurements that are taken for `limit`.
    pub(crate) fn new(limit: Duration) -> Self {
        let (processor, sleeps) = (processor_time(), sleeps());
        Self { start: Instant::now(), limit, least: LEAST, nanoseconds: Vec::new(), processor, sleeps }
    }

    /// Sets the number of samples that are taken at least.
    pub(crate) fn at_least(self, least: usize) -> Self {
        Self { least, ..self }
    }

    /// Returns whether another sample is to be taken: the time is not over, or samples are missing.
    pub(crate) fn more(&self) -> bool {
        self.nanoseconds.len() < self.least || self.start.elapsed() < self.limit
    }

    /// Notes a sample that took this long.
    pub(crate) fn note(&mut self, taken: Duration) {
        self.nanoseconds.push(taken.as_nanos() as u64);
    }

    /// Runs `what`, and notes its time.
    pub(crate) fn time<T>(&mut self, what: impl FnOnce() -> Result<T>) -> Result<T> {
        let begun = Instant::now();
        let made = what()?;
        self.note(begun.elapsed());
        Ok(made)
    }

    /// Runs `what` until the time is over, and notes the time of each run.
    pub(crate) fn repeat(mut self, mut what: impl FnMut() -> Result<()>) -> Result<Self> {
        while self.more() {
            self.time(&mut what)?;
        }
        Ok(self)
    }

    /// The median, in nanoseconds.
    pub(crate) fn median(&self) -> f64 {
        let mut sorted = self.nanoseconds.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).copied().unwrap_or_default() as f64
    }

    /// One line of JSON, of `parts` equal parts of each sample. Times are in nanoseconds. Processor time is that of the process, sleeps are those of
    /// the calling thread; both are sums and include the time between the samples.
    pub(crate) fn to_json(&self, parts: u64) -> String {
        let mut sorted = self.nanoseconds.clone();
        sorted.sort_unstable();
        let at = |part: f64| {
            let index = ((sorted.len() as f64 * part) as usize).min(sorted.len().saturating_sub(1));
            sorted.get(index).copied().unwrap_or_default() as f64 / parts as f64
        };
        let mean = sorted.iter().sum::<u64>() as f64 / sorted.len().max(1) as f64 / parts as f64;
        serde_json::json!({
            "count": sorted.len(), "mean": mean, "min": at(0.0), "p10": at(0.1), "p25": at(0.25), "median": at(0.5),
            "p75": at(0.75), "p90": at(0.9), "p99": at(0.99), "seconds": self.start.elapsed().as_secs_f64(),
            "processor_seconds": (processor_time() - self.processor).as_secs_f64(),
            "sleeps": sleeps().zip(self.sleeps).map(|(now, before)| now - before),
        })
        .to_string()
    }
}

fn processor_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default()
}

/// Returns how often this thread has slept until now, if the kernel counts this.
fn sleeps() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/thread-self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
    line.trim().parse().ok()
}
