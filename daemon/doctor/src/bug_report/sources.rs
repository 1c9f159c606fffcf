//! The sources of a report: files of the system, and its journal.

use crate::commands::{in_path, said};
use crate::manifests;
use crate::system::System;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The folder with the settings of daemons of one VM, each in a file `NAME.env`.
const FOLDER: &str = "/etc/vhost-user-vulkan";
/// The most files that are read there, and the most bytes of each.
const FILES_MAX: usize = 32;
const FILE_BYTES: u64 = 64 << 10;
/// The remedy if this user may not read a source.
const AS_ROOT: &str = "run it as root (sudo) if this user may not";

/// The question to the journal: the last lines that the services of the package have logged.
const JOURNAL: [&str; 7] = [
    "--quiet",
    "--no-pager",
    "--no-hostname",
    "--output=short-iso",
    "--lines=500",
    "--unit=vhost-user-vulkan",
    "--unit=vhost-user-vulkan@*",
];

/// Returns the versions of this program, the system, the kernel, and Mesa's drivers.
pub(super) fn versions(system: &System, program: &str) -> String {
    let release = system.read("/etc/os-release").unwrap_or_default();
    let name = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    let kernel = rustix::system::uname();
    let mut lines = vec![
        program.to_owned(),
        name.unwrap_or("an unknown system").trim_matches('"').to_owned(),
        format!("Linux {} {}", kernel.release().to_string_lossy(), kernel.machine().to_string_lossy()),
    ];
    for driver in manifests::drivers(system) {
        let Ok(library) = driver.library else { continue };
        let version =
            library.mesa.map_or_else(|| "no version of Mesa".to_owned(), |mesa| format!("Mesa {mesa}"));
        lines.push(format!("{} ({version})", library.path.display()));
    }
    lines.join("\n")
}

/// Returns the files of settings, each with its text or the reason why the text is missing.
pub(super) fn settings(system: &System, vms: Option<&Path>) -> Vec<(PathBuf, String)> {
    let names = system.names(FOLDER).into_iter().filter(|name| name.ends_with(".env"));
    let of_one_vm = names.map(|name| Path::new(FOLDER).join(name));
    let paths = vms.map(Path::to_owned).into_iter().chain(of_one_vm).take(FILES_MAX);
    paths.map(|path| (path.clone(), text(system, &path))).collect()
}

fn text(system: &System, path: &Path) -> String {
    let mut bytes = Vec::new();
    let opened = outside::open(system.path(path)).map_err(std::io::Error::from);
    let read = opened.and_then(|file| file.take(FILE_BYTES).read_to_end(&mut bytes));
    match read {
        Ok(_) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) => format!("cannot be read: {error}; {AS_ROOT}"),
    }
}

/// Returns the end of the services' log, or the reason why it is missing.
pub(super) fn log(system: &System) -> String {
    let Some(journal) = in_path(system, "journalctl") else {
        return "there is no journalctl: add the daemon's log, from its standard error".to_owned();
    };
    match said(&journal, &JOURNAL) {
        Ok(text) if text.trim().is_empty() => format!(
            "the journal shows nothing of vhost-user-vulkan and vhost-user-vulkan@*: {AS_ROOT}, or add the log from the daemon's standard error"
        ),
        Ok(text) => text,
        Err(error) => format!("{}: {error}; {AS_ROOT}", journal.display()),
    }
}
