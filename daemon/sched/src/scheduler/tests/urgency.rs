//! Latency tenants, tenants that submit synchronously, and tenants that are alone.

use super::super::*;
use super::simulation::*;
use crate::Class;
use crate::time::{MICROSECOND, MILLISECOND, SECOND};

#[test]
fn a_latency_tenant_is_served_soon() {
    for setting in SETTINGS {
        let batch = [Guest::new(1, 100, 25 * MILLISECOND), Guest::new(2, 100, 25 * MILLISECOND)];
        let alone = simulate(setting, batch.to_vec(), 5 * SECOND).utilisation();
        let urgent = Guest::periodic(0, 100, MILLISECOND, 10 * MILLISECOND);
        let world = simulate(setting, [urgent].into_iter().chain(batch).collect(), 20 * SECOND);
        let p99 = world.percentile(0, 0.99);
        let loss = alone - world.utilisation();
        // Batch submissions take up to 27.5 ms.
        let most = if setting.gpu == Gpu::Sliced { 5.0 } else { 27.5 + 3.0 };
        assert!(p99 <= most && loss <= 0.02, "p99 {p99:.2} ms, loss {loss:.4}, {}", world.figures());
    }
}

#[test]
fn a_latency_tenant_that_takes_more_than_its_share_is_held_to_it() {
    for setting in SETTINGS {
        let mut greedy = Guest::new(0, 100, MILLISECOND);
        greedy.share.class = Class::Latency;
        let world = simulate(setting, vec![greedy, Guest::new(1, 100, 4 * MILLISECOND)], 10 * SECOND);
        assert!(
            (world.shares()[0] - 0.5).abs() <= 0.015 && world.utilisation() >= 0.97,
            "{}",
            world.figures()
        );
    }
}

#[test]
fn a_synchronous_tenant_is_waited_for_within_the_budget() {
    for setting in [SERIAL, SERIAL_FAR, SLICED] {
        let switches = if setting.gpu == Gpu::Serial { 0.98 } else { 0.96 };
        let parts = [0.0, 0.02, 0.05, 0.1].map(|anticipation| {
            let synchronous =
                Guest { outstanding: 1, think: 300 * MICROSECOND, ..Guest::new(0, 100, 2 * MILLISECOND) };
            let guests = vec![synchronous, Guest::new(1, 100, 25 * MILLISECOND)];
            let mut world = World::new(setting, Tuning { anticipation, ..Tuning::default() }, guests);
            world.run(20 * SECOND);
            assert!(
                world.utilisation() >= switches - 1.25 * anticipation,
                "{anticipation}: {}",
                world.figures()
            );
            world.shares()[0]
        });
        // A GPU that time-slices runs the submission beside the other.
        assert!(parts[1] > parts[0] + 0.05 || parts[0] > 0.35, "{parts:?}");
    }
}

#[test]
fn who_is_alone_need_not_ask_until_another_comes() {
    for setting in SETTINGS {
        let mut world = simulate(
            setting,
            vec![Guest { outstanding: 16, ..Guest::new(0, 100, 100 * MICROSECOND) }],
            SECOND,
        );
        assert_eq!(world.guests[0].leases, (1, 0), "{}", world.figures());
        assert!(world.utilisation() >= 0.97, "{}", world.figures());
        assert!(world.scheduler.usage(ContextKey(0)).unwrap().leased);
        world.join(Guest::new(1, 100, MILLISECOND));
        let before = world.guests[0].busy;
        world.run(2 * SECOND);
        assert_eq!(world.guests[0].leases, (1, 1), "{}", world.figures());
        let first = world.guests[1].latencies[0] as f64 / 1e6;
        let part = (world.guests[0].busy - before) as f64 / (2 * SECOND) as f64;
        // The bound covers the work under the lease, and the time for which the scheduler stays with a context.
        assert!(first <= 14.0, "the newcomer waited {first:.2} ms");
        assert!((part - 0.5).abs() <= 0.02, "{part:.4}");
        world.quiet(1);
        world.run(SECOND);
        assert_eq!(world.guests[0].leases, (2, 1), "{}", world.figures());
    }
}

#[test]
fn a_lease_is_late_beside_a_latency_tenant_and_never_given_below_a_ceiling() {
    let urgent = Guest::periodic(1, 100, MILLISECOND, 300 * MILLISECOND);
    let world = simulate(SERIAL, vec![Guest::new(0, 100, MILLISECOND), urgent], 3 * SECOND);
    let leases = world.guests[0].leases;
    assert!(leases.0 <= 1 && leases.0 == leases.1, "{leases:?}");
    let mut capped = Guest::new(0, 100, MILLISECOND);
    capped.share.ceiling = Some(0.9);
    assert_eq!(simulate(SERIAL, vec![capped], SECOND).guests[0].leases, (0, 0));
}
