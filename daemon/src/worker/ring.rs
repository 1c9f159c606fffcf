//! One ring: the words and bytes it shares with the guest, its thread's loop, and the waits between it and the virtqueue.
//!
//! A ring knows no commands: the loop hands bytes to a function that executes the first command in them. It follows
//! VK_MESA_venus_protocol's ring contract: tail and bytes belong to the driver, head to us, status to both by atomic
//! read-modify-write only.

use parking_lot::{Condvar, Mutex, MutexGuard};
use protocol::venus::generated::RingStatusFlagsMESA;
use protocol::venus::ring::{self, RingLayout};
use shm::{Activity, Mapping, OutOfBounds, Word};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use vulkan::{Cancel, ContextLost, Stop, StreamError};
use waiting::pace::Pace;
use waiting::{processors, spin, tunables};

/// The state that the thread of a ring shares with the virtqueue's executor and the monitor.
#[derive(Debug)]
pub(super) struct Ring {
    /// The driver's id of the ring.
    id: u64,
    layout: RingLayout,
    mapping: Arc<Mapping>,
    head: Word,
    tail: Word,
    status: Word,
    idle_timeout: Duration,
    /// The head as we know it; the guest could overwrite the shared one.
    consumed: AtomicU32,
    /// The tail up to which the ring's thread has copied.
    copied: AtomicU32,
    /// The number of threads that are about to wait until `consumed` moves.
    wanted: AtomicU32,
    /// The number of threads that sleep until `consumed` moves.
    head_waiters: AtomicU32,
    /// The monitor looks from time to time whether the ring has slept through a notification.
    is_looked_after: AtomicBool,
    /// The position of the virtqueue's stream.
    virtqueue_seqno: AtomicU64,
    cancel: Cancel,
    gate: Mutex<Gate>,
    /// Wakes the ring's thread: a notification, a virtqueue seqno, or the end.
    wake: Condvar,
    /// Wakes the threads that wait for `consumed`: it moved, or the ring ends.
    moved: Condvar,
    /// Wakes the threads that wait until the ring's thread rests.
    rested: Condvar,
    /// Hears when the ring goes idle, and when it wakes.
    activity: Option<Arc<Activity>>,
    /// The ring was reported idle. This stays true while the ring only rests and goes on.
    is_asleep: AtomicBool,
}

#[derive(Debug, Default)]
struct Gate {
    notified: bool,
    /// The ring's thread rests between two commands.
    rests: bool,
    /// The ring's thread waits until the virtqueue's stream has reached this seqno.
    awaited_seqno: Option<u64>,
    /// The virtqueue's stream waits until everything before this position is executed.
    awaited_head: Option<u32>,
}

/// The reason why a wait for a ring's head ended without success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeadWait {
    /// The ring is being destroyed, or its context ends.
    Cancelled,
    /// The virtqueue's executor is to rest.
    Interrupted,
    /// The driver has not written up to that position.
    Unreachable,
    /// The ring waits for the thread that waits for the ring.
    Circle,
}

/// The reason why a wait for the virtqueue's stream ended without success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VirtqueueWait {
    /// The ring ended or is to rest.
    Stopped(Stop),
    /// The virtqueue's stream itself waits for the ring.
    Circle,
}

/// Private memory that commands are copied into and executed from.
pub(super) trait CommandMemory {
    /// Returns room for so many bytes. Earlier commands in this memory are executed, or are copied again.
    fn room(&mut self, bytes: usize) -> &mut [u8];

    /// Hears that the ring has no command to execute for now.
    fn waits(&mut self) {}
}

impl CommandMemory for Vec<u8> {
    fn room(&mut self, bytes: usize) -> &mut [u8] {
        if self.len() < bytes {
            self.resize(bytes, 0);
        }
        &mut self[..bytes]
    }
}

impl Ring {
    /// Takes a validated layout in a resource; `idle_timeout` is the driver's request.
    pub(super) fn new(
        mapping: Arc<Mapping>,
        layout: RingLayout,
        idle_timeout: Duration,
    ) -> Result<Self, OutOfBounds> {
        Ok(Self {
            head: mapping.word(layout.head as u64)?,
            tail: mapping.word(layout.tail as u64)?,
            status: mapping.word(layout.status as u64)?,
            id: 0,
            idle_timeout,
            layout,
            mapping,
            consumed: AtomicU32::new(0),
            copied: AtomicU32::new(0),
            wanted: AtomicU32::new(0),
            head_waiters: AtomicU32::new(0),
            is_looked_after: AtomicBool::new(false),
            virtqueue_seqno: AtomicU64::new(0),
            cancel: Cancel::default(),
            gate: Mutex::default(),
            wake: Condvar::new(),
            moved: Condvar::new(),
            rested: Condvar::new(),
            activity: None,
            is_asleep: AtomicBool::new(false),
        })
    }

    /// Gives the ring the id that the driver has given it.
    #[must_use]
    pub(super) fn named(mut self, id: u64) -> Self {
        self.id = id;
        self
    }

    /// Returns the driver's id of the ring; 0 if it has none.
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Has the ring report when it goes idle, and when it wakes. It begins awake.
    #[must_use]
    pub(super) fn telling(mut self, activity: &Arc<Activity>) -> Self {
        activity.wakes();
        self.activity = Some(Arc::clone(activity));
        self
    }

    /// Makes a new ring one that has executed everything before `head`, with the virtqueue's stream at `virtqueue_seqno`, and that rests
    /// until [`Self::go_on`].
    #[must_use]
    pub(super) fn resting(self, head: u32, virtqueue_seqno: u64) -> Self {
        self.consumed.store(head, Ordering::SeqCst);
        self.copied.store(head, Ordering::SeqCst);
        self.virtqueue_seqno.store(virtqueue_seqno, Ordering::SeqCst);
        self.cancel.interrupt();
        self
    }

    /// Returns whether the ring lies in these pages.
    pub(super) fn lies_in(&self, pages: &Arc<Mapping>) -> bool {
        Arc::ptr_eq(&self.mapping, pages)
    }

    /// Returns the position before which everything is executed.
    pub(super) fn head(&self) -> u32 {
        self.consumed.load(Ordering::SeqCst)
    }

    /// Returns the position of the virtqueue's stream, as far as the ring was told.
    pub(super) fn virtqueue_seqno(&self) -> u64 {
        self.virtqueue_seqno.load(Ordering::SeqCst)
    }

    /// Returns whether head and status are 0 as they must be in a new ring.
    pub(super) fn is_fresh(&self) -> bool {
        self.head.load(Ordering::Acquire) == 0 && self.status.load(Ordering::Acquire) == 0
    }

    /// Returns the handle that ends waits inside the driver on [`Ring::end`].
    pub(super) fn cancel(&self) -> &Cancel {
        &self.cancel
    }

    /// Makes the ring's thread and the threads that wait for it stop as soon as they can.
    pub(super) fn end(&self) {
        let _gate = self.gate.lock();
        self.cancel.cancel();
        self.wake.notify_all();
        self.moved.notify_all();
        self.rested.notify_all();
    }

    /// Makes the ring's thread rest as soon as it can, between two commands. A command that waits is interrupted.
    pub(super) fn interrupt(&self) {
        let _gate = self.gate.lock();
        self.cancel.interrupt();
        self.wake.notify_all();
    }

    /// Takes back what [`Self::interrupt`] did.
    pub(super) fn go_on(&self) {
        let _gate = self.gate.lock();
        self.cancel.resume();
        self.wake.notify_all();
    }

    /// Waits until the ring's thread rests; false if it does not until `deadline`, or has ended.
    pub(super) fn wait_rested(&self, deadline: Instant) -> bool {
        let mut gate = self.gate.lock();
        while !gate.rests && self.cancel.is_interrupted() {
            if self.rested.wait_until(&mut gate, deadline).timed_out() {
                break;
            }
        }
        gate.rests && self.cancel.is_interrupted()
    }

    /// Lets the ring's thread rest between two calls of [`Self::serve`], until [`Self::go_on`] or the end. Returns whether it goes on; otherwise
    /// the ring has ended.
    pub(super) fn rest(&self) -> bool {
        let mut gate = self.gate.lock();
        gate.rests = true;
        self.rested.notify_all();
        while self.cancel.is_interrupted() {
            self.wake.wait(&mut gate);
        }
        gate.rests = false;
        drop(gate);
        if self.cancel.is_cancelled() {
            // The status may belong to a successor by now, which may have announced IDLE and sleeps until the driver notifies it.
            return false;
        }
        // A ring that rested for another process looks at the tail now.
        self.status.clear_bits(RingStatusFlagsMESA::IDLE.0, Ordering::SeqCst);
        true
    }

    /// Tells the driver that this ring will never go on.
    pub(super) fn set_fatal(&self) {
        self.status.set_bits(RingStatusFlagsMESA::FATAL.0, Ordering::SeqCst);
    }

    /// Tells the driver that this process is alive.
    pub(super) fn set_alive(&self) {
        self.status.set_bits(RingStatusFlagsMESA::ALIVE.0, Ordering::SeqCst);
    }

    /// Notes that [`Self::look_after`] is called every second or so from now on.
    pub(super) fn is_looked_after(&self) {
        self.is_looked_after.store(true, Ordering::Release);
    }

    /// Wakes the ring if it is idle although its tail has moved; never waits.
    pub(super) fn look_after(&self) {
        let is_idle = self.status.load(Ordering::SeqCst) & RingStatusFlagsMESA::IDLE.0 != 0;
        if is_idle && self.tail.load(Ordering::SeqCst) != self.consumed.load(Ordering::SeqCst) {
            self.wake.notify_one();
        }
    }

    /// `vkNotifyRingMESA`: the tail moved while the ring was idle. Latched, so it is never lost.
    pub(super) fn notify(&self) {
        self.gate.lock().notified = true;
        self.wake.notify_one();
    }

    /// `vkWriteRingExtraMESA`: stores a word into the extra region.
    pub(super) fn write_extra(&self, offset: u64, value: u32) -> Result<(), ContextLost> {
        let word = self.layout.extra_word(offset).and_then(|at| self.mapping.word(at as u64).ok());
        let word = word.ok_or(StreamError::Outside("write", "the extra region of a ring"))?;
        word.store(value, Ordering::Release);
        Ok(())
    }

    /// `vkSubmitVirtqueueSeqnoMESA`: the virtqueue's stream reached `seqno`.
    pub(super) fn publish_virtqueue_seqno(&self, seqno: u64) {
        self.virtqueue_seqno.fetch_max(seqno, Ordering::Release);
        // The lock waits for a thread that has looked in vain and is about to sleep.
        drop(self.gate.lock());
        self.wake.notify_one();
    }

    /// `vkWaitVirtqueueSeqnoMESA`: waits for [`Ring::publish_virtqueue_seqno`]. Returns an error if the ring ends or is to rest first, or if the
    /// virtqueue's stream waits for this command.
    pub(super) fn wait_virtqueue_seqno(&self, seqno: u64) -> Result<(), VirtqueueWait> {
        let has_come = || self.virtqueue_seqno.load(Ordering::Acquire) >= seqno;
        // The seqno is on its way: the driver sent it before it wrote this command. If processors are few, the thread that brings it needs one.
        if !processors::are_few() {
            spin::until(|| has_come() || self.cancel.is_stopped());
        }
        if has_come() {
            return Ok(());
        }
        let mut gate = self.gate.lock();
        gate.awaited_seqno = Some(seqno);
        let waited = loop {
            if has_come() {
                break Ok(());
            }
            if let Some(stop) = self.cancel.stop() {
                break Err(VirtqueueWait::Stopped(stop));
            }
            if self.waits_for_itself(&gate) {
                break Err(VirtqueueWait::Circle);
            }
            self.wake.wait(&mut gate);
        };
        gate.awaited_seqno = None;
        waited
    }

    /// Returns whether the ring's thread and the virtqueue's stream wait for each other: the ring's thread moves the head, the stream the seqno. A
    /// thread whose wait is over may not have woken yet, so the positions count.
    fn waits_for_itself(&self, gate: &Gate) -> bool {
        gate.awaited_seqno.is_some_and(|seqno| self.virtqueue_seqno() < seqno)
            && gate.awaited_head.is_some_and(|seqno| !self.has_reached(seqno))
    }

    /// Returns whether everything before `seqno` is executed.
    fn has_reached(&self, seqno: u32) -> bool {
        ring::has_reached(self.consumed.load(Ordering::SeqCst), seqno)
    }

    /// Does the first and short part of `vkWaitRingSeqnoMESA`: returns whether everything before `seqno` is executed, now or in a moment. Wakes the
    /// ring if it is idle.
    pub(super) fn poll_head(&self, seqno: u32) -> Result<bool, HeadWait> {
        if self.has_reached(seqno) {
            return Ok(true);
        }
        if !ring::has_reached(self.tail.load(Ordering::Acquire), seqno) {
            return Err(HeadWait::Unreachable);
        }
        self.wanted.fetch_add(1, Ordering::SeqCst);
        self.notify();
        let reached = spin::until(|| self.has_reached(seqno));
        self.wanted.fetch_sub(1, Ordering::SeqCst);
        Ok(reached)
    }

    /// Does the long part: sleeps until everything before `seqno` is executed, or until `waits` is interrupted; the thread that interrupts `waits`
    /// [wakes](Self::wake_head_waiters) this one.
    pub(super) fn wait_head(&self, seqno: u32, waits: &Cancel) -> Result<(), HeadWait> {
        let mut gate = self.gate.lock();
        gate.awaited_head = Some(seqno);
        self.head_waiters.fetch_add(1, Ordering::SeqCst);
        let waited = loop {
            if self.has_reached(seqno) {
                break Ok(());
            }
            if self.cancel.is_cancelled() {
                break Err(HeadWait::Cancelled);
            }
            if waits.is_interrupted() {
                break Err(HeadWait::Interrupted);
            }
            if self.waits_for_itself(&gate) {
                break Err(HeadWait::Circle);
            }
            self.moved.wait(&mut gate);
        };
        self.head_waiters.fetch_sub(1, Ordering::SeqCst);
        gate.awaited_head = None;
        waited
    }

    /// Has the threads that wait for the head check whether they may go on waiting.
    pub(super) fn wake_head_waiters(&self) {
        let _gate = self.gate.lock();
        self.moved.notify_all();
    }

    /// Returns whether the ring's thread is needed beyond the last command that it has copied: more commands have come, a thread waits for that
    /// command, or the ring ends or is to rest.
    pub(super) fn is_pressed(&self) -> bool {
        self.tail.load(Ordering::Acquire) != self.copied.load(Ordering::Relaxed)
            || self.wanted.load(Ordering::SeqCst) != 0
            || self.head_waiters.load(Ordering::SeqCst) != 0
            || self.cancel.is_stopped()
    }

    /// Runs the loop of the ring's thread; returns when the ring ends, is to rest ([`Self::rest`]), or has invalid bytes.
    ///
    /// Commands are copied into `memory`. `execute` gets everything that the driver has published, executes the first command in it or the first few,
    /// replies included, and returns their length. A command that it reports as interrupted is executed when the loop is called again.
    pub(super) fn serve<E>(&self, memory: &mut impl CommandMemory, mut execute: E) -> Result<(), ContextLost>
    where
        E: FnMut(&[u8]) -> Result<usize, ContextLost>,
    {
        let mut head = self.head();
        if !self.cancel.is_stopped() {
            // A predecessor that executed everything up to this head may have died before it could publish the head.
            self.head.store(head, Ordering::Release);
        }
        let mut pace = Pace::new(self.idle_timeout, tunables().pace);
        while let Some(tail) = self.wait_for_tail(head, &mut pace, memory) {
            let mut rest = self.copy_out(head, tail, memory)?;
            self.copied.store(tail, Ordering::Relaxed);
            while !rest.is_empty() && !self.cancel.is_stopped() {
                let length = match execute(rest) {
                    Err(lost) if lost.is_interruption() => return Ok(()),
                    executed => executed?,
                };
                rest = rest.get(length.max(1)..).ok_or_else(|| {
                    ContextLost::from(StreamError::Outside("end of a command", "what the ring holds"))
                })?;
                head = tail.wrapping_sub(rest.len() as u32);
                self.advance(head);
            }
        }
        Ok(())
    }

    /// Copies the bytes between `head` and `tail` into private memory, unwrapped.
    fn copy_out<'p>(
        &self,
        head: u32,
        tail: u32,
        memory: &'p mut impl CommandMemory,
    ) -> Result<&'p [u8], ContextLost> {
        let pending = self.layout.pending(head, tail)?;
        let (first, wrapped) = self.layout.copy_ranges(head, pending);
        // No more than the ring holds.
        let commands = memory.room(pending as usize);
        let (to_first, to_wrapped) = commands.split_at_mut(first.len());
        self.mapping
            .copy_out(first.start as u64, to_first)
            .and_then(|()| self.mapping.copy_out(wrapped.start as u64, to_wrapped))
            .map_err(|_| StreamError::Outside("ring", "its resource"))?;
        Ok(commands)
    }

    /// Publishes that everything before `head` is executed: to the driver, and to the threads that wait in this process.
    fn advance(&self, head: u32) {
        self.head.store(head, Ordering::Release);
        // Sequentially consistent with the waiter, which counts itself and then looks at `consumed` again.
        self.consumed.store(head, Ordering::SeqCst);
        if self.head_waiters.load(Ordering::SeqCst) != 0 {
            let _gate = self.gate.lock();
            self.moved.notify_all();
        }
    }

    /// Returns the next tail other than `head`; nothing if the ring ended or is to rest. It spins, then sleeps in growing steps, then goes idle.
    fn wait_for_tail(&self, head: u32, pace: &mut Pace, memory: &mut impl CommandMemory) -> Option<u32> {
        let has_work = || self.tail.load(Ordering::Acquire) != head || self.cancel.is_stopped();
        if !pace.spin(has_work) {
            let begin = Instant::now();
            let mut awake = begin;
            while !has_work() {
                let waited = awake.elapsed();
                if waited < pace.awake() {
                    memory.waits();
                    self.doze(pace.step(waited));
                    continue;
                }
                self.idle(head, memory);
                awake = Instant::now();
                if has_work() {
                    pace.was_notified(begin.elapsed());
                }
            }
        }
        if self.cancel.is_stopped() {
            return None;
        }
        self.tell_awake();
        Some(self.tail.load(Ordering::Acquire))
    }

    /// Reports that the ring goes idle, if it was awake.
    fn tell_asleep(&self) {
        if !self.is_asleep.swap(true, Ordering::Relaxed) {
            self.activity.iter().for_each(|activity| activity.sleeps());
        }
    }

    /// Reports that the ring has work, if it was idle.
    fn tell_awake(&self) {
        if self.is_asleep.load(Ordering::Relaxed) && self.is_asleep.swap(false, Ordering::Relaxed) {
            self.activity.iter().for_each(|activity| activity.wakes());
        }
    }

    /// Sleeps for `step` or until notified.
    fn doze(&self, step: Duration) {
        let mut gate = self.gate.lock();
        if !std::mem::take(&mut gate.notified) && !self.cancel.is_stopped() {
            self.wake.wait_for(&mut gate, step);
        }
    }

    /// Announces IDLE and sleeps until notified, until the tail has moved, or until the ring ends or is to rest.
    ///
    /// First drops an earlier notification: the tail that it stands for is visible by now, so the look at the tail after announcing IDLE does not
    /// miss it. A later notification is latched.
    fn idle(&self, head: u32, memory: &mut impl CommandMemory) {
        self.gate.lock().notified = false;
        self.status.set_bits(RingStatusFlagsMESA::IDLE.0, Ordering::SeqCst);
        self.tell_asleep();
        let mut slices = IDLE_SLICES.iter();
        let mut gate = self.gate.lock();
        while self.tail.load(Ordering::SeqCst) == head && !gate.notified && !self.cancel.is_stopped() {
            match slices.next() {
                Some(slice) => {
                    MutexGuard::unlocked(&mut gate, || memory.waits());
                    // A notification that came meanwhile has not woken this thread.
                    let has_come = || self.tail.load(Ordering::SeqCst) != head || self.cancel.is_stopped();
                    if !gate.notified && !has_come() {
                        self.wake.wait_for(&mut gate, *slice);
                    }
                }
                None if self.is_looked_after.load(Ordering::Acquire) => self.wake.wait(&mut gate),
                None => _ = self.wake.wait_for(&mut gate, IDLE_LAST),
            }
        }
        gate.notified = false;
        drop(gate);
        self.status.clear_bits(RingStatusFlagsMESA::IDLE.0, Ordering::SeqCst);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.tell_asleep();
    }
}

/// The times at which an idle ring looks at its tail without being notified. Drivers before Mesa 26.0 store the tail without a full
/// barrier before they look for IDLE, so just after IDLE was announced a notification can fail to come.
const IDLE_SLICES: [Duration; 3] =
    [Duration::from_millis(1), Duration::from_millis(10), Duration::from_millis(100)];
/// The time between later looks, if the monitor does not look after the ring.
const IDLE_LAST: Duration = Duration::from_secs(1);

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
