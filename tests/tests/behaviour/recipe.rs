//! Tests that QEMU takes the output of `recipe`, and that the output is that of the requested VM.

use anyhow::{Context, Result, ensure};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use tests::broker::{Broker, vhost_user_vulkan};
use tests::daemon_process::DaemonProcess;
use tests::documents::fenced;
use tests::packages::HostVulkan;
use tests::sources::repository;
use tests::vm::accepts;

fn recipe(arguments: &[&str]) -> Result<Output> {
    Ok(vhost_user_vulkan()?.arg("recipe").args(arguments).output()?)
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// The daemon's standard output; standard error must be empty.
fn printed(output: Output) -> Result<String> {
    let errors = String::from_utf8(output.stderr)?;
    ensure!(output.status.success() && errors.is_empty(), "{}: {errors}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}

#[test]
fn qemu_takes_its_arguments_for_a_vm_of_a_broker() -> Result<()> {
    let broker = Broker::start("", &[("a", ""), ("b", "")])?;
    let text = broker.say(&["recipe", "qemu", "--vm", "b", "--memory", "256MiB"])?;
    ensure!(text.lines().count() == 1 && text.contains(&broker.path("b").display().to_string()), "{text}");
    accepts(&words(&text)).with_context(|| broker.log())?;
    let unknown = broker.operate(&["recipe", "qemu", "--vm", "c"])?;
    assert_eq!(String::from_utf8(unknown.stderr)?, "vhost-user-vulkan: c: no such VM; there are a, b\n");
    assert_eq!((unknown.status.code(), unknown.stdout.len()), (Some(1), 0));
    Ok(())
}

#[test]
fn qemu_takes_its_arguments_for_a_daemon_of_one_vm_and_refuses_others() -> Result<()> {
    let daemon = DaemonProcess::start(&HostVulkan::lavapipe()?, &[])?;
    let socket = daemon.socket().display().to_string();
    let text = printed(recipe(&["qemu", "--socket-path", &socket, "--memory", "256MiB"])?)?;
    accepts(&words(&text)).with_context(|| daemon.log())?;
    let wrong = words(&text.replace("num_vqs=2", "num_vqs=many"));
    ensure!(accepts(&wrong).is_err(), "QEMU takes anything");
    Ok(())
}

#[test]
fn without_a_broker_its_file_is_read_which_is_said() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = |name: &str| folder.path().join(name).display().to_string();
    fs::write(path("vms.toml"), "[vm.web]\nsocket-path = \"/run/gpu/web.sock\"\n")?;
    let (config, control) = (path("vms.toml"), path("control"));
    let output = recipe(&["crosvm", "--vm", "web", "--config", &config, "--control-socket", &control])?;
    assert_eq!(String::from_utf8(output.stdout)?, "--vhost-user gpu,socket=/run/gpu/web.sock\n");
    let said = String::from_utf8(output.stderr)?;
    let start = format!("vhost-user-vulkan: no broker answers at {control} (");
    ensure!(said.starts_with(&start) && said.ends_with(&format!(": this is what {config} says\n")), "{said}");
    assert_eq!((output.status.code(), said.lines().count()), (Some(0), 1));
    let both = recipe(&["crosvm", "--vm", "web", "--socket-path", "/run/a"])?;
    ensure!(!both.status.success() && both.stdout.is_empty());
    Ok(())
}

#[test]
fn a_libvirt_domain_gets_the_device_and_whoever_adds_it_is_told_the_rules() -> Result<()> {
    let domain = "<domain type='kvm'>\n  <name>web</name>\n  <memory unit='GiB'>1</memory>\n</domain>\n";
    let mut command = vhost_user_vulkan()?;
    command.args(["recipe", "libvirt", "--socket-path", "/run/gpu/web.sock", "--domain", "-"]);
    let output = fed(command, domain)?;
    let (text, rules) = (String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?);
    ensure!(output.status.success() && text.contains("<access mode='shared'/>"), "{text}{rules}");
    ensure!(
        text.contains("<qemu:arg value='socket,id=vhost-user-vulkan,path=/run/gpu/web.sock'/>"),
        "{text}"
    );
    ensure!(rules.contains("\n/run/gpu/web.sock rw,\n") && rules.contains("semodule"), "{rules}");
    let files = "<devices><filesystem><driver type='virtiofs'/></filesystem></devices></domain>";
    let mut command = vhost_user_vulkan()?;
    command.args(["recipe", "libvirt", "--socket-path", "/run/gpu/web.sock", "--domain", "-"]);
    let output = fed(command, &domain.replace("</domain>", files))?;
    let advice = String::from_utf8(output.stderr)?;
    ensure!(
        output.status.success() && advice.starts_with("vhost-user-vulkan: virtiofsd of QEMU 7.2"),
        "{advice}"
    );
    ensure!(advice.ends_with(&rules) && !rules.contains("virtiofsd"), "{advice}");
    let file = tempfile::NamedTempFile::new()?;
    let refused = |path: &Path| -> Result<String> {
        let path = path.display().to_string();
        let output = recipe(&["libvirt", "--socket-path", "/run/a", "--domain", &path])?;
        ensure!(output.status.code() == Some(1) && output.stdout.is_empty());
        Ok(String::from_utf8(output.stderr)?)
    };
    let said = refused(file.path())?;
    ensure!(said.starts_with(&format!("vhost-user-vulkan: {}: no XML: ", file.path().display())), "{said}");
    ensure!(refused(Path::new("/nowhere"))?.contains("/nowhere: No such file"));
    Ok(())
}

fn fed(mut command: Command, input: &str) -> Result<Output> {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    child.stdin.take().context("standard input is piped")?.write_all(input.as_bytes())?;
    Ok(child.wait_with_output()?)
}

#[test]
fn the_page_shows_what_is_printed_for_a_domain() -> Result<()> {
    let output = recipe(&["libvirt", "--socket-path", "/run/vhost-user-vulkan/web.sock"])?;
    let printed = String::from_utf8(output.stdout)?;
    let lines: Vec<&str> = printed.lines().map(str::trim).collect();
    let page = fs::read_to_string(repository().join("docs/libvirt.md"))?;
    let pieces = fenced(&page, "xml");
    ensure!(pieces.len() == 3, "the page has pieces {pieces:?}");
    for piece in pieces {
        let piece: Vec<&str> = piece.lines().map(str::trim).collect();
        ensure!(lines.windows(piece.len()).any(|window| window == piece), "{piece:?}\n{printed}");
    }
    Ok(())
}
