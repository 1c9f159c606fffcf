//! Entry points for fuzzing a worker in this process: hostile streams, rings whose words change under its hands, and messages in any order.
//!
//! Everything is real but the driver below ([`crate::vulkan::fuzzing`]). [`fuzz_ring`] runs one ring on the calling thread and changes its
//! shared words between commands; [`fuzz_messages`] runs a whole worker with all its threads. Each answers how many commands or messages
//! were taken.

mod messages;
mod ring;
mod words;

pub use messages::fuzz_messages;
pub use ring::fuzz_ring;

use crate::config::ContextLimits;
use crate::ipc::{Channel, WorkerSetup};
use crate::shm::{self, Mapping};
use crate::vulkan::fuzzing as null;
use crate::worker::resources::{Arriving, Resources};
use protocol::ids::{ContextId, ResourceId};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Bytes of each shared-memory resource.
const MEMORY: u64 = 0x4000;

/// Ids of the resources that a stream can name: streams, replies, and the rest.
const RESOURCES: std::ops::RangeInclusive<u32> = 1..=3;

fn setup() -> WorkerSetup {
    WorkerSetup {
        ctx_id: ContextId(1),
        debug_name: "fuzz".into(),
        gpu: null::gpu(),
        limits: ContextLimits { rings: 3, ..null::LIMITS },
        cache_key: null::CACHE_KEY,
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
    RESOURCES.map(attach).collect()
}

fn channels() -> (Channel, Channel) {
    Channel::pair().expect("sockets")
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    fn replay(target: &str, fuzz: fn(&[u8]) -> usize) -> usize {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target);
        let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        files.map(|file| fuzz(&fs::read(file).unwrap())).sum()
    }

    #[test]
    fn committed_rings_hold() {
        let taken = replay("worker_ring", super::fuzz_ring);
        assert!(taken > 50, "only {taken} commands");
    }

    #[test]
    fn committed_letters_hold() {
        let taken = replay("worker_messages", super::fuzz_messages);
        assert!(taken > 50, "only {taken} messages");
    }
}
