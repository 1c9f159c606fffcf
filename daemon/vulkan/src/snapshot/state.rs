//! States that fences, semaphores and events have reached since their creation, and failures.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use super::objects::listed;
use super::saved::NotMovable;
use super::step::{Step, push_commands};
use super::synthesis::{NO_REPLY, decoded, encoded};
use crate::execution::context::Context;
use crate::logical::device::Device;
use crate::objects::object::Object;
use crate::objects::table::Table;
use crate::submit::restore::{self, Semaphore};
use ash::vk::{self, Handle as _};
use protocol::cursor::Arena;
use protocol::venus::generated::{self as venus, ChainStruct, Command, ObjectType};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Adds the steps for the states of objects, which come before the steps for the contents of objects.
///
/// # Errors
///
/// The driver does not tell the state of an object, or the state is about to change.
pub(super) fn save_before(context: &Context, steps: &mut Vec<Step>) -> Result<(), NotMovable> {
    let table = context.objects.read();
    let mut arena = context.arena(0);
    let mut objects: Vec<_> = table.objects().filter(|(.., result)| result.is_none()).collect();
    objects.sort_unstable_by_key(|(id, ..)| *id);
    let devices: FxHashMap<_, _> = objects
        .iter()
        .filter_map(|(id, object, _)| Some((Arc::as_ptr(&object.get_shared::<venus::Device>()?), *id)))
        .collect();
    for (id, object, _) in objects {
        let Some(device) = &object.device else { continue };
        let of = devices.get(&Arc::as_ptr(device)).copied().unwrap_or_default();
        let at = At { id, of: venus::Device(of), object, device };
        match object.kind() {
            ObjectType::FENCE => fence(&at, steps),
            ObjectType::SEMAPHORE => semaphore(&at, &mut arena, steps)?,
            ObjectType::EVENT => event(&at, &mut arena, steps)?,
            _ => {}
        }
    }
    Ok(())
}

/// An object of a device, with the guest's ids of both.
struct At<'t> {
    id: u64,
    of: venus::Device,
    object: &'t Object,
    device: &'t Arc<Device>,
}

fn fence(at: &At<'_>, steps: &mut Vec<Step>) {
    if let Some(fence) = at.object.get::<venus::Fence>() {
        steps.push(Step::Fence { id: at.id, signalled: restore::is_signalled(fence, at.device) });
    }
}

fn semaphore(at: &At<'_>, arena: &mut Arena, steps: &mut Vec<Step>) -> Result<(), NotMovable> {
    let Some(signal) = at.object.get::<venus::Semaphore>() else { return Ok(()) };
    match restore::semaphore(at.object, signal, at.device) {
        Semaphore::Binary(false) => {}
        Semaphore::Binary(true) => steps.push(Step::Signalled { id: at.id }),
        Semaphore::Pending => return Err(NotMovable::for_now("a semaphore is about to be signalled")),
        Semaphore::Timeline(None) => {
            return Err(NotMovable::ever("the driver does not tell the value of a timeline semaphore"));
        }
        Semaphore::Timeline(Some(value)) if value > initial(at.object, arena)? => {
            let info = venus::SemaphoreSignalInfo { p_next: &[], semaphore: venus::Semaphore(at.id), value };
            let signal = venus::SignalSemaphore { device: at.of, p_signal_info: Some(&info) };
            push_commands(steps, &encoded(0, |w| signal.encode(NO_REPLY, w))?);
        }
        Semaphore::Timeline(Some(_)) => {}
    }
    Ok(())
}

/// Returns the value that a timeline was created with.
fn initial(object: &Object, arena: &mut Arena) -> Result<u64, NotMovable> {
    let bytes = object.created_by.as_deref().unwrap_or(&[]);
    decoded(bytes, arena, |command| {
        let Command::CreateSemaphore(c) = command else { return 0 };
        let mut chain = c.p_create_info.map_or(&[][..], |info| info.p_next).iter();
        let initial = chain.find_map(|next| match next {
            ChainStruct::SemaphoreTypeCreateInfo(info) => Some(info.initial_value),
            _ => None,
        });
        initial.unwrap_or_default()
    })
}

fn event(at: &At<'_>, arena: &mut Arena, steps: &mut Vec<Step>) -> Result<(), NotMovable> {
    let bytes = at.object.created_by.as_deref().unwrap_or(&[]);
    let device_only = decoded(bytes, arena, |command| match command {
        Command::CreateEvent(c) => {
            c.p_create_info.is_some_and(|info| info.flags.contains(venus::EventCreateFlags::DEVICE_ONLY))
        }
        _ => false,
    })?;
    if device_only {
        return Err(NotMovable::ever(
            "the driver does not tell whether an event that only the GPU sees is set",
        ));
    }
    // SAFETY: device and event are live, and the host may ask for the event.
    let is_set = unsafe { at.device.ash.get_event_status(vk::Event::from_raw(at.object.raw)) };
    if is_set.map_err(|error| {
        NotMovable::ever(format!("the driver does not say whether an event is set: {error}"))
    })? {
        let set = venus::SetEvent { device: at.of, event: venus::Event(at.id) };
        push_commands(steps, &encoded(0, |w| set.encode(NO_REPLY, w))?);
    }
    Ok(())
}

/// Adds the steps that come behind all others: objects that can only be destroyed, objects whose creation failed, and failures.
pub(super) fn save_after(context: &Context, steps: &mut Vec<Step>) {
    let table = context.objects.read();
    let mut unusable: Vec<_> = table
        .objects()
        .filter_map(|(id, object, result)| {
            Some(Step::Unusable { id, kind: object.kind().0, result: result? })
        })
        .collect();
    unusable.sort_unstable_by_key(id_of);
    steps.push(listed(&table));
    steps.extend(unusable);
    steps.extend(failed(&table));
    let (owed, lost, host_fences) = context.failures.state();
    steps.push(Step::Failures { owed, lost, host_fences });
}

fn failed(table: &Table) -> Vec<Step> {
    let failures = table.failures().map(|(id, kind, result)| Step::Failed { id, kind: kind.0, result });
    let mut failures: Vec<_> = failures.collect();
    failures.sort_unstable_by_key(id_of);
    failures
}

fn id_of(step: &Step) -> u64 {
    match step {
        Step::Failed { id, .. } | Step::Unusable { id, .. } => *id,
        _ => 0,
    }
}
