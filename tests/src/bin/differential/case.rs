//! The parts of a case: a name, shaders, and a program that runs them and returns their results.

use anyhow::Result;

use crate::gpu::Gpu;

/// One feature in one small program.
pub(crate) struct Case {
    /// Words with dots between them: the group first.
    pub name: String,
    /// The shaders in the order in which the program counts them.
    pub shaders: Vec<Shader>,
    run: Run,
}

type Run = Box<dyn Fn(&Gpu) -> Result<Vec<u8>>>;

/// The source of a shader.
pub(crate) enum Shader {
    /// GLSL without its first lines; see [`Shader::file`].
    Glsl(String),
    /// SPIR-V assembly, for instructions that GLSL cannot express.
    Assembly(String),
}

/// The lines in front of every GLSL shader: types of all widths.
const PREAMBLE: &str = "#version 460
#extension GL_EXT_shader_explicit_arithmetic_types : enable
#extension GL_EXT_shader_8bit_storage : enable
#extension GL_EXT_shader_16bit_storage : enable
#extension GL_EXT_scalar_block_layout : enable
#extension GL_EXT_control_flow_attributes : enable
";

impl Case {
    /// A case without shaders.
    pub(crate) fn new(name: impl Into<String>, run: impl Fn(&Gpu) -> Result<Vec<u8>> + 'static) -> Self {
        Self { name: name.into(), shaders: Vec::new(), run: Box::new(run) }
    }

    /// Adds a shader in GLSL.
    pub(crate) fn glsl(mut self, body: impl Into<String>) -> Self {
        self.shaders.push(Shader::Glsl(body.into()));
        self
    }

    /// Adds a shader in SPIR-V assembly.
    pub(crate) fn assembly(mut self, text: impl Into<String>) -> Self {
        self.shaders.push(Shader::Assembly(text.into()));
        self
    }

    /// Runs it. The result must be the same each time.
    pub(crate) fn run(&self, gpu: &Gpu) -> Result<Vec<u8>> {
        (self.run)(gpu)
    }
}

impl Shader {
    /// The file's name and text, for the shader of this number of a case.
    pub(crate) fn file(&self, case: &str, number: usize) -> (String, String) {
        match self {
            Self::Glsl(body) => (format!("{case}.{number}.comp"), format!("{PREAMBLE}{body}")),
            Self::Assembly(text) => (format!("{case}.{number}.spvasm"), text.clone()),
        }
    }
}
