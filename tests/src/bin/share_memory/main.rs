//! A guest program in two processes: one exports device memory as a dma-buf and sends the descriptor to the other, which imports it. Both let their
//! devices write and copy, and look at the memory through mappings of their own. Prints the sum of the results, which is the same wherever it runs;
//! ends with status 3 if memory cannot be shared.

mod gpu;
mod socket;

use anyhow::{Context, Result, ensure};
use gpu::Gpu;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, ExitCode};

/// 32-bit words of the shared memory.
const WORDS: u32 = 64 * 1024;

fn main() -> Result<ExitCode> {
    match std::env::args().nth(1).as_deref() {
        None => export(),
        Some("import") => import().map(|()| ExitCode::SUCCESS),
        Some(other) => anyhow::bail!("unknown role {other}"),
    }
}

/// The value that process `who` writes into a word in round `round`.
fn pattern(who: u32, round: u32) -> u32 {
    0x5bd1_e995_u32.wrapping_mul(who + 1) ^ round
}

fn export() -> Result<ExitCode> {
    let Some(gpu) = Gpu::open()? else {
        println!("this device shares no memory");
        return Ok(ExitCode::from(3));
    };
    let shared = gpu.exportable(WORDS)?;
    let private = gpu.private(WORDS)?;
    let file = gpu.export(&shared)?;
    let (mut ours, theirs) = UnixStream::pair()?;
    // Standard input is the channel of the second process.
    let mut second = Command::new(std::env::current_exe()?)
        .arg("import")
        .stdin(std::os::fd::OwnedFd::from(theirs))
        .spawn()
        .context("starting the second process")?;
    gpu.fill(&shared, pattern(0, 0))?;
    socket::send(&ours, &file)?;
    drop(file);
    let mut sum = 0_u64;
    for round in 1..=8 {
        // The second process has written its pattern with its device, and a word with its processor.
        expect(&mut ours)?;
        gpu.copy(&shared, &private)?;
        let seen = gpu.read(&private)?;
        ensure!(
            seen[1..].iter().all(|&word| word == pattern(1, round)),
            "round {round}: its device's writes"
        );
        ensure!(seen[0] == round, "round {round}: its processor's write");
        sum = seen.iter().fold(sum, |sum, &word| (sum ^ u64::from(word)).wrapping_mul(0x100_0000_01b3));
        gpu.fill(&shared, pattern(0, round))?;
        ours.write_all(&[1])?;
    }
    ensure!(second.wait()?.success(), "the second process failed");
    println!("shared {WORDS} words, sum {sum:016x}");
    Ok(ExitCode::SUCCESS)
}

fn import() -> Result<()> {
    let mut channel = UnixStream::from(socket::standard_input()?);
    let file = socket::receive(&channel).context("the descriptor")?;
    let gpu = Gpu::open()?.context("this device shares no memory")?;
    ensure!(file.as_raw_fd() >= 0);
    let shared = gpu.import(file, WORDS)?;
    let private = gpu.private(WORDS)?;
    for round in 1..=8 {
        gpu.copy(&shared, &private)?;
        let seen = gpu.read(&private)?;
        ensure!(
            seen.iter().all(|&word| word == pattern(0, round - 1)),
            "round {round}: the exporter's writes"
        );
        gpu.fill(&shared, pattern(1, round))?;
        gpu.write_first_word(&shared, round)?;
        channel.write_all(&[1])?;
        expect(&mut channel)?;
    }
    Ok(())
}

fn expect(channel: &mut UnixStream) -> Result<()> {
    let mut byte = [0];
    channel.read_exact(&mut byte).context("the other process ended")
}
