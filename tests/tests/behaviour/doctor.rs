//! `vhost-user-vulkan doctor` on hosts that are broken on purpose: in each it names the one fault, and the remedy.
//!
//! The program is the real one, on the software driver and in real conditions: namespaces, limits, sockets, the QEMUs of two Debian suites.
//! The files of the host are those of a folder that each test makes (`--root`), so this machine's packages, mounts and settings do not matter, and
//! the host can have a GPU, AppArmor or SELinux.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use tempfile::TempDir;
use tests::attacks::paths::pipe;
use tests::broker::Broker;
use tests::daemon::eventually;
use tests::daemon_process::{children, daemon_executable, launcher};
use tests::guest::PATIENCE;
use tests::packages::{HostVulkan, PackageRoot, Suite, cache_dir};
use tests::program::end_of;

/// A program that changes the doctor's surroundings, as a shell script whose arguments are the doctor's command.
type Around = Option<&'static str>;

/// A host in working order, in which a test may change some files and settings.
struct Host {
    vulkan: HostVulkan,
    qemu: PathBuf,
    folder: TempDir,
}

/// One way to look at a host: the surroundings, the environment, the arguments.
#[derive(Clone, Default)]
struct Look {
    around: Around,
    environment: Vec<(&'static str, String)>,
    arguments: Vec<String>,
    without_qemu: bool,
}

/// The checks whose faults keep the daemon from starting.
const DECISIVE: [&str; 4] = ["vulkan-loader", "vulkan-drivers", "gpus", "sandbox"];

/// The findings that are warnings and faults: check, verdict, reason, remedy.
type Troubles = BTreeSet<(String, String, String, String)>;

/// An ordinary user, who is in no file's group.
const ORDINARY: &str = r#"exec unshare --user --map-user=1000 --map-group=1000 "$@""#;
/// An ordinary user, where no further user namespace can be made.
const NO_NAMESPACES: &str = r#"exec unshare --user --map-user=1000 --map-group=1000 --keep-caps sh -c '
    echo 0 >/proc/sys/user/max_user_namespaces; mkdir -p "$FILES/proc/sys/user"
    cat /proc/sys/user/max_user_namespaces >"$FILES/proc/sys/user/max_user_namespaces"; exec setpriv --ambient-caps=-all --inh-caps=-all "$@"' sh "$@""#;
/// A folder that is no mount, with the contents of the system. It exists in a namespace of mounts only. The host's files describe its mounts, except
/// for those of control groups.
const CHROOT: &str = r#"exec unshare --mount --propagation private sh -c '
    mount -t tmpfs none "$CHROOT"; mkdir "$CHROOT/new"
    for path in /*; do
        if [ -L "$path" ]; then cp -a "$path" "$CHROOT/new$path"
        elif [ -d "$path" ]; then mkdir "$CHROOT/new$path"; mount --rbind "$path" "$CHROOT/new$path"; fi
    done
    exec chroot "$CHROOT/new" sh -c "
        { grep -v \" - cgroup\" /proc/self/mountinfo; grep \" - cgroup2 \" \"\$FILES/proc/self/mountinfo\"; } >\"\$FILES/mounts\"
        mv \"\$FILES/mounts\" \"\$FILES/proc/self/mountinfo\"; exec \"\$@\"" sh "$@"' sh "$@""#;

impl Host {
    fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755))?;
        let qemu = qemu_of(Suite::Testing, folder.path())?;
        let host = Self { vulkan: HostVulkan::lavapipe()?, qemu, folder };
        // A host in working order, as far as the checks look at files.
        for (path, text) in [
            (
                "proc/self/mountinfo",
                "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n31 22 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
            ),
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory pids\n"),
            ("sys/fs/cgroup/a/pids.max", "max\n"),
            ("etc/passwd", "root:x:0:0::/root:/bin/sh\nnobody:x:65533:65533::/:/bin/false\n"),
            ("etc/group", "root:x:0:\nrender:x:65534:\n"),
        ] {
            host.put(path, text)?;
        }
        fs::create_dir(host.path("chroot"))?;
        // The host shows the driver of the package cache, and the files that the tests name by their paths, at their usual places.
        host.show(&cache_dir()?)?;
        host.show(host.folder.path())?;
        Ok(host)
    }

    /// Has the host show a folder of this machine. All users may pass the folders on the way to it.
    fn show(&self, folder: &Path) -> Result<()> {
        let link = self.path("root").join(folder.strip_prefix("/").context("not an absolute path")?);
        if link.exists() {
            return Ok(());
        }
        let above = link.parent().context("a folder lies in a folder")?;
        fs::create_dir_all(above)?;
        for folder in above.ancestors().take_while(|folder| folder.starts_with(self.path("root"))) {
            fs::set_permissions(folder, Permissions::from_mode(0o755))?;
        }
        Ok(symlink(folder, &link)?)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Writes a file of the host that `--root` shows.
    fn put(&self, path: &str, text: &str) -> Result<()> {
        let path = self.path("root").join(path);
        fs::create_dir_all(path.parent().context("a file lies in a folder")?)?;
        Ok(fs::write(path, text)?)
    }

    /// The daemon's command in these surroundings, without options.
    fn command(&self, look: &Look) -> Result<Command> {
        let plain = self.vulkan.command(&daemon_executable()?)?;
        let mut command = Command::new("sh");
        command.args(["-c", look.around.unwrap_or("exec \"$@\""), "sh", "env"]).stdin(Stdio::null());
        command.env("CHROOT", self.path("chroot")).env("FILES", self.path("root"));
        // The daemon's libraries are not those of the programs that start it, and its search path leads to no VMM.
        let unset = plain.get_envs().filter(|(_, value)| value.is_none());
        command.args(unset.map(|(name, _)| ["--unset=".as_ref(), name].join("".as_ref())));
        let set = plain.get_envs().filter_map(|(name, value)| Some([name, "=".as_ref(), value?]));
        command.args(set.map(|words| words.join("".as_ref()))).arg("PATH=/nowhere");
        command.args(look.environment.iter().map(|(name, value)| format!("{name}={value}")));
        command.arg(plain.get_program());
        Ok(command)
    }

    /// Asks the doctor. Its exit status must fit its verdicts, and the daemon must start exactly if the doctor says so.
    fn ask(&self, look: &Look) -> Result<Troubles> {
        let mut command = self.command(look)?;
        command.args(["doctor", "--json", "--root"]).arg(self.path("root"));
        self.put("proc/net/unix", &self.sockets()?)?;
        let names = |option: &str| look.arguments.iter().any(|argument| argument == option);
        if !names("--control-socket") {
            command.arg("--control-socket").arg(self.path("no-control"));
        }
        if !names("--qemu") && !look.without_qemu {
            command.arg("--qemu").arg(&self.qemu);
        }
        let output = command.args(&look.arguments).output().context("cannot run sh")?;
        let (out, errors) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        let report: Value = serde_json::from_str(&out).with_context(|| format!("{out}\n{errors}"))?;
        let checks = report["checks"].as_array().context("no checks")?;
        let text = |check: &Value, key: &str| check[key].as_str().unwrap_or_default().to_owned();
        let all =
            checks.iter().map(|check| ["check", "verdict", "reason", "remedy"].map(|key| text(check, key)));
        let troubles: Troubles = all
            .map(|[check, verdict, reason, remedy]| (check, verdict, reason, remedy))
            .filter(|(_, verdict, ..)| verdict == "warning" || verdict == "fault")
            .collect();
        let faults = troubles.iter().any(|(_, verdict, ..)| verdict == "fault");
        ensure!(
            report["can_work"] == !faults && output.status.code() == Some(i32::from(faults)),
            "{}: {out}",
            output.status
        );
        ensure!(troubles.iter().all(|(.., remedy)| !remedy.is_empty()), "a trouble without a remedy: {out}");
        ensure!(troubles.iter().all(|(.., reason, _)| !reason.contains("remedy")), "two remedies: {out}");
        let refuses = |(check, verdict, ..): &(String, String, String, String)| {
            verdict == "fault" && DECISIVE.contains(&check.as_str())
        };
        let sandbox = look.arguments.iter().filter(|argument| argument.starts_with("--sandbox"));
        let daemon = self.command(look)?.arg("--list-gpus").args(sandbox).output()?;
        let said = String::from_utf8_lossy(&daemon.stderr);
        let must_refuse = troubles.iter().any(refuses);
        ensure!(daemon.status.success() != must_refuse, "the daemon disagrees: {said}\n{troubles:#?}");
        Ok(troubles)
    }

    /// Returns the sockets of this machine that lie in the folder of the test, as the kernel lists them.
    fn sockets(&self) -> Result<String> {
        let (all, folder) = (fs::read_to_string("/proc/net/unix")?, self.text(""));
        let lines = all.lines().enumerate().filter(|(at, line)| *at == 0 || line.contains(&folder));
        Ok(lines.fold(String::new(), |text, (_, line)| text + line + "\n"))
    }

    /// Asks the doctor about a host in working order.
    fn sound(&self, look: &Look) -> Result<Troubles> {
        let found = self.ask(look)?;
        ensure!(!found.iter().any(|(_, verdict, ..)| verdict == "fault"), "the sound host: {found:#?}");
        Ok(found)
    }

    /// Checks that the doctor finds one fault more in `broken` than `before`, with this remedy.
    fn finds(&self, before: &Troubles, broken: &Look, [check, verdict, remedy]: [&str; 3]) -> Result<()> {
        let after = self.ask(broken)?;
        let new: Vec<_> = after.difference(before).collect();
        println!("{new:?}");
        let [(found, how, _, helps)] = new[..] else {
            anyhow::bail!("not {check} alone: {new:#?}");
        };
        ensure!(
            found == check && how == verdict && helps.contains(remedy),
            "not {check} ({verdict}, {remedy}): {new:#?}"
        );
        Ok(())
    }
}

impl Look {
    fn with(arguments: &[&str]) -> Self {
        Self { arguments: arguments.iter().map(|text| (*text).to_owned()).collect(), ..Self::default() }
    }

    fn around(around: &'static str) -> Self {
        Self { around: Some(around), ..Self::default() }
    }

    fn variable(name: &'static str, value: &str) -> Self {
        Self { environment: vec![(name, value.to_owned())], ..Self::default() }
    }
}

/// A program that runs the QEMU of a suite, independently of its caller's libraries.
fn qemu_of(suite: Suite, folder: &Path) -> Result<PathBuf> {
    let root = PackageRoot::with(suite, &["qemu-system-x86"])?;
    let busybox = PackageRoot::with(Suite::Testing, &["busybox-static"])?.path("usr/bin/busybox");
    let command = root.command("qemu-system-x86_64")?;
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<String> = words.map(|word| format!("'{}'", word.to_string_lossy())).collect();
    let modules = root.libraries().join("qemu");
    let script = format!(
        "#!{} sh\nunset LD_LIBRARY_PATH\nexport QEMU_MODULE_DIR='{}'\nexec {} \"$@\"\n",
        busybox.display(),
        modules.display(),
        words.join(" ")
    );
    executable(&folder.join(format!("qemu-{}", suite.name())), &script)
}

fn executable(path: &Path, text: &str) -> Result<PathBuf> {
    tests::program::executable::write(path, text.as_bytes())?;
    Ok(path.to_owned())
}

/// Returns whether this machine lets the tests make namespaces and own files of others; otherwise prints that the caller is skipped.
fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("skipped: only root can make such a host");
        eprintln!("skipped: only root can make such a host");
    }
    root
}

#[test]
fn a_sound_host_without_a_gpu_can_work_and_is_told_that_it_has_none() -> Result<()> {
    let host = Host::new()?;
    let troubles = host.ask(&Look::default())?;
    // The limits of this process and the features of its kernel are this machine's.
    let is_ours = |check: &str| !["landlock", "open-files", "tasks"].contains(&check);
    let found: Vec<_> = troubles.iter().filter(|(check, ..)| is_ours(check)).collect();
    let [(check, verdict, _, remedy)] = found[..] else { anyhow::bail!("{found:#?}") };
    ensure!(
        (check.as_str(), verdict.as_str()) == ("gpus", "warning")
            && remedy.contains("driver of the machine's GPU"),
        "{found:#?}"
    );
    Ok(())
}

/// Replaces a part of a file by another of the same length, at any place.
fn replaced(mut file: Vec<u8>, old: &[u8], new: &[u8]) -> Result<Vec<u8>> {
    let places: Vec<_> = (0..file.len()).filter(|at| file[*at..].starts_with(old)).collect();
    ensure!(!places.is_empty() && old.len() == new.len(), "nothing to replace");
    places.into_iter().for_each(|at| file[at..at + new.len()].copy_from_slice(new));
    Ok(file)
}

#[test]
fn drivers() -> Result<()> {
    let host = Host::new()?;
    let sound = host.sound(&Look::default())?;
    let manifest = |name: &str, text: &str| fs::write(host.path(name), text);
    let library = |library: &str| {
        format!(
            r#"{{"file_format_version": "1.0.1", "ICD": {{"library_path": "{library}", "api_version": "1.3.0"}}}}"#
        )
    };
    manifest("gone.json", &library("libvulkan_gone.so"))?;
    manifest("malformed.json", "{")?;
    pipe(&host.path("pipe.json"))?;
    let HostVulkan::Lavapipe(root) = &host.vulkan else { anyhow::bail!("not the package cache") };
    manifest("other.json", &library(&root.libraries().join("libz.so.1").display().to_string()))?;
    manifest("lacking.json", &library(&host.text("lacking.so")))?;
    let whole = fs::read(root.libraries().join("libz.so.1"))?;
    fs::write(host.path("lacking.so"), replaced(whole, b"\0libc.so.6\0", b"\0libq.so.6\0")?)?;
    let verdicts = || -> Result<()> {
        let finds = |name, value: &str, expected| host.finds(&sound, &Look::variable(name, value), expected);
        for name in ["absent.json", "gone.json", "malformed.json", "pipe.json"] {
            finds("VK_DRIVER_FILES", &host.text(name), ["vulkan-drivers", "fault", "unset VK_DRIVER_FILES"])?;
        }
        finds("VK_DRIVER_FILES", &host.text("other.json"), ["gpus", "fault", "vulkaninfo --summary"])?;
        let lacking = ["vulkan-drivers", "fault", "sudo apt-get install libq6"];
        finds("VK_DRIVER_FILES", &host.text("lacking.json"), lacking)?;
        for (name, value, remedy) in [
            ("VK_LOADER_DRIVERS_DISABLE", "*", "unset VK_LOADER_DRIVERS_DISABLE"),
            ("VK_LOADER_DRIVERS_SELECT", "none*", "unset VK_LOADER_DRIVERS_SELECT"),
        ] {
            finds(name, value, ["vulkan-drivers", "fault", remedy])?;
        }
        Ok(())
    };
    verdicts()?;
    // A driver that is installed beside the named one changes nothing.
    host.put(
        "usr/share/vulkan/icd.d/usual.json",
        &library(&root.libraries().join("libz.so.1").display().to_string()),
    )?;
    verdicts()?;
    let few = tempfile::tempdir()?;
    for name in ["libc.so.6", "libgcc_s.so.1", "libm.so.6"] {
        symlink(root.libraries().join(name), few.path().join(name))?;
    }
    // At an empty file the dynamic loader gives up; otherwise it would search the folders of this machine, which may have the library.
    fs::write(few.path().join("libvulkan.so.1"), "")?;
    let without = Look::variable("LD_LIBRARY_PATH", &few.path().display().to_string());
    host.finds(&sound, &without, ["vulkan-loader", "fault", "apt-get install libvulkan1"])
}

#[test]
fn real_gpus_that_their_drivers_do_not_reach() -> Result<()> {
    let host = Host::new()?;
    let sound = host.sound(&Look::default())?;
    let finds = |broken: [&str; 3]| host.finds(&sound, &Look::default(), broken);
    let gpu = "sys/bus/pci/devices/0000:01:00.0";
    host.put(&format!("{gpu}/vendor"), "0x10de\n")?;
    host.put(&format!("{gpu}/class"), "0x030200\n")?;
    finds(["nvidia", "fault", "sudo modprobe nvidia"])?;
    let module = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23 10:11:16 UTC 2025\nGCC version:\n";
    host.put("proc/driver/nvidia/version", module)?;
    finds(["nvidia", "fault", "nvidia-vulkan-icd"])?;
    host.put("usr/lib/x86_64-linux-gnu/libnvidia-glcore.so.580.119.02", "")?;
    host.put("dev/nvidiactl", "")?;
    finds(["nvidia", "fault", "reboot"])?;
    fs::remove_file(host.path("root/usr/lib/x86_64-linux-gnu/libnvidia-glcore.so.580.119.02"))?;
    host.put("usr/lib/x86_64-linux-gnu/libnvidia-glcore.so.580.95.05", "")?;
    let sane = host.ask(&Look::default())?;
    ensure!(!sane.iter().any(|(check, ..)| check == "nvidia"), "{sane:#?}");
    fs::remove_file(host.path("root/dev/nvidiactl"))?;
    finds(["nvidia", "fault", "nvidia-modprobe"])?;
    host.put("dev/nvidiactl", "")?;
    if !is_root() {
        return Ok(());
    }
    host.put("dev/dri/renderD128", "")?;
    let node = host.path("root/dev/dri/renderD128");
    std::os::unix::fs::chown(&node, Some(7), Some(44))?;
    let mode = |mode| fs::set_permissions(&node, Permissions::from_mode(mode));
    let ordinary = Look::around(ORDINARY);
    mode(0o666)?;
    let open = host.ask(&ordinary)?;
    ensure!(!open.iter().any(|(check, ..)| check == "device-nodes"), "{open:#?}");
    mode(0o660)?;
    host.finds(&open, &ordinary, ["device-nodes", "fault", "usermod -aG render"])?;
    mode(0o600)?;
    host.finds(&open, &ordinary, ["device-nodes", "fault", "sudo chmod a+rw"])
}

#[test]
fn what_confines_and_limits_workers() -> Result<()> {
    let host = Host::new()?;
    let sound = host.sound(&Look::default())?;
    // The test works with any limit of this machine.
    for (around, expected) in [
        ("exec prlimit --nofile=256:256 \"$@\"", "fault"),
        ("exec prlimit --nofile=4096:4096 \"$@\"", "warning"),
    ] {
        let found = host.ask(&Look::around(around))?;
        let new: Vec<_> = found.iter().filter(|one| one.0 == "open-files" || !sound.contains(one)).collect();
        let [(check, verdict, _, remedy)] = new[..] else { anyhow::bail!("not open-files alone: {new:#?}") };
        ensure!(
            check == "open-files" && verdict == expected && remedy.contains("LimitNOFILE=524288"),
            "{new:#?}"
        );
    }
    let finds = |broken: [&str; 3]| host.finds(&sound, &Look::default(), broken);
    host.put("sys/fs/cgroup/a/pids.max", "100\n")?;
    finds(["tasks", "warning", "TasksMax="])?;
    host.put("sys/fs/cgroup/a/pids.max", "max\n")?;
    ensure!(!sound.iter().any(|(check, ..)| check == "control-groups"), "{sound:#?}");
    let mountinfo = fs::read_to_string(host.path("root/proc/self/mountinfo"))?;
    let groups = ["control-groups", "warning", "systemd.unified_cgroup_hierarchy=1"];
    host.put("proc/self/mountinfo", mountinfo.lines().next().unwrap_or_default())?;
    finds(groups)?;
    // A build root with the system's groups, before and after these.
    let second = "91 22 0:26 / /srv/build/sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
    for mounts in [format!("{second}{mountinfo}"), format!("{mountinfo}{second}")] {
        host.put("proc/self/mountinfo", &mounts)?;
        ensure!(host.ask(&Look::default())? == sound, "{mounts}");
    }
    host.put("proc/self/mountinfo", &mountinfo)?;
    host.put("sys/fs/cgroup/cgroup.controllers", "cpuset cpu io\n")?;
    finds(groups)?;
    host.put("sys/fs/cgroup/cgroup.controllers", "memory pids cpu\n")?;
    if !is_root() {
        return Ok(());
    }
    host.finds(&sound, &Look::around(CHROOT), ["sandbox", "fault", "outside of the chroot"])?;
    host.put("proc/self/mountinfo", &mountinfo)?;
    let ordinary = host.sound(&Look::around(ORDINARY))?;
    let confined = |expected| host.finds(&ordinary, &Look::around(NO_NAMESPACES), expected);
    let sysctl = ["sandbox", "fault", "sysctl -w user.max_user_namespaces=10000"];
    confined(sysctl)?;
    let degraded = Look { arguments: vec!["--sandbox=degraded".into()], ..Look::around(NO_NAMESPACES) };
    host.finds(&ordinary, &degraded, ["sandbox", "warning", sysctl[2]])?;
    // Ubuntu's and Debian's switches, which this kernel may not have: it refuses for another reason, and the host's files show the switch.
    host.put("proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1\n")?;
    confined(["sandbox", "fault", "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"])?;
    host.put("proc/sys/kernel/unprivileged_userns_clone", "0\n")?;
    confined(["sandbox", "fault", "sysctl -w kernel.unprivileged_userns_clone=1"])
}

#[test]
fn vmms() -> Result<()> {
    let host = Host::new()?;
    let newer = ["vmm", "fault", "-t trixie-backports qemu-system-x86"];
    let old = qemu_of(Suite::Trixie, host.folder.path())?;
    let sound = host.sound(&Look::default())?;
    let ask = |broken: &Look, expected| host.finds(&sound, broken, expected);
    let named = |qemu: &Path| Look::with(&["--qemu", &qemu.display().to_string()]);
    ask(&named(&old), newer)?;
    let told = host.ask(&named(&old))?;
    ensure!(told.iter().any(|(.., reason, _)| reason.contains("whose devices carry no window")), "{told:#?}");
    // No QEMU of a version with windows lacks the device.
    let busybox = PackageRoot::with(Suite::Testing, &["busybox-static"])?.path("usr/bin/busybox");
    let text = format!(
        "#!{} sh\ncase $1 in --version) echo 'QEMU emulator version 11.1.0' ;; *) exit 1 ;; esac\n",
        busybox.display()
    );
    ask(&named(&executable(&host.path("qemu-without"), &text)?), newer)?;
    ask(&Look { without_qemu: true, ..Look::default() }, ["vmm", "warning", newer[2]])?;
    host.put("usr/sbin/libvirtd", "")?;
    host.put("sys/module/apparmor/parameters/enabled", "Y\n")?;
    ask(&Look::default(), ["access-control", "warning", "recipe libvirt"])?;
    host.put("etc/apparmor.d/local/abstractions/libvirt-qemu", "/run/vhost-user-vulkan/*.sock rw,\n")?;
    let sane = host.ask(&Look::default())?;
    ensure!(!sane.iter().any(|(check, ..)| check == "access-control"), "{sane:#?}");
    host.put("sys/fs/selinux/enforce", "1\n")?;
    ask(&Look::default(), ["access-control", "warning", "ausearch -m avc"])
}

#[test]
fn sockets() -> Result<()> {
    let host = Host::new()?;
    let path = host.text("vm/gpu.sock");
    let look = |user: &str| Look::with(&["--socket-path", &path, "--vmm-user", user]);
    let none = host.sound(&Look::default())?;
    let finds = |user: &str, remedy: &str| host.finds(&none, &look(user), ["socket", "fault", remedy]);
    fs::create_dir(host.path("vm"))?;
    let mode = |name: &str, mode| fs::set_permissions(host.path(name), Permissions::from_mode(mode));
    mode("vm", 0o755)?;
    finds("nobody", "start the daemon with --socket-path")?;
    fs::write(&path, "")?;
    finds("nobody", "remove it, or give daemon and VMM another")?;
    fs::remove_file(&path)?;
    drop(UnixListener::bind(&path)?);
    finds("nobody", "it takes the file's place")?;
    fs::remove_file(&path)?;
    let _listener = UnixListener::bind(&path)?;
    mode("vm/gpu.sock", 0o666)?;
    let sound = host.ask(&look("nobody"))?;
    ensure!(!sound.iter().any(|(check, ..)| check == "socket"), "{sound:#?}");
    finds("somebody", "the user that the VMM runs as")?;
    mode("vm/gpu.sock", 0o660)?;
    finds("nobody", "--socket-group GROUP")?;
    mode("vm/gpu.sock", 0o666)?;
    mode("vm", 0o700)?;
    finds("nobody", "sudo chmod o+x")
}

#[test]
fn configurations() -> Result<()> {
    let host = Host::new()?;
    let (file, socket) = (host.text("vms.toml"), host.text("a.sock"));
    let look = Look::with(&["--config", &file]);
    let none = host.sound(&Look::default())?;
    let finds = |text: &str, expected: [&str; 3]| -> Result<()> {
        fs::write(&file, text.replace("SOCKET", &socket).replace("FOLDER", &host.text("")))?;
        host.finds(&none, &look, expected)
    };
    let vm = "[vm.a]\nsocket-path = \"SOCKET\"\n";
    fs::write(&file, vm.replace("SOCKET", &socket))?;
    let sound = host.ask(&look)?;
    ensure!(!sound.iter().any(|(_, verdict, ..)| verdict == "fault"), "{sound:#?}");
    let wrong = ["configuration", "fault", "docs/sharing.md"];
    host.finds(&none, &Look::with(&["--config", &host.text("absent.toml")]), wrong)?;
    finds(&format!("{vm}wieght = 3\n"), wrong)?;
    finds(&format!("{vm}gpu = \"GeForce 9\"\n"), ["configuration", "fault", "--list-gpus"])?;
    finds(&format!("{vm}state-dir = \"FOLDERstate\"\n"), ["folders", "fault", "mkdir -p"])?;
    fs::write(host.path("state"), "")?;
    finds(&format!("{vm}state-dir = \"FOLDERstate\"\n"), ["folders", "fault", "remove it and: mkdir"])?;
    finds("[vm.a]\nsocket-path = \"FOLDERabsent/a.sock\"\n", ["folders", "fault", "mkdir -p"])?;
    if is_root() {
        let others = host.path("others");
        fs::create_dir(&others)?;
        fs::write(&file, vm.replace("SOCKET", &others.join("a.sock").display().to_string()))?;
        std::os::unix::fs::chown(&others, Some(7), None)?;
        fs::set_permissions(&others, Permissions::from_mode(0o755))?;
        let ordinary = Look { around: Some(ORDINARY), ..look.clone() };
        host.finds(&host.sound(&Look::around(ORDINARY))?, &ordinary, ["folders", "fault", "chown"])?;
    }
    drop(UnixListener::bind(host.path("stale"))?);
    let stale = Look::with(&["--control-socket", &host.text("stale")]);
    host.finds(&none, &stale, ["broker", "warning", "systemctl start vhost-user-vulkan"])?;
    let running = Broker::start_on(&host.vulkan, "", "", &[("a", ""), ("b", "")])?;
    let control = running.path("control").display().to_string();
    let found = host.ask(&Look::with(&["--control-socket", &control]))?;
    ensure!(!found.iter().any(|(check, ..)| check == "broker"), "{found:#?}");
    drop(running);
    let listener = UnixListener::bind(&socket)?;
    finds(vm, ["clashes", "fault", "systemctl stop vhost-user-vulkan@NAME"])?;
    drop(listener);
    fs::remove_file(&socket)?;
    fs::write(&socket, "")?;
    finds(vm, ["clashes", "fault", "remove it"])
}

#[test]
fn a_wrong_option_is_neither_a_fault_nor_none() -> Result<()> {
    for arguments in [
        &["doctor", "--vm", "--config", "x"][..],
        &["doctor", "--wrong"],
        &["doctor", "--json", "--report", "-"],
    ] {
        let output = HostVulkan::lavapipe()?.command(&daemon_executable()?)?.args(arguments).output()?;
        ensure!(output.status.code() == Some(2) && output.stdout.is_empty(), "{output:?}");
    }
    Ok(())
}

#[test]
fn a_report_is_a_new_file_that_does_not_tell_whose_host_it_is() -> Result<()> {
    let host = Host::new()?;
    host.put("etc/hostname", "tower\n")?;
    host.put("etc/passwd", "root:x:0:0::/root:/bin/sh\nalice:x:1000:1000::/home/alice:/bin/sh\n")?;
    host.put("etc/vhost-user-vulkan/db.env", "OPTIONS=--state-dir=/home/alice/state\n")?;
    // The report asks the journal for the services; the line is from a guest that wants to control a terminal.
    host.put("nowhere/empty", "")?;
    let busybox = PackageRoot::with(Suite::Testing, &["busybox-static"])?.path("usr/bin/busybox");
    let journal =
        format!("#!{} sh\nprintf 'tower: \\033[31m of 10.0.0.7\\n'; echo \"$@\"\n", busybox.display());
    executable(&host.path("root/nowhere/journalctl"), &journal)?;
    let running = Broker::start_on(&host.vulkan, "", "", &[("web", "")])?;
    let report = |file: &Path| -> Result<Output> {
        let mut command = host.command(&Look::default())?;
        command.args(["doctor", "--root"]).arg(host.path("root")).arg("--qemu").arg(&host.qemu);
        command.arg("--control-socket").arg(running.path("control"));
        Ok(command.arg("--report").arg(file).output()?)
    };
    let file = host.path("report.txt");
    let output = report(&file)?;
    ensure!(output.status.success(), "{output:?}");
    ensure!(String::from_utf8_lossy(&output.stdout).contains("read it before you send it"), "{output:?}");
    ensure!(fs::metadata(&file)?.permissions().mode() & 0o777 == 0o600, "other users may read it");
    let text = fs::read_to_string(&file)?;
    for part in [
        "\n== versions\n\nvhost-user-vulkan ",
        "\n== findings\n\n",
        "this host can serve VMs, with ",
        "db.env\n\nOPTIONS=--state-dir=/home/<user 1>/state\n",
        "web",
        "waiting",
        "<host 1>: ?[31m of <address 1>\n",
        "--unit=vhost-user-vulkan@*",
    ] {
        ensure!(text.contains(part), "{part:?} is not in:\n{text}");
    }
    ensure!(!["alice", "tower", "10.0.0.7", "\u{1b}"].iter().any(|part| text.contains(part)), "{text}");
    // The doctor writes neither to an existing file nor through a link.
    symlink(host.path("nowhere"), host.path("link"))?;
    for there in [&file, &host.path("link")] {
        let refused = report(there)?;
        let said = String::from_utf8_lossy(&refused.stderr);
        ensure!(refused.status.code() == Some(1) && said.contains("name a new file"), "{refused:?}");
    }
    ensure!(fs::read_to_string(&file)? == text && !host.path("nowhere").exists(), "it was written to");
    let printed = report(Path::new("-"))?;
    ensure!(printed.status.success() && printed.stdout.starts_with(b"For a bug report"), "{printed:?}");
    Ok(())
}

/// Processes with this text in their environment.
fn with_in_environment(text: &str) -> Result<Vec<u32>> {
    let numbers = fs::read_dir("/proc")?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let has = |pid: &u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.windows(text.len()).any(|part| part == text.as_bytes())
    };
    Ok(numbers.filter(has).collect())
}

#[test]
fn a_manifest_that_is_a_pipe_holds_up_neither_the_doctor_nor_its_launcher() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let manifest = folder.path().join("driver.json");
    pipe(&manifest)?;
    let doctor = |drivers: &Path, patience| -> Result<Child> {
        let mut command = HostVulkan::lavapipe()?.command(&daemon_executable()?)?;
        command.env("VK_DRIVER_FILES", drivers).args(["doctor", "--control-socket", "/nowhere"]);
        command.args(["--driver-timeout", patience]);
        Ok(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?)
    };
    let marker = folder.path().display().to_string();
    let nothing_is_left =
        || eventually(PATIENCE, || with_in_environment(&marker).is_ok_and(|left| left.is_empty()));
    let mut first = doctor(&manifest, "1s")?;
    let status = end_of(&mut first, PATIENCE)?;
    if status.is_none() {
        first.kill()?;
        first.wait()?;
    }
    ensure!(nothing_is_left(), "{:?} are left", with_in_environment(&marker)?);
    assert_eq!(status.context("the doctor waits for the pipe")?.code(), Some(1));
    let said = io::read_to_string(first.stdout.take().context("no output")?)?;
    // It opens no file that it would have to wait for.
    ensure!(said.contains("fault   vulkan-drivers"), "{said}");
    // The loader opens all manifests of a folder and waits; then the doctor is killed.
    let mut second = doctor(folder.path(), "60min")?;
    let asks = eventually(PATIENCE, || {
        launcher(second.id()).and_then(children).is_ok_and(|probe| !probe.is_empty())
    });
    second.kill()?;
    second.wait()?;
    ensure!(asks, "it does not ask the driver");
    ensure!(nothing_is_left(), "{:?} are left", with_in_environment(&marker)?);
    Ok(())
}
