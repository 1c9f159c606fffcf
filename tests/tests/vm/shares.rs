//! Four virtual machines share one GPU: stock guests, one broker.

use anyhow::{Context, Result, ensure};
use tests::broker::Broker;
use tests::packages::Suite;
use tests::vm::{Guest, Options, Script, Vm};

/// Computes again and again, and checks each word: few steps, since emulated processors are slow.
const COMPUTE: &str = "chmod +x /many_threads; \
    /many_threads --instances 1 --devices 1 --lanes 1 --rounds 10 --words 4096 --steps 2000";

#[test]
#[ignore = "boots four machines at once"]
fn four_guests_compute_at_once_and_each_is_accounted_for() -> Result<()> {
    // Software drivers and emulated processors are slow.
    let patience = "max-submit-time = \"10min\"\nmax-submit-time-contended = \"10min\"\n";
    let vms = [("a", 400), ("b", 200), ("c", 100), ("d", 100)];
    let keys: Vec<_> = vms.iter().map(|(_, weight)| format!("weight = {weight}\n{patience}")).collect();
    let named: Vec<_> = vms.iter().zip(&keys).map(|((name, _), keys)| (*name, keys.as_str())).collect();
    let broker = Broker::start("", &named)?;
    let guest = Guest::build(Suite::Testing)?;
    let program = std::fs::read(env!("CARGO_BIN_EXE_many_threads")).context("reading the guest program")?;
    let script = Script::new(COMPUTE).with_file("many_threads", program);
    let boot = |name: &str| {
        let options = Options { gpus: vec![broker.path(name)], ..Options::default() };
        Vm::boot(&guest, &script, &options)
    };
    let machines = vms.iter().map(|(name, _)| boot(name)).collect::<Result<Vec<_>>>()?;
    for ((name, _), machine) in vms.iter().zip(machines) {
        let outcome = machine.wait().with_context(|| format!("{name}\n{}", broker.log()))?;
        ensure!(outcome.status == 0, "{name}: {}\n{}", outcome.status, outcome.output);
        ensure!(outcome.output.contains("checked"), "{name}: {}", outcome.output);
    }
    for (name, _) in vms {
        let used = broker.vm(name)?;
        let gpu = used["used"]["gpu_seconds"].as_f64().or(used["gpu_seconds"].as_f64());
        ensure!(gpu.is_some_and(|seconds| seconds > 0.0), "{name} used nothing: {used}");
    }
    Ok(())
}
