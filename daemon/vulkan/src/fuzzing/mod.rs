//! Entry point for fuzzing the execution of commands: hostile streams against a driver that only checks its parameters ([`super::null`]).
//!
//! Everything from the decoder's values to the reply runs as in a worker: lowering, the object table with its tombstones, spoilt
//! recordings, pools, memory, raising. The driver panics when it is given a handle that it has not made or has destroyed,
//! and when an object is left at the end.

mod stream;

use super::context::error::ContextLost;
use super::null::{self, Allowed, LIMITS, NoResources, gpus, renderer, renderer_on};
use super::snapshot::step::Step;
use super::snapshot::{Carry, Prelude, Saved};
use super::{Allowance, Cancel, Journal, Renderer, Replay};
use config::Queues;
use protocol::cursor::{Arena, Limits, Reader, Writer};
use protocol::venus::generated::Command;
use protocol::venus::stream::Header;
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;
use stream::Composer;

/// Bytes of the reply window.
const REPLY_BYTES: usize = 64 << 10;

/// The number of commands between two checkpoints, if the last checkpoint cannot be used any more.
const CHECKPOINT_EVERY: usize = 16;

/// Commands of one input: a fuzzer gains nothing from more.
const COMMANDS_MAX: usize = 4096;

/// Executes the commands that the bytes stand for, and returns how many were executed without an error. The first byte says what follows: a
/// stream as it is, in which an error ends the context as in a worker; or a recipe, from which mostly executable commands are composed
/// (see `stream`).
pub fn fuzz_execute(bytes: &[u8]) -> usize {
    let Some((&mode, bytes)) = bytes.split_first() else { return 0 };
    let (&seed, bytes) = bytes.split_first_chunk::<8>().unwrap_or((&[0; 8], bytes));
    let _exclusive = null::begin_strict(u64::from_le_bytes(seed));
    let world = World::new(if mode & 2 == 0 { Queues::All } else { Queues::Compute });
    let executed = if mode & 1 == 0 { world.run_stream(bytes) } else { world.run_recipe(bytes) };
    world.hand_over();
    world.renderer.destroy_objects();
    drop(world);
    assert!(!null::is_tight() || null::live() == 0, "{} objects are left", null::live());
    executed
}

/// The number of contexts that were written down and built up again.
static HANDED_OVER: AtomicU64 = AtomicU64::new(0);

/// The number of entries of journals that were replayed.
static REPLAYED: AtomicU64 = AtomicU64::new(0);

/// Returns the steps without the parts that differ between snapshots of one context: mapping addresses, and cache data, which a driver may refuse.
pub(super) fn comparable(steps: &[Step]) -> Vec<Step> {
    let mut steps = steps.to_vec();
    steps.retain(|step| !matches!(step, Step::CacheData(_)));
    for step in &mut steps {
        if let Step::Memory { address, .. } = step {
            *address = 0;
        }
    }
    steps
}

/// Returns the steps of a context that executed the commands that the bytes stand for, as in [`fuzz_execute`]; none if it cannot be written down.
pub fn steps_of(bytes: &[u8]) -> Option<Vec<Step>> {
    let _exclusive = null::begin(0);
    null::rely();
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
    let _exclusive = null::begin(0);
    null::rely();
    let file = |size| Allowed.pages(size, &Cancel::default()).ok().flatten().map(Arc::new);
    let files: Vec<_> = [1 << 12, 1 << 16, 1 << 20].into_iter().filter_map(file).collect();
    let renderer = renderer(Arc::new(NoResources));
    let rebuilt = renderer.rebuild(steps, &files).is_ok();
    if rebuilt {
        // Whether the context can be saved again depends on its objects.
        let _ = renderer.save(&Prelude::default(), Carry::Copied);
    }
    renderer.destroy_objects();
    rebuilt
}

/// The number of commands that are executed before the checkpoint of [`fuzz_replay`].
const BASE: usize = 96;

/// Replays any bytes as the journal after a checkpoint, which the first byte chooses. Returns 1 if the bytes make sense, and 0 if not.
pub fn fuzz_replay(bytes: &[u8]) -> usize {
    let Some((&seed, journal)) = bytes.split_first() else { return 0 };
    let _exclusive = null::begin(0);
    null::rely();
    let world = World::new(Queues::All);
    world.run_composed(&mut Composer::new(&recipe(seed.into())), BASE);
    let saved = world.renderer.save(&Prelude::default(), Carry::Copied);
    let saved = saved.ok().filter(|_| !world.is_over.get());
    let is_sound = saved.is_some_and(|saved| {
        let successor = renderer(Arc::new(NoResources));
        assert_eq!(successor.rebuild(&comparable(&saved.steps), &saved.files_here()), Ok(()));
        let run = null::run();
        let is_sound = successor.replay(&[journal]).is_ok();
        assert_eq!(null::run(), run, "nothing is computed");
        // Whether the context can be saved again depends on its objects.
        let _ = successor.save(&Prelude::default(), Carry::Copied);
        successor.destroy_objects();
        is_sound
    });
    world.renderer.destroy_objects();
    is_sound.into()
}

/// Returns an input of [`fuzz_replay`] that makes sense: the commands that a program executes until it breaks its journal. None if there are none.
pub fn journal_of(seed: u8) -> Option<Vec<u8>> {
    let _exclusive = null::begin(0);
    null::rely();
    let world = World::new(Queues::All);
    let recipe = recipe(seed.into());
    let mut composer = Composer::new(&recipe);
    world.run_composed(&mut composer, BASE);
    let saved =
        world.renderer.save(&Prelude::default(), Carry::Copied).ok().filter(|_| !world.is_over.get())?;
    world.heard.take_break();
    *world.journal.borrow_mut() = Some((saved, Vec::new()));
    let mut journal = Vec::new();
    while world.run_composed(&mut composer, 1) > 0
        && let Some((_, entries)) = &*world.journal.borrow()
    {
        journal = entries.concat();
    }
    world.renderer.destroy_objects();
    (!journal.is_empty()).then(|| [vec![seed], journal].concat())
}

/// Returns any bytes for recipes, the same in every run (splitmix64).
fn recipe(seed: u64) -> Vec<u8> {
    let words = (1..=512).map(|at| {
        let mixed = (seed << 32).wrapping_add(at).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^ (mixed >> 31)
    });
    words.flat_map(u64::to_le_bytes).collect()
}

/// A context.
struct World {
    renderer: Renderer,
    cancel: Cancel,
    reply: RefCell<Vec<u8>>,
    /// True if a command has ended the context and left objects behind: a worker would be gone, and nothing would be saved.
    is_over: Cell<bool>,
    /// The parts of the prelude that were written.
    prelude: RefCell<(Vec<Step>, Prelude)>,
    /// The last checkpoint, and the commands that were executed since, unless they cannot be replayed.
    journal: RefCell<Option<(Saved, Vec<Vec<u8>>)>>,
    heard: Arc<Heard>,
}

/// A journal that keeps no commands, only breaks and the count of pending submissions.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    /// The journal is broken.
    broken: AtomicBool,
    /// The number of submissions that are pending.
    pending: AtomicI64,
}

impl Heard {
    /// Returns whether the journal was broken since this was called last.
    pub(crate) fn take_break(&self) -> bool {
        self.broken.swap(false, Ordering::Relaxed)
    }

    /// Returns how many submissions are pending.
    pub(crate) fn pending(&self) -> i64 {
        self.pending.load(Ordering::SeqCst)
    }
}

impl Journal for Heard {
    fn breaks(&self, _: &'static str) {
        self.broken.store(true, Ordering::Relaxed);
    }

    fn submits(&self) {
        self.pending.fetch_add(1, Ordering::SeqCst);
    }

    fn completed(&self, count: u32) {
        let before = self.pending.fetch_sub(count.into(), Ordering::SeqCst);
        assert!(before >= count.into(), "{count} of {before} submissions have completed");
    }
}

impl World {
    fn new(queues: Queues) -> Self {
        let mut gpus = gpus();
        gpus.iter_mut().for_each(|gpu| gpu.queues = queues);
        let heard = Arc::<Heard>::default();
        let journal: Arc<dyn Journal> = heard.clone();
        let renderer = renderer_on(gpus, LIMITS, Arc::new(NoResources)).journalled(journal);
        let cancel = Cancel::default();
        // Waits answer at once.
        cancel.cancel();
        let reply = RefCell::new(vec![0; REPLY_BYTES]);
        let (is_over, prelude, journal) = Default::default();
        Self { renderer, cancel, reply, is_over, prelude, journal, heard }
    }

    fn run_stream(&self, mut bytes: &[u8]) -> usize {
        let mut arena = Arena::new(LIMITS.arena_bytes);
        let mut executed = 0;
        while !bytes.is_empty() && executed < COMMANDS_MAX {
            // The world's own flag is cancelled, but recording must not be.
            let Ok(recorded) = self.renderer.record(bytes, &mut arena, &Cancel::default()) else { break };
            let executed_first = || self.execute(bytes, &arena).ok();
            let Some(length) = Some(recorded).filter(|bytes| *bytes > 0).or_else(executed_first) else {
                break;
            };
            assert!((1..=bytes.len()).contains(&length), "a command of {length} bytes");
            assert!(arena.allocated_bytes() <= LIMITS.arena_bytes);
            if recorded > 0 {
                self.keep(Replay::Again, &bytes[..recorded]);
            }
            bytes = &bytes[length..];
            arena.reset();
            executed += 1;
            self.write_prelude(executed);
            self.write_checkpoint(executed);
        }
        executed
    }

    fn run_recipe(&self, bytes: &[u8]) -> usize {
        self.run_composed(&mut Composer::new(bytes), COMMANDS_MAX)
    }

    /// Executes up to `most` commands of a composer, or as many as it has.
    fn run_composed(&self, composer: &mut Composer<'_>, most: usize) -> usize {
        let mut executed = 0;
        while executed < most
            && let Some(()) = composer.next(self)
        {
            executed += usize::from(composer.execute(self));
            self.write_prelude(executed);
            self.write_checkpoint(executed);
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
        if let Ok((more, with_more)) = self.renderer.save_prelude(prelude, Some(Carry::Copied)) {
            ahead.extend(more.steps);
            *prelude = with_more;
        }
    }

    /// Writes a checkpoint after some of the commands, if there is none after which all commands could be replayed.
    fn write_checkpoint(&self, executed: usize) {
        let mut journal = self.journal.borrow_mut();
        if !executed.is_multiple_of(CHECKPOINT_EVERY) || journal.is_some() || self.is_over.get() {
            return;
        }
        let saved = self.renderer.save(&Prelude::default(), Carry::Copied).ok();
        self.heard.take_break();
        *journal = saved.map(|saved| (saved, Vec::new()));
    }

    /// Keeps commands that were executed after a checkpoint.
    fn keep(&self, class: Replay, bytes: &[u8]) {
        let mut journal = self.journal.borrow_mut();
        if self.heard.take_break() || class == Replay::Breaks {
            *journal = None;
        } else if let Some((_, entries)) = &mut *journal {
            entries.push(bytes.to_vec());
        }
    }

    /// Builds the context up from the last checkpoint and replays the commands that were executed since; the result must equal `all`.
    fn replay(&self, all: &[Step]) {
        let Some((saved, entries)) = self.journal.take() else { return };
        let context = self.renderer.context();
        let successor = renderer_on(context.env.gpus.clone(), LIMITS, Arc::new(NoResources));
        let steps = comparable(&saved.steps);
        assert_eq!(successor.rebuild(&steps, &saved.files_here()), Ok(()), "of {steps:#?}");
        let entries: Vec<_> = entries.iter().map(|entry| &**entry).collect();
        let run = null::run();
        assert_eq!(successor.replay(&entries), Ok(()), "of {entries:?} behind {steps:#?}");
        assert_eq!(null::run(), run, "nothing is computed twice");
        let again = successor.save(&Prelude::default(), Carry::Copied).map(|again| comparable(&again.steps));
        assert_eq!(again.as_deref(), Ok(all), "of {entries:?} behind {steps:#?}");
        successor.destroy_objects();
        REPLAYED.fetch_add(entries.len() as u64, Ordering::Relaxed);
    }

    /// Writes the context down, if possible, and builds it up a second time; the result must be the same.
    fn hand_over(&self) {
        if self.is_over.get() {
            return;
        }
        let Ok(saved) = self.renderer.save(&Prelude::default(), Carry::Copied) else { return };
        null::rely();
        let context = self.renderer.context();
        let second = renderer_on(context.env.gpus.clone(), LIMITS, Arc::new(NoResources));
        // The first context still occupies its addresses.
        let first = comparable(&saved.steps);
        let rebuilt = second.rebuild(&first, &saved.files_here());
        assert_eq!(rebuilt, Ok(()), "of {first:#?}");
        let again = second.save(&Prelude::default(), Carry::Copied);
        let steps = again.as_ref().map(|again| comparable(&again.steps));
        assert_eq!(steps, Ok(first));
        second.destroy_objects();
        // The last submissions may have no marker until this call asks for their end.
        assert_eq!(self.renderer.drain(Duration::MAX), Ok(()), "everything completes at once");
        assert_eq!(self.heard.pending(), 0);
        self.replay(&comparable(&saved.steps));
        self.hand_over_behind_prelude(&comparable(&saved.steps));
        HANDED_OVER.fetch_add(1, Ordering::Relaxed);
    }

    /// Builds the context up once more, after the prelude; this must change nothing but the order of commands.
    fn hand_over_behind_prelude(&self, all: &[Step]) {
        let (ahead, prelude) = self.prelude.take();
        let rest = self.renderer.save(&prelude, Carry::Copied).expect("it could be without");
        let context = self.renderer.context();
        let third = renderer_on(context.env.gpus.clone(), LIMITS, Arc::new(NoResources));
        assert_eq!(third.rebuild_ahead(&ahead, &[]), Ok(()), "of {ahead:#?}");
        let steps = comparable(&rest.steps);
        assert_eq!(third.rebuild(&steps, &rest.files_here()), Ok(()), "of {steps:#?} behind {ahead:#?}");
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
        let before = null::live();
        let objects = || self.renderer.context().objects.read().count();
        let objects_before = objects();
        let mut room = self.reply.borrow_mut();
        let mut writer = Writer::window(&mut room);
        let window = header.wants_reply().then_some(&mut writer);
        let outcome = self.renderer.execute(&command, &bytes[..length], arena, &self.cancel, window);
        // Memory that was kept may have been freed to make room.
        let frees = matches!(command, Command::AllocateMemory(_));
        // A queue is bound to its timeline before its id is looked at.
        if outcome.is_err() && (objects() != objects_before || matches!(command, Command::GetDeviceQueue2(_)))
        {
            self.is_over.set(true);
        }
        if outcome.is_err() && (frees || null::live() > before) {
            // An error in the middle of a command ends the context; objects in no table end with the process.
            null::leak();
        }
        outcome?;
        self.keep(Replay::of(header.number), &bytes[..length]);
        writer.finish()?;
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    /// A recipe, as an input of [`super::fuzz_execute`].
    fn composed(seed: u64) -> Vec<u8> {
        [vec![1], super::recipe(seed)].concat()
    }

    #[test]
    fn committed_journals_are_done_again() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/venus_replay");
        let files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        let sound: usize = files.iter().map(|file| super::fuzz_replay(&fs::read(file).unwrap())).sum();
        assert!(sound >= 4, "{sound} of {} journals make sense", files.len());
        let made: Vec<_> = (0..40).filter_map(super::journal_of).collect();
        let sound: usize = made.iter().map(|journal| super::fuzz_replay(journal)).sum();
        assert!(sound > 4 && sound == made.len(), "{sound} of {} journals make sense", made.len());
        // A journal that was cut ends its context.
        let cut = made.iter().map(|journal| super::fuzz_replay(&journal[..journal.len() - 1]));
        assert_eq!(cut.sum::<usize>(), 0);
    }

    #[test]
    fn committed_streams_are_executed() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/venus_execute");
        let files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        let committed = files.iter().map(|file| fs::read(file).unwrap());
        let executed: usize =
            committed.chain((0..300).map(composed)).map(|bytes| super::fuzz_execute(&bytes)).sum();
        assert!(executed > 500, "only {executed} commands of the seeds are executed");
        let handed_over = super::HANDED_OVER.load(std::sync::atomic::Ordering::Relaxed);
        assert!(handed_over > 20, "only {handed_over} contexts of the seeds are handed over");
        let replayed = super::REPLAYED.load(std::sync::atomic::Ordering::Relaxed);
        assert!(replayed > 100, "only {replayed} entries of the seeds are done again");
    }
}
