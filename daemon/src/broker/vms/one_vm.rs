//! The broker of one VM, which the command line names: a thread of the VM's device process, with a control socket of its own. It does the same for its VM
//! as a broker of several VMs, except to start processes, to read a file again and to make sockets again, since a device process may open nothing. Its
//! sockets are made before the device process confines itself. It counts, measures and traces the work of the VM's contexts on the GPU, and shares
//! nothing out among them ([`Passage::Counted`](config::Passage)): contexts submit as if the broker did not exist, and the device process alone finds
//! hung ones (`serve::hangs`).
//!
//! The device thread never waits for the broker, so operators and collectors delay no guest, and it goes on if the broker's thread ends. A guest that
//! took over the device process could make this thread report anything, but only about the guest's own VM.

use super::super::connections::Connections;
use super::super::process::Process;
use super::super::run::Broker;
use super::super::settings::paths::absolute;
use super::super::settings::share::{HardwareSlices, Policy};
use super::super::settings::{MetricsAddress, RoomSettings, Settings, VmSettings};
use crate::ipc::Channel;
use crate::options::VmOptions;
use crate::sandbox::CgroupMode;
use outside::{Access, visible};
use sched::Share;
use shm::page_clock;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

/// The sockets of one VM's daemon for operators and for collectors of metrics, before the broker serves them.
#[derive(Debug)]
pub struct OneVm {
    vm: VmSettings,
    control: PathBuf,
    access: Access,
    metrics: Option<MetricsAddress>,
    connections: Connections,
    epoll: Arc<OwnedFd>,
}

/// The VM, as its operators see it.
#[derive(Debug)]
pub struct OneVmOptions {
    /// The VM's name. Without a name, the VM is called after its socket.
    pub name: Option<String>,
    /// The VM's options, with the path of its socket and the bounds in force.
    pub options: VmOptions,
    /// The words of the command line.
    pub given: Vec<String>,
}

/// The thread's name.
const THREAD: &str = "control";
/// The name of a VM that has neither a name nor a socket of its own.
const NAMELESS: &str = "vm";

impl OneVm {
    /// Makes the control socket for the users who have access, and the socket for metrics if it is wanted. A socket file that no process serves any
    /// more is replaced. From then on the broker looks up no path, because the process may not do that once it has confined itself.
    ///
    /// # Errors
    ///
    /// The system refuses a socket, or another process serves it.
    pub fn listen(
        control: PathBuf,
        access: Access,
        metrics: Option<MetricsAddress>,
        vm: OneVmOptions,
    ) -> io::Result<Self> {
        let epoll = Arc::new(readiness::instance()?);
        let connections = Connections::listen((&control, access), metrics.as_ref(), &epoll)?;
        Ok(Self { vm: vm.settings(), control, access, metrics, connections, epoll })
    }

    /// Returns the absolute paths of the socket files that were made, which another process has to remove in the end.
    #[must_use]
    pub fn files(&self) -> Vec<PathBuf> {
        let files = self.connections.files().into_iter();
        files.filter_map(|(_, kept)| std::path::absolute(kept.path()).ok()).collect()
    }

    /// Serves on a thread of its own, which ends when the other end of its channel is closed. Returns this other end, which is for the device thread.
    ///
    /// # Errors
    ///
    /// The system has no descriptor or no thread left.
    pub fn serve(self) -> io::Result<OwnedFd> {
        let (ours, theirs) = Channel::pair()?;
        let mut broker = self.broker(Process::own(ours))?;
        let run = move || {
            if let Err(error) = broker.run() {
                log::error!(
                    "the control socket is not served any more: {error}; restart the daemon when the VM is off"
                );
            }
        };
        std::thread::Builder::new().name(THREAD.into()).spawn(run)?;
        Ok(theirs.into_socket())
    }

    fn broker(self, process: Process) -> io::Result<Broker> {
        let Self { vm, control: control_socket, access, metrics, connections, epoll } = self;
        let settings = settings_of(vm.clone(), control_socket, access, metrics);
        let mut broker = Broker::at(settings, connections, epoll)?;
        let index = broker.add(vm, page_clock());
        broker.watch_process(index, &process)?;
        broker.vms[index].process = Some(process);
        broker.vms[index].start_at = None;
        Ok(broker)
    }
}

/// Returns the settings of a broker that shares nothing out.
fn settings_of(
    vm: VmSettings,
    control_socket: PathBuf,
    access: Access,
    metrics: Option<MetricsAddress>,
) -> Settings {
    Settings {
        policy: Policy::default(),
        anticipation: None,
        hardware_slices: HardwareSlices::default(),
        control_socket,
        control_socket_group: access.group,
        metrics,
        log_grants: None,
        room: RoomSettings::default(),
        cgroup: CgroupMode::Off,
        vms: vec![vm],
    }
}

impl OneVmOptions {
    /// The name that operators use.
    fn name(&self) -> String {
        let of_socket = self.options.socket_path.as_ref().and_then(|path| path.file_stem());
        let of_socket = of_socket.map(|stem| stem.to_string_lossy().into_owned());
        let name = self.name.clone().or(of_socket).unwrap_or_else(|| NAMELESS.to_owned());
        name.chars().map(visible).collect()
    }

    fn settings(mut self) -> VmSettings {
        // The process may not ask for its working folder once it has confined itself.
        self.options.socket_path = self.options.socket_path.as_deref().map(absolute);
        let memory = self.options.quotas.device_memory.map(|amount| format!("device-memory={amount}"));
        let is_said =
            |option: &String| option.starts_with("socket-path=") || option.starts_with("device-memory=");
        let others = options_of(&self.given).into_iter().filter(|option| !is_said(option));
        VmSettings {
            name: self.name(),
            share: Share::default(),
            written: memory.into_iter().chain(others).collect(),
            options: self.options,
            parts: Vec::new(),
            own_paths: Vec::new(),
            reserved_memory: 0,
        }
    }
}

/// The options of a command line, each as `KEY=VALUE`.
fn options_of(words: &[String]) -> Vec<String> {
    let mut options: Vec<String> = Vec::new();
    for word in words {
        match options.last_mut() {
            Some(option) if !word.starts_with("--") && !option.contains('=') => {
                option.push('=');
                option.push_str(word);
            }
            _ => options.push(word.trim_start_matches("--").to_owned()),
        }
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::Amount;

    #[test]
    fn each_option_of_a_command_line_is_one_word_and_nothing_is_said_twice() {
        let given =
            "--socket-path a --gpu=x --device-memory 1GiB --quiet --queues all".split(' ').map(str::to_owned);
        let mut options = VmOptions { socket_path: Some("a".into()), ..VmOptions::default() };
        options.quotas.device_memory = Some(Amount::Bytes(1 << 30));
        let settings = OneVmOptions { name: None, options, given: given.collect() }.settings();
        let all = settings_of(settings.clone(), PathBuf::new(), Access::default(), None);
        assert_eq!(all.told(&settings), ["device-memory=1073741824", "gpu=x", "quiet", "queues=all"]);
        let socket = std::env::current_dir().unwrap().join("a");
        assert_eq!((settings.name.as_str(), settings.options.socket_path), ("a", Some(socket)));
    }
}
