//! Output for `daemon/src/vulkan/generated`: C layouts, lowering, raising, function tables, and the commands' execution.
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

/// All files of `daemon/src/vulkan/generated/`.
pub fn executor(protocol: &Protocol) -> Result<Vec<Output>> {
    let mut modules: Vec<&str> = protocol.structs.values().map(|s| s.module.as_str()).collect();
    modules.extend(protocol.commands.values().map(|c| c.module.as_str()));
    modules.sort_unstable();
    modules.dedup();

    let mut outputs = vec![
        file(
            "sys",
            "C layouts of the structs and unions the host's driver reads and writes.",
            sys::emit(protocol),
        )?,
        file("table", "Function pointers of the host's driver, by level.", tables::emit(protocol))?,
        file(
            "chain",
            "pNext chains: which struct is lowered and raised how.",
            structs::emit_chain(protocol),
        )?,
        file("dispatch", "Who executes each command.", commands::emit_dispatch(protocol))?,
        file("mod", "Execution of the Venus protocol on the host's driver.", root(&modules))?,
    ];
    for module in modules {
        let head = format!("Lowering, raising and execution: `{module}`.");
        outputs.push(file(module, &head, module_tokens(protocol, module))?);
    }
    Ok(outputs)
}

fn module_tokens(protocol: &Protocol, module: &str) -> TokenStream {
    let structs = structs::emit(protocol, module);
    let commands = commands::emit(protocol, module);
    let layouts = (!structs.is_empty()).then(|| {
        quote!(
            use super::sys;
        )
    });
    quote! {
        #layouts
        use crate::vulkan::prelude::*;
        #structs
        #commands
    }
}

/// The root names the hand-written code of the daemon nowhere but in `prelude`.
fn root(modules: &[&str]) -> TokenStream {
    let names: Vec<Ident> = modules.iter().map(|m| format_ident!("{m}")).collect();
    quote! {
        #(mod #names;)*
        mod chain;
        mod dispatch;
        pub mod sys;
        mod table;

        pub use dispatch::{execute, is_graphics, record};
        pub use table::{DeviceTable, InstanceTable};
        pub(super) use chain::{lower_chain_struct, raise_chain_struct};
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
