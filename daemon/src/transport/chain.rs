//! Descriptor chains (VIRTIO 1.3, 2.7.13.1): this file copies the readable part once, remembers the writable part, and writes an answer there.

use protocol::virtio_gpu::{HEADER_BYTES, Header, RESPONSE_BYTES_MAX};
use serde::{Deserialize, Serialize};
use std::ops::Deref;
use virtio_queue::DescriptorChain;
use vm_memory::{Bytes, GuestAddress, GuestMemory};

/// The rest of a chain after its request was copied.
#[derive(Debug)]
pub(super) struct Taken {
    /// The first descriptor, by which the chain is returned.
    pub head: u16,
    /// The number of descriptors, in the queue's table or in the chain's own table.
    pub descriptors: u32,
    /// The header of the request; `None` if the request was too short for a header.
    pub header: Option<Header>,
    /// The guest memory for the answer.
    pub segments: Vec<Segment>,
}

/// A writable piece of guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Segment {
    /// A guest-physical address.
    addr: u64,
    len: u32,
}

#[cfg(any(test, feature = "fuzzing"))]
impl Segment {
    /// Returns whether the byte at this address belongs to the segment.
    pub(super) fn contains(&self, addr: u64) -> bool {
        addr.checked_sub(self.addr).is_some_and(|offset| offset < u64::from(self.len))
    }
}

/// Copies the readable bytes of a chain, at most `limit`, and remembers where its answer goes. Memory that cannot be read ends the request there; the
/// request is then too short for its command.
pub(super) fn read<M>(
    memory: &M::Target,
    chain: DescriptorChain<M>,
    limit: usize,
    request: &mut Vec<u8>,
) -> Taken
where
    M: Deref<Target: GuestMemory>,
{
    request.clear();
    let head = chain.head_index();
    let (mut segments, mut descriptors) = (Vec::new(), 0);
    let mut room = 0;
    let mut readable = true;
    for descriptor in chain {
        descriptors += 1;
        if descriptor.is_write_only() {
            // The longest answer bounds the segments that are kept.
            if room < RESPONSE_BYTES_MAX && descriptor.len() > 0 {
                room = room.saturating_add(descriptor.len() as usize);
                segments.push(Segment { addr: descriptor.addr().0, len: descriptor.len() });
            }
        } else if readable {
            readable =
                append(memory, &Segment { addr: descriptor.addr().0, len: descriptor.len() }, limit, request);
        }
    }
    let header = if request.len() < HEADER_BYTES { None } else { Header::decode(request) };
    Taken { head, descriptors, header, segments }
}

/// Appends a segment's bytes. Returns false if the limit is reached or the memory does not exist.
fn append(
    memory: &(impl GuestMemory + ?Sized),
    segment: &Segment,
    limit: usize,
    request: &mut Vec<u8>,
) -> bool {
    let start = request.len();
    let len = (segment.len as usize).min(limit - start);
    request.resize(start + len, 0);
    let read = memory.read_slice(&mut request[start..], GuestAddress(segment.addr)).is_ok();
    if !read {
        request.truncate(start);
    }
    read && len == segment.len as usize
}

/// Writes an answer into the segments, as much of it as fits, and returns the bytes written.
pub(super) fn write(memory: &impl GuestMemory, segments: &[Segment], answer: &[u8]) -> u32 {
    let mut rest = answer;
    let mut written = 0;
    for segment in segments {
        let (part, after) = rest.split_at(rest.len().min(segment.len as usize));
        if memory.write_slice(part, GuestAddress(segment.addr)).is_err() {
            break;
        }
        written += part.len() as u32;
        rest = after;
    }
    written
}
