//! Tests that a program whose reader has ended, as with `| head -1`, ends quietly: it neither panics nor prints an error, and its status depends on
//! its work alone.

use anyhow::{Context, Result, ensure};
use std::io;
use std::process::{Command, Stdio};
use tests::broker::{Broker, vhost_user_vulkan};

/// The end of a pipe without a reader.
fn unread() -> Result<Stdio> {
    let (reader, writer) = io::pipe()?;
    drop(reader);
    Ok(writer.into())
}

/// Runs a command without a reader of its output, and then also without a reader of its errors.
fn ends_quietly(command: impl Fn() -> Result<Command>, codes: &[i32]) -> Result<()> {
    let output = command()?.stdout(unread()?).stderr(Stdio::piped()).output()?;
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let is_quiet = !errors.contains("panicked") && !errors.contains("Broken pipe");
    ensure!(
        is_quiet && output.status.code().is_some_and(|code| codes.contains(&code)),
        "{}: {errors}",
        output.status
    );
    let status = command()?.stdout(unread()?).stderr(unread()?).status()?;
    ensure!(status.code().is_some_and(|code| codes.contains(&code)), "{status}");
    Ok(())
}

#[test]
fn what_needs_no_broker_ends_quietly() -> Result<()> {
    let prints: [&[&str]; 10] = [
        &["--print-capabilities"],
        &["-h"],
        &["--help"],
        &["help", "status"],
        &["--version"],
        &["--print-seccomp"],
        &["--list-gpus"],
        &["recipe", "qemu", "--socket-path", "/run/a"],
        &["recipe", "libvirt", "--socket-path", "/run/a"],
        &["doctor", "--help"],
    ];
    let command = |words: &[&str]| -> Result<Command> {
        let mut command = vhost_user_vulkan()?;
        command.args(words);
        Ok(command)
    };
    for words in prints {
        ends_quietly(|| command(words), &[0]).with_context(|| words.join(" "))?;
    }
    for words in [&["doctor"][..], &["doctor", "--json"], &["doctor", "--vm"]] {
        ends_quietly(|| command(words), &[0, 1]).with_context(|| words.join(" "))?;
    }
    ends_quietly(|| command(&["--wrong"]), &[2])?;
    ends_quietly(|| command(&["recipe"]), &[2])?;
    ends_quietly(|| command(&["status", "--control-socket", "/nowhere"]), &[1])?;
    Ok(())
}

#[test]
fn operators_commands_end_quietly() -> Result<()> {
    let broker = Broker::start("", &[("a", "")])?;
    let folder = tempfile::tempdir()?;
    let trace = folder.path().join("trace").display().to_string();
    let prints: [&[&str]; 6] = [
        &["status"],
        &["status", "--json"],
        &["status", "--watch"],
        &["reload"],
        &["recipe", "qemu", "--vm", "a"],
        &["trace", "a", "--seconds", "1", "--output", &trace],
    ];
    for words in prints {
        let command = || -> Result<Command> {
            let mut command = vhost_user_vulkan()?;
            command.args(words).arg("--control-socket").arg(broker.path("control"));
            Ok(command)
        };
        ends_quietly(command, &[0]).with_context(|| words.join(" "))?;
    }
    Ok(())
}
