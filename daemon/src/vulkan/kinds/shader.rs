//! Shader modules that were checked.

use crate::vulkan::objects::object::{Kind, State};
use protocol::spirv;
use protocol::venus::generated as venus;

/// A module that passed.
#[derive(Debug)]
pub struct Shader {
    /// What the check found.
    pub module: spirv::Module,
    /// Its words, if its sizes depend on specialisation.
    pub words: Option<Vec<u32>>,
}

impl State for Shader {}

impl Kind for venus::ShaderModule {
    type State = Shader;
}
