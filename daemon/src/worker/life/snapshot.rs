//! The part of a context that a worker writes down in addition to the memory files: the steps of its renderer, its rings and streams, its credit.
//!
//! The same version of the daemon writes and reads a snapshot, as the process that started the old worker also starts the successor. The version
//! number shows if that is not so.

#[cfg(any(test, feature = "fuzzing"))]
use crate::ipc::Fence;
use crate::ipc::{decode, decode_first, encode};
use crate::worker::at_rest::{AtRest, LEFT_MAX, Left, RingAtRest};
#[cfg(any(test, feature = "fuzzing"))]
use crate::worker::reply::ReplyPlace;
#[cfg(any(test, feature = "fuzzing"))]
use config::{DepositId, MemoryId};
use config::{MemoryName, PerHeap};
#[cfg(any(test, feature = "fuzzing"))]
use protocol::ids::{BlobId, FenceId, ResourceId, RingIdx};
use serde::de::{DeserializeOwned, Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;
use std::marker::PhantomData;
use vulkan::snapshot::NotMovable;
use vulkan::snapshot::step::{CacheData, Step};
use vulkan::{Cause, InheritedError};

/// The bytes of a snapshot, at most.
pub(super) const BYTES_MAX: usize = 512 << 20;
/// The files of a snapshot, at most.
pub(super) const FILES_MAX: usize = 65_536;
/// The steps of a snapshot, at most.
const STEPS_MAX: usize = 4 << 20;
/// The rings of a snapshot, at most; the bound on a context's rings is checked when they are made.
const RINGS_MAX: usize = 65_536;

/// The version of this format.
const VERSION: u32 = 10;

/// A worker at rest.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Snapshot {
    version: u32,
    /// The steps of the renderer.
    #[serde(deserialize_with = "at_most::<_, _, STEPS_MAX>")]
    pub steps: Vec<Step>,
    /// The memory behind the descriptors of the steps, in the order of their indices.
    #[serde(deserialize_with = "at_most::<_, _, FILES_MAX>")]
    pub memories: Vec<MemoryName>,
    /// The executor of the virtqueue's stream.
    pub virtqueue: AtRest,
    /// The rings.
    #[serde(deserialize_with = "at_most::<_, _, RINGS_MAX>")]
    pub rings: Vec<RingAtRest>,
    /// Bytes that the device process has granted for memory that only the driver uses.
    pub credit: PerHeap<u64>,
    /// The messages that the worker was sent and has not executed, the first of them perhaps in part.
    #[serde(deserialize_with = "at_most::<_, _, LEFT_MAX>")]
    pub left: Vec<Left>,
}

/// A list that a successor gets by itself, apart from a snapshot.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(bound(deserialize = "T: Deserialize<'de>"))]
pub(super) struct Parts<T> {
    version: u32,
    #[serde(deserialize_with = "at_most::<_, _, STEPS_MAX>")]
    parts: Vec<T>,
}

/// A part of the prelude, which a successor makes before the worker rests.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PreludePart {
    version: u32,
    /// The steps of the renderer. Their descriptors come in the order of their indices.
    #[serde(deserialize_with = "at_most::<_, _, STEPS_MAX>")]
    pub steps: Vec<Step>,
    /// Bytes that the device process has granted the worker for memory that only the driver uses: until it takes over, the successor may have no more.
    pub credit: PerHeap<u64>,
}

impl PreludePart {
    /// Returns the bytes of a part.
    ///
    /// # Errors
    ///
    /// There would be too many bytes.
    pub(super) fn encode(steps: Vec<Step>, credit: PerHeap<u64>) -> Result<Vec<u8>, SnapshotError> {
        let count = steps.len();
        encoded(&Self { version: VERSION, steps, credit }, count)
    }

    /// Returns the part of these bytes.
    ///
    /// # Errors
    ///
    /// The bytes are no part.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, SnapshotError> {
        decoded(bytes)
    }
}

/// The data of pipeline caches, as they are beside a journal.
pub(super) type CacheParts = Parts<CacheData>;

impl<T: Serialize + DeserializeOwned> Parts<T> {
    /// Returns the bytes of a list.
    ///
    /// # Errors
    ///
    /// There would be too many bytes.
    pub(super) fn encode(parts: Vec<T>) -> Result<Vec<u8>, SnapshotError> {
        let count = parts.len();
        encoded(&Self { version: VERSION, parts }, count)
    }

    /// Returns the list of these bytes.
    ///
    /// # Errors
    ///
    /// The bytes are no such list.
    pub(super) fn decode(bytes: &[u8]) -> Result<Vec<T>, SnapshotError> {
        decoded::<Self>(bytes).map(|list| list.parts)
    }
}

/// The reason why a context cannot be written down, or why bytes are no snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum SnapshotError {
    /// A part of the context has no encoding.
    #[error("the context cannot be written down")]
    Unwritable,
    /// A successor would not take so many bytes or steps.
    #[error("the context is too large to be written down")]
    TooLarge,
    /// The bytes are no snapshot.
    #[error("no snapshot")]
    NoSnapshot,
    /// The bytes are those of another version of this program.
    #[error("a snapshot of another version")]
    OtherVersion,
}

impl From<SnapshotError> for Cause {
    fn from(error: SnapshotError) -> Self {
        InheritedError::Unreadable(error.to_string()).into()
    }
}

impl From<SnapshotError> for NotMovable {
    fn from(error: SnapshotError) -> Self {
        Self::ever(error.to_string())
    }
}

/// Returns the bytes of a value that has so many steps.
fn encoded(what: &impl Serialize, steps: usize) -> Result<Vec<u8>, SnapshotError> {
    let bytes = encode(what).map_err(|_| SnapshotError::Unwritable)?;
    if bytes.len() > BYTES_MAX || steps > STEPS_MAX {
        return Err(SnapshotError::TooLarge);
    }
    Ok(bytes)
}

/// Decodes a value from these bytes, which begin with the version.
fn decoded<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, SnapshotError> {
    // The bytes behind the version may have another format.
    let (version, _): (u32, _) = decode_first(bytes).map_err(|_| SnapshotError::NoSnapshot)?;
    if version != VERSION {
        return Err(SnapshotError::OtherVersion);
    }
    decode(bytes).map_err(|_| SnapshotError::NoSnapshot)
}

impl Snapshot {
    /// Returns a snapshot of these parts.
    pub(super) fn new(
        steps: Vec<Step>,
        memories: Vec<MemoryName>,
        (virtqueue, rings): (AtRest, Vec<RingAtRest>),
        credit: PerHeap<u64>,
        left: Vec<Left>,
    ) -> Self {
        Self { version: VERSION, steps, memories, virtqueue, rings, credit, left }
    }

    /// Returns the bytes of the snapshot.
    ///
    /// # Errors
    ///
    /// There would be too many bytes.
    pub(super) fn encode(&self) -> Result<Vec<u8>, SnapshotError> {
        encoded(self, self.steps.len())
    }

    /// Returns the snapshot of these bytes.
    ///
    /// # Errors
    ///
    /// The bytes are no snapshot.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, SnapshotError> {
        decoded(bytes)
    }
}

/// The entry point for fuzzing: any bytes are decoded or refused, and a decoded value stays the same when it is encoded and decoded again.
#[cfg(any(test, feature = "fuzzing"))]
pub(in crate::worker) fn fuzz_decode(bytes: &[u8]) -> usize {
    if let Ok(part) = PreludePart::decode(bytes) {
        let again = PreludePart::encode(part.steps.clone(), part.credit).expect("it was not too large");
        assert_eq!(PreludePart::decode(&again).as_ref(), Ok(&part));
        return part.steps.len();
    }
    let Ok(snapshot) = Snapshot::decode(bytes) else { return 0 };
    let again = snapshot.encode().expect("it was not too large");
    assert_eq!(Snapshot::decode(&again).as_ref(), Ok(&snapshot));
    snapshot.steps.len() + snapshot.rings.len()
}

/// Snapshots for a fuzzer to begin with.
#[cfg(any(test, feature = "fuzzing"))]
pub(in crate::worker) fn seeds() -> Vec<Vec<u8>> {
    let reply = ReplyPlace { resource: Some(ResourceId(7)), offset: 100, size: 1 << 40, position: 3 };
    let executor = AtRest { reply: Some(reply), begun: Some(12) };
    let ring = RingAtRest { id: 8, created_by: vec![1, 2, 3], head: u32::MAX, virtqueue_seqno: 9, executor };
    let steps = vec![Step::Commands(vec![5; 100]), Step::Signalled { id: 6 }];
    let credit = PerHeap { device: 1 << 30, host: 5 };
    let fence = Some(Fence { ring_idx: RingIdx(1), fence_id: FenceId(1 << 50) });
    let left = vec![
        Left::Submission { bytes: vec![9; 8], fence },
        Left::Export { resource_id: ResourceId(3), blob_id: BlobId(4), size: 4096, mappable: true },
    ];
    let snapshots = [
        Snapshot::new(
            steps,
            vec![
                MemoryName::Piece(MemoryId(7)),
                MemoryName::Unnamed,
                MemoryName::Deposit(DepositId(1 << 40)),
            ],
            (AtRest::default(), vec![ring.clone(), ring]),
            credit,
            left,
        ),
        Snapshot::new(Vec::new(), Vec::new(), (executor, Vec::new()), PerHeap::default(), Vec::new()),
    ];
    snapshots.iter().filter_map(|snapshot| snapshot.encode().ok()).collect()
}

/// Reads a sequence of so many elements at most.
fn at_most<'de, D, T, const MOST: usize>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct AtMost<T, const MOST: usize>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>, const MOST: usize> Visitor<'de> for AtMost<T, MOST> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "at most {MOST} elements")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Vec<T>, A::Error> {
            let mut all = Vec::new();
            while let Some(element) = elements.next_element()? {
                if all.len() == MOST {
                    return Err(A::Error::custom("too many elements"));
                }
                all.push(element);
            }
            Ok(all)
        }
    }
    deserializer.deserialize_seq(AtMost::<T, MOST>(PhantomData))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_survives_encoding_and_every_other_byte_is_refused_or_another() {
        let bytes = seeds().remove(0);
        let snapshot = Snapshot::decode(&bytes).unwrap();
        assert_eq!((snapshot.steps.len(), snapshot.rings.len()), (2, 2));
        assert_eq!((snapshot.rings[1].head, snapshot.credit.device), (u32::MAX, 1 << 30));
        assert_eq!(fuzz_decode(&bytes), 4);
        for cut in 0..bytes.len() {
            assert!(Snapshot::decode(&bytes[..cut]).is_err(), "{cut} bytes");
        }
        assert!(Snapshot::decode(&[&bytes[..], &[0]].concat()).is_err());
        for at in 0..bytes.len() {
            for with in [0, 1, 0x7f, 0x80, 0xff] {
                let mut other = bytes.clone();
                other[at] = with;
                fuzz_decode(&other);
            }
        }
        let mut older = bytes;
        older[0] = VERSION as u8 - 1;
        assert_eq!(Snapshot::decode(&older), Err(SnapshotError::OtherVersion));
    }

    #[test]
    fn elements_are_counted_while_they_are_read() {
        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        struct Few(#[serde(deserialize_with = "at_most::<_, _, 3>")] Vec<u8>);
        for count in 0..5 {
            let few = Few(vec![7; count]);
            assert_eq!(decode::<Few>(&encode(&few).unwrap()).ok(), (count <= 3).then_some(few));
        }
        // A length without elements behind it reserves no memory.
        assert!(decode::<Few>(&[0xff, 0xff, 0xff, 0xff, 0x0f]).is_err());
    }
}
