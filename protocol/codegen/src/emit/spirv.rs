//! The grammar of SPIR-V as tables: what operands follow each instruction and each enumerant, and which capabilities exist.
//!
//! The grammar comes with the crate `rspirv`, which is made from Khronos' own file; which capabilities a Vulkan device can offer, and
//! by what, comes from the registry.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use rspirv::dr::Operand;
use rspirv::grammar::{
    DEBUGINFO_INSTRUCTION_TABLE, ExtInstOp, GLSL_STD_450_INSTRUCTION_TABLE, INSTRUCTION_TABLE,
    InstructionTable, LogicalOperand, OPENCL_DEBUGINFO_100_INSTRUCTION_TABLE, OperandQuantifier,
};
use rspirv::spirv;

use super::{Output, file};
use crate::ir::Protocol;

/// No enumerant has a larger number.
const ENUMERANT_MAX: u32 = 1 << 14;

/// Enumerants of one kind with the operands that follow each.
type Enumerants = BTreeMap<u32, Vec<LogicalOperand>>;

macro_rules! values {
    ($($kind:ident),*) => { [$((stringify!($kind), values_of(spirv::$kind::from_u32, Operand::$kind))),*] };
}

macro_rules! masks {
    ($($kind:ident),*) => { [$((stringify!($kind), bits_of(spirv::$kind::from_bits, Operand::$kind))),*] };
}

fn values_of<T>(from: impl Fn(u32) -> Option<T>, operand: impl Fn(T) -> Operand) -> Enumerants {
    let values = (0..ENUMERANT_MAX).filter_map(|n| Some((n, from(n)?)));
    values.map(|(n, value)| (n, operand(value).additional_operands())).collect()
}

fn bits_of<T>(from: impl Fn(u32) -> Option<T>, operand: impl Fn(T) -> Operand) -> Enumerants {
    let bits = (0..32).filter_map(|bit| Some((1 << bit, from(1 << bit)?)));
    bits.map(|(n, value)| (n, operand(value).additional_operands())).collect()
}

/// All files of `protocol/src/spirv/generated/`; `registry` is the text of the Vulkan registry.
pub fn spirv(protocol: &Protocol, registry: &str) -> Result<Vec<Output>> {
    let masks = masks!(
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
    let values = values!(
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
    let mut kinds = BTreeSet::new();
    let tables = masks.iter().map(|(kind, bits)| {
        kinds.insert(*kind);
        mask_table(kind, bits)
    });
    let tables: Vec<_> = tables.collect();
    let functions = values.iter().map(|(kind, values)| {
        kinds.insert(*kind);
        value_table(kind, values)
    });
    let functions: Vec<_> = functions.collect();
    let instructions = instructions(&kinds);
    let glsl_std_450 = glsl_std_450();
    let debug_info = debug_info("debug_info", "DebugInfo", &DEBUGINFO_INSTRUCTION_TABLE);
    let opencl_debug_info = self::debug_info(
        "opencl_debug_info_100",
        "OpenCL.DebugInfo.100",
        &OPENCL_DEBUGINFO_100_INSTRUCTION_TABLE,
    );
    let capabilities = capabilities(protocol, registry)?;
    let body = quote! {
        use crate::spirv::grammar::{Instruction, Kind, Offer, Operand};
        #(#tables)*
        #(#functions)*
        #instructions
        #glsl_std_450
        #debug_info
        #opencl_debug_info
        #capabilities
    };
    let root = quote! { pub mod tables; };
    Ok(vec![
        file("mod", "The generated part of the SPIR-V parser.", root)?,
        file("tables", "SPIR-V's grammar.", body)?,
    ])
}

fn glsl_std_450() -> TokenStream {
    let rows = GLSL_STD_450_INSTRUCTION_TABLE.iter().filter_map(|instruction| {
        let ExtInstOp::GlslStd450(opcode) = instruction.opcode else { return None };
        let (number, count) = (opcode as u32, instruction.operands.len());
        Some(quote! { #number => Some(#count), })
    });
    quote! {
        /// How many operands an instruction of `GLSL.std.450` has.
        pub fn glsl_std_450(number: u32) -> Option<usize> {
            match number { #(#rows)* _ => None }
        }
    }
}

fn mask_table(kind: &str, bits: &Enumerants) -> TokenStream {
    let name = format_ident!("{}", kind.to_uppercase());
    let rows = bits.iter().map(|(bit, operands)| {
        let operands = operand_list(operands);
        quote! { (#bit, #operands) }
    });
    quote! { const #name: &[(u32, &[Operand])] = &[#(#rows),*]; }
}

fn value_table(kind: &str, values: &Enumerants) -> TokenStream {
    let name = format_ident!("{}", kind.to_lowercase());
    let mut by_operands: BTreeMap<String, (TokenStream, Vec<u32>)> = BTreeMap::new();
    for (value, operands) in values {
        let list = operand_list(operands);
        by_operands.entry(list.to_string()).or_insert_with(|| (list, Vec::new())).1.push(*value);
    }
    let arms = by_operands.values().map(|(list, values)| quote! { #(#values)|* => Some(#list), });
    quote! { fn #name(value: u32) -> Option<&'static [Operand]> { match value { #(#arms)* _ => None } } }
}

fn instructions(kinds: &BTreeSet<&str>) -> TokenStream {
    let mut rows = BTreeMap::new();
    for instruction in INSTRUCTION_TABLE.iter() {
        let known = |operand: &LogicalOperand| is_plain(operand) || kinds.contains(name_of(operand).as_str());
        if !instruction.operands.iter().all(known) {
            continue;
        }
        let operands = operand_list(instruction.operands);
        let capabilities = instruction.capabilities.iter().map(|capability| *capability as u32);
        let opcode = instruction.opcode as u32 as u16;
        let name = format!("Op{}", instruction.opname);
        let row = quote! {
            #opcode => Instruction { name: #name, operands: #operands, capabilities: &[#(#capabilities),*] },
        };
        rows.entry(opcode).or_insert(row);
    }
    let rows = rows.values();
    quote! {
        /// The grammar of an instruction.
        pub fn instruction(opcode: u16) -> Option<Instruction> {
            Some(match opcode { #(#rows)* _ => return None })
        }
    }
}

/// The operands of each instruction of a set whose operands are not all ids.
fn debug_info(function: &str, set: &str, table: &InstructionTable<ExtInstOp>) -> TokenStream {
    let name = format_ident!("{function}");
    let comment = format!("The operands of an instruction of `{set}`.");
    let rows = table.iter().filter_map(|instruction| {
        let number = match instruction.opcode {
            ExtInstOp::Debuginfo(opcode) => opcode as u32,
            ExtInstOp::OpenclDebuginfo100(opcode) => opcode as u32,
            _ => return None,
        };
        let operands = instruction.operands.iter().map(|operand| {
            let kind = match name_of(operand).as_str() {
                "IdRef" => quote! { Kind::Id },
                "PairIdRefIdRef" => quote! { Kind::IdAndId },
                _ => quote! { Kind::Literal },
            };
            quantified(operand.quantifier, &kind)
        });
        Some(quote! { #number => &[#(#operands),*], })
    });
    quote! {
        #[doc = #comment]
        pub fn #name(number: u32) -> Option<&'static [Operand]> {
            Some(match number { #(#rows)* _ => return None })
        }
    }
}

fn quantified(quantifier: OperandQuantifier, kind: &TokenStream) -> TokenStream {
    match quantifier {
        OperandQuantifier::One => quote! { Operand::One(#kind) },
        OperandQuantifier::ZeroOrOne => quote! { Operand::Optional(#kind) },
        OperandQuantifier::ZeroOrMore => quote! { Operand::Any(#kind) },
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
        let plain = PLAIN.iter().find(|(grammar, _)| *grammar == name);
        let is_mask = matches!(
            name.as_str(),
            "ImageOperands"
                | "FPFastMathMode"
                | "SelectionControl"
                | "LoopControl"
                | "FunctionControl"
                | "MemorySemantics"
                | "MemoryAccess"
                | "KernelProfilingInfo"
                | "RayFlags"
                | "FragmentShadingRate"
                | "RawAccessChainOperands"
                | "CooperativeMatrixOperands"
                | "CooperativeMatrixReduce"
                | "TensorAddressingOperands"
                | "TensorOperands"
                | "MatrixMultiplyAccumulateOperands"
        );
        let kind = match plain {
            Some((_, ours)) => {
                let ours = format_ident!("{ours}");
                quote! { Kind::#ours }
            }
            None if is_mask => {
                let table = format_ident!("{}", name.to_uppercase());
                quote! { Kind::Mask(#table) }
            }
            None => {
                let function = format_ident!("{}", name.to_lowercase());
                quote! { Kind::Value(#function) }
            }
        };
        quantified(operand.quantifier, &kind)
    });
    quote! { &[#(#operands),*] }
}

/// Which capabilities a guest's module may declare: those that the registry ties to something that is served.
fn capabilities(protocol: &Protocol, registry: &str) -> Result<TokenStream> {
    let document = roxmltree::Document::parse(registry).context("the registry is not XML")?;
    let numbers: BTreeMap<String, u32> = (0..ENUMERANT_MAX)
        .filter_map(|n| Some((format!("{:?}", spirv::Capability::from_u32(n)?), n)))
        .collect();
    let served: BTreeSet<&str> =
        protocol.extensions.iter().map(|extension| extension.name.as_str()).collect();
    let mut rows = BTreeMap::new();
    for node in document.descendants().filter(|node| node.has_tag_name("spirvcapability")) {
        let name = node.attribute("name").context("a capability without a name")?;
        let Some(number) = numbers.get(name) else { continue };
        let enables: Vec<_> = node.children().filter(|child| child.has_tag_name("enable")).collect();
        let extensions: Vec<&str> =
            enables.iter().filter_map(|enable| enable.attribute("extension")).collect();
        // Features and properties are in structs of an extension or of the core.
        let structs: Vec<&str> = enables
            .iter()
            .filter_map(|e| e.attribute("struct").or_else(|| e.attribute("property")))
            .collect();
        let core = enables.iter().any(|enable| enable.attribute("version").is_some())
            || structs.iter().any(|name| {
                name.starts_with("VkPhysicalDeviceVulkan1") || *name == "VkPhysicalDeviceFeatures"
            });
        let is_known = |name: &str| {
            let short = name.trim_start_matches("Vk");
            protocol.structs.contains_key(name) || protocol.structs.contains_key(short)
        };
        let known = structs.iter().any(|name| is_known(name));
        let extensions: Vec<&str> = extensions.into_iter().filter(|name| served.contains(name)).collect();
        if core || known {
            rows.insert(*number, quote! { #number => Offer::Device, });
        } else if !extensions.is_empty() {
            rows.insert(*number, quote! { #number => Offer::Extensions(&[#(#extensions),*]), });
        }
    }
    let rows = rows.values();
    Ok(quote! {
        /// What offers a capability; none if nothing that is served does.
        pub fn offer(number: u32) -> Option<Offer> {
            Some(match number { #(#rows)* _ => return None })
        }
    })
}
