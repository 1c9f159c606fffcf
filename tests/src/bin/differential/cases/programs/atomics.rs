//! Atomic operations on buffers, shared memory and images, of integers and floats, and the memory model's scopes.
//!
//! Results do not depend on the order of invocations: sums, extremes, and sets of the previous values.

use anyhow::Result;

use crate::bytes::expect;
use crate::case::Case;
use crate::gpu::Gpu;
use crate::images::Picture;
use crate::kernel::{STORAGE, Slot};
use ash::vk;

/// All cases of this module.
pub(crate) fn cases() -> Vec<Case> {
    let mut cases = integers();
    cases.extend(returned_values());
    cases.extend(floats());
    cases.extend(images());
    cases.extend([memory_model(), spin_through_shared()]);
    cases
}

const INVOCATIONS: u32 = 256;
const OPERATIONS: [&str; 7] = ["Add", "Min", "Max", "And", "Or", "Xor", "Exchange"];

/// Seven cells, each changed by all invocations with one operation; `value` is the operand of invocation `i`.
fn cells(ty: &str, shared: bool) -> String {
    let value = |operation: &str| match operation {
        "Exchange" => format!("{ty}(77)"),
        "And" => format!("~({ty}(1) << (i & 15))"),
        _ => format!("({ty}(i) * {ty}(2654435) - {ty}(1000000))"),
    };
    let place = if shared { "part" } else { "cells" };
    let lines: String = (OPERATIONS.iter().enumerate())
        .map(|(at, operation)| format!("    atomic{operation}({place}[{at}], {});\n", value(operation)))
        .collect();
    let (before, after, declaration) = if shared {
        (
            "    if (i < 7) part[i] = cells[i];\n    barrier();\n",
            "    barrier();\n    if (i < 7) cells[i] = part[i];\n",
            format!("shared {ty} part[7];\n"),
        )
    } else {
        ("", "", String::new())
    };
    let size = if shared { INVOCATIONS } else { 64 };
    format!(
        "#extension GL_EXT_shader_atomic_int64 : enable
layout(local_size_x = {size}) in;
layout(binding = 0) buffer Cells {{ {ty} cells[7]; }};
{declaration}void main() {{
    uint i = gl_GlobalInvocationID.x;
{before}{lines}{after}}}"
    )
}

macro_rules! integer {
    ($cases:ident, $ty:ty, $glsl:literal, $place:literal, $shared:literal, $needs:expr) => {
        $cases.push(
            Case::new(concat!("atomics.", $place, ".", stringify!($ty)), |gpu| {
                gpu.require($needs)?;
                let start: [$ty; 7] = [5, 1000, -1i64 as $ty, -1i64 as $ty, 0, 9, 0];
                let cells = gpu.buffer_of(&start)?;
                gpu.compute(0, &[&cells], if $shared { 1 } else { INVOCATIONS / 64 })?;
                let mut expected = start;
                for i in 0..INVOCATIONS as $ty {
                    let value = i.wrapping_mul(2_654_435).wrapping_sub(1_000_000);
                    expected[0] = expected[0].wrapping_add(value);
                    expected[1] = expected[1].min(value);
                    expected[2] = expected[2].max(value);
                    expected[3] &= !(1 << (i & 15));
                    expected[4] |= value;
                    expected[5] ^= value;
                    expected[6] = 77;
                }
                expect(&cells.values::<$ty>(), &expected)
            })
            .glsl(cells($glsl, $shared)),
        );
    };
}

fn integers() -> Vec<Case> {
    let mut cases = Vec::new();
    const WIDE: &[&str] = &["shaderInt64", "shaderBufferInt64Atomics"];
    const WIDE_SHARED: &[&str] = &["shaderInt64", "shaderSharedInt64Atomics"];
    integer!(cases, u32, "uint", "buffer", false, &[]);
    integer!(cases, i32, "int", "buffer", false, &[]);
    integer!(cases, u64, "uint64_t", "buffer", false, WIDE);
    integer!(cases, i64, "int64_t", "buffer", false, WIDE);
    integer!(cases, u32, "uint", "shared", true, &[]);
    integer!(cases, i32, "int", "shared", true, &[]);
    integer!(cases, u64, "uint64_t", "shared", true, WIDE_SHARED);
    integer!(cases, i64, "int64_t", "shared", true, WIDE_SHARED);
    cases
}

/// The cases of the values that an atomic operation returns, as a set: every invocation gets another number.
fn returned_values() -> Vec<Case> {
    let tickets = |name: &str, needs: &'static [&'static str], take: &str| {
        Case::new(format!("atomics.{name}"), move |gpu: &Gpu| {
            gpu.require(needs)?;
            let (counter, taken) = (gpu.buffer(8)?, gpu.buffer(4 * u64::from(INVOCATIONS))?);
            gpu.compute(0, &[&counter, &taken], INVOCATIONS / 64)?;
            let mut found = taken.values::<u32>();
            found.sort_unstable();
            expect(&found, &(0..INVOCATIONS).collect::<Vec<_>>())?;
            expect(&counter.values::<u32>()[..1], &[INVOCATIONS])
        })
        .glsl(format!(
            "#extension GL_EXT_shader_atomic_int64 : enable
layout(local_size_x = 64) in;
layout(binding = 0) buffer Counter {{ {} counter; }};
layout(binding = 1) writeonly buffer Taken {{ uint taken[]; }};
void main() {{
    uint i = gl_GlobalInvocationID.x;
{take}
}}",
            if needs.is_empty() { "uint" } else { "uint64_t" }
        ))
    };
    const COMPARE: &str = "    TYPE old = counter, seen;
    for (;;) {
        seen = atomicCompSwap(counter, old, old + 1);
        if (seen == old) break;
        old = seen;
    }
    taken[i] = uint(old);";
    const WIDE: &[&str] = &["shaderInt64", "shaderBufferInt64Atomics"];
    vec![
        tickets("returned.add_32", &[], "    taken[i] = atomicAdd(counter, 1);"),
        tickets("returned.add_64", WIDE, "    taken[i] = uint(atomicAdd(counter, 1UL));"),
        tickets("compare_exchange.32", &[], &COMPARE.replace("TYPE", "uint")),
        tickets("compare_exchange.64", WIDE, &COMPARE.replace("TYPE", "uint64_t")),
    ]
}

/// Whole numbers, whose sums are exact in any order: even half floats hold them, up to 2048.
fn floats() -> Vec<Case> {
    let case = |name: &str,
                needs: &'static [&'static str],
                ty: &'static str,
                operation: &str,
                shared: bool,
                result: fn(u32) -> f64| {
        let expected = (0..INVOCATIONS).map(result).fold(
            if operation == "Add" { 0.0 } else { f64::NAN },
            match operation {
                "Add" => |a, b| a + b,
                "Min" => f64::min,
                _ => f64::max,
            },
        );
        let place = if shared { "part" } else { "cell" };
        let (before, after) = if shared {
            (
                format!("    if (i == 0) part = {ty}(0);\n    barrier();\n"),
                "    barrier();\n    if (i == 0) cell = part;\n",
            )
        } else {
            (String::new(), "")
        };
        let size = if shared { INVOCATIONS } else { 64 };
        Case::new(format!("atomics.float.{name}"), move |gpu: &Gpu| {
            gpu.require(needs)?;
            let cell = gpu.buffer(8)?;
            gpu.compute(0, &[&cell], INVOCATIONS / size)?;
            let found = match ty {
                "float" => f64::from(cell.values::<f32>()[0]),
                "double" => cell.values::<f64>()[0],
                _ => cell.values::<half::f16>()[0].to_f64(),
            };
            expect(&[found], &[expected])
        })
        .glsl(format!(
            "#extension GL_EXT_shader_atomic_float : enable
#extension GL_EXT_shader_atomic_float2 : enable
layout(local_size_x = {size}) in;
layout(binding = 0) buffer Cell {{ {ty} cell; }};
shared {ty} part;
void main() {{
    uint i = gl_GlobalInvocationID.x;
{before}    atomic{operation}({place}, {ty}(int((i * 7) % 61) - 30));
{after}}}"
        ))
    };
    let value = |i: u32| f64::from((i * 7) % 61) - 30.0;
    vec![
        case("buffer_add_32", &["shaderBufferFloat32AtomicAdd"], "float", "Add", false, value),
        case(
            "buffer_add_64",
            &["shaderBufferFloat64AtomicAdd", "shaderFloat64"],
            "double",
            "Add",
            false,
            value,
        ),
        case(
            "buffer_add_16",
            &["shaderBufferFloat16AtomicAdd", "shaderFloat16", "storageBuffer16BitAccess"],
            "float16_t",
            "Add",
            false,
            value,
        ),
        case("shared_add_32", &["shaderSharedFloat32AtomicAdd"], "float", "Add", true, value),
        case(
            "shared_add_64",
            &["shaderSharedFloat64AtomicAdd", "shaderFloat64"],
            "double",
            "Add",
            true,
            value,
        ),
        case("buffer_min_32", &["shaderBufferFloat32AtomicMinMax"], "float", "Min", false, value),
        case("buffer_max_32", &["shaderBufferFloat32AtomicMinMax"], "float", "Max", false, value),
        case("shared_max_32", &["shaderSharedFloat32AtomicMinMax"], "float", "Max", true, value),
        case(
            "buffer_min_64",
            &["shaderBufferFloat64AtomicMinMax", "shaderFloat64"],
            "double",
            "Min",
            false,
            value,
        ),
    ]
}

fn images() -> Vec<Case> {
    fn run(gpu: &Gpu, needs: &[&str], format: vk::Format, bytes: usize) -> Result<Vec<u8>> {
        gpu.require(needs)?;
        let picture = Picture::storage(gpu, format, 4, 1)?;
        let types = [vk::DescriptorType::STORAGE_IMAGE];
        let kernel = gpu.kernel(0).bindings(&types).build()?;
        let view = picture.view(gpu)?;
        let set = gpu.set(&kernel, &types, &[Slot::Image(view, vk::ImageLayout::GENERAL)])?;
        let read = gpu.buffer(4 * bytes as u64)?;
        gpu.run(|commands| {
            picture.clear(gpu, commands, [0; 4]);
            gpu.barrier(commands);
            gpu.bind(commands, &kernel, set);
            unsafe { gpu.device.cmd_dispatch(commands, 4, 1, 1) };
            gpu.barrier(commands);
            picture.read_into(gpu, commands, &read);
        })?;
        Ok(read.read())
    }
    let source = |layout: &str, image: &str, add: &str| {
        format!(
            "#extension GL_EXT_shader_image_int64 : enable
#extension GL_EXT_shader_atomic_int64 : enable
#extension GL_EXT_shader_atomic_float : enable
#extension GL_EXT_shader_atomic_float2 : enable
layout(local_size_x = 64) in;
layout({layout}, binding = 0) uniform {image} cells;
void main() {{
    uint i = gl_GlobalInvocationID.x;
    ivec2 at = ivec2(int(i & 3), 0);
    {add}
}}"
        )
    };
    let sums = |i: u32| -> u32 { (0..INVOCATIONS).filter(|other| other & 3 == i).sum() };
    vec![
        Case::new("atomics.image.u32", move |gpu| {
            let found: Vec<u32> = crate::bytes::from_bytes(&run(gpu, &[], vk::Format::R32_UINT, 4)?);
            expect(&found, &[sums(0), sums(1), 255, (0..64).fold(0, |all, i| all ^ (4 * i + 3))])
        })
        .glsl(source("r32ui", "uimage2D",
            "if (at.x < 2) imageAtomicAdd(cells, at, i); else if (at.x == 2) imageAtomicMax(cells, at, i | 1); else imageAtomicXor(cells, at, i);")),
        Case::new("atomics.image.u64", move |gpu| {
            let needs = ["shaderInt64", "shaderImageInt64Atomics"];
            let found: Vec<u64> = crate::bytes::from_bytes(&run(gpu, &needs, vk::Format::R64_UINT, 8)?);
            expect(&found, &(0..4).map(|i| u64::from(sums(i)) << 32).collect::<Vec<_>>())
        })
        .glsl(source("r64ui", "u64image2D", "imageAtomicAdd(cells, at, uint64_t(i) << 32);")),
        Case::new("atomics.image.f32", move |gpu| {
            let needs = ["shaderImageFloat32AtomicAdd"];
            let found: Vec<f32> = crate::bytes::from_bytes(&run(gpu, &needs, vk::Format::R32_SFLOAT, 4)?);
            expect(&found, &(0..4).map(|i| sums(i) as f32).collect::<Vec<_>>())
        })
        .glsl(source("r32f", "image2D", "imageAtomicAdd(cells, at, float(i));")),
        Case::new("atomics.image.f32_max", move |gpu| {
            let needs = ["shaderImageFloat32AtomicMinMax"];
            let found: Vec<f32> = crate::bytes::from_bytes(&run(gpu, &needs, vk::Format::R32_SFLOAT, 4)?);
            expect(&found, &[252.5f32, 253.5, 254.5, 255.5])
        })
        .glsl(source("r32f", "image2D", "imageAtomicMax(cells, at, float(i) + 0.5);")),
    ]
}

fn memory_model() -> Case {
    Case::new("atomics.memory_model", |gpu| {
        gpu.require(&["vulkanMemoryModel", "vulkanMemoryModelDeviceScope"])?;
        let (data, found) = (gpu.buffer(4 * 65)?, gpu.buffer(4 * 64)?);
        gpu.compute(0, &[&data, &found], 64)?;
        // An invocation that saw its neighbour's flag also saw the neighbour's number.
        expect(&found.values::<u32>(), &[1; 64])
    })
    .glsl(
        "#extension GL_KHR_memory_scope_semantics : require
#pragma use_vulkan_memory_model
layout(local_size_x = 1) in;
layout(binding = 0) buffer Data { uint flags; uint data[64]; };
layout(binding = 1) writeonly buffer Found { uint found[]; };
void main() {
    uint i = gl_WorkGroupID.x;
    atomicStore(data[i], i + 100, gl_ScopeDevice, gl_StorageSemanticsBuffer, gl_SemanticsRelease);
    uint before = atomicAdd(flags, 1, gl_ScopeDevice, gl_StorageSemanticsBuffer, gl_SemanticsAcquireRelease);
    uint seen = 0;
    for (uint j = 0; j < 64; j++)
        seen += atomicLoad(data[j], gl_ScopeDevice, gl_StorageSemanticsBuffer, gl_SemanticsAcquire) != 0 ? 1 : 0;
    found[i] = seen > before ? 1 : 0;
}",
    )
}

fn spin_through_shared() -> Case {
    Case::new("atomics.shared_histogram", |gpu| {
        let input = crate::elementwise::noise32(30, 4096);
        let (from, to) = (gpu.buffer_of(&input)?, gpu.buffer(4 * 64)?);
        let kernel = gpu.kernel(0).buffers(2).build()?;
        let slots = [Slot::Buffer(from.handle), Slot::Buffer(to.handle)];
        let set = gpu.set(&kernel, &[STORAGE, STORAGE], &slots)?;
        gpu.run(|commands| {
            gpu.bind(commands, &kernel, set);
            unsafe { gpu.device.cmd_dispatch(commands, 16, 1, 1) };
        })?;
        let mut expected = [0u32; 64];
        for value in input {
            expected[value as usize % 64] += 1;
        }
        expect(&to.values::<u32>(), &expected)
    })
    .glsl(
        "layout(local_size_x = 256) in;
layout(binding = 0) readonly buffer From { uint from[]; };
layout(binding = 1) buffer To { uint to[]; };
shared uint bins[64];
void main() {
    uint i = gl_LocalInvocationIndex;
    if (i < 64) bins[i] = 0;
    barrier();
    atomicAdd(bins[from[gl_GlobalInvocationID.x] % 64], 1);
    barrier();
    if (i < 64) atomicAdd(to[i], bins[i]);
}",
    )
}
