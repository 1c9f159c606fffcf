//! The mishaps of a host in a year, each made to happen: GPUs that come late, drivers that are replaced, files that are removed, disks that are full,
//! logs without a reader, clocks. `docs/operations.md` has a row for each.

use anyhow::{Context, Result, ensure};
use rustix::fs::{CWD, Mode, OFlags, mkfifoat};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use tempfile::TempDir;
use tests::broker::{Broker, vhost_user_vulkan};
use tests::daemon::{Daemon, eventually, is_alive};
use tests::daemon_process::{children, daemon_executable, patience};
use tests::frontend::{Options, Session};
use tests::guest::device::{Device, Source};
use tests::guest::{Gpu, PATIENCE};
use tests::packages::HostVulkan;
use tests::program::end_of;

const SIZE: u64 = 1 << 16;

/// A folder with a driver of its own, which tests can remove and replace.
struct Driver {
    folder: TempDir,
    vulkan: HostVulkan,
}

impl Driver {
    /// A copy of the software driver.
    fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        // Workers run as another user.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
        let driver = Self { folder, vulkan: HostVulkan::lavapipe()? };
        driver.install()?;
        Ok(driver)
    }

    fn manifest(&self) -> PathBuf {
        self.folder.path().join("lvp_icd.json")
    }

    fn library(&self) -> PathBuf {
        self.folder.path().join("libvulkan_lvp.so")
    }

    /// A command that runs the daemon on this driver.
    fn command(&self) -> Result<Command> {
        let mut command = self.vulkan.command(&daemon_executable()?)?;
        command.env("VK_DRIVER_FILES", self.manifest());
        Ok(command)
    }

    /// Puts library and manifest in their places, as a package manager does.
    fn install(&self) -> Result<()> {
        let command = self.vulkan.command(&daemon_executable()?)?;
        let value =
            |name: &str| command.get_envs().find(|(key, _)| *key == name).and_then(|(_, value)| value);
        let manifest = fs::read_to_string(value("VK_DRIVER_FILES").context("a manifest")?)?;
        let libraries = std::env::split_paths(value("LD_LIBRARY_PATH").context("a path of libraries")?);
        let library = libraries.map(|folder| folder.join("libvulkan_lvp.so")).find(|path| path.exists());
        let library = library.context("the driver's library")?;
        let mut manifest: serde_json::Value = serde_json::from_str(&manifest)?;
        manifest["ICD"]["library_path"] = self.library().display().to_string().into();
        self.put(&self.library(), &fs::read(library)?)?;
        self.put(&self.manifest(), manifest.to_string().as_bytes())
    }

    fn put(&self, path: &Path, content: &[u8]) -> Result<()> {
        let fresh = self.folder.path().join("fresh");
        fs::write(&fresh, content)?;
        fs::set_permissions(&fresh, fs::Permissions::from_mode(0o755))?;
        Ok(fs::rename(fresh, path)?)
    }
}

/// A daemon of one VM with a log of its own, with or without a service manager. When it is dropped it is killed, and its log is printed.
struct OneVm {
    child: Child,
    folder: TempDir,
    manager: Option<UnixDatagram>,
}

impl OneVm {
    fn start(command: Command, is_managed: bool) -> Result<Self> {
        Self::start_with(command, is_managed, &[])
    }

    fn start_with(mut command: Command, is_managed: bool, arguments: &[&str]) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let manager = is_managed.then(|| UnixDatagram::bind(folder.path().join("notify"))).transpose()?;
        if is_managed {
            command.env("NOTIFY_SOCKET", folder.path().join("notify"));
        }
        let log = File::options().append(true).create(true).open(folder.path().join("log"))?;
        command.arg("--socket-path").arg(folder.path().join("socket"));
        command.args(arguments).args(patience(arguments));
        let child = command.stdout(log.try_clone()?).stderr(log).stdin(Stdio::null()).spawn()?;
        Ok(Self { child, folder, manager })
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    fn guest(&self) -> Result<Arc<Gpu>> {
        ensure!(eventually(PATIENCE, || self.socket().exists()), "it does not listen\n{}", self.log());
        Ok(Arc::new(Gpu::new(Session::connect(&self.socket(), Options::default())?)))
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    fn says(&self, text: &str) -> Result<()> {
        ensure!(eventually(PATIENCE, || self.log().contains(text)), "\"{text}\" is not said\n{}", self.log());
        Ok(())
    }

    fn ends(&mut self) -> Result<ExitStatus> {
        end_of(&mut self.child, PATIENCE)?.with_context(|| format!("it does not end\n{}", self.log()))
    }
}

impl Drop for OneVm {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        println!("the daemon's log:\n{}", self.log());
    }
}

/// Has a new context compute.
fn computes(gpu: &Arc<Gpu>) -> Result<Device> {
    let mut device = Device::create(gpu, "program")?;
    goes_on(&mut device)?;
    Ok(device)
}

/// Has a context compute.
fn goes_on(device: &mut Device) -> Result<()> {
    let memory = device.allocate(SIZE, Source::New)?.map_err(|result| anyhow::anyhow!("{result:?}"))?;
    device.fill(memory, SIZE, 7)
}

fn guest(broker: &Broker, vm: &str) -> Result<Arc<Gpu>> {
    ensure!(eventually(PATIENCE, || broker.listens(vm)), "{vm} does not listen\n{}", broker.log());
    Ok(Arc::new(Gpu::new(Session::connect(&broker.path(vm), Options::default())?)))
}

fn says(broker: &Broker, text: &str) -> Result<()> {
    ensure!(eventually(PATIENCE, || broker.log().contains(text)), "\"{text}\" is not said\n{}", broker.log());
    Ok(())
}

#[test]
fn a_vm_whose_gpu_appears_later_is_served_then() -> Result<()> {
    let driver = Driver::new()?;
    fs::remove_file(driver.manifest())?;
    let broker = Broker::start_without_waiting(driver.command()?, "", &[("a", "")])?;
    says(&broker, "vm=a no Vulkan device: ")?;
    says(&broker, "remedy: install its driver, or wait until its device nodes exist")?;
    says(&broker, "vm=a the device process is started again after 1 s")?;
    let pid = broker.pid();
    driver.install()?;
    computes(&guest(&broker, "a")?)?;
    ensure!(is_alive(pid) && broker.vm("a")?["restarts"].as_u64() > Some(0));
    Ok(())
}

#[test]
fn a_daemon_of_one_vm_without_gpu_fails_so_that_it_is_started_again() -> Result<()> {
    let driver = Driver::new()?;
    fs::remove_file(driver.manifest())?;
    let mut daemon = OneVm::start(driver.command()?, true)?;
    // `Restart=on-failure`.
    assert_eq!(daemon.ends()?.code(), Some(1));
    daemon.says("remedy: install its driver")?;
    ensure!(!daemon.socket().exists());
    Ok(())
}

/// Vulkan's loader opens the pipe among the manifests, and waits for a writer.
#[test]
fn a_driver_that_does_not_start_is_waited_for_and_then_given_up() -> Result<()> {
    let driver = Driver::new()?;
    fs::remove_file(driver.manifest())?;
    mkfifoat(CWD, driver.manifest(), Mode::from_bits_truncate(0o666))?;
    let mut command = driver.command()?;
    command.env("VK_DRIVER_FILES", driver.folder.path());
    let mut daemon = OneVm::start_with(command, true, &["--driver-timeout", "11s"])?;
    daemon.says("waiting for the GPU's driver for 1")?;
    daemon.says(" s so far; the limit is 11 s (driver-timeout)")?;
    daemon.says("limit driver-timeout (11 s) reached: the GPU's driver has not listed its GPUs; remedy: ")?;
    assert_eq!(daemon.ends()?.code(), Some(1));
    let manager = daemon.manager.as_ref().context("no service manager")?;
    let mut message = [0; 64];
    let length = manager.recv(&mut message)?;
    assert_eq!(&message[..length], b"EXTEND_TIMEOUT_USEC=30000000\n");
    Ok(())
}

#[test]
fn contexts_of_a_driver_that_is_replaced_go_on_and_new_ones_wait_for_another_daemon() -> Result<()> {
    let driver = Driver::new()?;
    let mut daemon = OneVm::start(driver.command()?, false)?;
    let gpu = daemon.guest()?;
    let mut old = computes(&gpu)?;
    driver.install()?;
    daemon.says("the GPU's driver was replaced (")?;
    daemon.says("restart the daemon when the VM is off")?;
    goes_on(&mut old)?;
    ensure!(gpu.create_context("new").is_err(), "a new context is admitted\n{}", daemon.log());
    daemon.says("context 2 is refused, until the device process is started anew")?;
    goes_on(&mut old)?;
    drop((old, gpu));
    // The daemon does not end, since no broker would start it again.
    ensure!(daemon.guest()?.create_context("new").is_err() && daemon.child.try_wait()?.is_none());
    Ok(())
}

#[test]
fn a_driver_that_is_replaced_is_used_as_soon_as_no_frontend_is_connected() -> Result<()> {
    let driver = Driver::new()?;
    let broker = Broker::start_command(driver.command()?, "", &[("a", ""), ("b", "")])?;
    let devices = [broker.device("a")?, broker.device("b")?];
    let gpu = guest(&broker, "a")?;
    let mut old = computes(&gpu)?;
    driver.install()?;
    // The VM without a frontend gets another device process at once.
    ensure!(eventually(PATIENCE, || broker.device("b").is_ok_and(|device| device != devices[1])));
    says(&broker, "the device process is started anew as soon as no frontend is connected")?;
    ensure!(gpu.create_context("new").is_err());
    goes_on(&mut old)?;
    ensure!(broker.device("a")? == devices[0]);
    drop((old, gpu));
    ensure!(eventually(PATIENCE, || !is_alive(devices[0])), "it goes on\n{}", broker.log());
    // A device process that has seen only one of the two new files is started again once more.
    let is_served = |vm| guest(&broker, vm).and_then(|gpu| computes(&gpu)).is_ok();
    for vm in ["a", "b"] {
        ensure!(eventually(PATIENCE, || is_served(vm)), "{vm} is not served\n{}", broker.log());
    }
    // The daemon's exit status reports this to a service manager.
    let mut daemon = OneVm::start(driver.command()?, true)?;
    let gpu = daemon.guest()?;
    driver.install()?;
    daemon.says("the GPU's driver was replaced (")?;
    ensure!(daemon.child.try_wait()?.is_none());
    drop(gpu);
    assert_eq!(daemon.ends()?.code(), Some(75));
    Ok(())
}

#[test]
fn a_socket_file_that_is_removed_is_made_again_when_no_frontend_is_connected() -> Result<()> {
    let broker = Broker::start("", &[("a", "")])?;
    let device = broker.device("a")?;
    let gpu = guest(&broker, "a")?;
    fs::remove_file(broker.path("a"))?;
    says(&broker, "was removed: a frontend that is connected is still served, but no other can connect")?;
    computes(&gpu)?;
    ensure!(broker.device("a")? == device);
    drop(gpu);
    ensure!(eventually(PATIENCE, || broker.path("a").exists()), "it is not made\n{}", broker.log());
    computes(&guest(&broker, "a")?)?;
    Ok(())
}

#[test]
fn a_control_socket_that_is_removed_is_made_again_at_sighup() -> Result<()> {
    let broker = Broker::start("", &[("a", "")])?;
    fs::remove_file(broker.path("control"))?;
    let output = broker.operate(&["status"])?;
    let said = String::from_utf8(output.stderr)?;
    ensure!(said.contains("SIGHUP has the broker of several VMs make it again"), "{said}");
    kill_process(broker.pid(), Signal::HUP)?;
    ensure!(eventually(PATIENCE, || broker.status().is_ok()), "it is not made\n{}", broker.log());
    let mode = fs::metadata(broker.path("control"))?.permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    says(&broker, "control: the socket file was removed, and the broker has made it again")
}

/// A pipe without room.
fn full_pipe() -> Result<(PipeReader, PipeWriter)> {
    let (reader, mut writer) = std::io::pipe()?;
    let flags = rustix::fs::fcntl_getfl(&writer)?;
    rustix::fs::fcntl_setfl(&writer, flags | OFlags::NONBLOCK)?;
    while writer.write(&[b'-'; 4096]).is_ok() {}
    rustix::fs::fcntl_setfl(&writer, flags)?;
    Ok((reader, writer))
}

#[test]
fn a_log_that_nobody_reads_holds_up_nobody() -> Result<()> {
    let (mut reader, writer) = full_pipe()?;
    let folder = tempfile::tempdir()?;
    let config = folder.path().join("config");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let tables =
        format!("control-socket = \"{}\"\n[vm.a]\nsocket-path = \"{}\"\n", path("control"), path("a"));
    fs::write(&config, tables)?;
    let mut command = vhost_user_vulkan()?;
    command.arg("--config").arg(&config).stdout(Stdio::null()).stderr(writer);
    let mut broker = command.spawn()?;
    // If this process kept the command, the pipe would stay open.
    drop(command);
    let listens = || UnixDatagram::unbound().is_ok() && folder.path().join("a").exists();
    ensure!(eventually(PATIENCE, listens), "the broker stands still at its log");
    // Sessions and resets are logged.
    for _ in 0..3 {
        let gpu = Arc::new(Gpu::new(Session::connect(&folder.path().join("a"), Options::default())?));
        computes(&gpu)?;
    }
    // When there is room again, the next line says how many are missing.
    let mut said = vec![0; 1 << 16];
    reader.read_exact(&mut said)?;
    kill_process(Pid::from_child(&broker), Signal::TERM)?;
    let mut rest = String::new();
    reader.read_to_string(&mut rest)?;
    ensure!(broker.wait()?.success(), "{rest}");
    ensure!(rest.contains(" lines of this log were dropped, since its reader stood still"), "{rest}");
    ensure!(rest.contains("ends, as a signal asks"), "{rest}");
    Ok(())
}

#[test]
fn a_daemon_that_cannot_start_ends_even_if_nobody_reads_why() -> Result<()> {
    let (_reader, writer) = full_pipe()?;
    let mut command = vhost_user_vulkan()?;
    let mut daemon = command.arg("--socket-path").arg("/proc/none").stderr(writer).spawn()?;
    let status = end_of(&mut daemon, PATIENCE);
    let _ = daemon.kill();
    let status = status?;
    ensure!(status.and_then(|status| status.code()) == Some(1), "{status:?}");
    Ok(())
}

#[test]
fn a_full_disk_costs_pipeline_caches_and_nothing_else() -> Result<()> {
    let folder = tempfile::tempdir()?;
    if let Err(error) = mount("full", folder.path(), "tmpfs", MountFlags::empty(), Some(c"size=16k,mode=700"))
    {
        println!("skipped: no full disk, since none can be mounted here: {error}");
        return Ok(());
    }
    let state = folder.path().join("state");
    fs::create_dir(&state)?;
    let full = folder.path().join("full");
    let flags = OFlags::CREATE | OFlags::WRONLY;
    let file = rustix::fs::open(&full, flags, Mode::RUSR | Mode::WUSR)?;
    while rustix::io::write(&file, &[1; 4096]).is_ok() {}
    drop(file);
    let result = (|| {
        let state = state.display().to_string();
        let daemon = Daemon::start_with(&["--state-dir", &state])?;
        computes(&Arc::new(daemon.guest()?))?;
        let said = daemon.log();
        ensure!(
            said.contains("guests lose their pipeline caches when this process ends; make room there"),
            "{said}"
        );
        ensure!(fs::read_dir(&state)?.count() == 0, "something is left in {state}");
        drop(daemon);
        fs::remove_file(&full)?;
        let daemon = Daemon::start_with(&["--state-dir", &state])?;
        ensure!(!daemon.log().contains("pipeline caches") && fs::read_dir(&state)?.count() == 1);
        Ok(())
    })();
    unmount(folder.path(), UnmountFlags::DETACH)?;
    result
}

/// The clocks of a process's timers, as the kernel numbers them.
fn clocks(pid: u32) -> Result<Vec<String>> {
    let mut clocks = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fdinfo"))? {
        let said = fs::read_to_string(entry?.path()).unwrap_or_default();
        clocks.extend(
            said.lines().filter_map(|line| line.strip_prefix("clockid:")).map(|id| id.trim().to_owned()),
        );
    }
    Ok(clocks)
}

#[test]
fn no_timer_follows_the_clock_on_the_wall() -> Result<()> {
    let broker = Broker::start("", &[("a", "")])?;
    let device = computes(&guest(&broker, "a")?)?;
    let mut todo = vec![broker.pid().as_raw_nonzero().get().unsigned_abs()];
    let mut found = 0;
    while let Some(pid) = todo.pop() {
        // A process that has just ended has no children.
        todo.extend(children(pid).unwrap_or_default());
        for clock in clocks(pid).unwrap_or_default() {
            // CLOCK_MONOTONIC: it neither jumps nor counts a suspension.
            assert_eq!(clock, "1", "a timer of process {pid}");
            found += 1;
        }
    }
    ensure!(found > 0, "there is no timer to look at");
    drop(device);
    Ok(())
}
