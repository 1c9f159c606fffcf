//! Entry points for fuzzing the inputs of the transport from a driver and a frontend: a panic, a hang or memory without bound is a bug.
//!
//! [`fuzz_chains`] is the driver's side, [`fuzz_frontend`] the frontend's. Each returns the number of requests or messages that it took.

mod chains;
mod frontend;
mod watched;

pub use chains::fuzz_chains;
pub(crate) use chains::{passed_request, pending, unused_vring};
pub use frontend::fuzz_frontend;

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    fn replay(target: &str, fuzz: fn(&[u8]) -> usize) -> usize {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target);
        let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let committed = files.map(|file| fs::read(file).unwrap());
        committed.chain((0..300).map(random)).map(|bytes| fuzz(&bytes)).sum()
    }

    /// Returns any bytes, which are the same in every run (splitmix64).
    fn random(seed: u64) -> Vec<u8> {
        let words = (1..=128).map(|at| {
            let mixed = (seed << 32).wrapping_add(at).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed ^ (mixed >> 31)
        });
        words.flat_map(u64::to_le_bytes).collect()
    }

    #[test]
    fn committed_chains_hold() {
        let taken = replay("control_queue", super::fuzz_chains);
        assert!(taken > 30, "only {taken} requests");
    }

    #[test]
    fn committed_conversations_hold() {
        let taken = replay("vhost_user_messages", super::fuzz_frontend);
        assert!(taken > 100, "only {taken} messages");
    }
}
