//! Tests which code may use which: modules by the tables in their parents' heads (`tests::sources::layers`), third-party crates only where they
//! belong, and that no package is unused.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use tests::sources::words::packages;
use tests::sources::{PACKAGES, Source, Tree, below, repository};

/// Crates with owners: the code that may name them, as path prefixes below the repository.
const OWNERS: &[(&str, &[&str])] = &[
    // Programs that play the application in a guest may name ash, too.
    ("ash", &["daemon/vulkan/src", "tests/src/bin/"]),
    ("vhost", &["daemon/src/transport", "tests/"]),
    ("virtio_queue", &["daemon/src/transport", "tests/"]),
    ("vm_memory", &["daemon/src/transport", "tests/"]),
    ("crossterm", &["daemon/src/watch"]),
    ("postcard", &["daemon/src/ipc"]),
    ("landlock", &["daemon/src/sandbox"]),
    ("seccompiler", &["daemon/src/sandbox"]),
    ("sd_notify", &["daemon/src/service"]),
];

/// Crates that the wire formats may not use: those that do I/O or know a driver.
const FOREIGN_TO_PROTOCOL: &[&str] =
    &["ash", "libc", "rustix", "vhost", "vm-memory", "virtio-queue", "epoll", "log", "daemon"];

/// Paths that the state machine may not use: it gets events and returns effects.
const FOREIGN_TO_DEVICE: &[&str] = &[
    "std::fs",
    "std::net",
    "std::os::unix::net",
    "std::process",
    "std::thread",
    "std::time::Instant",
    "rustix",
];

/// All packages, by the folders of their manifests: that of the fuzz targets has no modules.
fn manifests() -> impl Iterator<Item = &'static str> {
    PACKAGES.iter().copied().chain(["fuzz"])
}

#[test]
fn each_module_of_the_daemon_is_in_a_table() {
    let tree = Tree::of("daemon");
    let tables = tree.tables();
    assert!(
        tables.iter().any(|(head, _)| tree.modules[*head].file == "daemon/src/lib.rs"),
        "no table in lib.rs"
    );
}

#[test]
fn modules_use_only_what_the_tables_allow() {
    let mut wrong = Vec::new();
    for package in PACKAGES {
        let tree = Tree::of(package);
        for (head, table) in tree.tables() {
            wrong.extend(tree.against(head, &table));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn crates_with_an_owner_are_named_nowhere_else() {
    let mut wrong = Vec::new();
    for source in ["daemon", "protocol/src", "tests/src"].into_iter().flat_map(below) {
        let named = packages(std::slice::from_ref(&source));
        for (name, owners) in OWNERS {
            if named.contains(*name) && !owners.iter().any(|owner| source.path.starts_with(owner)) {
                wrong.push(format!("{} must not use {name}", source.path));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Dependencies that no code names: cargo compiles another dependency with their features.
const FOR_THEIR_FEATURES: &[&str] = &["daemon/doctor: syn-of-derives"];

fn manifest(folder: &str) -> toml::Table {
    let path = repository().join(folder).join("Cargo.toml");
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    text.parse().unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The dependencies of a package of all kinds: the name that its code uses, and the one that the workspace knows.
fn dependencies(manifest: &toml::Table) -> BTreeMap<String, String> {
    let kinds = ["dependencies", "dev-dependencies", "build-dependencies"];
    let mut tables: Vec<&toml::Table> = vec![manifest];
    tables.extend(
        manifest
            .get("target")
            .and_then(toml::Value::as_table)
            .into_iter()
            .flatten()
            .filter_map(|(_, v)| v.as_table()),
    );
    let entries =
        tables.into_iter().flat_map(|table| kinds.iter().filter_map(|kind| table.get(*kind)?.as_table()));
    let entries = entries.flatten().map(|(name, value)| {
        let package = value.get("package").and_then(toml::Value::as_str).unwrap_or(name);
        (name.clone(), package.to_owned())
    });
    entries.collect()
}

#[test]
fn wire_formats_depend_on_nothing_that_does_io() {
    let declared = dependencies(&manifest("protocol"));
    for name in FOREIGN_TO_PROTOCOL {
        assert!(!declared.values().any(|package| package == name), "protocol must not depend on {name}");
    }
}

#[test]
fn device_state_machine_does_no_io() {
    let tree = Tree::of("daemon");
    let mut wrong = Vec::new();
    let modules = tree.modules.iter().filter(|module| module.file.starts_with("daemon/src/device/"));
    for module in modules.filter(|module| !module.is_unshipped) {
        for written in module.paths.iter().filter(|written| !written.is_unshipped) {
            let path = written.path.join("::");
            let is_foreign = |name: &&&str| {
                path.strip_prefix(**name).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
            };
            if let Some(name) = FOREIGN_TO_DEVICE.iter().find(is_foreign) {
                wrong.push(format!("{}:{}: {name}", module.file, written.line));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The files of a package: packages in its folder are others.
fn files(package: &str) -> Vec<Source> {
    let is_of_another = |path: &str| {
        manifests().any(|other| other.len() > package.len() && path.starts_with(&format!("{other}/")))
    };
    below(package).into_iter().filter(|source| !is_of_another(&source.path)).collect()
}

/// The dependencies that no path in a file of the package begins with. Dependencies that only a feature names (`dep:`) must be used, too.
fn unused(package: &str) -> Vec<String> {
    let named = packages(&files(package));
    let declared = dependencies(&manifest(package)).into_keys();
    declared.filter(|name| !named.contains(&name.replace('-', "_"))).collect()
}

#[test]
fn each_dependency_is_used() {
    let of_package = |package| unused(package).into_iter().map(move |name| format!("{package}: {name}"));
    let unused: Vec<_> = manifests().flat_map(of_package).collect();
    assert_eq!(unused, FOR_THEIR_FEATURES, "dependencies that no code names, and those that none has to");
}

#[test]
fn each_dependency_of_the_workspace_is_one_of_a_member() {
    let workspace = manifest("");
    let shared = workspace["workspace"]["dependencies"].as_table().expect("a table of dependencies");
    let used: BTreeSet<_> =
        manifests().flat_map(|package| dependencies(&manifest(package)).into_keys()).collect();
    let unused: Vec<_> = shared.keys().filter(|name| !used.contains(*name)).collect();
    assert!(unused.is_empty(), "no member uses {unused:?}");
    let declared = manifest("daemon");
    assert!(dependencies(&declared).len() > 20, "dependencies of the daemon were not found");
}
