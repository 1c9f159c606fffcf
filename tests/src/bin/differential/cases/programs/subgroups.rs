//! Invocations of one subgroup that exchange values: every class of operation, types of all widths, requested sizes.
//!
//! Each invocation writes the number of its subgroup and of its lane in the subgroup, so that the processor can compute the same results.

use anyhow::{Result, ensure};
use ash::vk;

use crate::bytes::{bytes_of, expect};
use crate::case::Case;
use crate::elementwise::noise32;
use crate::gpu::{Gpu, skip};
use crate::kernel::{STORAGE, Slot};

const LANES: usize = 128;

/// The inputs of one subgroup in the order of its lanes, and the expected answer of each lane.
type Expected = fn(&[u32]) -> Vec<u32>;

/// All cases of this module.
pub(crate) fn cases() -> Vec<Case> {
    let mut cases = classes();
    cases.extend(arithmetic());
    cases.extend(exchanges());
    cases.extend(quads_and_rotations());
    cases.extend(extended_types());
    cases.extend(sizes());
    cases
}

/// One value per invocation from `expression` of its input `x`.
fn case(
    name: &str,
    class: vk::SubgroupFeatureFlags,
    extension: &str,
    expression: &str,
    expected: Expected,
) -> Case {
    typed(name, class, &[], &format!("#extension {extension} : require"), expression, expected)
}

fn typed(
    name: &str,
    class: vk::SubgroupFeatureFlags,
    needs: &'static [&'static str],
    head: &str,
    expression: &str,
    expected: Expected,
) -> Case {
    Case::new(format!("subgroups.{name}"), move |gpu| {
        gpu.require(needs)?;
        let size = require_class(gpu, class)?;
        let kernel = gpu.kernel(0).buffers(2).build()?;
        run(gpu, kernel, size, size, expected)
    })
    .glsl(source(head, expression))
}

fn source(head: &str, expression: &str) -> String {
    format!(
        "#extension GL_KHR_shader_subgroup_basic : require
{head}
layout(local_size_x = {LANES}) in;
layout(binding = 0) readonly buffer From {{ uint from[]; }};
layout(binding = 1) writeonly buffer To {{ uvec4 to[]; }};
void main() {{
    uint i = gl_LocalInvocationIndex;
    uint x = from[i];
    uint lane = gl_SubgroupInvocationID;
    uint found = {expression};
    to[i] = uvec4(gl_SubgroupID, lane, gl_SubgroupSize, found);
}}"
    )
}

/// The size of subgroups, if the device has this class of operations in compute shaders.
fn require_class(gpu: &Gpu, class: vk::SubgroupFeatureFlags) -> Result<u32> {
    let mut found = vk::PhysicalDeviceSubgroupProperties::default();
    gpu.properties2(&mut found);
    if !found.supported_operations.contains(class)
        || !found.supported_stages.contains(vk::ShaderStageFlags::COMPUTE)
    {
        return skip(format!("subgroup operations {:#x}", class.as_raw()));
    }
    Ok(found.subgroup_size)
}

/// Runs one workgroup and compares subgroup by subgroup.
fn run(
    gpu: &Gpu,
    kernel: crate::kernel::Kernel,
    least: u32,
    most: u32,
    expected: Expected,
) -> Result<Vec<u8>> {
    let input = noise32(20, LANES);
    let (from, to) = (gpu.buffer_of(&input)?, gpu.buffer(16 * LANES as u64)?);
    let set = gpu.set(&kernel, &[STORAGE, STORAGE], &[Slot::Buffer(from.handle), Slot::Buffer(to.handle)])?;
    gpu.run(|commands| {
        gpu.bind(commands, &kernel, set);
        unsafe { gpu.device.cmd_dispatch(commands, 1, 1, 1) };
    })?;
    let found = to.values::<[u32; 4]>();
    let groups = 1 + found.iter().map(|lane| lane[0]).max().unwrap_or_default();
    for group in 0..groups {
        let mut lanes: Vec<(u32, u32, u32)> = (found.iter().zip(&input))
            .filter(|(lane, _)| lane[0] == group)
            .map(|(lane, input)| (lane[1], *input, lane[3]))
            .collect();
        lanes.sort_unstable();
        let size = found.iter().find(|lane| lane[0] == group).map_or(0, |lane| lane[2]);
        ensure!((least..=most).contains(&size), "subgroups of {size} instead of {least} to {most}");
        ensure!(lanes.iter().map(|lane| lane.0).eq(0..lanes.len() as u32), "lanes {lanes:?}");
        let inputs: Vec<u32> = lanes.iter().map(|lane| lane.1).collect();
        let answers: Vec<u32> = lanes.iter().map(|lane| lane.2).collect();
        expect(&answers, &expected(&inputs))?;
    }
    Ok(bytes_of(&found))
}

fn lanes(of: &[u32], value: impl Fn(usize) -> u32) -> Vec<u32> {
    (0..of.len()).map(value).collect()
}

fn classes() -> Vec<Case> {
    use vk::SubgroupFeatureFlags as Class;
    const VOTE: &str = "GL_KHR_shader_subgroup_vote";
    const BALLOT: &str = "GL_KHR_shader_subgroup_ballot";
    vec![
        case("basic.elect", Class::BASIC, "GL_KHR_shader_subgroup_basic", "subgroupElect() ? 1 : 0", |x| {
            lanes(x, |lane| u32::from(lane == 0))
        }),
        case(
            "basic.barriers",
            Class::BASIC,
            "GL_KHR_shader_subgroup_basic",
            "(subgroupBarrier(), subgroupMemoryBarrier(), subgroupMemoryBarrierBuffer(), x + lane)",
            |x| lanes(x, |lane| x[lane].wrapping_add(lane as u32)),
        ),
        case(
            "vote.all_any",
            Class::VOTE,
            VOTE,
            "uint(subgroupAll(x >= 0)) | uint(subgroupAny(lane == 3)) << 1 | uint(subgroupAll(lane < 3)) << 2 | uint(subgroupAny(lane > 4000)) << 3",
            |x| lanes(x, |_| 0b0011),
        ),
        case(
            "vote.equal",
            Class::VOTE,
            VOTE,
            "uint(subgroupAllEqual(lane >> 10)) | uint(subgroupAllEqual(x)) << 1",
            |x| lanes(x, |_| 1),
        ),
        case("ballot.ballot", Class::BALLOT, BALLOT, "subgroupBallot((x & 1) == 1)[lane / 32]", |x| {
            lanes(x, |lane| {
                let of_word = x.iter().enumerate().filter(|(other, _)| other / 32 == lane / 32);
                of_word.fold(0, |word, (other, x)| word | (x & 1) << (other % 32))
            })
        }),
        case(
            "ballot.bits",
            Class::BALLOT,
            BALLOT,
            "uint(subgroupInverseBallot(subgroupBallot((x & 2) == 2))) | uint(subgroupBallotBitExtract(subgroupBallot((x & 4) == 4), (lane + 1) % gl_SubgroupSize)) << 1",
            |x| lanes(x, |lane| x[lane] >> 1 & 1 | (x[(lane + 1) % x.len()] >> 2 & 1) << 1),
        ),
        case(
            "ballot.counts",
            Class::BALLOT,
            BALLOT,
            "subgroupBallotBitCount(subgroupBallot((x & 1) == 1)) | subgroupBallotInclusiveBitCount(subgroupBallot((x & 1) == 1)) << 8 | subgroupBallotExclusiveBitCount(subgroupBallot((x & 1) == 1)) << 16",
            |x| {
                lanes(x, |lane| {
                    let count = |lanes: usize| x[..lanes].iter().map(|x| x & 1).sum::<u32>();
                    count(x.len()) | count(lane + 1) << 8 | count(lane) << 16
                })
            },
        ),
        case(
            "ballot.find",
            Class::BALLOT,
            BALLOT,
            "subgroupBallotFindLSB(subgroupBallot(lane % 3 == 2)) | subgroupBallotFindMSB(subgroupBallot(lane % 3 == 0)) << 8",
            |x| lanes(x, |_| 2 | ((x.len() as u32 - 1) / 3 * 3) << 8),
        ),
        case(
            "ballot.broadcast",
            Class::BALLOT,
            BALLOT,
            "subgroupBroadcast(x, 3) ^ subgroupBroadcastFirst(x)",
            |x| lanes(x, |_| x[3] ^ x[0]),
        ),
        typed(
            "ballot.broadcast_dynamic",
            Class::BALLOT,
            &["subgroupBroadcastDynamicId"],
            "#extension GL_KHR_shader_subgroup_ballot : require",
            "subgroupBroadcast(x, from[0] & 3)",
            |x| lanes(x, |_| x[(noise32(20, 1)[0] & 3) as usize]),
        ),
        case(
            "ballot.masks",
            Class::BALLOT,
            BALLOT,
            "(gl_SubgroupEqMask.x & 255) | (gl_SubgroupLtMask.x & 255) << 8 | (gl_SubgroupLeMask.x & 255) << 16 | (gl_SubgroupGeMask.x & 15) << 24 | (gl_SubgroupGtMask.x & 15) << 28",
            |x| {
                lanes(x, |lane| {
                    let mask = |holds: fn(usize, usize) -> bool| {
                        (0..8.min(x.len()))
                            .filter(|other| holds(*other, lane))
                            .fold(0, |mask, other| mask | 1u32 << other)
                    };
                    mask(|a, b| a == b)
                        | mask(|a, b| a < b) << 8
                        | mask(|a, b| a <= b) << 16
                        | (mask(|a, b| a >= b) & 15) << 24
                        | (mask(|a, b| a > b) & 15) << 28
                })
            },
        ),
    ]
}

fn arithmetic() -> Vec<Case> {
    use vk::SubgroupFeatureFlags as Class;
    /// The results of a reduction, an inclusive and an exclusive scan, combined into one number for each invocation.
    fn scans(x: &[u32], identity: u32, join: fn(u32, u32) -> u32) -> Vec<u32> {
        let total = x.iter().copied().fold(identity, join);
        let before = |lane: usize| x[..lane].iter().copied().fold(identity, join);
        (0..x.len())
            .map(|lane| total ^ before(lane + 1).rotate_left(1) ^ before(lane).rotate_left(2))
            .collect()
    }
    macro_rules! operation {
        ($name:literal, $op:literal, $identity:expr, $join:expr) => {
            case(
                concat!("arithmetic.", $name),
                Class::ARITHMETIC,
                "GL_KHR_shader_subgroup_arithmetic",
                &"subgroupOP(x) ^ rotate(subgroupInclusiveOP(x), 1) ^ rotate(subgroupExclusiveOP(x), 2)"
                    .replace("OP", $op)
                    .replace("rotate", "ROTATE"),
                |x| scans(x, $identity, $join),
            )
        };
    }
    let mut cases = vec![
        operation!("add", "Add", 0, u32::wrapping_add),
        operation!("mul", "Mul", 1, u32::wrapping_mul),
        operation!("min", "Min", u32::MAX, u32::min),
        operation!("max", "Max", 0, u32::max),
        operation!("and", "And", u32::MAX, |a, b| a & b),
        operation!("or", "Or", 0, |a, b| a | b),
        operation!("xor", "Xor", 0, |a, b| a ^ b),
    ];
    cases.push(typed(
        "arithmetic.signed",
        Class::ARITHMETIC,
        &[],
        "#extension GL_KHR_shader_subgroup_arithmetic : require",
        "uint(subgroupMin(int(x))) ^ uint(subgroupInclusiveMax(int(x)))",
        |x| {
            lanes(x, |lane| {
                let signed = |x: &u32| *x as i32;
                let least = x.iter().map(signed).min().unwrap_or_default();
                least as u32 ^ x[..=lane].iter().map(signed).max().unwrap_or_default() as u32
            })
        },
    ));
    // Small whole numbers: their sums are exact in any order.
    cases.push(typed("arithmetic.float", Class::ARITHMETIC, &[], "#extension GL_KHR_shader_subgroup_arithmetic : require",
        "uint(subgroupAdd(float(x & 255))) ^ uint(subgroupExclusiveAdd(float(x & 63))) << 16 ^ uint(subgroupMax(float(x & 15)))", |x| {
        lanes(x, |lane| {
            let sum = x.iter().map(|x| x & 255).sum::<u32>();
            let before = x[..lane].iter().map(|x| x & 63).sum::<u32>();
            sum ^ before << 16 ^ x.iter().map(|x| x & 15).max().unwrap_or_default()
        })
    }));
    for case in &mut cases {
        for shader in &mut case.shaders {
            if let crate::case::Shader::Glsl(text) = shader {
                *text = text.replace("ROTATE(", "turn(").replace(
                    "layout(local_size_x",
                    "uint turn(uint x, int by) { return x << by | x >> (32 - by); }\nlayout(local_size_x",
                );
            }
        }
    }
    cases
}

fn exchanges() -> Vec<Case> {
    use vk::SubgroupFeatureFlags as Class;
    const SHUFFLE: &str = "GL_KHR_shader_subgroup_shuffle";
    fn clusters(x: &[u32], size: usize, join: fn(u32, u32) -> u32) -> Vec<u32> {
        (0..x.len())
            .map(|lane| x[lane / size * size..][..size].iter().copied().reduce(join).unwrap_or_default())
            .collect()
    }
    vec![
        case(
            "shuffle.any",
            Class::SHUFFLE,
            SHUFFLE,
            "subgroupShuffle(x, (lane * 5 + 3) % gl_SubgroupSize)",
            |x| lanes(x, |lane| x[(lane * 5 + 3) % x.len()]),
        ),
        case(
            "shuffle.xor",
            Class::SHUFFLE,
            SHUFFLE,
            "subgroupShuffleXor(x, 2) ^ subgroupShuffleXor(x, 1)",
            |x| lanes(x, |lane| x[lane ^ 2] ^ x[lane ^ 1]),
        ),
        case(
            "relative.up",
            Class::SHUFFLE_RELATIVE,
            "GL_KHR_shader_subgroup_shuffle_relative",
            // The shader chooses after the shuffle, because lanes that take no part in a shuffle provide no value.
            "uint[2](7, subgroupShuffleUp(x, 2))[uint(lane >= 2)]",
            |x| lanes(x, |lane| if lane >= 2 { x[lane - 2] } else { 7 }),
        ),
        case(
            "relative.down",
            Class::SHUFFLE_RELATIVE,
            "GL_KHR_shader_subgroup_shuffle_relative",
            "uint[2](9, subgroupShuffleDown(x, 3))[uint(lane + 3 < gl_SubgroupSize)]",
            |x| lanes(x, |lane| x.get(lane + 3).copied().unwrap_or(9)),
        ),
        case(
            "clustered.add",
            Class::CLUSTERED,
            "GL_KHR_shader_subgroup_clustered",
            "subgroupClusteredAdd(x, 4)",
            |x| clusters(x, 4, u32::wrapping_add),
        ),
        case(
            "clustered.bits",
            Class::CLUSTERED,
            "GL_KHR_shader_subgroup_clustered",
            "subgroupClusteredXor(x, 2) ^ subgroupClusteredAnd(x, 4)",
            |x| {
                let pairs = clusters(x, 2, |a, b| a ^ b);
                pairs.iter().zip(clusters(x, 4, |a, b| a & b)).map(|(a, b)| a ^ b).collect()
            },
        ),
        case(
            "clustered.min_max",
            Class::CLUSTERED,
            "GL_KHR_shader_subgroup_clustered",
            "subgroupClusteredMin(x, 4) ^ subgroupClusteredMax(x, 4) ^ subgroupClusteredMul(x, 2) ^ subgroupClusteredOr(x, 2)",
            |x| {
                let all = [
                    clusters(x, 4, u32::min),
                    clusters(x, 4, u32::max),
                    clusters(x, 2, u32::wrapping_mul),
                    clusters(x, 2, |a, b| a | b),
                ];
                lanes(x, |lane| all.iter().fold(0, |sum, of| sum ^ of[lane]))
            },
        ),
    ]
}

fn quads_and_rotations() -> Vec<Case> {
    use vk::SubgroupFeatureFlags as Class;
    const QUAD: &str = "GL_KHR_shader_subgroup_quad";
    // The bits of the rotations are newer than ash.
    let rotate = Class::from_raw(0x200);
    let rotate_clustered = Class::from_raw(0x400);
    vec![
        case("quad.broadcast", Class::QUAD, QUAD, "subgroupQuadBroadcast(x, 2)", |x| {
            lanes(x, |lane| x[lane & !3 | 2])
        }),
        case("quad.swap_horizontal", Class::QUAD, QUAD, "subgroupQuadSwapHorizontal(x)", |x| {
            lanes(x, |lane| x[lane ^ 1])
        }),
        case("quad.swap_vertical", Class::QUAD, QUAD, "subgroupQuadSwapVertical(x)", |x| {
            lanes(x, |lane| x[lane ^ 2])
        }),
        case("quad.swap_diagonal", Class::QUAD, QUAD, "subgroupQuadSwapDiagonal(x)", |x| {
            lanes(x, |lane| x[lane ^ 3])
        }),
        typed(
            "quad.vote",
            Class::QUAD,
            &["shaderQuadControl"],
            "#extension GL_EXT_shader_quad_control : require\n#extension GL_KHR_shader_subgroup_vote : require",
            "uint(subgroupQuadAny((x & 3) == 0)) | uint(subgroupQuadAll((x & 3) != 0)) << 1",
            |x| lanes(x, |lane| if x[lane & !3..][..4].iter().any(|x| x & 3 == 0) { 1 } else { 2 }),
        ),
        typed(
            "rotate.whole",
            rotate,
            &["shaderSubgroupRotate"],
            "#extension GL_KHR_shader_subgroup_rotate : require",
            "subgroupRotate(x, 3)",
            |x| lanes(x, |lane| x[(lane + 3) % x.len()]),
        ),
        typed(
            "rotate.clustered",
            rotate_clustered,
            &["shaderSubgroupRotateClustered"],
            "#extension GL_KHR_shader_subgroup_rotate : require",
            "subgroupClusteredRotate(x, 1, 4)",
            |x| lanes(x, |lane| x[lane & !3 | (lane + 1) & 3]),
        ),
        typed(
            "reconvergence",
            Class::BALLOT,
            &["shaderMaximalReconvergence"],
            "#extension GL_EXT_maximal_reconvergence : require
#extension GL_KHR_shader_subgroup_ballot : require
#extension GL_KHR_shader_subgroup_vote : require
uint loops(uint x) {
    uint most = 0;
    for (uint i = 0; i < (x & 7); i++) most = subgroupBallotBitCount(subgroupBallot(true));
    return most | subgroupBallotBitCount(subgroupBallot(true)) << 8;
}
#define main() main() [[maximally_reconverges]]",
            "loops(x)",
            |x| {
                lanes(x, |lane| {
                    let rounds = x[lane] & 7;
                    let with = |round: u32| x.iter().filter(|x| *x & 7 > round).count() as u32;
                    (if rounds > 0 { with(rounds - 1) } else { 0 }) | (x.len() as u32) << 8
                })
            },
        ),
    ]
}

fn extended_types() -> Vec<Case> {
    use vk::SubgroupFeatureFlags as Class;
    const HEAD: &str = "#extension GL_EXT_shader_subgroup_extended_types_int8 : require
#extension GL_EXT_shader_subgroup_extended_types_int16 : require
#extension GL_EXT_shader_subgroup_extended_types_int64 : require
#extension GL_EXT_shader_subgroup_extended_types_float16 : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_shuffle : require";
    vec![
        typed(
            "types.int8",
            Class::ARITHMETIC,
            &["shaderSubgroupExtendedTypes", "shaderInt8"],
            HEAD,
            "uint(subgroupAdd(uint8_t(x)))",
            |x| lanes(x, |_| x.iter().fold(0u8, |sum, x| sum.wrapping_add(*x as u8)).into()),
        ),
        typed(
            "types.int16",
            Class::ARITHMETIC,
            &["shaderSubgroupExtendedTypes", "shaderInt16"],
            HEAD,
            "uint(subgroupInclusiveAdd(uint16_t(x)))",
            |x| lanes(x, |lane| x[..=lane].iter().fold(0u16, |sum, x| sum.wrapping_add(*x as u16)).into()),
        ),
        typed(
            "types.int64",
            Class::ARITHMETIC,
            &["shaderSubgroupExtendedTypes", "shaderInt64"],
            HEAD,
            "uint(subgroupAdd(uint64_t(x)) >> 3)",
            |x| lanes(x, |_| (x.iter().map(|x| u64::from(*x)).sum::<u64>() >> 3) as u32),
        ),
        typed(
            "types.float16",
            Class::ARITHMETIC,
            &["shaderSubgroupExtendedTypes", "shaderFloat16"],
            HEAD,
            "uint(subgroupMax(float16_t(x & 1023)))",
            |x| lanes(x, |_| x.iter().map(|x| x & 1023).max().unwrap_or_default()),
        ),
        typed(
            "types.float64",
            Class::ARITHMETIC,
            &["shaderFloat64"],
            HEAD,
            "uint(subgroupMax(double(x)))",
            |x| lanes(x, |_| x.iter().copied().max().unwrap_or_default()),
        ),
        typed(
            "types.vectors",
            Class::SHUFFLE,
            &["shaderSubgroupExtendedTypes", "shaderInt64"],
            HEAD,
            "uint(subgroupShuffleXor(u64vec2(x, uint64_t(x) << 32), 1).y >> 32)",
            |x| lanes(x, |lane| x[lane ^ 1]),
        ),
    ]
}

fn sizes() -> Vec<Case> {
    fn range(gpu: &Gpu) -> Result<(u32, u32)> {
        gpu.require(&["subgroupSizeControl"])?;
        let mut found = vk::PhysicalDeviceSubgroupSizeControlProperties::default();
        gpu.properties2(&mut found);
        if !found.required_subgroup_size_stages.contains(vk::ShaderStageFlags::COMPUTE) {
            return skip("required subgroup sizes");
        }
        Ok((found.min_subgroup_size, found.max_subgroup_size))
    }
    const HEAD: &str = "#extension GL_KHR_shader_subgroup_arithmetic : require";
    let sum: Expected = |x| lanes(x, |_| x.iter().copied().fold(0, u32::wrapping_add));
    let with = |name: &str, run: fn(&Gpu, Expected) -> Result<Vec<u8>>| {
        Case::new(format!("subgroups.size.{name}"), move |gpu| run(gpu, sum))
            .glsl(source(HEAD, "subgroupAdd(x)"))
    };
    vec![
        with("smallest", |gpu, sum| {
            let (least, _) = range(gpu)?;
            let kernel = gpu.kernel(0).buffers(2).subgroup_size(least).build()?;
            run(gpu, kernel, least, least, sum)
        }),
        with("largest", |gpu, sum| {
            let (_, most) = range(gpu)?;
            let kernel = gpu.kernel(0).buffers(2).subgroup_size(most).build()?;
            run(gpu, kernel, most, most, sum)
        }),
        with("varying", |gpu, sum| {
            let (least, most) = range(gpu)?;
            let flags = vk::PipelineShaderStageCreateFlags::ALLOW_VARYING_SUBGROUP_SIZE;
            let kernel = gpu.kernel(0).buffers(2).stage_flags(flags).build()?;
            run(gpu, kernel, least, most, sum)
        }),
        with("full", |gpu, sum| {
            gpu.require(&["computeFullSubgroups"])?;
            let (least, most) = range(gpu)?;
            let flags = vk::PipelineShaderStageCreateFlags::REQUIRE_FULL_SUBGROUPS
                | vk::PipelineShaderStageCreateFlags::ALLOW_VARYING_SUBGROUP_SIZE;
            let kernel = gpu.kernel(0).buffers(2).stage_flags(flags).build()?;
            run(gpu, kernel, least, most, sum)
        }),
    ]
}
