//! Numbers of every width in the arithmetic of the shader's processor.

use half::f16;

use crate::bytes::expect_near;
use crate::case::Case;
use crate::elementwise::{Elementwise, noise, noise_floats, noise32};

const COUNT: usize = 200;

/// All cases of this module.
pub(crate) fn cases() -> Vec<Case> {
    let mut cases = integers();
    cases.extend(floats());
    cases.extend(conversions());
    cases.extend(bit_operations());
    cases.extend(dot_products());
    cases
}

/// Arithmetic, bit operations and comparisons of one integer type. GLSL leaves the remainder of negative numbers open.
macro_rules! integer {
    ($cases:ident, $ty:ty, $glsl:literal, $needs:expr) => {{
        let inputs = |seed| -> Vec<$ty> {
            let mut values: Vec<$ty> = noise(seed, COUNT).into_iter().map(|value| value as $ty).collect();
            values[..4].copy_from_slice(&[0, 1, <$ty>::MAX, <$ty>::MAX / 2]);
            // The smallest number has no absolute value.
            values.iter().map(|value| if *value == <$ty>::MIN { 3 } else { *value }).collect()
        };
        let (x, y) = (inputs(1), inputs(2));
        $cases.push(
            Elementwise::<$ty, $ty> {
                name: concat!("arithmetic.", stringify!($ty), ".operators").into(),
                needs: $needs,
                head: "",
                types: ($glsl, $glsl),
                results: vec![
                    "x + y",
                    "x - y",
                    "x * y",
                    concat!("x / (y == ", $glsl, "(0) ? ", $glsl, "(1) : y)"),
                    concat!("(x & ", $glsl, "(127)) % ((y & ", $glsl, "(63)) + ", $glsl, "(1))"),
                    "-x",
                ],
                x: x.clone(),
                y: y.clone(),
                expected: |x, y| {
                    vec![
                        x.wrapping_add(y),
                        x.wrapping_sub(y),
                        x.wrapping_mul(y),
                        x.wrapping_div(if y == 0 { 1 } else { y }),
                        (x & 127) % ((y & 63) + 1),
                        x.wrapping_neg(),
                    ]
                },
            }
            .case(),
        );
        $cases.push(
            Elementwise::<$ty, $ty> {
                name: concat!("arithmetic.", stringify!($ty), ".bits").into(),
                needs: $needs,
                head: "",
                types: ($glsl, $glsl),
                results: vec![
                    "x & y",
                    "x | y",
                    "x ^ y",
                    "~x",
                    concat!("x << (y & ", $glsl, "(7))"),
                    concat!("x >> (y & ", $glsl, "(7))"),
                ],
                x: x.clone(),
                y: y.clone(),
                expected: |x, y| {
                    let by = (y & 7) as u32;
                    vec![x & y, x | y, x ^ y, !x, x.wrapping_shl(by), x.wrapping_shr(by)]
                },
            }
            .case(),
        );
        $cases.push(
            Elementwise::<$ty, u32> {
                name: concat!("arithmetic.", stringify!($ty), ".comparisons").into(),
                needs: $needs,
                head: "",
                types: ($glsl, "uint"),
                results: vec![
                    "uint(x < y) | uint(x <= y) << 1 | uint(x > y) << 2 | uint(x == y) << 3 | uint(x != y) << 4",
                    "uint(min(x, y) == x)",
                    "uint(max(x, y) == x)",
                    "uint(clamp(x, min(x, y), max(x, y)) == x)",
                ],
                x,
                y,
                expected: |x, y| {
                    let word = u32::from(x < y)
                        | u32::from(x <= y) << 1
                        | u32::from(x > y) << 2
                        | u32::from(x == y) << 3
                        | u32::from(x != y) << 4;
                    vec![word, u32::from(x.min(y) == x), u32::from(x.max(y) == x), 1]
                },
            }
            .case(),
        );
    }};
}

fn integers() -> Vec<Case> {
    let mut cases = Vec::new();
    const EIGHT: &[&str] = &["shaderInt8", "storageBuffer8BitAccess"];
    const SIXTEEN: &[&str] = &["shaderInt16", "storageBuffer16BitAccess"];
    integer!(cases, i8, "int8_t", EIGHT);
    integer!(cases, u8, "uint8_t", EIGHT);
    integer!(cases, i16, "int16_t", SIXTEEN);
    integer!(cases, u16, "uint16_t", SIXTEEN);
    integer!(cases, i32, "int", &[]);
    integer!(cases, u32, "uint", &[]);
    integer!(cases, i64, "int64_t", &["shaderInt64"]);
    integer!(cases, u64, "uint64_t", &["shaderInt64"]);
    cases
}

/// Operations of one float type with exact results, and those whose precision is left to the device.
macro_rules! float {
    ($cases:ident, $ty:ty, $glsl:literal, $needs:expr, $tolerance:literal, $from:expr) => {{
        let inputs = |seed| -> Vec<$ty> {
            noise_floats(seed, COUNT).into_iter().map(|value| $from(value * 30.0)).collect()
        };
        let (x, y): (Vec<$ty>, Vec<$ty>) = (inputs(3), inputs(4));
        $cases.push(
            Elementwise::<$ty, $ty> {
                name: concat!("arithmetic.", stringify!($ty), ".exact").into(),
                needs: $needs,
                head: "",
                types: ($glsl, $glsl),
                results: vec![
                    "x + y",
                    "x - y",
                    "x * y",
                    "-x",
                    "abs(x)",
                    "floor(x)",
                    "ceil(x)",
                    "trunc(x)",
                    "min(x, y)",
                    "max(x, y)",
                    "sign(x)",
                    "roundEven(x)",
                ],
                x: x.clone(),
                y: y.clone(),
                expected: |x, y| {
                    let of = |f: fn(f64) -> f64| -> $ty { $from(f(f64::from(x))) };
                    vec![
                        x + y,
                        x - y,
                        x * y,
                        -x,
                        of(f64::abs),
                        of(f64::floor),
                        of(f64::ceil),
                        of(f64::trunc),
                        if y < x { y } else { x },
                        if y < x { x } else { y },
                        of(f64::signum),
                        of(f64::round_ties_even),
                    ]
                },
            }
            .case(),
        );
        $cases.push(
            Elementwise::<$ty, $ty> {
                name: concat!("arithmetic.", stringify!($ty), ".near").into(),
                needs: $needs,
                head: "",
                types: ($glsl, $glsl),
                results: vec![
                    "x / y",
                    "sqrt(abs(x))",
                    concat!("inversesqrt(abs(y) + ", $glsl, "(1.0))"),
                    "fma(x, y, x)",
                    concat!("mix(x, y, ", $glsl, "(0.25))"),
                    "fract(x)",
                    "step(x, y)",
                    concat!("smoothstep(", $glsl, "(-10.0), ", $glsl, "(10.0), x)"),
                ],
                x,
                y,
                expected: |x, y| {
                    let (x, y) = (f64::from(x), f64::from(y));
                    let t = ((x + 10.0) / 20.0).clamp(0.0, 1.0);
                    [
                        x / y,
                        x.abs().sqrt(),
                        1.0 / (y.abs() + 1.0).sqrt(),
                        x * y + x,
                        x * 0.75 + y * 0.25,
                        x - x.floor(),
                        if y < x { 0.0 } else { 1.0 },
                        t * t * (3.0 - 2.0 * t),
                    ]
                    .map($from)
                    .to_vec()
                },
            }
            .case_with(|found, expected| {
                let wide =
                    |values: &[$ty]| -> Vec<f64> { values.iter().map(|value| f64::from(*value)).collect() };
                expect_near(&wide(found), &wide(expected), $tolerance)
            }),
        );
    }};
}

fn floats() -> Vec<Case> {
    let mut cases = Vec::new();
    float!(cases, f16, "float16_t", &["shaderFloat16", "storageBuffer16BitAccess"], 0.02, f16::from_f64);
    float!(cases, f32, "float", &[], 1e-5, single);
    float!(cases, f64, "double", &["shaderFloat64"], 1e-12, f64::from);
    cases
}

fn single(value: f64) -> f32 {
    value as f32
}

fn conversions() -> Vec<Case> {
    let x: Vec<f32> = noise_floats(5, COUNT).into_iter().map(|value| (value * 120.0) as f32).collect();
    let from_single = |name: &str, needs, ty, expression, expected: fn(f32, f32) -> Vec<u64>| {
        Elementwise::<f32, u64> {
            name: format!("arithmetic.convert.{name}"),
            needs,
            head: "",
            types: ("float", ty),
            results: vec![expression],
            x: x.clone(),
            y: x.clone(),
            expected,
        }
        .case()
    };
    const WIDE: &[&str] = &["shaderInt64"];
    vec![
        from_single("f32_to_i64", WIDE, "int64_t", "int64_t(x)", |x, _| vec![x as i64 as u64]),
        from_single("f32_to_u64", WIDE, "uint64_t", "uint64_t(abs(x))", |x, _| vec![x.abs() as u64]),
        from_single("f32_to_f64", &["shaderFloat64"], "double", "double(x)", |x, _| {
            vec![f64::from(x).to_bits()]
        }),
        from_single(
            "f32_to_narrow",
            &["shaderInt64", "shaderInt16", "shaderInt8"],
            "uint64_t",
            "uint64_t(uint8_t(int8_t(x))) | uint64_t(uint16_t(int16_t(x))) << 8 | uint64_t(uint(int(x))) << 24",
            |x, _| {
                vec![
                    u64::from(x as i8 as u8)
                        | u64::from(x as i16 as u16) << 8
                        | u64::from(x as i32 as u32) << 24,
                ]
            },
        ),
        from_single(
            "f32_to_f16",
            &["shaderInt64", "shaderFloat16", "shaderInt16"],
            "uint64_t",
            "uint64_t(float16BitsToUint16(float16_t(x)))",
            |x, _| vec![u64::from(f16::from_f32(x).to_bits())],
        ),
        from_single(
            "f64_to_f32",
            &["shaderInt64", "shaderFloat64"],
            "uint64_t",
            "uint64_t(floatBitsToUint(float(double(x) * 0.1LF)))",
            |x, _| vec![u64::from(((f64::from(x) * 0.1) as f32).to_bits())],
        ),
        from_single(
            "int_widths",
            &["shaderInt64", "shaderInt16", "shaderInt8"],
            "uint64_t",
            "uint64_t(int64_t(int8_t(int(x)))) ^ uint64_t(int64_t(int16_t(int(x) * 300)))",
            |x, _| vec![i64::from(x as i32 as i8) as u64 ^ i64::from((x as i32 * 300) as i16) as u64],
        ),
        from_single(
            "int_to_float",
            &["shaderInt64", "shaderFloat64"],
            "double",
            "double(int64_t(x) * int64_t(1234567890123L)) + double(uint(abs(x)))",
            |x, _| vec![((x as i64 * 1_234_567_890_123) as f64 + f64::from(x.abs() as u32)).to_bits()],
        ),
        from_single(
            "pack64",
            WIDE,
            "uint64_t",
            "packUint2x32(uvec2(floatBitsToUint(x), unpackUint2x32(0x123456789abcdefUL).y))",
            |x, _| vec![u64::from(x.to_bits()) | 0x0123_4567_u64 << 32],
        ),
    ]
}

fn bit_operations() -> Vec<Case> {
    let words = |seed| -> Vec<u32> { noise32(seed, COUNT) };
    let case = |name: &str, head, results: &[&'static str], expected: fn(u32, u32) -> Vec<u32>| {
        Elementwise::<u32, u32> {
            name: format!("arithmetic.bits.{name}"),
            needs: &[],
            head,
            types: ("uint", "uint"),
            results: results.to_vec(),
            x: words(6),
            y: words(7),
            expected,
        }
        .case()
    };
    vec![
        case("count", "", &["uint(bitCount(x))"], |x, _| vec![x.count_ones()]),
        case("reverse", "", &["bitfieldReverse(x)"], |x, _| vec![x.reverse_bits()]),
        case("find", "", &["uint(findMSB(x >> (y & 31)))", "uint(findLSB(x << (y & 31)))", "uint(findMSB(int(x)))"], |x, y| {
            let msb = |value: u32| 31u32.wrapping_sub(value.leading_zeros());
            let low = x << (y & 31);
            let signed = if (x as i32) < 0 { !x } else { x };
            vec![msb(x >> (y & 31)), if low == 0 { u32::MAX } else { low.trailing_zeros() }, msb(signed)]
        }),
        case("extract", "", &["bitfieldExtract(x, int(y & 15), 9)", "uint(bitfieldExtract(int(x), int(y & 15), 9))"], |x, y| {
            let field = x >> (y & 15) & 511;
            vec![field, ((field << 23) as i32 >> 23) as u32]
        }),
        case("insert", "", &["bitfieldInsert(x, y, int(y & 15), 9)"], |x, y| {
            let mask = 511 << (y & 15);
            vec![x & !mask | y << (y & 15) & mask]
        }),
        case("carry", "uint over(uint x, uint y) { uint c; uint s = uaddCarry(x, y, c); return s ^ (c << 7); }
uint under(uint x, uint y) { uint c; uint s = usubBorrow(x, y, c); return s ^ (c << 7); }",
            &["over(x, y)", "under(x, y)"], |x, y| {
            let (sum, carry) = x.overflowing_add(y);
            let (difference, borrow) = x.overflowing_sub(y);
            vec![sum ^ u32::from(carry) << 7, difference ^ u32::from(borrow) << 7]
        }),
        case("multiply_extended", "uint high(uint x, uint y) { uint h, l; umulExtended(x, y, h, l); return h ^ (l << 1); }
uint highSigned(uint x, uint y) { int h, l; imulExtended(int(x), int(y), h, l); return uint(h) ^ (uint(l) << 1); }",
            &["high(x, y)", "highSigned(x, y)"], |x, y| {
            let wide = u64::from(x) * u64::from(y);
            let signed = (i64::from(x as i32) * i64::from(y as i32)) as u64;
            [wide, signed].map(|wide| (wide >> 32) as u32 ^ (wide as u32) << 1).to_vec()
        }),
        case("pack_norm", "", &["packUnorm2x16(vec2(x & 65535, y & 65535) / 65535.0)", "packSnorm4x8(vec4(int(x & 127), -int(y & 127), 127, 0) / 127.0)"],
            |x, y| vec![x & 65535 | y << 16, x & 127 | ((y & 127).wrapping_neg() & 255) << 8 | 127 << 16]),
        case("pack_half", "", &["packHalf2x16(vec2(x & 2047, float(y & 2047) * -0.5))", "floatBitsToUint(unpackHalf2x16(x & 0x3fff3fff).x)"], |x, y| {
            let low = f16::from_f32((x & 2047) as f32).to_bits();
            let high = f16::from_f32((y & 2047) as f32 * -0.5).to_bits();
            let value = f16::from_bits((x & 0x3fff) as u16);
            vec![u32::from(low) | u32::from(high) << 16, if value.is_normal() { value.to_f32().to_bits() } else { f32::from(value).to_bits() }]
        }),
        case("float_parts", "uint parts(uint x) { int e; float m = frexp(float(x | 1), e); return floatBitsToUint(ldexp(m, e - 3)); }",
            &["parts(x & 65535)"], |x, _| vec![(((x & 65535 | 1) as f32) / 8.0).to_bits()]),
    ]
}

fn dot_products() -> Vec<Case> {
    const HEAD: &str = "#extension GL_EXT_integer_dot_product : require";
    let case = |name: &str, needs, results: &[&'static str], expected: fn(u32, u32) -> Vec<u32>| {
        Elementwise::<u32, u32> {
            name: format!("arithmetic.dot.{name}"),
            needs,
            head: HEAD,
            types: ("uint", "uint"),
            results: results.to_vec(),
            x: noise32(8, COUNT),
            y: noise32(9, COUNT),
            expected,
        }
        .case()
    };
    const DOT: &[&str] = &["shaderIntegerDotProduct"];
    const DOT8: &[&str] = &["shaderIntegerDotProduct", "shaderInt8"];
    const DOT16: &[&str] = &["shaderIntegerDotProduct", "shaderInt16"];
    vec![
        case("packed_unsigned", DOT, &["dotPacked4x8EXT(x, y)"], |x, y| vec![unsigned(x, y)]),
        case("packed_signed", DOT, &["uint(dotPacked4x8EXT(int(x), int(y)))"], |x, y| {
            vec![signed(x, y) as u32]
        }),
        case("packed_mixed", DOT, &["uint(dotPacked4x8EXT(int(x), y))"], |x, y| vec![mixed(x, y) as u32]),
        case("packed_unsigned_saturating", DOT, &["dotPacked4x8AccSatEXT(x, y, 0xfffe8000u)"], |x, y| {
            vec![unsigned(x, y).saturating_add(0xfffe_8000)]
        }),
        case(
            "packed_signed_saturating",
            DOT,
            &["uint(dotPacked4x8AccSatEXT(int(x), int(y), 0x7fffe000))"],
            |x, y| vec![signed(x, y).saturating_add(0x7fff_e000) as u32],
        ),
        case(
            "packed_mixed_saturating",
            DOT,
            &["uint(dotPacked4x8AccSatEXT(int(x), y, int(0x80001000)))"],
            |x, y| vec![mixed(x, y).saturating_add(0x8000_1000_u32 as i32) as u32],
        ),
        case(
            "vector_8",
            DOT8,
            &["uint(dotEXT(unpack8(int(x)), unpack8(int(y))))", "dotEXT(unpack8(x), unpack8(y))"],
            |x, y| vec![signed(x, y) as u32, unsigned(x, y)],
        ),
        case("vector_16", DOT16, &["uint(dotEXT(unpack16(int(x)), unpack16(int(y))))"], |x, y| {
            let half = |value: u32, shift: u32| i64::from((value >> shift) as i16);
            vec![(half(x, 0) * half(y, 0) + half(x, 16) * half(y, 16)) as u32]
        }),
        case("vector_32", DOT, &["dotEXT(uvec3(x, y, 7), uvec3(y, x, 9))"], |x, y| {
            vec![x.wrapping_mul(y).wrapping_mul(2).wrapping_add(63)]
        }),
    ]
}

fn unsigned(x: u32, y: u32) -> u32 {
    let pairs = x.to_le_bytes().into_iter().zip(y.to_le_bytes());
    pairs.map(|(x, y)| u32::from(x) * u32::from(y)).sum()
}

fn signed(x: u32, y: u32) -> i32 {
    let pairs = x.to_le_bytes().into_iter().zip(y.to_le_bytes());
    pairs.map(|(x, y)| i32::from(x as i8) * i32::from(y as i8)).sum()
}

fn mixed(x: u32, y: u32) -> i32 {
    let pairs = x.to_le_bytes().into_iter().zip(y.to_le_bytes());
    pairs.map(|(x, y)| i32::from(x as i8) * i32::from(y)).sum()
}
