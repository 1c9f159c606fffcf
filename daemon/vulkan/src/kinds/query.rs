//! Query pools, the queries that a recording has begun, and results that a successor keeps from its predecessor's driver.

use crate::context::cause::InheritedError;
use crate::context::error::{ContextLost, Fault, demand};
use crate::objects::object::{Kind, State};
use parking_lot::Mutex;
use protocol::venus::generated as venus;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// Most queries that are active at once in one recording.
const ACTIVE: usize = 256;

/// The most ranges of queries of a recording that are kept separately.
const TOUCHED: usize = 256;

/// Most words of a pipeline statistics query: those that are known, mesh shaders' included.
pub(crate) const STATISTICS: u32 = 13;

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
    /// Words of one result, without the word for its availability.
    pub words: u32,
    /// Results that a predecessor has read; none if the driver has all results.
    kept: OnceLock<Arc<KeptResults>>,
}

impl QueryFacts {
    /// A pool whose queries were never reset.
    pub fn new(ty: venus::QueryType, count: u32, words: u32) -> Self {
        Self { ty, count, words, kept: OnceLock::new() }
    }

    /// Words of the result that a driver writes for one query, without the word for its availability; none for kinds for which this is unknown.
    pub fn result_words(&self) -> Option<u32> {
        match self.ty {
            venus::QueryType::PRIMITIVES_GENERATED_EXT | venus::QueryType::MESH_PRIMITIVES_GENERATED_EXT => {
                Some(1)
            }
            venus::QueryType::OCCLUSION
            | venus::QueryType::TIMESTAMP
            | venus::QueryType::TRANSFORM_FEEDBACK_STREAM_EXT
            | venus::QueryType::PIPELINE_STATISTICS => Some(self.words).filter(|words| *words <= STATISTICS),
            _ => None,
        }
    }

    /// Returns the place for kept results of a pool, if any were ever kept.
    #[inline]
    pub fn kept(&self) -> Option<&Arc<KeptResults>> {
        self.kept.get()
    }

    /// Keeps results of queries from `first` on.
    ///
    /// # Errors
    ///
    /// The results are not those of queries of such a pool.
    pub fn keep(&self, first: u32, results: &[u64]) -> Result<(), ContextLost> {
        let wrong = || ContextLost::from(InheritedError::Broken("results do not fit their query pool"));
        let words = self.result_words().filter(|words| *words > 0).ok_or_else(wrong)? as usize;
        let count = results.len() / words;
        let end = (first as usize).checked_add(count).filter(|end| *end <= self.count as usize);
        let end = end.filter(|_| results.len().is_multiple_of(words)).ok_or_else(wrong)?;
        let kept = self.kept.get_or_init(|| Arc::new(KeptResults { words, all: Mutex::default() }));
        let mut all = kept.all.lock();
        if all.is_known.len() < end {
            all.is_known.resize(end, false);
            all.words.resize(end * words, 0);
        }
        all.is_known[first as usize..end].fill(true);
        all.words[first as usize * words..end * words].copy_from_slice(results);
        Ok(())
    }

    /// Forgets results that were kept: the queries are reset.
    pub fn forget(&self, first: u32, count: u32) {
        if let Some(kept) = self.kept() {
            kept.forget(first, count);
        }
    }
}

/// Results of queries that were available when a predecessor wrote its context down. No driver lets results be written, so they are kept here
/// until the queries are reset or used again.
#[derive(Debug)]
pub struct KeptResults {
    words: usize,
    all: Mutex<All>,
}

/// Results, up to the last that is known.
#[derive(Debug, Default)]
struct All {
    words: Vec<u64>,
    is_known: Vec<bool>,
}

impl KeptResults {
    /// Words of one result.
    pub fn words(&self) -> usize {
        self.words
    }

    /// Copies the result of a query. Returns whether a result is kept.
    pub fn get(&self, query: u32, into: &mut [u64]) -> bool {
        let (all, query) = (self.all.lock(), query as usize);
        let is_known = all.is_known.get(query).is_some_and(|is_known| *is_known);
        if is_known {
            let words = all.words[query * self.words..].iter().take(self.words);
            into.iter_mut().zip(words).for_each(|(word, kept)| *word = *kept);
        }
        is_known
    }

    fn forget(&self, first: u32, count: u32) {
        let mut all = self.all.lock();
        let end = all.is_known.len().min(first.saturating_add(count) as usize);
        if let Some(forgotten) = all.is_known.get_mut(first as usize..end) {
            forgotten.fill(false);
        }
        if !all.is_known.contains(&true) {
            *all = All::default();
        }
    }
}

/// Queries that a recording resets, begins or writes, in pools with kept results: these results are forgotten when the recording is
/// submitted.
#[derive(Debug, Default)]
pub struct Touched(Vec<(Arc<KeptResults>, Range<u32>)>);

impl Touched {
    /// Adds queries.
    #[inline]
    pub fn add(&mut self, queries: &QueryFacts, first: u32, count: u32) {
        if let Some(kept) = queries.kept() {
            self.add_kept(kept, first..first.saturating_add(count));
        }
    }

    #[cold]
    fn add_kept(&mut self, kept: &Arc<KeptResults>, range: Range<u32>) {
        let of_pool = |known: &&mut (Arc<KeptResults>, Range<u32>)| Arc::ptr_eq(&known.0, kept);
        // Beyond this number of ranges, the last range of the pool is widened, and takes in the queries between.
        let known = if self.0.len() < TOUCHED { None } else { self.0.iter_mut().rfind(of_pool) };
        match known {
            Some((_, known)) => *known = known.start.min(range.start)..known.end.max(range.end),
            None => self.0.push((Arc::clone(kept), range)),
        }
    }

    /// Adds the queries of another recording.
    pub fn add_all(&mut self, other: &Self) {
        other.0.iter().for_each(|(kept, range)| self.add_kept(kept, range.clone()));
    }

    /// Returns whether a query is among these.
    pub fn has(&self, kept: &Arc<KeptResults>, query: u32) -> bool {
        self.0.iter().any(|(of, range)| Arc::ptr_eq(of, kept) && range.contains(&query))
    }

    /// Forgets the kept results of these queries.
    #[inline]
    pub fn forget_results(&self) {
        self.0.iter().for_each(|(kept, range)| kept.forget(range.start, range.end - range.start));
    }
}

impl State for QueryFacts {}

impl Kind for venus::QueryPool {
    type State = QueryFacts;
}
