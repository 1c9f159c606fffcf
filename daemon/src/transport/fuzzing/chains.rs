//! A hostile driver: descriptor chains of any shape in memory that changes, read and answered as the device does.

use super::watched::Watched;
use crate::transport::chain;
use crate::transport::pending::{PassedRequest, PendingResponse};
use crate::transport::regions::Regions;
use crate::transport::vring::Vring;
use arbitrary::Unstructured;
use protocol::virtio_gpu::{Command, CommandLimits, HEADER_BYTES, Header, Response};
use std::sync::Arc;
use virtio_bindings::virtio_ring::{VRING_DESC_F_INDIRECT, VRING_DESC_F_NEXT, VRING_DESC_F_WRITE};
use virtio_queue::desc::split::Descriptor;
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestMemoryAtomic};

const MEMORY: usize = 0x4000;
const SIZE: u16 = 16;
/// The places of the queue and of the tables; buffers that do not overlap come after them.
const TABLE: u64 = 0;
const AVAILABLE: u64 = 0x400;
const USED: u64 = 0x800;
const INDIRECT: u64 = 0xc00;
const BUFFERS: u64 = 0x1000;
/// Longest request.
const LIMIT: usize = 0x800;
const LIMITS: CommandLimits = CommandLimits { backing_entries: 16, submit_bytes: 256 };

/// Checks that no chain makes the device read a byte twice that it names once, read more than the limit, or write outside its writable parts.
pub fn fuzz_chains(bytes: &[u8]) -> usize {
    let mut bytes = Unstructured::new(bytes);
    let change = bytes.arbitrary().unwrap_or(0);
    let memory = Watched::new(MEMORY, change);
    let mut driver = Driver { memory: &memory, next_buffer: BUFFERS, tidy: true };
    driver.write(&mut bytes);
    take_all(&memory, driver.tidy)
}

/// The driver that writes the queue's values before it kicks.
struct Driver<'m> {
    memory: &'m Watched,
    next_buffer: u64,
    /// No two descriptors name the same memory.
    tidy: bool,
}

impl Driver<'_> {
    fn write(&mut self, bytes: &mut Unstructured<'_>) {
        let plain = self.memory.plain();
        let heads =
            if bytes.ratio(1, 4).unwrap_or(false) { bytes.int_in_range(0..=SIZE).unwrap_or(1) } else { 1 };
        for at in 0..2 * u64::from(SIZE) {
            let table = if at < u64::from(SIZE) { TABLE } else { INDIRECT };
            let place = table + 16 * (at % u64::from(SIZE));
            let Ok(descriptor) = self.descriptor(at as u16 % SIZE, table == INDIRECT, bytes) else { break };
            let _ = plain.write_obj(descriptor, GuestAddress(place));
        }
        for at in 0..u64::from(heads) {
            let head = bytes.arbitrary::<u8>().map_or(at as u16, u16::from) % (SIZE + 1);
            let _ = plain.write_obj(head.to_le(), GuestAddress(AVAILABLE + 4 + 2 * at));
        }
        // Chains that share descriptors share their memory.
        self.tidy &= heads <= 1;
        let _ = plain.write_obj(heads.to_le(), GuestAddress(AVAILABLE + 2));
    }

    fn descriptor(
        &mut self,
        at: u16,
        indirect: bool,
        bytes: &mut Unstructured<'_>,
    ) -> arbitrary::Result<Descriptor> {
        let shape: u8 = bytes.arbitrary()?;
        let mut flags = 0;
        let mut set = |bit: u8, flag: u32| flags |= if shape & bit == 0 { 0 } else { flag as u16 };
        set(1, VRING_DESC_F_NEXT);
        set(2, VRING_DESC_F_WRITE);
        // Most chains do not overlap: only then is reading a byte twice a fault of this crate.
        if bytes.ratio(1, if at == 0 && !indirect { 4 } else { 64 })? {
            set(4, VRING_DESC_F_INDIRECT);
            // Another chain may use a table in the same place.
            self.tidy &= !indirect && at == 0;
            let length = 16 * u32::from(bytes.arbitrary::<u8>()? % 20);
            return Ok(Descriptor::new(INDIRECT, length, flags, at + 1));
        }
        if bytes.ratio(1, 64)? {
            self.tidy = false;
            let next = u16::from(bytes.arbitrary::<u8>()?) % (SIZE + 2);
            return Ok(Descriptor::new(bytes.arbitrary()?, bytes.arbitrary()?, flags, next));
        }
        // The descriptor gets a separate buffer, with bytes for the device to read.
        let content = request(bytes)?;
        let length = content.len().max(usize::from(shape >> 2 & 7) * 8);
        let addr = self.next_buffer;
        self.next_buffer = (addr + length as u64).min(MEMORY as u64 - 0x1000);
        self.tidy &= addr + (length as u64) < self.next_buffer + 1;
        let _ = self.memory.plain().write_slice(&content, GuestAddress(addr));
        Ok(Descriptor::new(addr, length as u32, flags, at + 1))
    }
}

/// Returns bytes that are mostly the beginning of a request.
fn request(bytes: &mut Unstructured<'_>) -> arbitrary::Result<Vec<u8>> {
    let [command, flags, ctx_id, length]: [u8; 4] = bytes.arbitrary()?;
    let mut content = Vec::new();
    if flags & 0x80 == 0 {
        let command = 0x100 * (u32::from(command >> 6) + 1) + u32::from(command & 15);
        let head = [command, u32::from(flags & 3), 9, 0, u32::from(ctx_id & 3), u32::from(ctx_id >> 6)];
        content.extend(head.iter().flat_map(|word| word.to_le_bytes()));
    }
    let rest = usize::from(length & 63).min(bytes.len());
    content.extend_from_slice(bytes.bytes(rest)?);
    Ok(content)
}

/// The device's side: takes every request, decodes it, and answers it.
fn take_all(memory: &Watched, tidy: bool) -> usize {
    let Ok(mut queue) = Queue::new(SIZE) else { return 0 };
    queue.try_set_desc_table_address(GuestAddress(TABLE)).expect("aligned");
    queue.try_set_avail_ring_address(GuestAddress(AVAILABLE)).expect("aligned");
    queue.try_set_used_ring_address(GuestAddress(USED)).expect("aligned");
    queue.set_ready(true);
    // This function itself looks at the answers.
    let vring = unused_vring();
    let (mut taken, mut request) = (0, Vec::new());
    for _ in 0..2 * SIZE {
        memory.forget();
        let Ok(Some(chain)) = queue.iter(memory).map(|mut chains| chains.next()) else { break };
        let read = chain::read(memory, chain, LIMIT, &mut request);
        let pending = PendingResponse::new(&vring, 0, read);
        assert!(request.len() <= LIMIT, "a request of {} bytes", request.len());
        assert!(!tidy || memory.read_twice().is_none(), "byte {:?} is read twice", memory.read_twice());
        let header = pending.header();
        assert!(header.is_none() || request.len() >= HEADER_BYTES);
        let command = header.and_then(|header| Command::decode(&header, &request, &LIMITS).ok());
        // Other targets fuzz the command's content.
        let _ = command;
        taken += 1;
        answer(memory, pending);
    }
    taken
}

/// A queue without memory, which only counts the requests that are dropped without an answer.
pub(crate) fn unused_vring() -> Arc<Vring> {
    Arc::new(Vring::new(GuestMemoryAtomic::new(Regions::default())))
}

/// Makes a request of a control queue whose answer is due, written down for another process.
pub(crate) fn passed_request() -> PassedRequest {
    let vrings = [unused_vring(), unused_vring()];
    let header = Header::decode(&[0; HEADER_BYTES]).expect("a header of zeroes");
    let pending = pending(&vrings[0], header);
    let passed = pending.pass_on(&vrings).expect("the queue was not reset");
    // The request is another process's from here on.
    vrings[0].abandon();
    passed
}

/// Makes a request whose answer is due on such a queue.
pub(crate) fn pending(vring: &Arc<Vring>, header: Header) -> PendingResponse {
    PendingResponse::of(vring, header)
}

/// Checks that the answer is written where the chain allows it and nowhere else.
fn answer(memory: &Watched, pending: PendingResponse) {
    let before = contents(memory);
    let (segments, answer) = pending.into_answer(&Response::OkNodata);
    let written = chain::write(memory, &segments, &answer);
    assert!(written as usize <= answer.len());
    let allowed = |at: usize| segments.iter().any(|segment| segment.contains(at as u64));
    let changed = contents(memory).into_iter().zip(before).enumerate().filter(|(_, (now, then))| now != then);
    for (at, _) in changed {
        assert!(allowed(at), "byte {at:#x} was written");
    }
}

fn contents(memory: &Watched) -> Vec<u8> {
    let mut bytes = vec![0; MEMORY];
    memory.plain().read_slice(&mut bytes, GuestAddress(0)).expect("all of it is there");
    bytes
}
