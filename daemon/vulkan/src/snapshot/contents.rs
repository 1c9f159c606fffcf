//! Contents of memory that only the driver uses. The GPU itself copies them out of one context and into another.
//!
//! All allocations together are one sequence of bytes, in the order of their ids. Parts of this sequence pass through a memory file that each device
//! imports, however many bytes there are in all.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use super::saved::{NotMovable, Saved};
use super::step::Step;
use crate::backing::memory::{Made, Memory};
use crate::backing::pages::Pages;
use crate::context::allowance::MemoryFile;
use crate::context::cause::{DriverError, InheritedError};
use crate::context::error::ContextLost;
use crate::driver::back_end::BackEnd;
use crate::execution::context::Context;
use crate::logical::device::Device;
use crate::memory::refill::{self, NotCopied};
use crate::objects::object::Object;
use crate::programs::alias::Part;
use crate::programs::copy::{Staged, Way, start_copy};
use crate::programs::own_queue::Running;
use ash::vk::{self, Handle as _};
use protocol::venus::generated as venus;
use rustc_hash::FxHashSet;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// Adds the step that lists the allocations whose contents follow: memory that only the driver uses and that a successor makes anew. Allocations whose
/// contents the successor `has` already are left out; an empty list adds no step.
///
/// # Errors
///
/// Some contents cannot be copied.
pub(super) fn save(
    context: &Context,
    has: impl Fn(&Object) -> bool,
    saved: &mut Saved,
) -> Result<(), NotMovable> {
    let table = context.objects.read();
    let mut all = Vec::new();
    let handed_over: FxHashSet<u64> = saved.steps.iter().filter_map(Step::handed_over).collect();
    for (id, object, _) in table.objects().filter(|(.., result)| result.is_none()) {
        let is_there = || handed_over.contains(&id) || has(object);
        let Some(memory) = private(object).filter(|_| !is_there()) else { continue };
        let bytes = refill::copied_bytes(object, memory).map_err(|why| match why {
            NotCopied::Dedicated => {
                NotMovable::ever("it has memory that is dedicated to one image or buffer")
            }
            NotCopied::NoQueue => {
                NotMovable::ever("the device has no spare queue on which its memory could be copied")
            }
        })?;
        all.push((id, bytes));
    }
    if !all.is_empty() {
        all.sort_unstable();
        saved.steps.push(Step::Contents(all));
    }
    Ok(())
}

/// Demands that the context has these allocations, and notes that their contents come.
///
/// # Errors
///
/// An allocation is missing, or is another one.
pub(super) fn compare(context: &Context, all: &[(u64, u64)]) -> Result<(), ContextLost> {
    allocations(context, all)?;
    context.restored.are_filled(all.iter().map(|(id, _)| *id));
    Ok(())
}

/// Returns whether the contents of this memory can be copied into memory that a successor makes anew.
pub(super) fn can_be_copied(object: &Object) -> bool {
    private(object).is_some_and(|memory| refill::copied_bytes(object, memory).is_ok())
}

/// Returns the step before an allocation whose contents come later; none for other allocations.
pub(super) fn filled(id: u64, object: &Object) -> Option<Step> {
    private(object).and_then(Memory::copied_bytes).map(|_| Step::Filled { id })
}

/// Returns whether an object is memory that only the driver uses.
pub(super) fn is_private(object: &Object) -> bool {
    private(object).is_some()
}

/// Returns the memory of an object, if it is memory that only the driver uses.
fn private(object: &Object) -> Option<&Memory> {
    let memory = object.get::<venus::DeviceMemory>()?;
    matches!(memory.made, Made::Private { .. }).then_some(memory)
}

/// An allocation, and its place among all.
struct Allocation {
    device: Arc<Device>,
    memory: vk::DeviceMemory,
    type_index: u32,
    kinds: vk::ExternalMemoryHandleTypeFlags,
    place: Range<u64>,
}

fn allocations(context: &Context, all: &[(u64, u64)]) -> Result<Vec<Allocation>, ContextLost> {
    let broken = |id: u64| {
        ContextLost::from(InheritedError::Object { kind: "memory", id, is: "has contents, but is not there" })
    };
    let table = context.objects.read();
    let (mut found, mut end, mut last) = (Vec::new(), 0u64, 0);
    for (id, bytes) in all {
        let object = table.get(venus::DeviceMemory(*id)).ok().filter(|_| *id > last);
        last = *id;
        let (object, memory) =
            object.and_then(|object| Some((object, private(object)?))).ok_or_else(|| broken(*id))?;
        let key = memory.key.filter(|_| memory.copied_bytes() == Some(*bytes));
        let (Some(key), Some(device)) = (key, &object.device) else { return Err(broken(*id)) };
        let kinds = memory.made.kinds();
        let place = end..end.checked_add(*bytes).ok_or_else(|| broken(*id))?;
        end = place.end;
        let memory = vk::DeviceMemory::from_raw(object.raw);
        found.push(Allocation {
            device: Arc::clone(device),
            memory,
            type_index: key.type_index,
            kinds,
            place,
        });
    }
    Ok(found)
}

/// The contents of all memory that only the driver uses, of a context at rest.
pub struct Contents {
    /// Copies that were not waited for, the oldest first.
    running: VecDeque<Vec<(Arc<Device>, Running)>>,
    // Declared behind `running`, so that the copies are dropped before the pages that they use.
    staging: Vec<Staging>,
    allocations: Vec<Allocation>,
}

/// A buffer of one device that consists of the pages that contents pass through.
struct Staging {
    device: Arc<Device>,
    buffer: vk::Buffer,
    memory: vk::DeviceMemory,
    pages: Pages,
}

impl Contents {
    /// Returns the contents that belong to a snapshot with these steps, in the saved or the rebuilt context; none if there are none.
    ///
    /// # Errors
    ///
    /// The steps are of another context.
    pub(crate) fn of(context: &Context, steps: &[Step]) -> Result<Option<Self>, ContextLost> {
        let Some(all) = Step::contents(steps) else { return Ok(None) };
        let allocations = allocations(context, all)?;
        Ok(Some(Self { running: VecDeque::new(), staging: Vec::new(), allocations }))
    }

    /// The number of bytes: whole pages.
    pub fn bytes(&self) -> u64 {
        self.allocations.last().map_or(0, |last| last.place.end)
    }

    /// Makes contents pass through the first `bytes` of a file from now on.
    ///
    /// # Errors
    ///
    /// The file is smaller, or a driver does not import it.
    pub fn stage(&mut self, file: &Arc<MemoryFile>, bytes: u64) -> Result<(), ContextLost> {
        self.staging.clear();
        for allocation in &self.allocations {
            let device = &allocation.device;
            if self.staging_of(device).is_none() {
                let staging = Staging::new(device, file, bytes);
                self.staging.push(
                    staging.map_err(|why| DriverError::fails("pages for copies cannot be imported", why))?,
                );
            }
        }
        Ok(())
    }

    /// Begins to copy these bytes out of the allocations, to offset `staged_at` of the file.
    ///
    /// # Errors
    ///
    /// The driver fails, or there is no room.
    pub fn read(&mut self, bytes: Range<u64>, staged_at: u64) -> Result<(), ContextLost> {
        self.start(&bytes, staged_at, Way::Out)
    }

    /// Begins to copy these bytes into the allocations, from offset `staged_at` of the file.
    ///
    /// # Errors
    ///
    /// The driver fails, or there is no room.
    pub fn write(&mut self, bytes: Range<u64>, staged_at: u64) -> Result<(), ContextLost> {
        self.start(&bytes, staged_at, Way::In)
    }

    /// Waits until the oldest copy that was not waited for has ended.
    ///
    /// # Errors
    ///
    /// The driver fails.
    pub fn finish(&mut self) -> Result<(), ContextLost> {
        let Some(copies) = self.running.pop_front() else { return Ok(()) };
        let mut outcome = Ok(());
        for (device, running) in copies {
            // There is a queue, as a copy runs on it.
            outcome =
                outcome.and(device.own_queue().map_or(Ok(()), |queue| queue.finish(&device.ash, running)));
        }
        outcome.map_err(not_copied)
    }

    fn staging_of(&self, device: &Arc<Device>) -> Option<&Staging> {
        self.staging.iter().find(|staging| Arc::ptr_eq(&staging.device, device))
    }

    fn start(&mut self, bytes: &Range<u64>, staged_at: u64, way: Way) -> Result<(), ContextLost> {
        let mut copies = Vec::new();
        let started = self.start_each(bytes, staged_at, way, &mut copies);
        self.running.push_back(copies);
        started
    }

    /// Begins a copy for each run of allocations of one device.
    fn start_each(
        &self,
        bytes: &Range<u64>,
        staged_at: u64,
        way: Way,
        copies: &mut Vec<(Arc<Device>, Running)>,
    ) -> Result<(), ContextLost> {
        let first = self.allocations.partition_point(|allocation| allocation.place.end <= bytes.start);
        let inside =
            self.allocations[first..].iter().take_while(|allocation| allocation.place.start < bytes.end);
        let inside: Vec<_> = inside.collect();
        for group in inside.chunk_by(|one, other| Arc::ptr_eq(&one.device, &other.device)) {
            let device = &group[0].device;
            let parts = group.iter().map(|allocation| allocation.part(bytes, staged_at));
            let staging =
                self.staging_of(device).ok_or_else(|| ContextLost::daemon("contents without pages"))?;
            let running = staging.start(&parts.collect::<Vec<_>>(), way).map_err(not_copied)?;
            copies.push((Arc::clone(device), running));
        }
        Ok(())
    }
}

impl Drop for Contents {
    fn drop(&mut self) {
        // The copies end before the pages are dropped, whatever has failed.
        while !self.running.is_empty() {
            let _ = self.finish();
        }
    }
}

fn not_copied(why: vk::Result) -> ContextLost {
    DriverError::fails("the device does not copy memory", why).into()
}

impl Allocation {
    /// Returns the part of the allocation that lies among these bytes; the first of the bytes is staged at `staged_at`.
    fn part(&self, bytes: &Range<u64>, staged_at: u64) -> Staged {
        let start = self.place.start.max(bytes.start);
        let size = self.place.end.min(bytes.end) - start;
        let (memory, type_index, kinds) = (self.memory, self.type_index, self.kinds);
        let part = Part { memory, type_index, start: start - self.place.start, size, room: size, kinds };
        Staged { part, at: staged_at + (start - bytes.start) }
    }
}

impl Staging {
    fn new(device: &Arc<Device>, file: &Arc<MemoryFile>, bytes: u64) -> Result<Self, vk::Result> {
        let BackEnd::Memfd(functions) = &device.memory else {
            return Err(vk::Result::ERROR_FEATURE_NOT_PRESENT);
        };
        let pages = Pages::of_file(file, bytes, functions.alignment());
        let pages = pages.map_err(|_| vk::Result::ERROR_INVALID_EXTERNAL_HANDLE)?;
        let types = functions.types(&pages)? & device.physical.gpu.trial.mappable_types;
        let kind = vk::ExternalMemoryHandleTypeFlags::HOST_ALLOCATION_EXT;
        let mut external = vk::ExternalMemoryBufferCreateInfo::default().handle_types(kind);
        let usage = vk::BufferUsageFlags::TRANSFER_SRC | vk::BufferUsageFlags::TRANSFER_DST;
        let info = vk::BufferCreateInfo::default().size(pages.size()).usage(usage).push_next(&mut external);
        // SAFETY: the device is live, here and below; each `info` and its chain live until the call returns.
        let buffer = unsafe { device.ash.create_buffer(&info, None) }?;
        let mut staging =
            Self { device: Arc::clone(device), buffer, memory: vk::DeviceMemory::null(), pages };
        // SAFETY: as above.
        let needs = unsafe { device.ash.get_buffer_memory_requirements(buffer) };
        let types = types & needs.memory_type_bits;
        if types == 0 || needs.size > staging.pages.size() {
            return Err(vk::Result::ERROR_FEATURE_NOT_PRESENT);
        }
        let mut import = staging.pages.import();
        let info = vk::MemoryAllocateInfo::default()
            .allocation_size(staging.pages.size())
            .memory_type_index(types.trailing_zeros())
            .push_next(&mut import);
        // SAFETY: as above; the pages are dropped behind the memory.
        staging.memory = unsafe { device.ash.allocate_memory(&info, None) }?;
        // SAFETY: as above; the memory is as large as the buffer demands.
        unsafe { device.ash.bind_buffer_memory(buffer, staging.memory, 0) }?;
        Ok(staging)
    }

    fn start(&self, parts: &[Staged], way: Way) -> Result<Running, vk::Result> {
        let queue = self.device.own_queue().ok_or(vk::Result::ERROR_FEATURE_NOT_PRESENT)?;
        let fits = |Staged { part, at }: &Staged| {
            at.checked_add(part.size).is_some_and(|end| end <= self.pages.size())
        };
        if !parts.iter().all(fits) {
            return Err(vk::Result::ERROR_OUT_OF_POOL_MEMORY);
        }
        // SAFETY: the queue and the buffer are the device's, as are the allocations, which stay while their context rests; parts are inside.
        // The owner waits before it drops the buffer.
        unsafe { start_copy(queue, &self.device.ash, self.buffer, parts, way) }
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // SAFETY: the device is live, and is done with both: copies are waited for.
        unsafe { self.device.ash.destroy_buffer(self.buffer, None) };
        // SAFETY: as above; null is ignored.
        unsafe { self.device.ash.free_memory(self.memory, None) };
    }
}

#[cfg(test)]
#[path = "contents_tests.rs"]
mod tests;
