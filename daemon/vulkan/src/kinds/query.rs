//! Query pools, and the queries that a recording has begun.

use crate::context::error::{Fault, demand};
use crate::objects::object::{Kind, State};
use protocol::venus::generated as venus;

/// Most queries that are active at once in one recording.
const ACTIVE: usize = 256;

/// Queries that a recording has begun and not ended: pool, query, index.
#[derive(Debug, Default)]
pub struct ActiveQueries(Vec<(u64, u32, u32)>);

impl ActiveQueries {
    pub fn begin(&mut self, query: (u64, u32, u32)) -> Result<(), Fault> {
        demand(!self.0.contains(&query) && self.0.len() < ACTIVE, "a query is begun twice")?;
        self.0.push(query);
        Ok(())
    }

    pub fn end(&mut self, query: (u64, u32, u32)) -> Result<(), Fault> {
        let at = self.0.iter().position(|active| *active == query);
        let at = at.ok_or_else(|| Fault::invalid("a query is ended that was not begun"))?;
        self.0.swap_remove(at);
        Ok(())
    }
}

/// The facts about a query pool that the object table keeps.
#[derive(Debug)]
pub struct QueryFacts {
    /// Kind of its queries.
    pub ty: venus::QueryType,
    /// The number of its queries.
    pub count: u32,
    /// Words of one result, without that for its availability.
    pub words: u32,
}

impl State for QueryFacts {}

impl Kind for venus::QueryPool {
    type State = QueryFacts;
}
