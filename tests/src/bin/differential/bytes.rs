//! Numbers as bytes and back, and the comparison of results with the expected values.

use std::fmt::Debug;

use anyhow::{Result, ensure};
use half::f16;

/// Numbers without padding; every bit pattern is a value.
pub(crate) trait Plain: Copy + Default {}

impl Plain for u8 {}
impl Plain for i8 {}
impl Plain for u16 {}
impl Plain for i16 {}
impl Plain for u32 {}
impl Plain for i32 {}
impl Plain for u64 {}
impl Plain for i64 {}
impl Plain for f16 {}
impl Plain for f32 {}
impl Plain for f64 {}
impl<T: Plain, const N: usize> Plain for [T; N] where [T; N]: Default {}

/// The bytes of numbers.
pub(crate) fn bytes_of<T: Plain>(values: &[T]) -> Vec<u8> {
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), size_of_val(values)) }.to_vec()
}

/// Numbers from bytes; a remainder is left out.
pub(crate) fn from_bytes<T: Plain>(bytes: &[u8]) -> Vec<T> {
    let mut values = vec![T::default(); bytes.len() / size_of::<T>()];
    unsafe {
        std::ptr::copy_nonoverlapping(
            bytes.as_ptr(),
            values.as_mut_ptr().cast::<u8>(),
            size_of_val(values.as_slice()),
        );
    }
    values
}

/// Checks that both lists are equal: the first difference is the error. Returns the bytes, as a case's result.
pub(crate) fn expect<T: Plain + PartialEq + Debug>(found: &[T], expected: &[T]) -> Result<Vec<u8>> {
    ensure!(found.len() == expected.len(), "{} values instead of {}", found.len(), expected.len());
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        ensure!(found == expected, "value {index} is {found:?} instead of {expected:?}");
    }
    Ok(bytes_of(found))
}

/// Checks floats as [`expect`] does, but they may differ by a relative error.
pub(crate) fn expect_near(found: &[f64], expected: &[f64], tolerance: f64) -> Result<()> {
    ensure!(found.len() == expected.len(), "{} values instead of {}", found.len(), expected.len());
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (found - expected).abs() / expected.abs().max(1.0);
        ensure!(
            error <= tolerance || found == expected || (found.is_nan() && expected.is_nan()),
            "value {index} is {found} instead of {expected}"
        );
    }
    Ok(())
}
