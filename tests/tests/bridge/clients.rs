//! Unmodified Mesa clients through the bridge: the device that they see, their results, and what remains after them.

use anyhow::{Context, Result, ensure};
use rustix::process::{Signal, kill_process};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;
use tests::clients::Setup;
use tests::completion;
use tests::daemon::{Daemon, Holdings, WITHOUT_CHECKPOINTS, eventually, is_alive};
use tests::packages::{ClientRoot, Suite};
use tests::program::{LIMIT, Program, succeed};

const SUITES: [Suite; 3] = [Suite::Trixie, Suite::Testing, Suite::Unstable];
/// The number of words that are compared.
const WORDS: usize = 24;
/// The number of words that are asked for.
const WORDS_ASKED: u32 = WORDS as u32 + completion::SPARE_WORDS;

fn setup() -> Result<Setup> {
    Setup::start()
}

fn vulkaninfo(setup: &Setup, client: &ClientRoot, arguments: &[&str]) -> Result<Command> {
    let mut command = client.through_vtest("vulkaninfo", setup.socket())?;
    command.args(arguments);
    Ok(command)
}

fn assert_no_leak(setup: &Setup, before: Holdings) -> Result<()> {
    println!("{before:?} -> {:?}", setup.check_for_leaks(before)?);
    Ok(())
}

#[test]
fn every_mesa_sees_a_venus_device_with_the_version_it_knows() -> Result<()> {
    let setup = setup()?;
    for suite in SUITES {
        let client = ClientRoot::open(suite)?;
        let summary = succeed(vulkaninfo(&setup, &client, &["--summary"])?, LIMIT)?;
        ensure!(summary.contains("deviceName         = Virtio-GPU Venus (llvmpipe"), "{suite:?}: {summary}");
        let version = if suite == Suite::Trixie { "1.3." } else { "1.4." };
        ensure!(summary.contains(&format!("apiVersion         = {version}")), "{suite:?}: {summary}");
        setup.settle()?;
    }
    Ok(())
}

#[test]
fn vulkaninfo_is_complete_and_without_an_error() -> Result<()> {
    let setup = setup()?;
    for suite in SUITES {
        let client = ClientRoot::open(suite)?;
        let output = Program::start(vulkaninfo(&setup, &client, &["--show-formats"])?)?.wait(LIMIT)?;
        let (text, errors) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        ensure!(output.status.success(), "{suite:?}: {}\n{errors}", output.status);
        for section in [
            "VkPhysicalDeviceLimits:",
            "VkPhysicalDeviceVulkan13Features:",
            "Format Properties",
            "memoryTypes",
        ] {
            ensure!(text.contains(section), "{suite:?}: no {section}\n{errors}");
        }
        ensure!(!errors.contains("ERROR"), "{suite:?}: {errors}");
    }
    setup.settle()?;
    Ok(())
}

#[test]
fn queues_draw_only_where_the_operator_says_so() -> Result<()> {
    for (options, say_so, can_draw) in
        [(&["--queues", "compute"][..], false, false), (&[], true, false), (&["--queues", "all"], true, true)]
    {
        let setup = Setup::on(Daemon::start_with(options)?)?;
        for suite in SUITES {
            let info = succeed(vulkaninfo(&setup, &ClientRoot::open(suite)?, &[])?, LIMIT)?;
            ensure!(info.contains("QUEUE_COMPUTE_BIT"), "{suite:?}: {info}");
            for (graphics, expected) in
                [("QUEUE_GRAPHICS_BIT", say_so), ("VK_EXT_transform_feedback", can_draw)]
            {
                assert_eq!(info.contains(graphics), expected, "{suite:?}, {options:?}: {graphics}");
            }
        }
        setup.settle()?;
    }
    Ok(())
}

/// `name = value` of one section of vulkaninfo.
fn section(text: &str, name: &str) -> Vec<(String, String)> {
    let lines = text.lines().skip_while(|line| !line.starts_with(name)).skip(2);
    let values = lines
        .take_while(|line| line.starts_with(char::is_whitespace))
        .filter_map(|line| line.split_once('='));
    values.map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned())).collect()
}

#[test]
fn limits_are_those_of_the_host_driver() -> Result<()> {
    let setup = setup()?;
    let client = ClientRoot::open(Suite::Testing)?;
    let native = succeed(client.native("vulkaninfo")?, LIMIT)?;
    let through = succeed(vulkaninfo(&setup, &client, &[])?, LIMIT)?;
    let expected = section(&native, "VkPhysicalDeviceLimits:");
    let found = section(&through, "VkPhysicalDeviceLimits:");
    ensure!(expected.len() > 80, "{} limits in the native output", expected.len());
    let differing = expected.iter().zip(&found).filter(|(expected, found)| expected != found);
    let differing: Vec<&str> = differing.map(|(expected, _)| expected.0.as_str()).collect();
    // Sparse resources are not offered.
    assert_eq!((found.len(), differing), (expected.len(), vec!["sparseAddressSpaceSize"]));
    Ok(())
}

#[test]
#[ignore = "repeats what few clients show: one hundred of them"]
fn one_hundred_clients_one_after_another_leave_nothing_behind() -> Result<()> {
    let setup = setup()?;
    let client = ClientRoot::open(Suite::Testing)?;
    let run = || succeed(vulkaninfo(&setup, &client, &["--summary"])?, LIMIT);
    for _ in 0..10 {
        run()?;
    }
    let before = setup.settle()?;
    for number in 0..100 {
        run().with_context(|| format!("client {number}"))?;
    }
    assert_no_leak(&setup, before)
}

#[test]
fn sixteen_clients_at_once_do_not_disturb_each_other() -> Result<()> {
    let setup = setup()?;
    let clients = SUITES.map(ClientRoot::open);
    let [trixie, testing, unstable] = clients;
    let clients = [trixie?, testing?, unstable?];
    let round = || -> Result<()> {
        let running: Vec<_> = (0..16)
            .map(|i| {
                Program::start(vulkaninfo(
                    &setup,
                    &clients[i % 3],
                    if i % 2 == 0 { &[] } else { &["--summary"] },
                )?)
            })
            .collect::<Result<_>>()?;
        for program in running {
            let output = program.wait(LIMIT)?;
            ensure!(
                output.status.success(),
                "{}\n{}",
                output.status,
                String::from_utf8_lossy(&output.stderr)
            );
            ensure!(String::from_utf8_lossy(&output.stdout).contains("Virtio-GPU Venus"));
        }
        Ok(())
    };
    round()?;
    let before = setup.settle()?;
    round()?;
    round()?;
    assert_no_leak(&setup, before)
}

#[test]
fn clients_killed_at_any_moment_leave_nothing_behind() -> Result<()> {
    let setup = setup()?;
    let client = ClientRoot::open(Suite::Testing)?;
    let kill_after = |milliseconds: u64| -> Result<()> {
        let mut program = Program::start(vulkaninfo(&setup, &client, &[])?)?;
        std::thread::sleep(Duration::from_millis(milliseconds));
        program.kill();
        Ok(())
    };
    kill_after(100)?;
    let before = setup.settle()?;
    for moment in 0..60 {
        kill_after(moment * 7)?;
    }
    assert_no_leak(&setup, before)
}

fn completion_command(
    setup: &Setup,
    client: &ClientRoot,
    model: &tempfile::NamedTempFile,
) -> Result<Command> {
    let mut command = client.through_vtest("llama-completion", setup.socket())?;
    command.args(completion::arguments(model.path(), WORDS_ASKED));
    Ok(command)
}

fn model() -> Result<tempfile::NamedTempFile> {
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), completion::model())?;
    Ok(file)
}

fn first_words(text: &str) -> Vec<String> {
    text.split_whitespace().take(WORDS).map(str::to_owned).collect()
}

fn native_words(client: &ClientRoot) -> Result<Vec<String>> {
    let words = first_words(&completion::native(client, WORDS as u32)?);
    ensure!(words.len() == WORDS, "the host said {words:?}");
    Ok(words)
}

#[test]
fn llama_says_the_same_words_as_on_the_host() -> Result<()> {
    let setup = setup()?;
    let model = model()?;
    for suite in SUITES {
        let client = ClientRoot::open(suite)?;
        let expected = native_words(&client)?;
        let words = succeed(completion_command(&setup, &client, &model)?, LIMIT);
        let words = words.with_context(|| format!("{suite:?}"))?;
        assert_eq!(first_words(&words), expected, "{suite:?}");
        setup.settle()?;
    }
    Ok(())
}

#[test]
fn worker_killed_in_the_middle_of_work_ends_its_client_and_no_other() -> Result<()> {
    // With checkpoints, the program would get another worker between two words.
    let setup = Setup::on(Daemon::start_with(&WITHOUT_CHECKPOINTS)?)?;
    let client = ClientRoot::open(Suite::Testing)?;
    let expected = native_words(&client)?;
    let model = model()?;
    // The number of words is large enough that the program is certainly in the middle of them.
    let mut endless = client.through_vtest("llama-completion", setup.socket())?;
    endless.args(completion::arguments(model.path(), 100_000));
    let victim = Program::start(endless)?;
    let worker = setup.daemon().wait_for_workers(1)?[0];
    let busy = || tests::daemon::cpu_time(worker).is_ok_and(|used| used > Duration::from_millis(500));
    ensure!(eventually(LIMIT, busy), "the victim does not compute");
    let mut bystander = Program::start(completion_command(&setup, &client, &model)?)?;
    // The bystander may have printed all of its words before this thread gets a processor.
    let is_there = || setup.daemon().workers().len() == 2 || !bystander.is_running();
    ensure!(eventually(LIMIT, is_there), "the bystander has no worker\n{}", setup.daemon().log());
    kill_process(worker, Signal::KILL)?;
    let victim_pid = victim.pid();
    let outcome = victim.wait(LIMIT).context("the victim noticed nothing")?;
    ensure!(!outcome.status.success() && !is_alive(victim_pid));
    let output = bystander.wait(LIMIT)?;
    assert_eq!(first_words(&String::from_utf8_lossy(&output.stdout)), expected);
    let next = succeed(vulkaninfo(&setup, &client, &["--summary"])?, LIMIT)?;
    ensure!(next.contains("Virtio-GPU Venus"));
    setup.settle()?;
    Ok(())
}

#[test]
fn bridge_program_ends_with_a_signal_and_with_the_daemon() -> Result<()> {
    let client = ClientRoot::open(Suite::Testing)?;
    for daemon_dies in [false, true] {
        let daemon = Daemon::start()?;
        let folder = tempfile::tempdir()?;
        let socket = folder.path().join("vtest.sock");
        let mut command = Command::new(env!("CARGO_BIN_EXE_vtest-bridge"));
        command.arg("--vtest-socket").arg(&socket).arg("--vhost-socket").arg(daemon.socket());
        let bridge = Program::start(command)?;
        // The file exists before the bridge listens.
        ensure!(eventually(LIMIT, || UnixStream::connect(&socket).is_ok()), "the bridge does not listen");
        let mut vulkaninfo = client.through_vtest("vulkaninfo", &socket)?;
        vulkaninfo.arg("--summary");
        ensure!(succeed(vulkaninfo, LIMIT)?.contains("Virtio-GPU Venus"));
        let connected = UnixStream::connect(&socket)?;
        let target = if daemon_dies { daemon.pid() } else { bridge.pid() };
        kill_process(target, if daemon_dies { Signal::KILL } else { Signal::TERM })?;
        let output = bridge.wait(LIMIT)?;
        assert_eq!(output.status.success(), !daemon_dies, "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(std::io::Read::read(&mut &connected, &mut [0])?, 0, "the client's connection is open");
        ensure!(!socket.exists());
    }
    Ok(())
}
