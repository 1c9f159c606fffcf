//! C types, as the output for the host's driver spells them.

use crate::ir::{Protocol, Scalar, Shape, Type};
use proc_macro2::TokenStream;
use quote::{format_ident, quote};

/// The C type of a member or parameter.
pub(super) fn c_type(protocol: &Protocol, ty: &Type, shape: &Shape, writable: bool) -> TokenStream {
    if matches!(ty, Type::Opaque(_)) {
        return quote!(*const c_void);
    }
    let element = element(protocol, ty);
    let pointer = if writable { quote!(*mut) } else { quote!(*const) };
    match shape {
        Shape::Value => element,
        Shape::Fixed(n) => quote!([#element; #n]),
        Shape::Pointer | Shape::Array(_) | Shape::Blob(_) => quote!(#pointer #element),
        Shape::String => quote!(*const std::ffi::c_char),
        Shape::Strings(_) => quote!(*const *const std::ffi::c_char),
    }
}

/// The C type of a number.
pub(super) fn scalar_type(scalar: Scalar) -> TokenStream {
    match scalar {
        Scalar::Size => quote!(usize),
        other => {
            let name = format_ident!("{}", other.rust());
            quote!(#name)
        }
    }
}

/// The C type of an element, as this output spells it.
fn element(protocol: &Protocol, ty: &Type) -> TokenStream {
    match ty {
        Type::Scalar(scalar) => scalar_type(*scalar),
        Type::Enum(_) => quote!(i32),
        Type::Flags(name) if protocol.flags[name].bits == 64 => quote!(u64),
        Type::Flags(_) => quote!(u32),
        Type::Handle(_) => quote!(u64),
        Type::Struct(_) | Type::Union(_) => {
            let name = format_ident!("{}", protocol.rust_name(ty));
            quote!(sys::#name)
        }
        Type::Opaque(_) => quote!(*const c_void),
    }
}
