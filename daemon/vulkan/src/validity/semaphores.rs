//! Checks of semaphores: the two types are different structs in drivers, and values come in arrays of their own.

use crate::context::error::{Fault, demand};
use crate::logical::device::Device;
use crate::lowering::lower::Lowering;
use crate::objects::reading::Reading;
use protocol::cursor::Arena;
use protocol::venus::generated::{self as venus, ChainStruct};
use std::sync::Arc;

const TIMELINE: &str = "a semaphore that is no timeline has no value";

const VALUES: &str = "a submission with another number of semaphores than of their values";

/// `vkGetSemaphoreCounterValue`.
pub(crate) fn get_semaphore_counter_value(
    l: &Lowering<'_>,
    _: &Arc<Device>,
    c: &venus::GetSemaphoreCounterValue<'_>,
) -> Result<(), Fault> {
    demand(l.objects.is_timeline(c.semaphore)?, TIMELINE)
}

/// `vkSignalSemaphore`.
pub(crate) fn signal_semaphore(
    l: &Lowering<'_>,
    _: &Arc<Device>,
    c: &venus::SignalSemaphore<'_>,
) -> Result<(), Fault> {
    let info = c.p_signal_info.ok_or_else(|| Fault::invalid(TIMELINE))?;
    demand(l.objects.is_timeline(info.semaphore)?, TIMELINE)
}

/// `vkWaitSemaphores`.
pub(crate) fn check_wait(l: &Lowering<'_>, info: Option<&venus::SemaphoreWaitInfo<'_>>) -> Result<(), Fault> {
    let info = info.ok_or_else(|| Fault::invalid(TIMELINE))?;
    for semaphore in info.p_semaphores.unwrap_or(&[]) {
        demand(l.objects.is_timeline(*semaphore)?, TIMELINE)?;
    }
    Ok(())
}

/// Returns the batches of `vkQueueSubmit` without arrays of values that do not apply. A program may give any number of values if no semaphore is a
/// timeline, and drivers would read as many values as there are semaphores.
pub(crate) fn applying<'a>(
    arena: &'a Arena,
    submits: &'a [venus::SubmitInfo<'a>],
) -> Result<&'a [venus::SubmitInfo<'a>], Fault> {
    if submits.iter().all(applies) {
        return Ok(submits);
    }
    let rest = submits.iter().map(|submit| {
        let chain = submit.p_next.iter().map(|next| match next {
            ChainStruct::TimelineSemaphoreSubmitInfo(values) => {
                Ok(ChainStruct::TimelineSemaphoreSubmitInfo(arena.value(without_loose(submit, values))?))
            }
            next => Ok(*next),
        });
        let p_next = arena.slice_copy(&chain.collect::<Result<Vec<_>, Fault>>()?)?;
        Ok(venus::SubmitInfo { p_next, ..*submit })
    });
    Ok(arena.slice_copy(&rest.collect::<Result<Vec<_>, Fault>>()?)?)
}

fn applies(submit: &venus::SubmitInfo<'_>) -> bool {
    let fits = |count: u32, values: Option<&[u64]>, semaphores: Option<&[venus::Semaphore]>| {
        let there = values.map_or(0, <[_]>::len);
        count as usize == there && (there == 0 || there == semaphores.map_or(0, <[_]>::len))
    };
    submit.p_next.iter().all(|next| match next {
        ChainStruct::TimelineSemaphoreSubmitInfo(v) => {
            fits(v.wait_semaphore_value_count, v.p_wait_semaphore_values, submit.p_wait_semaphores)
                && fits(
                    v.signal_semaphore_value_count,
                    v.p_signal_semaphore_values,
                    submit.p_signal_semaphores,
                )
        }
        _ => true,
    })
}

/// Returns the values without arrays whose length differs from the number of semaphores.
fn without_loose<'a>(
    submit: &venus::SubmitInfo<'_>,
    values: &venus::TimelineSemaphoreSubmitInfo<'a>,
) -> venus::TimelineSemaphoreSubmitInfo<'a> {
    let of = |values: Option<&'a [u64]>, semaphores: Option<&[venus::Semaphore]>| {
        let wanted = semaphores.map_or(0, <[_]>::len);
        values.filter(|values| !values.is_empty() && values.len() == wanted)
    };
    let waits = of(values.p_wait_semaphore_values, submit.p_wait_semaphores);
    let signals = of(values.p_signal_semaphore_values, submit.p_signal_semaphores);
    venus::TimelineSemaphoreSubmitInfo {
        wait_semaphore_value_count: waits.map_or(0, <[_]>::len) as u32,
        p_wait_semaphore_values: waits,
        signal_semaphore_value_count: signals.map_or(0, <[_]>::len) as u32,
        p_signal_semaphore_values: signals,
        ..*values
    }
}

/// Checks one batch of `vkQueueSubmit`, as [`applying`] leaves it: if a semaphore is a timeline, there are as many values as semaphores.
pub(crate) fn check_submit(objects: &Reading<'_>, submit: &venus::SubmitInfo<'_>) -> Result<(), Fault> {
    let (waits, signals) =
        (submit.p_wait_semaphores.unwrap_or(&[]), submit.p_signal_semaphores.unwrap_or(&[]));
    let (mut wait_values, mut signal_values) = (0, 0);
    for next in submit.p_next {
        match next {
            ChainStruct::TimelineSemaphoreSubmitInfo(values) => {
                wait_values = values.p_wait_semaphore_values.map_or(0, <[_]>::len);
                signal_values = values.p_signal_semaphore_values.map_or(0, <[_]>::len);
            }
            ChainStruct::DeviceGroupSubmitInfo(group) => {
                let masks = submit.p_command_buffers.unwrap_or(&[]).len() as u32;
                let fits = |count, wanted| count == 0 || count == wanted;
                let all = fits(group.wait_semaphore_count, waits.len() as u32)
                    && fits(group.command_buffer_count, masks)
                    && fits(group.signal_semaphore_count, signals.len() as u32);
                demand(all, "a submission with another number of device masks than of what they are for")?;
            }
            _ => {}
        }
    }
    let any_timeline = |semaphores: &[venus::Semaphore]| -> Result<bool, Fault> {
        semaphores.iter().try_fold(false, |any, id| Ok(any | objects.is_timeline(*id)?))
    };
    demand(wait_values == waits.len() || !any_timeline(waits)?, VALUES)?;
    demand(signal_values == signals.len() || !any_timeline(signals)?, VALUES)
}
