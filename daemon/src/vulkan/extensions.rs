//! Device extensions a guest may see: those the host has and the codec can decode, less what this table withholds, plus what is
//! emulated.

use crate::config::{GpuChoice, MemoryBackEnd, Queues};
use protocol::venus::generated::EXTENSIONS;
use std::collections::BTreeMap;
use std::ffi::CStr;

/// The reason that does not count where graphics queues are offered.
const GRAPHICS: &str = "graphics: no graphics queue is offered and no graphics command served";

/// Decodable extensions that are withheld all the same, by reason.
const WITHHELD: &[(&str, &[&str])] = &[
    (
        GRAPHICS,
        &[
            "VK_ARM_rasterization_order_attachment_access",
            "VK_EXT_attachment_feedback_loop_dynamic_state",
            "VK_EXT_attachment_feedback_loop_layout",
            "VK_EXT_blend_operation_advanced",
            "VK_EXT_color_write_enable",
            "VK_EXT_conservative_rasterization",
            "VK_EXT_depth_bias_control",
            "VK_EXT_depth_clamp_control",
            "VK_EXT_depth_clamp_zero_one",
            "VK_EXT_depth_clip_control",
            "VK_EXT_depth_clip_enable",
            "VK_EXT_depth_range_unrestricted",
            "VK_EXT_dynamic_rendering_unused_attachments",
            "VK_EXT_extended_dynamic_state",
            "VK_EXT_extended_dynamic_state2",
            "VK_EXT_extended_dynamic_state3",
            "VK_EXT_fragment_shader_interlock",
            "VK_EXT_graphics_pipeline_library",
            "VK_EXT_index_type_uint8",
            "VK_EXT_legacy_dithering",
            "VK_EXT_legacy_vertex_attributes",
            "VK_EXT_line_rasterization",
            "VK_EXT_load_store_op_none",
            "VK_EXT_mesh_shader",
            "VK_EXT_multi_draw",
            "VK_EXT_multisampled_render_to_single_sampled",
            "VK_EXT_post_depth_coverage",
            "VK_EXT_primitive_topology_list_restart",
            "VK_EXT_primitives_generated_query",
            "VK_EXT_provoking_vertex",
            "VK_EXT_rasterization_order_attachment_access",
            "VK_EXT_sample_locations",
            "VK_EXT_shader_stencil_export",
            "VK_EXT_transform_feedback",
            "VK_EXT_vertex_attribute_divisor",
            "VK_EXT_vertex_attribute_robustness",
            "VK_EXT_vertex_input_dynamic_state",
            "VK_KHR_create_renderpass2",
            "VK_KHR_depth_clamp_zero_one",
            "VK_KHR_depth_stencil_resolve",
            "VK_KHR_draw_indirect_count",
            "VK_KHR_dynamic_rendering",
            "VK_KHR_dynamic_rendering_local_read",
            "VK_KHR_fragment_shader_barycentric",
            "VK_KHR_fragment_shading_rate",
            "VK_KHR_imageless_framebuffer",
            "VK_KHR_index_type_uint8",
            "VK_KHR_line_rasterization",
            "VK_KHR_load_store_op_none",
            "VK_KHR_multiview",
            "VK_KHR_vertex_attribute_divisor",
        ],
    ),
    (
        "the wire's own; they describe the protocol, not the device",
        &["VK_EXT_command_serialization", "VK_MESA_venus_protocol"],
    ),
    (
        "instance extensions: what they add is in Vulkan 1.1",
        &[
            "VK_KHR_device_group_creation",
            "VK_KHR_external_fence_capabilities",
            "VK_KHR_external_memory_capabilities",
            "VK_KHR_external_semaphore_capabilities",
            "VK_KHR_get_physical_device_properties2",
        ],
    ),
    (
        "fences and semaphores of the host stay on the host",
        &[
            "VK_EXT_external_memory_acquire_unmodified",
            "VK_KHR_external_fence_fd",
            "VK_KHR_external_semaphore_fd",
        ],
    ),
    ("memory that contexts cannot share", MEMORY_FDS),
    ("of no use where contexts cannot share memory", BESIDE_MEMORY_FDS),
    (
        "their commands are not executed yet",
        &[
            "VK_EXT_conditional_rendering",
            "VK_EXT_host_image_copy",
            "VK_EXT_nested_command_buffer",
            "VK_EXT_pipeline_library_group_handles",
            "VK_EXT_pipeline_protected_access",
            "VK_KHR_pipeline_library",
        ],
    ),
    ("the guest's driver maps blobs itself and offers it on its own", &["VK_KHR_map_memory2"]),
    ("an address on the host's bus means nothing in a guest", &["VK_EXT_pci_bus_info"]),
];

/// Extensions of shared memory. A guest has them where contexts can share memory.
const MEMORY_FDS: &[&str] = &["VK_EXT_external_memory_dma_buf", "VK_KHR_external_memory_fd"];

/// What Mesa before 26 wants beside them. A guest has them where memory is shared and the host has them.
const BESIDE_MEMORY_FDS: &[&str] = &["VK_EXT_image_drm_format_modifier", "VK_EXT_queue_family_foreign"];

/// Extensions made here, whatever the host has: stripped from the host's device.
///
/// Mesa before 26.2 reports Vulkan 1.2 instead of 1.3 unless semaphores can be imported from a SYNC_FD.
const EMULATED: &[(&str, u32)] = &[("VK_KHR_external_semaphore_fd", 1)];

/// What the daemon itself needs of the host's device.
pub fn needed(memory: MemoryBackEnd) -> &'static [&'static CStr] {
    match memory {
        MemoryBackEnd::Memfd => &[ash::ext::external_memory_host::NAME],
        MemoryBackEnd::DmaBuf => {
            &[ash::khr::external_memory_fd::NAME, ash::ext::external_memory_dma_buf::NAME]
        }
    }
}

/// The extensions a guest sees, with versions no newer than what is decoded.
pub fn offered(host: &BTreeMap<String, u32>, gpu: &GpuChoice) -> Vec<(&'static str, u32)> {
    let mut offered: Vec<_> = EXTENSIONS
        .iter()
        .filter_map(|(_, name, version)| {
            let host = host.get(*name).copied();
            let offered = match shared(name, gpu) {
                Some(Enable::Pass) => host?,
                // Made here, so the host's version does not matter.
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

/// What to do with an extension of shared memory; none if it is another.
fn shared(name: &str, gpu: &GpuChoice) -> Option<Enable> {
    let (memory, beside) = (MEMORY_FDS.contains(&name), BESIDE_MEMORY_FDS.contains(&name));
    match (gpu.trial.shareable, gpu.memory) {
        _ if !memory && !beside => None,
        (false, _) => Some(Enable::Refuse),
        (true, MemoryBackEnd::Memfd) if memory => Some(Enable::Strip),
        (true, _) => Some(Enable::Pass),
    }
}

/// Why an extension is withheld, if it is.
fn withheld(name: &str, gpu: &GpuChoice) -> Option<&'static str> {
    let counts = |reason: &&str| *reason != GRAPHICS || gpu.queues == Queues::Compute;
    WITHHELD.iter().find(|(_, names)| names.contains(&name)).map(|(reason, _)| *reason).filter(counts)
}

/// What to do with an extension that a guest enables.
#[derive(Debug, PartialEq, Eq)]
pub enum Enable {
    /// Enable it on the host's device.
    Pass,
    /// It is emulated; the host does not hear of it.
    Strip,
    /// It was not offered.
    Refuse,
}

/// Judges one enabled extension.
pub fn enable(name: &str, host: &BTreeMap<String, u32>, gpu: &GpuChoice) -> Enable {
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
    use crate::config::MemoryTrial;

    fn gpu(memory: MemoryBackEnd, shareable: bool) -> GpuChoice {
        let trial = MemoryTrial { mappable_types: 1, shareable };
        GpuChoice { uuid: [0; 16], memory, trial, queues: Queues::Compute }
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
    fn only_decodable_extensions_need_to_be_withheld_and_each_once() {
        let mut rows: Vec<&str> = WITHHELD.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        for name in &rows {
            assert!(EXTENSIONS.iter().any(|(_, known, _)| known == name), "{name} is not decodable anyway");
        }
        rows.sort_unstable();
        assert!(rows.windows(2).all(|pair| pair[0] != pair[1]));
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
