//! Buffers that are made twice until it is known which memory they are bound to.
//!
//! Vulkan wants a buffer to say when it is made that it may be bound to imported memory, and a driver may then take it for less: NVIDIA's not
//! for device memory that the processor can reach. A guest does not know that what it maps is imported. So where both kinds of memory are
//! offered ([`memory::driver_mapped`](super::memory)) both buffers are made; one goes when the guest binds its buffer.

use super::call::Call;
use super::device::Device;
use super::error::ContextLost;
use super::memory::GRAIN;
use super::objects::{Object, State};
use super::validity::buffers::is_computed_on;
use ash::vk::{self, Handle as _};
use parking_lot::Mutex;
use protocol::venus::generated as venus;
use rustc_hash::FxHashMap;

/// The other buffers of a device, by those that guests' ids stand for.
#[derive(Debug)]
pub struct Twins {
    /// Types of memory that only a buffer for memory of the driver's own may be bound to.
    own: u32,
    /// The one for imported memory, by the one that is for the driver's own.
    for_imports: Mutex<FxHashMap<u64, u64>>,
}

impl Twins {
    /// None yet, for memory of the driver's own types.
    pub fn new(own: u32) -> Self {
        Self { own, for_imports: Mutex::default() }
    }

    /// Takes note of a pair, and answers the buffer that stands for both. If a guest would see a difference that is the one for imports,
    /// and the other is destroyed.
    ///
    /// # Safety
    ///
    /// Both are fresh buffers of this device.
    pub unsafe fn pair(&self, device: &Device, own: u64, for_imports: u64) -> u64 {
        let [one, other] = [own, for_imports].map(|raw| {
            // SAFETY: the caller's promise.
            let needs = unsafe { device.ash.get_buffer_memory_requirements(vk::Buffer::from_raw(raw)) };
            (needs.size, needs.alignment, needs.memory_type_bits & !self.own)
        });
        if one != other {
            log::debug!("a buffer for imported memory needs {other:?}, another {one:?}");
            // SAFETY: as above; nobody knows it.
            unsafe { device.destroy(venus::Buffer::KIND, own) };
            return for_imports;
        }
        self.for_imports.lock().insert(own, for_imports);
        own
    }

    /// The twin of a buffer that is bound or destroyed now, if it has one.
    pub fn part(&self, own: u64) -> Option<u64> {
        self.for_imports.lock().remove(&own)
    }
}

/// Before `vkBindBufferMemory`: the buffer becomes the one for its memory.
///
/// # Errors
///
/// A limit is reached.
pub fn bind_buffer_memory(call: &Call<'_>, c: &venus::BindBufferMemory) -> Result<(), ContextLost> {
    choose(call, c.buffer, c.memory)
}

/// Before `vkBindBufferMemory2`: the same for each.
///
/// # Errors
///
/// A limit is reached.
pub fn bind_buffer_memory2(call: &Call<'_>, c: &venus::BindBufferMemory2<'_>) -> Result<(), ContextLost> {
    let mut infos = c.p_bind_infos.unwrap_or(&[]).iter();
    infos.try_for_each(|info| choose(call, info.buffer, info.memory))
}

/// What is wrong with the ids is found when they are used.
fn choose(call: &Call<'_>, buffer: venus::Buffer, memory: venus::DeviceMemory) -> Result<(), ContextLost> {
    let objects = &call.renderer.objects;
    let is_imported = {
        let objects = objects.read();
        let twins = |object: &Object| object.device.as_ref().is_some_and(|device| device.twins.is_some());
        let (Ok(buffer), Ok(memory)) = (objects.get(buffer), objects.get(memory)) else { return Ok(()) };
        match &memory.state {
            State::Memory(memory) if twins(buffer) => memory.is_imported(),
            _ => return Ok(()),
        }
    };
    let parted = objects.update(buffer, |object| {
        let device = object.device.clone()?;
        let twin = device.twins.as_ref()?.part(object.raw)?;
        let left = if is_imported { std::mem::replace(&mut object.raw, twin) } else { twin };
        Some((device, left))
    });
    let Ok(Some((device, raw))) = parted else { return Ok(()) };
    let (state, usage, created_by) = (State::Plain, Default::default(), call.encoding());
    // Another ring may have looked it up.
    call.destroy(Object { kind: venus::Buffer::KIND, raw, device: Some(device), state, usage, created_by })
}

/// Behind `vkGetBufferMemoryRequirements`: memory that is made for the buffer is such as a guest can map.
///
/// Not so for buffers that are for copies only, which Mesa's driver has for its own use and packs without asking how.
///
/// # Errors
///
/// A limit is reached.
pub fn get_buffer_memory_requirements<'a>(
    call: &Call<'a>,
    c: &venus::GetBufferMemoryRequirements<'a>,
    mut reply: venus::GetBufferMemoryRequirementsReply<'a>,
) -> Result<venus::GetBufferMemoryRequirementsReply<'a>, ContextLost> {
    if let Some(needs) = reply.p_memory_requirements.filter(|_| comes_in_grains(call, c.device, c.buffer)) {
        reply.p_memory_requirements = Some(call.arena.value(in_grains(*needs))?);
    }
    Ok(reply)
}

/// Behind `vkGetBufferMemoryRequirements2`: the same.
///
/// # Errors
///
/// A limit is reached.
pub fn get_buffer_memory_requirements2<'a>(
    call: &Call<'a>,
    c: &venus::GetBufferMemoryRequirements2<'a>,
    mut reply: venus::GetBufferMemoryRequirements2Reply<'a>,
) -> Result<venus::GetBufferMemoryRequirements2Reply<'a>, ContextLost> {
    let grained = c.p_info.is_some_and(|info| comes_in_grains(call, c.device, info.buffer));
    if let Some(needs) = reply.p_memory_requirements.filter(|_| grained) {
        reply.p_memory_requirements = Some(all_in_grains(call, needs)?);
    }
    Ok(reply)
}

/// Behind `vkGetDeviceBufferMemoryRequirements`: the same.
///
/// # Errors
///
/// A limit is reached.
pub fn get_device_buffer_memory_requirements<'a>(
    call: &Call<'a>,
    c: &venus::GetDeviceBufferMemoryRequirements<'a>,
    mut reply: venus::GetDeviceBufferMemoryRequirementsReply<'a>,
) -> Result<venus::GetDeviceBufferMemoryRequirementsReply<'a>, ContextLost> {
    let described = c.p_info.and_then(|info| info.p_create_info);
    let grained = has_twins(call, c.device) && described.is_some_and(is_computed_on);
    if let Some(needs) = reply.p_memory_requirements.filter(|_| grained) {
        reply.p_memory_requirements = Some(all_in_grains(call, needs)?);
    }
    Ok(reply)
}

/// The alignment, too, since drivers of guests compute the size from it (VK_KHR_maintenance4).
fn in_grains(needs: venus::MemoryRequirements) -> venus::MemoryRequirements {
    let size = needs.size.checked_next_multiple_of(GRAIN).unwrap_or(needs.size);
    venus::MemoryRequirements { size, alignment: needs.alignment.max(GRAIN), ..needs }
}

fn all_in_grains<'a>(
    call: &Call<'a>,
    needs: &venus::MemoryRequirements2<'a>,
) -> Result<&'a venus::MemoryRequirements2<'a>, ContextLost> {
    let memory_requirements = in_grains(needs.memory_requirements);
    Ok(call.arena.value(venus::MemoryRequirements2 { memory_requirements, ..*needs })?)
}

fn comes_in_grains(call: &Call<'_>, device: venus::Device, buffer: venus::Buffer) -> bool {
    has_twins(call, device) && call.lowering().objects.buffer(buffer).is_ok_and(|facts| facts.is_computed_on)
}

fn has_twins(call: &Call<'_>, device: venus::Device) -> bool {
    call.device(device).is_ok_and(|device| device.twins.is_some())
}
