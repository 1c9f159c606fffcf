//! Commands that allocate and free device memory, and that ask where a resource can be imported.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use super::request::{Brought, Request, clear};
use super::reusable::reuse_key;
use super::{dma_buf, memfd};
use crate::backing::memory::{Made, Memory};
use crate::backing::reuse_key::ReuseKey;
use crate::context::error::Fault;
use crate::context::restored;
use crate::driver::back_end::BackEnd;
use crate::execution::call::Call;
use crate::logical::device::Device;
use crate::objects::object::{Handle as _, StateOf};
use ash::vk;
use protocol::venus::generated::{self as venus, ChainStruct};
use std::sync::Arc;

/// `vkAllocateMemory`.
pub(crate) fn allocate_memory<'a>(
    call: &Call<'a>,
    c: &venus::AllocateMemory<'a>,
) -> Result<venus::AllocateMemoryReply<'a>, Fault> {
    let device = call.device(c.device)?;
    let Some(info) = c.p_allocate_info else {
        return Err(Fault::without("a description"));
    };
    let restored = c.p_memory.and_then(|id| call.context.restored.take(id.id()));
    let address = c.p_memory.and_then(|id| call.context.restored.take_address(id.id()));
    let filled = c.p_memory.is_some_and(|id| call.context.restored.take_filled(id.id()));
    let predecessor = c.p_memory.and_then(|id| call.context.restored.take_exported(id.id()));
    let brought = Brought { restored: restored.as_deref(), address, filled, predecessor };
    let result = match find_or_make(call, &device, info, &brought) {
        Ok((raw, memory)) => {
            if let (Some(id), Some(file), true) = (c.p_memory, brought.predecessor, memory.replays) {
                call.context.restored.add_refilled(id.id(), file);
            }
            call.bind(c.p_memory, raw, &device, 0, StateOf::shared(memory))?;
            0
        }
        Err(Fault::Failed(result)) => {
            restored::demand_given(address, result)?;
            call.note_failure(result);
            call.not_created(c.p_memory, result)?;
            result
        }
        Err(lost) => return Err(lost),
    };
    Ok(venus::AllocateMemoryReply { result: venus::VkResult(result), p_memory: c.p_memory })
}

/// Returns memory that the guest freed before, or new memory. If room is short, kept memory is freed first.
fn find_or_make(
    call: &Call<'_>,
    device: &Arc<Device>,
    info: &venus::MemoryAllocateInfo<'_>,
    brought: &Brought<'_>,
) -> Result<(u64, Arc<Memory>), Fault> {
    let request = Request::new(call, device, info, brought)?;
    let restored = brought.restored;
    let key = reuse_key(call, device, info, &request)?;
    let pool = &call.context.pool;
    if let Some(key) = key
        && brought.is_nothing()
        && let Some((raw, memory)) = pool.take(device, &key)
    {
        clear_again(&memory, device, raw, &key)?;
        memory.set_size(request.size);
        return Ok((raw, memory));
    }
    let make = || match &device.memory {
        BackEnd::Memfd(functions) => memfd::allocate(functions, call, device, info, &request, restored),
        BackEnd::DmaBuf(_) => dma_buf::allocate(call, device, info, &request),
    };
    let freed = call.context.freed.so_far();
    let made = match make() {
        Err(Fault::Failed(result)) if is_scarcity(result) && makes_room(call, device, &request, freed)? => {
            make()
        }
        made => made,
    };
    let (raw, made) = made?;
    let memory = Arc::new(Memory::new(request.size, made, key, request.replays));
    if let Some(restored) = restored {
        pool.show_again(&memory, restored.shown);
    }
    Ok((raw, memory))
}

/// Frees kept memory, and waits until the memory that this successor was filled from is free; a context that is built up waits for nothing else. If
/// the driver found no memory and its memory is exported, this also waits until the device process has closed the descriptors of freed memory. Returns
/// whether there may be more room than at the count `freed`: another thread may have had the kept memory freed at the same time.
fn makes_room(call: &Call<'_>, device: &Device, request: &Request, freed: u64) -> Result<bool, Fault> {
    call.context.pool.flush();
    call.context.given_up.finish();
    let flushed = call.context.freed.so_far() != freed;
    if device.exports.is_none() || request.is_limited.take() || call.context.pool.keeps_nothing() {
        return Ok(flushed);
    }
    let closed = call.context.env.allowance.closed(call.cancel)?.is_some();
    if closed {
        look_for_room(device, request.type_index);
    }
    Ok(flushed || closed)
}

/// Has the driver look how much memory there is. NVIDIA's driver, once its kernel part has found no memory, refuses without asking again until it has
/// freed memory of this process.
fn look_for_room(device: &Device, type_index: u32) {
    const LITTLE: u64 = 64 << 10;
    let info = vk::MemoryAllocateInfo::default().allocation_size(LITTLE).memory_type_index(type_index);
    // SAFETY: the device is live, and `info` lives until the call returns.
    if let Ok(memory) = unsafe { device.ash.allocate_memory(&info, None) } {
        // SAFETY: the memory was made just now, and no other code knows it.
        unsafe { device.ash.free_memory(memory, None) };
    }
}

/// Clears the guest's old data in memory, as programs expect new memory to be zero; frees the unused `raw` if clearing fails.
fn clear_again(memory: &Memory, device: &Device, raw: u64, key: &ReuseKey) -> Result<(), Fault> {
    match &memory.made {
        Made::Pages(pages, _) if device.cleaner.is_some() => pages.clear(),
        Made::Pages(..) => {}
        // SAFETY: the memory was taken out of the pool, of what has this key; no other code knows it.
        made => unsafe { clear(device, raw, (key.size, key.type_index), made.kinds()) }?,
    }
    Ok(())
}

/// Returns whether a call failed for want of memory or objects, so that it may succeed once less is in use.
fn is_scarcity(result: i32) -> bool {
    use vk::Result as R;
    [R::ERROR_OUT_OF_HOST_MEMORY, R::ERROR_OUT_OF_DEVICE_MEMORY, R::ERROR_TOO_MANY_OBJECTS]
        .contains(&R::from_raw(result))
}

/// `vkFreeMemory`: the memory is kept for a moment (`disposal::pool`); then the driver's memory goes first, the pages with their last
/// owner.
pub(crate) fn free_memory(call: &Call<'_>, c: &venus::FreeMemory) -> Result<venus::FreeMemoryReply, Fault> {
    let never_made = matches!(call.lowering().handle(c.memory), Err(Fault::Failed(_)));
    call.take(c.memory)?;
    if never_made {
        // A program that frees the memory without having used it lacks nothing: programs find out in this way how much memory there is.
        call.context.failures.forget();
    }
    Ok(venus::FreeMemoryReply {})
}

/// `vkGetMemoryResourcePropertiesMESA`: into which types a resource can be imported, and its size.
pub(crate) fn get_memory_resource_properties_mesa<'a>(
    call: &Call<'a>,
    c: &venus::GetMemoryResourcePropertiesMESA<'a>,
) -> Result<venus::GetMemoryResourcePropertiesMESAReply<'a>, Fault> {
    let device = call.device(c.device)?;
    let resource = call.resource(c.resource_id)?;
    let types = match &device.memory {
        BackEnd::Memfd(functions) => memfd::types_of(functions, &device, &resource)?,
        BackEnd::DmaBuf(functions) => dma_buf::types_of(functions, &device, &resource)?,
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
