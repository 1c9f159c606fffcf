//! Any bytes as the steps of a snapshot.

use crate::ipc::decode_first;
use vulkan::snapshot::step::Step;

/// Steps of one input: a fuzzer gains nothing from more.
const STEPS_MAX: usize = 4096;

/// Rebuilds a context from the steps that the bytes decode to, and answers their number.
pub fn fuzz_steps(mut bytes: &[u8]) -> usize {
    let mut steps: Vec<Step> = Vec::new();
    while let Ok((step, rest)) = decode_first(bytes)
        && steps.len() < STEPS_MAX
    {
        steps.push(step);
        bytes = rest;
    }
    vulkan::fuzzing::fuzz_rebuild(&steps);
    steps.len()
}
