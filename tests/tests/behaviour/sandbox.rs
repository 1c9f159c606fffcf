//! Tests that a worker under a guest's control can reach nothing outside its sandbox. The `escape` program plays the worker and tries the ways out,
//! one per context; without the sandbox each is open, which shows that the attempts are real.

use anyhow::{Context, Result, bail, ensure};
use protocol::ids::RingIdx;
use rustix::process::Pid;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use tempfile::TempDir;
use tests::daemon::{self, Daemon, eventually};
use tests::daemon_process::{DaemonProcess, build_example, daemon_executable, launcher, workers};
use tests::frontend::{Options, Session};
use tests::guest::{Gpu, PATIENCE};
use tests::packages::{HostVulkan, cache_dir};
use tests::program::executable;

/// The outcome of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    Open,
    Refused(String),
    /// The process ended with the attempt.
    Killed,
}

/// The `escape` program, which runs on the same libraries as the daemon.
fn escape_program() -> Result<PathBuf> {
    let command = HostVulkan::lavapipe()?.command(&build_example("escape")?)?;
    Ok(PathBuf::from(command.get_program()))
}

fn start(options: &[&str]) -> Result<Daemon> {
    let program = escape_program()?.to_string_lossy().into_owned();
    Daemon::start_with(&[&["--exe", &program], options].concat())
}

fn attempt(daemon: &Daemon, guest: &Gpu, way: &str, to: &str) -> Result<Outcome> {
    let (before, others) = (daemon.log().len(), daemon.workers());
    let context = guest.create_context(format!("{way} {to}").trim())?;
    let mut outcome = None;
    let said = eventually(PATIENCE, || {
        let log = daemon.log();
        let of_way = |line: &str| {
            let (_, printed) = line.split_once(" prints: ")?;
            printed.strip_prefix(&format!("escape {way}: ")).map(str::to_owned)
        };
        let complete = log[before..].rsplit_once('\n').unwrap_or_default().0;
        let lines: Vec<String> = complete.lines().filter_map(of_way).collect();
        // The workers are read after the log: a worker that has written a line has begun, so a missing worker has ended.
        let ended = daemon.workers() == others;
        outcome = match lines.last().map(String::as_str) {
            Some("open") => Some(Outcome::Open),
            Some("trying") if ended => Some(Outcome::Killed),
            Some("trying") | None => None,
            Some(refused) => Some(Outcome::Refused(refused.to_owned())),
        };
        outcome.is_some()
    });
    ensure!(said, "{way} said nothing\n{}", daemon.log());
    guest.destroy_context(context)?;
    ensure!(eventually(PATIENCE, || daemon.workers() == others), "the worker that tried {way} stays");
    outcome.context("an outcome")
}

/// Makes a context whose worker dies of its attempt; returns the device process's line about the death.
fn fatal_attempt(daemon: &Daemon, guest: &Gpu, way: &str) -> Result<String> {
    let context = guest.create_context(way)?;
    let said = || daemon.log().lines().find(|line| line.contains("is lost: ")).map(str::to_owned);
    eventually(PATIENCE, || said().is_some());
    guest.destroy_context(context)?;
    said().with_context(|| daemon.log())
}

/// Every way out, tried from a daemon with these options, beside a victim: another context of the same VM.
fn try_all(options: &[&str]) -> Result<BTreeMap<String, Outcome>> {
    let daemon = start(options)?;
    let guest = daemon.guest()?;
    guest.create_context("nothing")?;
    let victim = daemon.wait_for_workers(1)?[0].as_raw_nonzero().to_string();
    let device = daemon.id().to_string();
    let folder = tempfile::tempdir()?;
    let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let _unix = UnixListener::bind(path("s"))?;
    let name = format!("escape-{device}");
    let _abstract = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
    let tcp = TcpListener::bind("127.0.0.1:0")?;
    let port = tcp.local_addr()?.port().to_string();
    fs::write(path("secret"), "secret")?;
    fs::create_dir(path("m"))?;
    let (secret, unix, node, mount) = (path("secret"), path("s"), path("n"), path("m"));
    let listener = format!("{name}-2");
    let ways: &[(&str, &str)] = &[
        ("read", "/etc/passwd"),
        ("read", &secret),
        ("read", "/proc/self/exe"),
        ("list", "/root"),
        ("write", &name),
        ("unix", &unix),
        ("abstract", &name),
        ("tcp", &port),
        ("listen", ""),
        ("listen_unix", &listener),
        ("packet", ""),
        ("trace", &victim),
        ("trace", &device),
        ("memory", &victim),
        ("memory", &device),
        ("descriptors", &device),
        ("peek", &victim),
        ("steal", &device),
        ("signal", &victim),
        ("signal", &device),
        ("signal_thread", &victim),
        ("shell", ""),
        ("itself", ""),
        ("memory_file", ""),
        ("fork", ""),
        ("fork_namespace", ""),
        ("mount", &mount),
        ("open_tree", ""),
        ("unshare", ""),
        ("join", &device),
        ("root", ""),
        ("node", &node),
        ("keys", ""),
        ("bpf", ""),
        ("ring", ""),
        ("faults", ""),
        ("limits", ""),
        ("dump", ""),
        ("user", ""),
        ("host_name", ""),
        ("log", ""),
        ("personality", ""),
        ("timer", ""),
        ("events", ""),
        ("pipe", ""),
        ("lock", ""),
        ("schedule", ""),
        ("owner", &device),
        ("read_vector", ""),
        ("terminal", ""),
    ];
    let mut outcomes = BTreeMap::new();
    for (way, to) in ways {
        let target = if *to == device {
            "device process"
        } else if *to == victim {
            "neighbour"
        } else {
            to
        };
        outcomes.insert(format!("{way} {target}"), attempt(&daemon, &guest, way, to)?);
    }
    ensure!(daemon.is_running(), "the device process is gone");
    ensure!(daemon.workers().len() == 1, "the neighbour is gone");
    Ok(outcomes)
}

#[test]
fn every_way_out_of_a_worker_is_closed() -> Result<()> {
    let outcomes = try_all(&[])?;
    outcomes.iter().for_each(|(way, outcome)| println!("{way}: {outcome:?}"));
    let open: Vec<_> = outcomes.iter().filter(|(_, outcome)| **outcome == Outcome::Open).collect();
    assert!(open.is_empty(), "{open:?}");
    Ok(())
}

#[test]
fn without_system_call_filters_namespaces_and_root_still_hold() -> Result<()> {
    let outcomes = try_all(&["--seccomp=off"])?;
    outcomes.iter().for_each(|(way, outcome)| println!("{way}: {outcome:?}"));
    // Calls that only the filter refuses reach nothing outside: a worker may copy a process of its own and inspect itself.
    let harmless = [
        "fork",
        "faults",
        "ring",
        "dump",
        "personality",
        "signal_thread",
        "keys",
        "memory_file",
        "unshare",
        "listen_unix",
        "packet",
        "read /proc/self/exe",
        "timer",
        "events",
        "pipe",
        "lock",
        "schedule",
        "owner",
        "read_vector",
        "terminal",
    ];
    let open: Vec<_> = outcomes
        .iter()
        .filter(|(_, outcome)| **outcome == Outcome::Open)
        .map(|(way, _)| way.trim())
        .collect();
    let harmful: Vec<_> =
        open.iter().filter(|way| !harmless.iter().any(|harmless| way.starts_with(harmless))).collect();
    assert!(harmful.is_empty(), "{harmful:?}");
    Ok(())
}

#[test]
fn without_a_sandbox_every_way_is_open() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root has every way");
        return Ok(());
    }
    let outcomes = try_all(&["--sandbox=none"])?;
    let closed: Vec<_> = outcomes.iter().filter(|(_, outcome)| **outcome != Outcome::Open).collect();
    assert!(closed.is_empty(), "{closed:?}");
    Ok(())
}

/// A daemon of an ordinary user, killed when this is dropped.
struct Ordinary {
    daemon: Child,
    folder: TempDir,
}

impl Ordinary {
    /// Starts the daemon, if the caller may.
    fn start() -> Result<Option<Self>> {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root can start a daemon of another user");
            return Ok(None);
        }
        let folder = tempfile::tempdir()?;
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777))?;
        let program = folder.path().join("vhost-user-vulkan");
        executable::copy(&daemon_executable()?, &program)?;
        let HostVulkan::Lavapipe(root) = HostVulkan::lavapipe()? else { bail!("no software driver") };
        let vulkan = HostVulkan::Lavapipe(root.copy_to(&folder.path().join("packages"))?);
        let mut daemon = vulkan.command(&program)?;
        daemon.arg("--socket-path").arg(folder.path().join("socket")).uid(ORDINARY).gid(ORDINARY);
        let daemon = daemon.stderr(fs::File::create(folder.path().join("log"))?).spawn()?;
        let mut ordinary = Self { daemon, folder };
        let started = eventually(PATIENCE, || {
            ordinary.socket().exists() || matches!(ordinary.daemon.try_wait(), Ok(Some(_)))
        });
        ensure!(started, "it does not start\n{}", ordinary.log());
        Ok(Some(ordinary))
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    fn guest(&self) -> Result<Gpu> {
        let guest = Session::connect(&self.socket(), Options::default()).map(Gpu::new);
        guest.with_context(|| self.log())
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Ordinary {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

#[test]
fn an_ordinary_user_has_the_same_sandbox() -> Result<()> {
    let Some(daemon) = Ordinary::start()? else { return Ok(()) };
    let guest = daemon.guest()?;
    let context = guest.create_context("ordinary")?;
    // The worker has loaded its driver when the fence arrives.
    guest.submit_fenced(context, RingIdx(0), &[]).wait(PATIENCE)?;
    let workers = workers(daemon.daemon.id())?;
    let checked = (|| {
        ensure!(workers.len() == 1, "{workers:?}");
        let worker = Pid::from_raw(workers[0] as i32).context("a number")?;
        ensure!(status(worker, "Uid")?.starts_with(&ORDINARY.to_string()), "another user");
        let root = PathBuf::from(format!("/proc/{}/root", workers[0]));
        ensure!(!sees_more(&root, "home", daemon.folder.path())?, "sees the host");
        has_no_rights(worker)
    })();
    checked.with_context(|| daemon.log())
}

#[test]
fn a_frontend_that_gets_no_thread_is_refused_and_ends_no_device_process() -> Result<()> {
    let Some(mut daemon) = Ordinary::start()? else { return Ok(()) };
    let device = daemon.daemon.id().to_string();
    let limit = |threads: u32| -> Result<()> {
        let mut prlimit = Command::new("prlimit");
        prlimit.args([&format!("--nproc={threads}:"), "--pid", &device]).uid(ORDINARY).gid(ORDINARY);
        ensure!(prlimit.status()?.success(), "its limit cannot be set");
        Ok(())
    };
    // The device process has its own threads once it serves, which is later than the creation of its socket file.
    daemon.guest()?.capset()?;
    // Other processes of the same user may have taken all threads of the user's limit.
    limit(1)?;
    for _ in 0..3 {
        ensure!(daemon.guest().is_err(), "it has a thread");
    }
    ensure!(matches!(daemon.daemon.try_wait(), Ok(None)), "the device process is gone\n{}", daemon.log());
    let told = || daemon.log().contains("a frontend is refused: ") && daemon.log().contains("TasksMax=");
    ensure!(eventually(PATIENCE, told), "{}", daemon.log());
    limit(4096)?;
    ensure!(
        eventually(PATIENCE, || daemon.guest().is_ok_and(|guest| guest.capset().is_ok())),
        "{}",
        daemon.log()
    );
    Ok(())
}

#[test]
fn when_memory_runs_out_workers_go_first() -> Result<()> {
    let daemon = Daemon::start()?;
    let guest = daemon.guest()?;
    guest.create_context("spared")?;
    let worker = daemon.wait_for_workers(1)?[0].as_raw_nonzero().get();
    let score = |process: i32| -> Result<i32> {
        Ok(fs::read_to_string(format!("/proc/{process}/oom_score_adj"))?.trim().parse()?)
    };
    let (device, launcher) = (score(daemon.id() as i32)?, score(launcher(daemon.id())? as i32)?);
    assert_eq!((device, launcher), (score(std::process::id() as i32)?, device));
    assert!(eventually(PATIENCE, || score(worker).is_ok_and(|score| score == (device + 500).min(1000))));
    Ok(())
}

/// Returns whether a process with this root folder sees more in a folder of the machine than the path to its drivers.
fn sees_more(root: &Path, folder: &str, drivers: &Path) -> Result<bool> {
    let mut place = root.join(folder);
    let Ok(way) = drivers.strip_prefix(Path::new("/").join(folder)) else { return Ok(place.exists()) };
    for next in way {
        if !place.exists() {
            return Ok(false);
        }
        for entry in fs::read_dir(&place)? {
            if entry?.file_name() != next {
                return Ok(true);
            }
        }
        place.push(next);
    }
    Ok(false)
}

/// A user that owns nothing.
const ORDINARY: u32 = 64_999;

/// A field of `/proc/<pid>/status`.
fn status(process: Pid, field: &str) -> Result<String> {
    let status = fs::read_to_string(format!("/proc/{}/status", process.as_raw_nonzero()))?;
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    Ok(line.with_context(|| format!("no {field}"))?.trim().to_owned())
}

fn has_no_rights(process: Pid) -> Result<()> {
    for field in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        ensure!(status(process, field)? == "0000000000000000", "{field} {}", status(process, field)?);
    }
    ensure!(status(process, "NoNewPrivs")? == "1", "may gain privileges");
    ensure!(status(process, "Seccomp")? == "2", "no filter");
    Ok(())
}

#[test]
fn a_worker_is_alone_and_without_rights() -> Result<()> {
    let daemon = Daemon::start()?;
    let guest = daemon.guest()?;
    guest.create_context("one")?;
    guest.create_context("two")?;
    let workers = daemon.wait_for_workers(2)?;
    // The worker seals itself before it loads the driver, and so before it can answer.
    let sealed = |worker: &Pid| status(*worker, "Seccomp").is_ok_and(|mode| mode == "2");
    assert!(eventually(PATIENCE, || workers.iter().all(sealed)));
    for worker in &workers {
        has_no_rights(*worker)?;
        let number = worker.as_raw_nonzero();
        // Its processes: the first of the namespace and itself.
        assert_eq!(status(*worker, "NSpid")?, format!("{number}\t2"));
        let user = status(*worker, "Uid")?;
        assert!(!user.starts_with("0\t"), "runs as root");
        let limits = fs::read_to_string(format!("/proc/{number}/limits"))?;
        let core = limits.lines().find(|line| line.starts_with("Max core file size")).context("a limit")?;
        assert_eq!(core.split_whitespace().skip(4).take(2).collect::<Vec<_>>(), ["0", "0"]);
        for kind in ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"] {
            let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/{kind}"));
            let own = namespace(&number.to_string())?;
            assert_ne!(own, namespace("self")?, "{kind}");
            let shared = workers
                .iter()
                .filter(|other| namespace(&other.as_raw_nonzero().to_string()).is_ok_and(|ns| ns == own));
            assert_eq!(shared.count(), 1, "{kind} is shared");
        }
        let root = PathBuf::from(format!("/proc/{number}/root"));
        for absent in ["home", "var", "run", "boot", "bin", "sbin", "tmp", "mnt"] {
            assert!(!sees_more(&root, absent, &cache_dir()?)?, "it sees {absent}");
        }
        let mounts = fs::read_to_string(format!("/proc/{number}/mountinfo"))?;
        let writable: Vec<_> = mounts
            .lines()
            .filter(|line| !line.split(' ').nth(5).is_some_and(|options| options.starts_with("ro")))
            .collect();
        assert!(writable.is_empty(), "{writable:#?}");
        let variables = fs::read(format!("/proc/{number}/environ"))?;
        assert!(
            !variables
                .split(|byte| *byte == 0)
                .any(|variable| variable.starts_with(b"HOME=") || variable.starts_with(b"PATH="))
        );
    }
    Ok(())
}

#[test]
fn a_worker_begins_with_its_channel_and_standard_descriptors_only() -> Result<()> {
    let daemon = start(&[])?;
    let guest = daemon.guest()?;
    guest.create_context("nothing")?;
    let worker = daemon.wait_for_workers(1)?[0];
    assert!(eventually(PATIENCE, || daemon.log().contains("escape nothing: open")));
    let links = fs::read_dir(format!("/proc/{}/fd", worker.as_raw_nonzero()))?;
    let mut links: Vec<_> = links.map(|link| Ok(fs::read_link(link?.path())?)).collect::<Result<_>>()?;
    links.sort();
    assert_eq!(links.len(), 4, "{links:?}");
    assert_eq!(links[0], Path::new("/dev/null"));
    // The descriptors are its channel and one for its output; the log is not among them.
    assert!(links[1..].iter().all(|link| link.to_string_lossy().starts_with("socket:")), "{links:?}");
    assert!(links[1..].iter().collect::<BTreeSet<_>>().len() == 2, "{links:?}");
    Ok(())
}

#[test]
fn the_device_process_opens_and_executes_nothing() -> Result<()> {
    let daemon = Daemon::start()?;
    // The device process seals itself after it has made its socket file and before it serves.
    drop(daemon.guest()?);
    has_no_rights(daemon.pid())?;
    let listed = daemon::command()?.arg("--print-seccomp").output()?;
    let listed = String::from_utf8(listed.stdout)?;
    let calls =
        listed.lines().skip_while(|line| !line.starts_with("device process")).nth(1).context("a list")?;
    for forbidden in [
        "open", "openat", "openat2", "execve", "execveat", "socket", "connect", "bind", "kill", "ptrace",
        "fork", "vfork", "clone3",
    ] {
        assert!(!calls.split_whitespace().any(|call| call.trim_end_matches('*') == forbidden), "{forbidden}");
    }
    // The device process serves nevertheless, also after its frontend has disconnected.
    for _ in 0..2 {
        let guest = daemon.guest()?;
        let context = guest.create_context("served")?;
        guest.create_shmem(context, 4096)?;
        daemon.wait_for_workers(1)?;
    }
    Ok(())
}

#[test]
fn the_number_of_system_calls_is_documented() -> Result<()> {
    let listed = String::from_utf8(daemon::command()?.arg("--print-seccomp").output()?.stdout)?;
    let document = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/sandbox.md"))?;
    for line in listed.lines().filter(|line| !line.starts_with(' ')) {
        ensure!(
            document.lines().any(|documented| documented.trim() == line),
            "docs/sandbox.md lacks: {line}"
        );
    }
    Ok(())
}

#[test]
fn a_system_call_off_the_list_kills_and_is_named_for_who_wants_to_learn() -> Result<()> {
    let killed = start(&[])?;
    let guest = killed.guest()?;
    let told = fatal_attempt(&killed, &guest, "personality")?;
    ensure!(told.contains("(SIGSYS)") && told.contains("--seccomp=log"), "{told}");
    let learning = start(&["--seccomp=log"])?;
    let guest = learning.guest()?;
    // The worker's output names the call, too. Output that it has not written when its context is destroyed is lost.
    guest.create_context("personality")?;
    for said in ["not on the list of system calls: personality (135)", "escape personality: open"] {
        assert!(eventually(PATIENCE, || learning.log().contains(said)), "{}", learning.log());
    }
    Ok(())
}

/// A driver that makes a call that is on no list of system calls while the dynamic linker runs its initialisers, with the linker's lock held.
const CALLS_WHEN_LOADED: &str = "
#include <sys/syscall.h>
#include <unistd.h>
__attribute__((constructor)) static void when_loaded(void) { syscall(SYS_personality, 0xffffffffU); }
";

#[test]
fn a_driver_that_calls_what_is_on_no_list_while_it_is_loaded_is_named_and_goes_on() -> Result<()> {
    let folder = TempDir::new()?;
    let [source, library, manifest] =
        ["calls.c", "libcalls.so", "calls.json"].map(|name| folder.path().join(name));
    fs::write(&source, CALLS_WHEN_LOADED)?;
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status()?;
    ensure!(compiled.success(), "cc: {compiled}");
    let driver = library.display();
    fs::write(
        &manifest,
        format!(
            r#"{{"file_format_version": "1.0.1", "ICD": {{"library_path": "{driver}", "api_version": "1.4.0"}}}}"#
        ),
    )?;
    // Workers run as another user.
    for path in [folder.path(), &library, &manifest] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    }
    let mut command = HostVulkan::lavapipe()?.command(&daemon_executable()?)?;
    let before = |name: &str| {
        let mut set = command.get_envs().filter(|(key, _)| *key == name);
        set.next().and_then(|(_, value)| value).map(PathBuf::from).with_context(|| format!("no {name}"))
    };
    let manifests = std::env::join_paths([manifest.clone(), before("VK_DRIVER_FILES")?])?;
    let libraries = [folder.path().display().to_string(), before("LD_LIBRARY_PATH")?.display().to_string()];
    command.env("VK_DRIVER_FILES", manifests).env("LD_LIBRARY_PATH", libraries.join(":"));
    let daemon = DaemonProcess::start_command(command, &["--seccomp=log"])?;
    ensure!(
        eventually(PATIENCE, || daemon.log().contains("not on the list of system calls: personality (135)")),
        "{}",
        daemon.log()
    );
    Ok(())
}

#[test]
fn a_crash_is_told_with_its_signal() -> Result<()> {
    let daemon = start(&[])?;
    let guest = daemon.guest()?;
    let told = fatal_attempt(&daemon, &guest, "crash")?;
    ensure!(told.contains("its worker ended (signal: 11 (SIGSEGV)"), "{told}");
    Ok(())
}

#[test]
fn loose_sandboxes_are_loud_and_a_strict_one_is_silent() -> Result<()> {
    for (option, loud) in
        [("--sandbox=none", "NO SANDBOX"), ("--seccomp=off", "NO FILTER"), ("--sandbox=strict", "")]
    {
        let log = Daemon::start_with(&[option])?.log();
        let warnings = log.lines().filter(|line| line.contains("SANDBOX") || line.contains("NO FILTER"));
        assert_eq!(
            warnings.filter(|line| line.contains("WARN") && line.contains(loud)).count(),
            usize::from(!loud.is_empty()),
            "{log}"
        );
    }
    Ok(())
}

#[test]
fn nothing_is_left_when_the_device_process_is_killed() -> Result<()> {
    let daemon = Daemon::start()?;
    let guest = daemon.guest()?;
    guest.create_context("orphan")?;
    let mut left = daemon.wait_for_workers(1)?;
    left.extend(Pid::from_raw(launcher(daemon.id())? as i32));
    let socket = daemon.socket();
    rustix::process::kill_process(daemon.pid(), rustix::process::Signal::KILL)?;
    assert!(eventually(PATIENCE, || !left.iter().any(|process| daemon::is_alive(*process))));
    assert!(eventually(PATIENCE, || !Path::new(&socket).exists()), "the socket file is left");
    Ok(())
}
