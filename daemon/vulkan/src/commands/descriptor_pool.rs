//! Descriptor pools and their descriptor sets: a thread that allocates, writes, frees or resets holds the pool's lock meanwhile.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use crate::context::error::Fault;
use crate::execution::call::Call;
use crate::kinds::descriptor_set::{DescriptorPool, DescriptorSet, LiveSet, LockedPools};
use crate::kinds::descriptors::Contents;
use crate::objects::object::StateOf;
use crate::objects::origin::Names;
use crate::objects::reading::Recent;
use crate::validity::{layouts, writes};
use protocol::venus::generated as venus;
use std::sync::Arc;

/// `vkCreateDescriptorPool`.
pub(crate) fn create_descriptor_pool<'a>(
    call: &Call<'a>,
    c: &venus::CreateDescriptorPool<'a>,
) -> Result<venus::CreateDescriptorPoolReply<'a>, Fault> {
    let device = call.device(c.device)?;
    let Some(info) = c.p_create_info else {
        return Err(Fault::without("a description"));
    };
    layouts::check_pool(info)?;
    let info = call.lowering().pointer(Some(info))?;
    let Some(function) = device.table.create_descriptor_pool else {
        return Err(Fault::missing("vkCreateDescriptorPool"));
    };
    let mut raw = 0u64;
    // SAFETY: the device is live, `info` and what it points to live in the arena.
    let result = unsafe { function(device.raw(), info, std::ptr::null(), &raw mut raw) };
    let state = StateOf::of(DescriptorPool::new(raw));
    call.bind(c.p_descriptor_pool, raw, &device, result, state)?;
    Ok(venus::CreateDescriptorPoolReply {
        result: venus::VkResult(result),
        p_descriptor_pool: c.p_descriptor_pool,
    })
}

/// `vkDestroyDescriptorPool`.
pub(crate) fn destroy_descriptor_pool(
    call: &Call<'_>,
    c: &venus::DestroyDescriptorPool,
) -> Result<venus::DestroyDescriptorPoolReply, Fault> {
    let Some(object) = call.context.objects.remove(c.descriptor_pool)? else {
        return Ok(venus::DestroyDescriptorPoolReply {});
    };
    if let Some(pool) = object.get::<venus::DescriptorPool>() {
        let mut sets = pool.lock();
        object.usage.submit_all(&sets.submitted());
        call.context.objects.forget(sets.close());
    }
    call.destroy(object)?;
    Ok(venus::DestroyDescriptorPoolReply {})
}

/// `vkResetDescriptorPool`.
pub(crate) fn reset_descriptor_pool(
    call: &Call<'_>,
    c: &venus::ResetDescriptorPool,
) -> Result<venus::ResetDescriptorPoolReply, Fault> {
    let device = call.device(c.device)?;
    let pool = call.state_of_owner(c.descriptor_pool)?;
    let mut sets = pool.lock_alive()?;
    call.await_submitted(&device, &sets.submitted(), "vkResetDescriptorPool")?;
    call.context.objects.forget(sets.clear());
    let Some(function) = device.table.reset_descriptor_pool else {
        return Err(Fault::missing("vkResetDescriptorPool"));
    };
    // SAFETY: device and pool are live, no set is pending, and the pool is locked.
    let result = unsafe { function(device.raw(), pool.raw, c.flags.0) };
    Ok(venus::ResetDescriptorPoolReply { result: venus::VkResult(result) })
}

/// `vkAllocateDescriptorSets`.
pub(crate) fn allocate_descriptor_sets<'a>(
    call: &Call<'a>,
    c: &venus::AllocateDescriptorSets<'a>,
) -> Result<venus::AllocateDescriptorSetsReply<'a>, Fault> {
    let device = call.device(c.device)?;
    let (Some(info), Some(ids)) = (c.p_allocate_info, c.p_descriptor_sets) else {
        return Err(Fault::without("ids"));
    };
    let names = Names::default();
    let prepared = call.state_of_owner(info.descriptor_pool).and_then(|pool| {
        let l = call.creating(&names);
        Ok((pool, layouts::of_new_sets(&l, info)?, l.pointer(Some(info))?))
    });
    let (pool, layouts, lowered) = match prepared {
        Err(Fault::Failed(result)) => {
            call.none_created(ids, result)?;
            return Ok(c.failed(venus::VkResult(result)));
        }
        prepared => prepared?,
    };
    let raws = call.arena.slice_fill(ids.len(), 0u64)?;
    let Some(function) = device.table.allocate_descriptor_sets else {
        return Err(Fault::missing("vkAllocateDescriptorSets"));
    };
    let mut sets = pool.lock_alive()?;
    // SAFETY: device, pool and layouts are live, the pool is locked, `info` lives in the arena, and the decoder checked that there
    // are as many ids as it asks for.
    let result = unsafe { function(device.raw(), lowered, raws.as_mut_ptr()) };
    if result < 0 {
        call.none_created(ids, result)?;
        return Ok(c.failed(venus::VkResult(result)));
    }
    let mut origin = call.origins(ids.len(), names);
    let mut bound = Ok(());
    for ((id, raw), (layout, variable_count)) in ids.iter().zip(&*raws).zip(layouts) {
        let (raw, pool) = (*raw, pool.clone());
        let state = StateOf::of(DescriptorSet { raw, pool, layout, variable_count });
        let usage = match call.bind_one(Some(id), raw, &device, 0, state, &mut origin) {
            Err(Fault::Failed(result)) => {
                bound = Err(Fault::Failed(result));
                continue;
            }
            usage => usage?,
        };
        sets.live.insert(raw, LiveSet { id: id.0, usage, contents: Contents::default() });
    }
    bound?;
    Ok(venus::AllocateDescriptorSetsReply {
        result: venus::VkResult(result),
        p_descriptor_sets: c.p_descriptor_sets,
    })
}

/// `vkFreeDescriptorSets`: 0, tombstones, and sets of another pool are skipped.
pub(crate) fn free_descriptor_sets<'a>(
    call: &Call<'a>,
    c: &venus::FreeDescriptorSets<'a>,
) -> Result<venus::FreeDescriptorSetsReply, Fault> {
    let device = call.device(c.device)?;
    let pool = call.state_of_owner(c.descriptor_pool)?;
    let Some(function) = device.table.free_descriptor_sets else {
        return Err(Fault::missing("vkFreeDescriptorSets"));
    };
    let mut sets = pool.lock_alive()?;
    let ids = c.p_descriptor_sets.unwrap_or(&[]);
    let of_pool = |set: &DescriptorSet| Arc::ptr_eq(&set.pool, &pool);
    // The wait comes before the sets are taken from the guest: if the wait is interrupted, the guest keeps them.
    call.have_ended(&device, ids, of_pool, "vkFreeDescriptorSets")?;
    let mut raws = Vec::new();
    for id in ids {
        let Some(object) = call.context.objects.remove(*id)? else { continue };
        let set = object.state::<venus::DescriptorSet>()?;
        if !Arc::ptr_eq(&set.pool, &pool) {
            log::debug!("a descriptor set is freed from another pool than its own");
            continue;
        }
        sets.live.remove(&object.raw);
        let submitted = object.usage.submitted();
        // A set that stays pending ends with the pool.
        match device.completed(&submitted) {
            true => raws.push(object.raw),
            false => sets.left = std::mem::take(&mut sets.left).and(&submitted),
        }
    }
    let result = match raws.is_empty() {
        true => 0,
        // SAFETY: device, pool and sets are live, no command can name the sets any more, and the pool is locked.
        false => unsafe { function(device.raw(), pool.raw, raws.len() as u32, raws.as_ptr()) },
    };
    Ok(venus::FreeDescriptorSetsReply { result: venus::VkResult(result) })
}

/// `vkUpdateDescriptorSets`: with the pools of all sets locked, in the same order in all threads.
pub(crate) fn update_descriptor_sets<'a>(
    call: &Call<'a>,
    c: &venus::UpdateDescriptorSets<'a>,
) -> Result<venus::UpdateDescriptorSetsReply, Fault> {
    let device = call.device(c.device)?;
    let Some(function) = device.table.update_descriptor_sets else {
        return Err(Fault::missing("vkUpdateDescriptorSets"));
    };
    let (writes, copies) = (c.p_descriptor_writes.unwrap_or(&[]), c.p_descriptor_copies.unwrap_or(&[]));
    let (sets, lowered_writes, lowered_copies) = {
        let objects = call.context.objects.read();
        let objects = Recent::of(&objects);
        let l = call.looking_up(&objects);
        let sets = writes::check_update(&l, writes, copies)?;
        (sets, l.array(Some(writes))?, l.array(Some(copies))?)
    };
    let update = || {
        // SAFETY: all handles are live, the sets' pools are locked below, writes and copies lie in the arena and stay within their bindings.
        unsafe {
            function(device.raw(), writes.len() as u32, lowered_writes, copies.len() as u32, lowered_copies);
        }
    };
    if let [set] = &*sets {
        let mut pool = set.pool.lock();
        let contents = pool.contents(set)?;
        update();
        writes.iter().for_each(|write| set.write(contents, write));
    } else {
        let mut pools = LockedPools::lock(&sets)?;
        update();
        pools.note(&sets, writes, copies);
    }
    Ok(venus::UpdateDescriptorSetsReply {})
}
