//! The features of a device, by the names of the Vulkan specification: its extensions and the members of its feature structs.
//!
//! Structs of features hold one `VkBool32` after the other, so a table of names describes them, whatever Vulkan headers this crate has. This module
//! knows no case.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_void};

use anyhow::Result;
use ash::vk;

/// The extensions and features that a physical device has, and the structs that switch them on.
pub(crate) struct Features {
    extensions: Vec<String>,
    core: vk::PhysicalDeviceFeatures,
    chain: Vec<Struct>,
    values: BTreeMap<&'static str, bool>,
}

/// A feature struct as it lies in memory.
struct Struct {
    shape: &'static Shape,
    memory: Vec<usize>,
}

/// A feature struct: the extension that brings it (none: Vulkan 1.3), its `VkStructureType`, its members.
struct Shape {
    extension: &'static str,
    ty: i32,
    members: &'static [&'static str],
}

/// Size of `sType` and `pNext`.
const HEAD: usize = 16;

impl Features {
    /// Asks a physical device.
    pub(crate) fn of(instance: &ash::Instance, physical: vk::PhysicalDevice) -> Result<Self> {
        let listed = unsafe { instance.enumerate_device_extension_properties(physical) }?;
        let name = |extension: &vk::ExtensionProperties| {
            Ok(extension.extension_name_as_c_str()?.to_string_lossy().into_owned())
        };
        let mut extensions = listed.iter().map(name).collect::<Result<Vec<String>>>()?;
        extensions.sort();
        let has = |name: &str| name.is_empty() || extensions.iter().any(|extension| extension == name);
        let mut chain: Vec<Struct> =
            SHAPES.iter().filter(|shape| has(shape.extension)).map(Struct::new).collect();
        let head = link(&mut chain);
        let mut features = vk::PhysicalDeviceFeatures2 { p_next: head, ..Default::default() };
        unsafe { instance.get_physical_device_features2(physical, &mut features) };
        let mut values = BTreeMap::new();
        let core = features.features;
        for (name, value) in core_members(&core) {
            values.insert(name, value);
        }
        for found in &chain {
            for (index, name) in found.shape.members.iter().enumerate() {
                values.insert(*name, found.get(index));
            }
        }
        Ok(Self { extensions, core, chain, values })
    }

    /// Returns whether the device has a feature. An unknown name is an error of the case.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.values.get(name).copied().unwrap_or_else(|| {
            let known = SHAPES.iter().any(|shape| shape.members.contains(&name));
            assert!(known, "no feature is called {name}");
            false
        })
    }

    /// Returns whether the device lists an extension.
    pub(crate) fn has_extension(&self, name: &CStr) -> bool {
        name.to_str().is_ok_and(|name| self.extensions.iter().any(|extension| extension == name))
    }

    /// All features, by name.
    pub(crate) fn values(&self) -> impl Iterator<Item = (&'static str, bool)> {
        self.values.iter().map(|(name, value)| (*name, *value))
    }

    /// The core features, for device creation, without those in `off`.
    pub(crate) fn core(&self, off: &[&str]) -> vk::PhysicalDeviceFeatures {
        let mut core = self.core;
        if off.contains(&"robustBufferAccess") {
            core.robust_buffer_access = vk::FALSE;
        }
        core
    }

    /// The chain that switches on everything but `off`, and the extensions it needs. The pointers in it are valid as long as the returned value.
    pub(crate) fn enable(&self, off: &[&str]) -> Enabled {
        let mut chain: Vec<Struct> = self
            .chain
            .iter()
            .map(|found| Struct { shape: found.shape, memory: found.memory.clone() })
            .collect();
        for found in &mut chain {
            for (index, name) in found.shape.members.iter().enumerate() {
                if off.contains(name) {
                    found.clear(index);
                }
            }
        }
        let shaped = chain.iter().map(|found| found.shape.extension).filter(|name| !name.is_empty());
        let plain = PLAIN.iter().copied().filter(|name| self.extensions.iter().any(|found| found == name));
        let names = shaped.chain(plain).map(|name| std::ffi::CString::new(name).expect("names have no zero"));
        let mut names: Vec<_> = names.collect();
        names.sort();
        names.dedup();
        let head = link(&mut chain);
        Enabled { names, head, _chain: chain }
    }
}

/// A chain for `vkCreateDevice`.
pub(crate) struct Enabled {
    /// The names of the extensions.
    pub names: Vec<std::ffi::CString>,
    /// The first struct.
    pub head: *mut c_void,
    _chain: Vec<Struct>,
}

impl Struct {
    fn new(shape: &'static Shape) -> Self {
        let words = (HEAD + 4 * shape.members.len()).div_ceil(8);
        let mut memory = vec![0; words];
        memory[0] = shape.ty as usize;
        Self { shape, memory }
    }

    fn get(&self, index: usize) -> bool {
        let at = HEAD + 4 * index;
        (self.memory[at / 8] >> (at % 8 * 8)) & 1 != 0
    }

    fn clear(&mut self, index: usize) {
        let at = HEAD + 4 * index;
        self.memory[at / 8] &= !(0xffff_ffff << (at % 8 * 8));
    }
}

/// Lets each struct point to the next one; returns the address of the first.
fn link(chain: &mut [Struct]) -> *mut c_void {
    let mut next = std::ptr::null_mut();
    for found in chain.iter_mut().rev() {
        found.memory[1] = next as usize;
        next = found.memory.as_mut_ptr().cast();
    }
    next
}

fn core_members(core: &vk::PhysicalDeviceFeatures) -> Vec<(&'static str, bool)> {
    vec![
        ("robustBufferAccess", core.robust_buffer_access != 0),
        ("imageCubeArray", core.image_cube_array != 0),
        ("samplerAnisotropy", core.sampler_anisotropy != 0),
        ("pipelineStatisticsQuery", core.pipeline_statistics_query != 0),
        ("shaderImageGatherExtended", core.shader_image_gather_extended != 0),
        ("shaderStorageImageExtendedFormats", core.shader_storage_image_extended_formats != 0),
        ("shaderStorageImageMultisample", core.shader_storage_image_multisample != 0),
        ("shaderStorageImageReadWithoutFormat", core.shader_storage_image_read_without_format != 0),
        ("shaderStorageImageWriteWithoutFormat", core.shader_storage_image_write_without_format != 0),
        ("shaderStorageBufferArrayDynamicIndexing", core.shader_storage_buffer_array_dynamic_indexing != 0),
        ("shaderUniformBufferArrayDynamicIndexing", core.shader_uniform_buffer_array_dynamic_indexing != 0),
        ("shaderSampledImageArrayDynamicIndexing", core.shader_sampled_image_array_dynamic_indexing != 0),
        ("shaderStorageImageArrayDynamicIndexing", core.shader_storage_image_array_dynamic_indexing != 0),
        ("shaderFloat64", core.shader_float64 != 0),
        ("shaderInt64", core.shader_int64 != 0),
        ("shaderInt16", core.shader_int16 != 0),
        ("shaderResourceMinLod", core.shader_resource_min_lod != 0),
        ("textureCompressionBC", core.texture_compression_bc != 0),
        ("inheritedQueries", core.inherited_queries != 0),
    ]
}

const SHAPES: &[Shape] = &[
    Shape {
        extension: "",
        ty: 49,
        members: &[
            "storageBuffer16BitAccess",
            "uniformAndStorageBuffer16BitAccess",
            "storagePushConstant16",
            "storageInputOutput16",
            "multiview",
            "multiviewGeometryShader",
            "multiviewTessellationShader",
            "variablePointersStorageBuffer",
            "variablePointers",
            "protectedMemory",
            "samplerYcbcrConversion",
            "shaderDrawParameters",
        ],
    },
    Shape {
        extension: "",
        ty: 51,
        members: &[
            "samplerMirrorClampToEdge",
            "drawIndirectCount",
            "storageBuffer8BitAccess",
            "uniformAndStorageBuffer8BitAccess",
            "storagePushConstant8",
            "shaderBufferInt64Atomics",
            "shaderSharedInt64Atomics",
            "shaderFloat16",
            "shaderInt8",
            "descriptorIndexing",
            "shaderInputAttachmentArrayDynamicIndexing",
            "shaderUniformTexelBufferArrayDynamicIndexing",
            "shaderStorageTexelBufferArrayDynamicIndexing",
            "shaderUniformBufferArrayNonUniformIndexing",
            "shaderSampledImageArrayNonUniformIndexing",
            "shaderStorageBufferArrayNonUniformIndexing",
            "shaderStorageImageArrayNonUniformIndexing",
            "shaderInputAttachmentArrayNonUniformIndexing",
            "shaderUniformTexelBufferArrayNonUniformIndexing",
            "shaderStorageTexelBufferArrayNonUniformIndexing",
            "descriptorBindingUniformBufferUpdateAfterBind",
            "descriptorBindingSampledImageUpdateAfterBind",
            "descriptorBindingStorageImageUpdateAfterBind",
            "descriptorBindingStorageBufferUpdateAfterBind",
            "descriptorBindingUniformTexelBufferUpdateAfterBind",
            "descriptorBindingStorageTexelBufferUpdateAfterBind",
            "descriptorBindingUpdateUnusedWhilePending",
            "descriptorBindingPartiallyBound",
            "descriptorBindingVariableDescriptorCount",
            "runtimeDescriptorArray",
            "samplerFilterMinmax",
            "scalarBlockLayout",
            "imagelessFramebuffer",
            "uniformBufferStandardLayout",
            "shaderSubgroupExtendedTypes",
            "separateDepthStencilLayouts",
            "hostQueryReset",
            "timelineSemaphore",
            "bufferDeviceAddress",
            "bufferDeviceAddressCaptureReplay",
            "bufferDeviceAddressMultiDevice",
            "vulkanMemoryModel",
            "vulkanMemoryModelDeviceScope",
            "vulkanMemoryModelAvailabilityVisibilityChains",
            "shaderOutputViewportIndex",
            "shaderOutputLayer",
            "subgroupBroadcastDynamicId",
        ],
    },
    Shape {
        extension: "",
        ty: 53,
        members: &[
            "robustImageAccess",
            "inlineUniformBlock",
            "descriptorBindingInlineUniformBlockUpdateAfterBind",
            "pipelineCreationCacheControl",
            "privateData",
            "shaderDemoteToHelperInvocation",
            "shaderTerminateInvocation",
            "subgroupSizeControl",
            "computeFullSubgroups",
            "synchronization2",
            "textureCompressionASTC_HDR",
            "shaderZeroInitializeWorkgroupMemory",
            "dynamicRendering",
            "shaderIntegerDotProduct",
            "maintenance4",
        ],
    },
    Shape {
        extension: "VK_KHR_cooperative_matrix",
        ty: 1000506000,
        members: &["cooperativeMatrix", "cooperativeMatrixRobustBufferAccess"],
    },
    Shape {
        extension: "VK_KHR_shader_clock",
        ty: 1000181000,
        members: &["shaderSubgroupClock", "shaderDeviceClock"],
    },
    Shape {
        extension: "VK_EXT_shader_atomic_float",
        ty: 1000260000,
        members: &[
            "shaderBufferFloat32Atomics",
            "shaderBufferFloat32AtomicAdd",
            "shaderBufferFloat64Atomics",
            "shaderBufferFloat64AtomicAdd",
            "shaderSharedFloat32Atomics",
            "shaderSharedFloat32AtomicAdd",
            "shaderSharedFloat64Atomics",
            "shaderSharedFloat64AtomicAdd",
            "shaderImageFloat32Atomics",
            "shaderImageFloat32AtomicAdd",
            "sparseImageFloat32Atomics",
            "sparseImageFloat32AtomicAdd",
        ],
    },
    Shape {
        extension: "VK_EXT_shader_atomic_float2",
        ty: 1000273000,
        members: &[
            "shaderBufferFloat16Atomics",
            "shaderBufferFloat16AtomicAdd",
            "shaderBufferFloat16AtomicMinMax",
            "shaderBufferFloat32AtomicMinMax",
            "shaderBufferFloat64AtomicMinMax",
            "shaderSharedFloat16Atomics",
            "shaderSharedFloat16AtomicAdd",
            "shaderSharedFloat16AtomicMinMax",
            "shaderSharedFloat32AtomicMinMax",
            "shaderSharedFloat64AtomicMinMax",
            "shaderImageFloat32AtomicMinMax",
            "sparseImageFloat32AtomicMinMax",
        ],
    },
    Shape {
        extension: "VK_EXT_shader_image_atomic_int64",
        ty: 1000234000,
        members: &["shaderImageInt64Atomics", "sparseImageInt64Atomics"],
    },
    Shape {
        extension: "VK_EXT_robustness2",
        ty: 1000286000,
        members: &["robustBufferAccess2", "robustImageAccess2", "nullDescriptor"],
    },
    Shape {
        extension: "VK_KHR_workgroup_memory_explicit_layout",
        ty: 1000336000,
        members: &[
            "workgroupMemoryExplicitLayout",
            "workgroupMemoryExplicitLayoutScalarBlockLayout",
            "workgroupMemoryExplicitLayout8BitAccess",
            "workgroupMemoryExplicitLayout16BitAccess",
        ],
    },
    Shape {
        extension: "VK_KHR_shader_maximal_reconvergence",
        ty: 1000434000,
        members: &["shaderMaximalReconvergence"],
    },
    Shape { extension: "VK_KHR_shader_quad_control", ty: 1000235000, members: &["shaderQuadControl"] },
    Shape {
        extension: "VK_KHR_shader_subgroup_rotate",
        ty: 1000416000,
        members: &["shaderSubgroupRotate", "shaderSubgroupRotateClustered"],
    },
    Shape { extension: "VK_KHR_shader_expect_assume", ty: 1000544000, members: &["shaderExpectAssume"] },
    Shape { extension: "VK_KHR_shader_float_controls2", ty: 1000528000, members: &["shaderFloatControls2"] },
    Shape { extension: "VK_KHR_maintenance5", ty: 1000470000, members: &["maintenance5"] },
    Shape { extension: "VK_KHR_maintenance6", ty: 1000545000, members: &["maintenance6"] },
    Shape { extension: "VK_KHR_maintenance7", ty: 1000562000, members: &["maintenance7"] },
    Shape { extension: "VK_KHR_maintenance8", ty: 1000574000, members: &["maintenance8"] },
    Shape { extension: "VK_KHR_maintenance9", ty: 1000584000, members: &["maintenance9"] },
    Shape { extension: "VK_KHR_maintenance10", ty: 1000630000, members: &["maintenance10"] },
    Shape {
        extension: "VK_KHR_shader_bfloat16",
        ty: 1000141000,
        members: &["shaderBFloat16Type", "shaderBFloat16DotProduct", "shaderBFloat16CooperativeMatrix"],
    },
    Shape {
        extension: "VK_EXT_shader_float8",
        ty: 1000567000,
        members: &["shaderFloat8", "shaderFloat8CooperativeMatrix"],
    },
    Shape { extension: "VK_EXT_host_image_copy", ty: 1000270000, members: &["hostImageCopy"] },
    Shape { extension: "VK_EXT_pipeline_robustness", ty: 1000068001, members: &["pipelineRobustness"] },
    Shape {
        extension: "VK_EXT_mutable_descriptor_type",
        ty: 1000351000,
        members: &["mutableDescriptorType"],
    },
    Shape {
        extension: "VK_EXT_custom_border_color",
        ty: 1000287002,
        members: &["customBorderColors", "customBorderColorWithoutFormat"],
    },
    Shape {
        extension: "VK_KHR_compute_shader_derivatives",
        ty: 1000201000,
        members: &["computeDerivativeGroupQuads", "computeDerivativeGroupLinear"],
    },
    Shape {
        extension: "VK_EXT_shader_replicated_composites",
        ty: 1000564000,
        members: &["shaderReplicatedComposites"],
    },
    Shape {
        extension: "VK_KHR_shader_untyped_pointers",
        ty: 1000387000,
        members: &["shaderUntypedPointers"],
    },
    Shape {
        extension: "VK_KHR_shader_relaxed_extended_instruction",
        ty: 1000558000,
        members: &["shaderRelaxedExtendedInstruction"],
    },
    Shape {
        extension: "VK_EXT_conditional_rendering",
        ty: 1000081001,
        members: &["conditionalRendering", "inheritedConditionalRendering"],
    },
    Shape {
        extension: "VK_EXT_nested_command_buffer",
        ty: 1000451000,
        members: &[
            "nestedCommandBuffer",
            "nestedCommandBufferRendering",
            "nestedCommandBufferSimultaneousUse",
        ],
    },
    Shape {
        extension: "VK_EXT_image_2d_view_of_3d",
        ty: 1000393000,
        members: &["image2DViewOf3D", "sampler2DViewOf3D"],
    },
    Shape { extension: "VK_EXT_image_sliced_view_of_3d", ty: 1000418000, members: &["imageSlicedViewOf3D"] },
    Shape { extension: "VK_EXT_non_seamless_cube_map", ty: 1000422000, members: &["nonSeamlessCubeMap"] },
    Shape { extension: "VK_EXT_texel_buffer_alignment", ty: 1000281000, members: &["texelBufferAlignment"] },
    Shape { extension: "VK_KHR_ray_query", ty: 1000348013, members: &["rayQuery"] },
    Shape {
        extension: "VK_KHR_acceleration_structure",
        ty: 1000150013,
        members: &[
            "accelerationStructure",
            "accelerationStructureCaptureReplay",
            "accelerationStructureIndirectBuild",
            "accelerationStructureHostCommands",
            "descriptorBindingAccelerationStructureUpdateAfterBind",
        ],
    },
    Shape {
        extension: "VK_KHR_shader_fma",
        ty: 1000579000,
        members: &["shaderFmaFloat16", "shaderFmaFloat32", "shaderFmaFloat64"],
    },
    Shape {
        extension: "VK_KHR_unified_image_layouts",
        ty: 1000527000,
        members: &["unifiedImageLayouts", "unifiedImageLayoutsVideo"],
    },
    Shape { extension: "VK_KHR_global_priority", ty: 1000388000, members: &["globalPriorityQuery"] },
];

/// Extensions without features.
const PLAIN: &[&str] = &[
    "VK_EXT_calibrated_timestamps",
    "VK_EXT_sampler_filter_minmax",
    "VK_KHR_acceleration_structure",
    "VK_KHR_calibrated_timestamps",
    "VK_KHR_deferred_host_operations",
    "VK_KHR_external_memory_fd",
    "VK_KHR_map_memory2",
    "VK_KHR_pipeline_library",
    "VK_KHR_push_descriptor",
    "VK_KHR_shader_non_semantic_info",
];
