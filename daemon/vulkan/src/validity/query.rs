//! Checks of queries, which drivers keep in arrays.

use crate::context::error::{Fault, demand};
use crate::kinds::command_buffer::RecordingState;
use crate::kinds::query::QueryFacts;
use crate::logical::device::Device;
use crate::lowering::lower::Lowering;
use crate::objects::object::StateOf;
use crate::objects::reading::Reading;
use protocol::venus::generated as venus;
use std::sync::Arc;

/// The most queries of one pool. Drivers multiply the number by the size of a result.
pub(crate) const QUERIES: u32 = 1 << 20;

const OUTSIDE: &str = "queries outside of their pool";

const KIND: &str = "a query of another kind than its pool";

/// `vkCreateQueryPool`.
pub(crate) fn create_query_pool(
    _: &Lowering<'_>,
    _: &Arc<Device>,
    c: &venus::CreateQueryPool<'_>,
) -> Result<StateOf<venus::QueryPool>, Fault> {
    let info = c.p_create_info.ok_or_else(|| Fault::invalid("a query pool without a description"))?;
    demand(
        (1..=QUERIES).contains(&info.query_count),
        "a query pool of no or too many queries (limit: queries)",
    )?;
    let statistics =
        info.query_type != venus::QueryType::PIPELINE_STATISTICS || info.pipeline_statistics.0 != 0;
    demand(statistics, "a pool of statistics queries without statistics")?;
    let words = match info.query_type {
        venus::QueryType::PIPELINE_STATISTICS => info.pipeline_statistics.known().0.count_ones(),
        venus::QueryType::OCCLUSION | venus::QueryType::TIMESTAMP => 1,
        _ => 2,
    };
    Ok(StateOf::of(QueryFacts::new(info.query_type, info.query_count, words)))
}

/// Demands that queries lie in a pool; returns the facts about it.
#[inline]
pub(crate) fn demand_range<'l>(
    objects: &'l Reading<'_>,
    pool: venus::QueryPool,
    first: u32,
    count: u32,
) -> Result<&'l QueryFacts, Fault> {
    let queries = objects.query_pool(pool)?;
    demand(u64::from(first) + u64::from(count) <= queries.count.into(), OUTSIDE)?;
    Ok(queries)
}

/// Demands that queries whose results the recording changes lie in a pool; returns their kind.
fn touch(
    l: &Lowering<'_>,
    state: &mut RecordingState,
    pool: venus::QueryPool,
    first: u32,
    count: u32,
) -> Result<venus::QueryType, Fault> {
    let queries = demand_range(&l.objects, pool, first, count)?;
    state.touched.add(queries, first, count);
    Ok(queries.ty)
}

/// `vkResetQueryPool`.
pub(crate) fn reset_query_pool(
    l: &Lowering<'_>,
    _: &Arc<Device>,
    c: &venus::ResetQueryPool,
) -> Result<(), Fault> {
    let queries = demand_range(&l.objects, c.query_pool, c.first_query, c.query_count)?;
    queries.forget(c.first_query, c.query_count);
    Ok(())
}

/// `vkCmdResetQueryPool`.
pub(crate) fn cmd_reset_query_pool(
    l: &Lowering<'_>,
    state: &mut RecordingState,
    c: &venus::CmdResetQueryPool,
) -> Result<(), Fault> {
    touch(l, state, c.query_pool, c.first_query, c.query_count).map(drop)
}

fn begin(
    l: &Lowering<'_>,
    state: &mut RecordingState,
    pool: venus::QueryPool,
    query: u32,
    index: u32,
) -> Result<(), Fault> {
    let ty = touch(l, state, pool, query, 1)?;
    demand(ty != venus::QueryType::TIMESTAMP, KIND)?;
    demand(index < 4, "a query of a vertex stream that is not there")?;
    state.queries.begin((pool.0, query, index))
}

/// `vkCmdBeginQuery`.
pub(crate) fn cmd_begin_query(
    l: &Lowering<'_>,
    state: &mut RecordingState,
    c: &venus::CmdBeginQuery,
) -> Result<(), Fault> {
    begin(l, state, c.query_pool, c.query, 0)
}

/// `vkCmdBeginQueryIndexedEXT`.
pub(crate) fn cmd_begin_query_indexed_ext(
    l: &Lowering<'_>,
    state: &mut RecordingState,
    c: &venus::CmdBeginQueryIndexedEXT,
) -> Result<(), Fault> {
    begin(l, state, c.query_pool, c.query, c.index)
}

/// `vkCmdEndQuery`.
pub(crate) fn cmd_end_query(
    l: &Lowering<'_>,
    state: &mut RecordingState,
    c: &venus::CmdEndQuery,
) -> Result<(), Fault> {
    demand_range(&l.objects, c.query_pool, c.query, 1)?;
    state.queries.end((c.query_pool.0, c.query, 0))
}

/// `vkCmdEndQueryIndexedEXT`.
pub(crate) fn cmd_end_query_indexed_ext(
    l: &Lowering<'_>,
    state: &mut RecordingState,
    c: &venus::CmdEndQueryIndexedEXT,
) -> Result<(), Fault> {
    demand_range(&l.objects, c.query_pool, c.query, 1)?;
    state.queries.end((c.query_pool.0, c.query, c.index))
}

/// `vkCmdWriteTimestamp`.
pub(crate) fn cmd_write_timestamp(
    l: &Lowering<'_>,
    state: &mut RecordingState,
    c: &venus::CmdWriteTimestamp,
) -> Result<(), Fault> {
    let ty = touch(l, state, c.query_pool, c.query, 1)?;
    demand(ty == venus::QueryType::TIMESTAMP, KIND)
}

/// `vkCmdWriteTimestamp2`.
pub(crate) fn cmd_write_timestamp2(
    l: &Lowering<'_>,
    state: &mut RecordingState,
    c: &venus::CmdWriteTimestamp2,
) -> Result<(), Fault> {
    let ty = touch(l, state, c.query_pool, c.query, 1)?;
    demand(ty == venus::QueryType::TIMESTAMP, KIND)
}

/// `vkCmdCopyQueryPoolResults`.
pub(crate) fn cmd_copy_query_pool_results(
    l: &Lowering<'_>,
    _: &mut RecordingState,
    c: &venus::CmdCopyQueryPoolResults,
) -> Result<(), Fault> {
    let words = demand_range(&l.objects, c.query_pool, c.first_query, c.query_count)?.words;
    let Some(last) = c.query_count.checked_sub(1) else { return Ok(()) };
    let word = if c.flags.contains(venus::QueryResultFlags::TYPE_64) { 8 } else { 4 };
    let available = u32::from(c.flags.contains(venus::QueryResultFlags::WITH_AVAILABILITY));
    let result = u64::from(words + available) * word;
    let bytes = u64::from(last).checked_mul(c.stride).and_then(|bytes| bytes.checked_add(result));
    let bytes = bytes.ok_or_else(|| Fault::invalid(OUTSIDE))?;
    l.objects.buffer(c.dst_buffer)?.demand(c.dst_offset, bytes, "query results outside of the buffer")
}
