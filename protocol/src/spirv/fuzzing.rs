//! Entry point for fuzzing shader modules: hostile words in, and a panic only where there is a bug.

use super::{Device, Limits, check, zero};

/// Limits that are small enough for a fuzzer to reach them.
const LIMITS: Limits = Limits {
    words: 1 << 14,
    ids: 1 << 12,
    type_depth: 8,
    blocks: 64,
    nesting: 8,
    cost: 1 << 16,
    variable_bytes: 1 << 14,
};

/// Checks that an accepted module names an entry point only if it has one, and is still accepted with its workgroup memory initialised.
/// Returns how often a module was accepted: not, without or with specialisation, or both.
pub fn fuzz_module(bytes: &[u8]) -> usize {
    let words: Vec<u32> = bytes
        .chunks_exact(4)
        .map(|word| u32::from_le_bytes(word.try_into().expect("chunks of four")))
        .collect();
    let specialisation = Some([(0, 4), (1, 1000), (7, 16)].into_iter().collect());
    let mut accepted = 0;
    for specialisation in [None, specialisation] {
        let device = Device {
            version: 0x1_0600,
            has_capability: &|number| number.is_multiple_of(2) || number < 64,
            graphics: words.len().is_multiple_of(2),
            workgroup_size: [1024, 1024, 64],
            workgroup_invocations: 1024,
            workgroup_bytes: 32 << 10,
            descriptor_sets: 8,
            specialisation,
        };
        let Ok(module) = check(&words, &device, &LIMITS) else { continue };
        accepted += 1;
        if let Some(rewritten) = zero::workgroup(&words) {
            // The rewritten module has one more null and one more id, which may exceed the limits.
            let limits =
                Limits { words: LIMITS.words * 2, ids: LIMITS.ids * 2, cost: LIMITS.cost * 2, ..LIMITS };
            assert_eq!(check(&rewritten, &device, &limits), Ok(module));
            assert_eq!(zero::workgroup(&rewritten), None);
        }
    }
    accepted
}
