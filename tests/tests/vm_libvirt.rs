//! A virtual machine that libvirt manages, with a daemon that systemd starts when QEMU connects: it computes what the host computes, also when it
//! is paused meanwhile; libvirt refuses to save it; and it computes again when the daemon has ended between two of its starts.
//!
//! libvirt, QEMU and systemd are those of Debian's coming release, installed by its own tools and running below a systemd of their own. The units are
//! the package's, and the device is added by `recipe libvirt`.

use std::fs;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use tempfile::TempDir;
use tests::booted::{Booted, Network};
use tests::completion;
use tests::daemon_process::daemon_executable;
use tests::packages::{ClientRoot, Installed, Suite};
use tests::program::{LIMIT, succeed};
use tests::sources::repository;
use tests::vm::{Guest, pause};

/// The words that a guest generates: it takes long enough to be paused in between.
const WORDS: u32 = 200;

/// A domain that boots a kernel by emulation, and whose console and command have a file each.
const DOMAIN: &str = r"
<domain type='qemu'>
  <name>web</name>
  <memory unit='MiB'>1536</memory>
  <os>
    <type arch='x86_64' machine='q35'>hvm</type>
    <kernel>/var/lib/libvirt/images/kernel</kernel>
    <initrd>/var/lib/libvirt/images/initramfs</initrd>
    <cmdline>console=ttyS0 panic=-1</cmdline>
  </os>
  <features><acpi/></features>
  <cpu mode='maximum'/>
  <on_crash>destroy</on_crash>
  <devices>
    <serial type='file'><source path='/var/lib/libvirt/images/console'/><target port='0'/></serial>
    <serial type='file'><source path='/var/lib/libvirt/images/output'/><target port='1'/></serial>
    <memballoon model='none'/>
  </devices>
</domain>
";

/// Puts the daemon, its user and its units where the package puts them, and the guest where libvirt finds it.
const INSTALL: &str = r#"
install -m 755 /mnt/vhost-user-vulkan /usr/bin/
cd /mnt/packaging
cp sysusers.d/* /usr/lib/sysusers.d/; cp tmpfiles.d/* /usr/lib/tmpfiles.d/; cp systemd/* /usr/lib/systemd/system/
systemd-sysusers vhost-user-vulkan.conf
systemd-tmpfiles --create vhost-user-vulkan.conf
mkdir /etc/vhost-user-vulkan
echo 'OPTIONS=--max-submit-time 60min --max-submit-time-contended 60min' >/etc/vhost-user-vulkan/web.env
cp /mnt/kernel /mnt/initramfs /var/lib/libvirt/images/
# There are no controllers to divide in these namespaces, and QEMU itself writes to the files.
printf 'cgroup_controllers = []\nstdio_handler = "file"\n' >>/etc/libvirt/qemu.conf
systemctl daemon-reload
systemctl start vhost-user-vulkan@web.socket
vhost-user-vulkan recipe libvirt --socket-path /run/vhost-user-vulkan/web.sock --domain /mnt/domain.xml >/tmp/web.xml
virsh define --validate /tmp/web.xml
"#;

/// Succeeds if the daemon does not run.
const NO_DAEMON: &str = "! systemctl is-active --quiet vhost-user-vulkan@web.service";

/// Prints how many words the guest's command has printed.
const COUNT: &str = "wc -w </var/lib/libvirt/images/output";

/// A host with libvirt, which has the machine `web`.
struct Host {
    system: Booted,
    _shown: TempDir,
}

impl Host {
    /// Starts the host; nothing, if this machine cannot have it.
    fn start() -> Result<Option<Self>> {
        let shown = TempDir::new()?;
        let guest = Guest::build(Suite::Testing)?;
        let script = completion::script("echo begins", WORDS);
        guest.write_initramfs(&script, &shown.path().join("initramfs"))?;
        fs::copy(guest.kernel(), shown.path().join("kernel"))?;
        fs::copy(daemon_executable()?, shown.path().join("vhost-user-vulkan"))?;
        fs::write(shown.path().join("domain.xml"), DOMAIN)?;
        let mut copy = Command::new("cp");
        copy.arg("-r").arg(repository().join("daemon/packaging")).arg(shown.path());
        succeed(copy, LIMIT)?;
        let Some(system) = Booted::boot(&Installed::vm_host()?, shown.path(), Network::None)? else {
            return Ok(None);
        };
        system.run(INSTALL)?;
        Ok(Some(Self { system, _shown: shown }))
    }

    /// Runs a script; an error has what the guest and the daemon said.
    fn run(&self, script: &str) -> Result<String> {
        self.system.run(script).map_err(|error| error.context(self.evidence()))
    }

    fn wait_for(&self, script: &str) -> Result<()> {
        self.system.wait_for(script, LIMIT).map_err(|error| error.context(self.evidence()))
    }

    fn evidence(&self) -> String {
        let logs =
            "cd /var/lib/libvirt/images; tail -n 40 console output || true; journalctl -n 60 --no-pager";
        self.system.run(logs).unwrap_or_else(|error| format!("{error:#}"))
    }

    /// Starts the machine and waits until its guest is in the middle of its work.
    fn begin(&self) -> Result<()> {
        self.run("virsh start web")?;
        self.wait_for(&format!("[ $({COUNT}) -gt 20 ]"))
    }

    /// Waits for the end of the machine, whose guest is to have generated these words.
    fn ensure_generated(&self, expected: &str) -> Result<()> {
        self.wait_for("[ \"$(virsh domstate web)\" = 'shut off' ]")?;
        let output = self.run("cat /var/lib/libvirt/images/output")?;
        let words = completion::words_of(&output, WORDS);
        ensure!(words.as_deref() == Some(expected), "{words:?}, {expected:?}\n{}", self.evidence());
        Ok(())
    }
}

#[test]
fn a_machine_of_libvirt_computes() -> Result<()> {
    if let Some(why) = Booted::obstacle() {
        println!("skipped: {why}");
        return Ok(());
    }
    let expected = completion::native(&ClientRoot::open(Suite::Testing)?, WORDS)?;
    let Some(host) = Host::start()? else { return Ok(()) };
    host.run(NO_DAEMON)?;
    host.begin()?;
    let status = host.run("systemctl show --property StatusText --value vhost-user-vulkan@web.service")?;
    ensure!(status.trim() == "connected, 1 context", "{status}");

    host.run("virsh suspend web")?;
    let before = host.run(COUNT)?;
    thread::sleep(pause(Duration::from_secs(1)));
    ensure!(host.run(COUNT)? == before, "a paused machine goes on");
    let saving = host.run("! virsh save web /var/lib/libvirt/images/saved 2>&1")?;
    ensure!(saving.contains("non-migratable device"), "{saving}");
    host.run("virsh resume web")?;
    host.ensure_generated(&expected)?;

    // The daemon ends between two machines; the next one starts it again.
    host.run("systemctl stop vhost-user-vulkan@web.service")?;
    host.run(NO_DAEMON)?;
    host.run("virsh start web")?;
    host.ensure_generated(&expected)?;

    host.begin()?;
    host.run("virsh destroy web && virsh undefine web")?;
    Ok(())
}
