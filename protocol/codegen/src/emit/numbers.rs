//! `enums.rs` and `handles.rs`: newtypes with constants.

use proc_macro2::{Literal, TokenStream};
use quote::quote;

use super::spelling::{doc, ident};
use crate::ir::{Enum, Names, Protocol, Value};

/// Enumerations and flags.
pub(super) fn enums_and_flags(protocol: &Protocol) -> TokenStream {
    let enums = protocol.enums.values().map(|e| {
        let values = own(&e.values).map(|v| constant(v, Literal::i64_unsuffixed(v.value)));
        let (newtype, known) =
            (newtype(&e.names, quote! { i32 }, quote! { enumeration }, values.collect()), known(e));
        quote! { #newtype #known }
    });
    let flags = protocol.flags.values().map(|f| {
        let ty = ident(if f.bits == 64 { "u64" } else { "u32" });
        let values = own(&f.values).map(|v| constant(v, Literal::i64_unsuffixed(v.value)));
        let newtype = newtype(&f.names, quote! { #ty }, quote! { flags }, values.collect());
        let name = ident(&f.names.rust);
        let all = hexadecimal(f.values.iter().fold(0, |all, v| all | v.value));
        quote! { #newtype known_flags!(#name, #all); }
    });
    quote! {
        use crate::venus::wire::{enumeration, flags, known, known_flags};
        #(#enums)*
        #(#flags)*
    }
}

/// Handles.
pub(super) fn handles(protocol: &Protocol) -> TokenStream {
    let handles = protocol.handles.values().map(|h| {
        let name = ident(&h.names.rust);
        let kind = ident(&h.object_type);
        let doc = doc(&format!("`{}`", h.names.vk));
        quote! {
            #doc
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
            pub struct #name(pub u64);
            handle!(#name, #kind);
        }
    });
    quote! {
        use super::enums::ObjectType;
        use crate::venus::wire::handle;
        #(#handles)*
    }
}

fn newtype(names: &Names, ty: TokenStream, kind: TokenStream, values: TokenStream) -> TokenStream {
    let name = ident(&names.rust);
    let doc = doc(&format!("`{}`", names.vk));
    let constants = if values.is_empty() {
        TokenStream::new()
    } else {
        quote! { impl #name { #values } }
    };
    quote! {
        #doc
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct #name(pub #ty);
        #kind!(#name, #ty);
        #constants
    }
}

/// The numbers that are values of the enumeration, in as few ranges as possible.
fn known(e: &Enum) -> TokenStream {
    let mut values: Vec<i64> = e.values.iter().map(|v| v.value).collect();
    values.sort_unstable();
    values.dedup();
    let ranges = values.chunk_by(|a, b| a + 1 == *b).map(|run| {
        let (first, last) = (run[0], run[run.len() - 1]);
        let [first_literal, last_literal] = [first, last].map(Literal::i64_unsuffixed);
        if first == last {
            quote! { #first_literal }
        } else {
            quote! { #first_literal..=#last_literal }
        }
    });
    let name = ident(&e.names.rust);
    quote! { known!(#name, #(#ranges)|*); }
}

/// Values under their newest name; older names stand for the same number.
fn own(values: &[Value]) -> impl Iterator<Item = &Value> {
    values.iter().filter(|value| !value.is_alias)
}

fn hexadecimal(number: i64) -> Literal {
    format!("{number:#x}").parse().expect("a number is a literal")
}

fn constant(value: &Value, number: Literal) -> TokenStream {
    let name = ident(&value.rust);
    quote! { pub const #name: Self = Self(#number); }
}
