//! `cargo bench-gpu`: how fast programs are in a guest, in relation to the host; see `tests::bench`.

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tests::bench::{Line, Llama, Probe, Sides, Timing, plan, plot, run, to_json, to_table};
use tests::packages::Suite;
use tests::program::cargo::{self, cargo};
use tests::stand::{Drivers, OwnDaemon, Place, Setting, default_name};

#[derive(Debug, Parser)]
#[command(about = "Measure how fast Vulkan programs are in a guest, in relation to the host")]
struct Arguments {
    /// Groups or single measures; the usual groups (all but `scale`) if none is named
    measures: Vec<String>,
    /// Rounds that count; in each, every measure is taken on the host and in each guest
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Seconds that a measure is taken in a round
    #[arg(long, default_value_t = 0.25)]
    seconds: f64,
    /// Few short rounds
    #[arg(long)]
    quick: bool,
    /// Lengths of kernels, in microseconds [default: 50,500,2000,20000, and 50000 from the package cache]
    #[arg(long, value_delimiter = ',')]
    kernels: Vec<u32>,
    /// Write everything to a file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the ratios of each group into this folder
    #[arg(long, value_name = "FOLDER")]
    pictures: Option<PathBuf>,
    /// Print the names of measures
    #[arg(long)]
    list: bool,
    /// From the package cache: Mesa of a guest (25.0, 26.1, 26.2), with a name for the guest (NAME=26.1); more than once for several
    /// guests [default: 26.1]
    #[arg(long, conflicts_with = "daemon", value_name = "[NAME=]MESA")]
    mesa: Vec<String>,
    /// On a prepared machine: the daemon
    #[arg(long, requires = "venus")]
    daemon: Option<PathBuf>,
    /// On a prepared machine: the manifest of a guest's Venus driver, with a name for the guest (mesa-26.1=FILE); more than once for
    /// several guests
    #[arg(long, requires = "daemon", value_name = "[NAME=]FILE")]
    venus: Vec<String>,
    /// A variable in the environment of a guest's programs; more than once for several
    #[arg(long, value_name = "GUEST:VARIABLE=VALUE", value_parser = setting)]
    guest_env: Vec<Setting>,
    /// The daemon of one guest, with options, to compare daemons in one run: no DAEMON means that of the others
    #[arg(long, value_name = "GUEST:[DAEMON] [OPTION]...", value_parser = own_daemon)]
    guest_daemon: Vec<OwnDaemon>,
    /// Beside the guests, a second program on the host that waits for fences as Mesa 26.1 does in a guest
    #[arg(long)]
    look: bool,
    /// On a prepared machine: llama-bench
    #[arg(long, requires = "model", requires = "daemon")]
    llama_bench: Option<PathBuf>,
    /// The model that llama-bench runs
    #[arg(long, requires = "llama_bench")]
    model: Option<PathBuf>,
    /// Arguments of llama-bench, instead of `-p 512 -n 64 -r 1 -ngl 99`
    #[arg(long, requires = "llama_bench", allow_hyphen_values = true)]
    llama_arguments: Option<String>,
}

fn main() -> Result<()> {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("warn")).init();
    let arguments = Arguments::parse();
    let llama = llama(&arguments)?;
    let probes = plan(&arguments.measures, &kernels(&arguments), llama.is_some());
    ensure!(!probes.is_empty(), "there is no measure or group {:?}", arguments.measures);
    if arguments.list {
        let rows = probes.iter().flat_map(|probe| &probe.rows);
        rows.for_each(|row| println!("{:12} {}", row.group, row.name));
        return Ok(());
    }
    measure(&arguments, &probes, llama.as_ref())
}

/// Takes all measures, and shows each group when it is complete. A measure that fails is named at the end.
fn measure(arguments: &Arguments, probes: &[Probe], llama: Option<&Llama>) -> Result<()> {
    let (start, timing) = (Instant::now(), timing(arguments));
    let mut sides = sides(arguments)?;
    let device = sides.device();
    println!("{device}: {} rounds of {:.2} s", timing.rounds, timing.time.as_secs_f64());
    let (mut lines, mut failed): (Vec<Line>, Vec<&str>) = (Vec::new(), Vec::new());
    for group in probes.chunk_by(|one, next| one.rows[0].group == next.rows[0].group) {
        let before = lines.len();
        for probe in group {
            let name = &probe.rows[0].name;
            eprintln!("{:4.0} s: {name}", start.elapsed().as_secs_f64());
            match run(&mut sides, probe, timing, llama) {
                Ok(more) => lines.extend(more),
                Err(error) => {
                    eprintln!("{error:#}");
                    failed.push(name);
                    // A program or a daemon may have ended.
                    drop(sides);
                    sides = self::sides(arguments)?;
                }
            }
        }
        println!("{}", to_table(&lines[before..]));
        draw(arguments, &lines[before..], &device)?;
        write(arguments, &lines, &device, timing)?;
    }
    ensure!(failed.is_empty(), "these failed: {}", failed.join(", "));
    Ok(())
}

fn write(arguments: &Arguments, lines: &[Line], device: &str, timing: Timing) -> Result<()> {
    let Some(file) = &arguments.json else { return Ok(()) };
    let (rounds, seconds, measures) = (timing.rounds, timing.time.as_secs_f64(), to_json(lines));
    let all =
        serde_json::json!({ "device": device, "rounds": rounds, "seconds": seconds, "measures": measures });
    std::fs::write(file, serde_json::to_string_pretty(&all)?).with_context(|| file.display().to_string())
}

fn kernels(arguments: &Arguments) -> Vec<u32> {
    let mut lengths = arguments.kernels.clone();
    if lengths.is_empty() {
        lengths = vec![50, 500, 2000, 20_000];
        // Software drivers need longer kernels to reach their full speed.
        lengths.extend(arguments.daemon.is_none().then_some(50_000));
    }
    lengths
}

fn timing(arguments: &Arguments) -> Timing {
    match arguments.quick {
        true => Timing { rounds: 3, time: Duration::from_millis(100), counted: 400 },
        false => Timing {
            rounds: arguments.rounds.max(1),
            time: Duration::from_secs_f64(arguments.seconds.clamp(0.001, 60.0)),
            counted: 1000,
        },
    }
}

fn llama(arguments: &Arguments) -> Result<Option<Llama>> {
    match (&arguments.llama_bench, &arguments.model, &arguments.daemon) {
        (Some(program), Some(model), _) => {
            Ok(Some(Llama::on_machine(program.clone(), model.clone(), arguments.llama_arguments.clone())))
        }
        (_, _, Some(_)) => Ok(None),
        // llama-bench is slow on a software driver, and then measures no GPU, so it runs only on request.
        _ if arguments.measures.iter().any(|name| name.starts_with("llama")) => Llama::packaged().map(Some),
        _ => Ok(None),
    }
}

fn sides(arguments: &Arguments) -> Result<Sides> {
    let mut sides = Sides::start(place(arguments)?)?;
    if arguments.look {
        sides.add_looking()?;
    }
    Ok(sides)
}

fn place(arguments: &Arguments) -> Result<Place> {
    let program = std::env::current_exe()?.with_file_name("gauge");
    let drivers = match &arguments.daemon {
        Some(daemon) => {
            ensure!(program.exists(), "{} is missing", program.display());
            Drivers::Machine {
                daemon: daemon.clone(),
                mesas: arguments.venus.iter().map(|venus| named(venus)).collect(),
            }
        }
        None => {
            build(&program)?;
            let default = [Suite::Testing.mesa().to_owned()];
            let mesas = if arguments.mesa.is_empty() { &default[..] } else { &arguments.mesa };
            Drivers::Packages {
                daemon: None,
                mesas: mesas.iter().map(|mesa| suite(mesa)).collect::<Result<_>>()?,
            }
        }
    };
    let (settings, daemons) = (arguments.guest_env.clone(), arguments.guest_daemon.clone());
    let place = Place { program, drivers, settings, daemons };
    let guests = place.mesas();
    let settings = place.settings.iter().map(|setting| &setting.guest);
    let mut named = settings.chain(place.daemons.iter().map(|own| &own.guest));
    let stray = named.find(|guest| !guests.contains(guest));
    ensure!(stray.is_none(), "no guest is called {}: {guests:?}", stray.map_or("", |stray| stray));
    Ok(place)
}

fn setting(text: &str) -> Result<Setting, String> {
    let parts = text.split_once(':').and_then(|(guest, rest)| Some((guest, rest.split_once('=')?)));
    let (guest, (variable, value)) = parts.ok_or("GUEST:VARIABLE=VALUE is expected")?;
    Ok(Setting { guest: guest.into(), variable: variable.into(), value: value.into() })
}

fn own_daemon(text: &str) -> Result<OwnDaemon, String> {
    let (guest, rest) = text.split_once(':').ok_or("GUEST:[DAEMON] [OPTION]... is expected")?;
    let (program, options) = rest.split_once(' ').unwrap_or((rest, ""));
    Ok(OwnDaemon {
        guest: guest.into(),
        program: (!program.is_empty()).then(|| program.into()),
        options: options.split_whitespace().map(str::to_owned).collect(),
    })
}

fn named(venus: &str) -> (String, PathBuf) {
    match venus.split_once('=') {
        Some((name, file)) => (name.to_owned(), file.into()),
        None => ("guest".to_owned(), venus.into()),
    }
}

fn suite(text: &str) -> Result<(String, Suite)> {
    let (name, mesa) =
        text.split_once('=').map_or((None, text), |(name, mesa)| (Some(name.to_owned()), mesa));
    match Suite::ALL.into_iter().find(|suite| suite.mesa() == mesa || suite.name() == mesa) {
        Some(suite) => Ok((name.unwrap_or_else(|| default_name(suite)), suite)),
        None => bail!("no Mesa {mesa} in the package cache: 25.0, 26.1 or 26.2"),
    }
}

/// Builds the program that measures, in the profile of this one.
fn build(program: &Path) -> Result<()> {
    let mut cargo = cargo();
    cargo.args(["build", "--quiet", "--bin", "gauge"]);
    cargo.args(program.parent().is_some_and(|folder| folder.ends_with("release")).then_some("--release"));
    cargo::build(&mut cargo, "the program that measures")
}

fn draw(arguments: &Arguments, group: &[Line], device: &str) -> Result<()> {
    let (Some(folder), Some(first)) = (&arguments.pictures, group.first()) else { return Ok(()) };
    let Some(picture) =
        plot(group, &format!("{}: speed in a guest by speed on the host, {device}", first.row.group))
    else {
        return Ok(());
    };
    std::fs::create_dir_all(folder)?;
    let file = folder.join(format!("{}.svg", first.row.group));
    std::fs::write(&file, picture).with_context(|| file.display().to_string())
}
