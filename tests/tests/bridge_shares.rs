//! Several VMs share one GPU as their weights say, and the GPU is not idle for that; measured by what programs get done.
//!
//! The GPU is a software driver on this machine's processors, which the programs themselves and others use at the same time. So the bounds are
//! wider than what `docs/sharing.md` says of a GPU; and as nothing makes shares better than they are, each mix may be tried a few times, and the
//! first that holds counts.

use anyhow::{Context, Result, ensure};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tests::daemon_process::build_daemon;
use tests::shares::{Figures, Kernels, Sharing, compare, mix, run};
use tests::stand::Place;

/// How often a mix is tried.
const TRIES: u32 = 4;
/// For how long it runs.
const TIME: Duration = Duration::from_secs(6);

/// One at a time: they need the whole machine.
static MACHINE: Mutex<()> = Mutex::new(());

fn place() -> Result<Place> {
    // Optimised, as what is measured is the daemon as it is used.
    let daemon = build_daemon(true)?;
    Ok(Place::packages(env!("CARGO_BIN_EXE_tenant").into(), Some(daemon)))
}

fn broker() -> Sharing {
    Sharing::Broker(String::new())
}

/// Runs a mix until its figures are as `check` demands.
fn holds(name: &str, check: impl Fn(&Figures) -> Result<()>) -> Result<()> {
    let _machine = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let (place, mix) = (place()?, mix(name).context("there is such a mix")?);
    let mut kernels = Kernels::default();
    let mut last = Ok(());
    for _ in 0..TRIES {
        let figures = run(&place, &broker(), &mix, &mut kernels, TIME)?;
        println!("{figures}");
        last = check(&figures);
        if last.is_ok() {
            return Ok(());
        }
        println!("{last:?}");
    }
    last
}

/// Points that a share may be off.
const OFF: f64 = 5.0;
/// The part of the GPU's time that must be used. Handing it on costs processor time, of which the GPU is made here.
const USED: f64 = 0.8;

fn shared(figures: &Figures) -> Result<()> {
    ensure!(figures.error() <= OFF, "a share is {:.1} points off", figures.error());
    busy(figures)
}

fn busy(figures: &Figures) -> Result<()> {
    ensure!(figures.utilisation() >= USED, "utilisation {:.3}", figures.utilisation());
    Ok(())
}

#[test]
fn shares_are_as_weights_say() -> Result<()> {
    holds("weights", shared)
}

#[test]
fn kernels_of_any_length_get_equal_shares() -> Result<()> {
    holds("equal", shared)
}

#[test]
fn long_kernels_take_nothing_from_short_ones() -> Result<()> {
    holds("long-short", shared)
}

#[test]
fn equal_tenants_get_the_same() -> Result<()> {
    // More programs leave a GPU made of two processors little time.
    for mix in ["equal-2", "equal-4"] {
        holds(mix, |figures| {
            ensure!(figures.min_max() >= 0.9, "min/max {:.3}", figures.min_max());
            Ok(())
        })?;
    }
    holds("equal-2", busy)
}

#[test]
fn urgent_work_is_served_soon_and_costs_others_little() -> Result<()> {
    holds("latency", |figures| {
        let [batch, prompt] = &figures.outcomes[..] else { anyhow::bail!("two tenants") };
        let [_, p99, _] = prompt.latency;
        ensure!(
            p99 <= batch.alone + 3000.0,
            "p99 {:.1} ms beside kernels of {:.1} ms",
            p99 / 1e3,
            batch.alone / 1e3
        );
        busy(figures)
    })
}

#[test]
fn the_background_gets_what_is_left() -> Result<()> {
    holds("background", |figures| {
        ensure!(figures.shares()[1] <= 0.02, "the background has {:.3}", figures.shares()[1]);
        busy(figures)
    })
}

#[test]
fn a_flood_of_empty_submissions_takes_no_more_than_its_share() -> Result<()> {
    holds("flood", |figures| {
        // Processors do the work of the GPU here, and the flood's program needs them, too.
        let (flood, processors) = (&figures.outcomes[2], std::thread::available_parallelism()?);
        let gpu = 1.0 - flood.processor / flood.seconds / processors.get() as f64;
        for victim in &figures.outcomes[..2] {
            let part = victim.part() / gpu;
            ensure!(part >= 1.0 / 3.0 - OFF / 100.0, "{} has {part:.3} of {gpu:.3}", victim.tenant.name);
        }
        Ok(())
    })
}

#[test]
fn a_neighbour_of_an_endless_kernel_is_served_before_its_limit_is_over() -> Result<()> {
    holds("endless", |figures| {
        let [_, _, longest] = figures.outcomes[0].latency;
        ensure!(longest <= 2_100_000.0, "the neighbour waited {:.1} s", longest / 1e6);
        Ok(())
    })
}

#[test]
fn who_is_alone_pays_nothing_for_the_scheduler() -> Result<()> {
    let _machine = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let (place, mut kernels) = (place()?, Kernels::default());
    let mix = mix("alone-1ms").context("there is such a mix")?;
    let mut median = 0.0;
    for _ in 0..TRIES {
        let mut ratios = compare(&place, "", &mix.tenants[0], &mut kernels, 15)?;
        ratios.sort_by(f64::total_cmp);
        median = ratios[ratios.len() / 2];
        println!("with the broker {median:.3} of without");
        if median >= 0.97 {
            return Ok(());
        }
    }
    anyhow::bail!("with the broker {median:.3} of without")
}
