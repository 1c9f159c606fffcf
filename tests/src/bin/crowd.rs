//! `cargo crowd`: a thousand clients, eight at a time, half of them killed at random moments; see `tests::clients::crowd`.

use anyhow::Result;
use clap::Parser;
use tests::clients::crowd::{self, Plan};
use tests::program::cargo::sibling;

#[derive(Parser)]
#[command(about = "Run many clients through the bridge and kill some at random moments")]
struct Arguments {
    /// Clients in all
    #[arg(long, default_value_t = 1000)]
    clients: usize,
    /// Clients at any time
    #[arg(long, default_value_t = 8)]
    at_once: usize,
    /// Decides which clients run and which are killed
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn main() -> Result<()> {
    let Arguments { clients, at_once, seed } = Arguments::parse();
    crowd::run(Plan { clients, at_once, seed, programs: crowd::ALL }, sibling("many_threads")?).map(|_| ())
}
