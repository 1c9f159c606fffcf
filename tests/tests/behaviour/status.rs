//! The answers of `status` about one VM, and about the files that its daemon depends on.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::Command;
use tests::broker::{Broker, say};
use tests::daemon::{Daemon, bare_command, eventually};
use tests::guest::PATIENCE;
use tests::program::executable;

/// The value that `status VM` prints behind a word at the beginning of a line.
fn fact(text: &str, word: &str) -> Result<String> {
    let found = text.lines().find_map(|line| line.strip_prefix(word)?.strip_prefix(' '));
    Ok(found.with_context(|| format!("no {word} in\n{text}"))?.trim().to_owned())
}

#[test]
fn one_vm_is_shown_with_what_is_in_force_for_it_and_the_memory_of_its_gpu() -> Result<()> {
    let keys = "max-contexts = 7\nwindow-size = \"1GiB\"\nqueues = \"all\"\ndevice-memory = \"64MiB\"";
    let broker = Broker::start("", &[("a", keys), ("b", "")])?;
    let text = broker.say(&["status", "a"])?;
    ensure!(fact(&text, "state")?.starts_with("waiting, device process "), "{text}");
    assert_eq!(fact(&text, "socket")?, broker.path("a").display().to_string());
    ensure!(fact(&text, "window")?.starts_with("1.0GiB of memfd; guests "), "{text}");
    assert_eq!(
        (fact(&text, "queues")?, fact(&text, "device memory")?),
        ("all".into(), "0B held, of 64.0MiB".into())
    );
    ensure!(fact(&text, "options")?.split(' ').any(|option| option == "max-contexts=7"), "{text}");
    ensure!(fact(&text, "GPU")?.contains(", driver ") && !text.contains("driver unknown"), "{text}");
    ensure!(fact(&text, "daemon")?.starts_with("version ") && !text.contains("pending"), "{text}");
    let status: Value = serde_json::from_str(&broker.say(&["status", "a", "--json"])?)?;
    let names: Vec<_> = status["vms"].as_array().context("VMs")?.iter().map(|vm| &vm["name"]).collect();
    assert_eq!((names, &status["form"]), (vec![&json!("a")], &json!(1)));
    let in_force = &status["vms"][0]["in_force"];
    assert_eq!((&in_force["window_size"], &in_force["queues"]), (&json!(1 << 30), &json!("all")));
    let output = broker.operate(&["status", "c"])?;
    let said = String::from_utf8(output.stderr)?;
    assert_eq!(
        (output.status.code(), said.as_str()),
        (Some(1), "vhost-user-vulkan: c: no such VM; there are a, b\n")
    );
    // The memory of the GPU is below the table of all.
    let table = broker.say(&["status"])?;
    ensure!(
        table
            .lines()
            .last()
            .is_some_and(|line| line.contains(": VMs hold 0B of ") && line.contains(" are free, ")),
        "{table}"
    );
    Ok(())
}

#[test]
fn a_daemon_of_one_vm_shows_the_options_of_its_command_line() -> Result<()> {
    let daemon = Daemon::start_with(&["--max-contexts", "7", "--queues=compute"])?;
    let text = || say(&daemon.control(), &["status", "socket"]);
    // The control socket exists before the GPUs are known.
    ensure!(eventually(PATIENCE, || text().is_ok_and(|text| text.contains("\nqueues "))), "{}", text()?);
    let text = text()?;
    let options = fact(&text, "options")?;
    for option in ["max-contexts=7", "queues=compute"] {
        ensure!(options.split(' ').filter(|word| *word == option).count() == 1, "{text}");
    }
    assert_eq!(fact(&text, "queues")?, "compute");
    Ok(())
}

#[test]
fn a_program_that_was_replaced_is_told_as_an_upgrade_that_is_pending() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let program = folder.path().join("program");
    let usual = bare_command()?;
    executable::copy(Path::new(usual.get_program()), &program)?;
    let mut command = Command::new(&program);
    usual.get_envs().filter_map(|(name, value)| Some((name, value?))).for_each(|(name, value)| {
        command.env(name, value);
    });
    let broker = Broker::start_command(command, "", &[("a", ""), ("b", "")])?;
    assert_eq!(broker.status()?["upgrade"], Value::Null);
    // The file is replaced as package managers replace files.
    fs::write(folder.path().join("new"), "another")?;
    fs::rename(folder.path().join("new"), &program)?;
    let what = format!("the program was replaced ({})", program.display());
    let is_told = || broker.status().is_ok_and(|status| status["upgrade"] == json!(what));
    ensure!(eventually(PATIENCE, is_told), "{}", broker.log());
    let pending = format!("pending, as {what}");
    assert_eq!(fact(&broker.say(&["status", "a"])?, "upgrade")?, pending);
    ensure!(broker.say(&["status"])?.ends_with(&format!("upgrade {pending}\n")));
    assert_eq!(broker.log().matches(&what).count(), 1, "{}", broker.log());
    Ok(())
}
