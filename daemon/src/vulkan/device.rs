//! `VkDevice`: created with what a guest was offered and no more, destroyed with everything it owns.

use super::call::Call;
use super::cancel::Cancel;
use super::error::{ContextLost, Fault};
use super::extensions::{self, Enable};
use super::gate::Gate;
use super::generated::{DeviceTable, sys};
use super::harden;
use super::host_copy::HostCopy;
use super::loss::{Notices, destroy_notices};
use super::markers::Markers;
use super::memory::BackEnd;
use super::objects::{Handle, Object, State};
use super::physical_device::PhysicalDevice;
use super::queue::Queue;
use super::shader::Shaders;
use super::shape;
use super::twins::Twins;
use super::zero::{self, Cleaner, Spare};
use ash::vk::{self, Handle as _};
use parking_lot::Mutex;
use protocol::venus::generated as venus;
use std::ffi::{CStr, c_char, c_void};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A logical device of a guest.
pub struct Device {
    /// Functions for our own calls.
    pub ash: ash::Device,
    /// Functions for the guest's calls.
    pub table: DeviceTable,
    /// Functions for host image copies.
    pub host_copy: HostCopy,
    /// What it was made from.
    pub physical: Arc<PhysicalDevice>,
    /// How its memory is made.
    pub memory: BackEnd,
    /// Fences that mark ends of submissions.
    pub markers: Markers,
    /// What of shaders reaches the driver.
    pub shaders: Shaders,
    /// Clears memory, unless that is switched off.
    pub cleaner: Option<Cleaner>,
    /// Who is told what that costs.
    pub gate: Option<Arc<Gate>>,
    /// Queues the guest asked for so far.
    pub queues: Mutex<Vec<Arc<Queue>>>,
    /// How a guest hears that it is lost.
    pub notices: Mutex<Notices>,
    /// The host's queues, each behind one lock however many ids it has.
    handles: Mutex<Vec<(vk::Queue, Arc<Mutex<vk::Queue>>)>>,
    /// Buffers that are made twice, if the GPU has memory for which they must be.
    pub twins: Option<Twins>,
    /// The device nodes that drivers map memory out of, of all GPUs of the context.
    pub mapped_devices: Vec<u64>,
    /// What keeps its memory alive was handed out.
    pub is_anchored: AtomicBool,
    /// Its guest has destroyed it: no memory of it is kept.
    pub has_ended: AtomicBool,
    /// Queues that were created with the device.
    created: Vec<CreatedQueues>,
}

/// Queues of one family and one set of flags.
#[derive(Clone, Copy, Debug)]
struct CreatedQueues {
    flags: u32,
    family: u32,
    count: u32,
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device").finish_non_exhaustive()
    }
}

impl Device {
    /// Takes over a handle that was just created.
    ///
    /// # Safety
    ///
    /// `handle` is a live device of `physical` that nothing else destroys.
    unsafe fn new(
        physical: Arc<PhysicalDevice>,
        handle: vk::Device,
        created: Vec<CreatedQueues>,
        shaders: Shaders,
        spare: Option<Spare>,
        gate: Option<Arc<Gate>>,
        mapped_devices: Vec<u64>,
    ) -> Self {
        let instance = &physical.instance.ash;
        // SAFETY: the caller's promise.
        let ash = unsafe { ash::Device::load(instance.fp_v1_0(), handle) };
        let load = instance.fp_v1_0().get_device_proc_addr;
        let find = |names: &[&CStr]| {
            names
                .iter()
                // SAFETY: the device is live and the names are strings.
                .find_map(|name| unsafe { load(handle, name.as_ptr()) })
                .map_or(std::ptr::null(), |function| function as *const c_void)
        };
        let (table, host_copy) = (DeviceTable::load(find), HostCopy::load(find));
        let memory = BackEnd::new(&physical, &ash);
        let cleaner = physical.gpu.protection.zero_memory.then(|| Cleaner::new(&physical, &ash, spare));
        let own = physical.gpu.trial.driver_mapped.types;
        let (markers, queues, notices) = (Markers::default(), Mutex::default(), Mutex::default());
        let handles = Mutex::default();
        Self {
            ash,
            table,
            host_copy,
            memory,
            markers,
            shaders,
            cleaner,
            gate,
            queues,
            notices,
            handles,
            twins: (own != 0).then(|| Twins::new(own)),
            mapped_devices,
            is_anchored: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            created,
            physical,
        }
    }

    /// The handle as a number.
    pub fn raw(&self) -> u64 {
        self.ash.handle().as_raw()
    }

    /// Destroys one object of this device.
    ///
    /// # Safety
    ///
    /// `raw` is a live handle of this kind and device that is in no use.
    pub unsafe fn destroy(&self, kind: venus::ObjectType, raw: u64) {
        if kind == venus::ObjectType::BUFFER
            && let Some(twin) = self.twins.as_ref().and_then(|twins| twins.part(raw))
        {
            // SAFETY: nobody but the table of twins knew it.
            unsafe { self.ash.destroy_buffer(vk::Buffer::from_raw(twin), None) };
        }
        macro_rules! destroy {
            ($($kind:ident => $function:ident),* $(,)?) => {
                match kind {
                    // SAFETY: the caller's promise.
                    $(venus::ObjectType::$kind => unsafe { self.ash.$function(vk::Handle::from_raw(raw), None) },)*
                    // Queues belong to the device; command buffers and descriptor sets go with their pools, layouts with their last
                    // user.
                    _ => {}
                }
            };
        }
        destroy! {
            COMMAND_POOL => destroy_command_pool,
            DESCRIPTOR_POOL => destroy_descriptor_pool,
            PIPELINE => destroy_pipeline,
            PIPELINE_CACHE => destroy_pipeline_cache,
            SHADER_MODULE => destroy_shader_module,
            BUFFER_VIEW => destroy_buffer_view,
            FRAMEBUFFER => destroy_framebuffer,
            RENDER_PASS => destroy_render_pass,
            IMAGE_VIEW => destroy_image_view,
            BUFFER => destroy_buffer,
            IMAGE => destroy_image,
            SAMPLER => destroy_sampler,
            SAMPLER_YCBCR_CONVERSION => destroy_sampler_ycbcr_conversion,
            QUERY_POOL => destroy_query_pool,
            EVENT => destroy_event,
            FENCE => destroy_fence,
            SEMAPHORE => destroy_semaphore,
            DEVICE_MEMORY => free_memory,
        }
    }

    /// Destroys a layout of this device.
    ///
    /// # Safety
    ///
    /// `raw` is a live layout of this kind and device that is in no use.
    pub unsafe fn destroy_layout(&self, kind: venus::ObjectType, raw: u64) {
        let (set, pipeline) = (vk::DescriptorSetLayout::from_raw(raw), vk::PipelineLayout::from_raw(raw));
        match kind {
            // SAFETY: the caller's promise.
            venus::ObjectType::DESCRIPTOR_SET_LAYOUT => unsafe {
                self.ash.destroy_descriptor_set_layout(set, None);
            },
            // SAFETY: the caller's promise.
            _ => unsafe { self.ash.destroy_pipeline_layout(pipeline, None) },
        }
    }

    /// The lock of a queue of the host, the same for all ids that name it.
    pub fn handle_of(&self, raw: vk::Queue) -> Arc<Mutex<vk::Queue>> {
        let mut handles = self.handles.lock();
        let known = handles.iter().find(|(of, _)| *of == raw).map(|(_, handle)| handle.clone());
        known.unwrap_or_else(|| {
            let handle = Arc::new(Mutex::new(raw));
            handles.push((raw, handle.clone()));
            handle
        })
    }

    /// Whether it was created with queues of a family.
    pub fn has_family(&self, family: u32) -> bool {
        self.created.iter().any(|created| created.family == family)
    }

    /// Waits until the device is idle and answers `objects`, which are all it owns, in an order in which they can be destroyed.
    pub fn end(&self, mut objects: Vec<Object>) -> Vec<Object> {
        let queues = std::mem::take(&mut *self.queues.lock());
        queues.iter().for_each(|queue| queue.close());
        let handles: Vec<_> = self.handles.lock().iter().map(|(_, handle)| Arc::clone(handle)).collect();
        // Who looks how long submissions run submits markers, and must not meanwhile.
        let _alone: Vec<_> = handles.iter().map(|handle| handle.lock()).collect();
        // SAFETY: the device is live. A lost device answers with an error, which changes nothing.
        let _ = unsafe { self.ash.device_wait_idle() };
        queues.iter().for_each(|queue| queue.forget_submissions(self));
        self.markers.destroy(&self.ash);
        if let Some(cleaner) = &self.cleaner {
            cleaner.destroy(&self.ash);
        }
        destroy_notices(&self.ash, &self.notices);
        objects.sort_by_key(|object| destruction_rank(object.kind));
        objects
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: objects hold an `Arc` of their device, so none is left; queues end with the device.
        unsafe { self.ash.destroy_device(None) }
    }
}

/// Users before what they use.
fn destruction_rank(kind: venus::ObjectType) -> u8 {
    match kind {
        venus::ObjectType::COMMAND_POOL | venus::ObjectType::DESCRIPTOR_POOL => 0,
        venus::ObjectType::PIPELINE => 1,
        venus::ObjectType::FRAMEBUFFER => 3,
        venus::ObjectType::BUFFER_VIEW | venus::ObjectType::IMAGE_VIEW => 4,
        venus::ObjectType::SAMPLER => 5,
        venus::ObjectType::SAMPLER_YCBCR_CONVERSION => 6,
        venus::ObjectType::BUFFER | venus::ObjectType::IMAGE => 7,
        venus::ObjectType::DEVICE_MEMORY => 9,
        _ => 8,
    }
}

/// `vkCreateDevice`.
pub fn create_device<'a>(
    call: &Call<'a>,
    c: &venus::CreateDevice<'a>,
) -> Result<venus::CreateDeviceReply<'a>, Fault> {
    let physical = call.physical_device(c.physical_device)?;
    let Some(id) = c.p_device else { return Err(Fault::lost("vkCreateDevice without an id")) };
    let device = match open(call, &physical, c) {
        Ok(device) => Arc::new(device),
        Err(Fault::Failed(result)) => {
            call.not_created(Some(id), result)?;
            return Ok(venus::CreateDeviceReply { result: venus::VkResult(result), p_device: c.p_device });
        }
        Err(lost) => return Err(lost),
    };
    let object = Object {
        kind: venus::Device::KIND,
        raw: device.raw(),
        device: None,
        state: State::Device(device),
        usage: Arc::default(),
        created_by: call.encoding(),
    };
    call.renderer.objects.insert(id.id(), object).map_err(ContextLost::from)?;
    Ok(venus::CreateDeviceReply { result: venus::VkResult::SUCCESS, p_device: c.p_device })
}

fn open(
    call: &Call<'_>,
    physical: &Arc<PhysicalDevice>,
    c: &venus::CreateDevice<'_>,
) -> Result<Device, Fault> {
    let Some(info) = c.p_create_info else { return Err(Fault::lost("vkCreateDevice without a description")) };
    if !is_group_of_its_own(info, c.physical_device) {
        log::debug!("device refused: each physical device is a group of its own");
        return Err(vk::Result::ERROR_INITIALIZATION_FAILED.into());
    }
    let mut queues = distinct_queues(&physical.families, info)?;
    let created = queues.iter().map(CreatedQueues::from).collect();
    let protection = physical.gpu.protection;
    let mut spare = None;
    if protection.zero_memory
        && let Some((ours, position)) = zero::spare(&physical.families, &mut queues)
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
    if let Some(feature) = shape::withheld_feature(lowered) {
        log::debug!("device refused: {feature} is not offered");
        return Err(vk::Result::ERROR_FEATURE_NOT_PRESENT.into());
    }
    if physical.is_robust() {
        harden::enable_robustness(call, lowered)?;
    }
    let zero_workgroup = protection.zero_workgroup_memory && harden::can_zero_workgroup(physical);
    if zero_workgroup {
        harden::enable_zero_workgroup(call, lowered)?;
    }
    let shaders = Shaders::new(physical, &call.renderer.shader_limits, zero_workgroup);
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
    let (raw, gate) = (vk::Device::from_raw(raw), call.renderer.gates.get(physical.index).cloned());
    let driver_mapped = call.renderer.gpus.iter().map(|gpu| gpu.trial.driver_mapped);
    let mapped_devices =
        driver_mapped.filter(|mapped| mapped.types != 0).map(|mapped| mapped.device).collect();
    // SAFETY: the driver just made this device of `physical`.
    Ok(unsafe { Device::new(physical.clone(), raw, created, shaders, spare, gate, mapped_devices) })
}

impl From<&venus::DeviceQueueCreateInfo<'_>> for CreatedQueues {
    fn from(queues: &venus::DeviceQueueCreateInfo<'_>) -> Self {
        Self { flags: queues.flags.0, family: queues.queue_family_index, count: queues.queue_count }
    }
}

/// Whether the group that a device is to be made of, if one is named, is the physical device and nothing else: drivers take for granted
/// that the members are one group of theirs (VUID-VkDeviceGroupDeviceCreateInfo-pPhysicalDevices-00376).
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
/// by what they can do name one family twice if it can do everything, as the conformance suite does, and a driver may crash on it.
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

/// Names for the host's device: what the guest enabled and was offered, and what this daemon needs.
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
    let needed = extensions::needed(physical.gpu.memory).iter();
    names.extend(needed.filter(|name| !names.contains(name)).collect::<Vec<_>>());
    Ok(names.into_iter().map(CStr::as_ptr).collect())
}

/// `vkDestroyDevice`: may come while children are alive.
pub fn destroy_device(call: &Call<'_>, c: &venus::DestroyDevice) -> Result<venus::DestroyDeviceReply, Fault> {
    // A queue may wait for what never comes, and then this does until the context ends.
    if let Ok(device) = call.device(c.device) {
        wait_until_idle(&device, call.cancel)?;
    }
    if let Some(Object { state: State::Device(device), .. }) = call.renderer.objects.remove(c.device)? {
        call.renderer.destroy_device(&device)?;
    }
    Ok(venus::DestroyDeviceReply {})
}

/// `vkGetDeviceQueue2`: binds a queue to an id and to a fence timeline.
pub fn get_device_queue2<'a>(
    call: &Call<'a>,
    c: &venus::GetDeviceQueue2<'a>,
) -> Result<venus::GetDeviceQueue2Reply<'a>, Fault> {
    let device = call.device(c.device)?;
    let (Some(info), Some(id)) = (c.p_queue_info, c.p_queue) else {
        return Err(Fault::lost("vkGetDeviceQueue2 without a queue"));
    };
    let ring_idx = info.p_next.iter().find_map(|next| match next {
        venus::ChainStruct::DeviceQueueTimelineInfoMESA(timeline) => Some(timeline.ring_idx),
        _ => None,
    });
    let Some(ring_idx @ 1..=63) = ring_idx else {
        return Err(Fault::lost("a queue without a ring_idx of 1 to 63"));
    };
    let exists = device.created.iter().any(|created| {
        (created.flags, created.family) == (info.flags.0, info.queue_family_index)
            && info.queue_index < created.count
    });
    if !exists {
        return Err(Fault::lost("a queue that was not created"));
    }
    let host = vk::DeviceQueueInfo2::default()
        .flags(vk::DeviceQueueCreateFlags::from_raw(info.flags.0))
        .queue_family_index(device.physical.order.swap(info.queue_family_index))
        .queue_index(info.queue_index);
    // SAFETY: the device is live and was created with this queue.
    let raw = unsafe { device.ash.get_device_queue2(&host) };
    let queue = Queue::new(call.renderer, &device, raw, info.queue_family_index, ring_idx as u8);
    call.renderer.bind_timeline(ring_idx as u8, &queue)?;
    device.queues.lock().push(queue.clone());
    call.bind(Some(id), raw.as_raw(), &device, 0, State::Queue(queue))?;
    Ok(venus::GetDeviceQueue2Reply { p_queue: c.p_queue })
}

/// `vkDeviceWaitIdle`. Mesa never sends it.
pub fn device_wait_idle(
    call: &Call<'_>,
    c: &venus::DeviceWaitIdle,
) -> Result<venus::DeviceWaitIdleReply, Fault> {
    wait_until_idle(&*call.device(c.device)?, call.cancel)?;
    Ok(venus::DeviceWaitIdleReply { result: venus::VkResult::SUCCESS })
}

fn wait_until_idle(device: &Device, cancel: &Cancel) -> Result<(), Fault> {
    let queues = device.queues.lock().clone();
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
