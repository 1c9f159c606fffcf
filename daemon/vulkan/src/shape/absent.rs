//! Device extensions that no guest sees, with the reason for each: the table behind `docs/features.md`.
//!
//! The codec decodes the extensions of [`WITHHELD`], but they are kept back. It cannot decode those of [`UNDECODABLE`], so no guest is ever told of
//! them. A name may end in `*`; the first row that fits gives the reason.

/// A reason, and the extensions it holds for.
pub(crate) type Absent = (&'static str, &'static [&'static str]);

/// The reason that does not apply if graphics queues are offered.
pub(crate) const GRAPHICS: &str = "graphics: offered with `--queues all` only";

/// Decodable extensions that are withheld all the same.
pub(crate) const WITHHELD: &[Absent] = &[
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
    ("offered where contexts can share memory, which is tried at start-up", MEMORY_FDS),
    ("of no use where contexts cannot share memory, and offered where they can", BESIDE_MEMORY_FDS),
    ("protected memory: no protected queue is offered", &["VK_EXT_pipeline_protected_access"]),
    (RAY_TRACING, &["VK_EXT_pipeline_library_group_handles"]),
    ("the guest's driver maps blobs itself and offers it on its own", &["VK_KHR_map_memory2"]),
    ("an address on the host's bus means nothing in a guest", &["VK_EXT_pci_bus_info"]),
];

/// Extensions of shared memory. A guest has them where contexts can share memory.
pub(crate) const MEMORY_FDS: &[&str] = &["VK_EXT_external_memory_dma_buf", "VK_KHR_external_memory_fd"];

/// Extensions that are useful beside [`MEMORY_FDS`]. A guest has them if contexts can share memory and the host has these extensions.
pub(crate) const BESIDE_MEMORY_FDS: &[&str] =
    &["VK_EXT_image_drm_format_modifier", "VK_EXT_queue_family_foreign"];

/// Extensions that the codec cannot decode. Mesa's driver passes only extensions that it knows itself, so its list up to Mesa 26.2 decides which rows
/// matter.
pub(crate) const UNDECODABLE: &[Absent] = &[
    (
        RAY_TRACING,
        &[
            "VK_KHR_ray_tracing_pipeline",
            "VK_KHR_ray_tracing_maintenance1",
            "VK_KHR_ray_tracing_position_fetch",
            "VK_EXT_ray_tracing_invocation_reorder",
        ],
    ),
    (
        "ray queries: builds of acceleration structures carry arrays of pointers and unions that the codec does not decode",
        &["VK_KHR_acceleration_structure", "VK_KHR_ray_query", "VK_KHR_deferred_host_operations"],
    ),
    ("descriptor heaps: they need version 4 of the wire's protocol", &["VK_EXT_descriptor_heap"]),
    (
        "this daemon's own: guest memory is imported with it, and a guest's pointers mean nothing to the host",
        &["VK_EXT_external_memory_host"],
    ),
    (
        "offered by the guest's driver on its own",
        &["VK_EXT_device_memory_report", "VK_EXT_map_memory_placed", "VK_EXT_physical_device_drm"],
    ),
    (
        "presentation: it happens in the guest, whose driver offers its own",
        &[
            "VK_EXT_display_control",
            "VK_EXT_full_screen_exclusive",
            "VK_EXT_hdr_metadata",
            "VK_EXT_present_mode_fifo_latest_ready",
            "VK_EXT_present_timing",
            "VK_EXT_swapchain_maintenance1",
            "VK_GOOGLE_display_timing",
            "VK_KHR_display_swapchain",
            "VK_KHR_incremental_present",
            "VK_KHR_present_id",
            "VK_KHR_present_id2",
            "VK_KHR_present_mode_fifo_latest_ready",
            "VK_KHR_present_wait",
            "VK_KHR_present_wait2",
            "VK_KHR_shared_presentable_image",
            "VK_KHR_swapchain",
            "VK_KHR_swapchain_maintenance1",
            "VK_KHR_swapchain_mutable_format",
        ],
    ),
    ("video: coding pictures is not compute", &["VK_KHR_video_*", "VK_EXT_video_*", "VK_VALVE_video_*"]),
    (
        "handles of other systems",
        &[
            "VK_EXT_external_memory_metal",
            "VK_EXT_metal_objects",
            "VK_KHR_external_fence_win32",
            "VK_KHR_external_memory_win32",
            "VK_KHR_external_semaphore_win32",
            "VK_KHR_win32_keyed_mutex",
        ],
    ),
    (
        "useful for compute, but Mesa's driver up to 26.2 passes them to no guest",
        &[
            "VK_EXT_descriptor_buffer",
            "VK_EXT_device_address_binding_report",
            "VK_EXT_device_fault",
            "VK_EXT_device_generated_commands",
            "VK_EXT_image_compression_control",
            "VK_EXT_memory_decompression",
            "VK_EXT_memory_priority",
            "VK_EXT_pageable_device_local_memory",
            "VK_EXT_pipeline_properties",
            "VK_EXT_rgba10x6_formats",
            "VK_EXT_shader_64bit_indexing",
            "VK_EXT_shader_long_vector",
            "VK_EXT_shader_module_identifier",
            "VK_EXT_shader_object",
            "VK_EXT_validation_cache",
            "VK_KHR_copy_memory_indirect",
            "VK_KHR_device_address_commands",
            "VK_KHR_internally_synchronized_queues",
            "VK_KHR_maintenance9",
            "VK_KHR_maintenance10",
            "VK_KHR_maintenance11",
            "VK_KHR_performance_query",
            "VK_KHR_pipeline_binary",
            "VK_KHR_pipeline_executable_properties",
            "VK_KHR_shader_abort",
            "VK_KHR_shader_constant_data",
            "VK_NV_cooperative_matrix",
            "VK_NV_cooperative_vector",
        ],
    ),
    ("debugging: names and labels stay in the guest", &["VK_EXT_debug_marker", "VK_EXT_frame_boundary"]),
    (
        "graphics, and Mesa's driver up to 26.2 passes them to no guest",
        &[
            "VK_EXT_astc_decode_mode",
            "VK_EXT_custom_resolve",
            "VK_EXT_discard_rectangles",
            "VK_EXT_fragment_density_map*",
            "VK_EXT_image_compression_control_swapchain",
            "VK_EXT_opacity_micromap",
            "VK_EXT_primitive_restart_index",
            "VK_EXT_shader_tile_image",
            "VK_EXT_subpass_merge_feedback",
            "VK_EXT_texture_compression_astc_3d",
            "VK_KHR_surface*",
        ],
    ),
    (
        "vendors' own, and Mesa's driver up to 26.2 passes none but those listed as passed",
        &[
            "VK_AMD_*",
            "VK_AMDX_*",
            "VK_ANDROID_*",
            "VK_ARM_*",
            "VK_FUCHSIA_*",
            "VK_GGP_*",
            "VK_HUAWEI_*",
            "VK_IMG_*",
            "VK_INTEL_*",
            "VK_MESA_*",
            "VK_MSFT_*",
            "VK_NV_*",
            "VK_NVX_*",
            "VK_OHOS_*",
            "VK_QCOM_*",
            "VK_QNX_*",
            "VK_SEC_*",
            "VK_VALVE_*",
        ],
    ),
];

const RAY_TRACING: &str = "ray tracing pipelines: no command that traces rays is served";

/// Extensions that are passed although Mesa's driver up to 26.2 shows them to no application, and what would show them.
pub(crate) const NOT_SHOWN: &[Absent] = &[
    (
        "shown by the patched driver, and by Mesa 26 if a program runs with `VN_DEBUG=mem_budget`",
        &["VK_EXT_memory_budget"],
    ),
    (
        "shown by Debian 13's driver with the patches of `guest-driver-patches`",
        &["VK_NV_cooperative_matrix2", "VK_NV_shader_sm_builtins"],
    ),
    (
        "not in the driver's own list up to Mesa 26.2",
        &[
            "VK_EXT_ycbcr_image_arrays",
            "VK_EXT_zero_initialize_device_memory",
            "VK_KHR_maintenance8",
            "VK_KHR_unified_image_layouts",
        ],
    ),
];

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::venus::generated::EXTENSIONS;

    fn is_decodable(name: &str) -> bool {
        EXTENSIONS.iter().any(|(_, known, _)| *known == name)
    }

    #[test]
    fn each_name_is_in_the_table_it_belongs_to_and_once() {
        let names = |rows: &[Absent]| rows.iter().flat_map(|(_, names)| names.to_vec()).collect::<Vec<_>>();
        for name in names(WITHHELD) {
            assert!(is_decodable(name), "{name} is not decodable anyway");
        }
        for name in names(UNDECODABLE) {
            assert!(!is_decodable(name), "{name} is decodable");
        }
        for name in names(NOT_SHOWN) {
            assert!(is_decodable(name) && !names(WITHHELD).contains(&name), "{name} is not passed");
        }
        let mut all = [names(WITHHELD), names(UNDECODABLE), names(NOT_SHOWN)].concat();
        all.sort_unstable();
        assert!(all.windows(2).all(|pair| pair[0] != pair[1]));
    }
}
