//! Output for `daemon::vulkan`, by the folder it goes to: C layouts and function tables, handles, lowering and raising, and the commands'
//! execution.
//!
//! Lowering turns a decoded value into what the host's driver takes; raising turns what it wrote into a value the codec can
//! encode. The C layouts are emitted here rather than taken from ash because ash follows an older registry and a struct it
//! lacks must not be lost; a test in the daemon compares every layout that both know.

mod commands;
mod structs;
mod sys;
mod tables;

use super::{Output, file};
use crate::ir::{Protocol, Scalar, Shape, Type};
use anyhow::Result;
use proc_macro2::{Ident, TokenStream};
use quote::{format_ident, quote};

/// C layouts and function pointers, for `driver/generated/`.
pub fn driver(protocol: &Protocol) -> Result<Vec<Output>> {
    let root = quote! {
        pub mod sys;
        mod table;

        pub use table::{DeviceTable, InstanceTable};
    };
    Ok(vec![
        file(
            "sys",
            "C layouts of the structs and unions the host's driver reads and writes.",
            sys::emit(protocol),
        )?,
        file("table", "Function pointers of the host's driver, by level.", tables::emit(protocol))?,
        file("mod", "The host's driver as the registry declares it.", root)?,
    ])
}

/// Handles as the object table sees them, for `objects/generated/`.
pub fn objects(protocol: &Protocol) -> Result<Vec<Output>> {
    Ok(vec![file("mod", "Handles as the object table sees them.", tables::handles(protocol))?])
}

/// Lowering and raising of structs, for `lowering/generated/`.
pub fn lowering(protocol: &Protocol) -> Result<Vec<Output>> {
    let chain = structs::emit_chain(protocol);
    let mut outputs = vec![file("chain", "pNext chains: which struct is lowered and raised how.", chain)?];
    let mut names = vec![];
    for module in modules(protocol) {
        let structs = structs::emit(protocol, module);
        if structs.is_empty() {
            continue;
        }
        let body = quote! {
            use crate::vulkan::lowering::prelude::*;
            #structs
        };
        outputs.push(file(module, &format!("Lowering and raising: `{module}`."), body)?);
        names.push(format_ident!("{module}"));
    }
    let root = quote! {
        #(mod #names;)*
        mod chain;

        pub(super) use chain::{lower_chain_struct, raise_chain_struct};
    };
    outputs.push(file("mod", "Values of the protocol to C structs, and back.", root)?);
    Ok(outputs)
}

/// Execution of commands, for `dispatch/generated/`.
pub fn dispatch(protocol: &Protocol) -> Result<Vec<Output>> {
    let every = commands::emit_dispatch(protocol);
    let mut outputs = vec![file("every", "Who executes each command.", every)?];
    let mut names = vec![];
    for module in modules(protocol) {
        let commands = commands::emit(protocol, module);
        if commands.is_empty() {
            continue;
        }
        let body = quote! {
            use crate::vulkan::dispatch::prelude::*;
            #commands
        };
        outputs.push(file(module, &format!("Execution: `{module}`."), body)?);
        names.push(format_ident!("{module}"));
    }
    let root = quote! {
        #(mod #names;)*
        mod every;

        pub use every::{execute, is_graphics, record};
    };
    outputs.push(file("mod", "Execution of the Venus protocol on the host's driver.", root)?);
    Ok(outputs)
}

/// Names of the files that structs and commands go into.
fn modules(protocol: &Protocol) -> Vec<&str> {
    let mut modules: Vec<&str> = protocol.structs.values().map(|s| s.module.as_str()).collect();
    modules.extend(protocol.commands.values().map(|c| c.module.as_str()));
    modules.sort_unstable();
    modules.dedup();
    modules
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

fn scalar_type(scalar: Scalar) -> TokenStream {
    match scalar {
        Scalar::Size => quote!(usize),
        other => {
            let name = format_ident!("{}", other.rust());
            quote!(#name)
        }
    }
}

/// The C type of a member or parameter.
fn c_type(protocol: &Protocol, ty: &Type, shape: &Shape, writable: bool) -> TokenStream {
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

/// A field or parameter name; `type` and other keywords are already respelled in the IR, raw identifiers guard the rest.
fn field(name: &str) -> Ident {
    syn::parse_str::<Ident>(name).unwrap_or_else(|_| format_ident!("r#{name}"))
}
