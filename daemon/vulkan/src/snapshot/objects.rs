//! Objects in the order of their creation: those alive, and destroyed ones that others were made of.
//!
//! A successor makes these destroyed objects again, and destroys each behind the last object that was made of it, so that another object may have its
//! id. So a rebuilding never has an object that the context did not have at the same time of its life.

use super::prelude::{Prelude, Split, destroy};
use super::saved::{Carry, NotMovable, Saved};
use super::step::{Step, push_commands};
use super::synthesis::{decoded, destruction, ids, undone};
use super::{addresses, contents, likeness, memory};
use crate::execution::context::Context;
use crate::logical::device::Device;
use crate::objects::object::Object;
use crate::objects::table::Table;
use crate::objects::usage::Usage;
use protocol::cursor::Arena;
use protocol::venus::generated::{self as venus, ObjectType};
use rustc_hash::{FxHashMap, FxHashSet};
use std::borrow::Cow;
use std::sync::Arc;

/// The most bytes of pipeline cache data that are written down behind a prelude while the program is paused. If a program's caches have more, the
/// successor's driver compiles again what the program has compiled since the prelude.
const CACHE_DATA_AT_REST: usize = 8 << 20;

/// An object that has to be made.
pub(super) struct Wanted<'t> {
    pub id: u64,
    pub kind: ObjectType,
    pub usage: Arc<Usage>,
    /// The encoding of the command that makes it.
    bytes: Cow<'t, [u8]>,
    /// The identity of its command, if this command makes several objects.
    pub command: Option<usize>,
    /// The object, if it is alive.
    pub object: Option<&'t Object>,
    /// The guest's id of its device; 0 if it is of none.
    pub device: u64,
}

/// An action of a rebuilding, with its place in the order of all actions.
struct Event {
    serial: u64,
    does: Does,
}

enum Does {
    /// Makes these wanted objects by one command.
    Make(Vec<usize>),
    /// Executes a command of ours.
    Bind(Vec<u8>),
}

/// Adds the steps that make all objects but those that a prelude has made.
///
/// # Errors
///
/// An object cannot be made again.
pub(super) fn save(context: &Context, prelude: &Prelude, saved: &mut Saved) -> Result<(), NotMovable> {
    let caches = match saved.carry {
        Carry::Deposited => Vec::new(),
        Carry::Copied | Carry::HandedOver => prelude.cache_data(context, CACHE_DATA_AT_REST).0,
    };
    let table = context.objects.read();
    let Split { there, gone, missing, .. } = prelude.split(alive(&table)?);
    destroy(&gone, saved)?;
    saved.steps.extend(caches);
    save_these((context, &table), missing, &there, saved)
}

/// Adds the steps that make these objects, which may be made of objects that the successor has already.
///
/// # Errors
///
/// An object cannot be made again.
pub(super) fn save_these(
    (context, table): (&Context, &Table),
    objects: Vec<Wanted<'_>>,
    there: &There,
    saved: &mut Saved,
) -> Result<(), NotMovable> {
    let (wanted, needs) = with_lineage(table, objects, there)?;
    let mut events = makings(&wanted);
    for (serial, bytes) in memory::bindings(table, wanted.iter().filter_map(Wanted::live))? {
        events.push(Event { serial, does: Does::Bind(bytes) });
    }
    events.sort_unstable_by_key(|event| event.serial);
    let ends = ends(&wanted, &needs, &events);
    let (mut arena, mut files) = (context.arena(0), FxHashMap::default());
    for (at, event) in events.iter().enumerate() {
        match &event.does {
            Does::Bind(bytes) => push_commands(&mut saved.steps, bytes),
            Does::Make(which) => make((context, table), saved, &wanted, which, &mut files, &mut arena)?,
        }
        for gone in ends.get(&at).into_iter().flatten() {
            let Wanted { id, kind, device, .. } = wanted[*gone];
            push_commands(&mut saved.steps, &destruction(kind, device, id)?);
        }
    }
    Ok(())
}

impl<'t> Wanted<'t> {
    /// Returns the object, its id and that of its device, if it is alive.
    fn live(&self) -> Option<memory::Live<'t>> {
        self.object.map(|object| memory::Live { id: self.id, device: self.device, object })
    }
}

/// Adds the steps of one command that makes some of the wanted objects.
fn make(
    (context, table): (&Context, &Table),
    saved: &mut Saved,
    wanted: &[Wanted<'_>],
    which: &[usize],
    files: &mut FxHashMap<usize, u32>,
    arena: &mut Arena,
) -> Result<(), NotMovable> {
    let Some(first) = which.first().map(|at| &wanted[*at]) else { return Ok(()) };
    if let (ObjectType::DEVICE_MEMORY, Some(object)) = (first.kind, first.object) {
        let is_used = !table.is_only_destroyed(first.id);
        let step = memory::step(context, (first.id, object), is_used, saved, files)?;
        saved.steps.extend(step.or_else(|| contents::filled(first.id, object).filter(|_| is_used)));
    }
    saved.steps.extend(first.object.and_then(|object| addresses::replayed(table, first.id, object)));
    push_commands(&mut saved.steps, &first.bytes);
    if first.kind == ObjectType::PHYSICAL_DEVICE {
        let all = which.iter().map(|at| &wanted[*at]);
        let like = all.filter_map(|one| likeness::like(one.object?).map(|(like, is)| (one.id, like, is)));
        saved.steps.push(Step::Gpus(like.collect()));
    }
    if first.command.is_none() {
        return Ok(());
    }
    let there: FxHashSet<u64> = which.iter().map(|at| wanted[*at].id).collect();
    let undone = decoded(&first.bytes, arena, |command| {
        let gone: Vec<u64> = ids(command).into_iter().filter(|id| *id != 0 && !there.contains(id)).collect();
        if gone.is_empty() { Ok(Vec::new()) } else { undone(command, &gone) }
    })??;
    if !undone.is_empty() {
        push_commands(&mut saved.steps, &undone);
    }
    Ok(())
}

/// Objects that are there already.
pub(super) type There = FxHashSet<*const Usage>;

/// Pairs of indices: an object, and another that it is made of.
pub(super) type Needs = Vec<(usize, usize)>;

/// Returns these objects and, behind them, all missing objects that they are made of; also returns which object is made of which.
///
/// # Errors
///
/// An object cannot be made again.
pub(super) fn with_lineage<'t>(
    table: &Table,
    objects: Vec<Wanted<'t>>,
    there: &There,
) -> Result<(Vec<Wanted<'t>>, Needs), NotMovable> {
    let mut wanted = objects;
    let mut known: FxHashMap<*const Usage, usize> =
        wanted.iter().enumerate().map(|(at, wanted)| (Arc::as_ptr(&wanted.usage), at)).collect();
    let (mut needs, mut at) = (Vec::new(), 0);
    while at < wanted.len() {
        let made_of = wanted[at].usage.made_of();
        let made_of =
            made_of.ok_or_else(|| NotMovable::for_now("too many objects were made of one another"))?;
        for usage in made_of.into_iter().filter(|usage| !there.contains(&Arc::as_ptr(usage))) {
            let needed = match known.get(&Arc::as_ptr(&usage)) {
                Some(needed) => *needed,
                None => {
                    known.insert(Arc::as_ptr(&usage), wanted.len());
                    wanted.push(remains(usage, wanted[at].device)?);
                    wanted.len() - 1
                }
            };
            demand_bound(table, &wanted[needed])?;
            needs.push((at, needed));
        }
        at += 1;
    }
    Ok((wanted, needs))
}

/// Demands that the buffer or image of a view can be bound to its memory before the view is made.
fn demand_bound(table: &Table, needed: &Wanted<'_>) -> Result<(), NotMovable> {
    let is_bound = match (needed.kind, needed.object) {
        (ObjectType::BUFFER | ObjectType::IMAGE, Some(object)) => memory::is_bound(table, object),
        (ObjectType::BUFFER | ObjectType::IMAGE, None) => false,
        _ => true,
    };
    if is_bound { Ok(()) } else { Err(NotMovable::for_now("a view shows memory that was freed")) }
}

/// Returns the objects that are alive, in the order of their creation.
///
/// # Errors
///
/// One cannot be made again.
pub(super) fn alive(table: &Table) -> Result<Vec<Wanted<'_>>, NotMovable> {
    let devices: FxHashMap<*const Device, u64> = table
        .objects()
        .filter_map(|(id, object, _)| Some((Arc::as_ptr(&object.get_shared::<venus::Device>()?), id)))
        .collect();
    let mut all = Vec::new();
    for (id, object, _) in table.objects() {
        let device = match &object.device {
            Some(device) => devices.get(&Arc::as_ptr(device)).copied(),
            None => Some(0),
        };
        let device = device.ok_or_else(|| NotMovable::for_now("an object outlives its device"))?;
        let created_by = object.created_by.as_ref();
        let created_by = created_by.ok_or_else(|| NotMovable::ever("an object of unknown origin"))?;
        let (kind, usage, command) = (object.kind(), Arc::clone(&object.usage), created_by.command());
        all.push(Wanted {
            id,
            kind,
            usage,
            bytes: (**created_by).into(),
            command,
            object: Some(object),
            device,
        });
    }
    // The table has no order.
    all.sort_unstable_by_key(|wanted| wanted.usage.serial());
    Ok(all)
}

/// Returns an object that is gone.
fn remains<'t>(usage: Arc<Usage>, device: u64) -> Result<Wanted<'t>, NotMovable> {
    let found =
        usage.with_remains(|left| (left.id, left.kind, left.created_by.to_vec(), left.created_by.command()));
    let (id, kind, bytes, command) =
        found.ok_or_else(|| NotMovable::for_now("an object was destroyed while others were made of it"))?;
    Ok(Wanted { id, kind, usage, bytes: bytes.into(), command, object: None, device })
}

/// Returns the commands that make all objects. Each command comes once, at the place of the first wanted object that it made.
fn makings(wanted: &[Wanted<'_>]) -> Vec<Event> {
    let mut events: Vec<Event> = Vec::new();
    let mut shared: FxHashMap<usize, usize> = FxHashMap::default();
    for (at, one) in wanted.iter().enumerate() {
        let serial = one.usage.serial();
        let event = one.command.map(|command| *shared.entry(command).or_insert(events.len()));
        match event.and_then(|event| events.get_mut(event)) {
            Some(Event { serial: first, does: Does::Make(all) }) => {
                *first = serial.min(*first);
                all.push(at);
            }
            _ => events.push(Event { serial, does: Does::Make(vec![at]) }),
        }
    }
    events
}

/// Returns the objects that are destroyed behind each event: an object that is gone, behind the last object that is made of it.
fn ends(wanted: &[Wanted<'_>], needs: &Needs, events: &[Event]) -> FxHashMap<usize, Vec<usize>> {
    let mut made_at = vec![0; wanted.len()];
    for (at, event) in events.iter().enumerate() {
        if let Does::Make(all) = &event.does {
            all.iter().for_each(|one| made_at[*one] = at);
        }
    }
    let mut last: FxHashMap<usize, usize> = FxHashMap::default();
    for (user, needed) in needs {
        if wanted[*needed].object.is_none() {
            let end = last.entry(*needed).or_default();
            *end = made_at[*user].max(*end);
        }
    }
    let mut ends: FxHashMap<usize, Vec<usize>> = FxHashMap::default();
    last.into_iter().for_each(|(needed, end)| ends.entry(end).or_default().push(needed));
    for all in ends.values_mut() {
        all.sort_unstable_by_key(|one| std::cmp::Reverse(wanted[*one].usage.serial()));
    }
    ends
}

/// Returns the step that lists the objects that there are now.
pub(super) fn listed(table: &Table) -> Step {
    let mut all: Vec<_> = table.objects().map(|(id, object, _)| (id, object.kind().0)).collect();
    all.sort_unstable();
    Step::Objects(all)
}
