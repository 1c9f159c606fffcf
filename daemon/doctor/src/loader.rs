//! Vulkan's loader, without which no program uses a GPU, on hosts and in VMs.

use crate::libraries::Missing;
use crate::report::Finding;

/// Returns the finding of this check when the loader is missing.
pub(crate) fn missing(check: &'static str, missing: Missing) -> Finding {
    let reason = match missing {
        Missing::Absent => "there is no libvulkan.so.1",
        Missing::Foreign => "libvulkan.so.1 is there for another kind of processor only",
    };
    Finding::fault(
        check,
        reason,
        "sudo apt-get install libvulkan1 (Fedora, Arch: vulkan-loader, vulkan-icd-loader)",
    )
}
