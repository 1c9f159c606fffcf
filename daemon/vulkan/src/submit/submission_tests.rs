//! Tests of [`super::Submissions`] with a driver that is a list of what is signalled.

use super::*;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Default)]
struct Fake {
    signalled: BTreeSet<u64>,
    values: BTreeMap<u64, u64>,
}

impl Driver for Fake {
    fn is_signalled(&self, marker: u64) -> bool {
        self.signalled.contains(&marker)
    }

    fn has_reached(&self, _: Semaphore, raw: u64, value: u64) -> bool {
        self.values.get(&raw).copied().unwrap_or_default() >= value
    }
}

const STEP: Duration = Duration::from_millis(50);

/// Submits to a driver that takes it.
fn submit(queue: &mut Submissions, marker: u64, waits: Vec<Wait>, now: Instant) {
    let submission = Submission::new(0, Some(marker), None, waits);
    queue.begin(Arc::clone(&submission), now);
    submission.taken();
}

/// Looks at the queues every 50 ms for a while; returns what the last look found.
fn watch(queues: &mut [&mut Submissions], driver: &Fake, now: &mut Instant, time: Duration) -> Look {
    let end = *now + time;
    let mut look = Look::default();
    while *now < end {
        *now += STEP;
        for queue in &mut *queues {
            queue.collect(driver, || *now);
        }
        let looks = queues.iter_mut().map(|queue| queue.look(driver, *now, true));
        look = looks.fold(Look::default(), Look::and);
    }
    look
}

fn ran(time: Duration) -> Look {
    Look { pending: true, running: Some(time), ..Look::default() }
}

fn timeline(value: u64) -> Wait {
    let signal = Arc::new(Mutex::new(Signal::Timeline { promised: 0 }));
    Wait::Timeline { semaphore: Semaphore(1), raw: 7, value, signal }
}

const BLOCKED: Look = Look { pending: true, running: None, usual: None, served: None, compiled: None };
const SECOND: Duration = Duration::from_secs(1);

#[test]
fn time_counts_from_the_submission_or_from_the_end_of_the_one_before() {
    let (mut now, mut driver) = (Instant::now(), Fake::default());
    let mut queue = Submissions::new(now);
    now += 9 * SECOND;
    submit(&mut queue, 1, vec![], now);
    assert_eq!(watch(&mut [&mut queue], &driver, &mut now, SECOND), ran(SECOND));
    submit(&mut queue, 2, vec![], now);
    assert_eq!(watch(&mut [&mut queue], &driver, &mut now, SECOND), ran(2 * SECOND));
    driver.signalled.insert(1);
    assert_eq!(watch(&mut [&mut queue], &driver, &mut now, STEP), ran(Duration::ZERO));
    assert_eq!(watch(&mut [&mut queue], &driver, &mut now, SECOND), ran(SECOND));
    driver.signalled.insert(2);
    assert_eq!(watch(&mut [&mut queue], &driver, &mut now, STEP), Look::default());
}

#[test]
fn many_short_submissions_are_not_one_long() {
    let (mut now, mut driver) = (Instant::now(), Fake::default());
    let mut queue = Submissions::new(now);
    (0..100).for_each(|marker| submit(&mut queue, marker, vec![], now));
    for marker in 0..100 {
        assert!(watch(&mut [&mut queue], &driver, &mut now, SECOND) <= ran(SECOND));
        driver.signalled.insert(marker);
    }
    assert_eq!(watch(&mut [&mut queue], &driver, &mut now, STEP), Look::default());
}

impl PartialOrd for Look {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        self.running.partial_cmp(&other.running)
    }
}

#[test]
fn waiting_for_a_value_is_not_running_and_time_counts_once_it_is_reached() {
    let (mut now, mut driver) = (Instant::now(), Fake::default());
    let mut queue = Submissions::new(now);
    submit(&mut queue, 1, vec![timeline(5)], now);
    assert_eq!(watch(&mut [&mut queue], &driver, &mut now, 3600 * SECOND), BLOCKED);
    driver.values.insert(7, 4);
    assert_eq!(watch(&mut [&mut queue], &driver, &mut now, SECOND), BLOCKED);
    driver.values.insert(7, 5);
    assert_eq!(watch(&mut [&mut queue], &driver, &mut now, SECOND), ran(SECOND));
}

#[test]
fn what_waits_for_another_queue_leaves_the_blame_there() {
    let (mut now, mut driver) = (Instant::now(), Fake::default());
    let (mut first, mut second) = (Submissions::new(now), Submissions::new(now));
    let blocker = Submission::new(0, Some(1), None, vec![timeline(1)]);
    first.begin(Arc::clone(&blocker), now);
    blocker.taken();
    submit(&mut second, 2, vec![Wait::Signalled(blocker.progress().clone())], now);
    assert_eq!(watch(&mut [&mut first, &mut second], &driver, &mut now, 60 * SECOND), BLOCKED);
    driver.values.insert(7, 1);
    watch(&mut [&mut first, &mut second], &driver, &mut now, SECOND);
    assert_eq!(first.look(&driver, now, true), ran(SECOND));
    assert_eq!(second.look(&driver, now, true), BLOCKED);
    driver.signalled.insert(1);
    watch(&mut [&mut first, &mut second], &driver, &mut now, 2 * SECOND);
    assert_eq!(first.look(&driver, now, true), Look::default());
    assert_eq!(second.look(&driver, now, true), ran(2 * SECOND));
}

#[test]
fn a_signal_that_the_driver_refused_blocks_nobody() {
    let (mut now, driver) = (Instant::now(), Fake::default());
    let (mut first, mut second) = (Submissions::new(now), Submissions::new(now));
    let refused = Submission::new(0, Some(1), None, vec![]);
    first.begin(Arc::clone(&refused), now);
    submit(&mut second, 2, vec![Wait::Signalled(refused.progress().clone())], now);
    first.withdraw(&refused);
    assert_eq!(watch(&mut [&mut first, &mut second], &driver, &mut now, SECOND), ran(SECOND));
}

#[test]
fn time_in_which_nobody_looked_does_not_count() {
    let (mut now, driver) = (Instant::now(), Fake::default());
    let mut queue = Submissions::new(now);
    submit(&mut queue, 1, vec![], now);
    now += 3600 * SECOND;
    assert_eq!(queue.look(&driver, now, true), ran(GAP_MAX));
    queue.restart();
    assert_eq!(queue.look(&driver, now, true), ran(Duration::ZERO));
}

#[test]
fn a_marker_is_not_asked_for_while_the_driver_submits_it_and_that_time_counts() {
    let (mut now, mut driver) = (Instant::now(), Fake::default());
    let mut queue = Submissions::new(now);
    let submission = Submission::new(0, Some(1), None, vec![]);
    queue.begin(Arc::clone(&submission), now);
    driver.signalled.insert(1);
    assert_eq!(watch(&mut [&mut queue], &driver, &mut now, SECOND), ran(SECOND));
    submission.taken();
    assert_eq!(watch(&mut [&mut queue], &driver, &mut now, STEP), Look::default());
}

#[test]
fn who_waits_for_all_waits_for_the_last_and_its_marker_is_freed_once() {
    let (now, mut driver) = (Instant::now(), Fake::default());
    let mut queue = Submissions::new(now);
    assert!(queue.await_last().is_none());
    submit(&mut queue, 1, Vec::new(), now);
    submit(&mut queue, 2, Vec::new(), now);
    // The driver has not got it.
    queue.begin(Submission::new(0, Some(3), None, Vec::new()), now);
    let waiters = [(); 2].map(|()| queue.await_last().unwrap());
    assert_eq!(waiters.each_ref().map(|last| last.marker()), [Some(2); 2]);
    driver.signalled.insert(2);
    // Not known to be complete while one before it is not: who collects it frees it.
    assert!(queue.collect(&driver, || now).is_empty());
    let early = queue.await_last().unwrap();
    assert!(!early.has_ended() && early.is_awaited());
    driver.signalled.insert(1);
    let complete = queue.collect(&driver, || now);
    assert_eq!(
        complete.iter().map(|one| (one.marker(), one.is_awaited())).collect::<Vec<_>>(),
        [(Some(1), false), (Some(2), true)]
    );
    assert!(!waiters[0].has_ended() && waiters[1].has_ended());
    assert!(queue.await_last().is_none());
}

/// Submits without a marker to a driver that takes it.
fn submit_unmarked(queue: &mut Submissions, number: Number, now: Instant) -> Arc<Submission> {
    let submission = Submission::new(number, None, None, vec![]);
    queue.begin(Arc::clone(&submission), now);
    submission.taken();
    submission
}

#[test]
fn a_marker_tells_of_those_before_it_that_have_none() {
    let (now, mut driver) = (Instant::now(), Fake::default());
    let mut queue = Submissions::new(now);
    let first = submit_unmarked(&mut queue, 1, now);
    assert!(queue.collect(&driver, || now).is_empty());
    submit_unmarked(&mut queue, 2, now);
    let marked = Submission::new(3, Some(7), None, vec![]);
    queue.begin(Arc::clone(&marked), now);
    driver.signalled.insert(7);
    // The driver has not got it.
    assert!(queue.collect(&driver, || now).is_empty() && !first.progress().is_complete());
    marked.taken();
    submit_unmarked(&mut queue, 4, now);
    assert_eq!(queue.collect(&driver, || now).len(), 3);
    assert!(first.progress().is_complete());
    assert_eq!(queue.first(), Some(4));
}

#[test]
fn what_shares_a_marker_shares_the_time_it_takes() {
    let (mut now, driver) = (Instant::now(), Fake::default());
    let mut queue = Submissions::new(now);
    (1..=3).for_each(|number| drop(submit_unmarked(&mut queue, number, now)));
    submit(&mut queue, 9, vec![], now);
    assert_eq!(watch(&mut [&mut queue], &driver, &mut now, 4 * SECOND), ran(SECOND));
}

#[test]
fn few_in_a_row_go_without_a_marker_and_none_behind_one_that_was_asked_for() {
    let now = Instant::now();
    let mut queue = Submissions::new(now);
    for number in 1..=3 {
        assert!(queue.spares_marker(3));
        submit_unmarked(&mut queue, number, now);
    }
    assert!(!queue.spares_marker(3));
    submit(&mut queue, 9, vec![], now);
    assert!(queue.spares_marker(3));
    assert!(queue.await_last().is_some());
    assert!(!queue.spares_marker(3));
    submit_unmarked(&mut queue, 5, now);
    assert!(queue.spares_marker(3));
    assert!(queue.unmarked(5).is_some());
    assert!(!queue.spares_marker(3));
}

#[test]
fn who_asks_gets_a_marker_behind_the_last_unless_one_tells_already() {
    let (now, mut driver) = (Instant::now(), Fake::default());
    let mut queue = Submissions::new(now);
    assert!(queue.unmarked(Number::MAX).is_none());
    submit_unmarked(&mut queue, 1, now);
    queue.begin(Submission::new(2, Some(7), None, vec![]), now);
    // What the driver has not got tells nothing yet.
    let last = queue.unmarked(1).unwrap();
    assert!(last.begin_marking() && !last.begin_marking());
    assert!(queue.unmarked(1).is_none(), "it is coming");
    // No fence was to be had.
    last.marked(None);
    assert!(queue.unmarked(1).is_some_and(|last| last.begin_marking()));
    driver.signalled.insert(u64::MAX);
    assert!(queue.collect(&driver, || now).is_empty(), "its marker is asked for before the driver has it");
    last.marked(Some(8));
    assert!(queue.unmarked(Number::MAX).is_none());
    driver.signalled.insert(8);
    assert_eq!(queue.collect(&driver, || now).len(), 1);
    assert!(!last.begin_marking(), "it is complete");
}

#[test]
fn older_work_needs_no_marker_behind_younger() {
    let now = Instant::now();
    let mut queue = Submissions::new(now);
    let marked = Submission::new(1, Some(9), None, vec![]);
    queue.begin(Arc::clone(&marked), now);
    marked.taken();
    submit_unmarked(&mut queue, 2, now);
    assert!(queue.unmarked(0).is_none() && queue.unmarked(1).is_none());
    assert!(queue.unmarked(2).is_some());
}

#[test]
fn who_watches_half_watches_what_has_a_marker() {
    let now = Instant::now();
    let mut queue = Submissions::new(now);
    (1..=4).for_each(|number| drop(submit_unmarked(&mut queue, number, now)));
    submit(&mut queue, 9, vec![], now);
    submit_unmarked(&mut queue, 5, now);
    let watched = queue.watch(Watched::Half).unwrap();
    assert_eq!(watched.marker(), Some(9));
    assert!(queue.watch(Watched::Last).is_none(), "one is watched");
}

#[test]
fn what_runs_long_is_marked_until_it_does_not() {
    let (mut now, mut driver) = (Instant::now(), Fake::default());
    let mut queue = Submissions::new(now);
    submit(&mut queue, 1, vec![], now);
    assert!(queue.spares_marker(3));
    watch(&mut [&mut queue], &driver, &mut now, STEP);
    assert!(!queue.spares_marker(3));
    driver.signalled.insert(1);
    submit(&mut queue, 2, vec![], now);
    watch(&mut [&mut queue], &driver, &mut now, STEP);
    assert!(queue.spares_marker(3), "the second has just begun");
}

/// Submits with the next number, which is its marker too.
fn submit_next(queue: &mut Submissions, now: Instant) -> Number {
    let number = queue.next();
    let submission = Submission::new(number, Some(number), None, vec![]);
    queue.begin(Arc::clone(&submission), now);
    submission.taken();
    number
}

#[test]
fn how_long_submissions_take_is_learned_from_those_that_end() {
    let (mut now, mut driver) = (Instant::now(), Fake::default());
    let mut queue = Submissions::new(now);
    // Nothing for an hour says nothing.
    now += 3600 * SECOND;
    assert_eq!(queue.look(&driver, now, true), Look::default());
    for _ in 0..20 {
        driver.signalled.extend((0..10).map(|_| submit_next(&mut queue, now)).collect::<Vec<_>>());
        watch(&mut [&mut queue], &driver, &mut now, STEP);
    }
    // The last look before their end was one step before this.
    let (usual, served) = (Some(STEP / 10), Some(now - STEP));
    assert_eq!(queue.look(&driver, now, true), Look { usual, served, ..Look::default() });
    let long = submit_next(&mut queue, now);
    assert_eq!(
        watch(&mut [&mut queue], &driver, &mut now, 3 * SECOND),
        Look { usual, served, ..ran(3 * SECOND) }
    );
    driver.signalled.insert(long);
    let look = watch(&mut [&mut queue], &driver, &mut now, STEP);
    assert_eq!(look.usual, Some((STEP / 10 * 3 + 3 * SECOND) / 4));
}

#[test]
fn what_cannot_have_begun_is_told_from_what_runs() {
    let (now, mut driver) = (Instant::now(), Fake::default());
    let mut queue = Submissions::new(now);
    let first = submit_next(&mut queue, now);
    let number = queue.next();
    let waiting = Submission::new(number, Some(number), None, vec![timeline(1)]);
    queue.begin(Arc::clone(&waiting), now);
    waiting.taken();
    let behind = submit_next(&mut queue, now);
    let blocked =
        |queue: &Submissions, driver: &Fake| [first, number, behind].map(|at| queue.is_blocked(driver, at));
    assert_eq!(blocked(&queue, &driver), [false, true, true]);
    driver.values.insert(7, 1);
    assert_eq!(blocked(&queue, &driver), [false; 3]);
    let held = Submission::new(queue.next(), Some(9), None, vec![]);
    held.hold();
    queue.begin(Arc::clone(&held), now);
    assert!(queue.is_blocked(&driver, held.number) && !queue.is_blocked(&driver, behind));
}

#[test]
fn who_comes_behind_one_without_a_marker_is_told() {
    let now = Instant::now();
    let mut queue = Submissions::new(now);
    assert!(!queue.ends_unmarked());
    submit_unmarked(&mut queue, 1, now);
    assert!(queue.ends_unmarked());
    submit_next(&mut queue, now);
    assert!(!queue.ends_unmarked());
}
