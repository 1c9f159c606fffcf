//! The program that every lane runs, as SPIR-V and on the processor.

use anyhow::Result;
use rspirv::binary::Assemble;
use rspirv::dr::{Builder, Operand};
use rspirv::spirv::{
    AddressingModel, BuiltIn, Capability, Decoration, ExecutionMode, ExecutionModel, FunctionControl,
    LoopControl, MemoryModel, StorageClass,
};

/// Invocations of a workgroup.
pub const GROUP: u32 = 64;
/// The id of the specialization constant that is the factor.
pub const MULTIPLIER: u32 = 0;
/// The id of the specialization constant that is the number of multiplications.
pub const STEPS: u32 = 1;

/// Returns the words of the program's buffer after its run.
pub fn on_the_processor(words: &[u32], multiplier: u32, steps: u32) -> Vec<u32> {
    // A step makes `multiplier * word + index` of a word, so all of them make `factor * word + sum * index` of it.
    let (mut factor, mut sum) = (1_u32, 0_u32);
    for _ in 0..steps {
        (factor, sum) = (factor.wrapping_mul(multiplier), sum.wrapping_mul(multiplier).wrapping_add(1));
    }
    let word = |(index, &word): (usize, &u32)| {
        factor.wrapping_mul(word).wrapping_add(sum.wrapping_mul(index as u32))
    };
    words.iter().enumerate().map(word).collect()
}

/// The program: binding 0 of set 0 is a storage buffer of 32-bit words, one invocation for each.
pub fn assemble() -> Result<Vec<u32>> {
    let mut b = Builder::new();
    b.set_version(1, 3);
    b.capability(Capability::Shader);
    b.memory_model(AddressingModel::Logical, MemoryModel::GLSL450);
    let (void, uint, boolean) = (b.type_void(), b.type_int(32, 0), b.type_bool());
    let vector = b.type_vector(uint, 3);
    let (multiplier, steps) = (b.spec_constant_bit32(uint, 1), b.spec_constant_bit32(uint, 1));
    for (constant, id) in [(multiplier, MULTIPLIER), (steps, STEPS)] {
        b.decorate(constant, Decoration::SpecId, [Operand::LiteralBit32(id)]);
    }
    let (zero, one) = (b.constant_bit32(uint, 0), b.constant_bit32(uint, 1));

    let array = b.type_runtime_array(uint);
    b.decorate(array, Decoration::ArrayStride, [Operand::LiteralBit32(4)]);
    let block = b.type_struct([array]);
    b.decorate(block, Decoration::Block, []);
    b.member_decorate(block, 0, Decoration::Offset, [Operand::LiteralBit32(0)]);
    let block_pointer = b.type_pointer(None, StorageClass::StorageBuffer, block);
    let buffer = b.variable(block_pointer, None, StorageClass::StorageBuffer, None);
    b.decorate(buffer, Decoration::DescriptorSet, [Operand::LiteralBit32(0)]);
    b.decorate(buffer, Decoration::Binding, [Operand::LiteralBit32(0)]);
    let vector_pointer = b.type_pointer(None, StorageClass::Input, vector);
    let invocation = b.variable(vector_pointer, None, StorageClass::Input, None);
    b.decorate(invocation, Decoration::BuiltIn, [Operand::BuiltIn(BuiltIn::GlobalInvocationId)]);
    let word_pointer = b.type_pointer(None, StorageClass::StorageBuffer, uint);

    let function_type = b.type_function(void, []);
    let main = b.begin_function(void, None, FunctionControl::NONE, function_type)?;
    let (header, body, next, end) = (b.id(), b.id(), b.id(), b.id());
    let entry = b.begin_block(None)?;
    let position = b.load(vector, None, invocation, None, [])?;
    let index = b.composite_extract(uint, None, position, [0])?;
    let place = b.access_chain(word_pointer, None, buffer, [zero, index])?;
    let before = b.load(uint, None, place, None, [])?;
    b.branch(header)?;
    b.begin_block(Some(header))?;
    let (word_after, step_after) = (b.id(), b.id());
    let word = b.phi(uint, None, [(before, entry), (word_after, next)])?;
    let step = b.phi(uint, None, [(zero, entry), (step_after, next)])?;
    let more = b.u_less_than(boolean, None, step, steps)?;
    b.loop_merge(end, next, LoopControl::NONE, [])?;
    b.branch_conditional(more, body, end, [])?;
    b.begin_block(Some(body))?;
    let product = b.i_mul(uint, None, word, multiplier)?;
    b.i_add(uint, Some(word_after), product, index)?;
    b.branch(next)?;
    b.begin_block(Some(next))?;
    b.i_add(uint, Some(step_after), step, one)?;
    b.branch(header)?;
    b.begin_block(Some(end))?;
    b.store(place, word, None, [])?;
    b.ret()?;
    b.end_function()?;
    b.entry_point(ExecutionModel::GLCompute, main, "main", [invocation]);
    b.execution_mode(main, ExecutionMode::LocalSize, [GROUP, 1, 1]);
    Ok(b.module().assemble())
}
