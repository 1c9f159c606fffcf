//! The program that `cargo bench-gpu` runs natively and in a guest: an application that takes the measures it is asked for.
//!
//! The program prints its device. Then each line of its standard input names a measure, with its parameters and the milliseconds for which the
//! program takes it; the answer is one line of JSON, either the result or `{"missing": ...}` if the device lacks a feature. With `--start-up` the program
//! prints how long it took to make an instance and a device and to destroy them, and ends. With `--look` it waits for fences as Mesa's driver does in a guest:
//! it looks again and again, and sleeps in between.

#![deny(unsafe_code)]

mod gpu;
mod kernel;
mod measures;
mod memory;
mod samples;

use anyhow::{Context, Result};
use gpu::{Gpu, Waiting};
use measures::Bench;
use memory::Kind;
use std::io::Write;
use std::time::Instant;

fn main() -> Result<()> {
    let start = Instant::now();
    let argument = std::env::args().nth(1);
    let is = |name: &str| argument.as_deref() == Some(name);
    let gpu = Gpu::open(if is(tests::bench::LOOK) { Waiting::Looks } else { Waiting::Asleep })?;
    if is("--start-up") {
        let up = start.elapsed();
        drop(gpu);
        let (up, all) = (up.as_nanos() as u64, start.elapsed().as_nanos() as u64);
        return say(&serde_json::json!({ "up": up, "all": all }).to_string());
    }
    let has = |kind| gpu.memory_type(kind).is_some();
    let hello = serde_json::json!({
        "device": gpu.name(), "software": gpu.is_software(), "visible": has(Kind::Visible), "coherent": has(Kind::Coherent),
        "pid": std::process::id(),
    });
    say(&hello.to_string())?;
    let bench = Bench::new(&gpu)?;
    for line in std::io::stdin().lines() {
        let line = line?;
        let mut words = measures::Words::new(&line);
        let answer = bench.measure(&mut words).with_context(|| line.clone())?;
        say(&answer)?;
    }
    Ok(())
}

fn say(line: &str) -> Result<()> {
    let mut out = std::io::stdout();
    writeln!(out, "{line}")?;
    out.flush().context("standard output")
}
