//! Plays a worker that a guest has taken over. It confines itself as a worker does, and then tries the way out that its context's name gives;
//! `tests/tests/behaviour/sandbox.rs` starts it with `--exe`. It writes each result to standard error: "open" if the way is open.

#![allow(unsafe_code, reason = "an attacker is not bound by what libraries offer")]

use anyhow::{Context, bail, ensure};
use daemon::ipc::{Channel, DriverFamily, ToWorker};
use daemon::sandbox::{Options, SandboxMode, SeccompMode, inherited, seal_child};
use std::fs::File;
use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::RawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let has = |option: &str| arguments.iter().any(|argument| argument == option);
    let options = Options {
        sandbox: match () {
            () if has("--sandbox=none") => SandboxMode::None,
            () if has("--sandbox=degraded") => SandboxMode::Degraded,
            () => SandboxMode::Strict,
        },
        seccomp: match () {
            () if has("--seccomp=off") => SeccompMode::Off,
            () if has("--seccomp=log") => SeccompMode::Log,
            () => SeccompMode::Kill,
        },
    };
    let at = arguments.iter().position(|argument| argument == "--channel-fd").context("no channel")?;
    let channel: RawFd = arguments.get(at + 1).context("no channel")?.parse()?;
    let channel = Channel::from_socket(inherited(channel)?);
    env_logger::Builder::new().filter_level(log::LevelFilter::Warn).init();
    seal_child(&options, DriverFamily::Software)?;
    if arguments.get(1).is_some_and(|role| role == "probe") {
        channel.send(&vulkan::probe().map_err(|error| error.to_string()), None)?;
        return Ok(());
    }
    let (ToWorker::Setup(setup), _) = channel.receive()? else { bail!("no set-up") };
    let (way, to) = setup.debug_name.split_once(' ').unwrap_or((&setup.debug_name, ""));
    let say = |what: &str| io::stderr().write_all(format!("escape {way}: {what}\n").as_bytes());
    say("trying")?;
    match escape(way, to) {
        Ok(()) => say("open")?,
        Err(error) => say(&format!("refused ({error:#})"))?,
    }
    // The program lives until its context ends, as a worker does.
    while channel.receive::<ToWorker>().is_ok() {}
    Ok(())
}

/// Tries one way; `to` is the path, name or number to which it leads.
fn escape(way: &str, to: &str) -> anyhow::Result<()> {
    let number = || -> anyhow::Result<usize> { Ok(to.parse()?) };
    match way {
        "read" => drop(File::open(to)?),
        "list" => drop(std::fs::read_dir(to)?),
        "write" => write_somewhere(to)?,
        "unix" => drop(UnixStream::connect(to)?),
        "abstract" => drop(UnixStream::connect_addr(&SocketAddr::from_abstract_name(to)?)?),
        "tcp" => drop(TcpStream::connect(("127.0.0.1", to.parse()?))?),
        "listen" => drop(TcpListener::bind("127.0.0.1:0")?),
        "listen_unix" => drop(UnixListener::bind_addr(&SocketAddr::from_abstract_name(to)?)?),
        "packet" => call(libc::SYS_socket, [libc::AF_NETLINK as usize, libc::SOCK_RAW as usize, 0, 0, 0, 0])?,
        "trace" => call(libc::SYS_ptrace, [libc::PTRACE_SEIZE as usize, number()?, 0, 0, 0, 0])?,
        "memory" => drop(File::options().read(true).write(true).open(format!("/proc/{to}/mem"))?),
        "descriptors" => ensure!(std::fs::read_dir(format!("/proc/{to}/fd"))?.count() > 0),
        "peek" => peek(number()?)?,
        "steal" => steal(number()?)?,
        "signal" => call(libc::SYS_kill, [number()?, 0, 0, 0, 0, 0])?,
        "signal_thread" => call(libc::SYS_tgkill, [number()?, number()?, 0, 0, 0, 0])?,
        "shell" => ensure!(Command::new("/bin/sh").env_clear().args(["-c", "true"]).status()?.success()),
        "itself" => ensure!(Command::new("/proc/self/exe").arg("--help").output().is_ok()),
        "memory_file" => run_memory_file()?,
        "fork" => fork(0)?,
        "fork_namespace" => fork(libc::CLONE_NEWUSER as usize)?,
        "mount" => {
            let path = std::ffi::CString::new(to)?;
            call(libc::SYS_mount, [text(c"none"), path.as_ptr() as usize, text(c"tmpfs"), 0, 0, 0])?;
            call(libc::SYS_umount2, [path.as_ptr() as usize, 0, 0, 0, 0, 0])?;
        }
        "open_tree" => call(libc::SYS_open_tree, [libc::AT_FDCWD as usize, text(c"/"), 1, 0, 0, 0])?,
        "unshare" => {
            call(libc::SYS_unshare, [(libc::CLONE_NEWUSER | libc::CLONE_NEWNS) as usize, 0, 0, 0, 0, 0])?
        }
        "join" => {
            let namespace = File::open(format!("/proc/{to}/ns/uts"))?;
            call(libc::SYS_setns, [std::os::fd::AsRawFd::as_raw_fd(&namespace) as usize, 0, 0, 0, 0, 0])?;
        }
        "root" => call(libc::SYS_chroot, [text(c"/"), 0, 0, 0, 0, 0])?,
        "node" => {
            let path = std::ffi::CString::new(to)?;
            let kind = libc::S_IFCHR as usize | 0o666;
            call(libc::SYS_mknod, [path.as_ptr() as usize, kind, libc::makedev(1, 3) as usize, 0, 0, 0])?;
            std::fs::remove_file(to)?;
        }
        "keys" => call(libc::SYS_keyctl, [0, -4_isize as usize, 1, 0, 0, 0])?,
        "bpf" => bpf()?,
        "ring" => call(libc::SYS_io_uring_setup, [1, [0u8; 120].as_mut_ptr() as usize, 0, 0, 0, 0])?,
        "faults" => call(libc::SYS_userfaultfd, [1, 0, 0, 0, 0, 0])?,
        "limits" => {
            let unlimited = [u64::MAX; 2];
            call(libc::SYS_prlimit64, [0, libc::RLIMIT_CORE as usize, unlimited.as_ptr() as usize, 0, 0, 0])?;
        }
        "dump" => call(libc::SYS_prctl, [libc::PR_SET_DUMPABLE as usize, 1, 0, 0, 0, 0])?,
        "user" => call(libc::SYS_setuid, [0, 0, 0, 0, 0, 0])?,
        "host_name" => {
            let name = rustix::system::uname().nodename().to_owned();
            call(libc::SYS_sethostname, [name.as_ptr() as usize, name.count_bytes(), 0, 0, 0, 0])?;
        }
        "log" => call(libc::SYS_syslog, [10, 0, 0, 0, 0, 0])?,
        // Calls and arguments that no software driver needs.
        "timer" => call(libc::SYS_timerfd_create, [libc::CLOCK_MONOTONIC as usize, 0, 0, 0, 0, 0])?,
        "events" => call(libc::SYS_epoll_create1, [0, 0, 0, 0, 0, 0])?,
        "pipe" => call(libc::SYS_pipe2, [[0i32; 2].as_mut_ptr() as usize, 0, 0, 0, 0, 0])?,
        "lock" => call(libc::SYS_flock, [0, libc::LOCK_SH as usize, 0, 0, 0, 0])?,
        "schedule" => {
            let parameters = [0i32; 4];
            let policy = libc::SCHED_BATCH as usize;
            call(libc::SYS_sched_setscheduler, [0, policy, parameters.as_ptr() as usize, 0, 0, 0])?;
        }
        "owner" => call(libc::SYS_fcntl, [0, libc::F_SETOWN as usize, number()?, 0, 0, 0])?,
        "read_vector" => call(libc::SYS_readv, [0, 0, 0, 0, 0, 0])?,
        "terminal" => terminal()?,
        "personality" => call(libc::SYS_personality, [0x0040000, 0, 0, 0, 0, 0])?,
        "crash" => fail_at_null(),
        "nothing" => {}
        _ => bail!("no such way"),
    }
    Ok(())
}

fn write_somewhere(name: &str) -> anyhow::Result<()> {
    let mut tried = ["/", "/tmp", "/var/tmp", "/dev/shm", "/dev", "/run", "/etc", "/usr", "/proc", "."]
        .iter()
        .map(|folder| {
            let path = Path::new(folder).join(name);
            File::create(&path)?;
            std::fs::remove_file(path)
        });
    tried.find(io::Result::is_ok).context("nowhere")??;
    Ok(())
}

/// Reads another process's memory.
fn peek(process: usize) -> anyhow::Result<()> {
    let mut byte = 0u8;
    let local = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let maps = std::fs::read_to_string(format!("/proc/{process}/maps"));
    // If its mappings cannot be read: the address where programs often lie.
    let maps = maps.unwrap_or_else(|_| "400000-".to_owned());
    let start = maps.split('-').next().context("no memory")?;
    let remote = libc::iovec { iov_base: usize::from_str_radix(start, 16)? as *mut _, iov_len: 1 };
    call(
        libc::SYS_process_vm_readv,
        [process, (&raw const local) as usize, 1, (&raw const remote) as usize, 1, 0],
    )
}

/// Takes another process's first descriptor.
fn steal(process: usize) -> anyhow::Result<()> {
    let pidfd = rustix::process::pidfd_open(
        rustix::process::Pid::from_raw(process as i32).context("no process")?,
        rustix::process::PidfdFlags::empty(),
    )?;
    call(libc::SYS_pidfd_getfd, [std::os::fd::AsRawFd::as_raw_fd(&pidfd) as usize, 2, 0, 0, 0, 0])
}

/// Executes a program that it has written into memory.
fn run_memory_file() -> anyhow::Result<()> {
    let file = rustix::fs::memfd_create("program", rustix::fs::MemfdFlags::CLOEXEC)?;
    rustix::io::write(&file, b"#!/bin/sh\n")?;
    let arguments = [std::ptr::null::<u8>()];
    let child = start_copy(0)?;
    if child == 0 {
        let arguments = arguments.as_ptr() as usize;
        let file = std::os::fd::AsRawFd::as_raw_fd(&file) as usize;
        let refused = call(
            libc::SYS_execveat,
            [file, text(c""), arguments, arguments, libc::AT_EMPTY_PATH as usize, 0],
        );
        // The kernel finds a script in a file that closes when it is executed, but its interpreter cannot open it.
        std::process::exit(i32::from(
            refused.is_err_and(|error| !error.to_string().contains("No such file")),
        ));
    }
    wait(child)
}

fn fork(flags: usize) -> anyhow::Result<()> {
    let child = start_copy(flags)?;
    if child == 0 {
        std::process::exit(0);
    }
    wait(child)
}

fn start_copy(flags: usize) -> anyhow::Result<usize> {
    // SAFETY: a copy of this process, as by fork; it has one thread.
    match unsafe {
        libc::syscall(libc::SYS_clone, flags | libc::SIGCHLD as usize, 0usize, 0usize, 0usize, 0usize)
    } {
        child if child >= 0 => Ok(child as usize),
        _ => Err(io::Error::last_os_error().into()),
    }
}

fn wait(child: usize) -> anyhow::Result<()> {
    let mut status = 0i32;
    call(libc::SYS_wait4, [child, (&raw mut status) as usize, 0, 0, 0, 0])?;
    ensure!(status == 0, "the child failed");
    Ok(())
}

/// Asks whether standard input is a terminal. The kernel answers that it is none, unless a filter kills this process or refuses the call.
fn terminal() -> anyhow::Result<()> {
    call(libc::SYS_ioctl, [0, libc::TIOCSTI as usize, text(c"x"), 0, 0, 0])
        .or_else(|error| if error.to_string().contains("os error 25") { Ok(()) } else { Err(error) })
}

fn bpf() -> anyhow::Result<()> {
    // BPF_MAP_CREATE of an array with one entry of four bytes.
    let mut attributes = [0u32; 32];
    attributes[..4].copy_from_slice(&[2, 4, 4, 1]);
    call(libc::SYS_bpf, [0, attributes.as_mut_ptr() as usize, size_of_val(&attributes), 0, 0, 0])
}

fn fail_at_null() {
    // SAFETY: none: the process is to be ended by the processor's fault.
    unsafe { std::ptr::null_mut::<u8>().write_volatile(1) };
}

fn text(text: &'static std::ffi::CStr) -> usize {
    text.as_ptr() as usize
}

fn call(number: libc::c_long, arguments: [usize; 6]) -> anyhow::Result<()> {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: the kernel checks what it is given; callers pass pointers to what lives until the call returns.
    match unsafe { libc::syscall(number, a, b, c, d, e, f) } {
        -1 => Err(io::Error::last_os_error().into()),
        _ => Ok(()),
    }
}
