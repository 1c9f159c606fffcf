//! Descriptor pools and their descriptor sets: whoever allocates, writes, frees or resets holds the pool's lock meanwhile.

use super::call::{Call, inconsistent};
use super::error::Fault;
use super::objects::State;
use super::reading::Recent;
use super::submitted::Submitted;
use super::usage::Usage;
use super::validity::layouts::SetLayout;
use super::validity::{layouts, writes};
use parking_lot::{Mutex, MutexGuard};
use protocol::venus::generated as venus;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::sync::Arc;

/// A descriptor pool.
#[derive(Debug)]
pub struct DescriptorPool {
    /// The host's handle.
    pub raw: u64,
    sets: Mutex<Sets>,
}

/// What is allocated from a pool: by the host's handle, the guest's id and the use.
#[derive(Debug, Default)]
pub struct Sets {
    live: FxHashMap<u64, (u64, Arc<Usage>)>,
    /// The submissions of those that were freed while they were pending: the driver still has them.
    left: Submitted,
    destroyed: bool,
}

/// A descriptor set.
#[derive(Debug)]
pub struct DescriptorSet {
    /// The host's handle.
    pub raw: u64,
    /// Where it was allocated.
    pub pool: Arc<DescriptorPool>,
    /// What it was made from.
    pub layout: Arc<SetLayout>,
    /// Descriptors in the binding whose count is variable.
    pub variable_count: u32,
}

impl DescriptorPool {
    fn new(raw: u64) -> Self {
        Self { raw, sets: Mutex::default() }
    }

    /// Locks the pool and all that is allocated from it.
    pub fn lock(&self) -> MutexGuard<'_, Sets> {
        self.sets.lock()
    }

    /// Locks a pool that another ring may have destroyed since it was looked up.
    fn lock_alive(&self) -> Result<MutexGuard<'_, Sets>, Fault> {
        let sets = self.lock();
        match sets.destroyed {
            false => Ok(sets),
            true => Err(Fault::invalid("a descriptor pool is used while it is destroyed")),
        }
    }
}

impl Sets {
    /// Whether a set is still allocated.
    pub fn has(&self, set: &DescriptorSet) -> bool {
        self.live.contains_key(&set.raw)
    }

    /// The submissions that any set is in.
    fn submitted(&self) -> Submitted {
        self.live.values().fold(self.left.clone(), |all, (_, usage)| all.and(&usage.submitted()))
    }

    /// The pool is destroyed: takes all out, as the guest's ids.
    pub fn close(&mut self) -> Vec<u64> {
        self.destroyed = true;
        self.clear()
    }

    fn clear(&mut self) -> Vec<u64> {
        self.live.drain().map(|(_, (id, _))| id).collect()
    }
}

/// The pool that an id names.
fn pool(call: &Call<'_>, id: venus::DescriptorPool) -> Result<Arc<DescriptorPool>, Fault> {
    let l = call.lowering();
    l.handle(id)?;
    match &l.objects.get(id)?.state {
        State::DescriptorPool(pool) => Ok(pool.clone()),
        _ => Err(inconsistent()),
    }
}

/// `vkCreateDescriptorPool`.
pub fn create_descriptor_pool<'a>(
    call: &Call<'a>,
    c: &venus::CreateDescriptorPool<'a>,
) -> Result<venus::CreateDescriptorPoolReply<'a>, Fault> {
    let device = call.device(c.device)?;
    let Some(info) = c.p_create_info else {
        return Err(Fault::lost("vkCreateDescriptorPool without a description"));
    };
    layouts::check_pool(info).map_err(Fault::invalid)?;
    let info = call.lowering().pointer(Some(info))?;
    let Some(function) = device.table.create_descriptor_pool else {
        return Err(Fault::missing("vkCreateDescriptorPool"));
    };
    let mut raw = 0u64;
    // SAFETY: the device is live, `info` and what it points to live in the arena.
    let result = unsafe { function(device.raw(), info, std::ptr::null(), &raw mut raw) };
    let state = State::DescriptorPool(Arc::new(DescriptorPool::new(raw)));
    call.bind(c.p_descriptor_pool, raw, &device, result, state)?;
    Ok(venus::CreateDescriptorPoolReply {
        result: venus::VkResult(result),
        p_descriptor_pool: c.p_descriptor_pool,
    })
}

/// `vkDestroyDescriptorPool`.
pub fn destroy_descriptor_pool(
    call: &Call<'_>,
    c: &venus::DestroyDescriptorPool,
) -> Result<venus::DestroyDescriptorPoolReply, Fault> {
    let Some(object) = call.renderer.objects.remove(c.descriptor_pool)? else {
        return Ok(venus::DestroyDescriptorPoolReply {});
    };
    if let State::DescriptorPool(pool) = &object.state {
        let mut sets = pool.lock();
        object.usage.submit_all(&sets.submitted());
        call.renderer.objects.forget(sets.close());
    }
    call.destroy(object)?;
    Ok(venus::DestroyDescriptorPoolReply {})
}

/// `vkResetDescriptorPool`.
pub fn reset_descriptor_pool(
    call: &Call<'_>,
    c: &venus::ResetDescriptorPool,
) -> Result<venus::ResetDescriptorPoolReply, Fault> {
    let device = call.device(c.device)?;
    let pool = pool(call, c.descriptor_pool)?;
    let mut sets = pool.lock_alive()?;
    call.await_submitted(&device, &sets.submitted(), "vkResetDescriptorPool")?;
    call.renderer.objects.forget(sets.clear());
    let Some(function) = device.table.reset_descriptor_pool else {
        return Err(Fault::missing("vkResetDescriptorPool"));
    };
    // SAFETY: device and pool are live, no set is pending, and the pool is locked.
    let result = unsafe { function(device.raw(), pool.raw, c.flags.0) };
    Ok(venus::ResetDescriptorPoolReply { result: venus::VkResult(result) })
}

/// `vkAllocateDescriptorSets`.
pub fn allocate_descriptor_sets<'a>(
    call: &Call<'a>,
    c: &venus::AllocateDescriptorSets<'a>,
) -> Result<venus::AllocateDescriptorSetsReply<'a>, Fault> {
    let device = call.device(c.device)?;
    let (Some(info), Some(ids)) = (c.p_allocate_info, c.p_descriptor_sets) else {
        return Err(Fault::lost("vkAllocateDescriptorSets without ids"));
    };
    let prepared = pool(call, info.descriptor_pool).and_then(|pool| {
        let l = call.lowering();
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
    let encoding = call.encodings(ids.len());
    let mut bound = Ok(());
    for ((id, raw), (layout, variable_count)) in ids.iter().zip(&*raws).zip(layouts) {
        let (raw, pool) = (*raw, pool.clone());
        let state = State::DescriptorSet(Arc::new(DescriptorSet { raw, pool, layout, variable_count }));
        let usage = match call.bind_one(Some(id), raw, &device, 0, state, &encoding) {
            Err(Fault::Failed(result)) => {
                bound = Err(Fault::Failed(result));
                continue;
            }
            usage => usage?,
        };
        sets.live.insert(raw, (id.0, usage));
    }
    bound?;
    Ok(venus::AllocateDescriptorSetsReply {
        result: venus::VkResult(result),
        p_descriptor_sets: c.p_descriptor_sets,
    })
}

/// `vkFreeDescriptorSets`: 0, tombstones, and sets of another pool are skipped.
pub fn free_descriptor_sets<'a>(
    call: &Call<'a>,
    c: &venus::FreeDescriptorSets<'a>,
) -> Result<venus::FreeDescriptorSetsReply, Fault> {
    let device = call.device(c.device)?;
    let pool = pool(call, c.descriptor_pool)?;
    let Some(function) = device.table.free_descriptor_sets else {
        return Err(Fault::missing("vkFreeDescriptorSets"));
    };
    let mut sets = pool.lock_alive()?;
    let (mut raws, mut patient) = (Vec::new(), true);
    for id in c.p_descriptor_sets.unwrap_or(&[]) {
        let Some(object) = call.renderer.objects.remove(*id)? else { continue };
        let State::DescriptorSet(set) = &object.state else { return Err(inconsistent()) };
        if !Arc::ptr_eq(&set.pool, &pool) {
            log::debug!("a descriptor set is freed from a pool that it is not of");
            continue;
        }
        sets.live.remove(&object.raw);
        let submitted = object.usage.submitted();
        patient = patient && call.await_submitted(&device, &submitted, "vkFreeDescriptorSets").is_ok();
        // One that stays pending ends with the pool.
        match patient || device.completed(&submitted) {
            true => raws.push(object.raw),
            false => sets.left = std::mem::take(&mut sets.left).and(&submitted),
        }
    }
    let result = match raws.is_empty() {
        true => 0,
        // SAFETY: device, pool and sets are live, nobody can name the sets any more, and the pool is locked.
        false => unsafe { function(device.raw(), pool.raw, raws.len() as u32, raws.as_ptr()) },
    };
    Ok(venus::FreeDescriptorSetsReply { result: venus::VkResult(result) })
}

/// `vkUpdateDescriptorSets`: with the pools of all sets locked, in one order for everybody.
pub fn update_descriptor_sets<'a>(
    call: &Call<'a>,
    c: &venus::UpdateDescriptorSets<'a>,
) -> Result<venus::UpdateDescriptorSetsReply, Fault> {
    let device = call.device(c.device)?;
    let Some(function) = device.table.update_descriptor_sets else {
        return Err(Fault::missing("vkUpdateDescriptorSets"));
    };
    let (writes, copies) = (c.p_descriptor_writes.unwrap_or(&[]), c.p_descriptor_copies.unwrap_or(&[]));
    let (sets, lowered_writes, lowered_copies) = {
        let objects = call.renderer.objects.read();
        let objects = Recent::of(&objects);
        let l = call.looking_up(&objects);
        let sets = writes::check_update(&l, writes, copies)?;
        (sets, l.array(Some(writes))?, l.array(Some(copies))?)
    };
    let locked = lock_pools(&sets)?;
    // SAFETY: all handles are live, the sets' pools are locked, writes and copies lie in the arena and stay within their bindings.
    unsafe {
        function(device.raw(), writes.len() as u32, lowered_writes, copies.len() as u32, lowered_copies);
    }
    drop(locked);
    Ok(venus::UpdateDescriptorSetsReply {})
}

/// Locks the pools of sets that are all still allocated.
fn lock_pools(sets: &[Arc<DescriptorSet>]) -> Result<SmallVec<[MutexGuard<'_, Sets>; 2]>, Fault> {
    let mut pools: SmallVec<[_; 2]> = sets.iter().map(|set| &set.pool).collect();
    pools.sort_by_key(|pool| Arc::as_ptr(pool));
    pools.dedup_by_key(|pool| Arc::as_ptr(pool));
    let locked: SmallVec<[_; 2]> = pools.iter().map(|pool| pool.lock()).collect();
    for set in sets {
        let at = pools.iter().position(|pool| Arc::ptr_eq(pool, &set.pool));
        if !at.is_some_and(|at| locked[at].has(set)) {
            return Err(Fault::invalid("a descriptor set is updated while it is freed"));
        }
    }
    Ok(locked)
}

impl State {
    /// Forgets what is allocated from a pool, if it is one, because the pool is destroyed with its device.
    pub fn close_pool(&self) {
        match self {
            Self::CommandPool(pool) => drop(pool.lock().close()),
            Self::DescriptorPool(pool) => drop(pool.lock().close()),
            _ => {}
        }
    }
}
