//! One virtqueue (VIRTIO 1.3, 2.7) and its life under vhost-user.
//!
//! The message thread starts, stops and configures the queue; the device thread takes requests and answers them. A stop is either
//! a pause, after which everything goes on, or a reset, after which no request that was taken before may be answered: each
//! reset starts a new *generation*. Answers that come due during a pause are held back until the queue runs again.

use super::chain::{self, Segment};
use super::memory::Memory;
use super::regions::Regions;
use config::most;
use parking_lot::Mutex;
use rustix::event::PollFlags;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io;
use std::num::Wrapping;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use virtio_queue::{DescriptorChain, Queue, QueueOwnedT, QueueT};
use vm_memory::{GuestAddress, GuestAddressSpace, GuestMemoryLoadGuard};
use waiting::calls::Calls;
use waiting::tunables;

/// The largest size of a queue; crosvm insists on this size.
pub(super) const QUEUE_SIZE_MAX: u16 = 32_768;

/// A virtqueue, shared by the two threads.
#[derive(Debug)]
pub(crate) struct Vring {
    memory: Memory,
    state: Mutex<State>,
    unanswered: AtomicU64,
}

#[derive(Debug)]
struct State {
    queue: Queue,
    /// The queue is between SET_VRING_KICK and GET_VRING_BASE.
    started: bool,
    /// The state that SET_VRING_ENABLE set.
    enabled: bool,
    /// The number of resets so far.
    generation: u32,
    /// The driver may put the descriptors of a chain into an indirect table, which takes one of the queue's descriptors (VIRTIO 1.3, 2.7.5.3).
    indirect: bool,
    /// Descriptors of the queue's table that open requests hold.
    held_descriptors: u32,
    /// The eventfd that signals used buffers to the driver.
    call: Option<File>,
    /// The answers that the driver is to be told of.
    calls: Calls,
    /// Answers that came due while the queue was stopped.
    held: Vec<Held>,
    /// The driver is signalled at the next start: the state was loaded, and answers may have been put into the queue without a signal before.
    reminds: bool,
}

/// The part of the queue that an open request holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chain {
    head: u16,
    /// Descriptors of the queue's table.
    descriptors: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Held {
    head: u16,
    segments: Vec<Segment>,
    answer: Vec<u8>,
    /// A thread of the guest may wait for the answer.
    awaited: bool,
}

/// An answer that came due while the queue was stopped, written down for a later start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct PassedAnswer(Held);

/// A queue, written down for another process: it owes answers only to requests that are passed on too.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct PassedVring {
    size: u16,
    /// Guest addresses of the descriptor table, the available ring and the used ring.
    places: [u64; 3],
    next_available: u16,
    next_used: u16,
    started: bool,
    enabled: bool,
}

/// The reason why no request could be taken.
#[derive(Debug)]
pub(crate) enum NoRequest {
    /// No request is available, or the queue does not run.
    Empty,
    /// The driver broke the queue's rules; nothing can be taken until it resets the device.
    Broken,
    /// The queue was reset: this is its generation from now on. Requests that were taken before are void.
    Reset(u32),
}

/// Guest memory as it was when the chain was taken.
type Snapshot = GuestMemoryLoadGuard<Regions>;

impl Chain {
    pub(super) fn head(self) -> u16 {
        self.head
    }

    pub(super) fn descriptors(self) -> u32 {
        self.descriptors
    }
}

impl Vring {
    /// Makes a queue that was never started.
    pub(crate) fn new(memory: Memory) -> Self {
        let queue = Queue::new(QUEUE_SIZE_MAX).expect("the largest size is a power of two");
        let state = State {
            queue,
            started: false,
            enabled: false,
            generation: 0,
            indirect: false,
            held_descriptors: 0,
            call: None,
            calls: Calls::new(tunables().calls),
            held: Vec::new(),
            reminds: false,
        };
        Self { memory, state: Mutex::new(state), unanswered: AtomicU64::new(0) }
    }

    /// Takes the next chain, and the guest memory of that moment. `generation` is the last one that the caller knows of.
    pub(super) fn next_chain(
        &self,
        generation: u32,
    ) -> Result<(DescriptorChain<Snapshot>, Snapshot), NoRequest> {
        let memory = self.memory.memory();
        let mut state = self.state.lock();
        if state.generation != generation {
            return Err(NoRequest::Reset(state.generation));
        }
        if !state.runs() {
            return Err(NoRequest::Empty);
        }
        let has_requests = state.has_requests(&memory);
        // A chain takes at least one descriptor of the table, and keeps it until it is answered (VIRTIO 1.3, 2.7.13): a driver that
        // has more open than the table holds has given one away twice.
        if has_requests && state.calls.open() >= u32::from(state.queue.size()) {
            return Err(NoRequest::Broken);
        }
        let next = state.queue.iter(memory.clone()).map_err(|_| NoRequest::Broken)?.next();
        match next {
            // A request is available, but cannot be read.
            None if has_requests => Err(NoRequest::Broken),
            None => Err(NoRequest::Empty),
            Some(chain) => {
                state.calls.taken();
                Ok((chain, memory))
            }
        }
    }

    /// Returns whether [`Self::pop`] would find a request. No kicks are needed while the device thread calls this again and again.
    pub(crate) fn has_requests(&self) -> bool {
        self.state.lock().has_requests(&self.memory.memory())
    }

    /// Asks the driver to kick again from now on. Returns true if requests have arrived in the meantime.
    pub(crate) fn arm(&self) -> bool {
        let mut state = self.state.lock();
        state.runs() && {
            let memory = self.memory.memory();
            let came = state.queue.enable_notification::<Regions>(&memory).unwrap_or(false);
            came && state.has_requests(&memory)
        }
    }

    /// Asks for no kick for the next request, but for one for the request after it. Returns true if there is a request already. A driver without
    /// `VIRTIO_F_EVENT_IDX` also kicks for the next request.
    pub(crate) fn arm_behind_next(&self) -> bool {
        let mut state = self.state.lock();
        state.runs() && {
            let (memory, next) = (self.memory.memory(), state.queue.next_avail());
            // The queue asks for a kick at its index of the next request.
            state.queue.set_next_avail(next.wrapping_add(1));
            let armed = state.queue.enable_notification::<Regions>(&memory);
            state.queue.set_next_avail(next);
            armed.is_ok() && state.has_requests(&memory)
        }
    }

    /// Notes the descriptors that a taken request holds.
    pub(super) fn holds(&self, head: u16, descriptors: u32) -> Chain {
        let mut state = self.state.lock();
        let descriptors = if state.indirect { 1 } else { descriptors };
        state.held_descriptors += descriptors;
        Chain { head, descriptors }
    }

    /// Returns whether open requests hold more of the queue than those of one context may. Then hardly any descriptor is left for requests that could
    /// end the context.
    pub(crate) fn is_crowded(&self) -> bool {
        let state = self.state.lock();
        u64::from(state.held_descriptors) > most(state.queue.size().into())
    }

    /// Returns whether requests were taken that are not answered yet.
    pub(crate) fn owes(&self) -> bool {
        self.state.lock().calls.are_open()
    }

    /// Returns a chain to the driver with `answer` in its writable segments, unless the chain is of another generation. A guest thread may wait for
    /// the answer if it is `awaited`.
    pub(super) fn complete(
        &self,
        generation: u32,
        chain: Chain,
        segments: Vec<Segment>,
        answer: Vec<u8>,
        awaited: bool,
    ) {
        let mut state = self.state.lock();
        if state.generation != generation {
            return;
        }
        state.calls.settled();
        state.held_descriptors = state.held_descriptors.saturating_sub(chain.descriptors);
        let answer = Held { head: chain.head, segments, answer, awaited };
        if state.started {
            self.put(&mut state, &answer);
        } else {
            state.held.push(answer);
        }
    }

    /// Returns when [`Self::signal`] is to be called at the latest, if the driver is to be told of answers.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let state = self.state.lock();
        state.calls.deadline().filter(|_| state.started && state.call.is_some())
    }

    /// Tells the driver about used buffers, if it wants to know and the time has come. Buffers used before a pause are signalled after it.
    pub(crate) fn signal(&self) {
        let mut state = self.state.lock();
        if !state.calls.is_due() || !state.started || state.call.is_none() {
            return;
        }
        state.calls.told();
        let memory = self.memory.memory();
        if state.queue.needs_notification::<Regions>(&memory).unwrap_or(true)
            && let Some(call) = state.call.as_ref()
        {
            ring(call);
        }
    }

    /// Puts the answers into the queue that were held back during a pause.
    pub(crate) fn release_held(&self) {
        let mut state = self.state.lock();
        if state.runs() {
            for answer in std::mem::take(&mut state.held) {
                self.put(&mut state, &answer);
            }
            if std::mem::take(&mut state.reminds) {
                state.call.iter().for_each(ring);
            }
        }
    }

    /// Returns how often the queue was reset, modulo 2^32.
    pub(crate) fn generation(&self) -> u32 {
        self.state.lock().generation
    }

    /// Returns the number of requests that the queue can hold at most.
    pub(crate) fn size_max(&self) -> usize {
        self.state.lock().queue.max_size().into()
    }

    /// Returns whether the queue is started.
    pub(crate) fn is_started(&self) -> bool {
        self.state.lock().started
    }

    /// Returns the number of requests of this queue that were dropped without an answer; any number but 0 is a bug of this program.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn unanswered(&self) -> u64 {
        self.unanswered.load(Ordering::Relaxed)
    }

    /// Counts a request that was dropped, and returns the count; none if the queue was reset after the request.
    pub(super) fn count_unanswered(&self, generation: u32) -> Option<u64> {
        let is_current = self.state.lock().generation == generation;
        is_current.then(|| self.unanswered.fetch_add(1, Ordering::Relaxed) + 1)
    }

    fn put(&self, state: &mut State, answer: &Held) {
        let memory = self.memory.memory();
        let written = chain::write(&*memory, &answer.segments, &answer.answer);
        // The ring's addresses were checked when the queue was started; a head out of range harms only the driver.
        if state.queue.add_used::<Regions>(&memory, answer.head, written).is_ok() {
            state.calls.put(answer.awaited);
        }
    }
}

/// The functions that pass a queue on to another process.
impl Vring {
    /// Writes the queue down and copies its call descriptor. `open` is the number of requests of this queue that are passed on. Returns none if the
    /// queue has other requests that were taken and not answered.
    pub(super) fn pass_on(&self, open: usize) -> io::Result<Option<(PassedVring, Option<OwnedFd>)>> {
        let state = self.state.lock();
        if state.calls.open() as usize != open || !state.held.is_empty() {
            return Ok(None);
        }
        let (queue, call) =
            (&state.queue, state.call.as_ref().map(|call| call.try_clone().map(OwnedFd::from)));
        let passed = PassedVring {
            size: queue.size(),
            places: [queue.desc_table(), queue.avail_ring(), queue.used_ring()],
            next_available: queue.next_avail(),
            next_used: queue.next_used(),
            started: state.started,
            enabled: state.enabled,
        };
        Ok(Some((passed, call.transpose()?)))
    }

    /// Goes on with the queue of another process. Returns whether that is possible.
    pub(super) fn resume(&self, passed: &PassedVring) -> bool {
        let mut state = self.state.lock();
        let [descriptors, available, used] = passed.places.map(GuestAddress);
        (state.started, state.enabled) = (passed.started, passed.enabled);
        let queue = &mut state.queue;
        queue.set_next_avail(passed.next_available);
        queue.set_next_used(passed.next_used);
        queue.set_ready(passed.started);
        queue.try_set_size(passed.size).is_ok()
            && queue.try_set_desc_table_address(descriptors).is_ok()
            && queue.try_set_avail_ring_address(available).is_ok()
            && queue.try_set_used_ring_address(used).is_ok()
    }

    /// Writes down the answers that came due while the queue was stopped, if the queue owes only those and `open` others.
    pub(crate) fn held_answers(&self, open: usize) -> Option<Vec<PassedAnswer>> {
        let state = self.state.lock();
        let is_complete = !state.started && state.calls.open() as usize == open;
        is_complete.then(|| state.held.iter().cloned().map(PassedAnswer).collect())
    }

    /// Gives the driver these answers as soon as the queue starts, and signals it then in any case.
    pub(crate) fn answers_later(&self, answers: Vec<PassedAnswer>) {
        let mut state = self.state.lock();
        state.held.extend(answers.into_iter().map(|PassedAnswer(held)| held));
        state.reminds = true;
    }

    /// Notes a request that another process has taken, with its descriptors in the queue's table. Returns the request's generation.
    pub(super) fn holds_again(&self, head: u16, descriptors: u32) -> (u32, Chain) {
        let mut state = self.state.lock();
        state.calls.taken();
        state.held_descriptors = state.held_descriptors.saturating_add(descriptors);
        (state.generation, Chain { head, descriptors })
    }

    /// Signals the driver, as another process may have put answers into the queue without a signal.
    pub(super) fn remind(&self) {
        let state = self.state.lock();
        state.call.iter().filter(|_| state.started).for_each(ring);
    }
}

/// The message thread's half.
impl Vring {
    pub(super) fn set_size(&self, size: u32) -> bool {
        let size = u16::try_from(size).ok();
        size.is_some_and(|size| self.state.lock().queue.try_set_size(size).is_ok())
    }

    /// Sets the guest-physical addresses and takes the used index over from the driver's memory.
    pub(super) fn set_addresses(&self, descriptors: u64, available: u64, used: u64) -> bool {
        let mut state = self.state.lock();
        let memory = self.memory.memory();
        let queue = &mut state.queue;
        let set = queue.try_set_desc_table_address(GuestAddress(descriptors)).is_ok()
            && queue.try_set_avail_ring_address(GuestAddress(available)).is_ok()
            && queue.try_set_used_ring_address(GuestAddress(used)).is_ok();
        match queue.used_idx::<Regions>(&memory, Ordering::Relaxed) {
            Ok(Wrapping(used)) if set => {
                queue.set_next_used(used);
                true
            }
            _ => false,
        }
    }

    /// SET_VRING_BASE: sets the index at which the queue goes on. A reset begins a generation.
    pub(super) fn set_base(&self, base: u16, reset: bool) {
        let mut state = self.state.lock();
        if reset {
            state.begin_generation();
        }
        state.queue.set_next_avail(base);
    }

    pub(super) fn set_event_idx(&self, enabled: bool) {
        self.state.lock().queue.set_event_idx(enabled);
    }

    pub(super) fn set_indirect(&self, enabled: bool) {
        self.state.lock().indirect = enabled;
    }

    pub(super) fn set_call(&self, call: Option<File>) {
        self.state.lock().call = call;
    }

    pub(super) fn set_enabled(&self, enabled: bool) {
        self.state.lock().enabled = enabled;
    }

    pub(super) fn start(&self) {
        let mut state = self.state.lock();
        state.started = true;
        state.queue.set_ready(true);
    }

    /// GET_VRING_BASE: stops the queue, and returns the index at which it stopped.
    pub(super) fn stop(&self) -> u16 {
        let mut state = self.state.lock();
        state.started = false;
        state.queue.set_ready(false);
        state.call = None;
        state.queue.next_avail()
    }

    /// The frontend is gone or starts over: no request taken so far may be answered.
    pub(super) fn abandon(&self) {
        let mut state = self.state.lock();
        state.begin_generation();
        state.started = false;
        state.enabled = false;
        state.call = None;
        state.queue.reset();
    }
}

impl State {
    fn runs(&self) -> bool {
        self.started && self.enabled
    }

    /// Returns whether requests wait. None does if the driver claims more than the queue holds, as nothing can then be taken from it.
    fn has_requests(&self, memory: &Regions) -> bool {
        let available = || self.queue.avail_idx(memory, Ordering::Acquire).ok();
        let waiting = |index: Wrapping<u16>| (index - Wrapping(self.queue.next_avail())).0;
        self.runs() && available().is_some_and(|index| (1..=self.queue.size()).contains(&waiting(index)))
    }

    fn begin_generation(&mut self) {
        self.generation = self.generation.wrapping_add(1);
        self.held.clear();
        self.reminds = false;
        self.held_descriptors = 0;
        self.calls = Calls::new(tunables().calls);
    }
}

/// Adds to an event's counter. A full counter was signalled before, and a write to it would wait for the frontend.
fn ring(call: &File) {
    if readiness::look(call, PollFlags::OUT).contains(PollFlags::OUT) {
        let _ = rustix::io::write(call, &1u64.to_ne_bytes());
    }
}
