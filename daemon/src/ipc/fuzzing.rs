//! This file is the entry point for fuzzing messages: hostile packets come in, and a panic means a bug.

use super::channel::decode;
use super::{
    FromBroker, FromLauncher, FromSuccessor, HandOver, ProbeReport, ToBroker, ToDevice, ToLauncher,
    ToSuccessor, ToWorker,
};
use serde::{Serialize, de::DeserializeOwned};
use std::fmt::Debug;

/// Checks that a packet which is a message of any kind is the same message when encoded and decoded again. Returns the number of such kinds.
pub fn fuzz_message(packet: &[u8]) -> usize {
    let checks = [
        check::<ToDevice>,
        check::<ToWorker>,
        check::<ProbeReport>,
        check::<ToBroker>,
        check::<FromBroker>,
        check::<ToLauncher>,
        check::<FromLauncher>,
        check::<HandOver>,
        check::<ToSuccessor>,
        check::<FromSuccessor>,
    ];
    checks.iter().map(|check| usize::from(check(packet))).sum()
}

fn check<M: Serialize + DeserializeOwned + PartialEq + Debug>(packet: &[u8]) -> bool {
    let Ok(message) = decode::<M>(packet) else { return false };
    let written = postcard::to_stdvec(&message).expect("a message encodes");
    // Numbers may arrive with more bytes than they need, never with fewer. But a time may arrive with whole seconds among its nanoseconds, which may
    // make the number of its seconds longer by a byte.
    assert!(written.len() <= packet.len() + 1, "{message:?}");
    assert_eq!(decode::<M>(&written).expect("an encoded message decodes"), message);
    true
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    #[test]
    fn a_time_may_come_with_whole_seconds_among_its_nanoseconds() {
        // `CheckpointWritten` with 126 s and 2 283 809 946 ns.
        let packet = [0x1c, 0x2e, 0x7e, 0x9a, 0xd9, 0x80, 0xc1, 0x08];
        assert!(super::fuzz_message(&packet) > 0);
    }

    #[test]
    fn committed_packets_hold() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/ipc_message");
        let files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        let messages = files.iter().filter(|file| super::fuzz_message(&fs::read(file).unwrap()) > 0).count();
        assert!(2 * messages > files.len(), "only {messages} of the seeds are messages: write them anew");
    }
}
