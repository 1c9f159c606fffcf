//! A shader that shows the contents of workgroup memory, after writing it or as it was found.

use anyhow::Result;
use rspirv::binary::Assemble;
use rspirv::dr::{Builder, Operand};
use rspirv::spirv::{
    AddressingModel, BuiltIn, Capability, Decoration, ExecutionMode, ExecutionModel, FunctionControl,
    MemoryModel, StorageClass,
};

/// Words of workgroup memory: 16 KiB, which every device has.
pub(crate) const WORDS: u32 = 4096;
/// Invocations of the one workgroup.
pub(crate) const GROUP: u32 = 64;
/// Words of the binding that [`assemble_outside`] reads behind.
pub(crate) const BOUND: u32 = 16;

/// Makes a shader: every invocation reads binding 1 of set 0 after its end and writes the word to binding 0.
pub(crate) fn assemble_outside() -> Result<Vec<u32>> {
    let mut b = Builder::new();
    b.set_version(1, 3);
    b.capability(Capability::Shader);
    b.memory_model(AddressingModel::Logical, MemoryModel::GLSL450);
    let (void, uint) = (b.type_void(), b.type_int(32, 0));
    let (zero, bound) = (b.constant_bit32(uint, 0), b.constant_bit32(uint, BOUND));
    let words = b.type_runtime_array(uint);
    b.decorate(words, Decoration::ArrayStride, [Operand::LiteralBit32(4)]);
    let block = b.type_struct([words]);
    b.decorate(block, Decoration::Block, []);
    b.member_decorate(block, 0, Decoration::Offset, [Operand::LiteralBit32(0)]);
    let block_pointer = b.type_pointer(None, StorageClass::StorageBuffer, block);
    let buffers = [0, 1].map(|binding| {
        let buffer = b.variable(block_pointer, None, StorageClass::StorageBuffer, None);
        b.decorate(buffer, Decoration::DescriptorSet, [Operand::LiteralBit32(0)]);
        b.decorate(buffer, Decoration::Binding, [Operand::LiteralBit32(binding)]);
        buffer
    });
    let word_pointer = b.type_pointer(None, StorageClass::StorageBuffer, uint);
    let input = b.type_pointer(None, StorageClass::Input, uint);
    let invocation = b.variable(input, None, StorageClass::Input, None);
    b.decorate(invocation, Decoration::BuiltIn, [Operand::BuiltIn(BuiltIn::LocalInvocationIndex)]);
    let function_type = b.type_function(void, []);
    let main = b.begin_function(void, None, FunctionControl::NONE, function_type)?;
    b.begin_block(None)?;
    let own = b.load(uint, None, invocation, None, [])?;
    let index = b.i_add(uint, None, own, bound)?;
    let from = b.access_chain(word_pointer, None, buffers[1], [zero, index])?;
    let word = b.load(uint, None, from, None, [])?;
    let to = b.access_chain(word_pointer, None, buffers[0], [zero, own])?;
    b.store(to, word, None, [])?;
    b.ret()?;
    b.end_function()?;
    b.entry_point(ExecutionModel::GLCompute, main, "main", [invocation]);
    b.execution_mode(main, ExecutionMode::LocalSize, [GROUP, 1, 1]);
    Ok(b.module().assemble())
}

/// Copies workgroup memory to the storage buffer at binding 0 of set 0, after filling it with `pattern` if there is one.
pub(crate) fn assemble(pattern: Option<u32>) -> Result<Vec<u32>> {
    let mut b = Builder::new();
    b.set_version(1, 3);
    b.capability(Capability::Shader);
    b.memory_model(AddressingModel::Logical, MemoryModel::GLSL450);
    let (void, uint) = (b.type_void(), b.type_int(32, 0));
    let zero = b.constant_bit32(uint, 0);
    let length = b.constant_bit32(uint, WORDS);
    let array = b.type_array(uint, length);
    let shared_pointer = b.type_pointer(None, StorageClass::Workgroup, array);
    let shared = b.variable(shared_pointer, None, StorageClass::Workgroup, None);
    let shared_word = b.type_pointer(None, StorageClass::Workgroup, uint);

    let words = b.type_runtime_array(uint);
    b.decorate(words, Decoration::ArrayStride, [Operand::LiteralBit32(4)]);
    let block = b.type_struct([words]);
    b.decorate(block, Decoration::Block, []);
    b.member_decorate(block, 0, Decoration::Offset, [Operand::LiteralBit32(0)]);
    let block_pointer = b.type_pointer(None, StorageClass::StorageBuffer, block);
    let buffer = b.variable(block_pointer, None, StorageClass::StorageBuffer, None);
    b.decorate(buffer, Decoration::DescriptorSet, [Operand::LiteralBit32(0)]);
    b.decorate(buffer, Decoration::Binding, [Operand::LiteralBit32(0)]);
    let word_pointer = b.type_pointer(None, StorageClass::StorageBuffer, uint);

    let input = b.type_pointer(None, StorageClass::Input, uint);
    let invocation = b.variable(input, None, StorageClass::Input, None);
    b.decorate(invocation, Decoration::BuiltIn, [Operand::BuiltIn(BuiltIn::LocalInvocationIndex)]);
    let steps: Vec<u32> = (0..WORDS / GROUP).map(|step| b.constant_bit32(uint, step * GROUP)).collect();
    let pattern = pattern.map(|pattern| b.constant_bit32(uint, pattern));
    let (workgroup, semantics) = (b.constant_bit32(uint, 2), b.constant_bit32(uint, 0x108));

    let function_type = b.type_function(void, []);
    let main = b.begin_function(void, None, FunctionControl::NONE, function_type)?;
    b.begin_block(None)?;
    let own = b.load(uint, None, invocation, None, [])?;
    if let Some(pattern) = pattern {
        for step in &steps {
            let index = b.i_add(uint, None, own, *step)?;
            let place = b.access_chain(shared_word, None, shared, [index])?;
            b.store(place, pattern, None, [])?;
        }
        b.control_barrier(workgroup, workgroup, semantics)?;
    }
    for step in &steps {
        let index = b.i_add(uint, None, own, *step)?;
        let place = b.access_chain(shared_word, None, shared, [index])?;
        let word = b.load(uint, None, place, None, [])?;
        let to = b.access_chain(word_pointer, None, buffer, [zero, index])?;
        b.store(to, word, None, [])?;
    }
    b.ret()?;
    b.end_function()?;
    b.entry_point(ExecutionModel::GLCompute, main, "main", [invocation]);
    b.execution_mode(main, ExecutionMode::LocalSize, [GROUP, 1, 1]);
    Ok(b.module().assemble())
}
