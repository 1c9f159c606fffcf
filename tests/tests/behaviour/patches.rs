//! The patches for the guest's driver agree with their list, their table and their changelog.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use tests::sources::repository;

fn folder() -> PathBuf {
    repository().join("guest-driver-patches")
}

fn read(path: &str) -> String {
    fs::read_to_string(folder().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The names of the patches, in their order.
fn series() -> Vec<String> {
    let text = read("mesa-25.0.7/series");
    let names = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    names.filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// The first cells of the table of patches.
fn rows(readme: &str) -> Vec<String> {
    let table = readme.lines().skip_while(|line| !line.starts_with("| patch |")).skip(2);
    let rows = table.take_while(|line| line.starts_with('|'));
    rows.map(|row| row.split('|').nth(1).unwrap_or_default().trim().trim_matches('`').to_owned()).collect()
}

#[test]
fn table_and_series_name_the_same_patches_and_there_are_no_others() {
    let readme = read("README.md");
    assert!(readme.contains("| patch | why | gain | still needed by 26.1/26.2 |"), "no table");
    assert_eq!(rows(&readme), series(), "rows of README.md, lines of series");
    let present = fs::read_dir(folder().join("mesa-25.0.7")).unwrap();
    let present: BTreeSet<String> =
        present.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    let mut expected: BTreeSet<String> = series().into_iter().collect();
    expected.extend(["series", "changelog"].map(str::to_owned));
    assert_eq!(present, expected, "files of mesa-25.0.7, and the expected ones");
}

#[test]
fn rows_are_read_as_they_are_written() {
    let table =
        "text\n| patch | why |\n| --- | --- |\n| `0001-a.patch` | b |\n| `0002-c.patch` | d |\n\n| other |\n";
    assert_eq!(rows(table), ["0001-a.patch", "0002-c.patch"]);
}

#[test]
fn each_patch_says_who_made_it_why_and_what_upstream_knows() {
    for name in series() {
        let text = read(&format!("mesa-25.0.7/{name}"));
        let message = text.split("\ndiff --git ").next().unwrap_or_default();
        for line in ["From: ", "Subject: ", "Upstream-status: "] {
            assert!(message.lines().any(|found| found.starts_with(line)), "{name} has no {line:?}");
        }
        assert!(message.len() < text.len(), "{name} changes nothing");
    }
}

#[test]
fn patches_are_those_of_the_newest_revision() {
    let output = Command::new(folder().join("build")).arg("--version").output().unwrap();
    let version = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    let (debian, revision) =
        version.trim().rsplit_once("+vuv").unwrap_or_else(|| panic!("{version}{errors}"));
    assert!(debian.starts_with("25.0.7-"), "{version}");
    assert!(
        revision.parse::<u32>().is_ok_and(|number| number > 0),
        "{version}: the patches have changed since the newest revision: guest-driver-patches/build --revise"
    );
}

#[test]
fn command_says_how_it_is_used_and_refuses_what_it_does_not_know() {
    let run = |option: &str| Command::new(folder().join("build")).arg(option).output().unwrap();
    let help = String::from_utf8(run("--help").stdout).unwrap();
    for word in ["--output", "--check", "DEBIAN_MIRROR", "mmdebstrap", "nothing is cross-built"] {
        assert!(help.contains(word), "{word}: {help}");
    }
    let wrong = run("--wrong");
    assert!(!wrong.status.success() && String::from_utf8_lossy(&wrong.stderr).contains("remedy: --help"));
}
