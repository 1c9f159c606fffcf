//! One command on its way to the driver: the state and functions that generated and hand-written executors share.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use super::context::Context;
use crate::context::cancel::Cancel;
use crate::context::cause::StreamError;
use crate::context::error::{ContextLost, Fault};
use crate::context::resources::ResourceMemory;
use crate::driver::families::FamilyOrder;
use crate::driver::physical_device::PhysicalDevice;
use crate::logical::device::Device;
use crate::lowering::lower::Lowering;
use crate::objects::encoding::Encoding;
use crate::objects::object::{Handle, Kind, Object, StateOf};
use crate::objects::origin::{Names, Origin};
use crate::objects::reading::{Reading, Recent};
use crate::objects::table::Unplaced;
use crate::objects::usage::{Usage, Uses};
use ash::vk;
use protocol::cursor::Arena;
use protocol::venus::generated::{self as venus, ChainStruct};
use std::cell::Cell;
use std::sync::Arc;

/// A command being executed.
pub(crate) struct Call<'a> {
    /// The context that the command is executed for.
    pub context: &'a Context,
    /// The memory in which decoded and lowered values live until the command is done.
    pub arena: &'a Arena,
    /// The command's own encoding.
    pub bytes: &'a [u8],
    /// The flag that ends waits.
    pub cancel: &'a Cancel,
    /// The guest waits for the result.
    pub heard: bool,
    /// The device that the command is for, once it was looked up; all other objects that the command names must be of this device.
    pub owner: Cell<Option<*const Device>>,
    /// The order of queue families in which the command's numbers are read.
    pub families: Cell<FamilyOrder>,
    /// The command goes into a recording.
    pub records: Cell<bool>,
}

/// Turns a legal failure into the reply that reports it.
pub(crate) fn settle<T>(
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
    /// A command for which no object was looked up yet; `heard` says whether the guest waits for its result.
    #[inline]
    pub(crate) fn new(
        context: &'a Context,
        arena: &'a Arena,
        bytes: &'a [u8],
        cancel: &'a Cancel,
        heard: bool,
    ) -> Self {
        let (owner, families, records) = Default::default();
        Self { context, arena, bytes, cancel, heard, owner, families, records }
    }

    /// Returns a chain in which one struct, or none, takes the place of those that are replaced.
    pub(crate) fn chain_with(
        &self,
        chain: &[ChainStruct<'a>],
        is_replaced: impl Fn(&ChainStruct<'_>) -> bool,
        with: Option<ChainStruct<'a>>,
    ) -> Result<&'a [ChainStruct<'a>], Fault> {
        let kept = chain.iter().filter(|next| !is_replaced(next)).copied();
        Ok(self.arena.slice_copy(&kept.chain(with).collect::<Vec<_>>())?)
    }

    /// Executes a command that returns a `VkResult`. If the guest has to hear of an earlier failure, returns that instead.
    pub(crate) fn tell<T>(&self, execute: impl FnOnce() -> Result<T, Fault>) -> Result<T, Fault> {
        match self.heard.then(|| self.context.failures.take()).flatten() {
            Some(result) => {
                self.context.journal.breaks("its program has heard of a failure");
                Err(Fault::Failed(result))
            }
            None => execute(),
        }
    }

    /// Notes that the command failed; unless the guest waits for its result, a later command tells the guest.
    pub(crate) fn note_failure(&self, result: i32) {
        if !self.heard {
            self.context.journal.breaks("its program has yet to hear of a failure");
            self.context.failures.note(result);
        }
    }

    /// Takes note of the result of a command that a successor would execute again: a command that fails here may succeed there.
    #[inline]
    pub(crate) fn heed(&self, result: venus::VkResult) {
        if result.0 < 0 {
            self.context.journal.breaks("a command has failed");
        }
    }

    /// Reports that the command is refused because of `--queues`; returns its result. All graphics commands that return a result may return this one,
    /// and programs are prepared for it.
    #[cold]
    pub(crate) fn undrawn(&self) -> i32 {
        self.context.env.allowance.undrawn();
        vk::Result::ERROR_OUT_OF_DEVICE_MEMORY.as_raw()
    }

    /// Locks the object table for reading, to lower parameters. Not held across a driver call.
    pub(crate) fn lowering(&self) -> Lowering<'a> {
        self.lowering_over(Reading::Own(self.context.objects.read()))
    }

    /// Lowers parameters like [`Self::lowering`], through objects that were looked up lately: for commands that look up many objects.
    pub(crate) fn looking_up<'l>(&'l self, objects: &'l Recent<'l>) -> Lowering<'l> {
        self.lowering_over(Reading::Shared(objects))
    }

    fn lowering_over<'l>(&self, objects: Reading<'l>) -> Lowering<'l>
    where
        'a: 'l,
    {
        let (memory, owner, families) = (self.context.env.memory(), self.owner.get(), self.families.get());
        Lowering { objects, arena: self.arena, memory, owner, families, uses: None }
    }

    /// Lowers parameters like [`Self::lowering`] for a recorded command: the objects that it names go into `uses`.
    pub(crate) fn recording<'u>(&'u self, uses: &'u Uses) -> Lowering<'u> {
        self.records.set(true);
        Lowering { uses: Some(uses), ..self.lowering() }
    }

    /// Lowers parameters like [`Self::lowering`] for a command that creates an object: the objects that it names go into `names`.
    pub(crate) fn creating<'u>(&'u self, names: &'u Names) -> Lowering<'u> {
        Lowering { uses: Some(names.uses()), ..self.lowering() }
    }

    /// The device memory behind a resource that the context sees.
    pub(crate) fn resource(&self, id: u32) -> Result<Arc<ResourceMemory>, Fault> {
        let memory = self.context.env.resources.device_memory(id, self.cancel)?;
        memory.ok_or_else(|| vk::Result::ERROR_INVALID_EXTERNAL_HANDLE.into())
    }

    /// The state of the object that an id names.
    ///
    /// # Errors
    ///
    /// There is no such object.
    pub(crate) fn state<H: Kind>(&self, id: H) -> Result<Arc<H::State>, Fault> {
        self.context.objects.shared(id)
    }

    /// The state of the object that the command is for: all other objects that the command names must be of the same device.
    ///
    /// # Errors
    ///
    /// There is no such object.
    pub(crate) fn subject<H: Kind>(&self, id: H) -> Result<Arc<H::State>, Fault> {
        let objects = self.context.objects.read();
        let object = objects.get(id)?;
        object.device.iter().for_each(|device| self.is_for(device));
        object.shared::<H>()
    }

    /// The state of an object that has to be of the device that the command is for.
    ///
    /// # Errors
    ///
    /// There is no such object, or it is of another device.
    pub(crate) fn state_of_owner<H: Kind>(&self, id: H) -> Result<Arc<H::State>, Fault> {
        let l = self.lowering();
        l.handle(id)?;
        l.objects.get(id)?.shared::<H>()
    }

    /// The physical device an id names.
    ///
    /// # Errors
    ///
    /// There is no such physical device.
    pub(crate) fn physical_device(&self, id: venus::PhysicalDevice) -> Result<Arc<PhysicalDevice>, Fault> {
        let physical = self.state(id)?;
        self.families.set(physical.order);
        Ok(physical)
    }

    /// The device an id names.
    ///
    /// # Errors
    ///
    /// There is no such device.
    pub(crate) fn device(&self, id: venus::Device) -> Result<Arc<Device>, Fault> {
        let device = self.state(id)?;
        self.is_for(&device);
        Ok(device)
    }

    /// Notes that the command is for this device.
    fn is_for(&self, device: &Arc<Device>) {
        self.owner.set(Some(Arc::as_ptr(device)));
        self.families.set(device.physical.order);
    }

    /// Binds the result of a `vkCreate…`: a handle, or a tombstone. If the table has no room, the object is destroyed again, which is a
    /// failure.
    pub(crate) fn created<H: Handle>(
        &self,
        id: Option<&H>,
        raw: u64,
        device: &Arc<Device>,
        result: i32,
    ) -> Result<(), Fault> {
        self.bind(id, raw, device, result, StateOf::none()).map(drop)
    }

    /// Binds an object like [`Self::created`] that was made of other objects: those named while it was created ([`Self::creating`]).
    pub(crate) fn created_of<H: Handle>(
        &self,
        id: Option<&H>,
        raw: u64,
        device: &Arc<Device>,
        result: i32,
        names: Names,
    ) -> Result<(), Fault> {
        self.bind_made_of(id, raw, device, result, StateOf::none(), names).map(drop)
    }

    /// Binds an object like [`Self::created`], with state of its own.
    pub(crate) fn bind<H: Handle>(
        &self,
        id: Option<&H>,
        raw: u64,
        device: &Arc<Device>,
        result: i32,
        state: StateOf<H>,
    ) -> Result<Arc<Usage>, Fault> {
        self.bind_one(id, raw, device, result, state, || self.encoding().into())
    }

    /// Binds an object like [`Self::bind`] that was made of other objects: those named while it was created ([`Self::creating`]).
    pub(crate) fn bind_made_of<H: Handle>(
        &self,
        id: Option<&H>,
        raw: u64,
        device: &Arc<Device>,
        result: i32,
        state: StateOf<H>,
        names: Names,
    ) -> Result<Arc<Usage>, Fault> {
        self.bind_one(id, raw, device, result, state, || names.origin(self.encoding()))
    }

    /// Binds one of several objects that the command makes, like [`Self::bind`], with one of [`Self::origins`].
    pub(crate) fn bind_one<H: Handle>(
        &self,
        id: Option<&H>,
        raw: u64,
        device: &Arc<Device>,
        result: i32,
        state: StateOf<H>,
        origin: impl FnOnce() -> Origin,
    ) -> Result<Arc<Usage>, Fault> {
        let Some(id) = id else { return Err(Fault::without("an id")) };
        if result < 0 {
            self.not_created(Some(id), result)?;
            return Ok(Arc::default());
        }
        let object = Object::new(raw, Some(device.clone()), state, origin());
        let usage = Arc::clone(&object.usage);
        match self.context.objects.insert(id.id(), object) {
            Ok(()) => Ok(usage),
            Err(Unplaced::Lost(lost)) => Err(lost.into()),
            Err(Unplaced::Full(limit, object)) => {
                self.context.env.allowance.reached(limit.name());
                // SAFETY: the driver has just made it, and no other code knows it.
                unsafe { device.destroy(object.kind(), object.raw) };
                let full = vk::Result::ERROR_OUT_OF_HOST_MEMORY.as_raw();
                self.note_failure(full);
                self.not_created(Some(id), full)?;
                Err(Fault::Failed(full))
            }
        }
    }

    /// The command's encoding, to be kept with the object that it made.
    pub(crate) fn encoding(&self) -> Encoding {
        self.context.objects.described().keep(self.bytes)
    }

    /// The origins of the `count` objects that the command makes of the objects it names; the origins share the command's encoding.
    pub(crate) fn origins(&self, count: usize, names: Names) -> impl FnMut() -> Origin {
        let (mut alone, mut several) = (Some(names), None);
        if count > 1 {
            let shared = self.context.objects.described().share(self.bytes);
            several = alone.take().map(|names| names.origins(shared));
        }
        move || match &several {
            Some(next) => next(),
            None => alone.take().unwrap_or_default().origin(self.encoding()),
        }
    }

    /// Leaves a tombstone.
    pub(crate) fn not_created<H: Handle>(&self, id: Option<&H>, result: i32) -> Result<(), ContextLost> {
        self.context.journal.breaks("an object could not be made");
        match id {
            Some(id) => self.context.objects.insert_failed(id.id(), H::KIND, result),
            None => Err(StreamError::Without("an id").into()),
        }
    }

    /// Leaves a tombstone for each id of a creation that made no object.
    pub(crate) fn none_created<H: Handle>(&self, ids: &[H], result: i32) -> Result<(), ContextLost> {
        ids.iter().try_for_each(|id| self.not_created(Some(id), result))
    }

    /// Destroys an object that was taken out of the table, once no command and no submission can use it any more.
    pub(crate) fn destroy(&self, object: Object) -> Result<(), ContextLost> {
        self.context.retired.destroy(object)
    }

    /// Takes an object out of the table and destroys it.
    pub(crate) fn take<H: Handle>(&self, id: H) -> Result<(), Fault> {
        if let Some(object) = self.context.objects.remove(id)? {
            self.destroy(object)?;
        }
        Ok(())
    }
}
