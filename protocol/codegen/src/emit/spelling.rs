//! Names and comments of the generated code, as tokens.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{format_ident, quote};

/// A name that is no keyword.
pub(super) fn ident(name: &str) -> Ident {
    Ident::new(name, Span::call_site())
}

/// A one-line doc attribute with a leading space, as comments have it.
pub(super) fn doc(text: &str) -> TokenStream {
    let text = format!(" {text}");
    quote! { #[doc = #text] }
}

/// A field or parameter name; `type` and other keywords are already respelled in the IR, raw identifiers guard the rest.
pub(super) fn field(name: &str) -> Ident {
    syn::parse_str::<Ident>(name).unwrap_or_else(|_| format_ident!("r#{name}"))
}
