//! The checks of the kernel's features that confine and limit workers.

use crate::host::facts::{Facts, SWITCHES};
use crate::host::given::{Descriptors, Sandbox};
use crate::report::Finding;

/// The newest version of Landlock that the daemon uses.
const LANDLOCK: u32 = 6;
/// The controllers that keep VMs apart.
const CONTROLLERS: [&str; 3] = ["memory", "pids", "cpu"];
/// The threads that one worker may have.
const WORKER_THREADS: u64 = 2048;

pub(super) fn sandbox(facts: &Facts) -> Finding {
    const CHECK: &str = "sandbox";
    match &facts.given.sandbox {
        Sandbox::NoLauncher(reason) => Finding::fault(
            CHECK,
            format!("the process that starts workers does not start: {reason}"),
            "look at the limits on processes (ulimit -u, TasksMax=) and whether /proc is mounted",
        ),
        Sandbox::Tried { lacks, .. } if lacks.is_empty() => {
            Finding::ok(CHECK, "the system offers all parts of the sandbox")
        }
        Sandbox::Tried { lacks, strict } => {
            let reason = format!("the system lacks: {}", lacks.join(", "));
            let remedy = format!("{}; --sandbox=degraded does without", remedy(facts, lacks));
            Finding::unless_minor(*strict, CHECK, reason, remedy)
        }
    }
}

/// Returns the remedy that gives this system the missing features.
fn remedy(facts: &Facts, lacks: &[String]) -> String {
    let lacks_users = lacks.iter().any(|part| part.starts_with("user namespace"));
    let forbidding = SWITCHES.into_iter().find_map(|name| {
        let value = *facts.namespace_switches.get(name)?;
        // AppArmor's switch forbids with 1, the other switches with 0.
        match (name.contains("restrict"), value) {
            (true, 1..) if facts.user.user != 0 => Some((name, 0)),
            (false, 0) => Some((name, if name.contains("max") { 10_000 } else { 1 })),
            _ => None,
        }
    });
    match forbidding {
        _ if lacks_users && facts.in_chroot => "start it outside of the chroot (systemd: RootDirectory= is one as well)".into(),
        Some((name, value)) if lacks_users => {
            let profile = if name.contains("apparmor") { ", or give the program an AppArmor profile with `userns,`" } else { "" };
            format!("sudo sysctl -w {name}={value}, and a line in /etc/sysctl.d{profile}")
        }
        _ if lacks.iter().all(|part| part.starts_with("filter")) => {
            "use a kernel with CONFIG_SECCOMP_FILTER".into()
        }
        _ => "start it outside of the container, or give that CAP_SYS_ADMIN and profiles of AppArmor and seccomp that allow unshare and mount".into(),
    }
}

pub(super) fn landlock(facts: &Facts) -> Finding {
    const CHECK: &str = "landlock";
    match facts.given.landlock {
        0 => Finding::warning(
            CHECK,
            "the kernel has no Landlock, the second wall around workers",
            "boot a kernel of version 5.13 or newer with `landlock` in its lsm= parameter",
        ),
        version if version < LANDLOCK => Finding::ok(
            CHECK,
            format!("version {version}; version {LANDLOCK} (Linux 6.12) has all that the daemon uses"),
        ),
        version => Finding::ok(CHECK, format!("version {version} or newer")),
    }
}

pub(super) fn functions(facts: &Facts) -> Finding {
    const CHECK: &str = "kernel";
    match facts.kernel_lacks.is_empty() {
        true => Finding::ok(CHECK, "it has memory files and descriptors of processes"),
        false => Finding::fault(
            CHECK,
            format!("the kernel or a filter of system calls refuses {}", facts.kernel_lacks.join(", ")),
            "use a kernel of version 5.4 or newer; in a container, give it a seccomp profile that allows these calls",
        ),
    }
}

pub(super) fn control_groups(facts: &Facts) -> Finding {
    const CHECK: &str = "control-groups";
    let groups = &facts.groups;
    let Some(mount) = &groups.mount else {
        return Finding::warning(
            CHECK,
            "control groups of version 2 are not mounted: a VM's workers have no limits of their own",
            "boot with systemd.unified_cgroup_hierarchy=1",
        );
    };
    let lacks: Vec<&str> =
        CONTROLLERS.into_iter().filter(|name| !groups.controllers.iter().any(|has| has == name)).collect();
    match lacks.is_empty() {
        true => Finding::ok(
            CHECK,
            format!(
                "{} has memory, pids and cpu; a unit with Delegate=yes may divide its group",
                mount.display()
            ),
        ),
        false => Finding::warning(
            CHECK,
            format!(
                "{} lacks the controllers {}: a VM's workers have no such limits",
                mount.display(),
                lacks.join(", ")
            ),
            "boot with systemd.unified_cgroup_hierarchy=1 cgroup_no_v1=all",
        ),
    }
}

pub(super) fn descriptors(facts: &Facts) -> Finding {
    const CHECK: &str = "open-files";
    let Descriptors { limit, wanted, left } = facts.given.descriptors;
    let remedy = "LimitNOFILE=524288 in the unit, or `ulimit -Hn 524288` as root before the start";
    match left {
        0 => Finding::fault(CHECK, format!("a limit of {limit} open files leaves a guest nothing"), remedy),
        _ if left < wanted => Finding::warning(
            CHECK,
            format!("{limit} open files leave a guest {left} of {wanted} resources"),
            remedy,
        ),
        _ => Finding::ok(CHECK, format!("{limit} are enough for {wanted} resources of a guest")),
    }
}

pub(super) fn tasks(facts: &Facts) -> Finding {
    const CHECK: &str = "tasks";
    match &facts.tasks {
        Some((limit, what)) if *limit < WORKER_THREADS => Finding::warning(
            CHECK,
            format!(
                "{what} allows {limit} processes and threads; one guest program may take {WORKER_THREADS}"
            ),
            "raise it: TasksMax= and LimitNPROC= of the unit, or `ulimit -u`",
        ),
        Some((limit, what)) => Finding::ok(CHECK, format!("{what} allows {limit} processes and threads")),
        None => Finding::ok(CHECK, "nothing limits processes and threads but the kernel"),
    }
}
