//! `compare-clients`: runs independent clients on two devices and says which give the same results; see `docs/clients.md`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use tests::clients::{self, Client, Files, Machine, Packages, Place, Setup, Verdict};
use tests::packages::{Device, Suite};

/// Compare independent clients on two devices. Without `--native` and `--guest` these are the package cache's software driver
/// and a daemon on it.
#[derive(Parser)]
struct Arguments {
    /// Only these clients
    clients: Vec<String>,
    /// Print the clients' names and end
    #[arg(long)]
    list: bool,
    /// A variable that selects the native driver on this machine, such as VK_DRIVER_FILES=…; may be repeated
    #[arg(long, value_name = "NAME=VALUE", requires = "guest")]
    native: Vec<String>,
    /// A variable that selects the guest's driver on this machine; may be repeated
    #[arg(long, value_name = "NAME=VALUE", requires = "native")]
    guest: Vec<String>,
    /// The interpreter that has the Python packages, with --native
    #[arg(long, default_value = "python3")]
    python: PathBuf,
    /// The Mesa of this Debian suite, without --native
    #[arg(long, default_value = "testing")]
    suite: Suite,
    /// Seconds after which a client counts as failed
    #[arg(long, default_value_t = 3600)]
    limit: u64,
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    let mut chosen = clients::ALL.to_vec();
    for name in &arguments.clients {
        ensure!(chosen.iter().any(|client| client.name == name), "no client {name:?}; --list names them");
    }
    match arguments.clients.is_empty() {
        true => chosen.retain(|client| client.name != clients::ALL_OPERATORS.name),
        false => chosen.retain(|client| arguments.clients.iter().any(|name| name == client.name)),
    }
    if arguments.list {
        clients::ALL.iter().for_each(|client| println!("{}", client.name));
        return Ok(ExitCode::SUCCESS);
    }
    let limit = Duration::from_secs(arguments.limit);
    let all_the_same = if arguments.native.is_empty() {
        let setup = Setup::start()?;
        let packages = Packages::open(arguments.suite)?;
        let guest = Place::Packages(&packages, Device::Venus(setup.socket()));
        compare(&chosen, &Place::Packages(&packages, Device::Native), &guest, limit)?
    } else {
        let machine = |variables: &[String]| -> Result<Machine> {
            let split = |text: &String| text.split_once('=').map(|(name, value)| (name.into(), value.into()));
            let environment = variables.iter().map(split).collect::<Option<_>>().context("not NAME=VALUE")?;
            Ok(Machine { environment, python: arguments.python.clone() })
        };
        let (native, guest) = (machine(&arguments.native)?, machine(&arguments.guest)?);
        compare(&chosen, &Place::Machine(&native), &Place::Machine(&guest), limit)?
    };
    Ok(if all_the_same { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn compare(clients: &[Client], native: &Place, guest: &Place, limit: Duration) -> Result<bool> {
    let files = Files::write()?;
    let mut all_the_same = true;
    for client in clients {
        let started = Instant::now();
        let verdict = clients::compare(client, native, guest, &files, limit);
        all_the_same &= matches!(verdict, Ok(Verdict::Same));
        let verdict = match verdict {
            Ok(Verdict::Same) => "same".to_owned(),
            Ok(Verdict::Differs(native, guest)) => format!("differs: {native:?} became {guest:?}"),
            Err(error) => format!("fails: {error:#}"),
        };
        println!("{}: {verdict} ({:.0} s)", client.name, started.elapsed().as_secs_f32());
    }
    Ok(all_the_same)
}
