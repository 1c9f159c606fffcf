//! `doctor`: gives the checks (the crate `doctor`) the facts that decide when the daemon serves, found out by the very parts that decide then.

use crate::cli::{Doctor, Serve};
use clap::FromArgMatches;
use config::{DeviceLimits, GpuInfo, MemoryBackEnd};
use daemon::broker::{self, Answer, Request, Settings, VmSettings, VmsFile};
use daemon::sandbox::{self, Launcher, SandboxMode};
use daemon::serve;
use doctor::host::{Configuration, Descriptors, Facts, Given, Gpu, Question, Sandbox, Vm};
use doctor::report::{Place, Report};
use doctor::system::System;
use rustix::process::{Resource, getrlimit};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The file that is checked if it exists and no other is named.
const CONFIGURATION: &str = "/etc/vhost-user-vulkan/vms.toml";

/// Checks the host, or the VM that this is, and prints the findings.
pub(crate) fn run(options: Doctor) -> ExitCode {
    let system = System::below(&options.root);
    let json = options.json;
    let report = match options.vm {
        true => Report::new(Place::Vm, doctor::guest::check(&doctor::guest::Facts::gather(&system))),
        false => {
            let given = given(&system, &options);
            let Doctor { qemu, socket_path: socket, vmm_user, .. } = options;
            let facts = Facts::gather(&system, &Question { qemu, socket, vmm_user }, given);
            Report::new(Place::Host, doctor::host::check(&facts))
        }
    };
    report.print(json)
}

fn given(system: &System, options: &Doctor) -> Given {
    let (sandbox, gpus) = match Launcher::start(&options.confinement.into(), None, "error", None, None, None)
    {
        Err(error) => (Sandbox::NoLauncher(error.to_string()), Err(error.to_string())),
        Ok(launcher) => {
            let strict = options.confinement.sandbox == SandboxMode::Strict;
            let tried = Sandbox::Tried { lacks: launcher.lacks().to_vec(), strict };
            (tried, serve::probe(&launcher).map_err(|error| error.to_string()))
        }
    };
    let default = || Some(PathBuf::from(CONFIGURATION)).filter(|path| system.has(path));
    let file = options.config.clone().or_else(default);
    let settings = file.map(|path| {
        let read = VmsFile::new(system.path(&path), Serve::command(), "info".into()).read();
        (path, read.map_err(|problem| problem.to_string()))
    });
    let configured =
        settings.as_ref().and_then(|(_, settings)| Some(settings.as_ref().ok()?.control_socket.clone()));
    let control = match (&options.control.control_socket, configured) {
        // A file that names none leaves it to the broker's environment, which is not this one's.
        (None, Some(configured)) if configured.exists() => configured,
        _ => options.control.clone().path_of_broker(),
    };
    let vms = |settings: Settings| settings.vms.iter().map(|vm| self::vm(vm, gpus.as_deref().ok())).collect();
    let configuration = settings.map(|(path, settings)| Configuration { path, vms: settings.map(vms) });
    Given {
        sandbox,
        landlock: sandbox::landlock_version(),
        configuration,
        gpus: gpus.map(|gpus| gpus.iter().map(gpu).collect()),
        descriptors: descriptors(),
        broker: control.exists().then(|| (control.clone(), answer(&control))),
    }
}

fn gpu(info: &GpuInfo) -> Gpu {
    let usable = info.choice(None).map(|choice| match choice.memory {
        MemoryBackEnd::Memfd => "memory files that its driver imports".to_owned(),
        MemoryBackEnd::DmaBuf => "dma-bufs that its driver exports".to_owned(),
    });
    Gpu { name: format!("{} ({})", info.name, info.driver), software: info.is_software(), usable }
}

fn descriptors() -> Descriptors {
    let limit = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    let wanted = DeviceLimits::default();
    Descriptors { limit, wanted: wanted.resources, left: wanted.within_files(limit).resources }
}

fn vm(vm: &VmSettings, gpus: Option<&[GpuInfo]>) -> Vm {
    let matches = Serve::command().no_binary_name(true).try_get_matches_from(&vm.arguments);
    let read = matches.and_then(|matches| Serve::from_arg_matches(&matches));
    let (socket, state, gpus) = match &read {
        // Read once already, as part of the file.
        Err(error) => (None, None, Err(error.to_string())),
        Ok(serve) => {
            let chosen = gpus.map_or(Ok(()), |gpus| {
                serve::select(gpus, &serve.gpu, &serve.spare_gpu, serve.memory.0).map(drop)
            });
            (serve.socket_path.clone(), serve.state_dir.clone(), chosen.map_err(|error| error.to_string()))
        }
    };
    Vm { name: vm.name.clone(), socket, state, gpus }
}

/// Asks the broker how many VMs it has.
fn answer(control: &Path) -> Result<usize, String> {
    match broker::ask(control, &Request::Status) {
        Ok(Answer::Status(status)) => Ok(status.vms.len()),
        Ok(_) => Err(format!("{}: no status", control.display())),
        Err(error) => Err(error.to_string()),
    }
}
