//! `cargo shares`: measures how tenants share a GPU, and draws it; see `tests::shares`.

use anyhow::{Context, Result};
use clap::Parser;
use std::path::PathBuf;
use std::time::Duration;
use tests::program::cargo::sibling;
use tests::shares::{ALONE, Density, Kernels, MIXES, Sharing, compare, density, mix, plot, run, verdicts};
use tests::stand::Place;

#[derive(Debug, Parser)]
#[command(about = "Measure how several VMs share one GPU")]
struct Arguments {
    /// Mixes of tenants, or `equal-N`; all if none is named
    mixes: Vec<String>,
    /// Seconds that each runs
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// The party that shares the GPU out
    #[arg(long, value_parser = ["broker", "driver", "native"], default_value = "broker")]
    sharing: String,
    /// A line for the top of the broker's configuration
    #[arg(long)]
    config: Vec<String>,
    /// Times that each runs
    #[arg(long, default_value_t = 1)]
    times: u32,
    /// Run the first tenant of each mix alone, with the broker and without it by turns, and print the ratio
    #[arg(long)]
    compare: bool,
    /// Run `LOADED` contexts of four VMs, beside `IDLE` idle ones
    #[arg(long, num_args = 2, value_names = ["LOADED", "IDLE"])]
    density: Option<Vec<usize>>,
    /// Folder for pictures
    #[arg(long)]
    pictures: Option<PathBuf>,
    /// Print JSON instead of tables
    #[arg(long)]
    json: bool,
    /// On a prepared machine: the daemon
    #[arg(long, requires = "venus")]
    daemon: Option<PathBuf>,
    /// On a prepared machine: the manifest of Mesa's Venus driver
    #[arg(long, requires = "daemon")]
    venus: Option<PathBuf>,
}

fn main() -> Result<()> {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("info")).init();
    let arguments = Arguments::parse();
    let tenant = sibling("tenant")?;
    let place = match (arguments.daemon, arguments.venus) {
        (Some(daemon), Some(venus)) => Place::machine(tenant, daemon, venus),
        _ => Place::packages(tenant, None),
    };
    let sharing = match arguments.sharing.as_str() {
        "native" => Sharing::Native,
        "driver" => Sharing::Driver,
        _ => Sharing::Broker(arguments.config.join("\n")),
    };
    let all = || MIXES.iter().map(|(name, ..)| (*name).to_owned()).collect();
    let names: Vec<String> = if arguments.mixes.is_empty() { all() } else { arguments.mixes };
    let mut kernels = Kernels::default();
    let time = Duration::from_secs(arguments.seconds);
    if let Some([loaded, idle]) = arguments.density.as_deref() {
        let found = density(&place, &mut kernels, *loaded, *idle, time)?;
        for (vm, (share, min_max)) in found.by_vm().into_iter().enumerate() {
            println!("VM {vm}: share {share:.3}, min/max of its contexts {min_max:.3}");
        }
        let Density { figures, idle, worker: (memory, threads, descriptors), idle_processor } = found;
        let (utilisation, min_max) = (figures.utilisation(), figures.min_max());
        println!("{loaded} contexts loaded: utilisation {utilisation:.3}, min/max {min_max:.3}");
        println!("an idle worker: {memory} KiB of its own, {threads} threads, {descriptors} descriptors");
        println!(
            "all {idle} idle ones and the broker's processes: {idle_processor:.1} ms of processor time a second"
        );
        return Ok(());
    }
    if arguments.compare {
        return compare_alone(&place, &arguments.config.join("\n"), &names, &mut kernels);
    }
    for name in names {
        let mix = mix(&name).with_context(|| format!("there is no mix {name:?}"))?;
        for _ in 0..arguments.times {
            let figures = run(&place, &sharing, &mix, &mut kernels, time)?;
            match arguments.json {
                true => println!("{}", figures.to_json()),
                false => println!("{figures}"),
            }
            // Only the broker promises these goals; other ways to share do not.
            if !arguments.json && matches!(sharing, Sharing::Broker(_)) {
                for (goal, is_reached) in verdicts(&figures) {
                    println!("  {}: {goal}", if is_reached { "reached" } else { "MISSED" });
                }
            }
            if let Some(folder) = &arguments.pictures {
                let title = format!("{} (shared by the {})", figures.mix.shows, arguments.sharing);
                let file = folder.join(format!("{name}-{}.svg", arguments.sharing));
                std::fs::write(&file, plot(&figures, &title)).with_context(|| file.display().to_string())?;
            }
        }
    }
    Ok(())
}

fn compare_alone(place: &Place, head: &str, names: &[String], kernels: &mut Kernels) -> Result<()> {
    for name in names {
        let mix = mix(name).with_context(|| format!("there is no mix {name:?}"))?;
        let mut ratios = compare(place, head, &mix.tenants[0], kernels, 15)?;
        ratios.sort_by(f64::total_cmp);
        let (low, median, high) = (ratios[3], ratios[7], ratios[11]);
        println!("{name}: with the broker {median:.3} of without (quartiles {low:.3} and {high:.3})");
        println!("  {}: at least {ALONE}", if median >= ALONE { "reached" } else { "MISSED" });
    }
    Ok(())
}
