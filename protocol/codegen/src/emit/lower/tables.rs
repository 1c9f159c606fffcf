//! The driver's function pointers, and the handle types as the object table sees them.

use super::c_types::{c_type, scalar_type};
use crate::ir::{Command, Direction, Level, Protocol, Return, Shape};
use proc_macro2::{Literal, TokenStream};
use quote::{format_ident, quote};
use std::ffi::CString;

/// The whole file.
pub(super) fn emit(protocol: &Protocol) -> TokenStream {
    let instance = table(
        protocol,
        "InstanceTable",
        "Functions called with an instance or a physical device.",
        &[Level::Instance, Level::PhysicalDevice],
    );
    let device = table(
        protocol,
        "DeviceTable",
        "Functions called with a device, a queue or a command buffer.",
        &[Level::Device, Level::Queue, Level::CommandBuffer],
    );
    quote! {
        use super::sys;
        use std::ffi::{CStr, c_void};

        #instance
        #device
    }
}

/// The kind and the id of each handle.
pub(super) fn handles(protocol: &Protocol) -> TokenStream {
    let handles = protocol.handles.values().map(|h| {
        let name = format_ident!("{}", h.names.rust);
        quote! {
            // SAFETY: the registry gives each type of handles a kind of its own.
            unsafe impl Handle for venus::#name {
                const KIND: venus::ObjectType = venus::#name::KIND;
                fn id(self) -> u64 { self.0 }
            }
        }
    });
    quote! {
        use super::object::Handle;
        use protocol::venus::generated as venus;

        #(#handles)*
    }
}

fn table(protocol: &Protocol, name: &str, doc: &str, levels: &[Level]) -> TokenStream {
    let commands: Vec<&Command> = protocol.commands.values().filter(|c| levels.contains(&c.level)).collect();
    let name = format_ident!("{name}");
    let fields = commands.iter().map(|c| {
        let field = format_ident!("{}", c.snake);
        let ty = function_type(protocol, c);
        let doc = format!("`{}`.", c.names.vk);
        quote!(#[doc = #doc] pub #field: Option<#ty>,)
    });
    let loads = commands.iter().map(|c| {
        let field = format_ident!("{}", c.snake);
        let names = std::iter::once(&c.names.vk)
            .chain(&c.names.aliases)
            .map(|n| Literal::c_string(&CString::new(n.as_str()).expect("registry names hold no NUL")));
        quote! {
            // SAFETY: the pointer is null or the function of this name, whose type the registry gives.
            #field: unsafe { std::mem::transmute::<*const c_void, _>(load(&[#(#names),*])) },
        }
    });
    quote! {
        #[doc = #doc]
        #[allow(dead_code, reason = "commands executed by hand may need no function of the guest's name")]
        pub(crate) struct #name { #(#fields)* }

        impl #name {
            /// Asks `load` for each function by its names, newest first; null leaves it out.
            #[allow(clippy::too_many_lines, reason = "one line per function")]
            pub(crate) fn load(load: impl Fn(&[&CStr]) -> *const c_void) -> Self {
                Self { #(#loads)* }
            }
        }
    }
}

fn function_type(protocol: &Protocol, command: &Command) -> TokenStream {
    let params = command.params.iter().map(|p| {
        let ty = c_type(protocol, &p.member.ty, &p.member.shape, p.direction != Direction::In);
        // An array as a parameter is a pointer to it in C.
        if matches!(p.member.shape, Shape::Fixed(_)) { quote!(*const #ty) } else { ty }
    });
    let ret = match &command.ret {
        Return::Void => quote!(),
        Return::Result => quote!(-> i32),
        Return::Value(scalar) => {
            let ty = scalar_type(*scalar);
            quote!(-> #ty)
        }
    };
    quote!(unsafe extern "system" fn(#(#params),*) #ret)
}
