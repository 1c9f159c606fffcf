//! Device extensions a guest may see: those that the host has and the codec can decode, less the withheld ones, plus the emulated ones.

use super::absent::{BESIDE_MEMORY_FDS, GRAPHICS, MEMORY_FDS, WITHHELD};
use config::{GpuChoice, MemoryBackEnd};
use protocol::venus::generated::EXTENSIONS;
use std::collections::BTreeMap;
use std::ffi::CStr;

/// Extensions that the worker emulates, whatever the host has. They are not enabled on the host's device.
///
/// Mesa before 26.2 reports Vulkan 1.2 instead of 1.3 unless semaphores can be imported from a SYNC_FD.
pub(crate) const EMULATED: &[(&str, u32)] = &[("VK_KHR_external_semaphore_fd", 1)];

/// Decodable extensions that a guest sees where the host has them, by name.
pub(crate) fn passed() -> Vec<&'static str> {
    let is_withheld = |name: &&str| WITHHELD.iter().any(|(_, names)| names.contains(name));
    let mut passed: Vec<_> =
        EXTENSIONS.iter().map(|(_, name, _)| *name).filter(|name| !is_withheld(name)).collect();
    passed.sort_unstable();
    passed
}

/// Returns the extensions that the daemon itself needs of the host's device.
pub(crate) fn needed(gpu: &GpuChoice) -> &'static [&'static CStr] {
    match gpu.memory {
        MemoryBackEnd::Memfd if gpu.exported_types() != 0 => {
            &[ash::ext::external_memory_host::NAME, ash::khr::external_memory_fd::NAME]
        }
        MemoryBackEnd::Memfd => &[ash::ext::external_memory_host::NAME],
        MemoryBackEnd::DmaBuf => {
            &[ash::khr::external_memory_fd::NAME, ash::ext::external_memory_dma_buf::NAME]
        }
    }
}

/// Returns the extensions that a guest sees, with versions no newer than the codec decodes.
pub(crate) fn offered(host: &BTreeMap<String, u32>, gpu: &GpuChoice) -> Vec<(&'static str, u32)> {
    let mut offered: Vec<_> = EXTENSIONS
        .iter()
        .filter_map(|(_, name, version)| {
            let host = host.get(*name).copied();
            let offered = match shared(name, gpu) {
                Some(Enable::Pass) => host?,
                // The worker emulates this extension, so the host's version does not matter.
                Some(Enable::Strip) => *version,
                Some(Enable::Refuse) => return None,
                None if withheld(name, gpu).is_some() => return None,
                None => host?,
            };
            Some((*name, offered.min(*version)))
        })
        .chain(EMULATED.iter().copied())
        .collect();
    offered.sort_unstable();
    offered
}

/// Returns the treatment of an extension of shared memory; none for other extensions.
fn shared(name: &str, gpu: &GpuChoice) -> Option<Enable> {
    let (memory, beside) = (MEMORY_FDS.contains(&name), BESIDE_MEMORY_FDS.contains(&name));
    match (gpu.trial.shareable, gpu.memory) {
        _ if !memory && !beside => None,
        (false, _) => Some(Enable::Refuse),
        (true, MemoryBackEnd::Memfd) if memory => Some(Enable::Strip),
        (true, _) => Some(Enable::Pass),
    }
}

/// Returns the reason why an extension is withheld, if it is.
fn withheld(name: &str, gpu: &GpuChoice) -> Option<&'static str> {
    let counts = |reason: &&str| *reason != GRAPHICS || !gpu.queues.draw();
    WITHHELD.iter().find(|(_, names)| names.contains(&name)).map(|(reason, _)| *reason).filter(counts)
}

/// The treatment of an extension that a guest enables.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Enable {
    /// The extension is enabled on the host's device.
    Pass,
    /// The extension is emulated, and is not enabled on the host's device.
    Strip,
    /// The extension was not offered.
    Refuse,
}

/// Judges one enabled extension.
pub(crate) fn enable(name: &str, host: &BTreeMap<String, u32>, gpu: &GpuChoice) -> Enable {
    if EMULATED.iter().any(|(emulated, _)| *emulated == name) {
        Enable::Strip
    } else if let Some(Enable::Strip) = shared(name, gpu) {
        Enable::Strip
    } else if offered(host, gpu).iter().any(|(offered, _)| *offered == name) {
        Enable::Pass
    } else {
        Enable::Refuse
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::{DriverMapped, MemoryTrial, Protection, Queues};

    fn gpu(memory: MemoryBackEnd, shareable: bool) -> GpuChoice {
        let trial = MemoryTrial {
            mappable_types: 1,
            shareable,
            driver_mapped: DriverMapped::default(),
            exportable_types: 0,
        };
        GpuChoice { uuid: [0; 16], memory, trial, queues: Queues::Compute, protection: Protection::default() }
    }

    #[test]
    fn what_is_withheld_or_undecodable_stays_hidden_and_is_refused() {
        let host: BTreeMap<_, _> = ["VK_KHR_swapchain", "VK_EXT_mesh_shader", "VK_KHR_maintenance4"]
            .map(|name| (name.to_owned(), 99))
            .into();
        let gpu = gpu(MemoryBackEnd::Memfd, false);
        let names: Vec<_> = offered(&host, &gpu).iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["VK_KHR_external_semaphore_fd", "VK_KHR_maintenance4"]);
        assert_eq!(enable("VK_KHR_swapchain", &host, &gpu), Enable::Refuse);
        assert_eq!(enable("VK_EXT_mesh_shader", &host, &gpu), Enable::Refuse);
        assert_eq!(
            enable("VK_EXT_mesh_shader", &host, &GpuChoice { queues: Queues::All, ..gpu }),
            Enable::Pass
        );
        assert_eq!(enable("VK_KHR_maintenance4", &host, &gpu), Enable::Pass);
        assert_eq!(enable("VK_KHR_external_semaphore_fd", &host, &gpu), Enable::Strip);
    }

    #[test]
    fn extensions_of_shared_memory_are_there_where_it_can_be_shared() {
        let names =
            ["VK_KHR_external_memory_fd", "VK_EXT_external_memory_dma_buf", "VK_EXT_queue_family_foreign"];
        let host: BTreeMap<_, _> = names.map(|name| (name.to_owned(), 1)).into();
        let fate =
            |host: &_, memory, shareable| names.map(|name| enable(name, host, &gpu(memory, shareable)));
        let (memfd, dma_buf) = (MemoryBackEnd::Memfd, MemoryBackEnd::DmaBuf);
        let nothing = [Enable::Refuse, Enable::Refuse, Enable::Refuse];
        assert_eq!(fate(&host, memfd, false), nothing);
        assert_eq!(fate(&host, dma_buf, false), nothing);
        assert_eq!(fate(&host, memfd, true), [Enable::Strip, Enable::Strip, Enable::Pass]);
        assert_eq!(fate(&BTreeMap::new(), memfd, true), [Enable::Strip, Enable::Strip, Enable::Refuse]);
        assert_eq!(fate(&host, dma_buf, true), [Enable::Pass, Enable::Pass, Enable::Pass]);
        assert_eq!(fate(&BTreeMap::new(), dma_buf, true), nothing);
        for memory in [memfd, dma_buf] {
            let offered = offered(&host, &gpu(memory, true));
            assert!(names[..2].iter().all(|name| offered.contains(&(name, 1))), "{offered:?}");
        }
    }
}
