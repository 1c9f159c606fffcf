//! The prelude: objects that a successor makes while its predecessor still runs, so that the program does not wait for them. They are the driver
//! itself, what it compiles, and memory that only the driver uses: the successor imports this memory, or allocates memory on another GPU, and the
//! contents follow when the predecessor rests. The predecessor remembers these objects. The next part of the prelude has newer objects, the
//! snapshot the rest.
//!
//! ```text
//! predecessor   runs ....................................... rests, writes the snapshot
//! successor          makes what is in the prelude, its parts             makes the rest, goes on
//! ```

use super::memory;
use super::objects::{There, Wanted, alive, save_these, with_lineage};
use super::saved::{Carry, NotMovable, Saved};
use super::step::{Step, push_commands};
use super::synthesis::destruction;
use crate::commands::pipeline_cache::collect::data_of_all;
use crate::execution::context::Context;
use crate::logical::pipeline_caches::CACHE_DATA_MAX;
use crate::objects::object::Object;
use crate::objects::table::Table;
use protocol::venus::generated::ObjectType;
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

/// The kinds of objects that a prelude makes, beside memory. Objects of these kinds are made of each other only, and never change.
const KINDS: [ObjectType; 11] = [
    ObjectType::INSTANCE,
    ObjectType::PHYSICAL_DEVICE,
    ObjectType::DEVICE,
    ObjectType::SAMPLER_YCBCR_CONVERSION,
    ObjectType::SAMPLER,
    ObjectType::DESCRIPTOR_SET_LAYOUT,
    ObjectType::PIPELINE_LAYOUT,
    ObjectType::RENDER_PASS,
    ObjectType::SHADER_MODULE,
    ObjectType::PIPELINE_CACHE,
    ObjectType::PIPELINE,
];

/// The kinds of objects whose making adds data to a pipeline cache, or begins one.
const CACHED: [ObjectType; 3] = [ObjectType::DEVICE, ObjectType::PIPELINE_CACHE, ObjectType::PIPELINE];

/// The objects that a successor has made while its predecessor still ran.
#[derive(Debug, Default)]
pub struct Prelude {
    /// By their places in the order of creation, which are unique.
    pub(super) made: FxHashMap<u64, Made>,
    /// The data of pipeline caches that the successor has, if any was sent to it.
    cached: Option<Cached>,
}

/// The data of all pipeline caches at one time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cached {
    /// Objects behind this place in the order of creation were made later.
    at: u64,
    bytes: usize,
}

/// An object that a successor has made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Made {
    pub id: u64,
    pub kind: ObjectType,
    /// The guest's id of its device; 0 if it is of none.
    pub device: u64,
    /// It is memory whose contents come with the snapshot.
    awaits_contents: bool,
}

/// The objects of a context after a prelude was written.
pub(super) struct Split<'t> {
    /// The objects that the successor has.
    pub there: There,
    /// The objects that the successor has, by their places in the order of creation.
    made: FxHashMap<u64, Made>,
    /// The objects that the successor has and the guest has destroyed, in the order in which they can be destroyed.
    pub gone: Vec<Made>,
    /// The objects that the successor does not have.
    pub missing: Vec<Wanted<'t>>,
}

/// Writes down the objects that a successor can make while this context goes on, without those that it has made `so_far`. Commands may be in flight.
/// Memory that only the driver uses is included if its way to the successor is known: with [`Carry::HandedOver`] by its descriptor, with
/// [`Carry::Copied`] without its contents.
///
/// # Errors
///
/// The prelude cannot be written: the successor has to make all objects later that it has not made so far.
pub(crate) fn save(
    context: &Context,
    so_far: &Prelude,
    memory: Option<Carry>,
) -> Result<(Saved, Prelude), NotMovable> {
    let has = |object: &Object| so_far.has(object);
    let (descriptors, copied) = match memory {
        Some(Carry::HandedOver) => (memory::descriptors(context, has), FxHashSet::default()),
        Some(Carry::Copied) => (FxHashMap::default(), memory::copied(context, has)),
        None | Some(Carry::Deposited) => Default::default(),
    };
    let (caches, cached) = so_far.cache_data(context, CACHE_DATA_MAX);
    let table = context.objects.read();
    let mut saved = Saved { carry: memory.unwrap_or_default(), descriptors, ..Saved::default() };
    let Split { there, mut made, gone, missing } = so_far.split(alive(&table)?);
    destroy(&gone, &mut saved)?;
    // Behind the destroyed objects: a new cache may have the id of a destroyed one by now.
    saved.steps.extend(caches);
    let is_memory = |serial: &u64| saved.descriptors.contains_key(serial) || copied.contains(serial);
    let objects = made_ahead(&table, missing, &there, is_memory)?;
    for one in &objects {
        let Wanted { id, kind, device, .. } = *one;
        let awaits_contents = copied.contains(&one.usage.serial());
        made.insert(one.usage.serial(), Made { id, kind, device, awaits_contents });
    }
    save_these((context, &table), objects, &there, &mut saved)?;
    Ok((saved, Prelude { made, cached }))
}

/// Adds the steps that destroy objects that a successor has made and the guest has destroyed, in this order.
///
/// # Errors
///
/// An object cannot be destroyed.
pub(super) fn destroy(gone: &[Made], saved: &mut Saved) -> Result<(), NotMovable> {
    // The end of an instance destroys all objects.
    let instance = gone.iter().find(|one| one.kind == ObjectType::INSTANCE);
    for Made { id, kind, device, .. } in instance.map_or(gone, std::slice::from_ref) {
        push_commands(&mut saved.steps, &destruction(*kind, *device, *id)?);
    }
    Ok(())
}

/// Returns the missing objects that a prelude makes. A destroyed object that one of them was made of is made with them and destroyed again. Such an
/// object never takes the id of an object of the prelude, neither in the prelude nor when the rest is made.
fn made_ahead<'t>(
    table: &Table,
    missing: Vec<Wanted<'t>>,
    there: &There,
    is_memory: impl Fn(&u64) -> bool,
) -> Result<Vec<Wanted<'t>>, NotMovable> {
    let (all, mut needs) = with_lineage(table, missing, there)?;
    let reused: FxHashSet<u64> = all.iter().filter(|one| one.object.is_none()).map(|one| one.id).collect();
    let is_free = |one: &Wanted<'_>| !reused.contains(&one.id) && !table.is_only_destroyed(one.id);
    let has_kind = |one: &Wanted<'_>| KINDS.contains(&one.kind) || is_memory(&one.usage.serial());
    let fits = |one: &Wanted<'_>| has_kind(one) && (one.object.is_none() || is_free(one));
    let mut fit: Vec<bool> = all.iter().map(fits).collect();
    // In the order of creation, so that each object is decided after the objects that it is made of.
    needs.sort_unstable_by_key(|(user, _)| all[*user].usage.serial());
    for (user, needed) in needs {
        fit[user] &= fit[needed];
    }
    let ahead = all.into_iter().zip(fit).filter(|(one, fits)| *fits && one.object.is_some());
    Ok(ahead.map(|(one, _)| one).collect())
}

impl Prelude {
    /// Returns whether a successor has made this object.
    pub(super) fn has(&self, object: &Object) -> bool {
        self.made.contains_key(&object.usage.serial())
    }

    /// Returns whether a successor has made this memory and has its contents, too.
    pub(super) fn has_contents(&self, memory: &Object) -> bool {
        self.made.get(&memory.usage.serial()).is_some_and(|made| !made.awaits_contents)
    }

    /// Returns the steps with the data of all caches, and what the successor then has. There are no steps if no object that affects caches was made since. A
    /// successor that has some data gets no more than `room` bytes, and none if it has more than `room` already.
    pub(super) fn cache_data(&self, context: &Context, room: usize) -> (Vec<Step>, Option<Cached>) {
        let table = context.objects.read();
        let at = table.next_serial();
        let is_new = |at: u64, object: &Object| CACHED.contains(&object.kind()) && object.usage.serial() > at;
        let room = match self.cached {
            None => CACHE_DATA_MAX,
            Some(Cached { at, bytes }) => {
                let has_new =
                    table.objects().any(|(_, object, result)| result.is_none() && is_new(at, object));
                if bytes > room || !has_new {
                    return (Vec::new(), self.cached);
                }
                room
            }
        };
        drop(table);
        let all = data_of_all(context, room);
        let bytes = all.iter().map(|data| data.sealed.len()).sum();
        (all.into_iter().map(Step::CacheData).collect(), Some(Cached { at, bytes }))
    }

    /// Splits these objects, which are all that are alive, by whether a successor has made them.
    pub(super) fn split<'t>(&self, alive: Vec<Wanted<'t>>) -> Split<'t> {
        let is_made = |one: &Wanted<'_>| self.made.contains_key(&one.usage.serial());
        // If one command made several objects and the prelude has only some of them, the successor makes all of them again.
        let again: FxHashSet<usize> =
            alive.iter().filter(|one| !is_made(one)).filter_map(|one| one.command).collect();
        let is_there =
            |one: &Wanted<'_>| is_made(one) && one.command.is_none_or(|command| !again.contains(&command));
        let (there, missing): (Vec<_>, Vec<_>) = alive.into_iter().partition(is_there);
        let serials = there.iter().map(|one| one.usage.serial());
        let made: FxHashMap<u64, Made> =
            serials.filter_map(|serial| Some((serial, *self.made.get(&serial)?))).collect();
        let mut gone: Vec<_> = self.made.iter().filter(|(serial, _)| !made.contains_key(serial)).collect();
        gone.sort_unstable_by_key(|(serial, _)| std::cmp::Reverse(**serial));
        let gone = gone.into_iter().map(|(_, made)| *made).collect();
        Split { there: there.iter().map(|one| Arc::as_ptr(&one.usage)).collect(), made, gone, missing }
    }
}
