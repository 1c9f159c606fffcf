//! The daemon as a service of systemd, whose part the tests play: they hear when the daemon is ready, its status, and that its loops turn; they pass
//! sockets and folders, and receive the log. `docs/systemd.md` describes all of that.

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tests::attacks::descriptors::printing_end;
use tests::attacks::frontends::begin_map;
use tests::broker::vhost_user_vulkan;
use tests::daemon::{self, eventually, gpu_selection, halt, is_alive};
use tests::daemon_process::{build_example, launcher, prepared, workers};
use tests::frontend::{Options, Session};
use tests::guest::{Gpu, PATIENCE};
use tests::packages::HostVulkan;
use tests::program::end_of;

/// A service manager and the service that it has started. When they are dropped, the service's log is printed, which shows if the test fails.
struct Service {
    child: Child,
    folder: TempDir,
    socket: UnixDatagram,
}

/// A folder with the socket at which a service manager hears a service.
fn manager() -> Result<(TempDir, UnixDatagram)> {
    let folder = tempfile::tempdir()?;
    let socket = UnixDatagram::bind(folder.path().join("notify"))?;
    Ok((folder, socket))
}

/// Waits for a message for no longer than `limit`, and returns its length. The wait returns early if the process is stopped and continued, as on a
/// machine that is saved (signal(7)); then the function waits again.
fn receive(socket: &UnixDatagram, bytes: &mut [u8], limit: Duration) -> Result<Option<usize>> {
    let begin = Instant::now();
    loop {
        let left = limit.saturating_sub(begin.elapsed()).max(Duration::from_millis(1));
        socket.set_read_timeout(Some(left))?;
        match socket.recv(bytes) {
            Ok(count) => return Ok(Some(count)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
}

impl Service {
    /// Starts the daemon of one VM, which listens at `socket` in the folder, with this patience of the watchdog.
    fn of_one_vm(watchdog: Duration, arguments: &[&str]) -> Result<Self> {
        let (folder, socket) = manager()?;
        let mut command = daemon::command()?;
        command.arg("--socket-path").arg(folder.path().join("socket")).args(arguments);
        command.env("WATCHDOG_USEC", watchdog.as_micros().to_string());
        Self::start(command, folder, socket)
    }

    fn start(mut command: Command, folder: TempDir, socket: UnixDatagram) -> Result<Self> {
        let log = File::create(folder.path().join("log"))?;
        command.env("NOTIFY_SOCKET", folder.path().join("notify")).stdout(log.try_clone()?).stderr(log);
        let child = command.spawn().context("cannot start the daemon")?;
        Ok(Self { child, folder, socket })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// The lines of the next message that arrives within `limit`.
    fn hears_within(&self, limit: Duration) -> Result<Option<Vec<String>>> {
        let mut bytes = [0; 4096];
        let Some(count) = receive(&self.socket, &mut bytes, limit)? else { return Ok(None) };
        Ok(Some(String::from_utf8(bytes[..count].to_vec())?.lines().map(str::to_owned).collect()))
    }

    /// Waits until this line has arrived, and returns all lines up to the end of its message.
    fn hears(&self, line: &str) -> Result<Vec<String>> {
        let (begin, mut heard) = (Instant::now(), Vec::new());
        while let Some(lines) = self.hears_within(PATIENCE.saturating_sub(begin.elapsed()))? {
            heard.extend(lines);
            if heard.iter().any(|other| other == line) {
                return Ok(heard);
            }
        }
        bail!("\"{line}\" does not come, but {heard:?}\n{}", self.log())
    }

    /// The lines that arrive within this time.
    fn hears_for(&self, time: Duration) -> Result<Vec<String>> {
        let (begin, mut heard) = (Instant::now(), Vec::new());
        while let Some(left) = time.checked_sub(begin.elapsed()).filter(|left| !left.is_zero()) {
            heard.extend(self.hears_within(left)?.into_iter().flatten());
        }
        Ok(heard)
    }

    fn guest(&self) -> Result<Gpu> {
        Ok(Gpu::new(Session::connect(&self.path("socket"), Options::default())?))
    }

    /// Asks the service to end, as a manager does, and waits.
    fn stop(&mut self) -> Result<ExitStatus> {
        kill_process(self.pid(), Signal::TERM)?;
        self.hears("STOPPING=1")?;
        self.ends()
    }

    fn ends(&mut self) -> Result<ExitStatus> {
        end_of(&mut self.child, PATIENCE)?.with_context(|| format!("it does not end\n{}", self.log()))
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        println!("the log:\n{}", self.log());
    }
}

/// The variables that are only for the process that the manager has started.
const VARIABLES: &[&str] =
    &["NOTIFY_SOCKET", "WATCHDOG_USEC", "LISTEN_FDS", "LISTEN_PID", "RUNTIME_DIRECTORY", "STATE_DIRECTORY"];

/// Checks that a process has none of these variables, nor a descriptor of this socket. A process that is just being started has those of its parent
/// until it executes its program.
fn ensure_not_inherited(process: u32, variables: &[&str], socket: Option<&Path>) -> Result<()> {
    let mut found = Ok(());
    eventually(PATIENCE, || {
        found = inherits_none(process, variables, socket);
        found.is_ok() || Pid::from_raw(process as i32).is_none_or(|process| !is_alive(process))
    });
    // A process that has ended meanwhile has no files to be read.
    match Pid::from_raw(process as i32).is_some_and(is_alive) {
        true => found,
        false => Ok(()),
    }
}

fn inherits_none(process: u32, variables: &[&str], socket: Option<&Path>) -> Result<()> {
    let environment = fs::read(format!("/proc/{process}/environ"))?;
    for variable in environment.split(|byte| *byte == 0).map(String::from_utf8_lossy) {
        let name = variable.split('=').next().unwrap_or_default();
        ensure!(!variables.contains(&name), "{process} has inherited {variable}");
    }
    let Some(socket) = socket else { return Ok(()) };
    // Lines of this file end with the inode's number and the path.
    let sockets = fs::read_to_string("/proc/net/unix")?;
    let path = socket.to_string_lossy();
    for line in sockets.lines().filter(|line| line.ends_with(path.as_ref())) {
        let inode = line.split_whitespace().nth(6).context("an inode")?;
        for fd in fs::read_dir(format!("/proc/{process}/fd"))? {
            let held = fs::read_link(fd?.path()).unwrap_or_default();
            ensure!(held != Path::new(&format!("socket:[{inode}]")), "{process} has inherited {path}");
        }
    }
    Ok(())
}

/// A patience so long that the daemon sends only its first watchdog message during a test.
const LONG: Duration = Duration::from_secs(3600);

#[test]
fn a_vm_is_ready_when_it_listens_and_the_status_tells_what_goes_on() -> Result<()> {
    let mut service = Service::of_one_vm(LONG, &[])?;
    let heard = service.hears("READY=1")?;
    let status = format!("STATUS=waiting for a frontend on {}", service.path("socket").display());
    ensure!(heard == ["READY=1", &status], "{heard:?}");
    // A guest connects at once, as units do that are ordered after the service.
    let guest = service.guest()?;
    service.hears("WATCHDOG=1")?;
    let contexts = (0..3).map(|_| guest.create_context("live")).collect::<Result<Vec<_>, _>>()?;
    service.hears("STATUS=connected, 3 contexts")?;
    for process in workers(service.child.id())?.into_iter().chain([launcher(service.child.id())?]) {
        ensure_not_inherited(process, VARIABLES, None)?;
    }
    for context in &contexts[1..] {
        guest.destroy_context(*context)?;
    }
    service.hears("STATUS=connected, 1 context")?;
    drop(guest);
    service.hears(&status)?;
    ensure!(service.stop()?.success());
    ensure!(service.hears_for(Duration::from_millis(10))?.is_empty(), "something is said after the end");
    Ok(())
}

#[test]
fn workers_that_take_long_to_end_are_waited_for() -> Result<()> {
    let mut service = Service::of_one_vm(LONG, &[])?;
    service.hears("READY=1")?;
    let guest = service.guest()?;
    guest.create_context("live")?;
    let launcher = Pid::from_raw(launcher(service.child.id())? as i32).context("a process")?;
    drop(guest);
    halt(launcher)?;
    kill_process(service.pid(), Signal::TERM)?;
    service.hears("STOPPING=1")?;
    // The pause is longer than the daemon would wait for a frontend.
    std::thread::sleep(Duration::from_secs(6));
    kill_process(launcher, Signal::CONT)?;
    ensure!(service.ends()?.success(), "{}", service.log());
    Ok(())
}

#[test]
fn a_guest_cannot_flood_the_manager() -> Result<()> {
    let service = Service::of_one_vm(LONG, &[])?;
    service.hears("READY=1")?;
    let guest = service.guest()?;
    let begin = Instant::now();
    for _ in 0..30 {
        let context = guest.create_context("brief")?;
        guest.destroy_context(context)?;
    }
    let mut heard = service.hears_for(Duration::from_millis(1500))?;
    while heard.last().is_none_or(|last| last != "STATUS=connected, 0 contexts") {
        heard.extend(
            service.hears_within(PATIENCE)?.with_context(|| format!("the end is not told: {heard:?}"))?,
        );
    }
    let texts = heard.iter().filter(|line| line.starts_with("STATUS=")).count() as u64;
    let most = begin.elapsed().as_secs() + 2;
    ensure!((1..=most).contains(&texts), "{texts} texts in {:?}: {heard:?}", begin.elapsed());
    Ok(())
}

fn beats(lines: &[String]) -> usize {
    lines.iter().filter(|line| *line == "WATCHDOG=1").count()
}

/// Checks that a service reports that its loop turns as often as it has to, and does not report this while it stands still.
fn ensure_watched(service: &Service) -> Result<()> {
    // Messages up to now belong to an earlier time.
    while service.hears_within(Duration::ZERO)?.is_some() {}
    let begin = Instant::now();
    let mut count = beats(&service.hears_for(Duration::from_secs(4))?);
    while count < 2 {
        service.hears("WATCHDOG=1")?;
        count += 1;
    }
    // The service reports each half second, if the machine is fast enough.
    let most = begin.elapsed().as_millis() as usize / 500 + 1;
    ensure!(count <= most, "{count} messages in {:?}", begin.elapsed());
    halt(service.pid())?;
    while service.hears_within(Duration::ZERO)?.is_some() {}
    let silent = service.hears_for(Duration::from_secs(2))?;
    kill_process(service.pid(), Signal::CONT)?;
    ensure!(silent.is_empty(), "it stands still, and says {silent:?}");
    service.hears("WATCHDOG=1")?;
    Ok(())
}

#[test]
fn a_device_process_that_stands_still_says_nothing() -> Result<()> {
    let mut service = Service::of_one_vm(Duration::from_secs(1), &[])?;
    ensure!(beats(&service.hears("READY=1")?) == 0, "the watchdog counts from the start on");
    ensure_watched(&service)?;
    // The same holds with a guest, which keeps the loop awake.
    let guest = service.guest()?;
    guest.create_context("live")?;
    ensure_watched(&service)?;
    ensure!(service.stop()?.success());
    Ok(())
}

#[test]
fn a_frontend_that_takes_its_time_is_no_hang() -> Result<()> {
    let service = Service::of_one_vm(Duration::from_secs(1), &["--frontend-timeout", "10min"])?;
    service.hears("READY=1")?;
    let guest = service.guest()?;
    let context = guest.create_context("waits")?;
    let held = guest.session.window.hold_maps();
    begin_map(&guest, context);
    ensure!(eventually(PATIENCE, || guest.session.window.asked() == 1), "no map is asked for");
    ensure_watched(&service)?;
    drop(held);
    guest.create_context("after")?;
    service.hears("STATUS=connected, 2 contexts")?;
    Ok(())
}

/// A broker of these VMs, whose tables have these keys, with folders as systemd makes them.
fn broker(vms: &[(&str, &str)]) -> Result<Service> {
    let (folder, socket) = manager()?;
    let path = |name: &str| folder.path().join(name);
    fs::create_dir(path("state"))?;
    fs::create_dir(path("run"))?;
    let gpu = gpu_selection().map(|gpu| format!("[defaults]\ngpu = {gpu:?}\n"));
    let tables = vms
        .iter()
        .map(|(name, keys)| format!("[vm.{name}]\nsocket-path = \"{}\"\n{keys}\n", path(name).display()));
    fs::write(path("vms.toml"), gpu.into_iter().chain(tables).collect::<String>())?;
    let mut command = vhost_user_vulkan()?;
    command.arg("--config").arg(path("vms.toml"));
    command
        .env("RUNTIME_DIRECTORY", path("run"))
        .env("STATE_DIRECTORY", path("state"))
        .env("WATCHDOG_USEC", "1000000");
    Service::start(command, folder, socket)
}

#[test]
fn a_broker_is_ready_when_its_vms_listen_or_have_failed() -> Result<()> {
    let mut service = broker(&[("a", ""), ("b", "gpu = \"no such GPU\""), ("c", "")])?;
    let heard = service.hears("READY=1")?;
    ensure!(service.path("a").exists() && service.path("c").exists(), "it is ready before its VMs listen");
    // The VM that fails is started again and again.
    let status = heard.last().context("a status")?;
    let failed = ["1 ended (see log)", "1 starting"].map(|state| format!("STATUS=3 VMs: 2 waiting, {state}"));
    ensure!(failed.contains(status), "{status}");
    // The operator's commands find the broker in its folder, because a unit's ExecReload= has the same variables.
    let mut status = vhost_user_vulkan()?;
    status.args(["status", "--json"]).env("RUNTIME_DIRECTORY", service.path("run"));
    let status = status.output()?;
    let text = String::from_utf8_lossy(&status.stdout).into_owned();
    ensure!(status.status.success() && text.contains("\"name\":\"a\""), "{text} {status:?}");
    ensure!(service.path("run/control.sock").exists());
    for vm in ["a", "c"] {
        let folder = service.path("state").join(vm);
        let mode =
            fs::metadata(&folder).with_context(|| format!("{}", folder.display()))?.permissions().mode();
        ensure!(mode & 0o777 == 0o700, "{mode:o}");
        ensure!(folder.join("pipeline-cache.key").exists());
    }
    for process in tests::daemon_process::children(service.child.id())? {
        ensure_not_inherited(process, VARIABLES, None)?;
    }
    let guest = Gpu::new(Session::connect(&service.path("a"), Options::default())?);
    service.hears("STATUS=3 VMs: 1 connected, 1 waiting, 1 ended (see log)")?;
    drop(guest);
    ensure!(service.stop()?.success());
    let log = service.log();
    let count = |text: &str| log.lines().filter(|line| line.contains(text)).count();
    let (ends, reasons) = (count("the device process has ended (exit status: 1)"), count("vm=b no GPU"));
    // A device process may have logged its reason just before the broker was stopped.
    ensure!(ends > 0 && (ends..=ends + 1).contains(&reasons), "{ends} ends, {reasons} reasons\n{log}");
    Ok(())
}

#[test]
fn a_broker_that_reads_its_file_again_says_when_that_is_over() -> Result<()> {
    let mut service = broker(&[("a", "")])?;
    service.hears("READY=1")?;
    let file = fs::read_to_string(service.path("vms.toml"))?;
    let more = format!("{file}[vm.b]\nsocket-path = \"{}\"\n", service.path("b").display());
    // The file has one VM more, then an error, then one VM less.
    for (text, vms) in [(more.as_str(), "2 VMs"), ("[vm.a]\n", "2 VMs"), (&file, "1 VM")] {
        fs::write(service.path("vms.toml"), text)?;
        kill_process(service.pid(), Signal::HUP)?;
        let begun = service.hears("RELOADING=1")?;
        ensure!(begun.last().is_some_and(|line| line.starts_with("MONOTONIC_USEC=")), "{begun:?}");
        let over = service.hears("READY=1")?;
        let settled = format!("STATUS={vms}: {} waiting", &vms[..1]);
        if over.last() != Some(&settled) {
            service.hears(&settled)?;
        }
    }
    ensure!(service.stop()?.success());
    Ok(())
}

#[test]
fn a_broker_that_stands_still_says_nothing() -> Result<()> {
    let mut service = broker(&[("a", ""), ("b", "")])?;
    service.hears("READY=1")?;
    ensure_watched(&service)?;
    ensure!(service.stop()?.success());
    Ok(())
}

#[test]
fn a_broker_whose_program_was_replaced_is_the_same_process_ready_and_watched() -> Result<()> {
    let mut service = broker(&[("a", "")])?;
    service.hears("READY=1")?;
    tests::broker::say(&service.path("run/control.sock"), &["upgrade"])?;
    service.hears("READY=1")?;
    ensure_watched(&service)?;
    ensure!(service.stop()?.success(), "{}", service.log());
    ensure!(service.log().contains("has taken over from version"), "{}", service.log());
    Ok(())
}

/// A command that gets `listener` as systemd passes sockets, under the number 3, and again under 4 if it is to get two.
fn activated(listener: &UnixListener, count: u32, command: &Command) -> Result<Command> {
    let line = format!("export LISTEN_PID=$$ LISTEN_FDS={count} && exec 3<&0 4<&0 0</dev/null");
    let mut command = prepared(&line, command);
    command.stdin(Stdio::from(OwnedFd::from(listener.try_clone()?)));
    Ok(command)
}

#[test]
fn a_vm_is_served_at_a_socket_that_systemd_passes() -> Result<()> {
    let (folder, socket) = manager()?;
    let path = folder.path().join("socket");
    let listener = UnixListener::bind(&path)?;
    // The guest connects before the daemon runs, as it does when the socket unit starts the service.
    let waiting = path.clone();
    let early = std::thread::spawn(move || Session::connect(&waiting, Options::default()).map(Gpu::new));
    let mut command = daemon::command()?;
    command.env("STATE_DIRECTORY", folder.path().join("state"));
    let mut service = Service::start(activated(&listener, 1, &command)?, folder, socket)?;
    let guest = early.join().expect("connecting does not panic")?;
    guest.create_context("live")?;
    service.hears("STATUS=connected, 1 context")?;
    for process in workers(service.child.id())?.into_iter().chain([launcher(service.child.id())?]) {
        ensure_not_inherited(process, VARIABLES, Some(&path))?;
    }
    ensure!(service.path("state/pipeline-cache.key").exists(), "the folder of the state is not used");
    drop(guest);
    service.hears(&format!("STATUS=waiting for a frontend on {}", path.display()))?;
    ensure!(service.stop()?.success());
    ensure!(path.exists(), "a socket of systemd's was removed");
    // The next daemon gets the same socket.
    let (next, socket) = manager()?;
    let service = Service::start(activated(&listener, 1, &daemon::command()?)?, next, socket)?;
    let guest = Gpu::new(Session::connect(&path, Options::default())?);
    guest.create_context("live")?;
    service.hears("STATUS=connected, 1 context")?;
    Ok(())
}

#[test]
fn sockets_that_do_not_fit_are_refused_with_the_remedy() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("socket");
    let listener = UnixListener::bind(&path)?;
    let refused = |count, command: &Command| -> Result<String> {
        let output = activated(&listener, count, command)?.output()?;
        ensure!(output.status.code() == Some(1), "{output:?}");
        Ok(String::from_utf8(output.stderr)?)
    };
    let error = refused(2, &daemon::command()?)?;
    ensure!(error.contains("systemd passes 2 sockets, but a VM has one"), "{error}");
    let config = folder.path().join("vms.toml");
    fs::write(&config, format!("[vm.a]\nsocket-path = \"{}\"\n", folder.path().join("a").display()))?;
    let mut broker = vhost_user_vulkan()?;
    broker.arg("--config").arg(&config);
    let error = refused(1, &broker)?;
    ensure!(error.contains("use the service without a socket unit"), "{error}");
    // The variables are meant for another process.
    let output = daemon::command()?.envs([("LISTEN_PID", "1"), ("LISTEN_FDS", "1")]).output()?;
    let error = String::from_utf8(output.stderr)?;
    ensure!(error.contains("one of --socket-path and --fd is needed, or a socket from systemd"), "{error}");
    Ok(())
}

/// The records that a journal has received.
struct Journal {
    folder: TempDir,
    socket: UnixDatagram,
}

type Fields = BTreeMap<String, String>;

impl Journal {
    /// A journal, if this user may put its socket at the daemon's path for it.
    fn new() -> Result<Option<Self>> {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root may mount a socket over the journal's");
            return Ok(None);
        }
        let folder = tempfile::tempdir()?;
        let socket = UnixDatagram::bind(folder.path().join("socket"))?;
        Ok(Some(Self { folder, socket }))
    }

    /// Returns the same command, in a namespace in which this is the journal's socket, and standard error the journal's.
    fn command(&self, command: &Command) -> Command {
        let line = format!(
            "mount -t tmpfs tmpfs /run && mkdir -p /run/systemd/journal && mount --bind {} /run/systemd/journal \
             && export JOURNAL_STREAM=$(stat --dereference --format %d:%i /proc/self/fd/2)",
            self.folder.path().display()
        );
        let mut outer = Command::new("unshare");
        outer.args(["--mount", "--propagation", "private"]);
        let inner = prepared(&line, command);
        outer.arg(inner.get_program()).args(inner.get_args());
        outer
    }

    /// Reads the records that wait.
    fn read_all(&self) -> Result<()> {
        self.socket.set_nonblocking(true)?;
        let mut bytes = vec![0; 1 << 20];
        while self.socket.recv(&mut bytes).is_ok() {}
        Ok(self.socket.set_nonblocking(false)?)
    }

    /// Waits for a record whose message has this text.
    fn hears(&self, text: &str) -> Result<Fields> {
        let (begin, mut heard, mut bytes) = (Instant::now(), Vec::new(), vec![0; 1 << 20]);
        while let Some(count) = receive(&self.socket, &mut bytes, PATIENCE.saturating_sub(begin.elapsed()))? {
            let fields = fields(&bytes[..count])?;
            if fields.get("MESSAGE").is_some_and(|message| message.contains(text)) {
                return Ok(fields);
            }
            heard.push(fields);
        }
        bail!("\"{text}\" does not come, but {heard:?}")
    }
}

/// Reads a record of the journal's native protocol.
fn fields(mut bytes: &[u8]) -> Result<Fields> {
    let mut fields = Fields::new();
    while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
        let line = std::str::from_utf8(&bytes[..end])?;
        bytes = &bytes[end + 1..];
        let (name, value) = if let Some((name, value)) = line.split_once('=') {
            (name, value.to_owned())
        } else {
            let (length, rest) = bytes.split_first_chunk().context("a length")?;
            let (value, rest) = rest.split_at(usize::try_from(u64::from_le_bytes(*length))?);
            bytes = rest.strip_prefix(b"\n").context("the end of a value")?;
            (line, String::from_utf8(value.to_vec())?)
        };
        ensure!(fields.insert(name.to_owned(), value).is_none(), "{name} twice in {fields:?}");
    }
    Ok(fields)
}

fn ensure_fields(fields: &Fields, wanted: &[(&str, &str)]) -> Result<()> {
    for (name, value) in wanted {
        ensure!(
            fields.get(*name).is_some_and(|found| found == value),
            "{name} is not {value:?} in {fields:?}"
        );
    }
    Ok(())
}

#[test]
fn the_log_goes_to_the_journal_with_fields() -> Result<()> {
    ["strict", "none"].into_iter().try_for_each(logs_to_the_journal)
}

fn logs_to_the_journal(sandbox: &str) -> Result<()> {
    let Some(journal) = Journal::new()? else { return Ok(()) };
    let (folder, socket) = manager()?;
    // A worker that prints arbitrary lines.
    let worker = HostVulkan::lavapipe()?.command(&build_example("escape")?)?;
    let mut command = daemon::command()?;
    command.args(["--sandbox", sandbox, "--vm-name", "web", "--exe"]).arg(worker.get_program());
    command.arg("--socket-path").arg(folder.path().join("socket"));
    let mut service = Service::start(journal.command(&command), folder, socket)?;
    let ready = journal.hears("ready for a frontend")?;
    ensure_fields(&ready, &[("PRIORITY", "5"), ("SYSLOG_IDENTIFIER", "vhost-user-vulkan"), ("VM", "web")])?;
    ensure!(ready.contains_key("GPU") && ready.contains_key("CODE_FILE"), "{ready:?}");
    service.hears("READY=1")?;
    let guest = service.guest()?;
    let context = guest.create_context("way")?;
    let printed = journal.hears("escape way: trying")?;
    ensure_fields(&printed, &[("PRIORITY", "4"), ("VM", "web"), ("CONTEXT", &context.to_string())])?;
    let message = format!("vm=web program=way the worker of context {context} prints: escape way: trying");
    ensure_fields(&printed, &[("MESSAGE", &message), ("PROGRAM", "way")])?;
    for process in workers(service.child.id())? {
        ensure_not_inherited(process, &["JOURNAL_STREAM"], None)?;
        // Fields of the journal's protocol stay text.
        let worker = Pid::from_raw(process as i32).context("a process")?;
        rustix::io::write(&printing_end(worker)?, b"way\nPRIORITY=0\nVM=other\n")?;
        let forged = journal.hears("prints: PRIORITY=0")?;
        ensure_fields(&forged, &[("PRIORITY", "4"), ("VM", "web"), ("CONTEXT", &context.to_string())])?;
    }
    drop(guest);
    ensure!(service.stop()?.success());
    ensure_fields(&journal.hears("ends, as a signal asks")?, &[("VM", "web")])?;
    ensure!(service.log().is_empty(), "lines without fields:\n{}", service.log());
    Ok(())
}

#[test]
fn a_journal_that_stands_still_holds_up_nobody() -> Result<()> {
    let Some(journal) = Journal::new()? else { return Ok(()) };
    let (folder, socket) = manager()?;
    let mut command = daemon::command()?;
    command.args(["--vm-name", "web", "--log-level", "trace"]);
    command.arg("--socket-path").arg(folder.path().join("socket"));
    let mut service = Service::start(journal.command(&command), folder, socket)?;
    service.hears("READY=1")?;
    let guest = service.guest()?;
    // Far more records than a socket has room for.
    for _ in 0..2000 {
        guest.capset()?;
    }
    // There is room again.
    journal.read_all()?;
    guest.capset()?;
    let notice = journal.hears("records of this log were dropped, since the journal did not read it")?;
    ensure_fields(&notice, &[("PRIORITY", "4"), ("VM", "web")])?;
    drop(guest);
    ensure!(service.stop()?.success());
    Ok(())
}

#[test]
fn each_record_of_a_brokers_vm_names_it() -> Result<()> {
    let Some(journal) = Journal::new()? else { return Ok(()) };
    let (folder, socket) = manager()?;
    let path = |name: &str| folder.path().join(name).display().to_string();
    let file = format!(
        "control-socket = \"{}\"\n[vm.a]\nsocket-path = \"{}\"\n[vm.b]\nsocket-path = \"{}\"\ngpu = \"none such\"\n",
        path("control"),
        path("a"),
        path("b")
    );
    fs::write(path("vms.toml"), file)?;
    let mut command = vhost_user_vulkan()?;
    command.arg("--config").arg(path("vms.toml"));
    let mut service = Service::start(journal.command(&command), folder, socket)?;
    // The cause of a device process's end is an error of its VM.
    ensure_fields(&journal.hears("none such")?, &[("VM", "b"), ("PRIORITY", "3")])?;
    ensure_fields(&journal.hears("the device process has ended")?, &[("VM", "b"), ("PRIORITY", "3")])?;
    service.hears("READY=1")?;
    let guest = Gpu::new(Session::connect(&service.path("a"), Options::default())?);
    ensure_fields(&journal.hears("a frontend has connected")?, &[("VM", "a"), ("PRIORITY", "5")])?;
    drop(guest);
    ensure!(service.stop()?.success());
    ensure!(service.log().is_empty(), "lines without fields:\n{}", service.log());
    ensure!(!is_alive(service.pid()));
    Ok(())
}
