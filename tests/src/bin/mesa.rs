//! Runs programs by hand on the Mesa versions of the package cache; `tests/README.md` shows how.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use clap::{Parser, Subcommand};
use tests::clients;
use tests::packages::{ClientRoot, Device, HostVulkan, Python, Suite};

#[derive(Parser)]
#[command(about = "Run programs on the Mesa versions of the package cache")]
struct Arguments {
    #[command(subcommand)]
    mode: Mode,
}

#[derive(Subcommand)]
enum Mode {
    /// A Debian program (vulkaninfo, llama-completion, whisper-cli), python3 with the clients' packages, or the path of an executable built here, on a suite's Venus driver
    Venus {
        suite: Suite,
        /// The vtest socket the driver connects to
        socket: PathBuf,
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        program: Vec<String>,
    },
    /// Such a program on Debian 13's Venus driver with the patches of `guest-driver-patches`, built if need be
    Patched {
        /// The vtest socket the driver connects to
        socket: PathBuf,
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        program: Vec<String>,
    },
    /// Such a program directly on Debian testing's lavapipe
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
            (client(ClientRoot::open(*suite)?, program, Device::Venus(socket))?, program)
        }
        Mode::Patched { socket, program } => {
            (client(ClientRoot::patched()?, program, Device::Venus(socket))?, program)
        }
        Mode::Native { program } => {
            (client(ClientRoot::open(Suite::Testing)?, program, Device::Native)?, program)
        }
        Mode::Host { executable } => {
            (HostVulkan::lavapipe()?.command(Path::new(&executable[0]))?, executable)
        }
    };
    command.args(&words[1..]);
    Ok(command)
}

fn client(root: ClientRoot, program: &[String], device: Device) -> Result<Command> {
    match program[0].as_str() {
        "python3" => root.python(&Python::with(&clients::WHEELS)?, device),
        name if root.has(name) => root.command(name, device),
        path if path.contains('/') => root.own(Path::new(path), device),
        name => root.with_more_programs()?.command(name, device),
    }
}
