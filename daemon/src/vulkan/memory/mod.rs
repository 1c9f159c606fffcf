//! Device memory: allocated, shown to the guest as a blob, shared between contexts.
//!
//! What a VMM maps has to be a file. There are two ways to get one, chosen at start-up ([`crate::config::MemoryBackEnd`]): pages of
//! ours imported by the driver (`memfd`), or memory of the driver exported by it (`dma_buf`). A guest sees no difference, except
//! that `memfd` shares buffers only. Beside `memfd` there may be types that the driver maps by itself, out of a device node
//! (`driver_mapped`); what is to be shared with other contexts is never made of them. Shared memory is known to guests as dma-bufs (`VK_EXT_external_memory_dma_buf`) and travels
//! as a resource: exported as its blob, imported by `VkImportMemoryResourceInfoMESA`.

mod allowance;
mod anchors;
mod capture;
mod dma_buf;
mod driver_mapped;
#[cfg(test)]
mod driver_mapped_tests;
pub mod external;
mod likeness;
mod memfd;
mod pool;
#[cfg(test)]
mod pool_tests;
mod shelf;
mod trial;
#[cfg(test)]
mod world_for_tests;

pub use allowance::{Allowance, Lease, MemoryFile, Piece};
pub use capture::map;
pub use driver_mapped::GRAIN;
pub use external::{
    MAPPABLE_MEMORY, get_physical_device_external_buffer_properties,
    get_physical_device_image_format_properties2, takes_buffer, takes_image,
};
pub use pool::Pool;
pub use trial::try_out;

use self::likeness::Likeness;
use self::memfd::Pages;
use super::call::Call;
use super::cancel::Cancel;
use super::device::Device;
use super::error::Fault;
use super::generated::sys;
use super::lower::Lowering;
use super::objects::State;
use super::physical_device::PhysicalDevice;
use crate::config::{Heap, MemoryBackEnd, MemoryId};
use ash::vk;
use protocol::venus::generated as venus;
use protocol::venus::generated::ChainStruct;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Functions of the driver behind one back end, of one device.
pub enum BackEnd {
    /// `VK_EXT_external_memory_host`.
    Memfd(memfd::Functions),
    /// `VK_KHR_external_memory_fd`.
    DmaBuf(dma_buf::Functions),
}

impl BackEnd {
    /// Loads the functions.
    pub fn new(physical: &PhysicalDevice, device: &ash::Device) -> Self {
        let instance = &physical.instance.ash;
        match physical.gpu.memory {
            MemoryBackEnd::Memfd => Self::Memfd(memfd::Functions::new(instance, physical.handle, device)),
            MemoryBackEnd::DmaBuf => Self::DmaBuf(dma_buf::Functions::new(instance, device)),
        }
    }
}

/// Memory of a guest's device.
#[derive(Debug)]
pub struct Memory {
    /// What it is made of.
    pub made: Made,
    /// What it can be used again for, once its guest has freed it, if for anything.
    like: Option<Likeness>,
}

/// What memory is made of.
#[derive(Debug)]
pub enum Made {
    /// Nobody but the driver can use it.
    Private(Option<Lease>),
    /// Pages of ours, and where they are the GPU's own memory, what they count for there.
    Pages(Pages, Option<Lease>),
    /// The driver exports it.
    Exportable {
        /// Reads of the processor go through its caches.
        cached: bool,
        /// What it is counted as.
        piece: Piece,
    },
    /// What another made, imported.
    Imported(Piece),
    /// The driver maps it, and others can, for as long as it is there.
    DriverMapped(Arc<MemoryFile>),
}

impl Memory {
    /// Memory that is not used again.
    #[cfg(test)]
    pub fn once(made: Made) -> Self {
        Self { made, like: None }
    }

    /// Clears what the guest left in it, as programs expect new memory to be zero; frees `raw` if that fails. It is in no use.
    fn clear(&self, device: &Device, raw: u64, like: &Likeness) -> Result<(), Fault> {
        let Some(cleaner) = &device.cleaner else { return Ok(()) };
        if let Made::Pages(pages, _) = &self.made {
            pages.clear();
            return Ok(());
        }
        // SAFETY: the memory was taken out of the pool, of what is like this; nobody else knows it.
        Ok(unsafe { cleaner.clear(device, raw, like.size, like.type_index) }?)
    }

    /// What the device process knows it by, if others can see it.
    pub fn piece(&self) -> Option<MemoryId> {
        match &self.made {
            Made::Private(_) => None,
            Made::Pages(pages, _) => pages.file().piece.memory,
            Made::Exportable { piece, .. } | Made::Imported(piece) => piece.memory,
            Made::DriverMapped(file) => file.piece.memory,
        }
    }

    /// The driver did not make it: what is bound to it has to say so when it is made.
    pub fn is_imported(&self) -> bool {
        matches!(self.made, Made::Pages(..) | Made::Imported(_))
    }

    /// What the device process knows it by, if others may have it mapped when the driver frees it.
    pub fn lent(&self) -> Option<MemoryId> {
        match &self.made {
            Made::DriverMapped(file) => file.piece.memory,
            _ => None,
        }
    }

    /// No resource of this process and no other memory is the same.
    fn is_sole(&self) -> bool {
        match &self.made {
            Made::Private(_) => true,
            Made::Pages(pages, _) => pages.is_sole(),
            Made::Exportable { piece, .. } => piece.is_sole(),
            Made::Imported(_) => false,
            Made::DriverMapped(file) => Arc::strong_count(file) == 1 && file.piece.is_sole(),
        }
    }
}

/// What a blob of a memory object is made of.
#[derive(Debug)]
pub struct Exported {
    /// Its memory, if others can use it.
    pub file: Option<Arc<MemoryFile>>,
    /// Ordinary cached memory; otherwise write-combined.
    pub cached: bool,
    /// For memory that is gone when the driver frees it, or when its process ends and these descriptors are closed: it cannot be
    /// imported. None of them if they were answered before.
    pub lent: Option<Vec<OwnedFd>>,
}

/// Device memory behind a resource.
#[derive(Debug)]
pub struct ResourceMemory {
    /// The memory.
    pub file: Arc<MemoryFile>,
    /// Bytes that may be used.
    pub size: u64,
    /// The guest can map it.
    pub mappable: bool,
}

/// The resources that the context sees.
pub trait ResourceTable: Send + Sync {
    /// The device memory behind a resource, after waiting for it if it is on its way; none if the context sees no such resource.
    fn device_memory(&self, resource_id: u32, cancel: &Cancel) -> Option<Arc<ResourceMemory>>;
}

/// What a guest asks for, apart from what goes to the driver as it is.
struct Request {
    size: u64,
    type_index: u32,
    /// Where that type is.
    heap: Heap,
    /// The guest sees its type as host-visible, and what it maps is made by the back end.
    visible: bool,
    /// The guest sees its type as host-visible, and what it maps is the driver's.
    driver_mapped: bool,
    /// Other contexts may import it.
    exported: bool,
    import: Option<Arc<ResourceMemory>>,
}

impl Request {
    /// Leave to allocate what only the driver uses.
    fn credit(&self, call: &Call<'_>, bytes: u64) -> Result<Lease, Fault> {
        let credit = call.renderer.allowance.credit(self.heap, bytes, call.cancel);
        credit.ok_or_else(|| self.out_of_memory())
    }

    /// A limit is reached.
    fn out_of_memory(&self) -> Fault {
        match self.heap {
            Heap::Device => vk::Result::ERROR_OUT_OF_DEVICE_MEMORY,
            Heap::Host => vk::Result::ERROR_OUT_OF_HOST_MEMORY,
        }
        .into()
    }

    fn new(call: &Call<'_>, device: &Device, info: &venus::MemoryAllocateInfo<'_>) -> Result<Self, Fault> {
        let types = device.physical.memory.memory_types_as_slice();
        let Some(ty) = types.get(info.memory_type_index as usize) else {
            return Err(Fault::lost("a memory type that does not exist"));
        };
        let driver_mapped = device.physical.gpu.trial.driver_mapped.types & 1 << info.memory_type_index != 0;
        let host_visible = ty.property_flags.contains(vk::MemoryPropertyFlags::HOST_VISIBLE);
        let mut request = Self {
            size: info.allocation_size,
            type_index: info.memory_type_index,
            heap: heap(&device.physical.memory, ty),
            visible: host_visible && !driver_mapped,
            driver_mapped,
            exported: false,
            import: None,
        };
        for next in info.p_next {
            match next {
                ChainStruct::ExportMemoryAllocateInfo(export) => {
                    request.exported = external::is_dma_buf(export.handle_types);
                }
                ChainStruct::ImportMemoryResourceInfoMESA(import) => {
                    request.import = Some(call.resource(import.resource_id)?);
                }
                _ => {}
            }
        }
        match &request.import {
            Some(import) if import.size < request.size => {
                Err(vk::Result::ERROR_INVALID_EXTERNAL_HANDLE.into())
            }
            _ => Ok(request),
        }
    }
}

/// `vkAllocateMemory`.
pub fn allocate_memory<'a>(
    call: &Call<'a>,
    c: &venus::AllocateMemory<'a>,
) -> Result<venus::AllocateMemoryReply<'a>, Fault> {
    let device = call.device(c.device)?;
    let Some(info) = c.p_allocate_info else {
        return Err(Fault::lost("vkAllocateMemory without a description"));
    };
    let result = match find_or_make(call, &device, info) {
        Ok((raw, memory)) => {
            call.bind(c.p_memory, raw, &device, 0, State::Memory(memory))?;
            0
        }
        Err(Fault::Failed(result)) => {
            call.note_failure(result);
            call.not_created(c.p_memory, result)?;
            result
        }
        Err(lost) => return Err(lost),
    };
    Ok(venus::AllocateMemoryReply { result: venus::VkResult(result), p_memory: c.p_memory })
}

/// Memory that the guest had before, or new memory, for which what is kept makes room if it has to.
fn find_or_make(
    call: &Call<'_>,
    device: &Arc<Device>,
    info: &venus::MemoryAllocateInfo<'_>,
) -> Result<(u64, Arc<Memory>), Fault> {
    let request = Request::new(call, device, info)?;
    let like = Likeness::of(call, device, info, &request)?;
    let pool = &call.renderer.pool;
    if let Some(like) = like
        && let Some((raw, memory)) = pool.take(device, &like)
    {
        memory.clear(device, raw, &like)?;
        return Ok((raw, memory));
    }
    let make = || match &device.memory {
        BackEnd::Memfd(functions) => functions.allocate(call, device, info, &request),
        BackEnd::DmaBuf(functions) => functions.allocate(call, device, info, &request),
    };
    let made = match make() {
        Err(Fault::Failed(result)) if is_scarcity(result) && pool.flush() => make(),
        made => made,
    };
    made.map(|(raw, made)| (raw, Arc::new(Memory { made, like })))
}

/// Whether less in use would have helped.
fn is_scarcity(result: i32) -> bool {
    use vk::Result as R;
    [R::ERROR_OUT_OF_HOST_MEMORY, R::ERROR_OUT_OF_DEVICE_MEMORY, R::ERROR_TOO_MANY_OBJECTS]
        .contains(&R::from_raw(result))
}

/// The guest's description in C form, with those chained structs that the host should hear of: where memory comes from and where it
/// may go is decided here, and addresses are not chosen.
fn lowered<'l>(
    l: &Lowering<'l>,
    info: &venus::MemoryAllocateInfo<'_>,
    dedicated: bool,
) -> Result<&'l mut sys::MemoryAllocateInfo, Fault> {
    let kept = |next: &&ChainStruct<'_>| match next {
        ChainStruct::MemoryAllocateFlagsInfo(_) => true,
        ChainStruct::MemoryDedicatedAllocateInfo(_) => dedicated,
        _ => false,
    };
    let kept: Vec<_> = info.p_next.iter().filter(kept).copied().collect();
    let mut stripped = *info;
    stripped.p_next = l.arena.slice_copy(&kept)?;
    let lowered = l.out_pointer(Some(&stripped))?;
    // SAFETY: `lowered` is a struct of the arena that nothing else refers to.
    Ok(unsafe { &mut *lowered })
}

/// Calls the driver.
///
/// # Safety
///
/// What the chain of `info` points to is valid, and pages it imports outlive the memory.
unsafe fn call_driver(device: &Device, info: &sys::MemoryAllocateInfo) -> Result<u64, Fault> {
    let Some(function) = device.table.allocate_memory else { return Err(Fault::missing("vkAllocateMemory")) };
    let mut raw = 0u64;
    // SAFETY: the device is live; the rest is the caller's promise.
    let result = unsafe { function(device.raw(), info, std::ptr::null(), &raw mut raw) };
    if result < 0 { Err(Fault::Failed(result)) } else { Ok(raw) }
}

/// `vkFreeMemory`: it is kept for a moment ([`Pool`]); then the driver's memory goes first, the pages with their last owner.
pub fn free_memory(call: &Call<'_>, c: &venus::FreeMemory) -> Result<venus::FreeMemoryReply, Fault> {
    let never_made = matches!(call.lowering().handle(c.memory), Err(Fault::Failed(_)));
    call.take(c.memory)?;
    if never_made {
        // Who gives it back without having used it lacks nothing: programs try out so how much there is.
        call.renderer.forget_failure();
    }
    Ok(venus::FreeMemoryReply {})
}

/// The memory `raw` of `device` as a file for a blob of `size` bytes.
///
/// # Errors
///
/// Why not, for the log.
pub fn export(
    memory: &Memory,
    device: &Device,
    raw: u64,
    size: u64,
    mappable: bool,
) -> Result<Exported, String> {
    match (&memory.made, &device.memory) {
        (Made::Pages(pages, _), _) if size <= pages.size() => {
            Ok(Exported { file: Some(pages.file()), cached: true, lent: None })
        }
        (Made::Pages(pages, _), _) => Err(format!("{size} bytes of a memory of {}", pages.size())),
        (Made::Exportable { cached, piece }, BackEnd::DmaBuf(functions)) => {
            let file = functions.export(raw).map_err(|error| format!("no dma-buf: {error}"))?;
            let file = Some(Arc::new(MemoryFile::new(file, piece.clone())));
            Ok(Exported { file, cached: *cached, lent: None })
        }
        (Made::DriverMapped(file), _) if mappable => {
            Ok(Exported { file: Some(Arc::clone(file)), cached: false, lent: Some(new_anchors(device)?) })
        }
        _ if mappable => Err("the memory is not host-visible".into()),
        _ => Ok(Exported { file: None, cached: true, lent: None }),
    }
}

/// What keeps the driver's memory alive, if it may have changed: with the first memory that a device lends.
fn new_anchors(device: &Device) -> Result<Vec<OwnedFd>, String> {
    if device.is_anchored.load(Ordering::Relaxed) {
        return Ok(Vec::new());
    }
    let anchors = anchors::anchors(&device.mapped_devices)?;
    device.is_anchored.store(true, Ordering::Relaxed);
    Ok(anchors)
}

/// `vkGetMemoryResourcePropertiesMESA`: into which types a resource can be imported, and its size.
pub fn get_memory_resource_properties_mesa<'a>(
    call: &Call<'a>,
    c: &venus::GetMemoryResourcePropertiesMESA<'a>,
) -> Result<venus::GetMemoryResourcePropertiesMESAReply<'a>, Fault> {
    let device = call.device(c.device)?;
    let resource = call.resource(c.resource_id)?;
    let types = match &device.memory {
        BackEnd::Memfd(functions) => functions.types_of(&device, &resource)?,
        BackEnd::DmaBuf(functions) => functions.types_of(&device, &resource)?,
    };
    let p_memory_resource_properties = match c.p_memory_resource_properties {
        None => None,
        Some(partial) => {
            let p_next = call.arena.slice_try_fill(partial.p_next.len(), |i| match partial.p_next[i] {
                ChainStruct::MemoryResourceAllocationSizePropertiesMESA(asked) => {
                    let mut answer = *asked;
                    answer.allocation_size = resource.size;
                    let answer = call.arena.value(answer)?;
                    Ok::<_, Fault>(ChainStruct::MemoryResourceAllocationSizePropertiesMESA(answer))
                }
                other => Ok(other),
            })?;
            let answer = venus::MemoryResourcePropertiesMESA { p_next, memory_type_bits: types };
            Some(&*call.arena.value(answer)?)
        }
    };
    Ok(venus::GetMemoryResourcePropertiesMESAReply {
        result: venus::VkResult::SUCCESS,
        p_memory_resource_properties,
    })
}

/// Where memory of a type is.
pub fn heap(memory: &vk::PhysicalDeviceMemoryProperties, ty: &vk::MemoryType) -> Heap {
    match memory.memory_heaps[ty.heap_index as usize].flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL) {
        true => Heap::Device,
        false => Heap::Host,
    }
}

/// Of the types with these bits, those whose visibility to the guest is that of a resource; all if none is.
fn alike(device: &Device, bits: u32, mappable: bool) -> u32 {
    let types = device.physical.memory.memory_types_as_slice().iter().enumerate();
    let visible = types
        .filter(|(_, ty)| ty.property_flags.contains(vk::MemoryPropertyFlags::HOST_VISIBLE))
        .fold(0, |bits, (i, _)| bits | 1 << i);
    match bits & if mappable { visible } else { !visible } {
        0 => bits,
        alike => alike,
    }
}
