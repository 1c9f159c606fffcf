//! The grammar of SPIR-V as tables: what operands follow each instruction and each enumerant, and which capabilities exist.
//!
//! The grammar comes with the crate `rspirv`, which is made from Khronos' own file; the registry says which capabilities a Vulkan device can offer,
//! and what enables them.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use proc_macro2::{Ident, Literal, TokenStream};
use quote::{ToTokens as _, format_ident, quote};
use rspirv::dr::Operand;
use rspirv::grammar::{
    DEBUGINFO_INSTRUCTION_TABLE, ExtInstOp, GLSL_STD_450_INSTRUCTION_TABLE, INSTRUCTION_TABLE,
    InstructionTable, LogicalOperand, OPENCL_DEBUGINFO_100_INSTRUCTION_TABLE, OperandQuantifier,
};
use rspirv::spirv;

use super::capabilities::capabilities;
use super::output::{Output, Rows, file, file_with};
use crate::ir::Protocol;

/// No enumerant has a larger number.
pub(super) const ENUMERANT_MAX: u32 = 1 << 14;

/// Enumerants of one kind with the operands that follow each, and the capabilities of which each needs one.
type Enumerants = BTreeMap<u32, (Vec<LogicalOperand>, Vec<u32>)>;

/// The names of kinds, and the enumerants of each.
macro_rules! kinds {
    ($names:ident, $function:ident: $of:ident($from:ident), $($kind:ident),*) => {
        const $names: &[&str] = &[$(stringify!($kind)),*];

        fn $function() -> Vec<Enumerants> {
            vec![$($of(spirv::$kind::$from, Operand::$kind)),*]
        }
    };
}

fn values_of<T>(from: impl Fn(u32) -> Option<T>, operand: impl Fn(T) -> Operand) -> Enumerants {
    let values = (0..ENUMERANT_MAX).filter_map(|n| Some((n, from(n)?)));
    values.map(|(n, value)| (n, described(&operand(value)))).collect()
}

fn bits_of<T>(from: impl Fn(u32) -> Option<T>, operand: impl Fn(T) -> Operand) -> Enumerants {
    let bits = (0..32).filter_map(|bit| Some((1 << bit, from(1 << bit)?)));
    bits.map(|(n, value)| (n, described(&operand(value)))).collect()
}

fn described(operand: &Operand) -> (Vec<LogicalOperand>, Vec<u32>) {
    (operand.additional_operands(), capabilities_of(operand))
}

/// The capabilities of which an enumerant needs one; for a capability, the capabilities that it implies.
pub(super) fn capabilities_of(operand: &Operand) -> Vec<u32> {
    operand.required_capabilities().into_iter().map(|capability| capability as u32).collect()
}

kinds!(
    MASKS,
    masks: bits_of(from_bits),
    ImageOperands,
    FPFastMathMode,
    SelectionControl,
    LoopControl,
    FunctionControl,
    MemorySemantics,
    MemoryAccess,
    KernelProfilingInfo,
    RayFlags,
    FragmentShadingRate,
    RawAccessChainOperands,
    CooperativeMatrixOperands,
    CooperativeMatrixReduce,
    TensorAddressingOperands,
    TensorOperands,
    MatrixMultiplyAccumulateOperands
);

kinds!(
    VALUES,
    values: values_of(from_u32),
    SourceLanguage,
    ExecutionModel,
    AddressingModel,
    MemoryModel,
    ExecutionMode,
    StorageClass,
    Dim,
    SamplerAddressingMode,
    SamplerFilterMode,
    ImageFormat,
    ImageChannelOrder,
    ImageChannelDataType,
    FPRoundingMode,
    FPDenormMode,
    QuantizationModes,
    FPOperationMode,
    OverflowModes,
    LinkageType,
    AccessQualifier,
    HostAccessQualifier,
    FunctionParameterAttribute,
    Decoration,
    BuiltIn,
    Scope,
    GroupOperation,
    KernelEnqueueFlags,
    Capability,
    RayQueryIntersection,
    RayQueryCommittedIntersectionType,
    RayQueryCandidateIntersectionType,
    PackedVectorFormat,
    CooperativeMatrixLayout,
    CooperativeMatrixUse,
    TensorClampMode,
    InitializationModeQualifier,
    LoadCacheControl,
    StoreCacheControl,
    NamedMaximumNumberOfRegisters,
    FPEncoding,
    CooperativeVectorMatrixLayout,
    ComponentType
);

/// All files of `protocol/src/spirv/generated/`; `registry` is the text of the Vulkan registry.
pub fn spirv(protocol: &Protocol, registry: &str) -> Result<Vec<Output>> {
    let mut rows = Rows::default();
    let kinds = [MASKS, VALUES].concat();
    let of_kinds = kinds.iter().zip([masks(), values()].concat());
    let tables: Vec<_> = of_kinds.map(|(kind, of)| enumerants(kind, &of, &mut rows)).collect();
    let kinds = kinds.into_iter().collect();
    let instructions = instructions(&kinds, &mut rows);
    let glsl_std_450 = glsl_std_450(&mut rows);
    let debug_info = debug_info("debug_info", "DebugInfo", &DEBUGINFO_INSTRUCTION_TABLE, &mut rows);
    let opencl_debug_info = self::debug_info(
        "opencl_debug_info_100",
        "OpenCL.DebugInfo.100",
        &OPENCL_DEBUGINFO_100_INSTRUCTION_TABLE,
        &mut rows,
    );
    let capabilities = capabilities(protocol, registry, &mut rows)?;
    let body = quote! {
        use crate::spirv::grammar::Kind::*;
        use crate::spirv::grammar::Operand::*;
        use crate::spirv::grammar::{Capability, Enable, Enumerant, Instruction, Operand};
        #(#tables)*
        #instructions
        #glsl_std_450
        #debug_info
        #opencl_debug_info
        #capabilities
    };
    let root = quote! { pub(crate) mod tables; };
    Ok(vec![
        file("mod", "The generated part of the SPIR-V parser.", root)?,
        file_with(&rows, "tables", "SPIR-V's grammar.", body)?,
    ])
}

fn glsl_std_450(rows: &mut Rows) -> TokenStream {
    let counts = GLSL_STD_450_INSTRUCTION_TABLE.iter().filter_map(|instruction| {
        let ExtInstOp::GlslStd450(opcode) = instruction.opcode else { return None };
        Some((opcode as u32, instruction.operands.len()))
    });
    let counts: BTreeMap<_, _> = counts.collect();
    let counts = rows.list(counts.iter().map(|(opcode, count)| {
        let (opcode, count) = (number(*opcode), Literal::usize_unsuffixed(*count));
        quote! { (#opcode, #count) }
    }));
    quote! {
        /// How many operands each instruction of `GLSL.std.450` has, ascending.
        pub(crate) static GLSL_STD_450: &[(u32, usize)] = &[#counts];
    }
}

/// The enumerants of a kind, ascending, with what follows each.
fn enumerants(kind: &str, values: &Enumerants, rows: &mut Rows) -> TokenStream {
    let name = table_name(kind);
    let values = rows.list(values.iter().map(|(given, (operands, needed))| {
        let (value, operands) = (number(*given), operand_list(operands));
        let needed =
            needed.iter().filter(|_| needs_capability(kind, *given)).map(|capability| number(*capability));
        quote! { (#value, (#operands, &[#(#needed),*])) }
    }));
    quote! { static #name: &[Enumerant] = &[#values]; }
}

/// Returns whether a module may have an enumerant only if it declares a capability for it. A capability itself declares those that it needs, and all
/// shaders may declare some built-ins (`gl_PerVertex` has them), as long as no shader uses them.
fn needs_capability(kind: &str, value: u32) -> bool {
    const IN_PER_VERTEX: [spirv::BuiltIn; 3] =
        [spirv::BuiltIn::PointSize, spirv::BuiltIn::ClipDistance, spirv::BuiltIn::CullDistance];
    let is_in_per_vertex = IN_PER_VERTEX.iter().any(|built_in| *built_in as u32 == value);
    kind != "Capability" && !(kind == "BuiltIn" && is_in_per_vertex)
}

pub(super) fn number(value: u32) -> Literal {
    Literal::u32_unsuffixed(value)
}

/// `MEMORY_ACCESS` of `MemoryAccess`.
fn table_name(kind: &str) -> Ident {
    let mut name = String::new();
    let mut follows_lower = false;
    for letter in kind.chars() {
        if follows_lower && letter.is_uppercase() {
            name.push('_');
        }
        follows_lower = letter.is_lowercase();
        name.push(letter.to_ascii_uppercase());
    }
    format_ident!("{name}")
}

/// All instructions whose operands are of known kinds, ascending.
fn instructions(kinds: &BTreeSet<&str>, rows: &mut Rows) -> TokenStream {
    let mut instructions = BTreeMap::new();
    for instruction in INSTRUCTION_TABLE.iter() {
        let known = |operand: &LogicalOperand| is_plain(operand) || kinds.contains(name_of(operand).as_str());
        if !instruction.operands.iter().all(known) {
            continue;
        }
        let operands = operand_list(instruction.operands);
        let capabilities = instruction.capabilities.iter().map(|capability| number(*capability as u32));
        let opcode = instruction.opcode as u32;
        let name = format!("Op{}", instruction.opname);
        let key = number(opcode);
        let row = quote! { (#key, Instruction::new(#name, #operands, &[#(#capabilities),*])) };
        instructions.entry(opcode).or_insert(row);
    }
    let instructions = rows.list(instructions.into_values());
    quote! {
        /// The instructions by opcode, ascending.
        pub(crate) static INSTRUCTIONS: &[(u32, Instruction)] = &[#instructions];
    }
}

/// The operands of each instruction of a set whose operands are not all ids.
fn debug_info(
    table: &str,
    set: &str,
    instructions: &InstructionTable<ExtInstOp>,
    rows: &mut Rows,
) -> TokenStream {
    let name = table_name(table);
    let comment = format!("The operands of each instruction of `{set}`, ascending.");
    let of_each = instructions.iter().filter_map(|instruction| {
        let number = match instruction.opcode {
            ExtInstOp::Debuginfo(opcode) => opcode as u32,
            ExtInstOp::OpenclDebuginfo100(opcode) => opcode as u32,
            _ => return None,
        };
        let operands = instruction.operands.iter().map(|operand| {
            let kind = match name_of(operand).as_str() {
                "IdRef" => quote! { Id },
                "PairIdRefIdRef" => quote! { IdAndId },
                _ => quote! { Literal },
            };
            quantified(operand.quantifier, &kind)
        });
        Some((number, quote! { &[#(#operands),*] }))
    });
    let of_each: BTreeMap<_, _> = of_each.collect();
    let of_each = rows.list(of_each.iter().map(|(opcode, operands)| {
        let opcode = number(*opcode);
        quote! { (#opcode, #operands) }
    }));
    quote! {
        #[doc = #comment]
        pub(crate) static #name: &[(u32, &[Operand])] = &[#of_each];
    }
}

fn quantified(quantifier: OperandQuantifier, kind: &TokenStream) -> TokenStream {
    match quantifier {
        OperandQuantifier::One => quote! { One(#kind) },
        OperandQuantifier::ZeroOrOne => quote! { Optional(#kind) },
        OperandQuantifier::ZeroOrMore => quote! { Any(#kind) },
    }
}

fn name_of(operand: &LogicalOperand) -> String {
    format!("{:?}", operand.kind)
}

/// The kinds that are not enumerations, by the grammar's names.
const PLAIN: &[(&str, &str)] = &[
    ("IdResultType", "ResultType"),
    ("IdResult", "Result"),
    ("IdRef", "Id"),
    ("IdScope", "Id"),
    ("IdMemorySemantics", "Id"),
    ("LiteralInteger", "Literal"),
    ("LiteralFloat", "Literal"),
    ("LiteralExtInstInteger", "Literal"),
    ("LiteralString", "Text"),
    ("LiteralContextDependentNumber", "Number"),
    ("LiteralSpecConstantOpInteger", "Opcode"),
    ("PairLiteralIntegerIdRef", "NumberAndId"),
    ("PairIdRefLiteralInteger", "IdAndLiteral"),
    ("PairIdRefIdRef", "IdAndId"),
];

fn is_plain(operand: &LogicalOperand) -> bool {
    PLAIN.iter().any(|(name, _)| *name == name_of(operand))
}

fn operand_list(operands: &[LogicalOperand]) -> TokenStream {
    let operands = operands.iter().map(|operand| {
        let name = name_of(operand);
        let kind = match PLAIN.iter().find(|(grammar, _)| *grammar == name) {
            Some((_, ours)) => format_ident!("{ours}").into_token_stream(),
            None => {
                let table = table_name(&name);
                let shape = if MASKS.contains(&name.as_str()) {
                    quote! { Mask }
                } else {
                    quote! { Value }
                };
                quote! { #shape(#table) }
            }
        };
        quantified(operand.quantifier, &kind)
    });
    quote! { &[#(#operands),*] }
}
