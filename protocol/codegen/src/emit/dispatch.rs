//! `Command` and `Reply`: every command and every reply, by number.

use proc_macro2::{Literal, TokenStream};
use quote::quote;

use super::commands;
use super::spelling::ident;
use crate::ir::{Command, Protocol};

/// The enum and its dispatch.
pub(super) fn emit(protocol: &Protocol) -> TokenStream {
    let mut all: Vec<&Command> = protocol.commands.values().collect();
    all.sort_by_key(|c| c.number);
    let names: Vec<_> = all.iter().map(|c| ident(&c.names.rust)).collect();
    let generics = all.iter().map(|c| commands::request_generics(protocol, c));
    let known = protocol.command_numbers.iter().map(|(number, name)| {
        let number = Literal::i32_unsuffixed(*number);
        quote! { #number => #name, }
    });
    let reply = reply(protocol, &all);
    let numbers = all.iter().map(|c| Literal::i32_unsuffixed(c.number));
    quote! {
        use super::prelude::*;
        use super::*;

        /// A decoded command.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub enum Command<'a> { #(#names(#names #generics),)* }

        impl<'a> Command<'a> {
            /// Numbers of all decodable commands, ascending.
            pub const NUMBERS: &'static [i32] = &[#(#numbers),*];

            /// Reads the parameters of the command with this number; number and flags have been read.
            pub fn decode(number: i32, reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
                match number {
                    #(#names::NUMBER => #names::decode(reader).map(Self::#names),)*
                    _ => Err(reader.error(DecodeErrorKind::Command(number)).within("Command")),
                }
            }

            /// Writes the whole command, as the guest does.
            #[cfg(feature = "driver")]
            pub fn encode(&self, flags: CommandFlagsEXT, writer: &mut Writer<'_>) {
                match self {
                    #(Self::#names(command) => command.encode(flags, writer),)*
                }
            }

            /// Number on the wire.
            pub fn number(&self) -> i32 {
                match self {
                    #(Self::#names(_) => #names::NUMBER,)*
                }
            }

            /// Vulkan name of a command number, decodable or not.
            pub fn name(number: i32) -> Option<&'static str> {
                Some(match number {
                    #(#known)*
                    _ => return None,
                })
            }
        }

        #reply
    }
}

fn reply(protocol: &Protocol, all: &[&Command]) -> TokenStream {
    let variants: Vec<_> = all.iter().map(|c| ident(&c.names.rust)).collect();
    let types: Vec<_> = all.iter().map(|c| ident(&format!("{}Reply", c.names.rust))).collect();
    let generics = all.iter().map(|c| commands::generics(protocol, &commands::outs(c)));
    quote! {
        /// A reply.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub enum Reply<'a> { #(#variants(#types #generics),)* }

        impl<'a> Reply<'a> {
            /// Writes the reply.
            pub fn encode(&self, writer: &mut Writer<'_>) {
                match self {
                    #(Self::#variants(reply) => reply.encode(writer),)*
                }
            }

            /// Reads the reply to the command with this number, as the guest does.
            #[cfg(feature = "driver")]
            pub fn decode(number: i32, reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
                match number {
                    #(#variants::NUMBER => #types::decode(reader).map(Self::#variants),)*
                    _ => Err(reader.error(DecodeErrorKind::Command(number)).within("Reply")),
                }
            }
        }
    }
}
