//! The shared libraries that a program of a package root needs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::packages::PackageRoot;

/// The libraries that `file` loads at start, as the root's own dynamic loader resolves them; the loader is among them.
pub(super) fn libraries(root: &PackageRoot, file: &Path) -> Result<BTreeSet<PathBuf>> {
    let output = Command::new(root.loader())
        .arg("--library-path")
        .arg(root.library_path(&[]))
        .arg("--list")
        .arg(file)
        .output()
        .context("cannot run the package root's loader")?;
    if !output.status.success() {
        bail!("{}: {}", file.display(), String::from_utf8_lossy(&output.stderr));
    }
    let mut libraries = BTreeSet::from([root.loader()]);
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        // `name => path (address)`; the loader itself and the kernel's own object have no arrow.
        let Some((name, resolved)) = line.split_once(" => ") else { continue };
        match resolved.split_whitespace().next() {
            Some(path) if path.starts_with('/') => libraries.insert(PathBuf::from(path)),
            _ => bail!("{} needs {}, which {} lacks", file.display(), name.trim(), root.suite().name()),
        };
    }
    Ok(libraries)
}
