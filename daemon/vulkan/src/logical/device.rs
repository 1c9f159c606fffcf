//! `VkDevice`: created with features and extensions that the guest was offered, and no others.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use super::dual_buffers::DualBuffers;
use super::pipeline_caches::PipelineCaches;
use super::shaders::Shaders;
use super::submitted::{Place, Submitted};
use super::timeline::Timeline;
use crate::context::error::Fault;
use crate::context::ranked::{HOST_QUEUE, QUEUES, Ranked};
use crate::driver::back_end::BackEnd;
use crate::driver::buffers_told::BuffersTold;
use crate::driver::generated::DeviceTable;
use crate::driver::host_copy::HostCopy;
use crate::driver::markers::Markers;
use crate::driver::memory_fds::{MemoryFds, OPAQUE_FD};
use crate::driver::physical_device::PhysicalDevice;
use crate::gates::gate::Gate;
use crate::programs::clear::Cleaner;
use crate::programs::notices::{Notices, destroy_notices};
use crate::programs::own_queue::{OwnQueue, Spare};
use ash::vk::{self, Handle as _};
use parking_lot::Mutex;
use protocol::venus::generated as venus;
use shm::{SubmissionId, TraceNote, page_clock};
use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// A queue of the host, used under the lock only (Vulkan 3.6: queues are externally synchronised).
pub(crate) type HostQueue = Ranked<HOST_QUEUE, vk::Queue>;

/// The queues of a device that the guest has asked for.
#[derive(Default)]
struct Queues {
    list: Vec<(u8, Arc<dyn Timeline>)>,
    /// True when the device is destroyed, and none is added any more.
    is_closed: bool,
}

/// A logical device of a guest.
pub struct Device {
    /// Functions for our own calls.
    pub ash: ash::Device,
    /// Functions for the guest's calls.
    pub(crate) table: DeviceTable,
    /// Functions for host image copies.
    pub host_copy: HostCopy,
    /// The physical device that the logical device was created from.
    pub physical: Arc<PhysicalDevice>,
    /// The back end that makes the device's memory.
    pub memory: BackEnd,
    /// The functions that hand memory which only the driver uses to a successor of this worker, if the driver has such memory.
    pub(crate) exports: Option<MemoryFds>,
    /// The kinds of such memory that are not made any more.
    exports_no_more: ExportsNoMore,
    /// Fences that mark ends of submissions.
    pub markers: Markers,
    /// The limits and features that decide which shaders of a guest reach the driver.
    pub shaders: Shaders,
    /// The cleaner of fresh memory, unless that is switched off.
    pub cleaner: Option<Cleaner>,
    /// The queue that is not the guest's, if the device was created with one.
    own_queue: Option<OwnQueue>,
    /// The gate that submissions pass, and to which clearing memory is charged; none if there is no scheduler.
    pub gate: Option<Arc<Gate>>,
    /// The queues that the guest has asked for so far, with the timelines that they are bound to.
    queues: Ranked<QUEUES, Queues>,
    /// The guest's name of the first of these queues.
    first_queue: OnceLock<venus::Queue>,
    /// The command buffers that tell a guest that the device is lost.
    pub notices: Mutex<Notices>,
    /// The host's queues, each behind one lock however many ids it has.
    handles: Mutex<Vec<(vk::Queue, Arc<HostQueue>)>>,
    /// The driver's last answers about buffers.
    pub(crate) buffers_told: BuffersTold,
    /// Buffers that are made twice, if the GPU has memory that requires this.
    pub dual_buffers: Option<DualBuffers>,
    /// The pipeline caches.
    pub(crate) pipeline_caches: PipelineCaches,
    /// True if addresses of buffers and memory can be had again: the host has `bufferDeviceAddressCaptureReplay`, and the guest has enabled
    /// `bufferDeviceAddress`.
    pub replays_addresses: bool,
    /// The device nodes that drivers map memory out of, of all GPUs of the context.
    pub mapped_devices: Vec<u64>,
    /// True once the descriptors that keep its memory alive were handed out.
    pub is_anchored: AtomicBool,
    /// True once the guest has destroyed the device: no memory of it is kept.
    pub has_ended: AtomicBool,
    /// Queues that were created with the device.
    created: Vec<CreatedQueues>,
}

/// Queues of one family and one set of flags.
#[derive(Clone, Copy, Debug)]
pub struct CreatedQueues {
    flags: u32,
    family: u32,
    count: u32,
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device").finish_non_exhaustive()
    }
}

/// The address of memory that only the driver uses, or of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addressing {
    /// The object has no address, or none that can be had again.
    None,
    /// The object has an address that can be had again.
    Replayed,
}

impl Addressing {
    /// Returns the addressing of an object whose address can be had again if it `replays`.
    pub fn of(replays: bool) -> Self {
        if replays { Self::Replayed } else { Self::None }
    }
}

/// The memory that is not made for a successor any more, once the guest has a buffer or an image that must not be bound to such memory.
#[derive(Debug, Default)]
struct ExportsNoMore {
    /// All memory.
    all: AtomicBool,
    /// Memory with an address.
    addressed: AtomicBool,
}

impl Device {
    /// Takes over a handle that was just created.
    ///
    /// # Safety
    ///
    /// `handle` is a live device of `physical` that nothing else destroys.
    pub unsafe fn new(
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
        let exported = physical.gpu.exported_types() != 0;
        let exports = exported.then(|| MemoryFds::new(instance, &ash, OPAQUE_FD));
        let cleaner = physical.gpu.protection.zero_memory.then(|| Cleaner::new(&physical));
        let own_queue = spare.map(|spare| OwnQueue::new(&physical, &ash, spare, gate.clone()));
        let own = physical.gpu.trial.driver_mapped.types;
        let (markers, queues, notices) = (Markers::default(), Ranked::default(), Mutex::default());
        let handles = Mutex::default();
        Self {
            ash,
            table,
            host_copy,
            memory,
            exports,
            exports_no_more: ExportsNoMore::default(),
            markers,
            shaders,
            cleaner,
            own_queue,
            gate,
            queues,
            first_queue: OnceLock::new(),
            notices,
            handles,
            buffers_told: BuffersTold::default(),
            dual_buffers: (own != 0 || exported).then(|| DualBuffers::new(own)),
            pipeline_caches: PipelineCaches::default(),
            replays_addresses: false,
            mapped_devices,
            is_anchored: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            created,
            physical,
        }
    }

    /// The queue that is not the guest's, if the device was created with one.
    pub fn own_queue(&self) -> Option<&OwnQueue> {
        self.own_queue.as_ref()
    }

    /// Returns whether memory that only the driver uses is made so that a successor can have it.
    pub fn exports_memory(&self, addressing: Addressing) -> bool {
        let ended = &self.exports_no_more;
        let is_over = ended.all.load(Ordering::Relaxed)
            || addressing == Addressing::Replayed && ended.addressed.load(Ordering::Relaxed);
        self.exports.is_some() && !is_over
    }

    /// Notes that the guest has a buffer of this addressing, or an image, that must not be bound to exportable memory. A buffer with an address is in memory
    /// with an address only. Memory that was made before stays exportable: drivers do not check this at binding, as the memory itself does not differ.
    pub fn export_no_more(&self, addressing: Addressing) {
        let (ended, which) = match addressing {
            Addressing::Replayed => (&self.exports_no_more.addressed, " with an address"),
            Addressing::None => (&self.exports_no_more.all, ""),
        };
        if self.exports.is_some() && !ended.swap(true, Ordering::Relaxed) {
            log::debug!(
                "new memory of the driver's own{which} is not exportable from now on: an image or buffer must not be bound to exportable memory"
            );
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
            && let Some(other) = self.dual_buffers.as_ref().and_then(|buffers| buffers.part(raw))
        {
            // SAFETY: only the table of dual buffers knew it.
            unsafe { self.ash.destroy_buffer(vk::Buffer::from_raw(other), None) };
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

    /// Returns the lock of a queue of the host, the same for all ids that name it.
    pub(crate) fn handle_of(&self, raw: vk::Queue) -> Arc<HostQueue> {
        let mut handles = self.handles.lock();
        let known = handles.iter().find(|(of, _)| *of == raw).map(|(_, handle)| handle.clone());
        known.unwrap_or_else(|| {
            let handle = Arc::new(HostQueue::new(raw));
            handles.push((raw, handle.clone()));
            handle
        })
    }

    /// Returns whether the device was created with queues of a family.
    pub fn has_family(&self, family: u32) -> bool {
        self.created.iter().any(|created| created.family == family)
    }

    /// Returns whether the device was created with this queue of a family.
    pub fn has_queue(&self, flags: u32, family: u32, index: u32) -> bool {
        let is_it = |created: &CreatedQueues| (created.flags, created.family) == (flags, family);
        self.created.iter().any(|created| is_it(created) && index < created.count)
    }

    /// Adds a queue that the guest has asked for, which is bound to a timeline.
    ///
    /// # Errors
    ///
    /// The device is being destroyed.
    pub fn add_queue(&self, ring_idx: u8, queue: Arc<dyn Timeline>) -> Result<(), Fault> {
        let mut queues = self.queues.lock();
        if queues.is_closed {
            return Err(Fault::invalid("a queue of a device that is destroyed"));
        }
        queues.list.push((ring_idx, queue));
        Ok(())
    }

    /// Notes the guest's name of one of these queues.
    pub fn name_queue(&self, id: venus::Queue) {
        self.first_queue.get_or_init(|| id);
    }

    /// Returns the guest's name of the first queue that has one. Once the device is destroyed, the name may be that of another object.
    pub fn first_queue(&self) -> Option<venus::Queue> {
        self.first_queue.get().copied()
    }

    /// The queues that the guest asked for so far.
    pub fn queues(&self) -> Vec<Arc<dyn Timeline>> {
        self.queues.lock().list.iter().map(|(_, queue)| Arc::clone(queue)).collect()
    }

    /// The timelines of these queues.
    pub fn timelines(&self) -> Vec<u8> {
        self.queues.lock().list.iter().map(|(ring_idx, _)| *ring_idx).collect()
    }

    /// Returns whether a trace is taken, which records the ends of submissions.
    pub fn is_traced(&self) -> bool {
        self.gate.as_ref().is_some_and(|gate| gate.is_traced())
    }

    /// Records in the trace, if one is taken, that the guest was just told that a submission is complete; 0 is the number of no submission.
    pub fn tell_end(&self, Place { ring_idx, number }: Place) {
        if let Some(gate) = self.gate.as_ref().filter(|_| number > 0) {
            let of = SubmissionId { queue: ring_idx, number };
            gate.tell_note(|| TraceNote::Told { of, at: page_clock() });
        }
    }

    /// Returns whether submissions have completed. Older work on other queues does not matter.
    pub fn completed(&self, submitted: &Submitted) -> bool {
        submitted.is_empty() || submitted.places().all(|place| self.has_completed(place))
    }

    /// Returns whether a submission has completed.
    pub fn has_completed(&self, place: Place) -> bool {
        let queues = self.queues.lock();
        let queue = queues.list.iter().find(|(ring_idx, _)| *ring_idx == place.ring_idx);
        queue.is_none_or(|(_, queue)| queue.has_completed(self, place.number))
    }

    /// Returns whether one of these submissions cannot have begun.
    pub fn is_blocked(&self, submitted: &Submitted) -> bool {
        let queues = self.queues.lock().list.clone();
        // Queues wait for each other.
        queues.iter().for_each(|(_, queue)| queue.refresh());
        submitted.places().any(|place| {
            let queue = queues.iter().find(|(ring_idx, _)| *ring_idx == place.ring_idx);
            queue.is_some_and(|(_, queue)| queue.is_blocked(self, place.number))
        })
    }

    /// Waits until all queues of the device are idle, and destroys the objects that are not the guest's. No thread uses the guest's objects any more.
    pub fn end(&self) {
        // The queues stay in the list until nothing is pending: other threads that destroy objects ask them what has completed.
        self.queues.lock().is_closed = true;
        let queues = self.queues();
        queues.iter().for_each(|queue| queue.close());
        let handles: Vec<_> = self.handles.lock().iter().map(|(_, handle)| Arc::clone(handle)).collect();
        // The thread that watches the length of submissions submits markers, which it must not do meanwhile.
        let _alone: Vec<_> = handles.iter().map(|handle| handle.lock_another()).collect();
        // SAFETY: the device is live. A lost device answers with an error, which changes nothing.
        let _ = unsafe { self.ash.device_wait_idle() };
        queues.iter().for_each(|queue| queue.forget_submissions(self));
        self.queues.lock().list.clear();
        self.markers.destroy(&self.ash);
        if let Some(queue) = self.own_queue() {
            queue.destroy(&self.ash);
        }
        destroy_notices(&self.ash, &self.notices);
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // A thread that noticed the end of a submission late may have returned a marker.
        self.markers.destroy(&self.ash);
        // SAFETY: the device is live, and this is the last that holds it.
        unsafe { self.pipeline_caches.ours.destroy(&self.ash) };
        // SAFETY: objects hold an `Arc` of their device, so none is left; queues end with the device.
        unsafe { self.ash.destroy_device(None) }
    }
}

impl From<&venus::DeviceQueueCreateInfo<'_>> for CreatedQueues {
    fn from(queues: &venus::DeviceQueueCreateInfo<'_>) -> Self {
        Self { flags: queues.flags.0, family: queues.queue_family_index, count: queues.queue_count }
    }
}
