//! `vhost-user-vulkan`: reads the command line, starts logging, and becomes the broker of several VMs, the
//! device process of one, its launcher, a worker or a probe; or an operator's end of the broker.

mod checked;
mod cli;
mod diagnosis;
mod interpose;

use anyhow::{Context, bail};
use cli::mistakes::one_line;
use cli::values::ControlSocket;
use cli::{Child, Cli, Control, Role, Serve};
use config::{GpuChoice, GpuInfo, Protection};
use daemon::broker::{self, ClientError, OneVm, OneVmOptions, Passed, VmsFile, Watch};
use daemon::ipc::{Channel, DriverFamily, ProbeReport, SharedGpu};
use daemon::recipe;
use daemon::sandbox::{
    self, Delegated, Launcher, Policy, Program, SandboxMode, SeccompMode, inherited, only_standard_input,
};
use daemon::serve::{self, Chosen, End, List, Listen};
use daemon::service::{self, Activation, Manager, Reader, start_logging};
use daemon::trace;
use daemon::watch::{is_interactive, watch};
use log::LevelFilter;
use outside::HostMemory;
use protocol::venus::capset::Capset;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Answer to `--print-capabilities` (QEMU's schema `vhost-user.json`).
const CAPABILITIES: &str = r#"{ "type": "gpu", "features": [] }"#;

/// The name of the process: as much of the program's as the system keeps.
const NAME: &CStr = c"vhost-user-vulk";

/// The target of this file's log messages: the name of its own module begins like that of a silenced library.
const LOG: &str = "daemon";

fn main() -> ExitCode {
    // QEMU's conventions say so, whatever else is on the command line.
    if std::env::args_os().any(|argument| argument == "--print-capabilities") {
        return print(&format!("{CAPABILITIES}\n")).unwrap_or(ExitCode::FAILURE);
    }
    let (result, status) = match Cli::read() {
        Ok(cli) => (become_what_is_wanted(cli), ExitCode::FAILURE),
        Err(error) if error.use_stderr() => (Err(anyhow::anyhow!(one_line(&error))), USAGE_ERROR.into()),
        Err(help) => (print(&help.to_string()), ExitCode::FAILURE),
    };
    result.unwrap_or_else(|error| {
        match is_logging() {
            true => log::error!(target: LOG, "{error:#}"),
            false => service::print_error(&format!("vhost-user-vulkan: {error:#}")),
        }
        status
    })
}

/// The exit status where the command line is wrong.
const USAGE_ERROR: u8 = 2;

fn become_what_is_wanted(
    Cli { role, config, check_config, take_over, serve, .. }: Cli,
) -> anyhow::Result<ExitCode> {
    match role {
        None => match config {
            Some(file) => {
                let file =
                    VmsFile::new(file, Serve::command(), serve.log_level.as_str().to_ascii_lowercase());
                let serve_all = if take_over { follow_broker } else { become_broker };
                serve_all(file, check_config, serve.log_level).map(|()| ExitCode::SUCCESS)
            }
            None => become_device(serve, take_over),
        },
        Some(Role::Status { vm: None, watch: true, json: false, control }) if is_interactive() => {
            watch(&control.path()?).map(|()| ExitCode::SUCCESS).map_err(Into::into)
        }
        Some(Role::Status { vm, watch, json, control }) => show_status(vm.as_deref(), watch, json, control),
        Some(Role::Set { vm, words, control }) => {
            operate(broker::set(&control.path_of_vm(&vm)?, &vm, &words))
        }
        Some(Role::Kill { context, control }) => {
            operate(broker::kill(&control.path_of_context(&context)?, &context))
        }
        Some(Role::Restart { context, control }) => {
            operate(broker::restart(&control.path_of_context(&context)?, &context))
        }
        Some(Role::SwapOut { context, control }) => {
            operate(broker::swap_out(&control.path_of_context(&context)?, &context))
        }
        Some(Role::Move { context, gpu, from, control }) => {
            operate(broker::move_to(&control.path_of_context(&context)?, &context, gpu, from))
        }
        Some(Role::Drain { gpu, control }) => operate(broker::drain(&control.path()?, &gpu)),
        Some(Role::Undrain { gpu, control }) => operate(broker::undrain(&control.path()?, &gpu)),
        Some(Role::Reload { now, dry_run, control }) => {
            operate(broker::reload(&control.path_of_broker(), now, dry_run))
        }
        Some(Role::Upgrade { control }) => operate(broker::upgrade(&control.path_of_broker())),
        Some(Role::Trace { vm, seconds, output, names, max_events, control }) => {
            let socket = control.path_of_vm(&vm)?;
            let wanted = trace::Wanted { vm, seconds, output, names, events_max: max_events };
            trace::take(&socket, &wanted).map(|()| ExitCode::SUCCESS).map_err(Into::into)
        }
        Some(Role::Recipe(recipe)) => recipe.print(),
        Some(Role::Doctor(doctor)) => diagnosis::run(doctor),
        Some(Role::Worker { child }) => become_worker(child),
        Some(Role::Launcher { child, exe, cgroup, vm_name, max_worker_data }) => {
            become_launcher(child, exe, cgroup.as_deref(), vm_name.as_deref(), max_worker_data)
        }
        Some(Role::Probe { child }) => become_probe(child),
    }
}

/// Shows the status of the named daemon, of the one that has the VM, or of all.
fn show_status(vm: Option<&str>, watch: bool, json: bool, control: Control) -> anyhow::Result<ExitCode> {
    let watch = if watch { Watch::EverySecond } else { Watch::Once };
    operate(match (vm, control.control_socket) {
        (None, None) => broker::show_all(json, watch),
        (vm, Some(socket)) => broker::show_status(&socket, vm, json, watch),
        (Some(vm), None) => broker::show_status(&broker::daemon_of(vm)?, Some(vm), json, watch),
    })
}

/// Returns whether the log has begun, and takes errors: it tells time and VM with them.
fn is_logging() -> bool {
    log::log_enabled!(target: LOG, log::Level::Error)
}

/// Serves one VM. A failure below a broker names the VM.
fn become_device(options: Serve, follows: bool) -> anyhow::Result<ExitCode> {
    if follows && !options.under_broker {
        bail!("--take-over needs --config: only a broker can be followed");
    }
    let name = options.vm_name.clone().filter(|_| options.under_broker);
    serve_vm(options, follows).map_err(|error| match name.filter(|_| !is_logging()) {
        Some(name) => error.context(format!("VM {name}")),
        None => error,
    })
}

fn serve_vm(options: Serve, follows: bool) -> anyhow::Result<ExitCode> {
    if options.print_seccomp {
        return print_system_calls();
    }
    if options.list_gpus {
        return list_gpus(&options);
    }
    // Descriptors that were inherited are taken before anything is opened.
    let broker = options.under_broker.then(only_standard_input).transpose();
    let broker = broker.context("no channel to the broker")?;
    // The broker kills a process whose channel is closed. This copy closes after the process has said the reason for its end.
    let copy = broker.as_ref().map(OwnedFd::try_clone).transpose()?;
    std::mem::forget(copy);
    let inherited = inherited_socket(&options)?;
    start_logging(options.log_level, Reader::Operators(options.vm_name.as_deref()));
    abort_on_panic();
    let protection = options.protection();
    let level = options.log_level.as_str().to_ascii_lowercase();
    let files = raise_descriptor_limit()?;
    let (wanted, mut context_limits) = options.quotas.limits();
    let has_broker = options.under_broker || options.control_socket != ControlSocket::None;
    let mut limits = wanted.within_files(files, has_broker);
    if limits.resources < wanted.resources || limits.memory_pieces < wanted.memory_pieces {
        let (resources, pieces) = (limits.resources, limits.memory_pieces);
        log::warn!(target: LOG, "{files} open files leave the guest {resources} resources and {pieces} pieces of memory: raise the limit of open files (LimitNOFILE=, ulimit -Hn)");
    }
    let confinement = options.confinement.into();
    let (workers, worker_memory) = control_group(&options, follows)?.unzip();
    if options.quotas.host_memory.is_none() {
        // The kernel would end workers beyond that; this way programs are told that there is no more.
        let memory = worker_memory.flatten().unwrap_or(u64::MAX);
        limits.host_memory = limits.host_memory.min(memory - memory / 8);
    }
    let (exe, vm) = (options.exe.as_deref(), options.vm_name.as_deref());
    let data = options.quotas.worker_data(workers.is_some(), limits.host_memory);
    let launcher = Launcher::start(&confinement, exe, &level, workers.as_deref(), vm, data)
        .context("cannot start the launcher of workers")?;
    admit(&confinement, launcher.lacks())?;
    let broker = broker.map(serve::Broker::connect);
    let selected = options.select(&serve::probe(&launcher)?)?;
    let all_memory = selected.device_memory();
    let bound = options.quotas.bound_device_memory(all_memory, &mut limits, &mut context_limits);
    let device_memory = bound.map_or(all_memory, |bytes| bytes.min(all_memory));
    let serve::Selected { gpus, seen } = selected;
    let state = options.state_dir.clone().or_else(service::state_folder);
    let cache_key = serve::cache_key(state.as_deref()).context("cannot use the state folder")?;
    let manager = Manager::of_environment();
    // Before the socket file appears, which it does when all is ready: from then on another process may end this one.
    let signals = Some(serve::take_signals().context("cannot handle signals")?);
    let listen = listen(inherited, &options, follows)?;
    let one_vm = listen_for_operators(&options, &listen, limits.contexts, bound)?;
    if !follows {
        launcher.remove_at_end(listen.made_at(), one_vm.iter().flat_map(OneVm::files).collect())?;
    }
    waiting::start(&options.waiting_without);
    let host_memory = host_memory(options.swap_after.is_some() || options.await_room);
    sandbox::seal_device_process(&confinement).context("cannot confine the device process")?;
    warn_of_weakness(protection);
    let mut choices: Vec<_> =
        gpus.iter().map(|(_, choice)| GpuChoice { queues: options.queues, protection, ..*choice }).collect();
    let (window_size, advice) =
        serve::decide_window(&mut choices, options.window_size, options.maps_device_memory(), device_memory);
    let too_much = serve::more_than_there_is(bound, all_memory);
    let warnings = too_much.into_iter().chain(advice.map(|advice| advice.to_string()));
    warnings.for_each(|warning| log::warn!(target: LOG, "{warning}"));
    log_ready(&gpus[..seen], window_size);
    if options.queues.only_say_that_they_draw() {
        log::info!(target: LOG, "guests cannot draw with --queues nominal: programs that draw need --queues all");
    }
    let hangs = options.hangs.limits(gpus.iter().all(|(gpu, _)| gpu.is_software()));
    let own = one_vm.map(OneVm::serve).transpose().context("cannot serve operators")?;
    let broker = broker.or(own.map(serve::Broker::of_thread));
    let end = serve::serve(serve::Options {
        listen,
        window_size,
        num_scanouts: options.scanouts,
        exit_on_disconnect: options.exit_on_disconnect,
        gpus: choices,
        gpus_seen: seen,
        capset: Capset::default().to_bytes().to_vec(),
        signals,
        launcher,
        family: serve::family(&gpus),
        broker,
        manager,
        shared_gpus: gpus.into_iter().enumerate().map(|(at, (gpu, _))| shared(gpu, at >= seen)).collect(),
        limits,
        context_limits,
        hangs,
        frontend_timeout: options.frontend_timeout,
        restart_every: options.restart_every.map(|ms| Duration::from_millis(ms.into())),
        swap_every: options.swap_every.map(|ms| Duration::from_millis(ms.into())),
        swap_after: options.swap_after,
        awaits_room: options.await_room,
        checkpoint_after: options.checkpoint_after(),
        cache_key,
        host_memory,
        waiting_off: options.waiting_without,
    })
    .context("the device process cannot go on")?;
    Ok(match end {
        End::Asked => ExitCode::SUCCESS,
        End::Outdated => ExitCode::from(sandbox::START_AGAIN),
    })
}

/// The source of frontends, which a device process that `follows` another has from that one.
fn listen(inherited: Option<Listen>, options: &Serve, follows: bool) -> anyhow::Result<Listen> {
    Ok(match (inherited, &options.socket_path) {
        (Some(listen), _) => listen,
        (None, Some(path)) if follows => Listen::Successor(path.clone()),
        (None, Some(path)) => Listen::at(path, options.socket_access())?,
        (None, None) => bail!("one of --socket-path and --fd is needed, or a socket from systemd"),
    })
}

/// The host's memory, which the device process looks at before programs are swapped out. Says that it cannot, if programs are `swapped_out` without an
/// operator's command.
fn host_memory(swapped_out: bool) -> HostMemory {
    let memory = HostMemory::open();
    if swapped_out && memory.room().is_none() {
        log::info!(
            "/proc/meminfo cannot be read: programs are swapped out whether the host has memory for them or not"
        );
    }
    memory
}

/// Says which protections of guests from each other are off.
fn warn_of_weakness(protection: Protection) {
    let weaker = protection.weaker();
    if !weaker.is_empty() {
        log::warn!(target: LOG, "protections are off: {}", weaker.join(", "));
    }
}

/// Has a panic end the process: one that ended only a thread would leave the guest waiting for ever.
fn abort_on_panic() {
    std::panic::set_hook(Box::new(move |panic| {
        let thread = std::thread::current();
        let place = Backtrace::capture();
        let place =
            if place.status() == BacktraceStatus::Captured { format!("\n{place}") } else { String::new() };
        log::error!(target: LOG, "thread '{}' {panic}{place}", thread.name().unwrap_or("unnamed"));
        std::process::abort();
    }));
}

/// Makes the sockets for operators and collectors, unless a broker has them or an option wants none. Where the usual one cannot be made, the
/// daemon says so and does without.
fn listen_for_operators(
    options: &Serve,
    listen: &Listen,
    contexts: usize,
    device_memory: Option<u64>,
) -> anyhow::Result<Option<OneVm>> {
    let (metrics, access) = (options.metrics.clone(), options.operators_access());
    let needs_it = metrics.as_ref().map(|_| "--metrics").or(access.group.map(|_| "--control-socket-group"));
    let (path, is_meant) = match &options.control_socket {
        _ if options.under_broker => return Ok(None),
        ControlSocket::None => match needs_it {
            None => return Ok(None),
            Some(option) => bail!(
                "{option} needs a control socket: leave out --control-socket none, or name a path with it"
            ),
        },
        ControlSocket::At(path) => (Ok(path.clone()), true),
        ControlSocket::Auto => (broker::control_socket_beside(listen.path()), needs_it.is_some()),
    };
    let (name, socket_path) = (options.vm_name.clone(), listen.path());
    let given = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    let vm = OneVmOptions { name, socket_path, given, device_memory, contexts };
    match path.and_then(|path| OneVm::listen(path, access, metrics, vm)) {
        Err(error) if !is_meant => {
            log::warn!(target: LOG, "no control socket: {error}; for `status` and the like, name a path with --control-socket at which the daemon can listen");
            Ok(None)
        }
        listens => Ok(Some(listens.context("cannot serve operators (--control-socket)")?)),
    }
}

/// The socket that this process was started with: the one that the command line names, or else the one that the service manager passes.
fn inherited_socket(options: &Serve) -> anyhow::Result<Option<Listen>> {
    let fd = match (options.fd, &options.socket_path) {
        (None, None) => match service::activation().context("LISTEN_FDS and LISTEN_PID")? {
            Activation::None => None,
            Activation::One(fd) => Some(fd),
            Activation::Several(count) => bail!(
                "systemd passes {count} sockets, but a VM has one: keep one ListenStream= in the socket unit, and a unit for each VM"
            ),
        },
        (fd, _) => fd,
    };
    Ok(fd.map(Listen::inherited).transpose()?)
}

fn log_ready(gpus: &[Chosen], window_size: u64) {
    let all = |what: fn(&Chosen) -> &str| gpus.iter().map(what).collect::<Vec<_>>().join(", ");
    let (gpu, driver) = (all(|(gpu, _)| &gpu.name), all(|(gpu, _)| &gpu.driver));
    let memory = gpus.first().map(|(_, choice)| serve::back_end(choice.memory));
    log::info!(target: LOG, gpu, driver, memory; "ready for a frontend, with a window of {} MiB", window_size >> 20);
    if window_size >= recipe::OVMF_LARGE {
        let size = window_size >> 30;
        log::info!(
            target: LOG,
            "the VM's firmware has to find room for this window: a VM with OVMF may need what `vhost-user-vulkan recipe` prints with --window-size {size}GiB"
        );
    }
}

/// Makes the control group of the workers, if there is one to divide, and moves this process into one beside it. Returns the group, and the memory
/// that it has.
fn control_group(options: &Serve, follows: bool) -> anyhow::Result<Option<(PathBuf, Option<u64>)>> {
    let mut limits = options.quotas.group_limits();
    let group = match &options.vm_cgroup {
        Some(group) => group.clone(),
        // The broker has none, and has said so.
        None if options.under_broker => return Ok(None),
        None => {
            let Some(delegated) = Delegated::claim_or_say(options.cgroup, sandbox::DEVICE_GROUP)? else {
                return Ok(None);
            };
            limits = limits.or(&delegated.part_of_each(&[limits]));
            delegated.path().to_owned()
        }
    };
    let workers =
        sandbox::enter_vm(&group, &limits, follows).context("cannot make the control group of workers")?;
    Ok(Some((workers, limits.memory)))
}

/// Serves several VMs, each by a device process of its own.
fn become_broker(file: VmsFile, check_only: bool, level: LevelFilter) -> anyhow::Result<()> {
    let settings = file.read()?;
    if check_only {
        let warnings = checked::warnings(&settings).into_iter();
        warnings.for_each(|warning| service::print_error(&format!("vhost-user-vulkan: {warning}")));
        let valid = format!("{}, valid\n", broker::number_of_vms(settings.vms.len()));
        return print(&valid).map(drop);
    }
    if service::activation().context("LISTEN_FDS and LISTEN_PID")? != Activation::None {
        bail!(
            "systemd passes a socket, but with --config the daemon makes the sockets of its VMs itself: use the service without a socket unit"
        );
    }
    start_logging(level, Reader::Operators(None));
    raise_descriptor_limit()?;
    broker::serve(settings, file).context("the broker cannot go on")
}

/// Follows a broker of an earlier program in the same process; or only says that this program could.
fn follow_broker(file: VmsFile, check_only: bool, level: LevelFilter) -> anyhow::Result<()> {
    let passed = Passed::read().context("cannot take over from the broker")?;
    if check_only {
        file.read()?;
        return print(&passed.rehearsed()).map(drop);
    }
    // The system names a program after the path by which it was executed, which is a descriptor's.
    let _ = rustix::thread::set_name(NAME);
    // Taken before this process opens any descriptor.
    let before = passed.inherit().context("cannot take over from the broker")?;
    start_logging(level, Reader::Operators(None));
    raise_descriptor_limit()?;
    broker::follow(before, file).context("the broker cannot go on")
}

fn operate(result: Result<(), ClientError>) -> anyhow::Result<ExitCode> {
    Ok(result.map(|()| ExitCode::SUCCESS)?)
}

fn shared(gpu: GpuInfo, spare: bool) -> SharedGpu {
    let software = gpu.is_software();
    let GpuInfo { uuid, name, pci_address, likeness, device_memory: memory, driver, .. } = gpu;
    SharedGpu { uuid, name, software, memory, pci_address, likeness, spare, driver }
}

/// Warns of the protections that a guest does not meet, or refuses to start without them.
fn admit(options: &sandbox::Options, lacks: &[String]) -> anyhow::Result<()> {
    let lacking = lacks.join(", ");
    match options.sandbox {
        SandboxMode::Strict if !lacks.is_empty() => {
            bail!(
                "this system does not offer the whole sandbox: no {lacking}; --sandbox=degraded goes without"
            )
        }
        SandboxMode::Degraded if !lacks.is_empty() => {
            log::warn!("DEGRADED SANDBOX: a guest that takes over a worker meets no {lacking}");
        }
        SandboxMode::None => {
            log::warn!("NO SANDBOX: a guest that takes over a worker can do what this daemon's user can");
        }
        SandboxMode::Strict | SandboxMode::Degraded => {}
    }
    if options.sandbox != SandboxMode::None && options.seccomp != SeccompMode::Kill {
        log::warn!("NO FILTER: system calls are not refused (--seccomp)");
    }
    Ok(())
}

/// Prints the GPUs. Messages of drivers and the daemon about them are not logged, unless the level of the log is higher than usual.
fn list_gpus(options: &Serve) -> anyhow::Result<ExitCode> {
    let level = match options.log_level {
        LevelFilter::Debug | LevelFilter::Trace => options.log_level,
        usual => usual.min(LevelFilter::Error),
    };
    start_logging(level, Reader::Operators(None));
    let (confinement, level) = (options.confinement.into(), level.as_str().to_ascii_lowercase());
    let launcher = Launcher::start(&confinement, options.exe.as_deref(), &level, None, None, None)
        .context("cannot start the launcher of the probe")?;
    admit(&confinement, launcher.lacks())?;
    let list = List::from(serve::probe(&launcher)?).to_string();
    print(&outside::lines_for_terminal(&format!("{list}\n")))
}

fn print_system_calls() -> anyhow::Result<ExitCode> {
    let kinds = [
        ("worker, software driver", Policy::of(DriverFamily::Software)?),
        ("worker, Mesa's drivers", Policy::of(DriverFamily::Mesa)?),
        ("worker, NVIDIA's driver", Policy::of(DriverFamily::Nvidia)?),
        ("device process", Policy::of_device_process()?),
        ("first process of a worker's namespace", Policy::of_init()?),
    ];
    let mut text = String::new();
    for (kind, policy) in kinds {
        let names = sandbox::system_calls(&policy.syscalls);
        let conditional = names.iter().filter(|name| name.ends_with('*')).count();
        let heading = format!("{kind}: {} ({conditional} only with certain arguments)", names.len());
        text += &format!("{heading}\n  {}\n", names.join(" "));
    }
    print(&text)
}

/// Prints the text that this program was asked for. A reader that is gone has had enough.
fn print(text: &str) -> anyhow::Result<ExitCode> {
    outside::print(text).context("cannot write")?;
    Ok(ExitCode::SUCCESS)
}

fn become_worker(child: Child) -> anyhow::Result<ExitCode> {
    let channel = start_child(child, Reader::DeviceProcess)?;
    waiting::processors::count_processors();
    sandbox::seal_child(&child.confinement.into(), child.family).context("cannot confine this worker")?;
    Ok(daemon::worker::run(channel))
}

fn become_probe(child: Child) -> anyhow::Result<ExitCode> {
    let channel = start_child(child, Reader::DeviceProcess)?;
    sandbox::seal_child(&child.confinement.into(), child.family).context("cannot confine the probe")?;
    let report: ProbeReport = vulkan::probe();
    channel.send(&report, None)?;
    Ok(ExitCode::SUCCESS)
}

fn become_launcher(
    child: Child,
    exe: Option<PathBuf>,
    cgroup: Option<&Path>,
    vm: Option<&str>,
    data: Option<u64>,
) -> anyhow::Result<ExitCode> {
    let channel = start_child(child, Reader::Operators(vm))?;
    let level = child.log_level.as_str().to_ascii_lowercase();
    let program = Program::new(exe, child.confinement.into(), level, cgroup, data);
    Ok(sandbox::run_launcher(channel, &mut program.context("no program to start")?))
}

fn start_child(child: Child, reader: Reader<'_>) -> anyhow::Result<Channel> {
    let channel = child
        .channel_fd
        .map_or_else(only_standard_input, inherited)
        .context("no channel to the device process")?;
    start_logging(child.log_level, reader);
    Ok(Channel::from_socket(channel))
}

/// Every blob takes a descriptor or two, and the usual limit is 1024. Returns how many there may be now.
fn raise_descriptor_limit() -> anyhow::Result<u64> {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).context("cannot raise the limit of open files")?;
    Ok(limit.current.unwrap_or(u64::MAX))
}
