//! `doctor`: gives the checks (the crate `doctor`) the facts that matter when the daemon serves, determined by the same parts of the program as then.

use crate::cli::{Doctor, VERSION};
use anyhow::Context;
use config::{DeviceLimits, GpuChoice, GpuInfo, MemoryBackEnd};
use daemon::broker::{self, Settings, VmSettings, VmsFile};
use daemon::options::VmOptions;
use daemon::sandbox::{self, Launcher, SandboxMode};
use daemon::serve::{self, Advice, Late, NoGpu, Selected};
use doctor::bug_report::BugReport;
use doctor::host::{Configuration, Descriptors, Facts, Given, Gpu, Question, Sandbox, Small, Vm, Window};
use doctor::report::{Place, Report};
use doctor::system::System;
use log::LevelFilter;
use outside::Span;
use rustix::process::{Resource, getrlimit};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

/// The file that is checked if it exists and the operator names no other.
const CONFIGURATION: &str = "/etc/vhost-user-vulkan/vms.toml";

/// The time that all daemons together have to report their status.
const PATIENCE: Duration = Duration::from_secs(20);
/// Most daemons that are asked.
const DAEMONS_MAX: usize = 32;

/// Checks the host, or the VM inside which this program runs, and prints the findings, or writes a report with them.
pub(crate) fn run(options: Doctor) -> anyhow::Result<ExitCode> {
    let system = System::below(&options.root);
    // A report that cannot be written is an error before the checks, which take a while.
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

/// Returns the text for a bug report. For a VM the text has versions and findings, for a host also its settings and running daemons.
fn bug_report(system: &System, options: &Doctor, findings: &Report) -> String {
    let program = format!("vhost-user-vulkan {}", *VERSION);
    let mut report = BugReport::of(system, &program, findings);
    if !options.vm {
        report.add_settings(configuration(system, options).as_deref());
        let statuses = statuses(options);
        if statuses.is_empty() {
            report.add(
                "status",
                "no daemon was found that lets this user ask it; as root (sudo) all are found",
            );
        }
        for (path, status) in statuses {
            report.add(&format!("status of {}", path.display()), &status);
        }
        report.add_log();
    }
    report.text()
}

/// Returns the answers of the running daemons: of the named one, or of all that are found. The wait for them is bounded.
fn statuses(options: &Doctor) -> Vec<(PathBuf, String)> {
    let named = options.control.control_socket.clone();
    let sockets = named.map_or_else(broker::control_sockets, |path| vec![path]);
    let asked: Vec<_> =
        sockets.into_iter().take(DAEMONS_MAX).map(|path| (path.clone(), asked(path))).collect();
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
        let failed = |error| format!("{error}. Run it as root (sudo) if this user may not ask");
        let status = broker::status_table(&socket).unwrap_or_else(failed);
        // The receiver may have stopped waiting.
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
            format!(
                "cannot make the report {}: name a new file in a folder that you may write to, or `-`",
                path.display()
            )
        });
        Ok(Self::New(path.to_owned(), made?))
    }

    fn write(self, report: &str) -> anyhow::Result<ExitCode> {
        let told = match self {
            Self::StandardOutput => outside::print(report),
            Self::New(path, mut file) => {
                file.write_all(report.as_bytes())
                    .with_context(|| format!("cannot write {}: free space, and remove it", path.display()))?;
                let text = format!(
                    "{}: read it before you send it; docs/reporting.md says where to\n",
                    path.display()
                );
                outside::print(&outside::lines_for_terminal(&text))
            }
        };
        told.context("cannot write")?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Returns the absolute path of the file of several VMs that is checked, if there is one.
fn configuration(system: &System, options: &Doctor) -> Option<PathBuf> {
    let default = || Some(PathBuf::from(CONFIGURATION)).filter(|path| system.has(path));
    let named =
        options.config.as_ref().map(|path| std::path::absolute(path).unwrap_or_else(|_| path.clone()));
    named.or_else(default)
}

fn given(system: &System, options: &Doctor) -> Given {
    let settings = configuration(system, options).map(|path| {
        let read = VmsFile::new(system.path(&path), LevelFilter::Info).read();
        (path, read.map_err(|problem| problem.to_string()))
    });
    let of_file = |settings: &Settings| settings.vms.iter().map(|vm| vm.options.driver_timeout).max();
    let of_file = settings.as_ref().and_then(|(_, settings)| of_file(settings.as_ref().ok()?));
    let driver_timeout = options.driver_timeout.or(of_file);
    let driver_timeout = driver_timeout.unwrap_or_else(|| VmOptions::default().driver_timeout);
    let (sandbox, gpus) = match Launcher::start(&options.confinement.into(), None, "error", None, None, None)
    {
        Err(error) => (Sandbox::NoLauncher(error.to_string()), Err(error.to_string())),
        Ok(launcher) => {
            let strict = options.confinement.sandbox == SandboxMode::Strict;
            let tried = Sandbox::Tried { lacks: launcher.lacks().to_vec(), strict };
            (tried, serve::probe(&launcher, driver_timeout, Late::tell).map_err(no_gpu))
        }
    };
    let configured =
        settings.as_ref().and_then(|(_, settings)| Some(settings.as_ref().ok()?.control_socket.clone()));
    let control = match (&options.control.control_socket, configured) {
        // If the file names no control socket, the broker's environment decides, which is not the environment of this process.
        (None, Some(configured)) if configured.exists() => configured,
        _ => options.control.clone().path_of_broker(),
    };
    let vms = |settings: Settings| {
        let vm = |vm| self::vm(&settings, vm, gpus.as_deref().ok());
        settings.vms.iter().map(vm).collect()
    };
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

/// Returns why there is no GPU, without the daemon's remedy: the checks have remedies of their own.
fn no_gpu(error: NoGpu) -> String {
    match error {
        NoGpu::None(reason) => format!("no Vulkan device: {reason}"),
        NoGpu::Late(limit) => {
            format!("the driver has not listed its GPUs within {} (--driver-timeout)", Span(limit))
        }
        NoGpu::Unknown { selection, list } => format!("no GPU matches \"{selection}\"; there are:{list}"),
        other => other.to_string(),
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
    Descriptors { limit, wanted: wanted.resources, left: wanted.within_files(limit, true).resources }
}

fn vm(settings: &Settings, vm: &VmSettings, gpus: Option<&[GpuInfo]>) -> Vm {
    let options = settings.options(vm);
    let selected = gpus.map(|gpus| serve::select(gpus, &options)).transpose().map_err(no_gpu);
    let window = selected.as_ref().ok().and_then(|selected| Some(window(&options, selected.as_ref()?)));
    let (name, gpus) = (vm.name.clone(), selected.map(drop));
    Vm { name, socket: options.socket_path, state: options.state_dir, gpus, window }
}

/// Returns the window that a daemon with these options decides on.
fn window(options: &VmOptions, selected: &Selected) -> Window {
    let all = selected.device_memory();
    let device_memory = options.quotas.device_memory.map_or(all, |amount| amount.of(all).min(all));
    let mut choices: Vec<GpuChoice> = selected.gpus.iter().map(|(_, choice)| *choice).collect();
    let maps = options.maps_device_memory();
    let (_, advice) = serve::decide_window(&mut choices, options.window_size, maps, device_memory);
    let maps_device_memory = choices.iter().any(GpuChoice::maps_device_memory);
    let small = advice.map(|Advice { what, remedy }| Small { what, remedy });
    Window { maps_device_memory, small }
}

/// Asks the broker how many VMs it has.
fn answer(control: &Path) -> Result<usize, String> {
    broker::status(control).map(|status| status.vms.len()).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Role};
    use clap::Parser;
    use config::{DriverMapped, Likeness, MemoryTrial};

    #[test]
    fn a_file_is_the_one_of_this_folder() {
        let cli = Cli::try_parse_from(["vhost-user-vulkan", "doctor", "--config", "vms.toml"]).unwrap();
        let Some(Role::Doctor(options)) = cli.role else { panic!("it is the doctor") };
        let file = configuration(&System::below(Path::new("/")), &options);
        assert_eq!(file, Some(std::env::current_dir().unwrap().join("vms.toml")));
    }

    fn decided(arguments: &[&str]) -> Window {
        let driver_mapped = DriverMapped { types: 4, device: 1 };
        let gpu = GpuInfo {
            name: "GPU".into(),
            uuid: [1; 16],
            pci_address: None,
            driver: "driver".into(),
            api_version: 0,
            kind: config::GpuKind::Discrete,
            device_memory: 80 << 30,
            likeness: Likeness::default(),
            memfd: Ok(MemoryTrial { mappable_types: 1, shareable: true, driver_mapped, exportable_types: 0 }),
            dma_buf: Err("none".into()),
        };
        let options = VmOptions::of_words(arguments).unwrap();
        window(&options, &serve::select(&[gpu], &options).unwrap())
    }

    #[test]
    fn the_window_of_a_configured_vm_is_the_one_that_its_daemon_decides_on() {
        let maps = Window { maps_device_memory: true, small: None };
        assert_eq!(decided(&[]), maps);
        assert_eq!(decided(&["--window-size", "8GiB", "--device-memory", "4GiB"]), maps);
        assert_eq!(
            decided(&["--map-device-memory", "never"]),
            Window { maps_device_memory: false, small: None }
        );
        let small = decided(&["--window-size", "8GiB"]);
        assert!(!small.maps_device_memory);
        let Small { what, remedy } = small.small.unwrap();
        assert!(
            what.starts_with("the window of 8.0GiB does not hold the 80.0GiB of the GPU's own memory"),
            "{what}"
        );
        assert!(remedy.starts_with("--window-size 128GiB or --device-memory"), "{remedy}");
    }
}
