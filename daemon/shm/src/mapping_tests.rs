//! Tests of [`super::Mapping`].

use super::*;
use crate as shm;
use crate::testing::private;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

#[test]
fn copies_hit_exactly_the_range_at_every_alignment_and_length() {
    let mapping = private(4096);
    let pattern: Vec<u8> = (1..=40).collect();
    for offset in 0..16u64 {
        for len in 0..=pattern.len() {
            mapping.copy_in(64, &[0; 64]).unwrap();
            mapping.copy_in(64 + offset, &pattern[..len]).unwrap();
            let mut all = [0xee; 64];
            mapping.copy_out(64, &mut all).unwrap();
            let start = offset as usize;
            assert_eq!(&all[start..start + len], &pattern[..len]);
            assert!(all[..start].iter().chain(&all[start + len..]).all(|byte| *byte == 0));
            let mut part = vec![0xee; len];
            mapping.copy_out(64 + offset, &mut part).unwrap();
            assert_eq!(part, &pattern[..len]);
        }
    }
}

#[test]
fn copies_between_mappings_hit_exactly_the_range_at_every_alignment_and_length() {
    let (one, other) = (private(4096), Mapping::anonymous(8192).unwrap());
    let pattern: Vec<u8> = (1..=40).collect();
    for (from, to) in (0..9).flat_map(|from| (0..9).map(move |to| (from, to))) {
        for len in 0..=pattern.len() as u64 {
            one.copy_in(from, &pattern).unwrap();
            other.copy_in(64, &[0; 64]).unwrap();
            one.copy_to(from, &other, 64 + to, len).unwrap();
            let mut all = [0xee; 64];
            other.copy_out(64, &mut all).unwrap();
            let (start, end) = (to as usize, (to + len) as usize);
            assert_eq!(&all[start..end], &pattern[..len as usize]);
            assert!(all[..start].iter().chain(&all[end..]).all(|byte| *byte == 0));
        }
    }
    let (beyond_one, beyond_other) = (one.copy_to(4000, &other, 0, 97), one.copy_to(0, &other, 8100, 93));
    assert_eq!(beyond_one, Err(OutOfBounds { offset: 4000, len: 97, of: 4096 }));
    assert_eq!(beyond_other, Err(OutOfBounds { offset: 8100, len: 93, of: 8192 }));
    let mut all = [1; 8192];
    Mapping::anonymous(8192).unwrap().copy_out(0, &mut all).unwrap();
    assert_eq!(all, [0; 8192]);
}

#[test]
fn a_mapping_is_cleared_to_its_last_byte() {
    for len in [1, 4096, 8192, 3 * 8192 + 5] {
        let mapping = Mapping::anonymous(len).unwrap();
        mapping.copy_in(0, &vec![0xee; len as usize]).unwrap();
        mapping.clear();
        let mut all = vec![1; len as usize];
        mapping.copy_out(0, &mut all).unwrap();
        assert!(all.iter().all(|byte| *byte == 0), "{len}");
    }
}

#[test]
fn ranges_outside_are_refused() {
    let mapping = private(4096);
    let mut bytes = [0; 8];
    assert!(mapping.copy_out(4088, &mut bytes).is_ok());
    for offset in [4089, 4096, 4097, u64::MAX - 7, u64::MAX] {
        let refused = OutOfBounds { offset, len: 8, of: 4096 };
        assert_eq!(mapping.copy_out(offset, &mut bytes), Err(refused));
        assert_eq!(mapping.copy_in(offset, &bytes), Err(refused));
    }
    assert!(mapping.contains(4096, 0));
    assert!(!mapping.contains(4097, 0));
}

#[test]
fn words_are_aligned_and_inside() {
    let mapping = private(4096);
    assert!(mapping.word(4092).is_ok());
    for offset in [1, 2, 3, 4093, 4096, u64::MAX] {
        assert!(mapping.word(offset).is_err());
    }
}

#[test]
fn a_word_outlives_the_handle_it_came_from_and_changes_only_its_bits() {
    let mapping = private(4096);
    let word = mapping.word(8).unwrap();
    drop(mapping);
    word.store(0b1000, Release);
    assert_eq!(word.set_bits(0b0011, AcqRel), 0b1000);
    assert_eq!(word.clear_bits(0b1001, AcqRel), 0b1011);
    assert_eq!(word.load(Acquire), 0b0010);
}

#[test]
fn bits_set_and_cleared_by_two_threads_are_not_lost() {
    let mapping = private(4096);
    let word = mapping.word(0).unwrap();
    std::thread::scope(|scope| {
        for bit in [1, 2] {
            let word = &word;
            scope.spawn(move || {
                for _ in 0..500 {
                    word.set_bits(bit, Relaxed);
                    assert_ne!(word.load(Relaxed) & bit, 0);
                    word.clear_bits(bit, Relaxed);
                    assert_eq!(word.load(Relaxed) & bit, 0);
                }
            });
        }
    });
}

#[test]
#[cfg(not(miri))]
fn two_mappings_of_one_file_see_each_other() {
    let file = shm::create("test", 10_000).unwrap();
    let (a, b) = (Mapping::new(&file, 10_000).unwrap(), Mapping::new(&file, 9_999).unwrap());
    a.copy_in(9_990, b"shared").unwrap();
    let mut bytes = [0; 6];
    b.copy_out(9_990, &mut bytes).unwrap();
    assert_eq!(&bytes, b"shared");
}

#[test]
#[cfg(not(miri))]
fn files_that_could_shrink_or_are_too_small_are_refused() {
    let file = shm::create("test", 4096).unwrap();
    assert!(rustix::fs::ftruncate(&file, 0).is_err());
    assert!(matches!(Mapping::new(&file, 4097), Err(MapError::Size { wanted: 4097, actual: 4096 })));
    assert!(matches!(Mapping::new(&file, 0), Err(MapError::Size { .. })));
    assert!(matches!(Mapping::new(&file, u64::MAX), Err(MapError::Size { .. })));
    let plain = tempfile::tempfile().unwrap();
    plain.set_len(4096).unwrap();
    assert!(matches!(Mapping::new(&plain, 4096), Err(MapError::Unsealed)));
}

#[test]
#[cfg(not(miri))]
fn a_placed_mapping_can_be_had_again_at_its_address_and_only_there() {
    let file = shm::create("test", 4 << 20).unwrap();
    let placed = Mapping::new_placed(&file, 4 << 20).unwrap();
    placed.copy_in(5000, b"contents").unwrap();
    assert!(placed.is_placed());
    let address = placed.as_ptr().addr() as u64;
    assert_eq!(address % (2 << 20), 0);
    let taken = |at| {
        let refused = Mapping::new_at(&file, 4 << 20, at);
        assert!(matches!(refused, Err(MapError::Address { address }) if address == at), "{refused:?}");
    };
    // The whole range, its start, and its end are in use.
    [address, address - (2 << 20), address + (2 << 20)].into_iter().for_each(taken);
    drop(placed);
    let again = Mapping::new_at(&file, 4 << 20, address).unwrap();
    assert_eq!(again.as_ptr().addr() as u64, address);
    let mut bytes = [0; 8];
    again.copy_out(5000, &mut bytes).unwrap();
    assert_eq!(&bytes, b"contents");
}

#[test]
#[cfg(not(miri))]
fn hostile_addresses_are_refused_and_replace_nothing() {
    let file = shm::create("test", 8192).unwrap();
    let elsewhere = Mapping::new(&file, 8192).unwrap();
    elsewhere.copy_in(0, b"kept").unwrap();
    assert!(!elsewhere.is_placed());
    let (local, placed) = (0u64, Mapping::new_placed(&file, 4096).unwrap());
    let misaligned = placed.as_ptr().addr() as u64 + 8;
    for address in [
        0,
        4096,
        misaligned,
        elsewhere.as_ptr().addr() as u64,
        (&raw const local).addr() as u64 & !4095,
        hostile_addresses_are_refused_and_replace_nothing as fn() as usize as u64 & !4095,
        0x7fff_ffff_f000,
        0x8000_0000_0000,
        0xffff_8000_0000_0000,
        u64::MAX - 4095,
        u64::MAX,
    ] {
        assert!(
            matches!(Mapping::new_at(&file, 8192, address), Err(MapError::Address { .. })),
            "{address:#x}"
        );
    }
    let mut bytes = [0; 4];
    elsewhere.copy_out(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"kept");
    // The size of the file is checked here too.
    let free = placed.as_ptr().addr() as u64;
    drop(placed);
    assert!(matches!(Mapping::new_at(&file, 8193, free), Err(MapError::Size { .. })));
    assert!(matches!(Mapping::new_placed(&file, 8193), Err(MapError::Size { .. })));
    // A range that was mapped a moment ago is free, unless another test took it.
    let has_room = |_| {
        let free = Mapping::new_placed(&file, 8192).unwrap().as_ptr().addr() as u64;
        Mapping::new_at(&file, 8192, free).is_ok()
    };
    assert!((0..100).any(has_room));
}

#[test]
#[cfg(not(miri))]
fn placed_mappings_of_many_threads_are_apart() {
    let file = shm::create("test", 64 << 10).unwrap();
    let place = || (0..200).map(|_| Mapping::new_placed(&file, 64 << 10).unwrap()).collect::<Vec<_>>();
    let all: Vec<Mapping> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(place)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let mut starts: Vec<_> = all.iter().map(|mapping| mapping.as_ptr().addr()).collect();
    starts.sort_unstable();
    assert!(all.iter().all(Mapping::is_placed));
    assert!(starts.windows(2).all(|pair| pair[1] - pair[0] >= 64 << 10));
}

#[test]
fn pages_are_provided_or_it_is_an_error() {
    let file = shm::create("provide", 8 * PAGE).unwrap();
    let pages = || rustix::fs::fstat(&file).unwrap().st_blocks as u64 * 512 / PAGE;
    let mapping = Mapping::new(&file, 8 * PAGE).unwrap();
    assert_eq!(pages(), 0);
    mapping.provide(2 * PAGE + 1, PAGE).unwrap();
    assert_eq!(pages(), 2, "those of all bytes");
    mapping.provide(0, 8 * PAGE).unwrap();
    assert_eq!(pages(), 8);
    for (offset, len) in [(8 * PAGE, 1), (PAGE, 8 * PAGE), (u64::MAX, 2), (1, u64::MAX)] {
        assert!(mapping.provide(offset, len).is_err(), "{len} bytes at {offset}");
    }
    // A file that ends before, as a pool without memory does: no signal is raised.
    let file = tempfile::tempfile().unwrap();
    rustix::fs::ftruncate(&file, 2 * PAGE).unwrap();
    let mapping = Mapping::of_device(&file, 2 * PAGE).unwrap();
    rustix::fs::ftruncate(&file, PAGE).unwrap();
    mapping.provide(0, PAGE).unwrap();
    assert!(mapping.provide(0, 2 * PAGE).is_err());
}
