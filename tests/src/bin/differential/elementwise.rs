//! Programs that compute some numbers from each pair of inputs: the common form of the arithmetic cases.

use std::fmt::Debug;

use anyhow::Result;

use crate::bytes::{Plain, bytes_of, expect};
use crate::case::Case;
use crate::gpu::Gpu;

/// A program: `results[i]` is the GLSL expression for the i-th result of inputs `x` and `y`.
pub(crate) struct Elementwise<A, R> {
    /// The case's name.
    pub name: String,
    /// Features it needs.
    pub needs: &'static [&'static str],
    /// GLSL extensions and functions, in front of `main`.
    pub head: &'static str,
    /// The inputs' type in GLSL, and the results'.
    pub types: (&'static str, &'static str),
    /// Expressions.
    pub results: Vec<&'static str>,
    /// First inputs.
    pub x: Vec<A>,
    /// Second inputs, as many.
    pub y: Vec<A>,
    /// The results that the processor computes for one pair; empty if it cannot tell.
    pub expected: fn(A, A) -> Vec<R>,
}

impl<A, R> Elementwise<A, R>
where
    A: Plain + 'static,
    R: Plain + PartialEq + Debug + 'static,
{
    /// The case that compares bit by bit.
    pub(crate) fn case(self) -> Case {
        self.case_with(|found, expected| expect(found, expected).map(drop))
    }

    /// The case with another comparison.
    pub(crate) fn case_with(self, compare: impl Fn(&[R], &[R]) -> Result<()> + 'static) -> Case {
        let glsl = self.glsl();
        let run = move |gpu: &Gpu| {
            gpu.require(self.needs)?;
            let count = self.x.len();
            let (x, y) = (gpu.buffer_of(&self.x)?, gpu.buffer_of(&self.y)?);
            let found = gpu.buffer((count * self.results.len() * size_of::<R>()) as u64)?;
            gpu.compute(0, &[&x, &y, &found], count.div_ceil(64) as u32)?;
            let found = found.values::<R>();
            let pairs = self.x.iter().zip(&self.y);
            let expected: Vec<R> = pairs.flat_map(|(x, y)| (self.expected)(*x, *y)).collect();
            if !expected.is_empty() {
                compare(&found, &expected)?;
            }
            Ok(bytes_of(&found))
        };
        Case::new(self.name, run).glsl(glsl)
    }

    fn glsl(&self) -> String {
        let (from, to) = self.types;
        let count = self.results.len();
        let lines = self.results.iter().enumerate();
        let lines: String = lines
            .map(|(at, expression)| format!("    found[i * {count} + {at}] = {expression};\n"))
            .collect();
        format!(
            "{}
layout(local_size_x = 64) in;
layout(scalar, binding = 0) readonly buffer First {{ {from} first[]; }};
layout(scalar, binding = 1) readonly buffer Second {{ {from} second[]; }};
layout(scalar, binding = 2) writeonly buffer Found {{ {to} found[]; }};
void main() {{
    uint i = gl_GlobalInvocationID.x;
    if (i >= first.length()) return;
    {from} x = first[i], y = second[i];
{lines}}}
",
            self.head
        )
    }
}

/// Numbers that look random and are always the same.
pub(crate) fn noise(seed: u64, count: usize) -> Vec<u64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let step = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    };
    std::iter::repeat_with(step).take(count).collect()
}

/// The upper halves of the numbers of [`noise`], as 32-bit numbers.
pub(crate) fn noise32(seed: u64, count: usize) -> Vec<u32> {
    noise(seed, count).into_iter().map(|value| (value >> 32) as u32).collect()
}

/// The numbers of [`noise`] as floats between -1 and 1.
pub(crate) fn noise_floats(seed: u64, count: usize) -> Vec<f64> {
    noise(seed, count).into_iter().map(|value| (value >> 11) as f64 / (1u64 << 52) as f64 - 1.0).collect()
}
