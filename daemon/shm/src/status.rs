//! The page that a worker shares with the device process: how long its submissions run and ran, how long a submission may run, and where the driver
//! looks for results.
//!
//! These values are in memory because they change all the time and hardly ever matter. Each word has one writer. A worker that was taken over can
//! write any value, and then only its reports about itself are wrong.

use super::{CheckpointMark, MapError, Mapping, ResultWords, Word, create};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::time::Duration;

/// The offset of the table of results, behind a page of words, and the size of everything.
const RESULTS: u64 = 4096;
const SIZE: u64 = RESULTS + ResultWords::SIZE;

/// The page shared with one worker, as either side sees it.
#[derive(Debug)]
pub struct StatusPage {
    /// By the worker: milliseconds, plus one, for which the longest of its submissions has run; 0 if none runs.
    running: Word,
    /// By the worker: changes whenever the worker looks at its submissions.
    looks: Word,
    /// By the worker: microseconds, plus one, that its submissions took so far; 0 if none has ended.
    usual: Word,
    /// By the worker: milliseconds, plus one, that have passed since one of its submissions ended, or a few more; 0 if none has ended.
    served: Word,
    /// By the device process: milliseconds for which a submission may run.
    limit: Word,
    /// By the device process: changes when the times of all submissions count from 0 again.
    restarts: Word,
    /// By the worker: whether its rings are awake.
    activity: Arc<Activity>,
    /// By the worker: whether its checkpoint has all of its context.
    checkpoint: Arc<CheckpointMark>,
    /// By the worker: its progress.
    progress: Arc<Progress>,
    /// By the worker: where the driver looks for the results of fences.
    results: Arc<ResultWords>,
}

/// The rings of a worker that are awake. Written only when a ring wakes up or goes to sleep, which is rare, so it costs nothing while rings work.
#[derive(Debug)]
pub struct Activity {
    /// The number of rings that are awake.
    awake: Word,
    /// Changes whenever a ring wakes up.
    wakings: Word,
}

impl Activity {
    /// Notes that a ring wakes up.
    pub fn wakes(&self) {
        self.wakings.add(1, Relaxed);
        self.awake.add(1, Release);
    }

    /// Notes that a ring goes to sleep, or is gone.
    pub fn sleeps(&self) {
        self.awake.add(u32::MAX, Release);
    }

    /// Returns how many rings are awake, and a number that changes whenever one wakes up.
    pub fn look(&self) -> (u32, u32) {
        (self.awake.load(Acquire), self.wakings.load(Relaxed))
    }
}

/// The progress of a worker.
#[derive(Debug)]
pub struct Progress {
    /// The number of messages that are executed.
    messages: Word,
    /// The number of submissions that are not complete, or not noted.
    pending: Word,
}

impl Progress {
    /// Reports that all messages up to this number are executed. Numbers count from 1, modulo 2^32.
    pub fn executed(&self, number: u32) {
        self.messages.store(number, Release);
    }

    /// Returns the number of the last message that is executed.
    pub fn messages(&self) -> u32 {
        self.messages.load(Acquire)
    }

    /// Notes that one more submission may reach the driver.
    pub fn submits(&self) {
        self.pending.add(1, SeqCst);
    }

    /// Subtracts so many submissions, because they are complete.
    pub fn completed(&self, count: u32) {
        self.pending.add(count.wrapping_neg(), SeqCst);
    }

    /// Returns whether no submission is in the driver.
    pub fn is_idle(&self) -> bool {
        self.pending.load(SeqCst) == 0
    }
}

impl StatusPage {
    /// Makes a page, whose file is given to a worker.
    pub fn create() -> io::Result<(Self, OwnedFd)> {
        let file = create("worker status", SIZE)?;
        let page = Self::open(&file).map_err(io::Error::other)?;
        Ok((page, file))
    }

    /// Opens the worker's side.
    pub fn open(file: impl AsFd) -> Result<Self, MapError> {
        let mapping = Arc::new(Mapping::new(file, SIZE)?);
        let word = |offset| mapping.word(offset).map_err(|_| MapError::Size { wanted: SIZE, actual: 0 });
        let results = Arc::new(ResultWords::new(Arc::clone(&mapping), RESULTS));
        let (running, looks, usual, served) = (word(0)?, word(4)?, word(8)?, word(12)?);
        let activity = Arc::new(Activity { awake: word(128)?, wakings: word(132)? });
        let (limit, restarts) = (word(64)?, word(68)?);
        let checkpoint = Arc::new(CheckpointMark::new(word(192)?));
        // Not in the cache line of the mark, which all executors read.
        let progress = Arc::new(Progress { messages: word(256)?, pending: word(260)? });
        Ok(Self { running, looks, usual, served, limit, restarts, activity, checkpoint, progress, results })
    }

    /// Reports a look of the worker: the time for which its longest submission has run, if one runs.
    pub fn report(&self, running: Option<Duration>) {
        store(&self.running, running);
        self.looks.store(self.looks.load(Relaxed).wrapping_add(1), Release);
    }

    /// Returns how long the worker's longest submission has run, if one runs.
    pub fn running(&self) -> Option<Duration> {
        load(&self.running)
    }

    /// Writes how long the worker's submissions took so far, if any has ended.
    pub fn tell_usual(&self, usual: Option<Duration>) {
        let microseconds =
            |time: Duration| u32::try_from(time.as_micros()).unwrap_or(u32::MAX).saturating_add(1);
        self.usual.store(usual.map_or(0, microseconds), Release);
    }

    /// Returns how long the worker's submissions took so far, if any has ended.
    pub fn usual(&self) -> Option<Duration> {
        let microseconds = self.usual.load(Acquire).checked_sub(1)?;
        Some(Duration::from_micros(microseconds.into()))
    }

    /// Writes how long ago one of the worker's submissions ended, if any has. Call this before [`Self::report`].
    pub fn tell_served(&self, ago: Option<Duration>) {
        store(&self.served, ago);
    }

    /// Returns how long ago one of the worker's submissions ended when it last looked, if any has.
    pub fn served(&self) -> Option<Duration> {
        load(&self.served)
    }

    /// Returns a number that changes with each look of the worker at its submissions.
    pub fn looks(&self) -> u32 {
        self.looks.load(Acquire)
    }

    /// Writes the time for which a submission may run.
    pub fn set_limit(&self, limit: Duration) {
        self.limit.store(milliseconds(limit), Release);
    }

    /// Returns the time for which a submission may run.
    pub fn limit(&self) -> Duration {
        Duration::from_millis(self.limit.load(Acquire).into())
    }

    /// Returns the activity of the worker's rings.
    pub fn activity(&self) -> &Arc<Activity> {
        &self.activity
    }

    /// Returns the mark that says whether the worker's checkpoint has all of its context.
    pub fn checkpoint(&self) -> &Arc<CheckpointMark> {
        &self.checkpoint
    }

    /// Returns the progress of the worker.
    pub fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    /// Returns the table of places where the driver looks for the results of fences.
    pub fn results(&self) -> &Arc<ResultWords> {
        &self.results
    }

    /// Has the times of all submissions count from 0 again.
    pub fn restart(&self) {
        self.restarts.store(self.restarts.load(Relaxed).wrapping_add(1), Release);
    }

    /// Returns a number that changes with [`Self::restart`].
    pub fn restarts(&self) -> u32 {
        self.restarts.load(Acquire)
    }
}

/// Writes a time, or that there is none.
fn store(word: &Word, time: Option<Duration>) {
    word.store(time.map_or(0, |time| milliseconds(time).saturating_add(1)), Release);
}

fn load(word: &Word) -> Option<Duration> {
    let milliseconds = word.load(Acquire).checked_sub(1)?;
    Some(Duration::from_millis(milliseconds.into()))
}

fn milliseconds(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;

    #[test]
    fn both_sides_see_what_the_other_says() {
        let (ours, file) = StatusPage::create().unwrap();
        let theirs = StatusPage::open(&file).unwrap();
        assert_eq!((ours.running(), ours.looks()), (None, 0));
        theirs.report(Some(Duration::ZERO));
        assert_eq!((ours.running(), ours.looks()), (Some(Duration::ZERO), 1));
        theirs.report(Some(Duration::from_millis(1500)));
        assert_eq!((ours.running(), ours.looks()), (Some(Duration::from_millis(1500)), 2));
        theirs.report(Some(Duration::from_secs(u64::MAX)));
        assert!(ours.running() > Some(Duration::from_secs(1_000_000)));
        theirs.report(None);
        assert_eq!(ours.running(), None);
        assert_eq!(ours.usual(), None);
        for usual in [Some(Duration::ZERO), Some(Duration::from_micros(1500)), None] {
            theirs.tell_usual(usual);
            assert_eq!(ours.usual(), usual);
        }
        theirs.tell_usual(Some(Duration::MAX));
        assert!(ours.usual() > Some(Duration::from_secs(4000)));
        for served in [Some(Duration::ZERO), Some(Duration::from_millis(1500)), None] {
            theirs.tell_served(served);
            assert_eq!(ours.served(), served);
        }
        assert_eq!(ours.activity().look(), (0, 0));
        (0..3).for_each(|_| theirs.activity().wakes());
        theirs.activity().sleeps();
        assert_eq!(ours.activity().look(), (2, 3));
        theirs.progress().executed(7);
        theirs.progress().submits();
        theirs.progress().submits();
        theirs.progress().completed(1);
        assert_eq!((ours.progress().messages(), ours.progress().is_idle()), (7, false));
        theirs.progress().completed(1);
        assert!(ours.progress().is_idle());
        ours.set_limit(Duration::from_secs(30));
        ours.restart();
        assert_eq!((theirs.limit(), theirs.restarts()), (Duration::from_secs(30), 1));
    }
}
