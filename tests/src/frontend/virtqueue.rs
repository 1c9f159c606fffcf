//! The driver's side of one split virtqueue (VIRTIO 1.3, 2.7): requests in, completions out.
//!
//! Knows nothing of virtio-gpu: a request is readable bytes and room for a response. With the indirect feature a request
//! takes one slot of the ring; a test can also put malformed chains there unchanged. Any thread may submit; one thread reaps.

use super::ram::GuestRam;
use anyhow::{Result, bail, ensure};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use virtio_bindings::virtio_ring::{VRING_DESC_F_INDIRECT, VRING_DESC_F_NEXT, VRING_DESC_F_WRITE};
use virtio_queue::desc::split::Descriptor;
use vm_memory::{Bytes, GuestAddress};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

/// A function that is called once with the response's bytes as far as the device wrote them, or with `None` when the session ended first. The thread
/// that reaps calls it, so it must not block.
pub type Completion = Box<dyn FnOnce(Option<Vec<u8>>) + Send>;

/// One request: bytes for the device to read, then room for its response.
pub struct Request<'a> {
    /// Pieces that the device reads one after another.
    pub readable: &'a [&'a [u8]],
    /// Bytes that the device may write; 0 leaves the writable descriptor out.
    pub response_len: u32,
    /// The function that gets the response.
    pub completion: Completion,
}

/// Ring features that change the driver's writes.
#[derive(Clone, Copy, Debug)]
pub struct RingFeatures {
    /// `VIRTIO_RING_F_INDIRECT_DESC`.
    pub indirect: bool,
    /// `VIRTIO_RING_F_EVENT_IDX`.
    pub event_idx: bool,
}

/// Guest physical addresses of the three parts of a ring.
#[derive(Clone, Copy, Debug)]
pub struct RingAddresses {
    /// Descriptor table.
    pub descriptors: u64,
    /// Available ring.
    pub avail: u64,
    /// Used ring.
    pub used: u64,
}

/// One virtqueue, driver side.
pub struct DriverQueue {
    ram: Arc<GuestRam>,
    size: u16,
    features: RingFeatures,
    addresses: RingAddresses,
    /// Written by the driver: new requests are available.
    pub kick: EventFd,
    /// Written by the device: requests were used.
    pub call: EventFd,
    ring: Mutex<Ring>,
    slot_freed: Condvar,
    requested: AtomicU64,
    kicked: AtomicU64,
    called: AtomicU64,
}

/// The traffic of a queue. In a virtual machine each signal is an exit of the guest or an interrupt to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Requests that the driver made available.
    pub requests: u64,
    /// Kicks that the driver sent.
    pub kicks: u64,
    /// Calls that woke the driver; two that came at once count as one.
    pub calls: u64,
}

struct Ring {
    next_avail: u16,
    last_used: u16,
    free: Vec<u16>,
    pending: Vec<Option<Pending>>,
    closed: bool,
}

struct Pending {
    /// All ring slots of the chain, its head first.
    slots: Vec<u16>,
    /// Guest memory to free.
    buffer: Option<(u64, u64)>,
    response: (u64, u32),
    completion: Completion,
}

const INDIRECT: u16 = VRING_DESC_F_INDIRECT as u16;
const NEXT: u16 = VRING_DESC_F_NEXT as u16;
const WRITE: u16 = VRING_DESC_F_WRITE as u16;

impl DriverQueue {
    /// An empty ring of `size` slots (a power of two up to 32768) in `ram`.
    pub fn new(ram: Arc<GuestRam>, size: u16, features: RingFeatures) -> Result<Self> {
        ensure!(size.is_power_of_two(), "ring sizes are powers of two");
        let entries = u64::from(size);
        let place = |len: u64| {
            ram.allocate(len).ok_or_else(|| anyhow::anyhow!("guest memory is too small for its rings"))
        };
        let addresses = RingAddresses {
            descriptors: place(16 * entries)?,
            avail: place(6 + 2 * entries)?,
            used: place(6 + 8 * entries)?,
        };
        let queue = Self {
            ram,
            size,
            features,
            addresses,
            kick: EventFd::new(EFD_CLOEXEC | EFD_NONBLOCK)?,
            call: EventFd::new(EFD_CLOEXEC | EFD_NONBLOCK)?,
            ring: Mutex::new(Ring::new(size)),
            slot_freed: Condvar::new(),
            requested: AtomicU64::new(0),
            kicked: AtomicU64::new(0),
            called: AtomicU64::new(0),
        };
        queue.clear()?;
        Ok(queue)
    }

    /// The same ring in a copy of its memory.
    ///
    /// # Errors
    /// Requests are open, whose completions cannot be copied, or the system refuses it.
    pub fn copy(&self, ram: &Arc<GuestRam>) -> Result<Self> {
        let ring = self.ring.lock();
        ensure!(ring.pending.iter().all(Option::is_none), "requests are open");
        let copy = Ring {
            next_avail: ring.next_avail,
            last_used: ring.last_used,
            free: ring.free.clone(),
            ..Ring::new(self.size)
        };
        Ok(Self {
            ram: Arc::clone(ram),
            size: self.size,
            features: self.features,
            addresses: self.addresses,
            kick: EventFd::new(EFD_CLOEXEC | EFD_NONBLOCK)?,
            call: EventFd::new(EFD_CLOEXEC | EFD_NONBLOCK)?,
            ring: Mutex::new(copy),
            slot_freed: Condvar::new(),
            requested: AtomicU64::new(0),
            kicked: AtomicU64::new(0),
            called: AtomicU64::new(0),
        })
    }

    /// Number of slots.
    pub fn size(&self) -> u16 {
        self.size
    }

    /// The addresses at which the ring lies.
    pub fn addresses(&self) -> RingAddresses {
        self.addresses
    }

    /// Requests that were submitted and not yet used.
    pub fn in_flight(&self) -> usize {
        self.ring.lock().pending.iter().flatten().count()
    }

    /// Puts requests on the ring and kicks once. Waits while the ring is full. After the session's end every
    /// completion is called with `None`.
    pub fn submit(&self, requests: Vec<Request<'_>>) -> Result<()> {
        let mut ring = self.ring.lock();
        let before = ring.next_avail;
        let mut unannounced = before;
        for request in requests {
            let needed = if self.features.indirect { 1 } else { 2 };
            while ring.free.len() < needed && !ring.closed {
                // The device must know of the requests on the ring already, or the wait would never end.
                self.announce(&mut ring, &mut unannounced)?;
                self.slot_freed.wait(&mut ring);
            }
            if ring.closed {
                (request.completion)(None);
                continue;
            }
            self.place(&mut ring, request)?;
        }
        self.announce(&mut ring, &mut unannounced)
    }

    /// Puts descriptors on the ring exactly as given (`next` counts within `chain`), in an indirect table or in the
    /// ring's own slots, and kicks. For malformed chains; the only promise is that the completion is called once.
    pub fn submit_raw(&self, chain: &[Descriptor], indirect: bool, completion: Completion) -> Result<()> {
        let mut ring = self.ring.lock();
        let slots = if indirect { 1 } else { chain.len() };
        ensure!(slots >= 1 && slots <= usize::from(self.size), "a chain has descriptors and fits the ring");
        while ring.free.len() < slots && !ring.closed {
            self.slot_freed.wait(&mut ring);
        }
        if ring.closed {
            completion(None);
            return Ok(());
        }
        let mut unannounced = ring.next_avail;
        let buffer = if indirect { Some(self.allocate(16 * chain.len() as u64)?) } else { None };
        let taken = self.write_chain(&mut ring, chain, buffer.map(|(table, _)| table))?;
        self.publish(&mut ring, Pending { slots: taken, buffer, response: (0, 0), completion })?;
        self.announce(&mut ring, &mut unannounced)
    }

    /// Requests and signals since the queue was made.
    pub fn traffic(&self) -> Traffic {
        let [requests, kicks, calls] =
            [&self.requested, &self.kicked, &self.called].map(|count| count.load(Ordering::Relaxed));
        Traffic { requests, kicks, calls }
    }

    /// Handles a call of the device: calls [`DriverQueue::reap`], and counts the call.
    pub fn answer_call(&self) -> Result<()> {
        self.called.fetch_add(1, Ordering::Relaxed);
        self.reap()
    }

    /// Calls the completions of all requests that the device has used.
    pub fn reap(&self) -> Result<()> {
        loop {
            let finished = self.collect()?;
            if finished.is_empty() {
                return Ok(());
            }
            for (completion, response) in finished {
                completion(Some(response));
            }
        }
    }

    /// The session is over: pending and later requests complete with `None`.
    pub fn close(&self) {
        let pending: Vec<Pending> = {
            let mut ring = self.ring.lock();
            ring.closed = true;
            ring.pending.iter_mut().filter_map(Option::take).collect()
        };
        self.slot_freed.notify_all();
        for pending in pending {
            (pending.completion)(None);
        }
    }

    /// Forgets everything, as a device reset does: the ring starts again at 0. Pending requests complete with `None`.
    pub fn reset(&self) -> Result<()> {
        let pending: Vec<Pending> = {
            let mut ring = self.ring.lock();
            let pending: Vec<Pending> = ring.pending.iter_mut().filter_map(Option::take).collect();
            *ring = Ring::new(self.size);
            self.clear()?;
            pending
        };
        for pending in pending {
            if let Some((address, len)) = pending.buffer {
                self.ram.release(address, len);
            }
            (pending.completion)(None);
        }
        self.slot_freed.notify_all();
        Ok(())
    }

    /// Returns whether the device owes no answer; used by tests that count.
    pub fn is_idle(&self) -> bool {
        self.in_flight() == 0
    }

    fn place(&self, ring: &mut Ring, request: Request<'_>) -> Result<()> {
        let request_len: usize = request.readable.iter().map(|piece| piece.len()).sum();
        let response_at = (32 + request_len as u64).next_multiple_of(16);
        let (buffer, len) = self.allocate(response_at + u64::from(request.response_len))?;
        let mut at = buffer + 32;
        for piece in request.readable {
            self.ram.memory().write_slice(piece, GuestAddress(at))?;
            at += piece.len() as u64;
        }
        let response = (buffer + response_at, request.response_len);
        let room = Descriptor::new(response.0, response.1, WRITE, 0);
        let readable = |flags| {
            Ok::<_, anyhow::Error>(Descriptor::new(buffer + 32, u32::try_from(request_len)?, flags, 1))
        };
        let chain = match (request_len, request.response_len) {
            (0, 0) => bail!("a request has at least one byte"),
            (0, _) => vec![room],
            (_, 0) => vec![readable(0)?],
            _ => vec![readable(NEXT)?, room],
        };
        let slots = self.write_chain(ring, &chain, self.features.indirect.then_some(buffer))?;
        self.publish(
            ring,
            Pending { slots, buffer: Some((buffer, len)), response, completion: request.completion },
        )
    }

    /// Writes a chain into the indirect table at `table`, or into slots of its own; returns the slots taken.
    fn write_chain(&self, ring: &mut Ring, chain: &[Descriptor], table: Option<u64>) -> Result<Vec<u16>> {
        let slots = ring.take(if table.is_some() { 1 } else { chain.len() });
        if let Some(table) = table {
            for (i, descriptor) in chain.iter().enumerate() {
                self.ram.memory().write_obj(*descriptor, GuestAddress(table + 16 * i as u64))?;
            }
            let len = u32::try_from(16 * chain.len())?;
            self.write_slot(slots[0], Descriptor::new(table, len, INDIRECT, 0))?;
        } else {
            for (descriptor, &slot) in chain.iter().zip(&slots) {
                let next = slots.get(usize::from(descriptor.next())).copied().unwrap_or(descriptor.next());
                let moved = Descriptor::new(descriptor.addr().0, descriptor.len(), descriptor.flags(), next);
                self.write_slot(slot, moved)?;
            }
        }
        Ok(slots)
    }

    fn allocate(&self, len: u64) -> Result<(u64, u64)> {
        match self.ram.allocate(len) {
            Some(address) => Ok((address, len)),
            None => bail!("guest memory is exhausted by requests of {len} bytes"),
        }
    }

    fn publish(&self, ring: &mut Ring, pending: Pending) -> Result<()> {
        let head = pending.slots[0];
        ring.pending[usize::from(head)] = Some(pending);
        let entry = self.addresses.avail + 4 + 2 * u64::from(ring.next_avail % self.size);
        self.ram.memory().store(head.to_le(), GuestAddress(entry), Ordering::Relaxed)?;
        ring.next_avail = ring.next_avail.wrapping_add(1);
        Ok(())
    }

    /// Makes all requests since `from` visible to the device, and kicks the device if it has asked for a kick.
    fn announce(&self, ring: &mut Ring, from: &mut u16) -> Result<()> {
        let (old, new) = (*from, ring.next_avail);
        if old == new {
            return Ok(());
        }
        *from = new;
        self.requested.fetch_add(new.wrapping_sub(old).into(), Ordering::Relaxed);
        let memory = self.ram.memory();
        memory.store(new.to_le(), GuestAddress(self.addresses.avail + 2), Ordering::Release)?;
        fence(Ordering::SeqCst);
        let wanted = if self.features.event_idx {
            let event: u16 = memory.load(GuestAddress(self.avail_event()), Ordering::Relaxed)?;
            // VIRTIO 1.3, 2.7.10: the index that the device waits for is one of the new indices.
            new.wrapping_sub(u16::from_le(event)).wrapping_sub(1) < new.wrapping_sub(old)
        } else {
            memory.load::<u16>(GuestAddress(self.addresses.used), Ordering::Relaxed)? == 0
        };
        if wanted {
            self.kicked.fetch_add(1, Ordering::Relaxed);
            self.kick.write(1)?;
        }
        Ok(())
    }

    fn collect(&self) -> Result<Vec<(Completion, Vec<u8>)>> {
        let memory = self.ram.memory();
        let mut finished = Vec::new();
        let mut ring = self.ring.lock();
        loop {
            let used = u16::from_le(memory.load(GuestAddress(self.addresses.used + 2), Ordering::Acquire)?);
            if used == ring.last_used {
                if !self.features.event_idx {
                    break;
                }
                memory.store(used.to_le(), GuestAddress(self.used_event()), Ordering::Relaxed)?;
                fence(Ordering::SeqCst);
                let again =
                    u16::from_le(memory.load(GuestAddress(self.addresses.used + 2), Ordering::Acquire)?);
                if again == used {
                    break;
                }
            }
            while ring.last_used != used {
                let entry = self.addresses.used + 4 + 8 * u64::from(ring.last_used % self.size);
                let head: u32 = memory.read_obj(GuestAddress(entry))?;
                let written: u32 = memory.read_obj(GuestAddress(entry + 4))?;
                ring.last_used = ring.last_used.wrapping_add(1);
                let head = usize::try_from(u32::from_le(head))?;
                let Some(pending) = ring.pending.get_mut(head).and_then(Option::take) else {
                    bail!("the device used descriptor {head}, which is not in flight");
                };
                let mut response = vec![0; u32::from_le(written).min(pending.response.1) as usize];
                if !response.is_empty() {
                    memory.read_slice(&mut response, GuestAddress(pending.response.0))?;
                }
                ring.free.extend_from_slice(&pending.slots);
                if let Some((address, len)) = pending.buffer {
                    self.ram.release(address, len);
                }
                finished.push((pending.completion, response));
            }
        }
        drop(ring);
        if !finished.is_empty() {
            self.slot_freed.notify_all();
        }
        Ok(finished)
    }

    fn clear(&self) -> Result<()> {
        let memory = self.ram.memory();
        memory.write_slice(&vec![0; 6 + 2 * usize::from(self.size)], GuestAddress(self.addresses.avail))?;
        memory.write_slice(&vec![0; 6 + 8 * usize::from(self.size)], GuestAddress(self.addresses.used))?;
        Ok(())
    }

    fn write_slot(&self, slot: u16, descriptor: Descriptor) -> Result<()> {
        let address = self.addresses.descriptors + 16 * u64::from(slot);
        Ok(self.ram.memory().write_obj(descriptor, GuestAddress(address))?)
    }

    fn used_event(&self) -> u64 {
        self.addresses.avail + 4 + 2 * u64::from(self.size)
    }

    fn avail_event(&self) -> u64 {
        self.addresses.used + 4 + 8 * u64::from(self.size)
    }
}

impl Ring {
    fn new(size: u16) -> Self {
        Self {
            next_avail: 0,
            last_used: 0,
            free: (0..size).rev().collect(),
            pending: (0..size).map(|_| None).collect(),
            closed: false,
        }
    }

    fn take(&mut self, slots: usize) -> Vec<u16> {
        let rest = self.free.len() - slots;
        let mut taken = self.free.split_off(rest);
        taken.reverse();
        taken
    }
}

#[cfg(test)]
mod tests;
