//! Pipelines: their bind points and the layouts that they were made with.

use super::layout::PipelineLayout;
use crate::objects::object::{Kind, State};
use protocol::venus::generated as venus;
use std::sync::Arc;

/// The facts about a pipeline that the object table keeps.
#[derive(Debug)]
pub struct PipelineFacts {
    /// The bind point of the pipeline.
    pub bind_point: venus::PipelineBindPoint,
    /// The layout that it was made with.
    pub layout: Option<Arc<PipelineLayout>>,
}

impl State for PipelineFacts {}

impl Kind for venus::Pipeline {
    type State = PipelineFacts;
}
