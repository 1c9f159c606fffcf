//! apt-get under a private configuration: its own sources, lists and archive folder, and no installed packages.
//!
//! With an empty package status every dependency is "missing", so a download brings the complete closure, C library
//! included. The machine's own apt state is neither read nor changed, except for its proxy settings.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::fetched;
use super::mirror::{debian_mirror, ubuntu_mirror};
use super::root::{PackageRoot, Suite};

/// One suite's private apt state.
pub(super) struct Apt {
    dir: PathBuf,
    suite: Suite,
    /// The architectures of packages, that of the machine first.
    architectures: &'static [&'static str],
}

/// One package file as apt names it.
pub(super) struct Archive {
    pub file: PathBuf,
    pub size: u64,
}

impl Apt {
    /// Writes the configuration below `dir`; the package lists are fetched when first needed.
    pub(super) fn new(dir: PathBuf, suite: Suite) -> Result<Self> {
        Self::for_architectures(dir, suite, &["amd64"])
    }

    /// Does the same for packages of several architectures.
    pub(super) fn for_architectures(
        dir: PathBuf,
        suite: Suite,
        architectures: &'static [&'static str],
    ) -> Result<Self> {
        for folder in ["lists/partial", "archives/partial", "etc"] {
            fs::create_dir_all(dir.join(folder))
                .with_context(|| format!("cannot create {}", dir.display()))?;
        }
        let apt = Self { dir, suite, architectures };
        fs::write(apt.dir.join("status"), "")?;
        fs::write(apt.dir.join("etc/sources.list"), apt.sources()?)?;
        fs::write(apt.configuration(), apt.settings()?)?;
        if !apt.dir.join("lists-complete").exists() {
            fetched(suite.name(), || apt.update())?;
        }
        Ok(apt)
    }

    /// Fetches the suite's package lists anew.
    pub(super) fn update(&self) -> Result<()> {
        eprintln!("packages: {}: reading the package lists", self.suite.name());
        let output = self.tool("apt-get").args(["update", "-q"]).output().context("cannot run apt-get")?;
        if !output.status.success() {
            bail!(
                "apt-get update failed for {}:\n{}",
                self.suite.name(),
                String::from_utf8_lossy(&output.stderr)
            );
        }
        fs::write(self.dir.join("lists-complete"), "")?;
        Ok(())
    }

    /// Downloads `packages` and all they depend on.
    pub(super) fn download_closure(&self, packages: &[&str]) -> Result<Vec<Archive>> {
        let archives = self.list(&["install", "-y"], packages)?;
        self.download(&["install", "-y", "--download-only"], packages, archives)
    }

    /// Downloads exactly `packages`, without their dependencies.
    pub(super) fn download_only(&self, packages: &[&str]) -> Result<Vec<Archive>> {
        let archives = self.list(&["download"], packages)?;
        self.download(&["download"], packages, archives)
    }

    /// All archives that were fetched at some time, in no order.
    pub(super) fn archives_left(&self) -> Result<Vec<PathBuf>> {
        let entries = fs::read_dir(self.archives()).context("reading the fetched archives")?;
        let files = entries.flatten().map(|entry| entry.path());
        Ok(files.filter(|file| file.extension().is_some_and(|extension| extension == "deb")).collect())
    }

    /// The names `package` directly depends on.
    pub(super) fn dependencies(&self, package: &str) -> Result<Vec<String>> {
        let output =
            self.tool("apt-cache").args(["depends", package]).output().context("cannot run apt-cache")?;
        if !output.status.success() {
            bail!("{} has no package {package}", self.suite.name());
        }
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(text.lines().filter_map(|line| line.trim().strip_prefix("Depends: ")).map(str::to_owned).collect())
    }

    fn list(&self, verb: &[&str], packages: &[&str]) -> Result<Vec<Archive>> {
        let output = self
            .tool("apt-get")
            .args(verb)
            .args(["--print-uris", "-qq"])
            .args(packages)
            .output()
            .context("cannot run apt-get")?;
        if !output.status.success() {
            let reason = String::from_utf8_lossy(&output.stderr);
            bail!("{} cannot provide {}:\n{reason}", self.suite.name(), packages.join(" "));
        }
        String::from_utf8_lossy(&output.stdout)
            .lines()
            .filter(|line| line.starts_with('\''))
            .map(|line| {
                parse_archive(line, &self.archives()).with_context(|| format!("apt-get printed {line:?}"))
            })
            .collect()
    }

    /// Runs one apt-get download and prints its progress every few seconds. apt resumes partial files by itself.
    fn download(&self, verb: &[&str], packages: &[&str], archives: Vec<Archive>) -> Result<Vec<Archive>> {
        let missing = archives.iter().filter(|archive| !archive.is_complete());
        let bytes: u64 = missing.clone().map(|archive| archive.size).sum();
        if bytes == 0 {
            return Ok(archives);
        }
        eprintln!(
            "packages: {}: fetching {} files, {} MB",
            self.suite.name(),
            missing.count(),
            bytes / 1_000_000
        );
        let log = self.dir.join("download.log");
        let output = fs::File::create(&log)?;
        let mut child = self
            .tool("apt-get")
            .args(verb)
            .arg("-q")
            .args(packages)
            .current_dir(self.archives())
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .context("cannot run apt-get")?;
        let ended_well = self.watch(&mut child, &archives)?;
        match archives.iter().find(|archive| !archive.is_complete()) {
            None if ended_well => Ok(archives),
            missing => {
                let missing = missing.map(|archive| archive.file.display().to_string()).unwrap_or_default();
                bail!("downloading {missing} failed:\n{}", fs::read_to_string(&log).unwrap_or_default())
            }
        }
    }

    fn watch(&self, child: &mut Child, archives: &[Archive]) -> Result<bool> {
        let mut said = Instant::now();
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status.success());
            }
            thread::sleep(Duration::from_millis(100));
            if said.elapsed() > Duration::from_secs(5) {
                said = Instant::now();
                let have: u64 =
                    archives.iter().filter(|archive| archive.is_complete()).map(|archive| archive.size).sum();
                let all: u64 = archives.iter().map(|archive| archive.size).sum();
                eprintln!("packages: {}: {} of {} MB", self.suite.name(), have / 1_000_000, all / 1_000_000);
            }
        }
    }

    fn tool(&self, name: &str) -> Command {
        let mut command = Command::new(name);
        command.env("APT_CONFIG", self.configuration()).env("LC_ALL", "C");
        command
    }

    fn configuration(&self) -> PathBuf {
        self.dir.join("etc/apt.conf")
    }

    fn archives(&self) -> PathBuf {
        self.dir.join("archives")
    }

    fn sources(&self) -> Result<String> {
        let name = self.suite.name();
        if !Suite::UBUNTU.contains(&self.suite) {
            return Ok(format!("deb {}{} {name} main\n", signed_by(), debian_mirror()?));
        }
        // Debian has Ubuntu's keys.
        let keyring = PackageRoot::with(Suite::Trixie, &["ubuntu-archive-keyring"])?
            .path("usr/share/keyrings/ubuntu-archive-keyring.gpg");
        let (keys, mirror) = (format!("[signed-by={}] ", keyring.display()), ubuntu_mirror()?);
        let source = |suite: &str| format!("deb {keys}{mirror} {suite} main universe\n");
        // Mesa 23.2 came to Ubuntu 22.04 as an update; Ubuntu 24.04 keeps the Mesa of its release.
        let updates = (self.suite == Suite::Jammy).then(|| source(&format!("{name}-updates")));
        Ok(source(name) + &updates.unwrap_or_default())
    }

    fn settings(&self) -> Result<String> {
        let dir = self.dir.display();
        let inherited = inherited_settings()?;
        let own = self.architectures.first().context("apt works for an architecture")?;
        let all: String =
            self.architectures.iter().map(|architecture| format!(r#""{architecture}"; "#)).collect();
        Ok(format!(
            r#"Dir::State "{dir}";
Dir::State::lists "{dir}/lists";
Dir::State::status "{dir}/status";
Dir::Cache "{dir}";
Dir::Cache::archives "archives";
Dir::Etc "{dir}/etc";
Dir::Etc::SourceList "sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::Etc::Main "/dev/null";
Dir::Etc::Parts "/dev/null";
Dir::Etc::Preferences "/dev/null";
Dir::Etc::PreferencesParts "/dev/null";
APT::Architecture "{own}";
APT::Architectures {{ {all}}};
APT::Install-Recommends "false";
APT::Sandbox::User "";
Acquire::Languages "none";
Acquire::Retries "3";
Acquire::Check-Valid-Until "false";
{inherited}"#
        ))
    }
}

impl Archive {
    fn is_complete(&self) -> bool {
        fs::metadata(&self.file).is_ok_and(|metadata| metadata.len() == self.size)
    }
}

/// The option of a source that names Debian's keys, if this machine has them in a file.
pub(super) fn signed_by() -> String {
    let keyring = "/usr/share/keyrings/debian-archive-keyring.gpg";
    if Path::new(keyring).exists() { format!("[signed-by={keyring}] ") } else { String::new() }
}

/// Proxies and transport options of the machine's apt, without its hooks.
pub(super) fn inherited_settings() -> Result<String> {
    let output =
        Command::new("apt-config").args(["dump", "Acquire"]).output().context("cannot run apt-config")?;
    let wanted = ["Acquire::http::", "Acquire::https::", "Acquire::Check-Date"];
    let text = String::from_utf8_lossy(&output.stdout);
    let lines = text.lines().filter(|line| wanted.iter().any(|prefix| line.starts_with(prefix)));
    Ok(lines.map(|line| format!("{line}\n")).collect())
}

/// One line of `--print-uris`: quoted address, file name, size, digest.
fn parse_archive(line: &str, folder: &Path) -> Option<Archive> {
    let mut fields = line.split_whitespace().skip(1);
    let file = folder.join(fields.next()?);
    let size = fields.next()?.parse().ok()?;
    Some(Archive { file, size })
}

#[cfg(test)]
mod tests {
    use super::{Path, parse_archive};

    #[test]
    fn a_printed_address_line_names_file_and_size() {
        let line = "'http://mirror.example/pool/libx_1%3a2_amd64.deb' libx_1%3a2_amd64.deb 123 SHA256:00";
        let archive = parse_archive(line, Path::new("/cache")).expect("the line is well formed");
        assert_eq!(archive.file, Path::new("/cache/libx_1%3a2_amd64.deb"));
        assert_eq!(archive.size, 123);
    }

    #[test]
    fn a_line_without_size_is_refused() {
        assert!(parse_archive("'http://mirror.example/x.deb' x.deb", Path::new("/cache")).is_none());
    }
}
