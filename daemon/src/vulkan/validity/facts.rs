//! What later checks have to know of an object's creation.

use super::images::ImageFacts;
use super::layouts::PipelineLayout;
use crate::config::MemoryId;
use crate::vulkan::call::inconsistent;
use crate::vulkan::error::Fault;
use crate::vulkan::objects::{Handle, Object, State};
use crate::vulkan::reading::Reading;
use crate::vulkan::submission::Signal;
use parking_lot::Mutex;
use protocol::venus::generated as venus;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Facts by kind of object.
#[derive(Debug)]
pub enum Facts {
    /// A buffer.
    Buffer(BufferFacts),
    /// An image.
    Image(Box<ImageFacts>),
    /// A query pool.
    QueryPool {
        /// Kind of its queries.
        ty: venus::QueryType,
        /// How many there are.
        count: u32,
        /// Words of one result, without that for its availability.
        words: u32,
    },
    /// A pipeline.
    Pipeline {
        /// Where it is bound.
        bind_point: venus::PipelineBindPoint,
        /// What it was made with.
        layout: Option<Arc<PipelineLayout>>,
    },
}

/// What is known of a buffer.
#[derive(Debug)]
pub struct BufferFacts {
    /// Bytes.
    pub size: u64,
    /// It is for more than copies.
    pub is_computed_on: bool,
    memory: AtomicBool,
    /// Where it begins in memory that the device process knows.
    place: Mutex<Option<(MemoryId, u64)>>,
}

impl BufferFacts {
    /// A buffer without memory.
    pub fn new(size: u64, is_computed_on: bool) -> Self {
        Self { size, is_computed_on, memory: AtomicBool::new(false), place: Mutex::new(None) }
    }

    /// It is about to be bound. Answers whether it was not yet.
    pub fn bind(&self) -> bool {
        !self.memory.swap(true, Ordering::AcqRel)
    }

    /// Notes where it is bound: at an offset in a piece of memory.
    pub fn set_place(&self, memory: MemoryId, offset: u64) {
        *self.place.lock() = Some((memory, offset));
    }

    /// Where a byte of it is, in memory that the device process knows.
    pub fn place(&self, offset: u64) -> Option<(MemoryId, u64)> {
        let (memory, start) = (*self.place.lock())?;
        Some((memory, start.checked_add(offset)?))
    }

    /// It was not bound after all.
    pub fn unbind(&self) {
        self.memory.store(false, Ordering::Release);
    }

    /// Whether it has memory.
    pub fn has_memory(&self) -> bool {
        self.memory.load(Ordering::Acquire)
    }

    /// Demands that a range lies in a buffer that has memory.
    #[inline]
    pub fn demand(&self, offset: u64, size: u64, rule: &'static str) -> Result<(), Fault> {
        let inside = offset.checked_add(size).is_some_and(|end| end <= self.size);
        demand(inside && self.has_memory(), rule)
    }
}

/// Demands that a rule of valid usage is kept.
#[inline]
pub fn demand(kept: bool, rule: &'static str) -> Result<(), Fault> {
    if kept { Ok(()) } else { Err(Fault::invalid(rule)) }
}

impl Reading<'_> {
    /// What is known of a buffer; none may not be named.
    #[inline]
    pub fn buffer(&self, id: venus::Buffer) -> Result<&BufferFacts, Fault> {
        match &self.named(id, "a buffer is missing")?.state {
            State::Facts(Facts::Buffer(facts)) => Ok(facts),
            _ => Err(inconsistent()),
        }
    }

    /// What is known of an image.
    pub fn image(&self, id: venus::Image) -> Result<&ImageFacts, Fault> {
        match &self.named(id, "an image is missing")?.state {
            State::Facts(Facts::Image(facts)) => Ok(facts),
            _ => Err(inconsistent()),
        }
    }

    /// Kind and number of the queries of a pool, and the words of a result.
    pub fn query_pool(&self, id: venus::QueryPool) -> Result<(venus::QueryType, u32, u32), Fault> {
        match &self.named(id, "a query pool is missing")?.state {
            State::Facts(Facts::QueryPool { ty, count, words }) => Ok((*ty, *count, *words)),
            _ => Err(inconsistent()),
        }
    }

    /// Whether a semaphore is a timeline.
    pub fn is_timeline(&self, id: venus::Semaphore) -> Result<bool, Fault> {
        match &self.named(id, "a semaphore is missing")?.state {
            State::Semaphore(signal) => Ok(matches!(*signal.lock(), Signal::Timeline { .. })),
            _ => Err(inconsistent()),
        }
    }

    /// The layout that an id names.
    #[inline]
    pub fn pipeline_layout(&self, id: venus::PipelineLayout) -> Result<&Arc<PipelineLayout>, Fault> {
        match &self.named(id, "a pipeline layout is missing")?.state {
            State::PipelineLayout(layout) => Ok(layout),
            _ => Err(inconsistent()),
        }
    }

    /// Where a pipeline is bound, and what it was made with.
    pub fn pipeline(
        &self,
        id: venus::Pipeline,
    ) -> Result<(venus::PipelineBindPoint, Option<&Arc<PipelineLayout>>), Fault> {
        match &self.named(id, "a pipeline is missing")?.state {
            State::Facts(Facts::Pipeline { bind_point, layout }) => Ok((*bind_point, layout.as_ref())),
            _ => Err(inconsistent()),
        }
    }

    /// The object of an id that may not be null, which nothing in the table is.
    #[inline]
    fn named<H: Handle>(&self, id: H, missing: &'static str) -> Result<&Object, Fault> {
        self.get(id).map_err(|fault| if id.id() == 0 { Fault::invalid(missing) } else { fault })
    }
}
