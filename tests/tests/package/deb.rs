//! The Debian package as `cargo package-deb` makes it: its contents, and that Debian's own checks find no fault.

use crate::{lintian_finds_nothing_in, made, released};
use anyhow::{Context, Result, ensure};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;
use tests::daemon_process::daemon_executable;
use tests::package::{self, Architecture, Compiled, Package};
use tests::program::{LIMIT, succeed};
use tests::sources::repository;

/// The largest size of the program without symbols, in bytes, as in `docs/packaging.md`.
const SIZE_MAX: u64 = 9_000_000;

/// The files of the package that are no documents.
const FILES: &[&str] = &[
    "etc/needrestart/conf.d/vhost-user-vulkan.conf",
    "etc/vhost-user-vulkan/vms.toml",
    "usr/bin/vhost-user-vulkan",
    "usr/lib/systemd/system/vhost-user-vulkan-metrics.service",
    "usr/lib/systemd/system/vhost-user-vulkan-metrics.socket",
    "usr/lib/systemd/system/vhost-user-vulkan.service",
    "usr/lib/systemd/system/vhost-user-vulkan@.service",
    "usr/lib/systemd/system/vhost-user-vulkan@.socket",
    "usr/lib/sysusers.d/vhost-user-vulkan.conf",
    "usr/lib/tmpfiles.d/vhost-user-vulkan.conf",
    "usr/lib/vhost-user-vulkan/guest-image",
    "usr/lib/vhost-user-vulkan/vhost-user-vulkan-doctor",
    "usr/share/bash-completion/completions/vhost-user-vulkan",
    "usr/share/fish/vendor_completions.d/vhost-user-vulkan.fish",
    "usr/share/lintian/overrides/vhost-user-vulkan",
    "usr/share/man/man1/vhost-user-vulkan.1.gz",
    "usr/share/man/man5/vhost-user-vulkan-vms.toml.5.gz",
    "usr/share/qemu/vhost-user/50-vhost-user-vulkan.json",
    "usr/share/zsh/vendor-completions/_vhost-user-vulkan",
];

fn unpacked() -> Result<TempDir> {
    unpacked_from(made()?)
}

fn unpacked_from(package: &Package) -> Result<TempDir> {
    let folder = TempDir::new()?;
    let mut command = Command::new("dpkg-deb");
    command.arg("-R").args([&package.deb, folder.path()]);
    succeed(command, LIMIT)?;
    Ok(folder)
}

fn files_below(folder: &Path, root: &Path, found: &mut BTreeSet<String>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            files_below(&path, root, found)?;
        } else {
            found.insert(path.strip_prefix(root)?.display().to_string());
        }
    }
    Ok(())
}

fn text(command: &str, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new(command);
    command.args(arguments).env("LC_ALL", "C.UTF-8");
    succeed(command, LIMIT)
}

#[test]
fn the_package_holds_what_it_should_and_says_what_it_needs() -> Result<()> {
    let folder = unpacked()?;
    let mut found = BTreeSet::new();
    files_below(folder.path(), folder.path(), &mut found)?;
    let documents = "usr/share/doc/vhost-user-vulkan/";
    let (mut of_documents, files): (Vec<String>, Vec<String>) = found
        .into_iter()
        .filter(|path| !path.starts_with("DEBIAN/"))
        .partition(|path| path.starts_with(documents));
    ensure!(files == FILES, "{files:?}");
    of_documents.retain(|path| {
        [
            "changelog.gz",
            "copyright",
            "third-party.txt.gz",
            "sharing.md.gz",
            "examples/NAME.env",
            "examples/vhost-user-vulkan.json",
            "examples/vhost-user-vulkan.rules.yml",
        ]
        .iter()
        .any(|name| path.ends_with(name))
    });
    ensure!(of_documents.len() == 7, "{of_documents:?}");
    let control = |name: &str| {
        fs::read_to_string(folder.path().join("DEBIAN").join(name)).with_context(|| name.to_owned())
    };
    ensure!(
        control("conffiles")?.lines().collect::<Vec<_>>()
            == ["/etc/needrestart/conf.d/vhost-user-vulkan.conf", "/etc/vhost-user-vulkan/vms.toml"]
    );
    let fields = control("control")?;
    for needed in ["libvulkan1", "libc6 (>= ", "systemd-sysusers"] {
        let depends = fields.lines().find(|line| line.starts_with("Depends: ")).context("Depends")?;
        ensure!(depends.contains(needed), "{depends}");
    }
    // The script makes the user before its folder, and the folder before the service.
    let script = control("postinst")?;
    let places: Option<Vec<usize>> = ["systemd-sysusers", "systemd-tmpfiles", "deb-systemd-invoke start"]
        .iter()
        .map(|what| script.find(what))
        .collect();
    ensure!(places.is_some_and(|places| places.is_sorted()), "{script}");
    // The script must not stop a daemon, because its guests would lose their GPU.
    ensure!(
        !script.contains("restart") && !control("prerm")?.contains("upgrade"),
        "an upgrade stops a daemon"
    );
    Ok(())
}

#[test]
fn lintian_finds_nothing() -> Result<()> {
    lintian_finds_nothing_in(made()?)
}

#[test]
fn the_program_names_the_commit_that_it_was_built_from() -> Result<()> {
    let folder = unpacked()?;
    let program = folder.path().join("usr/bin/vhost-user-vulkan");
    let said = text(&program.to_string_lossy(), &["--version"])?;
    ensure!(said.trim() == crate::version(), "{said}");
    Ok(())
}

#[test]
#[ignore = "compiles the daemon once more, optimised: the package of the other tests differs from a release in this only"]
fn a_release_is_small_and_lintian_finds_nothing_in_it() -> Result<()> {
    let folder = unpacked_from(released()?)?;
    let program = fs::read(folder.path().join("usr/bin/vhost-user-vulkan"))?;
    ensure!(program.len() as u64 <= SIZE_MAX, "{} bytes", program.len());
    names_no_folder_of_this_machine(&program)?;
    lintian_finds_nothing_in(released()?)
}

#[test]
fn the_program_names_no_folder_of_this_machine() -> Result<()> {
    let folder = unpacked()?;
    names_no_folder_of_this_machine(&fs::read(folder.path().join("usr/bin/vhost-user-vulkan"))?)
}

fn names_no_folder_of_this_machine(program: &[u8]) -> Result<()> {
    let crates = dirs_of_crates();
    for path in [repository(), crates].iter().map(|path| path.to_string_lossy().into_owned()) {
        let found = program.windows(path.len()).any(|part| part == path.as_bytes());
        ensure!(!found, "the program names {path}");
    }
    Ok(())
}

/// The folder in which cargo keeps its downloads.
fn dirs_of_crates() -> PathBuf {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let usual = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cargo");
    home.unwrap_or_else(usual).join("registry")
}

#[test]
fn pages_are_without_fault_and_name_each_option() -> Result<()> {
    let folder = unpacked()?;
    let pages = ["man1/vhost-user-vulkan.1.gz", "man5/vhost-user-vulkan-vms.toml.5.gz"];
    let pages = pages.map(|page| folder.path().join("usr/share/man").join(page).display().to_string());
    for page in &pages {
        let mut command = Command::new("man");
        command
            .args(["--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", page])
            .env("LC_ALL", "C.UTF-8")
            .env("MANROFFSEQ", "t")
            .env("MANWIDTH", "80");
        let output = command.output().context("man is missing: sudo apt-get install man-db")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success() && said.is_empty(), "{page}: {said}");
    }
    let page = text("zcat", &[&pages[0]])?.replace("\\-", "-");
    let daemon = daemon_executable()?.display().to_string();
    let help = text(&daemon, &["--help"])?;
    let commands: Vec<&str> = commands_of(&help);
    ensure!(commands.contains(&"status"), "{help}");
    let mut helps = vec![help.clone()];
    for command in commands {
        ensure!(page.contains(&format!(".SS {command}\n")), "the page has no section {command}");
        helps.push(text(&daemon, &[command, "--help"])?);
    }
    let options: BTreeSet<&str> = helps.iter().flat_map(|help| options_of(help)).collect();
    ensure!(options.len() > 40, "{options:?}");
    let missing: Vec<_> =
        options.iter().filter(|option| !page.contains(&format!("\\fB{option}\\fR"))).collect();
    ensure!(missing.is_empty(), "the page lacks {missing:?}");
    let completion =
        fs::read_to_string(folder.path().join("usr/share/bash-completion/completions/vhost-user-vulkan"))?;
    let missing: Vec<_> = options.iter().filter(|option| !completion.contains(**option)).collect();
    ensure!(missing.is_empty(), "the completion lacks {missing:?}");
    let other = text("zcat", &[&pages[1]])?.replace("\\-", "-");
    ensure!(
        ["socket-path", "max-submit-time-contended", "anticipation", "worker-memory"]
            .iter()
            .all(|key| other.contains(key)),
        "{other}"
    );
    Ok(())
}

/// The options that a help text lists: the first word of a line, or the second behind a short form.
fn options_of(help: &str) -> impl Iterator<Item = &str> {
    let listed = help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
    listed.filter_map(|line| line.split_whitespace().find(|word| word.starts_with("--")))
}

/// The commands that a help text lists.
fn commands_of(help: &str) -> Vec<&str> {
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    lines
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_whitespace().next())
        .filter(|command| *command != "help")
        .collect()
}

#[test]
fn bash_completes_options() -> Result<()> {
    let folder = unpacked()?;
    let file = folder.path().join("usr/share/bash-completion/completions/vhost-user-vulkan");
    let script = format!(
        "source {}; function=$(complete -p vhost-user-vulkan | sed 's/.* -F \\([^ ]*\\).*/\\1/'); COMP_WORDS=(vhost-user-vulkan --socket-p); COMP_CWORD=1; \
         $function vhost-user-vulkan --socket-p vhost-user-vulkan; echo \"${{COMPREPLY[@]}}\"",
        file.display()
    );
    let said = text("bash", &["-c", &script])?;
    ensure!(said.trim() == "--socket-path", "{said}");
    Ok(())
}

#[test]
fn the_list_of_contents_names_each_crate() -> Result<()> {
    let list: serde_json::Value = serde_json::from_str(&fs::read_to_string(&made()?.sbom)?)?;
    ensure!(list["bomFormat"] == "CycloneDX" && list["specVersion"] == "1.5", "{list}");
    let components = list["components"].as_array().context("components")?;
    let of = |name: &str| components.iter().find(|component| component["name"] == name);
    let ash = of("ash").context("ash")?;
    ensure!(ash["hashes"][0]["content"].as_str().is_some_and(|sum| sum.len() == 64), "{ash}");
    ensure!(ash["purl"].as_str().is_some_and(|address| address.starts_with("pkg:cargo/ash@")), "{ash}");
    ensure!(of("vulkan").is_some() && of("tempfile").is_none() && of("daemon").is_none());
    let references: BTreeSet<_> =
        components.iter().filter_map(|component| component["bom-ref"].as_str()).collect();
    let used = list["dependencies"]
        .as_array()
        .into_iter()
        .flatten()
        .flat_map(|it| it["dependsOn"].as_array().into_iter().flatten());
    ensure!(
        used.into_iter().all(|it| it.as_str().is_some_and(|it| references.contains(it))),
        "a dependency is not listed"
    );
    Ok(())
}

// To check that the folder of the sources makes no difference, a second release build is necessary: `docs/packaging.md` has the command.
#[test]
fn packing_again_gives_the_same_bytes() -> Result<()> {
    let first = made()?;
    let before = fs::read(&first.deb)?;
    let copy = TempDir::new()?;
    let second = package::make_in(
        Architecture::own().context("no package is made for this machine")?,
        Compiled::Quickly,
        copy.path(),
    )?;
    ensure!(
        fs::read(&second.deb)? == before,
        "{} differs from {}",
        second.deb.display(),
        first.deb.display()
    );
    ensure!(fs::read(&second.sbom)? == fs::read(&first.sbom)?);
    Ok(())
}
