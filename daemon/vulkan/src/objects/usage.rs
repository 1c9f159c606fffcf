//! The uses of objects by recorded and submitted work, so that nothing is destroyed under it.
//!
//! Vulkan lets an application destroy an object only when no pending submission uses it, and never submit a recording that names a
//! destroyed one. Drivers rely on this rule. Here each object carries a [`Usage`]: a recording keeps the usages of the objects
//! that it names, a submission demands that all are alive and leaves its number in them, and a destruction looks at this number.
//!
//! This file knows no commands. Objects that shaders reach through descriptors and addresses are not counted: they are up to the driver and the GPU.

use super::origin::{MadeOf, Remains};
use crate::logical::submitted::{Place, Submitted};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// The usage of one object: whether it is alive, its last submissions, and which recording names it.
///
/// Either side writes its own part before it reads the other's (sequentially consistent), so a destruction and a submission that
/// meet cannot both overlook the other.
#[derive(Debug, Default)]
pub struct Usage {
    destroyed: AtomicBool,
    /// The place of the last submission to the queue that used the object first ([`Place::packed`]); 0 if none did.
    last: AtomicU64,
    /// The last submissions to other queues. Few objects have any.
    elsewhere: OnceLock<Box<Mutex<Submitted>>>,
    /// The mark of the last recording that the object was added to; a hint, as the object may have been added to another recording since.
    named_by: AtomicU64,
    /// The place of the object's creation in the order of all that a snapshot repeats.
    serial: AtomicU64,
    /// The number of commands that have made others of the object, each counted for as long as an object it made, or its remains, exists.
    users: AtomicU32,
    /// The length of the longest chain of objects that the object was made of.
    depth: u8,
    /// The objects that this one was made of, and its remains; none if there are neither.
    lineage: Mutex<Option<Box<Lineage>>>,
}

/// The origin of an object, as far as it is not kept with the object.
#[derive(Debug, Default)]
struct Lineage {
    made_of: MadeOf,
    remains: Option<Remains>,
}

impl Usage {
    /// Creates the usage of an object that was made of others, and that nothing uses.
    #[inline]
    pub fn of(made_of: MadeOf) -> Self {
        match made_of {
            MadeOf::Nothing => Self::default(),
            made_of => Self::of_others(made_of),
        }
    }

    #[inline(never)]
    fn of_others(made_of: MadeOf) -> Self {
        let (depth, lineage) = (made_of.depth(), Box::new(Lineage { made_of, remains: None }));
        Self { depth, lineage: Mutex::new(Some(lineage)), ..Self::default() }
    }

    /// Creates the usage of an object that counts as a new one for its users, such as a command buffer that is begun again.
    #[must_use]
    pub fn again(&self) -> Self {
        Self { serial: AtomicU64::new(self.serial()), ..Self::default() }
    }

    /// Notes the place of the object's creation.
    pub fn set_serial(&self, serial: u64) {
        self.serial.store(serial, Ordering::Relaxed);
    }

    /// The place of the object's creation among all that a snapshot repeats; 0 if it is in no table.
    pub fn serial(&self) -> u64 {
        self.serial.load(Ordering::Relaxed)
    }

    /// The length of the longest chain of objects that the object was made of.
    pub fn depth(&self) -> u8 {
        self.depth
    }

    /// Counts commands that make others of the object.
    pub fn use_up(&self, commands: u32) {
        self.users.fetch_add(commands, Ordering::SeqCst);
    }

    /// Counts one such command less, because its objects are gone. With the last such command the remains of a destroyed object vanish.
    pub fn release(&self) {
        if self.users.fetch_sub(1, Ordering::SeqCst) == 1 && !self.is_alive() {
            self.vanish();
        }
    }

    /// Notes that the object is gone for the guest. Its remains stay if others were made of it.
    #[inline]
    pub fn end_leaving(&self, remains: impl FnOnce() -> Option<Remains>) {
        self.end();
        if self.depth > 0 || self.users.load(Ordering::SeqCst) > 0 {
            self.leave(remains);
        }
    }

    #[cold]
    #[inline(never)]
    fn leave(&self, remains: impl FnOnce() -> Option<Remains>) {
        if self.users.load(Ordering::SeqCst) > 0 {
            self.lineage.lock().get_or_insert_default().remains = remains();
        }
        // The last object made of this one may be gone by now.
        if self.users.load(Ordering::SeqCst) == 0 {
            self.vanish();
        }
    }

    /// Drops the remains, and releases the objects that the object was made of.
    fn vanish(&self) {
        // Not under the lock: the drop goes on with the objects that this one was made of, `depth` times at most.
        let left = self.lineage.lock().take();
        drop(left);
    }

    /// Returns the bytes of the usage and of the object's origin.
    #[cfg(test)]
    pub fn kept_bytes(&self) -> usize {
        let lineage = self.lineage.lock().as_deref().map_or(0, |lineage| {
            let remains = lineage.remains.as_ref().map_or(0, |remains| remains.created_by.len());
            size_of::<Lineage>() + lineage.made_of.kept_bytes() + remains
        });
        size_of::<Self>() + lineage
    }

    /// Calls `look` with the remains of a destroyed object; returns none if there are no remains.
    pub fn with_remains<T>(&self, look: impl FnOnce(&Remains) -> T) -> Option<T> {
        self.lineage.lock().as_deref()?.remains.as_ref().map(look)
    }

    /// Returns the usages of the objects that the object was made of; none if they are not known.
    pub fn made_of(&self) -> Option<SmallVec<[Arc<Self>; 2]>> {
        match self.lineage.lock().as_deref() {
            Some(lineage) => lineage.made_of.usages(),
            None => Some(SmallVec::new()),
        }
    }

    /// Notes that the object is named by a submission from now on. Returns whether the object is still alive.
    pub fn submit(&self, place: Place) -> bool {
        let packed = place.packed();
        let first = match self.last.load(Ordering::SeqCst) {
            0 => self
                .last
                .compare_exchange(0, packed, Ordering::SeqCst, Ordering::SeqCst)
                .unwrap_or_else(|now| now),
            known => known,
        };
        // Once `last` is set, it stays a place on the same queue.
        match Place::unpacked(first).is_none_or(|first| first.ring_idx == place.ring_idx) {
            true => _ = self.last.fetch_max(packed, Ordering::SeqCst),
            false => self.elsewhere.get_or_init(Box::default).lock().add(place),
        }
        self.is_alive()
    }

    /// Notes that the object is named by all `submitted` submissions.
    pub fn submit_all(&self, submitted: &Submitted) {
        submitted.places().for_each(|place| _ = self.submit(place));
    }

    /// Returns whether the object is not gone for the guest.
    pub fn is_alive(&self) -> bool {
        !self.destroyed.load(Ordering::SeqCst)
    }

    /// Notes that the object is gone for the guest.
    pub fn end(&self) {
        self.destroyed.store(true, Ordering::SeqCst);
    }

    /// Returns the last submissions that name the object.
    pub fn submitted(&self) -> Submitted {
        let last = Place::unpacked(self.last.load(Ordering::SeqCst)).map(Submitted::from).unwrap_or_default();
        match self.elsewhere.get() {
            Some(elsewhere) => last.and(&elsewhere.lock()),
            None => last,
        }
    }
}

/// The objects that a recording names, or a command that creates others.
#[derive(Debug)]
pub struct Uses {
    /// A mark that no other value has, and that this value did not have with other contents.
    mark: Cell<u64>,
    all: RefCell<SmallVec<[Arc<Usage>; 4]>>,
    /// True if the recording names events or queries, by which programs learn of its progress or hold it up.
    heard: Cell<bool>,
}

/// The number of latest entries that are searched for an unmarked object: several recordings that name the same objects at once mark them by turns.
const RECENT: usize = 8;

impl Default for Uses {
    fn default() -> Self {
        Self { mark: Cell::new(new_mark()), all: RefCell::default(), heard: Cell::new(false) }
    }
}

/// The mark of commands that create: no object carries it.
const CREATES: u64 = u64::MAX;

fn new_mark() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

impl Uses {
    /// Creates the uses of a command that creates objects; each use counts as one ([`Usage::use_up`]).
    pub fn of_creation() -> Self {
        Self { mark: Cell::new(CREATES), all: RefCell::default(), heard: Cell::new(false) }
    }

    /// Returns the objects, and forgets them.
    pub fn take(&self) -> SmallVec<[Arc<Usage>; 4]> {
        self.all.take()
    }

    /// Adds an object.
    #[inline]
    pub fn add(&self, usage: &Arc<Usage>) {
        // An object that carries the mark was added before: no other thread knows the mark.
        if usage.named_by.load(Ordering::Relaxed) != self.mark.get() {
            self.add_unmarked(usage);
        }
    }

    #[inline(never)]
    fn add_unmarked(&self, usage: &Arc<Usage>) {
        let mut uses = self.all.borrow_mut();
        if !uses.iter().rev().take(RECENT).any(|known| Arc::ptr_eq(known, usage)) {
            uses.push(Arc::clone(usage));
            match self.mark.get() {
                CREATES => usage.use_up(1),
                mark => usage.named_by.store(mark, Ordering::Relaxed),
            }
        }
    }

    /// Notes that the recording names an event or queries, by which a program may learn of the recording's progress or hold it up.
    pub fn set_heard(&self) {
        self.heard.set(true);
    }

    /// Returns whether [`Self::set_heard`] was called, for this recording or for one that was added to it.
    pub fn is_heard(&self) -> bool {
        self.heard.get()
    }

    /// Adds all that another recording names.
    pub fn add_all(&self, other: &Self) {
        self.all.borrow_mut().extend(other.all.borrow().iter().cloned());
        self.heard.set(self.heard.get() || other.heard.get());
    }

    /// Forgets everything.
    pub fn clear(&self) {
        self.all.borrow_mut().clear();
        self.mark.set(new_mark());
        self.heard.set(false);
    }

    /// Marks all objects as submitted. Returns whether all of them are alive.
    pub fn submit(&self, place: Place) -> bool {
        self.all.borrow().iter().all(|usage| usage.submit(place))
    }

    /// Returns whether all objects that the recording names are alive.
    pub fn is_alive(&self) -> bool {
        self.all.borrow().iter().all(|usage| usage.is_alive())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recordings_of_destroyed_objects_are_told() {
        let (kept, destroyed) = (Arc::new(Usage::default()), Arc::new(Usage::default()));
        let uses = Uses::default();
        uses.add(&kept);
        uses.add(&destroyed);
        uses.add(&kept);
        let at = |ring_idx, number| Place { ring_idx, number };
        assert!(uses.submit(at(1, 3)) && uses.is_alive());
        assert_eq!(
            [&kept, &destroyed].map(|usage| usage.submitted()),
            [at(1, 3), at(1, 3)].map(Submitted::from)
        );
        destroyed.end();
        assert!(!uses.submit(at(1, 4)) && !uses.is_alive());
        uses.clear();
        assert!(uses.submit(at(1, 5)));
        assert_eq!(kept.submitted(), at(1, 4).into());
    }

    #[test]
    fn what_several_queues_use_has_a_last_submission_on_each() {
        let at = |ring_idx, number| Place { ring_idx, number };
        let usage = Usage::default();
        assert!(usage.submitted().is_empty());
        for place in [at(2, 8), at(1, 900), at(3, 1), at(1, 800), at(2, 7), at(2, 9)] {
            assert!(usage.submit(place));
        }
        let last: Vec<_> = usage.submitted().places().collect();
        assert_eq!(last, [at(2, 9), at(1, 900), at(3, 1)]);
    }

    #[test]
    fn a_recording_that_executes_one_that_is_heard_is_heard() {
        let (primary, secondary) = (Uses::default(), Uses::default());
        secondary.set_heard();
        primary.add_all(&secondary);
        assert!(primary.is_heard());
        primary.add_all(&Uses::default());
        assert!(primary.is_heard());
        primary.clear();
        assert!(!primary.is_heard());
    }

    #[test]
    fn objects_that_come_again_after_many_others_are_named_once() {
        let all: Vec<_> = (0..100).map(|_| Arc::new(Usage::default())).collect();
        let (one, other) = (Uses::default(), Uses::default());
        for _ in 0..10 {
            all.iter().for_each(|usage| one.add(usage));
        }
        assert_eq!(one.all.borrow().len(), all.len());
        // By turns with another recording, which replaces the mark.
        for _ in 0..10 {
            all.iter().take(2).for_each(|usage| other.add(usage));
            all.iter().take(2).for_each(|usage| one.add(usage));
        }
        assert_eq!((one.all.borrow().len(), other.all.borrow().len()), (all.len() + 2, 2));
    }
}
