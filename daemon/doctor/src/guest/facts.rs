//! The facts about a VM that decide whether its programs can use the GPU. This file makes no judgement.

use super::virtgpu::{Parameter, capability_set, parameter};
use crate::libraries::{self, Library, Missing};
use crate::manifests::{self, Driver};
use crate::system::{Permissions, System, User};
use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

/// The facts.
#[derive(Clone, Debug, PartialEq)]
pub struct Facts {
    /// The release of the kernel, as `uname -r` prints it.
    pub kernel: String,
    /// Memory of the VM in KiB.
    pub memory_kib: Option<u64>,
    /// The GPUs that the VMM has given to the VM, as their buses name them.
    pub devices: Vec<String>,
    /// The kernel's driver.
    pub module: Module,
    /// The render nodes of that driver.
    pub nodes: Vec<Node>,
    /// The user who runs this check.
    pub user: User,
    /// Khronos' loader.
    pub loader: Result<Library, Missing>,
    /// The manifests of Mesa's Venus driver.
    pub drivers: Vec<Driver>,
    /// The variable that names other drivers, and its value.
    pub named_by: Option<(&'static str, String)>,
    /// `VN_DEBUG`.
    pub vn_debug: String,
    /// `VN_PERF`.
    pub vn_perf: String,
}

/// The window's name in a list of missing features.
pub(super) const WINDOW: &str = "a window onto the host's memory";

/// The kernel's driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Module {
    /// The driver is loaded.
    Loaded,
    /// The driver could be loaded.
    NotLoaded,
    /// The kernel was built without the driver.
    Absent,
}

/// A render node.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The name below `/dev/dri`.
    pub name: String,
    /// The name of its group, and its permissions, if it exists.
    pub permissions: Option<(String, Permissions)>,
    /// The device behind it, if this user may open it.
    pub opened: Opened,
    /// Bytes of the largest part of memory that the device has on the PCI bus: the window, if it has one.
    pub largest_memory: Option<u64>,
}

/// The outcome of an attempt to open a node.
#[derive(Clone, Debug, PartialEq)]
pub enum Opened {
    /// The device, with its answers.
    Device(Device),
    /// The user may not open the node.
    Forbidden,
    /// The device fails for another reason.
    Failed(String),
}

/// The answers of a device.
#[derive(Clone, Debug, PartialEq)]
pub struct Device {
    /// Abilities that Mesa needs, but the device or the kernel lacks.
    pub lacks: Vec<&'static str>,
    /// The Venus capability set, or the reason why it is missing.
    pub capset: Result<Vec<u8>, String>,
}

/// The number of the Venus capability set (VIRTIO, "GPU Device", `VIRTIO_GPU_CAPSET_VENUS`).
const VENUS: u32 = 4;
/// The number of bytes of this set that are requested: as many as this project's daemon sends.
const CAPSET_BYTES: usize = 168;
/// VIRTIO's number of GPUs, as the PCI bus shows it.
const VIRTIO_GPU: &str = "0x0010";
const PCI_VENDOR: &str = "0x1af4";
const PCI_GPU: &str = "0x1050";

impl Facts {
    /// Looks at the system.
    #[must_use]
    pub fn gather(system: &System) -> Self {
        let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
        let memory = system.read("/proc/meminfo").unwrap_or_default();
        let total = memory.lines().find_map(|line| line.strip_prefix("MemTotal:"));
        let venus = |driver: &Driver| {
            let manifest = driver.manifest.file_name().unwrap_or_default().to_string_lossy();
            manifest.contains("virtio") || driver.name.contains("libvulkan_virtio")
        };
        let mut drivers = manifests::drivers(system);
        drivers.retain(venus);
        Self {
            memory_kib: total.and_then(|text| text.trim().trim_end_matches(" kB").parse().ok()),
            devices: devices(system),
            module: module(system, &kernel),
            nodes: nodes(system),
            user: User::own(),
            loader: libraries::find(system, Path::new("libvulkan.so.1")),
            drivers,
            named_by: manifests::named_by(system),
            vn_debug: system.variable("VN_DEBUG").unwrap_or_default().to_owned(),
            vn_perf: system.variable("VN_PERF").unwrap_or_default().to_owned(),
            kernel,
        }
    }
}

/// Returns the GPUs on virtio's bus, or those on the PCI bus if no driver has taken them over.
fn devices(system: &System) -> Vec<String> {
    let on = |bus: &str, identity: &[(&str, &str)]| -> Vec<String> {
        let folder = format!("/sys/bus/{bus}/devices");
        let says = |name: &str, file| system.read(format!("{folder}/{name}/{file}")).unwrap_or_default();
        let mut names = system.names(&folder);
        names.retain(|name| identity.iter().all(|(file, value)| says(name, file) == *value));
        names
    };
    let virtio = on("virtio", &[("device", VIRTIO_GPU)]);
    if virtio.is_empty() { on("pci", &[("vendor", PCI_VENDOR), ("device", PCI_GPU)]) } else { virtio }
}

fn module(system: &System, kernel: &str) -> Module {
    if system.has("/sys/bus/virtio/drivers/virtio_gpu") {
        return Module::Loaded;
    }
    let places = ["/lib/modules", "/usr/lib/modules"].map(|folder| format!("{folder}/{kernel}"));
    let built = |folder: &String| {
        let files = system.names(format!("{folder}/kernel/drivers/gpu/drm/virtio"));
        files.iter().any(|file| file.starts_with("virtio-gpu.ko"))
    };
    if places.iter().any(built) { Module::NotLoaded } else { Module::Absent }
}

fn nodes(system: &System) -> Vec<Node> {
    let names = system.names("/sys/class/drm").into_iter().filter(|name| name.starts_with("renderD"));
    let ours = |name: &String| {
        let device = format!("/sys/class/drm/{name}/device");
        // The node belongs to the device on virtio's bus or, from some kernels on, to the device on the PCI bus.
        let driver = |folder: String| system.link(format!("{folder}/driver"));
        let below = || system.names(&device).into_iter().find(|name| name.starts_with("virtio"));
        driver(device.clone()).as_deref() == Some("virtio_gpu")
            || below().and_then(|child| driver(format!("{device}/{child}"))).as_deref() == Some("virtio_gpu")
    };
    names.filter(ours).map(|name| node(system, name)).collect()
}

fn node(system: &System, name: String) -> Node {
    let path = format!("/dev/dri/{name}");
    let metadata = system.metadata(&path).ok();
    let permissions = metadata.as_ref().map(Permissions::from);
    let permissions = permissions.map(|permissions| (system.group(permissions.group), permissions));
    let opened = match File::options().read(true).write(true).open(system.path(&path)) {
        Ok(file) => Opened::Device(device(&file)),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Opened::Forbidden,
        Err(error) => Opened::Failed(error.to_string()),
    };
    let largest_memory = largest_memory(system, &name);
    Node { name, permissions, opened, largest_memory }
}

/// Returns the bytes of the largest 64-bit memory region with an address of the PCI device behind a node (kernel:
/// `Documentation/PCI/sysfs-pci.rst`, `include/linux/ioport.h`).
fn largest_memory(system: &System, node: &str) -> Option<u64> {
    /// `IORESOURCE_MEM` and `IORESOURCE_MEM_64`; `IORESOURCE_UNSET` marks a region without an address.
    const MEMORY: u64 = 0x0010_0200;
    const UNSET: u64 = 0x2000_0000;
    /// The regions of the device itself; the region of its ROM follows.
    const REGIONS: usize = 6;
    let device = format!("/sys/class/drm/{node}/device");
    // The node's device is on virtio's bus, below a device on the PCI bus, or it is the PCI device itself.
    let tables = [format!("{device}/resource"), format!("{device}/../resource")];
    let table = tables.iter().find_map(|table| system.read(table))?;
    let region = |line: &str| {
        let mut numbers =
            line.split_whitespace().map(|word| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok());
        let (start, end, flags) = (numbers.next()??, numbers.next()??, numbers.next()??);
        let has_place = flags & (MEMORY | UNSET) == MEMORY && start > 0;
        end.checked_sub(start)?.checked_add(1).filter(|_| has_place)
    };
    table.lines().take(REGIONS).filter_map(region).max()
}

fn device(node: &File) -> Device {
    let needed = [
        (Parameter::Features3d, "3D commands"),
        (Parameter::CapsetQueryFix, "exact capability sets"),
        (Parameter::ResourceBlob, "blob resources"),
        (Parameter::HostVisible, WINDOW),
        (Parameter::ContextInit, "contexts of a kind"),
    ];
    let has = |asked| parameter(node.as_fd(), asked).unwrap_or(0);
    let lacks = needed.into_iter().filter(|(asked, _)| has(*asked) == 0).map(|(_, name)| name).collect();
    let capset = match has(Parameter::SupportedCapsets) >> VENUS & 1 {
        0 => Err("the device does not offer it".to_owned()),
        _ => capability_set(node.as_fd(), VENUS, CAPSET_BYTES).map_err(|error| error.to_string()),
    };
    Device { lacks, capset }
}
