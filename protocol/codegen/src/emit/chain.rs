//! `ChainStruct`: every struct that may appear in a pNext chain.

use proc_macro2::{Literal, TokenStream};
use quote::quote;

use super::spelling::ident;
use crate::ir::{Protocol, Struct};

/// The enum and its dispatch by sType.
pub(super) fn emit(protocol: &Protocol) -> TokenStream {
    let mut all: Vec<(i32, &Struct)> = protocol
        .structs
        .values()
        .filter(|s| !s.extends.is_empty())
        .filter_map(|s| Some((s.s_type.as_ref()?.value, s)))
        .collect();
    all.sort_by_key(|(value, _)| *value);
    let name = |s: &Struct| ident(&s.names.rust);
    let names: Vec<_> = all.iter().map(|(_, s)| name(s)).collect();
    let values: Vec<_> = all.iter().map(|(value, _)| Literal::i32_unsuffixed(*value)).collect();
    let outs: Vec<_> = all.iter().filter(|(_, s)| s.output).collect();
    let out_names: Vec<_> = outs.iter().map(|(_, s)| name(s)).collect();
    let out_values = outs.iter().map(|(value, _)| Literal::i32_unsuffixed(*value));
    let owners = protocol.structs.values().filter(|s| !s.extended_by.is_empty());
    let owners: Vec<_> = owners.map(name).collect();
    quote! {
        use super::prelude::*;
        use super::*;
        use crate::venus::chain::{link, link_partial};

        /// A struct in a chain.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub enum ChainStruct<'a> { #(#names(&'a #names<'a>),)* }

        impl<'a> ChainStruct<'a> {
            /// Its sType.
            pub fn s_type(&self) -> i32 {
                match self { #(Self::#names(_) => #values,)* }
            }

            /// The sTypes of all variants, ascending.
            pub const S_TYPES: &'static [i32] = &[#(#values),*];

            /// The sTypes that a struct, given by its Rust name, accepts in its chain.
            #[cfg(feature = "driver")]
            pub fn accepted_by(owner: &str) -> &'static [i32] {
                match owner {
                    #(#owners::NAME => #owners::EXTENDED_BY,)*
                    _ => &[],
                }
            }

            pub(crate) fn decode_members(reader: &mut Reader<'a>, s_type: i32) -> Result<Self, DecodeError> {
                match s_type {
                    #(#values => link(reader).map(Self::#names),)*
                    _ => Err(reader.error(DecodeErrorKind::ChainStructure(s_type))),
                }
            }

            pub(crate) fn decode_members_partial(reader: &mut Reader<'a>, s_type: i32) -> Result<Self, DecodeError> {
                match s_type {
                    #(#out_values => link_partial(reader).map(Self::#out_names),)*
                    _ => Err(reader.error(DecodeErrorKind::ChainStructure(s_type))),
                }
            }

            pub(crate) fn encode_members(&self, writer: &mut Writer<'_>) {
                match self { #(Self::#names(link) => link.encode_members(writer),)* }
            }

            /// In structs have no partial form and never stand in the chain of an out parameter.
            pub(crate) fn encode_members_partial(&self, writer: &mut Writer<'_>) {
                match self {
                    #(Self::#out_names(link) => link.encode_members_partial(writer),)*
                    _ => {}
                }
            }
        }
    }
}
