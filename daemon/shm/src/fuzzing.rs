//! Entry point for fuzzing the page of grants: the scheduler's side, the worker's side, and an attacker that also has the page and writes any value
//! anywhere.
//!
//! Until the attacker writes, each side gets exactly the values of the other. After that, neither side takes more than possible, takes an entry
//! twice, or sleeps through a poke.

use super::grants::{NOTES_MAX, PAGE_BYTES, WORK_MAX};
use super::{
    Counters, GateSide, Mapping, SchedulerSide, Stages, SubmissionId, TakenNotes, TraceNote, Work, grant_page,
};
use arbitrary::{Result, Unstructured};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::Duration;

const EVENTS_MAX: usize = 2048;

/// The offsets of the words in the page that count the intervals and the notes written.
const WRITTEN: u64 = 76;
const NOTES_WRITTEN: u64 = 88;

/// Runs both sides of a page of grants, neither of which trusts the page. Returns the number of events.
pub fn fuzz_grants(bytes: &[u8]) -> usize {
    let file = grant_page().expect("a file");
    let mut world = World::new(&file);
    let mut bytes = Unstructured::new(bytes);
    let mut happened = 0;
    while happened < EVENTS_MAX && !bytes.is_empty() && world.happen(&mut bytes).is_ok() {
        happened += 1;
    }
    happened
}

/// Both sides, the attacker's own mapping, and the values that each side should see.
struct World {
    gate: GateSide,
    scheduler: SchedulerSide,
    page: Mapping,
    /// The attacker has not written.
    honest: bool,
    counters: Counters,
    waiting: VecDeque<Work>,
    /// Intervals that the scheduler has taken, wrapping.
    taken: u32,
    granted: u32,
    leased: bool,
    cpu: Duration,
    running: Option<Duration>,
    traced: bool,
    notes: VecDeque<TraceNote>,
    /// Notes that the scheduler has taken, wrapping, and the notes without room since the last time.
    notes_taken: u32,
    notes_lost: u32,
}

impl World {
    fn new(file: &OwnedFd) -> Self {
        Self {
            gate: GateSide::open(file).expect("the worker's side opens"),
            scheduler: SchedulerSide::open(file).expect("the scheduler's side opens"),
            page: Mapping::new(file, PAGE_BYTES).expect("the page can be mapped"),
            honest: true,
            counters: Counters::default(),
            waiting: VecDeque::new(),
            taken: 0,
            granted: 0,
            leased: false,
            cpu: Duration::ZERO,
            running: None,
            traced: false,
            notes: VecDeque::new(),
            notes_taken: 0,
            notes_lost: 0,
        }
    }

    fn happen(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        match u.int_in_range(0..=15u8)? {
            0..=1 => {
                self.counters =
                    Counters { ready: u.arbitrary()?, dispatched: u.arbitrary()?, completed: u.arbitrary()? };
                self.gate.tell(self.counters);
            }
            2..=4 => self.tell_work(u)?,
            5..=6 => self.take_work(),
            7 => {
                let (total, pokes) = (u.arbitrary()?, self.gate.pokes());
                let is_new = total != self.granted;
                self.scheduler.grant(total);
                self.granted = total;
                assert!(!is_new || self.gate.granted() == total, "a grant does not arrive");
                assert_eq!(self.gate.pokes(), pokes.wrapping_add(is_new.into()), "a grant pokes once");
                if is_new {
                    // The sleep must return at once.
                    self.gate.sleep(pokes, None);
                }
            }
            8 => {
                self.leased = u.arbitrary()?;
                let pokes = self.gate.pokes();
                self.scheduler.lease(self.leased);
                assert_eq!(self.gate.is_leased(), self.leased, "a lease does not arrive");
                self.gate.sleep(pokes, None);
            }
            9 => {
                let milliseconds: u32 = u.arbitrary()?;
                self.cpu = Duration::from_millis(milliseconds.into());
                // A time that does not fit counts as the longest that fits.
                let more = Duration::from_secs(if u.ratio(1, 8)? { 1 << 40 } else { 0 });
                self.gate.tell_cpu(self.cpu + more);
                if !more.is_zero() {
                    self.cpu = Duration::from_millis(u32::MAX.into());
                }
            }
            10 => {
                let milliseconds: Option<u32> = u.arbitrary()?;
                self.running = milliseconds.map(|time| Duration::from_millis(time.into()));
                self.gate.tell_running(self.running);
                // One is added, so that 0 stands for none.
                self.running =
                    self.running.map(|time| time.min(Duration::from_millis(u64::from(u32::MAX) - 1)));
            }
            11 => self.forge(u)?,
            12 => self.tell_notes(u)?,
            13 => self.take_notes(u)?,
            14 => self.trace(u.arbitrary()?),
            _ => self.look(),
        }
        Ok(())
    }

    fn tell_work(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let work = Work {
            begin: u.arbitrary()?,
            end: u.arbitrary()?,
            busy: u.arbitrary()?,
            count: u.arbitrary()?,
            copy: u.arbitrary()?,
        };
        for _ in 0..if u.ratio(1, 8)? { u.int_in_range(1..=2 * WORK_MAX)? } else { 1 } {
            let before = self.word(WRITTEN);
            let told = self.gate.tell_work(&work);
            assert_eq!(self.word(WRITTEN), before.wrapping_add(told.into()), "told and not counted");
            if self.honest {
                assert_eq!(told, self.waiting.len() < WORK_MAX as usize, "{} wait", self.waiting.len());
                self.waiting.extend(told.then_some(work));
            }
        }
        Ok(())
    }

    fn take_work(&mut self) {
        let there = self.word(WRITTEN).wrapping_sub(self.taken).min(WORK_MAX);
        let work = self.scheduler.take_work();
        assert_eq!(work.len(), there as usize, "it goes by its own count of taken work");
        self.taken = self.taken.wrapping_add(there);
        if self.honest {
            assert!(work.into_iter().eq(self.waiting.drain(..)), "not in order");
        }
        let rest = self.word(WRITTEN).wrapping_sub(self.taken).min(WORK_MAX);
        let again = self.scheduler.take_work();
        assert_eq!(again.len(), rest as usize, "a piece of work is taken twice");
        self.taken = self.taken.wrapping_add(rest);
    }

    fn tell_notes(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let note = note(u)?;
        for _ in 0..if u.ratio(1, 8)? { u.int_in_range(1..=2 * NOTES_MAX)? } else { 1 } {
            self.gate.tell_note(&note);
            match self.notes.len() < NOTES_MAX as usize {
                true => self.notes.push_back(note),
                false => self.notes_lost += 1,
            }
        }
        Ok(())
    }

    fn take_notes(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let most = u.int_in_range(0..=2 * NOTES_MAX)?;
        let there = self.word(NOTES_WRITTEN).wrapping_sub(self.notes_taken).min(NOTES_MAX).min(most);
        let TakenNotes { notes, lost, nonsense } = self.scheduler.take_notes(most);
        assert_eq!(notes.len() + nonsense as usize, there as usize, "it goes by its own count");
        self.notes_taken = self.notes_taken.wrapping_add(there);
        if self.honest {
            let (there, all) = (there as usize, std::mem::take(&mut self.notes_lost));
            assert!(notes.into_iter().eq(self.notes.drain(..there)), "not in order");
            assert_eq!((lost, nonsense), (all, 0));
        }
        Ok(())
    }

    fn trace(&mut self, wanted: bool) {
        let begins = wanted && !std::mem::replace(&mut self.traced, wanted);
        self.traced = wanted;
        let written = self.word(NOTES_WRITTEN);
        self.scheduler.trace(wanted);
        if begins {
            self.notes_taken = written;
            (self.notes, self.notes_lost) = Default::default();
        }
        assert!(!self.honest || self.gate.is_traced() == wanted, "a wish does not arrive");
    }

    /// Writes into the page as any process that has it may.
    fn forge(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        self.honest = false;
        let value: [u8; 4] = if u.arbitrary()? {
            u.arbitrary()?
        } else {
            // Values near to the present counters, where counters are compared.
            let near = i32::from(u.arbitrary::<i16>()?);
            self.taken.wrapping_add_signed(near).to_le_bytes()
        };
        // Mostly the words at the beginning of the page.
        let words = if u.ratio(7, 8)? { 33 } else { PAGE_BYTES / 4 };
        let offset = u.int_in_range(0..=words - 1)? * 4;
        self.page.copy_in(offset, &value).expect("it is in the page");
        Ok(())
    }

    /// Reads everything that the worker's side claims.
    fn look(&self) {
        let (counters, cpu, running) =
            (self.scheduler.counters(), self.scheduler.cpu(), self.scheduler.running());
        if self.honest {
            assert_eq!((counters, cpu, running), (self.counters, self.cpu, self.running));
            assert_eq!((self.gate.granted(), self.gate.is_leased()), (self.granted, self.leased));
        }
        // No claim is so large that a sum with it overflows.
        let most = Duration::from_millis(u32::MAX.into());
        assert!(cpu <= most && running.is_none_or(|time| time < most), "{cpu:?}, {running:?}");
    }

    fn word(&self, offset: u64) -> u32 {
        let mut bytes = [0; 4];
        self.page.copy_out(offset, &mut bytes).expect("it is in the page");
        u32::from_le_bytes(bytes)
    }
}

fn note(u: &mut Unstructured<'_>) -> Result<TraceNote> {
    let id = SubmissionId { queue: u.arbitrary()?, number: u.arbitrary()? };
    if u.arbitrary()? {
        return Ok(TraceNote::Told { of: id, at: u.arbitrary()? });
    }
    let [submitted, ready, dispatched, begin, end, noticed] = u.arbitrary()?;
    let [is_measured, copies, is_free] = u.arbitrary()?;
    let stages =
        Stages { id, submitted, ready, dispatched, begin, end, noticed, is_measured, copies, is_free };
    Ok(TraceNote::Complete(stages))
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use std::{fs, path::Path};

    #[test]
    fn committed_pages_hold() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/grants_page");
        let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let events: usize = files.map(|file| super::fuzz_grants(&fs::read(file).unwrap())).sum();
        assert!(events > 1000, "only {events} events");
    }
}
