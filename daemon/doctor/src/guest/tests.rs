//! VMs that no test can boot: old kernels, other devices, other hosts. `tests/tests/vm/doctor.rs` has the VMs that a test can boot.

use super::*;
use crate::expected;
use crate::libraries::{Library, Missing};
use crate::manifests::{Driver, NoLibrary};
use crate::needs::Lacks;
use crate::report::{Finding, Verdict};
use crate::system::{Permissions, User};

/// Returns the capability set of a host like this one.
fn capset() -> Vec<u8> {
    let mut bytes = vec![0; 168];
    for (at, word) in [(0, 1), (4, 0x40_4159), (12, 3), (20, 0b111), (160, u32::from_le_bytes(*b"VUV1"))] {
        bytes[at..at + 4].copy_from_slice(&u32::to_le_bytes(word));
    }
    bytes
}

fn library(mesa: &str) -> Result<Library, NoLibrary> {
    Ok(Library { path: "/usr/lib/libvulkan_virtio.so".into(), mesa: Some(mesa.into()) })
}

/// Returns the facts of a VM in working order.
fn sound() -> Facts {
    let device = Device { lacks: Vec::new(), capset: Ok(capset()) };
    let permissions = Permissions { mode: 0o660, owner: 0, group: 105 };
    Facts {
        kernel: "6.12.48+deb13-amd64".into(),
        memory_kib: Some(4 << 20),
        devices: vec!["virtio2".into()],
        module: Module::Loaded,
        nodes: vec![Node {
            name: "renderD128".into(),
            permissions: Some(("render".into(), permissions)),
            opened: Opened::Device(device),
            largest_memory: Some(8 << 30),
        }],
        user: User { user: 1000, groups: vec![1000, 105] },
        loader: Ok(Library { path: "/usr/lib/libvulkan.so.1".into(), mesa: None }),
        drivers: vec![Driver {
            manifest: "/usr/share/vulkan/icd.d/virtio_icd.json".into(),
            name: "libvulkan_virtio.so".into(),
            library: library("25.0.7-2+deb13u1+vuv1"),
            lacks: Lacks::default(),
            named_by: None,
            hidden_by: Vec::new(),
        }],
        named_by: None,
        vn_debug: String::new(),
        vn_perf: String::new(),
    }
}

fn troubles(facts: &Facts) -> Vec<Finding> {
    expected::troubles(check(facts))
}

/// Changes a sound VM, and asserts that exactly this check has a finding, with this remedy.
#[track_caller]
fn finds(change: impl FnOnce(&mut Facts), check: &str, verdict: Verdict, remedy: &str) {
    let mut facts = sound();
    change(&mut facts);
    expected::only(&troubles(&facts), check, verdict, remedy);
}

fn device(facts: &mut Facts, change: impl FnOnce(&mut Device)) {
    match &mut facts.nodes[0].opened {
        Opened::Device(device) => change(device),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_sound_vm_has_no_trouble() {
    assert_eq!(troubles(&sound()), []);
    let said = check(&sound()).into_iter().find(|finding| finding.check == "capability-set").unwrap();
    assert_eq!(
        said.reason,
        "Venus: wire format 1, protocol 3, up to Vulkan 1.4.345, 2 extensions, features of the patched driver offered"
    );
}

#[test]
fn kernels() {
    let jammy = |facts: &mut Facts| facts.kernel = "5.15.0-91-generic".into();
    finds(jammy, "kernel", Verdict::Fault, "5.16 or newer");
    finds(jammy, "kernel", Verdict::Fault, "linux-generic-hwe-22.04");
    let cloud = |facts: &mut Facts| {
        facts.kernel = "6.12.48+deb13-cloud-amd64".into();
        facts.module = Module::Absent;
        facts.nodes.clear();
    };
    finds(cloud, "kernel-module", Verdict::Fault, "linux-image-amd64");
    let old = |facts: &mut Facts| {
        facts.kernel = "6.1.0-50-amd64".into();
        facts.nodes.clear();
    };
    finds(old, "render-node", Verdict::Fault, "--scanouts 1");
    finds(|facts| facts.nodes.clear(), "render-node", Verdict::Fault, "sudo dmesg");
    finds(|facts| facts.memory_kib = Some(400 << 10), "memory", Verdict::Warning, "-m 1G");
}

#[test]
fn devices() {
    let plain = |facts: &mut Facts| device(facts, |device| device.lacks = vec!["blob resources"]);
    finds(plain, "device-features", Verdict::Fault, "vhost-user-vulkan recipe");
    let hidden = |facts: &mut Facts| device(facts, |device| device.lacks = vec![facts::WINDOW]);
    finds(hidden, "device-features", Verdict::Fault, "X-PciMmio64Mb");
    let neither =
        |facts: &mut Facts| device(facts, |device| device.lacks = vec!["blob resources", facts::WINDOW]);
    finds(neither, "device-features", Verdict::Fault, "not virtio-gpu-pci");
    let other = |facts: &mut Facts| {
        device(facts, |device| device.capset = Err("the device does not offer it".into()))
    };
    finds(other, "capability-set", Verdict::Fault, "a running vhost-user-vulkan");
    let newer = |facts: &mut Facts| device(facts, |device| device.capset.as_mut().unwrap()[0] = 2);
    finds(newer, "capability-set", Verdict::Fault, "a running vhost-user-vulkan");
    let failed = |facts: &mut Facts| facts.nodes[0].opened = Opened::Failed("I/O error".into());
    finds(failed, "render-node", Verdict::Fault, "sudo dmesg");
}

fn reason(facts: &Facts, check_name: &str) -> String {
    check(facts).into_iter().find(|finding| finding.check == check_name).unwrap().reason
}

#[test]
fn the_window_is_told_with_its_size() {
    assert_eq!(
        reason(&sound(), "mapped-memory"),
        "programs map memory of the host through a window of 8192 MiB"
    );
    let mut unknown = sound();
    unknown.nodes[0].largest_memory = None;
    assert_eq!(
        reason(&unknown, "mapped-memory"),
        "programs map memory of the host through a window of unknown size"
    );
    let mut without = sound();
    device(&mut without, |device| device.lacks = vec![facts::WINDOW]);
    assert_eq!(reason(&without, "mapped-memory"), "there is no window (device-features)");
}

#[test]
fn the_window_is_the_largest_memory_with_a_place() {
    let root = tempfile::tempdir().unwrap();
    let node = root.path().join("sys/class/drm/renderD128");
    std::fs::create_dir_all(node.join("device/virtio2")).unwrap();
    std::os::unix::fs::symlink("/sys/bus/virtio/drivers/virtio_gpu", node.join("device/virtio2/driver"))
        .unwrap();
    let size = |table: &str| {
        std::fs::write(node.join("device/resource"), table).unwrap();
        Facts::gather(&crate::system::System::below(root.path())).nodes[0].largest_memory
    };
    let small = "0x0000000000000000 0x0000000000000000 0x0000000000000000\n0x00000000febd0000 0x00000000febd3fff 0x0000000000040200\n";
    let registers = "0x0000380000000000 0x0000380000003fff 0x000000000014220c\n";
    assert_eq!(size(&format!("{small}{registers}")), Some(16 << 10));
    let window = "0x0000381000000000 0x000038101fffffff 0x000000000014220c\n";
    assert_eq!(size(&format!("{small}{window}{registers}")), Some(512 << 20));
    let unset = "0x0000000000000000 0x0000001fffffffff 0x000000002014220c\n";
    assert_eq!(size(&format!("{small}{registers}{unset}")), Some(16 << 10));
    assert_eq!(size("what is this\n"), None);
}

#[test]
fn several_devices() {
    let two = |facts: &mut Facts| {
        facts.devices.push("virtio3".into());
        facts.nodes.push(Node { name: "renderD129".into(), ..facts.nodes[0].clone() });
    };
    finds(two, "device", Verdict::Warning, "--gpu several times");
    // A display beside the GPU is no fault of the GPU.
    let mut display = sound();
    two(&mut display);
    let Opened::Device(other) = &mut display.nodes[1].opened else { panic!("it was opened") };
    (other.lacks, other.capset) =
        (vec!["3D commands", facts::WINDOW], Err("the device does not offer it".into()));
    let found: Vec<_> =
        troubles(&display).into_iter().map(|finding| (finding.check, finding.verdict)).collect();
    let warning = |check| (check, Verdict::Warning);
    assert_eq!(found, [warning("device"), warning("device-features"), warning("capability-set")]);
    // No program can use a device without a render node.
    let mut hidden = sound();
    hidden.devices.push("virtio3".into());
    assert_eq!(troubles(&hidden), []);
}

#[test]
fn drivers_and_waits() {
    let mesa = |text: &'static str| move |facts: &mut Facts| facts.drivers[0].library = library(text);
    finds(mesa("22.3.6-1+deb12u2"), "mesa", Verdict::Fault, "23.2 or newer");
    for old in ["23.1.9-1", "20.3.5"] {
        finds(mesa(old), "mesa", Verdict::Fault, "Debian 13 and Ubuntu 22.04");
    }
    for oldest in ["23.2.1-1ubuntu3.1~22.04.4", "24.0.9-0ubuntu0.1"] {
        finds(mesa(oldest), "waits", Verdict::Warning, "VN_PERF=");
    }
    finds(mesa("26.1.6-1"), "waits", Verdict::Warning, "VN_PERF=");
    let mut newest = sound();
    mesa("26.2.6-1")(&mut newest);
    assert_eq!(troubles(&newest), []);
    let foreign = |facts: &mut Facts| facts.drivers[0].library = Err(NoLibrary::Missing(Missing::Foreign));
    finds(foreign, "venus-driver", Verdict::Fault, "own kind of processor");
    let lacking = |facts: &mut Facts| facts.drivers[0].lacks.needed = vec!["libdrm.so.2".into()];
    finds(lacking, "venus-driver", Verdict::Fault, "sudo apt-get install libdrm2");
    let (files, disable) = ("VK_DRIVER_FILES=/x.json", "VK_LOADER_DRIVERS_DISABLE=*");
    for (variables, remedy) in [
        (&[files][..], "unset VK_DRIVER_FILES"),
        (&[disable], "unset VK_LOADER_DRIVERS_DISABLE"),
        (&[files, disable], "unset VK_DRIVER_FILES VK_LOADER_DRIVERS_DISABLE"),
    ] {
        let mut facts = sound();
        facts.drivers[0].hidden_by = variables.iter().map(|variable| (*variable).to_owned()).collect();
        expected::only(&troubles(&facts), "venus-driver", Verdict::Fault, remedy);
    }
    finds(|facts| facts.drivers.clear(), "venus-driver", Verdict::Fault, "mesa-vulkan-drivers");
}
