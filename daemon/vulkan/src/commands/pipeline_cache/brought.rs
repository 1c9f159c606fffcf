//! The data of pipeline caches that a predecessor of this worker has sent: a cache that is made later begins with its data, and a cache that exists
//! gets its data in addition.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use super::seal::opened;
use crate::execution::context::Context;
use crate::logical::device::Device;
use crate::logical::pipeline_caches::CacheData;
use ash::vk::{self, Handle as _};
use protocol::venus::generated as venus;
use std::sync::Arc;

/// Takes the data of a cache, while no command is in flight. Returns false if data of too many caches that do not exist yet is kept already.
pub(crate) fn take(context: &Context, CacheData { id, sealed }: &CacheData) -> bool {
    let Some((device, cache)) = find(context, *id) else {
        return context.restored.add_cache_data(*id, sealed, context.env.limits.objects);
    };
    let data = opened(&context.env.cache_key, &device.physical.cache_origin, sealed);
    if let Some(data) = data.filter(|_| cache != vk::PipelineCache::null()) {
        // SAFETY: the id stands for this cache of this device, and no command is in flight.
        unsafe { device.pipeline_caches.add(&device.ash, cache, data) };
    }
    true
}

/// Returns the cache of this id, or our cache of the device with this id, if it exists.
fn find(context: &Context, id: u64) -> Option<(Arc<Device>, vk::PipelineCache)> {
    let table = context.objects.read();
    if let Ok(object) = table.get(venus::PipelineCache(id)) {
        return Some((Arc::clone(object.device.as_ref()?), vk::PipelineCache::from_raw(object.raw)));
    }
    let device = table.get(venus::Device(id)).ok()?.get_shared::<venus::Device>()?;
    let ours = device.pipeline_caches.ours.cache(&device.ash);
    Some((device, ours))
}
