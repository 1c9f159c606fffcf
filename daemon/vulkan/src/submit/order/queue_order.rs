//! The order in which submissions of one queue get to the driver, and how each goes from its beginning to its end.
//!
//! Submissions of the guest reach the driver only through [`QueueOrder::dispatch`], while the host's queue is locked; `deferred_markers` and
//! [`QueueOrder::signal_fence`] add empty ones.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use super::batches::{Group, Groups};
use super::deferred_markers;
use super::host::Host;
use super::meter::Meter;
use super::submission::{Awaited, Beginning, Ended};
use super::submissions::{Few, LockedSubmissions, Submissions, Watched};
use super::waits::Waits;
use crate::context::cause::Limit;
use crate::context::error::Fault;
use crate::context::journal::Journalled;
use crate::execution::context::Context;
use crate::gates::gate::Gate;
use crate::kinds::fence::Fence;
use crate::logical::device::{Device, HostQueue};
use crate::logical::submitted::{Number, Place};
use crate::logical::timeline::{Look, Standing};
use crate::objects::table::Objects;
use crate::programs::stamps::Slot;
use ash::vk::{self, Handle as _};
use shm::page_clock;
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Instant;
use waiting::asks::Asks;

/// A function that calls the driver with the host's queue, the batches of a group, a fence and stamps to put around them; it returns a
/// `VkResult`.
pub(crate) type Submit<'a> = dyn FnMut(vk::Queue, &Range<usize>, u64, Option<Slot>) -> i32 + 'a;

/// The order of one queue.
pub(crate) struct QueueOrder {
    /// The host's queue, which several queues of the guest may share.
    handle: Arc<HostQueue>,
    /// The fence timeline that the queue is bound to.
    ring_idx: u8,
    /// The queue's device; weak because the device owns its queues.
    device: Weak<Device>,
    /// The object table, in which the semaphores that the queue's submissions wait for are looked up.
    objects: Weak<Objects>,
    /// The journal of the context, which counts pending submissions.
    journal: Arc<Journalled>,
    asks: Asks,
    /// The submissions of the queue that have not ended. They are never locked while the driver submits, because the driver may take long.
    submissions: LockedSubmissions,
    /// The measuring of submissions, if they pass a gate.
    meter: Option<Meter>,
}

/// A call of a guest that submits.
pub(crate) struct Calling<'a, M> {
    /// The context of the call.
    pub context: &'a Context,
    /// The device of the queue.
    pub device: &'a Arc<Device>,
    /// The call's groups.
    pub groups: Groups,
    /// The guest's fence behind the last group.
    pub fence: Option<Arc<Fence>>,
    /// A function that is told, for each group, the place under which its command buffers count as pending.
    pub mark: M,
}

/// A submission that has begun.
#[derive(Clone, Debug)]
pub(crate) struct Begun {
    /// The submission's number.
    pub number: Number,
    /// The semaphores and submissions that it waits for before it runs.
    pub waits: Waits,
    /// True if the submissions before this one need a marker first: this one may take any time, and would delay the notice of their end.
    pub hides_end: bool,
}

/// A group that the driver is about to get.
pub(crate) struct Dispatch<'a> {
    /// The group.
    pub group: &'a Group,
    /// The group's submission.
    pub begun: &'a Begun,
    /// The time at which the group was found ready ([`super::submission::Dispatched::ready`]).
    pub ready: u64,
    /// The guest's fence behind the group, or 0.
    pub fence: u64,
}

impl QueueOrder {
    /// Begins for a queue that the driver has handed out, of a family and bound to a fence timeline.
    pub(crate) fn new(
        context: &Context,
        device: &Arc<Device>,
        handle: vk::Queue,
        family: u32,
        ring_idx: u8,
    ) -> Self {
        let meter = device.gate.as_ref().map(|gate| Meter::new(Arc::clone(gate), family, ring_idx));
        Self {
            handle: device.handle_of(handle),
            ring_idx,
            device: Arc::downgrade(device),
            objects: Arc::downgrade(&context.objects),
            journal: Arc::clone(&context.journal),
            asks: Asks::default(),
            submissions: LockedSubmissions::new(Submissions::new(Instant::now())),
            meter,
        }
    }

    /// Returns the device of the queue.
    ///
    /// # Errors
    ///
    /// The device is gone.
    pub(crate) fn device(&self) -> Result<Arc<Device>, Fault> {
        self.device.upgrade().ok_or_else(|| Fault::rule("a queue is used after its device was destroyed"))
    }

    /// Returns device and object table, if both still exist.
    pub(crate) fn live(&self) -> Option<(Arc<Device>, Arc<Objects>)> {
        self.device.upgrade().zip(self.objects.upgrade())
    }

    /// Returns the gate that submissions pass, if there is one.
    pub(crate) fn gate(&self) -> Option<&Arc<Gate>> {
        self.meter.as_ref().map(Meter::gate)
    }

    /// Returns the place of a submission.
    pub(crate) fn place(&self, number: Number) -> Place {
        Place { ring_idx: self.ring_idx, number }
    }

    /// Submits the groups of a call, one by one; returns the first result that is an error, or the last.
    ///
    /// # Errors
    ///
    /// The call is refused as a whole.
    pub(crate) fn submit(
        &self,
        call: &Calling<'_, impl Fn(&Group, Place) -> Result<(), Fault>>,
        submit: &mut Submit<'_>,
    ) -> Result<i32, Fault> {
        let handle = self.handle.lock();
        let begun_all = self.begin_all(call, true).inspect_err(|_| self.uncount(&call.groups))?;
        let guests = call.fence.as_ref().map_or(0, |fence| fence.raw.as_raw());
        let mut result = 0;
        for (at, (group, begun)) in call.groups.iter().zip(&begun_all).enumerate() {
            let behind = &call.groups[at + 1..];
            let fence = if behind.is_empty() { guests } else { 0 };
            let dispatch = Dispatch { group, begun, ready: 0, fence };
            result = self.dispatch(call.device, *handle, &dispatch, submit);
            if result < 0 {
                self.withdraw(call.device, &numbers(&begun_all[at..]));
                self.uncount(behind);
                break;
            }
        }
        Ok(result)
    }

    /// Begins the submissions of a call, which will wait at the gate.
    ///
    /// # Errors
    ///
    /// The call is refused as a whole.
    pub(crate) fn begin_held(
        &self,
        call: &Calling<'_, impl Fn(&Group, Place) -> Result<(), Fault>>,
    ) -> Result<Few<Begun>, Fault> {
        self.begin_all(call, false)
    }

    /// Gives one group that has waited at the gate to the driver. Returns the driver's answer; none if the device is destroyed.
    pub(crate) fn submit_held(
        &self,
        device: &Device,
        of: &Dispatch<'_>,
        submit: &mut Submit<'_>,
    ) -> Option<i32> {
        let handle = self.handle.lock();
        // No thread closes the queue from here on, because the host's queue is locked.
        let is_gone = self.submissions.lock().is_gone(of.begun.number);
        if is_gone {
            self.uncount(std::slice::from_ref(of.group));
            return None;
        }
        Some(self.dispatch(device, *handle, of, submit))
    }

    /// Has the driver signal a fence that no submission uses.
    ///
    /// # Errors
    ///
    /// The driver refuses.
    pub(crate) fn signal_fence(&self, device: &Device, fence: vk::Fence) -> Result<(), vk::Result> {
        let handle = self.handle.lock();
        // SAFETY: device, queue and fence are live, the queue is locked, and the fence is not signalled and in no submission.
        unsafe { device.ash.queue_submit(*handle, &[], fence) }
    }

    /// Withdraws submissions that do not reach the driver.
    pub(crate) fn withdraw(&self, device: &Device, numbers: &[Number]) {
        let mut submissions = self.submissions.lock();
        let ended = submissions.withdraw(numbers);
        self.settle(device, &ended);
    }

    /// Takes note of submissions that are complete.
    pub(crate) fn refresh(&self) {
        if let Some(device) = self.device.upgrade() {
            self.collect(&device, &mut self.submissions.lock());
        }
    }

    /// Returns whether no submission up to a number is pending. If some are, marks their end.
    pub(crate) fn has_completed(&self, device: &Device, number: Number) -> bool {
        let mut submissions = self.submissions.lock();
        self.collect(device, &mut submissions);
        if submissions.first().is_none_or(|first| first.number() > number) {
            return true;
        }
        let is_unmarked = submissions.unmarked(number).is_some();
        drop(submissions);
        if is_unmarked {
            self.mark_up_to(device, number);
        }
        false
    }

    /// Returns whether a submission up to a number still waits at the gate or for a semaphore, and so is certainly pending.
    pub(crate) fn is_blocked(&self, device: &Device, number: Number) -> bool {
        let Some(objects) = self.objects.upgrade() else { return false };
        self.submissions.lock().is_blocked(&Host { device, objects: &objects }, number)
    }

    /// Checks how long the first submission has run; with `restart`, the run time counts from 0 again.
    pub(crate) fn look(&self, now: Instant, restart: bool) -> Look {
        let Some((device, objects)) = self.live() else { return Look::default() };
        let mut submissions = self.submissions.lock();
        if restart {
            submissions.restart();
        }
        let dispatched = submissions.first().and_then(|first| first.dispatched());
        let begun = self.meter.as_ref().is_none_or(|meter| meter.has_begun(&device, dispatched));
        let look = submissions.look(&Host { device: &device, objects: &objects }, now, begun);
        let first = submissions.first().map(|first| first.number());
        let first = first.filter(|first| submissions.unmarked(*first).is_some());
        drop(submissions);
        if let Some(first) = first {
            self.mark_up_to(&device, first);
        }
        look
    }

    /// Returns whether submissions are pending, and whether they can go on. Marks the end of those that are pending.
    pub(crate) fn standing(&self) -> Standing {
        let Some((device, objects)) = self.live() else { return Standing::Idle };
        let mut submissions = self.submissions.lock();
        self.collect(&device, &mut submissions);
        let standing = match submissions.first() {
            None => return Standing::Idle,
            Some(first) if first.can_run(&Host { device: &device, objects: &objects }) => Standing::Going,
            Some(_) => Standing::Waits,
        };
        drop(submissions);
        self.mark_up_to(&device, Number::MAX);
        standing
    }

    /// Returns the last submission that the driver has, which the caller waits for from now on; if the driver has none, the number of the last
    /// submission that has ended.
    pub(crate) fn await_last(&self, device: &Device) -> Result<Awaited, Number> {
        self.asks.asked();
        let mut submissions = self.submissions.lock();
        // A short submission is over by the time of the next question: no other thread has to wake up for it.
        self.collect(device, &mut submissions);
        let last = submissions.await_last().ok_or_else(|| submissions.ended());
        drop(submissions);
        if last.is_ok() {
            self.mark_up_to(device, Number::MAX);
        }
        last
    }

    /// Returns a submission that the driver has, if no thread watches any: the caller waits for it from now on.
    pub(crate) fn watch(&self, which: Watched) -> Option<Awaited> {
        self.submissions.lock().watch(which)
    }

    /// Returns the marker that tells the end of a submission that the caller awaits; none if the submission has ended or cannot be marked.
    pub(crate) fn marker_of(&self, device: &Device, awaited: &Awaited) -> Option<u64> {
        let number = awaited.number;
        let is_unmarked = {
            let submissions = self.submissions.lock();
            !submissions.is_gone(number) && submissions.marker(number).is_none()
        };
        if is_unmarked {
            let handle = self.handle.lock();
            deferred_markers::mark(device, *handle, &self.submissions, number);
        }
        self.submissions.lock().marker(number)
    }

    /// Notes that the caller waits no more for a submission, whose marker is freed if the submission has ended and no other thread waits for it.
    /// Returns whether the submission has ended: it may not have if the driver is out of memory for a marker, or fails to wait.
    pub(crate) fn let_go(&self, device: &Device, awaited: Awaited) -> bool {
        let mut submissions = self.submissions.lock();
        self.collect(device, &mut submissions);
        let has_ended = submissions.is_gone(awaited.number);
        let free = submissions.let_go(awaited);
        drop(submissions);
        device.markers.give(&device.ash, free);
        has_ended
    }

    /// Forgets the submissions of a queue that is idle and whose device is about to be destroyed.
    pub(crate) fn forget(&self, device: &Device) {
        let mut submissions = self.submissions.lock();
        let left = submissions.close();
        self.settle(device, &left);
        drop(submissions);
        self.meter.iter().for_each(|meter| meter.destroy_stamps(device));
    }

    /// Numbers a call's submissions, which reach the driver at once or wait, and makes them pending.
    fn begin_all(
        &self,
        call: &Calling<'_, impl Fn(&Group, Place) -> Result<(), Fault>>,
        at_once: bool,
    ) -> Result<Few<Begun>, Fault> {
        let Calling { device, groups, fence, .. } = call;
        let state = fence.as_ref().map(|fence| fence.lock_unused(device)).transpose()?;
        let mut begun = Few::new();
        // All submissions begin before the first runs, so that a call is refused as a whole.
        let outcome = (0..groups.len()).try_for_each(|at| {
            begun.push(self.begin(call, at, at_once)?);
            Ok(())
        });
        let outcome = outcome.and_then(|()| {
            groups.iter().zip(&begun).try_for_each(|(group, begun)| {
                let place = self.place(begun.number);
                match group.uses.submit(place) {
                    true => (call.mark)(group, place),
                    false => Err(Fault::invalid("an object is submitted while it is destroyed")),
                }
            })
        });
        if let Err(fault) = outcome {
            self.withdraw(device, &numbers(&begun));
            return Err(fault);
        }
        if let (Some(mut last), Some(begun)) = (state, begun.last()) {
            *last = Some(self.place(begun.number));
        }
        Ok(begun)
    }

    /// Takes note of the submission of a call's group before the driver gets it, because a driver may take long.
    fn begin<M>(&self, call: &Calling<'_, M>, at: usize, at_once: bool) -> Result<Begun, Fault> {
        let Calling { context, device, groups, .. } = call;
        let (group, is_last) = (&groups[at], at + 1 == groups.len());
        let fence = call.fence.as_ref().filter(|_| is_last);
        let mut submissions = self.submissions.lock();
        if submissions.is_closed() {
            return Err(to_destroyed_device());
        }
        self.collect(device, &mut submissions);
        let limit = context.env.limits.submissions;
        if submissions.len() >= limit {
            return Err(Limit::Submissions(limit).into());
        }
        // The guest's fence is as good a marker as ours, and the driver takes only one fence.
        // A fence that is already signalled, against valid usage, tells nothing.
        let is_signalled = |fence: &Fence| device.markers.is_signalled(&device.ash, fence.raw.as_raw());
        let lent = fence.filter(|fence| !is_signalled(fence)).cloned();
        let is_asked_for = self.asks.submitted();
        let meter = self.meter.as_ref();
        let may_spare = at_once && is_last && fence.is_none() && !is_asked_for;
        let marker = match &lent {
            Some(fence) => Some(fence.raw.as_raw()),
            None if may_spare && deferred_markers::spares_marker(&submissions, group, meter) => None,
            None => Some(device.markers.take(&device.ash)?),
        };
        let hides_end = group.may_be_held_up() && submissions.ends_unmarked();
        let waits = group.waits();
        let is_traced = meter.is_some_and(|meter| meter.gate().is_traced());
        let beginning = Beginning {
            is_held: !at_once,
            marker,
            lent,
            waits: waits.clone(),
            progress: group.signal(),
            traced: is_traced.then(page_clock),
        };
        self.journal.submits();
        let number = submissions.begin(beginning, Instant::now());
        drop(submissions);
        context.watchdog_wake.wake();
        Ok(Begun { number, waits, hides_end })
    }

    /// Gives one group to the driver. `handle` is the host's queue, locked.
    fn dispatch(
        &self,
        device: &Device,
        handle: vk::Queue,
        of: &Dispatch<'_>,
        submit: &mut Submit<'_>,
    ) -> i32 {
        let Dispatch { group, begun, ready, fence } = *of;
        let number = begun.number;
        if begun.hides_end {
            deferred_markers::mark_up_to(device, handle, &self.submissions, Number::MAX);
        }
        let (dispatched, slot) = match &self.meter {
            Some(meter) => Some(meter.note_dispatch(device, group, ready)).unzip(),
            None => (None, None),
        };
        let marker = self.submissions.lock().grant(number, dispatched).unwrap_or_default();
        let taken = if fence == 0 { marker } else { fence };
        let mut result = submit(handle, &group.batches, taken, slot.flatten());
        if result >= 0 && fence != 0 && fence != marker {
            // The guest's fence took the only place for a fence.
            // SAFETY: queue and marker are live, the queue is locked.
            let marked = unsafe { device.ash.queue_submit(handle, &[], vk::Fence::from_raw(marker)) };
            // Work whose end has no marker must not go on.
            result = marked.map_or(vk::Result::ERROR_DEVICE_LOST.as_raw(), |()| result);
        }
        if result >= 0 {
            self.submissions.lock().enter_driver(number);
            group.promise();
        }
        result
    }

    /// Tells the gate that the driver does not get groups that have passed it.
    fn uncount(&self, groups: &[Group]) {
        let counted = Group::counted(groups);
        if let Some(meter) = self.meter.as_ref().filter(|_| counted > 0) {
            meter.uncount(counted);
        }
    }

    /// Settles the submissions that are complete.
    fn collect(&self, device: &Device, submissions: &mut Submissions) {
        let complete = submissions.collect(&device, Instant::now);
        if !complete.is_empty() {
            self.settle(device, &complete);
        }
    }

    /// Tells the gate and the journal of submissions that have ended, and frees their markers.
    fn settle(&self, device: &Device, ended: &[Ended]) {
        self.meter.iter().for_each(|meter| ended.iter().for_each(|one| meter.account(device, one)));
        if device.markers.have_failed() {
            self.journal.fails();
        }
        self.journal.completed(ended.len());
        device.markers.give(&device.ash, ended.iter().filter_map(|one| one.free));
    }

    /// Puts a marker behind all submissions up to a number that the driver has. The function only tries the lock of the host's queue, since the
    /// caller may hold other locks: if another thread submits just now, nothing happens, and the caller asks again later.
    fn mark_up_to(&self, device: &Device, number: Number) {
        if let Some(handle) = self.handle.try_lock() {
            deferred_markers::mark_up_to(device, *handle, &self.submissions, number);
        }
    }
}

/// Returns the fault of a submission to a queue that is closed.
pub(crate) fn to_destroyed_device() -> Fault {
    Fault::invalid("a submission to a queue whose device is destroyed")
}

fn numbers(begun: &[Begun]) -> Few<Number> {
    begun.iter().map(|one| one.number).collect()
}
