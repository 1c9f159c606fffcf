//! Query results: drivers trust count and stride, so both are checked against the size first.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use crate::context::cancel::Cancel;
use crate::context::cause::StreamError;
use crate::context::error::{Fault, inconsistent};
use crate::execution::call::Call;
use crate::kinds::query::{QueryFacts, STATISTICS};
use crate::logical::device::Device;
use crate::lowering::lower::raise_plain;
use crate::validity::query::demand_range;
use ash::vk;
use protocol::venus::generated as venus;
use std::time::Duration;

/// Most words that a driver writes behind the start of one result: pipeline statistics and an availability word.
const RESULT_WORDS: usize = STATISTICS as usize + 1;

/// Bytes of the largest result.
const LARGEST_RESULT: usize = RESULT_WORDS * 8;

/// `vkGetQueryPoolResults`.
pub(crate) fn get_query_pool_results<'a>(
    call: &Call<'a>,
    c: &venus::GetQueryPoolResults<'a>,
) -> Result<venus::GetQueryPoolResultsReply<'a>, Fault> {
    let device = call.device(c.device)?;
    let size = c.p_data.map_or(0, <[u8]>::len);
    let asked = Asked::within(size, c.first_query, c.query_count, c.stride, c.flags)?;
    let (raw, has_kept) = {
        let l = call.lowering();
        let queries = demand_range(&l.objects, c.query_pool, c.first_query, c.query_count)?;
        (l.handle(c.query_pool)?, queries.kept().is_some())
    };
    let pool = Pool { device: &device, raw };
    if has_kept {
        return pool.answer_each(call, c);
    }
    // Results are written 8 bytes at a time into memory that has room for the largest result after the last start.
    let words = call.arena.slice_fill((size + LARGEST_RESULT).div_ceil(8), 0u64)?;
    let result = pool.ask(asked, words, call.cancel)?;
    let data = words.as_ptr().cast::<u8>();
    Ok(venus::GetQueryPoolResultsReply {
        result: venus::VkResult(result),
        p_data: raise_plain(c.p_data, data, size, call.arena)?,
    })
}

/// A query pool of the host's driver.
#[derive(Clone, Copy)]
struct Pool<'d> {
    device: &'d Device,
    raw: u64,
}

/// Queries of a pool, and the form in which their results are wanted.
#[derive(Clone, Copy)]
struct Asked {
    first: u32,
    count: u32,
    /// Bytes from one result to the next.
    stride: u64,
    flags: venus::QueryResultFlags,
    /// The number of bytes behind which no result starts.
    size: usize,
}

impl Asked {
    /// Demands that no result starts behind `size` bytes.
    #[inline]
    fn within(
        size: usize,
        first: u32,
        count: u32,
        stride: u64,
        flags: venus::QueryResultFlags,
    ) -> Result<Self, Fault> {
        let last = u64::from(count.saturating_sub(1)).checked_mul(stride);
        match last.is_none_or(|last| last > size as u64) {
            true => Err(StreamError::Outside("query results", "the space for them").into()),
            false => Ok(Self { first, count, stride, flags, size }),
        }
    }
}

impl Pool<'_> {
    /// Asks the driver for results; `into` has room for the largest result behind the bytes that are asked for.
    #[inline(always)]
    fn ask(self, asked: Asked, into: &mut [u64], cancel: &Cancel) -> Result<i32, Fault> {
        let Asked { first, count, stride, flags, size } = asked;
        let Some(function) = self.device.table.get_query_pool_results else {
            return Err(Fault::missing("vkGetQueryPoolResults"));
        };
        if size_of_val(into) < size + LARGEST_RESULT {
            return Err(StreamError::Outside("query results", "the space for them").into());
        }
        let data = into.as_mut_ptr().cast();
        let get = move |flags: venus::QueryResultFlags| {
            // SAFETY: device and pool are live; no result starts behind `size`, and each fits into the memory allocated behind `size`.
            unsafe { function(self.device.raw(), self.raw, first, count, size, data, stride, flags.0) }
        };
        match WithoutWaiting::of(flags) {
            None => Ok(get(flags)),
            Some(WithoutWaiting(flags)) => poll(cancel, move || get(flags)),
        }
    }

    /// Answers each query out of the kept results, or asks the driver for its result.
    #[cold]
    #[inline(never)]
    fn answer_each<'a>(
        self,
        call: &Call<'a>,
        c: &venus::GetQueryPoolResults<'a>,
    ) -> Result<venus::GetQueryPoolResultsReply<'a>, Fault> {
        // Once results are kept, the place for them stays, even if the results are forgotten.
        let queries = call.state(c.query_pool)?;
        let Some(kept) = queries.kept() else { return Err(inconsistent()) };
        let size = c.p_data.map_or(0, <[u8]>::len);
        let into = call.arena.slice_fill(size + LARGEST_RESULT, 0u8)?;
        let word = if c.flags.contains(venus::QueryResultFlags::TYPE_64) { 8 } else { 4 };
        let available = usize::from(c.flags.contains(venus::QueryResultFlags::WITH_AVAILABILITY));
        let mut all = vk::Result::SUCCESS.as_raw();
        for index in 0..c.query_count {
            let query = c.first_query + index;
            // Room for the largest result, and for as much again behind it.
            let mut words = [0u64; 2 * RESULT_WORDS];
            let mut bytes = [0u8; LARGEST_RESULT];
            if kept.get(query, &mut words[..kept.words()]) {
                words[kept.words()] = 1;
                let chunks = bytes.chunks_exact_mut(word);
                chunks.zip(words).for_each(|(to, value)| to.copy_from_slice(&value.to_le_bytes()[..word]));
            } else {
                let asked = Asked::within(0, query, 1, c.stride, c.flags)?;
                let result = self.ask(asked, &mut words, call.cancel)?;
                if result < 0 {
                    return Err(Fault::Failed(result));
                }
                all = all.max(result);
                bytes
                    .chunks_exact_mut(8)
                    .zip(words)
                    .for_each(|(to, word)| to.copy_from_slice(&word.to_ne_bytes()));
            }
            let length = (kept.words() + available) * word;
            let start = usize::try_from(u64::from(index) * c.stride).unwrap_or(usize::MAX);
            if let Some(into) = start.checked_add(length).and_then(|end| into.get_mut(start..end)) {
                into.copy_from_slice(&bytes[..length]);
            }
        }
        let p_data = c.p_data.map(|_| &into[..size]);
        Ok(venus::GetQueryPoolResultsReply { result: venus::VkResult(all), p_data })
    }
}

/// Reads results without waiting for any, words of 64 bits: those of each query and one that tells whether they are available.
///
/// # Errors
///
/// The driver fails.
pub(crate) fn read_results(
    device: &Device,
    raw: u64,
    queries: &QueryFacts,
    first: u32,
    count: u32,
) -> Result<Vec<u64>, Fault> {
    let Some(words) = queries.result_words().map(|words| words as usize + 1) else { return Ok(Vec::new()) };
    let size = words * count as usize * 8;
    let mut all = vec![0u64; words * count as usize + RESULT_WORDS];
    let flags = venus::QueryResultFlags::TYPE_64.0 | venus::QueryResultFlags::WITH_AVAILABILITY.0;
    let flags = venus::QueryResultFlags(flags);
    let asked = Asked::within(size, first, count, words as u64 * 8, flags)?;
    let result = Pool { device, raw }.ask(asked, &mut all, &Cancel::default())?;
    if result < 0 {
        return Err(Fault::Failed(result));
    }
    all.truncate(words * count as usize);
    if let Some(kept) = queries.kept() {
        for (query, result) in (first..).zip(all.chunks_exact_mut(words)) {
            if kept.get(query, result) {
                result[kept.words()] = 1;
            }
        }
    }
    Ok(all)
}

/// The flags of a request that waits, without the wait: a driver's own wait may last for ever, and cannot be cancelled.
struct WithoutWaiting(venus::QueryResultFlags);

impl WithoutWaiting {
    fn of(flags: venus::QueryResultFlags) -> Option<Self> {
        // Results that may be partial are never late.
        let waits = venus::QueryResultFlags::WAIT.0;
        let cleared = flags.0 & !(waits | venus::QueryResultFlags::PARTIAL.0);
        (flags.0 & waits != 0).then_some(Self(venus::QueryResultFlags(cleared)))
    }
}

/// Asks until there is an answer, at growing intervals.
fn poll(cancel: &Cancel, mut ask: impl FnMut() -> i32) -> Result<i32, Fault> {
    let mut pause = Duration::from_micros(20);
    loop {
        let result = ask();
        if result != vk::Result::NOT_READY.as_raw() {
            return Ok(result);
        }
        if let Some(stop) = cancel.stop() {
            return Err(stop.into());
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Longest time between two questions.
const PAUSE_MAX: Duration = Duration::from_millis(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_for_the_largest_result() {
        let statistics = venus::QueryPipelineStatisticFlags(u32::MAX).known().0.count_ones();
        assert_eq!(statistics, STATISTICS, "each has a word");
        assert_eq!(LARGEST_RESULT, (statistics as usize + 1) * 8);
    }
}
