//! The data of all pipeline caches of a context, for a successor of this worker. The data is no part of the context's state: a successor that does
//! not get it, or cannot use it, only takes longer.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use super::seal::{TAG_BYTES, sealed};
use crate::execution::context::Context;
use crate::logical::device::Device;
use crate::logical::pipeline_caches::{CACHE_DATA_MAX, CacheData};
use ash::vk::{self, Handle as _};
use protocol::venus::generated as venus;
use std::sync::Arc;
use std::time::Instant;

/// Returns the data of all caches of a context, as far as there is `room`, in bytes. Commands may be in flight.
pub(crate) fn data_of_all(context: &Context, room: usize) -> Vec<CacheData> {
    data_of(context, &devices(context), room)
}

/// Returns the same data, if there is more than at the last call. Commands may be in flight.
pub(crate) fn new_data_of_all(context: &Context) -> Option<Vec<CacheData>> {
    let devices = devices(context);
    // Every device is asked, because the question makes each forget that it had more data.
    let is_more = devices.iter().fold(false, |more, (_, device)| device.pipeline_caches.take_more() || more);
    is_more.then(|| data_of(context, &devices, CACHE_DATA_MAX))
}

fn devices(context: &Context) -> Vec<(u64, Arc<Device>)> {
    let table = context.objects.read();
    table.objects().filter_map(|(id, object, _)| Some((id, object.get_shared::<venus::Device>()?))).collect()
}

/// Returns the data of all caches of these devices, ours first, as far as there is room.
fn data_of(context: &Context, devices: &[(u64, Arc<Device>)], room: usize) -> Vec<CacheData> {
    let (start, mut collected) = (Instant::now(), Collected { room, all: Vec::new(), bytes: 0 });
    for (id, device) in devices {
        collected.add(context, (*id, device), |room| device.pipeline_caches.ours.data(&device.ash, room));
    }
    for id in guests(context) {
        // A cache that the guest destroys from here on is destroyed only after this.
        let _in_flight = context.retired.enter();
        let Some((raw, device)) = find(context, id) else { continue };
        // SAFETY: the guest's id stands for this cache of this device, and a command is in flight.
        let data = |room| unsafe { device.pipeline_caches.data_of_guests(&device.ash, raw, room) };
        collected.add(context, (id, &device), data);
    }
    let Collected { all, bytes, .. } = collected;
    if bytes > 0 {
        let took = start.elapsed();
        log::debug!("data of {} pipeline caches: {bytes} bytes, in {took:.1?}", all.len());
    }
    all
}

/// The data of several caches.
struct Collected {
    /// Bytes that all data may have together with the overhead of each cache.
    room: usize,
    all: Vec<CacheData>,
    bytes: usize,
}

impl Collected {
    /// Adds the data of a cache, if the cache has some and it fits.
    fn add(
        &mut self,
        context: &Context,
        (id, device): (u64, &Device),
        data: impl FnOnce(usize) -> Option<Vec<u8>>,
    ) {
        let room = self.room.saturating_sub(self.bytes + TAG_BYTES + OVERHEAD);
        let Some(data) = Some(room).filter(|room| *room > 0).and_then(data) else { return };
        self.bytes += data.len() + TAG_BYTES + OVERHEAD;
        self.all.push(CacheData {
            id,
            sealed: sealed(&context.env.cache_key, &device.physical.cache_origin, data),
        });
    }
}

/// The most bytes that the encoding adds to each cache's data and tag.
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
