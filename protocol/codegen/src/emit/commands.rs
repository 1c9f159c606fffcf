//! One struct per command and one per reply.

use proc_macro2::{Literal, TokenStream};
use quote::quote;

use super::members;
use super::spelling::{doc, ident};
use crate::ir::*;

/// A command and its reply.
pub(super) fn emit(protocol: &Protocol, command: &Command) -> TokenStream {
    let request = request(protocol, command);
    let reply = reply(protocol, command);
    quote! { #request #reply }
}

fn request(protocol: &Protocol, command: &Command) -> TokenStream {
    let rust = &command.names.rust;
    let name = ident(rust);
    let vk = &command.names.vk;
    let doc = doc(&format!("`{vk}`"));
    let number = Literal::i32_unsuffixed(command.number);
    let params: Vec<&Param> = command.params.iter().filter(|p| p.member.has_field()).collect();
    let generics = generics(protocol, &params);
    let fields = fields(protocol, &params);
    let names = params.iter().map(|p| ident(&p.member.rust));
    let all: Vec<&Member> = command.params.iter().map(|p| &p.member).collect();
    let demands = members::demands(protocol, rust, &all);
    let reads = command.params.iter().zip(demands).map(|(p, demand)| match p.direction {
        Direction::Out => members::decode_partial(protocol, rust, &p.member),
        Direction::In | Direction::InOut => {
            let read = members::decode(protocol, rust, &p.member);
            quote! { #demand #read }
        }
    });
    let writes = command.params.iter().map(|p| match p.direction {
        Direction::Out => members::encode_partial(&p.member),
        Direction::In | Direction::InOut => members::encode(&p.member),
    });
    let reader = if command.params.is_empty() {
        quote! { _reader }
    } else {
        quote! { reader }
    };
    let failed = failed(protocol, command);
    quote! {
        #doc
        #[derive(Clone, Copy, Debug, Default, PartialEq)]
        pub struct #name #generics { #(#fields)* }
        impl<'a> #name #generics {
            /// Number on the wire.
            pub const NUMBER: i32 = #number;
            /// Vulkan name.
            pub const NAME: &'static str = #vk;
            /// Reads the parameters.
            pub fn decode(#reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
                #(#reads)*
                Ok(Self { #(#names,)* })
            }
            /// Writes the whole command, as the guest does.
            #[cfg(feature = "driver")]
            pub fn encode(&self, flags: CommandFlagsEXT, writer: &mut Writer<'_>) {
                writer.u32(Self::NUMBER as u32);
                writer.value(&flags);
                #(#writes)*
            }
            #failed
        }
    }
}

/// The reply to a command that failed: its out parameters return unchanged.
fn failed(protocol: &Protocol, command: &Command) -> TokenStream {
    if command.ret != Return::Result {
        return TokenStream::new();
    }
    let reply = ident(&format!("{}Reply", command.names.rust));
    let outs = outs(command);
    let generics = generics(protocol, &outs);
    let names = outs.iter().map(|p| ident(&p.member.rust));
    quote! {
        /// The reply to a failed command: out parameters as they came.
        pub fn failed(&self, result: VkResult) -> #reply #generics {
            #reply { result, #(#names: self.#names,)* }
        }
    }
}

fn reply(protocol: &Protocol, command: &Command) -> TokenStream {
    let rust = format!("{}Reply", command.names.rust);
    let (name, request) = (ident(&rust), ident(&command.names.rust));
    let doc = doc(&format!("Reply to `{}`", command.names.vk));
    let outs = outs(command);
    let generics = generics(protocol, &outs);
    let fields = fields(protocol, &outs);
    let names: Vec<_> = outs.iter().map(|p| ident(&p.member.rust)).collect();
    let (ret_field, ret_write, ret_read, ret_name) = ret(&command.ret, &rust);
    let writes = outs.iter().map(|p| members::encode(&p.member));
    let reads = outs.iter().map(|p| members::decode_sized(protocol, &rust, &p.member));
    quote! {
        #doc
        #[derive(Clone, Copy, Debug, Default, PartialEq)]
        pub struct #name #generics { #ret_field #(#fields)* }
        impl<'a> #name #generics {
            /// Writes the reply.
            pub fn encode(&self, writer: &mut Writer<'_>) {
                writer.u32(#request::NUMBER as u32);
                #ret_write
                #(#writes)*
            }
            /// Reads a reply, as the guest does.
            #[cfg(feature = "driver")]
            pub fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
                reader.command_number(#request::NUMBER)?;
                #ret_read
                #(#reads)*
                Ok(Self { #ret_name #(#names,)* })
            }
        }
    }
}

fn ret(ret: &Return, owner: &str) -> (TokenStream, TokenStream, TokenStream, TokenStream) {
    let (field, ty) = match ret {
        Return::Void => return Default::default(),
        Return::Result => (ident("result"), ident("VkResult")),
        Return::Value(scalar) => (ident("ret"), ident(scalar.rust())),
    };
    let what = format!("{owner}.{field}");
    (
        quote! { pub #field: #ty, },
        quote! { writer.value(&self.#field); },
        quote! { let #field: #ty = reader.value(#what)?; },
        quote! { #field, },
    )
}

/// Parameters that the reply carries.
pub(super) fn outs(command: &Command) -> Vec<&Param> {
    command.params.iter().filter(|p| p.direction != Direction::In).collect()
}

fn fields(protocol: &Protocol, params: &[&Param]) -> Vec<TokenStream> {
    let field = |p: &&Param| {
        let (field, ty) = (ident(&p.member.rust), members::field_type(protocol, &p.member));
        quote! { pub #field: #ty, }
    };
    params.iter().map(field).collect()
}

/// `<'a>` when any field borrows.
pub(super) fn generics(protocol: &Protocol, params: &[&Param]) -> TokenStream {
    let owned = |shape: &Shape| matches!(shape, Shape::Value | Shape::Fixed(_));
    let borrows = params.iter().any(|p| !owned(&p.member.shape) || protocol.needs_lifetime(&p.member.ty));
    if borrows {
        quote! { <'a> }
    } else {
        TokenStream::new()
    }
}

/// `<'a>` for a request.
pub(super) fn request_generics(protocol: &Protocol, command: &Command) -> TokenStream {
    generics(protocol, &command.params.iter().filter(|p| p.member.has_field()).collect::<Vec<_>>())
}
