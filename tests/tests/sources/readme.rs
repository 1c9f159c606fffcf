//! README is short, and its commands are those that tests run.

use std::collections::BTreeSet;
use std::fs;
use tests::documents::one;
use tests::sources::repository;

/// The most words that README has, as `wc -w` counts them: four minutes of reading.
const WORDS_MAX: usize = 800;

/// The words of a test that takes its commands from README.
const LITERALLY: &str = "../../../README.md";

/// The beginning of each command in README, the test or program that runs it, and the words in this test or program that run it.
const RUN_BY: &[(&str, &str, &str)] = &[
    ("cargo demo", "tests/tests/vm/demo.rs", "CARGO_BIN_EXE_demo"),
    ("cargo acceptance", ".ci/run", "exec cargo acceptance"),
    ("cargo package-deb", "tests/tests/package/main.rs", "Compiled::ForRelease"),
    (
        "sudo apt-get install -t trixie-backports qemu-system-x86",
        "tests/src/packages/installed.rs",
        "\"qemu-system-x86/trixie-backports\"",
    ),
    ("sudo apt-get install ./", "tests/tests/package/first_steps.rs", LITERALLY),
    ("sudo /usr/lib/vhost-user-vulkan/guest-image", "tests/tests/package/first_steps.rs", LITERALLY),
    ("sudo systemctl start vhost-user-vulkan@first.socket", "tests/tests/package/first_steps.rs", LITERALLY),
    ("sudo qemu-system-x86_64", "tests/tests/package/first_steps.rs", LITERALLY),
    ("vulkaninfo --summary", "tests/tests/package/first_steps.rs", LITERALLY),
    (
        "sudo systemctl enable --now vhost-user-vulkan@web.socket",
        "tests/tests/vm/libvirt.rs",
        "systemctl enable --now vhost-user-vulkan@web.socket",
    ),
    ("virsh dumpxml", "tests/tests/vm/libvirt.rs", LITERALLY),
    ("vhost-user-vulkan recipe libvirt", "tests/tests/vm/libvirt.rs", LITERALLY),
    ("virsh define", "tests/tests/vm/libvirt.rs", LITERALLY),
    (
        "sudo systemctl reload vhost-user-vulkan",
        "tests/tests/package/first_steps.rs",
        "systemctl reload vhost-user-vulkan",
    ),
    ("sudo vhost-user-vulkan status", "tests/tests/package/first_steps.rs", "vhost-user-vulkan status"),
    ("vhost-user-vulkan doctor", "tests/tests/package/first_steps.rs", "vhost-user-vulkan doctor"),
];

fn read(path: &str) -> String {
    fs::read_to_string(repository().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn readme_is_read_in_four_minutes() {
    let words = read("README.md").split_whitespace().count();
    assert!(
        words <= WORDS_MAX,
        "README has {words} words, and may have {WORDS_MAX}: move reference text to docs/"
    );
}

/// The commands of README: lines of code, but for the picture of processes and for files, and spans of several words.
fn commands() -> Vec<String> {
    let programs: BTreeSet<&str> =
        RUN_BY.iter().filter_map(|(command, ..)| command.split(' ').next()).collect();
    let readme = one("README.md");
    let is_file = |line: &str| line.starts_with('[') || line.contains(" = ");
    let is_picture = |line: &str| line.contains(['─', '│']) || line.starts_with("broker");
    let lines =
        readme.code.iter().map(|(_, line)| line.as_str()).filter(|line| !is_file(line) && !is_picture(line));
    let spans = readme.spans().map(|(_, span)| span);
    let is_command = |span: &&str| span.split_once(' ').is_some_and(|(first, _)| programs.contains(first));
    lines.chain(spans.filter(is_command)).map(str::to_owned).collect()
}

#[test]
fn each_command_of_readme_is_run_by_a_test() {
    let commands = commands();
    let runs = |command: &String| RUN_BY.iter().any(|(begin, ..)| command.starts_with(begin));
    let untested: Vec<_> = commands.iter().filter(|command| !runs(command)).collect();
    assert!(untested.is_empty(), "no test is known to run {untested:#?}");
    for (begin, test, words) in RUN_BY {
        assert!(commands.iter().any(|command| command.starts_with(begin)), "README has no {begin}");
        assert!(read(test).contains(words), "{test} does not run {begin}: it has no {words}");
    }
}

#[test]
fn the_version_of_rust_is_said_where_one_builds() {
    let manifest: toml::Table = read("Cargo.toml").parse().expect("a manifest is a table");
    let version = manifest["workspace"]["package"]["rust-version"].as_str().expect("it needs a Rust");
    for page in ["README.md", "CONTRIBUTING.md"] {
        assert!(
            read(page).contains(&format!("Rust {version} or newer")),
            "{page} names another Rust than {version}"
        );
    }
}
