//! Structs and unions, with their codec implementations.

use proc_macro2::{Literal, TokenStream};
use quote::quote;

use super::members;
use super::output::Rows;
use super::spelling::{doc, ident};
use crate::ir::*;

/// Structs. Those whose members, after the chain, are plain numbers are rows of one macro.
pub(super) fn emit_all<'p>(
    protocol: &Protocol,
    all: impl Iterator<Item = &'p Struct>,
    rows: &mut Rows,
) -> TokenStream {
    let (plain, others): (Vec<_>, Vec<_>) = all.partition(|found| found.is_plain());
    let others: TokenStream = others.into_iter().map(|found| emit(protocol, found)).collect();
    let plain = rows.blocks(plain.into_iter().map(|found| row(protocol, found)));
    let plain = (!plain.is_empty()).then(|| quote! { plain_structures! { #plain } });
    quote! { #plain #others }
}

/// The row of a plain struct: its name, its sType, the bytes of its members, the structs that extend it, and its members.
fn row(protocol: &Protocol, found: &Struct) -> (TokenStream, Vec<TokenStream>) {
    let name = ident(&found.names.rust);
    let s_type = Literal::i32_unsuffixed(found.s_type.as_ref().map_or(0, |s| s.value));
    let bytes = Literal::usize_unsuffixed(members::min_members(protocol, found, false));
    let children = found.extended_by.iter().filter_map(|c| protocol.structs[c].s_type.as_ref());
    let children = children.map(|s| Literal::i32_unsuffixed(s.value));
    let members = found.members.iter().map(|m| {
        let (field, ty, vk) = (ident(&m.rust), members::field_type(protocol, m), &m.vk);
        quote! { #field: #ty = #vk }
    });
    (quote! { #name = #s_type, #bytes, [#(#children),*] }, members.collect())
}

/// A struct.
fn emit(protocol: &Protocol, found: &Struct) -> TokenStream {
    let definition = definition(protocol, found);
    let codec = if found.s_type.is_some() { structure(protocol, found) } else { plain(protocol, found) };
    quote! { #definition #codec }
}

fn definition(protocol: &Protocol, found: &Struct) -> TokenStream {
    let name = ident(&found.names.rust);
    let doc = doc(&format!("`{}`", found.names.vk));
    let generics = generics(found.needs_lifetime);
    let p_next = found.s_type.as_ref().map(|_| quote! { pub p_next: Chain<'a>, });
    let fields = fields(found);
    let fields = fields.map(|m| {
        let (field, ty) = (ident(&m.rust), members::field_type(protocol, m));
        quote! { pub #field: #ty, }
    });
    let (derive, default) = default(found);
    quote! {
        #doc
        #[derive(Clone, Copy, Debug, PartialEq #derive)]
        pub struct #name #generics { #p_next #(#fields)* }
        #default
    }
}

/// `Default` can be derived unless there is an array too long for the standard library's implementation.
fn default(found: &Struct) -> (TokenStream, TokenStream) {
    let is_long = |m: &Member| matches!(m.shape, Shape::Fixed(count) if count > 32);
    if !found.members.iter().any(is_long) {
        return (quote! { , Default }, TokenStream::new());
    }
    let name = ident(&found.names.rust);
    let generics = if found.needs_lifetime {
        quote! { <'_> }
    } else {
        TokenStream::new()
    };
    let p_next = found.s_type.as_ref().map(|_| quote! { p_next: Default::default(), });
    let values = fields(found).map(|m| {
        let field = ident(&m.rust);
        match m.shape {
            Shape::Fixed(count) => {
                let count = Literal::usize_unsuffixed(count);
                quote! { #field: [Default::default(); #count], }
            }
            _ => quote! { #field: Default::default(), },
        }
    });
    let default = quote! {
        impl Default for #name #generics {
            fn default() -> Self {
                Self { #p_next #(#values)* }
            }
        }
    };
    (TokenStream::new(), default)
}

/// Codec of a struct with an sType.
fn structure(protocol: &Protocol, found: &Struct) -> TokenStream {
    let name = ident(&found.names.rust);
    let rust = &found.names.rust;
    let s_type = Literal::i32_unsuffixed(found.s_type.as_ref().map_or(0, |s| s.value));
    let children = found.extended_by.iter().filter_map(|c| protocol.structs[c].s_type.as_ref());
    let children = children.map(|s| Literal::i32_unsuffixed(s.value));
    let min = Literal::usize_unsuffixed(members::min_members(protocol, found, false));
    let decode = decode_body(protocol, found, false);
    let reader = reader_name(&decode);
    let encode = found.members.iter().map(members::encode).collect();
    let writer = writer_name(&encode);
    let full = quote! {
        impl<'a> Structure<'a> for #name<'a> {
            const S_TYPE: i32 = #s_type;
            const NAME: &'static str = #rust;
            const EXTENDED_BY: &'static [i32] = &[#(#children),*];
            const MIN_MEMBERS: usize = #min;
            fn decode_members(#reader: &mut Reader<'a>, p_next: Chain<'a>) -> Result<Self, DecodeError> { #decode }
            fn encode_members(&self, #writer: &mut Writer<'_>) { #encode }
            fn p_next(&self) -> Chain<'a> { self.p_next }
        }
    };
    if !found.output {
        return full;
    }
    let min = Literal::usize_unsuffixed(members::min_members(protocol, found, true));
    let decode = decode_body(protocol, found, true);
    let reader = reader_name(&decode);
    let encode = found.members.iter().map(members::encode_partial).collect();
    let writer = writer_name(&encode);
    quote! {
        #full
        impl<'a> OutStructure<'a> for #name<'a> {
            const MIN_PARTIAL_MEMBERS: usize = #min;
            fn decode_members_partial(#reader: &mut Reader<'a>, p_next: Chain<'a>) -> Result<Self, DecodeError> { #decode }
            fn encode_members_partial(&self, #writer: &mut Writer<'_>) { #encode }
        }
    }
}

/// Codec of a struct without an sType.
fn plain(protocol: &Protocol, found: &Struct) -> TokenStream {
    let name = ident(&found.names.rust);
    let generics = generics(found.needs_lifetime);
    let anonymous = if found.needs_lifetime {
        quote! { <'_> }
    } else {
        TokenStream::new()
    };
    let min = Literal::usize_unsuffixed(members::min_members(protocol, found, false));
    let decode = decode_body(protocol, found, false);
    let reader = reader_name(&decode);
    let encode: TokenStream = found.members.iter().map(members::encode).collect();
    let writer = writer_name(&encode);
    let full = quote! {
        impl<'a> Decode<'a> for #name #generics {
            const MIN_SIZE: usize = #min;
            fn decode(#reader: &mut Reader<'a>) -> Result<Self, DecodeError> { #decode }
        }
        impl Encode for #name #anonymous {
            fn encode(&self, #writer: &mut Writer<'_>) { #encode }
        }
    };
    if !found.output {
        return full;
    }
    let min = Literal::usize_unsuffixed(members::min_members(protocol, found, true));
    let decode = decode_body(protocol, found, true);
    let reader = reader_name(&decode);
    let encode: TokenStream = found.members.iter().map(members::encode_partial).collect();
    let writer = writer_name(&encode);
    quote! {
        #full
        impl<'a> DecodePartial<'a> for #name #generics {
            const MIN_PARTIAL_SIZE: usize = #min;
            fn decode_partial(#reader: &mut Reader<'a>) -> Result<Self, DecodeError> { #decode }
        }
        impl EncodePartial for #name #anonymous {
            fn encode_partial(&self, #writer: &mut Writer<'_>) { #encode }
        }
    }
}

fn decode_body(protocol: &Protocol, found: &Struct, partial: bool) -> TokenStream {
    let owner = &found.names.rust;
    let demands = members::demands(protocol, owner, &found.members.iter().collect::<Vec<_>>());
    let read = |(m, demand): (&Member, TokenStream)| match partial {
        true => members::decode_partial(protocol, owner, m),
        false => {
            let read = members::decode(protocol, owner, m);
            quote! { #demand #read }
        }
    };
    let reads = found.members.iter().zip(demands).map(read);
    let p_next = found.s_type.as_ref().map(|_| quote! { p_next, });
    let is_read = |m: &&Member| !partial || m.partial != Partial::Absent;
    let names = fields(found).filter(is_read).map(|m| ident(&m.rust));
    let rest = (fields(found).count() != fields(found).filter(is_read).count())
        .then(|| quote! { ..Self::default() });
    quote! {
        #(#reads)*
        Ok(Self { #p_next #(#names,)* #rest })
    }
}

/// A union: a Rust enum, a `u32` tag on the wire.
pub(super) fn emit_union(protocol: &Protocol, found: &Union) -> TokenStream {
    let name = ident(&found.names.rust);
    let rust = &found.names.rust;
    let doc = doc(&format!("`{}`", found.names.vk));
    let generics = generics(found.needs_lifetime);
    let anonymous = if found.needs_lifetime {
        quote! { <'_> }
    } else {
        TokenStream::new()
    };
    let (mut variants, mut reads, mut writes) = (Vec::new(), Vec::new(), Vec::new());
    for (tag, UnionMember { member, variant, .. }) in found.members.iter().enumerate() {
        let variant = ident(variant);
        let ty = members::field_type(protocol, member);
        let tag = Literal::usize_unsuffixed(tag);
        let what = format!("{rust}.{}", member.vk);
        let call = ident(if matches!(member.shape, Shape::Fixed(_)) { "fixed" } else { "value" });
        variants.push(quote! { #variant(#ty), });
        reads.push(quote! { #tag => Self::#variant(reader.#call(#what)?), });
        writes.push(quote! { Self::#variant(value) => { writer.u32(#tag); writer.#call(value); } });
    }
    let default = found.members.first().map(|m| {
        let variant = ident(&m.variant);
        quote! { Self::#variant(Default::default()) }
    });
    let min = Literal::usize_unsuffixed(4);
    quote! {
        #doc
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub enum #name #generics { #(#variants)* }
        impl Default for #name #anonymous {
            fn default() -> Self { #default }
        }
        impl<'a> Decode<'a> for #name #generics {
            const MIN_SIZE: usize = #min;
            fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
                Ok(match reader.u32()? {
                    #(#reads)*
                    tag => return Err(reader.error(DecodeErrorKind::UnionTag(tag))),
                })
            }
        }
        impl Encode for #name #anonymous {
            fn encode(&self, writer: &mut Writer<'_>) {
                match self { #(#writes)* }
            }
        }
    }
}

/// Fields in API order, which is how people look for them.
fn fields(found: &Struct) -> impl Iterator<Item = &Member> {
    let mut fields: Vec<&Member> = found.members.iter().filter(|m| m.has_field()).collect();
    fields.sort_by_key(|m| m.api_index);
    fields.into_iter()
}

fn generics(needs_lifetime: bool) -> TokenStream {
    if needs_lifetime {
        quote! { <'a> }
    } else {
        TokenStream::new()
    }
}

/// The reader's parameter name, which begins with an underscore if the body reads nothing.
fn reader_name(body: &TokenStream) -> TokenStream {
    if mentions(body, "reader") {
        quote! { reader }
    } else {
        quote! { _reader }
    }
}

fn writer_name(body: &TokenStream) -> TokenStream {
    if body.is_empty() {
        quote! { _writer }
    } else {
        quote! { writer }
    }
}

/// Returns whether an identifier occurs at the top level of the tokens.
fn mentions(tokens: &TokenStream, name: &str) -> bool {
    tokens.clone().into_iter().any(|t| matches!(t, proc_macro2::TokenTree::Ident(i) if i == name))
}
