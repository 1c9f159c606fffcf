//! The checks of the programs that connect: VMMs, their confinement, and their way to a socket.

use crate::host::facts::Facts;
use crate::host::programs::{DEVICE, Qemu};
use crate::host::sockets::SocketFile;
use crate::libraries::version;
use crate::report::Finding;
use crate::system::{Permissions, User};
use std::path::Path;

/// The first QEMU whose device carries a window.
const QEMU_MIN: (u32, u32) = (11, 1);
/// The remedy that brings such a QEMU.
const NEWER: &str = "install QEMU 11.1 or newer (Debian 13: sudo apt-get install -t trixie-backports qemu-system-x86), or name one with --qemu";

/// The most memory regions of a VM: QEMU aborts beyond this number.
const REGIONS: u64 = 512;
/// The regions that a VM has without mappings, and some spare ones.
const OWN_REGIONS: u64 = 8;

pub(super) fn vmm(facts: &Facts) -> Finding {
    const CHECK: &str = "vmm";
    let crosvm = facts.crosvm.as_ref().filter(|crosvm| crosvm.has_vhost_user);
    let Some(Qemu { path, version: text, has_device }) = &facts.qemu else {
        return match (crosvm, &facts.crosvm) {
            (Some(crosvm), _) => Finding::ok(CHECK, format!("{} has --vhost-user", crosvm.path.display())),
            (None, Some(crosvm)) => Finding::warning(
                CHECK,
                format!("{} has no --vhost-user", crosvm.path.display()),
                "install a current crosvm, or QEMU 11.1 or newer",
            ),
            (None, None) => Finding::warning(CHECK, "the search path has neither QEMU nor crosvm", NEWER),
        };
    };
    let path = path.display();
    let wrong = match text {
        Err(reason) => format!("{path} does not tell its version: {reason}"),
        Ok(text) if version(text).is_none_or(|number| number < QEMU_MIN) => {
            format!("{path} is QEMU {text}, whose devices carry no window")
        }
        Ok(text) if !has_device => format!("{path} is QEMU {text} without the device {DEVICE}"),
        Ok(text) => return Finding::ok(CHECK, format!("{path} is QEMU {text} and has {DEVICE}")),
    };
    Finding::unless_minor(crosvm.is_none(), CHECK, wrong, NEWER)
}

/// Returns the finding about other vhost devices: QEMU passes all memory regions of a VM to each, and each mapping is a region.
pub(super) fn other_back_ends(facts: &Facts) -> Finding {
    const CHECK: &str = "other-back-ends";
    match facts.vhost_regions {
        None => Finding::skipped(CHECK, "the kernel's module vhost is not loaded"),
        Some(regions) if regions < REGIONS => Finding::warning(
            CHECK,
            format!(
                "vhost-net takes {regions} memory regions of a VM, and each mapping of a guest's program is one: beyond that the VM's network \
                 cannot start again"
            ),
            format!(
                "echo options vhost max_mem_regions={REGIONS} | sudo tee /etc/modprobe.d/vhost.conf, and load the module anew; or give the daemons \
                 of VMs with vhost=on --max-maps {}; docs/maps.md has other back ends",
                regions.saturating_sub(OWN_REGIONS).max(1)
            ),
        ),
        Some(regions) => Finding::ok(CHECK, format!("vhost-net takes {regions} memory regions")),
    }
}

pub(super) fn access_control(facts: &Facts) -> Finding {
    const CHECK: &str = "access-control";
    let control = facts.access_control;
    match (control.libvirt, control.apparmor, control.selinux) {
        (false, ..) => Finding::skipped(CHECK, "libvirt is not installed"),
        (true, _, true) => Finding::warning(
            CHECK,
            "SELinux confines libvirt's VMs, which may not connect to the daemon's socket",
            "`vhost-user-vulkan recipe libvirt` prints the rules; sudo ausearch -m avc -ts recent shows what was refused",
        ),
        (true, true, _) if !control.has_rule => Finding::warning(
            CHECK,
            "AppArmor confines libvirt's VMs, and none of its rules names the daemon's socket",
            "`vhost-user-vulkan recipe libvirt` prints the rule for /etc/apparmor.d/local/abstractions/libvirt-qemu",
        ),
        (true, true, _) => Finding::ok(CHECK, "AppArmor's rules for libvirt name this daemon"),
        (true, false, false) => Finding::ok(CHECK, "neither AppArmor nor SELinux confines libvirt's VMs"),
    }
}

pub(super) fn socket(facts: &Facts) -> Finding {
    const CHECK: &str = "socket";
    let Some(socket) = &facts.socket else {
        return Finding::skipped(CHECK, "--socket-path names none");
    };
    let path = socket.path.display();
    match socket.file {
        None => Finding::fault(
            CHECK,
            format!("there is no {path}"),
            format!("start the daemon with --socket-path {path}, and look at its log"),
        ),
        Some((false, _)) => Finding::fault(
            CHECK,
            format!("{path} is no socket"),
            "remove it, or give daemon and VMM another --socket-path",
        ),
        Some(_) if !socket.is_served => Finding::fault(
            CHECK,
            format!("no process listens at {path}: a daemon that has ended left it behind"),
            format!("start the daemon with --socket-path {path}; it takes the file's place"),
        ),
        Some((true, file)) => match &facts.vmm_user {
            None => Finding::ok(
                CHECK,
                format!("a process listens at {path}; give --vmm-user to check whether a VMM may connect"),
            ),
            Some((name, None)) => Finding::fault(
                CHECK,
                format!("there is no user {name}"),
                "give --vmm-user the user that the VMM runs as",
            ),
            Some((name, Some(user))) => reach(socket, &file, name, user).unwrap_or_else(|| {
                Finding::ok(CHECK, format!("a process listens at {path}, and {name} may connect"))
            }),
        },
    }
}

/// Returns the reason why a user cannot connect, if there is one.
fn reach(socket: &SocketFile, file: &Permissions, name: &str, user: &User) -> Option<Finding> {
    let fault = |path: &Path, remedy| {
        let reason = format!("the VMM's user {name} may not pass {}", path.display());
        Some(Finding::fault("socket", reason, remedy))
    };
    if let Some((folder, _)) = socket.folders.iter().find(|(_, folder)| !user.may(1, folder)) {
        return fault(
            folder,
            format!("sudo chmod o+x {}, or choose a --socket-path below /run", folder.display()),
        );
    }
    match user.may(2, file) {
        true => None,
        false => fault(
            &socket.path,
            format!(
                "start the daemon with --socket-group GROUP, a group of {name} (such as kvm), and --socket-mode 0660"
            ),
        ),
    }
}
