//! Entry points for fuzzing a worker in this process: hostile streams, rings whose words change while it reads them, and messages in any order.
//!
//! Everything is real but the driver below ([`vulkan::null`]). [`fuzz_ring`] runs one ring on the calling thread and changes its shared words
//! between commands; [`fuzz_messages`] runs a whole worker with all its threads; [`fuzz_steps`] rebuilds a context. Each returns how many commands,
//! messages or steps were taken. [`fuzz_snapshot`] decodes bytes that another worker claims to have written.

mod messages;
#[cfg(feature = "fuzzing")]
pub mod record;
mod ring;
mod steps;
mod words;

pub use messages::fuzz_messages;
pub use ring::fuzz_ring;
pub use steps::fuzz_steps;

use crate::ipc::{Channel, WorkerSetup};
use crate::worker::life::journal::{fuzz_read, seed};
use crate::worker::life::snapshot::{fuzz_decode, seeds};
use crate::worker::resources::{Arriving, Resources};
use config::ContextLimits;
use protocol::ids::{ContextId, ResourceId};
use shm::{self, Mapping};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use vulkan::null;

/// Decodes bytes as a snapshot and reads them as a journal, or refuses them. Returns the number of parts.
pub fn fuzz_snapshot(bytes: &[u8]) -> usize {
    fuzz_decode(bytes) + fuzz_read(bytes)
}

/// Snapshots and a journal to begin with.
pub fn snapshots() -> Vec<Vec<u8>> {
    let mut all = seeds();
    all.push(seed());
    all
}

/// Bytes of each shared-memory resource.
const MEMORY: u64 = 0x4000;

/// Ids of the resources that a stream can name: streams, replies, and the rest.
const RESOURCES: std::ops::RangeInclusive<u32> = 1..=3;

fn setup() -> WorkerSetup {
    WorkerSetup {
        ctx_id: ContextId(1),
        debug_name: "fuzz".into(),
        gpus: null::gpus(),
        limits: ContextLimits { rings: 3, ..null::LIMITS },
        cache_key: null::CACHE_KEY,
        passage: None,
        waiting_off: Vec::new(),
        swapped_out: None,
    }
}

fn memory_file() -> OwnedFd {
    shm::create("fuzz", MEMORY).expect("a memory file")
}

/// Resources with memory behind them, and that memory as the guest sees it.
fn attach_all(resources: &Resources) -> Vec<Arc<Mapping>> {
    let attach = |id| {
        let file = memory_file();
        let mapping = Mapping::new(&file, MEMORY).expect("it can be mapped");
        let attached = resources.attach(ResourceId(id), Arriving::Shared(file), MEMORY, u64::from(id));
        attached.expect("it can be mapped twice");
        Arc::new(mapping)
    };
    // The worker knows these ids, so no thread waits for them, but they have no memory.
    [0, RESOURCES.end() + 1].into_iter().for_each(|id| resources.attach_memory(ResourceId(id), None, 0));
    RESOURCES.map(attach).collect()
}

fn channels() -> (Channel, Channel) {
    Channel::pair().expect("sockets")
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    fn replay(target: &str, fuzz: fn(&[u8]) -> usize, random: u64) -> usize {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target);
        let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let committed = files.map(|file| fs::read(file).unwrap());
        committed.chain((0..random).map(self::random)).map(|bytes| fuzz(&bytes)).sum()
    }

    /// Returns random bytes, the same in every run (splitmix64).
    fn random(seed: u64) -> Vec<u8> {
        let words = (1..=256).map(|at| {
            let mixed = (seed << 32).wrapping_add(at).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed ^ (mixed >> 31)
        });
        words.flat_map(u64::to_le_bytes).collect()
    }

    #[test]
    fn committed_rings_hold() {
        let taken = replay("worker_ring", super::fuzz_ring, 300);
        assert!(taken > 50, "only {taken} commands");
    }

    #[test]
    fn the_committed_snapshots_are_of_this_version() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/worker_snapshot");
        for (index, seed) in super::snapshots().iter().enumerate() {
            assert_eq!(fs::read(folder.join(format!("seed_{index:02}"))).unwrap(), *seed);
        }
    }

    #[test]
    fn committed_snapshots_hold() {
        let taken = replay("worker_snapshot", super::fuzz_snapshot, 300);
        assert!(taken > 3, "only {taken} steps and rings");
    }

    #[test]
    fn committed_letters_hold() {
        let taken = replay("worker_messages", super::fuzz_messages, 0);
        assert!(taken > 50, "only {taken} messages");
    }

    #[test]
    fn committed_steps_hold() {
        let taken = replay("venus_rebuild", super::fuzz_steps, 300);
        assert!(taken > 50, "only {taken} steps");
    }
}
