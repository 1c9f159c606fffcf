//! Objects in the table by their kind.

use super::buffer::BufferFacts;
use super::image::ImageFacts;
use super::layout::PipelineLayout;
use super::pipeline::PipelineFacts;
use super::query::QueryFacts;
use super::semaphore::Signal;
use crate::context::error::Fault;
use crate::objects::object::Kind;
use crate::objects::reading::Reading;
use protocol::venus::generated as venus;

impl Reading<'_> {
    /// The facts about a buffer; the id must not be null.
    #[inline]
    pub(crate) fn buffer(&self, id: venus::Buffer) -> Result<&BufferFacts, Fault> {
        self.named(id, "a buffer is missing")
    }

    /// The facts about an image.
    pub(crate) fn image(&self, id: venus::Image) -> Result<&ImageFacts, Fault> {
        self.named(id, "an image is missing")
    }

    /// The facts about a query pool.
    pub(crate) fn query_pool(&self, id: venus::QueryPool) -> Result<&QueryFacts, Fault> {
        self.named(id, "a query pool is missing")
    }

    /// Returns whether a semaphore is a timeline.
    pub(crate) fn is_timeline(&self, id: venus::Semaphore) -> Result<bool, Fault> {
        let signal = self.named(id, "a semaphore is missing")?;
        Ok(matches!(*signal.lock(), Signal::Timeline { .. }))
    }

    /// The layout that an id names.
    #[inline]
    pub(crate) fn pipeline_layout(&self, id: venus::PipelineLayout) -> Result<&PipelineLayout, Fault> {
        self.named(id, "a pipeline layout is missing")
    }

    /// The facts about a pipeline.
    pub(crate) fn pipeline(&self, id: venus::Pipeline) -> Result<&PipelineFacts, Fault> {
        self.named(id, "a pipeline is missing")
    }

    /// The state of the object that an id names. The id must not be null; no object in the table has a null id.
    #[inline]
    fn named<H: Kind>(&self, id: H, missing: &'static str) -> Result<&H::State, Fault> {
        self.state(id).map_err(|fault| if id.id() == 0 { Fault::invalid(missing) } else { fault })
    }
}
