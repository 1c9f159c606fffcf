//! The files with which systemd, QEMU and an administrator use the daemon: the tools that read the files accept them, and the units' restrictions
//! leave the daemon everything that its sandbox needs.

use anyhow::{Context, Result, ensure};
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;
use tests::daemon_process::daemon_executable;
use tests::program::{LIMIT, succeed};
use tests::sources::repository;

/// The units that start a program.
const SERVICES: &[&str] =
    &["vhost-user-vulkan.service", "vhost-user-vulkan@.service", "vhost-user-vulkan-metrics.service"];

/// Calls that the launcher makes on a child's way into the sandbox, beyond those that any program makes.
const ON_THE_WAY: &[&str] = &[
    "unshare",
    "mount",
    "umount2",
    "pivot_root",
    "chroot",
    "open_tree",
    "move_mount",
    "mount_setattr",
    "sethostname",
    "capset",
    "seccomp",
    "landlock_create_ruleset",
    "landlock_add_rule",
    "landlock_restrict_self",
    "pidfd_open",
    "pidfd_send_signal",
    "waitid",
    "prlimit64",
    "setpgid",
    "execveat",
    "clone",
    "fchown",
    "chown",
    "umask",
    "chmod",
    "fchmod",
];

fn packaging(name: &str) -> PathBuf {
    repository().join("daemon/packaging").join(name)
}

fn systemd_analyze(arguments: &[&str]) -> Result<String> {
    let mut command = Command::new("systemd-analyze");
    command.args(["--no-pager"]).args(arguments).env("LC_ALL", "C").env("SYSTEMD_COLORS", "0");
    succeed(command, LIMIT)
}

/// The values of a key, one for each line with the key.
fn values(unit: &str, key: &str) -> Result<Vec<String>> {
    let text = fs::read_to_string(packaging("systemd").join(unit))?;
    let value = |line: &str| Some(line.strip_prefix(key)?.strip_prefix('=')?.to_owned());
    Ok(text.lines().filter_map(value).collect())
}

/// The calls of a set such as `@mount`, and of the sets in it.
fn calls_of(set: &str) -> Result<BTreeSet<String>> {
    let mut calls = BTreeSet::new();
    for line in systemd_analyze(&["syscall-filter", set])?.lines().filter(|line| line.starts_with(' ')) {
        match line.trim() {
            comment if comment.starts_with('#') => {}
            inner if inner.starts_with('@') => calls.extend(calls_of(inner)?),
            call => _ = calls.insert(call.to_owned()),
        }
    }
    ensure!(!calls.is_empty(), "systemd knows no {set}");
    Ok(calls)
}

/// Returns the calls that a unit's filter allows: its first line allows calls, and later lines take some away.
fn allowed_calls(unit: &str) -> Result<BTreeSet<String>> {
    let mut allowed = calls_of("@default")?;
    for line in values(unit, "SystemCallFilter")? {
        let (takes_away, names) =
            line.strip_prefix('~').map_or((false, line.as_str()), |names| (true, names));
        for name in names.split_whitespace() {
            let calls =
                if name.starts_with('@') { calls_of(name)? } else { BTreeSet::from([name.to_owned()]) };
            match takes_away {
                true => allowed.retain(|call| !calls.contains(call)),
                false => allowed.extend(calls),
            }
        }
    }
    Ok(allowed)
}

#[test]
fn units_are_hardened() -> Result<()> {
    for unit in SERVICES {
        let path = packaging("systemd").join(unit);
        // The threshold is in tenths: 2.0 is "OK".
        systemd_analyze(&["security", "--offline=true", "--threshold=20", &path.to_string_lossy()])
            .with_context(|| format!("{unit} is exposed more than it may be"))?;
    }
    Ok(())
}

#[test]
fn systemd_understands_each_line() -> Result<()> {
    // The test uses a copy of the unit that names a program which exists.
    let folder = TempDir::new()?;
    let mut units = Vec::new();
    for entry in fs::read_dir(packaging("systemd"))? {
        let entry = entry?;
        let text = fs::read_to_string(entry.path())?.replace("/usr/bin/vhost-user-vulkan", "/bin/true");
        let text: String = text
            .lines()
            .filter(|line| !line.starts_with("Documentation="))
            .map(|line| format!("{line}\n"))
            .collect();
        let path = folder.path().join(entry.file_name());
        fs::write(&path, text.replace("/usr/lib/systemd/systemd-socket-proxyd", "/bin/true"))?;
        units.push(path);
    }
    ensure!(units.len() == 5, "{units:?}");
    let mut command = Command::new("systemd-analyze");
    command.arg("verify").args(&units).env("SYSTEMD_LOG_LEVEL", "warning");
    let output = command.output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    let ours: Vec<_> = said.lines().filter(|line| line.contains("vhost-user-vulkan")).collect();
    ensure!(ours.is_empty() && output.status.success(), "{said}");
    Ok(())
}

/// The value of a key that a unit has once.
fn value(unit: &str, key: &str) -> Result<String> {
    let values = values(unit, key)?;
    ensure!(values.len() == 1, "{unit}: {key}={values:?}");
    Ok(values.concat())
}

/// With a wrong command line, the daemon ends with a status after which systemd does not start it again.
#[test]
fn a_wrong_command_line_is_not_tried_again() -> Result<()> {
    let status = Command::new(daemon_executable()?).arg("--no-such-option").output()?.status;
    let status = status.code().context("a status")?.to_string();
    for unit in ["vhost-user-vulkan.service", "vhost-user-vulkan@.service"] {
        ensure!(value(unit, "RestartPreventExitStatus")? == status, "{unit}: {status}");
    }
    Ok(())
}

/// If a VMM waits at a socket, systemd starts the service again at once, also after a permanent failure, so these starts are limited. A daemon that
/// waits for a GPU is started again for ever.
#[test]
fn a_socket_does_not_start_a_daemon_for_ever() -> Result<()> {
    let number = |key| Ok::<u32, anyhow::Error>(value("vhost-user-vulkan@.service", key)?.parse()?);
    let (interval, burst) = (number("StartLimitIntervalSec")?, number("StartLimitBurst")?);
    ensure!(interval > 0 && number("RestartSec")? * burst > interval, "{burst} starts in {interval} s");
    Ok(())
}

#[test]
fn filters_of_the_units_leave_what_processes_of_the_sandbox_call() -> Result<()> {
    let mut command = Command::new(daemon_executable()?);
    command.arg("--print-seccomp");
    let printed = succeed(command, LIMIT)?;
    let lists = printed.lines().filter(|line| line.starts_with("  "));
    let mut needed: BTreeSet<String> =
        lists.flat_map(str::split_whitespace).map(|call| call.trim_end_matches('*').to_owned()).collect();
    ensure!(needed.len() > 80, "{printed}");
    needed.extend(ON_THE_WAY.iter().map(|&call| call.to_owned()));
    for unit in &SERVICES[..2] {
        let allowed = allowed_calls(unit)?;
        let missing: BTreeSet<&str> =
            needed.iter().map(String::as_str).filter(|&call| !allowed.contains(call)).collect();
        let forgone: BTreeSet<&str> = FORGONE.iter().copied().collect();
        ensure!(missing == forgone, "{unit} refuses {missing:?}");
    }
    Ok(())
}

/// Calls that the units refuse though lists of the sandbox have them: drivers ask for the processors or the priority of their threads, and go on
/// without.
const FORGONE: &[&str] = &["sched_setaffinity", "setpriority"];

#[test]
fn namespaces_of_the_sandbox_are_allowed() -> Result<()> {
    for unit in &SERVICES[..2] {
        let allowed = values(unit, "RestrictNamespaces")?;
        let allowed: BTreeSet<&str> = allowed.iter().flat_map(|line| line.split_whitespace()).collect();
        ensure!(
            allowed == BTreeSet::from(["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"]),
            "{unit}: {allowed:?}"
        );
    }
    Ok(())
}

#[test]
fn the_file_of_vms_is_accepted_as_it_is_shipped_and_with_its_example() -> Result<()> {
    let shipped = fs::read_to_string(packaging("vms.toml"))?;
    // A user would uncomment `#key = value` and `#[table]`; a remark has a blank behind its sign.
    let lines = shipped.lines().map(|line| match line.strip_prefix('#') {
        Some(rest) if !rest.is_empty() && !rest.starts_with(' ') => rest,
        _ => line,
    });
    let uncommented = lines.collect::<Vec<_>>().join("\n").replace("NAME", "web");
    let example: toml::Table = uncommented.parse()?;
    ensure!(example["vm"].get("web").is_some() && example.contains_key("metrics"), "{example:?}");
    let folder = TempDir::new()?;
    for (name, text) in [("shipped.toml", shipped), ("example.toml", uncommented)] {
        // The groups exist on every system with the package.
        let file = folder.path().join(name);
        let text = ["\"kvm\"", "\"vhost-user-vulkan\""]
            .iter()
            .fold(text, |text, group| text.replace(group, "\"root\""));
        fs::write(&file, text)?;
        let mut command = Command::new(daemon_executable()?);
        command.arg("--config").arg(file).arg("--check-config");
        succeed(command, LIMIT)?;
    }
    Ok(())
}

#[test]
fn the_description_for_management_software_says_what_the_schema_wants() -> Result<()> {
    let description: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(packaging("50-vhost-user-vulkan.json"))?)?;
    let keys: Vec<&str> = description.as_object().context("an object")?.keys().map(String::as_str).collect();
    // The keys of `VhostUserBackend` in QEMU's vhost-user.json; `tags` may be left out.
    ensure!(keys == ["binary", "description", "type"], "{keys:?}");
    ensure!(
        description["binary"] == "/usr/bin/vhost-user-vulkan" && description["type"] == "gpu",
        "{description}"
    );
    let mut command = Command::new(daemon_executable()?);
    command.args(["--print-capabilities", "--and-whatever-else"]);
    let capabilities: serde_json::Value = serde_json::from_str(&succeed(command, LIMIT)?)?;
    // `VHostUserBackendCapabilitiesGPU`; its features are `render-node` and `virgl`, options that this daemon does not have.
    ensure!(capabilities == serde_json::json!({ "type": "gpu", "features": [] }), "{capabilities}");
    Ok(())
}
