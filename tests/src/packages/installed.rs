//! A Debian in which packages are really installed, by its own dpkg and apt: for tests of a package's installation.
//!
//! mmdebstrap makes it, once. Each script runs in a fresh copy, as its root, in namespaces of its own; an ordinary user needs user namespaces.
//! `crate::booted` starts systemd in such a copy.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use super::mirror::debian_mirror;
use super::{apt, cache_dir, fetched};
use crate::program::succeed;

/// A description of a system: the packages besides a minimal one.
#[derive(Debug, Hash)]
struct Recipe {
    suite: &'static str,
    packages: &'static [&'static str],
    /// A script of the shell that runs when all is installed, with the system's folder as `$1`.
    hook: &'static str,
}

/// A guest's Debian 13, with Debian's own Venus driver and vulkaninfo. Its folder `/stock` has the package of the driver.
const GUEST: Recipe =
    Recipe { suite: "trixie", packages: &["mesa-vulkan-drivers", "vulkan-tools"], hook: KEEP_STOCK };

/// A host for virtual machines: systemd, libvirt, a QEMU that has the device, and the software driver.
const VM_HOST: Recipe = Recipe {
    suite: "testing",
    packages: &[
        "dbus",
        "libvirt-clients",
        "libvirt-daemon-system",
        "libvulkan1",
        "mesa-vulkan-drivers",
        "qemu-system-x86",
        "systemd-sysv",
    ],
    hook: "true",
};

/// A bare Debian 13 for virtual machines: systemd, and a QEMU that has the device, from the backports. Its apt installs recommended packages, too.
const BARE: Recipe = Recipe {
    suite: "trixie",
    packages: &[
        "ca-certificates",
        "dbus",
        "e2fsprogs",
        "procps",
        "qemu-system-common/trixie-backports",
        "qemu-system-data/trixie-backports",
        "qemu-system-x86/trixie-backports",
        "seabios/trixie-backports",
        "sudo",
        "systemd-sysv",
    ],
    hook: r#"sed -i '/Install-Recommends/d' "$1"/etc/apt/apt.conf.d/99mmdebstrap"#,
};

/// A node of a Ganeti cluster: Debian 13 with Ganeti, the QEMU of its backports, which has the device, and the software driver.
const GANETI_NODE: Recipe = Recipe {
    suite: "trixie",
    packages: &[
        "dbus",
        "ganeti",
        "ganeti-os-noop",
        "iproute2",
        "libvulkan1",
        "mesa-vulkan-drivers",
        "qemu-system-common/trixie-backports",
        "qemu-system-data/trixie-backports",
        "qemu-system-x86/trixie-backports",
        "seabios/trixie-backports",
        "systemd-sysv",
    ],
    hook: "true",
};

/// Keeps the package of the driver, for a test that installs it again without a network.
const KEEP_STOCK: &str =
    r#"/usr/sbin/chroot "$1" sh -c 'mkdir /stock && cd /stock && apt-get download -q mesa-vulkan-drivers'"#;

/// The environment of a script in such a system.
pub(crate) const ENVIRONMENT: &str =
    "PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive";

/// Runs in the copy's namespaces: unpacks the archive `$1` as `$2`, shows it the folder `$3` as `/mnt`, and runs the script `$4` with the environment
/// `$5`.
const ENTER: &str = r#"
set -e
tar --extract --file "$1" --directory "$2" --no-same-owner --exclude='./dev/*' --warning=no-timestamp
mount --rbind /dev "$2/dev"
mount --bind "$3" "$2/mnt"
mount -t proc proc "$2/proc" 2>/dev/null || mount --rbind /proc "$2/proc"
exec /usr/sbin/chroot "$2" env -i $5 sh -ec "$4"
"#;

/// The archive of such a system.
#[derive(Clone, Debug)]
pub struct Installed(PathBuf);

impl Installed {
    /// Returns the reason, if any, for which this machine cannot have such a system.
    #[must_use]
    pub fn obstacle() -> Option<&'static str> {
        let runs = |command: &mut Command| {
            command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
        };
        if !runs(Command::new("mmdebstrap").arg("--version")) {
            return Some("mmdebstrap is not installed");
        }
        if !runs(namespaces().arg("true")) {
            return Some("this user may not make namespaces");
        }
        None
    }

    /// The Debian 13 of a guest, with Debian's own Venus driver and vulkaninfo. Its folder `/stock` has the package of the driver.
    ///
    /// # Errors
    /// The packages cannot be had, or mmdebstrap fails.
    pub fn guest() -> Result<Self> {
        Self::of(&GUEST)
    }

    /// A host for virtual machines of the coming release: systemd, libvirt, QEMU and the software driver.
    ///
    /// # Errors
    /// As [`Installed::guest`].
    pub fn vm_host() -> Result<Self> {
        Self::of(&VM_HOST)
    }

    /// A bare Debian 13 for virtual machines: systemd, sudo, and a QEMU that has the device, from the backports.
    ///
    /// # Errors
    /// As [`Installed::guest`].
    pub fn bare() -> Result<Self> {
        Self::of(&BARE)
    }

    /// A node of a Ganeti cluster, of Debian 13 and its backports: systemd, Ganeti, QEMU and the software driver.
    ///
    /// # Errors
    /// As [`Installed::guest`].
    pub fn ganeti_node() -> Result<Self> {
        Self::of(&GANETI_NODE)
    }

    /// Makes all of these systems that are not in the cache, in the order in which tests want them.
    ///
    /// # Errors
    /// As [`Installed::guest`].
    pub fn provide() -> Result<()> {
        [&VM_HOST, &BARE, &GUEST, &GANETI_NODE].into_iter().try_for_each(|recipe| Self::of(recipe).map(drop))
    }

    /// Makes the system if it is not in the cache.
    fn of(recipe: &Recipe) -> Result<Self> {
        let folder = cache_dir()?.join("installed");
        fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let mut content = DefaultHasher::new();
        recipe.hash(&mut content);
        let archive = folder.join(format!("{}-{:016x}.tar", recipe.suite, content.finish()));
        let lock = File::create(folder.join("lock"))?;
        lock.lock().context("cannot lock the cache of installed systems")?;
        if !archive.exists() {
            fetched(recipe.suite, || make(recipe, &archive))?;
        }
        Ok(Self(archive))
    }

    /// The archive's path.
    pub(crate) fn archive(&self) -> &Path {
        &self.0
    }

    /// An empty folder on the archive's disk.
    pub(crate) fn folder_for_copy(&self) -> Result<TempDir> {
        let cache = self.0.parent().context("the archive lies in a folder")?;
        TempDir::new_in(cache).context("cannot make a folder for a copy")
    }

    /// Runs a script of the shell in a copy, in which `folder` is `/mnt`. Returns the script's output.
    ///
    /// # Errors
    /// A command of the script fails, or it takes too long.
    pub fn run(&self, script: &str, folder: &Path) -> Result<String> {
        let copy = self.folder_for_copy()?;
        let mut command = namespaces();
        command.args(["sh", "-c", ENTER, "sh"]).arg(&self.0).args([copy.path(), folder]);
        command.args([script, ENVIRONMENT]);
        succeed(command, crate::program::LIMIT)
    }
}

/// A command that runs another as root of namespaces of its own.
pub(crate) fn namespaces() -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--propagation", "private"]);
    if !rustix::process::geteuid().is_root() {
        command.arg("--map-root-user");
    }
    command
}

fn make(recipe: &Recipe, archive: &Path) -> Result<()> {
    let suite = recipe.suite;
    eprintln!("packages: installing a Debian {suite} (about a minute)");
    let fresh = archive.with_extension("part");
    let settings = apt::inherited_settings()?;
    let mut command = Command::new("mmdebstrap");
    command.args(["--variant=minbase", "--format=tar", "--include", &recipe.packages.join(",")]);
    command.args(settings.lines().map(|line| format!("--aptopt={}", line.trim_end_matches(';'))));
    command.args([
        "--aptopt=APT::Install-Recommends \"false\"",
        "--aptopt=Acquire::Check-Valid-Until \"false\"",
        "--aptopt=Acquire::Retries \"3\"",
    ]);
    command
        .args(["doc", "man", "locale"].map(|folder| format!("--dpkgopt=path-exclude=/usr/share/{folder}/*")));
    command.arg(format!("--customize-hook={}", recipe.hook));
    command.args([suite, "-"]);
    let (signed_by, mirror) = (apt::signed_by(), debian_mirror()?);
    command.arg(format!("deb {signed_by}{mirror} {suite} main"));
    if recipe.packages.iter().any(|package| package.ends_with("-backports")) {
        command.arg(format!("deb {signed_by}{mirror} {suite}-backports main"));
    }
    let output = command.stdin(Stdio::null()).stdout(File::create(&fresh)?).stderr(Stdio::piped()).output();
    let output = output.context("cannot run mmdebstrap")?;
    ensure!(output.status.success(), "mmdebstrap failed:\n{}", String::from_utf8_lossy(&output.stderr));
    fs::rename(&fresh, archive)?;
    Ok(())
}
