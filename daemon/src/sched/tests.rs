//! Tests of the scheduler.

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
