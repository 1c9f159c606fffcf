//! A virtual machine that Ganeti manages, with a daemon that systemd starts when QEMU connects: the machine computes the host's results, also after
//! the daemon has ended between two starts of the machine.
//!
//! Ganeti is Debian 13's and QEMU that of its backports, installed by Debian's own tools and running below a systemd of their own, with the daemon's
//! packaged units. The administrator's commands are taken from the page.

use std::fs;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;
use tests::booted::{Booted, Network};
use tests::completion;
use tests::package::by_hand;
use tests::packages::{ClientRoot, Installed, Suite};
use tests::program::LIMIT;
use tests::vm::Guest;

/// The words that a guest generates.
const WORDS: u32 = 64;

/// The page with the administrator's commands.
const PAGE: &str = include_str!("../../../docs/many-hosts.md");

/// Has systemd listen for the machine.
const START: &str = "systemctl start vhost-user-vulkan@web.socket";

/// Makes a cluster of this node alone, whose machines boot the kernel in `/boot` by emulation. Names and addresses are those of examples.
const CLUSTER: &str = r"
cp /mnt/kernel /mnt/initramfs /boot/
hostname node.example
cat >/etc/hosts <<'END'
127.0.0.1 localhost
192.0.2.1 node.example
192.0.2.2 cluster.example
END
ip link set lo up
ip link add cluster type veth peer name nobody
ip addr add 192.0.2.1/24 dev cluster
ip link set cluster up
ip link set nobody up
mkdir -p /root/.ssh /srv/ganeti/file-storage
echo /srv/ganeti/file-storage >/etc/ganeti/file-storage-paths
gnt-cluster init --enabled-hypervisors=kvm --enabled-disk-templates=file --ipolicy-disk-templates=file --file-storage-dir=/srv/ganeti/file-storage \
    --ipolicy-bounds-specs=min:cpu-count=1,disk-count=0,disk-size=1,memory-size=128,nic-count=0,spindle-use=1/max:cpu-count=8,disk-count=16,disk-size=1048576,memory-size=32768,nic-count=8,spindle-use=12 \
    --master-netdev=cluster --no-ssh-init --no-etc-hosts \
    -H kvm:kvm_flag=disabled,kvm_path=/usr/bin/qemu-system-x86_64,cpu_type=max,kernel_path=/boot/kernel,initrd_path=/boot/initramfs \
    cluster.example
gnt-instance add -t file --disk=0:size=16M --no-nics --no-install --no-start -o noop -n node.example \
    -B memory=1536,vcpus=1 -H 'kvm:kernel_args=panic=-1' web
";

/// Has the output of the guest's command, on its second serial port, written to a file; the first port is Ganeti's own.
const OUTPUT: &str = r#"
extra=$(gnt-instance info web | sed -n 's/^ *kvm_extra: //p' | sed 's/,/\\,/g')
gnt-instance modify -H "kvm_extra=$extra -serial file:/var/log/output" web
"#;

/// The node of a cluster, which has the machine `web`.
struct Node {
    system: Booted,
    _shown: TempDir,
}

impl Node {
    /// Starts the node; returns none if this machine cannot have it.
    fn start() -> Result<Option<Self>> {
        let shown = TempDir::new()?;
        let guest = Guest::build(Suite::Trixie)?;
        guest.write_initramfs(&completion::script("echo begins", WORDS), &shown.path().join("initramfs"))?;
        fs::copy(guest.kernel(), shown.path().join("kernel"))?;
        by_hand::lay_out(shown.path())?;
        let Some(system) = Booted::boot(&Installed::ganeti_node()?, shown.path(), Network::None)? else {
            return Ok(None);
        };
        let node = Self { system, _shown: shown };
        for script in [by_hand::INSTALL, START, CLUSTER, entered()?, OUTPUT] {
            node.run(script)?;
        }
        Ok(Some(node))
    }

    /// Runs a script; an error has the output of Ganeti and the daemon.
    fn run(&self, script: &str) -> Result<String> {
        self.system.run(script).map_err(|error| error.context(self.evidence()))
    }

    fn evidence(&self) -> String {
        let logs =
            "cd /var/log/ganeti; tail -n 20 node-daemon.log kvm/* ../output; journalctl -n 40 --no-pager";
        self.system.run(&format!("({logs}) 2>&1 || true")).unwrap_or_else(|error| format!("{error:#}"))
    }

    /// Starts the machine, waits for its end, and checks that its guest has generated these words.
    fn ensure_generates(&self, expected: &str) -> Result<()> {
        self.run("gnt-instance start web")?;
        let ended = "! kill -0 $(cat /run/ganeti/kvm-hypervisor/pid/web)";
        self.system.wait_for(ended, LIMIT).map_err(|error| error.context(self.evidence()))?;
        let output = self.run("cat /var/log/output")?;
        let words = completion::words_of(&output, WORDS);
        ensure!(words.as_deref() == Some(expected), "{words:?}, {expected:?}\n{}", self.evidence());
        self.run("gnt-instance shutdown web").map(drop)
    }
}

/// The commands on the page that give the machine its device.
fn entered() -> Result<&'static str> {
    let section = PAGE.split_once("## Ganeti").context("the page has no section about Ganeti")?.1;
    section.split("```").find_map(|text| text.strip_prefix("sh\n")).context("the section has no commands")
}

#[test]
#[ignore = "installs a whole system: Ganeti"]
fn a_machine_of_ganeti_computes() -> Result<()> {
    if let Some(why) = Booted::obstacle() {
        println!("skipped: {why}");
        return Ok(());
    }
    let expected = completion::native(&ClientRoot::open(Suite::Trixie)?, WORDS)?;
    let Some(node) = Node::start()? else { return Ok(()) };
    node.ensure_generates(&expected)?;
    // The daemon ends between two machines; the next one starts it again.
    node.run("systemctl stop vhost-user-vulkan@web.service")?;
    node.ensure_generates(&expected)
}
