//! `VkQueue`: submission under one lock, and fences of the guest's kernel that wait for what was submitted.

use super::batches::{Batch, Group, Groups, groups};
use super::call::{Call, inconsistent};
use super::cancel::Cancel;
use super::command_buffer;
use super::device::Device;
use super::error::{ContextLost, Fault};
use super::gate::Gate;
use super::generated::sys;
use super::lane::Lane;
use super::line::{Line, Turn};
use super::loss;
use super::lower::{Lower, Lowering};
use super::objects::{Objects, State};
use super::pending::Fence;
use super::reading::{Reading, Recent};
use super::renderer::Renderer;
use super::stamps::{Slot, Stamps};
use super::submission::{Driver, Few, Look, Submission, Submissions};
use super::submitted::{Number, Place};
use super::unmarked::Asks;
use super::validity::semaphores;
use super::watch::Watcher;
use crate::spin::Habit;
use ash::vk::{self, Handle as _};
use crossbeam_channel::{Receiver, Sender, unbounded};
use parking_lot::Mutex;
use protocol::venus::generated as venus;
use std::ops::Range;
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longest single wait inside the driver, in nanoseconds; waits are made of such slices so that they can be cancelled.
pub const WAIT_SLICE_NS: u64 = 100_000_000;

/// Called once the queue has completed what was submitted before.
pub type Done = Box<dyn FnOnce() + Send>;

/// Calls the driver with the host's queue, the batches of a group, a fence and stamps to put around them; answers a `VkResult`.
pub type Submit<'a> = dyn FnMut(vk::Queue, &Range<usize>, u64, Option<Slot>) -> i32 + 'a;
/// The same, to be called later.
pub type HeldSubmit = Box<dyn FnMut(vk::Queue, &Range<usize>, u64, Option<Slot>) -> i32 + Send>;

/// A queue of a guest's device.
pub struct Queue {
    /// The host's handle, used under the lock only (Vulkan 3.6: queues are externally synchronised).
    pub(super) handle: Arc<Mutex<vk::Queue>>,
    /// Its family.
    pub family: u32,
    /// Fence timeline it is bound to.
    pub ring_idx: u8,
    /// Weak because the device owns its queues.
    pub(super) device: Weak<Device>,
    pub(super) itself: Weak<Queue>,
    waiter: Mutex<Option<Waiter>>,
    asks: Asks,
    /// What runs on it. Never locked while the driver submits, which may take its time.
    pub(super) submissions: Mutex<Submissions>,
    pub(super) scheduled: Option<Scheduled>,
}

/// What a queue needs beside if a scheduler grants its submissions.
pub(super) struct Scheduled {
    pub gate: Arc<Gate>,
    pub objects: Weak<Objects>,
    /// Locked while submissions get their numbers, so that they are pending in that order.
    pub line: Mutex<Line>,
    pub stamps: OnceLock<Option<Stamps>>,
    /// When the last stamped work ended, in nanoseconds of the monotonic clock.
    pub ended: Mutex<u64>,
    pub watcher: Mutex<Option<Watcher>>,
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
        renderer: &Renderer,
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
            waiter: Mutex::new(None),
            asks: Asks::default(),
            submissions: Mutex::new(Submissions::new(Instant::now())),
            scheduled: device.gate.as_ref().map(|gate| Scheduled {
                gate: Arc::clone(gate),
                objects: Arc::downgrade(&renderer.objects),
                line: Mutex::default(),
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

    /// Submits what a guest wants submitted, group by group, with `fence` behind the last. `mark` is told what the command buffers of each
    /// count as pending under.
    pub fn submit(
        &self,
        renderer: &Renderer,
        groups: &[Group],
        fence: Option<&Arc<Fence>>,
        mark: impl Fn(&Group, Place) -> Result<(), Fault>,
        submit: &mut Submit<'_>,
    ) -> Result<i32, Fault> {
        let Some(device) = self.device.upgrade() else { return Err(device_gone()) };
        let handle = self.handle.lock();
        let begun = self.begin_all(renderer, &device, groups, fence, true, mark)?;
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
        renderer: &Renderer,
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
            begun.push(self.begin(renderer, device, group, fence, at_once && is_last)?);
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

    /// The driver does not get these.
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

    /// Frees our markers of submissions that are not pending any more, unless somebody waits for them.
    fn settle(&self, device: &Device, submissions: &[Arc<Submission>]) {
        submissions.iter().for_each(|submission| self.account(device, submission));
        let free =
            submissions.iter().filter(|submission| !submission.is_awaited() && submission.lent.is_none());
        device.markers.give(&device.ash, free.filter_map(|submission| submission.marker()));
    }

    /// Whether no submission up to a number is pending.
    pub fn has_completed(&self, device: &Device, number: Number) -> bool {
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

    /// Whether a submission up to a number waits for what is not there, and is pending for sure.
    pub fn is_blocked(&self, device: &Device, objects: &Objects, number: Number) -> bool {
        self.submissions.lock().is_blocked(&Host { device, objects }, number)
    }

    /// Notes what is about to be submitted: before it is, because a driver may take its time.
    fn begin(
        &self,
        renderer: &Renderer,
        device: &Arc<Device>,
        group: &Group,
        fence: Option<&Arc<Fence>>,
        may_spare: bool,
    ) -> Result<Arc<Submission>, Fault> {
        let mut submissions = self.submissions.lock();
        self.collect(device, &mut submissions);
        let limit = renderer.limits.submissions;
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
        group.signal(submission.progress());
        submissions.begin(Arc::clone(&submission), Instant::now());
        drop(submissions);
        renderer.pulse.beat();
        Ok(submission)
    }

    /// Takes note of what is complete.
    pub fn refresh(&self) {
        if let Some(device) = self.device.upgrade() {
            self.collect(&device, &mut self.submissions.lock());
        }
    }

    /// How long its first submission has run; see [`Submissions::look`].
    pub fn look(&self, objects: &Objects, now: Instant, restart: bool) -> Look {
        let Some(device) = self.device.upgrade() else { return Look::default() };
        let mut submissions = self.submissions.lock();
        if restart {
            submissions.restart();
        }
        let begun = submissions.front().is_none_or(|first| self.has_begun(&device, first));
        let look = submissions.look(&Host { device: &device, objects }, now, begun);
        let first = submissions.first().filter(|first| submissions.unmarked(*first).is_some());
        drop(submissions);
        if let Some(first) = first {
            self.mark_up_to(&device, first);
        }
        look
    }

    /// Forgets its submissions; the queue is idle and its device is about to be destroyed.
    pub fn forget_submissions(&self, device: &Device) {
        let left = self.submissions.lock().clear();
        self.settle(device, &left);
        self.forget_stamps(device);
    }

    /// Calls `submit` with the host's handle, alone.
    pub fn with<T>(&self, submit: impl FnOnce(vk::Queue) -> T) -> T {
        submit(*self.handle.lock())
    }

    /// Calls `done` when everything submitted so far has completed, from the queue's waiter thread, in order; at once if the
    /// device is gone or lost.
    pub fn fence(&self, done: Done) {
        if let Some(scheduled) = &self.scheduled {
            let mut line = scheduled.line.lock();
            if !line.is_empty() {
                return line.push(Turn::Fence(done));
            }
        }
        self.fence_now(done);
    }

    /// As [`Self::fence`], for what the driver has.
    pub(super) fn fence_now(&self, done: Done) {
        self.asks.asked();
        let Some(device) = self.device.upgrade() else { return done() };
        let last = {
            let mut submissions = self.submissions.lock();
            // What is short is over by the time that anybody asks: no other thread has to wake up for it.
            self.collect(&device, &mut submissions);
            submissions.await_last()
        };
        let Some(last) = last else { return done() };
        self.mark_up_to(&device, Number::MAX);
        let mut waiter = self.waiter.lock();
        let waiter = waiter.get_or_insert_with(|| Waiter::start(device, self.itself.clone()));
        if let Err(refused) = waiter.fences.send(Pending { last, done }) {
            (refused.into_inner().done)();
        }
    }

    /// A submission that was waited for has ended; its marker is freed if nobody else waits for it.
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

    /// Waits until everything submitted so far has completed.
    pub fn wait_idle(&self, cancel: &Cancel) -> Result<(), Fault> {
        let (done, idle) = crossbeam_channel::bounded(1);
        self.fence(Box::new(move || {
            let _ = done.send(());
        }));
        while idle.recv_timeout(Duration::from_nanos(WAIT_SLICE_NS)).is_err() {
            if cancel.is_cancelled() {
                return Err(vk::Result::ERROR_DEVICE_LOST.into());
            }
        }
        Ok(())
    }

    /// Answers the fences that are pending, in order, and ends the waiter.
    pub fn close(&self) {
        self.close_line();
        if let Some(Waiter { fences, thread }) = self.waiter.lock().take() {
            drop(fences);
            if thread.join().is_err() {
                log::error!("a queue's waiter panicked");
            }
        }
    }
}

impl Waiter {
    fn start(device: Arc<Device>, queue: Weak<Queue>) -> Self {
        let (fences, pending) = unbounded::<Pending>();
        let thread = super::watch::start_thread("queue", move || wait_in_order(&device, &queue, &pending));
        Self { fences, thread }
    }
}

fn wait_in_order(device: &Device, queue: &Weak<Queue>, pending: &Receiver<Pending>) {
    let mut habit = Habit::new(LOOK_MAX);
    for Pending { last, done } in pending {
        if let Some(marker) = Queue::marker_of(queue, device, &last) {
            let is_over = || device.is_signalled(marker);
            habit.wait(is_over, |limit| match limit {
                Some(limit) => _ = device.markers.wait_for(&device.ash, marker, limit),
                None => device.markers.wait(&device.ash, marker),
            });
        }
        done();
        Queue::ended(queue, device, &last);
    }
}

/// Ends of submissions are looked for if they take no longer: between here and the program that waits are three more threads.
const LOOK_MAX: Duration = Duration::from_millis(3);

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

/// Result of a submission: a lost device ends the context, since the guest waits for no result.
fn submitted(result: i32) -> Result<venus::VkResult, Fault> {
    if result == vk::Result::ERROR_DEVICE_LOST.as_raw() {
        return Err(ContextLost::new("the device was lost").into());
    }
    Ok(venus::VkResult(result))
}

/// What of a submission reaches the driver.
enum Runnable<T> {
    /// All of it.
    Whole(T),
    /// What [`loss`] leaves of it.
    Partly,
}

/// Lowers a submission; if something in it was never made, or the device is lost already, the device is lost.
fn runnable<T>(call: &Call<'_>, whole: impl FnOnce() -> Result<T, Fault>) -> Result<Runnable<T>, Fault> {
    if call.renderer.is_lost() {
        return Ok(Runnable::Partly);
    }
    match whole() {
        Ok(submission) => Ok(Runnable::Whole(submission)),
        Err(Fault::Failed(result)) => call.renderer.lose_device(result).map(|()| Runnable::Partly),
        Err(lost) => Err(lost),
    }
}

/// The groups of a submission, its batches in C form and the guest's fence behind it.
pub(super) type Prepared<T> = (Groups, *const T, Option<Arc<Fence>>);

/// Marks the command buffers of a group before the driver is called, so that nothing of them is destroyed or reset meanwhile.
pub(super) fn mark(call: &Call<'_>, group: &Group, place: Place) -> Result<(), Fault> {
    group.command_buffers.iter().try_for_each(|id| command_buffer::submit(call, *id, place))
}

/// Puts the guest's fence behind the last group.
fn behind(l: &Lowering<'_>, groups: &mut Groups, fence: venus::Fence) -> Result<Option<Arc<Fence>>, Fault> {
    l.handle(fence)?;
    if fence.0 == 0 {
        return Ok(None);
    }
    let object = l.objects.get(fence)?;
    let State::Fence(fence) = &object.state else { return Err(inconsistent()) };
    if groups.is_empty() {
        groups.push(Group::of_fence());
    }
    groups.iter().last().inspect(|last| last.uses.add(&object.usage));
    Ok(Some(fence.clone()))
}

/// Prepares a submission; `lost` makes the part of it that can run if not all can.
fn prepared<'a, B: Batch + Lower<Sys: 'a>>(
    call: &Call<'a>,
    batches: &[B],
    fence: venus::Fence,
    check: impl FnOnce(&Reading<'_>) -> Result<(), Fault>,
    lost: impl FnOnce() -> Result<&'a mut [B::Sys], Fault>,
) -> Result<Prepared<B::Sys>, Fault> {
    let command_buffers = || batches.iter().flat_map(Batch::command_buffers);
    let whole = || {
        let mut is_heard = false;
        for id in command_buffers() {
            is_heard |= command_buffer::refuse_spoilt(call, id)?;
        }
        let objects = call.renderer.objects.read();
        let objects = Recent::of(&objects);
        let l = call.looking_up(&objects);
        check(&l.objects)?;
        let mut groups = groups(&l.objects, batches)?;
        groups.iter_mut().for_each(|group| group.is_heard = is_heard);
        let submits = l.array(Some(batches))?;
        let fence = behind(&l, &mut groups, fence)?;
        Ok((groups, submits, fence))
    };
    match runnable(call, whole)? {
        Runnable::Whole(submission) => Ok(submission),
        Runnable::Partly => {
            let submits = lost()?;
            let runs = |id: &_| matches!(command_buffer::runs(call, *id), Ok(Some((_, None))));
            let mut groups = Group::of_lost(submits.len(), command_buffers().filter(runs));
            let l = call.lowering();
            let is_there = !matches!(l.handle(fence), Err(Fault::Failed(_)));
            let fence = if is_there { fence } else { venus::Fence(0) };
            let fence = behind(&l, &mut groups, fence)?;
            Ok((groups, submits.as_ptr(), fence))
        }
    }
}

/// `vkQueueSubmit`.
pub fn queue_submit<'a>(
    call: &Call<'a>,
    c: &venus::QueueSubmit<'a>,
) -> Result<venus::QueueSubmitReply, Fault> {
    let queue = call.queue(c.queue)?;
    let Some(device) = queue.device.upgrade() else { return Err(device_gone()) };
    let Some(function) = device.table.queue_submit else { return Err(Fault::missing("vkQueueSubmit")) };
    let result = queue.pass_or_hold::<venus::QueueSubmit<'static>, _>(
        call,
        c,
        &prepare_submit,
        move |raw: vk::Queue, batches: &[sys::SubmitInfo], fence| {
            // SAFETY: all handles are live, the batches and what they name as well, the queue is locked.
            unsafe { function(raw.as_raw(), batches.len() as u32, batches.as_ptr(), fence) }
        },
    )?;
    Ok(venus::QueueSubmitReply { result: submitted(result)? })
}

fn prepare_submit<'a>(
    call: &Call<'a>,
    queue: &Queue,
    device: &Device,
    c: &venus::QueueSubmit<'a>,
) -> Result<Prepared<sys::SubmitInfo>, Fault> {
    let batches = semaphores::applying(call.arena, c.p_submits.unwrap_or(&[]))?;
    let check =
        |objects: &Reading<'_>| batches.iter().try_for_each(|batch| semaphores::check_submit(objects, batch));
    let lost = || loss::submits(call, device, queue, batches);
    prepared(call, batches, c.fence, check, lost)
}

/// `vkQueueSubmit2`.
pub fn queue_submit2<'a>(
    call: &Call<'a>,
    c: &venus::QueueSubmit2<'a>,
) -> Result<venus::QueueSubmit2Reply, Fault> {
    let queue = call.queue(c.queue)?;
    let Some(device) = queue.device.upgrade() else { return Err(device_gone()) };
    let Some(function) = device.table.queue_submit2 else { return Err(Fault::missing("vkQueueSubmit2")) };
    let result = queue.pass_or_hold::<venus::QueueSubmit2<'static>, _>(
        call,
        c,
        &prepare_submit2,
        move |raw: vk::Queue, batches: &[sys::SubmitInfo2], fence| {
            // SAFETY: all handles are live, the batches and what they name as well, the queue is locked.
            unsafe { function(raw.as_raw(), batches.len() as u32, batches.as_ptr(), fence) }
        },
    )?;
    Ok(venus::QueueSubmit2Reply { result: submitted(result)? })
}

fn prepare_submit2<'a>(
    call: &Call<'a>,
    queue: &Queue,
    device: &Device,
    c: &venus::QueueSubmit2<'a>,
) -> Result<Prepared<sys::SubmitInfo2>, Fault> {
    let batches = c.p_submits.unwrap_or(&[]);
    let lost = || loss::submits2(call, device, queue, batches);
    prepared(call, batches, c.fence, |_| Ok(()), lost)
}

/// `vkQueueWaitIdle`. Mesa never sends it.
pub fn queue_wait_idle(
    call: &Call<'_>,
    c: &venus::QueueWaitIdle,
) -> Result<venus::QueueWaitIdleReply, Fault> {
    call.queue(c.queue)?.wait_idle(call.cancel)?;
    Ok(venus::QueueWaitIdleReply { result: venus::VkResult::SUCCESS })
}
