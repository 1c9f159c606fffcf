//! The features that shaders may use besides arithmetic: shared memory, clocks, hints, derivatives, pointers.

use ash::vk;

use super::super::binding::pipelines::answer;
use crate::bytes::{bytes_of, expect};
use crate::case::Case;
use crate::gpu::skip;

/// All cases of this module.
pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("shaders.shared_memory", |gpu| {
            let bytes = gpu.limits().max_compute_shared_memory_size;
            let kernel = gpu.kernel(0).buffers(1).constant(0, bytes / 4).build()?;
            let last = (bytes / 4 - 1) * 3;
            expect(&answer(gpu, &kernel)?[..2], &[last, bytes / 4])
        })
        .glsl(
            "layout(local_size_x = 64) in;
layout(constant_id = 0) const uint WORDS = 64;
layout(binding = 0) writeonly buffer To { uint to[]; };
shared uint part[WORDS];
void main() {
    for (uint i = gl_LocalInvocationIndex; i < WORDS; i += 64) part[i] = i * 3;
    barrier();
    uint right = 0;
    if (gl_LocalInvocationIndex == 0) {
        for (uint i = 0; i < WORDS; i++) right += part[i] == i * 3 ? 1 : 0;
        to[0] = part[WORDS - 1];
        to[1] = right;
    }
}",
        ),
        Case::new("shaders.zeroed_shared_memory", |gpu| {
            gpu.require(&["shaderZeroInitializeWorkgroupMemory"])?;
            let to = gpu.buffer(4 * 64)?;
            gpu.compute(0, &[&to], 64)?;
            expect(&to.values::<u32>(), &[0; 64])
        })
        .glsl(
            "#extension GL_EXT_null_initializer : require
layout(local_size_x = 32) in;
layout(binding = 0) writeonly buffer To { uint to[]; };
shared uint part[1024] = {};
void main() {
    if (gl_LocalInvocationIndex == 0) {
        uint sum = 0;
        for (uint i = 0; i < 1024; i++) sum |= part[i];
        to[gl_WorkGroupID.x] = sum;
    }
    barrier();
    for (uint i = gl_LocalInvocationIndex; i < 1024; i += 32) part[i] = 0xffffffff;
}",
        ),
        Case::new("shaders.shared_blocks", |gpu| {
            gpu.require(&[
                "workgroupMemoryExplicitLayout",
                "workgroupMemoryExplicitLayout8BitAccess",
                "shaderInt8",
            ])?;
            let to = gpu.buffer(256)?;
            gpu.compute(0, &[&to], 1)?;
            let expected: Vec<u32> = (0..64u32)
                .map(|i| u32::from_le_bytes([0, 1, 2, 3].map(|byte| (4 * i + byte) as u8 ^ 0x3c)))
                .collect();
            expect(&to.values::<u32>(), &expected)
        })
        .glsl(
            "#extension GL_EXT_shared_memory_block : require
layout(local_size_x = 64) in;
layout(binding = 0) writeonly buffer To { uint to[]; };
shared Bytes { uint8_t bytes[256]; };
shared Words { uint words[64]; };
void main() {
    uint i = gl_LocalInvocationIndex;
    for (uint j = 0; j < 4; j++) bytes[4 * i + j] = uint8_t(4 * i + j) ^ uint8_t(0x3c);
    barrier();
    to[i] = words[i];
}",
        ),
        Case::new("shaders.clock", |gpu| {
            gpu.require(&["shaderSubgroupClock", "shaderInt64"])?;
            let to = gpu.buffer(4)?;
            gpu.compute(0, &[&to], 1)?;
            expect(&to.values::<u32>(), &[1])
        })
        .glsl(
            "#extension GL_ARB_shader_clock : require
layout(binding = 0) buffer To { uint to; };
void main() {
    uint64_t before = clockARB();
    for (uint i = 0; i < 1000; i++) atomicAdd(to, 1);
    to = clockARB() - before < 0x1000000000000UL ? 1 : 0;
}",
        ),
        Case::new("shaders.device_clock", |gpu| {
            gpu.require(&["shaderDeviceClock", "shaderInt64"])?;
            let to = gpu.buffer(4)?;
            gpu.compute(0, &[&to], 1)?;
            expect(&to.values::<u32>(), &[1])
        })
        .glsl(
            "#extension GL_EXT_shader_realtime_clock : require
layout(binding = 0) buffer To { uint to; };
void main() {
    uint64_t before = clockRealtimeEXT();
    for (uint i = 0; i < 1000; i++) atomicAdd(to, 1);
    to = clockRealtimeEXT() >= before ? 1 : 0;
}",
        ),
        Case::new("shaders.expect_assume", |gpu| {
            gpu.require(&["shaderExpectAssume"])?;
            let kernel = gpu.kernel(0).buffers(1).build()?;
            expect(&answer(gpu, &kernel)?, &(0..64).map(|i| if i == 3 { 9 } else { i }).collect::<Vec<u32>>())
        })
        .glsl(
            "#extension GL_EXT_expect_assume : require
layout(local_size_x = 64) in;
layout(binding = 0) writeonly buffer To { uint to[]; };
void main() {
    uint i = gl_LocalInvocationIndex;
    assumeEXT(i < 64);
    to[i] = expectEXT(i == 3, false) ? 9 : i;
}",
        ),
        Case::new("shaders.derivatives", |gpu| {
            gpu.require(&["computeDerivativeGroupQuads"])?;
            let kernel = gpu.kernel(0).buffers(1).build()?;
            let found: Vec<f32> = crate::bytes::from_bytes(&bytes_of(&answer(gpu, &kernel)?));
            expect(&found[..32], &[3.0, 5.0].repeat(16))
        })
        .glsl(
            "#extension GL_NV_compute_shader_derivatives : require
layout(local_size_x = 4, local_size_y = 4) in;
layout(derivative_group_quadsNV) in;
layout(binding = 0) writeonly buffer To { vec2 to[]; };
void main() {
    float value = float(gl_LocalInvocationID.x) * 3.0 + float(gl_LocalInvocationID.y) * 5.0;
    to[gl_LocalInvocationIndex] = vec2(dFdx(value), dFdy(value));
}",
        ),
        Case::new("shaders.robust_buffers", |gpu| {
            gpu.require(&["pipelineRobustness"])?;
            let mut robust = vk::PipelineRobustnessCreateInfoEXT::default()
                .storage_buffers(vk::PipelineRobustnessBufferBehaviorEXT::ROBUST_BUFFER_ACCESS)
                .uniform_buffers(vk::PipelineRobustnessBufferBehaviorEXT::ROBUST_BUFFER_ACCESS);
            let mut info = vk::ComputePipelineCreateInfo::default().push_next(&mut robust);
            let kernel = gpu.kernel(0).buffers(1).build_with(&mut info, vk::PipelineCache::null())?;
            expect(&answer(gpu, &kernel)?, &[1; 64])
        })
        .glsl(
            "layout(local_size_x = 64) in;
layout(binding = 0) buffer To { uint to[]; };
void main() { uint i = gl_LocalInvocationIndex; to[i + 1000000] = 5; to[i] = 1; }",
        ),
        Case::new("shaders.variable_pointers", |gpu| {
            gpu.require(&["variablePointers"])?;
            let (a, b) = (gpu.buffer_of(&[11u32, 12, 13, 14])?, gpu.buffer_of(&[21u32, 22, 23, 24])?);
            let to = gpu.buffer(256)?;
            gpu.compute(0, &[&a, &b, &to], 1)?;
            expect(&to.values::<u32>()[..4], &[21, 12, 23, 14])
        })
        .assembly(VARIABLE_POINTERS),
        Case::new("shaders.recursion_and_loops", |gpu| {
            if gpu.limits().max_compute_work_group_invocations < 64 {
                return skip("workgroups of 64");
            }
            let kernel = gpu.kernel(0).buffers(1).build()?;
            let steps = |mut n: u32| {
                let mut count = 0;
                while n != 1 {
                    n = if n & 1 == 0 { n / 2 } else { 3 * n + 1 };
                    count += 1;
                }
                count
            };
            expect(&answer(gpu, &kernel)?, &(0..64).map(|i| steps(i + 1)).collect::<Vec<_>>())
        })
        .glsl(
            "layout(local_size_x = 64) in;
layout(binding = 0) writeonly buffer To { uint to[]; };
void main() {
    uint n = gl_LocalInvocationIndex + 1, count = 0;
    for (; n != 1; count++) n = n % 2 == 0 ? n / 2 : 3 * n + 1;
    to[gl_LocalInvocationIndex] = count;
}",
        ),
    ]
}

/// Each of four invocations selects one of two buffers and reads through the selected pointer.
const VARIABLE_POINTERS: &str = "OpCapability Shader
OpCapability VariablePointers
OpMemoryModel Logical GLSL450
OpEntryPoint GLCompute %main \"main\" %id %a %b %to
OpExecutionMode %main LocalSize 4 1 1
OpDecorate %id BuiltIn GlobalInvocationId
OpDecorate %words ArrayStride 4
OpDecorate %block Block
OpMemberDecorate %block 0 Offset 0
OpDecorate %a DescriptorSet 0
OpDecorate %a Binding 0
OpDecorate %b DescriptorSet 0
OpDecorate %b Binding 1
OpDecorate %to DescriptorSet 0
OpDecorate %to Binding 2
%void = OpTypeVoid
%function = OpTypeFunction %void
%uint = OpTypeInt 32 0
%bool = OpTypeBool
%uvec3 = OpTypeVector %uint 3
%input_uvec3 = OpTypePointer Input %uvec3
%input_uint = OpTypePointer Input %uint
%words = OpTypeRuntimeArray %uint
%block = OpTypeStruct %words
%buffer = OpTypePointer StorageBuffer %block
%word = OpTypePointer StorageBuffer %uint
%zero = OpConstant %uint 0
%one = OpConstant %uint 1
%id = OpVariable %input_uvec3 Input
%a = OpVariable %buffer StorageBuffer
%b = OpVariable %buffer StorageBuffer
%to = OpVariable %buffer StorageBuffer
%main = OpFunction %void None %function
%start = OpLabel
%at = OpAccessChain %input_uint %id %zero
%i = OpLoad %uint %at
%odd = OpBitwiseAnd %uint %i %one
%is_odd = OpIEqual %bool %odd %one
%in_a = OpAccessChain %word %a %zero %i
%in_b = OpAccessChain %word %b %zero %i
%selected = OpSelect %word %is_odd %in_a %in_b
%value = OpLoad %uint %selected
%result = OpAccessChain %word %to %zero %i
OpStore %result %value
OpReturn
OpFunctionEnd
";
