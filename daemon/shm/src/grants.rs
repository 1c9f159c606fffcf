//! The page in which a worker and the scheduler tell each other about the worker's submissions, by counters.
//!
//! A submission is *ready* when all that it waits for has happened; then it wants a grant. It is *dispatched* when the driver gets it,
//! and *completed* when the GPU has finished it. The worker counts all three, from 0 and wrapping; the scheduler counts grants in the same way. While
//! a context has a *lease* it dispatches without asking, for the price of one load.
//!
//! The scheduler also says in which time slices the GPU's hardware is to run the context's work, where the worker can have that set.
//!
//! While the scheduler's side wants a trace, the worker also reports each submission ([`TraceNote`]), as far as there is room: it counts a note
//! without room, and does not wait. While no trace is wanted, this costs the worker one load for each submission.
//!
//! Each word has one writer, except the word that the gate of the worker sleeps on. A worker that a guest has taken over can write any value: to the
//! scheduler each value is a claim.

use super::trace_note::{NOTE_BYTES, TakenNotes, TraceNote};
use super::{MapError, Mapping, OutOfBounds, Word, create};
use rustix::time::{ClockId, clock_gettime};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::time::Duration;

/// The version of the page's layout: of the places and the meanings of all words and records. Running workers keep the layout of their program, so
/// this version rises with each change that would mislead another program.
pub const GRANTS_LAYOUT: u32 = 1;

/// Intervals of work that may wait to be read.
pub(super) const WORK_MAX: u32 = 512;
/// Bytes of one interval.
const WORK_BYTES: u64 = 32;
/// The offset at which the slots of completed work begin.
const WORK: u64 = 4096;
/// Notes for a trace that may wait to be read.
pub(super) const NOTES_MAX: u32 = 512;
/// The offset at which the notes' slots begin. The kernel gives no memory for the slots until the first note is written.
const NOTES: u64 = WORK + WORK_MAX as u64 * WORK_BYTES;
/// Bytes of the whole page.
pub(super) const PAGE_BYTES: u64 = NOTES + NOTES_MAX as u64 * NOTE_BYTES;

/// The counters of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Submissions that can be dispatched now, but are not.
    pub ready: u32,
    /// Submissions dispatched so far, wrapping.
    pub dispatched: u32,
    /// Submissions completed so far, wrapping.
    pub completed: u32,
}

/// An interval in which the GPU worked on a context's submissions. Times are nanoseconds of the system's monotonic clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// The start of the first submission.
    pub begin: u64,
    /// The end of the last submission.
    pub end: u64,
    /// The part of that time in which the GPU was busy with these submissions.
    pub busy: u64,
    /// The number of submissions.
    pub count: u32,
    /// True if the work is on a queue that only copies.
    pub copy: bool,
}

/// Returns the time of the pages' clock: the system's monotonic clock, in nanoseconds.
#[must_use]
pub fn page_clock() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let (seconds, rest) = (u64::try_from(now.tv_sec).unwrap_or(0), u64::try_from(now.tv_nsec).unwrap_or(0));
    seconds.saturating_mul(1_000_000_000).saturating_add(rest)
}

/// Makes the page of one worker, to be given to it and to the scheduler.
pub fn grant_page() -> io::Result<OwnedFd> {
    create("grants", PAGE_BYTES)
}

#[derive(Debug)]
struct Page {
    mapping: Arc<Mapping>,
    /// By the scheduler: dispatches that are allowed so far, wrapping.
    granted: Word,
    /// By the scheduler: 1 while no submission needs a grant.
    lease: Word,
    /// By both: changes when the gate has news to look at.
    wake: Word,
    /// By the scheduler: intervals read so far, wrapping.
    read: Word,
    /// By the scheduler: 1 while a trace is taken.
    traced: Word,
    /// By the scheduler: notes read so far, wrapping.
    notes_read: Word,
    /// By the scheduler: microseconds of the hardware's time slices for the context's work; 0 leaves them as the driver has them.
    slice: Word,
    ready: Word,
    dispatched: Word,
    completed: Word,
    /// Intervals written so far, wrapping.
    written: Word,
    /// Milliseconds of processor time that the worker has used.
    cpu: Word,
    /// Milliseconds, plus one, for which the worker's longest submission has run; 0 if none runs.
    running: Word,
    /// Notes written so far, wrapping.
    notes_written: Word,
    /// Notes for which there was no room so far, wrapping.
    notes_lost: Word,
}

impl Page {
    fn open(file: impl AsFd) -> Result<Self, MapError> {
        let mapping = Arc::new(Mapping::new(file, PAGE_BYTES)?);
        let word =
            |offset| mapping.word(offset).map_err(|_| MapError::Size { wanted: PAGE_BYTES, actual: 0 });
        // The scheduler's words and the worker's words are on lines of their own.
        let (granted, lease, wake, read) = (word(0)?, word(4)?, word(128)?, word(8)?);
        let (ready, dispatched, completed) = (word(64)?, word(68)?, word(72)?);
        let (written, cpu, running) = (word(76)?, word(80)?, word(84)?);
        let (traced, notes_read, notes_written, notes_lost) = (word(12)?, word(16)?, word(88)?, word(92)?);
        let slice = word(20)?;
        let mapping = Arc::clone(&mapping);
        Ok(Self {
            mapping,
            granted,
            lease,
            wake,
            read,
            traced,
            notes_read,
            slice,
            ready,
            dispatched,
            completed,
            written,
            cpu,
            running,
            notes_written,
            notes_lost,
        })
    }

    fn poke(&self) {
        self.wake.add(1, SeqCst);
        self.wake.wake();
    }

    fn at(index: u32) -> u64 {
        WORK + u64::from(index % WORK_MAX) * WORK_BYTES
    }

    fn note_at(index: u32) -> u64 {
        NOTES + u64::from(index % NOTES_MAX) * NOTE_BYTES
    }
}

/// The worker's side.
#[derive(Debug)]
pub struct GateSide(Page);

impl GateSide {
    /// Opens the page in a file that the device process sent.
    pub fn open(file: impl AsFd) -> Result<Self, MapError> {
        Page::open(file).map(Self)
    }

    /// Returns whether the worker may dispatch everything without a grant.
    pub fn is_leased(&self) -> bool {
        self.0.lease.load(Acquire) != 0
    }

    /// Returns the number of dispatches allowed so far, wrapping.
    pub fn granted(&self) -> u32 {
        self.0.granted.load(Acquire)
    }

    /// Returns the time slices in which the hardware is to run the context's work, in microseconds; 0 leaves them as the driver has them.
    pub fn slice(&self) -> u32 {
        self.0.slice.load(Relaxed)
    }

    /// Returns the counters that were reported last, by this process or by the one that had the page before.
    pub fn told(&self) -> Counters {
        let (dispatched, completed) = (self.0.dispatched.load(Acquire), self.0.completed.load(Acquire));
        Counters { ready: self.0.ready.load(Acquire), dispatched, completed }
    }

    /// Returns the processor time that was reported last.
    pub fn told_cpu(&self) -> Duration {
        Duration::from_millis(self.0.cpu.load(Relaxed).into())
    }

    /// Reports the worker's counters.
    pub fn tell(&self, counters: Counters) {
        // The scheduler reads in the reverse order, so that it sees no submission as both dispatched and ready.
        self.0.ready.store(counters.ready, Release);
        self.0.dispatched.store(counters.dispatched, Release);
        self.0.completed.store(counters.completed, Release);
    }

    /// Reports an interval; returns false if there is no room until the scheduler has read.
    pub fn tell_work(&self, work: &Work) -> bool {
        let written = self.0.written.load(Relaxed);
        if written.wrapping_sub(self.0.read.load(Acquire)) >= WORK_MAX {
            return false;
        }
        let told = self.0.mapping.copy_in(Page::at(written), &work.to_bytes()).is_ok();
        self.0.written.store(written.wrapping_add(1), Release);
        told
    }

    /// Returns whether a trace is being taken.
    pub fn is_traced(&self) -> bool {
        self.0.traced.load(Relaxed) != 0
    }

    /// Reports a note for a trace, or counts it as lost if there is no room until the scheduler has read. Only one thread at a time may call this.
    pub fn tell_note(&self, note: &TraceNote) {
        let written = self.0.notes_written.load(Relaxed);
        let is_full = written.wrapping_sub(self.0.notes_read.load(Acquire)) >= NOTES_MAX;
        if is_full || self.0.mapping.copy_in(Page::note_at(written), &note.to_bytes()).is_err() {
            let lost = self.0.notes_lost.load(Relaxed);
            return self.0.notes_lost.store(lost.wrapping_add(1), Relaxed);
        }
        self.0.notes_written.store(written.wrapping_add(1), Release);
    }

    /// Reports the processor time that this process has used.
    pub fn tell_cpu(&self, used: Duration) {
        self.0.cpu.store(u32::try_from(used.as_millis()).unwrap_or(u32::MAX), Relaxed);
    }

    /// Reports the time for which the longest submission has run, if the GPU has begun one.
    pub fn tell_running(&self, running: Option<Duration>) {
        let milliseconds = running.map_or(0, |time| u32::try_from(time.as_millis()).unwrap_or(u32::MAX));
        self.0.running.store(milliseconds.saturating_add(running.is_some().into()), Relaxed);
    }

    /// Returns the count of pokes. Take it before a look at everything, and pass it to [`Self::sleep`] afterwards.
    pub fn pokes(&self) -> u32 {
        self.0.wake.load(SeqCst)
    }

    /// Sleeps until the gate is poked, or until the limit; returns at once if it was poked since [`Self::pokes`].
    pub fn sleep(&self, pokes: u32, limit: Option<Duration>) {
        self.0.wake.wait(pokes, limit);
    }

    /// Wakes the gate.
    pub fn poke(&self) {
        self.0.poke();
    }
}

/// The position up to which the scheduler's side has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// Dispatches that are allowed so far, wrapping.
    pub granted: u32,
    /// Intervals of work read so far, wrapping.
    pub read: u32,
}

/// The scheduler's side.
#[derive(Debug)]
pub struct SchedulerSide {
    page: Page,
    granted: u32,
    read: u32,
    slice: u32,
    traced: bool,
    notes_read: u32,
    notes_lost: u32,
}

impl SchedulerSide {
    /// Opens the page in a file that a device process sent.
    pub fn open(file: impl AsFd) -> Result<Self, MapError> {
        let (granted, read, slice, traced, notes_read, notes_lost) = Default::default();
        Ok(Self { page: Page::open(file)?, granted, read, slice, traced, notes_read, notes_lost })
    }

    /// Opens the page that another process had as the scheduler's side, up to `reached`. The page then has no lease, no trace and no time slices.
    pub fn resume(file: impl AsFd, reached: Reached) -> Result<Self, MapError> {
        let Reached { granted, read } = reached;
        let page = Page::open(file)?;
        let notes_read = page.notes_written.load(Acquire);
        let notes_lost = page.notes_lost.load(Relaxed);
        let side = Self { page, granted, read, slice: 0, traced: false, notes_read, notes_lost };
        side.page.traced.store(0, Release);
        side.page.slice.store(0, Relaxed);
        side.page.lease.store(0, Release);
        side.page.poke();
        Ok(side)
    }

    /// Returns the position of this side, for [`Self::resume`].
    #[must_use]
    pub fn reached(&self) -> Reached {
        Reached { granted: self.granted, read: self.read }
    }

    /// Returns the counters as the worker claims them.
    pub fn counters(&self) -> Counters {
        let completed = self.page.completed.load(Acquire);
        let dispatched = self.page.dispatched.load(Acquire);
        Counters { ready: self.page.ready.load(Acquire), dispatched, completed }
    }

    /// Returns the processor time that the worker claims to have used.
    pub fn cpu(&self) -> Duration {
        Duration::from_millis(self.page.cpu.load(Relaxed).into())
    }

    /// Returns the time for which the worker claims that its longest submission has run.
    pub fn running(&self) -> Option<Duration> {
        let milliseconds = self.page.running.load(Relaxed).checked_sub(1)?;
        Some(Duration::from_millis(milliseconds.into()))
    }

    /// Takes the work that the worker claims to have had done since the last time; a bounded number of intervals.
    pub fn take_work(&mut self) -> Vec<Work> {
        let there = self.page.written.load(Acquire).wrapping_sub(self.read).min(WORK_MAX);
        let work = (0..there).filter_map(|at| self.work(self.read.wrapping_add(at)).ok()).collect();
        self.read = self.read.wrapping_add(there);
        self.page.read.store(self.read, Release);
        work
    }

    fn work(&self, index: u32) -> Result<Work, OutOfBounds> {
        let mut bytes = [0; WORK_BYTES as usize];
        self.page.mapping.copy_out(Page::at(index), &mut bytes)?;
        Ok(Work::of_bytes(&bytes))
    }

    /// Begins or ends a trace, for which the worker writes notes. The beginning discards the notes of an earlier trace.
    pub fn trace(&mut self, wanted: bool) {
        if std::mem::replace(&mut self.traced, wanted) == wanted {
            return;
        }
        if wanted {
            self.notes_read = self.page.notes_written.load(Acquire);
            self.page.notes_read.store(self.notes_read, Release);
            self.notes_lost = self.page.notes_lost.load(Relaxed);
        }
        self.page.traced.store(wanted.into(), Release);
    }

    /// Takes up to `most` notes that the worker claims to have written since the last time.
    pub fn take_notes(&mut self, most: u32) -> TakenNotes {
        let there = self.page.notes_written.load(Acquire).wrapping_sub(self.notes_read);
        let count = there.min(NOTES_MAX).min(most);
        let mut taken = TakenNotes::default();
        for at in 0..count {
            let mut bytes = [0; NOTE_BYTES as usize];
            let copied =
                self.page.mapping.copy_out(Page::note_at(self.notes_read.wrapping_add(at)), &mut bytes);
            match copied.ok().and_then(|()| TraceNote::of_bytes(&bytes)) {
                Some(note) => taken.notes.push(note),
                None => taken.nonsense += 1,
            }
        }
        self.notes_read = self.notes_read.wrapping_add(count);
        self.page.notes_read.store(self.notes_read, Release);
        let lost = self.page.notes_lost.load(Relaxed);
        taken.lost = lost.wrapping_sub(std::mem::replace(&mut self.notes_lost, lost));
        taken
    }

    /// Allows so many dispatches, counted since the beginning, wrapping.
    pub fn grant(&mut self, total: u32) {
        if self.granted != total {
            self.granted = total;
            self.page.granted.store(total, Release);
            self.page.poke();
        }
    }

    /// Has the hardware run the context's work in time slices of so many microseconds, where the worker can have that set; 0 leaves them as the driver has
    /// them.
    pub fn slice(&mut self, microseconds: u32) {
        if std::mem::replace(&mut self.slice, microseconds) != microseconds {
            self.page.slice.store(microseconds, Relaxed);
            self.page.poke();
        }
    }

    /// Gives the worker the lease to dispatch without asking, or takes it back.
    pub fn lease(&mut self, leased: bool) {
        self.page.lease.store(leased.into(), Release);
        self.page.poke();
    }
}

impl Work {
    fn to_bytes(self) -> [u8; WORK_BYTES as usize] {
        let mut bytes = [0; WORK_BYTES as usize];
        bytes[..8].copy_from_slice(&self.begin.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.end.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.busy.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.count.to_le_bytes());
        bytes[28] = self.copy.into();
        bytes
    }

    fn of_bytes(bytes: &[u8; WORK_BYTES as usize]) -> Self {
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        let count = u32::from_le_bytes(std::array::from_fn(|byte| bytes[24 + byte]));
        Self { begin: long(0), end: long(8), busy: long(16), count, copy: bytes[28] != 0 }
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::super::trace_note::{Stages, SubmissionId};
    use super::*;

    fn both_sides() -> (GateSide, SchedulerSide) {
        let file = grant_page().unwrap();
        (GateSide::open(&file).unwrap(), SchedulerSide::open(&file).unwrap())
    }

    #[test]
    fn both_sides_see_what_the_other_says() {
        let (gate, mut scheduler) = both_sides();
        let counters = Counters { ready: 3, dispatched: u32::MAX, completed: 7 };
        gate.tell(counters);
        assert_eq!((scheduler.counters(), gate.told()), (counters, counters));
        gate.tell_cpu(Duration::from_millis(12));
        assert_eq!(gate.told_cpu(), Duration::from_millis(12));
        assert!(!gate.is_leased());
        scheduler.lease(true);
        scheduler.grant(5);
        assert!((gate.is_leased(), gate.granted()) == (true, 5));
        let pokes = gate.pokes();
        scheduler.slice(0);
        assert_eq!((gate.slice(), gate.pokes()), (0, pokes), "nothing is new");
        scheduler.slice(200);
        assert_eq!(gate.slice(), 200);
        assert_ne!(gate.pokes(), pokes, "the gate is woken");
    }

    /// A scheduler's side and a worker of another program understand each other as long as this test holds.
    #[test]
    fn a_page_of_another_layout_has_another_version() {
        let file = grant_page().unwrap();
        let (gate, mut scheduler) = (GateSide::open(&file).unwrap(), SchedulerSide::open(&file).unwrap());
        gate.tell(Counters { ready: 1, dispatched: 2, completed: 3 });
        gate.tell_cpu(Duration::from_millis(4));
        gate.tell_running(Some(Duration::from_millis(4)));
        assert!(gate.tell_work(&Work { begin: 6, end: 7, busy: 8, count: 9, copy: true }));
        scheduler.take_work();
        scheduler.grant(10);
        scheduler.slice(11);
        scheduler.lease(true);
        scheduler.trace(true);
        let (id, flag) = (SubmissionId { queue: 11, number: 12 }, true);
        let (submitted, ready, dispatched, begin, end, noticed) = (13, 14, 15, 16, 17, 18);
        let (is_measured, copies, is_free) = (flag, flag, flag);
        let stages =
            Stages { id, submitted, ready, dispatched, begin, end, noticed, is_measured, copies, is_free };
        (0..NOTES_MAX + 19).for_each(|_| gate.tell_note(&TraceNote::Complete(stages)));
        scheduler.take_notes(1);
        let mapping = Mapping::new(&file, PAGE_BYTES).unwrap();
        let word = |at: u64| {
            let mut bytes = [0; 4];
            mapping.copy_out(at, &mut bytes).unwrap();
            u32::from_le_bytes(bytes)
        };
        let read = |from: u64, to: u64| -> Vec<(u64, u32)> {
            (from..to).step_by(4).map(|at| (at, word(at))).filter(|(_, word)| *word != 0).collect()
        };
        // The word that the gate sleeps on changes with each poke.
        let words: Vec<_> = read(0, WORK).into_iter().filter(|(at, _)| *at != 128).collect();
        assert_eq!((GRANTS_LAYOUT, PAGE_BYTES), (1, 53_248));
        assert_eq!(
            words,
            [
                (0, 10),
                (4, 1),
                (8, 1),
                (12, 1),
                (16, 1),
                (20, 11),
                (64, 1),
                (68, 2),
                (72, 3),
                (76, 1),
                (80, 4),
                (84, 5),
                (88, 512),
                (92, 19)
            ]
        );
        assert_ne!(word(128), 0);
        assert_eq!(read(WORK, NOTES), [(4096, 6), (4104, 7), (4112, 8), (4120, 9), (4124, 1)]);
        let note = [(20480, 0x0101_0b00), (20484, 1), (20488, 12), (20496, 13), (20504, 14)];
        let rest = [(20512, 15), (20520, 16), (20528, 17), (20536, 18)];
        assert_eq!(read(NOTES, NOTES + NOTE_BYTES), [note.as_slice(), &rest].concat());
    }

    #[test]
    fn another_process_goes_on_where_the_scheduler_was() {
        let file = grant_page().unwrap();
        let (gate, mut old) = (GateSide::open(&file).unwrap(), SchedulerSide::open(&file).unwrap());
        let work = |count| Work { begin: 1, end: 9, busy: 3, count, copy: false };
        assert!(gate.tell_work(&work(1)));
        assert_eq!(old.take_work(), [work(1)]);
        old.grant(5);
        old.slice(200);
        old.lease(true);
        old.trace(true);
        assert!(gate.tell_work(&work(2)));
        let mut new = SchedulerSide::resume(&file, old.reached()).unwrap();
        assert_eq!(new.take_work(), [work(2)], "nothing is charged twice");
        assert_eq!((gate.granted(), gate.is_leased(), gate.is_traced()), (5, false, false));
        assert_eq!(gate.slice(), 0);
        new.grant(6);
        assert_eq!(gate.granted(), 6);
    }

    #[test]
    fn work_is_read_once_and_in_order() {
        let (gate, mut scheduler) = both_sides();
        let work = |at: u32| Work {
            begin: at.into(),
            end: u64::MAX,
            busy: 1,
            count: at,
            copy: at.is_multiple_of(2),
        };
        let mut told = 0;
        for round in 0..5 {
            while gate.tell_work(&work(told)) {
                told += 1;
            }
            assert_eq!(told, (round + 1) * WORK_MAX);
            let taken = scheduler.take_work();
            assert_eq!(taken, (told - WORK_MAX..told).map(work).collect::<Vec<_>>());
        }
        assert_eq!(scheduler.take_work(), []);
    }

    #[test]
    fn notes_are_taken_once_and_in_order_and_what_finds_no_room_is_counted() {
        let (gate, mut scheduler) = both_sides();
        assert!(!gate.is_traced());
        let told = |number: u64| TraceNote::Told { of: SubmissionId { queue: 63, number }, at: u64::MAX };
        gate.tell_note(&told(0));
        scheduler.trace(true);
        assert!(gate.is_traced());
        let max = u64::from(NOTES_MAX);
        (1..=max + 7).for_each(|number| gate.tell_note(&told(number)));
        let first = scheduler.take_notes(100);
        assert_eq!((first.lost, first.nonsense), (7, 0));
        assert_eq!(first.notes, (1..=100).map(told).collect::<Vec<_>>(), "old notes are gone");
        let rest = scheduler.take_notes(u32::MAX);
        assert_eq!((rest.lost, rest.notes), (0, (101..=max).map(told).collect()));
        let stages = Stages {
            id: SubmissionId { queue: 1, number: 2 },
            submitted: 3,
            ready: 4,
            dispatched: 5,
            begin: 6,
            end: 7,
            noticed: 8,
            is_measured: true,
            copies: false,
            is_free: true,
        };
        gate.tell_note(&TraceNote::Complete(stages));
        assert_eq!(scheduler.take_notes(9).notes, [TraceNote::Complete(stages)]);
        assert!(scheduler.take_notes(9).notes.is_empty());
        scheduler.trace(false);
        assert!(!gate.is_traced());
    }

    #[test]
    fn a_page_that_somebody_else_writes_yields_a_bounded_number_of_notes() {
        let file = grant_page().unwrap();
        let mut scheduler = SchedulerSide::open(&file).unwrap();
        let page = Mapping::new(&file, PAGE_BYTES).unwrap();
        scheduler.trace(true);
        for written in [NOTES_MAX + 1, u32::MAX, 5] {
            // The counter is forged, and the records have an unknown kind.
            page.copy_in(88, &written.to_le_bytes()).unwrap();
            (0..NOTES_MAX).for_each(|at| page.copy_in(Page::note_at(at), &[0xff; 64]).unwrap());
            let taken = scheduler.take_notes(300);
            assert!(taken.notes.is_empty() && taken.nonsense <= 300, "{taken:?}");
        }
    }

    #[test]
    fn a_gate_sleeps_until_it_is_poked() {
        let (gate, mut scheduler) = both_sides();
        let before = gate.pokes();
        scheduler.grant(1);
        // Returns at once, because the gate was poked meanwhile.
        gate.sleep(before, None);
        let before = gate.pokes();
        gate.sleep(before, Some(Duration::from_millis(1)));
        let sleeper = std::thread::spawn(move || gate.sleep(before, None));
        std::thread::sleep(Duration::from_millis(20));
        assert!(!sleeper.is_finished());
        scheduler.lease(false);
        sleeper.join().unwrap();
    }
}
