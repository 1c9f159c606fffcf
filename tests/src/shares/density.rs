//! Many contexts on one GPU: the part that each gets, and the cost of each.

use super::figures::{Figures, Outcome};
use super::mix::{self, Mix};
use super::tenants::{self, Kernels, Program, Sharing};
use crate::daemon::{Holdings, cpu_time};
use crate::stand::Place;
use anyhow::{Context, Result};
use rustix::process::Pid;
use std::time::Duration;

/// VMs that the contexts are spread over.
const VMS: usize = 4;
/// Microseconds of one kernel of a loaded context.
const KERNEL: u32 = 1000;
/// The time for which idle contexts are looked at.
const IDLE: Duration = Duration::from_secs(5);

/// The figures of a run with many contexts.
#[derive(Clone, Debug)]
pub struct Density {
    /// The figures of the loaded contexts, each as a tenant of equal weight.
    pub figures: Figures,
    /// Idle contexts.
    pub idle: usize,
    /// Averages of a worker whose context is idle: memory of its own in KiB, threads, descriptors.
    pub worker: (u64, usize, usize),
    /// Processor time that all idle workers and the broker's processes use, in milliseconds a second.
    pub idle_processor: f64,
}

impl Density {
    /// The part of the GPU that each VM had, and the ratio of the smallest to the largest part of its contexts.
    #[must_use]
    pub fn by_vm(&self) -> Vec<(f64, f64)> {
        let all = self.figures.utilisation();
        let of_vm = |vm: usize| {
            let parts = self.figures.outcomes.iter().skip(vm).step_by(VMS).map(super::figures::Outcome::part);
            let parts: Vec<f64> = parts.collect();
            let least = parts.iter().copied().fold(f64::MAX, f64::min);
            (parts.iter().sum::<f64>() / all, least / parts.iter().copied().fold(0.0, f64::max))
        };
        (0..VMS).map(of_vm).collect()
    }
}

/// Starts `idle` contexts, measures them, and then runs `loaded` other contexts beside them for some time.
///
/// # Errors
/// A context does not come up, or fails.
pub fn density(
    place: &Place,
    kernels: &mut Kernels,
    loaded: usize,
    idle: usize,
    time: Duration,
) -> Result<Density> {
    let vms = mix::equal(VMS);
    let tenant = mix::tenant("context", 1, KERNEL, 2);
    let size = kernels.size(place, &tenant)?;
    let stand = tenants::start(place, &Sharing::Broker(String::new()), &vms.tenants)?;
    let start = |at: usize| -> Result<Program> {
        let mut program = Program::start(tenants::command(&stand, place, at % VMS)?, &tenant, size)?;
        program.expect_line().with_context(|| format!("context {at} does not come up\n{}", stand.log()))?;
        Ok(program)
    };
    let _idle = (0..idle).map(start).collect::<Result<Vec<_>>>()?;
    std::thread::sleep(Duration::from_secs(2));
    let processes = stand.processes()?;
    let before = used(&processes);
    std::thread::sleep(IDLE);
    let idle_processor = (used(&processes) - before).as_secs_f64() * 1e3 / IDLE.as_secs_f64();
    let workers = stand.workers()?;
    let holdings: Vec<_> = workers.iter().filter_map(|pid| Holdings::of(*pid).ok()).collect();
    let count = holdings.len().max(1);
    let worker = (
        holdings.iter().map(|of| of.anonymous_kib).sum::<u64>() / count as u64,
        holdings.iter().map(|of| of.threads).sum::<usize>() / count,
        holdings.iter().map(|of| of.descriptors).sum::<usize>() / count,
    );
    let mut programs = (0..loaded).map(start).collect::<Result<Vec<_>>>()?;
    let alone = programs.first_mut().context("no context is loaded")?.alone(&tenant)?;
    programs.iter_mut().try_for_each(|program| program.go(time, ""))?;
    let outcomes = programs.iter_mut().map(|program| Outcome::read(&program.expect_line()?, tenant, alone));
    let outcomes = outcomes.collect::<Result<Vec<_>>>().with_context(|| stand.log())?;
    let tenants = vec![tenant; loaded];
    let mix =
        Mix { name: format!("density-{loaded}-{idle}"), shows: "many contexts, kernels of 1 ms", tenants };
    Ok(Density { figures: Figures { mix, outcomes }, idle, worker, idle_processor })
}

fn used(processes: &[Pid]) -> Duration {
    processes.iter().filter_map(|pid| cpu_time(*pid).ok()).sum()
}
