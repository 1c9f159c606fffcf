//! A second software GPU: a copy of lavapipe with another UUID, by which the daemon tells GPUs apart.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::root::PackageRoot;

/// The beginning of lavapipe's UUID, as in the instruction that stores it: `movabs $"mesa26.1", %rax`, and a version's first digit.
const BEGIN: &[u8] = b"\x48\xb8mesa2";
/// The byte that becomes a capital letter.
const CHANGED: usize = 2;

/// The name of the manifest.
pub(super) const MANIFEST: &str = "twin.json";

/// Writes the twin of `root`'s lavapipe and its manifest into `folder`.
///
/// # Errors
/// This lavapipe's UUID is not at the expected place.
pub(super) fn make(root: &PackageRoot, folder: &Path) -> Result<()> {
    let library = root.libraries().join("libvulkan_lvp.so");
    let mut bytes = fs::read(&library).with_context(|| format!("cannot read {}", library.display()))?;
    let found: Vec<usize> = bytes
        .windows(BEGIN.len())
        .enumerate()
        .filter(|(_, bytes)| *bytes == BEGIN)
        .map(|(at, _)| at)
        .collect();
    ensure!(found.len() == 1, "the UUID of {} is at {found:?}", library.display());
    bytes[found[0] + CHANGED] = b'M';
    let twin = folder.join("libvulkan_twin.so");
    fs::write(&twin, bytes)?;
    let manifest = folder.join(MANIFEST);
    let first = fs::read_to_string(root.driver_manifest("lvp")?)?;
    let text = first.replace(&library.display().to_string(), &twin.display().to_string());
    fs::write(&manifest, text)?;
    // Another user may load the driver.
    for path in [folder, &twin, &manifest] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}
