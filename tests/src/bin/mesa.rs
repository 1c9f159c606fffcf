//! Runs programs by hand on the Mesa versions of the package cache; `tests/README.md` shows how.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use clap::{Parser, Subcommand};
use tests::packages::{ClientRoot, HostVulkan, Suite};

#[derive(Parser)]
#[command(about = "Run programs on the Mesa versions of the package cache")]
struct Arguments {
    #[command(subcommand)]
    mode: Mode,
}

#[derive(Subcommand)]
enum Mode {
    /// A Debian program (vulkaninfo, llama-completion, llama-bench) on a suite's Venus driver
    Venus {
        suite: Suite,
        /// The vtest socket the driver connects to
        socket: PathBuf,
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        program: Vec<String>,
    },
    /// A Debian program directly on Debian testing's lavapipe
    Native {
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        program: Vec<String>,
    },
    /// An executable built here (the daemon) on Debian testing's lavapipe
    Host {
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        executable: Vec<String>,
    },
}

fn main() -> Result<()> {
    let error = command(&Arguments::parse().mode)?.exec();
    Err(error.into())
}

fn command(mode: &Mode) -> Result<Command> {
    let (mut command, words) = match mode {
        Mode::Venus { suite, socket, program } => {
            (ClientRoot::open(*suite)?.through_vtest(&program[0], socket)?, program)
        }
        Mode::Native { program } => (ClientRoot::open(Suite::Testing)?.native(&program[0])?, program),
        Mode::Host { executable } => {
            (HostVulkan::lavapipe()?.command(Path::new(&executable[0]))?, executable)
        }
    };
    command.args(&words[1..]);
    Ok(command)
}
