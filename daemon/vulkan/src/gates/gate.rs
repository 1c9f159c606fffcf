//! The gate that scheduled submissions of a context to a GPU pass: it decides how many may pass, and reports to the scheduler.
//!
//! While the context has a lease and not much in the driver, a submission passes at once, on the thread that decoded it. Otherwise it
//! waits in the held queue (`vulkan::submit::held_queue`), decoding goes on, and the gate's thread dispatches it when it is granted. Only
//! ready submissions pass: one that waits for a submission which the program has not made yet would keep other contexts from the GPU.
//!
//! If no broker shares the GPU out ([`Passage::Counted`]), every submission passes at once and the gate has no thread: the gate counts
//! submissions, measures now and then what one costs, and notes each while a trace is taken.
//!
//! `vulkan::context::ranked` defines the order of locks.

use super::lane::{Lane, Standing, Step};
use crate::context::error::ContextLost;
use crate::context::ranked::{COUNTS, Exclusive, Ranked, TURN};
use crate::driver::time_slices::Slices;
use config::Passage;
use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};
use shm::{Counters, Doorbell, GateSide, TraceNote, Work};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// Estimated work that a leased context may have in the driver, in nanoseconds: a context that newly has work waits that long.
const LEASED_WORK: u64 = 4_000_000;

/// Submissions that a leased context may have in the driver, however long they are: one runs, one is staged.
const LEASED_MIN: u32 = 2;

/// The time that a submission is taken to last, in nanoseconds, before one has completed.
const FIRST_ESTIMATE: u64 = 200_000;

/// The age, in nanoseconds, at which the work of a leased context is reported.
const TELL_AFTER: u64 = 1_000_000;

/// Time between two looks at a submission that is not ready, since semaphores do not tell when they are signalled.
const UNREADY_LOOK: Duration = Duration::from_micros(500);

/// The function that is called when the context cannot go on.
pub(crate) type Failed = Box<dyn Fn(&ContextLost) + Send + Sync>;

/// The gate of one context before one GPU.
pub struct Gate {
    page: GateSide,
    passage: Passage,
    /// The processor time that a predecessor had used, as far as it had reported it.
    used_before: Duration,
    doorbell: Arc<Doorbell>,
    queues: Mutex<Vec<Weak<dyn Lane>>>,
    counts: Ranked<COUNTS, Counts>,
    /// The lock that is held while ready submissions are counted and while one of them passes. Without it, a submission could be reported twice:
    /// the scheduler would grant one that no program needs, and keep a place for it.
    turn: Ranked<TURN, ()>,
    /// True while a submission waits in a held queue.
    waiting: AtomicBool,
    ended: AtomicBool,
    failed: OnceLock<Failed>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate").field("counts", &self.counts).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Counts {
    counters: Counters,
    /// The number of submissions that were ready when the doorbell was last rung for them. During a lease it is not rung for ready submissions.
    rung_ready: u32,
    /// The time that a submission lasts on average, in nanoseconds.
    estimate: u64,
    /// The work that was not yet reported to the scheduler.
    untold: Option<Work>,
}

impl Gate {
    /// A gate that is passed in this way. The broker controls it through `page` and `doorbell`.
    pub fn new(page: GateSide, doorbell: Arc<Doorbell>, passage: Passage) -> Arc<Self> {
        let (counters, rung_ready) = Default::default();
        let used_before = page.told_cpu();
        let counts = Counts { counters, rung_ready, estimate: FIRST_ESTIMATE, untold: None };
        Arc::new(Self {
            page,
            passage,
            used_before,
            doorbell,
            queues: Mutex::default(),
            counts: Ranked::new(counts),
            turn: Ranked::default(),
            waiting: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            failed: OnceLock::new(),
            thread: Mutex::default(),
        })
    }

    /// Goes on where another process that had this page has stopped: none of its submissions waits or runs any more.
    pub fn take_over(&self) {
        let told = self.page.told();
        let mut counts = self.counts.lock();
        counts.counters = Counters { ready: 0, dispatched: told.dispatched, completed: told.dispatched };
        counts.rung_ready = 0;
        self.page.tell(counts.counters);
    }

    /// Starts the thread that dispatches waiting submissions, if submissions ever wait; the thread calls `failed` if it finds the context lost.
    ///
    /// # Errors
    ///
    /// There are too many threads.
    pub fn start(self: &Arc<Self>, failed: Failed) -> io::Result<()> {
        if !self.holds() {
            return Ok(());
        }
        let _ = self.failed.set(failed);
        let gate = Arc::clone(self);
        let thread = std::thread::Builder::new().name("gate".into()).spawn(move || gate.run())?;
        *self.thread.lock() = Some(thread);
        Ok(())
    }

    /// Ends the thread. Nothing is dispatched any more.
    pub fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
        self.page.poke();
        if let Some(thread) = self.thread.lock().take() {
            // A panic has been reported by the panic hook; there is nothing to add.
            let _ = thread.join();
        }
    }

    /// Adds a queue whose submissions pass this gate.
    pub fn add(&self, queue: Weak<dyn Lane>) {
        let mut queues = self.queues.lock();
        queues.retain(|queue| queue.strong_count() > 0);
        queues.push(queue);
    }

    /// Returns whether submissions may ever have to wait for the scheduler.
    pub fn holds(&self) -> bool {
        self.passage == Passage::ByGrant
    }

    /// Returns whether submissions may pass at once now.
    pub fn is_open(&self) -> bool {
        !self.holds() || self.page.is_leased()
    }

    /// Returns whether the end of a submission has to be known at once: for the scheduler, for a submission that waits for room in the driver, or for
    /// a trace.
    pub fn wants_completions(&self) -> bool {
        !self.is_open() || self.waiting.load(Ordering::SeqCst) || self.page.is_traced()
    }

    /// Returns whether a trace is taken, which notes each submission.
    pub fn is_traced(&self) -> bool {
        self.page.is_traced()
    }

    /// Adds a note to a trace, if one is taken.
    pub fn tell_note(&self, note: impl FnOnce() -> TraceNote) {
        if self.page.is_traced() {
            let note = note();
            // One thread at a time.
            let _counts = self.counts.lock();
            self.page.tell_note(&note);
        }
    }

    /// Lets `count` submissions that were not counted as ready pass, if they may; returns whether they may.
    pub fn pass(&self, count: u32) -> bool {
        self.let_pass(count, 0)
    }

    /// Lets one submission that was counted as ready pass, if it may; returns whether it may. The caller has the turn ([`Self::turn`]).
    pub(crate) fn pass_held(&self) -> bool {
        self.let_pass(1, 1)
    }

    /// Takes the turn, which no other thread has while the returned value lives.
    pub(crate) fn turn(&self) -> Exclusive<'_, TURN, ()> {
        self.turn.lock()
    }

    fn let_pass(&self, count: u32, counted: u32) -> bool {
        let mut counts = self.counts.lock();
        let may = self.has_room(&counts, count);
        if may {
            counts.counters.dispatched = counts.counters.dispatched.wrapping_add(count);
            counts.counters.ready = counts.counters.ready.saturating_sub(counted);
            // The next submission that becomes ready is news again.
            counts.rung_ready = counts.rung_ready.min(counts.counters.ready);
            self.page.tell(counts.counters);
        }
        may
    }

    /// Returns whether `count` submissions may pass now.
    fn has_room(&self, counts: &Counts, count: u32) -> bool {
        let counters = &counts.counters;
        if !self.holds() {
            true
        } else if self.page.is_leased() {
            let in_driver = counters.dispatched.wrapping_sub(counters.completed);
            in_driver < LEASED_MIN || u64::from(in_driver).saturating_mul(counts.estimate) < LEASED_WORK
        } else {
            // Grants and dispatches wrap; their difference is never as large as half of the range.
            self.page.granted().wrapping_sub(counters.dispatched).wrapping_sub(count) <= u32::MAX / 2
        }
    }

    /// Takes note of submissions that passed and have completed, or were not dispatched after all, and of the GPU's work for them, if it did
    /// any.
    pub fn completed(&self, work: &Work) {
        let mut counts = self.counts.lock();
        counts.counters.completed = counts.counters.completed.wrapping_add(work.count);
        if work.count > 0 {
            counts.estimate = (counts.estimate * 3 + work.busy / u64::from(work.count)) / 4;
        }
        counts.note(work);
        let leased = self.is_open();
        if !leased || counts.is_due() {
            counts.tell(&self.page);
        }
        self.page.tell(counts.counters);
        drop(counts);
        if !leased {
            self.doorbell.ring();
        } else if self.waiting.load(Ordering::SeqCst) {
            self.page.poke();
        }
    }

    /// Charges work that the GPU has done for the context from `begin` to `end`, nanoseconds of the pages' clock, apart from its submissions:
    /// clearing its memory, for example.
    pub fn charge(&self, begin: u64, end: u64) {
        self.completed(&Work { begin, end, busy: end.saturating_sub(begin), count: 0, copy: false });
    }

    /// Takes note that a new submission waits in a held queue: tells the scheduler, and wakes the gate's thread if that has to look at the held
    /// queues.
    pub fn arrived(&self) {
        let standing = self.announce();
        // The scheduler does not repeat a grant that no submission has needed so far.
        let is_granted = || standing.ready > 0 && self.has_room(&self.counts.lock(), 1);
        if standing.unready || standing.free || self.is_open() || is_granted() {
            // The gate's thread has to look: again and again until a submission is ready or has room, or because no grant is needed.
            self.page.poke();
        }
    }

    /// Reports for how long the longest submission has run.
    pub fn tell_running(&self, running: Option<Duration>) {
        self.page.tell_running(running);
    }

    /// Reports the processor time that this process has used.
    pub fn tell_processor_time(&self) {
        let used = clock_gettime(ClockId::ProcessCPUTime);
        self.page.tell_cpu(self.used_before + Duration::try_from(used).unwrap_or_default());
    }

    /// Reports that the context is lost.
    pub fn fail(&self, lost: &ContextLost) {
        if let Some(failed) = self.failed.get() {
            failed(lost);
        }
    }

    fn live_queues(&self) -> Vec<Arc<dyn Lane>> {
        self.queues.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Tells the scheduler how many ready submissions wait; returns the state of all held queues together.
    fn announce(&self) -> Standing {
        let turn = self.turn();
        let queues = self.live_queues();
        let standing = queues.iter().map(|queue| queue.standing()).fold(Standing::default(), Standing::and);
        let mut counts = self.counts.lock();
        counts.counters.ready = standing.ready;
        self.page.tell(counts.counters);
        // A lease may end right now: the gate's thread is then poked, and finds that the doorbell was not rung.
        let rings =
            !self.is_open() && std::mem::replace(&mut counts.rung_ready, standing.ready) != standing.ready;
        drop(counts);
        drop(turn);
        if rings {
            self.doorbell.ring();
        }
        standing
    }

    /// Returns the time for which the thread sleeps, unless it is poked, after a look that left submissions in the held queues.
    fn until_next_look(&self) -> Option<Duration> {
        let standing = self.announce();
        // A submission may have become ready after that look: no event tells when a semaphore is signalled, and no grant is needed any more.
        let passes = standing.ready > 0 && self.has_room(&self.counts.lock(), 1);
        if passes || standing.free {
            return Some(Duration::ZERO);
        }
        standing.unready.then_some(UNREADY_LOOK)
    }

    fn run(&self) {
        let (mut was_leased, mut slices) = (false, Slices::new());
        while !self.ended.load(Ordering::SeqCst) {
            let pokes = self.page.pokes();
            let leased = self.is_open();
            if std::mem::replace(&mut was_leased, leased) && !leased {
                // The scheduler knows only what was reported when it last looked.
                self.doorbell.ring();
            }
            let queues = self.live_queues();
            // Set before the look, so that a completion after the look pokes this thread.
            self.waiting.store(true, Ordering::SeqCst);
            let waits = self.dispatch(&queues);
            self.waiting.store(waits, Ordering::SeqCst);
            if self.wants_completions() {
                queues.iter().for_each(|queue| queue.watch_driver());
            }
            let limit = waits.then(|| self.until_next_look()).flatten();
            if !self.is_open() {
                self.counts.lock().tell(&self.page);
            }
            drop(queues);
            // Submissions come first: the kernel's module takes some time for this.
            slices.follow(self.page.slice());
            self.page.sleep(pokes, limit);
        }
    }

    /// Dispatches the submissions that may pass, one of each queue in turn; returns whether any is left.
    fn dispatch(&self, queues: &[Arc<dyn Lane>]) -> bool {
        loop {
            let steps: Vec<_> = queues.iter().map(|queue| queue.advance(self)).collect();
            if !steps.contains(&Step::Done) || self.ended.load(Ordering::SeqCst) {
                return steps.contains(&Step::Waits);
            }
        }
    }
}

impl Counts {
    /// Adds to the work that is not reported yet.
    fn note(&mut self, work: &Work) {
        let untold = self.untold.get_or_insert(Work { busy: 0, count: 0, ..*work });
        untold.begin = untold.begin.min(work.begin);
        untold.end = untold.end.max(work.end);
        untold.busy = untold.busy.saturating_add(work.busy);
        untold.count = untold.count.saturating_add(work.count);
        // Mixed work counts as computing.
        untold.copy &= work.copy;
    }

    fn is_due(&self) -> bool {
        self.untold.as_ref().is_some_and(|work| work.end.saturating_sub(work.begin) >= TELL_AFTER)
    }

    fn tell(&mut self, page: &GateSide) {
        if let Some(work) = self.untold.take_if(|work| page.tell_work(work)) {
            log::trace!("{work:?} was reported to the scheduler");
        }
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;
    use rustix::event::{Timespec, epoll as listening};
    use rustix::io::Errno;
    use shm::{SchedulerSide, grant_page};
    use std::os::fd::OwnedFd;
    use std::sync::atomic::AtomicU32;
    use std::time::Instant;

    /// The longest time that a test waits: one that waits for longer waits for ever.
    const LONG: Duration = Duration::from_secs(600);

    /// A queue before which so many submissions wait.
    #[derive(Default)]
    struct Standers(AtomicU32);

    impl Lane for Standers {
        fn advance(&self, gate: &Gate) -> Step {
            let _turn = gate.turn();
            match self.0.load(Ordering::SeqCst) {
                0 => Step::Empty,
                _ if gate.pass_held() => {
                    self.0.fetch_sub(1, Ordering::SeqCst);
                    Step::Done
                }
                _ => Step::Waits,
            }
        }

        fn standing(&self) -> Standing {
            Standing { ready: self.0.load(Ordering::SeqCst), ..Standing::default() }
        }

        fn watch_driver(&self) {}
    }

    /// A gate with one queue, the scheduler's end of its page, and the epoll instance that listens to its doorbell.
    struct World {
        gate: Arc<Gate>,
        lane: Arc<Standers>,
        scheduler: SchedulerSide,
        epoll: Arc<OwnedFd>,
        _listener: shm::Listener,
    }

    impl World {
        fn new() -> Self {
            let file = grant_page().unwrap();
            let epoll = Arc::new(listening::create(listening::CreateFlags::CLOEXEC).unwrap());
            let doorbell = Arc::new(Doorbell::new().unwrap());
            let listener = doorbell.listen(&epoll, 1).unwrap();
            let gate = Gate::new(GateSide::open(&file).unwrap(), doorbell, Passage::ByGrant);
            let lane = Arc::new(Standers::default());
            let weak: Weak<dyn Lane> = Arc::<Standers>::downgrade(&lane);
            gate.add(weak);
            Self { gate, lane, scheduler: SchedulerSide::open(&file).unwrap(), epoll, _listener: listener }
        }

        fn start(&self) {
            self.gate.start(Box::new(|lost| panic!("{lost:?}"))).unwrap();
        }

        /// Adds a submission, which has to wait.
        fn arrives(&self) {
            self.lane.0.fetch_add(1, Ordering::SeqCst);
            self.gate.arrived();
        }

        /// Returns whether the doorbell rings within a time, or has rung.
        fn rings(&self, within: Duration) -> bool {
            let none = listening::Event {
                flags: listening::EventFlags::empty(),
                data: listening::EventData::new_u64(0),
            };
            let begun = Instant::now();
            loop {
                let left = Timespec::try_from(within.saturating_sub(begun.elapsed())).unwrap();
                match listening::wait(&self.epoll, [none; 1].as_mut_slice(), Some(&left)) {
                    // The wait ends with this error in a process that was stopped and goes on.
                    Err(Errno::INTR) => {}
                    rung => break rung.unwrap() > 0,
                }
            }
        }

        /// Returns whether no submission stands in the held queue soon.
        fn is_empty_soon(&self) -> bool {
            let start = Instant::now();
            while self.lane.0.load(Ordering::SeqCst) > 0 && start.elapsed() < LONG {
                std::thread::sleep(Duration::from_millis(1));
            }
            self.lane.0.load(Ordering::SeqCst) == 0
        }
    }

    impl Drop for World {
        fn drop(&mut self) {
            self.gate.end();
        }
    }

    #[test]
    fn what_came_during_a_lease_that_the_gates_thread_has_slept_through_is_told() {
        let mut world = World::new();
        world.scheduler.lease(true);
        world.arrives();
        assert!(!world.rings(Duration::ZERO), "with a lease the scheduler need not be asked");
        world.scheduler.lease(false);
        world.start();
        assert!(world.rings(LONG));
        assert_eq!(world.scheduler.counters().ready, 1);
        world.scheduler.grant(1);
        assert!(world.is_empty_soon());
    }

    #[test]
    fn a_grant_that_was_left_over_is_used_by_what_comes_next() {
        let mut world = World::new();
        world.start();
        world.scheduler.grant(1);
        // The gate's thread has looked, and found nothing.
        std::thread::sleep(Duration::from_millis(50));
        world.arrives();
        assert!(world.is_empty_soon());
    }

    #[test]
    fn a_successor_counts_on_where_the_other_has_stopped() {
        let file = grant_page().unwrap();
        let gate = || {
            let doorbell = Arc::new(Doorbell::new().unwrap());
            Gate::new(GateSide::open(&file).unwrap(), doorbell, Passage::ByGrant)
        };
        let mut scheduler = SchedulerSide::open(&file).unwrap();
        let (old, new) = (gate(), gate());
        // Counters wrap.
        let start = u32::MAX - 1;
        GateSide::open(&file).unwrap().tell(Counters { ready: 0, dispatched: start, completed: start });
        old.take_over();
        scheduler.grant(start.wrapping_add(3));
        assert!(old.pass(3) && !old.pass(1));
        old.completed(&Work { begin: 1, end: 2, busy: 1, count: 3, copy: false });
        new.take_over();
        assert!(!new.pass(1), "granted by the old one's counting");
        scheduler.grant(start.wrapping_add(4));
        assert!(new.pass(1));
        assert_eq!(scheduler.counters(), Counters { ready: 0, dispatched: 2, completed: 1 });
    }

    #[test]
    fn where_submissions_are_counted_all_pass_whatever_is_in_the_driver() {
        let file = grant_page().unwrap();
        let scheduler = SchedulerSide::open(&file).unwrap();
        let doorbell = Arc::new(Doorbell::new().unwrap());
        let gate = Gate::new(GateSide::open(&file).unwrap(), doorbell, Passage::Counted);
        let work = |busy, count| Work { begin: 1, end: 1 + busy, busy, count, copy: false };
        assert!(gate.pass(1));
        // The gate learns that a submission takes a second, so a lease would let only a few pass.
        gate.completed(&work(1_000_000_000, 1));
        assert!((0..1000).all(|_| gate.pass(1)) && gate.is_open() && !gate.wants_completions());
        assert_eq!(scheduler.counters(), Counters { ready: 0, dispatched: 1001, completed: 1 });
    }

    #[test]
    fn each_that_becomes_ready_is_news_and_no_other() {
        let mut world = World::new();
        world.arrives();
        assert!(world.rings(Duration::ZERO));
        world.gate.arrived();
        assert!(!world.rings(Duration::ZERO), "that was said already");
        world.scheduler.grant(1);
        assert_eq!(world.lane.advance(&world.gate), Step::Done);
        world.arrives();
        assert!(world.rings(Duration::ZERO));
    }
}
