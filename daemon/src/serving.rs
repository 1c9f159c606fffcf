//! Serves one VM: from its options to the device process, which an operator or a broker has started.

use crate::cli::Own;
use crate::cli::values::ControlSocket;
use crate::start::{LOG, admit, is_logging, raise_descriptor_limit};
use anyhow::{Context, bail};
use config::{Amount, GpuChoice, GpuInfo, Protection};
use daemon::broker::{self, OneVm, OneVmOptions};
use daemon::ipc::{Channel, SharedGpu};
use daemon::options::{Start, VmGroup, VmOptions, level_name};
use daemon::recipe;
use daemon::sandbox::{self, Delegated, Launcher, only_standard_input};
use daemon::serve::{self, Chosen, End, Listen};
use daemon::service::{self, Activation, Manager, Reader, start_logging};
use outside::HostMemory;
use protocol::venus::capset::Capset;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::ExitCode;

/// The process that has started this one.
enum Parent {
    /// An operator's shell or the service manager, with options that a VM of several cannot have.
    Operator(Own),
    /// The broker of several VMs.
    Broker { channel: OwnedFd, awaits_room: bool, group: Option<VmGroup>, follows: bool },
}

impl Parent {
    /// Returns whether this process follows another, which serves the VM's frontend.
    fn follows(&self) -> bool {
        matches!(self, Self::Broker { follows: true, .. })
    }

    /// Returns whether contexts hold no memory of the GPUs before the broker tells the amount that they may hold.
    fn awaits_room(&self) -> bool {
        matches!(self, Self::Broker { awaits_room: true, .. })
    }

    /// Returns whether a broker schedules the GPU, or counts its time.
    fn has_broker(&self) -> bool {
        !matches!(self, Self::Operator(Own { control_socket: ControlSocket::None, .. }))
    }

    /// Returns the options that only an operator has.
    fn own(&self) -> Option<&Own> {
        match self {
            Self::Operator(own) => Some(own),
            Self::Broker { .. } => None,
        }
    }
}

/// Serves one VM with an operator's options.
pub(crate) fn for_operator(options: VmOptions, own: Own) -> anyhow::Result<ExitCode> {
    serve(options, own.vm_name.clone(), Parent::Operator(own))
}

/// Serves one VM of several with the options that the broker sends. A failure names the VM.
pub(crate) fn for_broker(name: &str) -> anyhow::Result<ExitCode> {
    started_by_broker(name).map_err(|error| match is_logging() {
        true => error,
        false => error.context(format!("VM {name}")),
    })
}

fn started_by_broker(name: &str) -> anyhow::Result<ExitCode> {
    // The inherited descriptor is taken over before any other is opened.
    let channel = only_standard_input().context("no channel to the broker")?;
    // The broker kills a process whose channel is closed. This copy stays open until the process has reported the reason for its end.
    std::mem::forget(channel.try_clone()?);
    let channel = Channel::from_socket(channel);
    let (Start { options, awaits_room, group, follows }, _) =
        channel.receive().context("the broker sends no options")?;
    let broker = Parent::Broker { channel: channel.into_socket(), awaits_room, group, follows };
    serve(options, Some(name.to_owned()), broker)
}

fn serve(options: VmOptions, name: Option<String>, parent: Parent) -> anyhow::Result<ExitCode> {
    let inherited = parent.own().map(|own| inherited_socket(own, &options)).transpose()?.flatten();
    start_logging(options.log_level, Reader::Operators(name.as_deref()));
    abort_on_panic();
    let protection = options.protection();
    let level = level_name(options.log_level);
    let files = raise_descriptor_limit()?;
    let (wanted, mut context_limits) = options.quotas.limits();
    let mut limits = wanted.within_files(files, parent.has_broker());
    if limits.resources < wanted.resources || limits.memory_pieces < wanted.memory_pieces {
        let (resources, pieces) = (limits.resources, limits.memory_pieces);
        log::warn!(target: LOG, "with a limit of {files} open files, the guest gets {resources} resources and {pieces} pieces of memory: raise the limit of open files (LimitNOFILE=, ulimit -Hn)");
    }
    let confinement = options.confinement.into();
    let (workers, worker_memory) = control_group(&options, &parent)?.unzip();
    if options.quotas.host_memory.is_none() {
        // The kernel would kill workers beyond this limit. With a lower limit, programs are told that no memory is left.
        let memory = worker_memory.flatten().unwrap_or(u64::MAX);
        limits.host_memory = limits.host_memory.min(memory - memory / 8);
    }
    let exe = parent.own().and_then(|own| own.exe.as_deref());
    let data = options.quotas.worker_data(workers.is_some(), limits.host_memory);
    let launcher = Launcher::start(&confinement, exe, &level, workers.as_deref(), name.as_deref(), data)
        .context("cannot start the launcher of workers")?;
    admit(&confinement, launcher.lacks())?;
    let mut manager = Manager::of_environment();
    let gpus = serve::probe(&launcher, options.driver_timeout, |late| {
        log::warn!(target: LOG, "{late}");
        manager.starts_late();
    })?;
    let selected = serve::select(&gpus, &options)?;
    let all_memory = selected.device_memory();
    let bound = options.quotas.bound_device_memory(all_memory, &mut limits, &mut context_limits);
    let device_memory = bound.map_or(all_memory, |bytes| bytes.min(all_memory));
    let serve::Selected { gpus, seen } = selected;
    let state = options.state_dir.clone().or_else(service::state_folder);
    let cache_key = serve::cache_key(state.as_deref()).context("cannot use the state folder")?;
    // This comes before the socket file appears, which shows that all is ready: from then on, another process may end this one.
    let signals = Some(serve::take_signals().context("cannot handle signals")?);
    let listen = listen(inherited, &options, parent.follows())?;
    let one_vm = match parent.own() {
        Some(own) => {
            let vm = one_vm_options(name, &options, listen.path(), (limits.contexts, bound));
            listen_for_operators(own, &listen, vm)?
        }
        None => None,
    };
    if !parent.follows() {
        launcher.remove_at_end(listen.made_at(), one_vm.iter().flat_map(OneVm::files).collect())?;
    }
    waiting::start(&options.waiting_without);
    let host_memory = host_memory(options.swap_after.is_some() || parent.awaits_room());
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
    let (exit_on_disconnect, awaits_room) =
        (parent.own().is_some_and(|own| own.exit_on_disconnect), parent.awaits_room());
    let broker = match parent {
        Parent::Broker { channel, .. } => Some(serve::Broker::connect(channel)),
        Parent::Operator(_) => {
            let own = one_vm.map(OneVm::serve).transpose().context("cannot serve operators")?;
            own.map(serve::Broker::of_thread)
        }
    };
    let end = serve::serve(serve::Options {
        listen,
        window_size,
        exit_on_disconnect,
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
        awaits_room,
        checkpoint_after: options.checkpoint_after(),
        cache_key,
        host_memory,
        vm: options,
    })
    .context("the device process cannot go on")?;
    Ok(match end {
        End::Asked => ExitCode::SUCCESS,
        End::Outdated => ExitCode::from(sandbox::START_AGAIN),
    })
}

/// Returns the source of frontends. A device process that `follows` another gets the frontend from that process.
fn listen(inherited: Option<Listen>, options: &VmOptions, follows: bool) -> anyhow::Result<Listen> {
    Ok(match (inherited, &options.socket_path) {
        (Some(listen), _) => listen,
        (None, Some(path)) if follows => Listen::Successor(path.clone()),
        (None, Some(path)) => Listen::at(path, options.socket_access())?,
        (None, None) => bail!("one of --socket-path and --fd is needed, or a socket from systemd"),
    })
}

/// Returns the host's memory, which the device process checks before programs are swapped out. Warns if this is impossible and programs are
/// `swapped_out` without an operator's command.
fn host_memory(swapped_out: bool) -> HostMemory {
    let memory = HostMemory::open();
    if swapped_out && memory.room().is_none() {
        log::info!(
            target: LOG,
            "/proc/meminfo cannot be read: programs are swapped out whether the host has memory for them or not"
        );
    }
    memory
}

/// Warns of the protections of guests from each other that are off.
fn warn_of_weakness(protection: Protection) {
    let weaker = protection.weaker();
    if !weaker.is_empty() {
        log::warn!(target: LOG, "protections are off: {}", weaker.join(", "));
    }
}

/// Has a panic end the process: a panic that ended only a thread would leave the guest waiting for ever.
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

/// Returns the VM as its operators see it, with its socket, and the numbers of contexts and bytes of device memory that it may have.
fn one_vm_options(
    name: Option<String>,
    options: &VmOptions,
    socket_path: Option<PathBuf>,
    (contexts, device_memory): (usize, Option<u64>),
) -> OneVmOptions {
    let mut options = VmOptions { socket_path, ..options.clone() };
    options.quotas.device_memory = device_memory.map(Amount::Bytes);
    options.quotas.max_contexts = Some(contexts);
    let given = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    OneVmOptions { name, options, given }
}

/// Makes the sockets for operators and collectors, unless an option wants none. If the usual socket cannot be made, the daemon logs this and goes on
/// without it.
fn listen_for_operators(own: &Own, listen: &Listen, vm: OneVmOptions) -> anyhow::Result<Option<OneVm>> {
    let (metrics, access) = (own.metrics.clone(), own.operators_access());
    let needs_it = metrics.as_ref().map(|_| "--metrics").or(access.group.map(|_| "--control-socket-group"));
    let (path, is_meant) = match &own.control_socket {
        ControlSocket::None => match needs_it {
            None => return Ok(None),
            Some(option) => bail!(
                "{option} needs a control socket: leave out --control-socket none, or name a path with it"
            ),
        },
        ControlSocket::At(path) => (Ok(path.clone()), true),
        ControlSocket::Auto => (broker::control_socket_beside(listen.path()), needs_it.is_some()),
    };
    match path.and_then(|path| OneVm::listen(path, access, metrics, vm)) {
        Err(error) if !is_meant => {
            log::warn!(target: LOG, "no control socket: {error}; for `status` and the like, name a path with --control-socket at which the daemon can listen");
            Ok(None)
        }
        listens => Ok(Some(listens.context("cannot serve operators (--control-socket)")?)),
    }
}

/// Returns the socket that this process was started with: the one that the command line names, or else the one that the service manager passes.
fn inherited_socket(own: &Own, options: &VmOptions) -> anyhow::Result<Option<Listen>> {
    let fd = match (own.fd, &options.socket_path) {
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

/// Makes the control group of the workers, if this process has a group to divide, and moves this process into a group beside it. Returns the workers'
/// group, and the memory that it has.
fn control_group(options: &VmOptions, parent: &Parent) -> anyhow::Result<Option<(PathBuf, Option<u64>)>> {
    let own = options.quotas.group_limits();
    let (group, limits) = match parent {
        Parent::Broker { group: Some(VmGroup { path, part }), .. } => (path.clone(), own.or(part)),
        // The broker has no group to divide, and has logged this.
        Parent::Broker { group: None, .. } => return Ok(None),
        Parent::Operator(Own { cgroup, .. }) => {
            let Some(delegated) = Delegated::claim_or_say(*cgroup, sandbox::DEVICE_GROUP)? else {
                return Ok(None);
            };
            (delegated.path().to_owned(), own.or(&delegated.part_of_each(&[own])))
        }
    };
    let workers = sandbox::enter_vm(&group, &limits, parent.follows())
        .context("cannot make the control group of workers")?;
    Ok(Some((workers, limits.memory)))
}

fn shared(gpu: GpuInfo, spare: bool) -> SharedGpu {
    let software = gpu.is_software();
    let GpuInfo { uuid, name, pci_address, likeness, device_memory: memory, driver, .. } = gpu;
    SharedGpu { uuid, name, software, memory, pci_address, likeness, spare, driver }
}
