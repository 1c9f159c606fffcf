//! The facts about a host that decide whether it can serve VMs. This file makes no judgement.

use super::given::Given;
use super::programs::{self, Crosvm, Qemu};
use super::sockets::{self, Folder, SocketFile};
use crate::control_groups::{self, Mount};
use crate::libraries::{self, Library, Missing};
use crate::manifests::{self, Driver};
use crate::system::{Permissions, System, User};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{PidfdFlags, Resource, getpid, getrlimit, pidfd_open};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The user's questions beyond the host itself.
#[derive(Clone, Debug, Default)]
pub struct Question {
    /// A QEMU outside of the search path.
    pub qemu: Option<PathBuf>,
    /// A socket of a VMM.
    pub socket: Option<PathBuf>,
    /// The user as which the VMM runs.
    pub vmm_user: Option<String>,
}

/// The facts.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The facts that the daemon has found.
    pub given: Given,
    /// The user who runs this check.
    pub user: User,
    /// Khronos' loader.
    pub loader: Result<Library, Missing>,
    /// The drivers that are installed or named.
    pub drivers: Vec<Driver>,
    /// The device nodes of GPUs: paths, groups, permissions.
    pub nodes: Vec<(String, String, Permissions)>,
    /// NVIDIA's driver.
    pub nvidia: Nvidia,
    /// The switches of user namespaces that this kernel has, by name.
    pub namespace_switches: BTreeMap<&'static str, u64>,
    /// The root folder of this process is not the system's.
    pub in_chroot: bool,
    /// Kernel functions that are missing.
    pub kernel_lacks: Vec<String>,
    /// Control groups.
    pub groups: Groups,
    /// The most processes and threads of this user, and the setting behind that limit.
    pub tasks: Option<(u64, String)>,
    /// QEMU.
    pub qemu: Option<Qemu>,
    /// crosvm.
    pub crosvm: Option<Crosvm>,
    /// The systems that confine libvirt's VMMs.
    pub access_control: AccessControl,
    /// Memory regions that a device of the kernel's module `vhost`, such as vhost-net, takes; none if the module is not loaded.
    pub vhost_regions: Option<u64>,
    /// The socket in the user's question.
    pub socket: Option<SocketFile>,
    /// The VMM's user: its name, and its entry in the system's list of users.
    pub vmm_user: Option<(String, Option<User>)>,
    /// The sockets of the configured VMs.
    pub vm_sockets: Vec<SocketFile>,
    /// Folders that the daemon writes to: the owner, the purpose, the path, and the state of each.
    pub folders: Vec<(String, &'static str, PathBuf, Folder)>,
}

/// NVIDIA's driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nvidia {
    /// The host has a GPU of NVIDIA's that has no other driver.
    pub has_device: bool,
    /// The version of the loaded kernel module.
    pub module: Option<String>,
    /// The versions of the libraries.
    pub libraries: Vec<String>,
    /// The node `/dev/nvidiactl` exists.
    pub has_node: bool,
}

/// Control groups of version 2.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Groups {
    /// The folder where the groups are mounted.
    pub mount: Option<PathBuf>,
    /// The folder of this process' group, or the topmost folder that this process sees.
    pub own: Option<PathBuf>,
    /// The controllers.
    pub controllers: Vec<String>,
}

/// The systems that confine libvirt's VMMs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccessControl {
    /// libvirt is installed.
    pub libvirt: bool,
    /// AppArmor is enabled.
    pub apparmor: bool,
    /// AppArmor's rules for libvirt name this daemon.
    pub has_rule: bool,
    /// SELinux enforces.
    pub selinux: bool,
}

/// The switches of user namespaces below `/proc/sys`, in the order in which they are tried.
pub(super) const SWITCHES: [&str; 3] = [
    "kernel.unprivileged_userns_clone",
    "kernel.apparmor_restrict_unprivileged_userns",
    "user.max_user_namespaces",
];
/// The users as which libvirt runs VMMs in distributions.
const LIBVIRT_USERS: [&str; 2] = ["libvirt-qemu", "qemu"];

impl Facts {
    /// Looks at the system.
    #[must_use]
    pub fn gather(system: &System, question: &Question, given: Given) -> Self {
        let user = User::own();
        let served = sockets::served(system);
        let vms = given.configuration.iter().filter_map(|file| file.vms.as_ref().ok()).flatten();
        let mut folders = Vec::new();
        let mut folder = |vm: &str, what, path: Option<&Path>| {
            if let Some(path) = path.filter(|path| !path.as_os_str().is_empty()) {
                folders.push((vm.to_owned(), what, path.to_owned(), Folder::at(system, path, &user)));
            }
        };
        let mut vm_sockets = Vec::new();
        for vm in vms {
            folder(&vm.name, "socket-path", vm.socket.as_deref().and_then(Path::parent));
            folder(&vm.name, "state-dir", vm.state.as_deref());
            vm_sockets.extend(vm.socket.iter().map(|path| SocketFile::at(system, path, &served)));
        }
        let switch = |name: &'static str| {
            Some((name, system.number(format!("/proc/sys/{}", name.replace('.', "/")))?))
        };
        let libvirts =
            || LIBVIRT_USERS.into_iter().find(|name| system.user(name).is_some()).map(str::to_owned);
        let vmm_user = question.vmm_user.clone().or_else(libvirts);
        let groups = groups(system);
        Self {
            loader: libraries::find(system, Path::new("libvulkan.so.1")),
            drivers: manifests::drivers(system),
            nodes: nodes(system),
            nvidia: nvidia(system),
            namespace_switches: SWITCHES.into_iter().filter_map(switch).collect(),
            in_chroot: in_chroot(system),
            kernel_lacks: kernel_lacks(),
            tasks: tasks(system, &groups, &user),
            groups,
            qemu: programs::qemu(system, question.qemu.as_deref()),
            crosvm: programs::crosvm(system),
            access_control: access_control(system),
            vhost_regions: system.number("/sys/module/vhost/parameters/max_mem_regions"),
            socket: question.socket.as_deref().map(|path| SocketFile::at(system, path, &served)),
            vmm_user: vmm_user.map(|name| (name.clone(), system.user(&name))),
            vm_sockets,
            folders,
            user,
            given,
        }
    }
}

/// Returns the nodes through which drivers reach GPUs.
fn nodes(system: &System) -> Vec<(String, String, Permissions)> {
    let is_gpu = |name: &&String| {
        let number = name.strip_prefix("nvidia").is_some_and(|rest| rest.parse::<u32>().is_ok());
        number || ["nvidiactl", "nvidia-uvm"].contains(&name.as_str())
    };
    let (dri, dev) = (system.names("/dev/dri"), system.names("/dev"));
    let render = dri.iter().filter(|name| name.starts_with("renderD")).map(|name| format!("/dev/dri/{name}"));
    let paths = render.chain(dev.iter().filter(is_gpu).map(|name| format!("/dev/{name}")));
    let node = |path: String| {
        let permissions = Permissions::from(&system.metadata(&path).ok()?);
        Some((path, system.group(permissions.group), permissions))
    };
    paths.filter_map(node).collect()
}

fn nvidia(system: &System) -> Nvidia {
    const BUS: &str = "/sys/bus/pci/devices";
    let is_nvidia = |name: &String| {
        let read = |file| system.read(format!("{BUS}/{name}/{file}")).unwrap_or_default();
        let other = system.link(format!("{BUS}/{name}/driver")).is_some_and(|driver| driver != "nvidia");
        read("vendor") == "0x10de" && read("class").starts_with("0x03") && !other
    };
    let is_version =
        |word: &&str| word.contains('.') && word.split('.').all(|part| part.parse::<u32>().is_ok());
    let text = system.read("/proc/driver/nvidia/version");
    let module = text.as_ref().and_then(|text| text.lines().next()?.split_whitespace().find(is_version));
    let mut libraries: Vec<String> = libraries::named(system, "libnvidia-glcore.so.");
    libraries.retain(|version| is_version(&version.as_str()));
    Nvidia {
        has_device: system.names(BUS).iter().any(is_nvidia),
        module: module.map(str::to_owned),
        libraries,
        has_node: system.has("/dev/nvidiactl"),
    }
}

/// Returns whether the root folder is no mount of its own, which is true only in the folder of a chroot.
fn in_chroot(system: &System) -> bool {
    let mounts = system.read("/proc/self/mountinfo").unwrap_or_default();
    !mounts.is_empty() && !mounts.lines().any(|line| line.split(' ').nth(4) == Some("/"))
}

/// Tries out kernel functions that the rest of the doctor does not use.
fn kernel_lacks() -> Vec<String> {
    let memory_file = memfd_create("doctor", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).map(drop);
    let process = pidfd_open(getpid(), PidfdFlags::empty()).map(drop);
    let tried =
        [("memory files (memfd_create)", memory_file), ("descriptors of processes (pidfd_open)", process)];
    tried.into_iter().filter_map(|(name, result)| Some(format!("{name}: {}", result.err()?))).collect()
}

fn groups(system: &System) -> Groups {
    let mounts = system.read("/proc/self/mountinfo").unwrap_or_default();
    let own = system.read("/proc/self/cgroup").unwrap_or_default();
    let own = control_groups::group(&own).unwrap_or("/");
    // This process cannot see the limits of a group that it does not see.
    let shown = Mount::of(own, &mounts).map(|mount| (own, mount));
    let Some((own, mount)) = shown.or_else(|| Some(("/", Mount::of("/", &mounts)?))) else {
        return Groups::default();
    };
    let controllers = system.read(mount.folder.join("cgroup.controllers")).unwrap_or_default();
    Groups {
        own: mount.folder_of(own),
        controllers: controllers.split_whitespace().map(str::to_owned).collect(),
        mount: Some(mount.folder),
    }
}

/// Returns the smallest limit on processes and threads.
fn tasks(system: &System, groups: &Groups, user: &User) -> Option<(u64, String)> {
    let folders = groups.own.iter().flat_map(|own| own.ancestors());
    let folders =
        folders.take_while(|folder| groups.mount.as_ref().is_some_and(|mount| folder.starts_with(mount)));
    let of_group = |folder: &Path| {
        Some((system.number(folder.join("pids.max"))?, format!("pids.max of {}", folder.display())))
    };
    let mut limits: Vec<(u64, String)> = folders.filter_map(of_group).collect();
    // This limit does not bind root.
    if let Some(limit) = getrlimit(Resource::Nproc).current.filter(|_| user.user != 0) {
        limits.push((limit, "ulimit -u".into()));
    }
    limits.into_iter().min()
}

fn access_control(system: &System) -> AccessControl {
    let programs = ["/usr/sbin/libvirtd", "/usr/sbin/virtqemud"];
    let mut rules = vec![
        "/etc/apparmor.d/abstractions/libvirt-qemu".to_owned(),
        "/etc/apparmor.d/libvirt/TEMPLATE.qemu".into(),
    ];
    for folder in ["/etc/apparmor.d/abstractions/libvirt-qemu.d", "/etc/apparmor.d/local/abstractions"] {
        rules.extend(system.names(folder).into_iter().map(|name| format!("{folder}/{name}")));
    }
    let names_us = |path: &String| system.read(path).is_some_and(|text| text.contains("vhost-user-vulkan"));
    AccessControl {
        libvirt: programs.iter().any(|program| system.has(program)),
        apparmor: system.read("/sys/module/apparmor/parameters/enabled").as_deref() == Some("Y"),
        has_rule: rules.iter().any(names_us),
        selinux: system.number("/sys/fs/selinux/enforce") == Some(1),
    }
}
