//! Tests that each tenant gets its share, and that the GPU is busy.

use super::super::*;
use super::simulation::*;
use crate::Class;
use crate::time::{MICROSECOND, MILLISECOND, SECOND};

/// Asserts each guest's part of the GPU, over all time and in each second.
fn assert_shares(world: &World, wanted: &[f64], error: f64, error_by_second: f64) {
    let worst = |shares: &[f64]| {
        shares.iter().zip(wanted).map(|(share, wanted)| (share - wanted).abs()).fold(0.0, f64::max)
    };
    let by_second = world.shares_by_second().iter().map(|shares| worst(shares)).fold(0.0, f64::max);
    let all = worst(&world.shares());
    assert!(all <= error, "error {all:.4}: {}", world.figures());
    assert!(by_second <= error_by_second, "error of a second {by_second:.4}: {}", world.figures());
}

fn assert_busy(world: &World, least: f64) {
    assert!(world.utilisation() >= least, "{}", world.figures());
}

#[test]
fn weights_are_kept_whatever_the_lengths() {
    let lengths = [200 * MICROSECOND, MILLISECOND, 5 * MILLISECOND, 20 * MILLISECOND];
    for setting in SETTINGS {
        let guests = [4, 2, 1, 1].into_iter().zip(lengths).enumerate();
        let guests =
            guests.map(|(id, (weight, length))| Guest::new(id as u32, weight * 100, length)).collect();
        let world = simulate(setting, guests, 10 * SECOND);
        assert_shares(&world, &[0.5, 0.25, 0.125, 0.125], 0.01, 0.02);
        assert_busy(&world, 0.97);
    }
}

#[test]
fn equal_tenants_get_equal_parts_whatever_the_lengths() {
    let lengths = [100 * MICROSECOND, MILLISECOND, 5 * MILLISECOND, 25 * MILLISECOND];
    for setting in SETTINGS {
        let guests = lengths.into_iter().enumerate();
        let guests = guests.map(|(id, length)| Guest::new(id as u32, 100, length));
        // Four of 0.1 ms are too few to keep a GPU busy that needs 0.2 ms to start each.
        let guests = guests.map(|guest| Guest { outstanding: 16, ..guest }).collect();
        let world = simulate(setting, guests, 10 * SECOND);
        assert_shares(&world, &[0.25; 4], 0.01, 0.02);
        assert_busy(&world, 0.97);
    }
}

#[test]
fn short_and_long_submissions_get_equal_parts() {
    for setting in SETTINGS {
        let guests = vec![Guest::new(0, 100, 2 * MILLISECOND), Guest::new(1, 100, 25 * MILLISECOND)];
        let world = simulate(setting, guests, 10 * SECOND);
        assert_shares(&world, &[0.5; 2], 0.01, 0.02);
        assert_busy(&world, 0.97);
    }
}

#[test]
fn many_equal_tenants_are_served_evenly() {
    let lengths = [300 * MICROSECOND, MILLISECOND, 3 * MILLISECOND, 2 * MILLISECOND];
    for (count, shorter) in [(2, 1), (4, 1), (8, 1), (16, 1), (64, 4), (128, 4)] {
        for (setting, fairness, busy) in [(SERIAL, 0.99, 0.97), (SLICED, 0.98, 0.96)] {
            if count > 16 && setting.gpu == Gpu::Sliced {
                // None of these submissions takes longer than a slice.
                continue;
            }
            let length = |id: u32| lengths[id as usize % 4] / shorter;
            let guests = (0..count).map(|id| Guest::new(id, 100, length(id))).collect();
            let world = simulate(setting, guests, 10 * SECOND);
            let shares = world.shares();
            let least = shares.iter().copied().fold(1.0, f64::min);
            let most = shares.iter().copied().fold(0.0, f64::max);
            let (part, apart) = (least / most, (most - least) * 10_000.0 * world.utilisation());
            // The times of contexts that ran alternately are known only to a part of a slice, and switches cost time. The scheduler stays with a
            // context for 1 ms, which is a large part of the time of one among many.
            assert!(
                part >= fairness || apart <= 2.0,
                "{count} tenants: min/max {part:.4}, {}",
                world.figures()
            );
            assert_busy(&world, busy);
        }
    }
}

#[test]
fn contexts_of_a_vm_share_what_the_vm_gets() {
    for setting in SETTINGS {
        let guests = [(0, 1), (0, 7), (1, 3)];
        let guests = guests.map(|(id, length)| Guest::new(id, 100, length * MILLISECOND)).to_vec();
        let world = simulate(setting, guests, 10 * SECOND);
        assert_shares(&world, &[0.25, 0.25, 0.5], 0.01, 0.02);
        assert_busy(&world, 0.97);
    }
}

#[test]
fn a_new_weight_takes_effect_within_100_ms() {
    for setting in SETTINGS {
        let guests = vec![Guest::new(0, 100, MILLISECOND), Guest::new(1, 100, 2 * MILLISECOND)];
        let mut world = simulate(setting, guests, SECOND);
        for weight in [400, 10_000, 1, 100] {
            world.set_share(0, Share { weight, ..Share::default() });
            world.run(100 * MILLISECOND);
            let before = [world.guests[0].busy, world.guests[1].busy];
            world.run(SECOND);
            let had = [world.guests[0].busy - before[0], world.guests[1].busy - before[1]];
            let share = had[0] as f64 / (had[0] + had[1]) as f64;
            let wanted = f64::from(weight) / f64::from(weight + 100);
            assert!((share - wanted).abs() <= 0.01, "weight {weight}: {share:.4}, {}", world.figures());
        }
    }
}

#[test]
fn a_ceiling_holds_though_the_gpu_idles() {
    for setting in SETTINGS {
        for (length, others) in [(MILLISECOND, false), (25 * MILLISECOND, false), (MILLISECOND, true)] {
            let mut capped = Guest::new(0, 100, length);
            capped.share.ceiling = Some(0.2);
            let mut guests = vec![capped];
            if others {
                guests.push(Guest::new(1, 100, 5 * MILLISECOND));
            }
            let world = simulate(setting, guests, 10 * SECOND);
            let part = world.part(0);
            let least = if others { 0.17 } else { 0.19 };
            assert!((least..=0.203).contains(&part), "{part:.4}, {}", world.figures());
            if others {
                assert_busy(&world, 0.97);
            }
        }
    }
}

#[test]
fn background_gets_only_what_is_left() {
    for setting in SETTINGS {
        let mut background = Guest::new(1, 100, 2 * MILLISECOND);
        background.share.class = Class::Background;
        let guests = vec![Guest::new(0, 1, 3 * MILLISECOND), background.clone()];
        let world = simulate(setting, guests, 5 * SECOND);
        assert!(world.shares()[1] <= 0.001, "{}", world.figures());
        let mut half = Guest::periodic(0, 1, 5 * MILLISECOND, 10 * MILLISECOND);
        half.share.class = Class::Normal;
        let world = simulate(setting, vec![half, background], 5 * SECOND);
        let part = world.part(0);
        assert!((part - 0.5).abs() <= 0.01 && world.utilisation() >= 0.95, "{}", world.figures());
    }
}

#[test]
fn a_day_passes_without_loss_of_precision() {
    const HOURS: Nanos = 24;
    let weights = [1, 10, 100, 100, 1000, 3000, 10_000, 10_000];
    let sum = f64::from(weights.iter().sum::<u32>());
    let setting = Setting { epoch: 1 << 60, ..SERIAL };
    let guests = weights.iter().enumerate();
    let guests =
        guests.map(|(id, weight)| Guest::new(id as u32, *weight, (1 + id as u64 % 3) * SECOND / 2)).collect();
    let world = simulate(setting, guests, HOURS * 3600 * SECOND);
    for (share, weight) in world.shares().iter().zip(weights) {
        let wanted = f64::from(weight) / sum;
        assert!((share - wanted).abs() <= 0.0005, "weight {weight}: {share:.6} {}", world.figures());
    }
    assert_busy(&world, 0.999);
}
