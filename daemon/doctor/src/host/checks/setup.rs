//! The checks of the configuration, and of running daemons.

use crate::host::facts::Facts;
use crate::host::given::Window;
use crate::host::sockets::Folder;
use crate::report::Finding;

pub(super) fn configuration(facts: &Facts) -> Finding {
    const CHECK: &str = "configuration";
    let Some(file) = &facts.given.configuration else {
        return Finding::skipped(
            CHECK,
            "--config names no file, and /etc/vhost-user-vulkan/vms.toml does not exist",
        );
    };
    let path = file.path.display();
    let vms = match &file.vms {
        Ok(vms) => vms,
        Err(problem) => {
            return Finding::fault(
                CHECK,
                problem,
                format!("correct {path}; docs/sharing.md describes every key"),
            );
        }
    };
    let wrong = vms.iter().find_map(|vm| Some((vm, vm.gpus.as_ref().err()?)));
    match (wrong, &facts.given.gpus) {
        (Some((vm, reason)), Ok(_)) => Finding::fault(
            CHECK,
            format!("{path}: [vm.{}] gpu: {reason}", vm.name),
            "name a GPU of `vhost-user-vulkan --list-gpus`",
        ),
        _ => Finding::ok(CHECK, format!("{path} is right and has {} VMs", vms.len())),
    }
}

/// Returns the finding about the window. If it is smaller than the GPU's memory, guests cannot map that memory, and llama.cpp copies for each token.
pub(super) fn window(facts: &Facts) -> Finding {
    const CHECK: &str = "window";
    let vms = facts.given.configuration.iter().filter_map(|file| file.vms.as_ref().ok()).flatten();
    let known: Vec<(&str, &Window)> =
        vms.filter_map(|vm| Some((vm.name.as_str(), vm.window.as_ref()?))).collect();
    if known.is_empty() {
        return Finding::skipped(
            CHECK,
            "no VM with a known GPU is configured; a daemon of one VM logs its window",
        );
    }
    let mut small = known.iter().filter_map(|(name, window)| Some((name, window.small.as_ref()?)));
    if let Some((name, first)) = small.next() {
        let others = match small.count() {
            0 => String::new(),
            count => format!("; {count} more VMs have such windows"),
        };
        return Finding::warning(
            CHECK,
            format!("[vm.{name}]: {}{others}", first.what),
            format!("{} (docs/tuning.md)", first.remedy),
        );
    }
    let mapping = known.iter().filter(|(_, window)| window.maps_device_memory).count();
    Finding::ok(CHECK, format!("guests of {mapping} of {} VMs can map the GPU's own memory", known.len()))
}

pub(super) fn folders(facts: &Facts) -> Finding {
    const CHECK: &str = "folders";
    if facts.folders.is_empty() {
        return Finding::skipped(CHECK, "no configured VM has a folder");
    }
    let wrong = facts.folders.iter().find(|(.., state)| *state != Folder::Writable);
    let Some((vm, what, path, state)) = wrong else {
        return Finding::ok(
            CHECK,
            format!("the folders of all {} sockets and states can be written to", facts.folders.len()),
        );
    };
    let path = path.display();
    let place = format!("[vm.{vm}] {what}: {path}");
    match state {
        Folder::NotAFolder => {
            Finding::fault(CHECK, format!("{place} is no folder"), format!("remove it and: mkdir {path}"))
        }
        Folder::Forbidden => Finding::fault(
            CHECK,
            format!("{place} cannot be written to by this user"),
            format!("chown {path} to the user that the daemon runs as (and run this check as that user)"),
        ),
        Folder::Absent | Folder::Writable => Finding::fault(
            CHECK,
            format!("{place} does not exist"),
            format!("mkdir -p {path}, for the user that the daemon runs as"),
        ),
    }
}

pub(super) fn broker(facts: &Facts) -> Finding {
    const CHECK: &str = "broker";
    match &facts.given.broker {
        None => Finding::skipped(CHECK, "there is no control socket"),
        Some((path, Ok(vms))) => Finding::ok(CHECK, format!("{} answers and has {vms} VMs", path.display())),
        Some((path, Err(reason))) => Finding::warning(
            CHECK,
            format!("no daemon answers at the control socket: {reason}"),
            format!(
                "start the broker (systemctl start vhost-user-vulkan), which takes the place of {}; or name another with --control-socket",
                path.display()
            ),
        ),
    }
}

pub(super) fn clashes(facts: &Facts) -> Finding {
    const CHECK: &str = "clashes";
    if facts.vm_sockets.is_empty() {
        return Finding::skipped(CHECK, "no VM is configured");
    }
    if facts.given.broker.as_ref().is_some_and(|(_, answer)| answer.is_ok()) {
        return Finding::ok(CHECK, "a broker runs");
    }
    let occupied = |file: &(bool, _)| !file.0;
    match facts
        .vm_sockets
        .iter()
        .find(|socket| socket.is_served || socket.file.as_ref().is_some_and(occupied))
    {
        None => Finding::ok(CHECK, "no other process serves the sockets of the configured VMs"),
        Some(socket) if socket.is_served => Finding::fault(
            CHECK,
            format!("another process serves {}", socket.path.display()),
            "stop it (a daemon of one VM, systemctl stop vhost-user-vulkan@NAME), or give this VM another socket-path",
        ),
        Some(socket) => Finding::fault(
            CHECK,
            format!("{} exists and is no socket", socket.path.display()),
            "remove it, or give this VM another socket-path",
        ),
    }
}
