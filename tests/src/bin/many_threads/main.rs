//! A client that does everything at once: several instances, devices and queues, and threads that compile, record and submit
//! at the same time. Every result is checked against the same arithmetic on the processor.
//!
//! Each lane is two threads. One thread only compiles; Mesa's Venus driver sends its commands over a ring of that thread's own. The other thread
//! makes its own pools, records commands with the compiled pipeline, submits them and waits. The client calls Vulkan as any application does and
//! knows nothing of the device below.

mod gpu;
use tests::looping_shader as shader;

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use gpu::{Gpu, Lane, Pipeline};

#[derive(Parser, Clone)]
#[command(about = "Compute on many instances, devices, queues and threads at once")]
struct Arguments {
    /// Instances
    #[arg(long, default_value_t = 2)]
    instances: u32,
    /// Devices of each instance
    #[arg(long, default_value_t = 2)]
    devices: u32,
    /// Take the physical devices of an instance in turn, and not the first only
    #[arg(long)]
    all_gpus: bool,
    /// Lanes of each device: a compiling and a submitting thread
    #[arg(long, default_value_t = 3)]
    lanes: u32,
    /// Times that each lane compiles, computes and checks; endless if 0
    #[arg(long, default_value_t = 12)]
    rounds: u32,
    /// End well after the round in which this file is there
    #[arg(long)]
    until: Option<PathBuf>,
    /// Say so after every round
    #[arg(long)]
    report: bool,
    /// Say so before every submission, too
    #[arg(long)]
    announce: bool,
    /// Ask for a fence again and again instead of waiting
    #[arg(long)]
    poll: bool,
    /// Milliseconds for which each lane rests after a round
    #[arg(long, default_value_t = 0)]
    pause: u64,
    /// Words that each round computes; a multiple of 64
    #[arg(long, default_value_t = 4096)]
    words: u32,
    /// Steps of arithmetic for each word
    #[arg(long, default_value_t = 64)]
    steps: u32,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    ensure!(arguments.words.is_multiple_of(shader::GROUP), "--words is a multiple of {}", shader::GROUP);
    let mut gpus = Vec::new();
    for _ in 0..arguments.instances {
        gpus.extend(Gpu::open_many(arguments.devices, arguments.all_gpus)?);
    }
    let queues: usize = gpus.iter().map(|gpu| gpu.queues()).sum();
    let count = gpus.len() * arguments.lanes as usize;
    println!("{} devices, {queues} queues, {count} lanes", gpus.len());
    // All threads start at once, and so compete for the device.
    let start = Arc::new(Barrier::new(2 * count));
    let mut lanes = Vec::new();
    for number in 0..count {
        let gpu = Arc::clone(&gpus[number % gpus.len()]);
        let (start, arguments) = (Arc::clone(&start), arguments.clone());
        lanes.push(thread::spawn(move || lane(&gpu, number as u32, &start, &arguments)));
    }
    let mut checked = 0;
    for lane in lanes {
        checked += lane.join().ok().context("a lane panicked")??;
    }
    // The devices live until the threads have ended: the loader unloads the driver with its last instance, and Mesa before 26.2 then leaves threads
    // with a destructor that is no longer mapped.
    drop(gpus);
    println!("checked {checked} words");
    Ok(())
}

/// Runs one lane and returns how many words it checked.
fn lane(gpu: &Arc<Gpu>, number: u32, start: &Arc<Barrier>, arguments: &Arguments) -> Result<u64> {
    let (sender, compiled) = sync_channel(2);
    let compiler = {
        let (gpu, start, arguments) = (Arc::clone(gpu), Arc::clone(start), arguments.clone());
        thread::spawn(move || compile(&gpu, number, &start, &arguments, &sender))
    };
    start.wait();
    let result = compute(gpu, number, arguments, compiled);
    compiler
        .join()
        .ok()
        .context("a compiler panicked")?
        .with_context(|| format!("compiling in lane {number}"))?;
    result.with_context(|| format!("lane {number}"))
}

/// Compiles for every round until the lane ends.
fn compile(
    gpu: &Arc<Gpu>,
    number: u32,
    start: &Barrier,
    arguments: &Arguments,
    compiled: &SyncSender<Pipeline>,
) -> Result<()> {
    start.wait();
    for round in rounds(arguments) {
        let pipeline = gpu.compile(multiplier(number, round), arguments.steps)?;
        if compiled.send(pipeline).is_err() {
            break;
        }
    }
    Ok(())
}

fn compute(gpu: &Arc<Gpu>, number: u32, arguments: &Arguments, compiled: Receiver<Pipeline>) -> Result<u64> {
    let mut lane = Lane::new(gpu, number, arguments.words, arguments.poll)?;
    let mut words: Vec<u32> = (0..arguments.words).map(|word| word ^ number).collect();
    let mut checked = 0;
    for (round, pipeline) in rounds(arguments).zip(compiled) {
        if arguments.announce {
            println!("submitting");
        }
        let results = lane.run(&pipeline, &words)?;
        let expected = shader::on_the_processor(&words, multiplier(number, round), arguments.steps);
        let wrong = results.iter().zip(&expected).position(|(result, expected)| result != expected);
        if let Some(at) = wrong {
            anyhow::bail!("round {round}: word {at} is {:#x} instead of {:#x}", results[at], expected[at]);
        }
        checked += u64::from(arguments.words);
        words = results;
        if arguments.report {
            println!("round {round} of lane {number}");
        }
        thread::sleep(Duration::from_millis(arguments.pause));
    }
    Ok(checked)
}

fn rounds(arguments: &Arguments) -> impl Iterator<Item = u32> + use<> {
    let until = arguments.until.clone();
    let rounds = 0..if arguments.rounds == 0 { u32::MAX } else { arguments.rounds };
    rounds.take_while(move |_| !until.as_ref().is_some_and(|file| file.exists()))
}

/// The constant that makes the program differ in every round of every lane, so that no cache makes a compilation unnecessary.
fn multiplier(lane: u32, round: u32) -> u32 {
    (lane << 16).wrapping_add(round << 1) | 1
}
