//! This file holds the state that the device thread and the message thread of a session share.

use super::QUEUES;
use super::device_state::Transfers;
use super::error::SessionError;
use super::memory::Memory;
use super::regions::Regions;
use super::requests::Requests;
use super::vring::Vring;
use parking_lot::{Condvar, Mutex};
use readiness::{self, Events};
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use vm_memory::GuestMemoryAtomic;

/// The facts that the frontend is told about the device.
#[derive(Clone, Debug)]
pub(crate) struct DeviceConfig {
    /// The configuration space.
    pub space: Vec<u8>,
    /// Bytes of the host-visible region.
    pub window_size: u64,
    /// Device nodes (`st_rdev`) of lent memory: it is mapped in that region out of them, and can be gone at any moment.
    pub lent_devices: Vec<u64>,
}

/// Values that the device thread's epoll instance reports for this session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tokens {
    /// A queue was kicked.
    pub kick: u64,
    /// A queue was started or stopped, or the session has ended.
    pub doorbell: u64,
}

/// The relation of the message thread to the frontend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Listening {
    /// The thread listens, or rests as soon as it is between two messages.
    #[default]
    Listens,
    /// The thread rests between two messages.
    Rests,
    /// The thread is to end.
    Ends,
}

/// The state that the two threads share.
pub(super) struct Shared {
    pub memory: Memory,
    pub vrings: [Arc<Vring>; QUEUES],
    pub epoll: Arc<OwnedFd>,
    pub tokens: Tokens,
    pub config: DeviceConfig,
    /// The channel for requests to the frontend, once the frontend has sent the channel.
    pub requests: Mutex<Option<Arc<Requests>>>,
    /// The channel of a SET_BACKEND_REQ_FD message while that message is handled.
    pub arriving: Mutex<Option<OwnedFd>>,
    /// The frontend keeps mappings in its memory table, and drops them at a reset as the specification says.
    pub announces_maps: AtomicBool,
    /// Guest address and bytes of each region of guest memory that the frontend has announced.
    pub regions: Mutex<Vec<(u64, u64)>>,
    /// An event for each change of these regions.
    pub table_change: Arc<OwnedFd>,
    /// The frontend answers requests when they are done.
    pub acknowledges: AtomicBool,
    pub doorbell: OwnedFd,
    /// The frontend has sent a message.
    pub used: AtomicBool,
    /// An event while the message thread is to rest between two messages.
    pub halt: OwnedFd,
    pub listening: Mutex<Listening>,
    pub listening_changed: Condvar,
    /// The transfer of the device's state that the frontend wants.
    pub transfers: Transfers,
    pub ended: Mutex<Option<SessionError>>,
    pub is_over: AtomicBool,
}

impl Shared {
    /// Makes the state with two queues that were never started, and no memory. Events go to `epoll` under `tokens`.
    pub(super) fn new(
        config: DeviceConfig,
        epoll: Arc<OwnedFd>,
        tokens: Tokens,
    ) -> std::io::Result<Arc<Self>> {
        let doorbell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let halt = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let table_change = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        readiness::watch(&epoll, &doorbell, tokens.doorbell, Events::EPOLLIN)?;
        let memory: Memory = GuestMemoryAtomic::new(Regions::default());
        Ok(Arc::new(Self {
            vrings: std::array::from_fn(|_| Arc::new(Vring::new(memory.clone()))),
            memory,
            epoll,
            tokens,
            config,
            requests: Mutex::new(None),
            arriving: Mutex::new(None),
            announces_maps: AtomicBool::new(false),
            regions: Mutex::default(),
            table_change: Arc::new(table_change),
            acknowledges: AtomicBool::new(false),
            doorbell,
            used: AtomicBool::new(false),
            halt,
            listening: Mutex::default(),
            listening_changed: Condvar::new(),
            transfers: Transfers::default(),
            ended: Mutex::new(None),
            is_over: AtomicBool::new(false),
        }))
    }

    /// The session is over, for this reason.
    pub(super) fn end(&self, why: SessionError) {
        *self.ended.lock() = Some(why);
        self.is_over.store(true, Ordering::Relaxed);
        self.vrings.iter().for_each(|vring| vring.abandon());
        self.ring_doorbell();
    }

    /// Has the message thread rest as soon as it is between two messages.
    pub(super) fn halt(&self) -> std::io::Result<()> {
        rustix::io::write(&self.halt, &1u64.to_ne_bytes())?;
        Ok(())
    }

    /// The message thread rests until it is told otherwise, unless the halt was called off meanwhile. Returns whether it is to listen again.
    pub(super) fn rest(&self) -> bool {
        let mut listening = self.listening.lock();
        let is_halted = rustix::io::read(&self.halt, &mut [0; 8]).is_ok();
        if is_halted && *listening == Listening::Listens {
            *listening = Listening::Rests;
        }
        self.ring_doorbell();
        self.listening_changed.wait_while(&mut listening, |listening| *listening == Listening::Rests);
        *listening == Listening::Listens
    }

    /// Tells the message thread what to do from now on.
    pub(super) fn set_listening(&self, listening: Listening) {
        *self.listening.lock() = listening;
        self.listening_changed.notify_all();
    }

    /// Wakes the device thread.
    pub(super) fn ring_doorbell(&self) {
        // The counter never gets full: it is reset with every event.
        let _ = rustix::io::write(&self.doorbell, &1u64.to_ne_bytes());
    }

    /// The memory table has these regions now.
    pub(super) fn set_regions(&self, regions: Vec<(u64, u64)>) {
        *self.regions.lock() = regions;
        // A full counter is an event too.
        let _ = rustix::io::write(&self.table_change, &1u64.to_ne_bytes());
    }
}
