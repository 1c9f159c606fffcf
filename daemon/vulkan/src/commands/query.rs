//! Query results: drivers trust count and stride, so both are checked against the size first.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use crate::context::cancel::Cancel;
use crate::context::error::Fault;
use crate::execution::call::Call;
use crate::lowering::lower::raise_plain;
use crate::validity::query::demand_range;
use ash::vk;
use protocol::venus::generated as venus;
use std::time::Duration;

/// More than one query can write behind its start: eleven pipeline statistics and an availability word, 8 bytes each.
const LARGEST_RESULT: usize = 12 * 8;

/// `vkGetQueryPoolResults`.
pub(crate) fn get_query_pool_results<'a>(
    call: &Call<'a>,
    c: &venus::GetQueryPoolResults<'a>,
) -> Result<venus::GetQueryPoolResultsReply<'a>, Fault> {
    let device = call.device(c.device)?;
    let size = c.p_data.map_or(0, <[u8]>::len);
    let last = u64::from(c.query_count.saturating_sub(1)).checked_mul(c.stride);
    if last.is_none_or(|last| last > size as u64) {
        return Err(Fault::lost("query results outside the space for them"));
    }
    let pool = {
        let l = call.lowering();
        demand_range(&l.objects, c.query_pool, c.first_query, c.query_count)?;
        l.handle(c.query_pool)?
    };
    // Results are written 8 bytes at a time into memory that has room for the largest result after the last start.
    let words = call.arena.slice_fill((size + LARGEST_RESULT).div_ceil(8), 0u64)?;
    let Some(function) = device.table.get_query_pool_results else {
        return Err(Fault::missing("vkGetQueryPoolResults"));
    };
    let data = words.as_mut_ptr().cast::<u8>();
    let get = |flags: venus::QueryResultFlags| {
        // SAFETY: device and pool are live; no result starts behind `size` and each fits what is allocated behind it.
        unsafe { function(device.raw(), pool, c.first_query, c.query_count, size, data, c.stride, flags.0) }
    };
    let result = match WithoutWaiting::of(c.flags) {
        None => get(c.flags),
        Some(WithoutWaiting(flags)) => poll(call.cancel, || get(flags))?,
    };
    Ok(venus::GetQueryPoolResultsReply {
        result: venus::VkResult(result),
        p_data: raise_plain(c.p_data, data, size, call.arena)?,
    })
}

/// The flags of a request that waits, without the wait: a driver's own has no end, and cannot be cancelled.
struct WithoutWaiting(venus::QueryResultFlags);

impl WithoutWaiting {
    fn of(flags: venus::QueryResultFlags) -> Option<Self> {
        // Results that may be partial are never late.
        let waits = venus::QueryResultFlags::WAIT.0;
        let cleared = flags.0 & !(waits | venus::QueryResultFlags::PARTIAL.0);
        (flags.0 & waits != 0).then_some(Self(venus::QueryResultFlags(cleared)))
    }
}

/// Asks until there is an answer, less and less often.
fn poll(cancel: &Cancel, mut ask: impl FnMut() -> i32) -> Result<i32, Fault> {
    let mut pause = Duration::from_micros(20);
    loop {
        let result = ask();
        if result != vk::Result::NOT_READY.as_raw() {
            return Ok(result);
        }
        if cancel.is_cancelled() {
            return Err(vk::Result::ERROR_DEVICE_LOST.into());
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Longest time between two questions.
const PAUSE_MAX: Duration = Duration::from_millis(2);
