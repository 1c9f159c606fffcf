//! Virtual machines that libvirt manages, with a daemon that systemd starts when QEMU connects: one computes the host's results, also when it is
//! paused meanwhile; libvirt refuses to save it; and it computes again after the daemon has ended between two starts of the machine. Another machine
//! is like KubeVirt's, with the device that KubeVirt's hook adds.
//!
//! libvirt, QEMU and systemd are those of Debian's coming release, installed by its own tools and running below a systemd of their own. The units are
//! the package's, and the device is added by the commands of README.

use std::fs;
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use tempfile::TempDir;
use tests::booted::{Booted, Network};
use tests::completion;
use tests::documents::indented;
use tests::package::by_hand;
use tests::packages::{ClientRoot, Installed, Suite};
use tests::program::LIMIT;
use tests::vm::{Guest, kubevirt, pause};

/// The page with the commands that add the device.
const PAGE: &str = include_str!("../../../README.md");

/// The number of words that a guest generates: enough for a pause in between.
const WORDS: u32 = 200;

/// A domain that boots a kernel by emulation; its console and its command have a file each.
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

/// Puts the guest where libvirt finds it, and has systemd listen for it.
const PREPARE: &str = r#"
cp /mnt/kernel /mnt/initramfs /var/lib/libvirt/images/
# There are no controllers to divide in these namespaces, and QEMU itself writes to the files.
printf 'cgroup_controllers = []\nstdio_handler = "file"\n' >>/etc/libvirt/qemu.conf
systemctl enable --now vhost-user-vulkan@web.socket
virsh define --validate /mnt/domain.xml
"#;

/// Shows the socket where a container of KubeVirt's finds it: mounted, as the device plugin asks for.
const MOUNT: &str = r"
truncate --size 16M /var/lib/libvirt/images/disk.img
touch /run/vhost-user-vulkan/gpu.sock
mount --bind /run/vhost-user-vulkan/web.sock /run/vhost-user-vulkan/gpu.sock
";

/// Succeeds if the daemon does not run.
const NO_DAEMON: &str = "! systemctl is-active --quiet vhost-user-vulkan@web.service";

/// Prints how many words the guest's command has printed.
const COUNT: &str = "wc -w </var/lib/libvirt/images/output";

/// The commands of README that give the domain `web` its GPU, and a check of the result against libvirt's schema.
fn give_gpu() -> Result<String> {
    let blocks = indented(PAGE, "libvirt");
    let [commands] = &blocks[..] else { bail!("README has blocks {blocks:?} for libvirt") };
    ensure!(commands.len() == 3, "README has {commands:?} for libvirt");
    Ok(format!("cd /root\n{}\nvirsh define --validate web-gpu.xml", commands.join("\n")))
}

/// A host with libvirt, which has the machine `web`.
struct Host {
    system: Booted,
    _shown: TempDir,
}

impl Host {
    /// Starts the host with a machine that fits libvirt's schema; `None` if this machine cannot have such a host.
    fn start(domain: &str) -> Result<Option<Self>> {
        let shown = TempDir::new()?;
        let guest = Guest::build(Suite::Testing)?;
        let script = completion::script("echo begins", WORDS);
        guest.write_initramfs(&script, &shown.path().join("initramfs"))?;
        fs::copy(guest.kernel(), shown.path().join("kernel"))?;
        by_hand::lay_out(shown.path())?;
        fs::write(shown.path().join("domain.xml"), domain)?;
        let Some(system) = Booted::boot(&Installed::vm_host()?, shown.path(), Network::None)? else {
            return Ok(None);
        };
        system.run(by_hand::INSTALL)?;
        system.run(PREPARE)?;
        Ok(Some(Self { system, _shown: shown }))
    }

    /// Runs a script; an error has the output of the guest and the daemon.
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

    /// Waits for the end of the machine, and checks that its guest has generated these words.
    fn ensure_generated(&self, expected: &str) -> Result<()> {
        self.wait_for("[ \"$(virsh domstate web)\" = 'shut off' ]")?;
        let output = self.run("cat /var/lib/libvirt/images/output")?;
        let words = completion::words_of(&output, WORDS);
        ensure!(words.as_deref() == Some(expected), "{words:?}, {expected:?}\n{}", self.evidence());
        Ok(())
    }
}

#[test]
#[ignore = "installs a whole system: libvirt"]
fn a_machine_of_libvirt_computes() -> Result<()> {
    if let Some(why) = Booted::obstacle() {
        println!("skipped: {why}");
        return Ok(());
    }
    let expected = completion::native(&ClientRoot::open(Suite::Testing)?, WORDS)?;
    let Some(host) = Host::start(DOMAIN)? else { return Ok(()) };
    host.run(&give_gpu()?)?;
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

#[test]
#[ignore = "installs a whole system: libvirt"]
fn a_machine_of_kubevirt_computes_with_what_its_hook_adds() -> Result<()> {
    if let Some(why) = Booted::obstacle() {
        println!("skipped: {why}");
        return Ok(());
    }
    let expected = completion::native(&ClientRoot::open(Suite::Testing)?, WORDS)?;
    let Some(host) = Host::start(&kubevirt::hooked(kubevirt::DOMAIN)?)? else { return Ok(()) };
    host.run(MOUNT)?;
    host.run("virsh start web")?;
    host.ensure_generated(&expected)
}
