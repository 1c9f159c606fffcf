//! Tests that a trace of a VM has each of its submissions with its stages, names the holders of the GPU while a submission waited for its turn, and
//! that the readers of traces do no harm.

use anyhow::{Context, Result, anyhow, ensure};
use protocol::ids::RingIdx;
use protocol::venus::generated as venus;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use tests::broker::{Broker, vhost_user_vulkan};
use tests::daemon::{eventually, halt};
use tests::frontend::{Options, Session};
use tests::guest::device::{Device, Source};
use tests::guest::ring::ASYNC;
use tests::guest::{Gpu, PATIENCE, timeline};

/// Some milliseconds of a software driver's time.
const SIZE: u64 = 16 << 20;

fn guest(broker: &Broker, vm: &str) -> Result<Arc<Gpu>> {
    Ok(Arc::new(Gpu::new(Session::connect(&broker.path(vm), Options::default())?)))
}

/// A program that has submitted `count` times to a queue which waits for a value of a timeline.
fn queued(broker: &Broker, vm: &str, count: u32) -> Result<(Device, venus::Semaphore)> {
    let mut device = timeline::device(&guest(broker, vm)?, vm)?;
    let memory = device.allocate(SIZE, Source::New)?.map_err(|result| anyhow!("{result:?}"))?;
    let buffer = device.bound(memory, SIZE)?;
    let semaphore = timeline::wait_before_signal(&mut device)?;
    fill(&mut device, buffer, count)?;
    Ok((device, semaphore))
}

fn fill(device: &mut Device, dst_buffer: venus::Buffer, count: u32) -> Result<()> {
    for data in 0..count {
        device.submit(|command_buffer, w| {
            for _ in 0..4 {
                let (dst_offset, size) = (0, SIZE);
                venus::CmdFillBuffer { command_buffer, dst_buffer, dst_offset, size, data }.encode(ASYNC, w);
            }
        })?;
    }
    Ok(())
}

fn wait(device: &Device, broker: &Broker) -> Result<()> {
    let done = device.gpu().submit_fenced(device.context, RingIdx(1), &[]);
    ensure!(done.arrives_within(PATIENCE), "it is never done\n{}", broker.log());
    Ok(())
}

/// A trace that is being taken.
struct Taking {
    child: Child,
    file: PathBuf,
}

impl Taking {
    /// Begins a trace; returns when it has begun.
    fn begin(broker: &Broker, vm: &str, arguments: &[&str]) -> Result<Self> {
        let file = broker.path(&format!("{vm}.json"));
        let mut command = trace(broker, vm)?;
        command.args(["--seconds", "300"]).args(arguments).arg("--output").arg(&file);
        let _ = std::fs::remove_file(&file);
        let child = command.spawn()?;
        // The file is made when the trace has begun and signals are caught.
        ensure!(eventually(PATIENCE, || file.exists()), "it does not begin\n{}", broker.log());
        Ok(Self { child, file })
    }

    /// Ends the trace as Ctrl-C does. Returns the trace, and the command's messages.
    fn end(self) -> Result<(Trace, String)> {
        kill_process(Pid::from_child(&self.child), Signal::INT)?;
        let output = self.child.wait_with_output()?;
        let said = said(&output);
        ensure!(output.status.success(), "{}: {said}", output.status);
        println!("{said}");
        Ok((Trace(serde_json::from_slice(&std::fs::read(&self.file)?)?), said))
    }
}

fn trace(broker: &Broker, vm: &str) -> Result<Command> {
    let mut command = vhost_user_vulkan()?;
    command.args(["trace", vm, "--control-socket"]).arg(broker.path("control"));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    Ok(command)
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A file that was written.
struct Trace(Value);

impl Trace {
    fn slices(&self, category: &str) -> Vec<&Value> {
        let events = self.0["traceEvents"].as_array();
        events.into_iter().flatten().filter(|e| e["ph"] == "X" && e["cat"] == category).collect()
    }

    /// The sum of the values of all submissions at this key, in microseconds.
    fn sum(&self, key: &str) -> f64 {
        self.slices("submission").iter().filter_map(|submission| submission["args"][key].as_f64()).sum()
    }

    /// The time for which each holder had the GPU while submissions were at the gate, in microseconds.
    fn held(&self) -> BTreeMap<String, f64> {
        let mut sums = BTreeMap::new();
        for gate in self.slices("stage").into_iter().filter(|stage| stage["name"] == "gate") {
            for (holder, time) in gate["args"]["held by, us"].as_object().into_iter().flatten() {
                *sums.entry(holder.clone()).or_default() += time.as_f64().unwrap_or_default();
            }
        }
        sums
    }

    /// Checks that each submission of the only queue is in the trace, with its stages one after the other.
    fn check(&self, count: usize) -> Result<()> {
        let submissions = self.slices("submission");
        let mut numbers: Vec<u64> = submissions.iter().filter_map(|s| s["args"]["number"].as_u64()).collect();
        numbers.sort_unstable();
        let expected: Vec<u64> = (1..=count as u64).collect();
        ensure!(numbers == expected, "{numbers:?} instead of {expected:?}");
        for submission in submissions {
            let length = submission["dur"].as_f64().context("a length")?;
            let stages = ["not ready us", "gate us", "driver us", "GPU us", "done us"];
            let sum: f64 = stages.iter().filter_map(|stage| submission["args"][*stage].as_f64()).sum();
            let shown_late = submission["args"]["shown late by us"].as_f64().unwrap_or(0.0);
            ensure!((length + shown_late - sum).abs() < 0.1, "{submission}");
        }
        let order = ["not ready", "gate", "driver", "GPU", "done"];
        let place = |stage: &Value| order.iter().position(|name| stage["name"] == *name);
        let mut rows: BTreeMap<u64, (Option<usize>, f64)> = BTreeMap::new();
        for stage in self.slices("stage") {
            let (at, place) = (stage["ts"].as_f64().context("a time")?, place(stage));
            ensure!(place.is_some(), "{stage}");
            let row = rows.entry(stage["tid"].as_u64().context("a row")?).or_default();
            // The next submission of the row begins with an earlier stage.
            ensure!(at >= row.1, "{stage} begins before the stage before it has ended");
            *row = (place, at + stage["dur"].as_f64().context("a length")?);
        }
        Ok(())
    }
}

#[test]
fn each_submission_has_its_stages_and_who_waits_for_another_vm_sees_it() -> Result<()> {
    let (own, others) = (40, 80);
    let mut broker = Broker::start("", &[("left", ""), ("right", "")])?;
    let taking = Taking::begin(&broker, "left", &[])?;
    let named = Taking::begin(&broker, "right", &["--names"])?;
    let (mut first, on_first) = queued(&broker, "left", own)?;
    let (mut second, on_second) = queued(&broker, "right", others)?;
    // The broker grants no submission before both VMs may run.
    halt(broker.pid())?;
    let begun =
        timeline::signal(&mut first, on_first).and_then(|()| timeline::signal(&mut second, on_second));
    kill_process(broker.pid(), Signal::CONT)?;
    begun?;
    wait(&first, &broker)?;
    wait(&second, &broker)?;
    let counts = |count: u32| {
        move |vm: Value| vm["used"]["submissions"].as_u64().is_some_and(|counted| counted > count.into())
    };
    ensure!(eventually(PATIENCE, || broker.vm("left").is_ok_and(counts(own))), "{}", broker.vm("left")?);
    let vm = broker.vm("left")?;
    ensure!(vm["used"]["gpu_seconds"].as_f64().is_some_and(|time| time > 0.0), "{vm}");
    // The last reports of a context are not lost with it.
    drop((first, second));
    for vm in ["left", "right"] {
        let is_over = || broker.vm(vm).is_ok_and(|vm| vm["contexts"] == serde_json::json!([]));
        ensure!(eventually(PATIENCE, is_over), "{}", broker.vm(vm)?);
    }
    let (trace, said) = taking.end()?;
    let (other, _) = named.end()?;
    // Each VM has one submission more, which waits for the timeline.
    trace.check(own as usize + 1)?;
    other.check(others as usize + 1)?;
    ensure!(
        said.contains(&format!("{} submissions of left", own + 1)) && !said.contains("missing"),
        "{said}"
    );
    let (gate, on_gpu) = (trace.sum("gate us"), trace.sum("GPU us"));
    let held = trace.held();
    println!("{gate:.0} us at the gate, {on_gpu:.0} us on the GPU, {held:?}");
    ensure!(gate > 0.0 && on_gpu > 0.0);
    ensure!(held.get("another VM").is_some_and(|time| *time > 0.0), "{held:?}");
    ensure!(held.keys().all(|name| ["another VM", "nobody"].contains(&&**name) || name.starts_with("left")));
    ensure!(trace.slices("gpu").iter().any(|slice| slice["name"] == "another VM"));
    ensure!(!trace.0.to_string().contains("right"), "the other VM is named");
    ensure!(other.held().keys().any(|name| name == "left"), "{:?}", other.held());
    let told = |trace: &Trace| trace.slices("submission").iter().any(|s| s["args"]["guest told"] == "yes");
    ensure!(told(&trace) && told(&other), "no answer to a fence");
    let is_measured = |slice: &&&Value| slice["args"]["GPU times"] == "measured by the GPU";
    println!("{} are measured", trace.slices("submission").iter().filter(is_measured).count());
    let counters = trace.0["traceEvents"].as_array().into_iter().flatten().filter(|e| e["ph"] == "C");
    let names: Vec<_> = counters.filter_map(|counter| counter["name"].as_str()).collect();
    ensure!(names.contains(&"submissions") && names.contains(&"memory, MiB"), "{names:?}");
    ensure!(broker.stop()?.success());
    Ok(())
}

#[test]
fn a_program_that_is_alone_waits_for_nobody() -> Result<()> {
    let broker = Broker::start("", &[("only", ""), ("idle", "")])?;
    let mut device = timeline::device(&guest(&broker, "only")?, "only")?;
    let memory = device.allocate(SIZE, Source::New)?.map_err(|result| anyhow!("{result:?}"))?;
    let buffer = device.bound(memory, SIZE)?;
    // These submissions make a lease more likely; the trace does not contain them, because they end before it.
    fill(&mut device, buffer, 10)?;
    wait(&device, &broker)?;
    let taking = Taking::begin(&broker, "only", &[])?;
    let traced = |count: usize| -> Result<()> {
        ensure!(eventually(PATIENCE, || broker.vm("only").is_ok_and(|vm| {
            vm["used"]["submissions"].as_u64().is_some_and(|done| done >= 10 + count as u64)
        })));
        Ok(())
    };
    for _ in 0..20 {
        fill(&mut device, buffer, 1)?;
        wait(&device, &broker)?;
    }
    traced(20)?;
    let (trace, _) = taking.end()?;
    ensure!(trace.slices("submission").len() >= 20, "{}", trace.0);
    let held = trace.held();
    ensure!(!held.contains_key("another VM"), "{held:?}");
    ensure!(
        trace.slices("gpu").iter().all(|slice| slice["name"].as_str().is_some_and(|n| n.starts_with("only")))
    );
    let told = trace.slices("submission").iter().filter(|s| s["args"]["guest told"] == "yes").count();
    ensure!(told >= 20, "{told} answers");
    Ok(())
}

#[test]
fn what_cannot_be_had_is_refused_with_the_reason() -> Result<()> {
    let broker = Broker::start("", &[("a", "")])?;
    let refused_by = |status: i32, vm: &str, arguments: &[&str]| -> Result<String> {
        let output = trace(&broker, vm)?.args(arguments).output()?;
        ensure!(output.status.code() == Some(status), "{}", output.status);
        Ok(said(&output))
    };
    let refused = |vm: &str, arguments: &[&str]| refused_by(1, vm, arguments);
    ensure!(refused("b", &[])?.contains("b: no such VM; there are a"));
    ensure!(refused_by(2, "a", &["--seconds", "301"])?.contains("301 is not in 1..=300"));
    let taking = Taking::begin(&broker, "a", &[])?;
    let error = refused("a", &[])?;
    ensure!(error.contains("a: another operator takes a trace of this VM already"), "{error}");
    let (trace, said) = taking.end()?;
    ensure!(said.contains("no submission has ended"), "{said}");
    ensure!(trace.0["otherData"]["missing"][0].as_str().is_some_and(|lack| lack.contains("no submission")));
    let unwritable = broker.path("nowhere/file").display().to_string();
    let error = refused("a", &["--output", &unwritable])?;
    ensure!(error.contains("--output names another file"), "{error}");
    Ok(())
}

#[test]
fn where_nobody_listens_no_trace_is_taken_and_the_message_says_what_helps() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut command = vhost_user_vulkan()?;
    command.args(["trace", "web", "--control-socket"]).arg(folder.path().join("control"));
    let output = command.output()?;
    let said = said(&output);
    ensure!(output.status.code() == Some(1) && said.lines().count() == 1, "{said}");
    ensure!(said.contains("is this its control-socket?") && said.contains("a daemon of one VM"), "{said}");
    Ok(())
}

#[test]
fn whoever_goes_away_or_does_not_read_ends_nothing_but_the_trace() -> Result<()> {
    let broker = Broker::start("", &[("a", "")])?;
    let ask = || -> Result<(UnixStream, String)> {
        let mut stream = UnixStream::connect(broker.path("control"))?;
        stream.write_all(b"{\"request\":\"trace\",\"vm\":\"a\",\"seconds\":300}\n")?;
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line)?;
        Ok((stream, line))
    };
    let admitted = || ask().ok().filter(|(_, line)| line.contains("tracing"));
    let (stream, line) = ask()?;
    ensure!(line.contains("tracing"), "{line}");
    ensure!(ask()?.1.contains("already"));
    drop(stream);
    let admitted_again = || {
        let mut taking = None;
        eventually(PATIENCE, || {
            taking = admitted();
            taking.is_some()
        });
        taking
    };
    let silent = admitted_again().context("the trace outlives its reader")?;
    // The client does not read this trace, while the daemon has much to report.
    let mut device = timeline::device(&guest(&broker, "a")?, "a")?;
    let memory = device.allocate(4096, Source::New)?.map_err(|result| anyhow!("{result:?}"))?;
    let dst_buffer = device.bound(memory, 4096)?;
    for data in 0..2000 {
        device.submit(|command_buffer, w| {
            venus::CmdFillBuffer { command_buffer, dst_buffer, dst_offset: 0, size: 4096, data }
                .encode(ASYNC, w);
        })?;
    }
    wait(&device, &broker)?;
    let all = || {
        broker.vm("a").is_ok_and(|vm| vm["used"]["submissions"].as_u64().is_some_and(|count| count >= 2000))
    };
    ensure!(eventually(PATIENCE, all), "{}", broker.vm("a")?);
    drop(silent);
    let (stream, _) = admitted_again().context("the trace outlives its reader, which did not read")?;
    // A line from the reader ends the trace; then the last line of the trace arrives.
    (&stream).write_all(b"\n")?;
    let last = BufReader::new(&stream).lines().map_while(Result::ok).last().context("a last line")?;
    ensure!(last.contains("\"event\":\"end\""), "{last}");
    ensure!(eventually(PATIENCE, || admitted().is_some()));
    Ok(())
}
