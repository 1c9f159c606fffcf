//! `VkDevice`: created only with extensions, features and queues that the guest was offered, destroyed with everything it owns.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use super::pipeline_cache::seal::opened;
use crate::context::cancel::Cancel;
use crate::context::error::{ContextLost, Fault};
use crate::driver::generated::sys;
use crate::driver::physical_device::PhysicalDevice;
use crate::execution::call::Call;
use crate::logical::device::{CreatedQueues, Device};
use crate::logical::shaders::Shaders;
use crate::logical::timeline::Timeline;
use crate::objects::object::{Handle as _, Object, StateOf};
use crate::programs::own_queue;
use crate::shape::extensions::{self, Enable};
use crate::shape::{harden, replay, reshape};
use crate::submit::queue::Queue;
use ash::vk::{self, Handle as _};
use protocol::venus::generated as venus;
use std::ffi::{CStr, c_char};
use std::sync::Arc;

/// `vkCreateDevice`.
pub(crate) fn create_device<'a>(
    call: &Call<'a>,
    c: &venus::CreateDevice<'a>,
) -> Result<venus::CreateDeviceReply<'a>, Fault> {
    let physical = call.physical_device(c.physical_device)?;
    let Some(id) = c.p_device else { return Err(Fault::without("an id")) };
    let device = match open(call, &physical, c) {
        Ok(device) => {
            begin_own_cache(call, &device, id.id());
            Arc::new(device)
        }
        Err(Fault::Failed(result)) => {
            call.not_created(Some(id), result)?;
            return Ok(venus::CreateDeviceReply { result: venus::VkResult(result), p_device: c.p_device });
        }
        Err(lost) => return Err(lost),
    };
    let object = Object::new::<venus::Device>(device.raw(), None, StateOf::shared(device), call.encoding());
    call.context.objects.insert(id.id(), object).map_err(ContextLost::from)?;
    Ok(venus::CreateDeviceReply { result: venus::VkResult::SUCCESS, p_device: c.p_device })
}

/// Begins our cache of a device with its data from a predecessor of this worker, if there are any.
fn begin_own_cache(call: &Call<'_>, device: &Device, id: u64) {
    let Some(sealed) = call.context.restored.take_cache_data(id) else { return };
    match opened(&call.context.env.cache_key, &device.physical.cache_origin, &sealed) {
        Some(data) => device.pipeline_caches.begin_ours(&device.ash, data),
        None => log::debug!("pipelines are compiled again: they were compiled for another GPU or driver"),
    }
}

fn open(
    call: &Call<'_>,
    physical: &Arc<PhysicalDevice>,
    c: &venus::CreateDevice<'_>,
) -> Result<Device, Fault> {
    let Some(info) = c.p_create_info else { return Err(Fault::without("a description")) };
    if !is_group_of_its_own(info, c.physical_device) {
        log::debug!("device refused: each physical device is a group of its own");
        return Err(vk::Result::ERROR_INITIALIZATION_FAILED.into());
    }
    let mut queues = distinct_queues(&physical.families, info)?;
    let created = queues.iter().map(CreatedQueues::from).collect();
    let protection = physical.gpu.protection;
    let mut spare = None;
    if (protection.zero_memory || protection.movable)
        && let Some((ours, position)) = own_queue::spare(&physical.host_families, &mut queues)
    {
        let queue = &mut queues[position];
        let count = queue.queue_count as usize;
        let given = queue.p_queue_priorities.and_then(|given| given.get(..count));
        let given = given.ok_or(vk::Result::ERROR_INITIALIZATION_FAILED)?;
        queue.p_queue_priorities = Some(call.arena.slice_copy(&[given, &[1.0]].concat())?);
        queue.queue_count += 1;
        spare = Some(ours);
    }
    let queues = call.arena.slice_copy(&queues)?;
    let names = enabled_extensions(physical, info)?;
    let queue_create_info_count = queues.len() as u32;
    let info =
        venus::DeviceCreateInfo { queue_create_info_count, p_queue_create_infos: Some(queues), ..*info };
    let lowered = call.lowering().out_pointer(Some(&info))?;
    // SAFETY: `lowered` is a struct of the arena that nothing else refers to.
    let lowered = unsafe { &mut *lowered };
    if let Some(feature) = reshape::withheld_feature(lowered, physical.addresses) {
        log::debug!("device refused: {feature} is not offered");
        return Err(vk::Result::ERROR_FEATURE_NOT_PRESENT.into());
    }
    if physical.is_robust() {
        harden::enable_robustness(call.arena, lowered)?;
    }
    let zero_workgroup = protection.zero_workgroup_memory && harden::can_zero_workgroup(physical);
    if zero_workgroup {
        harden::enable_zero_workgroup(call.arena, lowered)?;
    }
    let replays_addresses = replay::enable_replay(physical, lowered);
    let shaders = Shaders::new(physical, &info, &call.context.env.limits.shaders, zero_workgroup);
    lowered.enabled_layer_count = 0;
    lowered.enabled_extension_count = names.len() as u32;
    lowered.pp_enabled_extension_names = names.as_ptr();
    let Some(function) = physical.instance.table.create_device else {
        return Err(Fault::missing("vkCreateDevice"));
    };
    let mut raw = 0u64;
    // SAFETY: the handle is live; `lowered` and what it points to live in the arena, `names` until the end of this function.
    let result = unsafe { function(physical.raw(), lowered, std::ptr::null(), &raw mut raw) };
    if result < 0 {
        return Err(Fault::Failed(result));
    }
    let (raw, gate) = (vk::Device::from_raw(raw), call.context.env.gates.get(physical.index).cloned());
    let driver_mapped = call.context.env.gpus.iter().map(|gpu| gpu.trial.driver_mapped);
    let mapped_devices =
        driver_mapped.filter(|mapped| mapped.types != 0).map(|mapped| mapped.device).collect();
    // SAFETY: the driver just made this device of `physical`.
    let mut device =
        unsafe { Device::new(physical.clone(), raw, created, shaders, spare, gate, mapped_devices) };
    device.replays_addresses = replays_addresses;
    Ok(device)
}

/// Returns whether the device group that a guest names, if it names one, has the physical device as its only member: drivers take for
/// granted that the members are one group of theirs (VUID-VkDeviceGroupDeviceCreateInfo-pPhysicalDevices-00376).
fn is_group_of_its_own(info: &venus::DeviceCreateInfo<'_>, physical: venus::PhysicalDevice) -> bool {
    info.p_next.iter().all(|next| match next {
        venus::ChainStruct::DeviceGroupDeviceCreateInfo(group) => {
            let members = group.p_physical_devices.unwrap_or(&[]);
            members.is_empty() || members == [physical]
        }
        _ => true,
    })
}

/// The queues a device creation asks for, refused if they are not offered.
///
/// Each family is named once for each set of flags (VUID-VkDeviceCreateInfo-queueFamilyIndex-02802). Programs that look for queues
/// by their abilities name one family twice if it has them all, as the conformance suite does, and a driver may crash on this.
fn distinct_queues<'a>(
    families: &[vk::QueueFamilyProperties],
    info: &venus::DeviceCreateInfo<'a>,
) -> Result<Vec<venus::DeviceQueueCreateInfo<'a>>, Fault> {
    let mut distinct: Vec<venus::DeviceQueueCreateInfo<'_>> = Vec::new();
    for queues in info.p_queue_create_infos.unwrap_or(&[]) {
        let family = families.get(queues.queue_family_index as usize);
        let offered = family.is_some_and(|family| (1..=family.queue_count).contains(&queues.queue_count));
        if !offered || queues.p_queue_priorities.is_none() {
            return Err(vk::Result::ERROR_INITIALIZATION_FAILED.into());
        }
        let same = |other: &&mut venus::DeviceQueueCreateInfo<'_>| {
            (other.flags, other.queue_family_index) == (queues.flags, queues.queue_family_index)
        };
        match distinct.iter_mut().find(same) {
            Some(other) if other.queue_count >= queues.queue_count => {}
            Some(other) => *other = *queues,
            None => distinct.push(*queues),
        }
    }
    Ok(distinct)
}

/// The extension names for the host's device: those that the guest enabled and was offered, and those that this daemon needs.
fn enabled_extensions(
    physical: &PhysicalDevice,
    info: &venus::DeviceCreateInfo<'_>,
) -> Result<Vec<*const c_char>, Fault> {
    let mut names = vec![];
    for name in info.pp_enabled_extension_names.unwrap_or(&[]) {
        let judged =
            name.to_str().map(|text| extensions::enable(text, &physical.host_extensions, &physical.gpu));
        match judged {
            Ok(Enable::Pass) => names.push(*name),
            Ok(Enable::Strip) => {}
            Ok(Enable::Refuse) | Err(_) => return Err(vk::Result::ERROR_EXTENSION_NOT_PRESENT.into()),
        }
    }
    let needed = extensions::needed(&physical.gpu).iter();
    names.extend(needed.filter(|name| !names.contains(name)).collect::<Vec<_>>());
    Ok(names.into_iter().map(CStr::as_ptr).collect())
}

/// `vkDestroyDevice`: a guest may call it while children are alive.
pub(crate) fn destroy_device(
    call: &Call<'_>,
    c: &venus::DestroyDevice,
) -> Result<venus::DestroyDeviceReply, Fault> {
    // A queue may wait for a signal that never comes; this wait then lasts until the context ends.
    if let Ok(device) = call.device(c.device) {
        wait_until_idle(&device, call.cancel)?;
    }
    let device =
        call.context.objects.remove(c.device)?.and_then(|object| object.get_shared::<venus::Device>());
    if let Some(device) = device {
        call.context.destroy_device(&device)?;
    }
    Ok(venus::DestroyDeviceReply {})
}

/// `vkGetDeviceQueue2`: binds a queue to an id and to a fence timeline.
pub(crate) fn get_device_queue2<'a>(
    call: &Call<'a>,
    c: &venus::GetDeviceQueue2<'a>,
) -> Result<venus::GetDeviceQueue2Reply<'a>, Fault> {
    let device = call.device(c.device)?;
    let (Some(info), Some(id)) = (c.p_queue_info, c.p_queue) else {
        return Err(Fault::without("a queue"));
    };
    let ring_idx = info.p_next.iter().find_map(|next| match next {
        venus::ChainStruct::DeviceQueueTimelineInfoMESA(timeline) => Some(timeline.ring_idx),
        _ => None,
    });
    let Some(ring_idx @ 1..=63) = ring_idx else {
        return Err(Fault::rule("a queue has no ring_idx between 1 and 63"));
    };
    let exists = device.has_queue(info.flags.0, info.queue_family_index, info.queue_index);
    if !exists {
        return Err(Fault::rule("a queue is asked for with which the device was not created"));
    }
    let host = vk::DeviceQueueInfo2::default()
        .flags(vk::DeviceQueueCreateFlags::from_raw(info.flags.0))
        .queue_family_index(device.physical.order.swap(info.queue_family_index))
        .queue_index(info.queue_index);
    // SAFETY: the device is live and was created with this queue.
    let raw = unsafe { device.ash.get_device_queue2(&host) };
    let queue = Queue::new(call.context, &device, raw, info.queue_family_index, ring_idx as u8);
    let timeline: Arc<dyn Timeline> = queue.clone();
    call.context.timelines.bind(ring_idx as u8, &timeline)?;
    device
        .add_queue(ring_idx as u8, timeline)
        .inspect_err(|_| call.context.timelines.unbind(ring_idx as u8))?;
    call.bind(Some(id), raw.as_raw(), &device, 0, StateOf::shared(queue))?;
    device.name_queue(*id);
    Ok(venus::GetDeviceQueue2Reply { p_queue: c.p_queue })
}

/// `vkDeviceWaitIdle`. Mesa never sends it.
pub(crate) fn device_wait_idle(
    call: &Call<'_>,
    c: &venus::DeviceWaitIdle,
) -> Result<venus::DeviceWaitIdleReply, Fault> {
    wait_until_idle(&*call.device(c.device)?, call.cancel)?;
    Ok(venus::DeviceWaitIdleReply { result: venus::VkResult::SUCCESS })
}

fn wait_until_idle(device: &Device, cancel: &Cancel) -> Result<(), Fault> {
    let queues = device.queues();
    queues.iter().try_for_each(|queue| queue.wait_idle(cancel))
}

const _: () = assert!(size_of::<sys::DeviceCreateInfo>() == size_of::<vk::DeviceCreateInfo<'_>>());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_named_twice_are_asked_for_once_and_with_all_their_queues() {
        let families =
            [16, 2].map(|queue_count| vk::QueueFamilyProperties { queue_count, ..Default::default() });
        let ask = |queues: &[(u32, u32, Option<&'static [f32]>)]| {
            let infos: Vec<_> = queues
                .iter()
                .map(|&(queue_family_index, queue_count, p_queue_priorities)| venus::DeviceQueueCreateInfo {
                    queue_family_index,
                    queue_count,
                    p_queue_priorities,
                    ..Default::default()
                })
                .collect();
            let info = venus::DeviceCreateInfo { p_queue_create_infos: Some(&infos), ..Default::default() };
            let distinct = distinct_queues(&families, &info).ok()?;
            Some(distinct.iter().map(|q| (q.queue_family_index, q.queue_count)).collect::<Vec<_>>())
        };
        let priorities = Some(&[1.0, 0.5, 0.5][..]);
        assert_eq!(ask(&[(0, 1, priorities), (0, 1, priorities)]), Some(vec![(0, 1)]));
        assert_eq!(
            ask(&[(0, 1, priorities), (1, 2, priorities), (0, 3, priorities), (1, 1, priorities)]),
            Some(vec![(0, 3), (1, 2)])
        );
        assert_eq!(ask(&[(1, 3, priorities)]), None);
        assert_eq!(ask(&[(2, 1, priorities)]), None);
        assert_eq!(ask(&[(0, 0, priorities)]), None);
        assert_eq!(ask(&[(0, 1, None)]), None);
    }
}
