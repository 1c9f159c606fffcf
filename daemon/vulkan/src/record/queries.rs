//! Results of queries that a recording copies into a buffer. The driver does not know results that a predecessor has kept, so the recording writes
//! these results as data, unless it makes them anew before.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use super::recorder::Recorder;
use crate::context::error::Fault;
use crate::kinds::command_buffer::CommandBuffer;
use crate::kinds::query::KeptResults;
use crate::validity::query;
use protocol::venus::generated as venus;
use std::ops::Range;

/// The most bytes that one recording writes in place of copies. A driver keeps these bytes with the recording.
const WRITTEN: usize = 64 << 10;

/// `vkCmdCopyQueryPoolResults`.
pub(crate) fn cmd_copy_query_pool_results(
    r: &mut Recorder<'_>,
    c: &venus::CmdCopyQueryPoolResults,
) -> Result<(), Fault> {
    // A successor that has kept results would record those in place of the results that the program has by then.
    r.context.journal.breaks("a recording copies results of queries");
    let CommandBuffer { raw, device, .. } = r.command_buffer;
    let Some(function) = device.table.cmd_copy_query_pool_results else {
        return Err(Fault::missing("vkCmdCopyQueryPoolResults"));
    };
    let update = device.table.cmd_update_buffer;
    let (l, state) = r.lowering();
    query::cmd_copy_query_pool_results(&l, state, c)?;
    let (pool, buffer) = (l.handle(c.query_pool)?, l.handle(c.dst_buffer)?);
    let flags = c.flags.known();
    let place = |query: u32| c.dst_offset + u64::from(query - c.first_query) * c.stride;
    let copy = |queries: Range<u32>| {
        let (first, count) = (queries.start, queries.end - queries.start);
        // SAFETY: command buffer, pool and buffer are live, and the command buffer's pool is locked; the queries are some of those that were
        // checked.
        unsafe { function(*raw, pool, first, count, buffer, place(first), c.stride, flags.0) };
    };
    let all = c.first_query..c.first_query.saturating_add(c.query_count);
    let kept = l.objects.query_pool(c.query_pool)?.kept().cloned();
    let (Some(kept), Some(update)) = (kept, update) else {
        copy(all);
        return Ok(());
    };
    let mut next = all.start;
    for query in all.clone() {
        let at = place(query);
        let Some(result) = result_of(&kept, query, flags).filter(|result| {
            at.is_multiple_of(4)
                && !state.touched.has(&kept, query)
                && state.written + result.len() <= WRITTEN
        }) else {
            continue;
        };
        if next < query {
            copy(next..query);
        }
        next = query + 1;
        state.written += result.len();
        // SAFETY: as above; the range is a part of what was checked, its place and size are multiples of 4.
        unsafe { update(*raw, buffer, at, result.len() as u64, result.as_ptr().cast()) };
    }
    if next < all.end {
        copy(next..all.end);
    }
    Ok(())
}

/// Returns the bytes that a driver would write for a query whose result was kept.
fn result_of(kept: &KeptResults, query: u32, flags: venus::QueryResultFlags) -> Option<Vec<u8>> {
    let mut words = vec![0; kept.words()];
    kept.get(query, &mut words).then_some(())?;
    words.extend(flags.contains(venus::QueryResultFlags::WITH_AVAILABILITY).then_some(1));
    let word = if flags.contains(venus::QueryResultFlags::TYPE_64) { 8 } else { 4 };
    Some(words.iter().flat_map(|value| value.to_le_bytes().into_iter().take(word)).collect())
}
