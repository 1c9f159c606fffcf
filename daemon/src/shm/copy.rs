//! Copies between shared and private memory.
//!
//! The shared side is touched with relaxed atomic accesses, because other threads and processes may touch it at the same time;
//! a torn copy is the other side's problem, undefined behaviour would be ours. Eight bytes per access keeps this close to the
//! speed of a plain copy.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Copies `into.len()` bytes at `from` out of shared memory.
///
/// # Safety
/// `from` is valid for reads of `into.len()` bytes for the whole call, and while it runs nobody in this process accesses these
/// bytes other than atomically.
pub(super) unsafe fn copy_out(from: *mut u8, into: &mut [u8]) {
    let mut at = 0;
    while at < into.len() {
        // SAFETY: `at` is below the length for which the caller vouches.
        let source = unsafe { from.add(at) };
        let rest = &mut into[at..];
        at += match width(source, rest.len()) {
            8 => {
                // SAFETY: `width` found eight bytes left and the alignment of a u64; the caller vouches for the rest.
                let value = unsafe { AtomicU64::from_ptr(source.cast()) }.load(Relaxed);
                rest[..8].copy_from_slice(&value.to_ne_bytes());
                8
            }
            4 => {
                // SAFETY: as above, with four bytes.
                let value = unsafe { AtomicU32::from_ptr(source.cast()) }.load(Relaxed);
                rest[..4].copy_from_slice(&value.to_ne_bytes());
                4
            }
            _ => {
                // SAFETY: one byte is left and needs no alignment.
                rest[0] = unsafe { AtomicU8::from_ptr(source) }.load(Relaxed);
                1
            }
        };
    }
}

/// Copies `from` into shared memory at `into`.
///
/// # Safety
/// `into` is valid for writes of `from.len()` bytes for the whole call, and while it runs nobody in this process accesses these
/// bytes other than atomically.
pub(super) unsafe fn copy_in(into: *mut u8, from: &[u8]) {
    let mut at = 0;
    while at < from.len() {
        // SAFETY: `at` is below the length for which the caller vouches.
        let target = unsafe { into.add(at) };
        let rest = &from[at..];
        at += match (width(target, rest.len()), rest.first_chunk::<8>(), rest.first_chunk::<4>()) {
            (8, Some(bytes), _) => {
                // SAFETY: `width` found eight bytes left and the alignment of a u64; the caller vouches for the rest.
                unsafe { AtomicU64::from_ptr(target.cast()) }.store(u64::from_ne_bytes(*bytes), Relaxed);
                8
            }
            (4, _, Some(bytes)) => {
                // SAFETY: as above, with four bytes.
                unsafe { AtomicU32::from_ptr(target.cast()) }.store(u32::from_ne_bytes(*bytes), Relaxed);
                4
            }
            _ => {
                // SAFETY: one byte is left and needs no alignment.
                unsafe { AtomicU8::from_ptr(target) }.store(rest[0], Relaxed);
                1
            }
        };
    }
}

/// The widest access possible at `address` with `left` bytes to go.
fn width(address: *mut u8, left: usize) -> usize {
    if left >= 8 && address.cast::<u64>().is_aligned() {
        8
    } else if left >= 4 && address.cast::<u32>().is_aligned() {
        4
    } else {
        1
    }
}
