//! The passage of a queue's submissions through the gate, at once or in their turn, and the report of what they cost.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use super::batches::{Group, Groups};
use super::held_queue::{Held, HeldSubmit, Turn};
use super::prepare::{Prepared, mark};
use super::queue::{Host, Queue, device_gone};
use super::submission::{Dispatched, Submission, Watched};
use super::watch::Watcher;
use crate::context::error::{ContextLost, Fault};
use crate::execution::call::Call;
use crate::gates::gate::Gate;
use crate::gates::lane::{Lane, Standing, Step};
use crate::kinds::fence::Fence;
use crate::logical::device::Device;
use crate::logical::submitted::Place;
use crate::logical::timeline::Timeline as _;
use crate::programs::stamps::{Slot, Stampable, Stamped, Stamps};
use ash::vk::{self, Handle as _};
use protocol::cursor::{Arena, Limits, Reader};
use protocol::venus::generated as venus;
use protocol::venus::stream::Header;
use shm::{Stages, SubmissionId, TraceNote, Work, page_clock};
use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;

/// A command that submits, in all lifetimes.
pub(crate) trait Submitting {
    /// The type of the command when its values live elsewhere.
    type On<'b>;
    /// Returns the command, if it is this one.
    fn of<'b>(command: venus::Command<'b>) -> Option<Self::On<'b>>;
}

impl Submitting for venus::QueueSubmit<'static> {
    type On<'b> = venus::QueueSubmit<'b>;

    fn of<'b>(command: venus::Command<'b>) -> Option<venus::QueueSubmit<'b>> {
        match command {
            venus::Command::QueueSubmit(c) => Some(c),
            _ => None,
        }
    }
}

impl Submitting for venus::QueueSubmit2<'static> {
    type On<'b> = venus::QueueSubmit2<'b>;

    fn of<'b>(command: venus::Command<'b>) -> Option<venus::QueueSubmit2<'b>> {
        match command {
            venus::Command::QueueSubmit2(c) => Some(c),
            _ => None,
        }
    }
}

/// Bytes that each submission in the held queue has of its own; more is shared by all (`arena_bytes`).
const HELD_OWN: usize = 4096;

/// A function that lowers a command, for a call in whose arena the values live.
pub(crate) type Prepare<C, T> =
    dyn for<'b> Fn(&Call<'b>, &Queue, &Device, &<C as Submitting>::On<'b>) -> Result<Prepared<T>, Fault>;

/// A command's batches and the memory they are in, to be submitted later.
struct Kept<T> {
    _arena: Arena,
    batches: *const T,
}

// SAFETY: the batches are in the arena, which moves along, and are read by one thread at a time.
unsafe impl<T> Send for Kept<T> {}

impl Queue {
    /// Submits the batches of a command now, if they may pass the gate, or when it is their turn. `function` calls the driver.
    pub(super) fn pass_or_hold<'a, C, T>(
        &self,
        call: &Call<'a>,
        command: &C::On<'a>,
        prepare: &Prepare<C, T>,
        function: impl Fn(vk::Queue, &[T], u64) -> i32 + Copy + Send + 'static,
    ) -> Result<i32, Fault>
    where
        C: Submitting + 'static,
        T: Stampable + 'static,
    {
        let Some(device) = self.device.upgrade() else { return Err(device_gone()) };
        let may_pass = self.scheduled.as_ref().is_none_or(|s| s.gate.is_open() && s.held.lock().is_empty());
        if may_pass {
            let (groups, batches, fence) = prepare(call, self, &device, command)?;
            if self.passes(call, &device, &groups) {
                let (fence, mark) = (fence.as_ref(), |group: &_, place| mark(call, group, place));
                let mut submit = |raw, range: &Range<usize>, fence, slot| {
                    // SAFETY: `batches` has those of all groups.
                    unsafe { stamped(batches, range, slot, |batches| function(raw, batches, fence)) }
                };
                return self.submit(call.context, &groups, fence, mark, &mut submit);
            }
        }
        self.hold::<C, T>(call, &device, prepare, function)
    }

    /// Returns whether a call's groups may be dispatched at once; they count as dispatched then.
    fn passes(&self, call: &Call<'_>, device: &Device, groups: &[Group]) -> bool {
        let Some(scheduled) = &self.scheduled else { return true };
        let count = groups.iter().filter(|group| !group.is_free).count() as u32;
        if !scheduled.gate.holds() {
            return scheduled.gate.pass(count);
        }
        let host = Host { device, objects: &call.context.objects };
        let pass = || scheduled.gate.pass(count);
        groups.iter().all(|group| group.is_ready(&host))
            && (pass() || {
                // What has completed meanwhile may have made room.
                self.refresh();
                pass()
            })
    }

    /// Decodes the command once more, into memory of its own, and puts it into the held queue.
    fn hold<C: Submitting + 'static, T: Stampable + 'static>(
        &self,
        call: &Call<'_>,
        device: &Arc<Device>,
        prepare: &Prepare<C, T>,
        function: impl Fn(vk::Queue, &[T], u64) -> i32 + Send + 'static,
    ) -> Result<i32, Fault> {
        let arena = call.context.arena(HELD_OWN);
        let (groups, batches, fence) = {
            let Call { context, cancel, heard, .. } = *call;
            let (owner, families, records) = (call.owner.clone(), call.families.clone(), Cell::new(false));
            let bytes = &*arena.slice_copy(call.bytes)?;
            let own = Call { context, arena: &arena, bytes, cancel, heard, owner, families, records };
            prepare(&own, self, device, &decode::<C>(bytes, &arena)?)?
        };
        let kept = Kept { _arena: arena, batches };
        let submit = Box::new(move |raw, range: &Range<usize>, fence, slot| {
            let kept = &kept;
            // SAFETY: `batches` has those of all groups, and its memory is kept.
            unsafe { stamped(kept.batches, range, slot, |batches| function(raw, batches, fence)) }
        });
        let mark = |group: &_, place| mark(call, group, place);
        self.hold_groups(call, device, groups, fence, mark, submit)?;
        Ok(0)
    }

    /// Submits batches of our own that take no time of the GPU: at once, if nothing is before them and they are ready.
    pub(super) fn submit_unscheduled(
        &self,
        call: &Call<'_>,
        mut groups: Groups,
        mut submit: HeldSubmit,
    ) -> Result<i32, Fault> {
        groups.iter_mut().for_each(|group| group.is_free = true);
        let Some(device) = self.device.upgrade() else { return Err(device_gone()) };
        let holding = self.scheduled.as_ref().filter(|scheduled| scheduled.gate.holds());
        let at_once = holding.is_none_or(|scheduled| {
            let host = Host { device: &device, objects: &call.context.objects };
            scheduled.held.lock().is_empty() && groups.iter().all(|group| group.is_ready(&host))
        });
        if at_once {
            return self.submit(call.context, &groups, None, |_, _| Ok(()), &mut submit);
        }
        self.hold_groups(call, &device, groups, None, |_, _| Ok(()), submit)?;
        Ok(0)
    }

    fn hold_groups(
        &self,
        call: &Call<'_>,
        device: &Arc<Device>,
        groups: Groups,
        fence: Option<Arc<Fence>>,
        mark: impl Fn(&Group, Place) -> Result<(), Fault>,
        submit: HeldSubmit,
    ) -> Result<(), Fault> {
        let Some(scheduled) = &self.scheduled else { return Err(device_gone()) };
        if groups.is_empty() {
            // Nor is there a fence.
            return Ok(());
        }
        let mut held = scheduled.held.lock();
        let begun = self.begin_all(call.context, device, &groups, fence.as_ref(), false, mark)?;
        if let Some(fence) = &fence {
            fence.hold(true);
        }
        begun.iter().for_each(|submission| submission.hold());
        let parts = groups.into_iter().zip(begun).collect();
        held.push(Turn::Held(Box::new(Held { parts, fence, submit })));
        drop(held);
        scheduled.gate.arrived();
        Ok(())
    }

    /// Dispatches the next part of a call; returns what is left of it.
    fn dispatch_held(&self, device: &Device, mut held: Box<Held>) -> Result<Option<Box<Held>>, ContextLost> {
        let handle = self.handle.lock();
        let is_last = held.parts.len() <= 1;
        let guests = held.fence.as_ref().filter(|_| is_last);
        let fence = guests.map_or(0, |fence| fence.raw.as_raw());
        let Some((group, submission)) = held.parts.pop_front() else { return Ok(None) };
        let result = self.dispatch(device, *handle, &group, &submission, fence, &mut held.submit);
        drop(handle);
        if result < 0 {
            held.parts.push_front((group, submission));
            self.give_up(device, &held);
            return Err(ContextLost::new(format!("the driver refused a submission ({result})")));
        }
        if let Some(fence) = guests {
            fence.hold(false);
        }
        Ok((!is_last).then_some(held))
    }

    /// Gives up what is left of a call, which does not reach the driver.
    fn give_up(&self, device: &Device, held: &Held) {
        let left: Vec<_> = held.parts.iter().map(|(_, submission)| Arc::clone(submission)).collect();
        self.withdraw(device, &left);
        if let Some(fence) = &held.fence {
            fence.hold(false);
        }
    }

    /// Tells the gate that the driver does not get `count` submissions that passed it.
    pub(super) fn unpass(&self, count: usize) {
        if let Some(scheduled) = &self.scheduled {
            let (now, count) = (page_clock(), count as u32);
            scheduled.gate.completed(&Work { begin: now, end: now, busy: 0, count, copy: false });
        }
    }

    /// Has the driver watched, if necessary, after something was submitted at once: if the lease has just ended, no thread looks at it yet.
    pub(super) fn submitted_at_once(&self) {
        if self.scheduled.as_ref().is_some_and(|scheduled| scheduled.gate.wants_completions()) {
            self.watch_driver();
        }
    }

    /// Closes the held queue, from which nothing is dispatched any more: submissions are given up, fences answered in their turn.
    pub(super) fn close_held(&self) {
        let Some(scheduled) = &self.scheduled else { return };
        let waiting = scheduled.held.lock().clear();
        for turn in waiting {
            match (turn, self.device.upgrade()) {
                (Turn::Fence(done), _) => self.fence_now(done),
                (Turn::Held(held), Some(device)) => self.give_up(&device, &held),
                (Turn::Held(_), None) => {}
            }
        }
        if let Some(watcher) = scheduled.watcher.lock().take() {
            watcher.end();
        }
    }

    /// Notes the time of a submission that is about to be dispatched, and returns stamps for it.
    pub(super) fn note_dispatch(
        &self,
        device: &Device,
        group: &Group,
        submission: &Submission,
    ) -> Option<Slot> {
        let scheduled = self.scheduled.as_ref()?;
        let stamps = scheduled.stamps.get_or_init(|| {
            let made = Stamps::new(&device.physical, &device.ash, self.family);
            made.inspect_err(|error| log::debug!("no time stamps: {error}")).ok().flatten()
        });
        let at = page_clock();
        // What takes no time says nothing of how long others take.
        let stamps = stamps.as_ref().filter(|_| !group.is_free);
        let gate = &scheduled.gate;
        // Where nothing is shared out, no submission halts a driver for figures that are not needed.
        let stamps = stamps.filter(|stamps| gate.holds() || gate.is_traced() || !stamps.is_software());
        let exactly = !gate.is_open() || gate.is_traced();
        let slot = stamps.and_then(|stamps| stamps.take(exactly, at));
        let (stamp, counts) = (slot.map(|slot| slot.index), !group.is_free);
        submission.set_dispatched(Dispatched { at, stamp, counts });
        slot
    }

    /// Returns whether the device has begun a submission, as far as stamps tell: others may be in its way. Where nothing is shared out, that
    /// counts as if there were no stamps.
    pub(super) fn has_begun(&self, device: &Device, submission: &Submission) -> bool {
        let scheduled = self.scheduled.as_ref().filter(|scheduled| scheduled.gate.holds());
        let stamps = scheduled.and_then(|scheduled| scheduled.stamps.get()?.as_ref());
        let stamp = submission.dispatched().and_then(|dispatched| dispatched.stamp);
        stamps.zip(stamp).is_none_or(|(stamps, index)| stamps.has_begun(&device.ash, index))
    }

    /// Tells the gate what a submission that is over cost, if it ever reached the driver.
    pub(super) fn account(&self, device: &Device, submission: &Submission) {
        let (Some(scheduled), Some(dispatched)) = (&self.scheduled, submission.dispatched()) else { return };
        let now = page_clock();
        let stamps = scheduled.stamps.get().and_then(Option::as_ref);
        let stamped = stamps.zip(dispatched.stamp);
        let stamped = stamped.map(|(stamps, index)| stamps.give_back(&device.ash, index, now));
        // What has stamps that were never written had nothing to do.
        let (begin, end) = stamped.map_or((dispatched.at, now), |written| written.unwrap_or((now, now)));
        let mut ended = scheduled.ended.lock();
        let seen = (begin.max(ended.seen).min(end), end);
        ended.seen = end;
        let begin = begin.max(ended.charged).min(end);
        let mut busy = end - begin;
        if let Some(stamps) = stamps {
            match stamped {
                Some(_) => stamps.sample(busy),
                // With a lease no thread may have looked for long whether it is complete, and without one it may have had to wait for
                // others that were in the driver before it, or for the thread that learns of its end.
                None => busy = busy.min(stamps.usual_length().unwrap_or(busy)),
            }
        }
        if !dispatched.counts {
            busy = 0;
        }
        // The next may be complete at the same moment as far as is known, and has had time of its own.
        ended.charged = if stamped.is_some() { end } else { begin + busy }.max(ended.charged);
        let family = device.physical.families.get(self.family as usize);
        let computes = vk::QueueFlags::COMPUTE | vk::QueueFlags::GRAPHICS;
        let copy = family.is_some_and(|family| !family.queue_flags.intersects(computes));
        let count = u32::from(dispatched.counts);
        scheduled.gate.completed(&Work { begin, end, busy, count, copy });
        drop(ended);
        if let Some((submitted, ready)) = submission.traced(dispatched.at) {
            let id = SubmissionId { queue: self.ring_idx, number: submission.number };
            let begun = Begun { submitted, ready, dispatched, is_measured: stamped.is_some(), copies: copy };
            scheduled.gate.tell_note(|| TraceNote::Complete(stages(id, begun, seen, now)));
        }
    }

    /// Returns whether a trace is taken, for which each submission is noted.
    pub(super) fn is_traced(&self) -> bool {
        self.scheduled.as_ref().is_some_and(|scheduled| scheduled.gate.is_traced())
    }

    /// Destroys the stamps of a queue that is idle.
    pub(super) fn forget_stamps(&self, device: &Device) {
        if let Some(stamps) = self.scheduled.as_ref().and_then(|s| s.stamps.get()).and_then(Option::as_ref) {
            stamps.destroy(&device.ash);
        }
    }
}

impl Lane for Queue {
    fn advance(&self, gate: &Gate) -> Step {
        let (Some(scheduled), Some(device)) = (&self.scheduled, self.device.upgrade()) else {
            return Step::Empty;
        };
        let Some(objects) = self.objects.upgrade() else { return Step::Empty };
        let host = Host { device: &device, objects: &objects };
        let taken = {
            let _turn = gate.turn();
            scheduled.held.lock().take(&host, || gate.pass_held())
        };
        let turn = match taken {
            Ok(turn) => turn,
            Err(step) => return step,
        };
        let rest = match turn {
            Turn::Fence(done) => {
                self.fence_now(done);
                None
            }
            Turn::Held(held) => self.dispatch_held(&device, held).unwrap_or_else(|lost| {
                gate.fail(&lost);
                None
            }),
        };
        scheduled.held.lock().taken(rest);
        Step::Done
    }

    fn standing(&self) -> Standing {
        let (Some(scheduled), Some(device)) = (&self.scheduled, self.device.upgrade()) else {
            return Standing::default();
        };
        let Some(objects) = self.objects.upgrade() else { return Standing::default() };
        let host = Host { device: &device, objects: &objects };
        scheduled.held.lock().standing(&host)
    }

    fn watch_driver(&self) {
        let (Some(scheduled), Some(device)) = (&self.scheduled, self.device.upgrade()) else { return };
        // With a lease there is more in the driver than a moment's work, of which some has to be over before more gets there.
        let which = match (scheduled.gate.is_traced(), scheduled.gate.is_open()) {
            (true, _) => Watched::First,
            (false, true) => Watched::Half,
            (false, false) => Watched::Last,
        };
        let Some(watched) = self.submissions.lock().watch(which) else { return };
        let mut watcher = scheduled.watcher.lock();
        let queue = self.itself.clone();
        let wait = move |submission: &Submission| {
            Self::wait_for(&queue, &device, submission);
            Self::ended(&queue, &device, submission);
            if let Some(queue) = queue.upgrade() {
                queue.submitted_at_once();
            }
        };
        watcher.get_or_insert_with(|| Watcher::start(wait)).watch(watched);
    }
}

/// The facts of a submission for a trace before the GPU has it, and how it gets its times.
struct Begun {
    submitted: u64,
    ready: u64,
    dispatched: Dispatched,
    is_measured: bool,
    copies: bool,
}

/// The stages of a submission, in order: the GPU's clock and the system's may differ by some microseconds.
fn stages(id: SubmissionId, begun: Begun, (begin, end): (u64, u64), noticed: u64) -> Stages {
    let Begun { submitted, ready, dispatched: Dispatched { at, counts, .. }, is_measured, copies } = begun;
    let dispatched = at.clamp(submitted, noticed.max(submitted));
    let noticed = noticed.max(dispatched);
    let begin = begin.clamp(dispatched, noticed);
    Stages {
        id,
        submitted,
        ready: ready.clamp(submitted, dispatched),
        dispatched,
        begin,
        end: end.clamp(begin, noticed),
        noticed,
        is_measured,
        copies,
        is_free: !counts,
    }
}

fn decode<'b, C: Submitting>(bytes: &'b [u8], arena: &'b Arena) -> Result<C::On<'b>, Fault> {
    let mut reader = Reader::with_limits(bytes, arena, Limits::default());
    let header = Header::decode(&mut reader).map_err(ContextLost::from)?;
    let command = venus::Command::decode(header.number, &mut reader).map_err(ContextLost::from)?;
    C::of(command).ok_or_else(|| ContextLost::new("a submission that changed").into())
}

/// Calls `submit` with some of the batches at `batches`, with stamps around them.
///
/// # Safety
///
/// There are as many valid batches as `range` says.
unsafe fn stamped<T: Stampable>(
    batches: *const T,
    range: &Range<usize>,
    slot: Option<Slot>,
    submit: impl Fn(&[T]) -> i32,
) -> i32 {
    if range.is_empty() {
        return submit(&[]);
    }
    let first = batches.wrapping_add(range.start);
    // SAFETY: the caller's promise.
    let batches = unsafe { std::slice::from_raw_parts(first, range.len()) };
    // SAFETY: as above.
    match slot.and_then(|slot| unsafe { Stamped::new(batches, slot) }) {
        Some(stamped) => submit(&stamped.batches),
        None => submit(batches),
    }
}
