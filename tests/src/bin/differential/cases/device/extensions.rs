//! Extensions that belong to no other group: conditional rendering, and the additions of the maintenance extensions.

use std::ffi::c_void;

use anyhow::Result;
use ash::vk;

use crate::bytes::{bytes_of, expect};
use crate::case::Case;
use crate::gpu::Gpu;
use crate::images::{Picture, Shape};
use crate::kernel::{STORAGE, Slot};

/// All cases of this module.
pub(crate) fn cases() -> Vec<Case> {
    vec![
        conditional(),
        usage_flags_2(),
        image_subresource_layouts(),
        maintenance_7_properties(),
        access_flags_3(),
        replicated_composite(),
        float_controls_2(),
    ]
}

const COUNT: &str = "layout(binding = 0) buffer To { uint to; };
layout(push_constant) uniform Push { uint step; };
void main() { to += step; }";

fn conditional() -> Case {
    Case::new("extensions.conditional_rendering", |gpu| {
        gpu.require(&["conditionalRendering"])?;
        let begin: vk::PFN_vkCmdBeginConditionalRenderingEXT =
            unsafe { gpu.command(c"vkCmdBeginConditionalRenderingEXT") }?;
        let end: vk::PFN_vkCmdEndConditionalRenderingEXT =
            unsafe { gpu.command(c"vkCmdEndConditionalRenderingEXT") }?;
        let usage = gpu.every_use() | vk::BufferUsageFlags::CONDITIONAL_RENDERING_EXT;
        let flags = vk::MemoryPropertyFlags::HOST_VISIBLE | vk::MemoryPropertyFlags::HOST_COHERENT;
        let (conditions, to) = (gpu.buffer_in(8, usage, flags)?, gpu.buffer(4)?);
        let kernel = gpu.kernel(0).buffers(1).push(4).build()?;
        let set = gpu.set(&kernel, &[STORAGE], &[Slot::Buffer(to.handle)])?;
        gpu.run(|commands| unsafe {
            gpu.device.cmd_update_buffer(commands, conditions.handle, 0, &bytes_of(&[0u32, 1]));
            gpu.barrier(commands);
            gpu.bind(commands, &kernel, set);
            for (bit, (offset, inverted)) in
                [(0, false), (4, false), (0, true), (4, true)].into_iter().enumerate()
            {
                let mut info =
                    vk::ConditionalRenderingBeginInfoEXT::default().buffer(conditions.handle).offset(offset);
                if inverted {
                    info.flags = vk::ConditionalRenderingFlagsEXT::INVERTED;
                }
                begin(commands, &info);
                gpu.push(commands, &kernel, &[1u32 << bit]);
                gpu.device.cmd_dispatch(commands, 1, 1, 1);
                end(commands);
                gpu.barrier(commands);
            }
        })?;
        expect(&to.values::<u32>(), &[0b0110])
    })
    .glsl(COUNT)
}

fn usage_flags_2() -> Case {
    Case::new("extensions.maintenance_5.usage_flags_2", |gpu| {
        gpu.require(&["maintenance5"])?;
        let mut usage = vk::BufferUsageFlags2CreateInfoKHR::default()
            .usage(vk::BufferUsageFlags2KHR::STORAGE_BUFFER | vk::BufferUsageFlags2KHR::TRANSFER_SRC);
        let info = vk::BufferCreateInfo::default().size(256).push_next(&mut usage);
        let buffer = unsafe { gpu.device.create_buffer(&info, None) }?;
        gpu.later(move |device| unsafe { device.destroy_buffer(buffer, None) });
        let requirements = unsafe { gpu.device.get_buffer_memory_requirements(buffer) };
        let memory = gpu.allocate(requirements, vk::MemoryPropertyFlags::empty(), false)?;
        unsafe { gpu.device.bind_buffer_memory(buffer, memory, 0) }?;
        let to = gpu.buffer(256)?;
        let kernel = gpu.kernel(0).buffers(1).build()?;
        let set = gpu.set(&kernel, &[STORAGE], &[Slot::Buffer(buffer)])?;
        let region = [vk::BufferCopy { src_offset: 0, dst_offset: 0, size: 256 }];
        gpu.run(|commands| unsafe {
            gpu.bind(commands, &kernel, set);
            gpu.device.cmd_dispatch(commands, 1, 1, 1);
            gpu.barrier(commands);
            gpu.device.cmd_copy_buffer(commands, buffer, to.handle, &region);
        })?;
        expect(&to.values::<u32>(), &(0..64).map(|i| i * 13).collect::<Vec<u32>>())
    })
    .glsl(
        "layout(local_size_x = 64) in;
layout(binding = 0) writeonly buffer To { uint to[]; };
void main() { uint i = gl_GlobalInvocationID.x; to[i] = i * 13; }",
    )
}

fn image_subresource_layouts() -> Case {
    Case::new("extensions.maintenance_5.image_subresource_layout", |gpu| {
        gpu.require(&["maintenance5"])?;
        let extension = ash::khr::maintenance5::Device::new(&gpu.instance, &gpu.device);
        let shape = Shape {
            tiling: vk::ImageTiling::LINEAR,
            ..Shape::flat(vk::Format::R8G8B8A8_UNORM, 33, 17, vk::ImageUsageFlags::SAMPLED)
        };
        let picture = Picture::new(gpu, shape)?;
        let inner = vk::ImageSubresource::default().aspect_mask(vk::ImageAspectFlags::COLOR);
        let subresource = vk::ImageSubresource2KHR::default().image_subresource(inner);
        let words = |layout: &vk::SubresourceLayout2KHR| {
            let layout = layout.subresource_layout;
            [layout.offset, layout.size, layout.row_pitch]
        };
        let (mut made, mut asked) =
            (vk::SubresourceLayout2KHR::default(), vk::SubresourceLayout2KHR::default());
        unsafe { extension.get_image_subresource_layout2(picture.image, &subresource, &mut made) };
        let info = shape.info();
        let info = vk::DeviceImageSubresourceInfoKHR::default().create_info(&info).subresource(&subresource);
        unsafe { extension.get_device_image_subresource_layout(&info, &mut asked) };
        expect(&words(&made), &words(&asked))
    })
}

/// `VkPhysicalDeviceMaintenance7PropertiesKHR`, which is newer than ash.
#[repr(C)]
struct Maintenance7 {
    ty: vk::StructureType,
    next: *mut c_void,
    values: [u32; 8],
}

/// `VkMemoryBarrierAccessFlags3KHR`, which is newer than ash.
#[repr(C)]
struct AccessFlags3 {
    ty: vk::StructureType,
    next: *const c_void,
    masks: [u64; 2],
}

fn maintenance_7_properties() -> Case {
    Case::new("extensions.maintenance_7.properties", |gpu| {
        gpu.require(&["maintenance7"])?;
        let mut found = Maintenance7 {
            ty: vk::StructureType::from_raw(1_000_562_001),
            next: std::ptr::null_mut(),
            values: [0; 8],
        };
        let head = std::ptr::from_mut(&mut found).cast();
        let mut all = vk::PhysicalDeviceProperties2 { p_next: head, ..Default::default() };
        unsafe { gpu.instance.get_physical_device_properties2(gpu.physical, &mut all) };
        Ok(bytes_of(&found.values))
    })
}

fn access_flags_3() -> Case {
    Case::new("extensions.maintenance_8.access_flags_3", |gpu| {
        gpu.require(&["maintenance8"])?;
        let more = AccessFlags3 {
            ty: vk::StructureType::from_raw(1_000_574_002),
            next: std::ptr::null(),
            masks: [0; 2],
        };
        let mut barrier = vk::MemoryBarrier2::default()
            .src_stage_mask(vk::PipelineStageFlags2::CLEAR)
            .src_access_mask(vk::AccessFlags2::TRANSFER_WRITE)
            .dst_stage_mask(vk::PipelineStageFlags2::COPY)
            .dst_access_mask(vk::AccessFlags2::TRANSFER_READ);
        barrier.p_next = std::ptr::from_ref(&more).cast();
        copied_behind(gpu, barrier)
    })
}

/// Fills a word and copies it behind a barrier.
fn copied_behind(gpu: &Gpu, barrier: vk::MemoryBarrier2) -> Result<Vec<u8>> {
    let (to, barrier) = (gpu.buffer(8)?, [barrier]);
    let region = [vk::BufferCopy { src_offset: 0, dst_offset: 4, size: 4 }];
    gpu.run(|commands| unsafe {
        gpu.device.cmd_fill_buffer(commands, to.handle, 0, 4, 88);
        gpu.device.cmd_pipeline_barrier2(commands, &vk::DependencyInfo::default().memory_barriers(&barrier));
        gpu.device.cmd_copy_buffer(commands, to.handle, to.handle, &region);
    })?;
    expect(&to.values::<u32>(), &[88, 88])
}

/// A module that stores four words; `%four` is a vector of them.
fn module(capabilities: &str, extension: &str, decorations: &str, constants: &str, body: &str) -> String {
    format!(
        "OpCapability Shader
{capabilities}
OpExtension \"{extension}\"
OpMemoryModel Logical GLSL450
OpEntryPoint GLCompute %main \"main\" %to
OpExecutionMode %main LocalSize 1 1 1
OpDecorate %block Block
OpMemberDecorate %block 0 Offset 0
OpDecorate %to DescriptorSet 0
OpDecorate %to Binding 0
{decorations}
%void = OpTypeVoid
%function = OpTypeFunction %void
%uint = OpTypeInt 32 0
%float = OpTypeFloat 32
%uvec4 = OpTypeVector %uint 4
%vec4 = OpTypeVector %float 4
%block = OpTypeStruct %uvec4
%buffer = OpTypePointer StorageBuffer %block
%vector = OpTypePointer StorageBuffer %uvec4
%zero = OpConstant %uint 0
{constants}
%to = OpVariable %buffer StorageBuffer
%main = OpFunction %void None %function
%start = OpLabel
{body}
%at = OpAccessChain %vector %to %zero
OpStore %at %four
OpReturn
OpFunctionEnd
"
    )
}

fn replicated_composite() -> Case {
    Case::new("extensions.replicated_composite", |gpu| {
        gpu.require(&["shaderReplicatedComposites"])?;
        let to = gpu.buffer(16)?;
        gpu.compute(0, &[&to], 1)?;
        expect(&to.values::<u32>(), &[1234; 4])
    })
    .assembly(module(
        "OpCapability ReplicatedCompositesEXT",
        "SPV_EXT_replicated_composites",
        "",
        "%word = OpConstant %uint 1234\n%four = OpConstantCompositeReplicateEXT %uvec4 %word",
        "",
    ))
}

fn float_controls_2() -> Case {
    Case::new("extensions.float_controls_2", |gpu| {
        gpu.require(&["shaderFloatControls2"])?;
        let to = gpu.buffer(16)?;
        gpu.compute(0, &[&to], 1)?;
        // Nothing may be contracted or reassociated: the small summand is lost.
        expect(&to.values::<u32>(), &[0; 4])
    })
    .assembly(module(
        "OpCapability FloatControls2",
        "SPV_KHR_float_controls2",
        "OpDecorate %sum FPFastMathMode None\nOpDecorate %difference FPFastMathMode None",
        "%large = OpConstant %float 16777216
%small = OpConstant %float 0.5
%larges = OpConstantComposite %vec4 %large %large %large %large
%smalls = OpConstantComposite %vec4 %small %small %small %small",
        "%sum = OpFAdd %vec4 %larges %smalls
%difference = OpFSub %vec4 %sum %larges
%four = OpBitcast %uvec4 %difference",
    ))
}
