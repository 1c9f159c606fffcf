//! One command on its way to the driver: what generated and hand-written executors share.

use super::cancel::Cancel;
use super::command_pool::Recording;
use super::device::Device;
use super::error::{ContextLost, Fault};
use super::instance::Instance;
use super::lower::Lowering;
use super::memory::ResourceMemory;
use super::objects::{Handle, Object, State, Unplaced};
use super::physical_device::PhysicalDevice;
use super::queue::Queue;
use super::renderer::Renderer;
use ash::vk;
use protocol::cursor::Arena;
use protocol::venus::generated as venus;
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

    /// Locks the object table for reading, to lower parameters. Never held across a driver call.
    pub fn lowering(&self) -> Lowering<'a> {
        let (objects, memory) = (self.renderer.objects.read(), self.renderer.gpu.memory);
        Lowering { objects, arena: self.arena, memory }
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
            State::PhysicalDevice(physical) => Ok(physical.clone()),
            _ => Err(inconsistent()),
        }
    }

    /// The device an id names.
    pub fn device(&self, id: venus::Device) -> Result<Arc<Device>, Fault> {
        match &self.renderer.objects.read().get(id)?.state {
            State::Device(device) => Ok(device.clone()),
            _ => Err(inconsistent()),
        }
    }

    /// The queue an id names.
    pub fn queue(&self, id: venus::Queue) -> Result<Arc<Queue>, Fault> {
        match &self.renderer.objects.read().get(id)?.state {
            State::Queue(queue) => Ok(queue.clone()),
            _ => Err(inconsistent()),
        }
    }

    /// The command buffer an id names, and its device. Recording into a spoilt one is skipped.
    pub fn command_buffer(&self, id: venus::CommandBuffer) -> Result<(u64, Arc<Device>), Fault> {
        let objects = self.renderer.objects.read();
        let object = objects.get(id)?;
        match (&object.state, &object.device) {
            (State::Pooled(Recording::Spoilt(result)), _) => Err(Fault::Failed(*result)),
            (_, Some(device)) => Ok((object.raw, device.clone())),
            _ => Err(inconsistent()),
        }
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
        self.bind(id, raw, device, result, State::Plain)
    }

    /// Like [`Self::created`], with state of its own.
    pub fn bind<H: Handle>(
        &self,
        id: Option<&H>,
        raw: u64,
        device: &Arc<Device>,
        result: i32,
        state: State,
    ) -> Result<(), Fault> {
        let Some(id) = id else { return Err(Fault::lost("an object was created without an id")) };
        if result < 0 {
            return Ok(self.not_created(Some(id), result)?);
        }
        let object =
            Object { kind: H::KIND, raw, device: Some(device.clone()), state, created_by: self.bytes.into() };
        match self.renderer.objects.insert(id.id(), object) {
            Ok(()) => Ok(()),
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

    /// Removes an object to destroy it; none if there is nothing to destroy.
    pub fn take<H: Handle>(&self, id: H) -> Result<Option<u64>, Fault> {
        Ok(self.renderer.objects.remove(id)?.map(|object| object.raw))
    }

    /// Marks a command buffer that names a tombstone: it must never reach the driver's queue.
    pub fn spoil(&self, id: venus::CommandBuffer, result: i32) {
        // A command buffer that does not exist has nothing to spoil: it was reported when it was looked up.
        let _ = self.renderer.objects.update(id, |object| {
            if let State::Pooled(recording) = &mut object.state {
                *recording = Recording::Spoilt(result);
            }
        });
    }
}

/// The kind of an entry and its state disagree: a bug of ours, ended as the context's loss rather than a panic.
pub fn inconsistent() -> Fault {
    Fault::lost("object table is inconsistent")
}
