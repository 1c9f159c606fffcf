//! Tests that a VM that has work all the time gets the part of the GPU that weights and classes give it, by the charges of each VM.
//!
//! All submissions of both VMs are queued before the first may run, so the activity of programs and processors meanwhile does not matter; the cost of
//! a submission on a busy machine is charged to its VM. `cargo shares` measures how near programs come to their shares.

use anyhow::{Context, Result, anyhow, ensure};
use protocol::ids::RingIdx;
use protocol::venus::generated as venus;
use rustix::process::{Signal, kill_process};
use std::sync::Arc;
use tests::broker::{Broker, vhost_user_vulkan};
use tests::daemon::{eventually, halt, on_machine};
use tests::frontend::{Options, Session};
use tests::guest::device::{Device, Source};
use tests::guest::ring::ASYNC;
use tests::guest::{Gpu, PATIENCE, timeline};

/// Some milliseconds of a software driver's time.
const SIZE: u64 = 16 << 20;

/// The submissions of a VM's program.
struct Load {
    /// Keys of the VM's table in the broker's configuration.
    keys: &'static str,
    count: u32,
    /// The number of times that each submission fills memory of [`SIZE`].
    fills: u32,
}

/// A program with submissions that all wait for a value of a timeline.
fn queued(broker: &Broker, vm: &str, load: &Load) -> Result<(Device, venus::Semaphore)> {
    let gpu = Arc::new(Gpu::new(Session::connect(&broker.path(vm), Options::default())?));
    let mut device = timeline::device(&gpu, vm)?;
    let memory = device.allocate(SIZE, Source::New)?.map_err(|result| anyhow!("{result:?}"))?;
    let (dst_buffer, size) = (device.bound(memory, SIZE)?, SIZE);
    let semaphore = timeline::wait_before_signal(&mut device)?;
    for data in 0..load.count {
        device.submit(|command_buffer, w| {
            for _ in 0..load.fills {
                venus::CmdFillBuffer { command_buffer, dst_buffer, dst_offset: 0, size, data }
                    .encode(ASYNC, w);
            }
        })?;
    }
    Ok((device, semaphore))
}

/// The charges of two VMs, in the order of the charges.
struct Charges(Vec<Charge>);

/// A line of the log of grants.
struct Charge {
    /// 0 or 1.
    vm: usize,
    /// True if no submission has completed: the line corrects an earlier charge, perhaps long after the VM's work is done.
    completes_nothing: bool,
    /// Nanoseconds of the GPU.
    amount: f64,
}

/// Lets two programs run at the same time.
fn run(loads: &[Load; 2]) -> Result<Charges> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("grants");
    let top = format!("log-grants = \"{}\"", file.display());
    let mut broker = Broker::start(&top, &[("first", loads[0].keys), ("second", loads[1].keys)])?;
    let (mut first, on_first) = queued(&broker, "first", &loads[0])?;
    let (mut second, on_second) = queued(&broker, "second", &loads[1])?;
    // The broker grants no submission before both VMs may run.
    halt(broker.pid())?;
    let begun =
        timeline::signal(&mut first, on_first).and_then(|()| timeline::signal(&mut second, on_second));
    kill_process(broker.pid(), Signal::CONT)?;
    begun?;
    for device in [&first, &second] {
        let done = device.gpu().submit_fenced(device.context, RingIdx(1), &[]);
        ensure!(done.arrives_within(PATIENCE), "it is never done\n{}", broker.log());
    }
    drop((first, second));
    ensure!(broker.stop()?.success(), "{}", broker.log());
    let log = std::fs::read_to_string(file)?;
    let charges = log.lines().filter(|line| !line.starts_with('#')).map(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        let [_, vm, _, submissions, compute, copy] = words[..] else { anyhow::bail!("{line}") };
        Ok(Charge {
            vm: usize::from(vm == "second"),
            completes_nothing: submissions == "0",
            amount: compute.parse::<f64>()? + copy.parse::<f64>()?,
        })
    });
    Ok(Charges(charges.collect::<Result<_>>()?))
}

impl Charges {
    /// Returns the places of the first and the last charge of a VM for work that has completed.
    fn of(&self, vm: usize) -> Result<(usize, usize)> {
        let of_work = |charge: &Charge| charge.vm == vm && !charge.completes_nothing;
        let mut places = (self.0.iter().enumerate()).filter(|(_, charge)| of_work(charge)).map(|(at, _)| at);
        let first = places.next().context("a VM was charged nothing")?;
        Ok((first, places.next_back().unwrap_or(first)))
    }

    /// The sum of each VM between two places.
    fn between(&self, begin: usize, end: usize) -> [f64; 2] {
        let mut sums = [0.0; 2];
        self.0
            .get(begin..=end)
            .unwrap_or_default()
            .iter()
            .for_each(|charge| sums[charge.vm] += charge.amount);
        println!("{:.3} ms and {:.3} ms", sums[0] / 1e6, sums[1] / 1e6);
        sums
    }

    /// The sums while both VMs had work: from the time at which both had begun until one was done.
    fn while_both_had_work(&self) -> Result<[f64; 2]> {
        let ((begin, end), (other_begin, other_end)) = (self.of(0)?, self.of(1)?);
        Ok(self.between(begin.max(other_begin), end.min(other_end)))
    }
}

#[test]
fn the_heavier_gets_more_and_the_lighter_gets_its_part() -> Result<()> {
    let load = |keys| Load { keys, count: 200, fills: 4 };
    let charges = run(&[load("weight = 300"), load("weight = 100")])?;
    let [heavy, light] = charges.while_both_had_work()?;
    ensure!(heavy > 1.3 * light && heavy < 12.0 * light, "{:.2} instead of 3", heavy / light);
    Ok(())
}

#[test]
fn long_work_takes_nothing_from_short_work() -> Result<()> {
    let long = Load { keys: "", count: 40, fills: 20 };
    let charges = run(&[long, Load { keys: "", count: 800, fills: 1 }])?;
    let [long, short] = charges.while_both_had_work()?;
    ensure!(long > short / 4.0 && long < short * 4.0, "{:.2} instead of 1", long / short);
    Ok(())
}

#[test]
fn the_background_gets_what_is_left() -> Result<()> {
    let load = |keys| Load { keys, count: 200, fills: 4 };
    let charges = run(&[load(""), load("class = \"background\"")])?;
    let (begin, end) = charges.of(0)?;
    let [front, back] = charges.between(begin, end);
    ensure!(back < front, "{:.2} of the foreground's part", back / front);
    Ok(())
}

/// `cargo shares latency` measures what it is good for.
#[test]
fn the_hardware_turns_sooner_to_a_vm_of_the_latency_class_while_that_has_work() -> Result<()> {
    if !on_machine() {
        println!("skipped: a software driver has no time slices");
        return Ok(());
    }
    let mut command = vhost_user_vulkan()?;
    command.args(["--log-level", "debug"]);
    let vms = [("batch", ""), ("prompt", "class = \"latency\"")];
    let broker = Broker::start_command(command, "hardware-slices = \"short\"", &vms)?;
    let program = |vm: &str| -> Result<_> {
        let gpu = Arc::new(Gpu::new(Session::connect(&broker.path(vm), Options::default())?));
        let mut device = timeline::device(&gpu, vm)?;
        let memory = device.allocate(SIZE, Source::New)?.map_err(|result| anyhow!("{result:?}"))?;
        Ok((device, memory))
    };
    let ((mut batch, of_batch), (mut prompt, of_prompt)) = (program("batch")?, program("prompt")?);
    let are_said = |slices: [&str; 2]| {
        let log = broker.log();
        let is_said = |(vm, slices): (&str, &str)| {
            let ours =
                |line: &&str| line.contains(&format!("vm={vm}")) && line.contains("channel groups are");
            log.lines().rfind(ours).is_some_and(|line| line.contains(slices))
        };
        ["batch", "prompt"].into_iter().zip(slices).all(is_said)
    };
    for _ in 0..2 {
        prompt.fill(of_prompt, SIZE, 7)?;
        ensure!(eventually(PATIENCE, || are_said(["are 200 us", "are 3000 us"])), "{}", broker.log());
        // The class has had no work for a second when the others have their slices back.
        let usual = || batch.fill(of_batch, SIZE, 8).is_ok() && are_said(["as the driver", "as the driver"]);
        ensure!(eventually(PATIENCE, usual), "{}", broker.log());
    }
    Ok(())
}
