//! The folder that debhelper packs: `debian` with its own rules, and the files that these rules name.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::names::NAME;
use crate::program::{LIMIT, succeed};

/// The variable with the address that a packager gives the users of the package, for sources, help and the issue tracker.
const HOMEPAGE: &str = "PACKAGE_HOMEPAGE";
/// Files of the repository that are shipped as they are.
const DOCUMENTS: &[&str] = &["CHANGELOG.md", "README.md", "SECURITY.md"];

/// Fills the folder with all files but those that are made in it.
///
/// # Errors
/// A file of the repository cannot be copied, or this version's date is not known.
pub(super) fn lay_out(stage: &Path, binaries: &[PathBuf], version: &str) -> Result<()> {
    let repository = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let packaging = repository.join("daemon/packaging");
    copy(&packaging, &stage.join("files"))?;
    fs::rename(stage.join("files/debian"), stage.join("debian"))?;
    copy(&repository.join("docs"), &stage.join("docs"))?;
    DOCUMENTS.iter().try_for_each(|name| copy(&repository.join(name), &stage.join(name)))?;
    for binary in binaries {
        copy(binary, &stage.join(binary.file_name().context("a program has a name")?))?;
    }
    let control = fs::read_to_string(stage.join("debian/control"))?;
    let homepage = std::env::var(HOMEPAGE).ok().filter(|homepage| !homepage.is_empty());
    let control =
        homepage.map_or_else(|| Ok(control.clone()), |homepage| with_homepage(&control, &homepage))?;
    fs::write(stage.join("debian/control"), &control)?;
    let maintainer = control.lines().find_map(|line| line.strip_prefix("Maintainer: "));
    let maintainer = maintainer.context("debian/control names no maintainer")?;
    fs::write(stage.join("debian/changelog"), changelog(version, maintainer, &date()?))?;
    Ok(())
}

/// Returns `debian/control` with an address as the field `Homepage` of the source, which each of its packages inherits.
fn with_homepage(control: &str, homepage: &str) -> Result<String> {
    let is_address = homepage.starts_with("https://") && !homepage.contains(char::is_whitespace);
    ensure!(is_address, "{HOMEPAGE}={homepage:?}: give an address that begins with https://, without blanks");
    let (source, packages) = control.split_once("\n\n").context("debian/control describes no package")?;
    Ok(format!("{source}\nHomepage: {homepage}\n\n{packages}"))
}

/// Debian's version of a release. A release candidate comes before the release, and a package that Debian itself makes after both.
pub(super) fn debian_version(version: &str) -> String {
    format!("{}-0upstream1", version.replacen('-', "~", 1))
}

/// Debian's changelog. It refers to the changelog of the project, which is shipped as well.
fn changelog(version: &str, maintainer: &str, date: &str) -> String {
    let version = debian_version(version);
    format!(
        "{NAME} ({version}) unstable; urgency=medium\n\n  * What is new stands in changelog.gz.\n\n -- {maintainer}  {date}\n"
    )
}

/// The time of the commit, or the time that the environment gives, which becomes the time of all files.
fn date() -> Result<String> {
    let mut git = Command::new("git");
    git.args(["log", "-1", "--format=%ct"]).current_dir(env!("CARGO_MANIFEST_DIR"));
    let seconds = match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(seconds) => seconds,
        Err(_) => succeed(git, LIMIT)
            .context("no date for the package: build in a git checkout, or set SOURCE_DATE_EPOCH")?,
    };
    let mut date = Command::new("date");
    date.args(["-u", "-R", "-d"]).arg(format!("@{}", seconds.trim()));
    let date = succeed(date, LIMIT)?;
    Ok(date.trim().to_owned())
}

/// Copies a file, or a folder with all in it.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let failed = || format!("copying {}", from.display());
    if !from.is_dir() {
        ensure!(from.exists(), "{} is missing", from.display());
        return fs::copy(from, to).map(|_| ()).with_context(failed);
    }
    fs::create_dir_all(to).with_context(failed)?;
    for entry in fs::read_dir(from).with_context(failed)? {
        let entry = entry?;
        copy(&entry.path(), &to.join(entry.file_name()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{debian_version, with_homepage};

    #[test]
    fn a_packager_s_address_is_a_field_of_the_source() {
        let control = include_str!("../../../daemon/packaging/debian/control");
        let with = with_homepage(control, "https://packages.example/gpu").unwrap();
        let (source, packages) = with.split_once("\n\n").unwrap();
        assert!(source.ends_with("\nHomepage: https://packages.example/gpu"), "{source}");
        assert!(control.ends_with(packages) && packages.starts_with("Package: "), "{packages}");
        for wrong in ["gpu.example", "https://a b", "https://a\nMaintainer: b"] {
            assert!(with_homepage(control, wrong).unwrap_err().to_string().contains("PACKAGE_HOMEPAGE"));
        }
    }

    #[test]
    fn a_release_candidate_comes_before_the_release() {
        assert_eq!(
            (debian_version("1.2.3").as_str(), debian_version("1.2.3-rc.1").as_str()),
            ("1.2.3-0upstream1", "1.2.3~rc.1-0upstream1")
        );
    }
}
