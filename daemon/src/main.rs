//! `vhost-user-vulkan`: reads the command line, starts logging, and becomes the broker of several VMs, the
//! device process of one VM, its launcher, a worker, a probe, or an operator's end of the broker.

mod checked;
mod cli;
mod diagnosis;
mod interpose;
mod serving;
mod start;

use anyhow::{Context, bail};
use cli::mistakes::one_line;
use cli::{Child, Cli, Control, Own, Role, Serve};
use daemon::broker::{self, ClientError, Passed, VmsFile, Watch};
use daemon::ipc::{Channel, DriverFamily, ProbeReport};
use daemon::options::{VmOptions, level_name};
use daemon::sandbox::{self, Launcher, Policy, Program, inherited, only_standard_input};
use daemon::serve::{self, List};
use daemon::service::{self, Activation, Reader, start_logging};
use daemon::trace;
use daemon::watch::{is_interactive, watch};
use log::LevelFilter;
use start::{LOG, admit, is_logging, raise_descriptor_limit};
use std::ffi::CStr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Answer to `--print-capabilities` (QEMU's schema `vhost-user.json`).
const CAPABILITIES: &str = r#"{ "type": "gpu", "features": [] }"#;

/// The name of the process: as much of the program's name as the system keeps.
const NAME: &CStr = c"vhost-user-vulk";

fn main() -> ExitCode {
    // By QEMU's conventions, this option counts whatever else is on the command line.
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

/// The exit status if the command line is wrong.
const USAGE_ERROR: u8 = 2;

fn become_what_is_wanted(
    Cli { role, config, check_config, take_over, serve, .. }: Cli,
) -> anyhow::Result<ExitCode> {
    match role {
        None => match config {
            Some(file) => {
                let level = serve.vm.log_level;
                let serve_all = if take_over { follow_broker } else { become_broker };
                serve_all(VmsFile::new(file, level), check_config, level).map(|()| ExitCode::SUCCESS)
            }
            None => become_device(serve),
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
        Some(Role::Drain { gpu, dry_run: true, control }) => {
            operate(broker::plan_drain(&control.path()?, &gpu))
        }
        Some(Role::Drain { gpu, dry_run: false, control }) => operate(broker::drain(&control.path()?, &gpu)),
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
        Some(Role::Device { vm_name }) => serving::for_broker(&vm_name),
        Some(Role::Worker { child }) => become_worker(child),
        Some(Role::Launcher { child, exe, cgroup, vm_name, max_worker_data }) => {
            become_launcher(child, exe, cgroup.as_deref(), vm_name.as_deref(), max_worker_data)
        }
        Some(Role::Probe { child }) => become_probe(child),
    }
}

/// Shows the status of the named daemon, of the one that has the VM, or of all daemons.
fn show_status(vm: Option<&str>, watch: bool, json: bool, control: Control) -> anyhow::Result<ExitCode> {
    let watch = if watch { Watch::EverySecond } else { Watch::Once };
    operate(match (vm, control.control_socket) {
        (None, None) => broker::show_all(json, watch),
        (vm, Some(socket)) => broker::show_status(&socket, vm, json, watch),
        (Some(vm), None) => broker::show_status(&broker::daemon_of(vm)?, Some(vm), json, watch),
    })
}

/// Serves one VM, or, if an option asks for it, prints information instead.
fn become_device(Serve { vm, own }: Serve) -> anyhow::Result<ExitCode> {
    match own {
        Own { print_seccomp: true, .. } => print_system_calls(),
        Own { list_gpus: true, .. } => list_gpus(&vm, own.exe.as_deref()),
        own => serving::for_operator(vm, own),
    }
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

/// Follows a broker of an earlier program in the same process, or only reports that this program could.
fn follow_broker(file: VmsFile, check_only: bool, level: LevelFilter) -> anyhow::Result<()> {
    let passed = Passed::read().context("cannot take over from the broker")?;
    if check_only {
        file.read()?;
        return print(&passed.rehearsed()).map(drop);
    }
    // The system names a program after the path by which it was executed, which is a descriptor's.
    let _ = rustix::thread::set_name(NAME);
    // The descriptors are taken over before this process opens any other.
    let before = passed.inherit().context("cannot take over from the broker")?;
    start_logging(level, Reader::Operators(None));
    raise_descriptor_limit()?;
    broker::follow(before, file).context("the broker cannot go on")
}

fn operate(result: Result<(), ClientError>) -> anyhow::Result<ExitCode> {
    Ok(result.map(|()| ExitCode::SUCCESS)?)
}

/// Prints the GPUs. Messages of drivers and the daemon about them are not logged, unless the level of the log is higher than usual.
fn list_gpus(options: &VmOptions, exe: Option<&Path>) -> anyhow::Result<ExitCode> {
    let level = match options.log_level {
        LevelFilter::Debug | LevelFilter::Trace => options.log_level,
        usual => usual.min(LevelFilter::Error),
    };
    start_logging(level, Reader::Operators(None));
    let (confinement, level) = (options.confinement.into(), level_name(level));
    let launcher = Launcher::start(&confinement, exe, &level, None, None, None)
        .context("cannot start the launcher of the probe")?;
    admit(&confinement, launcher.lacks())?;
    let list = List::from(serve::probe(&launcher, options.driver_timeout, serve::Late::tell)?).to_string();
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

/// Prints the text that this program was asked for. It is no error if the reader is gone: it has had enough.
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
    let report: ProbeReport = vulkan::probe().map_err(|error| error.to_string());
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
    let level = level_name(child.log_level);
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
