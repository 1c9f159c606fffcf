//! `VkQueue`: submission under one lock, and fences of the guest's kernel that wait for what was submitted.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use super::batches::Group;
use super::held_queue::{HeldQueue, Submit, Turn};
use super::submission::{Driver, Few, Submission, Submissions};
use super::watch::{self, Watcher};
use crate::context::cancel::Cancel;
use crate::context::error::Fault;
use crate::context::journal::Journalled;
use crate::driver::markers::WAIT_SLICE_NS;
use crate::execution::context::Context;
use crate::gates::gate::Gate;
use crate::gates::lane::Lane;
use crate::kinds::fence::Fence;
use crate::logical::device::Device;
use crate::logical::submitted::{Number, Place};
use crate::logical::timeline::{Done, Look, Standing, Timeline};
use crate::objects::object::{Kind, State};
use crate::objects::table::Objects;
use crate::programs::stamps::Stamps;
use ash::vk::{self, Handle as _};
use crossbeam_channel::{Receiver, Sender, unbounded};
use parking_lot::Mutex;
use protocol::venus::generated as venus;
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use waiting::asks::Asks;
use waiting::look::Habit;
use waiting::tunables;

/// A queue of a guest's device.
pub struct Queue {
    /// The host's handle, used under the lock only (Vulkan 3.6: queues are externally synchronised).
    pub(super) handle: Arc<Mutex<vk::Queue>>,
    /// The queue's family.
    pub family: u32,
    /// The fence timeline that the queue is bound to.
    pub ring_idx: u8,
    /// The queue's device; weak because the device owns its queues.
    pub(super) device: Weak<Device>,
    pub(super) itself: Weak<Queue>,
    /// The object table, where the semaphores are looked up that the queue's submissions wait for.
    pub(super) objects: Weak<Objects>,
    /// The journal of the context, which counts what is pending.
    journal: Arc<Journalled>,
    waiter: Mutex<Option<Waiter>>,
    asks: Asks,
    /// The submissions of the queue that are not complete. They are never locked while the driver submits, which may take its time.
    pub(super) submissions: Mutex<Submissions>,
    pub(super) scheduled: Option<Scheduled>,
}

/// The state that a queue needs beside if a scheduler grants its submissions.
pub(super) struct Scheduled {
    pub gate: Arc<Gate>,
    /// The held queue, locked while submissions get their numbers, so that they are pending in that order.
    pub held: Mutex<HeldQueue>,
    pub stamps: OnceLock<Option<Stamps>>,
    pub ended: Mutex<Ended>,
    pub watcher: Mutex<Option<Watcher>>,
}

/// The times up to which the work of a queue is known, in nanoseconds of the monotonic clock.
#[derive(Debug, Default)]
pub(super) struct Ended {
    /// The time up to which it is charged.
    pub charged: u64,
    /// The end of the last submission, as it was measured or noticed.
    pub seen: u64,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").field("family", &self.family).finish_non_exhaustive()
    }
}

/// The thread that waits for fences of one queue in order.
#[derive(Debug)]
struct Waiter {
    fences: Sender<Pending>,
    thread: JoinHandle<()>,
}

struct Pending {
    last: Arc<Submission>,
    done: Done,
}

impl Queue {
    /// Wraps a queue the driver handed out.
    pub fn new(
        context: &Context,
        device: &Arc<Device>,
        handle: vk::Queue,
        family: u32,
        ring_idx: u8,
    ) -> Arc<Self> {
        let queue = Arc::new_cyclic(|itself| Self {
            handle: device.handle_of(handle),
            family,
            ring_idx,
            device: Arc::downgrade(device),
            itself: itself.clone(),
            objects: Arc::downgrade(&context.objects),
            journal: Arc::clone(&context.journal),
            waiter: Mutex::new(None),
            asks: Asks::default(),
            submissions: Mutex::new(Submissions::new(Instant::now())),
            scheduled: device.gate.as_ref().map(|gate| Scheduled {
                gate: Arc::clone(gate),
                held: Mutex::default(),
                stamps: OnceLock::new(),
                ended: Mutex::default(),
                watcher: Mutex::new(None),
            }),
        });
        if let Some(gate) = &device.gate {
            let lane: Weak<dyn Lane> = queue.itself.clone();
            gate.add(lane);
        }
        queue
    }

    /// Submits what a guest wants submitted, group by group, with `fence` behind the last. `mark` is told, for each group, the place under
    /// which its command buffers count as pending.
    pub fn submit(
        &self,
        context: &Context,
        groups: &[Group],
        fence: Option<&Arc<Fence>>,
        mark: impl Fn(&Group, Place) -> Result<(), Fault>,
        submit: &mut Submit<'_>,
    ) -> Result<i32, Fault> {
        let Some(device) = self.device.upgrade() else { return Err(device_gone()) };
        let handle = self.handle.lock();
        let begun = self.begin_all(context, &device, groups, fence, true, mark)?;
        let guests = fence.map_or(0, |fence| fence.raw.as_raw());
        let mut result = 0;
        for (at, (group, submission)) in groups.iter().zip(&begun).enumerate() {
            let fence = if at + 1 == groups.len() { guests } else { 0 };
            result = self.dispatch(&device, *handle, group, submission, fence, submit);
            if result < 0 {
                self.withdraw(&device, &begun[at..]);
                self.unpass(begun.len() - at - 1);
                return Ok(result);
            }
        }
        drop(handle);
        self.submitted_at_once();
        Ok(result)
    }

    /// Numbers a call's submissions, which get to the driver at once or wait, and makes them pending.
    pub(super) fn begin_all(
        &self,
        context: &Context,
        device: &Arc<Device>,
        groups: &[Group],
        fence: Option<&Arc<Fence>>,
        at_once: bool,
        mark: impl Fn(&Group, Place) -> Result<(), Fault>,
    ) -> Result<Few, Fault> {
        let state = fence.map(|fence| fence.lock_unused(device)).transpose()?;
        let mut begun = Few::new();
        // All of them before the first runs, so that a call is refused as a whole.
        let outcome = groups.iter().enumerate().try_for_each(|(at, group)| {
            let is_last = at + 1 == groups.len();
            let fence = fence.filter(|_| is_last);
            begun.push(self.begin(context, device, group, fence, at_once && is_last)?);
            Ok(())
        });
        let place = |submission: &Submission| Place { ring_idx: self.ring_idx, number: submission.number };
        let outcome = outcome.and_then(|()| {
            groups.iter().zip(&begun).try_for_each(|(group, submission)| {
                let place = place(submission);
                match group.uses.submit(place) {
                    true => mark(group, place),
                    false => Err(Fault::invalid("an object is submitted while it is destroyed")),
                }
            })
        });
        if let Err(fault) = outcome {
            self.withdraw(device, &begun);
            return Err(fault);
        }
        if let (Some(mut last), Some(submission)) = (state, begun.last()) {
            *last = Some(place(submission));
        }
        Ok(begun)
    }

    /// Gives one group to the driver, whose handle is locked, with the guest's fence or 0.
    pub(super) fn dispatch(
        &self,
        device: &Device,
        handle: vk::Queue,
        group: &Group,
        submission: &Submission,
        fence: u64,
        submit: &mut Submit<'_>,
    ) -> i32 {
        if submission.hides() {
            self.mark_last(device, handle);
        }
        let slot = self.note_dispatch(device, group, submission);
        let marker = submission.marker().unwrap_or_default();
        let mut result = submit(handle, &group.batches, if fence == 0 { marker } else { fence }, slot);
        if result >= 0 && fence != 0 && fence != marker {
            // The guest's fence took the only place.
            // SAFETY: queue and marker are live, the queue is locked.
            let marked = unsafe { device.ash.queue_submit(handle, &[], vk::Fence::from_raw(marker)) };
            // What runs unwatched must not go on.
            result = marked.map_or(vk::Result::ERROR_DEVICE_LOST.as_raw(), |()| result);
        }
        if result >= 0 {
            submission.taken();
            group.promise();
        }
        result
    }

    /// Withdraws submissions that the driver does not get.
    pub(super) fn withdraw(&self, device: &Device, begun: &[Arc<Submission>]) {
        for submission in begun {
            self.submissions.lock().withdraw(submission);
            self.settle(device, std::slice::from_ref(submission));
        }
    }

    /// Takes note of what is complete.
    pub(super) fn collect(&self, device: &Device, submissions: &mut Submissions) {
        let complete = submissions.collect(&device, Instant::now);
        if !complete.is_empty() {
            self.settle(device, &complete);
        }
    }

    /// Frees our markers of submissions that are not pending any more, unless a thread waits for them.
    fn settle(&self, device: &Device, submissions: &[Arc<Submission>]) {
        submissions.iter().for_each(|submission| self.account(device, submission));
        if device.markers.have_failed() {
            self.journal.fails();
        }
        self.journal.completed(submissions.len());
        let free =
            submissions.iter().filter(|submission| !submission.is_awaited() && submission.lent.is_none());
        device.markers.give(&device.ash, free.filter_map(|submission| submission.marker()));
    }

    /// Takes note of a submission before the driver gets it, because a driver may take its time.
    fn begin(
        &self,
        context: &Context,
        device: &Arc<Device>,
        group: &Group,
        fence: Option<&Arc<Fence>>,
        may_spare: bool,
    ) -> Result<Arc<Submission>, Fault> {
        let mut submissions = self.submissions.lock();
        self.collect(device, &mut submissions);
        let limit = context.env.limits.submissions;
        if submissions.len() >= limit {
            return Err(Fault::lost(format!("limit reached: submissions ({limit})")));
        }
        // The guest's fence is as good a marker as ours, and the driver takes only one.
        // One that is signalled, against valid usage, says nothing.
        let driver: &Device = device;
        let lends = |fence: &&Arc<Fence>| !driver.is_signalled(fence.raw.as_raw());
        let lent = fence.filter(lends).cloned();
        let is_asked_for = self.asks.submitted();
        let marker = match &lent {
            Some(fence) => Some(fence.raw.as_raw()),
            None if may_spare
                && fence.is_none()
                && !is_asked_for
                && self.spares_marker(&submissions, group) =>
            {
                None
            }
            None => Some(device.markers.take(&device.ash)?),
        };
        let submission = Submission::new(submissions.next(), marker, lent, group.waits());
        if group.may_be_held_up() && submissions.ends_unmarked() {
            submission.hide();
        }
        if self.is_traced() {
            submission.trace();
        }
        group.signal(submission.progress());
        self.journal.submits();
        submissions.begin(Arc::clone(&submission), Instant::now());
        drop(submissions);
        context.watchdog_wake.wake();
        Ok(submission)
    }

    /// Does what [`Self::fence`] does, for what the driver has.
    pub(super) fn fence_now(&self, done: Done) {
        self.asks.asked();
        let Some(device) = self.device.upgrade() else { return done() };
        let (last, number) = {
            let mut submissions = self.submissions.lock();
            // What is short is over by the time of the next question: no other thread has to wake up for it.
            self.collect(&device, &mut submissions);
            (submissions.await_last(), submissions.last())
        };
        let Some(last) = last else {
            done();
            return device.tell_end(Place { ring_idx: self.ring_idx, number });
        };
        self.mark_up_to(&device, Number::MAX);
        let mut waiter = self.waiter.lock();
        let waiter = waiter.get_or_insert_with(|| Waiter::start(device, self.itself.clone()));
        if let Err(refused) = waiter.fences.send(Pending { last, done }) {
            (refused.into_inner().done)();
        }
    }

    /// Notes that a submission that was waited for has ended; its marker is freed if no other thread waits for it.
    pub(super) fn ended(queue: &Weak<Self>, device: &Device, submission: &Submission) {
        let is_free = match queue.upgrade() {
            Some(queue) => {
                let mut submissions = queue.submissions.lock();
                queue.collect(device, &mut submissions);
                submission.has_ended()
            }
            None => submission.has_ended(),
        };
        if is_free {
            device.markers.give(&device.ash, submission.marker());
        }
    }
}

impl Timeline for Queue {
    fn has_completed(&self, device: &Device, number: Number) -> bool {
        let mut submissions = self.submissions.lock();
        self.collect(device, &mut submissions);
        if submissions.first().is_none_or(|first| first > number) {
            return true;
        }
        let is_unmarked = submissions.unmarked(number).is_some();
        drop(submissions);
        if is_unmarked {
            self.mark_up_to(device, number);
        }
        false
    }

    fn is_blocked(&self, device: &Device, number: Number) -> bool {
        let Some(objects) = self.objects.upgrade() else { return false };
        self.submissions.lock().is_blocked(&Host { device, objects: &objects }, number)
    }

    fn refresh(&self) {
        if let Some(device) = self.device.upgrade() {
            self.collect(&device, &mut self.submissions.lock());
        }
    }

    fn look(&self, now: Instant, restart: bool) -> Look {
        let (Some(device), Some(objects)) = (self.device.upgrade(), self.objects.upgrade()) else {
            return Look::default();
        };
        let mut submissions = self.submissions.lock();
        if restart {
            submissions.restart();
        }
        let begun = submissions.front().is_none_or(|first| self.has_begun(&device, first));
        let look = submissions.look(&Host { device: &device, objects: &objects }, now, begun);
        let first = submissions.first().filter(|first| submissions.unmarked(*first).is_some());
        drop(submissions);
        if let Some(first) = first {
            self.mark_up_to(&device, first);
        }
        look
    }

    fn standing(&self) -> Standing {
        let (Some(device), Some(objects)) = (self.device.upgrade(), self.objects.upgrade()) else {
            return Standing::Idle;
        };
        let holds = self.scheduled.as_ref().is_some_and(|scheduled| !scheduled.held.lock().is_empty());
        let mut submissions = self.submissions.lock();
        self.collect(&device, &mut submissions);
        let standing = match submissions.front() {
            None if holds => Standing::Going,
            None => Standing::Idle,
            Some(first) if first.can_run(&Host { device: &device, objects: &objects }) => Standing::Going,
            Some(_) => Standing::Waits,
        };
        drop(submissions);
        if standing != Standing::Idle {
            self.mark_up_to(&device, Number::MAX);
        }
        standing
    }

    fn passes_through(&self, gate: &Arc<Gate>) -> bool {
        self.scheduled.as_ref().is_some_and(|scheduled| Arc::ptr_eq(&scheduled.gate, gate))
    }

    fn fence(&self, done: Done) {
        if let Some(scheduled) = &self.scheduled {
            let mut held = scheduled.held.lock();
            if !held.is_empty() {
                return held.push(Turn::Fence(done));
            }
        }
        self.fence_now(done);
    }

    fn wait_idle(&self, cancel: &Cancel) -> Result<(), Fault> {
        let (done, idle) = crossbeam_channel::bounded(1);
        self.fence(Box::new(move || {
            let _ = done.send(());
        }));
        while idle.recv_timeout(Duration::from_nanos(WAIT_SLICE_NS)).is_err() {
            if let Some(stop) = cancel.stop() {
                return Err(stop.into());
            }
        }
        Ok(())
    }

    fn close(&self) {
        self.close_held();
        if let Some(Waiter { fences, thread }) = self.waiter.lock().take() {
            drop(fences);
            if thread.join().is_err() {
                log::error!("the thread that waits for a queue has panicked, which is a bug");
            }
        }
    }

    fn forget_submissions(&self, device: &Device) {
        let left = self.submissions.lock().clear();
        self.settle(device, &left);
        self.forget_stamps(device);
    }
}

impl State for Queue {}

impl Kind for venus::Queue {
    type State = Queue;
}

impl Waiter {
    fn start(device: Arc<Device>, queue: Weak<Queue>) -> Self {
        let (fences, pending) = unbounded::<Pending>();
        let thread = watch::start_thread("queue", move || wait_in_order(&device, &queue, &pending));
        Self { fences, thread }
    }
}

fn wait_in_order(device: &Device, queue: &Weak<Queue>, pending: &Receiver<Pending>) {
    let mut habit = Habit::new(tunables().look.queue_max, tunables().look);
    for Pending { last, done } in pending {
        if let Some(marker) = Queue::marker_of(queue, device, &last) {
            let is_over = || device.is_signalled(marker);
            habit.wait(is_over, |limit| match limit {
                Some(limit) => _ = device.markers.wait_for(&device.ash, marker, limit),
                None => device.markers.wait(&device.ash, marker),
            });
        }
        done();
        if let Some(queue) = queue.upgrade() {
            device.tell_end(Place { ring_idx: queue.ring_idx, number: last.number });
        }
        Queue::ended(queue, device, &last);
    }
}

/// The driver, asked how submissions stand.
pub(super) struct Host<'a> {
    pub device: &'a Device,
    pub objects: &'a Objects,
}

impl Driver for &Device {
    fn is_signalled(&self, marker: u64) -> bool {
        self.markers.is_signalled(&self.ash, marker)
    }

    fn has_reached(&self, _: venus::Semaphore, _: u64, _: u64) -> bool {
        // Semaphores are looked up by `Host`.
        false
    }
}

impl Driver for Host<'_> {
    fn is_signalled(&self, marker: u64) -> bool {
        self.device.is_signalled(marker)
    }

    fn has_reached(&self, semaphore: venus::Semaphore, raw: u64, value: u64) -> bool {
        // Locked until the driver has answered: another ring may be about to destroy the semaphore.
        let objects = self.objects.read();
        let lives = objects.get(semaphore).is_ok_and(|object| object.raw == raw);
        let Some(function) = self.device.table.get_semaphore_counter_value.filter(|_| lives) else {
            return true;
        };
        let mut reached = 0;
        // SAFETY: device and semaphore are live, and it is a timeline semaphore; the value has room.
        let result = unsafe { function(self.device.raw(), raw, &raw mut reached) };
        result < 0 || reached >= value
    }
}

pub(super) fn device_gone() -> Fault {
    Fault::lost("the queue's device is gone")
}
