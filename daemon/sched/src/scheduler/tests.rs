//! Tests of the scheduler.

mod hostile;
mod shares;
mod simulation;
mod urgency;
mod waiting;

use super::*;

#[test]
fn a_submission_of_a_tenant_is_granted() {
    let mut scheduler = Scheduler::new(Tuning::default());
    scheduler.set_tenant(TenantId(1), Share::default(), 0);
    scheduler.begin(ContextKey(1), TenantId(1), 0);
    scheduler.see(ContextKey(1), Seen { ready: 1, dispatched: 0, completed: 0 }, &[], 5);
    assert_eq!(scheduler.decide(5), [Order::Grant { context: ContextKey(1), total: 1 }]);
    let span = Span { begin: 10, end: 1_000_010, busy: 1_000_000, count: 1, copy: false };
    scheduler.see(ContextKey(1), Seen { ready: 0, dispatched: 1, completed: 1 }, &[span], 2_000_000);
    assert_eq!(scheduler.decide(2_000_000), []);
    assert_eq!(scheduler.usage(ContextKey(1)).unwrap().gpu, 1_000_000);
}

const MS: Nanos = 1_000_000;

fn seen(ready: u32, dispatched: u32, completed: u32) -> Seen {
    Seen { ready, dispatched, completed }
}

fn span(begin: Nanos, end: Nanos) -> Span {
    Span { begin, end, busy: end - begin, count: 1, copy: false }
}

/// Returns a scheduler with contexts 1 and 2, each of a tenant of its own.
fn two() -> Scheduler {
    let mut scheduler = Scheduler::new(Tuning::default());
    for id in [1, 2] {
        scheduler.set_tenant(TenantId(id), Share::default(), 0);
        scheduler.begin(ContextKey(id.into()), TenantId(id), 0);
    }
    scheduler
}

const A: ContextKey = ContextKey(1);
const B: ContextKey = ContextKey(2);

#[test]
fn totals_wrap() {
    let mut scheduler = two();
    let context = scheduler.contexts.get_mut(&A).unwrap();
    let start = u32::MAX;
    (context.granted, context.dispatched, context.completed) = (start, start, start);
    scheduler.see(A, seen(1, start, start), &[], MS);
    assert_eq!(scheduler.decide(MS), [Order::Grant { context: A, total: 0 }]);
    scheduler.see(A, seen(0, 0, 0), &[span(MS, 2 * MS)], 2 * MS);
    let usage = scheduler.usage(A).unwrap();
    assert_eq!((usage.gpu, usage.submissions, usage.in_driver, usage.strays), (MS, 1, 0, 0));
}

#[test]
fn a_worker_may_notice_late_that_its_lease_is_gone() {
    let mut scheduler = two();
    scheduler.see(A, seen(1, 0, 0), &[], MS);
    scheduler.decide(MS);
    scheduler.see(A, seen(1, 1, 1), &[span(MS, 2 * MS)], 21 * MS);
    assert_eq!(scheduler.decide(21 * MS), [Order::Lease(A)]);
    scheduler.see(A, seen(5, 3, 1), &[], 22 * MS);
    assert_eq!(scheduler.decide(22 * MS), []);
    assert!(!scheduler.others_wait(A));
    scheduler.see(B, seen(1, 0, 0), &[], 23 * MS);
    assert!(scheduler.others_wait(A));
    let orders = scheduler.decide(23 * MS);
    assert_eq!(orders[0], Order::Revoke(A));
    // Two more went to the driver meanwhile.
    scheduler.see(A, seen(3, 5, 1), &[], 24 * MS);
    scheduler.see(A, seen(3, 5, 5), &[], 28 * MS);
    let usage = scheduler.usage(A).unwrap();
    assert_eq!((usage.submissions, usage.strays, usage.leased), (5, 0, false));
    // Further dispatches were not granted.
    scheduler.decide(28 * MS);
    let granted = scheduler.contexts[&A].granted;
    scheduler.see(A, seen(3, granted + 2, 5), &[], 2000 * MS);
    assert_eq!(scheduler.usage(A).unwrap().strays, 2);
}

#[test]
fn where_all_have_leases_none_waits_for_another_and_nothing_is_ordered() {
    let mut scheduler = Scheduler::new(Tuning { leases_for_all: true, ..Tuning::default() });
    scheduler.set_tenant(TenantId(1), Share::default(), 0);
    for key in [A, B] {
        scheduler.begin(key, TenantId(1), 0);
        // The worker reports before the scheduler has decided.
        scheduler.see(key, seen(0, 4, 0), &[], MS);
    }
    assert_eq!(scheduler.decide(MS), []);
    for key in [A, B] {
        scheduler.see(key, seen(0, 4, 4), &[span(MS, 5 * MS)], 5 * MS);
        let usage = scheduler.usage(key).unwrap();
        assert!(
            usage.submissions == 4 && usage.gpu > 0 && usage.waiting == 0 && usage.strays == 0,
            "{usage:?}"
        );
    }
    assert_eq!(scheduler.decide(6 * MS), []);
}

#[test]
fn copies_have_a_bill_of_their_own_and_count_in_full() {
    let mut scheduler = two();
    for key in [A, B] {
        scheduler.see(key, seen(1, 0, 0), &[], 0);
    }
    assert_eq!(scheduler.decide(0).len(), 2);
    let copy = Span { copy: true, ..span(0, 10 * MS) };
    scheduler.see(A, seen(0, 1, 1), &[copy], 10 * MS);
    scheduler.see(B, seen(0, 1, 1), &[span(0, 10 * MS)], 10 * MS);
    let [a, b] = [A, B].map(|key| scheduler.usage(key).unwrap());
    assert_eq!((a.gpu, a.copy, b.gpu, b.copy), (0, 10 * MS, 10 * MS, 0));
    assert_eq!(scheduler.tenants[&TenantId(1)].v, scheduler.tenants[&TenantId(2)].v);
}

#[test]
fn a_span_that_comes_late_of_what_ran_during_a_lease_replaces_the_guess() {
    let mut scheduler = two();
    scheduler.see(A, seen(1, 0, 0), &[], 0);
    scheduler.decide(0);
    scheduler.contexts.get_mut(&A).unwrap().leased = true;
    scheduler.see(A, seen(0, 1, 1), &[], 10 * MS);
    scheduler.contexts.get_mut(&A).unwrap().leased = false;
    assert_eq!(scheduler.usage(A).unwrap().gpu, 10 * MS);
    scheduler.see(A, seen(0, 1, 1), &[span(2 * MS, 9 * MS)], 11 * MS);
    assert_eq!(scheduler.usage(A).unwrap().gpu, 7 * MS);
    scheduler.see(A, seen(0, 1, 1), &[span(9 * MS, 10 * MS)], 11 * MS);
    assert_eq!(scheduler.usage(A).unwrap().gpu, 7 * MS, "of a submission that was never granted");
}

/// A span is compared with the time for which the GPU was held, whenever the worker reports it.
#[test]
fn a_span_that_comes_before_or_behind_its_completion_is_believed_as_one_with_it() {
    for is_early in [true, false] {
        let mut scheduler = two();
        scheduler.tuning.lease_after = Nanos::MAX;
        for (count, now) in (1..=100).map(|count| (count, Nanos::from(count) * 10 * MS)) {
            scheduler.see(A, seen(1, count - 1, count - 1), &[], now);
            assert!(scheduler.decide(now).contains(&Order::Grant { context: A, total: count }));
            let (short, none): ([Span; 1], [Span; 0]) = ([span(now, now)], []);
            let spans = if is_early { [&short[..], &none] } else { [&none[..], &short] };
            let completed = if is_early { [count - 1, count] } else { [count, count] };
            for (completed, spans) in completed.into_iter().zip(spans) {
                scheduler.see(A, seen(0, count, completed), spans, now + 9 * MS);
            }
            scheduler.decide(now + 9 * MS);
        }
        let used = scheduler.usage(A).unwrap().gpu;
        assert!(used >= 900 * MS - 900 * MS / 8 - 10 * MS, "early: {is_early}, {used}");
    }
}

/// A worker cannot say that it used the GPU when others did.
#[test]
fn what_was_there_before_a_grant_is_no_part_of_a_span() {
    let mut scheduler = two();
    scheduler.see(B, seen(1, 0, 0), &[], 0);
    scheduler.decide(0);
    scheduler.see(B, seen(0, 1, 1), &[span(0, 100 * MS)], 100 * MS);
    scheduler.see(A, seen(1, 0, 0), &[], 100 * MS);
    scheduler.decide(100 * MS);
    scheduler.see(A, seen(0, 1, 1), &[span(50 * MS, 100 * MS)], 150 * MS);
    let [a, b] = [A, B].map(|key| scheduler.usage(key).unwrap().gpu);
    assert_eq!((a, b), (50 * MS, 100 * MS));
}

#[test]
fn a_tenant_whose_submissions_do_not_end_has_one_context_in_the_driver_beside_others_and_two_if_it_is_alone()
{
    let mut scheduler = two();
    let keys: Vec<_> = (3..9).map(ContextKey).collect();
    keys.iter().for_each(|key| scheduler.begin(*key, TenantId(1), 0));
    scheduler.see(B, seen(1, 0, 0), &[], 0);
    scheduler.decide(0);
    scheduler.see(B, seen(0, 1, 1), &[span(0, MS)], MS);
    scheduler.see(keys[0], seen(1, 0, 0), &[], 2 * MS);
    scheduler.decide(2 * MS);
    keys[1..].iter().for_each(|key| scheduler.see(*key, seen(1, 0, 0), &[], 90 * MS));
    let granted =
        |scheduler: &Scheduler| keys.iter().filter(|key| scheduler.contexts[key].granted > 0).count();
    // Granted work never ends.
    for (until, contexts) in [(1000 * MS, 1), (3000 * MS, 2), (60_000 * MS, 2)] {
        while scheduler.now < until {
            scheduler.decide(scheduler.next_look().unwrap_or(until).min(until));
        }
        assert_eq!(granted(&scheduler), contexts, "at {until}");
    }
    scheduler.see(B, seen(1, 1, 1), &[], 60_000 * MS);
    assert_eq!(scheduler.decide(60_000 * MS), [Order::Grant { context: B, total: 2 }]);
}

#[test]
fn a_tenant_pays_for_contexts_that_have_ended() {
    let mut scheduler = two();
    scheduler.begin(ContextKey(3), TenantId(1), 0);
    scheduler.see(A, seen(2, 0, 0), &[], 0);
    scheduler.decide(0);
    scheduler.see(A, seen(1, 1, 1), &[span(0, 4 * MS)], 4 * MS);
    scheduler.decide(4 * MS);
    scheduler.end(A, 5 * MS);
    assert_eq!(scheduler.usage(A), None);
    let usage = scheduler.tenant_usage(TenantId(1)).unwrap();
    assert_eq!((usage.gpu, usage.submissions, usage.in_driver), (5 * MS, 1, 0));
    scheduler.remove_tenant(TenantId(1));
    assert!(scheduler.contexts.keys().eq([&B]) && scheduler.units.0.is_empty());
    assert_eq!(scheduler.tenant_usage(TenantId(1)), None);
}
