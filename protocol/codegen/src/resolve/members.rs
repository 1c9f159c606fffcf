//! Pass 3: declarations to members, with type, shape and length.

use anyhow::{Context, Result, bail, ensure};

use super::aliases::Aliases;
use super::{lengths, names};
use crate::ir::{Member, Partial, Scalar, Shape, Type};
use crate::registry::{Declaration, Registry, TypeDef};

/// Resolves all members of a struct (without `sType` and `pNext`) or all parameters of a command.
pub(super) fn resolve(registry: &Registry, aliases: &Aliases, all: &[Declaration]) -> Result<Vec<Member>> {
    let own = all.iter().filter(|d| !is_chain_part(d));
    own.enumerate()
        .map(|(index, declaration)| {
            member(registry, aliases, all, declaration, index).with_context(|| declaration.name.clone())
        })
        .collect()
}

/// `sType` and `pNext`, which are not members of the IR.
pub(super) fn is_chain_part(declaration: &Declaration) -> bool {
    declaration.name == "sType" || declaration.name == "pNext"
}

fn member(
    registry: &Registry,
    aliases: &Aliases,
    siblings: &[Declaration],
    declaration: &Declaration,
    api_index: usize,
) -> Result<Member> {
    ensure!(!declaration.is_bit_field, "bit fields have no wire form");
    let length = |text: &str| lengths::parse(registry, siblings, text);
    let lens: Vec<&str> = declaration.len.iter().map(String::as_str).collect();
    let ty = classify(registry, aliases, &declaration.ty);
    let (ty, shape) = if declaration.dimensions.is_empty() {
        match (declaration.ty.as_str(), declaration.pointers, &lens[..]) {
            (_, 0, []) => (ty, Shape::Value),
            ("void", 1, [len]) => (Type::Scalar(Scalar::U8), Shape::Blob(length(len)?)),
            ("char", 1, ["null-terminated"]) => (ty, Shape::String),
            ("char", 2, [len, "null-terminated"]) => (ty, Shape::Strings(length(len)?)),
            ("char", ..) => bail!("text without a terminator has no wire form"),
            ("uint8_t", 1, [len]) => (ty, Shape::Blob(length(len)?)),
            (_, 1, []) => (ty, Shape::Pointer),
            (_, 1, [len]) => (ty, Shape::Array(length(len)?)),
            (_, depth, lens) => bail!("{depth} pointers with lengths {lens:?} have no wire form"),
        }
    } else {
        ensure!(declaration.pointers == 0, "an array of pointers has no wire form");
        let sizes = declaration.dimensions.iter().map(|d| lengths::constant(registry, d));
        let count: u64 = sizes.collect::<Result<Vec<_>>>()?.iter().product();
        (ty, Shape::Fixed(usize::try_from(count)?))
    };
    let is_pointer = !matches!(shape, Shape::Value | Shape::Fixed(_));
    check_opaque(&ty, &shape)?;
    check_element(&ty, &shape)?;
    Ok(Member {
        vk: declaration.name.clone(),
        rust: names::field(&declaration.name),
        api_index,
        ty,
        shape,
        optional: is_pointer && (declaration.optional.first() == Some(&true) || declaration.no_auto_validity),
        is_const: declaration.is_const || !is_pointer,
        condition: None,
        partial: Partial::Absent,
    })
}

/// Types without a wire form are only acceptable where a null pointer can stand for them.
fn check_opaque(ty: &Type, shape: &Shape) -> Result<()> {
    if let (Type::Opaque(name), true) = (ty, *shape != Shape::Pointer) {
        bail!("{name} has no wire form");
    }
    Ok(())
}

/// 16-bit numbers are 4 bytes alone, and the protocol has no arrays of them.
fn check_element(ty: &Type, shape: &Shape) -> Result<()> {
    if *ty == Type::Scalar(Scalar::U16) && *shape != Shape::Value {
        bail!("arrays of 16-bit numbers have no wire form");
    }
    Ok(())
}

/// The element type behind a C type name.
pub(super) fn classify(registry: &Registry, aliases: &Aliases, c_type: &str) -> Type {
    let scalar = match c_type {
        "uint8_t" | "char" => Some(Scalar::U8),
        "uint16_t" => Some(Scalar::U16),
        "uint32_t" | "VkSampleMask" | "VkFlags" => Some(Scalar::U32),
        "VkBool32" => Some(Scalar::Bool32),
        "uint64_t" | "VkDeviceSize" | "VkDeviceAddress" | "VkFlags64" => Some(Scalar::U64),
        "size_t" => Some(Scalar::Size),
        "int32_t" | "int" => Some(Scalar::I32),
        "int64_t" => Some(Scalar::I64),
        "float" => Some(Scalar::F32),
        "double" => Some(Scalar::F64),
        _ => None,
    };
    if let Some(scalar) = scalar {
        return Type::Scalar(scalar);
    }
    let name = aliases.canonical(c_type);
    match registry.types.get(name) {
        Some(TypeDef::Enum) => Type::Enum(name.to_owned()),
        Some(TypeDef::Bitmask { .. }) => Type::Flags(name.to_owned()),
        Some(TypeDef::Handle { .. }) => Type::Handle(name.to_owned()),
        // Host callbacks have members, but a guest's callbacks have no meaning on the host.
        Some(TypeDef::Struct(def)) if def.members.iter().any(|m| m.ty.starts_with("PFN_")) => {
            Type::Opaque(name.to_owned())
        }
        Some(TypeDef::Struct(_)) => Type::Struct(name.to_owned()),
        Some(TypeDef::Union(_)) => Type::Union(name.to_owned()),
        _ => Type::Opaque(c_type.to_owned()),
    }
}
