//! The figures of tenants, as shares of the GPU.

use super::mix::{Mix, Tenant};
use anyhow::{Context, Result};
use serde_json::Value;
use std::fmt;
use std::time::Duration;

/// The figures of one tenant.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The tenant.
    pub tenant: Tenant,
    /// Microseconds that one of its kernels takes alone.
    pub alone: f64,
    /// Kernels that were complete in each hundredth of a second.
    pub per_hundredth: Vec<u32>,
    /// All kernels that were complete.
    pub kernels: u64,
    /// Microseconds from one completion to the next, on average.
    pub per_kernel: f64,
    /// Seconds of processor time that its program used.
    pub processor: f64,
    /// The time for which the tenant ran.
    pub seconds: f64,
    /// Microseconds from submission to completion: median, 99th percentile, longest.
    pub latency: [f64; 3],
}

/// The figures of the tenants of a mix.
#[derive(Clone, Debug)]
pub struct Figures {
    /// The mix.
    pub mix: Mix,
    /// The figures of each tenant, in the order of the mix.
    pub outcomes: Vec<Outcome>,
}

impl Outcome {
    /// Reads the figures that the program prints at its end.
    pub(super) fn read(said: &str, tenant: Tenant, alone: f64) -> Result<Self> {
        let said: Value = serde_json::from_str(said)?;
        let per_hundredth = said["per_hundredth"].as_array().context("per_hundredth")?;
        let latency = |key| said["latency_us"][key].as_f64().context("latency_us");
        Ok(Self {
            tenant,
            alone,
            per_hundredth: per_hundredth.iter().filter_map(Value::as_u64).map(|count| count as u32).collect(),
            kernels: said["kernels"].as_u64().context("kernels")?,
            per_kernel: said["per_kernel_us"].as_f64().context("per_kernel_us")?,
            processor: said["processor_seconds"].as_f64().context("processor_seconds")?,
            seconds: said["seconds"].as_f64().context("seconds")?,
            latency: [latency("p50")?, latency("p99")?, latency("max")?],
        })
    }

    /// The figures of a tenant that never completes a kernel.
    pub(super) fn nothing(tenant: Tenant, time: Duration) -> Self {
        let (kernels, per_hundredth, latency) = (0, vec![0; time.as_millis() as usize / 10], [0.0; 3]);
        let (per_kernel, processor) = (0.0, 0.0);
        Self {
            tenant,
            alone: 0.0,
            per_kernel,
            processor,
            per_hundredth,
            kernels,
            seconds: time.as_secs_f64(),
            latency,
        }
    }

    /// The part of the GPU that the tenant had over all the time.
    #[must_use]
    pub fn part(&self) -> f64 {
        self.kernels as f64 * self.alone / (self.seconds * 1e6)
    }

    /// The part of the GPU that the tenant had in each hundredth of a second. The calculation assumes that a kernel ran in the time before it was
    /// complete.
    #[must_use]
    pub fn parts(&self) -> Vec<f64> {
        let mut parts = vec![0.0; self.per_hundredth.len()];
        for (index, &kernels) in self.per_hundredth.iter().enumerate() {
            let hundredths = f64::from(kernels) * self.alone / 1e4;
            let mut left = hundredths;
            for part in parts[..=index].iter_mut().rev() {
                let here = left.min(1.0);
                *part += here;
                left -= here;
                if left <= 0.0 {
                    break;
                }
            }
        }
        parts
    }
}

impl Figures {
    /// The part of the GPU that all tenants had together, relative to the part of a lone tenant.
    #[must_use]
    pub fn utilisation(&self) -> f64 {
        self.outcomes.iter().map(Outcome::part).sum()
    }

    /// The share that each tenant had of the utilisation.
    #[must_use]
    pub fn shares(&self) -> Vec<f64> {
        let all = self.utilisation();
        self.outcomes.iter().map(|outcome| outcome.part() / all).collect()
    }

    /// The share that each tenant should have; only tenants that take all they can get count.
    #[must_use]
    pub fn targets(&self) -> Vec<f64> {
        let weight = |tenant: &Tenant| match tenant.computes() && tenant.class != "background" {
            true => f64::from(tenant.weight),
            false => 0.0,
        };
        let all: f64 = self.mix.tenants.iter().map(weight).sum();
        self.mix.tenants.iter().map(|tenant| weight(tenant) / all).collect()
    }

    /// The largest difference of a share from its target, in points.
    #[must_use]
    pub fn error(&self) -> f64 {
        largest_difference(&self.shares(), &self.targets())
    }

    /// The largest difference of a share from its target in the worst second, in points. The first fifth of a second, in which programs start, and
    /// the last, in which some kernels are not complete, are left out.
    #[must_use]
    pub fn worst_second(&self) -> f64 {
        let parts: Vec<Vec<f64>> = self.outcomes.iter().map(Outcome::parts).collect();
        let hundredths = parts.iter().map(Vec::len).min().unwrap_or_default();
        let starts = (20..hundredths.saturating_sub(119)).step_by(5);
        let errors = starts.map(|start| {
            let sums: Vec<f64> = parts.iter().map(|part| part[start..start + 100].iter().sum()).collect();
            let all: f64 = sums.iter().sum();
            largest_difference(&sums.iter().map(|sum| sum / all).collect::<Vec<_>>(), &self.targets())
        });
        errors.fold(0.0, f64::max)
    }

    /// The smallest share divided by the largest, each in relation to its target.
    #[must_use]
    pub fn min_max(&self) -> f64 {
        let relative = self.shares().into_iter().zip(self.targets()).filter(|(_, target)| *target > 0.0);
        let relative: Vec<f64> = relative.map(|(share, target)| share / target).collect();
        relative.iter().copied().fold(f64::MAX, f64::min) / relative.iter().copied().fold(0.0, f64::max)
    }

    /// The figures as JSON, in one line.
    #[must_use]
    pub fn to_json(&self) -> String {
        let outcomes = self.outcomes.iter().zip(self.shares()).map(|(outcome, share)| {
            serde_json::json!({
                "tenant": outcome.tenant.name, "weight": outcome.tenant.weight, "class": outcome.tenant.class,
                "kernel_us": outcome.tenant.kernel, "alone_us": outcome.alone, "kernels": outcome.kernels,
                "share": share, "part": outcome.part(), "latency_us": outcome.latency, "parts": outcome.parts(),
            })
        });
        let outcomes: Vec<_> = outcomes.collect();
        serde_json::json!({
            "mix": self.mix.name, "utilisation": self.utilisation(), "error": self.error(),
            "worst_second": self.worst_second(), "min_max": self.min_max(), "tenants": outcomes,
        })
        .to_string()
    }
}

fn largest_difference(shares: &[f64], targets: &[f64]) -> f64 {
    shares.iter().zip(targets).map(|(share, target)| (share - target).abs()).fold(0.0, f64::max) * 100.0
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{}: {}\n  utilisation {:.3}, share error {:.1} points, in the worst second {:.1}, min/max {:.3}",
            self.mix.name,
            self.mix.shows,
            self.utilisation(),
            self.error(),
            self.worst_second(),
            self.min_max()
        )?;
        for ((outcome, share), target) in self.outcomes.iter().zip(self.shares()).zip(self.targets()) {
            let Outcome { tenant, alone, kernels, latency: [p50, p99, max], .. } = outcome;
            writeln!(
                f,
                "  {:12} share {:.3} of {target:.3}  {kernels:8} kernels of {alone:9.1} us  latency {:.2} / {:.2} / {:.2} ms",
                tenant.name,
                share,
                p50 / 1e3,
                p99 / 1e3,
                max / 1e3,
            )?;
        }
        Ok(())
    }
}
