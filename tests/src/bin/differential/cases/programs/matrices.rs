//! Cooperative matrices of every shape the device reports, and the small float types they are made of.

use anyhow::{Result, ensure};
use ash::vk;
use half::bf16;

use crate::bytes::{bytes_of, expect};
use crate::case::Case;
use crate::elementwise::{Elementwise, noise_floats, noise32};
use crate::gpu::{Buffer, Gpu, skip};
use crate::kernel::{STORAGE, Slot};

/// All cases of this module.
pub(crate) fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = PRODUCTS.iter().map(product).collect();
    cases.extend(operations());
    cases.push(properties());
    cases.extend(small_floats());
    cases
}

/// A type of components: its number in `VkComponentTypeKHR`, its name in GLSL, its bytes, and the bits of the numbers 0 to 3.
#[derive(Clone, Copy)]
struct Component {
    number: i32,
    glsl: &'static str,
    bytes: usize,
    small: [u64; 4],
}

const F16: Component =
    Component { number: 0, glsl: "float16_t", bytes: 2, small: [0, 0x3c00, 0x4000, 0x4200] };
const F32: Component =
    Component { number: 1, glsl: "float", bytes: 4, small: [0, 0x3f80_0000, 0x4000_0000, 0x4040_0000] };
const S8: Component = Component { number: 3, glsl: "int8_t", bytes: 1, small: [0, 1, 2, 3] };
const S32: Component = Component { number: 5, glsl: "int", bytes: 4, small: [0, 1, 2, 3] };
const U8: Component = Component { number: 7, glsl: "uint8_t", bytes: 1, small: [0, 1, 2, 3] };
const U32: Component = Component { number: 9, glsl: "uint", bytes: 4, small: [0, 1, 2, 3] };
const BF16: Component =
    Component { number: 1_000_141_000, glsl: "bfloat16_t", bytes: 2, small: [0, 0x3f80, 0x4000, 0x4040] };
const E4M3: Component =
    Component { number: 1_000_491_002, glsl: "floate4m3_t", bytes: 1, small: [0, 0x38, 0x40, 0x44] };
const E5M2: Component =
    Component { number: 1_000_491_003, glsl: "floate5m2_t", bytes: 1, small: [0, 0x3c, 0x40, 0x42] };

/// The factors' and the result's types, and a name.
const PRODUCTS: &[(&str, Component, Component)] = &[
    ("f16_to_f16", F16, F16),
    ("f16_to_f32", F16, F32),
    ("f32_to_f32", F32, F32),
    ("s8_to_s32", S8, S32),
    ("u8_to_u32", U8, U32),
    ("bf16_to_f32", BF16, F32),
    ("bf16_to_bf16", BF16, BF16),
    ("e4m3_to_f32", E4M3, F32),
    ("e5m2_to_f32", E5M2, F32),
    ("e4m3_to_f16", E4M3, F16),
];

const HEAD: &str = "#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_EXT_bfloat16 : enable
#extension GL_EXT_float_e4m3 : enable
#extension GL_EXT_float_e5m2 : enable
layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint M = 16;
layout(constant_id = 2) const uint N = 16;
layout(constant_id = 3) const uint K = 16;
";

/// The matrix products that the device reports, at subgroup scope: M, N, K, and the types of both factors, the summand and the result.
fn shapes(gpu: &Gpu) -> Result<Vec<([u32; 3], [i32; 4])>> {
    gpu.require(&["cooperativeMatrix"])?;
    let entry = crate::gpu::entry()?;
    let instance = ash::khr::cooperative_matrix::Instance::new(&entry, &gpu.instance);
    let found = unsafe { instance.get_physical_device_cooperative_matrix_properties(gpu.physical) }?;
    let usable = found
        .iter()
        .filter(|shape| shape.scope == vk::ScopeKHR::SUBGROUP && shape.saturating_accumulation == 0);
    let shape = |shape: &vk::CooperativeMatrixPropertiesKHR| {
        let types = [shape.a_type, shape.b_type, shape.c_type, shape.result_type];
        ([shape.m_size, shape.n_size, shape.k_size], types.map(|ty| ty.as_raw()))
    };
    Ok(usable.map(shape).collect())
}

fn subgroup_size(gpu: &Gpu) -> u32 {
    let mut found = vk::PhysicalDeviceSubgroupProperties::default();
    gpu.properties2(&mut found);
    found.subgroup_size
}

fn matching(gpu: &Gpu, from: Component, to: Component) -> Result<Vec<[u32; 3]>> {
    let types = [from.number, from.number, to.number, to.number];
    let found: Vec<_> =
        shapes(gpu)?.into_iter().filter(|shape| shape.1 == types).map(|shape| shape.0).collect();
    if found.is_empty() {
        skip(format!("cooperative matrices from {} to {}", from.glsl, to.glsl))
    } else {
        Ok(found)
    }
}

/// Numbers from 0 to 3 as components.
fn encoded(numbers: &[u32], component: Component) -> Vec<u8> {
    numbers
        .iter()
        .flat_map(|number| component.small[*number as usize].to_le_bytes()[..component.bytes].to_vec())
        .collect()
}

fn numbers(seed: u64, count: u32) -> Vec<u32> {
    noise32(seed, count as usize).into_iter().map(|word| word >> 30).collect()
}

fn dispatch(gpu: &Gpu, [m, n, k]: [u32; 3], buffers: &[&Buffer]) -> Result<()> {
    let size = subgroup_size(gpu);
    let kernel = gpu
        .kernel(0)
        .buffers(buffers.len())
        .constant(0, size)
        .constant(1, m)
        .constant(2, n)
        .constant(3, k)
        .build()?;
    let slots: Vec<_> = buffers.iter().map(|buffer| Slot::Buffer(buffer.handle)).collect();
    let set = gpu.set(&kernel, &vec![STORAGE; buffers.len()], &slots)?;
    gpu.run(|commands| {
        gpu.bind(commands, &kernel, set);
        unsafe { gpu.device.cmd_dispatch(commands, 1, 1, 1) };
    })
}

fn product(&(name, from, to): &(&'static str, Component, Component)) -> Case {
    Case::new(format!("matrices.product.{name}"), move |gpu| {
        match name {
            "bf16_to_f32" | "bf16_to_bf16" => gpu.require(&["shaderBFloat16CooperativeMatrix"])?,
            "e4m3_to_f32" | "e5m2_to_f32" | "e4m3_to_f16" => {
                gpu.require(&["shaderFloat8CooperativeMatrix"])?
            }
            _ => {}
        }
        let mut all = Vec::new();
        for [m, n, k] in matching(gpu, from, to)? {
            let (a, b, c) = (numbers(1, m * k), numbers(2, k * n), numbers(3, m * n));
            let buffers =
                [encoded(&a, from), encoded(&b, from), encoded(&c, to)].map(|bytes| gpu.buffer_of(&bytes));
            let [a_buffer, b_buffer, c_buffer] = buffers;
            let result = gpu.buffer(4 * u64::from(m * n))?;
            dispatch(gpu, [m, n, k], &[&a_buffer?, &b_buffer?, &c_buffer?, &result])?;
            let cell = |row: u32, column: u32| -> u32 {
                let products = (0..k).map(|i| a[(row * k + i) as usize] * b[(i * n + column) as usize]);
                c[(row * n + column) as usize] + products.sum::<u32>()
            };
            let mut expected: Vec<f32> = (0..m * n).map(|i| cell(i / n, i % n) as f32).collect();
            if to.number == BF16.number {
                expected.iter_mut().for_each(|cell| *cell = bf16::from_f32(*cell).to_f32());
            }
            all.extend(expect(&result.values::<f32>(), &expected)?);
        }
        Ok(all)
    })
    .glsl(
        format!(
            "{HEAD}
layout(scalar, binding = 0) readonly buffer A {{ {from} a[]; }};
layout(scalar, binding = 1) readonly buffer B {{ {from} b[]; }};
layout(scalar, binding = 2) buffer C {{ {to} c[]; }};
layout(binding = 3) writeonly buffer Result {{ float result[]; }};
void main() {{
    coopmat<{from}, gl_ScopeSubgroup, M, K, gl_MatrixUseA> left;
    coopmat<{from}, gl_ScopeSubgroup, K, N, gl_MatrixUseB> right;
    coopmat<{to}, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator> sum;
    coopMatLoad(left, a, 0, K, gl_CooperativeMatrixLayoutRowMajor);
    coopMatLoad(right, b, 0, N, gl_CooperativeMatrixLayoutRowMajor);
    coopMatLoad(sum, c, 0, N, gl_CooperativeMatrixLayoutRowMajor);
    sum = coopMatMulAdd(left, right, sum);
    coopMatStore(sum, c, 0, N, gl_CooperativeMatrixLayoutRowMajor);
    memoryBarrierBuffer();
    subgroupMemoryBarrier();
    for (uint i = gl_LocalInvocationIndex; i < M * N; i += gl_WorkGroupSize.x) result[i] = float(c[i]);
}}",
            from = from.glsl,
            to = to.glsl
        )
        .replacen(HEAD, &format!("#extension GL_KHR_shader_subgroup_basic : require\n{HEAD}"), 1),
    )
}

fn operations() -> Vec<Case> {
    let case = |name: &str, body: &str, expected: fn(u32, u32, &[u32]) -> Vec<f32>| {
        Case::new(format!("matrices.{name}"), move |gpu| {
            let [m, n, k] = matching(gpu, F16, F32).or_else(|_| matching(gpu, F32, F32))?[0];
            let input = numbers(4, m * n);
            let floats: Vec<f32> = input.iter().map(|number| *number as f32).collect();
            let (from, to) = (gpu.buffer_of(&floats)?, gpu.buffer(4 * u64::from(m * n))?);
            dispatch(gpu, [m, n, k], &[&from, &to])?;
            expect(&to.values::<f32>(), &expected(m, n, &input))
        })
        .glsl(format!(
            "{HEAD}
layout(binding = 0) readonly buffer From {{ float from[]; }};
layout(binding = 1) writeonly buffer To {{ float to[]; }};
shared float part[M * N];
#define Matrix coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>
void main() {{
    Matrix x;
    coopMatLoad(x, from, 0, N, gl_CooperativeMatrixLayoutRowMajor);
    {body}
}}"
        ))
    };
    const STORE: &str = "coopMatStore(x, to, 0, N, gl_CooperativeMatrixLayoutRowMajor);";
    vec![
        case(
            "arithmetic",
            &format!("Matrix y = Matrix(2.0); x = (x + y) * 3.0 - y; x = -x / Matrix(0.5); {STORE}"),
            |_, _, x| x.iter().map(|x| -2.0 * ((*x as f32 + 2.0) * 3.0 - 2.0)).collect(),
        ),
        case(
            "transposed_by_layout",
            "coopMatStore(x, to, 0, M, gl_CooperativeMatrixLayoutColumnMajor);",
            |m, n, x| (0..m * n).map(|i| x[(i % m * n + i / m) as usize] as f32).collect(),
        ),
        case(
            "elements",
            &format!("for (int i = 0; i < x.length(); i++) x[i] = x[i] * x[i] + 1.0; {STORE}"),
            |_, _, x| x.iter().map(|x| (x * x + 1) as f32).collect(),
        ),
        case(
            "through_shared_memory",
            &format!(
                "coopMatStore(x, part, 0, N, gl_CooperativeMatrixLayoutRowMajor);
    barrier();
    for (uint i = gl_LocalInvocationIndex; i < M * N; i += gl_WorkGroupSize.x) part[i] += 10.0;
    barrier();
    coopMatLoad(x, part, 0, N, gl_CooperativeMatrixLayoutRowMajor);
    {STORE}"
            ),
            |_, _, x| x.iter().map(|x| *x as f32 + 10.0).collect(),
        ),
    ]
}

fn properties() -> Case {
    Case::new("matrices.reported_shapes", |gpu| {
        gpu.require(&["cooperativeMatrix"])?;
        let shapes = shapes(gpu)?.into_iter();
        let words: Vec<u32> =
            shapes.flat_map(|(size, types)| size.into_iter().chain(types.map(|ty| ty as u32))).collect();
        ensure!(!words.is_empty(), "no shapes");
        Ok(bytes_of(&words))
    })
}

fn small_floats() -> Vec<Case> {
    let x: Vec<f32> = noise_floats(110, 128).into_iter().map(|value| (value * 50.0) as f32).collect();
    let case = |name: &str, needs, head, result, expected: fn(f32, f32) -> Vec<u32>| {
        Elementwise::<f32, u32> {
            name: format!("matrices.small_floats.{name}"),
            needs,
            head,
            types: ("float", "uint"),
            results: vec![result],
            x: x.clone(),
            y: x.iter().rev().copied().collect(),
            expected,
        }
        .case()
    };
    const FLOAT8: &[&str] = &["shaderFloat8"];
    vec![
        case(
            "bfloat16",
            &["shaderBFloat16Type"],
            "#extension GL_EXT_bfloat16 : require",
            // Whole numbers: the device may choose how it rounds others.
            "floatBitsToUint(float(bfloat16_t(int(x)))) ^ uint(bfloat16BitsToUintEXT(bfloat16_t(int(y))))",
            |x, y| {
                let (x, y) = (bf16::from_f32(x as i32 as f32), bf16::from_f32(y as i32 as f32));
                vec![x.to_f32().to_bits() ^ u32::from(y.to_bits())]
            },
        ),
        case(
            "bfloat16_dot",
            &["shaderBFloat16DotProduct"],
            "#extension GL_EXT_bfloat16 : require",
            "floatBitsToUint(float(dot(bf16vec2(bfloat16_t(int(x)), bfloat16_t(1)), bf16vec2(bfloat16_t(2), bfloat16_t(1)))))",
            |x, _| vec![bf16::from_f32(2.0 * x.trunc() + 1.0).to_f32().to_bits()],
        ),
        case(
            "e4m3",
            FLOAT8,
            "#extension GL_EXT_float_e4m3 : require",
            "floatBitsToUint(float(floate4m3_t(x)))",
            |_, _| Vec::new(),
        ),
        case(
            "e5m2",
            FLOAT8,
            "#extension GL_EXT_float_e5m2 : require",
            "floatBitsToUint(float(floate5m2_t(x)))",
            |_, _| Vec::new(),
        ),
    ]
}
