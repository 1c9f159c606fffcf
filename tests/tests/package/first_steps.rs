//! The package on a bare Debian 13 with a systemd of its own: the commands of README lead to a guest that names its GPU, and the package is installed,
//! upgraded, removed and purged as administrators expect.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;
use tests::booted::{Booted, Network};
use tests::documents::fenced;
use tests::package::Architecture;
use tests::packages::Installed;
use tests::program::{LIMIT, succeed};

/// The page with the commands.
const PAGE: &str = include_str!("../../../README.md");

/// The commands of README, in order: those for the host, and the one for the guest.
fn commands() -> Result<(Vec<&'static str>, &'static str)> {
    let blocks: Vec<_> =
        fenced(PAGE, "sh").into_iter().map(|block| block.lines().collect::<Vec<_>>()).collect();
    let [host, guest] = &blocks[..] else { bail!("README has blocks {blocks:?}") };
    let [guest] = guest[..] else { bail!("the guest gets {guest:?}") };
    ensure!(host.len() < 5, "more than five commands: {host:?}");
    Ok((host.clone(), guest))
}

/// A Debian 13 that has the package in `/mnt`, and the same package as the next version.
struct Host {
    system: Booted,
    shown: TempDir,
}

impl Host {
    /// Starts the host; returns none if this machine cannot have it.
    fn start() -> Result<Option<Self>> {
        let shown = TempDir::new()?;
        let made = crate::released()?;
        let name = made.deb.file_name().context("the package has a name")?;
        fs::copy(&made.deb, shown.path().join(name))?;
        let Some(system) = Booted::boot(&Installed::bare()?, shown.path(), Network::Host)? else {
            return Ok(None);
        };
        let host = Self { system, shown };
        host.run("apt-get -q update")?;
        Ok(Some(host))
    }

    /// Runs a script; an error has the system's log.
    fn run(&self, script: &str) -> Result<String> {
        let evidence = || self.system.run("journalctl -n 60 --no-pager").unwrap_or_default();
        self.system.run(script).map_err(|error| error.context(evidence()))
    }

    /// Returns a property of a unit.
    fn property(&self, unit: &str, property: &str) -> Result<String> {
        let value = self.run(&format!("systemctl show --property {property} --value '{unit}'"))?;
        Ok(value.trim().to_owned())
    }

    /// Makes the next version of the package, and returns its path in the host.
    fn next_version(&self) -> Result<PathBuf> {
        let name = fs::read_dir(self.shown.path())?.next().context("the package")??.path();
        let folder = self.shown.path().join("next");
        let mut unpack = Command::new("dpkg-deb");
        unpack.arg("-R").args([&name, &folder]);
        succeed(unpack, LIMIT)?;
        let control = folder.join("DEBIAN/control");
        fs::write(&control, fs::read_to_string(&control)?.replace("-0upstream1", "-0upstream2"))?;
        let mut pack = Command::new("dpkg-deb");
        pack.args(["--root-owner-group", "-b"]).args([&folder, &self.shown.path().join("next.deb")]);
        succeed(pack, LIMIT)?;
        Ok(Path::new("/mnt/next.deb").to_owned())
    }
}

/// Runs README's last command for the host where a test can type: lines written to `/run/typed` reach QEMU, and `/run/shown` is its screen.
fn in_terminal(command: &str) -> String {
    format!(
        "mkfifo /run/typed; printf '%s\\n' 'exec <>/run/typed >/run/shown 2>&1' '{command}' >/run/terminal
         systemd-run --quiet --unit=terminal sh /run/terminal"
    )
}

#[test]
#[ignore = "installs a whole system: a bare Debian 13"]
fn readmes_commands_lead_to_a_gpu_and_the_package_comes_and_goes_cleanly() -> Result<()> {
    let obstacle = match Architecture::own() {
        Some(Architecture::Amd64) => Booted::obstacle(),
        _ => Some("README's commands are for amd64"),
    };
    if let Some(why) = obstacle {
        println!("skipped: {why}");
        return Ok(());
    }
    let (steps, in_guest) = commands()?;
    let Some(host) = Host::start()? else { return Ok(()) };
    let [install, image, socket, boot] = steps[..] else { bail!("README's steps are {steps:?}") };
    host.run(&format!("cd /mnt && {}", install.replace("apt-get", "apt-get -qy")))?;
    installed(&host)?;
    host.run(image)?;
    host.run(socket)?;
    computes(&host, boot, in_guest)?;
    upgraded(&host)?;
    gone(&host)
}

/// Checks the effects of an installation: the broker runs, and takes a VM when it reads its file again.
fn installed(host: &Host) -> Result<()> {
    let broker = "vhost-user-vulkan.service";
    ensure!(
        host.property(broker, "ActiveState")? == "active" && host.property(broker, "SubState")? == "running"
    );
    ensure!(host.property(broker, "StatusText")? == "0 VMs", "{}", host.property(broker, "StatusText")?);
    ensure!(host.property("vhost-user-vulkan@first.socket", "ActiveState")? == "inactive");
    for unit in ["vhost-user-vulkan", "vhost-user-vulkan@first", "vhost-user-vulkan-metrics"] {
        let said = host.run(&format!("systemd-analyze security --no-pager --threshold=20 {unit}.service"))?;
        println!("{}", said.lines().rfind(|line| !line.is_empty()).unwrap_or_default());
    }
    // A VM is added while the broker runs.
    host.run(
        "printf '[vm.a]\\nsocket-path = \"/run/vhost-user-vulkan/a.sock\"\\n' >>/etc/vhost-user-vulkan/vms.toml
         systemctl reload vhost-user-vulkan",
    )?;
    host.system.wait_for("vhost-user-vulkan status | grep '^a  *waiting'", LIMIT)?;
    let socket = host.run("stat -c '%U:%G %a' /run/vhost-user-vulkan/a.sock")?;
    ensure!(socket.trim() == "vhost-user-vulkan:kvm 660", "{socket}");
    host.run("vhost-user-vulkan doctor | grep '^ok *broker'")?;
    Ok(())
}

/// Boots the guest as README says, and asks it for its GPU.
fn computes(host: &Host, boot: &str, in_guest: &str) -> Result<()> {
    let evidence = |error: anyhow::Error| {
        let shown = host.run("tail -n 60 /run/shown").unwrap_or_default();
        error.context(shown)
    };
    host.run(&in_terminal(boot))?;
    let prompts = |count: u32| {
        let seen = format!(
            "systemctl is-active --quiet terminal && [ $(grep -o 'root@guest:~#' /run/shown | wc -l) = {count} ]"
        );
        host.system.wait_for(&seen, BOOT_LIMIT).map_err(evidence)
    };
    prompts(1)?;
    host.run(&format!("echo '{in_guest}' >/run/typed"))?;
    prompts(2)?;
    host.run("grep 'deviceName *= Virtio-GPU Venus (llvmpipe' /run/shown").map_err(evidence)?;
    let service = "vhost-user-vulkan@first.service";
    ensure!(host.property(service, "StatusText")?.starts_with("connected"));
    host.run("journalctl VM=first --output=cat | grep 'ready for a frontend'")?;
    host.run("echo poweroff >/run/typed")?;
    host.system.wait_for("! systemctl is-active --quiet terminal", BOOT_LIMIT).map_err(evidence)?;
    host.system.wait_for(
        &format!("systemctl show --property StatusText {service} | grep 'waiting for a frontend'"),
        LIMIT,
    )
}

/// An upgrade restarts nothing, and keeps the administrator's files.
fn upgraded(host: &Host) -> Result<()> {
    let running = || -> Result<Vec<String>> {
        let units = ["vhost-user-vulkan.service", "vhost-user-vulkan@first.service"];
        units.iter().map(|unit| host.property(unit, "MainPID")).collect()
    };
    let before = running()?;
    ensure!(!before.iter().any(|pid| pid == "0"), "{before:?}");
    let next = host.next_version()?;
    host.run(&format!("apt-get -qy install {}", next.display()))?;
    ensure!(running()? == before, "an upgrade restarts daemons");
    // Nevertheless the broker already executes the new program.
    host.run(&format!("! readlink /proc/{}/exe | grep deleted", before[0]))?;
    host.run("grep -F '[vm.a]' /etc/vhost-user-vulkan/vms.toml && vhost-user-vulkan status")?;
    host.run("systemctl restart vhost-user-vulkan")?;
    host.system.wait_for("vhost-user-vulkan status | grep '^a  *waiting'", LIMIT)
}

/// A removal ends the daemons, and a purge leaves only the user.
fn gone(host: &Host) -> Result<()> {
    host.run("apt-get -qy remove vhost-user-vulkan && ls /etc/vhost-user-vulkan/vms.toml")?;
    let left = host.run("pgrep -x vhost-user-vulk || true")?;
    ensure!(left.is_empty(), "still running: {left}");
    host.run("apt-get -qy purge vhost-user-vulkan")?;
    let left = "find / -xdev -path /mnt -prune -o -path /proc -prune -o -name '*vhost-user-vulkan*' -print";
    let left = host.run(left)?;
    let allowed = ["/etc/systemd", "/var/log", "/var/cache"];
    let left: Vec<_> =
        left.lines().filter(|path| !allowed.iter().any(|folder| path.starts_with(folder))).collect();
    ensure!(left.is_empty(), "purged, but there are {left:?}");
    let failed = host.run("systemctl --failed --no-legend --plain | grep vhost-user || true")?;
    ensure!(failed.is_empty(), "{failed}");
    Ok(())
}

/// Time that an emulated guest has to boot, or to end.
const BOOT_LIMIT: Duration = Duration::from_secs(900);
