//! `extensions.rs`, `formats.rs` and the root of the generated module.

use std::collections::BTreeMap;

use proc_macro2::{Literal, TokenStream};
use quote::quote;

use super::spelling::ident;
use crate::ir::{Format, Protocol};

/// The decodable extensions.
pub(super) fn extensions(protocol: &Protocol) -> TokenStream {
    let rows = protocol.extensions.iter().map(|e| {
        let (number, version) = (Literal::u32_unsuffixed(e.number), Literal::u32_unsuffixed(e.spec_version));
        let name = &e.name;
        quote! { (#number, #name, #version), }
    });
    quote! {
        /// Number, name and `specVersion` of every extension whose chain structs are decodable, by number.
        pub const EXTENSIONS: &[(u32, &str, u32)] = &[#(#rows)*];
    }
}

/// Sizes of formats; one arm per size.
pub(super) fn formats(protocol: &Protocol) -> TokenStream {
    let mut sizes: BTreeMap<(u32, [u32; 3]), Vec<&Format>> = BTreeMap::new();
    for format in protocol.formats.values() {
        sizes.entry((format.block_bytes, format.block_extent)).or_default().push(format);
    }
    let arms = sizes.iter().map(|((bytes, extent), formats)| {
        let names = formats.iter().map(|format| ident(&format.rust));
        let bytes = Literal::u32_unsuffixed(*bytes);
        let extent = extent.map(Literal::u32_unsuffixed);
        quote! { #(Format::#names)|* => FormatBlock { bytes: #bytes, extent: [#(#extent),*] }, }
    });
    quote! {
        use super::enums::Format;

        /// The block of an image format.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct FormatBlock {
            /// Bytes, all planes and aspects together.
            pub bytes: u32,
            /// Width, height and depth in texels.
            pub extent: [u32; 3],
        }

        /// The block of a format; none for formats this was not generated from.
        #[allow(clippy::too_many_lines, reason = "one arm per size")]
        pub fn format_block(format: Format) -> Option<FormatBlock> {
            Some(match format {
                #(#arms)*
                _ => return None,
            })
        }
    }
}

/// `mod.rs`.
pub(super) fn root(protocol: &Protocol, modules: &[&str]) -> TokenStream {
    let modules: Vec<_> = modules.iter().map(|m| ident(m)).collect();
    let (major, minor, patch) = protocol.source.header_version;
    let version = [major, minor, patch].map(Literal::u32_unsuffixed);
    let digest = &protocol.source.sha256;
    quote! {
        #(mod #modules;)*

        #(pub use #modules::*;)*

        /// Version of the Vulkan registry this was generated from: major, minor, header version.
        pub const REGISTRY_VERSION: (u32, u32, u32) = (#(#version),*);
        /// SHA-256 of that registry.
        pub const REGISTRY_SHA256: &str = #digest;

        /// What generated files use.
        mod prelude {
            pub(super) use std::ffi::CStr;

            pub(super) use super::enums::*;
            pub(super) use super::handles::*;
            pub(super) use super::types::*;
            pub(super) use crate::cursor::{Reader, Writer};
            pub(super) use crate::error::{DecodeError, DecodeErrorKind};
            pub(super) use crate::venus::chain::Chain;
            pub(super) use crate::venus::plain::plain_structures;
            pub(super) use crate::venus::wire::{
                Decode, DecodePartial, Encode, EncodePartial, Null, OutStructure, Structure, length,
            };
        }
    }
}
