//! Hosts that no test can make of this machine. `tests/tests/behaviour/doctor.rs` has the hosts that a test can make.

use super::*;
use crate::expected;
use crate::libraries::Library;
use crate::manifests::Driver;
use crate::needs::Lacks;
use crate::report::{Finding, Verdict};
use crate::system::made::put;
use crate::system::{Permissions, System, User};
use std::collections::BTreeMap;

/// Returns the facts of a host in working order, with a GPU and a broker.
fn sound() -> Facts {
    let library = || Library { path: "/usr/lib/libx.so".into(), mesa: None };
    let gpu = |name: &str, software| Gpu { name: name.into(), software, usable: Ok("memory files".into()) };
    Facts {
        given: Given {
            sandbox: Sandbox::Tried { lacks: Vec::new(), strict: true },
            landlock: 6,
            gpus: Ok(vec![gpu("GPU", false), gpu("llvmpipe", true)]),
            descriptors: Descriptors { limit: 524_288, wanted: 65_536, left: 65_536 },
            configuration: None,
            broker: Some(("/run/control".into(), Ok(2))),
        },
        user: User { user: 1000, groups: vec![1000, 105] },
        loader: Ok(library()),
        drivers: vec![Driver {
            manifest: "/usr/share/vulkan/icd.d/gpu.json".into(),
            name: "libx.so".into(),
            library: Ok(library()),
            lacks: Lacks::default(),
            named_by: None,
            hidden_by: Vec::new(),
        }],
        nodes: vec![(
            "/dev/dri/renderD128".into(),
            "render".into(),
            Permissions { mode: 0o660, owner: 0, group: 105 },
        )],
        nvidia: Nvidia::default(),
        namespace_switches: BTreeMap::new(),
        in_chroot: false,
        kernel_lacks: Vec::new(),
        groups: Groups {
            mount: Some("/sys/fs/cgroup".into()),
            own: Some("/sys/fs/cgroup/system.slice/gpu.service".into()),
            controllers: ["memory", "pids", "cpu"].map(str::to_owned).to_vec(),
        },
        tasks: Some((16_384, "ulimit -u".into())),
        qemu: Some(Qemu { path: "/usr/bin/qemu".into(), version: Ok("11.1.2".into()), has_device: true }),
        crosvm: None,
        access_control: AccessControl::default(),
        vhost_regions: None,
        socket: None,
        vmm_user: None,
        vm_sockets: Vec::new(),
        folders: Vec::new(),
    }
}

fn troubles(facts: &Facts) -> Vec<Finding> {
    expected::troubles(check(facts))
}

/// Changes a sound host, and asserts that exactly this check has a finding, with this remedy.
#[track_caller]
fn finds(change: impl FnOnce(&mut Facts), check: &str, verdict: Verdict, remedy: &str) {
    let mut facts = sound();
    change(&mut facts);
    expected::only(&troubles(&facts), check, verdict, remedy);
}

fn gpu(facts: &mut Facts, at: usize) -> &mut Gpu {
    &mut facts.given.gpus.as_mut().unwrap()[at]
}

#[test]
fn a_sound_host_has_no_trouble() {
    assert_eq!(troubles(&sound()), []);
}

#[test]
fn back_ends_that_take_few_regions() {
    let few = |facts: &mut Facts| facts.vhost_regions = Some(64);
    finds(few, "other-back-ends", Verdict::Warning, "max_mem_regions=512");
    finds(few, "other-back-ends", Verdict::Warning, "--max-maps 56;");
    let mut enough = sound();
    enough.vhost_regions = Some(512);
    assert_eq!(troubles(&enough), []);
}

#[test]
fn gpus_that_cannot_be_used() {
    let refused = || Err("its driver can neither import memory files nor export dma-bufs".to_owned());
    finds(|facts| gpu(facts, 1).usable = refused(), "gpu", Verdict::Warning, "newest driver");
    let mut none = sound();
    (0..2).for_each(|at| gpu(&mut none, at).usable = refused());
    let found: Vec<_> = troubles(&none).into_iter().map(|finding| (finding.check, finding.verdict)).collect();
    assert_eq!(found, [("gpu", Verdict::Warning), ("gpu", Verdict::Warning), ("gpus", Verdict::Fault)]);
    // While one GPU works, defects of other GPUs are no fault.
    let other = |facts: &mut Facts| facts.nvidia.has_device = true;
    finds(other, "nvidia", Verdict::Warning, "modprobe nvidia");
    finds(|facts| facts.user.groups.clear(), "device-nodes", Verdict::Warning, "usermod -aG render");
    let nothing = |facts: &mut Facts| {
        facts.given.gpus = Err("no Vulkan device".into());
        facts.drivers.clear();
    };
    finds(nothing, "vulkan-drivers", Verdict::Fault, "mesa-vulkan-drivers");
}

#[test]
fn drivers_whose_libraries_are_not_all_there() {
    let x11 = || Lacks { needed: vec!["libX11.so.6".into()], opened: vec!["libEGL.so.1".into()] };
    let nvidia = |facts: &mut Facts| {
        let driver = Driver { name: "libGLX_nvidia.so.0".into(), lacks: x11(), ..facts.drivers.remove(0) };
        facts.drivers = vec![driver];
        facts.nvidia = Nvidia {
            has_device: true,
            module: Some("580.95.05".into()),
            libraries: vec!["580.95.05".into()],
            has_node: true,
        };
    };
    let nothing = |facts: &mut Facts| {
        nvidia(facts);
        facts.given.gpus = Err("no Vulkan device: ERROR_INCOMPATIBLE_DRIVER".into());
    };
    finds(nothing, "vulkan-drivers", Verdict::Fault, "sudo apt-get install libegl1 libx11-6 (");
    // Libraries that the driver opens when it runs are missing too, and no others.
    let opened = |facts: &mut Facts| {
        nothing(facts);
        facts.drivers[0].lacks.needed.clear();
    };
    finds(opened, "vulkan-drivers", Verdict::Fault, "sudo apt-get install libegl1 (");
    // If a software driver works, the broken driver of the GPU is a fault, but the daemon starts.
    let mut software = sound();
    nvidia(&mut software);
    software.given.gpus.as_mut().unwrap().remove(0);
    software.drivers.insert(0, sound().drivers.remove(0));
    let found: Vec<_> =
        troubles(&software).into_iter().map(|finding| (finding.check, finding.verdict)).collect();
    assert_eq!(found, [("nvidia", Verdict::Fault), ("gpus", Verdict::Warning)]);
    // If a GPU works, another broken driver is a warning, which does not name the libraries that the driver opens when it runs.
    let mut beside = sound();
    beside.drivers.push(Driver { lacks: x11(), ..sound().drivers.remove(0) });
    let found = troubles(&beside);
    expected::only(&found, "vulkan-drivers", Verdict::Warning, "sudo apt-get install libx11-6 (");
    assert!(found[0].reason.contains("needs libraries that are missing: libX11.so.6"), "{found:?}");
    beside.drivers[1].hidden_by = vec!["VK_DRIVER_FILES=/x".into()];
    assert_eq!(troubles(&beside), []);
}

/// The variables; the verdict with an installed driver, and the verdict without one.
type Case<'a> = (&'a [(&'a str, &'a str)], &'a str, &'a str);

/// Returns the verdict about drivers on a host whose probe finds no GPU, with or without a driver in the system's folder, and with these variables:
/// `ok` or the remedy.
fn drivers(root: &std::path::Path, variables: &[(&str, &str)]) -> String {
    let system = System::below(root).without_variables();
    let system = variables.iter().fold(system, |system, (name, value)| system.with(name, value));
    let mut facts = sound();
    facts.given.gpus = Err("no Vulkan device".into());
    facts.drivers = crate::manifests::drivers(&system);
    let found = check(&facts).into_iter().find(|finding| finding.check == "vulkan-drivers").unwrap();
    found.remedy.unwrap_or_else(|| "ok".into())
}

#[test]
fn the_variable_is_named_that_leaves_no_driver() {
    const FILES: &str = "VK_DRIVER_FILES";
    const OLD: &str = "VK_ICD_FILENAMES";
    const ADD: &str = "VK_ADD_DRIVER_FILES";
    const SELECT: &str = "VK_LOADER_DRIVERS_SELECT";
    const DISABLE: &str = "VK_LOADER_DRIVERS_DISABLE";
    const INSTALL: &str = "install the GPU's driver";
    let (bare, installed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let put = |root: &tempfile::TempDir, path: &str, bytes: &[u8]| put(root.path(), path, bytes);
    // A program's header makes a library of the right kind.
    let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let manifest = |library: &str| format!(r#"{{"ICD": {{"library_path": "{library}"}}}}"#);
    for root in [&bare, &installed] {
        put(root, "usr/lib/libx.so", &program[..64]);
        put(root, "opt/other.json", manifest("libx.so").as_bytes());
        put(root, "opt/gone.json", manifest("libgone.so").as_bytes());
    }
    put(&installed, "usr/share/vulkan/icd.d/usual.json", manifest("libx.so").as_bytes());
    let (other, gone) = ("/opt/other.json", "/opt/gone.json");
    let cases: &[Case<'_>] = &[
        (&[], "ok", INSTALL),
        (&[(FILES, other)], "ok", "ok"),
        (&[(OLD, other)], "ok", "ok"),
        (&[(FILES, gone)], "unset VK_DRIVER_FILES, or", "unset VK_DRIVER_FILES, or"),
        (&[(OLD, gone)], "unset VK_ICD_FILENAMES, or", "unset VK_ICD_FILENAMES, or"),
        (&[(FILES, other), (OLD, gone)], "ok", "ok"),
        (&[(FILES, gone), (OLD, other)], "unset VK_DRIVER_FILES, or", "unset VK_DRIVER_FILES, or"),
        (&[(ADD, other)], "ok", "ok"),
        (&[(ADD, gone)], "unset VK_ADD_DRIVER_FILES, or", "unset VK_ADD_DRIVER_FILES, or"),
        (&[(ADD, other), (FILES, gone)], "unset VK_DRIVER_FILES, or", "unset VK_DRIVER_FILES, or"),
        (&[(SELECT, "none*")], "unset VK_LOADER_DRIVERS_SELECT", INSTALL),
        (&[(DISABLE, "*")], "unset VK_LOADER_DRIVERS_DISABLE", INSTALL),
        (&[(SELECT, "usual*"), (DISABLE, "*")], "ok", INSTALL),
        (
            &[(SELECT, "none*"), (DISABLE, "*")],
            "unset VK_LOADER_DRIVERS_SELECT VK_LOADER_DRIVERS_DISABLE",
            INSTALL,
        ),
        (
            &[(FILES, other), (DISABLE, "*")],
            "unset VK_LOADER_DRIVERS_DISABLE",
            "unset VK_LOADER_DRIVERS_DISABLE",
        ),
        (
            &[(OLD, other), (DISABLE, "*")],
            "unset VK_LOADER_DRIVERS_DISABLE",
            "unset VK_LOADER_DRIVERS_DISABLE",
        ),
        (
            &[(ADD, other), (DISABLE, "*")],
            "unset VK_LOADER_DRIVERS_DISABLE",
            "unset VK_LOADER_DRIVERS_DISABLE",
        ),
        (
            &[(FILES, other), (SELECT, "none*")],
            "unset VK_LOADER_DRIVERS_SELECT",
            "unset VK_LOADER_DRIVERS_SELECT",
        ),
        (
            &[(FILES, other), (SELECT, "usual*")],
            "unset VK_LOADER_DRIVERS_SELECT",
            "unset VK_LOADER_DRIVERS_SELECT",
        ),
        (&[(ADD, other), (SELECT, "other*")], "ok", "ok"),
        (
            &[(ADD, other), (SELECT, "none*")],
            "unset VK_LOADER_DRIVERS_SELECT",
            "unset VK_LOADER_DRIVERS_SELECT",
        ),
        (
            &[(ADD, gone), (SELECT, "gone*")],
            "unset VK_LOADER_DRIVERS_SELECT",
            "unset VK_ADD_DRIVER_FILES, or",
        ),
        (&[(FILES, gone), (DISABLE, "usual*")], "unset VK_DRIVER_FILES, or", "unset VK_DRIVER_FILES, or"),
        (&[(FILES, gone), (DISABLE, "*")], "unset VK_DRIVER_FILES VK_LOADER_DRIVERS_DISABLE", INSTALL),
    ];
    for (variables, with_driver, without) in cases {
        for (root, expected) in [(&installed, with_driver), (&bare, without)] {
            let said = drivers(root.path(), variables);
            let fits = if expected.ends_with(" or") || *expected == INSTALL {
                said.starts_with(expected)
            } else {
                said == *expected
            };
            assert!(fits, "{variables:?}: {said:?}, not {expected:?}");
        }
    }
}

/// Returns a change that gives the host a file with VMs that have these windows.
fn with_windows(windows: &[Window]) -> impl Fn(&mut Facts) {
    let vm = |(at, window): (usize, &Window)| Vm {
        name: format!("vm{at}"),
        socket: None,
        state: None,
        gpus: Ok(()),
        window: Some(window.clone()),
    };
    let vms: Vec<Vm> = windows.iter().enumerate().map(vm).collect();
    move |facts| {
        facts.given.configuration = Some(Configuration { path: "/vms.toml".into(), vms: Ok(vms.clone()) })
    }
}

#[test]
fn windows_that_are_too_small_for_the_memory_of_the_gpu() {
    let large = Window { maps_device_memory: true, small: None };
    let of = Small { what: "the window is small".into(), remedy: "--window-size 128GiB or less".into() };
    let small = Window { maps_device_memory: false, small: Some(of) };
    finds(
        with_windows(&[large.clone(), small.clone()]),
        "window",
        Verdict::Warning,
        "--window-size 128GiB or less (",
    );
    let mut facts = sound();
    with_windows(&[small.clone(), large.clone(), small])(&mut facts);
    let said = troubles(&facts).remove(0).reason;
    assert_eq!(said, "[vm.vm0]: the window is small; 1 more VMs have such windows");
    with_windows(&[large])(&mut facts);
    assert_eq!(troubles(&facts), []);
}

#[test]
fn kernels() {
    finds(|facts| facts.given.landlock = 0, "landlock", Verdict::Warning, "lsm=");
    let lacks = |facts: &mut Facts| facts.kernel_lacks = vec!["memory files (memfd_create): ENOSYS".into()];
    finds(lacks, "kernel", Verdict::Fault, "5.4 or newer");
    let launcher = |facts: &mut Facts| {
        facts.given.sandbox = Sandbox::NoLauncher("Resource temporarily unavailable".into());
        facts.given.gpus = Err(String::new());
    };
    finds(launcher, "sandbox", Verdict::Fault, "TasksMax=");
    let sandbox = |lack: &'static str| {
        move |facts: &mut Facts| {
            facts.given.sandbox = Sandbox::Tried { lacks: vec![lack.into()], strict: true };
        }
    };
    finds(sandbox("filter of system calls (EINVAL)"), "sandbox", Verdict::Fault, "CONFIG_SECCOMP_FILTER");
    finds(sandbox("mount namespace (EPERM)"), "sandbox", Verdict::Fault, "CAP_SYS_ADMIN");
}

#[test]
fn vmms() {
    let crosvm = |has_vhost_user| Some(Crosvm { path: "/usr/bin/crosvm".into(), has_vhost_user });
    let only_crosvm =
        |has_vhost_user| move |facts: &mut Facts| (facts.qemu, facts.crosvm) = (None, crosvm(has_vhost_user));
    finds(only_crosvm(false), "vmm", Verdict::Warning, "current crosvm");
    let mut facts = sound();
    only_crosvm(true)(&mut facts);
    assert_eq!(troubles(&facts), []);
    let both = |facts: &mut Facts| {
        facts.crosvm = crosvm(true);
        facts.qemu = sound().qemu.map(|qemu| Qemu { version: Ok("10.0.0".into()), ..qemu });
    };
    finds(both, "vmm", Verdict::Warning, "trixie-backports");
    let broken = |facts: &mut Facts| {
        facts.qemu = sound().qemu.map(|qemu| Qemu { version: Err("it ends with 127".into()), ..qemu });
    };
    finds(broken, "vmm", Verdict::Fault, "--qemu");
}
