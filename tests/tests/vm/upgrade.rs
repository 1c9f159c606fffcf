//! Another program takes over a broker's VMs again and again, while a machine of QEMU and programs of unmodified Mesa compute.

use anyhow::{Result, ensure};
use serde_json::Value;
use std::fs;
use std::path::Path;
use tests::broker::Broker;
use tests::clients;
use tests::daemon::eventually;
use tests::package::installed::Installed;
use tests::packages::Suite;
use tests::program::variable;
use tests::program::{Background, LIMIT};
use tests::vm::{Guest, Options, Script, Vm};

/// The variable with the number of upgrades, and the default number.
const UPGRADES: (&str, u32) = ("VHOST_USER_VULKAN_UPGRADES", 5);
/// Before each upgrade whose number is a multiple of this one, the test installs a program that cannot take over.
const FAILS_EVERY: u32 = 5;
/// The VMs of programs that reach their VM's device process through a bridge.
const BRIDGED: [&str; 8] = ["b1", "b2", "b3", "b4", "b5", "b6", "b7", "b8"];
/// The VM of the machine.
const MACHINE: &str = "machine";
/// The guest's program computes until the script reads a line.
const SCRIPT: &str = "chmod +x /many_threads
    /many_threads --instances 1 --devices 1 --lanes 1 --rounds 0 --words 4096 --steps 1000 --report &
    read -r word
    kill $!
    wait $!
    [ $? = 143 ]";

/// A program that computes for ever, and prints a line after each round in which all results were right.
enum Computing {
    Bridged(Background),
    InMachine(Vm),
}

impl Computing {
    fn rounds(&self) -> usize {
        match self {
            Self::Bridged(program) => program.said().lines().count(),
            Self::InMachine(machine) => machine.output().matches("round").count(),
        }
    }
}

/// Waits until each program has found its results to be right twice more: the second round began after this call.
fn go_on(programs: &[Computing], broker: &Broker) -> Result<()> {
    let before: Vec<_> = programs.iter().map(Computing::rounds).collect();
    let all = || programs.iter().zip(&before).all(|(program, before)| program.rounds() > before + 1);
    ensure!(eventually(LIMIT, all), "not all go on\n{}", broker.log());
    Ok(())
}

/// Returns the values that change if a VMM's session or a context ends.
fn possessions(broker: &Broker) -> Result<Vec<Value>> {
    let of = |vm: &str| {
        let vm = broker.vm(vm)?;
        Ok(["state", "restarts", "kills"].map(|key| vm[key].clone()).into_iter().collect())
    };
    BRIDGED.iter().copied().chain([MACHINE]).map(of).collect()
}

/// Installs a program that cannot take over, which the broker has to refuse, and then the daemon again.
fn fail(installed: &Installed) -> Result<()> {
    let whole = fs::read(installed.built())?;
    installed.replace_by(&whole[..whole.len() / 2], 0o755)?;
    let refused = installed.broker.operate(&["upgrade"])?;
    let said = String::from_utf8_lossy(&refused.stderr);
    ensure!(refused.status.code() == Some(1) && said.contains("goes on as before"), "{said}");
    installed.replace()
}

#[test]
#[ignore = "boots a machine beside eight programs that compute for minutes"]
fn programs_and_a_machine_compute_on_beneath_upgrade_after_upgrade() -> Result<()> {
    let upgrades = variable::number(UPGRADES.0)?.unwrap_or(UPGRADES.1);
    let vms: Vec<_> = BRIDGED.iter().chain([&MACHINE]).map(|vm| (*vm, "")).collect();
    let mut installed = Installed::start(&vms)?;
    let broker = &installed.broker;
    let program = Path::new(env!("CARGO_BIN_EXE_many_threads"));
    let script = Script::new(SCRIPT).with_file("many_threads", fs::read(program)?);
    let options =
        Options { gpus: vec![broker.path(MACHINE)], limit: LIMIT * (upgrades + 2), ..Options::default() };
    let guest = Guest::build(Suite::Testing)?;
    let machine = Vm::boot(&guest, &script, &options)?;
    machine.wait_for("round", 0, LIMIT).map_err(|error| error.context(broker.log()))?;
    let bridges = BRIDGED.iter().map(|vm| broker.bridge(vm)).collect::<Result<Vec<_>>>()?;
    let computes = |socket: &Path| {
        let mut command = clients::computing(program, socket, "0")?;
        command.arg("--report");
        Ok(Computing::Bridged(Background::start(command)?))
    };
    let mut programs = bridges.iter().map(|(_, path)| computes(path)).collect::<Result<Vec<_>>>()?;
    programs.push(Computing::InMachine(machine));
    go_on(&programs, broker)?;
    let before = possessions(broker)?;
    for number in 0..upgrades {
        if number % FAILS_EVERY == 0 {
            fail(&installed)?;
        } else {
            installed.replace()?;
        }
        let said = broker.say(&["upgrade"])?;
        println!("{number}: {}", said.lines().find(|line| line.contains("taken over")).unwrap_or_default());
        ensure!(installed.is_new(broker.pid())?, "{}", broker.log());
        go_on(&programs, broker)?;
        for vm in BRIDGED.iter().copied().chain([MACHINE]) {
            let renewed =
                || broker.device(vm).is_ok_and(|device| installed.is_new(device).unwrap_or_default());
            ensure!(eventually(LIMIT, renewed), "{vm} keeps its device process\n{}", broker.log());
        }
        go_on(&programs, broker)?;
        ensure!(possessions(broker)? == before, "something has begun anew\n{}", broker.log());
    }
    for program in programs {
        match program {
            Computing::Bridged(mut program) => {
                // On a busy machine Mesa says of a wait that it takes long, and waits on.
                let has_failed =
                    program.errors().lines().any(|line| !line.contains("MESA-VIRTIO: debug: stuck in"));
                ensure!(program.is_running() && !has_failed, "{}", program.errors());
            }
            Computing::InMachine(mut machine) => {
                machine.send_line("end")?;
                let outcome = machine.wait()?;
                ensure!(outcome.status == 0, "status {}\n{}", outcome.status, outcome.output);
            }
        }
    }
    drop(bridges);
    let log = installed.broker.log();
    ensure!(!log.contains("panicked") && installed.broker.stop()?.success(), "{log}");
    Ok(())
}
