//! Entry point for fuzzing messages: a hostile packet in, and a panic only where there is a bug.

use super::channel::decode;
use super::{ProbeReport, ToDevice, ToWorker};
use serde::{Serialize, de::DeserializeOwned};
use std::fmt::Debug;

/// A packet that is a message of any kind is the same message after encoding and decoding it again.
pub fn fuzz_message(packet: &[u8]) {
    check::<ToDevice>(packet);
    check::<ToWorker>(packet);
    check::<ProbeReport>(packet);
}

fn check<M: Serialize + DeserializeOwned + PartialEq + Debug>(packet: &[u8]) {
    let Ok(message) = decode::<M>(packet) else { return };
    let written = postcard::to_stdvec(&message).expect("a message encodes");
    // Numbers may come with more bytes than they need, never with fewer.
    assert!(written.len() <= packet.len(), "{message:?}");
    assert_eq!(decode::<M>(&written).expect("an encoded message decodes"), message);
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    #[test]
    fn committed_packets_hold() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/ipc_message");
        let files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(!files.is_empty());
        files.iter().for_each(|file| super::fuzz_message(&fs::read(file).unwrap()));
    }
}
