//! The checks of a VM, as functions of its facts. A check whose precondition another check has found missing is skipped, so that a fault
//! is reported once.

use super::facts::{Device, Facts, Module, Node, Opened, WINDOW};
use crate::debian;
use crate::libraries::{Missing, version};
use crate::loader;
use crate::manifests::{self, Driver, NoLibrary};
use crate::report::Finding;

/// The oldest kernel that has contexts with a capability set.
const KERNEL_MIN: (u32, u32) = (5, 16);
/// The oldest kernel that accepts a GPU without a scanout.
const KERNEL_WITHOUT_SCANOUT: (u32, u32) = (6, 4);
/// The oldest Mesa whose Venus driver speaks today's protocol.
const MESA_MIN: (u32, u32) = (23, 2);
/// The first Mesa with the kernel's fences, for which the driver need not look at memory.
const MESA_KERNEL_FENCES: (u32, u32) = (26, 2);
/// The least memory, in KiB, for a system and a program that computes.
const MEMORY_MIN: u64 = 512 << 10;

/// Returns the findings about a VM.
#[must_use]
pub fn check(facts: &Facts) -> Vec<Finding> {
    let mut findings = vec![kernel(facts), memory(facts), device(facts), module(facts)];
    findings.extend(render_nodes(facts));
    findings.extend([loader(facts), driver(facts), mesa(facts), waits(facts)]);
    findings
}

fn kernel(facts: &Facts) -> Finding {
    let release = &facts.kernel;
    match version(release) {
        Some(number) if number < KERNEL_MIN => Finding::fault(
            "kernel",
            format!("Linux {release} has no virtio-gpu contexts for Vulkan"),
            "install a kernel of version 5.16 or newer (Ubuntu 22.04: linux-generic-hwe-22.04, Debian 11: one of bullseye-backports)",
        ),
        _ => Finding::ok("kernel", format!("Linux {release}")),
    }
}

fn memory(facts: &Facts) -> Finding {
    let Some(total) = facts.memory_kib else {
        return Finding::skipped("memory", "/proc/meminfo cannot be read");
    };
    let shown = format!("the VM has {} MiB", total >> 10);
    match total < MEMORY_MIN {
        true => Finding::warning(
            "memory",
            shown,
            "give the VM at least 1 GiB (QEMU: -m 1G and the size of its memory-backend-memfd)",
        ),
        false => Finding::ok("memory", shown),
    }
}

fn device(facts: &Facts) -> Finding {
    const CHECK: &str = "device";
    let devices = facts.devices.join(", ");
    match (facts.devices.len(), facts.nodes.len()) {
        (0, _) => Finding::fault(
            CHECK,
            "the VMM gives this VM no virtio-gpu device",
            "start the VM with the arguments that `vhost-user-vulkan recipe` prints on the host, and look at the VMM's log",
        ),
        (_, 2..) => Finding::warning(
            CHECK,
            format!("{devices}: stock Mesa shows programs the GPUs of one virtio-gpu device alone"),
            "give the VM one device, and its daemon --gpu several times; for a display take another device (QEMU: -device VGA)",
        ),
        _ => Finding::ok(CHECK, devices),
    }
}

fn module(facts: &Facts) -> Finding {
    const CHECK: &str = "kernel-module";
    let absent = || format!("Linux {} has no module virtio_gpu (CONFIG_DRM_VIRTIO_GPU)", facts.kernel);
    match facts.module {
        Module::Loaded => Finding::ok(CHECK, "virtio_gpu is loaded"),
        Module::NotLoaded => Finding::fault(
            CHECK,
            "the module virtio_gpu is not loaded",
            "sudo modprobe virtio_gpu, and look for a blacklist entry in /etc/modprobe.d",
        ),
        Module::Absent if facts.kernel.contains("cloud") => Finding::fault(
            CHECK,
            absent() + ", which Debian's cloud kernels lack",
            "sudo apt-get install linux-image-amd64 (linux-image-arm64 on arm64), boot it, and remove the cloud kernel",
        ),
        Module::Absent => Finding::fault(
            CHECK,
            absent(),
            "install the distribution's full kernel (Debian: linux-image-amd64) and its extra modules (Ubuntu: linux-modules-extra)",
        ),
    }
}

fn render_nodes(facts: &Facts) -> Vec<Finding> {
    const CHECK: &str = "render-node";
    if facts.devices.is_empty() || facts.module != Module::Loaded {
        return vec![Finding::skipped(CHECK, "no device, or no driver for it")];
    }
    if facts.nodes.is_empty() {
        let old = version(&facts.kernel).is_some_and(|number| number < KERNEL_WITHOUT_SCANOUT);
        let remedy = match old {
            true => "start the daemon with --scanouts 1, without which kernels before 6.4 refuse the device",
            false => "sudo dmesg | grep -i -e virtio -e drm names the reason",
        };
        return vec![Finding::fault(CHECK, "the kernel refuses the device: it has no render node", remedy)];
    }
    let of_node = |node: &Node| {
        let node_finding = render_node(node, facts).about(&node.name);
        let further = match &node.opened {
            Opened::Device(device) => {
                let serious = !has_another(facts, node);
                vec![
                    features(device).at_most(serious),
                    mapped_memory(node, device),
                    capset(device).at_most(serious),
                ]
            }
            Opened::Forbidden | Opened::Failed(_) => Vec::new(),
        };
        std::iter::once(node_finding)
            .chain(further.into_iter().map(|finding| finding.about(&node.name)))
            .collect()
    };
    facts.nodes.iter().flat_map(|node| -> Vec<Finding> { of_node(node) }).collect()
}

/// Returns whether a device other than this node's can be used: then this node's device may be for a display.
fn has_another(facts: &Facts, node: &Node) -> bool {
    let is_whole = |device: &Device| device.lacks.is_empty() && device.capset.is_ok();
    let mut others = facts.nodes.iter().filter(|other| other.name != node.name);
    others.any(|other| matches!(&other.opened, Opened::Device(device) if is_whole(device)))
}

/// Reports the window's size. The host's check `window` compares it with the memory of the host's GPU, which no file in the VM shows.
fn mapped_memory(node: &Node, device: &Device) -> Finding {
    const CHECK: &str = "mapped-memory";
    if device.lacks.contains(&WINDOW) {
        return Finding::skipped(CHECK, "there is no window (device-features)");
    }
    let size = node.largest_memory.map_or("unknown size".to_owned(), |bytes| format!("{} MiB", bytes >> 20));
    Finding::ok(CHECK, format!("programs map memory of the host through a window of {size}"))
}

fn render_node(node: &Node, facts: &Facts) -> Finding {
    const CHECK: &str = "render-node";
    match (&node.permissions, &node.opened) {
        (None, _) => Finding::fault(
            CHECK,
            "there is no such file in /dev/dri",
            "start udev, or mount devtmpfs on /dev; in a container, pass /dev/dri on",
        ),
        (Some(_), Opened::Device(_)) => Finding::ok(CHECK, "this user may open it"),
        (Some((group, file)), Opened::Forbidden) if file.mode & 0o060 == 0o060 && facts.user.user != 0 => {
            Finding::fault(
                CHECK,
                format!("this user is not in the group {group}, which may open it"),
                format!("sudo usermod -aG {group} $USER, and log in again"),
            )
        }
        (Some((_, file)), Opened::Forbidden) => Finding::fault(
            CHECK,
            format!("this user may not open it (mode {:o})", file.mode),
            "sudo chgrp render /dev/dri/renderD* && sudo chmod 660 /dev/dri/renderD*; udev's rules do so at boot",
        ),
        (Some(_), Opened::Failed(error)) => Finding::fault(
            CHECK,
            format!("it cannot be opened: {error}"),
            "sudo dmesg | grep -i virtio names the reason",
        ),
    }
}

fn features(device: &Device) -> Finding {
    const CHECK: &str = "device-features";
    let lacks = || format!("the device or the kernel lacks: {}", device.lacks.join(", "));
    match device.lacks[..] {
        [] => Finding::ok(CHECK, "3D commands, blobs, contexts of a kind and a window"),
        [WINDOW] => Finding::fault(
            CHECK,
            lacks() + ", for which the firmware has found no place",
            "give the daemon a --window-size of 64GiB or less, or the VM what `vhost-user-vulkan recipe` prints with that --window-size \
             (OVMF: -fw_cfg name=opt/ovmf/X-PciMmio64Mb,string=262144 for 128GiB)",
        ),
        _ => Finding::fault(
            CHECK,
            lacks(),
            "use the device of `vhost-user-vulkan recipe` in QEMU 11.1 or newer (not virtio-gpu-pci, nor vhost-user-gpu-pci)",
        ),
    }
}

fn capset(device: &Device) -> Finding {
    const CHECK: &str = "capability-set";
    let remedy = "let the VMM connect this device to a running vhost-user-vulkan";
    let bytes = match &device.capset {
        Ok(bytes) => bytes,
        Err(reason) => return Finding::fault(CHECK, format!("there is no Venus: {reason}"), remedy),
    };
    // The fields of `struct virgl_renderer_capset_venus`.
    let word = |at: usize| {
        bytes.get(at..at + 4).map_or(0, |word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
    };
    let (format, vulkan, protocol) = (word(0), word(4), word(12));
    if format != 1 {
        return Finding::fault(
            CHECK,
            format!("the host speaks version {format} of Venus' wire format, Mesa version 1"),
            remedy,
        );
    }
    // Bit 0 says that the mask is valid.
    let extensions =
        (20..148).step_by(4).map(|at| word(at).count_ones()).sum::<u32>().saturating_sub(word(20) & 1);
    let ours = if word(160) == u32::from_le_bytes(*b"VUV1") { "offered" } else { "not offered" };
    let (major, minor, patch) = (vulkan >> 22 & 0x7f, vulkan >> 12 & 0x3ff, vulkan & 0xfff);
    Finding::ok(
        CHECK,
        format!(
            "Venus: wire format {format}, protocol {protocol}, up to Vulkan {major}.{minor}.{patch}, {extensions} extensions, features of the patched driver {ours}"
        ),
    )
}

fn loader(facts: &Facts) -> Finding {
    const CHECK: &str = "vulkan-loader";
    match &facts.loader {
        Ok(library) => Finding::ok(CHECK, library.path.display().to_string()),
        Err(missing) => loader::missing(CHECK, *missing),
    }
}

/// Returns a driver that programs use.
fn used(facts: &Facts) -> Option<&Driver> {
    let venus = !facts.vn_debug.split(',').any(|word| word == "vtest");
    facts.drivers.iter().find(|driver| venus && driver.library.is_ok() && driver.hidden_by.is_empty())
}

fn driver(facts: &Facts) -> Finding {
    const CHECK: &str = "venus-driver";
    let install = "sudo apt-get install mesa-vulkan-drivers of Mesa 23.2 or newer, which Debian 13 and Ubuntu 22.04 have (Arch: vulkan-virtio)";
    if let Some(Driver { manifest, library: Ok(library), lacks, .. }) = used(facts) {
        let path = library.path.display();
        return match lacks.needed.is_empty() {
            true => Finding::ok(CHECK, format!("{path} by {}", manifest.display())),
            false => Finding::fault(
                CHECK,
                format!("{path} needs libraries that are missing: {}", lacks.needed.join(", ")),
                debian::remedy(&lacks.needed),
            ),
        };
    }
    if let Some(driver) = manifests::least_hidden(&facts.drivers) {
        return match driver.hidden() {
            Some((reason, remedy)) => {
                Finding::fault(CHECK, format!("{reason} {}", driver.manifest.display()), remedy)
            }
            None => Finding::fault(
                CHECK,
                format!("VN_DEBUG={} makes it look for a vtest server", facts.vn_debug),
                "unset VN_DEBUG",
            ),
        };
    }
    if let Some(driver) = facts.drivers.iter().find(|driver| driver.library != Err(NoLibrary::NoManifest)) {
        let manifest = driver.manifest.display();
        return match driver.library {
            Err(NoLibrary::Missing(Missing::Foreign)) => Finding::fault(
                CHECK,
                format!("{} is for another kind of processor", driver.name),
                "install Mesa's Vulkan drivers of the system's own kind of processor: sudo apt-get install mesa-vulkan-drivers",
            ),
            Err(NoLibrary::Missing(Missing::Absent)) => Finding::fault(
                CHECK,
                format!("{manifest} names {}, which does not exist", driver.name),
                "sudo apt-get install --reinstall mesa-vulkan-drivers",
            ),
            _ => Finding::fault(
                CHECK,
                format!("{manifest} is malformed"),
                "sudo apt-get install --reinstall mesa-vulkan-drivers",
            ),
        };
    }
    match &facts.named_by {
        Some((name, value)) => Finding::fault(
            CHECK,
            format!("{name}={value} names no manifest of it, and none is installed"),
            format!("unset {name}, and {install}"),
        ),
        None => Finding::fault(CHECK, "Mesa's Venus driver is not installed", install),
    }
}

/// Returns the version of the driver that programs use.
fn mesa_version(facts: &Facts) -> Option<&str> {
    used(facts)?.library.as_ref().ok()?.mesa.as_deref()
}

/// Returns whether the driver has the patches of `guest-driver-patches`.
fn is_patched(version: &str) -> bool {
    version.contains("+vuv")
}

fn mesa(facts: &Facts) -> Finding {
    const CHECK: &str = "mesa";
    if used(facts).is_none() {
        return Finding::skipped(CHECK, "no Venus driver is used");
    }
    let Some(text) = mesa_version(facts) else {
        return Finding::skipped(
            CHECK,
            "the driver does not say of which version it is; 23.2 or newer is needed",
        );
    };
    match version(text) {
        Some(number) if number < MESA_MIN => Finding::fault(
            CHECK,
            format!("Mesa {text} speaks an older protocol than the host"),
            "install Mesa 23.2 or newer, which Debian 13 and Ubuntu 22.04 have",
        ),
        _ if is_patched(text) => Finding::ok(CHECK, format!("Mesa {text}, with the patches of this project")),
        _ => Finding::ok(CHECK, format!("Mesa {text}")),
    }
}

fn waits(facts: &Facts) -> Finding {
    const CHECK: &str = "waits";
    let Some((text, number)) = mesa_version(facts).and_then(|text| Some((text, version(text)?))) else {
        return Finding::skipped(CHECK, "no version of Mesa is known");
    };
    let asks = |word| facts.vn_perf.split(',').any(|set| set == word);
    match number {
        number if number < MESA_MIN => Finding::skipped(CHECK, "Mesa is too old"),
        number if number >= MESA_KERNEL_FENCES => {
            Finding::ok(CHECK, format!("brief: fences of Mesa {text} are those of the kernel"))
        }
        _ if is_patched(text) => Finding::ok(CHECK, "brief: the patched driver does not sleep at once"),
        _ if asks("no_fence_feedback") && asks("no_semaphore_feedback") => {
            Finding::ok(CHECK, "brief: VN_PERF makes the driver ask the host")
        }
        _ => Finding::warning(
            CHECK,
            format!(
                "each wait takes about 225 µs or more, because Mesa {text} sleeps between its looks at memory"
            ),
            "set VN_PERF=no_fence_feedback,no_semaphore_feedback, or install the driver of guest-driver-patches (Debian 13)",
        ),
    }
}
