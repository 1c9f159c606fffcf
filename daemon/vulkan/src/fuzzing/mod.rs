//! Entry point for fuzzing the execution of commands: hostile streams against a driver that does nothing but looks closely. Where
//! instructions are counted the same driver looks at nothing.
//!
//! Everything from the decoder's values to the reply runs as in a worker: lowering, the object table with its tombstones, spoilt
//! recordings, pools, memory, raising. The driver (`null_driver`) panics when it is given a handle that it has not made, or not any more,
//! and when something is left in the end.

#[allow(clippy::multiple_unsafe_ops_per_block, reason = "one promise covers the parameters of a function")]
mod null_addresses;
#[allow(clippy::multiple_unsafe_ops_per_block, reason = "one promise covers the parameters of a function")]
mod null_driver;
#[cfg(test)]
#[allow(clippy::multiple_unsafe_ops_per_block, reason = "one promise covers the parameters of a function")]
mod null_exports;
mod null_external;
#[cfg(test)]
mod null_memory;
mod null_state;
mod stream;
#[cfg(test)]
pub(super) mod world_for_tests;

use super::context::error::ContextLost;
use super::execution::context::Environment;
use super::snapshot::step::Step;
use super::snapshot::{Carry, Prelude};
use super::{
    Allowance, Asked, Cancel, HeapBudget, Interrupted, Lease, MemoryFile, Piece, Renderer, ResourceMemory,
    ResourceTable,
};
use config::{
    CacheKey, ContextLimits, DriverMapped, GpuChoice, Heap, MemoryBackEnd, MemoryId, MemoryTrial, PerHeap,
    Protection, Queues, ShaderLimits,
};
#[cfg(test)]
pub(super) use null_exports::{imports, refuse_exports};
#[cfg(test)]
pub(super) use null_memory::{contents, fills};
#[cfg(test)]
pub use null_state::at_barriers;
pub use null_state::{Exclusive, live};
#[cfg(test)]
pub(super) use null_state::{RESULTS, address, release, stall};
use protocol::cursor::{Arena, Limits, Reader, Writer};
use protocol::venus::generated::Command;
use protocol::venus::stream::Header;
use rustix::fs::makedev;
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use stream::Composer;

/// Limits that are small enough for a fuzzer to reach them.
pub const LIMITS: ContextLimits = ContextLimits {
    pipeline_time: std::time::Duration::MAX,
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

/// Bytes of the reply window.
const REPLY_BYTES: usize = 64 << 10;

/// Commands of one input: a fuzzer gains nothing from more.
const COMMANDS_MAX: usize = 4096;

/// Executes what the bytes stand for and answers how many commands were executed without an error. The first byte says what follows: a
/// stream as it is, where an error ends the context as it does in a worker; or a recipe, of which commands are composed that can be
/// executed mostly (see `stream`).
pub fn fuzz_execute(bytes: &[u8]) -> usize {
    let Some((&mode, bytes)) = bytes.split_first() else { return 0 };
    let (&seed, bytes) = bytes.split_first_chunk::<8>().unwrap_or((&[0; 8], bytes));
    let _exclusive = null_state::begin(u64::from_le_bytes(seed));
    let world = World::new(if mode & 2 == 0 { Queues::All } else { Queues::Compute });
    let executed = if mode & 1 == 0 { world.run_stream(bytes) } else { world.run_recipe(bytes) };
    world.hand_over();
    world.renderer.destroy_objects();
    drop(world);
    assert!(!null_state::is_tight() || null_state::live() == 0, "{} objects are left", null_state::live());
    executed
}

/// Takes the null driver, which there is once in a process, for a whole run; creations fail as `seed` says. A context may be lost at any
/// moment, so objects may stay behind.
pub fn begin(seed: u64) -> Exclusive {
    let exclusive = null_state::begin(seed);
    null_state::leak();
    exclusive
}

/// Takes the null driver for a run in which nothing fails; objects may stay behind.
#[cfg(test)]
pub fn begin_reliable() -> Exclusive {
    let exclusive = begin(0);
    null_state::rely();
    exclusive
}

/// Takes the null driver for a run that measures: it looks at nothing, and nothing fails.
pub fn begin_trusting() -> Exclusive {
    let exclusive = null_state::begin(0);
    null_state::trust();
    exclusive
}

/// The number of calls of the driver in such runs.
pub fn calls() -> u64 {
    null_state::calls()
}

/// The number of instances that were made, and the names that the last one's program gave: its own and its engine's.
#[cfg(test)]
pub fn programs() -> (usize, [Option<std::ffi::CString>; 2]) {
    null_driver::PROGRAMS.lock().clone()
}

/// Makes the driver refuse instances that are newer than `version` from now on.
#[cfg(test)]
pub fn refuse_newer_instances(version: u32) {
    null_state::NEWEST_INSTANCE.store(version, Ordering::Relaxed);
}

/// Makes results of queries available up to this query, and no others.
#[cfg(test)]
pub fn make_available(queries: u32) {
    null_state::AVAILABLE.store(queries, Ordering::Relaxed);
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
        // Memory of the null driver is none: there is nothing to clear.
        protection: Protection { zero_memory: false, ..Protection::default() },
    };
    null_driver::UUIDS.into_iter().rev().map(gpu).collect()
}

fn renderer_on(gpus: Vec<GpuChoice>, limits: ContextLimits, resources: Arc<dyn ResourceTable>) -> Renderer {
    let allowance = Arc::new(Allowed);
    Renderer::on(Environment::new(null_driver::entry(), gpus, limits, CACHE_KEY, resources, allowance))
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
    null_state::REPLAYS.store(false, Ordering::Relaxed);
}

/// Returns whether something was refused or failed that the guest has not heard of, which makes all that names it cost less.
pub fn has_failed(renderer: &Renderer) -> bool {
    renderer.context().failures.take().is_some()
}

/// Grants each request for memory, but for much at once, or while waits are interrupted.
struct Allowed;

fn uninterrupted(cancel: &Cancel) -> Result<(), Interrupted> {
    if cancel.is_interrupted() { Err(Interrupted) } else { Ok(()) }
}

const ALLOWED_MAX: u64 = 1 << 30;

impl Allowance for Allowed {
    fn pages(&self, size: u64, cancel: &Cancel) -> Asked<MemoryFile> {
        uninterrupted(cancel)?;
        let size = Some(size).filter(|size| *size <= ALLOWED_MAX);
        let file = size.and_then(|size| shm::create("fuzz", size).ok());
        Ok(file.map(|file| MemoryFile::new(file, Piece::uncounted())))
    }

    fn piece(&self, _: Heap, bytes: u64, cancel: &Cancel) -> Asked<Piece> {
        uninterrupted(cancel)?;
        static PIECES: AtomicU64 = AtomicU64::new(1);
        let piece = || Piece::new(MemoryId(PIECES.fetch_add(1, Ordering::Relaxed)), Lease::new(|| ()));
        Ok((bytes <= ALLOWED_MAX).then(piece))
    }

    fn credit(&self, _: Heap, bytes: u64, cancel: &Cancel) -> Asked<Lease> {
        uninterrupted(cancel)?;
        Ok((bytes <= ALLOWED_MAX).then(|| Lease::new(|| ())))
    }

    fn budget(&self, cancel: &Cancel) -> Asked<PerHeap<HeapBudget>> {
        uninterrupted(cancel)?;
        Ok(Some(PerHeap::each(|_| HeapBudget { used: 0, most: ALLOWED_MAX })))
    }

    fn caught_up(&self, cancel: &Cancel) -> Asked<()> {
        uninterrupted(cancel)?;
        Ok(Some(()))
    }

    fn reached(&self, _: &'static str) {}

    fn shader_refused(&self, _: &dyn std::fmt::Display) {}

    fn undrawn(&self) {}

    fn overdue(&self, _: &'static str, _: bool) {}
}

/// The number of contexts that were written down and built up.
static HANDED_OVER: AtomicU64 = AtomicU64::new(0);

/// Returns steps as another snapshot of the same has them, too: at any address.
pub(super) fn comparable(steps: &[Step]) -> Vec<Step> {
    let mut steps = steps.to_vec();
    for step in &mut steps {
        if let Step::Memory { address, .. } = step {
            *address = 0;
        }
    }
    steps
}

/// Returns the steps of a context that executed what the bytes stand for, as [`fuzz_execute`] does; none if it cannot be written down.
pub fn steps_of(bytes: &[u8]) -> Option<Vec<Step>> {
    let _exclusive = begin(0);
    null_state::rely();
    let world = World::new(Queues::All);
    world.run_recipe(bytes);
    let steps =
        if world.is_over.get() { None } else { world.renderer.save(&Prelude::default(), Carry::Copied).ok() };
    let steps = steps.map(|saved| comparable(&saved.steps));
    world.renderer.destroy_objects();
    steps
}

/// Rebuilds a context from any steps. Returns whether they make sense.
pub fn fuzz_rebuild(steps: &[Step]) -> bool {
    let _exclusive = begin(0);
    null_state::rely();
    let file = |size| Allowed.pages(size, &Cancel::default()).ok().flatten().map(Arc::new);
    let files: Vec<_> = [1 << 12, 1 << 16, 1 << 20].into_iter().filter_map(file).collect();
    let renderer = renderer(Arc::new(NoResources));
    let rebuilt = renderer.rebuild(steps, &files).is_ok();
    if rebuilt {
        // Whether it can be saved again is up to what it consists of.
        let _ = renderer.save(&Prelude::default(), Carry::Copied);
    }
    renderer.destroy_objects();
    rebuilt
}

/// A context.
struct World {
    renderer: Renderer,
    cancel: Cancel,
    reply: RefCell<Vec<u8>>,
    /// A command has ended the context and left something behind: a worker would be gone, and nothing would be saved.
    is_over: Cell<bool>,
    /// The parts of the prelude that were written.
    prelude: RefCell<(Vec<Step>, Prelude)>,
}

impl World {
    fn new(queues: Queues) -> Self {
        let mut gpus = gpus();
        gpus.iter_mut().for_each(|gpu| gpu.queues = queues);
        let renderer = renderer_on(gpus, LIMITS, Arc::new(NoResources));
        let cancel = Cancel::default();
        // Waits answer at once.
        cancel.cancel();
        let reply = RefCell::new(vec![0; REPLY_BYTES]);
        Self { renderer, cancel, reply, is_over: Cell::new(false), prelude: RefCell::default() }
    }

    fn run_stream(&self, mut bytes: &[u8]) -> usize {
        let mut arena = Arena::new(LIMITS.arena_bytes);
        let mut executed = 0;
        while !bytes.is_empty() && executed < COMMANDS_MAX {
            // Its waits are cancelled, and recording must not be.
            let Ok(recorded) = self.renderer.record(bytes, &mut arena, &Cancel::default()) else { break };
            let executed_first = || self.execute(bytes, &arena).ok();
            let Some(length) = Some(recorded).filter(|bytes| *bytes > 0).or_else(executed_first) else {
                break;
            };
            assert!((1..=bytes.len()).contains(&length), "a command of {length} bytes");
            assert!(arena.allocated_bytes() <= LIMITS.arena_bytes);
            bytes = &bytes[length..];
            arena.reset();
            executed += 1;
            self.write_prelude(executed);
        }
        executed
    }

    fn run_recipe(&self, bytes: &[u8]) -> usize {
        let mut composer = Composer::new(bytes);
        let mut executed = 0;
        while let Some(()) = composer.next(self)
            && executed < COMMANDS_MAX
        {
            executed += usize::from(composer.execute(self));
            self.write_prelude(executed);
        }
        executed
    }

    /// Writes the next part of the prelude after some of the commands.
    fn write_prelude(&self, executed: usize) {
        if !executed.is_power_of_two() {
            return;
        }
        let mut so_far = self.prelude.borrow_mut();
        let (ahead, prelude) = &mut *so_far;
        if let Ok((more, with_more)) = self.renderer.save_prelude(prelude) {
            ahead.extend(more);
            *prelude = with_more;
        }
    }

    /// Writes the context down, if it can be, and builds it up a second time, which must come out the same.
    fn hand_over(&self) {
        if self.is_over.get() {
            return;
        }
        let Ok(saved) = self.renderer.save(&Prelude::default(), Carry::Copied) else { return };
        null_state::rely();
        let context = self.renderer.context();
        let second = renderer_on(context.env.gpus.clone(), LIMITS, Arc::new(NoResources));
        // The first context has its addresses still.
        let first = comparable(&saved.steps);
        let rebuilt = second.rebuild(&first, &saved.files);
        assert_eq!(rebuilt, Ok(()), "of {first:#?}");
        let again = second.save(&Prelude::default(), Carry::Copied);
        let steps = again.as_ref().map(|again| comparable(&again.steps));
        assert_eq!(steps, Ok(first));
        second.destroy_objects();
        self.hand_over_behind_prelude(&comparable(&saved.steps));
        HANDED_OVER.fetch_add(1, Ordering::Relaxed);
    }

    /// Builds the context up once more, behind the prelude, which must make no difference but to the order of commands.
    fn hand_over_behind_prelude(&self, all: &[Step]) {
        let (ahead, prelude) = self.prelude.take();
        let rest = self.renderer.save(&prelude, Carry::Copied).expect("it could be without");
        let context = self.renderer.context();
        let third = renderer_on(context.env.gpus.clone(), LIMITS, Arc::new(NoResources));
        assert_eq!(third.rebuild(&ahead, &[]), Ok(()), "of {ahead:#?}");
        let steps = comparable(&rest.steps);
        assert_eq!(third.rebuild(&steps, &rest.files), Ok(()), "of {steps:#?} behind {ahead:#?}");
        let again = third.save(&Prelude::default(), Carry::Copied).map(|again| comparable(&again.steps));
        // GPUs come first, as they are in the prelude.
        let beside_commands = |steps: &[Step]| {
            let others = steps.iter().filter(|step| !matches!(step, Step::Commands(_))).cloned();
            others.partition::<Vec<_>, _>(|step| matches!(step, Step::Gpus(_)))
        };
        assert_eq!(again.as_deref().map(beside_commands), Ok(beside_commands(all)));
        third.destroy_objects();
    }

    /// Decodes and executes the first command and answers its length.
    fn execute(&self, bytes: &[u8], arena: &Arena) -> Result<usize, ContextLost> {
        let limits = Limits { out_budget: REPLY_BYTES as u64, ..Limits::default() };
        let mut reader = Reader::with_limits(bytes, arena, limits);
        let header = Header::decode(&mut reader)?;
        let command = Command::decode(header.number, &mut reader)?;
        let length = reader.offset();
        let before = null_state::live();
        let objects = || self.renderer.context().objects.read().count();
        let objects_before = objects();
        let mut room = self.reply.borrow_mut();
        let mut writer = Writer::window(&mut room);
        let window = header.wants_reply().then_some(&mut writer);
        let outcome = self.renderer.execute(&command, &bytes[..length], arena, &self.cancel, window);
        // What was kept may have been freed to make room.
        let frees = matches!(command, Command::AllocateMemory(_));
        // A queue is bound to its timeline before its id is looked at.
        if outcome.is_err() && (objects() != objects_before || matches!(command, Command::GetDeviceQueue2(_)))
        {
            self.is_over.set(true);
        }
        if outcome.is_err() && (frees || null_state::live() > before) {
            // An error in the middle of a command ends the context, and with the process all that is in no table any more.
            null_state::leak();
        }
        outcome?;
        writer.finish().map_err(|error| ContextLost::new(error.to_string()))?;
        Ok(length)
    }
}

/// The resources of a context with which no other context shares anything.
pub struct NoResources;

impl ResourceTable for NoResources {
    fn device_memory(&self, _: u32, cancel: &Cancel) -> Result<Option<Arc<ResourceMemory>>, Interrupted> {
        uninterrupted(cancel).map(|()| None)
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    /// Any bytes, the same in every run (splitmix64), as a recipe.
    fn recipe(seed: u64) -> Vec<u8> {
        let words = (1..=512).map(|at| {
            let mixed = (seed << 32).wrapping_add(at).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed ^ (mixed >> 31)
        });
        [1].into_iter().chain(words.flat_map(u64::to_le_bytes)).collect()
    }

    #[test]
    fn committed_streams_are_executed() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/venus_execute");
        let files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        let committed = files.iter().map(|file| fs::read(file).unwrap());
        let executed: usize =
            committed.chain((0..300).map(recipe)).map(|bytes| super::fuzz_execute(&bytes)).sum();
        assert!(executed > 500, "only {executed} commands of the seeds are executed");
        let handed_over = super::HANDED_OVER.load(std::sync::atomic::Ordering::Relaxed);
        assert!(handed_over > 20, "only {handed_over} contexts of the seeds are handed over");
    }
}
