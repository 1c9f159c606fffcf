//! The layout of numbers in buffers and push constants: narrow types and layout rules.

use half::f16;

use crate::bytes::{bytes_of, expect};
use crate::case::Case;
use crate::elementwise::{noise_floats, noise32};
use crate::gpu::skip;
use crate::kernel::{STORAGE, Slot};
use ash::vk;

const UNIFORM: vk::DescriptorType = vk::DescriptorType::UNIFORM_BUFFER;

/// All cases of this module.
pub(crate) fn cases() -> Vec<Case> {
    let mut cases = vec![storage_8(), storage_16(), storage_half(), uniform_8(), uniform_16()];
    cases.extend([push_8(), push_16(), scalar_layout(), std430(), std140(), uniform_standard_layout()]);
    cases.extend([row_major(), array_length(), wide_vectors(), large_uniform(), large_push_constants()]);
    cases.extend([push_constants_in_parts(), coherent_between_groups(), restrict_views(), many_blocks()]);
    cases
}

fn storage_8() -> Case {
    Case::new("storage.buffer_8", |gpu| {
        gpu.require(&["storageBuffer8BitAccess", "shaderInt8"])?;
        let input: Vec<u8> = (0..=255).collect();
        let (from, to) = (gpu.buffer_of(&input)?, gpu.buffer(256)?);
        gpu.compute(0, &[&from, &to], 4)?;
        expect(&to.values::<u8>(), &input.iter().rev().map(|value| value ^ 0x5a).collect::<Vec<u8>>())
    })
    .glsl(
        "layout(local_size_x = 64) in;
layout(binding = 0) readonly buffer From { uint8_t from[]; };
layout(binding = 1) writeonly buffer To { uint8_t to[]; };
void main() { uint i = gl_GlobalInvocationID.x; to[255 - i] = from[i] ^ uint8_t(0x5a); }",
    )
}

fn storage_16() -> Case {
    Case::new("storage.buffer_16", |gpu| {
        gpu.require(&["storageBuffer16BitAccess"])?;
        let input: Vec<u16> = noise32(10, 256).into_iter().map(|value| value as u16).collect();
        let (from, to) = (gpu.buffer_of(&input)?, gpu.buffer(1024)?);
        gpu.compute(0, &[&from, &to], 4)?;
        expect(&to.values::<u32>(), &input.iter().map(|value| u32::from(*value) * 3).collect::<Vec<u32>>())
    })
    .glsl(
        "layout(local_size_x = 64) in;
layout(binding = 0) readonly buffer From { uint16_t from[]; };
layout(binding = 1) writeonly buffer To { uint to[]; };
void main() { uint i = gl_GlobalInvocationID.x; to[i] = uint(from[i]) * 3; }",
    )
}

fn storage_half() -> Case {
    Case::new("storage.buffer_half", |gpu| {
        gpu.require(&["storageBuffer16BitAccess"])?;
        let floats: Vec<f32> = noise_floats(11, 256).into_iter().map(|value| value as f32).collect();
        let (from, to) = (gpu.buffer_of(&floats)?, gpu.buffer(512)?);
        gpu.compute(0, &[&from, &to], 4)?;
        expect(&to.values(), &floats.iter().map(|value| f16::from_f32(*value)).collect::<Vec<f16>>())
    })
    .glsl(
        "layout(local_size_x = 64) in;
layout(binding = 0) readonly buffer From { float from[]; };
layout(binding = 1) writeonly buffer To { float16_t to[]; };
void main() { uint i = gl_GlobalInvocationID.x; to[i] = float16_t(from[i]); }",
    )
}

/// Copies 64 words out of a uniform buffer that is declared as `block`, by `expression` of `i`.
fn uniform(
    name: &str,
    needs: &'static [&'static str],
    block: &str,
    expression: &str,
    expected: fn(&[u8]) -> Vec<u32>,
) -> Case {
    Case::new(format!("storage.{name}"), move |gpu| {
        gpu.require(needs)?;
        let input = bytes_of(&noise32(12, 1024));
        let (from, to) = (gpu.buffer_of(&input)?, gpu.buffer(256)?);
        let types = [UNIFORM, STORAGE];
        let kernel = gpu.kernel(0).bindings(&types).build()?;
        let set = gpu.set(&kernel, &types, &[Slot::Buffer(from.handle), Slot::Buffer(to.handle)])?;
        gpu.run(|commands| {
            gpu.bind(commands, &kernel, set);
            unsafe { gpu.device.cmd_dispatch(commands, 1, 1, 1) };
        })?;
        expect(&to.values::<u32>(), &expected(&input))
    })
    .glsl(format!(
        "layout(local_size_x = 64) in;
{block}
layout(binding = 1) writeonly buffer To {{ uint to[]; }};
void main() {{ uint i = gl_GlobalInvocationID.x; to[i] = {expression}; }}"
    ))
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn uniform_8() -> Case {
    uniform(
        "uniform_8",
        &["uniformAndStorageBuffer8BitAccess", "shaderInt8", "scalarBlockLayout"],
        "layout(scalar, binding = 0) uniform From { uint8_t from[64]; };",
        "uint(from[i])",
        |bytes| bytes[..64].iter().map(|byte| u32::from(*byte)).collect(),
    )
}

fn uniform_16() -> Case {
    uniform(
        "uniform_16",
        &["uniformAndStorageBuffer16BitAccess", "scalarBlockLayout"],
        "layout(scalar, binding = 0) uniform From { uint16_t from[64]; };",
        "uint(from[i])",
        |bytes| (0..64).map(|i| u32::from(bytes[2 * i]) | u32::from(bytes[2 * i + 1]) << 8).collect(),
    )
}

fn std140() -> Case {
    uniform(
        "std140",
        &[],
        "struct Part { vec3 a; float b; mat2 c; uint d[3]; };
layout(std140, binding = 0) uniform From { Part part[4]; };",
        // 32 bytes of vectors, 2 columns of 16, 3 elements of 16: 96 bytes each.
        "i < 48 ? floatBitsToUint(part[i & 3].a.z) ^ floatBitsToUint(part[i & 3].c[1].y) : part[i & 3].d[i % 3]",
        |bytes| {
            let one = |i: usize| {
                let at = 96 * (i & 3);
                if i < 48 {
                    word(bytes, at + 8) ^ word(bytes, at + 36)
                } else {
                    word(bytes, at + 48 + 16 * (i % 3))
                }
            };
            (0..64).map(one).collect()
        },
    )
}

fn uniform_standard_layout() -> Case {
    uniform(
        "uniform_standard_layout",
        &["uniformBufferStandardLayout"],
        "layout(std430, binding = 0) uniform From { uint from[64]; };",
        "from[63 - i]",
        |bytes| (0..64).map(|i| word(bytes, 4 * (63 - i))).collect(),
    )
}

/// Copies 64 words out of a storage buffer that is declared as `block`.
fn block(
    name: &str,
    needs: &'static [&'static str],
    block: &str,
    expression: &str,
    expected: fn(&[u32]) -> Vec<u32>,
) -> Case {
    Case::new(format!("storage.{name}"), move |gpu| {
        gpu.require(needs)?;
        let input = noise32(13, 1024);
        let (from, to) = (gpu.buffer_of(&input)?, gpu.buffer(256)?);
        gpu.compute(0, &[&from, &to], 1)?;
        expect(&to.values::<u32>(), &expected(&input))
    })
    .glsl(format!(
        "layout(local_size_x = 64) in;
{block}
layout(binding = 1) writeonly buffer To {{ uint to[]; }};
void main() {{ uint i = gl_GlobalInvocationID.x; to[i] = {expression}; }}"
    ))
}

fn scalar_layout() -> Case {
    block(
        "scalar_layout",
        &["scalarBlockLayout"],
        "struct Part { uvec3 a; uint b; uvec3 c; };
layout(scalar, binding = 0) readonly buffer From { Part part[]; };",
        "part[i].c.y ^ part[i].b",
        |words| (0..64).map(|i| words[7 * i + 5] ^ words[7 * i + 3]).collect(),
    )
}

fn std430() -> Case {
    block(
        "std430",
        &[],
        "struct Part { uvec3 a; uvec2 b[2]; uint c; };
layout(std430, binding = 0) readonly buffer From { Part part[]; };",
        "part[i].b[1].x + part[i].c",
        // 16 bytes, then 16, then 4; aligned to 16.
        |words| (0..64).map(|i| words[12 * i + 6].wrapping_add(words[12 * i + 8])).collect(),
    )
}

fn row_major() -> Case {
    block(
        "row_major",
        &[],
        "layout(std430, row_major, binding = 0) readonly buffer From { mat4 rows[]; };",
        "floatBitsToUint(rows[i / 16][i % 4][(i / 4) % 4])",
        |words| (0..64).map(|i| words[16 * (i / 16) + 4 * (i / 4 % 4) + i % 4]).collect(),
    )
}

fn array_length() -> Case {
    block(
        "array_length",
        &[],
        "layout(std430, binding = 0) readonly buffer From { uvec4 head; uvec2 rest[]; };",
        "uint(rest.length()) + i",
        |words| (0..64).map(|i| (words.len() as u32 * 4 - 16) / 8 + i).collect(),
    )
}

fn wide_vectors() -> Case {
    block(
        "wide_vectors",
        &["shaderInt64"],
        "layout(std430, binding = 0) readonly buffer From { u64vec3 wide[]; };",
        "uint(wide[i & 31].z >> 16)",
        |words| {
            let wide = |at: usize| u64::from(words[at]) | u64::from(words[at + 1]) << 32;
            (0..64).map(|i| (wide(8 * (i & 31) + 4) >> 16) as u32).collect()
        },
    )
}

fn restrict_views() -> Case {
    block(
        "volatile",
        &[],
        "layout(binding = 0) volatile coherent restrict readonly buffer From { uint from[]; };",
        "from[i] + from[i]",
        |words| (0..64).map(|i| words[i].wrapping_mul(2)).collect(),
    )
}

fn push_8() -> Case {
    Case::new("storage.push_8", |gpu| {
        gpu.require(&["storagePushConstant8", "shaderInt8"])?;
        let input: Vec<u8> = (100..164).collect();
        let to = gpu.buffer(256)?;
        gpu.compute_with(0, &[&to], &input, 1)?;
        expect(&to.values::<u32>(), &input.iter().map(|value| u32::from(*value)).collect::<Vec<u32>>())
    })
    .glsl(
        "layout(local_size_x = 64) in;
layout(binding = 0) writeonly buffer To { uint to[]; };
layout(push_constant, std430) uniform Push { uint8_t from[64]; };
void main() { uint i = gl_GlobalInvocationID.x; to[i] = uint(from[i]); }",
    )
}

fn push_16() -> Case {
    Case::new("storage.push_16", |gpu| {
        gpu.require(&["storagePushConstant16", "shaderInt16"])?;
        let input: Vec<i16> = (-32..32).map(|value| value * 1000).collect();
        let to = gpu.buffer(256)?;
        gpu.compute_with(0, &[&to], &input, 1)?;
        expect(&to.values::<i32>(), &input.iter().map(|value| i32::from(*value)).collect::<Vec<i32>>())
    })
    .glsl(
        "layout(local_size_x = 64) in;
layout(binding = 0) writeonly buffer To { int to[]; };
layout(push_constant, std430) uniform Push { int16_t from[64]; };
void main() { uint i = gl_GlobalInvocationID.x; to[i] = int(from[i]); }",
    )
}

fn large_uniform() -> Case {
    Case::new("storage.uniform_64_kib", |gpu| {
        if gpu.limits().max_uniform_buffer_range < 65536 {
            return skip("uniform buffers of 64 KiB");
        }
        let input = noise32(14, 16384);
        let (from, to) = (gpu.buffer_of(&input)?, gpu.buffer(65536)?);
        let types = [UNIFORM, STORAGE];
        let kernel = gpu.kernel(0).bindings(&types).build()?;
        let set = gpu.set(&kernel, &types, &[Slot::Buffer(from.handle), Slot::Buffer(to.handle)])?;
        gpu.run(|commands| {
            gpu.bind(commands, &kernel, set);
            unsafe { gpu.device.cmd_dispatch(commands, 64, 1, 1) };
        })?;
        expect(&to.values::<u32>(), &input.iter().map(|value| !value).collect::<Vec<u32>>())
    })
    .glsl(
        "layout(local_size_x = 64) in;
layout(std140, binding = 0) uniform From { uvec4 from[4096]; };
layout(binding = 1) writeonly buffer To { uvec4 to[]; };
void main() { uint i = gl_GlobalInvocationID.x; to[i] = ~from[i]; }",
    )
}

fn large_push_constants() -> Case {
    Case::new("storage.push_constants_all", |gpu| {
        // The most that the device takes, up to 256 bytes.
        let words = gpu.limits().max_push_constants_size.min(256) / 4;
        let input = noise32(15, words as usize);
        let to = gpu.buffer(256)?;
        let kernel = gpu.kernel(0).buffers(1).push(words * 4).constant(0, words).build()?;
        let set = gpu.set(&kernel, &[STORAGE], &[Slot::Buffer(to.handle)])?;
        gpu.run(|commands| {
            gpu.bind(commands, &kernel, set);
            gpu.push(commands, &kernel, &input);
            unsafe { gpu.device.cmd_dispatch(commands, 1, 1, 1) };
        })?;
        let mut expected = vec![0; 64];
        expected[..words as usize].copy_from_slice(&input);
        expect(&to.values::<u32>(), &expected)
    })
    .glsl(
        "layout(local_size_x = 64) in;
layout(constant_id = 0) const uint WORDS = 1;
layout(binding = 0) writeonly buffer To { uint to[]; };
layout(push_constant, std430) uniform Push { uint from[WORDS]; };
void main() { uint i = gl_GlobalInvocationID.x; if (i < WORDS) to[i] = from[i]; }",
    )
}

fn push_constants_in_parts() -> Case {
    Case::new("storage.push_constants_in_parts", |gpu| {
        let to = gpu.buffer(256)?;
        let kernel = gpu.kernel(0).buffers(1).push(128).build()?;
        let set = gpu.set(&kernel, &[STORAGE], &[Slot::Buffer(to.handle)])?;
        let stage = vk::ShaderStageFlags::COMPUTE;
        gpu.run(|commands| unsafe {
            gpu.bind(commands, &kernel, set);
            gpu.device.cmd_push_constants(commands, kernel.layout, stage, 0, &bytes_of(&[1u32; 32]));
            gpu.device.cmd_push_constants(commands, kernel.layout, stage, 64, &bytes_of(&[2u32; 8]));
            gpu.device.cmd_dispatch(commands, 1, 1, 1);
            gpu.barrier(commands);
            // The rest keeps its values.
            gpu.device.cmd_push_constants(commands, kernel.layout, stage, 4, &bytes_of(&[3u32]));
            gpu.device.cmd_dispatch(commands, 1, 1, 1);
        })?;
        let mut expected = [2u32; 32];
        expected[1] = 4;
        expected[16..24].fill(4);
        expect(&to.values::<u32>()[..32], &expected)
    })
    .glsl(
        "layout(local_size_x = 32) in;
layout(binding = 0) buffer To { uint to[]; };
layout(push_constant, std430) uniform Push { uint from[32]; };
void main() { uint i = gl_GlobalInvocationID.x; to[i] += from[i]; }",
    )
}

fn coherent_between_groups() -> Case {
    Case::new("storage.last_group_sums_up", |gpu| {
        let (parts, count, sum) = (gpu.buffer(64 * 4)?, gpu.buffer(4)?, gpu.buffer(4)?);
        gpu.compute(0, &[&parts, &count, &sum], 64)?;
        expect(&sum.values::<u32>(), &[(0..64).map(|i| i * i + 1).sum()])
    })
    .glsl(
        "layout(local_size_x = 1) in;
layout(binding = 0) coherent buffer Parts { uint parts[64]; };
layout(binding = 1) coherent buffer Count { uint count; };
layout(binding = 2) writeonly buffer Sum { uint sum; };
void main() {
    uint i = gl_WorkGroupID.x;
    parts[i] = i * i + 1;
    memoryBarrierBuffer();
    if (atomicAdd(count, 1) == gl_NumWorkGroups.x - 1) {
        memoryBarrierBuffer();
        uint total = 0;
        for (uint j = 0; j < 64; j++) total += parts[j];
        sum = total;
    }
}",
    )
}

fn many_blocks() -> Case {
    Case::new("storage.sixteen_bindings", |gpu| {
        if gpu.limits().max_per_stage_descriptor_storage_buffers < 16 {
            return skip("16 storage buffers");
        }
        let buffers = (0..16u32).map(|i| gpu.buffer_of(&[i * 11; 16])).collect::<anyhow::Result<Vec<_>>>()?;
        gpu.compute(0, &buffers.iter().collect::<Vec<_>>(), 1)?;
        expect(&buffers[15].values::<u32>()[..1], &[(0..16).map(|i| i * 11).sum()])
    })
    .glsl(
        (0..16)
            .map(|i| format!("layout(binding = {i}) buffer B{i} {{ uint b{i}[]; }};\n"))
            .collect::<String>()
            + "void main() { b15[0] += "
            + &(0..15).map(|i| format!("b{i}[{i}]")).collect::<Vec<_>>().join(" + ")
            + "; }",
    )
}
