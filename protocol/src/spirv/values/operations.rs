//! Operations on integers and booleans as `OpSpecConstantOp` has them (SPIR-V 1.6, 3.3.11, 3.3.13 to 3.3.15).

/// `OpVectorShuffle`.
pub(crate) const VECTOR_SHUFFLE: u32 = 79;
/// `OpCompositeExtract`.
pub(crate) const COMPOSITE_EXTRACT: u32 = 81;
/// `OpCompositeInsert`.
pub(crate) const COMPOSITE_INSERT: u32 = 82;
/// `OpSelect`.
pub(crate) const SELECT: u32 = 169;

/// The result of an operation on one component. `a` is `bits` wide, and both operands are zero-extended. The caller ignores bits beyond the result's
/// width. None if the specification does not define the result.
pub(crate) fn scalar(operation: u32, a: u64, b: Option<u64>, bits: u32) -> Option<u64> {
    if let Some(result) = unary(operation, a, bits) {
        return Some(result);
    }
    let b = b?;
    let (signed_a, signed_b) = (signed(a, bits), signed(b, bits));
    Some(match operation {
        128 => a.wrapping_add(b),
        130 => a.wrapping_sub(b),
        132 => a.wrapping_mul(b),
        134 => a.checked_div(b)?,
        135 => signed_a.checked_div(signed_b)? as u64,
        137 => a.checked_rem(b)?,
        138 => signed_a.checked_rem(signed_b)? as u64,
        // The remainder has the sign of the divisor.
        139 => match signed_a.checked_rem(signed_b)? {
            remainder if remainder != 0 && (remainder < 0) != (signed_b < 0) => (remainder + signed_b) as u64,
            remainder => remainder as u64,
        },
        164 | 170 => u64::from(a == b),
        165 | 171 => u64::from(a != b),
        166 => a | b,
        167 => a & b,
        172 => u64::from(a > b),
        173 => u64::from(signed_a > signed_b),
        174 => u64::from(a >= b),
        175 => u64::from(signed_a >= signed_b),
        176 => u64::from(a < b),
        177 => u64::from(signed_a < signed_b),
        178 => u64::from(a <= b),
        179 => u64::from(signed_a <= signed_b),
        194..=196 if b >= u64::from(bits) => return None,
        194 => a >> b,
        195 => (signed_a >> b) as u64,
        196 => a << b,
        197 => a | b,
        198 => a ^ b,
        199 => a & b,
        _ => return None,
    })
}

fn unary(operation: u32, a: u64, bits: u32) -> Option<u64> {
    Some(match operation {
        // Conversions, the second one of signed numbers; a cast is one between types of the same width.
        113 | 124 => a,
        114 => signed(a, bits) as u64,
        126 => a.wrapping_neg(),
        168 => u64::from(a == 0),
        200 => !a,
        _ => return None,
    })
}

/// The number that these low bits are in two's complement.
fn signed(value: u64, bits: u32) -> i64 {
    let unused = 64 - bits.clamp(1, 64);
    (value << unused) as i64 >> unused
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_signed_as_the_operation_says() {
        let minus = |value: u32| u64::from(value.wrapping_neg());
        let cases = [
            (128, 3, 4, 7),
            (130, 3, 4, minus(1)),
            (132, minus(1), 5, minus(5)),
            (134, minus(2), 2, u64::from(u32::MAX / 2)),
            (135, minus(6), 2, minus(3)),
            (137, 7, 4, 3),
            (138, minus(7), 4, minus(3)),
            (139, minus(7), 4, 1),
            (139, 7, minus(4), minus(1)),
            (173, minus(1), 1, 0),
            (172, minus(1), 1, 1),
            (177, minus(1), 1, 1),
            (194, minus(4), 1, u64::from((u32::MAX - 3) / 2)),
            (195, minus(4), 1, minus(2)),
            (196, 3, 4, 48),
            (199, 6, 3, 2),
        ];
        for (operation, a, b, expected) in cases {
            let result = scalar(operation, a, Some(b), 32).map(|result| result & u64::from(u32::MAX));
            assert_eq!(result, Some(expected), "{operation} of {a} and {b}");
        }
        for (operation, a, b) in
            [(134, 1, 0), (135, 1, 0), (137, 1, 0), (138, 1, 0), (139, 1, 0), (196, 1, 32)]
        {
            assert_eq!(scalar(operation, a, Some(b), 32), None, "{operation} of {a} and {b}");
        }
        assert_eq!(scalar(114, 0xff, None, 8), Some(u64::MAX));
        assert_eq!(scalar(135, 1 << 63, Some(u64::MAX), 64), None);
    }
}
