//! Tests of [`super::Submissions`] with a driver that is a list of signalled markers and values.

use super::super::pace::GAP_MAX;
use super::super::waits::{Wait, Waits};
use super::*;
use crate::kinds::semaphore::{Progress, Signal};
use parking_lot::Mutex;
use protocol::venus::generated::Semaphore;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

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

/// Begins a submission, with a marker or without.
fn begin(queue: &mut Submissions, marker: Option<u64>, waits: Vec<Wait>, now: Instant) -> Number {
    queue.begin(Beginning { marker, waits: waits.into_iter().collect(), ..Beginning::default() }, now)
}

/// Has the driver take a submission.
fn take(queue: &mut Submissions, number: Number) {
    queue.grant(number, None);
    queue.enter_driver(number);
}

/// Submits to a driver that takes it.
fn submit(queue: &mut Submissions, marker: u64, waits: Vec<Wait>, now: Instant) -> Number {
    let number = begin(queue, Some(marker), waits, now);
    take(queue, number);
    number
}

/// Looks at the queues every 50 ms for a while; returns the findings of the last look about pending submissions.
fn watch(queues: &mut [&mut Submissions], driver: &Fake, now: &mut Instant, time: Duration) -> Look {
    pending(watch_and_learn(queues, driver, now, time))
}

/// Does the same as [`watch`]; also returns the figures that were learned from submissions that ended.
fn watch_and_learn(
    queues: &mut [&mut Submissions],
    driver: &Fake,
    now: &mut Instant,
    time: Duration,
) -> Look {
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

/// Returns the findings of a look about pending submissions.
fn pending(look: Look) -> Look {
    Look { usual: None, served: None, ..look }
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
    (0..100).for_each(|marker| _ = submit(&mut queue, marker, vec![], now));
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
    let blocker = Progress::default();
    let waits = Waits::from_iter([timeline(1)]);
    let progress = Some(blocker.clone());
    let number = first.begin(Beginning { marker: Some(1), waits, progress, ..Beginning::default() }, now);
    take(&mut first, number);
    submit(&mut second, 2, vec![Wait::Signalled(blocker)], now);
    assert_eq!(watch(&mut [&mut first, &mut second], &driver, &mut now, 60 * SECOND), BLOCKED);
    driver.values.insert(7, 1);
    watch(&mut [&mut first, &mut second], &driver, &mut now, SECOND);
    assert_eq!(pending(first.look(&driver, now, true)), ran(SECOND));
    assert_eq!(pending(second.look(&driver, now, true)), BLOCKED);
    driver.signalled.insert(1);
    watch(&mut [&mut first, &mut second], &driver, &mut now, 2 * SECOND);
    assert_eq!(pending(first.look(&driver, now, true)), Look::default());
    assert_eq!(pending(second.look(&driver, now, true)), ran(2 * SECOND));
}

#[test]
fn a_signal_that_the_driver_refused_blocks_nobody() {
    let (mut now, driver) = (Instant::now(), Fake::default());
    let (mut first, mut second) = (Submissions::new(now), Submissions::new(now));
    let refused = Progress::default();
    let progress = Some(refused.clone());
    let number = first.begin(Beginning { marker: Some(1), progress, ..Beginning::default() }, now);
    submit(&mut second, 2, vec![Wait::Signalled(refused)], now);
    assert_eq!(first.withdraw(&[number]).len(), 1);
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
    let number = begin(&mut queue, Some(1), vec![], now);
    queue.grant(number, None);
    driver.signalled.insert(1);
    assert_eq!(watch(&mut [&mut queue], &driver, &mut now, SECOND), ran(SECOND));
    queue.enter_driver(number);
    assert_eq!(watch(&mut [&mut queue], &driver, &mut now, STEP), Look::default());
}

#[test]
fn a_wait_for_all_is_one_for_the_last_and_its_marker_is_freed_once() {
    let (now, mut driver) = (Instant::now(), Fake::default());
    let mut queue = Submissions::new(now);
    assert!(queue.await_last().is_none());
    submit(&mut queue, 1, Vec::new(), now);
    let last = submit(&mut queue, 2, Vec::new(), now);
    // The driver has not got it.
    begin(&mut queue, Some(3), Vec::new(), now);
    let [first, second] = [(); 2].map(|()| queue.await_last().unwrap());
    assert_eq!((first.number, second.number, queue.marker(last)), (last, last, Some(2)));
    driver.signalled.insert(2);
    // It is not known to be complete while an earlier one is not: the thread that collects it frees its marker.
    assert!(queue.collect(&driver, || now).is_empty());
    let early = queue.await_last().unwrap();
    assert_eq!(queue.let_go(early), None);
    driver.signalled.insert(1);
    let complete = queue.collect(&driver, || now);
    assert_eq!(complete.iter().map(|one| one.free).collect::<Vec<_>>(), [Some(1), None]);
    assert_eq!(queue.marker(last), None, "it has ended");
    assert_eq!((queue.let_go(first), queue.let_go(second)), (None, Some(2)));
    assert!(queue.await_last().is_none() && queue.left.is_empty());
}

/// Submits without a marker to a driver that takes it.
fn submit_unmarked(queue: &mut Submissions, now: Instant) -> Number {
    let number = begin(queue, None, vec![], now);
    take(queue, number);
    number
}

#[test]
fn a_marker_tells_of_those_before_it_that_have_none() {
    let (now, mut driver) = (Instant::now(), Fake::default());
    let mut queue = Submissions::new(now);
    let first = Progress::default();
    let number = queue.begin(Beginning { progress: Some(first.clone()), ..Beginning::default() }, now);
    take(&mut queue, number);
    assert!(queue.collect(&driver, || now).is_empty());
    submit_unmarked(&mut queue, now);
    let marked = begin(&mut queue, Some(7), vec![], now);
    driver.signalled.insert(7);
    // The driver has not got it.
    assert!(queue.collect(&driver, || now).is_empty() && !first.is_complete());
    take(&mut queue, marked);
    let last = submit_unmarked(&mut queue, now);
    assert_eq!(queue.collect(&driver, || now).len(), 3);
    assert!(first.is_complete());
    assert_eq!(queue.first().map(Submission::number), Some(last));
}

#[test]
fn what_shares_a_marker_shares_the_time_it_takes() {
    let (mut now, driver) = (Instant::now(), Fake::default());
    let mut queue = Submissions::new(now);
    (1..=3).for_each(|_| _ = submit_unmarked(&mut queue, now));
    submit(&mut queue, 9, vec![], now);
    assert_eq!(watch(&mut [&mut queue], &driver, &mut now, 4 * SECOND), ran(SECOND));
}

#[test]
fn few_in_a_row_go_without_a_marker_and_none_behind_one_that_was_asked_for() {
    let now = Instant::now();
    let mut queue = Submissions::new(now);
    for _ in 0..3 {
        assert!(queue.spares_marker(3));
        submit_unmarked(&mut queue, now);
    }
    assert!(!queue.spares_marker(3));
    submit(&mut queue, 9, vec![], now);
    assert!(queue.spares_marker(3));
    assert!(queue.await_last().is_some());
    assert!(!queue.spares_marker(3));
    let last = submit_unmarked(&mut queue, now);
    assert!(queue.spares_marker(3));
    assert_eq!(queue.unmarked(last), Some(last));
    assert!(!queue.spares_marker(3));
}

#[test]
fn a_marker_is_wanted_behind_the_last_unless_one_tells_already() {
    let (now, mut driver) = (Instant::now(), Fake::default());
    let mut queue = Submissions::new(now);
    assert!(queue.unmarked(Number::MAX).is_none());
    let first = submit_unmarked(&mut queue, now);
    begin(&mut queue, Some(7), vec![], now);
    // A submission that the driver has not got tells nothing yet.
    assert_eq!(queue.unmarked(first), Some(first));
    assert!(queue.begin_marking(first) && !queue.begin_marking(first));
    assert!(queue.unmarked(first).is_none(), "it is coming");
    // No fence was to be had.
    queue.mark(first, None);
    assert_eq!(queue.unmarked(first), Some(first));
    assert!(queue.begin_marking(first));
    driver.signalled.insert(u64::MAX);
    assert!(queue.collect(&driver, || now).is_empty(), "its marker is asked for before the driver has it");
    queue.mark(first, Some(8));
    assert!(queue.unmarked(Number::MAX).is_none());
    driver.signalled.insert(8);
    assert_eq!(queue.collect(&driver, || now).len(), 1);
    assert!(!queue.begin_marking(first), "it is complete");
}

#[test]
fn older_work_needs_no_marker_behind_younger() {
    let now = Instant::now();
    let mut queue = Submissions::new(now);
    let marked = submit(&mut queue, 9, vec![], now);
    let last = submit_unmarked(&mut queue, now);
    assert!(queue.unmarked(0).is_none() && queue.unmarked(marked).is_none());
    assert_eq!(queue.unmarked(last), Some(last));
}

#[test]
fn what_is_watched_of_half_has_a_marker_and_is_watched_once() {
    let (now, mut driver) = (Instant::now(), Fake::default());
    let mut queue = Submissions::new(now);
    (1..=4).for_each(|_| _ = submit_unmarked(&mut queue, now));
    let marked = submit(&mut queue, 9, vec![], now);
    let last = submit_unmarked(&mut queue, now);
    let watched = queue.watch(Watched::Half).unwrap();
    assert_eq!(watched.number, marked);
    assert!(queue.watch(Watched::Last).is_none(), "one is watched");
    driver.signalled.insert(9);
    assert_eq!(queue.collect(&driver, || now).len(), 5);
    assert!(queue.watch(Watched::Last).is_none(), "the watcher has not let go of it");
    assert_eq!(queue.let_go(watched), Some(9));
    assert_eq!(queue.watch(Watched::Last).unwrap().number, last);
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
    let number = queue.last + 1;
    submit(queue, number, vec![], now)
}

#[test]
fn how_long_submissions_take_is_learned_from_those_that_end() {
    let (mut now, mut driver) = (Instant::now(), Fake::default());
    let mut queue = Submissions::new(now);
    // An hour without submissions tells nothing.
    now += 3600 * SECOND;
    assert_eq!(queue.look(&driver, now, true), Look::default());
    for _ in 0..20 {
        driver.signalled.extend((0..10).map(|_| submit_next(&mut queue, now)).collect::<Vec<_>>());
        watch_and_learn(&mut [&mut queue], &driver, &mut now, STEP);
    }
    // The last look before their end was one step before this.
    let (usual, served) = (Some(STEP / 10), Some(now - STEP));
    assert_eq!(queue.look(&driver, now, true), Look { usual, served, ..Look::default() });
    let long = submit_next(&mut queue, now);
    assert_eq!(
        watch_and_learn(&mut [&mut queue], &driver, &mut now, 3 * SECOND),
        Look { usual, served, ..ran(3 * SECOND) }
    );
    driver.signalled.insert(long);
    let look = watch_and_learn(&mut [&mut queue], &driver, &mut now, STEP);
    assert_eq!(look.usual, Some((STEP / 10 * 3 + 3 * SECOND) / 4));
}

#[test]
fn what_cannot_have_begun_is_told_from_what_runs() {
    let (now, mut driver) = (Instant::now(), Fake::default());
    let mut queue = Submissions::new(now);
    let first = submit_next(&mut queue, now);
    let waiting = begin(&mut queue, Some(2), vec![timeline(1)], now);
    take(&mut queue, waiting);
    let behind = submit_next(&mut queue, now);
    let blocked =
        |queue: &Submissions, driver: &Fake| [first, waiting, behind].map(|at| queue.is_blocked(driver, at));
    assert_eq!(blocked(&queue, &driver), [false, true, true]);
    driver.values.insert(7, 1);
    assert_eq!(blocked(&queue, &driver), [false; 3]);
    let held = queue.begin(Beginning { is_held: true, marker: Some(9), ..Beginning::default() }, now);
    assert!(queue.is_blocked(&driver, held) && !queue.is_blocked(&driver, behind));
    // It is about to be in the driver.
    queue.grant(held, None);
    assert!(!queue.is_blocked(&driver, held));
}

#[test]
fn the_last_may_have_no_marker() {
    let now = Instant::now();
    let mut queue = Submissions::new(now);
    assert!(!queue.ends_unmarked());
    submit_unmarked(&mut queue, now);
    assert!(queue.ends_unmarked());
    submit_next(&mut queue, now);
    assert!(!queue.ends_unmarked());
}
