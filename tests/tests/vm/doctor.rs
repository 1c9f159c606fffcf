//! `vhost-user-vulkan-doctor` in a stock Debian 13 guest that is broken on purpose, in one way after the other: in each state the doctor names the
//! one fault, and the remedy. The doctor is the static program that users copy into their guests.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tests::daemon_process::{DaemonProcess, doctor_for_guests};
use tests::packages::{HostVulkan, PackageRoot, Suite, patched_driver};
use tests::vm::{Guest, Options, Script, Vm};

/// One state of the guest: its name, the commands that make it, and the doctor's finding (check, verdict, a part of the remedy), if any. The commands
/// after a `;;` undo the state.
type Case = (&'static str, &'static str, Option<[&'static str; 3]>);

const MANIFEST: &str = "/usr/share/vulkan/icd.d/virtio_icd.json";
const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/libvulkan_virtio.so";

const CASES: &[Case] = &[
    ("sound", "ask", None),
    ("no VN_PERF", "VN_PERF= ask", Some(["waits", "warning", "VN_PERF=no_fence_feedback,no_semaphore_feedback"])),
    ("half of VN_PERF", "VN_PERF=no_fence_feedback ask", Some(["waits", "warning", "no_semaphore_feedback"])),
    ("another driver", "VK_DRIVER_FILES=/absent.json ask", Some(["venus-driver", "fault", "unset VK_DRIVER_FILES"])),
    ("the old variable", "VK_ICD_FILENAMES=/absent.json ask", Some(["venus-driver", "fault", "unset VK_ICD_FILENAMES"])),
    ("disabled", "VK_LOADER_DRIVERS_DISABLE='*virtio*' ask", Some(["venus-driver", "fault", "unset VK_LOADER_DRIVERS_DISABLE"])),
    ("not selected", "VK_LOADER_DRIVERS_SELECT='lvp*' ask", Some(["venus-driver", "fault", "unset VK_LOADER_DRIVERS_SELECT"])),
    ("vtest", "VN_DEBUG=vtest ask", Some(["venus-driver", "fault", "unset VN_DEBUG"])),
    ("a user of the group", "chgrp 44 $NODE; chmod 660 $NODE; as in", None),
    ("a user not of the group", "as out", Some(["render-node", "fault", "sudo usermod -aG render"])),
    ("a node for root only", "chmod 600 $NODE; as in ;; chmod 660 $NODE", Some(["render-node", "fault", "chmod 660"])),
    ("no node", "mv $NODE /tmp/node; ask ;; mv /tmp/node $NODE", Some(["render-node", "fault", "mount devtmpfs"])),
    ("no manifest", "mv $MANIFEST /m; ask ;; mv /m $MANIFEST", Some(["venus-driver", "fault", "apt-get install mesa-vulkan-drivers"])),
    ("no library", "mv $LIBRARY /l; ask ;; mv /l $LIBRARY", Some(["venus-driver", "fault", "--reinstall mesa-vulkan-drivers"])),
    ("half a manifest", "mv $MANIFEST /m; head -c 20 /m >$MANIFEST; ask ;; mv /m $MANIFEST", Some(["venus-driver", "fault", "--reinstall mesa-vulkan-drivers"])),
    (
        "another kind of processor",
        r"cp $LIBRARY /l; printf '\267' | dd of=$LIBRARY bs=1 seek=18 conv=notrunc 2>/dev/null; ask ;; mv /l $LIBRARY",
        Some(["venus-driver", "fault", "the system's own kind of processor"]),
    ),
    ("no loader", "mv $LOADER /v; ask ;; mv /v $LOADER", Some(["vulkan-loader", "fault", "apt-get install libvulkan1"])),
    ("an older driver", "mv $LIBRARY /l; cp /old.so $LIBRARY; ask ;; mv /l $LIBRARY", Some(["mesa", "fault", "Mesa 23.2 or newer"])),
    ("the patched driver", "mkdir -p /etc/ld.so.conf.d /opt/patched; cp /patched.so /opt/patched/libvulkan_virtio.so
        echo 'include /etc/ld.so.conf.d/*.conf' >/etc/ld.so.conf; echo /opt/patched >/etc/ld.so.conf.d/00-patched.conf; VN_PERF= ask ;; rm /etc/ld.so.conf", None),
    ("sound again", "ask", None),
    ("no module loaded", "rmmod virtio_gpu; mkdir -p $MODULES; touch $MODULES/virtio-gpu.ko.xz; ask", Some(["kernel-module", "fault", "sudo modprobe virtio_gpu"])),
    ("no module", "rm $MODULES/virtio-gpu.ko.xz; ask", Some(["kernel-module", "fault", "linux-image-amd64"])),
    ("no device", "insmod /modules/virtio_gpu.ko; echo 1 >$(dirname $DEVICE)/remove; ask", Some(["device", "fault", "vhost-user-vulkan recipe"])),
];

/// The functions and names that cases use.
const START: &str = "unset VK_DRIVER_FILES
export VN_PERF=no_fence_feedback,no_semaphore_feedback
NODE=/dev/dri/renderD128 LOADER=/usr/lib/x86_64-linux-gnu/libvulkan.so.1
MODULES=/lib/modules/$(uname -r)/kernel/drivers/gpu/drm/virtio
DEVICE=$(readlink -f /sys/class/drm/renderD128/device); case $DEVICE in */virtio*) ;; *) DEVICE=$DEVICE/x ;; esac
printf 'root:x:0:0::/:/bin/sh\\nin:x:1000:1000::/tmp:/bin/sh\\nout:x:1001:1001::/tmp:/bin/sh\\n' >/etc/passwd
printf 'root:x:0:\\nrender:x:44:in\\nin:x:1000:\\nout:x:1001:\\n' >/etc/group
ask() { /doctor --json; echo \"status $?\"; }
as() { su $1 -c '/doctor --json; echo status $?'; }
/doctor
";

#[test]
#[ignore = "boots two machines; the doctor's own tests judge the same facts"]
fn a_guest_that_is_broken_is_told_what_and_how_to_put_it_right() -> Result<()> {
    let guest = Guest::build(Suite::Trixie)?;
    // Debian 12 has no Venus driver, and no suite has one between Debian 12's Mesa and 25.0.
    let stock =
        PackageRoot::with(Suite::Trixie, &["mesa-vulkan-drivers"])?.libraries().join("libvulkan_virtio.so");
    let old = older(std::fs::read(stock)?);
    let mut text = format!("mkdir -p /etc\nMANIFEST={MANIFEST} LIBRARY={LIBRARY}\n{START}");
    for (name, case, _) in CASES {
        let (broken, right) = case.split_once(";;").unwrap_or((case, ""));
        text += &format!("echo 'case {name}'\n{broken}\n{right}\n");
    }
    let script = Script::new(&(text + "echo 'case end'\n"))
        .with_file("doctor", program()?)
        .with_file("old.so", old)
        .with_file("patched.so", std::fs::read(patched_driver()?)?);
    let daemon = DaemonProcess::start(&HostVulkan::lavapipe()?, &[])?;
    let outcome = Vm::run(&guest, &script, &Options { gpus: vec![daemon.socket()], ..Options::default() });
    let output = outcome.map_err(|error| error.context(daemon.log()))?.output;
    println!("{output}");
    let mut wrong = Vec::new();
    for (name, _, expected) in CASES {
        if let Err(error) = judge(&output, name, *expected) {
            wrong.push(format!("{name}: {error:#}"));
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    daemon.stop()?;
    Ok(())
}

/// The most bytes of the program for VMs (docs/doctor.md).
const PROGRAM_BYTES: usize = 1_500_000;

/// The kind of program header that names a dynamic loader.
const PT_INTERP: u32 = 3;

/// The program for VMs, which needs no library of the VM.
fn program() -> Result<Vec<u8>> {
    let program = std::fs::read(doctor_for_guests()?)?;
    ensure!(program.len() < PROGRAM_BYTES, "{} bytes", program.len());
    // The program headers of a 64-bit ELF file: 56 bytes each, the kind first.
    let number = |at: usize| {
        program.get(at..at + 4).map(|bytes| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    };
    let (start, count) =
        (number(32).context("too short")? as usize, number(56).context("too short")? as usize & 0xffff);
    ensure!(
        count > 2 && (0..count).all(|header| number(start + 56 * header) != Some(PT_INTERP)),
        "it has a dynamic loader"
    );
    Ok(program)
}

/// Kernels before 6.4 refuse a device without a scanout.
#[test]
#[ignore = "boots two machines; the doctor's own tests judge the same facts"]
fn an_old_kernel_without_a_scanout_is_told_which_option_is_missing() -> Result<()> {
    let guest = Guest::build_with_kernel(Suite::Trixie, Suite::Bookworm)?;
    let script = Script::new(
        "export VN_PERF=no_fence_feedback,no_semaphore_feedback; echo 'case old'; /doctor --json; echo \"status $?\"",
    );
    let script = script.with_file("doctor", program()?);
    let daemon = DaemonProcess::start(&HostVulkan::lavapipe()?, &["--scanouts", "0"])?;
    let options = Options { gpus: vec![daemon.socket()], ..Options::default() };
    let output = Vm::run(&guest, &script, &options)?.output;
    judge(&output, "old", Some(["render-node", "fault", "--scanouts 1"]))?;
    daemon.stop()?;
    Ok(())
}

/// Checks the finding in one case.
fn judge(output: &str, name: &str, expected: Option<[&str; 3]>) -> Result<()> {
    let (_, rest) = output.split_once(&format!("case {name}\n")).context("the case did not run")?;
    let printed = rest.split("case ").next().unwrap_or_default();
    let json = printed.lines().find(|line| line.starts_with('{')).context("no report")?;
    let report: Value = serde_json::from_str(json)?;
    let checks = report["checks"].as_array().context("no checks")?;
    let troubles: Vec<_> = checks
        .iter()
        .filter(|check| ["warning", "fault"].contains(&check["verdict"].as_str().unwrap_or_default()))
        .collect();
    let fits = |[check, verdict, remedy]: [&str; 3]| {
        let text = |key: &str| troubles[0][key].as_str().unwrap_or_default();
        text("check") == check && text("verdict") == verdict && text("remedy").contains(remedy)
    };
    let right = match expected {
        None => troubles.is_empty(),
        Some(expected) => troubles.len() == 1 && fits(expected),
    };
    ensure!(right, "not {expected:?}: {troubles:#?}");
    let status = i32::from(troubles.iter().any(|check| check["verdict"] == "fault"));
    ensure!(printed.contains(&format!("status {status}")), "another status than {status}");
    Ok(())
}

/// A driver with the version of Mesa 22.
fn older(mut library: Vec<u8>) -> Vec<u8> {
    let text = b"\x0025.0.7";
    for at in 0..library.len() - text.len() {
        if library[at..].starts_with(text) {
            library[at + 2] = b'2';
        }
    }
    library
}
