//! `vtest-bridge`: lets unmodified Mesa Venus (`VN_DEBUG=vtest`) on this host use a running daemon, without a VM.

use anyhow::{Context, Result, bail};
use clap::Parser;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tests::bridge::Bridge;
use tests::frontend::{Options, Session};
use tests::guest::Gpu;

/// Serve Venus clients over vtest through a vhost-user virtio-gpu daemon.
#[derive(Parser)]
struct Arguments {
    /// Socket to create for clients; they are started with `VTEST_SOCKET_NAME` set to it.
    #[arg(long, value_name = "PATH")]
    vtest_socket: PathBuf,
    /// Socket of the running daemon.
    #[arg(long, value_name = "PATH")]
    vhost_socket: PathBuf,
}

fn main() -> ExitCode {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("info")).init();
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("vtest-bridge: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let asked_to_end = Arc::new(AtomicBool::new(false));
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT]).context("signal handling")?;
    let session =
        Session::connect(&arguments.vhost_socket, Options::default()).context("connecting to the daemon")?;
    let closer = session.closer();
    let bridge = Bridge::listen(&arguments.vtest_socket, Gpu::new(session))?;
    log::info!("clients: VN_DEBUG=vtest VTEST_SOCKET_NAME={}", arguments.vtest_socket.display());
    let asked = Arc::clone(&asked_to_end);
    std::thread::spawn(move || {
        if signals.forever().next().is_some() {
            asked.store(true, Ordering::Release);
            closer.close();
        }
    });
    while !bridge.gpu().session.wait_until_over(Duration::from_secs(3600)) {}
    drop(bridge);
    match asked_to_end.load(Ordering::Acquire) {
        true => Ok(()),
        false => bail!("the daemon ended the session"),
    }
}
