//! Submissions of a guest in C form, with their waits and signals; on a lost device, only the part that can run.

use super::lost;
use super::order::batches::{Batch, Group, Groups, groups, used_semaphores};
use crate::context::cause::DriverError;
use crate::context::error::Fault;
use crate::driver::generated::sys;
use crate::execution::call::Call;
use crate::kinds::fence::Fence;
use crate::logical::device::Device;
use crate::logical::submitted::Place;
use crate::lowering::lower::{Lower, Lowering};
use crate::objects::reading::{Reading, Recent};
use crate::record::command_buffer;
use crate::validity::semaphores;
use ash::vk;
use protocol::venus::generated as venus;
use std::sync::Arc;

/// Returns the result of a submission: a lost device ends the context, since the guest waits for no result.
pub(super) fn submitted(result: i32) -> Result<venus::VkResult, Fault> {
    if result == vk::Result::ERROR_DEVICE_LOST.as_raw() {
        return Err(DriverError::DeviceLost.into());
    }
    Ok(venus::VkResult(result))
}

/// The part of a submission that reaches the driver.
enum Runnable<T> {
    /// The whole submission.
    Whole(T),
    /// The part that [`lost`] keeps.
    Partly,
}

/// Lowers a submission. If an object in it was never made, the device is lost; on a lost device, only the part that can run is submitted.
fn runnable<T>(call: &Call<'_>, whole: impl FnOnce() -> Result<T, Fault>) -> Result<Runnable<T>, Fault> {
    if call.context.failures.is_lost() {
        call.context.journal.breaks("its device is lost");
        return Ok(Runnable::Partly);
    }
    match whole() {
        Ok(submission) => Ok(Runnable::Whole(submission)),
        Err(Fault::Failed(result)) => {
            call.context.journal.breaks("its device is lost");
            call.context.failures.lose_device(result).map(|()| Runnable::Partly)
        }
        Err(lost) => Err(lost),
    }
}

/// The groups of a submission, its batches in C form and the guest's fence behind it.
pub(super) type Prepared<T> = (Groups, *const T, Option<Arc<Fence>>);

/// Marks the command buffers of a group before the driver is called, so that none of them is destroyed or reset meanwhile.
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
    let shared = object.shared::<venus::Fence>()?;
    if groups.is_empty() {
        groups.push(Group::of_fence());
    }
    groups.iter().last().inspect(|last| last.uses.add(&object.usage));
    Ok(Some(shared))
}

/// Prepares a submission for a queue with these abilities; if it cannot run as a whole, `lost` lowers the part that can.
fn prepared<'a, B: Batch + Lower<Sys: 'a>>(
    call: &Call<'a>,
    batches: &[B],
    fence: venus::Fence,
    able: venus::QueueFlags,
    check: impl FnOnce(&Reading<'_>) -> Result<(), Fault>,
    lost: impl FnOnce() -> Result<&'a mut [B::Sys], Fault>,
) -> Result<Prepared<B::Sys>, Fault> {
    let command_buffers = || batches.iter().flat_map(Batch::command_buffers);
    let whole = || {
        let mut is_heard = false;
        for id in command_buffers() {
            is_heard |= command_buffer::refuse_unfit(call, id, able)?;
        }
        if is_heard {
            call.context.journal.breaks("a submission uses events or queries");
        }
        let objects = call.context.objects.read();
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
            // The semaphores are looked up before the batches are lowered, so that no id names another semaphore by then.
            let uses = used_semaphores(&call.lowering().objects, batches);
            let submits = lost()?;
            let runs = |id: &_| matches!(command_buffer::runs(call, *id), Ok(Some((_, None))));
            let mut groups = Group::of_lost(submits.len(), uses, command_buffers().filter(runs));
            let l = call.lowering();
            let is_there = !matches!(l.handle(fence), Err(Fault::Failed(_)));
            let fence = if is_there { fence } else { venus::Fence(0) };
            let fence = behind(&l, &mut groups, fence)?;
            Ok((groups, submits.as_ptr(), fence))
        }
    }
}

pub(super) fn prepare_submit<'a>(
    call: &Call<'a>,
    family: u32,
    device: &Device,
    c: &venus::QueueSubmit<'a>,
) -> Result<Prepared<sys::SubmitInfo>, Fault> {
    let batches = semaphores::applying(call.arena, c.p_submits.unwrap_or(&[]))?;
    let check =
        |objects: &Reading<'_>| batches.iter().try_for_each(|batch| semaphores::check_submit(objects, batch));
    let lost = || lost::submits(call, device, family, batches);
    prepared(call, batches, c.fence, device.physical.queue_flags(family), check, lost)
}

pub(super) fn prepare_submit2<'a>(
    call: &Call<'a>,
    family: u32,
    device: &Device,
    c: &venus::QueueSubmit2<'a>,
) -> Result<Prepared<sys::SubmitInfo2>, Fault> {
    let batches = c.p_submits.unwrap_or(&[]);
    let lost = || lost::submits2(call, device, family, batches);
    prepared(call, batches, c.fence, device.physical.queue_flags(family), |_| Ok(()), lost)
}
