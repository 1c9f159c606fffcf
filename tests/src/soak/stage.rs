//! The broker, its VMs with their VMMs, and the places of their files.

use super::pace::{Event, VMS};
use crate::bridge::Bridge;
use crate::broker::{Broker, vhost_user_vulkan};
use crate::cgroup::Unit;
use crate::daemon::eventually;
use crate::frontend::{Options, Session};
use crate::guest::{Gpu, PATIENCE};
use crate::port::free_port;
use anyhow::{Context, Result, ensure};
use parking_lot::Mutex;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::collections::HashMap;
use std::ffi::CString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tempfile::TempDir;

/// The VM that comes and goes.
pub(super) const GUEST: &str = "guest";
/// Limits that end a hang soon, and hold no program back after a hang.
const LIMITS: &str = "max-submit-time = \"20s\"\nmax-submit-time-contended = \"5s\"\nstrikes = 100000\nstrike-hold = \"100ms\"";
/// Bytes of the file system with the states of VMs.
const STATES: &str = "size=256k,mode=700";

/// The part of the configuration that changes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Config {
    pub(super) weight: u32,
    pub(super) contexts: u32,
    pub(super) has_guest: bool,
}

pub(super) struct Stage {
    pub(super) broker: Broker,
    pub(super) port: u16,
    /// The control group of the broker, if the machine has control groups.
    pub(super) unit: Option<Unit>,
    pub(super) config: Mutex<Config>,
    /// Bytes of the log that was truncated.
    pub(super) rotated: AtomicU64,
    /// The program `many_threads`.
    pub(super) threads: PathBuf,
    /// Bridges so far.
    bridges: AtomicU64,
    machines: HashMap<&'static str, Machine>,
    /// The last field, which is dropped last, because the other fields have files in its folder.
    states: States,
    top: String,
}

#[derive(Default)]
struct Machine {
    bridge: Mutex<Option<Arc<Bridge>>>,
    disturbances: AtomicU64,
}

impl Stage {
    pub(super) fn set(threads: PathBuf) -> Result<Self> {
        let port = free_port()?;
        let unit = Unit::with(&["memory", "pids"])?;
        let command = vhost_user_vulkan()?;
        let command = unit
            .as_ref()
            .map_or_else(|| command, |unit| unit.command(&vhost_user_vulkan().expect("as before")));
        let cgroup = if unit.is_some() { "on" } else { "off" };
        let states = States::new()?;
        let grants = states.folder.path().join("grants").display().to_string();
        let top = format!("metrics = \"127.0.0.1:{port}\"\ncgroup = \"{cgroup}\"\nlog-grants = \"{grants}\"");
        let config = Config { weight: 100, contexts: 40, has_guest: false };
        let vms = tables(&states, config);
        let broker = Broker::start_command(command, &top, &borrowed(&vms))?;
        let machines = VMS.iter().map(|vm| (*vm, Machine::default())).collect();
        let (config, rotated, bridges) = (Mutex::new(config), AtomicU64::new(0), AtomicU64::new(0));
        Ok(Self { broker, port, unit, config, rotated, threads, bridges, machines, states, top })
    }

    /// Returns a function that says whether this machine can have an event.
    pub(super) fn can(&self) -> impl Fn(Event) -> bool + use<> {
        let mounted = self.states.mounted;
        move |event| event != Event::FullDisk || mounted
    }

    /// Writes the configuration anew.
    pub(super) fn rewrite(&self, config: Config) -> Result<()> {
        self.broker.rewrite(&self.top, &borrowed(&tables(&self.states, config)))
    }

    /// Writes a configuration that is wrong.
    pub(super) fn rewrite_wrong(&self) -> Result<()> {
        self.broker.rewrite(&self.top, &[("a", "gup = \"x\"")])
    }

    /// The folder with the state of each VM.
    pub(super) fn states(&self) -> PathBuf {
        self.states.path()
    }

    /// The VM's guest, behind a VMM that is started if there is none, or if its session is over.
    pub(super) fn machine(&self, vm: &str) -> Result<Arc<Bridge>> {
        let mut bridge = self.machines[vm].bridge.lock();
        if let Some(bridge) = bridge.as_ref().filter(|bridge| !bridge.gpu().session.is_over()) {
            return Ok(Arc::clone(bridge));
        }
        *bridge = None;
        ensure!(eventually(PATIENCE, || self.broker.listens(vm)), "{vm} does not listen");
        // A bridge that a program still holds keeps the path of the number before.
        let number = self.bridges.fetch_add(1, Ordering::Relaxed);
        let path = self.broker.path(&format!("{vm}.{number}.vtest"));
        let guest = Gpu::new(Session::connect(&self.broker.path(vm), Options::default())?);
        let fresh = Arc::new(Bridge::listen(&path, guest)?);
        Ok(Arc::clone(bridge.insert(fresh)))
    }

    /// Returns whether the VM's device process is ready for a VMM; a VMM may already have connected.
    pub(super) fn serves(&self, vm: &str) -> bool {
        self.broker.vm(vm).is_ok_and(|vm| vm["state"] == "waiting" || vm["state"] == "connected")
    }

    pub(super) fn gpu(&self, vm: &str) -> Result<Arc<Gpu>> {
        Ok(Arc::clone(self.machine(vm)?.gpu()))
    }

    /// Ends the VM's VMM, whatever its programs do.
    pub(super) fn end_vmm(&self, vm: &str) {
        if let Some(bridge) = self.machines[vm].bridge.lock().take() {
            bridge.gpu().session.closer().close();
        }
    }

    /// Ends the VM's VMM, so that no program waits for it.
    pub(super) fn release(&self, vm: &str) {
        self.disturb(vm);
        self.end_vmm(vm);
        self.disturb(vm);
    }

    /// Notes an event that the VM's programs do not survive; to be called before and after it.
    pub(super) fn disturb(&self, vm: &str) {
        self.machines[vm].disturbances.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn disturbances(&self, vm: &str) -> u64 {
        self.machines.get(vm).map_or(0, |machine| machine.disturbances.load(Ordering::Relaxed))
    }

    /// Returns the file of a folder that is full, which a caller may delete.
    pub(super) fn fill_states(&self) -> Result<PathBuf> {
        let path = self.states().join("full");
        let mut bytes = 0_u64;
        // The file is full when a write fails.
        while fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(&path)
            .and_then(|mut file| std::io::Write::write_all(&mut file, &[1; 4096]))
            .is_ok()
        {
            bytes += 4096;
            ensure!(bytes < 16 << 20, "{} is never full", path.display());
        }
        Ok(path)
    }

    /// Bytes that were logged so far.
    pub(super) fn logged(&self) -> Result<u64> {
        Ok(self.rotated.load(Ordering::Relaxed) + fs::metadata(self.broker.path("log"))?.len())
    }
}

fn tables(states: &States, config: Config) -> Vec<(&'static str, String)> {
    let keys = |vm: &str| {
        let folder = states.path().join(vm);
        let own = match vm {
            "b" => format!("weight = {}", config.weight),
            "d" => format!("max-contexts = {}", config.contexts),
            _ => String::new(),
        };
        format!("{LIMITS}\nstate-dir = \"{}\"\n{own}", folder.display())
    };
    let guest = config.has_guest.then_some(&GUEST);
    VMS.iter().chain(guest).map(|vm| (*vm, keys(vm))).collect()
}

fn borrowed<'a>(vms: &'a [(&'static str, String)]) -> Vec<(&'a str, &'a str)> {
    vms.iter().map(|(name, keys)| (*name, keys.as_str())).collect()
}

/// A small file system for the states of VMs, or a folder if none can be mounted.
struct States {
    folder: TempDir,
    mounted: bool,
}

impl States {
    fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut states = Self { folder, mounted: false };
        fs::create_dir(states.path())?;
        let options = CString::new(STATES).context("no zero in it")?;
        let mounted = mount("soak", states.path(), "tmpfs", MountFlags::empty(), Some(options.as_c_str()));
        if let Err(error) = &mounted {
            println!("skipped: no full disk, since none can be mounted here: {error}");
        }
        states.mounted = mounted.is_ok();
        Ok(states)
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("states")
    }
}

impl Drop for States {
    fn drop(&mut self) {
        if self.mounted {
            let _ = unmount(self.path(), UnmountFlags::DETACH);
        }
    }
}

/// Entries of a folder.
pub(super) fn entries(folder: &Path) -> Result<Vec<String>> {
    let names = fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    names.collect()
}
