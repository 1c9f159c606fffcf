//! The mirrors to use: for Debian the one that this machine's own apt uses.

use std::process::Command;

use anyhow::{Context, Result, bail};

/// The address of a Debian archive, without the final slash.
///
/// `DEBIAN_MIRROR` overrides apt's configuration, for machines that are not Debian.
///
/// # Errors
/// There is no apt here, or none of its sources is a Debian archive.
pub(super) fn debian_mirror() -> Result<String> {
    if let Ok(mirror) = std::env::var("DEBIAN_MIRROR") {
        return Ok(mirror.trim_end_matches('/').to_owned());
    }
    let output = Command::new("apt-get")
        .args(["indextargets", "--no-release-info", "--format", "$(REPO_URI)", "Identifier: Packages"])
        .output()
        .context("cannot run apt-get: test guests and Mesa clients are made of Debian packages")?;
    let repositories = String::from_utf8_lossy(&output.stdout);
    match pick_archive(&repositories) {
        Some(mirror) => Ok(mirror.to_owned()),
        None => bail!("apt's sources name no Debian archive; set DEBIAN_MIRROR to the address of one"),
    }
}

/// The address of an archive of Ubuntu's packages, without the final slash: `UBUNTU_MIRROR`, since no machine of Debian names one.
///
/// # Errors
/// The variable is not set.
pub(super) fn ubuntu_mirror() -> Result<String> {
    let mirror = std::env::var("UBUNTU_MIRROR");
    let mirror = mirror.context("set UBUNTU_MIRROR to the address of an archive of Ubuntu's packages")?;
    Ok(mirror.trim_end_matches('/').to_owned())
}

/// Security and vendor archives carry other suites; the main archive's path ends in `debian` by convention.
fn pick_archive(repositories: &str) -> Option<&str> {
    repositories.lines().map(|uri| uri.trim_end_matches('/')).find(|uri| uri.ends_with("/debian"))
}

#[cfg(test)]
mod tests {
    use super::pick_archive;

    #[test]
    fn the_main_archive_is_picked_among_others() {
        let repositories = "http://vendor.example/apt/\nhttp://mirror.example/debian-security/\nhttp://mirror.example/debian/\n";
        assert_eq!(pick_archive(repositories), Some("http://mirror.example/debian"));
    }

    #[test]
    fn no_debian_archive_is_no_mirror() {
        assert_eq!(pick_archive("http://archive.example/ubuntu/\n"), None);
    }
}
