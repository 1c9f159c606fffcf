//! One command on its way to the driver: what generated and hand-written executors share.

use super::cancel::Cancel;
use super::command_buffer::CommandBuffer;
use super::device::Device;
use super::encoding::{Encoding, Shared};
use super::error::{ContextLost, Fault, INVALID};
use super::families::FamilyOrder;
use super::instance::Instance;
use super::lower::Lowering;
use super::memory::ResourceMemory;
use super::objects::{Handle, Object, State, Unplaced};
use super::physical_device::PhysicalDevice;
use super::queue::Queue;
use super::reading::{Reading, Recent};
use super::renderer::Renderer;
use super::submitted::Submitted;
use super::usage::{Usage, Uses};
use ash::vk;
use protocol::cursor::Arena;
use protocol::venus::generated as venus;
use std::cell::Cell;
use std::sync::Arc;

/// A command being executed.
pub struct Call<'a> {
    /// The context's Vulkan side.
    pub renderer: &'a Renderer,
    /// Where decoded and lowered values live until the command is done.
    pub arena: &'a Arena,
    /// The command's own encoding.
    pub bytes: &'a [u8],
    /// Ends waits.
    pub cancel: &'a Cancel,
    /// The guest waits for the result.
    pub heard: bool,
    /// The device that the command is for, once it was looked up; everything else it names must be of this device.
    pub owner: Cell<Option<*const Device>>,
    /// Which queue families its numbers mean.
    pub families: Cell<FamilyOrder>,
    /// The command goes into a recording.
    pub records: Cell<bool>,
}

/// Turns a legal failure into the reply that tells it.
pub fn settle<T>(
    outcome: Result<T, Fault>,
    failed: impl FnOnce(i32) -> Result<T, ContextLost>,
) -> Result<T, ContextLost> {
    match outcome {
        Ok(value) => Ok(value),
        Err(Fault::Failed(result)) => failed(result),
        Err(Fault::Lost(lost)) => Err(lost),
    }
}

impl<'a> Call<'a> {
    /// Executes a command that returns a `VkResult`, unless the guest has to hear of an earlier failure.
    pub fn tell<T>(&self, execute: impl FnOnce() -> Result<T, Fault>) -> Result<T, Fault> {
        match self.heard.then(|| self.renderer.unheard_failure()).flatten() {
            Some(result) => Err(Fault::Failed(result)),
            None => execute(),
        }
    }

    /// A command failed; unless the guest waits for its result, a later one tells.
    pub fn note_failure(&self, result: i32) {
        if !self.heard {
            self.renderer.note_failure(result);
        }
    }

    /// Locks the object table for reading, to lower parameters. Not held across a driver call.
    pub fn lowering(&self) -> Lowering<'a> {
        self.lowering_over(Reading::Own(self.renderer.objects.read()))
    }

    /// The same, where many things are looked up.
    pub fn looking_up<'l>(&'l self, objects: &'l Recent<'l>) -> Lowering<'l> {
        self.lowering_over(Reading::Shared(objects))
    }

    fn lowering_over<'l>(&self, objects: Reading<'l>) -> Lowering<'l>
    where
        'a: 'l,
    {
        let (memory, owner, families) = (self.renderer.memory(), self.owner.get(), self.families.get());
        Lowering { objects, arena: self.arena, memory, owner, families, uses: None }
    }

    /// The same for a recorded command: what it names goes into `uses`.
    pub fn recording<'u>(&'u self, uses: &'u Uses) -> Lowering<'u> {
        self.records.set(true);
        Lowering { uses: Some(uses), ..self.lowering() }
    }

    /// The device memory behind a resource that the context sees.
    pub fn resource(&self, id: u32) -> Result<Arc<ResourceMemory>, Fault> {
        let memory = self.renderer.resources.device_memory(id, self.cancel);
        memory.ok_or_else(|| vk::Result::ERROR_INVALID_EXTERNAL_HANDLE.into())
    }

    /// The instance an id names.
    pub fn instance(&self, id: venus::Instance) -> Result<Arc<Instance>, Fault> {
        match &self.renderer.objects.read().get(id)?.state {
            State::Instance(instance) => Ok(instance.clone()),
            _ => Err(inconsistent()),
        }
    }

    /// The physical device an id names.
    pub fn physical_device(&self, id: venus::PhysicalDevice) -> Result<Arc<PhysicalDevice>, Fault> {
        match &self.renderer.objects.read().get(id)?.state {
            State::PhysicalDevice(physical) => {
                self.families.set(physical.order);
                Ok(physical.clone())
            }
            _ => Err(inconsistent()),
        }
    }

    /// The device an id names.
    pub fn device(&self, id: venus::Device) -> Result<Arc<Device>, Fault> {
        match &self.renderer.objects.read().get(id)?.state {
            State::Device(device) => {
                self.is_for(device);
                Ok(device.clone())
            }
            _ => Err(inconsistent()),
        }
    }

    /// The queue an id names.
    pub fn queue(&self, id: venus::Queue) -> Result<Arc<Queue>, Fault> {
        let objects = self.renderer.objects.read();
        let object = objects.get(id)?;
        object.device.iter().for_each(|device| self.is_for(device));
        match &object.state {
            State::Queue(queue) => Ok(queue.clone()),
            _ => Err(inconsistent()),
        }
    }

    /// The command buffer an id names.
    pub fn command_buffer(&self, id: venus::CommandBuffer) -> Result<Arc<CommandBuffer>, Fault> {
        match &self.renderer.objects.read().get(id)?.state {
            State::CommandBuffer(command_buffer) => {
                self.is_for(&command_buffer.device);
                Ok(command_buffer.clone())
            }
            _ => Err(inconsistent()),
        }
    }

    /// The command is for this device.
    fn is_for(&self, device: &Arc<Device>) {
        self.owner.set(Some(Arc::as_ptr(device)));
        self.families.set(device.physical.order);
    }

    /// Binds what a `vkCreate…` returned: a handle, or a tombstone. Where there is no room the object is destroyed again, which is a
    /// failure.
    pub fn created<H: Handle>(
        &self,
        id: Option<&H>,
        raw: u64,
        device: &Arc<Device>,
        result: i32,
    ) -> Result<(), Fault> {
        self.bind(id, raw, device, result, State::Plain).map(drop)
    }

    /// Like [`Self::created`], with state of its own.
    pub fn bind<H: Handle>(
        &self,
        id: Option<&H>,
        raw: u64,
        device: &Arc<Device>,
        result: i32,
        state: State,
    ) -> Result<Arc<Usage>, Fault> {
        self.bind_one(id, raw, device, result, state, || self.encoding())
    }

    /// Like [`Self::bind`], where the command makes several: with one of [`Self::encodings`].
    pub fn bind_one<H: Handle>(
        &self,
        id: Option<&H>,
        raw: u64,
        device: &Arc<Device>,
        result: i32,
        state: State,
        encoding: impl FnOnce() -> Encoding,
    ) -> Result<Arc<Usage>, Fault> {
        let Some(id) = id else { return Err(Fault::lost("an object was created without an id")) };
        let usage = Arc::new(Usage::default());
        if result < 0 {
            self.not_created(Some(id), result)?;
            return Ok(usage);
        }
        let (device_of, created_by) = (Some(device.clone()), encoding());
        let object =
            Object { kind: H::KIND, raw, device: device_of, state, usage: usage.clone(), created_by };
        match self.renderer.objects.insert(id.id(), object) {
            Ok(()) => Ok(usage),
            Err(Unplaced::Lost(lost)) => Err(lost.into()),
            Err(Unplaced::Full(limit, object)) => {
                self.renderer.allowance.reached(limit);
                // SAFETY: the driver has just made it, and nobody else knows it.
                unsafe { device.destroy(object.kind, object.raw) };
                let full = vk::Result::ERROR_OUT_OF_HOST_MEMORY.as_raw();
                self.note_failure(full);
                self.not_created(Some(id), full)?;
                Err(Fault::Failed(full))
            }
        }
    }

    /// The command's encoding, to be kept with the object that it made.
    pub fn encoding(&self) -> Encoding {
        self.renderer.objects.described().keep(self.bytes)
    }

    /// The same for each of so many objects.
    pub fn encodings(&self, count: usize) -> impl Fn() -> Encoding {
        let shared = (count > 1).then(|| self.renderer.objects.described().share(self.bytes));
        move || shared.as_ref().map_or_else(|| self.encoding(), Shared::encoding)
    }

    /// Leaves a tombstone.
    pub fn not_created<H: Handle>(&self, id: Option<&H>, result: i32) -> Result<(), ContextLost> {
        match id {
            Some(id) => self.renderer.objects.insert_failed(id.id(), H::KIND, result),
            None => Err(ContextLost::new("an object was created without an id")),
        }
    }

    /// Leaves a tombstone for each id of a creation that made none.
    pub fn none_created<H: Handle>(&self, ids: &[H], result: i32) -> Result<(), ContextLost> {
        ids.iter().try_for_each(|id| self.not_created(Some(id), result))
    }

    /// Destroys what was taken out of the table: once no command and no submission can use it any more.
    pub fn destroy(&self, object: Object) -> Result<(), ContextLost> {
        self.renderer.retired.destroy(object)
    }

    /// Takes an object out of the table and destroys it.
    pub fn take<H: Handle>(&self, id: H) -> Result<(), Fault> {
        if let Some(object) = self.renderer.objects.remove(id)? {
            self.destroy(object)?;
        }
        Ok(())
    }

    /// Waits until submissions have completed that use what `command` is about: a guest may learn of it before the host's fence is
    /// signalled.
    pub fn await_submitted(
        &self,
        device: &Device,
        submitted: &Submitted,
        command: &'static str,
    ) -> Result<(), Fault> {
        match device.wait_for(self.renderer, submitted, self.cancel, command) {
            true => Ok(()),
            false => Err(Fault::invalid("it is in use by a pending submission")),
        }
    }

    /// Marks a command buffer that names a tombstone: it must never reach the driver's queue. What breaks valid usage is only
    /// left out.
    pub fn spoil(&self, id: venus::CommandBuffer, result: i32) {
        if result == INVALID {
            return;
        }
        // A command buffer that does not exist has nothing to spoil: it was reported when it was looked up.
        let Ok(command_buffer) = self.command_buffer(id) else { return };
        if let Ok(recording) = command_buffer.pool.lock().find(&command_buffer) {
            recording.state.spoilt = Some(result);
        }
    }
}

/// The kind of an entry and its state disagree: a bug of ours, ended as the context's loss rather than a panic.
#[cold]
pub fn inconsistent() -> Fault {
    Fault::lost("object table is inconsistent")
}
