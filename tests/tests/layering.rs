//! The modules of the daemon use each other only along the arrows of the table at the head of `daemon/src/lib.rs`, and
//! third-party crates stay where they belong.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Crates with one owner: what may name them, as path prefixes below the repository.
const OWNERS: &[(&str, &[&str])] = &[
    // And programs that play the application in a guest.
    ("ash", &["daemon/src/vulkan", "tests/src/bin/"]),
    ("vhost", &["daemon/src/transport", "tests/"]),
    ("virtio_queue", &["daemon/src/transport", "tests/"]),
    ("vm_memory", &["daemon/src/transport", "tests/"]),
    ("postcard", &["daemon/src/ipc"]),
    ("landlock", &["daemon/src/sandbox"]),
    ("seccompiler", &["daemon/src/sandbox"]),
];

/// Crates the wire formats must do without: anything that does I/O or knows a driver.
const FOREIGN_TO_PROTOCOL: &[&str] =
    &["ash", "libc", "rustix", "vhost", "vm-memory", "virtio-queue", "epoll", "log", "daemon"];

/// What the state machine must do without: it gets events and returns effects.
const FOREIGN_TO_DEVICE: &[&str] = &[
    "std::fs",
    "std::net",
    "std::os::unix::net",
    "std::process",
    "std::thread",
    "std::time::Instant",
    "rustix",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the workspace").into()
}

fn sources(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for entry in
        fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())).map(Result::unwrap)
    {
        let path = entry.path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let code = fs::read_to_string(&path).unwrap();
            found.push((path, code));
        }
    }
    found
}

/// Lines without comments.
fn code_lines(code: &str) -> impl Iterator<Item = &str> {
    code.lines().map(|line| line.split("//").next().unwrap_or_default())
}

/// Words behind each `prefix` in a line.
fn words_after<'a>(line: &'a str, prefix: &'a str) -> impl Iterator<Item = &'a str> {
    let starts = line.match_indices(prefix).map(|(at, _)| at);
    let starts = starts.filter(|&at| !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_'));
    starts.map(move |at| {
        line[at + prefix.len()..].split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default()
    })
}

/// module -> what it may use, from the table in the head of `lib.rs`.
fn table() -> BTreeMap<String, BTreeSet<String>> {
    let head = fs::read_to_string(root().join("daemon/src/lib.rs")).unwrap();
    let rows = head.lines().filter_map(|line| line.strip_prefix("//! | `"));
    rows.map(|row| {
        let (module, rest) = row.split_once('`').unwrap();
        let uses = rest.trim_end_matches('|').rsplit('|').next().unwrap();
        (
            module.to_owned(),
            uses.split(',').map(|word| word.trim().to_owned()).filter(|word| !word.is_empty()).collect(),
        )
    })
    .collect()
}

#[test]
fn every_module_of_the_daemon_is_in_the_table() {
    let table = table();
    let lib = fs::read_to_string(root().join("daemon/src/lib.rs")).unwrap();
    let modules: BTreeSet<String> =
        code_lines(&lib).flat_map(|line| words_after(line, "mod ")).map(str::to_owned).collect();
    assert!(modules.len() > 3, "no modules found: {modules:?}");
    for module in modules {
        assert!(table.contains_key(&module), "`{module}` is not in the layering table of daemon/src/lib.rs");
    }
}

#[test]
fn modules_of_the_daemon_use_only_what_the_table_allows() {
    let table = table();
    let folder = root().join("daemon/src");
    let mut wrong = Vec::new();
    for (path, code) in sources(&folder) {
        let relative = path.strip_prefix(&folder).unwrap();
        let module = relative.iter().next().unwrap().to_string_lossy().trim_end_matches(".rs").to_owned();
        let Some(allowed) = table.get(&module) else { continue };
        for line in code_lines(&code) {
            let own = words_after(line, "crate::").filter(|&used| table.contains_key(used));
            let wire = line.match_indices("protocol::").map(|_| "protocol");
            for used in own.chain(wire) {
                if used != module && !allowed.contains(used) {
                    wrong.push(format!("{}: {module} must not use {used}", relative.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn crates_with_an_owner_are_named_nowhere_else() {
    let mut wrong = Vec::new();
    for member in ["daemon/src", "daemon/sched/src", "protocol/src", "tests/src"] {
        for (path, code) in sources(&root().join(member)) {
            let relative = path.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
            for (name, owners) in OWNERS {
                let named = code_lines(&code).any(|line| {
                    let path_use = line.match_indices(&format!("{name}::")).any(|(at, _)| {
                        !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':')
                    });
                    path_use || line.trim_start().starts_with(&format!("use {name};"))
                });
                if named && !owners.iter().any(|owner| relative.starts_with(owner)) {
                    wrong.push(format!("{relative} must not use {name}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn wire_formats_depend_on_nothing_that_does_io() {
    let manifest = fs::read_to_string(root().join("protocol/Cargo.toml")).unwrap();
    for name in FOREIGN_TO_PROTOCOL {
        let named = manifest
            .lines()
            .any(|line| line.starts_with(&format!("{name} ")) || line.starts_with(&format!("{name}.")));
        assert!(!named, "protocol must not depend on {name}");
    }
    let lib = fs::read_to_string(root().join("protocol/src/lib.rs")).unwrap();
    assert!(lib.contains("#![forbid(unsafe_code)]"));
}

#[test]
fn device_state_machine_does_no_io() {
    let mut wrong = Vec::new();
    for (path, code) in sources(&root().join("daemon/src/device")) {
        for line in code_lines(code.split("#[cfg(test)]").next().unwrap_or_default()) {
            for name in FOREIGN_TO_DEVICE {
                if line.contains(name) {
                    wrong.push(format!("{}: {}", path.display(), line.trim()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
