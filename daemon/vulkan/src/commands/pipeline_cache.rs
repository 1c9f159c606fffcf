//! Pipeline caches. Their data lives in a guest's files, and the host's driver trusts whatever it is given as its own: so data
//! leaves with a tag that only this daemon can make, and comes back only under that tag.
//!
//! What a guest gets is the driver's data and behind it 32 bytes, a keyed hash of the data, of the device and of the driver's
//! version. Everything else that a guest sends is dropped: it gets an empty cache, as it does from a driver that was updated.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use crate::context::error::Fault;
use crate::execution::call::Call;
use crate::logical::device::Device;
use ash::vk;
use config::CacheKey;
use protocol::venus::generated as venus;

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

/// `vkCreatePipelineCache`: initial data is passed if it is authentic.
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
    let sent = info.p_initial_data.unwrap_or(&[]);
    let data = match sent {
        [] => None,
        sent => authentic(&call.context.env.cache_key, &origin(&device), sent),
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
    Ok(venus::CreatePipelineCacheReply {
        result: venus::VkResult(result),
        p_pipeline_cache: c.p_pipeline_cache,
    })
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
