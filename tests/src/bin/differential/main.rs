//! Small Vulkan programs, one per feature, whose results are compared between a device and the same device in a guest.
//!
//! `sources` writes the shaders for a compiler, `run` runs the cases on the first device and prints a line for each:
//! `NAME ok HASH BYTES`, `NAME skipped WHAT IS MISSING`, `NAME failed WHY`. If a name has no rest of its line, the process ended in this case. Each
//! case also compares its result with the processor's if the processor can compute it, so that two wrong results do not pass.
//!
//! This is an application: nearly every call in it is into Vulkan and `unsafe`. For all of these calls: handles are made by the case that uses them
//! and live until it is over (`Gpu::later`); the case waits for its work before that; pointers are into live mappings.

#![allow(unsafe_code, reason = "an application's calls into Vulkan")]
#![allow(
    clippy::undocumented_unsafe_blocks,
    clippy::multiple_unsafe_ops_per_block,
    reason = "the same reason for every call, above"
)]
#![allow(clippy::too_many_lines, reason = "a group of cases is a list, however long")]

mod bytes;
mod case;
mod cases;
mod elementwise;
mod features;
mod gpu;
mod images;
mod kernel;

use std::hash::{DefaultHasher, Hasher};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Parser;

use case::Case;
use gpu::{Gpu, ROBUSTNESS, Skipped};

/// Small Vulkan programs whose results are compared between a device and what a guest sees of it.
#[derive(Parser)]
enum Arguments {
    /// Writes the shaders' sources.
    Sources {
        /// An existing folder.
        folder: PathBuf,
    },
    /// Runs cases.
    Run {
        /// The folder with the compiled shaders, NAME.NUMBER.spv.
        shaders: PathBuf,
        /// Only cases whose names start so; all without.
        #[arg(long)]
        only: Vec<String>,
        /// Start behind the case of this name.
        #[arg(long)]
        after: Option<String>,
        /// Print results in full.
        #[arg(long)]
        full: bool,
    },
    /// Prints what the first device offers.
    Features,
}

fn main() -> Result<()> {
    match Arguments::parse() {
        Arguments::Sources { folder } => write_sources(&folder),
        Arguments::Run { shaders, only, after, full } => run(&shaders, &only, after.as_deref(), full),
        Arguments::Features => print_features(),
    }
}

fn write_sources(folder: &Path) -> Result<()> {
    for case in cases::all() {
        for (number, shader) in case.shaders.iter().enumerate() {
            let (name, text) = shader.file(&case.name, number);
            std::fs::write(folder.join(name), text)?;
        }
    }
    Ok(())
}

fn print_features() -> Result<()> {
    let gpu = Gpu::open(ROBUSTNESS)?;
    for (name, value) in gpu.features.values() {
        println!("{name} {value}");
    }
    Ok(())
}

fn run(shaders: &Path, only: &[String], after: Option<&str>, full: bool) -> Result<()> {
    let mut gpu = None;
    let all = cases::all();
    let first = after.map_or(0, |after| 1 + all.iter().position(|case| case.name == after).unwrap_or(0));
    for case in &all[first..] {
        if !only.is_empty() && !only.iter().any(|start| case.name.starts_with(start.as_str())) {
            continue;
        }
        print!("{}", case.name);
        std::io::stdout().flush()?;
        match run_one(case, &mut gpu, shaders) {
            Ok(result) => print_result(&result, full),
            Err(error) => match error.downcast_ref::<Skipped>() {
                Some(missing) => println!(" skipped {missing}"),
                None => {
                    println!(" failed {}", format!("{error:#}").replace('\n', " "));
                    // The objects that the case left may disturb the next case.
                    gpu = None;
                }
            },
        }
    }
    Ok(())
}

fn run_one(case: &Case, gpu: &mut Option<Gpu>, shaders: &Path) -> Result<Vec<u8>> {
    if gpu.is_none() {
        *gpu = Some(Gpu::open(ROBUSTNESS).context("opening the device")?);
    }
    let gpu = gpu.as_ref().expect("it was opened");
    let mut spirv = Vec::new();
    for number in 0..case.shaders.len() {
        let file = shaders.join(format!("{}.{number}.spv", case.name));
        let code = std::fs::read(&file).with_context(|| file.display().to_string())?;
        spirv.push(bytes::from_bytes(&code));
    }
    gpu.begin_case(spirv);
    let result = case.run(gpu);
    gpu.end_case();
    result
}

fn print_result(result: &[u8], full: bool) {
    let mut hasher = DefaultHasher::new();
    hasher.write(result);
    print!(" ok {:016x} {}", hasher.finish(), result.len());
    if full {
        print!(" ");
        for byte in result {
            print!("{byte:02x}");
        }
    }
    println!();
}
