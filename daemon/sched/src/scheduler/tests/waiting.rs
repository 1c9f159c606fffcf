//! Programs that wait for their results, beside programs that do not.
//!
//! The GPU is [`MEASURED`], and hogs have long workgroups. In this simulation the scheduler that ran one-at-a-time submissions beside a hog, and
//! waited for no context, gave 0.43 to kernels of 2 ms two deep at 0.92, and 0.14 one at a time, as measured on the real GPU.

use super::super::*;
use super::simulation::*;
use crate::Class;
use crate::time::{MICROSECOND, MILLISECOND, SECOND};

/// Measured times from the end of a submission until a program that does not think has submitted again, in microseconds.
const WAYS: [Nanos; 32] = [
    150, 60, 230, 110, 170, 400, 90, 190, 140, 120, 260, 70, 160, 520, 130, 210, 100, 180, 150, 300, 80, 140,
    740, 170, 120, 200, 50, 350, 110, 240, 160, 130,
];

const TIME: Nanos = 6 * SECOND;

/// Returns a guest with two outstanding kernels of 25 ms, in workgroups of 6 ms.
fn hog(tenant: u32) -> Guest {
    Guest { workgroup: 6250 * MICROSECOND, ..waits(tenant, 25 * MILLISECOND, 2, 0) }
}

/// Returns a guest that has so many submissions of this length outstanding, and thinks for this time after each.
fn waits(tenant: u32, length: Nanos, outstanding: u32, think: Nanos) -> Guest {
    let thinks = WAYS.map(|way| way * MICROSECOND + think).to_vec();
    Guest { outstanding, thinks, workgroup: length / 4, ..Guest::new(tenant, 100, length) }
}

fn one(tenant: u32, think: Nanos) -> Guest {
    waits(tenant, 2 * MILLISECOND, 1, think)
}

/// Returns a guest that makes a token of so many submissions of this length, submits one at a time and waits for all, as llama.cpp does.
fn llama(tenant: u32, count: u32, length: Nanos, each: Nanos) -> Guest {
    let thinks = WAYS.map(|way| way * MICROSECOND + 100 * MICROSECOND).to_vec();
    Guest { stream: Some((count, each)), thinks, ..Guest::new(tenant, 100, length) }
}

fn run_with(anticipation: f64, guests: Vec<Guest>) -> World {
    let mut world = World::new(MEASURED, Tuning { anticipation, ..Tuning::default() }, guests);
    world.run(TIME);
    world
}

fn run(guests: Vec<Guest>) -> World {
    run_with(Tuning::default().anticipation, guests)
}

#[test]
fn depth_makes_no_difference_where_something_is_always_submitted() {
    for outstanding in [2, 3, 4, 8] {
        let world = run(vec![waits(0, 2 * MILLISECOND, outstanding, 0), hog(1)]);
        let (share, used) = (world.shares()[0], world.utilisation());
        assert!((share - 0.5).abs() <= 0.02 && used >= 0.97, "{outstanding} deep: {}", world.figures());
    }
}

#[test]
fn one_at_a_time_gets_its_share_and_pays_for_its_gaps() {
    // The gap from the end of one kernel to the beginning of the next is some 0.3 ms longer than these times.
    for (think, least) in [(0, 0.925), (50, 0.915), (100, 0.905)] {
        let world = run(vec![one(0, think * MICROSECOND), hog(1)]);
        let (share, used) = (world.shares()[0], world.utilisation());
        assert!(share >= 0.455 && used >= least, "{think} us: {}", world.figures());
        assert!(world.part(1) >= 0.48, "the other loses nothing, {think} us: {}", world.figures());
    }
}

#[test]
fn a_submission_that_comes_one_at_a_time_has_no_part_in_a_longer_ones_turn() {
    // The price is the budget of waiting: without it both run side by side, and the hog has most of the GPU.
    let parts = [0.0, 0.01, 0.02, 0.04, 0.08].map(|anticipation| {
        let world = run_with(anticipation, vec![one(0, 0), hog(1)]);
        assert!(world.utilisation() >= 0.9, "{anticipation}: {}", world.figures());
        world.shares()[0]
    });
    assert!(parts.is_sorted() && parts[0] < 0.2 && parts[4] > 0.455, "{parts:.3?}");
}

#[test]
fn two_that_wait_get_the_same_beside_any_hog() {
    let (short, long) = (1300 * MICROSECOND, 4600 * MICROSECOND);
    for (length, thinks) in [(short, [0, 100]), (short, [50, 300]), (long, [0, 300]), (long, [100, 100])] {
        for others in [vec![hog(2)], vec![hog(2), hog(3)], vec![waits(2, 5 * MILLISECOND, 4, 0)]] {
            let two = [0, 1].map(|id| waits(id, length, 1, thinks[id as usize] * MICROSECOND));
            let world = run(two.into_iter().chain(others).collect());
            let [a, b] = [0, 1].map(|index| world.part(index));
            assert!((a - b).abs() <= 0.03 * a.max(b), "{length} {thinks:?}: {}", world.figures());
            let rest = 1.0 / world.guests.len() as f64;
            assert!(
                a.min(b) >= rest - 0.04 && world.utilisation() >= 0.92,
                "{thinks:?}: {}",
                world.figures()
            );
        }
    }
}

#[test]
fn streams_of_short_submissions_get_the_same_beside_any_hog() {
    let models = [(40, 20, 28), (40, 30, 20), (10, 80, 110), (77, 58, 20)];
    for (count, length, each) in models {
        for hogs in 0..=2 {
            let two = [0, 1].map(|id| llama(id, count, length * MICROSECOND, each * MICROSECOND));
            let guests = two.into_iter().chain((2..2 + hogs).map(hog)).collect();
            let world = simulate(MEASURED, guests, 3 * SECOND);
            let [a, b] = [0, 1].map(|index| world.part(index));
            assert!((a - b).abs() <= 0.03 * a.max(b), "{count} of {length} us: {}", world.figures());
        }
    }
}

#[test]
fn a_pause_between_two_runs_does_not_spoil_a_deep_queue() {
    let mut world = World::new(MEASURED, Tuning::default(), vec![waits(0, 2 * MILLISECOND, 2, 0), hog(1)]);
    for context in world.scheduler.contexts.values_mut() {
        context.habit.note(SECOND, 0);
    }
    world.run(TIME);
    assert!((world.shares()[0] - 0.5).abs() <= 0.02 && world.utilisation() >= 0.97, "{}", world.figures());
}

#[test]
fn nobody_is_waited_for_who_thinks_long_or_as_he_likes() {
    let mut random = 7;
    let erratic = (0..97).map(|_| xorshift(&mut random) % (8 * MILLISECOND)).collect();
    let erratic = Guest { thinks: erratic, ..one(0, 0) };
    for guest in [one(0, MILLISECOND), one(0, 5 * MILLISECOND), one(0, 50 * MILLISECOND), erratic] {
        let guests = || vec![guest.clone(), hog(1)];
        let [without, with] = [0.0, 0.08].map(|anticipation| run_with(anticipation, guests()));
        assert!(with.utilisation() >= without.utilisation() - 0.01, "{}", with.figures());
        assert!(with.part(0) >= without.part(0) - 0.02, "{}", with.figures());
    }
}

#[test]
fn nothing_is_waited_for_that_comes_in_time_anyway() {
    for length in [MILLISECOND, 2 * MILLISECOND, 5 * MILLISECOND] {
        let world = run(vec![waits(0, length, 1, 0), waits(1, length, 4, 0)]);
        let least = 1.0 - 2.0 * 65.0 / (length / 500) as f64 - 0.02;
        assert!((world.shares()[0] - 0.5).abs() <= 0.01, "{length}: {}", world.figures());
        assert!(world.utilisation() >= least, "{length}: {least:.3} {}", world.figures());
    }
}

#[test]
fn many_that_wait_are_served_evenly() {
    let guests = (0..15).map(|id| one(id, u64::from(id) * 20 * MICROSECOND)).chain([hog(15)]);
    let world = run(guests.collect());
    let shares = world.shares();
    let (least, most) = shares.iter().fold((1.0f64, 0.0f64), |(a, b), share| (a.min(*share), b.max(*share)));
    assert!(least / most >= 0.93 && world.utilisation() >= 0.95, "{least} {most} {}", world.figures());
}

#[test]
fn weights_and_classes_hold_for_those_that_wait() {
    let mut heavy = one(0, 0);
    heavy.share.weight = 300;
    let world = run(vec![heavy.clone(), hog(1)]);
    let [had, left] = [0, 1].map(|index| world.part(index));
    assert!((0.63..=0.75).contains(&had) && left >= 0.22, "{}", world.figures());
    let mut strong = hog(1);
    strong.share.weight = 300;
    let world = run(vec![one(0, 0), strong]);
    assert!((world.shares()[0] - 0.25).abs() <= 0.03, "{}", world.figures());
    // The scheduler does not wait for a background tenant, and the awaited context leaves only its gaps to the background.
    let mut background = one(0, 0);
    background.share.class = Class::Background;
    let world = run(vec![background.clone(), hog(1)]);
    assert!(world.part(0) <= 0.001 && world.utilisation() >= 0.99, "{}", world.figures());
    // A ceiling is no reason to idle.
    let mut capped = one(0, 0);
    capped.share.ceiling = Some(0.2);
    let world = run(vec![capped, hog(1)]);
    assert!((0.15..=0.203).contains(&world.part(0)) && world.utilisation() >= 0.94, "{}", world.figures());
}

#[test]
fn a_latency_tenant_is_served_as_soon_beside_those_that_wait() {
    let urgent =
        Guest { workgroup: 250 * MICROSECOND, ..Guest::periodic(0, 100, MILLISECOND, 10 * MILLISECOND) };
    let others = || vec![one(1, 0), waits(2, 5 * MILLISECOND, 4, 0)];
    let guests = [urgent].into_iter().chain(others()).collect();
    let world = run(guests);
    let (p50, p99) = (world.percentile(0, 0.5), world.percentile(0, 0.99));
    assert!(p50 <= 3.0 && p99 <= 5.5, "{p50:.2} {p99:.2} ms, {}", world.figures());
}

#[test]
fn who_makes_the_gpu_idle_pays_for_it() {
    let short = |count: usize| vec![100 * MICROSECOND; count];
    let patterns = [
        [short(1), vec![800 * MICROSECOND]].concat(),
        [short(5), vec![2 * MILLISECOND]].concat(),
        [short(30), vec![MILLISECOND; 10]].concat(),
        [short(60), vec![600 * MICROSECOND; 60]].concat(),
    ];
    for thinks in patterns {
        for length in [MILLISECOND, 2 * MILLISECOND, 5 * MILLISECOND] {
            for hostile in 1..=3 {
                let adversary = |id| Guest { thinks: thinks.clone(), ..waits(id, length, 1, 0) };
                let honest = [waits(0, 2 * MILLISECOND, 4, 0), waits(1, 10 * MILLISECOND, 4, 0)];
                let world = run(honest.into_iter().chain((2..2 + hostile).map(adversary)).collect());
                let share = 1.0 / f64::from(2 + hostile);
                let parts = [world.part(0), world.part(1)];
                let least = share * (1.0 - 0.08) - 0.02;
                assert!(
                    parts.iter().all(|part| *part >= least),
                    "{least:.3} {parts:.3?} {}",
                    world.figures()
                );
                assert!(world.utilisation() >= 0.88, "{}", world.figures());
            }
        }
    }
}
