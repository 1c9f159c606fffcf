//! Device extensions a guest may see: those in this table that the host has, plus what is emulated.
//!
//! Being decodable is not enough: an extension is served when its commands are executed and its objects are tracked. What is
//! not here is either graphics, or shares host handles with other processes, or belongs to a later step.

use protocol::venus::generated::EXTENSIONS;
use std::collections::BTreeMap;

/// Extensions served as the host has them.
const SERVED: &[&str] = &[
    "VK_EXT_4444_formats",
    "VK_EXT_border_color_swizzle",
    "VK_EXT_buffer_device_address",
    "VK_EXT_calibrated_timestamps",
    "VK_EXT_custom_border_color",
    "VK_EXT_descriptor_indexing",
    "VK_EXT_extended_dynamic_state",
    "VK_EXT_filter_cubic",
    "VK_EXT_global_priority",
    "VK_EXT_global_priority_query",
    "VK_EXT_host_query_reset",
    "VK_EXT_image_2d_view_of_3d",
    "VK_EXT_image_robustness",
    "VK_EXT_image_sliced_view_of_3d",
    "VK_EXT_image_view_min_lod",
    "VK_EXT_inline_uniform_block",
    "VK_EXT_memory_budget",
    "VK_EXT_mutable_descriptor_type",
    "VK_EXT_non_seamless_cube_map",
    "VK_EXT_pipeline_creation_cache_control",
    "VK_EXT_pipeline_creation_feedback",
    "VK_EXT_pipeline_robustness",
    "VK_EXT_private_data",
    "VK_EXT_robustness2",
    "VK_EXT_sampler_filter_minmax",
    "VK_EXT_scalar_block_layout",
    "VK_EXT_separate_stencil_usage",
    "VK_EXT_shader_atomic_float",
    "VK_EXT_shader_atomic_float2",
    "VK_EXT_shader_demote_to_helper_invocation",
    "VK_EXT_shader_float8",
    "VK_EXT_shader_image_atomic_int64",
    "VK_EXT_shader_replicated_composites",
    "VK_EXT_shader_subgroup_ballot",
    "VK_EXT_shader_subgroup_vote",
    "VK_EXT_shader_viewport_index_layer",
    "VK_EXT_subgroup_size_control",
    "VK_EXT_texel_buffer_alignment",
    "VK_EXT_texture_compression_astc_hdr",
    "VK_EXT_tooling_info",
    "VK_EXT_ycbcr_2plane_444_formats",
    "VK_EXT_ycbcr_image_arrays",
    "VK_EXT_zero_initialize_device_memory",
    "VK_IMG_filter_cubic",
    "VK_KHR_16bit_storage",
    "VK_KHR_8bit_storage",
    "VK_KHR_bind_memory2",
    "VK_KHR_buffer_device_address",
    "VK_KHR_calibrated_timestamps",
    "VK_KHR_compute_shader_derivatives",
    "VK_KHR_cooperative_matrix",
    "VK_KHR_copy_commands2",
    "VK_KHR_create_renderpass2",
    "VK_KHR_dedicated_allocation",
    "VK_KHR_depth_stencil_resolve",
    "VK_KHR_descriptor_update_template",
    "VK_KHR_device_group",
    "VK_KHR_driver_properties",
    "VK_KHR_external_fence",
    "VK_KHR_external_memory",
    "VK_KHR_external_semaphore",
    "VK_KHR_format_feature_flags2",
    "VK_KHR_get_memory_requirements2",
    "VK_KHR_global_priority",
    "VK_KHR_image_format_list",
    "VK_KHR_maintenance1",
    "VK_KHR_maintenance2",
    "VK_KHR_maintenance3",
    "VK_KHR_maintenance4",
    "VK_KHR_maintenance5",
    "VK_KHR_maintenance6",
    "VK_KHR_maintenance7",
    "VK_KHR_maintenance8",
    "VK_KHR_push_descriptor",
    "VK_KHR_relaxed_block_layout",
    "VK_KHR_robustness2",
    "VK_KHR_sampler_mirror_clamp_to_edge",
    "VK_KHR_sampler_ycbcr_conversion",
    "VK_KHR_separate_depth_stencil_layouts",
    "VK_KHR_shader_atomic_int64",
    "VK_KHR_shader_bfloat16",
    "VK_KHR_shader_clock",
    "VK_KHR_shader_draw_parameters",
    "VK_KHR_shader_expect_assume",
    "VK_KHR_shader_float16_int8",
    "VK_KHR_shader_float_controls",
    "VK_KHR_shader_float_controls2",
    "VK_KHR_shader_fma",
    "VK_KHR_shader_integer_dot_product",
    "VK_KHR_shader_maximal_reconvergence",
    "VK_KHR_shader_non_semantic_info",
    "VK_KHR_shader_quad_control",
    "VK_KHR_shader_relaxed_extended_instruction",
    "VK_KHR_shader_subgroup_extended_types",
    "VK_KHR_shader_subgroup_rotate",
    "VK_KHR_shader_subgroup_uniform_control_flow",
    "VK_KHR_shader_terminate_invocation",
    "VK_KHR_shader_untyped_pointers",
    "VK_KHR_spirv_1_4",
    "VK_KHR_storage_buffer_storage_class",
    "VK_KHR_synchronization2",
    "VK_KHR_timeline_semaphore",
    "VK_KHR_uniform_buffer_standard_layout",
    "VK_KHR_variable_pointers",
    "VK_KHR_vulkan_memory_model",
    "VK_KHR_workgroup_memory_explicit_layout",
    "VK_KHR_zero_initialize_workgroup_memory",
];

/// Extensions made here, whatever the host has: stripped from the host's device.
///
/// Mesa before 26.2 reports Vulkan 1.2 instead of 1.3 unless semaphores can be imported from a SYNC_FD.
const EMULATED: &[(&str, u32)] = &[("VK_KHR_external_semaphore_fd", 1)];

/// The extensions a guest sees, with versions no newer than what is decoded.
pub fn offered(host: &BTreeMap<String, u32>) -> Vec<(&'static str, u32)> {
    let known = |name: &str| EXTENSIONS.iter().find(|(_, n, _)| *n == name).map(|(_, _, version)| *version);
    let mut offered: Vec<_> = SERVED
        .iter()
        .filter_map(|name| Some((*name, (*host.get(*name)?).min(known(name)?))))
        .chain(EMULATED.iter().copied())
        .collect();
    offered.sort_unstable();
    offered
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
pub fn enable(name: &str, host: &BTreeMap<String, u32>) -> Enable {
    if EMULATED.iter().any(|(emulated, _)| *emulated == name) {
        Enable::Strip
    } else if offered(host).iter().any(|(offered, _)| *offered == name) {
        Enable::Pass
    } else {
        Enable::Refuse
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extension_of_the_host_that_is_not_served_stays_hidden() {
        let host =
            BTreeMap::from([("VK_KHR_swapchain".to_owned(), 70), ("VK_KHR_maintenance4".to_owned(), 9)]);
        assert!(!offered(&host).iter().any(|(name, _)| *name == "VK_KHR_swapchain"));
        assert_eq!(enable("VK_KHR_swapchain", &host), Enable::Refuse);
        assert_eq!(enable("VK_KHR_external_semaphore_fd", &host), Enable::Strip);
    }

    #[test]
    fn every_served_extension_is_decodable() {
        for name in SERVED {
            assert!(
                EXTENSIONS.iter().any(|(_, known, _)| known == name),
                "{name} is served but not decodable"
            );
        }
    }
}
