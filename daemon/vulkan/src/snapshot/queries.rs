//! Results of queries that are available. No driver lets a program write results, so a successor keeps them beside its own pool, until the queries
//! are reset or used again.
//!
//! Only the processor is answered out of the kept results: a GPU that copies results (`vkCmdCopyQueryPoolResults`) copies those of its own queries.
//! Programs copy results in the recording that makes them. A program that does not is not moved for as long as such a recording may be submitted
//! ([`Available::are_copied_by`]).

use super::saved::NotMovable;
use super::step::{Step, push_commands};
use super::synthesis::{NO_REPLY, decoded, each_decoded, encoded};
use crate::commands::query::read_results;
use crate::context::cause::InheritedError;
use crate::context::error::{ContextLost, Fault, inconsistent};
use crate::execution::context::Context;
use crate::kinds::query::QueryFacts;
use crate::logical::device::Device;
use protocol::cursor::Arena;
use protocol::venus::generated::{self as venus, ChainStruct, Command, ObjectType};
use rustc_hash::FxHashMap;
use std::ops::Range;
use std::sync::Arc;

/// The most queries that are read at once.
const AT_ONCE: u32 = 1024;

/// Adds the steps that keep results, behind those that make the objects and before those that record. Returns the available queries.
///
/// # Errors
///
/// The driver does not tell the results.
pub(super) fn save(context: &Context, steps: &mut Vec<Step>) -> Result<Available, NotMovable> {
    let mut available = Available::default();
    let may_reset = devices_that_reset(context)?;
    for id in context.objects.ids(ObjectType::QUERY_POOL) {
        let Ok((device, raw, queries)) = found(context, venus::QueryPool(id)) else { continue };
        if let Some(of) = may_reset.get(&Arc::as_ptr(&device)) {
            push_commands(steps, &reset_of(*of, venus::QueryPool(id), queries.count)?);
        }
        let mut first = 0;
        while first < queries.count {
            let count = AT_ONCE.min(queries.count - first);
            let results = read_results(&device, raw, &queries, first, count)
                .map_err(|_| NotMovable::ever("the driver does not tell the results of queries"))?;
            let Some(words) = queries.result_words() else { break };
            push_available(id, first, &results, words as usize, steps, &mut available);
            first += count;
        }
    }
    Ok(available)
}

/// Queries whose results are available, by their pools.
#[derive(Debug, Default)]
pub(super) struct Available(FxHashMap<u64, Ranges>);

impl Available {
    /// Returns whether a recording copies some of these results, beside those of queries that the recording resets or writes before.
    ///
    /// # Errors
    ///
    /// The bytes are no commands.
    pub(super) fn are_copied_by(&self, commands: &[u8], arena: &mut Arena) -> Result<bool, NotMovable> {
        if self.0.is_empty() {
            return Ok(false);
        }
        let (mut made, mut copies) = (FxHashMap::<u64, Ranges>::default(), false);
        each_decoded(commands, arena, |command| {
            let (pool, first, count) = match command {
                Command::CmdCopyQueryPoolResults(c) => {
                    let range = c.first_query..c.first_query.saturating_add(c.query_count);
                    let of_pool = self.0.get(&c.query_pool.0);
                    let own = made.get(&c.query_pool.0);
                    copies |= of_pool.is_some_and(|all| all.within(&range).any(|part| !covers(own, &part)));
                    return;
                }
                Command::CmdResetQueryPool(c) => (c.query_pool, c.first_query, c.query_count),
                Command::CmdBeginQuery(c) => (c.query_pool, c.query, 1),
                Command::CmdBeginQueryIndexedEXT(c) => (c.query_pool, c.query, 1),
                Command::CmdWriteTimestamp(c) => (c.query_pool, c.query, 1),
                Command::CmdWriteTimestamp2(c) => (c.query_pool, c.query, 1),
                _ => return,
            };
            made.entry(pool.0).or_default().add(first..first.saturating_add(count));
        })?;
        Ok(copies)
    }
}

/// Ranges of queries, which neither meet nor touch, in their order.
#[derive(Debug, Default)]
struct Ranges(Vec<Range<u32>>);

/// The most ranges of a pool that are told apart.
const RANGES: usize = 256;

impl Ranges {
    /// Adds a range, unless there are too many already.
    fn add(&mut self, range: Range<u32>) {
        if range.is_empty() {
            return;
        }
        let first = self.0.partition_point(|known| known.end < range.start);
        let end = self.0.partition_point(|known| known.start <= range.end);
        if first == end && self.0.len() >= RANGES {
            return;
        }
        let start = self
            .0
            .get(first)
            .filter(|_| first < end)
            .map_or(range.start, |known| known.start.min(range.start));
        let last = self.0[first..end].last().map_or(range.end, |known| known.end.max(range.end));
        self.0.splice(first..end, std::iter::once(start..last));
    }

    /// Adds a range; if there are too many ranges already, the last is extended over the queries between.
    fn add_all(&mut self, range: Range<u32>) {
        let is_full = self.0.len() >= RANGES;
        match self.0.last_mut().filter(|_| is_full) {
            Some(last) => *last = last.start.min(range.start)..last.end.max(range.end),
            None => self.add(range),
        }
    }

    /// Returns the parts that lie within a range.
    fn within<'r>(&'r self, range: &'r Range<u32>) -> impl Iterator<Item = Range<u32>> + 'r {
        let parts = self.0.iter().map(|known| known.start.max(range.start)..known.end.min(range.end));
        parts.filter(|part| !part.is_empty())
    }
}

/// Returns whether a whole range lies within one of the others.
fn covers(ranges: Option<&Ranges>, range: &Range<u32>) -> bool {
    ranges.is_some_and(|all| all.0.iter().any(|known| known.start <= range.start && range.end <= known.end))
}

/// Returns the devices on which the host may reset queries, with their ids. A program may have reset its queries before the hand-over and use them
/// behind it, so a successor resets all. Drivers without `hostQueryReset` take the queries of a new pool for reset.
fn devices_that_reset(context: &Context) -> Result<FxHashMap<*const Device, venus::Device>, NotMovable> {
    let (table, mut arena) = (context.objects.read(), context.arena(0));
    let mut devices = FxHashMap::default();
    for (id, object, _) in table.objects() {
        let Some(device) = object.get_shared::<venus::Device>() else { continue };
        if decoded(object.created_by.as_deref().unwrap_or(&[]), &mut arena, lets_host_reset)? {
            devices.insert(Arc::as_ptr(&device), venus::Device(id));
        }
    }
    Ok(devices)
}

/// Returns whether a `vkCreateDevice` enables `hostQueryReset`.
fn lets_host_reset(command: &Command<'_>) -> bool {
    let Command::CreateDevice(venus::CreateDevice { p_create_info: Some(info), .. }) = command else {
        return false;
    };
    info.p_next.iter().any(|next| match next {
        ChainStruct::PhysicalDeviceHostQueryResetFeatures(features) => features.host_query_reset != 0,
        ChainStruct::PhysicalDeviceVulkan12Features(features) => features.host_query_reset != 0,
        _ => false,
    })
}

fn reset_of(
    device: venus::Device,
    query_pool: venus::QueryPool,
    query_count: u32,
) -> Result<Vec<u8>, NotMovable> {
    let reset = venus::ResetQueryPool { device, query_pool, first_query: 0, query_count };
    encoded(0, |w| reset.encode(NO_REPLY, w))
}

fn found(context: &Context, pool: venus::QueryPool) -> Result<(Arc<Device>, u64, Arc<QueryFacts>), Fault> {
    let objects = context.objects.read();
    let object = objects.get(pool)?;
    let device = object.device.clone().ok_or_else(inconsistent)?;
    Ok((device, object.raw, object.shared::<venus::QueryPool>()?))
}

/// Adds a step for each run of available queries, and the run to `available`; `results` has one more word for each query, its availability.
fn push_available(
    pool: u64,
    first: u32,
    results: &[u64],
    words: usize,
    steps: &mut Vec<Step>,
    available: &mut Available,
) {
    let mut end = |run: Option<(u32, Vec<u64>)>| {
        let Some((first, results)) = run else { return };
        let count = results.len() / words.max(1);
        available.0.entry(pool).or_default().add_all(first..first.saturating_add(count as u32));
        steps.push(Step::Queries { pool, first, results });
    };
    let mut run: Option<(u32, Vec<u64>)> = None;
    for (query, result) in (first..).zip(results.chunks_exact(words + 1)) {
        match &mut run {
            _ if result[words] == 0 => end(run.take()),
            Some((_, results)) => results.extend(&result[..words]),
            None => run = Some((query, result[..words].to_vec())),
        }
    }
    end(run);
}

/// Keeps the results of [`Step::Queries`], before anything is recorded that names the pool.
///
/// # Errors
///
/// The pool cannot have such results.
pub(super) fn restore(context: &Context, pool: u64, first: u32, results: &[u64]) -> Result<(), ContextLost> {
    let queries = context.objects.shared(venus::QueryPool(pool));
    let queries = queries.map_err(|_| {
        ContextLost::from(InheritedError::Object {
            kind: "query pool",
            id: pool,
            is: "has results, but is not there",
        })
    })?;
    queries.keep(first, results)
}

#[cfg(test)]
#[path = "queries_tests.rs"]
mod tests;
