//! The kernel modules that a guest loads, in their order.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// A module ready to be loaded.
pub(super) struct Module {
    pub name: String,
    /// The uncompressed object file.
    pub object: Vec<u8>,
}

/// Returns the modules of `wanted` that this kernel does not have built in, and all their dependencies, each behind those that it needs.
///
/// `folder` is the kernel's folder below `lib/modules`; `unxz` is a busybox, as the host may have no decompressor. The
/// packages carry no dependency table (installing them would make one), so dependencies are read from the modules.
pub(super) fn in_load_order(folder: &Path, unxz: &Path, wanted: &[&str]) -> Result<Vec<Module>> {
    let mut files = BTreeMap::new();
    collect(&folder.join("kernel"), &mut files)?;
    let mut ordered = Vec::new();
    for name in wanted.iter().filter(|&&name| files.contains_key(name)) {
        load(name, &files, unxz, &mut ordered)?;
    }
    Ok(ordered)
}

fn load(name: &str, files: &BTreeMap<String, PathBuf>, unxz: &Path, ordered: &mut Vec<Module>) -> Result<()> {
    if ordered.iter().any(|module| module.name == name) {
        return Ok(());
    }
    let file = files.get(name).with_context(|| format!("the kernel package has no module {name}"))?;
    let object = read(file, unxz)?;
    for dependency in dependencies(&object) {
        load(&dependency, files, unxz, ordered)?;
    }
    ordered.push(Module { name: name.to_owned(), object });
    Ok(())
}

/// Module names use underscores, file names either sign.
fn collect(folder: &Path, files: &mut BTreeMap<String, PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if let Some((name, _)) = path.file_name().and_then(|name| name.to_str()?.split_once(".ko")) {
            files.insert(name.replace('-', "_"), path);
        }
    }
    Ok(())
}

fn read(file: &Path, unxz: &Path) -> Result<Vec<u8>> {
    match file.extension().and_then(|extension| extension.to_str()) {
        Some("ko") => Ok(fs::read(file)?),
        Some("xz") => {
            let output = Command::new(unxz).arg("xzcat").arg(file).output().context("cannot run busybox")?;
            if !output.status.success() {
                bail!("{} cannot be decompressed", file.display());
            }
            Ok(output.stdout)
        }
        _ => bail!("{} is compressed in a way not known here", file.display()),
    }
}

/// The `depends=` entry of a module's information section: names with commas between.
fn dependencies(object: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(start) = object.windows(KEY.len()).position(|window| window == KEY) else { return Vec::new() };
    let value = object[start + KEY.len()..].split(|&byte| byte == 0).next().unwrap_or_default();
    let names = String::from_utf8_lossy(value);
    names.split(',').filter(|name| !name.is_empty()).map(|name| name.replace('-', "_")).collect()
}

#[cfg(test)]
mod tests {
    use super::dependencies;

    #[test]
    fn dependencies_are_read_from_the_information_section() {
        assert_eq!(
            dependencies(b"\x7fELF\0license=GPL\0depends=drm,virtio-dma-buf\0name=x\0"),
            ["drm", "virtio_dma_buf"]
        );
        assert!(dependencies(b"\x7fELF\0depends=\0name=drm\0").is_empty());
    }
}
