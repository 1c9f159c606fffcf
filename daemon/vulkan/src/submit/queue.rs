//! `VkQueue`: a command's batches on their way to the driver, at once or through the held queue, and what the context asks of a queue.
//!
//! | part | is |
//! | --- | --- |
//! | [`QueueOrder`] | the submissions that have not ended; it calls the driver |
//! | [`Fences`] | the fences of the guest's kernel, behind the submissions |
//! | [`Admission`] | the gate and the held queue before the order, if a scheduler or a trace observes the queue |

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use super::admission::Admission;
use super::fences::Fences;
use super::held_queue::HeldSubmit;
use super::order::batches::{Group, Groups};
use super::order::queue_order::{Calling, QueueOrder, Submit};
use super::prepare::{Prepared, mark};
use crate::context::cancel::Cancel;
use crate::context::error::{ContextLost, Fault};
use crate::driver::markers::WAIT_SLICE_NS;
use crate::execution::call::Call;
use crate::execution::context::Context;
use crate::gates::gate::Gate;
use crate::logical::device::Device;
use crate::logical::submitted::{Number, Place};
use crate::logical::timeline::{Done, Look, Standing, Timeline};
use crate::objects::object::{Kind, State};
use crate::programs::stamps::{Slot, Stampable, Stamped};
use ash::vk;
use protocol::cursor::{Arena, Limits, Reader};
use protocol::venus::generated as venus;
use protocol::venus::stream::Header;
use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A queue of a guest's device.
pub struct Queue {
    /// The queue's family.
    pub family: u32,
    order: Arc<QueueOrder>,
    fences: Arc<Fences>,
    admission: Option<Arc<Admission>>,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").field("family", &self.family).finish_non_exhaustive()
    }
}

/// A command that submits, in all lifetimes.
pub(crate) trait Submitting {
    /// The type of the command when its values live elsewhere.
    type On<'b>;
    /// Returns the command, if it is of this type.
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

/// The bytes that each submission in the held queue has of its own; all submissions share the bytes beyond these (`arena_bytes`).
const HELD_OWN: usize = 4096;

/// A function that lowers a command, whose values live in the arena of a call, for a queue of a family.
pub(crate) type Prepare<C, T> =
    dyn for<'b> Fn(&Call<'b>, u32, &Device, &<C as Submitting>::On<'b>) -> Result<Prepared<T>, Fault>;

/// A command's batches and the memory they are in, to be submitted later.
struct Kept<T> {
    _arena: Arena,
    batches: *const T,
}

// SAFETY: the batches are in the arena, which moves along, and are read by one thread at a time.
unsafe impl<T> Send for Kept<T> {}

impl Queue {
    /// Wraps a queue that the driver has handed out.
    pub fn new(
        context: &Context,
        device: &Arc<Device>,
        handle: vk::Queue,
        family: u32,
        ring_idx: u8,
    ) -> Arc<Self> {
        let order = Arc::new(QueueOrder::new(context, device, handle, family, ring_idx));
        let fences = Fences::new(Arc::clone(&order));
        let admission = order.gate().map(|gate| Admission::new(gate, &order, &fences));
        Arc::new(Self { family, order, fences, admission })
    }

    /// Returns the first queue of a device that the guest has asked for.
    ///
    /// # Errors
    ///
    /// The guest has asked for none, or the device is being destroyed.
    pub(super) fn first_of(context: &Context, device: &Device) -> Result<Arc<Self>, Fault> {
        let id = device
            .first_queue()
            .ok_or_else(|| Fault::invalid("a queue is used of a device that has none"))?;
        let queue = context.objects.read().get(id)?.shared::<venus::Queue>()?;
        match std::ptr::eq(device, Arc::as_ptr(&queue.device()?)) {
            true => Ok(queue),
            false => Err(Fault::invalid("a queue is used while its device is destroyed")),
        }
    }

    /// Returns the queue's device.
    ///
    /// # Errors
    ///
    /// The device is gone.
    pub(super) fn device(&self) -> Result<Arc<Device>, Fault> {
        self.order.device()
    }

    /// Returns the queue's order, which calls the driver.
    pub(super) fn order(&self) -> &QueueOrder {
        &self.order
    }

    /// Submits the batches of a command now, if they may pass the gate, or when it is their turn. `function` calls the driver.
    pub(super) fn submit_command<'a, C, T>(
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
        let device = self.device()?;
        let held_by = self.admission.as_ref().filter(|admission| !admission.is_open());
        if let Some(admission) = held_by {
            return self.hold::<C, T>(admission, call, &device, prepare, function);
        }
        let (groups, batches, fence) = prepare(call, self.family, &device, command)?;
        let lets_pass =
            |admission: &&Arc<Admission>| admission.lets_pass(&device, &call.context.objects, &groups);
        let held_by = self.admission.as_ref().filter(|admission| !lets_pass(admission));
        if let Some(admission) = held_by {
            return self.hold::<C, T>(admission, call, &device, prepare, function);
        }
        let mut submit = |raw, range: &Range<usize>, fence, slot| {
            // SAFETY: `batches` has the batches of all groups.
            unsafe { stamped(batches, range, slot, |batches| function(raw, batches, fence)) }
        };
        let mark = |group: &_, place| mark(call, group, place);
        self.submit_now(&Calling { context: call.context, device: &device, groups, fence, mark }, &mut submit)
    }

    /// Submits batches of our own that take no time of the GPU: at once, if nothing is before them and they are ready.
    pub(super) fn submit_free(
        &self,
        call: &Call<'_>,
        mut groups: Groups,
        mut submit: HeldSubmit,
    ) -> Result<i32, Fault> {
        groups.iter_mut().for_each(|group| group.is_free = true);
        let (device, objects) = (self.device()?, &call.context.objects);
        let lets_pass = |admission: &&Arc<Admission>| admission.lets_pass_free(&device, objects, &groups);
        let held_by = self.admission.as_ref().filter(|admission| !lets_pass(admission));
        let (context, mark) = (call.context, |_: &Group, _| Ok(()));
        let calling = Calling { context, device: &device, groups, fence: None, mark };
        match held_by {
            Some(admission) => admission.hold(calling, submit).map(|()| 0),
            None => self.submit_now(&calling, &mut submit),
        }
    }

    /// Submits the groups of a call now, past the held queue.
    pub(super) fn submit_now(
        &self,
        call: &Calling<'_, impl Fn(&Group, Place) -> Result<(), Fault>>,
        submit: &mut Submit<'_>,
    ) -> Result<i32, Fault> {
        let result = self.order.submit(call, submit)?;
        // If the driver refused a group, it may have taken the groups before.
        self.admission.iter().for_each(|admission| admission.submitted_at_once());
        Ok(result)
    }

    /// Decodes the command once more, into memory of its own, and puts it into the held queue.
    fn hold<C: Submitting + 'static, T: Stampable + 'static>(
        &self,
        admission: &Admission,
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
            prepare(&own, self.family, device, &decode::<C>(bytes, &arena)?)?
        };
        let kept = Kept { _arena: arena, batches };
        let submit = Box::new(move |raw, range: &Range<usize>, fence, slot| {
            let kept = &kept;
            // SAFETY: `batches` has the batches of all groups, and its memory is kept.
            unsafe { stamped(kept.batches, range, slot, |batches| function(raw, batches, fence)) }
        });
        let mark = |group: &_, place| mark(call, group, place);
        admission.hold(Calling { context: call.context, device, groups, fence, mark }, submit)?;
        Ok(0)
    }
}

impl Timeline for Queue {
    fn has_completed(&self, device: &Device, number: Number) -> bool {
        self.order.has_completed(device, number)
    }

    fn is_blocked(&self, device: &Device, number: Number) -> bool {
        self.order.is_blocked(device, number)
    }

    fn refresh(&self) {
        self.order.refresh();
    }

    fn look(&self, now: Instant, restart: bool) -> Look {
        self.order.look(now, restart)
    }

    fn standing(&self) -> Standing {
        let holds = self.admission.as_ref().is_some_and(|admission| admission.holds());
        match self.order.standing() {
            Standing::Idle if holds => Standing::Going,
            standing => standing,
        }
    }

    fn passes_through(&self, gate: &Arc<Gate>) -> bool {
        self.admission.as_ref().is_some_and(|admission| admission.is_through(gate))
    }

    fn fence(&self, done: Done) {
        let done = match &self.admission {
            Some(admission) => admission.hold_fence(done),
            None => Some(done),
        };
        if let Some(done) = done {
            self.fences.answer(done);
        }
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
        self.admission.iter().for_each(|admission| admission.close());
        self.fences.end();
    }

    fn forget_submissions(&self, device: &Device) {
        self.order.forget(device);
    }
}

impl State for Queue {}

impl Kind for venus::Queue {
    type State = Queue;
}

fn decode<'b, C: Submitting>(bytes: &'b [u8], arena: &'b Arena) -> Result<C::On<'b>, Fault> {
    let mut reader = Reader::with_limits(bytes, arena, Limits::default());
    let header = Header::decode(&mut reader).map_err(ContextLost::from)?;
    let command = venus::Command::decode(header.number, &mut reader).map_err(ContextLost::from)?;
    C::of(command)
        .ok_or_else(|| ContextLost::daemon("a submission is not the same when it is decoded again").into())
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

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
