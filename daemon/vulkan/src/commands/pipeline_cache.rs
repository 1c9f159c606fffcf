//! Pipeline caches. Their data lives in a guest's files, and the host's driver trusts whatever it is given as its own: so data
//! leaves with a tag that only this daemon can make, and comes back only under that tag.
//!
//! What a guest gets is the driver's data and behind it 32 bytes, a keyed hash of the data, of the device and of the driver's
//! version. Everything else that a guest sends is dropped: it gets an empty cache, as it does from a driver that was updated.
//!
//! A successor of this worker gets the data of all caches, in the same form, so that its driver does not compile pipelines again. They are no part of what a
//! context is: a successor that does not get them, or cannot use them, takes longer.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use crate::context::error::{Fault, demand};
use crate::execution::call::Call;
use crate::execution::context::Context;
use crate::logical::device::Device;
use crate::logical::own_cache::{CACHE_DATA_MAX, CacheData};
use ash::vk::{self, Handle as _};
use config::CacheKey;
use protocol::venus::generated as venus;
use std::sync::Arc;
use std::time::Instant;

/// Bytes behind the driver's data.
const TAG_BYTES: usize = blake3::OUT_LEN;

/// The device and driver version that data is bound to: another may read it differently.
type Origin = [u8; 44];

fn origin(device: &Device) -> Origin {
    let physical = &device.physical;
    // SAFETY: the handle comes from this live instance.
    let host = unsafe { physical.instance.ash.get_physical_device_properties(physical.handle) };
    let mut origin = [0; 44];
    origin[..16].copy_from_slice(&host.pipeline_cache_uuid);
    origin[16..32].copy_from_slice(&physical.gpu.uuid);
    let versions = [host.vendor_id, host.device_id, host.driver_version].map(u32::to_le_bytes);
    origin[32..].copy_from_slice(versions.as_flattened());
    origin
}

fn tag(key: &CacheKey, origin: &Origin, data: &[u8]) -> blake3::Hash {
    blake3::Hasher::new_keyed(&key.0).update(origin).update(data).finalize()
}

/// The driver's data in what a guest sent; none if it is not exactly what left here.
fn authentic<'a>(key: &CacheKey, origin: &Origin, sealed: &'a [u8]) -> Option<&'a [u8]> {
    let (data, found) = sealed.split_last_chunk::<TAG_BYTES>()?;
    // Hashes are compared in constant time.
    (tag(key, origin, data) == blake3::Hash::from_bytes(*found)).then_some(data)
}

/// Returns the driver's data with its tag, as only a worker of the same VM on the same GPU and driver accepts it.
pub(crate) fn sealed(key: &CacheKey, device: &Device, mut data: Vec<u8>) -> Vec<u8> {
    let tag = tag(key, &origin(device), &data);
    data.extend_from_slice(tag.as_bytes());
    data
}

/// Returns the driver's data in what [`sealed`] has made for such a device; none in anything else.
pub(crate) fn opened<'a>(key: &CacheKey, device: &Device, sealed: &'a [u8]) -> Option<&'a [u8]> {
    authentic(key, &origin(device), sealed)
}

/// `vkCreatePipelineCache`: initial data is passed if it is authentic. A cache that a predecessor of this worker had begins with what it had there.
///
/// `VK_PIPELINE_CACHE_CREATE_EXTERNALLY_SYNCHRONIZED_BIT` is dropped: it is the guest's promise, and a broken one would let two
/// rings into the driver's cache at once.
pub(crate) fn create_pipeline_cache<'a>(
    call: &Call<'a>,
    c: &venus::CreatePipelineCache<'a>,
) -> Result<venus::CreatePipelineCacheReply<'a>, Fault> {
    let device = call.device(c.device)?;
    let Some(info) = c.p_create_info else {
        return Err(Fault::lost("vkCreatePipelineCache without a description"));
    };
    let Some(function) = device.table.create_pipeline_cache else {
        return Err(Fault::missing("vkCreatePipelineCache"));
    };
    let restored = c.p_pipeline_cache.and_then(|id| call.context.restored.take_cache_data(id.0));
    let restored = restored.as_deref().and_then(|data| opened(&call.context.env.cache_key, &device, data));
    let sent = info.p_initial_data.unwrap_or(&[]);
    let data = match sent {
        _ if restored.is_some() => restored,
        [] => None,
        sent => opened(&call.context.env.cache_key, &device, sent),
    };
    if !sent.is_empty() {
        log::debug!(bytes = sent.len(), authentic = data.is_some(); "pipeline cache with initial data");
    }
    let mut checked = *info;
    checked.flags.0 &= !venus::PipelineCacheCreateFlags::EXTERNALLY_SYNCHRONIZED.0;
    checked.initial_data_size = data.map_or(0, <[u8]>::len) as u64;
    checked.p_initial_data = data;
    let lowered = call.lowering().pointer(Some(&checked))?;
    let mut raw = 0u64;
    // SAFETY: the device is live, `lowered` lives in the arena and its data in the command.
    let result = unsafe { function(device.raw(), lowered, std::ptr::null(), &raw mut raw) };
    call.created(c.p_pipeline_cache, raw, &device, result)?;
    device.own_cache.has_more();
    Ok(venus::CreatePipelineCacheReply {
        result: venus::VkResult(result),
        p_pipeline_cache: c.p_pipeline_cache,
    })
}

/// `vkMergePipelineCaches`: drivers lock the target, then each source.
pub(crate) fn merge_pipeline_caches(
    call: &Call<'_>,
    c: &venus::MergePipelineCaches<'_>,
) -> Result<venus::MergePipelineCachesReply, Fault> {
    let device = call.device(c.device)?;
    let Some(function) = device.table.merge_pipeline_caches else {
        return Err(Fault::missing("vkMergePipelineCaches"));
    };
    let sources = c.p_src_caches.unwrap_or(&[]);
    demand(c.dst_cache.0 != 0 && sources.iter().all(|cache| cache.0 != 0), "a pipeline cache is missing")?;
    demand(!sources.contains(&c.dst_cache), "a pipeline cache is merged into itself")?;
    let (into, from) = {
        let l = call.lowering();
        (l.handle(c.dst_cache)?, l.handles(c.p_src_caches)?)
    };
    let merge = || {
        // SAFETY: device and caches are live, and `from` has as many as were decoded.
        unsafe { function(device.raw(), into, sources.len() as u32, from) }
    };
    let result = device.own_cache.merges(merge);
    device.own_cache.has_more();
    Ok(venus::MergePipelineCachesReply { result: venus::VkResult(result) })
}

/// `vkGetPipelineCacheData`: the driver's data, or as much of it as there is room for, and its tag.
pub(crate) fn get_pipeline_cache_data<'a>(
    call: &Call<'a>,
    c: &venus::GetPipelineCacheData<'a>,
) -> Result<venus::GetPipelineCacheDataReply<'a>, Fault> {
    let device = call.device(c.device)?;
    let Some(function) = device.table.get_pipeline_cache_data else {
        return Err(Fault::missing("vkGetPipelineCacheData"));
    };
    let cache = call.lowering().handle(c.pipeline_cache)?;
    let room = c.p_data.map_or(0, <[u8]>::len);
    let data = call.arena.slice_copy(c.p_data.unwrap_or(&[]))?;
    let reply = |result, size: usize, data| {
        let p_data_size = match c.p_data_size {
            Some(_) => Some(&*call.arena.value(size as u64)?),
            None => None,
        };
        Ok(venus::GetPipelineCacheDataReply { result: venus::VkResult(result), p_data_size, p_data: data })
    };
    if c.p_data.is_some() && room < TAG_BYTES {
        return reply(vk::Result::INCOMPLETE.as_raw(), 0, Some(&[]));
    }
    let mut size = room.saturating_sub(TAG_BYTES);
    let into = if c.p_data.is_some() { data.as_mut_ptr() } else { std::ptr::null_mut() };
    // SAFETY: device and cache are live; `into` is null or has room for `size` bytes.
    let result = unsafe { function(device.raw(), cache, &raw mut size, into) };
    if c.p_data.is_none() || result < 0 {
        return reply(result, size.saturating_add(TAG_BYTES), c.p_data.map(|_| &[][..]));
    }
    let size = size.min(room - TAG_BYTES);
    let tag = tag(&call.context.env.cache_key, &origin(&device), &data[..size]);
    data[size..size + TAG_BYTES].copy_from_slice(tag.as_bytes());
    reply(result, size + TAG_BYTES, Some(&data[..size + TAG_BYTES]))
}

/// Returns the data of all caches of a context, as far as there is room. Commands may be in flight.
pub(crate) fn data_of_all(context: &Context) -> Vec<CacheData> {
    data_of(context, &devices(context))
}

/// Returns the same data, if there is more than when this was last asked. Commands may be in flight.
pub(crate) fn new_data_of_all(context: &Context) -> Option<Vec<CacheData>> {
    let devices = devices(context);
    let new = devices.iter().filter(|(_, device)| device.own_cache.take_new()).count();
    (new > 0).then(|| data_of(context, &devices))
}

fn devices(context: &Context) -> Vec<(u64, Arc<Device>)> {
    let table = context.objects.read();
    table.objects().filter_map(|(id, object, _)| Some((id, object.get_shared::<venus::Device>()?))).collect()
}

/// Returns the data of all caches of these devices, ours first, as far as there is room.
fn data_of(context: &Context, devices: &[(u64, Arc<Device>)]) -> Vec<CacheData> {
    let (start, mut all) = (Instant::now(), All::default());
    for (id, device) in devices {
        all.add(context, (*id, device), |room| device.own_cache.data(&device.ash, room));
    }
    for id in guests(context) {
        // A cache that the guest destroys from here on is destroyed only after this.
        let _in_flight = context.retired.enter();
        let Some((raw, device)) = find(context, id) else { continue };
        // SAFETY: the guest's id stands for this cache of this device, and a command is in flight.
        let data = |room| unsafe { device.own_cache.data_of_guests(&device.ash, raw, room) };
        all.add(context, (id, &device), data);
    }
    let All { all, bytes } = all;
    if bytes > 0 {
        let took = start.elapsed();
        log::debug!("data of {} pipeline caches: {bytes} bytes, in {took:.1?}", all.len());
    }
    all
}

/// The data of several caches, of no more than [`CACHE_DATA_MAX`] bytes with all that belongs to each.
#[derive(Default)]
struct All {
    all: Vec<CacheData>,
    bytes: usize,
}

impl All {
    /// Adds the data of a cache, if there is some within the bytes that it may have.
    fn add(
        &mut self,
        context: &Context,
        (id, device): (u64, &Device),
        data: impl FnOnce(usize) -> Option<Vec<u8>>,
    ) {
        let room = CACHE_DATA_MAX.saturating_sub(self.bytes + TAG_BYTES + OVERHEAD);
        let Some(data) = data(room) else { return };
        self.bytes += data.len() + TAG_BYTES + OVERHEAD;
        self.all.push(CacheData { id, sealed: sealed(&context.env.cache_key, device, data) });
    }
}

/// Bytes beside each cache's data and tag in what is encoded, at most.
const OVERHEAD: usize = 20;

/// Returns the ids of the guest's caches.
fn guests(context: &Context) -> Vec<u64> {
    let table = context.objects.read();
    let is_cache = |kind| kind == venus::ObjectType::PIPELINE_CACHE;
    table.objects().filter(|(_, object, _)| is_cache(object.kind())).map(|(id, ..)| id).collect()
}

fn find(context: &Context, id: u64) -> Option<(vk::PipelineCache, Arc<Device>)> {
    let table = context.objects.read();
    let object = table.get(venus::PipelineCache(id)).ok()?;
    Some((vk::PipelineCache::from_raw(object.raw), Arc::clone(object.device.as_ref()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: CacheKey = CacheKey([7; 32]);
    const ORIGIN: Origin = [9; 44];

    fn sealed(key: &CacheKey, origin: &Origin, data: &[u8]) -> Vec<u8> {
        [data, tag(key, origin, data).as_bytes()].concat()
    }

    #[test]
    fn data_comes_back_as_it_left() {
        for data in [&b"code"[..], b"", &[0; 4096]] {
            assert_eq!(authentic(&KEY, &ORIGIN, &sealed(&KEY, &ORIGIN, data)), Some(data));
        }
    }

    #[test]
    fn one_flipped_bit_anywhere_drops_the_data() {
        let sealed = sealed(&KEY, &ORIGIN, b"what a driver compiled");
        for bit in 0..sealed.len() * 8 {
            let mut changed = sealed.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(authentic(&KEY, &ORIGIN, &changed), None, "bit {bit}");
        }
    }

    #[test]
    fn data_that_is_cut_grown_or_never_had_a_tag_is_dropped() {
        let sealed = sealed(&KEY, &ORIGIN, b"what a driver compiled");
        for length in 0..sealed.len() {
            assert_eq!(authentic(&KEY, &ORIGIN, &sealed[..length]), None, "{length} bytes");
        }
        assert_eq!(authentic(&KEY, &ORIGIN, &[&sealed[..], &[0]].concat()), None);
        assert_eq!(authentic(&KEY, &ORIGIN, &[0; 64]), None);
    }

    #[test]
    fn data_of_another_key_device_or_driver_is_dropped() {
        let (data, mut other) = (b"code", ORIGIN);
        assert_eq!(authentic(&KEY, &ORIGIN, &sealed(&CacheKey([8; 32]), &ORIGIN, data)), None);
        for byte in 0..ORIGIN.len() {
            other[byte] ^= 1;
            assert_eq!(authentic(&KEY, &ORIGIN, &sealed(&KEY, &other, data)), None, "byte {byte}");
            other = ORIGIN;
        }
    }
}
