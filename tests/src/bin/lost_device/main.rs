//! A program that loses its device: it makes every call that can report the loss, cleans up, and computes on another device.
//!
//! The program prints "ready" when its device has worked, and then waits for a fence that is never signalled, until the test has killed the worker.
//! It prints "computes again" at its end, and fails if any call reports something other than a lost device.

#![deny(unsafe_code)]

mod gpu;

use anyhow::Result;
use gpu::Gpu;
use std::io::Write;

fn main() -> Result<()> {
    let entry = gpu::loader()?;
    let gpu = Gpu::open(&entry)?;
    let objects = gpu.make()?;
    gpu.compute(&objects)?;
    say("ready")?;
    gpu.wait_until_lost(&objects)?;
    gpu.ask(&objects)?;
    gpu.look_at_outputs(&objects)?;
    gpu.destroy(objects);
    say("cleaned up")?;

    let gpu = Gpu::open(&entry)?;
    let objects = gpu.make()?;
    gpu.compute(&objects)?;
    gpu.destroy(objects);
    say("computes again")
}

fn say(what: &str) -> Result<()> {
    println!("{what}");
    Ok(std::io::stdout().flush()?)
}
