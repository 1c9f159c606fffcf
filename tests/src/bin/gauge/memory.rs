//! Buffers with memory of a certain kind.

#![allow(unsafe_code, clippy::multiple_unsafe_ops_per_block, reason = "an application's calls into Vulkan")]

use crate::gpu::Gpu;
use anyhow::{Context, Result, bail};
use ash::vk;
use ash::vk::MemoryPropertyFlags as Flags;
use std::slice;

/// A kind of memory, as applications choose it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The device's own, which is not mapped.
    Device,
    /// The host's, cached if the device has a choice: for staging.
    Host,
    /// The host's, coherent and not cached.
    Coherent,
    /// The device's own, mapped.
    Visible,
}

impl Kind {
    /// The kind of this name.
    pub(crate) fn named(name: &str) -> Result<Self> {
        Ok(match name {
            "device" => Self::Device,
            "host" => Self::Host,
            "coherent" => Self::Coherent,
            "visible" => Self::Visible,
            other => bail!("{other:?} is no kind of memory"),
        })
    }

    /// The flags that the memory must have, and those that it must not have for this kind to be worth a measurement of its own; the best
    /// first.
    fn wanted(self) -> [(Flags, Flags); 3] {
        const NONE: Flags = Flags::empty();
        const LOCAL: Flags = Flags::DEVICE_LOCAL;
        let mapped = Flags::HOST_VISIBLE | Flags::HOST_COHERENT;
        let cached = mapped | Flags::HOST_CACHED;
        match self {
            Self::Device => [(LOCAL, Flags::HOST_VISIBLE), (LOCAL, NONE), (LOCAL, NONE)],
            Self::Host => [(cached, LOCAL), (cached, NONE), (mapped, NONE)],
            Self::Coherent => [(mapped, Flags::HOST_CACHED | LOCAL); 3],
            Self::Visible => [(mapped | LOCAL, Flags::HOST_CACHED); 3],
        }
    }
}

impl Gpu {
    /// The first type of memory of this kind.
    pub(crate) fn memory_type(&self, kind: Kind) -> Option<u32> {
        let types = self.memory.memory_types_as_slice();
        let find = |(must, not): &(Flags, Flags)| {
            types
                .iter()
                .position(|ty| ty.property_flags.contains(*must) && !ty.property_flags.intersects(*not))
        };
        kind.wanted().iter().find_map(find).map(|ty| ty as u32)
    }

    /// Bytes of the heap that memory of this kind comes from.
    pub(crate) fn heap(&self, kind: Kind) -> u64 {
        let ty = self.memory_type(kind).map(|ty| self.memory.memory_types[ty as usize].heap_index);
        ty.map_or(0, |heap| self.memory.memory_heaps[heap as usize].size)
    }

    /// A buffer of `bytes` bytes without memory.
    pub(crate) fn bare_buffer(&self, bytes: u64) -> Result<BareBuffer<'_>> {
        let info = vk::BufferCreateInfo::default().size(bytes).usage(vk::BufferUsageFlags::STORAGE_BUFFER);
        // SAFETY: the device is live; the info lives until the call returns.
        let handle = unsafe { self.device.create_buffer(&info, None) }.context("vkCreateBuffer")?;
        Ok(BareBuffer { gpu: self, handle })
    }

    /// A buffer of `bytes` bytes, mapped unless its memory is the device's.
    pub(crate) fn buffer(&self, kind: Kind, bytes: u64) -> Result<Buffer<'_>> {
        let ty = self.memory_type(kind).context("no memory of this kind")?;
        let usage = vk::BufferUsageFlags::STORAGE_BUFFER
            | vk::BufferUsageFlags::TRANSFER_SRC
            | vk::BufferUsageFlags::TRANSFER_DST;
        let info = vk::BufferCreateInfo::default().size(bytes).usage(usage);
        // SAFETY: the device is live; infos live until their calls return; the memory is bound and mapped once, and has the size that the
        // buffer needs.
        unsafe {
            let buffer = self.device.create_buffer(&info, None).context("vkCreateBuffer")?;
            let needs = self.device.get_buffer_memory_requirements(buffer);
            // A buffer's memory is of any type almost everywhere.
            let ty = if needs.memory_type_bits & 1 << ty == 0 {
                needs.memory_type_bits.trailing_zeros()
            } else {
                ty
            };
            let info = vk::MemoryAllocateInfo::default().allocation_size(needs.size).memory_type_index(ty);
            let memory =
                self.device.allocate_memory(&info, None).with_context(|| format!("{bytes} bytes"))?;
            let mut made = Buffer { gpu: self, handle: buffer, memory, bytes, at: std::ptr::null_mut() };
            self.device.bind_buffer_memory(buffer, memory, 0).context("vkBindBufferMemory")?;
            if kind != Kind::Device {
                let flags = vk::MemoryMapFlags::empty();
                made.at =
                    self.device.map_memory(memory, 0, vk::WHOLE_SIZE, flags).context("vkMapMemory")?.cast();
            }
            Ok(made)
        }
    }
}

/// A buffer with memory of its own; its mapping, memory and handle end with this value.
pub(crate) struct Buffer<'g> {
    gpu: &'g Gpu,
    /// The buffer.
    pub handle: vk::Buffer,
    memory: vk::DeviceMemory,
    bytes: u64,
    at: *mut u8,
}

impl Buffer<'_> {
    /// The buffer's bytes, mapped; empty if it is not.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        match self.at.is_null() {
            true => &mut [],
            // SAFETY: the mapping has at least so many bytes, lives as long as this value, and no submission that uses it is pending: each caller
            // waits for the submissions that it makes.
            false => unsafe { slice::from_raw_parts_mut(self.at, self.bytes as usize) },
        }
    }
}

// SAFETY: its memory is reached through an exclusive reference only.
unsafe impl Sync for Buffer<'_> {}

/// A buffer without memory, which ends with this value.
pub(crate) struct BareBuffer<'g> {
    gpu: &'g Gpu,
    handle: vk::Buffer,
}

impl Drop for BareBuffer<'_> {
    fn drop(&mut self) {
        // SAFETY: nothing uses it.
        unsafe { self.gpu.device.destroy_buffer(self.handle, None) };
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        // SAFETY: submissions that use it were waited for; freeing unmaps.
        unsafe {
            self.gpu.device.destroy_buffer(self.handle, None);
            self.gpu.device.free_memory(self.memory, None);
        }
    }
}
