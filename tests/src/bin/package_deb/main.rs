//! `cargo package-deb`: makes the Debian package of the daemon; see `tests::package`.

use anyhow::{Context, Result, bail};
use clap::Parser;
use tests::package::{self, Architecture, Compiled};
use tests::prerequisites::{self, PACKAGING};

#[derive(Parser)]
#[command(about = "Make the Debian package of the daemon, and print where it is")]
struct Arguments {
    /// Architecture in Debian's words: amd64 or arm64 [default: that of this machine]
    #[arg(long)]
    architecture: Option<String>,
}

fn main() -> Result<()> {
    let architecture = match Arguments::parse().architecture.as_deref() {
        None => Architecture::own().context("this machine is neither amd64 nor arm64: use --architecture")?,
        Some("amd64") => Architecture::Amd64,
        Some("arm64") => Architecture::Arm64,
        Some(other) => bail!("{other} is neither amd64 nor arm64"),
    };
    prerequisites::provide(PACKAGING)?;
    let package = package::make(architecture, Compiled::ForRelease)?;
    println!("{}\n{}", package.deb.display(), package.sbom.display());
    Ok(())
}
