//! Shader modules that were checked.

use crate::objects::object::{Kind, State};
use protocol::spirv;
use protocol::venus::generated as venus;

/// A shader module that passed the check.
#[derive(Debug)]
pub struct Shader {
    /// The module as the check found it.
    pub module: spirv::Module,
    /// The words of the module, if its sizes depend on specialisation.
    pub words: Option<Vec<u32>>,
}

impl State for Shader {}

impl Kind for venus::ShaderModule {
    type State = Shader;
}
