//! `sys.rs`: one `#[repr(C)]` struct or union per Vulkan type, scalars as plain integers, handles as `u64`.

use super::c_types::c_type;
use crate::emit::output::Rows;
use crate::emit::spelling::field;
use crate::ir::{Protocol, Struct, Union};
use proc_macro2::TokenStream;
use quote::{format_ident, quote};

/// The whole file.
pub(super) fn emit(protocol: &Protocol, rows: &mut Rows) -> TokenStream {
    let structs = rows.blocks(protocol.structs.values().map(|s| structure(protocol, s)));
    let unions = protocol.unions.values().map(|u| union_type(protocol, u));
    quote! {
        #![allow(missing_docs, reason = "names and members are the registry's")]
        use super::sys;
        use crate::driver::c_structs::c_structs;
        use std::ffi::c_void;

        c_structs! { #structs }
        #(#unions)*
    }
}

fn structure(protocol: &Protocol, s: &Struct) -> (TokenStream, Vec<TokenStream>) {
    let name = format_ident!("{}", s.names.rust);
    let header = s.s_type.iter().flat_map(|_| [quote!(s_type: i32), quote!(p_next: *const c_void)]);
    let mut members: Vec<_> = s.members.iter().collect();
    members.sort_by_key(|m| m.api_index);
    let fields = members.iter().map(|m| {
        let name = field(&m.rust);
        let ty = c_type(protocol, &m.ty, &m.shape, !m.is_const);
        quote!(#name: #ty)
    });
    (quote!(#name), header.chain(fields).collect())
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
