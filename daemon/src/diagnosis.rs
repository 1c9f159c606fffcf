//! `doctor`: gives the checks (the crate `doctor`) the facts that decide when the daemon serves, found out by the very parts that decide then.

use crate::cli::{Doctor, Serve};
use anyhow::Context;
use clap::FromArgMatches;
use config::{DeviceLimits, GpuInfo, MemoryBackEnd};
use daemon::broker::{self, Answer, Request, Settings, VmSettings, VmsFile};
use daemon::sandbox::{self, Launcher, SandboxMode};
use daemon::serve;
use doctor::bug_report::BugReport;
use doctor::host::{Configuration, Descriptors, Facts, Given, Gpu, Question, Sandbox, Vm};
use doctor::report::{Place, Report};
use doctor::system::System;
use rustix::process::{Resource, getrlimit};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

/// The file that is checked if it exists and no other is named.
const CONFIGURATION: &str = "/etc/vhost-user-vulkan/vms.toml";

/// Time that daemons have to say how they are, all of them together.
const PATIENCE: Duration = Duration::from_secs(20);
/// Most daemons that are asked.
const DAEMONS_MAX: usize = 32;

/// Checks the host, or the VM that this is, and prints the findings, or writes a report with them.
pub(crate) fn run(options: Doctor) -> anyhow::Result<ExitCode> {
    let system = System::below(&options.root);
    // What cannot be written is said before the checks, which take a while.
    let written = options.report.as_deref().map(ReportFile::create).transpose()?;
    let report = match options.vm {
        true => Report::new(Place::Vm, doctor::guest::check(&doctor::guest::Facts::gather(&system))),
        false => {
            let given = given(&system, &options);
            let Doctor { qemu, socket_path: socket, vmm_user, .. } = options.clone();
            let facts = Facts::gather(&system, &Question { qemu, socket, vmm_user }, given);
            Report::new(Place::Host, doctor::host::check(&facts))
        }
    };
    match written {
        None => Ok(report.print(options.json)),
        Some(file) => file.write(&bug_report(&system, &options, &report)),
    }
}

/// Returns the text for a bug report. Of a VM it has versions and findings, of a host what is set up and runs there as well.
fn bug_report(system: &System, options: &Doctor, findings: &Report) -> String {
    let program = concat!("vhost-user-vulkan ", env!("CARGO_PKG_VERSION"));
    let mut report = BugReport::of(system, program, findings);
    if !options.vm {
        report.add_settings(configuration(system, options).as_deref());
        for (path, status) in statuses(options) {
            report.add(&format!("status of {}", path.display()), &status);
        }
        report.add_log();
    }
    report.text()
}

/// Returns what the daemons say that run: those that are named, or all that are found. None is waited for beyond a time.
fn statuses(options: &Doctor) -> Vec<(PathBuf, String)> {
    let named = options.control.control_socket.clone();
    let sockets = named.map_or_else(broker::control_sockets, |path| vec![path]);
    let asked: Vec<_> = sockets.into_iter().take(DAEMONS_MAX).map(|path| (path.clone(), asked(path))).collect();
    let patience = Instant::now() + PATIENCE;
    let answer = |answer: Receiver<String>| {
        let left = patience.saturating_duration_since(Instant::now());
        answer.recv_timeout(left).unwrap_or_else(|_| format!("no answer within {} s", PATIENCE.as_secs()))
    };
    asked.into_iter().map(|(path, status)| (path, answer(status))).collect()
}

/// Asks a daemon for its status, on a thread of its own.
fn asked(socket: PathBuf) -> Receiver<String> {
    let (answer, answers) = mpsc::channel();
    std::thread::spawn(move || {
        let status = broker::status_table(&socket).unwrap_or_else(|error| error.to_string());
        // It may have taken too long.
        let _ = answer.send(status);
    });
    answers
}

/// The place of a report that is to be written.
enum ReportFile {
    StandardOutput,
    New(PathBuf, File),
}

impl ReportFile {
    fn create(path: &Path) -> anyhow::Result<Self> {
        if path == Path::new("-") {
            return Ok(Self::StandardOutput);
        }
        let made = outside::create_new(path);
        let made = made.with_context(|| {
            format!("cannot make the report {}: name a new file in a folder that you may write to, or `-`", path.display())
        });
        Ok(Self::New(path.to_owned(), made?))
    }

    fn write(self, report: &str) -> anyhow::Result<ExitCode> {
        let told = match self {
            Self::StandardOutput => outside::print(report),
            Self::New(path, mut file) => {
                file.write_all(report.as_bytes())
                    .with_context(|| format!("cannot write {}: free space, and remove it", path.display()))?;
                let text = format!("{}: read it before you send it; docs/reporting.md says where to\n", path.display());
                outside::print(&outside::lines_for_terminal(&text))
            }
        };
        told.context("cannot write")?;
        Ok(ExitCode::SUCCESS)
    }
}

/// The file of several VMs that is checked, if there is one.
fn configuration(system: &System, options: &Doctor) -> Option<PathBuf> {
    let default = || Some(PathBuf::from(CONFIGURATION)).filter(|path| system.has(path));
    options.config.clone().or_else(default)
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
    let settings = configuration(system, options).map(|path| {
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
    Gpu { name: format!("{} ({})", info.name, info.driver), software: info.software, usable }
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
