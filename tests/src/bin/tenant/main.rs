//! A program that keeps a GPU busy with kernels of one length and reports the number of complete ones: a tenant of shared GPUs.
//!
//! The program prints "ready" when everything is compiled. Each line on its standard input holds a number of milliseconds. The program runs for this
//! time, as its options say or, if "alone" follows the number, one kernel after the other, and prints one line of JSON: the number of kernels that
//! were complete in each hundredth of a second, and the times of single ones.

#![deny(unsafe_code)]

mod gpu;

use anyhow::{Context, Result};
use clap::Parser;
use gpu::Lane;
use rustix::time::{ClockId, clock_gettime};
use std::io::Write;
use std::time::{Duration, Instant};

#[derive(Debug, Parser)]
#[command(about = "Keeps a GPU busy with kernels of one length and says how many it got done")]
struct Options {
    /// Steps of each invocation: the length of a kernel
    #[arg(long, default_value_t = 10_000)]
    steps: u32,
    /// Words computed, one invocation each: the width of a kernel
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(64..))]
    words: u32,
    /// Kernels submitted and not complete at a time
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1024))]
    in_flight: u32,
    /// Submit one kernel each time so many microseconds have passed, rather than one after the other
    #[arg(long, default_value_t = 0)]
    period: u64,
    /// Microseconds between the end of a kernel and the next submission
    #[arg(long, default_value_t = 0)]
    think: u64,
    /// Submit no work at all, so often as the device takes it
    #[arg(long)]
    empty: bool,
    /// Run no kernel before the line "ready"
    #[arg(long)]
    cold: bool,
    /// Dispatches in each submission
    #[arg(long, default_value_t = 1)]
    dispatches: u32,
}

/// A hundredth of a second.
const BUCKET: Duration = Duration::from_millis(10);

fn main() -> Result<()> {
    let options = Options::parse();
    let words = options.words / tests::looping_shader::GROUP * tests::looping_shader::GROUP;
    let in_flight = options.in_flight.max(ALONE);
    let lane = Lane::open(words, options.steps, in_flight, options.empty, options.dispatches)?;
    if !options.cold {
        lane.submit(0)?;
        lane.wait(0)?;
    }
    say("ready")?;
    for line in std::io::stdin().lines() {
        let line = line?;
        let (milliseconds, alone) = match line.split_once(' ') {
            Some((milliseconds, "alone")) => (milliseconds, true),
            _ => (line.as_str(), false),
        };
        let time = Duration::from_millis(milliseconds.parse().context("how many milliseconds?")?);
        let done = match options.period {
            _ if alone => run(&lane, in_flight, 0, time)?,
            0 => run(&lane, options.in_flight, options.think, time)?,
            period => run_in_time(&lane, period, time)?,
        };
        say(&done.to_json())?;
    }
    Ok(())
}

/// Least number of kernels in flight with which a lone tenant uses the whole GPU.
const ALONE: u32 = 2;

fn say(line: &str) -> Result<()> {
    let mut out = std::io::stdout();
    writeln!(out, "{line}")?;
    out.flush().context("standard output")
}

/// The work that was done in a run.
struct Done {
    buckets: Vec<u32>,
    /// Nanoseconds from submission to completion.
    latencies: Vec<u64>,
    /// The time of the first completion, and that of the last (`last`), since the start.
    first: Option<Duration>,
    last: Duration,
    seconds: f64,
    /// Processor time of this process when it began.
    processor: Duration,
}

fn processor_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default()
}

impl Done {
    fn new(time: Duration) -> Self {
        let count = time.as_millis().div_ceil(BUCKET.as_millis()) as usize;
        Self {
            buckets: vec![0; count],
            latencies: Vec::new(),
            first: None,
            last: Duration::ZERO,
            seconds: time.as_secs_f64(),
            processor: processor_time(),
        }
    }

    fn note(&mut self, since_start: Duration, latency: Duration) {
        if let Some(bucket) = self.buckets.get_mut((since_start.as_millis() / BUCKET.as_millis()) as usize) {
            *bucket += 1;
            self.first.get_or_insert(since_start);
            self.last = since_start;
            self.latencies.push(latency.as_nanos() as u64);
        }
    }

    fn to_json(&self) -> String {
        let mut sorted = self.latencies.clone();
        sorted.sort_unstable();
        let at = |part: f64| {
            let index = ((sorted.len() as f64 * part) as usize).min(sorted.len().saturating_sub(1));
            sorted.get(index).copied().unwrap_or_default() / 1000
        };
        let kernels: u64 = self.buckets.iter().map(|&count| u64::from(count)).sum();
        let between = self.last.saturating_sub(self.first.unwrap_or_default()).as_secs_f64() * 1e6;
        let processor = (processor_time() - self.processor).as_secs_f64();
        let per_kernel = between / kernels.saturating_sub(1).max(1) as f64;
        format!(
            r#"{{"kernels":{kernels},"per_kernel_us":{per_kernel},"processor_seconds":{processor},"seconds":{},"per_hundredth":{:?},"latency_us":{{"p50":{},"p99":{},"max":{}}}}}"#,
            self.seconds,
            self.buckets,
            at(0.5),
            at(0.99),
            at(1.0)
        )
    }
}

/// Runs one kernel after the other, with `in_flight` of them in flight.
fn run(lane: &Lane, in_flight: u32, think: u64, time: Duration) -> Result<Done> {
    let mut done = Done::new(time);
    let start = Instant::now();
    let mut begun = Vec::new();
    for slot in 0..in_flight {
        lane.submit(slot)?;
        begun.push(Instant::now());
    }
    while start.elapsed() < time {
        for slot in 0..in_flight {
            lane.wait(slot)?;
            done.note(start.elapsed(), begun[slot as usize].elapsed());
            if think > 0 {
                std::thread::sleep(Duration::from_micros(think));
            }
            begun[slot as usize] = Instant::now();
            lane.submit(slot)?;
        }
    }
    for slot in 0..in_flight {
        lane.wait(slot)?;
    }
    Ok(done)
}

/// Runs one kernel in each period, or as soon as the one before is complete.
fn run_in_time(lane: &Lane, period: u64, time: Duration) -> Result<Done> {
    let mut done = Done::new(time);
    let start = Instant::now();
    let mut due = Duration::ZERO;
    while due < time {
        if let Some(left) = due.checked_sub(start.elapsed()) {
            std::thread::sleep(left);
        }
        let begun = Instant::now();
        lane.submit(0)?;
        lane.wait(0)?;
        done.note(start.elapsed(), begun.elapsed());
        due = (due + Duration::from_micros(period)).max(start.elapsed());
    }
    Ok(done)
}
