//! The checks of drivers and GPUs. The probe decides: if it has found a usable GPU, all other defects are warnings.

use crate::debian;
use crate::host::facts::Facts;
use crate::host::given::{Gpu, Sandbox};
use crate::libraries::Missing;
use crate::loader;
use crate::manifests::{self, Driver, NoLibrary};
use crate::report::Finding;
use std::collections::BTreeSet;

/// Returns whether a GPU that fits works.
fn any(facts: &Facts, fits: impl Fn(&Gpu) -> bool) -> bool {
    facts.given.gpus.as_ref().is_ok_and(|gpus| gpus.iter().any(|gpu| gpu.usable.is_ok() && fits(gpu)))
}

/// Returns whether the probe has found no GPU, although its sandbox works.
fn found_nothing(facts: &Facts) -> bool {
    let found = facts.given.gpus.as_ref().is_ok_and(|gpus| !gpus.is_empty());
    let runs =
        matches!(&facts.given.sandbox, Sandbox::Tried { lacks, strict } if lacks.is_empty() || !strict);
    !found && runs
}

pub(super) fn loader(facts: &Facts) -> Finding {
    const CHECK: &str = "vulkan-loader";
    match &facts.loader {
        Ok(library) => Finding::ok(CHECK, library.path.display().to_string()),
        Err(_) if !found_nothing(facts) => Finding::ok(CHECK, "the probe has found one"),
        Err(missing) => loader::missing(CHECK, *missing),
    }
}

/// Returns the libraries that a driver lacks. Libraries that the driver is known to open when it runs count only if no real GPU works.
fn lacking(facts: &Facts, driver: &Driver) -> Vec<String> {
    let opened: &[String] = if any(facts, |gpu| !gpu.software) { &[] } else { &driver.lacks.opened };
    [&driver.lacks.needed[..], opened].concat()
}

/// Returns the fault of a driver's manifest, or of its library.
fn broken(facts: &Facts, driver: &Driver) -> Option<String> {
    let manifest = driver.manifest.display();
    match &driver.library {
        _ if !driver.hidden_by.is_empty() => None,
        Err(NoLibrary::NoManifest) => Some(format!("there is no {manifest}")),
        Err(NoLibrary::Malformed) => Some(format!("{manifest} is malformed")),
        Err(NoLibrary::Missing(Missing::Absent)) => {
            Some(format!("{manifest} names {}, which does not exist", driver.name))
        }
        // Systems with libraries for two kinds of processor have such libraries.
        Err(NoLibrary::Missing(Missing::Foreign)) => None,
        Ok(library) => {
            let lacking = lacking(facts, driver);
            let reason = || {
                format!("{} needs libraries that are missing: {}", library.path.display(), lacking.join(", "))
            };
            (!lacking.is_empty()).then(reason)
        }
    }
}

/// Returns whether the loader would and could use a driver.
fn is_usable(facts: &Facts, driver: &Driver) -> bool {
    driver.library.is_ok() && driver.hidden_by.is_empty() && lacking(facts, driver).is_empty()
}

/// Returns whether there is no driver at all that can be used.
fn nothing_left(facts: &Facts) -> bool {
    found_nothing(facts) && !facts.drivers.iter().any(|driver| is_usable(facts, driver))
}

/// Returns NVIDIA's driver, if its kernel module is loaded and missing libraries keep the driver from being loaded.
fn lacking_of_nvidia(facts: &Facts) -> Option<&Driver> {
    let is_it = |driver: &&Driver| {
        driver.name.contains("nvidia") && driver.library.is_ok() && broken(facts, driver).is_some()
    };
    facts.drivers.iter().find(is_it).filter(|_| facts.nvidia.module.is_some())
}

pub(super) fn drivers(facts: &Facts) -> Finding {
    const CHECK: &str = "vulkan-drivers";
    if facts.loader.is_err() && found_nothing(facts) {
        return Finding::skipped(CHECK, "there is no Vulkan loader");
    }
    let usable = facts.drivers.iter().filter(|driver| is_usable(facts, driver));
    let names: Vec<String> = usable.map(|driver| driver.manifest.display().to_string()).collect();
    let nothing_left = nothing_left(facts);
    // If other drivers work, the check `nvidia` reports NVIDIA's driver.
    let elsewhere = lacking_of_nvidia(facts).filter(|_| !nothing_left);
    let here = facts.drivers.iter().filter(|driver| elsewhere != Some(*driver));
    let broken: Vec<(String, &Driver)> =
        here.filter_map(|driver| Some((broken(facts, driver)?, driver))).collect();
    let hidden = manifests::least_hidden(&facts.drivers).and_then(Driver::hidden).filter(|_| nothing_left);
    match hidden {
        // If a variable names a broken driver in place of all others, the check reports that driver.
        Some((reason, remedy)) if !broken.iter().any(|(_, driver)| driver.is_instead()) => {
            Finding::fault(CHECK, reason + " all drivers", remedy)
        }
        _ if !broken.is_empty() => {
            let reasons: Vec<&str> = broken.iter().map(|(reason, _)| reason.as_str()).collect();
            let remedies: BTreeSet<String> = broken.iter().map(|(_, driver)| repair(facts, driver)).collect();
            let remedies: Vec<String> = remedies.into_iter().collect();
            Finding::unless_minor(nothing_left, CHECK, reasons.join(", "), remedies.join("; "))
        }
        _ if nothing_left => Finding::fault(
            CHECK,
            "no Vulkan driver is installed",
            "install the GPU's driver (NVIDIA: nvidia-vulkan-icd or libnvidia-gl; AMD, Intel and software: mesa-vulkan-drivers)",
        ),
        _ if names.is_empty() => Finding::ok(CHECK, "the probe has found some"),
        _ => Finding::ok(CHECK, names.join(", ")),
    }
}

/// Returns the remedy for a broken driver.
fn repair(facts: &Facts, driver: &Driver) -> String {
    match driver.named_by {
        _ if driver.library.is_ok() => debian::remedy(&lacking(facts, driver)),
        Some(name) => format!("unset {name}, or set it to manifests of drivers that are installed"),
        None => "reinstall that driver's package, or remove the manifest that was left behind".into(),
    }
}

pub(super) fn nvidia(facts: &Facts) -> Finding {
    const CHECK: &str = "nvidia";
    let serious = !any(facts, |gpu| !gpu.software);
    let fault = |reason: String, remedy: &str| Finding::unless_minor(serious, CHECK, reason, remedy);
    let nvidia = &facts.nvidia;
    if any(facts, |gpu| gpu.name.contains("NVIDIA")) {
        return Finding::ok(CHECK, "the driver works");
    }
    let Some(module) = &nvidia.module else {
        return match nvidia.has_device {
            true => fault(
                "there is a GPU of NVIDIA's, and the kernel module nvidia is not loaded".into(),
                "sudo modprobe nvidia, or install NVIDIA's driver (Debian: nvidia-driver) and its module for this kernel",
            ),
            false => Finding::skipped(CHECK, "no GPU of NVIDIA's needs its driver"),
        };
    };
    if nvidia.libraries.is_empty() && serious {
        return fault(
            format!("kernel module {module} is loaded, and its Vulkan libraries are not installed"),
            "install them (Debian: nvidia-vulkan-icd, Ubuntu: libnvidia-gl-*; in a container, let the NVIDIA container toolkit pass on `graphics`)",
        );
    }
    if !nvidia.libraries.is_empty() && !nvidia.libraries.contains(module) {
        return fault(
            format!(
                "kernel module {module} does not fit the libraries, which are of {}: the driver was upgraded under a running system",
                nvidia.libraries.join(", ")
            ),
            "reboot, or end all programs that use the GPU and run: sudo rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia && sudo modprobe nvidia",
        );
    }
    if !nvidia.has_node {
        return fault(
            "there is no /dev/nvidiactl".into(),
            "sudo nvidia-modprobe -u -c 0; in a container, pass /dev/nvidia* on",
        );
    }
    match lacking_of_nvidia(facts) {
        Some(_) if nothing_left(facts) => {
            Finding::skipped(CHECK, "the driver lacks libraries (vulkan-drivers)")
        }
        Some(driver) => fault(broken(facts, driver).unwrap_or_default(), &repair(facts, driver)),
        None => Finding::ok(CHECK, format!("kernel module and libraries are of version {module}")),
    }
}

pub(super) fn nodes(facts: &Facts) -> Finding {
    const CHECK: &str = "device-nodes";
    if facts.nodes.is_empty() {
        return Finding::skipped(CHECK, "there is neither /dev/dri/renderD* nor /dev/nvidia*");
    }
    let closed: Vec<_> = facts.nodes.iter().filter(|(_, _, file)| !facts.user.may(6, file)).collect();
    let Some((path, group, file)) = closed.first() else {
        let paths: Vec<&str> = facts.nodes.iter().map(|(path, ..)| path.as_str()).collect();
        return Finding::ok(CHECK, format!("this user may open {}", paths.join(", ")));
    };
    let remedy = match file.mode & 0o060 {
        0o060 => format!(
            "sudo usermod -aG {group} $USER, and log in again (a service: SupplementaryGroups={group})"
        ),
        _ => format!("sudo chmod a+rw {path}; udev's rules or nvidia-modprobe set modes at boot"),
    };
    let serious = !any(facts, |gpu| !gpu.software);
    Finding::unless_minor(
        serious,
        CHECK,
        format!("this user may not open {path} (group {group}, mode {:o})", file.mode),
        remedy,
    )
}

pub(super) fn gpus(facts: &Facts) -> Vec<Finding> {
    const CHECK: &str = "gpus";
    let gpus = match &facts.given.gpus {
        Ok(gpus) => gpus.as_slice(),
        Err(_) if [loader(facts), drivers(facts)].iter().any(|finding| finding.remedy.is_some()) => {
            return vec![Finding::skipped(CHECK, "there is no driver to ask")];
        }
        Err(_) if !found_nothing(facts) => {
            return vec![Finding::skipped(CHECK, "repair the sandbox first: drivers are asked inside it")];
        }
        Err(reason) => {
            return vec![Finding::fault(
                CHECK,
                reason,
                "run `vulkaninfo --summary` as this user, and with --sandbox=none if that works; docs/sandbox.md says how to add a driver",
            )];
        }
    };
    let of_gpu = |gpu: &Gpu| {
        let finding = match &gpu.usable {
            Ok(how) => Finding::ok("gpu", format!("guests can use it, with memory by {how}")),
            Err(reason) => Finding::warning(
                "gpu",
                format!("guests cannot use it: {reason}"),
                "install the newest driver of this GPU; docs/hardware.md says what a driver needs",
            ),
        };
        finding.about(&gpu.name)
    };
    let mut findings: Vec<Finding> = gpus.iter().map(of_gpu).collect();
    let usable = gpus.iter().filter(|gpu| gpu.usable.is_ok());
    let real = usable.clone().filter(|gpu| !gpu.software).count();
    findings.push(match (real, usable.count()) {
        (0, 0) => Finding::fault(
            CHECK,
            "no GPU can be used",
            "install the driver of a GPU, or mesa-vulkan-drivers for its software driver",
        ),
        (0, _) => Finding::warning(
            CHECK,
            "only a software driver can be used: guests compute on the processor",
            "install the driver of the machine's GPU, if it has one",
        ),
        (real, _) => Finding::ok(CHECK, format!("{real} can be used")),
    });
    findings
}
