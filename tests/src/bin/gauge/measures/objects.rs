//! Objects that are made and destroyed: buffers with memory, and pipelines.
//!
//! A driver in a guest may return from a call before the host has executed it. So a measure ends when all work is done or, on request, with the call.

use super::{Bench, missing};
use crate::kernel::Pipeline;
use crate::memory::Kind;
use crate::samples::Samples;
use anyhow::{Context, Result};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

impl Bench<'_> {
    /// A buffer and its memory: made, mapped if it is the host's, and freed.
    pub(super) fn allocate(&self, kind: Kind, bytes: u64, done: bool, time: Duration) -> Result<String> {
        let Some(_) = self.gpu.memory_type(kind) else { return missing("memory of this kind") };
        let once = || {
            drop(self.gpu.buffer(kind, bytes)?);
            if done { self.gpu.round_trip() } else { Ok(()) }
        };
        Ok(Samples::new(time).repeat(once)?.to_json(1))
    }

    /// Makes `count` pipelines on `threads` threads, each compiled for the first time, and measures the time for all of them. The time to make their
    /// parts and to destroy the pipelines does not count.
    pub(super) fn pipelines(&self, count: u32, threads: u32, done: bool, time: Duration) -> Result<String> {
        let mut samples = Samples::new(time).at_least(1);
        while samples.more() {
            let made = samples.time(|| {
                let made = match threads {
                    1 => self.compile(count)?,
                    _ => self.compile_on_threads(count / threads, threads)?,
                };
                if done {
                    self.gpu.round_trip()?;
                }
                Ok(made)
            })?;
            drop(made);
            self.gpu.round_trip()?;
        }
        Ok(samples.to_json(1))
    }

    fn compile(&self, count: u32) -> Result<Vec<Pipeline<'_>>> {
        (0..count).map(|_| self.small.pipeline(unseen(), 2)).collect()
    }

    fn compile_on_threads(&self, count: u32, threads: u32) -> Result<Vec<Pipeline<'_>>> {
        thread::scope(|scope| {
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(|| self.compile(count))).collect();
            let mut made = Vec::new();
            for thread in threads {
                made.extend(thread.join().ok().context("a thread has panicked")??);
            }
            Ok(made)
        })
    }
}

/// A constant that no driver has in a cache, neither from this process nor from an earlier one.
fn unseen() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let _ = NEXT.compare_exchange(0, seed(), Ordering::Relaxed, Ordering::Relaxed);
    NEXT.fetch_add(2, Ordering::Relaxed) | 1
}

fn seed() -> u32 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (now.as_nanos() as u64 >> 10) as u32 | 1
}
