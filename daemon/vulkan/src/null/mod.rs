//! A Vulkan driver that does nothing, and renderers on it: for fuzzing, for the count of instructions, and for tests.
//!
//! `driver` has the functions, which panic when they get a handle that they have not made, or that is destroyed; in a run that measures they check
//! nothing. `state` knows the handles, `queue` the fences and semaphores, and the others the rest of a device: `memory`, `exports`, `external`,
//! `addresses`, `caches`. `allowance` and `deposits` stand for the device process. There is one such driver in a process.

#[allow(clippy::multiple_unsafe_ops_per_block, reason = "one promise covers the parameters of a function")]
mod addresses;
mod allowance;
mod caches;
mod deposits;
#[allow(clippy::multiple_unsafe_ops_per_block, reason = "one promise covers the parameters of a function")]
mod driver;
#[cfg(test)]
#[allow(clippy::multiple_unsafe_ops_per_block, reason = "one promise covers the parameters of a function")]
mod exports;
mod external;
#[cfg(test)]
mod memory;
#[allow(clippy::multiple_unsafe_ops_per_block, reason = "one promise covers the parameters of a function")]
mod queue;
mod state;
#[cfg(test)]
pub(crate) mod world_for_tests;

use crate::execution::context::Environment;
use crate::{Renderer, ResourceTable};
pub(crate) use allowance::Allowed;
pub use allowance::NoResources;
#[cfg(test)]
pub(crate) use caches::{EMPTY, REFUSED, data_of, used};
use config::{
    CacheKey, ContextLimits, DriverMapped, GpuChoice, MemoryBackEnd, MemoryTrial, Protection, Queues,
    ShaderLimits,
};
#[cfg(test)]
pub(crate) use deposits::{closings, count as deposits, files_of};
#[cfg(test)]
pub(crate) use exports::{be_scarce, have_to_spare, imports, refuse_exports};
#[cfg(test)]
pub(crate) use memory::{contents, fills};
use rustix::fs::makedev;
#[cfg(test)]
pub use state::at_barriers;
pub use state::{Exclusive, live};
#[cfg(test)]
pub(crate) use state::{RESULTS, address, lose_devices, release, stall};
pub(crate) use state::{begin as begin_strict, is_tight, leak, rely, run};
use std::sync::Arc;
#[cfg(test)]
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Limits that are small enough for a fuzzer to reach them.
pub const LIMITS: ContextLimits = ContextLimits {
    pipeline_time: Duration::MAX,
    device_memory: u64::MAX,
    host_memory: u64::MAX,
    objects: 512,
    shader_bytes: 1 << 20,
    retired: 64,
    rings: 4,
    command_bytes: 1 << 20,
    arena_bytes: 16 << 20,
    recording_bytes: 1 << 20,
    submissions: 64,
    shaders: ShaderLimits::DEFAULT,
};

/// The key of pipeline caches.
pub const CACHE_KEY: CacheKey = CacheKey([0; 32]);

/// Takes the null driver, the only one in a process, for a whole run; creations fail as `seed` says. A context may be lost at any moment, so objects
/// may be left at the end.
pub fn begin(seed: u64) -> Exclusive {
    let exclusive = state::begin(seed);
    state::leak();
    exclusive
}

/// Takes the null driver for a run in which nothing fails; objects may be left at the end.
#[cfg(test)]
pub fn begin_reliable() -> Exclusive {
    let exclusive = begin(0);
    state::rely();
    exclusive
}

/// Takes the null driver for a run that measures: the driver checks nothing, and nothing fails.
pub fn begin_trusting() -> Exclusive {
    let exclusive = state::begin(0);
    state::trust();
    exclusive
}

/// The number of calls of the driver in such runs.
pub fn calls() -> u64 {
    state::calls()
}

/// The number of instances that were made, and the names that the last one's program gave: its own and its engine's.
#[cfg(test)]
pub fn programs() -> (usize, [Option<std::ffi::CString>; 2]) {
    driver::PROGRAMS.lock().clone()
}

/// Makes the driver refuse instances that are newer than `version` from now on.
#[cfg(test)]
pub fn refuse_newer_instances(version: u32) {
    state::NEWEST_INSTANCE.store(version, Ordering::Relaxed);
}

/// Makes results of queries available up to this query, and no others.
#[cfg(test)]
pub fn make_available(queries: u32) {
    state::AVAILABLE.store(queries, Ordering::Relaxed);
}

/// The GPUs of the null driver, not in its own order.
pub fn gpus() -> Vec<GpuChoice> {
    let gpu = |uuid| GpuChoice {
        uuid,
        memory: MemoryBackEnd::Memfd,
        trial: MemoryTrial {
            mappable_types: 2,
            shareable: true,
            driver_mapped: DriverMapped { types: 4, device: makedev(1, 5) },
            exportable_types: 0,
        },
        queues: Queues::All,
        // Memory of the null driver is no real memory, so there is nothing to clear.
        protection: Protection { zero_memory: false, ..Protection::default() },
    };
    driver::UUIDS.into_iter().rev().map(gpu).collect()
}

/// A renderer on GPUs of the null driver, which was taken with [`begin`].
pub(crate) fn renderer_on(
    gpus: Vec<GpuChoice>,
    limits: ContextLimits,
    resources: Arc<dyn ResourceTable>,
) -> Renderer {
    let allowance = Arc::new(Allowed);
    Renderer::on(Environment::new(driver::entry(), gpus, limits, CACHE_KEY, resources, allowance))
}

/// A renderer on the null driver, which was taken with [`begin`].
pub fn renderer(resources: Arc<dyn ResourceTable>) -> Renderer {
    renderer_within(LIMITS, resources)
}

/// A renderer like that of [`renderer`], with other limits.
pub fn renderer_within(limits: ContextLimits, resources: Arc<dyn ResourceTable>) -> Renderer {
    renderer_on(gpus(), limits, resources)
}

/// A renderer like that of [`renderer`], whose devices have a queue of ours, which clears and copies memory.
#[cfg(test)]
pub fn renderer_that_clears(limits: ContextLimits) -> Renderer {
    let mut gpus = gpus();
    gpus.iter_mut().for_each(|gpu| gpu.protection.zero_memory = true);
    renderer_on(gpus, limits, Arc::new(NoResources))
}

/// A renderer like that of [`renderer_that_clears`], whose driver gives memory of the first type to others, and maps none.
#[cfg(test)]
pub fn renderer_that_exports(limits: ContextLimits) -> Renderer {
    let mut gpus = gpus();
    for gpu in &mut gpus {
        gpu.protection.zero_memory = true;
        (gpu.trial.driver_mapped, gpu.trial.exportable_types) = (DriverMapped::default(), 1);
    }
    renderer_on(gpus, limits, Arc::new(NoResources))
}

/// A renderer like that of [`renderer`], of a VM whose programs can get another worker.
#[cfg(test)]
pub fn renderer_that_is_movable(limits: ContextLimits) -> Renderer {
    let mut gpus = gpus();
    for gpu in &mut gpus {
        (gpu.protection.movable, gpu.trial.driver_mapped) = (true, DriverMapped::default());
    }
    renderer_on(gpus, limits, Arc::new(NoResources))
}

/// Makes the driver say from now on that addresses cannot be captured.
#[cfg(test)]
pub fn refuse_replays() {
    state::REPLAYS.store(false, Ordering::Relaxed);
}

/// Returns whether a refusal or failure was not reported to the guest yet; commands that name the failed object then cost less.
pub fn has_failed(renderer: &Renderer) -> bool {
    renderer.context().failures.take().is_some()
}
