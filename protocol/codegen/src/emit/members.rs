//! One member at a time: its Rust type, and the runtime call that reads or writes it.

use proc_macro2::{Literal, TokenStream};
use quote::quote;

use super::spelling::ident;
use crate::ir::*;

/// Rust type of a field, with the lifetime `'a`.
pub(super) fn field_type(protocol: &Protocol, member: &Member) -> TokenStream {
    let element = element_type(protocol, &member.ty);
    match &member.shape {
        Shape::Value => element,
        Shape::Fixed(count) => {
            let count = Literal::usize_unsuffixed(*count);
            quote! { [#element; #count] }
        }
        Shape::Pointer => quote! { Option<&'a #element> },
        Shape::Array(_) | Shape::Blob(_) => quote! { Option<&'a [#element]> },
        Shape::String => quote! { Option<&'a CStr> },
        Shape::Strings(_) => quote! { Option<&'a [&'a CStr]> },
    }
}

/// Rust type of an element.
pub(super) fn element_type(protocol: &Protocol, ty: &Type) -> TokenStream {
    let name = ident(protocol.rust_name(ty));
    if protocol.needs_lifetime(ty) {
        quote! { #name<'a> }
    } else {
        quote! { #name }
    }
}

/// `let field: T = reader.value("Type.member")?;` in full form.
pub(super) fn decode(protocol: &Protocol, owner: &str, member: &Member) -> TokenStream {
    let what = format!("{owner}.{}", member.vk);
    if !member.has_field() {
        return quote! { reader.null_pointer(#what)?; };
    }
    let null = null(member);
    let call = match &member.shape {
        Shape::Value => quote! { value(#what) },
        Shape::Fixed(_) if is_bytes(member) => quote! { fixed_bytes(#what) },
        Shape::Fixed(_) => quote! { fixed(#what) },
        Shape::Pointer => quote! { pointer(#what, #null) },
        Shape::String => quote! { string(#what, #null) },
        Shape::Array(len) => call_with_len("array", &what, len, &null),
        Shape::Blob(len) => call_with_len("bytes", &what, len, &null),
        Shape::Strings(len) => call_with_len("strings", &what, len, &null),
    };
    bind(protocol, member, call)
}

/// The statement that decodes a member in partial form, as [`decode`] does in full form; nothing for members that are absent.
pub(super) fn decode_partial(protocol: &Protocol, owner: &str, member: &Member) -> TokenStream {
    let what = format!("{owner}.{}", member.vk);
    if !member.has_field() {
        return quote! { reader.null_pointer(#what)?; };
    }
    let null = null(member);
    let call = match (member.partial, &member.shape) {
        (Partial::Absent, _) => return TokenStream::new(),
        (Partial::Full, _) => return decode(protocol, owner, member),
        (Partial::CountOnly, Shape::Array(len) | Shape::Blob(len)) => {
            call_with_len("out_array", &what, len, &null)
        }
        (Partial::CountOnly, _) => quote! { out_pointer(#what, #null) },
        (Partial::Nested, Shape::Value) => quote! { partial(#what) },
        (Partial::Nested, Shape::Fixed(_)) => quote! { partial_fixed(#what) },
        (Partial::Nested, Shape::Array(len)) => call_with_len("partial_array", &what, len, &null),
        (Partial::Nested, _) => quote! { partial_pointer(#what, #null) },
    };
    bind(protocol, member, call)
}

/// Reads a member of a reply, whose array lengths only the wire tells.
pub(super) fn decode_sized(protocol: &Protocol, owner: &str, member: &Member) -> TokenStream {
    let what = format!("{owner}.{}", member.vk);
    let call = match &member.shape {
        Shape::Array(_) => quote! { sized_array(#what) },
        Shape::Blob(_) => quote! { sized_bytes(#what) },
        Shape::Pointer => quote! { pointer(#what, Null::Allowed) },
        _ => return decode(protocol, owner, member),
    };
    bind(protocol, member, call)
}

/// `reader.demand(24, "Type.member")?;` in front of the first of several members of a fixed size, so that one check bounds them all; nothing in front
/// of the others.
pub(super) fn demands(protocol: &Protocol, owner: &str, members: &[&Member]) -> Vec<TokenStream> {
    let is_fixed = |member: &&Member| {
        let simple = !matches!(member.ty, Type::Struct(_) | Type::Union(_) | Type::Opaque(_));
        member.has_field() && simple && member.shape == Shape::Value
    };
    let runs = members.chunk_by(|one, other| is_fixed(one) == is_fixed(other));
    let demands = runs.flat_map(|run| {
        let first = run.first().filter(|first| run.len() > 1 && is_fixed(first)).map(|first| {
            let what = format!("{owner}.{}", first.vk);
            let bytes: usize = run.iter().map(|member| min_size(protocol, member)).sum();
            let bytes = Literal::usize_unsuffixed(bytes);
            quote! { reader.demand(#bytes, #what)?; }
        });
        std::iter::once(first.unwrap_or_default()).chain(run.iter().skip(1).map(|_| TokenStream::new()))
    });
    demands.collect()
}

/// `writer.value(&self.field);` in full form.
pub(super) fn encode(member: &Member) -> TokenStream {
    let field = ident(&member.rust);
    match &member.shape {
        _ if !member.has_field() => quote! { writer.null_pointer(); },
        Shape::Value => quote! { writer.value(&self.#field); },
        Shape::Fixed(_) if is_bytes(member) => quote! { writer.fixed_bytes(&self.#field); },
        Shape::Fixed(_) => quote! { writer.fixed(&self.#field); },
        Shape::Pointer => quote! { writer.pointer(self.#field); },
        Shape::Array(_) => quote! { writer.array(self.#field); },
        Shape::Blob(_) => quote! { writer.bytes(self.#field); },
        Shape::String => quote! { writer.string(self.#field); },
        Shape::Strings(_) => quote! { writer.strings(self.#field); },
    }
}

/// The statement that encodes a member in partial form, as [`encode`] does in full form; nothing for members that are absent.
pub(super) fn encode_partial(member: &Member) -> TokenStream {
    let field = ident(&member.rust);
    match (member.partial, &member.shape) {
        _ if !member.has_field() => quote! { writer.null_pointer(); },
        (Partial::Absent, _) => TokenStream::new(),
        (Partial::Full, _) => encode(member),
        (Partial::CountOnly, Shape::Array(_) | Shape::Blob(_)) => quote! { writer.out_array(self.#field); },
        (Partial::CountOnly, _) => quote! { writer.out_pointer(self.#field); },
        (Partial::Nested, Shape::Value) => quote! { writer.partial(&self.#field); },
        (Partial::Nested, Shape::Fixed(_)) => quote! { writer.partial_fixed(&self.#field); },
        (Partial::Nested, Shape::Array(_)) => quote! { writer.partial_array(self.#field); },
        (Partial::Nested, _) => quote! { writer.partial_pointer(self.#field); },
    }
}

/// Fewest bytes of a member in full form.
pub(super) fn min_size(protocol: &Protocol, member: &Member) -> usize {
    match member.shape {
        Shape::Value => min_element(protocol, &member.ty),
        Shape::Fixed(count) if is_bytes(member) => COUNT + count.next_multiple_of(4),
        Shape::Fixed(count) => COUNT + count * min_element(protocol, &member.ty),
        _ => COUNT,
    }
}

/// Fewest bytes of a member in partial form.
pub(super) fn min_partial_size(protocol: &Protocol, member: &Member) -> usize {
    let nested = |ty: &Type| match ty {
        Type::Struct(name) => min_struct(protocol, &protocol.structs[name], true),
        _ => 0,
    };
    match (member.partial, &member.shape) {
        (Partial::Absent, _) => 0,
        (Partial::Full, _) => min_size(protocol, member),
        (Partial::Nested, Shape::Value) => nested(&member.ty),
        (Partial::Nested, Shape::Fixed(count)) => COUNT + count * nested(&member.ty),
        _ => COUNT,
    }
}

/// Fewest bytes of a struct.
pub(super) fn min_struct(protocol: &Protocol, found: &Struct, partial: bool) -> usize {
    let head = if found.s_type.is_some() { STRUCTURE_HEAD } else { 0 };
    head + min_members(protocol, found, partial)
}

/// Fewest bytes of a struct's members.
pub(super) fn min_members(protocol: &Protocol, found: &Struct, partial: bool) -> usize {
    let size = if partial { min_partial_size } else { min_size };
    found.members.iter().map(|m| size(protocol, m)).sum()
}

fn min_element(protocol: &Protocol, ty: &Type) -> usize {
    match ty {
        Type::Scalar(Scalar::U64 | Scalar::Size | Scalar::I64 | Scalar::F64) | Type::Handle(_) => 8,
        Type::Flags(name) if protocol.flags[name].bits == 64 => 8,
        Type::Scalar(_) | Type::Enum(_) | Type::Flags(_) => 4,
        Type::Struct(name) => min_struct(protocol, &protocol.structs[name], false),
        Type::Union(name) => {
            let members = protocol.unions[name].members.iter();
            TAG + members.map(|m| min_size(protocol, &m.member)).min().unwrap_or(0)
        }
        Type::Opaque(_) => 0,
    }
}

fn bind(protocol: &Protocol, member: &Member, call: TokenStream) -> TokenStream {
    let field = ident(&member.rust);
    let ty = field_type(protocol, member);
    quote! { let #field: #ty = reader.#call?; }
}

fn call_with_len(method: &str, what: &str, len: &Len, null: &TokenStream) -> TokenStream {
    let method = ident(method);
    let len = length(what, len);
    quote! { #method(#what, #len, #null) }
}

/// A length expression over locals that have been decoded before.
fn length(what: &str, len: &Len) -> TokenStream {
    match len {
        Len::Constant(value) => {
            let value = Literal::u64_unsuffixed(*value);
            quote! { #value }
        }
        Len::Member(name) => {
            let name = ident(name);
            quote! { length(#name) }
        }
        Len::Deref(name) => {
            let name = ident(name);
            quote! { length(#name.copied().unwrap_or_default()) }
        }
        Len::Field { pointer, field } => {
            let (pointer, field) = (ident(pointer), ident(field));
            quote! { #pointer.map_or(0, |p| length(p.#field)) }
        }
        Len::DivExact(inner, divisor) => {
            let inner = length(what, inner);
            quote! { reader.div_exact(#what, #inner, #divisor)? }
        }
        Len::DivCeil(inner, divisor) => {
            let inner = length(what, inner);
            quote! { #inner.div_ceil(#divisor) }
        }
    }
}

fn null(member: &Member) -> TokenStream {
    if member.optional {
        quote! { Null::Allowed }
    } else {
        quote! { Null::Refused }
    }
}

fn is_bytes(member: &Member) -> bool {
    member.ty == Type::Scalar(Scalar::U8)
}

/// Bytes of a count or a presence.
const COUNT: usize = 8;
/// Bytes of a union's tag.
const TAG: usize = 4;
/// Bytes of an sType and an empty chain.
const STRUCTURE_HEAD: usize = 12;
