//! The Vulkan side of one context, shared by all its rings.

use super::budget::Budget;
use super::call::Call;
use super::cancel::Cancel;
use super::device::Device;
use super::error::{ContextLost, Fault};
use super::gate::Gate;
use super::generated;
use super::instance::{Instance, api_version, load_entry};
use super::loss::LOST;
use super::memory::{self, Allowance, Exported, Pool, ResourceTable};
use super::objects::{Objects, State};
use super::pulse::Pulse;
use super::queue::{Done, Queue};
use super::recorder;
use super::retired::Retired;
use super::submission::Look;
use crate::config::{CacheKey, ContextLimits, GpuChoice, MemoryBackEnd, MemoryId, ShaderLimits};
use crate::shm::ResultWords;
use ash::vk;
use parking_lot::Mutex;
use protocol::cursor::Arena;
use protocol::cursor::Writer;
use protocol::venus::generated as venus;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

/// Executes commands for one context.
pub struct Renderer {
    /// Where instances come from.
    pub(super) entry: ash::Entry,
    /// The driver comes up, which it may do for as long as another context's kernel occupies the GPU.
    coming_up: AtomicBool,
    /// The GPUs, at least one.
    pub(super) gpus: Vec<GpuChoice>,
    /// What pipeline caches are authenticated with.
    pub(super) cache_key: CacheKey,
    /// What a shader module may ask of the driver.
    pub(super) shader_limits: ShaderLimits,
    /// Highest API version a guest sees.
    pub(super) api_version: u32,
    /// What the guest created.
    pub(super) objects: Arc<Objects>,
    /// Bounds on what the guest may make.
    pub(super) limits: ContextLimits,
    /// Bytes that decoded commands hold.
    decoded: Budget,
    /// What it may allocate.
    pub(super) allowance: Arc<dyn Allowance>,
    /// Where to tell what the guest polls.
    pub(super) results: Option<Arc<ResultWords>>,
    /// What the guest destroyed.
    pub(super) retired: Retired,
    /// Memory that it may want again.
    pub(super) pool: Arc<Pool>,
    /// What the guest can import.
    pub(super) resources: Arc<dyn ResourceTable>,
    /// Wakes who watches submissions.
    pub(super) pulse: Pulse,
    /// What submissions to each GPU pass, if they are scheduled.
    pub(super) gates: Vec<Arc<Gate>>,
    /// A `VkResult` that the guest did not wait for and has not heard of; 0 if there is none.
    unheard: AtomicI32,
    /// A device is lost as the guest sees it.
    lost: AtomicBool,
    /// The guest has fences in the host, where it can be told.
    host_fences: AtomicBool,
    /// Queues by `ring_idx`.
    timelines: Mutex<[Weak<Queue>; 64]>,
}

impl Renderer {
    /// Loads the host's loader. Its driver comes up when the guest makes an instance.
    ///
    /// # Errors
    ///
    /// No loader.
    pub fn new(
        gpus: Vec<GpuChoice>,
        limits: ContextLimits,
        cache_key: CacheKey,
        resources: Arc<dyn ResourceTable>,
        allowance: Arc<dyn Allowance>,
    ) -> Result<Self, ContextLost> {
        let entry = load_entry().map_err(no_driver)?;
        Ok(Self::on(entry, gpus, limits, cache_key, resources, allowance))
    }

    /// Serves on the driver behind `entry`.
    pub fn on(
        entry: ash::Entry,
        gpus: Vec<GpuChoice>,
        limits: ContextLimits,
        cache_key: CacheKey,
        resources: Arc<dyn ResourceTable>,
        allowance: Arc<dyn Allowance>,
    ) -> Self {
        let pool = Arc::new(Pool::new(&limits));
        Self {
            api_version: api_version(&entry),
            entry,
            coming_up: AtomicBool::new(false),
            gpus,
            cache_key,
            shader_limits: limits.shaders,
            objects: Arc::new(Objects::new(&limits)),
            retired: Retired::new(limits.retired, Arc::clone(&pool)),
            pool,
            decoded: Budget::new("arena_bytes", limits.arena_bytes),
            limits,
            allowance,
            resources,
            results: None,
            pulse: Pulse::default(),
            gates: Vec::new(),
            unheard: AtomicI32::new(0),
            lost: AtomicBool::new(false),
            host_fences: AtomicBool::new(false),
            timelines: Mutex::new(std::array::from_fn(|_| Weak::new())),
        }
    }

    /// Memory for decoded commands: so many bytes, and what all arenas share beyond that.
    pub fn arena(&self, own: usize) -> Arena {
        Arena::within(own, self.decoded.count())
    }

    /// Tells the device process where the guest looks for the results of its fences.
    #[must_use]
    pub fn telling(self, results: Arc<ResultWords>) -> Self {
        Self { results: Some(results), ..self }
    }

    /// Lets submissions pass the gate of their GPU.
    #[must_use]
    pub fn gated(self, gates: Vec<Arc<Gate>>) -> Self {
        Self { gates, ..self }
    }

    /// An instance for a program of the guest. Not made before there is a program: NVIDIA's driver goes by the name of a process's first.
    ///
    /// # Errors
    ///
    /// The driver makes none.
    pub(super) fn instance(&self, program: vk::ApplicationInfo<'_>) -> Result<Instance, ContextLost> {
        self.coming_up.store(true, Ordering::Relaxed);
        let instance = Instance::new(self.entry.clone(), program).map_err(no_driver);
        self.coming_up.store(false, Ordering::Relaxed);
        instance
    }

    /// The driver is coming up, and cannot be stopped.
    pub fn is_coming_up(&self) -> bool {
        self.coming_up.load(Ordering::Relaxed)
    }

    /// What memory that guests map, on all GPUs.
    pub(super) fn memory(&self) -> MemoryBackEnd {
        self.gpus[0].memory
    }

    /// Executes one command that is not a transport command. `bytes` is its encoding, `reply` where its reply goes if it wants
    /// one; `cancel` ends its waits.
    ///
    /// # Errors
    ///
    /// The stream is wrong or the device is lost; the context is over.
    pub fn execute<'a>(
        &'a self,
        command: &venus::Command<'a>,
        bytes: &'a [u8],
        arena: &'a Arena,
        cancel: &'a Cancel,
        reply: Option<&mut Writer<'_>>,
    ) -> Result<(), ContextLost> {
        if !self.gpus[0].queues.draw() && generated::is_graphics(command) {
            return Err(ContextLost::new("a graphics command, which only --queues all executes"));
        }
        let heard = reply.is_some();
        let in_flight = self.retired.enter();
        let (owner, families, records) = Default::default();
        let call = Call { renderer: self, arena, bytes, cancel, heard, owner, families, records };
        let done = generated::execute(&call, command, reply);
        if call.records.get() {
            in_flight.only_records();
        }
        done
    }

    /// Executes the commands that a stream begins with, if they are recorded into one command buffer and want no reply, at most some
    /// dozens at once; answers their bytes, 0 if the first command has to be executed by itself.
    ///
    /// # Errors
    ///
    /// The stream is wrong; the context is over.
    pub fn record(&self, bytes: &[u8], arena: &mut Arena, cancel: &Cancel) -> Result<usize, ContextLost> {
        recorder::record_run(self, bytes, arena, cancel)
    }

    /// A command failed that the guest does not wait for: the next that can tell it does.
    pub(super) fn note_failure(&self, result: i32) {
        self.unheard.store(result, Ordering::Relaxed);
    }

    /// The guest need not hear of the last failure any more.
    pub(super) fn forget_failure(&self) {
        self.unheard.store(0, Ordering::Relaxed);
    }

    /// The guest makes fences of the host.
    pub(super) fn note_host_fence(&self) {
        self.host_fences.store(true, Ordering::Relaxed);
    }

    /// A device is lost as the guest sees it.
    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// Something submitted names what was never made, for the reason `result`: its device is lost as the guest sees it.
    ///
    /// # Errors
    ///
    /// The guest has no fence that could tell: its context is.
    pub(super) fn lose_device(&self, result: i32) -> Result<(), Fault> {
        if !self.host_fences.load(Ordering::Relaxed) {
            return Err(Fault::lost(format!(
                "a submission names an object whose creation failed ({result})"
            )));
        }
        if !self.lost.swap(true, Ordering::Relaxed) {
            log::warn!("a submission names an object whose creation failed ({result}): the device is lost");
        }
        Ok(())
    }

    /// Whether the guest has to hear of a failure with the next answer.
    pub(super) fn owes_failure(&self) -> bool {
        self.is_lost() || self.unheard.load(Ordering::Relaxed) != 0
    }

    /// The failure that the guest has to hear of: once, or for ever if its device is lost.
    pub(super) fn unheard_failure(&self) -> Option<i32> {
        if self.is_lost() {
            return Some(LOST);
        }
        match self.unheard.load(Ordering::Relaxed) {
            0 => None,
            _ => Some(self.unheard.swap(0, Ordering::Relaxed)).filter(|result| *result != 0),
        }
    }

    /// The memory of a memory object, for a blob of `size` bytes.
    ///
    /// # Errors
    ///
    /// Why not, for the log.
    pub fn export(&self, memory: u64, size: u64, mappable: bool) -> Result<Exported, String> {
        if let Some(result) = self.unheard_failure() {
            return Err(format!("the guest has to hear of a failure before ({result})"));
        }
        // Locked until the driver has answered: another ring may be about to free the memory.
        let objects = self.objects.read();
        let object = objects.get(venus::DeviceMemory(memory)).map_err(|fault| format!("{fault:?}"))?;
        match (&object.state, &object.device) {
            (State::Memory(memory), Some(device)) => {
                let exported = memory::export(memory, device, object.raw, size, mappable)?;
                match (&exported.lent, memory.lent()) {
                    (Some(_), Some(memory)) => self.retired.lend(memory),
                    _ if exported.file.is_some() => self.pool.show(memory),
                    _ => {}
                }
                Ok(exported)
            }
            _ => Err("no memory".into()),
        }
    }

    /// A blob of memory that is lent ([`Exported::lent`]) is gone, and nobody has it mapped; or one of other memory, which nobody else
    /// holds.
    pub fn blob_gone(&self, memory: MemoryId) {
        if !self.pool.blob_gone(memory) {
            self.retired.give_back(memory);
        }
    }

    /// Whether others may have memory mapped that is gone when the driver frees it.
    pub fn is_lending(&self) -> bool {
        self.retired.is_lending()
    }

    /// The command that created an object, as the guest encoded it: what a snapshot rebuilds the object from.
    pub fn created_by(&self, id: u64) -> Option<Box<[u8]>> {
        self.objects.created_by(id)
    }

    /// Calls `done` when the queue bound to `ring_idx` has completed what was submitted to it so far; at once if there is none.
    pub fn queue_fence(&self, ring_idx: u8, done: Done) {
        let queue = self.timelines.lock().get(usize::from(ring_idx)).and_then(Weak::upgrade);
        match queue {
            Some(queue) => queue.fence(done),
            None => {
                log::debug!(ring_idx; "fence on a timeline without a queue, answered at once");
                done();
            }
        }
    }

    /// Lets one thread sleep while there is nothing for [`Self::look`] to find.
    pub fn pulse(&self) -> &Pulse {
        &self.pulse
    }

    /// Looks at what runs on all queues. Time counts in small steps, so this is to be called often while something is pending; with
    /// `restart` it counts from 0 again.
    pub fn look(&self, restart: bool) -> Look {
        let queues: Vec<_> = self.timelines.lock().iter().filter_map(Weak::upgrade).collect();
        let now = Instant::now();
        queues.iter().for_each(|queue| queue.refresh());
        if let Some(gate) = self.gates.first() {
            gate.tell_processor_time();
        }
        let looks: Vec<_> = queues.iter().map(|queue| queue.look(&self.objects, now, restart)).collect();
        for gate in &self.gates {
            let own = queues.iter().zip(&looks).filter(|(queue, _)| queue.passes_through(gate));
            gate.tell_running(own.filter_map(|(_, look)| look.running).max());
        }
        looks.into_iter().fold(Look::default(), Look::and)
    }

    /// Binds a queue to its timeline.
    pub(super) fn bind_timeline(&self, ring_idx: u8, queue: &Arc<Queue>) -> Result<(), Fault> {
        let mut timelines = self.timelines.lock();
        let slot = &mut timelines[usize::from(ring_idx)];
        if slot.upgrade().is_some() {
            return Err(Fault::lost(format!("ring_idx {ring_idx} is bound already")));
        }
        *slot = Arc::downgrade(queue);
        Ok(())
    }

    /// Destroys a device and everything it owns.
    pub(super) fn destroy_device(&self, device: &Arc<Device>) -> Result<(), ContextLost> {
        let timelines: Vec<u8> = device.queues.lock().iter().map(|queue| queue.ring_idx).collect();
        let objects = device.end(self.objects.drain_device(device));
        self.pool.close(device);
        for object in objects {
            object.state.close_pool();
            self.retired.destroy(object)?;
        }
        // Not before: what runs on them is watched until it is over.
        for ring_idx in timelines {
            self.timelines.lock()[usize::from(ring_idx)] = Weak::new();
        }
        Ok(())
    }

    /// Destroys everything a guest made. Waits for the device: bound it from outside. No command is in flight any more, and nothing is
    /// lent.
    pub fn destroy_objects(&self) {
        for device in self.objects.drain_devices() {
            // Only the limit can be in the way, and what exceeds it ends with the process.
            let _ = self.destroy_device(&device);
        }
        self.retired.flush();
        self.objects.clear();
    }
}

fn no_driver(fault: Fault) -> ContextLost {
    match fault {
        Fault::Lost(lost) => lost,
        Fault::Failed(result) => ContextLost::new(format!("the driver refuses an instance ({result})")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_about_the_device_need_no_graphics_queue() {
        let device = venus::Device(1);
        let question =
            venus::GetRenderingAreaGranularity { device, p_rendering_area_info: None, p_granularity: None };
        assert!(!generated::is_graphics(&venus::Command::GetRenderingAreaGranularity(question)));
        let made = venus::DestroyRenderPass { device, render_pass: venus::RenderPass(0) };
        assert!(generated::is_graphics(&venus::Command::DestroyRenderPass(made)));
    }
}
