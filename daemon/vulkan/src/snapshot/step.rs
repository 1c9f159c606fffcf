//! The steps of which a snapshot consists.

use config::Likeness;
use serde::{Deserialize, Serialize};

pub use crate::logical::pipeline_caches::CacheData;

/// One step of rebuilding a context. Ids are the guest's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// Commands, one behind the other, whose replies are not needed. A command that fails leaves the same state as when the guest sent it.
    Commands(Vec<u8>),
    /// The memory of the allocation with this id, which a later command makes.
    Memory {
        /// The `VkDeviceMemory`.
        id: u64,
        /// The index of its file among those of the snapshot.
        file: u32,
        /// The bytes of the file that are the allocation's: whole pages.
        size: u64,
        /// The address at which the driver knows the first byte of the allocation, a multiple of 4096; 0 if any address will do.
        address: u64,
        /// The number of blobs that show the memory.
        shown: u32,
    },
    /// An id that stands for an object whose creation failed.
    Failed {
        /// The id.
        id: u64,
        /// `VkObjectType`.
        kind: i32,
        /// The `VkResult` with which commands that name the object fail.
        result: i32,
    },
    /// An object that can only be destroyed.
    Unusable {
        /// The id.
        id: u64,
        /// `VkObjectType`.
        kind: i32,
        /// The `VkResult` with which commands that name the object fail.
        result: i32,
    },
    /// A fence with its present state, which may differ from the state at its creation.
    Fence {
        /// The id.
        id: u64,
        /// The state of the fence.
        signalled: bool,
    },
    /// A binary semaphore that is signalled, and that nothing waits for.
    Signalled {
        /// The id.
        id: u64,
    },
    /// Results of queries that are available, which no driver lets be written.
    Queries {
        /// The `VkQueryPool`.
        pool: u64,
        /// The first query.
        first: u32,
        /// Words of each query, one query behind the other, without words for availability.
        results: Vec<u64>,
    },
    /// A command buffer whose recording is spoilt: it names an object whose creation failed with this `VkResult`.
    Spoilt {
        /// The `VkCommandBuffer`.
        id: u64,
        /// The result.
        result: i32,
    },
    /// Failures that were not reported to the guest.
    Failures {
        /// The `VkResult` that the next command with a result returns; 0 for none.
        owed: i32,
        /// The device is lost for the guest.
        lost: bool,
        /// The guest has made fences of the host, which can report a loss to it.
        host_fences: bool,
    },
    /// The objects that there are now, each with its `VkObjectType`: if one is missing, a command has failed that had succeeded before.
    Objects(Vec<(u64, i32)>),
    /// Buffers whose address the guest knows, each with this address.
    Addresses(Vec<(u64, u64)>),
    /// The address at which a later command makes a buffer or memory, on a device whose addresses can be had again.
    Replayed {
        /// The `VkBuffer` or `VkDeviceMemory`.
        id: u64,
        /// The opaque capture address of the object.
        address: u64,
    },
    /// Allocations that only the driver uses, each with its bytes in whole pages, in the order of their ids. Their contents come apart from the
    /// steps.
    Contents(Vec<(u64, u64)>),
    /// The next allocation with this id is one of [`Self::Contents`]: no program sees its memory before the contents are there.
    Filled {
        /// The `VkDeviceMemory`.
        id: u64,
    },
    /// The looks and identities of GPUs that were enumerated just now.
    Gpus(Vec<(u64, Likeness, Identity)>),
    /// The driver's memory that the next allocation with this id is made of. This memory keeps its contents.
    Exported {
        /// The `VkDeviceMemory`.
        id: u64,
        /// The index of its descriptor among the files of the snapshot.
        file: u32,
    },
    /// The data with which a cache begins that a later step makes. If the driver cannot use the data, it compiles pipelines again.
    CacheData(CacheData),
}

/// `VkPhysicalDeviceIDProperties::deviceUUID` and `driverUUID`: if both are the same, memory of one process can be given to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The GPU.
    pub device: [u8; 16],
    /// The driver, in this version.
    pub driver: [u8; 16],
}

impl Step {
    /// Returns the allocations of [`Self::Contents`], whose contents come apart from these steps; none if there is no such step.
    pub(super) fn contents(steps: &[Self]) -> Option<&[(u64, u64)]> {
        steps.iter().rev().find_map(|step| match step {
            Self::Contents(all) => Some(all.as_slice()),
            _ => None,
        })
    }

    /// Returns the allocation that only the driver uses and that the next command makes, if the step names one.
    pub(super) fn private(&self) -> Option<u64> {
        match self {
            Self::Exported { id, .. } | Self::Filled { id } => Some(*id),
            _ => None,
        }
    }

    /// Returns the allocation that a successor takes as it is, if the step names one.
    pub(super) fn handed_over(&self) -> Option<u64> {
        match self {
            Self::Exported { id, .. } => Some(*id),
            _ => None,
        }
    }

    /// Returns the number of bytes of contents that come apart from these steps; none if there are no contents.
    pub fn contents_bytes(steps: &[Self]) -> Option<u64> {
        let all = Self::contents(steps)?;
        Some(all.iter().fold(0, |sum: u64, (_, bytes)| sum.saturating_add(*bytes)))
    }
}

/// Bytes of commands in one step, roughly at most.
const COMMANDS_BYTES: usize = 1 << 20;

/// Adds commands behind the last step, or to it.
pub(super) fn push_commands(steps: &mut Vec<Step>, bytes: &[u8]) {
    match steps.last_mut() {
        Some(Step::Commands(commands)) if commands.len() < COMMANDS_BYTES => {
            commands.extend_from_slice(bytes)
        }
        _ => steps.push(Step::Commands(bytes.to_vec())),
    }
}
