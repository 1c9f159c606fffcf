//! The state of a device, as anyone may have written it.

use super::format::{HEAD_BYTES_MAX, Head, Record, StateError, StateReader, StateWriter};
use crate::device::samples::{self, CONTEXT, EXPORTED, SHMEM, SIZE};
use crate::ipc::{self, Placement, Slots};
use crate::serve::blobs::SavedFile;
use crate::serve::device_state::format::SavedContext;
use crate::transport::PassedRequest;
use crate::transport::fuzzing::passed_request;
use config::{CacheKey, DeviceLimits, MemoryId, MemoryName};

/// Bytes of contents that a file may name here.
const CONTENTS_MAX: u64 = 1 << 20;

/// Reads a head if the first byte is odd, and otherwise a file. A device that goes on from a head is written down as it was, and can be gone on with
/// again. Returns the number of records or contexts.
pub fn fuzz_device_state(bytes: &[u8]) -> usize {
    match bytes.split_first() {
        Some((first, head)) if first % 2 == 1 => go_on(head),
        Some((_, file)) => read(file).unwrap_or(0),
        None => 0,
    }
}

/// Goes on from a head, if it can be. Returns the number of contexts.
fn go_on(bytes: &[u8]) -> usize {
    let Ok(head) = ipc::decode::<Head>(bytes) else { return 0 };
    let mut device = samples::new::<PassedRequest>(DeviceLimits::default());
    let files = head.files.iter().map(|file| (file.bytes, file.piece, &file.resources[..]));
    if device.check(&head.device).is_err() || head.device.check_files(files).is_err() {
        return 0;
    }
    let contexts = head.device.alive().count();
    if device.resume(head.device, |request| request).is_err() {
        return 0;
    }
    assert!(device.mapped().len() <= device.resources());
    let again = device.pass_on(|request| Some(request.clone())).expect("nothing is under way").for_a_file();
    let mut other = samples::new::<PassedRequest>(DeviceLimits::default());
    other.check(&again).expect("it was checked before");
    other.resume(again, |request| request).expect("it was gone on with before");
    assert_eq!(other.memory_used(), device.memory_used());
    contexts
}

/// Reads a file as the thread does. Returns the number of records.
fn read(bytes: &[u8]) -> Result<usize, StateError> {
    let mut state = StateReader::new(bytes)?;
    let head: Head = state.message(HEAD_BYTES_MAX)?;
    let (mut left, mut records, mut slot) = (CONTENTS_MAX, 0, 0);
    let mut skip = |state: &mut StateReader<_>, bytes: u64| {
        left = left.checked_sub(bytes).ok_or(StateError::Damaged("too much for a fuzzer"))?;
        state.bytes(&mut vec![0; bytes as usize])
    };
    for file in &head.files {
        skip(&mut state, file.bytes)?;
    }
    for _ in &head.contexts {
        loop {
            records += 1;
            match state.record()? {
                Record::Bytes(length) => skip(&mut state, length.into())?,
                Record::Slots { bytes, .. } => slot = bytes.min(Slots::BYTES_MAX),
                Record::Slot => skip(&mut state, slot)?,
                Record::File(_) | Record::End => {}
                Record::Over => break,
            }
        }
    }
    state.finish()?;
    Ok(records)
}

/// Makes a head and a file, as seeds.
pub fn device_states() -> Vec<Vec<u8>> {
    let head = head();
    let encoded = ipc::encode(&head).expect("a head");
    let file = file(&head).expect("memory takes everything");
    vec![[vec![1], encoded].concat(), [vec![0], file].concat()]
}

fn head() -> Head {
    let files = vec![
        SavedFile { bytes: SIZE, piece: Some(MemoryId(1)), resources: vec![EXPORTED] },
        SavedFile { bytes: SIZE, piece: None, resources: vec![SHMEM] },
    ];
    let context = SavedContext { ctx_id: CONTEXT, name: "demo".into(), placement: Placement(vec![0]) };
    Head {
        device: samples::saved(&passed_request()),
        answers: Default::default(),
        contexts: vec![context],
        files,
        rings: Vec::new(),
        cache_key: CacheKey([7; 32]),
    }
}

fn file(head: &Head) -> Result<Vec<u8>, StateError> {
    let mut bytes = Vec::new();
    let mut state = StateWriter::new(&mut bytes)?;
    state.message(head)?;
    head.files.iter().try_for_each(|file| state.bytes(&vec![1; file.bytes as usize]))?;
    state.message(&Record::File(MemoryName::Piece(MemoryId(1))))?;
    state.message(&Record::Bytes(4))?;
    state.bytes(b"snap")?;
    state.message(&Record::Slots { count: 1, bytes: 4096 })?;
    state.message(&Record::End)?;
    state.message(&Record::Slot)?;
    state.bytes(&[5; 4096])?;
    state.message(&Record::Over)?;
    state.finish()?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    #[test]
    fn the_committed_states_are_of_this_form() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/device_state");
        for (index, seed) in device_states().iter().enumerate() {
            assert_eq!(fs::read(folder.join(format!("seed_{index:02}"))).unwrap(), *seed);
        }
    }

    #[test]
    fn committed_states_hold() {
        let taken: Vec<_> = device_states().iter().map(|seed| fuzz_device_state(seed)).collect();
        assert_eq!(taken, [1, 6]);
    }

    /// `HOSTILE_STATES=10000000` takes some minutes.
    #[test]
    fn heads_of_any_bytes_hold() {
        let seed = &device_states()[0];
        let mut mixed = 0x9e37_79b9_7f4a_7c15u64;
        let mut below = |bound: usize| {
            mixed ^= mixed << 13;
            mixed ^= mixed >> 7;
            mixed ^= mixed << 17;
            (mixed % bound as u64) as usize
        };
        let count = std::env::var("HOSTILE_STATES").ok().and_then(|count| count.parse().ok());
        let mut taken = 0;
        for _ in 0..count.unwrap_or(20_000) {
            let mut bytes = seed.clone();
            for _ in 0..=below(3) {
                let at = 1 + below(bytes.len() - 1);
                bytes[at] = below(256) as u8;
            }
            taken += fuzz_device_state(&bytes);
        }
        assert!(taken > 0, "no changed head is gone on with");
    }
}
