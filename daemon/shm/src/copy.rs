//! Copies between shared and private memory.
//!
//! These functions access the shared side with relaxed atomics, because other threads and processes may access it at the same time. A torn copy is
//! a fault of the other side; undefined behaviour would be a fault of this program. Eight bytes per access keeps this close to the speed of a plain copy.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Copies `into.len()` bytes at `from` out of shared memory.
///
/// # Safety
/// `from` is valid for reads of `into.len()` bytes for the whole call, and while it runs no other code of this process accesses these
/// bytes other than atomically.
pub(super) unsafe fn copy_out(from: *mut u8, into: &mut [u8]) {
    let mut at = 0;
    while at < into.len() {
        // Within the bytes for which the caller vouches, because `at` is below their length.
        let source = from.wrapping_add(at);
        let rest = &mut into[at..];
        at += match width(source, rest.len()) {
            Width::Words(length) => {
                let words = rest[..length].as_chunks_mut::<8>().0;
                for (index, word) in words.iter_mut().enumerate() {
                    let shared = source.cast::<u64>().wrapping_add(index);
                    // SAFETY: `width` found the bytes left and the alignment of a u64; the caller vouches for the rest.
                    *word = unsafe { AtomicU64::from_ptr(shared) }.load(Relaxed).to_ne_bytes();
                }
                length
            }
            Width::Half => {
                // SAFETY: as above, with four bytes.
                let value = unsafe { AtomicU32::from_ptr(source.cast()) }.load(Relaxed);
                rest[..4].copy_from_slice(&value.to_ne_bytes());
                4
            }
            Width::Byte => {
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
/// `into` is valid for writes of `from.len()` bytes for the whole call, and while it runs no other code of this process accesses these
/// bytes other than atomically.
pub(super) unsafe fn copy_in(into: *mut u8, from: &[u8]) {
    let mut at = 0;
    while at < from.len() {
        // Within the bytes for which the caller vouches, because `at` is below their length.
        let target = into.wrapping_add(at);
        let rest = &from[at..];
        at += match (width(target, rest.len()), rest.first_chunk::<4>()) {
            (Width::Words(length), _) => {
                for (index, word) in rest[..length].as_chunks::<8>().0.iter().enumerate() {
                    let shared = target.cast::<u64>().wrapping_add(index);
                    // SAFETY: `width` found the bytes left and the alignment of a u64; the caller vouches for the rest.
                    unsafe { AtomicU64::from_ptr(shared) }.store(u64::from_ne_bytes(*word), Relaxed);
                }
                length
            }
            (Width::Half, Some(bytes)) => {
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

/// The width of one access to bytes.
enum Width {
    /// Eight bytes at a time, and the number of such accesses.
    Words(usize),
    /// Four bytes.
    Half,
    /// A single byte.
    Byte,
}

/// Returns the widest accesses possible at `address` with `left` bytes to copy.
fn width(address: *mut u8, left: usize) -> Width {
    if left >= 8 && address.cast::<u64>().is_aligned() {
        Width::Words(left & !7)
    } else if left >= 4 && address.cast::<u32>().is_aligned() {
        Width::Half
    } else {
        Width::Byte
    }
}
