//! Measures that grow with the number of objects: the first of many, the last, and a submission beside all of them.

use super::Bench;
use crate::memory::{Buffer, Kind};
use crate::samples::Samples;
use anyhow::Result;
use std::time::{Duration, Instant};

/// Parts of the whole that the first and the last are taken from.
const PARTS: usize = 10;

impl Bench<'_> {
    /// Creates `count` buffers without memory. Measures the nanoseconds for one of the first tenth and for one of the last tenth, and for a
    /// small submission before and beside them.
    pub(super) fn many_objects(&self, count: usize, time: Duration) -> Result<String> {
        let before = self.median_of_dispatch(time)?;
        let mut objects = Vec::new();
        let each = |objects: &mut Vec<_>, count: usize| -> Result<f64> {
            let begun = Instant::now();
            for _ in 0..count {
                objects.push(self.gpu.bare_buffer(4096)?);
            }
            // The time includes commands that the driver has sent without waiting for them.
            self.gpu.round_trip()?;
            Ok(begun.elapsed().as_nanos() as f64 / count as f64)
        };
        let first = each(&mut objects, count / PARTS)?;
        each(&mut objects, count - 2 * (count / PARTS))?;
        let last = each(&mut objects, count / PARTS)?;
        let beside = self.median_of_dispatch(time)?;
        Ok(serde_json::json!({ "count": objects.len(), "first": first, "last": last, "before": before, "beside": beside })
            .to_string())
    }

    /// Makes `count` mapped allocations of `bytes` bytes each, or as many as the device allows.
    pub(super) fn many_maps(&self, count: usize, bytes: u64) -> Result<String> {
        let (mut mapped, mut taken, mut limit) = (Vec::<Buffer<'_>>::new(), Vec::new(), None);
        while mapped.len() < count {
            let begun = Instant::now();
            match self.gpu.buffer(Kind::Host, bytes) {
                Ok(buffer) => mapped.push(buffer),
                Err(error) => {
                    limit = Some(format!("{error:#}"));
                    break;
                }
            }
            taken.push(begun.elapsed().as_nanos() as f64);
        }
        let part = (taken.len() / PARTS).max(1);
        let mean = |taken: &[f64]| taken.iter().sum::<f64>() / taken.len().max(1) as f64;
        let (first, last) =
            (mean(&taken[..part.min(taken.len())]), mean(&taken[taken.len().saturating_sub(part)..]));
        let beside = self.median_of_dispatch(Duration::from_millis(100))?;
        Ok(serde_json::json!({ "count": mapped.len(), "limit": limit, "first": first, "last": last, "beside": beside })
            .to_string())
    }

    fn median_of_dispatch(&self, time: Duration) -> Result<f64> {
        let (pipeline, fence) = (self.small.pipeline(3, 1)?, self.gpu.fence()?);
        let commands = self.small.dispatch(&pipeline)?;
        Ok(Samples::new(time).repeat(|| self.gpu.run(&commands.handles, &fence))?.median())
    }
}
