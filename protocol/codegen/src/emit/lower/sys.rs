//! `sys.rs`: one `#[repr(C)]` struct or union per Vulkan type, scalars as plain integers, handles as `u64`.

use super::c_types::c_type;
use crate::emit::spelling::field;
use crate::ir::{Protocol, Struct, Union};
use proc_macro2::TokenStream;
use quote::{format_ident, quote};

/// The whole file.
pub(super) fn emit(protocol: &Protocol) -> TokenStream {
    let structs = protocol.structs.values().map(|s| structure(protocol, s));
    let unions = protocol.unions.values().map(|u| union_type(protocol, u));
    let layouts = layout_table(protocol);
    quote! {
        #![allow(missing_docs, reason = "names and members are the registry's")]
        use super::sys;
        use std::ffi::c_void;

        #(#structs)*
        #(#unions)*
        #layouts
    }
}

fn structure(protocol: &Protocol, s: &Struct) -> TokenStream {
    let name = format_ident!("{}", s.names.rust);
    let header = s.s_type.as_ref().map(|_| quote!(pub s_type: i32, pub p_next: *const c_void,));
    let mut members: Vec<_> = s.members.iter().collect();
    members.sort_by_key(|m| m.api_index);
    let fields = members.iter().map(|m| {
        let name = field(&m.rust);
        let ty = c_type(protocol, &m.ty, &m.shape, !m.is_const);
        quote!(pub #name: #ty,)
    });
    quote! {
        #[repr(C)]
        #[derive(Clone, Copy)]
        pub(crate) struct #name { #header #(#fields)* }
    }
}

fn union_type(protocol: &Protocol, u: &Union) -> TokenStream {
    let name = format_ident!("{}", u.names.rust);
    let fields = u.members.iter().map(|m| {
        let name = field(&m.member.rust);
        let ty = c_type(protocol, &m.member.ty, &m.member.shape, !m.member.is_const);
        quote!(pub #name: #ty,)
    });
    quote! {
        #[repr(C)]
        #[derive(Clone, Copy)]
        pub(crate) union #name { #(#fields)* }
    }
}

/// Size and alignment of every struct by Rust name, for the test that compares them with ash.
fn layout_table(protocol: &Protocol) -> TokenStream {
    let rows = protocol.structs.values().map(|s| {
        let text = &s.names.rust;
        let name = format_ident!("{text}");
        quote!((#text, size_of::<#name>(), align_of::<#name>()),)
    });
    quote! {
        /// Name, size and alignment of every struct above.
        #[cfg(test)]
        pub(crate) const LAYOUTS: &[(&str, usize, usize)] = &[#(#rows)*];
    }
}
